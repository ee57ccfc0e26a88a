//! Batches: the work that a core does for many handshakes at once, and the key pairs that it makes ahead of them.
//!
//! [`Batching`] is the process's: whether there are lanes, and whether they can still be trusted. Each thread that
//! is to use them calls [`install`] once, and has a workspace of its own from then on: the kernels' working memory,
//! blindings, and a pool. A [`JobQueue`](crate::JobQueue) of that thread does its jobs at the workspace, and
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
//! let queue = JobQueue::new();
//! let jobs: Vec<_> = (0..5).map(|_| queue.submit(X25519Pair::draw().agree([9; 32]))).collect();
//! // When all jobs of a turn have been submitted. Then each of `jobs` has its outcome.
//! assert_eq!(queue.run_gathered(), 5);
//! // Before the thread waits for more to come.
//! batch::refill();
//! # drop(jobs);
//! ```
//!
//! AWS-LC is what everything is compared with, and what does it wherever a kernel cannot, or can no longer: other
//! processors, other keys, a failed self-test, a result that was found to be wrong.

mod direct;
mod health;
mod pair_pool;
mod plan;
mod rsa_workspace;
mod signatures;
mod single;

use std::cell::RefCell;
use std::sync::Arc;

use propylon_lanes::{Ifma, p256, x25519};
use zeroize::Zeroizing;

pub use direct::{batch_size, can_share_batch, prepare, run_all};
pub use health::{Batching, Kernel, KernelState};
pub use pair_pool::{POOL_MAX, REFILL};
pub use plan::{LANES, P256_MAX};

use crate::awslc;
use crate::batch_rng::BatchRng;
use crate::job::{Job, JobError, JobKind, Outcome};
use crate::locked::Locked;
use crate::pair::X25519Pair;
use pair_pool::{PairPool, RefillError};
use plan::Part;
use rsa_workspace::RsaWorkspace;
use signatures::{SignError, SignatureWorkspace};

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

/// Counts of a thread's workspace since it was installed.
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

struct Workspace {
    batching: Arc<Batching>,
    ifma: Ifma,
    rng: BatchRng,
    /// Working memory of RSA. Each memory here is made when it is first needed; absent where there was none to be had.
    rsa: Lazy<Box<RsaWorkspace>>,
    signatures: Lazy<Locked<SignatureWorkspace>>,
    pairs: Lazy<Locked<PairPool>>,
    /// Done in the lanes: of RSA operations, of X25519 agreements, of X25519 pairs.
    batches: [u64; 3],
    counts: BatchCounts,
}

enum Lazy<T> {
    Unused,
    Made(T),
    NoMemory,
}

impl<T> Lazy<T> {
    fn get_or_make(&mut self, make: impl FnOnce() -> Option<T>) -> Option<&mut T> {
        if let Lazy::Unused = self {
            *self = make().map_or(Lazy::NoMemory, Lazy::Made);
        }
        self.get()
    }

    fn get(&mut self) -> Option<&mut T> {
        match self {
            Lazy::Made(made) => Some(made),
            _ => None,
        }
    }
}

thread_local! {
    static WORKSPACE: RefCell<Option<Workspace>> = const { RefCell::new(None) };
}

/// Gives this thread a workspace, if the process has lanes to be used. Its memory is taken as it is needed.
pub fn install(batching: &Arc<Batching>) {
    let workspace = batching.ifma().map(|ifma| Workspace {
        batching: Arc::clone(batching),
        ifma,
        rng: BatchRng::new(),
        rsa: Lazy::Unused,
        signatures: Lazy::Unused,
        pairs: Lazy::Unused,
        batches: [0; 3],
        counts: BatchCounts { is_locked: true, ..BatchCounts::default() },
    });
    WORKSPACE.set(workspace);
}

/// The counts of this thread's workspace; absent without one.
#[must_use]
pub fn counts() -> Option<BatchCounts> {
    with(|workspace| workspace.counts())
}

/// Makes one batch of pairs ahead, if the pool is in use and has room for one; for a thread that has nothing else
/// to do. Takes at most 0.1 ms. Returns whether there was something to make.
pub fn refill() -> bool {
    with(Workspace::refill).unwrap_or(false)
}

/// Runs `use_it` on the thread's workspace. Absent on a thread without one, and when it is being used: then AWS-LC does
/// the work.
fn with<T>(use_it: impl FnOnce(&mut Workspace) -> T) -> Option<T> {
    WORKSPACE.try_with(|workspace| workspace.try_borrow_mut().ok()?.as_mut().map(use_it)).ok().flatten()
}

/// The largest batch of a kind of job.
pub(crate) fn full_at(kind: JobKind) -> usize {
    match kind {
        JobKind::Rsa => plan::RSA_PASS,
        JobKind::Ecdsa => plan::P256_MAX,
        _ => LANES,
    }
}

