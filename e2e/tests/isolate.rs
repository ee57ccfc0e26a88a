//! `keys.isolate`: the process that faces the network has no private key, and goes on as if it had.

use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use propylon_e2e::admin::{TOKEN, ask_admin, snapshot, with_state};
use propylon_e2e::certificates::{leaf, leaf_of};
use propylon_e2e::engine::complete;
use propylon_e2e::isolation::{attempt, child, is_stopped, key_process, supervisor_beside, traces};
use propylon_e2e::lineage::{How, Lineage, is_alive};
use propylon_e2e::load::{Load, Manner};
use propylon_e2e::program::{run, signal};
use propylon_e2e::wait::{WAIT_MAX, eventually, holds};
use propylon_e2e::{Certificates, Client, Engine, Origin, Response, Scratch, binaries, memory};
use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256, SignatureAlgorithm};
use rustix::process::{Signal, geteuid};
use rustls::version::{TLS12, TLS13};

const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Certificates and keys in a folder of their own: one file with both for P-256, two files for RSA, a folder for P-384.
struct Keys {
    scratch: Scratch,
    /// Every key that has ever been there.
    pems: Vec<(String, String)>,
}

impl Keys {
    fn new() -> Keys {
        let mut keys = Keys { scratch: Scratch::new(), pems: Vec::new() };
        fs::create_dir(keys.scratch.join("folder")).expect("a folder");
        keys.renew();
        keys
    }

    /// New ones of each kind.
    fn renew(&mut self) {
        let p256 = self.issue("P-256", &PKCS_ECDSA_P256_SHA256);
        self.replace("one.pem", &p256);
        let rsa = self.issue("RSA", &PKCS_RSA_SHA256);
        let (chain, key) = rsa.split_at(rsa.find("-----BEGIN PRIVATE KEY-----").expect("a key"));
        self.replace("chain.pem", chain);
        self.replace("key.pem", key);
        let p384 = self.issue("P-384", &PKCS_ECDSA_P384_SHA384);
        self.replace("folder/a.pem", &p384);
    }

    fn issue(&mut self, name: &str, algorithm: &'static SignatureAlgorithm) -> String {
        let pem = Certificates::shared().issue(&["localhost"], algorithm);
        self.pems.push((name.to_owned(), pem.clone()));
        pem
    }

