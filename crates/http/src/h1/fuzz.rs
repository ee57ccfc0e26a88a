//! Promises that must hold for any bytes whatever: shared by the fuzz targets and by a seeded run among the tests.
//!
//! Each function panics when a promise of this module is broken. `httparse` is the witness from outside: what we let
//! through, another parser reads the same way.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use propylon_config::Forwarded;

use super::grammar::{elements, first_control};
use super::*;

const LIMITS: Limits = Limits { head_bytes: 4096, headers: 60 };
/// For what we wrote ourselves, which may be longer than what came.
const WIDE: Limits = Limits { head_bytes: 16384, headers: 100 };

/// Requests: the same verdict however the bytes arrive, and a rewriting that reads as what was asked.
pub fn head(bytes: &[u8]) {
    let mut whole = RequestHead::default();
    let verdict = parse_request(bytes, &LIMITS, &mut whole);
    let mut pieces = RequestHead::default();
    let in_pieces = feed(bytes, |seen| parse_request(seen, &LIMITS, &mut pieces));
    match (verdict, in_pieces) {
        (Ok(Parsed::Complete), (Ok(Parsed::Complete), seen)) => {
            assert!(seen >= whole.length && whole.length <= bytes.len());
            assert_eq!(format!("{whole:?}"), format!("{pieces:?}"));
            assert!(whole.fields.len() <= LIMITS.headers);
        }
        (Ok(Parsed::Partial), (Ok(Parsed::Partial), _)) => return,
        (Err(_), (Err(_), _)) => return,
        differing => panic!("the verdict depends on the division: {differing:?}"),
    }
    rewritten(&whole, bytes);
}

/// Asserts that what servers of HTTP/1 get of a request reads as what was asked.
pub fn rewritten(head: &RequestHead, buf: &[u8]) {
    for forwarded in [Forwarded::Remove, Forwarded::Replace, Forwarded::Append] {
        rewritten_with(head, buf, forwarded);
    }
}

fn rewritten_with(head: &RequestHead, buf: &[u8], forwarded: Forwarded) {
    let address = match head.length % 2 {
        0 => IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        _ => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    };
    let context = ForwardContext {
        client: &ClientAddress::new(address),
        scheme: Scheme::Https,
        forwarded,
        host: head.host.is_empty().then_some(b"absent.example"),
        body: head.body,
        expect_continue: true,
        keep_alive: head.keep_alive,
        via: !head.length.is_multiple_of(3),
    };
    let mut out = Vec::new();
    write_request(head, buf, &context, &mut out);
    assert_clean(&out);
    let mut again = RequestHead::default();
    assert_eq!(parse_request(&out, &WIDE, &mut again), Ok(Parsed::Complete), "{}", out.escape_ascii());
    assert_eq!(again.length, out.len());
    assert_eq!(again.version, Version::Http11);
    assert_eq!(again.method_text.bytes(&out), head.method_text.bytes(buf));
    assert_eq!(again.target(&out).concat(), head.target(buf).concat());
    assert_eq!(again.path(&out), head.path(buf));
    assert_eq!(again.query(&out), head.query(buf));
    if !head.host.is_empty() {
        assert_eq!(again.host.bytes(&out), head.host.bytes(buf));
    }
    assert_eq!(again.body, head.body);
    assert_eq!(again.te_trailers, head.te_trailers);
    assert_eq!(again.expect_continue, head.expect_continue);
    assert_eq!(again.protocols(&out).map(protocols), head.protocols(buf).map(protocols));
    let goes_on = |field: &&Field| field.forward && (forwarded == Forwarded::Append || field.kind != Name::Claim);
    let mut expected: Vec<Line> = head.fields.iter().filter(goes_on).map(|f| line(f, buf)).collect();
    if context.via {
        expected.push((b"Via".to_vec(), via(head.version)));
    }
    assert_eq!(forwarded_lines(&again.fields, &out), expected);
    witness_request(&again, &out);
}

fn via(version: Version) -> Vec<u8> {
    match version {
        Version::Http10 => b"1.0 propylon".to_vec(),
        Version::Http11 => b"1.1 propylon".to_vec(),
        Version::Http2 => b"2 propylon".to_vec(),
    }
}

