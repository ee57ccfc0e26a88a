//! Roll-outs: thirty-two engines, of which nobody is forgotten, and a canary that is found by what its clients get.

use std::time::{Duration, Instant};

use propylon_e2e::rig::cluster;
use propylon_e2e::rig::{Manner, Options, Rig, Skip, VIP};
use propylon_e2e::wait::{WAIT_MAX, eventually};

const ENGINES: usize = 32;

#[test]
fn a_configuration_reaches_thirty_two_engines_and_a_bad_one_none() {
    let options = Options { engines: ENGINES, etcd_members: 3, bird: false, ..Options::default() };
    let mut rig = match Rig::new(options) {
        Ok(rig) => rig,
        Err(Skip(reason)) => return eprintln!("skipped: {reason}"),
    };
    cluster::start(&mut rig, "");
    cluster::put_certificate(&mut rig);
    let good = cluster::text(&rig);
    let began = Instant::now();
    let id = cluster::apply(&mut rig, 7, &good);
    let ended = cluster::outcome(&mut rig, 9, &id);
    let took = began.elapsed();
    assert_eq!(ended["result"], "applied", "{ended}");
    cluster::all_serve(&mut rig, 1);
    // The canary has a second of it.
    let after_canary = took.saturating_sub(Duration::from_secs(1));
    eprintln!("checked, tried for 1 s and served by {ENGINES} engines after {took:?}; {after_canary:?} without that");

    let bad = good.replace("backend = \"app\"", "backend = \"apii\"");
    let id = cluster::apply(&mut rig, 0, &bad);
    let ended = cluster::outcome(&mut rig, 31, &id);
    assert_eq!(ended["result"], "refused", "{ended}");
    cluster::all_serve(&mut rig, 1);
}

#[test]
fn a_canary_whose_requests_fail_ends_the_change_and_goes_back() {
    let options = Options { engines: 3, ..Options::default() };
    let Some(mut rig) = cluster::rig(options) else { return };
    let config = rig.config();
    for engine in 0..3 {
        let section = cluster::section(&mut rig, engine, "canary = { time = \"30s\" }\n");
        let socket = rig.bird(engine).socket().to_owned();
        let announce = format!("[announce]\nbird = \"{}\"\nprotocols = [\"vip\"]\n", socket.display());
        rig.engine(engine).start("", &format!("{section}{announce}{config}"));
    }
    eventually(WAIT_MAX, "all three announce", || (rig.router_routes(VIP.into()).len() == 3).then_some(()));
    cluster::put_certificate(&mut rig);
    let flows = rig.flows(&Manner { held: 30, interval: Duration::from_millis(50), ..Manner::default() });
    flows.await_held(30);
    // Each engine takes it, and nothing listens at its server's port.
    let server = rig.servers()[0].to_string();
    let mut bad = cluster::text(&rig);
    for server in rig.servers() {
        bad = bad.replace(&server.to_string(), "10.80.0.2:9");
    }
    assert!(!bad.contains(&server), "{bad}");
    let id = cluster::apply(&mut rig, 0, &bad);
    let ended = cluster::outcome(&mut rig, 0, &id);
    assert_eq!(ended["result"], "refused", "{ended}");
    let why = ended["why"].as_str().unwrap();
    assert!(why.contains("has more faults with it than"), "{why}");
    cluster::await_cluster(&mut rig, 0, "nobody serves it", |status| {
        status["engines"]
            .as_array()
            .is_some_and(|engines| engines.iter().all(|engine| engine["serial"] == 0 && engine["candidate"].is_null()))
    });
    drop(flows);
}