    fn replace(&self, name: &str, text: &str) {
        let new = self.scratch.write("new", text);
        fs::rename(new, self.scratch.join(name)).expect("a rename within a folder");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    fn profile(&self) -> String {
        let path = |name| format!("{:?}", self.path(name));
        format!(
            "[tls.public]\ncertificates = [{}, {{ chain = {}, key = {} }}, {}]\n",
            path("one.pem"),
            path("chain.pem"),
            path("key.pem"),
            path("folder"),
        )
    }

    /// What of them may be in no memory: their numbers as files have them and as they are computed with, and their base64.
    fn traces(&self) -> Vec<(String, Vec<u8>)> {
        self.pems.iter().flat_map(|(name, pem)| traces(name, pem)).collect()
    }
}

const ISOLATE: &str = "[keys]\nisolate = true\n";

fn config(origin: &Origin, keys: &Keys, more: &str) -> String {
    format!(
        "{more}\n[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n\
         [backend.app]\nservers = [\"{}\"]\n[[route]]\nbackend = \"app\"\n{}",
        origin.address(),
        keys.profile()
    )
}

/// A handshake and a request by each version and with each kind of key.
#[track_caller]
fn handshakes(engine: &Engine) {
    for version in [&TLS12, &TLS13] {
        for scheme in ["ECDSA+SHA256", "ECDSA+SHA384", "RSA-PSS+SHA256"] {
            let flag = if version.version == TLS12.version { "-tls1_2" } else { "-tls1_3" };
            let port = engine.address("web").port();
            let mut command = Command::new("openssl");
            command.args(["s_client", "-connect", &format!("localhost:{port}"), flag, "-sigalgs", scheme, "-quiet"]);
            command.args(["-servername", "localhost", "-ign_eof"]);
            let said = run(command, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", WAIT_MAX);
            let log = || engine.stderr().join("\n");
            assert!(said.text().contains("200 OK"), "{flag} {scheme}: {}\n{}\n{}", said.text(), said.stderr, log());
        }
    }
}

#[track_caller]
fn has_none(what: &str, pid: u32, keys: &Keys) {
    let left = memory::found(pid, &keys.traces());
    assert!(left.is_empty(), "{what}: {left:#?}");
}

#[test]
fn no_key_is_in_the_memory_of_an_engine_whose_keys_are_isolated() {
    if !memory::may_look() {
        return;
    }
    let origin = Origin::always(ANSWER);
    let mut keys = Keys::new();
    let state = Scratch::new();
    let (state_line, token) = with_state(&state);
    let process = format!("[process]\nworkers = 2\n{state_line}\n[admin]\nbind = \"127.0.0.1:0\"\n{token}\n");
    // The search finds what there is.
    let plain = Engine::start(&config(&origin, &keys, ""));
    handshakes(&plain);
    let found = memory::found(plain.pid(), &keys.traces());
    for key in ["P-256", "P-384", "RSA"] {
        assert!(found.iter().any(|place| place.starts_with(key)), "{key} is in an engine that has it: {found:#?}");
    }
    drop(plain);

    let engine = Engine::start(&config(&origin, &keys, &format!("{process}{ISOLATE}")));
    has_none("after the start", engine.pid(), &keys);
    handshakes(&engine);
    has_none("after handshakes", engine.pid(), &keys);
    let holder = key_process(engine.pid());
    let found = memory::found(holder, &keys.traces());
    assert!(found.len() >= 3, "the key process has them: {found:#?}");
    has_none("the supervisor", child(engine.pid(), "key-supervisor").expect("one"), &keys);
    keys.renew();
    engine.reload();
    handshakes(&engine);
    has_none("after a rotation", engine.pid(), &keys);
    let sent = keys.issue("sent", &PKCS_RSA_SHA256);
    let fields = format!("Authorization: Bearer {TOKEN}\r\nContent-Type: application/x-pem-file\r\n");
    let told = ask_admin(&engine, "PUT", "/v1/certificates/public/sent", &fields, &sent);
    assert_eq!(told.status, 409, "{}", told.text());
    assert!(told.text().contains("keys.isolate"), "{}", told.text());
    // What was freed a moment ago may be on its way to be.
    let started = Instant::now();
    while !memory::found(engine.pid(), &keys.traces()).is_empty() {
        assert!(started.elapsed() < WAIT_MAX, "after an upload: {:#?}", memory::found(engine.pid(), &keys.traces()));
    }
    Client::tls_with(engine.address("web"), Certificates::shared().client());
    assert_eq!(snapshot(&engine)["keys"]["isolated"], true);
    assert_eq!(engine.metric("propylon_key_process_restarts_total", &[]), 0.0);
}

#[test]
fn an_engine_cannot_open_the_files_of_its_keys_and_can_all_others() {
    let (origin, keys, scratch) = (Origin::always(ANSWER), Keys::new(), Scratch::new());
    let path = scratch.write("propylon.toml", complete(&config(&origin, &keys, ISOLATE)));
    let off = scratch.write("off.toml", complete(&config(&origin, &keys, "")));
    let shown: serde_json::Value = serde_json::from_str(&attempt(&path, &["show"]).ok().text()).expect("JSON");
    if shown["landlock"]["state"] != "enforced" {
        return eprintln!("skipped: Landlock is {shown}");
    }
    for name in ["one.pem", "key.pem", "chain.pem", "folder/a.pem"] {
        let file = keys.path(name).display().to_string();
        let said = attempt(&path, &["read", &file]);
        assert!(said.text().contains("denied"), "{file}: {}", said.text());
        attempt(&off, &["read", &file]).ok();
    }
    for file in [path.to_str().expect("text"), "/etc/hosts"] {
        attempt(&path, &["read", file]).ok();
    }
}

#[test]
fn handshakes_wait_for_a_key_process_that_is_started_again() {
    let (origin, keys) = (Origin::always(ANSWER), Keys::new());
    let process = "[process]\nworkers = 2\n";
    let engine = Engine::start(&config(&origin, &keys, &format!("{process}{ISOLATE}")));
    let client = Certificates::shared().client();
    let mut killed = Vec::new();
    for round in 1..=3 {
        let holder = key_process(engine.pid());
        killed.push(holder);
        signal(holder, Signal::KILL);
        // Some of them meet it dying, some nobody, some the next one.
        for _ in 0..20 {
            let mut visitor = Client::try_tls_with(engine.address("web"), Arc::clone(&client)).expect("a handshake");
            assert_eq!(visitor.get("/").status, 200);
        }
        engine.metric_reaches("propylon_key_process_restarts_total", &[], f64::from(round));
    }
    assert!(!killed.contains(&key_process(engine.pid())));
    let count = |what: &str| engine.stderr().iter().filter(|line| line.contains(what)).count();
    assert_eq!(count("the key process has ended: signal: 9"), 3);
    // The end of it.
    engine.metric_reaches("propylon_signer_connections", &[("signer", "keys.isolate")], 2.0);
    assert!(count("key process is connected") > 0);
    holds("the dashboard says so", || {
        let status = ask_admin(&engine, "GET", "/status.json", "", "").text();
        status.contains("the key process has ended and was started again")
    });
}

/// Stops the key process of an engine, and first the supervisor, so that nobody is put in its place. Returns both.
#[track_caller]
fn stop_both(engine: u32) -> [u32; 2] {
    let (supervisor, holder) = (child(engine, "key-supervisor").expect("one"), key_process(engine));
    for pid in [supervisor, holder] {
        signal(pid, Signal::STOP);
        holds("all of it has stopped", || is_stopped(pid));
    }
    [supervisor, holder]
}

#[test]
fn a_key_process_that_hangs_lets_handshakes_fail_in_time_and_is_asked_again() {
    let (origin, keys) = (Origin::always(ANSWER), Keys::new());
    let engine = Engine::start(&config(&origin, &keys, ISOLATE));
    let client = Certificates::shared().client();
    let visit = || Client::try_tls_with(engine.address("web"), Arc::clone(&client));
    visit().expect("a handshake");
    let both = stop_both(engine.pid());
    // Sooner than this client would give up.
    let error = visit().err().expect("nobody signs");
    assert!(!matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    engine.metric_reaches("propylon_signer_jobs_total", &[("outcome", "timeout")], 1.0);
    holds("it is told by its name", || {
        let status = ask_admin(&engine, "GET", "/status.json", "", "").text();
        assert!(!status.contains("no key server has signed"), "{status}");
        status.contains("the key process has not signed in time")
    });
    // As after a machine's sleep: the time that both have missed is nobody's fault.
    both.into_iter().for_each(|pid| signal(pid, Signal::CONT));
    holds("handshakes go on", || visit().is_ok());
    assert_eq!((key_process(engine.pid()), engine.metric("propylon_key_process_restarts_total", &[])), (both[1], 0.0));
}

#[test]
fn a_key_process_that_goes_on_hanging_is_replaced() {
    let (origin, keys) = (Origin::always(ANSWER), Keys::new());
    let engine = Engine::start(&config(&origin, &keys, ISOLATE));
    let client = Certificates::shared().client();
    let visit = || Client::try_tls_with(engine.address("web"), Arc::clone(&client));
    visit().expect("a handshake");
    let holder = key_process(engine.pid());
    signal(holder, Signal::STOP);
    engine.metric_reaches("propylon_key_process_restarts_total", &[], 1.0);
    assert!(!is_alive(holder));
    holds("handshakes go on", || visit().is_ok());
    let told = engine.stderr();
    assert!(told.iter().any(|line| line.contains("it did not go on for 7 s and was ended (signal: 9")), "{told:#?}");
    // What was asked about files meanwhile is asked again of the next one.
    let next = key_process(engine.pid());
    signal(next, Signal::STOP);
    holds("all of it has stopped", || is_stopped(next) || !is_alive(next));
    engine.reload();
    engine.metric_reaches("propylon_key_process_restarts_total", &[], 2.0);
    assert!(!engine.stderr().iter().any(|line| line.contains("stays in use")), "{:#?}", engine.stderr());
}

#[test]
fn whoever_looks_at_an_engine_does_not_wait_for_a_key_process_that_hangs() {
    let (origin, keys, state, store) = (Origin::always(ANSWER), Keys::new(), Scratch::new(), Scratch::new());
    let (state_line, token) = with_state(&state);
    let process = format!(
        "[process]\n{state_line}\n[admin]\nbind = \"127.0.0.1:0\"\n{token}\n{ISOLATE}store = {:?}\n",
        store.join("keys")
    );
    let engine = Engine::start(&config(&origin, &keys, &process));
    let sees = || {
        for path in ["/status.json", "/metrics", "/v1/snapshot"] {
            let seen = ask_admin(&engine, "GET", path, "", "");
            assert_eq!(seen.status, 200, "{path}: {}", seen.text());
        }
    };
    sees();
    let both = stop_both(engine.pid());
    let count = |what: &str| engine.stderr().iter().filter(|line| line.contains(what)).count();
    signal(engine.pid(), Signal::HUP);
    holds("it begins", || count("SIGHUP: reading the configuration") == 1);
    sees();
    assert_eq!((count("generation"), count("stay")), (0, 0), "it waits still: {:#?}", engine.stderr());
    holds("it ends", || count("stay") > 0);
    both.into_iter().for_each(|pid| signal(pid, Signal::CONT));
    // For a while it is not asked again.
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    holds("it is asked again", || {
        !ask_admin(&engine, "POST", "/v1/reload", &token, "").text().contains("does not answer")
    });
    // An upload waits as well.
    let both = stop_both(engine.pid());
    let sent = Certificates::shared().issue(&["localhost"], &PKCS_ECDSA_P256_SHA256);
    let fields = format!("Authorization: Bearer {TOKEN}\r\nContent-Type: application/x-pem-file\r\n");
    let mut looks = 0;
    std::thread::scope(|scope| {
        let put = scope.spawn(|| ask_admin(&engine, "PUT", "/v1/certificates/public/sent", &fields, &sent));
        while !put.is_finished() {
            sees();
            looks += 1;
        }
        let told = put.join().expect("no panic");
        assert!(told.status == 500 && told.text().contains("does not answer"), "{} {}", told.status, told.text());
    });
    assert!(looks > 3, "{looks}");
    both.into_iter().for_each(|pid| signal(pid, Signal::CONT));
}

#[test]
fn where_nobody_starts_a_key_process_any_more_the_engine_says_so_and_ends_as_ever() {
    let (origin, keys) = (Origin::always(ANSWER), Keys::new());
    let engine = Engine::start(&config(&origin, &keys, ISOLATE));
    let (supervisor, holder) = (child(engine.pid(), "key-supervisor").expect("one"), key_process(engine.pid()));
    for (pid, name) in [(supervisor, "propylon-keysup\n"), (holder, "propylon-keys\n")] {
        assert_eq!(fs::read_to_string(format!("/proc/{pid}/comm")).expect("it lives"), name);
    }
    signal(supervisor, Signal::KILL);
    holds("the key process ends with it", || !is_alive(holder));
    engine.metric_reaches("propylon_key_process_lost", &[], 1.0);
    holds("it is told", || engine.stderr().iter().any(|line| line.contains("no key process will be there any more")));
    let client = Certificates::shared().client();
    assert!(Client::try_tls_with(engine.address("web"), client).is_err());
    // The doctor asks the engine.
    let path = engine.folder().join("doctor.toml");
    let text = fs::read_to_string(engine.folder().join("propylon.toml")).expect("our own");
    let (before, after) = text.split_once("[admin]\nbind = \"127.0.0.1:0\"").expect("its admin address");
    fs::write(&path, format!("{before}[admin]\nbind = \"{}\"{after}", engine.admin())).expect("our own folder");
    let is_told = || {
        let said = Command::new(binaries::propylon()).args(["doctor", "-c"]).arg(&path).output().expect("it runs");
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        text.lines().any(|line| line.starts_with("bad ") && line.contains("private keys"))
    };
    holds("the doctor says so", is_told);
}

#[test]
fn with_the_engine_its_key_process_ends_however_that_ends() {
    for how in [Signal::TERM, Signal::KILL] {
        let (origin, keys) = (Origin::always(ANSWER), Keys::new());
        let mut engine = Engine::start(&config(&origin, &keys, ISOLATE));
        let (supervisor, holder) = (child(engine.pid(), "key-supervisor").expect("one"), key_process(engine.pid()));
        // As a terminal, or a service manager, sends it to all of them.
        signal(supervisor, Signal::TERM);
        signal(holder, Signal::INT);
        handshakes(&engine);
        engine.signal(how);
        engine.wait(Duration::from_secs(20));
        holds("they have ended", || !is_alive(holder) && !is_alive(supervisor));
    }
}

#[test]
fn a_bad_key_changes_nothing_and_is_told_with_its_place() {
    let (origin, mut keys) = (Origin::always(ANSWER), Keys::new());
    let engine = Engine::start(&config(&origin, &keys, ISOLATE));
    let good = fs::read_to_string(keys.path("one.pem")).expect("a good file");
    let other = keys.issue("other", &PKCS_ECDSA_P256_SHA256);
    let chain = &good[..good.find("-----BEGIN PRIVATE KEY-----").expect("a key")];
    let other_key = &other[other.find("-----BEGIN PRIVATE KEY-----").expect("a key")..];
    for (bad, told) in [
        (good.replace("-----END PRIVATE KEY-----\n", ""), "not well-formed PEM"),
        (format!("{chain}{other_key}"), "the private key does not belong to the certificate"),
        (chain.to_owned(), "there is no private key in this file"),
    ] {
        keys.replace("one.pem", &bad);
        let said = engine.reload();
        let log = engine.stderr().join("\n");
        assert!(log.contains(told) && log.contains("one.pem"), "{told}: {said}\n{log}");
        assert!(!log.contains("the sandbox of this process"), "another process reads it, and did: {log}");
        handshakes(&engine);
    }
    keys.replace("one.pem", &good);
    engine.reload();
    handshakes(&engine);
}

#[test]
fn a_successor_has_a_key_process_of_its_own() {
    let (origin, keys) = (Origin::always(ANSWER), Keys::new());
    let mut lineage = Lineage::start("", &config(&origin, &keys, ISOLATE));
    for how in [How::Signal, How::Run] {
        let before = lineage.pid();
        let holder = key_process(before);
        let load = Load::start(Manner::Tls, lineage.address("web"), 2);
        holds("clients are there", || load.requests() > 4);
        lineage.upgrade(how);
        let after = key_process(lineage.pid());
        assert_ne!(holder, after);
        let (_, counted) = load.finish();
        assert!(counted.failures.is_empty(), "{:#?}", counted.failures);
        lineage.gone(before);
        holds("the one before has ended with its engine", || !is_alive(holder));
        assert!(is_alive(after));
    }
}

/// The supervisor of each successor is killed, each time a little later after its key process has come.
#[test]
fn a_successor_that_has_no_key_process_does_not_take_over() {
    // On a busy machine whoever looks for the supervisor may come too late.
    let refused = (0..5).any(|_| refusals_of_successors_without_key_process() > 0);
    assert!(refused, "no successor was without its key process in time");
}

fn refusals_of_successors_without_key_process() -> u32 {
    let (origin, keys) = (Origin::always(ANSWER), Keys::new());
    let lineage = Lineage::start("", &config(&origin, &keys, ISOLATE));
    let before = lineage.pid();
    let mut refused = 0;
    for attempt in 0..20 {
        let (over, since) = (AtomicBool::new(false), lineage.said().len());
        let said = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    if let Some(supervisor) = supervisor_beside(before, &lineage.config())
                        && child(supervisor, "key-process").is_some()
                    {
                        // No state shows whether the files have been read that it is asked for before it is needed.
                        std::thread::sleep(Duration::from_millis(attempt * 4));
                        return signal(supervisor, Signal::KILL);
                    }
                }
            });
            let said = lineage.command(&["upgrade"]);
            over.store(true, Ordering::SeqCst);
            said
        });
        // It may be killed behind that moment, and before the successor serves.
        let log = lineage.said()[since..].join("\n");
        let had = log.find("the key process answers every worker").is_some_and(|answered| {
            log.find("no key process will be there any more").is_none_or(|lost| answered < lost)
        });
        assert!(had || !log.contains(": this process serves; "), "it took over without a key process: {log}");
        if said.status.success() {
            // It had its key process when it took over.
            lineage.says(" serves from here on");
            break;
        }
        refused += 1;
        assert_eq!(Client::tls(lineage.address("web")).get("/").status, 200, "the process before serves on");
    }
    refused
}

