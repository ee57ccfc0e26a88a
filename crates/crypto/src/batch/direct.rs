//! Batches for threads without a [`JobQueue`](crate::JobQueue): the size of a batch, and doing one.

use super::{Kernel, Work, partition, plan, run, with};
use crate::job::{Job, JobKind, Outcome};
use crate::kind::KeyKind;

/// Allocates the memory that `work` needs in this thread's workspace now, and not at its first use: for a process that
/// denies itself the system calls in between. Does nothing without a workspace.
pub fn prepare(work: Work) {
    with(|workspace| workspace.prepare(work));
}

/// The size of a batch for jobs like `job` on this thread; 1 where a batch is no cheaper than single jobs.
#[must_use]
pub fn batch_size(job: &Job) -> usize {
    let usable = |kernel| with(|workspace| workspace.batching.is_usable(kernel)).unwrap_or(false);
    match job {
        Job::Rsa { key, .. } if has_lanes(key.kind()) && usable(Kernel::Rsa) => plan::RSA_PASS,
        Job::X25519 { .. } if usable(Kernel::X25519) => plan::LANES,
        Job::Ecdsa { key, .. } if key.kind() == KeyKind::P256 && usable(Kernel::P256) => plan::P256_MAX,
        _ => 1,
    }
}

/// Whether two jobs can share a pass of the lanes.
#[must_use]
pub fn can_share_batch(one: &Job, other: &Job) -> bool {
    match (one, other) {
        (Job::Rsa { key: one, .. }, Job::Rsa { key: other, .. }) => one.kind() == other.kind(),
        (Job::X25519 { .. }, Job::X25519 { .. }) => true,
        (Job::Ecdsa { key: one, .. }, Job::Ecdsa { key: other, .. }) => {
            one.kind() == KeyKind::P256 && other.kind() == KeyKind::P256
        }
        _ => false,
    }
}

/// The three lengths of a modulus that the kernel has code for.
fn has_lanes(kind: KeyKind) -> bool {
    matches!(kind, KeyKind::Rsa { bytes: 256 | 384 | 512 })
}

/// Does all jobs, on this thread, together where that is cheaper. As many outcomes as jobs, in their order.
#[must_use]
pub fn run_all(jobs: Vec<Job>) -> Vec<Outcome> {
    let count = jobs.len();
    let mut of_kind = [const { Vec::new() }; JobKind::ALL.len()];
    for (place, job) in jobs.into_iter().enumerate() {
        of_kind[job.kind() as usize].push((place, job));
    }
    let mut placed: Vec<(usize, Outcome)> = Vec::with_capacity(count);
    for (kind, jobs) in JobKind::ALL.into_iter().zip(of_kind).filter(|(_, jobs)| !jobs.is_empty()) {
        for part in partition(kind, jobs) {
            let (places, jobs): (Vec<usize>, Vec<Job>) = part.into_iter().unzip();
            placed.extend(places.into_iter().zip(run(kind, jobs)));
        }
    }
    placed.sort_unstable_by_key(|(place, _)| *place);
    placed.into_iter().map(|(_, outcome)| outcome).collect()
}
