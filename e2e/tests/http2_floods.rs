//! Attacks by frames: what costs a client nothing must not cost the engine its memory, its processor or its other clients.
//!
//! Each attack is counted by its own threshold; meanwhile another client asks for a page again and again and always gets it,
//! the engine's memory stays within a few MiB, and a frame costs it less processor time than an honest request does.

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use propylon_e2e::engine::with;
use propylon_e2e::frames::{
    CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, FLOW_CONTROL_ERROR, GOAWAY, HEADERS, Http2,
    Http2Server, PADDED, PING, PRIORITY, PROTOCOL_ERROR, REFUSED_STREAM, RST_STREAM, SETTINGS, STREAM_CLOSED,
    WINDOW_UPDATE, block, frame, literal, request,
};
use propylon_e2e::{Engine, Origin, Peer, holds};
use socket2::SockRef;

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";
/// What an attack may make the engine grow by, the allocator's habits included.
const GROWTH_MAX: u64 = 24 << 20;
/// Requests by which an honest one's price is measured.
const HONEST: u32 = 2_000;

/// How long a look at workers takes that have nothing to do.
const LOOK: Duration = Duration::from_millis(100);
/// Time that workers may run during a look, and how often they may begin to: they wake for ticks, ten of them a
/// second. A worker that turns in a circle begins anew, or goes on, as often as the machine lets it.
const QUIET_RUN_MAX: Duration = Duration::from_millis(5);
const QUIET_TURNS_MAX: u64 = 50;
/// Looks that have to see workers asleep, of the twenty that an answer's patience lasts for.
const QUIET_LOOKS_MIN: u32 = 5;

const ENABLE_PUSH: u16 = 2;
const INITIAL_WINDOW_SIZE: u16 = 4;
const PRIORITY_UPDATE: u8 = 0x10;

/// An engine that is attacked, and the price of a request there.
struct Siege {
    engine: Engine,
    origin: Origin,
    request: Duration,
}

/// What the attacker did.
struct Spent {
    frames: u32,
    connections: u32,
}

impl Siege {
    fn new() -> Siege {
        Siege::with("")
    }

    fn with(listener: &str) -> Siege {
        let mut siege = Siege::unpriced(listener);
        let mut client = Http2::start(&siege.engine);
        let mut ask = |from: u32, count: u32| {
            for stream in (from..from + count).map(|number| number * 2 + 1) {
                client.get(stream, "/honest");
                assert_eq!(client.response(stream).1, b"hello\n");
            }
        };
        ask(0, 50);
        let before = siege.engine.cpu();
        ask(50, HONEST);
        siege.request = (siege.engine.cpu() - before) / HONEST;
        siege
    }

