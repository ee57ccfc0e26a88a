//! The PROXY protocol in and out, with haproxy and nginx on the other side.

use std::net::SocketAddr;
use std::time::Duration;

use propylon_e2e::engine::with;
use propylon_e2e::external::External;
use propylon_e2e::program::{curl, s_client};
use propylon_e2e::{Client, Ending, Engine, Origin};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
/// An address of this machine that is not everybody's.
const CLIENT: &str = "127.0.0.5";

/// haproxy that hands everything on to `server`, with a header in front.
fn in_front(server: SocketAddr, version: &str) -> External {
    External::haproxy(&format!("listen front\n mode tcp\n bind {{address}}\n server s {server} {version}\n"))
}

/// Asks from `CLIENT`.
fn ask(scheme: &str, address: SocketAddr, more: &[&str]) -> String {
    let url = format!("{scheme}://localhost:{}/", address.port());
    curl(&[&["--interface", CLIENT, &url], more].concat()).ok().text()
}

#[test]
fn a_client_is_known_by_the_address_that_haproxy_tells() {
    let origin = Origin::always(OK);
    let engine = Engine::start(&with(&[origin.address()], "accept_proxy_protocol = true", ""));
    for version in ["send-proxy", "send-proxy-v2"] {
        for (listener, scheme) in [("plain", "http"), ("web", "https")] {
            let front = in_front(engine.address(listener), version);
            assert_eq!(ask(scheme, front.address(), &[]), "ok", "{version} {listener}");
            let line = engine.logged("the request", |line| line["listener"] == listener);
            assert!(line["client"].as_str().is_some_and(|text| text.starts_with("127.0.0.5:")), "{line}");
        }
    }
    let told = origin.received_text().matches("X-Forwarded-For: 127.0.0.5\r\n").count();
    assert_eq!(told, 4, "{}", origin.received_text());
}

#[test]
fn whoever_connects_without_a_header_is_not_listened_to() {
    let origin = Origin::always(OK);
    let listener = "accept_proxy_protocol = true\ntimeouts = { handshake = \"1s\" }";
    let engine = Engine::start(&with(&[origin.address()], listener, ""));
    let mut bare = Client::plain(engine.address("plain"));
    bare.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_ne!(bare.ending(), Ending::Open);
    let mut wrong = Client::plain(engine.address("plain"));
    wrong.send("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\nGET / HTTP/1.1\r\n");
    assert_ne!(wrong.ending(), Ending::Open);
    let mut slow = Client::plain(engine.address("web"));
    slow.send("PROXY TCP4 1.2.3.4");
    slow.read_timeout(Duration::from_secs(5));
    assert_ne!(slow.ending(), Ending::Open);
    for reason in ["no-proxy-header", "bad-proxy-line", "timeout"] {
        engine.metric_reaches("propylon_proxy_protocol_refused_total", &[("reason", reason)], 1.0);
    }
    assert_eq!(origin.connections(), 0);
}

#[test]
fn only_the_proxies_that_are_named_speak_for_clients() {
    let origin = Origin::always(OK);
    let listener = "accept_proxy_protocol = true\ntrusted_proxies = [\"127.0.0.8/30\", \"::1\"]";
    let engine = Engine::start(&with(&[origin.address()], listener, ""));
    let from = |last: u8| Client::plain_from(std::net::Ipv4Addr::new(127, 0, 0, last).into(), engine.address("plain"));
    let announced = "PROXY TCP4 192.0.2.7 192.0.2.8 7 8\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut stranger = from(12).expect("the kernel's accept");
    let _ = stranger.try_send(announced.as_bytes());
    assert_eq!(stranger.ending(), Ending::Reset);
    engine.metric_reaches("propylon_proxy_protocol_refused_total", &[("reason", "untrusted-peer")], 1.0);
    assert_eq!(origin.connections(), 0);
    let mut proxy = from(11).expect("a proxy");
    proxy.send(announced);
    assert_eq!(proxy.read_response().text(), "ok");
    assert!(origin.received_text().contains("X-Forwarded-For: 192.0.2.7\r\n"), "{}", origin.received_text());
}

