//! Certificates that are ordered, from an authority that really asks: Pebble.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use propylon_e2e::certificates::leaf;
use propylon_e2e::pebble::{Options, Pebble, free};
use propylon_e2e::program::{Said, run};
use propylon_e2e::secure::{SecureOrigin, read_request, send};
use propylon_e2e::{Certificates, Client, Engine, Scratch, eventually, holds};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;

/// An order takes seconds: the authority is waited for, and other processes are given time to look.
const ORDER: Duration = Duration::from_secs(60);

/// Where an engine listens, a folder for its state, and what it orders.
struct Place {
    http: SocketAddr,
    tls: SocketAddr,
    state: Scratch,
}

impl Place {
    fn new() -> Place {
        Place { http: free(), tls: free(), state: Scratch::new() }
    }

    fn options(&self) -> Options {
        Options::new(self.http, self.tls)
    }

    /// One plaintext and one TLS listener; `tls` is the rest of its profile, `acme` of the account's section.
    fn config(&self, directory: &str, acme: &str, tls: &str) -> String {
        let ca = Certificates::shared().ca();
        format!(
            "[process]\nworkers = 2\ndrain_timeout = \"1s\"\nshare_address = true\n\
             [listener.plain]\nbind = \"{}\"\n[listener.web]\nbind = \"{}\"\ntls = \"public\"\n\
             [acme.test]\ndirectory = \"{directory}\"\nterms_agreed = true\nca = {ca:?}\nstate = {:?}\nretry = \"1s\"\n{acme}\n\
             [tls.public]\n{tls}\n[[route]]\nrespond = {{ status = 200, body = \"routed\" }}\n",
            self.http,
            self.tls,
            self.folder(),
        )
    }

    fn folder(&self) -> PathBuf {
        self.state.join("state")
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder().join("test/certificates")).expect("a folder");
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.sort();
        files
    }
}

/// `certificates` with one that is ordered for these names.
fn ordered(names: &[&str]) -> String {
    format!("certificates = [{{ acme = \"test\", names = {names:?} }}]")
}

/// How it stands with the certificates of the one account.
fn status(engine: &Engine) -> Value {
    let request = format!("GET /snapshot HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", engine.admin());
    let text = Client::plain(engine.admin()).ask(request).text();
    let snapshot: Value = serde_json::from_str(&text).expect("JSON");
    snapshot["acme"][0].clone()
}

fn succeeded(engine: &Engine) -> u64 {
    status(engine)["orders"]["succeeded"].as_u64().unwrap_or(0)
}

#[track_caller]
fn await_orders(engine: &Engine, count: u64) {
    eventually(ORDER, "orders succeed", || (succeeded(engine) >= count).then_some(()));
}

/// Waits until every worker serves so many certificates, those among them that are not ordered.
#[track_caller]
fn await_in_use(engine: &Engine, count: u64) {
    let request = format!("GET /snapshot HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", engine.admin());
    eventually(ORDER, "certificates are in use", || {
        let snapshot: Value = serde_json::from_str(&Client::plain(engine.admin()).ask(&request).text()).ok()?;
        (snapshot["certificates_total"].as_u64()? == count).then_some(())
    });
}

fn trusting(root: &Path) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    let pem = fs::read(root).expect("a root");
    roots.add(CertificateDer::from_pem_slice(&pem).expect("a certificate")).expect("a usable root");
    ClientConfig::builder_with_provider(rustls::crypto::aws_lc_rs::default_provider().into())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth()
}

/// `curl` that trusts Pebble's root alone.
fn curl_to(address: SocketAddr, name: &str, root: &Path, more: &[&str]) -> Said {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--noproxy", "*", "--cacert"]).arg(root);
    command.arg("--resolve").arg(format!("{name}:{}:127.0.0.1", address.port()));
    command.args(more).arg(format!("https://{name}:{}/", address.port()));
    run(command, b"", Duration::from_secs(30))
}

/// `openssl s_client`, which shows what it is given and believes anything.
fn s_client(address: SocketAddr, arguments: &[&str]) -> String {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect"]).arg(address.to_string()).args(arguments);
    let said = run(command, b"", Duration::from_secs(20));
    said.text() + &said.stderr
}

fn inspected(pem: &str) -> String {
    let mut command = Command::new("openssl");
    command.args(["x509", "-noout", "-text"]);
    run(command, pem.as_bytes(), Duration::from_secs(20)).text()
}

