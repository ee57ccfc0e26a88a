//! Writes `src/p256/table.bin`: the odd multiples 1, 3 … 127 of 2^(7j)·G for j in 0..37, by schoolbook arithmetic.
//!
//! Layout: 37 rows; a row is 10 limbs (x0..x4, y0..y4, radix 2^52, times 2^260 mod p); a limb is 64 words, one for each
//! multiple, little-endian. The test `the_table_holds_the_odd_multiples` compares it with another library's points.

use num_bigint::BigUint;

const ROWS: usize = 37;
const ENTRIES: usize = 64;
const WINDOW_BITS: usize = 7;

fn number(hex: &[u8]) -> BigUint {
    BigUint::parse_bytes(hex, 16).expect("a hexadecimal constant")
}

struct Curve {
    p: BigUint,
}

type Point = (BigUint, BigUint);

impl Curve {
    fn minus(&self, a: &BigUint, b: &BigUint) -> BigUint {
        (a + &self.p - b) % &self.p
    }

    fn through(&self, slope: BigUint, a: &Point, b: &Point) -> Point {
        let x = self.minus(&self.minus(&(&slope * &slope % &self.p), &a.0), &b.0);
        let y = self.minus(&(slope * self.minus(&a.0, &x) % &self.p), &a.1);
        (x, y)
    }

    fn over(&self, numerator: BigUint, denominator: BigUint) -> BigUint {
        numerator * denominator.modpow(&(&self.p - 2u32), &self.p) % &self.p
    }

    fn double(&self, a: &Point) -> Point {
        let tangent = self.minus(&(&a.0 * &a.0 * 3u32 % &self.p), &BigUint::from(3u32));
        self.through(self.over(tangent, &a.1 * 2u32 % &self.p), a, a)
    }

    fn add(&self, a: &Point, b: &Point) -> Point {
        self.through(self.over(self.minus(&b.1, &a.1), self.minus(&b.0, &a.0)), a, b)
    }

    fn limbs(&self, value: &BigUint) -> [u64; 5] {
        let form = (value << 260u32) % &self.p;
        core::array::from_fn(|i| {
            let limb = (&form >> (52 * i)) & BigUint::from((1u64 << 52) - 1);
            limb.iter_u64_digits().next().unwrap_or(0)
        })
    }
}

fn main() -> std::io::Result<()> {
    let curve = Curve { p: number(b"ffffffff00000001000000000000000000000000ffffffffffffffffffffffff") };
    let mut base = (
        number(b"6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296"),
        number(b"4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5"),
    );
    let mut bytes = Vec::new();
    for _ in 0..ROWS {
        let twice = curve.double(&base);
        let mut entries = vec![base.clone()];
        while entries.len() < ENTRIES {
            entries.push(curve.add(&entries[entries.len() - 1], &twice));
        }
        let limbs: Vec<_> = entries.iter().map(|(x, y)| [curve.limbs(x), curve.limbs(y)].concat()).collect();
        for limb in 0..10 {
            limbs.iter().for_each(|entry| bytes.extend(entry[limb].to_le_bytes()));
        }
        (0..WINDOW_BITS).for_each(|_| base = curve.double(&base));
    }
    let mut sum = 0xcbf2_9ce4_8422_2325u64;
    for word in bytes.chunks_exact(8) {
        sum = (sum ^ u64::from_le_bytes(word.try_into().expect("eight bytes"))).wrapping_mul(0x0000_0100_0000_01b3);
        sum ^= sum >> 32;
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/p256/table.bin");
    std::fs::write(path, &bytes)?;
    println!("{path}: {} bytes, checksum {sum:#018x}", bytes.len());
    Ok(())
}
