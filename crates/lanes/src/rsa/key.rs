//! A private key, checked and made ready: its numbers in limbs, and the constants of Montgomery's reduction.

use super::natural::{self, LIMB_BITS, Limbs, WIDE_LIMBS_MAX};
use crate::wipe::{wipe, wipe_stack};

/// Limbs that a half of the longest modulus has.
pub(super) const HALF_LIMBS_MAX: usize = WIDE_LIMBS_MAX / 2;
/// 64-bit words of the longest exponent.
pub(super) const EXPONENT_WORDS_MAX: usize = 32;
/// Limbs that one pass of the reduction takes away.
pub(super) const PASS_LIMBS: usize = 10;
/// Stack that checking a key and making it ready uses at most, roughly twice.
const BUILD_STACK_BYTES: usize = 64 << 10;
/// The only public exponent that the check of a result knows.
const PUBLIC_EXPONENT: u64 = 65537;

/// A key as PKCS #1 (RFC 8017 §3.2) writes it: big-endian numbers, leading zeros allowed.
pub struct Parts<'a> {
    /// The modulus.
    pub n: &'a [u8],
    /// The public exponent.
    pub e: &'a [u8],
    /// The first prime.
    pub p: &'a [u8],
    /// The second prime.
    pub q: &'a [u8],
    /// 1/e mod p - 1.
    pub dp: &'a [u8],
    /// 1/e mod q - 1.
    pub dq: &'a [u8],
    /// 1/q mod p.
    pub qinv: &'a [u8],
}

/// Why a key cannot be used in the lanes. Such a key may be perfectly good for another implementation, except when it
/// is inconsistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsuitable {
    /// The modulus has not exactly 2,048, 3,072 or 4,096 bits.
    ModulusSize,
    /// The public exponent is not 65,537.
    PublicExponent,
    /// A prime has not exactly half the bits of the modulus, or is even.
    PrimeSize,
    /// p·q is not n.
    Modulus,
    /// dp or dq is not the inverse of e.
    Exponent,
    /// qinv is not the inverse of q.
    Coefficient,
}

/// The three lengths of a modulus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Rsa2048,
    Rsa3072,
    Rsa4096,
}

impl Size {
    fn of_bits(bits: usize) -> Option<Size> {
        [Size::Rsa2048, Size::Rsa3072, Size::Rsa4096].into_iter().find(|size| size.modulus_bytes() * 8 == bits)
    }

    /// Bytes of the modulus, hence of every input and output.
    #[must_use]
    pub const fn modulus_bytes(self) -> usize {
        match self {
            Size::Rsa2048 => 256,
            Size::Rsa3072 => 384,
            Size::Rsa4096 => 512,
        }
    }

    /// Limbs of a prime; twice as many for the modulus.
    pub(super) const fn half_limbs(self) -> usize {
        match self {
            Size::Rsa2048 => 20,
            Size::Rsa3072 => 30,
            Size::Rsa4096 => 40,
        }
    }

    pub(super) const fn exponent_words(self) -> usize {
        self.modulus_bytes() / 16
    }
}

/// A private key, ready for the lanes: 8 KiB. Nothing in it changes, so any number of threads may share one.
/// Overwritten with zeros when dropped.
pub struct Key {
    pub(super) size: Size,
    pub(super) modulus: Modulus,
    pub(super) primes: [Prime; 2],
    /// 1/q mod p, times R of the half.
    pub(super) qinv: [u64; HALF_LIMBS_MAX],
}

/// The public modulus and its constants; R = 2^(52·limbs).
pub(super) struct Modulus {
    pub limbs: [u64; WIDE_LIMBS_MAX],
    /// 2^-520 mod n.
    pub fold: [u64; WIDE_LIMBS_MAX],
    /// R² mod n.
    pub r2: [u64; WIDE_LIMBS_MAX],
    /// -1/n mod 2^52.
    pub k0: u64,
}

