//! Server connections between requests: who may use them again, how they end, and that a stale one is never felt.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use propylon_e2e::engine::with;
use propylon_e2e::nginx::Nginx;
use propylon_e2e::wait::WAIT_MAX;
use propylon_e2e::{Client, Ending, Engine, Origin, Peer, holds};

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody";

/// Requests of the race against closing servers; the manual's figure is from 100000.
fn race_requests() -> u64 {
    match std::env::var("PROPYLON_E2E_RACE_REQUESTS") {
        Ok(count) => count.parse().expect("a number of requests"),
        Err(_) => 6_000,
    }
}

fn engine(origin: &Origin, backend: &str) -> Engine {
    Engine::start(&with(&[origin.address()], "", backend))
}

#[track_caller]
fn post(client: &mut Client) {
    assert_eq!(client.ask(POST).text(), "hello\n");
}

#[track_caller]
fn get(client: &mut Client) {
    assert_eq!(client.get("/").text(), "hello\n");
}

/// Waits until so many are idle: a client has its answer a moment before its server's connection is laid down.
#[track_caller]
fn idle(engine: &Engine, count: f64) {
    engine.metric_reaches("propylon_server_connections_idle", &[], count);
}

#[test]
fn never_means_that_a_server_connection_belongs_to_one_client() {
    let origin = Origin::always(HELLO);
    let engine = engine(&origin, "reuse = \"never\"");
    let (mut one, mut two) = (engine.client("web"), engine.client("plain"));
    for _ in 0..5 {
        get(&mut one);
        post(&mut two);
    }
    assert_eq!(origin.connections(), 2, "one for each client, kept between its requests");
    idle(&engine, 2.0);
    drop(one);
    idle(&engine, 1.0);
    engine.metric_reaches("propylon_server_connections", &[], 1.0);
    get(&mut engine.client("web"));
    assert_eq!(origin.connections(), 3, "a client's connection is not left to the next one");
}

#[test]
fn safe_means_that_a_first_request_which_nobody_could_repeat_has_a_connection_of_its_own() {
    let origin = Origin::always(HELLO);
    let engine = engine(&origin, "");
    get(&mut engine.client("web"));
    idle(&engine, 1.0);
    let mut client = engine.client("web");
    post(&mut client);
    assert_eq!(origin.connections(), 2, "a first POST");
    idle(&engine, 2.0);
    post(&mut client);
    idle(&engine, 2.0);
    get(&mut engine.client("web"));
    assert_eq!(origin.connections(), 2, "a later POST, and a first GET, which can be repeated");
}

#[test]
fn aggressive_means_that_such_a_request_may_use_a_connection_that_was_used_again_before() {
    let origin = Origin::always(HELLO);
    let engine = engine(&origin, "reuse = \"aggressive\"");
    get(&mut engine.client("web"));
    idle(&engine, 1.0);
    post(&mut engine.client("web"));
    idle(&engine, 2.0);
    assert_eq!(origin.connections(), 2, "the one there was had served once");
    get(&mut engine.client("web"));
    idle(&engine, 2.0);
    post(&mut engine.client("web"));
    assert_eq!(origin.connections(), 2, "now one has served twice");
}

