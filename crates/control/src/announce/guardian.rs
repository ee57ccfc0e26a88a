//! `propylon guardian`: the process that speaks to BIRD for the one that serves, which may not open Unix sockets in its
//! sandbox; and that withdraws, and gives up the cluster's lease, when that one dies.
//!
//! The guardian is started before the sandbox and takes three orders: announce, withdraw, and that a successor has
//! taken over. An attacker in the serving process gains no more by it than the virtual addresses it has anyway.

use std::cell::RefCell;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use propylon_announce::{Announcer, ProtocolName, Settings, Wanted, guard};
use propylon_config::{Announce, CapacityRecipient, Config, Source};
use serde_json::{Value, json};

/// Interval at which the guardian looks what BIRD says.
const LOOK: Duration = Duration::from_millis(50);
/// Limits on a line of an order, and of what the guardian says.
const ORDER_BYTES_MAX: usize = 4096;
const SAID_BYTES_MAX: usize = 64 * 1024;

const ANNOUNCE: &str = "announce";
const WITHDRAW: &str = "withdraw";
const HANDED_OVER: &str = "handed-over";
const HOOK: &str = "wanted";
/// Least time between two runs of the hook; of orders that come faster the last one counts.
const HOOK_PAUSE: Duration = Duration::from_secs(1);

/// The serving process's end of the channel to its guardian.
pub struct Guardian {
    channel: UnixStream,
    /// Bytes that have not been parsed yet.
    said: RefCell<Vec<u8>>,
    /// The guardian's last words.
    status: RefCell<Value>,
    /// The order that was sent last.
    ordered: RefCell<String>,
    _process: Child,
}

impl Guardian {
    /// Starts it, where anything has to be given up at a death. To be called before the sandbox.
    pub fn start(config: &Config, path: &Path) -> Option<Guardian> {
        if config.announce.is_none() && config.cluster.is_none() {
            return None;
        }
        let failed = |error: &io::Error| log::error!("no guardian can be started, so nothing is announced: {error}");
        spawn(path).inspect_err(failed).ok()
    }

    /// Wants the addresses announced or withdrawn. Nothing is sent that was ordered already.
    pub fn order(&self, is_announced: bool, reason: &str) {
        self.listen();
        let word = if is_announced { ANNOUNCE } else { WITHDRAW };
        if *self.ordered.borrow() == word {
            return;
        }
        let reason = reason.replace(char::is_control, " ");
        // An order that does not fit is sent at the next look.
        if self.send(&format!("{word} {reason}")) {
            self.ordered.replace(word.to_owned());
        }
    }

    /// The cluster wants so many engines, and this one is to tell.
    pub fn run_hook(&self, wanted: u32, engines: u32, reason: &str) {
        let reason = reason.replace(char::is_control, " ");
        if !self.send(&format!("{HOOK} {wanted} {engines} {reason}")) {
            log::warn!("cluster: the hook cannot be run: the guardian is busy");
        }
    }

    /// This process ends, and a successor has its place.
    pub fn hand_over(&self) {
        if !self.send(HANDED_OVER) {
            log::warn!("the guardian cannot be told of the successor: it will withdraw the addresses once");
        }
    }

    /// Whether BIRD has confirmed that nothing is announced.
    pub fn is_withdrawn(&self) -> bool {
        self.listen();
        let status = self.status.borrow();
        status["confirmed"] == true && status["wanted"] == WITHDRAW
    }

    /// Last answers of BIRD; `null` if it has not been asked.
    pub fn status(&self) -> Value {
        self.listen();
        self.status.borrow().clone()
    }

    fn send(&self, order: &str) -> bool {
        let order: String = order.chars().take(ORDER_BYTES_MAX / 4).chain(['\n']).collect();
        (&self.channel).write_all(order.as_bytes()).is_ok()
    }

