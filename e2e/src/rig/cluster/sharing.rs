//! Engines that share the VIP: each announces it by its BIRD, and has the second hop in its kernel, so that a flow
//! reaches its engine whatever path the router takes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Member;
use crate::binaries;
use crate::rig::network::{UPLINK, VIP};
use crate::rig::{Options, Rig, Skip, remains};
use crate::wait::{WAIT_MAX, eventually};

/// Changes of the table on a busy machine.
const CHANGE: Duration = Duration::from_secs(90);
/// A canary serves a configuration for so long before the others do.
pub const CANARY_TIME: Duration = Duration::from_secs(1);
/// Buckets of the flow table.
pub const BUCKETS: u64 = 1024;
/// Clients that ask once a second are told to leave by an answer, and none is cut.
const PROCESS: &str = "drain_timeout = \"10s\"\n";

/// A rig whose engines have the second hop in their kernels.
pub struct Cluster {
    // Processes of the second hop end before their namespaces.
    hops: Vec<Option<Hop>>,
    pub rig: Rig,
}

/// `propylon-flows` on one machine.
struct Hop {
    child: Option<Child>,
    pins: PathBuf,
    log: PathBuf,
}

impl Cluster {
    /// A rig with three members of etcd, in which no engine runs.
    ///
    /// # Errors
    /// When there can be no rig here.
    #[track_caller]
    pub fn new(options: Options) -> Result<Cluster, Skip> {
        remains::sweep_pins();
        let hops = (0..options.engines).map(|_| None).collect();
        Ok(Cluster { hops, rig: Rig::new(Options { etcd_members: 3, ..options })? })
    }

    /// Starts an engine and its second hop.
    #[track_caller]
    pub fn start(&mut self, engine: usize) {
        let member = Member::of(&mut self.rig, engine);
        let canary = CANARY_TIME.as_millis();
        let more =
            format!("vips = [\"{VIP}\"]\nflows = {{}}\ndrain_limit = \"20s\"\ncanary = {{ time = \"{canary}ms\" }}\n");
        let section = member.section(&mut self.rig, &more);
        let socket = self.rig.bird(engine).socket().display().to_string();
        let announce = format!("[announce]\nbird = \"{socket}\"\nprotocols = [\"vip\"]\nhold_up = \"1s\"\n");
        fs::create_dir_all(&member.runtime).expect("a folder");
        if self.hops[engine].is_none() {
            self.start_hop(engine, &member.runtime);
        }
        let config = format!("{announce}{section}{}", self.rig.config());
        self.rig.engine(engine).start(PROCESS, &config);
    }

    #[track_caller]
    fn start_hop(&mut self, engine: usize, runtime: &Path) {
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        let kept = self.hops[engine].as_ref().map(|hop| hop.pins.clone());
        let pins = kept.unwrap_or_else(|| remains::pins(RUNS.fetch_add(1, Ordering::Relaxed)));
        let path = runtime.with_extension("flows.log");
        let log = fs::File::create(&path).expect("a log");
        let mut command = self.rig.engine(engine).command(binaries::flows());
        command.args(["run", "--interface", UPLINK, "--table"]).arg(runtime.join("flows.table"));
        command.arg("--status").arg(runtime.join("flows.status")).arg("--pin").arg(&pins);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a handle")).stderr(log);
        let child = Some(command.spawn().expect("propylon-flows starts"));
        match &mut self.hops[engine] {
            Some(hop) => hop.child = child,
            none => *none = Some(Hop { child, pins, log: path }),
        }
    }

    /// SIGKILL for the process of an engine's second hop, whose program stays in the kernel.
    #[track_caller]
    pub fn kill_hop(&mut self, engine: usize) {
        self.hops[engine].as_mut().expect("a second hop").end();
    }

    /// Starts that process again.
    #[track_caller]
    pub fn restart_hop(&mut self, engine: usize) {
        let runtime = Member::of(&mut self.rig, engine).runtime;
        self.start_hop(engine, &runtime);
    }

