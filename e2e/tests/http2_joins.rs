//! HTTP/2 where it meets something else: full sockets, drains, limits of connections, tunnels that begin early.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use propylon_e2e::engine::{simple, with};
use propylon_e2e::frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, Http2, Http2Server, PING, PROTOCOL_ERROR,
    RST_STREAM, block, frame as bytes_of, request,
};
use propylon_e2e::http::values;
use propylon_e2e::program::websocket_accept;
use propylon_e2e::{Engine, Origin, holds};
use rustix::process::Signal;

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// RFC 9113 §5.1.1: the last identifier is as good as the others.
#[test]
fn a_client_that_has_used_the_last_identifier_is_let_go_like_any_other() {
    let origin = Origin::always(HELLO);
    let mut engine =
        Engine::start(&format!("[process]\nworkers = 1\ndrain_timeout = \"60s\"\n{}", simple(&[origin.address()])));
    let mut client = Http2::start(&engine);
    client.get(0x7fff_ffff, "/");
    assert_eq!(client.response(0x7fff_ffff).1, b"hello\n");
    let rss = engine.rss();
    engine.signal(Signal::TERM);
    let mut said = 0;
    while said < 2 {
        let frame = client.next_frame();
        match frame.kind {
            PING if frame.flags & ACK == 0 => client.send(PING, ACK, 0, &frame.payload),
            GOAWAY => said += 1,
            _ => {}
        }
    }
    assert!(engine.rss() < rss + (8 << 20));
    engine.expect_exit(0);
}

/// An engine whose client's socket is full reads no more, and reads on when that has room again.
#[test]
fn what_a_client_asks_for_while_its_answers_fill_its_socket_is_read_when_it_takes_them() {
    let fields: String = (0..28).map(|number| format!("X-Big-{number}: {}\r\n", "a".repeat(1_000))).collect();
    let (hold, held) = channel::<()>();
    let held = Arc::new(Mutex::new(held));
    let origin = Origin::scripted(move |peer| {
        while let Some(head) = peer.read_head() {
            let head = text(&head);
            if head.starts_with("GET /held ") {
                let _ = held.lock().map(|held| held.recv_timeout(Duration::from_secs(30)));
            }
            match head.starts_with("GET /big ") {
                true => peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{fields}\r\n")),
                false => peer.send(HELLO),
            }
        }
    });
    let listener = "http2 = { max_concurrent_streams = 1000 }";
    let engine = Engine::start(&with(&[origin.address()], listener, "max_idle = 300"));
    let mut client = Http2::start(&engine);
    // One stream goes on all the while, so that no end of a stream is what wakes the connection.
    client.get(1, "/held");
    const BIG: u32 = 400;
    (0..BIG).for_each(|number| client.get(number * 2 + 3, "/big"));
    holds("heads fill the socket", || engine.metric("propylon_server_requests_total", &[]) > 20.0);
    let last = BIG * 2 + 3;
    client.get(last, "/last");
    let mut heads = 0;
    loop {
        let frame = client.next_frame();
        assert!(!matches!(frame.kind, RST_STREAM | GOAWAY), "{frame:?}");
        heads += u32::from(frame.kind == HEADERS);
        if frame.stream == last && frame.ends() {
            break;
        }
    }
    assert!(heads > BIG / 2, "{heads}");
    let _ = hold.send(());
    while !client.next_of(1).ends() {}
}

/// The same towards a server, whose answers lie unread meanwhile.
#[test]
fn what_a_server_answers_while_requests_fill_its_socket_is_read_when_it_takes_them() {
    const ASKED: u32 = 300;
    let origin = Origin::scripted(|peer| {
        let Some(mut server) = Http2Server::start(peer, &[(3, 1_000)]) else { return };
        // Slow at first, so that requests pile up.
        std::thread::sleep(Duration::from_millis(700));
        while let Some(frame) = server.next_frame() {
            if matches!(frame.kind, HEADERS | CONTINUATION) && frame.flags & END_HEADERS != 0 {
                server.answer(frame.stream, b"hello\n");
            }
        }
    });
    let backend = "protocol = \"h2\"\nhttp2 = { max_streams = 1000, ping = \"60s\" }";
    let engine = Engine::start(&with(&[origin.address()], "http2 = { max_concurrent_streams = 1000 }", backend));
    let mut client = Http2::start(&engine);
    let (begun, field) = (Instant::now(), "a".repeat(7_000));
    for number in 0..ASKED {
        let fields = [&request("GET", "/")[..], &[("x-big", &field)]].concat();
        client.headers(number * 2 + 1, END_STREAM, &fields);
    }
    // In whatever order: requests that find a connection full go out on another.
    let mut answered = 0;
    while answered < ASKED {
        let frame = client.next_frame();
        assert!(!matches!(frame.kind, RST_STREAM | GOAWAY), "{frame:?} after {answered}");
        if frame.kind == DATA && frame.ends() {
            assert_eq!(frame.payload, b"hello\n");
            answered += 1;
        }
    }
    // Nothing but the server's PING would have had it read on.
    assert!(begun.elapsed() < Duration::from_secs(50));
}

