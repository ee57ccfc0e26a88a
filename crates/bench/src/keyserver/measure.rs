//! One measurement of a key server, and its report.

use super::arguments::Arguments;
use super::key::{PublicKey, Ski};
use super::operation::{Examiner, Operation};
use super::pipeline::Pipeline;
use crate::cpu;
use crate::failure::{Failure, Outcome, While};
use crate::handshakes::saturation;
use crate::interrupt::Interrupt;
use crate::load::Until;
use crate::pem::{read_identity, read_roots};
use crate::quantity::{Cores, CpuNanoseconds};
use crate::report::{self, Table};
use crate::stats::Summary;
use crate::target::{Target, Version, resolve};
use crate::units::{show_nanoseconds, show_number};
use rustls::{ClientConfig, client::Resumption, crypto::aws_lc_rs::default_provider};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

#[derive(Serialize, Deserialize)]
pub struct Report {
    target: String,
    operation: String,
    ski: Option<String>,
    /// TLS version and cipher suite of the link.
    pub link: Option<String>,
    #[serde(rename = "connections_held")]
    connections: usize,
    outstanding: usize,
    rate: Option<f64>,
    /// Summary; the `connections` in it are those opened while the clock ran.
    #[serde(flatten)]
    pub summary: Summary,
    /// Signatures verified, those of the warm-up included.
    pub verified: u64,
    verify_share: f64,
    /// Share of the load's core that the load used; near 1 the load is the limit, not the key server.
    pub load_busy: f64,
    pub server_cpu: Option<ServerCpu>,
}

#[derive(Serialize, Deserialize)]
pub struct ServerCpu {
    pub nanoseconds_per_operation: CpuNanoseconds,
    pub cores: Cores,
    source: cpu::Source,
}

/// Warm up, measure, verify.
pub fn measure(arguments: &Arguments, interrupt: &Interrupt) -> Outcome<Report> {
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
    let summary = pipeline.finish()?.summary();

    Ok(Report {
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
    let summary = pipeline.finish()?.summary();
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
    let roots = read_roots("--ca", &arguments.ca)?;
    let (chain, key) = read_identity("--identity", &arguments.identity)?;
    let doing = format!("--identity {}", arguments.identity.display());
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(versions)
        .when("the TLS offer")?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .when(&doing)?;
    config.resumption = Resumption::disabled();
    Ok(config)
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
        nanoseconds_per_operation: CpuNanoseconds(usage.cpu.as_nanos() as f64 / summary.done as f64),
        cores: Cores(usage.cpu.as_secs_f64() / summary.elapsed_seconds.max(1e-9)),
        source: usage.source,
    })
}

impl Report {
    pub fn print(&self) {
        let summary = &self.summary;
        let mut table = Table::of_facts();
        let link = self.link.as_deref().unwrap_or("no TLS agreed on");
        table.row(["target", &format!("{} ({link})", self.target)]);
        let key = self.ski.as_ref().map_or(String::new(), |ski| format!(", key {ski}"));
        table.row(["operation", &format!("{}{key}", self.operation)]);
        let load = format!("{} outstanding on each of {} connections", self.outstanding, self.connections);
        table.row(["load", &format!("{load}; {} opened while measured", summary.connections)]);
        table.row(["done", &format!("{} in {:.2} s", summary.done, summary.elapsed_seconds)]);
        table.row(["per second", &show_number(summary.per_second.0)]);
        table.row(["verified", &format!("{} signatures, warm-up included", self.verified)]);
        summary.add_outcome(&mut table);
        table.row(["load's core", &format!("{:.0} % used{}", self.load_busy * 100.0, saturation(self.load_busy))]);
        if let Some(cpu) = &self.server_cpu {
            let each = show_nanoseconds(cpu.nanoseconds_per_operation.0);
            table.row([
                "server CPU",
                &format!("{each} per operation; {:.2} cores ({})", cpu.cores.0, cpu.source.show()),
            ]);
        }
        table.print();
    }

    pub fn verdict(&self) -> Outcome<()> {
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