#[test]
fn always_means_any_request_on_any_connection() {
    let origin = Origin::always(HELLO);
    let engine = engine(&origin, "reuse = \"always\"");
    for _ in 0..5 {
        post(&mut engine.client("web"));
        idle(&engine, 1.0);
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn without_repeats_a_first_request_is_always_alone() {
    let origin = Origin::always(HELLO);
    let engine = engine(&origin, "retries = 0");
    for _ in 0..3 {
        get(&mut engine.client("web"));
    }
    assert_eq!(origin.connections(), 3);
}

#[test]
fn a_connection_ends_after_as_many_requests_as_it_may_carry_and_its_server_is_told() {
    let origin = Origin::always(HELLO);
    let engine = engine(&origin, "max_requests = 3");
    let mut client = engine.client("web");
    for _ in 0..9 {
        get(&mut client);
    }
    assert_eq!(origin.connections(), 3);
    for connection in origin.received() {
        let text = String::from_utf8_lossy(&connection).into_owned();
        assert_eq!(text.matches("GET / ").count(), 3);
        assert_eq!(text.matches("\r\nConnection: close\r\n").count(), 1, "said with the last one");
    }
    engine.metric_reaches("propylon_server_connections", &[], 0.0);
}

#[test]
fn no_more_connections_are_kept_than_may_be_idle() {
    let origin = Origin::always(HELLO);
    let engine = engine(&origin, "max_idle = 1");
    post(&mut engine.client("web"));
    idle(&engine, 1.0);
    post(&mut engine.client("web"));
    engine.metric_reaches("propylon_server_connections", &[], 1.0);
    assert_eq!(origin.connections(), 2, "a first POST has one of its own, for which there is no room then");
    idle(&engine, 1.0);
}

#[test]
fn what_is_repeated_after_a_stale_connection_has_a_new_one() {
    // Takes the second request of each connection, and closes.
    let origin = Origin::scripted(|peer| {
        if peer.read_request().is_some() {
            peer.send(HELLO);
        }
        peer.read_request();
        peer.close();
    });
    let engine = engine(&origin, "");
    for count in [1.0, 2.0, 3.0] {
        post(&mut engine.client("web"));
        idle(&engine, count);
    }
    get(&mut engine.client("web"));
    assert_eq!(origin.connections(), 4);
    let asked = origin.received_text().matches("GET / ").count();
    assert_eq!(asked, 2, "the other idle ones are likely to be stale as well, and are not tried");
}

/// A request keeps the place that its stale connection has left, in front of those who wait; there is one of it.
#[test]
fn the_place_of_a_stale_connection_is_its_requests_and_comes_back_once() {
    let (go_on, is_told) = channel::<()>();
    let is_told = Mutex::new(is_told);
    let origin = Origin::scripted(move |peer| {
        while let Some(request) = peer.read_request() {
            let is_stale = peer.number == 0 && request.starts_with(b"GET /stale");
            if is_stale || request.starts_with(b"GET /held") {
                let _ = is_told.lock().expect("one request at a time").recv_timeout(WAIT_MAX);
            }
            if is_stale {
                return peer.close();
            }
            peer.send(HELLO);
        }
    });
    let server = format!("[\"{}\"]", origin.address());
    let limited = format!("[{{ address = \"{}\", max_connections = 1 }}]", origin.address());
    let engine = Engine::start(&with(&[origin.address()], "", "").replace(&server, &limited));
    get(&mut engine.client("plain"));
    idle(&engine, 1.0);
    let mut clients = [(); 2].map(|()| engine.client("plain"));
    for round in [["/stale", "/behind"], ["/held", "/last"]] {
        for (client, path) in clients.iter_mut().zip(round) {
            client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
            let is_first = path == round[0];
            let (metric, labels) = match is_first {
                true => ("propylon_server_requests_in_flight", [("backend", "app")]),
                false => ("propylon_queue_depth", [("backend", "app")]),
            };
            engine.metric_reaches(metric, &labels, 1.0);
        }
        go_on.send(()).expect("the server waits");
        for client in &mut clients {
            assert_eq!(client.read_response().text(), "hello\n", "{round:?}");
        }
    }
    let seen = origin.received().into_iter().map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let paths = |text: String| {
        text.lines()
            .filter_map(|line| line.strip_prefix("GET ")?.split(' ').next().map(str::to_owned))
            .collect::<Vec<_>>()
    };
    let seen: Vec<Vec<String>> = seen.map(paths).collect();
    assert_eq!(seen, [vec!["/", "/stale"], vec!["/stale", "/behind", "/held", "/last"]]);
}

#[test]
fn a_connection_that_has_lived_its_time_carries_no_further_request() {
    let origin = Origin::always(HELLO);
    let engine = engine(&origin, "max_lifetime = \"50ms\"");
    let mut client = engine.client("web");
    get(&mut client);
    // The sweep finds it, if nothing else does.
    engine.metric_reaches("propylon_server_connections", &[], 0.0);
    for count in 2..5 {
        get(&mut client);
        assert_eq!(origin.connections(), count);
        // And where the sweep has not found it yet.
        std::thread::sleep(Duration::from_millis(60));
    }
}

#[test]
fn connections_are_made_ahead_while_there_are_requests() {
    let origin = Origin::always(HELLO);
    let engine = engine(&origin, "min_idle = 5\nmax_idle = 9");
    assert_eq!(origin.connections(), 0, "nobody has asked yet");
    get(&mut engine.client("web"));
    idle(&engine, 5.0);
    // The engine's end is made by the kernel, before the origin's program has accepted it.
    holds("the origin has accepted all", || origin.connections() >= 5);
    assert_eq!((origin.connections(), engine.metric("propylon_server_warmed_total", &[])), (5, 4.0));
}

#[test]
fn a_connection_goes_back_only_after_a_response_that_is_over() {
    let length = "Content-Length: 6\r\n\r\nhello\n";
    let cases = [
        ("GET", format!("HTTP/1.1 200 OK\r\n{length}"), true),
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n".into(), true),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n".into(), true),
        ("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 6\r\n\r\n".into(), true),
        ("GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nhello\n\r\n0\r\n\r\n".into(), true),
        ("GET", format!("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n{length}"), true),
        ("GET", format!("HTTP/1.0 200 OK\r\n{length}"), false),
        ("GET", format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{length}"), false),
        ("GET", format!("HTTP/1.1 200 OK\r\nConnection: Keep-Alive, Close\r\n{length}"), false),
        // Bytes that belong to no response: whatever they are, the next request must not get them.
        ("GET", format!("HTTP/1.1 200 OK\r\n{length}HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad"), false),
        ("HEAD", format!("HTTP/1.1 200 OK\r\n{length}"), false),
        ("GET", format!("HTTP/1.1 204 No Content\r\n{length}"), false),
        ("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 6\r\n\r\nhello\n".into(), false),
        ("GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nhello\n\r\n0\r\n\r\n\r\n".into(), false),
        ("GET", format!("HTTP/1.1 200 OK\r\n{length}\r\n"), false),
    ];
    for (method, answer, kept) in cases {
        let text = answer.clone();
        let origin = Origin::scripted(move |peer| {
            while peer.read_request().is_some() {
                peer.send(&text);
            }
        });
        let engine = engine(&origin, "");
        let mut client = engine.client("plain");
        for round in 1..=3 {
            client.send(format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n"));
            let head = client.read_head();
            let has_body = method == "GET" && head.starts_with("HTTP/1.1 200");
            let chunked = head.contains("Transfer-Encoding");
            let body = if has_body { client.read_exact(if chunked { 16 } else { 6 }) } else { Vec::new() };
            assert!(body.is_empty() || String::from_utf8_lossy(&body).contains("hello\n"), "{method} {answer:?}");
            let expected = if kept { 1 } else { round };
            assert_eq!(origin.connections(), expected, "{method} {answer:?}");
            engine.metric_reaches("propylon_server_connections", &[], f64::from(u8::from(kept)));
        }
    }
}

#[test]
fn bytes_that_come_while_a_connection_is_idle_end_it() {
    let origin = Origin::scripted(|peer| {
        while peer.read_request().is_some() {
            peer.send(HELLO);
            std::thread::sleep(Duration::from_millis(20));
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad");
        }
    });
    let engine = engine(&origin, "");
    let mut client = engine.client("web");
    for _ in 0..3 {
        get(&mut client);
        // The sweep closes it.
        engine.metric_reaches("propylon_server_connections", &[], 0.0);
    }
    assert_eq!(origin.connections(), 3);
}

/// Though they come just before the next request does, which could be repeated and so asks nobody else.
#[test]
fn bytes_that_nobody_asked_for_are_no_answer_to_the_next_request() {
    let ((say, wait), (said, heard)) = (channel::<()>(), channel::<()>());
    let wait = Mutex::new(wait);
    let origin = Origin::scripted(move |peer| {
        if peer.read_request().is_some() {
            peer.send(HELLO);
            let _ = wait.lock().expect("nobody panics with it").recv_timeout(Duration::from_secs(20));
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad");
            let _ = said.send(());
            peer.await_close(Duration::from_secs(20));
        }
    });
    let engine = engine(&origin, "");
    let mut client = engine.client("plain");
    for _ in 0..4 {
        get(&mut client);
        idle(&engine, 1.0);
        say.send(()).expect("the origin waits");
        heard.recv_timeout(Duration::from_secs(20)).expect("the origin has said so");
    }
    get(&mut client);
    assert_eq!(origin.connections(), 5);
    drop(say);
}

#[test]
fn a_connection_that_nobody_needs_ends_when_its_time_is_over() {
    let origin = Origin::always(HELLO);
    let engine = engine(&origin, "timeouts = { idle = \"1s\" }");
    get(&mut engine.client("web"));
    engine.metric_reaches("propylon_server_connections_idle", &[], 1.0);
    engine.metric_reaches("propylon_server_connections", &[], 0.0);
}

#[test]
fn an_answer_before_the_upload_is_over_ends_the_connection() {
    let origin = Origin::scripted(|peer| {
        peer.read_head();
        peer.send(HELLO);
        peer.await_close(Duration::from_secs(10));
    });
    let engine = engine(&origin, "");
    let mut client = engine.client("plain");
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nbegun");
    assert_eq!(client.read_response().text(), "hello\n");
    engine.metric_reaches("propylon_server_connections", &[], 0.0);
    idle(&engine, 0.0);
}

#[test]
fn a_later_request_that_cannot_be_repeated_ends_without_an_answer_when_its_connection_was_stale() {
    // Takes the second request of each connection, and closes.
    let origin = Origin::scripted(|peer| {
        if peer.read_request().is_some() {
            peer.send(HELLO);
        }
        peer.read_request();
        peer.close();
    });
    for (backend, is_always) in [("", false), ("reuse = \"always\"", true)] {
        let engine = engine(&origin, backend);
        let mut client = engine.client("web");
        get(&mut client);
        idle(&engine, 1.0);
        if is_always {
            let response = engine.client("web").ask(POST);
            assert_eq!(response.status, 502, "a client's first request gets an answer");
            get(&mut client);
            idle(&engine, 1.0);
        }
        client.send(POST);
        assert_eq!(client.read_to_end(), (Vec::new(), Ending::Clean), "so that the client may ask again");
        let line = engine.logged("a line", |line| line["method"] == "POST" && line["status"] == 0);
        assert_eq!(line["fault"], "closed-before-response", "{line}");
    }
}

/// Serves a connection's first request always; after that it closes at a moment and in a way that chance decides.
fn treacherous(peer: &mut Peer, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed + peer.number as u64);
    let end = |peer: &mut Peer, random: &mut fastrand::Rng| if random.bool() { peer.close() } else { peer.reset() };
    while peer.read_request().is_some() {
        peer.send(HELLO);
        match random.u8(..24) {
            // FIN on the heels of the response.
            0 => return peer.close(),
            // While it is idle, or while the next request is on its way.
            1..=3 => {
                std::thread::sleep(Duration::from_micros(random.u64(..3_000)));
                return end(peer, &mut random);
            }
            // At the first bytes of the next request.
            4 => {
                peer.read_exact(random.usize(1..8));
                return end(peer, &mut random);
            }
            // After all of it.
            5 => {
                peer.read_head();
                return end(peer, &mut random);
            }
            // Half-closed, and deaf.
            6 => {
                peer.finish();
                peer.await_close(Duration::from_secs(10));
                return peer.close();
            }
            _ => {}
        }
    }
}

#[test]
fn a_request_that_can_be_repeated_never_feels_that_an_idle_connection_was_closed() {
    let seed = fastrand::u64(..1 << 32);
    println!("seed {seed}");
    let origins: Vec<Origin> = (0..2).map(|_| Origin::scripted(move |peer| treacherous(peer, seed))).collect();
    let addresses: Vec<_> = origins.iter().map(Origin::address).collect();
    let limited: Vec<String> =
        addresses.iter().map(|address| format!("{{ address = \"{address}\", max_connections = 6 }}")).collect();
    let plain = with(&addresses, "", "");
    let limits = plain.replace(
        &format!("servers = [\"{}\", \"{}\"]", addresses[0], addresses[1]),
        &format!("servers = [{}]", limited.join(", ")),
    );
    assert_ne!(plain, limits);
    for config in [plain, limits] {
        let engine = Engine::start(&format!(
            "[process]\nworkers = 2\ndrain_timeout = \"1s\"\n[log]\naccess = \"off\"\n{config}"
        ));
        let left = Arc::new(AtomicU64::new(race_requests() / 2));
        let clients = (0..16_u64).map(|n| {
            let (left, mut client) = (Arc::clone(&left), engine.client(if n % 2 == 0 { "plain" } else { "web" }));
            std::thread::spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed ^ n);
                while left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
                    let response = match random.u8(..3) {
                        0 => client.ask("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"),
                        1 => client.ask("DELETE / HTTP/1.1\r\nHost: a\r\n\r\n"),
                        _ => client.get("/"),
                    };
                    assert_eq!((response.status, response.text().as_str()), (200, "hello\n"));
                    if random.u8(..4) == 0 {
                        std::thread::sleep(Duration::from_micros(random.u64(..2_000)));
                    }
                }
            })
        });
        let clients: Vec<_> = clients.collect();
        clients.into_iter().for_each(|client| client.join().expect("every answer is the right one"));
        let stale = engine.metric("propylon_stale_retries_total", &[]);
        println!("{} requests, {stale} repeated", race_requests() / 2);
        assert!(stale > 0.0, "nothing was stale, so nothing was shown");
        assert_eq!(engine.metric("propylon_responses_total", &[("class", "5xx")]), 0.0);
        holds("connections are counted", || engine.metric("propylon_server_connections", &[]) <= 64.0);
    }
}