#[test]
fn a_server_that_ends_gracefully_is_waited_for_and_not_asked_again_and_again() {
    let origin = Origin::scripted(|peer| {
        let Some(mut server) = Http2Server::start(peer, &[]) else { return };
        while let Some(frame) = server.next_frame() {
            if frame.kind == HEADERS {
                server.send(HEADERS, END_HEADERS, frame.stream, &[0x88]);
                let payload = [&frame.stream.to_be_bytes()[..], &[0; 4]].concat();
                server.send(GOAWAY, 0, 0, &payload);
                std::thread::sleep(Duration::from_millis(1_500));
                server.send(DATA, END_STREAM, frame.stream, b"at last");
            }
        }
    });
    let engine = Engine::start(&with(&[origin.address()], "", "protocol = \"h2\""));
    let mut client = Http2::start(&engine);
    client.get(1, "/");
    assert_eq!(client.next_of(1).status(), Some(200));
    let before = engine.cpu();
    assert_eq!(client.next_of(1).payload, b"at last");
    let spent = engine.cpu() - before;
    assert!(spent < Duration::from_millis(500), "{spent:?}");
}

/// RFC 8441 §5: a client may send before it has the answer.
#[test]
fn what_comes_behind_an_extended_connect_waits_for_the_tunnel() {
    let origin = Origin::scripted(|peer| {
        let Some(head) = peer.read_head() else { return };
        let head = text(&head);
        let accept = websocket_accept(values(&head, "Sec-WebSocket-Key")[0]);
        peer.send(format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
        ));
        while let Some(bytes) = peer.read_some() {
            peer.send(bytes);
        }
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = Http2::start(&engine);
    client.client.send([bytes_of(HEADERS, END_HEADERS, 1, &block(&CONNECT)), bytes_of(DATA, 0, 1, b"early")].concat());
    assert_eq!(client.next_of(1).status(), Some(200));
    let mut heard = Vec::new();
    while heard != b"early" {
        heard.extend(client.next_of(1).payload);
    }
}

const CONNECT: [(&str, &str); 6] = [
    (":method", "CONNECT"),
    (":protocol", "websocket"),
    (":scheme", "http"),
    (":authority", "localhost"),
    (":path", "/chat"),
    ("sec-websocket-version", "13"),
];

/// RFC 8441 §3.
#[test]
fn an_extended_connect_that_was_not_announced_is_malformed() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&with(&[origin.address()], "http2 = { extended_connect = false }", ""));
    let mut client = Http2::start(&engine);
    client.client.send(bytes_of(HEADERS, END_HEADERS, 1, &block(&CONNECT)));
    let frame = client.next_of(1);
    assert_eq!((frame.kind, frame.code()), (RST_STREAM, PROTOCOL_ERROR));
    client.get(3, "/");
    assert_eq!(client.response(3).1, b"hello\n");
    assert!(!origin.received_text().contains("/chat"));
}

/// A connection that has carried as many requests as it may holds its permit no longer than its last stream.
#[test]
fn a_connection_makes_room_for_the_next_as_soon_as_its_last_stream_is_over() {
    let origin = Origin::scripted(|peer| {
        let number = peer.number;
        let Some(mut server) = Http2Server::start(peer, &[(3, 100)]) else { return };
        let mut asked = Vec::new();
        while let Some(frame) = server.next_frame() {
            if frame.kind != HEADERS {
                continue;
            }
            asked.push(frame.stream);
            // The first connection answers when both are there, and a third one waits.
            if number == 0 && asked.len() == 2 {
                std::thread::sleep(Duration::from_millis(600));
            }
            if number > 0 || asked.len() == 2 {
                asked.drain(..).for_each(|stream| server.answer(stream, b"hello\n"));
            }
        }
    });
    let server = format!("{{ address = \"{}\", max_connections = 1 }}", origin.address());
    let config = format!(
        "[process]\nworkers = 1\n{}",
        simple(&[origin.address()]).replace(
            &format!("servers = [\"{}\"]", origin.address()),
            &format!("servers = [{server}]\nprotocol = \"h2\"\nhttp2 = {{ max_streams = 2 }}\nmax_requests = 2")
        )
    );
    assert!(config.contains("max_requests"), "{config}");
    let engine = Engine::start(&config);
    let mut client = Http2::start(&engine);
    client.get(1, "/");
    client.get(3, "/");
    holds("both are begun", || engine.metric("propylon_server_requests_total", &[]) == 2.0);
    client.get(5, "/");
    for stream in [1, 3, 5] {
        assert_eq!(client.response(stream).1, b"hello\n");
    }
    assert_eq!(origin.connections(), 2);
}

