//! Bodies that are slowed down: how large their pieces are, and what becomes of a client that goes away meanwhile.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use propylon_e2e::frames::{DATA, END_HEADERS, END_STREAM, HEADERS, Http2, block, request};
use propylon_e2e::http::values;
use propylon_e2e::{Client, Engine, Origin, holds};

/// Bytes in a second of the stories' bodies, and how many each has.
const RATE: usize = 4 << 10;
const BYTES: usize = 8 << 10;

/// Whether so many bytes are no more than their pace has let through since: a fifth of a second may go at once, and the
/// engine's clock of milliseconds is behind by some where its core is busy.
fn is_in_pace(count: usize, began: Instant) -> bool {
    count as f64 <= RATE as f64 * (0.25 + began.elapsed().as_secs_f64())
}

/// A server that answers GET with [`BYTES`], and of each other request notes the counts that have come too early, by
/// when it was begun: `X-Began` has the microseconds since `base`.
fn watchful(base: Instant, early: &Arc<Mutex<Vec<String>>>) -> Origin {
    let early = Arc::clone(early);
    Origin::scripted(move |peer| {
        while let Some(head) = peer.read_head() {
            let head = String::from_utf8(head).expect("text");
            if head.starts_with("GET") {
                peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\n\r\n{}", "d".repeat(BYTES)));
                continue;
            }
            let began = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("x-began: ")?.parse().ok());
            let began = base + std::time::Duration::from_micros(began.expect("a time"));
            let is_chunked = head.to_ascii_lowercase().contains("\r\ntransfer-encoding:");
            let (mut count, mut body) = (0, Vec::new());
            while count < BYTES || is_chunked && !body.ends_with(b"\r\n0\r\n\r\n") {
                let Some(some) = peer.read_some() else { return };
                // Chunks' own lines have no such bytes.
                count += some.iter().filter(|byte| **byte == b'u').count();
                body.extend(some);
                if !is_in_pace(count, began) {
                    early.lock().expect("no panic").push(format!("{count} of {head}"));
                }
            }
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    })
}

/// Fields of a request for a protocol that its server does not know, and answers in HTTP.
const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: foo\r\n";

/// Asks over HTTP/1.1, and looks at each piece of the answer.
fn download(engine: &Engine, (path, fields): (&str, &str)) {
    let (mut client, began) = (engine.client("plain"), Instant::now());
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n"));
    let head = client.read_head();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let mut count = 0;
    client.read_through(BYTES as u64, |piece| {
        count += piece.iter().filter(|byte| **byte == b'd').count();
        assert!(is_in_pace(count, began), "{count} of {path} after {:?}", began.elapsed());
    });
    assert_eq!(count, BYTES);
}

/// The same over HTTP/2.
fn download_by_stream(engine: &Engine, path: &str) {
    let (mut client, began) = (Http2::start(engine), Instant::now());
    client.get(1, path);
    assert_eq!(client.next_of(1).status(), Some(200));
    let mut count = 0;
    loop {
        let frame = client.next_of(1);
        assert_eq!(frame.kind, DATA, "{frame:?}");
        count += frame.payload.len();
        assert!(is_in_pace(count, began), "{count} of {path} after {:?}", began.elapsed());
        if frame.ends() {
            break;
        }
    }
    assert_eq!(count, BYTES);
}

/// A body that has come whole with its head is not slowed down: the head goes before it.
fn head_is_there(origin: &Origin, began: u128) {
    let line = format!("x-began: {began}\r\n");
    holds("the head at the server", || origin.received_text().to_ascii_lowercase().contains(&line));
}

const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";

fn upload(engine: &Engine, origin: &Origin, (path, began, fields): (&str, u128, &str)) {
    let body = "u".repeat(BYTES);
    let (framing, body) = match fields == CHUNKED {
        true => (String::new(), format!("{BYTES:x}\r\n{body}\r\n0\r\n\r\n")),
        false => (format!("Content-Length: {BYTES}\r\n"), body),
    };
    let mut client = engine.client("plain");
    client.send(format!("POST {path} HTTP/1.1\r\nHost: a.test\r\nX-Began: {began}\r\n{fields}{framing}\r\n"));
    head_is_there(origin, began);
    client.send(body);
    assert_eq!(client.read_response().status, 200, "{path}");
}

