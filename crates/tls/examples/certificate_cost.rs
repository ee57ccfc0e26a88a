//! Cost of a long certificate chain in a full handshake, sent uncompressed and compressed.
//!
//! `cargo run --release -p propylon-tls --example certificate_cost`
//!
//! Only the server's calls are timed. The kinds take turns with every handshake, and what is shown of each is what a
//! tenth of them stay below, and half of them: other work on the machine is in the rest.

#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use propylon_tls::{Acceptor, Tickets};
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::compress::CertDecompressor;
use rustls::crypto::aws_lc_rs::kx_group;

const HANDSHAKES: usize = 3000;

fn main() {
    let directory = Directory::new();
    let acceptor = |name: &str, pem: String, compression: bool| {
        let mut profile = tls_profile(&[&directory.write(name, pem)]);
        profile.certificate_compression = compression;
        load(&profile).acceptor(&Arc::new(Tickets::new()))
    };
    let long = long_chain();
    let (short, plain) = (acceptor("short.pem", ec(&[NAME]), false), acceptor("plain.pem", long.clone(), false));
    let compressing = acceptor("long.pem", long, true);
    let kinds: [(&str, &Acceptor, &[&'static dyn CertDecompressor]); 6] = [
        ("one certificate", &short, &[]),
        ("three, compression off", &plain, &[]),
        ("three, off, both offered", &plain, &[BROTLI, ZLIB]),
        ("three, on, none offered", &compressing, &[]),
        ("three, zlib", &compressing, &[ZLIB]),
        ("three, brotli", &compressing, &[BROTLI, ZLIB]),
    ];
    let configs = kinds.map(|(_, _, decompressors)| client(decompressors));
    let mut times = [const { Vec::new() }; 6];
    let mut bytes = [0; 6];
    for _ in 0..HANDSHAKES {
        for (index, (_, acceptor, _)) in kinds.iter().enumerate() {
            let (took, sent) = answer(acceptor, &configs[index]);
            times[index].push(took);
            bytes[index] = sent;
        }
    }
    for (index, (name, _, _)) in kinds.iter().enumerate() {
        times[index].sort_unstable();
        let [tenth, half] = [10, 2].map(|part| times[index][HANDSHAKES / part].as_secs_f64() * 1e6);
        println!("{name:28} {tenth:6.1} us, {half:6.1} us, {:5} bytes in the first flight", bytes[index]);
    }
    keys(&directory);
}

/// Cost of making an acceptor of a profile with one key, which a reload does once for each core and listener.
fn keys(directory: &Directory) {
    for (name, pem) in [("P-256", ec(&[NAME])), ("RSA-2048", rsa(&[NAME]))] {
        let profile = load(&tls_profile(&[&directory.write("key.pem", pem)]));
        let tickets = Arc::new(Tickets::new());
        let one = || {
            let started = Instant::now();
            std::hint::black_box(profile.acceptor(&tickets));
            started.elapsed()
        };
        let least = std::iter::repeat_with(one).take(100).min().unwrap();
        println!("an acceptor of one {name:8}  {:6.1} us", least.as_secs_f64() * 1e6);
    }
}

fn client(decompressors: &[&'static dyn CertDecompressor]) -> Arc<ClientConfig> {
    let mut client = Client::tls13();
    client.provider.kx_groups = vec![kx_group::X25519];
    let mut config = (*client.config()).clone();
    config.cert_decompressors = decompressors.to_vec();
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

/// Time of the call that answers the hello, and the length of the answer.
fn answer(acceptor: &Acceptor, config: &Arc<ClientConfig>) -> (Duration, usize) {
    let mut dialogue = Dialogue::new(acceptor, config, NAME);
    let hello = dialogue.client_bytes();
    let started = Instant::now();
    let (_, out) = dialogue.feed(&hello).unwrap();
    (started.elapsed(), out.len())
}
