//! What becomes of a message's fields on its way through: hop-by-hop ones end here, ours are added.

use std::net::Ipv4Addr;

use propylon_e2e::engine::{simple, with};
use propylon_e2e::external::External;
use propylon_e2e::http::values;
use propylon_e2e::{Client, Engine, Origin, holds};

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";

/// The head that the origin got for the request with this path.
#[track_caller]
fn forwarded(origin: &Origin, path: &str) -> String {
    let start = format!(" {path} HTTP/1.1\r\n");
    holds("the request is out", || origin.received_text().contains(&start));
    let text = origin.received_text();
    let at = text.find(&start).expect("just seen");
    let begin = text[..at].rfind('\n').map_or(0, |end| end + 1);
    text[begin..].split_once("\r\n\r\n").expect("a whole head").0.to_owned()
}

#[test]
fn a_plain_request_is_forwarded_with_who_asked_and_nothing_else() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&simple(&[origin.address()]));
    for (listener, scheme) in [("plain", "http"), ("web", "https")] {
        let path = format!("/{listener}?a=b&c=%2F");
        let mut client = engine.client(listener);
        client
            .ask(format!("GET {path} HTTP/1.1\r\nhOsT: Shop.Test:8080\r\nX-One: 1\r\nAccept: a\r\nAccept: b\r\n\r\n"));
        assert_eq!(
            forwarded(&origin, &path),
            format!(
                "GET {path} HTTP/1.1\r\nHost: Shop.Test:8080\r\nX-One: 1\r\nAccept: a\r\nAccept: b\r\n\
                 X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: {scheme}\r\nX-Forwarded-Host: Shop.Test:8080"
            )
        );
    }
}

#[test]
fn hop_by_hop_fields_end_here_both_ways() {
    let origin = Origin::always(
        "HTTP/1.1 200 OK\r\nConnection: X-Secret, keep-alive\r\nX-Secret: s\r\nKeep-Alive: timeout=5\r\n\
         Proxy-Authenticate: x\r\nProxy-Connection: keep-alive\r\nX-Open: o\r\nContent-Length: 0\r\n\r\n",
    );
    let engine = Engine::start(&simple(&[origin.address()]));
    let response = engine.client("web").ask(
        "GET /hops HTTP/1.1\r\nHost: a\r\nConnection: X-Mine, keep-alive\r\nX-Mine: 1\r\nKeep-Alive: 5\r\n\
         Proxy-Connection: keep-alive\r\nProxy-Authorization: x\r\nTE: trailers, gzip\r\nX-Kept: k\r\nProxy: evil\r\n\
         HTTP2-Settings: x\r\nContent_Length: 9\r\n\r\n",
    );
    for gone in ["X-Secret", "Keep-Alive", "Proxy-Authenticate", "Proxy-Connection"] {
        assert_eq!(response.field(gone), None, "{}", response.head);
    }
    assert_eq!(response.field("X-Open"), Some("o"));
    assert_eq!(response.fields("Via").len(), 1, "{}", response.head);
    assert!(response.field("Date").is_some(), "one is made where the server gave none");
    let head = forwarded(&origin, "/hops");
    for gone in
        ["X-Mine", "Keep-Alive", "Proxy-Connection", "Proxy-Authorization", "Proxy", "HTTP2-Settings", "Content_Length"]
    {
        assert_eq!(values(&head, gone), Vec::<&str>::new(), "{head}");
    }
    assert_eq!(values(&head, "X-Kept"), ["k"]);
}

