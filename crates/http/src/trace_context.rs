//! Callers' fields about the trace that a request belongs to: `traceparent` and `tracestate` (W3C Trace Context, Level
//! 2), without a socket, a clock or chance.

use std::fmt;

/// Length of a `traceparent` of version 00.
const PARENT_BYTES: usize = 55;
/// Members of a `tracestate` (§3.3.1.1), all its fields together.
const MEMBERS_MAX: usize = 32;
const KEY_BYTES_MAX: usize = 256;
const VALUE_BYTES_MAX: usize = 256;

const SAMPLED: u8 = 1;
const RANDOM: u8 = 2;
const HEX: &[u8; 16] = b"0123456789abcdef";

/// Names a trace; never all zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TraceId([u8; 16]);

/// Names a span within its trace; never all zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SpanId([u8; 8]);

/// Which trace and which span a message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    pub trace: TraceId,
    pub span: SpanId,
    /// Whether the trace is recorded.
    pub sampled: bool,
    /// The trace's identifier is chance as far as its last 56 bits go.
    pub random: bool,
}

/// Trace context of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    pub context: Context,
    /// Version 00 may go on as it came; a later version is written anew (§4.3).
    pub is_current: bool,
}

impl TraceId {
    /// Makes an identifier; zeros alone are none.
    pub fn new(bytes: [u8; 16]) -> Option<TraceId> {
        (bytes != [0; 16]).then_some(TraceId(bytes))
    }

    pub fn bytes(&self) -> [u8; 16] {
        self.0
    }

    /// The part that is chance where it was made so.
    pub fn low(&self) -> u64 {
        let [.., a, b, c, d, e, f, g, h] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    pub fn hex(&self) -> [u8; 32] {
        hex(&self.0)
    }
}

impl SpanId {
    /// Makes an identifier; zeros alone are none.
    pub fn new(bytes: [u8; 8]) -> Option<SpanId> {
        (bytes != [0; 8]).then_some(SpanId(bytes))
    }

    pub fn bytes(&self) -> [u8; 8] {
        self.0
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&hex::<16, 32>(&self.0)))
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&hex::<8, 16>(&self.0)))
    }
}

impl Context {
    /// The last byte of `traceparent`, without bits that mean nothing here.
    pub fn flags(&self) -> u8 {
        let bit = |is: bool, bit: u8| if is { bit } else { 0 };
        bit(self.sampled, SAMPLED) | bit(self.random, RANDOM)
    }

    /// As a `traceparent` of version 00 has it.
    pub fn text(&self) -> [u8; PARENT_BYTES] {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        text[3..35].copy_from_slice(&self.trace.hex());
        text[36..52].copy_from_slice(&hex::<8, 16>(&self.span.0));
        text[53..55].copy_from_slice(&hex::<1, 2>(&[self.flags()]));
        text
    }
}

/// Reads a `traceparent` without white space around it; none where it breaks a rule (§3.2.2, §4.3).
pub fn parse_parent(value: &[u8]) -> Option<Parent> {
    let (head, rest) = value.split_at_checked(PARENT_BYTES)?;
    let [version] = unhex::<1>(&head[..2])?;
    let is_current = version == 0;
    // Additions of a later version begin with a dash; 255 is no version.
    let is_whole = match version {
        0 => rest.is_empty(),
        255 => false,
        _ => rest.is_empty() || rest[0] == b'-',
    };
    let dashes = [head[2], head[35], head[52]] == *b"---";
    if !is_whole || !dashes {
        return None;
    }
    let [flags] = unhex::<1>(&head[53..55])?;
    let context = Context {
        trace: TraceId::new(unhex(&head[3..35])?)?,
        span: SpanId::new(unhex(&head[36..52])?)?,
        sampled: flags & SAMPLED != 0,
        random: flags & RANDOM != 0,
    };
    Some(Parent { context, is_current })
}

