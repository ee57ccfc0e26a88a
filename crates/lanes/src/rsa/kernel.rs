//! The arithmetic: products, squares and Montgomery's reduction of eight numbers at once, in limbs of 52 bits.
//!
//! Everything works on blocks of ten limbs, of which one stays in registers while the other operand streams past ten
//! sliding accumulators. Columns are not carried before the end: a column gathers at most 4·limbs terms of 52 bits.

use super::scratch::Lanes;
use crate::multiply::{multiply_add_high, multiply_add_low};
use core::arch::x86_64::{
    __m512i, _mm_cvtsi64_si128, _mm512_add_epi64, _mm512_and_si512, _mm512_cmpeq_epi64_mask, _mm512_load_si512,
    _mm512_mask_mov_epi64, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_srai_epi64, _mm512_srl_epi64,
    _mm512_srli_epi64, _mm512_store_si512, _mm512_sub_epi64, _mm512_ternarylogic_epi64, _mm512_xor_si512,
};

type V = __m512i;

const LIMB_BITS: u32 = 52;
const LIMB_MASK: i64 = (1 << LIMB_BITS) - 1;
/// Limbs in a block.
pub(super) const BLOCK: usize = 10;
/// a | b & c, for `_mm512_ternarylogic_epi64`.
const OR_AND: i32 = 0xf8;
/// Entries of a table of powers: windows of four bits.
pub(super) const POWERS: usize = 16;

#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn lo(c: V, a: V, b: V) -> V {
    multiply_add_low(c, a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn hi(c: V, a: V, b: V) -> V {
    multiply_add_high(c, a, b)
}

/// # Safety
/// `at + i` is inside one allocation, readable and aligned.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(at: *const Lanes, i: usize) -> V {
    // SAFETY: promised by the caller; `Lanes` has the size and alignment of a vector.
    unsafe { _mm512_load_si512(at.add(i).cast()) }
}

/// # Safety
/// `at + i` is inside one allocation, writable and aligned.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store(at: *mut Lanes, i: usize, value: V) {
    // SAFETY: promised by the caller; `Lanes` has the size and alignment of a vector.
    unsafe { _mm512_store_si512(at.add(i).cast(), value) }
}

/// One streamed limb times the ten in registers, into columns `$j ..= $j + 10` of a group of ten steps.
macro_rules! step {
    ($c:ident, $a:ident, $b:ident, $j:literal; $($k:literal)*) => {
        let limb = load($a, $j);
        $( $c[$j + $k] = lo($c[$j + $k], limb, $b[$k]); )*
        $( $c[$j + $k + 1] = hi($c[$j + $k + 1], limb, $b[$k]); )*
    };
}

/// Ten streamed limbs; `$fresh` gives the columns that enter, the ten lowest columns are retired into `$t`.
macro_rules! ten_steps {
    ($c:ident, $a:ident, $b:ident, $t:ident, $fresh:expr; $($j:literal)*) => {
        $(
            $c[$j + 10] = $fresh($j + 10);
            step!($c, $a, $b, $j; 0 1 2 3 4 5 6 7 8 9);
            store($t, $j, $c[$j]);
        )*
        $( $c[$j] = $c[$j + 10]; )*
    };
}

/// Stores columns `$i`, carried, from `$out` on.
macro_rules! carry {
    ($c:ident, $carry:ident, $mask:ident, $out:ident; $($i:literal)*; $from:literal) => { $(
        let sum = _mm512_add_epi64($c[$i], $carry);
        store($out, $i - $from, _mm512_and_si512(sum, $mask));
        $carry = _mm512_srli_epi64::<LIMB_BITS>(sum);
    )* };
}

/// Ten streamed limbs; the ten lowest columns go to `$out`, carried.
macro_rules! carrying_steps {
    ($c:ident, $a:ident, $b:ident, $t:ident, $out:ident, $carry:ident, $mask:ident; $($j:literal)*) => {
        $(
            $c[$j + 10] = load($t, $j + 10);
            step!($c, $a, $b, $j; 0 1 2 3 4 5 6 7 8 9);
            carry!($c, $carry, $mask, $out; $j; 0);
        )*
        $( $c[$j] = $c[$j + 10]; )*
    };
}

