//! `fleet`: several engine processes on one address, more clients than a process may have files, few server
//! connections.
//!
//! The kernel spreads the clients over the engines by SO_REUSEPORT. Each engine has its part of the connections
//! that the server may have; there is no count over all of them.

use crate::client_group::clients::Behaviour;
use crate::client_group::phase::LoadPhase;
use crate::client_group::processes::{ClientProcesses, Endpoint, PROCESSES_MAX};
use crate::client_group::{ClientBehaviour, RequestPattern};
use crate::compare::peers::{Peer, Program};
use crate::compare::running::Running;
use crate::compare::site::{SITE_NAME, write_certificates};
use crate::failure::{Failure, Outcome, While};
use crate::interrupt::Interrupt;
use crate::link::Request;
use crate::memory::Memory;
use crate::offload::sockets::Established;
use crate::quantity::Kibibytes;
use crate::report::{Table, progress};
use crate::scratch::ScratchDir;
use crate::stats::LatencySummary;
use crate::target::{TlsOffer, Version};
use crate::units::{parse_duration, show_nanoseconds, show_number};
use crate::{cpu, machine, report};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Clients that connect to all engines at once.
const OPENING_MAX: usize = 256;
const OPENING_TIMEOUT: Duration = Duration::from_secs(400);
/// Connections opened and closed before memory is first read, for each engine.
const WARMUP_EACH: usize = 100;
const REST: Duration = Duration::from_secs(3);
/// Files of an engine beside its clients: server connections have theirs, and these are for all else.
const FILES_BESIDE: usize = 300;
/// Connections of one load process, each with an address of its own. The kernel looks first at half of that
/// address's 28,000 ports: once those are taken every connect searches all of them in vain.
const PER_LOAD_PROCESS: usize = 12_000;

/// Many connections on several engine processes that share an address, over few to the server
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    propylon-bench fleet\n  \
    propylon-bench fleet --processes 2 --connections 10000 --server-connections 200 --every 5s --hold 12s\n\n\
    Each client keeps one TLS connection and sends a request on it every --every, spread evenly. The server's limit is\n\
    divided between the engines: each is configured with its part, and none knows of the others. Memory is read after a\n\
    warm-up, and again while all connections are held. A default run takes about three minutes and 3 GB of memory,\n\
    most of it the load's and the kernel's.")]
pub struct Arguments {
    /// Engine processes, each with one worker
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=64))]
    pub processes: usize,
    /// Client connections to be held
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    pub connections: usize,
    /// Connections that the server may have, from all engines together
    #[arg(long, value_name = "N", default_value_t = 3_000, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=15_000))]
    pub server_connections: usize,
    /// Each client asks this often
    #[arg(long, value_name = "INTERVAL", default_value = "30s", value_parser = parse_duration)]
    pub every: Duration,
    /// How long they are held
    #[arg(long, default_value = "75s", value_parser = parse_duration)]
    pub hold: Duration,
    /// How long the server takes for an answer; 0: as long as it needs
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=10_000))]
    pub server_time: u32,
    /// Without TLS
    #[arg(long)]
    pub plain: bool,
    /// Longest wait of a client for one answer, its connection included
    #[arg(long, default_value = "15s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Load processes; by default as many as it takes
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..=PROCESSES_MAX))]
    pub load_processes: Option<u64>,
    /// The propylon to start; by default the one beside this program
    #[arg(long, value_name = "PATH")]
    pub propylon: Option<PathBuf>,
    /// Write the result as JSON ("-": to stdout)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Arguments {
    fn load_processes(&self) -> usize {
        self.load_processes.map_or_else(|| self.connections.div_ceil(PER_LOAD_PROCESS), |count| count as usize)
    }

    /// One engine's part of the server's connections.
    fn share(&self, engine: usize) -> usize {
        let (count, whole) = (self.processes, self.server_connections);
        whole / count + usize::from(engine < whole % count)
    }

    fn check(&self) -> Outcome<()> {
        if self.server_connections < self.processes {
            return Err(Failure::new("--server-connections: each engine needs one at least"));
        }
        // The kernel does not spread them evenly.
        let uneven = 4.0 * (self.connections as f64 / self.processes as f64).sqrt();
        let each = self.connections.div_ceil(self.processes) + uneven as usize;
        machine::require_open_files(each + self.share(0) + FILES_BESIDE)?;
        machine::require_open_files(self.connections.div_ceil(self.load_processes()))
    }
}