    /// As [`Siege::with`], for attacks that are not compared with requests.
    fn unpriced(listener: &str) -> Siege {
        let origin = Origin::answering(|request| match request.starts_with(b"GET /long ") {
            true => [&b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n"[..], &vec![b'x'; 3_000_000]].concat(),
            false => HELLO.into(),
        });
        let engine = Engine::start(&with(&[origin.address()], listener, ""));
        // What is allocated once, and paid for once, is not what is measured.
        let mut client = engine.client("web");
        (0..50).for_each(|_| assert_eq!(client.get("/honest").status, 200));
        Siege { engine, origin, request: Duration::ZERO }
    }

    /// How many connections were ended for one of these reasons.
    fn ended(&self, reasons: &[&str]) -> f64 {
        let count = |reason: &&str| match reason.strip_prefix("error ") {
            Some(error) => self.engine.metric("propylon_http2_errors_total", &[("reason", error)]),
            None => self.engine.metric("propylon_http2_floods_total", &[("reason", reason)]),
        };
        reasons.iter().map(count).sum()
    }

    /// What the attackers' requests have come to at the origin.
    fn attacks_at_the_origin(&self) -> usize {
        self.origin.received_text().matches(" /attack HTTP").count()
    }

    /// Lives through an attack that is counted under one of `reasons` (of a flood, or "error" and that of an error), once for
    /// each of its connections; or not at all, if there are none.
    #[track_caller]
    fn endures(&self, what: &str, reasons: &[&str], attack: impl FnOnce(&Engine) -> Spent) {
        let (ended, rss, cpu) = (self.ended(reasons), self.engine.rss(), self.engine.cpu());
        let over = AtomicBool::new(false);
        let (spent, served, most) = std::thread::scope(|scope| {
            let bystander = scope.spawn(|| {
                let (mut client, mut served, mut most) = (self.engine.client("web"), 0_u32, 0);
                while !over.load(Ordering::SeqCst) || served == 0 {
                    assert_eq!(client.get("/honest").status, 200, "{what}");
                    served += 1;
                    most = most.max(self.engine.rss());
                }
                (served, most)
            });
            // The bystander must hear of an attack that fails, or the scope waits for it for ever.
            let spent = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| attack(&self.engine)));
            over.store(true, Ordering::SeqCst);
            let (served, most) = bystander.join().expect("a bystander is served");
            (spent.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), served, most)
        });
        holds("nothing is left of it", || self.engine.metric("propylon_http2_streams", &[]) == 0.0);
        let cost = self.engine.cpu() - cpu;
        let (grown, allowed) = (most.saturating_sub(rss), self.request * (spent.frames + 3 * served));
        println!(
            "{what}: {} frames on {} connections, {cost:?} where requests would cost {allowed:?}, {served} bystanders, {} KiB",
            spent.frames,
            spent.connections,
            grown / 1024
        );
        if !reasons.is_empty() {
            holds(what, || self.ended(reasons) == ended + f64::from(spent.connections));
        }
        assert!(grown < GROWTH_MAX, "{what}: {grown} bytes");
        assert!(cost <= allowed, "{what}: {cost:?} for {} frames, where requests would cost {allowed:?}", spent.frames);
    }

    /// Lives through a client that asks and takes nothing, until as many answers as that are given up as stalled: once
    /// the requests are taken in, the workers have nothing to do between those of another client, and do nothing.
    #[track_caller]
    fn sleeps_through(&self, what: &str, ask: impl FnOnce(&Engine) -> Http2, is_over: impl Fn(f64) -> bool) {
        let stalled = || self.engine.metric("propylon_timeouts_total", &[("wait", "response-body")]);
        let (before, rss) = (stalled(), self.engine.rss());
        let mut bystander = self.engine.client("web");
        let client = ask(&self.engine);
        let (mut looks, mut quiet, mut most) = (0, 0, 0);
        holds("all that stall are given up", || {
            let work = self.engine.work();
            std::thread::sleep(LOOK);
            let work = self.engine.work().since(work);
            looks += 1;
            quiet += u32::from(work.ran <= QUIET_RUN_MAX && work.turns <= QUIET_TURNS_MAX);
            most = most.max(self.engine.rss());
            assert_eq!(bystander.get("/honest").status, 200, "{what}");
            is_over(stalled() - before)
        });
        drop(client);
        println!("{what}: {quiet} of {looks} looks saw workers that sleep, {} KiB", most.saturating_sub(rss) / 1024);
        assert!(quiet >= QUIET_LOOKS_MIN && quiet * 2 >= looks, "{what}: workers slept at {quiet} of {looks} looks");
        assert!(most.saturating_sub(rss) < GROWTH_MAX, "{what}: {most} bytes after {rss}");
        holds("nothing is left of it", || self.engine.metric("propylon_http2_streams", &[]) == 0.0);
    }
}

/// On each of several connections: `opening`, and then `shot` so many times, with the number of the shot; frames in a shot.
#[track_caller]
fn assail(
    engine: &Engine,
    connections: u32,
    (shots, frames): (u32, u32),
    opening: &[u8],
    shot: impl Fn(u32) -> Vec<u8>,
) -> Spent {
    for _ in 0..connections {
        let mut client = Http2::start(engine);
        client.client.send(opening);
        for from in (0..shots).step_by(64) {
            let burst: Vec<u8> = (from..from + 64).flat_map(&shot).collect();
            // Once the engine has closed the rest is not taken.
            if client.client.try_send(&burst).is_err() {
                break;
            }
        }
        // Closing here with answers unread would be a reset, and what the engine has not read yet would be lost.
        client.client.read_to_end();
    }
    Spent { frames: connections * shots * frames, connections }
}

