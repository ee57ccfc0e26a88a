//! The Montgomery ladder of eight points at once (RFC 7748 §5), x-coordinates only.

use core::arch::x86_64::{__m512i, _mm_cvtsi64_si128, _mm512_and_si512, _mm512_srl_epi64, _mm512_test_epi64_mask};

use super::field::{
    Columns, Factor, Raised, Sum, add, add_times_121666, carry, from_words, invert, kernel, mul, mul_raised, one,
    product, raise, select, square, square_raised, sub, to_words, word,
};
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

/// The products of clamped scalars and points, both in four words of 64 bits; the mask of lanes that came out zero.
#[target_feature(enable = "avx512f,avx512ifma,bmi2")]
pub fn ladder(scalars: &[__m512i; 4], points: &[__m512i; 4]) -> ([__m512i; 4], u8) {
    let base = from_words(points);
    let mut rungs = Wiped::blank();
    start(&base, &mut rungs);
    climb(scalars, &base, &mut rungs);
    let mut low = doubled(&carry(&add(&rungs.low.x, &rungs.low.z)), &carry(&sub(&rungs.low.x, &rungs.low.z)));
    for _ in 1..STEP_LAST {
        low = doubled(&carry(&add(&low.x, &low.z)), &carry(&sub(&low.x, &low.z)));
    }
    let inverse = invert(&carry(&Sum(low.z.0)));
    to_words(&product(&carry(&Sum(low.x.0)), &inverse))
}

kernel! {
    /// After the highest bit, which is set: the point and its double.
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
        let (da, cb) = (mul_raised(&d, &a), mul(&c, &b));
        let (aa, bb) = (square_raised(&sum), square(&less));
        let (cross_sum, cross_less) = (carry(&add(&da, &cb)), carry(&sub(&da, &cb)));
        let e = carry(&sub(&aa, &bb));
        rungs.high.x = square_raised(&cross_sum);
        let difference = square(&cross_less);
        let (aa, bb_factor) = (carry(&Sum(aa.0)), carry(&Sum(bb.0)));
        let f = carry(&add_times_121666(&bb, &e));
        let difference = carry(&Sum(difference.0));
        rungs.low.x = mul_raised(&aa, &bb_factor);
        rungs.low.z = mul(&e, &f);
        rungs.high.z = mul(base, &difference);
    }
}

/// All bits that differ between clamped scalars. Leaves the low rung at the scalar without its three lowest bits.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma,bmi2")]
fn climb(scalars: &[__m512i; 4], base: &Factor, rungs: &mut Rungs) {
    let mut rung = *rungs;
    // Bit 254 is set, and its step has left the multiple itself in `low`: no exchange is pending.
    let mut previous = 0;
    for bit in (STEP_LAST..=STEP_FIRST).rev() {
        let current = bit_mask(scalars, bit);
        step(&mut rung, base, current ^ previous);
        previous = current;
    }
    // An exchange after the last step, where its bit was set.
    rungs.low.x = Raised(select(previous, &Factor(rung.low.x.0), &Factor(rung.high.x.0)).0);
    rungs.low.z = Columns(select(previous, &Factor(rung.low.z.0), &Factor(rung.high.z.0)).0);
}

kernel! {
    /// The lanes whose scalar has this bit; the number of the bit is public.
    fn bit_mask(scalars: &[__m512i; 4], bit: usize) -> u8 {
        let shifted = _mm512_srl_epi64(scalars[bit / 64], _mm_cvtsi64_si128((bit % 64) as i64));
        _mm512_test_epi64_mask(_mm512_and_si512(shifted, word(1)), word(1))
    }
}
