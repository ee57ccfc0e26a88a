//! Changes that routes make to requests and responses: fields, host, path, query, cookies, redirects. Clients and
//! servers of HTTP/1 and HTTP/2, in all pairs.

use std::process::Command;
use std::time::Duration;

use propylon_e2e::engine::{simple, with};
use propylon_e2e::external::External;
use propylon_e2e::frames::{END_HEADERS, HEADERS, Http2Server, block};
use propylon_e2e::http::values;
use propylon_e2e::origin::dead;
use propylon_e2e::program::{curl, run, websocket_accept};
use propylon_e2e::{Certificates, Engine, Origin, Scratch, binaries, holds};

/// Fields of the server's answers, whose body is the request as the server got it.
const ANSWER: &str = "Server: app/1.0\r\nX-Powered-By: PHP\r\nVary: Accept\r\nVary: Accept-Language\r\n\
    Cache-Control: public\r\nSet-Cookie: a=b; Path=/; Domain=app.internal\r\nSet-Cookie: __Host-c=d; Path=/; Secure\r\n\
    X-Kept: k\r\nDate: theirs\r\n";

const REQUEST: &str = "request = { set = { X-Real-IP = \"{client.ip}\", Authorization = \"Basic e30=\" }, \
    add = { X-Tag = \"{request.method} {request.host}{request.path}{request.query} by {route.path}\" }, \
    append = { X-Way = \"edge\", X-New = \"one\" }, remove = [\"X-Debug\", \"Cookie\"], host = \"app.internal:81\", \
    path = { strip = \"/api\" }, query = { set = { v = \"3 &\" }, add = { ip = \"{request.source}\" }, remove = [\"utm\"] } }\n";

const RESPONSE: &str = "response = { set = { Cache-Control = \"no-store\", X-Path = \"{request.path}\" }, \
    add = { X-Scheme = \"{request.scheme}\" }, append = { Vary = \"Origin\" }, \
    remove = [\"Server\", \"Via\", \"X-Powered-By\"], \
    cookies = { secure = true, http_only = true, same_site = \"lax\", domain = \"shop.test\", path = \"/api\" } }\n";

fn origin() -> Origin {
    Origin::answering(|request| {
        let head = format!("HTTP/1.1 200 OK\r\n{ANSWER}Content-Length: {}\r\n\r\n", request.len());
        [head.as_bytes(), request].concat()
    })
}

/// An engine whose only route has these lines.
fn engine(origin: &Origin, lines: &str) -> Engine {
    Engine::start(&format!("{}{lines}", simple(&[origin.address()])))
}

#[test]
fn every_change_of_a_request_in_exact_bytes() {
    let origin = origin();
    let engine = engine(&origin, REQUEST);
    let response = engine.client("plain").ask(
        "GET /api/x%2f?a=%zz&utm=1&v=0&utm HTTP/1.1\r\nHost: Shop.Test:8080\r\nX-Real-IP: 1.2.3.4\r\nAuthorization: mine\r\n\
         authorization: other\r\nX-Way: a\r\nX-One: 1\r\nx-way: b\r\nX_Debug: 1\r\nX-Debug: 2\r\nCookie: c=d\r\n\r\n"
            .replace("%2f", "%c3%a9"),
    );
    assert_eq!(
        response.text(),
        "GET /x%C3%A9?a=%zz&v=3%20%26&ip=127.0.0.1 HTTP/1.1\r\nHost: app.internal:81\r\nX-One: 1\r\n\
         X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: Shop.Test:8080\r\n\
         X-Way: a, b, edge\r\nX-New: one\r\nX-Real-IP: 127.0.0.1\r\nAuthorization: Basic e30=\r\n\
         X-Tag: GET shop.test/api/x%C3%A9?a=%zz&utm=1&v=0&utm by /\r\n\r\n"
    );
    // The log has what the client has asked for.
    assert_eq!(engine.logged_path("/api/x%c3%a9?a=%zz&utm=1&v=0&utm")["host"], "Shop.Test:8080");
    let other = engine.client("plain").ask("GET /apix HTTP/1.0\r\nConnection: close\r\n\r\n").text();
    assert!(other.starts_with("GET /apix?v=3%20%26&ip=127.0.0.1 HTTP/1.1\r\nHost: app.internal:81\r\n"), "{other}");
    assert!(!other.contains("X-Tag"), "a host is not known, and the field is left out whole: {other}");
    let options = engine.client("plain").ask("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").text();
    assert!(options.starts_with("OPTIONS * HTTP/1.1\r\nHost: app.internal:81\r\n"), "{options}");
}

