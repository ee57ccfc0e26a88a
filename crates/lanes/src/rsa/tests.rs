//! The promises of the RSA lanes, against aws-lc and plain big numbers.

use super::*;
use aws_lc_rs::{digest, rand::SystemRandom, rsa::KeyPair, signature};
use fastrand::Rng;
use num_bigint::BigUint;

/// Three keys of each size, in DER.
const KEYS: [[&[u8]; 3]; 3] = [
    [include_bytes!("keys/2048.a.der"), include_bytes!("keys/2048.b.der"), include_bytes!("keys/2048.c.der")],
    [include_bytes!("keys/3072.a.der"), include_bytes!("keys/3072.b.der"), include_bytes!("keys/3072.c.der")],
    [include_bytes!("keys/4096.a.der"), include_bytes!("keys/4096.b.der"), include_bytes!("keys/4096.c.der")],
];
/// Prefix of the hash in an encoded message (RFC 8017 §9.2, note 1).
const SHA256_PREFIX: [u8; 19] =
    [0x30, 0x31, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01, 0x05, 0x00, 0x04, 0x20];

/// Keys of one size, with a blinding for each lane and key.
struct Bench {
    ifma: Ifma,
    scratch: Box<Scratch>,
    keys: Vec<Key>,
    blindings: Vec<Vec<Blinding>>,
    rng: Rng,
}

impl Bench {
    fn new(ders: &[&[u8]], seed: u64) -> Option<Bench> {
        let Some(ifma) = Ifma::detect() else {
            println!("no IFMA here, nothing to test");
            return None;
        };
        let keys: Vec<Key> = ders.iter().map(|der| key(der)).collect();
        let blindings = keys.iter().map(|_| (0..JOBS_MAX).map(|_| Blinding::new()).collect()).collect();
        Some(Bench { ifma, scratch: Box::new(Scratch::new()), keys, blindings, rng: Rng::with_seed(seed) })
    }

    /// Renews what is used up.
    fn refresh(&mut self) {
        for (key, blindings) in self.keys.iter().zip(&mut self.blindings) {
            if blindings.iter().any(Blinding::needs_random) {
                let report = renew(self.ifma, &mut self.scratch, key, blindings, &mut self.rng);
                assert_eq!(report, Report::default());
            }
        }
    }

    /// Lane i takes key `chosen[i]` and input i.
    fn run(&mut self, chosen: &[usize], inputs: &[Vec<u8>]) -> (Report, Vec<Vec<u8>>) {
        self.refresh();
        let mut outputs: Vec<Vec<u8>> = inputs.iter().map(|input| vec![0xaa; input.len()]).collect();
        let mut slots: Vec<Vec<Option<&mut Blinding>>> =
            self.blindings.iter_mut().map(|blindings| blindings.iter_mut().map(Some).collect()).collect();
        let mut jobs: Vec<Job<'_>> = Vec::new();
        for (lane, (input, output)) in inputs.iter().zip(&mut outputs).enumerate() {
            let blinding = slots[chosen[lane]][lane].take().expect("one per lane");
            jobs.push(Job { key: &self.keys[chosen[lane]], blinding, input, output });
        }
        let report = private_operations(self.ifma, &mut self.scratch, &mut jobs);
        (report, outputs)
    }
}

fn key(der: &[u8]) -> Key {
    Key::new(&Parts::from_pkcs1_der(der).expect("a key in DER")).expect("a suitable key")
}

fn renew(ifma: Ifma, scratch: &mut Scratch, key: &Key, blindings: &mut [Blinding], rng: &mut Rng) -> Report {
    let random: Vec<Vec<u8>> = blindings.iter().map(|_| bytes(rng, key.random_bytes())).collect();
    let mut renewals: Vec<_> =
        blindings.iter_mut().zip(&random).map(|(blinding, random)| Renewal { key, blinding, random }).collect();
    renew_blindings(ifma, scratch, &mut renewals)
}

fn bytes(rng: &mut Rng, length: usize) -> Vec<u8> {
    (0..length).map(|_| rng.u8(..)).collect()
}

fn modulus(der: &[u8]) -> BigUint {
    BigUint::from_bytes_be(Parts::from_pkcs1_der(der).expect("a key in DER").n)
}

fn padded(number: &BigUint, length: usize) -> Vec<u8> {
    let bytes = number.to_bytes_be();
    [vec![0; length - bytes.len()], bytes].concat()
}

