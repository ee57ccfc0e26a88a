//! Figures of the demo, and their presentation.

use serde_json::{Value, json};

/// One kind of load and what came of it.
pub struct Row {
    pub what: &'static str,
    /// The report of `propylon-bench`.
    pub report: Value,
}

/// Everything that the final table says.
pub struct Figures {
    pub rows: Vec<Row>,
    /// The report of `propylon-bench connections`.
    pub idle: Value,
    /// Name, and requests that the engine sent to it.
    pub origins: Vec<(&'static str, u64)>,
    pub connections_in: u64,
    pub connections_out: u64,
}

/// Above this share of its core the load is what limits the rate.
const LOAD_SATURATED: f64 = 0.95;

impl Figures {
    pub fn errors(&self) -> u64 {
        self.rows.iter().map(|row| errors(&row.report)).sum::<u64>() + self.idle_errors()
    }

    pub fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            json!({
                "what": row.what,
                "per_second": row.report["per_second"],
                "cpu_us": cpu_us(&row.report),
                "p50_us": micros(&row.report["latency"]["p50"]),
                "p99_us": micros(&row.report["latency"]["p99"]),
                "done": row.report["done"],
                "errors": errors(&row.report),
                "load_busy": row.report["load_busy"],
            })
        });
        let origins = self.origins.iter().map(|(name, requests)| json!({ "name": name, "requests": requests }));
        json!({
            "rows": rows.collect::<Vec<Value>>(),
            "idle": {
                "connections": self.held()["open"],
                "bytes_per_connection": self.idle_bytes(),
                "errors": self.idle_errors(),
            },
            "origins": origins.collect::<Vec<Value>>(),
            "connections_in": self.connections_in,
            "connections_out": self.connections_out,
        })
    }

    /// Figures taken while the idle connections were held; null if there are none.
    fn held(&self) -> &Value {
        &self.idle["modes"][0]
    }

    /// Resident memory of the engine per idle connection.
    fn idle_bytes(&self) -> Option<f64> {
        self.held()["server"]["rss_kib"].as_f64().map(|kib| (kib * 1024.0).max(0.0))
    }

    /// Idle connections that could not be opened, or did not stay.
    fn idle_errors(&self) -> u64 {
        let wanted = self.idle["wanted"].as_u64().unwrap_or(0);
        wanted.saturating_sub(self.held()["open"].as_u64().unwrap_or(0))
    }

    pub fn table(&self) -> String {
        let mut text =
            format!("{:<44}{:>12}{:>12}{:>10}{:>10}{:>9}\n", "", "per second", "CPU each", "p50", "p99", "errors");
        for row in &self.rows {
            let latency = &row.report["latency"];
            text.push_str(&format!(
                "{:<44}{:>12}{:>12}{:>10}{:>10}{:>9}\n",
                row.what,
                thousands(row.report["per_second"].as_f64().unwrap_or(0.0)),
                cpu_us(&row.report).map_or("-".into(), duration),
                duration(micros(&latency["p50"])),
                duration(micros(&latency["p99"])),
                thousands(errors(&row.report) as f64),
            ));
        }
        text.push('\n');
        let mut fact = |name: &str, value: String| text.push_str(&format!("{name:<44}{value}\n"));
        let count = thousands(self.held()["open"].as_f64().unwrap_or(0.0));
        let idle_errors = match self.idle_errors() {
            0 => String::new(),
            errors => format!("; {} could not be held", thousands(errors as f64)),
        };
        let bytes = self.idle_bytes().map_or("not measured".into(), |bytes| format!("{} bytes", thousands(bytes)));
        fact("memory of an idle TLS connection", format!("{bytes} ({count} of them{idle_errors})"));
        let origins = self.origins.iter().map(|(name, requests)| format!("{name} {}", thousands(*requests as f64)));
        fact("requests per origin", origins.collect::<Vec<String>>().join(", "));
        let ratio = self.connections_in as f64 / self.connections_out.max(1) as f64;
        let (made, out) = (thousands(self.connections_in as f64), thousands(self.connections_out as f64));
        fact("connections in : connections out", format!("{made} : {out}, that is {} : 1", thousands(ratio)));
        text
    }

    /// Remarks needed to read the table, and the first error if there was one.
    pub fn remarks(&self) -> Vec<String> {
        let busy = |row: &&Row| row.report["load_busy"].as_f64().unwrap_or(0.0) > LOAD_SATURATED;
        let mut remarks: Vec<String> = Vec::new();
        let saturated: Vec<&str> = self.rows.iter().filter(busy).map(|row| row.what).collect();
        if !saturated.is_empty() {
            remarks.push(format!(
                "The load had no time left in \"{}\": there the engine could do more per second.",
                saturated.join("\", \"")
            ));
        }
        let reports = self.rows.iter().map(|row| &row.report).chain([&self.idle]);
        let first = reports.filter_map(|report| report["first_error"].as_str()).next();
        remarks.extend(first.map(|error| format!("The first error was: {error}")));
        remarks
    }
}

fn errors(report: &Value) -> u64 {
    match &report["errors"] {
        Value::Object(kinds) => kinds.values().filter_map(Value::as_u64).sum(),
        count => count.as_u64().unwrap_or(0),
    }
}

/// Microseconds of the engine's CPU per request.
fn cpu_us(report: &Value) -> Option<f64> {
    report["server_cpu"]["nanoseconds_per_request"].as_f64().map(|nanos| nanos / 1e3)
}

fn micros(nanoseconds: &Value) -> f64 {
    nanoseconds.as_f64().unwrap_or(0.0) / 1e3
}

/// A duration in words, from microseconds.
fn duration(micros: f64) -> String {
    match micros {
        micros if micros < 10.0 => format!("{micros:.1} µs"),
        micros if micros < 1e3 => format!("{micros:.0} µs"),
        micros if micros < 1e5 => format!("{:.1} ms", micros / 1e3),
        micros => format!("{:.0} ms", micros / 1e3),
    }
}

/// A whole number in groups of three: 12,345.
pub fn thousands(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if number < -0.5 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_in_groups_of_three() {
        let grouped: Vec<String> = [0.0, 999.0, 1000.4, 1_234_567.0, -1000.0].map(thousands).into();
        assert_eq!(grouped, ["0", "999", "1,000", "1,234,567", "-1,000"]);
    }

    #[test]
    fn a_table_shows_what_was_measured_and_what_failed() {
        let report = json!({
            "per_second": 4321.0, "load_busy": 0.99, "errors": { "reset": 2, "timeout": 1 },
            "first_error": "reset: by peer", "server_cpu": { "nanoseconds_per_request": 123_456.0 },
            "latency": { "p50": 2_000_000, "p99": 900_000 },
        });
        let figures = Figures {
            rows: vec![Row { what: "new connections", report }],
            idle: json!({ "wanted": 2000, "modes": [{ "open": 2000, "server": { "rss_kib": 8.5 } }] }),
            origins: vec![("blue", 10), ("green", 11)],
            connections_in: 5000,
            connections_out: 10,
        };
        let table = figures.table();
        for part in ["4,321", "123 µs", "2.0 ms", "900 µs", "8,704 bytes", "blue 10, green 11", "500 : 1"] {
            assert!(table.contains(part), "{part} in\n{table}");
        }
        assert_eq!(figures.errors(), 3);
        assert_eq!(figures.remarks().len(), 2);
        assert_eq!(figures.json()["rows"][0]["errors"], 3);
    }
}
