//! ECDH: eight scalars times eight points of other people's choice.
//!
//! The points are checked to be on the curve, whose order is the prime n, so that each has the order n. The scalar is
//! made odd (n − k has the same x) and recoded into a leading 1 and 51 odd digits from −31 to 31, five bits each. The
//! sum before a digit d is m·P with an m > 0 that 32 divides, and d·P or −d·P is the same point only if m ± d = n: only
//! at the last digit, and as m + d = k < n there, only if k = n + 2d. No k has such a last digit: k = n + 2d makes it
//! 49 + 2d or −15 + 2d, since n = 17 mod 64, and neither is d for a digit. So formulas that are not complete suffice,
//! whatever the peer sends. A Z of 0 would betray a mistake in this, and refuses the lane.

use core::arch::x86_64::{
    __mmask8, _mm_cvtsi32_si128, _mm512_and_si512, _mm512_cmpeq_epi64_mask, _mm512_cmplt_epi64_mask,
    _mm512_maskz_mov_epi64, _mm512_or_si512, _mm512_setzero_si512, _mm512_sll_epi64, _mm512_srl_epi64,
    _mm512_testn_epi64_mask, _mm512_xor_si512,
};

use super::bytes::{gather, scatter};
use super::field::{
    self, Factor, LIMB_BITS, LIMBS, ONE, P, R_SQUARED, Vector, all, multiply, product_and_eight_squares,
    sum_of_products,
};
use super::limits::LANES;
use super::point::{Sum, add_affine, make_odd};
use super::scalar::is_scalar;
use super::wipe::{Plain, wipe, wipe_traces};
use crate::Ifma;

const WINDOW_BITS: usize = 5;
const WINDOWS: usize = 51;
/// The odd multiples 1, 3 … 31.
const ENTRIES: usize = 1 << (WINDOW_BITS - 1);

/// b and the generator, in Montgomery form.
const B: [u64; LIMBS] =
    [0xd_f622_9c4b_ddfd, 0xc_a884_3090_d89c, 0x2_12ed_6acf_005c, 0x8_3415_a220_abf7, 0xc300_61dd_4874];
const GENERATOR: [[u64; LIMBS]; 2] = [
    [0x3_0d41_8a91_43c1, 0xc_4fed_b601_79e7, 0x6_2251_075b_a95f, 0x5_c669_fb73_2b77, 0x8905_f76b_5375],
    [0x5_357c_e955_60a8, 0x4_3a19_e45c_ddf2, 0x2_1f32_58b4_ab8e, 0xd_8552_e886_88dd, 0x571f_f18a_5885],
];

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Affine {
    x: Factor,
    y: Factor,
}

/// x = X/Z², y = Y/Z³. Both operations below return the negative of what they are named for: −Y is a sum of products.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Jacobian {
    x: Factor,
    y: Factor,
    z: Factor,
}

// SAFETY: vectors of integers.
unsafe impl Plain for Jacobian {}

/// The multiples of the eight points. They are as public as the points.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Multiples {
    sums: [Sum; ENTRIES],
    products: [Factor; ENTRIES],
    affine: [Affine; ENTRIES],
}

// SAFETY: vectors of integers.
unsafe impl Plain for Multiples {}

impl Multiples {
    pub const ZERO: Multiples = {
        // SAFETY: all-zero vectors of integers are values.
        unsafe { core::mem::zeroed() }
    };
}

/// As [`super::agree`].
pub fn agree(
    ifma: Ifma,
    scalars: &[[u8; 32]; LANES],
    points: &[[u8; 65]; LANES],
    multiples: &mut Multiples,
    secrets: &mut [[u8; 32]; LANES],
) -> u8 {
    // SAFETY: an `Ifma` exists only where the processor has these instructions.
    let refused = unsafe { derive(scalars, points, multiples, secrets) };
    wipe(multiples);
    wipe_traces(ifma);
    refused
}

