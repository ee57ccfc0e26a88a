//! `keys.isolate`: the process that faces the network has no private key, and goes on as if it had.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use propylon_e2e::admin::{TOKEN, ask_admin, snapshot, with_state};
use propylon_e2e::engine::complete;
use propylon_e2e::lineage::{How, Lineage, is_alive};
use propylon_e2e::load::{Load, Manner};
use propylon_e2e::program::{Said, run, signal};
use propylon_e2e::wait::{PATIENCE, holds};
use propylon_e2e::{Certificates, Client, Engine, Origin, Scratch, binaries, memory};
use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256, SignatureAlgorithm};
use rustix::process::{Signal, geteuid};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
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

fn traces(name: &str, pem: &str) -> Vec<(String, Vec<u8>)> {
    let der = PrivateKeyDer::from_pem_slice(pem.as_bytes()).expect("a key").secret_der().to_vec();
    let key = &pem[pem.find("-----BEGIN PRIVATE KEY-----").expect("a key")..];
    let lines: Vec<&str> = key.lines().filter(|line| !line.starts_with("-----")).collect();
    let mut traces = vec![(format!("{name}: base64"), lines[lines.len() / 2].as_bytes()[..32].to_vec())];
    for (part, number) in numbers(&der) {
        let turned: Vec<u8> = number.iter().rev().copied().collect();
        traces.push((format!("{name}: {part}"), number));
        traces.push((format!("{name}: {part}, turned round"), turned));
    }
    traces
}

/// The private numbers of a key in PKCS#8, 32 bytes of each: a curve's scalar; RSA's d, p, q and the rest of them.
fn numbers(der: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let inner = |der: &[u8]| elements(&elements(der)[0].1);
    let private = &inner(der)[2].1;
    let parts = inner(private);
    match parts.len() {
        9 => ["d", "p", "q", "dp", "dq", "qinv"]
            .into_iter()
            .zip(&parts[3..])
            .map(|(name, (_, number))| (name, number[number.len() - 40..number.len() - 8].to_vec()))
            .collect(),
        _ => vec![("scalar", parts[1].1[..32].to_vec())],
    }
}

/// DER elements in a row: tags and contents.
fn elements(mut der: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut all = Vec::new();
    while let [tag, first, rest @ ..] = der {
        let (length, rest) = match first {
            0..=0x7f => (usize::from(*first), rest),
            _ => {
                let (digits, rest) = rest.split_at(usize::from(first & 0x7f));
                (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
            }
        };
        all.push((*tag, rest[..length].to_vec()));
        der = &rest[length..];
    }
    all
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
            let said = run(command, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", PATIENCE);
            assert!(said.text().contains("200 OK"), "{flag} {scheme}: {}\n{}", said.text(), said.stderr);
        }
    }
}

/// The process that a process has started with this in its command line.
fn child(parent: u32, what: &str) -> Option<u32> {
    let all = fs::read_dir("/proc").expect("processes").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| parent_of(*pid) == Some(parent)).find(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(what)
    })
}

fn parent_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

/// The key process of an engine, when there is one.
#[track_caller]
fn key_process(engine: u32) -> u32 {
    let supervisor = child(engine, "key-supervisor").expect("a supervisor");
    propylon_e2e::eventually(PATIENCE, "a key process", || child(supervisor, "key-process"))
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
        assert!(started.elapsed() < PATIENCE, "after an upload: {:#?}", memory::found(engine.pid(), &keys.traces()));
    }
    Client::tls_with(engine.address("web"), Certificates::shared().client());
    assert_eq!(snapshot(&engine)["keys"]["isolated"], true);
    assert_eq!(engine.metric("propylon_key_process_restarts_total", &[]), 0.0);
}

/// `propylon attempt` in the sandbox of this configuration.
fn attempt(config: &Path, what: &[&str]) -> Said {
    let mut command = Command::new(binaries::propylon());
    command.arg("attempt").arg("-c").arg(config).args(what);
    run(command, b"", Duration::from_secs(20))
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

#[test]
fn a_key_process_that_hangs_lets_handshakes_fail_in_time_and_is_asked_again() {
    let (origin, keys) = (Origin::always(ANSWER), Keys::new());
    let engine = Engine::start(&config(&origin, &keys, ISOLATE));
    let client = Certificates::shared().client();
    let visit = || Client::try_tls_with(engine.address("web"), Arc::clone(&client));
    visit().expect("a handshake");
    let holder = key_process(engine.pid());
    signal(holder, Signal::STOP);
    // Sooner than this client would give up.
    let error = visit().err().expect("nobody signs");
    assert!(!matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    engine.metric_reaches("propylon_signer_jobs_total", &[("outcome", "timeout")], 1.0);
    signal(holder, Signal::CONT);
    holds("handshakes go on", || visit().is_ok());
    assert_eq!(engine.metric("propylon_key_process_restarts_total", &[]), 0.0);
}

#[test]
fn where_nobody_starts_a_key_process_any_more_the_engine_says_so_and_ends_as_ever() {
    let (origin, keys) = (Origin::always(ANSWER), Keys::new());
    let engine = Engine::start(&config(&origin, &keys, ISOLATE));
    let (supervisor, holder) = (child(engine.pid(), "key-supervisor").expect("one"), key_process(engine.pid()));
    signal(supervisor, Signal::KILL);
    holds("the key process ends with it", || !is_alive(holder));
    engine.metric_reaches("propylon_key_process_lost", &[], 1.0);
    holds("it is told", || engine.stderr().iter().any(|line| line.contains("no key process will be there any more")));
    let client = Certificates::shared().client();
    assert!(Client::try_tls_with(engine.address("web"), client).is_err());
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

fn check(scratch: &Scratch, config: &str) -> String {
    let path = scratch.write("check.toml", complete(config));
    let mut command = Command::new(binaries::propylon());
    command.arg("check").arg("-c").arg(path);
    let said = run(command, b"", PATIENCE);
    said.text() + &said.stderr
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
        assert!(run(command, b"", PATIENCE).stderr.contains("Permission denied"), "{file}");
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
    scratch.write("client.pem", Certificates::shared().issue(&["client"], &PKCS_ECDSA_P256_SHA256));
    let good = config(&origin, &keys, ISOLATE);
    assert!(check(&scratch, &good).contains("0 errors") || !check(&scratch, &good).contains("error:"));
    let ca = Certificates::shared().ca().display().to_string();
    let client = scratch.join("client.pem").display().to_string();
    let with_signer = good.replace("[tls.public]\n", "[tls.public]\nsigner = \"vault\"\n")
        + &format!("[signer.vault]\nservers = [\"127.0.0.1:9\"]\nidentity = {client:?}\nca = {ca:?}\n");
    let towards = good.replace("[[route]]", &format!("tls = {{ ca = {ca:?}, certificate = {client:?} }}\n[[route]]"));
    let acme = good.clone()
        + &format!(
            "[acme.own]\ndirectory = \"https://localhost:9/dir\"\nstate = {:?}\nterms_agreed = true\n",
            scratch.join("acme")
        );
    let state = format!("[process]\nworkers = 1\nstate = {:?}\n{good}", keys.scratch.path());
    for (config, what) in [
        (&with_signer, "keys.isolate does not cover the key that key servers are shown yet"),
        (&towards, "keys.isolate does not cover keys that are shown to servers yet"),
        (&acme, "keys.isolate does not cover keys of ordered certificates yet"),
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
    assert!(log.contains("clients.pem has been replaced, and lies in one folder with private keys"), "{log}");
    assert_eq!(visit(), 202);
}