/// The server and the engines before it.
struct Fleet {
    // The engines go first, so that they do not see their server fail.
    engines: Vec<Engine>,
    origin: Running,
    origin_address: SocketAddr,
    endpoint: SocketAddr,
    _scratch: ScratchDir,
}

struct Engine {
    running: Running,
    admin: SocketAddr,
}

/// One process, before its clients and with them.
#[derive(Serialize, Deserialize)]
pub struct EngineReport {
    /// Client connections, by its own metrics.
    pub connections: u64,
    rss_before_kib: u64,
    rss_held_kib: u64,
    pub kib_per_connection: Kibibytes,
    pub cpu_seconds: f64,
}

#[derive(Serialize, Deserialize)]
pub struct FleetReport {
    pub engines: Vec<EngineReport>,
    tls: bool,
    wanted: usize,
    /// Open at the end of the hold.
    pub held: usize,
    server_limit: usize,
    /// Established at the server, by the kernel's list.
    pub server_connections: usize,
    /// Client connections for each connection to the server.
    ratio: f64,
    pub requests: u64,
    pub failures: u64,
    closed_by_engines: u64,
    hold_seconds: f64,
    origin_cpu_seconds: f64,
    pub answer: LatencySummary,
    pub opening: LoadPhase,
    pub holding: LoadPhase,
}

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let interrupt = Interrupt::install()?;
    machine::raise_open_files();
    arguments.check()?;
    let fleet = Fleet::start(arguments, &interrupt)?;
    let report = measure(arguments, &fleet, &interrupt)?;
    report.print();
    report::save_result(arguments.json.as_deref(), "fleet", &report)?;
    report.verdict()
}

fn measure(arguments: &Arguments, fleet: &Fleet, interrupt: &Interrupt) -> Outcome<FleetReport> {
    let offer = TlsOffer { version: Version::Any, key: None, group: None, cipher: None, resume: false, ca: None };
    let tls = (!arguments.plain).then_some(offer);
    let endpoint = Endpoint { address: fleet.endpoint, name: SITE_NAME.to_owned(), tls, sources: Vec::new() };
    let path = if arguments.server_time > 0 { format!("/slow/{}", arguments.server_time) } else { "/".to_owned() };
    let processes = arguments.load_processes();
    let behaviour = |pattern| ClientBehaviour {
        pattern,
        request: Request::new("GET", &path, SITE_NAME, "", 0),
        timeout: arguments.timeout,
        opening_max: (OPENING_MAX / processes).max(1),
        arrivals_max: None,
    };
    let first = Behaviour::Http1(behaviour(RequestPattern::Once));
    let mut warmup = ClientProcesses::start(&endpoint, &first, 1, None, interrupt)?;
    warmup.grow(WARMUP_EACH * arguments.processes, OPENING_TIMEOUT, "")?;
    drop(warmup);
    interrupt.sleep(REST)?;

    let before = fleet.memory()?;
    let cpu_before = fleet.cpu()?;
    let mut group = ClientProcesses::start(
        &endpoint,
        &Behaviour::Http1(behaviour(RequestPattern::Every(arguments.every))),
        processes,
        None,
        interrupt,
    )?;
    let opening = group.grow(arguments.connections, OPENING_TIMEOUT, "opening")?;
    progress(format_args!(
        "{} connections after {:.0} s; holding for {:?}",
        opening.clients.open, opening.seconds, arguments.hold
    ));
    let origin_before = cpu::Reading::of(&[fleet.origin.pid()])?;
    let holding = group.hold(arguments.hold)?;
    let origin_cpu = cpu::Reading::of(&[fleet.origin.pid()])?.since(&origin_before).cpu;
    // The clients go on meanwhile.
    let (held, cpu_held) = (fleet.memory()?, fleet.cpu()?);
    let counts = fleet.connections()?;
    let server_connections = Established::at(fleet.origin_address.port()).accepted;
    drop(group);
    let engines = (0..arguments.processes).map(|index| {
        let (rss_before_kib, rss_held_kib) = (before[index].rss_kib, held[index].rss_kib);
        let grown = rss_held_kib.saturating_sub(rss_before_kib) as f64;
        EngineReport {
            connections: counts[index],
            rss_before_kib,
            rss_held_kib,
            kib_per_connection: Kibibytes(grown / counts[index].max(1) as f64),
            cpu_seconds: cpu_held[index].since(&cpu_before[index]).cpu.as_secs_f64(),
        }
    });
    Ok(FleetReport {
        engines: engines.collect(),
        tls: !arguments.plain,
        wanted: arguments.connections,
        held: holding.clients.open,
        server_limit: arguments.server_connections,
        server_connections,
        ratio: holding.clients.open as f64 / server_connections.max(1) as f64,
        requests: opening.done + holding.done,
        failures: opening.errors_total() + holding.errors_total(),
        closed_by_engines: opening.closed_idle + holding.closed_idle,
        hold_seconds: holding.seconds,
        origin_cpu_seconds: origin_cpu.as_secs_f64(),
        answer: holding.answer_latency.summary(),
        opening,
        holding,
    })
}

