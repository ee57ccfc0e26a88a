//! HTTP/2 to servers: a second engine, which is a server of HTTP/2 by prior knowledge, and the origin of the story behind it.
//! Every client speaks HTTP/1.1 and HTTP/2.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::{Duration, Instant};

use propylon_e2e::engine::{simple, with};
use propylon_e2e::frames::{
    ACK, CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, Http2, Http2Server, INTERNAL_ERROR,
    NO_ERROR, PING, PROTOCOL_ERROR, RST_STREAM, SETTINGS, WINDOW_UPDATE, block, frame as bytes_of, request,
};
use propylon_e2e::http::values;
use propylon_e2e::program::{curl, run, websocket_accept};
use propylon_e2e::{Client, Ending, Engine, Origin, Scratch, holds};
use rustix::process::Signal;

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";

/// The engine that clients speak to, and the one that is its server.
struct Chain {
    front: Engine,
    back: Engine,
}

impl Chain {
    fn new(origin: &Origin) -> Chain {
        Chain::with(origin, "", "")
    }

    fn with(origin: &Origin, backend: &str, back_listener: &str) -> Chain {
        let back = Engine::start(&with(&[origin.address()], back_listener, ""));
        let front = Engine::start(&front(back.address("plain"), backend));
        Chain { front, back }
    }
}

fn front(server: SocketAddr, backend: &str) -> String {
    with(&[server], "", &format!("protocol = \"h2\"\n{backend}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn both_kinds_of_clients_are_served_over_one_connection() {
    let origin = Origin::mirror();
    let chain = Chain::new(&origin);
    for (listener, version) in [("web", "--http2"), ("plain", "--http2-prior-knowledge"), ("web", "--http1.1")] {
        let url = format!("{}/page?x=y", chain.front.url(listener));
        let said = curl(&[version, "-b", "a=1; b=2", &url]).ok().text();
        assert!(said.starts_with("GET /page?x=y HTTP/1.1\r\nHost: localhost:"), "{said}");
        assert_eq!(values(&said, "cookie"), ["a=1; b=2"]);
    }
    assert_eq!(chain.front.metric("propylon_server_connections_total", &[]), 1.0);
    assert_eq!(chain.back.metric("propylon_http2_streams_total", &[]), 3.0);
}

#[test]
fn a_server_that_its_probes_fail_gets_no_streams_and_its_connections_end() {
    let well = Arc::new(AtomicBool::new(true));
    let is_well = Arc::clone(&well);
    let origin = Origin::answering(move |request| {
        let sick = request.starts_with(b"GET /up ") && !is_well.load(Ordering::SeqCst);
        if sick { HELLO.replace("200 OK", "500 Sick").into_bytes() } else { HELLO.into() }
    });
    let chain = Chain::with(&origin, "health = { path = \"/up\", interval = \"1s\", rise = 1, fall = 2 }", "");
    let mut client = chain.front.client("plain");
    assert_eq!(client.get("/").status, 200);
    chain.front.metric_reaches("propylon_server_connections", &[], 1.0);
    // Probes are streams as well, each on a connection of its own.
    holds("probes speak HTTP/2", || chain.back.metric("propylon_http2_streams_total", &[]) > 2.0);
    well.store(false, Ordering::SeqCst);
    chain.front.metric_reaches("propylon_server_up", &[], 0.0);
    assert_eq!(client.get("/").status, 503);
    chain.front.metric_reaches("propylon_server_connections", &[], 0.0);
    well.store(true, Ordering::SeqCst);
    chain.front.metric_reaches("propylon_server_up", &[], 1.0);
    assert_eq!(client.get("/").status, 200);
    assert_eq!(chain.front.metric("propylon_server_connections_total", &[]), 2.0);
}

#[test]
fn bodies_arrive_whole_both_ways_in_every_combination() {
    let origin = Origin::answering(|request| {
        let end = propylon_e2e::http::head_end(request).expect("a head");
        let body = match values(&text(&request[..end]), "Transfer-Encoding").is_empty() {
            true => request[end..].to_vec(),
            false => propylon_e2e::http::chunked(&request[end..]).expect("a whole body").data,
        };
        let mut answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for piece in body.chunks(9_973) {
            answer.extend(format!("{:x}\r\n", piece.len()).into_bytes());
            answer.extend_from_slice(piece);
            answer.extend_from_slice(b"\r\n");
        }
        answer.extend_from_slice(b"0\r\n\r\n");
        answer
    });
    let chain = Chain::new(&origin);
    let scratch = Scratch::new();
    let body: Vec<u8> = (0..3_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let file = scratch.write("body", &body).display().to_string();
    let small = scratch.write("small", &body[..700]).display().to_string();
    for (listener, version) in [("web", "--http2"), ("web", "--http1.1"), ("plain", "--http1.0")] {
        let url = chain.front.url(listener);
        let known = curl(&[version, "--data-binary", &format!("@{file}"), &url]).ok();
        assert!(known.stdout == body, "{version}: {} bytes came back", known.stdout.len());
        let short = curl(&[version, "--data-binary", &format!("@{small}"), &url]).ok();
        assert!(short.stdout == body[..700], "{version}: {} bytes came back", short.stdout.len());
        if version == "--http1.0" {
            continue;
        }
        let ca = propylon_e2e::Certificates::shared().ca();
        for file in [&file, &small] {
            let mut command = Command::new("sh");
            let pipe = format!("cat {file} | curl -s {version} --cacert {} -T - {url}/up", ca.display());
            command.args(["-c", &pipe]);
            let unknown = run(command, b"", Duration::from_secs(30)).ok();
            assert!(unknown.stdout == std::fs::read(file).unwrap(), "{version}: {}", unknown.stdout.len());
        }
    }
}

#[test]
fn many_requests_share_few_connections() {
    let origin = Origin::always(HELLO);
    let chain = Chain::with(&origin, "http2 = { max_streams = 20 }", "");
    for flags in [&["-m", "25"][..], &["--h1"]] {
        let mut command = Command::new("h2load");
        command.args(["-n", "2000", "-c", "4"]).args(flags).arg(format!("{}/x", chain.front.url("web")));
        let said = run(command, b"", Duration::from_secs(60)).ok().text();
        assert!(said.contains("2000 succeeded, 0 failed, 0 errored"), "{said}");
    }
    let made = chain.front.metric("propylon_server_connections_total", &[]);
    assert!((1.0..=8.0).contains(&made), "{made} connections");
    assert_eq!(chain.back.metric("propylon_http2_streams_total", &[]), 4000.0);
}

#[test]
fn a_connection_ends_after_as_many_streams_as_it_may_carry() {
    let origin = Origin::always(HELLO);
    let chain = Chain::with(&origin, "max_requests = 3", "");
    let mut client = chain.front.client("plain");
    (0..8).for_each(|_| assert_eq!(client.get("/").text(), "hello\n"));
    assert_eq!(chain.front.metric("propylon_server_connections_total", &[]), 3.0);
    chain.front.metric_reaches("propylon_server_connections", &[], 1.0);
}

/// A request that has a place on a connection, and no stream yet, is served, though the connection is closed for others.
#[test]
fn a_seat_is_good_though_its_connection_gets_no_further_streams() {
    let origin = Origin::always(HELLO);
    for requests_max in [1, 2, 5] {
        let backend = format!("max_requests = {requests_max}\nhttp2 = {{ max_streams = 4 }}\nretries = 0");
        let chain = Chain::with(&origin, &backend, "");
        let mut command = Command::new("h2load");
        command.args(["-n", "1000", "-c", "2", "-m", "40", &format!("{}/x", chain.front.url("plain"))]);
        let said = run(command, b"", Duration::from_secs(60)).ok().text();
        assert!(said.contains("1000 succeeded, 0 failed, 0 errored"), "{requests_max}: {said}");
        assert_eq!(chain.front.metric("propylon_server_faults_total", &[]), 0.0, "{requests_max}");
        let made = chain.front.metric("propylon_server_connections_total", &[]);
        assert!(made >= f64::from(1000 / requests_max), "{requests_max}: {made} connections");
    }
}

#[test]
fn no_more_streams_are_on_a_connection_than_the_backend_allows_whatever_the_server_does() {
    let together = Barrier::new(3);
    let origin = Origin::answering(move |_| {
        together.wait();
        HELLO.into()
    });
    let chain = Chain::with(&origin, "http2 = { max_streams = 1 }", "");
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert_eq!(chain.front.client("plain").get("/").text(), "hello\n"));
        }
    });
    assert_eq!(chain.front.metric("propylon_server_connections_total", &[]), 3.0);
}

#[test]
fn trailers_and_interim_responses_pass_in_every_combination() {
    let origin = Origin::answering(|request| {
        let seen = text(request);
        assert!(seen.ends_with("\r\n\r\n5\r\nhello\r\n0\r\nx-sum: abc\r\n\r\n"), "{seen}");
        assert_eq!(values(&seen, "TE"), ["trailers"]);
        b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\ngrpc-status: 0\r\n\r\n".to_vec()
    });
    let chain = Chain::new(&origin);
    let mut client = Http2::start(&chain.front);
    client.headers(1, 0, &[&request("POST", "/grpc")[..], &[("te", "trailers")]].concat());
    client.send(DATA, 0, 1, b"hello");
    client.headers(1, END_STREAM, &[("x-sum", "abc")]);
    let interim = client.next_of(1);
    assert_eq!((interim.kind, interim.status(), interim.ends()), (HEADERS, None, false));
    let (head, data) = client.response(1);
    assert_eq!((head.status(), text(&data)), (Some(200), "ok".into()));
    let mut client = chain.front.client("plain");
    client.send("POST /grpc HTTP/1.1\r\nHost: localhost\r\nTE: trailers\r\nConnection: TE\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-sum: abc\r\n\r\n");
    let interim = client.read_head();
    assert!(interim.starts_with("HTTP/1.1 103 "), "{interim}");
    let head = client.read_head();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let body = text(&client.read_exact(b"2\r\nok\r\n0\r\ngrpc-status: 0\r\n\r\n".len()));
    assert_eq!(body, "2\r\nok\r\n0\r\ngrpc-status: 0\r\n\r\n");
}

