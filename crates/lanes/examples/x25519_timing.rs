//! Whether the time of X25519 in the lanes depends on its secrets: fixed against random inputs in random order, after
//! Reparaz, Balasch, Verbauwhede, "Dude, is my code constant time?" (2017). Welch's t beyond ±4.5 is a finding.

use propylon_lanes::{Ifma, x25519};

const BATCHES: usize = 100_000;
const LEAK: f64 = 4.5;
/// Measurements above these fractions of all are cut off one after the other: interruptions hide small differences.
const CUTS: [f64; 4] = [1.0, 0.95, 0.8, 0.5];

type Keys = [[u8; 32]; x25519::LANES];

/// One batch, prepared before anything is measured.
struct Batch {
    fixed: bool,
    scalars: Keys,
    points: Keys,
}

fn main() {
    let Some(ifma) = Ifma::detect() else {
        println!("no AVX-512 IFMA here: nothing to measure");
        return;
    };
    let seed = fastrand::u64(..);
    println!("{BATCHES} batches each, seed {seed}; t within ±{LEAK} expected");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut fine = true;
    let base = std::array::from_fn(|_| std::array::from_fn(|at| if at == 0 { 9 } else { 0 }));
    for (name, scalars, points) in [
        ("derive, fixed scalars", Some([[0x5a; 32]; 8]), Some(base)),
        ("derive, scalar 0", Some([[0; 32]; 8]), Some(base)),
        ("derive, point of low order", None, Some([[0; 32]; 8])),
    ] {
        let batches = batches(&mut random, scalars, points);
        let mut secrets = [[0; 32]; x25519::LANES];
        fine &= verdict(name, &batches, |batch| {
            u64::from(x25519::derive(ifma, &batch.scalars, &batch.points, &mut secrets))
        });
    }
    for (name, scalars) in [("public keys, fixed scalars", [[0x5a; 32]; 8]), ("public keys, scalar 0", [[0; 32]; 8])] {
        let batches = batches(&mut random, Some(scalars), Some(base));
        let mut publics = [[0; 32]; x25519::LANES];
        fine &= verdict(name, &batches, |batch| {
            x25519::public_keys(ifma, &batch.scalars, &mut publics);
            0
        });
    }
    println!(
        "{}",
        if fine { "no dependence found" } else { "TIME DEPENDS ON SECRETS, or the machine was busy: repeat" }
    );
    std::process::exit(i32::from(!fine));
}

/// Half of them with what is given, in random order; what is not given is random in both halves. Both halves are
/// written the same way, so that neither is warmer in the cache.
fn batches(random: &mut fastrand::Rng, scalars: Option<Keys>, points: Option<Keys>) -> Vec<Batch> {
    let keys = |random: &mut fastrand::Rng| {
        let mut keys = [[0; 32]; x25519::LANES];
        keys.iter_mut().for_each(|key| random.fill(key));
        keys
    };
    let mut batch = || {
        let fixed = random.bool();
        let (other_scalars, other_points) = (keys(random), keys(random));
        let pick = |given: Option<Keys>, other| given.filter(|_| fixed).unwrap_or(other);
        // Random scalars go with the given point, random points with random scalars.
        Batch { fixed, scalars: pick(scalars, other_scalars), points: pick(points, other_points) }
    };
    (0..BATCHES).map(|_| batch()).collect()
}

fn verdict(name: &str, batches: &[Batch], mut run: impl FnMut(&Batch) -> u64) -> bool {
    let mut times: Vec<(u64, bool)> = Vec::with_capacity(batches.len());
    for batch in batches {
        let start = ticks();
        std::hint::black_box(run(std::hint::black_box(batch)));
        times.push((ticks().wrapping_sub(start), batch.fixed));
    }
    let mut sorted: Vec<u64> = times.iter().map(|(time, _)| *time).collect();
    sorted.sort_unstable();
    let mut fine = true;
    print!("{name:30} median {:6} ticks, t", sorted[sorted.len() / 2]);
    for cut in CUTS {
        let limit = sorted[((sorted.len() - 1) as f64 * cut) as usize];
        let kept = |wanted: bool| {
            times.iter().filter(move |(time, fixed)| *fixed == wanted && *time <= limit).map(|(time, _)| *time as f64)
        };
        let t = welch(kept(true), kept(false));
        print!(" {t:6.2}");
        fine &= t.abs() < LEAK;
    }
    println!();
    fine
}

fn welch(a: impl Iterator<Item = f64> + Clone, b: impl Iterator<Item = f64> + Clone) -> f64 {
    let moments = |values: Vec<f64>| {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
        (mean, variance / count)
    };
    let ((mean_a, error_a), (mean_b, error_b)) = (moments(a.collect()), moments(b.collect()));
    (mean_a - mean_b) / (error_a + error_b).sqrt()
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: reads the time stamp counter, after what came before it in program order has finished.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc()
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}
