//! Costs of X25519 in the lanes beside aws-lc: thread CPU time, medians, both interleaved in one run.

use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};
use propylon_lanes::{Ifma, x25519};

const ROUNDS: usize = 400;

fn main() {
    let Some(ifma) = Ifma::detect() else {
        println!("no AVX-512 IFMA here: nothing to measure");
        return;
    };
    let mut random = fastrand::Rng::with_seed(1);
    let mut keys = || {
        let mut keys = vec![[0; 32]; x25519::KEYS_MAX];
        keys.iter_mut().for_each(|key| random.fill(key));
        keys
    };
    let (scalars, points) = (keys(), keys());
    derive(ifma, &scalars, &points);
    key_pairs(ifma, &scalars);
}

fn derive(ifma: Ifma, scalars: &[[u8; 32]], points: &[[u8; 32]]) {
    let parsed: Vec<_> = scalars.iter().map(|scalar| PrivateKey::from_private_key(&X25519, scalar).unwrap()).collect();
    let mut alone = Vec::new();
    let mut lanes = vec![Vec::new(); x25519::LANES];
    for round in 0..ROUNDS {
        let at = round % scalars.len();
        alone.push(micros(4, || {
            agree(&parsed[at], UnparsedPublicKey::new(&X25519, &points[at]), (), |secret| {
                std::hint::black_box(secret);
                Ok(())
            })
        }));
        for (fill, costs) in lanes.iter_mut().enumerate() {
            let mut secrets = [[0; 32]; x25519::LANES];
            let (scalars, points, secrets) = (&scalars[..=fill], &points[..=fill], &mut secrets[..=fill]);
            costs.push(micros(1, || x25519::derive_some(ifma, scalars, points, secrets)));
        }
    }
    let alone = median(alone);
    println!("derive: aws-lc {alone:.2} µs");
    for (fill, costs) in lanes.into_iter().enumerate() {
        row(fill + 1, median(costs), alone);
    }
}

fn key_pairs(ifma: Ifma, scalars: &[[u8; 32]]) {
    const COUNTS: [usize; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64];
    let mut alone = Vec::new();
    let mut lanes = vec![Vec::new(); COUNTS.len()];
    for round in 0..ROUNDS {
        let at = round % scalars.len();
        alone.push(micros(4, || PrivateKey::from_private_key(&X25519, &scalars[at]).is_ok()));
        for (count, costs) in COUNTS.iter().zip(&mut lanes) {
            let mut publics = vec![[0; 32]; *count];
            costs.push(micros(1, || x25519::public_keys(ifma, &scalars[..*count], &mut publics)));
        }
    }
    let alone = median(alone);
    println!("public key (no random numbers on either side): aws-lc {alone:.2} µs");
    for (count, costs) in COUNTS.iter().zip(lanes) {
        row(*count, median(costs), alone);
    }
}

fn row(count: usize, call: f64, alone: f64) {
    let each = call / count as f64;
    println!("{count:4} at once: call {call:7.2} µs, each {each:6.3} µs, {:.3} × aws-lc", each / alone);
}

/// Thread CPU time of one run, from the mean of `times`.
fn micros<T>(times: u32, mut run: impl FnMut() -> T) -> f64 {
    let start = thread_nanos();
    for _ in 0..times {
        std::hint::black_box(run());
    }
    (thread_nanos() - start) as f64 / f64::from(times) / 1_000.0
}

fn thread_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
