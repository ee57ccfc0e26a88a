//! The flow table with real engines, BIRD and etcd: engines come, drain, die and are upgraded under held connections,
//! and only those of a dead one break.

use std::time::{Duration, Instant};

use propylon_e2e::rig::cluster::Cluster;
use propylon_e2e::rig::{Cut, Flows, Manner, Options, Skip, VIP};
use propylon_e2e::wait::{WAIT_MAX, eventually};
use serde_json::Value;

/// So many engines of which the first `running` run and share the table.
fn sharing(options: Options, running: usize) -> Option<Cluster> {
    let mut cluster = match Cluster::new(options) {
        Ok(cluster) => cluster,
        Err(Skip(reason)) => {
            eprintln!("skipped: {reason}");
            return None;
        }
    };
    (0..running).for_each(|engine| cluster.start(engine));
    cluster.await_sharing(running);
    Some(cluster)
}

/// Clients that have time: what is looked for is a connection that breaks, and not one that waits for a processor.
fn flows(cluster: &Cluster, held: usize) -> Flows {
    let (interval, timeout) = (Duration::from_millis(500), Duration::from_secs(30));
    cluster.rig.flows(&Manner { held, interval, timeout, new_per_second: 30, ..Manner::default() })
}

/// Clients that hold connections, and open no others. Whoever is refused because many come at once comes again.
fn held(cluster: &Cluster, held: usize) -> Flows {
    cluster.rig.flows(&Manner { held, interval: Duration::from_secs(1), ..Manner::default() })
}

#[test]
fn engines_come_and_drain_without_a_broken_flow() {
    let Some(mut cluster) = sharing(Options::default(), 3) else { return };
    let flows = flows(&cluster, 400);
    flows.await_held(400);
    cluster.start(3);
    cluster.await_sharing(4);
    let joined = flows.sample();
    assert_eq!(
        (joined.broken, joined.new_failed),
        (0, 0),
        "{:?} {:?}\n{}",
        flows.broken(),
        flows.failed(),
        cluster.logs()
    );

    // Drained by a request, and back again.
    let name = cluster.rig.engine(0).name();
    let (status, body) = cluster.rig.engine(1).ask("POST", &format!("/cluster/drain?engine={name}"), "");
    assert_eq!(status, 200, "{body}");
    cluster.await_status("the drained one owns nothing", |status| {
        status["engines"]
            .as_array()
            .is_some_and(|all| all.iter().any(|engine| engine["name"] == name.as_str() && engine["buckets"] == 0))
    });
    let rig = &cluster.rig;
    eventually(WAIT_MAX, "three paths", || (rig.router_routes(VIP.into()).len() == 3).then_some(()));
    let drained = flows.sample_with("new connections", |sample| sample.new_ok > joined.new_ok + 50);
    assert_eq!((drained.broken, drained.new_failed), (0, 0), "{:?} {:?}", flows.broken(), flows.failed());
    let (status, _) = cluster.rig.engine(1).ask("POST", &format!("/cluster/undrain?engine={name}"), "");
    assert_eq!(status, 200);
    cluster.await_sharing(4);
    let after = flows.stop();
    assert_eq!((after.broken, after.new_failed), (0, 0), "{after:?}");
}

#[test]
fn an_engine_that_is_killed_takes_only_its_own_flows_with_it() {
    let Some(mut cluster) = sharing(Options::default(), 4) else { return };
    let mut flows = flows(&cluster, 400);
    let before = flows.await_held(400);
    let own = before.engines[&2];
    let killed = flows.mark("killed");
    let at = Instant::now();
    cluster.rig.engine(2).kill();
    let rig = &cluster.rig;
    eventually(WAIT_MAX, "the route is gone", || {
        rig.router_routes(VIP.into()).iter().all(|hop| hop.engine != 2).then_some(())
    });
    let gone = at.elapsed();
    cluster.await_status("its buckets are others'", |status| {
        status["engines"].as_array().is_some_and(|all| all.len() == 3)
            && status["flows"]["buckets"].as_u64() == Some(1024)
    });
    let rescued = at.elapsed();
    let sample = flows.sample();
    flows.sample_with("new connections are answered", |now| now.new_ok >= sample.new_ok + 100);
    let after = flows.sample();
    eprintln!(
        "route gone after {gone:?}, buckets after {rescued:?}; {own} flows were its own, {} broke; {} new failed of {}",
        after.broken, after.new_failed, after.new_ok
    );
    let others: Vec<_> = flows.broken().into_iter().filter(|broken| broken.engine != Some(2)).collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(flows.broken().iter().all(|broken| broken.at >= killed));
}

