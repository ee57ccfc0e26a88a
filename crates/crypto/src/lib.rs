//! Private-key and key-agreement work as jobs: done now, gathered into batches, or sent far away.
//!
//! [`PrivateKey`] is a key that is here, [`RemoteKey`] one that a key server holds; [`Key`] is either. A key turns
//! what is to be signed into a [`Job`], which owns all it needs, and [`Job::run`] does it on the spot. The holder
//! of the job decides whether something else does it, and when. [`JobQueue`] is where one core's jobs gather; [`batch`]
//! is how many are done at once, and what is made ahead of them.

#[allow(unsafe_code, reason = "functions of AWS-LC that its safe crate does not have")]
mod awslc;
pub mod batch;
mod batch_rng;
pub mod der;
mod encoding;
mod exposure;
mod job;
mod job_queue;
mod key;
pub mod key_process;
mod keyed;
pub mod keyless;
mod kind;
#[allow(unsafe_code, reason = "pages of memory of its own")]
mod locked;
mod pair;
pub mod pem;
mod scheme;
mod tag;
mod token;
mod verify;

/// SHA-1 of the parts in a row, for the handshake of WebSockets (RFC 6455 §4.2.2), which asks for no secrecy.
pub fn sha1(parts: &[&[u8]]) -> [u8; 20] {
    let mut context = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY);
    parts.iter().for_each(|part| context.update(part));
    let mut digest = [0; 20];
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

/// Takes whole blocks into a state of SHA-256 (FIPS 180-4 §6.2.2), for those who keep states of their own.
pub fn sha256_blocks(state: &mut [u32; 8], blocks: &[[u8; 64]]) {
    awslc::sha256_blocks(state, blocks);
}

/// A start for a generator of numbers that need not be secret, such as identifiers: machines that start alike must not
/// come to the same ones.
pub fn seed() -> u64 {
    let mut seed = [0; 8];
    aws_lc_rs::rand::fill(&mut seed).expect("the system's random numbers");
    u64::from_ne_bytes(seed)
}

pub use exposure::{OPEN_TO_ALL, is_open_to_all};
pub use job::{Job, JobError, JobKind, Outcome};
pub use job_queue::{JobQueue, JobQueueCounts, Pending};
pub use key::{Key, PrivateKey, RemoteKey, Ski};
pub use keyed::{KeyedHash, is_same_hash, sha256};
pub use kind::{KeyError, KeyKind};
pub use pair::X25519Pair;
pub use scheme::{Hash, Scheme};
pub use tag::{SecretFileError, Tag, TagKey};
pub use token::{TokenAlgorithm, TokenKey, TokenKeyParts};