fn upload_by_stream(engine: &Engine, origin: &Origin, (path, began): (&str, u128)) {
    let mut client = Http2::start(engine);
    let (text, length) = (began.to_string(), BYTES.to_string());
    let fields = [&request("POST", path)[..], &[("x-began", &*text), ("content-length", &*length)]].concat();
    client.send(HEADERS, END_HEADERS, 1, &block(&fields));
    head_is_there(origin, began);
    client.send(DATA, END_STREAM, 1, "u".repeat(BYTES).as_bytes());
    assert_eq!(client.next_of(1).status(), Some(200), "{path}");
}

#[test]
fn bodies_of_a_low_pace_come_in_small_pieces_both_ways_over_both_versions_of_http() {
    let (base, early) = (Instant::now(), Arc::default());
    let first = watchful(base, &early);
    let inner = Engine::start(&propylon_e2e::engine::simple(&[first.address()]));
    let throttle = format!("throttle = {{ download = {RATE}, upload = {RATE} }}");
    let engine = Engine::start(&format!(
        "[process]\nworkers = 2\n[listener.plain]\nbind = \"127.0.0.1:0\"\n\
         [backend.app]\nservers = [\"{}\"]\n[backend.second]\nprotocol = \"h2\"\nservers = [\"{}\"]\n\
         [[route]]\npath = \"/first\"\nbackend = \"app\"\n{throttle}\n\
         [[route]]\npath = \"/second\"\nbackend = \"second\"\n{throttle}\n\
         [[route]]\npath = \"/held\"\nbackend = \"app\"\n{throttle}\nbuffer = {{ response = {{ disk = 0 }} }}\n",
        first.address(),
        inner.address("plain")
    ));
    std::thread::scope(|scope| {
        let (engine, origin) = (&engine, &first);
        let now = move || base.elapsed().as_micros();
        for path in ["/first", "/second", "/held"] {
            scope.spawn(move || download(engine, (path, "")));
            scope.spawn(move || download_by_stream(engine, path));
        }
        for path in ["/first", "/held"] {
            scope.spawn(move || download(engine, (path, UPGRADE)));
        }
        scope.spawn(move || upload(engine, origin, ("/first", now(), UPGRADE)));
        for path in ["/first", "/second"] {
            scope.spawn(move || upload(engine, origin, (path, now(), "")));
            scope.spawn(move || upload(engine, origin, (path, now(), CHUNKED)));
            scope.spawn(move || upload_by_stream(engine, origin, (path, now())));
        }
    });
    let early = early.lock().expect("no panic");
    assert!(early.is_empty(), "{early:?}");
}

#[test]
fn a_client_that_has_gone_ends_its_slow_body_before_the_pace_has_taken_what_it_sent() {
    // Four minutes of it, as much of which as the kernel takes is here when its client goes.
    const LONG: usize = 256 << 10;
    let received = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&received);
    let origin = Origin::scripted(move |peer| {
        let Some(head) = peer.read_head() else { return };
        if head.starts_with(b"GET") {
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {LONG}\r\n\r\n{}", "d".repeat(LONG)));
        }
        while let Some(some) = peer.read_some() {
            count.fetch_add(some.len(), Ordering::SeqCst);
        }
    });
    let engine = Engine::start(&format!(
        "[process]\nworkers = 1\n[listener.plain]\nbind = \"127.0.0.1:0\"\n[backend.app]\nservers = [\"{}\"]\n\
         [[route]]\nbackend = \"app\"\nthrottle = {{ download = \"1KiB\", upload = \"1KiB\" }}\n\
         [[route]]\npath = \"/held\"\nbackend = \"app\"\nthrottle = {{ download = \"1KiB\", upload = \"1KiB\" }}\n\
         buffer = {{ request = {{ memory = \"1MiB\", disk = 0 }}, response = {{ memory = \"1MiB\", disk = 0 }} }}\n",
        origin.address()
    ));
    let open = |value| engine.metric_reaches("propylon_requests_in_progress", &[("listener", "plain")], value);
    let gone = |client: Client, path: &str| {
        client.reset();
        open(0.0);
        let line = engine.logged_path(path);
        assert_eq!(line["fault"], "client-reset", "{line}");
    };
    for path in ["/upload", "/held/upload"] {
        let mut client = engine.client("plain");
        let expects = if path == "/upload" { "" } else { "Expect: 100-continue\r\n" };
        client.send(format!("POST {path} HTTP/1.1\r\nHost: a.test\r\n{expects}Content-Length: {LONG}\r\n\r\n"));
        if !expects.is_empty() {
            // The body is to be held: no server hears of it before all of it is here.
            assert!(client.read_head().starts_with("HTTP/1.1 100 "));
        }
        client.send("u".repeat(LONG / 2));
        if expects.is_empty() {
            holds("the server has some of it", || received.load(Ordering::SeqCst) > 0);
        }
        gone(client, path);
    }
    for path in ["/download", "/held/download"] {
        let mut client = engine.client("plain");
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n\r\n"));
        client.read_head();
        client.read_exact(1);
        gone(client, path);
    }
}