#[test]
fn both_challenges_bring_certificates_that_curl_and_openssl_verify_and_a_restart_orders_none() {
    let place = Place::new();
    let pebble = Pebble::start(Options { rejects: 15, ..place.options() });
    let ca = Certificates::shared().ca();
    // The second account goes by http-01; its certificates are of both types, side by side.
    let second = format!(
        "[acme.second]\ndirectory = \"{}\"\nca = {ca:?}\nterms_agreed = true\nstate = {:?}\nchallenge = \"http-01\"\nretry = \"1s\"",
        pebble.directory(),
        place.folder(),
    );
    let tls = "strict_sni = true\nja4 = true\ncertificates = [\
               { acme = \"test\", names = [\"Shop.test\", \"www.shop.test\"] }, \
               { acme = \"second\", names = [\"api.test\"], key_types = [\"ecdsa\", \"rsa\"] }]";
    let contact = "contact = \"mailto:ops@shop.test\"";
    let config = place.config(&pebble.directory(), &format!("{contact}\n{second}"), tls);
    let engine = Engine::start(&config);
    assert!(engine.stderr().iter().any(|line| line.contains("the certificate is not there yet")));
    let root = pebble.root();
    let orders = |engine: &Engine| engine.metric("propylon_acme_orders_total", &[("result", "success")]);
    eventually(ORDER, "three orders", || (orders(&engine) == 3.0).then_some(()));
    await_in_use(&engine, 3);
    for name in ["shop.test", "www.shop.test", "api.test"] {
        assert_eq!(curl_to(place.tls, name, &root, &[]).ok().text(), "routed");
    }
    let rsa = ["--tlsv1.2", "--tls-max", "1.2", "--ciphers", "ECDHE-RSA-AES128-GCM-SHA256"];
    curl_to(place.tls, "api.test", &root, &rsa).ok();
    let root = root.to_str().expect("a path");
    let verified = s_client(place.tls, &["-servername", "shop.test", "-verify_return_error", "-CAfile", root]);
    assert!(verified.contains("Verify return code: 0 (ok)"), "{verified}");
    // HTTP/2 is agreed on as ever.
    let agreed = s_client(place.tls, &["-servername", "shop.test", "-alpn", "h2,http/1.1"]);
    assert!(agreed.contains("ALPN protocol: h2"), "{agreed}");
    assert!(engine.metric("propylon_acme_challenges_answered_total", &[("type", "tls-alpn-01")]) >= 2.0);
    assert!(engine.metric("propylon_acme_challenges_answered_total", &[("type", "http-01")]) >= 2.0);
    assert!(engine.metric("propylon_certificate_expiry_seconds", &[("name", "shop.test")]) > 0.0);
    let inodes = |place: &Place| -> BTreeSet<u64> {
        place.files().iter().map(|file| fs::metadata(file).expect("a file").ino()).collect()
    };
    for path in place.files() {
        assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600, "{}", path.display());
    }
    assert_eq!(fs::metadata(place.folder().join("test")).expect("a folder").permissions().mode() & 0o777, 0o700);
    let before = inodes(&place);
    drop(engine);

    // The authority is gone for good: nobody must miss it.
    drop(pebble);
    let engine = Engine::start(&config);
    eventually(ORDER, "the thread has looked", || {
        (status(&engine)["certificates"][0]["state"] == "good").then_some(())
    });
    assert_eq!(asked_without_verifying(&place), "routed");
    assert_eq!(engine.metric("propylon_acme_orders_total", &[]), 0.0);
    assert_eq!(inodes(&place), before);
}

/// A request over a handshake that nobody verifies.
fn asked_without_verifying(place: &Place) -> String {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--noproxy", "*", "--insecure", "--resolve"]);
    command.arg(format!("shop.test:{}:127.0.0.1", place.tls.port()));
    command.arg(format!("https://shop.test:{}/", place.tls.port()));
    run(command, b"", Duration::from_secs(30)).ok().text()
}

