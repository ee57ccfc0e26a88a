//! Engines that take over from each other: one folder, one configuration, one log, and whichever process serves at the time.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::binaries;
use crate::client::Client;
use crate::engine::complete;
use crate::program::{Said, run, signal};
use crate::scratch::Scratch;
use crate::wait::{eventually, holds};

/// A process in a debug build on a busy machine.
const START: Duration = Duration::from_secs(60);

pub struct Lineage {
    scratch: Scratch,
    /// What all of them have said.
    said: Arc<Mutex<Vec<String>>>,
    /// Those that were started here.
    children: Vec<Child>,
    /// All that have ever served, the current one last.
    pids: Vec<u32>,
}

/// How a successor comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// SIGUSR2 to the process that serves.
    Signal,
    /// `propylon run --upgrade`
    Run,
    /// `propylon upgrade`
    Command,
}

impl Lineage {
    /// Starts the first one, and waits until it serves. `process` are more lines for `[process]`.
    #[track_caller]
    pub fn start(process: &str, config: &str) -> Lineage {
        let mut command = Command::new(binaries::propylon());
        command.arg("run");
        Lineage::start_by(command, process, config)
    }

    /// The same by another command, which gets the arguments that name the configuration.
    #[track_caller]
    pub fn start_by(command: Command, process: &str, config: &str) -> Lineage {
        let mut lineage = Lineage { scratch: Scratch::new(), said: Arc::default(), children: vec![], pids: vec![] };
        lineage.write(process, config);
        let pid = lineage.spawn(command);
        lineage.await_starts(1);
        lineage.pids.push(pid);
        lineage
    }

    /// Replaces the configuration.
    pub fn write(&self, process: &str, config: &str) {
        let log = if config.contains("[log]") { "" } else { "[log]\naccess = \"off\"\n" };
        let head = format!("[process]\nupgrade_socket = \"upgrade.sock\"\n{process}\n{log}");
        let new = self.scratch.write("new.toml", complete(&(head + config)));
        fs::rename(new, self.config()).expect("a rename within a folder");
    }

    pub fn config(&self) -> PathBuf {
        self.scratch.join("propylon.toml")
    }

    pub fn folder(&self) -> PathBuf {
        self.scratch.path().to_owned()
    }

    pub fn socket(&self) -> PathBuf {
        self.scratch.join("upgrade.sock")
    }

    fn spawn(&mut self, mut command: Command) -> u32 {
        command.arg("-c").arg(self.config());
        self.spawn_whole(command)
    }

    fn spawn_whole(&mut self, mut command: Command) -> u32 {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the engine starts");
        self.listen(child.stderr.take().expect("piped"));
        self.listen(child.stdout.take().expect("piped"));
        let pid = child.id();
        self.children.push(child);
        pid
    }

