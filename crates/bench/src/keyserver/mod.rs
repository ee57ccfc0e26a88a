//! `keyserver`: operations on private keys that are kept by a key server, each answer verified.
//!
//! `wire` is the protocol, `key` and `operation` what is asked and what is a right answer, `channel` one connection,
//! `pipeline` the loop over all of them, `judge` where answers are counted and verified, `beside` two loads at once.

mod beside;
mod channel;
#[cfg(test)]
mod double;
mod judge;
mod key;
mod operation;
mod pipeline;
#[cfg(test)]
mod tests;
mod wire;

use crate::failure::{Failure, Outcome, While};
use crate::handshakes::saturation;
use crate::interrupt::Interrupt;
use crate::load::Until;
use crate::report::{self, Table};
use crate::tally::Summary;
use crate::target::{Target, Version, resolve};
use crate::units::{parse_duration, parse_rate, show_nanoseconds, show_number};
use crate::{cpu, machine};
use key::{PublicKey, Ski};
use operation::{Examiner, Operation};
use pipeline::{Pipeline, Plan};
use rustls::{ClientConfig, RootCertStore, client::Resumption, crypto::aws_lc_rs::default_provider};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Outstanding operations per connection with --bandwidth: as many as the stock server has in work at once.
const BANDWIDTH_OUTSTANDING: usize = 1024;

/// Operations on a key server (Keyless protocol): many outstanding per connection, every signature verified
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    propylon-bench keyserver --target 127.0.0.1:2407 --identity engine.pem --ca keyserver-ca.pem \\\n      \
    --certificate shop.ec.pem --op ecdsa-sha256 --duration 10 --server-pid 4711\n  \
    propylon-bench keyserver --target 127.0.0.1:2407 --identity engine.pem --ca keyserver-ca.pem \\\n      \
    --certificate shop.rsa.pem --op rsa-pss-sha256 --rate 500 --connections 4\n  \
    propylon-bench keyserver --target 127.0.0.1:2407 --identity engine.pem --ca keyserver-ca.pem \\\n      \
    --certificate shop.ec.pem --outstanding 1 --duration 1 --beside rsa-pss-sha256 --beside-certificate shop.rsa.pem")]
pub struct Arguments {
    /// Key server to ask
    #[arg(long, value_name = "HOST:PORT")]
    pub target: String,
    /// Name that the key server's certificate must have
    #[arg(long, default_value = "localhost")]
    pub name: String,
    /// Our certificate chain and its private key, in one file
    #[arg(long, value_name = "PEM")]
    pub identity: PathBuf,
    /// CA to verify the key server with
    #[arg(long, value_name = "PEM")]
    pub ca: PathBuf,
    /// TLS version to offer
    #[arg(long, value_name = "VERSION", default_value = "any")]
    pub tls: Version,
    /// What to ask for
    #[arg(long, value_name = "OPERATION", default_value = "ecdsa-sha256")]
    pub op: Operation,
    /// Certificate (or public key) of the key asked for: gives the SKI, and verifies the answers
    #[arg(long, value_name = "PEM")]
    pub certificate: Option<PathBuf>,
    /// SKI of the key asked for, instead of the certificate's
    #[arg(long, value_name = "HEX")]
    pub ski: Option<Ski>,
    /// Share of the signatures to verify, 0 to 1; they are verified after the measurement
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = parse_share)]
    pub verify_share: f64,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=4096))]
    pub connections: usize,
    /// Operations in progress on each connection; 1 is one at a time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=65536))]
    pub outstanding: usize,
    /// As much as the key server takes: 1024 operations in progress on each connection
    #[arg(long, conflicts_with_all = ["outstanding", "rate"])]
    pub bandwidth: bool,
    /// Operations that arrive per second whether or not earlier ones were answered (open loop)
    #[arg(long, value_name = "PER_SECOND", value_parser = parse_rate)]
    pub rate: Option<f64>,
    /// How long to measure: 3, 2.5s, 500ms, 2m
    #[arg(long, default_value = "3", value_parser = parse_duration, conflicts_with = "count")]
    pub duration: Duration,
    /// Measure so many operations instead
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Load that goes before and is not counted
    #[arg(long, default_value = "500ms", value_parser = parse_duration)]
    pub warmup: Duration,
    /// MinRateTimeout with one operation
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Measure alone and beside this operation, in turn: rounds of --duration each
    #[arg(long, value_name = "OPERATION", conflicts_with_all = ["count", "server_pids"])]
    pub beside: Option<Operation>,
    /// Certificate (or public key) of the key that the operation beside asks for
    #[arg(long, value_name = "PEM", requires = "beside")]
    pub beside_certificate: Option<PathBuf>,
    /// How many of those are in progress
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=65536))]
    pub beside_outstanding: usize,
    /// Rounds with --beside
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1000))]
    pub rounds: usize,
    /// Process whose CPU time is to be measured, with its children; repeat for more
    #[arg(long = "server-pid", value_name = "PID")]
    pub server_pids: Vec<u32>,
    /// Core to keep the load on
    #[arg(long)]
    pub core: Option<usize>,
    /// Write the result as JSON ("-": to stdout)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    command: &'static str,
    target: String,
    operation: String,
    ski: Option<String>,
    /// TLS version and cipher suite of the link.
    link: Option<String>,
    #[serde(rename = "connections_held")]
    connections: usize,
    outstanding: usize,
    rate: Option<f64>,
    /// Summary; the `connections` in it are those opened while the clock ran.
    #[serde(flatten)]
    summary: Summary,
    /// Signatures verified, those of the warm-up included.
    verified: u64,
    verify_share: f64,
    /// Share of the load's core that the load used; near 1 the load is the limit, not the key server.
    load_busy: f64,
    server_cpu: Option<ServerCpu>,
}

