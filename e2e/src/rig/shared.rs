//! Engines that share addresses of either family, with the second hop in their kernels: announced by BIRD, or on one
//! Ethernet with real keepalived.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::cluster::{BUCKETS, Member};
use super::hops::{self, Hops};
use super::network::{UPLINK, engine, engine_address, engine_address6};
use super::programs::{path, system};
use super::{Options, Rig, Skip, VIP, VIP6};
use crate::binaries;
use crate::program::run;
use crate::wait::{WAIT_MAX, eventually};

/// Elections of keepalived on a busy machine.
const CHANGE: Duration = Duration::from_secs(90);
/// Clients that ask once a second are told to leave by an answer, and none is cut.
const PROCESS: &str = "drain_timeout = \"10s\"\n";

/// A rig with etcd, whose engines have the VIP of IPv4, and that of IPv6 where the rig has it: packets go from engine
/// to engine by IPv6 then.
pub struct Shared {
    // Processes end before their namespaces.
    keepers: Vec<Option<Ended>>,
    hops: Hops,
    pub rig: Rig,
}

/// A process that is ended when this is dropped.
struct Ended(Child);

impl Shared {
    /// No engine runs yet.
    ///
    /// # Errors
    /// When there can be no rig here.
    #[track_caller]
    pub fn new(options: Options) -> Result<Shared, Skip> {
        if options.segment && path("keepalived").is_none() {
            return Err(Skip("keepalived is not installed: scripts/setup.sh test".to_owned()));
        }
        let count = options.engines;
        let bird = options.bird && !options.segment;
        let rig = Rig::new(Options { etcd_members: 3, bird, ..options })?;
        Ok(Shared { keepers: (0..count).map(|_| None).collect(), hops: Hops::new(count), rig })
    }

    pub fn vips(&self) -> Vec<IpAddr> {
        let vip6 = self.rig.options().ipv6.then_some(VIP6.into());
        std::iter::once(VIP.into()).chain(vip6).collect()
    }

    /// Starts an engine and its second hop; `more` is further configuration.
    #[track_caller]
    pub fn start(&mut self, engine: usize, more: &str) {
        let member = Member::of(&mut self.rig, engine);
        let vips: Vec<String> = self.vips().iter().map(|vip| format!("\"{vip}\"")).collect();
        let flows = format!("vips = [{}]\nflows = {{}}\ndrain_limit = \"20s\"\n", vips.join(", "));
        let mut section = member.section(&mut self.rig, &flows);
        if self.rig.options().ipv6 {
            let own = |address: IpAddr| format!("address = \"{address}\"\n");
            section = section.replace(&own(engine_address(engine).into()), &own(engine_address6(engine).into()));
        }
        fs::create_dir_all(&member.runtime).expect("a folder");
        self.hops.begin(self.rig.engine(engine));
        let config = format!("{}{section}{}{more}", self.announce(engine), self.rig.config());
        let node = self.rig.engine(engine);
        node.start(PROCESS, &config);
        // The file's place outlives this engine, for those who ask how it is.
        fs::copy(node.lineage().config(), node.folder().join("propylon.toml")).expect("a copy");
    }

    /// The section by which an engine speaks to its BIRD, if it has one.
    fn announce(&self, engine: usize) -> String {
        if !self.rig.options().bird {
            return String::new();
        }
        let socket = self.rig.bird(engine).socket().display().to_string();
        let protocols = if self.rig.options().ipv6 { "\"vip\", \"vip6\"" } else { "\"vip\"" };
        format!("[announce]\nbird = \"{socket}\"\nprotocols = [{protocols}]\nhold_up = \"1s\"\n")
    }

    /// Starts an engine's keepalived with what `propylon cluster keepalived` prints there. It asks the engine who the
    /// others are.
    #[track_caller]
    pub fn start_keepalived(&mut self, engine: usize) {
        let node = self.rig.engine(engine);
        let propylon = binaries::propylon();
        let mut command = node.command(&propylon);
        // The check's program is looked up as an operator's shell does.
        let folder = propylon.parent().expect("a folder");
        command.env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", folder.display()));
        command.args(["cluster", "keepalived", "--interface", UPLINK, "-c"]).arg(node.folder().join("propylon.toml"));
        let text = run(command, b"", WAIT_MAX).ok().text();
        let file = |name: &str| node.folder().join(name);
        fs::write(file("keepalived.conf"), text).expect("a file");
        let log = fs::File::create(file("keepalived.log")).expect("a log");
        let mut command = node.command(system("keepalived").get_program());
        command.args(["--dont-fork", "--vrrp", "--log-console", "-f"]).arg(file("keepalived.conf"));
        command.arg("-p").arg(file("keepalived.pid")).arg("-r").arg(file("vrrp.pid"));
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a handle")).stderr(log);
        self.keepers[engine] = Some(Ended(command.spawn().expect("keepalived starts")));
    }

