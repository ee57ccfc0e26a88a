//! Which server a request goes to: shares by weight, slow and failing servers, keys, cookies, backups.

use std::collections::HashMap;
use std::fs::{Permissions, set_permissions};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use propylon_e2e::engine::with;
use propylon_e2e::{Client, Engine, Origin, Response, Scratch, holds};

fn answer(status: &str, name: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{name}", name.len())
}

/// An origin that says its name.
fn named(name: &'static str) -> Origin {
    Origin::always(answer("200 OK", name))
}

/// One that takes its time to say it.
fn slow(name: &'static str, pause: Duration) -> Origin {
    Origin::answering(move |_| {
        std::thread::sleep(pause);
        answer("200 OK", name).into_bytes()
    })
}

fn three() -> [Origin; 3] {
    [named("a"), named("b"), named("c")]
}

fn engine(origins: &[Origin], backend: &str) -> Engine {
    let addresses: Vec<SocketAddr> = origins.iter().map(Origin::address).collect();
    Engine::start(&with(&addresses, "", backend))
}

/// With servers as they are written in the configuration.
fn engine_with(servers: &str, backend: &str) -> Engine {
    let config = with(&[], "", backend).replace("servers = []", &format!("servers = [{servers}]"));
    Engine::start(&config)
}

/// Who has answered how often.
type Counts = HashMap<String, usize>;

fn counts(client: &mut Client, requests: usize) -> Counts {
    let mut counts = Counts::new();
    for _ in 0..requests {
        *counts.entry(client.get("/").text()).or_default() += 1;
    }
    counts
}

/// The same, by several clients at once.
fn counts_of_many(engine: &Engine, clients: usize, requests: usize) -> Counts {
    let address = engine.address("plain");
    let threads: Vec<_> =
        (0..clients).map(|_| std::thread::spawn(move || counts(&mut Client::plain(address), requests))).collect();
    let mut sum = Counts::new();
    for thread in threads {
        for (name, count) in thread.join().expect("a client that is answered") {
            *sum.entry(name).or_default() += count;
        }
    }
    sum
}

