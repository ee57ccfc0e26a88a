//! Routes as operators see them: their requests in the metrics, statuses of their backends' servers, and the words for
//! them in a terminal.

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use propylon_e2e::admin::ask_admin;
use propylon_e2e::frames::Http2;
use propylon_e2e::{Client, Engine, Origin, binaries};
use serde_json::Value;

const REQUESTS: &str = "propylon_route_requests_total";
const RESPONSES: &str = "propylon_backend_responses_total";
const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";

fn ask(engine: &Engine, method: &str, host: &str, path: &str) -> u16 {
    let mut client = Client::plain(engine.address("plain"));
    client.send(format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
    let head = client.read_head();
    head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
}

/// Requests of a route, by their class.
fn taken(engine: &Engine, route: &str, class: &str) -> f64 {
    engine.metric(REQUESTS, &[("route", route), ("class", class)])
}

fn config(origin: &Origin, routes: &str) -> String {
    format!(
        "[process]\nworkers = 2\n[listener.plain]\nbind = \"127.0.0.1:0\"\n[listener.web]\nbind = \"127.0.0.1:0\"\n\
         tls = \"public\"\n[backend.app]\nservers = [\"{}\"]\n{routes}",
        origin.address()
    )
}

/// An origin that answers with the status that the path ends with.
fn obliging() -> Origin {
    Origin::answering(|request| {
        let path = String::from_utf8_lossy(request);
        let path = path.split(' ').nth(1).unwrap_or_default();
        match path.rsplit('/').next().unwrap_or_default() {
            status @ ("204" | "304") => format!("HTTP/1.1 {status} x\r\n\r\n").into_bytes(),
            status if status.len() == 3 => format!("HTTP/1.1 {status} x\r\nContent-Length: 2\r\n\r\nab").into_bytes(),
            _ => HELLO.into(),
        }
    })
}

#[test]
fn requests_are_counted_by_the_route_that_has_taken_them() {
    let origin = obliging();
    let engine = Engine::start(&config(
        &origin,
        "[[route]]\nname = \"shop\"\nhost = \"shop.test\"\nbackend = \"app\"\n\
         [[route]]\nhost = \"*.shop.test\"\npath = \"/a\"\nbackend = \"app\"\n\
         [[route]]\nhost = \"*.shop.test\"\npath = \"/a\"\nmatch = { method = \"PUT\" }\nresponse = { set = { X-A = \"1\" } }\n\
         backend = \"app\"\n[[route]]\npath = \"/here\"\nrespond = { status = 403, body = \"no\" }\n",
    ));
    for (path, status) in [("/", 200), ("/302", 302), ("/304", 304), ("/404", 404), ("/418", 418), ("/503", 503)] {
        assert_eq!(ask(&engine, "GET", "shop.test", path), status);
    }
    assert_eq!(ask(&engine, "HEAD", "shop.test", "/"), 200);
    assert_eq!(ask(&engine, "GET", "www.shop.test", "/a/204"), 204);
    assert_eq!(ask(&engine, "PUT", "www.shop.test", "/a"), 200);
    assert_eq!(ask(&engine, "GET", "any.test", "/here"), 403);
    assert_eq!(ask(&engine, "GET", "any.test", "/"), 404);
    for (route, host, class, count) in [
        ("shop", "shop.test", "2xx", 2.0),
        ("shop", "shop.test", "3xx", 2.0),
        ("shop", "shop.test", "4xx", 2.0),
        ("shop", "shop.test", "5xx", 1.0),
        ("shop", "shop.test", "none", 0.0),
        ("*.shop.test/a", "*.shop.test", "2xx", 1.0),
        ("*.shop.test/a#2", "*.shop.test", "2xx", 1.0),
        ("*/here", "*", "4xx", 1.0),
        ("(none)", "*", "4xx", 1.0),
    ] {
        engine.metric_reaches(REQUESTS, &[("route", route), ("host", host), ("class", class)], count);
    }
    // Sums over routes are those of the listeners.
    for (of_routes, of_listeners) in [
        ("propylon_route_request_duration_seconds_count", "propylon_request_duration_seconds_count"),
        ("propylon_route_request_duration_seconds_sum", "propylon_request_duration_seconds_sum"),
        ("propylon_route_received_bytes_total", "propylon_received_bytes_total"),
        ("propylon_route_sent_bytes_total", "propylon_sent_bytes_total"),
        (REQUESTS, "propylon_responses_total"),
    ] {
        let (routes, listeners) = (engine.metric(of_routes, &[]), engine.metric(of_listeners, &[]));
        assert!(routes > 0.0 && (routes - listeners).abs() < 1e-9, "{of_routes}: {routes} and {listeners}");
    }
    for (class, status, count) in [
        ("2xx", "200", 3.0),
        ("2xx", "204", 1.0),
        ("3xx", "302", 1.0),
        ("3xx", "304", 1.0),
        ("4xx", "404", 1.0),
        ("4xx", "other", 1.0),
        ("4xx", "403", 0.0),
        ("5xx", "503", 1.0),
    ] {
        engine.metric_reaches(RESPONSES, &[("backend", "app"), ("class", class), ("status", status)], count);
    }
}

#[test]
fn requests_over_http2_that_are_repeated_upgraded_or_without_an_answer_are_counted_once() {
    let origin = Origin::scripted(|peer| {
        while let Some(request) = peer.read_request() {
            let request = String::from_utf8_lossy(&request).into_owned();
            match request.split(' ').nth(1).unwrap_or_default() {
                "/twice" if !request.contains("X-Seen") => peer.send("HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n"),
                "/switch" => {
                    peer.send("HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n");
                    peer.close();
                    return;
                }
                "/hang" => {
                    peer.await_close(Duration::from_secs(20));
                    return;
                }
                "/break" => {
                    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
                    peer.close();
                    return;
                }
                _ => peer.send(HELLO),
            }
        }
    });
    let engine = Engine::start(&config(
        &origin,
        "[[route]]\nname = \"all\"\nbackend = \"app\"\n\
         [[route]]\nname = \"twice\"\npath = \"/twice\"\nretries = { attempts = 2, on = [503] }\nbackend = \"app\"\n",
    ));
    let mut http2 = Http2::start(&engine);
    http2.get(1, "/");
    assert_eq!(http2.response(1).0.status(), Some(200));
    engine.metric_reaches(REQUESTS, &[("route", "all"), ("class", "2xx")], 1.0);
    // Three attempts are one request.
    assert_eq!(ask(&engine, "GET", "a.test", "/twice"), 503);
    engine.metric_reaches(REQUESTS, &[("route", "twice"), ("class", "5xx")], 1.0);
    assert_eq!(engine.metric(RESPONSES, &[("status", "503")]), 3.0, "each of them is a server's response");
    let mut client = Client::plain(engine.address("plain"));
    client.send("GET /switch HTTP/1.1\r\nHost: a.test\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n");
    assert!(client.read_head().starts_with("HTTP/1.1 101 "));
    drop(client);
    engine.metric_reaches(REQUESTS, &[("route", "all"), ("class", "1xx")], 1.0);
    assert_eq!(engine.metric(RESPONSES, &[("status", "101")]), 1.0);
    // A response that is broken off has its class all the same.
    let mut client = Client::plain(engine.address("plain"));
    client.send("GET /break HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert!(client.read_head().starts_with("HTTP/1.1 200 "));
    engine.metric_reaches(REQUESTS, &[("route", "all"), ("class", "2xx")], 2.0);
    // A client that goes before there is any.
    let mut client = Client::plain(engine.address("plain"));
    client.send("GET /hang HTTP/1.1\r\nHost: a.test\r\n\r\n");
    engine.metric_reaches("propylon_server_requests_in_flight", &[], 1.0);
    client.reset();
    engine.metric_reaches(REQUESTS, &[("route", "all"), ("class", "none")], 1.0);
    // A head that cannot be read has no route.
    assert_eq!(ask(&engine, "GET", "a..test", "/"), 400);
    engine.metric_reaches(REQUESTS, &[("route", "(none)"), ("class", "4xx")], 1.0);
    assert_eq!(engine.metric("propylon_route_request_duration_seconds_count", &[("route", "all")]), 4.0);
}

#[test]
fn a_flood_of_hosts_adds_no_series() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&config(&origin, "[[route]]\nhost = \"shop.test\"\nbackend = \"app\"\n"));
    let before = engine.metrics().lines().count();
    for index in 0..50 {
        assert_eq!(ask(&engine, "GET", &format!("h{index}.test"), "/"), 404);
    }
    engine.metric_reaches(REQUESTS, &[("route", "(none)"), ("class", "4xx")], 50.0);
    assert_eq!(engine.metrics().lines().count(), before);
}