fn check(scratch: &Scratch, config: &str) -> String {
    let path = scratch.write("check.toml", complete(config));
    let mut command = Command::new(binaries::propylon());
    command.arg("check").arg("-c").arg(path);
    let said = run(command, b"", WAIT_MAX);
    said.text() + &said.stderr
}

#[test]
fn check_says_which_keys_the_account_that_serves_cannot_read_and_which_key_lies_among_authorities() {
    let (origin, keys, scratch) = (Origin::always(ANSWER), Keys::new(), Scratch::new());
    let user = "[process]\nuser = \"nobody\"\n";
    let said = check(&scratch, &config(&origin, &keys, &format!("{user}{ISOLATE}")));
    // The scratch folder is this account's alone, and the first of them that stands in the way.
    assert!(said.contains("is not for nobody") && said.contains("warning"), "{said}");
    let said = check(&scratch, &config(&origin, &keys, user));
    assert!(!said.contains("is not for nobody"), "{said}");
    let ca = scratch.write("ca.pem", Certificates::shared().issue(&["authority.test"], &PKCS_ECDSA_P256_SHA256));
    let trusts = |more: &str| {
        let profile = format!("client_auth = {{ mode = \"optional\", ca = {ca:?} }}\n");
        config(&origin, &keys, more) + &profile
    };
    let line = |said: &str| {
        let found = said.lines().find(|line| line.contains("a private key beside the authorities"));
        found.unwrap_or_else(|| panic!("{said}")).to_owned()
    };
    let (off, on) = (line(&check(&scratch, &trusts(""))), line(&check(&scratch, &trusts(ISOLATE))));
    assert!(off.contains("warning: ") && !on.contains("warning: "), "{off}\n{on}");
}

