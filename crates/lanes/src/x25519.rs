//! X25519 (RFC 7748) for eight scalars at once: shared secrets and key pairs.

use crate::Ifma;

#[cfg(target_arch = "x86_64")]
mod comb;
#[cfg(target_arch = "x86_64")]
mod field;
#[cfg(target_arch = "x86_64")]
mod ladder;
mod self_test;
mod table;
#[cfg(target_arch = "x86_64")]
mod two;

pub use self_test::self_test;

/// Operations of one pass.
pub const LANES: usize = 8;
/// Bytes of a scalar, a public key and a shared secret.
pub const KEY_BYTES: usize = 32;
/// Key pairs of one call, which share one inversion: beyond, a key gets hardly cheaper, and the stack grows.
pub const KEYS_MAX: usize = 64;

/// Eight shared secrets: X25519(scalar, point) for each lane (RFC 7748 §5).
///
/// Scalars are clamped here and may be any 32 bytes; the highest bit of a point is ignored and values of p or more are
/// taken modulo p, as the RFC wants. A call costs the same however many lanes matter to the caller.
///
/// Returns the mask of the lanes (bit i for lane i) whose secret is all zero, since the peer sent a point of low order:
/// those handshakes must be refused (RFC 7748 §6.1, RFC 8446 §7.4.2), the others are not touched by it.
#[must_use = "a lane whose bit is set must be refused"]
pub fn derive(
    ifma: Ifma,
    scalars: &[[u8; KEY_BYTES]; LANES],
    points: &[[u8; KEY_BYTES]; LANES],
    secrets: &mut [[u8; KEY_BYTES]; LANES],
) -> u8 {
    #[cfg(target_arch = "x86_64")]
    return x86::derive(ifma, scalars, points, secrets);
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("{ifma:?}, {scalars:p}, {points:p}, {secrets:p}: there is no proof of IFMA on other processors")
}

/// The same for one to eight operations: idle lanes repeat the last, and their results are thrown away.
///
/// # Panics
/// If the three slices are not of one length between 1 and 8.
#[must_use = "a lane whose bit is set must be refused"]
pub fn derive_some(
    ifma: Ifma,
    scalars: &[[u8; KEY_BYTES]],
    points: &[[u8; KEY_BYTES]],
    secrets: &mut [[u8; KEY_BYTES]],
) -> u8 {
    let count = secrets.len();
    assert!((1..=LANES).contains(&count) && scalars.len() == count && points.len() == count, "1 to 8 of each");
    #[cfg(target_arch = "x86_64")]
    return x86::derive(ifma, scalars, points, secrets);
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("{ifma:?}: there is no proof of IFMA on other processors")
}

/// The public keys of up to `KEYS_MAX` private keys: X25519(scalar, 9). Scalars are clamped here.
///
/// Eight keys are one group, all groups share one inversion: cheapest in large multiples of eight. Lanes left over
/// repeat the last key.
///
/// # Panics
/// If the slices are not of one length, or longer than `KEYS_MAX`.
pub fn public_keys(ifma: Ifma, scalars: &[[u8; KEY_BYTES]], publics: &mut [[u8; KEY_BYTES]]) {
    assert!(scalars.len() == publics.len() && publics.len() <= KEYS_MAX, "as many public keys as private ones");
    #[cfg(target_arch = "x86_64")]
    return x86::public_keys(ifma, scalars, publics);
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("{ifma:?}: there is no proof of IFMA on other processors")
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{__m512i, _mm512_and_si512, _mm512_or_si512};

    use super::field::{load, store, word};
    use super::{KEY_BYTES, LANES, comb, ladder};
    use crate::Ifma;
    use crate::wipe::{Wiped, wipe_registers, wipe_stack};

    /// More than the frames of the kernels together, about 6 and 13 KiB.
    const DERIVE_STACK_BYTES: usize = 8 * 1024;
    const KEYS_STACK_BYTES: usize = 16 * 1024;

    pub fn derive(_: Ifma, scalars: &[[u8; 32]], points: &[[u8; 32]], secrets: &mut [[u8; 32]]) -> u8 {
        // SAFETY: the proof says that the processor has the instructions.
        let zero = unsafe { derive_lanes(scalars, points, secrets) };
        wipe_stack::<DERIVE_STACK_BYTES>();
        zero
    }

    pub fn public_keys(_: Ifma, scalars: &[[u8; 32]], publics: &mut [[u8; 32]]) {
        // SAFETY: the proof says that the processor has the instructions.
        unsafe { public_keys_lanes(scalars, publics) };
        wipe_stack::<KEYS_STACK_BYTES>();
    }

    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512ifma,bmi2")]
    fn derive_lanes(scalars: &[[u8; 32]], points: &[[u8; 32]], secrets: &mut [[u8; 32]]) -> u8 {
        let clamped = Wiped::new(clamped(&gathered(scalars)));
        let (words, zero) = ladder::ladder(&clamped, &gathered(points));
        scattered(&words, secrets);
        wipe_registers();
        zero & (u8::MAX >> (LANES - secrets.len()))
    }

    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512ifma,bmi2")]
    fn public_keys_lanes(scalars: &[[u8; 32]], publics: &mut [[u8; 32]]) {
        let mut groups = Wiped::new([[word(0); 4]; comb::GROUPS_MAX]);
        let count = scalars.len().div_ceil(LANES);
        let groups = &mut groups[..count];
        for (group, scalars) in groups.iter_mut().zip(scalars.chunks(LANES)) {
            *group = clamped(&gathered(scalars));
        }
        comb::multiples(groups);
        for (group, publics) in groups.iter().zip(publics.chunks_mut(LANES)) {
            scattered(group, publics);
        }
        wipe_registers();
    }

    /// Word i of eight keys in vector i; lanes beyond the last key repeat it.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,bmi2")]
    fn gathered(keys: &[[u8; KEY_BYTES]]) -> [__m512i; 4] {
        let mut words = Wiped::new([[0u64; LANES]; 4]);
        for lane in 0..LANES {
            let Some(key) = keys.get(lane).or(keys.last()) else { continue };
            let (parts, _) = key.as_chunks::<8>();
            for (word, part) in words.iter_mut().zip(parts) {
                word[lane] = u64::from_le_bytes(*part);
            }
        }
        [load(&words[0]), load(&words[1]), load(&words[2]), load(&words[3])]
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,bmi2")]
    fn scattered(values: &[__m512i; 4], keys: &mut [[u8; KEY_BYTES]]) {
        let mut words = Wiped::new([[0u64; LANES]; 4]);
        for (word, value) in words.iter_mut().zip(values) {
            store(word, *value);
        }
        for (lane, key) in keys.iter_mut().take(LANES).enumerate() {
            let (parts, _) = key.as_chunks_mut::<8>();
            for (part, word) in parts.iter_mut().zip(words.iter()) {
                *part = word[lane].to_le_bytes();
            }
        }
    }

    /// RFC 7748 §5: a multiple of 8 with bit 254 as the highest.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma,bmi2")]
    fn clamped(words: &[__m512i; 4]) -> [__m512i; 4] {
        let highest = _mm512_or_si512(_mm512_and_si512(words[3], word((1 << 63) - 1)), word(1 << 62));
        [_mm512_and_si512(words[0], word(!7)), words[1], words[2], highest]
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
