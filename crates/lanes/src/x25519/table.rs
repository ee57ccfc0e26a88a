//! Multiples of the base point, computed by the compiler: nothing here was generated elsewhere and pasted.
//!
//! The curve is the Edwards form of Curve25519 (RFC 7748 §4.1): −x² + y² = 1 + d·x²·y². Arithmetic here is on public
//! values only and never runs in the program, but in a test.

pub const POSITIONS: usize = 26;
pub const MULTIPLES: usize = 16;
const LIMBS: usize = 5;
const ENTRIES: usize = POSITIONS * MULTIPLES;
const LIMB_MASK: u64 = (1 << 51) - 1;

type Number = [u64; LIMBS];

/// One entry for each position p and multiple 1 ≤ m ≤ 16: the point m·2^(10p)·B as y + x, y − x and 2d·x·y. A row is
/// one limb of one of the three for all 16 multiples, which is two vectors.
#[repr(C, align(64))]
pub struct Table(pub [[[[u64; MULTIPLES]; LIMBS]; 3]; POSITIONS]);

/// A point in extended coordinates: x = X/Z, y = Y/Z, x·y = T/Z.
#[derive(Clone, Copy)]
struct Point {
    x: Number,
    y: Number,
    z: Number,
    t: Number,
}

/// The x, y and x·y of 2^250·B: where every sum starts, since the highest digit of a clamped scalar is always 1.
pub struct Start {
    pub x: Number,
    pub y: Number,
    pub t: Number,
}

#[allow(long_running_const_eval, reason = "9,000 products modulo p; about a second, instead of a file to trust")]
const BUILT: (Table, Start) = build();
pub static TABLE: Table = BUILT.0;
pub const START: Start = BUILT.1;
#[allow(long_running_const_eval, reason = "it waits for the table")]
pub const CHECKSUM: u64 = checksum(&TABLE);

/// 64-bit FNV-1a over the words: against a damaged page, not against an opponent.
pub const fn checksum(table: &Table) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < POSITIONS * 3 * LIMBS * MULTIPLES {
        let (row, multiple) = (at / MULTIPLES, at % MULTIPLES);
        sum ^= table.0[row / LIMBS / 3][row / LIMBS % 3][row % LIMBS][multiple];
        sum = sum.wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    sum
}

const ZERO: Number = [0; LIMBS];
const ONE: Number = [1, 0, 0, 0, 0];

/// All points first with a denominator, then one inversion for all of them.
const fn build() -> (Table, Start) {
    let d = quotient(&sub(&ZERO, &[121_665, 0, 0, 0, 0]), &[121_666, 0, 0, 0, 0]);
    let d2 = add(&d, &d);
    let mut points = [base_point(&d); ENTRIES];
    let mut row_base = points[0];
    let mut at = 0;
    while at < ENTRIES {
        let multiple = at % MULTIPLES;
        if multiple == 0 && at > 0 {
            let mut doublings = 0;
            while doublings < 10 {
                row_base = sum(&row_base, &row_base, &d2);
                doublings += 1;
            }
        }
        points[at] = if multiple == 0 { row_base } else { sum(&points[at - 1], &row_base, &d2) };
        at += 1;
    }

    let mut before = [ONE; ENTRIES];
    let mut product = ONE;
    at = 0;
    while at < ENTRIES {
        before[at] = product;
        product = mul(&product, &points[at].z);
        at += 1;
    }
    let mut inverse = invert(&product);
    let mut table = Table([[[[0; MULTIPLES]; LIMBS]; 3]; POSITIONS]);
    let mut start = Start { x: ZERO, y: ZERO, t: ZERO };
    while at > 0 {
        at -= 1;
        let inverse_z = mul(&inverse, &before[at]);
        inverse = mul(&inverse, &points[at].z);
        let x = mul(&points[at].x, &inverse_z);
        let y = mul(&points[at].y, &inverse_z);
        let xy = mul(&x, &y);
        let row = &mut table.0[at / MULTIPLES];
        put(&mut row[0], at % MULTIPLES, &add(&y, &x));
        put(&mut row[1], at % MULTIPLES, &sub(&y, &x));
        put(&mut row[2], at % MULTIPLES, &mul(&xy, &d2));
        if at == ENTRIES - MULTIPLES {
            start = Start { x: canonical(&x), y: canonical(&y), t: canonical(&xy) };
        }
    }
    (table, start)
}

