//! A crowd over several processes of this program: each has its own open files, local ports and source address.
//!
//! A part is told what to do line by line on stdin and answers line by line on stdout, both in JSON; it ends with its
//! stdin, so that no part outlives the one that started it.

use super::stretch::{Census, Stretch};
use super::{Conduct, Crowd};
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

/// Parts at most: the last byte of their source addresses tells them apart.
pub const PROCESSES_MAX: u64 = 200;
/// MinRateTimeout with a part beyond the time that it was given.
const SPARE: Duration = Duration::from_secs(20);

/// Whom the clients visit.
#[derive(Clone, Serialize, Deserialize)]
pub struct Door {
    pub address: SocketAddr,
    pub name: String,
    /// Absent: plain.
    pub tls: Option<TlsOffer>,
    /// Empty: for a loopback address each part takes one of its own.
    pub sources: Vec<IpAddr>,
}

/// The first line that a part is told.
#[derive(Serialize, Deserialize)]
struct Assignment {
    door: Door,
    conduct: Conduct,
    seed: u64,
    core: Option<usize>,
}

/// Every other line.
#[derive(Serialize, Deserialize)]
enum Order {
    Grow { total: usize, patience: Duration },
    Hold { duration: Duration },
}

/// The reports of a part.
#[derive(Serialize, Deserialize)]
enum Told {
    /// While an order is being carried out.
    Progress(Census),
    Done(Box<Stretch>),
    Failed(String),
}

/// One process's share of a crowd (started by other commands; speaks JSON on stdin and stdout)
#[derive(clap::Args)]
#[command(after_help = "Example: none; `connections` and `offload` start it themselves.")]
pub struct Arguments {}

/// The processes of a crowd; their connections close when this goes.
pub struct Parts {
    parts: Vec<Part>,
    interrupt: Interrupt,
}

struct Part {
    child: Child,
    stdin: Option<ChildStdin>,
    told: Receiver<String>,
}

impl Parts {
    /// On `core`, if there is one to be on.
    pub fn start(
        door: &Door,
        conduct: &Conduct,
        processes: usize,
        core: Option<usize>,
        interrupt: &Interrupt,
    ) -> Outcome<Self> {
        let mut parts = Self { parts: Vec::new(), interrupt: interrupt.clone() };
        for index in 0..processes {
            let mut door = door.clone();
            if door.sources.is_empty() && processes > 1 {
                door.sources.extend(target::loopback_source(door.address, index));
            }
            let mut part = Part::start()?;
            part.tell(&Assignment { door, conduct: conduct.clone(), seed: index as u64 + 1, core })?;
            parts.parts.push(part);
        }
        Ok(parts)
    }

    /// As `Crowd::grow`, for all of them together. `label` is told once a second.
    pub fn grow(&mut self, total: usize, patience: Duration, label: &str) -> Outcome<Stretch> {
        let count = self.parts.len();
        for (index, part) in self.parts.iter_mut().enumerate() {
            let share = total / count + usize::from(index < total % count);
            part.tell(&Order::Grow { total: share, patience })?;
        }
        self.gather(patience, label)
    }

    /// As `Crowd::hold`.
    pub fn hold(&mut self, duration: Duration) -> Outcome<Stretch> {
        for part in &mut self.parts {
            part.tell(&Order::Hold { duration })?;
        }
        self.gather(duration, "")
    }

    fn gather(&mut self, patience: Duration, label: &str) -> Outcome<Stretch> {
        let until = Instant::now() + patience + SPARE;
        let mut pace = Pace::started();
        let mut sum = Stretch::default();
        let mut censuses = vec![Census::default(); self.parts.len()];
        for index in 0..self.parts.len() {
            loop {
                match self.parts[index].hear(until, &self.interrupt)? {
                    Told::Progress(census) => censuses[index] = census,
                    Told::Failed(why) => return Err(Failure::new(why)),
                    Told::Done(stretch) => {
                        censuses[index] = stretch.census;
                        sum.add(*stretch);
                        break;
                    }
                }
                if !label.is_empty() && pace.is_due(Instant::now()) {
                    let mut all = Census::default();
                    censuses.iter().for_each(|census| all.add(*census));
                    progress(format_args!("{label}: {} open, {} answered", all.open, all.served));
                }
            }
        }
        Ok(sum)
    }
}

