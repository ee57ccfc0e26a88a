//! Servers with a limit of connections: never exceeded, shared by all workers, waited for in line.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use propylon_e2e::certificates::Certificates;
use propylon_e2e::frames::{CANCEL, Http2, RST_STREAM};
use propylon_e2e::http::Response;
use propylon_e2e::secure::{self, SecureOrigin};
use propylon_e2e::{Client, Engine, Origin, binaries, holds};
use rcgen::PKCS_ECDSA_P256_SHA256;
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use rustls::version::TLS13;

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";

fn config(server: SocketAddr, max_connections: usize, workers: usize, backend: &str) -> String {
    format!(
        "[process]\nworkers = {workers}\ndrain_timeout = \"10s\"\n\
         [listener.plain]\nbind = \"127.0.0.1:0\"\n[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n\
         [backend.app]\nservers = [{{ address = \"{server}\", max_connections = {max_connections} }}]\n{backend}\n\
         [[route]]\nbackend = \"app\"\n"
    )
}

/// An origin that answers each request when the story says so.
fn patient() -> (Origin, Sender<()>) {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let origin = Origin::scripted(move |peer| {
        while peer.read_request().is_some() {
            let _ = wait.lock().expect("no script panics with it").recv_timeout(Duration::from_secs(20));
            peer.send(HELLO);
        }
    });
    (origin, go)
}

/// An origin that knows the most connections it has had at once.
fn counting(requests_max: usize) -> (Origin, Arc<AtomicUsize>) {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let known = Arc::clone(&most);
    let origin = Origin::scripted(move |peer| {
        known.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        for served in 1.. {
            if peer.read_request().is_none() {
                break;
            }
            if served == requests_max {
                // The engine knows that this was the last one as soon as it has the answer.
                now.fetch_sub(1, Ordering::SeqCst);
                peer.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 6\r\n\r\nhello\n");
                return;
            }
            peer.send(HELLO);
        }
        now.fetch_sub(1, Ordering::SeqCst);
    });
    (origin, most)
}

/// Clients that ask side by side, so many times each; all answers have to be right.
fn crowd(engine: &Engine, clients: usize, rounds: usize) {
    crowd_of(engine, clients, rounds, |response| {
        assert_eq!((response.status, response.text().as_str()), (200, "hello\n"));
    });
}

fn crowd_of(engine: &Engine, clients: usize, rounds: usize, judge: impl Fn(&Response) + Sync) {
    let judge = &judge;
    std::thread::scope(|scope| {
        for group in 0..16 {
            scope.spawn(move || {
                let listener = if group % 2 == 0 { "plain" } else { "web" };
                let mut clients: Vec<_> = (0..clients / 16).map(|_| engine.client(listener)).collect();
                for _ in 0..rounds {
                    clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
                    for client in &mut clients {
                        judge(&client.read_response());
                    }
                }
            });
        }
    });
}

#[test]
fn six_hundred_and_forty_clients_share_twenty_connections() {
    let (origin, most) = counting(usize::MAX);
    let engine = Engine::start(&config(origin.address(), 20, 2, ""));
    crowd(&engine, 640, 8);
    assert_eq!(most.load(Ordering::SeqCst), 20, "all of them were used, and never one more");
    assert_eq!(engine.metric("propylon_server_connections_total", &[]), 20.0);
    assert_eq!(engine.metric("propylon_backend_client_connections_total", &[]), 640.0);
    assert_eq!(engine.metric("propylon_server_requests_total", &[]), 5120.0);
    assert!(engine.metric("propylon_queue_wait_seconds_count", &[]) > 0.0);
    assert_eq!(engine.metric("propylon_queue_refused_total", &[]), 0.0);
    engine.metric_reaches("propylon_queue_depth", &[], 0.0);
    engine.metric_reaches("propylon_backend_client_connections", &[], 0.0);
}

/// `propylon-bench prefork`: a process of its own, with a thread for each of at most `max` connections; more wait unaccepted in the
/// kernel's queue for as long as the first ones stay.
struct Prefork {
    child: Child,
    address: SocketAddr,
}

impl Prefork {
    fn start(max: usize) -> Prefork {
        let mut command = Command::new(binaries::bench());
        command.args(["prefork", "--bind", "127.0.0.1:0", "--max", &max.to_string(), "--per-connection", "64KiB"]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the origin starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("its first line");
        let address = line.trim().strip_prefix("listening ").and_then(|address| address.parse().ok());
        Prefork { child, address: address.expect("its address") }
    }

    /// Connections that its kernel holds as established.
    fn connections(&self) -> usize {
        let table = std::fs::read_to_string("/proc/self/net/tcp").expect("the kernel's table");
        let port = format!(":{:04X}", self.address.port());
        // By the other end's port: a table that changes while it is read may show a line twice.
        let established = |line: &str| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let [_, local, remote, "01", ..] = columns[..] else { return None };
            local.ends_with(&port).then(|| remote.to_owned())
        };
        table.lines().filter_map(established).collect::<BTreeSet<String>>().len()
    }
}

