//! Peers that are slow or silent: each is cut off in time and counted, and nobody else notices.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use propylon_e2e::engine::with;
use propylon_e2e::{Client, Ending, Engine, Origin, holds};
use socket2::{Domain, SockAddr, Socket, Type};

const LISTENERS: [&str; 2] = ["plain", "web"];
const CLIENTS: &str = "timeouts = { handshake = \"1s\", request_head = \"1s\", body = \"2s\", idle = \"1s\" }\n\
    limits = { body_rate_min = \"240B\" }";
const SERVERS: &str = "timeouts = { connect = \"1s\", first_byte = \"1s\", body = \"1s\" }\nretries = 0";
/// An answer to somebody else takes no longer than this, on a machine with other work.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// An origin that answers at once, but for some paths.
fn origin() -> Origin {
    Origin::scripted(|peer| {
        while let Some(head) = peer.read_head() {
            let text = String::from_utf8_lossy(&head).into_owned();
            match text.split(' ').nth(1).unwrap_or_default() {
                "/large" => {
                    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 200000000\r\n\r\n");
                    while peer.try_send(&[b'x'; 100_000]).is_ok() {}
                }
                "/silent" | "/no-reader" => return wait_for_the_end(peer),
                "/half" => {
                    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nten bytes.");
                    return wait_for_the_end(peer);
                }
                _ => peer.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n"),
            }
        }
    })
}

/// Without reading, so that what is sent piles up.
fn wait_for_the_end(peer: &mut propylon_e2e::Peer) {
    peer.stall(Duration::from_secs(10));
}

/// Well-behaved clients that keep asking on both listeners, and must not notice anything.
struct Steady {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<usize>>,
}

impl Steady {
    fn start(engine: &Engine) -> Steady {
        let stop = Arc::new(AtomicBool::new(false));
        let spawn = |mut client: Client| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                let mut answers = 0;
                while !stop.load(Ordering::SeqCst) {
                    let asked = Instant::now();
                    assert_eq!(client.get("/quick").text(), "hello\n");
                    assert!(asked.elapsed() < ANSWER_MAX, "an answer took {:?}", asked.elapsed());
                    answers += 1;
                    std::thread::sleep(Duration::from_millis(10));
                }
                answers
            })
        };
        let threads = ["plain", "web"].map(|listener| spawn(engine.client(listener))).into();
        Steady { stop, threads }
    }

    fn finish(self) {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads {
            assert!(thread.join().expect("a client was let down") > 10, "too few answers to mean anything");
        }
    }
}

/// Runs `story` on each listener at once, beside steady clients; it must take from `least` to `most` and count one
/// `wait` each.
fn cut_off(wait: &str, least: f64, most: f64, story: impl Fn(&mut Client) + Sync) {
    let origin = origin();
    let engine = Engine::start(&with(&[origin.address()], CLIENTS, SERVERS));
    let steady = Steady::start(&engine);
    std::thread::scope(|scope| {
        for listener in LISTENERS {
            let mut client = engine.client(listener);
            let story = &story;
            scope.spawn(move || {
                let began = Instant::now();
                story(&mut client);
                let took = began.elapsed().as_secs_f64();
                assert!((least..most).contains(&took), "{listener}: cut off after {took:.2} s");
            });
        }
    });
    let count = LISTENERS.len() as f64;
    engine.metric_reaches("propylon_timeouts_total", &[("wait", wait)], count);
    steady.finish();
    assert_eq!(engine.metric("propylon_timeouts_total", &[]), count, "and nothing else was cut off");
}

/// Sends a byte every now and then until the engine has had enough.
fn drip(client: &mut Client, every: Duration) {
    let began = Instant::now();
    client.read_timeout(every);
    while began.elapsed() < Duration::from_secs(8) {
        if client.try_send(b"x").is_err() || client.has_something() {
            break;
        }
    }
    client.read_timeout(Duration::from_secs(10));
}