#[test]
fn a_file_in_a_folder_above_keys_is_warned_of_with_a_cure_that_helps() {
    let (origin, folder) = (Origin::always(ANSWER), Scratch::new());
    for name in ["keys", "admin", "state"] {
        fs::create_dir(folder.join(name)).expect("a folder");
    }
    folder.write("keys/a.pem", Certificates::shared().issue(&["localhost"], &PKCS_ECDSA_P256_SHA256));
    let text = |token: &str| {
        folder.write(token, TOKEN);
        format!(
            "[process]\nstate = {:?}\n[admin]\nbind = \"127.0.0.1:0\"\ntoken_file = {:?}\n{ISOLATE}\
             [listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n[backend.app]\nservers = [\"{}\"]\n\
             [[route]]\nbackend = \"app\"\n[tls.public]\ncertificates = [{:?}]\n",
            folder.join("state"),
            folder.join(token),
            origin.address(),
            folder.join("keys/a.pem")
        )
    };
    let other = "another-token-than-the-one-before-0123456789";
    let try_other = |engine: &Engine, token: &str| {
        fs::rename(folder.write("new", other), folder.join(token)).expect("a rename");
        ask_admin(engine, "POST", "/v1/reload", &format!("Authorization: Bearer {other}\r\n"), "")
    };
    let above = text("token");
    let said = check(&folder, &above);
    let cure =
        format!("put it in a folder beside {}", fs::canonicalize(folder.join("keys")).expect("it is there").display());
    assert!(said.contains(&cure) && !said.contains("put keys in a folder of their own"), "{said}");
    let engine = Engine::start(&above);
    if snapshot(&engine)["sandbox"]["landlock"]["state"] == "enforced" {
        let told = try_other(&engine, "token");
        assert_eq!(told.status, 500, "{}", told.text());
        holds("the log has the cure", || engine.stderr().iter().any(|line| line.contains(&cure)));
    }
    drop(engine);
    let beside = text("admin/token");
    let said = check(&folder, &beside);
    assert!(!said.contains("once it is replaced"), "{said}");
    let engine = Engine::start(&beside);
    let told = try_other(&engine, "admin/token");
    assert_eq!(told.status, 200, "{}", told.text());
}

