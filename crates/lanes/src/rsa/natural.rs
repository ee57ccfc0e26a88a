//! Natural numbers of fixed length, for what happens once per key: little-endian limbs of 52 bits in plain integer
//! registers, in constant time for a given length.

use crate::wipe::wipe;
use core::hint::black_box;

pub(super) const LIMB_BITS: usize = 52;
pub(super) const LIMB_MASK: u64 = (1 << LIMB_BITS) - 1;
/// Limbs of the longest modulus, RSA-4096.
pub(super) const WIDE_LIMBS_MAX: usize = 80;

/// Limbs that are overwritten when they go out of scope.
#[derive(Clone)]
pub(super) struct Limbs(pub [u64; WIDE_LIMBS_MAX]);

impl Limbs {
    pub const ZERO: Limbs = Limbs([0; WIDE_LIMBS_MAX]);
}

impl Drop for Limbs {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

/// Reads a big-endian number into all of `limbs`. What does not fit is ignored: the caller has checked the length.
pub(super) fn from_be_bytes(bytes: &[u8], limbs: &mut [u64]) {
    for (i, limb) in limbs.iter_mut().enumerate() {
        *limb = limb_of_bytes(bytes, i);
    }
}

/// Limb i of a big-endian number; 0 behind its end.
pub(super) fn limb_of_bytes(bytes: &[u8], i: usize) -> u64 {
    let (first, shift) = (i * LIMB_BITS / 8, i * LIMB_BITS % 8);
    let byte = |k: usize| if k < bytes.len() { u64::from(bytes[bytes.len() - 1 - k]) } else { 0 };
    let word = (0..7).fold(0, |word, k| word | byte(first + k) << (8 * k));
    word >> shift & LIMB_MASK
}

/// Reads a big-endian number into 64-bit words, little-endian.
pub(super) fn words_from_limbs(limbs: &[u64], words: &mut [u64]) {
    let limb = |i: usize| limbs.get(i).copied().unwrap_or(0);
    for (i, word) in words.iter_mut().enumerate() {
        let (at, shift) = (i * 64 / LIMB_BITS, i * 64 % LIMB_BITS);
        let low = u128::from(limb(at)) | u128::from(limb(at + 1)) << LIMB_BITS;
        let all = low >> shift | (u128::from(limb(at + 2)) << (2 * LIMB_BITS - shift));
        *word = all as u64;
    }
}

/// Writes a number, of which `limb` gives any limb, as big-endian bytes, as many as `bytes` holds.
pub(super) fn to_be_bytes(limb: impl Fn(usize) -> u64, bytes: &mut [u8]) {
    for (k, byte) in bytes.iter_mut().rev().enumerate() {
        let (at, shift) = (k * 8 / LIMB_BITS, k * 8 % LIMB_BITS);
        *byte = ((u128::from(limb(at)) | u128::from(limb(at + 1)) << LIMB_BITS) >> shift) as u8;
    }
}

/// All ones if `a < b`, else 0.
pub(super) fn less_mask(a: &[u64], b: &[u64]) -> u64 {
    let borrow = a.iter().zip(b).fold(0, |borrow, (a, b)| a.wrapping_sub(*b).wrapping_sub(borrow) >> 63);
    0u64.wrapping_sub(borrow)
}

/// Whether the numbers are equal; looks at all limbs.
pub(super) fn equal(a: &[u64], b: &[u64]) -> bool {
    a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

/// a := a + (b and mask) mod m, for a, b < m.
fn add_mod(a: &mut [u64], b: &[u64], mask: u64, m: &[u64]) {
    let (mut carry, mut borrow) = (0, 0);
    // The compiler may not know that a mask has two values only, else it could branch on it.
    let mask = black_box(mask);
    for i in 0..m.len() {
        let sum = a[i] + (b[i] & mask) + carry;
        a[i] = sum & LIMB_MASK;
        carry = sum >> LIMB_BITS;
        borrow = a[i].wrapping_sub(m[i]).wrapping_sub(borrow) >> 63;
    }
    // Subtract when the sum left the limbs, or when subtracting borrowed nothing.
    subtract(a, m, 0u64.wrapping_sub(carry | (1 - borrow)));
}

/// a := 2a mod m, for a < m.
fn double_mod(a: &mut [u64], m: &[u64]) {
    let (mut carry, mut borrow) = (0, 0);
    for i in 0..m.len() {
        let sum = 2 * a[i] + carry;
        a[i] = sum & LIMB_MASK;
        carry = sum >> LIMB_BITS;
        borrow = a[i].wrapping_sub(m[i]).wrapping_sub(borrow) >> 63;
    }
    subtract(a, m, 0u64.wrapping_sub(carry | (1 - borrow)));
}

/// a := a - (b and mask), mod 2^(52 limbs).
pub(super) fn subtract(a: &mut [u64], b: &[u64], mask: u64) {
    let mut borrow = 0;
    let mask = black_box(mask);
    for i in 0..b.len() {
        let difference = a[i].wrapping_sub(b[i] & mask).wrapping_sub(borrow);
        a[i] = difference & LIMB_MASK;
        borrow = difference >> 63;
    }
}

/// a·2^doublings mod m, for a < m.
pub(super) fn shifted(a: &[u64], doublings: usize, m: &[u64]) -> Limbs {
    let mut result = Limbs::ZERO;
    result.0[..a.len()].copy_from_slice(a);
    for _ in 0..doublings {
        double_mod(&mut result.0[..m.len()], m);
    }
    result
}

/// ab mod m, by doubling and adding under a mask; for a < m, and any b.
pub(super) fn multiplied(a: &[u64], b: &[u64], m: &[u64]) -> Limbs {
    let mut result = Limbs::ZERO;
    for i in (0..b.len() * LIMB_BITS).rev() {
        double_mod(&mut result.0[..m.len()], m);
        let bit = b[i / LIMB_BITS] >> (i % LIMB_BITS) & 1;
        add_mod(&mut result.0[..m.len()], a, 0u64.wrapping_sub(bit), m);
    }
    result
}

/// The product of two numbers of the same length.
pub(super) fn product(a: &[u64], b: &[u64]) -> Limbs {
    let mut result = Limbs::ZERO;
    for (i, x) in a.iter().enumerate() {
        let mut carry = 0;
        for (j, y) in b.iter().enumerate() {
            let sum = u128::from(*x) * u128::from(*y) + u128::from(result.0[i + j]) + carry;
            result.0[i + j] = sum as u64 & LIMB_MASK;
            carry = sum >> LIMB_BITS;
        }
        result.0[i + b.len()] = carry as u64;
    }
    result
}

/// -1/m mod 2^52, for odd m, by Newton's iteration.
pub(super) fn negated_inverse(m: u64) -> u64 {
    // Three bits are right to begin with (m·m = 1 mod 8), each step doubles them: 6, 12, 24, 48, 96.
    let inverse = (0..5).fold(m, |x, _| x.wrapping_mul(2u64.wrapping_sub(m.wrapping_mul(x))));
    inverse.wrapping_neg() & LIMB_MASK
}

/// 2^(-52·limbs) mod m, at most m: so many steps of Montgomery's reduction of 1.
pub(super) fn inverse_power(limbs: usize, m: &[u64]) -> Limbs {
    let k0 = negated_inverse(m[0]);
    let mut result = Limbs::ZERO;
    result.0[0] = 1;
    for _ in 0..limbs {
        let quotient = u128::from(result.0[0].wrapping_mul(k0) & LIMB_MASK);
        let mut carry = (u128::from(result.0[0]) + quotient * u128::from(m[0])) >> LIMB_BITS;
        for (i, limb) in m.iter().enumerate().skip(1) {
            let sum = u128::from(result.0[i]) + quotient * u128::from(*limb) + carry;
            result.0[i - 1] = sum as u64 & LIMB_MASK;
            carry = sum >> LIMB_BITS;
        }
        result.0[m.len() - 1] = carry as u64;
    }
    result
}
