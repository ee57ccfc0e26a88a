//! Eight numbers mod the order n of the curve, in the shape of [`super::field`].

use core::arch::x86_64::{_mm512_add_epi64, _mm512_setzero_si512, _mm512_srli_epi64};

use super::field::{
    self, Columns, Factor, LIMB_BITS, LIMB_MASK, LIMBS, Loose, Vector, add, all, high, low, square_columns,
};
use super::wipe::wipe;

pub const N: [u64; LIMBS] =
    [0x9_cac2_fc63_2551, 0xa_da71_79e8_4f3b, 0xf_ffff_ffbc_e6fa, 0xf_ffff_ffff, 0xffff_ffff_0000];
/// −1/n mod 2^52.
const QUOTIENT_FACTOR: u64 = 0x1_c8aa_ee00_bc4f;
/// 1/16 mod n, which is 2^256 / R.
pub const SIXTEENTH: [u64; LIMBS] =
    [0xe_2e16_cc9c_f2fc, 0x2cca_6249_ca47, 0xf_ffff_ffc1_188b, 0xe_ffff_ffff, 0xefff_ffff_1000];

/// One step of the reduction. low(n_0·q) is not computed: it cancels what is in the limb, and so carries one unless
/// the limb was zero already.
macro_rules! reduce_step {
    ($t:ident, $i:literal) => {
        let quotient = low(_mm512_setzero_si512(), $t[$i], all(QUOTIENT_FACTOR));
        let carry = _mm512_srli_epi64::<LIMB_BITS>(_mm512_add_epi64($t[$i], all(LIMB_MASK)));
        $t[$i + 1] = add(low(high($t[$i + 1], quotient, all(N[0])), quotient, all(N[1])), carry);
        $t[$i + 2] = low(high($t[$i + 2], quotient, all(N[1])), quotient, all(N[2]));
        $t[$i + 3] = low(high($t[$i + 3], quotient, all(N[2])), quotient, all(N[3]));
        $t[$i + 4] = low(high($t[$i + 4], quotient, all(N[3])), quotient, all(N[4]));
        $t[$i + 5] = high($t[$i + 5], quotient, all(N[4]));
    };
}

#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn reduce(mut t: [Vector; 10]) -> Factor {
    reduce_step!(t, 0);
    reduce_step!(t, 1);
    reduce_step!(t, 2);
    reduce_step!(t, 3);
    reduce_step!(t, 4);
    Loose([t[5], t[6], t[7], t[8], t[9]]).carried()
}

/// a·b / R mod n, below 1.25n for factors below 2n.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn multiply(a: &Factor, b: &Factor) -> Factor {
    let mut columns = Columns::zero();
    columns.add_product(a, b);
    reduce(columns.sums())
}

/// The digits of p − 2 and n − 2, four bits each, from the top.
static EXPONENTS: [[u8; 2]; 64] = {
    let p_minus_2 = [0xffff_ffff_0000_0001u64, 0, 0x0000_0000_ffff_ffff, 0xffff_ffff_ffff_fffd];
    let n_minus_2 = [0xffff_ffff_0000_0000u64, 0xffff_ffff_ffff_ffff, 0xbce6_faad_a717_9e84, 0xf3b9_cac2_fc63_254f];
    let (mut digits, mut i) = ([[0; 2]; 64], 0);
    while i < digits.len() {
        let (word, shift) = (i / 16, 60 - 4 * (i % 16));
        digits[i] = [(p_minus_2[word] >> shift) as u8 & 15, (n_minus_2[word] >> shift) as u8 & 15];
        i += 1;
    }
    digits
};

/// 1/a mod p and 1/b mod n by Fermat, side by side: each is a chain in which nothing overlaps, so the second costs
/// little. Zero for zero. Window 4; the exponents are public, so zero digits are passed over and table rows picked.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn inverses(a: &Factor, b: &Factor) -> (Factor, Factor) {
    let mut powers_a = [*a; 16];
    let mut powers_b = [*b; 16];
    for i in 2..16 {
        powers_a[i] = field::multiply(&powers_a[i - 1], a);
        powers_b[i] = multiply(&powers_b[i - 1], b);
    }
    let (mut of_a, mut of_b) = (powers_a[15], powers_b[15]);
    for [digit_a, digit_b] in EXPONENTS.iter().copied().skip(1) {
        for _ in 0..4 {
            of_a = of_a.squared();
            of_b = reduce(square_columns(&of_b));
        }
        if digit_a != 0 {
            of_a = field::multiply(&of_a, &powers_a[usize::from(digit_a)]);
        }
        if digit_b != 0 {
            of_b = multiply(&of_b, &powers_b[usize::from(digit_b)]);
        }
    }
    wipe(&mut powers_a);
    wipe(&mut powers_b);
    (of_a, of_b)
}
