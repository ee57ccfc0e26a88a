//! Requests whose framing is wrong or ambiguous: refused with a status, never forwarded, never followed by another.
//!
//! Each case hides a second request where a careless reader would find it. Whatever the engine makes of a case, the
//! origin must not see that request.

use std::time::Duration;

use propylon_e2e::engine::with;
use propylon_e2e::{Ending, Engine, Origin, eventually, holds};

/// The request that must not get through.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: shop.test\r\n\r\n";

fn hello() -> Origin {
    Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
}

/// A refusal that has been seen from outside, to be found in the log as well.
struct Refusal {
    client: String,
    told: String,
    status: u16,
    reason: String,
}

/// Sends `request` with a smuggled one behind it, and expects a refusal of this status and reason.
#[track_caller]
fn refused(engine: &Engine, origin: &Origin, listener: &str, request: &[u8], (status, reason): (u16, &str)) -> Refusal {
    let told = format!("{} ({reason})", String::from_utf8_lossy(&request[..request.len().min(120)]));
    let mut client = engine.client(listener);
    client.send([request, SMUGGLED.as_bytes()].concat());
    let response = client.read_response();
    assert_eq!(response.status, status, "{told}: {}{}", response.head, response.text());
    assert_eq!(response.field("Connection"), Some("close"), "{told}");
    assert!(response.text().trim_end().ends_with(reason), "{told}: {}", response.text());
    assert_eq!(client.ending(), Ending::Clean, "{told}");
    assert_eq!(origin.connections(), 0, "{told}: something was forwarded");
    Refusal { client: format!("127.0.0.1:{}", client.local_port()), told, status, reason: reason.into() }
}

/// The log and the metrics know of each refusal, and by its own reason.
#[track_caller]
fn accounted(engine: &Engine, refusals: &[Refusal]) {
    for refusal in refusals {
        // A port of one connection may be that of a later one, too.
        let is_its = |line: &serde_json::Value| line["client"] == *refusal.client && line["fault"] == *refusal.reason;
        let line = engine.logged(&refusal.told, is_its);
        let found = (&line["status"], &line["server"]);
        assert_eq!(found, (&refusal.status.into(), &serde_json::Value::Null), "{}", refusal.told);
        let same = refusals.iter().filter(|other| other.reason == refusal.reason).count();
        engine.metric_reaches("propylon_requests_rejected_total", &[("reason", &refusal.reason)], same as f64);
    }
    assert_eq!(engine.metric("propylon_requests_rejected_total", &[]), refusals.len() as f64);
    assert_eq!(engine.metric("propylon_requests_rejected_total", &[("reason", "other")]), 0.0);
}

/// Every case over plaintext and over TLS.
#[track_caller]
fn all_refused(cases: &[(&str, u16, &str)]) {
    let origin = hello();
    let engine = Engine::start(&with(&[origin.address()], "limits = { head_bytes = \"4KiB\", headers = 20 }", ""));
    let mut refusals = Vec::new();
    for (request, status, reason) in cases {
        for listener in ["plain", "web"] {
            refusals.push(refused(&engine, &origin, listener, request.as_bytes(), (*status, reason)));
        }
    }
    accounted(&engine, &refusals);
    assert_eq!(origin.received_text(), "");
    // The engine is none the worse for it.
    assert_eq!(engine.client("web").get("/").text(), "hello\n");
}

#[test]
fn two_framings_at_once_are_refused() {
    all_refused(&[
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            "content-length-with-transfer-encoding",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
            400,
            "content-length-with-transfer-encoding",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\ntransfer-encoding: CHUNKED\r\n\r\n0\r\n\r\n",
            400,
            "content-length-with-transfer-encoding",
        ),
    ]);
}