/// The stream of the n-th request.
fn nth(index: u32) -> u32 {
    index * 2 + 1
}

fn get(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&request("GET", "/attack")))
}

fn open_post(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &block(&request("POST", "/attack")))
}

fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes())
}

/// CVE-2023-44487.
#[test]
fn rapid_resets() {
    let siege = Siege::new();
    siege.endures("requests and resets", &["reset"], |engine| {
        assail(engine, 6, (2_000, 2), &[], |index| [get(nth(index)), reset(nth(index))].concat())
    });
    siege.endures("uploads and resets", &["reset"], |engine| {
        assail(engine, 6, (2_000, 2), &[], |index| [open_post(nth(index)), reset(nth(index))].concat())
    });
    // Each is begun before it is reset: an answer of the engine to a PING has come in between. Uploads, since a request that is
    // whole may have been answered by then, and its reset is forgiven. Some at a time, so that a busy machine makes enough of them
    // in a second.
    const BATCH: u32 = 100;
    siege.endures("uploads, a pause and resets", &["reset"], |engine| {
        let mut client = Http2::start(engine);
        for batch in 0..40 {
            let streams = || (batch * BATCH..(batch + 1) * BATCH).map(nth);
            let mut begun = streams().flat_map(open_post).collect::<Vec<u8>>();
            begun.extend(frame(PING, 0, 0, b"are you?"));
            let _ = client.client.try_send(&begun);
            let heard = loop {
                let frame = client.next_frame();
                if matches!(frame.kind, PING | GOAWAY) {
                    break frame;
                }
            };
            if heard.kind == GOAWAY {
                assert_eq!(heard.code(), ENHANCE_YOUR_CALM);
                return Spent { frames: batch * (2 * BATCH + 1), connections: 1 };
            }
            let _ = client.client.try_send(&streams().flat_map(reset).collect::<Vec<u8>>());
        }
        panic!("4,000 resets are borne");
    });
}

/// CVE-2025-8671: the engine itself is made to reset. What that comes to at the origin is bounded as well.
#[test]
fn resets_that_the_engine_is_made_to_say() {
    type Provocation = fn(u32) -> Vec<u8>;
    // Uploads are counted when they go on.
    let provocations: &[(&str, &str, u32, &[&str], Provocation)] = &[
        // Which of the limits it meets first depends on where a second of the engine's begins.
        ("a window beyond its end", "stream", FLOW_CONTROL_ERROR, &["window-update", "stream-error"], |stream| {
            frame(WINDOW_UPDATE, 0, stream, &0x7fff_ffff_u32.to_be_bytes())
        }),
        ("a window update of nothing", "stream", PROTOCOL_ERROR, &["stream-error", "window-update"], |stream| {
            frame(WINDOW_UPDATE, 0, stream, &[0; 4])
        }),
        ("data after the end", "stream", STREAM_CLOSED, &["stream-error"], |stream| frame(DATA, 0, stream, b"more")),
        ("a head after the end", "stream", STREAM_CLOSED, &["stream-error"], get),
        ("a stream that depends on itself", "stream", PROTOCOL_ERROR, &["priority", "stream-error"], |stream| {
            frame(PRIORITY, 0, stream, &[&stream.to_be_bytes()[..], &[1]].concat())
        }),
    ];
    let siege = Siege::new();
    for (what, whose, code, counted, provocation) in provocations {
        let mut client = Http2::start(&siege.engine);
        client.client.send([get(1), provocation(1)].concat());
        let heard = client.next_of(1);
        assert_eq!(heard.kind, if *whose == "stream" { RST_STREAM } else { GOAWAY }, "{what}: {heard:?}");
        assert_eq!(heard.code(), *code, "{what}");
        drop(client);
        let before = siege.attacks_at_the_origin();
        siege.endures(what, counted, |engine| {
            assail(engine, 3, (4_000, 2), &[], |index| [get(nth(index)), provocation(nth(index))].concat())
        });
        // A thousand of a connection's are let pass, and most of these are over before they are begun.
        let came = siege.attacks_at_the_origin() - before;
        assert!(came <= 3 * 1_100, "{what}: {came} requests");
    }
}

