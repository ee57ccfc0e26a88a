//! RSA private-key operations for 2,048, 3,072 and 4,096 bits, up to eight at once.
//!
//! Up to four operations are one pass: lanes 0 to 3 raise mod p, lanes 4 to 7 mod q. Five to eight are two passes. Any
//! mix of keys of one size. A call costs the same for one operation as for four, and for five as for eight.
//!
//! The method is the eight-lane Montgomery exponentiation of Gueron and Krasnov ("Software implementation of modular
//! exponentiation, using advanced vector instructions architectures", 2012) with limbs of 52 bits for the IFMA
//! instructions, the Chinese remainder theorem (RFC 8017 §5.1.2), blinding by a pair r^e, 1/r (Kocher, 1996), and a
//! check of every final result with the public exponent (Boneh, DeMillo and Lipton, 1997).

#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "elsewhere keys are checked, and nothing is raised")
)]

mod blinding;
mod der;
#[cfg(target_arch = "x86_64")]
mod kernel;
mod key;
mod known;
mod natural;
#[cfg(target_arch = "x86_64")]
mod operation;
#[cfg(test)]
mod tests;

pub use blinding::{Blinding, Renewal, USES_MAX};
pub use key::{Key, Parts, Size, Unsuitable};
pub use known::self_test;

use crate::Ifma;
use crate::wipe::{Blank, wipe, wipe_stack};

/// Operations that one call takes at most.
pub const JOBS_MAX: usize = 8;
/// Operations that fit into one pass: a second pass costs as much again.
pub const JOBS_PER_PASS: usize = 4;

/// One private-key operation: output := input^d mod n.
pub struct Job<'a> {
    /// The key; lanes of one call may share it.
    pub key: &'a Key,
    /// A pair for this key with uses left; no two lanes may share it, which `&mut` sees to.
    pub blinding: &'a mut Blinding,
    /// Big-endian, as long as the modulus and less than it.
    pub input: &'a [u8],
    /// Big-endian, as long as the modulus. All zeros unless the operation succeeded.
    pub output: &'a mut [u8],
}

/// The outcome of the jobs of a call: bit i stands for job i, no bit for success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[must_use]
pub struct Report {
    /// The result does not lead back to the input. The output is zero; do the operation elsewhere, and if this happens
    /// more than once, stop using the lanes: the processor or the memory is broken, or under attack.
    pub bad: u8,
    /// Not done, through the caller's fault: an input that is not less than the modulus, a wrong length, a blinding of
    /// another key or without uses left, a key of another size than the first job's, or a job after the eighth.
    pub refused: u8,
}

impl Report {
    /// Whether every job has its result.
    #[must_use]
    pub fn all_done(self) -> bool {
        self.bad == 0 && self.refused == 0
    }
}

/// One 64-bit word for each of the eight lanes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Lanes(pub [u64; 8]);

// SAFETY: zero is a value of an array of integers.
unsafe impl Blank for Lanes {}

impl Lanes {
    const ZERO: Lanes = Lanes([0; 8]);
}

const SCRATCH_LANES: usize = scratch_lanes(Size::Rsa4096);

/// Vectors that an operation needs: see `operation::Space`, which divides them.
const fn scratch_lanes(size: Size) -> usize {
    46 * size.half_limbs() + 44
}

/// Room for the intermediate values of a call: 118 KiB, of which RSA-2048 uses 60. Too large for a small stack: keep
/// one per thread. Holds nothing but zeros between calls.
pub struct Scratch {
    space: [Lanes; SCRATCH_LANES],
}

impl Scratch {
    /// Empty room.
    #[must_use]
    pub const fn new() -> Scratch {
        Scratch { space: [Lanes::ZERO; SCRATCH_LANES] }
    }

    fn wipe(&mut self, size: Size) {
        wipe(&mut self.space[..scratch_lanes(size)]);
    }
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.wipe(Size::Rsa4096);
    }
}

