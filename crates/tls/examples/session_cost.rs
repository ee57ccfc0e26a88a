//! Cost of sessions on this machine: memory of an idle one, time of a handshake, speed of records.
//!
//! `cargo run --release -p propylon-tls --example session_cost`
//!
//! `... --example session_cost parked`: handshakes whose private-key work is set aside, beside the same ones where it
//! is not, with 1, 32 and 256 of them at once; and what a parked one holds.
//!
//! Only the server's calls are timed; the clients run in between, on the same core.

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use propylon_config::Resumption;
use propylon_crypto::Job;
use propylon_tls::{Acceptor, Deferral, Parking, ParkingLimits, Session, Step, Tickets};
use rustls::ClientConfig;
use rustls::client::Tls12Resumption;
use rustls::crypto::aws_lc_rs::{cipher_suite, kx_group};

const SESSIONS: usize = 10_000;
const HANDSHAKES: u32 = 2_000;

fn main() {
    let acceptor = profile().acceptor(&Arc::new(Tickets::new()));
    match std::env::args().nth(1).as_deref() {
        Some("parked") => return parked(&acceptor),
        Some("parked-memory") => return parked_memory(std::env::args().nth(2).is_some()),
        _ => {}
    }
    if let Some(version) = std::env::args().nth(1) {
        match version.as_str() {
            "resumptions" => return resumptions(),
            // For a profiler: nothing but this.
            "resumed" => return handshakes("1.3 resumed", &acceptor, &classic(Client::tls13()).config()),
            _ => {}
        }
        return memory(&version, std::env::args().nth(2).is_some(), &acceptor);
    }
    println!("Session itself: {} bytes", size_of::<Session>());
    for arguments in [&["1.3"][..], &["1.3", "rested"], &["1.2"], &["1.2", "rested"]] {
        // A process of its own: memory that an earlier measurement has freed would be used again.
        let this = std::env::current_exe().unwrap();
        std::process::Command::new(this).args(arguments).status().unwrap();
    }
    for (version, client) in [("1.3", Client::tls13 as fn() -> Client), ("1.2", Client::tls12)] {
        let full = |schemes: &[_]| {
            let mut client = classic(client());
            client.schemes = schemes.to_vec();
            let mut config = (*client.config()).clone();
            config.resumption = rustls::client::Resumption::disabled();
            Arc::new(config)
        };
        handshakes(&format!("{version} X25519 P-256"), &acceptor, &full(EC_SCHEMES));
        handshakes(&format!("{version} X25519 RSA-2048"), &acceptor, &full(RSA_SCHEMES));
        handshakes(&format!("{version} resumed"), &acceptor, &classic(client()).config());
    }
    resumptions();
    use cipher_suite::*;
    for (name, suite) in [
        ("1.3 AES128-GCM", TLS13_AES_128_GCM_SHA256),
        ("1.3 AES256-GCM", TLS13_AES_256_GCM_SHA384),
        ("1.3 CHACHA20", TLS13_CHACHA20_POLY1305_SHA256),
        ("1.2 AES128-GCM", TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ] {
        let mut client = if name.starts_with("1.3") { Client::tls13() } else { Client::tls12() };
        client.provider.cipher_suites = vec![suite];
        let mut dialogue = Dialogue::established(&acceptor, &client.config());
        bulk(name, &mut dialogue);
        requests(name, false, &mut dialogue);
        requests(name, true, &mut dialogue);
    }
}

/// Cost of tickets: for each number of them a full handshake, which issues them all, and a resumed one, which issues
/// one. And of a session stored by its ID.
fn resumptions() {
    for tickets in [0, 1, 2] {
        let acceptor = acceptor_with(Resumption { tickets, ..Resumption::default() });
        let mut config = (*classic(Client::tls13()).config()).clone();
        config.resumption = rustls::client::Resumption::disabled();
        handshakes(&format!("1.3 full, {tickets} tickets"), &acceptor, &Arc::new(config));
        if tickets > 0 {
            let config = classic(Client::tls13()).config();
            handshakes(&format!("1.3 resumed, {tickets} tickets configured"), &acceptor, &config);
        }
    }
    let mut config = (*classic(Client::tls12()).config()).clone();
    config.resumption = config.resumption.tls12_resumption(Tls12Resumption::SessionIdOnly);
    handshakes("1.2 resumed by session ID", &acceptor_with(Resumption::default()), &Arc::new(config));
}

fn acceptor_with(resumption: Resumption) -> Acceptor {
    let directory = Directory::new();
    let mut profile = tls_profile(&[&directory.write("ec.pem", ec(&[NAME]))]);
    profile.resumption = resumption;
    load(&profile).acceptor(&Arc::new(Tickets::new()))
}

fn classic(mut client: Client) -> Client {
    client.provider.kx_groups = vec![kx_group::X25519];
    client
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn memory(version: &str, rested: bool, acceptor: &Acceptor) {
    let client = if version == "1.3" { Client::tls13() } else { Client::tls12() };
    let config = classic(client).config();
    let idle = || {
        let mut dialogue = Dialogue::established(acceptor, &config);
        dialogue.upload(b"GET / HTTP/1.1\r\n\r\n", 4096);
        dialogue.download(b"HTTP/1.1 200 OK\r\n\r\n");
        dialogue.session.forget_hello_info();
        if rested {
            rest(&mut dialogue.session);
        }
        dialogue.session
    };
    let mut sessions: Vec<Session> = Vec::with_capacity(2 * SESSIONS);
    sessions.extend((0..SESSIONS / 5).map(|_| idle()));
    let before = resident_bytes();
    sessions.extend((0..SESSIONS).map(|_| idle()));
    let grown = resident_bytes() - before;
    let how = if rested { "rested" } else { "idle" };
    println!("{version} {how} session: {} bytes resident", grown / SESSIONS);
    black_box(sessions);
}

fn rest(session: &mut Session) {
    session.rest();
}

fn handshakes(name: &str, acceptor: &Acceptor, config: &Arc<ClientConfig>) {
    let mut samples: Vec<Duration> = (0..HANDSHAKES).map(|_| handshake(acceptor, config)).collect();
    samples.sort();
    let micros = |at: usize| samples[at].as_nanos() as f64 / 1000.0;
    println!("{name}: {:.1} µs median, {:.1} best decile", micros(samples.len() / 2), micros(samples.len() / 10));
}

fn handshake(acceptor: &Acceptor, config: &Arc<ClientConfig>) -> Duration {
    let mut spent = Duration::ZERO;
    let mut dialogue = Dialogue::new(acceptor, config, NAME);
    loop {
        let bytes = dialogue.client_bytes();
        let start = Instant::now();
        let (step, out) = dialogue.feed(&bytes).unwrap();
        spent += start.elapsed();
        dialogue.deliver(&out).unwrap();
        if step == Step::Done {
            // Memory of a session must also be freed.
            let start = Instant::now();
            drop(dialogue.session);
            return spent + start.elapsed();
        }
    }
}

/// With room for all, so that nothing is done on the spot.
fn parking() -> std::rc::Rc<Parking> {
    Parking::new(ParkingLimits { local: SESSIONS, remote: 0 })
}

fn parked(direct: &Acceptor) {
    let parking = parking();
    let deferring = profile().acceptor(&Arc::new(Tickets::new())).deferring(Deferral::ALL, &parking);
    for (name, schemes) in [("EC", EC_SCHEMES), ("RSA", RSA_SCHEMES)] {
        for group in [kx_group::X25519, kx_group::X25519MLKEM768] {
            let mut client = Client::tls13();
            client.provider.kx_groups = vec![group];
            client.schemes = schemes.to_vec();
            let mut config = (*client.config()).clone();
            config.resumption = rustls::client::Resumption::disabled();
            let config = Arc::new(config);
            for at_once in [1, 32, 256] {
                let (mut aside, mut on_the_spot) = (Vec::new(), Vec::new());
                for _ in 0..(HANDSHAKES as usize / at_once).max(16) {
                    aside.push(crowd(&deferring, &config, at_once));
                    on_the_spot.push(crowd(direct, &config, at_once));
                }
                let (aside, direct) = (quantiles(aside), quantiles(on_the_spot));
                println!("{name} {:?}, {at_once} at once, µs: parked {aside}, direct {direct}", group.name());
            }
        }
    }
    println!("{:?}", parking.counts());
    for how in [&["parked-memory"][..], &["parked-memory", "signing"]] {
        let this = std::env::current_exe().unwrap();
        std::process::Command::new(this).args(how).status().unwrap();
    }
}

fn quantiles(mut samples: Vec<f64>) -> String {
    samples.sort_by(f64::total_cmp);
    format!("{:.1} median [{:.1} best decile]", samples[samples.len() / 2], samples[samples.len() / 10])
}

/// Microseconds of this thread's CPU time for each of some handshakes that are all begun before any goes on.
fn crowd(acceptor: &Acceptor, config: &Arc<ClientConfig>, at_once: usize) -> f64 {
    let mut spent = Duration::ZERO;
    let mut dialogues: Vec<Dialogue> = (0..at_once).map(|_| Dialogue::new(acceptor, config, NAME)).collect();
    let mut outs = vec![Vec::new(); at_once];
    let mut jobs: Vec<Option<Job>> = Vec::new();
    loop {
        for dialogue in &mut dialogues {
            let bytes = dialogue.client_bytes();
            dialogue.received.extend(bytes);
        }
        let start = cpu_time();
        let mut done = true;
        jobs.clear();
        for (dialogue, out) in dialogues.iter_mut().zip(&mut outs) {
            let (consumed, step) = dialogue.session.handshake(&mut dialogue.received, out).unwrap();
            dialogue.received.drain(..consumed);
            done &= step == Step::Done;
            jobs.push(dialogue.session.take_job());
        }
        while jobs.iter().any(Option::is_some) {
            let outcomes: Vec<_> = jobs.drain(..).map(|job| job.map(Job::run)).collect();
            for ((dialogue, out), outcome) in dialogues.iter_mut().zip(&mut outs).zip(outcomes) {
                let Some(outcome) = outcome else { continue };
                let (consumed, _) = dialogue.session.resume(outcome, &mut dialogue.received, out).unwrap();
                dialogue.received.drain(..consumed);
                jobs.push(dialogue.session.take_job());
            }
        }
        spent += cpu_time() - start;
        for (dialogue, out) in dialogues.iter_mut().zip(&mut outs) {
            dialogue.deliver(out).unwrap();
            out.clear();
        }
        if done {
            break;
        }
    }
    let sessions: Vec<Session> = dialogues.into_iter().map(|dialogue| dialogue.session).collect();
    let start = cpu_time();
    drop(sessions);
    (spent + cpu_time() - start).as_nanos() as f64 / 1000.0 / at_once as f64
}

/// CPU time of this thread, without neighbours.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// Memory of a parked handshake: its stack, its copy of the hello, and the library's state.
fn parked_memory(signing: bool) {
    let parking = parking();
    let deferral = Deferral { ecdsa: signing, x25519: !signing, ..Deferral::default() };
    let acceptor = profile().acceptor(&Arc::new(Tickets::new())).deferring(deferral, &parking);
    let mut client = classic(Client::tls13());
    client.schemes = EC_SCHEMES.to_vec();
    let config = client.config();
    let park = || {
        let mut dialogue = Dialogue::new(&acceptor, &config, NAME);
        let bytes = dialogue.client_bytes();
        assert_eq!(dialogue.feed(&bytes).unwrap().0, Step::Work);
        dialogue.session
    };
    let mut sessions: Vec<Session> = Vec::with_capacity(SESSIONS);
    sessions.extend((0..SESSIONS / 10).map(|_| park()));
    let before = resident_bytes();
    let more = SESSIONS / 2;
    sessions.extend((0..more).map(|_| park()));
    let grown = resident_bytes() - before;
    let what = if signing { "signature" } else { "agreement" };
    println!("parked for its {what}: {} bytes resident", grown / more);
}

fn bulk(name: &str, dialogue: &mut Dialogue) {
    const PLAIN: usize = 256 * 1024;
    const ROUNDS: usize = 2_000;
    use std::io::Write;
    let plain = vec![7; PLAIN];
    let mut out = vec![0; dialogue.session.sealed_len(PLAIN)];
    let start = Instant::now();
    for _ in 0..ROUNDS {
        black_box(dialogue.session.seal(&plain, &mut out));
    }
    let sealed = (PLAIN * ROUNDS) as f64 / start.elapsed().as_nanos() as f64;
    let mut spent = Duration::ZERO;
    dialogue.client.set_buffer_limit(None);
    for _ in 0..ROUNDS / 4 {
        dialogue.client.writer().write_all(&plain).unwrap();
        let mut bytes = dialogue.client_bytes();
        let end = bytes.len();
        let start = Instant::now();
        let opened = dialogue.session.open(&mut bytes, 0..end, &mut Vec::new()).unwrap();
        spent += start.elapsed();
        assert_eq!(opened.plain, PLAIN);
    }
    let opened = (PLAIN * (ROUNDS / 4)) as f64 / spent.as_nanos() as f64;
    println!("{name}: seals {sealed:.2} GB/s, opens {opened:.2} GB/s");
}

/// A request of 200 bytes opened and a response of 1,000 sealed, on a busy session and on one that rests in between.
fn requests(name: &str, rested: bool, dialogue: &mut Dialogue) {
    use std::io::Write;
    const ROUNDS: u32 = 20_000;
    let mut spent = Duration::ZERO;
    let response = [7; 1000];
    let mut out = vec![0; 2000];
    for _ in 0..ROUNDS {
        dialogue.client.writer().write_all(&[7; 200]).unwrap();
        let mut bytes = dialogue.client_bytes();
        let end = bytes.len();
        let start = Instant::now();
        let opened = dialogue.session.open(&mut bytes, 0..end, &mut Vec::new()).unwrap();
        black_box(dialogue.session.seal(&response, &mut out));
        if rested {
            rest(&mut dialogue.session);
        }
        spent += start.elapsed();
        assert_eq!(opened.plain, 200);
    }
    let how = if rested { " with a rest" } else { "" };
    println!("{name}: request and response{how} {} ns", (spent / ROUNDS).as_nanos());
}
