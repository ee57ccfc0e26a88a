//! Batches: the work that a core does for many handshakes at once, and what it makes ahead of them.
//!
//! [`Batching`] is the process's: whether there are lanes, and whether they can still be trusted. Each thread that
//! is to use them calls [`install`] once, and has from then on a bench of its own: the kernels' working memory,
//! blindings, and a pool. A [`JobQueue`](crate::JobQueue) of that thread does its jobs at the bench, and
//! [`X25519Pair::draw`](crate::X25519Pair::draw) takes a pair from the pool. When the thread has nothing else to do
//! it calls [`refill`]. None of this needs a runtime, or a second thread:
//!
//! ```
//! use propylon_crypto::batch::{self, Batching};
//! use propylon_crypto::{JobQueue, X25519Pair};
//!
//! // Once for the process, before its threads are started.
//! let batching = Batching::start();
//! // On each thread that is to work in batches.
//! batch::install(&batching);
//! let desk = JobQueue::new();
//! let jobs: Vec<_> = (0..5).map(|_| desk.submit(X25519Pair::draw().agree([9; 32]))).collect();
//! // When all that came in together has been handed in. Then each of `jobs` has its outcome.
//! assert_eq!(desk.leave(), 5);
//! // Before the thread waits for more to come.
//! batch::refill();
//! # drop(jobs);
//! ```
//!
//! AWS-LC is what everything is compared with, and what does it wherever a kernel cannot, or can no longer: other
//! processors, other keys, a failed self-test, a result that was found to be wrong.

mod chance;
mod direct;
mod health;
mod plan;
pub(crate) mod pools;
mod raise;
pub(crate) mod signatures;

use std::cell::RefCell;
use std::sync::Arc;

use propylon_lanes::{Ifma, p256, x25519};
use zeroize::Zeroizing;

pub use direct::{company, go_together, prepare, run_all};
pub use health::{Batching, Kernel, KernelState};
pub use plan::{LANES, P256_MAX};
pub use pools::{POOL_MAX, REFILL};

pub(crate) use chance::stir;

use crate::awslc;
use crate::job::{Job, JobError, JobKind, Outcome};
use crate::locked::Locked;
use crate::pair::X25519Pair;
use chance::Chance;
use plan::Part;
use pools::{Shares, Unfilled};
use raise::Raise;
use signatures::{Signatures, Unsigned};

/// Sampling rate: one signature of so many is verified before it is released, one batch of so many is done again by
/// AWS-LC.
const CHECKED_ONE_OF: u64 = 256;

/// Work that has a kernel, in the order of the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Rsa,
    X25519,
    P256Signature,
    X25519Pair,
}

impl Work {
    pub const ALL: [Work; 4] = [Work::Rsa, Work::X25519, Work::P256Signature, Work::X25519Pair];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Work::Rsa => "rsa",
            Work::X25519 => "x25519",
            Work::P256Signature => "p256-signature",
            Work::X25519Pair => "x25519-pair",
        }
    }
}

/// Counts of a thread's bench since it was installed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchCounts {
    /// Batches of RSA operations and of X25519 agreements that left, by their size less one; those of one are AWS-LC's.
    pub sizes: [[u64; LANES]; 2],
    /// Batches of signatures on P-256 likewise.
    pub p256_sizes: [u64; P256_MAX],
    /// Done in the lanes, or with what they made ahead; in the order of [`Work::ALL`].
    pub in_lanes: [u64; Work::ALL.len()],
    /// Done by AWS-LC, in the same order.
    pub by_awslc: [u64; Work::ALL.len()],
    /// X25519 pairs that are ready now.
    pub pool_level: usize,
    /// Times that the pool was filled when it was empty and somebody waited.
    pub pool_misses: u64,
    /// RSA results that were found to be wrong, and done again.
    pub bad_lanes: u64,
    /// Results that were compared with AWS-LC's, or verified by it, and were right.
    pub checks_passed: u64,
    /// Results that were checked and wrong: the kernel has not been used since.
    pub checks_failed: u64,
    /// Whether all memory is kept from being swapped out.
    pub is_locked: bool,
}

struct Bench {
    batching: Arc<Batching>,
    ifma: Ifma,
    chance: Chance,
    /// Working memory of RSA. Each memory here is made when it is first needed; absent where there was none to be had.
    raise: Place<Box<Raise>>,
    signatures: Place<Locked<Signatures>>,
    shares: Place<Locked<Shares>>,
    /// Done in the lanes: of RSA operations, of X25519 agreements, of X25519 pairs.
    batches: [u64; 3],
    counts: BatchCounts,
}

enum Place<T> {
    Unused,
    Made(T),
    NoMemory,
}

