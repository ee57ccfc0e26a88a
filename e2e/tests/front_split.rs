//! Places that a route's requests go to: backends by weight and for good, fallbacks, and copies; timeouts, repeats and
//! limits.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use propylon_e2e::frames::{CANCEL, DATA, END_HEADERS, END_STREAM, HEADERS, Http2, RST_STREAM, block, frame, request};
use propylon_e2e::origin::dead;
use propylon_e2e::program::{curl, run};
use propylon_e2e::wait::WAIT_MAX;
use propylon_e2e::{Client, Ending, Engine, Origin, Scratch, binaries, engine, holds, http};

/// An origin that says its name.
fn named(name: &'static str) -> Origin {
    Origin::always(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len()))
}

fn backend(name: &str, servers: &[SocketAddr], more: &str) -> String {
    let servers: Vec<String> = servers.iter().map(|address| format!("\"{address}\"")).collect();
    format!("[backend.{name}]\nservers = [{}]\n{more}\n", servers.join(", "))
}

/// Two listeners, these backends, and one route with these lines.
fn config(backends: &[String], route: &str) -> String {
    format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\n[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n{}\
         [[route]]\n{route}\n",
        backends.concat()
    )
}

const SPLIT: &str = "backend = [{ name = \"a\", weight = 90 }, { name = \"b\", weight = 10 }]";

fn two(route: &str) -> (Engine, [Origin; 2]) {
    let origins = [named("a"), named("b")];
    let backends = [backend("a", &[origins[0].address()], ""), backend("b", &[origins[1].address()], "")];
    (Engine::start(&config(&backends, route)), origins)
}

/// Names that so many requests are answered with, over HTTP/1.1 on one connection.
fn asked(engine: &Engine, number: usize) -> Vec<String> {
    let mut client = engine.client("plain");
    (0..number).map(|_| client.get("/").text()).collect()
}

fn count(names: &[String], name: &str) -> usize {
    names.iter().filter(|one| *one == name).count()
}

/// The cookie that a response sets, as it is sent back.
fn cookie(head: &str, name: &str) -> Option<String> {
    let lines = http::values(head, "Set-Cookie");
    let line = lines.iter().find(|line| line.starts_with(&format!("{name}=")))?;
    Some(line.split(';').next().unwrap_or_default().to_owned())
}

#[test]
fn requests_are_divided_by_weight_to_the_request_over_both_versions_of_http() {
    let (engine, _origins) = two(SPLIT);
    let names = asked(&engine, 300);
    assert_eq!((count(&names, "a"), count(&names, "b")), (270, 30));
    // Smooth: any ten in a row have one for the small side.
    for ten in names.windows(10) {
        assert_eq!(count(ten, "b"), 1, "{names:?}");
    }
    let mut http2 = Http2::start(&engine);
    let mut small = 0;
    for number in 0..100 {
        let stream = 2 * number + 1;
        http2.get(stream, "/");
        let (head, body) = http2.response(stream);
        assert_eq!(head.status(), Some(200));
        small += usize::from(body == b"b");
    }
    assert_eq!(small, 10);
    assert_eq!(engine.logged("a request of the small side", |line| line["backend"] == "b")["status"], 200);
    assert_eq!(engine.metric("propylon_server_requests_total", &[("backend", "b")]), 40.0);
}

#[test]
fn weights_that_a_reload_changes_hold_at_once_and_no_weight_gets_nothing() {
    let origins = [named("a"), named("b"), named("c")];
    let backends: Vec<String> =
        ["a", "b", "c"].iter().zip(&origins).map(|(name, origin)| backend(name, &[origin.address()], "")).collect();
    let text = |weights: [u32; 3], more: &str| {
        let sides = ["a", "b", "c"]
            .iter()
            .zip(weights)
            .map(|(name, weight)| format!("{{ name = \"{name}\", weight = {weight} }}"));
        config(&backends, &format!("backend = [{}]\n{more}", sides.collect::<Vec<_>>().join(", ")))
    };
    let engine = Engine::start(&text([1, 2, 3], ""));
    let counts = |engine: &Engine, number| {
        let names = asked(engine, number);
        ["a", "b", "c"].map(|name| count(&names, name))
    };
    assert_eq!(counts(&engine, 60), [10, 20, 30]);
    engine.rewrite(&text([0, 1, 0], ""));
    engine.reload();
    assert_eq!(counts(&engine, 20), [0, 20, 0]);
    engine.rewrite(&text([0, 0, 0], ""));
    engine.reload();
    let response = engine.client("plain").get("/nowhere");
    assert_eq!((response.status, response.text().as_str()), (503, "503 Service Unavailable: no-server\n"));
    assert_eq!(response.field("Retry-After"), Some("1"));
    assert_eq!(engine.logged_path("/nowhere")["fault"], "no-server");
    let first = [backends[0].clone(), backends[1].clone(), backends[2].clone()];
    engine.rewrite(&config(
        &first,
        "backend = [{ name = \"a\", weight = 0 }, { name = \"b\", weight = 0 }]\nfallback = \"c\"",
    ));
    engine.reload();
    assert_eq!(counts(&engine, 5), [0, 0, 5]);
}

#[test]
fn an_answer_in_the_place_of_a_backend_gets_its_share_and_nothing_more() {
    let origin = named("a");
    let backends = [backend("a", &[origin.address()], ""), backend("gone", &[dead()], "")];
    let text = |list: &str, more: &str| config(&backends, &format!("backend = [{list}]\n{more}"));
    let tenth = "{ name = \"a\", weight = 9 }, { respond = 503, weight = 1 }";
    let kept = "sticky = { cookie = \"side\" }\nfallback = \"gone\"\nretries = { attempts = 2, on = [503] }";
    let engine = Engine::start_beside(&[("503.txt", "later")], &text(tenth, kept));
    let mut client = engine.client("plain");
    let statuses: Vec<(u16, bool)> = (0..20)
        .map(|_| {
            let response = client.get("/");
            (response.status, response.field("Set-Cookie").is_some())
        })
        .collect();
    // The answer is no failure that is tried again or goes to the fallback, and nobody is kept there.
    assert_eq!(statuses.iter().filter(|said| **said == (503, false)).count(), 2, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|said| **said == (200, true)).count(), 18, "{statuses:?}");
    assert_eq!(engine.metric("propylon_server_requests_total", &[("backend", "a")]), 18.0);
    assert_eq!(engine.metric("propylon_fallbacks_total", &[("backend", "a")]), 0.0);
    let line = engine.logged("an answer", |line| line["status"] == 503);
    assert_eq!((&line["backend"], &line["fault"]), (&serde_json::Value::Null, &serde_json::Value::Null), "{line}");
    // A page of the status, bodies that nobody takes, and connections that go on.
    let all = "{ name = \"a\", weight = 0 }, { respond = 503 }";
    engine.rewrite(&text(all, "error_pages = { 503 = { text = \"503.txt\" } }\nbuffer = { request = { disk = 0 } }"));
    engine.reload();
    for _ in 0..2 {
        let response = client.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
        assert_eq!((response.status, response.text().as_str()), (503, "later"));
    }
    let mut http2 = Http2::start(&engine);
    for stream in [1, 3] {
        http2.get(stream, "/");
        let (head, body) = http2.response(stream);
        assert_eq!((head.status().or(head.spelled_status()), &body[..]), (Some(503), &b"later"[..]));
    }
    engine.rewrite(&text("{ name = \"a\", weight = 0 }, { respond = 204 }", ""));
    engine.reload();
    let upload = curl(&["-sk", "--http2", "-w", "%{http_code}", "-d", "a body", &engine.url("web")]).ok().text();
    assert_eq!((upload.as_str(), origin.connections()), ("204", 1));
}

