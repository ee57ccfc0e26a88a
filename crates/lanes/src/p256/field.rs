//! Eight numbers mod p = 2^256 − 2^224 + 2^192 + 2^96 − 1, five limbs of 52 bits, in Montgomery form with R = 2^260.
//!
//! Bounds, in units of p. A product of a and b is below a·b/16 + 1 after its reduction, since p < R/16. Differences get
//! a multiple of p that keeps them positive and are otherwise left as large as they are: five limbs have room for 16 p.
//! Only a point's X is brought back near p, by [`Loose::near_p`]. `p256::bounds` iterates these inequalities.

use core::arch::x86_64::{
    __m512i, __mmask8, _mm512_add_epi64, _mm512_and_si512, _mm512_cmplt_epi64_mask, _mm512_mask_blend_epi64,
    _mm512_mask_sub_epi64, _mm512_permutexvar_epi64, _mm512_set1_epi64, _mm512_setr_epi64, _mm512_setzero_si512,
    _mm512_slli_epi64, _mm512_srai_epi64, _mm512_srli_epi64, _mm512_sub_epi64, _mm512_test_epi64_mask,
};

use super::wipe::Plain;
use crate::multiply::{multiply_add_high, multiply_add_low};

/// Eight 64-bit lanes.
pub type Vector = __m512i;

pub const LIMBS: usize = 5;
pub const LIMB_BITS: u32 = 52;
pub const LIMB_MASK: u64 = (1 << LIMB_BITS) - 1;

pub const P: [u64; LIMBS] = [LIMB_MASK, (1 << 44) - 1, 0, 1 << 36, (1 << 48) - (1 << 16)];
/// 2^520 mod p: the way into Montgomery form.
pub const R_SQUARED: [u64; LIMBS] = [0x300, 0xf_ffff_fff0_0000, 0xf_fffe_ffff_fffb, 0xf_dfff_ffff_ffff, 0x4ff_ffff];
/// 2^260 mod p: one in Montgomery form.
pub const ONE: [u64; LIMBS] = [0x10, 0xf_0000_0000_0000, 0xf_ffff_ffff_ffff, 0xf_feff_ffff_ffff, 0xf_ffff];

/// Numbers that may be factors: limbs in [0, 2^52).
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Factor(pub [Vector; LIMBS]);

// SAFETY: an array of vectors of integers.
unsafe impl Plain for Factor {}

/// Numbers whose limbs have not been carried; signed, below 2^62 in size.
#[derive(Clone, Copy)]
pub struct Loose(pub [Vector; LIMBS]);

#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn all(word: u64) -> Vector {
    _mm512_set1_epi64(word.cast_signed())
}

