//! Whether a response is compressed: what it is, and what was asked.

use propylon_config::{Compress, Credentials, Encoding};
use propylon_http::h1::{Fields, Framing, Method, RequestHead, ResponseBody, ResponseHead, Version, elements};

use crate::accept::Accepted;

/// A request, as far as that is of interest.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    pub head: &'a RequestHead,
    /// Text that the head refers to.
    pub text: &'a [u8],
    /// The client's connection has TLS.
    pub is_tls: bool,
    /// The client has shown a certificate.
    pub is_identified: bool,
}

/// Head of a response as its client is to get it.
#[derive(Clone, Copy)]
pub struct Answered<'a> {
    pub head: &'a ResponseHead,
    /// Text that the head refers to.
    pub text: &'a [u8],
    /// Lines that are added, by the route's steps: what they stand for is withheld in the head.
    pub lines: &'a [u8],
}

impl<'a> Answered<'a> {
    /// Values of all fields of a name that go out.
    pub(crate) fn values(self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let Answered { head, text, lines } = self;
        let is_it = move |other: &[u8]| other.eq_ignore_ascii_case(name.as_bytes());
        let fields = head.fields.iter().filter(move |field| field.forward && is_it(field.name.bytes(text)));
        let added = fields_of(lines).filter(move |(other, _)| is_it(other)).map(|(_, value)| value);
        fields.map(move |field| field.value.bytes(text)).chain(added)
    }

    fn value(self, name: &'a str) -> Option<&'a [u8]> {
        self.values(name).next()
    }
}

/// Names and values of whole lines.
pub(crate) fn fields_of(lines: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    lines.split(|byte| *byte == b'\n').filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        Some((&line[..colon], line[colon + 1..].trim_ascii()))
    })
}

/// Verdict on a response that a route with compression hands on. What is in none of these goes on as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Compressed(Encoding),
    /// Another request might have got it compressed, which caches are to know.
    Plain(Skip),
    /// The client's copy still holds. Whether it was compressed is known by its tag; what it depends on is said in any
    /// case, as with the response that it is a copy of (RFC 9110 §15.4.5).
    NotModified {
        was_compressed: bool,
    },
}

/// Reason for which a response that could be compressed is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// The client takes none of the route's codings, or wants nothing transformed.
    NotAccepted,
    /// The client has asked for a part.
    Range,
    /// The request has credentials, and may be the work of another site's page.
    Credentials,
    /// The core has too much to do.
    Busy,
    /// The core's encoders have all the memory that they may have.
    Memory,
}

impl Skip {
    pub const ALL: [Skip; 5] = [Skip::NotAccepted, Skip::Range, Skip::Credentials, Skip::Busy, Skip::Memory];

    /// Label in metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Skip::NotAccepted => "not-accepted",
            Skip::Range => "range",
            Skip::Credentials => "credentials",
            Skip::Busy => "busy",
            Skip::Memory => "memory",
        }
    }
}

/// Judges a response of a route whose compression is `rules`. `None`: it is left as it is.
pub fn judge(rules: &Compress, asked: &Asked<'_>, response: Answered<'_>) -> Option<Verdict> {
    if response.head.status == 304 {
        let was_compressed = is_about_compressed(asked, response);
        let depends = was_compressed || may_be_about_compressed(rules, response);
        return depends.then_some(Verdict::NotModified { was_compressed });
    }
    let length = suitable_length(rules, asked.head.method, response)?;
    let fields = &asked.head.fields;
    let accepted = Accepted::of(values(fields, asked.text, "Accept-Encoding"));
    if length.is_some_and(|length| length < rules.minimum) && !accepted.refuses_identity() {
        return None;
    }
    let Some(encoding) =
        accepted.choose(&rules.encodings).filter(|_| !forbids_transforms(values(fields, asked.text, "Cache-Control")))
    else {
        return Some(Verdict::Plain(Skip::NotAccepted));
    };
    if fields.value(asked.text, "Range").is_some() {
        return Some(Verdict::Plain(Skip::Range));
    }
    let is_safe = match rules.credentials {
        Credentials::Always => true,
        Credentials::Never => !has_credentials(asked),
        Credentials::SameOrigin => !has_credentials(asked) || is_of_same_origin(asked),
    };
    Some(if is_safe { Verdict::Compressed(encoding) } else { Verdict::Plain(Skip::Credentials) })
}