fn protocols(upgrade: &[u8]) -> Vec<Vec<u8>> {
    elements(upgrade).map(<[u8]>::to_vec).collect()
}

type Line = (Vec<u8>, Vec<u8>);

fn forwarded_lines(fields: &Fields, buf: &[u8]) -> Vec<Line> {
    let forwarded = fields.iter().filter(|f| f.forward);
    forwarded.map(|f| line(f, buf)).collect()
}

fn line(field: &Field, buf: &[u8]) -> Line {
    (field.name.bytes(buf).to_vec(), field.value.bytes(buf).to_vec())
}

fn witness_request(head: &RequestHead, out: &[u8]) {
    let mut slots = [httparse::EMPTY_HEADER; 100];
    let mut request = httparse::Request::new(&mut slots);
    assert_eq!(request.parse(out), Ok(httparse::Status::Complete(out.len())));
    assert_eq!(request.method.map(str::as_bytes), Some(head.method_text.bytes(out)));
    assert_eq!(request.path.map(|p| p.as_bytes().to_vec()), Some(head.target(out).concat()));
    witness_fields(&head.fields, out, request.headers);
}

fn witness_fields(fields: &Fields, buf: &[u8], seen: &[httparse::Header]) {
    let ours: Vec<Line> = fields.iter().map(|f| line(f, buf)).collect();
    let theirs: Vec<Line> = seen.iter().map(|h| (h.name.as_bytes().to_vec(), h.value.to_vec())).collect();
    assert_eq!(ours, theirs);
    let count = |name: &str| {
        let named = seen.iter().filter(|h| h.name.eq_ignore_ascii_case(name));
        named.count()
    };
    assert!(count("content-length") + count("transfer-encoding") <= 1);
    for dropped in ["keep-alive", "proxy-connection", "http2-settings"] {
        assert_eq!(count(dropped), 0);
    }
}

/// Responses: the same promises on the way back.
pub fn response(bytes: &[u8]) {
    let upgrade = Some(&b"websocket, foo/2"[..]);
    let requests = [(Method::Get, None), (Method::Get, upgrade), (Method::Head, None)];
    for (method, upgrade) in requests {
        let asked = Asked { method, upgrade };
        let mut whole = ResponseHead::default();
        let verdict = parse_response(bytes, asked, &LIMITS, &mut whole);
        let mut pieces = ResponseHead::default();
        let (in_pieces, _) = feed(bytes, |seen| parse_response(seen, asked, &LIMITS, &mut pieces));
        match (verdict, in_pieces) {
            (Ok(Parsed::Complete), Ok(Parsed::Complete)) => {
                assert_eq!(format!("{whole:?}"), format!("{pieces:?}"));
                handed_on(&whole, bytes, asked);
            }
            (Ok(Parsed::Partial), Ok(Parsed::Partial)) => {}
            (Err(reject), Err(_)) => assert_eq!(reject.status, 502),
            differing => panic!("the verdict depends on the division: {differing:?}"),
        }
    }
}

fn handed_on(head: &ResponseHead, buf: &[u8], asked: Asked<'_>) {
    let mut out = Vec::new();
    let framing = head.framing_for(Version::Http11);
    if head.is_informational() {
        write_informational(head, buf, &mut out);
    } else {
        let context = AnswerContext {
            client: Version::Http11,
            framing,
            keep_alive: true,
            date: b"Sun, 06 Nov 1994 08:49:37 GMT",
        };
        write_response(head, buf, &context, &mut out);
    }
    assert_clean(&out);
    let mut again = ResponseHead::default();
    assert_eq!(parse_response(&out, asked, &WIDE, &mut again), Ok(Parsed::Complete), "{}", out.escape_ascii());
    assert_eq!(again.length, out.len());
    assert_eq!(again.status, head.status);
    assert_eq!(again.reason.bytes(&out), head.reason.bytes(buf));
    assert_eq!(again.framing_for(Version::Http11), framing);
    assert_eq!(again.body == ResponseBody::None, head.body == ResponseBody::None);
    assert_ne!(again.body, ResponseBody::UntilClose);
    assert_eq!(again.protocols(&out).map(protocols), head.protocols(buf).map(protocols));
    assert!(again.keep_alive);
    let mut expected = forwarded_lines(&head.fields, buf);
    if !head.has_date && !head.is_informational() {
        let date = b"Sun, 06 Nov 1994 08:49:37 GMT".to_vec();
        expected.push((b"Date".to_vec(), date));
    }
    if !head.is_informational() {
        expected.push((b"Via".to_vec(), via(head.version)));
    }
    assert_eq!(forwarded_lines(&again.fields, &out), expected);
    let mut slots = [httparse::EMPTY_HEADER; 100];
    let mut witness = httparse::Response::new(&mut slots);
    assert_eq!(witness.parse(&out), Ok(httparse::Status::Complete(out.len())));
    assert_eq!(witness.code, Some(head.status));
    witness_fields(&again.fields, &out, witness.headers);
}

