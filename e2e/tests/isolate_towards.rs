//! `keys.isolate` towards others: what is shown to servers and to key servers has its key in another process as well.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use propylon_e2e::distance::Distance;
use propylon_e2e::engine::complete;
use propylon_e2e::isolation::{child, is_stopped, key_process, traces};
use propylon_e2e::keyserver::KeyServer;
use propylon_e2e::lineage::{How, Lineage};
use propylon_e2e::nginx::Nginx;
use propylon_e2e::program::{run, signal};
use propylon_e2e::wait::{WAIT_MAX, holds};
use propylon_e2e::{Certificates, Client, Engine, Origin, Scratch, binaries, memory};
use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256, SignatureAlgorithm};
use rustix::process::Signal;

const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const ISOLATE: &str = "[keys]\nisolate = true\n";

/// Certificates that the engine shows to others, in a folder of their own.
struct Shown {
    scratch: Scratch,
    /// Every key that has ever been there.
    pems: Vec<(String, String)>,
}

const KINDS: [(&str, &SignatureAlgorithm); 3] =
    [("RSA", &PKCS_RSA_SHA256), ("P-256", &PKCS_ECDSA_P256_SHA256), ("P-384", &PKCS_ECDSA_P384_SHA384)];

impl Shown {
    fn new() -> Shown {
        let mut shown = Shown { scratch: Scratch::new(), pems: Vec::new() };
        shown.renew();
        shown
    }

