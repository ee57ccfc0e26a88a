//! Bodies in frames of a byte each, which nobody takes: they are put together on their way, so that they cost neither memory nor
//! the connection that they share with others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use propylon_e2e::engine::with;
use propylon_e2e::frames::{
    DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, Http2, Http2Server, INTERNAL_ERROR, PROTOCOL_ERROR,
    RST_STREAM, STREAM_CLOSED, WINDOW_UPDATE, frame, literal, request,
};
use propylon_e2e::{Engine, Origin, holds};

/// Streams whose clients, or server, take nothing.
const STALLED: usize = 5;
/// What the engine may grow by: less than a tenth of what the frames would come to one by one.
const GROWTH_MAX: u64 = 12 << 20;

const INITIAL_WINDOW_SIZE: u16 = 4;

/// The stream of the n-th request.
fn nth(index: usize) -> u32 {
    index as u32 * 2 + 1
}

fn begins(frame: &Frame) -> bool {
    frame.kind == HEADERS
}

/// An engine before a server of HTTP/2.
fn engine(origin: &Origin) -> Engine {
    Engine::start(&with(&[origin.address()], "", "protocol = \"h2\""))
}

fn patient(mut client: Http2) -> Http2 {
    client.client.read_timeout(Duration::from_secs(20));
    client
}

#[test]
fn a_servers_bytes_for_clients_that_take_nothing() {
    // As many as a stream's first window lets come.
    const BYTES: usize = 20_000;
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let origin = Origin::scripted(move |peer| {
        let Some(mut server) = Http2Server::start(peer, &[]) else { return };
        let mut posts = Vec::new();
        while let Some(frame) = server.next_frame() {
            if frame.is_post() {
                posts.push(frame.stream);
                server.send(HEADERS, END_HEADERS, frame.stream, &[0x88]);
                if posts.len() == STALLED {
                    drip(&mut server, &posts);
                    count.store(posts.len(), Ordering::SeqCst);
                }
            } else if begins(&frame) {
                server.answer(frame.stream, b"hello\n");
            }
        }
    });
    // All of them in turn, a hundred rounds at a time.
    fn drip(server: &mut Http2Server<'_>, posts: &[u32]) {
        let round: Vec<u8> = posts.iter().flat_map(|stream| frame(DATA, 0, *stream, b"x")).collect();
        for _ in 0..BYTES / 100 {
            server.send_bytes(&round.repeat(100));
        }
        posts.iter().for_each(|stream| server.send(DATA, END_STREAM, *stream, &[]));
    }
    let engine = engine(&origin);
    let mut bystander = engine.client("plain");
    assert_eq!(bystander.get("/").body, b"hello\n");
    let rss = engine.rss();
    let mut clients: Vec<Http2> =
        (0..STALLED).map(|_| patient(Http2::start_with(&engine, &[(INITIAL_WINDOW_SIZE, 0)]))).collect();
    for client in &mut clients {
        client.headers(1, END_STREAM, &request("POST", "/drip"));
        assert_eq!(client.next_of(1).status(), Some(200));
    }
    holds("all is sent", || sent.load(Ordering::SeqCst) == STALLED);
    // What the server said before this the engine has read.
    assert_eq!(bystander.get("/").body, b"hello\n");
    let grown = engine.rss().saturating_sub(rss);
    println!("{STALLED} x {BYTES} bytes, each in a frame: {} KiB", grown / 1024);
    assert!(grown < GROWTH_MAX, "{grown} bytes");
    for client in &mut clients {
        client.send(WINDOW_UPDATE, 0, 0, &(1_u32 << 20).to_be_bytes());
        client.send(WINDOW_UPDATE, 0, 1, &(1_u32 << 20).to_be_bytes());
        let (mut data, mut frames) = (0, 0);
        loop {
            let frame = client.next_of(1);
            assert_eq!(frame.kind, DATA, "{frame:?}");
            (data, frames) = (data + frame.payload.len(), frames + 1);
            if frame.ends() {
                break;
            }
        }
        assert_eq!(data, BYTES);
        assert!(frames < 1_000, "{frames} frames");
    }
    assert_eq!(engine.metric("propylon_server_connections_total", &[]), 1.0);
}

