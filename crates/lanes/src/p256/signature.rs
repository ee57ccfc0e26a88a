//! Nonces that are ready for one signature each, and the signatures: scalar code, which needs no lanes.

use super::scalar::{self, is_scalar};
use super::wipe::{wipe, wipe_dead_stack};

/// An ECDSA nonce made ready: r = x(k·G) mod n, and k^-1. Good for the one signature that k was made for; two
/// signatures with one pair disclose the key, so it can be neither copied nor borrowed for signing, and is wiped when
/// dropped.
pub struct Pair {
    pub(super) r: scalar::Scalar,
    /// k^-1 · 2^256 mod n.
    pub(super) k_inverse: scalar::Scalar,
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
    pub(super) fn fill(&mut self, r: scalar::Scalar, k_inverse: scalar::Scalar) {
        (self.r, self.k_inverse, self.is_full) = (r, k_inverse, true);
    }
}

impl Drop for PairSlot {
    fn drop(&mut self) {
        self.clear();
    }
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

/// An ECDSA signature, r || s, over a digest of any length, of which the leftmost 256 bits count (FIPS 186-5 §6.4.1).
/// Absent, with a probability of 2^-256, if s is 0: sign again with another pair. Needs no [`Ifma`](crate::Ifma).
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
