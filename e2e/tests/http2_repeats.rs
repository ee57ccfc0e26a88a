//! Requests of HTTP/2 that are sent again: their bodies are as good the second time as over HTTP/1.1.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use propylon_e2e::engine::with;
use propylon_e2e::frames::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, Http2, Http2Server, RST_STREAM, block, frame as bytes_of, request,
};
use propylon_e2e::{Engine, Origin};

/// A request all of which comes at once. `length`: its body's is announced.
fn whole(method: &str, length: bool, body: &[u8]) -> Vec<u8> {
    let announced = body.len().to_string();
    let mut fields = request(method, "/");
    if length {
        fields.push(("content-length", &announced));
    }
    [bytes_of(HEADERS, END_HEADERS, 1, &block(&fields)), bytes_of(DATA, END_STREAM, 1, body)].concat()
}

/// RFC 9113 §6.8: a server has not looked at streams beyond its GOAWAY, whatever the method.
#[test]
fn a_small_body_is_sent_again_where_its_stream_was_passed_over() {
    for length in [true, false] {
        let origin = Origin::scripted(|peer| {
            let number = peer.number;
            let Some(mut server) = Http2Server::start(peer, &[]) else { return };
            let mut body = Vec::new();
            while let Some(frame) = server.next_frame() {
                if frame.kind == DATA {
                    body.extend_from_slice(&frame.payload);
                }
                // The head and the body have both come.
                if frame.kind == DATA && frame.ends() && number == 0 {
                    let last = frame.stream - 2;
                    server.send_bytes(&bytes_of(GOAWAY, 0, 0, &[&last.to_be_bytes()[..], &[0; 4]].concat()));
                } else if frame.ends() {
                    server.answer(frame.stream, if body.is_empty() { b"hello\n" } else { &body });
                }
            }
        });
        let engine = Engine::start(&with(&[origin.address()], "", "protocol = \"h2\""));
        // A response before it, so that the connection is one of use.
        assert_eq!(engine.client("plain").get("/").text(), "hello\n");
        let mut client = Http2::start(&engine);
        client.client.send(whole("POST", length, b"once and again"));
        let (head, body) = client.response(1);
        assert_eq!((head.status(), &body[..]), (Some(200), &b"once and again"[..]), "{length}");
        assert_eq!(origin.connections(), 2);
    }
}

/// The server has not looked at it, and all the same what has left of the body is not here any more: neither a method
/// that may be repeated nor one that was not worked on brings it back.
#[test]
fn a_body_part_of_which_has_left_is_not_sent_again_nor_to_the_fallback() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let origin = Origin::scripted(move |peer| {
        let Some(mut server) = Http2Server::start(peer, &[]) else { return };
        while let Some(frame) = server.next_frame() {
            if frame.kind == HEADERS && frame.ends() {
                server.answer(frame.stream, b"hello\n");
            } else if frame.kind == HEADERS {
                count.fetch_add(1, Ordering::SeqCst);
            } else if frame.kind == DATA && frame.payload == b"to close" {
                break;
            } else if frame.kind == DATA {
                let last = frame.stream - 2;
                server.send_bytes(&bytes_of(GOAWAY, 0, 0, &[&last.to_be_bytes()[..], &[0; 4]].concat()));
            }
        }
        peer.close();
    });
    let spare = Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nspare");
    let text = with(&[origin.address()], "", "protocol = \"h2\"");
    let fallback = format!("fallback = \"spare\"\n[backend.spare]\nservers = [\"{}\"]\n", spare.address());
    let engine = Engine::start(&[text, fallback].concat());
    for (asks, (method, half, fault)) in
        (1..).zip([("PUT", "half", "goaway"), ("POST", "half", "goaway"), ("PUT", "to close", "closed-during-request")])
    {
        // A response before it, so that the connection is one of use, and another stream is the last.
        assert_eq!(engine.client("plain").get("/").text(), "hello\n");
        let mut client = engine.client("plain");
        client.send(format!("{method} /half HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\n{half}"));
        let response = client.read_response();
        assert_eq!(response.text(), format!("502 Bad Gateway: {fault}\n"), "{method} {half}");
        assert_eq!((asked.load(Ordering::SeqCst), spare.connections()), (asks, 0), "{method} {half}");
    }
}

/// To a server of HTTP/1.1 the second attempt has the framing of the first.
#[test]
fn a_small_body_is_sent_again_where_a_connection_was_closed_and_that_is_safe() {
    for (method, length, status, limit) in [
        ("PUT", true, 200, ""),
        ("PUT", false, 200, ""),
        ("POST", true, 502, ""),
        ("PUT", true, 200, "body_limit = 14\n"),
        ("PUT", false, 200, "body_limit = 14\n"),
        ("POST", false, 502, "body_limit = 14\n"),
        ("PUT", false, 413, "body_limit = 13\n"),
    ] {
        let origin = Origin::scripted(|peer| {
            let number = peer.number;
            while let Some(asked) = peer.read_request() {
                if number == 0 {
                    return peer.close();
                }
                let body = asked.windows(4).position(|four| four == b"\r\n\r\n").map_or(&[][..], |at| &asked[at + 4..]);
                peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()));
                peer.send(body);
            }
        });
        let engine = Engine::start(&format!("{}{limit}", with(&[origin.address()], "", "")));
        let mut client = Http2::start(&engine);
        client.client.send(whole(method, length, b"once and again"));
        let (head, body) = client.response(1);
        let said = head.status().or(head.spelled_status());
        assert_eq!(said, Some(status), "{method} {length} {limit}: {head:?} {body:?}");
        if status == 200 {
            assert_eq!(body, b"once and again");
            assert_eq!(
                origin.received_text().matches("Content-Length: 14\r\n").count(),
                2,
                "{}",
                origin.received_text()
            );
        }
        // The connection is still in step.
        client.get(3, "/");
        assert_eq!(client.response(3).0.status(), Some(200));
    }
}

/// RFC 9113 §8.7: a stream that was refused was not worked on, though an interim response had come.
#[test]
fn a_stream_that_was_refused_behind_an_interim_response_is_sent_again_where_that_is_safe() {
    let origin = Origin::scripted(|peer| {
        let number = peer.number;
        let Some(mut server) = Http2Server::start(peer, &[]) else { return };
        let mut refused = number > 0;
        while let Some(frame) = server.next_frame() {
            if frame.kind != HEADERS {
                continue;
            }
            if std::mem::replace(&mut refused, true) {
                server.answer(frame.stream, b"hello\n");
            } else {
                // `:status: 103` as a literal.
                server.send(HEADERS, END_HEADERS, frame.stream, &[0x08, 0x03, b'1', b'0', b'3']);
                server.send(RST_STREAM, 0, frame.stream, &7_u32.to_be_bytes());
            }
        }
    });
    let engine = Engine::start(&with(&[origin.address()], "", "protocol = \"h2\""));
    let mut client = Http2::start(&engine);
    client.get(1, "/");
    let head = loop {
        let frame = client.next_of(1);
        if frame.status() == Some(200) || frame.kind != HEADERS {
            break frame;
        }
    };
    assert_eq!(head.status(), Some(200), "{head:?}");
}
