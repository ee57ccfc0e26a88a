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
mod scalar;
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

pub use der::{DER_SIGNATURE_BYTES_MAX, DerSignature};

use crate::Ifma;
use wipe::{wipe, wipe_dead_stack};

/// Scalars of a batch come in multiples of this.
pub const LANES: usize = 8;
/// The most scalars that one batch may hold; it keeps a core of 4 GHz busy for some 160 µs.
pub const BATCH_MAX: usize = 256;

/// The one odd scalar whose last addition is a doubling, which the formulas cannot do; n less this is the other one.
/// Chosen by chance with probability 2^-255, by a caller easily: a batch that holds it is refused.
pub const EXCEPTIONAL_SCALAR: [u8; 32] = [
    0xe0, 0x00, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x43, 0x19, 0x05,
    0x52, 0x58, 0xe8, 0x61, 0x7b, 0x0c, 0x46, 0x35, 0x3d, 0x03, 0x9c, 0xda, 0xaf,
];

/// The reason why a batch was not made. Nothing of it may be used, and its scalars are gone: draw others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchError {
    /// The caller's fault: not a multiple of [`LANES`] up to [`BATCH_MAX`], or as many outputs as scalars.
    Size,
    /// The caller's fault: a scalar was not in [1, n − 1]; see [`is_scalar`].
    NotAScalar,
    /// A scalar was [`EXCEPTIONAL_SCALAR`] or its negative, or a point had an x of 0 mod n.
    Exceptional,
}

impl core::fmt::Display for BatchError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            BatchError::Size => "a batch must be a multiple of 8 scalars, at most 256, with an output for each",
            BatchError::NotAScalar => "a scalar of the batch is 0 or not below the order of P-256; draw it again",
            BatchError::Exceptional => "a scalar of the batch is one the formulas cannot use; draw all of them again",
        })
    }
}

impl core::error::Error for BatchError {}

/// Whether 1 ≤ scalar ≤ n − 1, for drawing by rejection (FIPS 186-5 A.3.2). Constant time, by borrow.
#[must_use]
pub fn is_scalar(bytes: &[u8; 32]) -> bool {
    let mut number = scalar::from_bytes(bytes);
    let (mut less, below) = scalar::subtract(&number, &scalar::N);
    let some = scalar::or_of_words(&number);
    wipe(&mut number);
    wipe(&mut less);
    // The top bit of x | −x says whether x is anything but zero.
    ((some | some.wrapping_neg()) >> 63) & below & 1 == 1
}

/// The value of 512 bits mod n. If nobody can predict the bits, it is uniform to within 2^-256 (FIPS 186-5 §A.2.1
/// asks for 64 bits more than n has). Absent, with a probability of 2^-256, if it is 0. Constant time.
#[must_use]
pub fn scalar_of(wide: &[u8; 64]) -> Option<[u8; 32]> {
    let mut halves = [[0; 32]; 2];
    halves.as_flattened_mut().copy_from_slice(wide);
    let [mut high, mut low] = [scalar::from_bytes(&halves[0]), scalar::from_bytes(&halves[1])];
    let mut reduced = scalar::reduced_wide(&high, &low);
    let bytes = scalar::to_bytes(&reduced);
    let is_zero = scalar::or_of_words(&reduced) == 0;
    halves.iter_mut().for_each(wipe);
    [&mut high, &mut low, &mut reduced].into_iter().for_each(wipe);
    (!is_zero).then_some(bytes)
}

/// An ECDSA nonce made ready: r = x(k·G) mod n, and k^-1. Good for the one signature that k was made for; two
/// signatures with one pair disclose the key, so it can be neither copied nor borrowed for signing, and is wiped when
/// dropped.
pub struct Pair {
    r: scalar::Scalar,
    /// k^-1 · 2^256 mod n.
    k_inverse: scalar::Scalar,
}

impl Drop for Pair {
    fn drop(&mut self) {
        wipe(&mut self.r);
        wipe(&mut self.k_inverse);
    }
}

/// A place for a [`Pair`] until its signature is made. Taking the pair wipes the place.
pub struct PairSlot {
    r: scalar::Scalar,
    k_inverse: scalar::Scalar,
    is_full: bool,
}