#[test]
fn a_client_that_asks_for_nothing_more_gets_the_rest_of_its_slow_body() {
    let body = "d".repeat(BYTES);
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\n\r\n{body}");
    let origin = Origin::always(answer);
    let throttle = format!("throttle = {{ download = {RATE} }}");
    let engine = Engine::start(&format!(
        "[process]\nworkers = 1\n[listener.plain]\nbind = \"127.0.0.1:0\"\n[backend.app]\nservers = [\"{}\"]\n\
         [[route]]\nbackend = \"app\"\n{throttle}\n\
         [[route]]\npath = \"/held\"\nbackend = \"app\"\n{throttle}\nbuffer = {{ response = {{ disk = 0 }} }}\n",
        origin.address()
    ));
    for path in ["/", "/held"] {
        let mut client = engine.client("plain");
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n\r\n"));
        client.read_head();
        client.read_exact(1);
        client.finish();
        assert_eq!(client.read_exact(BYTES - 1), body.as_bytes()[1..], "{path}");
    }
}

/// Bytes in a second that bodies of one key have together, and how many each of them has.
const SHARED: usize = 32 << 10;
const EACH: usize = 16 << 10;

/// Bytes of one key's bodies, counted as they come.
struct Tally {
    /// When the first of them were asked for, or sent.
    began: OnceLock<Instant>,
    count: AtomicUsize,
}

impl Tally {
    fn new() -> Tally {
        Tally { began: OnceLock::new(), count: AtomicUsize::new(0) }
    }

    fn add(&self, bytes: usize) {
        let count = self.count.fetch_add(bytes, Ordering::SeqCst) + bytes;
        let elapsed = self.began.get().expect("nothing comes before").elapsed();
        assert!(count as f64 <= SHARED as f64 * (0.3 + elapsed.as_secs_f64()), "{count} bytes after {elapsed:?}");
    }
}

fn download_of_key(engine: &Engine, key: &str, tally: &Tally) {
    let mut client = engine.client("plain");
    tally.began.get_or_init(Instant::now);
    client.send(format!("GET / HTTP/1.1\r\nHost: a.test\r\nX-Key: {key}\r\n\r\n"));
    client.read_head();
    client.read_through(EACH as u64, |piece| tally.add(piece.len()));
}

fn download_of_key_by_stream(engine: &Engine, key: &str, tally: &Tally) {
    let mut client = Http2::start(engine);
    let fields = [&request("GET", "/")[..], &[("x-key", key)]].concat();
    tally.began.get_or_init(Instant::now);
    client.send(HEADERS, END_HEADERS | END_STREAM, 1, &block(&fields));
    assert_eq!(client.next_of(1).status(), Some(200));
    loop {
        let frame = client.next_of(1);
        tally.add(frame.payload.len());
        if frame.ends() {
            break;
        }
    }
}