#[test]
#[ignore = "long: make test-long"]
fn a_certificate_is_replaced_under_load_and_no_handshake_fails() {
    let place = Place::new();
    // It may be replaced after a sixth of its time, and here it is to be as soon as it may.
    let pebble = Pebble::start(Options { validity_seconds: 60, ..place.options() });
    let acme = "renew_before = \"10h\"\norders_per_hour = 1000";
    let engine = Engine::start(&place.config(&pebble.directory(), acme, &ordered(&["shop.test"])));
    let client = Arc::new(trusting(&pebble.root()));
    await_orders(&engine, 1);
    await_in_use(&engine, 1);
    let (stop, handshakes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let load = |_| {
            scope.spawn(|| {
                let mut seen = BTreeSet::new();
                while !stop.load(Ordering::Relaxed) {
                    // A failure is a panic, and that a failed test.
                    seen.insert(leaf(place.tls, "shop.test", &client).expect("a handshake"));
                    handshakes.fetch_add(1, Ordering::Relaxed);
                }
                seen.len()
            })
        };
        let clients: Vec<_> = (0..3).map(load).collect();
        let finished = || clients.iter().any(|client| client.is_finished());
        eventually(ORDER, "two renewals", || (succeeded(&engine) >= 3 || finished()).then_some(()));
        let before = handshakes.load(Ordering::Relaxed);
        holds("the load goes on", || handshakes.load(Ordering::Relaxed) > before + 50 || finished());
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            assert!(client.join().expect("a client without failures") >= 2);
        }
    });
    assert_eq!(engine.metric("propylon_certificate_reloads_total", &[("result", "failure")]), 0.0);
}

#[test]
#[ignore = "long: make test-long"]
fn an_authority_that_is_gone_is_asked_ever_less_often_and_what_was_there_is_served() {
    let place = Place::new();
    let mut pebble = Pebble::start(Options { validity_seconds: 120, ..place.options() });
    let acme = "renew_before = \"10h\"";
    let engine = Engine::start(&place.config(&pebble.directory(), acme, &ordered(&["shop.test"])));
    let client = Arc::new(trusting(&pebble.root()));
    await_orders(&engine, 1);
    await_in_use(&engine, 1);
    let first = leaf(place.tls, "shop.test", &client).expect("a handshake");
    pebble.fall();
    eventually(ORDER, "three failures", || {
        (engine.metric("propylon_acme_failures", &[("name", "shop.test")]) >= 3.0).then_some(())
    });
    let certificate = status(&engine)["certificates"][0].clone();
    assert!(certificate["problem"].as_str().expect("a problem").contains("cannot be reached"), "{certificate}");
    assert!(certificate["next_attempt"].as_i64().is_some(), "{certificate}");
    assert_eq!(leaf(place.tls, "shop.test", &client).expect("a handshake"), first);
    let failed = |line: &String| line.contains("next attempt in") && line.contains("what is served stays");
    assert!(engine.stderr().iter().any(failed));
    // Risen, it knows the account no more; that costs one more attempt.
    pebble.rise();
    await_orders(&engine, 2);
    let second = Arc::new(trusting(&pebble.root()));
    holds("the new one is served", || leaf(place.tls, "shop.test", &second).is_ok());
    let gone = |line: &String| line.contains("does not know the account");
    assert!(engine.stderr().iter().any(gone), "{}", engine.stderr().join("\n"));
}

#[test]
fn an_authority_that_finds_nobody_is_quoted_and_other_names_are_served() {
    let place = Place::new();
    // The authority asks where nobody listens, and has no other reason to refuse an order.
    let pebble = Pebble::start(Options { rejects: 0, ..Options::new(free(), free()) });
    let other = Certificates::shared().ec();
    let tls = format!("certificates = [{other:?}, {{ acme = \"test\", names = [\"gone.test\"] }}]");
    let engine = Engine::start(&place.config(&pebble.directory(), "orders_per_hour = 3", &tls));
    let problem = eventually(ORDER, "the authority's word", || {
        let problem = status(&engine)["certificates"][0]["problem"].as_str().map(str::to_owned)?;
        problem.contains("the authority says").then_some(problem)
    });
    // It may have looked before it is asked what it found.
    assert!(problem.contains("gone.test") && problem.contains(": the authority says "), "{problem}");
    // The name gets what any unknown name gets.
    assert_eq!(engine.client("web").get("/").text(), "routed");
    // Three orders and no more, in this hour, however often it is started.
    eventually(ORDER, "three orders", || {
        (engine.metric("propylon_acme_orders_total", &[("result", "failure")]) == 3.0).then_some(())
    });
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").as_secs() as f64;
    let next = |engine: &Engine| engine.metric("propylon_acme_next_attempt_seconds", &[]);
    eventually(ORDER, "a long wait", || (next(&engine) > now() + 3000.0).then_some(()));
    let config = fs::read_to_string(engine.folder().join("propylon.toml")).expect("a configuration");
    drop(engine);
    let engine = Engine::start(&config);
    eventually(ORDER, "the thread has looked", || (status(&engine)["certificates"][0]["state"] == "due").then_some(()));
    assert!(next(&engine) > now() + 3000.0);
    assert_eq!(engine.metric("propylon_acme_orders_total", &[]), 0.0);
}