/// CVE-2024-27316 and its kin: header blocks that never end.
#[test]
fn continuations_without_end() {
    let siege = Siege::new();
    let opening = frame(HEADERS, END_STREAM, 1, &block(&request("GET", "/honest")));
    let reasons = &["continuation"];
    let endless = |payload: Vec<u8>| move |_: u32| frame(CONTINUATION, 0, 1, &payload);
    let field = literal(b"x-more", &[b'y'; 50]);
    siege.endures("whole fields", reasons, |engine| assail(engine, 6, (3_000, 1), &opening, endless(field)));
    siege.endures("empty ones", reasons, |engine| assail(engine, 6, (3_000, 1), &opening, endless(Vec::new())));
    // The length of a value that is still to come: nothing can be decoded before the block is whole.
    let unfinished = [literal(b"x-more", b""), vec![0, 1, b'x', 127, 0xff, 0xff, 0xff, 0x07]].concat();
    let opening = frame(HEADERS, END_STREAM, 1, &[block(&request("GET", "/honest")), unfinished].concat());
    siege.endures("a byte each", reasons, |engine| assail(engine, 6, (3_000, 1), &opening, endless(vec![b'z'])));
    siege.endures("as large as a frame may be", reasons, |engine| {
        assail(engine, 6, (256, 1), &opening, endless(vec![b'z'; 16_384]))
    });
    siege.endures("blocks of a frame each and an empty end", reasons, |engine| {
        let block = block(&request("GET", "/honest"));
        assail(engine, 4, (3_000, 2), &[], |index| {
            let (stream, end) = (nth(index), END_STREAM);
            [frame(HEADERS, end, stream, &block), frame(CONTINUATION, END_HEADERS, stream, &[])].concat()
        })
    });
}

#[test]
fn a_header_block_that_drips_is_ended_by_time() {
    let siege = Siege::with("timeouts = { request_head = \"1s\", idle = \"1s\" }");
    let mut client = Http2::start(&siege.engine);
    client.client.read_timeout(Duration::from_millis(100));
    client.send(HEADERS, END_STREAM, 1, &block(&request("GET", "/honest")));
    // Byte by byte, or few frames with much in them would already be too many.
    let drip = frame(CONTINUATION, END_HEADERS, 1, &[0; 1_000]);
    let ended = drip.chunks(1).any(|byte| {
        client.client.try_send(byte).is_err() || client.client.has_something() && client.next_frame().kind == GOAWAY
    });
    assert!(ended, "a thousand drips were heard out");
    siege.engine.metric_reaches("propylon_timeouts_total", &[("wait", "request-head")], 1.0);
}

