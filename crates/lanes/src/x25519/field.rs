//! Eight numbers modulo p = 2^255 − 19 at once: five limbs of 51 bits, limb i of all eight in one vector.
//!
//! Three types carry the bounds that IFMA asks for, since it reads only the low 52 bits of a factor:
//! * `Factor`: limbs below 2^51 + 2^16, fit to be multiplied;
//! * `Columns`: what a product leaves, limbs below 250·2^51, fit to be added, subtracted or carried;
//! * `Raised`: the same plus 304·p, limb by limb at least 303·2^51, from which `Columns` can be taken without a borrow.
//!
//! With factors below F = 2^51 + 2^16 a low half is below 2^52, a high half below 2^50 + 2^17. The fullest column is
//! the lowest: 19 times (five doubled high halves and four low ones, 26·2^50) and one low half, 498·2^50 < 250·2^51.

use core::arch::asm;
use core::arch::x86_64::{
    __m512i, _mm512_add_epi64, _mm512_and_si512, _mm512_cmplt_epu64_mask, _mm512_loadu_si512, _mm512_mask_blend_epi64,
    _mm512_or_si512, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_slli_epi64, _mm512_srli_epi64,
    _mm512_storeu_si512, _mm512_sub_epi64, _mm512_test_epi64_mask,
};

use crate::multiply::{multiply_add_high, multiply_add_low};
use crate::wipe::Blank;

pub const LIMBS: usize = 5;
pub const LIMB_MASK: u64 = (1 << 51) - 1;
/// Above every factor's limb: one parallel carry leaves at most 51 bits and 19 times a carry below 2^11.
const FACTOR_MAX: u64 = (1 << 51) + (1 << 16);
const COLUMN_MAX: u64 = 250 << 51;

/// Limbs below 2^51 + 2^16.
#[derive(Clone, Copy)]
pub struct Factor(pub [__m512i; LIMBS]);

/// Limbs below 250·2^51.
#[derive(Clone, Copy)]
pub struct Columns(pub [__m512i; LIMBS]);

/// Limbs from 303·2^51 to 554·2^51.
#[derive(Clone, Copy)]
pub struct Raised(pub [__m512i; LIMBS]);

/// Any limbs below 2^62.
#[derive(Clone, Copy)]
pub struct Sum(pub [__m512i; LIMBS]);

// SAFETY: vectors only, and zero is a number.
unsafe impl Blank for Factor {}
// SAFETY: as above.
unsafe impl Blank for Columns {}
// SAFETY: as above.
unsafe impl Blank for Raised {}

/// A chain of IFMA on one accumulator: `lo!(start; a b, c d)` is start + low(a·b) + low(c·d).
macro_rules! lo {
    ($start:expr; $($a:ident $b:ident),+) => {{
        let sum = $start;
        $(let sum = multiply_add_low(sum, $a, $b);)+
        sum
    }};
}

/// The same for high halves.
macro_rules! hi {
    ($start:expr; $($a:ident $b:ident),+) => {{
        let sum = $start;
        $(let sum = multiply_add_high(sum, $a, $b);)+
        sum
    }};
}

/// A field function: all of them need the same registers, and inline into the point formulas.
macro_rules! kernel {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)? $body:block)*) => {
        $($(#[$meta])* #[inline] #[target_feature(enable = "avx512f,avx512ifma,bmi2")]
        $vis fn $name($($arg: $type),*) $(-> $out)? $body)*
    };
}
pub(super) use kernel;