impl Fleet {
    fn start(arguments: &Arguments, interrupt: &Interrupt) -> Outcome<Self> {
        let program = Program::find_installed(Peer::Propylon, arguments.propylon.as_deref())?;
        let scratch = ScratchDir::new()?;
        write_certificates(&scratch)?;
        let cores = machine::cores_allowed();
        let ports = machine::free_ports(2 + arguments.processes)?;
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let (endpoint, origin_address) = (local(ports[0]), local(ports[1]));
        let mut command = Command::new(std::env::current_exe().when("finding this program")?);
        command.args(["origin", "--bind", &origin_address.to_string()]);
        let mut origin = Running::start_on(command, &cores, &scratch.path().join("origin.log"))?;
        origin.wait_until_answering(origin_address, "/", interrupt)?;
        let mut engines = Vec::new();
        for index in 0..arguments.processes {
            let admin = local(ports[2 + index]);
            let addresses = Addresses { endpoint, admin, origin: origin_address };
            let text = config(arguments, index, &addresses, scratch.path());
            let file = scratch.path().join(format!("engine-{index}.toml"));
            std::fs::write(&file, text).when("writing an engine's configuration")?;
            let mut command = Command::new(&program.path);
            command.args(["run", "-c"]).arg(&file);
            let log = scratch.path().join(format!("engine-{index}.log"));
            let mut running = Running::start(command, cores[index % cores.len()], &log)?;
            running.wait_until_answering(admin, "/health", interrupt)?;
            engines.push(Engine { running, admin });
        }
        progress(format_args!("{} engines at {endpoint}: {}", engines.len(), program.title()));
        Ok(Self { engines, origin, origin_address, endpoint, _scratch: scratch })
    }

    fn memory(&self) -> Outcome<Vec<Memory>> {
        self.engines.iter().map(|engine| Memory::of(&[engine.running.pid()])).collect()
    }

    fn cpu(&self) -> Outcome<Vec<cpu::Reading>> {
        self.engines.iter().map(|engine| cpu::Reading::of(&[engine.running.pid()])).collect()
    }

    /// Client connections of each engine.
    fn connections(&self) -> Outcome<Vec<u64>> {
        self.engines.iter().map(|engine| connections_of(engine.admin)).collect()
    }
}

/// Addresses that an engine's configuration names.
struct Addresses {
    endpoint: SocketAddr,
    admin: SocketAddr,
    origin: SocketAddr,
}

fn config(arguments: &Arguments, index: usize, addresses: &Addresses, folder: &Path) -> String {
    let Addresses { endpoint, admin, origin } = addresses;
    let certificate = folder.join(format!("{SITE_NAME}.ec.pem")).display().to_string();
    let tls = if arguments.plain { "" } else { "tls = \"site\"\n" };
    let profile =
        if arguments.plain { String::new() } else { format!("[tls.site]\ncertificates = [{certificate:?}]\n\n") };
    let share = arguments.share(index);
    // Every client may ask at once, and finds a place in the line.
    let queue = arguments.connections;
    // An engine keeps a tenth of its files for server connections by default; here they are counted.
    let most = machine::raise_open_files().saturating_sub((share + FILES_BESIDE) as u64);
    format!(
        "[process]\nworkers = 1\nshare_address = true\nmax_connections = {most}\n\n\
         [admin]\nbind = \"{admin}\"\n\n[log]\naccess = \"off\"\n\n\
         [listener.site]\nbind = \"{endpoint}\"\n{tls}timeouts = {{ idle = \"10m\" }}\n\n{profile}\
         [backend.origin]\nservers = [{{ address = \"{origin}\", max_connections = {share} }}]\n\
         queue = {{ limit = {queue}, timeout = \"10s\" }}\n\n\
         [[route]]\npath = \"/\"\nbackend = \"origin\"\n"
    )
}

