//! Requests over HTTP/2 that are answered before all of their bodies have come: clients read the answer, whatever they
//! make of RST_STREAM, and none goes on for ever.

use std::time::Duration;

use propylon_e2e::engine::with;
use propylon_e2e::frames::{
    ACK, DATA, END_STREAM, Frame, GOAWAY, Http2, NO_ERROR, PING, RST_STREAM, WINDOW_UPDATE, request,
};
use propylon_e2e::program::curl;
use propylon_e2e::{Ending, Engine, Origin, Scratch, holds};
use rustix::process::Signal;

const MIB: usize = 1024 * 1024;
/// Bytes of one body that are read on behind its answer, at most, and what may come on top of that until the client
/// hears.
const DISCARD_BYTES_MAX: usize = 64 * MIB;

/// An engine whose routes answer before bodies have come, in five ways, and whose server does so too.
fn engine(more: &str) -> (Origin, Engine) {
    let origin = Origin::scripted(|peer| {
        peer.read_head();
        peer.send("HTTP/1.1 401 Unauthorized\r\nContent-Length: 3\r\n\r\nno\n");
        // The rest is read, as a server does that closes in order.
        while peer.read_some().is_some() {}
    });
    let routes = "[[route]]\npath = \"/redirect\"\nredirect = { path = \"/elsewhere\" }\n\
                  [[route]]\npath = \"/forbidden\"\nrespond = { status = 403, body = \"no\\n\" }\n\
                  [[route]]\npath = \"/absent\"\nrespond = { status = 404, body = \"no\\n\" }\n\
                  [[route]]\npath = \"/long\"\nbackend = \"app\"\nbody_limit = \"100KiB\"\n\
                  [[route]]\npath = \"/limited\"\nbackend = \"app\"\nlimit = [{ rate = \"1/h\", burst = 1, key = \"all\" }]\n";
    let engine = Engine::start(&format!("{more}{}{routes}", with(&[origin.address()], "", "")));
    (origin, engine)
}

/// Bytes by which WINDOW_UPDATE widens a window.
fn increment(frame: &Frame) -> usize {
    frame.payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes) as usize)
}

fn upload(client: &mut Http2, stream: u32, path: &str) {
    client.headers(stream, 0, &request("POST", path));
}

#[test]
fn curl_reads_every_answer_that_comes_before_its_upload_has_ended() {
    let (_origin, engine) = engine("");
    let scratch = Scratch::new();
    for megabytes in [1, 30] {
        let body = scratch.write("body", vec![b'x'; megabytes * MIB]);
        let data = format!("@{}", body.display());
        for (path, status) in
            [("redirect", "308"), ("forbidden", "403"), ("long", "413"), ("limited", "401 or 429"), ("", "401")]
        {
            for (version, listener) in
                [("--http2-prior-knowledge", "plain"), ("--http2", "web"), ("--http1.1", "plain"), ("--http1.1", "web")]
            {
                let url = format!("{}/{path}", engine.url(listener));
                let arguments =
                    ["-o", "/dev/null", "-w", "%{http_code}", "-H", "Expect:", version, "--data-binary", &data, &url];
                // Errors of curl's are not taken: it ends with 0.
                let said = curl(&arguments).ok().text().trim().to_owned();
                assert!(said.len() == 3 && status.contains(&said), "{said} for {path} by {version} at {listener}");
            }
        }
    }
    holds("no stream is left", || engine.metric("propylon_http2_streams", &[]) == 0.0);
    let told = |listener, result| {
        engine.metric("propylon_discarded_bodies_total", &[("listener", listener), ("result", result)])
    };
    holds("bodies of either version are counted", || told("plain", "ended") > 0.0 && told("web", "ended") > 0.0);
}

#[test]
fn a_clients_end_of_tls_behind_a_refusal_is_no_body() {
    let (_origin, engine) = engine("");
    let url = format!("{}/limited", engine.url("web"));
    let ask = || {
        let arguments = ["-o", "/dev/null", "-w", "%{http_code}", "-H", "Connection: close", "--http1.1", &url];
        curl(&arguments).ok().text().trim().to_owned()
    };
    assert_eq!([ask(), ask(), ask(), ask()], ["401", "429", "429", "429"]);
    holds("all are gone", || engine.metric("propylon_connections", &[("listener", "web")]) == 0.0);
    assert_eq!(engine.metric("propylon_discarded_bodies_total", &[("listener", "web")]), 0.0);
}