/// A prime and its constants; R = 2^(52·limbs).
pub(super) struct Prime {
    pub limbs: [u64; HALF_LIMBS_MAX],
    /// 2^-520 mod the prime.
    pub fold: [u64; HALF_LIMBS_MAX],
    /// R² mod the prime.
    pub r2: [u64; HALF_LIMBS_MAX],
    /// R³ mod the prime.
    pub r3: [u64; HALF_LIMBS_MAX],
    /// -1/prime mod 2^52.
    pub k0: u64,
    /// d: the private exponent mod prime - 1.
    pub exponent: [u64; EXPONENT_WORDS_MAX],
    /// prime - 1 - d: raises to -d.
    pub complement: [u64; EXPONENT_WORDS_MAX],
}

impl Key {
    /// Checks that the parts belong together and computes the constants, in constant time for a size: about a
    /// millisecond, so once per key. Whether p and q are primes is not checked.
    pub fn new(parts: &Parts<'_>) -> Result<Key, Unsuitable> {
        let key = Key::build(parts);
        // Values are moved while a key is put together, and leave copies behind.
        wipe_stack::<BUILD_STACK_BYTES>();
        key
    }

    #[inline(never)]
    fn build(parts: &Parts<'_>) -> Result<Key, Unsuitable> {
        let size = modulus_size(parts.n)?;
        let half = size.half_limbs();
        if value_if_small(parts.e) != Some(PUBLIC_EXPONENT) {
            return Err(Unsuitable::PublicExponent);
        }
        let n = number(parts.n, size.modulus_bytes(), 2 * half).ok_or(Unsuitable::ModulusSize)?;
        let p = prime_number(parts.p, size)?;
        let q = prime_number(parts.q, size)?;
        if !natural::equal(&natural::product(&p.0[..half], &q.0[..half]).0[..2 * half], &n.0[..2 * half]) {
            return Err(Unsuitable::Modulus);
        }
        let primes = [Prime::new(&p, parts.dp, size)?, Prime::new(&q, parts.dq, size)?];
        let qinv = coefficient(parts.qinv, &p, &q, size)?;
        Ok(Key { size, modulus: Modulus::new(&n, size), primes, qinv: first_half(&qinv) })
    }

    /// The length of the modulus.
    #[must_use]
    pub fn size(&self) -> Size {
        self.size
    }

    /// Random bytes that renewing a blinding takes: 128 bits more than the modulus has, so that their remainder is
    /// uniform.
    #[must_use]
    pub fn random_bytes(&self) -> usize {
        self.size.modulus_bytes() + 16
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        wipe(&mut self.qinv);
    }
}

impl core::fmt::Debug for Key {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Key").field("size", &self.size).finish_non_exhaustive()
    }
}

impl Modulus {
    fn new(n: &Limbs, size: Size) -> Modulus {
        let m = &n.0[..2 * size.half_limbs()];
        let bits = size.modulus_bytes() * 8;
        Modulus {
            limbs: n.0,
            fold: natural::inverse_power(PASS_LIMBS, m).0,
            r2: natural::shifted(&two_to(bits - 1, m.len()).0, 2 * m.len() * LIMB_BITS - (bits - 1), m).0,
            k0: natural::negated_inverse(m[0]),
        }
    }
}

impl Modulus {
    /// Whether `bytes` write a smaller number.
    pub fn exceeds(&self, bytes: &[u8]) -> bool {
        let mut number = Limbs::ZERO;
        natural::from_be_bytes(bytes, &mut number.0);
        natural::less_mask(&number.0, &self.limbs) != 0
    }
}

impl Prime {
    fn new(prime: &Limbs, d: &[u8], size: Size) -> Result<Prime, Unsuitable> {
        let (half, bits) = (size.half_limbs(), size.modulus_bytes() * 4);
        let m = &prime.0[..half];
        let mut order = prime.clone();
        order.0[0] -= 1;
        let order = &order.0[..half];
        let d = number(d, bits / 8, half).ok_or(Unsuitable::Exponent)?;
        let e = [PUBLIC_EXPONENT];
        if natural::less_mask(&d.0[..half], order) == 0
            || !natural::equal(&natural::multiplied(&d.0[..half], &e, order).0[..half], &two_to(0, half).0[..half])
        {
            return Err(Unsuitable::Exponent);
        }
        let mut negative = Limbs::ZERO;
        negative.0[..half].copy_from_slice(order);
        natural::subtract(&mut negative.0[..half], &d.0[..half], u64::MAX);
        let r2 = natural::shifted(&two_to(bits - 1, half).0, 2 * half * LIMB_BITS - (bits - 1), m);
        let mut new = Prime {
            limbs: first_half(prime),
            fold: first_half(&natural::inverse_power(PASS_LIMBS, m)),
            r2: first_half(&r2),
            r3: first_half(&natural::shifted(&r2.0, half * LIMB_BITS, m)),
            k0: natural::negated_inverse(m[0]),
            exponent: [0; EXPONENT_WORDS_MAX],
            complement: [0; EXPONENT_WORDS_MAX],
        };
        natural::words_from_limbs(&d.0[..half], &mut new.exponent);
        natural::words_from_limbs(&negative.0[..half], &mut new.complement);
        Ok(new)
    }
}