impl Drop for Prefork {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_server_of_twenty_processes_serves_six_hundred_and_forty_clients() {
    let origin = Prefork::start(20);
    let engine = Engine::start(&config(origin.address, 20, 2, "queue = { timeout = \"20s\" }"));
    let over = AtomicBool::new(false);
    let most = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !over.load(Ordering::SeqCst) {
                most = most.max(origin.connections());
                std::thread::sleep(Duration::from_millis(5));
            }
            most
        });
        crowd_of(&engine, 640, 3, |response| assert_eq!(response.status, 200));
        over.store(true, Ordering::SeqCst);
        watch.join().expect("the kernel's table can be read")
    });
    assert_eq!(engine.metric("propylon_server_connections_total", &[]), 20.0);
    // How many there are at a look depends on who runs when.
    assert!(most <= 20, "{most}");
    assert_eq!(engine.metric("propylon_responses_total", &[("class", "2xx")]), 1920.0);
}

#[test]
fn the_limit_holds_while_connections_come_and_go_and_are_made_ahead() {
    let (origin, most) = counting(5);
    let engine = Engine::start(&config(origin.address(), 7, 2, "min_idle = 4"));
    crowd(&engine, 96, 20);
    assert!((2..=7).contains(&most.load(Ordering::SeqCst)), "{most:?}");
    assert!(engine.metric("propylon_server_connections_total", &[]) >= 384.0);
    assert_eq!(engine.metric("propylon_responses_total", &[("class", "5xx")]), 0.0);
    engine.metric_reaches("propylon_queue_depth", &[], 0.0);
}

#[test]
fn clients_of_their_own_connections_make_room_for_each_other() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&config(origin.address(), 1, 1, "reuse = \"never\""));
    let (mut one, mut two) = (engine.client("plain"), engine.client("web"));
    for _ in 0..5 {
        assert_eq!(one.get("/").text(), "hello\n");
        assert_eq!(two.get("/").text(), "hello\n");
    }
    assert!(origin.connections() > 1, "each closed the other's");
    engine.metric_reaches("propylon_server_connections", &[], 1.0);
    assert_eq!(engine.metric("propylon_responses_total", &[("class", "5xx")]), 0.0);
}

#[test]
fn an_idle_connection_serves_the_requests_of_every_worker() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&config(origin.address(), 1, 2, ""));
    // The kernel spreads clients over the workers by their ports: that forty go to one is as good as impossible.
    for _ in 0..40 {
        assert_eq!(engine.client("plain").get("/").text(), "hello\n");
    }
    assert_eq!(origin.connections(), 1);
    assert!(engine.metric("propylon_server_handed_over_total", &[]) > 0.0);
    assert_eq!(engine.metric("propylon_server_reused_total", &[]), 39.0);
    engine.metric_reaches("propylon_server_connections", &[], 1.0);
}

#[test]
fn an_idle_connection_is_had_without_a_wait() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&config(origin.address(), 1, 1, ""));
    let mut client = engine.client("plain");
    for _ in 0..5 {
        assert_eq!(client.get("/").text(), "hello\n");
        engine.metric_reaches("propylon_server_connections_idle", &[], 1.0);
    }
    assert_eq!(engine.metric("propylon_queue_wait_seconds_count", &[]), 0.0);
    assert_eq!(origin.connections(), 1);
}

/// A connection that comes back goes to who waits, unless it has lived its time, however many wait.
#[test]
fn a_connection_that_has_lived_its_time_is_handed_to_nobody() {
    let origin = Origin::answering(|_| {
        // The others are in the line by then.
        std::thread::sleep(Duration::from_millis(5));
        HELLO.into()
    });
    let engine = Engine::start(&config(origin.address(), 1, 1, "max_lifetime = \"100ms\""));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let (began, mut client) = (Instant::now(), engine.client("plain"));
                while origin.connections() < 4 && began.elapsed() < Duration::from_secs(20) {
                    assert_eq!(client.get("/").text(), "hello\n");
                }
            });
        }
    });
    assert!(origin.connections() >= 4, "{} connections", origin.connections());
}

