//! P-256 for eight lanes: ECDSA nonces with their points in batches, signatures that then cost two products, and key
//! pairs for ECDHE.
//!
//! A nonce is bound to what it signs: the caller hashes key, digest and fresh random bytes into it ([`scalar_of`]), so
//! a batch is made when its digests are there and never before. Nonces that wait for a digest serve two of them where a
//! machine is cloned or rolled back, and two signatures with one nonce disclose the key.
//!
//! Numbers mod p are five limbs of 52 bits in Montgomery form (`field`), points are (X, Y, ZZ, ZZZ) (`point`), and k·G
//! is a sum of 37 entries of a fixed table of signed odd windows (`table`). A batch pays for its inversions once
//! (`batch`), by Montgomery's trick. The rest of a signature is scalar code (`scalar`).

mod der;
mod limits;
mod scalar;
mod signature;
mod wipe;

#[cfg(target_arch = "x86_64")]
mod batch;
#[cfg(not(target_arch = "x86_64"))]
#[path = "p256/no_lanes.rs"]
mod batch;
#[cfg(not(target_arch = "x86_64"))]
use batch as ecdh;
#[cfg(target_arch = "x86_64")]
mod bytes;
#[cfg(target_arch = "x86_64")]
mod ecdh;
#[cfg(target_arch = "x86_64")]
mod field;
#[cfg(target_arch = "x86_64")]
mod order;
#[cfg(target_arch = "x86_64")]
mod point;
#[cfg(target_arch = "x86_64")]
mod self_test;
#[cfg(target_arch = "x86_64")]
mod table;
#[cfg(test)]
mod tests;

#[cfg(not(target_arch = "x86_64"))]
pub use batch::self_test;
pub use der::{DER_SIGNATURE_BYTES_MAX, DerSignature};
pub use limits::{BATCH_MAX, BatchError, EXCEPTIONAL_SCALAR, LANES};
pub use scalar::{is_scalar, scalar_of};
#[cfg(target_arch = "x86_64")]
pub use self_test::self_test;
pub use signature::{Pair, PairSlot, SecretScalar, sign};

use crate::Ifma;
use wipe::wipe;

/// The working memory of a batch, some 115 KiB: keep one for each thread, in a box. Wiped after every batch.
pub struct Scratch {
    groups: [batch::Group; BATCH_MAX / LANES],
    multiples: ecdh::Multiples,
}

impl Scratch {
    #[must_use]
    pub const fn new() -> Scratch {
        Scratch { groups: [batch::Group::ZERO; BATCH_MAX / LANES], multiples: ecdh::Multiples::ZERO }
    }
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch::new()
    }
}

impl Drop for Scratch {
    // A batch wipes what it used; this is for one that a panic ended.
    fn drop(&mut self) {
        self.groups.iter_mut().for_each(wipe);
    }
}

/// The number of groups in a batch of scalars that is fit to be computed.
fn checked_groups(scalars: &[[u8; 32]], outputs: usize) -> Result<usize, BatchError> {
    let fits = !scalars.is_empty() && scalars.len() <= BATCH_MAX && scalars.len().is_multiple_of(LANES);
    if !fits || outputs != scalars.len() {
        return Err(BatchError::Size);
    }
    // Every one is looked at, so that the time does not tell which one was at fault.
    let good = scalars.iter().filter(|scalar| is_scalar(scalar)).count();
    if good == scalars.len() { Ok(scalars.len() / LANES) } else { Err(BatchError::NotAScalar) }
}

/// Makes a pair of every scalar, each uniform in [1, n − 1] and bound to a key and a digest (see [`scalar_of`]), and
/// wipes the scalars whatever happens. A multiple of [`LANES`], up to [`BATCH_MAX`]; as many slots, which are
/// overwritten.
///
/// # Errors
/// The slots are empty then. No nonce of the batch may be used in any other way.
pub fn nonce_pairs(
    ifma: Ifma,
    scalars: &mut [[u8; 32]],
    scratch: &mut Scratch,
    slots: &mut [PairSlot],
) -> Result<(), BatchError> {
    nonce_pairs_in(ifma, scalars, &mut scratch.groups, slots)
}

fn nonce_pairs_in(
    ifma: Ifma,
    scalars: &mut [[u8; 32]],
    memory: &mut [batch::Group],
    slots: &mut [PairSlot],
) -> Result<(), BatchError> {
    slots.iter_mut().for_each(PairSlot::clear);
    let result = checked_groups(scalars, slots.len())
        .and_then(|groups| batch::nonce_pairs(ifma, scalars, &mut memory[..groups], slots));
    scalars.iter_mut().for_each(wipe);
    result
}

/// The public keys of the scalars, uncompressed (SEC 1 §2.3.3: 4, x, y). Sizes as in [`nonce_pairs`]; the scalars stay,
/// since they are the private keys.
///
/// # Errors
/// As in [`nonce_pairs`]; the keys must not be used then.
pub fn public_keys(
    ifma: Ifma,
    scalars: &[[u8; 32]],
    scratch: &mut Scratch,
    keys: &mut [[u8; 65]],
) -> Result<(), BatchError> {
    public_keys_in(ifma, scalars, &mut scratch.groups, keys)
}

fn public_keys_in(
    ifma: Ifma,
    scalars: &[[u8; 32]],
    memory: &mut [batch::Group],
    keys: &mut [[u8; 65]],
) -> Result<(), BatchError> {
    let groups = checked_groups(scalars, keys.len())?;
    batch::public_keys(ifma, scalars, &mut memory[..groups], keys)
}

/// Eight ECDH secrets: the x of scalar·point (SEC 1 §3.3.1, RFC 8446 §7.4.2), for points in uncompressed form. Always
/// eight: lanes without work repeat another's.
///
/// Returns the lanes that are refused, bit i for lane i, and zeroes in their place: the peer's fault if the point is
/// not uncompressed, not in range or not on the curve (RFC 8446 §4.2.8.2), the caller's if the scalar is not one. The
/// other lanes are not concerned.
#[must_use = "refused lanes have no secret"]
pub fn agree(
    ifma: Ifma,
    scalars: &[[u8; 32]; LANES],
    points: &[[u8; 65]; LANES],
    scratch: &mut Scratch,
    secrets: &mut [[u8; 32]; LANES],
) -> u8 {
    ecdh::agree(ifma, scalars, points, &mut scratch.multiples, secrets)
}
