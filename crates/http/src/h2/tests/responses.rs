//! Responses and trailers, read field by field.

use crate::h1::{Asked, Framing, Limits, Method, ResponseBody, ResponseHead, Version};
use crate::h2::testing::{Written, add_field};
use crate::h2::{FieldWriter, ResponseReader, read_trailer};

type Pairs<'a> = &'a [(&'a str, &'a [u8])];

const GET: Asked<'_> = Asked { method: Method::Get, upgrade: None };
const HEAD: Asked<'_> = Asked { method: Method::Head, upgrade: None };
const UPGRADE: Asked<'_> = Asked { method: Method::Get, upgrade: Some(b"websocket") };
const LIMITS: Limits = Limits { head_bytes: 65536, headers: 20 };

fn read(fields: Pairs<'_>, asked: Asked<'_>, end: bool) -> Result<(ResponseHead, Vec<u8>), &'static str> {
    let (mut text, mut head, mut reader) = (Vec::new(), ResponseHead::default(), ResponseReader::default());
    for (name, value) in fields {
        let field = add_field(name.as_bytes(), value, false, &mut text);
        reader.field(&text, field, asked, &mut head);
    }
    match reader.finish(&mut text, asked, (end.then_some(0), LIMITS.headers), &mut head) {
        Ok(()) => Ok((head, text)),
        Err(reject) => {
            assert_eq!(reject.status, 502);
            Err(reject.fault.label())
        }
    }
}

/// The body that follows a response with such a status and fields.
fn body(status: &str, fields: Pairs<'_>, asked: Asked<'_>, end: bool) -> ResponseBody {
    let all = [&[(":status", status.as_bytes())][..], fields].concat();
    read(&all, asked, end).unwrap().0.body
}

#[test]
fn the_end_of_the_stream_says_whether_there_is_a_body() {
    assert_eq!(body("200", &[], GET, false), ResponseBody::Chunked);
    assert_eq!(body("200", &[], GET, true), ResponseBody::Length(0));
    assert_eq!(body("200", &[("content-length", b"5")], GET, false), ResponseBody::Length(5));
    for status in ["103", "204", "304"] {
        assert_eq!(body(status, &[("content-length", b"5")], GET, true), ResponseBody::None);
    }
    let (head, _) = read(&[(":status", b"200"), ("content-length", b"5")], HEAD, true).unwrap();
    assert_eq!((head.body, head.framing_for(Version::Http2)), (ResponseBody::None, Framing::Length(5)));
    // A length of 0 would be that of the representation (RFC 9110 §8.6).
    let (head, _) = read(&[(":status", b"304")], GET, true).unwrap();
    assert_eq!((head.version, head.framing_for(Version::Http11)), (Version::Http2, Framing::None));
}

#[test]
fn any_success_opens_the_tunnel_and_nothing_else_does() {
    let fields: Pairs<'_> = &[(":status", b"201"), ("content-length", b"5"), ("x", b"y")];
    let (head, text) = read(fields, UPGRADE, false).unwrap();
    assert_eq!((head.status, head.protocols(&text), head.body), (101, Some(&b"websocket"[..]), ResponseBody::None));
    assert_eq!(head.framing_for(Version::Http2), Framing::None);
    for status in ["304", "403", "500"] {
        let (head, _) = read(&[(":status", status.as_bytes())], UPGRADE, true).unwrap();
        assert_eq!((head.status.to_string().as_str(), head.upgrade), (status, None));
    }
    assert_eq!(read(&[(":status", b"101")], UPGRADE, false).err(), Some("bad-switch"));
    assert_eq!(read(&[(":status", b"101")], GET, false).err(), Some("switched-without-being-asked"));
}

#[test]
#[rustfmt::skip] // one line per case
fn a_malformed_response_is_refused() {
    let cases: &[(Pairs<'_>, &str)] = &[
        (&[], "bad-status"),
        (&[(":status", b"20")], "bad-status"),
        (&[(":status", b"0200")], "bad-status"),
        (&[(":status", b"999")], "bad-status"),
        (&[(":status", b"200"), (":status", b"200")], "bad-field-name"),
        (&[("x", b"y"), (":status", b"200")], "bad-field-name"),
        (&[(":status", b"200"), (":path", b"/")], "bad-field-name"),
        (&[(":method", b"GET"), (":status", b"200")], "bad-field-name"),
        (&[(":status", b"200"), ("connection", b"close")], "connection-specific-field"),
        (&[(":status", b"200"), ("upgrade", b"websocket")], "connection-specific-field"),
        (&[(":status", b"200"), ("te", b"gzip")], "connection-specific-field"),
        (&[(":status", b"200"), ("content-length", b"x")], "bad-content-length"),
        (&[(":status", b"200"), ("content-length", b"0"), ("content-length", b"0")], "several-content-lengths"),
    ];
    for (fields, label) in cases {
        assert_eq!(read(fields, GET, true).err(), Some(*label), "{fields:?}");
    }
    let many = [&[(":status", &b"200"[..])][..], &[("x", &b"y"[..]); LIMITS.headers + 1]].concat();
    assert_eq!(read(&many, GET, true).err(), Some("too-many-fields"));
    assert!(read(&many[1..], GET, true).is_err() && read(&many[..LIMITS.headers + 1], GET, true).is_ok());
}

fn trailers(fields: &[(&str, &str)]) -> Option<String> {
    let (mut text, mut lines, mut is_fine) = (Vec::new(), Vec::new(), true);
    for (name, value) in fields {
        let field = add_field(name.as_bytes(), value.as_bytes(), false, &mut text);
        is_fine &= read_trailer(&text, field, &mut lines);
    }
    is_fine.then(|| String::from_utf8(lines).unwrap())
}

#[test]
fn trailers_go_both_ways_and_those_that_may_not_trail_do_not() {
    let fields =
        [("grpc-status", "0"), ("host", "evil"), ("content-length", "5"), ("x_forwarded_for", "1"), ("x-sum", "a b")];
    let lines = trailers(&fields).unwrap();
    assert_eq!(lines, "grpc-status: 0\r\nx-sum: a b\r\n");
    let mut out = Written::default();
    out.lines(lines.as_bytes());
    assert_eq!(out.text(), "grpc-status: 0\nx-sum: a b\n");
}

#[test]
fn pseudo_header_fields_and_those_of_a_connection_are_malformed() {
    assert_eq!(trailers(&[("x", "y"), (":path", "/admin")]), None);
    assert_eq!(trailers(&[("transfer-encoding", "chunked")]), None);
    assert_eq!(trailers(&[("te", "gzip")]), None);
}