fn get_with(client: &mut Client, path: &str, fields: &str) -> Response {
    client.ask(format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"))
}

#[test]
fn shares_are_as_the_weights_say() {
    let origins = three();
    let [a, b, c] = origins.each_ref().map(Origin::address);
    let servers = format!("{{ address = \"{a}\", weight = 5 }}, {{ address = \"{b}\", weight = 3 }}, \"{c}\"");
    for balance in ["round-robin", "least-connections"] {
        let engine = engine_with(&servers, &format!("balance = \"{balance}\""));
        let counts = counts(&mut engine.client("plain"), 180);
        assert_eq!((counts["a"], counts["b"], counts["c"]), (100, 60, 20), "{balance}");
    }
    let engine = engine_with(&servers, "balance = \"random\"");
    let counts = counts(&mut engine.client("plain"), 900);
    assert!((400..600).contains(&counts["a"]) && (60..145).contains(&counts["c"]), "{counts:?}");
}

#[test]
fn a_slow_server_gets_less_where_load_or_speed_counts() {
    let origins = [named("a"), named("b"), slow("slow", Duration::from_millis(60))];
    for balance in ["least-connections", "p2c-ewma"] {
        let engine = engine(&origins, &format!("balance = \"{balance}\""));
        let counts = counts_of_many(&engine, 4, 60);
        let slow = counts.get("slow").copied().unwrap_or(0);
        assert!(slow < 60, "{balance}: {slow} of 240 went to the slow one");
        for fast in ["a", "b"] {
            assert!(counts[fast] > 20, "{balance}: {counts:?}");
        }
    }
}

#[test]
fn a_server_that_fails_at_once_does_not_attract_requests() {
    let failing = Origin::always(answer("500 Internal Server Error", "failing"));
    let pause = Duration::from_millis(2);
    let origins = [slow("a", pause), slow("b", pause), failing];
    let engine = engine(&origins, "balance = \"p2c-ewma\"");
    let counts = counts_of_many(&engine, 3, 100);
    let failing = counts.get("failing").copied().unwrap_or(0);
    assert!(failing < 60, "{failing} of 300 failed");
    let request = format!("GET /snapshot HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", engine.admin());
    let shown = Client::plain(engine.admin()).ask(request);
    let snapshot: serde_json::Value = serde_json::from_slice(&shown.body).expect("JSON");
    let server = &snapshot["backends"][0]["servers"][0];
    assert!(server["latency_estimates_ms"][0].as_f64().is_some_and(|millis| millis > 0.5), "{server}");
    engine.metric_reaches("propylon_server_requests_in_flight", &[], 0.0);
}

#[test]
fn keys_stay_with_their_server_and_only_those_of_a_dead_one_move() {
    let mut origins = vec![named("a"), named("b"), named("c"), named("d")];
    let engine = engine(&origins, "balance = \"consistent-hash\"\nhash = { key = { header = \"X-Account\" } }");
    let mut client = engine.client("plain");
    let mut home = |key: u32| get_with(&mut client, "/", &format!("X-Account: {key}\r\n")).text();
    let before: Vec<String> = (0..240).map(&mut home).collect();
    for name in ["a", "b", "c", "d"] {
        let share = before.iter().filter(|server| *server == name).count();
        assert!((30..95).contains(&share), "{name} has {share} keys of 240");
    }
    assert_eq!((0..240).map(&mut home).collect::<Vec<_>>(), before);
    drop(origins.remove(1));
    let after: Vec<String> = (0..240).map(&mut home).collect();
    for (key, (before, after)) in before.iter().zip(&after).enumerate() {
        assert!(after != "b" && (before == "b" || before == after), "key {key} went from {before} to {after}");
    }
    let heirs =
        |name: &str| before.iter().zip(&after).filter(|(before, after)| *before == "b" && *after == name).count();
    assert!(["a", "c", "d"].into_iter().all(|name| heirs(name) > 3), "its keys are spread over all others");
}

#[test]
fn keys_are_what_the_configuration_says() {
    let origins = three();
    let homes = |key: &str, request: &dyn Fn(usize) -> (String, String)| {
        let engine = engine(&origins, &format!("balance = \"consistent-hash\"\nhash = {{ key = {key} }}"));
        let homes = |client: &mut Client| {
            let home = |number: usize| {
                let (path, fields) = request(number);
                get_with(client, &path, &fields).text()
            };
            (0..30).map(home).collect::<Vec<String>>()
        };
        let first = homes(&mut engine.client("plain"));
        assert_eq!(homes(&mut engine.client("web")), first, "{key}");
        first.into_iter().collect::<std::collections::HashSet<_>>().len()
    };
    let nothing = String::new;
    assert_eq!(homes("\"client-ip\"", &|number| (format!("/{number}"), nothing())), 1);
    assert_eq!(homes("\"path\"", &|number| (format!("/{number}?{number}"), nothing())), 3);
    assert_eq!(homes("\"path\"", &|number| (format!("/same?{number}"), nothing())), 1);
    let cookies = |number: usize| (nothing(), format!("Cookie: other={number}; user=u{}\r\n", number % 2));
    let by_cookie = homes("{ cookie = \"user\" }", &|number| (format!("/{number}"), cookies(number).1));
    assert!(by_cookie <= 2, "two users, at {by_cookie} servers");
}

fn secret(scratch: &Scratch) -> PathBuf {
    let path = scratch.write("sticky.key", "correct horse battery staple, 42 times\n");
    set_permissions(&path, Permissions::from_mode(0o600)).expect("a file of ours");
    path
}

fn sticky(path: &std::path::Path) -> String {
    format!("sticky = {{ cookie = \"seat\", key_file = \"{}\" }}", path.display())
}

/// The cookie that a response sets, as a client sends it back.
#[track_caller]
fn cookie(response: &Response) -> String {
    let set = response.field("Set-Cookie").unwrap_or_else(|| panic!("no cookie in:\n{}", response.head));
    format!("Cookie: {}\r\n", set.split(';').next().expect("a pair"))
}

#[test]
fn a_cookie_leads_to_its_server_after_a_restart_and_on_another_engine() {
    let scratch = Scratch::new();
    let path = secret(&scratch);
    let origins = three();
    let [a, b, c] = origins.each_ref().map(Origin::address);
    let first = engine(&origins, &sticky(&path));
    let mut client = first.client("plain");
    let seats: Vec<(String, String)> = (0..3)
        .map(|_| {
            let response = client.get("/");
            (cookie(&response), response.text())
        })
        .collect();
    let follow = |engine: &Engine| {
        let mut client = engine.client("plain");
        for (cookie, server) in seats.iter().cycle().take(12) {
            let response = get_with(&mut client, "/", cookie);
            assert_eq!((&response.text(), response.field("Set-Cookie")), (server, None));
        }
        let hits = engine.metric("propylon_sticky_requests_total", &[("reason", "hit")]);
        assert_eq!(hits, 12.0);
    };
    follow(&first);
    assert_eq!(first.metric("propylon_sticky_requests_total", &[("reason", "none")]), 3.0);
    drop((client, first));
    follow(&engine(&origins, &sticky(&path)));
    let elsewhere = format!("\"{c}\", {{ address = \"{a}\", weight = 7 }}, \"{b}\"");
    follow(&engine_with(&elsewhere, &format!("balance = \"random\"\n{}", sticky(&path))));
}

#[test]
fn without_a_file_cookies_end_with_the_engine_and_that_is_said() {
    let origins = three();
    let first = engine(&origins, "sticky = { cookie = \"seat\" }");
    assert!(first.stderr().iter().any(|line| line.contains("`sticky` has no `key_file`")), "{:?}", first.stderr());
    let cookie = cookie(&first.client("plain").get("/"));
    let second = engine(&origins, "sticky = { cookie = \"seat\" }");
    let response = get_with(&mut second.client("plain"), "/", &cookie);
    assert!(response.field("Set-Cookie").is_some());
    assert_eq!(second.metric("propylon_sticky_requests_total", &[("reason", "forged")]), 1.0);
}

#[test]
fn a_cookie_that_nobody_gave_out_leads_nowhere_and_is_replaced() {
    let scratch = Scratch::new();
    let origins = three();
    let engine = engine(&origins, &sticky(&secret(&scratch)));
    let mut client = engine.client("plain");
    let good = cookie(&client.get("/"));
    let forged = good.replace(&good[14..18], if &good[14..18] == "0000" { "1111" } else { "0000" });
    for bad in [&forged[..], "Cookie: seat=\r\n", "Cookie: seat=127.0.0.1:80\r\n", "Cookie: seat=a\r\n"] {
        assert!(get_with(&mut client, "/", bad).field("Set-Cookie").is_some(), "{bad}");
    }
    assert_eq!(engine.metric("propylon_sticky_requests_total", &[("reason", "forged")]), 4.0);
}

#[test]
fn a_client_whose_server_is_gone_gets_another_and_its_cookie() {
    let scratch = Scratch::new();
    let path = secret(&scratch);
    let mut origins: Vec<Origin> = three().into();
    let engine = engine(&origins, &sticky(&path));
    let mut client = engine.client("plain");
    let first = client.get("/");
    let place = ["a", "b", "c"].iter().position(|name| *name == first.text()).expect("a name");
    drop(origins.remove(place));
    let second = get_with(&mut client, "/", &cookie(&first));
    assert_eq!(second.status, 200);
    assert_ne!(second.text(), first.text());
    let third = get_with(&mut client, "/", &cookie(&second));
    assert_eq!((third.text(), third.field("Set-Cookie")), (second.text(), None));
    // An engine that does not know the server at all: the cookie is genuine, and leads nowhere.
    let addresses: Vec<SocketAddr> = origins.iter().map(Origin::address).collect();
    let other = Engine::start(&with(&addresses, "", &sticky(&path)));
    assert!(get_with(&mut other.client("plain"), "/", &cookie(&first)).field("Set-Cookie").is_some());
    assert_eq!(other.metric("propylon_sticky_requests_total", &[("reason", "gone")]), 1.0);
}

#[test]
fn a_client_waits_for_its_server_though_another_has_room() {
    let (go, wait) = channel::<()>();
    let wait = Arc::new(Mutex::new(wait));
    let gated = |name: &'static str| {
        let wait = Arc::clone(&wait);
        Origin::answering(move |request| {
            if request.starts_with(b"GET /long") {
                let _ = wait.lock().expect("nobody panics with it").recv_timeout(Duration::from_secs(20));
            }
            answer("200 OK", name).into_bytes()
        })
    };
    let origins = [gated("a"), gated("b")];
    let limited =
        origins.each_ref().map(|origin| format!("{{ address = \"{}\", max_connections = 1 }}", origin.address()));
    let engine = engine_with(&limited.join(", "), "sticky = { cookie = \"seat\" }\nqueue = { timeout = \"10m\" }");
    let mut client = engine.client("plain");
    let first = client.get("/");
    let cookie = cookie(&first);
    client.send(format!("GET /long HTTP/1.1\r\nHost: a\r\n{cookie}\r\n"));
    holds("its server is busy", || origins.iter().any(|origin| origin.received_text().contains("GET /long")));
    let mut second = engine.client("plain");
    second.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{cookie}\r\n"));
    engine.metric_reaches("propylon_queue_depth", &[], 1.0);
    assert_eq!(engine.client("plain").get("/").status, 200, "the other one has room");
    go.send(()).expect("the origin waits");
    assert_eq!([client.read_response().text(), second.read_response().text()], [first.text(), first.text()]);
}

