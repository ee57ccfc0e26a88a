//! What is known of servers goes on while the configuration changes, and new ones are looked after from the first.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use propylon_e2e::admin::{admin, applied, push, server, with_state};
use propylon_e2e::dns::{NameServer, Record};
use propylon_e2e::origin::dead;
use propylon_e2e::{Client, Engine, Origin, Scratch, holds};

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";
const BROKEN: &str = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n";
const QUICK: &str = "health = { path = \"/up\", interval = \"100ms\", timeout = \"2s\", rise = 2, fall = 2 }";
/// It is up after its first probe and until the end of the story.
const SLOW: &str = "health = { path = \"/up\", interval = \"1h\" }";

fn config(process: &str, admin: &str, servers: &[String], backend: &str) -> String {
    let servers: Vec<String> = servers
        .iter()
        .map(|server| if server.starts_with('{') { server.clone() } else { format!("\"{server}\"") })
        .collect();
    format!(
        "[process]\nworkers = 1\ndrain_timeout = \"1s\"\n{process}\n[admin]\nbind = \"127.0.0.1:0\"\n{admin}\n\
         [listener.plain]\nbind = \"127.0.0.1:0\"\n[backend.app]\nservers = [{}]\n{backend}\n[[route]]\nbackend = \"app\"\n",
        servers.join(", ")
    )
}

fn plain(origins: &[&Origin], backend: &str) -> String {
    let servers: Vec<String> = origins.iter().map(|origin| label(origin)).collect();
    config("", "", &servers, backend)
}

fn label(origin: &Origin) -> String {
    origin.address().to_string()
}

fn is_probe(request: &[u8]) -> bool {
    String::from_utf8_lossy(request).contains("User-Agent: propylon-health/")
}

fn says(name: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len()).into_bytes()
}

/// Says its name, and is as well as `well` says to those who probe it.
fn probed(name: &'static str, well: &Arc<AtomicBool>) -> Origin {
    let well = Arc::clone(well);
    Origin::answering(move |request| match is_probe(request) && !well.load(Ordering::SeqCst) {
        true => BROKEN.into(),
        false => says(name),
    })
}

/// An answer for everything that is sent into the channel.
fn gated() -> (Origin, Sender<()>) {
    let (go, wait) = channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let origin = Origin::answering(move |_| {
        let _ = wait.lock().expect("nobody panics with it").recv_timeout(Duration::from_secs(20));
        HELLO.into()
    });
    (origin, go)
}

fn state(engine: &Engine, address: &str) -> String {
    server(engine, address)["health"]["state"].as_str().expect("a state").to_owned()
}

#[track_caller]
fn reloaded(engine: &Engine, text: &str) {
    engine.rewrite(text);
    let said = engine.reload();
    assert!(said.contains("is in effect"), "{said}");
}

#[test]
fn verdicts_and_ejections_outlast_changes_of_the_configuration() {
    let dead = dead().to_string();
    let sick = Origin::answering(|request| if is_probe(request) { HELLO.into() } else { BROKEN.into() });
    let good = Origin::always(HELLO);
    let servers = [dead.clone(), label(&sick), label(&good)];
    let backend = |weight: u8| {
        let more = "outlier = { consecutive_failures = 5, ejection = \"5m\" }";
        let weighted = format!("{{ address = \"{}\", weight = {weight} }}", servers[2]);
        let servers = [servers[0].clone(), servers[1].clone(), weighted];
        config("", "", &servers, &format!("{QUICK}\n{more}\nretries = {weight}"))
    };
    let engine = Engine::start(&backend(1));
    let mut client = engine.client("plain");
    holds("one is down", || state(&engine, &dead) == "down");
    holds("one is ejected", || {
        client.get("/");
        state(&engine, &servers[1]) == "ejected"
    });
    let health = |address: &str| server(&engine, address)["health"].clone();
    let before = [health(&servers[0]), health(&servers[1])];
    let count = |name: &str| engine.metric(name, &[("server", &servers[1])]);
    let asked = count("propylon_server_requests_total");
    for weight in 2..6 {
        reloaded(&engine, &backend(weight));
        assert_eq!([health(&servers[0]), health(&servers[1])], before);
        (0..10).for_each(|_| assert_eq!(client.get("/").status, 200));
    }
    assert_eq!(count("propylon_server_requests_total"), asked);
    assert_eq!(count("propylon_server_ejections_total"), 1.0);
    let downs = engine.stderr().iter().filter(|line| line.contains(&format!("{dead} is down"))).count();
    assert_eq!(downs, 1, "told once");
    // Of one that goes and comes back nothing is known.
    reloaded(&engine, &plain(&[&good], QUICK));
    reloaded(&engine, &plain(&[&sick, &good], QUICK));
    holds("it is probed anew", || state(&engine, &servers[1]) == "up");
    // Without rules to eject by, nobody is ejected; without probes, nobody is down.
    reloaded(&engine, &backend(1));
    holds("down again", || state(&engine, &dead) == "down");
    reloaded(&engine, &config("", "", &servers, "retries = 0"));
    assert_eq!(state(&engine, &dead), "unknown");
    assert_eq!(engine.metric("propylon_server_up", &[("server", &dead)]), 1.0);
}