#[test]
fn the_account_that_serves_has_to_be_able_to_read_the_keys_and_cannot_look_into_the_key_process() {
    if !geteuid().is_root() {
        return eprintln!("only root can start a process that becomes another account: nothing was tried");
    }
    const NOBODY: u32 = 65_534;
    let (origin, keys) = (Origin::always(ANSWER), Keys::new());
    let text = config(&origin, &keys, &format!("[process]\nworkers = 1\nuser = \"nobody\"\n{ISOLATE}"));
    let mut refused = Engine::spawn(&text);
    let end = refused.wait(Duration::from_secs(20));
    assert_eq!(end.status.code(), Some(1));
    let log = end.stderr.join("\n");
    assert!(log.contains("the key process may not read this file") && log.contains("one.pem"), "{log}");
    for name in ["one.pem", "chain.pem", "key.pem", "folder/a.pem"] {
        chown(keys.path(name), Some(NOBODY), None).expect("our own file");
    }
    let engine = Engine::start(&text);
    handshakes(&engine);
    let holder = key_process(engine.pid());
    signal(holder, Signal::KILL);
    handshakes(&engine);
    let holder = key_process(engine.pid());
    for file in ["mem", "maps", "environ"] {
        let mut command = Command::new("cat");
        command.arg(format!("/proc/{holder}/{file}")).uid(NOBODY).gid(NOBODY);
        assert!(run(command, b"", WAIT_MAX).stderr.contains("Permission denied"), "{file}");
    }
}

#[test]
fn a_key_process_has_no_files_of_its_engine_and_no_sockets_but_to_it() {
    let (origin, keys) = (Origin::always(ANSWER), Keys::new());
    let given = keys.scratch.write("given", "by whoever has started the engine");
    let mut command = Command::new("sh");
    command.args(["-c", "exec 7<\"$1\"; shift; exec \"$0\" run \"$@\""]);
    command.arg(binaries::propylon()).arg(&given);
    let lineage = Lineage::start_by(command, "", &config(&origin, &keys, ISOLATE));
    let files = |pid: u32| -> Vec<PathBuf> {
        let all = fs::read_dir(format!("/proc/{pid}/fd")).expect("its files").flatten();
        all.filter_map(|entry| fs::read_link(entry.path()).ok()).collect()
    };
    assert!(files(lineage.pid()).contains(&given), "the engine has it");
    let supervisor = child(lineage.pid(), "key-supervisor").expect("one");
    let sockets = fs::read_to_string("/proc/net/tcp").expect("sockets");
    let is_tcp = |file: &PathBuf| {
        let inode = file.to_str().and_then(|name| name.strip_prefix("socket:[")?.strip_suffix(']').map(str::to_owned));
        inode.is_some_and(|inode| sockets.lines().any(|line| line.split_whitespace().nth(9) == Some(&inode)))
    };
    for pid in [supervisor, key_process(lineage.pid())] {
        let has = files(pid);
        assert!(!has.contains(&given) && !has.iter().any(is_tcp), "{has:?}");
    }
}

#[test]
fn where_keys_are_cannot_change_while_a_process_runs() {
    let (origin, keys) = (Origin::always(ANSWER), Keys::new());
    for (before, after) in [(ISOLATE, ""), ("", ISOLATE)] {
        let engine = Engine::start(&config(&origin, &keys, before));
        engine.rewrite(&config(&origin, &keys, after));
        engine.reload();
        let log = engine.stderr().join("\n");
        assert!(log.contains("`keys.isolate` cannot change while the process runs"), "{log}");
        handshakes(&engine);
    }
    // Nor the folders of keys.
    let engine = Engine::start(&config(&origin, &keys, ISOLATE));
    engine.rewrite(&config(&origin, &keys, &format!("{ISOLATE}store = \"elsewhere\"\n")));
    engine.reload();
    let log = engine.stderr().join("\n");
    assert!(log.contains("`keys.store` cannot change while the process runs"), "{log}");
    let others = Keys::new();
    engine.rewrite(&config(&origin, &others, ISOLATE));
    engine.reload();
    let log = engine.stderr().join("\n");
    assert!(log.contains("is outside of the folders that the key process was started with"), "{log}");
    handshakes(&engine);
}

#[test]
fn what_is_not_covered_is_refused_with_its_place_and_a_cure() {
    let (origin, keys, scratch) = (Origin::always(ANSWER), Keys::new(), Scratch::new());
    let good = config(&origin, &keys, ISOLATE);
    assert!(check(&scratch, &good).contains("0 errors") || !check(&scratch, &good).contains("error:"));
    let acme = good.clone()
        + &format!(
            "[acme.own]\ndirectory = \"https://localhost:9/dir\"\nstate = {:?}\nterms_agreed = true\n",
            scratch.join("acme")
        );
    let state = format!("[process]\nworkers = 1\nstate = {:?}\n{good}", keys.scratch.path());
    for (config, what) in [
        (&acme, "keys.isolate does not cover keys of ordered certificates without keys.store"),
        (&state, "there are private keys in"),
    ] {
        let said = check(&scratch, config);
        assert!(said.contains(what) && said.contains("check.toml:"), "{what}:\n{said}");
        let mut engine = Engine::spawn(config);
        let end = engine.wait(Duration::from_secs(20));
        assert!(end.stderr.iter().any(|line| line.contains(what)), "{what}:\n{:#?}", end.stderr);
        assert_eq!(end.status.code(), Some(1));
    }
}

#[test]
fn a_configuration_beside_its_keys_is_read_again_and_what_else_was_replaced_there_is_refused() {
    let pem = Certificates::shared().issue(&["localhost"], &PKCS_ECDSA_P256_SHA256);
    let authority = fs::read_to_string(Certificates::shared().ca()).expect("an authority");
    let text = |status: u16| {
        format!(
            "{ISOLATE}[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n[[route]]\nrespond = {{ status = {status} }}\n\
             [tls.public]\ncertificates = [\"own.pem\"]\nclient_auth = {{ ca = \"clients.pem\", mode = \"optional\" }}\n"
        )
    };
    // As it is in small installations: all in one folder.
    let engine = Engine::start_beside(&[("own.pem", &pem), ("clients.pem", &authority)], &text(201));
    let visit = || engine.client("web").get("/").status;
    assert_eq!(visit(), 201);
    engine.rewrite(&text(202));
    engine.reload();
    assert_eq!(visit(), 202);
    if snapshot(&engine)["sandbox"]["landlock"]["state"] != "enforced" {
        return;
    }
    fs::write(engine.folder().join("new"), authority).expect("our own file");
    fs::rename(engine.folder().join("new"), engine.folder().join("clients.pem")).expect("a rename within a folder");
    engine.reload();
    let log = engine.stderr().join("\n");
    assert!(log.contains("clients.pem has been replaced, and lies in a folder with private keys"), "{log}");
    assert_eq!(visit(), 202);
}

/// An engine to which certificates can be uploaded: the lines of its configuration, and where they are kept.
struct Uploads {
    state: Scratch,
    store: Scratch,
}

