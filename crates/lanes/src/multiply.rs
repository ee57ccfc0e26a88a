//! The two multiplications that the kernels are made of, `vpmadd52luq` and `vpmadd52huq`.
//!
//! In builds with debug assertions they can be emulated by AVX-512 F ([`Ifma::emulated`](crate::Ifma::emulated)), some
//! ten times slower, so that the tests of the kernels, and of what is built on them, run on processors that lack just
//! these.

#[cfg(not(debug_assertions))]
pub use core::arch::x86_64::{_mm512_madd52hi_epu64 as multiply_add_high, _mm512_madd52lo_epu64 as multiply_add_low};
#[cfg(debug_assertions)]
pub use debug::{EMULATED, multiply_add_high, multiply_add_low};

#[cfg(debug_assertions)]
mod debug {
    use core::arch::x86_64::{
        __m512i, _mm512_add_epi64, _mm512_and_si512, _mm512_madd52hi_epu64, _mm512_madd52lo_epu64, _mm512_mul_epu32,
        _mm512_or_si512, _mm512_set1_epi64, _mm512_slli_epi64, _mm512_srli_epi64,
    };
    use core::sync::atomic::{AtomicBool, Ordering};

    /// Set once, before the first token is given out, on processors without the instructions.
    pub static EMULATED: AtomicBool = AtomicBool::new(false);

    /// The low 52 bits of a·b, added to the sum; of the factors the low 52 bits count.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn multiply_add_low(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        if EMULATED.load(Ordering::Relaxed) { emulated(sum, a, b, false) } else { _mm512_madd52lo_epu64(sum, a, b) }
    }

    /// Bits 52 to 103 of a·b likewise.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn multiply_add_high(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        if EMULATED.load(Ordering::Relaxed) { emulated(sum, a, b, true) } else { _mm512_madd52hi_epu64(sum, a, b) }
    }

    /// Multiplies by halves of 26 bits, whose products fit into 52. A function call of its own, compiled without
    /// the instructions that it stands in for.
    #[inline(never)]
    #[target_feature(enable = "avx512f")]
    fn emulated(sum: __m512i, a: __m512i, b: __m512i, is_high: bool) -> __m512i {
        let half = _mm512_set1_epi64((1 << 26) - 1);
        let halves = |number| {
            let upper = _mm512_srli_epi64::<26>(number);
            (_mm512_and_si512(number, half), _mm512_and_si512(upper, half))
        };
        let ((a0, a1), (b0, b1)) = (halves(a), halves(b));
        let low = _mm512_mul_epu32(a0, b0);
        let crossed = _mm512_add_epi64(_mm512_mul_epu32(a0, b1), _mm512_mul_epu32(a1, b0));
        let middle = _mm512_add_epi64(crossed, _mm512_srli_epi64::<26>(low));
        let part = if is_high {
            _mm512_add_epi64(_mm512_mul_epu32(a1, b1), _mm512_srli_epi64::<26>(middle))
        } else {
            let upper = _mm512_slli_epi64::<26>(_mm512_and_si512(middle, half));
            _mm512_or_si512(upper, _mm512_and_si512(low, half))
        };
        _mm512_add_epi64(sum, part)
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::Ifma;

        fn lanes(words: [u64; 8]) -> __m512i {
            // SAFETY: both are 64 bytes in which every pattern is a value.
            unsafe { core::mem::transmute::<[u64; 8], __m512i>(words) }
        }

        fn words(lanes: __m512i) -> [u64; 8] {
            // SAFETY: as above.
            unsafe { core::mem::transmute::<__m512i, [u64; 8]>(lanes) }
        }

        #[test]
        fn the_emulation_is_the_definition() {
            if Ifma::emulated().is_none() {
                println!("this processor has no AVX-512: nothing to test");
                return;
            }
            let mut random = fastrand::Rng::with_seed(52);
            let mask = (1u64 << 52) - 1;
            for round in 0..20_000 {
                let mut draw = || {
                    core::array::from_fn(|_| if round % 3 == 0 { u64::MAX << random.u8(..64) } else { random.u64(..) })
                };
                let (sum, a, b): ([u64; 8], [u64; 8], [u64; 8]) = (draw(), draw(), draw());
                for is_high in [false, true] {
                    // SAFETY: there is a token, so the processor has AVX-512 F.
                    let result = words(unsafe { emulated(lanes(sum), lanes(a), lanes(b), is_high) });
                    for lane in 0..8 {
                        let product = u128::from(a[lane] & mask) * u128::from(b[lane] & mask);
                        let part = if is_high { (product >> 52) as u64 } else { product as u64 & mask };
                        assert_eq!(result[lane], sum[lane].wrapping_add(part), "{:x} · {:x}", a[lane], b[lane]);
                    }
                }
            }
        }
    }
}
