//! A client group over several processes of this program: each has its own open files, local ports and source address.
//!
//! A child is sent instructions line by line on stdin and replies line by line on stdout, both in JSON; it ends with
//! its stdin, so that no child outlives the process that started it.

use super::clients::{Behaviour, Clients};
use super::phase::{ClientCounts, LoadPhase};
use crate::failure::{Failure, Outcome, While};
use crate::interrupt::{Interrupt, LOOK_INTERVAL};
use crate::machine;
use crate::report::{Pace, progress};
use crate::target::{self, Target, TlsOffer};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Processes at most: the last byte of their source addresses tells them apart.
pub const PROCESSES_MAX: u64 = 200;
/// Wait for a child beyond the time that it was given.
const SPARE: Duration = Duration::from_secs(20);

/// The server that the clients connect to.
#[derive(Clone, Serialize, Deserialize)]
pub struct Endpoint {
    pub address: SocketAddr,
    pub name: String,
    /// Absent: plain.
    pub tls: Option<TlsOffer>,
    /// Empty: for a loopback address each child takes one of its own.
    pub sources: Vec<IpAddr>,
}

/// The first line that a child is sent.
#[derive(Serialize, Deserialize)]
struct Assignment {
    endpoint: Endpoint,
    behaviour: Behaviour,
    seed: u64,
    core: Option<usize>,
}

/// Every other line.
#[derive(Serialize, Deserialize)]
enum Instruction {
    Grow { total: usize, timeout: Duration },
    Hold { duration: Duration },
}

/// Replies of a child.
#[derive(Serialize, Deserialize)]
enum Reply {
    /// While an instruction is carried out.
    Progress(ClientCounts),
    Done(Box<LoadPhase>),
    Failed(String),
}

/// One process of a client group (started by other commands; speaks JSON on stdin and stdout)
#[derive(clap::Args)]
#[command(after_help = "Example: none; `connections` and `offload` start it themselves.")]
pub struct Arguments {}

/// The processes of a client group; their connections close when this goes.
pub struct ClientProcesses {
    children: Vec<ClientProcess>,
    interrupt: Interrupt,
}

struct ClientProcess {
    child: Child,
    stdin: Option<ChildStdin>,
    replies: Receiver<String>,
}

impl ClientProcesses {
    /// On `core`, if there is one to be on.
    pub fn start(
        endpoint: &Endpoint,
        behaviour: &Behaviour,
        processes: usize,
        core: Option<usize>,
        interrupt: &Interrupt,
    ) -> Outcome<Self> {
        let mut children = Self { children: Vec::new(), interrupt: interrupt.clone() };
        for index in 0..processes {
            let mut endpoint = endpoint.clone();
            if endpoint.sources.is_empty() && processes > 1 {
                endpoint.sources.extend(target::loopback_source(endpoint.address, index));
            }
            let mut process = ClientProcess::start()?;
            process.send(&Assignment { endpoint, behaviour: behaviour.clone(), seed: index as u64 + 1, core })?;
            children.children.push(process);
        }
        Ok(children)
    }

    /// As `ClientGroup::grow`, for all of them together. `label` is shown once a second.
    pub fn grow(&mut self, total: usize, timeout: Duration, label: &str) -> Outcome<LoadPhase> {
        let count = self.children.len();
        for (index, child) in self.children.iter_mut().enumerate() {
            let share = total / count + usize::from(index < total % count);
            child.send(&Instruction::Grow { total: share, timeout })?;
        }
        self.gather(timeout, label)
    }

    /// As `ClientGroup::hold`.
    pub fn hold(&mut self, duration: Duration) -> Outcome<LoadPhase> {
        for child in &mut self.children {
            child.send(&Instruction::Hold { duration })?;
        }
        self.gather(duration, "")
    }

    fn gather(&mut self, timeout: Duration, label: &str) -> Outcome<LoadPhase> {
        let until = Instant::now() + timeout + SPARE;
        let mut pace = Pace::started();
        let mut sum = LoadPhase::default();
        let mut counts = vec![ClientCounts::default(); self.children.len()];
        for index in 0..self.children.len() {
            loop {
                match self.children[index].receive(until, &self.interrupt)? {
                    Reply::Progress(now) => counts[index] = now,
                    Reply::Failed(why) => return Err(Failure::new(why)),
                    Reply::Done(phase) => {
                        counts[index] = phase.clients;
                        sum.add(*phase);
                        break;
                    }
                }
                if !label.is_empty() && pace.is_due(Instant::now()) {
                    let mut all = ClientCounts::default();
                    counts.iter().for_each(|now| all.add(*now));
                    progress(format_args!("{label}: {} open, {} answered", all.open, all.served));
                }
            }
        }
        Ok(sum)
    }
}

