//! What is open, written or begun lives on: through changes of the configuration, ten thousand connections at a time, and
//! through the engine's own death.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use propylon_e2e::admin::{admin, push};
use propylon_e2e::wait::WAIT_MAX;
use propylon_e2e::{Certificates, Client, Engine, Origin, Scratch, holds};
use rustix::process::Signal;
use serde_json::Value;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const GET: &str = "GET / HTTP/1.1\r\nHost: shop.test\r\n\r\n";

fn config(process: &str, admin: &str, servers: &[SocketAddr], rest: &str) -> String {
    let servers: Vec<String> = servers.iter().map(|address| format!("\"{address}\"")).collect();
    format!(
        "[process]\nworkers = 2\ndrain_timeout = \"1s\"\n{process}\n[admin]\nbind = \"127.0.0.1:0\"\n{admin}\n\
         [log]\naccess = \"off\"\n[listener.plain]\nbind = \"127.0.0.1:0\"\n\
         timeouts = {{ idle = \"10m\" }}\n[backend.app]\nservers = [{}]\n{rest}\n[[route]]\nbackend = \"app\"\n",
        servers.join(", ")
    )
}

/// A folder with a token in it, and the lines that name both.
fn with_state(scratch: &Scratch) -> (String, String) {
    let token = scratch.write("token", TOKEN);
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).expect("our own file");
    (format!("state = \"{}\"", scratch.join("state").display()), format!("token_file = \"{}\"", token.display()))
}

/// A change by the admin API; none if nobody answered.
fn change(admin: SocketAddr, method: &str, path: &str, token: &str, body: &str) -> Option<u16> {
    let length = body.len();
    let mut socket = TcpStream::connect(admin).ok()?;
    socket.set_read_timeout(Some(WAIT_MAX)).ok()?;
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\nContent-Length: {length}\r\n");
    let fields = format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\n\r\n{body}");
    socket.write_all((head + &fields).as_bytes()).ok()?;
    // Who is refused before its body was read may find the connection reset behind the answer.
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).split(' ').nth(1)?.parse().ok()
}

/// What the configuration in effect has of the first server.
fn shown(engine: &Engine, key: &str) -> u64 {
    let request = format!("GET /v1/config HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", engine.admin());
    let config: Value = serde_json::from_str(&Client::plain(engine.admin()).ask(request).text()).expect("JSON");
    config["backend"]["app"]["servers"][0][key].as_u64().unwrap_or(1)
}

fn hello() -> Origin {
    Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
}

