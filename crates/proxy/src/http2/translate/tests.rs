use propylon_http::h1::{Asked, Limits, Method, Parsed, RequestHead, parse_request, parse_response};

use super::*;

const GET: Pseudo<'static> = Pseudo {
    method: b"GET",
    scheme: Some(b"https"),
    authority: Some(b"shop.example"),
    path: Some(b"/"),
    protocol: None,
};

type Pairs<'a> = &'a [(&'a str, &'a [u8])];

/// Result of a request: its text, or the word that it is refused with, here or by the parser.
fn text(pseudo: &Pseudo<'_>, fields: Pairs<'_>, end: bool) -> Result<String, &'static str> {
    let mut random = fastrand::Rng::with_seed(1);
    let fields = || fields.iter().map(|(name, value)| (name.as_bytes(), *value));
    let mut out = Vec::new();
    write_head(pseudo, fields, end, &mut random, &mut out).map_err(|reject| reject.fault.label())?;
    let mut head = RequestHead::default();
    match parse_request(&out, &Limits { head_bytes: 65536, headers: 200 }, &mut head) {
        Ok(Parsed::Complete) => Ok(String::from_utf8_lossy(&out).into_owned()),
        Ok(Parsed::Partial) => panic!("half a head: {}", out.escape_ascii()),
        Err(reject) => Err(reject.fault.label()),
    }
}

#[test]
fn a_request_reads_as_if_it_had_come_by_http1() {
    assert_eq!(
        text(&GET, &[("accept", b"*/*")], true).unwrap(),
        "GET / HTTP/1.1\r\nHost: shop.example\r\naccept: */*\r\n\r\n"
    );
    let post = Pseudo { method: b"POST", path: Some(b"/a?b=c"), ..GET };
    assert!(text(&post, &[], false).unwrap().ends_with("\r\nTransfer-Encoding: chunked\r\n\r\n"));
    assert!(text(&post, &[], true).unwrap().ends_with("\r\nContent-Length: 0\r\n\r\n"));
    assert!(text(&post, &[("content-length", b"5")], false).unwrap().ends_with("\r\ncontent-length: 5\r\n\r\n"));
    assert!(text(&post, &[("content-length", b"0")], true).unwrap().ends_with("\r\ncontent-length: 0\r\n\r\n"));
    // Only a WebSocket's key is made here, and only where there is one.
    assert!(text(&GET, &[("sec-websocket-key", b"x")], true).unwrap().ends_with("\r\nsec-websocket-key: x\r\n\r\n"));
    let options = Pseudo { method: b"OPTIONS", path: Some(b"*"), ..GET };
    assert!(text(&options, &[], true).unwrap().starts_with("OPTIONS * HTTP/1.1\r\n"));
}

#[test]
fn crumbs_of_cookies_become_one_field() {
    let crumbs: Pairs<'_> = &[("cookie", b"a=1"), ("x", b"y"), ("cookie", b"b=2"), ("cookie", b"c=3")];
    assert!(text(&GET, crumbs, true).unwrap().ends_with("\r\nx: y\r\ncookie: a=1; b=2; c=3\r\n\r\n"));
}

#[test]
#[rustfmt::skip] // one line per case
fn nothing_gets_into_the_text_that_would_read_as_more() {
    let cases: &[(&str, &[u8], &str)] = &[
        ("x", b"a\r\nx-evil: 1", "control-byte"),
        ("x", b"a\nb", "control-byte"),
        ("x", b"a\0b", "control-byte"),
        ("x", b" a", "space-around-value"),
        ("x", b"a\t", "space-around-value"),
        ("x:y", b"a", "bad-field-name"),
        ("x y", b"a", "bad-field-name"),
        ("x\r\ny", b"a", "bad-field-name"),
        ("X-Upper", b"a", "bad-field-name"),
        (":path", b"/", "bad-field-name"),
        ("", b"a", "empty-field-name"),
        ("connection", b"close", "connection-specific-field"),
        ("transfer-encoding", b"chunked", "connection-specific-field"),
        ("upgrade", b"h2c", "connection-specific-field"),
        ("keep-alive", b"5", "connection-specific-field"),
        ("proxy-connection", b"close", "connection-specific-field"),
        ("te", b"gzip", "bad-te"),
        ("content-length", b"+5", "bad-content-length"),
        ("content-length", b"5, 5", "bad-content-length"),
        ("expect", b"magic", "unknown-expectation"),
    ];
    for (name, value, reason) in cases {
        assert_eq!(text(&GET, &[(name, value)], true), Err(*reason), "{name}: {}", value.escape_ascii());
    }
}

