//! Costs of one core, one gigabyte and one connection: by the documents' rules, or by measurement.

use super::demand::Traffic;
use crate::failure::{Failure, Outcome};
use crate::target::Key;
use crate::units::show_number;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// A thing that has a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Full handshakes per second and core.
    EcTransactions,
    RsaTransactions,
    /// Gb/s per core.
    TlsBulk,
    HttpBulk,
    TcpBulk,
    ReencryptedBulk,
    /// Bytes per connection, user and kernel.
    TlsConnection,
    HttpConnection,
    TcpConnection,
    /// Signatures per second and core of a key server.
    EcSignatures,
    RsaSignatures,
}

impl Kind {
    pub fn transactions(key: Key) -> Self {
        if key == Key::Ec { Self::EcTransactions } else { Self::RsaTransactions }
    }

    pub fn signatures(key: Key) -> Self {
        if key == Key::Ec { Self::EcSignatures } else { Self::RsaSignatures }
    }

    pub fn bulk(traffic: Traffic) -> Self {
        match traffic {
            Traffic::Tls => Self::TlsBulk,
            Traffic::Http => Self::HttpBulk,
            Traffic::Tcp => Self::TcpBulk,
        }
    }

    pub fn connection(traffic: Traffic) -> Self {
        match traffic {
            Traffic::Tls => Self::TlsConnection,
            Traffic::Http => Self::HttpConnection,
            Traffic::Tcp => Self::TcpConnection,
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub value: f64,
    pub source: String,
}

#[derive(Clone, Debug)]
pub struct Figures(BTreeMap<Kind, Figure>);

/// Re-encryption costs the bulk work once more (documents).
pub const REENCRYPTION_FACTOR: f64 = 2.0;

const DOCUMENTS: &str = "Avi sizing rule";
/// One core of a virtual machine (AMD EPYC), one link, 64 outstanding, without the kernels for AVX-512 IFMA.
const KEY_SERVER: &str = "propylon-keyserver without kernels, docs/keyserver.md";

impl Figures {
    /// VMware NSX ALB (Avi) service engine sizing: per core 2,000 EC P-256 or 500 RSA-2048 transactions/s and 1 Gb/s of
    /// TLS; per connection 40 kB with TLS, half of it for HTTP, a quarter for TCP. No rule for plain bulk, nor for key
    /// servers: of these our own was measured.
    pub fn of_the_documents() -> Self {
        let rules = [
            (Kind::EcTransactions, 2000.0),
            (Kind::RsaTransactions, 500.0),
            (Kind::TlsBulk, 1.0),
            (Kind::TlsConnection, 40e3),
            (Kind::HttpConnection, 20e3),
            (Kind::TcpConnection, 10e3),
        ];
        let figure = |source: &'static str| move |(kind, value)| (kind, Figure { value, source: source.to_owned() });
        let signatures = [(Kind::EcSignatures, 59_000.0), (Kind::RsaSignatures, 4_120.0)];
        let rules = rules.map(figure(DOCUMENTS)).into_iter();
        Self(rules.chain(signatures.map(figure(KEY_SERVER))).collect())
    }

    pub fn of(&self, kind: Kind) -> Option<&Figure> {
        self.0.get(&kind)
    }

    fn learn(&mut self, kind: Kind, value: f64, source: String) -> usize {
        if !(value.is_finite() && value > 0.0) {
            return 0;
        }
        self.0.insert(kind, Figure { value, source });
        1
    }

    /// Takes every figure that a result of this program has; it is an error if it has none, or has errors itself.
    /// `traffic` and `key` say what a result that does not name its own was about.
    pub fn learn_from(&mut self, result: &Value, name: &str, traffic: Traffic, key: Key) -> Outcome<()> {
        let learned = if result["rows"].is_array() && result["programs"].is_array() {
            self.learn_from_comparison(result, name)?
        } else {
            refuse_errors(result, name)?;
            for mode in result["modes"].as_array().into_iter().flatten() {
                refuse_errors(&mode["opening"], name)?;
                refuse_errors(&mode["holding"], name)?;
            }
            self.learn_from_load(result, name, traffic, key)
        };
        if learned == 0 {
            return Err(Failure::new(format!(
                "{name}: no figure to plan with; it takes results of compare (with propylon in it), or of handshakes, \
                 requests, throughput, connections and keyserver with --server-pid"
            )));
        }
        Ok(())
    }

    fn learn_from_comparison(&mut self, result: &Value, name: &str) -> Outcome<usize> {
        let mut learned = 0;
        for row in result["rows"].as_array().into_iter().flatten() {
            let row_name = row["row"].as_str().unwrap_or_default();
            let cells = row["cells"].as_array().into_iter().flatten();
            let Some(cell) = cells.into_iter().find(|cell| cell["program"] == "propylon") else { continue };
            refuse_errors(cell, &format!("{name}, row {row_name}"))?;
            let Some(median) = cell["median"].as_f64() else { continue };
            let kernel = cell["kernel_kib"].as_f64().unwrap_or(0.0);
            // RSS of the proxy, and kernel memory of both ends of each connection: on the safe side.
            let connection_bytes = (median.max(0.0) + kernel.max(0.0)) * 1024.0;
            let per_second = 1e6 / median;
            let gigabits = 8.0 / median;
            let (kind, value, seen) = match row_name {
                "ec13" => (Kind::EcTransactions, per_second, "CPU µs"),
                "rsa13" => (Kind::RsaTransactions, per_second, "CPU µs"),
                "bulk-tls" => (Kind::TlsBulk, gigabits, "CPU s/GB"),
                "bulk-plain" => (Kind::HttpBulk, gigabits, "CPU s/GB"),
                "bulk-tcp" => (Kind::TcpBulk, gigabits, "CPU s/GB"),
                "bulk-reencrypt" | "bulk-reencrypted" => (Kind::ReencryptedBulk, gigabits, "CPU s/GB"),
                "idle-tls" => (Kind::TlsConnection, connection_bytes, "KiB RSS"),
                "idle-plain" => (Kind::HttpConnection, connection_bytes, "KiB RSS"),
                "idle-tcp" => (Kind::TcpConnection, connection_bytes, "KiB RSS"),
                _ => continue,
            };
            let mut source = format!("{name}, {row_name}: {} {seen}", show_number(median));
            if kernel > 0.0 && seen == "KiB RSS" {
                source.push_str(&format!(" + {} KiB kernel, both ends", show_number(kernel)));
            }
            learned += self.learn(kind, value, source);
        }
        Ok(learned)
    }

    fn learn_from_load(&mut self, result: &Value, name: &str, traffic: Traffic, key: Key) -> usize {
        let number = |path: &str| result.pointer(path).and_then(Value::as_f64);
        let traffic = traffic_of(result).unwrap_or(traffic);
        let learn_each = |figures: &mut Self, kind: Kind, each: Option<f64>| {
            let Some(each) = each else { return 0 };
            let source = format!("{name}: {} CPU µs each, taken as the key asked for", show_number(each / 1e3));
            figures.learn(kind, 1e9 / each, source)
        };
        match result["command"].as_str().unwrap_or_default() {
            // Resumed handshakes cost less than what is demanded: full ones.
            "handshakes" if number("/resumed").unwrap_or(0.0) > 0.0 => 0,
            "handshakes" => learn_each(self, Kind::transactions(key), number("/server_cpu/nanoseconds_per_request")),
            "keyserver" => learn_each(self, Kind::signatures(key), number("/server_cpu/nanoseconds_per_operation")),
            // Small answers cost by the request, not by the byte.
            "requests" if mean_body_bytes(result) < BULK_BODY_BYTES_MIN => 0,
            "requests" | "throughput" => number("/server_cpu/seconds_per_gigabyte").map_or(0, |each| {
                let source = format!("{name}: {each:.3} CPU s/GB, taken as {}", traffic.name());
                self.learn(Kind::bulk(traffic), 8.0 / each, source)
            }),
            "connections" if result["modes"].is_array() => {
                let modes = result["modes"].as_array().into_iter().flatten();
                modes.map(|mode| self.learn_from_mode(mode, name)).sum()
            }
            "connections" => {
                let kernel = number("/growth/kernel").unwrap_or(0.0);
                self.learn_connection(name, traffic, number("/growth/rss").unwrap_or(0.0), kernel)
            }
            _ => 0,
        }
    }

    fn learn_from_mode(&mut self, mode: &Value, name: &str) -> usize {
        let number = |path: &str| mode.pointer(path).and_then(Value::as_f64).unwrap_or(0.0);
        let traffic = match mode["mode"].as_str() {
            Some("tls") => Traffic::Tls,
            Some("http") => Traffic::Http,
            // The others are HTTP connections too, that say nothing: no TCP relay.
            _ => return 0,
        };
        self.learn_connection(
            name,
            traffic,
            number("/server/rss_kib"),
            number("/kernel/sockets") + number("/kernel/buffers"),
        )
    }

    /// Without a process to look at, the RSS is zero: no figure.
    fn learn_connection(&mut self, name: &str, traffic: Traffic, rss_kib: f64, kernel_kib: f64) -> usize {
        let (what, kernel_kib) = (traffic.name(), kernel_kib.max(0.0));
        // The kernel's memory is the whole machine's: among few connections it may seem to shrink.
        let kernel = if kernel_kib > 0.0 {
            format!("{kernel_kib:.1} KiB kernel, both ends")
        } else {
            "kernel memory not seen to grow: measure more connections".to_owned()
        };
        let source = format!("{name}: {rss_kib:.1} KiB RSS + {kernel}; taken as {what}");
        if rss_kib > 0.0 { self.learn(Kind::connection(traffic), (rss_kib + kernel_kib) * 1024.0, source) } else { 0 }
    }
}

/// The traffic that a result names; `None` if it does not.
fn traffic_of(result: &Value) -> Option<Traffic> {
    if result["what"].as_str().is_some_and(|what| what.starts_with("tcp")) {
        return Some(Traffic::Tcp);
    }
    result["tls"].as_bool().map(|is_tls| if is_tls { Traffic::Tls } else { Traffic::Http })
}

/// Bodies from which on the cost per request is small beside the cost per byte.
const BULK_BODY_BYTES_MIN: f64 = 65536.0;

fn mean_body_bytes(result: &Value) -> f64 {
    let number = |name: &str| result[name].as_f64().unwrap_or(0.0);
    number("body_bytes") / number("done").max(1.0)
}

/// `errors` is a count in some results and counts by kind in others.
fn refuse_errors(result: &Value, name: &str) -> Outcome<()> {
    let errors = match &result["errors"] {
        Value::Object(kinds) => kinds.values().filter_map(Value::as_u64).sum(),
        count => count.as_u64().unwrap_or(0),
    };
    if errors == 0 {
        return Ok(());
    }
    let first = result["first_error"].as_str().unwrap_or("unknown");
    Err(Failure::new(format!(
        "{name}: {errors} errors (first: {first}); a plan from failed measurements means nothing"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn measured_figures_take_the_place_of_rules() {
        let mut figures = Figures::of_the_documents();
        let result = json!({"programs": [], "rows": [
            {"row": "ec13", "cells": [{"program": "haproxy", "median": 300.0}, {"program": "propylon", "median": 100.0}]},
            {"row": "bulk-tls", "cells": [{"program": "propylon", "median": 0.5}]},
            {"row": "idle-tls", "cells": [{"program": "propylon", "median": 4.0, "kernel_kib": 6.0}]},
        ]});
        figures.learn_from(&result, "r.json", Traffic::Tls, Key::Ec).unwrap();
        assert_eq!(figures.of(Kind::EcTransactions).unwrap().value, 10_000.0);
        assert_eq!(figures.of(Kind::TlsBulk).unwrap().value, 16.0);
        assert_eq!(figures.of(Kind::TlsConnection).unwrap().value, 10_240.0);
        assert_eq!(figures.of(Kind::RsaTransactions).unwrap().source, DOCUMENTS);
    }

    #[test]
    fn load_results_are_read_by_what_they_say_of_themselves() {
        let mut figures = Figures::of_the_documents();
        let mut learn = |result: Value| figures.learn_from(&result, "r", Traffic::Tls, Key::Rsa).is_ok();
        assert!(learn(json!({"command": "handshakes", "server_cpu": {"nanoseconds_per_request": 1e6}})));
        assert!(!learn(json!({"command": "handshakes", "resumed": 9, "server_cpu": {"nanoseconds_per_request": 1.0}})));
        assert!(learn(json!({"command": "keyserver", "server_cpu": {"nanoseconds_per_operation": 2e5}})));
        assert!(learn(json!({"command": "throughput", "tls": false, "server_cpu": {"seconds_per_gigabyte": 0.4}})));
        assert!(!learn(
            json!({"command": "requests", "done": 9, "body_bytes": 9, "server_cpu": {"seconds_per_gigabyte": 9.0}})
        ));
        assert!(learn(json!({"command": "connections", "modes": [{"mode": "tcp", "server": {"rss_kib": 1.0}},
            {"mode": "http", "server": {"rss_kib": 1.0}, "kernel": {"sockets": 4.0, "buffers": 0.0}}]})));
        let value = |kind| figures.of(kind).unwrap().value;
        assert_eq!((value(Kind::RsaTransactions), value(Kind::RsaSignatures)), (1000.0, 5000.0));
        assert_eq!((value(Kind::HttpBulk), value(Kind::HttpConnection)), (20.0, 5120.0));
        assert_eq!((value(Kind::TlsBulk), value(Kind::TcpConnection)), (1.0, 10e3));
    }

    #[test]
    fn failed_or_empty_results_are_refused() {
        let mut figures = Figures::of_the_documents();
        let failed = json!({"programs": [], "rows": [
            {"row": "ec13", "cells": [{"program": "propylon", "median": 1.0, "errors": 3}]}]});
        assert!(figures.learn_from(&failed, "r", Traffic::Tls, Key::Ec).is_err());
        let failed =
            json!({"command": "handshakes", "errors": {"tls": 2}, "server_cpu": {"nanoseconds_per_request": 1.0}});
        assert!(figures.learn_from(&failed, "r", Traffic::Tls, Key::Ec).is_err());
        for empty in [json!({}), json!([1]), json!({"command": "handshakes", "server_cpu": null}), json!(null)] {
            assert!(figures.learn_from(&empty, "r", Traffic::Tls, Key::Ec).is_err());
        }
        assert_eq!(figures.of(Kind::EcTransactions).unwrap().value, 2000.0);
    }
}
