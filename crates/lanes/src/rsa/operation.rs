//! The life of a batch of operations: blind, raise mod p and mod q, put together, unblind, check, write out.

use super::batch::{Batch, Job};
use super::blinding::{Blinding, Renewal, USES_MAX};
use super::kernel::{self, BLOCK, Modulus, POWERS};
use super::key::{EXPONENT_WORDS_MAX, Key, Prime, Size};
use super::natural;
use super::scratch::{Lanes, Scratch, scratch_lanes};
use crate::wipe::wipe_registers;

/// A window of the exponent.
const WINDOW_BITS: usize = 4;
/// The public exponent is 2^16 + 1.
const PUBLIC_SQUARINGS: usize = 16;

/// The scratch of a call, divided. Half numbers have as many limbs as a prime, wide ones as the modulus.
pub(super) struct Space<'a> {
    work: Work<'a>,
    /// Mod p in some lanes, mod q in others, as the pass wants.
    half: Field<'a>,
    wide: Field<'a>,
    /// R³ mod the prime.
    half_r3: &'a mut [Lanes],
    exponent: &'a mut [Lanes],
    /// Sixteen powers.
    table: &'a mut [Lanes],
    power: &'a mut [Lanes],
    /// The result mod q, the limbs of q and qinv·R, in the lanes of p.
    second: &'a mut [Lanes],
    second_prime: &'a mut [Lanes],
    qinv: &'a mut [Lanes],
    /// Inputs of the operations.
    input: &'a mut [Lanes],
    /// Values that are raised to d, then the results.
    value: &'a mut [Lanes],
    /// Both parts of the blinding: side by side in the first if the batch is paired.
    factor: &'a mut [Lanes],
    inverse: &'a mut [Lanes],
    check: &'a mut [Lanes],
    spare: &'a mut [Lanes],
}

/// Columns that hold products until they are reduced.
struct Work<'a> {
    columns: &'a mut [Lanes],
    quotients: &'a mut [Lanes; BLOCK],
}

struct Field<'a> {
    limbs: &'a mut [Lanes],
    fold: &'a mut [Lanes],
    r2: &'a mut [Lanes],
    k0: &'a mut [Lanes],
}

/// Whose halves the lanes take.
#[derive(Clone, Copy)]
enum Pass {
    /// Lanes 0 to 3 p, lanes 4 to 7 q.
    Both,
    OnlyP,
    OnlyQ,
}

/// The exponent that the halves are raised to.
#[derive(Clone, Copy)]
enum Exponent {
    /// d.
    Private,
    /// -d.
    Inverse,
}

/// Does the jobs of `batch` and writes out the good results; answers which jobs are bad.
///
/// # Safety
/// The processor has AVX-512 F and IFMA and BMI2.
#[target_feature(enable = "avx512f,avx512ifma,bmi2")]
pub(super) unsafe fn private(space: &mut Space<'_>, jobs: &mut [Job<'_>], batch: Batch) -> u8 {
    let lanes = batch.by_lane();
    let keys = lanes.map(|job| jobs[job].key);
    space.wide.load(|lane| Constants::of_modulus(keys[lane]));
    for (lane, job) in lanes.iter().enumerate() {
        scatter_bytes(space.input, lane, jobs[*job].input);
        scatter(space.factor, lane, &jobs[*job].blinding.factor);
        scatter(space.inverse, lane, &jobs[*job].blinding.inverse);
    }

    space.work.multiply(space.value, space.input, space.factor, space.wide.modulus());
    space.raise(&keys, batch, Exponent::Private);
    space.work.product(space.value, space.inverse);
    space.work.reduce_fully(space.value, space.wide.modulus(), space.spare);
    space.raise_to_public();
    space.reduce_check();
    let good = kernel::equal_lanes(space.check, space.input);

    space.square_blinding(batch);
    let mut bad = 0;
    for (lane, index) in batch.active() {
        let job = &mut jobs[index];
        if good >> lane & 1 == 0 {
            bad |= 1 << index;
            job.blinding.clear();
            continue;
        }
        natural::to_be_bytes(|i| space.value.get(i).map_or(0, |limb| limb.0[lane]), job.output);
        job.blinding.uses_left -= 1;
        let (inverse, inverse_lane) =
            if batch.is_paired() { (&*space.factor, lane + 4) } else { (&*space.inverse, lane) };
        gather(&mut job.blinding.factor, space.factor, lane);
        gather(&mut job.blinding.inverse, inverse, inverse_lane);
    }
    wipe_registers();
    bad
}