const fn put(row: &mut [[u64; MULTIPLES]; LIMBS], multiple: usize, number: &Number) {
    let number = canonical(number);
    let mut limb = 0;
    while limb < LIMBS {
        row[limb][multiple] = number[limb];
        limb += 1;
    }
}

/// y = 4/5 and the even x that belongs to it (RFC 7748 §4.1: u = 9).
const fn base_point(d: &Number) -> Point {
    let y = quotient(&[4, 0, 0, 0, 0], &[5, 0, 0, 0, 0]);
    let yy = mul(&y, &y);
    let x2 = quotient(&sub(&yy, &ONE), &add(&mul(d, &yy), &ONE));
    // p = 5 mod 8: the root is x2^((p+3)/8), or that times the root of −1 (RFC 8032 §5.1.3).
    let mut x = power_252_3(&x2);
    x = mul(&x, &x2);
    if !equal(&mul(&x, &x), &x2) {
        let two = [2, 0, 0, 0, 0];
        // 2^((p−1)/4) = (2^(2^252 − 3))²·2^5.
        let root = power_252_3(&two);
        x = mul(&x, &mul(&mul(&root, &root), &[32, 0, 0, 0, 0]));
    }
    if canonical(&x)[0] % 2 == 1 {
        x = sub(&ZERO, &x);
    }
    Point { x, y, z: ONE, t: mul(&x, &y) }
}

/// The complete addition for a = −1 (Hisil, Wong, Carter, Dawson 2008, §3.1).
const fn sum(p: &Point, q: &Point, d2: &Number) -> Point {
    let a = mul(&sub(&p.y, &p.x), &sub(&q.y, &q.x));
    let b = mul(&add(&p.y, &p.x), &add(&q.y, &q.x));
    let c = mul(&mul(&p.t, d2), &q.t);
    let zz = mul(&p.z, &q.z);
    let two_zz = add(&zz, &zz);
    let (e, f, g, h) = (sub(&b, &a), sub(&two_zz, &c), add(&two_zz, &c), add(&b, &a));
    Point { x: mul(&e, &f), y: mul(&g, &h), z: mul(&f, &g), t: mul(&e, &h) }
}

const fn quotient(a: &Number, b: &Number) -> Number {
    mul(a, &invert(b))
}

const fn invert(a: &Number) -> Number {
    // p − 2 = 8·(2^252 − 3) + 3.
    mul(&squares(&power_252_3(a), 3), &mul(&squares(a, 1), a))
}

/// a^(2^252 − 3): 250 ones, a zero, a one.
const fn power_252_3(a: &Number) -> Number {
    let mut power = *a;
    let mut bit = 1;
    while bit < 250 {
        power = mul(&squares(&power, 1), a);
        bit += 1;
    }
    mul(&squares(&power, 2), a)
}

const fn squares(a: &Number, count: usize) -> Number {
    let mut a = *a;
    let mut done = 0;
    while done < count {
        a = mul(&a, &a);
        done += 1;
    }
    a
}

const fn add(a: &Number, b: &Number) -> Number {
    carried([a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3], a[4] + b[4]])
}

/// 4p is added, so that no limb is negative.
const fn sub(a: &Number, b: &Number) -> Number {
    const FOUR: u64 = 4 * LIMB_MASK;
    carried([a[0] + (FOUR - 72) - b[0], a[1] + FOUR - b[1], a[2] + FOUR - b[2], a[3] + FOUR - b[3], a[4] + FOUR - b[4]])
}

const fn carried(a: Number) -> Number {
    let mut a = a;
    let mut limb = 0;
    while limb < 4 {
        a[limb + 1] += a[limb] >> 51;
        a[limb] &= LIMB_MASK;
        limb += 1;
    }
    a[0] += 19 * (a[4] >> 51);
    a[4] &= LIMB_MASK;
    a
}

