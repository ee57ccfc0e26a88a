//! Operations of one call, and which of them each lane takes.

use super::blinding::Blinding;
use super::key::Key;

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

impl Job<'_> {
    pub(super) fn is_acceptable(&self) -> bool {
        let length = self.key.size.modulus_bytes();
        self.input.len() == length
            && self.output.len() == length
            && self.blinding.serves(self.key)
            && self.key.modulus.exceeds(self.input)
    }
}

/// The jobs of a call that are to be done: which of them each lane takes.
#[derive(Clone, Copy, Default)]
pub(super) struct Batch {
    jobs: [usize; JOBS_MAX],
    count: usize,
}

impl Batch {
    pub(super) fn push(&mut self, job: usize) {
        self.jobs[self.count] = job;
        self.count += 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether p and q halves go side by side, in one pass.
    pub(super) fn is_paired(&self) -> bool {
        self.count <= JOBS_PER_PASS
    }

    /// The job of each lane. Idle lanes repeat the first; lanes 4 to 7 repeat lanes 0 to 3 in a paired batch.
    pub(super) fn by_lane(&self) -> [usize; 8] {
        let width = if self.is_paired() { JOBS_PER_PASS } else { JOBS_MAX };
        core::array::from_fn(|lane| self.jobs[if lane % width < self.count { lane % width } else { 0 }])
    }

    /// The jobs in the order of the lanes that have their results.
    pub(super) fn active(&self) -> impl Iterator<Item = (usize, usize)> {
        self.jobs.into_iter().take(self.count).enumerate()
    }
}
