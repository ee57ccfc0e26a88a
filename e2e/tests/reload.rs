//! The configuration changes while the engine serves: by the file, by the admin API, and never by half.

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use propylon_e2e::admin::{TOKEN, admin, applied, ask_admin, push, server, snapshot, with_state};
use propylon_e2e::certificates::{self, leaf_of};
use propylon_e2e::engine::{complete, simple};
use propylon_e2e::frames::{ACK, DATA, END_STREAM, GOAWAY, HEADERS, Http2, NO_ERROR, PING, request};
use propylon_e2e::wait::WAIT_MAX;
use propylon_e2e::{Certificates, Client, Ending, Engine, Origin, Scratch, holds};
use rcgen::PKCS_ECDSA_P256_SHA256;
use rustix::process::Signal;
use serde_json::Value;

const GET: &str = "GET / HTTP/1.1\r\nHost: shop.test\r\n\r\n";

/// An origin that says its name.
fn named(name: &'static str) -> Origin {
    Origin::always(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len()))
}

#[derive(Default)]
struct Setup<'a> {
    process: &'a str,
    admin: &'a str,
    /// Lines for the listener `plain`.
    listener: &'a str,
    backend: String,
    rest: &'a str,
}

fn config(setup: &Setup) -> String {
    let Setup { process, admin, listener, backend, rest } = setup;
    format!(
        "[process]\nworkers = 2\ndrain_timeout = \"1s\"\n{process}\n[admin]\nbind = \"127.0.0.1:0\"\n{admin}\n\
         [listener.plain]\nbind = \"127.0.0.1:0\"\n{listener}\n[backend.app]\n{backend}\n\
         [[route]]\nbackend = \"app\"\n{rest}\n"
    )
}

fn servers(origins: &[&Origin]) -> String {
    let all: Vec<String> = origins.iter().map(|origin| format!("\"{}\"", origin.address())).collect();
    format!("servers = [{}]", all.join(", "))
}

fn file_of(engine: &Engine) -> String {
    std::fs::read_to_string(engine.folder().join("propylon.toml")).expect("the engine's file")
}

/// The leaf that a new client is shown.
fn leaf(address: SocketAddr) -> Vec<u8> {
    certificates::leaf(address, "localhost", &Certificates::shared().client()).expect("a handshake")
}

/// Who answered.
#[track_caller]
fn answered(address: SocketAddr) -> String {
    let response = Client::plain(address).ask(GET);
    assert_eq!(response.status, 200, "{}", response.head);
    response.text()
}

