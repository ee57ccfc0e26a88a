//! Meaning of a field's value by its name: the family it belongs to, its unit, how it is shown.

/// Things that belong into one picture because they share a unit and a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    Connections,
    Rate,
    Throughput,
    CpuTime,
    CpuPerByte,
    Cores,
    Memory,
    Latency,
}

impl Family {
    pub fn title(self) -> &'static str {
        match self {
            Self::Connections => "Connections",
            Self::Rate => "Rate",
            Self::Throughput => "Throughput",
            Self::CpuTime => "CPU time for each",
            Self::CpuPerByte => "CPU time per gigabyte",
            Self::Cores => "CPU: cores kept busy",
            Self::Memory => "Memory",
            Self::Latency => "Latency",
        }
    }

    pub fn label(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Rate => "per second",
            Self::Throughput => "Gb/s",
            Self::CpuTime => "CPU µs",
            Self::CpuPerByte => "CPU s/GB",
            Self::Cores => "cores",
            Self::Memory => "KiB",
            Self::Latency => "ms",
        }
    }
}

/// The family of a field, and the factor that brings its value into the family's unit. `path` is dotted.
pub fn family_of(path: &str) -> Option<(Family, f64)> {
    let leaf = path.rsplit('.').next().unwrap_or(path);
    let has = |part: &str| path.contains(part);
    let ends = |part: &str| leaf.ends_with(part);
    if has("offered") || has("wanted") && has("per_second") || has("provenance") {
        return if ends("per_second") { Some((Family::Rate, 1.0)) } else { None };
    }
    if has("latency") || is_percentile(leaf) && (has("connect.") || has("answer.")) {
        return is_percentile(leaf).then_some((Family::Latency, 1e-6));
    }
    if ends("seconds_per_gigabyte") || ends("s_per_gb") {
        return Some((Family::CpuPerByte, 1.0));
    }
    if ends("gigabits_per_second") || ends("gbps") || ends("gbit_s") {
        return Some((Family::Throughput, 1.0));
    }
    if ends("bits_per_second") {
        return Some((Family::Throughput, 1e-9));
    }
    if ends("gigabytes_per_second") {
        return Some((Family::Throughput, 8.0));
    }
    if ends("megabytes_per_second") {
        return Some((Family::Throughput, 0.008));
    }
    if ends("bytes_per_second") {
        return Some((Family::Throughput, 8e-9));
    }
    if ends("per_second") || leaf == "rps" || leaf == "tps" {
        return Some((Family::Rate, 1.0));
    }
    if has("cpu") || has("nanoseconds_per") || has("microseconds_per") {
        return match () {
            () if has("nanoseconds") || ends("_ns") => Some((Family::CpuTime, 1e-3)),
            () if has("microseconds") || ends("_us") => Some((Family::CpuTime, 1.0)),
            () if ends("cores") || ends("busy") => Some((Family::Cores, 1.0)),
            () if has("seconds_each") => Some((Family::CpuTime, 1e6)),
            () => None,
        };
    }
    if ends("server_cores") || ends("proxy_cores") || ends("origin_cores") || ends("busy_cores") || ends("proxy_busy") {
        return Some((Family::Cores, 1.0));
    }
    if ends("_kib") || has("growth.") {
        return Some((Family::Memory, 1.0));
    }
    if has("memory") && ends("_bytes") || ends("rss_bytes") {
        return Some((Family::Memory, 1.0 / 1024.0));
    }
    let is_connections = ends("connections") || ["open", "served", "established", "accepted", "queued"].contains(&leaf);
    is_connections.then_some((Family::Connections, 1.0))
}

fn is_percentile(leaf: &str) -> bool {
    matches!(leaf, "p50" | "p90" | "p99" | "p99_9" | "mean" | "max")
}

/// `p99_9` is 0.999.
pub fn quantile_of(name: &str) -> Option<f64> {
    let digits = name.strip_prefix('p')?;
    let percent: f64 = digits.replace('_', ".").parse().ok()?;
    (0.0..100.0).contains(&percent).then_some(percent / 100.0)
}

/// `server_cpu.nanoseconds_per_request` reads "server cpu, nanoseconds per request".
pub fn readable(path: &str) -> String {
    path.replace('.', ", ").replace('_', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_families_and_units() {
        assert_eq!(family_of("server_cpu.nanoseconds_per_request"), Some((Family::CpuTime, 1e-3)));
        assert_eq!(family_of("server_cpu.cores"), Some((Family::Cores, 1.0)));
        assert_eq!(family_of("sustained.per_second"), Some((Family::Rate, 1.0)));
        assert_eq!(family_of("client.bytes_per_second"), Some((Family::Throughput, 8e-9)));
        assert_eq!(family_of("gigabytes_per_second"), Some((Family::Throughput, 8.0)));
        assert_eq!(family_of("server_connections"), Some((Family::Connections, 1.0)));
        assert_eq!(family_of("latency.p99_9"), Some((Family::Latency, 1e-6)));
        assert_eq!((family_of("workers"), family_of("cores"), family_of("verified")), (None, None, None));
        let close = |name: &str, quantile: f64| quantile_of(name).is_some_and(|own| (own - quantile).abs() < 1e-12);
        assert!(close("p99_9", 0.999) && close("p50", 0.5) && quantile_of("per_second").is_none());
    }
}
