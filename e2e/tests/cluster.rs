//! Engines that share an address, keys and a configuration by etcd: how a change reaches all of them or none, and what
//! etcd's troubles do to traffic, which is nothing.

use std::path::PathBuf;
use std::time::Instant;

use propylon_e2e::rig::cluster::{
    all_serve, apply, await_cluster, cluster, outcome, put_certificate, rig, section, start, text,
};
use propylon_e2e::rig::{Manner, Node, Options, Rig, VIP};
use propylon_e2e::wait::{WAIT_MAX, eventually};
use serde_json::Value;

/// Each engine's count of configurations that it has served.
fn generations_of(rig: &mut Rig) -> Vec<Value> {
    let of = |node: &mut Node| node.ask("GET", "/snapshot", "").1["configuration"]["generation"].clone();
    rig.engines().iter_mut().map(of).collect()
}

#[test]
fn a_change_is_checked_by_all_tried_by_one_and_then_served_by_all_or_by_none() {
    let Some(mut rig) = rig(Options { bird: false, ..Options::default() }) else { return };
    start(&mut rig, "");
    put_certificate(&mut rig);
    let good = text(&rig);
    let id = apply(&mut rig, 1, &good);
    let ended = outcome(&mut rig, 2, &id);
    assert_eq!(ended["result"], "applied", "{ended}");
    all_serve(&mut rig, 1);

    // A mistake is found by every engine, told with its place, and served by none.
    let generations = generations_of(&mut rig);
    let bad = good.replace("backend = \"app\"", "backend = \"apii\"");
    let id = apply(&mut rig, 0, &bad);
    let ended = outcome(&mut rig, 3, &id);
    assert_eq!(ended["result"], "refused", "{ended}");
    let why = ended["why"].as_str().unwrap();
    assert!(why.contains("cluster.toml:") && why.contains("no backend named \"apii\""), "{why}");
    assert_eq!(generations_of(&mut rig), generations);
    all_serve(&mut rig, 1);

    // A second one while the first is on its way is told to wait; the way back is one request.
    let second = format!(
        "{good}[backend.other]\nservers = [\"10.80.0.2:8000\"]\n[[route]]\npath = \"/o\"\nbackend = \"other\"\n"
    );
    let id = apply(&mut rig, 2, &second);
    let (status, body) = rig.engine(1).try_ask("POST", "/cluster/apply", "application/toml", &good).unwrap();
    assert_eq!(status, 409, "{body}");
    assert_eq!(outcome(&mut rig, 1, &id)["result"], "applied");
    all_serve(&mut rig, 2);
    let (status, body) = rig.engine(3).ask("POST", "/cluster/rollback", "");
    assert_eq!(status, 202, "{body}");
    let id = body["id"].as_str().unwrap().to_owned();
    assert_eq!(outcome(&mut rig, 0, &id)["result"], "applied");
    all_serve(&mut rig, 3);
    let (_, history) = rig.engine(0).ask("GET", "/cluster/history", "");
    let serials: Vec<u64> =
        history["history"].as_array().unwrap().iter().map(|entry| entry["serial"].as_u64().unwrap()).collect();
    assert_eq!(serials, [3, 2, 1]);
}

#[test]
fn nobody_who_reads_etcd_learns_a_private_key_and_sessions_resume_at_every_engine() {
    let Some(mut rig) = rig(Options::default()) else { return };
    let announce = |socket: PathBuf| format!("[announce]\nbird = \"{}\"\nprotocols = [\"vip\"]\n", socket.display());
    let config = rig.config();
    for engine in 0..4 {
        let section = section(&mut rig, engine, "");
        let announce = announce(rig.bird(engine).socket().to_owned());
        rig.engine(engine).start("", &format!("{section}{announce}{config}"));
    }
    put_certificate(&mut rig);
    let good = text(&rig);
    let id = apply(&mut rig, 0, &good);
    assert_eq!(outcome(&mut rig, 0, &id)["result"], "applied");
    all_serve(&mut rig, 1);
    for key in rig.etcd().keys("propylon/edge/") {
        let value = rig.etcd().value(&key).unwrap_or_default();
        assert!(!value.contains("PRIVATE KEY"), "{key}");
    }
    eventually(WAIT_MAX, "all four announce", || (rig.router_routes(VIP.into()).len() == 4).then_some(()));
    let manner = Manner { held: 0, new_per_second: 100, resumes: true, ..Manner::default() };
    let flows = rig.flows(&manner);
    flows.sample_with("connections", |sample| sample.new_ok >= 400);
    let summary = flows.stop();
    assert!(summary.new_failed == 0, "{summary:?}");
    let (resumed, full) = (summary.resumed as f64, summary.full as f64);
    assert!(resumed / (resumed + full) > 0.9, "{summary:?}");
}

#[test]
fn etcd_that_is_gone_costs_nobody_a_request_and_an_engine_starts_without_it() {
    let Some(mut rig) = rig(Options { engines: 2, bird: false, ..Options::default() }) else { return };
    start(&mut rig, "");
    put_certificate(&mut rig);
    let good = text(&rig);
    let id = apply(&mut rig, 0, &good);
    assert_eq!(outcome(&mut rig, 0, &id)["result"], "applied");
    all_serve(&mut rig, 1);
    (0..3).for_each(|member| rig.etcd().kill(member));
    await_cluster(&mut rig, 0, "etcd is away", |status| status["connected"] == false);
    // What was last is on disk, sealed: it is served after a restart, certificate and all.
    rig.engine(0).kill();
    let began = Instant::now();
    let own = section(&mut rig, 0, "");
    let config = rig.config();
    rig.engine(0).start("", &format!("{own}{config}"));
    let status = cluster(&mut rig, 0);
    assert_eq!(status["serial"], 1, "{status} after {:?}", began.elapsed());
    let (status, _) = rig.engine(0).try_ask("POST", "/cluster/apply", "application/toml", &good).unwrap();
    assert_eq!(status, 503);
    (0..3).for_each(|member| rig.etcd().restart(member));
    await_cluster(&mut rig, 0, "etcd is back", |status| {
        status["connected"] == true && status["engines"].as_array().is_some_and(|engines| engines.len() == 2)
    });
}
