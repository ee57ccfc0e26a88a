//! The life of a cluster, step by step: engines come, drain, are upgraded and die, configurations are served or
//! refused, and etcd is lost in part and in whole.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use propylon_e2e::lineage::is_alive;
use propylon_e2e::rig::cluster::{self, BUCKETS, CANARY_TIME, Cluster};
use propylon_e2e::rig::flows::Sample;
use propylon_e2e::rig::{Cut, Flows, Manner, Options, Skip, VIP};
use propylon_e2e::wait::eventually;
use serde_json::Value;

use crate::Arguments;
use crate::board::Board;
use crate::figures::{Figures, Kill, Step, millis, seconds, thousands};

/// An engine that is drained, one that loses etcd, and one that is killed.
const DRAINED: usize = 0;
const CUT_OFF: usize = 1;
const KILLED: usize = 2;
/// An engine that has less than its share for a while, and how much of it.
const REWEIGHED: usize = 0;
const WEIGHT_PERCENT: u64 = 25;
/// Held connections beyond this many take turns over more than a second.
const HELD_PER_SECOND: u32 = 2_000;
const TIMEOUT: Duration = Duration::from_secs(5);
/// A change on a busy machine.
const CHANGE: Duration = Duration::from_secs(90);
const ETCD_MEMBERS: usize = 3;

pub struct Demo<'a> {
    arguments: &'a Arguments,
    board: &'a Board,
    engines: usize,
    /// All steps are of these clients, who end before the engines do.
    flows: Flows,
    manner: Manner,
    cluster: Cluster,
    figures: Figures,
    last: Sample,
}