/// The length of a body that could be compressed, if that is known; `None` for all others.
fn suitable_length(rules: &Compress, method: Method, answered: Answered<'_>) -> Option<Option<u64>> {
    let response = answered.head;
    // Without content, with a part of it, or with differences from another (RFC 3229).
    if matches!(response.status, ..200 | 204 | 205 | 206 | 226 | 304) || response.upgrade.is_some() {
        return None;
    }
    let length = match (response.body, response.framing_for(Version::Http11)) {
        (ResponseBody::None, _) if method != Method::Head => return None,
        (_, Framing::Length(0)) => return None,
        (_, Framing::Length(length)) => Some(length),
        _ => None,
    };
    let is_suitable = is_of_types(rules, answered.value("Content-Type")?) && !is_fixed(answered);
    is_suitable.then_some(length)
}

fn is_of_types(rules: &Compress, media_type: &[u8]) -> bool {
    let media_type = media_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    // Messages of gRPC are compressed by themselves, or not, as their two ends have agreed.
    let is_grpc = media_type.get(..16).is_some_and(|begin| begin.eq_ignore_ascii_case(b"application/grpc"));
    !is_grpc && rules.types.iter().any(|known| known.covers(media_type))
}

/// Whether a body goes on as it is: one that is coded, or a part; and one whose signature is of it as it is (RFC 9421).
fn is_fixed(answered: Answered<'_>) -> bool {
    let has = |name| answered.value(name).is_some();
    let is_told = has("Content-Encoding") || has("Content-Range") || has("Signature-Input");
    is_told || forbids_transforms(answered.values("Cache-Control"))
}

/// Whether a 304 may be about a response that is compressed for some. Few say their type: the others may be about any.
fn may_be_about_compressed(rules: &Compress, answered: Answered<'_>) -> bool {
    answered.value("Content-Type").is_none_or(|kind| is_of_types(rules, kind)) && !is_fixed(answered)
}

/// Whether Cache-Control forbids to change the body (RFC 9111 §5.2.1.6, §5.2.2.6).
fn forbids_transforms<'a>(values: impl Iterator<Item = &'a [u8]>) -> bool {
    let mut directives = values.flat_map(elements);
    directives.any(|directive| directive.eq_ignore_ascii_case(b"no-transform"))
}

/// Whether a request that was answered with 304 is about a copy that was compressed here, going by the tag that we gave
/// it.
fn is_about_compressed(asked: &Asked<'_>, response: Answered<'_>) -> bool {
    let Some(tag) = response.value("ETag").filter(|tag| tag.starts_with(b"\"")) else { return false };
    let mut known = values(&asked.head.fields, asked.text, "If-None-Match").flat_map(elements);
    known.any(|known| known.strip_prefix(b"W/") == Some(tag))
}

/// Whether a request carries what a browser adds by itself, whichever site makes it ask: cookies, passwords that it
/// asks for in a dialogue of its own, certificates. Tokens are added by pages of the site, or by no browser at all.
fn has_credentials(asked: &Asked<'_>) -> bool {
    let fields = &asked.head.fields;
    let authorization = fields.value(asked.text, "Authorization").unwrap_or_default();
    let scheme = authorization.split(|byte| *byte == b' ').next().unwrap_or_default();
    let is_added =
        ["Basic", "Digest", "Negotiate", "NTLM"].iter().any(|known| scheme.eq_ignore_ascii_case(known.as_bytes()));
    is_added || asked.is_identified || fields.value(asked.text, "Cookie").is_some()
}

/// Whether a request was made by a person or by a page of the same origin, as far as a browser says so. It says nothing
/// of its own accord that a page of another site could make it say.
fn is_of_same_origin(asked: &Asked<'_>) -> bool {
    let value = |name: &str| asked.head.fields.value(asked.text, name);
    // Sent by all browsers of today, over HTTPS (Fetch Metadata Request Headers §2.3).
    if let Some(site) = value("Sec-Fetch-Site") {
        return matches!(site, b"same-origin" | b"none");
    }
    let Some(page) = value("Origin").or_else(|| value("Referer")) else { return false };
    // A page over plaintext may be anybody's.
    let (rest, port) = match (page.strip_prefix(b"https://"), page.strip_prefix(b"http://")) {
        (Some(rest), _) => (rest, &b":443"[..]),
        (_, Some(rest)) if !asked.is_tls => (rest, &b":80"[..]),
        _ => return false,
    };
    let origin = rest.split(|byte| *byte == b'/').next().unwrap_or_default();
    let host = asked.head.host.bytes(asked.text);
    let bare = |authority| -> &[u8] { <[u8]>::strip_suffix(authority, port).unwrap_or(authority) };
    !host.is_empty() && bare(origin).eq_ignore_ascii_case(bare(host))
}