    /// Engines that have the VIP on their Ethernet.
    #[track_caller]
    pub fn holders(&mut self) -> Vec<usize> {
        let has = |node: &&mut super::Node| {
            let mut command = node.command(system("ip").get_program());
            command.args(["-4", "-o", "address", "show", "dev", UPLINK, "to", &format!("{VIP}/32")]);
            !run(command, b"", WAIT_MAX).ok().stdout.is_empty()
        };
        self.rig.engines().iter_mut().filter(has).map(|node| node.number()).collect()
    }

    /// Waits until one engine has the VIP on its Ethernet, one that fits, and names it.
    #[track_caller]
    pub fn await_holder(&mut self, what: &str, fits: impl Fn(usize) -> bool) -> usize {
        let until = Instant::now() + CHANGE;
        loop {
            match self.holders()[..] {
                [one] if fits(one) => return one,
                _ => assert!(Instant::now() < until, "{what}: not within {CHANGE:?}\n{}", self.logs()),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until some engine sees the cluster so.
    #[track_caller]
    pub fn await_status(&mut self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        self.hops.await_status(&mut self.rig, what, is_so, logs)
    }

    /// Waits until so many engines and no other have buckets of the table, and the router has its paths to them. Those
    /// that came last have their first ones; a fair share takes seconds more.
    #[track_caller]
    pub fn await_sharing(&mut self, engines: usize) {
        let fair = BUCKETS / engines as u64;
        self.await_status(&format!("{engines} engines share the table"), |status| {
            let shares: Vec<u64> = buckets(status).into_values().filter(|share| *share > 0).collect();
            shares.len() == engines && shares.iter().all(|share| *share >= fair / 8)
        });
        if self.rig.options().bird {
            self.await_paths(engines);
        }
    }

    /// Waits until the router has so many paths to each address.
    #[track_caller]
    pub fn await_paths(&self, engines: usize) {
        for vip in self.vips() {
            let count = || self.rig.router_routes(vip).len();
            eventually(WAIT_MAX, &format!("{engines} paths to {vip}"), || (count() == engines).then_some(()));
        }
    }

    /// Has an engine drain, or no longer, by a request to another one.
    #[track_caller]
    pub fn drain(&mut self, engine: usize, drains: bool) {
        let order = if drains { "drain" } else { "undrain" };
        let name = self.rig.engine(engine).name();
        let other = usize::from(engine == 0);
        let (status, body) = self.rig.engine(other).ask("POST", &format!("/cluster/{order}?engine={name}"), "");
        assert_eq!(status, 200, "{body}");
        if drains {
            self.await_status(&format!("{name} owns nothing"), |status| buckets(status).get(&name) == Some(&0));
        }
    }

    /// Waits until the table knows nothing of an engine that died.
    #[track_caller]
    pub fn await_rescued(&mut self, dead: usize) {
        let name = engine(dead);
        self.await_status(&format!("{name}'s buckets are others'"), |status| {
            let shares = buckets(status);
            !shares.contains_key(&name) && shares.values().sum::<u64>() == BUCKETS
        });
    }

    /// A count of packets at an engine's second hop, as of its last status.
    #[track_caller]
    pub fn packets(&mut self, engine: usize, name: &str) -> u64 {
        let file = self.rig.engine(engine).folder().join("runtime/flows.status");
        let text = fs::read_to_string(file).expect("a status");
        let status: Value = serde_json::from_str(&text).expect("JSON");
        status["counters"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {status:#}"))
    }

    /// Last words of all second hops and keepaliveds.
    pub fn logs(&mut self) -> String {
        logs(&mut self.rig)
    }
}

fn logs(rig: &mut Rig) -> String {
    let keepalived = |node: &super::Node| {
        let read = |name: &str| fs::read_to_string(node.folder().join(name)).unwrap_or_default();
        read("keepalived.conf") + &read("keepalived.log")
    };
    rig.engines().iter().map(|node| hops::log(node) + &keepalived(node)).collect()
}

/// Shares of the table by engine.
pub fn buckets(status: &Value) -> BTreeMap<String, u64> {
    let engines = status["engines"].as_array().into_iter().flatten();
    engines.filter_map(|engine| Some((engine["name"].as_str()?.to_owned(), engine["buckets"].as_u64()?))).collect()
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