fn encoded_message(message: &[u8], length: usize) -> Vec<u8> {
    let hash = digest::digest(&digest::SHA256, message);
    let fill = vec![0xff; length - 3 - SHA256_PREFIX.len() - hash.as_ref().len()];
    [&[0, 1], &fill[..], &[0], &SHA256_PREFIX, hash.as_ref()].concat()
}

/// How many rounds a test does: all of them on request, some otherwise.
fn rounds(usual: usize, long: usize) -> usize {
    if std::env::var_os("PROPYLON_LONG").is_some() { long } else { usual }
}

#[test]
fn the_known_answers_come_out_of_all_lanes() {
    let Some(ifma) = Ifma::detect() else { return println!("no IFMA here, nothing to test") };
    assert!(self_test(ifma, &mut Scratch::new()));
}

#[test]
fn signatures_are_those_of_aws_lc_for_every_number_of_jobs_and_mix_of_keys() {
    for (ders, rounds) in KEYS.iter().zip([rounds(400, 20_000), rounds(120, 5_000), rounds(60, 2_500)]) {
        let Some(mut bench) = Bench::new(ders, 0x5161) else { return };
        let references: Vec<KeyPair> = ders.iter().map(|der| KeyPair::from_der(der).expect("a key in DER")).collect();
        let length = references[0].public_modulus_len();
        for round in 0..rounds {
            let count = round % JOBS_MAX + 1;
            let chosen: Vec<usize> = (0..count).map(|_| bench.rng.usize(..ders.len())).collect();
            let messages: Vec<Vec<u8>> = (0..count).map(|_| bytes(&mut bench.rng, 32)).collect();
            let inputs: Vec<Vec<u8>> = messages.iter().map(|message| encoded_message(message, length)).collect();
            let (report, outputs) = bench.run(&chosen, &inputs);
            assert_eq!(report, Report::default(), "round {round}");
            for lane in 0..count {
                let mut signature = vec![0; length];
                let random = SystemRandom::new();
                let reference = &references[chosen[lane]];
                reference.sign(&signature::RSA_PKCS1_SHA256, &random, &messages[lane], &mut signature).expect("signed");
                assert_eq!(outputs[lane], signature, "round {round}, lane {lane}");
            }
        }
    }
}

/// Raising to e is one to one, so the result is right if it leads back, in arithmetic that is not ours.
#[test]
fn random_and_extreme_inputs_lead_back_to_themselves() {
    let e = BigUint::from(65537u32);
    for (ders, rounds) in KEYS.iter().zip([rounds(100, 5_000), rounds(40, 2_000), rounds(20, 1_000)]) {
        let Some(mut bench) = Bench::new(ders, 0xed6e) else { return };
        for round in 0..rounds {
            let count = JOBS_MAX - round % JOBS_MAX;
            let chosen: Vec<usize> = (0..count).map(|_| bench.rng.usize(..ders.len())).collect();
            let inputs: Vec<BigUint> = chosen.iter().map(|key| input(&mut bench.rng, ders[*key])).collect();
            let length = bench.keys[0].size().modulus_bytes();
            let inputs_bytes: Vec<Vec<u8>> = inputs.iter().map(|input| padded(input, length)).collect();
            let (report, outputs) = bench.run(&chosen, &inputs_bytes);
            assert_eq!(report, Report::default(), "round {round}");
            for lane in 0..count {
                let (output, n) = (BigUint::from_bytes_be(&outputs[lane]), modulus(ders[chosen[lane]]));
                assert!(output < n, "round {round}, lane {lane}: below the modulus");
                assert_eq!(output.modpow(&e, &n), inputs[lane], "round {round}, lane {lane}");
            }
        }
    }
}

fn input(rng: &mut Rng, der: &[u8]) -> BigUint {
    let parts = Parts::from_pkcs1_der(der).expect("a key in DER");
    let [n, p, q] = [parts.n, parts.p, parts.q].map(BigUint::from_bytes_be);
    match rng.usize(..16) {
        0 => BigUint::ZERO,
        1 => BigUint::from(1u32),
        2 => BigUint::from(2u32),
        3 => &n - 1u32,
        4 => p,
        5 => q,
        6 => &n - &p,
        7 => &n - &q,
        8 => &p - 1u32,
        9 => BigUint::from(1u32) << (n.bits() - 1),
        10 => (BigUint::from(1u32) << (n.bits() - 1)) - 1u32,
        _ => BigUint::from_bytes_be(&bytes(rng, parts.n.len() + 8)) % n,
    }
}