#[test]
fn series_of_routes_come_and_go_with_the_configuration() {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let origin = Origin::scripted(move |peer| {
        while peer.read_request().is_some() {
            let _ = wait.lock().expect("no script panics with it").recv_timeout(Duration::from_secs(20));
            peer.send(HELLO);
        }
    });
    let old =
        "[[route]]\nname = \"old\"\nbackend = \"app\"\n[[route]]\nname = \"stays\"\npath = \"/s\"\nrespond = {}\n";
    let engine = Engine::start(&config(&origin, old));
    assert_eq!(ask(&engine, "GET", "a.test", "/s"), 200);
    engine.metric_reaches(REQUESTS, &[("route", "stays"), ("class", "2xx")], 1.0);
    let mut halfway = Client::plain(engine.address("plain"));
    halfway.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    engine.metric_reaches("propylon_server_requests_in_flight", &[], 1.0);
    let listed = || {
        let all: Value = serde_json::from_str(&ask_admin(&engine, "GET", "/v1/routes", "", "").text()).expect("JSON");
        let list = all["list"].as_array().expect("routes").iter();
        list.map(|route| format!("{}: {}", route["route"], route["then"])).collect::<Vec<String>>()
    };
    assert_eq!(listed(), ["\"old\": \"backend app\"", "\"stays\": \"respond 200 (text/plain; charset=utf-8)\""]);
    engine.rewrite(&config(
        &origin,
        "[[route]]\nname = \"stays\"\npath = \"/s\"\nrespond = { status = 202 }\n[[route]]\nname = \"new\"\nrespond = {}\n",
    ));
    engine.reload();
    assert_eq!(listed()[0], "\"stays\": \"respond 202 (text/plain; charset=utf-8)\"");
    assert_eq!(ask(&engine, "GET", "a.test", "/s"), 202);
    engine.metric_reaches(REQUESTS, &[("route", "stays"), ("class", "2xx")], 2.0);
    assert_eq!((taken(&engine, "old", "2xx"), taken(&engine, "new", "2xx")), (0.0, 0.0));
    // The request that began on the old configuration is counted there, and nobody counts there any more then.
    go.send(()).expect("the origin waits");
    assert_eq!(halfway.read_response().status, 200);
    engine.metric_reaches("propylon_config_old_snapshots", &[], 0.0);
    let shown = || engine.metrics().contains("route=\"old\"");
    let gone = (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        !shown()
    });
    assert!(gone, "series of a route that is gone");
    assert_eq!(taken(&engine, "new", "2xx"), 0.0);
}

