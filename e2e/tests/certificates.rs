//! Certificates as clients meet them: which one, with what policy, and new ones while the engine runs.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use propylon_e2e::certificates::{self, leaf_of};
use propylon_e2e::program::{Said, curl, run, s_client};
use propylon_e2e::{Certificates, Client, Engine, Origin, Scratch, holds};
use rcgen::{
    PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ECDSA_P521_SHA512, PKCS_ED25519, PKCS_RSA_SHA256,
    SignatureAlgorithm,
};
use rustix::process::Signal;

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

fn hello() -> Origin {
    Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
}

/// One TLS listener with this `[tls.public]`.
fn config(server: SocketAddr, tls: &str) -> String {
    format!(
        "[process]\nworkers = 2\ndrain_timeout = \"1s\"\n[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n\
         [tls.public]\n{tls}\n[backend.app]\nservers = [\"{server}\"]\n[[route]]\nbackend = \"app\"\n"
    )
}

fn issue(names: &[&str], algorithm: &'static SignatureAlgorithm) -> String {
    Certificates::shared().issue(names, algorithm)
}

/// Replaces a file as it should be done: written beside, renamed over.
fn replace(scratch: &Scratch, name: &str, text: &str) {
    let new = scratch.write(&format!("{name}.new"), text);
    fs::rename(new, scratch.join(name)).expect("a rename within a folder");
}

/// The leaf that a new client is shown, and a whole request on its connection.
fn leaf(address: SocketAddr) -> Vec<u8> {
    certificates::leaf(address, "localhost", &Certificates::shared().client()).expect("a handshake")
}

fn sees(address: SocketAddr, pem: &str) {
    let expected = leaf_of(pem);
    holds("a new client sees the new certificate", || leaf(address) == expected);
}

#[test]
fn certificates_are_swapped_fifty_times_under_load_and_no_client_notices() {
    const SWAPS: usize = 50;
    const CLIENTS: usize = 4;
    let origin = hello();
    let scratch = Scratch::new();
    let first = issue(&["localhost"], &PKCS_ECDSA_P256_SHA256);
    let path = scratch.write("shop.pem", &first);
    let engine = Engine::start(&config(origin.address(), &format!("certificates = [\"{}\"]", path.display())));
    let address = engine.address("web");
    let (stop, served) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut resuming = Certificates::shared().client_for(rustls::DEFAULT_VERSIONS);
    resuming.resumption = rustls::client::Resumption::in_memory_sessions(8);
    let resuming = Arc::new(resuming);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|index| {
                // Half of them resume, and so must not care for the certificate at all.
                let config = if index % 2 == 0 { Certificates::shared().client() } else { Arc::clone(&resuming) };
                let (stop, served) = (&stop, &served);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        // Any failure is a panic, and that a failed test.
                        let mut client = Client::tls_with(address, Arc::clone(&config));
                        for _ in 0..2 {
                            let response = client.ask("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
                            assert_eq!((response.status, response.text().as_str()), (200, "hello\n"));
                        }
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for swap in 0..SWAPS {
            let algorithm = [&PKCS_ECDSA_P256_SHA256, &PKCS_ED25519, &PKCS_ECDSA_P384_SHA384][swap % 3];
            let next = issue(&["localhost"], algorithm);
            replace(&scratch, "shop.pem", &next);
            engine.signal(Signal::HUP);
            sees(address, &next);
            // Between two swaps somebody else has been served as well.
            let before = served.load(Ordering::Relaxed);
            holds("the load goes on", || {
                served.load(Ordering::Relaxed) > before || clients.iter().any(|client| client.is_finished())
            });
        }
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| client.join().expect("a client without failures"));
    });
    engine.metric_reaches("propylon_certificate_reloads_total", &[("result", "success")], SWAPS as f64);
    assert_eq!(engine.metric("propylon_certificate_reloads_total", &[("result", "failure")]), 0.0);
    assert_eq!(engine.metric("propylon_tls_handshake_failures_total", &[]), 0.0);
    assert!(engine.metric("propylon_tls_handshakes_total", &[("resumed", "true")]) > 0.0);
}

