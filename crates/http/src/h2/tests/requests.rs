//! Requests, read field by field.

use crate::h1::{Field, Limits, Method, RequestBody, RequestHead, Version, cookies};
use crate::h2::testing::add_field;
use crate::h2::{Refusal, RequestReader, fuzz};

type Pairs<'a> = &'a [(&'a str, &'a [u8])];

const GET: [(&str, &[u8]); 4] =
    [(":method", b"GET"), (":scheme", b"https"), (":authority", b"shop.example"), (":path", b"/")];
const LIMITS: Limits = Limits { head_bytes: 65536, headers: 20 };

/// A request that was read, with its text.
struct Read {
    head: RequestHead,
    text: Vec<u8>,
}

impl Read {
    /// Lines of the fields that go on.
    fn forwarded(&self) -> String {
        let mut out = Vec::new();
        self.head.fields.write_forwarded(&self.text, &mut out);
        String::from_utf8(out).unwrap()
    }
}

fn read_all<'a>(fields: impl Iterator<Item = (&'a str, &'a [u8])>, end: bool) -> Result<Read, Refusal> {
    let (mut text, mut head, mut reader) = (Vec::new(), RequestHead::default(), RequestReader::default());
    for (name, value) in fields {
        let field = add_field(name.as_bytes(), value, name == "authorization", &mut text);
        reader.field(&text, field, &mut head);
    }
    reader.finish(&mut text, end, &LIMITS, || *b"the sample nonce", &mut head).map(|()| Read { head, text })
}

/// A GET of `/` with further fields.
fn get(fields: Pairs<'_>, end: bool) -> Result<Read, Refusal> {
    read_all(GET.into_iter().chain(fields.iter().copied()), end)
}

/// The same with other pseudo-header fields; none: left out.
fn with(changes: &[(&str, Option<&[u8]>)], fields: Pairs<'_>, end: bool) -> Result<Read, Refusal> {
    let of = |name: &str| changes.iter().find(|(changed, _)| *changed == name).map(|(_, value)| *value);
    let usual = GET.into_iter().filter_map(|(name, value)| Some((name, of(name).unwrap_or(Some(value))?)));
    let added = changes.iter().filter(|(name, _)| !GET.iter().any(|(known, _)| known == name));
    let added = added.filter_map(|(name, value)| Some((*name, (*value)?)));
    read_all(usual.chain(added).chain(fields.iter().copied()), end)
}

#[track_caller]
fn malformed(read: Result<Read, Refusal>, label: &str) {
    match read {
        Err(Refusal::Malformed) => {}
        Err(Refusal::Rejected(reject)) => panic!("{label}: answered with {reject:?}"),
        Ok(read) => panic!("{label}: {}", read.text.escape_ascii()),
    }
}

#[track_caller]
fn answered(read: Result<Read, Refusal>, label: &str) {
    match read {
        Err(Refusal::Rejected(reject)) => assert_eq!(reject.fault.label(), label),
        Err(Refusal::Malformed) => panic!("{label}: reset"),
        Ok(read) => panic!("{label}: {}", read.text.escape_ascii()),
    }
}

#[test]
fn a_request_reads_as_if_it_had_come_by_http1() {
    let read = get(&[("accept", b"*/*"), ("te", b"trailers"), ("x_forwarded_for", b"1")], true).unwrap();
    let Read { head, text } = &read;
    assert_eq!((head.method, head.method_text.bytes(text), head.version), (Method::Get, &b"GET"[..], Version::Http2));
    assert_eq!((head.host.bytes(text), head.target(text).concat()), (&b"shop.example"[..], b"/".to_vec()));
    assert_eq!((head.body, head.te_trailers, head.keep_alive), (RequestBody::None, true, true));
    assert_eq!((head.length, read.forwarded().as_str()), (text.len(), "accept: */*\r\n"));
    // Found by its name, as it is in HTTP/1.
    assert_eq!(head.fields.value(text, "Host"), Some(&b"shop.example"[..]));
}