/// Without them a body that was cut short would look whole (RFC 9113 §8.1).
#[test]
fn a_request_keeps_its_trailers_though_its_server_answers_before_it_takes_the_body() {
    let ((open, opened), (heard, hears)) = (channel::<()>(), channel());
    let (opened, heard) = (Mutex::new(opened), Mutex::new(heard));
    let origin = Origin::scripted(move |peer| {
        let Some(mut server) = Http2Server::start(peer, &[(INITIAL_WINDOW, 0)]) else { return };
        while let Some(frame) = server.next_frame() {
            match (frame.kind, frame.ends()) {
                (HEADERS, false) => {
                    server.send(HEADERS, END_HEADERS, frame.stream, &[0x88]);
                    let _ = opened.lock().expect("nobody panics with it").recv();
                    server.send(WINDOW_UPDATE, 0, frame.stream, &100_u32.to_be_bytes());
                }
                (HEADERS | DATA, _) => {
                    let _ = heard.lock().expect("nobody panics with it").send((frame.kind, frame.ends()));
                    if frame.ends() {
                        server.send(DATA, END_STREAM, frame.stream, b"done");
                    }
                }
                _ => {}
            }
        }
    });
    let engine = Engine::start(&alone(origin.address(), ""));
    let mut client = engine.client("plain");
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: TE\r\nTransfer-Encoding: chunked\r\n\r\n";
    client.send(format!("{head}5\r\nhello\r\n0\r\nx-sum: abc\r\n\r\n"));
    let head = client.read_head();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    open.send(()).expect("the server waits");
    assert_eq!(client.read_exact(14), b"4\r\ndone\r\n0\r\n\r\n");
    assert_eq!(hears.try_iter().collect::<Vec<_>>(), [(DATA, false), (HEADERS, true)]);
}

#[test]
fn answers_without_a_body_have_none() {
    let origin = Origin::answering(|request| match text(request).split(' ').nth(1) {
        Some("/204") => "HTTP/1.1 204 No Content\r\n\r\n".into(),
        Some("/304") => "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n".into(),
        _ if request.starts_with(b"HEAD ") => "HTTP/1.1 200 OK\r\nContent-Length: 4711\r\n\r\n".into(),
        _ => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".into(),
    });
    let chain = Chain::new(&origin);
    for version in ["--http2", "--http1.1"] {
        let url = chain.front.url("web");
        let head = curl(&[version, "--head", &url]).ok().text().to_lowercase();
        assert!(head.contains("content-length: 4711\r\n"), "{head}");
        for path in ["204", "304", "empty"] {
            let wanted = if path == "empty" { "200" } else { path };
            let said = curl(&[version, "-w", "%{http_code} %{size_download}", &format!("{url}/{path}")]).ok().text();
            assert_eq!(said, format!("{wanted} 0"));
        }
    }
}

#[test]
fn a_clients_reset_reaches_the_server_and_a_servers_reset_the_client() {
    let origin = Origin::scripted(|peer| {
        let Some(head) = peer.read_head() else { return };
        if text(&head).starts_with("GET /breaks ") {
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun");
            peer.close();
            return;
        }
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nbegun");
        assert!(peer.await_close(Duration::from_secs(5)), "the engines go on");
    });
    let chain = Chain::new(&origin);
    let mut client = Http2::start(&chain.front);
    client.get(1, "/long");
    while client.next_of(1).kind != DATA {}
    client.send(RST_STREAM, 0, 1, &CANCEL.to_be_bytes());
    holds("the origin is let go", || chain.back.metric("propylon_server_connections", &[]) == 0.0);
    assert_eq!(chain.front.metric("propylon_server_connections", &[]), 1.0);
    let mut tcp = chain.front.client("plain");
    tcp.send("GET /long HTTP/1.1\r\nHost: a\r\n\r\n");
    holds("the origin is asked", || chain.back.metric("propylon_server_connections", &[]) == 1.0);
    tcp.reset();
    holds("the origin is let go", || chain.back.metric("propylon_server_connections", &[]) == 0.0);
    client.get(3, "/breaks");
    loop {
        let frame = client.next_of(3);
        if frame.kind == RST_STREAM {
            break;
        }
        assert!(!frame.ends(), "{frame:?}");
    }
    let mut tcp = chain.front.client("plain");
    tcp.send("GET /breaks HTTP/1.1\r\nHost: a\r\n\r\n");
    // A reset that overtakes the head leaves room for a status.
    let (bytes, ending) = tcp.read_timeout(Duration::from_secs(2)).read_to_end();
    assert!(ending == Ending::Reset || bytes.starts_with(b"HTTP/1.1 502 "), "{ending:?}: {}", text(&bytes));
}

#[test]
fn a_slow_stream_holds_back_its_own_server_stream_and_nothing_else() {
    let origin = Origin::answering(|request| match text(request).starts_with("GET /long ") {
        true => [&b"HTTP/1.1 200 OK\r\nContent-Length: 30000000\r\n\r\n"[..], &vec![b'x'; 30_000_000]].concat(),
        false => HELLO.into(),
    });
    let chain = Chain::new(&origin);
    let mut slow = Http2::start_with(&chain.front, &[(4, 1000)]);
    slow.get(1, "/long");
    assert_eq!(slow.next_of(1).status(), Some(200));
    let mut tcp = chain.front.client("plain");
    tcp.send("GET /long HTTP/1.1\r\nHost: a\r\n\r\n");
    tcp.read_head();
    let before = (chain.front.rss(), chain.back.rss());
    for stream in (3..103).step_by(2) {
        slow.get(stream, "/short");
        assert_eq!(slow.response(stream).1, b"hello\n");
    }
    let grown = (chain.front.rss().saturating_sub(before.0), chain.back.rss().saturating_sub(before.1));
    assert!(grown.0 < 16 << 20 && grown.1 < 16 << 20, "{grown:?}");
    assert_eq!(chain.front.metric("propylon_server_connections", &[]), 1.0);
}