#[test]
fn every_change_of_a_response_in_exact_bytes() {
    let origin = origin();
    let engine = engine(&origin, RESPONSE);
    let response = engine.client("plain").ask("GET /api HTTP/1.1\r\nHost: shop.test\r\n\r\n");
    let length = response.field("Content-Length").expect("a length").to_owned();
    assert_eq!(
        response.head,
        format!(
            "HTTP/1.1 200 OK\r\nX-Kept: k\r\nDate: theirs\r\nContent-Length: {length}\r\n\
             Vary: Accept, Accept-Language, Origin\r\nSet-Cookie: a=b; Domain=shop.test; Path=/api; Secure; HttpOnly; SameSite=Lax\r\n\
             Set-Cookie: __Host-c=d; Path=/; Secure; HttpOnly; SameSite=Lax\r\nCache-Control: no-store\r\nX-Path: /api\r\n\
             X-Scheme: http"
        )
    );
}

#[test]
fn an_interim_response_has_nothing_that_the_route_removes_and_nothing_of_its_own() {
    let fields = [
        ("link", "</a.css>"),
        ("server", "x"),
        ("x-powered-by", "y"),
        ("set-cookie", "a=b"),
        ("vary", "Accept"),
        ("cache-control", "public"),
        ("access-control-allow-origin", "*"),
        ("x-request-id", "theirs"),
    ];
    let lines: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let final_one = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let framing = "Content-Length: 3\r\nConnection: X-Hop\r\nX-Hop: 1\r\n";
    let old = Origin::always(format!(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n{lines}{framing}\r\n{final_one}"
    ));
    let new = Origin::scripted(move |peer| {
        let Some(mut server) = Http2Server::start(peer, &[]) else { return };
        while let Some(frame) = server.next_frame() {
            if frame.kind == HEADERS {
                server.send(HEADERS, END_HEADERS, frame.stream, &block(&[(":status", "100")]));
                let hints = [&[(":status", "103")][..], &fields].concat();
                server.send(HEADERS, END_HEADERS, frame.stream, &block(&hints));
                server.answer(frame.stream, b"ok");
            }
        }
    });
    for (origin, protocol) in [(&old, ""), (&new, "protocol = \"h2\"")] {
        let ids = "request_id = { return = true }";
        let text = with(&[origin.address()], ids, protocol);
        let engine = Engine::start(&format!("{text}cors = {{ origins = [\"https://a.test\"] }}\n{RESPONSE}"));
        let mut client = engine.client("plain");
        assert!(client.get("/").head.starts_with("HTTP/1.1 100 "), "{protocol}");
        let hints = client.read_response().head.to_lowercase();
        let (status, hints) = hints.split_once("\r\n").expect("fields");
        assert!(status.starts_with("http/1.1 103 "), "{status}");
        assert_eq!(hints, "link: </a.css>\r\nvary: accept", "{protocol}");
        let last = client.read_response();
        assert_eq!((last.status, last.field("X-Scheme"), last.text().as_str()), (200, Some("http"), "ok"));
        let said = curl(&["-sk", "-D-", "--http2", &engine.url("web")]).ok().text();
        let interim = said.split("\r\n\r\n").find(|head| head.contains(" 103")).expect("hints");
        assert_eq!(interim.trim_end(), "HTTP/2 103 \r\nlink: </a.css>\r\nvary: Accept", "{protocol}");
        assert!(said.contains("\r\nx-scheme: https\r\n") && said.ends_with("ok"), "{said}");
    }
}