#[test]
fn who_needs_a_connection_of_its_own_is_handed_none_that_comes_back() {
    let (origin, go) = patient();
    let engine = Engine::start(&config(origin.address(), 1, 1, ""));
    let (mut first, mut second) = (engine.client("plain"), engine.client("web"));
    first.send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
    holds("the first is served", || origin.received_text().contains("/first"));
    // A client's first request, which nobody could repeat.
    second.send("POST /second HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
    engine.metric_reaches("propylon_queue_depth", &[], 1.0);
    for client in [&mut first, &mut second] {
        go.send(()).expect("the origin waits");
        assert_eq!(client.read_response().text(), "hello\n");
    }
    assert_eq!(origin.connections(), 2);
    engine.metric_reaches("propylon_server_connections", &[], 1.0);
}

/// Where no connections are counted nothing is gained by a wait for a server that works on for nobody.
#[test]
fn a_connection_that_is_not_counted_ends_with_its_client() {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let origin = Origin::scripted(move |peer| {
        // It says nothing, and keeps the connection, for as long as anybody looks.
        let _ = (peer.read_request(), wait.lock().expect("no script panics with it").recv());
    });
    let config = config(origin.address(), 7, 1, "timeouts = { close = \"10m\" }");
    let engine = Engine::start(&config.replace(", max_connections = 7", ""));
    let mut client = engine.client("plain");
    client.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    holds("the server is at work", || origin.received_text().contains("/slow"));
    client.reset();
    engine.metric_reaches("propylon_server_connections", &[], 0.0);
    drop(go);
}

#[test]
fn who_waits_too_long_or_finds_the_line_full_is_told_when_to_come_back() {
    let (origin, go) = patient();
    let engine = Engine::start(&config(origin.address(), 1, 1, "queue = { limit = 1, timeout = \"2s\" }"));
    let (mut first, mut second, mut third) = (engine.client("plain"), engine.client("web"), engine.client("plain"));
    first.send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
    holds("the first is served", || origin.received_text().contains("/first"));
    second.send("GET /second HTTP/1.1\r\nHost: a\r\n\r\n");
    engine.metric_reaches("propylon_queue_depth", &[], 1.0);
    let response = third.get("/third");
    assert_eq!((response.status, response.text().as_str()), (503, "503 Service Unavailable: queue-full\n"));
    assert_eq!(response.field("Retry-After"), Some("2"));
    let response = second.read_response();
    assert_eq!((response.status, response.text().as_str()), (503, "503 Service Unavailable: queue-timeout\n"));
    assert_eq!(response.field("Retry-After"), Some("2"));
    let refused = |reason| engine.metric("propylon_queue_refused_total", &[("reason", reason)]);
    assert_eq!((refused("queue-full"), refused("queue-timeout")), (1.0, 1.0));
    let line = engine.logged_path("/second");
    assert!(line["fault"] == "queue-timeout" && line["duration_us"]["queue"].as_u64() >= Some(1_900_000), "{line}");
    // Both connections go on.
    go.send(()).expect("the origin waits");
    assert_eq!(first.read_response().text(), "hello\n");
    for client in [&mut second, &mut third] {
        go.send(()).expect("the origin waits");
        assert_eq!(client.get("/").text(), "hello\n");
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn those_who_wait_are_served_in_the_order_in_which_they_came() {
    let (origin, go) = patient();
    let engine = Engine::start(&config(origin.address(), 1, 2, ""));
    let mut clients: Vec<_> = (0..12).map(|_| engine.client("plain")).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.send(format!("GET /{n} HTTP/1.1\r\nHost: a\r\n\r\n"));
        match n {
            0 => holds("the first is served", || origin.received_text().contains("GET /0 ")),
            _ => engine.metric_reaches("propylon_queue_depth", &[], n as f64),
        }
    }
    for client in &mut clients {
        go.send(()).expect("the origin waits");
        assert_eq!(client.read_response().text(), "hello\n");
    }
    let text = origin.received_text();
    let order: Vec<&str> = text.split("GET /").skip(1).filter_map(|rest| rest.split(' ').next()).collect();
    assert_eq!(order, (0..12).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(origin.connections(), 1);
}

#[test]
fn a_client_that_goes_away_leaves_the_line() {
    let (origin, go) = patient();
    let engine = Engine::start(&config(origin.address(), 1, 1, ""));
    let (mut first, mut second, mut third) = (engine.client("plain"), engine.client("plain"), engine.client("web"));
    first.send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
    holds("the first is served", || origin.received_text().contains("/first"));
    second.send("GET /second HTTP/1.1\r\nHost: a\r\n\r\n");
    engine.metric_reaches("propylon_queue_depth", &[], 1.0);
    third.send("GET /third HTTP/1.1\r\nHost: a\r\n\r\n");
    engine.metric_reaches("propylon_queue_depth", &[], 2.0);
    second.reset();
    engine.metric_reaches("propylon_queue_depth", &[], 1.0);
    assert_eq!(engine.metric("propylon_queue_refused_total", &[("reason", "client-gone")]), 1.0);
    go.send(()).expect("the origin waits");
    assert_eq!(first.read_response().text(), "hello\n");
    go.send(()).expect("the origin waits");
    assert_eq!(third.read_response().text(), "hello\n");
    assert!(!origin.received_text().contains("/second"), "nobody waits for it any more");
}

#[test]
fn who_waits_when_the_drain_begins_is_served() {
    let (origin, go) = patient();
    let mut engine = Engine::start(&config(origin.address(), 1, 1, "queue = { timeout = \"30s\" }"));
    let (mut first, mut second) = (engine.client("plain"), engine.client("web"));
    first.send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
    holds("the first is served", || origin.received_text().contains("/first"));
    second.send("GET /second HTTP/1.1\r\nHost: a\r\n\r\n");
    engine.metric_reaches("propylon_queue_depth", &[], 1.0);
    engine.signal(Signal::TERM);
    holds("the drain has begun", || engine.stderr().iter().any(|line| line.contains("draining")));
    go.send(()).expect("the origin waits");
    assert_eq!(first.read_response().text(), "hello\n");
    go.send(()).expect("the origin waits");
    assert_eq!(second.read_response().text(), "hello\n");
    assert_eq!(engine.wait(Duration::from_secs(10)).status.code(), Some(0), "nothing was cut off");
}

/// Descriptors that a process has open.
fn descriptors(pid: u32) -> BTreeSet<u64> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a running engine");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

#[test]
fn a_lack_of_files_is_no_fault_of_the_server() {
    let (origin, other) = (Origin::always(HELLO), Origin::always(HELLO));
    let text = config(origin.address(), 10, 1, "max_idle = 0");
    let engine = Engine::start(&text.replace(" }]", &format!(" }}, \"{}\"]", other.address())));
    let mut client = engine.client("plain");
    assert_eq!(client.get("/").text(), "hello\n");
    engine.metric_reaches("propylon_server_connections", &[], 0.0);
    let pid = Pid::from_raw(engine.pid() as i32).expect("a process");
    let free = |open: &BTreeSet<u64>| (0..).find(|number| !open.contains(number)).expect("a free number");
    // Descriptors are given out from the lowest free number; the limit is one above the highest that may be.
    let before = prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(4096), maximum: Some(4096) });
    before.expect("the engine's own limit may be lowered");
    // The admin's connections may still be closing, and each leaves a number free.
    holds("every attempt is refused", || {
        let lowest = free(&descriptors(engine.pid()));
        let set = Rlimit { current: Some(lowest), maximum: Some(4096) };
        prlimit(Some(pid), Resource::Nofile, set).expect("the limit may be lowered");
        (0..4).all(|_| {
            let response = client.get("/hungry");
            let hungry = response.status == 503;
            assert!(!hungry || response.text() == "503 Service Unavailable: out-of-files\n", "{response:?}");
            assert!(!hungry || response.field("Retry-After") == Some("1"));
            hungry
        })
    });
    prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(4096), maximum: Some(4096) }).expect("room again");
    // Whoever is suspect would be passed over for a second, as long as there is another.
    let asked = |origin: &Origin| origin.received_text().matches("GET /again").count();
    (0..4).for_each(|_| assert_eq!(client.get("/again").text(), "hello\n"));
    assert_eq!((asked(&origin), asked(&other)), (2, 2), "neither is suspect");
    assert!(engine.metric("propylon_server_faults_total", &[("reason", "out-of-files")]) >= 4.0);
    assert_eq!(engine.metric("propylon_retries_total", &[]), 0.0, "another attempt would fare no better");
    engine.metric_reaches("propylon_server_connections", &[], 0.0);
}