#[test]
fn websockets_go_through_in_every_combination() {
    let origin = Origin::scripted(|peer| {
        let Some(head) = peer.read_head() else { return };
        let head = text(&head);
        assert_eq!((values(&head, "Upgrade"), values(&head, "Sec-WebSocket-Key").len()), (vec!["websocket"], 1));
        let accept = websocket_accept(values(&head, "Sec-WebSocket-Key")[0]);
        peer.send(format!("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\nearly"));
        while let Some(bytes) = peer.read_some() {
            peer.send(bytes);
        }
        peer.send("bye");
        peer.close();
    });
    let chain = Chain::new(&origin);
    let mut client = chain.front.client("web");
    let response = client.ask(
        "GET /chat HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    );
    assert_eq!(response.status, 101, "{}", response.head);
    assert_eq!(response.field("Sec-WebSocket-Accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    client.send("one");
    assert_eq!(text(&client.read_exact(8)), "earlyone");
    client.finish();
    let (rest, ending) = client.read_to_end();
    assert_eq!((text(&rest), ending), ("bye".into(), Ending::Clean));
    let mut client = Http2::start(&chain.front);
    let connect =
        [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http"), (":authority", "localhost")];
    client.headers(1, 0, &[&connect[..], &[(":path", "/chat"), ("sec-websocket-version", "13")]].concat());
    let head = client.next_of(1);
    assert_eq!((head.status(), head.ends()), (Some(200), false));
    client.send(DATA, END_STREAM, 1, b"two");
    let mut heard = Vec::new();
    loop {
        let frame = client.next_of(1);
        assert_eq!(frame.kind, DATA, "{frame:?}");
        heard.extend(&frame.payload);
        if frame.ends() {
            break;
        }
    }
    assert_eq!(text(&heard), "earlytwobye");
}

#[test]
fn a_server_without_websockets_over_http2_is_said_to_be_so() {
    let origin = Origin::always(HELLO);
    let chain = Chain::with(&origin, "", "http2 = { extended_connect = false }");
    let mut client = chain.front.client("plain");
    let response = client.ask(
        "GET /chat HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    );
    assert_eq!(response.status, 502);
    assert!(response.text().contains("no-extended-connect"), "{}", response.text());
}

#[test]
fn a_server_that_drains_is_left_without_a_request_lost() {
    let origin = Origin::always(HELLO);
    let mut chain = Chain::new(&origin);
    assert_eq!(curl(&["--http2", &chain.front.url("web")]).ok().text(), "hello\n");
    chain.back.signal(Signal::TERM);
    holds("it is left", || chain.front.metric("propylon_server_connections", &[]) == 0.0);
    chain.back.wait(Duration::from_secs(8));
    let said = curl(&["--http2", "-w", "%{http_code}", "-o", "/dev/null", &chain.front.url("web")]).ok().text();
    assert_eq!(said, "502");
}

#[test]
fn a_server_that_speaks_something_else_is_said_to_be_so() {
    let origin = Origin::always("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let engine = Engine::start(&front(origin.address(), ""));
    let mut client = engine.client("plain");
    let response = client.get("/");
    assert_eq!(response.status, 502);
    assert!(response.text().contains("no-http2"), "{}", response.text());
}

#[test]
fn over_tls_a_server_says_what_it_speaks() {
    let origin = Origin::always(HELLO);
    let tls =
        format!("tls = {{ ca = {:?}, server_name = \"localhost\" }}\n", propylon_e2e::Certificates::shared().ca());
    for (protocol, listener, streams, status) in [
        ("h2", "", 40.0, "200"),
        ("auto", "", 40.0, "200"),
        ("auto", "http2 = { enabled = false }", 0.0, "200"),
        ("h2", "http2 = { enabled = false }", 0.0, "502"),
    ] {
        let back = Engine::start(&with(&[origin.address()], listener, ""));
        let backend = format!("protocol = \"{protocol}\"\n{tls}");
        let engine = Engine::start(&with(&[back.address("web")], "", &backend));
        for version in ["--http2", "--http1.1"] {
            let url = format!("{}/[1-20]", engine.url("web"));
            let said = curl(&[version, "-o", "/dev/null", "-w", "%{http_code} ", &url]).ok().text();
            assert_eq!(said, format!("{status} ").repeat(20), "{protocol} {listener} {version}");
        }
        assert_eq!(back.metric("propylon_http2_streams_total", &[]), streams, "{protocol} {listener}");
        if status == "200" {
            assert!(engine.metric("propylon_server_connections_total", &[]) <= 2.0);
        }
    }
}

#[test]
fn a_limit_of_connections_holds_and_requests_wait_for_streams() {
    let origin = Origin::always(HELLO);
    let back = Engine::start(&simple(&[origin.address()]));
    let server = back.address("plain");
    let config = front(server, "http2 = { max_streams = 2 }");
    let limited = format!("servers = [{{ address = \"{server}\", max_connections = 1 }}]");
    let engine = Engine::start(&config.replace(&format!("servers = [\"{server}\"]"), &limited));
    let mut command = Command::new("h2load");
    command.args(["-n", "500", "-c", "2", "-m", "10", &format!("{}/x", engine.url("web"))]);
    let said = run(command, b"", Duration::from_secs(60)).ok().text();
    assert!(said.contains("500 succeeded, 0 failed, 0 errored"), "{said}");
    assert_eq!(engine.metric("propylon_server_connections_total", &[]), 1.0);
}

/// A server with room for one connection, and two workers that want one each: they take turns, whether the other's is idle or busy.
#[test]
fn a_connection_makes_way_for_another_workers_requests() {
    let origin = Origin::always(HELLO);
    let back = Engine::start(&simple(&[origin.address()]));
    let server = back.address("plain");
    let config = front(server, "queue = { timeout = \"20s\" }");
    let limited = format!("servers = [{{ address = \"{server}\", max_connections = 1 }}]");
    let config = config.replace(&format!("servers = [\"{server}\"]"), &limited);
    let engine = Engine::start(&format!("[process]\nworkers = 2\ndrain_timeout = \"1s\"\n{config}"));
    // The kernel spreads clients over the workers by their ports: that forty go to one is as good as impossible.
    for _ in 0..40 {
        assert_eq!(engine.client("plain").get("/").text(), "hello\n");
    }
    let made = engine.metric("propylon_server_connections_total", &[]);
    assert!((2.0..=40.0).contains(&made), "{made} connections");
    // Both are busy all the time, with streams enough for any number of connections.
    let mut command = Command::new("h2load");
    command.args(["-n", "6000", "-c", "24", "-m", "10", &format!("{}/x", engine.url("plain"))]);
    let said = run(command, b"", Duration::from_secs(60)).ok().text();
    assert!(said.contains("6000 succeeded, 0 failed, 0 errored"), "{said}");
    let more = engine.metric("propylon_server_connections_total", &[]) - made;
    println!("{made} connections for clients in turn, {more} for those at once");
    assert!(more >= 1.0, "a worker was served without a connection");
    assert!(engine.metric("propylon_server_connections", &[]) <= 1.0);
    assert_eq!(engine.metric("propylon_queue_depth", &[]), 0.0);
}

/// Answers GETs with these frames, and POSTs when they are whole, in order.
fn answering(frames: impl Fn(u32) -> Vec<u8> + Send + Sync + 'static) -> Origin {
    Origin::scripted(move |peer| {
        let Some(mut server) = Http2Server::start(peer, &[]) else { return };
        while let Some(frame) = server.next_frame() {
            match frame.kind {
                HEADERS if !frame.is_post() => server.send_bytes(&frames(frame.stream)),
                DATA if frame.ends() => server.answer(frame.stream, b"hello\n"),
                _ => {}
            }
        }
    })
}

fn head(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    bytes_of(HEADERS, END_HEADERS | flags, stream, &block(fields))
}

/// RFC 9113 §8.1.1: a malformed response is a stream's error, whatever the library takes it for.
#[test]
fn a_malformed_response_costs_its_stream_alone() {
    type Case = (&'static str, fn(u32) -> Vec<u8>, u16);
    let cases: [Case; 10] = [
        ("DATA before HEADERS", |stream| bytes_of(DATA, END_STREAM, stream, b"x"), 502),
        ("DATA before HEADERS, and more", |stream| bytes_of(DATA, 0, stream, &[b'x'; 500]).repeat(20), 502),
        (
            "DATA behind an interim response",
            |stream| [head(stream, 0, &[(":status", "103")]), bytes_of(DATA, 0, stream, b"x")].concat(),
            502,
        ),
        ("an interim response that ends", |stream| head(stream, END_STREAM, &[(":status", "103")]), 502),
        (":path", |stream| head(stream, END_STREAM, &[(":status", "200"), (":path", "/")]), 502),
        (":method", |stream| head(stream, END_STREAM, &[(":method", "GET"), (":status", "200")]), 502),
        (":protocol", |stream| head(stream, END_STREAM, &[(":status", "200"), (":protocol", "websocket")]), 502),
        ("no :status", |stream| head(stream, END_STREAM, &[("x", "y")]), 502),
        (
            "trailers with :status",
            |stream| {
                let data = bytes_of(DATA, 0, stream, b"x");
                [head(stream, 0, &[(":status", "200")]), data, head(stream, END_STREAM, &[(":status", "200")])].concat()
            },
            200,
        ),
        (
            "another head",
            |stream| [head(stream, 0, &[(":status", "200")]), head(stream, 0, &[(":status", "200")])].concat(),
            200,
        ),
    ];
    for (what, frames, status) in cases {
        let origin = answering(frames);
        let engine = Engine::start(&front(origin.address(), ""));
        let mut others = Http2::start(&engine);
        let posts: Vec<u32> = (0..8).map(|index| index * 2 + 1).collect();
        posts.iter().for_each(|post| others.headers(*post, 0, &request("POST", "/")));
        engine.metric_reaches("propylon_server_requests_in_flight", &[], 8.0);
        let mut client = Http2::start(&engine);
        client.get(1, "/");
        let mut told = None;
        loop {
            let frame = client.next_of(1);
            let seen = frame.status().or(frame.spelled_status());
            match frame.kind {
                HEADERS if seen != Some(103) && told.is_none() => told = seen,
                // What was said of a response that is broken off may be taken back.
                RST_STREAM if status == 200 => {
                    assert_eq!(frame.code(), INTERNAL_ERROR, "{what}");
                    break;
                }
                RST_STREAM => panic!("{what}: {frame:?}"),
                _ => {}
            }
            if frame.ends() {
                assert_eq!((told, status), (Some(502), 502), "{what}");
                break;
            }
        }
        for post in posts {
            others.send(DATA, END_STREAM, post, b"x");
            assert_eq!(others.response(post).1, b"hello\n", "{what}");
        }
        assert_eq!(engine.metric("propylon_server_connections_total", &[]), 1.0, "{what}");
        let told = engine.metric("propylon_server_faults_total", &[("reason", "bad-response")]);
        assert_eq!(told, 1.0, "{what}");
    }
}

/// Frames behind a stream's end are its error as long as the stream is there (RFC 9113 §5.1), and what came before is well.
#[test]
fn what_comes_behind_a_streams_end_costs_nobody_anything() {
    let origin = Origin::scripted(|peer| {
        let Some(mut server) = Http2Server::start(peer, &[]) else { return };
        while let Some(frame) = server.next_frame() {
            if frame.is_post() {
                // Early, so that the stream is still there.
                server.answer(frame.stream, b"early\n");
                server.send(DATA, 0, frame.stream, b"more");
                server.send(DATA, END_STREAM, frame.stream, b"more");
            } else if frame.kind == HEADERS {
                server.answer(frame.stream, b"hello\n");
            }
        }
    });
    let engine = Engine::start(&front(origin.address(), ""));
    let mut client = Http2::start(&engine);
    for stream in (1..40).step_by(4) {
        client.headers(stream, 0, &request("POST", "/"));
        assert_eq!(client.response(stream).1, b"early\n");
        client.get(stream + 2, "/");
        assert_eq!(client.response(stream + 2).1, b"hello\n");
    }
    assert_eq!(engine.metric("propylon_server_connections_total", &[]), 1.0);
}

#[test]
fn a_body_where_none_may_be_goes_to_nobody_and_is_told() {
    const NEXT: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen";
    for status in ["204", "304"] {
        let origin = answering(move |stream| {
            [head(stream, 0, &[(":status", status)]), bytes_of(DATA, 0, stream, NEXT)].concat()
        });
        let engine = Engine::start(&front(origin.address(), ""));
        let mut client = engine.client("plain");
        for _ in 0..3 {
            assert_eq!(client.get("/").status.to_string(), status);
        }
        let post = client.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
        assert_eq!(post.text(), "hello\n");
        engine.metric_reaches("propylon_server_faults_total", &[("reason", "excess-data")], 3.0);
        let mut client = Http2::start(&engine);
        client.get(1, "/");
        let head = client.next_of(1);
        assert!(head.kind == HEADERS && head.ends(), "{head:?}");
        engine.metric_reaches("propylon_server_faults_total", &[("reason", "excess-data")], 4.0);
        assert_eq!(engine.metric("propylon_server_connections_total", &[]), 1.0);
        engine.logged("a fault", |line| line["fault"] == "excess-data");
        let failures = engine.metric("propylon_server_outcomes_total", &[("outcome", "failure")]);
        assert_eq!(failures, 0.0, "the clients have had their responses");
    }
}

/// Trailers follow chunks alone over HTTP/1.1 (RFC 9112 §6.5), also those behind a length that their server has told.
#[test]
fn trailers_that_are_announced_beside_a_length_reach_clients_of_every_version() {
    let fields = [(":status", "200"), ("content-length", "2"), ("trailer", "x-sum")];
    let origin = answering(move |stream| {
        let (data, end) = (bytes_of(DATA, 0, stream, b"ok"), head(stream, END_STREAM, &[("x-sum", "abc")]));
        [head(stream, 0, &fields), data, end].concat()
    });
    let route = "[[route]]\npath = \"/slow\"\nbackend = \"app\"\nthrottle = { download = \"1MiB\" }\n";
    let engine = Engine::start(&format!("{}{route}", front(origin.address(), "")));
    let mut client = engine.client("plain");
    for path in ["/", "/slow"] {
        client.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        let head = client.read_head();
        assert!(head.contains("chunked") && !head.to_lowercase().contains("content-length"), "{path}: {head}");
        let body = text(&client.read_exact(b"2\r\nok\r\n0\r\nx-sum: abc\r\n\r\n".len()));
        assert_eq!(body, "2\r\nok\r\n0\r\nx-sum: abc\r\n\r\n", "{path}");
    }
    let mut client = Http2::start(&engine);
    client.get(1, "/");
    let (head, data) = client.response(1);
    assert_eq!((head.status(), text(&data)), (Some(200), "ok".into()));
}

/// By deadlines (gRPC) and by odd fields clients have servers reset their streams, which says nothing about the servers.
#[test]
fn a_reset_that_is_about_the_request_is_held_against_no_server() {
    for (code, reason, failures) in
        [(CANCEL, "request-reset", 0.0), (PROTOCOL_ERROR, "request-reset", 0.0), (INTERNAL_ERROR, "stream-reset", 1.0)]
    {
        let origin = answering(move |stream| bytes_of(RST_STREAM, 0, stream, &code.to_be_bytes()));
        let engine = Engine::start(&with(&[origin.address()], "", "protocol = \"h2\"\nretries = 0"));
        assert_eq!(engine.client("plain").get("/").status, 502, "{code}");
        let mut client = Http2::start(&engine);
        client.get(1, "/");
        let reset = client.next_of(1);
        assert_eq!((reset.kind, reset.code()), (RST_STREAM, code), "{reset:?}");
        engine.metric_reaches("propylon_server_faults_total", &[("reason", reason)], 2.0);
        let failed = engine.metric("propylon_server_outcomes_total", &[("outcome", "failure")]);
        assert_eq!(failed, failures * 2.0, "{code}");
    }
}

/// A header block in frames without a byte, and no end of them (CVE-2024-27316 from the other side).
/// A front of one worker, whose requests share a connection.
fn alone(server: SocketAddr, backend: &str) -> String {
    format!("[process]\nworkers = 1\n{}", front(server, backend))
}

/// GOAWAY with this last stream and code.
fn goaway(last: u32, code: u32) -> Vec<u8> {
    bytes_of(GOAWAY, 0, 0, &[last.to_be_bytes(), code.to_be_bytes()].concat())
}

/// A server that takes something on its connection for a breach says GOAWAY, and nothing more. The requests of others
/// there are repeated, if the server has not looked at them or they may be sent twice.
#[test]
fn a_connection_that_its_server_ends_for_what_one_client_sends_costs_the_others_nothing() {
    let origin = Origin::scripted(|peer| {
        let is_first = peer.number == 0;
        let Some(mut server) = Http2Server::start(peer, &[]) else { return };
        let (mut begun, mut last) = (0, 0);
        while let Some(frame) = server.next_frame() {
            if frame.kind != HEADERS {
                continue;
            }
            begun += 1;
            match begun {
                1 => server.answer(frame.stream, b"hello\n"),
                // The GET: it has been looked at. The POST behind it has not.
                2 if is_first => last = frame.stream,
                3 if is_first => server.send_bytes(&goaway(last, PROTOCOL_ERROR)),
                _ => server.answer(frame.stream, b"hello\n"),
            }
        }
    });
    let engine = Engine::start(&alone(origin.address(), "outlier = { consecutive_failures = 1 }"));
    assert_eq!(engine.client("plain").get("/").text(), "hello\n");
    let (mut get, mut post) = (engine.client("plain"), engine.client("plain"));
    get.send("GET /get HTTP/1.1\r\nHost: a\r\n\r\n");
    holds("it is at the server", || engine.metric("propylon_server_requests_in_flight", &[]) == 1.0);
    post.send("POST /post HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    for client in [&mut get, &mut post] {
        let response = client.read_response();
        assert_eq!((response.status, response.text().as_str()), (200, "hello\n"), "{}", response.head);
    }
    assert_eq!(origin.connections(), 2);
    assert!(engine.metric("propylon_server_faults_total", &[("reason", "goaway")]) == 2.0);
    assert_eq!(engine.metric("propylon_server_outcomes_total", &[("outcome", "failure")]), 0.0);
    assert_eq!(engine.metric("propylon_retries_refused_total", &[]), 0.0);
    assert_eq!(engine.metric("propylon_responses_total", &[("class", "5xx")]), 0.0);
}

/// A server that ends each connection before it has answered anything is ill.
#[test]
fn a_server_that_says_goaway_to_everything_is_held_to_it() {
    let origin = Origin::scripted(|peer| {
        let Some(mut server) = Http2Server::start(peer, &[]) else { return };
        while let Some(frame) = server.next_frame() {
            if frame.kind == HEADERS {
                server.send_bytes(&goaway(frame.stream, PROTOCOL_ERROR));
            }
        }
    });
    let engine = Engine::start(&front(origin.address(), "retries = 1"));
    let response = engine.client("plain").get("/");
    assert_eq!((response.status, response.text().as_str()), (502, "502 Bad Gateway: closed-before-response\n"));
    assert!(engine.metric("propylon_server_outcomes_total", &[("outcome", "failure")]) >= 1.0);
    assert_eq!(origin.connections(), 2);
}

/// A kept connection that ends without an answer has its client ask again. Where the server may have run the request
/// there is an answer, so that nobody runs it twice without knowing; where it has passed that over as well, without repeats.
#[test]
fn a_post_that_a_server_may_have_run_is_answered_on_a_kept_connection() {
    // The last stream in relation to the request's, and the code; without them the server closes and says nothing.
    let cases = [
        (Some((0, PROTOCOL_ERROR)), "", "goaway", 1),
        (Some((0x7ffe, PROTOCOL_ERROR)), "", "goaway", 1),
        (None, "", "closed-before-response", 1),
        (Some((-2, PROTOCOL_ERROR)), "retries = 0", "goaway", 1),
    ];
    for (end, backend, reason, posts) in cases {
        let posted = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&posted);
        let origin = Origin::scripted(move |peer| {
            let Some(mut server) = Http2Server::start(peer, &[]) else { return };
            while let Some(frame) = server.next_frame() {
                if frame.kind == HEADERS && !frame.is_post() {
                    server.answer(frame.stream, b"hello\n");
                } else if frame.ends() {
                    counted.fetch_add(1, Ordering::SeqCst);
                    let Some((beyond, code)) = end else { break };
                    server.send_bytes(&goaway(frame.stream.saturating_add_signed(beyond), code));
                }
            }
            peer.close();
        });
        let engine = Engine::start(&alone(origin.address(), backend));
        let mut client = engine.client("plain");
        assert_eq!(client.get("/").text(), "hello\n");
        let response = client.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
        assert_eq!((response.status, response.text()), (502, format!("502 Bad Gateway: {reason}\n")), "{end:?}");
        assert_eq!(posted.load(Ordering::SeqCst), posts, "{end:?}");
    }
}

/// A head is no answer: what is behind it may be cut off each time.
#[test]
fn a_server_that_says_goaway_behind_every_head_is_held_to_it() {
    let origin = Origin::scripted(|peer| {
        let Some(mut server) = Http2Server::start(peer, &[]) else { return };
        while let Some(frame) = server.next_frame() {
            if frame.kind == HEADERS {
                server.send_bytes(&head(frame.stream, 0, &[(":status", "200")]));
                server.send(DATA, 0, frame.stream, b"part");
                server.send_bytes(&goaway(frame.stream, INTERNAL_ERROR));
            }
        }
    });
    let engine = Engine::start(&alone(origin.address(), ""));
    for n in 1..=3 {
        let mut client = engine.client("plain");
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.read_to_end().1, Ending::Reset, "it is not whole");
        engine.metric_reaches("propylon_server_outcomes_total", &[("outcome", "failure")], f64::from(n));
    }
    assert_eq!(engine.metric("propylon_server_faults_total", &[("reason", "body-cut-short")]), 3.0);
    assert_eq!(engine.metric("propylon_server_faults_total", &[("reason", "goaway")]), 0.0);
    assert_eq!(origin.connections(), 3);
}

/// A request that its server says to have passed over though it has sent an interim response was looked at after all: it is
/// repeated if it may be sent twice.
#[test]
fn what_is_passed_over_behind_an_interim_response_is_repeated_where_that_is_safe() {
    for (code, of_use) in [(NO_ERROR, true), (PROTOCOL_ERROR, true), (NO_ERROR, false)] {
        for (method, status) in [("GET", 200), ("POST", 502)] {
            let (go, wait) = channel::<()>();
            let wait = Mutex::new(wait);
            let origin = Origin::scripted(move |peer| {
                let is_first = peer.number == 0;
                let Some(mut server) = Http2Server::start(peer, &[]) else { return };
                let mut begun = 0;
                while let Some(frame) = server.next_frame() {
                    if frame.kind != HEADERS {
                        continue;
                    }
                    begun += 1;
                    if is_first && (begun == 2 || !of_use) {
                        server.send_bytes(&head(frame.stream, 0, &[(":status", "103")]));
                        let _ = wait.lock().expect("one at a time").recv_timeout(Duration::from_secs(20));
                        server.send_bytes(&goaway(frame.stream - 1, code));
                    } else {
                        server.answer(frame.stream, b"hello\n");
                    }
                }
            });
            let engine = Engine::start(&alone(origin.address(), ""));
            if of_use {
                assert_eq!(engine.client("plain").get("/").text(), "hello\n");
            }
            let mut client = engine.client("plain");
            assert_eq!(client.ask(format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")).status, 103);
            go.send(()).expect("the origin waits");
            let response = client.read_response();
            assert_eq!(response.status, status, "{code} {of_use} {method}: {}", response.head);
            let reason = if of_use { "goaway" } else { "stream-refused" };
            assert_eq!(engine.metric("propylon_server_faults_total", &[("reason", reason)]), 1.0);
        }
    }
}

/// As over HTTP/1: what is owed behind an interim response is the response, and whose body is owed is to blame.
#[test]
fn a_server_that_closes_behind_an_interim_response_has_not_answered() {
    for (length, reason) in [(0, "closed-before-response"), (10, "closed-during-request")] {
        let origin = Origin::scripted(|peer| {
            let Some(mut server) = Http2Server::start(peer, &[]) else { return };
            while let Some(frame) = server.next_frame() {
                if frame.kind == HEADERS {
                    server.send_bytes(&head(frame.stream, 0, &[(":status", "103")]));
                    return peer.close();
                }
            }
        });
        let engine = Engine::start(&alone(origin.address(), ""));
        let mut client = engine.client("plain");
        assert_eq!(client.ask(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n")).status, 103);
        assert_eq!(client.read_response().status, 502, "{reason}");
        let fault = |reason| engine.metric("propylon_server_faults_total", &[("reason", reason)]);
        assert_eq!((fault(reason), fault("body-cut-short")), (1.0, 0.0), "{reason}");
    }
}

/// The rest of an upload whose server has answered it in full goes to nobody, and its trailers least of all.
#[test]
fn nothing_of_a_request_goes_to_a_server_that_has_ended_its_stream() {
    let (heard, hears) = channel();
    let heard = Mutex::new(heard);
    let origin = Origin::scripted(move |peer| {
        let Some(mut server) = Http2Server::start(peer, &[]) else { return };
        let mut upload = 0;
        while let Some(frame) = server.next_frame() {
            if frame.is_post() {
                upload = frame.stream;
                server.answer(frame.stream, b"hello\n");
            } else if frame.kind == HEADERS && frame.stream != upload {
                server.answer(frame.stream, b"hello\n");
            } else if frame.stream == upload {
                let _ = heard.lock().expect("nobody panics with it").send(frame.kind);
            }
        }
    });
    let engine = Engine::start(&alone(origin.address(), ""));
    // Nothing but the response's head has room, so that the request is not over.
    let mut client = Http2::start_with(&engine, &[(4, 0)]);
    client.headers(1, 0, &request("POST", "/"));
    assert_eq!(client.next_of(1).status(), Some(200));
    // All that came before this answer has been read.
    assert_eq!(engine.client("plain").get("/").text(), "hello\n");
    client.send(DATA, 0, 1, b"late");
    client.headers(1, END_STREAM, &[("x-trailer", "late")]);
    assert_eq!(engine.client("plain").get("/").text(), "hello\n");
    client.send(WINDOW_UPDATE, 0, 1, &100_u32.to_be_bytes());
    let data = client.next_of(1);
    assert_eq!((data.kind, data.payload.as_slice()), (DATA, &b"hello\n"[..]));
    engine.metric_reaches("propylon_server_requests_in_flight", &[], 0.0);
    assert_eq!(engine.client("plain").get("/").text(), "hello\n");
    drop(client);
    let kinds: Vec<u8> = hears.try_iter().collect();
    assert!(kinds.contains(&RST_STREAM) && !kinds.iter().any(|kind| matches!(*kind, DATA | HEADERS)), "{kinds:?}");
    assert_eq!(origin.connections(), 1);
}

#[test]
fn a_header_block_without_end_is_cut_off() {
    let origin = Origin::scripted(|peer| {
        let Some(mut server) = Http2Server::start(peer, &[]) else { return };
        let Some(frame) = server.next_frame() else { return };
        server.send(HEADERS, 0, frame.stream, &[]);
        // A connection that has ended takes none of them.
        for _ in 0..1_000 {
            server.send_bytes(&bytes_of(CONTINUATION, 0, frame.stream, &[]).repeat(10));
        }
    });
    let engine = Engine::start(&with(&[origin.address()], "", "protocol = \"h2\"\nretries = 0"));
    assert_eq!(engine.client("plain").get("/").status, 502);
    engine.metric_reaches("propylon_server_connections", &[], 0.0);
}

/// RFC 9113 §6.5.2: a server has no say in whether it may push.
#[test]
fn a_server_that_wants_to_push_is_none_of_http2() {
    const ENABLE_PUSH: u16 = 2;
    let origin = Origin::scripted(|peer| {
        let _ = Http2Server::start(peer, &[(ENABLE_PUSH, 1)]);
    });
    let engine = Engine::start(&front(origin.address(), ""));
    let response = engine.client("plain").get("/");
    assert!(response.status == 502 && response.text().contains("no-http2"), "{}", response.text());
}

struct Nghttpd(Child);

impl Drop for Nghttpd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn nghttpd_is_a_server_like_any_other() {
    let scratch = Scratch::new();
    let page: Vec<u8> = (0..500_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    scratch.write("page", &page);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let mut command = Command::new("nghttpd");
    command.args(["--no-tls", "-a", "127.0.0.1", "-d"]).arg(scratch.path()).arg("--trailer=x-end: yes");
    let Ok(child) = command.arg(port.to_string()).stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
        eprintln!("nghttpd is not here: nothing is shown");
        return;
    };
    let _server = Nghttpd(child);
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    holds("nghttpd listens", || std::net::TcpStream::connect(address).is_ok());
    let engine = Engine::start(&front(address, ""));
    for version in ["--http2", "--http1.1"] {
        let said = curl(&[version, &format!("{}/page", engine.url("web"))]).ok();
        assert!(said.stdout == page, "{version}: {} bytes", said.stdout.len());
    }
    assert_eq!(engine.metric("propylon_server_connections_total", &[]), 1.0);
}

/// Opens once, for all who wait for it.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn open(&self) {
        *self.0.0.lock().expect("nobody panics with it") = true;
        self.0.1.notify_all();
    }

    fn wait(&self) {
        let shut = self.0.0.lock().expect("nobody panics with it");
        let _ = self.0.1.wait_timeout_while(shut, Duration::from_secs(20), |open| !*open);
    }
}

/// SETTINGS_MAX_CONCURRENT_STREAMS.
const STREAMS_MAX: u16 = 3;
/// SETTINGS_INITIAL_WINDOW_SIZE.
const INITIAL_WINDOW: u16 = 4;

/// Answers what comes, each request with how many came before it.
fn answer_all(server: &mut Http2Server<'_>, served: &AtomicUsize) {
    while let Some(frame) = server.next_frame() {
        if frame.kind == HEADERS {
            let number = served.fetch_add(1, Ordering::SeqCst);
            server.answer(frame.stream, number.to_string().as_bytes());
        }
    }
}

fn limited(server: SocketAddr, max_connections: usize, backend: &str) -> String {
    let table = format!("servers = [{{ address = \"{server}\", max_connections = {max_connections} }}]");
    front(server, backend).replace(&format!("servers = [\"{server}\"]"), &table)
}

#[test]
fn a_server_that_allows_no_streams_gets_few_connections_and_requests_are_refused_in_their_time() {
    let origin = Origin::scripted(|peer| {
        let Some(mut server) = Http2Server::start(peer, &[(STREAMS_MAX, 0)]) else { return };
        while server.next_frame().is_some() {}
    });
    let engine = Engine::start(&front(origin.address(), "queue = { timeout = \"1s\" }"));
    let mut clients: Vec<_> = (0..3).map(|_| engine.client("plain")).collect();
    for client in &mut clients {
        client.send("GET /waits HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    for client in &mut clients {
        let response = client.read_response();
        assert_eq!((response.status, response.text().as_str()), (503, "503 Service Unavailable: queue-timeout\n"));
        assert_eq!(response.field("Retry-After"), Some("1"));
    }
    let made = origin.connections();
    assert!((1..=4).contains(&made), "{made} connections");
    assert_eq!(engine.metric("propylon_queue_refused_total", &[("reason", "queue-timeout")]), 3.0);
    assert_eq!(engine.metric("propylon_queue_wait_seconds_count", &[]), 3.0);
    assert_eq!(engine.metric("propylon_queue_depth", &[]), 0.0);
    let waited = engine.logged_path("/waits");
    assert!(waited["duration_us"]["queue"].as_u64() >= Some(900_000), "{waited}");
}

#[test]
fn requests_that_wait_are_served_when_the_server_allows_streams() {
    let (gate, served) = (Gate::default(), AtomicUsize::new(0));
    let opens = gate.clone();
    let origin = Origin::scripted(move |peer| {
        let Some(mut server) = Http2Server::start(peer, &[(STREAMS_MAX, 0)]) else { return };
        opens.wait();
        let settings = [&STREAMS_MAX.to_be_bytes()[..], &100_u32.to_be_bytes()].concat();
        server.send(SETTINGS, 0, 0, &settings);
        answer_all(&mut server, &served);
    });
    // Beyond a client's own wait: who is served is so because of the SETTINGS.
    let engine = Engine::start(&limited(origin.address(), 4, "queue = { timeout = \"10m\" }"));
    let mut clients: Vec<_> = (0..20).map(|_| engine.client("plain")).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    engine.metric_reaches("propylon_queue_depth", &[], 20.0);
    gate.open();
    for client in &mut clients {
        assert_eq!(client.read_response().status, 200);
    }
    assert!(origin.connections() <= 4, "{} connections", origin.connections());
    engine.metric_reaches("propylon_queue_depth", &[], 0.0);
}

#[test]
fn a_connection_that_fails_beside_an_open_one_fails_nobody_and_is_not_the_open_ones_fault() {
    let (gate, served, failed) = (Gate::default(), AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let (opens, failing) = (gate.clone(), Arc::clone(&failed));
    let origin = Origin::scripted(move |peer| {
        if peer.number > 0 {
            failing.fetch_add(1, Ordering::SeqCst);
            return peer.reset();
        }
        let Some(mut server) = Http2Server::start(peer, &[(STREAMS_MAX, 1)]) else { return };
        opens.wait();
        answer_all(&mut server, &served);
    });
    let engine = Engine::start(&front(origin.address(), "queue = { timeout = \"10m\" }\nretries = 0"));
    let mut clients: Vec<_> = (0..40).map(|_| engine.client("plain")).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    engine.metric_reaches("propylon_queue_depth", &[], 39.0);
    holds("a further connection fails", || failed.load(Ordering::SeqCst) > 0);
    gate.open();
    for client in &mut clients {
        assert_eq!(client.read_response().status, 200);
    }
    assert_eq!(engine.metric("propylon_server_outcomes_total", &[("outcome", "failure")]), 0.0);
    assert_eq!(engine.metric("propylon_server_outcomes_total", &[("outcome", "success")]), 40.0);
}

/// As many as are needed, one at a time until the server has shown that they are of use, and then four.
#[test]
fn further_connections_are_made_when_the_first_is_of_use_and_there_is_need_of_them() {
    // Two streams on each.
    for (clients, expected) in [(16, 5), (5, 3)] {
        let (first, others, answers) = (Gate::default(), Gate::default(), Gate::default());
        let (opens, others_open, answering) = (first.clone(), others.clone(), answers.clone());
        let served = AtomicUsize::new(0);
        let origin = Origin::scripted(move |peer| {
            if peer.number == 0 {
                opens.wait()
            } else {
                others_open.wait()
            }
            let Some(mut server) = Http2Server::start(peer, &[]) else { return };
            answering.wait();
            answer_all(&mut server, &served);
        });
        let backend = "http2 = { max_streams = 2 }\nqueue = { timeout = \"10m\" }\ntimeouts = { connect = \"1m\" }";
        let engine = Engine::start(&front(origin.address(), backend));
        let mut all: Vec<_> = (0..clients).map(|_| engine.client("plain")).collect();
        all.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
        holds("one is made", || origin.connections() >= 1);
        engine.metric_reaches("propylon_server_requests_in_flight", &[], f64::from(clients));
        assert_eq!(origin.connections(), 1, "nobody knows yet what they are good for");
        first.open();
        holds("those that are needed are made", || origin.connections() >= expected);
        engine.metric_reaches("propylon_server_requests_in_flight", &[], f64::from(clients));
        assert_eq!(origin.connections(), expected, "{clients} clients");
        [others, answers].iter().for_each(Gate::open);
        all.iter_mut().for_each(|client| assert_eq!(client.read_response().status, 200));
    }
}

#[test]
fn connections_on_which_a_server_allows_no_streams_come_with_longer_and_longer_pauses() {
    let made = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&made);
    let origin = Origin::scripted(move |peer| {
        notes.lock().expect("nobody panics with it").push(Instant::now());
        let Some(mut server) = Http2Server::start(peer, &[(STREAMS_MAX, 0)]) else { return };
        while server.next_frame().is_some() {}
    });
    let engine = Engine::start(&front(origin.address(), "queue = { timeout = \"10m\" }"));
    let mut clients: Vec<_> = (0..3).map(|_| engine.client("plain")).collect();
    clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    holds("four are tried", || made.lock().expect("nobody panics with it").len() == 4);
    let made = made.lock().expect("nobody panics with it");
    // 0.1, 0.2 and 0.4 s, on clocks that tick ten times a second; never less, however slow the machine.
    let took = *made.iter().max().expect("four") - *made.iter().min().expect("four");
    assert!(took >= Duration::from_millis(500), "{took:?}");
}

/// Whether the request is over one protocol or the other.
#[test]
fn connections_end_with_their_requests_while_the_engine_drains() {
    for protocol in ["http1", "h2"] {
        let (held, short) = (Gate::default(), Gate::default());
        let (is_held, is_short) = (held.clone(), short.clone());
        let origin = Origin::answering(move |request| {
            if request.starts_with(b"GET /held") {
                is_held.wait()
            } else {
                is_short.wait()
            }
            HELLO.into()
        });
        let back = Engine::start(&simple(&[origin.address()]));
        let backend = format!("protocol = \"{protocol}\"\nhttp2 = {{ max_streams = 1 }}");
        let mut engine = Engine::start(&format!(
            "[process]\nworkers = 1\ndrain_timeout = \"1m\"\n{}",
            with(&[back.address("plain")], "", &backend)
        ));
        let (mut one, mut two) = (engine.client("plain"), engine.client("plain"));
        one.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n");
        two.send("GET /short HTTP/1.1\r\nHost: a\r\n\r\n");
        let connections = || back.metric("propylon_connections", &[]);
        holds("both are with the server", || {
            let text = origin.received_text();
            text.contains("GET /held") && text.contains("GET /short")
        });
        assert_eq!(connections(), 2.0, "{protocol}");
        engine.signal(Signal::TERM);
        holds("the drain has begun", || engine.stderr().iter().any(|line| line.contains("draining")));
        short.open();
        assert_eq!(two.read_response().text(), "hello\n", "{protocol}");
        holds("its connection ends", || connections() == 1.0);
        held.open();
        assert_eq!(one.read_response().text(), "hello\n", "{protocol}");
        assert_eq!(engine.wait(Duration::from_secs(20)).status.code(), Some(0));
    }
}

#[test]
fn a_connection_of_http2_that_nobody_needs_ends_when_its_time_is_over() {
    let origin = Origin::always(HELLO);
    let chain = Chain::with(&origin, "timeouts = { idle = \"1s\" }", "");
    assert_eq!(chain.front.client("plain").get("/").text(), "hello\n");
    chain.front.metric_reaches("propylon_server_connections", &[], 0.0);
    assert_eq!(chain.front.metric("propylon_server_close_timeouts_total", &[]), 0.0, "in order");
}

/// A server that says nothing is asked whether it is there, and given up where it does not say so.
#[test]
fn a_server_that_answers_pings_may_take_its_time_and_another_is_given_up() {
    let (asked, gate) = (Arc::new(AtomicUsize::new(0)), Gate::default());
    let (pings, opens) = (Arc::clone(&asked), gate.clone());
    let origin = Origin::scripted(move |peer| {
        let is_there = peer.number == 0;
        let Some(mut server) = Http2Server::start(peer, &[]) else { return };
        let mut request = 0;
        while let Some(frame) = server.next_frame() {
            match frame.kind {
                HEADERS if is_there => request = frame.stream,
                HEADERS => return opens.wait(),
                PING if frame.flags & ACK == 0 => {
                    server.send(PING, ACK, 0, &frame.payload);
                    if pings.fetch_add(1, Ordering::SeqCst) == 2 {
                        server.answer(request, b"hello\n");
                    }
                }
                _ => {}
            }
        }
    });
    let backend = "http2 = { ping = \"1s\", max_streams = 1 }\nretries = 0\ntimeouts = { first_byte = \"10m\" }";
    let engine = Engine::start(&front(origin.address(), backend));
    let (mut one, mut two) = (engine.client("plain"), engine.client("plain"));
    one.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    engine.metric_reaches("propylon_server_connections", &[], 1.0);
    two.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(two.read_response().status, 502, "it has stopped answering");
    assert_eq!(one.read_response().text(), "hello\n", "the third ping was answered as well");
    assert_eq!(asked.load(Ordering::SeqCst), 3);
    gate.open();
}

/// What the one good connection serves is no reason to try for another one at once.
#[test]
fn further_connections_that_are_of_no_use_come_with_pauses_however_many_requests_are_served() {
    let (served, useless) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let ended = Arc::clone(&useless);
    let origin = Origin::scripted(move |peer| {
        if peer.number > 0 {
            ended.fetch_add(1, Ordering::SeqCst);
            return peer.reset();
        }
        let Some(mut server) = Http2Server::start(peer, &[(STREAMS_MAX, 1)]) else { return };
        answer_all(&mut server, &served);
    });
    let engine = Engine::start(&front(origin.address(), "queue = { timeout = \"10m\" }\nretries = 0"));
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                let mut client = engine.client("plain");
                (0..60).for_each(|_| assert_eq!(client.get("/").status, 200));
            });
        }
    });
    // After 0.1, 0.2, 0.4 ... 5 s: as many as these in a minute.
    let useless = useless.load(Ordering::SeqCst);
    assert!((1..30).contains(&useless), "{useless} further connections for 600 requests");
}

#[test]
fn a_connection_whose_server_reads_no_more_is_given_up_and_its_permit_is_free() {
    let (gate, served) = (Gate::default(), AtomicUsize::new(0));
    let opens = gate.clone();
    let origin = Origin::scripted(move |peer| {
        const WINDOW: u16 = 4;
        let stuck = peer.number == 0;
        let Some(mut server) = Http2Server::start(peer, &[(WINDOW, 1 << 30)]) else { return };
        if stuck {
            server.send(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes());
            return opens.wait();
        }
        answer_all(&mut server, &served);
    });
    let timeouts = "timeouts = { idle = \"1s\", close = \"1s\" }\nqueue = { timeout = \"10m\" }";
    let engine = Engine::start(&limited(origin.address(), 1, timeouts));
    let mut client = engine.client("plain");
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n");
    client.read_timeout(Duration::from_millis(500));
    // Until nothing moves any more, all the way to the server.
    // Until hardly anything moves any more, all the way to the server.
    let moves = |client: &mut Client| {
        let began = Instant::now();
        client.offer(&[b'x'; 30_000]) && began.elapsed() < Duration::from_millis(300)
    };
    while moves(&mut client) {}
    client.reset();
    // The one permit is free, though the server has not said a word.
    engine.metric_reaches("propylon_server_connections", &[], 0.0);
    assert_eq!(engine.metric("propylon_server_close_timeouts_total", &[]), 1.0, "which is told");
    assert_eq!(engine.client("plain").get("/").status, 200);
    gate.open();
}

#[test]
fn the_line_is_one_for_requests_that_wait_for_streams_with_its_limit_and_its_order() {
    let (go, wait) = channel::<()>();
    let (wait, served) = (Mutex::new(wait), AtomicUsize::new(0));
    let origin = Origin::scripted(move |peer| {
        let Some(mut server) = Http2Server::start(peer, &[(STREAMS_MAX, 1)]) else { return };
        while let Some(frame) = server.next_frame() {
            if frame.kind == HEADERS {
                let _ = wait.lock().expect("nobody panics with it").recv_timeout(Duration::from_secs(20));
                let number = served.fetch_add(1, Ordering::SeqCst);
                server.answer(frame.stream, number.to_string().as_bytes());
            }
        }
    });
    let engine = Engine::start(&limited(origin.address(), 1, "queue = { limit = 4, timeout = \"10m\" }"));
    let mut clients: Vec<_> = (0..5).map(|_| engine.client("plain")).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        match n {
            0 => engine.metric_reaches("propylon_server_connections", &[], 1.0),
            _ => engine.metric_reaches("propylon_queue_depth", &[], n as f64),
        }
    }
    for _ in 0..3 {
        let response = engine.client("web").get("/");
        assert_eq!((response.status, response.text().as_str()), (503, "503 Service Unavailable: queue-full\n"));
    }
    // One of them goes away, and leaves its place to another.
    clients.remove(2).reset();
    engine.metric_reaches("propylon_queue_depth", &[], 3.0);
    assert_eq!(engine.metric("propylon_queue_refused_total", &[("reason", "client-gone")]), 1.0);
    let mut last = engine.client("web");
    last.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    engine.metric_reaches("propylon_queue_depth", &[], 4.0);
    clients.push(last);
    for (n, client) in clients.iter_mut().enumerate() {
        go.send(()).expect("the origin waits");
        assert_eq!(client.read_response().text(), n.to_string(), "in the order in which they came");
    }
    assert_eq!(engine.metric("propylon_queue_refused_total", &[("reason", "queue-full")]), 3.0);
    assert_eq!(engine.metric("propylon_queue_wait_seconds_count", &[]), 5.0);
    assert_eq!(origin.connections(), 1);
}

/// Requests that a first connection has no stream for have to wait like everybody else.
#[test]
fn a_crowd_that_comes_before_the_first_connection_is_held_to_the_limit_of_the_line() {
    let (gate, served) = (Gate::default(), AtomicUsize::new(0));
    let (opens, answers) = (gate.clone(), Gate::default());
    let answering = answers.clone();
    let origin = Origin::scripted(move |peer| {
        opens.wait();
        let Some(mut server) = Http2Server::start(peer, &[(STREAMS_MAX, 1)]) else { return };
        answering.wait();
        answer_all(&mut server, &served);
    });
    let engine = Engine::start(&limited(origin.address(), 1, "queue = { limit = 2, timeout = \"10m\" }"));
    let mut clients: Vec<_> = (0..9).map(|_| engine.client("plain")).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    engine.metric_reaches("propylon_server_requests_in_flight", &[], 9.0);
    gate.open();
    engine.metric_reaches("propylon_queue_refused_total", &[("reason", "queue-full")], 6.0);
    answers.open();
    let statuses: Vec<u16> = clients.iter_mut().map(|client| client.read_response().status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 3, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 503).count(), 6, "{statuses:?}");
}

#[test]
fn a_server_hears_of_every_client_that_goes_away_before_its_answer() {
    let (heard, hears) = channel();
    let heard = Mutex::new(heard);
    let origin = Origin::scripted(move |peer| {
        let Some(mut server) = Http2Server::start(peer, &[]) else { return };
        while let Some(frame) = server.next_frame() {
            if matches!(frame.kind, HEADERS | RST_STREAM) {
                let _ = heard.lock().expect("nobody panics with it").send(frame);
            }
        }
    });
    let engine = Engine::start(&front(origin.address(), ""));
    let next = || hears.recv_timeout(Duration::from_secs(20)).expect("a frame");
    let mut client = Http2::start(&engine);
    client.get(1, "/");
    let begun = next();
    client.send(RST_STREAM, 0, 1, &CANCEL.to_be_bytes());
    let reset = next();
    assert_eq!((reset.kind, reset.stream, reset.code()), (RST_STREAM, begun.stream, CANCEL));
    client.get(3, "/");
    let begun = next();
    client.client.finish();
    let reset = next();
    assert_eq!((reset.kind, reset.stream, reset.code()), (RST_STREAM, begun.stream, CANCEL), "the connection ends");
    // The same over HTTP/1.1, by a reset behind bytes that nobody reads, and by an end.
    for ends in [false, true] {
        let mut client = engine.client("plain");
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let begun = next();
        if ends {
            client.finish()
        } else {
            client.send("GET /next HTTP/1.1\r\n");
            client.reset_on_close();
            drop(client);
        }
        let reset = next();
        assert_eq!((reset.kind, reset.stream, reset.code()), (RST_STREAM, begun.stream, CANCEL), "{ends}");
    }
    engine.metric_reaches("propylon_server_requests_in_flight", &[], 0.0);
}

/// The line is the backend's, whichever server's streams its requests wait for: it is the one who has waited for the longest of all
/// who makes way, and not the oldest of those who wait for the same server.
#[test]
fn in_overload_the_oldest_of_all_makes_way_whichever_server_it_waits_for() {
    let (gate, served) = (Gate::default(), AtomicUsize::new(0));
    let (opens, served) = (gate.clone(), Arc::new(served));
    let server = || {
        let (opens, served) = (opens.clone(), Arc::clone(&served));
        Origin::scripted(move |peer| {
            let Some(mut server) = Http2Server::start(peer, &[(STREAMS_MAX, 1)]) else { return };
            opens.wait();
            answer_all(&mut server, &served);
        })
    };
    let (one, two) = (server(), server());
    let queue = "queue = { limit = 3, timeout = \"10m\", target = \"20ms\" }";
    let text = limited(one.address(), 1, queue);
    let of = |address: SocketAddr| format!("{{ address = \"{address}\", max_connections = 1 }}");
    let engine =
        Engine::start(&text.replace(&of(one.address()), &format!("{}, {}", of(one.address()), of(two.address()))));
    let mut clients: Vec<_> = (0..9).map(|_| engine.client("plain")).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        match n {
            0 | 1 => engine.metric_reaches("propylon_server_connections", &[], (n + 1) as f64),
            2..=4 => engine.metric_reaches("propylon_queue_depth", &[], (n - 1) as f64),
            _ => engine.metric_reaches("propylon_queue_refused_total", &[("reason", "queue-full")], (n - 4) as f64),
        }
        // Nothing but time makes an overload.
        std::thread::sleep(Duration::from_millis(60));
    }
    for client in &mut clients[2..6] {
        let response = client.read_response();
        assert_eq!((response.status, response.text().as_str()), (503, "503 Service Unavailable: queue-full\n"));
    }
    gate.open();
    for n in [0, 1, 6, 7, 8] {
        assert_eq!(clients[n].read_response().status, 200, "{n}");
    }
    engine.metric_reaches("propylon_queue_depth", &[], 0.0);
}