fn connections_of(admin: SocketAddr) -> Outcome<u64> {
    const TIMEOUT: Duration = Duration::from_secs(10);
    let doing = "reading an engine's metrics";
    let mut socket = TcpStream::connect_timeout(&admin, TIMEOUT).when(doing)?;
    socket.set_read_timeout(Some(TIMEOUT)).when(doing)?;
    write!(socket, "GET /metrics HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n").when(doing)?;
    let mut text = String::new();
    socket.read_to_string(&mut text).when(doing)?;
    let value = text.lines().find_map(|line| line.strip_prefix("propylon_connections{")?.rsplit(' ').next());
    value.and_then(|value| value.parse().ok()).ok_or_else(|| Failure::new("an engine's metrics have no connections"))
}

impl FleetReport {
    fn print(&self) {
        let mut facts = Table::of_facts();
        facts.row(["connections", &format!("{} held of {} wanted", self.held, self.wanted)]);
        facts.row(["opened in", &format!("{:.0} s", self.opening.seconds)]);
        facts.row([
            "server connections",
            &format!(
                "{} of {} ({} engines, a part each)",
                self.server_connections,
                self.server_limit,
                self.engines.len()
            ),
        ]);
        facts.row(["ratio", &format!("{:.0} clients for each server connection", self.ratio)]);
        facts.row(["requests", &format!("{} answered, {} failed", self.requests, self.failures)]);
        facts.row(["closed by the engines", &self.closed_by_engines.to_string()]);
        facts.row([
            "answer times",
            &format!(
                "p50 {}, p99 {}, most {}",
                show_nanoseconds(self.answer.p50 as f64),
                show_nanoseconds(self.answer.p99 as f64),
                show_nanoseconds(self.answer.max as f64)
            ),
        ]);
        facts.row(["errors, opening", &self.opening.show_errors()]);
        facts.row(["errors, holding", &self.holding.show_errors()]);
        facts.print();
        println!();
        let mut table = Table::with_head(["engine", "connections", "MiB before", "MiB held", "KiB each", "CPU s"]);
        for (index, engine) in self.engines.iter().enumerate() {
            table.row([
                index.to_string(),
                engine.connections.to_string(),
                show_number(engine.rss_before_kib as f64 / 1024.0),
                show_number(engine.rss_held_kib as f64 / 1024.0),
                show_number(engine.kib_per_connection.0),
                show_number(engine.cpu_seconds),
            ]);
        }
        table.print();
        println!("\nThe server's limit is divided between the engines; none of them counts the others' connections.");
    }

    fn verdict(&self) -> Outcome<()> {
        if self.failures > 0 || self.held < self.wanted || self.server_connections > self.server_limit {
            return Err(Failure::new("not every connection was held and every request answered within the limits"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(line: &str) -> Arguments {
        Line::parse_from(line.split(' ')).arguments
    }

    #[test]
    fn the_parts_of_the_engines_are_the_servers_limit() {
        let arguments = parse("x --processes 7 --server-connections 3000");
        let group: Vec<usize> = (0..7).map(|index| arguments.share(index)).collect();
        assert_eq!(group.iter().sum::<usize>(), 3000);
        assert!(group.iter().all(|part| (428..=429).contains(part)));
        assert!(parse("x --processes 7 --server-connections 6").check().is_err());
    }

    #[test]
    fn an_engine_is_told_of_its_part_alone() {
        let arguments = parse("x --processes 2 --server-connections 5 --connections 9");
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let addresses = Addresses { endpoint: address(1), admin: address(2), origin: address(3) };
        let text = |index| config(&arguments, index, &addresses, Path::new("/t"));
        assert!(text(0).contains("max_connections = 3 }") && text(1).contains("max_connections = 2 }"));
        assert!(text(0).contains("share_address = true") && text(0).contains("certificates = [\"/t/"));
    }
}