#[test]
fn a_cookie_is_secure_over_tls_and_leaves_those_of_the_server_alone() {
    let scratch = Scratch::new();
    let origin = Origin::always(
        "HTTP/1.1 200 OK\r\nSet-Cookie: one=1; Path=/x\r\nContent-Length: 2\r\nSet-Cookie: two=2\r\n\r\nok",
    );
    let engine = engine(std::slice::from_ref(&origin), &sticky(&secret(&scratch)));
    for (listener, is_secure) in [("plain", false), ("web", true)] {
        let mut client = engine.client(listener);
        let response = client.get("/");
        let set = response.fields("Set-Cookie");
        assert_eq!(set[..2], ["one=1; Path=/x", "two=2"]);
        let ours = set[2];
        assert!(ours.starts_with("seat=") && ours.contains("; HttpOnly; SameSite=Lax"), "{ours}");
        assert_eq!(ours.contains("; Secure"), is_secure, "{ours}");
        let port = origin.address().port().to_string();
        assert!(!ours.contains(&port), "{ours}");
        assert_eq!(client.get("/").text(), "ok", "the connection goes on");
    }
}

#[test]
fn backups_are_asked_only_while_no_other_server_is_up() {
    let (one, backup) = (named("one"), named("backup"));
    let address = one.address();
    let servers = format!("\"{address}\", {{ address = \"{}\", backup = true }}", backup.address());
    let engine = engine_with(&servers, "");
    let mut client = engine.client("plain");
    assert_eq!(counts(&mut client, 20), Counts::from([("one".into(), 20)]));
    drop(one);
    assert_eq!(counts(&mut client, 20), Counts::from([("backup".into(), 20)]));
    assert!(engine.metric("propylon_unusual_picks_total", &[("reason", "backup")]) >= 19.0);
    let listener = TcpListener::bind(address).expect("its port is free again");
    let _back = Origin::on(listener, |peer| {
        while peer.read_request().is_some() {
            peer.send(answer("200 OK", "one"));
        }
    });
    holds("the first server is used again", || client.get("/").text() == "one");
    assert_eq!(counts(&mut client, 20), Counts::from([("one".into(), 20)]));
}