#[test]
fn all_pairs_of_protocols_get_the_same_changes() {
    let origin = origin();
    let back = Engine::start(&with(&[origin.address()], "forwarded = \"append\"", ""));
    let fronts = [
        Engine::start(&format!("{}{REQUEST}{RESPONSE}", simple(&[origin.address()]))),
        Engine::start(&format!("{}{REQUEST}{RESPONSE}", with(&[back.address("plain")], "", "protocol = \"h2\""))),
    ];
    for (number, front) in fronts.iter().enumerate() {
        for (listener, version) in [("plain", "--http1.1"), ("plain", "--http2-prior-knowledge"), ("web", "--http2")] {
            let url = format!("{}/api/x?utm=1&a=b", front.url(listener));
            let fields = ["-H", "X-Debug: 1", "-H", "x-way: a", "-H", "Host: shop.test", "-b", "c=d"];
            let said = curl(&[&["-i", version, &url][..], &fields].concat()).ok().text();
            let (head, request) = said.split_once("\r\n\r\n").expect("a head");
            let pair = format!("server {number}, {listener} {version}: {said}");
            assert!(request.starts_with("GET /x?a=b&v=3%20%26&ip=127.0.0.1 HTTP/1.1\r\n"), "{pair}");
            for (name, wanted) in [
                ("Host", &["app.internal:81"][..]),
                ("X-Real-IP", &["127.0.0.1"]),
                ("Authorization", &["Basic e30="]),
                ("X-Tag", &["GET shop.test/api/x?utm=1&a=b by /"]),
                ("X-Way", &["a, edge"]),
                ("X-New", &["one"]),
                ("X-Debug", &[]),
                ("Cookie", &[]),
                ("X-Forwarded-Host", &["shop.test"]),
            ] {
                assert_eq!(values(request, name), wanted, "{name}, {pair}");
            }
            let scheme = if listener == "web" { "https" } else { "http" };
            for (name, wanted) in [
                ("Cache-Control", &["no-store"][..]),
                ("X-Path", &["/api/x"]),
                ("X-Scheme", &[scheme]),
                ("Vary", &["Accept, Accept-Language, Origin"]),
                ("Server", &[]),
                ("Via", &[]),
                ("X-Powered-By", &[]),
                ("X-Kept", &["k"]),
                (
                    "Set-Cookie",
                    &[
                        "a=b; Domain=shop.test; Path=/api; Secure; HttpOnly; SameSite=Lax",
                        "__Host-c=d; Path=/; Secure; HttpOnly; SameSite=Lax",
                    ],
                ),
            ] {
                assert_eq!(values(head, name), wanted, "{name}, {pair}");
            }
        }
    }
}