#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
fn derive(
    scalars: &[[u8; 32]; LANES],
    points: &[[u8; 65]; LANES],
    multiples: &mut Multiples,
    secrets: &mut [[u8; 32]; LANES],
) -> u8 {
    let good_scalars = mask_of(|lane| is_scalar(&scalars[lane]));
    let (point, good_points) = checked_points(points);
    let good = good_scalars & good_points;
    // Lanes that will be refused compute with values for which the bounds hold.
    let mut odd = make_odd(&Factor::broadcast(&[1, 0, 0, 0, 0]).replaced_where(good, &gather(|lane| &scalars[lane])));
    let [x, y] = [Factor::broadcast(&GENERATOR[0]), Factor::broadcast(&GENERATOR[1])];
    let point = Affine { x: x.replaced_where(good, &point.x), y: y.replaced_where(good, &point.y) };

    fill(multiples, &point);
    let mut sum = Jacobian { x: point.x, y: point.y, z: Factor::broadcast(&ONE) };
    for window in (0..WINDOWS).rev() {
        for _ in 0..WINDOW_BITS {
            double(&mut sum);
        }
        add_window(&mut sum, &multiples.affine, &odd, window);
    }
    let good = good & !sum.z.plain().zeroes();
    let mut inverse = field::inverse(&sum.z);
    let mut x = multiply(&sum.x, &inverse.squared()).plain();
    let mut words = scatter(&x);
    for (lane, secret) in secrets.iter_mut().enumerate() {
        let keep = u64::from(good >> lane & 1).wrapping_neg();
        for (word, bytes) in secret.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&(words[3 - word][lane] & keep).to_be_bytes());
        }
    }
    wipe(&mut words);
    wipe(&mut x);
    wipe(&mut inverse);
    wipe(&mut sum);
    wipe(&mut odd);
    !good
}

fn mask_of(holds: impl Fn(usize) -> bool) -> __mmask8 {
    (0..LANES).fold(0, |mask, lane| mask | (u8::from(holds(lane)) << lane))
}

/// The points in Montgomery form, and the lanes in which they may be used: uncompressed, coordinates below p, on the
/// curve (SEC 1 §3.2.2.1; the cofactor is 1, and infinity has no uncompressed form).
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
fn checked_points(points: &[[u8; 65]; LANES]) -> (Affine, __mmask8) {
    let mut halves = [[[0; 32]; LANES]; 2];
    for (lane, point) in points.iter().enumerate() {
        halves[0][lane].copy_from_slice(&point[1..33]);
        halves[1][lane].copy_from_slice(&point[33..]);
    }
    let [x, y] = [gather(|lane| &halves[0][lane]), gather(|lane| &halves[1][lane])];
    let in_range = below_p(&x) & below_p(&y);
    let uncompressed = mask_of(|lane| points[lane][0] == 4);

    let into_form = Factor::broadcast(&R_SQUARED);
    let point = Affine { x: multiply(&x, &into_form), y: multiply(&y, &into_form) };
    // y² + 3x − x³ − b is 0.
    let cube = multiply(&point.x.squared(), &point.x);
    let left = point.y.squared().loose().plus(&point.x.loose().doubled().plus(&point.x.0).0);
    let difference = left.minus(&cube.0).minus(&Factor::broadcast(&B).0).plus_p(3).carried();
    (point, in_range & uncompressed & difference.plain().zeroes())
}

#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn below_p(number: &Factor) -> __mmask8 {
    let less = number.loose().minus(&Factor::broadcast(&P).0).carried_signed();
    _mm512_cmplt_epi64_mask(less.0[4], _mm512_setzero_si512())
}

/// The odd multiples of the points, affine. The chain P, P + 2P, … is computed on the isomorphic curve on which 2P is
/// affine; additions know nothing of the curve's coefficients.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
fn fill(multiples: &mut Multiples, point: &Affine) {
    let Multiples { sums, products, affine } = multiples;
    let one = Factor::broadcast(&ONE);
    let mut minus_twice = Jacobian { x: point.x, y: point.y, z: one };
    double(&mut minus_twice);
    let zz = minus_twice.z.squared();
    let zzz = multiply(&zz, &minus_twice.z);
    let y = multiply(&point.y, &zzz);
    sums[0] =
        Sum { x: multiply(&point.x, &zz), minus_y: y.loose().negated_where(0xff, 2).carried(), zz: one, zzz: one };
    for i in 1..ENTRIES {
        sums[i] = sums[i - 1];
        // The sums are held with alternating signs, as in k·G; what is added is −2P with its sign turned accordingly.
        let turned = if i % 2 == 1 { 0xff } else { 0 };
        add_affine(&mut sums[i], &minus_twice.x, &minus_twice.y, turned);
    }
    // Onto the curve itself: every Z there is that of 2P times larger. The first sum is the point as it came.
    affine[0] = *point;
    products[0] = one;
    for i in 1..ENTRIES {
        sums[i].zz = multiply(&sums[i].zz, &zz);
        sums[i].zzz = multiply(&sums[i].zzz, &zzz);
        products[i] = multiply(&products[i - 1], &sums[i].zzz);
    }
    let mut inverse = field::inverse(&products[ENTRIES - 1]);
    for i in (1..ENTRIES).rev() {
        let sum = &sums[i];
        let own = multiply(&inverse, &products[i - 1]);
        inverse = multiply(&inverse, &sum.zzz);
        let z = multiply(&sum.zz, &own);
        let y = multiply(&sum.minus_y, &own);
        let negative = if i % 2 == 0 { 0xff } else { 0 };
        affine[i] = Affine { x: multiply(&sum.x, &z.squared()), y: y.loose().negated_where(negative, 2).carried() };
    }
}

