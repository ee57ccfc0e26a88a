//! Requests that are accepted from clients or refused, and with which status.

use super::*;
use crate::fault::Fault;

#[track_caller]
fn refused(text: impl AsRef<[u8]>, status: u16, reason: &str) {
    let text = text.as_ref();
    let Err(reject) = request(text) else {
        panic!("accepted: {}", text.escape_ascii());
    };
    assert_eq!((reject.status, reject.fault.label()), (status, reason), "{}", text.escape_ascii());
}

#[test]
fn two_framings_of_one_body_are_refused() {
    let table = [
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "content-length-with-transfer-encoding"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "content-length-with-transfer-encoding"),
        ("transfer-encoding: CHUNKED\r\ncontent-length: 0\r\n", "content-length-with-transfer-encoding"),
        ("Content-Length: 5\r\nContent-Length: 5\r\n", "several-content-lengths"),
        ("Content-Length: 5\r\nContent-Length: 6\r\n", "several-content-lengths"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "several-transfer-encodings"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "several-transfer-encodings"),
        ("Connection: Content-Length\r\nContent-Length: 5\r\n", "connection-names-framing"),
        ("Connection: close, transfer-encoding\r\nTransfer-Encoding: chunked\r\n", "connection-names-framing"),
        ("Connection: host\r\n", "connection-names-framing"),
    ];
    for (lines, reason) in table {
        refused(get(lines), 400, reason);
    }
}

#[test]
fn a_content_length_is_digits_and_fits() {
    for value in [
        "",
        "5, 5",
        "5,5",
        "+5",
        "-5",
        "0x5",
        "5 5",
        "5;",
        "5.0",
        "1e3",
        "\"5\"",
        "five",
        "5\t5",
        "\u{ff15}",
        "9223372036854775808",
        "18446744073709551616",
        "99999999999999999999999999",
    ] {
        refused(get(&format!("Content-Length: {value}\r\n")), 400, "bad-content-length");
    }
    for (value, length) in [("0", 0), ("5", 5), ("  5\t", 5), ("005", 5), ("9223372036854775807", i64::MAX as u64)] {
        let head = request(get(&format!("Content-Length:{value}\r\n"))).unwrap();
        assert_eq!(head.body, RequestBody::Length(length));
    }
}

