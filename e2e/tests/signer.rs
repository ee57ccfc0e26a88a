//! Keys that are elsewhere: an engine with certificates only, and the key servers that sign for it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use propylon_e2e::client::connect;
use propylon_e2e::distance::Distance;
use propylon_e2e::engine::{simple, with};
use propylon_e2e::keyserver::KeyServer;
use propylon_e2e::program::{run, s_client};
use propylon_e2e::{Certificates, Client, Engine, Origin, Scratch, eventually, holds};
use rustix::process::Signal;

const GET: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Key servers that have the keys of the shared certificates, and an engine's files beside the first.
struct Vault {
    servers: Vec<KeyServer>,
}

impl Vault {
    fn new(count: usize) -> Vault {
        let first = KeyServer::start("");
        let shared = Certificates::shared();
        for (name, path) in [("shop-ec", shared.ec()), ("shop-rsa", shared.rsa())] {
            let text = fs::read_to_string(path).expect("a certificate and its key");
            let (chain, key) = text.split_at(text.find("-----BEGIN PRIVATE KEY").expect("a key"));
            first.scratch.write(&format!("{name}.crt"), chain);
            let new = first.scratch.write("new.tmp", key);
            fs::rename(new, first.scratch.join(&format!("keys/{name}.pem"))).expect("the key's name");
        }
        first.signal(Signal::HUP);
        holds("the first has the new keys", || first.metric("propylon_keyserver_keys") == 6);
        let others: Vec<KeyServer> = (1..count).map(|_| first.beside("")).collect();
        let mut servers = vec![first];
        servers.extend(others);
        Vault { servers }
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(KeyServer::address).collect()
    }

    fn file(&self, name: &str) -> String {
        self.servers[0].scratch.join(name).display().to_string()
    }

    /// A server that has gone comes back at its old address.
    fn restart(&mut self, which: usize, address: SocketAddr) {
        let server =
            format!("[server]\nbind = \"{address}\"\nidentity = \"server.pem\"\nca = \"ca.pem\"\nworkers = 2\n");
        self.servers[which] = self.servers[which].beside(&server);
    }

    /// The tables `[tls.public]` and `[signer.vault]`.
    fn tables(&self, addresses: &[SocketAddr], more: &str) -> String {
        self.tables_with(&[self.file("shop-ec.crt"), self.file("shop-rsa.crt")], addresses, more)
    }

    fn tables_with(&self, certificates: &[String], addresses: &[SocketAddr], more: &str) -> String {
        let servers: Vec<String> = addresses
            .iter()
            .map(|address| format!("{{ address = \"{address}\", server_name = \"localhost\" }}"))
            .collect();
        format!(
            "[tls.public]\ncertificates = {certificates:?}\nsigner = \"vault\"\n\
             [signer.vault]\nservers = [{}]\nidentity = \"{}\"\nca = \"{}\"\n{more}\n",
            servers.join(", "),
            self.file("engine.pem"),
            self.file("ca.pem"),
        )
    }

    fn engine(&self, origin: &Origin, more: &str) -> Engine {
        let addresses = self.addresses();
        let engine = Engine::start(&(simple(&[origin.address()]) + &self.tables(&addresses, more)));
        connected(&engine, addresses.len());
        engine
    }
}

/// Waits until every connection to so many servers is up.
fn connected(engine: &Engine, servers: usize) {
    engine.metric_reaches("propylon_signer_connections", &[], 2.0 * servers as f64);
}

fn jobs(engine: &Engine, outcome: &str) -> f64 {
    engine.metric("propylon_signer_jobs_total", &[("outcome", outcome)])
}

fn says(engine: &Engine, what: &str) -> bool {
    engine.stderr().iter().any(|line| line.contains(what))
}

/// A handshake and a request; the error is the handshake's.
fn visit(address: SocketAddr, config: &Arc<rustls::ClientConfig>) -> std::io::Result<()> {
    let mut client = Client::try_tls_with(address, Arc::clone(config))?;
    assert_eq!(client.get("/").status, 200);
    Ok(())
}