#[test]
fn what_is_put_back_leaves_nothing_behind() {
    let (a, b) = (hello(), hello());
    let scratch = Scratch::new();
    let (state, token) = with_state(&scratch);
    let engine = Engine::start(&config(&state, &token, &[a.address(), b.address()], ""));
    let server = format!("/v1/backends/app/servers/{}", a.address());
    let other = format!("/v1/backends/app/servers/{}", engine.admin());
    let made = |method: &str, path: &str, body: &str| {
        assert_eq!(change(engine.admin(), method, path, TOKEN, body), Some(200), "{method} {path} {body}");
    };
    let overrides = || {
        let request = format!("GET /status.json HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", engine.admin());
        let status: Value = serde_json::from_str(&Client::plain(engine.admin()).ask(request).text()).expect("JSON");
        status["configuration"]["overrides"]["total"].as_u64().unwrap_or_else(|| panic!("{status:#}"))
    };
    // Each with what undoes it.
    made("PATCH", &server, r#"{"drain": true}"#);
    assert_eq!(overrides(), 1);
    made("PATCH", &server, r#"{"drain": false}"#);
    assert_eq!(overrides(), 0);
    made("PATCH", &server, r#"{"weight": 7, "max_connections": 9}"#);
    made("PATCH", &server, r#"{"weight": 1}"#);
    assert_eq!(overrides(), 1, "the other one stands");
    made("DELETE", &server, "");
    made("POST", "/v1/backends/app/servers", &format!(r#"{{"address": "{}"}}"#, a.address()));
    assert_eq!(overrides(), 0);
    made("POST", "/v1/backends/app/servers", &format!(r#"{{"address": "{}", "weight": 3}}"#, engine.admin()));
    made("DELETE", &other, "");
    assert_eq!(overrides(), 0);
    let kept = std::fs::read_to_string(scratch.join("state/state.json")).expect("a state");
    assert!(!kept.contains("drain") && !kept.contains("removed"), "{kept}");
}

#[test]
fn a_pushed_text_that_asks_for_another_process_is_refused_with_the_places() {
    let app = hello();
    let scratch = Scratch::new();
    let (state, token) = with_state(&scratch);
    let text = config(&state, &token, &[app.address()], "");
    let engine = Engine::start(&text);
    for (from, to, path) in [
        ("bind = \"127.0.0.1:0\"\ntoken_file", "bind = \"127.0.0.1:9\"\ntoken_file", "admin.bind"),
        ("/token\"", "/other\"", "admin.token_file"),
        ("workers = 2", "workers = 3", "process.workers"),
        ("[process]\n", "[process]\nsandbox_ports = [443]\n", "process.sandbox_ports"),
        ("access = \"off\"", "access = \"stderr\"", "log.access"),
        ("[log]\n", "[keys]\nisolate = true\n[log]\n", "keys.isolate"),
    ] {
        assert!(text.contains(from), "{from}");
        let other = text.replacen(from, to, 1);
        let (status, answer) = push(&engine, &other);
        assert_eq!(status, 422, "{path}: {answer:#}");
        let problems = answer["problems"].as_array().expect("problems");
        let problem = problems.iter().find(|problem| problem["severity"] == "error").expect("an error");
        let what = problem["what"].as_str().unwrap_or_default();
        assert!(what.starts_with(&format!("`{path}` cannot change while the process runs: it is ")), "{answer:#}");
        let line = problem["line"].as_u64().expect("a line") as usize;
        let key = path.rsplit('.').next().unwrap_or_default();
        assert!(other.lines().nth(line - 1).is_some_and(|line| line.starts_with(key)), "{path} in line {line}");
        // What it leaves out is the file's.
        let silent: String =
            other.lines().filter(|line| !line.starts_with(key)).map(|line| format!("{line}\n")).collect();
        if key != "bind" {
            let (status, answer) = push(&engine, &silent);
            assert_eq!(status, 200, "{path}: {answer:#}");
        }
    }
    assert_eq!(engine.metric("propylon_config_reloads_total", &[("result", "failed")]), 6.0);
}

#[test]
fn a_reload_that_is_only_tried_hides_nothing_from_whoever_watches_the_file() {
    let app = hello();
    let scratch = Scratch::new();
    let (state, token) = with_state(&scratch);
    let text = config(&format!("{state}\nwatch_config = true"), &token, &[app.address()], "");
    let engine = Engine::start(&text);
    engine.rewrite(&text.replace("drain_timeout = \"1s\"", "drain_timeout = \"2s\""));
    let (status, answer) = admin(&engine, "POST", "/v1/reload?dry_run=1", "");
    assert_eq!((status, answer["result"].as_str()), (200, Some("dry-run")), "{answer:#}");
    engine.metric_reaches("propylon_config_generation", &[], 2.0);
}

#[test]
#[ignore = "long: make test-long"]
fn ten_thousand_open_connections_live_on_through_changes() {
    const CONNECTIONS: usize = 10_000;
    let (a, b) = (hello(), hello());
    let scratch = Scratch::new();
    let (state, token) = with_state(&scratch);
    let engine = Engine::start(&config(&state, &token, &[a.address()], ""));
    let address = engine.address("plain");
    let mut clients: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|_| {
            let client = TcpStream::connect(address).expect("a connection");
            client.set_read_timeout(Some(WAIT_MAX)).expect("a timeout");
            client
        })
        .collect();
    let ask = |client: &mut TcpStream| {
        client.write_all(GET.as_bytes()).expect("the engine takes it");
        let mut answer = Vec::new();
        while !answer.ends_with(b"hello") {
            let mut piece = [0; 1024];
            let count = client.read(&mut piece).expect("an answer");
            assert!(count > 0, "closed after {:?}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&piece[..count]);
        }
        assert!(!String::from_utf8_lossy(&answer).contains("Connection: close"));
    };
    clients.iter_mut().for_each(&ask);
    let open = || engine.metric("propylon_connections", &[("listener", "plain")]);
    assert_eq!(open(), CONNECTIONS as f64);
    let extra = "[listener.extra]\nbind = \"127.0.0.1:0\"\n[backend.other]\nservers = [\"127.0.0.1:9\"]\n\
                 [[route]]\nhost = \"other.test\"\nbackend = \"other\"";
    for round in 0..6 {
        let servers = if round % 2 == 0 { b.address() } else { a.address() };
        engine.rewrite(&config(
            &state,
            &token,
            &[servers],
            &format!("retries = {round}\n{}", if round < 3 { extra } else { "" }),
        ));
        assert!(engine.reload().contains("is in effect"));
        let path = format!("/v1/backends/app/servers/{servers}");
        assert_eq!(change(engine.admin(), "PATCH", &path, TOKEN, &format!("{{\"weight\": {}}}", round + 2)), Some(200));
    }
    assert_eq!(open(), CONNECTIONS as f64, "as many as before");
    clients.iter_mut().for_each(&ask);
    assert_eq!(engine.metric("propylon_connections_total", &[("listener", "plain")]), CONNECTIONS as f64);
    assert_eq!(engine.metric("propylon_responses_total", &[("class", "2xx")]), 2.0 * CONNECTIONS as f64);
    assert_eq!(engine.metric("propylon_config_generation", &[]), 13.0);
    drop(clients);
    holds("all of them end", || open() == 0.0);
    holds("old snapshots are gone", || engine.metric("propylon_config_old_snapshots", &[]) == 0.0);
}

#[test]
fn a_request_that_outlives_several_changes_gives_its_connection_back_to_nobody() {
    // Whether its server is still there in the end; another protocol means other connections in either case.
    for last in ["http1", "h2"] {
        let gate = Arc::new(AtomicBool::new(false));
        let opened = Arc::clone(&gate);
        let slow = Origin::scripted(move |peer| {
            while peer.read_request().is_some() {
                holds("the gate opens", || opened.load(Ordering::SeqCst));
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nslow");
            }
        });
        let other = hello();
        let both = [slow.address(), other.address()];
        let text = |servers: &[SocketAddr], retries: u32, protocol: &str| {
            let first = "balance = \"first\"\ntimeouts = { idle = \"1s\" }";
            config("", "", servers, &format!("{first}\nretries = {retries}\nprotocol = \"{protocol}\""))
        };
        let engine = Engine::start(&text(&both, 2, "http1"));
        let mut client = engine.client("plain");
        client.send(GET);
        holds("the request is with the server", || slow.received_text().contains("GET /"));
        // The first change leaves the server's connections where they are. Then it goes, and comes back, or speaks otherwise.
        engine.rewrite(&text(&both, 1, "http1"));
        assert!(engine.reload().contains("is in effect"));
        if last == "http1" {
            engine.rewrite(&text(&both[1..], 1, "http1"));
            assert!(engine.reload().contains("is in effect"));
        }
        engine.rewrite(&text(&both, 3, last));
        assert!(engine.reload().contains("is in effect"));
        let label = slow.address().to_string();
        let open = || engine.metric("propylon_server_connections", &[("server", label.as_str())]);
        assert_eq!(open(), 1.0, "the request's own");
        gate.store(true, Ordering::SeqCst);
        assert_eq!(client.read_response().text(), "slow");
        drop(client);
        holds("nothing is counted any more", || open() == 0.0);
        holds("old snapshots are gone", || engine.metric("propylon_config_old_snapshots", &[]) == 0.0);
        assert_eq!(open(), 0.0);
    }
}

#[test]
fn a_list_in_another_order_is_one_change_and_none_when_it_is_read_again() {
    let (a, b) = (hello(), hello());
    let [one, two] = [a.address(), b.address()];
    let engine = Engine::start(&config("", "", &[one, two], ""));
    engine.rewrite(&config("", "", &[two, one], ""));
    let said = engine.reload();
    assert!(said.contains("is in effect, with 1 change: generation 2"), "{said}");
    for _ in 0..2 {
        let said = engine.reload();
        assert!(said.contains("is what it was: generation 2"), "{said}");
    }
}

/// Indexes of servers mean something in one configuration only: whatever began by one ends at the right server by the next.
#[test]
fn servers_that_change_their_order_keep_connections_limits_and_counts() {
    let held = |name: &'static str, open: Arc<AtomicBool>| {
        Origin::scripted(move |peer| {
            while let Some(request) = peer.read_request() {
                if request.starts_with(b"GET /held") {
                    holds("the story lets go", || open.load(Ordering::SeqCst));
                }
                peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{name}"));
            }
        })
    };
    let open = Arc::new(AtomicBool::new(false));
    let origins = ["a", "b", "c"].map(|name| held(name, Arc::clone(&open)));
    let addresses = [0, 1, 2].map(|at| origins[at].address());
    let text = |order: &[usize]| {
        let servers: Vec<String> =
            order.iter().map(|at| format!("{{ address = \"{}\", max_connections = 1 }}", addresses[*at])).collect();
        config("", "", &[], "")
            .replace("workers = 2", "workers = 1")
            .replace("servers = []", &format!("servers = [{}]\nbalance = \"least-connections\"", servers.join(", ")))
    };
    let engine = Engine::start(&text(&[0, 1, 2]));
    let metric =
        |name: &str, at: usize| engine.metric(name, &[("backend", "app"), ("server", &addresses[at].to_string())]);
    // One request stays at each server, on its only connection.
    let mut clients = [(); 3].map(|()| engine.client("plain"));
    for client in &mut clients {
        client.send("GET /held HTTP/1.1\r\nHost: shop.test\r\n\r\n");
        let sent = engine.metric("propylon_server_requests_in_flight", &[]);
        holds("the next goes elsewhere", || engine.metric("propylon_server_requests_in_flight", &[]) >= sent.max(1.0));
    }
    holds("each server has one", || (0..3).all(|at| metric("propylon_server_requests_in_flight", at) == 1.0));
    // The second goes, and the others change sides.
    engine.rewrite(&text(&[2, 0]));
    assert!(engine.reload().contains("generation 2"));
    let mut waiting = engine.client("plain");
    waiting.send(GET);
    holds("both limits are reached", || engine.metric("propylon_queue_depth", &[]) == 1.0);
    // And once more, while a request waits that knows the second order.
    engine.rewrite(&text(&[0, 2]));
    assert!(engine.reload().contains("generation 3"));
    open.store(true, Ordering::SeqCst);
    let mut names = clients.each_mut().map(|client| client.read_response().text());
    names.sort();
    assert_eq!(names, ["a", "b", "c"]);
    assert!(["a", "c"].contains(&waiting.read_response().text().as_str()));
    holds("the series of the one that is gone end", || !engine.metrics().contains(&addresses[1].to_string()));
    for at in [0, 2] {
        holds("nothing is in flight", || metric("propylon_server_requests_in_flight", at) == 0.0);
        holds("its connection is idle", || metric("propylon_server_connections_idle", at) == 1.0);
        assert_eq!((metric("propylon_server_connections", at), origins[at].connections()), (1.0, 1), "{at}");
    }
    // Requests one after the other go to both, on the connections that there are.
    let names: std::collections::BTreeSet<String> = (0..6).map(|_| engine.client("plain").ask(GET).text()).collect();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["a", "c"]);
    assert_eq!([0, 2].map(|at| origins[at].connections()), [1, 1]);
}

/// Its profile was the last of those that there were: nothing asks the others for it.
#[test]
fn a_connection_whose_listener_is_removed_has_one_more_answer() {
    let origin = hello();
    let certificates = Certificates::shared();
    let listener = |name: &str| {
        let profile = certificates.profile().replace("[tls.public]", &format!("[tls.{name}]"));
        format!("[listener.{name}]\nbind = \"127.0.0.1:0\"\ntls = \"{name}\"\nstrict_host = true\n{profile}")
    };
    let plain = config("", "", &[origin.address()], "");
    let engine = Engine::start(&format!("{plain}{}{}", listener("first"), listener("second")));
    let get = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let [mut client, mut elsewhere] = [(); 2].map(|()| Client::tls(engine.address("second")));
    assert_eq!([&mut client, &mut elsewhere].map(|each| each.ask(get).status), [200, 200]);
    engine.rewrite(&format!("{plain}{}", listener("first")));
    assert!(engine.reload().contains("generation 2"));
    let answer = elsewhere.ask("GET / HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n");
    assert_eq!(answer.status, 421, "its certificate is asked still");
    let answer = client.ask(get);
    assert!(answer.status == 200 && answer.head.contains("Connection: close"), "{}", answer.head);
    assert_eq!(engine.metric("propylon_panics_total", &[]), 0.0);
    holds("its series end", || !engine.metrics().contains("listener=\"second\""));
}

#[test]
fn a_client_is_counted_once_at_each_backend_that_it_uses_whichever_of_them_go() {
    let origin = hello();
    let text = |names: &[&str]| {
        let backend = |name: &&str| {
            format!(
                "[backend.{name}]\nservers = [\"{}\"]\n[[route]]\nhost = \"{name}.test\"\nbackend = \"{name}\"\n",
                origin.address()
            )
        };
        config("", "", &[origin.address()], "") + &names.iter().map(backend).collect::<String>()
    };
    let engine = Engine::start(&text(&["one", "two"]));
    let mut client = engine.client("plain");
    let mut ask = |name: &str| {
        assert_eq!(client.ask(format!("GET / HTTP/1.1\r\nHost: {name}.test\r\n\r\n")).status, 200);
    };
    ["one", "two"].into_iter().for_each(&mut ask);
    engine.rewrite(&text(&["two", "three"]));
    engine.reload();
    ["three", "two", "three", "two"].into_iter().for_each(&mut ask);
    for backend in ["two", "three"] {
        let count = |name: &str| engine.metric(name, &[("backend", backend)]);
        let counts = (count("propylon_backend_client_connections"), count("propylon_backend_client_connections_total"));
        assert_eq!(counts, (1.0, 1.0), "{backend}");
    }
}

#[test]
fn the_first_server_is_the_first_that_is_written_after_a_change_too() {
    let (a, b) = (hello(), hello());
    let [one, two] = [a.address(), b.address()];
    let first = |servers: &[SocketAddr]| {
        config("", "", servers, "").replace("[backend.app]", "[backend.app]\nbalance = \"first\"")
    };
    let engine = Engine::start(&first(&[one, two]));
    let heads = |origin: &Origin| origin.received_text().matches("GET / HTTP").count();
    let asked = |count: usize| {
        (0..count).for_each(|_| assert_eq!(engine.client("plain").ask(GET).status, 200));
        (heads(&a), heads(&b))
    };
    assert_eq!(asked(3), (3, 0));
    engine.rewrite(&first(&[two, one]));
    assert!(engine.reload().contains("generation 2"));
    assert_eq!(asked(3), (3, 3));
}

#[test]
fn whoever_guesses_tokens_is_slowed_down_and_told_of_and_changes_nothing() {
    let app = hello();
    let scratch = Scratch::new();
    let (state, token) = with_state(&scratch);
    let engine = Engine::start(&config(&state, &token, &[app.address()], ""));
    let admin = engine.admin();
    let path = format!("/v1/backends/app/servers/{}", app.address());
    // Many at once, as who guesses would.
    let guesses: Vec<_> = (0..40)
        .map(|guess| {
            let (path, token) = (path.clone(), format!("{guess:032}"));
            std::thread::spawn(move || change(admin, "PATCH", &path, &token, "{\"weight\": 7}"))
        })
        .collect();
    guesses.into_iter().for_each(|guess| assert_eq!(guess.join().expect("a guess"), Some(401)));
    assert_eq!(engine.metric("propylon_admin_refused_total", &[("reason", "wrong-token")]), 40.0);
    let told = |engine: &Engine| -> Vec<String> {
        engine.stderr().into_iter().filter(|line| line.contains("this is not the token")).collect()
    };
    holds("the log tells", || !told(&engine).is_empty());
    let lines = told(&engine);
    assert!(lines[0].contains("audit: a change by a client at 127.0.0.1:"), "{lines:?}");
    assert!(lines.len() < 40, "not a line for each: {}", lines.len());
    assert!(!engine.stderr().iter().any(|line| line.contains("0000000000000000000")), "guesses are not logged");
    assert_eq!(shown(&engine, "weight"), 1);
    assert_eq!(engine.metric("propylon_config_generation", &[]), 1.0);
    // Who has it is not kept waiting by those who have not.
    assert_eq!(change(admin, "PATCH", &path, TOKEN, "{\"weight\": 7}"), Some(200));
    assert_eq!(shown(&engine, "weight"), 7);
}

#[test]
fn death_in_the_middle_of_a_change_loses_nothing_that_was_answered() {
    const DEATHS: u64 = 12;
    let app = hello();
    let scratch = Scratch::new();
    let (state, token) = with_state(&scratch);
    let text = config(&state, &token, &[app.address()], "");
    let path = format!("/v1/backends/app/servers/{}", app.address());
    let (asked, answered) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(1)));
    for death in 0..DEATHS {
        let mut engine = Engine::start(&text);
        let found = shown(&engine, "max_connections");
        let (low, high) = (answered.load(Ordering::SeqCst), asked.load(Ordering::SeqCst));
        assert!((low..=high).contains(&found), "a limit of {found} after {low} was answered and {high} asked for");
        answered.store(found, Ordering::SeqCst);
        let admin = engine.admin();
        let writer = {
            let (asked, answered, path) = (Arc::clone(&asked), Arc::clone(&answered), path.clone());
            std::thread::spawn(move || {
                for limit in found + 1.. {
                    asked.store(limit, Ordering::SeqCst);
                    if change(admin, "PATCH", &path, TOKEN, &format!("{{\"max_connections\": {limit}}}")) != Some(200) {
                        return;
                    }
                    answered.store(limit, Ordering::SeqCst);
                }
            })
        };
        // Somewhere within a change: how far it has come differs each time.
        holds("changes are made", || answered.load(Ordering::SeqCst) > found + death % 4);
        std::thread::sleep(Duration::from_micros(137 * death));
        engine.signal(Signal::KILL);
        engine.wait(WAIT_MAX);
        writer.join().expect("a writer");
    }
    let engine = Engine::start(&text);
    assert!(shown(&engine, "max_connections") >= answered.load(Ordering::SeqCst));
    let left: Vec<_> = std::fs::read_dir(scratch.join("state")).expect("the state's folder").flatten().collect();
    assert!(left.len() <= 3, "deaths leave no heap of files behind: {left:?}");
}
