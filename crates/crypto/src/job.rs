//! A job: one piece of private-key or agreement work that owns all it needs, and its outcome.

use std::fmt;

use propylon_lanes::{p256, rsa};
use zeroize::Zeroizing;

use crate::awslc;
use crate::batch::{self, Work};
use crate::key::{LanesKey, PrivateKey, RemoteKey};
use crate::kind::KeyKind;
use crate::scheme::Scheme;

/// Work with a private key. To be done once; a job that is dropped is not done.
pub enum Job {
    /// The RSA private operation on an encoded block as long as the modulus.
    Rsa { key: PrivateKey, block: Box<[u8]> },
    /// A signature over a digest (of at most 64 bytes).
    Ecdsa { key: PrivateKey, digest: Box<[u8]> },
    /// A signature over a message.
    Ed25519 { key: PrivateKey, message: Box<[u8]> },
    /// An X25519 agreement of our ephemeral secret with the peer's share (RFC 7748 §6.1).
    X25519 { secret: Zeroizing<[u8; 32]>, peer: [u8; 32] },
    /// Any of the signatures by a key that is elsewhere; `input` as [`Scheme`] says.
    Remote { key: RemoteKey, scheme: Scheme, input: Box<[u8]> },
}

/// A signature, a plaintext or a shared secret.
pub type Outcome = Result<Zeroizing<Vec<u8>>, JobError>;

/// The kinds of work; the order is that of [`JobKind::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobKind {
    Rsa,
    Ecdsa,
    Ed25519,
    X25519,
    Remote,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobError {
    /// The library, or the server, could not do it with this key and this input.
    Refused,
    /// The peer's share is one that gives away the secret (RFC 7748 §6.1), or is none.
    BadShare,
    /// No answer in time.
    TimedOut,
    /// No room for more work, or nobody to do it.
    Unavailable,
    /// Everybody who could be asked was, and none has signed with this key.
    NotSigned,
    /// The job's owner is gone.
    Cancelled,
}

impl JobKind {
    pub const ALL: [JobKind; 5] = [JobKind::Rsa, JobKind::Ecdsa, JobKind::Ed25519, JobKind::X25519, JobKind::Remote];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            JobKind::Rsa => "rsa",
            JobKind::Ecdsa => "ecdsa",
            JobKind::Ed25519 => "ed25519",
            JobKind::X25519 => "x25519",
            JobKind::Remote => "remote",
        }
    }
}

impl Job {
    #[must_use]
    pub fn kind(&self) -> JobKind {
        match self {
            Job::Rsa { .. } => JobKind::Rsa,
            Job::Ecdsa { .. } => JobKind::Ecdsa,
            Job::Ed25519 { .. } => JobKind::Ed25519,
            Job::X25519 { .. } => JobKind::X25519,
            Job::Remote { .. } => JobKind::Remote,
        }
    }

    /// Does the work on this thread, by AWS-LC: it is alone. A remote key's can not be: `Unavailable`.
    pub fn run(self) -> Outcome {
        match self {
            Job::Rsa { key, block } => {
                batch::count_awslc(Work::Rsa);
                key.rsa_raw(&block)
            }
            Job::Ecdsa { key, digest } => {
                if key.kind() == KeyKind::P256 {
                    batch::count_awslc(Work::P256Signature);
                }
                key.ecdsa(&digest)
            }
            Job::Ed25519 { key, message } => key.ed25519(&message),
            Job::X25519 { secret, peer } => {
                batch::count_awslc(Work::X25519);
                awslc::x25519(&secret, &peer).ok_or(JobError::BadShare)
            }
            Job::Remote { .. } => Err(JobError::Unavailable),
        }
    }

    /// The operands of an RSA operation for the kernel; absent for another job, and for a key that the kernel does
    /// not take.
    pub(crate) fn rsa_operation(&self) -> Option<(&PrivateKey, &rsa::Key, &[u8])> {
        let Job::Rsa { key, block } = self else { return None };
        match key.lanes_key()? {
            LanesKey::Rsa(numbers) => Some((key, numbers, block)),
            LanesKey::P256(_) => None,
        }
    }

    /// The operands of a signature for the kernel; absent for another job, and for a key that the kernel does not take.
    pub(crate) fn p256_operation(&self) -> Option<(&PrivateKey, &p256::SecretScalar, &[u8])> {
        let Job::Ecdsa { key, digest } = self else { return None };
        match key.lanes_key()? {
            LanesKey::P256(scalar) => Some((key, scalar, digest)),
            LanesKey::Rsa(_) => None,
        }
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Job::Rsa { .. } => "Job::Rsa",
            Job::Ecdsa { .. } => "Job::Ecdsa",
            Job::Ed25519 { .. } => "Job::Ed25519",
            Job::X25519 { .. } => "Job::X25519",
            Job::Remote { .. } => "Job::Remote",
        })
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JobError::Refused => "the private-key operation was refused",
            JobError::BadShare => "the peer's key share is not acceptable",
            JobError::TimedOut => "the private-key operation took too long",
            JobError::Unavailable => "nobody is there to do the private-key operation",
            JobError::NotSigned => "no key server signs with the certificate's key; the log names key and server",
            JobError::Cancelled => "the private-key operation was cancelled",
        })
    }
}

impl std::error::Error for JobError {}