#[test]
fn an_engine_with_certificates_only_serves_both_versions_and_key_types() {
    let vault = Vault::new(1);
    let origin = Origin::always(ANSWER);
    let engine = vault.engine(&origin, "verify = \"all\"");
    let port = engine.address("web").port();
    let cases: &[(&str, &str, &str)] = &[
        ("-tls1_3", "ECDSA+SHA256", "ECDSA"),
        ("-tls1_2", "ECDSA+SHA256", "ECDSA"),
        ("-tls1_3", "rsa_pss_rsae_sha256", "RSA-PSS"),
        ("-tls1_3", "rsa_pss_rsae_sha384", "RSA-PSS"),
        ("-tls1_3", "rsa_pss_rsae_sha512", "RSA-PSS"),
        ("-tls1_2", "rsa_pss_rsae_sha256", "RSA-PSS"),
        ("-tls1_2", "RSA+SHA256", "RSA"),
        ("-tls1_2", "RSA+SHA384", "RSA"),
        ("-tls1_2", "RSA+SHA512", "RSA"),
    ];
    for (version, algorithm, kind) in cases {
        let said = s_client(port, &[version, "-sigalgs", algorithm], GET);
        let text = said.text();
        assert!(text.contains("HTTP/1.1 200 OK"), "{version} {algorithm}:\n{text}\n{}", said.stderr);
        assert!(text.contains(&format!("Peer signature type: {kind}\n")), "{version} {algorithm}:\n{text}");
    }
    assert_eq!(jobs(&engine, "signed"), cases.len() as f64);
    assert_eq!(engine.metric("propylon_signer_requests_total", &[("outcome", "signed")]), cases.len() as f64);
    engine.metric_reaches("propylon_signer_outstanding", &[], 0.0);
}

#[test]
fn a_key_server_with_a_name_is_found_at_whichever_of_its_addresses_answers() {
    let vault = Vault::new(1);
    let origin = Origin::always(ANSWER);
    // The name has ::1 as well on most machines, where nobody listens.
    let name = vault.addresses()[0].to_string().replace("127.0.0.1", "localhost");
    let tables = vault.tables(&vault.addresses(), "resolve_interval = \"1s\"");
    let tables = tables.replace(&vault.addresses()[0].to_string(), &name);
    let engine = Engine::start(&(simple(&[origin.address()]) + &tables));
    connected(&engine, 1);
    visit(engine.address("web"), &Certificates::shared().client()).expect("a handshake");
    holds("the name is looked up again", || {
        engine.metric("propylon_signer_lookups_total", &[("outcome", "same")]) > 0.0
    });
    assert_eq!(engine.metric("propylon_signer_lookups_total", &[("outcome", "failed")]), 0.0);
}

#[test]
fn an_identity_that_was_replaced_is_shown_on_new_links() {
    let mut vault = Vault::new(1);
    let origin = Origin::always(ANSWER);
    let address = vault.addresses()[0];
    // Only the other engine may use keys.
    let only_other = format!(
        "[server]\nbind = \"{address}\"\nidentity = \"server.pem\"\nca = \"ca.pem\"\nworkers = 2\n\
         [[client]]\ncommon_name = \"other\"\n"
    );
    let again = |vault: &mut Vault| vault.servers[0] = vault.servers[0].beside(&only_other);
    let scratch = Scratch::new();
    // The key server's own folder goes with it.
    for name in ["engine.pem", "other.pem", "ca.pem", "shop-ec.crt"] {
        scratch.write(name, fs::read(vault.file(name)).expect("a file of the engine's"));
    }
    fs::copy(scratch.join("engine.pem"), scratch.join("identity.pem")).expect("a copy");
    let path = |name: &str| scratch.join(name).display().to_string();
    let tables = format!(
        "[tls.public]\ncertificates = [\"{}\"]\nsigner = \"vault\"\n[signer.vault]\nidentity = \"{}\"\nca = \"{}\"\n\
         watch = \"1s\"\nservers = [{{ address = \"{address}\", server_name = \"localhost\" }}]\n",
        path("shop-ec.crt"),
        path("identity.pem"),
        path("ca.pem")
    );
    vault.servers[0].kill();
    again(&mut vault);
    let engine = Engine::start(&(simple(&[origin.address()]) + &tables));
    connected(&engine, 1);
    let client = Certificates::shared().client();
    assert!(visit(engine.address("web"), &client).is_err(), "the engine may not use keys");
    fs::copy(scratch.join("other.pem"), scratch.join("new.tmp")).expect("a copy");
    fs::rename(scratch.join("new.tmp"), scratch.join("identity.pem")).expect("its name");
    let said = "signer \"vault\": identity and authorities were read again, for new links";
    holds("the identity is read again", || says(&engine, said));
    assert!(visit(engine.address("web"), &client).is_err(), "the links are the old ones");
    vault.servers[0].kill();
    again(&mut vault);
    holds("a new link shows the new one", || visit(engine.address("web"), &client).is_ok());
    // What cannot be used changes nothing, whoever asks.
    scratch.write("identity.pem", "no identity");
    engine.signal(Signal::HUP);
    holds("it is told", || says(&engine, "identity.pem: there is no"));
    assert!(visit(engine.address("web"), &client).is_ok());
}