/// Ten vectors from consecutive places.
macro_rules! ten {
    ($get:expr) => {
        [$get(0), $get(1), $get(2), $get(3), $get(4), $get(5), $get(6), $get(7), $get(8), $get(9)]
    };
}

/// Adds a·`$b`, 10·`$groups` limbs times ten, to columns from `$t` on, of which the ten in `$lowest` are in registers
/// and the next 10·`$loaded` in memory; the ones after them are overwritten. A macro, since a function's arrays would
/// go through memory.
macro_rules! row {
    ($t:ident, $a:ident, $b:ident, $lowest:expr, $loaded:expr, $groups:expr) => {
        let (mut t, mut a, low) = ($t, $a, $lowest);
        let zero = _mm512_setzero_si512();
        let mut c = [
            low[0], low[1], low[2], low[3], low[4], low[5], low[6], low[7], low[8], low[9], zero, zero, zero, zero,
            zero, zero, zero, zero, zero, zero,
        ];
        for _ in 0..$loaded {
            ten_steps!(c, a, $b, t, |k| load(t, k); 0 1 2 3 4 5 6 7 8 9);
            (a, t) = (a.add(10), t.add(10));
        }
        for _ in $loaded..$groups {
            ten_steps!(c, a, $b, t, |_| zero; 0 1 2 3 4 5 6 7 8 9);
            (a, t) = (a.add(10), t.add(10));
        }
        retire!(t, c; 0 1 2 3 4 5 6 7 8 9);
    };
}

macro_rules! retire {
    ($t:ident, $c:ident; $($i:literal)*) => { $( store($t, $i, $c[$i]); )* };
}

/// t := a·b for ten limbs b and 10·`groups` limbs a.
///
/// # Safety
/// `a` has 10·`groups` limbs, `b` ten, and `t` room for both.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
unsafe fn first_row(t: *mut Lanes, a: *const Lanes, b: *const Lanes, groups: usize) {
    // SAFETY: group g reads limbs 10g.. of `a` and writes columns 10g.. of `t`; ten columns follow.
    unsafe {
        let b = ten!(|i: usize| load(b, i));
        let loaded = 0;
        row!(t, a, b, ten!(|_| _mm512_setzero_si512()), loaded, groups);
    }
}

/// t += a·b for ten limbs b and 10·`groups` limbs a, where t has 10·(`loaded` + 1) columns so far.
///
/// # Safety
/// `a` has 10·`groups` limbs, `b` ten, `t` room for both, and `loaded` is `groups` or one less.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
unsafe fn further_row(t: *mut Lanes, a: *const Lanes, b: *const Lanes, loaded: usize, groups: usize) {
    // SAFETY: group g reads limbs 10g.. of `a` and writes columns 10g.. of `t`, and reads columns 10g + 10.. only while
    // g < loaded; ten columns follow.
    unsafe {
        let b = ten!(|i: usize| load(b, i));
        row!(t, a, b, ten!(|i: usize| load(t, i)), loaded, groups);
    }
}

/// One pass of the reduction: the ten lowest columns, carried, are the factor of 2^-520 that is added above them.
///
/// # Safety
/// `fold` has 10·`groups` limbs, `t` twenty more.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
unsafe fn fold_row(t: *mut Lanes, fold: *const Lanes, groups: usize) {
    // SAFETY: as for a further row whose columns all exist, and which begins ten columns further on.
    unsafe {
        let mut carry = _mm512_setzero_si512();
        let mut carried = |i| {
            let sum = _mm512_add_epi64(load(t, i), carry);
            carry = _mm512_srli_epi64::<LIMB_BITS>(sum);
            sum
        };
        let b = ten!(carried);
        let t = t.add(BLOCK);
        let mut lowest = ten!(|i: usize| load(t, i));
        lowest[0] = _mm512_add_epi64(lowest[0], carry);
        row!(t, fold, b, lowest, groups, groups);
    }
}

/// Limbs `$i` of the modulus times one quotient, into columns `$j + $i` and the next. Few at a time, since a limb stays
/// in a register between its two products.
macro_rules! multiples {
    ($c:ident, $m:ident, $q:ident, $j:literal; $($($i:literal)*;)*) => { $(
        $( $c[$j + $i] = lo($c[$j + $i], load($m, $i), $q); )*
        $( $c[$j + $i + 1] = hi($c[$j + $i + 1], load($m, $i), $q); )*
    )* };
}

