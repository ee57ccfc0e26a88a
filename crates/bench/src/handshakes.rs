//! `handshakes`: new connections, one request each, closed.

use crate::agents::{AgentsArguments, Distributed, FleetReport, Job};
use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::link::Request;
use crate::load::{Kind, Load, Measured, Plan, Until};
use crate::quantity::{Cores, CpuNanoseconds, CpuSecondsPerGigabyte};
use crate::report::{self, Table};
use crate::stats::Summary;
use crate::target::{Resumed, TargetArguments};
use crate::units::{parse_duration, parse_rate, show_nanoseconds, show_number};
use crate::{cpu, machine};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// New connections: connect, handshake, one request, read to the end, close
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    propylon-bench handshakes --target 127.0.0.1:8443 --tls 1.3 --key ec --group x25519 --duration 5 --server-pid 4711\n  \
    propylon-bench handshakes --target 127.0.0.1:8080 --plain --count 10000\n  \
    propylon-bench handshakes --target 10.0.0.5:8443 --agents 10.0.0.7:7001,10.0.0.8:7001 \
    --agents-identity coordinator.ec.pem --agents-ca ca.pem")]
pub struct Arguments {
    #[command(flatten)]
    pub target: TargetArguments,
    #[command(flatten)]
    pub run: RunArguments,
    /// Resume the TLS sessions of earlier connections; a full handshake then counts as an error
    ///
    /// "ticket" (the default) takes tickets, and with a TLS 1.2 server that gives none, session IDs. "session-id" asks
    /// for no ticket and so gets none; it needs --tls 1.2, since TLS 1.3 has no resumption by session ID (RFC 8446
    /// §4.1.2).
    #[arg(long, value_name = "HOW", num_args = 0..=1, default_missing_value = "ticket", conflicts_with = "plain")]
    pub resumed: Option<Resumed>,
    /// Connections in flight at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub connections_in_flight: usize,
}

/// How long, on which core, whose CPU: the same for all that put load on a server.
#[derive(clap::Args, Clone)]
pub struct RunArguments {
    /// Path to ask for
    #[arg(long, default_value = "/")]
    pub path: String,
    /// How long to measure: 3, 2.5s, 500ms, 2m
    #[arg(long, default_value = "3", value_parser = parse_duration, conflicts_with = "count")]
    pub duration: Duration,
    /// Measure so many requests instead
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Load that goes before and is not counted
    #[arg(long, default_value = "500ms", value_parser = parse_duration)]
    pub warmup: Duration,
    /// Longest wait for one request
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Requests that arrive per second whether or not earlier ones were answered (open loop)
    #[arg(long, value_name = "PER_SECOND", value_parser = parse_rate)]
    pub rate: Option<f64>,
    /// Process whose CPU time is to be measured, with its children; repeat for more
    #[arg(long = "server-pid", value_name = "PID")]
    pub server_pids: Vec<u32>,
    /// Core to keep the load on
    #[arg(long)]
    pub core: Option<usize>,
    /// Write the result as JSON ("-": to stdout)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    #[command(flatten)]
    pub agents: AgentsArguments,
}

/// The report of a load command.
#[derive(Serialize, Deserialize)]
pub struct Report {
    pub target: String,
    #[serde(flatten)]
    pub summary: Summary,
    /// Share of the load's core that the load used; near 1 the load is the limit, not the server.
    pub load_busy: f64,
    pub server_cpu: Option<ServerCpu>,
    /// With `--agents`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetReport>,
}

#[derive(Serialize, Deserialize)]
pub struct ServerCpu {
    pub nanoseconds_per_request: CpuNanoseconds,
    pub seconds_per_gigabyte: CpuSecondsPerGigabyte,
    pub cores: Cores,
    pub source: cpu::Source,
}

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let request = Request::new("GET", &arguments.run.path, &arguments.target.name, "Connection: close\r\n", 0);
    let plan = Plan {
        kind: Kind::NewConnections,
        connections: arguments.connections_in_flight,
        request,
        timeout: arguments.run.timeout,
        rate: arguments.run.rate,
    };
    measure("handshakes", &arguments.target, arguments.resumed, &arguments.run, plan)
}

/// Warm up, measure, report: by this process or by the agents. Errors in the measured part are a failure of the
/// command.
pub fn measure(
    command: &str,
    target: &TargetArguments,
    resumed: Option<Resumed>,
    run: &RunArguments,
    plan: Plan,
) -> Outcome<()> {
    let interrupt = Interrupt::install()?;
    if !run.agents.is_empty() {
        let job = Job::whole(command, target, &plan)?;
        let observed = measure_there(&Job { resume: resumed, ..job }, run, &interrupt)?;
        return report(command, &target.target, run, observed);
    }
    let target_made = target.resuming(resumed)?;
    if let Some(core) = run.core {
        machine::pin_to_core(core)?;
    }
    let mut load = Load::new(&target_made, plan, &interrupt)?;
    let observed = observe(command, run, &mut |until, label| load.run(until, label))?;
    drop(load);
    report(command, &target.target, run, observed)
}

/// Measures by agents.
fn measure_there(job: &Job, run: &RunArguments, interrupt: &Interrupt) -> Outcome<Observed> {
    if run.core.is_some() {
        return Err(Failure::new("--core belongs to the machine of the agent: give it to `propylon-bench agent`"));
    }
    let job = Job { warmup: run.warmup, until: run.until(), ..job.clone() };
    let Distributed { measured, usage, report } = run.agents.measure(&job, &run.server_pids, interrupt)?;
    Ok(Observed { usage: run.known(usage, &measured), measured, fleet: Some(report) })
}

