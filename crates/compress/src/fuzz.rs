//! Promises that must hold for any body whatever: shared by the fuzz target and by a test.

use std::io::Read;

use propylon_config::Encoding;

use crate::encoder::{Encoder, Kind};

/// A body that goes into each encoder in pieces comes out as it was, and the next body after it as well. The first two
/// bytes say how long pieces are, and after which of them the encoder lets go of what it holds.
pub fn body(bytes: &[u8]) {
    let [piece, flushes, body @ ..] = bytes else { return };
    for (encoding, level) in [(Encoding::Gzip, 1), (Encoding::Gzip, 6), (Encoding::Zstd, 1), (Encoding::Br, 1)] {
        let mut encoder = Encoder::new(Kind { encoding, level }).expect("memory");
        for is_known in [true, false] {
            encoder.begin(is_known.then_some(body.len() as u64)).expect("a free encoder");
            let mut coded = Vec::new();
            for (place, part) in body.chunks(usize::from(*piece) + 1).enumerate() {
                encoder.write(part, &mut coded).expect("memory");
                if flushes >> (place % 8) & 1 == 1 {
                    encoder.flush(&mut coded).expect("memory");
                    assert!(!encoder.holds());
                }
            }
            encoder.finish(&mut coded).expect("memory");
            assert!(encoder.is_free() && decoded(encoding, &coded) == body, "{encoding:?} {level} {is_known}");
        }
    }
}

/// Bodies as clients read them.
fn decoded(encoding: Encoding, coded: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match encoding {
        Encoding::Gzip => _ = flate2::read::GzDecoder::new(coded).read_to_end(&mut out).expect("a whole body"),
        Encoding::Br => _ = brotli::Decompressor::new(coded, 4096).read_to_end(&mut out).expect("a whole body"),
        Encoding::Zstd => {
            out.reserve(1 << 20);
            _ = zstd_safe::decompress(&mut out, coded).expect("a whole body of less than 1 MiB");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn bodies_come_out_as_they_went_in() {
        let mut random = fastrand::Rng::with_seed(3);
        for length in [0, 1, 2, 255, 3_000] {
            let body: Vec<u8> = (0..length + 2).map(|_| random.u8(..)).collect();
            super::body(&body);
        }
    }
}