#[test]
fn lengths_that_are_no_length_are_refused() {
    let bad = |value: &str| format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {value}\r\n\r\nbody");
    let values =
        ["", "-1", "+4", "4 4", "4, 4", "4,5", "0x4", "4.0", "four", "18446744073709551616", "4;q=1", "\u{664}"];
    let texts: Vec<String> = values.iter().map(|value| bad(value)).collect();
    let mut cases: Vec<(&str, u16, &str)> =
        texts.iter().map(|text| (text.as_str(), 400, "bad-content-length")).collect();
    cases.push((
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nbody",
        400,
        "several-content-lengths",
    ));
    cases.push((
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\n",
        400,
        "several-content-lengths",
    ));
    all_refused(&cases);
}

#[test]
fn codings_that_are_not_chunked_alone_are_refused() {
    all_refused(&[
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 400, "bad-transfer-encoding"),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n", 400, "bad-transfer-encoding"),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", 400, "bad-transfer-encoding"),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n", 400, "bad-transfer-encoding"),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \"chunked\"\r\n\r\n", 400, "bad-transfer-encoding"),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            501,
            "unknown-transfer-coding",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            "several-transfer-encodings",
        ),
        (
            "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            "transfer-encoding-in-http10",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nConnection: content-length\r\nContent-Length: 4\r\n\r\nbody",
            400,
            "connection-names-framing",
        ),
    ]);
}

