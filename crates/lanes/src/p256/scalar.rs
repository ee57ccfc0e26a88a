//! One number mod the order n of the curve: four 64-bit words, plain arithmetic, constant time.

use super::wipe::wipe;

/// n, least word first.
pub const N: [u64; 4] = [0xf3b9_cac2_fc63_2551, 0xbce6_faad_a717_9e84, 0xffff_ffff_ffff_ffff, 0xffff_ffff_0000_0000];
/// 2^512 mod n.
pub const R_SQUARED: [u64; 4] =
    [0x8324_4c95_be79_eea2, 0x4699_799c_49bd_6fa6, 0x2845_b239_2b6b_ec59, 0x66e1_2d94_f3d9_5620];
/// −1/n mod 2^64.
const QUOTIENT_FACTOR: u64 = 0xccd1_c8aa_ee00_bc4f;

pub type Scalar = [u64; 4];

/// Whether 1 ≤ scalar ≤ n − 1, for drawing by rejection (FIPS 186-5 A.3.2). Constant time, by borrow.
#[must_use]
pub fn is_scalar(bytes: &[u8; 32]) -> bool {
    let mut number = from_bytes(bytes);
    let (mut less, below) = subtract(&number, &N);
    let some = or_of_words(&number);
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
    let [mut high, mut low] = [from_bytes(&halves[0]), from_bytes(&halves[1])];
    let mut reduced = reduced_wide(&high, &low);
    let bytes = to_bytes(&reduced);
    let is_zero = or_of_words(&reduced) == 0;
    halves.iter_mut().for_each(wipe);
    [&mut high, &mut low, &mut reduced].into_iter().for_each(wipe);
    (!is_zero).then_some(bytes)
}

#[inline]
pub fn from_bytes(bytes: &[u8; 32]) -> Scalar {
    core::array::from_fn(|word| {
        let mut part = [0; 8];
        part.copy_from_slice(&bytes[24 - 8 * word..32 - 8 * word]);
        u64::from_be_bytes(part)
    })
}

pub fn to_bytes(scalar: &Scalar) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (part, word) in bytes.chunks_exact_mut(8).zip(scalar.iter().rev()) {
        part.copy_from_slice(&word.to_be_bytes());
    }
    bytes
}

/// a − b, and all ones if that is negative (then 2^256 too large).
#[inline]
pub fn subtract(a: &Scalar, b: &Scalar) -> (Scalar, u64) {
    let mut difference = [0; 4];
    let mut borrow = false;
    for i in 0..4 {
        let (once, first) = a[i].overflowing_sub(b[i]);
        let (twice, second) = once.overflowing_sub(u64::from(borrow));
        difference[i] = twice;
        borrow = first | second;
    }
    (difference, u64::from(borrow).wrapping_neg())
}

/// a + b, and its carry.
#[inline]
fn sum(a: &Scalar, b: &Scalar) -> (Scalar, u64) {
    let mut total = [0; 4];
    let mut carry = 0;
    for i in 0..4 {
        let column = u128::from(a[i]) + u128::from(b[i]) + carry;
        total[i] = column as u64;
        carry = column >> 64;
    }
    (total, carry as u64)
}

/// The value carry·2^256 + a, which is below 2n, mod n.
#[inline]
fn less_n(a: &Scalar, carry: u64) -> Scalar {
    let (less, borrow) = subtract(a, &N);
    // A borrow that the carry does not cover: a was below n.
    let keep = core::hint::black_box(borrow & carry.wrapping_sub(1));
    core::array::from_fn(|i| (a[i] & keep) | (less[i] & !keep))
}

/// a mod n, for any 256 bits.
#[inline]
pub fn reduced(a: &Scalar) -> Scalar {
    less_n(a, 0)
}

/// high·2^256 + low mod n, for any 512 bits.
#[inline]
pub fn reduced_wide(high: &Scalar, low: &Scalar) -> Scalar {
    // 2^512 mod n is below n, so the product is below n·2^256, and leaves high·2^256.
    add(&multiply(high, &R_SQUARED), &reduced(low))
}

/// a + b mod n, for a and b below n.
#[inline]
pub fn add(a: &Scalar, b: &Scalar) -> Scalar {
    let (total, carry) = sum(a, b);
    less_n(&total, carry)
}

/// a·b / 2^256 mod n, for a·b below n·2^256.
#[inline]
pub fn multiply(a: &Scalar, b: &Scalar) -> Scalar {
    let mut t = [0u64; 4];
    let mut top = 0u64;
    for word in a {
        let (mut carry, mut low) = (0u128, [0u64; 5]);
        for j in 0..4 {
            let column = u128::from(*word) * u128::from(b[j]) + u128::from(t[j]) + carry;
            low[j] = column as u64;
            carry = column >> 64;
        }
        let column = u128::from(top) + carry;
        low[4] = column as u64;
        let over = (column >> 64) as u64;

        let quotient = low[0].wrapping_mul(QUOTIENT_FACTOR);
        carry = (u128::from(quotient) * u128::from(N[0]) + u128::from(low[0])) >> 64;
        for j in 1..4 {
            let column = u128::from(quotient) * u128::from(N[j]) + u128::from(low[j]) + carry;
            t[j - 1] = column as u64;
            carry = column >> 64;
        }
        let column = u128::from(low[4]) + carry;
        t[3] = column as u64;
        top = over + (column >> 64) as u64;
    }
    less_n(&t, top)
}

/// Zero if and only if a is.
#[inline]
pub fn or_of_words(a: &Scalar) -> u64 {
    a.iter().fold(0, |or, word| or | word)
}
