//! The Montgomery ladder of eight points at once (RFC 7748 §5), x-coordinates only.

use core::arch::x86_64::{
    __m512i, _mm512_and_si512, _mm512_or_si512, _mm512_slli_epi64, _mm512_srli_epi64, _mm512_test_epi64_mask,
    _mm512_xor_si512,
};

use super::field::{
    Columns, Factor, Raised, Sum, add, add_times_121666, carry, from_words, invert, kernel, mul, mul_raised, one,
    product, raise, select, square, square_raised, sub, to_words, word,
};
use super::two::{multiply_two, square_two, start_two, start_two_squares};
use crate::wipe::{Blank, Wiped};

/// The highest bit of a clamped scalar is 254, always set; bits 2 to 0 are always clear.
const STEP_FIRST: usize = 253;
const STEP_LAST: usize = 3;

/// A point's x-coordinate as a fraction.
#[derive(Clone, Copy)]
struct Point {
    x: Raised,
    z: Columns,
}

/// Two points whose difference is the ladder's input.
#[derive(Clone, Copy)]
struct Rungs {
    low: Point,
    high: Point,
}

// SAFETY: vectors only.
unsafe impl Blank for Rungs {}
// SAFETY: as above.
unsafe impl Blank for Point {}

/// The products of clamped scalars and points, both in four words of 64 bits; the mask of lanes that came out zero.
#[target_feature(enable = "avx512f,avx512ifma,bmi2")]
pub fn ladder(scalars: &[__m512i; 4], points: &[__m512i; 4]) -> ([__m512i; 4], u8) {
    let base = from_words(points);
    let mut rungs = Wiped::blank();
    start(&base, &mut rungs);
    climb(scalars, &base, &mut rungs);
    let mut low = Wiped::new(rungs.low);
    for _ in 0..STEP_LAST {
        *low = doubled(&carry(&add(&low.x, &low.z)), &carry(&sub(&low.x, &low.z)));
    }
    let inverse = invert(&carry(&Sum(low.z.0)));
    to_words(&product(&carry(&Sum(low.x.0)), &inverse))
}

kernel! {
    /// Sets the state after the highest bit, which is set: the point and its double.
    fn start(base: &Factor, rungs: &mut Rungs) {
        rungs.low = Point { x: raise(base), z: Columns(one().0) };
        rungs.high = doubled(&carry(&add(&rungs.low.x, &rungs.low.z)), &carry(&sub(&rungs.low.x, &rungs.low.z)));
    }

    /// Twice the point whose x + z and x − z are given.
    fn doubled(sum: &Factor, difference: &Factor) -> Point {
        let aa = square_raised(sum);
        let bb = square(difference);
        let e = carry(&sub(&aa, &bb));
        let x = mul_raised(&carry(&Sum(aa.0)), &carry(&Sum(bb.0)));
        Point { x, z: mul(&e, &carry(&add_times_121666(&bb, &e))) }
    }

    /// One bit: the sum of both points, and the double of the one that the mask selects (set: the high one). The
    /// points are not swapped: the sum is symmetric up to a sign that its square removes.
    fn step(rungs: &mut Rungs, base: &Factor, mask: u8) {
        let (a, b) = (carry(&add(&rungs.low.x, &rungs.low.z)), carry(&sub(&rungs.low.x, &rungs.low.z)));
        let (c, d) = (carry(&add(&rungs.high.x, &rungs.high.z)), carry(&sub(&rungs.high.x, &rungs.high.z)));
        let (sum, less) = (select(mask, &a, &c), select(mask, &b, &d));
        let [da, cb] = multiply_two!([&d, &c], [&a, &b], start_two(1, 0));
        let (da, cb) = (Raised(da), Columns(cb));
        let [aa, bb] = square_two!([&sum, &less], start_two_squares());
        let (aa, bb) = (Raised(aa), Columns(bb));
        let (cross_sum, cross_less) = (carry(&add(&da, &cb)), carry(&sub(&da, &cb)));
        let e = carry(&sub(&aa, &bb));
        let [high_x, difference] = square_two!([&cross_sum, &cross_less], start_two_squares());
        rungs.high.x = Raised(high_x);
        let (aa, bb_factor) = (carry(&Sum(aa.0)), carry(&Sum(bb.0)));
        let f = carry(&add_times_121666(&bb, &e));
        let difference = carry(&Sum(difference));
        let [low_x, low_z] = multiply_two!([&aa, &e], [&bb_factor, &f], start_two(1, 0));
        (rungs.low.x, rungs.low.z) = (Raised(low_x), Columns(low_z));
        rungs.high.z = mul(base, &difference);
    }
}

kernel! {
    /// Bits 253 to 3. Leaves the low rung at the scalar without its three lowest bits.
    fn climb(scalars: &[__m512i; 4], base: &Factor, rungs: &mut Rungs) {
        // The rungs stand exchanged after a set bit, so what a step selects by is its bit XOR the one above. Above bit
        // 253 there is none: bit 254 has left the multiple itself in `low`.
        let [k0, k1, k2, k3] = *scalars;
        let k3 = _mm512_and_si512(k3, word((1 << 62) - 1));
        let highest = _mm512_slli_epi64::<{ 255 - STEP_FIRST as u32 }>(differences(k3, word(0)));
        climb_word(highest, STEP_FIRST - 191, base, rungs);
        climb_word(differences(k2, k3), 64, base, rungs);
        climb_word(differences(k1, k2), 64, base, rungs);
        climb_word(differences(k0, k1), 64 - STEP_LAST, base, rungs);
        let exchanged = _mm512_test_epi64_mask(k0, word(1 << STEP_LAST));
        rungs.low.x = Raised(select(exchanged, &Factor(rungs.low.x.0), &Factor(rungs.high.x.0)).0);
        rungs.low.z = Columns(select(exchanged, &Factor(rungs.low.z.0), &Factor(rungs.high.z.0)).0);
    }
}

/// A step for each of the highest `count` bits; the count is public.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma,bmi2")]
fn climb_word(bits: __m512i, count: usize, base: &Factor, rungs: &mut Rungs) {
    let mut bits = bits;
    for _ in 0..count {
        step(rungs, base, _mm512_test_epi64_mask(bits, word(1 << 63)));
        bits = _mm512_slli_epi64::<1>(bits);
    }
}

kernel! {
    /// Each bit of a word XOR the bit above it.
    fn differences(word: __m512i, above: __m512i) -> __m512i {
        let shifted = _mm512_or_si512(_mm512_srli_epi64::<1>(word), _mm512_slli_epi64::<63>(above));
        _mm512_xor_si512(word, shifted)
    }
}