#[test]
fn a_broken_file_keeps_what_was_there_and_is_told_of() {
    let origin = hello();
    let scratch = Scratch::new();
    let first = issue(&["localhost"], &PKCS_ECDSA_P256_SHA256);
    let path = scratch.write("shop.pem", &first);
    let other = scratch.write("other.pem", issue(&["other.test"], &PKCS_ECDSA_P256_SHA256));
    let tls = format!("certificates = [\"{}\", \"{}\"]", path.display(), other.display());
    let engine = Engine::start(&config(origin.address(), &tls));
    let address = engine.address("web");
    let next = issue(&["localhost"], &PKCS_ECDSA_P256_SHA256);
    let mut failures = 0.0;
    for (broken, why) in [
        (&next[..next.len() / 2], "not well-formed PEM"),
        ("", "there is no certificate in this file"),
        (&next[..next.find("-----BEGIN PRIVATE").expect("a key")], "there is no private key in this file"),
    ] {
        // The other one is new and good, and does not wait for this one.
        replace(&scratch, "other.pem", &issue(&["other.test"], &PKCS_ECDSA_P256_SHA256));
        replace(&scratch, "shop.pem", broken);
        engine.signal(Signal::HUP);
        failures += 1.0;
        engine.metric_reaches("propylon_certificate_reloads_total", &[("result", "failure")], failures);
        let told = |line: &String| line.contains(why) && line.contains("shop.pem") && line.contains("propylon.toml:");
        holds("the reason is told", || engine.stderr().iter().any(told));
        assert_eq!(leaf(address), leaf_of(&first), "{why}");
    }
    holds("that the old one stays is told", || engine.stderr().iter().any(|line| line.contains("stays in use")));
    assert_eq!(engine.metric("propylon_certificate_reload_errors_total", &[]), failures);
    replace(&scratch, "shop.pem", &next);
    engine.signal(Signal::HUP);
    sees(address, &next);
    engine.metric_reaches("propylon_certificate_reloads_total", &[("result", "success")], 1.0);
}

#[test]
fn clients_come_back_to_their_sessions_after_a_swap() {
    let origin = hello();
    let scratch = Scratch::new();
    let path = scratch.write("shop.pem", issue(&["localhost"], &PKCS_ECDSA_P256_SHA256));
    let engine = Engine::start(&config(origin.address(), &format!("certificates = [\"{}\"]", path.display())));
    let ways = [&["-tls1_3"][..], &["-tls1_2"], &["-tls1_2", "-no_ticket"]];
    let ask = |index: usize, key: &str| {
        let session = scratch.join(&format!("{index}.session")).display().to_string();
        let said = s_client(engine.address("web").port(), &[ways[index], &[key, &session]].concat(), REQUEST);
        assert!(said.text().contains("hello\n"), "{}", said.stderr);
        said.text().contains("\nReused, TLSv")
    };
    assert_eq!([0, 1, 2].map(|index| ask(index, "-sess_out")), [false; 3]);
    let next = issue(&["localhost"], &PKCS_ECDSA_P256_SHA256);
    replace(&scratch, "shop.pem", &next);
    engine.signal(Signal::HUP);
    sees(engine.address("web"), &next);
    assert_eq!([0, 1, 2].map(|index| ask(index, "-sess_in")), [true; 3]);
}