/// CVE-2019-9512, -9513, -9515 and -9511's window updates; CVE-2020-11080 for the settings that fill a frame.
#[test]
fn control_frames() {
    let siege = Siege::new();
    let of_one = |setting: u16, value: u32| [&setting.to_be_bytes()[..], &value.to_be_bytes()].concat();
    let setting = frame(SETTINGS, 0, 0, &of_one(INITIAL_WINDOW_SIZE, 70_000));
    let settings = frame(SETTINGS, 0, 0, &of_one(ENABLE_PUSH, 0).repeat(2_730));
    let attacks: &[(&str, &str, u32, Vec<u8>)] = &[
        ("settings", "settings", 5_000, frame(SETTINGS, 0, 0, &[])),
        ("settings with a value", "settings", 5_000, setting),
        ("settings that fill a frame", "settings", 256, settings),
        ("pings", "ping", 8_000, frame(PING, 0, 0, &[7; 8])),
        ("pings' answers", "ping", 8_000, frame(PING, 1, 0, &[7; 8])),
        ("priorities", "priority", 8_000, frame(PRIORITY, 0, 7, &[0, 0, 0, 0, 7])),
        ("priority updates", "priority", 8_000, frame(PRIORITY_UPDATE, 0, 0, &[0, 0, 0, 1, b'u', b'=', b'1'])),
        ("window updates", "window-update", 8_000, frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
        ("unknown frames", "unknown-frame", 8_000, frame(0xbb, 0, 0, &[])),
        ("unknown frames with something in them", "unknown-frame", 2_000, frame(0xbb, 0xff, 9, &[0; 1_000])),
        ("resets of nothing in particular", "reset", 8_000, [get(1), reset(1)].concat()[get(1).len()..].to_vec()),
    ];
    for (what, reason, count, bytes) in attacks {
        // A reset of a stream that never was is the connection's error: here the stream has been.
        let opening = if *reason == "reset" { get(1) } else { Vec::new() };
        siege.endures(what, &[reason], |engine| assail(engine, 4, (*count, 1), &opening, |_| bytes.clone()));
    }
}

/// CVE-2019-9518: frames with nothing in them.
#[test]
fn empty_frames() {
    let siege = Siege::new();
    let attacks: &[(&str, &[&str], Vec<u8>)] = &[
        ("empty DATA", &["empty-data"], frame(DATA, 0, 1, &[])),
        ("DATA of padding alone", &["empty-data"], frame(DATA, PADDED, 1, &[0])),
        ("DATA of much padding", &["empty-data"], frame(DATA, PADDED, 1, &[&[255][..], &[0; 255]].concat())),
    ];
    for (what, reasons, bytes) in attacks {
        siege.endures(what, reasons, |engine| assail(engine, 4, (8_000, 1), &open_post(1), |_| bytes.clone()));
    }
    siege.endures("empty HEADERS", &["stream-error"], |engine| {
        assail(engine, 4, (4_000, 1), &[], |index| frame(HEADERS, END_HEADERS | END_STREAM, nth(index), &[]))
    });
}

/// What is taken as it comes is no flood: it costs what it weighs, and the upload is finished.
#[test]
fn uploads_of_a_byte_a_frame() {
    // Fewer than the 16,448 that may lie unread, should the server take none for a while.
    const BYTES: u32 = 15_000;
    let siege = Siege::new();
    siege.endures("DATA of a byte", &[], |engine| {
        let mut client = Http2::start(engine);
        client.client.send(open_post(1));
        client.client.send(frame(DATA, 0, 1, b"x").repeat(BYTES as usize));
        client.send(DATA, END_STREAM, 1, &[]);
        assert_eq!(client.response(1).1, b"hello\n");
        Spent { frames: BYTES, connections: 1 }
    });
    assert_eq!(siege.attacks_at_the_origin(), 1);
}

/// CVE-2019-9517 and -9511: big answers are asked for, and nothing of them is taken.
#[test]
fn answers_that_nobody_takes() {
    let siege = Siege::unpriced("timeouts = { body = \"2s\" }");
    let ask = |engine: &Engine, window: u32| {
        let mut client = Http2::start_with(engine, &[(INITIAL_WINDOW_SIZE, window)]);
        client.send(WINDOW_UPDATE, 0, 0, &0x7000_0000_u32.to_be_bytes());
        for index in 0..100 {
            client.get(nth(index), "/long");
        }
        client
    };
    siege.sleeps_through("windows that stay closed", |engine| ask(engine, 0), |stalled| stalled == 100.0);
    siege.sleeps_through("windows of a byte", |engine| ask(engine, 1), |stalled| stalled == 100.0);
    let what = "windows that are open and a socket that is not";
    siege.sleeps_through(what, |engine| ask(engine, 0x7fff_ffff), |stalled| stalled > 0.0);
}

/// What streams may hold that nobody reads is bounded for their connection as well.
#[test]
fn answers_that_nobody_takes_have_a_share_of_memory_together() {
    const STREAMS: u32 = 100;
    let siege = Siege::unpriced("timeouts = { body = \"3s\" }");
    let stalled = || siege.engine.metric("propylon_timeouts_total", &[("wait", "response-body")]);
    let before = siege.engine.rss();
    let mut client = Http2::start_with(&siege.engine, &[(INITIAL_WINDOW_SIZE, 0)]);
    (0..STREAMS).for_each(|index| client.get(nth(index), "/long"));
    let (mut most, mut unread) = (0, 0.0_f64);
    holds("all are given up", || {
        most = most.max(siege.engine.rss());
        unread = unread.max(siege.engine.metric("propylon_http2_unread_bytes", &[]));
        stalled() == f64::from(STREAMS)
    });
    let grown = most.saturating_sub(before) >> 10;
    println!("{STREAMS} answers that nobody reads: {grown} KiB, of which {} are known", unread / 1024.0);
    assert!(unread > 0.0 && unread < 4.0 * 1024.0 * 1024.0, "{unread} bytes");
    assert!(grown < 9 << 10, "{grown} KiB");
    siege.engine.metric_reaches("propylon_http2_unread_bytes", &[], 0.0);
}

/// Answers GETs without an end and POSTs with so many bytes, as fast as the windows let it; counts what it has sent for GETs.
fn send_ahead(peer: &mut Peer, post: i64, sent: &AtomicU64) {
    const PIECE: i64 = 16_384;
    let Some(mut server) = Http2Server::start(peer, &[]) else { return };
    // By stream: what it may send beyond the initial window, and what is left of its body.
    let mut streams: BTreeMap<u32, (i64, i64)> = BTreeMap::new();
    let mut together = 65_535_i64;
    while let Some(frame) = server.next_frame() {
        match frame.kind {
            HEADERS => {
                let body = if frame.is_post() { post } else { i64::MAX };
                server.send(HEADERS, END_HEADERS, frame.stream, &[0x88]);
                streams.insert(frame.stream, (0, body));
            }
            RST_STREAM => _ = streams.remove(&frame.stream),
            WINDOW_UPDATE => {
                let more = i64::from(u32::from_be_bytes(frame.payload[..4].try_into().expect("four bytes")));
                match streams.get_mut(&frame.stream) {
                    Some((credit, _)) => *credit += more,
                    None if frame.stream == 0 => together += more,
                    None => {}
                }
            }
            _ => {}
        }
        for (stream, (credit, left)) in &mut streams {
            loop {
                let count = (server.initial_window + *credit).min(together).min(*left).min(PIECE);
                if count <= 0 {
                    break;
                }
                let flags = if count == *left { END_STREAM } else { 0 };
                server.send(DATA, flags, *stream, &vec![b'x'; count as usize]);
                if *left > post {
                    sent.fetch_add(count as u64, Ordering::SeqCst);
                }
                (*credit, *left, together) = (*credit - count, *left - count, together - count);
            }
        }
        streams.retain(|_, (_, left)| *left > 0);
    }
}

/// What servers of HTTP/2 send ahead for clients that take nothing is bounded for all of them together, and one that reads beside them
/// has its answers.
#[test]
fn what_servers_send_ahead_for_slow_clients_has_a_share_of_memory_together() {
    const CONNECTIONS: u32 = 30;
    const STREAMS: u32 = 100;
    const BODY: i64 = 3_000_000;
    let sent = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&sent);
    let origin = Origin::scripted(move |peer| send_ahead(peer, BODY, &counted));
    let backend =
        "protocol = \"h2\"\nqueue = { limit = 10000, timeout = \"60s\" }\ntimeouts = { first_byte = \"60s\" }";
    let engine = Engine::start(&with(&[origin.address()], "timeouts = { body = \"10m\" }", backend));
    let slow: Vec<Http2> = (0..CONNECTIONS)
        .map(|_| {
            let mut client = Http2::start_with(&engine, &[(INITIAL_WINDOW_SIZE, 0)]);
            (0..STREAMS).for_each(|index| client.get(nth(index), "/"));
            client
        })
        .collect();
    let in_flight = f64::from(CONNECTIONS * STREAMS);
    engine.metric_reaches("propylon_server_requests_in_flight", &[], in_flight);
    let mut fast = engine.client("plain");
    for _ in 0..5 {
        fast.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(fast.read_response().body.len() as i64, BODY);
    }
    let mut before = 0;
    holds("servers say no more", || {
        std::thread::sleep(Duration::from_millis(300));
        std::mem::replace(&mut before, sent.load(Ordering::SeqCst)) == before
    });
    println!("{} KiB were sent ahead on {in_flight} streams", before >> 10);
    assert!(before < 256 << 20, "{before} bytes were sent ahead");
    let granted = engine.metric("propylon_http2_granted_bytes", &[]);

    assert!(granted > 0.0 && granted <= f64::from(64 << 20), "{granted} bytes");
    assert!(before > 32 << 20, "{before} bytes: nobody was let to send ahead");

    assert_eq!(engine.metric("propylon_server_requests_in_flight", &[]), in_flight, "nobody was given up");
    drop(slow);
    engine.metric_reaches("propylon_http2_granted_bytes", &[], 0.0);
}

