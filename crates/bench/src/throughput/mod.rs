//! `throughput`: large bodies down and up, or plain bytes through a TCP relay, and what a gigabyte costs the server.

mod direction;
mod relay;

use crate::failure::{Failure, Outcome};
use crate::handshakes::{Observed, RunArguments, observe, saturation, verdict};
use crate::interrupt::Interrupt;
use crate::link::Request;
use crate::load::{Kind, Load, Plan};
use crate::quantity::{Cores, CpuNanoseconds, CpuSecondsPerGigabyte, GigabytesPerSecond, Label};
use crate::report::{self, Table};
use crate::requests::Protocol;
use crate::stats::Summary;
use crate::target::{Target, TargetArguments};
use crate::units::{parse_size, show_number};
use crate::{cpu, http2, machine};
use clap::ValueEnum;
pub use direction::Direction;
use relay::{Relay, Work};
use serde::{Deserialize, Serialize};

/// Largest body that goes up; it is kept in memory once.
const UPLOAD_BYTES_MAX: u64 = 1 << 30;
const BODY_BYTES_DEFAULT: u64 = 1 << 20;
/// Default size of the body on a connection that is made for its own sake, in bytes.
const NEW_CONNECTION_BYTES_DEFAULT: u64 = 64;

/// Large bodies down, up or both ways, or bytes through a TCP relay: CPU seconds per gigabyte
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  propylon-bench throughput --target 127.0.0.1:8443 --direction down --body 1MiB --duration 5 --server-pid 4711
  propylon-bench throughput --target 127.0.0.1:8080 --plain --direction up --connections 16 --server-pid 4711
  propylon-bench throughput --target 127.0.0.1:8443 --http 2 --streams 4 --server-pid 4711
  propylon-bench origin --bind 127.0.0.1:9000 --raw source   (behind the relay: source, sink or echo)
  propylon-bench throughput --target 127.0.0.1:7000 --tcp --direction down --server-pid 4711
  propylon-bench throughput --target 127.0.0.1:7000 --tcp --new-connections --server-pid 4711   (before --raw echo)

A gigabyte is 10^9 bytes of bodies, up and down added; heads, records and frames cost CPU and count no bytes. The server's
share of encrypting again is measured by pointing this at a proxy whose origin is `propylon-bench origin --tls CERT.pem`.
With --path / (the default) the paths are those of `propylon-bench origin`: /bytes/N down, / up, and /echo both ways,
where N is --body and /echo takes 16 MiB at most.")]
pub struct Arguments {
    #[command(flatten)]
    pub target: TargetArguments,
    #[command(flatten)]
    pub run: RunArguments,
    #[command(flatten)]
    pub protocol: Protocol,
    /// Where the bodies go
    #[arg(long, default_value = "down")]
    pub direction: Direction,
    /// Size of a body: 1048576, 1MiB, 64KiB, 10MB (default: 1MiB; with --new-connections 64 bytes)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub body: Option<u64>,
    /// Connections: enough to keep the server busy, few enough to keep their data in its caches
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub connections: usize,
    /// No HTTP: bytes through a TCP relay, before `origin --raw`. "tls" speaks TLS to the relay
    #[arg(long, value_name = "OVER", num_args = 0..=1, default_missing_value = "plain")]
    pub tcp: Option<Over>,
    /// With --tcp: connect, send the body, get it back (from --raw echo), close; and again
    #[arg(long, requires = "tcp", conflicts_with = "direction")]
    pub new_connections: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Over {
    Plain,
    Tls,
}

#[derive(Serialize, Deserialize)]
pub struct Report {
    pub target: String,
    /// `http/1.1`, `http/2`, `tcp`, or `tcp new connections`.
    pub what: Label,
    pub tls: bool,
    direction: Direction,
    /// Size of one body; the `body_bytes` of the summary are those of all.
    body_size_bytes: u64,
    /// Connections at once; the `connections` of the summary are those made while the clock ran.
    connections_held: usize,
    #[serde(flatten)]
    pub summary: Summary,
    /// 10^9 bytes of bodies, both directions added.
    gigabytes: f64,
    pub gigabytes_per_second: GigabytesPerSecond,
    pub load_busy: f64,
    pub server_cpu: Option<ServerCpu>,
}

#[derive(Serialize, Deserialize)]
pub struct ServerCpu {
    seconds: f64,
    pub seconds_per_gigabyte: CpuSecondsPerGigabyte,
    gigabytes_per_second: f64,
    /// Per body, or per new connection.
    pub nanoseconds_each: CpuNanoseconds,
    /// Cores kept busy.
    pub cores: Cores,
    source: cpu::Source,
}

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let streams = arguments.protocol.streams()?;
    arguments.run.without_agents("throughput")?;
    let interrupt = Interrupt::install()?;
    if let Some(core) = arguments.run.core {
        machine::pin_to_core(core)?;
    }
    let (what, observed) = match (arguments.tcp, streams) {
        (Some(over), None) if arguments.new_connections => {
            ("tcp new connections", arguments.relay(over, Work::NewConnections, &interrupt)?)
        }
        (Some(over), None) => ("tcp", arguments.relay(over, Work::Bulk(arguments.direction), &interrupt)?),
        (Some(_), Some(_)) => return Err(Failure::new("--tcp speaks no HTTP; leave out --http")),
        (None, None) => ("http/1.1", arguments.http1(&interrupt)?),
        (None, Some(streams)) => ("http/2", arguments.http2(streams, &interrupt)?),
    };
    let report = arguments.report(what, &observed);
    report.print();
    report::save_result(arguments.run.json.as_deref(), "throughput", &report)?;
    verdict(&report.summary)
}

