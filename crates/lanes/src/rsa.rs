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

mod batch;
mod blinding;
mod der;
#[cfg(target_arch = "x86_64")]
mod kernel;
mod key;
mod known;
mod natural;
#[cfg(target_arch = "x86_64")]
mod operation;
mod scratch;
#[cfg(test)]
mod tests;

pub use batch::{JOBS_MAX, JOBS_PER_PASS, Job};
pub use blinding::{Blinding, Renewal, USES_MAX};
pub use key::{Key, Parts, Size, Unsuitable};
pub use known::self_test;
pub use scratch::Scratch;

use crate::Ifma;
use crate::wipe::wipe_stack;
use batch::Batch;

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