#[test]
fn a_slow_start_goes_on_through_changes_and_new_servers_begin_one() {
    let well = Arc::new(AtomicBool::new(true));
    let (back, other, new) = (probed("back", &well), Origin::always(says("other")), Origin::always(says("new")));
    let slow = |origins: &[&Origin], retries: u8| {
        plain(origins, &format!("{QUICK}\nslow_start = \"1h\"\nretries = {retries}"))
    };
    let engine = Engine::start(&slow(&[&back, &other], 1));
    let count = |name: &str| {
        let mut client = engine.client("plain");
        (0..40).filter(|_| client.get("/").text() == name).count()
    };
    assert_eq!(count("back"), 20);
    well.store(false, Ordering::SeqCst);
    holds("it is down", || state(&engine, &label(&back)) == "down");
    assert_eq!(count("back"), 0);
    well.store(true, Ordering::SeqCst);
    holds("it is up", || state(&engine, &label(&back)) == "up");
    let warming = count("back");
    assert!(warming <= 5, "{warming} of 40 in the first moments of an hour");
    reloaded(&engine, &slow(&[&back, &other], 2));
    let warming = count("back");
    assert!(warming <= 5, "{warming} of 40 after a change");
    reloaded(&engine, &slow(&[&back, &other, &new], 2));
    let (warming, begun) = (count("back"), count("new"));
    assert!(warming <= 5 && begun <= 5, "{warming} and {begun} of 40");
}

#[test]
fn a_server_that_is_drained_by_the_admin_api_is_shown_with_the_reason_and_finishes_its_requests() {
    let (slow, go) = gated();
    let fast = Origin::always(says("fast"));
    let scratch = Scratch::new();
    let (process, token) = with_state(&scratch);
    let drained = format!("{{ address = \"{}\", drain = true }}", label(&fast));
    let engine = Engine::start(&config(&process, &token, &[label(&slow), drained], ""));
    let (slow_path, fast_path) = ["slow", "fast"]
        .map(str::to_owned)
        .map(|name| {
            let of = if name == "slow" { &slow } else { &fast };
            format!("/v1/backends/app/servers/{}", of.address())
        })
        .into();
    let told = server(&engine, &label(&fast));
    assert_eq!(
        (&told["health"]["state"], &told["health"]["reason"]),
        (&"draining".into(), &"drained in the configuration".into())
    );
    let mut client = engine.client("plain");
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    holds("the request is with the server", || slow.received_text().contains("GET / "));
    applied(&engine, "PATCH", &fast_path, "{\"drain\": false}");
    assert_eq!(state(&engine, &label(&fast)), "unknown");
    applied(&engine, "PATCH", &slow_path, "{\"drain\": true}");
    let told = server(&engine, &label(&slow));
    assert_eq!(told["health"]["state"], "draining", "{told:#}");
    assert_eq!(told["health"]["reason"], "drained by the admin API");
    assert_eq!((&told["health"]["usable"], &told["draining"]), (&false.into(), &true.into()));
    assert_eq!(told["requests_in_flight"], 1);
    assert_eq!(engine.metric("propylon_server_up", &[("server", &label(&slow))]), 0.0);
    let line = format!("server {} is draining: drained by the admin API; 1 of 2 servers can be used", slow.address());
    assert!(engine.stderr().iter().any(|said| said.ends_with(&line)), "{:?}", engine.stderr());
    (0..5).for_each(|_| assert_eq!(engine.client("plain").get("/").text(), "fast"));
    go.send(()).expect("the origin waits");
    assert_eq!(client.read_response().status, 200);
    let since = told["health"]["since"].clone();
    applied(&engine, "PATCH", &fast_path, "{\"weight\": 9}");
    assert_eq!(server(&engine, &label(&slow))["health"]["since"], since, "another change is none of its own");
    applied(&engine, "PATCH", &slow_path, "{\"drain\": false}");
    assert_eq!(state(&engine, &label(&slow)), "unknown");
    go.send(()).expect("the origin waits");
    holds("it has requests again", || {
        go.send(()).expect("the origin waits");
        engine.client("plain").get("/").text() == "hello\n"
    });
}