#[test]
fn the_end_of_the_stream_says_whether_there_is_a_body() {
    let post = |fields: Pairs<'_>, end| with(&[(":method", Some(b"POST"))], fields, end).unwrap().head;
    assert_eq!(post(&[], false).body, RequestBody::Chunked);
    assert_eq!(post(&[], true).body, RequestBody::Length(0));
    assert_eq!(post(&[("content-length", b"5")], false).body, RequestBody::Length(5));
    assert_eq!(post(&[("content-length", b"0")], true).body, RequestBody::Length(0));
    assert!(post(&[("expect", b"100-continue")], false).expect_continue);
    assert!(!post(&[("expect", b"100-continue")], true).expect_continue);
    assert_eq!(get(&[], false).unwrap().head.body, RequestBody::Chunked);
}

#[test]
fn crumbs_of_cookies_become_one_field_in_the_place_of_the_first() {
    let crumbs: Pairs<'_> = &[("a", b"1"), ("cookie", b"a=1"), ("x", b"y"), ("cookie", b"b=2"), ("cookie", b"c=3")];
    assert_eq!(get(crumbs, true).unwrap().forwarded(), "a: 1\r\ncookie: a=1; b=2; c=3\r\nx: y\r\n");
    assert_eq!(get(&crumbs[..3], true).unwrap().forwarded(), "a: 1\r\ncookie: a=1\r\nx: y\r\n");
    // Blanks are no part of a value.
    assert_eq!(get(&[("cookie", b""), ("cookie", b"")], true).unwrap().forwarded(), "cookie: ;\r\n");
    // The whole is found by its name, and as secret as a part.
    let (mut text, mut head, mut reader) = (Vec::new(), RequestHead::default(), RequestReader::default());
    let all = GET.into_iter().chain([("cookie", &b"a=1"[..]), ("cookie", b"b=2")]);
    for (name, value) in all {
        let field = add_field(name.as_bytes(), value, value == b"b=2", &mut text);
        reader.field(&text, field, &mut head);
    }
    reader.finish(&mut text, true, &LIMITS, || [0; 16], &mut head).unwrap();
    assert_eq!(head.fields.value(&text, "cookie"), Some(&b"a=1; b=2"[..]));
    let is_cookie = |field: &&Field| field.name.bytes(&text) == b"cookie";
    assert_eq!(head.fields.iter().filter(is_cookie).count(), 1, "crumbs are found no more");
    assert_eq!(head.length, text.len() - "cookiea=1cookieb=2".len(), "and are not counted twice");
    for (name, value) in [("a", b"1"), ("b", b"2")] {
        assert_eq!(cookies(&head.fields, &text, name).collect::<Vec<_>>(), [value]);
    }
    assert!(head.fields.iter().find(|field| field.forward).unwrap().secret);
}

#[test]
#[rustfmt::skip] // one line per case
fn fields_of_a_connection_are_malformed_and_others_are_judged_as_in_http1() {
    let cases: &[(&str, &[u8], &str)] = &[
        ("connection", b"close", "connection-specific-field"),
        ("transfer-encoding", b"chunked", "connection-specific-field"),
        ("upgrade", b"h2c", "connection-specific-field"),
        ("keep-alive", b"5", "connection-specific-field"),
        ("proxy-connection", b"close", "connection-specific-field"),
        ("te", b"gzip", "bad-te"),
        ("te", b"trailers, gzip", "bad-te"),
        ("content-length", b"+5", "bad-content-length"),
        ("content-length", b"5, 5", "bad-content-length"),
        ("content-length", b"18446744073709551616", "bad-content-length"),
        // A body announced, and the end said.
        ("content-length", b"5", "bad-content-length"),
        (":path", b"/", "bad-field-name"),
    ];
    for (name, value, label) in cases {
        malformed(get(&[("x", b"y"), (name, value)], true), label);
    }
    malformed(get(&[("content-length", b"5"), ("content-length", b"6")], false), "several-content-lengths");
    malformed(get(&[("content-length", b"5"), ("content-length", b"5")], false), "several-content-lengths");
    answered(get(&[("content-length", b"")], false), "bad-content-length");
    malformed(get(&[("content-length", b"9223372036854775808")], false), "bad-content-length");
    answered(get(&[("expect", b"magic")], true), "unknown-expectation");
    // Whatever else is wrong, malformed is malformed.
    malformed(get(&[("expect", b"magic"), ("connection", b"close")], true), "connection-specific-field");
    malformed(with(&[(":scheme", Some(b"ftp"))], &[("te", b"gzip")], true), "bad-te");
}

