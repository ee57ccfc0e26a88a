//! `propylon launcher`: the process that starts a successor, because the one that serves denies itself to start any program.
//!
//! The launcher is started before that, and takes two orders only: start what it was told at its own start, and end
//! that. An attacker in the serving process gains a successor by it and no more. The launcher ends with that process.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::argv::Argv;

/// Interval between checks of the process that the launcher has started.
const CHILD_LOOK: Duration = Duration::from_millis(50);
/// Longest time of a start, up to the program's first instruction.
const START_WAIT: Duration = Duration::from_secs(10);
/// Limit on the bytes of a line that the launcher says.
const SAID_BYTES_MAX: usize = 4096;

const START: u8 = b's';
const KILL: u8 = b'k';

/// The serving process's end of the channel to its launcher.
pub struct Launcher {
    /// Program that the launcher starts.
    program: PathBuf,
    channel: UnixStream,
    /// Bytes from the launcher that have not been parsed yet.
    said: RefCell<Vec<u8>>,
    _process: Child,
}

/// Messages from a launcher.
#[derive(Debug, PartialEq, Eq)]
enum LauncherMessage {
    Started(u32),
    Failed(String),
    /// The process with this ID has ended; the text says how.
    Ended(u32, String),
}

impl fmt::Display for LauncherMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LauncherMessage::Started(pid) => writeln!(f, "started {pid}"),
            LauncherMessage::Failed(why) => writeln!(f, "failed {}", why.replace('\n', " ")),
            LauncherMessage::Ended(pid, how) => writeln!(f, "ended {pid} {how}"),
        }
    }
}

impl LauncherMessage {
    fn parse(line: &str) -> Option<LauncherMessage> {
        let (word, rest) = line.trim_end().split_once(' ')?;
        match word {
            "started" => Some(LauncherMessage::Started(rest.parse().ok()?)),
            "failed" => Some(LauncherMessage::Failed(rest.to_owned())),
            "ended" => {
                let (pid, how) = rest.split_once(' ')?;
                Some(LauncherMessage::Ended(pid.parse().ok()?, how.to_owned()))
            }
            _ => None,
        }
    }
}

impl Launcher {
    /// Starts a launcher, which will start this process's own program again, to take over at `socket`.
    pub fn start(own: &Argv, socket: &Path) -> io::Result<Launcher> {
        let (channel, other) = UnixStream::pair()?;
        // The program that runs now, even if another file has its name by now.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("propylon").arg("launcher").arg("--").args(own.successor(socket));
        let process = command.stdin(Stdio::from(OwnedFd::from(other))).spawn()?;
        Ok(Launcher { program: own.program().to_owned(), channel, said: RefCell::default(), _process: process })
    }

    /// Program that the launcher starts.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Has the successor started. Returns its process ID.
    pub fn launch(&self) -> io::Result<u32> {
        self.channel.set_nonblocking(false)?;
        self.channel.set_read_timeout(Some(START_WAIT))?;
        (&self.channel).write_all(&[START]).map_err(|_| gone())?;
        loop {
            match self.next()? {
                Some(LauncherMessage::Started(pid)) => return Ok(pid),
                Some(LauncherMessage::Failed(why)) => return Err(io::Error::other(why)),
                // A message about a process that was started earlier.
                Some(LauncherMessage::Ended(..)) => {}
                None => return Err(ErrorKind::TimedOut.into()),
            }
        }
    }

    /// EndSignals what was started last.
    pub fn kill(&self) {
        let _ = (&self.channel).write_all(&[KILL]);
    }

    /// How this process has ended, if it has.
    pub fn ended(&self, pid: u32) -> Option<String> {
        self.channel.set_nonblocking(true).ok()?;
        loop {
            match self.next() {
                Ok(Some(LauncherMessage::Ended(ended, how))) if ended == pid => return Some(how),
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(_) => return Some("nobody knows how: the process that had started it is gone".to_owned()),
            }
        }
    }

    /// The next message; `None` if there is none for now.
    fn next(&self) -> io::Result<Option<LauncherMessage>> {
        let mut said = self.said.borrow_mut();
        loop {
            if let Some(end) = said.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = said.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                return LauncherMessage::parse(&line).map(Some).ok_or_else(|| ErrorKind::InvalidData.into());
            }
            let mut bytes = [0; 256];
            match (&self.channel).read(&mut bytes) {
                Ok(0) => {
                    return Err(gone());
                }
                Ok(_) if said.len() > SAID_BYTES_MAX => return Err(ErrorKind::InvalidData.into()),
                Ok(count) => said.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}

/// `propylon launcher`: standard input is the channel to the serving process.
pub fn main(successor: &[OsString]) -> ExitCode {
    // The process was started as `/proc/self/exe`; if its name cannot be changed, it is shown as `exe`.
    let _ = propylon_sys::name_process(c"propylon-launch");
    match launch_when_asked(successor) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("propylon: no successor can be started from here on: {error}");
            ExitCode::FAILURE
        }
    }
}

fn launch_when_asked(successor: &[OsString]) -> io::Result<()> {
    ignore_signals()?;
    let mut channel = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut running: Option<Child> = None;
    loop {
        channel.set_read_timeout(running.is_some().then_some(CHILD_LOOK))?;
        let mut order = [0];
        match channel.read(&mut order) {
            Ok(0) => return Ok(()),
            Ok(_) if order == [START] => {
                let outcome = start(successor);
                let said = match &outcome {
                    Ok(child) => LauncherMessage::Started(child.id()),
                    Err(error) => LauncherMessage::Failed(error.to_string()),
                };
                // A process started earlier that was not taken is left to itself.
                running = outcome.ok();
                channel.write_all(said.to_string().as_bytes())?;
            }
            Ok(_) => running.iter_mut().for_each(|child| drop(child.kill())),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        if let Some(child) = &mut running
            && let Some(status) = child.try_wait()?
        {
            let ended = LauncherMessage::Ended(child.id(), status.to_string());
            running = None;
            channel.write_all(ended.to_string().as_bytes())?;
        }
    }
}

fn start(successor: &[OsString]) -> io::Result<Child> {
    let Some((program, arguments)) = successor.split_first() else { return Err(ErrorKind::InvalidInput.into()) };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    OURS_ALONE.iter().for_each(|name| {
        command.env_remove(name);
    });
    command.spawn()
}

/// Variables by which a service manager speaks to one process; another process must not inherit them.
const OURS_ALONE: &[&str] = &["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID"];

/// Signals to all processes of this program's name are meant for the one that serves.
fn ignore_signals() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _guard = runtime.enter();
    for kind in [SignalKind::hangup(), SignalKind::user_defined1(), SignalKind::user_defined2()] {
        // A handler stays, whoever listens to it.
        drop(signal(kind)?);
    }
    Ok(())
}

/// Why no successor can be started any more.
fn gone() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "the launcher is gone; start the new process by run --upgrade")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        for said in [
            LauncherMessage::Started(7),
            LauncherMessage::Failed("No such file or directory (os error 2)".to_owned()),
            LauncherMessage::Ended(7, "exit status: 1".to_owned()),
        ] {
            assert_eq!(LauncherMessage::parse(&said.to_string()), Some(said));
        }
        assert_eq!(LauncherMessage::parse("started nobody\n"), None);
    }
}
