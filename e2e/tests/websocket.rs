//! WebSocket by other people's client, server and browser, with the engine between them: over HTTP/1.1 and over HTTP/2.

use std::time::Duration;

use propylon_e2e::engine::{simple, with};
use propylon_e2e::frames::{ACK, DATA, END_STREAM, HEADERS, Http2, RST_STREAM, SETTINGS, WINDOW_UPDATE};
use propylon_e2e::python::{PythonServer, python};
use propylon_e2e::wait::WAIT_MAX;
use propylon_e2e::{Certificates, Engine, Origin, holds};

const ENABLE_CONNECT_PROTOCOL: u16 = 8;
/// What a frame may have in it, unless settings say more (RFC 9113 §4.2).
const FRAME_BYTES_MAX: usize = 16_384;

struct Chat {
    server: PythonServer,
    engine: Engine,
}

impl Chat {
    fn new(listener: &str) -> Chat {
        let server = PythonServer::start("ws_server.py", &[]);
        let engine = Engine::start(&with(&[server.address()], listener, ""));
        Chat { server, engine }
    }

    /// One of the client's stories, in plaintext and over TLS.
    #[track_caller]
    fn tells(&self, story: &str) {
        let ca = Certificates::shared().ca().display().to_string();
        for (listener, scheme) in [("plain", "ws"), ("web", "wss")] {
            let url = format!("{scheme}://localhost:{}", self.engine.address(listener).port());
            let arguments = [story, &url, &ca];
            python("ws_client.py", if listener == "web" { &arguments } else { &arguments[..2] }).ok();
        }
    }

    #[track_caller]
    fn nothing_is_left(&self) {
        holds("no connection is left", || {
            self.engine.metric("propylon_connections", &[]) + self.engine.metric("propylon_server_connections", &[])
                == 0.0
        });
    }

    /// How many of the server's connections ended like this.
    fn closed(&self, how: &str) -> usize {
        self.server.said().iter().filter(|line| line.starts_with(&format!("closed {how}"))).count()
    }
}

#[test]
fn texts_and_bytes_come_back_as_they_were() {
    let chat = Chat::new("");
    chat.tells("echo");
    chat.tells("fragments");
    chat.nothing_is_left();
}

#[test]
fn pings_go_to_the_other_end_and_pongs_back() {
    Chat::new("").tells("pings");
}

#[test]
fn codes_and_reasons_of_a_close_arrive_either_way() {
    let chat = Chat::new("");
    chat.tells("closes");
    holds("the server has heard", || chat.closed("/echo 4001 the client has had enough") == 2);
    holds("the server has heard", || chat.closed("/closes 4002 the server has had enough") == 2);
    chat.nothing_is_left();
}

#[test]
fn a_client_that_vanishes_is_gone_for_the_server_too() {
    let chat = Chat::new("");
    chat.tells("vanishes");
    holds("the server notices", || chat.closed("/vanished 1006") == 2);
    chat.nothing_is_left();
    for line in [
        chat.engine.logged("plain", |line| line["listener"] == "plain"),
        chat.engine.logged("web", |line| line["listener"] == "web"),
    ] {
        assert_eq!(
            (&line["status"], &line["fault"]),
            (&101.into(), &serde_json::Value::Null),
            "a closed tab is no fault: {line}"
        );
    }
}

#[test]
fn pings_keep_a_connection_that_would_be_ended() {
    let chat = Chat::new("timeouts = { tunnel_idle = \"1s\" }");
    chat.tells("idles");
    assert_eq!(chat.engine.metric("propylon_timeouts_total", &[("wait", "tunnel-idle")]), 2.0);
    chat.tells("keeps_alive");
    assert_eq!(chat.engine.metric("propylon_timeouts_total", &[("wait", "tunnel-idle")]), 2.0);
    chat.nothing_is_left();
}

#[test]
fn a_hundred_talk_at_once() {
    let chat = Chat::new("");
    chat.tells("crowd");
    assert_eq!(chat.engine.metric("propylon_tunnels_total", &[]), 200.0);
    chat.nothing_is_left();
}

/// A frame of RFC 6455 §5.2 as a client sends it, masked with zeros.
fn masked(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let head = match payload.len() {
        length @ 0..126 => vec![0x80 | opcode, 0x80 | length as u8],
        length => [&[0x80 | opcode, 0x80 | 127][..], &(length as u64).to_be_bytes()].concat(),
    };
    [&head[..], &[0; 4], payload].concat()
}

/// RFC 8441: SETTINGS announce it, CONNECT with `:protocol` opens it, and the server of HTTP/1.1 sees an Upgrade.
struct OverHttp2 {
    http2: Http2,
    inbox: Vec<u8>,
    ended: bool,
}