/// Two servers with room for one request each, both at work, and a line for either. One is found down while its request
/// goes on.
#[test]
fn who_waits_for_a_server_that_is_found_down_is_served_by_another() {
    let well = Arc::new(AtomicBool::new(true));
    let (go, wait) = channel::<()>();
    let (gate, wait) = (Gate::default(), Mutex::new(wait));
    let opens = gate.clone();
    let answer = |body: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes();
    let is_well = Arc::clone(&well);
    let sick = Origin::answering(move |request| {
        if request.starts_with(b"GET /up ") {
            let status = if is_well.load(Ordering::SeqCst) { "200 OK" } else { "500 Sick" };
            return HELLO.replace("200 OK", status).into_bytes();
        }
        // For as long as the test runs: nobody is to be served because this request has ended.
        let _ = wait.lock().expect("nobody panics with it").recv();
        answer("sick")
    });
    let other = Origin::answering(move |request| {
        if !request.starts_with(b"GET /up ") {
            opens.wait();
        }
        answer("other")
    });
    let backs = [&sick, &other].map(|origin| Engine::start(&with(&[origin.address()], "", "")));
    let [one, two] = backs.each_ref().map(|back| back.address("plain"));
    let health = "health = { path = \"/up\", interval = \"1s\", rise = 1, fall = 2 }";
    let text = limited(one, 1, &format!("http2 = {{ max_streams = 1 }}\nqueue = {{ timeout = \"10m\" }}\n{health}"));
    let of = |address: SocketAddr| format!("{{ address = \"{address}\", max_connections = 1 }}");
    let engine = Engine::start(&text.replace(&of(one), &format!("{}, {}", of(one), of(two))));
    let mut clients: Vec<_> = (0..6).map(|_| engine.client("plain")).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.send("GET /work HTTP/1.1\r\nHost: a\r\n\r\n");
        match n {
            0 | 1 => engine.metric_reaches("propylon_server_connections", &[], (n + 1) as f64),
            _ => engine.metric_reaches("propylon_queue_depth", &[], (n - 1) as f64),
        }
    }
    well.store(false, Ordering::SeqCst);
    engine.metric_reaches("propylon_server_up", &[], 1.0);
    gate.open();
    for client in &mut clients[2..] {
        assert_eq!(client.read_response().text(), "other");
    }
    engine.metric_reaches("propylon_queue_depth", &[], 0.0);
    assert_eq!(sick.received_text().matches("GET /work ").count(), 1, "none has gone to the one that is down");
    go.send(()).expect("the origin waits");
    let mut first = [0, 1].map(|n| clients[n].read_response().text());
    first.sort();
    assert_eq!(first, ["other", "sick"], "what was at work there has gone on");
}

