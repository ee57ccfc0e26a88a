//! Whether both kernels give the right answers in every lane: run once at the start, before anything relies on them.

use core::hint::black_box;

use super::table::{CHECKSUM, TABLE, checksum};
use super::{KEY_BYTES, LANES, derive, public_keys};
use crate::Ifma;

type Key = [u8; KEY_BYTES];

struct Answer {
    scalar: Key,
    point: Key,
    secret: Key,
}

const BASE: Key = key("0900000000000000000000000000000000000000000000000000000000000000");

/// RFC 7748 §5.2 (the last after one iteration) and §6.1; a point of order eight, whose secret is zero.
const SECRETS: [Answer; 6] = [
    Answer {
        scalar: key("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4"),
        point: key("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c"),
        secret: key("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"),
    },
    Answer {
        scalar: key("4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d"),
        point: key("e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493"),
        secret: key("95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957"),
    },
    Answer {
        scalar: BASE,
        point: BASE,
        secret: key("422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"),
    },
    Answer {
        scalar: key("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"),
        point: key("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"),
        secret: key("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"),
    },
    Answer {
        scalar: key("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"),
        point: key("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"),
        secret: key("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"),
    },
    Answer {
        scalar: key("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"),
        point: key("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
        secret: [0; KEY_BYTES],
    },
];

/// RFC 7748 §6.1 and §5.2; the smallest and the largest clamped scalar.
const PUBLICS: [(Key, Key); 5] = [
    (SECRETS[3].scalar, SECRETS[4].point),
    (SECRETS[4].scalar, SECRETS[3].point),
    (BASE, SECRETS[2].secret),
    ([0; KEY_BYTES], key("2fe57da347cd62431528daac5fbb290730fff684afc4cfc2ed90995f58cb3b74")),
    ([u8::MAX; KEY_BYTES], key("847c0d2c375234f365e660955187a3735a0f7613d1609d3a6a4d8c53aeaa5a22")),
];

// Every known answer in every lane of both kernels, some hundreds of other scalars through both, and the table.
/// Whether known answers come out right in every lane of both kernels, and the table is whole. About half a
/// millisecond, once at the start; if false, neither kernel may be used.
#[must_use]
pub fn self_test(ifma: Ifma) -> bool {
    checksum(black_box(&TABLE)) == CHECKSUM && secrets(ifma) && publics(ifma) && both_agree(ifma)
}

fn secrets(ifma: Ifma) -> bool {
    (0..SECRETS.len()).all(|turn| {
        let answer = |lane: usize| &SECRETS[(lane + turn) % SECRETS.len()];
        let scalars = core::array::from_fn(|lane| answer(lane).scalar);
        let points = core::array::from_fn(|lane| answer(lane).point);
        let mut secrets = [[0xa5; KEY_BYTES]; LANES];
        let zero = derive(ifma, black_box(&scalars), &points, &mut secrets);
        (0..LANES).all(|lane| {
            secrets[lane] == answer(lane).secret && (zero >> lane & 1 == 1) == (answer(lane).secret == [0; KEY_BYTES])
        })
    })
}

fn publics(ifma: Ifma) -> bool {
    (0..PUBLICS.len()).all(|turn| {
        let answer = |lane: usize| &PUBLICS[(lane + turn) % PUBLICS.len()];
        let scalars: [Key; LANES] = core::array::from_fn(|lane| answer(lane).0);
        let mut publics = [[0xa5; KEY_BYTES]; LANES];
        public_keys(ifma, black_box(&scalars), &mut publics);
        (0..LANES).all(|lane| publics[lane] == answer(lane).1)
    })
}

/// The two kernels share neither curve form nor table. Scalar by scalar, one more from the public key before it: four
/// rounds of two groups bring every digit to nearly every row.
fn both_agree(ifma: Ifma) -> bool {
    let mut scalars: [Key; 2 * LANES] = core::array::from_fn(|at| [at as u8; KEY_BYTES]);
    (0..4).all(|_| {
        let mut publics = [[0; KEY_BYTES]; 2 * LANES];
        public_keys(ifma, black_box(&scalars), &mut publics);
        let same = scalars.as_chunks().0.iter().zip(publics.as_chunks().0).all(|(scalars, publics)| {
            let mut secrets = [[0; KEY_BYTES]; LANES];
            derive(ifma, scalars, &[BASE; LANES], &mut secrets) == 0 && secrets == *publics
        });
        scalars = publics;
        same
    })
}

const fn key(hex: &str) -> Key {
    let digits = hex.as_bytes();
    assert!(digits.len() == 2 * KEY_BYTES);
    let mut key = [0; KEY_BYTES];
    let mut at = 0;
    while at < 2 * KEY_BYTES {
        let digit = match digits[at] {
            digit @ b'0'..=b'9' => digit - b'0',
            digit => digit - b'a' + 10,
        };
        key[at / 2] = key[at / 2] << 4 | digit;
        at += 1;
    }
    key
}
