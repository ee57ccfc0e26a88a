//! Multiples of the base point for eight scalars at once, on the Edwards form of the curve.
//!
//! A clamped scalar k is the sum of 52 digits −16 ≤ d < 16 times 32^i. The odd digits are added up from table rows of
//! 2^(10p)·B, five doublings follow, then the even digits (Pippenger's order, as in the ref10 code of Ed25519).

use core::arch::x86_64::{
    __m512i, _mm_cvtsi64_si128, _mm512_add_epi64, _mm512_and_si512, _mm512_cmplt_epu64_mask, _mm512_cmpneq_epi64_mask,
    _mm512_load_si512, _mm512_mask_add_epi64, _mm512_mask_blend_epi64, _mm512_mask_sub_epi64, _mm512_mask_xor_epi64,
    _mm512_maskz_permutex2var_epi64, _mm512_or_si512, _mm512_set1_epi64, _mm512_sll_epi64, _mm512_srl_epi64,
    _mm512_sub_epi64,
};

use super::field::{
    Columns, Factor, LIMBS, Raised, Sum, add, carry, double_and, invert, kernel, mul, one, product, raise, select,
    splat, square, square_raised, sub, sub_more, to_words, word,
};
use super::table::{POSITIONS, START, TABLE};
use super::two::{multiply_two, start_two};
use crate::wipe::{Blank, Wiped, wipe};

/// Groups of eight keys that share one inversion.
pub const GROUPS_MAX: usize = 8;

/// x = X/Z, y = Y/Z, x·y = T/Z.
#[derive(Clone, Copy)]
struct Point {
    x: Columns,
    y: Raised,
    z: Raised,
    t: Columns,
}

// SAFETY: vectors only.
unsafe impl Blank for Point {}

/// The numbers that are added: y + x, y − x, 2d·x·y, the last with limbs below 2^52.
struct Entry {
    plus: Factor,
    minus: Factor,
    product: Factor,
}

/// The values that a group needs until the shared inverse is there: u = top / bottom, and the product of the
/// bottoms before.
#[derive(Clone, Copy)]
struct Fraction {
    top: Factor,
    bottom: Factor,
    before: Factor,
}

// SAFETY: vectors only.
unsafe impl Blank for Fraction {}

/// The u-coordinates of the base point's multiples by clamped scalars, in place: at most `GROUPS_MAX` groups of four
/// words of 64 bits.
#[target_feature(enable = "avx512f,avx512ifma,bmi2")]
pub fn multiples(groups: &mut [[__m512i; 4]]) {
    let mut fractions = [Fraction { top: one(), bottom: one(), before: one() }; GROUPS_MAX];
    let fractions = &mut fractions[..groups.len().min(GROUPS_MAX)];
    let mut bottoms = Wiped::new(one());
    for (group, fraction) in groups.iter().zip(fractions.iter_mut()) {
        let point = Wiped::new(multiple(group));
        // u = (1 + y) / (1 − y). The bottom is zero for the neutral element only, which no clamped scalar gives: none
        // is a multiple of the base point's order and of 8.
        let z = Columns(carry(&Sum(point.z.0)).0);
        fraction.top = carry(&add(&point.y, &z));
        fraction.bottom = carry(&sub(&point.y, &z));
        fraction.before = *bottoms;
        *bottoms = product(&bottoms, &fraction.bottom);
    }
    let mut inverse = Wiped::new(invert(&bottoms));
    for (group, fraction) in groups.iter_mut().zip(fractions.iter()).rev() {
        // The bottom above is y − z: minus u.
        let minus = product(&fraction.top, &product(&inverse, &fraction.before));
        *inverse = product(&inverse, &fraction.bottom);
        let zero = raise(&Factor([word(0); LIMBS]));
        (*group, _) = to_words(&carry(&sub(&zero, &Columns(minus.0))));
    }
    wipe(fractions);
}