/// Whether the fields of a `tracestate`, read as one list, keep its rules (§3.3.1). Where one breaks them all are to be
/// dropped. A key twice is its writers' affair.
pub fn is_state<'a>(fields: impl Iterator<Item = &'a [u8]>) -> bool {
    let mut members = 0;
    for member in fields.flat_map(|field| field.split(|byte| *byte == b',')) {
        let member = trim(member);
        // Empty members are allowed, and count: a list of nothing else is work for everybody.
        members += 1;
        if members > MEMBERS_MAX || !(member.is_empty() || is_member(member)) {
            return false;
        }
    }
    true
}

fn is_member(member: &[u8]) -> bool {
    let Some(at) = member.iter().position(|byte| *byte == b'=') else { return false };
    let (key, value) = (&member[..at], &member[at + 1..]);
    let is_first = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_key = |byte: &u8| is_first(byte) || b"_-*/@".contains(byte);
    let is_value = |byte: &u8| matches!(byte, 0x20..=0x7e) && !b",=".contains(byte);
    key.len() <= KEY_BYTES_MAX
        && key.first().is_some_and(is_first)
        && key.iter().all(is_key)
        && (1..=VALUE_BYTES_MAX).contains(&value.len())
        && value.iter().all(is_value)
}

/// Without optional white space: spaces and tabs.
fn trim(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

fn hex<const N: usize, const M: usize>(bytes: &[u8; N]) -> [u8; M] {
    const { assert!(M == 2 * N) };
    let mut text = [0; M];
    for (pair, byte) in text.chunks_exact_mut(2).zip(bytes) {
        pair.copy_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
    }
    text
}

/// Lower case alone (§3.2.1).
fn unhex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// Promises for any bytes: shared by the fuzz target and by a seeded run among the tests. Panics when a promise is
/// broken.
#[cfg(any(test, fuzzing))]
pub mod fuzz {
    use super::*;

    pub fn read(bytes: &[u8]) {
        if let Some(read) = parse_parent(bytes) {
            let again = parse_parent(&read.context.text()).expect("what we write we read");
            assert!(again.is_current && again.context == read.context);
            assert!(bytes.len() == PARENT_BYTES || !read.is_current);
        }
        let fields = || bytes.split(|byte| *byte == b'\n');
        if is_state(fields()) {
            assert!(bytes.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t' | b'\n')), "it can be kept as text");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "12345678901234567890123456789012";
    const SPAN: &str = "1234567890123456";

    fn parent(text: &str) -> Option<Parent> {
        parse_parent(text.as_bytes())
    }

    fn state(fields: &[&str]) -> bool {
        is_state(fields.iter().map(|field| field.as_bytes()))
    }

    #[test]
    fn what_is_written_is_read_back() {
        for (text, sampled, random) in [
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", false, false),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", true, false),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-02", false, true),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03", true, true),
        ] {
            let read = parent(text).expect(text);
            assert_eq!((read.context.sampled, read.context.random, read.is_current), (sampled, random, true));
            assert_eq!(read.context.text(), text.as_bytes());
            assert_eq!(read.context.trace.low(), 0x8448_eb21_1c80_319c);
        }
    }

    #[test]
    fn flags_that_mean_nothing_yet_are_not_passed_on() {
        let read = parent(&format!("00-{TRACE}-{SPAN}-ff")).expect("known flags beside unknown ones");
        assert!(read.context.sampled && read.context.random);
        assert_eq!(read.context.flags(), 3);
    }

    /// The cases of the W3C's own suite, where an identifier that is gone on with means that the field was taken.
    #[test]
    fn the_cases_of_the_standards_suite_are_taken_or_refused_as_there() {
        let good = [
            format!("00-{TRACE}-{SPAN}-01"),
            format!("cc-{TRACE}-{SPAN}-01"),
            format!("cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like"),
            format!("fe-{TRACE}-{SPAN}-01-"),
        ];
        for text in good {
            let read = parent(&text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(read.context.text(), format!("00-{TRACE}-{SPAN}-01").as_bytes());
            assert_eq!(read.is_current, text.starts_with("00"));
        }
        let bad = [
            // Versions.
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("cc-{TRACE}-{SPAN}-01.what-the-future-will-not-be-like"),
            format!("00-{TRACE}-{SPAN}-01-what-the-future-will-be-like"),
            format!("00-{TRACE}-{SPAN}-01."),
            format!(".0-{TRACE}-{SPAN}-01"),
            format!("0.-{TRACE}-{SPAN}-01"),
            format!("CC-{TRACE}-{SPAN}-01"),
            format!("000-{TRACE}-{SPAN}-01"),
            format!("0000-{TRACE}-{SPAN}-01"),
            format!("0-{TRACE}-{SPAN}-01"),
            format!("-{TRACE}-{SPAN}-01"),
            // Identifiers of traces.
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-.{}-{SPAN}-01", &TRACE[1..]),
            format!("00-{}.-{SPAN}-01", &TRACE[1..]),
            format!("00-{TRACE}3-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", &TRACE[1..]),
            format!("00-{}-{SPAN}-01", "A".repeat(32)),
            // Identifiers of spans.
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{TRACE}-.{}-01", &SPAN[1..]),
            format!("00-{TRACE}-{}.-01", &SPAN[1..]),
            format!("00-{TRACE}-{SPAN}7-01"),
            format!("00-{TRACE}-{}-01", &SPAN[1..]),
            // Flags.
            format!("00-{TRACE}-{SPAN}-.0"),
            format!("00-{TRACE}-{SPAN}-0."),
            format!("00-{TRACE}-{SPAN}-0F"),
            format!("00-{TRACE}-{SPAN}-001"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-"),
            format!("00-{TRACE}-{SPAN}"),
            // The rest.
            String::new(),
            format!("00_{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}_{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}_01"),
            format!("00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01"),
            "é".repeat(30),
        ];
        for text in bad {
            assert_eq!(parent(&text), None, "{text}");
        }
    }

    #[test]
    fn a_state_keeps_the_rules_or_is_dropped_whole() {
        let member = |key: usize, value: usize| format!("{}={}", "k".repeat(key), "v".repeat(value));
        let many = |count: usize| (0..count).map(|index| format!("k{index}=1")).collect::<Vec<_>>().join(",");
        let good = [
            "",
            " ",
            ",",
            "foo=1",
            "foo=1,bar=2",
            "foo=1 \t , \t bar=2, \t baz=3",
            "foo=1,",
            "foo=1,,bar=2",
            "0a=1",
            "foo=1,foo=1",
            "a@vendor=1",
            "a-b_c*d/e=1",
            "foo= a b",
            "foo=!#$%&'()*+-./:;<>?@[\\]^_`{|}~",
        ];
        for field in good {
            assert!(state(&[field]), "{field:?}");
        }
        assert!(state(&["foo=1", "", "bar=2,baz=3"]) && state(&[]));
        assert!(state(&[&member(256, 256)]) && state(&[&many(32)]) && state(&[&many(16), &many(16)]));
        let bad = [
            "foo",
            "foo=",
            "=1",
            "foo=1,bar",
            "FOO=1",
            "foo.bar=1",
            "foo =1",
            "_foo=1",
            "@foo=1",
            "foo=bar=baz",
            "foo=\u{e9}",
            "foo=a\tb",
            "foo=1;bar=2",
            "fo o=1",
        ];
        // A semicolon is a value's byte like any other, but for this the equals sign is not.
        for field in bad {
            assert!(!state(&[field]), "{field:?}");
        }
        assert!(!state(&[&member(257, 1)]) && !state(&[&member(1, 257)]));
        assert!(!state(&[&many(33)]) && !state(&[&many(16), &many(17)]) && !state(&["foo=1", "bar"]));
    }

    #[test]
    fn no_bytes_at_all_make_reading_fail() {
        let mut random = fastrand::Rng::with_seed(7);
        let alphabet = b"00-19af-g=,@ \t\x00\xff";
        for _ in 0..20_000 {
            let length = random.usize(..80);
            let bytes: Vec<u8> = (0..length).map(|_| alphabet[random.usize(..alphabet.len())]).collect();
            fuzz::read(&bytes);
        }
        fuzz::read(format!("00-{TRACE}-{SPAN}-01").as_bytes());
    }
}