/// It announces what comes behind a body, and not everything does.
#[test]
fn a_trailer_field_goes_on_where_trailers_do() {
    let origin = Origin::mirror();
    let chunked = "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Sum: 1\r\n\r\n";
    for (listener, framing, wanted) in [
        ("", chunked, 1),
        ("", "Content-Length: 1\r\n\r\nx", 0),
        ("", "\r\n", 0),
        ("request_headers = { \"X-TLS-Version\" = \"{tls.version}\" }", chunked, 0),
    ] {
        let tls = "tls = \"public\"\n";
        let config = simple(&[origin.address()]).replace(tls, &format!("{tls}{listener}\n"));
        let engine = Engine::start(&config);
        let request = format!("POST / HTTP/1.1\r\nHost: a\r\nTrailer: X-Sum\r\n{framing}");
        let seen = engine.client("web").ask(request).text();
        assert_eq!(values(&seen, "Trailer").len(), wanted, "{listener} {framing}: {seen}");
        assert_eq!(seen.contains("\r\nX-Sum: 1\r\n"), wanted == 1, "{seen}");
    }
}

#[test]
fn a_connection_field_cannot_take_away_what_the_server_must_see() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&simple(&[origin.address()]));
    let ask = |options: &str| {
        let fields = "Host: a\r\nCookie: c\r\nVia: 1.1 other\r\nX-Mine: m";
        engine.client("web").ask(format!("GET /named HTTP/1.1\r\n{fields}\r\nConnection: {options}\r\n\r\n"))
    };
    assert_eq!(ask("close, X-Forwarded-For, X-Mine, Via").status, 200);
    let head = forwarded(&origin, "/named");
    assert_eq!(values(&head, "X-Mine"), Vec::<&str>::new(), "{head}");
    assert_eq!(values(&head, "X-Forwarded-For"), ["127.0.0.1"], "{head}");
    assert_eq!(values(&head, "Via"), ["1.1 other"], "{head}");
    for framing in ["Host", "Content-Length", "Transfer-Encoding"] {
        assert_eq!(ask(framing).status, 400, "{framing}");
    }
}

const CLAIMS: &str = "X-Real-IP: 1.2.3.4\r\nTrue-Client-IP: 1.2.3.4\r\nX-Original-URL: /secret\r\n\
    X-SSL-Client-Cert: eA==\r\nRemote-User: root\r\nX-Envoy-Original-Path: /secret\r\n\
    X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 5.6.7.8\r\nX-Forwarded-Proto: gopher\r\n\
    X-Forwarded-Host: evil.test\r\nForwarded: for=1.2.3.4;proto=gopher\r\nX-Forwarded-Port: 1\r\n";

fn claimed(policy: &str, path: &str) -> String {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&with(&[origin.address()], &format!("forwarded = \"{policy}\""), ""));
    engine.client("web").ask(format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\n{CLAIMS}\r\n"));
    forwarded(&origin, path)
}

#[test]
fn what_a_stranger_claims_about_itself_is_replaced() {
    let head = claimed("replace", "/replace");
    assert_eq!(values(&head, "X-Forwarded-For"), ["127.0.0.1"]);
    assert_eq!(values(&head, "X-Forwarded-Proto"), ["https"]);
    assert_eq!(values(&head, "X-Forwarded-Host"), ["shop.test"]);
    for gone in [
        "X-Forwarded-Port",
        "X-Real-IP",
        "True-Client-IP",
        "X-Original-URL",
        "X-SSL-Client-Cert",
        "Remote-User",
        "X-Envoy-Original-Path",
    ] {
        assert_eq!(values(&head, gone), Vec::<&str>::new(), "{gone}");
    }
    assert_eq!(values(&head, "Forwarded"), Vec::<&str>::new());
}

#[test]
fn a_server_that_reads_x_real_ip_can_have_it_and_a_client_cannot_write_it() {
    let origin = Origin::always(HELLO);
    let lines = "request_headers = { \"X-Real-IP\" = \"{client.ip}\" }";
    for policy in ["replace", "append", "remove"] {
        let engine = Engine::start(&with(&[origin.address()], &format!("{lines}\nforwarded = \"{policy}\""), ""));
        for listener in ["plain", "web"] {
            let path = format!("/real-{policy}-{listener}");
            engine.client(listener).ask(format!("GET {path} HTTP/1.1\r\nHost: a\r\n{CLAIMS}\r\n"));
            assert_eq!(values(&forwarded(&origin, &path), "X-Real-IP"), ["127.0.0.1"], "{path}");
        }
    }
}