#[test]
fn who_waits_for_a_slow_server_is_served_by_another_that_is_free_sooner() {
    let (go, wait) = channel::<()>();
    let (gate, wait) = (Gate::default(), Mutex::new(wait));
    let opens = gate.clone();
    let answer = |body: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes();
    let slow = Origin::answering(move |_| {
        let _ = wait.lock().expect("nobody panics with it").recv();
        answer("slow")
    });
    let quick = Origin::answering(move |_| {
        opens.wait();
        answer("quick")
    });
    let backs = [&slow, &quick].map(|origin| Engine::start(&with(&[origin.address()], "", "")));
    let [one, two] = backs.each_ref().map(|back| back.address("plain"));
    let text = limited(one, 1, "http2 = { max_streams = 1 }\nqueue = { timeout = \"10m\" }");
    let of = |address: SocketAddr| format!("{{ address = \"{address}\", max_connections = 1 }}");
    let engine = Engine::start(&text.replace(&of(one), &format!("{}, {}", of(one), of(two))));
    let mut clients: Vec<_> = (0..10).map(|_| engine.client("plain")).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.send("GET /work HTTP/1.1\r\nHost: a\r\n\r\n");
        match n {
            0 | 1 => engine.metric_reaches("propylon_server_connections", &[], (n + 1) as f64),
            _ => engine.metric_reaches("propylon_queue_depth", &[], (n - 1) as f64),
        }
    }
    gate.open();
    for client in &mut clients[2..] {
        assert_eq!(client.read_response().text(), "quick");
    }
    engine.metric_reaches("propylon_queue_depth", &[], 0.0);
    assert_eq!(engine.metric("propylon_queue_refused_total", &[]), 0.0);
    go.send(()).expect("the origin waits");
    let mut first = [0, 1].map(|n| clients[n].read_response().text());
    first.sort();
    assert_eq!(first, ["quick", "slow"]);
    assert_eq!(slow.received_text().matches("GET /work ").count(), 1);
}