#[test]
fn paths_are_changed_and_stay_canonical() {
    let origin = origin();
    for (lines, path, wanted) in [
        ("request = { path = { replace = \"/all\" } }", "/x/y?a=b", "/all?a=b"),
        ("path = \"/a\"\nrequest = { path = { replace_prefix = \"/b/c\" } }", "/a/x", "/b/c/x"),
        ("path = \"/a\"\nrequest = { path = { replace_prefix = \"/\" } }", "/a", "/"),
        ("request = { path = { strip = \"/api\" } }", "/api", "/"),
        ("request = { path = { strip = \"/api\" } }", "//%61pi/./x//y", "/x/y"),
        ("request = { path = { strip = \"/api\" } }", "/api;v=1/x;w", "/x;w"),
        ("request = { path = { strip = \"/api\" } }", "/api?q", "/?q"),
        (
            "request = { path = { regex = '^/u/([0-9]+)/(?P<rest>.*)$', to = '/users/$1?rest=${rest}&x' } }",
            "/u/7/a&b=c?q=1",
            "/users/7?rest=a%26b%3Dc&x&q=1",
        ),
        (
            "request = { path = { regex = '^/(.*)$', to = '/$1?z=$1&y' }, query = { set = { z = \"1\" } } }",
            "/a?z=b&x",
            "/a?y&x&z=1",
        ),
        ("request = { path = { regex = '^/old', to = '/new' } }", "/older/old", "/newer/old"),
        ("request = { path = { regex = '^/a(.*)$', to = '/b/.$1' } }", "/a./c", "/c"),
        ("request = { query = { remove = [\"a\"] } }", "/x?a=1&a", "/x"),
    ] {
        let engine = engine(&origin, lines);
        for (version, what) in [("--http1.1", "HTTP/1"), ("--http2-prior-knowledge", "HTTP/2")] {
            let url = format!("{}{path}", engine.url("plain"));
            let said = curl(&["--path-as-is", version, &url]).ok().text();
            assert!(said.starts_with(&format!("GET {wanted} HTTP/1.1\r\n")), "{what} {lines} {path}: {said}");
        }
    }
    let engine = engine(&origin, "request = { path = { regex = '^/a(.*)$', to = '/.$1' } }");
    let refused = engine.client("plain").get("/a./c");
    assert_eq!((refused.status, refused.text().as_str()), (400, "400 Bad Request: path-above-root\n"));
    let long = Engine::start(&format!(
        "{}request = {{ query = {{ set = {{ a = \"{}\" }} }} }}\n",
        simple(&[origin.address()]),
        "x".repeat(4000)
    ));
    let path = format!("/{}", "y".repeat(13_000));
    assert_eq!(long.client("plain").get(&path).status, 414, "the head would be longer than one may be");
}