#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn add(a: Vector, b: Vector) -> Vector {
    _mm512_add_epi64(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn sub(a: Vector, b: Vector) -> Vector {
    _mm512_sub_epi64(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn low(sum: Vector, a: Vector, b: Vector) -> Vector {
    multiply_add_low(sum, a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn high(sum: Vector, a: Vector, b: Vector) -> Vector {
    multiply_add_high(sum, a, b)
}

/// The columns of a product: `low[k]` has weight 2^(52k), `high[k]` the weight of the next column.
pub struct Columns {
    low: [Vector; 9],
    high: [Vector; 9],
}

/// Adds the products of the named limbs; two independent sums for every column hide the latency of the instruction.
macro_rules! accumulate {
    ($columns:ident, $a:ident, $b:ident: $($k:literal = $($i:literal $j:literal)+;)+) => {
        $($(
            $columns.low[$k] = low($columns.low[$k], $a.0[$i], $b.0[$j]);
            $columns.high[$k] = high($columns.high[$k], $a.0[$i], $b.0[$j]);
        )+)+
    };
}

impl Columns {
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn zero() -> Columns {
        Columns { low: [_mm512_setzero_si512(); 9], high: [_mm512_setzero_si512(); 9] }
    }

    /// Adds a·b: 50 IFMA.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn add_product(&mut self, a: &Factor, b: &Factor) {
        accumulate! { self, a, b:
            0 = 0 0;
            1 = 0 1 1 0;
            2 = 0 2 1 1 2 0;
            3 = 0 3 1 2 2 1 3 0;
            4 = 0 4 1 3 2 2 3 1 4 0;
            5 = 1 4 2 3 3 2 4 1;
            6 = 2 4 3 3 4 2;
            7 = 3 4 4 3;
            8 = 4 4;
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn sums(&self) -> [Vector; 10] {
        let (l, h) = (&self.low, &self.high);
        [
            l[0],
            add(l[1], h[0]),
            add(l[2], h[1]),
            add(l[3], h[2]),
            add(l[4], h[3]),
            add(l[5], h[4]),
            add(l[6], h[5]),
            add(l[7], h[6]),
            add(l[8], h[7]),
            h[8],
        ]
    }
}

/// The columns of a²: 30 IFMA; what lies off the diagonal is doubled once, as a sum.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn square_columns(a: &Factor) -> [Vector; 10] {
    let mut off = Columns::zero();
    accumulate! { off, a, a:
        1 = 0 1;
        2 = 0 2;
        3 = 0 3 1 2;
        4 = 0 4 1 3;
        5 = 1 4 2 3;
        6 = 2 4;
        7 = 3 4;
    }
    let s = off.sums();
    let zero = _mm512_setzero_si512();
    [
        low(zero, a.0[0], a.0[0]),
        high(add(s[1], s[1]), a.0[0], a.0[0]),
        low(add(s[2], s[2]), a.0[1], a.0[1]),
        high(add(s[3], s[3]), a.0[1], a.0[1]),
        low(add(s[4], s[4]), a.0[2], a.0[2]),
        high(add(s[5], s[5]), a.0[2], a.0[2]),
        low(add(s[6], s[6]), a.0[3], a.0[3]),
        high(add(s[7], s[7]), a.0[3], a.0[3]),
        low(add(s[8], s[8]), a.0[4], a.0[4]),
        high(zero, a.0[4], a.0[4]),
    ]
}

/// One step of the reduction: −1/p = 1 mod 2^52, so the quotient is the limb itself; p's part below 2^96 is 2^96 − 1,
/// so the limb cancels and its 2^96-fold is added.
macro_rules! reduce_step {
    ($t:ident, $i:literal) => {
        let quotient = $t[$i];
        let carry = _mm512_srli_epi64::<LIMB_BITS>(quotient);
        $t[$i + 1] = add(low($t[$i + 1], quotient, all(1 << 44)), carry);
        $t[$i + 2] = high($t[$i + 2], quotient, all(1 << 44));
        $t[$i + 3] = low($t[$i + 3], quotient, all(P[3]));
        $t[$i + 4] = low(high($t[$i + 4], quotient, all(P[3])), quotient, all(P[4]));
        $t[$i + 5] = high($t[$i + 5], quotient, all(P[4]));
    };
}

/// Columns / R mod p: 30 IFMA.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn reduce(mut t: [Vector; 10]) -> Loose {
    reduce_step!(t, 0);
    reduce_step!(t, 1);
    reduce_step!(t, 2);
    reduce_step!(t, 3);
    reduce_step!(t, 4);
    Loose([t[5], t[6], t[7], t[8], t[9]])
}

impl Loose {
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn plus(&self, other: &[Vector; LIMBS]) -> Loose {
        let (a, b) = (&self.0, other);
        Loose([add(a[0], b[0]), add(a[1], b[1]), add(a[2], b[2]), add(a[3], b[3]), add(a[4], b[4])])
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn minus(&self, other: &[Vector; LIMBS]) -> Loose {
        let (a, b) = (&self.0, other);
        Loose([sub(a[0], b[0]), sub(a[1], b[1]), sub(a[2], b[2]), sub(a[3], b[3]), sub(a[4], b[4])])
    }

    /// Adds `times`·p, limb by limb.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn plus_p(&self, times: u64) -> Loose {
        let a = &self.0;
        Loose([
            add(a[0], all(times * P[0])),
            add(a[1], all(times * P[1])),
            a[2],
            add(a[3], all(times * P[3])),
            add(a[4], all(times * P[4])),
        ])
    }

    /// `times`·p − self in the lanes of the mask, self in the others.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn negated_where(&self, mask: __mmask8, times: u64) -> Loose {
        let a = &self.0;
        Loose([
            _mm512_mask_sub_epi64(a[0], mask, all(times * P[0]), a[0]),
            _mm512_mask_sub_epi64(a[1], mask, all(times * P[1]), a[1]),
            _mm512_mask_sub_epi64(a[2], mask, all(times * P[2]), a[2]),
            _mm512_mask_sub_epi64(a[3], mask, all(times * P[3]), a[3]),
            _mm512_mask_sub_epi64(a[4], mask, all(times * P[4]), a[4]),
        ])
    }

    /// Carries; the whole must lie in [0, 16p).
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn carried(&self) -> Factor {
        let factor = self.carried_signed();
        debug_assert!(_mm512_test_epi64_mask(factor.0[4], all(!LIMB_MASK)) == 0, "a value outside [0, 2^260)");
        factor
    }

    /// Carries; the top limb keeps the sign of the whole.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn carried_signed(&self) -> Factor {
        let (a, mask) = (&self.0, all(LIMB_MASK));
        let b1 = add(a[1], _mm512_srai_epi64::<LIMB_BITS>(a[0]));
        let b2 = add(a[2], _mm512_srai_epi64::<LIMB_BITS>(b1));
        let b3 = add(a[3], _mm512_srai_epi64::<LIMB_BITS>(b2));
        let b4 = add(a[4], _mm512_srai_epi64::<LIMB_BITS>(b3));
        Factor([
            _mm512_and_si512(a[0], mask),
            _mm512_and_si512(b1, mask),
            _mm512_and_si512(b2, mask),
            _mm512_and_si512(b3, mask),
            b4,
        ])
    }

    /// Subtracts about floor(v / 2^256)·p from values v in [2^-8 p, 7.99p) and carries: a result in [0, 1.01p).
    ///
    /// The quotient is read off the uncarried top limb less 2^16, so it may be one too small and never too large, for
    /// the other limbs carry less than 2^12 into the top one.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn near_p(&self) -> Factor {
        let a = &self.0;
        let quotient = _mm512_srli_epi64::<48>(sub(a[4], all(1 << 16)));
        debug_assert!(_mm512_test_epi64_mask(quotient, all(!7)) == 0, "a value outside [0, 8p)");
        Loose([
            add(a[0], quotient),
            add(a[1], _mm512_permutexvar_epi64(quotient, multiples_of(-(1 << 44)))),
            a[2],
            add(a[3], _mm512_permutexvar_epi64(quotient, multiples_of(-(1 << 36)))),
            add(a[4], _mm512_permutexvar_epi64(quotient, multiples_of((1 << 16) - (1 << 48)))),
        ])
        .carried()
    }
}

impl Loose {
    /// Moves near p as [`Loose::near_p`] does, for values up to 15.9p; two operations more.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn near_p_from_16(&self) -> Factor {
        let a = &self.0;
        let quotient = _mm512_srli_epi64::<48>(sub(a[4], all(1 << 16)));
        debug_assert!(_mm512_test_epi64_mask(quotient, all(!15)) == 0, "a value outside [0, 16p)");
        let top = sub(_mm512_slli_epi64::<16>(quotient), _mm512_slli_epi64::<48>(quotient));
        Loose([
            add(a[0], quotient),
            sub(a[1], _mm512_slli_epi64::<44>(quotient)),
            a[2],
            sub(a[3], _mm512_slli_epi64::<36>(quotient)),
            add(a[4], top),
        ])
        .carried()
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn doubled(&self) -> Loose {
        self.plus(&self.0)
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn multiples_of(a: i64) -> Vector {
    _mm512_setr_epi64(0, a, 2 * a, 3 * a, 4 * a, 5 * a, 6 * a, 7 * a)
}

impl Factor {
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn broadcast(limbs: &[u64; LIMBS]) -> Factor {
        Factor([all(limbs[0]), all(limbs[1]), all(limbs[2]), all(limbs[3]), all(limbs[4])])
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn times_loose(&self, other: &Factor) -> Loose {
        let mut columns = Columns::zero();
        columns.add_product(self, other);
        reduce(columns.sums())
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn squared_loose(&self) -> Loose {
        reduce(square_columns(self))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn times(&self, other: &Factor) -> Factor {
        self.times_loose(other).carried()
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn squared(&self) -> Factor {
        self.squared_loose().carried()
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn loose(&self) -> Loose {
        Loose(self.0)
    }

    /// The value less `modulus`, where that is not negative.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn less_once(&self, modulus: &[u64; LIMBS]) -> Factor {
        let less = self.loose().minus(&Factor::broadcast(modulus).0).carried_signed();
        let below = _mm512_cmplt_epi64_mask(less.0[4], _mm512_setzero_si512());
        less.replaced_where(below, self)
    }

    /// `other` in the lanes of the mask, self in the others.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn replaced_where(&self, mask: __mmask8, other: &Factor) -> Factor {
        let (a, b) = (&self.0, &other.0);
        Factor([
            _mm512_mask_blend_epi64(mask, a[0], b[0]),
            _mm512_mask_blend_epi64(mask, a[1], b[1]),
            _mm512_mask_blend_epi64(mask, a[2], b[2]),
            _mm512_mask_blend_epi64(mask, a[3], b[3]),
            _mm512_mask_blend_epi64(mask, a[4], b[4]),
        ])
    }

    /// The lanes in which every limb is zero.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn zeroes(&self) -> __mmask8 {
        let or = self.0.iter().copied().reduce(|a, b| core::arch::x86_64::_mm512_or_si512(a, b));
        let or = or.unwrap_or_else(|| _mm512_setzero_si512());
        !_mm512_test_epi64_mask(or, or)
    }

    /// Out of Montgomery form and below p; for values below 16p.
    #[inline]
    #[target_feature(enable = "avx512f,avx512ifma")]
    pub fn plain(&self) -> Factor {
        self.times(&Factor::broadcast(&[1, 0, 0, 0, 0])).less_once(&P)
    }
}

/// a·b + c·d with one reduction.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn sum_of_products(a: &Factor, b: &Factor, c: &Factor, d: &Factor) -> Factor {
    let mut columns = Columns::zero();
    columns.add_product(a, b);
    columns.add_product(c, d);
    reduce(columns.sums()).carried()
}

/// a·b + 8·c² with one reduction.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn product_and_eight_squares(a: &Factor, b: &Factor, c: &Factor) -> Factor {
    let mut columns = Columns::zero();
    columns.add_product(a, b);
    let (mut sums, square) = (columns.sums(), square_columns(c));
    macro_rules! add_eightfold {
        ($($i:literal)+) => { $( sums[$i] = add(sums[$i], _mm512_slli_epi64::<3>(square[$i])); )+ };
    }
    add_eightfold!(0 1 2 3 4 5 6 7 8 9);
    reduce(sums).carried()
}

/// a·b as a call of its own, for chains in which nothing overlaps.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn multiply(a: &Factor, b: &Factor) -> Factor {
    a.times(b)
}

/// a^(2^times).
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn square_times(a: &Factor, times: u32) -> Factor {
    let mut power = *a;
    for _ in 0..times {
        power = power.squared();
    }
    power
}

/// 1/a by Fermat; zero for zero. 255 squarings, 12 products, all fixed.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn inverse(a: &Factor) -> Factor {
    let x2 = multiply(&square_times(a, 1), a);
    let x3 = multiply(&square_times(&x2, 1), a);
    let x6 = multiply(&square_times(&x3, 3), &x3);
    let x12 = multiply(&square_times(&x6, 6), &x6);
    let x15 = multiply(&square_times(&x12, 3), &x3);
    let x30 = multiply(&square_times(&x15, 15), &x15);
    let x32 = multiply(&square_times(&x30, 2), &x2);
    // p − 2 = ffffffff 00000001 00000000 00000000 00000000 ffffffff ffffffff fffffffd
    let head = multiply(&square_times(&x32, 32), a);
    let head = multiply(&square_times(&head, 128), &x32);
    let head = multiply(&square_times(&head, 32), &x32);
    let head = multiply(&square_times(&head, 30), &x30);
    multiply(&square_times(&head, 2), a)
}