/// Answers GETs, and takes nothing of a POST beyond what the windows that a connection begins with let through.
fn take_no_uploads(peer: &mut Peer) {
    let Some(mut server) = Http2Server::start(peer, &[]) else { return };
    while let Some(frame) = server.next_frame() {
        if frame.kind == HEADERS && !frame.is_post() {
            server.answer(frame.stream, b"hello\n");
        }
    }
}

/// Uploads that servers do not take are bounded for all clients together, though their windows were wide when they
/// were told of them, and who asks beside them is served.
#[test]
fn what_clients_upload_to_servers_that_take_nothing_has_a_share_of_memory_together() {
    const CONNECTIONS: u32 = 60;
    const STREAMS: u32 = 100;
    const FRAME: usize = 16_250;
    let origin = Origin::scripted(take_no_uploads);
    let backend = "protocol = \"h2\"\nqueue = { limit = 10000, timeout = \"60s\" }\n\
                   timeouts = { first_byte = \"10m\", body = \"10m\" }";
    let engine = Engine::start(&with(&[origin.address()], "timeouts = { body = \"10m\" }", backend));
    let mut clients: Vec<Http2> = (0..CONNECTIONS).map(|_| Http2::start_at(&engine, "plain")).collect();
    for client in &mut clients {
        let heads: Vec<u8> = (0..STREAMS).flat_map(|index| open_post(nth(index))).collect();
        client.client.try_send(&heads).expect("it is there");
    }
    let in_flight = f64::from(CONNECTIONS * STREAMS);
    engine.metric_reaches("propylon_server_requests_in_flight", &[], in_flight);
    let before = engine.rss();
    let sockets: Vec<_> = clients.iter().map(|client| client.client.socket().try_clone().expect("another")).collect();
    // As much of each stream as its first window lets through; whoever is not read waits.
    let uploading = clients.into_iter().map(|mut client| {
        std::thread::spawn(move || {
            let sent = (0..STREAMS)
                .flat_map(|index| [nth(index); 4])
                .all(|stream| client.client.try_send(&frame(DATA, 0, stream, &[b'x'; FRAME])).is_ok());
            (client, sent)
        })
    });
    let uploading: Vec<_> = uploading.collect();
    let untaken = || engine.metric("propylon_http2_untaken_bytes", &[]);
    let (mut most, mut last, mut same) = (0.0_f64, 0.0, 0);
    holds("nothing more is read", || {
        assert_eq!(engine.client("plain").get("/").text(), "hello\n");
        let now = untaken();
        (most, same) = (most.max(now), if now == last && now > 0.0 { same + 1 } else { 0 });
        last = now;
        same > 10
    });
    let grown = engine.rss().saturating_sub(before) >> 20;
    println!("{} MiB of bodies are untaken, of {} that were on their way: {grown} MiB", most as u64 >> 20, {
        ((CONNECTIONS * STREAMS) as usize * 4 * FRAME) >> 20
    });
    assert!(grown < 256, "{grown} MiB");
    assert!((64 << 20..160 << 20).contains(&(most as u64)), "{most} bytes");
    assert!(engine.metric("propylon_http2_reads_paused_total", &[]) > 0.0);
    assert_eq!(engine.metric("propylon_server_requests_in_flight", &[]), in_flight, "nobody was given up");
    let mut beside = Http2::start(&engine);
    beside.get(1, "/");
    assert_eq!(beside.response(1).1, b"hello\n");
    // Whoever leaves is noticed, though nothing of it is read, and the server takes as little as before.
    assert!(engine.metric("propylon_http2_connections_paused", &[]) > 0.0);
    for socket in &sockets {
        SockRef::from(socket).set_linger(Some(Duration::ZERO)).expect("a reset at its close");
        socket.shutdown(Shutdown::Both).expect("its writer ends");
    }
    drop(sockets);
    uploading.into_iter().for_each(|client| _ = client.join().expect("it ends"));
    engine.metric_reaches("propylon_server_requests_in_flight", &[], 0.0);
    engine.metric_reaches("propylon_http2_untaken_bytes", &[], 0.0);
    engine.metric_reaches("propylon_http2_connections_paused", &[], 0.0);
    drop(origin);
}

