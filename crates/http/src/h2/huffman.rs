//! Strings in the Huffman code of HPACK (RFC 7541 §5.2).

/// A block that says nothing that could be followed: the connection's error (RFC 9113 §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// Bits of each symbol's code, the string's end last (RFC 7541 Appendix B). The code is canonical: the lengths say it
/// all.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];
const LENGTH_MAX: usize = 30;
/// The string's end, which no string may spell out.
const END: u16 = 256;

/// Symbol that a byte begins with, and its bits; zeros if the code is longer than a byte.
const SHORT: [(u8, u8); 256] = short();
/// Symbols in the order of their codes.
const SYMBOLS: [u16; 257] = symbols();
/// For each length: the first code, how many there are, and where their symbols begin.
const ROWS: [Row; LENGTH_MAX + 1] = rows();

#[derive(Clone, Copy)]
struct Row {
    first: u32,
    count: u32,
    at: u16,
}

const fn symbols() -> [u16; 257] {
    let (mut out, mut filled, mut length) = ([0; 257], 0, 1);
    while length <= LENGTH_MAX {
        let mut symbol = 0;
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as usize == length {
                out[filled] = symbol as u16;
                filled += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    out
}

const fn rows() -> [Row; LENGTH_MAX + 1] {
    let mut out = [Row { first: 0, count: 0, at: 0 }; LENGTH_MAX + 1];
    let (mut code, mut at, mut length) = (0, 0, 1);
    while length <= LENGTH_MAX {
        let (mut count, mut symbol) = (0, 0);
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as usize == length {
                count += 1;
            }
            symbol += 1;
        }
        out[length] = Row { first: code, count, at };
        code = (code + count) << 1;
        at += count as u16;
        length += 1;
    }
    out
}

const fn short() -> [(u8, u8); 256] {
    let mut out = [(0, 0); 256];
    let mut length = 1;
    while length <= 8 {
        let row = ROWS[length];
        let mut index = 0;
        while index < row.count {
            let begin = (row.first + index) << (8 - length);
            let mut rest = 0;
            while rest < 1 << (8 - length) {
                out[(begin + rest) as usize] = (SYMBOLS[row.at as usize + index as usize] as u8, length as u8);
                rest += 1;
            }
            index += 1;
        }
        length += 1;
    }
    out
}

/// Reads a string, in place of what `out` had.
#[cfg(test)]
fn decode(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Corrupt> {
    out.clear();
    decode_onto(bytes, out)
}

/// Bits of the shortest code.
const LENGTH_MIN: usize = 5;

/// Reads a string behind what `out` has.
pub fn decode_onto(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Corrupt> {
    let start = out.len();
    // Room for as many symbols as there can be: none of them has to ask for it.
    out.resize(start + bytes.len() * 8 / LENGTH_MIN, 0);
    let text = &mut out[start..];
    let (mut bits, mut count, mut at, mut written) = (0_u64, 0_u32, 0, 0);
    loop {
        if count <= 32 {
            if let Some(four) = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()) {
                (bits, count, at) = (bits << 32 | u64::from(u32::from_be_bytes(*four)), count + 32, at + 4);
            } else if let Some(byte) = bytes.get(at) {
                (bits, count, at) = (bits << 8 | u64::from(*byte), count + 8, at + 1);
                continue;
            }
        }
        // Beyond the end there are ones, as in the padding.
        let next = if count >= 8 { bits >> (count - 8) } else { bits << (8 - count) | 0xff >> count };
        let (symbol, length) = SHORT[next as usize & 0xff];
        let length = u32::from(length);
        let (symbol, length) = if length > 0 && length <= count {
            (symbol, length)
        } else {
            match if length == 0 { long(bits, count) } else { None } {
                Some((symbol, length)) if symbol != END => (symbol as u8, length),
                Some(_) => return Err(Corrupt),
                // Less than a byte of ones.
                None if count < 8 && !bits & ((1 << count) - 1) == 0 => break,
                None => return Err(Corrupt),
            }
        };
        text[written] = symbol;
        written += 1;
        count -= length;
    }
    out.truncate(start + written);
    Ok(())
}

/// Code of each byte, and its bits.
static CODES: [(u32, u8); 256] = codes();

const fn codes() -> [(u32, u8); 256] {
    let (mut out, mut length) = ([(0, 0); 256], 1);
    while length <= LENGTH_MAX {
        let row = ROWS[length];
        let mut index = 0;
        while index < row.count {
            let symbol = SYMBOLS[row.at as usize + index as usize];
            if symbol != END {
                out[symbol as usize] = (row.first + index, length as u8);
            }
            index += 1;
        }
        length += 1;
    }
    out
}

/// Bytes that a string takes in the code.
pub fn encoded_len(text: &[u8]) -> usize {
    let bits: usize = text.iter().map(|byte| usize::from(CODES[usize::from(*byte)].1)).sum();
    bits.div_ceil(8)
}

/// Writes a string behind what `out` has.
pub fn encode_onto(text: &[u8], out: &mut Vec<u8>) {
    let (mut bits, mut count) = (0_u64, 0_u32);
    for byte in text {
        let (code, length) = CODES[usize::from(*byte)];
        (bits, count) = (bits << length | u64::from(code), count + u32::from(length));
        while count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    if count > 0 {
        // The begin of the end's code, which is ones.
        out.push((bits << (8 - count)) as u8 | (0xff >> count) as u8);
    }
}

/// The symbol that a code of more than a byte stands for, and its bits; none where it is cut short.
fn long(bits: u64, count: u32) -> Option<(u16, u32)> {
    (9..=LENGTH_MAX as u32).take_while(|length| *length <= count).find_map(|length| {
        let code = (bits >> (count - length)) as u32 & ((1 << length) - 1);
        let row = ROWS[length as usize];
        let index = code.checked_sub(row.first).filter(|index| *index < row.count)?;
        Some((SYMBOLS[usize::from(row.at) + index as usize], length))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode_onto(text, &mut out);
        assert_eq!(out.len(), encoded_len(text));
        out
    }

    #[test]
    fn the_examples_of_the_rfc_are_read() {
        let mut out = Vec::new();
        // RFC 7541 §C.4.1, §C.6.1.
        let name = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        assert_eq!(decode(&name, &mut out), Ok(()));
        assert_eq!(out, b"www.example.com");
        let date = [
            0xd0, 0x7a, 0xbe, 0x94, 0x10, 0x54, 0xd4, 0x44, 0xa8, 0x20, 0x05, 0x95, 0x04, 0x0b, 0x81, 0x66, 0xe0, 0x82,
            0xa6, 0x2d, 0x1b, 0xff,
        ];
        assert_eq!(decode(&date, &mut out), Ok(()));
        assert_eq!(out, b"Mon, 21 Oct 2013 20:13:21 GMT");
    }

    #[test]
    fn every_byte_comes_back_alone_and_in_company() {
        let mut out = Vec::new();
        for byte in 0..=255 {
            for text in [vec![byte], vec![byte; 9], vec![b'a', byte, b'~', byte]] {
                assert_eq!(decode(&encode(&text), &mut out), Ok(()));
                assert_eq!(out, text);
            }
        }
    }

    #[test]
    fn strings_of_any_bytes_come_back_behind_what_was_there() {
        let mut random = fastrand::Rng::with_seed(5);
        for length in 0..2_000 {
            let most = if length % 2 == 0 { 128 } else { 255 };
            let text: Vec<u8> = (0..length).map(|_| random.u8(..=most)).collect();
            let mut out = b"before".to_vec();
            assert_eq!(decode_onto(&encode(&text), &mut out), Ok(()));
            assert_eq!(out.strip_prefix(b"before"), Some(&text[..]));
        }
    }

    #[test]
    fn wrong_ends_are_corrupt() {
        let mut out = Vec::new();
        // RFC 7541 §5.2: padding of a byte or more, of zeros, and the end spelled out.
        for wrong in [&[0xff][..], &[0x1c, 0x64, 0xff], &[0x18], &[0xff, 0xff, 0xff, 0xff], &[0xff, 0xff, 0xff, 0xfc]] {
            assert_eq!(decode(wrong, &mut out), Err(Corrupt), "{wrong:x?}");
        }
        assert_eq!(decode(&[], &mut out), Ok(()));
        assert!(out.is_empty());
    }
}