/// How a client goes away.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Farewell {
    Reset,
    /// With bytes of a further request that nobody has read.
    ResetBehindBytes,
    /// After it has said that it sends no more, which its listener takes for nothing.
    ResetBehindEnd,
    /// FIN; over TLS behind a close_notify, which nobody has read.
    End,
    EndBehindBytes,
}

impl Farewell {
    const ALL: [Farewell; 5] = [
        Farewell::Reset,
        Farewell::ResetBehindBytes,
        Farewell::ResetBehindEnd,
        Farewell::End,
        Farewell::EndBehindBytes,
    ];

    /// The listeners' setting.
    fn half_close(self) -> bool {
        self == Farewell::ResetBehindEnd
    }

    fn fault(self) -> &'static str {
        match self {
            Farewell::End | Farewell::EndBehindBytes => "client-closed",
            _ => "client-reset",
        }
    }

    /// Bytes before the last word; to be said early, so that the engine has it.
    fn prepare(self, client: &mut Client) {
        match self {
            Farewell::Reset | Farewell::End => {}
            Farewell::ResetBehindBytes | Farewell::EndBehindBytes => client.send("GET /more HTTP/1.1\r\n"),
            Farewell::ResetBehindEnd => client.finish(),
        }
    }

    /// The last word. The client is not gone for those that end: its socket stays until it is dropped.
    fn say(self, client: &mut Client) {
        match self {
            Farewell::End | Farewell::EndBehindBytes => client.finish(),
            _ => client.reset_on_close(),
        }
    }
}

/// The same with what `half_close` is to be on both listeners.
fn config_for(farewell: Farewell, server: SocketAddr) -> String {
    let half_close = format!("bind = \"127.0.0.1:0\"\nhalf_close = {}", farewell.half_close());
    config(server, 1, 1, "queue = { timeout = \"10m\" }").replace("bind = \"127.0.0.1:0\"", &half_close)
}

