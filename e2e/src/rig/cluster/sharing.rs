//! Engines that share the VIP: each announces it by its BIRD, and has the second hop in its kernel, so that a flow
//! reaches its engine whatever path the router takes.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use super::Member;
use crate::rig::hops::{self, Hops};
use crate::rig::network::VIP;
use crate::rig::{Options, Rig, Skip};
use crate::wait::{WAIT_MAX, eventually};

/// A canary serves a configuration for so long before the others do.
pub const CANARY_TIME: Duration = Duration::from_secs(1);
/// Buckets of the flow table.
pub const BUCKETS: u64 = 1024;
/// Clients that ask once a second are told to leave by an answer, and none is cut.
const PROCESS: &str = "drain_timeout = \"10s\"\n";

/// A rig whose engines have the second hop in their kernels.
pub struct Cluster {
    hops: Hops,
    pub rig: Rig,
}

impl Cluster {
    /// A rig with three members of etcd, in which no engine runs.
    ///
    /// # Errors
    /// When there can be no rig here.
    #[track_caller]
    pub fn new(options: Options) -> Result<Cluster, Skip> {
        let hops = Hops::new(options.engines);
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
        self.hops.begin(self.rig.engine(engine));
        let config = format!("{announce}{section}{}", self.rig.config());
        self.rig.engine(engine).start(PROCESS, &config);
    }

    /// SIGKILL for the process of an engine's second hop, whose program stays in the kernel.
    #[track_caller]
    pub fn kill_hop(&mut self, engine: usize) {
        self.hops.kill(engine);
    }

    /// Starts that process again.
    #[track_caller]
    pub fn restart_hop(&mut self, engine: usize) {
        self.hops.start(self.rig.engine(engine));
    }

    /// The cluster as some engine that runs sees it.
    pub fn status(&mut self) -> Option<Value> {
        hops::status(&mut self.rig)
    }

    /// Waits until some engine sees the cluster so.
    #[track_caller]
    pub fn await_status(&mut self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        self.hops.await_status(&mut self.rig, what, is_so, logs)
    }

    /// Logs and last words of all second hops.
    pub fn logs(&mut self) -> String {
        logs(&mut self.rig)
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

fn logs(rig: &mut Rig) -> String {
    rig.engines().iter().map(hops::log).collect()
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