impl Uploads {
    fn new() -> Uploads {
        Uploads { state: Scratch::new(), store: Scratch::new() }
    }

    fn folder(&self) -> PathBuf {
        self.store.join("keys")
    }

    fn files(&self) -> Vec<PathBuf> {
        fs::read_dir(self.folder()).expect("a folder").flatten().map(|entry| entry.path()).collect()
    }

    /// The lines of `[process]`, and those of other sections.
    fn lines(&self) -> (String, String) {
        let (state, token) = with_state(&self.state);
        let rest =
            format!("[admin]\nbind = \"127.0.0.1:0\"\n{token}\n{ISOLATE}store = {:?}\n", self.folder().display());
        (state, rest)
    }

    /// A process with this configuration can neither read them nor put others beside them.
    #[track_caller]
    fn are_out_of_reach(&self, config: &str) {
        let config = self.state.write("propylon.toml", complete(config));
        let shown: serde_json::Value = serde_json::from_str(&attempt(&config, &["show"]).ok().text()).expect("JSON");
        if shown["landlock"]["state"] != "enforced" {
            return eprintln!("skipped: Landlock is {shown}");
        }
        for (what, path) in [("read", &self.files()[0]), ("write", &self.folder().join("new.pem"))] {
            let said = attempt(&config, &[what, path.to_str().expect("text")]);
            assert!(said.text().contains("denied"), "{what}: {}", said.text());
        }
    }

    fn config(&self, origin: &Origin, keys: &Keys) -> String {
        let (process, rest) = self.lines();
        config(origin, keys, &format!("[process]\nworkers = 2\n{process}\n{rest}"))
    }
}

fn change(admin: SocketAddr, method: &str, name: &str, pem: &str) -> Response {
    let length = pem.len();
    Client::plain(admin).ask(format!(
        "{method} /v1/certificates/public/{name} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\
         Authorization: Bearer {TOKEN}\r\nContent-Type: application/x-pem-file\r\nContent-Length: {length}\r\n\r\n{pem}"
    ))
}

#[track_caller]
fn put(admin: SocketAddr, name: &str, pem: &str) {
    let told = change(admin, "PUT", name, pem);
    assert_eq!(told.status, 200, "{}", told.text());
}

/// The engine and the supervisor have none of these keys, and the key process those that were sent.
#[track_caller]
fn only_the_key_process_has(engine: &Engine, keys: &Keys, sent: &Keys, when: &str) {
    if !memory::may_look() {
        return;
    }
    for pid in [engine.pid(), child(engine.pid(), "key-supervisor").expect("one")] {
        // What was freed a moment ago may be on its way to be.
        let started = Instant::now();
        while let left = memory::found(pid, &keys.traces())
            && !left.is_empty()
        {
            assert!(started.elapsed() < WAIT_MAX, "{when}: {left:#?}");
        }
    }
    assert!(!memory::found(key_process(engine.pid()), &sent.traces()).is_empty(), "{when}: the key process has them");
}

/// Whether clients that ask for this name get this certificate, which somebody has signed for.
fn is_served(web: SocketAddr, name: &str, pem: &str) -> bool {
    leaf(web, name, &Certificates::shared().client()).is_ok_and(|found| found == leaf_of(pem))
}

#[track_caller]
fn served(web: SocketAddr, uploads: &[(&str, &str)]) {
    for (name, pem) in uploads {
        assert!(is_served(web, name, pem), "{name}");
    }
}

#[test]
fn what_is_uploaded_is_kept_by_the_key_process_and_nowhere_else_until_it_is_removed() {
    let (origin, mut keys, uploads) = (Origin::always(ANSWER), Keys::new(), Uploads::new());
    let text = uploads.config(&origin, &keys);
    let mut sent = Keys { scratch: Scratch::new(), pems: Vec::new() };
    let mut issue = |name: &str, algorithm| {
        let pem = Certificates::shared().issue(&[name], algorithm);
        sent.pems.push((name.to_owned(), pem.clone()));
        pem
    };
    let (ec, rsa) = (issue("ec.test", &PKCS_ECDSA_P256_SHA256), issue("rsa.test", &PKCS_RSA_SHA256));
    let all = [("ec.test", ec.as_str()), ("rsa.test", rsa.as_str())];
    keys.pems.append(&mut sent.pems.clone());
    let refused = keys.issue("refused", &PKCS_RSA_SHA256);
    let clean = |engine: &Engine, when: &str| only_the_key_process_has(engine, &keys, &sent, when);

    let engine = Engine::start(&text);
    put(engine.admin(), "ec", &ec);
    put(engine.admin(), "rsa", &rsa);
    served(engine.address("web"), &all);
    let split = |pem: &str| pem.find("-----BEGIN PRIVATE KEY-----").expect("a key");
    let torn = format!("{}{}", &ec[..split(&ec)], &refused[split(&refused)..]);
    assert_eq!(change(engine.admin(), "PUT", "torn", &torn).status, 422);
    clean(&engine, "after uploads");
    let files = uploads.files();
    assert_eq!(files.len(), 2, "{files:?}");
    for path in files.iter().chain([&uploads.folder()]) {
        assert_eq!(fs::metadata(path).expect("it is there").permissions().mode() & 0o077, 0, "{path:?}");
    }
    for text in fs::read_dir(uploads.state.join("state")).expect("a folder").flatten() {
        assert!(!fs::read_to_string(text.path()).expect("the state").contains("PRIVATE"));
    }
    uploads.are_out_of_reach(&text);
    // By the same name it takes the place of the one before, whose file goes.
    let next = Certificates::shared().issue(&["ec.test"], &PKCS_ECDSA_P384_SHA384);
    put(engine.admin(), "ec", &next);
    assert_eq!(uploads.files().len(), 2);
    put(engine.admin(), "ec", &ec);
    engine.reload();
    served(engine.address("web"), &all);
    signal(key_process(engine.pid()), Signal::KILL);
    served(engine.address("web"), &all);
    clean(&engine, "after another start of the key process");
    drop(engine);

    let engine = Engine::start(&text);
    served(engine.address("web"), &all);
    clean(&engine, "after another start");
    for name in ["ec", "rsa"] {
        let told = change(engine.admin(), "DELETE", name, "");
        assert_eq!(told.status, 200, "{}", told.text());
    }
    assert_eq!(uploads.files(), Vec::<PathBuf>::new());
    assert!(!is_served(engine.address("web"), "ec.test", &ec) && !is_served(engine.address("web"), "rsa.test", &rsa));
    handshakes(&engine);
    signal(key_process(engine.pid()), Signal::KILL);
    handshakes(&engine);
    assert!(!engine.stderr().iter().any(|line| line.contains("cannot be read again")), "{:#?}", engine.stderr());
    if memory::may_look() {
        let left = memory::found(key_process(engine.pid()), &sent.traces());
        assert!(left.is_empty(), "removed, and not read again: {left:#?}");
    }
}