#[test]
fn keys_of_two_types_and_keys_that_are_here_stand_side_by_side() {
    let vault = Vault::new(1);
    let origin = Origin::always(ANSWER);
    // The shared RSA certificate has its key beside it.
    let certificates = [
        vault.file("shop-ec.crt"),
        Certificates::shared().rsa().display().to_string(),
        vault.file("ed.crt"),
        vault.file("ec384.crt"),
    ];
    let tables = vault.tables_with(&certificates, &vault.addresses(), "verify = \"all\"");
    let engine = Engine::start(&(simple(&[origin.address()]) + &tables));
    connected(&engine, 1);
    let port = engine.address("web").port();
    // These sign themselves.
    let (ed, ec384) = (vault.file("ed.crt"), vault.file("ec384.crt"));
    let cases: &[(&[&str], &str, f64)] = &[
        (&["-tls1_3", "-sigalgs", "ECDSA+SHA256"], "ECDSA", 1.0),
        (&["-tls1_3", "-sigalgs", "rsa_pss_rsae_sha256"], "RSA-PSS", 1.0),
        (&["-tls1_3", "-servername", "ed.test", "-CAfile", &ed, "-sigalgs", "ed25519"], "ed25519", 2.0),
        (&["-tls1_2", "-servername", "ed.test", "-CAfile", &ed, "-sigalgs", "ed25519"], "ed25519", 3.0),
        (&["-tls1_3", "-servername", "ec384.test", "-CAfile", &ec384, "-sigalgs", "ECDSA+SHA384"], "ECDSA", 4.0),
    ];
    for (arguments, kind, remote) in cases {
        let said = s_client(port, arguments, GET);
        let text = said.text();
        assert!(text.contains("HTTP/1.1 200 OK"), "{arguments:?}:\n{text}\n{}", said.stderr);
        assert!(text.contains(&format!("Peer signature type: {kind}\n")), "{arguments:?}:\n{text}");
        assert_eq!(jobs(&engine, "signed"), *remote, "{arguments:?}");
    }
}

#[test]
fn a_key_that_one_server_has_not_is_signed_with_by_the_other() {
    let vault = Vault::new(2);
    fs::remove_file(vault.servers[0].scratch.join("keys/shop-ec.pem")).expect("a key that was there");
    vault.servers[0].signal(Signal::HUP);
    holds("the key is forgotten", || vault.servers[0].metric("propylon_keyserver_keys") == 5);
    let origin = Origin::always(ANSWER);
    let engine = vault.engine(&origin, "");
    for _ in 0..20 {
        visit(engine.address("web"), &Certificates::shared().client()).expect("the other has the key");
    }
    let server = vault.servers[0].address().to_string();
    let refused = engine.metric("propylon_signer_requests_total", &[("server", &server), ("outcome", "refused")]);
    assert!(refused <= 2.0, "it is not asked again and again: {refused} times");
    assert_eq!(jobs(&engine, "signed"), 20.0);
}

