//! `requests`: keep-alive connections, each with one request at a time, or over HTTP/2 with many.

use crate::failure::{Failure, Outcome};
use crate::handshakes::{RunArguments, measure, observe, report};
use crate::interrupt::Interrupt;
use crate::link::Request;
use crate::load::{Kind, Plan};
use crate::{http2, machine, target};
use clap::ValueEnum;

/// Largest request body; it is kept in memory once.
const BODY_BYTES_MAX: u64 = 1 << 30;

/// Requests on keep-alive connections: one at a time on each, or several streams with --http 2
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    propylon-bench requests --target 127.0.0.1:8443 --connections 64 --duration 10 --server-pid 4711\n  \
    propylon-bench requests --target 127.0.0.1:8080 --plain --connections 64 --rate 5000 --duration 10\n  \
    propylon-bench requests --target 127.0.0.1:8443 --http 2 --connections 4 --streams 16 --duration 10\n  \
    propylon-bench requests --target 10.0.0.5:8443 --rate 30000 --agents 10.0.0.7:7001,10.0.0.8:7001 \
    --agents-identity coordinator.ec.pem --agents-ca ca.pem\n\n\
    Over HTTP/2, TLS offers h2 by ALPN, and plain connections begin with it (prior knowledge). A request that a server's \
    GOAWAY left out is repeated on a new connection; its latency goes on counting, and the report counts it as retried.")]
pub struct Arguments {
    #[command(flatten)]
    pub target: target::TargetArguments,
    #[command(flatten)]
    pub run: RunArguments,
    #[command(flatten)]
    pub protocol: Protocol,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub connections: usize,
    /// Request method
    #[arg(long, default_value = "GET")]
    pub method: String,
    /// Bytes in each request's body
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=BODY_BYTES_MAX))]
    pub body_bytes: u64,
    /// Header line to add, "Name: value"; repeat for more
    #[arg(long = "header", value_name = "LINE")]
    pub headers: Vec<String>,
}

/// Which HTTP.
#[derive(clap::Args, Clone)]
pub struct Protocol {
    /// HTTP version
    #[arg(long, value_name = "VERSION", default_value = "1.1")]
    pub http: Http,
    /// HTTP/2: requests in progress at once on each connection
    #[arg(long, value_name = "M", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub streams: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Http {
    #[value(name = "1.1")]
    V11,
    #[value(name = "2")]
    V2,
}

impl Protocol {
    /// Streams per connection over HTTP/2; none over HTTP/1.1.
    pub fn streams(&self) -> Outcome<Option<usize>> {
        match (self.http, self.streams) {
            (Http::V11, None) => Ok(None),
            (Http::V11, Some(_)) => Err(Failure::new("--streams needs --http 2")),
            (Http::V2, streams) => Ok(Some(streams.unwrap_or(1))),
        }
    }
}

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let Some(streams) = arguments.protocol.streams()? else {
        return run_http1(arguments);
    };
    let run = &arguments.run;
    run.without_agents("HTTP/2")?;
    let interrupt = Interrupt::install()?;
    let mut target = arguments.target.target(false)?;
    target.offer_http2();
    let (path, body_bytes) = (&run.path, arguments.body_bytes as usize);
    let request = http2::Request::new(&arguments.method, path, &target, &arguments.headers, body_bytes)?;
    let (connections, timeout, rate) = (arguments.connections, run.timeout, run.rate);
    if let Some(core) = run.core {
        machine::pin_to_core(core)?;
    }
    let mut load = http2::Load::new(target, http2::Plan { connections, streams, request, timeout, rate })?;
    let observed = observe("requests", run, &mut |until, label| load.run(until, label, &interrupt))?;
    drop(load);
    report("requests", &arguments.target.target, run, observed)
}

fn run_http1(arguments: &Arguments) -> Outcome<()> {
    let headers: String = arguments.headers.iter().map(|line| format!("{line}\r\n")).collect();
    let request = Request::new(
        &arguments.method,
        &arguments.run.path,
        &arguments.target.name,
        &headers,
        arguments.body_bytes as usize,
    );
    let plan = Plan {
        kind: Kind::KeepAlive,
        connections: arguments.connections,
        request,
        timeout: arguments.run.timeout,
        rate: arguments.run.rate,
    };
    measure("requests", &arguments.target, None, &arguments.run, plan)
}