#[test]
fn an_authority_that_limits_us_is_not_asked_before_it_says() {
    let place = Place::new();
    let pem = fs::read_to_string(Certificates::shared().ec()).expect("a certificate");
    let limiting = SecureOrigin::scripted(&pem, rustls::ALL_VERSIONS, |_, stream| {
        let Some(request) = read_request(stream) else { return };
        let request = String::from_utf8_lossy(&request).into_owned();
        let host = request.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("host: ").map(str::to_owned));
        let base = format!("https://{}", host.expect("a host"));
        let directory = format!(
            "{{\"newNonce\":\"{base}/nonce\",\"newAccount\":\"{base}/account\",\"newOrder\":\"{base}/order\"}}"
        );
        let limited =
            "{\"type\":\"urn:ietf:params:acme:error:rateLimited\",\"detail\":\"too \\u001b[31mmany\",\"status\":429}";
        let (status, fields, body) = match request.split(' ').nth(1).expect("a path") {
            "/dir" => ("200 OK", String::new(), directory.as_str()),
            "/nonce" => ("200 OK", String::new(), ""),
            "/account" => ("201 Created", format!("Location: {base}/account/1\r\n"), "{\"status\":\"valid\"}"),
            _ => ("429 Too Many Requests", "Retry-After: 7200\r\n".to_owned(), limited),
        };
        let length = body.len();
        send(
            stream,
            format!(
                "HTTP/1.1 {status}\r\nReplay-Nonce: bm9uY2U\r\n{fields}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            ),
        );
    });
    let directory = format!("https://localhost:{}/dir", limiting.address().port());
    let other = Certificates::shared().ec();
    let tls = format!("certificates = [{other:?}, {{ acme = \"test\", names = [\"shop.test\"] }}]");
    let engine = Engine::start(&place.config(&directory, "", &tls));
    eventually(ORDER, "it is limited", || {
        (engine.metric("propylon_acme_orders_total", &[("result", "rate-limited")]) == 1.0).then_some(())
    });
    let certificate = status(&engine)["certificates"][0].clone();
    assert_eq!(certificate["problem"], "a new order: the authority says rateLimited: too  [31mmany");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").as_secs() as i64;
    let wait = certificate["next_attempt"].as_i64().expect("a time") - now;
    assert!((7000..=7200).contains(&wait), "{wait}");
}

#[test]
fn an_account_is_bound_to_one_that_the_authority_has_otherwise() {
    const KEY: &str = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
    let place = Place::new();
    let pebble = Pebble::start(Options { external: Some(KEY), ..place.options() });
    let key = place.state.write("key", format!("{KEY}\n"));
    let external = format!("external_account = {{ id = \"kid-1\", key = {key:?} }}");
    let engine = Engine::start(&place.config(&pebble.directory(), &external, &ordered(&["shop.test"])));
    await_orders(&engine, 1);
    let mut shown = Client::plain(engine.admin());
    let request = format!("GET /config HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", engine.admin());
    let shown = shown.ask(request).text();
    assert!(shown.contains("kid-1") && !shown.contains(KEY), "{shown}");
}