#[test]
fn a_server_that_is_added_is_probed_and_one_that_starts_down_waits_for_it() {
    let well = Arc::new(AtomicBool::new(false));
    let (first, second) = (Origin::always(says("first")), probed("second", &well));
    let scratch = Scratch::new();
    let (process, token) = with_state(&scratch);
    let health = QUICK.replace("rise", "start = \"down\", rise");
    let engine = Engine::start(&config(&process, &token, &[label(&first)], &health));
    holds("the first is up", || state(&engine, &label(&first)) == "up");
    applied(&engine, "POST", "/v1/backends/app/servers", &format!("{{\"address\": \"{}\"}}", second.address()));
    // It was closed before any request could see it.
    (0..20).for_each(|_| assert_eq!(engine.client("plain").get("/").text(), "first"));
    holds("it is probed", || second.received_text().contains("GET /up "));
    let told = server(&engine, &label(&second));
    assert_eq!(told["health"]["state"], "down", "{told:#}");
    let probes = [("server", &*label(&second)), ("result", "unexpected-status")].map(|(k, v)| (k, v.to_owned()));
    let probes: Vec<(&str, &str)> = probes.iter().map(|(k, v)| (*k, v.as_str())).collect();
    holds("its probes are counted", || engine.metric("propylon_health_checks_total", &probes) > 0.0);
    assert!(!second.received_text().contains("GET / "), "no request");
    well.store(true, Ordering::SeqCst);
    holds("it is up", || state(&engine, &label(&second)) == "up");
    holds("it has requests", || engine.client("plain").get("/").text() == "second");
    // It goes, and nobody asks it any more: what was asked ends with the series.
    applied(&engine, "DELETE", &format!("/v1/backends/app/servers/{}", second.address()), "");
    holds("its series end", || !engine.metrics().contains(&label(&second)));
    let asked = second.received_text().matches("GET /up ").count();
    let others = first.received_text().matches("GET /up ").count();
    holds("the first is probed on", || first.received_text().matches("GET /up ").count() > others + 3);
    assert!(second.received_text().matches("GET /up ").count() <= asked + 1, "one may have been on its way");
}

#[test]
fn a_health_section_changes_in_place() {
    let well = Arc::new(AtomicBool::new(false));
    let origin = probed("app", &well);
    let address = label(&origin);
    let scratch = Scratch::new();
    let (process, token) = with_state(&scratch);
    let engine = Engine::start(&config(&process, &token, std::slice::from_ref(&address), "# health"));
    let file = std::fs::read_to_string(engine.folder().join("propylon.toml")).expect("the engine's file");
    let text = |backend: &str| file.replace("# health", backend);
    assert_eq!(state(&engine, &address), "unknown");
    assert!(!engine.metrics().contains("propylon_health_checks_total{"), "nobody probes");
    let pushed = |backend: &str| {
        let (status, value) = push(&engine, &text(backend));
        assert_eq!((status, value["result"].as_str()), (200, Some("applied")), "{value:#}");
        value
    };
    let value = pushed(QUICK);
    assert!(value.to_string().contains("backend.app.health"), "{value:#}");
    holds("down", || state(&engine, &address) == "down");
    assert_eq!(engine.client("plain").get("/").status, 503);
    let failures = || engine.metric("propylon_health_checks_total", &[("result", "unexpected-status")]);
    assert!(failures() > 0.0);
    // What it answers is good enough by other rules.
    pushed(&QUICK.replace("rise", "status = 500, rise"));
    holds("up", || state(&engine, &address) == "up");
    assert_eq!(engine.client("plain").get("/").status, 200);
    pushed(QUICK);
    holds("down", || state(&engine, &address) == "down");
    // Nobody asks any more, and so nobody says that it is down.
    pushed("");
    assert_eq!(state(&engine, &address), "unknown");
    assert_eq!(engine.client("plain").get("/").status, 200);
    assert!(!engine.metrics().contains("propylon_health_checks_total{"), "nobody probes");
    let (status, value) = push(&engine, &text("health = { path = \"up\" }"));
    assert_eq!((status, value["result"].as_str()), (422, Some("refused")), "{value:#}");
}

#[test]
fn probes_that_take_their_time_come_to_an_end_however_often_the_configuration_changes() {
    let silent = Origin::scripted(|peer| peer.stall(Duration::from_secs(60)));
    let good = Origin::always(HELLO);
    let text = |retries: u8| {
        let health = "health = { path = \"/\", interval = \"1s\", timeout = \"1s\" }";
        plain(&[&silent, &good], &format!("{health}\nretries = {retries}"))
    };
    let engine = Engine::start(&text(0));
    let mut retries = 0;
    holds("the silence is noted", || {
        retries = (retries + 1) % 4;
        reloaded(&engine, &text(retries));
        state(&engine, &label(&silent)) == "down"
    });
}