kernel! {
    pub fn splat(limbs: &[u64; LIMBS]) -> Factor {
        Factor([word(limbs[0]), word(limbs[1]), word(limbs[2]), word(limbs[3]), word(limbs[4])])
    }

    pub fn one() -> Factor {
        splat(&[1, 0, 0, 0, 0])
    }

    pub fn word(value: u64) -> __m512i {
        _mm512_set1_epi64(value.cast_signed())
    }

    pub fn add1(a: __m512i, b: __m512i) -> __m512i {
        _mm512_add_epi64(a, b)
    }

    pub fn double(a: __m512i) -> __m512i {
        _mm512_add_epi64(a, a)
    }

    /// Nine times the number: 19u is u + 2·9u, and the doubling is shared with that of the high halves.
    pub fn times_9(a: __m512i) -> __m512i {
        add1(a, opaque(_mm512_slli_epi64::<3>(a)))
    }

    /// Returns `a` itself; only the compiler cannot see through it, and cannot make a slow multiplication of the
    /// sums and shifts on both sides.
    pub fn opaque(a: __m512i) -> __m512i {
        let mut a = a;
        // SAFETY: no instruction is executed.
        unsafe { asm!("/* {0} */", inout(zmm_reg) a, options(pure, nomem, nostack, preserves_flags)) };
        a
    }

    pub fn times_19(a: __m512i) -> __m512i {
        add1(a, double(opaque(times_9(a))))
    }

    pub fn mul(a: &Factor, b: &Factor) -> Columns {
        let zero = _mm512_setzero_si512();
        Columns(multiply(a, b, [zero; LIMBS]))
    }

    pub fn mul_raised(a: &Factor, b: &Factor) -> Raised {
        Raised(multiply(a, b, [word(8 * (LIMB_MASK - 18)), word(8 * LIMB_MASK), word(8 * LIMB_MASK),
            word(8 * LIMB_MASK), word(8 * LIMB_MASK)]))
    }

    pub fn square(a: &Factor) -> Columns {
        let zero = _mm512_setzero_si512();
        Columns(squared(a, [zero; LIMBS]))
    }

    pub fn square_raised(a: &Factor) -> Raised {
        Raised(squared(a, [word(4 * (LIMB_MASK - 18)), word(4 * LIMB_MASK), word(4 * LIMB_MASK),
            word(4 * LIMB_MASK), word(8 * LIMB_MASK)]))
    }

    /// The product, plus 38 times `start`. A high half weighs 2^52, twice the next limb; columns 5 to 9 come back 19
    /// times in columns 0 to 4.
    fn multiply(a: &Factor, b: &Factor, start: [__m512i; LIMBS]) -> [__m512i; LIMBS] {
        debug_assert!(below(&a.0, FACTOR_MAX) && below(&b.0, 1 << 52));
        let [a0, a1, a2, a3, a4] = a.0;
        let [b0, b1, b2, b3, b4] = b.0;
        let u0 = double(hi!(start[0]; a0 b4, a1 b3, a2 b2, a3 b1, a4 b0));
        let u1 = double(hi!(start[1]; a1 b4, a2 b3, a3 b2, a4 b1));
        let u2 = double(hi!(start[2]; a2 b4, a3 b3, a4 b2));
        let u3 = double(hi!(start[3]; a3 b4, a4 b3));
        let u4 = double(hi!(start[4]; a4 b4));
        let u0 = lo!(u0; a1 b4, a2 b3, a3 b2, a4 b1);
        let u1 = lo!(u1; a2 b4, a3 b3, a4 b2);
        let u2 = lo!(u2; a3 b4, a4 b3);
        let u3 = lo!(u3; a4 b4);
        let h1 = hi!(times_9(u1); a0 b0);
        let h2 = hi!(times_9(u2); a0 b1, a1 b0);
        let h3 = hi!(times_9(u3); a0 b2, a1 b1, a2 b0);
        let h4 = hi!(times_9(u4); a0 b3, a1 b2, a2 b1, a3 b0);
        [
            lo!(times_19(u0); a0 b0),
            lo!(add1(u1, double(h1)); a0 b1, a1 b0),
            lo!(add1(u2, double(h2)); a0 b2, a1 b1, a2 b0),
            lo!(add1(u3, double(h3)); a0 b3, a1 b2, a2 b1, a3 b0),
            lo!(add1(u4, double(h4)); a0 b4, a1 b3, a2 b2, a3 b1, a4 b0),
        ]
    }

    /// The square, plus 76 times `start[0..4]` and 38 times `start[4]`. Products off the diagonal count twice, so
    /// their high halves four times: the doublings nest, and 19u = 4·4u + 2·u + u comes in on all three levels.
    fn squared(a: &Factor, start: [__m512i; LIMBS]) -> [__m512i; LIMBS] {
        debug_assert!(below(&a.0, FACTOR_MAX));
        let [a0, a1, a2, a3, a4] = a.0;
        let zero = _mm512_setzero_si512();
        let x5 = hi!(start[0]; a0 a4);
        let x6 = hi!(start[1]; a1 a4);
        let x7 = hi!(start[2]; a2 a4);
        let x8 = hi!(start[3]; a3 a4);
        let y5 = lo!(zero; a1 a4);
        let y6 = lo!(zero; a2 a4);
        let y7 = lo!(zero; a3 a4);
        let y9 = hi!(start[4]; a4 a4);
        let x5 = hi!(x5; a1 a3);
        let x6 = hi!(x6; a2 a3);
        let y5 = lo!(y5; a2 a3);
        let y7 = hi!(y7; a3 a3);
        let x2 = hi!(zero; a0 a1);
        let x3 = hi!(zero; a0 a2);
        let x4 = hi!(zero; a0 a3);
        let y5 = hi!(y5; a2 a2);
        let y1 = lo!(zero; a0 a1);
        let y2 = lo!(zero; a0 a2);
        let y3 = lo!(zero; a0 a3);
        let y4 = lo!(zero; a0 a4);
        let x4 = hi!(x4; a1 a2);
        let y1 = hi!(y1; a0 a0);
        let y3 = hi!(y3; a1 a1);
        let y4 = lo!(y4; a1 a3);
        let u0 = double(add1(y5, double(x5)));
        let u1 = lo!(double(add1(y6, double(x6))); a3 a3);
        let u2 = double(add1(y7, double(x7)));
        let u3 = lo!(_mm512_slli_epi64::<2>(x8); a4 a4);
        let u4 = double(y9);
        let y3 = lo!(y3; a1 a2);
        let d0 = lo!(zero; a0 a0);
        let d2 = lo!(u2; a1 a1);
        let d4 = lo!(u4; a2 a2);
        let x2 = double(add1(x2, opaque(_mm512_slli_epi64::<2>(u2))));
        let x3 = double(add1(x3, opaque(_mm512_slli_epi64::<2>(u3))));
        let x4 = double(add1(x4, opaque(_mm512_slli_epi64::<2>(u4))));
        let y2 = add1(add1(y2, u2), x2);
        let y3 = add1(add1(y3, u3), x3);
        let y4 = add1(add1(y4, u4), x4);
        let y1 = add1(y1, times_9(u1));
        [
            add1(d0, times_19(u0)),
            add1(u1, double(y1)),
            add1(d2, double(y2)),
            add1(u3, double(y3)),
            add1(d4, double(y4)),
        ]
    }

    /// a + 121,666·e, the curve's (A + 2)/4.
    pub fn add_times_121666(a: &Columns, e: &Factor) -> Sum {
        debug_assert!(below(&e.0, FACTOR_MAX) && below(&a.0, COLUMN_MAX));
        let [e0, e1, e2, e3, e4] = e.0;
        let (zero, k, wrap) = (_mm512_setzero_si512(), word(121_666), word(38));
        let (h0, h1, h2, h3) = (hi!(zero; e0 k), hi!(zero; e1 k), hi!(zero; e2 k), hi!(zero; e3 k));
        let h4 = hi!(zero; e4 k);
        Sum([
            lo!(lo!(a.0[0]; e0 k); h4 wrap),
            lo!(add1(a.0[1], double(h0)); e1 k),
            lo!(add1(a.0[2], double(h1)); e2 k),
            lo!(add1(a.0[3], double(h2)); e3 k),
            lo!(add1(a.0[4], double(h3)); e4 k),
        ])
    }

    pub fn add(a: &Raised, b: &Columns) -> Sum {
        debug_assert!(below(&a.0, 554 << 51) && below(&b.0, 2 * COLUMN_MAX));
        Sum([add1(a.0[0], b.0[0]), add1(a.0[1], b.0[1]), add1(a.0[2], b.0[2]), add1(a.0[3], b.0[3]),
            add1(a.0[4], b.0[4])])
    }

    pub fn sub(a: &Raised, b: &Columns) -> Sum {
        debug_assert!(below(&a.0, 554 << 51) && below(&b.0, 303 << 51));
        Sum([_mm512_sub_epi64(a.0[0], b.0[0]), _mm512_sub_epi64(a.0[1], b.0[1]), _mm512_sub_epi64(a.0[2], b.0[2]),
            _mm512_sub_epi64(a.0[3], b.0[3]), _mm512_sub_epi64(a.0[4], b.0[4])])
    }

    /// A sum of which at least 303·2^51 per limb is bias, less a product.
    pub fn sub_more(a: &Sum, b: &Columns) -> Sum {
        debug_assert!(below(&a.0, 1 << 62) && below(&b.0, 303 << 51));
        Sum([_mm512_sub_epi64(a.0[0], b.0[0]), _mm512_sub_epi64(a.0[1], b.0[1]), _mm512_sub_epi64(a.0[2], b.0[2]),
            _mm512_sub_epi64(a.0[3], b.0[3]), _mm512_sub_epi64(a.0[4], b.0[4])])
    }

    /// 2a − b and 2a + b. Here b may come from a factor below 2^52: its columns stay below 345·2^51, and 2a is above
    /// 606·2^51.
    pub fn double_and(a: &Raised, b: &Columns) -> (Sum, Sum) {
        debug_assert!(below(&a.0, 554 << 51) && below(&b.0, 345 << 51));
        let a2 = a.0.map(|limb| double(limb));
        let [a0, a1, a2, a3, a4] = a2;
        let [b0, b1, b2, b3, b4] = b.0;
        let less = [_mm512_sub_epi64(a0, b0), _mm512_sub_epi64(a1, b1), _mm512_sub_epi64(a2, b2),
            _mm512_sub_epi64(a3, b3), _mm512_sub_epi64(a4, b4)];
        let more = [add1(a0, b0), add1(a1, b1), add1(a2, b2), add1(a3, b3), add1(a4, b4)];
        (Sum(less), Sum(more))
    }

    /// One parallel carry: every limb gives what is above 51 bits to the next, the last one 19 times to the first.
    pub fn carry(a: &Sum) -> Factor {
        debug_assert!(below(&a.0, 1 << 62));
        let mask = word(LIMB_MASK);
        let [c0, c1, c2, c3, c4] = a.0.map(|limb| _mm512_srli_epi64::<51>(limb));
        let [r0, r1, r2, r3, r4] = a.0.map(|limb| _mm512_and_si512(limb, mask));
        let nineteen = word(19);
        Factor([lo!(r0; c4 nineteen), add1(r1, c0), add1(r2, c1), add1(r3, c2), add1(r4, c3)])
    }

    pub fn product(a: &Factor, b: &Factor) -> Factor {
        carry(&Sum(mul(a, b).0))
    }

    pub fn raise(a: &Factor) -> Raised {
        Raised([
            add1(a.0[0], word(304 * (LIMB_MASK - 18))),
            add1(a.0[1], word(304 * LIMB_MASK)),
            add1(a.0[2], word(304 * LIMB_MASK)),
            add1(a.0[3], word(304 * LIMB_MASK)),
            add1(a.0[4], word(304 * LIMB_MASK)),
        ])
    }

    /// b in the lanes of the mask, a in the others.
    pub fn select(mask: u8, a: &Factor, b: &Factor) -> Factor {
        Factor([
            _mm512_mask_blend_epi64(mask, a.0[0], b.0[0]),
            _mm512_mask_blend_epi64(mask, a.0[1], b.0[1]),
            _mm512_mask_blend_epi64(mask, a.0[2], b.0[2]),
            _mm512_mask_blend_epi64(mask, a.0[3], b.0[3]),
            _mm512_mask_blend_epi64(mask, a.0[4], b.0[4]),
        ])
    }

    /// Reads 256 bits in four words; the highest bit is ignored (RFC 7748 §5).
    pub fn from_words(words: &[__m512i; 4]) -> Factor {
        let mask = word(LIMB_MASK);
        let [w0, w1, w2, w3] = *words;
        let l1 = _mm512_or_si512(_mm512_srli_epi64::<51>(w0), _mm512_slli_epi64::<13>(w1));
        let l2 = _mm512_or_si512(_mm512_srli_epi64::<38>(w1), _mm512_slli_epi64::<26>(w2));
        let l3 = _mm512_or_si512(_mm512_srli_epi64::<25>(w2), _mm512_slli_epi64::<39>(w3));
        let l4 = _mm512_srli_epi64::<12>(w3);
        Factor([
            _mm512_and_si512(w0, mask),
            _mm512_and_si512(l1, mask),
            _mm512_and_si512(l2, mask),
            _mm512_and_si512(l3, mask),
            _mm512_and_si512(l4, mask),
        ])
    }

    /// The number below p, in four words, and the mask of the lanes where it is zero.
    pub fn to_words(a: &Factor) -> ([__m512i; 4], u8) {
        // Twice around: the first leaves at most one carry to come out of the top limb, the second none.
        let (a, wrap) = carry_once(a.0, _mm512_setzero_si512());
        let (a, wrap) = carry_once(a, times_19(wrap));
        let a = [add1(a[0], times_19(wrap)), a[1], a[2], a[3], a[4]];
        // Now below 2^255. It is p or more exactly if adding 19 carries out of the top.
        let (_, above) = carry_once(a, word(19));
        let ([l0, l1, l2, l3, l4], _) = carry_once(a, times_19(above));
        let words = [
            _mm512_or_si512(l0, _mm512_slli_epi64::<51>(l1)),
            _mm512_or_si512(_mm512_srli_epi64::<13>(l1), _mm512_slli_epi64::<38>(l2)),
            _mm512_or_si512(_mm512_srli_epi64::<26>(l2), _mm512_slli_epi64::<25>(l3)),
            _mm512_or_si512(_mm512_srli_epi64::<39>(l3), _mm512_slli_epi64::<12>(l4)),
        ];
        let any = _mm512_or_si512(_mm512_or_si512(words[0], words[1]), _mm512_or_si512(words[2], words[3]));
        (words, !_mm512_test_epi64_mask(any, any))
    }

    /// Adds to the lowest limb and carries from limb to limb; what comes out of the top is dropped and returned.
    fn carry_once(a: [__m512i; LIMBS], lowest: __m512i) -> ([__m512i; LIMBS], __m512i) {
        let mask = word(LIMB_MASK);
        let t0 = add1(a[0], lowest);
        let t1 = add1(a[1], _mm512_srli_epi64::<51>(t0));
        let t2 = add1(a[2], _mm512_srli_epi64::<51>(t1));
        let t3 = add1(a[3], _mm512_srli_epi64::<51>(t2));
        let t4 = add1(a[4], _mm512_srli_epi64::<51>(t3));
        ([t0, t1, t2, t3, t4].map(|limb| _mm512_and_si512(limb, mask)), _mm512_srli_epi64::<51>(t4))
    }

    /// The square, `count` times over; the count is public.
    fn squares(a: &Factor, count: usize) -> Factor {
        let mut a = *a;
        for _ in 0..count {
            a = carry(&Sum(square(&a).0));
        }
        a
    }

    fn below(limbs: &[__m512i; LIMBS], limit: u64) -> bool {
        limbs.iter().all(|limb| _mm512_cmplt_epu64_mask(*limb, word(limit)) == u8::MAX)
    }

    pub fn load(words: &[u64; 8]) -> __m512i {
        // SAFETY: the array is 64 bytes, and any address will do.
        unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
    }

    pub fn store(words: &mut [u64; 8], value: __m512i) {
        // SAFETY: the array is 64 bytes, and any address will do.
        unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), value) }
    }
}