#[test]
fn a_flipped_bit_in_one_lanes_exponent_makes_that_lane_bad_and_zero_and_no_other() {
    for ders in &KEYS {
        for count in [1, 3, 4, 5, 8] {
            let Some(mut bench) = Bench::new(&ders[..1], 0xfa17) else { return };
            // The second key is the first with a bit flipped; blindings of one serve the other.
            bench.keys.push(key(ders[0]));
            bench.blindings.push((0..JOBS_MAX).map(|_| Blinding::new()).collect());
            bench.refresh();
            let (lane, prime, bit) = (bench.rng.usize(..count), bench.rng.usize(..2), bench.rng.usize(..1024));
            bench.keys[1].primes[prime].exponent[bit / 64] ^= 1 << (bit % 64);
            let mut inputs = Vec::new();
            for _ in 0..count {
                inputs.push(padded(&input(&mut bench.rng, ders[0]), bench.keys[0].size().modulus_bytes()));
            }
            // An input that is a multiple of a prime, or 0 or 1, may survive a wrong exponent.
            inputs[lane] = vec![0x55; inputs[lane].len()];
            let sound = bench.run(&vec![0; count], &inputs).1;
            let mut chosen = vec![0; count];
            chosen[lane] = 1;
            let (report, outputs) = bench.run(&chosen, &inputs);
            assert_eq!(report, Report { bad: 1 << lane, refused: 0 }, "lane {lane}, prime {prime}, bit {bit}");
            for other in 0..count {
                let expected = if other == lane { vec![0; inputs[lane].len()] } else { sound[other].clone() };
                assert!(outputs[other] == expected, "lane {other} when lane {lane} of {count} is bad");
            }
            assert!(bench.blindings[1][lane].needs_random(), "a bad lane's blinding is thrown away");
        }
    }
}

#[test]
fn a_damaged_constant_is_noticed_too() {
    let Some(mut bench) = Bench::new(&KEYS[0][..1], 0xdada) else { return };
    bench.refresh();
    let damages: [fn(&mut Key); 6] = [
        |key| key.qinv[7] ^= 1 << 30,
        |key| key.primes[0].limbs[5] ^= 4,
        |key| key.primes[1].fold[5] ^= 4,
        |key| key.primes[1].r2[19] ^= 1,
        |key| key.primes[0].r3[0] ^= 1,
        |key| key.modulus.r2[9] ^= 1,
    ];
    for (i, damage) in damages.into_iter().enumerate() {
        bench.keys[0] = key(KEYS[0][0]);
        bench.refresh();
        damage(&mut bench.keys[0]);
        let (report, outputs) = bench.run(&[0], &[vec![0x33; 256]]);
        assert_eq!((report, &outputs[0]), (Report { bad: 1, refused: 0 }, &vec![0; 256]), "damage {i}");
    }
}

#[test]
fn what_cannot_be_done_is_refused_and_keeps_nothing_else_from_being_done() {
    let Some(mut bench) = Bench::new(&[KEYS[0][0], KEYS[0][1], KEYS[1][0]], 0x4ef) else { return };
    bench.refresh();
    let n = modulus(KEYS[0][0]);
    let good = vec![0x11; 256];
    let inputs = [
        good.clone(),
        padded(&n, 256),
        padded(&(&n + 1u32), 256),
        vec![0xff; 256],
        vec![1; 255],
        vec![1; 257],
        vec![1; 384],
        good.clone(),
    ];
    let (report, outputs) = bench.run(&[0, 0, 0, 0, 0, 0, 2, 1], &inputs);
    assert_eq!(report, Report { bad: 0, refused: 0b0111_1110 });
    assert!(outputs[1..7].iter().flatten().all(|byte| *byte == 0));
    assert_eq!(outputs[0], bench.run(&[0], std::slice::from_ref(&good)).1[0]);
    assert_eq!(outputs[7], bench.run(&[1], std::slice::from_ref(&good)).1[0]);

    bench.blindings.swap(0, 1);
    assert_eq!(bench.run(&[0], std::slice::from_ref(&good)).0, Report { bad: 0, refused: 1 }, "another key's blinding");
    bench.blindings.swap(0, 1);
    let mut output = vec![7; 256];
    let mut unused = Blinding::new();
    let mut jobs = [Job { key: &bench.keys[0], blinding: &mut unused, input: &good, output: &mut output }];
    assert_eq!(private_operations(bench.ifma, &mut bench.scratch, &mut jobs), Report { bad: 0, refused: 1 });
    assert_eq!(output, vec![0; 256]);
    assert_eq!(private_operations(bench.ifma, &mut bench.scratch, &mut []), Report::default());
}

