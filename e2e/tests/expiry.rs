//! What ends while it is in use: it is told of before, counted, and replaced by what is still good where there is something.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, SystemTime};

use propylon_e2e::engine::with;
use propylon_e2e::program::{run, s_client};
use propylon_e2e::{Certificates, Client, Engine, Origin, Scratch, binaries, holds};
use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, SignatureAlgorithm};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use serde_json::Value;

const HOUR: Duration = Duration::from_secs(3600);
/// Time that is left of lives when a story begins. Where an engine took longer to start, since the machine has other
/// work, the story begins anew with the next.
const LEFT: [Duration; 3] = [Duration::from_secs(6), Duration::from_secs(18), Duration::from_secs(54)];
const REQUEST: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

fn hello() -> Origin {
    Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
}

fn issue(algorithm: &'static SignatureAlgorithm, to: SystemTime) -> String {
    Certificates::shared().issue_between(&["localhost"], algorithm, (SystemTime::now() - HOUR * 300, to))
}

fn config(server: SocketAddr, tls: &str) -> String {
    format!(
        "[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n[tls.public]\n{tls}\n\
         [backend.app]\nservers = [\"{server}\"]\n[[route]]\nbackend = \"app\"\n"
    )
}

/// An engine that has started before the end of what `prepare` makes, with the configuration that this returns.
fn start_before_end(mut prepare: impl FnMut(SystemTime) -> String) -> (Engine, SystemTime) {
    for left in LEFT {
        let end = SystemTime::now() + left;
        let engine = Engine::start(&prepare(end));
        if SystemTime::now() + Duration::from_secs(2) < end {
            return (engine, end);
        }
    }
    panic!("no engine starts within {:?}", LEFT[2]);
}

/// The type of certificate by which a client that heeds dates is served, if it accepts one.
fn served(engine: &Engine) -> Option<Value> {
    let mut socket = std::net::TcpStream::connect(engine.address("web")).expect("a connection");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    let name = ServerName::try_from("localhost").expect("a name");
    let mut tls = ClientConnection::new(Certificates::shared().client(), name).expect("a client");
    while tls.is_handshaking() {
        tls.complete_io(&mut socket).ok()?;
    }
    drop((tls, socket));
    let mut client = Client::tls(engine.address("web"));
    let path = format!("/{}", engine.log().len());
    client.get(&path);
    Some(engine.logged_path(&path)["tls_certificate"].clone())
}

fn admin(engine: &Engine, path: &str) -> Value {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", engine.admin());
    serde_json::from_str(&Client::plain(engine.admin()).ask(request).text()).expect("JSON")
}

fn says(engine: &Engine, words: &[&str]) -> bool {
    engine.stderr().iter().any(|line| words.iter().all(|word| line.contains(word)))
}

#[test]
fn a_certificate_that_expires_while_it_is_served_is_told_of_and_gives_way_to_one_of_another_type() {
    let (origin, scratch) = (hello(), Scratch::new());
    let rsa = scratch.write("rsa.pem", issue(&PKCS_RSA_SHA256, SystemTime::now() + HOUR * 24 * 90));
    let (engine, end) = start_before_end(|end| {
        let ec = scratch.write("ec.pem", issue(&PKCS_ECDSA_P256_SHA256, end));
        let tls = format!("certificates = [\"{}\", \"{}\"]", ec.display(), rsa.display());
        config(origin.address(), &tls)
    });
    let ecdsa = |engine: &Engine| s_client(engine.address("web").port(), &[], REQUEST).text().contains("ECDSA");
    let was_ecdsa = ecdsa(&engine);
    assert!(was_ecdsa || SystemTime::now() >= end, "the preferred one, while it is good");
    assert!(says(&engine, &["warning", "the certificate expires on", "second"]), "a warning at the start");
    // Whoever asks before is told as well.
    let mut check = Command::new(binaries::propylon());
    let text = run(
        {
            check.args(["check", "-c"]).arg(engine.folder().join("propylon.toml"));
            check
        },
        b"",
        Duration::from_secs(30),
    );
    assert!(text.stderr.contains("the certificate expire"), "{}", text.stderr);
    holds("the log tells of the end", || {
        says(&engine, &["error", "ec.pem", "the certificate for localhost has expired"])
    });
    assert!(SystemTime::now() > end);
    assert!(!ecdsa(&engine), "the one that is good");
    assert!(served(&engine).is_some(), "a client that heeds dates is served");
    let profile = |left| [("profile", "public"), ("days_left", left)];
    assert_eq!(engine.metric("propylon_certificates_by_days_left", &profile("expired")), 1.0);
    assert_eq!(engine.metric("propylon_certificates_by_days_left", &profile("over-30")), 1.0);
    let seconds = end.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    assert_eq!(engine.metric("propylon_certificate_expiry_seconds", &[("type", "ecdsa")]), seconds as f64);
    let snapshot = admin(&engine, "/snapshot");
    assert_eq!(snapshot["certificates"][0]["not_after"], seconds);
    // `explain` says what clients meet.
    let mut explain = Command::new(binaries::propylon());
    explain.args(["explain", "-c"]).arg(engine.folder().join("propylon.toml")).args([
        "https://localhost/",
        "--listener",
        "web",
    ]);
    let said = run(explain, b"", Duration::from_secs(30));
    let (rsa_at, ec_at) = (said.text().find("rsa.pem"), said.text().find("ec.pem"));
    assert!(rsa_at.is_some() && ec_at.is_none_or(|at| at > rsa_at.unwrap_or(0)), "{}", said.text());
}