#[test]
fn a_client_that_goes_away_leaves_the_line_whatever_it_has_sent_before() {
    for farewell in Farewell::ALL {
        println!("{farewell:?}");
        let (origin, go) = patient();
        let engine = Engine::start(&config_for(farewell, origin.address()));
        let mut first = engine.client("plain");
        first.send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
        holds("the first is served", || origin.received_text().contains("/first"));
        for (n, listener) in ["plain", "web"].iter().enumerate() {
            let mut client = engine.client(listener);
            client.send("GET /gone HTTP/1.1\r\nHost: a\r\n\r\n");
            engine.metric_reaches("propylon_queue_depth", &[], 1.0);
            farewell.prepare(&mut client);
            farewell.say(&mut client);
            if !farewell.fault().contains("closed") {
                drop(client);
            }
            engine.metric_reaches("propylon_queue_depth", &[], 0.0);
            let gone = engine.metric("propylon_queue_refused_total", &[("reason", "client-gone")]);
            assert_eq!(gone, (n + 1) as f64);
        }
        engine.metric_reaches("propylon_client_faults_total", &[("reason", farewell.fault())], 2.0);
        go.send(()).expect("the origin waits");
        assert_eq!(first.read_response().text(), "hello\n");
        assert!(!origin.received_text().contains("/gone"));
        assert_eq!(engine.metric("propylon_server_outcomes_total", &[("outcome", "failure")]), 0.0);
    }
}

#[test]
fn a_client_that_goes_away_ends_the_work_at_the_server_whatever_it_has_sent_before() {
    for farewell in Farewell::ALL {
        println!("{farewell:?}");
        let origin = Origin::scripted(|peer| {
            if peer.read_request().is_some() {
                assert!(peer.await_close(Duration::from_secs(20)), "nobody waits for the answer");
                peer.close();
            }
        });
        let engine = Engine::start(&config_for(farewell, origin.address()));
        for (n, listener) in ["plain", "web"].iter().enumerate() {
            let mut client = engine.client(listener);
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            // The one before has left its permit.
            holds("it is served", || origin.received_text().matches("GET / ").count() == n + 1);
            farewell.prepare(&mut client);
            farewell.say(&mut client);
            if !farewell.fault().contains("closed") {
                drop(client);
            }
            engine.metric_reaches("propylon_server_connections", &[], 0.0);
        }
        assert_eq!(engine.metric("propylon_server_requests_in_flight", &[]), 0.0);
        assert_eq!(engine.metric("propylon_client_faults_total", &[("reason", farewell.fault())]), 2.0);
        assert_eq!(engine.metric("propylon_server_close_timeouts_total", &[]), 0.0);
        assert_eq!(engine.metric("propylon_server_outcomes_total", &[("outcome", "failure")]), 0.0);
    }
}

/// An upload that its server does not take: nobody reads what the client sends.
#[test]
fn a_client_that_goes_away_in_an_upload_that_the_server_does_not_take_ends_it() {
    let origin = Origin::scripted(|peer| {
        if peer.read_head().is_some() {
            peer.stall(Duration::from_secs(20));
        }
    });
    let engine = Engine::start(&config(origin.address(), 1, 1, "timeouts = { body = \"10m\", close = \"100ms\" }"));
    let mut client = engine.client("plain");
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n");
    client.read_timeout(Duration::from_millis(300));
    // Until nobody takes any more.
    let piece = vec![b'x'; 1 << 20];
    client.socket().set_write_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    while client.try_send(&piece).is_ok() {}
    client.reset();
    engine.metric_reaches("propylon_client_faults_total", &[("reason", "client-reset")], 1.0);
    engine.metric_reaches("propylon_server_connections", &[], 0.0);
}

/// An origin as a pool of processes is one: each works on a request until it is told to stop, and does not look up. It knows
/// how many it has worked on at once, and in all.
struct Workers {
    origin: Origin,
    go: Sender<()>,
    most: Arc<AtomicUsize>,
}

