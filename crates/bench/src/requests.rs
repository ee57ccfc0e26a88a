//! `requests`: keep-alive connections, each with one request at a time.

use crate::failure::Outcome;
use crate::handshakes::{RunArguments, measure};
use crate::link::Request;
use crate::load::{Kind, Plan};
use crate::target;

/// Largest request body; it is kept in memory once.
const BODY_BYTES_MAX: u64 = 1 << 30;

/// Requests on keep-alive connections, one at a time on each
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    propylon-bench requests --target 127.0.0.1:8443 --connections 64 --duration 10 --server-pid 4711\n  \
    propylon-bench requests --target 127.0.0.1:8080 --plain --connections 64 --rate 5000 --duration 10")]
pub struct Arguments {
    #[command(flatten)]
    pub target: target::TargetArguments,
    #[command(flatten)]
    pub run: RunArguments,
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

pub fn run(arguments: &Arguments) -> Outcome<()> {
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
    measure("requests", &arguments.target.target(false)?, &arguments.target.target, &arguments.run, plan)
}