/// The measurement, and what it cost the server if a process was named.
pub struct Observed {
    pub measured: Measured,
    pub usage: Option<cpu::Usage>,
    /// If agents did it.
    pub fleet: Option<FleetReport>,
}

/// A warm-up, then a run between two readings of the server's CPU time. `load` is any loop that can run for a while.
pub fn observe(
    command: &str,
    run: &RunArguments,
    load: &mut dyn FnMut(Until, &str) -> Outcome<Measured>,
) -> Outcome<Observed> {
    let warmup = load(Until::Elapsed(run.warmup), "warm-up")?;
    if warmup.stats.done == 0 && warmup.stats.errors_total() > 0 {
        report::progress(format_args!("warm-up: no request succeeded; {}", warmup.stats.first_error().unwrap_or("")));
    }
    let before = cpu::Reading::of(&run.server_pids)?;
    let measured = load(run.until(), command)?;
    let usage = cpu::Reading::of(&run.server_pids)?.since(&before);
    Ok(Observed { usage: run.known(usage, &measured), measured, fleet: None })
}

impl RunArguments {
    pub fn until(&self) -> Until {
        self.count.map_or(Until::Elapsed(self.duration), Until::Finished)
    }

    /// For load that agents do not put on a server.
    pub fn without_agents(&self, what: &str) -> Outcome<()> {
        if self.agents.is_empty() {
            return Ok(());
        }
        Err(Failure::new(format!("agents do not measure {what}: leave out --agents")))
    }

    /// Without a process there is nothing to report, without an answer nothing to divide by.
    fn known(&self, usage: cpu::Usage, measured: &Measured) -> Option<cpu::Usage> {
        (!self.server_pids.is_empty() && measured.stats.done > 0).then_some(usage)
    }
}

/// A table, the JSON, the verdict.
pub fn report(command: &str, asked: &str, run: &RunArguments, observed: Observed) -> Outcome<()> {
    let fleet = observed.fleet;
    let report = Report { fleet, ..Report::new(asked, &observed.measured, observed.usage) };
    report.print();
    report::save_result(run.json.as_deref(), command, &report)?;
    report.verdict()
}

impl Report {
    fn new(target: &str, measured: &Measured, usage: Option<cpu::Usage>) -> Self {
        let summary = measured.stats.summary();
        let server_cpu = usage.map(|usage| ServerCpu {
            nanoseconds_per_request: CpuNanoseconds(usage.cpu.as_nanos() as f64 / summary.done.max(1) as f64),
            seconds_per_gigabyte: CpuSecondsPerGigabyte(
                usage.cpu.as_secs_f64() / (summary.body_bytes.max(1) as f64 / 1e9),
            ),
            cores: Cores(usage.cpu.as_secs_f64() / summary.elapsed_seconds.max(1e-9)),
            source: usage.source,
        });
        Self { target: target.to_owned(), summary, load_busy: measured.load_busy, server_cpu, fleet: None }
    }

    fn print(&self) {
        let summary = &self.summary;
        let megabytes = summary.body_bytes as f64 / 1e6 / summary.elapsed_seconds.max(1e-9);
        let mut table = Table::of_facts();
        table.row(["target", &self.target]);
        table.row(["done", &format!("{} in {:.2} s", summary.done, summary.elapsed_seconds)]);
        table.row([
            "per second",
            &format!("{} ({} MB/s of bodies)", show_number(summary.per_second.0), show_number(megabytes)),
        ]);
        table.row([
            "connections",
            &format!("{} made, {} requests on resumed sessions", summary.connections, summary.resumed),
        ]);
        summary.add_handshakes(&mut table);
        if summary.retried > 0 {
            table.row(["retried", &format!("{} requests that a server's GOAWAY had left out", summary.retried)]);
        }
        summary.add_outcome(&mut table);
        let whose = if self.fleet.is_some() { "of the busiest agent's core" } else { "of its core" };
        table.row(["load", &format!("{:.0} % {whose}{}", self.load_busy * 100.0, saturation(self.load_busy))]);
        if let Some(cpu) = &self.server_cpu {
            let bulk = format!(", {} CPU s/GB", show_number(cpu.seconds_per_gigabyte.0));
            let each = show_nanoseconds(cpu.nanoseconds_per_request.0);
            let bulk = if summary.body_bytes >= 100_000_000 { bulk } else { String::new() };
            table.row([
                "server CPU",
                &format!("{each} per request{bulk}; {:.2} cores ({})", cpu.cores.0, cpu.source.show()),
            ]);
        }
        table.print();
        if let Some(fleet) = &self.fleet {
            fleet.print();
        }
    }

    fn verdict(&self) -> Outcome<()> {
        let losses = self.fleet.as_ref().map(FleetReport::losses).unwrap_or_default();
        match verdict(&self.summary) {
            outcome if losses.is_empty() => outcome,
            Ok(()) => Err(Failure::new(losses.join("; "))),
            Err(failure) => Err(Failure::new(format!("{}; {failure}", losses.join("; ")))),
        }
    }
}

/// Errors are a failure, and so is silence.
pub fn verdict(summary: &Summary) -> Outcome<()> {
    let errors = summary.errors_total();
    if errors > 0 {
        return Err(Failure::new(format!("{errors} of {} requests failed", errors + summary.done)));
    }
    if summary.done == 0 {
        return Err(Failure::new("no request was answered"));
    }
    Ok(())
}

/// Above this share of its core the load is the limit.
pub const LOAD_SATURATED: f64 = 0.95;

pub fn saturation(busy: f64) -> &'static str {
    if busy > LOAD_SATURATED { ": saturated, the server could do more" } else { "" }
}
