//! HTTP/2 from clients: the programs that people use, and frames said one by one.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use propylon_e2e::engine::{simple, with};
use propylon_e2e::frames::{
    ACK, CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frame, GOAWAY, HEADERS, Http2,
    NO_ERROR, PING, PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE, block, frame, request,
};
use propylon_e2e::http::values;
use propylon_e2e::program::{curl, run, websocket_accept};
use propylon_e2e::{Engine, Origin, Scratch, holds};
use rustix::process::Signal;
use socket2::{Domain, Socket, Type};

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";
const INITIAL_WINDOW_SIZE: u16 = 4;

fn hello() -> Origin {
    Origin::always(HELLO)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn curl_speaks_it_by_alpn_and_by_prior_knowledge() {
    let origin = Origin::mirror();
    let engine = Engine::start(&with(&[origin.address()], "", "via = true"));
    for (listener, version) in [("web", "--http2"), ("plain", "--http2-prior-knowledge")] {
        let url = format!("{}/page?x=y", engine.url(listener));
        let said = curl(&[version, "-w", "\n%{http_version}", "-b", "a=1; b=2", &url]).ok().text();
        assert!(said.ends_with("\n2"), "{said}");
        assert!(said.starts_with("GET /page?x=y HTTP/1.1\r\nHost: localhost:"), "{said}");
        assert_eq!(values(&said, "Via"), ["2 propylon"]);
        assert_eq!(values(&said, "cookie"), ["a=1; b=2"]);
        assert_eq!(values(&said, "X-Forwarded-Proto"), [if listener == "web" { "https" } else { "http" }]);
    }
    let line = engine.logged_path("/page?x=y");
    assert_eq!((&line["protocol"], &line["status"]), (&"HTTP/2".into(), &200.into()));
    assert_eq!(engine.metric("propylon_http2_streams_total", &[]), 2.0);
    let said = curl(&["--http1.1", "-w", "%{http_version}", "-o", "/dev/null", &engine.url("web")]).ok();
    assert_eq!(said.text(), "1.1");
}

#[test]
fn bodies_of_known_and_unknown_length_arrive_whole_both_ways() {
    let origin = Origin::answering(|request| {
        let end = propylon_e2e::http::head_end(request).expect("a head");
        let head = text(&request[..end]);
        let body = match values(&head, "Transfer-Encoding").is_empty() {
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
    let engine = Engine::start(&simple(&[origin.address()]));
    let scratch = Scratch::new();
    let body: Vec<u8> = (0..3_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let file = scratch.write("body", &body);
    let (data, file) = (format!("@{}", file.display()), file.display().to_string());
    for (listener, version) in [("web", "--http2"), ("plain", "--http2-prior-knowledge")] {
        let url = engine.url(listener);
        let known = curl(&[version, "--data-binary", &data, &url]).ok();
        assert!(known.stdout == body, "{listener}: {} bytes came back", known.stdout.len());
        let mut command = Command::new("sh");
        let ca = propylon_e2e::Certificates::shared().ca();
        command.args(["-c", &format!("cat {file} | curl -s {version} --cacert {} -T - {url}/up", ca.display())]);
        let unknown = run(command, b"", Duration::from_secs(30)).ok();
        assert!(unknown.stdout == body, "{listener}: {} bytes came back", unknown.stdout.len());
    }
}

#[test]
fn many_streams_share_a_connection_and_all_are_served() {
    let origin = hello();
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut command = Command::new("h2load");
    command.args(["-n", "2000", "-c", "4", "-m", "25", &format!("{}/x", engine.url("web"))]);
    let said = run(command, b"", Duration::from_secs(60)).ok().text();
    assert!(said.contains("2000 succeeded, 0 failed, 0 errored"), "{said}");
    assert_eq!(engine.metric("propylon_http2_connections_total", &[]), 4.0);
    assert_eq!(engine.metric("propylon_http2_streams_total", &[]), 2000.0);
    // As many server connections as there were streams at once, and no more.
    assert!(engine.metric("propylon_server_connections_total", &[]) <= 100.0);
    holds("all streams end", || engine.metric("propylon_http2_streams", &[]) == 0.0);
}

#[test]
fn nghttp_sees_trailers_and_interim_responses() {
    let origin = Origin::always(
        "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: abc\r\n\r\n",
    );
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut command = Command::new("nghttp");
    command.args(["-nv", &format!("{}/x", engine.url("web"))]);
    let said = run(command, b"", Duration::from_secs(20)).ok().text();
    let [hints, ok, sum] = [":status: 103", ":status: 200", "x-sum: abc"].map(|part| said.find(part));
    assert!(hints.is_some() && hints < ok && ok < sum, "{said}");
}

#[test]
fn trailers_of_a_request_reach_the_server() {
    let origin = Origin::mirror();
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = Http2::start(&engine);
    client.headers(1, 0, &[&request("POST", "/grpc")[..], &[("te", "trailers"), ("grpc-timeout", "5S")]].concat());
    client.send(DATA, 0, 1, b"hello");
    client.headers(1, END_STREAM, &[("x-sum", "abc"), ("content-length", "7")]);
    let (head, data) = client.response(1);
    assert_eq!(head.status(), Some(200));
    let seen = text(&data);
    assert!(seen.ends_with("\r\n\r\n5\r\nhello\r\n0\r\nx-sum: abc\r\n\r\n"), "{seen}");
    assert_eq!(values(&seen, "TE"), ["trailers"]);
    assert_eq!(values(&seen, "grpc-timeout"), ["5S"]);
}

#[test]
fn an_expectation_is_passed_on_and_its_answer_back() {
    let origin = Origin::scripted(|peer| {
        peer.read_head();
        peer.send("HTTP/1.1 100 Continue\r\n\r\n");
        assert_eq!(peer.read_exact(5).as_deref(), Some(&b"hello"[..]));
        peer.send(HELLO);
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = Http2::start(&engine);
    let expects = [("expect", "100-continue"), ("content-length", "5")];
    client.headers(1, 0, &[&request("POST", "/")[..], &expects].concat());
    let interim = client.next_of(1);
    assert_eq!((interim.kind, interim.ends(), interim.status()), (HEADERS, false, None));
    client.send(DATA, END_STREAM, 1, b"hello");
    let (head, data) = client.response(1);
    assert_eq!((head.status(), text(&data)), (Some(200), "hello\n".into()));
}

#[test]
fn a_clients_reset_stops_the_work_at_the_server_at_once() {
    let origin = Origin::scripted(|peer| {
        peer.read_head();
        if peer.number == 1 {
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nbegun");
        }
        assert!(peer.await_close(Duration::from_secs(5)), "the engine goes on");
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = Http2::start(&engine);
    client.get(1, "/before");
    holds("the request arrives", || engine.metric("propylon_server_requests_total", &[]) == 1.0);
    client.send(RST_STREAM, 0, 1, &CANCEL.to_be_bytes());
    holds("the first is given up", || engine.metric("propylon_server_connections", &[]) == 0.0);
    client.get(3, "/amid");
    while client.next_of(3).kind != DATA {}
    client.send(RST_STREAM, 0, 3, &CANCEL.to_be_bytes());
    holds("the second is given up", || engine.metric("propylon_server_connections", &[]) == 0.0);
    assert_eq!(engine.logged_path("/before")["fault"], "client-reset");
    assert_eq!(engine.metric("propylon_client_faults_total", &[("reason", "client-reset")]), 2.0);
}

#[test]
fn a_server_that_breaks_off_is_a_reset_and_the_other_streams_go_on() {
    let origin = Origin::scripted(|peer| {
        let Some(head) = peer.read_head() else { return };
        match text(&head).starts_with("GET /bad ") {
            true => {
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun");
                peer.close();
            }
            false => peer.send(HELLO),
        }
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = Http2::start(&engine);
    client.get(1, "/bad");
    // What was on its way when the server broke off may be lost with it, the head as well.
    let end = loop {
        let frame = client.next_of(1);
        assert!(!frame.ends() || frame.kind == RST_STREAM, "it was taken for whole");
        if !matches!(frame.kind, HEADERS | DATA) {
            break frame;
        }
    };
    assert_eq!(end.kind, RST_STREAM);
    client.get(3, "/good");
    assert_eq!(client.response(3).1, b"hello\n");
}

#[test]
fn a_stream_that_is_not_read_holds_back_its_own_server_and_nothing_else() {
    let origin = Origin::answering(|request| match text(request).starts_with("GET /long ") {
        true => [&b"HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n"[..], &vec![b'x'; 50_000_000]].concat(),
        false => HELLO.into(),
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = Http2::start_with(&engine, &[(INITIAL_WINDOW_SIZE, 1000)]);
    client.get(1, "/long");
    assert_eq!(client.next_of(1).status(), Some(200));
    let before = engine.rss();
    for stream in (3..203).step_by(2) {
        client.get(stream, "/short");
        let (_, data) = client.response(stream);
        assert_eq!(data, b"hello\n");
    }
    let grown = engine.rss().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes for one stream that stands still");
    assert_eq!(engine.metric("propylon_http2_streams", &[]), 1.0);
    client.send(RST_STREAM, 0, 1, &CANCEL.to_be_bytes());
    holds("it ends", || engine.metric("propylon_http2_streams", &[]) == 0.0);
}

#[test]
fn a_window_that_stays_closed_ends_its_stream_and_nothing_else() {
    let origin = Origin::answering(|_| {
        [&b"HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\n"[..], &vec![b'x'; 500_000]].concat()
    });
    let engine = Engine::start(&with(&[origin.address()], "timeouts = { body = \"1s\" }", ""));
    let mut client = Http2::start_with(&engine, &[(INITIAL_WINDOW_SIZE, 0)]);
    for stream in [1, 3, 5] {
        client.get(stream, "/long");
    }
    let mut resets = 0;
    while resets < 3 {
        let frame = client.next_frame();
        assert!(frame.kind != GOAWAY && frame.kind != DATA, "{frame:?}");
        if frame.kind == RST_STREAM {
            assert_eq!(frame.code(), CANCEL);
            resets += 1;
        }
    }
    assert_eq!(engine.metric("propylon_timeouts_total", &[("wait", "response-body")]), 3.0);
    client.send(PING, 0, 0, b"are you?");
    assert_eq!(client.next_of(0).payload, b"are you?");
}

#[test]
fn a_slow_server_holds_back_its_own_upload_and_nothing_else() {
    let origin = Origin::scripted(|peer| {
        let Some(head) = peer.read_head() else { return };
        match text(&head).starts_with("POST /slow ") {
            true => peer.stall(Duration::from_secs(30)),
            false => peer.send(HELLO),
        }
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = Http2::start(&engine);
    client.headers(1, 0, &request("POST", "/slow"));
    // As much as the window allows, and nobody takes it: the kernel's buffers do.
    for _ in 0..3 {
        client.send(DATA, 0, 1, &[b'x'; 16_000]);
    }
    client.get(3, "/fast");
    assert_eq!(client.response(3).1, b"hello\n");
    client.send(RST_STREAM, 0, 1, &CANCEL.to_be_bytes());
}

/// What the engine lets a client send.
struct Windows {
    connection: i64,
    initial: i64,
    streams: HashMap<u32, i64>,
}

impl Windows {
    fn new() -> Windows {
        Windows { connection: 65_535, initial: 65_535, streams: HashMap::new() }
    }

    /// The next frame that is about something else.
    fn next_frame(&mut self, client: &mut Http2) -> Frame {
        loop {
            let frame = client.next_frame();
            if !self.count_window(&frame) {
                return frame;
            }
            if frame.kind == SETTINGS && frame.flags & ACK == 0 {
                client.send(SETTINGS, ACK, 0, &[]);
            }
        }
    }

    fn count_window(&mut self, frame: &Frame) -> bool {
        match frame.kind {
            WINDOW_UPDATE => {
                let more = i64::from(u32::from_be_bytes(frame.payload[..4].try_into().expect("four bytes")));
                match frame.stream {
                    0 => self.connection += more,
                    stream => *self.streams.entry(stream).or_insert(self.initial) += more,
                }
            }
            SETTINGS => {
                for setting in frame.payload.chunks_exact(6).filter(|setting| setting[1] == INITIAL_WINDOW_SIZE as u8) {
                    let initial = i64::from(u32::from_be_bytes(setting[2..].try_into().expect("four bytes")));
                    self.streams.values_mut().for_each(|window| *window += initial - self.initial);
                    self.initial = initial;
                }
            }
            _ => return false,
        }
        true
    }

    /// Sends as much as there is room for, of so many bytes; returns how much.
    fn send(&mut self, client: &mut Http2, stream: u32, count: usize) -> usize {
        let window = self.streams.entry(stream).or_insert(self.initial);
        let room = (*window).min(self.connection).clamp(0, count.min(16_384) as i64) as usize;
        if room > 0 {
            *window -= room as i64;
            self.connection -= room as i64;
            client.send(DATA, 0, stream, &vec![b'x'; room]);
        }
        room
    }

    /// Uploads so many bytes.
    fn upload(&mut self, client: &mut Http2, stream: u32, mut count: usize) {
        client.headers(stream, 0, &request("POST", "/take"));
        while count > 0 {
            match self.send(client, stream, count) {
                0 => self.wait(client),
                sent => count -= sent,
            }
        }
        client.send(DATA, END_STREAM, stream, &[]);
        loop {
            let frame = self.next_frame(client);
            assert!(!matches!(frame.kind, RST_STREAM | GOAWAY), "{frame:?}");
            if frame.stream == stream && frame.ends() {
                return;
            }
        }
    }

    /// Takes one frame, which has to be about windows.
    fn wait(&mut self, client: &mut Http2) {
        let frame = client.next_frame();
        assert!(self.count_window(&frame), "{frame:?}");
        if frame.kind == SETTINGS && frame.flags & ACK == 0 {
            client.send(SETTINGS, ACK, 0, &[]);
        }
    }
}

/// Bytes of an upload by which its window is as wide as it gets: four windows of each width before the next.
const TAKEN_AT_FIRST: usize = 4 * (64 + 128 + 256 + 512) * 1024;

/// Takes what is sent to /take, and of anything else the first bytes. Its kernel's buffers are small.
fn reluctant() -> SocketAddr {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(4_096).expect("a small buffer");
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    socket.listen(128).expect("a listener");
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let (mut piece, mut seen) = ([0; 16_384], Vec::new());
                while !text(&seen).contains("\r\n\r\n") {
                    let Ok(count @ 1..) = socket.read(&mut piece[..1]) else { return };
                    seen.extend_from_slice(&piece[..count]);
                }
                if !text(&seen).starts_with("POST /take ") {
                    let mut left = TAKEN_AT_FIRST;
                    while left > 0 {
                        let Ok(count @ 1..) = socket.read(&mut piece[..left.min(16_384)]) else { return };
                        left -= count;
                    }
                    return std::thread::park();
                }
                // The last chunk.
                while !seen.ends_with(b"\r\n0\r\n\r\n") {
                    let Ok(count @ 1..) = socket.read(&mut piece) else { return };
                    seen.drain(..seen.len().saturating_sub(10));
                    seen.extend_from_slice(&piece[..count]);
                }
                let _ = socket.write_all(HELLO.replace("200 OK", "200 OK\r\nConnection: close").as_bytes());
            });
        }
    });
    address
}

#[test]
fn stalled_uploads_hold_up_no_other_however_wide_their_windows() {
    let engine = Engine::start(&simple(&[reluctant()]));
    let (mut client, mut windows) = (Http2::start(&engine), Windows::new());
    let stalled: Vec<u32> = (0..8).map(|index| 1 + index * 2).collect();
    for stream in &stalled {
        client.headers(*stream, 0, &request("POST", "/stall"));
    }
    // Until nobody takes anything: the engine has answered twice since it last gave room.
    let mut quiet = 0;
    while quiet < 2 {
        let sent: usize = stalled.iter().map(|stream| windows.send(&mut client, *stream, 1 << 20)).sum();
        if sent > 0 {
            quiet = 0;
            continue;
        }
        client.send(PING, 0, 0, b"are you?");
        let heard = windows.next_frame(&mut client);
        assert_eq!(heard.kind, PING, "{heard:?}");
        quiet += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("{} bytes of the connection's window are left", windows.connection);
    windows.upload(&mut client, 17, 100_000);
    engine.metric_reaches("propylon_http2_widened_bytes", &[], f64::from(8 * 15 * 65_535));
    drop(client);
    engine.metric_reaches("propylon_http2_widened_bytes", &[], 0.0);
}

#[test]
fn an_upload_goes_on_beside_hundreds_that_were_answered_early() {
    let origin = Origin::scripted(|peer| {
        while let Some(head) = peer.read_head() {
            if text(&head).starts_with("POST /live ") {
                while !peer.read_some().is_none_or(|bytes| bytes.ends_with(b"0\r\n\r\n")) {}
            }
            peer.send(HELLO);
        }
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = Http2::start(&engine);
    client.headers(1, 0, &request("POST", "/live"));
    client.send(DATA, 0, 1, b"begun");
    for stream in (1..800).map(|index| index * 2 + 1) {
        client.headers(stream, 0, &request("POST", "/early"));
        assert_eq!(client.response(stream).1, b"hello\n");
        // It was on its way, and half of the clients say so when they give up.
        client.send(DATA, 0, stream, b"late");
        if stream % 4 == 3 {
            client.send(RST_STREAM, 0, stream, &CANCEL.to_be_bytes());
        }
    }
    client.send(DATA, END_STREAM, 1, b" and ended");
    assert_eq!(client.response(1).1, b"hello\n");
    assert_eq!(engine.metric("propylon_http2_floods_total", &[]), 0.0);
}

/// As Go's net/http does: when somebody reads, each 4 KiB are given back, on the stream and on the connection.
#[test]
fn a_client_that_pauses_in_a_download_gives_its_windows_back_at_once() {
    const BYTES: usize = 10_000_000;
    let origin = Origin::answering(|_| {
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\n\r\n").as_bytes(), &vec![b'x'; BYTES]].concat()
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = Http2::start_with(&engine, &[(INITIAL_WINDOW_SIZE, 0x7fff_ffff)]);
    client.send(WINDOW_UPDATE, 0, 0, &0x7000_0000_u32.to_be_bytes());
    client.get(1, "/");
    assert_eq!(client.response(1).1.len(), BYTES);
    // The second in which it was sent is over: ten ticks are one.
    let ticks = || engine.metric("propylon_worker_ticks_total", &[]);
    let began = ticks();
    holds("a second passes", || ticks() > began + 15.0);
    client.get(3, "/");
    let updates: Vec<u8> = (0..2_000).flat_map(|_| frame(WINDOW_UPDATE, 0, 0, &4_096_u32.to_be_bytes())).collect();
    client.client.send(updates);
    assert_eq!(client.response(3).1.len(), BYTES);
    client.get(5, "/");
    assert_eq!(client.next_of(5).status(), Some(200));
    assert_eq!(engine.metric("propylon_http2_floods_total", &[]), 0.0);
}

#[test]
fn a_hundred_requests_that_are_taken_back_at_once_cost_the_others_nothing() {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let origin = Origin::scripted(move |peer| {
        let Some(head) = peer.read_head() else { return };
        if text(&head).starts_with("GET /held ") {
            let _ = wait.lock().expect("no script panics with it").recv_timeout(Duration::from_secs(20));
        }
        peer.send(HELLO);
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = Http2::start(&engine);
    [1, 3, 5].into_iter().for_each(|stream| client.get(stream, "/held"));
    holds("they are held", || engine.metric("propylon_server_requests_total", &[]) >= 3.0);
    let pair = |stream: u32| {
        let begin = frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&request("GET", "/")));
        [begin, frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes())].concat()
    };
    client.client.send((0..100).flat_map(|index| pair(7 + index * 2)).collect::<Vec<u8>>());
    client.send(PING, 0, 0, b"are you?");
    let heard = std::iter::repeat_with(|| client.next_of(0).kind).find(|kind| matches!(*kind, PING | GOAWAY));
    assert_eq!(heard, Some(PING));
    (0..3).for_each(|_| go.send(()).expect("the origin waits"));
    let mut ended = 0;
    while ended < 3 {
        let frame = client.next_frame();
        assert_ne!(frame.kind, GOAWAY);
        ended += usize::from(frame.stream <= 5 && frame.kind == DATA && frame.ends());
    }
}

/// Sends one request by frames and says how it was refused: by a status or by a reset.
#[track_caller]
fn refused(engine: &Engine, flags: u8, fields: &[(&str, &str)]) -> Frame {
    let mut client = Http2::start(engine);
    client.headers(1, flags, fields);
    client.next_of(1)
}

#[test]
fn what_could_smuggle_is_refused_and_nothing_of_it_is_forwarded() {
    let origin = hello();
    let engine = Engine::start(&simple(&[origin.address()]));
    let base = request("GET", "/");
    let added: &[(&str, &str)] = &[
        ("x", "a\r\nx-evil: 1"),
        ("x", "a\nb"),
        ("x", "a\0b"),
        ("x", " a"),
        ("x", "a "),
        ("x:y", "a"),
        ("x y", "a"),
        ("x\r\ny", "a"),
        ("X-Upper", "a"),
        ("connection", "close"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("keep-alive", "5"),
        ("proxy-connection", "close"),
        ("te", "gzip"),
        ("host", "other.example"),
        (":path", "/twice"),
        (":unknown", "x"),
        ("content-length", "-1"),
        ("content-length", "5, 5"),
    ];
    for field in added {
        let frame = refused(&engine, END_STREAM, &[&base[..], &[*field]].concat());
        let is_refused = frame.kind == RST_STREAM || frame.kind == GOAWAY || frame.status() == Some(400);
        assert!(is_refused, "{field:?}: {frame:?}");
    }
    let pseudo: &[[&str; 4]] = &[
        ["GET", "http", "localhost", ""],
        ["GET", "http", "localhost", "x"],
        ["GET", "http", "localhost", "/a b"],
        ["GET", "http", "localhost", "/ HTTP/1.1\r\nx: y"],
        ["GET / HTTP/1.1\r\nx:", "http", "localhost", "/"],
        ["GET", "http", "local host", "/"],
        ["GET", "http", "user@localhost", "/"],
        ["GET", "ftp", "localhost", "/"],
        ["GET", "http", "", "/"],
    ];
    for [method, scheme, authority, path] in pseudo {
        let fields = [(":method", *method), (":scheme", scheme), (":authority", authority), (":path", path)];
        let frame = refused(&engine, END_STREAM, &fields);
        let is_refused = frame.kind == RST_STREAM || frame.kind == GOAWAY || frame.status() == Some(400);
        assert!(is_refused, "{fields:?}: {frame:?}");
    }
    assert_eq!(origin.received_text(), "");
}

#[test]
fn a_body_that_is_not_as_long_as_announced_is_reset() {
    let origin = Origin::scripted(|peer| {
        peer.read_head();
        peer.await_close(Duration::from_secs(5));
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    for sent in ["hell", "hello!"] {
        let mut client = Http2::start(&engine);
        client.headers(1, 0, &[&request("POST", "/")[..], &[("content-length", "5")]].concat());
        client.send(DATA, END_STREAM, 1, sent.as_bytes());
        let frame = client.next_of(1);
        assert_eq!(frame.kind, RST_STREAM, "{sent}: {frame:?}");
    }
}

#[test]
fn connect_is_refused_and_a_websocket_goes_through_by_extended_connect() {
    let origin = Origin::scripted(|peer| {
        let Some(head) = peer.read_head() else { return };
        let head = text(&head);
        assert!(head.starts_with("GET /chat HTTP/1.1\r\n"), "{head}");
        assert_eq!(values(&head, "Upgrade"), ["websocket"]);
        assert_eq!(values(&head, "Sec-WebSocket-Version"), ["13"]);
        assert_eq!(values(&head, "Sec-WebSocket-Key").len(), 1);
        let accept = websocket_accept(values(&head, "Sec-WebSocket-Key")[0]);
        peer.send(format!("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: chat\r\n\r\nearly"));
        while let Some(bytes) = peer.read_some() {
            peer.send(bytes);
        }
        peer.send("bye");
        peer.close();
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = Http2::start(&engine);
    client.headers(1, END_STREAM, &[(":method", "CONNECT"), (":authority", "localhost:25")]);
    let head = client.next_of(1);
    assert!(head.kind == HEADERS && head.status().is_none(), "501 is none of the static table: {head:?}");
    let connect =
        [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http"), (":authority", "localhost")];
    client.headers(3, 0, &[&connect[..], &[(":path", "/chat"), ("sec-websocket-version", "13")]].concat());
    let head = loop {
        let frame = client.next_of(3);
        if frame.kind == HEADERS {
            break frame;
        }
    };
    assert_eq!((head.status(), head.ends()), (Some(200), false));
    client.send(DATA, 0, 3, b"one");
    let mut heard = Vec::new();
    while !text(&heard).ends_with("one") {
        heard.extend(client.next_of(3).payload);
    }
    client.send(DATA, END_STREAM, 3, b"two");
    loop {
        let frame = client.next_of(3);
        assert_eq!(frame.kind, DATA, "{frame:?}");
        heard.extend(&frame.payload);
        if frame.ends() {
            break;
        }
    }
    assert_eq!(text(&heard), "earlyonetwobye");
    let line = engine.logged_path("/chat");
    assert_eq!((&line["status"], &line["fault"]), (&200.into(), &serde_json::Value::Null));
    assert_eq!(engine.metric("propylon_tunnels_total", &[]), 1.0);
}

/// A client takes any 2xx for an open tunnel (RFC 9110 §9.3.6): one of a server that has not switched is not handed on.
#[test]
fn a_websocket_that_its_server_does_not_open_is_not_open_for_the_client() {
    let switch = |accept: &str, to: &str| {
        format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: {to}\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
        )
    };
    let plain = |status: &str| format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nno");
    for (answer, status, fault) in [
        (plain("200 OK"), 502, "upgrade-ignored"),
        (plain("201 Created"), 502, "upgrade-ignored"),
        (plain("403 Forbidden"), 403, ""),
        (switch("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", "websocket"), 502, "bad-switch"),
        (switch("", "foo"), 502, "bad-switch"),
    ] {
        let said = answer.clone();
        let origin = Origin::always(answer);
        let engine = Engine::start(&simple(&[origin.address()]));
        let mut client = Http2::start(&engine);
        let connect =
            [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http"), (":authority", "localhost")];
        client.headers(1, 0, &[&connect[..], &[(":path", "/chat"), ("sec-websocket-version", "13")]].concat());
        let (head, _) = client.response(1);
        assert_eq!(head.spelled_status(), Some(status), "{said}");
        let line = engine.logged_path("/chat");
        assert_eq!(line["fault"].as_str().unwrap_or_default(), fault, "{line}");
        assert_eq!(engine.metric("propylon_tunnels_total", &[]), 0.0);
        // It is no fault by which a server could be judged.
        let outcome = [("outcome", "failure")];
        assert_eq!(engine.metric("propylon_server_outcomes_total", &outcome), 0.0, "{said}");
        client.get(3, "/chat");
        client.next_of(3);
    }
}

/// How the two ends of a tunnel part is their affair: a client that sends on to a server that has left has nobody blamed.
#[test]
fn a_tunnel_that_breaks_is_held_against_no_server() {
    let origin = Origin::scripted(|peer| {
        let Some(head) = peer.read_head() else { return };
        let accept = websocket_accept(values(&text(&head), "Sec-WebSocket-Key")[0]);
        peer.send(format!(
            "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
        ));
        peer.read_some();
        peer.reset();
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = Http2::start(&engine);
    let connect =
        [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http"), (":authority", "localhost")];
    client.headers(1, 0, &[&connect[..], &[(":path", "/chat"), ("sec-websocket-version", "13")]].concat());
    assert_eq!(client.next_of(1).status(), Some(200));
    client.send(DATA, 0, 1, b"bye");
    assert_eq!(client.next_of(1).kind, RST_STREAM);
    let outcome = |outcome| engine.metric("propylon_server_outcomes_total", &[("outcome", outcome)]);
    engine.metric_reaches("propylon_server_outcomes_total", &[("outcome", "success")], 1.0);
    assert_eq!(outcome("failure"), 0.0);
}

#[test]
fn events_of_a_server_reach_the_client_one_by_one() {
    let origin = Origin::scripted(|peer| {
        peer.read_head();
        peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
        for _ in 0..3 {
            peer.send("8\r\ndata: x\n\r\n");
            // The next one is sent when this one was seen, and not before.
            if peer.read_head().is_none() {
                return;
            }
        }
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = Http2::start(&engine);
    client.get(1, "/events");
    assert_eq!(client.next_of(1).status(), Some(200));
    assert_eq!(client.next_of(1).payload, b"data: x\n");
    client.send(RST_STREAM, 0, 1, &CANCEL.to_be_bytes());
}

#[test]
fn a_name_that_the_certificate_does_not_speak_for_is_misdirected() {
    let origin = hello();
    let engine = Engine::start(&simple(&[origin.address()]));
    let url = engine.url("web");
    let silent = format!("[log]\naccess = \"off\"\n{}", simple(&[origin.address()]));
    let silent = Engine::start(&silent);
    let told = |strict: bool| {
        let config = simple(&[origin.address()]);
        Engine::start(&config.replace("tls = \"public\"\n", &format!("tls = \"public\"\nstrict_host = {strict}\n")))
    };
    let (strict, lax) = (told(true), told(false));
    for version in ["--http2", "--http1.1"] {
        let code = |url: &str, host: &str| {
            let host = format!("Host: {host}");
            // The second request comes when nothing but the rule needs the server's name any more.
            let each = ["-o", "/dev/null", url];
            let arguments = [&[version, "-w", "%{http_code} ", "-H", &host][..], &each, &each].concat();
            curl(&arguments).ok().text().trim().to_owned()
        };
        for host in ["localhost", "LOCALHOST.", "a.shop.test", "127.0.0.1"] {
            assert_eq!(code(&strict.url("web"), host), "200 200", "{version} {host}");
        }
        for host in ["a.b.shop.test", "elsewhere.example", "127.0.0.2", "[::1]"] {
            assert_eq!(code(&strict.url("web"), host), "421 421", "{version} {host}");
        }
        // Unless it is told otherwise: those who share connections among names.
        let unsaid = if version == "--http2" { "421 421" } else { "200 200" };
        assert_eq!(code(&url, "elsewhere.example"), unsaid, "{version}");
        assert_eq!(code(&silent.url("web"), "x.example"), unsaid, "{version}: with no log to be told of the name");
        assert_eq!(code(&lax.url("web"), "elsewhere.example"), "200 200", "{version}");
        let said = curl(&[version, "-H", "Host: elsewhere.example", &strict.url("web")]).ok().text();
        let why = "this connection was made for localhost, and its certificate is not for elsewhere.example";
        assert!(said.contains(why), "{version}: {said}");
    }
}

#[test]
fn a_listener_can_do_without() {
    let origin = hello();
    let engine = Engine::start(&with(&[origin.address()], "http2 = { enabled = false }", ""));
    let said = curl(&["--http2", "-w", "%{http_version}", "-o", "/dev/null", &engine.url("web")]).ok();
    assert_eq!(said.text(), "1.1");
    let mut client = engine.client("plain");
    let response = client.ask("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert!(response.status == 505 || response.status == 400, "{}", response.head);
}

#[test]
fn the_drain_says_goaway_and_finishes_what_was_begun() {
    let origin = Origin::scripted(|peer| {
        peer.read_head();
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhel");
        std::thread::sleep(Duration::from_millis(700));
        peer.send("lo\n");
    });
    let mut engine =
        Engine::start(&format!("[process]\nworkers = 1\ndrain_timeout = \"10s\"\n{}", simple(&[origin.address()])));
    let mut client = Http2::start(&engine);
    client.get(1, "/");
    assert_eq!(client.next_of(1).status(), Some(200));
    engine.signal(Signal::TERM);
    let (mut body, mut said) = (Vec::new(), false);
    loop {
        let frame = client.next_frame();
        match frame.kind {
            PING if frame.flags & ACK == 0 => client.send(PING, ACK, 0, &frame.payload),
            GOAWAY => {
                assert_eq!(frame.code(), NO_ERROR);
                said = true;
            }
            DATA => {
                body.extend(&frame.payload);
                if frame.ends() {
                    break;
                }
            }
            _ => {}
        }
    }
    assert!(said && body == b"hello\n", "{}", text(&body));
    let end = engine.wait(Duration::from_secs(8));
    assert_eq!(end.status.code(), Some(0));
}

/// Says something again and again until the engine has had enough; others are served meanwhile.
#[track_caller]
fn flood(engine: &Engine, reason: &str, bytes: &[u8], count: usize) {
    let before = (engine.metric("propylon_http2_floods_total", &[("reason", reason)]), engine.rss());
    let mut client = Http2::start(engine);
    client.client.read_timeout(Duration::from_secs(10));
    let burst = bytes.repeat(64);
    let began = Instant::now();
    for _ in 0..count.div_ceil(64) {
        // Once it has closed the rest is not taken.
        if client.client.try_send(&burst).is_err() {
            break;
        }
    }
    if reason != "settings" {
        assert_eq!(client.goaway().code(), ENHANCE_YOUR_CALM, "{reason}");
    }
    holds("the flood is counted", || {
        engine.metric("propylon_http2_floods_total", &[("reason", reason)]) == before.0 + 1.0
    });
    assert!(began.elapsed() < Duration::from_secs(20));
    assert_eq!(curl(&["--http2", &engine.url("web")]).ok().text(), "hello\n");
    let grown = engine.rss().saturating_sub(before.1);
    assert!(grown < 8 << 20, "{reason}: {grown} bytes");
}

#[test]
fn floods_of_frames_end_their_own_connection() {
    let origin = hello();
    let engine = Engine::start(&simple(&[origin.address()]));
    flood(&engine, "ping", &frame(PING, 0, 0, &[7; 8]), 20_000);
    flood(&engine, "settings", &frame(SETTINGS, 0, 0, &[]), 20_000);
    flood(&engine, "priority", &frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 7]), 20_000);
    flood(&engine, "window-update", &frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]), 20_000);
    flood(&engine, "unknown-frame", &frame(0xbb, 0, 0, &[]), 20_000);
    let opening = frame(HEADERS, 0, 1, &block(&request("GET", "/")));
    let mut client = Http2::start(&engine);
    client.client.send(opening);
    client.client.send(frame(CONTINUATION, 0, 1, &[]).repeat(1000));
    assert_eq!(client.goaway().code(), ENHANCE_YOUR_CALM);
    let mut client = Http2::start(&engine);
    client.headers(1, 0, &request("POST", "/"));
    client.client.send(frame(DATA, 0, 1, &[]).repeat(1000));
    assert_eq!(client.goaway().code(), ENHANCE_YOUR_CALM);
}

#[test]
fn streams_begun_and_reset_in_a_row_end_the_connection() {
    let origin = hello();
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = Http2::start(&engine);
    let mut bytes = Vec::new();
    for stream in (1..20_001).step_by(2) {
        bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&request("GET", "/"))));
        bytes.extend(frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes()));
    }
    let _ = client.client.try_send(&bytes);
    assert_eq!(client.goaway().code(), ENHANCE_YOUR_CALM);
    assert!(engine.metric("propylon_server_requests_total", &[]) < 1_000.0);
    holds("nothing is left", || engine.metric("propylon_http2_streams", &[]) == 0.0);
}

#[test]
fn streams_that_a_client_makes_us_reset_end_the_connection() {
    let origin = Origin::scripted(|peer| {
        peer.read_head();
        peer.await_close(Duration::from_secs(5));
    });
    let engine = Engine::start(&with(&[origin.address()], "http2 = { flood = { errors = 50 } }", ""));
    let mut client = Http2::start(&engine);
    let opening = block(&[&request("POST", "/")[..], &[("content-length", "5")]].concat());
    for stream in (1..401).step_by(2) {
        // Too long: the engine answers with RST_STREAM (MadeYouReset).
        let mut bytes = frame(HEADERS, END_HEADERS, stream, &opening);
        bytes.extend(frame(DATA, END_STREAM, stream, b"hello!"));
        if client.client.try_send(&bytes).is_err() {
            break;
        }
    }
    assert_eq!(client.goaway().code(), ENHANCE_YOUR_CALM);
    assert_eq!(engine.metric("propylon_http2_floods_total", &[("reason", "stream-error")]), 1.0);
    holds("nothing is left", || {
        engine.metric("propylon_http2_streams", &[]) + engine.metric("propylon_server_connections", &[]) == 0.0
    });
}

#[test]
fn a_header_list_that_is_too_long_is_refused_however_small_it_was_packed() {
    let origin = hello();
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = Http2::start(&engine);
    // One field of 4000 bytes is put in the table, and then named 200 times by a byte each (RFC 7541 §6.1, §6.2.1).
    let mut bomb = block(&request("GET", "/"));
    bomb.extend([0x40, 1, b'x', 127, 0xa1, 0x1e]);
    bomb.extend([b'y'; 4000]);
    bomb.extend([0xbe; 200]);
    client.send(HEADERS, END_HEADERS | END_STREAM, 1, &bomb);
    let frame = client.next_of(1);
    assert!(matches!(frame.kind, HEADERS | RST_STREAM | GOAWAY) && frame.status() != Some(200), "{frame:?}");
    let mut client = Http2::start(&engine);
    let names: Vec<String> = (0..150).map(|index| format!("x-{index}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    client.headers(1, END_STREAM, &[&request("GET", "/")[..], &many].concat());
    assert!(client.next_of(1).status() != Some(200));
    assert_eq!(origin.received_text(), "");
}