#[test]
#[rustfmt::skip] // one line per case
fn pseudo_headers_that_are_not_what_they_should_be_are_refused() {
    let cases: &[(Pseudo<'_>, &str)] = &[
        (Pseudo { path: None, ..GET }, "bad-target"),
        (Pseudo { path: Some(b"x"), ..GET }, "bad-target"),
        (Pseudo { path: Some(b"*"), ..GET }, "bad-target"),
        (Pseudo { path: Some(b"http://other/"), ..GET }, "bad-target"),
        (Pseudo { path: Some(b"/a b"), ..GET }, "bad-target-byte"),
        (Pseudo { path: Some(b"/ HTTP/1.1\r\nx: y"), ..GET }, "bad-target-byte"),
        (Pseudo { path: Some(b"/\xc3\xa4"), ..GET }, "bad-target-byte"),
        (Pseudo { method: b"GET /evil HTTP/1.1\r\nx:", ..GET }, "bad-method"),
        (Pseudo { method: b"", ..GET }, "bad-method"),
        (Pseudo { method: b"CONNECT", path: None, scheme: None, ..GET }, "connect-not-supported"),
        (Pseudo { method: b"TRACE", ..GET }, "trace-not-allowed"),
        (Pseudo { scheme: Some(b"ftp"), ..GET }, "bad-scheme"),
        (Pseudo { authority: None, ..GET }, "no-host"),
        (Pseudo { authority: Some(b"user@shop.example"), ..GET }, "bad-host"),
        (Pseudo { authority: Some(b"shop.example/x"), ..GET }, "bad-host"),
        (Pseudo { authority: Some(b"a\r\nx: y"), ..GET }, "bad-host"),
        (Pseudo { authority: Some(b"shop.example:99999"), ..GET }, "bad-host"),
        (Pseudo { protocol: Some(b"websocket"), ..GET }, "bad-method"),
        (Pseudo { method: b"CONNECT", protocol: Some(b"connect-udp"), ..GET }, "unknown-protocol"),
    ];
    for (pseudo, reason) in cases {
        assert_eq!(text(pseudo, &[], true), Err(*reason), "{pseudo:?}");
    }
}

#[test]
fn host_and_authority_must_mean_the_same() {
    assert!(text(&GET, &[("host", b"shop.example")], true).unwrap().starts_with("GET / HTTP/1.1\r\nhost: shop"));
    assert!(text(&GET, &[("host", b"SHOP.example:443")], true).is_ok());
    assert_eq!(text(&GET, &[("host", b"other.example")], true), Err("host-differs-from-target"));
    assert_eq!(text(&GET, &[("host", b"shop.example"), ("host", b"shop.example")], true), Err("several-hosts"));
    // Text that is no authority does not become part of a path.
    for authority in [&b"shop.example/x"[..], b"shop.example?x", b"shop.example/"] {
        let pseudo = Pseudo { authority: Some(authority), ..GET };
        assert_eq!(text(&pseudo, &[("host", b"shop.example")], true), Err("bad-host"), "{}", authority.escape_ascii());
    }
    let options = Pseudo { method: b"OPTIONS", path: Some(b"*"), ..GET };
    let whole = text(&options, &[("host", b"SHOP.example")], true).unwrap();
    assert!(whole.starts_with("OPTIONS https://shop.example HTTP/1.1\r\n"), "{whole}");
    let hostless = Pseudo { authority: None, ..GET };
    assert!(text(&hostless, &[("host", b"shop.example")], true).is_ok());
}

#[test]
fn a_websocket_by_extended_connect_becomes_an_upgrade() {
    let connect = Pseudo { method: b"CONNECT", path: Some(b"/chat"), protocol: Some(b"websocket"), ..GET };
    // A key of the client's own is not used over HTTP/2: with two of them the server could prove the wrong one.
    let fields: [(&str, &[u8]); 2] =
        [("sec-websocket-version", b"13"), ("sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ==")];
    let head = text(&connect, &fields, false).unwrap();
    assert!(!head.contains("dGhlIHNhbXBsZSBub25jZQ=="), "{head}");
    assert!(head.starts_with("GET /chat HTTP/1.1\r\nHost: shop.example\r\nsec-websocket-version: 13\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: "), "{head}");
    let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
    assert!(key.len() == 24 && key.ends_with("=="), "{key}");
    assert_eq!(text(&connect, &[("content-length", b"5")], false), Err("content-length-in-tunnel"));
}

#[test]
fn a_websockets_key_is_answered_as_the_rfc_has_it() {
    assert_eq!(websocket_accept(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
}

#[test]
fn a_request_for_a_server_of_http2_has_what_http2_has() {
    let head =
        b"POST /a?b HTTP/1.1\r\nHost: shop.example:81\r\nX-A: 1\r\nTransfer-Encoding: chunked\r\nConnection: TE\r\n\
                 TE: trailers\r\nVia: 1.1 propylon\r\n\r\n";
    let request = server_request(head, false, true).unwrap();
    assert_eq!((request.method().as_str(), request.uri().to_string()), ("POST", "https://shop.example:81/a?b".into()));
    let names: Vec<&str> = request.headers().keys().map(HeaderName::as_str).collect();
    assert_eq!(names, ["x-a", "te", "via"]);
    let keyed = server_request(b"GET / HTTP/1.1\r\nHost: a\r\nSec-WebSocket-Key: x\r\n\r\n", false, true).unwrap();
    assert_eq!(keyed.headers().len(), 1, "nothing to do with a tunnel");
    let upgrade =
        b"GET /chat HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n";
    let request = server_request(upgrade, true, false).unwrap();
    assert_eq!(request.method(), http::Method::CONNECT);
    assert_eq!(request.extensions().get::<h2::ext::Protocol>().unwrap().as_str(), "websocket");
    assert!(request.headers().is_empty());
}

/// Result of a server's head: its text, or the word that it is refused with.
fn answer(status: u16, fields: Pairs<'_>, asked: Asked<'_>, ended: bool) -> Result<String, &'static str> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    for (name, value) in fields {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        response.headers_mut().append(name, HeaderValue::from_bytes(value).unwrap());
    }
    let mut text = Vec::new();
    write_response(&response, asked, ended, &mut text).map_err(|reject| reject.fault.label())?;
    let mut head = ResponseHead::default();
    match parse_response(&text, asked, &Limits { head_bytes: 4096, headers: 60 }, &mut head) {
        Ok(Parsed::Complete) => Ok(String::from_utf8_lossy(&text).into_owned()),
        other => panic!("{other:?}: {}", text.escape_ascii()),
    }
}

#[test]
fn a_response_of_http2_reads_as_if_a_server_of_http1_had_sent_it() {
    let get = Asked { method: Method::Get, upgrade: None };
    let head = Asked { method: Method::Head, upgrade: None };
    let upgrade = Asked { method: Method::Get, upgrade: Some(b"websocket") };
    assert_eq!(answer(200, &[], get, false).unwrap(), "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!(answer(200, &[], get, true).unwrap(), "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(answer(200, &[], head, true).unwrap(), "HTTP/1.1 200 OK\r\n\r\n");
    assert_eq!(answer(204, &[], get, true).unwrap(), "HTTP/1.1 204 No Content\r\n\r\n");
    // A length of 0 would be that of the representation (RFC 9110 §8.6).
    for ended in [true, false] {
        assert!(!answer(304, &[], get, ended).unwrap().contains(": "));
    }
    assert_eq!(
        answer(200, &[("content-length", b"5")], get, false).unwrap(),
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"
    );
    assert!(answer(200, &[], upgrade, false).unwrap().starts_with("HTTP/1.1 101 \r\nConnection: upgrade\r\n"));
    // Any 2xx opens the tunnel, and a length of it is not heeded (RFC 9110 §9.3.6).
    let opened = "HTTP/1.1 101 \r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(answer(201, &[("content-length", b"5")], upgrade, false).unwrap(), opened);
    // Nothing else does.
    for status in [304, 403, 500] {
        assert!(answer(status, &[], upgrade, true).unwrap().starts_with(&format!("HTTP/1.1 {status} ")));
    }
    assert_eq!(answer(200, &[("connection", b"close")], get, true), Err("connection-specific-field"));
    assert_eq!(answer(200, &[("x", b" y")], get, true), Err("space-around-value"));
}

#[test]
fn a_response_keeps_what_goes_on_and_loses_what_is_between_neighbours() {
    let bytes =
        b"HTTP/1.1 200 Fine\r\nServer: x\r\nConnection: close, x-hop\r\nX-Hop: 1\r\nTransfer-Encoding: chunked\r\n\
                  Set-Cookie: a\r\nSet-Cookie: b\r\nKeep-Alive: 5\r\n\r\n";
    let mut head = ResponseHead::default();
    let asked = Asked { method: Method::Get, upgrade: None };
    parse_response(bytes, asked, &Limits { head_bytes: 4096, headers: 60 }, &mut head).unwrap();
    let response = response(
        &head,
        bytes,
        Some(HeaderValue::from_static("Sun, 06 Nov 1994 08:49:37 GMT")),
        &mut HeaderCache::default(),
    )
    .unwrap();
    let fields: Vec<(&str, &str)> =
        response.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    let expected = [
        ("server", "x"),
        ("set-cookie", "a"),
        ("set-cookie", "b"),
        ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("via", "1.1 propylon"),
    ];
    assert_eq!(fields, expected);
}

#[test]
fn a_date_of_the_servers_own_stays_the_only_one_and_an_interim_response_has_no_length() {
    let fields = |text: &str| -> Vec<(String, String)> {
        let mut head = ResponseHead::default();
        let asked = Asked { method: Method::Get, upgrade: None };
        parse_response(text.as_bytes(), asked, &Limits { head_bytes: 4096, headers: 60 }, &mut head).unwrap();
        let date = Some(HeaderValue::from_static("ours"));
        let response = response(&head, text.as_bytes(), date, &mut HeaderCache::default()).unwrap();
        let field = |(name, value): (&HeaderName, &HeaderValue)| (name.to_string(), value.to_str().unwrap().to_owned());
        response.headers().iter().filter(|(name, _)| *name != VIA).map(field).collect()
    };
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let dated = fields("HTTP/1.1 200 X\r\nDate: theirs\r\nContent-Length: 5\r\n\r\n");
    assert_eq!(dated, [pair("date", "theirs"), pair("content-length", "5")]);
    assert_eq!(fields("HTTP/1.1 103 X\r\nContent-Length: 5\r\n\r\n"), [pair("date", "ours")]);
}

#[test]
fn trailers_go_both_ways_and_those_that_may_not_trail_do_not() {
    let mut map = HeaderMap::new();
    for (name, value) in [("grpc-status", "0"), ("host", "evil"), ("content-length", "5"), ("x-sum", "a b")] {
        map.append(name, HeaderValue::from_static(value));
    }
    let lines = trailer_lines(&map, Decoder::new());
    assert_eq!(lines, b"grpc-status: 0\r\nx-sum: a b\r\n");
    let back = trailer_map(&lines);
    assert_eq!((back.len(), &back["grpc-status"], &back["x-sum"]), (2, &"0".parse().unwrap(), &"a b".parse().unwrap()));
    assert!(trailer_lines(&map, Decoder::new().without_trailers()).is_empty());
}

/// Every request that comes through reads as what was asked, for heads made of pieces that tend to go wrong.
#[test]
fn any_request_is_refused_or_reads_as_what_was_asked() {
    const PIECES: &[&[u8]] = &[
        b"GET",
        b"POST",
        b"CONNECT",
        b"OPTIONS",
        b"/",
        b"*",
        b"/a?b",
        b"https",
        b"http",
        b"shop.example",
        b"[::1]:443",
        b"websocket",
        b"host",
        b"te",
        b"trailers",
        b"cookie",
        b"a=1",
        b"content-length",
        b"5",
        b"0",
        b"expect",
        b"100-continue",
        b"x-a",
        b"X-A",
        b"\r\n",
        b" ",
        b":",
        b"\0",
        b"\t",
        b"chunked",
        b"transfer-encoding",
        b"x_forwarded_for",
        b"",
        b"SHOP.example",
        b"shop.example:443",
        b"http://x/",
        b"connection",
        b"upgrade",
        b"\xc3\xa4",
        b"max-forwards",
    ];
    let mut random = fastrand::Rng::with_seed(2023);
    for _ in 0..200_000 {
        let mut input = vec![random.u8(..)];
        let likely = [0, 7, 9, 4];
        for place in 0..5 + 2 * random.usize(..5) {
            let count = random.usize(..8) / 6 + 1;
            for _ in 0..count {
                let usual = likely.get(place).filter(|_| random.u8(..) < 200);
                let index = usual.copied().unwrap_or_else(|| random.usize(..PIECES.len()));
                input.extend_from_slice(PIECES[index]);
            }
            input.push(0xff);
        }
        input.pop();
        fuzz::translate(&input);
    }
}