    /// Takes what the guardian has said.
    fn listen(&self) {
        let mut said = self.said.borrow_mut();
        let mut buffer = [0; 4096];
        loop {
            match (&self.channel).read(&mut buffer) {
                Ok(0) => {
                    self.status.replace(json!({ "error": "the guardian has ended: nobody speaks to BIRD" }));
                    break;
                }
                Ok(count) if said.len() + count <= SAID_BYTES_MAX => said.extend_from_slice(&buffer[..count]),
                Ok(_) => said.clear(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        while let Some(end) = said.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = said.drain(..=end).collect();
            if let Ok(status) = serde_json::from_slice(&line) {
                self.status.replace(status);
            }
        }
    }
}

fn spawn(path: &Path) -> io::Result<Guardian> {
    let (channel, other) = UnixStream::pair()?;
    // The program that runs now, even if another file has its name by now.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("propylon").arg("guardian").arg("-c").arg(path);
    let process = command.stdin(Stdio::from(OwnedFd::from(other))).spawn()?;
    channel.set_nonblocking(true)?;
    let (said, status, ordered) = (RefCell::default(), RefCell::default(), RefCell::default());
    Ok(Guardian { channel, said, status, ordered, _process: process })
}

/// Serves the process at the other end of standard input until that ends.
pub fn main(path: &Path) -> ExitCode {
    match serve(path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("propylon guardian: {why}");
            ExitCode::FAILURE
        }
    }
}

fn serve(path: &Path) -> Result<(), String> {
    let words = |error: io::Error| error.to_string();
    let source = Source::read(path).map_err(|problem| problem.to_string())?;
    let (config, _) = propylon_config::parse(&source).map_err(|_| "the configuration cannot be read".to_owned())?;
    // Service managers send signals to all processes of a service; the engine's end is what counts.
    propylon_sys::block_signals().map_err(words)?;
    let line: UnixStream = io::stdin().as_fd().try_clone_to_owned().map_err(words)?.into();
    line.set_read_timeout(Some(LOOK)).map_err(words)?;
    let settings = config.announce.as_ref().map(settings);
    let announcer = settings.clone().map(Announcer::start).transpose().map_err(words)?;
    let is_handed_over = follow(line, announcer.as_ref(), &mut Hook::of(&config));
    if is_handed_over {
        return Ok(());
    }
    // Else its thread would see to it that BIRD announces again.
    announcer.iter().for_each(|announcer| announcer.set(Wanted::Withdraw, "the engine died".to_owned()));
    let withdrawn =
        settings.map_or(Ok(()), |settings| guard::withdraw(&settings, guard::WITHDRAW_WAIT_MAX, "the engine died"));
    if let Some(section) = &config.cluster {
        propylon_cluster::give_up_lease(section);
    }
    withdrawn
}

/// Does as the serving process says until it ends. Returns whether a successor had its place by then.
fn follow(mut line: UnixStream, announcer: Option<&Announcer>, hook: &mut Hook) -> bool {
    let (mut orders, mut buffer, mut is_handed_over) = (Vec::new(), [0; 1024], false);
    let mut said = String::new();
    loop {
        match line.read(&mut buffer) {
            Ok(0) => return is_handed_over,
            Ok(count) => orders.extend_from_slice(&buffer[..count]),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
            Err(_) => return is_handed_over,
        }
        orders.truncate(ORDER_BYTES_MAX);
        while let Some(end) = orders.iter().position(|byte| *byte == b'\n') {
            let order: Vec<u8> = orders.drain(..=end).collect();
            let order = String::from_utf8_lossy(&order).trim().to_owned();
            let (word, reason) = order.split_once(' ').unwrap_or((&order, ""));
            match (word, announcer) {
                (ANNOUNCE, Some(announcer)) => announcer.set(Wanted::Announce, reason.to_owned()),
                (WITHDRAW, Some(announcer)) => announcer.set(Wanted::Withdraw, reason.to_owned()),
                (HOOK, _) => hook.wanted = Some(reason.to_owned()),
                (HANDED_OVER, announcer) => {
                    is_handed_over = true;
                    announcer.into_iter().for_each(Announcer::let_go);
                }
                _ => {}
            }
        }
        hook.run_if_due();
        let status = announcer.map_or_else(String::new, |announcer| status(announcer).to_string());
        // A status that the serving process has no room for is said anew with the next change.
        if status != said && line.write_all(format!("{status}\n").as_bytes()).is_ok() {
            said = status;
        }
    }
}

/// The program that is run when the number of engines that are wanted changes: the one of the configuration at the
/// start, whatever the serving process says.
#[derive(Default)]
struct Hook {
    command: Vec<String>,
    /// Number wanted, number there, and why.
    wanted: Option<String>,
    ran: Option<Instant>,
    running: Option<Child>,
}

impl Hook {
    fn of(config: &Config) -> Hook {
        let capacity = config.cluster.as_ref().and_then(|cluster| cluster.capacity.as_ref());
        let command = match capacity.and_then(|capacity| capacity.recipient.as_ref()) {
            Some(CapacityRecipient::Hook(command)) => command.clone(),
            _ => Vec::new(),
        };
        Hook { command, ..Hook::default() }
    }