/// One quotient and its product with the twenty lowest limbs of the modulus. Its lowest column becomes a multiple of
/// 2^52 by construction, so low(m_0·q) is never computed: what leaves that column is its old value, rounded up.
macro_rules! quotient {
    ($c:ident, $m:ident, $k0:ident, $round:ident, $t:ident, $q:ident; $($j:literal)*) => { $(
        let digit = lo(_mm512_setzero_si512(), $c[$j], $k0);
        store($q, $j, digit);
        let carry = _mm512_srli_epi64::<LIMB_BITS>(_mm512_add_epi64($c[$j], $round));
        $c[$j + 1] = _mm512_add_epi64($c[$j + 1], carry);
        $c[$j + 20] = load($t, $j + 20);
        let above = hi(_mm512_setzero_si512(), load($m, 0), digit);
        $c[$j + 1] = lo($c[$j + 1], load($m, 1), digit);
        $c[$j + 1] = _mm512_add_epi64($c[$j + 1], above);
        $c[$j + 2] = hi($c[$j + 2], load($m, 1), digit);
        multiples!($c, $m, digit, $j; 2 3 4 5; 6 7 8 9; 10 11 12 13; 14 15 16 17; 18 19;);
    )* };
}

/// The last pass of the reduction: ten quotients, one after the other, and their products with twenty limbs of the
/// modulus. Ten columns of the result are complete then and go to `out`, carried; the next ten do as well if they are
/// the `highest`, else they replace columns 20 to 29 of `t`.
///
/// # Safety
/// `t` has 30 columns, `m` 20 limbs, `q` room for 10, `out` for 20.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
unsafe fn last_row(out: *mut Lanes, t: *mut Lanes, m: *const Lanes, k0: *const Lanes, q: *mut Lanes, highest: bool) {
    // SAFETY: promised by the caller.
    unsafe {
        let (k0, mask, zero) = (load(k0, 0), _mm512_set1_epi64(LIMB_MASK), _mm512_setzero_si512());
        let [low, high] = [ten!(|i: usize| load(t, i)), ten!(|i: usize| load(t, i + 10))];
        let mut c = [
            low[0], low[1], low[2], low[3], low[4], low[5], low[6], low[7], low[8], low[9], high[0], high[1], high[2],
            high[3], high[4], high[5], high[6], high[7], high[8], high[9], zero, zero, zero, zero, zero, zero, zero,
            zero, zero, zero,
        ];
        quotient!(c, m, k0, mask, t, q; 0 1 2 3 4 5 6 7 8 9);
        let mut carry = zero;
        carry!(c, carry, mask, out; 10 11 12 13 14 15 16 17 18 19; 10);
        if highest {
            carry!(c, carry, mask, out; 20 21 22 23 24 25 26 27 28 29; 10);
            let _nothing = carry;
        } else {
            c[20] = _mm512_add_epi64(c[20], carry);
            retire!(t, c; 20 21 22 23 24 25 26 27 28 29);
        }
    }
}

/// The rest of the last pass: t += m·q for the quotients just found, and the columns go to `out`, carried.
///
/// # Safety
/// `m` has 10·`groups` limbs, `q` ten, `t` and `out` as many as both.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
unsafe fn carrying_row(mut out: *mut Lanes, t: *const Lanes, m: *const Lanes, q: *const Lanes, groups: usize) {
    // SAFETY: as for a further row whose columns all exist.
    unsafe {
        let (b, mask, zero) = (ten!(|i: usize| load(q, i)), _mm512_set1_epi64(LIMB_MASK), _mm512_setzero_si512());
        let (mut t, mut m, low) = (t, m, ten!(|i: usize| load(t, i)));
        let mut c = [
            low[0], low[1], low[2], low[3], low[4], low[5], low[6], low[7], low[8], low[9], zero, zero, zero, zero,
            zero, zero, zero, zero, zero, zero,
        ];
        let mut carry = zero;
        for _ in 0..groups {
            carrying_steps!(c, m, b, t, out, carry, mask; 0 1 2 3 4 5 6 7 8 9);
            (t, m, out) = (t.add(10), m.add(10), out.add(10));
        }
        carry!(c, carry, mask, out; 0 1 2 3 4 5 6 7 8 9; 0);
        let _nothing = carry;
    }
}

