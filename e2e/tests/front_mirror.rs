//! Copies of requests for another backend: bodies of every kind, mirrors of both versions of HTTP, and all that can go
//! wrong on either side while the first exchange goes on as if nobody looked.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use propylon_e2e::engine::with;
use propylon_e2e::frames::{CANCEL, DATA, END_STREAM, Http2, RST_STREAM, request};
use propylon_e2e::http::{chunked, head_end, in_chunks, values};
use propylon_e2e::nginx::Nginx;
use propylon_e2e::origin::dead;
use propylon_e2e::php::Php;
use propylon_e2e::program::curl;
use propylon_e2e::wait::WAIT_MAX;
use propylon_e2e::{Certificates, Engine, Origin, Scratch, holds};
use rustix::process::Signal;

/// A request as a server got it, its body unframed.
struct Seen {
    head: String,
    body: Vec<u8>,
}

impl Seen {
    /// Lines of the head, but for how the body is framed.
    fn lines(&self) -> Vec<&str> {
        let is_framing = |line: &&str| {
            let line = line.to_ascii_lowercase();
            line.starts_with("content-length:") || line.starts_with("transfer-encoding:")
        };
        self.head.lines().filter(|line| !is_framing(line)).collect()
    }
}

/// A server that says its name, and hands over what it was asked.
struct Server {
    origin: Origin,
    seen: Receiver<Seen>,
}

impl Server {
    fn new(name: &'static str) -> Server {
        Server::saying(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len()))
    }

    fn saying(answer: String) -> Server {
        let (tell, seen) = channel();
        let tell = Mutex::new(tell);
        let origin = Origin::answering(move |request| {
            let end = head_end(request).expect("a head");
            let head = String::from_utf8_lossy(&request[..end]).into_owned();
            let body = match values(&head, "Transfer-Encoding").is_empty() {
                true => request[end..].to_vec(),
                false => chunked(&request[end..]).expect("a whole body").data,
            };
            let _ = tell.lock().expect("no script panics with it").send(Seen { head, body });
            answer.clone().into_bytes()
        });
        Server { origin, seen }
    }

    #[track_caller]
    fn next(&self) -> Seen {
        self.seen.recv_timeout(WAIT_MAX).expect("a request")
    }

    #[track_caller]
    fn was_not_asked(&self) {
        if let Ok(seen) = self.seen.try_recv() {
            panic!("it was asked:\n{}", seen.head);
        }
    }

    /// Waits for these bytes.
    #[track_caller]
    fn has(&self, text: &str) {
        holds("the server gets some of it", || self.origin.received_text().contains(text));
    }
}

fn backend(name: &str, servers: &[SocketAddr], more: &str) -> String {
    let servers: Vec<String> = servers.iter().map(|address| format!("\"{address}\"")).collect();
    format!("[backend.{name}]\nservers = [{}]\n{more}\n", servers.join(", "))
}

fn route(path: &str, backend: &str, mirror: &str, more: &str) -> String {
    format!("[[route]]\npath = \"{path}\"\nbackend = \"{backend}\"\nmirror = {{ backend = {mirror} }}\n{more}\n")
}

const LISTENERS: &str =
    "[listener.plain]\nbind = \"127.0.0.1:0\"\n[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n";

fn body(length: usize) -> Vec<u8> {
    (0..length).map(|at| b'a' + ((at * 7 + at / 1_021) % 26) as u8).collect()
}

/// Ways in which a body may come.
const WAYS: [&str; 3] = ["length", "chunks", "frames"];