#[test]
fn a_blinding_serves_32_times_and_never_with_the_same_pair() {
    let Some(mut bench) = Bench::new(&KEYS[0][..1], 0xb11d) else { return };
    bench.refresh();
    let mut seen = std::collections::HashSet::new();
    for count in [1, 5, 8, 4].into_iter().cycle().take(32) {
        assert!(!bench.blindings[0][0].needs_random());
        assert!(seen.insert(bench.blindings[0][0].factor) && seen.insert(bench.blindings[0][0].inverse));
        let answer = bench.run(&vec![0; count], &vec![vec![0x21; 256]; count]);
        assert!(answer.0.all_done() && answer.1.iter().all(|output| *output == answer.1[0]));
    }
    assert!(bench.blindings[0][0].needs_random());
}

#[test]
fn a_blinding_from_bytes_that_cannot_be_one_is_bad_and_has_no_uses() {
    let Some(mut bench) = Bench::new(&KEYS[0][..1], 1) else { return };
    let key = &bench.keys[0];
    let parts = Parts::from_pkcs1_der(KEYS[0][0]).expect("a key in DER");
    // Zero, and a multiple of p, have no inverse.
    let multiple = padded(&(BigUint::from_bytes_be(parts.p) * 12345u32), key.random_bytes());
    let randoms = [vec![0; key.random_bytes()], vec![9; key.random_bytes()], multiple, vec![9; 256]];
    let mut blindings: [Blinding; 4] = std::array::from_fn(|_| Blinding::new());
    let mut renewals: Vec<_> =
        blindings.iter_mut().zip(&randoms).map(|(blinding, random)| Renewal { key, blinding, random }).collect();
    let report = renew_blindings(bench.ifma, &mut bench.scratch, &mut renewals);
    assert_eq!(report, Report { bad: 0b0101, refused: 0b1000 });
    assert_eq!(blindings.each_ref().map(Blinding::needs_random), [true, false, true, true]);
}

#[test]
fn the_order_of_the_primes_does_not_matter() {
    for ders in &KEYS {
        let Some(mut bench) = Bench::new(&[ders[1]], 0x0bad) else { return };
        let parts = Parts::from_pkcs1_der(ders[1]).expect("a key in DER");
        let [p, q] = [parts.p, parts.q].map(BigUint::from_bytes_be);
        let coefficient = p.modpow(&(&q - 2u32), &q).to_bytes_be();
        let swapped =
            Parts { p: parts.q, q: parts.p, dp: parts.dq, dq: parts.dp, qinv: &coefficient, n: parts.n, e: parts.e };
        bench.keys.push(Key::new(&swapped).expect("a suitable key"));
        bench.blindings.push((0..JOBS_MAX).map(|_| Blinding::new()).collect());
        let inputs: Vec<Vec<u8>> = (0..JOBS_MAX)
            .map(|_| padded(&input(&mut bench.rng, ders[1]), bench.keys[0].size().modulus_bytes()))
            .collect();
        let (report, outputs) = bench.run(&[0; JOBS_MAX], &inputs);
        assert_eq!(report, Report::default());
        assert_eq!(bench.run(&[1; JOBS_MAX], &inputs), (report, outputs));
    }
}

#[test]
fn nothing_is_left_in_the_scratch() {
    for ders in &KEYS {
        let Some(mut bench) = Bench::new(&ders[..1], 3) else { return };
        let length = bench.keys[0].size().modulus_bytes();
        for count in [1, 8] {
            assert!(bench.run(&vec![0; count], &vec![vec![2; length]; count]).0.all_done());
            assert!(bench.scratch.space.iter().all(|lanes| lanes.0 == [0; 8]));
        }
    }
}