#[test]
fn a_backend_of_a_list_gets_and_gives_fields_of_its_own_and_a_fallback_has_none_of_them() {
    let echo = || {
        Origin::answering(|request| {
            let body = String::from_utf8_lossy(request).into_owned();
            let head = "HTTP/1.1 200 OK\r\nX-Powered-By: php\r\nVary: Origin\r\nX-Said: server\r\nContent-Length: ";
            format!("{head}{}\r\n\r\n{body}", body.len()).into_bytes()
        })
    };
    let (a, b, spare) = (echo(), echo(), echo());
    let backends = [
        backend("a", &[a.address()], "retries = 0"),
        backend("b", &[b.address()], "protocol = \"http1\""),
        backend("down", &[dead()], "retries = 0"),
        backend("spare", &[spare.address()], ""),
    ];
    let changes = |name: &str| {
        format!(
            "request = {{ set = {{ X-Set = \"{name}\", X-Own = \"{name}\" }}, append = {{ X-Way = \"{name}\" }}, remove = [\"X-Gone\", \"X-Server\"] }}, \
             response = {{ set = {{ X-Said = \"{name}\" }}, append = {{ Vary = \"X-{name}\" }}, remove = [\"X-Powered-By\"] }}"
        )
    };
    let rules = "request = { set = { X-Set = \"route\", X-Kept = \"route\" }, append = { X-Way = \"route\" }, add = { X-Server = \"{upstream.server}\" } }\n\
                 response = { set = { X-Said = \"route\" } }";
    let list = format!(
        "backend = [{{ name = \"a\", {} }}, {{ name = \"b\" }}, {{ name = \"a\", request = {{ set = {{ X-Own = \"again\" }}, append = {{ X-Server = \"again\" }} }} }}]",
        changes("a")
    );
    let failing = format!(
        "[[route]]\npath = \"/down\"\nfallback = \"spare\"\n{rules}\nbackend = [{{ name = \"down\", {} }}]\n",
        changes("down")
    );
    let engine = Engine::start(&config(&backends, &format!("{list}\n{rules}\n{failing}")));
    let fields = "X-Gone: client\r\nX_Own: forged\r\nX-Way: client\r\nX-Set: client\r\n";
    let mut seen = std::collections::BTreeMap::new();
    let mut client = engine.client("plain");
    for _ in 0..3 {
        let response = client.ask(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
        let own = http::values(&response.text(), "X-Own").join(",");
        seen.insert(own, (response.text(), response.head.clone()));
    }
    let check = |own: &str, (text, head): &(String, String)| {
        let of = |name: &str| http::values(text, name).join(",");
        let said = |name: &str| http::values(head, name).join(",");
        let is_a = own == "a";
        assert_eq!(of("X-Set"), if is_a { "a" } else { "route" }, "{text}");
        assert_eq!(of("X-Way"), if is_a { "client, route, a" } else { "client, route" }, "{text}");
        assert_eq!((of("X-Kept").as_str(), of("X-Gone").is_empty()), ("route", is_a), "{text}");
        assert_eq!(of("X-Server").is_empty(), is_a, "{text}");
        // What the route says of the server is where the list begins.
        assert_eq!(of("X-Server") == format!("{}, again", a.address()), own == "again", "{text}");
        assert_eq!(said("X-Said"), if is_a { "a" } else { "route" }, "{head}");
        assert_eq!(said("Vary"), if is_a { "Origin, X-a" } else { "Origin" }, "{head}");
        assert_eq!(said("X-Powered-By").is_empty(), is_a, "{head}");
    };
    assert_eq!(seen.keys().map(String::as_str).collect::<Vec<_>>(), ["", "a", "again"]);
    seen.iter().for_each(|(own, exchanged)| check(own, exchanged));
    // Over HTTP/2, with TLS.
    for _ in 0..3 {
        let lines = ["-HX-Gone: client", "-HX-Way: client", "-HX-Set: client"];
        let said = curl(&[&["-sk", "--http2", "-D-"], &lines[..], &[&engine.url("web")]].concat()).ok().text();
        let (head, text) = said.split_once("\r\n\r\n").expect("a head");
        check(&http::values(text, "X-Own").join(","), &(text.to_owned(), format!("{head}\r\n\r\n")));
    }
    // The fallback gets what the route says, and gives it.
    let response = client.ask(format!("GET /down HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
    assert_eq!(response.status, 200);
    check("", &(response.text(), response.head.clone()));
    assert!(response.text().contains("X-Server: "), "{}", response.text());
}

#[test]
fn trailers_of_bodies_that_are_held_go_on_unless_an_entry_changes_fields_of_requests() {
    let origin = Origin::mirror();
    let inner = Engine::start(&engine::simple(&[origin.address()]));
    let backends =
        [backend("first", &[origin.address()], ""), backend("second", &[inner.address("plain")], "protocol = \"h2\"")];
    let route = |of: &str| {
        let side = |name: &str| format!("{{ name = \"{name}\", {of} = {{ set = {{ X-Side = \"{name}\" }} }} }}");
        format!(
            "path = \"/{of}\"\nbackend = [{}, {}]\nbuffer = {{ request = {{ memory = \"1MiB\", disk = 0 }} }}\n",
            side("first"),
            side("second")
        )
    };
    let passing =
        "[[route]]\npath = \"/passing\"\nbackend = [{ name = \"first\", request = { set = { X-Side = \"it\" } } }]";
    let routes = format!("{}[[route]]\n{}{passing}", route("request"), route("response"));
    let engine = Engine::start(&format!("[process]\nworkers = 1\n{}", config(&backends, &routes)));
    let mut client = engine.client("plain");
    let (mut http2, mut stream) = (Http2::start(&engine), 1);
    for of in ["request", "response"] {
        let head = format!("POST /{of} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n");
        let body = "5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n";
        let mut seen = Vec::new();
        for way in ["at once", "later", "frames"] {
            for _ in 0..2 {
                let (said, text) = if way == "frames" {
                    http2.headers(stream, 0, &request("POST", &format!("/{of}")));
                    http2.send(DATA, 0, stream, b"hello");
                    http2.headers(stream, END_STREAM, &[("x-sum", "1")]);
                    let answer = http2.response(stream).1;
                    stream += 2;
                    (None, String::from_utf8_lossy(&answer).to_ascii_lowercase())
                } else {
                    let pieces =
                        if way == "later" { vec![head.clone(), body.into()] } else { vec![format!("{head}{body}")] };
                    pieces.iter().for_each(|piece| client.send(piece));
                    let response = client.read_response();
                    (response.field("X-Side").map(str::to_owned), response.text().to_ascii_lowercase())
                };
                let told = |name: &str| http::values(&text, name).join(",");
                assert!(text.contains("hello"), "{of} {way}: {text}");
                if of == "request" {
                    // A server that merges trailers into the head is not to be led by them.
                    assert!(!text.contains("x-sum"), "{of} {way}: {text}");
                    assert_eq!(
                        (told("content-length"), told("transfer-encoding")),
                        ("5".into(), String::new()),
                        "{way}"
                    );
                    seen.push(told("x-side"));
                } else {
                    assert_eq!(told("transfer-encoding"), "chunked", "{of} {way}: {text}");
                    assert!(text.ends_with("0\r\nx-sum: 1\r\n\r\n"), "{of} {way}: {text}");
                    seen.extend(said);
                }
            }
        }
        let times = |name: &str| seen.iter().filter(|side| *side == name).count();
        assert_eq!((times("first"), times("second")), if of == "request" { (3, 3) } else { (2, 2) }, "{seen:?}");
    }
    // Nor does a body that passes through announce what does not come.
    let head = "POST /passing HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n";
    let text = client.ask(format!("{head}5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n")).text();
    assert!(text.contains("X-Side: it") && text.contains("hello") && !text.contains("X-Sum"), "{text}");
}

/// Trailers of a side's responses go on without what its entry or the route writes or removes: some merge them into the
/// head.
#[test]
fn trailers_of_a_side_go_on_without_the_fields_that_its_entry_or_the_route_changes() {
    let trailers = "X-Sum: 1\r\nX-Side: forged\r\nX-Gone: 2\r\nX-Route: 3\r\n";
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n";
    let origin = Origin::always(format!("{head}5\r\nhello\r\n0\r\n{trailers}\r\n"));
    let backends = [backend("a", &[origin.address()], "")];
    let entry = "{ name = \"a\", response = { set = { X-Side = \"own\" }, remove = [\"X-Gone\"] } }";
    let route = format!("backend = [{entry}]\nresponse = {{ remove = [\"X-Route\"] }}\n");
    let plain = "[[route]]\npath = \"/plain\"\nbackend = [{ name = \"a\" }]\nresponse = { remove = [\"X-Route\"] }\n";
    let engine = Engine::start(&config(&backends, &format!("{route}{plain}")));
    for (path, wanted) in [("/", "X-Sum: 1\r\n"), ("/plain", "X-Sum: 1\r\nX-Side: forged\r\nX-Gone: 2\r\n")] {
        let mut client = engine.client("plain");
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: close, TE\r\n\r\n"));
        let text = String::from_utf8_lossy(&client.read_to_end().0).into_owned();
        assert!(text.ends_with(&format!("5\r\nhello\r\n0\r\n{wanted}\r\n")), "{path}: {text}");
        let mut http2 = Http2::start(&engine);
        http2.get(1, path);
        let frames: Vec<_> = std::iter::from_fn(|| Some(http2.next_of(1))).take(3).collect();
        let last = frames.iter().find(|frame| frame.kind == HEADERS && frame.ends()).expect("trailers");
        let said = String::from_utf8_lossy(&last.payload).to_ascii_lowercase();
        let names = ["x-sum", "x-side", "x-gone", "x-route"].map(|name| said.contains(name));
        assert_eq!(names, [true, path != "/", path != "/", false], "{path}: {said}");
    }
}

#[test]
fn a_cookie_keeps_a_client_at_its_side() {
    let (engine, _origins) = two(&format!("{SPLIT}\nsticky = {{ cookie = \"side\", ttl = \"1h\" }}"));
    let mut client = engine.client("plain");
    let mut sides = std::collections::BTreeMap::new();
    for _ in 0..10 {
        let response = client.get("/");
        sides.insert(response.text(), cookie(&response.head, "side").expect("a cookie"));
        assert!(response.field("Set-Cookie").unwrap().ends_with("; Path=/; Max-Age=3600; HttpOnly; SameSite=Lax"));
    }
    assert_eq!(sides.len(), 2, "{sides:?}");
    for (name, cookie) in &sides {
        for _ in 0..20 {
            let response = client.ask(format!("GET / HTTP/1.1\r\nHost: a\r\nCookie: x=y; {cookie}\r\n\r\n"));
            assert_eq!((&response.text(), response.field("Set-Cookie")), (name, None));
        }
        let mut http2 = Http2::start(&engine);
        let mut fields = request("GET", "/");
        fields.push(("cookie", cookie));
        http2.client.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&fields)));
        let (_, body) = http2.response(1);
        assert_eq!(body, name.as_bytes());
    }
    let response = client.ask("GET / HTTP/1.1\r\nHost: a\r\nCookie: side=0123456789abcdef\r\n\r\n");
    assert!(sides.values().any(|known| Some(known) == cookie(&response.head, "side").as_ref()), "a new one");
    let https = curl(&["-sk", "-D-", "-o/dev/null", &engine.url("web")]).text();
    assert!(https.to_lowercase().contains("; secure; httponly"), "{https}");
}