/// Sends a body to the path of its way: once `server` has its head, and the rest once it has the first of it. Returns
/// the status, and the answer's body.
#[track_caller]
fn upload(engine: &Engine, (way, path): (&str, &str), body: &[u8], server: &Server) -> (u16, Vec<u8>) {
    let first = String::from_utf8_lossy(&body[..body.len().min(9)]).into_owned();
    let (lead, rest) = body.split_at(first.len());
    if way == "frames" {
        let mut http2 = Http2::start(engine);
        http2.headers(1, 0, &request("POST", path));
        server.has(path);
        http2.send(DATA, 0, 1, lead);
        rest.chunks(700).for_each(|piece| http2.send(DATA, 0, 1, piece));
        http2.send(DATA, END_STREAM, 1, b"");
        let (head, body) = http2.response(1);
        return (head.status().or(head.spelled_status()).expect("a status"), body);
    }
    let mut client = engine.client("plain");
    let framing = match way {
        "length" => format!("Content-Length: {}", body.len()),
        _ => "Transfer-Encoding: chunked".into(),
    };
    client.send(format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nX-A: b\r\n{framing}\r\n\r\n"));
    server.has(path);
    if way == "length" {
        client.send(lead);
        server.has(&first);
        client.send(rest);
    } else {
        client.send(format!("{:x}\r\n{first}\r\n", first.len()));
        server.has(&first);
        client.send(in_chunks(&rest.chunks(700).collect::<Vec<_>>(), ""));
    }
    let response = client.read_response();
    (response.status, response.body)
}

#[track_caller]
fn reaches(engine: &Engine, backend: &str, outcome: &str, count: f64) {
    let labels = [("backend", backend), ("reason", outcome)];
    engine.metric_reaches("propylon_mirrored_requests_total", &labels, count);
}

/// Each server is told of itself, at once and with a body that comes later.
#[test]
fn a_copys_server_is_asked_for_its_own_address() {
    let (own, shadow) = (Server::new("own"), Server::new("shadow"));
    let change = "request = { host = \"{upstream.server}\", set = { X-At = \"at {upstream.server}\" } }";
    let servers = [
        backend("own", &[own.origin.address()], ""),
        backend("shadow", &[shadow.origin.address()], ""),
        route("/", "own", "\"shadow\"", change),
    ];
    let engine = Engine::start(&format!("{LISTENERS}{}", servers.concat()));
    for (way, length) in [("length", 10), ("frames", 4_000)] {
        assert_eq!(upload(&engine, (way, "/x"), &body(length), &own).0, 200);
        for server in [&own, &shadow] {
            let (seen, address) = (server.next(), server.origin.address());
            assert_eq!(values(&seen.head, "Host"), [address.to_string()]);
            assert_eq!(values(&seen.head, "X-At"), [format!("at {address}")]);
        }
    }
}

#[test]
fn bodies_that_come_later_than_their_heads_are_copied_to_the_byte() {
    let (own, shadow) = (Server::new("own"), Server::new("shadow"));
    let engine = Engine::start(
        &[
            LISTENERS,
            &backend("own", &[own.origin.address()], ""),
            &backend("shadow", &[shadow.origin.address()], ""),
            &route("/", "own", "\"shadow\", body = \"60KiB\"", ""),
            &route("/share", "own", "\"shadow\", percent = 5", ""),
        ]
        .concat(),
    );
    let mut answered = 0.0;
    for length in [0, 1, 16 * 1024, 16 * 1024 + 1, 60 * 1024] {
        let body = body(length);
        for way in WAYS {
            let path = format!("/{way}/{length}?q=1");
            assert_eq!(upload(&engine, (way, &path), &body, &own), (200, b"own".to_vec()));
            let (first, copy) = (own.next(), shadow.next());
            assert!(first.body == body && copy.body == body, "{path}: {} bytes of a copy", copy.body.len());
            assert_eq!(copy.lines(), first.lines());
            assert_eq!(values(&copy.head, "Content-Length"), [length.to_string()]);
            assert!(values(&copy.head, "Transfer-Encoding").is_empty(), "{}", copy.head);
            answered += 1.0;
        }
    }
    // A copy has no trailers, and announces none.
    let mut client = engine.client("plain");
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n";
    assert_eq!(client.ask(format!("{head}5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n")).text(), "own");
    let (first, copy) = (own.next(), shadow.next());
    assert!(first.body == b"hello" && copy.body == b"hello");
    assert_eq!((values(&first.head, "Trailer"), values(&copy.head, "Trailer")), (vec!["X-Sum"], vec![]));
    answered += 1.0;
    reaches(&engine, "shadow", "answered", answered);
    // A byte too long, and too long by far: what was not known beforehand goes on as if nobody had looked.
    for (round, length) in [60 * 1024 + 1, 65_000].into_iter().enumerate() {
        for (number, way) in WAYS.into_iter().enumerate() {
            let path = format!("/long/{way}/{length}");
            assert_eq!(upload(&engine, (way, &path), &body(length), &own), (200, b"own".to_vec()));
            assert!(own.next().body == body(length));
            reaches(&engine, "shadow", "not-copied", (round * WAYS.len() + number + 1) as f64);
        }
    }
    let (scratch, long) = (Scratch::new(), body(3_000_000));
    let data = format!("@{}", scratch.write("long", &long).display());
    for (version, framing) in
        [("--http1.1", "X-Nothing: 1"), ("--http1.1", "Transfer-Encoding: chunked"), ("--http2", "X-Nothing: 1")]
    {
        for url in [engine.url("web"), engine.url("plain")] {
            let version =
                if url.starts_with("http:") && version == "--http2" { "--http2-prior-knowledge" } else { version };
            let said = curl(&[version, "--data-binary", &data, "--header", framing, &url]).ok().text();
            assert!(said == "own" && own.next().body == long, "{version} {framing}: {said}");
        }
    }
    reaches(&engine, "shadow", "not-copied", 12.0);
    let mut http2 = Http2::start(&engine);
    for number in 0..100 {
        http2.headers(2 * number + 1, 0, &request("PUT", "/share"));
        http2.send(DATA, END_STREAM, 2 * number + 1, b"body");
        assert_eq!(http2.response(2 * number + 1).1, b"own");
    }
    reaches(&engine, "shadow", "answered", answered + 5.0);
    (0..5).for_each(|_| assert_eq!(shadow.next().body, b"body"));
    shadow.was_not_asked();
    assert_eq!(engine.metric("propylon_mirrored_requests_total", &[("reason", "failed")]), 0.0);
}

#[test]
fn several_mirrors_get_copies_each_by_its_own_share_and_bounds() {
    let (own, wide, narrow) = (Server::new("own"), Server::new("wide"), Server::new("narrow"));
    let list = "mirror = [{ backend = \"wide\" }, { backend = \"narrow\", percent = 50, body = \"1KiB\" }, { backend = \"gone\" }]";
    let engine = Engine::start(
        &[
            // Each worker takes turns by itself.
            "[process]\nworkers = 1\n",
            // Clients write a field of this name as well.
            &LISTENERS.replacen("\n[listener.web]", "\nrequest_headers = { X-A = \"{client.ip}\" }\n[listener.web]", 1),
            &backend("own", &[own.origin.address()], ""),
            &backend("wide", &[wide.origin.address()], ""),
            &backend("narrow", &[narrow.origin.address()], ""),
            &backend("gone", &[dead()], ""),
            &format!("[[route]]\nbackend = \"own\"\n{list}\n"),
        ]
        .concat(),
    );
    // Bodies that come later, of a length that all may have: every second goes to the narrow one.
    for round in 0..2 {
        for way in WAYS {
            let body = body(900);
            assert_eq!(upload(&engine, (way, &format!("/short/{way}/{round}")), &body, &own), (200, b"own".to_vec()));
            let (first, copy) = (own.next(), wide.next());
            assert!(first.body == body && copy.body == body && copy.lines() == first.lines(), "{way} {round}");
            assert_eq!(values(&copy.head, "X-A"), ["127.0.0.1"], "{way} {round}");
        }
    }
    reaches(&engine, "wide", "answered", 6.0);
    reaches(&engine, "narrow", "answered", 3.0);
    reaches(&engine, "gone", "failed", 6.0);
    (0..3).for_each(|_| assert!(narrow.next().body == body(900)));
    // Longer than one of them takes, which is nothing to the others.
    for round in 0..2 {
        for way in WAYS {
            let body = body(9_000);
            assert_eq!(upload(&engine, (way, &format!("/long/{way}/{round}")), &body, &own), (200, b"own".to_vec()));
            assert!(own.next().body == body && wide.next().body == body, "{way} {round}");
        }
    }
    reaches(&engine, "wide", "answered", 12.0);
    reaches(&engine, "narrow", "not-copied", 3.0);
    narrow.was_not_asked();
    // A body that is here with its head, and none at all.
    for number in 0..2 {
        let said = curl(&["-d", "short", &format!("{}/{number}", engine.url("web"))]).ok().text();
        assert_eq!((said.as_str(), wide.next().body, own.next().body), ("own", b"short".to_vec(), b"short".to_vec()));
        assert_eq!(engine.client("plain").get("/nothing").text(), "own");
        assert_eq!((wide.next().body.len(), own.next().body.len()), (0, 0));
    }
    reaches(&engine, "narrow", "answered", 5.0);
}

#[test]
fn mirrors_speak_http2_by_prior_knowledge_and_by_tls() {
    let (own, shadow) = (Server::new("own"), Server::new("shadow"));
    let back = Engine::start(&with(&[shadow.origin.address()], "", ""));
    let (pem, ca) = (Certificates::shared().ec(), Certificates::shared().ca());
    let nginx = Nginx::secure_http2("copies", &pem, "location / { return 204; }");
    let tls = format!("tls = {{ ca = \"{}\", server_name = \"localhost\" }}\n", ca.display());
    let engine = Engine::start(
        &[
            LISTENERS,
            &backend("own", &[own.origin.address()], ""),
            &backend("known", &[back.address("plain")], "protocol = \"h2\""),
            &backend("agreed", &[back.address("web")], &format!("{tls}protocol = \"auto\"")),
            &backend("old", &[back.address("web")], &tls),
            &backend("nginx", &[nginx.address()], &format!("{tls}protocol = \"h2\"")),
            &route("/known", "own", "\"known\"", ""),
            &route("/agreed", "own", "\"agreed\"", ""),
            &route("/old", "own", "\"old\"", ""),
            &route("/nginx", "own", "\"nginx\"", ""),
        ]
        .concat(),
    );
    let body = body(50_000);
    for mirror in ["known", "agreed", "old", "nginx"] {
        for (number, way) in WAYS.into_iter().enumerate() {
            let path = format!("/{mirror}/{way}");
            assert_eq!(upload(&engine, (way, &path), &body, &own), (200, b"own".to_vec()));
            assert!(own.next().body == body);
            reaches(&engine, mirror, "answered", (number + 1) as f64);
            if mirror != "nginx" {
                let copy = shadow.next();
                assert!(copy.head.starts_with(&format!("POST {path} HTTP/1.1\r\n")), "{}", copy.head);
                assert!(copy.body == body, "{} bytes", copy.body.len());
                assert_eq!(values(&copy.head, "Host"), ["localhost"]);
                assert_eq!(values(&copy.head, "Content-Length"), ["50000"]);
            }
        }
        let said = curl(&["--http2", "-b", "a=1; b=2", &format!("{}/{mirror}/page?x=y", engine.url("web"))]).ok();
        assert_eq!((said.text().as_str(), own.next().body.len()), ("own", 0));
        reaches(&engine, mirror, "answered", 4.0);
        if mirror != "nginx" {
            let copy = shadow.next();
            assert!(copy.head.starts_with(&format!("GET /{mirror}/page?x=y ")), "{}", copy.head);
            assert_eq!((values(&copy.head, "Cookie"), copy.body.len()), (vec!["a=1; b=2"], 0));
            assert!(values(&copy.head, "Content-Length").is_empty(), "{}", copy.head);
        }
    }
    assert_eq!(back.metric("propylon_http2_streams_total", &[]), 8.0);
    for mirror in ["known", "agreed", "nginx"] {
        assert_eq!(engine.metric("propylon_server_connections_total", &[("backend", mirror)]), 1.0, "{mirror}");
    }
}

#[test]
fn a_mirror_that_fails_or_is_slow_is_nothing_to_the_first_exchange() {
    let own = Server::new("own");
    // Longer than the story waits for its copies to be given up.
    let hangs = Origin::scripted(|peer| peer.stall(2 * WAIT_MAX));
    let resets = Origin::scripted(|peer| {
        peer.read_head();
        peer.reset();
    });
    let early = Origin::scripted(|peer| {
        peer.read_head();
        peer.send("HTTP/1.1 413 Early\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno");
    });
    let long = |length: usize| {
        Origin::always(
            [format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").into_bytes(), vec![b'x'; length]].concat(),
        )
    };
    let (large, huge) = (long(1_000_000), long(16 * 1024 * 1024 + 1));
    let mirrors = [
        ("hangs", hangs.address(), "failed"),
        ("refuses", dead(), "failed"),
        ("resets", resets.address(), "failed"),
        ("early", early.address(), "answered"),
        ("large", large.address(), "answered"),
        ("huge", huge.address(), "failed"),
    ];
    let more = "timeouts = { first_byte = \"1s\", body = \"1s\" }";
    let sections = mirrors.iter().map(|(name, address, _)| {
        let more = if *name == "hangs" { more } else { "" };
        let mirror = format!("\"{name}\", in_flight = 3");
        backend(name, &[*address], more) + &route(&format!("/{name}"), "own", &mirror, "")
    });
    let sections: String = sections.collect();
    let engine = Engine::start(&[LISTENERS, &backend("own", &[own.origin.address()], ""), &sections].concat());
    let body = body(60_000);
    for (name, ..) in mirrors {
        for way in WAYS {
            assert_eq!(
                upload(&engine, (way, &format!("/{name}/{way}")), &body, &own),
                (200, b"own".to_vec()),
                "{name}"
            );
            assert!(own.next().body == body, "{name} {way}");
        }
    }
    for (name, _, outcome) in mirrors {
        reaches(&engine, name, outcome, 3.0);
    }
    assert_eq!(engine.metric("propylon_server_faults_total", &[("backend", "own")]), 0.0);
}

/// Two of them would open two tunnels.
const UPGRADE: &str = "GET /tunnel HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

#[test]
fn bodies_that_are_given_up_make_no_copy_and_leave_their_place() {
    let (own, shadow) = (Server::new("own"), Server::new("shadow"));
    let hasty = Origin::scripted(|peer| {
        peer.read_head();
        peer.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhasty");
    });
    let engine = Engine::start(
        &[
            LISTENERS,
            &backend("own", &[own.origin.address()], ""),
            &backend("hasty", &[hasty.address()], ""),
            &backend("gone", &[dead()], ""),
            &backend("shadow", &[shadow.origin.address()], ""),
            &route("/", "own", "\"shadow\", in_flight = 1", "body_limit = 1000"),
            &route("/hasty", "hasty", "\"shadow\", in_flight = 1", ""),
            &route("/gone", "gone", "\"shadow\", in_flight = 1", ""),
        ]
        .concat(),
    );
    let mut given_up = 0.0;
    let mut gives_up = || {
        given_up += 1.0;
        reaches(&engine, "shadow", "not-copied", given_up);
    };
    let begin = |path: &str, framing: &str| {
        let mut client = engine.client("plain");
        client.send(format!("POST {path} HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n"));
        client
    };
    // Clients that go away, one of them while its copy has the only place.
    let mut client = begin("/leaves", "Content-Length: 20");
    own.has("/leaves");
    client.send("half of it");
    own.has("half of it");
    assert_eq!(upload(&engine, ("chunks", "/beside"), b"beside", &own).0, 200);
    reaches(&engine, "shadow", "too-many", 1.0);
    client.reset();
    gives_up();
    let mut http2 = Http2::start(&engine);
    http2.headers(1, 0, &request("POST", "/cancels"));
    own.has("/cancels");
    http2.send(DATA, 0, 1, b"half");
    own.has("half");
    http2.send(RST_STREAM, 0, 1, &CANCEL.to_be_bytes());
    gives_up();
    // Bodies that are none, or more than their route takes.
    let mut client = begin("/broken", "Transfer-Encoding: chunked");
    own.has("/broken");
    client.send("3\r\nabc\r\nno chunk\r\n");
    assert_eq!(client.read_response().status, 400);
    gives_up();
    for way in ["chunks", "frames"] {
        assert_eq!(upload(&engine, (way, &format!("/limited/{way}")), &body(1_001), &own).0, 413);
        gives_up();
    }
    assert_eq!(engine.client("plain").ask(UPGRADE).text(), "own");
    gives_up();
    // Servers that want none of it, or are none.
    let mut client = begin("/hasty", "Content-Length: 20");
    assert_eq!(client.read_response().text(), "hasty");
    gives_up();
    let mut client = begin("/gone", "Content-Length: 20");
    assert_eq!(client.read_response().status, 502);
    gives_up();
    shadow.was_not_asked();
    assert_eq!(upload(&engine, ("length", "/last"), b"the last one", &own).0, 200);
    assert_eq!(shadow.next().body, b"the last one");
    reaches(&engine, "shadow", "answered", 1.0);
}

#[test]
fn a_request_that_is_sent_several_times_has_one_copy() {
    let (own, shadow) = (Server::new("own"), Server::new("shadow"));
    let busy = Server::saying("HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy".into());
    let silent = Origin::scripted(|peer| {
        peer.read_request();
        peer.stall(WAIT_MAX);
    });
    let first = |servers: &[SocketAddr]| (servers.to_vec(), "balance = \"first\"");
    let backends = [
        ("refused", first(&[dead(), own.origin.address()])),
        ("busy", first(&[busy.origin.address(), own.origin.address()])),
        ("late", first(&[silent.address(), own.origin.address()])),
        ("gone", (vec![dead()], "retries = 0")),
        ("own", (vec![own.origin.address()], "")),
        ("shadow", (vec![shadow.origin.address()], "")),
    ];
    let held = "buffer = { request = { memory = \"100KiB\", disk = 0 } }\n";
    let again = "retries = { attempts = 1, on = [503] }\n";
    let engine = Engine::start(
        &[
            LISTENERS,
            &backends.iter().map(|(name, (servers, more))| backend(name, servers, more)).collect::<String>(),
            &route("/refused", "refused", "\"shadow\"", "retries = 1"),
            &route("/busy", "busy", "\"shadow\"", again),
            &route("/held", "busy", "\"shadow\"", &[held, again].concat()),
            &route("/late", "late", "\"shadow\"", "hedge = { after = \"30ms\" }"),
            &route("/gone", "gone", "\"shadow\"", "fallback = \"own\""),
        ]
        .concat(),
    );
    let put = |path: &str, body: &[u8]| {
        let mut http2 = Http2::start(&engine);
        http2.headers(1, 0, &request("PUT", path));
        http2.send(DATA, END_STREAM, 1, body);
        assert_eq!(http2.response(1).1, b"own", "{path}");
        let mut client = engine.client("plain");
        let head = format!("PUT {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").into_bytes();
        let chunks = in_chunks(&[body], "");
        match path {
            // A body that has begun to come is not sent again.
            "/busy" => client.send([head, chunks].concat()),
            _ => [head, chunks].into_iter().for_each(|bytes| client.send(bytes)),
        }
        assert_eq!(client.read_response().text(), "own", "{path}");
    };
    for path in ["/refused", "/busy", "/held", "/gone"] {
        let body = [path.as_bytes(), &body(5_000)].concat();
        put(path, &body);
        (0..2).for_each(|_| assert!(own.next().body == body, "{path}"));
        (0..2).for_each(|_| assert!(shadow.next().body == body, "{path}"));
    }
    assert_eq!(engine.client("plain").get("/late").text(), "own");
    assert!(own.next().head.starts_with("GET /late ") && shadow.next().head.starts_with("GET /late "));
    reaches(&engine, "shadow", "answered", 9.0);
    shadow.was_not_asked();
    assert_eq!(engine.metric("propylon_mirrored_requests_total", &[]), 9.0);
}

#[test]
fn copies_are_made_beside_all_that_a_route_does_to_a_body() {
    let (own, shadow) = (Server::new("own"), Server::new("shadow"));
    let polite = Origin::scripted(|peer| {
        while let Some(head) = peer.read_head() {
            let head = String::from_utf8_lossy(&head).into_owned();
            assert_eq!(values(&head, "Expect"), ["100-continue"]);
            peer.send("HTTP/1.1 100 Continue\r\n\r\n");
            peer.read_exact(2_000);
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npolite");
        }
    });
    let words = "to be compressed ".repeat(500);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n", words.len());
    let wordy = Server::saying(head + &words);
    let php = Php::start(1);
    php.write("index.php", "<?php echo 'php ', strlen(file_get_contents('php://input'));");
    let fastcgi = format!("protocol = \"fastcgi\"\nfastcgi = {{ root = \"{}\" }}", php.root().display());
    let engine = Engine::start(
        &[
            LISTENERS,
            &backend("own", &[own.origin.address()], ""),
            &backend("old", &[own.origin.address()], "protocol = \"http1.0\""),
            &backend("wordy", &[wordy.origin.address()], ""),
            &backend("polite", &[polite.address()], ""),
            &backend("php", &[php.address()], &fastcgi),
            &backend("shadow", &[shadow.origin.address()], ""),
            &route("/held", "own", "\"shadow\"", "buffer = { request = { memory = \"100KiB\", disk = 0 } }"),
            &route("/paced", "own", "\"shadow\"", "throttle = { upload = \"1MiB\" }"),
            &route("/both", "own", "\"shadow\"", "throttle = { upload = \"1MiB\" }\nbody_limit = 90000"),
            &route("/timed", "own", "\"shadow\"", "timeouts = { request = \"50s\" }"),
            &route("/old", "old", "\"shadow\"", ""),
            &route("/wordy", "wordy", "\"shadow\"", "compress = { encodings = [\"gzip\"] }"),
            &route("/polite", "polite", "\"shadow\"", ""),
            &route("/php", "php", "\"shadow\"", ""),
        ]
        .concat(),
    );
    let (scratch, body) = (Scratch::new(), body(30_000));
    let (all, some) = (scratch.write("all", &body), scratch.write("some", &body[..2_000]));
    let (all, some) = (format!("@{}", all.display()), format!("@{}", some.display()));
    let mut copies = 0.0;
    for version in ["--http1.1", "--http2"] {
        for framing in ["X-Nothing: 1", "Transfer-Encoding: chunked"] {
            for path in ["held", "paced", "both", "timed", "old", "wordy", "polite", "php"] {
                let (data, length) = if path == "polite" { (&some, 2_000) } else { (&all, body.len()) };
                let url = format!("{}/{path}", engine.url("web"));
                let expects = if path == "polite" { "Expect: 100-continue" } else { "Expect:" };
                let mut arguments = vec![version, "--data-binary", data, "--header", framing, "--header", expects];
                arguments.extend(["--compressed", &url]);
                let said = curl(&arguments).ok().text();
                let (server, answer) = match path {
                    "wordy" => (Some(&wordy), "to be compressed "),
                    "polite" => (None, "polite"),
                    "php" => (None, "php 30000"),
                    _ => (Some(&own), "own"),
                };
                assert!(said.starts_with(answer), "{version} {framing} {path}: {said}");
                server.into_iter().for_each(|server| assert!(server.next().body == body, "{path}"));
                let copy = shadow.next();
                assert!(copy.body == body[..length], "{version} {framing} {path}: {} bytes", copy.body.len());
                assert!(values(&copy.head, "Expect").is_empty(), "{}", copy.head);
                assert!(copy.head.starts_with(&format!("POST /{path} HTTP/1.1\r\n")), "{}", copy.head);
                copies += 1.0;
            }
        }
    }
    reaches(&engine, "shadow", "answered", copies);
    assert_eq!(engine.metric("propylon_mirrored_requests_total", &[]), copies);
}

#[test]
fn copies_outlive_a_reload_and_a_drain_does_not_wait_for_them() {
    let (own, shadow) = (Server::new("own"), Server::new("shadow"));
    let silent = Origin::scripted(|peer| {
        peer.read_request();
        peer.stall(WAIT_MAX);
    });
    let text = |mirror: &str| {
        [
            "[process]\nworkers = 1\ndrain_timeout = \"60s\"\n",
            LISTENERS,
            &backend("own", &[own.origin.address()], ""),
            &backend("shadow", &[shadow.origin.address()], ""),
            &backend("silent", &[silent.address()], ""),
            &format!("[[route]]\nbackend = \"own\"\n{mirror}\n"),
            &route("/silent", "own", "\"silent\"", ""),
        ]
        .concat()
    };
    let mut engine = Engine::start(&text("mirror = { backend = \"shadow\" }"));
    let mut client = engine.client("plain");
    client.send("POST /before HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\n");
    own.has("/before");
    engine.rewrite(&text(""));
    engine.reload();
    client.send("twenty bytes of body");
    assert_eq!((client.read_response().text(), shadow.next().body), ("own".into(), b"twenty bytes of body".to_vec()));
    assert_eq!(client.get("/after").text(), "own");
    shadow.was_not_asked();
    assert_eq!(client.get("/silent").text(), "own");
    holds("the copy is under way", || silent.received_text().contains("/silent"));
    drop(client);
    engine.signal(Signal::TERM);
    assert_eq!(engine.wait(Duration::from_secs(40)).status.code(), Some(0));
}

#[test]
fn a_body_of_an_announced_length_is_copied_though_its_stream_ends_behind_the_answer() {
    let (own, shadow) = (Server::new("own"), Server::new("shadow"));
    let engine = Engine::start(
        &[
            LISTENERS,
            &backend("own", &[own.origin.address()], ""),
            &backend("shadow", &[shadow.origin.address()], ""),
            &route("/", "own", "\"shadow\"", ""),
        ]
        .concat(),
    );
    let mut http2 = Http2::start(&engine);
    let fields = [&request("POST", "/late")[..], &[("content-length", "4")]].concat();
    http2.headers(1, 0, &fields);
    http2.send(DATA, 0, 1, b"body");
    assert_eq!(http2.response(1).1, b"own");
    assert_eq!(shadow.next().body, b"body");
    reaches(&engine, "shadow", "answered", 1.0);
    http2.send(DATA, END_STREAM, 1, b"");
}

#[test]
fn a_place_is_asked_for_before_a_byte_of_a_body_is_copied() {
    let own = Server::new("own");
    let silent = Origin::scripted(|peer| {
        peer.read_request();
        peer.stall(WAIT_MAX);
    });
    let engine = Engine::start(
        &[
            // Places are counted by the worker.
            "[process]\nworkers = 1\n",
            LISTENERS,
            &backend("own", &[own.origin.address()], ""),
            &backend("silent", &[silent.address()], ""),
            &route("/", "own", "\"silent\", in_flight = 1, body = \"1KiB\"", ""),
        ]
        .concat(),
    );
    let mut client = engine.client("plain");
    let mut put = |length: usize| {
        let chunks = in_chunks(&[&body(length)], "");
        client.send([&b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"[..], &chunks].concat());
        assert_eq!(client.read_response().text(), "own");
        assert!(own.next().body == body(length));
    };
    // One that is too long shows when it is copied, for which it has a place.
    put(1_025);
    reaches(&engine, "silent", "not-copied", 1.0);
    put(1_024);
    holds("the only place is taken", || silent.received_text().contains("PUT /"));
    // With none it is not looked at.
    put(1_025);
    put(1_024);
    reaches(&engine, "silent", "too-many", 2.0);
    assert_eq!(engine.metric("propylon_mirrored_requests_total", &[("reason", "not-copied")]), 1.0);
}

#[test]
fn a_connection_that_a_mirror_has_closed_while_idle_blames_nobody() {
    let (own, connections) = (Server::new("own"), AtomicUsize::new(0));
    let shadow = Origin::scripted(move |peer| {
        let is_first = connections.fetch_add(1, Ordering::SeqCst) == 0;
        let mut asked = 0;
        while peer.read_head().is_some() {
            asked += 1;
            if is_first && asked == 2 {
                return peer.close();
            }
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let engine = Engine::start(
        &[
            "[process]\nworkers = 1\n",
            LISTENERS,
            &backend("own", &[own.origin.address()], ""),
            &backend("shadow", &[shadow.address()], ""),
            &route("/", "own", "\"shadow\"", ""),
        ]
        .concat(),
    );
    let mut client = engine.client("plain");
    for answered in [1.0, 2.0, 3.0] {
        assert_eq!(client.ask("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 200);
        reaches(&engine, "shadow", "answered", answered);
    }
    assert_eq!(engine.metric("propylon_mirrored_requests_total", &[("reason", "failed")]), 0.0);
    assert_eq!(engine.metric("propylon_server_connections_total", &[("backend", "shadow")]), 2.0);
}

/// A mirror that closes in place of its second answer on each connection, and of the first on the third.
#[test]
fn a_copy_is_sent_again_neither_with_a_body_nor_by_an_unsafe_method_nor_where_its_server_has_failed() {
    let own = Server::new("own");
    let (connections, asked) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&asked);
    let shadow = Origin::scripted(move |peer| {
        let answers = if connections.fetch_add(1, Ordering::SeqCst) == 2 { 0 } else { 1 };
        for number in 0.. {
            if peer.read_request().is_none() {
                return;
            }
            count.fetch_add(1, Ordering::SeqCst);
            if number == answers {
                return peer.close();
            }
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let engine = Engine::start(
        &[
            "[process]\nworkers = 1\n",
            LISTENERS,
            &backend("own", &[own.origin.address()], ""),
            &backend("shadow", &[shadow.address()], ""),
            &route("/", "own", "\"shadow\"", ""),
        ]
        .concat(),
    );
    let mut client = engine.client("plain");
    let (bare, body) = ("HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
    for (place, (start, rest, outcome, number)) in [
        ("GET /1", bare, "answered", 1.0),
        ("POST /2", "HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", "failed", 1.0),
        ("GET /3", bare, "answered", 2.0),
        ("PUT /4", body, "failed", 2.0),
        ("GET /5", bare, "failed", 3.0),
        ("GET /6", bare, "answered", 3.0),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(client.ask(format!("{start} {rest}")).text(), "own", "{start}");
        reaches(&engine, "shadow", outcome, number);
        assert_eq!(asked.load(Ordering::SeqCst), place + 1, "{start}");
    }
}

#[test]
fn small_chunks_that_come_together_go_on_together_beside_their_copy() {
    const CHUNKS: usize = 4_000;
    let shadow = Server::new("shadow");
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    let own = Origin::scripted(move |peer| {
        peer.read_head();
        let mut body = Vec::new();
        while !body.ends_with(b"\r\n0\r\n\r\n") {
            let Some(some) = peer.read_some() else { return };
            body.extend(some);
            counted.fetch_add(1, Ordering::SeqCst);
        }
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nown");
    });
    let engine = Engine::start(
        &[
            LISTENERS,
            &backend("own", &[own.address()], ""),
            &backend("shadow", &[shadow.origin.address()], ""),
            &route("/", "own", "\"shadow\"", ""),
        ]
        .concat(),
    );
    let mut client = engine.client("plain");
    client.send("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    holds("the head at the server", || own.received_text().contains("POST /"));
    client.send(["1\r\nx\r\n".repeat(CHUNKS), "0\r\n\r\n".into()].concat());
    assert_eq!(client.read_response().body, b"own");
    assert!(shadow.next().body == [b'x'; CHUNKS]);
    // Each chunk by itself would be as many writes.
    let reads = reads.load(Ordering::SeqCst);
    assert!(reads < CHUNKS / 10, "{reads} reads");
}
