//! Servers that die, sicken, flap and move: clients do not notice, and everybody is told.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use propylon_e2e::dns::{NameServer, Record};
use propylon_e2e::grpc::{GrpcServer, NOT_SERVING, SERVING};
use propylon_e2e::nginx::Nginx;
use propylon_e2e::origin::dead;
use propylon_e2e::{Certificates, Client, Engine, Origin, Response, holds};
use serde_json::Value;
use socket2::{Domain, SockRef, Socket, Type};

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";
const BROKEN: &str = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n";
const QUICK: &str = "interval = \"100ms\", timeout = \"2s\", rise = 2, fall = 2";

fn config(process: &str, servers: &[String], backend: &str) -> String {
    let servers: Vec<String> = servers.iter().map(|server| format!("\"{server}\"")).collect();
    format!(
        "[process]\nworkers = 1\ndrain_timeout = \"1s\"\n{process}\n\
         [listener.plain]\nbind = \"127.0.0.1:0\"\n\
         [backend.app]\nservers = [{}]\n{backend}\n[[route]]\nbackend = \"app\"\n",
        servers.join(", ")
    )
}

fn engine(servers: &[SocketAddr], backend: &str) -> Engine {
    let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
    Engine::start(&config("", &servers, backend))
}

fn is_probe(request: &[u8]) -> bool {
    String::from_utf8_lossy(request).contains("User-Agent: propylon-health/")
}

/// An origin whose probes are answered by what `health` says at the time, and all else with HELLO.
fn sickly(health: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Origin {
    Origin::answering(move |request| if is_probe(request) { health() } else { HELLO.into() })
}

fn up(engine: &Engine, server: SocketAddr, value: f64) {
    engine.metric_reaches("propylon_server_up", &[("server", &server.to_string())], value);
}

/// What the admin address says of a server.
fn state(engine: &Engine, server: &str) -> Value {
    let request = format!("GET /snapshot HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", engine.admin());
    let snapshot: Value = serde_json::from_slice(&Client::plain(engine.admin()).ask(request).body).expect("JSON");
    let servers = snapshot["backends"][0]["servers"].as_array().expect("servers").clone();
    let found = servers.into_iter().find(|each| each["address"] == server).expect("the server");
    found["health"].clone()
}

fn all_good(engine: &Engine, count: usize) {
    let mut client = engine.client("plain");
    for _ in 0..count {
        assert_eq!(client.get("/").status, 200);
    }
}

/// Two ports that are the same, on 127.0.0.1 and 127.0.0.2.
fn twins() -> [TcpListener; 2] {
    for _ in 0..100 {
        let one = TcpListener::bind("127.0.0.1:0").expect("a free port");
        if let Ok(two) = TcpListener::bind(("127.0.0.2", one.local_addr().expect("bound").port())) {
            return [one, two];
        }
    }
    panic!("no port is free on both addresses");
}

fn named(name: &'static str) -> impl Fn(&mut propylon_e2e::Peer) {
    move |peer| {
        while peer.read_request().is_some() {
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len()));
        }
    }
}

#[test]
fn a_server_that_dies_is_left_out_and_comes_back() {
    let stays = Origin::always(HELLO);
    let dies = Origin::always(HELLO);
    let address = dies.address();
    let engine = engine(&[stays.address(), address], &format!("health = {{ path = \"/up?x\", {QUICK} }}"));
    up(&engine, address, 1.0);
    all_good(&engine, 20);
    holds("a probe of each", || [&stays, &dies].iter().all(|o| o.received_text().contains("GET /up?x HTTP/1.1\r\n")));
    assert!(dies.received_text().contains(&format!("Host: {address}\r\n")));
    drop(dies);
    // Clients see nothing of it, before it is found out and after.
    let mut client = engine.client("plain");
    while engine.metric("propylon_server_up", &[("server", &address.to_string())]) > 0.0 {
        assert_eq!(client.get("/").status, 200);
    }
    let tried = engine.metric("propylon_server_requests_total", &[("server", &address.to_string())]);
    all_good(&engine, 50);
    assert_eq!(engine.metric("propylon_server_requests_total", &[("server", &address.to_string())]), tried);
    let told = state(&engine, &address.to_string());
    assert_eq!((&told["state"], &told["usable"]), (&"down".into(), &false.into()), "{told}");
    assert_eq!(told["reason"], "connect-refused");
    assert!(told["since"].as_f64().is_some_and(|since| since > 1.6e9), "{told}");
    let line = format!("backend \"app\": server {address} is down: connect-refused; 1 of 2 servers can be used");
    assert!(engine.stderr().iter().any(|said| said.ends_with(&line)), "{:?}", engine.stderr());

    let again = Origin::on(TcpListener::bind(address).expect("its port again"), named("again"));
    up(&engine, address, 1.0);
    holds("requests come to it again", || engine.client("plain").get("/").text() == "again");
    assert_eq!(state(&engine, &address.to_string())["state"], "up");
    assert!(engine.stderr().iter().any(|said| said.contains("is up again; 2 of 2 servers can be used")));
    drop(again);
}

#[test]
fn a_server_that_is_down_is_probed_at_an_interval_of_its_own() {
    // Nobody answers at the port until the server is there.
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
    let rare = "path = \"/up\", interval = \"1h\", rise = 3";
    let often = engine(&[address], &format!("health = {{ {rare}, interval_down = \"50ms\" }}"));
    let never = engine(&[address], &format!("health = {{ {rare} }}"));
    [&often, &never].iter().for_each(|engine| up(engine, address, 0.0));
    let server = Origin::on(TcpListener::bind(address).expect("its port"), named("hello"));
    up(&often, address, 1.0);
    all_good(&often, 1);
    // Three of the one engine in a row have found it; with an hour between them none of the other has.
    assert_eq!(server.received_text().matches("GET /up HTTP/1.1\r\n").count(), 3);
    assert_eq!(state(&never, &address.to_string())["state"], "down");
    // Up, it is probed as seldom as configured: its end is not noticed by probes.
    drop(server);
    assert_eq!(state(&often, &address.to_string())["state"], "up");
}

