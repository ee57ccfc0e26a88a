//! Costs of one core, one gigabyte and one connection: by the documents' rules, or by measurement.

use super::requirements::Traffic;
use crate::compare::rows::Unit;
use crate::compare::verdict::Verdict;
use crate::connections::Mode;
use crate::connections::table::ModeReport;
use crate::failure::{Failure, Outcome};
use crate::quantity::{CpuNanoseconds, CpuSecondsPerGigabyte, Quantity};
use crate::results::{Measurement, ResultFile};
use crate::stats::Summary;
use crate::target::Key;
use crate::units::show_number;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A thing that has a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
    /// Name and value with its unit.
    pub fn show(self, value: f64) -> [String; 2] {
        let [name, unit] = match self {
            Self::EcTransactions => ["handshakes, EC P-256", "per second and core"],
            Self::RsaTransactions => ["handshakes, RSA-2048", "per second and core"],
            Self::TlsBulk => ["throughput, TLS", "Gb/s per core"],
            Self::HttpBulk => ["throughput, plain HTTP", "Gb/s per core"],
            Self::TcpBulk => ["throughput, TCP", "Gb/s per core"],
            Self::ReencryptedBulk => ["throughput, re-encrypted", "Gb/s per core"],
            Self::TlsConnection => ["TLS connection", "kB"],
            Self::HttpConnection => ["HTTP connection", "kB"],
            Self::TcpConnection => ["TCP connection", "kB"],
            Self::EcSignatures => ["signatures, EC P-256", "per second and core"],
            Self::RsaSignatures => ["signatures, RSA-2048", "per second and core"],
        };
        let value = if unit == "kB" { value / 1e3 } else { value };
        [name.to_owned(), format!("{} {unit}", show_number(value))]
    }

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