#[derive(Serialize)]
struct ServerCpu {
    nanoseconds_per_operation: f64,
    /// Cores kept busy.
    cores: f64,
    source: cpu::Source,
}

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let interrupt = Interrupt::install()?;
    if let Some(core) = arguments.core {
        machine::pin_to_core(core)?;
    }
    if arguments.beside.is_some() {
        return beside::run(arguments, &interrupt);
    }
    let report = measure(arguments, &interrupt)?;
    report.print();
    report::save_json(arguments.json.as_deref(), &report)?;
    report.verdict()
}

/// Warm up, measure, verify.
fn measure(arguments: &Arguments, interrupt: &Interrupt) -> Outcome<Report> {
    let address = resolve(&arguments.target)?;
    let target = Target::with_config(address, &arguments.name, link_config(arguments)?)?;
    let key = arguments.certificate.as_deref().map(PublicKey::read).transpose()?;
    let ski = chosen_ski(arguments, key.as_ref())?;
    let examiner = Examiner::new(arguments.op, key.as_ref(), fastrand::u64(..))?;
    let mut pipeline = Pipeline::new(&target, arguments.plan(ski), examiner, interrupt)?;
    warm_up(&mut pipeline, arguments.warmup)?;

    let until = arguments.count.map_or(Until::Elapsed(arguments.duration), Until::Finished);
    let before = cpu::Reading::of(&arguments.server_pids)?;
    let load_busy = pipeline.run(until, "keyserver")?;
    let usage = cpu::Reading::of(&arguments.server_pids)?.since(&before);
    let summary = pipeline.settle()?.summary();

    Ok(Report {
        command: "keyserver",
        target: arguments.target.clone(),
        operation: arguments.op.name(),
        ski: ski.map(|ski| ski.to_string()),
        link: pipeline.agreed.clone(),
        connections: arguments.connections,
        outstanding: arguments.outstanding(),
        rate: arguments.rate,
        server_cpu: server_cpu(arguments, &summary, usage),
        summary,
        verified: pipeline.verified(),
        verify_share: arguments.verify_share,
        load_busy,
    })
}

/// A wrong signature is one too many, whenever it comes.
fn warm_up(pipeline: &mut Pipeline<'_>, duration: Duration) -> Outcome<()> {
    pipeline.run(Until::Elapsed(duration), "warm-up")?;
    let summary = pipeline.settle()?.summary();
    if summary.errors.contains_key("wrong-signature") || summary.errors.contains_key("wrong-answer") {
        return Err(Failure::new(format!("warm-up: errors: {}", summary.show_errors())));
    }
    if summary.errors_total() > 0 {
        report::progress(format_args!("warm-up: {} done, errors: {}", summary.done, summary.show_errors()));
    }
    Ok(())
}

