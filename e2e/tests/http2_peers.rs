//! The HTTP/2 of other people's standard libraries: Go's net/http on both sides, and Java's java.net.http as a client.
//! Their programs are below e2e/peers, and say a line for each promise, with how often it was kept.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use propylon_e2e::engine::with;
use propylon_e2e::http::values;
use propylon_e2e::peers::{self, Running};
use propylon_e2e::program::{curl, run};
use propylon_e2e::{Certificates, Engine, Scratch, eventually, holds};
use serde_json::Value;

/// Requests that a client's `load` has in progress, at most.
const THREADS: usize = 8;
/// How often terms change in a story.
const CHANGES: usize = 6;
const STORY_MAX: Duration = Duration::from_secs(60);
/// Starting takes its time on a busy machine.
const START_MAX: Duration = Duration::from_secs(30);

fn go(name: &str) -> Command {
    Command::new(peers::go(name))
}

fn java() -> Command {
    let mut command = Command::new("java");
    command.args(peers::java("JavaClient"));
    command
}

/// Counts of a client: lines of a number and what it is about.
struct Tally(String);

impl Tally {
    fn of(&self, what: &str) -> usize {
        let line = |line: &str| line.split_once(' ').filter(|(_, said)| *said == what)?.0.parse::<usize>().ok();
        self.0.lines().find_map(line).unwrap_or(0)
    }

    fn failures(&self) -> Vec<&str> {
        self.0.lines().filter(|line| line.contains(" failed")).collect()
    }

    /// How many failed.
    fn failed(&self) -> usize {
        self.failures().iter().filter_map(|line| line.split(' ').next()?.parse::<usize>().ok()).sum()
    }

    #[track_caller]
    fn is(&self, wanted: &[(&str, usize)]) {
        assert!(self.failures().is_empty(), "{}", self.0);
        wanted.iter().for_each(|(what, count)| assert_eq!(self.of(what), *count, "{what} in:\n{}", self.0));
    }
}

/// One story of a client, to its end.
#[track_caller]
fn tally(client: Command, story: &str, engine: &Engine) -> Tally {
    Tally(run(asking(client, story, engine), b"", STORY_MAX).ok().text())
}

fn asking(mut client: Command, story: &str, engine: &Engine) -> Command {
    client.arg(story).arg(engine.url("web")).arg(Certificates::shared().ca());
    client
}

/// A server in Go.
struct Server {
    running: Running,
    address: SocketAddr,
}

impl Server {
    #[track_caller]
    fn start(arguments: &[&Path]) -> Server {
        let mut command = go("go_server");
        command.args(arguments);
        let running = Running::start(command);
        let port = |line: &String| line.strip_prefix("listening ")?.parse().ok();
        let port = eventually(START_MAX, "go_server", || running.said().iter().find_map(port));
        Server { running, address: SocketAddr::from(([127, 0, 0, 1], port)) }
    }

    fn plain() -> Server {
        Server::start(&[])
    }

    fn secure() -> Server {
        Server::start(&[&Certificates::shared().ec()])
    }

    /// Whether this Go speaks HTTP/2 without TLS.
    fn speaks_h2c(&self) -> bool {
        self.running.said().iter().any(|line| line == "h2c true")
    }

    /// Waits until it has noticed of so many clients that they have gone.
    #[track_caller]
    fn has_ended(&self, requests: usize) {
        self.running.says(&format!("ended {requests}"));
    }
}

/// Lines of a backend whose servers agree on HTTP/2 by TLS.
fn by_tls() -> String {
    let ca = Certificates::shared().ca();
    format!("protocol = \"h2\"\ntls = {{ ca = \"{}\", server_name = \"localhost\" }}", ca.display())
}