#[test]
fn an_unsuitable_key_is_refused_with_its_reason() {
    let parts = || Parts::from_pkcs1_der(KEYS[0][0]).expect("a key in DER");
    let other = Parts::from_pkcs1_der(KEYS[0][1]).expect("a key in DER");
    let reason = |parts: &Parts<'_>| Key::new(parts).expect_err("unsuitable");
    let changed = |bytes: &[u8], at: usize| {
        let mut bytes = bytes.to_vec();
        bytes[at] ^= 2;
        bytes
    };
    assert_eq!(reason(&Parts { n: &other.n[..200], ..parts() }), Unsuitable::ModulusSize);
    assert_eq!(reason(&Parts { n: &[], ..parts() }), Unsuitable::ModulusSize);
    assert_eq!(reason(&Parts { e: &[3], ..parts() }), Unsuitable::PublicExponent);
    assert_eq!(reason(&Parts { e: &[1, 0, 0, 0, 0, 0, 0, 1, 0, 1], ..parts() }), Unsuitable::PublicExponent);
    assert_eq!(reason(&Parts { p: &parts().p[..100], ..parts() }), Unsuitable::PrimeSize);
    assert_eq!(reason(&Parts { q: &[&[1], parts().q].concat(), ..parts() }), Unsuitable::PrimeSize);
    assert_eq!(reason(&Parts { n: other.n, ..parts() }), Unsuitable::Modulus);
    assert_eq!(reason(&Parts { p: other.p, ..parts() }), Unsuitable::Modulus);
    for at in [0, 1, 60, 127] {
        let at_most = |bytes: &[u8]| at.min(bytes.len() - 1);
        let dp = changed(parts().dp, at_most(parts().dp));
        assert_eq!(reason(&Parts { dp: &dp, ..parts() }), Unsuitable::Exponent, "{at}");
        assert_eq!(reason(&Parts { dq: &changed(parts().dq, at_most(parts().dq)), ..parts() }), Unsuitable::Exponent);
        let qinv = changed(parts().qinv, at_most(parts().qinv));
        assert_eq!(reason(&Parts { qinv: &qinv, ..parts() }), Unsuitable::Coefficient, "{at}");
    }
    assert_eq!(reason(&Parts { dp: &[], ..parts() }), Unsuitable::Exponent);
    assert_eq!(reason(&Parts { qinv: &[], ..parts() }), Unsuitable::Coefficient);
    // The same number, but not reduced.
    let [p, dp] = [parts().p, parts().dp].map(BigUint::from_bytes_be);
    let dp_and_p = (dp + p - 1u32).to_bytes_be();
    assert_eq!(reason(&Parts { dp: &dp_and_p, ..parts() }), Unsuitable::Exponent);
    assert_eq!(reason(&Parts { e: &[0, 0, 0, 0, 0, 0, 0, 1, 0, 1], dq: &[], ..parts() }), Unsuitable::Exponent);
}

#[test]
fn a_key_may_be_shared_by_threads_and_does_not_print_its_secrets() {
    fn shareable<T: Send + Sync>(_: &T) {}
    let key = key(KEYS[0][0]);
    shareable(&key);
    assert_eq!(format!("{key:?}"), "Key { size: Rsa2048, .. }");
    assert_eq!(format!("{:?}", Blinding::new()), "Blinding { uses_left: 0, .. }");
}

#[cfg(target_arch = "x86_64")]
mod arithmetic {
    use super::super::scratch::Lanes;
    use super::super::{kernel, natural};
    use super::*;

    const LIMB_MAX: u64 = natural::LIMB_MASK;

    /// Eight numbers, one in each lane; some of them as large as they can be in so many limbs.
    fn numbers(rng: &mut Rng, limbs: usize) -> Vec<Lanes> {
        let kinds: [u8; 8] = std::array::from_fn(|_| rng.u8(..6));
        (0..limbs)
            .map(|_| {
                Lanes(kinds.map(|kind| match kind {
                    0 => LIMB_MAX,
                    1 => LIMB_MAX * u64::from(rng.bool()),
                    _ => rng.u64(..) & LIMB_MAX,
                }))
            })
            .collect()
    }

    fn value(columns: &[Lanes], lane: usize) -> BigUint {
        columns.iter().rev().fold(BigUint::ZERO, |sum, column| (sum << 52u32) + column.0[lane])
    }