#[test]
fn watched_files_are_taken_up_without_a_signal_however_they_are_replaced() {
    let origin = hello();
    let scratch = Scratch::new();
    // As Kubernetes mounts a secret: tls.crt -> ..data/tls.crt, ..data -> a folder with a date for a name.
    let write = |generation: &str, pem: &str| {
        fs::create_dir(scratch.join(generation)).expect("a folder");
        let (chain, key) = pem.split_at(pem.find("-----BEGIN PRIVATE").expect("a key"));
        scratch.write(&format!("{generation}/tls.crt"), chain);
        scratch.write(&format!("{generation}/tls.key"), key);
        std::os::unix::fs::symlink(generation, scratch.join("..data_tmp")).expect("a link");
        fs::rename(scratch.join("..data_tmp"), scratch.join("..data")).expect("a rename");
    };
    let first = issue(&["localhost"], &PKCS_ECDSA_P256_SHA256);
    write("..2026_1", &first);
    for name in ["tls.crt", "tls.key"] {
        std::os::unix::fs::symlink(Path::new("..data").join(name), scratch.join(name)).expect("a link");
    }
    let tls = format!("certificates = [\"{}\"]\nwatch = \"1s\"", scratch.path().display());
    let engine = Engine::start(&config(origin.address(), &tls));
    let address = engine.address("web");
    assert_eq!(leaf(address), leaf_of(&first));
    let second = issue(&["localhost"], &PKCS_ECDSA_P256_SHA256);
    write("..2026_2", &second);
    sees(address, &second);
    // Half a file, in place: the good one stays, and the rest is taken up when it is there.
    let third = issue(&["localhost"], &PKCS_ECDSA_P256_SHA256);
    let (chain, key) = third.split_at(third.find("-----BEGIN PRIVATE").expect("a key"));
    scratch.write("..2026_2/tls.crt", chain);
    holds("the mismatch is noticed", || {
        engine.metric("propylon_certificate_reloads_total", &[("result", "failure")]) > 0.0
    });
    assert_eq!(leaf(address), leaf_of(&second));
    scratch.write("..2026_2/tls.key", key);
    sees(address, &third);
}

/// A client's offer: `s_client` options, and the type of the certificate that they lead to.
fn matrix(tls: &str, rows: &[(&str, &str)]) {
    let origin = hello();
    let engine = Engine::start(&config(origin.address(), tls));
    let port = engine.address("web").port();
    for (options, expected) in rows {
        let options: Vec<&str> = options.split(' ').filter(|option| !option.is_empty()).collect();
        let said = s_client(port, &options, REQUEST);
        let text = said.text();
        if *expected == "refused" {
            assert!(!text.contains("hello"), "{options:?}: {text}");
            continue;
        }
        assert!(text.contains("hello\n"), "{options:?}: {}\n{text}", said.stderr);
        let signed = text.lines().find(|line| line.to_ascii_lowercase().starts_with("peer signature type:"));
        let signed = signed.unwrap_or_default().to_ascii_lowercase();
        assert!(signed.contains(expected), "{options:?}: {signed}, and not {expected}");
    }
}

#[test]
fn every_client_gets_the_best_certificate_that_it_can_verify() {
    let scratch = Scratch::new();
    let mut list = String::new();
    for (name, algorithm) in [
        ("p256", &PKCS_ECDSA_P256_SHA256),
        ("p384", &PKCS_ECDSA_P384_SHA384),
        ("p521", &PKCS_ECDSA_P521_SHA512),
        ("ed25519", &PKCS_ED25519),
        ("rsa", &PKCS_RSA_SHA256),
    ] {
        list.push_str(&format!(
            "\"{}\", ",
            scratch.write(&format!("{name}.pem"), issue(&["localhost"], algorithm)).display()
        ));
    }
    let tls12 = "-tls1_2 -cipher";
    matrix(
        &format!("certificates = [{list}]"),
        &[
            ("-tls1_3", "ecdsa"),
            ("-tls1_2", "ecdsa"),
            ("-tls1_3 -sigalgs ecdsa_secp384r1_sha384", "ecdsa"),
            ("-tls1_3 -sigalgs ecdsa_secp521r1_sha512:ECDSA+SHA256", "ecdsa"),
            ("-tls1_3 -sigalgs ed25519:ecdsa_secp256r1_sha256", "ecdsa"),
            ("-tls1_3 -sigalgs rsa_pss_rsae_sha256:ecdsa_secp256r1_sha256", "ecdsa"),
            ("-tls1_3 -sigalgs rsa_pss_rsae_sha256", "rsa"),
            ("-tls1_2 -sigalgs rsa_pkcs1_sha256:ecdsa_secp256r1_sha256 -cipher ECDHE-RSA-AES128-GCM-SHA256", "rsa"),
            (&format!("{tls12} ECDHE-RSA-CHACHA20-POLY1305"), "rsa"),
            (&format!("{tls12} ECDHE-ECDSA-AES256-GCM-SHA384"), "ecdsa"),
            (&format!("{tls12} AES128-GCM-SHA256"), "refused"),
            (&format!("{tls12} DHE-RSA-AES128-GCM-SHA256"), "refused"),
            ("-tls1_2 -curves X25519", "ed25519"),
            ("-tls1_3 -servername unknown.test", "ecdsa"),
            ("-noservername", "ecdsa"),
        ],
    );
    matrix(
        &format!("certificates = [{list}]\nprefer = [\"ed25519\", \"rsa\", \"ecdsa\"]"),
        &[
            ("-tls1_3", "ed25519"),
            ("-tls1_2", "ed25519"),
            ("-tls1_2 -sigalgs rsa_pss_rsae_sha256:ecdsa_secp256r1_sha256", "rsa"),
            ("-tls1_3 -sigalgs rsa_pss_rsae_sha256:ecdsa_secp256r1_sha256", "rsa"),
        ],
    );
}