/// Chunked bodies: the same data, trailers, end and verdict for any division; and what we write of it reads the same.
pub fn chunk(bytes: &[u8]) {
    let whole = decode(bytes, usize::MAX);
    for step in [1, 2, 7] {
        assert_eq!(decode(bytes, step), whole, "in pieces of {step}");
    }
    let Some(Verdict::End(_)) = whole.verdict else {
        return;
    };
    let mut out = Vec::new();
    for piece in whole.data.chunks(11) {
        write_chunk_header(piece.len(), &mut out);
        out.extend_from_slice(piece);
        out.extend_from_slice(b"\r\n");
    }
    write_last_chunk(&whole.trailers, &mut out);
    let again = decode(&out, usize::MAX);
    assert_eq!(again.verdict, Some(Verdict::End(out.len())));
    assert_eq!(again.data, whole.data);
    assert_eq!(again.trailers, whole.trailers);
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Decoded {
    data: Vec<u8>,
    trailers: Vec<u8>,
    /// Verdict; absent while more is needed.
    verdict: Option<Verdict>,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The bytes that the body took up.
    End(usize),
    Rejected(Reject),
}

fn decode(bytes: &[u8], step: usize) -> Decoded {
    let mut decoder = Decoder::new();
    let mut decoded = Decoded::default();
    let mut at = 0;
    while at < bytes.len() {
        let piece = &bytes[at..at.saturating_add(step).min(bytes.len())];
        match decoder.next(piece) {
            Ok(Event::NeedMore { consumed }) => {
                assert_eq!(consumed, piece.len());
                at += consumed;
            }
            Ok(Event::Data { start, end }) => {
                assert!(start < end);
                decoded.data.extend_from_slice(&piece[start..end]);
                at += end;
            }
            Ok(Event::End { consumed }) => {
                decoded.trailers = decoder.trailers().to_vec();
                decoded.verdict = Some(Verdict::End(at + consumed));
                assert_eq!(decoder.next(b"more"), Ok(Event::End { consumed: 0 }));
                break;
            }
            Err(reject) => {
                decoded.verdict = Some(Verdict::Rejected(reject));
                break;
            }
        }
    }
    decoded
}

/// Shows a parser ever more of `bytes`, in steps that depend on the bytes themselves, until it has made up its mind.
/// Also returns how many it had seen by then.
fn feed(bytes: &[u8], mut parse: impl FnMut(&[u8]) -> Result<Parsed, Reject>) -> (Result<Parsed, Reject>, usize) {
    let mut step = bytes.len() % 7;
    let mut seen = 0;
    loop {
        let verdict = parse(&bytes[..seen]);
        if verdict != Ok(Parsed::Partial) || seen == bytes.len() {
            return (verdict, seen);
        }
        step = (step * 5 + bytes[seen] as usize) % 13;
        seen = (seen + 1 + step).min(bytes.len());
    }
}

/// Lines end in CRLF, none is empty but the last, and no other control byte than HTAB is among them.
fn assert_clean(head: &[u8]) {
    let mut rest = head;
    while !rest.is_empty() {
        let end = first_control(rest).expect("a head ends in CRLF");
        assert_eq!(&rest[end..end + 2], b"\r\n", "{}", head.escape_ascii());
        rest = &rest[end + 2..];
        assert!(end > 0 || rest.is_empty(), "{}", head.escape_ascii());
    }
    assert!(head.ends_with(b"\r\n\r\n"));
}
