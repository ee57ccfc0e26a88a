//! Heads of responses that were compressed, or could have been.

use propylon_config::Encoding;
use propylon_http::h1::{ResponseHead, elements};

use crate::judge::Answered;

/// Line by which caches keep copies for clients of each kind apart (RFC 9110 §12.5.5).
pub const VARY_LINE: &[u8] = b"Vary: Accept-Encoding\r\n";

/// Fields that hold for the bytes of a body as its server has sent it: of a part of them (RFC 9110 §14.3), or their
/// digests (RFC 9530, RFC 3230, RFC 1864).
const OF_BYTES: [&str; 5] = ["accept-ranges", "content-md5", "content-digest", "repr-digest", "digest"];

/// Change of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// Coding of the body; none: it is as its server has sent it.
    pub encoding: Option<Encoding>,
    /// Whether a strong tag becomes a weak one: two bodies that were compressed need not be the same byte for byte
    /// (RFC 9110 §8.8.1).
    pub weakens: bool,
    /// Whether the head says already that the response depends on Accept-Encoding.
    pub varies: bool,
}

impl Rewrite {
    /// Changes the head, whose text is `text` so far, and the lines that are added to it; returns its later text.
    pub fn apply(&self, response: &mut ResponseHead, text: &[u8], added: &mut Vec<u8>) -> Vec<u8> {
        let (lines, mut out) = (self.lines(Answered { head: response, text, lines: added }), Vec::new());
        response.restate(text, |name| self.keeps(name), &lines, &mut out);
        let is_kept = |line: &&[u8]| self.keeps(line.split(|byte| *byte == b':').next().unwrap_or_default());
        *added = added.split_inclusive(|byte| *byte == b'\n').filter(is_kept).collect::<Vec<_>>().concat();
        if self.encoding.is_some() {
            response.forget_length();
        } else if response.status == 304 {
            // A 200 to the same request may have been compressed, and no other length may be told (RFC 9110 §8.6).
            response.withhold_length();
        }
        out
    }

    /// Whether a field goes on as it is.
    pub(crate) fn keeps(&self, name: &[u8]) -> bool {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        let is_stale = self.weakens && is("etag") || self.encoding.is_some() && (is_of_bytes(name) || is("trailer"));
        !is_stale
    }

    /// Names and values of the fields that are added.
    pub(crate) fn lines(&self, answered: Answered<'_>) -> Vec<(&'static str, Vec<u8>)> {
        let mut lines = Vec::new();
        if let Some(encoding) = self.encoding {
            lines.push(("Content-Encoding", encoding.name().as_bytes().to_vec()));
            let announced = announced_trailers(answered);
            if !announced.is_empty() {
                lines.push(("Trailer", announced));
            }
        }
        // A value that is no tag at all is left out, since nothing can be said of it.
        match answered.values("ETag").next().filter(|_| self.weakens) {
            Some(strong) if strong.starts_with(b"\"") => lines.push(("ETag", [b"W/", strong].concat())),
            Some(weak) if weak.starts_with(b"W/\"") => lines.push(("ETag", weak.to_vec())),
            _ => {}
        }
        if !self.varies {
            lines.push(("Vary", b"Accept-Encoding".to_vec()));
        }
        lines
    }
}

/// Names of the trailers that are announced and that go on behind a body of other bytes, as a list.
fn announced_trailers(answered: Answered<'_>) -> Vec<u8> {
    let names = answered.values("Trailer").flat_map(elements).filter(|name| !is_of_bytes(name));
    names.collect::<Vec<_>>().join(&b", "[..])
}

/// Whether a response says already that it depends on Accept-Encoding.
pub fn varies(answered: Answered<'_>) -> bool {
    let mut names = answered.values("Vary").flat_map(elements);
    names.any(|name| name == b"*" || name.eq_ignore_ascii_case(b"accept-encoding"))
}