#[test]
fn a_key_that_no_server_has_is_no_server_that_is_not_there() {
    let vault = Vault::new(2);
    let origin = Origin::always(ANSWER);
    let engine = vault.engine(&origin, "");
    for server in &vault.servers {
        let files = fs::read_dir(server.scratch.join("keys")).expect("a folder").flatten();
        files.for_each(|file| fs::remove_file(file.path()).expect("a key"));
        server.signal(Signal::HUP);
        holds("the keys are forgotten", || server.metric("propylon_keyserver_keys") == 0);
        let gone = format!("{} is gone, and the key", server.scratch.join("keys/shop-ec.pem").display());
        let is_warning = |line: &String| line.contains(&gone) && line.contains("warn");
        holds("the log names the file", || server.stderr().iter().any(is_warning));
    }
    visit(engine.address("web"), &Certificates::shared().client()).expect_err("nobody has the key");
    engine.metric_reaches("propylon_tls_handshake_failures_total", &[("reason", "signer-refused")], 1.0);
    assert_eq!((jobs(&engine, "refused"), jobs(&engine, "unavailable")), (1.0, 0.0));
    holds("the log says where to look", || {
        let lines = engine.stderr();
        let words = ["does not sign with the key ", "key not found", "`propylon-keyserver keys` there"];
        lines.iter().any(|line| words.iter().all(|word| line.contains(word)))
    });
    holds("and what it comes to", || says(&engine, "no key server signs with their certificate's key"));
}

