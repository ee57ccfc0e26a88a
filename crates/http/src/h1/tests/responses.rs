//! Responses that are accepted from servers, and the length of their bodies.

use super::*;
use crate::fault::Fault;

#[track_caller]
fn refused(text: &str, reason: &str) {
    let Err(reject) = response_to(GET, text) else {
        panic!("accepted: {text:?}");
    };
    assert_eq!((reject.status, reject.fault.label()), (502, reason), "{text:?}");
}

#[test]
fn a_status_line_is_a_version_a_status_and_perhaps_a_reason() {
    for (line, reason) in [
        ("HTTP/1.1 20 OK", "bad-status-line"),
        ("HTTP/1.1 2000 OK", "bad-status-line"),
        ("HTTP/1.1 200OK", "bad-status-line"),
        ("HTTP/1.1  200 OK", "bad-status-line"),
        ("HTTP/1.1\t200 OK", "bad-status-line"),
        ("HTTP/1.1 +20 OK", "bad-status"),
        ("HTTP/1.1 099 OK", "bad-status"),
        ("HTTP/1.1 600 OK", "bad-status"),
        ("HTTP/1.1 999 OK", "bad-status"),
        ("HTTP/1.1", "bad-status-line"),
        ("http/1.1 200 OK", "bad-status-line"),
        (" HTTP/1.1 200 OK", "bad-status-line"),
        ("ICY 200 OK", "bad-status-line"),
        ("HTTP/2.0 200 OK", "version-not-supported"),
        ("HTTP/1.1 200 O\0K", "control-byte"),
        ("HTTP/1.1 200 O\nK", "bare-lf"),
        ("HTTP/1.1 200 O\rK", "bare-cr"),
        ("\r\nHTTP/1.1 200 OK", "bad-status-line"),
    ] {
        refused(&format!("{line}\r\nContent-Length: 0\r\n\r\n"), reason);
    }
    for (line, status, reason) in [
        ("HTTP/1.1 200 OK", 200, "OK"),
        ("HTTP/1.1 200 ", 200, ""),
        ("HTTP/1.1 200", 200, ""),
        ("HTTP/1.0 599 Not  so\tgood", 599, "Not  so\tgood"),
    ] {
        let text = format!("{line}\r\nContent-Length: 0\r\n\r\n");
        let head = response_to(GET, &text).unwrap();
        assert_eq!(head.status, status);
        assert_eq!(head.reason.bytes(text.as_bytes()), reason.as_bytes());
    }
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    for (lines, reason) in [
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "content-length-with-transfer-encoding"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "content-length-with-transfer-encoding"),
        ("Content-Length: 5\r\nContent-Length: 5\r\n", "several-content-lengths"),
        ("Content-Length: 5, 5\r\n", "bad-content-length"),
        ("Content-Length: +5\r\n", "bad-content-length"),
        ("Content-Length:\r\n", "bad-content-length"),
        ("Transfer-Encoding: gzip, chunked\r\n", "unknown-transfer-coding"),
        ("Transfer-Encoding: identity\r\n", "bad-transfer-encoding"),
        ("Transfer-Encoding: chunked, chunked\r\n", "bad-transfer-encoding"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "several-transfer-encodings"),
        ("X: a\r\n b\r\n", "folded-field"),
        (" X: a\r\n", "space-before-first-field"),
        ("X : a\r\n", "space-in-field-name"),
        ("X: a\n", "bare-lf"),
        ("X: a\0\r\n", "control-byte"),
        ("nonsense\r\n", "field-without-colon"),
    ] {
        refused(&format!("HTTP/1.1 200 OK\r\n{lines}\r\n"), reason);
    }
    refused("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "transfer-encoding-in-http10");
}

/// Request method, status, fields; body, whether the connection is kept, framing for HTTP/1.1 and HTTP/1.0 clients.
type BodyRow = (Asked<'static>, u16, &'static str, ResponseBody, bool, Framing, Framing);

const LENGTH: &str = "Content-Length: 5\r\n";
const ZERO: &str = "Content-Length: 0\r\n";
const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";

#[rustfmt::skip]
const BODIES: [BodyRow; 13] = [
    (GET, 200, LENGTH, ResponseBody::Length(5), true, Framing::Length(5), Framing::Length(5)),
    (GET, 200, CHUNKED, ResponseBody::Chunked, true, Framing::Chunked, Framing::UntilClose),
    (GET, 200, "", ResponseBody::UntilClose, false, Framing::Chunked, Framing::UntilClose),
    (HEAD, 200, LENGTH, ResponseBody::None, true, Framing::Length(5), Framing::Length(5)),
    (HEAD, 200, CHUNKED, ResponseBody::None, true, Framing::Chunked, Framing::None),
    (HEAD, 200, "", ResponseBody::None, true, Framing::None, Framing::None),
    (GET, 304, LENGTH, ResponseBody::None, true, Framing::Length(5), Framing::Length(5)),
    (GET, 304, CHUNKED, ResponseBody::None, false, Framing::None, Framing::None),
    (GET, 204, "", ResponseBody::None, true, Framing::None, Framing::None),
    (GET, 204, ZERO, ResponseBody::None, true, Framing::None, Framing::None),
    (GET, 204, LENGTH, ResponseBody::None, false, Framing::None, Framing::None),
    (HEAD, 204, CHUNKED, ResponseBody::None, false, Framing::None, Framing::None),
    (GET, 103, LENGTH, ResponseBody::None, false, Framing::None, Framing::None),
];