/// Makes new blindings: z is random, and z^-d = z^(p-1-d) mod p, likewise mod q. So neither an inversion nor r^e is
/// needed; r is z^d, and nobody has to know it. Answers which are bad.
///
/// # Safety
/// The processor has AVX-512 F and IFMA and BMI2.
#[target_feature(enable = "avx512f,avx512ifma,bmi2")]
pub(super) unsafe fn renew(space: &mut Space<'_>, renewals: &mut [Renewal<'_>], batch: Batch) -> u8 {
    let lanes = batch.by_lane();
    let keys = lanes.map(|renewal| renewals[renewal].key);
    space.wide.load(|lane| Constants::of_modulus(keys[lane]));

    // z·R is as random as z: the bytes are taken for z·R².
    for (lane, renewal) in lanes.iter().enumerate() {
        scatter_bytes(space.work.columns, lane, renewals[*renewal].random);
    }
    space.work.reduce(space.factor, space.wide.modulus());
    space.work.take(space.factor);
    space.work.reduce(space.value, space.wide.modulus());
    space.raise(&keys, batch, Exponent::Inverse);
    space.work.multiply(space.inverse, space.value, space.wide.r2, space.wide.modulus());

    // (z^-d)^e·z = 1, or something went wrong.
    space.raise_to_public();
    space.work.reduce(space.check, space.wide.modulus());
    space.work.product(space.check, space.factor);
    space.reduce_check();
    space.input.fill(Lanes::ZERO);
    space.input[0] = Lanes([1; 8]);
    let good = kernel::equal_lanes(space.check, space.input);

    let mut bad = 0;
    for (lane, index) in batch.active() {
        let Renewal { key, blinding, .. } = &mut renewals[index];
        if good >> lane & 1 == 0 {
            bad |= 1 << index;
            continue;
        }
        gather(&mut blinding.factor, space.factor, lane);
        gather(&mut blinding.inverse, space.inverse, lane);
        (blinding.of, blinding.uses_left) = (Blinding::tag(key), USES_MAX);
    }
    wipe_registers();
    bad
}

impl<'a> Space<'a> {
    pub fn new(scratch: &'a mut Scratch, size: Size) -> Space<'a> {
        let half = size.half_limbs();
        let mut rest = &mut scratch.space[..scratch_lanes(size)];
        let mut take = |lanes: usize| -> &'a mut [Lanes] {
            let (taken, left) = core::mem::take(&mut rest).split_at_mut(lanes);
            rest = left;
            taken
        };
        Space {
            table: take(POWERS * half),
            work: Work {
                columns: take(4 * half),
                quotients: take(BLOCK).first_chunk_mut().expect("ten lanes were just taken"),
            },
            half: Field { limbs: take(half), fold: take(half), r2: take(half), k0: take(1) },
            wide: Field { limbs: take(2 * half), fold: take(2 * half), r2: take(2 * half), k0: take(1) },
            half_r3: take(half),
            exponent: take(EXPONENT_WORDS_MAX),
            power: take(half),
            second: take(half),
            second_prime: take(half),
            qinv: take(half),
            input: take(2 * half),
            value: take(2 * half),
            factor: take(2 * half),
            inverse: take(2 * half),
            check: take(2 * half),
            spare: take(2 * half),
        }
    }

    /// value := value^d mod n, or value^-d, by way of the primes.
    #[target_feature(enable = "avx512f,avx512ifma,bmi2")]
    fn raise(&mut self, keys: &[&Key; 8], batch: Batch, exponent: Exponent) {
        if batch.is_paired() {
            self.raise_half(keys, Pass::Both, exponent);
            for (second, (power, (prime, second_prime))) in
                self.second.iter_mut().zip(self.power.iter().zip(self.half.limbs.iter().zip(&mut *self.second_prime)))
            {
                for lane in 0..8 {
                    second.0[lane] = power.0[lane ^ 4];
                    second_prime.0[lane] = prime.0[lane ^ 4];
                }
            }
        } else {
            self.raise_half(keys, Pass::OnlyQ, exponent);
            self.second.copy_from_slice(self.power);
            self.second_prime.copy_from_slice(self.half.limbs);
            self.raise_half(keys, Pass::OnlyP, exponent);
        }
        self.combine(keys);
    }