macro_rules! pairs {
    ($c:ident, $a:ident; $($i:literal: $($j:literal)*;)*) => { $(
        $( $c[$i + $j] = lo($c[$i + $j], $a[$i], $a[$j]); )*
        $( $c[$i + $j + 1] = hi($c[$i + $j + 1], $a[$i], $a[$j]); )*
    )* };
}

macro_rules! diagonal {
    ($c:ident, $a:ident; $($i:literal)*) => {
        $( $c[2 * $i] = lo($c[2 * $i], $a[$i], $a[$i]); )*
        $( $c[2 * $i + 1] = hi($c[2 * $i + 1], $a[$i], $a[$i]); )*
    };
}

/// t := a² for ten limbs.
///
/// # Safety
/// `a` has 10 limbs, `t` 20 columns.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
unsafe fn square_block(t: *mut Lanes, a: *const Lanes) {
    // SAFETY: promised by the caller.
    unsafe {
        let x = ten!(|i: usize| load(a, i));
        let mut c = [_mm512_setzero_si512(); 20];
        pairs!(c, x;
            0: 1 2 3 4 5 6 7 8 9;
            1: 2 3 4 5 6 7 8 9;
            2: 3 4 5 6 7 8 9;
            3: 4 5 6 7 8 9;
            4: 5 6 7 8 9;
            5: 6 7 8 9;
            6: 7 8 9;
            7: 8 9;
            8: 9;
        );
        for column in &mut c {
            *column = _mm512_add_epi64(*column, *column);
        }
        diagonal!(c, x; 0 1 2 3 4 5 6 7 8 9);
        retire!(t, c; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19);
    }
}

/// t := t + 2·`$c`.
macro_rules! add_doubled {
    ($t:ident, $c:ident; $($i:literal)*) => { $(
        store($t, $i, _mm512_add_epi64(load($t, $i), _mm512_add_epi64($c[$i], $c[$i])));
    )* };
}

/// Ten streamed limbs; twice the ten lowest columns are added to `$t`.
macro_rules! doubled_steps {
    ($c:ident, $a:ident, $b:ident, $t:ident, $zero:ident; $($j:literal)*) => {
        $(
            $c[$j + 10] = $zero;
            step!($c, $a, $b, $j; 0 1 2 3 4 5 6 7 8 9);
            add_doubled!($t, $c; $j);
        )*
        $( $c[$j] = $c[$j + 10]; )*
    };
}

/// t += 2·a·b for ten limbs b and 10·`groups` limbs a: what different blocks of a number give to its square.
///
/// # Safety
/// `a` has 10·`groups` limbs, `b` ten, `t` columns for both.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
unsafe fn doubled_row(mut t: *mut Lanes, mut a: *const Lanes, b: *const Lanes, groups: usize) {
    // SAFETY: group g reads limbs 10g.. of `a` and changes columns 10g.. of `t`; ten columns follow.
    unsafe {
        let (b, zero) = (ten!(|i: usize| load(b, i)), _mm512_setzero_si512());
        let mut c = [zero; 20];
        for _ in 0..groups {
            doubled_steps!(c, a, b, t, zero; 0 1 2 3 4 5 6 7 8 9);
            (a, t) = (a.add(10), t.add(10));
        }
        add_doubled!(t, c; 0 1 2 3 4 5 6 7 8 9);
    }
}

/// t := a·b, not carried: a column is below 2·limbs·2^52.
#[target_feature(enable = "avx512f,avx512ifma")]
pub(super) fn product(t: &mut [Lanes], a: &[Lanes], b: &[Lanes]) {
    let (limbs, groups) = (a.len(), a.len() / BLOCK);
    assert!(
        limbs == b.len() && limbs.is_multiple_of(BLOCK) && groups >= 2 && t.len() >= 2 * limbs,
        "whole blocks, equal lengths"
    );
    let (t, a, b) = (t.as_mut_ptr(), a.as_ptr(), b.as_ptr());
    for block in 0..groups {
        // SAFETY: row `block` takes limbs 10·block.. of `b` and writes columns 10·block .. 10·block + limbs + 10, of
        // which the row before has written all but the last ten.
        unsafe {
            let (t, b) = (t.add(BLOCK * block), b.add(BLOCK * block));
            if block == 0 { first_row(t, a, b, groups) } else { further_row(t, a, b, groups - 1, groups) }
        }
    }
}