impl Drop for Prime {
    fn drop(&mut self) {
        for limbs in [&mut self.limbs, &mut self.fold, &mut self.r2, &mut self.r3] {
            wipe(limbs);
        }
        wipe(&mut self.exponent);
        wipe(&mut self.complement);
        wipe(core::slice::from_mut(&mut self.k0));
    }
}

fn modulus_size(n: &[u8]) -> Result<Size, Unsuitable> {
    let zeros = n.iter().take_while(|byte| **byte == 0).count();
    let bits = (n.len() - zeros) * 8 - n.get(zeros).map_or(0, |byte| byte.leading_zeros() as usize);
    match (Size::of_bits(bits), n.last()) {
        (Some(size), Some(last)) if last & 1 == 1 => Ok(size),
        _ => Err(Unsuitable::ModulusSize),
    }
}

fn value_if_small(bytes: &[u8]) -> Option<u64> {
    let value = number(bytes, 6, 1)?;
    Some(value.0[0])
}

/// The number that `bytes` write, unless it is longer than `length_bytes`.
fn number(bytes: &[u8], length_bytes: usize, limbs: usize) -> Option<Limbs> {
    let (excess, bytes) = bytes.split_at(bytes.len().saturating_sub(length_bytes));
    let mut number = Limbs::ZERO;
    natural::from_be_bytes(bytes, &mut number.0[..limbs]);
    (excess.iter().fold(0, |all, byte| all | byte) == 0).then_some(number)
}

fn prime_number(bytes: &[u8], size: Size) -> Result<Limbs, Unsuitable> {
    let bits = size.modulus_bytes() * 4;
    let prime = number(bytes, bits / 8, size.half_limbs()).ok_or(Unsuitable::PrimeSize)?;
    let top = prime.0[(bits - 1) / LIMB_BITS] >> ((bits - 1) % LIMB_BITS);
    if top & prime.0[0] & 1 == 1 { Ok(prime) } else { Err(Unsuitable::PrimeSize) }
}

/// qinv·R mod p, after checking that qinv·q = 1 mod p.
fn coefficient(qinv: &[u8], p: &Limbs, q: &Limbs, size: Size) -> Result<Limbs, Unsuitable> {
    let half = size.half_limbs();
    let m = &p.0[..half];
    let qinv = number(qinv, size.modulus_bytes() / 2, half).ok_or(Unsuitable::Coefficient)?;
    let inverse = natural::less_mask(&qinv.0[..half], m) != 0
        && natural::equal(&natural::multiplied(&qinv.0[..half], &q.0[..half], m).0[..half], &two_to(0, half).0[..half]);
    if !inverse {
        return Err(Unsuitable::Coefficient);
    }
    Ok(natural::shifted(&qinv.0[..half], half * LIMB_BITS, m))
}

fn two_to(exponent: usize, limbs: usize) -> Limbs {
    debug_assert!(exponent < limbs * LIMB_BITS, "the power has to fit");
    let mut power = Limbs::ZERO;
    power.0[exponent / LIMB_BITS] = 1 << (exponent % LIMB_BITS);
    power
}

fn first_half(limbs: &Limbs) -> [u64; HALF_LIMBS_MAX] {
    let mut half = [0; HALF_LIMBS_MAX];
    half.copy_from_slice(&limbs.0[..HALF_LIMBS_MAX]);
    half
}