impl Workers {
    fn new() -> Workers {
        let (go, wait) = channel::<()>();
        let (wait, now, most) = (Mutex::new(wait), AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
        let known = Arc::clone(&most);
        let origin = Origin::scripted(move |peer| {
            while peer.read_request().is_some() {
                known.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let _ = wait.lock().expect("no script panics with it").recv_timeout(Duration::from_secs(60));
                now.fetch_sub(1, Ordering::SeqCst);
                peer.send(HELLO);
            }
        });
        Workers { origin, go, most }
    }

    fn requests(&self) -> usize {
        self.origin.received_text().matches("GET /").count()
    }
}

#[test]
fn impatient_clients_do_not_have_a_server_work_on_more_than_its_limit() {
    let workers = Workers::new();
    let engine = Engine::start(&config(
        workers.origin.address(),
        5,
        2,
        "queue = { timeout = \"10m\" }\ntimeouts = { close = \"10m\" }",
    ));
    // By connections of HTTP/1.1, and by streams of one of HTTP/2.
    let mut clients: Vec<_> = (0..3).map(|_| engine.client("plain")).collect();
    clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    let mut streams = Http2::start(&engine);
    streams.get(1, "/");
    streams.get(3, "/");
    holds("all five are at work", || workers.requests() == 5);
    clients.into_iter().for_each(Client::reset);
    streams.send(RST_STREAM, 0, 1, &CANCEL.to_be_bytes());
    streams.send(RST_STREAM, 0, 3, &CANCEL.to_be_bytes());
    engine.metric_reaches("propylon_server_connections_closing", &[], 5.0);
    assert_eq!(engine.metric("propylon_server_requests_in_flight", &[]), 0.0);
    // They are at work on these still, so that others wait, and most of them give up.
    let mut others: Vec<_> = (0..45).map(|_| engine.client("plain")).collect();
    others.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    engine.metric_reaches("propylon_queue_depth", &[], 45.0);
    let mut patient = others.split_off(40);
    others.into_iter().for_each(Client::reset);
    engine.metric_reaches("propylon_queue_depth", &[], 5.0);
    assert_eq!((workers.requests(), workers.origin.connections()), (5, 5));
    // What is answered late is for nobody, and makes room.
    (0..5).for_each(|_| workers.go.send(()).expect("the origin waits"));
    holds("the patient ones are at work", || workers.requests() == 10);
    (0..5).for_each(|_| workers.go.send(()).expect("the origin waits"));
    patient.iter_mut().for_each(|client| assert_eq!(client.read_response().text(), "hello\n"));
    assert_eq!(workers.most.load(Ordering::SeqCst), 5, "never more at once");
    let connections = workers.origin.connections();
    assert!((6..=10).contains(&connections), "{connections} connections over all of it");
    engine.metric_reaches("propylon_server_connections_closing", &[], 0.0);
}

#[test]
fn a_request_that_took_too_long_counts_until_the_server_is_done_with_it_or_for_so_long() {
    let workers = Workers::new();
    let timeouts = "timeouts = { first_byte = \"100ms\", close = \"10m\" }\nqueue = { timeout = \"10m\" }";
    let engine = Engine::start(&config(workers.origin.address(), 1, 1, timeouts));
    assert_eq!(engine.client("plain").get("/").status, 504);
    engine.metric_reaches("propylon_server_connections_closing", &[], 1.0);
    let mut second = engine.client("plain");
    second.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    engine.metric_reaches("propylon_queue_depth", &[], 1.0);
    assert_eq!(workers.origin.connections(), 1);
    workers.go.send(()).expect("the origin waits");
    holds("the second is at work", || workers.requests() == 2);
    assert_eq!(workers.most.load(Ordering::SeqCst), 1);
    assert_eq!(second.read_response().status, 504);
    assert_eq!(engine.metric("propylon_server_close_timeouts_total", &[]), 0.0);

    let workers = Workers::new();
    let engine =
        Engine::start(&config(workers.origin.address(), 1, 1, &timeouts.replace("close = \"10m\"", "close = \"1s\"")));
    assert_eq!(engine.client("plain").get("/").status, 504);
    // Nothing is heard of that server, and another request gets its turn all the same.
    assert_eq!(engine.client("plain").get("/").status, 504);
    engine.metric_reaches("propylon_server_close_timeouts_total", &[], 2.0);
    assert_eq!(workers.origin.connections(), 2);
}

#[test]
fn in_overload_the_newest_are_served_first_and_the_oldest_makes_way() {
    let (origin, go) = patient();
    let queue = "queue = { limit = 3, timeout = \"10m\", target = \"20ms\" }";
    let engine = Engine::start(&config(origin.address(), 1, 2, queue));
    let mut clients: Vec<_> = (0..5).map(|_| engine.client("plain")).collect();
    let ask = |n: usize, client: &mut Client| client.send(format!("GET /{n} HTTP/1.1\r\nHost: a\r\n\r\n"));
    for (n, client) in clients.iter_mut().enumerate().take(4) {
        ask(n, client);
        match n {
            0 => holds("the first is served", || origin.received_text().contains("GET /0 ")),
            _ => engine.metric_reaches("propylon_queue_depth", &[], n as f64),
        }
    }
    // Nothing but time makes an overload.
    std::thread::sleep(Duration::from_millis(60));
    ask(4, &mut clients[4]);
    let response = clients[1].read_response();
    assert_eq!((response.status, response.text().as_str()), (503, "503 Service Unavailable: queue-full\n"));
    engine.metric_reaches("propylon_queue_depth", &[], 3.0);
    for n in [0, 4, 3, 2] {
        go.send(()).expect("the origin waits");
        assert_eq!(clients[n].read_response().text(), "hello\n", "{n}");
    }
    let text = origin.received_text();
    let order: Vec<&str> = text.split("GET /").skip(1).filter_map(|rest| rest.split(' ').next()).collect();
    assert_eq!(order, ["0", "4", "3", "2"]);
}

/// As many clients as always, each of whom waits for its answer: a line is no overload for being long.
#[test]
fn while_nobody_gives_up_the_line_goes_by_its_order_however_long_its_clients_wait() {
    let (origin, go) = patient();
    let queue = "queue = { timeout = \"10m\", target = \"20ms\" }";
    let engine = Engine::start(&config(origin.address(), 1, 2, queue));
    let mut clients: Vec<_> = (0..4).map(|_| engine.client("plain")).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.send(format!("GET /{n} HTTP/1.1\r\nHost: a\r\n\r\n"));
        match n {
            0 => holds("the first is served", || origin.received_text().contains("GET /0 ")),
            _ => engine.metric_reaches("propylon_queue_depth", &[], n as f64),
        }
    }
    // Nothing but time makes a wait longer than the target.
    std::thread::sleep(Duration::from_millis(60));
    for (n, client) in clients.iter_mut().enumerate() {
        go.send(()).expect("the origin waits");
        assert_eq!(client.read_response().text(), "hello\n", "{n}");
    }
}