impl Arguments {
    fn body(&self) -> u64 {
        let default = if self.new_connections { NEW_CONNECTION_BYTES_DEFAULT } else { BODY_BYTES_DEFAULT };
        self.body.unwrap_or(default)
    }

    /// Method, path and the bytes that go up.
    fn request(&self) -> Outcome<(&'static str, String, usize)> {
        let body = self.body();
        let uploads = self.direction != Direction::Down;
        if body == 0 || (uploads && body > UPLOAD_BYTES_MAX) {
            return Err(Failure::new("--body lies between 1 byte and, where it goes up, 1GiB"));
        }
        let path = match self.direction {
            _ if self.run.path != "/" => self.run.path.clone(),
            Direction::Down => format!("/bytes/{body}"),
            Direction::Up => "/".to_owned(),
            Direction::Both => "/echo".to_owned(),
        };
        Ok(if uploads { ("POST", path, body as usize) } else { ("GET", path, 0) })
    }

    fn http1(&self, interrupt: &Interrupt) -> Outcome<Observed> {
        let (method, path, body_bytes) = self.request()?;
        let target = self.target.target(false)?;
        let plan = Plan {
            kind: Kind::KeepAlive,
            connections: self.connections,
            request: Request::new(method, &path, &target.name, "", body_bytes),
            timeout: self.run.timeout,
            rate: self.run.rate,
        };
        let mut load = Load::new(&target, plan, interrupt)?;
        observe("throughput", &self.run, &mut |until, label| load.run(until, label))
    }

    fn http2(&self, streams: usize, interrupt: &Interrupt) -> Outcome<Observed> {
        let (method, path, body_bytes) = self.request()?;
        let mut target = self.target.target(false)?;
        target.offer_http2();
        let request = http2::Request::new(method, &path, &target, &[], body_bytes)?;
        let (connections, timeout, rate) = (self.connections, self.run.timeout, self.run.rate);
        let mut load = http2::Load::new(target, http2::Plan { connections, streams, request, timeout, rate })?;
        observe("throughput", &self.run, &mut |until, label| load.run(until, label, interrupt))
    }

