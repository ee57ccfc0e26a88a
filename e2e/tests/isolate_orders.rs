//! `keys.isolate` with certificates that are ordered: their keys, and those of accounts with authorities, are made,
//! kept and used by the key process.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use propylon_e2e::certificates::leaf;
use propylon_e2e::engine::complete;
use propylon_e2e::isolation::{attempt, child, is_stopped, key_process, traces};
use propylon_e2e::lineage::{How, Lineage};
use propylon_e2e::pebble::{Options, Pebble, free};
use propylon_e2e::program::{run, signal};
use propylon_e2e::secure::{SecureOrigin, read_request, send};
use propylon_e2e::wait::WAIT_MAX;
use propylon_e2e::{Certificates, Client, Engine, Scratch, binaries, eventually, holds, memory};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use socket2::{SockRef, Type};

/// An order takes seconds, and RSA keys some more.
const ORDER: Duration = Duration::from_secs(90);
const WORKERS: &str = "[process]\nworkers = 2\ndrain_timeout = \"1s\"\nshare_address = true\n";

/// Where an engine listens, and folders for what it keeps and for what its key process does.
struct Place {
    http: SocketAddr,
    tls: SocketAddr,
    state: Scratch,
    keys: Scratch,
}

impl Place {
    fn new() -> Place {
        Place { http: free(), tls: free(), state: Scratch::new(), keys: Scratch::new() }
    }

    fn options(&self) -> Options {
        Options::new(self.http, self.tls)
    }

    /// All but `[process]`: one plaintext and one TLS listener, and what is ordered.
    fn config(&self, directory: &str, acme: &str, certificates: &str) -> String {
        let ca = Certificates::shared().ca();
        format!(
            "[keys]\nisolate = true\nstore = {:?}\n\
             [listener.plain]\nbind = \"{}\"\n[listener.web]\nbind = \"{}\"\ntls = \"public\"\n\
             [acme.test]\ndirectory = \"{directory}\"\nterms_agreed = true\nca = {ca:?}\nstate = {:?}\nretry = \"1s\"\n{acme}\n\
             [tls.public]\ncertificates = [{certificates}]\n[[route]]\nrespond = {{ status = 200, body = \"routed\" }}\n",
            self.store(),
            self.http,
            self.tls,
            self.state.join("state"),
        )
    }

    fn store(&self) -> PathBuf {
        self.keys.join("kept")
    }

    fn account_folder(&self) -> PathBuf {
        self.state.join("state/test")
    }

    /// Files of keys, by their names.
    fn kept(&self, extension: &str) -> BTreeSet<String> {
        let entries = fs::read_dir(self.store()).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().expect("a name"));
        names.filter(|name| !name.starts_with('.') && name.ends_with(extension)).collect()
    }

    /// What of the keys that are kept may be in no other process.
    fn traces(&self) -> Vec<(String, Vec<u8>)> {
        let keys = self.kept(".key").into_iter().map(|name| {
            let pem = fs::read_to_string(self.store().join(&name)).expect("a key");
            traces(&name, &pem)
        });
        let accounts = self.kept(".account").into_iter().map(|name| {
            let mut command = Command::new("openssl");
            command.args(["pkey", "-inform", "DER", "-in"]).arg(self.store().join(&name));
            traces(&name, &run(command, b"", WAIT_MAX).ok().text())
        });
        keys.chain(accounts).flatten().collect()
    }

    /// Neither process of the engine but the one that keeps them has any of these keys.
    #[track_caller]
    fn only_the_key_process_has_them(&self, engine: u32, when: &str) {
        for (path, text) in files(&self.account_folder()) {
            assert!(!text.contains("PRIVATE KEY") && !text.contains("pkcs8"), "{when}: {}", path.display());
        }
        for name in self.kept("") {
            let mode = fs::metadata(self.store().join(&name)).expect("a file").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        if !memory::may_look() {
            return;
        }
        let traces = self.traces();
        for pid in [engine, child(engine, "key-supervisor").expect("a supervisor")] {
            let left = memory::found(pid, &traces);
            assert!(left.is_empty(), "{when}: {left:#?}");
        }
        let found = memory::found(key_process(engine), &traces);
        assert!(found.iter().any(|place| place.contains(".key")), "{when}: the search finds what is there: {found:#?}");
    }

    /// A process with this configuration can neither read them nor put others beside them.
    #[track_caller]
    fn are_out_of_reach(&self, config: &str) {
        let config = self.state.write("propylon.toml", complete(config));
        let shown: Value = serde_json::from_str(&attempt(&config, &["show"]).ok().text()).expect("JSON");
        if shown["landlock"]["state"] != "enforced" {
            return eprintln!("skipped: Landlock is {shown}");
        }
        let kept = self.kept("").into_iter().map(|name| ("read", self.store().join(name)));
        for (what, path) in kept.chain([("write", self.store().join("acme-test.new.key"))]) {
            let said = attempt(&config, &[what, path.to_str().expect("text")]);
            assert!(said.text().contains("denied"), "{what} {}: {}", path.display(), said.text());
        }
        let chain = files(&self.account_folder().join("certificates")).pop().expect("a chain").0;
        attempt(&config, &["read", chain.to_str().expect("text")]).ok();
    }
}

