//! Which bytes may stand where: one table for the classes of RFC 9110 §5.6 and RFC 3986, and a scan for controls.

/// Bytes of a token; all of them.
pub const TOKEN: u8 = 1;
/// Bytes of a token that are neither letters, digits nor `-`: what CGI-like servers fold into `_`.
pub const ODD: u8 = 2;
/// Bytes of a request target: visible ASCII without `#`, which begins a fragment and is never sent.
pub const TARGET: u8 = 4;
/// Bytes of a host name. RFC 3986 has more (sub-delims, percent); no name that resolves uses them.
pub const HOST: u8 = 8;
/// Bytes that a path in canonical form may have to do without: `%`, `\\`, `;`, `"`, `<`, `>` and `` ` ``.
pub const PATH_MARK: u8 = 16;
/// Bytes behind a slash that a path in canonical form may have to do without: `/` and `.`.
pub const PATH_STEP: u8 = 32;

static CLASS: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0x21;
    while byte < 0x7f {
        let b = byte as u8;
        let mut class = 0;
        if b != b'#' {
            class |= TARGET;
        }
        if b.is_ascii_alphanumeric() || b == b'-' {
            class |= TOKEN | HOST;
        } else if !matches!(
            b,
            b'"' | b'('
                | b')'
                | b','
                | b'/'
                | b':'
                | b';'
                | b'<'
                | b'='
                | b'>'
                | b'?'
                | b'@'
                | b'['
                | b'\\'
                | b']'
                | b'{'
                | b'}'
        ) {
            class |= TOKEN | ODD;
        }
        if matches!(b, b'.' | b'_' | b'~') {
            class |= HOST;
        }
        if matches!(b, b'%' | b'\\' | b';' | b'"' | b'<' | b'>' | b'`') {
            class |= PATH_MARK;
        }
        if matches!(b, b'/' | b'.') {
            class |= PATH_STEP;
        }
        table[byte] = class;
        byte += 1;
    }
    table
}

#[inline]
pub fn class(byte: u8) -> u8 {
    CLASS[byte as usize]
}

/// Whether every byte is of the class; true for no bytes.
#[inline]
pub fn all(bytes: &[u8], of: u8) -> bool {
    bytes.iter().all(|&b| class(b) & of != 0)
}

pub fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && all(bytes, TOKEN)
}

/// Position of the first control byte other than HTAB. CR and LF are controls; bytes from 0x80 (obs-text) are not.
#[inline]
pub fn first_control(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(&word) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let hits = controls(u64::from_le_bytes(word));
        if hits == 0 {
            at += 8;
            continue;
        }
        // Only the lowest hit is certain (a borrow may have spilled into later bytes), and only that one is used.
        let hit = at + hits.trailing_zeros() as usize / 8;
        if bytes[hit] != b'\t' {
            return Some(hit);
        }
        at = hit + 1;
    }
    bytes.get(at..)?.iter().position(|&b| is_control(b)).map(|i| at + i)
}

/// Length of the token that `bytes` begin with, and whether it has [`ODD`] bytes.
#[inline]
pub fn token_prefix(bytes: &[u8]) -> (usize, bool) {
    let mut length = 0;
    // Names are hardly ever made of anything but these.
    while let Some(word) = bytes.get(length..).and_then(|rest| rest.first_chunk::<8>()) {
        let others = !words(u64::from_le_bytes(*word)) & HIGH;
        if others != 0 {
            length += others.trailing_zeros() as usize / 8;
            break;
        }
        length += 8;
    }
    let mut seen = 0;
    while let Some(&byte) = bytes.get(length) {
        let class = class(byte);
        if class & TOKEN == 0 {
            break;
        }
        seen |= class;
        length += 1;
    }
    (length, seen & ODD != 0)
}

/// Length of the run of letters, digits and hyphens that `bytes` begin with.
#[inline]
pub fn word_prefix(bytes: &[u8]) -> usize {
    let mut length = 0;
    while let Some(word) = bytes.get(length..).and_then(|rest| rest.first_chunk::<8>()) {
        let others = !words(u64::from_le_bytes(*word)) & HIGH;
        if others != 0 {
            return length + others.trailing_zeros() as usize / 8;
        }
        length += 8;
    }
    length + bytes[length..].iter().take_while(|byte| class(**byte) & (TOKEN | ODD) == TOKEN).count()
}

/// Length of what `bytes` begin with that may stand in a target, and where in it the first `?` is.
#[inline]
pub fn target_prefix(bytes: &[u8]) -> (usize, Option<usize>) {
    let (mut length, mut query) = (0, None);
    loop {
        while let Some(word) = bytes.get(length..).and_then(|rest| rest.first_chunk::<8>()) {
            let others = !targets(u64::from_le_bytes(*word)) & HIGH;
            if others != 0 {
                length += others.trailing_zeros() as usize / 8;
                break;
            }
            length += 8;
        }
        match bytes.get(length) {
            Some(b'?') => _ = query.get_or_insert(length),
            Some(byte) if class(*byte) & TARGET != 0 => {}
            _ => return (length, query),
        }
        length += 1;
    }
}

const ONES: u64 = u64::from_ne_bytes([1; 8]);
const HIGH: u64 = ONES << 7;