#[test]
fn a_redirect_changes_paths_as_a_request_does() {
    let config = |lines: &str| format!("[listener.plain]\nbind = \"127.0.0.1:0\"\n[[route]]\n{lines}\n");
    for (lines, path, wanted) in [
        (
            "path = \"/old\"\nredirect = { path = { replace_prefix = \"/new\" } }",
            "/old/x?a=b",
            "http://shop.test/new/x?a=b",
        ),
        ("redirect = { scheme = \"https\", path = { strip = \"/api\" } }", "/api", "https://shop.test/"),
        ("redirect = { scheme = \"https\", path = { strip = \"/api\" } }", "/x?y", "https://shop.test/x?y"),
        ("redirect = { path = { strip = \"/go\" } }", "/go//evil.test", "http://shop.test/evil.test"),
        (
            "redirect = { status = 301, path = { regex = '^/blog/([0-9]+)$', to = '/b?id=$1' } }",
            "/blog/7",
            "http://shop.test/b?id=7",
        ),
    ] {
        let engine = Engine::start(&config(lines));
        let response = engine.client("plain").ask(format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\n\r\n"));
        assert_eq!(response.field("Location"), Some(wanted), "{lines} {path}");
        let head = curl(&[
            "-i",
            "--http2-prior-knowledge",
            "--path-as-is",
            "-H",
            "Host: shop.test",
            &format!("{}{path}", engine.url("plain")),
        ]);
        assert_eq!(values(&head.ok().text(), "location"), [wanted], "{lines} {path}");
    }
    let engine = Engine::start(&config("redirect = { path = { regex = '^/a', to = '/b' } }"));
    assert_eq!(
        engine.client("plain").get("/x").status,
        404,
        "a redirect to where the request came from would never end"
    );
}

#[test]
fn answers_of_the_engine_are_changed_as_servers_are() {
    let fields = "response = { set = { Server = \"edge\", Retry-After = \"9\" }, add = { X-Path = \"{request.path}\" }, remove = [\"Allow\"] }\nsecurity_headers = \"strict\"\n";
    let strict = "Strict-Transport-Security: max-age=31536000; includeSubDomains\r\n";
    let careful = "X-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\nContent-Security-Policy: frame-ancestors 'none'\r\n\
        Referrer-Policy: same-origin\r\nCross-Origin-Opener-Policy: same-origin\r\n";
    let text = format!(
        "{}{fields}[[route]]\npath = \"/fixed\"\nrespond = {{ body = \"hi\" }}\n{fields}\
         [[route]]\npath = \"/moved\"\nredirect = {{ path = \"/x\" }}\n{fields}",
        simple(&[dead()])
    );
    let engine = Engine::start(&text);
    for (path, status, first) in [
        ("/fixed", "200 OK", ""),
        ("/moved", "308 Permanent Redirect", "Location: SCHEME://shop.test/x\r\n"),
        ("/app", "502 Bad Gateway", ""),
    ] {
        for listener in ["plain", "web"] {
            let (scheme, strict) = if listener == "web" { ("https", strict) } else { ("http", "") };
            let head = engine.client(listener).ask(format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\n\r\n")).head;
            let first = first.replace("SCHEME", scheme);
            let wanted = format!(
                "HTTP/1.1 {status}\r\n{first}Server: edge\r\nRetry-After: 9\r\nX-Path: {path}\r\n{strict}{careful}"
            );
            assert!(head.starts_with(&wanted), "{listener}\n{head}\n--\n{wanted}");
            let url = format!("{}{path}", engine.url(listener));
            let version = if listener == "web" { "--http2" } else { "--http2-prior-knowledge" };
            let said = curl(&["-i", version, "-H", "Host: shop.test", &url]).ok().text();
            let lower = wanted.split_once("\r\n").expect("lines").1.lines().map(|line| {
                let (name, value) = line.split_once(": ").expect("a field");
                format!("{}: {value}\r\n", name.to_lowercase())
            });
            let lower: String = lower.collect();
            assert!(said.contains(&lower), "{listener}\n{said}\n--\n{lower}");
        }
    }
}

#[test]
fn careful_fields_are_for_responses_that_lack_them() {
    let origin = Origin::always(
        "HTTP/1.1 200 OK\r\nx-frame-options: SAMEORIGIN\r\nReferrer-Policy: no-referrer\r\nContent-Length: 0\r\n\r\n",
    );
    let engine =
        engine(&origin, "security_headers = \"strict\"\nresponse = { remove = [\"Cross-Origin-Opener-Policy\"] }\n");
    let response = engine.client("web").get("/");
    for (name, wanted) in [
        ("Strict-Transport-Security", Some("max-age=31536000; includeSubDomains")),
        ("X-Content-Type-Options", Some("nosniff")),
        ("X-Frame-Options", Some("SAMEORIGIN")),
        ("Content-Security-Policy", None),
        ("Referrer-Policy", Some("no-referrer")),
        ("Cross-Origin-Opener-Policy", None),
    ] {
        assert_eq!(response.field(name), wanted, "{name}");
    }
    assert_eq!(engine.client("plain").get("/").field("Strict-Transport-Security"), None);
}

#[test]
fn a_repeat_at_another_server_has_the_same_changes_and_that_servers_name() {
    let closing = Origin::scripted(|peer| {
        let _ = peer.read_head();
        peer.close();
    });
    let origin = origin();
    let lines = "request = { host = \"{upstream.server}\", path = { strip = \"/api\" }, set = { X-Server = \"{upstream.server}\" } }\n\
        response = { set = { X-Served-By = \"{upstream.server}\" } }\n";
    let config = format!("{}{lines}", with(&[closing.address(), origin.address()], "", "balance = \"first\""));
    let engine = Engine::start(&config);
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let said = curl(&["-i", version, &format!("{}/api/x", engine.url("plain"))]).ok().text();
        let (head, request) = said.split_once("\r\n\r\n").expect("a head");
        let server = origin.address().to_string();
        assert!(request.starts_with(&format!("GET /x HTTP/1.1\r\nHost: {server}\r\n")), "{said}");
        assert_eq!(values(request, "X-Server"), [&server], "{said}");
        assert_eq!(values(head, "X-Served-By"), [&server], "{said}");
    }
    holds("the first server was asked as well", || {
        let name = closing.address().to_string();
        closing.received_text().contains(&format!("GET /x HTTP/1.1\r\nHost: {name}\r\n"))
    });
}

#[test]
fn trailers_cannot_bring_back_what_a_route_removes() {
    let origin = Origin::mirror();
    let chunked = "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Debug: 1\r\n\r\n";
    for (lines, wanted) in [("request = { remove = [\"X-Debug\"] }\n", false), ("request = { host = \"a\" }\n", true)] {
        let engine = engine(&origin, lines);
        let request = format!("POST / HTTP/1.1\r\nHost: a\r\nTrailer: X-Debug\r\n{chunked}");
        let seen = engine.client("plain").ask(request).text();
        assert_eq!(seen.contains("X-Debug"), wanted, "{seen}");
        assert!(seen.contains("1\r\nx\r\n0\r\n"), "{seen}");
    }
}

#[test]
fn an_expectation_and_a_body_go_on_with_changes() {
    let origin = Origin::scripted(|peer| {
        let Some(head) = peer.read_head() else { return };
        peer.send("HTTP/1.1 100 Continue\r\n\r\n");
        let body = peer.read_exact(4).unwrap_or_default();
        let text = [&head[..], &body].concat();
        peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", text.len()));
        peer.send(text);
    });
    let engine = engine(&origin, "request = { path = { strip = \"/api\" }, set = { X-A = \"1\" } }\n");
    let mut client = engine.client("web");
    client.send("POST /api/x HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
    assert!(client.read_head().starts_with("HTTP/1.1 100"));
    client.send("body");
    let seen = client.read_response().text();
    assert!(seen.starts_with("POST /x HTTP/1.1\r\nHost: a\r\n") && seen.ends_with("\r\n\r\nbody"), "{seen}");
    assert_eq!((values(&seen, "X-A"), values(&seen, "Expect")), (vec!["1"], vec!["100-continue"]));
}

#[test]
fn an_upgrade_has_the_changes_of_its_route() {
    const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
    let origin = Origin::scripted(|peer| {
        let Some(head) = peer.read_head() else { return };
        assert!(String::from_utf8_lossy(&head).starts_with("GET /chat HTTP/1.1\r\nHost: ws.internal\r\n"));
        let accept = websocket_accept(KEY);
        peer.send(format!(
            "HTTP/1.1 101 Switching Protocols\r\nServer: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n\r\nhello"
        ));
        peer.await_close(Duration::from_secs(10));
    });
    let lines = "request = { path = { strip = \"/live\" }, host = \"ws.internal\" }\nresponse = { set = { X-A = \"1\" }, remove = [\"Server\"] }\n";
    let engine = engine(&origin, lines);
    let mut client = engine.client("web");
    client.send(format!(
        "GET /live/chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
    ));
    let head = client.read_head();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert_eq!((values(&head, "X-A"), values(&head, "Server")), (vec!["1"], vec![]));
    assert_eq!(client.read_exact(5), b"hello");
}

#[test]
fn a_servers_redirects_lead_back_to_where_its_paths_are() {
    let origin = Origin::answering(|request| {
        let text = String::from_utf8_lossy(request).into_owned();
        let to = text.split_whitespace().nth(1).and_then(|path| path.strip_prefix("/?")).unwrap_or_default().to_owned();
        format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n").into_bytes()
    });
    let lines = "request = { path = { strip = \"/api\" } }\nresponse = { location = [{ from = \"http://app.internal\", \
        to = \"https://{request.host}/api\" }, { from = \"/\", to = \"/api/\" }] }\n";
    let engine = engine(&origin, lines);
    for (said, wanted) in [
        ("/login?x=1", "/api/login?x=1"),
        ("http://app.internal/a", "https://shop.test/api/a"),
        ("//cdn.test/a", "//cdn.test/a"),
        ("https://other.test/", "https://other.test/"),
        ("login", "login"),
    ] {
        for version in ["--http1.1", "--http2-prior-knowledge"] {
            let url = format!("{}/api?{said}", engine.url("plain"));
            let head = curl(&["-i", version, "-H", "Host: shop.test", &url]).ok().text();
            assert_eq!(values(&head, "Location"), [wanted], "{version} {said}");
        }
    }
}

#[test]
fn nginx_gets_what_a_route_makes_of_a_request() {
    let nginx = External::nginx(
        "listen {address};\nserver_name app.internal;\nlocation / { return 200 \"$request_uri $host $http_x_real_ip $http_x_debug|$http_x_forwarded_prefix\"; }",
    );
    let lines = "request = { path = { strip = \"/api\" }, host = \"app.internal\", remove = [\"X-Debug\"], \
        set = { X-Real-IP = \"{client.ip}\", X-Forwarded-Prefix = \"/api\" } }\nresponse = { set = { Server = \"edge\" } }\n";
    let engine = Engine::start(&format!("{}{lines}", simple(&[nginx.address()])));
    for (listener, version) in [("plain", "--http1.1"), ("web", "--http2")] {
        let url = format!("{}/api/x?a=b", engine.url(listener));
        let said = curl(&["-i", version, "-H", "X-Debug: 1", "-H", "X-Forwarded-Prefix: /evil", &url]).ok().text();
        let (head, body) = said.split_once("\r\n\r\n").expect("a head");
        assert_eq!(body, "/x?a=b app.internal 127.0.0.1 |/api", "{said}");
        assert_eq!(values(head, "Server"), ["edge"], "{said}");
    }
}

#[test]
fn a_trusted_proxys_fields_are_changed_too() {
    let origin = origin();
    let lines = "request = { set = { X-Forwarded-Prefix = \"/b\" }, append = { X-Forwarded-Port = \"443\" } }\n";
    let engine = Engine::start(&format!("{}{lines}", with(&[origin.address()], "forwarded = \"append\"", "")));
    let seen = engine.client("plain").ask("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Prefix: /a\r\nX-Forwarded-Port: 80\r\nX-Forwarded-Other: o\r\n\r\n").text();
    for (name, wanted) in [("X-Forwarded-Prefix", "/b"), ("X-Forwarded-Port", "80, 443"), ("X-Forwarded-Other", "o")] {
        assert_eq!(values(&seen, name), [wanted], "{seen}");
    }
}

#[test]
fn what_is_told_of_tls_is_told_of_every_request_of_a_connection() {
    let origin = origin();
    let engine = engine(&origin, "request = { set = { X-SNI = \"{tls.server_name}\", X-TLS = \"{tls.version}\" } }\n");
    let mut client = engine.client("web");
    for path in ["/1", "/2"] {
        let seen = client.get(path).text();
        assert_eq!((values(&seen, "X-SNI"), values(&seen, "X-TLS")), (vec!["localhost"], vec!["TLSv1.3"]), "{seen}");
    }
    let seen = engine.client("plain").get("/").text();
    assert_eq!((values(&seen, "X-SNI"), values(&seen, "X-TLS")), (vec![], vec![]), "{seen}");
}

#[test]
fn explain_shows_what_servers_and_clients_get() {
    let scratch = Scratch::new();
    let text = format!(
        "[listener.web]\nbind = \"127.0.0.1:8443\"\ntls = \"public\"\n[backend.app]\nservers = [\"127.0.0.1:1\"]\n\
         [[route]]\nbackend = \"app\"\n{REQUEST}response = {{ set = {{ X-A = \"{{tls.version}}\" }}, remove = [\"Server\"] }}\n{}",
        Certificates::shared().profile()
    );
    let path = scratch.write("propylon.toml", text).display().to_string();
    let explain = |more: &[&str]| {
        let mut command = Command::new(binaries::propylon());
        command.args(["explain", "-c", &path, "https://shop.test:8443/api/x?utm=1", "-H", "X-Way: a"]).args(more);
        run(command, b"", Duration::from_secs(20)).ok().text()
    };
    let said = explain(&[]);
    for line in [
        "asks for     /x?v=3%20%26&ip=127.0.0.1",
        "Host         app.internal:81",
        "request      X-Way: a, edge",
        "request      X-Real-IP: 127.0.0.1",
        "request      X-Tag: GET shop.test/api/x?utm=1 by /",
        "request      without X-Debug",
        "response     X-A: {tls.version}",
        "response     without Server",
    ] {
        assert!(said.lines().any(|said| said == line), "{line}\n{said}");
    }
    let said: serde_json::Value = serde_json::from_str(&explain(&["--json"])).expect("JSON");
    let changes = &said["listeners"][0]["changes"];
    assert_eq!(
        (&changes["target"], &changes["host"]),
        (&"/x?v=3%20%26&ip=127.0.0.1".into(), &"app.internal:81".into())
    );
    assert_eq!(changes["request"]["without"], serde_json::json!(["X-Debug", "Cookie"]));
}

#[test]
fn fields_that_are_not_to_go_on_do_not_go_on_as_trailers() {
    let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Internal: head\r\n\r\n5\r\nhello\r\n0\r\n\
                  x-internal: 10.0.0.1\r\nX-Set: theirs\r\nx-request-id: theirs\r\nX-Kept: 1\r\n\r\n";
    let server = Origin::always(answer);
    let inner = Engine::start(&simple(&[server.address()]));
    let changes = "response = { set = { X-Set = \"ours\" }, remove = [\"X-Internal\"] }";
    let engine = Engine::start(&format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\nrequest_id = {{ return = true }}\n\
         [backend.first]\nservers = [\"{}\"]\n[backend.second]\nprotocol = \"h2\"\nservers = [\"{}\"]\n\
         [[route]]\npath = \"/as-is\"\nbackend = \"first\"\nresponse = {{ add = {{ X-Set = \"ours\" }} }}\n\
         [[route]]\npath = \"/second\"\nbackend = \"second\"\n{changes}\n[[route]]\nbackend = \"first\"\n{changes}\n",
        server.address(),
        inner.address("plain")
    ));
    let mut client = engine.client("plain");
    for path in ["/first", "/second"] {
        // The connection goes on, with nothing left of the first.
        for _ in 0..2 {
            let response = client.ask(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\nTE: trailers\r\n\r\n"));
            assert_eq!(
                (response.text(), response.field("X-Internal"), response.field("X-Set")),
                ("hello".into(), None, Some("ours"))
            );
            let kept: Vec<String> = response.trailers.iter().map(|line| line.to_ascii_lowercase()).collect();
            assert_eq!(kept, ["x-kept: 1"], "{path}");
        }
        let url = format!("http://{}{path}", engine.address("plain"));
        let said = curl(&["--http2-prior-knowledge", "-i", "-H", "TE: trailers", &url]).ok().text();
        assert!(said.contains("hello") && said.contains("x-kept: 1") && said.contains("x-set: ours"), "{said}");
        assert!(!said.contains("x-internal") && !said.contains("theirs"), "{said}");
        assert_eq!(said.matches("x-request-id: ").count(), 1, "{said}");
    }
    let response = client.ask("GET /as-is HTTP/1.1\r\nHost: a.test\r\nTE: trailers\r\n\r\n");
    assert_eq!(response.trailers.len(), 3, "{:?}", response.trailers);
}
