//! The store as OpenMetrics 1.0 has it, for those who ask for that.

use crate::store::Store;

/// The media type of the text.
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The same of the format which everybody reads.
pub const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Ends of names that are units.
const UNITS: [&str; 2] = ["seconds", "bytes"];

impl Store {
    /// All metrics in the format that the field `Accept` prefers, with its media type.
    pub fn by_accept(&self, accept: &str) -> (&'static str, String) {
        by_accept(accept, self.prometheus())
    }
}

/// A text of Prometheus' format 0.0.4 in the format that the field `Accept` prefers, with its media type: OpenMetrics
/// where it is named and no less welcome than plain text.
pub fn by_accept(accept: &str, text: String) -> (&'static str, String) {
    match wants_open_metrics(accept) {
        true => (OPEN_METRICS, open_metrics(&text)),
        false => (PROMETHEUS, text),
    }
}

fn wants_open_metrics(accept: &str) -> bool {
    // A word that stands for several types names none: curl's `*/*` gets what it always got.
    let quality = |wanted: &str| {
        let of = |item: &str| {
            let mut parts = item.split(';').map(str::trim);
            let is_it = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case(wanted));
            let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
            is_it.then(|| weight.map_or(Some(1.0), |weight| weight.trim().parse::<f32>().ok())).flatten()
        };
        accept.split(',').filter_map(of).fold(0.0_f32, f32::max)
    };
    let open = quality("application/openmetrics-text");
    open > 0.0 && open >= quality("text/plain")
}

/// Families are named without `_total`, have their unit, and bounds are written as numbers with a point.
fn open_metrics(prometheus: &str) -> String {
    let mut out = String::with_capacity(prometheus.len() + prometheus.len() / 8);
    let mut help = "";
    let mut is_histogram = false;
    for line in prometheus.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            is_histogram = kind == "histogram";
            family(&mut out, (name, kind), help);
        } else {
            sample(&mut out, line, is_histogram);
        }
    }
    out.push_str("# EOF\n");
    out
}

fn family(out: &mut String, (name, kind): (&str, &str), help: &str) {
    let (name, kind) = match (kind, name.strip_suffix("_total")) {
        ("counter", Some(name)) => (name, kind),
        // A counter's samples have to end so.
        ("counter", None) => (name, "unknown"),
        _ => (name, kind),
    };
    out.push_str(&format!("# TYPE {name} {kind}\n"));
    if let Some(unit) = UNITS.iter().find(|unit| name.strip_suffix(**unit).is_some_and(|rest| rest.ends_with('_'))) {
        out.push_str(&format!("# UNIT {name} {unit}\n"));
    }
    // Quotes are escaped in this format, and backslashes are already.
    out.push_str(&format!("# HELP {name} {}\n", help.replace('"', "\\\"")));
}

fn sample(out: &mut String, line: &str, is_histogram: bool) {
    const BOUND: &str = "le=\"";
    let bound = if is_histogram { line.rfind(BOUND).map(|at| at + BOUND.len()) } else { None };
    let end = bound.and_then(|start| Some(start + line[start..].find('"')?));
    match end.filter(|end| line[bound.unwrap_or(*end)..*end].bytes().all(|byte| byte.is_ascii_digit())) {
        Some(end) => out.push_str(&format!("{}.0{}\n", &line[..end], &line[end..])),
        None => {
            out.push_str(line);
            out.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;

    #[test]
    fn a_scrape_reads_as_open_metrics_says() {
        let mut registry = Registry::new();
        let bytes = registry.counter("in_bytes_total", "Bytes \"in\".", &[("path", "a\\le=\"1\"")]);
        registry.counter("odd", "Odd.", &[]);
        registry.gauge("open", "Open now.", &[]);
        let time = registry.histogram("time_seconds", "Time.", &[("listener", "web")], &[500, 1_000_000], 1e-6);
        let store = registry.build(1);
        let column = Store::column(&store, 0);
        column.add(bytes, 3);
        column.observe(time, 400);
        let expected = r##"# TYPE in_bytes counter
# UNIT in_bytes bytes
# HELP in_bytes Bytes \"in\".
in_bytes_total{path="a\\le=\"1\""} 3
# TYPE odd unknown
# HELP odd Odd.
odd 0
# TYPE open gauge
# HELP open Open now.
open 0
# TYPE time_seconds histogram
# UNIT time_seconds seconds
# HELP time_seconds Time.
time_seconds_bucket{listener="web",le="0.0005"} 1
time_seconds_bucket{listener="web",le="1.0"} 1
time_seconds_bucket{listener="web",le="+Inf"} 1
time_seconds_sum{listener="web"} 0.0004
time_seconds_count{listener="web"} 1
# EOF
"##;
        assert_eq!(store.by_accept("application/openmetrics-text"), (OPEN_METRICS, expected.to_owned()));
        assert_eq!(store.by_accept("*/*"), (PROMETHEUS, store.prometheus()));
    }

    #[test]
    fn who_prefers_plain_text_or_names_nothing_has_plain_text() {
        for accept in [
            "application/openmetrics-text",
            "Application/OpenMetrics-Text; version=1.0.0",
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
            "text/html, application/openmetrics-text;q=0.1",
        ] {
            assert!(wants_open_metrics(accept), "{accept}");
        }
        for accept in [
            "",
            "*/*",
            "application/*",
            "text/plain",
            "text/plain;q=0.5, application/openmetrics-text;q=0.4",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=x",
            ";;,,=",
        ] {
            assert!(!wants_open_metrics(accept), "{accept}");
        }
    }
}