#[test]
fn backups_stand_in_for_a_server_that_its_probes_fail_and_it_comes_back_slowly() {
    let well = Arc::new(AtomicBool::new(true));
    let is_well = Arc::clone(&well);
    let says = |name: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len()).into_bytes();
    let sick = Origin::answering(move |request| match is_probe(request) && !is_well.load(Ordering::SeqCst) {
        true => BROKEN.into(),
        false => says("sick"),
    });
    let [other, backup] = ["other", "backup"].map(|name| Origin::answering(move |_| says(name)));
    let count = |engine: &Engine, name: &str| {
        let mut client = engine.client("plain");
        (0..20).filter(|_| client.get("/").text() == name).count()
    };
    let health = format!("health = {{ path = \"/\", {QUICK} }}");
    let text = config("", &[sick.address().to_string(), "BACKUP".into()], &health);
    let spare = format!("{{ address = \"{}\", backup = true }}", backup.address());
    let spared = Engine::start(&text.replace("\"BACKUP\"", &spare));
    let slow = engine(&[sick.address(), other.address()], &format!("slow_start = \"1h\"\n{health}"));
    assert_eq!((count(&spared, "sick"), count(&slow, "sick")), (20, 10));
    well.store(false, Ordering::SeqCst);
    [&spared, &slow].iter().for_each(|engine| up(engine, sick.address(), 0.0));
    assert_eq!((count(&spared, "backup"), count(&slow, "other")), (20, 20));
    assert!(spared.metric("propylon_unusual_picks_total", &[("reason", "backup")]) >= 20.0);
    well.store(true, Ordering::SeqCst);
    [&spared, &slow].iter().for_each(|engine| up(engine, sick.address(), 1.0));
    assert_eq!(count(&spared, "sick"), 20);
    let warm = count(&slow, "sick");
    assert!(warm <= 3, "{warm} of 20 requests in the first moments of an hour");
}

#[test]
fn a_server_that_accepts_and_says_nothing_is_down() {
    let (silent, good) = (Origin::scripted(|peer| peer.stall(Duration::from_secs(30))), Origin::always(HELLO));
    let health = "health = { path = \"/\", interval = \"200ms\", timeout = \"150ms\", start = \"down\" }";
    let engine = engine(&[silent.address(), good.address()], health);
    up(&engine, good.address(), 1.0);
    holds("the silence is noted", || {
        state(&engine, &silent.address().to_string())["reason"] == "timeout (after 150 ms)"
            && engine.metric("propylon_health_checks_total", &[("result", "timeout")]) >= 3.0
    });
    let label = silent.address().to_string();
    assert_eq!(engine.metric("propylon_server_state_changes_total", &[("server", &label)]), 1.0, "told of once");
    all_good(&engine, 10);
}

#[test]
fn a_server_that_flaps_does_not_flap_its_state() {
    let turn = AtomicUsize::new(0);
    let origin = sickly(move || match turn.fetch_add(1, Ordering::SeqCst) % 2 {
        0 => HELLO.into(),
        _ => BROKEN.into(),
    });
    let engine = engine(
        &[origin.address()],
        "health = { path = \"/\", interval = \"50ms\", timeout = \"5s\", rise = 2, fall = 2 }",
    );
    let probes = |result: &str| engine.metric("propylon_health_checks_total", &[("result", result)]);
    holds("many probes", || probes("success") >= 10.0 && probes("unexpected-status") >= 10.0);
    // From not being known to being up, and no further.
    assert_eq!(engine.metric("propylon_server_state_changes_total", &[]), 1.0);
    assert_eq!(engine.metric("propylon_server_up", &[]), 1.0);
}

#[test]
fn status_and_body_have_to_be_what_is_expected() {
    let answers: [(&str, &str, Option<&str>); 9] = [
        ("path = \"/\"", BROKEN, Some("unexpected-status (500)")),
        ("path = \"/\", status = 500", BROKEN, None),
        ("path = \"/\", status = [204, \"500-599\"]", HELLO, Some("unexpected-status (200)")),
        ("path = \"/\", body = \"ell\"", HELLO, None),
        ("path = \"/\", body = \"ill\"", HELLO, Some("body-mismatch (status 200, 6 bytes without the text)")),
        (
            "path = \"/\", body = \"well then\"",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nwell \r\n4\r\nthen\r\n0\r\n\r\n",
            None,
        ),
        ("path = \"/\", method = \"HEAD\"", "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n", None),
        ("path = \"/\"", "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", None),
        ("path = \"/\"", "HTTP/1.1 200 OK\nContent-Length: 0\n\n", Some("bad-response (bare-lf)")),
    ];
    for (keys, answer, reason) in answers {
        let origin = Origin::always(answer);
        let engine = engine(&[origin.address()], &format!("health = {{ {keys}, {QUICK} }}"));
        let expected = if reason.is_some() { "down" } else { "up" };
        let server = origin.address().to_string();
        holds(&format!("{keys}: {expected}"), || state(&engine, &server)["state"] == expected);
        assert_eq!(state(&engine, &server)["reason"].as_str(), reason, "{keys}");
    }
}