    fn relay(&self, over: Over, work: Work, interrupt: &Interrupt) -> Outcome<Observed> {
        if self.run.rate.is_some() {
            return Err(Failure::new("--rate needs requests; --tcp has none"));
        }
        if self.body() == 0 {
            return Err(Failure::new("--body is at least 1 byte"));
        }
        let target: Target = match over {
            Over::Plain => TargetArguments { plain: true, ..self.target.clone() }.target(false)?,
            Over::Tls => self.target.target(false)?,
        };
        let (connections, body, timeout) = (self.connections, self.body(), self.run.timeout);
        let mut relay = Relay::new(&target, relay::Plan { work, connections, body, timeout }, interrupt)?;
        observe("throughput", &self.run, &mut |until, label| relay.run(until, label))
    }

    fn report(&self, what: &'static str, observed: &Observed) -> Report {
        let summary = observed.measured.stats.summary();
        let seconds = summary.elapsed_seconds.max(1e-9);
        let gigabytes = (summary.moved.down + summary.moved.up) as f64 / 1e9;
        let server_cpu = observed.usage.filter(|_| gigabytes > 0.0).map(|usage| {
            let cpu = usage.cpu.as_secs_f64();
            ServerCpu {
                seconds: cpu,
                seconds_per_gigabyte: CpuSecondsPerGigabyte(cpu / gigabytes),
                gigabytes_per_second: gigabytes / cpu.max(1e-9),
                nanoseconds_each: CpuNanoseconds(cpu * 1e9 / summary.done.max(1) as f64),
                cores: Cores(cpu / seconds),
                source: usage.source,
            }
        });
        Report {
            target: self.target.target.clone(),
            what: what.into(),
            tls: self.tcp.map_or(!self.target.plain, |over| over == Over::Tls),
            direction: if self.new_connections { Direction::Both } else { self.direction },
            body_size_bytes: self.body(),
            connections_held: self.connections,
            gigabytes,
            gigabytes_per_second: GigabytesPerSecond(gigabytes / seconds),
            load_busy: observed.measured.load_busy,
            server_cpu,
            summary,
        }
    }
}

impl Report {
    fn print(&self) {
        let summary = &self.summary;
        let mut table = Table::of_facts();
        let tls = if self.tls { "TLS" } else { "plain" };
        let direction = format!("{:?}", self.direction).to_lowercase();
        table.row(["target", &format!("{}: {} over {tls}, {direction}", self.target, self.what)]);
        table.row([
            "done",
            &format!("{} of {} bytes in {:.2} s", summary.done, self.body_size_bytes, summary.elapsed_seconds),
        ]);
        let each = if self.is_new_connections() { "connections" } else { "bodies" };
        table.row(["per second", &format!("{} {each}", show_number(summary.per_second.0))]);
        let (down, up) = (summary.moved.down as f64 / 1e9, summary.moved.up as f64 / 1e9);
        let per_second = show_number(self.gigabytes_per_second.0);
        table.row(["moved", &format!("{} GB down, {} GB up; {per_second} GB/s", show_number(down), show_number(up))]);
        table.row(["connections", &format!("{} made while measured", summary.connections)]);
        summary.add_handshakes(&mut table);
        table.row(["errors", &summary.show_errors()]);
        if summary.latency.max > 0 {
            table.row(["latency", &summary.latency.show()]);
        }
        table.row(["load", &format!("{:.0} % of its core{}", self.load_busy * 100.0, saturation(self.load_busy))]);
        if let Some(cpu) = &self.server_cpu {
            table.row(["server CPU", &self.show_cpu(cpu)]);
        }
        table.print();
    }

    fn is_new_connections(&self) -> bool {
        self.what == "tcp new connections"
    }

    fn show_cpu(&self, cpu: &ServerCpu) -> String {
        let source = cpu.source.show();
        if self.is_new_connections() {
            let each = crate::units::show_nanoseconds(cpu.nanoseconds_each.0);
            return format!("{each} per connection; {:.2} cores ({source})", cpu.cores.0);
        }
        format!(
            "{} CPU s/GB, {} GB per CPU second; {:.2} cores ({source})",
            show_number(cpu.seconds_per_gigabyte.0),
            show_number(cpu.gigabytes_per_second),
            cpu.cores.0
        )
    }
}