#[test]
fn a_challenge_is_answered_by_whichever_process_is_asked_and_nothing_else_comes_by_its_certificate() {
    let place = Place::new();
    // Nobody is at home: whatever is outstanding is what the story has put there, as another process would.
    let ca = Certificates::shared().ca();
    let auth = format!(
        "strict_sni = true\nja4 = true\nclient_auth = {{ ca = {ca:?} }}\ncertificates = [{:?}, {{ acme = \"test\", names = [\"mine.test\"] }}]",
        Certificates::shared().ec(),
    );
    let engine = Engine::start(&place.config("https://localhost:1/dir", "", &auth));
    let challenges = place.folder().join("test/challenges");
    holds("the folder is there", || challenges.is_dir());
    let until = i64::from(u32::MAX);
    let write = |token: &str, name: &str, kind: &str| {
        let text = format!(
            "{{\"name\":\"{name}\",\"token\":\"{token}\",\"key_authorization\":\"{token}.thumb\",\"challenge\":\"{kind}\",\"until\":{until}}}"
        );
        let new = place.state.write("new", text);
        fs::rename(new, challenges.join(format!("{token}.json"))).expect("a rename");
    };
    write("web-token", "web.test", "http-01");
    write("alpn-token", "alpn.test", "tls-alpn-01");
    let path = "/.well-known/acme-challenge/web-token";
    holds("http-01 is answered", || engine.client("plain").get(path).text() == "web-token.thumb");
    let answer = engine.client("plain").get(path);
    assert_eq!((answer.status, answer.field("content-type")), (200, Some("application/octet-stream")));
    let mut client = engine.client("plain");
    client.send(format!("HEAD {path} HTTP/1.1\r\nHost: web.test\r\nConnection: close\r\n\r\n"));
    let head = client.read_head().to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 200 ") && head.contains("content-length: 15\r\n"), "{head}");
    for other in ["/.well-known/acme-challenge/other", "/.well-known/acme-challenge/", &format!("{path}/")] {
        assert_eq!(engine.client("plain").get(other).text(), "routed", "{other}");
    }
    let posted = "POST /.well-known/acme-challenge/web-token HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    assert_eq!(engine.client("plain").ask(posted).text(), "routed");

    let is_challenge = |text: &str| inspected(text).contains("1.3.6.1.5.5.7.1.31: critical");
    for version in ["-tls1_2", "-tls1_3"] {
        let asked = |more: &[&str]| s_client(place.tls, &[&["-alpn", "acme-tls/1", version], more].concat());
        let answered = asked(&["-servername", "alpn.test"]);
        let text = inspected(&answered);
        assert!(is_challenge(&answered), "{answered}\n{text}");
        assert!(text.contains("DNS:alpn.test\n") && !text.contains("DNS:localhost"), "{text}");
        // Nobody is asked for a certificate, and the connection is closed by us.
        assert!(answered.contains("ALPN protocol: acme-tls/1"), "{answered}");
        assert!(answered.contains("No client certificate CA names sent"), "{answered}");
        assert!(!is_challenge(&asked(&["-servername", "localhost"])));
        assert!(!is_challenge(&asked(&["-noservername"])));
        // It is for nobody else, however close.
        for alpn in ["acme-tls/1,h2", "h2,acme-tls/1", "h2", "acme-tls/10", "acme-tls/"] {
            let other = s_client(place.tls, &["-alpn", alpn, version, "-servername", "alpn.test"]);
            assert!(!is_challenge(&other), "{alpn}: {other}");
        }
        assert!(!is_challenge(&s_client(place.tls, &[version, "-servername", "alpn.test"])));
    }
    fs::remove_file(challenges.join("alpn-token.json")).expect("a challenge");
    fs::remove_file(challenges.join("web-token.json")).expect("a challenge");
    holds("it is withdrawn", || engine.client("plain").get(path).text() == "routed");
    holds("and so is the certificate", || {
        !is_challenge(&s_client(place.tls, &["-alpn", "acme-tls/1", "-servername", "alpn.test"]))
    });
}