#[test]
#[rustfmt::skip] // one line per case
fn pseudo_headers_that_are_not_what_they_should_be_are_refused() {
    let reset: &[(&str, Option<&[u8]>, &str)] = &[
        (":method", None, "bad-method"),
        (":method", Some(b""), "bad-method"),
        (":method", Some(b"GET /evil HTTP/1.1"), "bad-method"),
        (":method", Some(b"CONNECT"), "bad-scheme"),
        (":scheme", None, "bad-scheme"),
        (":scheme", Some(b"http://elsewhere.test/"), "bad-scheme"),
        (":path", None, "bad-target"),
        (":path", Some(b""), "bad-target"),
        (":path", Some(b"x"), "bad-target"),
        (":path", Some(b"http://other/"), "bad-target"),
        (":path", Some(b"/a b"), "bad-target"),
        (":path", Some(b"/a#b"), "bad-target"),
        (":path", Some(b"/\xff"), "bad-target"),
        (":authority", Some(b""), "bad-host"),
        (":authority", Some(b"shop.example/x"), "bad-host"),
        (":authority", Some(b"shop.example?x"), "bad-host"),
        (":authority", Some(b"shop example"), "bad-host"),
        (":protocol", Some(b"websocket"), "bad-method"),
        (":status", Some(b"200"), "bad-field-name"),
    ];
    for (name, value, label) in reset {
        malformed(with(&[(name, *value)], &[], true), label);
    }
    let told: &[(&str, Option<&[u8]>, &str)] = &[
        (":path", Some(b"*"), "bad-target"),
        (":path", Some(b"/\xc3\xa4"), "bad-target-byte"),
        (":method", Some(b"TRACE"), "trace-not-allowed"),
        (":method", Some(b"A-METHOD-THAT-IS-LONGER-THAN-THIRTY-TWO"), "method-too-long"),
        (":scheme", Some(b"ftp"), "bad-scheme"),
        (":scheme", Some(b""), "bad-scheme"),
        (":authority", None, "no-host"),
        (":authority", Some(b"user@shop.example"), "bad-host"),
        (":authority", Some(b"shop.example:99999"), "bad-host"),
    ];
    for (name, value, label) in told {
        answered(with(&[(name, *value)], &[], true), label);
    }
    let connect: &[(&str, Option<&[u8]>)] = &[(":method", Some(b"CONNECT")), (":path", None), (":scheme", None)];
    answered(with(connect, &[], true), "connect-not-supported");
    let tape: &[(&str, Option<&[u8]>)] = &[(":method", Some(b"CONNECT")), (":protocol", Some(b"connect-udp"))];
    answered(with(tape, &[], true), "unknown-protocol");
    malformed(read_all([].into_iter(), true), "bad-method");
    malformed(get(&[(":method", b"GET")], true), "bad-field-name");
}

/// RFC 9113 §8.3: all of them come before the fields, each once.
#[test]
fn pseudo_headers_behind_fields_are_malformed() {
    for late in GET {
        let before = GET.into_iter().filter(|field| field.0 != late.0);
        malformed(read_all(before.chain([("x", &b"y"[..]), late]), true), late.0);
        malformed(read_all(GET.into_iter().chain([late]), true), late.0);
    }
}