impl ClientProcess {
    fn start() -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe().when("finding this program")?);
        command.arg("client-group").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().when("starting a load process")?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let (sender, replies) = channel();
        let mut child = Self { child, stdin, replies };
        let stdout = stdout.ok_or_else(|| Failure::new("a load process without stdout"))?;
        let spawned = std::thread::Builder::new().name("child".to_owned()).spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        if let Err(error) = spawned {
            child.end();
            return Err(Failure::new(format!("starting a thread for a load process: {error}")));
        }
        Ok(child)
    }

    fn send(&mut self, what: &impl Serialize) -> Outcome<()> {
        let stdin = self.stdin.as_mut().ok_or_else(|| Failure::new("a load process without stdin"))?;
        let mut line = serde_json::to_string(what).when("instructing a load process")?;
        line.push('\n');
        stdin.write_all(line.as_bytes()).when("instructing a load process")
    }

    fn receive(&mut self, until: Instant, interrupt: &Interrupt) -> Outcome<Reply> {
        loop {
            interrupt.check()?;
            match self.replies.recv_timeout(LOOK_INTERVAL) {
                Ok(line) => return serde_json::from_str(&line).when("a load process's answer"),
                Err(RecvTimeoutError::Disconnected) => return Err(Failure::new("a load process ended early")),
                Err(RecvTimeoutError::Timeout) if Instant::now() > until => {
                    return Err(Failure::new("a load process does not answer"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// The end of stdin ends a child; one that goes on is killed.
    fn end(&mut self) {
        drop(self.stdin.take());
        let timeout = Instant::now() + Duration::from_secs(3);
        while Instant::now() < timeout && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for ClientProcesses {
    fn drop(&mut self) {
        // All of them first, so that they close their connections at the same time.
        self.children.iter_mut().for_each(|child| drop(child.stdin.take()));
        self.children.iter_mut().for_each(ClientProcess::end);
    }
}

/// The side of the child.
pub fn run(_: &Arguments) -> Outcome<()> {
    let interrupt = Interrupt::install()?;
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let Ok(first) = lines.recv() else { return Ok(()) };
    let outcome = serve(&first, &lines, &interrupt);
    match &outcome {
        // The owner has been interrupted too, and has said so.
        Err(_) if interrupt.is_raised() => return Ok(()),
        Err(failure) => reply(&Reply::Failed(failure.to_string())),
        Ok(()) => {}
    }
    Ok(())
}

fn serve(first: &str, lines: &Receiver<String>, interrupt: &Interrupt) -> Outcome<()> {
    let Assignment { endpoint, behaviour, seed, core } =
        serde_json::from_str(first).when("a load process's assignment")?;
    if let Some(core) = core {
        machine::pin_to_core(core)?;
    }
    let target = Target::new(endpoint.address, &endpoint.name, endpoint.tls.as_ref())?.with_sources(&endpoint.sources);
    let mut group = Clients::new(&target, behaviour, seed, interrupt)?;
    loop {
        use std::sync::mpsc::TryRecvError;
        let line = match lines.try_recv() {
            Ok(line) => line,
            Err(TryRecvError::Disconnected) => return Ok(()),
            Err(TryRecvError::Empty) => {
                // Clients go on between instructions; what comes of it is not measured.
                group.hold(Duration::from_millis(5))?;
                continue;
            }
        };
        let phase = match serde_json::from_str(&line).when("an instruction")? {
            Instruction::Grow { total, timeout } => group.grow(total, timeout, |now| reply(&Reply::Progress(now)))?,
            Instruction::Hold { duration } => group.hold(duration)?,
        };
        reply(&Reply::Done(Box::new(phase)));
    }
}

/// A parent that went away will end us by the end of stdin.
fn reply(reply: &Reply) {
    if let Ok(mut line) = serde_json::to_string(reply) {
        line.push('\n');
        let mut stdout = std::io::stdout().lock();
        let _ = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
    }
}