#[test]
fn an_upload_in_small_windows_goes_on_to_its_end_and_its_connection_serves_on() {
    let (_origin, engine) = engine("");
    let mut client = Http2::start(&engine);
    // As many at once as clients like to have.
    let streams = (0..100).map(|index| index * 2 + 1);
    for stream in streams.clone() {
        upload(&mut client, stream, "/absent");
    }
    for stream in streams.clone() {
        assert_eq!(client.response(stream).0.status(), Some(404), "stream {stream}");
    }
    let rss = engine.rss();
    // Beyond each stream's first window, and beyond that of the connection.
    for _ in 0..8 {
        for stream in streams.clone() {
            client.send(DATA, 0, stream, &[b'x'; 8_000]);
        }
    }
    for stream in streams.clone() {
        client.send(DATA, END_STREAM, stream, b"end");
    }
    client.get(201, "/absent");
    let mut updated = 0;
    loop {
        let frame = client.next_frame();
        assert_ne!(frame.kind, RST_STREAM, "stream {}", frame.stream);
        updated += u32::from(frame.kind == WINDOW_UPDATE && frame.stream > 0);
        if frame.stream == 201 && frame.ends() {
            break;
        }
    }
    assert!(updated >= 100, "{updated} updates");
    let grown = engine.rss().saturating_sub(rss) as usize;
    assert!(grown < 8 * MIB, "{grown} bytes");
}

#[test]
fn whoever_goes_on_for_ever_or_falls_silent_is_told_to_stop() {
    let (_origin, engine) = engine("");
    let mut silent = Http2::start(&engine);
    upload(&mut silent, 1, "/absent");
    assert_eq!(silent.response(1).0.status(), Some(404));
    let stop = silent.next_of(1);
    assert_eq!((stop.kind, stop.code()), (RST_STREAM, NO_ERROR));
    silent.get(3, "/absent");
    assert_eq!(silent.response(3).0.status(), Some(404));
    let mut client = Http2::start(&engine);
    client.client.read_timeout(Duration::from_secs(60));
    upload(&mut client, 1, "/absent");
    assert_eq!(client.response(1).0.status(), Some(404));
    let (mut sent, mut window) = (0, 65_535);
    let stop = loop {
        while window >= 16_384 {
            client.send(DATA, 0, 1, &[b'x'; 16_384]);
            (sent, window) = (sent + 16_384, window - 16_384);
        }
        let frame = client.next_frame();
        match frame.kind {
            WINDOW_UPDATE if frame.stream == 1 => window += increment(&frame),
            RST_STREAM => break frame,
            _ => {}
        }
    };
    assert_eq!(stop.code(), NO_ERROR);
    // A busy machine has it by time before.
    assert!((MIB..DISCARD_BYTES_MAX + MIB).contains(&sent), "{sent} bytes");
    // Nothing has come of the silent one.
    let told = |result: &str| engine.metric("propylon_discarded_bodies_total", &[("result", result)]);
    holds("the body is counted", || told("long") + told("slow") + told("quiet") == 1.0);
    assert_eq!(told("ended") + told("crowded"), 0.0);
    client.get(3, "/absent");
    assert_eq!(client.response(3).0.status(), Some(404));
}

#[test]
fn a_drain_waits_for_such_uploads_as_for_requests() {
    let (_origin, mut engine) = engine("[process]\nworkers = 1\ndrain_timeout = \"60s\"\n");
    let mut client = Http2::start(&engine);
    upload(&mut client, 1, "/absent");
    assert_eq!(client.response(1).0.status(), Some(404));
    client.send(DATA, 0, 1, &[b'x'; 16_000]);
    engine.signal(Signal::TERM);
    let mut said = 0;
    while said < 2 {
        let frame = client.next_frame();
        match frame.kind {
            PING if frame.flags & ACK == 0 => client.send(PING, ACK, 0, &frame.payload),
            GOAWAY => said += 1,
            kind => assert_eq!(kind, WINDOW_UPDATE),
        }
    }
    for _ in 0..3 {
        client.send(DATA, 0, 1, &[b'x'; 16_000]);
    }
    client.send(DATA, END_STREAM, 1, b"end");
    // The connection ends with the upload, in order, and by GOAWAY.
    loop {
        let frame = client.next_frame();
        match frame.kind {
            GOAWAY => break,
            kind => assert_eq!(kind, WINDOW_UPDATE),
        }
    }
    assert_eq!(client.client.ending(), Ending::Clean);
    assert_eq!(engine.wait(Duration::from_secs(60)).status.code(), Some(0));
}
