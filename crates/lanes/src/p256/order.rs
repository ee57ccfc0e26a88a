//! Eight numbers mod the order n of the curve, in the shape of [`super::field`].

use core::arch::x86_64::{_mm512_add_epi64, _mm512_setzero_si512, _mm512_srli_epi64};

use super::field::{Columns, Factor, LIMB_BITS, LIMB_MASK, LIMBS, Loose, Vector, add, all, high, low, square_columns};

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

#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
fn square_times(a: &Factor, times: u32) -> Factor {
    let mut power = *a;
    for _ in 0..times {
        power = reduce(square_columns(&power));
    }
    power
}

/// The lower half of n − 2; the upper half is ffffffff 00000000 ffffffff ffffffff.
const EXPONENT_LOW: u128 = 0xbce6_faad_a717_9e84_f3b9_cac2_fc63_254f;

/// 1/a by Fermat; zero for zero. A chain for the upper half of the exponent, window 4 for the lower; all of it public.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn inverse(a: &Factor) -> Factor {
    let mut powers = [*a; 16];
    for i in 2..powers.len() {
        powers[i] = multiply(&powers[i - 1], a);
    }
    let x8 = multiply(&square_times(&powers[15], 4), &powers[15]);
    let x16 = multiply(&square_times(&x8, 8), &x8);
    let x32 = multiply(&square_times(&x16, 16), &x16);
    let head = multiply(&square_times(&x32, 64), &x32);
    let mut power = multiply(&square_times(&head, 32), &x32);
    for digit in (0..32).rev() {
        power = square_times(&power, 4);
        let exponent = (EXPONENT_LOW >> (4 * digit)) as usize & 15;
        if exponent != 0 {
            power = multiply(&power, &powers[exponent]);
        }
    }
    super::wipe::wipe(&mut powers);
    power
}
