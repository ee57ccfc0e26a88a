//! The flow table with real engines, BIRD and etcd: engines come, drain, die and are upgraded under held connections,
//! and only those of a dead one break.

use std::time::{Duration, Instant};

use propylon_e2e::rig::cluster::Cluster;
use propylon_e2e::rig::{Cut, Flows, Manner, Options, Skip, VIP};
use propylon_e2e::wait::{WAIT_MAX, eventually};

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

fn flows(cluster: &Cluster, held: usize) -> Flows {
    let manner = Manner { held, interval: Duration::from_millis(200), new_per_second: 50, ..Manner::default() };
    cluster.rig.flows(&manner)
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
