//! Load by h2load, of nghttp2: every request is answered, whatever else is going on.

use std::process::Command;
use std::time::Duration;

use propylon_e2e::engine::simple;
use propylon_e2e::frames::{DATA, END_STREAM, Http2, request};
use propylon_e2e::program::run;
use propylon_e2e::served::BenchOrigin;
use propylon_e2e::{Engine, Scratch, holds};

const LIMIT: Duration = Duration::from_secs(180);
const BODY: usize = 100_000;

/// Ten connections with ten streams each; all are answered with 2xx.
#[track_caller]
fn load(requests: usize, arguments: &[&str], url: &str) {
    let mut command = Command::new("h2load");
    command.args(["-n", &requests.to_string(), "-c", "10", "-m", "10"]).args(arguments).arg(url);
    let said = run(command, b"", LIMIT).ok().text();
    assert!(said.contains(&format!("{requests} done, {requests} succeeded, 0 failed, 0 errored, 0 timeout")), "{said}");
    assert!(said.contains(&format!("status codes: {requests} 2xx, 0 3xx, 0 4xx, 0 5xx")), "{said}");
}

#[test]
fn ten_thousand_requests_are_answered() {
    let origin = BenchOrigin::start(&[]);
    let engine = Engine::start(&simple(&[origin.address()]));
    load(10_000, &[], &format!("{}/bytes/1000", engine.url("web")));
    assert_eq!(engine.metric("propylon_http2_streams_total", &[]), 10_000.0);
    assert_eq!(engine.metric("propylon_http2_connections_total", &[]), 10.0);
    // As many connections to the server as there were streams at once.
    assert!(engine.metric("propylon_server_connections_total", &[]) <= 100.0);
    holds("nothing is left", || engine.metric("propylon_http2_streams", &[]) == 0.0);
}

#[test]
fn uploads_are_taken_and_a_slow_stream_holds_back_none() {
    let origin = BenchOrigin::start(&[]);
    let engine = Engine::start(&simple(&[origin.address()]));
    let scratch = Scratch::new();
    let body = scratch.write("body", vec![b'x'; BODY]).display().to_string();
    let mut slow = Http2::start_with(&engine, &[(4, 1_000)]);
    slow.get(1, "/bytes/30000000");
    assert_eq!(slow.next_of(1).status(), Some(200));
    let mut upload = Http2::start(&engine);
    let post = [&request("POST", "/up")[..], &[("content-length", "2")]].concat();
    upload.headers(1, 0, &post);
    upload.send(DATA, 0, 1, b"x");
    load(10_000, &["-d", &body], &format!("{}/up", engine.url("web")));
    // Those of the load are gone when the engine has seen their ends, which it may later than their client.
    holds("the slow ones alone are still there", || engine.metric("propylon_http2_streams", &[]) == 2.0);
    upload.send(DATA, END_STREAM, 1, b"y");
    let (head, data) = upload.response(1);
    assert_eq!((head.status(), &data[..1]), (Some(200), &b"2"[..]));
}