/// Both ends prove who they are, and the key server must have the name that was asked for.
fn link_config(arguments: &Arguments) -> Outcome<ClientConfig> {
    let versions: &[&rustls::SupportedProtocolVersion] = match arguments.tls {
        Version::Any => &[&rustls::version::TLS13, &rustls::version::TLS12],
        Version::V13 => &[&rustls::version::TLS13],
        Version::V12 => &[&rustls::version::TLS12],
    };
    let mut roots = RootCertStore::empty();
    for certificate in read_chain("--ca", &arguments.ca)? {
        roots.add(certificate).when(format_args!("--ca {}", arguments.ca.display()))?;
    }
    let chain = read_chain("--identity", &arguments.identity)?;
    let doing = format!("--identity {}", arguments.identity.display());
    let key = PrivateKeyDer::from_pem_file(&arguments.identity).when(&doing)?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(versions)
        .when("the TLS offer")?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .when(&doing)?;
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn read_chain(flag: &str, path: &Path) -> Outcome<Vec<CertificateDer<'static>>> {
    let doing = format!("{flag} {}", path.display());
    let certificates = CertificateDer::pem_file_iter(path).when(&doing)?;
    let chain = certificates.collect::<Result<Vec<_>, _>>().when(&doing)?;
    if chain.is_empty() { Err(Failure::new(format!("{doing}: no certificate is in it"))) } else { Ok(chain) }
}

fn chosen_ski(arguments: &Arguments, key: Option<&PublicKey>) -> Outcome<Option<Ski>> {
    if arguments.op == Operation::Ping {
        return Ok(arguments.ski);
    }
    if key.is_none() && arguments.verify_share > 0.0 {
        return Err(Failure::new("answers are verified with --certificate PEM; without it, say --verify-share 0"));
    }
    let ski = arguments.ski.or_else(|| key.map(PublicKey::ski));
    ski.map(Some).ok_or_else(|| Failure::new("which key? --certificate PEM or --ski HEX"))
}

fn server_cpu(arguments: &Arguments, summary: &Summary, usage: cpu::Usage) -> Option<ServerCpu> {
    // Without an answer there is nothing to divide by.
    if arguments.server_pids.is_empty() || summary.done == 0 {
        return None;
    }
    Some(ServerCpu {
        nanoseconds_per_operation: usage.cpu.as_nanos() as f64 / summary.done as f64,
        cores: usage.cpu.as_secs_f64() / summary.elapsed_seconds.max(1e-9),
        source: usage.source,
    })
}

impl Arguments {
    fn outstanding(&self) -> usize {
        if self.bandwidth { BANDWIDTH_OUTSTANDING } else { self.outstanding }
    }

    fn plan(&self, ski: Option<Ski>) -> Plan {
        Plan {
            connections: self.connections,
            outstanding: self.outstanding(),
            timeout: self.timeout,
            rate: self.rate,
            opcode: self.op.opcode(),
            ski,
            verify_share: self.verify_share,
        }
    }
}

impl Report {
    fn print(&self) {
        let summary = &self.summary;
        let mut table = Table::of_facts();
        let link = self.link.as_deref().unwrap_or("no TLS agreed on");
        table.row(["target", &format!("{} ({link})", self.target)]);
        let key = self.ski.as_ref().map_or(String::new(), |ski| format!(", key {ski}"));
        table.row(["operation", &format!("{}{key}", self.operation)]);
        let load = format!("{} outstanding on each of {} connections", self.outstanding, self.connections);
        table.row(["load", &format!("{load}; {} opened while measured", summary.connections)]);
        table.row(["done", &format!("{} in {:.2} s", summary.done, summary.elapsed_seconds)]);
        table.row(["per second", &show_number(summary.per_second)]);
        table.row(["verified", &format!("{} signatures, warm-up included", self.verified)]);
        table.row(["errors", &summary.show_errors()]);
        if summary.unanswered > 0 {
            table.row(["unanswered", &format!("{} at the end; their age is in the latency", summary.unanswered)]);
        }
        table.row(["latency", &summary.latency.show()]);
        table.row(["load's core", &format!("{:.0} % used{}", self.load_busy * 100.0, saturation(self.load_busy))]);
        if let Some(cpu) = &self.server_cpu {
            let each = show_nanoseconds(cpu.nanoseconds_per_operation);
            let source = if cpu.source == cpu::Source::Schedstat { "schedstat" } else { "stat, 10 ms ticks" };
            table.row(["server CPU", &format!("{each} per operation; {:.2} cores ({source})", cpu.cores)]);
        }
        table.print();
    }

    fn verdict(&self) -> Outcome<()> {
        let errors = self.summary.errors_total();
        if errors > 0 {
            return Err(Failure::new(format!("{errors} of {} operations failed", errors + self.summary.done)));
        }
        if self.summary.done == 0 {
            return Err(Failure::new("no operation was answered"));
        }
        Ok(())
    }
}

fn parse_share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("a share lies between 0 and 1".to_owned()),
    }
}
