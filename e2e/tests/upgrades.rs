//! Connections that stop being HTTP: WebSocket and the like go through as bytes, both ways, to the end.

use std::time::Duration;

use propylon_e2e::engine::{simple, with};
use propylon_e2e::http::values;
use propylon_e2e::{Client, Ending, Engine, Origin, Peer, holds};
use rustix::process::Signal;

/// The handshake of RFC 6455 §1.3, with the key and the answer that it gives.
const ASK: &str = "GET /chat HTTP/1.1\r\nHost: shop.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
const ACCEPT: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
/// A masked frame saying "Hello", and the unmasked one (RFC 6455 §5.7).
const MASKED: [u8; 11] = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
const UNMASKED: [u8; 7] = [0x81, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f];

fn accept(peer: &mut Peer) -> bool {
    let Some(head) = peer.read_head() else { return false };
    let head = String::from_utf8_lossy(&head).into_owned();
    assert_eq!(values(&head, "Upgrade"), ["websocket"], "{head}");
    assert_eq!(values(&head, "Sec-WebSocket-Key"), ["dGhlIHNhbXBsZSBub25jZQ=="], "{head}");
    peer.send(ACCEPT);
    true
}

/// Accepts every upgrade and gives back what it gets until the client has ended, then ends too.
fn echo() -> Origin {
    Origin::scripted(|peer| {
        if !accept(peer) {
            return;
        }
        while let Some(bytes) = peer.read_some() {
            peer.send(bytes);
        }
        peer.close();
    })
}