#[test]
fn a_connection_is_enough_for_the_tcp_kind_and_the_port_may_be_another() {
    let origin = Origin::always(HELLO);
    let guard = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = guard.local_addr().expect("bound").port();
    let engine = engine(&[origin.address()], &format!("health = {{ kind = \"tcp\", port = {port}, {QUICK} }}"));
    holds("up", || state(&engine, &origin.address().to_string())["state"] == "up");
    assert_eq!(origin.connections(), 0, "the server's own port is left alone");
    drop(guard);
    up(&engine, origin.address(), 0.0);
    assert_eq!(engine.client("plain").get("/").status, 503);
}

#[test]
fn a_grpc_server_is_asked_how_it_is() {
    let server = GrpcServer::start("shop.Cart");
    let health = format!("health = {{ kind = \"grpc\", service = \"shop.Cart\", {QUICK} }}");
    let asked = engine(&[server.address()], &health);
    let address = server.address().to_string();
    holds("up", || state(&asked, &address)["state"] == "up");
    assert_eq!(server.asked()[0], format!("{address}/grpc.health.v1.Health/Check shop.Cart"));
    server.say(NOT_SERVING);
    holds("down", || state(&asked, &address)["reason"] == "not-serving (NOT_SERVING)");
    server.say(SERVING);
    up(&asked, server.address(), 1.0);
    let unknown = engine(&[server.address()], &format!("health = {{ kind = \"grpc\", service = \"a.B\", {QUICK} }}"));
    holds("down", || state(&unknown, &address)["reason"] == "not-serving (the service is unknown there)");
    let whole = engine(&[server.address()], &format!("health = {{ kind = \"grpc\", {QUICK} }}"));
    holds("up", || state(&whole, &address)["state"] == "up");
    let other = Origin::always(HELLO);
    let wrong = engine(&[other.address()], &format!("health = {{ kind = \"grpc\", {QUICK} }}"));
    up(&wrong, other.address(), 0.0);
}

/// An nginx that speaks HTTP/1.1 and HTTP/2 over TLS, with locations of the story's own.
fn secure(locations: &str) -> Nginx {
    let nginx = Nginx::secure_http2("tls", &Certificates::shared().ec(), locations);
    std::fs::write(nginx.root().join("index.html"), "a small page\n").expect("a page");
    nginx
}

/// `tls` of a backend that trusts the stories' CA.
fn tls(more: &str) -> String {
    format!("tls = {{ ca = \"{}\"{more} }}", Certificates::shared().ca().display())
}

#[test]
fn probes_go_over_tls_where_requests_do() {
    let mut nginx = secure("");
    let server = nginx.address().to_string();
    for kind in ["path = \"/\", body = \"a small page\"", "kind = \"tls\"", "kind = \"tcp\""] {
        let engine = engine(&[nginx.address()], &format!("{}\nhealth = {{ {kind}, {QUICK} }}", tls("")));
        holds("up", || state(&engine, &server)["state"] == "up");
        assert_eq!(engine.client("plain").get("/").text(), "a small page\n");
    }
    for kind in ["path = \"/\"", "kind = \"tls\""] {
        let wrong = tls(", server_name = \"elsewhere.test\"");
        let engine = engine(&[nginx.address()], &format!("{wrong}\nhealth = {{ {kind}, {QUICK} }}"));
        up(&engine, nginx.address(), 0.0);
        let reason = state(&engine, &server)["reason"].to_string();
        assert!(reason.contains("tls-failed (certificate-name-mismatch"), "{reason}");
        assert_eq!(engine.client("plain").get("/").text(), "503 Service Unavailable: no-healthy-server\n");
    }
    let plain = Origin::scripted(|peer| {
        let _ = peer.read_some();
        peer.send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    });
    let engine = engine(&[plain.address()], &format!("{}\nhealth = {{ kind = \"tls\", {QUICK} }}", tls("")));
    up(&engine, plain.address(), 0.0);
    assert!(engine.metric("propylon_health_checks_total", &[("result", "tls-failed")]) > 0.0);
    nginx.stop();
}

#[test]
fn probes_speak_the_protocol_of_requests() {
    let mut nginx =
        secure("location /http2 { if ($server_protocol != HTTP/2.0) { return 500; } return 200 'by http2\n'; }");
    let server = nginx.address().to_string();
    let probe = format!("path = \"/http2\", body = \"by http2\", {QUICK}");
    for (protocol, state_of_it, reason) in
        [("h2", "up", None), ("auto", "up", None), ("http1", "down", Some("unexpected-status (500)"))]
    {
        let engine =
            engine(&[nginx.address()], &format!("{}\nprotocol = \"{protocol}\"\nhealth = {{ {probe} }}", tls("")));
        holds(protocol, || state(&engine, &server)["state"] == state_of_it);
        assert_eq!(state(&engine, &server)["reason"].as_str(), reason, "{protocol}");
    }
    let other = probe.replace("by http2", "by pigeon");
    let engine = engine(&[nginx.address()], &format!("{}\nprotocol = \"h2\"\nhealth = {{ {other} }}", tls("")));
    let reason = "body-mismatch (status 200, 9 bytes without the text)";
    holds("the body is looked at", || state(&engine, &server)["reason"] == reason);
    nginx.stop();
    // Whoever does not speak it is not fit, but for a port of its own, which may be another program's.
    let old = Origin::always(HELLO);
    let by = |more: &str| format!("protocol = \"h2\"\nhealth = {{ path = \"/\", {QUICK}{more} }}");
    let alone = Engine::start(&config("", &[old.address().to_string()], &by("")));
    holds("down", || state(&alone, &old.address().to_string())["state"] == "down");
    let beside =
        Engine::start(&config("", &[old.address().to_string()], &by(&format!(", port = {}", old.address().port()))));
    holds("up", || state(&beside, &old.address().to_string())["state"] == "up");
}