#[derive(Clone, Debug, Serialize, Deserialize)]
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
    pub fn learn_from(&mut self, file: &ResultFile, traffic: Traffic, key: Key) -> Outcome<()> {
        let name = &file.name;
        let learned = match file.measurement()? {
            // A comparison may have errors elsewhere than in the cells that figures come from.
            Some(Measurement::Compare(verdict)) => self.learn_from_comparison(&verdict, name)?,
            Some(measurement) => {
                refuse_errors(measurement.errors(), name)?;
                self.learn_from_load(&file.command, &measurement, name, (traffic, key))
            }
            None => 0,
        };
        if learned == 0 {
            return Err(Failure::new(format!(
                "{name}: no figure to plan with; it takes results of compare (with propylon in it), or of handshakes, \
                 requests, throughput, connections and keyserver with --server-pid"
            )));
        }
        Ok(())
    }

    /// Figures of Propylon's cells; how many.
    pub fn learn_from_comparison(&mut self, verdict: &Verdict, name: &str) -> Outcome<usize> {
        let mut learned = 0;
        for row in &verdict.rows {
            let row_name = row.row.as_str();
            let Some(cell) = row.cells.iter().find(|cell| cell.program == "propylon") else { continue };
            refuse_errors((cell.errors, cell.first_error.as_deref()), &format!("{name}, row {row_name}"))?;
            let Some(median) = cell.median else { continue };
            let kernel = cell.kernel_kib.unwrap_or(0.0);
            let value = match row.unit {
                Unit::Microseconds => 1e6 / median,
                // Gigabits per second of one core.
                Unit::SecondsPerGigabyte => 8.0 / median,
                // RSS of the proxy, and kernel memory of both ends of each connection: on the safe side.
                Unit::Kibibytes => (median.max(0.0) + kernel.max(0.0)) * 1024.0,
            };
            let kind = match row_name {
                "ec13" => Kind::EcTransactions,
                "rsa13" => Kind::RsaTransactions,
                "bulk-tls" => Kind::TlsBulk,
                "bulk-plain" => Kind::HttpBulk,
                "bulk-tcp" => Kind::TcpBulk,
                "bulk-reencrypt" | "bulk-reencrypted" => Kind::ReencryptedBulk,
                "idle-tls" => Kind::TlsConnection,
                "idle-plain" => Kind::HttpConnection,
                "idle-tcp" => Kind::TcpConnection,
                _ => continue,
            };
            let mut source = format!("{name}, {row_name}: {} {}", show_number(median), row.unit.name());
            if kernel > 0.0 && row.unit == Unit::Kibibytes {
                source.push_str(&format!(" + {} KiB kernel, both ends", show_number(kernel)));
            }
            learned += self.learn(kind, value, source);
        }
        Ok(learned)
    }

    fn learn_from_load(
        &mut self,
        command: &str,
        measurement: &Measurement,
        name: &str,
        (traffic, key): (Traffic, Key),
    ) -> usize {
        match measurement {
            // Resumed handshakes cost less than what is required: full ones.
            Measurement::Load(report) if command == "handshakes" => match &report.server_cpu {
                Some(cpu) if report.summary.resumed == 0 => {
                    self.learn_each(Kind::transactions(key), cpu.nanoseconds_per_request, name)
                }
                _ => 0,
            },
            // Small answers cost by the request, not by the byte.
            Measurement::Load(report) => match &report.server_cpu {
                Some(cpu) if mean_body_bytes(&report.summary) >= BULK_BODY_BYTES_MIN => {
                    self.learn_bulk(traffic, cpu.seconds_per_gigabyte, name)
                }
                _ => 0,
            },
            Measurement::Throughput(report) => {
                let traffic = match (report.what.starts_with("tcp"), report.tls) {
                    (true, _) => Traffic::Tcp,
                    (false, true) => Traffic::Tls,
                    (false, false) => Traffic::Http,
                };
                report.server_cpu.as_ref().map_or(0, |cpu| self.learn_bulk(traffic, cpu.seconds_per_gigabyte, name))
            }
            Measurement::Keyserver(report) => report
                .server_cpu
                .as_ref()
                .map_or(0, |cpu| self.learn_each(Kind::signatures(key), cpu.nanoseconds_per_operation, name)),
            Measurement::Connections(report) => report.modes.iter().map(|mode| self.learn_from_mode(mode, name)).sum(),
            _ => 0,
        }
    }

    fn learn_each(&mut self, kind: Kind, each: CpuNanoseconds, name: &str) -> usize {
        let source = format!("{name}: {} CPU µs each, taken as the key asked for", show_number(each.drawn()));
        self.learn(kind, 1e9 / each.0, source)
    }

    fn learn_bulk(&mut self, traffic: Traffic, each: CpuSecondsPerGigabyte, name: &str) -> usize {
        let source = format!("{name}: {:.3} CPU s/GB, taken as {}", each.0, traffic.name());
        self.learn(Kind::bulk(traffic), 8.0 / each.0, source)
    }

    fn learn_from_mode(&mut self, mode: &ModeReport, name: &str) -> usize {
        let traffic = match mode.mode {
            Mode::Tls => Traffic::Tls,
            Mode::Http => Traffic::Http,
            // The others are HTTP connections too, that say nothing: no TCP relay.
            Mode::Tcp | Mode::TcpByte => return 0,
            // The rules, and the requirements, are of connections that carry one request at a time.
            Mode::H2 => return 0,
        };
        let rss = mode.server.map_or(0.0, |server| server.rss_kib.0);
        self.learn_connection(name, traffic, rss, mode.kernel.sockets.0 + mode.kernel.buffers.0)
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

/// Bodies from which on the cost per request is small beside the cost per byte.
const BULK_BODY_BYTES_MIN: f64 = 65536.0;

fn mean_body_bytes(summary: &Summary) -> f64 {
    summary.body_bytes as f64 / summary.done.max(1) as f64
}

fn refuse_errors((errors, first): (u64, Option<&str>), name: &str) -> Outcome<()> {
    if errors == 0 {
        return Ok(());
    }
    let first = first.unwrap_or("unknown");
    Err(Failure::new(format!(
        "{name}: {errors} errors (first: {first}); a plan from failed measurements means nothing"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{comparison, connections, load, throughput};
    use serde_json::{Value, json};

    fn learn(figures: &mut Figures, value: Value, key: Key) -> Outcome<()> {
        figures.learn_from(&ResultFile::new("r".into(), value).unwrap(), Traffic::Tls, key)
    }

    #[test]
    fn measured_figures_take_the_place_of_rules() {
        let mut figures = Figures::of_the_documents();
        let result = comparison(&[
            ("ec13", "CPU µs", "haproxy", 300.0, 0),
            ("ec13", "CPU µs", "propylon", 100.0, 0),
            ("bulk-tls", "CPU s/GB", "propylon", 0.5, 0),
            ("idle-tls", "KiB RSS", "propylon", 10.0, 0),
        ]);
        learn(&mut figures, result, Key::Ec).unwrap();
        assert_eq!(figures.of(Kind::EcTransactions).unwrap().value, 10_000.0);
        assert_eq!(figures.of(Kind::TlsBulk).unwrap().value, 16.0);
        assert_eq!(figures.of(Kind::TlsConnection).unwrap().value, 10_240.0);
        assert_eq!(figures.of(Kind::RsaTransactions).unwrap().source, DOCUMENTS);
    }

    #[test]
    fn load_results_are_read_by_what_they_say_of_themselves() {
        let mut figures = Figures::of_the_documents();
        let mut learns = |result: Value| learn(&mut figures, result, Key::Rsa).is_ok();
        assert!(learns(load("handshakes", json!({}), 1e6, 9.0)));
        assert!(!learns(load("handshakes", json!({"resumed": 9}), 1.0, 9.0)));
        assert!(learns(load("keyserver", json!({}), 2e5, 9.0)));
        assert!(learns(throughput(false, 0.4)));
        assert!(!learns(load("requests", json!({"body_bytes": 9}), 1.0, 9.0)));
        assert!(learns(connections(&[("tcp", 1.0, 0.0), ("http", 1.0, 4.0)])));
        let value = |kind| figures.of(kind).unwrap().value;
        assert_eq!((value(Kind::RsaTransactions), value(Kind::RsaSignatures)), (1000.0, 5000.0));
        assert_eq!((value(Kind::HttpBulk), value(Kind::HttpConnection)), (20.0, 5120.0));
        assert_eq!((value(Kind::TlsBulk), value(Kind::TcpConnection)), (1.0, 10e3));
    }

    #[test]
    fn failed_or_empty_results_are_refused() {
        let mut figures = Figures::of_the_documents();
        let mut refused = |result: Value| learn(&mut figures, result, Key::Ec).is_err();
        assert!(refused(comparison(&[("ec13", "CPU µs", "propylon", 1.0, 3)])));
        assert!(refused(load("handshakes", json!({"errors": {"tls": 2}}), 1.0, 9.0)));
        assert!(refused(load("handshakes", json!({"server_cpu": null}), 1.0, 9.0)) && refused(json!({})));
        assert_eq!(figures.of(Kind::EcTransactions).unwrap().value, 2000.0);
    }
}