impl OverHttp2 {
    #[track_caller]
    fn open(engine: &Engine, path: &str) -> OverHttp2 {
        let mut http2 = Http2::start_tls(engine);
        let settings = http2.next_frame();
        assert_eq!((settings.kind, settings.flags), (SETTINGS, 0));
        let wanted = [&ENABLE_CONNECT_PROTOCOL.to_be_bytes()[..], &1_u32.to_be_bytes()].concat();
        assert!(settings.payload.chunks(6).any(|setting| setting == wanted), "{settings:?}");
        http2.send(SETTINGS, ACK, 0, &[]);
        let connect =
            [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "https"), (":authority", "localhost")];
        let rest = [(":path", path), ("sec-websocket-version", "13"), ("origin", "https://localhost")];
        http2.headers(1, 0, &[&connect[..], &rest].concat());
        let head = http2.next_of(1);
        assert_eq!((head.kind, head.status(), head.ends()), (HEADERS, Some(200), false));
        OverHttp2 { http2, inbox: Vec::new(), ended: false }
    }

    #[track_caller]
    fn say(&mut self, opcode: u8, payload: &[u8]) {
        for piece in masked(opcode, payload).chunks(FRAME_BYTES_MAX) {
            self.http2.send(DATA, 0, 1, piece);
        }
    }

    /// The next message or control frame; none at the end of the stream.
    #[track_caller]
    fn hear(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            if let Some((opcode, length, at)) = unmasked(&self.inbox)
                && self.inbox.len() >= at + length
            {
                let frame: Vec<u8> = self.inbox.drain(..at + length).collect();
                return Some((opcode, frame[at..].to_vec()));
            }
            if self.ended {
                return None;
            }
            let frame = self.http2.next_of(1);
            assert_eq!(frame.kind, DATA, "{frame:?}");
            self.ended = frame.ends();
            self.inbox.extend(&frame.payload);
            for stream in [0, 1] {
                let count = (frame.payload.len() as u32).max(1);
                self.http2.send(WINDOW_UPDATE, 0, stream, &count.to_be_bytes());
            }
        }
    }
}

/// Opcode, length and where the payload begins.
fn unmasked(bytes: &[u8]) -> Option<(u8, usize, usize)> {
    let opcode = bytes.first()? & 0x0f;
    Some(match bytes.get(1)? {
        126 => (opcode, u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?) as usize, 4),
        127 => (opcode, u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?) as usize, 10),
        length => (opcode, usize::from(*length), 2),
    })
}

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

#[test]
fn over_http_2_a_stream_is_a_websocket_to_a_server_of_http_1() {
    let chat = Chat::new("");
    let mut socket = OverHttp2::open(&chat.engine, "/echo");
    socket.say(TEXT, "hellö".as_bytes());
    assert_eq!(socket.hear(), Some((TEXT, "hellö".into())));
    socket.say(PING, b"are you?");
    assert_eq!(socket.hear(), Some((PONG, b"are you?".to_vec())));
    // Within the window that a stream begins with.
    let large: Vec<u8> = (0..60_000_u32).map(|n| (n >> 3) as u8).collect();
    socket.say(BINARY, &large);
    assert!(socket.hear() == Some((BINARY, large)));
    socket.say(CLOSE, &[&4001_u16.to_be_bytes()[..], b"bye"].concat());
    assert_eq!(socket.hear(), Some((CLOSE, [&4001_u16.to_be_bytes()[..], b"bye"].concat())));
    assert_eq!(socket.hear(), None, "the server has closed its side");
    socket.http2.send(DATA, END_STREAM, 1, &[]);
    holds("the server has heard", || chat.closed("/echo 4001 bye") == 1);
    holds("the stream is over", || chat.engine.metric("propylon_http2_streams", &[]) == 0.0);
    assert_eq!(chat.engine.metric("propylon_tunnels_total", &[]), 1.0);
}

#[test]
fn over_http_2_a_close_of_the_server_and_a_reset_of_the_client_arrive() {
    let chat = Chat::new("");
    let mut socket = OverHttp2::open(&chat.engine, "/closes");
    let said = [&4002_u16.to_be_bytes()[..], b"the server has had enough"].concat();
    assert_eq!(socket.hear(), Some((CLOSE, said.clone())));
    socket.say(CLOSE, &said);
    assert_eq!(socket.hear(), None);
    let mut socket = OverHttp2::open(&chat.engine, "/vanished");
    socket.say(TEXT, b"x");
    assert_eq!(socket.hear(), Some((TEXT, b"x".to_vec())));
    socket.http2.send(RST_STREAM, 0, 1, &8_u32.to_be_bytes());
    holds("the server notices", || chat.closed("/vanished 1006") == 1);
}

