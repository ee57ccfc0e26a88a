//! A job: one piece of private-key or agreement work that owns all it needs, and its outcome.

use std::fmt;

use propylon_lanes::{p256, rsa};
use zeroize::Zeroizing;

use crate::encoding;
use crate::key::{Key, LanesKey, PrivateKey, RemoteKey};
use crate::kind::{KeyError, KeyKind};
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

impl Key {
    /// The job that signs `input`, whose meaning [`Scheme`] defines.
    pub fn job(&self, scheme: Scheme, input: &[u8]) -> Result<Job, KeyError> {
        match self {
            Key::Local(key) => key.job(scheme, input),
            Key::Remote(key) => {
                key.kind.check(scheme, input.len())?;
                Ok(Job::Remote { key: key.clone(), scheme, input: input.into() })
            }
        }
    }
}

impl PrivateKey {
    /// See [`Key::job`].
    pub fn job(&self, scheme: Scheme, input: &[u8]) -> Result<Job, KeyError> {
        self.kind().check(scheme, input.len())?;
        let key = self.clone();
        let modulus_len = match self.kind() {
            KeyKind::Rsa { bytes } => usize::from(bytes),
            _ => 0,
        };
        let encoded = |block: Option<Box<[u8]>>| block.ok_or(KeyError::WrongLength);
        Ok(match scheme {
            Scheme::RsaPkcs1(hash) => Job::Rsa { key, block: encoded(encoding::pkcs1(hash, input, modulus_len))? },
            Scheme::RsaPss(hash) => Job::Rsa { key, block: encoded(encoding::pss(hash, input, modulus_len))? },
            Scheme::RsaRaw => {
                let mut block = vec![0; modulus_len].into_boxed_slice();
                block[modulus_len - input.len()..].copy_from_slice(input);
                Job::Rsa { key, block }
            }
            Scheme::Ecdsa(_) => Job::Ecdsa { key, digest: input[..input.len().min(DIGEST_BYTES_MAX)].into() },
            Scheme::Ed25519 => Job::Ed25519 { key, message: input.into() },
        })
    }
}

/// Longer digests are cut by ECDSA anyway: no order is longer than 66 bytes.
const DIGEST_BYTES_MAX: usize = 66;

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
