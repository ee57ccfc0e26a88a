//! Conditions under which a file is asked for, and which part of it is (RFC 9110 §13, §14).

use std::ops::Range;

use propylon_http::h1::{Method, RequestHead};

/// Answer that a request for a file gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    Whole,
    /// 206, with these bytes. Never empty.
    Part(Range<usize>),
    /// 304: the client has the file.
    NotModified,
    /// 412: the file is not the one that the client has.
    Failed,
    /// 416: the file has none of these bytes.
    Unsatisfiable,
}

impl Wanted {
    /// Answer for a request for a file of this length, whose tag is `etag`; without one it is empty. In the order of RFC 9110
    /// §13.2.2; files have no dates, so conditions about these hold for nothing.
    pub fn of(head: &RequestHead, text: &[u8], (length, etag): (usize, &str)) -> Wanted {
        // Weak tags are none to those who want the same bytes (RFC 9110 §8.8.3.2).
        let is_strong = !etag.is_empty() && !etag.starts_with("W/");
        let strong = |tag: &[u8]| tag == b"*" || is_strong && tag == etag.as_bytes();
        // A tag that is weak since the file was compressed on its way is the file's for those who only look.
        let opaque = |tag: &[u8]| tag.strip_prefix(b"W/").unwrap_or(tag).to_vec();
        let weak = |tag: &[u8]| tag == b"*" || opaque(tag) == opaque(etag.as_bytes());
        // Conditions of other methods hold or are false (RFC 9110 §13.1.2): what they would do is not done.
        let is_read = matches!(head.method, Method::Get | Method::Head);
        if tags(head, text, b"if-match").is_some_and(|mut tags| !tags.any(strong)) {
            return Wanted::Failed;
        }
        if tags(head, text, b"if-none-match").is_some_and(|mut tags| tags.any(weak)) {
            return if is_read { Wanted::NotModified } else { Wanted::Failed };
        }
        // Ranges are of GET alone (RFC 9110 §14.2).
        let mut ranges = values(head, text, b"range");
        let (Some(range), None) = (ranges.next(), ranges.next()) else { return Wanted::Whole };
        let is_same = values(head, text, b"if-range").all(|tag| is_strong && tag == etag.as_bytes());
        if head.method != Method::Get || !is_same {
            return Wanted::Whole;
        }
        part(range, length)
    }
}

/// Values of the lines of this name, which is in lower case.
fn values<'a>(head: &'a RequestHead, text: &'a [u8], name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let lines = head.fields.iter().filter(move |field| field.name.bytes(text).eq_ignore_ascii_case(name));
    lines.map(|field| field.value.bytes(text).trim_ascii())
}

/// Tags of a condition; `None`: it is not there.
fn tags<'a>(head: &'a RequestHead, text: &'a [u8], name: &'a [u8]) -> Option<impl Iterator<Item = &'a [u8]>> {
    let mut lines = values(head, text, name).peekable();
    lines.peek()?;
    Some(lines.flat_map(|line| line.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii))
}

/// The part that a Range asks for. What is none, or of another unit, is not looked at (RFC 9110 §14.2); nor are several
/// parts, for which the whole may be sent (§15.3.7).
fn part(range: &[u8], length: usize) -> Wanted {
    let Some((unit, set)) = split(range, b'=') else { return Wanted::Whole };
    let bytes = split(set.trim_ascii(), b'-').filter(|_| unit.eq_ignore_ascii_case(b"bytes"));
    let Some((first, last)) = bytes else { return Wanted::Whole };
    match (number(first), number(last)) {
        _ if length == 0 => Wanted::Whole,
        (Number::None, Number::Some(0)) => Wanted::Unsatisfiable,
        (Number::None, Number::Some(suffix)) => Wanted::Part(length - suffix.min(length)..length),
        (Number::Some(first), Number::Some(last)) if last < first => Wanted::Whole,
        (Number::Some(first), Number::None | Number::Some(_)) if first >= length => Wanted::Unsatisfiable,
        (Number::Some(first), Number::None) => Wanted::Part(first..length),
        (Number::Some(first), Number::Some(last)) => Wanted::Part(first..last.min(length - 1) + 1),
        _ => Wanted::Whole,
    }
}

fn split(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == at)?;
    Some((&text[..at], &text[at + 1..]))
}

enum Number {
    None,
    Some(usize),
    Bad,
}

/// A number in digits alone; one that is larger than any file is the largest that there is.
fn number(digits: &[u8]) -> Number {
    match digits {
        [] => Number::None,
        _ if !digits.iter().all(u8::is_ascii_digit) => Number::Bad,
        _ => Number::Some(
            digits
                .iter()
                .fold(0_usize, |number, digit| number.saturating_mul(10).saturating_add(usize::from(digit - b'0'))),
        ),
    }
}

#[cfg(test)]
mod tests {
    use propylon_http::h1::{Limits, Parsed, parse_request};

    use super::*;

    fn wanted(method: &str, lines: &str, length: usize) -> Wanted {
        wanted_of(method, lines, (length, "\"x\""))
    }

