//! Calls of gRPC as browsers make them, to a server of gRPC by other people.

use std::time::Duration;

use propylon_e2e::engine::with;
use propylon_e2e::frames::{DATA, END_STREAM, Http2, request as asking};
use propylon_e2e::program::curl;
use propylon_e2e::python::PythonServer;
use propylon_e2e::{Ending, Engine, Origin, Response, Scratch, holds};

const LIMIT: Duration = Duration::from_secs(60);
const WEB: &str = "application/grpc-web+proto";
const TEXT: &str = "application/grpc-web-text";

/// A server of gRPC behind an engine whose route is for browsers too.
struct Service {
    _server: PythonServer,
    engine: Engine,
}

impl Service {
    fn new(more: &str) -> Service {
        let server = PythonServer::start("grpc_server.py", &[]);
        let config = format!("{}grpc_web = true\n{more}\n", with(&[server.address()], "", "protocol = \"h2\""));
        Service { engine: Engine::start(&config), _server: server }
    }

    /// One call over HTTP/1.1, in the clear and over TLS; both are answered alike.
    #[track_caller]
    fn call(&self, method: &str, kind: &str, body: &[u8]) -> Response {
        let ask = |listener: &str| {
            let mut client = self.engine.client(listener);
            client.read_timeout(LIMIT);
            client.ask(request(method, kind, &format!("Content-Length: {}\r\n", body.len()), body))
        };
        let (plain, secure) = (ask("plain"), ask("web"));
        // Base64 is padded where a part of the answer ends, and parts are cut as they come.
        let is_text = |answer: &Response| kind == TEXT && answer.status == 200;
        let read = |answer: &Response| if is_text(answer) { decoded(&answer.body) } else { answer.body.clone() };
        assert_eq!((plain.status, read(&plain)), (secure.status, read(&secure)));
        plain
    }
}

fn request(method: &str, kind: &str, fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /e2e.Peer/{method} HTTP/1.1\r\nHost: a.example\r\nContent-Type: {kind}\r\nX-Grpc-Web: 1\r\n{fields}\r\n"
    );
    [head.as_bytes(), body].concat()
}

fn message(text: &[u8]) -> Vec<u8> {
    [&[0][..], &(text.len() as u32).to_be_bytes(), text].concat()
}

/// Frames of a body: their first bytes, and what is in them.
#[track_caller]
fn frames(mut body: &[u8]) -> Vec<(u8, String)> {
    let mut frames = Vec::new();
    while let [kind, a, b, c, d, rest @ ..] = body {
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        frames.push((*kind, String::from_utf8_lossy(&rest[..length]).into_owned()));
        body = &rest[length..];
    }
    assert!(body.is_empty(), "{body:?}");
    frames
}

/// Output of `base64`, the program.
fn base64(arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut command = std::process::Command::new("base64");
    command.args(arguments);
    propylon_e2e::program::run(command, input, LIMIT).ok().stdout
}

fn encoded(data: &[u8]) -> Vec<u8> {
    base64(&["--wrap=0"], data)
}

fn decoded(text: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(text).expect("base64");
    let mut segments = Vec::new();
    let mut from = 0;
    while from < text.len() {
        let end = text[from..].find('=').map_or(text.len(), |at| from + at.next_multiple_of(4));
        segments.extend(base64(&["--decode"], &text.as_bytes()[from..end]));
        from = end;
    }
    segments
}

fn status(frames: &[(u8, String)]) -> &str {
    let (kind, lines) = frames.last().expect("a frame");
    assert_eq!(*kind, 0x80);
    lines.lines().find_map(|line| line.strip_prefix("grpc-status: ")).unwrap_or_else(|| panic!("{lines:?}"))
}

/// Lines of an answer's last frame, in base64 or not.
fn last(answer: &Response) -> String {
    let is_text = answer.field("Content-Type") == Some(TEXT);
    let body = if is_text { decoded(&answer.body) } else { answer.body.clone() };
    let (kind, lines) = frames(&body).pop().expect("a frame");
    assert_eq!(kind, 0x80);
    lines
}

#[test]
fn a_call_and_its_answer_are_those_of_grpc_with_trailers_as_the_last_frame() {
    let service = Service::new("");
    let answer = service.call("Unary", WEB, &message(b"hello"));
    assert_eq!((answer.status, answer.field("Content-Type")), (200, Some("application/grpc-web")));
    let found = frames(&answer.body);
    assert_eq!(found[0], (0, "hello".into()));
    assert_eq!((found.len(), status(&found)), (2, "0"));
    assert!(answer.fields("grpc-status").is_empty() && answer.trailers.is_empty());
    let line = service.engine.logged_path("/e2e.Peer/Unary");
    assert_eq!((&line["protocol"], &line["status"]), (&"HTTP/1.1".into(), &200.into()));
}