#[test]
fn a_rolling_upgrade_of_all_engines_breaks_no_flow() {
    let Some(mut cluster) = sharing(Options { engines: 2, ..Options::default() }, 2) else { return };
    let flows = flows(&cluster, 200);
    flows.await_held(200);
    (0..2).for_each(|engine| cluster.rig.engine(engine).upgrade());
    let upgraded = flows.sample();
    flows.sample_with("new connections are answered", |now| now.new_ok >= upgraded.new_ok + 100);
    cluster.await_sharing(2);
    let (broken, failed) = (flows.broken(), flows.failed());
    let after = flows.stop();
    assert_eq!((after.broken, after.new_failed), (0, 0), "{after:?} {broken:?} {failed:?}");
}

#[test]
fn an_engine_that_is_cut_off_from_etcd_keeps_its_flows_before_and_after() {
    let Some(mut cluster) = sharing(Options::default(), 4) else { return };
    let flows = flows(&cluster, 400);
    let before = flows.await_held(400);
    assert!(before.engines[&3] > 0, "{before:?}");
    cluster.rig.isolate(3, Cut::Etcd);
    cluster.await_status("its buckets are others'", |status| {
        status["engines"].as_array().is_some_and(|all| all.len() == 3)
            && status["flows"]["buckets"].as_u64() == Some(1024)
    });
    let cut = flows.sample();
    let during = flows.sample_with("new connections", |sample| sample.new_ok >= cut.new_ok + 150);
    assert_eq!((during.broken, during.new_failed), (0, 0), "{:?} {:?}", flows.broken(), flows.failed());
    assert!(during.engines[&3] > 0, "it serves those that it has: {during:?}");
    cluster.rig.rejoin(3);
    cluster.await_sharing(4);
    let back = flows.sample();
    flows.sample_with("new connections", |sample| sample.new_ok >= back.new_ok + 50);
    let (broken, failed) = (flows.broken(), flows.failed());
    let after = flows.stop();
    assert_eq!((after.broken, after.new_failed), (0, 0), "{after:?} {broken:?} {failed:?}");
}

#[test]
fn an_engine_gets_the_share_of_new_connections_that_its_weight_says_and_no_flow_breaks_when_it_changes() {
    let Some(mut cluster) = sharing(Options { engines: 3, ..Options::default() }, 3) else { return };
    let (status, body) = cluster.rig.engine(1).ask("POST", "/cluster/weight?engine=nobody&percent=25", "");
    assert!(status == 404 && body.to_string().contains(&cluster.rig.engine(0).name()), "{status} {body}");
    let old = held(&cluster, 200);
    let before = old.await_held(200);
    assert!(before.engines[&0] > 0, "{before:?}");

    // A ninth is a quarter of what each of two others has; an even share would be a third.
    cluster.weigh(0, 25);
    let newcomers = held(&cluster, 200);
    let opened = newcomers.await_held(200).engines;
    assert!((4..=45).contains(&opened[&0]), "{opened:?}");
    cluster.weigh(0, 100);
    cluster.await_sharing(3);

    // Nothing new, and yet it is ready, has a route and keeps what it has.
    cluster.weigh(0, 0);
    let late = held(&cluster, 100);
    let opened = late.await_held(100).engines;
    assert_eq!(opened.get(&0), None, "{opened:?}");
    cluster.await_routes(3);
    assert!(old.sample().engines[&0] > 0, "its flows stay");
    for flows in [old, newcomers, late] {
        let (broken, failed) = (flows.broken(), flows.failed());
        let all = flows.stop();
        assert_eq!(all.broken, 0, "{all:?} {broken:?} {failed:?}\n{}", cluster.logs());
    }

    // Nothing of it is in the engine that it is about.
    let name = cluster.rig.engine(0).name();
    cluster.rig.engine(0).kill();
    cluster.await_status("it is gone", |status| status["engines"].as_array().is_some_and(|all| all.len() == 2));
    cluster.start(0);
    cluster.await_status("it is ready again, with its weight", |status| {
        let is_so = |engine: &Value| {
            engine["name"] == name.as_str()
                && engine["ready"] == true
                && engine["flows_generation"] == status["flows"]["generation"]
                && engine["weight_percent"] == 0
                && engine["buckets"] == 0
        };
        status["engines"].as_array().is_some_and(|all| all.iter().any(is_so))
    });
}