/// A high bit for each byte that is a letter, a digit or `-`. No sum of two bytes of 7 bits spills into the next.
#[inline]
fn words(word: u64) -> u64 {
    let (low, small) = (word & !HIGH, (word | (ONES * 0x20)) & !HIGH);
    let from = |bytes: u64, first: u8| bytes + ONES * u64::from(0x80 - first);
    let letter = from(small, b'a') & !from(small, b'z' + 1);
    let digit = from(low, b'0') & !from(low, b'9' + 1);
    let hyphen = !from(low ^ (ONES * u64::from(b'-')), 1);
    (letter | digit | hyphen) & !word & HIGH
}

/// A high bit for each byte of [`TARGET`] but `?`.
#[inline]
fn targets(word: u64) -> u64 {
    let low = word & !HIGH;
    let from = |bytes: u64, first: u8| bytes + ONES * u64::from(0x80 - first);
    let differs = |byte: u8| from(low ^ (ONES * u64::from(byte)), 1);
    from(low, 0x21) & !from(low, 0x7f) & differs(b'#') & differs(b'?') & !word & HIGH
}

#[inline]
fn is_control(byte: u8) -> bool {
    (byte < 0x20 && byte != b'\t') || byte == 0x7f
}

/// A high bit for each byte below 0x20 or equal to 0x7f, exact up to and including the lowest one set.
#[inline]
fn controls(word: u64) -> u64 {
    let low = word.wrapping_sub(ONES * 0x20) & !word;
    let not_del = word ^ (ONES * 0x7f);
    let del = not_del.wrapping_sub(ONES) & !not_del;
    (low | del) & HIGH
}

/// Without optional whitespace (SP, HTAB) at both ends: offsets into the same bytes.
#[inline]
pub fn trim(bytes: &[u8]) -> (usize, usize) {
    let blank = |b: &u8| matches!(b, b' ' | b'\t');
    let start = bytes.iter().position(|b| !blank(b)).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(|b| !blank(b)).map_or(start, |i| i + 1);
    (start, end)
}

pub fn trimmed(bytes: &[u8]) -> &[u8] {
    let (start, end) = trim(bytes);
    &bytes[start..end]
}

/// The elements of a comma-separated list, without the whitespace around them; empty ones included.
pub fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&b| b == b',').map(trimmed)
}

/// Elements that are not empty; a recipient passes over the others (RFC 9110 §5.6.1.2).
pub fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    list(value).filter(|element| !element.is_empty())
}

/// Digits and nothing else, at most 2^63 - 1: a length that any implementation's signed integer can hold.
pub fn decimal(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() || bytes.len() > 19 {
        return None;
    }
    let mut number = 0u64;
    for &b in bytes {
        if !b.is_ascii_digit() {
            return None;
        }
        number = number * 10 + u64::from(b - b'0');
    }
    (number <= i64::MAX as u64).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any byte at any place of a text of letters.
    fn texts() -> impl Iterator<Item = (Vec<u8>, usize, u8)> {
        (0..=u8::MAX).flat_map(|byte| {
            (0..40).map(move |at| {
                let mut text = vec![b'a' + byte % 26; 40];
                text[at] = byte;
                (text, at, byte)
            })
        })
    }

    #[test]
    fn a_control_is_found_wherever_it_stands() {
        for (mut text, at, byte) in texts() {
            assert_eq!(first_control(&text), is_control(byte).then_some(at), "{byte:#x} at {at}");
            text[39] = 0x7f;
            text[at.min(38)] = b'\t';
            assert_eq!(first_control(&text), Some(39), "a tab at {at}");
        }
        assert_eq!(first_control(b""), None);
    }

    #[test]
    fn a_token_ends_where_its_bytes_do_and_odd_ones_are_seen() {
        for (text, at, byte) in texts() {
            let expected = if class(byte) & TOKEN == 0 { (at, false) } else { (40, class(byte) & ODD != 0) };
            assert_eq!(token_prefix(&text), expected, "{byte:#x} at {at}");
            let beyond = [&text[..], b":"].concat();
            assert_eq!(token_prefix(&beyond), expected, "{byte:#x} at {at} of a name");
        }
        assert_eq!(token_prefix(b""), (0, false));
    }

    #[test]
    fn a_word_ends_before_whatever_is_no_letter_digit_or_hyphen() {
        for (text, at, byte) in texts() {
            let is_word = byte.is_ascii_alphanumeric() || byte == b'-';
            assert_eq!(word_prefix(&text), if is_word { 40 } else { at }, "{byte:#x} at {at}");
            assert_eq!(word_prefix(&text[..=at]), if is_word { at + 1 } else { at }, "{byte:#x} at the end, {at}");
        }
        assert_eq!(word_prefix(b""), 0);
    }

    #[test]
    fn a_target_ends_before_what_may_not_stand_in_it_and_its_first_question_mark_is_known() {
        for (text, at, byte) in texts() {
            for (text, rest) in [(&text[..], 39 - at), (&text[..=at], 0)] {
                let expected = match byte {
                    b'?' => (at + 1 + rest, Some(at)),
                    _ if class(byte) & TARGET != 0 => (at + 1 + rest, None),
                    _ => (at, None),
                };
                assert_eq!(target_prefix(text), expected, "{byte:#x} at {at}");
            }
        }
        for first in 0..20 {
            for second in first + 1..40 {
                let mut text = [b'/'; 40];
                (text[first], text[second]) = (b'?', b'?');
                assert_eq!(target_prefix(&text), (40, Some(first)), "{first} and {second}");
                text[second] = b' ';
                assert_eq!(target_prefix(&text), (second, Some(first)), "{first} and {second}");
            }
        }
        assert_eq!(target_prefix(b""), (0, None));
    }
}