#[test]
fn a_transfer_encoding_is_chunked_and_nothing_else() {
    for (value, status, reason) in [
        ("gzip, chunked", 501, "unknown-transfer-coding"),
        ("xchunked, chunked", 501, "unknown-transfer-coding"),
        ("identity, chunked", 501, "unknown-transfer-coding"),
        ("gzip", 400, "bad-transfer-encoding"),
        ("identity", 400, "bad-transfer-encoding"),
        ("xchunked", 400, "bad-transfer-encoding"),
        ("chunkedx", 400, "bad-transfer-encoding"),
        ("chunked, chunked", 400, "bad-transfer-encoding"),
        ("chunked, gzip", 400, "bad-transfer-encoding"),
        ("chunked, gzip, chunked", 400, "bad-transfer-encoding"),
        ("chunked;q=1", 400, "bad-transfer-encoding"),
        ("chunked;", 400, "bad-transfer-encoding"),
        ("gzip;q=1, chunked", 400, "bad-transfer-encoding"),
        ("chunked,", 400, "bad-transfer-encoding"),
        (", chunked", 400, "bad-transfer-encoding"),
        ("\"chunked\"", 400, "bad-transfer-encoding"),
        ("'chunked'", 400, "bad-transfer-encoding"),
        ("chunked chunked", 400, "bad-transfer-encoding"),
        ("", 400, "bad-transfer-encoding"),
        ("chun\u{212a}ed", 400, "bad-transfer-encoding"),
        ("\x0bchunked", 400, "control-byte"),
        ("chunked\x0c", 400, "control-byte"),
        ("chunked\0", 400, "control-byte"),
        ("\r\n chunked", 400, "bad-transfer-encoding"),
    ] {
        refused(get(&format!("Transfer-Encoding: {value}\r\n")), status, reason);
    }
    for value in ["chunked", "Chunked", " \tchunked ", "CHUNKED\t"] {
        let head = request(get(&format!("Transfer-Encoding:{value}\r\n"))).unwrap();
        assert_eq!(head.body, RequestBody::Chunked);
    }
    refused("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "transfer-encoding-in-http10");
}

#[test]
fn lines_end_in_crlf_and_hold_no_controls() {
    for (text, reason) in [
        ("GET / HTTP/1.1\nHost: a\r\n\r\n", "bare-lf"),
        ("GET / HTTP/1.1\r\nHost: a\n\r\n", "bare-lf"),
        ("GET / HTTP/1.1\r\nHost: a\r\n\n", "bare-lf"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: b\nContent-Length: 5\r\n\r\n", "bare-lf"),
        ("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "bare-lf"),
        ("GET / HTTP/1.1\rHost: a\r\n\r\n", "bare-cr"),
        ("GET / HTTP/1.1\r\nHost: a\r\r\n\r\n", "bare-cr"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: b\rc\r\n\r\n", "bare-cr"),
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\r\n", "bare-cr"),
        ("\rGET / HTTP/1.1\r\nHost: a\r\n\r\n", "bare-cr"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: b\0c\r\n\r\n", "control-byte"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX\0: b\r\n\r\n", "control-byte"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: \x7f\r\n\r\n", "control-byte"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: \x1b[31m\r\n\r\n", "control-byte"),
        ("G\0T / HTTP/1.1\r\nHost: a\r\n\r\n", "control-byte"),
        ("GET /\x08 HTTP/1.1\r\nHost: a\r\n\r\n", "control-byte"),
    ] {
        refused(text, 400, reason);
    }
}

#[test]
fn every_control_byte_is_refused_in_names_and_values_wherever_it_stands() {
    for control in (0..0x20).chain([0x7f]).filter(|&b| b != b'\t') {
        for place in 0..24 {
            let mut value = [b'v'; 24];
            value[place] = control;
            let text = [b"GET / HTTP/1.1\r\nHost: a\r\nX: ", &value[..], b"\r\n\r\n"].concat();
            assert_eq!(request(&text).unwrap_err().status, 400, "{control:#x} at {place}");
            let mut name = [b'n'; 24];
            name[place] = control;
            let text = [b"GET / HTTP/1.1\r\nHost: a\r\n", &name[..], b": x\r\n\r\n"].concat();
            assert_eq!(request(&text).unwrap_err().status, 400, "{control:#x} at {place}");
        }
    }
}

#[test]
fn a_field_is_a_name_a_colon_and_a_value() {
    for (line, reason) in [
        (" X: a", "folded-field"),
        ("\tX: a", "folded-field"),
        (" ", "folded-field"),
        ("X : a", "space-in-field-name"),
        ("X\t: a", "space-in-field-name"),
        ("X Y: a", "space-in-field-name"),
        (": a", "empty-field-name"),
        (":authority: a", "empty-field-name"),
        ("X", "field-without-colon"),
        ("X\u{e9}: a", "bad-field-name"),
        ("X(: a", "bad-field-name"),
        ("\"X\": a", "bad-field-name"),
        ("X;Y: a", "bad-field-name"),
        ("GET / HTTP/1.1", "space-in-field-name"),
    ] {
        refused(get(&format!("{line}\r\n")), 400, reason);
    }
    refused("GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400, "space-before-first-field");
    refused("GET / HTTP/1.1\r\n\tHost: a\r\n\r\n", 400, "space-before-first-field");
    let text = get("X-Tab: a\tb\r\nX-Empty:\r\nX-High: \u{e9}\r\n!#$%&'*+.^`|~9: odd\r\n");
    let head = request(&text).unwrap();
    assert_eq!(head.fields.value(text.as_bytes(), "x-tab"), Some(&b"a\tb"[..]));
    assert_eq!(head.fields.value(text.as_bytes(), "X-Empty"), Some(&b""[..]));
}

#[test]
fn a_request_line_has_three_words_and_two_spaces() {
    for (line, status, reason) in [
        ("GET /", 400, "no-version"),
        ("GET", 400, "bad-request-line"),
        ("GET / HTTP/1.1 ", 400, "bad-version"),
        ("GET  / HTTP/1.1", 400, "bad-version"),
        ("GET /  HTTP/1.1", 400, "bad-version"),
        (" GET / HTTP/1.1", 400, "bad-method"),
        ("GET\t/ HTTP/1.1", 400, "bad-method"),
        ("GET /\tHTTP/1.1", 400, "no-version"),
        ("GET /a b HTTP/1.1", 400, "bad-version"),
        ("GET / http/1.1", 400, "bad-version"),
        ("GET / HTTP/1", 400, "bad-version"),
        ("GET / HTTP/1.10", 400, "bad-version"),
        ("GET / HTTP/01.1", 400, "bad-version"),
        ("GET / HTTP/1,1", 400, "bad-version"),
        ("GET / ICY/1.1", 400, "bad-version"),
        ("GET / HTTP/0.9", 505, "version-not-supported"),
        ("GET / HTTP/2.0", 505, "version-not-supported"),
        ("GET / HTTP/3.0", 505, "version-not-supported"),
        ("PRI * HTTP/2.0", 505, "version-not-supported"),
        ("G@T / HTTP/1.1", 400, "bad-method"),
        ("G\u{c9}T / HTTP/1.1", 400, "bad-method"),
        ("CONNECT a:443 HTTP/1.1", 501, "connect-not-supported"),
        ("TRACE / HTTP/1.1", 405, "trace-not-allowed"),
        ("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA / HTTP/1.1", 501, "method-too-long"),
    ] {
        refused(format!("{line}\r\nHost: a\r\n\r\n"), status, reason);
    }
    for (line, method, version) in [
        ("GET / HTTP/1.1", Method::Get, Version::Http11),
        ("get / HTTP/1.1", Method::Other, Version::Http11),
        ("PURGE / HTTP/1.0", Method::Other, Version::Http10),
        ("PATCH / HTTP/1.9", Method::Patch, Version::Http11),
        ("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA / HTTP/1.1", Method::Other, Version::Http11),
    ] {
        let head = request(format!("{line}\r\nHost: a\r\n\r\n")).unwrap();
        assert_eq!((head.method, head.version), (method, version));
    }
}

#[test]
fn a_target_is_origin_form_or_the_absolute_form_of_the_same_host() {
    for (line, reason) in [
        ("GET /a#b HTTP/1.1", "bad-target-byte"),
        ("GET /\u{e9} HTTP/1.1", "bad-target-byte"),
        ("GET * HTTP/1.1", "bad-target"),
        ("GET a HTTP/1.1", "bad-target"),
        ("GET ?a HTTP/1.1", "bad-target"),
        ("GET a:80 HTTP/1.1", "bad-target"),
        ("GET ftp://a/ HTTP/1.1", "bad-target"),
        ("GET http:/a HTTP/1.1", "bad-target"),
        ("GET http:///x HTTP/1.1", "target-without-host"),
        ("GET http://?x HTTP/1.1", "target-without-host"),
        ("GET http://u@a/ HTTP/1.1", "bad-host"),
        ("GET http://u:p@a/ HTTP/1.1", "bad-host"),
        ("GET http://a\\@b/ HTTP/1.1", "bad-host"),
        ("GET http://b/ HTTP/1.1", "host-differs-from-target"),
        ("GET http://a:8080/ HTTP/1.1", "host-differs-from-target"),
        ("GET http://a:443/ HTTP/1.1", "host-differs-from-target"),
        ("OPTIONS */x HTTP/1.1", "bad-target"),
    ] {
        refused(format!("{line}\r\nHost: a\r\n\r\n"), 400, reason);
    }
}

#[test]
fn a_target_is_forwarded_in_origin_form() {
    for (method, target, forwarded, path, query) in [
        ("GET", "/", "/", "/", ""),
        ("GET", "/a/b?c=d?e", "/a/b?c=d?e", "/a/b", "?c=d?e"),
        ("GET", "//x/..;/%2e?", "//x/..;/%2e?", "//x/..;/%2e", "?"),
        ("GET", "http://a", "/", "/", ""),
        ("GET", "HTTP://A:80/x?y", "/x?y", "/x", "?y"),
        ("GET", "https://a:443?y", "/?y", "/", "?y"),
        ("OPTIONS", "*", "*", "*", ""),
        ("OPTIONS", "http://a", "*", "*", ""),
        ("OPTIONS", "http://a/", "/", "/", ""),
        ("OPTIONS", "http://a?", "/?", "/", "?"),
    ] {
        let text = format!("{method} {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        let head = request(&text).unwrap();
        let buf = text.as_bytes();
        assert_eq!(head.target(buf).concat(), forwarded.as_bytes(), "{target}");
        assert_eq!(head.path(buf), path.as_bytes(), "{target}");
        assert_eq!(head.query(buf), query.as_bytes(), "{target}");
    }
}

#[rustfmt::skip]
const NO_HOSTS: [&str; 36] = [
    "u@a", "a b", "a,b", "a/", "/a", "a\\b", "a?b", "a#b", "http://a", "a:", "a:x", "a:+80",
    "a: 80", "a:80:80", "a:65536", "a:000080", ":80", "[::1", "::1", "[::1]]", "[::1]x", "[::1]:",
    "[fe80::1%25eth0]", "[v1.x]", "[a]", "[]", "a]", "a%41", "a..b", ".a", ".", "..", "\u{e9}",
    "a\tb", "a;b", "*",
];

#[test]
fn a_host_is_one_name_with_perhaps_a_port() {
    for host in NO_HOSTS {
        refused(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"), 400, "bad-host");
    }
    let long = "a".repeat(254);
    assert!(request(format!("GET / HTTP/1.1\r\nHost: {long}\r\n\r\n")).is_ok());
    refused(format!("GET / HTTP/1.1\r\nHost: {long}a\r\n\r\n"), 400, "bad-host");
    refused("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400, "several-hosts");
    refused("GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", 400, "several-hosts");
    refused("GET / HTTP/1.1\r\n\r\n", 400, "no-host");
    refused("GET http://a/ HTTP/1.1\r\n\r\n", 400, "no-host");
    refused("GET / HTTP/1.1\r\nHost:\r\n\r\n", 400, "empty-host");
    for (host, name) in [
        ("Shop.Example", "shop.example"),
        ("shop.example.", "shop.example"),
        ("SHOP.example.:8443", "shop.example"),
        ("127.0.0.1:80", "127.0.0.1"),
        ("[2001:DB8::1]:443", "[2001:db8::1]"),
        ("[2001:db8:0:0::0001]", "[2001:db8::1]"),
        ("[::ffff:102:304]:80", "[::ffff:1.2.3.4]"),
        ("a_b-c~d", "a_b-c~d"),
    ] {
        let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let head = request(&text).unwrap();
        let mut scratch = [0; HOST_BYTES_MAX];
        assert_eq!(head.host_name(text.as_bytes(), &mut scratch), name);
        assert_eq!(head.host.bytes(text.as_bytes()), host.as_bytes());
    }
}

#[test]
fn http10_needs_no_host() {
    let text = "GET / HTTP/1.0\r\n\r\n";
    let head = request(text).unwrap();
    assert!(head.host.is_empty());
    assert_eq!(head.host_name(text.as_bytes(), &mut [0; HOST_BYTES_MAX]), "");
    let text = "GET http://a/ HTTP/1.0\r\n\r\n";
    assert_eq!(request(text).unwrap().host.bytes(text.as_bytes()), b"a");
    refused("GET / HTTP/1.0\r\nHost: a b\r\n\r\n", 400, "bad-host");
}

#[test]
fn a_connection_is_kept_as_its_version_and_its_wish_say() {
    for (version, lines, keep_alive) in [
        ("1.1", "", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.1", "Connection: Keep-Alive, CLOSE\r\n", false),
        ("1.1", "Connection: x\r\nConnection: close\r\n", false),
        ("1.1", "Connection: ,,keep-alive,\r\n", true),
        ("1.0", "", false),
        ("1.0", "Connection: keep-alive\r\n", true),
        ("1.0", "Connection: close, keep-alive\r\n", false),
    ] {
        let head = request(format!("GET / HTTP/{version}\r\nHost: a\r\n{lines}\r\n")).unwrap();
        assert_eq!(head.keep_alive, keep_alive, "{version} {lines}");
    }
    let options = |count: usize| format!("Connection: {}close\r\n", "a,".repeat(count - 1));
    assert!(!request(get(&options(32))).unwrap().keep_alive);
    refused(get(&options(33)), 400, "too-many-connection-options");
    refused(get(&format!("{}{}", options(16), options(17))), 400, "too-many-connection-options");
}

#[test]
fn only_the_known_expectation_is_met() {
    let expecting = |version, value| {
        let length = "Content-Length: 1\r\n";
        request(format!("PUT / HTTP/{version}\r\nHost: a\r\n{length}Expect: {value}\r\n\r\n"))
    };
    assert!(expecting("1.1", "100-Continue").unwrap().expect_continue);
    assert!(!expecting("1.0", "100-continue").unwrap().expect_continue);
    assert!(!expecting("1.0", "x").unwrap().expect_continue);
    for value in ["", "200-ok", "100-continue, x", "100-continue;q", "100-continue\r\nExpect: 100-continue"] {
        assert_eq!(expecting("1.1", value).unwrap_err().status, 417, "{value}");
    }
    // Nothing to hold back.
    assert!(!request(get("Expect: 100-continue\r\n")).unwrap().expect_continue);
}

#[test]
fn an_upgrade_is_for_plain_gets_and_never_to_another_http() {
    let upgrade = |text: &str| request(text).unwrap().upgrade.is_some();
    let asks = "Connection: keep-alive, Upgrade\r\n";
    assert!(upgrade(&get(&format!("{asks}Upgrade: websocket\r\n"))));
    assert!(upgrade(&get(&format!("{asks}Upgrade: foo/2, bar\r\nContent-Length: 0\r\n"))));
    assert!(upgrade(&get(&format!("{asks}Upgrade: , websocket,\r\n"))), "empty elements of a list are passed over");
    for value in [
        "h2c",
        "H2C",
        "websocket, h2c",
        "HTTP/2.0",
        "http/3",
        "HTTP",
        "TLS/1.0",
        "tls/1.2",
        "h2",
        "",
        "a b",
        "a/",
        "/a",
        ",",
        "websocket, a b",
    ] {
        assert!(!upgrade(&get(&format!("{asks}Upgrade: {value}\r\n"))), "{value}");
    }
    assert!(!upgrade(&get("Upgrade: websocket\r\n")), "not named in Connection");
    let several = get(&format!("{asks}Upgrade: a\r\nX: 1\r\nupgrade: ,b/2,\r\n"));
    assert_eq!(request(&several).unwrap().protocols(several.as_bytes()), Some(&b"a, ,b/2,"[..]), "lines are one list");
    assert!(!upgrade(&get(&format!("{asks}Upgrade: websocket\r\nUpgrade: h2c\r\n"))), "h2c by a second line");
    // A head that is read again has forgotten them.
    let (mut head, single) = (request(&several).unwrap(), get(&format!("{asks}Upgrade: c\r\n")));
    assert_eq!(parse_request(single.as_bytes(), &LIMITS, &mut head), Ok(Parsed::Complete));
    assert_eq!(head.protocols(single.as_bytes()), Some(&b"c"[..]));
    head.upgrade = None;
    assert_eq!(head.protocols(single.as_bytes()), None, "as it is forwarded as a plain request");
    assert!(!upgrade(&get(&format!("{asks}Upgrade: a\r\nContent-Length: 3\r\n"))));
    assert!(!upgrade(&get(&format!("{asks}Upgrade: a\r\nTransfer-Encoding: chunked\r\n"))));
    assert!(!upgrade(&format!("POST / HTTP/1.1\r\nHost: a\r\n{asks}Upgrade: a\r\n\r\n")));
    assert!(!upgrade(&format!("GET / HTTP/1.0\r\nHost: a\r\n{asks}Upgrade: a\r\n\r\n")));
}

#[test]
fn hops_are_counted_for_options_only() {
    let hops = |method: &str, lines: &str| {
        request(format!("{method} * HTTP/1.1\r\nHost: a\r\n{lines}\r\n")).map(|h| h.max_forwards)
    };
    assert_eq!(hops("OPTIONS", ""), Ok(None));
    assert_eq!(hops("OPTIONS", "Max-Forwards: 0\r\n"), Ok(Some(0)));
    assert_eq!(hops("OPTIONS", "Max-Forwards: 7\r\n"), Ok(Some(7)));
    let bad = Err(Reject::of(Fault::BadMaxForwards));
    assert_eq!(hops("OPTIONS", "Max-Forwards: -1\r\n"), bad);
    assert_eq!(hops("OPTIONS", "Max-Forwards: 1\r\nMax-Forwards: 1\r\n"), bad);
    assert_eq!(request(get("Max-Forwards: x\r\n")).unwrap().max_forwards, None);
}

#[test]
fn one_empty_line_before_a_request_is_skipped() {
    let text = "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\nrest";
    assert_eq!(request(text).unwrap().length, text.len() - 4);
    refused("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "empty-lines-before-request");
}

#[test]
fn what_can_never_become_a_request_is_refused_at_once() {
    for (bytes, status) in [
        (&b"\x16"[..], 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"\0", 400),
        (b" ", 400),
        (b"\n", 400),
        (b"\r\n\r", 400),
        (b"GET\t", 400),
        (b"SSH-2.0-x\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: \0", 400),
        (b"GET / HTTP/1.1\r\n ", 0),
        (b"PRI * HTTP/2.0\r\n", 505),
        (b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", 0),
        (b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", 501),
        (b"GET / HTTP/1.1\r\nContent-Length: x\r\n", 400),
    ] {
        let verdict = parse_request(bytes, &LIMITS, &mut RequestHead::default());
        let status_seen = verdict.map_or_else(|reject| reject.status, |_| 0);
        assert_eq!(status_seen, status, "{}", bytes.escape_ascii());
    }
}

#[test]
fn a_head_that_outgrows_its_limit_is_refused_as_soon_as_it_does() {
    let limits = Limits { head_bytes: 64, headers: 2 };
    let verdict = |text: &str| parse_request(text.as_bytes(), &limits, &mut RequestHead::default());
    let line = |length: usize| format!("GET /{}", "a".repeat(length - 5));
    assert_eq!(verdict(&line(63)), Ok(Parsed::Partial));
    assert_eq!(verdict(&line(64)), Err(Reject::of(Fault::RequestLineTooLong)));
    assert_eq!(verdict(&line(200)), Err(Reject::of(Fault::RequestLineTooLong)));
    let fields = |length: usize| format!("GET / HTTP/1.1\r\nHost: {}", "a".repeat(length - 22));
    assert_eq!(verdict(&fields(63)), Ok(Parsed::Partial));
    assert_eq!(verdict(&fields(64)), Err(Reject::of(Fault::HeadTooLong)));
    // Whole in the buffer, and still too long.
    let whole = |length: usize| format!("{}\r\n\r\n", fields(length - 4));
    assert_eq!(verdict(&whole(64)), Ok(Parsed::Complete));
    assert_eq!(verdict(&whole(65)), Err(Reject::of(Fault::HeadTooLong)));
    let many = |count: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X:\r\n".repeat(count - 1));
    assert_eq!(verdict(&many(2)), Ok(Parsed::Complete));
    assert_eq!(verdict(&many(3)), Err(Reject::of(Fault::TooManyFields)));
}

#[test]
fn a_head_may_arrive_byte_by_byte() {
    let text =
        "\r\nPOST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nX-Long: aaaaaaaaaaaaaaaaaaaaaaaaaa\r\n\r\nhello";
    let buf = text.as_bytes();
    let mut head = RequestHead::default();
    for seen in 0..buf.len() - 5 {
        assert_eq!(parse_request(&buf[..seen], &LIMITS, &mut head), Ok(Parsed::Partial), "{seen}");
    }
    assert_eq!(parse_request(&buf[..buf.len() - 5], &LIMITS, &mut head), Ok(Parsed::Complete));
    assert_eq!(head.length, buf.len() - 5);
    assert_eq!(head.body, RequestBody::Length(5));
    assert_eq!(head.fields.len(), 3);
}

#[test]
fn a_head_is_used_again_without_a_trace_of_the_one_before() {
    let mut head = RequestHead::default();
    let first = "OPTIONS http://a/x?y HTTP/1.0\r\nMax-Forwards: 1\r\nConnection: keep-alive, te\r\nX: 1\r\n\r\n";
    assert_eq!(parse_request(first.as_bytes(), &LIMITS, &mut head), Ok(Parsed::Complete));
    assert!(parse_request(b"\0", &LIMITS, &mut head).is_err());
    let second = get("");
    assert_eq!(parse_request(second.as_bytes(), &LIMITS, &mut head), Ok(Parsed::Complete));
    assert_eq!(format!("{head:?}"), format!("{:?}", request(&second).unwrap()));
}

#[test]
fn more_fields_than_fit_inline_are_kept_in_order() {
    let lines: String = (0..59).map(|n| format!("X-{n}: {n}\r\n")).collect();
    let text = get(&lines);
    let head = request(&text).unwrap();
    assert_eq!(head.fields.len(), 60);
    let last = head.fields.iter().last().unwrap();
    assert_eq!(last.name.bytes(text.as_bytes()), b"X-58");
}