#[test]
fn calls_in_base64_are_answered_in_it() {
    // Calls are never held, nor are their answers.
    let service = Service::new("buffer = { request = { disk = 0 }, response = { disk = 0 } }");
    for text in [&b"h"[..], b"he", b"hel", b"", &[b'x'; 100_000]] {
        let answer = service.call("Unary", TEXT, &encoded(&message(text)));
        assert_eq!((answer.status, answer.field("Content-Type")), (200, Some(TEXT)), "{}", answer.text());
        let found = frames(&decoded(&answer.body));
        assert_eq!(found[0], (0, String::from_utf8_lossy(text).into_owned()));
        assert_eq!((found.len(), status(&found)), (2, "0"));
    }
    // In the other form, where the client says so; and padded in the midst.
    let accept = format!("Accept: {WEB}\r\n");
    let whole = message(b"hello");
    let body = [encoded(&whole[..4]), encoded(&whole[4..])].concat();
    let fields = format!("{accept}Content-Length: {}\r\n", body.len());
    let answer = service.engine.client("plain").ask(request("Unary", TEXT, &fields, &body));
    assert_eq!((answer.field("Content-Type"), &frames(&answer.body)[0].1[..]), (Some("application/grpc-web"), "hello"));
    let held = ["request", "request-on-disk", "response"].map(|of| ("propylon_held_bodies_total", [("of", of)]));
    assert!(held.iter().all(|(metric, labels)| service.engine.metric(metric, labels) == 0.0));
}

#[test]
fn what_is_no_base64_or_too_long_is_refused() {
    let service = Service::new("body_limit = \"9MiB\"");
    let answer = service.call("Unary", TEXT, b"!!!!");
    assert_eq!(
        (answer.status, &last(&answer)[..]),
        (200, "grpc-status: 13\r\ngrpc-message: 400 Bad Request: bad-body\r\n")
    );
    let ask = |fields: &str, body: &[u8]| {
        let answer = service.engine.client("plain").ask(request("Unary", TEXT, fields, body));
        let words = last(&answer);
        words.split(':').nth(2).map(|words| words.trim().to_owned()).filter(|_| !words.starts_with("grpc-status: 0"))
    };
    assert_eq!(ask("Content-Length: 4\r\n", b"====").as_deref(), Some("400 Bad Request"));
    assert_eq!(ask("Content-Length: 8000000\r\n", b"AAAA").as_deref(), Some("413 Content Too Large"));
    assert_eq!(ask("Transfer-Encoding: chunked\r\n", b"4\r\nAAAA\r\n").as_deref(), Some("411 Length Required"));
    let whole = encoded(&message(b"hi"));
    let chunk = [format!("{:x}\r\n", whole.len()).as_bytes(), &whole, b"\r\n0\r\n\r\n"].concat();
    assert_eq!(ask("Transfer-Encoding: chunked\r\n", &chunk), None);
    // A connection serves on behind such a body, and behind one that comes in pieces.
    let mut client = service.engine.client("plain");
    for part in request("Unary", TEXT, &format!("Content-Length: {}\r\n", whole.len()), &whole).chunks(7) {
        client.send(part);
    }
    assert_eq!(frames(&decoded(&client.read_response().body))[0].1, "hi");
    let plain = message(b"again");
    let answer = client.ask(request("Unary", WEB, &format!("Content-Length: {}\r\n", plain.len()), &plain));
    assert_eq!(frames(&answer.body)[0].1, "again");
}

#[test]
fn streams_of_messages_come_as_they_are_sent_and_end_with_their_status() {
    let service = Service::new("");
    let answer = service.call("Give", WEB, &message(b"50"));
    let found = frames(&answer.body);
    assert_eq!((found.len(), &found[49].1[..], status(&found)), (51, "message 49", "0"));
    let answer = service.call("FailLate", TEXT, &encoded(&message(b"")));
    let found = frames(&decoded(&answer.body));
    assert_eq!((found.len(), status(&found)), (4, "8"));
    assert!(found[3].1.contains("grpc-message: that was all\r\n"), "{found:?}");
    // Messages of a stream that hangs are there before its end.
    let mut client = service.engine.client("plain");
    let body = message(b"web");
    client.send(request("Hang", WEB, &format!("Content-Length: {}\r\n", body.len()), &body));
    client.read_head();
    assert_eq!(client.read_exact(15), b"a\r\n\0\0\0\0\x05begun\r\n");
    drop(client);
    service._server.says("ended web");
}