#[test]
fn a_grpc_server_is_asked_over_tls() {
    let server = GrpcServer::start("shop.Cart");
    let pass = format!("location /grpc. {{ grpc_pass grpc://{}; }}", server.address());
    let mut nginx = secure(&pass);
    let health = format!("{}\nhealth = {{ kind = \"grpc\", service = \"shop.Cart\", {QUICK} }}", tls(""));
    let engine = engine(&[nginx.address()], &health);
    holds("up", || state(&engine, &nginx.address().to_string())["state"] == "up");
    server.say(NOT_SERVING);
    holds("down", || state(&engine, &nginx.address().to_string())["reason"] == "not-serving (NOT_SERVING)");
    nginx.stop();
}

#[test]
fn with_every_server_down_requests_are_refused_at_once_and_nobody_is_asked() {
    let origins = [Origin::always(BROKEN), Origin::always(BROKEN)];
    let addresses: Vec<SocketAddr> = origins.iter().map(Origin::address).collect();
    let engine = engine(&addresses, &format!("health = {{ path = \"/\", {QUICK} }}"));
    addresses.iter().for_each(|address| up(&engine, *address, 0.0));
    let mut client = engine.client("plain");
    for _ in 0..20 {
        let refused = client.get("/asked");
        assert_eq!(refused.status, 503);
        assert_eq!(refused.text(), "503 Service Unavailable: no-healthy-server\n");
        assert_eq!(refused.field("Retry-After"), Some("1"));
    }
    assert_eq!(engine.metric("propylon_server_requests_total", &[]), 0.0);
    assert!(origins.iter().all(|origin| !origin.received_text().contains("/asked")));
    assert_eq!(engine.metric("propylon_backend_unavailable_total", &[]), 20.0);
    assert_eq!(engine.logged_path("/asked")["fault"], "no-healthy-server");
}

#[test]
fn while_too_few_are_up_those_that_are_down_are_used_and_drained_ones_are_not() {
    let well = Arc::new(AtomicBool::new(true));
    let probed = |name: &'static str| {
        let well = Arc::clone(&well);
        Origin::answering(move |request| match is_probe(request) && !well.load(Ordering::SeqCst) {
            true => BROKEN.into(),
            false => format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len()).into(),
        })
    };
    let (one, two, drained) = (probed("one"), probed("two"), probed("drained"));
    let health = format!("min_healthy = 50\nhealth = {{ path = \"/\", {QUICK} }}");
    let servers = [one.address().to_string(), two.address().to_string(), "DRAINED".into()];
    let spare = format!("{{ address = \"{}\", drain = true }}", drained.address());
    let engine = Engine::start(&config("", &servers, &health).replace("\"DRAINED\"", &spare));
    let panic = || engine.metric("propylon_backend_panic", &[]);
    [&one, &two].iter().for_each(|origin| up(&engine, origin.address(), 1.0));
    assert_eq!(panic(), 0.0);
    well.store(false, Ordering::SeqCst);
    // The probes are at fault, and nobody else notices.
    let mut client = engine.client("plain");
    while panic() == 0.0 {
        assert_eq!(client.get("/").status, 200);
    }
    [&one, &two].iter().for_each(|origin| up(&engine, origin.address(), 0.0));
    let answers: Vec<String> = (0..20).map(|_| client.get("/").text()).collect();
    let count = |name: &str| answers.iter().filter(|answer| *answer == name).count();
    assert_eq!((count("one"), count("two"), count("drained")), (10, 10, 0));
    let told = state(&engine, &one.address().to_string());
    assert_eq!(
        (&told["state"], &told["usable"], &told["panic"]),
        (&"down".into(), &true.into(), &true.into()),
        "{told}"
    );
    assert_eq!(state(&engine, &drained.address().to_string())["usable"], false);
    let line = "backend \"app\": panic: 0 of 3 servers are up, and min_healthy is 50 %: those that are down get requests as well";
    holds("the log says so", || engine.stderr().iter().any(|said| said.contains(line)));
    assert!(engine.metric("propylon_unusual_picks_total", &[]) >= 20.0);
    // Connections to them are kept meanwhile.
    assert!(engine.metric("propylon_server_connections_total", &[("server", &one.address().to_string())]) <= 2.0);
    well.store(true, Ordering::SeqCst);
    holds("it is over", || panic() == 0.0);
    [&one, &two].iter().for_each(|origin| up(&engine, origin.address(), 1.0));
    assert_eq!(engine.metric("propylon_backend_panics_total", &[]), 1.0);
}

#[test]
fn an_outage_is_met_with_a_fifth_more_attempts_than_there_are_requests() {
    // Nobody listens there, and no probe says so: every request tries.
    let engine = engine(&[dead(), dead(), dead()], "retries = 3");
    let mut client = engine.client("plain");
    let mut ask = |count: usize| (0..count).for_each(|_| assert_eq!(client.get("/").status, 502));
    // What was saved up for a bad moment is used up first.
    ask(400);
    let attempts = || engine.metric("propylon_server_requests_total", &[]);
    let before = attempts();
    assert!(before <= 400.0 * 1.2 + 256.0, "{before}");
    ask(1000);
    assert_eq!(attempts() - before, 1200.0);
    assert!(engine.metric("propylon_retries_refused_total", &[]) > 0.0);
}