#[test]
fn lines_that_readers_disagree_about_are_refused() {
    all_refused(&[
        ("GET / HTTP/1.1\r\nHost: a\r\nX-Long: one\r\n two\r\n\r\n", 400, "folded-field"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX-Long: one\r\n\ttwo\r\n\r\n", 400, "folded-field"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: one\rY: two\r\n\r\n", 400, "bare-cr"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: one\r\r\n\r\n", 400, "bare-cr"),
        ("GET / HTTP/1.1\nHost: a\n\n", 400, "bare-lf"),
        ("GET / HTTP/1.1\r\nHost: a\nX: one\r\n\r\n", 400, "bare-lf"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: one\n\r\n", 400, "bare-lf"),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 4\r\n\r\nbody", 400, "space-in-field-name"),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n", 400, "space-in-field-name"),
        ("GET / HTTP/1.1\r\nHost: a\r\nno colon here\r\n\r\n", 400, "space-in-field-name"),
        ("GET / HTTP/1.1\r\nHost: a\r\nno-colon-here\r\n\r\n", 400, "field-without-colon"),
        ("GET / HTTP/1.1\r\nHost: a\r\n: no name\r\n\r\n", 400, "empty-field-name"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX(Y): one\r\n\r\n", 400, "bad-field-name"),
        ("GET / HTTP/1.1\r\n Host: a\r\nX: one\r\n\r\n", 400, "space-before-first-field"),
        ("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "empty-lines-before-request"),
    ]);
}

#[test]
fn control_bytes_are_refused() {
    all_refused(&[
        ("GET / HTTP/1.1\r\nHost: a\r\nX: one\0two\r\n\r\n", 400, "control-byte"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: one\x0btwo\r\n\r\n", 400, "control-byte"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: one\x7ftwo\r\n\r\n", 400, "control-byte"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX\0: one\r\n\r\n", 400, "control-byte"),
        ("GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "control-byte"),
        ("GET /\u{e4} HTTP/1.1\r\nHost: a\r\n\r\n", 400, "bad-target-byte"),
        ("GET /\tx HTTP/1.1\r\nHost: a\r\n\r\n", 400, "bad-target-byte"),
    ]);
}

#[test]
fn a_request_stands_for_exactly_one_host() {
    all_refused(&[
        ("GET / HTTP/1.1\r\nX: no host\r\n\r\n", 400, "no-host"),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n", 400, "empty-host"),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "several-hosts"),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400, "several-hosts"),
        ("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400, "bad-host"),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400, "bad-host"),
        ("GET / HTTP/1.1\r\nHost: user@a\r\n\r\n", 400, "bad-host"),
        ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400, "bad-host"),
        ("GET / HTTP/1.1\r\nHost: a:99999\r\n\r\n", 400, "bad-host"),
        ("GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", 400, "bad-host"),
        ("GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n", 400, "host-differs-from-target"),
        ("GET http://a:81/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "host-differs-from-target"),
        ("GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target-without-host"),
    ]);
}

#[test]
fn request_lines_of_another_protocol_are_refused() {
    all_refused(&[
        ("GET /\r\n\r\n", 400, "no-version"),
        ("GET / HTTP/0.9\r\nHost: a\r\n\r\n", 505, "version-not-supported"),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505, "version-not-supported"),
        ("PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", 505, "version-not-supported"),
        ("GET / HTTP/1.10\r\nHost: a\r\n\r\n", 400, "bad-version"),
        ("GET / http/1.1\r\nHost: a\r\n\r\n", 400, "bad-version"),
        ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "bad-version"),
        ("GET / x HTTP/1.1\r\nHost: a\r\n\r\n", 400, "bad-version"),
        (" GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "bad-method"),
        ("G(T / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "bad-method"),
        ("GET x HTTP/1.1\r\nHost: a\r\n\r\n", 400, "bad-target"),
        ("GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400, "bad-target"),
        ("GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "bad-target"),
        ("GET /#part HTTP/1.1\r\nHost: a\r\n\r\n", 400, "bad-target-byte"),
        ("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", 501, "connect-not-supported"),
        ("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 405, "trace-not-allowed"),
        ("GET / HTTP/1.1\r\nHost: a\r\nExpect: 200-maybe\r\n\r\n", 417, "unknown-expectation"),
    ]);
}

#[test]
fn heads_over_the_limits_are_refused() {
    let long = "x".repeat(5_000);
    let fields = "X: y\r\n".repeat(20);
    all_refused(&[
        (&format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n"), 414, "request-line-too-long"),
        (&format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n"), 431, "head-too-long"),
        (&format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"), 431, "too-many-fields"),
        (&format!("{} / HTTP/1.1\r\nHost: a\r\n\r\n", "M".repeat(40)), 501, "method-too-long"),
    ]);
}

#[test]
fn tls_on_the_plaintext_port_is_refused() {
    let origin = hello();
    let engine = Engine::start(&with(&[origin.address()], "", ""));
    let hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    accounted(&engine, &[refused(&engine, &origin, "plain", hello, (400, "tls-on-plaintext-port"))]);
}

/// A chunked body that goes wrong after the head is on its way: the client is told if it can be, its connection and
/// the server's end, and what comes behind is nobody's request.
#[test]
fn a_chunked_body_that_goes_wrong_ends_both_connections() {
    let cases = [
        ("G\r\nbody\r\n0\r\n\r\n", "not hexadecimal"),
        ("-4\r\nbody\r\n0\r\n\r\n", "a sign"),
        (" 4\r\nbody\r\n0\r\n\r\n", "space before the size"),
        ("4 4\r\nbody\r\n0\r\n\r\n", "two sizes"),
        ("\r\nbody\r\n0\r\n\r\n", "no size"),
        ("0x4\r\nbody\r\n0\r\n\r\n", "a prefix"),
        ("10000000000000004\r\nbody\r\n0\r\n\r\n", "a size that overflows"),
        ("ffffffffffffffff\r\nbody\r\n0\r\n\r\n", "the largest size"),
        ("4\r\nbodyX\r\n0\r\n\r\n", "a chunk longer than its size"),
        ("4\r\nbody\n0\r\n\r\n", "a bare LF after a chunk"),
        ("4\nbody\r\n0\r\n\r\n", "a bare LF after a size"),
        ("4\r\nbody\r0\r\n\r\n", "a bare CR after a chunk"),
        ("4;x=\ny\r\nbody\r\n0\r\n\r\n", "a bare LF in an extension"),
        ("4\r\nbody\r\n0\r\nX: y\n\r\n", "a bare LF in the trailers"),
        ("4\r\nbody\r\n0\r\n folded: y\r\n\r\n", "a fold in the trailers"),
        ("4\r\nbody\r\n0\r\nX : y\r\n\r\n", "a space in a trailer's name"),
    ];
    let origin = Origin::scripted(|peer| {
        while let Some(request) = peer.read_request() {
            let _ = request;
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n");
        }
    });
    let engine = Engine::start(&with(&[origin.address()], "", ""));
    for (index, (body, what)) in cases.iter().enumerate() {
        for listener in ["plain", "web"] {
            let path = format!("/{listener}/{index}");
            let mut client = engine.client(listener);
            client
                .send(format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}{SMUGGLED}"));
            let response = client.read_response();
            assert_eq!(response.status, 400, "{what}");
            assert_eq!(response.field("Connection"), Some("close"), "{what}");
            assert_eq!(client.ending(), Ending::Clean, "{what}");
            assert_eq!(engine.logged_path(&path)["fault"], "bad-body", "{what}");
        }
    }
    // Whatever the server got is not whole, and its connection carries nothing else.
    let connections = engine.metric("propylon_server_connections_total", &[]) as usize;
    holds("the origin has accepted them all", || origin.connections() == connections);
    for got in origin.received() {
        let text = String::from_utf8_lossy(&got);
        assert!(!text.contains("0\r\n\r\n"), "forwarded as whole: {text}");
        assert!(text.matches("POST ").count() <= 1, "two requests on one connection: {text}");
    }
    assert!(!origin.received_text().contains("smuggled"), "{}", origin.received_text());
    let faults = 2.0 * cases.len() as f64;
    assert_eq!(engine.metric("propylon_client_faults_total", &[("reason", "bad-body")]), faults);
    assert_eq!(engine.metric("propylon_server_reused_total", &[]), 0.0);
    engine.metric_reaches("propylon_server_connections", &[], 0.0);
}

#[test]
fn what_lies_in_a_body_is_not_a_request() {
    let origin = hello();
    let engine = Engine::start(&with(&[origin.address()], "", ""));
    for listener in ["plain", "web"] {
        let mut client = engine.client(listener);
        let length = SMUGGLED.len();
        let first = format!("POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{SMUGGLED}");
        let second = format!(
            "POST /2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{length:x}\r\n{SMUGGLED}\r\n0\r\n\r\n"
        );
        client.send(format!("{first}{second}GET /3 HTTP/1.1\r\nHost: a\r\n\r\n"));
        for _ in 0..3 {
            assert_eq!(client.read_response().text(), "hello\n");
        }
    }
    let paths: Vec<String> =
        eventually(Duration::from_secs(5), "six lines", || (engine.log().len() == 6).then(|| engine.log()))
            .iter()
            .map(|line| line["path"].as_str().unwrap_or_default().to_owned())
            .collect();
    assert_eq!(paths, ["/1", "/2", "/3", "/1", "/2", "/3"]);
}

#[test]
fn a_length_cut_short_by_the_client_never_looks_whole_to_the_server() {
    let origin = hello();
    let engine = Engine::start(&with(&[origin.address()], "", ""));
    for listener in ["plain", "web"] {
        let mut client = engine.client(listener);
        client.send(format!("POST /{listener} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nten bytes."));
        client.finish();
        let (answer, _) = client.read_to_end();
        assert!(!String::from_utf8_lossy(&answer).contains("200"), "{}", String::from_utf8_lossy(&answer));
        assert_eq!(engine.logged_path(&format!("/{listener}"))["fault"], "client-closed");
    }
    holds("no connection is kept", || engine.metric("propylon_server_connections", &[]) == 0.0);
}

#[test]
fn http_1_0_keeps_to_its_own_rules() {
    let origin = hello();
    let engine = Engine::start(&with(&[origin.address()], "", ""));
    let mut client = engine.client("plain");
    let response = client.ask("GET /none HTTP/1.0\r\n\r\n");
    assert_eq!((response.status, response.field("Connection")), (200, Some("close")));
    assert_eq!(client.ending(), Ending::Clean);
    // A server needs a Host: the one it is known by.
    holds("a Host", || origin.received_text().contains(&format!("\r\nHost: {}\r\n", origin.address())));
    let mut client = engine.client("plain");
    for _ in 0..2 {
        let response = client.ask("GET /kept HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n");
        assert_eq!((response.status, response.field("Connection")), (200, Some("keep-alive")));
    }
}