#[test]
fn a_call_that_fails_at_once_has_its_status_in_the_body() {
    let service = Service::new("");
    for (kind, body) in [(WEB, message(b"not here")), (TEXT, encoded(&message(b"not here")))] {
        let answer = service.call("Fail", kind, &body);
        let text = if kind == TEXT { decoded(&answer.body) } else { answer.body.clone() };
        let found = frames(&text);
        assert_eq!((answer.status, found.len(), status(&found)), (200, 1, "5"), "{found:?}");
        assert!(found[0].1.contains("grpc-message: not here\r\n") && answer.fields("grpc-status").is_empty());
    }
}

#[test]
fn clients_of_http2_are_answered_the_same_and_calls_of_grpc_pass() {
    let service = Service::new("");
    let scratch = Scratch::new();
    for (kind, is_text) in [(WEB, false), (TEXT, true)] {
        let (body, out) = (message(b"over two"), scratch.join("out"));
        let body = scratch.write("body", if is_text { encoded(&body) } else { body });
        let url = format!("{}/e2e.Peer/Unary", service.engine.url("web"));
        let (data, kind) = (format!("@{}", body.display()), format!("Content-Type: {kind}"));
        let out_text = out.display().to_string();
        let arguments = ["--http2", "--data-binary", &data, "--header", &kind, "--output", &out_text, &url];
        curl(&arguments).ok();
        let answer = std::fs::read(&out).expect("a body");
        let found = frames(&if is_text { decoded(&answer) } else { answer });
        assert_eq!((&found[0].1[..], status(&found)), ("over two", "0"));
    }
    let target = format!("localhost:{}", service.engine.address("plain").port());
    propylon_e2e::python::python("grpc_client.py", &["unary", &target]).ok();
    holds("no stream is left", || service.engine.metric("propylon_http2_streams", &[]) == 0.0);
}

#[test]
fn pages_of_other_origins_may_call_and_what_is_no_answer_of_grpc_stays() {
    let cors = "cors = { origins = [\"https://shop.example\"], headers = [\"content-type\", \"x-grpc-web\"], max_age = \"60s\" }";
    let service = Service::new(cors);
    let preflight = "OPTIONS /e2e.Peer/Unary HTTP/1.1\r\nHost: a.example\r\nOrigin: https://shop.example\r\n\
                     Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: content-type,x-grpc-web\r\n\r\n";
    let answer = service.engine.client("plain").ask(preflight);
    assert_eq!((answer.status, answer.field("Access-Control-Allow-Origin")), (204, Some("https://shop.example")));
    let body = message(b"hi");
    let fields = format!("Origin: https://shop.example\r\nContent-Length: {}\r\n", body.len());
    let answer = service.engine.client("plain").ask(request("Unary", WEB, &fields, &body));
    assert_eq!(answer.field("Access-Control-Allow-Origin"), Some("https://shop.example"));
    assert_eq!(status(&frames(&answer.body)), "0");
    // A server of HTTP/1.1 behind another engine answers with a page.
    let page = Origin::always("HTTP/1.1 403 Forbidden\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nno");
    let behind = Engine::start(&with(&[page.address()], "", ""));
    let config = format!("{}grpc_web = true\n", with(&[behind.address("plain")], "", "protocol = \"h2\""));
    let engine = Engine::start(&config);
    let answer = engine.client("plain").ask(request("Unary", WEB, &fields, &body));
    assert_eq!((answer.status, answer.field("Content-Type"), answer.text()), (403, Some("text/html"), "no".into()));
    let heads = page.received_text();
    assert!(heads.contains("application/grpc+proto\r\n") && !heads.contains("grpc-web+"), "{heads}");
}

#[test]
fn a_client_that_leaves_with_half_a_body_ends_its_call() {
    let service = Service::new("");
    let mut client = service.engine.client("plain");
    client.send(request("Unary", TEXT, "Content-Length: 400\r\n", b"AAAA"));
    client.finish();
    assert_eq!(client.ending(), Ending::Clean);
    assert_eq!(service.engine.logged("the call", |_| true)["fault"], "client-closed");
}