impl Demo<'_> {
    /// All of it, to its end. What cannot be in time is a panic that says what was waited for.
    pub fn run(arguments: &Arguments, board: &Board) -> Result<Figures, String> {
        let mut demo = Demo::set_up(arguments, board)?;
        demo.step(&format!("add engine {}", demo.engines), Demo::add);
        demo.step("drain an engine", Demo::drain);
        demo.step("take it back", Demo::take_back);
        demo.step("weigh an engine down to a quarter, and back", Demo::reweigh);
        demo.step("apply a bad configuration", Demo::apply_bad);
        demo.step("apply a good one", Demo::apply_good);
        demo.step("upgrade all engines, one after the other", Demo::upgrade);
        demo.step("kill etcd's leader", Demo::kill_leader);
        demo.step(&format!("all of etcd away for {}", seconds(arguments.etcd_away)), Demo::etcd_away);
        demo.step("cut an engine off from etcd, and back", Demo::cut_off);
        demo.step("kill an engine with -9", Demo::kill);
        Ok(demo.end())
    }

    /// Network, etcd, all engines but the last, certificate, configuration, clients.
    fn set_up<'a>(arguments: &'a Arguments, board: &'a Board) -> Result<Demo<'a>, String> {
        let engines = arguments.engines as usize;
        let running = engines - 1;
        let title = format!("Propylon {}: a cluster of {engines} engines on this machine", env!("CARGO_PKG_VERSION"));
        board.line(&format!("{title}; 3 members of etcd, a router with BGP, servers, clients"));
        let mut figures = Figures { engines, timeout: TIMEOUT, held: arguments.held.into(), ..Figures::default() };
        figures.new_per_second = arguments.new;
        let mut before = |name: String, began: Instant| {
            board.line(&format!("  {name:<46}{:>9}", seconds(began.elapsed())));
            figures.before.push((name, began.elapsed()));
        };
        let name = "network, router, etcd, servers".to_owned();
        board.begin(&name);
        let began = Instant::now();
        let options = Options { engines, ..Options::default() };
        let mut cluster = Cluster::new(options).map_err(|Skip(reason)| reason)?;
        before(name, began);
        board.engines(cluster.rig.engines().iter().map(|node| node.admin_socket()).collect());

        let name = format!("start {running} engines; certificate, configuration");
        board.begin(&name);
        let began = Instant::now();
        (0..running).for_each(|engine| cluster.start(engine));
        cluster::put_named(&mut cluster.rig, 0, "vip");
        cluster.await_status("the certificate is there", |status| status["certificates"] == 1);
        let text = cluster::text(&cluster.rig);
        cluster::applied(&mut cluster.rig, 0, &text);
        cluster::all_serve(&mut cluster.rig, 1);
        cluster.await_sharing(running);
        before(name, began);

        let turns = arguments.held.div_ceil(HELD_PER_SECOND);
        let manner = Manner {
            held: arguments.held as usize,
            interval: Duration::from_secs(1) * turns,
            new_per_second: arguments.new,
            timeout: TIMEOUT,
            replaces: true,
            ..Manner::default()
        };
        let name = format!("{} clients connect", thousands(arguments.held.into()));
        board.begin(&name);
        let began = Instant::now();
        let mut flows = cluster.rig.flows(&manner);
        board.clients(flows.watch());
        flows.await_held(arguments.held.into());
        before(name, began);
        let last = flows.part("begin");
        Ok(Demo { arguments, board, engines, flows, manner, cluster, figures, last })
    }

    /// One step, and a round of requests after it.
    fn step(&mut self, name: &str, act: impl FnOnce(&mut Self) -> String) {
        self.board.begin(name);
        let began = Instant::now();
        let note = act(self);
        let took = began.elapsed();
        self.go_on(self.manner.interval);
        let now = self.flows.part(name);
        let before = std::mem::replace(&mut self.last, now.clone());
        let step = Step {
            name: name.to_owned(),
            began: before.at,
            took,
            p99: now.latency_p99,
            ended: now.ended - before.ended,
            requests: now.requests - before.requests,
            note,
        };
        let (broken, failed) = (now.broken - before.broken, now.new_failed - before.new_failed);
        self.board.line(&format!(
            "  {name:<46}{:>9}  {} broken, {} failed, p99 {}{}{}",
            seconds(took),
            thousands(broken),
            thousands(failed),
            millis(now.latency_p99),
            if step.note.is_empty() { "" } else { "; " },
            step.note
        ));
        self.figures.steps.push(step);
    }

    fn end(self) -> Figures {
        let Demo { flows, cluster, mut figures, board, .. } = self;
        board.begin("all of it ends");
        (figures.broken, figures.failed) = (flows.broken(), flows.failed());
        figures.all = flows.stop();
        drop(cluster);
        figures
    }

    /// Lets clients go on for a while.
    fn go_on(&self, time: Duration) {
        let until = self.flows.sample().at + time;
        eventually(CHANGE + time, "clients go on", || (self.flows.sample().at >= until).then_some(()));
    }

    fn add(&mut self) -> String {
        self.cluster.start(self.engines - 1);
        self.cluster.await_sharing(self.engines);
        cluster::all_serve(&mut self.cluster.rig, 1);
        String::new()
    }

    fn order(&mut self, order: &str, engine: usize) {
        let name = self.cluster.rig.engine(engine).name();
        let path = format!("/cluster/{order}?engine={name}");
        let (status, body) = self.cluster.rig.engine(CUT_OFF).ask("POST", &path, "");
        assert_eq!(status, 200, "{order}: {body}");
    }

    fn drain(&mut self) -> String {
        self.order("drain", DRAINED);
        let name = self.cluster.rig.engine(DRAINED).name();
        self.cluster.await_status("the drained one owns nothing", |status| {
            engines(status).iter().any(|engine| engine["name"] == name.as_str() && engine["buckets"] == 0)
        });
        self.cluster.await_routes(self.engines - 1);
        let stay = self.flows.sample().engines.get(&DRAINED).copied().unwrap_or(0);
        format!("{} flows stay on it", thousands(stay))
    }

    fn take_back(&mut self) -> String {
        self.order("undrain", DRAINED);
        self.cluster.await_sharing(self.engines);
        String::new()
    }

    fn reweigh(&mut self) -> String {
        let before = BUCKETS / self.engines as u64;
        let less = self.cluster.weigh(REWEIGHED, WEIGHT_PERCENT);
        self.go_on(self.manner.interval);
        let after = self.cluster.weigh(REWEIGHED, 100);
        self.cluster.await_sharing(self.engines);
        format!("of {BUCKETS} buckets it had about {before}, then {less}, and has {after}")
    }

    fn apply_bad(&mut self) -> String {
        let before = served(&self.cluster.status().unwrap_or_default());
        let good = cluster::text(&self.cluster.rig);
        let bad = good.replace("backend = \"app\"", "backend = \"apii\"");
        let id = cluster::apply(&mut self.cluster.rig, CUT_OFF, &bad);
        let ended = cluster::outcome(&mut self.cluster.rig, DRAINED, &id);
        let after = served(&self.cluster.status().unwrap_or_default());
        self.figures.is_refused = ended["result"] == "refused" && before == after && before.len() == self.engines;
        self.figures.refusal = ended["why"].as_str().unwrap_or_default().to_owned();
        "served by none".to_owned()
    }

    fn apply_good(&mut self) -> String {
        let good = cluster::changed(&self.cluster.rig, 2);
        let began = Instant::now();
        let id = cluster::apply(&mut self.cluster.rig, KILLED, &good);
        // The others follow when the canary's time is over.
        self.cluster.await_status("the canary's time is over", |status| {
            status["candidate"]["phase"] == "rolling" || status["outcome"]["id"] == id.as_str()
        });
        let followed = Instant::now();
        cluster::all_serve(&mut self.cluster.rig, 2);
        self.figures.everywhere = followed.elapsed();
        let checked = followed.duration_since(began).saturating_sub(CANARY_TIME);
        let ended = cluster::outcome(&mut self.cluster.rig, DRAINED, &id);
        assert_eq!(ended["result"], "applied", "{ended}");
        let (checked, everywhere) = (millis(checked), millis(self.figures.everywhere));
        format!("checked by all in {checked}, everywhere {everywhere} after the canary's {}", seconds(CANARY_TIME))
    }

    fn upgrade(&mut self) -> String {
        let before = self.flows.sample().ended;
        for engine in 0..self.engines {
            let node = self.cluster.rig.engine(engine);
            node.upgrade();
            let old: Vec<u32> = node.lineage().earlier().to_vec();
            let what = format!("the old process of {} ends", node.name());
            eventually(CHANGE, &what, || (!old.iter().any(|pid| is_alive(*pid))).then_some(()));
        }
        self.cluster.await_sharing(self.engines);
        let ended = self.flows.sample().ended - before;
        format!("{} held connections were asked to come again", thousands(ended))
    }

    fn kill_leader(&mut self) -> String {
        let etcd = self.cluster.rig.etcd();
        let killed = etcd.leader();
        etcd.kill(killed);
        let began = Instant::now();
        etcd.leader();
        let elected = began.elapsed();
        etcd.restart(killed);
        self.await_etcd();
        format!("another one after {}", seconds(elected))
    }

    fn etcd_away(&mut self) -> String {
        (0..ETCD_MEMBERS).for_each(|member| self.cluster.rig.etcd().kill(member));
        self.go_on(self.arguments.etcd_away);
        (0..ETCD_MEMBERS).for_each(|member| self.cluster.rig.etcd().restart(member));
        let began = Instant::now();
        self.await_etcd();
        format!("all engines are back {} after it", seconds(began.elapsed()))
    }

    /// Waits until all engines have etcd, and each other, again.
    fn await_etcd(&mut self) {
        for engine in 0..self.engines {
            let count = self.engines;
            cluster::await_cluster(&mut self.cluster.rig, engine, "etcd is there", |status| {
                status["connected"] == true && status["leader"].is_string() && engines(status).len() == count
            });
        }
        self.cluster.await_sharing(self.engines);
    }

    fn cut_off(&mut self) -> String {
        self.cluster.rig.isolate(CUT_OFF, Cut::Etcd);
        let others = self.engines - 1;
        cluster::await_cluster(&mut self.cluster.rig, CUT_OFF, "etcd is away", |status| status["connected"] == false);
        cluster::await_engines(&mut self.cluster.rig, DRAINED, others);
        self.go_on(self.manner.interval);
        let kept = self.flows.sample().engines.get(&CUT_OFF).copied().unwrap_or(0);
        self.cluster.rig.rejoin(CUT_OFF);
        self.await_etcd();
        format!("it kept {} flows meanwhile", thousands(kept))
    }

    fn kill(&mut self) -> String {
        let own = self.flows.sample().engines.get(&KILLED).copied().unwrap_or(0);
        let began = Instant::now();
        self.cluster.rig.engine(KILLED).kill();
        let rig = &self.cluster.rig;
        let has_route = || rig.router_routes(IpAddr::V4(VIP)).iter().any(|hop| hop.engine == KILLED);
        eventually(CHANGE, "the route is gone", || (!has_route()).then_some(()));
        let route_gone = began.elapsed();
        let others = self.engines - 1;
        self.cluster.await_status("its buckets are others'", |status| {
            engines(status).len() == others && status["flows"]["buckets"] == BUCKETS
        });
        let rescued = began.elapsed();
        self.figures.kill = Kill { engine: KILLED, own, route_gone, rescued };
        // Whoever asked in vain has given up by then.
        self.go_on(TIMEOUT);
        format!("route gone after {}, buckets with others after {}", millis(route_gone), millis(rescued))
    }
}

fn engines(status: &Value) -> &[Value] {
    status["engines"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The configuration that each engine serves.
fn served(status: &Value) -> Vec<(Value, Value)> {
    engines(status).iter().map(|engine| (engine["serial"].clone(), engine["generation"].clone())).collect()
}
