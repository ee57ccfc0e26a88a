//! Network namespaces, and programs that run in them, for the stories with real BIRD and keepalived.
#![allow(dead_code, reason = "each file of stories uses a part")]

pub mod pair;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Pause between two looks. Nothing relies on its length.
const PAUSE: Duration = Duration::from_millis(2);
/// Long enough for a machine with other work, short enough to end a story that hangs.
pub const WAIT_MAX: Duration = Duration::from_secs(30);

/// Waits until something is so, and says how long that took.
#[track_caller]
pub fn holds(what: &str, mut condition: impl FnMut() -> bool) -> Duration {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < WAIT_MAX, "{what}: not within {WAIT_MAX:?}");
        thread::sleep(PAUSE);
    }
    started.elapsed()
}

/// A number that no other story and no other run has by now.
fn unique() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Whether these stories can run; says why not.
pub fn can_run(programs: &[&str]) -> bool {
    for program in programs {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            println!("skipped: {program} is not installed");
            return false;
        }
    }
    let probe = format!("ann-probe-{}", unique());
    let made = Command::new("ip").args(["netns", "add", &probe]).stderr(Stdio::null()).status();
    if !made.is_ok_and(|status| status.success()) {
        println!("skipped: this account may make no network namespace");
        return false;
    }
    let _ = Command::new("ip").args(["netns", "delete", &probe]).status();
    true
}

/// A folder that is gone afterwards.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        let folder = std::env::temp_dir().join(format!("propylon-announce-{}", unique()));
        fs::create_dir_all(&folder).unwrap();
        Scratch(folder)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A network namespace with its loopback up.
pub struct Namespace(String);

impl Namespace {
    pub fn new(role: &str) -> Namespace {
        let namespace = Namespace(format!("ann-{role}-{}", unique()));
        run(Command::new("ip").args(["netns", "add", &namespace.0]));
        namespace.ip("link set lo up");
        namespace
    }

    /// Two that are joined, each with `eth` and addresses that end in its number.
    pub fn pair() -> (Namespace, Namespace) {
        let (one, two) = (Namespace::new("r"), Namespace::new("e"));
        run(Command::new("ip")
            .args(["link", "add", "eth", "netns", &one.0, "type", "veth", "peer", "name", "eth", "netns", &two.0]));
        for (namespace, number) in [(&one, 1), (&two, 2)] {
            namespace.ip("link set eth up");
            namespace.ip(&format!("address add 10.77.0.{number}/24 dev eth"));
            namespace.ip(&format!("address add fd77::{number}/64 dev eth nodad"));
        }
        (one, two)
    }

    /// Runs `ip` in it, and returns what it says.
    pub fn ip(&self, arguments: &str) -> String {
        run(Command::new("ip").args(["-n", &self.0]).args(arguments.split(' ')))
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, program]).stdin(Stdio::null());
        command
    }

    pub fn has_route(&self, address: &str) -> bool {
        let family = if address.contains(':') { "-6" } else { "-4" };
        !self.ip(&format!("{family} route show {address}")).is_empty()
    }

    pub fn has_address(&self, address: &str) -> bool {
        self.ip("address show dev eth").contains(&format!(" {address}/"))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

/// Runs to the end, and returns what was said.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A program that is killed at the end of its story.
pub struct Running(pub Child);

impl Running {
    pub fn start(command: &mut Command) -> Running {
        Running(command.spawn().unwrap())
    }

    /// As by `kill -9`.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A BIRD in a namespace, with its socket `NAME.ctl`.
pub fn bird(namespace: &Namespace, scratch: &Scratch, name: &str) -> Running {
    let path = |end: &str| scratch.path(&format!("{name}.{end}"));
    let mut command = namespace.command("bird");
    command.arg("-f").arg("-c").arg(path("conf")).arg("-s").arg(path("ctl")).arg("-P").arg(path("pid"));
    Running::start(&mut command)
}