/// A server of TLS 1.3 sends its tickets when it has read the end of the handshake (RFC 8446 §4.6.1), which may be long after the
/// client of the request that came with it has gone. It then works on that request all the same.
#[test]
fn tickets_that_come_when_the_client_has_gone_do_not_free_its_permit() {
    let ((read, reads), (go, wait)) = (channel::<()>(), channel::<()>());
    let (reads, wait) = (Mutex::new(reads), Mutex::new(wait));
    let (now, most) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let known = Arc::clone(&most);
    let pem = Certificates::shared().issue(&["127.0.0.1"], &PKCS_ECDSA_P256_SHA256);
    let slow = SecureOrigin::scripted(&pem, &[&TLS13], move |_, stream| {
        // Its own part of the handshake, and nothing of what answers it.
        while stream.conn.wants_read() && !stream.conn.wants_write() {
            stream.conn.read_tls(&mut stream.sock).expect("a client's first words");
            stream.conn.process_new_packets().expect("a hello");
        }
        while stream.conn.wants_write() {
            stream.conn.write_tls(&mut stream.sock).expect("a client that listens");
        }
        let _ = reads.lock().expect("no script panics with it").recv_timeout(Duration::from_secs(60));
        while secure::read_request(stream).is_some() {
            known.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let _ = wait.lock().expect("no script panics with it").recv_timeout(Duration::from_secs(60));
            now.fetch_sub(1, Ordering::SeqCst);
            secure::send(stream, HELLO);
        }
    });
    let other = Origin::always(HELLO);
    let ca = Certificates::shared().ca();
    let backend = format!(
        "tls = {{ ca = \"{}\" }}\nqueue = {{ timeout = \"10m\" }}\ntimeouts = {{ close = \"10m\" }}\n\
         [backend.other]\nservers = [\"{}\"]\n[[route]]\npath = \"/other\"\nbackend = \"other\"",
        ca.display(),
        other.address()
    );
    let engine = Engine::start(&config(slow.address(), 1, 1, &backend));
    let mut first = engine.client("plain");
    first.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    engine.metric_reaches("propylon_server_tls_handshakes_total", &[], 1.0);
    first.reset();
    engine.metric_reaches("propylon_server_connections_closing", &[], 1.0);
    let mut second = engine.client("plain");
    second.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    engine.metric_reaches("propylon_queue_depth", &[], 1.0);
    read.send(()).expect("the server waits");
    holds("the first request is at work, behind the tickets", || most.load(Ordering::SeqCst) == 1);
    // What came to the one worker before these it has looked at.
    (0..3).for_each(|_| assert_eq!(engine.client("plain").get("/other").text(), "hello\n"));
    assert_eq!(engine.metric("propylon_server_connections_closing", &[]), 1.0);
    assert_eq!((slow.connections(), engine.metric("propylon_queue_depth", &[])), (1, 1.0));
    // An answer that is too late is a word of the server's.
    go.send(()).expect("the server is at work");
    read.send(()).expect("the server waits");
    go.send(()).expect("the server is at work");
    assert_eq!(second.read_response().text(), "hello\n");
    assert_eq!(most.load(Ordering::SeqCst), 1, "never more at once than it may have");
    assert_eq!(engine.metric("propylon_server_close_timeouts_total", &[]), 0.0);
}

