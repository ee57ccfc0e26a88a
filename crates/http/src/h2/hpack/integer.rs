//! Integers with a prefix (RFC 7541 §5.1).

use super::Corrupt;

/// Bytes of an integer behind its prefix, at most: more than any length or index here needs.
const BYTES_MAX: usize = 4;

/// Reads an integer whose prefix has so many bits, at `at`, and moves that behind it.
#[inline]
pub fn read(block: &[u8], at: &mut usize, prefix_bits: u32) -> Result<usize, Corrupt> {
    let mask = (1_usize << prefix_bits) - 1;
    let value = usize::from(*block.get(*at).ok_or(Corrupt)?) & mask;
    *at += 1;
    if value < mask { Ok(value) } else { read_rest(block, at, value) }
}

fn read_rest(block: &[u8], at: &mut usize, prefix: usize) -> Result<usize, Corrupt> {
    let mut value = prefix;
    for index in 0..BYTES_MAX {
        let byte = *block.get(*at).ok_or(Corrupt)?;
        *at += 1;
        value += usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Corrupt)
}

/// Writes an integer whose prefix has so many bits, behind the bits of `first`.
#[inline]
pub fn write(value: usize, prefix_bits: u32, first: u8, out: &mut Vec<u8>) {
    let mask = (1_usize << prefix_bits) - 1;
    if value < mask {
        out.push(first | value as u8);
        return;
    }
    out.push(first | mask as u8);
    let mut rest = value - mask;
    while rest >= 128 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_come_back_and_the_examples_of_the_rfc_are_what_they_say() {
        for prefix in 1..=8 {
            for value in (0..300).chain([1_337, 16_383, 16_384, 1 << 20, 1 << 27]) {
                let mut out = Vec::new();
                write(value, prefix, 0, &mut out);
                let mut at = 0;
                assert_eq!((read(&out, &mut at, prefix), at), (Ok(value), out.len()));
            }
        }
        // RFC 7541 §C.1.
        for (value, prefix, expected) in [(10, 5, &[10][..]), (1337, 5, &[31, 154, 10]), (42, 8, &[42])] {
            let mut out = Vec::new();
            write(value, prefix, 0, &mut out);
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn integers_without_an_end_are_corrupt() {
        for wrong in [&[][..], &[0xff], &[0xff, 0x80], &[0xff, 0x80, 0x80, 0x80, 0x80, 0x00], &[0xff; 12]] {
            assert_eq!(read(wrong, &mut 0, 7), Err(Corrupt), "{wrong:x?}");
        }
    }
}