/// A stream at a time, for requests that have all waited for longer than the target. They go by their order until one
/// of their clients goes away.
#[test]
fn streams_go_to_the_newest_only_where_clients_give_up() {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let origin = Origin::scripted(move |peer| {
        let Some(mut server) = Http2Server::start(peer, &[(STREAMS_MAX, 1)]) else { return };
        while let Some(frame) = server.next_frame() {
            if frame.kind == HEADERS {
                let _ = wait.lock().expect("nobody panics with it").recv_timeout(Duration::from_secs(20));
                server.answer(frame.stream, b"hello\n");
            }
        }
    });
    let queue = "queue = { timeout = \"10m\", target = \"20ms\" }";
    let engine = Engine::start(&limited(origin.address(), 1, queue));
    let mut clients: Vec<_> = (0..7).map(|_| Some(engine.client("plain"))).collect();
    for (n, client) in clients.iter_mut().flatten().enumerate() {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        match n {
            0 => engine.metric_reaches("propylon_server_connections", &[], 1.0),
            _ => engine.metric_reaches("propylon_queue_depth", &[], n as f64),
        }
    }
    // Nothing but time makes a wait longer than the target.
    std::thread::sleep(Duration::from_millis(60));
    let is_answered = |client: &mut Option<Client>| {
        go.send(()).expect("the origin waits");
        assert_eq!(client.as_mut().map(|client| client.read_response().text()).as_deref(), Some("hello\n"));
    };
    clients[..2].iter_mut().for_each(is_answered);
    // The one after these has its stream.
    engine.metric_reaches("propylon_queue_depth", &[], 4.0);
    clients[4].take().into_iter().for_each(Client::reset);
    engine.metric_reaches("propylon_queue_depth", &[], 3.0);
    [2, 6, 5, 3].into_iter().for_each(|n| is_answered(&mut clients[n]));
}