#[test]
fn a_successor_serves_what_was_uploaded_before_and_takes_more() {
    let (origin, keys, uploads) = (Origin::always(ANSWER), Keys::new(), Uploads::new());
    let (process, rest) = uploads.lines();
    let mut lineage = Lineage::start(&process, &config(&origin, &keys, &rest));
    let [one, two] =
        ["one.test", "two.test"].map(|name| Certificates::shared().issue(&[name], &PKCS_ECDSA_P256_SHA256));
    put(lineage.admin(), "one", &one);
    served(lineage.address("web"), &[("one.test", &one)]);
    let before = lineage.pid();
    lineage.upgrade(How::Signal);
    served(lineage.address("web"), &[("one.test", &one)]);
    put(lineage.admin(), "two", &two);
    served(lineage.address("web"), &[("one.test", &one), ("two.test", &two)]);
    lineage.gone(before);
    assert_eq!(uploads.files().len(), 2, "the one before has left them alone");
    signal(key_process(lineage.pid()), Signal::KILL);
    served(lineage.address("web"), &[("one.test", &one), ("two.test", &two)]);
    assert_eq!(change(lineage.admin(), "DELETE", "one", "").status, 200);
    assert!(!is_served(lineage.address("web"), "one.test", &one));
    assert_eq!(uploads.files().len(), 1);
}

#[test]
fn engines_that_share_a_folder_of_uploads_leave_each_other_s_alone() {
    let (origin, keys, one) = (Origin::always(ANSWER), Keys::new(), Uploads::new());
    let other = Uploads::new();
    let text = one.config(&origin, &keys);
    let beside = other
        .config(&origin, &keys)
        .replace(&format!("store = {:?}", other.folder().display()), &format!("store = {:?}", one.folder().display()));
    let [a, b, c] =
        ["a.test", "b.test", "c.test"].map(|name| Certificates::shared().issue(&[name], &PKCS_ECDSA_P256_SHA256));
    let first = Engine::start(&text);
    put(first.admin(), "a", &a);
    put(first.admin(), "b", &b);
    let second = Engine::start(&beside);
    put(second.admin(), "c", &c);
    put(second.admin(), "c", &c);
    assert_eq!(change(second.admin(), "DELETE", "c", "").status, 200);
    put(second.admin(), "c", &c);
    assert_eq!(one.files().len(), 3, "{:?}", one.files());
    drop(first);
    let first = Engine::start(&text);
    served(first.address("web"), &[("a.test", &a), ("b.test", &b)]);
    assert_eq!(change(first.admin(), "DELETE", "a", "").status, 200);
    assert_eq!(one.files().len(), 2);
    drop(second);
    let second = Engine::start(&beside);
    served(second.address("web"), &[("c.test", &c)]);
}

#[test]
fn an_upload_that_was_refused_since_nobody_answered_does_not_stay_when_it_is_written_after_all() {
    let (origin, keys, uploads) = (Origin::always(ANSWER), Keys::new(), Uploads::new());
    let engine = Engine::start(&uploads.config(&origin, &keys));
    let [late, next] =
        ["late.test", "next.test"].map(|name| Certificates::shared().issue(&[name], &PKCS_ECDSA_P256_SHA256));
    let supervisor = child(engine.pid(), "key-supervisor").expect("a supervisor");
    let process = key_process(engine.pid());
    for pid in [supervisor, process] {
        signal(pid, Signal::STOP);
        holds("all its threads are stopped", || is_stopped(pid));
    }
    let told = change(engine.admin(), "PUT", "late", &late);
    assert!(told.status == 500 && told.text().contains("does not answer"), "{}", told.text());
    for pid in [process, supervisor] {
        signal(pid, Signal::CONT);
    }
    eventually(WAIT_MAX, "another is taken", || {
        (change(engine.admin(), "PUT", "next", &next).status == 200).then_some(())
    });
    served(engine.address("web"), &[("next.test", &next)]);
    assert_eq!(uploads.files().len(), 1, "{:?}", uploads.files());
}

#[test]
fn an_upload_that_is_none_is_refused_as_it_is_without_a_key_process_and_leaves_no_file() {
    let (origin, keys, uploads) = (Origin::always(ANSWER), Keys::new(), Uploads::new());
    let engine = Engine::start(&uploads.config(&origin, &keys));
    let state = Scratch::new();
    let (state_line, token) = with_state(&state);
    let plain = format!("[process]\nworkers = 1\n{state_line}\n[admin]\nbind = \"127.0.0.1:0\"\n{token}\n");
    let plain = Engine::start(&config(&origin, &keys, &plain));
    let [one, other] = ["a.test", "b.test"].map(|name| Certificates::shared().issue(&[name], &PKCS_ECDSA_P256_SHA256));
    let split = |pem: &str| pem.find("-----BEGIN PRIVATE KEY-----").expect("a key");
    let said = |engine: &Engine, bad: &str| {
        let told = change(engine.admin(), "PUT", "bad", bad);
        let text: serde_json::Value = serde_json::from_str(&told.text()).expect("JSON");
        let what = text["problems"][0]["what"].as_str().or(text["problems"][0]["message"].as_str());
        let what = what.unwrap_or_else(|| panic!("no problem in {text:#}")).to_owned();
        // The path at its beginning, which ends in a number that is drawn for each.
        (told.status, what.rsplit_once(".pem: ").map_or(what.clone(), |(_, what)| what.to_owned()))
    };
    for bad in [
        format!("{}{}", &one[..split(&one)], &other[split(&other)..]),
        one[..split(&one)].to_owned(),
        one[split(&one)..].to_owned(),
        one.replace("-----END PRIVATE KEY-----", "-----END PUBLIC KEY-----"),
        "no certificate".to_owned(),
    ] {
        let (status, what) = said(&engine, &bad);
        assert_eq!((status, what.as_str()), (422, said(&plain, &bad).1.as_str()));
        assert_eq!(uploads.files(), Vec::<PathBuf>::new(), "{what}");
    }
    let long = change(engine.admin(), "PUT", "long", &format!("{one}{}", "#".repeat(48 * 1024)));
    assert!(long.status == 409 && long.text().contains("with keys.isolate a certificate"), "{}", long.text());
    assert_eq!(change(engine.admin(), "PUT", "..%2Fx", &one).status, 409);
    let dry = change(engine.admin(), "PUT", "dry?dry_run=1", &one);
    assert_eq!((dry.status, uploads.files().len()), (200, 0), "{}", dry.text());
    // Where it cannot be written that is said, and what is served is served.
    fs::remove_dir(uploads.folder()).expect("an empty folder");
    let lost = change(engine.admin(), "PUT", "lost", &one);
    assert!(lost.status == 500 && lost.text().contains("keys"), "{}", lost.text());
    handshakes(&engine);
}