/// One group. The highest digit is 1 for every clamped scalar, so the sum of the odd ones starts from a constant.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma,bmi2")]
fn multiple(scalars: &[__m512i; 4]) -> Point {
    let digits = Wiped::new(windows(scalars));
    let mut point = Point {
        x: Columns(splat(&START.x).0),
        y: raise(&splat(&START.y)),
        z: raise(&one()),
        t: Columns(splat(&START.t).0),
    };
    for position in (0..POSITIONS - 1).rev() {
        point = added(&point, &entry(position, window(&digits, 2 * position + 1)));
    }
    for _ in 0..5 {
        point = doubled(&point);
    }
    for position in (0..POSITIONS).rev() {
        point = added(&point, &entry(position, window(&digits, 2 * position)));
    }
    point
}

/// The scalar plus 16 times the sum of all 32^i: its windows of five bits are the digits plus 16, without a carry from
/// digit to digit.
const RAISE: [u64; 5] = {
    let mut words = [0; 5];
    let mut bit = 4;
    while bit < 260 {
        words[bit / 64] |= 1 << (bit % 64);
        bit += 5;
    }
    words
};

kernel! {
    fn windows(scalars: &[__m512i; 4]) -> [__m512i; 5] {
        let mut words = [word(0); 5];
        let mut carry_in = word(0);
        for (at, out) in words.iter_mut().enumerate() {
            let addend = word(RAISE[at]);
            let sum = if at < 4 { _mm512_add_epi64(scalars[at], addend) } else { addend };
            let carries = _mm512_cmplt_epu64_mask(sum, addend);
            *out = _mm512_add_epi64(sum, carry_in);
            let carries = carries | _mm512_cmplt_epu64_mask(*out, carry_in);
            carry_in = _mm512_mask_add_epi64(word(0), carries, word(0), word(1));
        }
        words
    }

    /// Five bits from a public place.
    fn window(words: &[__m512i; 5], digit: usize) -> __m512i {
        let (at, shift) = (5 * digit / 64, (5 * digit % 64) as i64);
        let low = _mm512_srl_epi64(words[at], _mm_cvtsi64_si128(shift));
        let high = _mm512_sll_epi64(words[(at + 1).min(4)], _mm_cvtsi64_si128(64 - shift));
        _mm512_and_si512(_mm512_or_si512(low, high), word(31))
    }

    /// The multiple for digits raised by 16. A permute over both vectors of a row reads all of it, whatever the digit;
    /// zero is the neutral element (1, 1, 0), and a negative point has the first two exchanged and the third negated.
    fn entry(position: usize, raised: __m512i) -> Entry {
        let negative = _mm512_cmplt_epu64_mask(raised, word(16));
        let nonzero = _mm512_cmpneq_epi64_mask(raised, word(16));
        // The low four bits choose: d − 1, or −d − 1 = the complement of d.
        let less = _mm512_sub_epi64(raised, word(1));
        let index = _mm512_mask_xor_epi64(less, negative, raised, _mm512_set1_epi64(-1));
        let row = &TABLE.0[position];
        let (mut plus, mut minus) = (looked_up(&row[0], index, nonzero), looked_up(&row[1], index, nonzero));
        let product = looked_up(&row[2], index, nonzero);
        plus.0[0] = _mm512_mask_blend_epi64(nonzero, word(1), plus.0[0]);
        minus.0[0] = _mm512_mask_blend_epi64(nonzero, word(1), minus.0[0]);
        Entry {
            plus: select(negative, &plus, &minus),
            minus: select(negative, &minus, &plus),
            product: negated(negative, &product),
        }
    }

    fn looked_up(row: &[[u64; 16]; LIMBS], index: __m512i, nonzero: u8) -> Factor {
        Factor([
            permuted(&row[0], index, nonzero),
            permuted(&row[1], index, nonzero),
            permuted(&row[2], index, nonzero),
            permuted(&row[3], index, nonzero),
            permuted(&row[4], index, nonzero),
        ])
    }

    fn permuted(limbs: &[u64; 16], index: __m512i, nonzero: u8) -> __m512i {
        // SAFETY: both halves of the row lie inside it, and 128-byte rows in a table aligned to 64 bytes are aligned.
        let (low, high) = unsafe {
            (_mm512_load_si512(limbs.as_ptr().cast()), _mm512_load_si512(limbs.as_ptr().add(8).cast()))
        };
        _mm512_maskz_permutex2var_epi64(nonzero, low, index, high)
    }

    /// 2p minus the table's limbs (each at most 51 bits) in the lanes of the mask: between 2^51 − 38 and 2^52 − 2.
    fn negated(mask: u8, a: &Factor) -> Factor {
        let (low, rest) = (word((1 << 52) - 38), word((1 << 52) - 2));
        Factor([
            _mm512_mask_sub_epi64(a.0[0], mask, low, a.0[0]),
            _mm512_mask_sub_epi64(a.0[1], mask, rest, a.0[1]),
            _mm512_mask_sub_epi64(a.0[2], mask, rest, a.0[2]),
            _mm512_mask_sub_epi64(a.0[3], mask, rest, a.0[3]),
            _mm512_mask_sub_epi64(a.0[4], mask, rest, a.0[4]),
        ])
    }

    /// The complete addition for a = −1 and a second point with Z = 1 (Hisil, Wong, Carter, Dawson 2008, §3.1).
    fn added(p: &Point, q: &Entry) -> Point {
        let (less, more) = (carry(&sub(&p.y, &p.x)), carry(&add(&p.y, &p.x)));
        let [b, a] = multiply_two!([&more, &less], [&q.plus, &q.minus], start_two(1, 0));
        let (b, a) = (Raised(b), Columns(a));
        let c = mul(&carry(&Sum(p.t.0)), &q.product);
        let (f, g) = double_and(&p.z, &c);
        let (f, g) = (carry(&f), carry(&g));
        let (e, h) = (carry(&sub(&b, &a)), carry(&add(&b, &a)));
        let [x, t] = multiply_two!([&e, &e], [&f, &h], start_two(0, 0));
        let [y, z] = multiply_two!([&g, &f], [&h, &g], start_two(1, 1));
        Point { x: Columns(x), y: Raised(y), z: Raised(z), t: Columns(t) }
    }

    /// Doubling for a = −1 (same paper, §3.3), all four of its intermediate values negated.
    fn doubled(p: &Point) -> Point {
        let (x, y, z) = (carry(&Sum(p.x.0)), carry(&Sum(p.y.0)), carry(&Sum(p.z.0)));
        let (a, b) = (square_raised(&x), square(&y));
        let c = square(&z);
        let sum = square(&carry(&add(&p.y, &p.x)));
        let (h, g) = (add(&a, &b), sub(&a, &b));
        let e = carry(&sub_more(&h, &sum));
        let f = carry(&Sum([
            _mm512_add_epi64(g.0[0], _mm512_add_epi64(c.0[0], c.0[0])),
            _mm512_add_epi64(g.0[1], _mm512_add_epi64(c.0[1], c.0[1])),
            _mm512_add_epi64(g.0[2], _mm512_add_epi64(c.0[2], c.0[2])),
            _mm512_add_epi64(g.0[3], _mm512_add_epi64(c.0[3], c.0[3])),
            _mm512_add_epi64(g.0[4], _mm512_add_epi64(c.0[4], c.0[4])),
        ]));
        let (g, h) = (carry(&g), carry(&h));
        let [x, t] = multiply_two!([&e, &e], [&f, &h], start_two(0, 0));
        let [y, z] = multiply_two!([&g, &f], [&h, &g], start_two(1, 1));
        Point { x: Columns(x), y: Raised(y), z: Raised(z), t: Columns(t) }
    }
}
