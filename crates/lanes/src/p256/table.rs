//! The odd multiples 1, 3 … 127 of 2^(7j)·G, j in 0..37, and their selection by secret digits.
//!
//! The table is a file in the program rather than memory filled at start: it is read-only, every process and thread
//! shares it, and no caller can forget to fill it. `examples/p256_table.rs` writes it; a test compares it with the
//! points of another library; [`checksum`] tells a damaged one and brings its pages into memory.

use core::arch::x86_64::{__m512i, _mm512_mask_blend_epi64, _mm512_permutex2var_epi64, _mm512_test_epi64_mask};

use super::field::{Factor, LIMBS, Vector, all};
use super::limits::LANES;

pub const WINDOW_BITS: usize = 7;
/// 37 windows of 7 bits cover 259 bits, more than the 256 of a scalar.
pub const ROWS: usize = 37;
/// Only odd multiples, and those below zero by their sign.
pub const ENTRIES: usize = 1 << (WINDOW_BITS - 1);
const CHECKSUM: u64 = 0xa6fb_7649_5df6_d20c;

/// x0..x4, y0..y4, 64 words each.
type Row = [[Vector; ENTRIES / LANES]; 2 * LIMBS];
const TABLE_BYTES: usize = ROWS * 2 * LIMBS * ENTRIES * 8;

// SAFETY: bytes become as many bytes of integers, for which every pattern is a value; a static has its type's
// alignment. The file is little-endian, as is x86-64.
static TABLE: [Row; ROWS] =
    unsafe { core::mem::transmute::<[u8; TABLE_BYTES], [Row; ROWS]>(*include_bytes!("table.bin")) };

/// The entries with the given indices, 0..64, of one row. Reads the whole row whatever they are.
#[inline]
#[target_feature(enable = "avx512f,avx512ifma")]
pub fn select(row: usize, index: Vector) -> (Factor, Factor) {
    let row = &TABLE[row];
    let bit4 = _mm512_test_epi64_mask(index, all(16));
    let bit5 = _mm512_test_epi64_mask(index, all(32));
    macro_rules! limb {
        ($i:expr) => {{
            let w = &row[$i];
            let a = _mm512_permutex2var_epi64(w[0], index, w[1]);
            let b = _mm512_permutex2var_epi64(w[2], index, w[3]);
            let c = _mm512_permutex2var_epi64(w[4], index, w[5]);
            let d = _mm512_permutex2var_epi64(w[6], index, w[7]);
            let ab = _mm512_mask_blend_epi64(bit4, a, b);
            let cd = _mm512_mask_blend_epi64(bit4, c, d);
            _mm512_mask_blend_epi64(bit5, ab, cd)
        }};
    }
    (
        Factor([limb!(0), limb!(1), limb!(2), limb!(3), limb!(4)]),
        Factor([limb!(5), limb!(6), limb!(7), limb!(8), limb!(9)]),
    )
}

/// Whether the table is the one that was checked when the program was built; reads all of it.
pub fn checksum() -> bool {
    let mut sum = 0xcbf2_9ce4_8422_2325u64;
    for vector in TABLE.iter().flatten().flatten() {
        // SAFETY: a vector is eight words.
        let words = unsafe { core::mem::transmute::<__m512i, [u64; LANES]>(*vector) };
        for word in words {
            sum = (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3);
            sum ^= sum >> 32;
        }
    }
    sum == CHECKSUM
}