/// A response that may have no body, and has one, costs its stream alone however often that is.
#[test]
fn a_server_that_sends_what_nobody_asked_for_does_so_at_no_other_streams_cost() {
    let origin = Origin::scripted(|peer| {
        let Some(mut server) = Http2Server::start(peer, &[]) else { return };
        let mut held = None;
        while let Some(frame) = server.next_frame() {
            match frame.kind {
                HEADERS if held.is_none() => held = Some(frame.stream),
                HEADERS => {
                    let sent = [
                        bytes_of(HEADERS, END_HEADERS, frame.stream, &[0x88]),
                        bytes_of(DATA, END_STREAM, frame.stream, b"unasked"),
                    ];
                    server.send_bytes(&sent.concat());
                }
                _ => {}
            }
            // The answer to the first comes last.
            if let Some(first) = held.filter(|_| frame.stream == 2 * 1_100 + 1) {
                server.answer(first, b"hello\n");
            }
        }
    });
    let engine = Engine::start(&with(&[origin.address()], "", "protocol = \"h2\""));
    let mut bystander = Http2::start(&engine);
    bystander.get(1, "/held");
    holds("it is with the server", || engine.metric("propylon_server_requests_total", &[]) == 1.0);
    let mut client = Http2::start(&engine);
    for stream in (0..1_100).map(|number| number * 2 + 1) {
        client.headers(stream, END_STREAM, &request("HEAD", "/"));
        assert_eq!(client.next_of(stream).status(), Some(200));
    }
    let (head, body) = bystander.response(1);
    assert_eq!((head.status(), &body[..]), (Some(200), &b"hello\n"[..]));
    assert_eq!(engine.metric("propylon_server_connections_total", &[]), 1.0);
}

/// Both directions of a connection between two engines may be full at once: neither waits for the other to read first.
#[test]
fn two_engines_that_have_much_to_say_to_each_other_do_not_wait_for_ever() {
    const ASKED: u32 = 250;
    let fields: String = (0..28).map(|number| format!("X-Big-{number}: {}\r\n", "a".repeat(1_000))).collect();
    let origin =
        Origin::answering(move |_| format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{fields}\r\n").into_bytes());
    let terms = "http2 = { max_concurrent_streams = 1000 }\nlimits = { head_bytes = \"64KiB\" }";
    let back = Engine::start(&with(&[origin.address()], terms, "max_idle = 300"));
    let address = back.address("plain");
    let servers = format!("servers = [{{ address = \"{address}\", max_connections = 1 }}]");
    let server = "protocol = \"h2\"\nhttp2 = { max_streams = 1000, ping = \"60s\" }\nretries = 0";
    let config = with(&[address], terms, server).replace(&format!("servers = [\"{address}\"]"), &servers);
    assert!(config.contains("max_connections"), "{config}");
    let front = Engine::start(&config);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = Http2::start(&front);
                let field = "a".repeat(14_000);
                let block = block(&[&request("GET", "/")[..], &[("x-big", &field)]].concat());
                for number in 0..ASKED {
                    client.client.send(bytes_of(HEADERS, END_HEADERS | END_STREAM, number * 2 + 1, &block));
                }
                let mut answered = 0;
                while answered < ASKED {
                    let frame = client.next_frame();
                    assert!(!matches!(frame.kind, RST_STREAM | GOAWAY), "{frame:?} after {answered}");
                    answered += u32::from(frame.stream > 0 && frame.ends());
                }
            });
        }
    });
    let fine = front.metric("propylon_responses_total", &[("class", "2xx")]);
    assert_eq!(fine, f64::from(4 * ASKED));
}