#[test]
fn a_header_may_come_in_pieces_and_a_request_right_behind_it() {
    let origin = Origin::always(OK);
    let engine = Engine::start(&with(&[origin.address()], "accept_proxy_protocol = true", ""));
    let mut client = Client::plain(engine.address("plain"));
    client.send("PROXY TCP6 2001:db");
    client.send("8::7 ::1 7 8\r");
    client.send("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_response().text(), "ok");
    assert_eq!(client.get("/again").text(), "ok");
    assert!(origin.received_text().contains("X-Forwarded-For: 2001:db8::7\r\n"), "{}", origin.received_text());
    let mut local = Client::plain(engine.address("plain"));
    local.send(b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(local.read_response().text(), "ok");
    assert!(origin.received_text().contains("X-Forwarded-For: 127.0.0.1\r\n"), "{}", origin.received_text());
}

#[test]
fn servers_are_told_of_the_client() {
    let nginx = External::nginx(
        "listen {address} proxy_protocol;\nlocation / { return 200 \"$proxy_protocol_addr $proxy_protocol_server_port\"; }",
    );
    let haproxy = External::haproxy(
        "frontend f\n mode http\n bind {address} accept-proxy\n \
         http-request return status 200 content-type text/plain lf-string \"%[src] %[dst_port]\"\n",
    );
    for server in [&nginx, &haproxy] {
        for version in ["v1", "v2"] {
            let relay = "[listener.relay]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\n\
                [listener.sealed]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\ntls = \"public\"\n\
                [[route]]\nlistener = \"relay\"\nbackend = \"app\"\n[[route]]\nlistener = \"sealed\"\nbackend = \"app\"\n";
            let backend = format!("send_proxy_protocol = \"{version}\"");
            let engine = Engine::start(&format!("{}{relay}", with(&[server.address()], "", &backend)));
            for (listener, scheme) in [("plain", "http"), ("web", "https"), ("relay", "http"), ("sealed", "https")] {
                let address = engine.address(listener);
                assert_eq!(ask(scheme, address, &[]), format!("{CLIENT} {}", address.port()), "{version} {listener}");
            }
            // Two clients on connections that stay open are not taken for each other.
            let mut one = engine.client("plain");
            for _ in 0..2 {
                assert!(one.get("/").text().starts_with("127.0.0.1 "), "{version}");
                assert!(ask("http", engine.address("plain"), &[]).starts_with("127.0.0.5 "), "{version}");
            }
        }
    }
}

/// An origin that answers with the PROXY line that the connection began with, and counts its connections.
fn teller() -> Origin {
    Origin::scripted(|peer| {
        let mut line = String::new();
        while let Some(request) = peer.read_request() {
            let text = String::from_utf8_lossy(&request).into_owned();
            if line.is_empty() {
                text.lines().next().unwrap_or_default().clone_into(&mut line);
            }
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{line}", line.len()));
        }
    })
}

#[test]
fn a_connection_that_began_with_a_clients_address_serves_that_client_only_and_serves_it_again() {
    let origin = teller();
    for reuse in ["always", "safe", "never"] {
        let backend = format!("send_proxy_protocol = \"v1\"\nreuse = \"{reuse}\"");
        let engine = Engine::start(&with(&[origin.address()], "", &backend));
        let before = origin.connections();
        let mut clients: Vec<Client> = (0..4).map(|_| engine.client("plain")).collect();
        for _ in 0..5 {
            for client in &mut clients {
                let port = client.local_port();
                let told = client.get("/").text();
                assert!(told.starts_with("PROXY TCP4 127.0.0.1 127.0.0.1 "), "{told}");
                assert_eq!(told.split(' ').nth(4), Some(port.to_string().as_str()), "{told}");
            }
        }
        assert_eq!(origin.connections() - before, 4, "one for each client: {reuse}");
        drop(clients);
        engine.metric_reaches("propylon_server_connections", &[], 0.0);
    }
}

#[test]
fn where_connections_are_few_no_client_gets_one_that_began_with_another() {
    let origin = teller();
    let config = format!(
        "[process]\nworkers = 2\n[listener.plain]\nbind = \"127.0.0.1:0\"\n\
         [backend.app]\nservers = [{{ address = \"{}\", max_connections = 2 }}]\nsend_proxy_protocol = \"v1\"\n\
         [[route]]\nbackend = \"app\"\n",
        origin.address()
    );
    let engine = Engine::start(&config);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = engine.client("plain");
                let port = client.local_port().to_string();
                for _ in 0..20 {
                    let told = client.get("/").text();
                    assert_eq!(told.split(' ').nth(4), Some(port.as_str()), "{told}");
                }
            });
        }
    });
    assert!(origin.connections() > 8, "they were taken from each other and not shared: {}", origin.connections());
    engine.metric_reaches("propylon_queue_depth", &[], 0.0);
    engine.metric_reaches("propylon_server_connections", &[], 0.0);
}