/// Values of all fields of a name that have come.
fn values<'a>(fields: &'a Fields, text: &'a [u8], name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    let named = fields.iter().filter(move |field| {
        field.name.len() == name.len() && field.name.bytes(text).eq_ignore_ascii_case(name.as_bytes())
    });
    named.map(move |field| field.value.bytes(text))
}

#[cfg(test)]
mod tests {
    use propylon_http::h1::{self, Limits, Parsed, parse_request, parse_response};

    use super::*;

    const LIMITS: Limits = Limits { head_bytes: 8192, headers: 50 };
    const HTML: &str = "Content-Type: text/html\r\nContent-Length: 5000";

    fn verdict_of(rules: &Compress, request: &str, response: &str) -> Option<Verdict> {
        let (mut head, mut answer) = (RequestHead::default(), ResponseHead::default());
        assert_eq!(parse_request(request.as_bytes(), &LIMITS, &mut head).unwrap(), Parsed::Complete);
        let method = h1::Asked { method: head.method, upgrade: None };
        assert_eq!(parse_response(response.as_bytes(), method, &LIMITS, &mut answer).unwrap(), Parsed::Complete);
        let is_tls = request.contains("X-Tls");
        let is_identified = request.contains("X-Certificate");
        let asked = Asked { head: &head, text: request.as_bytes(), is_tls, is_identified };
        judge(rules, &asked, Answered { head: &answer, text: response.as_bytes(), lines: b"" })
    }

    /// Verdict on a response with these fields, to a request with those.
    fn verdict(request: &str, response: &str) -> Option<Verdict> {
        let ended = |fields: &str| if fields.is_empty() { String::new() } else { format!("{fields}\r\n") };
        let request = format!("GET / HTTP/1.1\r\nHost: a.example\r\n{}\r\n", ended(request));
        verdict_of(&Compress::default(), &request, &format!("HTTP/1.1 200 OK\r\n{}\r\n", ended(response)))
    }

    #[test]
    fn responses_that_are_never_compressed_are_left_alone() {
        let gzip = "Accept-Encoding: gzip";
        assert_eq!(verdict(gzip, HTML), Some(Verdict::Compressed(Encoding::Gzip)));
        assert_eq!(
            verdict(gzip, "Content-Type: Text/HTML; charset=utf-8\r\nTransfer-Encoding: chunked"),
            Some(Verdict::Compressed(Encoding::Gzip))
        );
        for response in [
            "Content-Length: 5000",
            "Content-Type: image/png\r\nContent-Length: 5000",
            "Content-Type: application/octet-stream\r\nContent-Length: 5000",
            "Content-Type: text/html\r\nContent-Length: 1023",
            "Content-Type: text/html\r\nContent-Length: 0",
            "Content-Type: application/grpc+json\r\nContent-Length: 5000",
            "Content-Type: application/grpc-web+json\r\nTransfer-Encoding: chunked",
            &format!("{HTML}\r\nContent-Encoding: br"),
            &format!("{HTML}\r\nContent-Encoding: identity"),
            &format!("{HTML}\r\nContent-Range: bytes 0-4999/9000"),
            &format!("{HTML}\r\nCache-Control: max-age=3, No-Transform"),
            &format!("{HTML}\r\nSignature-Input: sig=(\"content-digest\")"),
        ] {
            assert_eq!(verdict(gzip, response), None, "{response}");
        }
        for status in [204, 205, 206, 226] {
            let request = format!("GET / HTTP/1.1\r\nHost: a.example\r\n{gzip}\r\n\r\n");
            let response = format!("HTTP/1.1 {status} X\r\nContent-Type: text/html\r\nContent-Length: 5000\r\n\r\n");
            assert_eq!(verdict_of(&Compress::default(), &request, &response), None, "{status}");
        }
    }