    fn wanted_of(method: &str, lines: &str, file: (usize, &str)) -> Wanted {
        let text = format!("{method} / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let (mut head, limits) = (RequestHead::default(), Limits { head_bytes: 64 << 10, headers: 64 });
        assert_eq!(parse_request(text.as_bytes(), &limits, &mut head), Ok(Parsed::Complete), "{text}");
        Wanted::of(&head, text.as_bytes(), file)
    }

    #[test]
    fn conditions_are_asked_in_their_order() {
        for (method, lines, answer) in [
            ("GET", "If-None-Match: \"x\"\r\n", Wanted::NotModified),
            ("HEAD", "if-none-match: \"a\", W/\"x\"\r\n", Wanted::NotModified),
            ("GET", "If-None-Match: \"a\"\r\nIf-None-Match: *\r\n", Wanted::NotModified),
            ("GET", "If-None-Match: \"x\"\r\nRange: bytes=0-0\r\n", Wanted::NotModified),
            ("GET", "If-Match: \"a\"\r\nIf-None-Match: \"x\"\r\n", Wanted::Failed),
            ("GET", "If-Match: W/\"x\"\r\n", Wanted::Failed),
            ("GET", "If-Match: \"x\"\r\nRange: bytes=0-0\r\n", Wanted::Part(0..1)),
            ("GET", "If-Match: *\r\n", Wanted::Whole),
            ("POST", "If-None-Match: *\r\n", Wanted::Failed),
            ("PUT", "If-Match: \"x\"\r\nIf-None-Match: \"b\"\r\nRange: bytes=0-0\r\n", Wanted::Whole),
            ("DELETE", "If-Match: \"b\"\r\n", Wanted::Failed),
            ("GET", "If-None-Match: \"f\"\r\n", Wanted::Whole),
            ("GET", "If-Unmodified-Since: Mon, 01 Jan 2001 00:00:00 GMT\r\n", Wanted::Whole),
            ("HEAD", "Range: bytes=0-0\r\n", Wanted::Whole),
            ("GET", "Range: bytes=0-0\r\nIf-Range: \"x\"\r\n", Wanted::Part(0..1)),
            ("GET", "Range: bytes=0-0\r\nIf-Range: W/\"x\"\r\n", Wanted::Whole),
            ("GET", "Range: bytes=99-\r\nIf-Range: \"y\"\r\n", Wanted::Whole),
            ("GET", "Range: bytes=0-0\r\nIf-Range: Mon, 01 Jan 2001 00:00:00 GMT\r\n", Wanted::Whole),
            ("GET", "Range: bytes=0-0\r\nRange: bytes=1-1\r\n", Wanted::Whole),
        ] {
            assert_eq!(wanted(method, lines, 10), answer, "{method} {lines}");
        }
    }

    #[test]
    fn a_weak_tag_and_none_stand_for_no_bytes() {
        for (lines, tag, answer) in [
            ("If-None-Match: \"x\"\r\n", "W/\"x\"", Wanted::NotModified),
            ("If-Match: W/\"x\"\r\n", "W/\"x\"", Wanted::Failed),
            ("Range: bytes=0-0\r\nIf-Range: W/\"x\"\r\n", "W/\"x\"", Wanted::Whole),
            ("Range: bytes=0-0\r\n", "W/\"x\"", Wanted::Part(0..1)),
            ("If-None-Match: \"x\"\r\n", "", Wanted::Whole),
            ("If-Match: \"x\"\r\n", "", Wanted::Failed),
            ("If-Match:\r\n", "", Wanted::Failed),
            ("Range: bytes=0-0\r\nIf-Range:\r\n", "", Wanted::Whole),
        ] {
            assert_eq!(wanted_of("GET", lines, (10, tag)), answer, "{lines} {tag}");
        }
    }

    #[test]
    fn a_part_is_within_the_file_or_there_is_none() {
        for (range, answer) in [
            ("bytes=0-4", Wanted::Part(0..5)),
            ("Bytes=9-9", Wanted::Part(9..10)),
            ("bytes=5-", Wanted::Part(5..10)),
            ("bytes=5-5000000000000000000000000000", Wanted::Part(5..10)),
            ("bytes= 5-6", Wanted::Part(5..7)),
            ("bytes=-3", Wanted::Part(7..10)),
            ("bytes=-30", Wanted::Part(0..10)),
            ("bytes=10-", Wanted::Unsatisfiable),
            ("bytes=10-11", Wanted::Unsatisfiable),
            ("bytes=-0", Wanted::Unsatisfiable),
            ("bytes=5000000000000000000000000000-", Wanted::Unsatisfiable),
            ("bytes=5-4", Wanted::Whole),
            ("bytes=50-4", Wanted::Whole),
            ("bytes=0-1,4-5", Wanted::Whole),
            ("bytes=-", Wanted::Whole),
            ("bytes=a-5", Wanted::Whole),
            ("bytes=+1-5", Wanted::Whole),
            ("bytes=1 -5", Wanted::Whole),
            ("lines=0-1", Wanted::Whole),
            ("bytes", Wanted::Whole),
            ("", Wanted::Whole),
        ] {
            assert_eq!(wanted("GET", &format!("Range: {range}\r\n"), 10), answer, "{range}");
        }
        for range in ["bytes=0-", "bytes=-1", "bytes=-0"] {
            assert_eq!(wanted("GET", &format!("Range: {range}\r\n"), 0), Wanted::Whole, "{range} of nothing");
        }
    }
}