#[test]
fn the_budget_of_repeats_is_one_for_all_workers_and_a_reload_changes_it() {
    let servers: Vec<String> = (0..2).map(|_| dead().to_string()).collect();
    let text = |retries: &str| config("", &servers, retries).replacen("workers = 1", "workers = 2", 1);
    let engine = Engine::start(&text("retries = { attempts = 3, budget = \"10%\" }"));
    // Enough connections for either worker to have some.
    let mut clients: Vec<Client> = (0..20).map(|_| engine.client("plain")).collect();
    let mut ask = |rounds: usize| {
        for _ in 0..rounds {
            clients.iter_mut().for_each(|client| assert_eq!(client.get("/").status, 502));
        }
    };
    let attempts = || engine.metric("propylon_server_requests_total", &[]);
    ask(30);
    let saved = attempts();
    assert!((600.0 + 512.0..=600.0 * 1.1 + 512.0).contains(&saved), "256 for each worker: {saved}");
    ask(50);
    assert_eq!(attempts() - saved, 1100.0);
    engine.rewrite(&text("retries = { attempts = 3, budget = \"0%\" }"));
    engine.reload();
    let before = attempts();
    ask(2);
    assert_eq!(attempts() - before, 40.0);
    assert!(engine.metric("propylon_retries_refused_total", &[]) > 0.0);
}

#[test]
fn a_server_with_bad_answers_is_ejected_for_a_while_and_others_are_not() {
    let sick = Arc::new(AtomicBool::new(true));
    let is_sick = Arc::clone(&sick);
    let outlier = Origin::answering(move |_| if is_sick.load(Ordering::SeqCst) { BROKEN.into() } else { HELLO.into() });
    let others = [Origin::always(HELLO), Origin::always(HELLO)];
    let addresses = [outlier.address(), others[0].address(), others[1].address()];
    let engine = engine(&addresses, "outlier = { consecutive_failures = 5, ejection = \"2s\" }");
    let mut client = engine.client("plain");
    let server = outlier.address().to_string();
    let by_server = [("server", server.as_str())];
    while engine.metric("propylon_server_ejections_total", &by_server) == 0.0 {
        let status = client.get("/").status;
        assert!(status == 200 || status == 500, "{status}");
    }
    let told = state(&engine, &server);
    assert_eq!(told["state"], "ejected", "{told}");
    assert!(told["reason"].as_str().is_some_and(|reason| reason.ends_with(" failures in a row")), "{told}");
    assert!(told["until"].as_f64() > told["since"].as_f64(), "{told}");
    let before = engine.metric("propylon_server_requests_total", &by_server);
    all_good(&engine, 30);
    assert_eq!(engine.metric("propylon_server_requests_total", &by_server), before);
    sick.store(false, Ordering::SeqCst);
    up(&engine, outlier.address(), 1.0);
    all_good(&engine, 30);
    assert!(engine.metric("propylon_server_requests_total", &by_server) > before, "it has its share again");
    assert_eq!(engine.metric("propylon_server_ejections_total", &[]), 1.0);
}

/// Whoever asks for the right thing could have every server ejected.
#[test]
fn what_a_client_can_bring_about_is_held_against_no_server() {
    let origin = Origin::scripted(|peer| {
        while let Some(head) = peer.read_head() {
            let head = String::from_utf8_lossy(&head).into_owned();
            let path = head.split(' ').nth(1).unwrap_or_default();
            match path {
                "/switch" => peer.send("HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"),
                "/unknown" => peer.send("HTTP/1.1 501 Not Implemented\r\nContent-Length: 0\r\n\r\n"),
                "/head" => peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"),
                "/long" => {
                    peer.send(format!(
                        "HTTP/1.1 302 Found\r\nLocation: /{}\r\nContent-Length: 0\r\n\r\n",
                        "a".repeat(33_000)
                    ));
                }
                "/early" => {
                    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
                    peer.read_some();
                }
                // Without an answer, as servers do that have waited for too long.
                _ => {
                    peer.close();
                    return;
                }
            }
        }
    });
    let more = "retries = 0\ntimeouts = { body = \"300ms\" }\noutlier = {}";
    let engine = engine(&[origin.address()], more);
    let ask = |method: &str, path: &str, lines: &str| {
        let mut client = engine.client("plain");
        client.send(format!("{method} {path} HTTP/1.1\r\nHost: a\r\n{lines}\r\n"));
        client.read_head();
        client
    };
    let upgrade = |to: &str| format!("Connection: upgrade\r\nUpgrade: {to}\r\n");
    let cases: [(&str, &str, String, Option<&str>); 8] = [
        ("GET", "/switch", upgrade("foo"), Some("bad-switch")),
        ("GET", "/switch", String::new(), Some("bad-switch")),
        ("BREW", "/unknown", String::new(), None),
        ("HEAD", "/head", String::new(), Some("excess-data")),
        ("GET", "/long", String::new(), Some("response-head-too-large")),
        ("POST", "/close", "Content-Length: 10\r\n".into(), Some("closed-during-request")),
        ("POST", "/close", "Transfer-Encoding: chunked\r\n".into(), Some("closed-during-request")),
        ("POST", "/early", "Content-Length: 10\r\n".into(), Some("idle-both-ways")),
    ];
    let failures = || engine.metric("propylon_server_outcomes_total", &[("outcome", "failure")]);
    for (method, path, lines, reason) in cases {
        let faults = |reason: &str| engine.metric("propylon_server_faults_total", &[("reason", reason)]);
        let before = reason.map(faults);
        let asked = engine.metric("propylon_server_requests_total", &[]);
        let _client = ask(method, path, &lines);
        engine.metric_reaches("propylon_server_requests_total", &[], asked + 1.0);
        if let (Some(reason), Some(before)) = (reason, before) {
            engine.metric_reaches("propylon_server_faults_total", &[("reason", reason)], before + 1.0);
        }
        assert_eq!(failures(), 0.0, "{method} {path} {lines:?}");
    }
    ask("POST", "/close", "Content-Length: 0\r\n");
    ask("GET", "/close", "");
    engine.metric_reaches("propylon_server_outcomes_total", &[("outcome", "failure")], 2.0);
}