#[test]
fn first_means_the_first_that_has_room() {
    let first = Origin::answering(|request| {
        if request.starts_with(b"GET /long") {
            std::thread::sleep(Duration::from_millis(1_500));
        }
        answer("200 OK", "first").into_bytes()
    });
    let second = named("second");
    let servers = format!("{{ address = \"{}\", max_connections = 1 }}, \"{}\"", first.address(), second.address());
    let engine = engine_with(&servers, "balance = \"first\"");
    let mut client = engine.client("plain");
    assert_eq!(counts(&mut client, 10), Counts::from([("first".into(), 10)]));
    let address = engine.address("plain");
    let long = std::thread::spawn(move || Client::plain(address).get("/long").text());
    holds("the first server is busy", || first.received_text().contains("GET /long"));
    assert_eq!(client.get("/").text(), "second");
    assert_eq!(long.join().expect("an answer"), "first");
}

#[test]
fn with_too_few_servers_up_all_of_them_are_used() {
    let mut origins: Vec<Origin> = three().into();
    let engine = engine(&origins, "min_healthy = 70");
    let mut client = engine.client("plain");
    assert_eq!(counts(&mut client, 30).len(), 3);
    assert_eq!(engine.metric("propylon_unusual_picks_total", &[]), 0.0);
    drop(origins.pop());
    assert_eq!(counts(&mut client, 60).values().sum::<usize>(), 60, "repeats bring all of them to a server");
    let failures = engine.metric("propylon_server_connect_failures_total", &[]);
    assert!(failures > 10.0, "the dead one is tried again and again: {failures}");
    assert!(engine.metric("propylon_unusual_picks_total", &[("reason", "panic")]) > 30.0);
}

