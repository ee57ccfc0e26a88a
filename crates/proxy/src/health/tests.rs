//! The board by itself: what it tells the cores, and what goes on when another configuration follows.

use std::path::PathBuf;

use propylon_config::Source;
use propylon_tls::Tickets;
use tokio::runtime::{Builder, LocalOptions};

use super::*;

/// Port 9 of nobody, and probes that come too seldom to matter.
fn snapshot(backend: &str) -> Snapshot {
    let text = format!("[listener.a]\nbind = \"127.0.0.1:1\"\n[[route]]\nbackend = \"b\"\n[backend.b]\n{backend}\n");
    let source = Source { name: "a.toml".into(), base: PathBuf::new(), text: text.clone() };
    let (config, _) = propylon_config::parse(&source)
        .unwrap_or_else(|problems| panic!("{}", propylon_config::render(&problems, &text)));
    let (snapshot, _) = Snapshot::compile(config, Arc::new(Tickets::new())).expect("nothing to load");
    snapshot
}

fn with_health(first: Snapshot, story: impl FnOnce(&Health, &Arc<Snapshot>, &Arc<Telemetry>)) {
    let first = Arc::new(first);
    let (telemetry, store) = Telemetry::new(&first.config, 1);
    let telemetry = Arc::new(telemetry);
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
    runtime.block_on(async { story(&Health::start(&first, &store, &telemetry), &first, &telemetry) });
}

fn open(snapshot: &Snapshot) -> Vec<bool> {
    snapshot.servers[0].iter().map(|server| server.notice.is_open()).collect()
}

#[test]
fn a_server_that_is_drained_is_closed_to_the_cores_until_it_is_not() {
    with_health(snapshot("servers = [\"127.0.0.1:9\", \"127.0.0.2:9\"]"), |health, snapshot, _| {
        assert_eq!(open(snapshot), [true, true]);
        health.set_drain(0, 1, true);
        assert_eq!(open(snapshot), [true, false]);
        assert_eq!(health.state(0, 1).verdict, Verdict::Draining);
        health.set_drain(0, 1, false);
        assert_eq!(open(snapshot), [true, true]);
        assert_eq!(snapshot.servers[0][1].notice.reopened(), 1);
    });
}

#[test]
fn a_server_that_starts_down_is_closed_from_the_first() {
    let backend = "servers = [\"127.0.0.1:9\"]\nhealth = { start = \"down\", interval = \"1h\" }";
    with_health(snapshot(backend), |health, snapshot, _| {
        assert_eq!(open(snapshot), [false]);
        assert_eq!(health.state(0, 0).verdict.reason(), Some("not checked yet"));
    });
}

#[test]
fn a_server_that_is_in_the_next_configuration_as_well_stays_what_it_is() {
    with_health(snapshot("servers = [\"127.0.0.1:9\", \"127.0.0.2:9\"]"), |health, first, telemetry| {
        health.set_drain(0, 1, true);
        let drained_since = health.state(0, 1).since;
        let mut next = snapshot("servers = [\"127.0.0.3:9\", \"127.0.0.2:9\"]");
        let kept = Server { label: "127.0.0.2:9".into(), notice: Arc::clone(&first.servers[0][1].notice) };
        let fresh = Server { label: "127.0.0.3:9".into(), notice: Arc::clone(&next.servers[0][0].notice) };
        next.servers = Arc::new(vec![vec![fresh, kept]]);
        let next = Arc::new(next);
        health.follow(&next, telemetry);
        assert_eq!(open(&next), [true, false]);
        assert_eq!((health.state(0, 1).verdict, health.state(0, 1).since), (Verdict::Draining, drained_since));
        assert_eq!(health.state(0, 0).verdict, Verdict::Unknown);
    });
}
