//! Between 32-byte big-endian numbers, four 64-bit words, and eight lanes of limbs.

use core::arch::x86_64::{__m512i, _mm512_and_si512, _mm512_or_si512, _mm512_slli_epi64, _mm512_srli_epi64};

use super::field::{Factor, LIMB_MASK, Vector, all};
use super::limits::LANES;
use super::scalar;
use super::wipe::wipe;

#[inline]
fn vector(words: [u64; LANES]) -> Vector {
    // SAFETY: both are 64 bytes in which every pattern is a value.
    unsafe { core::mem::transmute::<[u64; LANES], __m512i>(words) }
}

#[inline]
fn words(vector: Vector) -> [u64; LANES] {
    // SAFETY: both are 64 bytes in which every pattern is a value.
    unsafe { core::mem::transmute::<__m512i, [u64; LANES]>(vector) }
}

/// Eight numbers in; `number(lane)` borrows each.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn gather<'a>(number: impl Fn(usize) -> &'a [u8; 32]) -> Factor {
    let mut columns = [[0u64; LANES]; 4];
    for lane in 0..LANES {
        for (column, word) in columns.iter_mut().zip(scalar::from_bytes(number(lane))) {
            column[lane] = word;
        }
    }
    let [w0, w1, w2, w3] = columns.map(vector);
    wipe(&mut columns);
    let mask = all(LIMB_MASK);
    let pair = |low, high| _mm512_and_si512(_mm512_or_si512(low, high), mask);
    Factor([
        _mm512_and_si512(w0, mask),
        pair(_mm512_srli_epi64::<52>(w0), _mm512_slli_epi64::<12>(w1)),
        pair(_mm512_srli_epi64::<40>(w1), _mm512_slli_epi64::<24>(w2)),
        pair(_mm512_srli_epi64::<28>(w2), _mm512_slli_epi64::<36>(w3)),
        _mm512_srli_epi64::<16>(w3),
    ])
}

/// Eight numbers below 2^256 out, as columns of words: `[word][lane]`.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn scatter(numbers: &Factor) -> [[u64; LANES]; 4] {
    let l = &numbers.0;
    let pair = |low, high| words(_mm512_or_si512(low, high));
    [
        pair(l[0], _mm512_slli_epi64::<52>(l[1])),
        pair(_mm512_srli_epi64::<12>(l[1]), _mm512_slli_epi64::<40>(l[2])),
        pair(_mm512_srli_epi64::<24>(l[2]), _mm512_slli_epi64::<28>(l[3])),
        pair(_mm512_srli_epi64::<36>(l[3]), _mm512_slli_epi64::<16>(l[4])),
    ]
}