#[test]
fn a_server_that_comes_back_starts_slowly() {
    let mut origins = vec![named("a"), named("b")];
    let engine = engine(&origins, "slow_start = \"1h\"");
    let mut client = engine.client("plain");
    assert_eq!(counts(&mut client, 20)["b"], 10, "at the start of the engine all are warm");
    let address = origins.pop().expect("b").address();
    assert_eq!(counts(&mut client, 10), Counts::from([("a".into(), 10)]));
    let listener = TcpListener::bind(address).expect("its port is free again");
    let _back = Origin::on(listener, |peer| {
        while peer.read_request().is_some() {
            peer.send(answer("200 OK", "b"));
        }
    });
    holds("the second server is tried again", || client.get("/").text() == "b");
    let back = counts(&mut client, 200).get("b").copied().unwrap_or(0);
    assert!((5..20).contains(&back), "a tenth of its share is 10 of 200, it got {back}");
}

#[test]
fn relays_count_as_long_as_they_last() {
    let origins = ["a", "b"].map(|name| {
        Origin::scripted(move |peer| {
            peer.send(name);
            let _ = peer.read_some();
        })
    });
    let [a, b] = origins.each_ref().map(Origin::address);
    let engine = Engine::start(&format!(
        "[listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\n\
         [backend.app]\nservers = [\"{a}\", \"{b}\"]\nbalance = \"least-connections\"\n\
         [[route]]\nlistener = \"raw\"\nbackend = \"app\"\n"
    ));
    let begin = || {
        let mut client = Client::plain(engine.address("raw"));
        let name = client.read_exact(1);
        (client, name)
    };
    let in_flight = |count| engine.metric_reaches("propylon_server_requests_in_flight", &[], count);
    let mut relays: Vec<(Client, Vec<u8>)> = (0..6).map(|_| begin()).collect();
    in_flight(6.0);
    assert_eq!(relays.iter().filter(|(_, name)| name == b"a").count(), 3);
    // Those of one server end, and the next ones go there until they are even again.
    relays.retain(|(_, name)| name == b"b");
    in_flight(3.0);
    relays.extend((0..3).map(|_| begin()));
    assert_eq!(relays.iter().filter(|(_, name)| name == b"a").count(), 3);
}