    #[test]
    fn what_was_asked_decides_over_the_others() {
        use Skip::{NotAccepted, Range};
        assert_eq!(verdict("", HTML), Some(Verdict::Plain(NotAccepted)));
        assert_eq!(verdict("Accept-Encoding: deflate", HTML), Some(Verdict::Plain(NotAccepted)));
        assert_eq!(verdict("Accept-Encoding: gzip\r\nRange: bytes=0-", HTML), Some(Verdict::Plain(Range)));
        let no_transform = "Accept-Encoding: gzip\r\nCache-Control: no-transform";
        assert_eq!(verdict(no_transform, HTML), Some(Verdict::Plain(NotAccepted)));
        let small = "Content-Type: text/html\r\nContent-Length: 9";
        assert_eq!(verdict("Accept-Encoding: br, identity;q=0", small), Some(Verdict::Compressed(Encoding::Br)));
        let head = "HEAD / HTTP/1.1\r\nHost: a.example\r\nAccept-Encoding: gzip\r\n\r\n";
        let judged =
            |fields: &str| verdict_of(&Compress::default(), head, &format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n"));
        assert_eq!(judged(HTML), Some(Verdict::Compressed(Encoding::Gzip)));
        assert_eq!(judged("Content-Type: text/html"), Some(Verdict::Compressed(Encoding::Gzip)));
        assert_eq!(judged(small), None);
    }

    #[test]
    fn secrets_are_not_compressed_for_other_sites() {
        let credentials =
            ["Cookie: a=b", "Authorization: Basic eA==", "Authorization: negotiate x", "X-Certificate: 1"];
        let safe = [
            "Sec-Fetch-Site: same-origin",
            "Sec-Fetch-Site: none",
            "Origin: https://a.example",
            "Origin: https://A.example:443",
            "Origin: http://a.example",
            "Referer: https://a.example/page?x",
            "Referer: http://a.example:80/",
        ];
        let unsafe_ones = [
            "X-Nothing: 1",
            "Sec-Fetch-Site: cross-site",
            "Sec-Fetch-Site: same-site",
            "Sec-Fetch-Site: cross-site\r\nOrigin: https://a.example",
            "Origin: null",
            "Origin: https://b.example\r\nReferer: https://a.example/",
            "Origin: https://a.example.evil",
            "Origin: https://a.example:8443",
            "Origin: http://a.example\r\nX-Tls: 1",
            "Referer: http://a.example/\r\nX-Tls: 1",
            "Referer: https://b.example/https://a.example/",
        ];
        let compressed = Some(Verdict::Compressed(Encoding::Gzip));
        for credential in credentials {
            let asked = |more: &str| verdict(&format!("Accept-Encoding: gzip\r\n{credential}\r\n{more}"), HTML);
            for more in safe {
                assert_eq!(asked(more), compressed, "{credential}, {more}");
            }
            for more in unsafe_ones {
                assert_eq!(asked(more), Some(Verdict::Plain(Skip::Credentials)), "{credential}, {more}");
            }
        }
        assert_eq!(verdict("Accept-Encoding: gzip\r\nAuthorization: Bearer x", HTML), compressed);
        assert_eq!(verdict("Accept-Encoding: gzip\r\nSec-Fetch-Site: cross-site", HTML), compressed);
        let request = |site: &str| {
            format!(
                "GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\nCookie: a=b\r\nSec-Fetch-Site: {site}\r\n\r\n"
            )
        };
        let response = format!("HTTP/1.1 200 OK\r\n{HTML}\r\n\r\n");
        let rules = |credentials| Compress { credentials, ..Compress::default() };
        let always = verdict_of(&rules(Credentials::Always), &request("cross-site"), &response);
        let never = verdict_of(&rules(Credentials::Never), &request("same-origin"), &response);
        assert_eq!((always, never), (compressed, Some(Verdict::Plain(Skip::Credentials))));
    }

    #[test]
    fn a_copy_that_was_compressed_is_known_by_its_tag() {
        let judged = |known: &str, tag: &str| {
            let request = format!("GET / HTTP/1.1\r\nHost: a.example\r\nIf-None-Match: {known}\r\n\r\n");
            let response = format!("HTTP/1.1 304 Not Modified\r\nETag: {tag}\r\n\r\n");
            verdict_of(&Compress::default(), &request, &response)
        };
        let not_modified = |was_compressed| Some(Verdict::NotModified { was_compressed });
        assert_eq!(judged("\"y\", W/\"x\"", "\"x\""), not_modified(true));
        assert_eq!(judged("\"x\"", "\"x\""), not_modified(false));
        assert_eq!(judged("W/\"x\"", "W/\"x\""), not_modified(false));
        assert_eq!(judged("W/\"y\"", "\"x\""), not_modified(false));
        // Nor does the date of a copy tell. What is never compressed does not depend on the request.
        let of = |fields: &str| {
            let request = "GET / HTTP/1.1\r\nHost: a.example\r\nIf-Modified-Since: x\r\n\r\n";
            verdict_of(&Compress::default(), request, &format!("HTTP/1.1 304 Not Modified\r\n{fields}\r\n"))
        };
        for fields in ["", "Content-Type: text/html\r\nContent-Length: 5000\r\n"] {
            assert_eq!(of(fields), not_modified(false), "{fields}");
        }
        let never = ["Content-Type: image/png", "Content-Encoding: br"];
        for fields in never.into_iter().chain(["Cache-Control: no-transform", "Content-Type: application/grpc"]) {
            assert_eq!(of(&format!("{fields}\r\n")), None, "{fields}");
        }
    }
}