#[test]
fn a_full_circuit_turns_requests_away() {
    let (go, wait) = channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let origin = Origin::answering(move |_| {
        let _ = wait.lock().expect("nobody panics with it").recv_timeout(Duration::from_secs(20));
        HELLO.into()
    });
    let engine = engine(&[origin.address()], "circuit = { requests = 2 }");
    let mut waiting = [engine.client("plain"), engine.client("plain")];
    waiting.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    engine.metric_reaches("propylon_server_requests_total", &[], 2.0);
    let refused: Response = engine.client("plain").get("/third");
    assert_eq!((refused.status, refused.text().as_str()), (503, "503 Service Unavailable: circuit-open\n"));
    assert_eq!(engine.metric("propylon_queue_refused_total", &[("reason", "circuit-open")]), 1.0);
    let told = "as many are in progress at the backend as its circuit allows";
    holds("it is told for what it is", || engine.stderr().iter().any(|line| line.contains(told)));
    (0..3).for_each(|_| go.send(()).expect("the origin waits"));
    assert!(waiting.iter_mut().all(|client| client.read_response().status == 200));
    assert_eq!(engine.client("plain").get("/").status, 200);
}

#[test]
fn as_many_requests_as_the_circuit_allows_are_let_through_and_the_next_is_refused_whichever_worker_they_come_to() {
    const REQUESTS: usize = 7;
    const MORE: usize = 25;
    for workers in ["2", "\"auto\""] {
        let (go, wait) = channel::<()>();
        let wait = std::sync::Mutex::new(wait);
        let origin = Origin::answering(move |_| {
            let _ = wait.lock().expect("nobody panics with it").recv_timeout(Duration::from_secs(20));
            HELLO.into()
        });
        let text = config("", &[origin.address().to_string()], &format!("circuit = {{ requests = {REQUESTS} }}"));
        let engine = Engine::start(&text.replacen("workers = 1", &format!("workers = {workers}"), 1));
        let sent = || engine.metric("propylon_server_requests_total", &[]) as usize;
        let refused = || engine.metric("propylon_queue_refused_total", &[("reason", "circuit-open")]) as usize;
        // Twice: what was given back is there again, wherever it is wanted next.
        for round in 0..2 {
            let mut waiting: Vec<Client> = Vec::new();
            for count in 1..=REQUESTS {
                let mut client = engine.client("plain");
                client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
                waiting.push(client);
                holds("it is let through", || sent() == round * REQUESTS + count);
            }
            let mut more: Vec<Client> = (0..MORE).map(|_| engine.client("plain")).collect();
            more.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
            assert!(more.iter_mut().all(|client| client.read_response().status == 503));
            assert_eq!((sent(), refused()), ((round + 1) * REQUESTS, (round + 1) * MORE), "{workers} workers");
            (0..REQUESTS).for_each(|_| go.send(()).expect("the origin waits"));
            assert!(waiting.iter_mut().all(|client| client.read_response().status == 200));
        }
    }
}

#[test]
fn a_name_is_followed_to_its_new_address_and_kept_where_it_is_while_nobody_answers() {
    let [one, two] = twins();
    let port = one.local_addr().expect("bound").port();
    let (one, two) = (Origin::on(one, named("one")), Origin::on(two, named("two")));
    let names = NameServer::start();
    names.set("app.internal", &[Record::Address(Ipv4Addr::new(127, 0, 0, 1))]);
    let resolver = format!("resolver = {{ servers = [\"{}\"], ttl_min = \"100ms\" }}", names.address());
    let server = format!("app.internal:{port}");
    let engine = Engine::start(&config(&resolver, std::slice::from_ref(&server), "reuse = \"always\""));
    let mut client = engine.client("plain");
    assert_eq!(client.get("/").text(), "one");
    names.set("app.internal", &[Record::Address(Ipv4Addr::new(127, 0, 0, 2))]);
    // The connection to the old address is kept by both sides, and not used any more.
    holds("requests go to the new address", || client.get("/").text() == "two");
    assert!((0..20).all(|_| client.get("/").text() == "two"));
    engine.metric_reaches("propylon_server_connections", &[], 1.0);
    let moved = format!("backend \"app\": server {server} is now at 127.0.0.2:{port}");
    assert!(engine.stderr().iter().any(|line| line.ends_with(&moved)), "{:?}", engine.stderr());
    names.fail(true);
    holds("lookups fail", || engine.metric("propylon_server_lookup_failures_total", &[]) >= 2.0);
    assert_eq!(client.get("/").text(), "two");
    assert!(state(&engine, &server)["lookup_failed"].is_string());
    let kept = engine.stderr().iter().filter(|line| line.contains("its name cannot be looked up")).count();
    assert_eq!(kept, 1, "said once, however often it fails");
    names.fail(false);
    holds("found again", || state(&engine, &server)["lookup_failed"].is_null());
    // Both of them now, and each connection takes its turn.
    names.set("app.internal", &[Record::Address([127, 0, 0, 1].into()), Record::Address([127, 0, 0, 2].into())]);
    engine.metric_reaches("propylon_server_addresses", &[], 2.0);
    holds("the other has been asked as well", || {
        let mut clients: Vec<Client> = (0..4).map(|_| engine.client("plain")).collect();
        clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
        clients.iter_mut().any(|client| client.read_response().text() == "one")
    });
    assert!(names.questions() > 4);
    drop((one, two));
}