    fn listen(&self, from: impl Read + Send + 'static) {
        let said = Arc::clone(&self.said);
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                said.lock().expect("readers do not panic").push(line);
            }
        });
    }

    /// Every line of every process.
    pub fn said(&self) -> Vec<String> {
        self.said.lock().expect("readers do not panic").clone()
    }

    /// Waits for a line, and returns the last one that has this in it.
    #[track_caller]
    pub fn says(&self, part: &str) -> String {
        eventually(START, part, || self.said().into_iter().rev().find(|line| line.contains(part)))
    }

    pub fn count(&self, part: &str) -> usize {
        self.said().iter().filter(|line| line.contains(part)).count()
    }

    #[track_caller]
    fn await_starts(&self, starts: usize) {
        eventually(START, "an engine runs", || (self.count(" runs with ") >= starts).then_some(()));
    }

    /// The process that serves.
    pub fn pid(&self) -> u32 {
        *self.pids.last().expect("there is a first one")
    }

    /// The ones before it.
    pub fn earlier(&self) -> &[u32] {
        &self.pids[..self.pids.len() - 1]
    }

    pub fn signal(&self, which: Signal) {
        signal(self.pid(), which);
    }

    /// Has another process take over, and waits until it serves.
    #[track_caller]
    pub fn upgrade(&mut self, how: How) {
        self.succeed(|lineage| match how {
            How::Signal => lineage.signal(Signal::USR2),
            How::Run => {
                let mut command = Command::new(binaries::propylon());
                command.args(["run", "--upgrade"]);
                lineage.spawn(command);
            }
            How::Command => {
                lineage.command(&["upgrade"]).ok();
            }
        });
    }

    /// The same by a command that names the configuration itself.
    #[track_caller]
    pub fn upgrade_by(&mut self, command: Command) {
        self.succeed(|lineage| {
            lineage.spawn_whole(command);
        });
    }

    #[track_caller]
    fn succeed(&mut self, begin: impl FnOnce(&mut Lineage)) {
        let before = self.count(" serves from here on");
        let starts = self.count(" runs with ");
        begin(self);
        eventually(START, "a successor serves", || (self.count(" serves from here on") > before).then_some(()));
        self.await_starts(starts + 1);
        let line = self.says(" serves from here on");
        self.pids.push(successor_of(&line).unwrap_or_else(|| panic!("a number in {line}")));
    }

    /// Runs `propylon` with these arguments and the configuration, to its end.
    pub fn command(&self, arguments: &[&str]) -> Said {
        let mut command = Command::new(binaries::propylon());
        command.args(arguments).arg("-c").arg(self.config());
        run(command, b"", START)
    }

    /// The address of a listener, the first of it if it has several.
    #[track_caller]
    pub fn address(&self, listener: &str) -> SocketAddr {
        let start = format!("]: info: listener \"{listener}\" at ");
        let line = self.said().into_iter().find(|line| line.contains(&start));
        let address = line.as_deref().and_then(|line| line.rsplit("://").next()?.parse().ok());
        address.unwrap_or_else(|| panic!("no listener {listener} in:\n{}", self.said().join("\n")))
    }

    #[track_caller]
    pub fn admin(&self) -> SocketAddr {
        let said = self.said();
        let admin = said.iter().find_map(|line| line.split_once("]: info: admin at http://")?.1.parse().ok());
        admin.expect("an admin address")
    }

    #[track_caller]
    fn ask_admin(&self, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.admin());
        let response = Client::plain(self.admin()).ask(request);
        assert_eq!(response.status, 200, "{}", response.text());
        response.text()
    }

    /// `/snapshot` of whoever answers.
    #[track_caller]
    pub fn snapshot(&self) -> Value {
        serde_json::from_str(&self.ask_admin("/snapshot")).expect("JSON")
    }

    /// JSON that the admin address has at a path.
    #[track_caller]
    pub fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.ask_admin(path)).expect("JSON")
    }

    /// A metric's series, spelled as /metrics has it.
    #[track_caller]
    pub fn metric(&self, series: &str) -> f64 {
        let metrics = self.ask_admin("/metrics");
        let value = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_else(|| panic!("no series {series} in\n{metrics}"))
    }

    /// Waits until a process is gone.
    #[track_caller]
    pub fn gone(&mut self, pid: u32) {
        let what = format!("process {pid} ends");
        eventually(START, &what, || {
            self.children.iter_mut().for_each(|child| {
                let _ = child.try_wait();
            });
            (!is_alive(pid)).then_some(())
        });
    }

    /// How a process that was started here has ended.
    #[track_caller]
    pub fn end(&mut self, pid: u32) -> ExitStatus {
        let child = self.children.iter_mut().find(|child| child.id() == pid).expect("a child");
        eventually(START, "a process ends", || child.try_wait().expect("a child can be waited for"))
    }

    /// Files that a process has open.
    pub fn files(&self, pid: u32) -> usize {
        fs::read_dir(format!("/proc/{pid}/fd")).expect("a running engine").count()
    }
}

/// A process that nobody has waited for yet has ended all the same.
pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

/// The process that serves, of a line that says so.
fn successor_of(line: &str) -> Option<u32> {
    line.split("process ").nth(1).filter(|rest| rest.contains(" serves from here on"))?.split(' ').next()?.parse().ok()
}

/// Signals a process that may end by itself meanwhile.
fn end(pid: u32, which: Signal) {
    let _ = Pid::from_raw(pid as i32).map(|pid| kill_process(pid, which));
}

impl Drop for Lineage {
    fn drop(&mut self) {
        // Those that have come by a command, too.
        let told: Vec<u32> = self.said().iter().filter_map(|line| successor_of(line)).collect();
        let pids: Vec<u32> = self.pids.iter().copied().chain(self.children.iter().map(Child::id)).chain(told).collect();
        let alive = || pids.iter().copied().filter(|pid| is_alive(*pid)).collect::<Vec<_>>();
        // The second one ends a drain.
        for _ in 0..2 {
            alive().into_iter().for_each(|pid| end(pid, Signal::TERM));
        }
        if std::thread::panicking() {
            eprintln!("--- the engines' stderr ---\n{}", self.said().join("\n"));
            alive().into_iter().for_each(|pid| end(pid, Signal::KILL));
            return;
        }
        holds("all engines end", || {
            self.children.iter_mut().for_each(|child| {
                let _ = child.try_wait();
            });
            alive().is_empty()
        });
        let said = self.said();
        assert!(!said.iter().any(|line| line.contains("panicked at")), "an engine panicked:\n{}", said.join("\n"));
    }
}