#[test]
fn requests_in_progress_count_against_the_circuit_over_a_change() {
    let (origin, go) = gated();
    let text = |retries: u8| plain(&[&origin], &format!("circuit = {{ requests = 2 }}\nretries = {retries}"));
    let engine = Engine::start(&text(0));
    let mut waiting = [engine.client("plain"), engine.client("plain")];
    waiting.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    engine.metric_reaches("propylon_server_requests_total", &[], 2.0);
    reloaded(&engine, &text(1));
    assert_eq!(engine.client("plain").get("/").text(), "503 Service Unavailable: circuit-open\n");
    (0..3).for_each(|_| go.send(()).expect("the origin waits"));
    assert!(waiting.iter_mut().all(|client| client.read_response().status == 200));
    assert_eq!(engine.client("plain").get("/").status, 200);
}

/// Two servers on one port, on 127.0.0.1 and 127.0.0.2.
fn twins() -> ([Origin; 2], u16) {
    for _ in 0..100 {
        let one = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = one.local_addr().expect("bound").port();
        if let Ok(two) = TcpListener::bind(("127.0.0.2", port)) {
            let serve = |name: &'static str| {
                move |peer: &mut propylon_e2e::Peer| {
                    while peer.read_request().is_some() {
                        peer.send(says(name));
                    }
                }
            };
            return ([Origin::on(one, serve("one")), Origin::on(two, serve("two"))], port);
        }
    }
    panic!("no port is free on both addresses");
}

#[test]
fn names_are_followed_through_changes_and_new_ones_hold_nobody_up() {
    let (_twins, port) = twins();
    let (names, others) = (NameServer::start(), NameServer::start());
    let stands_for = |names: &NameServer, last: u8| {
        names.set("app.internal", &[Record::Address(Ipv4Addr::new(127, 0, 0, last))]);
    };
    stands_for(&names, 1);
    stands_for(&others, 2);
    let scratch = Scratch::new();
    let (process, token) = with_state(&scratch);
    let named = format!("app.internal:{port}");
    let text = |resolver: SocketAddr, ttl: &str, retries: u8| {
        let process =
            format!("{process}\nresolver = {{ servers = [\"{resolver}\"], ttl_min = \"{ttl}\", ttl_max = \"{ttl}\" }}");
        config(&process, &token, std::slice::from_ref(&named), &format!("retries = {retries}"))
    };
    let engine = Engine::start(&text(names.address(), "300ms", 0));
    let who = || engine.client("plain").get("/").text();
    assert_eq!(who(), "one");
    stands_for(&names, 2);
    let mut retries = 0;
    // Changes come more often than the name is looked up.
    holds("the name is followed", || {
        retries = (retries + 1) % 4;
        reloaded(&engine, &text(names.address(), "300ms", retries));
        who() == "two"
    });
    stands_for(&names, 1);
    holds("it moves back", || who() == "one");
    // Other name servers are asked at once, whatever the old ones said of how long their answers hold.
    reloaded(&engine, &text(names.address(), "1h", 0));
    reloaded(&engine, &text(others.address(), "1h", 0));
    holds("the other name server is believed", || who() == "two");
    // A name that nobody knows is refused; nobody waits for who asks that.
    others.fail(true);
    let body = "{\"address\": \"new.internal:80\"}";
    let (status, value) = admin(&engine, "POST", "/v1/backends/app/servers", body);
    assert_eq!(status, 422, "{value:#}");
    assert!(value.to_string().contains("new.internal:80"), "{value:#}");
    assert_eq!(who(), "two");
    others.fail(false);
    others.set("new.internal", &[Record::Address(Ipv4Addr::LOCALHOST)]);
    let body = format!("{{\"address\": \"new.internal:{port}\"}}");
    applied(&engine, "POST", "/v1/backends/app/servers", &body);
    holds("both have requests", || who() == "one");
    assert_eq!(who(), "two");
}

#[test]
fn a_name_server_that_says_nothing_does_not_stop_the_main_thread() {
    let origin = Origin::always(HELLO);
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let resolver = format!("resolver = \"{}\"", silent.local_addr().expect("bound"));
    let scratch = Scratch::new();
    let (process, token) = with_state(&scratch);
    let engine = Engine::start(&config(&format!("{process}\n{resolver}"), &token, &[label(&origin)], SLOW));
    let body = "{\"address\": \"new.internal:80\"}";
    let host = engine.admin();
    let mut waiting = Client::plain(host);
    waiting.send(format!(
        "POST /v1/backends/app/servers HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
         Authorization: Bearer {}\r\nContent-Length: {}\r\n\r\n{body}",
        propylon_e2e::admin::TOKEN,
        body.len()
    ));
    let mut question = [0; 512];
    silent.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    silent.recv_from(&mut question).expect("the name is asked for");
    // The answer is owed, and everything else goes on: the first probe as well.
    holds("the server is up", || state(&engine, &label(&origin)) == "up");
    assert_eq!(engine.client("plain").get("/").status, 200);
    drop(silent);
    assert_eq!(waiting.read_response().status, 422);
}