#[test]
fn uploads_belong_to_the_account_that_serves_and_where_that_cannot_write_they_are_refused() {
    if !geteuid().is_root() {
        return eprintln!("only root can start a process that becomes another account: nothing was tried");
    }
    const NOBODY: u32 = 65_534;
    let (origin, keys, uploads) = (Origin::always(ANSWER), Keys::new(), Uploads::new());
    let text = uploads.config(&origin, &keys).replace("workers = 2", "workers = 2\nuser = \"nobody\"");
    let own = ["one.pem", "chain.pem", "key.pem", "folder/a.pem"].map(|name| keys.path(name));
    for path in own.iter().chain([&uploads.state.join("token"), &uploads.state.path().to_owned()]) {
        chown(path, Some(NOBODY), None).expect("our own");
    }
    let pem = Certificates::shared().issue(&["own.test"], &PKCS_ECDSA_P256_SHA256);
    // It is root's folder in which this one would have to be made.
    let engine = Engine::start(&text);
    assert!(
        engine.stderr().iter().any(|line| line.contains("certificates cannot be uploaded")),
        "{:#?}",
        engine.stderr()
    );
    let told = change(engine.admin(), "PUT", "own", &pem);
    assert!(told.status == 500 && told.text().contains("rights"), "{}", told.text());
    handshakes(&engine);
    drop(engine);
    chown(uploads.store.path(), Some(NOBODY), None).expect("our own folder");
    let engine = Engine::start(&text);
    put(engine.admin(), "own", &pem);
    served(engine.address("web"), &[("own.test", &pem)]);
    assert_eq!(fs::metadata(&uploads.files()[0]).expect("a file").uid(), NOBODY);
    drop(engine);
    // Where root serves, another account's folder is not one in which keys are kept.
    let engine = Engine::start(&text.replace("user = \"nobody\"", ""));
    let told = change(engine.admin(), "PUT", "other", &pem);
    assert!(told.status == 500 && told.text().contains("another account owns it"), "{}", told.text());
    served(engine.address("web"), &[("own.test", &pem)]);
}

#[test]
fn the_folder_of_uploads_is_one_of_its_own() {
    let (origin, keys, uploads, scratch) = (Origin::always(ANSWER), Keys::new(), Uploads::new(), Scratch::new());
    let good = uploads.config(&origin, &keys);
    assert!(!check(&scratch, &good).contains("error:"), "{}", check(&scratch, &good));
    let without = good.replace(&format!("store = {:?}\n", uploads.folder().display()), "");
    assert!(check(&scratch, &without).contains("without keys.store the admin API takes no certificates"));
    let at =
        |folder: &Path| good.replace(&format!("{:?}", uploads.folder().display()), &format!("{:?}", folder.display()));
    for (folder, what) in [
        (uploads.state.join("state/keys"), "this process may not have the run of"),
        (keys.path("folder"), "lies in keys.store"),
        (keys.scratch.path().to_owned(), "lies in keys.store"),
        (scratch.path().to_owned(), "lies in keys.store"),
        (PathBuf::from("/tmp"), "there may be no private key in /tmp"),
    ] {
        let said = check(&scratch, &at(&folder));
        assert!(said.contains(what) && said.contains("check.toml:"), "{folder:?}:\n{said}");
    }
    let unused = good.replace("isolate = true\n", "");
    assert!(check(&scratch, &unused).contains("`store` has no use without isolate = true"));

    // What was uploaded before is to be moved.
    let pem = Certificates::shared().issue(&["early.test"], &PKCS_ECDSA_P256_SHA256);
    let engine = Engine::start(&unused);
    put(engine.admin(), "early", &pem);
    drop(engine);
    let said = check(&scratch, &good);
    assert!(said.contains("was uploaded without keys.isolate") && said.contains("mv "), "{said}");
    fs::create_dir_all(uploads.folder()).expect("a folder");
    fs::set_permissions(uploads.folder(), fs::Permissions::from_mode(0o700)).expect("our own folder");
    for file in fs::read_dir(uploads.state.join("state/certificates/public")).expect("a folder").flatten() {
        fs::copy(file.path(), uploads.folder().join(file.file_name())).expect("a copy");
        fs::remove_file(file.path()).expect("our own file");
    }
    let engine = Engine::start(&good);
    served(engine.address("web"), &[("early.test", &pem)]);
}

#[test]
fn a_key_that_is_pushed_by_mistake_stays_in_no_memory() {
    if !memory::may_look() {
        return;
    }
    let (origin, mut keys, state) = (Origin::always(ANSWER), Keys::new(), Scratch::new());
    let (state_line, token) = with_state(&state);
    let process = format!("[process]\n{state_line}\n[admin]\nbind = \"127.0.0.1:0\"\n{token}\n{ISOLATE}");
    let engine = Engine::start(&config(&origin, &keys, &process));
    let sent = keys.issue("sent", &PKCS_RSA_SHA256);
    for kind in ["application/toml", "application/json"] {
        let fields = format!("Authorization: Bearer {TOKEN}\r\nContent-Type: {kind}\r\n");
        let told = ask_admin(&engine, "PUT", "/v1/config", &fields, &sent);
        assert_eq!(told.status, 422, "{}", told.text());
    }
    // What was freed a moment ago may be on its way to be.
    let started = Instant::now();
    while !memory::found(engine.pid(), &keys.traces()).is_empty() {
        assert!(started.elapsed() < WAIT_MAX, "{:#?}", memory::found(engine.pid(), &keys.traces()));
    }
}