const fn mul(a: &Number, b: &Number) -> Number {
    let [a0, a1, a2, a3, a4] = [a[0] as u128, a[1] as u128, a[2] as u128, a[3] as u128, a[4] as u128];
    let [b0, b1, b2, b3, b4] = [b[0] as u128, b[1] as u128, b[2] as u128, b[3] as u128, b[4] as u128];
    let (c1, c2, c3, c4) = (19 * b1, 19 * b2, 19 * b3, 19 * b4);
    let r0 = a0 * b0 + a1 * c4 + a2 * c3 + a3 * c2 + a4 * c1;
    let r1 = a0 * b1 + a1 * b0 + a2 * c4 + a3 * c3 + a4 * c2 + (r0 >> 51);
    let r2 = a0 * b2 + a1 * b1 + a2 * b0 + a3 * c4 + a4 * c3 + (r1 >> 51);
    let r3 = a0 * b3 + a1 * b2 + a2 * b1 + a3 * b0 + a4 * c4 + (r2 >> 51);
    let r4 = a0 * b4 + a1 * b3 + a2 * b2 + a3 * b1 + a4 * b0 + (r3 >> 51);
    let mask = LIMB_MASK as u128;
    let r0 = (r0 & mask) + 19 * (r4 >> 51);
    let r1 = (r1 & mask) + (r0 >> 51);
    [(r0 & mask) as u64, r1 as u64, (r2 & mask) as u64, (r3 & mask) as u64, (r4 & mask) as u64]
}

const fn equal(a: &Number, b: &Number) -> bool {
    let (a, b) = (canonical(a), canonical(b));
    a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3] && a[4] == b[4]
}

/// Below p: twice carried it is below 2^255, and adding 19 carries out of the top exactly if it is p or more.
const fn canonical(a: &Number) -> Number {
    let a = carried(carried(*a));
    let mut above = a[0] + 19;
    let mut limb = 1;
    while limb < LIMBS {
        above = a[limb] + (above >> 51);
        limb += 1;
    }
    let mut a = a;
    a[0] += 19 * (above >> 51);
    a = carried([a[0], a[1], a[2], a[3], a[4]]);
    // The carry out of the top was the 2^255 to be dropped; `carried` has added it again as 19.
    a[0] -= 19 * (above >> 51);
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_what_running_code_computes() {
        let (table, start) = build();
        assert_eq!(table.0, TABLE.0);
        assert_eq!((start.x, start.y, start.t), (START.x, START.y, START.t));
        assert_eq!(checksum(&TABLE), CHECKSUM);
    }

    #[test]
    fn every_entry_is_a_point_of_the_curve_and_twice_the_entry_of_half_its_multiple() {
        let d = quotient(&sub(&ZERO, &[121_665, 0, 0, 0, 0]), &[121_666, 0, 0, 0, 0]);
        let half = invert(&[2, 0, 0, 0, 0]);
        for position in &TABLE.0 {
            let number = |part: usize, at: usize| -> Number { std::array::from_fn(|limb| position[part][limb][at]) };
            let affine = |at: usize| {
                let (plus, minus) = (number(0, at), number(1, at));
                (mul(&half, &sub(&plus, &minus)), mul(&half, &add(&plus, &minus)))
            };
            for at in 0..MULTIPLES {
                let (x, y) = affine(at);
                let (xx, yy) = (mul(&x, &x), mul(&y, &y));
                let dxxyy = mul(&d, &mul(&xx, &yy));
                assert!(equal(&sub(&yy, &xx), &add(&ONE, &dxxyy)));
                assert!(equal(&number(2, at), &mul(&add(&d, &d), &mul(&x, &y))));
                if at % 2 == 1 {
                    // The affine doubling: x' = 2xy / (1 + dx²y²), y' = (y² + x²) / (1 − dx²y²), from half of at + 1.
                    let (x, y) = affine(at / 2);
                    let (xx, yy, xy) = (mul(&x, &x), mul(&y, &y), mul(&x, &y));
                    let dxxyy = mul(&d, &mul(&xx, &yy));
                    let (x2, y2) = affine(at);
                    assert!(equal(&mul(&x2, &add(&ONE, &dxxyy)), &add(&xy, &xy)));
                    assert!(equal(&mul(&y2, &sub(&ONE, &dxxyy)), &add(&yy, &xx)));
                }
            }
        }
    }
}