/// A fallback is no side: who is sent there for want of a server keeps the cookie, and is back at its side afterwards.
#[test]
fn a_client_that_a_fallback_has_answered_keeps_the_cookie_of_its_side() {
    let origins = [named("a"), named("b"), named("spare")];
    let text = |drain: bool| {
        let a = format!("[backend.a]\nservers = [{{ address = \"{}\", drain = {drain} }}]\n", origins[0].address());
        let [b, spare] = ["b", "spare"].map(|name| {
            let at = if name == "b" { &origins[1] } else { &origins[2] };
            backend(name, &[at.address()], "sticky = { cookie = \"seat\" }")
        });
        let route =
            "backend = [{ name = \"a\" }, { name = \"b\" }]\nsticky = { cookie = \"side\" }\nfallback = \"spare\"";
        config(&[a, b, spare], route)
    };
    let engine = Engine::start(&text(false));
    let mut client = engine.client("plain");
    let own = loop {
        let response = client.get("/");
        if response.text() == "a" {
            break cookie(&response.head, "side").expect("a cookie");
        }
    };
    for (drain, wanted, seat) in [(true, "spare", true), (false, "a", false)] {
        engine.rewrite(&text(drain));
        engine.reload();
        let response = engine.client("plain").ask(format!("GET / HTTP/1.1\r\nHost: a\r\nCookie: {own}\r\n\r\n"));
        let given = ["side", "seat"].map(|name| cookie(&response.head, name).is_some());
        assert_eq!((response.text().as_str(), given), (wanted, [false, seat]));
    }
}

#[test]
fn a_side_and_a_server_of_it_have_a_cookie_each() {
    let origins = [named("a1"), named("a2"), named("b")];
    let both = backend("a", &[origins[0].address(), origins[1].address()], "sticky = { cookie = \"seat\" }");
    let route = "backend = [{ name = \"a\" }, { name = \"b\" }]\nsticky = { cookie = \"side\" }";
    let engine = Engine::start(&config(&[both, backend("b", &[origins[2].address()], "")], route));
    let mut client = engine.client("plain");
    let first = loop {
        let response = client.get("/");
        if response.text() != "b" {
            break response;
        }
    };
    let (side, seat) = (cookie(&first.head, "side").expect("a side"), cookie(&first.head, "seat").expect("a seat"));
    for _ in 0..20 {
        let response = client.ask(format!("GET / HTTP/1.1\r\nHost: a\r\nCookie: {side}; {seat}\r\n\r\n"));
        assert_eq!((response.text(), response.fields("Set-Cookie").len()), (first.text(), 0));
    }
    let seatless = client.ask(format!("GET / HTTP/1.1\r\nHost: a\r\nCookie: {side}\r\n\r\n"));
    assert_eq!((cookie(&seatless.head, "side"), cookie(&seatless.head, "seat").is_some()), (None, true));
}

