//! Servers of a backend whose list is written in another order.

use std::rc::Rc;

use propylon_config::Source;
use propylon_metrics::Store;
use propylon_observe::access_log::Writer;
use propylon_observe::telemetry::Telemetry;
use propylon_tls::{Deferral, Parking, ParkingLimits};

use super::*;
use crate::overload::Shared;
use crate::services::Services;
use crate::upstream::backend::Upstreams;

fn config(servers: &str, lines: &str) -> Config {
    let address = |name: char| format!("{{ address = \"127.0.0.1:{}\", max_connections = 1 }}", name as u32);
    let servers: Vec<String> = servers.chars().map(address).collect();
    let text = format!(
        "[process]\nworkers = 1\n[listener.web]\nbind = \"127.0.0.1:0\"\n[backend.app]\nservers = [{}]\n{lines}\n\
         [[route]]\nbackend = \"app\"\n",
        servers.join(", ")
    );
    let source = Source { name: "a.toml".into(), base: "".into(), text };
    propylon_config::parse(&source).unwrap_or_else(|problems| panic!("{problems:?}")).0
}

fn first(servers: &str, lines: &str) -> Snapshot {
    let built = Snapshot::compile(config(servers, lines), Arc::new(Tickets::new()), &Answers::new(), Severity::Error);
    built.unwrap_or_else(|findings| panic!("{findings:?}")).0
}

fn next(earlier: &Snapshot, config: Config) -> Snapshot {
    let built = earlier.succeeded_by(config, Files::AsTheyWere, &Answers::new());
    built.unwrap_or_else(|findings| panic!("{findings:?}")).snapshot
}

fn found(later: &Snapshot, earlier: &Snapshot) -> Vec<Option<usize>> {
    let found = predecessors(&later.servers[0], &earlier.servers[0]);
    (0..found.servers()).map(|server| found.of(server)).collect()
}

#[test]
fn a_server_is_known_by_its_address_wherever_it_is_listed() {
    let one = first("abc", "");
    let two = next(&one, config("cda", ""));
    assert_eq!(found(&two, &one), [Some(2), None, Some(0)]);
    assert_ne!(two.versions, one.versions);
    let twice = first("aab", "");
    let turned = next(&twice, config("bcaa", ""));
    assert_eq!(found(&turned, &twice), [Some(2), None, Some(0), Some(1)]);
    assert_eq!(found(&next(&turned, config("a", "")), &turned), [Some(2)]);
}

#[test]
fn a_server_that_was_gone_and_comes_back_is_another() {
    let one = first("aab", "");
    let two = next(&one, config("a", ""));
    assert_eq!(found(&two, &one), [Some(0)]);
    let three = next(&two, config("baa", ""));
    assert_eq!(found(&three, &two), [None, Some(0), None]);
    assert_eq!(found(&three, &one), [None, Some(0), None], "nothing is known of the one that came back");
}

#[test]
fn limits_and_loads_that_cores_share_are_those_of_the_same_servers() {
    let one = first("abc", "");
    let balancer = |snapshot: &Snapshot| snapshot.balance[0].balancer(&snapshot.config.backends[0], 0);
    let mut before = balancer(&one);
    before.began(2);
    let limiter = |snapshot: &Snapshot| snapshot.limiters[0].clone().expect("limits");
    assert!(limiter(&one).try_take(2) && limiter(&one).try_take(1));
    let two = next(&one, config("cda", ""));
    two.commit(&one);
    assert_eq!([0, 1, 2].map(|server| two.balance[0].loads.in_flight(server)), [1, 0, 0]);
    assert_eq!([0, 1, 2].map(|server| limiter(&two).open(server)), [1, 0, 0]);
    before.ended(2);
    limiter(&one).release(2, 0);
    assert_eq!((two.balance[0].loads.in_flight(0), limiter(&two).has_room(0)), (0, true));
    let three = next(&two, config("cda", ""));
    assert!(Arc::ptr_eq(&limiter(&three), &limiter(&two)), "nothing has changed");
}

#[test]
fn a_core_knows_its_servers_in_whatever_order() {
    let (one, parking) = (first("abc", "slow_start = \"10s\""), Parking::new(ParkingLimits::default()));
    let (telemetry, store) = Telemetry::new(&one.config, 1);
    let log = Writer::open(&one.config.log).unwrap().start(|_, error| error.to_string()).unwrap().log_buffer();
    let (limits, shared) = ((one.config.process.handshakes, false), (Arc::new(Shared::new(None)), 1));
    let column = Store::column(&store, 0);
    let services = Services::new(limits, Rc::clone(&parking), column, Arc::new(telemetry), log, shared);
    let telemetry = &services.telemetry;
    let publication = |snapshot| Publication::new(Arc::new(snapshot), telemetry);
    let two = next(&one, config("cda", "slow_start = \"10s\""));
    telemetry.reload(&store, &two.config);
    let (one, two) = (publication(one), publication(two));
    let upstreams = Upstreams::new(&services);
    let before = CoreSnapshot::new(&one, 0, Deferral::default(), &parking, &upstreams);
    let state = &before.backends[0].state;
    state.suspects.borrow_mut().failed(2, 0);
    let now = before.succeeded_by(&two, 0, 100);
    let next = &now.backends[0].state;
    let suspects = next.suspects.borrow();
    assert_eq!([0, 1, 2].map(|server| suspects.is_passed_over(server, 100)), [true, false, false]);
    assert!(before.backends[0].servers[2] == now.backends[0].servers[0] && next.is_newer(state));
    // A server that is new starts slowly, and none of the others does.
    let draw = |random| propylon_policy::balance::Draw { key: None, random, now: 100 };
    let picked: Vec<_> = (0..6).map(|random| next.balancer.borrow_mut().pick(|_| true, draw(random))).collect();
    assert!(!picked.contains(&Some(1)) && picked.contains(&Some(0)) && picked.contains(&Some(2)), "{picked:?}");
}