impl PairSlot {
    pub const EMPTY: PairSlot = PairSlot { r: [0; 4], k_inverse: [0; 4], is_full: false };

    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// The pair, if there is one; the slot is wiped and empty then.
    #[must_use]
    pub fn take(&mut self) -> Option<Pair> {
        if !self.is_full {
            return None;
        }
        let pair = Pair { r: self.r, k_inverse: self.k_inverse };
        self.clear();
        Some(pair)
    }

    /// Wipes what is there.
    pub fn clear(&mut self) {
        self.is_full = false;
        wipe(&mut self.r);
        wipe(&mut self.k_inverse);
    }

    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "there are no lanes to fill it"))]
    fn fill(&mut self, r: scalar::Scalar, k_inverse: scalar::Scalar) {
        (self.r, self.k_inverse, self.is_full) = (r, k_inverse, true);
    }
}

impl Drop for PairSlot {
    fn drop(&mut self) {
        self.clear();
    }
}

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

/// The private key of a certificate, d, kept as d·2^256 mod n. Wiped when dropped.
pub struct SecretScalar {
    times_r: scalar::Scalar,
}

impl SecretScalar {
    /// A scalar; absent if it is not in [1, n − 1].
    #[must_use]
    pub fn new(bytes: &[u8; 32]) -> Option<SecretScalar> {
        if !is_scalar(bytes) {
            return None;
        }
        let mut plain = scalar::from_bytes(bytes);
        let key = SecretScalar { times_r: scalar::multiply(&plain, &scalar::R_SQUARED) };
        wipe(&mut plain);
        Some(key)
    }
}

impl Drop for SecretScalar {
    fn drop(&mut self) {
        wipe(&mut self.times_r);
    }
}

impl SecretScalar {
    /// Writes what is as secret as the key and stands for it alone: for hashing it into nonces.
    pub fn write_secret(&self, bytes: &mut [u8; 32]) {
        *bytes = scalar::to_bytes(&self.times_r);
    }
}

/// Stack bytes that the scalar code of one signature may spill.
const SIGN_STACK_BYTES: usize = 1 << 10;

/// An ECDSA signature, r || s, over a digest of any length, of which the leftmost 256 bits count (FIPS 186-5
/// §6.4.1). Absent, with a probability of 2^-256, if s is 0: sign again with another pair. Needs no [`Ifma`].
#[must_use]
pub fn sign(key: &SecretScalar, digest: &[u8], pair: Pair) -> Option<[u8; 64]> {
    let signature = signature_of(key, digest, &pair);
    drop(pair);
    wipe_dead_stack::<SIGN_STACK_BYTES>();
    signature
}

#[inline(never)]
fn signature_of(key: &SecretScalar, digest: &[u8], pair: &Pair) -> Option<[u8; 64]> {
    let mut leftmost = [0; 32];
    let used = digest.len().min(leftmost.len());
    leftmost[32 - used..].copy_from_slice(&digest[..used]);
    let h = scalar::reduced(&scalar::from_bytes(&leftmost));
    let mut rd = scalar::multiply(&pair.r, &key.times_r);
    let mut sum = scalar::add(&h, &rd);
    let s = scalar::multiply(&sum, &pair.k_inverse);
    wipe(&mut rd);
    wipe(&mut sum);
    if scalar::or_of_words(&s) == 0 {
        return None;
    }
    let mut signature = [0; 64];
    signature[..32].copy_from_slice(&scalar::to_bytes(&pair.r));
    signature[32..].copy_from_slice(&scalar::to_bytes(&s));
    Some(signature)
}

/// Known answers in every lane, the refusal of [`EXCEPTIONAL_SCALAR`], and the table's checksum; some 300 µs. Nothing
/// here may be used if it is false.
#[must_use]
pub fn self_test(ifma: Ifma) -> bool {
    #[cfg(target_arch = "x86_64")]
    return self_test::run(ifma);
    #[cfg(not(target_arch = "x86_64"))]
    batch::impossible(ifma)
}