    /// Runs it, one at a time.
    fn run_if_due(&mut self) {
        if self.running.as_mut().is_some_and(|running| matches!(running.try_wait(), Ok(None))) {
            return;
        }
        self.running = None;
        if self.ran.is_some_and(|ran| ran.elapsed() < HOOK_PAUSE) {
            return;
        }
        let (Some(wanted), Some((program, arguments))) = (self.wanted.take(), self.command.split_first()) else {
            return;
        };
        let mut words = wanted.splitn(3, ' ');
        let (wanted, engines, reason) =
            (words.next().unwrap_or(""), words.next().unwrap_or(""), words.next().unwrap_or(""));
        self.ran = Some(Instant::now());
        let started = Command::new(program)
            .args(arguments)
            .env("PROPYLON_ENGINES_WANTED", wanted)
            .env("PROPYLON_ENGINES", engines)
            .env("PROPYLON_REASON", reason)
            .stdin(Stdio::null())
            .spawn();
        match started {
            Ok(child) => self.running = Some(child),
            Err(error) => eprintln!("propylon guardian: the hook {program} cannot be run: {error}"),
        }
    }
}

fn settings(announce: &Announce) -> Settings {
    let protocols = announce.protocols.iter().filter_map(|name| ProtocolName::parse(name).ok()).collect();
    Settings { socket: announce.bird.clone(), protocols }
}

fn status(announcer: &Announcer) -> Value {
    let status = announcer.status();
    let protocols = status
        .protocols
        .iter()
        .map(|protocol| json!({ "name": protocol.name.to_string(), "announced": protocol.is_announced }));
    let sessions = status.sessions.iter().map(|session| {
        json!({
            "name": session.name,
            "neighbor": session.neighbor.map(|neighbor| neighbor.to_string()),
            "established": session.is_established,
        })
    });
    json!({
        "announced": status.is_announced(),
        "confirmed": status.is_confirmed,
        "wanted": status.wanted.map(|wanted| if wanted == Wanted::Announce { ANNOUNCE } else { WITHDRAW }),
        "error": status.last_error.as_ref().map(ToString::to_string),
        "protocols": protocols.collect::<Vec<Value>>(),
        "sessions": sessions.collect::<Vec<Value>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a guardian takes the end after these orders for that of an engine which has a successor.
    fn is_handed_over(orders: &str) -> bool {
        let (mut own, other) = UnixStream::pair().unwrap();
        other.set_read_timeout(Some(LOOK)).unwrap();
        own.write_all(orders.as_bytes()).unwrap();
        drop(own);
        follow(other, None, &mut Hook::default())
    }

    #[test]
    fn the_end_of_an_engine_that_has_handed_over_is_told_from_a_death() {
        assert!(!is_handed_over(""));
        assert!(!is_handed_over("announce it serves\nwithdraw it drains\n"));
        assert!(is_handed_over("announce it serves\nhanded-over\n"));
        assert!(!is_handed_over("handed-over"), "an order that was cut is none");
    }

    #[test]
    fn a_line_that_somebody_holds_has_not_ended() {
        let (own, other) = UnixStream::pair().unwrap();
        other.set_read_timeout(Some(LOOK)).unwrap();
        let held = own.try_clone().unwrap();
        drop(own);
        let guardian = std::thread::spawn(move || follow(other, None, &mut Hook::default()));
        // An order by the copy counts: the line was not over.
        (&held).write_all(b"handed-over\n").unwrap();
        drop(held);
        assert!(guardian.join().unwrap());
    }
}
