//! Two products, or two squares, side by side: the chains of dependent multiply-adds fill each other's gaps.
//!
//! A processor looks ahead by a few hundred instructions, about two products; what is to run at the same time must
//! stand together. Worth 10 % of a shared secret against one product after the other.

use core::arch::x86_64::{__m512i, _mm512_slli_epi64};

use crate::multiply::{multiply_add_high, multiply_add_low};

use super::field::{Factor, LIMB_MASK, LIMBS, add1, double, kernel, opaque, times_9, times_19, word};

/// Two products side by side: their chains of dependent multiply-adds fill each other's gaps. Two of `Factor`, and what
/// the columns start from. A macro, since it must not become a call: the operands would go through memory.
macro_rules! multiply_two {
    ($a:expr, $b:expr, $start:expr) => {{
        use $crate::x25519::two::{add2, apart, beside, double2, hi2, lo2, times_9_2, times_19_2};
        let (a, b) = (beside($a), beside($b));
        let [h5, h6, h7, h8, h9] = $start;
        let h5 = hi2(h5, a[0], b[4]);
        let h6 = hi2(h6, a[1], b[4]);
        let h7 = hi2(h7, a[2], b[4]);
        let h8 = hi2(h8, a[3], b[4]);
        let h9 = hi2(h9, a[4], b[4]);
        let h5 = hi2(h5, a[1], b[3]);
        let h6 = hi2(h6, a[2], b[3]);
        let h7 = hi2(h7, a[3], b[3]);
        let h8 = hi2(h8, a[4], b[3]);
        let h5 = hi2(h5, a[2], b[2]);
        let h6 = hi2(h6, a[3], b[2]);
        let h7 = hi2(h7, a[4], b[2]);
        let h5 = hi2(h5, a[3], b[1]);
        let h6 = hi2(h6, a[4], b[1]);
        let h5 = hi2(h5, a[4], b[0]);
        let u0 = double2(h5);
        let u1 = double2(h6);
        let u2 = double2(h7);
        let u3 = double2(h8);
        let u4 = double2(h9);
        let u3 = lo2(u3, a[4], b[4]);
        let u2 = lo2(u2, a[3], b[4]);
        let u1 = lo2(u1, a[2], b[4]);
        let u0 = lo2(u0, a[1], b[4]);
        let u2 = lo2(u2, a[4], b[3]);
        let u1 = lo2(u1, a[3], b[3]);
        let u0 = lo2(u0, a[2], b[3]);
        let u1 = lo2(u1, a[4], b[2]);
        let u0 = lo2(u0, a[3], b[2]);
        let u0 = lo2(u0, a[4], b[1]);
        let h4 = times_9_2(u4);
        let h3 = times_9_2(u3);
        let h2 = times_9_2(u2);
        let h1 = times_9_2(u1);
        let l0 = times_19_2(u0);
        let h4 = hi2(h4, a[0], b[3]);
        let h3 = hi2(h3, a[0], b[2]);
        let h2 = hi2(h2, a[0], b[1]);
        let h1 = hi2(h1, a[0], b[0]);
        let h4 = hi2(h4, a[1], b[2]);
        let h3 = hi2(h3, a[1], b[1]);
        let h2 = hi2(h2, a[1], b[0]);
        let h4 = hi2(h4, a[2], b[1]);
        let h3 = hi2(h3, a[2], b[0]);
        let h4 = hi2(h4, a[3], b[0]);
        let l1 = add2(u1, double2(h1));
        let l2 = add2(u2, double2(h2));
        let l3 = add2(u3, double2(h3));
        let l4 = add2(u4, double2(h4));
        let l0 = lo2(l0, a[0], b[0]);
        let l1 = lo2(l1, a[0], b[1]);
        let l2 = lo2(l2, a[0], b[2]);
        let l3 = lo2(l3, a[0], b[3]);
        let l4 = lo2(l4, a[0], b[4]);
        let l1 = lo2(l1, a[1], b[0]);
        let l2 = lo2(l2, a[1], b[1]);
        let l3 = lo2(l3, a[1], b[2]);
        let l4 = lo2(l4, a[1], b[3]);
        let l2 = lo2(l2, a[2], b[0]);
        let l3 = lo2(l3, a[2], b[1]);
        let l4 = lo2(l4, a[2], b[2]);
        let l3 = lo2(l3, a[3], b[0]);
        let l4 = lo2(l4, a[3], b[1]);
        let l4 = lo2(l4, a[4], b[0]);
        apart([l0, l1, l2, l3, l4])
    }};
}