#[test]
fn bodies_of_one_key_share_its_pace_over_connections_workers_versions_and_a_reload() {
    let uploads = Arc::new(Tally::new());
    let arrived = Arc::clone(&uploads);
    let origin = Origin::scripted(move |peer| {
        while let Some(head) = peer.read_head() {
            if head.starts_with(b"POST") {
                let mut left = EACH;
                while left > 0 {
                    let Some(some) = peer.read_some() else { return };
                    arrived.add(some.len());
                    left -= some.len();
                }
            }
            let body = "d".repeat(EACH);
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {EACH}\r\n\r\n{body}"));
        }
    });
    let config = format!(
        "[process]\nworkers = 2\n[listener.plain]\nbind = \"127.0.0.1:0\"\n[backend.app]\nservers = [\"{}\"]\n\
         [[route]]\nbackend = \"app\"\nthrottle = {{ download = {SHARED}, upload = {SHARED}, key = {{ header = \"X-Key\" }} }}\n",
        origin.address()
    );
    let engine = Engine::start(&config);
    let tally = Tally::new();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| download_of_key(&engine, "one", &tally));
            scope.spawn(|| download_of_key_by_stream(&engine, "one", &tally));
        }
        holds("the first bytes", || tally.count.load(Ordering::SeqCst) > 0);
        // Those of another key are not among them.
        download_of_key(&engine, "two", &Tally::new());
        engine.rewrite(&format!("{config}[[route]]\npath = \"/other\"\nrespond = {{}}\n"));
        engine.reload();
        // One that begins with the new configuration is beside those of the old.
        scope.spawn(|| download_of_key(&engine, "one", &tally));
        let (mut client, mut http2) = (engine.client("plain"), Http2::start(&engine));
        client.send(format!("POST /1 HTTP/1.1\r\nHost: a.test\r\nX-Key: three\r\nContent-Length: {EACH}\r\n\r\n"));
        let length = EACH.to_string();
        let fields = [&request("POST", "/2")[..], &[("x-key", "three"), ("content-length", &*length)]].concat();
        http2.send(HEADERS, END_HEADERS, 1, &block(&fields));
        // A body that comes whole with its head is not slowed down.
        let text = || origin.received_text();
        holds("both heads at the server", || text().contains("POST /1") && text().contains("POST /2"));
        uploads.began.get_or_init(Instant::now);
        client.send("u".repeat(EACH));
        http2.send(DATA, END_STREAM, 1, "u".repeat(EACH).as_bytes());
        assert_eq!(client.read_head().split(' ').nth(1), Some("200"));
        assert_eq!(http2.next_of(1).status(), Some(200));
    });
    assert_eq!(tally.count.load(Ordering::SeqCst), 5 * EACH);
    assert_eq!(uploads.count.load(Ordering::SeqCst), 2 * EACH);
}

#[test]
fn a_304_tells_the_length_of_the_body_that_its_client_has_unless_that_may_be_compressed() {
    let origin = Origin::always("HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 4096\r\n\r\n");
    let ways = [
        ("/paced", "throttle = { download = \"1KiB\" }", Some("4096")),
        ("/held", "buffer = { response = { memory = \"1MiB\", disk = 0 } }", Some("4096")),
        ("/changed", "response = { set = { X-A = \"b\" } }", Some("4096")),
        ("/coded", "throttle = { download = \"1KiB\" }\ncompress = true", None),
    ];
    let routes = ways.map(|(path, lines, _)| format!("[[route]]\npath = \"{path}\"\nbackend = \"app\"\n{lines}\n"));
    let engine = Engine::start(&format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\n[backend.app]\nservers = [\"{}\"]\n{}",
        origin.address(),
        routes.concat()
    ));
    let (mut client, mut http2) = (engine.client("plain"), Http2::start(&engine));
    for ((path, _, length), stream) in ways.into_iter().zip((1..).step_by(2)) {
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\nIf-None-Match: \"x\"\r\n\r\n"));
        let head = client.read_head();
        assert!(head.starts_with("HTTP/1.1 304 "), "{head}");
        assert_eq!(values(&head, "Content-Length").first().copied(), length, "{path}: {head}");
        http2.get(stream, path);
        let head = http2.next_of(stream);
        assert!(head.ends() && head.payload.windows(4).any(|some| some == b"4096") == length.is_some(), "{path}");
    }
}