/// Jobs of one kind, partitioned into batches, in their order of arrival as far as batches allow.
pub(crate) fn partition<T>(kind: JobKind, jobs: Vec<(T, Job)>) -> Vec<Vec<(T, Job)>> {
    let usable = |kernel| with(|workspace| workspace.batching.is_usable(kernel)).unwrap_or(false);
    match kind {
        _ if jobs.len() < 2 => vec![jobs],
        JobKind::X25519 if usable(Kernel::X25519) => split(jobs, plan::x25519),
        JobKind::Ecdsa if usable(Kernel::P256) => {
            let takes = |(_, job): &(T, Job)| job.p256_operation().is_some();
            let (jobs, others): (Vec<_>, Vec<_>) = jobs.into_iter().partition(takes);
            split(jobs, plan::p256).into_iter().chain(others.into_iter().map(|job| vec![job])).collect()
        }
        JobKind::Rsa if usable(Kernel::Rsa) => {
            let (mut by_size, mut others) = ([const { Vec::new() }; 3], Vec::new());
            for (slot, job) in jobs {
                match job.rsa_operation() {
                    Some((_, key, _)) => by_size[key.size() as usize].push((slot, job)),
                    None => others.push(vec![(slot, job)]),
                }
            }
            by_size.into_iter().flat_map(|jobs| split(jobs, plan::rsa)).chain(others).collect()
        }
        _ => jobs.into_iter().map(|job| vec![job]).collect(),
    }
}

fn split<T>(mut jobs: Vec<(T, Job)>, next: impl Fn(usize) -> Part) -> Vec<Vec<(T, Job)>> {
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

/// Does one batch of [`partition`]. As many outcomes as jobs, in their order.
pub(crate) fn run(kind: JobKind, jobs: Vec<Job>) -> Vec<Outcome> {
    with(|workspace| workspace.count_size(kind, jobs.len()));
    let mut outcomes: Vec<Option<Outcome>> = match (jobs.len(), kind) {
        (0 | 1, _) => None,
        (_, JobKind::Rsa) => with(|workspace| workspace.rsa(&jobs)),
        (_, JobKind::X25519) => with(|workspace| workspace.x25519(&jobs)),
        (_, JobKind::Ecdsa) => with(|workspace| workspace.p256(&jobs)),
        _ => None,
    }
    .unwrap_or_default();
    outcomes.resize_with(jobs.len(), || None);
    let done = jobs.into_iter().zip(outcomes);
    done.map(|(job, outcome)| outcome.unwrap_or_else(|| job.run())).collect()
}

impl Workspace {
    fn counts(&mut self) -> BatchCounts {
        let pool = self.pairs.get().map_or((0, true), |pool| (pool.level(), pool.is_locked()));
        let scratch = self.rsa.get().is_none_or(|workspace| workspace.is_locked());
        let signatures = self.signatures.get().is_none_or(|memory| memory.is_locked());
        BatchCounts { pool_level: pool.0, is_locked: pool.1 && scratch && signatures, ..self.counts }
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
            Kernel::X25519 => self.pairs.get().into_iter().for_each(|pool| pool.clear()),
        }
    }

    fn rsa(&mut self, jobs: &[Job]) -> Vec<Option<Outcome>> {
        let Some(workspace) = self.rsa.get_or_make(|| RsaWorkspace::new().map(Box::new)) else { return Vec::new() };
        let operations: Vec<_> = jobs.iter().filter_map(Job::rsa_operation).collect();
        if operations.len() != jobs.len() {
            return Vec::new();
        }
        let results = workspace.run(self.ifma, &mut self.rng, &operations);
        if results.bad > 0 {
            self.counts.bad_lanes += u64::from(results.bad);
            self.batching.count_bad(results.bad);
        }
        let mut outputs = results.outputs;
        // Every result has been checked with the public exponent; this comparison with AWS-LC is for the checks
        // themselves.
        if let Some(lane) = self.next_checked(0, jobs.len())
            && let (Some(output), (key, _, input)) = (&outputs[lane], operations[lane])
        {
            let right = key.rsa_raw(input).is_some_and(|reference| *reference == **output);
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
        let Some(memory) = self.signatures.get_or_make(Locked::new) else { return Vec::new() };
        let signed: Vec<_> = operations.iter().map(|(_, scalar, digest)| (*scalar, *digest)).collect();
        let signatures = match memory.sign(self.ifma, &signed) {
            Ok(signatures) => signatures,
            Err(SignError::Random) => return Vec::new(),
            Err(SignError::Kernel) => {
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
        if self.pairs.get_or_make(Locked::new)?.level() == 0 {
            self.counts.pool_misses += 1;
            self.make_pairs()?;
        }
        let pair = self.pairs.get()?.take()?;
        self.counts.in_lanes[Work::X25519Pair as usize] += 1;
        Some(pair)
    }

    fn prepare(&mut self, work: Work) {
        match work {
            Work::Rsa => {
                self.rsa.get_or_make(|| RsaWorkspace::new().map(Box::new));
            }
            Work::P256Signature => {
                self.signatures.get_or_make(Locked::new);
            }
            Work::X25519Pair => {
                self.make_pairs();
            }
            // Needs nothing.
            Work::X25519 => {}
        }
    }

    fn refill(&mut self) -> bool {
        let has_room = self.pairs.get().is_some_and(|pool| pool.level() + REFILL <= POOL_MAX);
        has_room && self.make_pairs().is_some()
    }

    fn make_pairs(&mut self) -> Option<()> {
        if !self.batching.is_usable(Kernel::X25519) {
            return None;
        }
        let due = self.next_checked(2, REFILL);
        match self.pairs.get_or_make(Locked::new)?.refill(self.ifma, &mut self.rng, due) {
            Ok(()) => {
                self.counts.checks_passed += u64::from(due.is_some());
                Some(())
            }
            Err(RefillError::Random) => None,
            Err(RefillError::Kernel) => {
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