impl<T> Place<T> {
    fn made(&mut self, make: impl FnOnce() -> Option<T>) -> Option<&mut T> {
        if let Place::Unused = self {
            *self = make().map_or(Place::NoMemory, Place::Made);
        }
        self.there()
    }

    fn there(&mut self) -> Option<&mut T> {
        match self {
            Place::Made(made) => Some(made),
            _ => None,
        }
    }
}

thread_local! {
    static BENCH: RefCell<Option<Bench>> = const { RefCell::new(None) };
}

/// Gives this thread a bench, if the process has lanes to be used. Its memory is taken as it is needed.
pub fn install(batching: &Arc<Batching>) {
    let bench = batching.ifma().map(|ifma| Bench {
        batching: Arc::clone(batching),
        ifma,
        chance: Chance::new(),
        raise: Place::Unused,
        signatures: Place::Unused,
        shares: Place::Unused,
        batches: [0; 3],
        counts: BatchCounts { is_locked: true, ..BatchCounts::default() },
    });
    BENCH.set(bench);
}

/// The counts of this thread's bench; absent without one.
#[must_use]
pub fn counts() -> Option<BatchCounts> {
    with(|bench| bench.counts())
}

/// Makes one batch of pairs ahead, if the pool is in use and has room for one; for a thread that has nothing else
/// to do. Takes at most 0.1 ms. Returns whether there was something to make.
pub fn refill() -> bool {
    with(Bench::refill).unwrap_or(false)
}

/// Runs `use_it` on the thread's bench. Absent on a thread without a bench, and when the bench is being used: then
/// AWS-LC does it.
fn with<T>(use_it: impl FnOnce(&mut Bench) -> T) -> Option<T> {
    BENCH.try_with(|bench| bench.try_borrow_mut().ok()?.as_mut().map(use_it)).ok().flatten()
}

/// Jobs of a kind that are as many as can be done together.
pub(crate) fn full_at(kind: JobKind) -> usize {
    match kind {
        JobKind::Rsa => plan::RSA_PASS,
        JobKind::Ecdsa => plan::P256_MAX,
        _ => LANES,
    }
}

/// Jobs of one kind, sorted into those that go together, in the order in which they came as far as that goes.
pub(crate) fn sorted<T>(kind: JobKind, jobs: Vec<(T, Job)>) -> Vec<Vec<(T, Job)>> {
    let usable = |kernel| with(|bench| bench.batching.is_usable(kernel)).unwrap_or(false);
    match kind {
        _ if jobs.len() < 2 => vec![jobs],
        JobKind::X25519 if usable(Kernel::X25519) => divided(jobs, plan::x25519),
        JobKind::Ecdsa if usable(Kernel::P256) => {
            let takes = |(_, job): &(T, Job)| job.p256_operation().is_some();
            let (jobs, others): (Vec<_>, Vec<_>) = jobs.into_iter().partition(takes);
            divided(jobs, plan::p256).into_iter().chain(others.into_iter().map(|job| vec![job])).collect()
        }
        JobKind::Rsa if usable(Kernel::Rsa) => {
            let (mut by_size, mut others) = ([const { Vec::new() }; 3], Vec::new());
            for (slot, job) in jobs {
                match job.rsa_operation() {
                    Some((_, key, _)) => by_size[key.size() as usize].push((slot, job)),
                    None => others.push(vec![(slot, job)]),
                }
            }
            by_size.into_iter().flat_map(|jobs| divided(jobs, plan::rsa)).chain(others).collect()
        }
        _ => jobs.into_iter().map(|job| vec![job]).collect(),
    }
}

fn divided<T>(mut jobs: Vec<(T, Job)>, next: impl Fn(usize) -> Part) -> Vec<Vec<(T, Job)>> {
    let mut parts = Vec::new();
    while !jobs.is_empty() {
        let count = match next(jobs.len()) {
            Part::Lanes(count) => count,
            Part::Alone => 1,
        };
        let rest = jobs.split_off(count);
        parts.push(std::mem::replace(&mut jobs, rest));
    }
    parts
}

/// Does what [`sorted`] has put together. As many outcomes as jobs, in their order.
pub(crate) fn run(kind: JobKind, jobs: Vec<Job>) -> Vec<Outcome> {
    with(|bench| bench.count_size(kind, jobs.len()));
    let mut outcomes: Vec<Option<Outcome>> = match (jobs.len(), kind) {
        (0 | 1, _) => None,
        (_, JobKind::Rsa) => with(|bench| bench.rsa(&jobs)),
        (_, JobKind::X25519) => with(|bench| bench.x25519(&jobs)),
        (_, JobKind::Ecdsa) => with(|bench| bench.p256(&jobs)),
        _ => None,
    }
    .unwrap_or_default();
    outcomes.resize_with(jobs.len(), || None);
    let done = jobs.into_iter().zip(outcomes);
    done.map(|(job, outcome)| outcome.unwrap_or_else(|| job.run())).collect()
}