/// CVE-2016-6581 and -1544: a few bytes that become many fields.
#[test]
fn header_bombs() {
    let siege = Siege::new();
    let refused = |client: &mut Http2, stream: u32| {
        let heard = client.next_of(stream);
        assert!(heard.status() != Some(200), "{heard:?}");
        heard.kind
    };
    // One field of 4000 bytes is put in the table, and then named by a byte each (RFC 7541 §6.1, §6.2.1).
    let entry = [&[0x40, 6][..], b"x-bomb", &[127, 0xa1, 0x1e], &[b'y'; 4_000]].concat();
    let bombs: &[(&str, u32, Vec<u8>)] = &[
        ("a field named ten times", 400, vec![0xbe; 10]),
        ("a field named 10,000 times", 40, vec![0xbe; 10_000]),
        ("2,000 fields without a value", 40, literal(b"x-bomb", b"").repeat(1_700)),
        ("crumbs of cookies", 40, literal(b"cookie", b"a=b; x-bomb").repeat(800)),
    ];
    for (what, count, bomb) in bombs {
        siege.endures(what, &[], |engine| {
            let mut client = Http2::start(engine);
            let mut stream = 1;
            let opening = [block(&request("GET", "/honest")), entry.clone()].concat();
            client.send(HEADERS, END_HEADERS | END_STREAM, 1, &opening);
            for _ in 0..*count {
                stream += 2;
                let list = [block(&request("GET", "/honest")), bomb.clone()].concat();
                if client.client.try_send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &list)).is_err()
                    || refused(&mut client, stream) == GOAWAY
                {
                    client = Http2::start(engine);
                    client.send(HEADERS, END_HEADERS | END_STREAM, 1, &opening);
                    stream = 1;
                }
            }
            // A byte of these says what takes a whole field elsewhere: what is paid for is a hundred of them.
            Spent { frames: count * (bomb.len() as u32).div_ceil(100), connections: 1 }
        });
    }
    // The first request of a connection fills the table and is good; of the bombs nothing arrives.
    let seen = siege.origin.received_text();
    assert!(seen.split("\r\n\r\n").all(|head| head.matches("x-bomb").count() <= 1));
}

