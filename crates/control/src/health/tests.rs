//! The board by itself: what it tells the cores, and what goes on when another configuration follows.

use std::path::PathBuf;

use propylon_config::{Config, Source};
use propylon_proxy::snapshot::{Answers, Files};
use propylon_tls::Tickets;
use tokio::runtime::{Builder, LocalOptions};

use super::*;

/// Port 9 of nobody, and probes that come too seldom to matter.
fn config(backend: &str) -> Config {
    let text = format!("[listener.a]\nbind = \"127.0.0.1:0\"\n[[route]]\nbackend = \"b\"\n[backend.b]\n{backend}\n");
    let source = Source { name: "a.toml".into(), base: PathBuf::new(), text: text.clone() };
    let config = propylon_config::parse(&source);
    config.unwrap_or_else(|problems| panic!("{}", propylon_config::render(&problems, &text))).0
}

fn snapshot(backend: &str) -> Snapshot {
    Snapshot::compile(config(backend), Arc::new(Tickets::new()), &Answers::new(), propylon_tls::Severity::Error)
        .expect("nothing to load")
        .0
}

fn with_health(first: Snapshot, story: impl FnOnce(&Health, &Arc<Snapshot>, &dyn Fn(&str) -> Arc<Snapshot>)) {
    with_known(first, &[], story);
}

fn with_known(
    first: Snapshot,
    known: &[KnownServer],
    story: impl FnOnce(&Health, &Arc<Snapshot>, &dyn Fn(&str) -> Arc<Snapshot>),
) {
    let first = Arc::new(first);
    let (telemetry, store) = Telemetry::new(&first.config, 1);
    let telemetry = Arc::new(telemetry);
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
    runtime.block_on(async {
        let health = Health::start(&first, &store, &telemetry, known, None);
        let current = RefCell::new(Arc::clone(&first));
        story(&health, &first, &|backend| {
            let earlier = Arc::clone(&current.borrow());
            let next = earlier.succeeded_by(config(backend), Files::AsTheyWere, &Answers::new());
            let next = Arc::new(next.unwrap_or_else(|_| panic!("nothing to load")).snapshot);
            telemetry.reload(&store, &next.config);
            health.reload(&next);
            current.replace(Arc::clone(&next));
            next
        });
    });
}

fn open(snapshot: &Snapshot) -> Vec<bool> {
    snapshot.servers[0].iter().map(|server| server.endpoint.is_open()).collect()
}

#[test]
fn a_server_that_is_drained_is_closed_to_the_cores_until_it_is_not() {
    let both = "servers = [\"127.0.0.1:9\", \"127.0.0.2:9\"]";
    with_health(snapshot(both), |health, snapshot, reload| {
        assert_eq!(open(snapshot), [true, true]);
        let next = reload("servers = [\"127.0.0.1:9\", { address = \"127.0.0.2:9\", drain = true }]");
        assert_eq!((open(&next), open(snapshot)), (vec![true, false], vec![true, false]));
        assert_eq!(health.state(&next.servers[0][1].endpoint).verdict.reason(), Some("drained in the configuration"));
        assert_eq!(open(&reload(both)), [true, true]);
        assert_eq!(snapshot.servers[0][1].endpoint.reopened(), 1);
    });
}

#[test]
fn a_server_that_starts_down_is_closed_from_the_first() {
    let backend = "servers = [\"127.0.0.1:9\"]\nhealth = { start = \"down\", interval = \"1h\" }";
    with_health(snapshot(backend), |health, snapshot, _| {
        assert_eq!(open(snapshot), [false]);
        assert_eq!(health.state(&snapshot.servers[0][0].endpoint).verdict.reason(), Some("not checked yet"));
    });
}

#[test]
fn what_a_predecessor_has_found_holds_from_the_first() {
    let backend = "servers = [\"127.0.0.1:9\", \"127.0.0.2:9\", \"127.0.0.3:9\"]\n\
        health = { start = \"down\", interval = \"1h\" }";
    let known = |server: &str, down: Option<&str>| KnownServer {
        backend: "b".into(),
        server: server.into(),
        down: down.map(str::to_owned),
    };
    let known = [known("127.0.0.1:9", None), known("127.0.0.2:9", Some("status 500")), known("127.0.0.4:9", None)];
    let parsed: Vec<_> = known.iter().filter_map(|known| KnownServer::from_json(&known.to_json())).collect();
    assert_eq!(parsed, known);
    with_known(snapshot(backend), &parsed, |health, snapshot, _| {
        assert_eq!(open(snapshot), [true, false, false]);
        assert_eq!(health.state(&snapshot.servers[0][1].endpoint).verdict.reason(), Some("status 500"));
        assert_eq!(health.hand_over()[..2], known[..2]);
    });
}

#[test]
fn a_server_that_is_in_the_next_configuration_as_well_stays_what_it_is() {
    let drained = "{ address = \"127.0.0.2:9\", drain = true }";
    with_health(snapshot(&format!("servers = [\"127.0.0.1:9\", {drained}]")), |health, first, reload| {
        let [gone, stays] = [0, 1].map(|server| &first.servers[0][server].endpoint);
        let before = health.state(stays);
        let next = reload(&format!("servers = [{drained}, \"127.0.0.3:9\"]"));
        assert_eq!(open(&next), [false, true]);
        assert!(Arc::ptr_eq(stays, &next.servers[0][0].endpoint), "at another index");
        assert_eq!((health.state(stays).verdict, health.state(stays).since), (before.verdict, before.since));
        // Requests that know the one that is gone may finish there.
        assert!(gone.is_open());
        assert_eq!(health.state(&next.servers[0][1].endpoint).verdict, Verdict::Unknown);
        // One that comes back is another, about whom nothing is known.
        let back = reload("servers = [\"127.0.0.1:9\", \"127.0.0.3:9\"]");
        assert!(!Arc::ptr_eq(gone, &back.servers[0][0].endpoint));
        assert_eq!(health.state(&back.servers[0][0].endpoint).verdict, Verdict::Unknown);
    });
}

#[test]
fn probes_go_on_through_changes_that_do_not_concern_them() {
    let probed = |interval: &str, weight: u8| {
        let server = format!("{{ address = \"127.0.0.1:9\", weight = {weight} }}");
        format!("servers = [{server}]\nhealth = {{ interval = \"{interval}\" }}")
    };
    with_health(snapshot(&probed("1h", 1)), |health, first, reload| {
        let endpoint = Arc::as_ptr(&first.servers[0][0].endpoint);
        let task = || health.0.tasks.borrow()[&endpoint].probing.as_ref().map(|task| task.0.id());
        let first = task();
        assert!(first.is_some());
        reload(&probed("1h", 2));
        assert_eq!(task(), first);
        reload(&probed("30m", 2));
        assert!(task().is_some() && task() != first);
        reload("servers = [\"127.0.0.1:9\"]");
        assert_eq!(task(), None);
    });
}