#[test]
fn a_page_in_place_of_a_response_has_the_clients_cookies() {
    let origins = [named("a"), Origin::answering(|_| b"HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n".to_vec())];
    let sticky = "sticky = { cookie = \"at\" }";
    let backends = [backend("a", &[origins[0].address()], ""), backend("b", &[origins[1].address()], sticky)];
    let route = "backend = [{ name = \"a\", weight = 0 }, { name = \"b\" }]\nsticky = { cookie = \"side\" }\n\
                 intercept_errors = true\nerror_pages = { 404 = \"404.txt\" }";
    for changes in ["", "response = { remove = [\"Set-Cookie\"], set = { X-Set = \"1\" } }"] {
        let engine = Engine::start_beside(&[("404.txt", "gone")], &config(&backends, &format!("{route}\n{changes}")));
        let mut client = engine.client("plain");
        let first = client.get("/");
        assert_eq!((first.status, first.text().as_str()), (404, "gone"));
        assert_eq!(first.field("X-Set").is_some(), !changes.is_empty());
        let (side, at) = (cookie(&first.head, "side").expect("a side"), cookie(&first.head, "at").expect("a server"));
        let again = client.ask(format!("GET / HTTP/1.1\r\nHost: a\r\nCookie: {side}; {at}\r\n\r\n"));
        assert!(!again.head.contains("Set-Cookie"), "{}", again.head);
        let said = curl(&["-sk", "-D-", "--http2", &engine.url("web")]).ok().text();
        assert!(said.contains("set-cookie: side=") && said.contains("set-cookie: at="), "{said}");
    }
}