#[test]
fn of_two_processes_that_share_a_folder_one_orders_and_both_answer_and_serve() {
    let place = Place::new();
    let pebble = Pebble::start(place.options());
    let names: Vec<String> = (0..6).map(|index| format!("n{index}.test")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let config = place.config(&pebble.directory(), "challenge = \"http-01\"", &ordered(&names));
    // Both listen on the same addresses: the kernel leads the authority to either.
    let engines = [Engine::start(&config), Engine::start(&config)];
    eventually(ORDER, "an order", || (engines.iter().map(succeeded).sum::<u64>() == 1).then_some(()));
    let states =
        || engines.each_ref().map(|engine| status(engine)["certificates"][0]["state"].as_str().map(str::to_owned));
    let both = |one: &str, other: &str| Some([one, other].map(|state| Some(state.to_owned())));
    holds("one has it, the other sees to nothing", || {
        let states = Some(states());
        states == both("good", "elsewhere") || states == both("elsewhere", "good")
    });
    for engine in &engines {
        let in_use = |line: &String| line.contains("certificates were read again: 1 in use");
        holds("it is served by both", || engine.stderr().iter().any(in_use));
    }
    let client = Arc::new(trusting(&pebble.root()));
    for _ in 0..20 {
        leaf(place.tls, "n3.test", &client).expect("a handshake with either");
    }
    let answered = |engine: &Engine| engine.metric("propylon_acme_challenges_answered_total", &[("type", "http-01")]);
    assert!(engines.iter().map(answered).sum::<f64>() >= 6.0);
    // The one that orders is gone, and the other takes over.
    let [first, second] = engines;
    let (owner, other) = match status(&first)["certificates"][0]["state"] == "good" {
        true => (first, second),
        false => (second, first),
    };
    drop(owner);
    holds("the other has the lock", || status(&other)["certificates"][0]["state"] == "good");
    assert_eq!(succeeded(&other), 0);
}

#[test]
fn a_stored_file_that_is_broken_is_set_aside_and_ordered_anew() {
    let place = Place::new();
    let pebble = Pebble::start(place.options());
    let config = place.config(&pebble.directory(), "", &ordered(&["shop.test"]));
    let engine = Engine::start(&config);
    await_orders(&engine, 1);
    drop(engine);
    let file = place.files().pop().expect("a certificate");
    let whole = fs::read(&file).expect("a certificate");
    fs::write(&file, &whole[..whole.len() / 2]).expect("a torn file");
    let engine = Engine::start(&config);
    await_orders(&engine, 1);
    let client = Arc::new(trusting(&pebble.root()));
    holds("the new one is served", || leaf(place.tls, "shop.test", &client).is_ok());
    let aside = place.files().into_iter().find(|path| path.to_string_lossy().contains(".broken-"));
    assert_eq!(fs::read(aside.expect("it is kept")).expect("a file"), &whole[..whole.len() / 2]);
    assert!(engine.stderr().iter().any(|line| line.contains("cannot be used") && line.contains(".broken-")));
}

/// The TOML of an engine, changed and read again.
fn change(engine: &Engine, config: &str) {
    let path = engine.folder().join("propylon.toml");
    let whole = fs::read_to_string(&path).expect("a configuration");
    // What the harness has put in front of it stays.
    let start = whole.find("[process]").expect("the beginning of ours");
    fs::write(&path, whole[..start].to_owned() + config).expect("a configuration");
    engine.signal(rustix::process::Signal::HUP);
}

#[test]
fn a_change_of_the_configuration_orders_what_is_new_and_forgets_what_is_gone() {
    let place = Place::new();
    let pebble = Pebble::start(place.options());
    let other = Certificates::shared().ec();
    let plain = format!("certificates = [{other:?}]");
    // The account is there, and nothing is ordered by it.
    let engine = Engine::start(&place.config(&pebble.directory(), "", &plain));
    assert_eq!(status(&engine), Value::Null);
    change(&engine, &place.config(&pebble.directory(), "", &ordered(&["a.test"])));
    await_orders(&engine, 1);
    let client = Arc::new(trusting(&pebble.root()));
    await_in_use(&engine, 1);
    // Another name makes it another certificate; until that is there the first is not missed for a moment.
    change(&engine, &place.config(&pebble.directory(), "", &ordered(&["a.test", "b.test"])));
    eventually(ORDER, "the second is ordered", || {
        leaf(place.tls, "a.test", &client).expect("a certificate for a.test all the while");
        (succeeded(&engine) == 2).then_some(())
    });
    holds("the second is served", || leaf(place.tls, "b.test", &client).is_ok());
    assert_eq!(status(&engine)["certificates"].as_array().map(Vec::len), Some(1));
    change(&engine, &place.config(&pebble.directory(), "", &plain));
    holds("nothing is ordered any more", || status(&engine) == Value::Null);
    // It is said when every worker goes by it.
    let in_effect = |line: &&String| line.contains("the configuration is in effect");
    holds("the third change is in effect", || engine.stderr().iter().filter(in_effect).count() == 3);
    assert_eq!(engine.client("web").get("/").text(), "routed");
    // What was kept is found again, and nobody is asked for it.
    let directory = pebble.directory();
    drop(pebble);
    change(&engine, &place.config(&directory, "", &ordered(&["a.test", "b.test"])));
    holds("it is served again", || leaf(place.tls, "b.test", &client).is_ok());
    holds("it is good", || status(&engine)["certificates"][0]["state"] == "good");
    assert_eq!(succeeded(&engine), 0);
}