#[test]
fn routes_are_listed_in_words_with_what_they_do_in_a_terminal() {
    let origin = obliging();
    let engine = Engine::start(&config(
        &origin,
        "[[route]]\nname = \"shop\"\nhost = \"shop.test\"\nmatch = { header = { X-Token = \"hush\" } }\n\
         limit = { name = \"edge\", rate = \"1/h\" }\nrequest = { set = { Authorization = \"hush\" } }\nbackend = \"app\"\n\
         [[route]]\npath = \"/here\"\nrespond = { status = 403, body = \"hush\" }\n",
    ));
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(binaries::propylon());
        let output = command.arg("routes").args(arguments).args(["--admin", &engine.admin().to_string()]).output();
        let output = output.expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), said)
    };
    let mut client = Client::plain(engine.address("plain"));
    for status in [200, 429, 429] {
        let answer = client.ask("GET / HTTP/1.1\r\nHost: shop.test\r\nX-Token: hush\r\n\r\n");
        assert_eq!(answer.status, status);
    }
    engine.metric_reaches(REQUESTS, &[("route", "shop"), ("class", "4xx")], 2.0);
    let (code, said) = run(&["shop", "--interval", "0"]);
    let words = "  for      host shop.test, any path, field x-token …\n  do       limit to 1/h by source\n           request: set Authorization\n  \
                 then     backend app\n  so far   3 requests, 4xx 2, 5xx 0\n  limit    edge: allowed 1, refused 2, denied 0\n";
    assert!(code == Some(0) && said.starts_with("shop (") && said.ends_with(words), "{said}");
    let (code, said) = run(&["--json"]);
    assert!(code == Some(0) && !said.contains("hush"), "{said}");
    let all: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(all[1]["then"], "respond 403 (text/plain; charset=utf-8)");
    assert_eq!((&all[0]["backends"][0], &all[0]["now"]["requests_per_second"]), (&"app".into(), &0.0.into()));
    let whole = (&all[0]["requests_total"], &all[0]["is_shared"]);
    assert_eq!(whole, (&serde_json::json!([0, 1, 0, 2, 0, 0]), &false.into()));
    assert_eq!(run(&["nowhere", "--interval", "0"]), (Some(1), "propylon: no such route\n".into()));
}
