//! Environment of the demo: a folder, and processes that do not outlive it.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

use super::failure::Failure;

/// How long a process may take to say that it is ready.
const READY_TIME: Duration = Duration::from_secs(15);
/// How long processes may take to end when they are asked to, before they are killed.
const END_TIME: Duration = Duration::from_secs(4);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Lines kept of what a process says.
const LINES_KEPT_MAX: usize = 200;
/// Lines of those that a failure repeats.
const LINES_SHOWN: usize = 6;

/// Dropping it ends the processes and removes the folder.
pub struct Environment {
    pub folder: PathBuf,
    own: PathBuf,
    propylon: PathBuf,
    bench: PathBuf,
    processes: Vec<Process>,
}

/// A process of the environment.
pub struct Process {
    name: &'static str,
    child: Child,
    output: Output,
}

/// The last lines of a process's standard output and error.
#[derive(Clone, Default)]
struct Output(Arc<Mutex<VecDeque<String>>>);

#[derive(Clone, Copy)]
pub enum Program {
    Propylon,
    Bench,
}

impl Environment {
    /// Makes the folder, open to nobody else: private keys will lie in it.
    pub fn new() -> Result<Environment, Failure> {
        let own = std::env::current_exe().map_err(|error| Failure::new(format!("who am I? {error}")))?;
        let propylon = beside(&own, "propylon", "the demo starts it")?;
        let bench = beside(&own, "propylon-bench", "the demo takes its load and its servers from it")?;
        let name = format!("propylon-demo-{}-{:08x}", std::process::id(), fastrand::u32(..));
        let folder = std::env::temp_dir().join(name);
        let made = std::fs::DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|error| Failure::new(format!("{} cannot be made: {error}", folder.display())))?;
        Ok(Environment { folder, own, propylon, bench, processes: Vec::new() })
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub fn path_of(&self, program: Program) -> &Path {
        match program {
            Program::Propylon => &self.propylon,
            Program::Bench => &self.bench,
        }
    }

    /// Starts a process that stays until the environment goes; the number is for [`Environment::process`].
    pub fn start(&mut self, name: &'static str, program: Program, arguments: &[OsString]) -> Result<usize, Failure> {
        let mut command = Command::new(&self.own);
        let parent = std::process::id().to_string();
        command.args([OsStr::new("with-parent"), OsStr::new(&parent), OsStr::new("--")]);
        command.arg(self.path_of(program)).args(arguments);
        // A group of its own: Ctrl-C is for us, and we end the others in order.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| Failure::new(format!("{name} cannot be started: {error}")))?;
        let output = Output::default();
        output.listen(child.stdout.take());
        output.listen(child.stderr.take());
        self.processes.push(Process { name, child, output });
        Ok(self.processes.len() - 1)
    }

    pub fn process(&mut self, index: usize) -> &mut Process {
        &mut self.processes[index]
    }

    /// Fails once one of these has ended.
    pub fn check(&mut self, lasting: &[usize]) -> Result<(), Failure> {
        lasting.iter().try_for_each(|index| {
            let process = &mut self.processes[*index];
            match process.ended() {
                None => Ok(()),
                Some(status) => Err(process.failure(&format!("ended by itself ({status})"))),
            }
        })
    }
}

/// The program of this name in the folder of our own.
fn beside(own: &Path, name: &str, why: &str) -> Result<PathBuf, Failure> {
    let program = own.with_file_name(name);
    if program.is_file() {
        return Ok(program);
    }
    let release = if own.components().any(|part| part.as_os_str() == "debug") { "" } else { "--release " };
    let program = program.display();
    Err(Failure::new(format!("{program} is not there; {why}.\nBuild it: cargo build {release}-p {name}")))
}

impl Process {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    pub async fn end(&mut self) -> ExitStatus {
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            sleep(LOOK_INTERVAL).await;
        }
    }

    /// Waits until it says a line that begins with `start`, and returns the rest of that line.
    pub async fn says(&mut self, start: &str) -> Result<String, Failure> {
        let due = Instant::now() + READY_TIME;
        loop {
            let ended = self.ended();
            if let Some(rest) = self.output.find(start) {
                return Ok(rest);
            }
            if let Some(status) = ended {
                return Err(self.failure(&format!("ended ({status})")));
            }
            if Instant::now() >= due {
                return Err(self.failure("did not get ready in time"));
            }
            sleep(LOOK_INTERVAL).await;
        }
    }

    /// A failure with the last that was heard of the process.
    pub fn failure(&self, what: &str) -> Failure {
        let lines = self.output.last(LINES_SHOWN);
        let said = if lines.is_empty() { String::new() } else { format!(":\n  {}", lines.join("\n  ")) };
        Failure::new(format!("{} {what}{said}", self.name))
    }

    fn signal(&self, signal: Signal) {
        // The process ID cannot be another process's yet: the child has not been waited for.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }
}

impl Output {
    fn listen(&self, pipe: Option<impl Read + Send + 'static>) {
        let Some(pipe) = pipe else { return };
        let lines = Arc::clone(&self.0);
        // Ends with the process that holds the other end.
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                if lines.len() == LINES_KEPT_MAX {
                    lines.pop_front();
                }
                lines.push_back(line);
            }
        });
    }

    fn find(&self, words: &str) -> Option<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().find_map(|line| Some(line.split_once(words)?.1.to_owned()))
    }

    fn last(&self, count: usize) -> Vec<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().skip(lines.len().saturating_sub(count)).cloned().collect()
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        // The load goes first and the origins last: nobody is left to complain of the other's absence.
        for process in self.processes.iter_mut().rev() {
            if process.ended().is_none() {
                process.signal(Signal::TERM);
            }
        }
        let due = Instant::now() + END_TIME;
        for process in self.processes.iter_mut().rev() {
            while process.ended().is_none() && Instant::now() < due {
                std::thread::sleep(LOOK_INTERVAL);
            }
            if process.ended().is_none() {
                let _ = process.child.kill();
                let _ = process.child.wait();
            }
        }
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            eprintln!("propylon: {} cannot be removed: {error}", self.folder.display());
        }
    }
}
