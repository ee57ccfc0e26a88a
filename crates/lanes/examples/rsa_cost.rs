//! Costs of an RSA operation in the lanes, for one to eight of them, beside aws-lc: medians of thread CPU time, the
//! two taken in turns. `cargo run --release -p propylon-lanes --example rsa_cost [rounds]`

use aws_lc_rs::{rand::SystemRandom, rsa::KeyPair, signature};
use propylon_lanes::{
    Ifma,
    rsa::{self, Blinding, Job, Key, Parts, Renewal, Scratch},
};

const KEYS: [(&str, &[u8]); 3] = [
    ("RSA-2048", include_bytes!("../src/rsa/keys/2048.a.der")),
    ("RSA-3072", include_bytes!("../src/rsa/keys/3072.a.der")),
    ("RSA-4096", include_bytes!("../src/rsa/keys/4096.a.der")),
];

fn main() {
    let Some(ifma) = Ifma::detect() else { return println!("this processor has no AVX-512 IFMA") };
    let rounds: usize = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(100);
    let mut scratch = Box::new(Scratch::new());
    let test = measured(|| assert!(rsa::self_test(ifma, &mut scratch)));
    println!("self-test {test:.0} µs");
    println!("µs per operation, blinding and check included, a renewal of the blindings each 32 uses as well");
    println!(
        "         | aws-lc |     1 |     2 |     3 |     4 |     5 |     6 |     7 |     8 | 4 : aws-lc | 8 : aws-lc | renewal | key"
    );
    for (name, der) in KEYS {
        let key = || Key::new(&Parts::from_pkcs1_der(der).expect("a key in DER")).expect("a suitable key");
        let setup = measured(|| drop(std::hint::black_box(key())));
        let key = key();
        let reference = KeyPair::from_der(der).expect("a key in DER");
        let (mut single, mut renewals) = (Vec::new(), Vec::new());
        let mut calls = vec![Vec::new(); rsa::JOBS_MAX];
        let mut blindings: [Blinding; rsa::JOBS_MAX] = std::array::from_fn(|_| Blinding::new());
        for _ in 0..rounds {
            single.push(measured(|| sign(&reference)));
            renewals.push(measured(|| renew(ifma, &mut scratch, &key, &mut blindings)) / rsa::JOBS_MAX as f64);
            for (jobs, costs) in calls.iter_mut().enumerate() {
                costs.push(measured(|| operate(ifma, &mut scratch, &key, &mut blindings[..=jobs])) / (jobs + 1) as f64);
            }
        }
        let (single, renewal) = (median(&mut single), median(&mut renewals));
        let costs: Vec<f64> =
            calls.iter_mut().map(|costs| median(costs) + renewal / f64::from(rsa::USES_MAX)).collect();
        let row: Vec<String> = costs.iter().map(|cost| format!("{cost:5.0}")).collect();
        let (four, eight) = (costs[3] / single, costs[7] / single);
        println!(
            "{name} | {single:6.0} | {} | {four:10.3} | {eight:10.3} | {renewal:7.0} | {setup:.0}",
            row.join(" | ")
        );
    }
}

fn sign(key: &KeyPair) {
    let mut signature = vec![0; key.public_modulus_len()];
    key.sign(&signature::RSA_PKCS1_SHA256, &SystemRandom::new(), b"message", &mut signature).expect("signed");
    std::hint::black_box(signature);
}

fn renew(ifma: Ifma, scratch: &mut Scratch, key: &Key, blindings: &mut [Blinding]) {
    let random: Vec<Vec<u8>> =
        blindings.iter().map(|_| (0..key.random_bytes()).map(|_| fastrand::u8(..)).collect()).collect();
    let mut renewals: Vec<_> =
        blindings.iter_mut().zip(&random).map(|(blinding, random)| Renewal { key, blinding, random }).collect();
    assert!(rsa::renew_blindings(ifma, scratch, &mut renewals).all_done());
}

fn operate(ifma: Ifma, scratch: &mut Scratch, key: &Key, blindings: &mut [Blinding]) {
    let input: Vec<u8> = (0..key.size().modulus_bytes()).map(|i| if i == 0 { 0 } else { i as u8 }).collect();
    let mut outputs = vec![vec![0; input.len()]; blindings.len()];
    let mut jobs: Vec<_> = blindings
        .iter_mut()
        .zip(&mut outputs)
        .map(|(blinding, output)| Job { key, blinding, input: &input, output })
        .collect();
    assert!(rsa::private_operations(ifma, scratch, &mut jobs).all_done());
}

/// µs of this thread's processor time.
fn measured(work: impl FnOnce()) -> f64 {
    let before = thread_time_us();
    work();
    thread_time_us() - before
}

fn thread_time_us() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