/// t := a², not carried: a column is below 2·limbs·2^52.
#[target_feature(enable = "avx512f,avx512ifma")]
pub(super) fn square(t: &mut [Lanes], a: &[Lanes]) {
    let (limbs, groups) = (a.len(), a.len() / BLOCK);
    assert!(limbs.is_multiple_of(BLOCK) && groups >= 2 && t.len() >= 2 * limbs, "whole blocks, room for all columns");
    let (t, a) = (t.as_mut_ptr(), a.as_ptr());
    // The lowest columns come first, since the reduction begins with them.
    for block in 0..groups {
        // SAFETY: 2·limbs columns are 20 for each block.
        unsafe { square_block(t.add(2 * BLOCK * block), a.add(BLOCK * block)) };
    }
    for block in 0..groups - 1 {
        // SAFETY: the row takes the limbs behind the block, and as many columns and ten more from 20·block + 10 on; all
        // have been written above.
        unsafe {
            let (t, next) = (t.add(2 * BLOCK * block + BLOCK), a.add(BLOCK * (block + 1)));
            doubled_row(t, next, a.add(BLOCK * block), groups - 1 - block);
        }
    }
}

/// The constants of a reduction, lane by lane.
#[derive(Clone, Copy)]
pub(super) struct Modulus<'a> {
    pub limbs: &'a [Lanes],
    /// 2^-520 mod the modulus.
    pub fold: &'a [Lanes],
    /// -1/modulus mod 2^52.
    pub k0: &'a Lanes,
}

/// out := t/R mod m, carried, where R = 2^(52·limbs) and t has 2·limbs columns: below t/R + 2m(1 + 2^-500).
///
/// All passes but the last divide by 2^520 with t = t' + f·2^520, t/2^520 = f + t'·2^-520, where 2^-520 is a number
/// below m: their factors need no computing. It makes the value longer by one block, which the last pass, Montgomery's,
/// takes away. `q` is overwritten.
#[target_feature(enable = "avx512f,avx512ifma")]
pub(super) fn reduce(out: &mut [Lanes], t: &mut [Lanes], m: Modulus<'_>, q: &mut [Lanes; BLOCK]) {
    let (limbs, groups) = (out.len(), out.len() / BLOCK);
    assert!(limbs == m.limbs.len() && limbs == m.fold.len() && t.len() >= 2 * limbs, "one length");
    assert!(limbs.is_multiple_of(BLOCK) && groups >= 2, "whole blocks");
    let t = t.as_mut_ptr();
    // SAFETY: pass `block` reads ten columns from 10·block and writes limbs + 10 after them: the last but one ends with
    // column 2·limbs. The last begins at limbs - 10: 20 + 10 columns, then those of the limbs from 20 on.
    unsafe {
        for block in 0..groups - 1 {
            fold_row(t.add(BLOCK * block), m.fold.as_ptr(), groups);
        }
        let (last, highest) = (t.add(limbs - BLOCK), groups == 2);
        last_row(out.as_mut_ptr(), last, m.limbs.as_ptr(), m.k0, q.as_mut_ptr(), highest);
        if !highest {
            let (out, rest) = (out.as_mut_ptr().add(BLOCK), m.limbs.as_ptr().add(2 * BLOCK));
            carrying_row(out, last.add(2 * BLOCK), rest, q.as_ptr(), groups - 2);
        }
    }
}

/// a := the carried sum of columns and a number: out = t + a.
#[target_feature(enable = "avx512f")]
pub(super) fn add_carried(out: &mut [Lanes], t: &[Lanes], a: &[Lanes]) {
    let mask = _mm512_set1_epi64(LIMB_MASK);
    let mut carry = _mm512_setzero_si512();
    for (i, (out, t)) in out.iter_mut().zip(t).enumerate() {
        // SAFETY: references are valid.
        unsafe {
            let mut sum = _mm512_add_epi64(load(t, 0), carry);
            if i < a.len() {
                sum = _mm512_add_epi64(sum, load(&raw const a[i], 0));
            }
            store(out, 0, _mm512_and_si512(sum, mask));
            carry = _mm512_srli_epi64::<LIMB_BITS>(sum);
        }
    }
}

