//! Batches for threads without a desk, to which jobs come by other ways: how many go together, and doing them.

use super::{Kernel, Work, plan, run, sorted, with};
use crate::job::{Job, JobKind, Outcome};
use crate::kind::KeyKind;

/// Has this thread's bench take what `work` needs now, and not when it is first asked for it: for a process that denies
/// itself the system calls in between. Nothing without a bench.
pub fn prepare(work: Work) {
    with(|bench| bench.prepare(work));
}

/// How many jobs of the sort of `job` this thread does well to do together; 1 if each may as well be done alone.
#[must_use]
pub fn company(job: &Job) -> usize {
    let usable = |kernel| with(|bench| bench.batching.is_usable(kernel)).unwrap_or(false);
    match job {
        Job::Rsa { key, .. } if has_lanes(key.kind()) && usable(Kernel::Rsa) => plan::RSA_PASS,
        Job::X25519 { .. } if usable(Kernel::X25519) => plan::LANES,
        Job::Ecdsa { key, .. } if key.kind() == KeyKind::P256 && usable(Kernel::P256) => plan::P256_MAX,
        _ => 1,
    }
}

/// Whether two jobs can share a pass of the lanes.
#[must_use]
pub fn go_together(one: &Job, other: &Job) -> bool {
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
        for part in sorted(kind, jobs) {
            let (places, jobs): (Vec<usize>, Vec<Job>) = part.into_iter().unzip();
            placed.extend(places.into_iter().zip(run(kind, jobs)));
        }
    }
    placed.sort_unstable_by_key(|(place, _)| *place);
    placed.into_iter().map(|(_, outcome)| outcome).collect()
}