#[test]
fn over_http_2_a_stream_in_which_nothing_moves_is_ended_and_its_connection_is_not() {
    let chat = Chat::new("timeouts = { tunnel_idle = \"1s\" }");
    let mut socket = OverHttp2::open(&chat.engine, "/idle");
    socket.http2.client.read_timeout(Duration::from_secs(20));
    let heard = socket.http2.next_of(1);
    assert!(heard.kind == RST_STREAM || heard.kind == DATA && heard.ends(), "{heard:?}");
    holds("the server notices", || chat.closed("/idle 1006") == 1);
    assert_eq!(chat.engine.metric("propylon_timeouts_total", &[("wait", "tunnel-idle")]), 1.0);
    assert_eq!(chat.engine.metric("propylon_http2_connections", &[]), 1.0);
}

/// How long an attempt may take in a story that waits for the end of one.
const ATTEMPT: &str = "timeouts = { attempt = \"2s\" }";

#[test]
fn a_websocket_goes_on_beyond_the_limit_of_the_attempt_that_opened_it() {
    let server = PythonServer::start("ws_server.py", &[]);
    let silent = Origin::scripted(|peer| {
        peer.read_request();
        peer.stall(WAIT_MAX);
    });
    let text = with(&[server.address()], "", "");
    let silent = format!("[backend.silent]\nservers = [\"{}\"]\n", silent.address());
    let route = format!("{ATTEMPT}\n[[route]]\npath = \"/silent\"\nbackend = \"silent\"\n{ATTEMPT}\n");
    let engine = Engine::start(&[text, route, silent].concat());
    let mut over_http1 = engine.client("plain");
    over_http1.send(
        "GET /1 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    assert!(over_http1.read_head().starts_with("HTTP/1.1 101 "));
    let mut over_http2 = OverHttp2::open(&engine, "/2");
    // An attempt that began after theirs, and has the same limit, is ended by it: theirs would have been.
    assert_eq!(engine.client("plain").get("/silent").status, 504);
    over_http1.send(masked(TEXT, b"still"));
    assert_eq!(over_http1.read_exact(7), b"\x81\x05still");
    over_http2.say(TEXT, b"here");
    assert_eq!(over_http2.hear(), Some((TEXT, b"here".to_vec())));
    // Both say that they go, which the server would wait for.
    let done = 1000_u16.to_be_bytes();
    over_http1.send(masked(CLOSE, &done));
    over_http2.say(CLOSE, &done);
    assert_eq!(over_http1.read_exact(4), [&[0x88, 2][..], &done].concat());
    assert_eq!(over_http2.hear(), Some((CLOSE, done.to_vec())));
}

/// The line of a request that has switched is written when its tunnel is over.
#[test]
fn what_went_through_a_tunnel_is_in_its_line_and_a_client_that_leaves_is_nobodys_fault() {
    const UP: usize = 70_000;
    const DOWN: &[u8] = b"hello behind the head";
    let origin = Origin::scripted(|peer| {
        peer.read_head();
        // The first bytes come with the head.
        let head = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: foo\r\n\r\n";
        peer.send([&head[..], DOWN].concat());
        if peer.read_exact(UP).is_some() {
            peer.send(b".");
        }
        peer.stall(WAIT_MAX);
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = engine.client("plain");
    let asked = "GET /tunnel HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: foo\r\n\r\n";
    client.send(asked);
    let answered = client.read_head();
    assert!(answered.starts_with("HTTP/1.1 101 "), "{answered}");
    assert_eq!(client.read_exact(DOWN.len()), DOWN);
    client.send(vec![b'u'; UP]);
    assert_eq!(client.read_exact(1), b".");
    assert_eq!(engine.metric("propylon_tunnels_total", &[("listener", "plain")]), 1.0);
    client.reset();
    let line = engine.logged_path("/tunnel");
    let bytes = ["bytes_received", "bytes_sent"].map(|name| line[name].as_u64().expect("a number"));
    assert_eq!(bytes, [asked.len() + UP, answered.len() + 4 + DOWN.len() + 1].map(|count| count as u64), "{line}");
    assert_eq!((&line["status"], &line["fault"]), (&101.into(), &serde_json::Value::Null), "{line}");
    engine.metric_reaches("propylon_server_connections", &[], 0.0);
}

#[test]
fn a_server_that_is_none_of_websocket_refuses_it_like_any_request() {
    let origin = Origin::always("HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno");
    let engine = Engine::start(&simple(&[origin.address()]));
    let ca = Certificates::shared().ca().display().to_string();
    let url = format!("wss://localhost:{}", engine.address("web").port());
    let said = python("ws_client.py", &["echo", &url, &ca]);
    assert!(said.stderr.contains("HTTP 404"), "{}", said.stderr);
}