#[track_caller]
fn upgrade(client: &mut Client) {
    let response = client.ask(ASK);
    assert_eq!(response.status, 101, "{}", response.head);
    assert_eq!(response.field("Upgrade"), Some("websocket"));
    assert_eq!(response.field("Sec-WebSocket-Accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    assert!(response.field("Connection").is_some_and(|value| value.eq_ignore_ascii_case("upgrade")));
}

#[test]
fn a_websocket_goes_through_in_both_directions() {
    let origin = Origin::scripted(|peer| {
        if accept(peer) {
            assert_eq!(peer.read_exact(MASKED.len()).as_deref(), Some(&MASKED[..]));
            peer.send(UNMASKED);
            peer.read_some();
            peer.close();
        }
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    for listener in ["plain", "web"] {
        let mut client = engine.client(listener);
        upgrade(&mut client);
        client.send(MASKED);
        assert_eq!(client.read_exact(UNMASKED.len()), UNMASKED);
        client.finish();
        assert_eq!(client.ending(), Ending::Clean, "{listener}");
    }
    assert_eq!(engine.metric("propylon_tunnels_total", &[]), 2.0);
    holds("all connections end", || {
        engine.metric("propylon_server_connections", &[]) + engine.metric("propylon_connections", &[]) == 0.0
    });
    let line = engine.logged_path("/chat");
    assert_eq!((&line["status"], &line["fault"]), (&101.into(), &serde_json::Value::Null));
    assert!(line["bytes_received"].as_u64() >= Some((ASK.len() + MASKED.len()) as u64), "{line}");
}

/// RFC 9110 §7.8: no protocol but one that was asked for; and of a list's empty elements nothing is made.
#[test]
fn a_server_switches_to_what_was_asked_for_or_not_at_all() {
    let origin = Origin::answering(|request| {
        let head = String::from_utf8_lossy(request).into_owned();
        let to = if head.starts_with("GET /other ") { "foo" } else { values(&head, "Upgrade")[0] };
        ACCEPT.replace("Upgrade: websocket", &format!("Upgrade: {to}")).into_bytes()
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    let response = engine.client("plain").ask(ASK.replace("/chat", "/other"));
    assert_eq!((response.status, response.text().contains("bad-switch")), (502, true), "{}", response.head);
    for (asked, sent) in [
        ("websocket,", "websocket"),
        (", WebSocket , foo/2 ", "WebSocket, foo/2"),
        ("foo/2\r\nUpgrade: websocket", "foo/2, websocket"),
    ] {
        let ask = ASK.replace("Upgrade: websocket", &format!("Upgrade: {asked}"));
        let response = engine.client("plain").ask(ask);
        assert_eq!((response.status, response.field("Upgrade")), (101, Some(sent)), "{}", response.head);
    }
}

#[test]
fn many_bytes_go_through_a_tunnel_unchanged() {
    let origin = echo();
    let engine = Engine::start(&simple(&[origin.address()]));
    for listener in ["plain", "web"] {
        let mut client = engine.client(listener);
        upgrade(&mut client);
        let bytes: Vec<u8> = (0..200_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        for _ in 0..20 {
            client.send(&bytes);
            assert!(client.read_exact(bytes.len()) == bytes, "{listener}");
        }
        client.finish();
        assert_eq!(client.ending(), Ending::Clean, "{listener}");
    }
}

#[test]
fn bytes_sent_along_with_the_handshake_are_not_lost() {
    let origin = Origin::scripted(|peer| {
        let Some(_) = peer.read_head() else { return };
        peer.send([ACCEPT.as_bytes(), b"first from the server"].concat());
        while let Some(bytes) = peer.read_some() {
            peer.send(bytes);
        }
        peer.close();
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    for listener in ["plain", "web"] {
        let mut client = engine.client(listener);
        client.send([ASK.as_bytes(), b"first from the client"].concat());
        assert_eq!(client.read_response().status, 101);
        assert_eq!(client.read_exact(21), b"first from the server");
        assert_eq!(client.read_exact(21), b"first from the client");
    }
}

#[test]
fn a_side_that_has_ended_still_hears_the_other() {
    let origin = Origin::scripted(|peer| {
        if accept(peer) {
            // Ends first, and hears the client out.
            peer.send("bye");
            peer.finish();
            while peer.read_some().is_some() {}
        }
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    for listener in ["plain", "web"] {
        let mut client = engine.client(listener);
        upgrade(&mut client);
        assert_eq!(client.read_exact(3), b"bye");
        assert_eq!(client.ending(), Ending::Clean, "{listener}");
        client.send(format!("last words of {listener}"));
        client.finish();
        holds("the last words arrive", || origin.received_text().contains(&format!("last words of {listener}")));
    }
    holds("all connections end", || engine.metric("propylon_connections", &[]) == 0.0);
    let origin = Origin::scripted(|peer| {
        if accept(peer) {
            // Answers only when the client has ended.
            while peer.read_some().is_some() {}
            peer.send("heard it all");
            peer.close();
        }
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    for listener in ["plain", "web"] {
        let mut client = engine.client(listener);
        upgrade(&mut client);
        client.send("all of it");
        client.finish();
        assert_eq!(client.read_exact(12), b"heard it all", "{listener}");
        assert_eq!(client.ending(), Ending::Clean, "{listener}");
    }
}

#[test]
fn a_tunnel_that_is_reset_on_one_side_ends_on_the_other() {
    let origin = Origin::scripted(|peer| {
        if accept(peer) {
            peer.read_some();
            peer.reset();
        }
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    for listener in ["plain", "web"] {
        let mut client = engine.client(listener);
        upgrade(&mut client);
        client.send("x");
        assert!(matches!(client.ending(), Ending::Reset | Ending::Truncated), "{listener}");
    }
    let origin = echo();
    let engine = Engine::start(&simple(&[origin.address()]));
    for listener in ["plain", "web"] {
        let mut client = engine.client(listener);
        upgrade(&mut client);
        client.reset();
    }
    holds("the servers' ends are closed", || engine.metric("propylon_server_connections", &[]) == 0.0);
}

#[test]
fn a_tunnel_in_which_nothing_moves_is_ended() {
    let origin = echo();
    let engine = Engine::start(&with(&[origin.address()], "timeouts = { tunnel_idle = \"1s\" }", ""));
    let mut client = engine.client("web");
    upgrade(&mut client);
    client.send("x");
    client.read_exact(1);
    client.read_timeout(Duration::from_secs(5));
    assert_ne!(client.ending(), Ending::Open);
    engine.metric_reaches("propylon_timeouts_total", &[("wait", "tunnel-idle")], 1.0);
}

#[test]
fn a_tunnel_that_is_there_when_a_stop_has_no_more_time_is_reset_and_logged() {
    let origin = echo();
    let mut engine = Engine::start(&with(&[origin.address()], "", ""));
    let mut clients = ["plain", "web"].map(|listener| engine.client(listener));
    for client in &mut clients {
        upgrade(client);
        client.send("x");
        client.read_exact(1);
    }
    engine.signal(Signal::TERM);
    assert_eq!(clients.map(|mut client| client.ending()), [Ending::Reset, Ending::Reset]);
    for listener in ["plain", "web"] {
        let line = engine.logged("its end", |line| line["listener"] == listener);
        assert_eq!((&line["fault"], &line["status"]), (&"cut-off".into(), &101.into()), "{line}");
    }
    assert_eq!(engine.wait(Duration::from_secs(10)).status.code(), Some(3));
}

#[test]
fn a_refused_upgrade_is_an_ordinary_response() {
    let origin = Origin::always("HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno");
    let engine = Engine::start(&simple(&[origin.address()]));
    for listener in ["plain", "web"] {
        let mut client = engine.client(listener);
        for _ in 0..2 {
            assert_eq!(client.ask(ASK).text(), "no");
        }
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn a_change_of_the_http_version_is_not_offered_to_the_server() {
    let origin = Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let engine = Engine::start(&simple(&[origin.address()]));
    for protocol in ["h2c", "H2C", "HTTP/2.0", "TLS/1.2", "websocket, h2c"] {
        let response = engine.client("plain").ask(format!(
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocol}\r\n\
             HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
        ));
        assert_eq!(response.text(), "ok", "{protocol}");
    }
    let text = origin.received_text().to_ascii_lowercase();
    assert!(!text.contains("upgrade") && !text.contains("http2-settings") && !text.contains("h2c"), "{text}");
}

#[test]
fn much_goes_both_ways_in_little_memory_and_a_quiet_tunnel_holds_none() {
    const BYTES: usize = 32 << 20;
    const PIECE: usize = 1 << 16;
    let piece: Vec<u8> = (0..PIECE as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    let sent = piece.clone();
    let origin = Origin::scripted(move |peer| {
        if !accept(peer) {
            return;
        }
        for _ in 0..BYTES / PIECE {
            peer.send(&sent);
        }
        let mut right = 0;
        for _ in 0..BYTES / PIECE {
            right += usize::from(peer.read_exact(PIECE).as_deref() == Some(&sent[..]));
        }
        peer.send(format!("{right:08}"));
        peer.read_some();
        peer.close();
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    for listener in ["plain", "web"] {
        let mut client = engine.client(listener);
        upgrade(&mut client);
        let before = engine.rss();
        for at in 0..BYTES / PIECE {
            assert!(client.read_exact(PIECE) == piece, "{listener}: piece {at}");
        }
        for _ in 0..BYTES / PIECE {
            client.send(&piece);
        }
        assert_eq!(client.read_exact(8), format!("{:08}", BYTES / PIECE).as_bytes(), "{listener}");
        let growth = engine.rss().saturating_sub(before);
        assert!(growth < 8 << 20, "{listener}: {growth} bytes more");
        client.finish();
        assert_eq!(client.ending(), Ending::Clean, "{listener}");
        let line = engine.logged_path("/chat");
        assert!(line["bytes_sent"].as_u64() > Some(BYTES as u64), "{line}");
        assert!(line["bytes_received"].as_u64() > Some(BYTES as u64), "{line}");
    }
}
