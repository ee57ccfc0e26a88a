//! Responses that are compressed on their way: decoded by other people's decoders they are what servers have sent, and
//! their heads say so.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use propylon_e2e::certificates::Certificates;
use propylon_e2e::engine::with;
use propylon_e2e::frames::{DATA, END_HEADERS, END_STREAM, HEADERS, Http2, RST_STREAM, request};
use propylon_e2e::http::{Response, in_chunks};
use propylon_e2e::nginx::Nginx;
use propylon_e2e::program::{curl, curl_within, run};
use propylon_e2e::{Client, Ending, Engine, Origin, Scratch, eventually, holds};

const ENCODINGS: [&str; 3] = ["gzip", "br", "zstd"];
/// Lengths around the minimum, a buffer's size and many of them.
const LENGTHS: [usize; 9] = [0, 1, 1023, 1024, 1025, 16 * 1024, 65_537, 300_001, 5_000_000];
const LIMIT: Duration = Duration::from_secs(120);
/// Stories run on busy machines.
const STEP: &str = "compress = { busy_max = 100 }";

/// Text with some chance in it, so that it is neither a run of one byte nor noise.
fn text(length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(length as u64);
    let words = ["<li>", "</li>\n", "propylon ", "request ", "{\"id\": ", "42}, ", "the ", "quick ", "\u{20ac} "];
    let mut text = Vec::with_capacity(length + 20);
    while text.len() < length {
        match random.u8(..5) {
            0 => text.extend_from_slice(random.u32(..).to_string().as_bytes()),
            _ => text.extend_from_slice(random.choice(words).expect("some").as_bytes()),
        }
    }
    text.truncate(length);
    text
}

/// With more lines for the backend, and for its route.
fn config(servers: &[SocketAddr], backend: &str, step: &str) -> String {
    format!("{}{step}\n", with(servers, "", backend))
}

fn engine(server: SocketAddr) -> Engine {
    Engine::start(&config(&[server], "", STEP))
}

/// A body as `gzip`, the program, decodes it.
#[track_caller]
fn gunzip(body: &[u8]) -> Vec<u8> {
    let scratch = Scratch::new();
    let mut command = Command::new("gzip");
    command.args(["--decompress", "--stdout"]).arg(scratch.write("body.gz", body));
    run(command, b"", LIMIT).ok().stdout
}

fn get(path: &str, more: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a.example\r\nAccept-Encoding: gzip\r\n{more}\r\n")
}