/// More streams than were allowed are refused one by one, and whoever goes on loses the connection.
#[test]
fn streams_beyond_the_limit() {
    let origin = Origin::scripted(|peer| {
        let Some(head) = peer.read_head() else { return };
        // A request for /held is answered when its client has gone.
        match head.starts_with(b"GET /held ") {
            true => drop(peer.read_head()),
            false => peer.send(HELLO),
        }
    });
    let engine = Engine::start(&with(&[origin.address()], "http2 = { max_concurrent_streams = 10 }", ""));
    let mut client = Http2::start(&engine);
    for index in 0..10 {
        client.get(nth(index), "/held");
    }
    holds("they are held", || engine.metric("propylon_server_requests_total", &[]) == 10.0);
    for index in 10..20 {
        client.get(nth(index), "/beyond");
        let heard = client.next_of(nth(index));
        assert_eq!((heard.kind, heard.code()), (RST_STREAM, REFUSED_STREAM));
    }
    assert_eq!(engine.metric("propylon_server_requests_total", &[]), 10.0);
    for index in 20..2_000 {
        let _ = client.client.try_send(&get(nth(index)));
    }
    assert_eq!(client.goaway().code(), ENHANCE_YOUR_CALM);
    assert!(engine.metric("propylon_server_requests_total", &[]) <= 10.0);
    assert_eq!(engine.metric("propylon_http2_floods_total", &[("reason", "stream-error")]), 1.0);
    holds("what was held is let go", || engine.metric("propylon_server_connections", &[]) == 0.0);
    assert_eq!(engine.client("web").get("/").status, 200);
}