#[test]
fn a_head_that_comes_a_byte_at_a_time_is_cut_off() {
    cut_off("request-head", 0.9, 3.0, |client| {
        client.send("GET / HTTP/1.1\r\nHost: a\r\nX: ");
        drip(client, Duration::from_millis(200));
        let response = client.read_response();
        assert_eq!((response.status, response.text().as_str()), (408, "408 Request Timeout: request-head-timeout\n"));
        assert_eq!(response.field("Connection"), Some("close"));
    });
}

#[test]
fn a_body_that_comes_a_byte_at_a_time_is_cut_off() {
    cut_off("request-body", 1.9, 5.0, |client| {
        client.send("POST /silent HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n");
        drip(client, Duration::from_millis(200));
        let response = client.read_response();
        assert_eq!((response.status, response.text().as_str()), (408, "408 Request Timeout: client-body-timeout\n"));
    });
}

#[test]
fn a_body_that_stops_coming_is_cut_off() {
    cut_off("request-body", 1.9, 4.0, |client| {
        client.send("POST /silent HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n400\r\nhalf");
        let response = client.read_response();
        assert_eq!((response.status, response.text().as_str()), (408, "408 Request Timeout: client-body-timeout\n"));
    });
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    cut_off("response-body", 1.9, 5.0, |client| {
        client.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
        // Nothing is read, so that only a write can tell that the engine has given up.
        let began = Instant::now();
        while client.try_send(b"\r\n").is_ok() && began.elapsed() < Duration::from_secs(8) {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
}

#[test]
fn a_kept_connection_without_requests_is_closed_in_order() {
    cut_off("idle", 0.9, 3.0, |client| {
        assert_eq!(client.get("/").text(), "hello\n");
        assert_eq!(client.ending(), Ending::Clean);
    });
}

#[test]
fn a_handshake_that_stalls_is_cut_off() {
    let origin = origin();
    let engine = Engine::start(&with(&[origin.address()], CLIENTS, SERVERS));
    let steady = Steady::start(&engine);
    // The beginning of a ClientHello of 512 bytes, and nothing at all.
    for (index, bytes) in [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], b""].iter().enumerate() {
        let mut socket = TcpStream::connect(engine.address("web")).expect("a connection");
        socket.set_read_timeout(Some(Duration::from_secs(12))).expect("a timeout");
        let began = Instant::now();
        socket.write_all(bytes).expect("bytes are taken");
        let ended = socket.read(&mut [0; 100]);
        assert!(matches!(ended, Ok(0)) || ended.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset));
        // The kernel hands a silent connection on only after it has waited for bytes itself.
        let most = if bytes.is_empty() { 10.0 } else { 3.0 };
        let took = began.elapsed().as_secs_f64();
        assert!((0.9..most).contains(&took), "cut off after {took:.2} s");
        engine.metric_reaches("propylon_timeouts_total", &[("wait", "handshake")], index as f64 + 1.0);
    }
    assert_eq!(engine.metric("propylon_tls_handshake_failures_total", &[("reason", "timeout")]), 2.0);
    steady.finish();
}

#[test]
fn a_server_that_does_not_answer_becomes_504() {
    cut_off("first-byte", 0.9, 3.0, |client| {
        let response = client.get("/silent");
        assert_eq!((response.status, response.text().as_str()), (504, "504 Gateway Timeout: first-byte-timeout\n"));
        assert_eq!(client.get("/").text(), "hello\n", "the client's connection lives on");
    });
}

/// Whichever direction a poll looks at first when the last of the body goes out.
#[test]
fn a_server_that_has_taken_a_large_body_and_does_not_answer_becomes_504() {
    let origin = Origin::scripted(|peer| {
        peer.read_head();
        while peer.read_some().is_some() {}
    });
    let engine = Engine::start(&with(&[origin.address()], CLIENTS, SERVERS));
    let sizes = (1..=20).map(|count| count * 300_000);
    let mut clients: Vec<(usize, Client)> = sizes.map(|size| (size, engine.client("plain"))).collect();
    for (size, client) in &mut clients {
        client.send(format!("POST /taken HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n"));
        client.send(vec![b'x'; *size]);
    }
    for (size, client) in &mut clients {
        client.read_timeout(Duration::from_secs(10));
        let response = client.read_response();
        let expected = (504, "504 Gateway Timeout: first-byte-timeout\n".to_owned());
        assert_eq!((response.status, response.text()), expected, "{size} bytes");
    }
    holds("the servers' connections end", || engine.metric("propylon_server_connections", &[]) == 0.0);
}

#[test]
fn a_server_that_stops_half_way_breaks_the_response_off() {
    cut_off("server-body", 0.9, 3.0, |client| {
        client.send("GET /half HTTP/1.1\r\nHost: a\r\n\r\n");
        let (bytes, ending) = client.read_to_end();
        assert!(bytes.ends_with(b"ten bytes."));
        assert!(matches!(ending, Ending::Reset | Ending::Truncated), "{ending:?}");
    });
}

#[test]
fn a_server_that_does_not_read_the_body_becomes_504() {
    cut_off("server-body", 0.9, 5.0, |client| {
        client.send("POST /no-reader HTTP/1.1\r\nHost: a\r\nContent-Length: 50000000\r\n\r\n");
        let began = Instant::now();
        client.read_timeout(Duration::from_millis(1));
        while began.elapsed() < Duration::from_secs(8) && client.offer(&[b'x'; 30_000]) && !client.has_something() {}
        client.read_timeout(Duration::from_secs(10));
        let response = client.read_response();
        assert_eq!((response.status, response.text().as_str()), (504, "504 Gateway Timeout: body-timeout\n"));
    });
}

/// A listener whose queue is full: the kernel answers no more connects.
struct Deaf {
    address: SocketAddr,
    _listener: Socket,
    _waiting: Vec<TcpStream>,
}

impl Deaf {
    fn new() -> Deaf {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        listener.bind(&SockAddr::from(any)).expect("a free port");
        listener.listen(0).expect("a listener");
        let address = listener.local_addr().ok().and_then(|address| address.as_socket()).expect("an address");
        let mut waiting = Vec::new();
        while let Ok(socket) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
            waiting.push(socket);
            assert!(waiting.len() < 10, "a queue that does not fill");
        }
        Deaf { address, _listener: listener, _waiting: waiting }
    }
}