/// Clients that ask all the time: half of them on one connection, half on new ones. Any failure fails the story.
struct Load {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicU64>,
    clients: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start(address: SocketAddr, clients: usize) -> Load {
        let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let clients = (0..clients)
            .map(|index| {
                let (stop, served) = (Arc::clone(&stop), Arc::clone(&served));
                std::thread::spawn(move || {
                    let mut client = Client::plain(address);
                    while !stop.load(Ordering::Relaxed) {
                        if index % 2 == 1 {
                            client = Client::plain(address);
                        }
                        let response = client.ask(GET);
                        assert_eq!(response.status, 200, "{}\n{}", response.head, response.text());
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        Load { stop, served, clients }
    }

    /// Waits until there were more answers.
    #[track_caller]
    fn goes_on(&self) {
        let before = self.served.load(Ordering::Relaxed);
        let ended = || self.clients.iter().any(std::thread::JoinHandle::is_finished);
        holds("the load goes on", || self.served.load(Ordering::Relaxed) > before + 20 || ended());
    }

    #[track_caller]
    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.into_iter().for_each(|client| client.join().expect("a client without failures"));
        self.served.load(Ordering::Relaxed)
    }
}

#[test]
fn a_route_that_is_added_is_taken_and_nothing_else_is_touched() {
    let (app, other) = (named("app"), named("other"));
    let backend = format!("{}\nreuse = \"always\"", servers(&[&app]));
    let setup = |rest: &str| config(&Setup { backend: backend.clone(), rest, ..Setup::default() });
    let engine = Engine::start(&setup(""));
    let mut client = engine.client("plain");
    assert_eq!(client.ask(GET).text(), "app");
    let rest = format!(
        "[backend.other]\nservers = [\"{}\"]\n[[route]]\nhost = \"other.test\"\nbackend = \"other\"\n",
        other.address()
    );
    engine.rewrite(&setup(&rest));
    let said = engine.reload();
    assert!(said.contains("in effect, with 2 changes: generation 2"), "{said}");
    for change in ["backend.other: added {", "route \"other.test/\": added"] {
        let line = format!(" info: generation 2: {change}");
        holds("the log says what has changed", || engine.stderr().iter().any(|said| said.contains(&line)));
    }
    // The same client connection, and the same server connection behind it.
    assert_eq!(client.ask(GET).text(), "app");
    assert_eq!(client.ask("GET / HTTP/1.1\r\nHost: other.test\r\n\r\n").text(), "other");
    assert_eq!(app.connections(), 1);
    assert_eq!(engine.metric("propylon_config_generation", &[]), 2.0);
    assert_eq!(engine.metric("propylon_server_requests_total", &[("backend", "other")]), 1.0);
    assert_eq!(engine.metric("propylon_server_requests_total", &[("backend", "app")]), 2.0, "counters go on");
    // What is gone again is answered as if it had never been.
    engine.rewrite(&setup(""));
    engine.reload();
    assert_eq!(client.ask("GET / HTTP/1.1\r\nHost: other.test\r\n\r\n").text(), "app");
    assert_eq!(app.connections(), 1);
    let said = engine.reload();
    assert!(said.contains("is what it was: generation 3"), "{said}");
    // The series of what is gone end, once nobody uses them: a client connection that has used the backend still does.
    drop(client);
    holds("the series of a removed backend end", || !engine.metrics().contains("backend=\"other\""));
    holds("old snapshots are gone", || engine.metric("propylon_config_old_snapshots", &[]) == 0.0);
}

#[test]
fn servers_come_and_go_under_load_and_no_request_fails() {
    let origins = [named("a"), named("b"), named("c")];
    let scratch = Scratch::new();
    let (state, token) = with_state(&scratch);
    let backend = servers(&[&origins[0]]);
    let text = config(&Setup { process: &state, admin: &token, backend, ..Setup::default() });
    let engine = Engine::start(&text);
    let load = Load::start(engine.address("plain"), 4);
    let at = |origin: &Origin| format!("/v1/backends/app/servers/{}", origin.address());
    for _ in 0..5 {
        for origin in &origins[1..] {
            let body = format!("{{\"address\": \"{}\", \"weight\": 3}}", origin.address());
            applied(&engine, "POST", "/v1/backends/app/servers", &body);
            load.goes_on();
        }
        let label = origins[0].address().to_string();
        let labels = [("server", label.as_str())];
        applied(&engine, "PATCH", &at(&origins[0]), "{\"drain\": true}");
        // Every core goes by it when the answer is there: what begins now goes elsewhere.
        let requests = || engine.metric("propylon_server_requests_total", &labels);
        let drained = requests();
        load.goes_on();
        assert!(requests() - drained <= 4.0, "at most what the clients had begun");
        applied(&engine, "DELETE", &at(&origins[0]), "");
        load.goes_on();
        applied(&engine, "PATCH", &at(&origins[1]), "{\"weight\": 200}");
        load.goes_on();
        applied(&engine, "POST", "/v1/backends/app/servers", &format!("{{\"address\": \"{label}\"}}"));
        for origin in &origins[1..] {
            applied(&engine, "DELETE", &at(origin), "");
            load.goes_on();
        }
    }
    assert!(load.end() > 100);
    assert_eq!(engine.metric("propylon_responses_total", &[("class", "5xx")]), 0.0);
    assert_eq!(answered(engine.address("plain")), "a");
    // What is told apart, and told.
    let (status, _) = admin(&engine, "DELETE", &at(&origins[1]), "");
    assert_eq!(status, 404);
    let (status, value) = admin(&engine, "DELETE", &at(&origins[0]), "");
    assert_eq!((status, value["problems"][0]["fix"].as_str()), (409, Some("add another one first")));
    let (status, _) =
        admin(&engine, "POST", "/v1/backends/app/servers", &format!("{{\"address\":\"{}\"}}", origins[0].address()));
    assert_eq!(status, 409);
    let (status, _) = admin(&engine, "POST", "/v1/backends/none/servers", "{\"address\":\"127.0.0.1:1\"}");
    assert_eq!(status, 404);
    let (status, _) = admin(&engine, "POST", "/v1/backends/app/servers", "{\"address\":\"127.0.0.1\"}");
    assert_eq!(status, 422);
}

#[test]
fn a_drained_server_finishes_what_it_has_begun_and_gets_nothing_new() {
    let gate = Arc::new(AtomicBool::new(false));
    let opened = Arc::clone(&gate);
    let slow = Origin::scripted(move |peer| {
        while peer.read_request().is_some() {
            holds("the gate opens", || opened.load(Ordering::SeqCst));
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nslow");
        }
    });
    let fast = named("fast");
    let scratch = Scratch::new();
    let (state, token) = with_state(&scratch);
    let text = config(&Setup { process: &state, admin: &token, backend: servers(&[&slow]), ..Setup::default() });
    let engine = Engine::start(&text);
    let mut client = engine.client("plain");
    client.send(GET);
    holds("the request is with the server", || slow.received_text().contains("GET /"));
    applied(&engine, "POST", "/v1/backends/app/servers", &format!("{{\"address\":\"{}\"}}", fast.address()));
    let path = format!("/v1/backends/app/servers/{}", slow.address());
    applied(&engine, "PATCH", &path, "{\"drain\": true}");
    for _ in 0..6 {
        assert_eq!(answered(engine.address("plain")), "fast");
    }
    // As a backup it gets nothing either, while the other is up.
    applied(&engine, "PATCH", &path, "{\"drain\": false, \"backup\": true}");
    assert_eq!(server(&engine, &slow.address().to_string())["backup"], true);
    for _ in 0..6 {
        assert_eq!(answered(engine.address("plain")), "fast");
    }
    applied(&engine, "DELETE", &path, "");
    assert!(engine.metric("propylon_config_old_snapshots", &[]) >= 1.0, "a request is served by an earlier one");
    gate.store(true, Ordering::SeqCst);
    assert_eq!(client.read_response().text(), "slow");
    assert_eq!(slow.received_text().matches("GET /").count(), 1);
    holds("old snapshots are gone", || engine.metric("propylon_config_old_snapshots", &[]) == 0.0);
    let label = slow.address().to_string();
    holds("its series end", || !engine.metrics().contains(&label));
}

#[test]
fn a_listener_that_is_added_serves_and_one_that_is_removed_ends_in_order() {
    let app = named("app");
    // Where the certificates of the one that is added are: nothing names that folder at the start.
    let folder = Certificates::shared().ca();
    let process = format!("sandbox_paths = [{:?}]", folder.parent().expect("a folder"));
    let setup = |rest: &str| config(&Setup { process: &process, backend: servers(&[&app]), rest, ..Setup::default() });
    let engine = Engine::start(&setup(""));
    let extra =
        "[listener.extra]\nbind = \"127.0.0.1:0\"\n[listener.secure]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n";
    engine.rewrite(&setup(extra));
    engine.reload();
    let mut kept = engine.client("extra");
    assert_eq!(kept.ask(GET).text(), "app");
    assert_eq!(engine.client("secure").ask(GET).text(), "app");
    let address = engine.address("extra");
    engine.rewrite(&setup(""));
    engine.reload();
    // What is open gets one more answer, which says that it is the last.
    let last = kept.ask(GET);
    assert_eq!((last.status, last.field("Connection")), (200, Some("close")));
    assert_eq!(kept.ending(), Ending::Clean);
    holds("nobody listens there", || std::net::TcpStream::connect(address).is_err());
    assert_eq!(answered(engine.address("plain")), "app");
    drop(kept);
    holds("its series end", || !engine.metrics().contains("listener=\"extra\""));
    // By the same name again, somewhere else: another socket, the same series from 0 on.
    engine.rewrite(&setup(extra));
    let said = engine.reload();
    assert!(said.contains("in effect"), "{said}");
    let of = |name: &str| {
        let snapshot = snapshot(&engine);
        let listeners = snapshot["listeners"].as_array().expect("a list").iter();
        let address = listeners.filter(|each| each["name"] == name).map(|each| each["addresses"][0].clone()).next();
        address.and_then(|address| address.as_str()?.parse::<SocketAddr>().ok()).expect("an address")
    };
    assert_eq!(answered(of("extra")), "app");
    assert_eq!(engine.metric("propylon_connections_total", &[("listener", "extra")]), 1.0);
}

#[test]
fn a_bad_configuration_changes_nothing_and_every_reason_is_told() {
    let app = named("app");
    let scratch = Scratch::new();
    let (state, token) = with_state(&scratch);
    let setup = |listener: &str, rest: &str| {
        let backend = servers(&[&app]);
        config(&Setup { process: &state, admin: &token, backend, listener, rest })
    };
    let engine = Engine::start(&setup("", ""));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let bad = [
        ("monitor_path = 7", "", "`monitor_path`"),
        ("", "[[route]]\nhost = \"x.test\"\nbackend = \"ap\"", "did you mean \"app\"?"),
        ("", "[log]\naccess = \"stderr\"", "or restart the process"),
        ("", "[process.handshakes]\nper_source = 7", "propylon.toml:"),
    ];
    for (listener, rest, why) in bad {
        engine.rewrite(&setup(listener, rest));
        let said = engine.reload();
        assert!(said.contains("the configuration was refused; the one from before stays in effect"), "{said}");
        assert!(engine.stderr().iter().any(|line| line.contains(why)), "{why}");
    }
    let is_blamed = |line: &String| line.contains("certificates could not be read again");
    assert!(!engine.stderr().iter().any(is_blamed), "no certificate is at fault: {:?}", engine.stderr());
    let line = 1 + file_of(&engine).lines().position(|line| line == "per_source = 7").expect("the key");
    let place = format!("propylon.toml:{line}:1: `process.handshakes` cannot change while the process runs");
    assert!(engine.stderr().iter().any(|line| line.contains(&place)), "{:?}", engine.stderr());
    // Everything at once: an address that is taken, a certificate that is not there.
    let certificate = scratch.join("none.pem");
    let rest = format!(
        "[listener.extra]\nbind = \"{}\"\ntls = \"t\"\n[tls.t]\ncertificates = [\"{}\"]\n[listener.good]\n\
         bind = \"127.0.0.1:0\"\n",
        taken.local_addr().expect("an address"),
        certificate.display()
    );
    let (status, value) = push(&engine, &setup("", &rest));
    assert_eq!(status, 422, "{value:#}");
    let problems = value["problems"].as_array().expect("a list");
    let about = |part: &str| problems.iter().find(|problem| problem["what"].as_str().is_some_and(|w| w.contains(part)));
    let bind = about("cannot bind").expect("the address");
    assert_eq!(bind["file"], "the pushed configuration");
    assert!(bind["line"].is_u64() && bind["column"].is_u64(), "{value:#}");
    assert!(problems.iter().any(|problem| problem["line"] != bind["line"]), "the certificate: {value:#}");
    let (status, value) = push(&engine, "[listener.web]\nbnd = 1\nbind = \"x\"\n");
    assert_eq!(status, 422);
    assert!(value["problems"].as_array().is_some_and(|all| all.len() >= 2), "{value:#}");
    assert_eq!(engine.metric("propylon_config_generation", &[]), 1.0);
    assert_eq!(engine.metric("propylon_config_reloads_total", &[("result", "failed")]), 6.0);
    // As the file that was refused before has left it.
    assert_eq!(engine.metric("propylon_config_last_reload_failed", &[]), 1.0);
    assert_eq!(answered(engine.address("plain")), "app");
    assert!(!scratch.join("state/state.json").exists(), "nothing was written");
}

#[test]
fn a_dry_run_says_what_would_change_and_changes_nothing() {
    let app = named("app");
    let scratch = Scratch::new();
    let (state, token) = with_state(&scratch);
    let setup = |backend: String| config(&Setup { process: &state, admin: &token, backend, ..Setup::default() });
    let engine = Engine::start(&setup(servers(&[&app])));
    let fields = format!("Authorization: Bearer {TOKEN}\r\nContent-Type: application/toml\r\n");
    let file = file_of(&engine);
    let text = file.replace("[backend.app]\n", "[backend.app]\nretries = 5\n");
    let response = ask_admin(&engine, "PUT", "/v1/config?dry_run=1", &fields, &text);
    let value: Value = serde_json::from_str(&response.text()).expect("JSON");
    assert_eq!((response.status, value["result"].as_str()), (200, Some("dry-run")), "{value:#}");
    assert_eq!(value["changes"], serde_json::json!([{ "path": "backend.app.retries", "from": 2, "to": 5 }]));
    let path = format!("/v1/backends/app/servers/{}?dry_run=1", app.address());
    let (status, value) = admin(&engine, "PATCH", &path, "{\"weight\": 9}");
    assert_eq!(status, 200, "{value:#}");
    let path = format!("backend.app.servers[{}].weight", app.address());
    assert_eq!(value["changes"], serde_json::json!([{ "path": path, "from": 1, "to": 9 }]), "a change is no removal");
    assert_eq!(engine.metric("propylon_config_generation", &[]), 1.0);
    assert_eq!(engine.metric("propylon_config_reloads_total", &[]), 0.0);
    assert!(!scratch.join("state/state.json").exists());
    // Only if nobody else was faster.
    let old = format!("{fields}If-Match: \"7\"\r\n");
    assert_eq!(ask_admin(&engine, "PUT", "/v1/config", &old, &text).status, 412);
    let current = ask_admin(&engine, "GET", "/v1/config", "", "");
    let tag = current.field("ETag").expect("a generation").to_owned();
    assert_eq!(tag, "\"1\"");
    let fields = format!("{fields}If-Match: {tag}\r\n");
    assert_eq!(ask_admin(&engine, "PUT", "/v1/config", &fields, &text).status, 200);
    assert_eq!(ask_admin(&engine, "GET", "/config", "", "").field("ETag"), Some("\"2\""));
    // What is shown can be pushed, as JSON, and is the same.
    let (status, value) = admin(&engine, "PUT", "/v1/config", &ask_admin(&engine, "GET", "/config", "", "").text());
    assert_eq!((status, value["result"].as_str()), (200, Some("unchanged")), "{value:#}");
}

#[test]
fn who_may_not_changes_nothing() {
    let app = named("app");
    let scratch = Scratch::new();
    let (state, token) = with_state(&scratch);
    let path = format!("/v1/backends/app/servers/{}", app.address());
    let json = "Content-Type: application/json\r\n";
    let bearer = format!("{json}Authorization: Bearer {TOKEN}\r\n");
    let body = "{\"weight\": 2}";
    let backend = servers(&[&app]);
    let setup = Setup { process: &state, admin: &token, backend: backend.clone(), ..Setup::default() };
    let engine = Engine::start(&config(&setup));
    let status = |fields: &str| ask_admin(&engine, "PATCH", &path, fields, body).status;
    assert_eq!(status(json), 401);
    assert_eq!(status(&format!("{json}Authorization: Bearer {TOKEN}x\r\n")), 401);
    assert_eq!(status(&format!("{json}Authorization: Bearer {}\r\n", &TOKEN[1..])), 401);
    assert_eq!(status(&format!("{json}Authorization: Basic {TOKEN}\r\n")), 401);
    // A page in a browser, whatever it knows.
    assert_eq!(status(&format!("{bearer}Origin: http://evil.example\r\n")), 403);
    assert_eq!(status(&format!("{bearer}Sec-Fetch-Site: cross-site\r\n")), 403);
    assert_eq!(status(&format!("Content-Type: text/plain\r\nAuthorization: Bearer {TOKEN}\r\n")), 415);
    let preflight = "Origin: http://evil.example\r\nAccess-Control-Request-Method: PATCH\r\n";
    let response = ask_admin(&engine, "OPTIONS", &path, preflight, "");
    assert!(response.status == 405 && response.field("Access-Control-Allow-Origin").is_none(), "{}", response.head);
    assert_eq!(engine.metric("propylon_admin_refused_total", &[("reason", "wrong-token")]), 2.0);
    assert_eq!(engine.metric("propylon_admin_refused_total", &[("reason", "no-token")]), 2.0);
    assert_eq!(engine.metric("propylon_admin_refused_total", &[("reason", "cross-site")]), 2.0);
    assert_eq!(engine.metric("propylon_config_generation", &[]), 1.0);
    assert_eq!(status(&bearer), 200);
    // Another token takes effect at once; one that anybody can read is none.
    let file = scratch.write("token", "another token that is long enough");
    assert_eq!(status(&bearer), 401);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("our own file");
    assert_eq!(status(&bearer), 500);
    // Without a token file nothing changes by TCP, and without a folder for it nothing at all.
    let engine = Engine::start(&config(&Setup { process: &state, backend: backend.clone(), ..Setup::default() }));
    assert_eq!(ask_admin(&engine, "PATCH", &path, &bearer, body).status, 403);
    scratch.write("token", TOKEN);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("our own file");
    let immutable = format!("{state}\nimmutable = true");
    for process in ["", immutable.as_str()] {
        let setup = Setup { process, admin: &token, backend: backend.clone(), ..Setup::default() };
        let engine = Engine::start(&config(&setup));
        assert_eq!(ask_admin(&engine, "PATCH", &path, &bearer, body).status, 409);
        assert_eq!(ask_admin(&engine, "PATCH", &format!("{path}?dry_run=1"), &bearer, body).status, 200);
    }
}

#[test]
fn a_unix_socket_is_for_its_owner_and_needs_no_token() {
    let app = named("app");
    let scratch = Scratch::new();
    let socket = scratch.join("admin.sock");
    let text = format!(
        "[process]\nworkers = 1\ndrain_timeout = \"1s\"\nstate = \"{}\"\n[admin]\nbind = \"unix:{}\"\n\
         [listener.plain]\nbind = \"127.0.0.1:0\"\n[backend.app]\nservers = [\"{}\"]\n[[route]]\nbackend = \"app\"\n",
        scratch.join("state").display(),
        socket.display(),
        app.address()
    );
    let mut engine = Engine::start(&text);
    let mode = std::fs::metadata(&socket).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let ask = |method: &str, path: &str, body: &str| -> Value {
        let mut stream = UnixStream::connect(&socket).expect("a connection");
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        let fields = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all((head + &fields).as_bytes()).expect("the engine takes it");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
        serde_json::from_str(body).expect("JSON")
    };
    let value = ask("PATCH", &format!("/v1/backends/app/servers/{}", app.address()), "{\"weight\": 3}");
    assert_eq!((&value["result"], &value["generation"]), (&"applied".into(), &2.into()), "{value:#}");
    assert_eq!(ask("GET", "/v1/snapshot", "")["backends"][0]["servers"][0]["weight"], 3);
    engine.signal(Signal::TERM);
    engine.wait(WAIT_MAX);
    assert!(!socket.exists(), "it does not outlive its engine");
}

/// Uploads that are no certificate, or have no place, are refused and leave nothing behind.
#[track_caller]
fn refuses_certificates(engine: &Engine, fields: &str, pem: &str) {
    let response = ask_admin(engine, "PUT", "/v1/certificates/public/bad", fields, "no certificate");
    assert_eq!(response.status, 422, "{}", response.text());
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let response = ask_admin(engine, "PUT", "/v1/certificates/public/bad", fields, encrypted);
    let said = response.text();
    assert!(said.contains("the uploaded certificate") && said.contains("openssl pkey -in FILE"), "{said}");
    assert!(!said.contains("state/certificates"), "{said}");
    let response = ask_admin(engine, "PUT", "/v1/certificates/public/..%2F..%2Fx", fields, pem);
    assert_eq!(response.status, 409, "{}", response.text());
    let response = ask_admin(engine, "PUT", "/v1/certificates/none/x", fields, pem);
    assert_eq!(response.status, 404, "{}", response.text());
}

#[test]
fn what_the_admin_api_has_changed_is_there_after_a_restart() {
    let (a, b) = (named("a"), named("b"));
    let scratch = Scratch::new();
    let (state, token) = with_state(&scratch);
    let pem = Certificates::shared().issue(&["new.test"], &PKCS_ECDSA_P256_SHA256);
    let rest = "[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n";
    let setup = || {
        let backend = servers(&[&a]);
        config(&Setup { process: &state, admin: &token, backend, rest, ..Setup::default() })
    };
    let certificates = |engine: &Engine| -> Vec<String> {
        let snapshot = snapshot(engine);
        let all = snapshot["certificates"].as_array().expect("a list").iter();
        all.map(|each| each["name"].as_str().expect("a name").to_owned()).collect()
    };
    {
        let engine = Engine::start(&setup());
        applied(&engine, "POST", "/v1/backends/app/servers", &format!("{{\"address\":\"{}\"}}", b.address()));
        applied(&engine, "DELETE", &format!("/v1/backends/app/servers/{}", a.address()), "");
        let fields = format!("Authorization: Bearer {TOKEN}\r\nContent-Type: application/x-pem-file\r\n");
        let response = ask_admin(&engine, "PUT", "/v1/certificates/public/new", &fields, &pem);
        assert_eq!(response.status, 200, "{}", response.text());
        assert!(certificates(&engine).contains(&"new.test".to_owned()));
        // By a name that is served already it takes the place of what is there.
        let mine = Certificates::shared().issue(&["localhost"], &PKCS_ECDSA_P256_SHA256);
        assert_ne!(leaf(engine.address("web")), leaf_of(&mine));
        assert_eq!(ask_admin(&engine, "PUT", "/v1/certificates/public/mine", &fields, &mine).status, 200);
        assert_eq!(leaf(engine.address("web")), leaf_of(&mine));
        applied(&engine, "DELETE", "/v1/certificates/public/mine", "");
        assert_ne!(leaf(engine.address("web")), leaf_of(&mine));
        refuses_certificates(&engine, &fields, &pem);
        // Again in its place: the one before is removed.
        let next = Certificates::shared().issue(&["newer.test"], &PKCS_ECDSA_P256_SHA256);
        assert_eq!(ask_admin(&engine, "PUT", "/v1/certificates/public/new", &fields, &next).status, 200);
        let folder = scratch.join("state/certificates/public");
        let files: Vec<_> = std::fs::read_dir(&folder).expect("a folder").flatten().collect();
        assert_eq!(files.len(), 1, "{files:?}");
        assert_eq!(files[0].metadata().expect("a file").permissions().mode() & 0o777, 0o600);
        assert_eq!(answered(engine.address("plain")), "b");
        // A change of the file leaves it standing.
        engine.reload();
        assert_eq!(answered(engine.address("plain")), "b");
    }
    let engine = Engine::start(&setup());
    assert_eq!(answered(engine.address("plain")), "b");
    assert!(certificates(&engine).contains(&"newer.test".to_owned()));
    assert_eq!(snapshot(&engine)["configuration"]["origin"]["changed_by_admin"]["pushed"], false);
    applied(&engine, "DELETE", "/v1/certificates/public/new", "");
    assert!(!certificates(&engine).contains(&"newer.test".to_owned()));
    // What is pushed takes the place of the file, and of what was changed before, until the file changes.
    let file = file_of(&engine);
    let (status, value) = push(&engine, &file.replace("[[route]]", "[[route]]\npath = \"/x\""));
    assert_eq!(status, 200, "{value:#}");
    assert_eq!(Client::plain(engine.address("plain")).ask(GET).status, 404);
    drop(engine);
    let engine = Engine::start(&setup());
    assert_eq!(Client::plain(engine.address("plain")).ask(GET).status, 404, "it is there after a restart");
    engine.reload();
    assert_eq!(Client::plain(engine.address("plain")).ask(GET).status, 404, "and after a look at the same file");
    let stands =
        |line: &String| line.contains("what the admin API has changed stands over") && line.contains("propylon.toml");
    holds("it is said why the file has no effect", || engine.stderr().iter().any(stands));
    engine.rewrite(&(setup() + "# touched\n"));
    engine.reload();
    assert_eq!(answered(engine.address("plain")), "a", "but the file has the last word");
    drop(engine);
    let engine = Engine::start(&(setup() + "# touched\n"));
    assert_eq!(answered(engine.address("plain")), "a");
}

#[test]
fn a_websocket_and_an_upload_go_on_through_changes() {
    let echo = Origin::scripted(|peer| {
        let Some(head) = peer.read_head() else { return };
        if !String::from_utf8_lossy(&head).contains("/chat") {
            let _ = peer.read_exact(100_000);
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole");
            return;
        }
        peer.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n");
        while let Some(bytes) = peer.read_some() {
            peer.send(bytes);
        }
    });
    let other = named("other");
    let setup = |backend: String, rest| config(&Setup { backend, rest, ..Setup::default() });
    let engine = Engine::start(&setup(servers(&[&echo]), ""));
    let mut socket = engine.client("plain");
    let answer = socket.ask("GET /chat HTTP/1.1\r\nHost: shop.test\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n");
    assert_eq!(answer.status, 101);
    let mut upload = engine.client("plain");
    upload.send("POST /up HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 100000\r\n\r\n");
    upload.send(vec![b'x'; 50_000]);
    holds("half of it is with the server", || echo.received().iter().any(|all| all.len() > 50_000));
    for round in 0..10 {
        let rest = if round % 2 == 0 { "[listener.extra]\nbind = \"127.0.0.1:0\"\n" } else { "" };
        engine.rewrite(&setup(servers(&[&other]), rest));
        engine.reload();
        socket.send("ping");
        assert_eq!(socket.read_exact(4), b"ping");
        assert_eq!(answered(engine.address("plain")), "other");
    }
    engine.metric_reaches("propylon_config_old_snapshots", &[], 1.0);
    upload.send(vec![b'x'; 50_000]);
    let response = upload.read_response();
    assert_eq!((response.status, response.text().as_str()), (200, "whole"));
    socket.send("pong");
    assert_eq!(socket.read_exact(4), b"pong");
    drop((socket, upload));
    holds("old snapshots are gone", || engine.metric("propylon_config_old_snapshots", &[]) == 0.0);
}

#[test]
fn a_limit_of_connections_is_exact_while_it_changes() {
    let inside = Arc::new(AtomicU64::new(0));
    let most = Arc::new(AtomicU64::new(0));
    let (now, high) = (Arc::clone(&inside), Arc::clone(&most));
    let origin = Origin::scripted(move |peer| {
        while peer.read_request().is_some() {
            let there = now.fetch_add(1, Ordering::SeqCst) + 1;
            high.fetch_max(there, Ordering::SeqCst);
            std::thread::yield_now();
            now.fetch_sub(1, Ordering::SeqCst);
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let text = |limit: u32, extra: &str| {
        let server = format!("{{ address = \"{}\", max_connections = {limit} }}", origin.address());
        let backend =
            format!("servers = [{server}]\nreuse = \"always\"\nqueue = {{ limit = 100, timeout = \"20s\" }}{extra}");
        config(&Setup { backend, ..Setup::default() })
    };
    let engine = Engine::start(&text(2, ""));
    let load = Load::start(engine.address("plain"), 8);
    for round in 0..30_u32 {
        let limit = 1 + round % 3;
        engine.rewrite(&text(limit, if round % 2 == 0 { "\nretries = 1" } else { "" }));
        engine.reload();
        load.goes_on();
        // The clients keep all permits out; what was above the limit goes when its request is over.
        holds("no more connections than there may be", || {
            engine.metric("propylon_server_connections", &[]) <= f64::from(limit)
        });
        let seen = most.swap(0, Ordering::SeqCst);
        assert!(seen <= 3, "{seen} at once");
    }
    load.end();
    assert_eq!(engine.metric("propylon_queue_refused_total", &[]), 0.0);
}

#[test]
fn the_file_is_watched_where_that_is_wanted() {
    let (a, b) = (named("a"), named("b"));
    let setup =
        |origin| config(&Setup { process: "watch_config = true", backend: servers(&[origin]), ..Setup::default() });
    let engine = Engine::start(&setup(&a));
    assert_eq!(answered(engine.address("plain")), "a");
    engine.rewrite(&setup(&b));
    holds("the change is seen", || answered(engine.address("plain")) == "b");
    engine.rewrite("[listener.plain]\nbind = 7\n");
    holds("the mistake is seen", || engine.stderr().iter().any(|line| line.contains("was refused;")));
    assert_eq!(answered(engine.address("plain")), "b");
    engine.rewrite(&setup(&a));
    holds("and mended", || answered(engine.address("plain")) == "a");
    let failed = || engine.metric("propylon_config_reloads_total", &[("result", "failed")]);
    assert_eq!(failed(), 1.0, "told once");
    let logged = |words: &str| engine.stderr().iter().any(|line| line.contains(words));
    let change = format!(" info: generation 2: backend.app.servers \"{}\": added", b.address());
    holds("the log says what has changed", || logged(&change));
    // Cut off at the end of a line, it would be a whole configuration of less.
    let whole = complete(&setup(&b));
    let (listener, _) = whole.split_once("[[route]]").expect("a route");
    for (text, words) in [(whole.trim_end(), "no newline any more"), (listener, "no [[route]] is left in it")] {
        let before = failed();
        let new = engine.folder().join("propylon.toml.new");
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, engine.folder().join("propylon.toml")))
            .expect("our folder");
        holds(words, || failed() == before + 1.0 && logged(words));
        assert_eq!(answered(engine.address("plain")), "a");
    }
    // A file that is asked for is taken, with a warning.
    fs::write(engine.folder().join("propylon.toml"), whole.trim_end()).expect("our folder");
    assert!(engine.reload().contains("is in effect"));
    assert_eq!(answered(engine.address("plain")), "b");
    holds("a warning", || engine.stderr().iter().any(|line| line.contains("]: warning: ") && line.contains("cut off")));
}

/// An origin that says half of its answer at once and the rest when the gate opens; what is posted it takes whole first.
fn gated(gate: &Arc<AtomicBool>) -> Origin {
    let gate = Arc::clone(gate);
    Origin::scripted(move |peer| {
        while let Some(request) = peer.read_request() {
            if String::from_utf8_lossy(&request).starts_with("POST ") {
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntook");
                continue;
            }
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nold");
            holds("the gate opens", || gate.load(Ordering::SeqCst));
            peer.send("end");
        }
    })
}

#[test]
fn streams_in_progress_finish_as_they_began_and_new_ones_of_their_connection_go_by_what_is_new() {
    let gate = Arc::new(AtomicBool::new(false));
    let (old, new) = (gated(&gate), named("new"));
    let setup = |origin| config(&Setup { backend: servers(&[origin]), ..Setup::default() });
    let engine = Engine::start(&setup(&old));
    let mut client = Http2::start(&engine);
    client.get(1, "/");
    assert_eq!(client.next_of(1).status(), Some(200));
    assert_eq!(client.next_of(1).payload, b"old");
    let mut upload = request("POST", "/up");
    upload.push(("content-length", "6"));
    client.headers(3, 0, &upload);
    client.send(DATA, 0, 3, b"abc");
    holds("half of it is with the server", || old.received_text().contains("abc"));
    for (round, stream) in (5..25).step_by(2).enumerate() {
        let extra = "[listener.extra]\nbind = \"127.0.0.1:0\"\n";
        let rest = if round % 2 == 0 { extra } else { "" };
        engine.rewrite(&config(&Setup { backend: servers(&[&new]), rest, ..Setup::default() }));
        engine.reload();
        client.get(stream, "/");
        assert_eq!(client.response(stream).1, b"new");
    }
    assert!(engine.metric("propylon_config_old_snapshots", &[]) >= 1.0, "two streams are served by an earlier one");
    client.send(DATA, END_STREAM, 3, b"def");
    assert_eq!(client.response(3).1, b"took");
    gate.store(true, Ordering::SeqCst);
    let rest = client.next_of(1);
    assert_eq!((rest.kind, rest.payload.as_slice()), (DATA, &b"end"[..]));
    assert_eq!(engine.metric("propylon_http2_connections_total", &[]), 1.0);
    holds("old snapshots are gone", || engine.metric("propylon_config_old_snapshots", &[]) == 0.0);
    let label = old.address().to_string();
    holds("its series end", || !engine.metrics().contains(&label));
}

#[test]
fn a_listener_that_is_removed_or_speaks_otherwise_says_goaway_and_finishes_what_was_begun() {
    let gate = Arc::new(AtomicBool::new(false));
    let app = gated(&gate);
    let extra = "[listener.extra]\nbind = \"127.0.0.1:0\"\n";
    let setup = |listener, rest| config(&Setup { listener, backend: servers(&[&app]), rest, ..Setup::default() });
    let engine = Engine::start(&setup("", ""));
    engine.rewrite(&setup("", extra));
    engine.reload();
    for (listener, after) in [("extra", setup("", "")), ("plain", setup("http2 = { max_concurrent_streams = 7 }", ""))]
    {
        gate.store(false, Ordering::SeqCst);
        let (mut busy, mut quiet) = (Http2::start_at(&engine, listener), Http2::start_at(&engine, listener));
        busy.get(1, "/");
        assert_eq!(busy.next_of(1).status(), Some(200));
        quiet.headers(1, END_STREAM, &request("POST", "/"));
        assert_eq!(quiet.response(1).1, b"took");
        assert_eq!(engine.metric("propylon_http2_connections", &[("listener", listener)]), 2.0);
        engine.rewrite(&after);
        engine.reload();
        // Who has nothing open is told at once, without asking for anything.
        assert_eq!(quiet.goaway().code(), NO_ERROR);
        let mut said = false;
        loop {
            let frame = busy.next_frame();
            match frame.kind {
                PING if frame.flags & ACK == 0 => busy.send(PING, ACK, 0, &frame.payload),
                GOAWAY => {
                    assert_eq!(frame.code(), NO_ERROR);
                    said = true;
                    gate.store(true, Ordering::SeqCst);
                }
                DATA if frame.ends() => break,
                DATA | HEADERS => assert_eq!(frame.stream, 1),
                _ => {}
            }
        }
        assert!(said);
        drop((busy, quiet));
    }
    holds("its series end", || !engine.metrics().contains("listener=\"extra\""));
    let mut again = Http2::start(&engine);
    again.headers(1, END_STREAM, &request("POST", "/"));
    assert_eq!(again.response(1).1, b"took");
}

#[test]
fn connections_of_http2_to_servers_stay_with_those_that_stay_and_end_with_those_that_go() {
    let gate = Arc::new(AtomicBool::new(false));
    let (slow, new) = (gated(&gate), named("new"));
    let [one, other] = [&slow, &new].map(|origin| Engine::start(&simple(&[origin.address()])));
    let setup = |server: &Engine, more: &str| {
        let backend = format!("servers = [\"{}\"]\n{more}", server.address("plain"));
        config(&Setup { process: "", backend, ..Setup::default() }).replace("workers = 2", "workers = 1")
    };
    let engine = Engine::start(&setup(&one, "protocol = \"h2\""));
    let mut client = engine.client("plain");
    client.send(GET);
    assert!(client.read_head().contains(" 200 "));
    let post = "POST / HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 0\r\n\r\n";
    for round in 1..6 {
        engine.rewrite(&setup(&one, &format!("protocol = \"h2\"\nretries = {round}")));
        engine.reload();
        assert_eq!(engine.client("plain").ask(post).text(), "took");
    }
    assert_eq!(one.metric("propylon_http2_connections_total", &[]), 1.0, "the server has stayed");
    engine.rewrite(&setup(&other, "protocol = \"h2\""));
    engine.reload();
    assert_eq!(answered(engine.address("plain")), "new");
    assert_eq!(one.metric("propylon_http2_connections", &[]), 1.0, "a stream is in progress on it");
    gate.store(true, Ordering::SeqCst);
    assert_eq!(client.read_exact(6), b"oldend");
    holds("its connection ends", || one.metric("propylon_http2_connections", &[]) == 0.0);
    let label = one.address("plain").to_string();
    holds("its series end", || !engine.metrics().contains(&label));
    // Another protocol is another connection, and back again.
    for (protocol, open) in [("http1", 0.0), ("h2", 1.0), ("auto", 1.0), ("http1", 0.0)] {
        engine.rewrite(&setup(&other, &format!("protocol = \"{protocol}\"")));
        engine.reload();
        assert_eq!(answered(engine.address("plain")), "new");
        holds("as many connections of HTTP/2 as are used", || other.metric("propylon_http2_connections", &[]) == open);
    }
    assert_eq!(engine.metric("propylon_responses_total", &[("class", "5xx")]), 0.0);
}

/// It leaves with a stream under way, and is there again before that has ended.
#[test]
fn a_server_of_http2_that_comes_back_has_connections_that_stay() {
    let gate = Arc::new(AtomicBool::new(false));
    let (slow, new) = (gated(&gate), named("new"));
    let [one, other] = [&slow, &new].map(|origin| Engine::start(&simple(&[origin.address()])));
    let setup = |servers: &[&Engine]| {
        let servers: Vec<_> = servers.iter().map(|server| format!("\"{}\"", server.address("plain"))).collect();
        let backend = format!("servers = [{}]\nprotocol = \"h2\"", servers.join(", "));
        config(&Setup { backend, ..Setup::default() }).replace("workers = 2", "workers = 1")
    };
    let engine = Engine::start(&setup(&[&one]));
    let mut client = engine.client("plain");
    client.send(GET);
    assert!(client.read_head().contains(" 200 "));
    for (server, name) in [(&other, "new"), (&one, "took")] {
        engine.rewrite(&setup(&[server]));
        engine.reload();
        let post = "POST / HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(engine.client("plain").ask(post).text(), name);
        if name == "took" {
            gate.store(true, Ordering::SeqCst);
            assert_eq!(client.read_exact(6), b"oldend");
            holds("the connection of before ends", || one.metric("propylon_http2_connections", &[]) <= 1.0);
            assert_eq!(engine.client("plain").ask(post).text(), name);
            let made = one.metric("propylon_http2_connections_total", &[]);
            for _ in 0..3 {
                holds("nobody uses it", || one.metric("propylon_http2_streams", &[]) == 0.0);
                assert_eq!(engine.client("plain").ask(post).text(), name);
            }
            assert_eq!(one.metric("propylon_http2_connections_total", &[]), made, "it stays");
        }
    }
}

/// Each is verified by its own name, whatever server had its place before.
#[test]
fn over_tls_servers_come_and_change_places() {
    let origins = [named("one"), named("two"), named("three")];
    let [one, two, three] = [0, 1, 2].map(|place| Engine::start(&simple(&[origins[place].address()])));
    let ca = Certificates::shared().ca();
    let named = |server: &Engine| format!("localhost:{}", server.address("web").port());
    let numbered = |server: &Engine| server.address("web").to_string();
    for protocol in ["http1", "auto"] {
        let setup = |servers: &[String]| {
            let backend =
                format!("servers = {servers:?}\ntls = {{ ca = {ca:?} }}\nprotocol = \"{protocol}\"\nretries = 0");
            config(&Setup { backend, ..Setup::default() })
        };
        let engine = Engine::start(&setup(&[named(&one)]));
        assert_eq!(answered(engine.address("plain")), "one");
        for servers in
            [&[named(&one), numbered(&two)][..], &[numbered(&two), named(&three), named(&one)], &[numbered(&three)]]
        {
            engine.rewrite(&setup(servers));
            engine.reload();
            let mut met: Vec<String> = (0..12).map(|_| answered(engine.address("plain"))).collect();
            met.sort();
            met.dedup();
            assert_eq!(met.len(), servers.len(), "{protocol} {servers:?}: {met:?}");
        }
        assert_eq!(engine.metric("propylon_panics_total", &[]), 0.0);
    }
}

#[test]
fn over_tls_another_protocol_is_agreed_on_anew() {
    let origin = named("app");
    let server = Engine::start(&simple(&[origin.address()]));
    let ca = Certificates::shared().ca();
    let setup = |protocol| {
        let tls = format!("tls = {{ ca = {ca:?}, server_name = \"localhost\" }}");
        let backend = format!("servers = [\"{}\"]\n{tls}\nprotocol = \"{protocol}\"", server.address("web"));
        config(&Setup { backend, ..Setup::default() })
    };
    let engine = Engine::start(&setup("http1"));
    let mut streams = 0.0;
    for protocol in ["http1", "h2", "http1", "auto"] {
        engine.rewrite(&setup(protocol));
        engine.reload();
        assert_eq!(answered(engine.address("plain")), "app");
        streams += if protocol == "http1" { 0.0 } else { 1.0 };
        assert_eq!(server.metric("propylon_http2_streams_total", &[]), streams, "{protocol}");
    }
}

#[test]
fn a_limit_of_connections_of_http2_comes_into_force_under_load() {
    let origin = named("app");
    let server = Engine::start(&simple(&[origin.address()]));
    let setup = |limit: Option<u32>| {
        let limit = limit.map_or_else(String::new, |limit| format!(", max_connections = {limit}"));
        let server = format!("servers = [{{ address = \"{}\"{limit} }}]", server.address("plain"));
        let queue = "queue = { limit = 100, timeout = \"20s\" }";
        let backend = format!("{server}\nprotocol = \"h2\"\nhttp2 = {{ max_streams = 1 }}\n{queue}");
        config(&Setup { backend, ..Setup::default() }).replace("workers = 2", "workers = 1")
    };
    let engine = Engine::start(&setup(None));
    let load = Load::start(engine.address("plain"), 8);
    load.goes_on();
    for limit in [3, 6, 1, 4, 2] {
        engine.rewrite(&setup(Some(limit)));
        engine.reload();
        load.goes_on();
        holds("no more connections than there may be", || {
            engine.metric("propylon_server_connections", &[]) <= f64::from(limit)
        });
        load.goes_on();
    }
    load.end();
    assert_eq!(engine.metric("propylon_queue_refused_total", &[]), 0.0);
    assert_eq!(engine.metric("propylon_server_faults_total", &[]), 0.0);
}

/// What is above a lower limit ends though nobody asks, and where there is room again connections stay.
#[test]
fn idle_connections_end_above_a_lower_limit_and_stay_below_a_higher_one() {
    for protocol in ["http1", "h2"] {
        let together = Barrier::new(3);
        let origin = Origin::answering(move |_| {
            together.wait();
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec()
        });
        let server = Engine::start(&simple(&[origin.address()]));
        let setup = |limit: u32| {
            let address = server.address("plain");
            let server = format!("servers = [{{ address = \"{address}\", max_connections = {limit} }}]");
            let backend = format!("{server}\nprotocol = \"{protocol}\"\nhttp2 = {{ max_streams = 1 }}");
            config(&Setup { backend, ..Setup::default() }).replace("workers = 2", "workers = 1")
        };
        let engine = Engine::start(&setup(3));
        let ask_together = || {
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| assert_eq!(answered(engine.address("plain")), "ok"));
                }
            });
            engine.metric_reaches("propylon_server_connections", &[], 3.0);
        };
        ask_together();
        engine.rewrite(&setup(1));
        engine.reload();
        holds("those that nobody uses end", || engine.metric("propylon_server_connections", &[]) <= 1.0);
        engine.rewrite(&setup(3));
        engine.reload();
        ask_together();
        let made = engine.metric("propylon_server_connections_total", &[]);
        (0..4).for_each(|_| ask_together());
        assert_eq!(engine.metric("propylon_server_connections_total", &[]), made, "{protocol}");
    }
}

/// 200 changes of all kinds, or 1,000 with `PROPYLON_LONG` in the environment.
#[test]
fn changes_under_load_fail_no_request_and_leave_nothing_behind() {
    let changes = if std::env::var_os("PROPYLON_LONG").is_some() { 1_000 } else { 200 };
    let origins = [named("a"), named("b"), named("c")];
    let text = |round: usize| {
        let some = [&origins[round % 3], &origins[(round + 1) % 3]];
        let backend = format!("{}\nretries = {}", servers(&some[..1 + round % 2]), 1 + round % 3);
        let mut rest = String::from("[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n");
        if round % 4 > 1 {
            rest += &format!("[listener.extra{}]\nbind = \"127.0.0.1:0\"\n", round % 7);
            rest += &format!("[backend.more{}]\nservers = [\"127.0.0.1:{}\"]\n", round % 5, 10_000 + round);
            rest += &format!("[[route]]\nhost = \"more.test\"\nbackend = \"more{}\"\n", round % 5);
        }
        config(&Setup { backend, rest: &rest, ..Setup::default() })
    };
    let engine = Engine::start(&text(0));
    let load = Load::start(engine.address("plain"), 4);
    let secure = engine.address("web");
    let mut clients = vec![Client::tls(secure)];
    let mut marks: Vec<(usize, u64, usize)> = Vec::new();
    for round in 1..=changes {
        engine.rewrite(&text(round));
        let said = engine.reload();
        assert!(said.contains("is in effect"), "{said}");
        assert_eq!(clients[0].ask(GET).status, 200);
        if round % (changes / 4) == 0 {
            // The same configuration at each mark, and nothing in flight but the load.
            engine.rewrite(&text(0));
            engine.reload();
            holds("old snapshots are gone", || engine.metric("propylon_config_old_snapshots", &[]) <= 1.0);
            marks.push((engine.files(), engine.rss(), engine.metrics().lines().count()));
        }
    }
    let served = load.end();
    println!("{changes} changes, {served} requests; files, resident bytes and lines of metrics: {marks:?}");
    assert!(served > changes as u64);
    assert_eq!(engine.metric("propylon_responses_total", &[("class", "5xx")]), 0.0);
    assert_eq!(engine.metric("propylon_config_reloads_total", &[("result", "failed")]), 0.0);
    let (first, last) = (marks[0], marks[marks.len() - 1]);
    assert!(last.0 <= first.0 + 16, "files: {marks:?}");
    assert!(last.1 <= first.1 + 4 * 1024 * 1024, "memory: {marks:?}");
    // What an old snapshot still holds is shown as well; each change that left its series behind would make thousands.
    assert!(last.2 <= first.2 * 2, "series: {marks:?}");
    clients.clear();
    assert!(Path::new(&engine.folder()).exists());
}

#[test]
fn the_admin_address_answers_while_ten_thousand_servers_are_compiled() {
    let app = named("app");
    let many = |weight: u16| {
        let one =
            |index: u16| format!("{{ address = \"10.9.{}.{}:80\", weight = {weight} }}", index / 250, index % 250 + 1);
        let servers: Vec<String> = (0..10_000).map(one).collect();
        format!(
            "[backend.many]\nservers = [{}]\n[[route]]\nhost = \"many.test\"\nbackend = \"many\"\n",
            servers.join(", ")
        )
    };
    let setup = |rest: &str| config(&Setup { backend: servers(&[&app]), rest, ..Setup::default() });
    let engine = Engine::start(&setup(&many(1)));
    let (stop, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let answered = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                assert_eq!(ask_admin(&engine, "GET", "/health", "", "").status, 200);
                asked.fetch_add(1, Ordering::SeqCst);
            }
        });
        engine.rewrite(&setup(&many(2)));
        holds("it answers", || asked.load(Ordering::SeqCst) > 0);
        let before = asked.load(Ordering::SeqCst);
        let said = engine.reload();
        let during = asked.load(Ordering::SeqCst) - before;
        stop.store(true, Ordering::SeqCst);
        assert!(said.contains("the configuration is in effect"), "{said}");
        during
    });
    assert!(answered >= 10, "{answered} answers while the configuration was compiled");
}