type Way = (Server, String, &'static str);

/// The ways to a server in Go: the server, the lines of its backend, and what it says it is asked by.
fn ways() -> Vec<Way> {
    let mut ways = vec![
        (Server::plain(), String::new(), "HTTP/1.1"),
        (Server::secure(), by_tls(), "HTTP/2.0"),
        (Server::plain(), "protocol = \"h2\"".into(), "HTTP/2.0"),
    ];
    ways.retain(|(server, backend, _)| backend != "protocol = \"h2\"" || server.speaks_h2c());
    ways
}

/// One for each version: how clients are served depends on no more.
fn two_ways() -> impl Iterator<Item = Way> {
    ways().into_iter().take(2)
}

#[track_caller]
fn nothing_is_left(engine: &Engine) {
    holds("no stream is left", || engine.metric("propylon_http2_streams", &[]) == 0.0);
    assert_eq!(engine.metric("propylon_http2_errors_total", &[]), 0.0);
    assert_eq!(engine.metric("propylon_http2_floods_total", &[]), 0.0);
}

#[test]
fn gos_client_has_two_hundred_requests_of_every_kind_answered_over_one_connection() {
    for (server, backend, proto) in ways() {
        let listener = "http2 = { max_concurrent_streams = 256 }";
        let engine = Engine::start(&with(&[server.address], listener, &backend));
        let tally = tally(go("go_client"), "mixed", &engine);
        tally.is(&[("get", 25), ("head", 24), ("known", 24), ("unknown", 24), ("trailers", 24)]);
        tally.is(&[("continued", 24), ("refused", 24), ("cancelled", 24)]);
        tally.is(&[("download", 4), ("upload", 2), ("unknown upload", 2)]);
        tally.is(&[("connections", 1), (&format!("by {proto}"), 201)]);
        server.has_ended(24);
        nothing_is_left(&engine);
    }
}

#[test]
fn gos_client_may_cancel_hundreds_of_downloads_and_is_served_on() {
    for (server, backend, proto) in ways() {
        let engine = Engine::start(&with(&[server.address], "http2 = { max_concurrent_streams = 256 }", &backend));
        let tally = tally(go("go_client"), "cancel", &engine);
        tally.is(&[("cancelled", 400), ("get", 35), ("known", 34), ("bytes", 32)]);
        tally.is(&[("connections", 1), (&format!("by {proto}"), 501)]);
        server.has_ended(400);
        nothing_is_left(&engine);
    }
}

#[test]
fn gos_client_may_pause_in_a_download_and_read_on() {
    for (server, backend, _) in two_ways() {
        let engine = Engine::start(&with(&[server.address], "", &backend));
        let tally = tally(go("go_client"), "pause", &engine);
        tally.is(&[("paused", 1), ("connections", 1)]);
        assert!(tally.of("get") >= 20, "requests are served meanwhile:\n{}", tally.0);
        nothing_is_left(&engine);
    }
}

#[test]
fn a_server_in_go_serves_clients_of_either_version() {
    let scratch = Scratch::new();
    let body: Vec<u8> = (0..8_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let file = format!("@{}", scratch.write("body", &body).display());
    for (server, backend, proto) in ways() {
        let engine = Engine::start(&with(&[server.address], "", &backend));
        for version in ["--http2", "--http1.1"] {
            let ask = |arguments: &[&str], path: &str| {
                let url = format!("{}{path}", engine.url("web"));
                curl(&[&[version, "--fail"], arguments, &[url.as_str()]].concat()).ok()
            };
            let said = ask(&["--include"], "/hello").text();
            let (hints, answer) = said.split_once("\r\n\r\n").expect("an interim response");
            assert_eq!((hints.contains(" 103"), values(hints, "link")), (true, vec!["</a.css>"]), "{said}");
            assert_eq!(values(answer, "x-proto"), [proto], "{said}");
            assert!(answer.ends_with("\r\n\r\nhello\n"), "{said}");
            assert_eq!(values(&ask(&["--head"], "/bytes?4711").text(), "content-length"), ["4711"]);
            assert!(ask(&[], "/bytes?8000000").stdout == body, "{version}: the body changed on its way");
            let sum = ask(&["--data-binary", &file], "/sum").text();
            assert!(sum.starts_with("POST 8000000 8000000 "), "{sum}");
            let chunked: &[&str] =
                if version == "--http1.1" { &["--header", "Transfer-Encoding: chunked"] } else { &[] };
            let expecting = ["--data-binary", &file, "--header", "Expect: 100-continue", "--expect100-timeout", "20"];
            let said = ask(&[&["--verbose"], &expecting[..], chunked].concat(), "/sum");
            assert!(said.stderr.contains(" 100"), "{}", said.stderr);
            assert_eq!(said.text().split(' ').next_back(), sum.split(' ').next_back(), "{}", said.text());
        }
        assert_eq!(engine.metric("propylon_server_faults_total", &[]), 0.0);
        nothing_is_left(&engine);
    }
}

/// Waits until so many more requests have come.
#[track_caller]
fn goes_on(engine: &Engine, requests: f64) {
    let begun = engine.metric("propylon_http2_streams_total", &[]);
    let now = || engine.metric("propylon_http2_streams_total", &[]);
    eventually(START_MAX, "requests come", || (now() >= begun + requests).then_some(()));
}

/// Go's GOAWAY names the last stream that it has looked at, and passes over what comes later: that is repeated, unless
/// some of its body has gone out before all of it was here, which is nowhere kept.
#[test]
fn a_server_in_go_that_shuts_down_loses_no_request_whose_body_is_still_here() {
    for secure in [true, false] {
        let start = || if secure { Server::secure() } else { Server::plain() };
        let (mut one, two) = (start(), start());
        if !secure && !one.speaks_h2c() {
            continue;
        }
        let backend = if secure { by_tls() } else { "protocol = \"h2\"".into() };
        let engine = Engine::start(&with(&[one.address, two.address], "", &backend));
        let client = Running::start(asking(go("go_client"), "load", &engine));
        goes_on(&engine, 200.0);
        let served = |server: &Server| {
            let label = server.address.to_string();
            engine.metric("propylon_server_requests_total", &[("server", &label)])
        };
        assert!(served(&one) > 50.0 && served(&two) > 50.0, "both are used");
        one.running.tell("shutdown");
        one.running.says("shut");
        goes_on(&engine, 200.0);
        let tally = Tally(client.end());
        let goaway =
            ["known", "unknown"].map(|kind| format!(" failed {kind}: 502 Bad Gateway: 502 Bad Gateway: goaway"));
        let is_another = |line: &&str| !goaway.iter().any(|words| line.ends_with(words));
        let others: Vec<&str> = tally.failures().into_iter().filter(is_another).collect();
        assert!(others.is_empty() && tally.failed() <= THREADS, "{}", tally.0);
        nothing_is_left(&engine);
    }
}

#[test]
fn javas_client_has_a_hundred_requests_answered_at_once() {
    for (server, backend, proto) in two_ways() {
        let engine = Engine::start(&with(&[server.address], "", &backend));
        let tally = tally(java(), "at_once", &engine);
        tally.is(&[("get", 21), ("known", 20), ("unknown", 20), ("slow", 20), ("bytes", 20)]);
        tally.is(&[(&format!("HTTP_2 by {proto}"), 101)]);
        assert_eq!(engine.metric("propylon_http2_connections_total", &[]), 1.0);
        nothing_is_left(&engine);
    }
}

#[test]
fn javas_client_moves_large_bodies_both_ways() {
    for (server, backend, proto) in two_ways() {
        let engine = Engine::start(&with(&[server.address], "", &backend));
        let tally = tally(java(), "bodies", &engine);
        tally.is(&[("download", 2), ("upload", 2), ("unknown upload", 2), ("continued", 1)]);
        tally.is(&[(&format!("HTTP_2 by {proto}"), 8)]);
        assert_eq!(engine.metric("propylon_http2_connections_total", &[]), 1.0);
        nothing_is_left(&engine);
    }
}

#[test]
fn javas_client_may_take_requests_back_and_is_served_on() {
    for (server, backend, proto) in two_ways() {
        let engine = Engine::start(&with(&[server.address], "", &backend));
        let tally = tally(java(), "cancel", &engine);
        tally.is(&[("closed", 50), ("cancelled", 50), ("get", 21), ("known", 20), ("bytes", 20)]);
        tally.is(&[(&format!("HTTP_2 by {proto}"), 61)]);
        server.has_ended(100);
        assert_eq!(engine.metric("propylon_http2_connections_total", &[]), 1.0);
        nothing_is_left(&engine);
    }
}

/// An engine and what changes its listener's terms of HTTP/2, which says GOAWAY to every client.
struct Changing {
    server: Server,
    engine: Engine,
    changes: usize,
}

impl Changing {
    fn new() -> Changing {
        let server = Server::plain();
        let engine = Engine::start(&Changing::terms(server.address, 0));
        Changing { server, engine, changes: 0 }
    }

    fn terms(server: SocketAddr, changes: usize) -> String {
        with(&[server], &format!("http2 = {{ max_concurrent_streams = {} }}", 100 + changes), "")
    }

    #[track_caller]
    fn change(&mut self) {
        self.changes += 1;
        self.engine.rewrite(&Changing::terms(self.server.address, self.changes));
        let said = self.engine.reload();
        assert!(said.contains("is in effect"), "{said}");
    }

    /// Counts of a client that makes requests all the time while the terms change.
    #[track_caller]
    fn load(&mut self, client: Command) -> Tally {
        let client = Running::start(asking(client, "load", &self.engine));
        goes_on(&self.engine, 50.0);
        for _ in 0..CHANGES {
            let came = |engine: &Engine| engine.metric("propylon_http2_connections_total", &[]);
            let before = came(&self.engine);
            self.change();
            holds("clients come anew", || came(&self.engine) > before);
            goes_on(&self.engine, 100.0);
        }
        let tally = Tally(client.end());
        nothing_is_left(&self.engine);
        assert_eq!(self.engine.metric("propylon_responses_total", &[("class", "5xx")]), 0.0);
        // A request that its client gave up after twenty seconds is one that has never come here.
        let took = |line: &Value| line["duration_us"]["total"].as_u64().expect("microseconds");
        let slowest = self.engine.log().into_iter().max_by_key(took).expect("requests");
        assert!(took(&slowest) < 15_000_000, "{slowest}");
        tally
    }
}

#[test]
fn gos_client_loses_no_request_while_its_listeners_terms_change() {
    Changing::new().load(go("go_client")).is(&[]);
}

#[test]
fn javas_client_loses_no_request_to_terms_that_change_between_its_requests() {
    let mut story = Changing::new();
    let mut client = Running::start(asking(java(), "rounds", &story.engine));
    for round in 1..=CHANGES {
        client.tell("go");
        client.says(&format!("round {round}"));
        story.change();
        holds("it has heard of it", || story.engine.metric("propylon_http2_connections", &[]) == 0.0);
    }
    let each = 20 * CHANGES;
    Tally(client.end()).is(&[("get", each), ("known", each), ("unknown", each), ("slow", each), ("bytes", each)]);
    nothing_is_left(&story.engine);
}

/// Java before 24, and updates of 17 and 21 that are older than that, give up the requests that are in progress when
/// GOAWAY comes, whoever says it and whatever is in it (JDK-8335181), or never send one and wait for its answer.
/// Nothing else may fail, nor more than that.
#[test]
fn javas_client_goes_on_while_its_listeners_terms_change() {
    let tally = Changing::new().load(java());
    let mut failures = tally.failures();
    if tally.of("finishes after GOAWAY") == 0 {
        let goaway = ["java.io.IOException: an address: GOAWAY received", "HttpTimeoutException: request timed out"];
        failures.retain(|line| !goaway.iter().any(|words| line.ends_with(words)));
    }
    assert!(failures.is_empty(), "{}", tally.0);
    assert!(tally.failed() <= THREADS * CHANGES, "{}", tally.0);
    ["get", "known", "unknown", "slow", "bytes"].iter().for_each(|kind| assert!(tally.of(kind) > 0, "{}", tally.0));
}