#[test]
fn a_server_that_cannot_be_reached_becomes_504() {
    let deaf = Deaf::new();
    let engine = Engine::start(&with(&[deaf.address], CLIENTS, SERVERS));
    let began = Instant::now();
    let response = engine.client("web").get("/");
    let took = began.elapsed().as_secs_f64();
    assert_eq!((response.status, response.text().as_str()), (504, "504 Gateway Timeout: connect-timeout\n"));
    assert!((0.9..3.0).contains(&took), "{took:.2} s");
    engine.metric_reaches("propylon_timeouts_total", &[("wait", "connect")], 1.0);
}

#[test]
fn a_server_that_cannot_be_reached_is_passed_over_after_the_first_wait() {
    let (deaf, origin) = (Deaf::new(), origin());
    let timeouts = SERVERS.replace("retries = 0", "retries = 2");
    let engine = Engine::start(&with(&[deaf.address, origin.address()], CLIENTS, &timeouts));
    let mut slow = 0;
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(2_500) {
        let asked = Instant::now();
        assert_eq!(engine.client("web").get("/").text(), "hello\n");
        slow += usize::from(asked.elapsed() > Duration::from_millis(900));
    }
    assert!((1..=2).contains(&slow), "{slow} requests waited for a server that does not answer");
}

#[test]
fn a_request_whose_client_has_gone_is_given_up() {
    let origin = origin();
    let engine = Engine::start(&with(&[origin.address()], CLIENTS, "timeouts = { first_byte = \"60s\" }"));
    for listener in ["plain", "web"] {
        let mut client = engine.client(listener);
        client.send("GET /silent HTTP/1.1\r\nHost: a\r\n\r\n");
        holds("the request is out", || engine.metric("propylon_requests_in_progress", &[]) == 1.0);
        client.reset();
        holds("the request is given up", || engine.metric("propylon_requests_in_progress", &[]) == 0.0);
    }
    holds("the servers' ends are closed", || engine.metric("propylon_server_connections", &[]) == 0.0);
    assert_eq!(engine.metric("propylon_client_faults_total", &[("reason", "client-reset")]), 2.0);
}
