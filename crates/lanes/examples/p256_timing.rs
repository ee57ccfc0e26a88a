//! Fixed against random secrets: Welch's t of the run times of each P-256 kernel, after dudect (Reparaz, Balasch and
//! Verbauwhede, 2017). |t| below 4.5 shows nothing; above it, look for a branch or an address made of a secret.
//!
//! The number of measurements is the first argument; 100,000 unless given.

use propylon_lanes::Ifma;
use propylon_lanes::p256::{LANES, PairSlot, Scratch, SecretScalar, agree, is_scalar, nonce_pairs, public_keys, sign};

const MEASUREMENTS: usize = 100_000;
/// Signatures in one measurement: one alone is shorter than the clock's grain.
const SIGNATURES: usize = 8;
/// Measurements above these shares of all are left out, to see past interrupts; the first keeps everything.
const CROPS: [f64; 4] = [1.0, 0.99, 0.95, 0.8];

type Scalars = [[u8; 32]; LANES];

/// Which inputs a measurement took.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Fixed,
    Random,
}

/// The time-stamp counter, read when all that was begun before is done: stores that are still on their way would
/// otherwise be counted to whoever reads them first.
#[cfg(target_arch = "x86_64")]
fn now() -> u64 {
    use core::arch::x86_64::{_mm_lfence, _mm_mfence, _rdtsc};
    // SAFETY: every x86-64 processor has these instructions.
    unsafe {
        _mm_mfence();
        _mm_lfence();
        let time = _rdtsc();
        _mm_lfence();
        time
    }
}

/// Mean, variance and count of one class, up to a limit.
fn moments(samples: &[(Class, u64)], class: Class, limit: u64) -> (f64, f64, f64) {
    let kept = samples.iter().filter(|(of, time)| *of == class && *time <= limit).map(|(_, time)| *time as f64);
    let (count, sum) = kept.clone().fold((0.0, 0.0), |(count, sum), time| (count + 1.0, sum + time));
    let mean = sum / count;
    let variance = kept.map(|time| (time - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, variance, count)
}

fn welch(samples: &[(Class, u64)], limit: u64) -> f64 {
    let (mean_a, variance_a, count_a) = moments(samples, Class::Fixed, limit);
    let (mean_b, variance_b, count_b) = moments(samples, Class::Random, limit);
    (mean_a - mean_b) / (variance_a / count_a + variance_b / count_b).sqrt()
}

struct Experiment {
    random: fastrand::Rng,
    measurements: usize,
}

impl Experiment {
    fn scalar(&mut self) -> [u8; 32] {
        loop {
            let bytes = core::array::from_fn(|_| self.random.u8(..));
            if is_scalar(&bytes) {
                return bytes;
            }
        }
    }

    fn scalars(&mut self) -> Scalars {
        core::array::from_fn(|_| self.scalar())
    }

    /// Runs `work` on inputs of classes in random order. Both classes draw as much and copy as much before the clock
    /// starts.
    fn run(&mut self, name: &str, fixed: &Scalars, mut work: impl FnMut(&mut Scalars) -> u64) {
        let mut samples = Vec::with_capacity(self.measurements);
        for _ in 0..self.measurements {
            let drawn = self.scalars();
            let class = if self.random.bool() { Class::Fixed } else { Class::Random };
            let mut input = std::hint::black_box(if class == Class::Fixed { *fixed } else { drawn });
            let time = work(&mut input);
            samples.push((class, time));
        }
        let mut times: Vec<_> = samples.iter().map(|(_, time)| *time).collect();
        times.sort_unstable();
        let ts = CROPS.map(|crop| welch(&samples, times[((times.len() - 1) as f64 * crop) as usize]));
        let worst = ts.iter().fold(0.0f64, |worst, t| worst.max(t.abs()));
        println!("{name:<34} {ts:>6.2?}  worst |t| {worst:.2}{}", if worst < 4.5 { "" } else { "  ABOVE 4.5" });
    }
}

fn timed(work: impl FnOnce()) -> u64 {
    let start = now();
    work();
    now() - start
}

fn main() {
    let Some(ifma) = Ifma::detect() else {
        println!("this processor has no AVX-512 IFMA: nothing to measure");
        return;
    };
    let measurements = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(MEASUREMENTS);
    let mut experiment = Experiment { random: fastrand::Rng::with_seed(1), measurements };
    let mut scratch = Box::new(Scratch::new());
    let mut slots = [PairSlot::EMPTY; LANES];
    println!("t with {:?} of the measurements", CROPS);

    let mut one = [0; 32];
    one[31] = 1;
    let mut dense = [0x55; 32];
    dense[0] = 0x7f;
    // A control that leaks a few cycles; the test must find it.
    experiment.run("control, leaks: must be above", &[one; LANES], |scalars| {
        timed(|| {
            for i in 0..scalars.as_flattened().iter().map(|byte| byte.count_ones()).sum() {
                std::hint::black_box(i);
            }
        })
    });
    for (kind, fixed) in [("1", [one; LANES]), ("dense", [dense; LANES]), ("drawn", experiment.scalars())] {
        experiment.run(&format!("nonce pairs, 8, fixed: {kind}"), &fixed, |scalars| {
            timed(|| nonce_pairs(ifma, scalars, &mut scratch, &mut slots).expect("good scalars"))
        });
        experiment.run(&format!("public keys, 8, fixed: {kind}"), &fixed, |scalars| {
            timed(|| public_keys(ifma, scalars, &mut scratch, &mut [[0; 65]; LANES]).expect("good scalars"))
        });
        let mut points = [[0; 65]; LANES];
        public_keys(ifma, &experiment.scalars(), &mut scratch, &mut points).expect("good scalars");
        experiment.run(&format!("ECDH, fixed: {kind}"), &fixed, |scalars| {
            timed(|| assert_eq!(agree(ifma, scalars, &points, &mut scratch, &mut [[0; 32]; LANES]), 0))
        });
        // The key and the nonces are the secrets; the digest is one for all.
        experiment.run(&format!("sign, fixed: {kind}"), &fixed, |scalars| {
            let key = SecretScalar::new(&scalars[0]).expect("a good scalar");
            nonce_pairs(ifma, scalars, &mut scratch, &mut slots).expect("good scalars");
            let mut pairs: [_; SIGNATURES] = core::array::from_fn(|i| slots[i].take());
            timed(|| {
                for pair in &mut pairs {
                    std::hint::black_box(sign(&key, &[7; 32], pair.take().expect("a pair")));
                }
            })
        });
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn now() -> u64 {
    0
}