/// Visits by so many threads until told to stop; how many came to an end well, and how many did not.
struct Crowd {
    stop: Arc<AtomicBool>,
    good: Arc<AtomicU64>,
    bad: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Crowd {
    fn new(size: usize, address: SocketAddr) -> Crowd {
        let (stop, good, bad) = (Arc::default(), Arc::default(), Arc::default());
        let mut crowd = Crowd { stop, good, bad, threads: Vec::new() };
        for _ in 0..size {
            let (stop, good, bad) = (Arc::clone(&crowd.stop), Arc::clone(&crowd.good), Arc::clone(&crowd.bad));
            let config = Certificates::shared().client();
            crowd.threads.push(std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let count = if visit(address, &config).is_ok() { &good } else { &bad };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        crowd
    }

    fn good(&self) -> u64 {
        self.good.load(Ordering::Relaxed)
    }

    /// Waits for so many more.
    fn goes_on(&self, count: u64) {
        let before = self.good();
        holds("visits go on", || self.good() >= before + count);
    }

    fn end(self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a visitor does not panic");
        }
        (self.good.load(Ordering::Relaxed), self.bad.load(Ordering::Relaxed))
    }
}

#[test]
fn a_key_server_that_dies_under_load_costs_no_handshake_and_is_used_again_when_it_is_back() {
    let mut vault = Vault::new(2);
    let origin = Origin::always(ANSWER);
    let engine = vault.engine(&origin, "timeout = \"5s\"");
    let addresses = vault.addresses();
    let crowd = Crowd::new(8, engine.address("web"));
    crowd.goes_on(100);
    vault.servers[0].kill();
    crowd.goes_on(200);
    vault.restart(0, addresses[0]);
    connected(&engine, 2);
    let server = addresses[0].to_string();
    let signed = || engine.metric("propylon_signer_requests_total", &[("server", &server), ("outcome", "signed")]);
    let before = signed();
    crowd.goes_on(100);
    holds("the server that is back signs", || signed() > before);
    let (good, bad) = crowd.end();
    assert_eq!(bad, 0, "of {good} visits");
    assert!(engine.stderr().iter().any(|line| line.contains("no longer connected")));
}

#[test]
fn without_any_key_server_sessions_go_on_and_new_ones_get_an_alert_in_time() {
    let mut vault = Vault::new(2);
    let origin = Origin::always(ANSWER);
    let engine = vault.engine(&origin, "timeout = \"400ms\"");
    let addresses = vault.addresses();
    let web = engine.address("web");
    let versions = [&rustls::version::TLS13, &rustls::version::TLS12];
    let returning = versions.map(|version| Arc::new(Certificates::shared().client_for(&[version])));
    for config in &returning {
        visit(web, config).expect("a full handshake");
    }
    vault.servers.iter_mut().for_each(KeyServer::kill);
    engine.metric_reaches("propylon_signer_connections", &[], 0.0);
    for config in &returning {
        visit(web, config).expect("a session goes on");
    }
    assert_eq!(engine.metric("propylon_tls_handshakes_total", &[("resumed", "true")]), 2.0);
    let started = Instant::now();
    let error = visit(web, &Certificates::shared().client()).expect_err("nobody signs").to_string();
    assert!(error.contains("InternalError"), "{error}");
    assert!(started.elapsed() >= Duration::from_millis(300), "it waited for a connection to come up");
    let reasons = [("reason", "signer-unavailable")];
    engine.metric_reaches("propylon_tls_handshake_failures_total", &reasons, 1.0);
    vault.restart(1, addresses[1]);
    connected(&engine, 1);
    visit(web, &Certificates::shared().client()).expect("it has recovered by itself");
}

#[test]
fn an_engine_starts_while_its_key_servers_are_down() {
    let mut vault = Vault::new(1);
    let origin = Origin::always(ANSWER);
    let addresses = vault.addresses();
    vault.servers[0].kill();
    let engine = Engine::start(&(simple(&[origin.address()]) + &vault.tables(&addresses, "timeout = \"20s\"")));
    holds("the log says that it cannot be reached", || {
        engine.stderr().iter().any(|line| line.contains("cannot be reached"))
    });
    // A handshake waits for a connection to come up.
    let web = engine.address("web");
    let visitor = std::thread::spawn(move || visit(web, &Certificates::shared().client()));
    engine.metric_reaches("propylon_signer_unsent", &[], 1.0);
    vault.restart(0, addresses[0]);
    visitor.join().expect("no panic").expect("the handshake went on");
}

#[test]
fn a_key_server_that_falls_silent_is_passed_over_and_costs_no_handshake() {
    let vault = Vault::new(2);
    let origin = Origin::always(ANSWER);
    let addresses = vault.addresses();
    let distance = Distance::new(addresses[0], Duration::ZERO);
    let tables = vault.tables(&[distance.address(), addresses[1]], "timeout = \"2s\"\nhedge = \"50ms\"");
    let engine = Engine::start(&(simple(&[origin.address()]) + &tables));
    connected(&engine, 2);
    let crowd = Crowd::new(4, engine.address("web"));
    crowd.goes_on(100);
    distance.swallow();
    let server = distance.address().to_string();
    let by = [("server", server.as_str())];
    holds("it is ejected", || {
        let _ = crowd.good();
        engine.metric("propylon_signer_ejected", &by) == 1.0
    });
    assert!(engine.metric("propylon_signer_hedges_total", &[]) > 0.0);
    holds("it is told with what to do", || {
        engine.stderr().iter().any(|line| line.contains("[signer-ejected]; look at the key server's log"))
    });
    // Those connections are dead, and new ones will do.
    distance.set(Duration::ZERO);
    engine.metric_reaches("propylon_signer_ejected", &by, 0.0);
    let signed = || engine.metric("propylon_signer_requests_total", &[by[0], ("outcome", "signed")]);
    let before = signed();
    holds("it signs again", || signed() > before);
    let (good, bad) = crowd.end();
    assert_eq!(bad, 0, "of {good} visits");
}

#[test]
fn a_slow_key_server_is_avoided() {
    let vault = Vault::new(2);
    let origin = Origin::always(ANSWER);
    let addresses = vault.addresses();
    let distance = Distance::new(addresses[0], Duration::from_millis(100));
    let tables = vault.tables(&[distance.address(), addresses[1]], "timeout = \"3s\"\nhedge = \"off\"");
    let engine = Engine::start(&(simple(&[origin.address()]) + &tables));
    connected(&engine, 2);
    let crowd = Crowd::new(4, engine.address("web"));
    crowd.goes_on(300);
    let (good, bad) = crowd.end();
    assert_eq!(bad, 0, "of {good} visits");
    let server = distance.address().to_string();
    let slow = engine.metric("propylon_signer_requests_total", &[("server", &server), ("outcome", "signed")]);
    assert!(slow * 10.0 < good as f64, "{slow} of {good}");
}

/// Handshakes that have been begun and wait for their signatures; what comes is not read before the end.
type Waiting = Vec<(TcpStream, rustls::ClientConnection)>;

fn waiting(address: SocketAddr, count: usize) -> Waiting {
    /// Of one source, less than a crowded engine lets in.
    const FROM_ONE: usize = 200;
    let config = Certificates::shared().client();
    let begin = |number: usize| {
        let name = "localhost".try_into().expect("a name");
        let mut tls = rustls::ClientConnection::new(Arc::clone(&config), name).expect("a client");
        let source = Ipv4Addr::new(127, 0, 1, 1 + (number / FROM_ONE) as u8);
        let mut socket = connect(address, Some(source.into())).expect("the engine takes connections");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
        tls.write_tls(&mut socket).expect("a ClientHello is sent");
        (socket, tls)
    };
    (0..count).map(begin).collect()
}

/// Those who wait come to the end of their handshakes.
fn finish(crowd: Waiting) {
    for (mut socket, mut tls) in crowd {
        while tls.is_handshaking() {
            tls.complete_io(&mut socket).expect("a handshake that comes to its end");
        }
    }
}

/// Requests on a connection that is open, one after the other; how long each took, in order of length.
fn asked(client: &mut Client, goes_on: impl Fn(usize) -> bool) -> Vec<Duration> {
    let mut times = Vec::new();
    while goes_on(times.len()) {
        let began = Instant::now();
        assert_eq!(client.get("/").status, 200);
        times.push(began.elapsed());
    }
    times.sort_unstable();
    times
}

/// What is asserted is that nobody fails; what it costs the others is printed, for whoever runs this to see.
#[test]
fn five_thousand_handshakes_that_wait_for_a_key_server_all_come_to_their_end_and_others_are_served() {
    const CROWD: usize = 5_000;
    const ASKED: usize = 400;
    let vault = Vault::new(1);
    let origin = Origin::always(ANSWER);
    let distance = Distance::new(vault.addresses()[0], Duration::from_millis(25));
    let tables = vault.tables(&[distance.address()], "timeout = \"60s\"\nhedge = \"off\"");
    let process = "[process]\nworkers = 1\nhandshakes = { queue_wait = \"60s\" }\n";
    let patient = with(&[origin.address()], "timeouts = { handshake = \"120s\" }", "");
    let engine = Engine::start(&(process.to_owned() + &patient + &tables));
    engine.metric_reaches("propylon_signer_connections", &[], 2.0);
    let web = engine.address("web");
    let mut steady = Client::tls(web);
    let alone = asked(&mut steady, |count| count < ASKED);
    let before = engine.rss();
    // None is signed for before all have begun.
    distance.hold();
    let crowd = waiting(web, CROWD);
    let parked = || engine.metric("propylon_tls_parked_handshakes", &[]);
    eventually(Duration::from_secs(60), "all of them wait", || (parked() == CROWD as f64).then_some(()));
    let beside = asked(&mut steady, |count| count < ASKED);
    let each = engine.rss().saturating_sub(before) / CROWD as u64;
    // Their signatures come, each after its way of 25 ms, while more are asked for.
    let (meanwhile, took) = std::thread::scope(|scope| {
        let began = Instant::now();
        distance.set(Duration::from_millis(25));
        let crowd = scope.spawn(move || {
            finish(crowd);
            began.elapsed()
        });
        let meanwhile = asked(&mut steady, |count| !crowd.is_finished() && count < 1_000_000);
        (meanwhile, crowd.join().expect("all handshakes come to their end"))
    });
    for (what, times) in
        [("alone", &alone), ("beside those who wait", &beside), ("while they are signed for", &meanwhile)]
    {
        let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default();
        eprintln!("requests {what}: p50 {:?}, p99 {:?}, {} of them", at(50), at(99), times.len());
    }
    eprintln!("{CROWD} handshakes: {each} bytes each while they waited, all signed for within {took:?}");
    assert_eq!(jobs(&engine, "signed"), (CROWD + 1) as f64);
    engine.metric_reaches("propylon_tls_parked_handshakes", &[], 0.0);
}

#[test]
fn a_thousand_handshakes_that_wait_for_a_server_far_away_hold_nobody_up() {
    let vault = Vault::new(1);
    let origin = Origin::always(ANSWER);
    let distance = Distance::new(vault.addresses()[0], Duration::from_millis(25));
    let tables = vault.tables(&[distance.address()], "timeout = \"60s\"\nhedge = \"off\"");
    // Nobody's wait is over before all have begun, however busy the machine is.
    let patient = with(&[origin.address()], "timeouts = { handshake = \"120s\" }", "");
    let process = "[process]\nworkers = 1\nhandshakes = { queue_wait = \"60s\" }\n";
    let engine = Engine::start(&(process.to_owned() + &patient + &tables));
    connected(&engine, 1);
    let web = engine.address("web");
    let mut steady = Client::tls(web);
    assert_eq!(steady.get("/").status, 200);
    let before = engine.rss();
    // What is far away answers when it is told to, so all wait for it however long they take to begin.
    distance.hold();
    let crowd = waiting(web, 1_000);
    let parked = || engine.metric("propylon_tls_parked_handshakes", &[]);
    eventually(Duration::from_secs(60), "all of them wait", || (parked() == 1_000.0).then_some(()));
    for _ in 0..200 {
        assert_eq!(steady.get("/").status, 200);
    }
    assert_eq!(parked(), 1_000.0, "requests went on beside them");
    let each = engine.rss().saturating_sub(before) / 1_000;
    assert!(each < 100_000, "{each} bytes for each that waits");
    let files = fs::read_dir(format!("/proc/{}/fd", engine.pid())).expect("a running engine").count();
    assert!(files < 1_100, "{files} files");
    distance.set(Duration::from_millis(25));
    finish(crowd);
    assert_eq!(jobs(&engine, "signed"), 1_001.0);
    engine.metric_reaches("propylon_tls_parked_handshakes", &[], 0.0);
}

#[test]
fn clients_that_go_away_while_they_wait_take_their_jobs_along() {
    let vault = Vault::new(1);
    let origin = Origin::always(ANSWER);
    let distance = Distance::new(vault.addresses()[0], Duration::ZERO);
    let tables = vault.tables(&[distance.address()], "timeout = \"20s\"\nhedge = \"off\"");
    let engine = Engine::start(&(simple(&[origin.address()]) + &tables));
    connected(&engine, 1);
    distance.swallow();
    let crowd = waiting(engine.address("web"), 50);
    engine.metric_reaches("propylon_tls_parked_handshakes", &[], 50.0);
    drop(crowd);
    engine.metric_reaches("propylon_signer_jobs_total", &[("outcome", "cancelled")], 50.0);
    engine.metric_reaches("propylon_tls_parked_handshakes", &[], 0.0);
}

#[test]
fn a_handshake_without_an_answer_gets_an_alert_at_the_deadline() {
    let vault = Vault::new(1);
    let origin = Origin::always(ANSWER);
    let distance = Distance::new(vault.addresses()[0], Duration::ZERO);
    let tables = vault.tables(&[distance.address()], "timeout = \"300ms\"");
    let engine = Engine::start(&(simple(&[origin.address()]) + &tables));
    connected(&engine, 1);
    distance.swallow();
    let started = Instant::now();
    let error = visit(engine.address("web"), &Certificates::shared().client()).expect_err("nobody signs").to_string();
    assert!(error.contains("InternalError"), "{error}");
    assert!(started.elapsed() >= Duration::from_millis(300));
    let reasons = [("reason", "signer-timeout")];
    engine.metric_reaches("propylon_tls_handshake_failures_total", &reasons, 1.0);
}

#[test]
fn a_key_server_that_cannot_be_trusted_is_not_used_and_the_log_says_why() {
    let vault = Vault::new(1);
    let origin = Origin::always(ANSWER);
    let addresses = vault.addresses();
    let cases = [
        (
            vault.tables(&addresses, "").replace("server_name = \"localhost\"", "server_name = \"other.test\""),
            "not for other.test",
        ),
        (vault.tables(&addresses, "").replace("/ca.pem", "/shop-ec.crt"), "leads to no authority that is trusted"),
        (vault.tables(&addresses, "").replace("/engine.pem", "/stranger.pem"), "UnknownCA"),
    ];
    for (tables, why) in cases {
        let engine = Engine::start(&(simple(&[origin.address()]) + &tables));
        holds(why, || engine.stderr().iter().any(|line| line.contains("cannot be reached") && line.contains(why)));
        assert_eq!(engine.metric("propylon_signer_connections", &[]), 0.0);
    }
}

#[test]
fn check_says_what_is_wrong_with_a_signer() {
    let vault = Vault::new(1);
    let whole = simple(&["127.0.0.1:1".parse().expect("an address")]) + &vault.tables(&vault.addresses(), "");
    let scratch = Scratch::new();
    let check = |text: &str| {
        let path = scratch.write("propylon.toml", text);
        let mut command = Command::new(propylon_e2e::binaries::propylon());
        command.arg("check").arg("-c").arg(path);
        run(command, b"", Duration::from_secs(20))
    };
    check(&whole).ok();
    let without = whole.replace("signer = \"vault\"\n", "");
    assert!(check(&without).stderr.contains("there is no private key in this file"), "{}", check(&without).stderr);
    let keyless = whole.replace("engine.pem", "shop-ec.crt");
    assert!(check(&keyless).stderr.contains("there is no private key in this file"), "{}", check(&keyless).stderr);
    let absent = whole.replace("/ca.pem", "/nowhere.pem");
    assert!(check(&absent).stderr.contains("there is no such file"), "{}", check(&absent).stderr);
}

#[test]
fn a_signer_that_changes_is_another_and_no_handshake_fails() {
    let vault = Vault::new(2);
    let origin = Origin::always(ANSWER);
    let addresses = vault.addresses();
    let text = |addresses: &[SocketAddr], timeout: &str| {
        with(&[origin.address()], "timeouts = { handshake = \"1s\" }", "")
            + &vault.tables(addresses, &format!("timeout = \"{timeout}\""))
    };
    let engine = Engine::start(&text(&addresses[..1], "900ms"));
    connected(&engine, 1);
    let address = engine.address("web");
    let (stop, served) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (stop, served) = (&stop, &served);
            scope.spawn(move || {
                let config = Certificates::shared().client();
                while !stop.load(Ordering::Relaxed) {
                    visit(address, &config).expect("no handshake fails");
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 0..6 {
            let which = round % 2;
            engine.rewrite(&text(&addresses[which..=which], if round % 3 == 0 { "800ms" } else { "900ms" }));
            let said = engine.reload();
            assert!(said.contains("in effect"), "{said}");
            let before = served.load(Ordering::Relaxed);
            holds("handshakes go on", || served.load(Ordering::Relaxed) > before + 4);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(jobs(&engine, "unavailable") + jobs(&engine, "timeout") + jobs(&engine, "refused"), 0.0);
    // The last one's two links are left, and the key servers see the same.
    connected(&engine, 1);
    holds("the links of earlier ones have ended", || {
        vault.servers.iter().map(|server| server.metric("propylon_keyserver_connections")).sum::<u64>() == 2
    });
}

/// Threads of the engine by this name.
fn threads(engine: &Engine, name: &str) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", engine.pid())).expect("a running engine");
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|known| known.trim() == name).count()
}

#[test]
fn what_is_kept_of_signers_is_bounded_by_what_lives_however_often_they_change() {
    let vault = Vault::new(1);
    let origin = Origin::always(ANSWER);
    let address = vault.addresses()[0];
    // A name, which is looked up again for as long as anybody has the signer.
    let text = |generation: usize| {
        with(&[origin.address()], "timeouts = { handshake = \"1s\" }", "")
            + &vault
                .tables(&[address], &format!("timeout = \"{}ms\"", 500 + generation))
                .replace(&address.to_string(), &format!("localhost:{}", address.port()))
    };
    let engine = Engine::start(&text(0));
    connected(&engine, 1);
    let config = Certificates::shared().client();
    for generation in 1..=12 {
        engine.rewrite(&text(generation));
        assert!(engine.reload().contains("the configuration is in effect"));
        visit(engine.address("web"), &config).expect("a handshake by the new signer");
        // Its earlier ones are kept for the handshakes that may wait for them, and no longer.
        if generation % 4 == 0 {
            holds("the earlier ones have ended", || vault.servers[0].metric("propylon_keyserver_connections") == 2);
        }
    }
    assert_eq!(engine.metrics().matches("propylon_signer_retries_total{").count(), 1);
    holds("only names of the one that lives are looked up", || threads(&engine, "resolver") == 1);
    assert_eq!(jobs(&engine, "unavailable") + jobs(&engine, "timeout") + jobs(&engine, "refused"), 0.0);
}