/// Two servers that are full. A request that has waited for one of them and failed there waits on for the other, and no longer in all
/// than one that came after it did and has waited once.
#[test]
fn a_wait_that_came_to_nothing_counts_for_the_wait_max_of_the_next() {
    let (fall, falls) = channel::<()>();
    let falls = Mutex::new(falls);
    let frail = Origin::scripted(move |peer| {
        if peer.number == 0 && peer.read_request().is_some() {
            let _ = falls.lock().expect("no script panics with it").recv_timeout(Duration::from_secs(60));
            peer.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        }
        // Nothing was served, so that the request may be repeated.
        peer.reset();
    });
    let (steady, go) = patient();
    let servers = |address: SocketAddr| format!("{{ address = \"{address}\", max_connections = 1 }}");
    let one = servers(frail.address());
    let text = config(frail.address(), 1, 1, "queue = { timeout = \"4s\" }\nretries = 2")
        .replace(&one, &format!("{one}, {}", servers(steady.address())));
    let engine = Engine::start(&text);
    let mut busy: Vec<_> = (0..2).map(|_| engine.client("plain")).collect();
    busy.iter_mut().for_each(|client| client.send("GET /busy HTTP/1.1\r\nHost: a\r\n\r\n"));
    holds("both are at work", || [&frail, &steady].iter().all(|server| server.received_text().contains("/busy")));
    let (mut first, mut second) = (engine.client("plain"), engine.client("plain"));
    first.send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
    engine.metric_reaches("propylon_queue_depth", &[], 1.0);
    // Nothing but time is what they wait.
    std::thread::sleep(Duration::from_millis(1_500));
    second.send("GET /second HTTP/1.1\r\nHost: a\r\n\r\n");
    engine.metric_reaches("propylon_queue_depth", &[], 2.0);
    std::thread::sleep(Duration::from_millis(1_000));
    fall.send(()).expect("the server is at work");
    holds("the first has had its turn and failed", || engine.metric("propylon_retries_total", &[]) >= 1.0);
    for client in [&mut first, &mut second] {
        let response = client.read_response();
        assert_eq!((response.status, response.text().as_str()), (503, "503 Service Unavailable: queue-timeout\n"));
    }
    let (waited, _) = (engine.logged_path("/first"), engine.logged_path("/second"));
    let order: Vec<String> = engine.log().iter().filter_map(|line| line["path"].as_str().map(str::to_owned)).collect();
    let place = |path: &str| order.iter().position(|known| known == path);
    assert!(place("/first") < place("/second"), "{order:?}");
    assert!(waited["duration_us"]["queue"].as_u64() >= Some(3_900_000), "{waited}");
    go.send(()).expect("the server is at work");
    for client in &mut busy {
        assert_eq!(client.read_response().status, 200);
    }
}

const PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Runs this story again in a network namespace of its own, if it is not there yet: true where it is. It takes an account that may
/// make one; without, the story says so and that is all.
fn is_in_a_namespace(story: &str) -> bool {
    const INSIDE: &str = "PROPYLON_STORY_IN_A_NAMESPACE";
    if std::env::var_os(INSIDE).is_some() {
        let mut loopback = Command::new("ip");
        run(loopback.args(["link", "set", "lo", "up"]), "the loopback");
        return true;
    }
    let unshare = || {
        let mut command = Command::new("unshare");
        command.arg("--net").stdin(Stdio::null());
        command
    };
    if !unshare().arg("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        println!("skipped: this account may make no network namespace (or there is no unshare)");
        return false;
    }
    let own = std::env::current_exe().expect("a test knows its own path");
    run(unshare().arg(own).args(["--exact", story, "--nocapture"]).env(INSIDE, "1"), story);
    false
}

#[track_caller]
fn run(command: &mut Command, what: &str) {
    let status = command.status().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(status.success(), "{what}: {status}");
}

/// Ports are short towards one address only: there are others for another one.
#[test]
fn out_of_ports_towards_one_server_a_request_is_repeated_at_another() {
    if !is_in_a_namespace("out_of_ports_towards_one_server_a_request_is_repeated_at_another") {
        return;
    }
    let (busy, go) = patient();
    let free = Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfree\n");
    let servers = |weight: u32, address: SocketAddr| format!("{{ address = \"{address}\", weight = {weight} }}");
    let text = config(busy.address(), 1, 1, "balance = \"first\"").replace(
        &format!("{{ address = \"{}\", max_connections = 1 }}", busy.address()),
        &format!("{}, {}", servers(256, busy.address()), servers(1, free.address())),
    );
    let engine = Engine::start(&text);
    // Theirs are not to be short.
    let (mut first, mut second) = (engine.client("plain"), engine.client("plain"));
    let all = std::fs::read_to_string(PORTS).expect("the kernel's range");
    std::fs::write(PORTS, "61000 61000").expect("a range of one port");
    first.send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
    holds("the one port towards it is taken", || busy.received_text().contains("/first"));
    // It would not be sent twice, and has not been sent once.
    let response = second.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
    assert_eq!((response.status, response.text().as_str()), (200, "free\n"));
    std::fs::write(PORTS, all).expect("the range from before");
    assert_eq!(engine.metric("propylon_server_faults_total", &[("reason", "out-of-ports")]), 1.0);
    assert_eq!(engine.metric("propylon_retries_total", &[]), 1.0);
    go.send(()).expect("the server is at work");
    assert_eq!(first.read_response().text(), "hello\n");
    // It has not been taken for a server that fails: the next is its again.
    go.send(()).expect("the server is at work");
    assert_eq!(second.get("/").text(), "hello\n");
}