/// out := out - a + 2m, carried; a < 2m.
#[target_feature(enable = "avx512f")]
pub(super) fn subtract_from(out: &mut [Lanes], a: &[Lanes], m: &[Lanes]) {
    let mask = _mm512_set1_epi64(LIMB_MASK);
    let mut carry = _mm512_setzero_si512();
    for ((out, a), m) in out.iter_mut().zip(a).zip(m) {
        // SAFETY: references are valid.
        unsafe {
            let m = load(m, 0);
            let value = _mm512_sub_epi64(_mm512_add_epi64(load(out, 0), _mm512_add_epi64(m, m)), load(a, 0));
            let sum = _mm512_add_epi64(value, carry);
            store(out, 0, _mm512_and_si512(sum, mask));
            carry = _mm512_srai_epi64::<LIMB_BITS>(sum);
        }
    }
}

/// out := out - m where out ≥ m, lane by lane. `difference` is overwritten.
#[target_feature(enable = "avx512f")]
pub(super) fn subtract_once(out: &mut [Lanes], m: &[Lanes], difference: &mut [Lanes]) {
    let mask = _mm512_set1_epi64(LIMB_MASK);
    let mut carry = _mm512_setzero_si512();
    for ((out, m), difference) in out.iter().zip(m).zip(difference.iter_mut()) {
        // SAFETY: references are valid.
        unsafe {
            let sum = _mm512_add_epi64(_mm512_sub_epi64(load(out, 0), load(m, 0)), carry);
            store(difference, 0, _mm512_and_si512(sum, mask));
            carry = _mm512_srai_epi64::<LIMB_BITS>(sum);
        }
    }
    let not_less = _mm512_cmpeq_epi64_mask(carry, _mm512_setzero_si512());
    for (out, difference) in out.iter_mut().zip(difference.iter()) {
        // SAFETY: references are valid.
        unsafe { store(out, 0, _mm512_mask_mov_epi64(load(out, 0), not_less, load(difference, 0))) };
    }
}

/// The lanes in which two numbers are equal.
#[target_feature(enable = "avx512f")]
pub(super) fn equal_lanes(a: &[Lanes], b: &[Lanes]) -> u8 {
    // SAFETY: references are valid.
    let equal = a.iter().zip(b).map(|(a, b)| unsafe { _mm512_cmpeq_epi64_mask(load(a, 0), load(b, 0)) });
    equal.fold(0xff, |all, one| all & one)
}

/// c := c | entry & wanted. Not a move under a mask register: that would become a load under a mask, and what such a
/// load does when its mask is empty depends on the state of the page.
macro_rules! choose {
    ($c:ident, $wanted:ident, $at:ident; $($i:literal)*) => {
        $( $c[$i] = _mm512_ternarylogic_epi64::<OR_AND>($c[$i], load($at, $i), $wanted); )*
    };
}

/// out := the entry of each lane's table that four bits of its exponent name: those from bit `shift` of `word`. Every
/// entry is read, by loads that no digit decides about.
#[inline(never)]
#[target_feature(enable = "avx512f")]
pub(super) fn select(out: &mut [Lanes], table: &[Lanes], word: &Lanes, shift: usize) {
    let limbs = out.len();
    assert!(limbs.is_multiple_of(BLOCK) && table.len() == POWERS * limbs, "a table of sixteen powers");
    // SAFETY: block `block` of entry `entry` begins at limb entry·limbs + 10·block of the table, whose length was
    // checked.
    unsafe {
        let shift = _mm_cvtsi64_si128(shift as i64);
        let digit = _mm512_and_si512(_mm512_srl_epi64(load(word, 0), shift), _mm512_set1_epi64(POWERS as i64 - 1));
        for block in 0..limbs / BLOCK {
            let out = out.as_mut_ptr().add(BLOCK * block);
            let mut c = ten!(|_| _mm512_setzero_si512());
            for entry in 0..POWERS {
                // All ones where the difference is 0: only 0 - 1 is negative.
                let difference = _mm512_xor_si512(digit, _mm512_set1_epi64(entry as i64));
                let wanted = _mm512_srai_epi64::<63>(_mm512_sub_epi64(difference, _mm512_set1_epi64(1)));
                let at = table.as_ptr().add(entry * limbs + BLOCK * block);
                choose!(c, wanted, at; 0 1 2 3 4 5 6 7 8 9);
            }
            retire!(out, c; 0 1 2 3 4 5 6 7 8 9);
        }
    }
}