    /// # Safety
    /// The processor has IFMA.
    #[target_feature(enable = "avx512f,avx512ifma,bmi2")]
    unsafe fn check(rng: &mut Rng, limbs: usize, spare_bits: usize) {
        let (mut a, mut b) = (numbers(rng, limbs), numbers(rng, limbs));
        let mut m = numbers(rng, limbs);
        let top = 52 - spare_bits;
        for factor in [&mut a, &mut b] {
            // Below sixteen times the modulus: more never becomes a factor.
            factor[limbs - 1].0.iter_mut().for_each(|limb| *limb &= (1 << (top + 3)) - 1);
        }
        for lane in 0..8 {
            m[0].0[lane] |= 1;
            m[limbs - 1].0[lane] = m[limbs - 1].0[lane] & ((1 << top) - 1) | 1 << (top - 1);
        }
        let (mut fold, mut k0) = (m.clone(), Lanes::ZERO);
        for lane in 0..8 {
            let modulus: Vec<u64> = m.iter().map(|limb| limb.0[lane]).collect();
            let folded = natural::inverse_power(kernel::BLOCK, &modulus);
            fold.iter_mut().zip(folded.0).for_each(|(fold, limb)| fold.0[lane] = limb);
            k0.0[lane] = natural::negated_inverse(modulus[0]);
        }
        let (mut product, mut square) = (vec![Lanes([!0; 8]); 2 * limbs], vec![Lanes([!0; 8]); 2 * limbs]);
        let (mut out, mut q) = (vec![Lanes::ZERO; limbs], [Lanes::ZERO; kernel::BLOCK]);
        kernel::product(&mut product, &a, &b);
        kernel::square(&mut square, &a);
        let highest = product.iter().chain(&square).flat_map(|column| column.0).max();
        assert!(highest.is_some_and(|highest| highest < (2 * limbs as u64) << 52), "the bound of a column");
        for lane in 0..8 {
            assert_eq!(value(&product, lane), value(&a, lane) * value(&b, lane), "product, lane {lane}");
            assert_eq!(value(&square, lane), value(&a, lane) * value(&a, lane), "square, lane {lane}");
        }
        let before = product.clone();
        kernel::reduce(&mut out, &mut product, kernel::Modulus { limbs: &m, fold: &fold, k0: &k0 }, &mut q);
        assert!(out.iter().flat_map(|limb| limb.0).all(|limb| limb <= LIMB_MAX), "carried");
        for lane in 0..8 {
            let (t, reduced, m) = (value(&before, lane), value(&out, lane), value(&m, lane));
            assert_eq!((&reduced << (52 * limbs)) % &m, &t % &m, "reduction, lane {lane}");
            assert!(reduced < (t >> (52 * limbs)) + &m * 2u32 + (&m >> 400) + 1u32, "the bound of a reduction");
        }
        let (before, mut spare) = (out.clone(), vec![Lanes::ZERO; limbs]);
        kernel::subtract_once(&mut out, &m, &mut spare);
        for lane in 0..8 {
            let (before, m) = (value(&before, lane), value(&m, lane));
            let expected = if before >= m { before - m } else { before };
            assert_eq!(value(&out, lane), expected, "subtraction, lane {lane}");
        }
    }

    #[test]
    fn products_squares_and_reductions_are_those_of_plain_big_numbers() {
        if Ifma::detect().is_none() {
            return println!("no IFMA here, nothing to test");
        }
        let mut rng = Rng::with_seed(0x1f3a);
        for (limbs, spare_bits) in [(20, 16), (30, 24), (40, 32), (60, 48), (80, 48)] {
            for _ in 0..rounds(200, 20_000) {
                // SAFETY: just detected.
                unsafe { check(&mut rng, limbs, spare_bits) };
            }
        }
    }

    #[test]
    fn a_selection_is_the_entry_asked_for_in_each_lane() {
        if Ifma::detect().is_none() {
            return println!("no IFMA here, nothing to test");
        }
        let mut rng = Rng::with_seed(0x5e1ec7);
        for limbs in [20, 30, 40] {
            let table = numbers(&mut rng, kernel::POWERS * limbs);
            for _ in 0..100 {
                let (words, shift): ([u64; 8], _) = (std::array::from_fn(|_| rng.u64(..)), rng.usize(..16) * 4);
                let digits = words.map(|word| word >> shift & 15);
                let mut out = vec![Lanes::ZERO; limbs];
                // SAFETY: just detected.
                unsafe { kernel::select(&mut out, &table, &Lanes(words), shift) };
                for (lane, digit) in digits.iter().enumerate() {
                    let entry = &table[*digit as usize * limbs..][..limbs];
                    assert!(entry.iter().zip(&out).all(|(entry, out)| entry.0[lane] == out.0[lane]));
                }
            }
        }
    }
}