/// −2·sum. dbl-2001-b of the Explicit-Formulas Database but for Z3 = 2YZ; 530 IFMA.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
fn double(sum: &mut Jacobian) {
    let delta = sum.z.squared();
    let gamma = sum.y.squared_loose().plus_p(1).near_p();
    let beta = sum.x.times(&gamma);
    let less = sum.x.loose().minus(&delta.0).plus_p(2).carried();
    let more = sum.x.loose().plus(&delta.0).carried();
    let slope = less.times_loose(&more);
    let alpha = slope.doubled().plus(&slope.0).carried();
    let four_betas = beta.loose().doubled().doubled();
    let x = alpha.squared_loose().minus(&four_betas.doubled().0).plus_p(9).near_p_from_16();
    let step = x.loose().minus(&four_betas.0).plus_p(5).carried();
    sum.z = sum.y.times_loose(&sum.z).doubled().carried();
    sum.y = product_and_eight_squares(&alpha, &step, &gamma);
    sum.x = x;
}

/// −(sum − d·P) for the digit d of the window: after five doublings and this, the sum has its own sign again.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512ifma")]
fn add_window(sum: &mut Jacobian, table: &[Affine; ENTRIES], odd: &Factor, window: usize) {
    let bit = WINDOW_BITS * window + 1;
    let (limb, shift) = (bit / LIMB_BITS as usize, (bit % LIMB_BITS as usize) as i32);
    let next = (limb + 1).min(LIMBS - 1);
    let low = _mm512_srl_epi64(odd.0[limb], _mm_cvtsi32_si128(shift));
    let high = _mm512_sll_epi64(odd.0[next], _mm_cvtsi32_si128(LIMB_BITS as i32 - shift));
    let digit = _mm512_or_si512(low, high);
    let negative = _mm512_testn_epi64_mask(digit, all(ENTRIES as u64));
    let mirror = _mm512_maskz_mov_epi64(negative, all(ENTRIES as u64 - 1));
    let index = _mm512_and_si512(_mm512_xor_si512(digit, mirror), all(ENTRIES as u64 - 1));
    let entry = select(table, index);
    add(sum, &entry, !negative);
}

/// The entry of each lane's own index; reads all of them.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn select(table: &[Affine; ENTRIES], index: Vector) -> Affine {
    let mut chosen = table[0];
    for (i, entry) in table.iter().enumerate().skip(1) {
        let here = _mm512_cmpeq_epi64_mask(index, all(i as u64));
        chosen.x = chosen.x.replaced_where(here, &entry.x);
        chosen.y = chosen.y.replaced_where(here, &entry.y);
    }
    chosen
}

/// −(sum + entry), with −y of the entry for y in the lanes of the mask. 790 IFMA.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
fn add(sum: &mut Jacobian, entry: &Affine, negative: __mmask8) {
    let zz = sum.z.squared();
    let zzz = sum.z.times(&zz);
    let h = entry.x.times_loose(&zz).minus(&sum.x.0).plus_p(2).carried();
    let r = entry.y.times_loose(&zzz).negated_where(!negative, 2).plus(&sum.y.0).carried();
    let hh = h.squared();
    let hhh = h.times(&hh);
    let v = sum.x.times(&hh);
    let x = r.squared_loose().minus(&hhh.0).minus(&v.0).minus(&v.0).plus_p(4).near_p();
    let step = v.loose().minus(&x.0).plus_p(2).carried();
    sum.z = sum.z.times(&h);
    sum.y = sum_of_products(&r, &step, &sum.y, &hhh);
    sum.x = x;
}