/// Two squares side by side.
macro_rules! square_two {
    ($a:expr, $start:expr) => {{
        use $crate::x25519::two::{add2, apart, beside, double2, hi2, lo2, times_4_2, times_9_2, times_19_2};
        let a = beside($a);
        let start = $start;
        let u0 = hi2(start[0], a[0], a[4]);
        let u1 = hi2(start[1], a[1], a[4]);
        let u2 = hi2(start[2], a[2], a[4]);
        let u3 = hi2(start[3], a[3], a[4]);
        let u4 = hi2(start[4], a[4], a[4]);
        let u0 = double2(hi2(u0, a[1], a[3]));
        let u1 = double2(hi2(u1, a[2], a[3]));
        let u2 = hi2(double2(u2), a[3], a[3]);
        let u3 = lo2(times_4_2(u3), a[4], a[4]);
        let u4 = double2(u4);
        let u0 = hi2(u0, a[2], a[2]);
        let u1 = double2(lo2(u1, a[2], a[4]));
        let u2 = double2(lo2(u2, a[3], a[4]));
        let u0 = lo2(u0, a[1], a[4]);
        let u1 = lo2(u1, a[3], a[3]);
        let x2 = hi2(times_4_2(u2), a[0], a[1]);
        let x3 = hi2(times_4_2(u3), a[0], a[2]);
        let x4 = hi2(times_4_2(u4), a[0], a[3]);
        let u0 = double2(lo2(u0, a[2], a[3]));
        let y1 = hi2(times_9_2(u1), a[0], a[0]);
        let x4 = hi2(x4, a[1], a[2]);
        let y2 = add2(u2, double2(x2));
        let y3 = add2(u3, double2(x3));
        let y1 = lo2(y1, a[0], a[1]);
        let y2 = lo2(y2, a[0], a[2]);
        let y3 = hi2(y3, a[1], a[1]);
        let y4 = add2(u4, double2(x4));
        let y3 = lo2(y3, a[0], a[3]);
        let y4 = lo2(y4, a[0], a[4]);
        let y3 = lo2(y3, a[1], a[2]);
        let y4 = lo2(y4, a[1], a[3]);
        apart([
            lo2(times_19_2(u0), a[0], a[0]),
            add2(u1, double2(y1)),
            lo2(add2(u2, double2(y2)), a[1], a[1]),
            add2(u3, double2(y3)),
            lo2(add2(u4, double2(y4)), a[2], a[2]),
        ])
    }};
}
pub(super) use {multiply_two, square_two};

kernel! {
    pub fn hi2(sums: [__m512i; 2], a: [__m512i; 2], b: [__m512i; 2]) -> [__m512i; 2] {
        [multiply_add_high(sums[0], a[0], b[0]), multiply_add_high(sums[1], a[1], b[1])]
    }

    pub fn lo2(sums: [__m512i; 2], a: [__m512i; 2], b: [__m512i; 2]) -> [__m512i; 2] {
        [multiply_add_low(sums[0], a[0], b[0]), multiply_add_low(sums[1], a[1], b[1])]
    }

    pub fn add2(a: [__m512i; 2], b: [__m512i; 2]) -> [__m512i; 2] {
        [add1(a[0], b[0]), add1(a[1], b[1])]
    }

    pub fn double2(a: [__m512i; 2]) -> [__m512i; 2] {
        [double(a[0]), double(a[1])]
    }

    pub fn times_4_2(a: [__m512i; 2]) -> [__m512i; 2] {
        [opaque(_mm512_slli_epi64::<2>(a[0])), opaque(_mm512_slli_epi64::<2>(a[1]))]
    }

    pub fn times_9_2(a: [__m512i; 2]) -> [__m512i; 2] {
        [times_9(a[0]), times_9(a[1])]
    }

    pub fn times_19_2(a: [__m512i; 2]) -> [__m512i; 2] {
        [times_19(a[0]), times_19(a[1])]
    }

    pub fn beside(a: [&Factor; 2]) -> [[__m512i; 2]; LIMBS] {
        let [a, b] = [&a[0].0, &a[1].0];
        [[a[0], b[0]], [a[1], b[1]], [a[2], b[2]], [a[3], b[3]], [a[4], b[4]]]
    }

    pub fn apart(a: [[__m512i; 2]; LIMBS]) -> [[__m512i; LIMBS]; 2] {
        let [l0, l1, l2, l3, l4] = a;
        [[l0[0], l1[0], l2[0], l3[0], l4[0]], [l0[1], l1[1], l2[1], l3[1], l4[1]]]
    }

    /// Start values of the columns of two products: so that the first is `Raised`, or both, or neither.
    pub fn start_two(first: u64, second: u64) -> [[__m512i; 2]; LIMBS] {
        let low = [word(8 * first * (LIMB_MASK - 18)), word(8 * second * (LIMB_MASK - 18))];
        let rest = [word(8 * first * LIMB_MASK), word(8 * second * LIMB_MASK)];
        [low, rest, rest, rest, rest]
    }

    /// The same for two squares, the first of them raised: columns 5 to 8 start with a quarter, for they are doubled
    /// twice.
    pub fn start_two_squares() -> [[__m512i; 2]; LIMBS] {
        let zero = word(0);
        let rest = [word(4 * LIMB_MASK), zero];
        [[word(4 * (LIMB_MASK - 18)), zero], rest, rest, rest, [word(8 * LIMB_MASK), zero]]
    }
}
