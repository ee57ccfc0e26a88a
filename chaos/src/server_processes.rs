//! The servers of a run: processes that are started, told how to behave, stopped and killed, each with what was
//! done to it on the timeline.

use crate::clock::now;
use crate::journal;
use crate::origin::Behaviour;
use crate::plan::{SERVERS, SPARES};
use crate::timeline::{Fault, Run, ServerId, Timeline};
use propylon_bench::failure::{Failure, Outcome, While};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ports are drawn from here up to where the kernel takes its own from: what is dead for a while must not be taken by
/// somebody's connection, nor be connected to itself.
const PORT_MIN: u16 = 10_000;
const PORT_ATTEMPTS: usize = 1_000;
/// The servers' certificate and key, in the run's folder.
pub const IDENTITY: &str = "servers.pem";

/// The timeline that everybody who does something writes to.
pub type SharedTimeline = Arc<Mutex<Timeline>>;

/// Nobody panics while holding it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The addresses of a server, the same in all its runs.
#[derive(Clone, Copy, Debug)]
pub struct ServerAddresses {
    pub http: SocketAddr,
    pub echo: SocketAddr,
}

pub struct ServerProcesses {
    servers: Vec<Mutex<Server>>,
    pub server_addresses: Vec<ServerAddresses>,
    timeline: SharedTimeline,
}

struct Server {
    id: ServerId,
    addresses: ServerAddresses,
    folder: PathBuf,
    run: Run,
    process: Option<Process>,
}

struct Process {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ServerProcesses {
    /// All servers, those included that no configuration names yet.
    pub fn start(folder: &Path, timeline: SharedTimeline) -> Outcome<Self> {
        let mut ports = reserved_ports(2 * usize::from(SERVERS + SPARES))?.into_iter();
        let mut servers = Vec::new();
        let mut server_addresses = Vec::new();
        for id in (0..SERVERS + SPARES).map(ServerId) {
            let mut address = || SocketAddr::from((Ipv4Addr::LOCALHOST, ports.next().unwrap_or_default()));
            let addresses = ServerAddresses { http: address(), echo: address() };
            let mut server = Server { id, addresses, folder: folder.to_owned(), run: 0, process: None };
            server.start()?;
            server_addresses.push(addresses);
            servers.push(Mutex::new(server));
        }
        Ok(Self { servers, server_addresses, timeline })
    }

    /// Ends all servers, those included that were stopped and would not see that nobody gives orders any more.
    pub fn end_all(&self) {
        self.servers.iter().for_each(|server| lock(server).process = None);
    }

    /// Process ids of the servers that can be asked at the moment.
    pub fn pids(&self) -> Vec<u32> {
        let servers = self.servers.iter().filter_map(|server| server.try_lock().ok());
        servers.filter_map(|server| Some(server.process.as_ref()?.child.id())).collect()
    }

    /// Begins a fault; `done` is what makes it true, between two looks at the clock.
    fn begin(&self, server: ServerId, fault: Fault, done: impl FnOnce() -> Outcome<()>) -> Outcome<usize> {
        let episode = lock(&self.timeline).begins(server, fault, now());
        done()?;
        Ok(episode)
    }

    fn end(&self, episode: usize) {
        lock(&self.timeline).ends(episode, now());
    }

    fn server(&self, id: ServerId) -> MutexGuard<'_, Server> {
        lock(&self.servers[usize::from(id.0)])
    }

    pub fn kill(&self, id: ServerId) -> Outcome<usize> {
        self.begin(id, Fault::Dead, || {
            self.server(id).process = None;
            Ok(())
        })
    }

    pub fn revive(&self, id: ServerId, episode: usize) -> Outcome<()> {
        self.server(id).start()?;
        self.end(episode);
        Ok(())
    }

    pub fn stop(&self, id: ServerId) -> Outcome<usize> {
        self.begin(id, Fault::Stopped, || self.server(id).signal(Signal::STOP))
    }

    pub fn resume(&self, id: ServerId, episode: usize) -> Outcome<()> {
        self.server(id).signal(Signal::CONT)?;
        self.end(episode);
        Ok(())
    }

    pub fn behave(&self, id: ServerId, fault: Fault, behaviour: Behaviour) -> Outcome<usize> {
        self.begin(id, fault, || self.server(id).order(behaviour))
    }

    pub fn behave_again(&self, id: ServerId, episode: usize) -> Outcome<()> {
        self.server(id).order(Behaviour::default())?;
        self.end(episode);
        Ok(())
    }
}

impl Server {
    fn start(&mut self) -> Outcome<()> {
        self.run += 1;
        let name = format!("{}.{}", self.id, self.run);
        let program = std::env::current_exe().when("looking for this program")?;
        let mut command = Command::new(program);
        command.arg("origin").arg("--name").arg(&name);
        command.arg("--http").arg(self.addresses.http.to_string());
        command.arg("--echo").arg(self.addresses.echo.to_string());
        command.arg("--identity").arg(self.folder.join(IDENTITY));
        // Every second server agrees on HTTP/2 where both are on offer.
        if self.id.0 % 2 == 1 {
            command.arg("--http2");
        }
        command.arg("--journal").arg(journal::path(&self.folder, self.id, self.run));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().when(format_args!("starting server {name}"))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (orders, answers) = pipes.ok_or_else(|| Failure::new("a child without pipes"))?;
        let mut process = Process { child, orders, answers: BufReader::new(answers) };
        process.expect("listening").when(format_args!("starting server {name}"))?;
        self.process = Some(process);
        Ok(())
    }

    fn process(&mut self) -> Outcome<&mut Process> {
        let id = self.id;
        self.process.as_mut().ok_or_else(|| Failure::new(format!("server {id} is dead")))
    }

    fn signal(&mut self, signal: Signal) -> Outcome<()> {
        let pid = i32::try_from(self.process()?.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| Failure::new("a process without a number"))?;
        kill_process(pid, signal).when(format_args!("sending a signal to server {}", self.id))
    }

    fn order(&mut self, behaviour: Behaviour) -> Outcome<()> {
        let id = self.id;
        let process = self.process()?;
        writeln!(process.orders, "{}", behaviour.line()).when(format_args!("telling server {id} how to behave"))?;
        process.expect("ok").when(format_args!("telling server {id} how to behave"))
    }
}

impl Process {
    fn expect(&mut self, word: &str) -> Outcome<()> {
        let mut line = String::new();
        self.answers.read_line(&mut line).when("waiting for its answer")?;
        match line.trim() == word {
            true => Ok(()),
            false => Err(Failure::new(format!("it said \"{}\" and not \"{word}\"", line.trim()))),
        }
    }
}

/// Ports that nobody uses, from below those that the kernel gives to connections.
pub fn reserved_ports(count: usize) -> Outcome<Vec<u16>> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let first = range.split_ascii_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(32_768);
    let mut held = Vec::new();
    for _ in 0..PORT_ATTEMPTS {
        if held.len() == count {
            break;
        }
        let port = fastrand::u16(PORT_MIN..first.max(PORT_MIN + 10_000));
        held.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok());
    }
    if held.len() < count {
        return Err(Failure::new("there are no free ports on 127.0.0.1"));
    }
    held.iter().map(|listener| Ok(listener.local_addr().when("looking at a port")?.port())).collect()
}