#[test]
fn nginx_ends_its_connections_as_often_as_it_likes() {
    let nginx = Nginx::keeping("one", "keepalive_timeout 1s;\nkeepalive_requests 7;");
    std::fs::write(nginx.root().join("index.html"), "hello\n").expect("a page");
    let engine = Engine::start(&with(&[nginx.address()], "", ""));
    std::thread::scope(|scope| {
        for n in 0..8 {
            let mut client = engine.client(if n % 2 == 0 { "plain" } else { "web" });
            scope.spawn(move || {
                for request in 0..300 {
                    get(&mut client);
                    if request % 100 == 99 {
                        // For as long as nginx keeps a connection.
                        std::thread::sleep(Duration::from_millis(1_000));
                    }
                }
            });
        }
    });
    assert_eq!(engine.metric("propylon_responses_total", &[("class", "5xx")]), 0.0);
    assert!(engine.metric("propylon_server_connections_total", &[]) >= 2_400.0 / 7.0);
}

#[test]
fn clients_are_counted_for_every_backend_however_many_there_are() {
    let origin = Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let mut text =
        String::from("[process]\nworkers = 1\ndrain_timeout = \"1s\"\n[listener.plain]\nbind = \"127.0.0.1:0\"\n");
    for number in 0..140 {
        text += &format!("[backend.b{number}]\nservers = [\"{}\"]\n", origin.address());
        text += &format!("[[route]]\npath = \"/{number}/\"\nbackend = \"b{number}\"\n");
    }
    let engine = Engine::start(&text);
    let backends = [3, 63, 64, 67, 131];
    let open =
        |number: usize| engine.metric("propylon_backend_client_connections", &[("backend", &format!("b{number}"))]);
    let mut client = engine.client("plain");
    for number in backends.iter().chain(&backends) {
        assert_eq!(client.get(&format!("/{number}/")).status, 200);
    }
    assert_eq!(backends.map(open), [1.0; 5]);
    assert_eq!(engine.metric("propylon_backend_client_connections_total", &[]), 5.0);
    assert_eq!(engine.metric("propylon_backend_client_connections", &[]), 5.0);
    drop(client);
    engine.metric_reaches("propylon_backend_client_connections", &[], 0.0);
}
