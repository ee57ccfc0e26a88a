//! Whether the time of an RSA batch tells inputs or keys apart: Welch's t between two classes, in random order, after
//! Reparaz, Balasch and Verbauwhede ("Dude, is my code constant time?", 2017). Above 4.5 it does.
//! `cargo run --release -p propylon-lanes --example rsa_timing [batches]`

use propylon_lanes::{
    Ifma,
    rsa::{self, Blinding, JOBS_PER_PASS, Job, Key, Parts, Renewal, Scratch},
};

const KEYS: [&[u8]; 2] = [include_bytes!("../src/rsa/keys/2048.a.der"), include_bytes!("../src/rsa/keys/2048.b.der")];
/// The slowest measurements of both classes together are interrupts.
const KEPT: f64 = 0.9;

struct Lanes {
    ifma: Ifma,
    scratch: Box<Scratch>,
    keys: [Key; 2],
    blindings: [[Blinding; JOBS_PER_PASS]; 2],
}

/// The difference of the second class from the first, which has key 0 and a fixed input.
#[derive(Clone, Copy, Debug)]
enum Question {
    /// A random input. Blinding hides it anyhow: this looks at bytes, CRT and check.
    Input,
    /// Another key: other digits of the exponents.
    Key,
    /// A renewal: random bytes against zeros and one bit, so z has a pattern, and nothing blinds it.
    Renewal,
}

fn main() {
    let Some(ifma) = Ifma::detect() else { return println!("this processor has no AVX-512 IFMA") };
    let batches: usize = std::env::args().nth(1).and_then(|batches| batches.parse().ok()).unwrap_or(10_000);
    let key = |der| Key::new(&Parts::from_pkcs1_der(der).expect("a key in DER")).expect("a suitable key");
    let blindings = std::array::from_fn(|_| std::array::from_fn(|_| Blinding::new()));
    let mut lanes = Lanes { ifma, scratch: Box::new(Scratch::new()), keys: KEYS.map(key), blindings };
    for question in [Question::Input, Question::Key, Question::Renewal] {
        let mut classes = [Vec::new(), Vec::new()];
        for _ in 0..batches {
            let class = fastrand::usize(..2);
            classes[class].push(lanes.measured(question, class == 1));
        }
        let whole = welch(&classes);
        let mut all = classes.concat();
        all.sort_by(f64::total_cmp);
        let limit = all[(all.len() as f64 * KEPT) as usize];
        for class in &mut classes {
            class.retain(|cycles| *cycles < limit);
        }
        println!("{question:?}: t = {whole:+.2}, without the slowest tenth {:+.2}, {batches} batches", welch(&classes));
    }
}

impl Lanes {
    /// Cycles of one batch of four.
    fn measured(&mut self, question: Question, second: bool) -> f64 {
        // Both classes take the same steps up to the measurement: only what is chosen differs.
        let drawn: [u8; 272] = std::array::from_fn(|_| fastrand::u8(..));
        let choose = |asked: bool, i: usize, fixed: u8| {
            let mask = std::hint::black_box(0u8.wrapping_sub(u8::from(second && asked)));
            drawn[i] & mask | fixed & !mask
        };
        let mut input: [u8; 256] = std::array::from_fn(|i| choose(matches!(question, Question::Input), i, 0x5a));
        input[0] = 0;
        let random: [u8; 272] =
            std::array::from_fn(|i| choose(matches!(question, Question::Renewal), i, u8::from(i == 200)));
        let key = usize::from(second && matches!(question, Question::Key));
        if self.blindings.iter().flatten().any(Blinding::needs_random) {
            (0..2).for_each(|key| self.renew(key, &drawn));
        }
        if matches!(question, Question::Renewal) {
            let start = cycles();
            self.renew(key, &random);
            return (cycles() - start) as f64;
        }
        let start = cycles();
        self.operate(key, &input);
        (cycles() - start) as f64
    }

    fn renew(&mut self, key: usize, random: &[u8]) {
        let Lanes { ifma, scratch, keys, blindings } = self;
        let mut renewals = blindings[key].each_mut().map(|blinding| Renewal { key: &keys[key], blinding, random });
        assert!(rsa::renew_blindings(*ifma, scratch, &mut renewals).all_done());
    }

    fn operate(&mut self, key: usize, input: &[u8]) {
        let mut outputs = [[0; 256]; JOBS_PER_PASS];
        let mut free = outputs.iter_mut();
        let mut jobs = self.blindings[key].each_mut().map(|blinding| {
            let output = free.next().expect("as many as blindings");
            Job { key: &self.keys[key], blinding, input, output }
        });
        assert!(rsa::private_operations(self.ifma, &mut self.scratch, &mut jobs).all_done());
    }
}

#[cfg(target_arch = "x86_64")]
fn cycles() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn cycles() -> u64 {
    0
}

fn welch(classes: &[Vec<f64>; 2]) -> f64 {
    let [first, second] = classes.each_ref().map(|class| {
        let count = class.len() as f64;
        let mean = class.iter().sum::<f64>() / count;
        let variance = class.iter().map(|cycles| (cycles - mean).powi(2)).sum::<f64>() / (count - 1.0);
        (mean, variance / count)
    });
    (first.0 - second.0) / (first.1 + second.1).sqrt()
}