#[test]
fn a_name_that_cannot_be_looked_up_is_a_condition_until_it_is_found_however_rarely_it_is_asked_for() {
    let [one, _two] = twins();
    let port = one.local_addr().expect("bound").port();
    let _one = Origin::on(one, named("one"));
    let names = NameServer::start();
    names.set("app.internal", &[Record::Address([127, 0, 0, 1].into())]);
    names.fail(true);
    // The name is not found at the start, and the next look-up is far away: nothing counts on meanwhile.
    let resolver = format!("resolver = {{ servers = [\"{}\"], ttl_min = \"20s\" }}", names.address());
    let server = format!("app.internal:{port}");
    let engine = Engine::start(&config(&resolver, std::slice::from_ref(&server), ""));
    let conditions = || {
        let request = format!("GET /status.json HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", engine.admin());
        let status: Value = serde_json::from_slice(&Client::plain(engine.admin()).ask(request).body).expect("JSON");
        status["conditions"]["list"].as_array().into_iter().flatten().filter(|one| one["name"] == "server-name").count()
    };
    holds("it is a condition", || conditions() == 1);
    let ticks = || engine.metric("propylon_worker_ticks_total", &[]);
    let later = ticks() + 150.0;
    holds("as long as a counter's condition lasts, and longer", || {
        assert_eq!(conditions(), 1, "it has not been found");
        ticks() > later
    });
    names.fail(false);
    engine.metric_reaches("propylon_server_lookup_failing", &[], 0.0);
    holds("it is over", || conditions() == 0);
}

#[test]
fn an_address_that_does_not_answer_is_passed_over_while_another_does() {
    let [one, two] = twins();
    let port = one.local_addr().expect("bound").port();
    let one = Origin::on(one, named("one"));
    drop(two);
    let names = NameServer::start();
    names.set("app.internal", &[Record::Address([127, 0, 0, 1].into()), Record::Address([127, 0, 0, 2].into())]);
    let resolver = format!("resolver = \"{}\"", names.address());
    let servers = [format!("app.internal:{port}")];
    // Without probes: the next address is tried where a connect fails, which is no failure of the server.
    let engine = Engine::start(&config(&resolver, &servers, "max_requests = 1"));
    all_good(&engine, 10);
    assert_eq!(engine.metric("propylon_server_connect_failures_total", &[]), 0.0);
    drop(engine);
    let engine =
        Engine::start(&config(&resolver, &servers, &format!("max_requests = 1\nhealth = {{ path = \"/\", {QUICK} }}")));
    engine.metric_reaches("propylon_server_addresses", &[], 1.0);
    all_good(&engine, 10);
    assert_eq!(engine.metric("propylon_server_up", &[]), 1.0);
    drop(one);
}

#[test]
fn a_service_is_looked_up_with_its_ports() {
    let (one, two, spare) = (Origin::always(HELLO), Origin::always(HELLO), Origin::always(HELLO));
    let names = NameServer::start();
    let service = |origin: &Origin, priority, target: &str| {
        names.set(target, &[Record::Address(Ipv4Addr::LOCALHOST)]);
        Record::Service { priority, weight: 0, port: origin.address().port(), target: target.into() }
    };
    let records =
        [service(&one, 1, "a.app.internal"), service(&two, 1, "b.app.internal"), service(&spare, 2, "c.app.internal")];
    names.set("_http._tcp.app.internal", &records);
    let resolver = format!("resolver = \"{}\"", names.address());
    let servers = ["srv+_http._tcp.app.internal".to_string()];
    let engine =
        Engine::start(&config(&resolver, &servers, &format!("max_requests = 1\nhealth = {{ path = \"/\", {QUICK} }}")));
    engine.metric_reaches("propylon_server_addresses", &[], 2.0);
    all_good(&engine, 10);
    for origin in [&one, &two] {
        assert!(origin.received_text().contains("GET / HTTP/1.1\r\nHost: shop.test"), "{}", origin.received_text());
    }
    assert!(
        one.received_text().contains(&format!("Host: app.internal:{}\r\nUser-Agent: propylon", one.address().port()))
    );
    let spared = spare.received_text();
    assert!(!spared.contains("shop.test"), "the second choice is probed and no more: {spared}");
}

