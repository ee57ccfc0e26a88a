//! Work outside of batches: a job that AWS-LC does alone, and a pair from the pool.

use super::{Work, Workspace, with};
use crate::awslc;
use crate::job::{Job, JobError, Outcome};
use crate::kind::KeyKind;
use crate::pair::X25519Pair;

impl Job {
    /// Does the job on this thread by AWS-LC. Jobs of remote keys cannot be done here: `Unavailable`.
    pub fn run(self) -> Outcome {
        match self {
            Job::Rsa { key, block } => {
                count_awslc(Work::Rsa);
                key.rsa_raw(&block).ok_or(JobError::Refused)
            }
            Job::Ecdsa { key, digest } => {
                if key.kind() == KeyKind::P256 {
                    count_awslc(Work::P256Signature);
                }
                key.ecdsa(&digest).ok_or(JobError::Refused)
            }
            Job::Ed25519 { key, message } => key.ed25519(&message).ok_or(JobError::Refused),
            Job::X25519 { secret, peer } => {
                count_awslc(Work::X25519);
                awslc::x25519(&secret, &peer).ok_or(JobError::BadShare)
            }
            Job::Remote { .. } => Err(JobError::Unavailable),
        }
    }
}

impl X25519Pair {
    /// Draws a pair that this thread's workspace has made ahead, or makes one where there is no workspace.
    #[must_use]
    pub fn draw() -> X25519Pair {
        with(Workspace::x25519_pair).flatten().unwrap_or_else(|| {
            count_awslc(Work::X25519Pair);
            X25519Pair::generate()
        })
    }
}

/// Counts work that AWS-LC does.
fn count_awslc(work: Work) {
    with(|workspace| workspace.counts.by_awslc[work as usize] += 1);
}
