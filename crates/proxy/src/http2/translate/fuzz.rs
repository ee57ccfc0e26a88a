//! Promises for any pseudo-header fields and fields whatever: shared by the fuzz target and by a seeded run among the
//! tests. Panics when a promise is broken.

use propylon_http::h1::{Limits, Parsed, RequestBody, RequestHead, parse_request};

use super::*;

const LIMITS: Limits = Limits { head_bytes: 64 * 1024, headers: 200 };

/// A request in lines: method, scheme, authority, path, protocol (empty: absent, but for the method), then names and
/// values in turn, and whether a body follows by the first byte's lowest bit.
pub fn translate(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    let mut lines = rest.split(|byte| *byte == b'\xff');
    let mut next = || lines.next().unwrap_or_default();
    let (method, scheme, authority, path, protocol) = (next(), next(), next(), next(), next());
    fn given(bytes: &[u8]) -> Option<&[u8]> {
        (!bytes.is_empty()).then_some(bytes)
    }
    let pseudo = Pseudo {
        method,
        scheme: given(scheme),
        authority: given(authority),
        path: given(path),
        protocol: given(protocol),
    };
    let rest: Vec<&[u8]> = lines.collect();
    let fields: Vec<(&[u8], &[u8])> = rest.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    check(&pseudo, &fields, first & 1 == 1);
}

/// Either refused, or text that reads as what was asked and as nothing more.
pub fn check(pseudo: &Pseudo<'_>, fields: &[(&[u8], &[u8])], end: bool) {
    let mut random = fastrand::Rng::with_seed(1);
    let mut text = Vec::new();
    if write_head(pseudo, || fields.iter().copied(), end, &mut random, &mut text).is_err() {
        return;
    }
    let mut head = RequestHead::default();
    let Ok(parsed) = parse_request(&text, &LIMITS, &mut head) else { return };
    assert_eq!(parsed, Parsed::Complete, "{}", text.escape_ascii());
    assert_eq!(head.length, text.len(), "something follows the head: {}", text.escape_ascii());
    let tunnel = pseudo.protocol.is_some();
    let method: &[u8] = if tunnel { b"GET" } else { pseudo.method };
    assert_eq!(head.method_text.bytes(&text), method);
    assert_eq!(head.target(&text).concat(), pseudo.path.unwrap());
    let host = fields.iter().find(|(name, _)| *name == b"host").map(|(_, value)| *value);
    let authority = pseudo.authority.or(host).unwrap();
    assert!(head.host.bytes(&text).eq_ignore_ascii_case(authority));
    assert_eq!(head.upgrade.is_some(), tunnel);
    let length = fields.iter().find(|(name, _)| *name == b"content-length");
    match (length, end) {
        _ if tunnel => assert_eq!(head.body, RequestBody::None),
        (Some((_, value)), _) => {
            let length = std::str::from_utf8(value).unwrap().parse().unwrap();
            assert_eq!(head.body, RequestBody::Length(length));
        }
        (None, true) => assert!(matches!(head.body, RequestBody::None | RequestBody::Length(0))),
        (None, false) => assert_eq!(head.body, RequestBody::Chunked),
    }
    same_fields(&head, &text, fields);
}

/// Every field is there with its value, cookies joined, and none that was not sent.
fn same_fields(head: &RequestHead, text: &[u8], fields: &[(&[u8], &[u8])]) {
    let ours = ["host", "connection", "upgrade", "sec-websocket-key", "transfer-encoding", "content-length"];
    let kept = |name: &[u8]| !ours.iter().any(|ours| name.eq_ignore_ascii_case(ours.as_bytes()));
    let sent = fields.iter().filter(|(name, _)| *name != b"cookie" && kept(name));
    let sent: Vec<(Vec<u8>, Vec<u8>)> = sent.map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
    let read = head.fields.iter().map(|field| (field.name.bytes(text).to_vec(), field.value.bytes(text).to_vec()));
    let read: Vec<(Vec<u8>, Vec<u8>)> = read.filter(|(name, _)| name != b"cookie" && kept(name)).collect();
    assert_eq!(read, sent);
    let crumbs: Vec<&[u8]> = fields.iter().filter(|(name, _)| *name == b"cookie").map(|(_, value)| *value).collect();
    let cookies: Vec<&[u8]> = head
        .fields
        .iter()
        .filter(|field| field.name.bytes(text) == b"cookie")
        .map(|field| field.value.bytes(text))
        .collect();
    match crumbs.is_empty() {
        true => assert!(cookies.is_empty()),
        false => assert_eq!(cookies, [crumbs.join(&b"; "[..]).trim_ascii()]),
    }
}