    /// power := value^exponent mod the prime of each lane, below it.
    #[target_feature(enable = "avx512f,avx512ifma,bmi2")]
    fn raise_half(&mut self, keys: &[&Key; 8], pass: Pass, exponent: Exponent) {
        let prime = |lane: usize| &keys[lane].primes[pass.prime(lane)];
        let words = keys[0].size.exponent_words();
        self.half.load(|lane| Constants::of_prime(prime(lane)));
        for lane in 0..8 {
            scatter(self.half_r3, lane, &prime(lane).r3);
            scatter(&mut self.exponent[..words], lane, exponent.of(prime(lane)));
        }
        let limbs = self.power.len();
        let m = self.half.modulus();

        // value = low + high·R, hence value·R = low·R²/R + high·R³/R.
        let (low, high) = self.value.split_at(limbs);
        self.work.multiply(self.power, high, self.half_r3, m);
        self.work.multiply(self.qinv, low, self.half.r2, m);
        kernel::add_carried(&mut self.table[limbs..2 * limbs], self.qinv, self.power);
        self.fill_table();
        self.exponentiate(words * 64);
        self.work.take(self.power);
        self.work.reduce_fully(self.power, self.half.modulus(), self.spare);
    }

    /// The powers 0 and 2 to 15 of the number that stands as power 1.
    #[target_feature(enable = "avx512f,avx512ifma,bmi2")]
    fn fill_table(&mut self) {
        let limbs = self.power.len();
        self.work.take(self.half.r2);
        self.work.reduce(&mut self.table[..limbs], self.half.modulus());
        for entry in 2..POWERS {
            let (below, from) = self.table.split_at_mut(entry * limbs);
            let power = |k: usize| &below[k * limbs..(k + 1) * limbs];
            if entry % 2 == 0 {
                self.work.square(power(entry / 2));
            } else {
                self.work.product(power(entry - 1), power(1));
            }
            self.work.reduce(&mut from[..limbs], self.half.modulus());
        }
    }

    #[target_feature(enable = "avx512f,avx512ifma,bmi2")]
    fn exponentiate(&mut self, exponent_bits: usize) {
        let m = self.half.modulus();
        let selected = &mut *self.qinv;
        let last = exponent_bits - WINDOW_BITS;
        kernel::select(self.power, self.table, &self.exponent[last / 64], last % 64);
        for at in (0..last).step_by(WINDOW_BITS).rev() {
            for _ in 0..WINDOW_BITS {
                self.work.square(self.power);
                self.work.reduce(self.power, m);
            }
            kernel::select(selected, self.table, &self.exponent[at / 64], at % 64);
            self.work.product(self.power, selected);
            self.work.reduce(self.power, m);
        }
    }

    /// value := second + q·((power - second)·qinv mod p).
    #[target_feature(enable = "avx512f,avx512ifma,bmi2")]
    fn combine(&mut self, keys: &[&Key; 8]) {
        for (lane, key) in keys.iter().enumerate() {
            scatter(self.qinv, lane, &key.qinv);
        }
        // q < 2p, since both have the same top bit.
        kernel::subtract_from(self.power, self.second, self.half.limbs);
        self.work.product(self.power, self.qinv);
        self.work.reduce_fully(self.power, self.half.modulus(), self.spare);
        self.work.product(self.power, self.second_prime);
        kernel::add_carried(self.value, self.work.columns, self.second);
    }

    /// columns := value^65537, not reduced.
    #[target_feature(enable = "avx512f,avx512ifma,bmi2")]
    fn raise_to_public(&mut self) {
        let m = self.wide.modulus();
        self.work.multiply(self.check, self.value, self.wide.r2, m);
        for _ in 0..PUBLIC_SQUARINGS {
            self.work.square(self.check);
            self.work.reduce(self.check, m);
        }
        self.work.product(self.check, self.value);
    }

    #[target_feature(enable = "avx512f,avx512ifma,bmi2")]
    fn reduce_check(&mut self) {
        self.work.reduce_fully(self.check, self.wide.modulus(), self.spare);
    }

    /// The next pair of each blinding.
    #[target_feature(enable = "avx512f,avx512ifma,bmi2")]
    fn square_blinding(&mut self, batch: Batch) {
        let m = self.wide.modulus();
        if batch.is_paired() {
            for (factor, inverse) in self.factor.iter_mut().zip(self.inverse.iter()) {
                factor.0[4..].copy_from_slice(&inverse.0[4..]);
            }
        } else {
            self.work.square(self.inverse);
            self.work.reduce(self.inverse, m);
        }
        self.work.square(self.factor);
        self.work.reduce(self.factor, m);
    }
}

