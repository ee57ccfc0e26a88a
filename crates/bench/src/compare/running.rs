//! A program that was started for the comparison, and that ends with its owner, children and all.

use crate::cpu::{Process, process_tree};
use crate::failure::{Failure, Outcome, While};
use crate::interrupt::Interrupt;
use crate::machine;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for a program that was asked to start, or to end.
const START_MAX: Duration = Duration::from_secs(15);
const END_MAX: Duration = Duration::from_secs(3);
/// Longest wait for one attempt to reach it.
const TIMEOUT: Duration = Duration::from_secs(2);
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// Bytes at the end of a log that are shown.
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
        self.wait_until(address, interrupt, || ask(address, path))
    }

    /// The same for a program that would not understand a request in the clear: connections are taken.
    pub fn wait_until_accepting(&mut self, address: SocketAddr, interrupt: &Interrupt) -> Outcome<()> {
        self.wait_until(address, interrupt, || TcpStream::connect_timeout(&address, TIMEOUT).map(drop))
    }

    fn wait_until(
        &mut self,
        address: SocketAddr,
        interrupt: &Interrupt,
        attempt: impl Fn() -> std::io::Result<()>,
    ) -> Outcome<()> {
        let until = Instant::now() + START_MAX;
        loop {
            interrupt.check()?;
            if let Some(status) = self.child.try_wait().when("waiting for a program")? {
                return Err(Failure::new(format!("it ended at once ({status}): {}", self.log_tail())));
            }
            match attempt() {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > until => {
                    return Err(Failure::new(format!("{address} does not answer ({error}): {}", self.log_tail())));
                }
                Err(_) => std::thread::sleep(LOOK_INTERVAL),
            }
        }
    }

    /// Waits for a program that ends by itself; true if it says that all is well.
    pub fn wait_for_end(&mut self, interrupt: &Interrupt) -> Outcome<bool> {
        let until = Instant::now() + START_MAX;
        while Instant::now() < until {
            interrupt.check()?;
            if let Some(status) = self.child.try_wait().when("waiting for a program")? {
                return Ok(status.success());
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        Err(Failure::new(format!("it does not end within {START_MAX:?}: {}", self.log_tail())))
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
    /// Asked first; what is left of the tree after that is ended by force. When this is done none of it is alive, so
    /// that it cannot disturb what is measured next.
    fn drop(&mut self) {
        let tree = process_tree(&[self.child.id()]).unwrap_or_default();
        let tree: Vec<Process> = tree.into_iter().filter_map(Process::of).collect();
        if matches!(self.child.try_wait(), Ok(None)) {
            signal(self.child.id(), Signal::TERM);
        }
        if !self.has_ended(&tree) {
            tree.iter().filter(|process| process.is_alive()).for_each(|process| signal(process.pid, Signal::KILL));
            self.has_ended(&tree);
        }
        let _ = self.child.wait();
    }
}

impl Running {
    /// Waits for the end of all of the tree, as long as is reasonable.
    fn has_ended(&mut self, tree: &[Process]) -> bool {
        let until = Instant::now() + END_MAX;
        loop {
            let child_ended = !matches!(self.child.try_wait(), Ok(None));
            if child_ended && !tree.iter().any(Process::is_alive) {
                return true;
            }
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
}

/// Names of the proxies on this machine that are none of ours: whatever they do, they do it to the measurement.
pub fn other_proxies(names: &[&str]) -> BTreeSet<String> {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return BTreeSet::new();
    };
    processes
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
            let is_one = names.contains(&name.trim()) && Process::of(pid)?.is_alive();
            is_one.then(|| name.trim().to_owned())
        })
        .collect()
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

fn ask(address: SocketAddr, path: &str) -> std::io::Result<()> {
    let mut socket = TcpStream::connect_timeout(&address, TIMEOUT)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut head = [0; 12];
    socket.read_exact(&mut head)?;
    if &head == b"HTTP/1.1 200" { Ok(()) } else { Err(std::io::Error::other("a status other than 200")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::ScratchDir;

    /// Children of a process as they are now.
    fn family(pid: u32) -> Vec<Process> {
        process_tree(&[pid]).unwrap().into_iter().filter_map(Process::of).collect()
    }

    #[test]
    fn a_program_ends_with_its_owner_and_so_do_its_children() {
        let scratch = ScratchDir::new().unwrap();
        let core = machine::cores_allowed()[0];
        // The second shell does not end when it is asked to.
        for script in ["sleep 60 & wait", "trap '' TERM; sleep 60 & sleep 60"] {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            let running = Running::start(command, core, &scratch.path().join("log")).unwrap();
            let until = Instant::now() + Duration::from_secs(10);
            while family(running.pid()).len() < 2 && Instant::now() < until {
                std::thread::sleep(LOOK_INTERVAL);
            }
            let family = family(running.pid());
            assert!(family.len() >= 2, "{script}");
            drop(running);
            assert!(!family.iter().any(Process::is_alive), "{script}");
        }
    }

    #[test]
    fn a_check_says_whether_all_is_well() {
        let scratch = ScratchDir::new().unwrap();
        for (program, well) in [("true", true), ("false", false)] {
            let core = machine::cores_allowed()[0];
            let mut running = Running::start(Command::new(program), core, &scratch.path().join("log")).unwrap();
            assert_eq!(running.wait_for_end(&Interrupt::default()).unwrap(), well);
        }
    }
}