/// Two workers and room for one connection, which goes to whose request came first of all: those of the worker whose connection makes way
/// do not stand behind those who came later.
#[test]
fn who_waits_keeps_its_place_though_its_connection_makes_way_for_another_workers() {
    let served = Arc::new(Mutex::new(Vec::new()));
    let (go, wait) = channel::<()>();
    let (log, wait) = (Arc::clone(&served), Mutex::new(wait));
    let origin = Origin::scripted(move |peer| {
        let Some(mut server) = Http2Server::start(peer, &[(STREAMS_MAX, 1)]) else { return };
        while let Some(frame) = server.next_frame() {
            if frame.kind == HEADERS {
                let _ = wait.lock().expect("nobody panics with it").recv_timeout(Duration::from_secs(20));
                server.answer(frame.stream, b"hello\n");
            }
        }
    });
    let engine = Engine::start(&format!(
        "[process]\nworkers = 2\ndrain_timeout = \"1s\"\n{}",
        limited(origin.address(), 1, "queue = { timeout = \"10m\" }")
    ));
    let mut clients: Vec<_> = (0..24).map(|_| engine.client("plain")).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        match n {
            0 => engine.metric_reaches("propylon_server_connections", &[], 1.0),
            _ => engine.metric_reaches("propylon_queue_depth", &[], n as f64),
        }
    }
    std::thread::scope(|scope| {
        for (n, mut client) in clients.into_iter().enumerate() {
            let log = &log;
            scope.spawn(move || {
                assert_eq!(client.read_response().text(), "hello\n");
                log.lock().expect("nobody panics with it").push(n);
            });
        }
        for n in 1..=24 {
            // Longer than a worker's connection is kept from another's requests.
            std::thread::sleep(Duration::from_millis(200));
            go.send(()).expect("the origin waits");
            holds("one more is served", || log.lock().expect("nobody panics with it").len() == n);
        }
    });
    let order = served.lock().expect("nobody panics with it").clone();
    println!("{order:?}");
    let passed = |place: usize| order[..place].iter().filter(|other| **other > order[place]).count();
    let most = (0..order.len()).map(passed).max();
    assert!(most <= Some(2), "{most:?} of those who came later were served before one: {order:?}");
    assert!(origin.connections() > 2, "each worker's connection has made way: {} connections", origin.connections());
    engine.metric_reaches("propylon_queue_depth", &[], 0.0);
}