#[test]
fn a_hash_keeps_a_client_at_its_side_on_every_worker() {
    let origins = [named("a"), named("b")];
    let backends = [backend("a", &[origins[0].address()], ""), backend("b", &[origins[1].address()], "")];
    let route = "backend = [{ name = \"a\" }, { name = \"b\" }]\nsticky = { key = { header = \"X-User\" } }";
    let engine = Engine::start(&format!("[process]\nworkers = 2\n{}", config(&backends, route)));
    let mut seen = [0; 2];
    for user in 0..30 {
        let ask = || engine.client("plain").ask(format!("GET / HTTP/1.1\r\nHost: a\r\nX-User: {user}\r\n\r\n")).text();
        let first = ask();
        (0..6).for_each(|_| assert_eq!(ask(), first, "{user}"));
        seen[usize::from(first == "b")] += 1;
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}

#[test]
fn a_fallback_takes_what_the_backend_has_no_server_for() {
    let spare = named("spare");
    let slow = Origin::scripted(|peer| {
        peer.read_request();
        peer.stall(WAIT_MAX);
    });
    let full = "circuit = { requests = 1 }";
    let queued = "queue = { limit = 0 }";
    let one = format!("servers = [{{ address = \"{}\", max_connections = 1 }}]", slow.address());
    let text = format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\n[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n{}{}{}\
         [backend.drained]\nservers = [{{ address = \"127.0.0.1:9\", drain = true }}]\n\
         [backend.queued]\n{one}\n{queued}\n\
         [[route]]\npath = \"/refused\"\nbackend = \"refused\"\nfallback = \"spare\"\n\
         [[route]]\npath = \"/drained\"\nbackend = \"drained\"\nfallback = \"spare\"\n\
         [[route]]\npath = \"/circuit\"\nbackend = \"circuit\"\nfallback = \"spare\"\n\
         [[route]]\npath = \"/queued\"\nbackend = \"queued\"\nfallback = \"spare\"\n\
         [[route]]\nbackend = \"refused\"\n",
        backend("spare", &[spare.address()], ""),
        backend("refused", &[dead(), dead(), dead()], "retries = 1"),
        backend("circuit", &[slow.address()], full),
    );
    let engine = Engine::start(&text);
    let mut busy = [engine.client("plain"), engine.client("plain")];
    busy[0].send("GET /circuit HTTP/1.1\r\nHost: a\r\n\r\n");
    busy[1].send("GET /queued HTTP/1.1\r\nHost: a\r\n\r\n");
    engine.metric_reaches("propylon_server_requests_in_flight", &[("backend", "circuit")], 1.0);
    engine.metric_reaches("propylon_server_requests_in_flight", &[("backend", "queued")], 1.0);
    let body = "x".repeat(3_000);
    for (path, backend) in
        [("/refused", "refused"), ("/drained", "drained"), ("/circuit", "circuit"), ("/queued", "queued")]
    {
        let mut client = engine.client("plain");
        let response = client.get(path);
        assert_eq!((response.status, response.text().as_str()), (200, "spare"), "{path}");
        // A body goes along, and the connection stays in step.
        let post = client.ask(format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 3000\r\n\r\n{body}"));
        assert_eq!((post.status, post.text().as_str()), (200, "spare"), "{path}");
        let mut http2 = Http2::start(&engine);
        http2.get(1, path);
        assert_eq!(http2.response(1).1, b"spare", "{path}");
        assert_eq!(engine.metric("propylon_fallbacks_total", &[("backend", backend)]), 3.0, "{path}");
        let line = engine.logged("the request", |line| line["path"] == path && line["status"] == 200);
        assert_eq!((&line["backend"], &line["fault"]), (&"spare".into(), &serde_json::Value::Null), "{line}");
    }
    assert_eq!(spare.received_text().matches(&body).count(), 4);
    let refused = engine.client("plain").get("/");
    assert_eq!((refused.status, refused.text().as_str()), (502, "502 Bad Gateway: connect-refused\n"));
    assert_eq!(engine.logged_path("/")["attempts"], 2, "one repeat, whatever servers are left");
}

#[test]
fn a_fallback_without_a_server_is_told_as_what_it_is() {
    let backends = [
        backend("a", &[dead(), dead(), dead()], "retries = 2"),
        "[backend.spare]\nservers = [{ address = \"127.0.0.1:9\", drain = true }]\n".into(),
    ];
    let engine = Engine::start(&config(&backends, "backend = \"a\"\nfallback = \"spare\""));
    let mut client = engine.client("plain");
    // Which of the first backend's servers was asked last is chance.
    for number in 0..12 {
        let response = client.get(&format!("/{number}"));
        assert_eq!((response.status, response.text().as_str()), (503, "503 Service Unavailable: no-healthy-server\n"));
        let line = engine.logged_path(&format!("/{number}"));
        assert_eq!((&line["backend"], &line["server"]), (&"spare".into(), &serde_json::Value::Null), "{line}");
    }
}

#[test]
fn what_may_have_been_seen_does_not_go_to_the_fallback() {
    let (rude, spare) = (closing(), named("spare"));
    let backends = [backend("a", &[rude.address()], "retries = 0"), backend("spare", &[spare.address()], "")];
    let engine = Engine::start(&config(&backends, "backend = \"a\"\nfallback = \"spare\""));
    let response = engine.client("plain").ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
    assert_eq!((response.status, response.text().as_str()), (502, "502 Bad Gateway: closed-before-response\n"));
    assert_eq!(spare.connections(), 0);
}

#[test]
fn a_body_that_an_attempt_has_taken_does_not_come_to_the_fallback_without_its_bytes() {
    // Its only server takes the body, is found to be down meanwhile, and closes.
    let is_down = Arc::new(AtomicBool::new(false));
    let (down, seen) = (Arc::clone(&is_down), Arc::clone(&is_down));
    let (go_on, is_told) = channel::<()>();
    let is_told = Mutex::new(is_told);
    let rude = Origin::scripted(move |peer| {
        while let Some(request) = peer.read_request() {
            if request.starts_with(b"PUT") {
                down.store(true, Ordering::SeqCst);
                let _ = is_told.lock().expect("one request").recv_timeout(WAIT_MAX);
                return peer.close();
            }
            match seen.load(Ordering::SeqCst) {
                true => return peer.close(),
                false => peer.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
            }
        }
    });
    let spare = named("spare");
    let health = "retries = 2\nhealth = { path = \"/up\", interval = \"100ms\", fall = 1 }";
    let backends = [backend("a", &[rude.address()], health), backend("spare", &[spare.address()], "")];
    let engine = Engine::start(&config(&backends, "backend = \"a\"\nfallback = \"spare\""));
    let url = engine.url("web");
    let client = std::thread::spawn(move || {
        curl(&["-sk", "--http2", "-w", " %{http_code}", "-X", "PUT", "-d", "a body", &url]).ok().text()
    });
    holds("the body is taken", || is_down.load(Ordering::SeqCst));
    engine.metric_reaches("propylon_server_up", &[("server", &rude.address().to_string())], 0.0);
    go_on.send(()).expect("the server waits");
    let said = client.join().expect("curl");
    assert_eq!(said, "503 Service Unavailable: no-healthy-server\n 503");
    assert_eq!(spare.connections(), 0);
}

/// An origin that closes in place of an answer.
fn closing() -> Origin {
    Origin::scripted(|peer| {
        peer.read_request();
        peer.close();
    })
}

/// An origin that answers with these statuses, one after the other, and then with 200.
fn failing(statuses: &'static [u16]) -> (Origin, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let origin = Origin::answering(move |_| {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        let status = statuses.get(number).copied().unwrap_or(200);
        let body = format!("{status} at {number}");
        format!("HTTP/1.1 {status} Said\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    });
    (origin, asked)
}

#[test]
fn statuses_that_a_route_names_are_asked_again_and_others_are_the_clients() {
    let retries = "retries = { attempts = 2, on = [\"connect\", 503, 502, 429], backoff = \"1ms\" }";
    for (statuses, method, wanted, asks) in [
        (&[503, 502][..], "GET", "200 at 2", 3),
        (&[503, 502, 503], "GET", "503 at 2", 3),
        (&[500], "GET", "500 at 0", 1),
        (&[503], "POST", "503 at 0", 1),
        (&[503], "DELETE", "200 at 1", 2),
        (&[429, 404], "GET", "404 at 1", 2),
    ] {
        for is_http2 in [false, true] {
            let (origin, asked) = failing(statuses);
            let engine = Engine::start(&config(
                &[backend("a", &[origin.address()], "")],
                &format!("backend = \"a\"\n{retries}"),
            ));
            let text = match is_http2 {
                false => engine
                    .client("plain")
                    .ask(format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"))
                    .text(),
                true => {
                    let mut http2 = Http2::start(&engine);
                    http2.headers(1, END_HEADERS | END_STREAM, &request(method, "/"));
                    String::from_utf8(http2.response(1).1).unwrap()
                }
            };
            assert_eq!((text.as_str(), asked.load(Ordering::SeqCst)), (wanted, asks), "{statuses:?} {method}");
            assert_eq!(engine.metric("propylon_retries_total", &[("backend", "a")]), (asks - 1) as f64);
            let failed = statuses.iter().take(asks).filter(|status| **status >= 500).count() as f64;
            let failures = [("backend", "a"), ("outcome", "failure")];
            engine.metric_reaches("propylon_server_outcomes_total", &failures, failed);
            assert_eq!(engine.metric("propylon_server_outcomes_total", &failures), failed, "{statuses:?} {method}");
        }
    }
}

/// A body half of which has left cannot be sent again: the status that would be asked again is the client's.
#[test]
fn a_status_that_comes_before_all_of_a_body_is_the_clients() {
    let origin = Origin::scripted(|peer| {
        peer.read_head();
        peer.send("HTTP/1.1 503 Said\r\nContent-Length: 5\r\n\r\nlater");
    });
    let retries = "retries = { attempts = 2, on = [503], backoff = \"1ms\" }";
    let engine =
        Engine::start(&config(&[backend("a", &[origin.address()], "")], &format!("backend = \"a\"\n{retries}")));
    let mut client = engine.client("plain");
    client.send("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\nhalf of it");
    let response = client.read_response();
    assert_eq!((response.status, response.text().as_str(), origin.connections()), (503, "later", 1));
}

#[test]
fn a_status_that_is_asked_again_is_no_stale_connection_and_is_paid_for() {
    let (origin, asked) = failing(&[200, 503, 200, 429]);
    // One repeat at the outset and none beside: what a stale connection costs is free.
    let retries = "retries = { attempts = 1, budget = \"0%\", min_per_second = 1 }";
    let route = "backend = \"a\"\nretries = { attempts = 1, on = [503, 429] }";
    let backends = [backend("a", &[origin.address()], retries)];
    let engine = Engine::start(&format!("[process]\nworkers = 1\n{}", config(&backends, route)));
    let mut client = engine.client("plain");
    assert_eq!(client.get("/").text(), "200 at 0");
    // On the connection that has served before; the repeat is on another, since what follows the status is not read.
    assert_eq!(client.get("/").text(), "200 at 2");
    assert_eq!((asked.load(Ordering::SeqCst), origin.connections()), (3, 2));
    let count = |name: &str| engine.metric(name, &[("backend", "a")]);
    assert_eq!((count("propylon_retries_total"), count("propylon_stale_retries_total")), (1.0, 0.0));
    assert_eq!(count("propylon_server_stale_total"), 0.0);
    engine.metric_reaches("propylon_server_outcomes_total", &[("backend", "a"), ("outcome", "failure")], 1.0);
    // The next is paid by the same budget, which has nothing left unless a second has passed.
    let text = client.get("/").text();
    assert!(text == "429 at 3" || text == "200 at 4", "{text}");
    let refused = count("propylon_retries_refused_total");
    assert_eq!(count("propylon_retries_total") + refused, 2.0);
    assert_eq!(count("propylon_server_stale_total"), 0.0);
}

#[test]
fn a_client_that_leaves_between_two_attempts_has_no_other_made() {
    let (origin, asked) = failing(&[503, 503, 503]);
    let retries = "retries = { attempts = 2, on = [503], backoff = \"5s\" }";
    let route = format!("backend = \"a\"\n{retries}");
    let engine = Engine::start(&config(&[backend("a", &[origin.address()], "")], &route));
    let mut client = engine.client("plain");
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    engine.metric_reaches("propylon_retries_total", &[("backend", "a")], 1.0);
    client.reset();
    let mut http2 = Http2::start(&engine);
    http2.get(1, "/stream");
    engine.metric_reaches("propylon_retries_total", &[("backend", "a")], 2.0);
    http2.send(RST_STREAM, 0, 1, &CANCEL.to_be_bytes());
    for path in ["/", "/stream"] {
        let line = engine.logged_path(path);
        assert_eq!((&line["attempts"], &line["status"]), (&1.into(), &0.into()), "{line}");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

#[test]
fn repeats_stay_within_the_budget_of_the_backend() {
    let origin = Origin::always("HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy");
    let route = "backend = \"a\"\nretries = { attempts = 1, on = [503] }";
    let engine = Engine::start(&config(&[backend("a", &[origin.address()], "")], route));
    let mut client = engine.client("plain");
    for _ in 0..400 {
        assert_eq!(client.get("/").text(), "busy");
    }
    // 256 were saved up, and each request has earned a fifth.
    let retries = engine.metric("propylon_retries_total", &[("backend", "a")]);
    let refused = engine.metric("propylon_retries_refused_total", &[("backend", "a")]);
    assert_eq!(retries + refused, 400.0);
    assert!((256.0..=256.0 + 80.0).contains(&retries), "{retries}");
}

#[test]
fn faults_that_a_route_does_not_name_are_not_asked_again() {
    let (rude, mild) = (closing(), named("mild"));
    let silent = Origin::scripted(|peer| {
        peer.read_request();
        peer.stall(WAIT_MAX);
    });
    for (server, on, wanted) in [
        (rude.address(), "[\"connect\"]", (502, "502 Bad Gateway: closed-before-response\n")),
        (rude.address(), "[\"reset\"]", (200, "mild")),
        (silent.address(), "[\"connect\", \"reset\"]", (504, "504 Gateway Timeout: first-byte-timeout\n")),
        (silent.address(), "[\"timeout\"]", (200, "mild")),
        (dead(), "[\"reset\"]", (502, "502 Bad Gateway: connect-refused\n")),
        (dead(), "[\"connect\"]", (200, "mild")),
    ] {
        let more = "balance = \"first\"";
        let route = format!(
            "backend = \"a\"\nretries = {{ attempts = 1, on = {on} }}\ntimeouts = {{ first_byte = \"200ms\" }}"
        );
        let engine = Engine::start(&config(&[backend("a", &[server, mild.address()], more)], &route));
        let response = engine.client("plain").get("/");
        assert_eq!((response.status, response.text().as_str()), wanted, "{on}");
    }
}

#[test]
fn the_time_of_the_whole_request_ends_it_wherever_it_is() {
    let silent = Origin::scripted(|peer| {
        peer.read_request();
        peer.stall(WAIT_MAX);
    });
    let halting = Origin::scripted(|peer| {
        peer.read_request();
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf ");
        peer.stall(WAIT_MAX);
    });
    let full = format!("servers = [{{ address = \"{}\", max_connections = 1 }}]", silent.address());
    let (busy, _) = failing(&[503, 503]);
    let text = format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\n[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n{}{}\
         [backend.full]\n{full}\n\
         [[route]]\npath = \"/silent\"\nbackend = \"silent\"\ntimeouts = {{ request = \"300ms\" }}\n\
         [[route]]\npath = \"/halting\"\nbackend = \"halting\"\ntimeouts = {{ request = \"300ms\" }}\n\
         [[route]]\npath = \"/full\"\nbackend = \"full\"\ntimeouts = {{ request = \"300ms\" }}\n\
         [[route]]\npath = \"/hold\"\nbackend = \"full\"\n\
         [[route]]\npath = \"/pausing\"\nbackend = \"busy\"\ntimeouts = {{ request = \"300ms\" }}\n\
         retries = {{ attempts = 1, on = [503], backoff = \"60s\" }}\n{}",
        backend("busy", &[busy.address()], ""),
        backend("silent", &[silent.address()], ""),
        backend("halting", &[halting.address()], ""),
    );
    let engine = Engine::start(&text);
    let mut holder = engine.client("plain");
    holder.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
    engine.metric_reaches("propylon_server_requests_in_flight", &[("backend", "full")], 1.0);
    for path in ["/silent", "/full"] {
        let response = engine.client("plain").get(path);
        assert_eq!(
            (response.status, response.text().as_str()),
            (504, "504 Gateway Timeout: request-timeout\n"),
            "{path}"
        );
        let mut http2 = Http2::start(&engine);
        http2.get(1, path);
        let (head, body) = http2.response(1);
        assert_eq!(
            (head.spelled_status().or(head.status()), &body[..]),
            (Some(504), &b"504 Gateway Timeout: request-timeout\n"[..])
        );
        assert_eq!(engine.logged_path(path)["fault"], "request-timeout");
    }
    // A pause before another attempt is over with it, and not after half a minute.
    let mut client = engine.client("plain");
    client.read_timeout(Duration::from_secs(20));
    assert!(client.get("/pausing").status >= 500);
    let mut client = engine.client("plain");
    client.send("GET /halting HTTP/1.1\r\nHost: a\r\n\r\n");
    let (bytes, ending) = client.read_to_end();
    assert!(bytes.ends_with(b"half "), "{}", String::from_utf8_lossy(&bytes));
    assert!(matches!(ending, Ending::Reset | Ending::Clean), "{ending:?}");
    assert_eq!(engine.logged_path("/halting")["fault"], "request-timeout");
    // Nothing of the requests stays behind.
    engine.metric_reaches("propylon_server_requests_in_flight", &[("backend", "silent")], 0.0);
    engine.metric_reaches("propylon_queue_depth", &[("backend", "full")], 0.0);
    engine.metric_reaches("propylon_server_connections", &[("backend", "silent")], 0.0);
}

#[test]
fn an_attempt_has_a_time_of_its_own_and_another_is_made_where_nothing_has_come() {
    let silent = Origin::scripted(|peer| {
        peer.read_request();
        peer.stall(WAIT_MAX);
    });
    // Each byte comes in time, and the response does not.
    let trickling = Origin::scripted(|peer| {
        peer.read_request();
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n");
        while peer.try_send(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let good = named("good");
    let attempt = "timeouts = { attempt = \"300ms\" }\nretries = { attempts = 1, on = [\"timeout\"] }\n";
    let text = format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\n[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n{}{}{}\
         [[route]]\npath = \"/again\"\nbackend = \"again\"\n{attempt}\
         [[route]]\npath = \"/silent\"\nbackend = \"silent\"\n{attempt}\
         [[route]]\npath = \"/trickling\"\nbackend = \"trickling\"\n{attempt}",
        backend("again", &[silent.address(), good.address()], "balance = \"first\""),
        backend("silent", &[silent.address()], ""),
        backend("trickling", &[trickling.address()], ""),
    );
    let engine = Engine::start(&text);
    let late = "504 Gateway Timeout: first-byte-timeout\n";
    for (path, wanted) in [("/again", (200, "good")), ("/silent", (504, late))] {
        let response = engine.client("plain").get(path);
        assert_eq!((response.status, response.text().as_str()), wanted, "{path}");
        let mut http2 = Http2::start(&engine);
        http2.get(1, path);
        let (head, body) = http2.response(1);
        let status = head.spelled_status().or(head.status());
        assert_eq!((status, &body[..]), (Some(wanted.0), wanted.1.as_bytes()), "{path}");
        assert_eq!(engine.logged_path(path)["attempts"], 2, "{path}");
    }
    let mut client = engine.client("plain");
    client.send("GET /trickling HTTP/1.1\r\nHost: a\r\n\r\n");
    let (bytes, _) = client.read_to_end();
    assert!(bytes.len() < 50_000, "a part of it has come: {} bytes", bytes.len());
    assert_eq!(engine.logged_path("/trickling")["fault"], "body-timeout");
    engine.metric_reaches("propylon_server_requests_in_flight", &[("backend", "trickling")], 0.0);
}

#[test]
fn relays_divide_their_connections_and_close_those_of_a_share_without_a_backend() {
    let names = [("a", 3), ("b", 1)];
    let origins = names.map(|(name, _)| {
        Origin::scripted(move |peer| {
            peer.read_some();
            peer.send(name);
            peer.close();
        })
    });
    let [a, b] = [0, 1].map(|place| backend(names[place].0, &[origins[place].address()], ""));
    let sides = "backend = [{ name = \"a\", weight = 3 }, { name = \"b\", weight = 1 }, { respond = 503, weight = 4 }]";
    let text = format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\n[listener.web]\nbind = \"127.0.0.1:0\"\n\
         protocol = \"tcp\"\ntls = \"public\"\n{a}{b}[[route]]\nlistener = \"plain\"\n{sides}\n\
         [[route]]\nlistener = \"web\"\n{sides}\n"
    );
    let engine = Engine::start(&format!("[process]\nworkers = 1\n{text}"));
    for listener in ["plain", "web"] {
        let said = |_| {
            let address = engine.address(listener);
            let mut client = if listener == "web" { Client::tls(address) } else { Client::plain(address) };
            // One that is closed may be so already.
            let _ = client.try_send(b"x");
            String::from_utf8_lossy(&client.read_to_end().0).into_owned()
        };
        let all: Vec<String> = (0..16).map(said).collect();
        // Two rounds of turns.
        assert_eq!([count(&all, "a"), count(&all, "b"), count(&all, "")], [6, 2, 8], "{listener}: {all:?}");
        engine.metric_reaches("propylon_relays_total", &[("listener", listener), ("reason", "no-server")], 8.0);
    }
}

#[test]
fn a_route_may_have_less_or_more_time_than_its_backend() {
    let late = Origin::answering(|_| {
        std::thread::sleep(Duration::from_millis(700));
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate".to_vec()
    });
    let text = format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\n{}\
         [[route]]\nbackend = \"a\"\n\
         [[route]]\npath = \"/more\"\nbackend = \"a\"\ntimeouts = {{ first_byte = \"30s\" }}\n",
        backend("a", &[late.address()], "timeouts = { first_byte = \"200ms\" }"),
    );
    let engine = Engine::start(&text);
    let (own, more) = (engine.client("plain").get("/"), engine.client("plain").get("/more"));
    assert_eq!((own.text().as_str(), more.text().as_str()), ("504 Gateway Timeout: first-byte-timeout\n", "late"));
}

#[test]
fn bodies_beyond_a_routes_limit_are_refused_and_servers_never_get_more() {
    let origin = Origin::mirror();
    let text = "backend = \"a\"\nbody_limit = 10\n[[route]]\npath = \"/free\"\nbackend = \"a\"";
    let engine = Engine::start(&config(&[backend("a", &[origin.address()], "")], text));
    let too_long = (413, "413 Content Too Large: body-too-long\n");
    let chunked = |path: &str| format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (body, is_good) in [
        ("5\r\nabcde\r\n5\r\nfghij\r\n0\r\n\r\n", true),
        ("5\r\nabcde\r\n6\r\nfghijk\r\n0\r\n\r\n", false),
        ("b\r\nabcde", false),
    ] {
        // All of it with the head, and the body behind it.
        for apart in [false, true] {
            let mut client = engine.client("plain");
            client.send(chunked("/"));
            if apart {
                engine.metric_reaches("propylon_requests_in_progress", &[("listener", "plain")], 1.0);
            }
            client.send(body);
            let response = client.read_response();
            match is_good {
                true => assert!(response.text().contains("abcde"), "{body}: {}", response.text()),
                false => assert_eq!((response.status, response.text().as_str()), too_long, "{body} {apart}"),
            }
        }
    }
    let announced = |length: usize| {
        let request =
            format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{}", &"abcdefghijk"[..length]);
        engine.client("plain").ask(request)
    };
    assert_eq!(announced(10).status, 200);
    let response = announced(11);
    assert_eq!((response.status, response.text().as_str()), too_long);
    let expecting = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\nExpect: 100-continue\r\n\r\n";
    assert_eq!(engine.client("plain").ask(expecting).status, 413);
    let free = engine.client("plain").ask(format!("{}b\r\nabcdefghijk\r\n0\r\n\r\n", chunked("/free")));
    assert_eq!(free.status, 200);
    for (length, pieces) in [(true, &["abcdefghijk"][..]), (false, &["abcdefgh", "ijk"])] {
        let mut http2 = Http2::start(&engine);
        let mut fields = request("POST", "/");
        if length {
            fields.push(("content-length", "11"));
        }
        http2.headers(1, END_HEADERS, &fields);
        for (place, piece) in pieces.iter().enumerate() {
            let is_last = place + 1 == pieces.len();
            http2.send(DATA, if is_last { END_STREAM } else { 0 }, 1, piece.as_bytes());
        }
        let (head, body) = http2.response(1);
        assert_eq!(head.status().or(head.spelled_status()), Some(413), "{}", String::from_utf8_lossy(&body));
    }
    assert_eq!(engine.logged("a long one", |line| line["status"] == 413)["fault"], "body-too-long");
    let sent = origin.received_text();
    assert_eq!(sent.matches("fghijk").count(), 1, "only the free one: {sent}");
}

#[test]
fn a_mirror_gets_copies_to_the_byte_and_the_client_never_waits_for_it() {
    let (own, shadow) = (named("own"), Origin::mirror());
    let silent = Origin::scripted(|peer| {
        peer.read_request();
        peer.stall(WAIT_MAX);
    });
    let text = format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\n[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n{}{}{}{}\
         [[route]]\nbackend = \"own\"\nmirror = {{ backend = \"shadow\", body = 10 }}\n\
         [[route]]\npath = \"/share\"\nbackend = \"own\"\nmirror = {{ backend = \"shadow\", percent = 5 }}\n\
         [[route]]\npath = \"/dead\"\nbackend = \"own\"\nmirror = {{ backend = \"dead\" }}\n\
         [[route]]\npath = \"/silent\"\nbackend = \"own\"\nmirror = {{ backend = \"silent\", in_flight = 2 }}\n",
        backend("own", &[own.address()], ""),
        backend("shadow", &[shadow.address()], ""),
        backend("dead", &[dead()], ""),
        backend("silent", &[silent.address()], ""),
    );
    let engine = Engine::start(&text);
    let reaches = |backend: &str, outcome: &str, count: f64| {
        let labels = [("backend", backend), ("reason", outcome)];
        engine.metric_reaches("propylon_mirrored_requests_total", &labels, count);
    };
    let mut client = engine.client("plain");
    for round in 1..=3 {
        let posted =
            format!("POST /x?round={round} HTTP/1.1\r\nHost: shop.test\r\nX-A: b\r\nContent-Length: 4\r\n\r\nbody");
        assert_eq!(client.ask(posted).text(), "own");
        reaches("shadow", "answered", f64::from(round));
    }
    let (sent, copied) = (own.received_text(), shadow.received_text());
    assert_eq!(sent, copied, "the same bytes");
    assert_eq!((copied.matches("POST /x?round=").count(), shadow.connections()), (3, 1), "{copied}");
    assert!(copied.contains("Host: shop.test\r\n"), "{copied}");
    let chunked =
        "POST /chunks HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
    assert_eq!(client.ask(chunked).text(), "own");
    reaches("shadow", "answered", 4.0);
    assert!(shadow.received_text().ends_with("\r\n\r\nabc"), "{}", shadow.received_text());
    // Too long, and switches.
    assert_eq!(client.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\nabcdefghijk").text(), "own");
    reaches("shadow", "not-copied", 1.0);
    let mut http2 = Http2::start(&engine);
    http2.get(1, "/h2");
    assert_eq!(http2.response(1).1, b"own");
    reaches("shadow", "answered", 5.0);
    for _ in 0..100 {
        assert_eq!(client.get("/share").text(), "own");
    }
    reaches("shadow", "answered", 10.0);
    assert_eq!(client.get("/dead").text(), "own");
    reaches("dead", "failed", 1.0);
    for _ in 0..5 {
        assert_eq!(client.get("/silent").text(), "own");
    }
    reaches("silent", "too-many", 3.0);
    assert_eq!(engine.metric("propylon_server_requests_total", &[("backend", "silent")]), 2.0);
    assert_eq!(engine.logged_path("/silent")["backend"], "own");
}

#[test]
fn explain_and_check_know_all_backends_of_a_route() {
    let (scratch, servers) = (Scratch::new(), ["127.0.0.1:1".parse().unwrap()]);
    let all: Vec<String> = ["a", "b", "c"].iter().map(|name| backend(name, &servers, "")).collect();
    let split = SPLIT.replace("]", ", { respond = 503 }]");
    let route = format!("{split}\nfallback = \"c\"\nsticky = {{ cookie = \"side\" }}\nretries = 1");
    let text = format!("[listener.plain]\nbind = \"127.0.0.1:8080\"\n{}[[route]]\n{route}\n", all.concat());
    let path = scratch.path().join("propylon.toml");
    std::fs::write(&path, &text).expect("a file");
    let path = path.to_str().expect("a name");
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(binaries::propylon());
        command.args(arguments);
        let said = run(command, b"", WAIT_MAX);
        (said.status.code(), said.text() + &said.stderr)
    };
    let (code, said) = run(&["check", "-c", path]);
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("no route leads to"), "{said}");
    let (_, said) = run(&["explain", "-c", path, "http://shop.test:8080/"]);
    for line in [
        "split        a 90 of 101, b 10 of 101, an answer of 503 1 of 101",
        "by the cookie side",
        "fallback     c, round-robin",
        "\"attempts\":1",
    ] {
        assert!(said.contains(line), "no \"{line}\" in:\n{said}");
    }
    let (_, said) = run(&["explain", "-c", path, "--json", "http://shop.test:8080/"]);
    let value: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let one = &value["listeners"][0];
    assert_eq!(
        (&one["split"][1]["weight"], &one["fallback"], &one["backend"]["name"]),
        (&10.into(), &"c".into(), &"a".into())
    );
}

/// One server of one connection, which answers a request with each message, over two workers; routes of each priority.
fn queueing(queue: &str) -> (Engine, Origin, Sender<()>) {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let origin = Origin::answering(move |_| {
        let _ = wait.lock().expect("nobody panics with it").recv_timeout(WAIT_MAX);
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".into()
    });
    let server = format!("{{ address = \"{}\", max_connections = 1 }}", origin.address());
    let backend = format!("[backend.a]\nservers = [{server}]\nreuse = \"always\"\nqueue = {queue}\n");
    let routes =
        ["high", "low"].map(|name| format!("[[route]]\npath = \"/{name}\"\nbackend = \"a\"\npriority = \"{name}\"\n"));
    let text = config(&[backend], &format!("backend = \"a\"\n{}", routes.concat()));
    (Engine::start(&format!("[process]\nworkers = 2\n{text}")), origin, go)
}

/// Asks, and waits until so many are in the queue.
fn queued(engine: &Engine, path: &str, depth: usize) -> Client {
    let mut client = engine.client("plain");
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    engine.metric_reaches("propylon_queue_depth", &[], depth as f64);
    client
}

#[test]
fn requests_of_a_higher_priority_are_served_first_over_all_workers() {
    let (engine, origin, go) = queueing("{ timeout = \"60s\" }");
    let mut clients = vec![queued(&engine, "/first", 0)];
    engine.metric_reaches("propylon_server_requests_total", &[], 1.0);
    let paths = ["/low/1", "/2", "/low/3", "/high/4", "/5", "/high/6"];
    clients.extend(paths.iter().zip(1..).map(|(path, depth)| queued(&engine, path, depth)));
    clients.iter().for_each(|_| go.send(()).expect("the origin waits"));
    assert!(clients.iter_mut().all(|client| client.read_response().status == 200));
    let text = origin.received_text();
    let asked: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("GET ")?.split(' ').next()).collect();
    assert_eq!(asked, ["/first", "/high/4", "/high/6", "/2", "/5", "/low/1", "/low/3"]);
}

#[test]
fn a_full_queue_turns_away_the_newest_of_the_lowest_priority() {
    let (engine, _origin, go) = queueing("{ timeout = \"60s\", limit = 3 }");
    let mut served = vec![queued(&engine, "/first", 0)];
    engine.metric_reaches("propylon_server_requests_total", &[], 1.0);
    let mut low = queued(&engine, "/low/1", 1);
    let mut lower = queued(&engine, "/low/2", 2);
    served.push(queued(&engine, "/3", 3));
    let answered = |client: &mut Client| {
        let response = client.read_response();
        (response.status, response.text())
    };
    let full = || (503, "503 Service Unavailable: queue-full\n".to_owned());
    served.push(queued(&engine, "/high/4", 3));
    assert_eq!(answered(&mut lower), full());
    served.push(queued(&engine, "/5", 3));
    assert_eq!(answered(&mut low), full());
    assert_eq!(answered(&mut queued(&engine, "/low/6", 3)), full());
    assert_eq!(answered(&mut queued(&engine, "/7", 3)), full(), "the newest of those that are left");
    served.iter().for_each(|_| go.send(()).expect("the origin waits"));
    assert!(served.iter_mut().all(|client| client.read_response().status == 200));
}