impl Work<'_> {
    #[target_feature(enable = "avx512f,avx512ifma,bmi2")]
    fn product(&mut self, a: &[Lanes], b: &[Lanes]) {
        kernel::product(self.columns, a, b);
    }

    #[target_feature(enable = "avx512f,avx512ifma,bmi2")]
    fn square(&mut self, a: &[Lanes]) {
        kernel::square(self.columns, a);
    }

    /// columns := a, so that reducing divides it by R.
    fn take(&mut self, a: &[Lanes]) {
        self.columns[..a.len()].copy_from_slice(a);
        self.columns[a.len()..2 * a.len()].fill(Lanes::ZERO);
    }

    #[target_feature(enable = "avx512f,avx512ifma,bmi2")]
    fn reduce(&mut self, out: &mut [Lanes], m: Modulus<'_>) {
        kernel::reduce(out, self.columns, m, self.quotients);
    }

    /// The remainder below the modulus. What `reduce` leaves is below three times it.
    #[target_feature(enable = "avx512f,avx512ifma,bmi2")]
    fn reduce_fully(&mut self, out: &mut [Lanes], m: Modulus<'_>, spare: &mut [Lanes]) {
        self.reduce(out, m);
        kernel::subtract_once(out, m.limbs, spare);
        kernel::subtract_once(out, m.limbs, spare);
    }

    /// out := ab/R.
    #[target_feature(enable = "avx512f,avx512ifma,bmi2")]
    fn multiply(&mut self, out: &mut [Lanes], a: &[Lanes], b: &[Lanes], m: Modulus<'_>) {
        self.product(a, b);
        self.reduce(out, m);
    }
}

impl Field<'_> {
    fn modulus(&self) -> Modulus<'_> {
        Modulus { limbs: self.limbs, fold: self.fold, k0: &self.k0[0] }
    }

    fn load<'k>(&mut self, of_lane: impl Fn(usize) -> Constants<'k>) {
        for lane in 0..8 {
            let constants = of_lane(lane);
            scatter(self.limbs, lane, constants.limbs);
            scatter(self.fold, lane, constants.fold);
            scatter(self.r2, lane, constants.r2);
            self.k0[0].0[lane] = constants.k0;
        }
    }
}

/// The numbers that a field takes from one key.
struct Constants<'k> {
    limbs: &'k [u64],
    fold: &'k [u64],
    r2: &'k [u64],
    k0: u64,
}

impl Constants<'_> {
    fn of_modulus(key: &Key) -> Constants<'_> {
        let n = &key.modulus;
        Constants { limbs: &n.limbs, fold: &n.fold, r2: &n.r2, k0: n.k0 }
    }

    fn of_prime(prime: &Prime) -> Constants<'_> {
        Constants { limbs: &prime.limbs, fold: &prime.fold, r2: &prime.r2, k0: prime.k0 }
    }
}

impl Pass {
    fn prime(self, lane: usize) -> usize {
        match self {
            Pass::Both => lane / 4,
            Pass::OnlyP => 0,
            Pass::OnlyQ => 1,
        }
    }
}

impl Exponent {
    fn of(self, prime: &Prime) -> &[u64; EXPONENT_WORDS_MAX] {
        match self {
            Exponent::Private => &prime.exponent,
            Exponent::Inverse => &prime.complement,
        }
    }
}

/// Puts a number into one lane.
#[inline(never)]
fn scatter(to: &mut [Lanes], lane: usize, limbs: &[u64]) {
    for (to, limb) in to.iter_mut().zip(limbs) {
        to.0[lane % 8] = *limb;
    }
}

/// Puts a big-endian number into one lane.
#[inline(never)]
fn scatter_bytes(to: &mut [Lanes], lane: usize, bytes: &[u8]) {
    for (i, to) in to.iter_mut().enumerate() {
        to.0[lane % 8] = natural::limb_of_bytes(bytes, i);
    }
}

/// Takes a number out of one lane.
#[inline(never)]
fn gather(limbs: &mut [u64], from: &[Lanes], lane: usize) {
    for (limb, from) in limbs.iter_mut().zip(from) {
        *limb = from.0[lane % 8];
    }
}