/// Streams that stand still take little of the engine's memory, however fast their servers are, and whether they stand
/// still from the first byte or after some.
#[test]
fn a_hundred_stalled_streams_take_four_mebibytes_at_most() {
    const MEMORY_MAX: u64 = 4 << 20;
    // Pages that a busy machine left half used count as used: the least of a few engines is what streams take.
    const ENGINES_MAX: usize = 3;
    let origin = Origin::answering(|_| {
        [&b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"[..], &vec![b'x'; 1_000_000]].concat()
    });
    for window in [0, 40_000] {
        for what in ["servers of HTTP/1.1", "servers of HTTP/2"] {
            let taken = (0..ENGINES_MAX).map(|_| {
                // Each is new to it: memory that was used before would not be seen.
                let chain = Chain::new(&origin);
                let engine = if what == "servers of HTTP/2" { &chain.front } else { &chain.back };
                memory_of_a_hundred_stalled_streams(engine, window, MEMORY_MAX)
            });
            let mut seen = Vec::new();
            let is_little = taken.inspect(|each| seen.push(each >> 10)).any(|each| each <= MEMORY_MAX);
            println!("{what}, windows of {window}: {seen:?} KiB for a hundred streams");
            assert!(is_little, "{what}, windows of {window}: {seen:?} KiB");
        }
    }
}

/// Bytes for a hundred streams, as soon as they are `enough` or less, or the least for some seconds.
fn memory_of_a_hundred_stalled_streams(engine: &Engine, window: u32, enough: u64) -> u64 {
    const CLIENTS: u64 = 4;
    const STREAMS: u32 = 100;
    const LOOKS: usize = 20;
    let before = engine.anonymous_memory();
    let mut clients: Vec<Http2> = (0..CLIENTS).map(|_| Http2::start_with(engine, &[(4, window)])).collect();
    for client in &mut clients {
        // So much that no stream waits for the connection's window.
        client.send(WINDOW_UPDATE, 0, 0, &0x4000_0000_u32.to_be_bytes());
        (0..STREAMS).for_each(|index| client.get(1 + index * 2, "/long"));
    }
    let mut last = 0;
    holds("nothing more comes", || {
        std::thread::sleep(Duration::from_millis(300));
        let now = engine.anonymous_memory();
        let is_same = now <= last && engine.metric("propylon_http2_streams", &[]) == f64::from(STREAMS * 4);
        last = now;
        is_same
    });
    // Memory needed for a moment is given back when the worker has something to do a little later.
    let mut least = u64::MAX;
    for _ in 0..LOOKS {
        clients[0].send(PING, 0, 0, b"are you?");
        std::thread::sleep(Duration::from_millis(500));
        least = least.min(engine.anonymous_memory().saturating_sub(before) / CLIENTS);
        if least <= enough {
            break;
        }
    }
    drop(clients);
    holds("they are gone", || engine.metric("propylon_http2_streams", &[]) == 0.0);
    least
}
