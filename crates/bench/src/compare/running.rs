//! A program that was started for the comparison, and that ends with its owner, children and all.

use crate::cpu::process_tree;
use crate::failure::{Failure, Outcome, While};
use crate::interrupt::Interrupt;
use crate::machine;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Patience with a program that was asked to start, or to end.
const START_MAX: Duration = Duration::from_secs(15);
const END_MAX: Duration = Duration::from_secs(3);
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// Of a log, the end that is shown.
const LOG_TAIL_BYTES: usize = 2000;

pub struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Born on `core`, so that every thread and child of it stays there. Its output goes to `log`.
    pub fn start(command: Command, core: usize, log: &Path) -> Outcome<Self> {
        Self::start_on(command, &[core], log)
    }

    /// The same on several cores.
    pub fn start_on(mut command: Command, cores: &[usize], log: &Path) -> Outcome<Self> {
        let output = File::create(log).when(format_args!("making {}", log.display()))?;
        let errors = output.try_clone().when("sharing a log file")?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let name = command.get_program().to_string_lossy().into_owned();
        let child = machine::on_cores(cores, || command.spawn().when(format_args!("starting {name}")))?;
        Ok(Self { child, log: log.to_owned() })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `GET path` is answered with 200 on `address`; if the program ends instead, its log says why.
    pub fn wait_until_answering(&mut self, address: SocketAddr, path: &str, interrupt: &Interrupt) -> Outcome<()> {
        let until = Instant::now() + START_MAX;
        loop {
            interrupt.check()?;
            if let Some(status) = self.child.try_wait().when("waiting for a program")? {
                return Err(Failure::new(format!("it ended at once ({status}): {}", self.log_tail())));
            }
            match ask(address, path) {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > until => {
                    return Err(Failure::new(format!("{address} does not answer ({error}): {}", self.log_tail())));
                }
                Err(_) => std::thread::sleep(LOOK_INTERVAL),
            }
        }
    }

    /// How it ended and its last words, if it has ended by itself.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        Some(format!("the server ended ({status}), saying: {}", self.log_tail()))
    }

    fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_TAIL_BYTES)..]).trim().to_owned()
    }
}

impl Drop for Running {
    /// Asked first; what is left of the tree after that is ended by force.
    fn drop(&mut self) {
        let tree = process_tree(&[self.child.id()]).unwrap_or_default();
        if matches!(self.child.try_wait(), Ok(None)) {
            signal(self.child.id(), Signal::TERM);
        }
        let until = Instant::now() + END_MAX;
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(LOOK_INTERVAL);
        }
        let ended = !matches!(self.child.try_wait(), Ok(None));
        if !ended {
            tree.iter().for_each(|pid| signal(*pid, Signal::KILL));
        }
        let _ = self.child.wait();
    }
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

fn ask(address: SocketAddr, path: &str) -> std::io::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let mut socket = TcpStream::connect_timeout(&address, PATIENCE)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut head = [0; 12];
    socket.read_exact(&mut head)?;
    if &head == b"HTTP/1.1 200" { Ok(()) } else { Err(std::io::Error::other("a status other than 200")) }
}
