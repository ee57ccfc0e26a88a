//! Private-key work in batches: many clients at once, of every sort, and none of them notices.

use std::thread;

use propylon_e2e::engine::simple;
use propylon_e2e::program::s_client;
use propylon_e2e::{Engine, Origin, holds};

/// What clients may insist on: version, group, type of certificate key.
const CLIENTS: [&[&str]; 9] = [
    &["-tls1_3", "-groups", "X25519", "-sigalgs", "ECDSA+SHA256"],
    &["-tls1_3", "-groups", "X25519", "-sigalgs", "RSA-PSS+SHA256"],
    &["-tls1_3", "-groups", "P-256", "-sigalgs", "ECDSA+SHA256"],
    &["-tls1_3", "-groups", "P-384", "-sigalgs", "RSA-PSS+SHA512"],
    &["-tls1_2", "-groups", "X25519:P-256", "-sigalgs", "ECDSA+SHA256"],
    &["-tls1_2", "-groups", "X25519", "-sigalgs", "RSA+SHA256"],
    &["-tls1_2", "-groups", "P-256", "-sigalgs", "RSA-PSS+SHA384"],
    &["-tls1_3", "-groups", "P-521:X25519", "-sigalgs", "ECDSA+SHA256"],
    &["-tls1_3"],
];
/// Those among them that are shown the P-256 certificate.
const EC_CLIENTS: usize = 5;
const ROUNDS: usize = 4;

fn config(mode: &str, origin: &Origin) -> String {
    let process = format!("[process]\nworkers = 1\ndrain_timeout = \"1s\"\nbatch = \"{mode}\"\n");
    process + &simple(&[origin.address()])
}

fn all_clients(engine: &Engine) {
    let port = engine.address("web").port();
    thread::scope(|scope| {
        for arguments in CLIENTS.iter().cycle().take(CLIENTS.len() * ROUNDS) {
            scope.spawn(move || {
                let request = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
                let said = s_client(port, arguments, request).ok();
                assert!(said.text().contains("\r\n\r\nhello\n"), "{arguments:?}: {}", said.text());
            });
        }
    });
}

fn jobs(engine: &Engine, work: &str, by: &str) -> f64 {
    engine.metric("propylon_crypto_jobs_total", &[("work", work), ("by", by)])
}

#[test]
fn clients_of_every_sort_at_once_are_served_with_batches_and_without() {
    for mode in ["auto", "off"] {
        let origin = Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n");
        let engine = Engine::start(&config(mode, &origin));
        all_clients(&engine);
        assert_eq!(engine.metric("propylon_crypto_bad_lanes_total", &[]), 0.0);
        assert_eq!(engine.metric("propylon_crypto_checks_total", &[("outcome", "wrong")]), 0.0);
        assert_eq!(engine.metric("propylon_panics_total", &[]), 0.0);
        let on = engine.metric("propylon_crypto_kernel", &[("kernel", "p256")]) > 0.0;
        assert!(!(on && mode == "off"));
        if on {
            // Those in company are the lanes' doing, those alone AWS-LC's; pairs are made ahead for both.
            let signed = || jobs(&engine, "p256-signature", "lanes") + jobs(&engine, "p256-signature", "aws-lc");
            holds("every signature is counted", || signed() >= (EC_CLIENTS * ROUNDS) as f64);
            assert_eq!(jobs(&engine, "x25519-pair", "aws-lc"), 0.0);
        }
    }
}