/// Does up to eight private-key operations of one size. Every result is checked against its input with the public
/// exponent before it is written out. A job that is refused does not keep the others from being done.
///
/// # Panics
/// With more than [`JOBS_MAX`] jobs.
pub fn private_operations(ifma: Ifma, scratch: &mut Scratch, jobs: &mut [Job<'_>]) -> Report {
    assert!(jobs.len() <= JOBS_MAX, "eight jobs fit into eight lanes");
    let mut batch = Batch::default();
    let mut report = Report::default();
    let size = jobs.first().map(|job| job.key.size);
    for (i, job) in jobs.iter_mut().enumerate() {
        job.output.fill(0);
        if Some(job.key.size) == size && job.is_acceptable() {
            batch.push(i);
        } else {
            report.refused |= 1 << i;
        }
    }
    if let (Some(size), false) = (size, batch.is_empty()) {
        report.bad = run(ifma, scratch, size, |space| {
            // SAFETY: the proof says that the processor has what the kernels need.
            unsafe { operation::private(space, jobs, batch) }
        });
    }
    report
}

/// Gives up to eight blindings of keys of one size new random pairs: costs as much as as many private operations, so
/// three per cent of one for each of the [`USES_MAX`] uses. A bad one has no uses: try again with other random bytes.
///
/// # Panics
/// With more than [`JOBS_MAX`] renewals.
pub fn renew_blindings(ifma: Ifma, scratch: &mut Scratch, renewals: &mut [Renewal<'_>]) -> Report {
    assert!(renewals.len() <= JOBS_MAX, "eight renewals fit into eight lanes");
    let mut batch = Batch::default();
    let mut report = Report::default();
    let size = renewals.first().map(|renewal| renewal.key.size);
    for (i, renewal) in renewals.iter_mut().enumerate() {
        renewal.blinding.clear();
        if Some(renewal.key.size) == size && renewal.random.len() == renewal.key.random_bytes() {
            batch.push(i);
        } else {
            report.refused |= 1 << i;
        }
    }
    if let (Some(size), false) = (size, batch.is_empty()) {
        report.bad = run(ifma, scratch, size, |space| {
            // SAFETY: the proof says that the processor has what the kernels need.
            unsafe { operation::renew(space, renewals, batch) }
        });
    }
    report
}

impl Job<'_> {
    fn is_acceptable(&self) -> bool {
        let length = self.key.size.modulus_bytes();
        self.input.len() == length
            && self.output.len() == length
            && self.blinding.serves(self.key)
            && self.key.modulus.exceeds(self.input)
    }
}

/// The jobs of a call that are to be done: which of them each lane takes.
#[derive(Clone, Copy, Default)]
struct Batch {
    jobs: [usize; JOBS_MAX],
    count: usize,
}

impl Batch {
    fn push(&mut self, job: usize) {
        self.jobs[self.count] = job;
        self.count += 1;
    }

    fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether p and q halves go side by side, in one pass.
    fn is_paired(&self) -> bool {
        self.count <= JOBS_PER_PASS
    }

    /// The job of each lane. Idle lanes repeat the first; lanes 4 to 7 repeat lanes 0 to 3 in a paired batch.
    fn by_lane(&self) -> [usize; 8] {
        let width = if self.is_paired() { JOBS_PER_PASS } else { JOBS_MAX };
        core::array::from_fn(|lane| self.jobs[if lane % width < self.count { lane % width } else { 0 }])
    }

    /// The jobs in the order of the lanes that have their results.
    fn active(&self) -> impl Iterator<Item = (usize, usize)> {
        self.jobs.into_iter().take(self.count).enumerate()
    }
}

/// Stack that an operation uses at most, roughly twice.
const STACK_BYTES: usize = 8 << 10;

/// Runs on the scratch, which is wiped afterwards, even after a panic.
fn run(_: Ifma, scratch: &mut Scratch, size: Size, work: impl FnOnce(&mut operation::Space<'_>) -> u8) -> u8 {
    struct Wiped<'a>(&'a mut Scratch, Size);
    impl Drop for Wiped<'_> {
        fn drop(&mut self) {
            self.0.wipe(self.1);
            wipe_stack::<STACK_BYTES>();
        }
    }
    let scratch = Wiped(scratch, size);
    work(&mut operation::Space::new(scratch.0, size))
}

/// Elsewhere nobody has an [`Ifma`], so nobody comes here.
#[cfg(not(target_arch = "x86_64"))]
mod operation {
    use super::{Batch, Job, Renewal, Scratch, Size};

    pub struct Space<'a>(core::marker::PhantomData<&'a ()>);

    impl<'a> Space<'a> {
        pub fn new(_: &'a mut Scratch, _: Size) -> Space<'a> {
            Space(core::marker::PhantomData)
        }
    }

    /// # Safety
    /// No requirement here; the real function needs the processor's features.
    pub unsafe fn private(_: &mut Space<'_>, _: &mut [Job<'_>], _: Batch) -> u8 {
        u8::MAX
    }

    /// # Safety
    /// No requirement here; the real function needs the processor's features.
    pub unsafe fn renew(_: &mut Space<'_>, _: &mut [Renewal<'_>], _: Batch) -> u8 {
        u8::MAX
    }
}
