//! Whole batches: k·G for groups of eight, window by window through all groups, with one inversion for each lane of the
//! batch.

use super::bytes::{gather, scatter};
use super::field::{self, Factor};
use super::limits::{BatchError, LANES};
use super::order::{self, N};
use super::point::{Sum, add_window, begin, even, recode};
use super::signature::PairSlot;
use super::table::ROWS;
use super::wipe::{Plain, wipe, wipe_traces};
use crate::Ifma;

/// Working memory of a group of eight while its batch runs.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Group {
    sum: Sum,
    odd: Factor,
    scalar: Factor,
    /// The product of the denominators of this lane in the groups up to this one.
    denominators: Factor,
    /// The product of the scalars likewise.
    scalars: Factor,
}

// SAFETY: vectors of integers.
unsafe impl Plain for Group {}

impl Group {
    pub const ZERO: Group = {
        // SAFETY: all-zero vectors of integers are values.
        unsafe { core::mem::zeroed() }
    };
}

/// Does the work of [`super::nonce_pairs`]; the sizes have been checked and there is at least one group.
pub fn nonce_pairs(
    ifma: Ifma,
    scalars: &[[u8; 32]],
    groups: &mut [Group],
    slots: &mut [PairSlot],
) -> Result<(), BatchError> {
    // SAFETY: an `Ifma` exists only where the processor has these instructions.
    let result = unsafe { make_pairs(scalars, groups, slots) };
    groups.iter_mut().for_each(wipe);
    wipe_traces(ifma);
    result
}

#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
fn make_pairs(scalars: &[[u8; 32]], groups: &mut [Group], slots: &mut [PairSlot]) -> Result<(), BatchError> {
    load(scalars, groups);
    multiply_base(groups);
    for i in 1..groups.len() {
        groups[i].denominators = field::multiply(&groups[i - 1].denominators, &groups[i].sum.zz);
        groups[i].scalars = order::multiply(&groups[i - 1].scalars, &groups[i].scalar);
    }
    let last = &groups[groups.len() - 1];
    if last.denominators.plain().zeroes() != 0 {
        return Err(BatchError::Exceptional);
    }
    // The product with 1 takes the denominators' inverses out of Montgomery form, and so the x computed from them.
    // Scalars enter as they are, so each inverse is R too large twice; a sixteenth leaves 2^256 of it.
    let (denominator, scalar) = order::inverses(&last.denominators, &last.scalars);
    let mut denominator = field::multiply(&denominator, &Factor::broadcast(&[1, 0, 0, 0, 0]));
    let mut scalar = order::multiply(&scalar, &Factor::broadcast(&order::SIXTEENTH));
    let mut zeroes = 0;
    for i in (0..groups.len()).rev() {
        let group = &groups[i];
        let (mut zz, mut k) = (denominator, scalar);
        if i > 0 {
            zz = field::multiply(&denominator, &groups[i - 1].denominators);
            denominator = field::multiply(&denominator, &group.sum.zz);
            k = order::multiply(&scalar, &groups[i - 1].scalars);
            scalar = order::multiply(&scalar, &group.scalar);
        }
        let r = field::multiply(&group.sum.x, &zz).less_once(&field::P).less_once(&N);
        zeroes |= r.zeroes();
        store_pairs(&r, &k.less_once(&N), &mut slots[LANES * i..LANES * (i + 1)]);
    }
    if zeroes != 0 {
        slots.iter_mut().for_each(PairSlot::clear);
        return Err(BatchError::Exceptional);
    }
    Ok(())
}

/// The scalars into their groups, recoded; running products begin with the first.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn load(scalars: &[[u8; 32]], groups: &mut [Group]) {
    for (group, scalars) in groups.iter_mut().zip(scalars.chunks_exact(LANES)) {
        group.scalar = gather(|lane| &scalars[lane]);
        group.scalars = group.scalar;
        group.odd = recode(&group.scalar);
    }
}

/// Window by window through all groups, so that a row of the table stays in the first-level cache for all of them.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn multiply_base(groups: &mut [Group]) {
    for group in groups.iter_mut() {
        begin(&mut group.sum, &group.odd);
    }
    for row in 1..ROWS {
        for group in groups.iter_mut() {
            add_window(&mut group.sum, &group.odd, row);
        }
    }
    for group in groups.iter_mut() {
        group.denominators = group.sum.zz;
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn store_pairs(r: &Factor, k_inverse: &Factor, slots: &mut [PairSlot]) {
    let (r, mut k_inverse) = (scatter(r), scatter(k_inverse));
    for (lane, slot) in slots.iter_mut().enumerate() {
        slot.fill(r.map(|word| word[lane]), k_inverse.map(|word| word[lane]));
    }
    wipe(&mut k_inverse);
}

/// Does the work of [`super::public_keys`]; the sizes have been checked and there is at least one group.
pub fn public_keys(
    ifma: Ifma,
    scalars: &[[u8; 32]],
    groups: &mut [Group],
    keys: &mut [[u8; 65]],
) -> Result<(), BatchError> {
    // SAFETY: an `Ifma` exists only where the processor has these instructions.
    let result = unsafe { make_keys(scalars, groups, keys) };
    groups.iter_mut().for_each(wipe);
    wipe_traces(ifma);
    result
}

#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
fn make_keys(scalars: &[[u8; 32]], groups: &mut [Group], keys: &mut [[u8; 65]]) -> Result<(), BatchError> {
    load(scalars, groups);
    multiply_base(groups);
    groups[0].denominators = groups[0].sum.zzz;
    for i in 1..groups.len() {
        groups[i].denominators = field::multiply(&groups[i - 1].denominators, &groups[i].sum.zzz);
    }
    let last = &groups[groups.len() - 1];
    if last.denominators.plain().zeroes() != 0 {
        return Err(BatchError::Exceptional);
    }
    let mut denominator = field::inverse(&last.denominators);
    for i in (0..groups.len()).rev() {
        let group = &groups[i];
        let mut zzz = denominator;
        if i > 0 {
            zzz = field::multiply(&denominator, &groups[i - 1].denominators);
            denominator = field::multiply(&denominator, &group.sum.zzz);
        }
        // ZZ/ZZZ is 1/Z, and 1/ZZ is its square.
        let z = field::multiply(&group.sum.zz, &zzz);
        let x = field::multiply(&group.sum.x, &z.squared()).plain();
        let minus_y = field::multiply(&group.sum.minus_y, &zzz);
        // An even scalar was replaced by its negative, whose y is the one wanted, negated.
        let y = minus_y.loose().negated_where(!even(&group.scalar), 2).carried().plain();
        store_keys(&x, &y, &mut keys[LANES * i..LANES * (i + 1)]);
    }
    Ok(())
}

/// SEC 1 §2.3.3, uncompressed.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn store_keys(x: &Factor, y: &Factor, keys: &mut [[u8; 65]]) {
    let coordinates = [scatter(x), scatter(y)];
    for (lane, key) in keys.iter_mut().enumerate() {
        key[0] = 4;
        for (word, bytes) in key[1..].chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&coordinates[word / 4][3 - word % 4][lane].to_be_bytes());
        }
    }
}
