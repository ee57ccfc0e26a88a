//! Thousands of clients that are connected and quiet: they cost little, they are all still served, and what they cost
//! is there for the next ones.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use propylon_e2e::engine::simple;
use propylon_e2e::wait::WAIT_MAX;
use propylon_e2e::{Client, Engine, Origin, holds};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const CONNECTIONS: usize = 8_000;
/// In each of two waves after them: 20,000 in all.
const LATER: usize = 6_000;
/// Files that the test itself needs besides its connections.
const FILES_BESIDE: u64 = 200;
/// Per connection; generous, since the engine is not optimised and its allocator keeps a reserve.
const RESIDENT_MAX: f64 = 12.0 * 1024.0;

/// The test's own limit, as the engine raises its own.
fn raise_files_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).expect("the hard limit");
    let files = limit.maximum.unwrap_or(u64::MAX);
    assert!(files > CONNECTIONS as u64 + FILES_BESIDE, "{files} files are too few for {CONNECTIONS} connections");
}

/// A source address for each thousand, so that no address runs out of ports.
fn source(n: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2 + (n / 1_000) as u8))
}

fn open(engine: &Engine) -> usize {
    engine.metric("propylon_connections", &[("listener", "web")]) as usize
}

#[test]
#[ignore = "long: make test-long"]
fn thousands_of_idle_tls_connections_are_cheap_and_alive() {
    raise_files_limit();
    let origin = Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n");
    let engine = Engine::start(&format!(
        "[process]\nworkers = 1\ndrain_timeout = \"1s\"\n[log]\naccess = \"off\"\n{}",
        simple(&[origin.address()])
    ));
    let address = engine.address("web");
    let connect = |n: usize| {
        let mut client = Client::tls_from(source(n), address).unwrap_or_else(|error| panic!("connection {n}: {error}"));
        assert_eq!(client.get("/").text(), "hello\n", "connection {n}");
        client
    };
    // What is allocated once is not what a connection costs.
    drop((0..200).map(connect).collect::<Vec<Client>>());
    holds("the first ones are gone", || open(&engine) == 0);
    let before = engine.rss();

    let began = Instant::now();
    let mut clients: Vec<Client> = (0..CONNECTIONS).map(connect).collect();
    assert_eq!(open(&engine), CONNECTIONS);
    let held = engine.rss();
    let each = held.saturating_sub(before) as f64 / CONNECTIONS as f64;
    println!("{CONNECTIONS} connections in {:.1} s, {each:.0} bytes resident each", began.elapsed().as_secs_f64());
    assert!(each < RESIDENT_MAX, "{each:.0} bytes each");

    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.get("/again").text(), "hello\n", "connection {n}");
    }
    assert_eq!(open(&engine), CONNECTIONS, "nobody was dropped to make room");
    assert!(origin.connections() < 10, "clients that take turns need few connections to the server");

    drop(clients);
    holds("all are gone", || open(&engine) == 0);
    for _ in 0..2 {
        let wave: Vec<Client> = (0..LATER).map(connect).collect();
        drop(wave);
        holds("all are gone", || open(&engine) == 0);
    }
    let allowed = before + before / 10;
    let started = Instant::now();
    // The last of the memory is given back a moment after the last of them.
    while engine.rss() > allowed && started.elapsed() < WAIT_MAX {
        std::thread::sleep(Duration::from_millis(20));
    }
    let after = engine.rss();
    let all = CONNECTIONS + 2 * LATER;
    println!("{all} came and went: {} KiB before, {} KiB held, {} KiB after", before >> 10, held >> 10, after >> 10);
    assert!(after <= allowed, "{after} bytes after {all} connections came and went, {before} before, {held} with them");
}