#[test]
fn when_every_certificate_has_expired_the_preferred_one_is_served_all_the_same() {
    let (origin, scratch) = (hello(), Scratch::new());
    let ec = scratch.write("ec.pem", issue(&PKCS_ECDSA_P256_SHA256, SystemTime::now() - HOUR));
    let rsa = scratch.write("rsa.pem", issue(&PKCS_RSA_SHA256, SystemTime::now() - HOUR * 5));
    let tls = format!("certificates = [\"{}\", \"{}\"]", rsa.display(), ec.display());
    let engine = Engine::start(&config(origin.address(), &tls));
    let said = s_client(engine.address("web").port(), &[], REQUEST);
    let (shown, why) = (said.text(), said.stderr);
    assert!(shown.contains("a:PKEY: id-ecPublicKey") && why.contains("certificate has expired"), "{shown}\n{why}");
    assert!(says(&engine, &["warning", "the certificate expired on"]), "{:?}", engine.stderr());
    assert!(served(&engine).is_none(), "who heeds dates refuses it");
}

#[test]
fn many_that_expire_at_once_do_not_flood_the_log() {
    const COUNT: usize = 60;
    let (origin, scratch) = (hello(), Scratch::new());
    std::fs::create_dir(scratch.join("many")).expect("a folder");
    let (engine, _) = start_before_end(|end| {
        for index in 0..COUNT {
            let name = format!("{index}.test");
            let between = (SystemTime::now() - HOUR * 300, end);
            let pem = Certificates::shared().issue_between(&[&name], &PKCS_ECDSA_P256_SHA256, between);
            scratch.write(&format!("many/{index}.pem"), pem);
        }
        config(origin.address(), &format!("certificates = [\"{}\"]", scratch.join("many").display()))
    });
    holds("it is told how many more there are", || says(&engine, &["others have come nearer to their end"]));
    let lines = engine.stderr().iter().filter(|line| line.contains("has expired: ")).count();
    assert_eq!(lines, 20);
    assert_eq!(engine.metric("propylon_certificates_by_days_left", &[("days_left", "expired")]), COUNT as f64);
}

#[test]
fn what_is_shown_to_servers_and_revocation_lists_are_told_of_too() {
    let (origin, scratch) = (hello(), Scratch::new());
    let client = scratch.write("client.pem", issue(&PKCS_ECDSA_P256_SHA256, SystemTime::now() + HOUR * 5));
    let ca = Certificates::shared().ca();
    let ca = ca.display();
    let backend = format!("tls = {{ ca = \"{ca}\", certificate = \"{}\" }}", client.display());
    let profile = Certificates::shared().profile();
    let (engine, end) = start_before_end(|end| {
        let list = scratch.write("list.pem", Certificates::shared().revocation_list((SystemTime::now() - HOUR, end)));
        let auth = format!("client_auth = {{ ca = \"{ca}\", mode = \"optional\", crl = \"{}\" }}\n", list.display());
        format!("{profile}{auth}{}", with(&[origin.address()], "", &backend))
    });
    assert!(says(&engine, &["warning", "the certificate expires on", "hours"]), "{:?}", engine.stderr());
    holds("the list's end is told", || says(&engine, &["error", "list.pem", "the revocation list has expired"]));
    let seconds = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs() as f64;
    assert_eq!(engine.metric("propylon_other_expiry_seconds", &[("kind", "revocation-list")]), seconds(end));
    let told = engine
        .metric("propylon_other_expiry_seconds", &[("kind", "client-certificate"), ("of", "backend \\\"app\\\"")]);
    assert!(told > seconds(SystemTime::now() + HOUR * 4));
    let snapshot = admin(&engine, "/snapshot");
    let kinds: Vec<&str> = snapshot["other_expiries"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|each| each["kind"].as_str().expect("a word"))
        .collect();
    assert_eq!(kinds, ["revocation-list", "client-certificate"]);
}