#[test]
fn a_name_without_a_certificate_is_refused_where_names_are_strict() {
    let origin = hello();
    let scratch = Scratch::new();
    let path = scratch.write("shop.pem", issue(&["localhost", "*.shop.test"], &PKCS_ECDSA_P256_SHA256));
    let tls = format!("certificates = [\"{}\"]\nstrict_sni = true", path.display());
    let engine = Engine::start(&config(origin.address(), &tls));
    let port = engine.address("web").port();
    let ask = |options: &[&str]| s_client(port, options, REQUEST);
    assert!(ask(&[]).text().contains("hello\n"));
    assert!(ask(&["-servername", "a.shop.test"]).text().contains("hello\n"));
    let mut refused = 0.0;
    for (options, alert) in [
        (&["-servername", "other.test"][..], "unrecognized name"),
        (&["-servername", "shop.test", "-tls1_2"], "unrecognized name"),
        (&["-noservername", "-tls1_2"], "unrecognized name"),
        (&["-noservername"], "missing extension"),
    ] {
        let said = ask(options);
        assert!(said.stderr.contains(alert), "{options:?}: {}", said.stderr);
        refused += 1.0;
    }
    engine.metric_reaches("propylon_tls_handshake_failures_total", &[("reason", "no-certificate")], refused);
}

#[test]
fn the_type_of_certificate_is_counted_and_logged_and_its_end_is_a_metric() {
    let origin = hello();
    let scratch = Scratch::new();
    let path = scratch.write("ed.pem", issue(&["localhost"], &PKCS_ED25519));
    let tls = format!("certificates = [\"{}\"]", path.display());
    let engine = Engine::start(&config(origin.address(), &tls));
    let said = s_client(engine.address("web").port(), &[], REQUEST);
    assert!(said.text().contains("hello\n"), "{}", said.stderr);
    assert_eq!(engine.logged_path("/")["tls"]["certificate"], "ed25519");
    engine.metric_reaches("propylon_tls_handshakes_total", &[("certificate", "ed25519")], 1.0);
    let labels = [("profile", "public"), ("name", "localhost"), ("type", "ed25519")];
    let expiry = engine.metric("propylon_certificate_expiry_seconds", &labels);
    let text = openssl(&["x509", "-in", &path.display().to_string(), "-noout", "-enddate"]).ok().text();
    assert!(text.contains("4096"), "{text}");
    // The first second of that year, in UTC.
    assert_eq!(expiry, 67_090_118_400.0);
}

fn openssl(arguments: &[&str]) -> Said {
    let mut command = Command::new("openssl");
    command.args(arguments);
    run(command, b"", Duration::from_secs(20))
}