#[test]
fn what_the_engine_refuses_itself_ends_the_call_with_a_status_that_pages_can_read() {
    let cors = "cors = { origins = [\"https://shop.example\"] }";
    let service = Service::new(&format!("{cors}\nlimit = [{{ rate = \"1/h\", burst = 1, key = \"all\" }}]"));
    service.engine.client("plain").get("/");
    for (kind, body) in [(WEB, message(b"hi")), (TEXT, encoded(&message(b"hi")))] {
        for listener in ["plain", "web"] {
            let fields = format!("Origin: https://shop.example\r\nContent-Length: {}\r\n", body.len());
            let answer = service.engine.client(listener).ask(request("Unary", kind, &fields, &body));
            let wanted = "grpc-status: 14\r\ngrpc-message: 429 Too Many Requests: rate-limited\r\n";
            assert_eq!((answer.status, &last(&answer)[..]), (200, wanted));
            assert!(answer.field("Content-Type").is_some_and(|kind| kind.starts_with("application/grpc-web")));
            assert_eq!(answer.field("Access-Control-Allow-Origin"), Some("https://shop.example"));
            assert!(answer.field("Retry-After").is_some() && answer.fields("grpc-status").is_empty());
        }
    }
    let line = service.engine.logged_path("/e2e.Peer/Unary");
    assert_eq!((&line["status"], &line["fault"]), (&429.into(), &"rate-limited".into()));
    // Over HTTP/2 as well; and who does not speak gRPC-Web is answered as ever.
    let scratch = Scratch::new();
    let (body, url) = (scratch.write("body", message(b"hi")), format!("{}/e2e.Peer/Unary", service.engine.url("web")));
    let (data, kind) = (format!("@{}", body.display()), format!("Content-Type: {WEB}"));
    let said = curl(&["--http2", "--data-binary", &data, "--header", &kind, "-w", "%{http_code}", &url]).ok().text();
    assert!(said.contains("grpc-status: 14\r\n") && said.ends_with("200"), "{said}");
    let said = curl(&["--http2", "--data-binary", &data, "-w", "%{http_code}", &url]).ok().text();
    assert_eq!(said, "429 Too Many Requests: rate-limited\n429");
}

#[test]
fn calls_in_base64_go_to_the_fallback_and_are_told_to_send_their_bodies() {
    let server = PythonServer::start("grpc_server.py", &[]);
    let config = with(&[propylon_e2e::origin::dead()], "", "protocol = \"h2\"");
    let fallback = format!(
        "grpc_web = true\nfallback = \"other\"\n[backend.other]\nservers = [\"{}\"]\nprotocol = \"h2\"\n",
        server.address()
    );
    let engine = Engine::start(&format!("{config}{fallback}"));
    let body = encoded(&message(&[b'x'; 50_000]));
    let fields = format!("Expect: 100-continue\r\nContent-Length: {}\r\n", body.len());
    let mut client = engine.client("plain");
    client.send(request("Unary", TEXT, &fields, b""));
    assert!(client.read_head().starts_with("HTTP/1.1 100 "));
    client.send(&body);
    let answer = client.read_response();
    assert_eq!(frames(&decoded(&answer.body))[0].1.len(), 50_000);
    let mut client = Http2::start(&engine);
    let mut head = asking("POST", "/e2e.Peer/Unary");
    head.extend([("content-type", TEXT), ("expect", "100-continue")]);
    client.headers(1, 0, &head);
    assert_eq!(client.next_of(1).spelled_status(), Some(100));
    client.send(DATA, 0, 1, &body[..16_000]);
    client.send(DATA, END_STREAM, 1, &encoded(b""));
    // Not all of it was sent: the message is not whole, and the server says so.
    let (head, _) = client.response(1);
    assert_eq!(head.status(), Some(200));
    let mut head = asking("POST", "/e2e.Peer/Unary");
    head.push(("content-type", TEXT));
    client.headers(3, 0, &head);
    client.send(DATA, END_STREAM, 3, &encoded(&message(b"short")));
    assert_eq!(frames(&decoded(&client.response(3).1))[0].1, "short");
    assert_eq!(engine.metric("propylon_fallbacks_total", &[]), 3.0);
}

#[test]
fn a_body_that_is_all_padding_is_decoded_in_turns_with_others() {
    let service = Service::new("");
    let turns = || service.engine.metric("propylon_budgets_spent_total", &[("budget", "pieces")]);
    let before = turns();
    let body = b"AA==".repeat(1_500_000);
    let mut client = service.engine.client("plain");
    client.read_timeout(LIMIT);
    let answer = client.ask(request("Unary", TEXT, &format!("Content-Length: {}\r\n", body.len()), &body));
    assert_eq!(answer.status, 200);
    let given = turns() - before;
    assert!(given >= 80.0, "{given} turns for 6 MB");
}