#[test]
fn what_a_trusted_proxy_says_is_continued() {
    let head = claimed("append", "/append");
    assert_eq!(values(&head, "X-Forwarded-For"), ["1.2.3.4, 5.6.7.8, 127.0.0.1"]);
    assert_eq!((values(&head, "X-Real-IP"), values(&head, "X-Original-URL")), (vec!["1.2.3.4"], vec!["/secret"]));
    assert_eq!(values(&head, "X-Forwarded-Proto"), ["gopher"]);
    assert_eq!(values(&head, "X-Forwarded-Host"), ["evil.test"]);
    assert_eq!(
        values(&head, "Forwarded"),
        ["for=1.2.3.4;proto=gopher, for=127.0.0.1;host=shop.test;proto=https"],
        "{head}"
    );
}

#[test]
fn of_those_who_are_not_named_nothing_is_continued() {
    let origin = Origin::always(HELLO);
    let lines = "forwarded = \"append\"\ntrusted_proxies = [\"127.0.0.9\"]";
    let engine = Engine::start(&with(&[origin.address()], lines, ""));
    for (last, chain, named) in [(9, "1.2.3.4, 5.6.7.8, 127.0.0.9", 1), (10, "127.0.0.10", 0)] {
        let mut client =
            Client::tls_from(Ipv4Addr::new(127, 0, 0, last).into(), engine.address("web")).expect("a handshake");
        client.ask(format!("GET /from-{last} HTTP/1.1\r\nHost: a\r\n{CLAIMS}\r\n"));
        let head = forwarded(&origin, &format!("/from-{last}"));
        assert_eq!(values(&head, "X-Forwarded-For"), [chain], "{head}");
        assert_eq!((values(&head, "X-Real-IP").len(), values(&head, "Forwarded").len()), (named, named), "{head}");
    }
}

#[test]
fn nothing_is_said_of_the_client_where_that_is_wanted() {
    let head = claimed("remove", "/remove");
    assert!(!head.to_ascii_lowercase().contains("forwarded"), "{head}");
}

#[test]
fn nginx_compresses_for_our_clients_as_it_does_for_its_own() {
    let text = "compress me ".repeat(200);
    let server = External::nginx(&format!(
        "listen {{address}};\ngzip on;\ngzip_types text/plain;\ngzip_min_length 100;\ndefault_type text/plain;\n\
         location / {{ return 200 \"{text}\"; }}"
    ));
    for (via, encoded) in [(false, Some("gzip")), (true, None)] {
        let engine = Engine::start(&with(&[server.address()], "", &format!("via = {via}")));
        for listener in ["plain", "web"] {
            let request = "GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n";
            let response = engine.client(listener).ask(request);
            assert_eq!(response.field("Content-Encoding"), encoded, "{via} {listener}: {}", response.head);
            assert_eq!(response.field("Via"), Some("1.1 propylon"), "answers say so in any case");
        }
    }
}

#[test]
fn a_target_in_absolute_form_becomes_one_in_origin_form() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = engine.client("plain");
    client.ask("GET http://Shop.Test/absolute?q HTTP/1.1\r\nHost: shop.test\r\n\r\n");
    let head = forwarded(&origin, "/absolute?q");
    assert!(values(&head, "Host")[0].eq_ignore_ascii_case("shop.test"), "{head}");
    client.ask("GET http://shop.test?query HTTP/1.1\r\nHost: shop.test\r\n\r\n");
    forwarded(&origin, "/?query");
    client.ask("OPTIONS * HTTP/1.1\r\nHost: shop.test\r\n\r\n");
    forwarded(&origin, "*");
}