/// A response of the CA's about a certificate.
fn respond(scratch: &Scratch, certificate: &str, status: &str, days: &str) {
    let shared = Certificates::shared();
    let (ca, key) = (shared.ca().display().to_string(), shared.ca_key().display().to_string());
    let pem = scratch.join(certificate).display().to_string();
    let serial = openssl(&["x509", "-in", &pem, "-noout", "-serial"]).ok().text();
    let serial = serial.trim().trim_start_matches("serial=").to_owned();
    let revoked = if status == "R" { "260101000000Z" } else { "" };
    let index =
        scratch.write("index.txt", format!("{status}\t491231235959Z\t{revoked}\t{serial}\tunknown\t/CN=localhost\n"));
    let index = index.display().to_string();
    let out = format!("{pem}.ocsp");
    #[rustfmt::skip]
    openssl(&["ocsp", "-index", &index, "-CA", &ca, "-rsigner", &ca, "-rkey", &key, "-issuer", &ca, "-cert", &pem,
        "-ndays", days, "-respout", &out]);
    assert!(fs::metadata(&out).expect("a response").len() > 100);
}

#[test]
fn an_ocsp_response_beside_the_chain_is_stapled_as_long_as_it_is_good() {
    let origin = hello();
    let scratch = Scratch::new();
    let path = scratch.write("shop.pem", issue(&["localhost"], &PKCS_ECDSA_P256_SHA256));
    let engine = Engine::start(&config(origin.address(), &format!("certificates = [\"{}\"]", path.display())));
    let port = engine.address("web").port();
    let status = |version: &str| s_client(port, &["-status", version], REQUEST).text();
    for version in ["-tls1_2", "-tls1_3"] {
        assert!(status(version).contains("OCSP response: no response sent"), "{version}");
    }
    respond(&scratch, "shop.pem", "V", "7");
    engine.signal(Signal::HUP);
    for version in ["-tls1_2", "-tls1_3"] {
        holds("a response is stapled", || {
            let said = status(version);
            said.contains("OCSP Response Status: successful")
                && said.contains("Cert Status: good")
                && said.contains("hello")
        });
    }
    // A client that does not ask gets none, and is served.
    assert!(s_client(port, &[], REQUEST).text().contains("hello\n"));
    respond(&scratch, "shop.pem", "R", "7");
    engine.signal(Signal::HUP);
    holds("it is told", || engine.stderr().iter().any(|line| line.contains("says that the certificate is revoked")));
    holds("nothing is stapled", || status("-tls1_3").contains("OCSP response: no response sent"));
    // A response about another certificate.
    scratch.write("other.pem", issue(&["localhost"], &PKCS_ECDSA_P256_SHA256));
    respond(&scratch, "other.pem", "V", "7");
    fs::rename(scratch.join("other.pem.ocsp"), scratch.join("shop.pem.ocsp")).expect("a rename");
    engine.signal(Signal::HUP);
    holds("it is told", || engine.stderr().iter().any(|line| line.contains("is not about this certificate")));
    assert!(status("-tls1_3").contains("OCSP response: no response sent"));
}

#[test]
fn curl_verifies_what_it_is_shown_whatever_the_type() {
    let origin = hello();
    for algorithm in [&PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384, &PKCS_ED25519, &PKCS_RSA_SHA256] {
        let scratch = Scratch::new();
        let path = scratch.write("shop.pem", issue(&["localhost"], algorithm));
        let engine = Engine::start(&config(origin.address(), &format!("certificates = [\"{}\"]", path.display())));
        for version in ["1.2", "1.3"] {
            let minimum = format!("--tlsv{version}");
            let said = curl(&[&minimum, "--tls-max", version, &engine.url("web")]).ok();
            assert_eq!(said.text(), "hello\n");
        }
    }
}

#[test]
fn a_listener_may_prefer_otherwise_than_its_profile() {
    let origin = hello();
    let text = format!(
        "{}[listener.phones]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\nprefer = [\"rsa\", \"ecdsa\"]\n",
        config(origin.address(), &Certificates::shared().profile().replace("[tls.public]\n", ""))
    );
    let engine = Engine::start(&text);
    for (listener, expected) in [("web", "ecdsa"), ("phones", "rsa")] {
        let said = s_client(engine.address(listener).port(), &[], REQUEST);
        assert!(said.text().contains("hello\n"), "{}", said.stderr);
        engine.metric_reaches(
            "propylon_tls_handshakes_total",
            &[("listener", listener), ("certificate", expected)],
            1.0,
        );
    }
}