fn ok(fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

const TEXT: &str = "Content-Type: text/plain\r\n";

/// A field of a head as curl writes it down.
fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

#[test]
fn bodies_of_any_length_are_whole_in_every_coding_between_all_versions() {
    let nginx = Nginx::start("files");
    for length in LENGTHS {
        std::fs::write(nginx.root().join(length.to_string()), text(length)).expect("a file");
    }
    // A server of HTTP/2 that is nginx behind an engine without steps.
    let behind = Engine::start(&with(&[nginx.address()], "", ""));
    let servers = [(nginx.address(), ""), (behind.address("plain"), "protocol = \"h2\"")];
    let clients = [("--http1.0", "plain"), ("--http1.1", "plain"), ("--http1.1", "web"), ("--http2", "web")];
    for (server, backend) in servers {
        let engine = Engine::start(&config(&[server], backend, STEP));
        for (version, listener) in clients {
            for encoding in ENCODINGS {
                let scratch = Scratch::new();
                let accept = format!("Accept-Encoding: {encoding}");
                let mut arguments = vec![version.to_string(), "--compressed".into(), "--header".into(), accept];
                for length in LENGTHS {
                    let place = |kind: &str| scratch.join(&format!("{length}.{kind}")).display().to_string();
                    arguments.extend(["--output".into(), place("body"), "--dump-header".into(), place("head")]);
                    arguments.push(format!("{}/{length}", engine.url(listener)));
                    arguments.push("--next".into());
                    arguments.extend([version.to_string(), "--compressed".into(), "--header".into()]);
                    arguments.extend([format!("Accept-Encoding: {encoding}"), "--cacert".into()]);
                    arguments.push(Certificates::shared().ca().display().to_string());
                    arguments.extend(["--silent".into(), "--show-error".into()]);
                }
                arguments.extend(["--output".into(), "/dev/null".into(), format!("{}/1", engine.url(listener))]);
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                curl_within(LIMIT, &arguments).ok();
                for length in LENGTHS {
                    let what = format!("{version} to {listener}, {encoding}, {length} bytes {backend}");
                    let read =
                        |kind: &str| std::fs::read(scratch.join(&format!("{length}.{kind}"))).unwrap_or_default();
                    assert!(read("body") == text(length), "{what}");
                    let head = String::from_utf8(read("head")).expect("text");
                    let coded = (length >= 1024).then_some(encoding);
                    assert_eq!(field(&head, "content-encoding"), coded, "{what}:\n{head}");
                    assert_eq!(field(&head, "content-length").is_some(), coded.is_none(), "{what}:\n{head}");
                    let weak = field(&head, "etag").is_some_and(|tag| tag.starts_with("W/"));
                    assert_eq!(weak, coded.is_some(), "{what}:\n{head}");
                    assert_eq!(field(&head, "vary").is_some(), coded.is_some(), "{what}:\n{head}");
                    assert_eq!(field(&head, "accept-ranges").is_none(), coded.is_some(), "{what}:\n{head}");
                }
            }
        }
        for encoding in ENCODINGS {
            let label = [("encoding", encoding)];
            let coded = LENGTHS.iter().filter(|length| **length >= 1024);
            let sum = coded.clone().sum::<usize>() * clients.len();
            assert_eq!(engine.metric("propylon_compression_in_bytes_total", &label), sum as f64);
            let out = engine.metric("propylon_compression_out_bytes_total", &label);
            assert!(out > 0.0 && out < sum as f64 / 2.0, "{encoding}: {out} of {sum}");
            let responses = engine.metric("propylon_compressed_responses_total", &label);
            assert_eq!(responses, (coded.count() * clients.len()) as f64);
        }
        engine.metric_reaches("propylon_compression_memory_bytes", &[], 0.0);
    }
}

#[test]
fn a_head_says_what_has_become_of_the_body_and_nothing_that_held_for_the_other() {
    let body = text(5000);
    let fields = "Content-Type: text/html; charset=utf-8\r\nETag: \"abc\"\r\nVary: Origin\r\nAccept-Ranges: bytes\r\n\
                  Content-MD5: x\r\nRepr-Digest: sha-256=:x:\r\nContent-Digest: sha-256=:x:\r\nSet-Cookie: a=b\r\n\
                  Date: Fri, 27 Nov 2026 10:00:00 GMT\r\n";
    let origin = Origin::always(ok(fields, &body));
    let engine = engine(origin.address());
    let mut client = engine.client("plain");
    let response = client.ask(get("/", ""));
    let expected = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nVary: Origin\r\nSet-Cookie: a=b\r\n\
                    Date: Fri, 27 Nov 2026 10:00:00 GMT\r\nContent-Encoding: gzip\r\nETag: W/\"abc\"\r\n\
                    Vary: Accept-Encoding\r\nTransfer-Encoding: chunked\r\nVia: 1.1 propylon";
    assert_eq!(response.head.trim_end(), expected);
    assert_eq!(gunzip(&response.body), body);
    // HEAD is told the same, and nothing follows.
    client.send(get("/", "").replace("GET", "HEAD"));
    assert_eq!(client.read_head().trim_end(), expected);
    // The next response is where it should be.
    assert_eq!(gunzip(&client.ask(get("/", "")).body), body);
    assert!(engine.logged_path("/")["bytes_sent"].as_u64() < Some(4000), "what was sent is what counts");
}

/// The response to a request with these fields.
#[track_caller]
fn asked(client: &mut Client, path: &str, more: &str) -> Response {
    client.ask(get(path, more))
}

#[test]
fn what_must_not_be_changed_goes_as_it_is() {
    let body = text(4000);
    let sent = body.clone();
    let origin = Origin::answering(move |request| {
        let request = String::from_utf8_lossy(request);
        let path = request.split(' ').nth(1).unwrap_or_default();
        let strong = "ETag: \"x\"\r\nAccept-Ranges: bytes\r\n";
        match path {
            "/png" => ok("Content-Type: image/png\r\n", &sent),
            "/untyped" => ok(strong, &sent),
            "/coded" => ok(&format!("{TEXT}Content-Encoding: br\r\n{strong}"), &sent),
            "/no-transform" => ok(&format!("{TEXT}Cache-Control: public, no-transform\r\n{strong}"), &sent),
            "/grpc" => ok("Content-Type: application/grpc+json\r\n", &sent),
            "/small" => ok(&format!("{TEXT}{strong}"), &sent[..1023]),
            "/none" => b"HTTP/1.1 204 No Content\r\nContent-Type: text/plain\r\n\r\n".to_vec(),
            "/part" => {
                let fields = "Content-Type: text/plain\r\nContent-Range: bytes 0-1999/4000\r\nETag: \"x\"";
                let head = format!("HTTP/1.1 206 Partial Content\r\n{fields}\r\nContent-Length: 2000\r\n\r\n");
                [head.as_bytes(), &sent[..2000]].concat()
            }
            "/same-png" => b"HTTP/1.1 304 Not Modified\r\nContent-Type: image/png\r\nETag: \"x\"\r\n\r\n".to_vec(),
            "/same" => b"HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n".to_vec(),
            _ => ok(&format!("{TEXT}{strong}"), &sent),
        }
    });
    let engine = engine(origin.address());
    let mut client = engine.client("plain");
    let plain = |response: &Response| response.field("Content-Encoding").is_none() && response.field("Vary").is_none();
    for path in ["/png", "/untyped", "/no-transform", "/grpc"] {
        let response = asked(&mut client, path, "");
        assert!(plain(&response) && response.body == body, "{path}:\n{}", response.head);
    }
    let response = asked(&mut client, "/coded", "");
    assert_eq!((response.field("Content-Encoding"), response.field("ETag")), (Some("br"), Some("\"x\"")));
    assert!(response.body == body && response.field("Vary").is_none());
    let response = asked(&mut client, "/small", "");
    assert!(plain(&response) && response.body == body[..1023]);
    assert_eq!(response.field("Accept-Ranges"), Some("bytes"));
    assert!(plain(&asked(&mut client, "/none", "")));
    let response = asked(&mut client, "/part", "Range: bytes=0-1999\r\n");
    assert!(plain(&response) && response.status == 206 && response.body == body[..2000]);
    assert_eq!(response.field("ETag"), Some("\"x\""));
    // A server that does not know ranges; other requests would get it compressed.
    let plain_of = |response: &Response| (response.field("Content-Encoding").map(str::to_owned), response.body.clone());
    for more in ["Range: bytes=0-9\r\n", "Cache-Control: no-transform\r\n"] {
        let response = asked(&mut client, "/", more);
        assert_eq!(plain_of(&response), (None, body.clone()));
        let tag = (response.field("ETag"), response.field("Vary"), response.field("Accept-Ranges"));
        assert_eq!(tag, (Some("\"x\""), Some("Accept-Encoding"), Some("bytes")));
    }
    for accept in ["", "Accept-Encoding: deflate\r\n", "Accept-Encoding: gzip;q=0, *;q=0\r\n"] {
        let response = client.ask(format!("GET / HTTP/1.1\r\nHost: a.example\r\n{accept}\r\n"));
        assert_eq!(plain_of(&response), (None, body.clone()), "{accept}");
        assert_eq!(response.field("Vary"), Some("Accept-Encoding"), "{accept}");
    }
    let response = client.ask("GET /small HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip, identity;q=0\r\n\r\n");
    assert_eq!(gunzip(&response.body), body[..1023], "a client that takes no other");
    // The copy that a client has is the compressed one if its tag is.
    for (known, tag) in [("W/\"x\"", "W/\"x\""), ("\"x\"", "\"x\"")] {
        let response = asked(&mut client, "/same", &format!("If-None-Match: {known}\r\n"));
        let told = (response.status, response.field("ETag"), response.field("Vary"));
        assert_eq!(told, (304, Some(tag), Some("Accept-Encoding")));
    }
    assert!(plain(&asked(&mut client, "/same-png", "If-None-Match: \"x\"\r\n")));
    assert!(origin.received_text().contains("If-None-Match: W/\"x\""), "servers compare tags by themselves");
    for (reason, count) in [("range", 1.0), ("not-accepted", 4.0), ("credentials", 0.0)] {
        let label = [("reason", reason)];
        assert_eq!(engine.metric("propylon_uncompressed_responses_total", &label), count, "{reason}");
    }
}

#[test]
fn what_a_route_makes_of_a_head_decides_and_not_what_came() {
    let body = text(4000);
    let sent = body.clone();
    let origin = Origin::answering(move |request| match request.starts_with(b"GET /typed") {
        true => ok(&format!("{TEXT}Cache-Control: no-transform\r\nETag: \"x\"\r\nVary: Accept-Encoding\r\n"), &sent),
        false => ok("", &sent),
    });
    for (changes, path, is_coded, tag) in [
        ("set = { Content-Type = \"text/css\" }", "/", true, None),
        ("set = { Content-Type = \"image/png\", Cache-Control = \"public\" }", "/typed", false, Some("\"x\"")),
        ("set = { Content-Type = \"text/css\", Cache-Control = \"no-transform\" }", "/", false, None),
        ("set = { Cache-Control = \"public\", Accept-Ranges = \"bytes\" }", "/typed", true, Some("W/\"x\"")),
        ("remove = [\"Cache-Control\"]", "/typed", true, Some("W/\"x\"")),
        ("remove = [\"Cache-Control\", \"Content-Type\"]", "/typed", false, Some("\"x\"")),
    ] {
        let engine = Engine::start(&config(&[origin.address()], "", &format!("{STEP}\nresponse = {{ {changes} }}")));
        let response = asked(&mut engine.client("plain"), path, "");
        assert_eq!(
            (response.field("Content-Encoding").is_some(), response.field("ETag")),
            (is_coded, tag),
            "{changes}"
        );
        let vary = if is_coded { &["Accept-Encoding"][..] } else { &[] };
        assert!(path == "/typed" && !is_coded || response.fields("Vary") == vary, "{changes}: {}", response.head);
        assert_eq!(response.field("Accept-Ranges"), None, "{changes}");
        assert!(if is_coded { gunzip(&response.body) } else { response.body.clone() } == body, "{changes}");
        let mut http2 = Http2::start(&engine);
        let fields = [request("GET", path).as_slice(), &[("accept-encoding", "gzip")]].concat();
        http2.headers(1, END_HEADERS | END_STREAM, &fields);
        let (_, data) = http2.response(1);
        assert!(if is_coded { gunzip(&data) } else { data } == body, "{changes} over HTTP/2");
    }
}

#[test]
fn a_cookie_of_the_engine_and_vary_go_on_together() {
    let scratch = Scratch::new();
    let key = scratch.write("sticky.key", [7; 32]);
    let sticky = format!("sticky = {{ cookie = \"seat\", key_file = \"{}\" }}", key.display());
    let body = text(4000);
    let origin = Origin::always(ok(TEXT, &body));
    let engine = Engine::start(&config(&[origin.address()], &sticky, STEP));
    let mut client = engine.client("plain");
    for accept in ["deflate", "gzip"] {
        let response = client.ask(format!("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {accept}\r\n\r\n"));
        assert!(response.field("Set-Cookie").is_some_and(|cookie| cookie.starts_with("seat=")), "{}", response.head);
        assert_eq!(response.field("Vary"), Some("Accept-Encoding"));
        let is_coded = response.field("Content-Encoding").is_some();
        assert_eq!(is_coded, accept == "gzip");
        assert_eq!(if is_coded { gunzip(&response.body) } else { response.body }, body);
    }
    let mut http2 = Http2::start(&engine);
    let fields = [request("GET", "/").as_slice(), &[("accept-encoding", "deflate")]].concat();
    http2.headers(1, END_HEADERS | END_STREAM, &fields);
    assert_eq!(http2.response(1).1, body);
}

/// Each event is with the client before the server says the next one.
#[test]
fn events_are_with_the_client_at_once() {
    for (version, listener) in [("--http1.1", "plain"), ("--http1.0", "plain"), ("--http2", "web")] {
        for encoding in ENCODINGS {
            let (next, may_go_on) = channel::<()>();
            let may_go_on = std::sync::Mutex::new(may_go_on);
            let origin = Origin::scripted(move |peer| {
                peer.read_request();
                peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
                let may_go_on = may_go_on.lock().expect("one connection");
                for event in 1..=20 {
                    let data = format!("data: {event}\n");
                    peer.send(format!("{:x}\r\n{data}\r\n", data.len()));
                    if may_go_on.recv().is_err() {
                        return;
                    }
                }
                peer.send("0\r\n\r\n");
            });
            let engine = engine(origin.address());
            let mut command = Command::new("curl");
            command.args(["--silent", "--show-error", "--no-buffer", "--compressed", "--max-time", "60", version]);
            command.args(["--header", &format!("Accept-Encoding: {encoding}"), "--cacert"]);
            command.arg(Certificates::shared().ca()).arg(format!("{}/events", engine.url(listener)));
            let mut child = command.stdout(Stdio::piped()).spawn().expect("curl");
            let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
            for event in 1..=20 {
                let line = lines.next().expect("another event").expect("text");
                assert_eq!(line, format!("data: {event}"), "{version}, {encoding}");
                next.send(()).expect("the server waits");
            }
            assert!(lines.next().is_none());
            assert!(child.wait().expect("curl").success(), "{version}, {encoding}");
            assert_eq!(engine.metric("propylon_compressed_responses_total", &[("encoding", encoding)]), 1.0);
        }
    }
}

#[test]
fn trailers_follow_but_for_digests_of_the_other_bytes() {
    let body = text(40_000);
    let pieces: Vec<&[u8]> = body.chunks(777).collect();
    let head =
        format!("HTTP/1.1 200 OK\r\n{TEXT}Trailer: X-Time, Content-Digest\r\nTransfer-Encoding: chunked\r\n\r\n");
    let chunks = in_chunks(&pieces, "X-Time: 3\r\nContent-Digest: sha-256=:x:\r\n");
    let origin = Origin::always([head.as_bytes(), &chunks].concat());
    let engine = engine(origin.address());
    let response = engine.client("plain").ask(get("/", "TE: trailers\r\n"));
    assert_eq!(gunzip(&response.body), body);
    assert_eq!(response.trailers, ["X-Time: 3"]);
    assert_eq!(response.fields("Trailer"), ["X-Time"], "what does not come is not announced");
    let mut http2 = Http2::start(&engine);
    let fields = [request("GET", "/").as_slice(), &[("accept-encoding", "gzip")]].concat();
    http2.headers(1, END_HEADERS | END_STREAM, &fields);
    let (_, data) = http2.response(1);
    assert_eq!(gunzip(&data), body);
}

#[test]
fn requests_in_one_write_get_their_responses_in_order_and_one_connection_serves_them() {
    let origin = Origin::answering(|request| {
        let request = String::from_utf8_lossy(request);
        let length: usize = request.split([' ', '/']).nth(2).and_then(|text| text.parse().ok()).unwrap_or(0);
        ok(TEXT, &text(length))
    });
    let engine = engine(origin.address());
    let mut client = engine.client("plain");
    let lengths = [5000, 10, 200_000, 1024, 0, 70_000];
    client.send(lengths.map(|length| get(&format!("/{length}"), "")).concat());
    for length in lengths {
        let response = client.read_response();
        let is_coded = response.field("Content-Encoding").is_some();
        assert_eq!(is_coded, length >= 1024);
        assert!((if is_coded { gunzip(&response.body) } else { response.body }) == text(length), "{length}");
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn a_body_that_its_server_cuts_short_is_cut_short_for_its_client() {
    let body = text(200_000);
    for head in ["Content-Length: 200000", "Transfer-Encoding: chunked"] {
        let (head, body) = (head.to_owned(), body.clone());
        let (close, may_close) = channel::<()>();
        let may_close = std::sync::Mutex::new(may_close);
        let origin = Origin::scripted(move |peer| {
            peer.read_request();
            peer.send(format!("HTTP/1.1 200 OK\r\n{TEXT}{head}\r\n\r\n"));
            if head.starts_with('T') {
                peer.send(in_chunks(&[&body[..100_000]], "").strip_suffix(b"0\r\n\r\n").expect("the last chunk"));
            } else {
                peer.send(&body[..100_000]);
            }
            let _ = may_close.lock().expect("one at a time").recv();
            peer.close();
        });
        let engine = engine(origin.address());
        for encoding in ENCODINGS {
            let mut client = engine.client("plain");
            client.send(format!("GET /cut HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {encoding}\r\n\r\n"));
            let head = client.read_head();
            assert!(head.contains(&format!("Content-Encoding: {encoding}\r\n")), "{head}");
            close.send(()).expect("the server waits");
            let (rest, ending) = client.read_to_end();
            assert!(!rest.ends_with(b"0\r\n\r\n"), "{encoding}: it passes for whole, {ending:?}");
            let curl_of = |version: &str, listener: &str| {
                let accept = format!("Accept-Encoding: {encoding}");
                let url = format!("{}/cut", engine.url(listener));
                close.send(()).expect("the server will");
                curl(&[version, "--compressed", "--header", &accept, "--output", "/dev/null", &url]).status.success()
            };
            assert!(!curl_of("--http1.1", "plain") && !curl_of("--http2", "web"), "{encoding}");
        }
        let mut http2 = Http2::start(&engine);
        let fields = [request("GET", "/cut").as_slice(), &[("accept-encoding", "zstd")]].concat();
        http2.headers(1, END_HEADERS | END_STREAM, &fields);
        assert_eq!(http2.next_of(1).kind, HEADERS);
        close.send(()).expect("the server waits");
        let last = loop {
            let frame = http2.next_of(1);
            if frame.kind != DATA {
                break frame;
            }
            assert!(!frame.ends());
        };
        assert_eq!(last.kind, RST_STREAM);
        assert_eq!(engine.logged_path("/cut")["fault"], "body-cut-short");
    }
}

#[test]
fn a_client_of_http_1_0_gets_it_until_the_end_of_its_connection() {
    let body = text(90_000);
    let origin = Origin::always(ok(TEXT, &body));
    let engine = engine(origin.address());
    let mut client = engine.client("plain");
    client.send("GET / HTTP/1.0\r\nAccept-Encoding: gzip\r\nConnection: keep-alive\r\n\r\n");
    let head = client.read_head();
    assert!(head.contains("Connection: close\r\n") && !head.contains("Transfer-Encoding"), "{head}");
    let (rest, ending) = client.read_to_end();
    assert_eq!(ending, Ending::Clean);
    assert_eq!(gunzip(&rest), body);
}

#[test]
fn secrets_are_compressed_for_pages_of_their_own_site_alone() {
    let body = text(4000);
    let origin = Origin::always(ok(TEXT, &body));
    let engine = engine(origin.address());
    let mut client = engine.client("web");
    let mut is_coded = |more: &str| asked(&mut client, "/", more).field("Content-Encoding").is_some();
    assert!(is_coded("") && is_coded("Sec-Fetch-Site: cross-site\r\n"));
    assert!(is_coded("Authorization: Bearer x\r\n"));
    assert!(!is_coded("Cookie: session=1\r\n"));
    assert!(!is_coded("Cookie: session=1\r\nSec-Fetch-Site: cross-site\r\n"));
    assert!(!is_coded("Authorization: Basic eDp5\r\nOrigin: https://b.example\r\n"));
    assert!(is_coded("Cookie: session=1\r\nSec-Fetch-Site: same-origin\r\n"));
    assert!(is_coded("Cookie: session=1\r\nReferer: https://a.example/page\r\n"));
    assert!(!is_coded("Cookie: session=1\r\nReferer: http://a.example/page\r\n"));
    assert_eq!(engine.metric("propylon_uncompressed_responses_total", &[("reason", "credentials")]), 4.0);
    let always =
        "compress = { busy_max = 100, credentials = \"always\", types = [\"text/plain\"], encodings = [\"gzip\"] }";
    engine.rewrite(&config(&[origin.address()], "", always));
    engine.reload();
    let mut client = engine.client("plain");
    assert!(asked(&mut client, "/", "Cookie: a=b\r\n").field("Content-Encoding").is_some());
}

#[test]
fn a_client_that_does_not_read_holds_no_more_than_buffers() {
    // Noise, of which compression makes nothing smaller.
    let mut body = vec![0; 48 << 20];
    fastrand::Rng::with_seed(3).fill(&mut body);
    let sent = body.clone();
    let origin = Origin::scripted(move |peer| {
        while peer.read_request().is_some() {
            peer.send(ok(TEXT, &sent));
        }
    });
    let engine = engine(origin.address());
    let before = engine.rss();
    let mut client = engine.client("plain");
    client.send("GET /long HTTP/1.0\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
    let head = client.read_head();
    assert!(head.contains("Content-Encoding: gzip"), "{head}");
    let taken = || engine.metric("propylon_compression_in_bytes_total", &[("encoding", "gzip")]);
    let mut last = -1.0;
    holds("nothing more is read of the server", || {
        std::thread::sleep(Duration::from_millis(300));
        let before = std::mem::replace(&mut last, taken());
        before == last
    });
    assert!(last < f64::from(16 << 20), "{last} bytes were read");
    assert!(engine.rss() < before + (24 << 20), "{} KiB more", (engine.rss() - before) >> 10);
    let (rest, ending) = client.read_to_end();
    assert_eq!(ending, Ending::Clean);
    assert!(gunzip(&rest) == body);
    assert_eq!(engine.metric("propylon_server_faults_total", &[("reason", "body-cut-short")]), 0.0);
}

#[test]
fn a_response_that_does_not_wait_for_its_request_goes_as_it_is() {
    let body = text(4000);
    let sent = body.clone();
    let origin = Origin::scripted(move |peer| {
        peer.read_head();
        peer.send(ok(TEXT, &sent));
    });
    let engine = engine(origin.address());
    let mut client = engine.client("plain");
    client.send("POST / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\nContent-Length: 1000000\r\n\r\n");
    let response = client.read_response();
    assert_eq!((response.field("Content-Encoding"), &response.body), (None, &body));
}

#[test]
fn answers_of_the_engine_are_compressed_as_servers_are() {
    let page = String::from_utf8(text(40_000)).expect("text");
    let files = [("page.html", &*page), ("gone.html", &*page)];
    let server = Origin::always("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    let config = format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\n[backend.app]\nservers = [\"{}\"]\n\
         [[route]]\npath = \"/page\"\nrespond = {{ body_file = \"page.html\" }}\ncompress = true\n\
         [[route]]\npath = \"/short\"\nrespond = {{ body = \"short\" }}\ncompress = true\n\
         [[route]]\npath = \"/text\"\nrespond = {{ status = 403, body = \"{}\" }}\ncompress = {{ encodings = [\"gzip\"] }}\n\
         [[route]]\npath = \"/gone\"\nbackend = \"app\"\ncompress = true\nerror_pages = {{ 404 = \"gone.html\" }}\n\
         intercept_errors = true\n\
         [[route]]\npath = \"/as-is\"\nrespond = {{ body_file = \"page.html\" }}\n",
        server.address(),
        "no ".repeat(1_000)
    );
    let engine = Engine::start_beside(&files, &config);
    let mut client = engine.client("plain");
    let plain = client.ask("GET /page HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let tag = plain.field("ETag").expect("a tag").to_owned();
    let about = (plain.field("Content-Encoding"), plain.field("Vary"), plain.field("Accept-Ranges"));
    assert_eq!((about, plain.text()), ((None, Some("Accept-Encoding"), Some("bytes")), page.clone()));
    // The first is compressed, the second is what was kept of it.
    for _ in 0..2 {
        for (path, status, wanted) in
            [("/page", 200, &page), ("/text", 403, &"no ".repeat(1_000)), ("/gone", 404, &page)]
        {
            let response = asked(&mut client, path, "");
            let about = (response.status, response.field("Content-Encoding"), response.field("Vary"));
            assert_eq!(about, (status, Some("gzip"), Some("Accept-Encoding")), "{path}");
            assert_eq!(response.field("Accept-Ranges"), None);
            assert!(gunzip(&response.body) == wanted.as_bytes() && response.body.len() < wanted.len() / 2, "{path}");
        }
    }
    let head = {
        client.send("HEAD /page HTTP/1.1\r\nHost: a.test\r\nAccept-Encoding: gzip\r\n\r\n");
        client.read_head()
    };
    let length = asked(&mut client, "/page", "").body.len();
    assert!(head.contains(&format!("\r\nContent-Length: {length}\r\n")), "{head}");
    let weak = format!("W/{tag}");
    let known = asked(&mut client, "/page", &format!("If-None-Match: {weak}\r\n"));
    assert_eq!((known.status, known.field("ETag"), known.field("Vary")), (304, Some(&*weak), Some("Accept-Encoding")));
    // A copy that is not compressed depends on the request as much.
    for accept in ["", "Accept-Encoding: gzip\r\n"] {
        let ask = format!("GET /page HTTP/1.1\r\nHost: a.test\r\n{accept}If-None-Match: {tag}\r\n\r\n");
        let known = client.ask(ask);
        assert_eq!((known.status, known.field("ETag")), (304, Some(&*tag)), "{accept}");
        assert_eq!(known.field("Vary"), Some("Accept-Encoding"), "{accept}");
    }
    let url = format!("http://{}/page", engine.address("plain"));
    let known = format!("If-None-Match: {tag}");
    let said = curl(&["--http2-prior-knowledge", "-i", "--header", &known, &url]).ok().text();
    assert!(said.starts_with("HTTP/2 304") && said.contains("vary: Accept-Encoding"), "{said}");
    let part = asked(&mut client, "/page", "Range: bytes=10-19\r\n");
    let about = (part.status, part.field("ETag"), part.field("Vary"), part.text());
    assert_eq!(about, (206, Some(&*tag), Some("Accept-Encoding"), page[10..20].to_owned()));
    for path in ["/short", "/as-is"] {
        let response = asked(&mut client, path, "");
        assert_eq!((response.field("Content-Encoding"), response.field("Vary")), (None, None), "{path}");
    }
    let secret = asked(&mut client, "/page", "Cookie: a=b\r\n");
    assert_eq!((secret.field("Content-Encoding"), secret.field("Vary")), (None, Some("Accept-Encoding")));
    let url = format!("http://{}/page", engine.address("plain"));
    let second = curl(&["--http2-prior-knowledge", "-i", "--compressed", &url]).ok().text();
    let (head, body) = second.split_once("\r\n\r\n").expect("a head");
    assert!(head.contains("content-encoding: ") && head.contains("etag: W/") && body == page, "{head}");
}

#[test]
fn a_core_that_has_too_much_to_do_compresses_less() {
    let origin = Origin::always(ok(TEXT, &text(200_000)));
    let step = "compress = { busy_max = 1, level = { zstd = 9 } }";
    let engine = Engine::start(&config(&[origin.address()], "", step));
    let mut client = engine.client("plain");
    eventually(Duration::from_secs(60), "a response goes uncompressed", || {
        let response = client.ask("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: zstd\r\n\r\n");
        response.field("Content-Encoding").is_none().then_some(())
    });
    assert!(engine.metric("propylon_uncompressed_responses_total", &[("reason", "busy")]) >= 1.0);
}

#[test]
fn clients_that_go_away_give_their_encoders_back() {
    let origin = Origin::scripted(|peer| {
        peer.read_request();
        peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n");
        let mut rest = Vec::new();
        while let Some(more) = peer.read_some() {
            rest.extend(more);
        }
    });
    let engine = engine(origin.address());
    let mut clients: Vec<Client> = (0..5).map(|_| engine.client("plain")).collect();
    for client in &mut clients {
        client.send(get("/", ""));
        assert!(client.read_head().contains("Content-Encoding: gzip"));
    }
    engine.metric_reaches("propylon_compression_memory_bytes", &[], f64::from(5 * 384 * 1024));
    drop(clients);
    engine.metric_reaches("propylon_compression_memory_bytes", &[], 0.0);
}