/// Whether a field, of a head or of trailers, holds for the body's bytes as they were.
pub(crate) fn is_of_bytes(name: &[u8]) -> bool {
    OF_BYTES.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

#[cfg(test)]
mod tests {
    use propylon_http::h1::{Asked, Limits, Method, parse_response};

    use super::*;

    fn rewritten(fields: &str, rewrite: Rewrite) -> String {
        rewritten_with(fields, "", rewrite)
    }

    /// The same with lines that steps have added.
    fn rewritten_with(fields: &str, lines: &str, rewrite: Rewrite) -> String {
        let text = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
        let mut head = ResponseHead::default();
        let limits = Limits { head_bytes: 4096, headers: 20 };
        parse_response(text.as_bytes(), Asked { method: Method::Get, upgrade: None }, &limits, &mut head).unwrap();
        let mut added = lines.as_bytes().to_vec();
        let answered = Answered { head: &head, text: text.as_bytes(), lines: &added };
        let rewrite = Rewrite { varies: varies(answered), ..rewrite };
        let out = rewrite.apply(&mut head, text.as_bytes(), &mut added);
        let mut written = Vec::new();
        head.fields.write_forwarded(&out, &mut written);
        String::from_utf8([written, added].concat()).unwrap()
    }

    const CODED: Rewrite = Rewrite { encoding: Some(Encoding::Gzip), weakens: true, varies: false };

    #[test]
    fn what_holds_for_other_bytes_is_not_said() {
        let fields = "ETag: \"x\"\r\nContent-MD5: a\r\nRepr-Digest: b\r\ncontent-digest: c\r\nDigest: d\r\nAccept-Ranges: \
                      bytes\r\nX-Kept: 1\r\nContent-Length: 9\r\n";
        let expected = "X-Kept: 1\r\nContent-Encoding: gzip\r\nETag: W/\"x\"\r\nVary: Accept-Encoding\r\n";
        assert_eq!(rewritten(fields, CODED), expected);
        let plain = Rewrite { encoding: None, weakens: false, varies: false };
        let kept = "ETag: \"x\"\r\nContent-MD5: a\r\nAccept-Ranges: bytes\r\n";
        assert_eq!(rewritten(kept, plain), format!("{kept}Vary: Accept-Encoding\r\n"));
    }

    #[test]
    fn weak_tags_stay_and_what_is_none_goes() {
        let tail = "Vary: Accept-Encoding\r\n";
        assert_eq!(rewritten("ETag: W/\"x\"\r\n", CODED), format!("Content-Encoding: gzip\r\nETag: W/\"x\"\r\n{tail}"));
        assert_eq!(rewritten("ETag: x\r\n", CODED), format!("Content-Encoding: gzip\r\n{tail}"));
        let not_modified = Rewrite { encoding: None, weakens: true, varies: false };
        assert_eq!(rewritten("ETag: \"x\"\r\n", not_modified), format!("ETag: W/\"x\"\r\n{tail}"));
    }

    #[test]
    fn a_304_does_not_tell_the_length_of_a_body_that_may_be_compressed() {
        for (status, expected) in [(304, None), (200, Some(9))] {
            let text = format!("HTTP/1.1 {status} X\r\nContent-Length: 9\r\n\r\n");
            let mut head = ResponseHead::default();
            let limits = Limits { head_bytes: 4096, headers: 20 };
            parse_response(text.as_bytes(), Asked { method: Method::Get, upgrade: None }, &limits, &mut head).unwrap();
            let as_it_is = Rewrite { encoding: None, weakens: false, varies: false };
            as_it_is.apply(&mut head, text.as_bytes(), &mut Vec::new());
            assert_eq!(head.stated_length(), expected, "{status}");
        }
    }

    #[test]
    fn trailers_that_do_not_come_are_not_announced() {
        let (begin, end) = ("Content-Encoding: gzip\r\n", "Vary: Accept-Encoding\r\n");
        for (trailers, wanted) in [
            ("Trailer: X-Time, Content-Digest\r\ntrailer: repr-digest,X-Last\r\n", "Trailer: X-Time, X-Last\r\n"),
            ("Trailer: Digest\r\n", ""),
            ("Trailer: X-Time\r\n", "Trailer: X-Time\r\n"),
        ] {
            assert_eq!(rewritten(trailers, CODED), format!("{begin}{wanted}{end}"));
            let plain = Rewrite { encoding: None, weakens: false, varies: false };
            assert_eq!(rewritten(trailers, plain), format!("{trailers}{end}"));
        }
    }

    #[test]
    fn lines_that_steps_have_added_are_of_the_head_too() {
        let lines = "X-A: 1\r\nETag: \"v1\"\r\nAccept-Ranges: bytes\r\nVary: Accept-Encoding\r\nSet-Cookie:a=b\r\n";
        let wanted =
            "Content-Encoding: gzip\r\nETag: W/\"v1\"\r\nX-A: 1\r\nVary: Accept-Encoding\r\nSet-Cookie:a=b\r\n";
        assert_eq!(rewritten_with("", lines, CODED), wanted);
        let plain = Rewrite { encoding: None, weakens: false, varies: false };
        assert_eq!(rewritten_with("", lines, plain), lines);
    }

    #[test]
    fn vary_is_said_once() {
        for vary in ["Vary: accept-encoding\r\n", "Vary: Origin, Accept-Encoding\r\n", "Vary: *\r\n"] {
            assert_eq!(rewritten(vary, CODED), format!("{vary}Content-Encoding: gzip\r\n"));
        }
        let expected = "Vary: Origin\r\nContent-Encoding: gzip\r\nVary: Accept-Encoding\r\n";
        assert_eq!(rewritten("Vary: Origin\r\n", CODED), expected);
    }
}