/// The inverse, and zero for zero: a^(p − 2), by the usual chain of 254 squarings and 11 products.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma,bmi2")]
pub fn invert(a: &Factor) -> Factor {
    let a2 = squares(a, 1);
    let a9 = product(&squares(&a2, 2), a);
    let a11 = product(&a9, &a2);
    let x5 = product(&squares(&a11, 1), &a9);
    let x10 = product(&squares(&x5, 5), &x5);
    let x20 = product(&squares(&x10, 10), &x10);
    let x40 = product(&squares(&x20, 20), &x20);
    let x50 = product(&squares(&x40, 10), &x10);
    let x100 = product(&squares(&x50, 50), &x50);
    let x200 = product(&squares(&x100, 100), &x100);
    let x250 = product(&squares(&x200, 50), &x50);
    product(&squares(&x250, 5), &a11)
}

#[cfg(test)]
mod tests {
    use super::super::two::{multiply_two, square_two, start_two, start_two_squares};
    use super::*;

    kernel! {
        fn limbs(limbs: &[__m512i; LIMBS]) -> Vec<u64> {
            let mut words = [[0; 8]; LIMBS];
            words.iter_mut().zip(limbs).for_each(|(word, limb)| store(word, *limb));
            words.concat()
        }

        fn largest_columns() {
            let largest = splat(&[FACTOR_MAX - 1; LIMBS]);
            for columns in [mul(&largest, &largest).0, square(&largest).0] {
                assert!(limbs(&columns).iter().all(|limb| *limb < COLUMN_MAX));
            }
            for raised in [mul_raised(&largest, &largest).0, square_raised(&largest).0] {
                assert!(limbs(&raised).iter().all(|limb| (303 << 51..554 << 51).contains(limb)));
            }
            // The comb's negated entries are the one exception to what a factor may be.
            let negated = splat(&[(1 << 52) - 2; LIMBS]);
            assert!(limbs(&mul(&largest, &negated).0).iter().all(|limb| *limb < 345 << 51));
            let zero = splat(&[0; LIMBS]);
            assert!(limbs(&mul_raised(&zero, &zero).0).iter().all(|limb| *limb >= 303 << 51));
            assert!(limbs(&square_raised(&zero).0).iter().all(|limb| *limb >= 303 << 51));
            let carried = carry(&Sum([word((1 << 62) - 1); LIMBS]));
            assert!(limbs(&carried.0).iter().all(|limb| *limb < FACTOR_MAX));
        }

        fn two_are_as_one(a: &Factor, b: &Factor) {
            let [first, second] = multiply_two!([a, b], [b, b], start_two(1, 0));
            assert_eq!(limbs(&first), limbs(&mul_raised(a, b).0));
            assert_eq!(limbs(&second), limbs(&mul(b, b).0));
            let [first, second] = square_two!([a, b], start_two_squares());
            assert_eq!(limbs(&first), limbs(&square_raised(a).0));
            assert_eq!(limbs(&second), limbs(&square(b).0));
            assert_eq!(limbs(&second), limbs(&mul(b, b).0));
        }
    }

    fn on_a_processor_that_can(run: impl FnOnce()) {
        match crate::Ifma::detect() {
            Some(_) => run(),
            None => println!("no AVX-512 IFMA here: nothing to test"),
        }
    }

    #[test]
    fn the_largest_factors_keep_their_columns_in_the_bounds() {
        // SAFETY: the processor was just asked.
        on_a_processor_that_can(|| unsafe { largest_columns() });
    }

    #[test]
    fn two_products_side_by_side_are_those_of_one_after_the_other() {
        let mut random = fastrand::Rng::with_seed(6);
        for _ in 0..1_000 {
            let mut numbers = || std::array::from_fn(|_| random.u64(0..FACTOR_MAX));
            let (a, b) = (numbers(), numbers());
            // SAFETY: the processor was just asked.
            on_a_processor_that_can(|| unsafe { two_are_as_one(&splat(&a), &splat(&b)) });
        }
    }
}
