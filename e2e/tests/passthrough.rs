//! `protocol = "passthrough"`: routed by the name in the client's hello, with keys and bytes untouched.

use std::net::SocketAddr;
use std::time::Duration;

use propylon_e2e::external::External;
use propylon_e2e::program::{curl, s_client};
use propylon_e2e::{Client, Ending, Engine, Origin, holds};
use rustls::ClientConnection;
use rustls_pki_types::ServerName;

/// Routes are (host, backend's only server).
fn passthrough(listener: &str, routes: &[(&str, SocketAddr)]) -> String {
    let mut text = format!("[listener.sni]\nbind = \"127.0.0.1:0\"\nprotocol = \"passthrough\"\n{listener}\n");
    for (index, (host, server)) in routes.iter().enumerate() {
        let host = if host.is_empty() { String::new() } else { format!("host = \"{host}\"\n") };
        text.push_str(&format!(
            "[backend.b{index}]\nservers = [\"{server}\"]\n\
             [[route]]\nlistener = \"sni\"\n{host}backend = \"b{index}\"\n"
        ));
    }
    text
}

/// The first flight of a client that asks for this name.
fn hello(name: &str) -> Vec<u8> {
    let config = propylon_e2e::Certificates::shared().client();
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let mut client = ClientConnection::new(config, name).expect("a client");
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).expect("a Vec takes everything");
    bytes
}

/// The same message in records of at most `size` bytes.
fn fragmented(hello: &[u8], size: usize) -> Vec<u8> {
    let record = |piece: &[u8]| [&hello[..3], &(piece.len() as u16).to_be_bytes(), piece].concat();
    hello[5..].chunks(size).flat_map(record).collect()
}

#[test]
fn the_servers_own_certificate_reaches_the_client() {
    let server = External::s_server(&["-tls1_2"]);
    let engine = Engine::start(&passthrough("", &[("shop.test", server.address())]));
    let port = engine.address("sni").port();
    let said = s_client(port, &["-servername", "shop.test", "-verify_hostname", "localhost"], "GET / HTTP/1.0\r\n\r\n");
    let text = said.text();
    assert!(text.contains("HTTP/1.0 200") && text.contains("TLSv1.2"), "{text}");
    let line = engine.logged("the connection", |line| line["server_name"] == "shop.test");
    assert_eq!((&line["protocol"], &line["tls"]), (&"passthrough".into(), &serde_json::Value::Null), "{line}");
    let url = format!("https://shop.test:{port}/");
    let said = curl(&["--resolve", &format!("shop.test:{port}:127.0.0.1"), "--http1.0", "--insecure", &url]).ok();
    assert!(said.text().contains("s_server"), "{}", said.text());
}

#[test]
fn names_lead_to_their_backends_and_the_bytes_arrive_as_they_came() {
    let origins: Vec<Origin> = (0..3).map(|_| Origin::scripted(|peer| while peer.read_some().is_some() {})).collect();
    let routes: Vec<(&str, SocketAddr)> =
        ["shop.test", "*.shop.test", ""].into_iter().zip(origins.iter().map(Origin::address)).collect();
    let engine = Engine::start(&passthrough("", &routes));
    for (name, backend) in [("shop.test", 0), ("SHOP.test", 0), ("a.shop.test", 1), ("other.test", 2), ("127.0.0.1", 2)]
    {
        let bytes = hello(name);
        for size in [1, 7, 100, 16_000] {
            let sent = fragmented(&bytes, size);
            let mut client = Client::plain(engine.address("sni"));
            // In pieces, so that the name is not there at once.
            let (first, rest) = sent.split_at(sent.len() / 2);
            client.send(first);
            client.send(rest);
            client.finish();
            client.ending();
            holds("the hello arrives", || origins[backend].received().contains(&sent));
        }
    }
}

#[test]
fn who_asks_for_an_unknown_name_or_none_is_told_so() {
    let origin = Origin::always("x");
    let engine = Engine::start(&passthrough("", &[("shop.test", origin.address())]));
    for name in ["other.test", "127.0.0.1"] {
        let mut client = Client::plain(engine.address("sni"));
        client.send(hello(name));
        // RFC 6066 §3: unrecognized_name.
        assert_eq!(client.read_exact(7), [21, 3, 3, 0, 2, 2, 112], "{name}");
        assert_eq!(client.ending(), Ending::Clean, "{name}");
    }
    engine.metric_reaches("propylon_relays_total", &[("reason", "no-route")], 2.0);
    assert_eq!(origin.connections(), 0);
}

#[test]
fn what_is_not_tls_is_closed_and_counted() {
    let origin = Origin::always("x");
    let engine = Engine::start(&passthrough("timeouts = { handshake = \"1s\" }", &[("", origin.address())]));
    let mut http = Client::plain(engine.address("sni"));
    http.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_ne!(http.ending(), Ending::Open);
    let mut broken = Client::plain(engine.address("sni"));
    broken.send([22, 3, 1, 0, 6, 1, 0, 0, 2, 3, 3]);
    assert_eq!(broken.read_exact(7), [21, 3, 3, 0, 2, 2, 50]);
    let mut slow = Client::plain(engine.address("sni"));
    slow.send(&hello("shop.test")[..20]);
    slow.read_timeout(Duration::from_secs(5));
    assert_ne!(slow.ending(), Ending::Open);
    let mut gone = Client::plain(engine.address("sni"));
    gone.send(&hello("shop.test")[..20]);
    gone.finish();
    for reason in ["not-tls", "bad-hello", "hello-timeout", "client-closed"] {
        engine.metric_reaches("propylon_relays_total", &[("reason", reason)], 1.0);
    }
    assert_eq!(origin.connections(), 0);
}

#[test]
fn a_hello_without_an_end_is_not_listened_to_for_ever() {
    let origin = Origin::always("x");
    let engine = Engine::start(&passthrough("", &[("", origin.address())]));
    // One message of 64 KiB in records of one byte.
    let records: Vec<u8> = (0..65_000).flat_map(|_| [22, 3, 1, 0, 1, 0]).collect();
    let offer = |clients: std::ops::Range<u8>| {
        for count in clients {
            let mut client = Client::plain(engine.address("sni"));
            client.offer(&[22, 3, 1, 0, 4, 1, 0, 0xff, 0xff]);
            client.offer(&records);
            // Otherwise the engine lingers for what the client may still send.
            drop(client);
            engine.metric_reaches("propylon_relays_total", &[("reason", "bad-hello")], f64::from(count));
        }
    };
    offer(1..5);
    let before = engine.rss();
    offer(5..41);
    let growth = engine.rss().saturating_sub(before);
    // A hello has 390 KB. Buffers of the workers stay, for those that come next.
    assert!(growth < 8 << 20, "{growth} bytes for 36 clients");
}