    /// The cluster as some engine that runs sees it.
    pub fn status(&mut self) -> Option<Value> {
        let running = self.rig.engines().iter().filter(|node| node.is_running());
        let mut answers = running.filter_map(|node| node.try_ask("GET", "/cluster", "application/json", ""));
        let (_, text) = answers.next()?;
        serde_json::from_str(&text).ok()
    }

    /// Waits until some engine sees the cluster so.
    #[track_caller]
    pub fn await_status(&mut self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + CHANGE;
        loop {
            let status = self.status().unwrap_or_default();
            if is_so(&status) {
                return status;
            }
            self.hops.iter_mut().flatten().for_each(Hop::must_run);
            assert!(Instant::now() < until, "{what}: not within {CHANGE:?}: {status:#}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Logs and last words of all second hops.
    pub fn logs(&mut self) -> String {
        let mut logs = String::new();
        for node in self.rig.engines() {
            let log = fs::read_to_string(node.folder().join("runtime.flows.log")).unwrap_or_default();
            let status = fs::read_to_string(node.folder().join("runtime/flows.status")).unwrap_or_default();
            logs += &format!("--- {}: {log}{status}\n", node.name());
        }
        logs
    }

    /// Waits until so many engines have their share of the table, and all routes are there.
    #[track_caller]
    pub fn await_sharing(&mut self, engines: usize) {
        let fair = BUCKETS / engines as u64;
        self.await_status(&format!("{engines} engines share the table"), |status| {
            buckets(status).into_iter().filter(|share| *share >= fair - fair / 8).count() == engines
        });
        self.await_routes(engines);
    }

    /// Gives an engine so much of its usual share of new connections, while all others have theirs, and waits until the
    /// table has it so and all go by that. Returns the buckets that it owns then.
    #[track_caller]
    pub fn weigh(&mut self, engine: usize, percent: u64) -> u64 {
        let (name, asked) = (self.rig.engine(engine).name(), (engine + 1) % self.rig.engines().len());
        let path = format!("/cluster/weight?engine={name}&percent={percent}");
        let (code, body) = self.rig.engine(asked).ask("POST", &path, "");
        assert_eq!((code, &body["weight_percent"]), (200, &percent.into()), "{body}");
        let status = self.await_status(&format!("{name} has {percent} % of its share"), |status| {
            let all = status["engines"].as_array().map(Vec::as_slice).unwrap_or_default();
            let others = (all.len() as u64).saturating_sub(1);
            let wanted = (BUCKETS * percent).checked_div(100 * others + percent).unwrap_or(0);
            // A table rests within a thirty-second of an even share; nothing is nothing.
            let tolerated = if percent == 0 { 0 } else { BUCKETS / (others + 1) / 16 };
            let is_one = |one: &Value| one["name"] == name.as_str() && one["weight_percent"] == percent;
            owned(status, &name).is_some_and(|owned| owned.abs_diff(wanted) <= tolerated)
                && all.iter().any(is_one)
                && all.iter().all(|one| one["flows_generation"] == status["flows"]["generation"])
        });
        owned(&status, &name).unwrap_or_default()
    }

    /// Waits until the router has paths to so many engines.
    #[track_caller]
    pub fn await_routes(&mut self, engines: usize) {
        let rig = &self.rig;
        let count = || rig.router_routes(VIP.into()).len();
        eventually(WAIT_MAX, &format!("{engines} paths"), || (count() == engines).then_some(()));
    }
}

/// Shares of the table by engine, of those that have one.
fn buckets(status: &Value) -> Vec<u64> {
    status["engines"].as_array().into_iter().flatten().filter_map(|engine| engine["buckets"].as_u64()).collect()
}

/// Buckets of one engine.
fn owned(status: &Value, name: &str) -> Option<u64> {
    let mut engines = status["engines"].as_array().into_iter().flatten();
    engines.find(|engine| engine["name"] == name)?["buckets"].as_u64()
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