/// A job is done by AWS-LC.
pub(crate) fn count_awslc(work: Work) {
    with(|bench| bench.counts.by_awslc[work as usize] += 1);
}

/// A pair from the pool; absent if AWS-LC is to make it.
pub(crate) fn x25519_pair() -> Option<X25519Pair> {
    with(Bench::x25519_pair).flatten()
}

impl Bench {
    fn counts(&mut self) -> BatchCounts {
        let shares = self.shares.there().map_or((0, true), |pool| (pool.level(), pool.is_locked()));
        let scratch = self.raise.there().is_none_or(|raise| raise.is_locked());
        let signatures = self.signatures.there().is_none_or(|memory| memory.is_locked());
        BatchCounts { pool_level: shares.0, is_locked: shares.1 && scratch && signatures, ..self.counts }
    }

    fn count_size(&mut self, kind: JobKind, count: usize) {
        let sizes: &mut [u64] = match kind {
            JobKind::Rsa => &mut self.counts.sizes[0],
            JobKind::X25519 => &mut self.counts.sizes[1],
            JobKind::Ecdsa => &mut self.counts.p256_sizes,
            _ => return,
        };
        if let Some(size) = count.checked_sub(1).and_then(|index| sizes.get_mut(index)) {
            *size += 1;
        }
    }

    /// Whether the next of `work` is one to be checked.
    fn is_due(&self, work: Work) -> bool {
        self.counts.in_lanes[work as usize].is_multiple_of(CHECKED_ONE_OF)
    }

    /// A batch of `count` is done: which lane of it is to be checked, if one is. Each in turn.
    fn next_checked(&mut self, work: usize, count: usize) -> Option<usize> {
        let before = self.batches[work];
        self.batches[work] += 1;
        let turn = before.is_multiple_of(CHECKED_ONE_OF).then_some(before / CHECKED_ONE_OF)?;
        Some(turn as usize % count)
    }

    fn checked(&mut self, kernel: Kernel, right: bool) -> bool {
        if right {
            self.counts.checks_passed += 1;
        } else {
            self.counts.checks_failed += 1;
            self.give_up(kernel);
        }
        right
    }

    /// Gives the kernel up for good, on all threads.
    fn give_up(&mut self, kernel: Kernel) {
        self.batching.give_up(kernel);
        match kernel {
            // The kernels for RSA and P-256 keep nothing from one batch to the next.
            Kernel::Rsa | Kernel::P256 => {}
            Kernel::X25519 => self.shares.there().into_iter().for_each(|pool| pool.clear()),
        }
    }

    fn rsa(&mut self, jobs: &[Job]) -> Vec<Option<Outcome>> {
        let Some(raise) = self.raise.made(|| Raise::new().map(Box::new)) else { return Vec::new() };
        let operations: Vec<_> = jobs.iter().filter_map(Job::rsa_operation).collect();
        if operations.len() != jobs.len() {
            return Vec::new();
        }
        let raised = raise.raise(self.ifma, &mut self.chance, &operations);
        if raised.bad > 0 {
            self.counts.bad_lanes += u64::from(raised.bad);
            self.batching.count_bad(raised.bad);
        }
        let mut outputs = raised.outputs;
        // Every result has been checked with the public exponent; this comparison with AWS-LC is for the checks
        // themselves.
        if let Some(lane) = self.next_checked(0, jobs.len())
            && let (Some(output), (key, _, input)) = (&outputs[lane], operations[lane])
        {
            let right = key.rsa_raw(input).is_ok_and(|reference| *reference == **output);
            if !self.checked(Kernel::Rsa, right) {
                return Vec::new();
            }
        }
        self.counts.in_lanes[Work::Rsa as usize] += outputs.iter().flatten().count() as u64;
        outputs.iter_mut().map(|output| output.take().map(Ok)).collect()
    }