impl Part {
    fn start() -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe().when("finding this program")?);
        command.arg("crowd-part").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().when("starting a load process")?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let (tell, told) = channel();
        let mut part = Self { child, stdin, told };
        let stdout = stdout.ok_or_else(|| Failure::new("a load process without stdout"))?;
        let spawned = std::thread::Builder::new().name("part".to_owned()).spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { return };
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        if let Err(error) = spawned {
            part.end();
            return Err(Failure::new(format!("starting a thread for a load process: {error}")));
        }
        Ok(part)
    }

    fn tell(&mut self, what: &impl Serialize) -> Outcome<()> {
        let stdin = self.stdin.as_mut().ok_or_else(|| Failure::new("a load process without stdin"))?;
        let mut line = serde_json::to_string(what).when("telling a load process")?;
        line.push('\n');
        stdin.write_all(line.as_bytes()).when("telling a load process")
    }

    fn hear(&mut self, until: Instant, interrupt: &Interrupt) -> Outcome<Told> {
        loop {
            interrupt.check()?;
            match self.told.recv_timeout(LOOK_INTERVAL) {
                Ok(line) => return serde_json::from_str(&line).when("a load process's answer"),
                Err(RecvTimeoutError::Disconnected) => return Err(Failure::new("a load process ended early")),
                Err(RecvTimeoutError::Timeout) if Instant::now() > until => {
                    return Err(Failure::new("a load process does not answer"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// The end of stdin is its sign; a part that does not take it is ended by force.
    fn end(&mut self) {
        drop(self.stdin.take());
        let patience = Instant::now() + Duration::from_secs(3);
        while Instant::now() < patience && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        // All of them first, so that they close their connections at the same time.
        self.parts.iter_mut().for_each(|part| drop(part.stdin.take()));
        self.parts.iter_mut().for_each(Part::end);
    }
}

/// The part's side.
pub fn run(_: &Arguments) -> Outcome<()> {
    let interrupt = Interrupt::install()?;
    let (tell, lines) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if tell.send(line).is_err() {
                return;
            }
        }
    });
    let Ok(first) = lines.recv() else { return Ok(()) };
    let outcome = serve(&first, &lines, &interrupt);
    match &outcome {
        // The owner has been interrupted too, and has said so.
        Err(_) if interrupt.is_raised() => return Ok(()),
        Err(failure) => say(&Told::Failed(failure.to_string())),
        Ok(()) => {}
    }
    Ok(())
}

fn serve(first: &str, lines: &Receiver<String>, interrupt: &Interrupt) -> Outcome<()> {
    let Assignment { door, conduct, seed, core } = serde_json::from_str(first).when("a part's assignment")?;
    if let Some(core) = core {
        machine::pin_to_core(core)?;
    }
    let target = Target::new(door.address, &door.name, door.tls.as_ref())?.with_sources(&door.sources);
    let mut crowd = Crowd::new(&target, conduct, seed, interrupt)?;
    loop {
        use std::sync::mpsc::TryRecvError;
        let line = match lines.try_recv() {
            Ok(line) => line,
            Err(TryRecvError::Disconnected) => return Ok(()),
            Err(TryRecvError::Empty) => {
                // Clients go on between orders; what comes of it is nobody's measurement.
                crowd.hold(Duration::from_millis(5))?;
                continue;
            }
        };
        let stretch = match serde_json::from_str(&line).when("an order")? {
            Order::Grow { total, patience } => crowd.grow(total, patience, |census| say(&Told::Progress(census)))?,
            Order::Hold { duration } => crowd.hold(duration)?,
        };
        say(&Told::Done(Box::new(stretch)));
    }
}

/// A parent that went away will end us by the end of stdin.
fn say(told: &Told) {
    if let Ok(mut line) = serde_json::to_string(told) {
        line.push('\n');
        let mut stdout = std::io::stdout().lock();
        let _ = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
    }
}
