//! The second hop of each engine of a rig: `propylon-flows`, and the cluster as engines with it see it.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::network::UPLINK;
use super::{Node, Rig, remains};
use crate::binaries;

/// Changes of the table on a busy machine.
const CHANGE: Duration = Duration::from_secs(90);

/// Processes by engine; they end before their namespaces.
pub struct Hops(Vec<Option<Hop>>);

/// `propylon-flows` on one machine.
struct Hop {
    child: Option<Child>,
    pins: PathBuf,
    log: PathBuf,
}

impl Hops {
    pub fn new(engines: usize) -> Hops {
        remains::sweep_pins();
        Hops((0..engines).map(|_| None).collect())
    }

    /// Starts an engine's, unless it has been started before.
    #[track_caller]
    pub fn begin(&mut self, node: &Node) {
        if self.0[node.number()].is_none() {
            self.start(node);
        }
    }

    /// Starts an engine's, for the first time or again: with the same pins, then.
    #[track_caller]
    pub fn start(&mut self, node: &Node) {
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        let place = &mut self.0[node.number()];
        let kept = place.as_ref().map(|hop| hop.pins.clone());
        let pins = kept.unwrap_or_else(|| remains::pins(RUNS.fetch_add(1, Ordering::Relaxed)));
        let (runtime, path) = (node.folder().join("runtime"), node.folder().join("runtime.flows.log"));
        let log = fs::File::create(&path).expect("a log");
        let mut command = node.command(binaries::flows());
        command.args(["run", "--interface", UPLINK, "--table"]).arg(runtime.join("flows.table"));
        command.arg("--status").arg(runtime.join("flows.status")).arg("--pin").arg(&pins);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a handle")).stderr(log);
        let child = Some(command.spawn().expect("propylon-flows starts"));
        *place = match place.take() {
            Some(mut hop) => {
                hop.child = child;
                Some(hop)
            }
            None => Some(Hop { child, pins, log: path }),
        };
    }

    /// SIGKILL for an engine's process, whose program stays in the kernel.
    #[track_caller]
    pub fn kill(&mut self, engine: usize) {
        self.0[engine].as_mut().expect("a second hop").end();
    }

    /// Waits until some engine sees the cluster so. `words` are for when that takes too long.
    #[track_caller]
    pub fn await_status(
        &mut self,
        rig: &mut Rig,
        what: &str,
        is_so: impl Fn(&Value) -> bool,
        words: impl Fn(&mut Rig) -> String,
    ) -> Value {
        let until = Instant::now() + CHANGE;
        loop {
            let status = status(rig).unwrap_or_default();
            if is_so(&status) {
                return status;
            }
            self.0.iter_mut().flatten().for_each(Hop::must_run);
            assert!(Instant::now() < until, "{what}: not within {CHANGE:?}: {status:#}\n{}", words(rig));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The cluster as some engine that runs sees it.
pub fn status(rig: &mut Rig) -> Option<Value> {
    let running = rig.engines().iter().filter(|node| node.is_running());
    let mut answers = running.filter_map(|node| node.try_ask("GET", "/cluster", "application/json", ""));
    let (_, text) = answers.next()?;
    serde_json::from_str(&text).ok()
}

/// Log and last words of an engine's second hop.
pub fn log(node: &Node) -> String {
    let read = |name: &str| fs::read_to_string(node.folder().join(name)).unwrap_or_default();
    format!("--- {}: {}{}\n", node.name(), read("runtime.flows.log"), read("runtime/flows.status"))
}

impl Hop {
    #[track_caller]
    fn must_run(&mut self) {
        let Some(child) = &mut self.child else { return };
        let ended = child.try_wait().expect("a child can be waited for");
        let said = || fs::read_to_string(&self.log).unwrap_or_default();
        assert!(ended.is_none(), "propylon-flows has ended:\n{}", said());
    }

    fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Hop {
    fn drop(&mut self) {
        self.end();
        remains::remove_pins(&self.pins);
    }
}
