//! `connections`: many connections that idle, or are slow, and what they cost the server in memory.
//!
//! `server` is the server asked, `kernel` the memory that the kernel holds for it, `table` the report.

mod arguments;
mod kernel;
mod server;
pub mod table;

use crate::client_group::processes::ClientProcesses;
use crate::cpu;
use crate::failure::{Failure, Outcome};
use crate::idle::{IdleConnections, OPENING_TIMEOUT, idle_clients};
use crate::interrupt::Interrupt;
use crate::report;
use crate::target::Target;
pub use arguments::{Arguments, Mode};
use kernel::Reading;
use server::Server;
use std::time::Duration;
use table::{Report, Row};

/// Connections opened and closed before memory is first read, so that start-up allocations do not count.
const WARMUP_CONNECTIONS: usize = 64;
/// For a server to come to rest: after the warm-up, and after clients that did not wait for it.
const SERVER_REST: Duration = Duration::from_millis(300);

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let interrupt = Interrupt::install()?;
    let server = Server::of(arguments)?;
    let modes = arguments.modes();
    let mut rows = Vec::new();
    for mode in &modes {
        rows.push(measure(arguments, &server, *mode, &interrupt)?);
    }
    let report = Report::new(server.name(arguments), arguments, rows);
    report.print();
    report::save_result(arguments.json.as_deref(), "connections", &report)?;
    report.verdict()
}

fn measure(arguments: &Arguments, server: &Server, mode: Mode, interrupt: &Interrupt) -> Outcome<Row> {
    arguments.check(mode)?;
    let open = server.open(arguments, mode, interrupt)?;
    let behaviour = arguments.behaviour(mode, &open.endpoint.name, &open.path);
    let load_core = match server {
        Server::Running { .. } => arguments.core,
        Server::Startable { .. } => arguments.load_core(),
    };
    let target = Target::new(open.endpoint.address, &open.endpoint.name, open.endpoint.tls.as_ref())?;
    let first = idle_clients(mode.http(), &open.path, &open.endpoint.name, arguments.timeout);
    drop(IdleConnections::open(&target, WARMUP_CONNECTIONS.min(arguments.count), first, interrupt)?);
    interrupt.sleep(SERVER_REST)?;

    let before = Reading::of(&open.pids)?;
    let cpu_before = cpu::Reading::of(&open.pids)?;
    let mut group =
        ClientProcesses::start(&open.endpoint, &behaviour, arguments.processes as usize, load_core, interrupt)?;
    let opening = group.grow(arguments.count, OPENING_TIMEOUT, &format!("{}: opening", mode.name()))?;
    if matches!(mode, Mode::Tcp | Mode::TcpByte) {
        // The server may still be taking connections, since these clients do not wait for it.
        interrupt.sleep(SERVER_REST)?;
    }
    let cpu = cpu::Reading::of(&open.pids)?.since(&cpu_before);
    if opening.clients.open == 0 {
        let why = opening.first_error.as_deref().unwrap_or("none was opened");
        return Err(Failure::new(format!("{}: {why}", mode.name())));
    }
    let holding = group.hold(arguments.hold)?;
    let held = Reading::of(&open.pids)?;
    drop(group);
    interrupt.sleep(arguments.after)?;
    let closed = Reading::of(&open.pids)?;
    Ok(Row {
        mode,
        has_server: !open.pids.is_empty(),
        is_local: open.endpoint.address.ip().is_loopback(),
        opening,
        opening_cpu: cpu,
        holding,
        before,
        held,
        closed,
    })
}