#[test]
fn a_clients_bytes_for_a_server_that_takes_nothing() {
    const BYTES: usize = 60_000;
    let origin = Origin::scripted(|peer| {
        let Some(mut server) = Http2Server::start(peer, &[(INITIAL_WINDOW_SIZE, 0)]) else { return };
        let (mut posts, mut sums, mut gets) = (Vec::new(), [0; 2 * STALLED + 8], 0);
        while let Some(frame) = server.next_frame() {
            if frame.is_post() {
                posts.push(frame.stream);
            } else if begins(&frame) {
                gets += 1;
                // The third one says that there is room now.
                for stream in posts.iter().copied().chain([0]).filter(|_| gets == 3) {
                    server.send(WINDOW_UPDATE, 0, stream, &(1_u32 << 20).to_be_bytes());
                }
                server.answer(frame.stream, b"hello\n");
            } else if frame.kind == DATA {
                let sum = &mut sums[frame.stream as usize];
                *sum += frame.payload.len();
                if frame.ends() {
                    let body = sum.to_string();
                    server.answer(frame.stream, body.as_bytes());
                }
            }
        }
    });
    let engine = engine(&origin);
    let mut bystander = engine.client("plain");
    assert_eq!(bystander.get("/").body, b"hello\n");
    let rss = engine.rss();
    let mut client = patient(Http2::start(&engine));
    for index in 0..STALLED {
        client.headers(nth(index), 0, &request("POST", "/drip"));
    }
    let round: Vec<u8> = (0..STALLED).flat_map(|index| frame(DATA, 0, nth(index), b"x")).collect();
    for _ in 0..BYTES / 100 {
        client.client.send(round.repeat(100));
    }
    (0..STALLED).for_each(|index| client.send(DATA, END_STREAM, nth(index), &[]));
    // On the same connection, behind all of that.
    client.get(nth(STALLED), "/");
    assert_eq!(client.response(nth(STALLED)).1, b"hello\n");
    let grown = engine.rss().saturating_sub(rss);
    println!("{STALLED} x {BYTES} bytes, each in a frame: {} KiB", grown / 1024);
    assert!(grown < GROWTH_MAX, "{grown} bytes");
    assert_eq!(bystander.get("/").body, b"hello\n");
    // They come as they are ready.
    let (mut bodies, mut ended) = (vec![Vec::new(); STALLED], 0);
    while ended < STALLED {
        let frame = client.next_frame();
        assert!(!matches!(frame.kind, RST_STREAM | GOAWAY), "{frame:?}");
        if frame.kind == DATA {
            ended += usize::from(frame.ends());
            bodies[frame.stream as usize / 2].extend(frame.payload);
        }
    }
    assert_eq!(bodies, vec![BYTES.to_string().into_bytes(); STALLED]);
    assert_eq!(engine.metric("propylon_server_connections_total", &[]), 1.0);
}