    fn x25519(&mut self, jobs: &[Job]) -> Vec<Option<Outcome>> {
        let mut secrets = Zeroizing::new([[0; 32]; LANES]);
        let mut agreed = Zeroizing::new([[0; 32]; LANES]);
        let mut peers = [[0; 32]; LANES];
        let count = jobs.len().min(LANES);
        for (index, job) in jobs.iter().take(LANES).enumerate() {
            let Job::X25519 { secret, peer } = job else { return Vec::new() };
            (secrets[index], peers[index]) = (**secret, *peer);
        }
        let zero = x25519::derive_some(self.ifma, &secrets[..count], &peers[..count], &mut agreed[..count]);
        #[cfg(test)]
        agreed.iter_mut().for_each(|secret| faults::flip(secret));
        if let Some(lane) = self.next_checked(1, count) {
            let bad_share = zero >> lane & 1 == 1;
            let right = match awslc::x25519(&secrets[lane], &peers[lane]) {
                Some(reference) => !bad_share && reference.as_slice() == agreed[lane],
                None => bad_share,
            };
            if !self.checked(Kernel::X25519, right) {
                return Vec::new();
            }
        }
        self.counts.in_lanes[Work::X25519 as usize] += count as u64;
        let outcome = |index: usize| match zero >> index & 1 {
            0 => Ok(Zeroizing::new(agreed[index].to_vec())),
            _ => Err(JobError::BadShare),
        };
        (0..count).map(|index| Some(outcome(index))).collect()
    }

    fn p256(&mut self, jobs: &[Job]) -> Vec<Option<Outcome>> {
        let operations: Vec<_> = jobs.iter().filter_map(Job::p256_operation).collect();
        if operations.len() != jobs.len() || jobs.len() > P256_MAX {
            return Vec::new();
        }
        let Some(memory) = self.signatures.made(Locked::new) else { return Vec::new() };
        let signed: Vec<_> = operations.iter().map(|(_, scalar, digest)| (*scalar, *digest)).collect();
        let signatures = match memory.sign(self.ifma, &signed) {
            Ok(signatures) => signatures,
            Err(Unsigned::Chance) => return Vec::new(),
            Err(Unsigned::Kernel) => {
                self.checked(Kernel::P256, false);
                return Vec::new();
            }
        };
        let mut outcomes = Vec::with_capacity(jobs.len());
        for ((key, _, digest), signature) in operations.into_iter().zip(signatures) {
            let Some(signature) = signature else {
                outcomes.push(None);
                continue;
            };
            #[cfg(test)]
            let signature = faults::flipped(signature);
            let der = Zeroizing::new(p256::DerSignature::new(&signature).as_bytes().to_vec());
            if self.is_due(Work::P256Signature) && !self.checked(Kernel::P256, key.verifies(digest, &der)) {
                // Nor is one of the others released.
                return Vec::new();
            }
            self.counts.in_lanes[Work::P256Signature as usize] += 1;
            outcomes.push(Some(Ok(der)));
        }
        outcomes
    }

    fn x25519_pair(&mut self) -> Option<X25519Pair> {
        if !self.batching.is_usable(Kernel::X25519) {
            return None;
        }
        if self.shares.made(Locked::new)?.level() == 0 {
            self.counts.pool_misses += 1;
            self.make_shares()?;
        }
        let pair = self.shares.there()?.take()?;
        self.counts.in_lanes[Work::X25519Pair as usize] += 1;
        Some(pair)
    }

    fn prepare(&mut self, work: Work) {
        match work {
            Work::Rsa => {
                self.raise.made(|| Raise::new().map(Box::new));
            }
            Work::P256Signature => {
                self.signatures.made(Locked::new);
            }
            Work::X25519Pair => {
                self.make_shares();
            }
            // Needs nothing.
            Work::X25519 => {}
        }
    }

    fn refill(&mut self) -> bool {
        let has_room = self.shares.there().is_some_and(|pool| pool.level() + REFILL <= POOL_MAX);
        has_room && self.make_shares().is_some()
    }

    fn make_shares(&mut self) -> Option<()> {
        if !self.batching.is_usable(Kernel::X25519) {
            return None;
        }
        let due = self.next_checked(2, REFILL);
        match self.shares.made(Locked::new)?.refill(self.ifma, &mut self.chance, due) {
            Ok(()) => {
                self.counts.checks_passed += u64::from(due.is_some());
                Some(())
            }
            Err(Unfilled::Chance) => None,
            Err(Unfilled::Kernel) => {
                self.checked(Kernel::X25519, false);
                None
            }
        }
    }
}

/// Errors of the processor, for tests.
#[cfg(test)]
mod faults {
    use std::cell::Cell;

    thread_local! {
        pub static BAD_LANES: Cell<u8> = const { Cell::new(0) };
        pub static FLIP: Cell<bool> = const { Cell::new(false) };
    }

    pub fn bad_lanes() -> u8 {
        BAD_LANES.get()
    }

    pub fn flip(bytes: &mut [u8]) {
        bytes[bytes.len() - 1] ^= u8::from(FLIP.get());
    }

    pub fn flipped<const N: usize>(mut bytes: [u8; N]) -> [u8; N] {
        flip(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests;