#[test]
fn what_was_told_is_told_on() {
    let nginx = External::nginx(
        "listen {address} proxy_protocol;\nlocation / { return 200 \"$proxy_protocol_addr $proxy_protocol_port \
         $proxy_protocol_server_addr $proxy_protocol_server_port\"; }",
    );
    let both = with(&[nginx.address()], "accept_proxy_protocol = true", "send_proxy_protocol = \"v2\"");
    let engine = Engine::start(&both);
    let mut client = Client::plain(engine.address("plain"));
    client.send("PROXY TCP4 192.0.2.7 198.51.100.9 12345 443\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_response().text(), "192.0.2.7 12345 198.51.100.9 443");
}

#[test]
fn servers_are_told_of_the_tls_that_ended_here() {
    let origin = Origin::scripted(|peer| {
        peer.read_some();
        peer.send("seen");
        peer.close();
    });
    let engine = Engine::start(&format!(
        "[listener.sealed]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\ntls = \"public\"\n\
         [backend.app]\nservers = [\"{}\"]\nsend_proxy_protocol = \"v2\"\n\
         [[route]]\nlistener = \"sealed\"\nbackend = \"app\"\n",
        origin.address()
    ));
    let mut client = Client::tls(engine.address("sealed"));
    assert_eq!(client.read_exact(4), b"seen");
    let received = origin.received().concat();
    assert_eq!(received[..14], *b"\r\n\r\n\0\r\nQUIT\n\x21\x11");
    let has = |part: &[u8]| received.windows(part.len()).any(|window| window == part);
    // PP2_TYPE_AUTHORITY, PP2_SUBTYPE_SSL_VERSION, the start of PP2_TYPE_SSL with no certificate, and of the suite's name.
    assert!(has(b"\x02\0\x09localhost") && has(b"\x21\0\x07TLSv1.3") && has(b"\x01\0\0\0\x01\x21"), "{received:?}");
    assert!(has(b"TLS_"), "{received:?}");
}

/// The type-length-value triples of the PROXY protocol, version 2, in `bytes`.
fn triples(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut all = Vec::new();
    while let [kind, high, low, rest @ ..] = bytes {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        all.push((*kind, rest[..length].to_vec()));
        bytes = &rest[length..];
    }
    assert!(bytes.is_empty(), "{bytes:?}");
    all
}

#[test]
fn every_field_of_the_tls_that_ended_here_is_where_the_specification_has_it() {
    let origin = Origin::scripted(|peer| {
        peer.read_some();
        peer.send("* OK\r\n");
        peer.close();
    });
    let engine = Engine::start(&format!(
        "[listener.sealed]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\ntls = \"public\"\nalpn = [\"imap\"]\n\
         [backend.app]\nservers = [\"{}\"]\nsend_proxy_protocol = \"v2\"\n\
         [[route]]\nlistener = \"sealed\"\nbackend = \"app\"\n",
        origin.address()
    ));
    let port = engine.address("sealed").port();
    let options = ["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256", "-alpn", "imap", "-servername", "localhost"];
    let said = s_client(port, &options, "");
    assert!(said.text().contains("ALPN protocol: imap"), "{}", said.text());
    let received = origin.received().concat();
    // Signature, PROXY, TCP over IPv4, and the length of all that follows.
    assert_eq!(received[..14], *b"\r\n\r\n\0\r\nQUIT\n\x21\x11");
    let length = usize::from(u16::from_be_bytes([received[14], received[15]]));
    let body = &received[16..16 + length];
    assert_eq!((&body[..4], &body[4..8]), (&[127, 0, 0, 1][..], &[127, 0, 0, 1][..]));
    assert_eq!(body[10..12], port.to_be_bytes());
    let triples_seen = triples(&body[12..]);
    let field = |kind: u8| triples_seen.iter().find(|(known, _)| *known == kind).map(|(_, value)| value.as_slice());
    assert_eq!(field(0x01), Some(&b"imap"[..]), "PP2_TYPE_ALPN");
    assert_eq!(field(0x02), Some(&b"localhost"[..]), "PP2_TYPE_AUTHORITY");
    let ssl = field(0x20).expect("PP2_TYPE_SSL");
    // PP2_CLIENT_SSL and nothing else; and `verify` is not 0, as nobody was verified.
    assert_eq!(ssl[..5], [1, 0, 0, 0, 1]);
    let ssl = triples(&ssl[5..]);
    assert!(ssl.contains(&(0x21, b"TLSv1.2".to_vec())), "{ssl:?}");
    assert!(ssl.contains(&(0x23, b"ECDHE-ECDSA-AES128-GCM-SHA256".to_vec())), "{ssl:?}");
    assert!(!ssl.iter().any(|(kind, _)| *kind == 0x22), "no certificate, no common name");
}