#[test]
fn a_services_weights_are_heeded_and_later_priorities_stand_in() {
    let well = Arc::new(AtomicBool::new(true));
    let probed = |name: &'static str| {
        let well = Arc::clone(&well);
        Origin::answering(move |request| match is_probe(request) && name != "spare" && !well.load(Ordering::SeqCst) {
            true => BROKEN.into(),
            false => format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len()).into(),
        })
    };
    let origins = ["heavy", "light", "spare"].map(probed);
    let names = NameServer::start();
    let record = |place: usize, priority, weight| {
        let target = format!("{place}.app.internal");
        names.set(&target, &[Record::Address(Ipv4Addr::LOCALHOST)]);
        Record::Service { priority, weight, port: origins[place].address().port(), target }
    };
    names.set("_http._tcp.app.internal", &[record(2, 20, 500), record(0, 10, 30), record(1, 10, 10)]);
    let resolver = format!("resolver = \"{}\"", names.address());
    let servers = ["srv+_http._tcp.app.internal".to_string()];
    let health = format!("max_requests = 1\nhealth = {{ path = \"/\", {QUICK} }}");
    let engine = Engine::start(&config(&resolver, &servers, &health));
    engine.metric_reaches("propylon_server_addresses", &[], 2.0);
    let answers = || {
        let mut client = engine.client("plain");
        (0..40).map(|_| client.get("/").text()).collect::<Vec<String>>()
    };
    let count = |answers: &[String], name: &str| answers.iter().filter(|answer| *answer == name).count();
    let all = answers();
    assert_eq!(["heavy", "light", "spare"].map(|name| count(&all, name)), [30, 10, 0]);
    // Their probes fail: the address that stands in is where the server is, until they answer again.
    well.store(false, Ordering::SeqCst);
    holds("the spare has it all", || count(&answers(), "spare") == 40);
    assert_eq!(engine.metric("propylon_server_addresses", &[]), 1.0);
    assert_eq!(engine.metric("propylon_server_up", &[]), 1.0);
    well.store(true, Ordering::SeqCst);
    engine.metric_reaches("propylon_server_addresses", &[], 2.0);
    assert_eq!(count(&answers(), "spare"), 0);
}

#[test]
fn a_name_that_nobody_knows_is_one_server_that_is_down_until_somebody_does() {
    let (known, lost) = (
        Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nknown"),
        Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlost"),
    );
    let names = NameServer::start();
    let resolver = format!("resolver = {{ servers = [\"{}\"], ttl_min = \"100ms\" }}", names.address());
    let server = format!("nowhere.internal:{}", lost.address().port());
    let engine = Engine::start(&config(&resolver, &[known.address().to_string(), server.clone()], ""));
    let told = format!("{server}: ");
    let is_told =
        |line: &String| line.contains("]: warning: ") && line.contains(&told) && line.contains("is down until");
    assert!(engine.stderr().iter().any(is_told), "{:?}", engine.stderr());
    assert_eq!(engine.metric("propylon_server_up", &[("server", &server)]), 0.0);
    let now = state(&engine, &server);
    assert_eq!((&now["state"], &now["reason"]), (&"down".into(), &"its name cannot be looked up".into()), "{now}");
    // The others serve meanwhile, and nobody is sent to a server that nobody can find.
    (0..10).for_each(|_| assert_eq!(engine.client("plain").get("/").text(), "known"));
    assert_eq!(engine.metric("propylon_server_requests_total", &[("server", &server)]), 0.0);
    names.set("nowhere.internal", &[Record::Address(Ipv4Addr::LOCALHOST)]);
    engine.metric_reaches("propylon_server_up", &[("server", &server)], 1.0);
    holds("it has its share", || {
        engine.client("plain").get("/");
        !lost.received().is_empty()
    });
}

/// Accepts nothing, at any address of this machine: a port whose line is full, which takes no connection and refuses none.
struct Silent {
    listener: Socket,
    _line: Vec<Socket>,
}

impl Silent {
    fn new() -> Silent {
        let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let listener = socket();
        listener.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)).into()).expect("a free port");
        listener.listen(0).expect("a line of one");
        let silent = Silent { listener, _line: Vec::new() };
        let mut line = Vec::new();
        loop {
            let client = socket();
            let stands = client.connect_timeout(&silent.at([127, 0, 0, 1]).into(), Duration::from_millis(500)).is_ok();
            line.push(client);
            if !stands {
                return Silent { _line: line, ..silent };
            }
        }
    }

    fn at(&self, ip: [u8; 4]) -> SocketAddr {
        let bound = SockRef::from(&self.listener).local_addr().ok().and_then(|address| address.as_socket());
        SocketAddr::from((ip, bound.expect("bound").port()))
    }
}

/// A zone that is away, of the same backend as a server that answers: its own probes come in their time.
#[test]
fn silent_servers_do_not_hold_up_the_probes_of_the_others_of_their_backend() {
    const SILENT: usize = 400;
    let silent = Silent::new();
    let origin = Origin::always(HELLO);
    let away = (0..SILENT).map(|n| silent.at([127, 1, (n / 200) as u8, (n % 200) as u8 + 1]));
    let servers: Vec<SocketAddr> = away.chain([origin.address()]).collect();
    let engine = engine(
        &servers,
        "health = { path = \"/\", interval = \"500ms\", timeout = \"500ms\", rise = 1, fall = 2 }\nmin_healthy = 0",
    );
    let label = origin.address().to_string();
    let checks = |result: &str, server: &[(&str, &str)]| {
        engine.metric("propylon_health_checks_total", &[&[("result", result)], server].concat())
    };
    let first = |done: f64| holds("all have been asked", || checks("connect-timeout", &[]) >= done);
    first(SILENT as f64);
    // Once nobody has to find out which of them are silent: while each is asked twice more, at so many at a time.
    let (before, known) = (checks("success", &[("server", &label)]), checks("connect-timeout", &[]));
    first(known + 2.0 * SILENT as f64);
    let (asked, timeouts) = (checks("success", &[("server", &label)]) - before, checks("connect-timeout", &[]) - known);
    println!("{asked} probes of the one that answers during {timeouts} of those that do not");
    assert!(asked >= 6.0, "the one that answers was asked {asked} times while {timeouts} probes of others timed out");
    let known = checks("connect-timeout", &[]);
    drop(origin);
    up(&engine, servers[SILENT], 0.0);
    let until = checks("connect-timeout", &[]) - known;
    assert!(until < SILENT as f64, "its end was known only after {until} probes of others");
}