/// Files of a folder and of those in it, with what they hold.
fn files(folder: &Path) -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let all = entries.flat_map(|path| match path.is_dir() {
        true => files(&path),
        false => vec![(path.clone(), String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()).into_owned())],
    });
    all.collect()
}

fn ordered(names: &[&str]) -> String {
    format!("{{ acme = \"test\", names = {names:?} }}")
}

/// How it stands with the one account.
fn status(admin: SocketAddr) -> Value {
    let request = format!("GET /snapshot HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
    let snapshot: Value = serde_json::from_str(&Client::plain(admin).ask(request).text()).expect("JSON");
    snapshot["acme"][0].clone()
}

fn orders(admin: SocketAddr, which: &str) -> u64 {
    status(admin)["orders"][which].as_u64().unwrap_or(0)
}

#[track_caller]
fn await_orders(admin: SocketAddr, count: u64) {
    eventually(ORDER, "orders succeed", || (orders(admin, "succeeded") >= count).then_some(()));
}

fn trusting(root: &Path) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let pem = fs::read(root).expect("a root");
    roots.add(CertificateDer::from_pem_slice(&pem).expect("a certificate")).expect("a usable root");
    let config = ClientConfig::builder_with_provider(rustls::crypto::aws_lc_rs::default_provider().into())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

/// A request by TLS 1.2 and 1.3 that `curl` verifies by Pebble's root, with this kind of certificate.
#[track_caller]
fn is_served(address: SocketAddr, name: &str, root: &Path, kind: &str) {
    for version in ["1.2", "1.3"] {
        let scheme = if kind == "rsa" { "RSA-PSS+SHA256" } else { "ECDSA+SHA256" };
        let mut command = Command::new("openssl");
        command.args(["s_client", "-connect", &address.to_string(), "-servername", name, "-verify_hostname", name]);
        command.args(["-verify_return_error", "-sigalgs", scheme, "-quiet", "-ign_eof", "-CAfile"]).arg(root);
        command.arg(format!("-tls{}", version.replace('.', "_")));
        let said = run(command, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", WAIT_MAX);
        assert!(said.text().contains("routed"), "{name} {kind} {version}: {}\n{}", said.text(), said.stderr);
    }
}

#[test]
fn keys_of_accounts_and_orders_are_in_the_key_process_and_its_folder_alone() {
    const KEY: &str = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
    let place = Place::new();
    let pebble = Pebble::start(Options { external: Some(KEY), rejects: 5, ..place.options() });
    let external = place.state.write("external", format!("{KEY}\n"));
    let acme = format!("contact = \"mailto:a@b.test\"\nexternal_account = {{ id = \"kid-1\", key = {external:?} }}");
    let both = "{ acme = \"test\", names = [\"Shop.test\", \"www.shop.test\"], key_types = [\"ecdsa\", \"rsa\"] }";
    let text = format!("{WORKERS}{}", place.config(&pebble.directory(), &acme, both));
    let engine = Engine::start(&text);
    await_orders(engine.admin(), 2);
    let root = pebble.root();
    let client = trusting(&root);
    holds("it is served", || leaf(place.tls, "shop.test", &client).is_ok());
    let in_use = |line: &String| line.contains("certificates were read again: 2 in use");
    holds("both are", || engine.stderr().iter().any(in_use));
    let served = || ["ecdsa", "rsa"].iter().for_each(|kind| is_served(place.tls, "www.shop.test", &root, kind));
    served();
    assert_eq!((place.kept(".key").len(), place.kept(".account").len()), (2, 1), "{:?}", place.kept(""));
    place.only_the_key_process_has_them(engine.pid(), "after orders");
    place.are_out_of_reach(&text);
    signal(key_process(engine.pid()), Signal::KILL);
    served();
    place.only_the_key_process_has_them(engine.pid(), "after another start of the key process");
    let account = || {
        let mut found = files(&place.account_folder());
        found.retain(|(path, _)| path.to_string_lossy().contains("account-"));
        found
    };
    let (kept, known) = (place.kept(""), account());
    assert_eq!(known.len(), 1);
    drop(engine);

    // Started again it has all it needs, and orders what is new by the account that it has.
    let more = format!("{both}, {}", ordered(&["more.test"]));
    let text = format!("{WORKERS}{}", place.config(&pebble.directory(), &acme, &more));
    let engine = Engine::start(&text);
    served();
    await_orders(engine.admin(), 1);
    holds("the new one is served", || leaf(place.tls, "more.test", &client).is_ok());
    served();
    place.only_the_key_process_has_them(engine.pid(), "after another start");
    assert_eq!((orders(engine.admin(), "succeeded"), orders(engine.admin(), "failed")), (1, 0));
    assert!(
        account() == known && place.kept("").is_superset(&kept) && place.kept("").len() == 4,
        "{:?}",
        place.kept("")
    );
}

#[test]
#[ignore = "long: make test-long"]
fn a_renewal_has_a_key_of_its_own_and_the_one_before_goes_whoever_is_killed_meanwhile() {
    let place = Place::new();
    // It may be replaced after a sixth of its time, and here it is to be as soon as it may.
    let pebble = Pebble::start(Options { validity_seconds: 60, ..place.options() });
    let acme = "challenge = \"http-01\"\nrenew_before = \"10h\"\norders_per_hour = 1000";
    let engine =
        Engine::start(&format!("{WORKERS}{}", place.config(&pebble.directory(), acme, &ordered(&["shop.test"]))));
    await_orders(engine.admin(), 1);
    let client = trusting(&pebble.root());
    // By each of the workers.
    holds("it is served", || (0..16).all(|_| leaf(place.tls, "shop.test", &client).is_ok()));
    let (first, key) = (leaf(place.tls, "shop.test", &client).expect("a handshake"), place.kept(".key"));
    assert_eq!(key.len(), 1);
    for count in 2..=4 {
        signal(key_process(engine.pid()), Signal::KILL);
        eventually(ORDER, "another is ordered", || {
            leaf(place.tls, "shop.test", &client).expect("a handshake");
            (orders(engine.admin(), "succeeded") >= count).then_some(())
        });
    }
    holds("another is served", || leaf(place.tls, "shop.test", &client).expect("a handshake") != first);
    place.only_the_key_process_has_them(engine.pid(), "after renewals");
    eventually(ORDER, "the first key is removed", || {
        leaf(place.tls, "shop.test", &client).expect("a handshake");
        place.kept(".key").is_disjoint(&key).then_some(())
    });
    assert_eq!(place.kept(".account").len(), 1);
    assert!(!engine.stderr().iter().any(|line| line.contains("cannot be read again")), "{:#?}", engine.stderr());
}

#[test]
fn a_successor_serves_what_was_ordered_and_orders_by_the_same_account() {
    let place = Place::new();
    let pebble = Pebble::start(place.options());
    let process = "workers = 2\ndrain_timeout = \"1s\"";
    let config = |certificates: &str| place.config(&pebble.directory(), "", certificates);
    let mut lineage = Lineage::start(process, &config(&ordered(&["one.test"])));
    await_orders(lineage.admin(), 1);
    let client = trusting(&pebble.root());
    holds("it is served", || (0..16).all(|_| leaf(place.tls, "one.test", &client).is_ok()));
    let (before, account) = (lineage.pid(), place.kept(".account"));
    lineage.write(process, &config(&format!("{}, {}", ordered(&["one.test"]), ordered(&["two.test"]))));
    lineage.upgrade(How::Signal);
    leaf(place.tls, "one.test", &client).expect("a handshake");
    lineage.gone(before);
    await_orders(lineage.admin(), 1);
    holds("both are served", || ["one.test", "two.test"].iter().all(|name| leaf(place.tls, name, &client).is_ok()));
    assert_eq!((place.kept(".key").len(), place.kept(".account")), (2, account));
    // A process that would have neither does not succeed it.
    let (successor, elsewhere) = (lineage.pid(), place.keys.join("elsewhere"));
    fs::rename(place.store(), &elsewhere).expect("a rename");
    let said = lineage.command(&["upgrade"]);
    assert!(said.status.code() == Some(1) && said.stderr.contains("does not have its key"), "{}", said.stderr);
    lineage.says("let keys.store be the folder that it was");
    assert_eq!(lineage.pid(), successor);
    for name in ["one.test", "two.test"] {
        leaf(place.tls, name, &client).expect("a handshake");
    }
    assert!(files(&place.account_folder()).iter().all(|(path, _)| !path.to_string_lossy().contains(".broken-")));
    fs::remove_dir_all(place.store()).expect("the folder of the one that gave up");
    fs::rename(&elsewhere, place.store()).expect("a rename");
    signal(key_process(lineage.pid()), Signal::KILL);
    for name in ["one.test", "two.test"] {
        leaf(place.tls, name, &client).expect("a handshake");
    }
    place.only_the_key_process_has_them(lineage.pid(), "after an upgrade");
}

#[test]
#[ignore = "long: make test-long"]
fn keys_of_orders_that_come_to_nothing_are_removed() {
    let place = Place::new();
    let pem = fs::read_to_string(Certificates::shared().ec()).expect("a certificate");
    let refusing = SecureOrigin::scripted(&pem, rustls::ALL_VERSIONS, |_, stream| {
        let Some(request) = read_request(stream) else { return };
        let request = String::from_utf8_lossy(&request).into_owned();
        let host = request.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("host: ").map(str::to_owned));
        let base = format!("https://{}", host.expect("a host"));
        let directory = format!(
            "{{\"newNonce\":\"{base}/nonce\",\"newAccount\":\"{base}/account\",\"newOrder\":\"{base}/order\"}}"
        );
        let refused = "{\"type\":\"urn:ietf:params:acme:error:unauthorized\",\"detail\":\"not you\",\"status\":403}";
        let (status, body) = match request.split(' ').nth(1).expect("a path") {
            "/dir" => ("200 OK", directory.as_str()),
            "/nonce" => ("200 OK", ""),
            _ => ("403 Forbidden", refused),
        };
        let length = body.len();
        let fields = format!("Replay-Nonce: bm9uY2U\r\nContent-Length: {length}\r\nConnection: close");
        send(stream, format!("HTTP/1.1 {status}\r\n{fields}\r\n\r\n{body}"));
    });
    let directory = format!("https://localhost:{}/dir", refusing.address().port());
    let config = place.config(&directory, "orders_per_hour = 2", &ordered(&["shop.test"]));
    let engine = Engine::start(&format!("{WORKERS}{config}"));
    let mut seen = BTreeSet::new();
    eventually(ORDER, "two failures", || {
        seen.extend(place.kept(".account"));
        (orders(engine.admin(), "failed") >= 2).then_some(())
    });
    let problem = status(engine.admin())["certificates"][0]["problem"].as_str().expect("a problem").to_owned();
    assert!(problem.contains("a new account: the authority says unauthorized: not you"), "{problem}");
    seen.extend(place.kept(".account"));
    assert_eq!(seen.len(), 2, "{seen:?}");
    eventually(ORDER, "no key is left", || place.kept("").is_empty().then_some(()));
}

/// Whoever has got into an engine: he has its socket for questions about files.
struct Hijacker {
    engine: u32,
    socket: UnixDatagram,
    /// Of his questions: the engine's have other numbers.
    id: u32,
}

impl Hijacker {
    fn of(engine: u32) -> Hijacker {
        let pid = Pid::from_raw(engine.try_into().expect("a process")).expect("a process");
        let process = pidfd_open(pid, PidfdFlags::empty()).expect("the engine");
        let entries = fs::read_dir(format!("/proc/{engine}/fd")).expect("its files").flatten();
        let numbers: BTreeSet<i32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        // The first that was made.
        let socket = numbers.into_iter().find_map(|number| {
            let file = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()?;
            let kind = SockRef::from(&file).r#type();
            kind.is_ok_and(|kind| kind == Type::SEQPACKET).then_some(file)
        });
        let socket = UnixDatagram::from(socket.expect("a socket to the key process"));
        socket.set_read_timeout(Some(WAIT_MAX)).expect("a socket");
        Hijacker { engine, socket, id: 1 << 31 }
    }

    /// An answer as it comes, with its parts put together. The engine is stopped meanwhile: its own threads read from the
    /// same socket, and would take the answer for one that comes too late.
    fn ask(&mut self, question: &[u8]) -> String {
        signal(self.engine, Signal::STOP);
        holds("the engine has stopped", || is_stopped(self.engine));
        let answer = self.heard(question);
        signal(self.engine, Signal::CONT);
        answer
    }

    fn heard(&mut self, question: &[u8]) -> String {
        self.id += 1;
        self.socket.send(&[&self.id.to_be_bytes(), question].concat()).expect("room");
        let (mut answer, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            let length = self.socket.recv(&mut buffer).expect("an answer");
            if let Some((id, [more, part @ ..])) = buffer[..length].split_first_chunk()
                && *id == self.id.to_be_bytes()
            {
                answer.extend_from_slice(part);
                if *more == 0 {
                    return String::from_utf8_lossy(&answer).into_owned();
                }
            }
        }
    }

    /// Has a key made: 0 an account's, 1 a certificate's.
    fn generate(&mut self, kind: u8, account: &str) -> String {
        let length = u32::try_from(account.len()).expect("a name").to_be_bytes();
        self.ask(&[&[b'g', kind], &length[..], account.as_bytes()].concat())
    }
}

#[test]
fn whoever_is_in_the_engine_has_keys_made_for_no_other_accounts_and_few_for_those() {
    if !memory::may_look() {
        return;
    }
    let (place, own) = (Place::new(), Scratch::new());
    let pem = Certificates::shared().issue(&["localhost"], &rcgen::PKCS_ECDSA_P256_SHA256);
    let certificate = format!("{:?}", own.write("own.pem", pem));
    // Nothing is ordered, so that nobody else asks.
    let text = format!("{WORKERS}{}", place.config("https://localhost:9/dir", "", &certificate));
    let engine = Engine::start(&text);
    let mut hijacker = Hijacker::of(engine.pid());
    let said = hijacker.ask(b"c");
    assert!(said.contains("isolate = true"), "he is heard: {said}");
    for number in 0..300 {
        let said = hijacker.generate(0, &format!("made-up-{number}"));
        assert!(said.contains("no account was called"), "{said}");
    }
    assert_eq!(place.kept("").len(), 0);
    for count in 1..=110 {
        let said = hijacker.generate(0, "test");
        assert_eq!(said.contains("there are 100 keys of the account \"test\""), count > 100, "{count}: {said}");
    }
    hijacker.generate(1, "test");
    assert_eq!((place.kept(".account").len(), place.kept(".key").len()), (100, 1), "each kind has its own room");
    // An account that comes later is one for the next process, told with its place.
    let more = format!("{text}[acme.more]\nterms_agreed = true\nstate = {:?}\n", place.state.join("more"));
    engine.rewrite(&more);
    engine.reload();
    let log = engine.stderr().join("\n");
    assert!(log.contains("[acme.more] is no account that the key process was started with"), "{log}");
    drop(engine);
    let engine = Engine::start(&more);
    let said = Hijacker::of(engine.pid()).generate(0, "more");
    assert!(!said.contains("no account"), "{said}");
}

/// `propylon check` of a configuration.
fn check(scratch: &Scratch, config: &str) -> String {
    let path = scratch.write("check.toml", complete(config));
    let mut command = Command::new(binaries::propylon());
    command.arg("check").arg("-c").arg(path);
    let said = run(command, b"", WAIT_MAX);
    said.text() + &said.stderr
}

#[test]
fn what_was_ordered_before_keys_were_isolated_is_ordered_anew() {
    let (place, scratch) = (Place::new(), Scratch::new());
    let pebble = Pebble::start(place.options());
    let isolated = format!("{WORKERS}{}", place.config(&pebble.directory(), "", &ordered(&["shop.test"])));
    let store = format!("store = {:?}\n", place.store());
    let plain = isolated.replace(&format!("[keys]\nisolate = true\n{store}"), "");
    let said = check(&scratch, &isolated.replace(&store, ""));
    assert!(said.contains("ordered certificates without keys.store") && said.contains("check.toml:"), "{said}");
    assert!(!check(&scratch, &isolated).contains("error:"), "{}", check(&scratch, &isolated));
    let engine = Engine::start(&plain);
    await_orders(engine.admin(), 1);
    drop(engine);
    let mut engine = Engine::spawn(&isolated);
    let end = engine.wait(WAIT_MAX);
    let told = |said: &str| said.contains("has a private key of before keys.isolate") && said.contains("mv ");
    assert!(end.status.code() == Some(1) && told(&end.stderr.join("\n")), "{:#?}", end.stderr);
    assert!(told(&check(&scratch, &isolated)));
    // Beside itself it is within reach as well, and so it is in `process.state`; where the cure says it is not.
    let moved = place.state.join("state/test.before");
    fs::rename(place.account_folder(), &moved).expect("a rename");
    let with_state = isolated.replace(WORKERS, &format!("{WORKERS}state = {:?}\n", place.state.join("state")));
    assert!(!check(&scratch, &isolated).contains("before keys.isolate"), "nothing of it is read");
    let said = check(&scratch, &with_state);
    assert!(told(&said) && said.contains("test.before"), "{said}");
    let beneath = place.state.join("state/mine/of");
    fs::create_dir_all(&beneath).expect("folders");
    fs::rename(&moved, beneath.join("old")).expect("a rename");
    let said = check(&scratch, &with_state);
    let (_, cure) = said.split_once("(mv ").expect(&said);
    let (from, to) = cure.split_once(')').and_then(|(cure, _)| cure.split_once(' ')).expect(&said);
    assert!(Path::new(from).starts_with(&beneath) && Path::new(to).starts_with(place.keys.path()), "{said}");
    fs::rename(beneath, to).expect("as it was told");
    assert!(!check(&scratch, &with_state).contains("before keys.isolate"), "{}", check(&scratch, &with_state));
    let engine = Engine::start(&isolated);
    await_orders(engine.admin(), 1);
    let client = trusting(&pebble.root());
    holds("it is served", || leaf(place.tls, "shop.test", &client).is_ok());
    drop(engine);
    // Whoever checks looks for the key where it is.
    let said = check(&scratch, &isolated);
    assert!(!said.contains("private key") && !said.contains("its key") && !said.contains("error:"), "{said}");
    for name in place.kept(".key") {
        fs::rename(place.store().join(&name), place.keys.join(&name)).expect("a rename");
        assert!(check(&scratch, &isolated).contains("the key process does not have its key"));
        fs::rename(place.keys.join(&name), place.store().join(&name)).expect("a rename");
    }
    // And the other way round.
    let engine = Engine::start(&plain);
    await_orders(engine.admin(), 1);
    holds("another is served", || leaf(place.tls, "shop.test", &client).is_ok());
    let aside =
        files(&place.account_folder()).iter().filter(|(path, _)| path.to_string_lossy().contains(".broken-")).count();
    assert_eq!(aside, 2, "{:#?}", engine.stderr());
}