#[test]
fn host_and_authority_must_mean_the_same() {
    let host = |read: Result<Read, Refusal>| read.map(|read| read.head.host.bytes(&read.text).to_vec());
    assert_eq!(host(get(&[("host", b"shop.example")], true)).unwrap(), b"shop.example");
    assert_eq!(host(get(&[("host", b"SHOP.example:443")], true)).unwrap(), b"shop.example");
    answered(get(&[("host", b"other.example")], true), "host-differs-from-target");
    answered(get(&[("host", b"shop.example:80")], true), "host-differs-from-target");
    answered(get(&[("host", b"shop.example"), ("host", b"shop.example")], true), "several-hosts");
    answered(get(&[("host", b"")], true), "empty-host");
    assert_eq!(host(with(&[(":authority", None)], &[("host", b"a:81")], true)).unwrap(), b"a:81");
    let whole: &[(&str, Option<&[u8]>)] = &[(":method", Some(b"OPTIONS")), (":path", Some(b"*"))];
    let read = with(whole, &[("host", b"SHOP.example"), ("max-forwards", b"3")], true).unwrap();
    assert_eq!((read.head.target(&read.text).concat(), read.head.max_forwards), (b"*".to_vec(), Some(3)));
}

#[test]
fn a_websocket_by_extended_connect_becomes_an_upgrade() {
    let connect: &[(&str, Option<&[u8]>)] =
        &[(":method", Some(b"CONNECT")), (":path", Some(b"/chat")), (":protocol", Some(b"WebSocket"))];
    // A key of the client's own is not used over HTTP/2: with two of them the server could prove the wrong one.
    let fields: Pairs<'_> = &[("sec-websocket-version", b"13"), ("sec-websocket-key", b"x")];
    let read = with(connect, fields, false).unwrap();
    let Read { head, text } = &read;
    assert_eq!((head.method, head.method_text.bytes(text), head.body), (Method::Get, &b"GET"[..], RequestBody::None));
    assert_eq!(head.protocols(text), Some(&b"websocket"[..]));
    assert_eq!(
        read.forwarded(),
        "sec-websocket-version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
        "the key of RFC 6455 §1.3"
    );
    answered(with(connect, &[("content-length", b"5")], false), "content-length-in-tunnel");
    // Only a WebSocket's key is made here, and only where there is one.
    assert_eq!(get(&[("sec-websocket-key", b"x")], true).unwrap().forwarded(), "sec-websocket-key: x\r\n");
}

#[test]
fn a_head_has_as_many_fields_as_it_may() {
    let fields = vec![("x", &b"y"[..]); LIMITS.headers];
    assert_eq!(get(&fields, true).unwrap().head.fields.iter().filter(|field| field.forward).count(), LIMITS.headers);
    answered(get(&[&fields[..], &[("x", b"z")]].concat(), true), "too-many-fields");
}

/// Every request that comes through reads as what was asked, for heads made of pieces that tend to go wrong.
#[test]
fn any_request_is_refused_or_reads_as_what_was_asked() {
    const USUAL: [&[u8]; 8] =
        [b":method", b"GET", b":scheme", b"https", b":authority", b"shop.example", b":path", b"/"];
    #[rustfmt::skip]
    const PIECES: &[&[u8]] = &[
        b":method", b":path", b":scheme", b":authority", b":protocol", b":status", b"GET", b"POST", b"CONNECT",
        b"OPTIONS", b"/", b"*", b"/a?b", b"https", b"http", b"shop.example", b"[::1]:443", b"websocket", b"host", b"te",
        b"trailers", b"cookie", b"a=1", b"content-length", b"5", b"0", b"expect", b"100-continue", b"x-a", b" ", b":",
        b"chunked", b"transfer-encoding", b"x_forwarded_for", b"", b"SHOP.example", b"shop.example:443", b"http://x/",
        b"connection", b"upgrade", b"\xc3\xa4", b"max-forwards", b"sec-websocket-key", b"#", b"<",
    ];
    let mut random = fastrand::Rng::with_seed(2023);
    for _ in 0..200_000 {
        let mut input = vec![random.u8(..)];
        for place in 0..8 + 2 * random.usize(..6) {
            let usual = USUAL.get(place).filter(|_| random.u8(..) < 240);
            for _ in 0..random.usize(..8) / 6 + 1 {
                input.extend_from_slice(usual.copied().unwrap_or_else(|| PIECES[random.usize(..PIECES.len())]));
                if usual.is_some() {
                    break;
                }
            }
            input.push(0xff);
        }
        input.pop();
        fuzz::request(&input);
    }
}
