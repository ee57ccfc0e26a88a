//! Sums of points in the coordinates (X, Y, ZZ, ZZZ): x = X/ZZ, y = Y/ZZZ, ZZ³ = ZZZ².

use core::arch::x86_64::{
    __mmask8, _mm_cvtsi32_si128, _mm512_and_si512, _mm512_or_si512, _mm512_sll_epi64, _mm512_srl_epi64,
    _mm512_test_epi64_mask, _mm512_testn_epi64_mask, _mm512_xor_si512,
};

use super::field::{Factor, LIMB_BITS, LIMBS, ONE, Vector, add, all, sum_of_products};
use super::table::{ENTRIES, WINDOW_BITS, select};
use super::wipe::Plain;

/// A point on the way to k·G. `minus_y` is −Y of the point or of its negative, in turns: an addition computes the new Y
/// from −Y of the old one, and takes its result as −Y of the negative sum. So nothing is ever negated but the sign of
/// the table's entry, which must be chosen at run time anyway.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Sum {
    pub x: Factor,
    pub minus_y: Factor,
    pub zz: Factor,
    pub zzz: Factor,
}

// SAFETY: vectors of integers.
unsafe impl Plain for Sum {}

/// The digit of window `row`: the index of its odd multiple, and the lanes in which it is negative.
///
/// `odd` is k + 2^259 for odd k; B of the recoding is half of that, so that window j begins at bit 7j + 1. A window b
/// stands for the digit 2b − 127.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn digit(odd: &Factor, row: usize) -> (Vector, __mmask8) {
    let bit = WINDOW_BITS * row + 1;
    let (limb, shift) = (bit / LIMB_BITS as usize, (bit % LIMB_BITS as usize) as i32);
    let next = (limb + 1).min(LIMBS - 1);
    let low = _mm512_srl_epi64(odd.0[limb], _mm_cvtsi32_si128(shift));
    // Beyond the last limb there is none; the window ends before it, so what is put there is cut off.
    let high = _mm512_sll_epi64(odd.0[next], _mm_cvtsi32_si128(LIMB_BITS as i32 - shift));
    let window = _mm512_or_si512(low, high);
    let negative = _mm512_testn_epi64_mask(window, all(ENTRIES as u64));
    let mirror = core::arch::x86_64::_mm512_maskz_mov_epi64(negative, all(ENTRIES as u64 - 1));
    let index = _mm512_and_si512(_mm512_xor_si512(window, mirror), all(ENTRIES as u64 - 1));
    (index, negative)
}

/// The table's entry for the first window as a sum.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn begin(sum: &mut Sum, odd: &Factor) {
    let (index, negative) = digit(odd, 0);
    let (x, y) = select(0, index);
    let one = Factor::broadcast(&ONE);
    *sum = Sum { x, minus_y: y.loose().negated_where(!negative, 1).carried(), zz: one, zzz: one };
}

/// Adds the table's entry for a window from the second on. 730 IFMA.
///
/// Wrong where the entry is the sum or its negative: then ZZ becomes 0. With windows taken from below that can happen
/// at the last one only, for one odd k (see [`super::EXCEPTIONAL_SCALAR`]).
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn add_window(sum: &mut Sum, odd: &Factor, row: usize) {
    let (index, negative) = digit(odd, row);
    let (x2, y2) = select(row, index);
    // The sum is held as its negative in odd rows, so the entry's sign is turned as well.
    let turned: __mmask8 = if row.is_multiple_of(2) { 0xff } else { 0 };
    add_affine(sum, &x2, &y2, negative ^ turned);
}

/// madd-2008-s of the Explicit-Formulas Database with −Y for Y; y2 counts as −y2 in the lanes of the mask.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn add_affine(sum: &mut Sum, x2: &Factor, y2: &Factor, negative: __mmask8) {
    let p = x2.times_loose(&sum.zz).minus(&sum.x.0).plus_p(2).carried();
    let r = y2.times_loose(&sum.zzz).negated_where(negative, 2).plus(&sum.minus_y.0).carried();
    let pp = p.squared();
    let ppp = p.times(&pp);
    let q = sum.x.times(&pp);
    let x = r.squared_loose().minus(&ppp.0).minus(&q.0).minus(&q.0).plus_p(4).near_p();
    let step = q.loose().minus(&x.0).plus_p(2).carried();
    sum.zz = sum.zz.times(&pp);
    sum.zzz = sum.zzz.times(&ppp);
    sum.minus_y = sum_of_products(&r, &step, &sum.minus_y, &ppp);
    sum.x = x;
}

/// The lanes in which the number is even.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn even(number: &Factor) -> __mmask8 {
    !_mm512_test_epi64_mask(number.0[0], all(1))
}

/// k for odd k, n − k for even k.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn make_odd(k: &Factor) -> Factor {
    let negative = Factor::broadcast(&super::order::N).loose().minus(&k.0).carried();
    k.replaced_where(even(k), &negative)
}

/// The recoding of [`digit`].
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn recode(k: &Factor) -> Factor {
    let mut odd = make_odd(k);
    odd.0[4] = add(odd.0[4], all(1 << (LIMB_BITS - 1)));
    odd
}