    fn renew(&mut self) {
        for (name, algorithm) in KINDS {
            let pem = Certificates::shared().issue(&["engine"], algorithm);
            let new = self.scratch.write("new", &pem);
            fs::rename(new, self.path(name)).expect("a rename within a folder");
            self.pems.push((name.to_owned(), pem));
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.join(&format!("{name}.pem"))
    }

    fn traces(&self) -> Vec<(String, Vec<u8>)> {
        self.pems.iter().flat_map(|(name, pem)| traces(name, pem)).collect()
    }

    /// Not a byte of them, once what was freed a moment ago is gone.
    #[track_caller]
    fn are_not_in(&self, pid: u32, when: &str) {
        holds(&format!("no key is in the memory {when}"), || memory::found(pid, &self.traces()).is_empty());
    }

    /// `tls` of a backend whose servers are shown this one.
    fn tls(&self, name: &str) -> String {
        let (ca, path) = (Certificates::shared().ca(), self.path(name));
        format!(
            "tls = {{ ca = {:?}, certificate = {:?}, resume = false }}\nmax_requests = 1\n",
            ca.display(),
            path.display()
        )
    }
}

/// A server that answers nobody who shows no certificate of ours.
fn nginx(protocols: &str, http2: bool) -> Nginx {
    let (own, ca) = (Certificates::shared().ec(), Certificates::shared().ca());
    let server = format!(
        "ssl_protocols {protocols};\nssl_client_certificate {};\nssl_verify_client on;\nssl_session_tickets off;\n\
         ssl_session_cache off;",
        ca.display()
    );
    if http2 { Nginx::secure_http2("demanding", &own, &server) } else { Nginx::secure("demanding", &own, &server) }
}

/// A backend for each host of `hosts`, with these lines.
fn config(backends: &[(&str, &Nginx, String)], more: &str) -> String {
    let mut text = format!("{more}\n[listener.plain]\nbind = \"127.0.0.1:0\"\n");
    for (name, server, lines) in backends {
        text += &format!(
            "[backend.{name}]\nservers = [\"{}\"]\n{lines}\n[[route]]\nhost = \"{name}.test\"\nbackend = \"{name}\"\n",
            server.address()
        );
    }
    text
}

#[track_caller]
fn asks(engine: &Engine, host: &str) {
    let response = engine.client("plain").ask(format!("GET /tls HTTP/1.1\r\nHost: {host}.test\r\n\r\n"));
    assert!(response.text().contains("client=SUCCESS"), "{host}: {} {}", response.status, response.text());
}

#[test]
fn no_key_of_a_client_certificate_is_in_the_memory_of_an_engine_whose_keys_are_isolated() {
    if !memory::may_look() {
        return;
    }
    let servers = [nginx("TLSv1.2", false), nginx("TLSv1.3", false), nginx("TLSv1.2 TLSv1.3", true)];
    let mut shown = Shown::new();
    let http2 = format!("protocol = \"h2\"\n{}", shown.tls("P-384").replace("max_requests = 1\n", ""));
    let probe = "health = { path = \"/tls\", interval = \"100ms\" }\n";
    let backends = [
        ("one", &servers[0], shown.tls("RSA") + probe),
        ("two", &servers[1], shown.tls("P-256")),
        ("three", &servers[1], shown.tls("RSA")),
        ("four", &servers[2], http2),
        ("five", &servers[0], shown.tls("P-256")),
    ];
    let all = |engine: &Engine| backends.iter().for_each(|(name, ..)| asks(engine, name));
    let process = "[process]\nworkers = 2\n";
    // The search finds what there is.
    let plain = Engine::start(&config(&backends, process));
    all(&plain);
    let found = memory::found(plain.pid(), &shown.traces());
    for (name, _) in KINDS {
        assert!(found.iter().any(|place| place.starts_with(name)), "{name} is in an engine that has it: {found:#?}");
    }
    drop(plain);

    let engine = Engine::start(&config(&backends, &format!("{process}{ISOLATE}")));
    shown.are_not_in(engine.pid(), "after the start");
    all(&engine);
    shown.are_not_in(engine.pid(), "after handshakes");
    assert!(memory::found(key_process(engine.pid()), &shown.traces()).len() >= 3, "the key process has them");
    shown.are_not_in(child(engine.pid(), "key-supervisor").expect("one"), "of the supervisor");
    let probes = |result: &str| engine.metric("propylon_health_checks_total", &[("result", result)]);
    holds("probes succeed", || probes("success") > 2.0);
    assert_eq!(probes("tls-failed"), 0.0);
    shown.renew();
    engine.reload();
    all(&engine);
    shown.are_not_in(engine.pid(), "after a rotation");
    // The next one has them from its start.
    signal(key_process(engine.pid()), Signal::KILL);
    all(&engine);
    engine.metric_reaches("propylon_key_process_restarts_total", &[], 1.0);
    shown.are_not_in(engine.pid(), "after a restart of the key process");
    assert_eq!(engine.metric("propylon_server_tls_handshake_failures_total", &[]), 0.0);
    let used = engine.metric("propylon_tls_parking_stack_high_water_bytes", &[]);
    assert!(used > 0.0 && used < f64::from(24 * 1024), "three quarters of a stack are enough: {used}");
}

/// Names of the conditions that hold.
fn conditions(engine: &Engine) -> Vec<String> {
    let request = format!("GET /status.json HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", engine.admin());
    let status: serde_json::Value =
        serde_json::from_str(&Client::plain(engine.admin()).ask(request).text()).expect("JSON");
    let list = status["conditions"]["list"].as_array().expect("conditions");
    list.iter().map(|each| each["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn a_key_process_that_hangs_keeps_no_other_backend_and_blames_no_server() {
    let server = nginx("TLSv1.3", false);
    let (origin, shown) = (Origin::always(ANSWER), Shown::new());
    let lines = format!("{}timeouts = {{ connect = \"1s\" }}\n", shown.tls("P-256"));
    let text = config(&[("one", &server, lines)], &format!("[process]\nworkers = 1\n{ISOLATE}"));
    let plain = format!("[backend.plain]\nservers = [\"{}\"]\n[[route]]\nbackend = \"plain\"\n", origin.address());
    let engine = Engine::start(&(text + &plain));
    asks(&engine, "one");
    // Who would start another does not hear of it.
    let (supervisor, holder) = (child(engine.pid(), "key-supervisor").expect("one"), key_process(engine.pid()));
    for pid in [supervisor, holder] {
        signal(pid, Signal::STOP);
        holds("all of it has stopped", || is_stopped(pid));
    }
    let mut waits = engine.client("plain");
    waits.send("GET /tls HTTP/1.1\r\nHost: one.test\r\n\r\n");
    engine.metric_reaches("propylon_tls_parked_handshakes", &[], 1.0);
    let mut other = engine.client("plain");
    assert_eq!(other.get("/").status, 200, "the worker has not stopped");
    let response = waits.read_response();
    assert_eq!((response.status, response.text().contains("client-certificate-unsigned")), (503, true));
    let failures = "propylon_server_tls_handshake_failures_total";
    assert_eq!(engine.metric(failures, &[("reason", "client-certificate-unsigned")]), 1.0);
    assert_eq!(engine.metric("propylon_server_passed_over", &[("backend", "one")]), 0.0);
    assert_eq!(engine.metric("propylon_server_connect_failures_total", &[("backend", "one")]), 0.0);
    let named = |id: &str| conditions(&engine).iter().any(|known| known == id);
    holds("it is told whose fault it is", || named("server-unsigned"));
    for others in ["server-faults", "server-tls-failed", "server-connects-failed"] {
        assert!(!named(others), "{others}: {:?}", conditions(&engine));
    }
    for pid in [holder, supervisor] {
        signal(pid, Signal::CONT);
    }
    asks(&engine, "one");
    holds("nobody waits any more", || engine.metric("propylon_tls_parked_handshakes", &[]) == 0.0);
}

#[test]
fn connections_to_servers_wait_for_a_key_process_that_is_started_again() {
    let (server, shown) = (nginx("TLSv1.2 TLSv1.3", false), Shown::new());
    let engine = Engine::start(&config(&[("one", &server, shown.tls("RSA"))], ISOLATE));
    for round in 1..=3 {
        asks(&engine, "one");
        signal(key_process(engine.pid()), Signal::KILL);
        for _ in 0..5 {
            asks(&engine, "one");
        }
        engine.metric_reaches("propylon_key_process_restarts_total", &[], f64::from(round));
    }
}

#[test]
fn a_successor_shows_its_certificate_by_a_key_process_of_its_own() {
    let (server, shown) = (nginx("TLSv1.3", false), Shown::new());
    let mut lineage = Lineage::start("", &config(&[("one", &server, shown.tls("P-256"))], ISOLATE));
    let asks = |lineage: &Lineage| {
        let response = Client::plain(lineage.address("plain")).ask("GET /tls HTTP/1.1\r\nHost: one.test\r\n\r\n");
        assert!(response.text().contains("client=SUCCESS"), "{}", response.text());
    };
    asks(&lineage);
    let before = (lineage.pid(), key_process(lineage.pid()));
    lineage.upgrade(How::Signal);
    asks(&lineage);
    assert_ne!(before.1, key_process(lineage.pid()));
    lineage.gone(before.0);
    asks(&lineage);
}

#[test]
fn key_servers_are_shown_an_identity_whose_key_is_elsewhere() {
    let mut vault = KeyServer::start("");
    let scratch = Scratch::new();
    let read = |name: &str| fs::read_to_string(vault.scratch.join(name)).expect("a file of the key server's");
    let identity = scratch.write("engine.pem", read("engine.pem"));
    let path = |name: &str| format!("{:?}", vault.scratch.join(name).display());
    let address = vault.address();
    let text = format!(
        "[process]\nworkers = 2\n{ISOLATE}[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n\
         [[route]]\nrespond = {{ status = 204 }}\n\
         [tls.public]\ncertificates = [{}, {}]\nsigner = \"vault\"\n\
         [signer.vault]\nservers = [{{ address = \"{address}\", server_name = \"localhost\" }}]\nidentity = {:?}\nca = {}\n",
        path("ec.crt"),
        path("rsa.crt"),
        identity.display(),
        path("ca.pem"),
    );
    let engine = Engine::start(&text);
    let up = || engine.metric("propylon_signer_connections", &[("signer", "vault")]);
    holds("every connection is up", || up() == 4.0);
    let signed = |count: f64| {
        let port = engine.address("web").port();
        let mut command = Command::new("openssl");
        command.args(["s_client", "-connect", &format!("localhost:{port}"), "-quiet", "-ign_eof"]);
        let said = run(command, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", WAIT_MAX);
        assert!(said.text().contains("204"), "{}\n{}", said.text(), said.stderr);
        assert_eq!(engine.metric("propylon_signer_jobs_total", &[("signer", "vault"), ("outcome", "signed")]), count);
    };
    signed(1.0);
    let traces = traces("identity", &read("engine.pem"));
    if memory::may_look() {
        holds("not a byte of it is here", || memory::found(engine.pid(), &traces).is_empty());
        assert!(!memory::found(key_process(engine.pid()), &traces).is_empty(), "the key process has it");
    }
    // Both gone at once: new links want the identity of a key process that has it again.
    signal(key_process(engine.pid()), Signal::KILL);
    vault.kill();
    holds("no connection is up", || up() == 0.0);
    let server = format!("[server]\nbind = \"{address}\"\nidentity = \"server.pem\"\nca = \"ca.pem\"\nworkers = 2\n");
    let _again = vault.beside(&server);
    holds("every connection is up again", || up() == 4.0);
    signed(2.0);
    // A key process that hangs stops no signature of key servers: their links are there.
    let pids = [child(engine.pid(), "key-supervisor").expect("one"), key_process(engine.pid())];
    for pid in pids {
        signal(pid, Signal::STOP);
        holds("all of it has stopped", || is_stopped(pid));
    }
    signed(3.0);
    pids.into_iter().for_each(|pid| signal(pid, Signal::CONT));
}

#[test]
fn a_link_whose_identity_is_not_signed_for_is_told_by_its_cause() {
    let vault = KeyServer::start("");
    let scratch = Scratch::new();
    let read = |name: &str| fs::read_to_string(vault.scratch.join(name)).expect("a file of the key server's");
    let identity = scratch.write("engine.pem", read("engine.pem"));
    let path = |name: &str| format!("{:?}", vault.scratch.join(name).display());
    let way = Distance::new(vault.address(), Duration::ZERO);
    let text = format!(
        "[process]\nworkers = 1\n{ISOLATE}[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n\
         [[route]]\nrespond = {{ status = 204 }}\n[tls.public]\ncertificates = [{}]\nsigner = \"vault\"\n\
         [signer.vault]\nservers = [{{ address = \"{}\", server_name = \"localhost\" }}]\nidentity = {:?}\nca = {}\n",
        path("ec.crt"),
        way.address(),
        identity.display(),
        path("ca.pem"),
    );
    let engine = Engine::start(&text);
    let of_vault = |name: &str| engine.metric(name, &[("signer", "vault")]);
    let up = || of_vault("propylon_signer_connections");
    holds("every connection is up", || up() == 2.0);
    let pids = [child(engine.pid(), "key-supervisor").expect("one"), key_process(engine.pid())];
    for pid in pids {
        signal(pid, Signal::STOP);
        holds("all of it has stopped", || is_stopped(pid));
    }
    // New ones come as far as the question for a signature.
    way.cut();
    holds("attempts have failed", || of_vault("propylon_signer_identity_unsigned_total") >= 2.0);
    let named = |id: &str| conditions(&engine).iter().any(|known| known == id);
    holds("it is told whose fault it is", || named("signer-unsigned"));
    assert!(!named("signer-connects-failed"), "{:?}", conditions(&engine));
    assert_eq!(of_vault("propylon_signer_connect_failures_total"), 0.0);
    let told = |line: &String| line.contains("signer \"vault\": the key server cannot be connected to: nobody signs");
    assert!(engine.stderr().iter().any(told), "{:#?}", engine.stderr());
    pids.into_iter().for_each(|pid| signal(pid, Signal::CONT));
    holds("every connection is up again", || up() == 2.0);
}

#[test]
fn check_and_start_take_what_is_shown_to_others() {
    let (shown, scratch) = (Shown::new(), Scratch::new());
    let ca = Certificates::shared().ca();
    let text = format!(
        "{ISOLATE}[listener.plain]\nbind = \"127.0.0.1:0\"\n[backend.app]\nservers = [\"127.0.0.1:9\"]\n{}\
         [[route]]\nbackend = \"app\"\n[signer.vault]\nservers = [\"127.0.0.1:9\"]\nidentity = {:?}\nca = {:?}\n",
        shown.tls("RSA"),
        shown.path("P-256").display(),
        ca.display(),
    );
    let check = |text: &str| {
        let path = scratch.write("check.toml", complete(text));
        let mut command = Command::new(binaries::propylon());
        command.arg("check").arg("-c").arg(path);
        let said = run(command, b"", WAIT_MAX);
        said.text() + &said.stderr
    };
    let said = check(&text);
    assert!(!said.contains("error:"), "{said}");
    let engine = Engine::start(&text);
    // One that cannot be used is refused, in the words for any other, and what was there stays.
    fs::write(shown.path("RSA"), "no key\n").expect("our own file");
    engine.reload();
    holds("it is told", || engine.stderr().iter().any(|line| line.contains("there is no certificate in this file")));
    // A folder that the engine writes in may have none of them either.
    let state = format!("[process]\nstate = {:?}\n{text}", shown.scratch.path().display());
    assert!(check(&state).contains("there are private keys in"), "{}", check(&state));
    let mut refused = Engine::spawn(&state);
    assert_eq!(refused.wait(Duration::from_secs(20)).status.code(), Some(1));
}