/// A server's malformed response is the end of its stream, and the others of the connection go on.
#[test]
fn a_servers_error_on_one_stream_costs_the_others_nothing() {
    let origin = Origin::scripted(|peer| {
        let Some(mut server) = Http2Server::start(peer, &[]) else { return };
        let (mut held, mut count) = (None, 0);
        while let Some(frame) = server.next_frame() {
            if frame.is_post() {
                held = Some(frame.stream);
                server.send(HEADERS, END_HEADERS, frame.stream, &[0x88]);
                server.send(DATA, 0, frame.stream, b"begun");
            } else if begins(&frame) {
                count += 1;
                let stream = frame.stream;
                // Kept in the table (RFC 7541 §6.2.1), and named by the last.
                let kept = |name: &[u8], value: &[u8]| [&[0x40][..], &literal(name, value)[1..]].concat();
                let head = match count {
                    1 => kept(b"x-bad", b"a\r\nb"),
                    2 => kept(b"X-Upper", b"1"),
                    3 => kept(b"x-fine", b"1"),
                    4 => {
                        // Window updates of nothing and frames without data, as many as some end a connection for.
                        server.send(WINDOW_UPDATE, 0, stream, &[0; 4]);
                        continue;
                    }
                    _ => {
                        server.send(HEADERS, END_HEADERS, stream, &[0x88, 0xbe]);
                        (0..300).for_each(|_| server.send(DATA, 0, stream, &[]));
                        server.send(DATA, END_STREAM, stream, b"");
                        server.send(DATA, END_STREAM, held.expect("it was first"), b" and done");
                        continue;
                    }
                };
                server.send(HEADERS, END_HEADERS | END_STREAM, stream, &[&[0x88][..], &head].concat());
            }
        }
    });
    let engine = engine(&origin);
    let mut holding = patient(Http2::start(&engine));
    holding.headers(1, END_STREAM, &request("POST", "/held"));
    assert_eq!(holding.next_of(1).status(), Some(200));
    let mut client = engine.client("plain");
    for status in [502, 502, 200, 502, 200] {
        let got = client.get("/");
        assert_eq!(got.status, status, "{}", got.head);
        assert_eq!(got.head.contains("x-fine: 1"), status == 200, "{}", got.head);
    }
    let (mut data, mut ended) = (Vec::new(), false);
    while !ended {
        let frame = holding.next_of(1);
        assert_eq!(frame.kind, DATA, "{frame:?}");
        ended = frame.ends();
        data.extend(frame.payload);
    }
    assert_eq!(data, b"begun and done");
    assert_eq!(engine.metric("propylon_server_connections_total", &[]), 1.0);
    // The others were over with their malformed heads.
    let resets: Vec<u32> = reset_codes(&origin.received()[0]);
    assert_eq!(resets, [PROTOCOL_ERROR]);
}

/// Of the RST_STREAM frames among what a server was sent.
fn reset_codes(mut bytes: &[u8]) -> Vec<u32> {
    bytes = &bytes[24..];
    let mut codes = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<9>() {
        let (payload, rest) = rest.split_at(u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize);
        if head[3] == RST_STREAM {
            codes.push(u32::from_be_bytes(payload.try_into().expect("four bytes")));
        }
        bytes = rest;
    }
    codes
}

/// What a server has said before it broke off is the client's, and then it hears of the end.
#[test]
fn what_came_before_a_reset_is_delivered_before_it() {
    const BODY: usize = 20_000;
    let origin = Origin::scripted(|peer| {
        let Some(mut server) = Http2Server::start(peer, &[]) else { return };
        while let Some(frame) = server.next_frame() {
            if begins(&frame) {
                server.send(HEADERS, END_HEADERS, frame.stream, &[0x88]);
                (0..BODY / 10_000).for_each(|_| server.send(DATA, 0, frame.stream, &[b'x'; 10_000]));
                server.send(RST_STREAM, 0, frame.stream, &INTERNAL_ERROR.to_be_bytes());
            }
        }
    });
    let engine = engine(&origin);
    let mut client = patient(Http2::start_with(&engine, &[(INITIAL_WINDOW_SIZE, 1_000)]));
    client.get(1, "/");
    assert_eq!(client.next_of(1).status(), Some(200));
    let mut data = client.next_of(1).payload.len();
    holds("the server has broken off", || engine.metric("propylon_http2_streams", &[]) == 1.0);
    client.send(WINDOW_UPDATE, 0, 1, &(1_u32 << 20).to_be_bytes());
    client.send(WINDOW_UPDATE, 0, 0, &(1_u32 << 20).to_be_bytes());
    loop {
        let frame = client.next_of(1);
        assert_ne!(frame.kind, GOAWAY);
        if frame.kind == RST_STREAM {
            assert_ne!(frame.code(), STREAM_CLOSED);
            assert_eq!((frame.code(), data), (INTERNAL_ERROR, BODY));
            break;
        }
        assert!(!frame.ends());
        data += frame.payload.len();
    }
}