#[test]
fn a_body_is_as_long_as_status_method_and_fields_say() {
    for (asked, status, lines, body, keep_alive, modern, old) in BODIES {
        let head = response_to(asked, format!("HTTP/1.1 {status} X\r\n{lines}\r\n")).unwrap();
        assert_eq!(head.body, body, "{asked:?} {status} {lines:?}");
        assert_eq!(head.keep_alive, keep_alive, "{asked:?} {status} {lines:?}");
        assert_eq!(head.framing_for(Version::Http11), modern, "{asked:?} {status} {lines:?}");
        assert_eq!(head.framing_for(Version::Http10), old, "{asked:?} {status} {lines:?}");
    }
}

#[test]
fn a_server_connection_is_kept_as_its_version_and_its_wish_say() {
    for (version, lines, keep_alive) in [
        ("1.1", "Content-Length: 0\r\n", true),
        ("1.1", "Content-Length: 0\r\nConnection: Close\r\n", false),
        ("1.0", "Content-Length: 0\r\n", false),
        ("1.0", "Content-Length: 0\r\nConnection: keep-alive\r\n", true),
        ("1.0", "Connection: keep-alive\r\n", false),
    ] {
        let head = response_to(GET, format!("HTTP/{version} 200 OK\r\n{lines}\r\n")).unwrap();
        assert_eq!(head.keep_alive, keep_alive, "{version} {lines:?}");
    }
}

#[test]
fn of_several_dates_the_first_goes_on() {
    let text = "HTTP/1.1 200 OK\r\nDate: one\r\nX: y\r\nDate: two\r\nContent-Length: 0\r\n\r\n";
    let head = response_to(GET, text).unwrap();
    let kept: Vec<&[u8]> = head.fields.iter().filter(|f| f.forward).map(|f| f.value.bytes(text.as_bytes())).collect();
    assert!(head.has_date);
    assert_eq!(kept, [&b"one"[..], b"y"]);
}

#[test]
fn protocols_are_switched_only_when_asked() {
    let switch = "HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    refused(switch, "switched-without-being-asked");
    let head = response_to(UPGRADE, switch).unwrap();
    assert_eq!(head.upgrade.unwrap().bytes(switch.as_bytes()), b"websocket");
    let either = Asked { method: Method::Get, upgrade: Some(b"foo/2,, WebSocket") };
    assert!(response_to(either, switch).is_ok(), "one of those that were asked for, in any case");
    let both = "HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: websocket\r\nUpgrade: foo/2\r\n\r\n";
    let head_of_both = response_to(either, both).unwrap();
    assert_eq!(head_of_both.protocols(both.as_bytes()), Some(&b"websocket, foo/2"[..]));
    let (mut again, single) = (head_of_both, "HTTP/1.1 426 X\r\nConnection: upgrade\r\nUpgrade: c\r\n\r\n");
    assert_eq!(parse_response(single.as_bytes(), GET, &LIMITS, &mut again), Ok(Parsed::Complete));
    assert_eq!(again.protocols(single.as_bytes()), Some(&b"c"[..]), "nothing of the last response is left");
    let wanted = "HTTP/1.1 426 X\r\nConnection: upgrade\r\nUpgrade: a\r\nUpgrade: b\r\n\r\n";
    assert_eq!(response_to(GET, wanted).unwrap().protocols(wanted.as_bytes()), Some(&b"a, b"[..]));
    assert!(!head.is_informational());
    for lines in [
        "",
        "Upgrade: websocket\r\n",
        "Connection: upgrade\r\n",
        "Connection: upgrade\r\nUpgrade: h2c\r\n",
        "Connection: upgrade\r\nUpgrade: foo\r\n",
        "Connection: upgrade\r\nUpgrade: foo\r\nUpgrade: websocket\r\n",
        "Connection: upgrade\r\nUpgrade: websocket, foo\r\n",
        "Connection: upgrade\r\nUpgrade: ,\r\n",
        "Connection: upgrade\r\nUpgrade: a\r\nUpgrade: b\r\n",
    ] {
        let verdict = response_to(UPGRADE, format!("HTTP/1.1 101 X\r\n{lines}\r\n"));
        assert_eq!(verdict.unwrap_err().fault.label(), "bad-switch", "{lines:?}");
    }
}

#[test]
fn a_server_of_another_kind_is_found_out_early() {
    for bytes in [&b"\x15\x03\x01"[..], b"SSH-", b"220 ", b"\r\n", b"h"] {
        let verdict = parse_response(bytes, GET, &LIMITS, &mut ResponseHead::default());
        assert_eq!(verdict, Err(Reject { status: 502, fault: Fault::BadStatusLine }));
    }
    let verdict = parse_response(b"HTTP", GET, &LIMITS, &mut ResponseHead::default());
    assert_eq!(verdict, Ok(Parsed::Partial));
}

#[test]
fn a_response_head_is_bounded() {
    let limits = Limits { head_bytes: 64, headers: 2 };
    let verdict = |text: &str| parse_response(text.as_bytes(), GET, &limits, &mut ResponseHead::default());
    let long = format!("HTTP/1.1 200 OK\r\nX: {}", "a".repeat(60));
    assert_eq!(verdict(&long), Err(Reject { status: 502, fault: Fault::HeadTooLong }));
    assert_eq!(verdict(&long[..63]), Ok(Parsed::Partial));
    let many = "HTTP/1.1 200 OK\r\nA:\r\nB:\r\nC:\r\n\r\n";
    assert_eq!(verdict(many), Err(Reject { status: 502, fault: Fault::TooManyFields }));
}
