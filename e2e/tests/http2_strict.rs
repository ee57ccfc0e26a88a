//! What HTTP/2 must refuse: requests that RFC 9113 §8 calls malformed, and whatever would read as something else once it
//! is written as HTTP/1.1. The origin sees one well-formed request for one that was good, and nothing of the others.

use propylon_e2e::engine::{simple, with};
use propylon_e2e::frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, Http2, PADDED, PING, PROTOCOL_ERROR,
    RST_STREAM, STREAM_CLOSED, WINDOW_UPDATE, block, literal, request,
};
use propylon_e2e::http::{head_end, values};
use propylon_e2e::{Engine, Origin, holds};

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";

type Fields<'a> = &'a [(&'a str, &'a str)];

/// What became of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Status(u16),
    /// RST_STREAM with this code, nothing said before.
    Reset(u32),
    /// GOAWAY with this code.
    Goaway(u32),
}

use Outcome::{Goaway, Reset, Status};

const MALFORMED: Outcome = Reset(PROTOCOL_ERROR);
const BAD: Outcome = Status(400);

fn outcome(frame: &Frame) -> Outcome {
    match frame.kind {
        RST_STREAM => Reset(frame.code()),
        GOAWAY => Goaway(frame.code()),
        HEADERS => Status(frame.status().or(frame.spelled_status()).unwrap_or_else(|| panic!("no status: {frame:?}"))),
        _ => panic!("neither an answer nor a reset: {frame:?}"),
    }
}

/// An engine before an origin that says hello, and how the two stand at the moment.
struct Gate {
    engine: Engine,
    origin: Origin,
}

impl Gate {
    fn new() -> Gate {
        let origin = Origin::always(HELLO);
        Gate { engine: Engine::start(&simple(&[origin.address()])), origin }
    }

    /// What a header block that ends its stream comes to, on a connection of its own, which goes on: a request is malformed
    /// at the cost of its stream alone (RFC 9113 §8.1.1).
    #[track_caller]
    fn sends(&self, block: &[u8]) -> Outcome {
        let mut client = Http2::start(&self.engine);
        client.send(HEADERS, END_HEADERS | END_STREAM, 1, block);
        let outcome = outcome(&client.next_of(1));
        client.send(PING, 0, 0, b"are you?");
        loop {
            let frame = client.next_frame();
            assert_ne!(frame.kind, GOAWAY, "after {outcome:?}");
            if frame.kind == PING && frame.flags == ACK {
                return outcome;
            }
        }
    }

    /// Each of these is refused in its way, and nothing of it reaches the origin.
    #[track_caller]
    fn refuses(&self, cases: &[(&str, Vec<u8>, Outcome)]) {
        let wrong: Vec<String> = cases
            .iter()
            .filter_map(|(what, block, wanted)| {
                let (got, seen) = (self.sends(block), self.origin.received_text());
                (got != *wanted || !seen.is_empty()).then(|| format!("{what}: {got:?}, not {wanted:?}; {seen:?}"))
            })
            .collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        // What the origin was not sent by now it will not be sent: this one comes after.
        assert_eq!(self.sends(&block(&request("GET", "/after"))), Status(200));
        let seen = self.origin.received_text();
        assert!(seen.starts_with("GET /after HTTP/1.1\r\nHost: localhost\r\n"), "{seen}");
        assert_eq!((seen.matches("HTTP/1.1").count(), seen.find("\r\n\r\n")), (1, Some(seen.len() - 4)), "{seen}");
    }
}

/// A GET of `/` with one more field, of any bytes.
fn with_field(name: &[u8], value: &[u8]) -> Vec<u8> {
    [block(&request("GET", "/")), literal(name, value)].concat()
}

/// The pseudo-header fields of a GET of `/`, one of them changed; none: left out.
fn with_pseudo(name: &str, value: Option<&[u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for (known, usual) in request("GET", "/") {
        match (known == name, value) {
            (false, _) => out.extend(literal(known.as_bytes(), usual.as_bytes())),
            (true, Some(value)) => out.extend(literal(name.as_bytes(), value)),
            (true, None) => {}
        }
    }
    out
}

fn quoted(bytes: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(bytes))
}

fn borrowed(cases: &[(String, Vec<u8>, Outcome)]) -> Vec<(&str, Vec<u8>, Outcome)> {
    cases.iter().map(|(what, block, wanted)| (what.as_str(), block.clone(), *wanted)).collect()
}

/// RFC 9113 §8.3: all before the others, each once, none that nobody knows.
#[test]
fn pseudo_header_fields_are_all_there_once_and_first() {
    let twice = |name: &str, value: &str| [block(&request("GET", "/")), block(&[(name, value)])].concat();
    let late = [block(&request("GET", "/")[..3]), block(&[("x", "y"), (":path", "/")])].concat();
    Gate::new().refuses(&[
        ("no :method", with_pseudo(":method", None), MALFORMED),
        ("no :scheme", with_pseudo(":scheme", None), MALFORMED),
        ("no :path", with_pseudo(":path", None), MALFORMED),
        ("no :authority and no host", with_pseudo(":authority", None), BAD),
        (":path after a field", late, MALFORMED),
        (":method twice", twice(":method", "GET"), MALFORMED),
        (":path twice", twice(":path", "/"), MALFORMED),
        (":scheme twice", twice(":scheme", "http"), MALFORMED),
        (":authority twice", twice(":authority", "localhost"), MALFORMED),
        ("an unknown one", twice(":colour", "red"), MALFORMED),
        ("a bare colon", twice(":", "x"), MALFORMED),
        (":status in a request", twice(":status", "200"), MALFORMED),
        (":protocol without CONNECT", twice(":protocol", "websocket"), MALFORMED),
        ("nothing at all", Vec::new(), MALFORMED),
    ]);
}

/// RFC 9113 §8.2.1 and §8.2.2.
#[test]
fn field_names_are_lower_case_tokens() {
    let unreadable = [
        &b"X-Upper"[..],
        b"hosT",
        b"",
        b"x y",
        b"x:y",
        b"x\ry",
        b"x\ny",
        b"x\0y",
        b"x\ty",
        b"x\x7fy",
        b"x\r\ncontent-length: 5",
        b"content-length ",
        b" content-length",
        b"x\xc3\xa4",
        b"x(y)",
        b"x\"y",
    ];
    let cases = unreadable.map(|name| (quoted(name), with_field(name, b"1"), MALFORMED));
    Gate::new().refuses(&borrowed(&cases));
}

/// RFC 9113 §8.2.1: what would be the end of a line, or of a string, in HTTP/1.1.
#[test]
fn values_that_would_be_more_than_a_value_in_http_1_are_refused() {
    let mut cases: Vec<(String, Vec<u8>, Outcome)> = Vec::new();
    let smuggled = [
        &b"x\r\nTransfer-Encoding: chunked"[..],
        b"x\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
        b"x\nContent-Length: 5",
        b"x\rContent-Length: 5",
        b"x\0y",
        b"x\r",
        b"\nx",
    ];
    for value in smuggled {
        let what = |field: &str| format!("{field} {}", quoted(value));
        for name in ["x-field", "cookie", "host", "content-length"] {
            cases.push((what(name), with_field(name.as_bytes(), value), MALFORMED));
        }
        cases.push((what(":method"), with_pseudo(":method", Some(value)), MALFORMED));
        for name in [":path", ":authority", ":scheme"] {
            let value = [if name == ":path" { &b"/"[..] } else { b"" }, value].concat();
            cases.push((what(name), with_pseudo(name, Some(&value)), MALFORMED));
        }
    }
    for value in [&b" x"[..], b"x ", b"\tx", b"x\t", b" "] {
        cases.push((quoted(value), with_field(b"x-field", value), BAD));
    }
    Gate::new().refuses(&borrowed(&cases));
}

/// RFC 9113 §8.2.2.
#[test]
fn connection_specific_fields_are_malformed() {
    Gate::new().refuses(&[
        ("connection", with_field(b"connection", b"close"), MALFORMED),
        ("connection keep-alive", with_field(b"connection", b"keep-alive"), MALFORMED),
        ("keep-alive", with_field(b"keep-alive", b"timeout=5"), MALFORMED),
        ("proxy-connection", with_field(b"proxy-connection", b"keep-alive"), MALFORMED),
        ("transfer-encoding", with_field(b"transfer-encoding", b"chunked"), MALFORMED),
        ("upgrade", with_field(b"upgrade", b"websocket"), MALFORMED),
        ("te gzip", with_field(b"te", b"gzip"), MALFORMED),
        ("te trailers and more", with_field(b"te", b"trailers, gzip"), MALFORMED),
    ]);
}

#[test]
fn what_a_request_is_for_is_said_clearly_or_not_at_all() {
    let host = |host: &str| with_field(b"host", host.as_bytes());
    Gate::new().refuses(&[
        ("another host", host("elsewhere.test"), BAD),
        ("another port", host("localhost:81"), BAD),
        ("two hosts", [host("localhost"), literal(b"host", b"elsewhere.test")].concat(), BAD),
        ("no host in it", with_pseudo(":authority", Some(b"")), MALFORMED),
        ("userinfo", with_pseudo(":authority", Some(b"user@localhost")), BAD),
        ("a path in :authority", with_pseudo(":authority", Some(b"localhost/x")), MALFORMED),
        ("a space in :authority", with_pseudo(":authority", Some(b"local host")), MALFORMED),
        (":path empty", with_pseudo(":path", Some(b"")), MALFORMED),
        (":path without a slash", with_pseudo(":path", Some(b"x")), MALFORMED),
        (":path of a whole URL", with_pseudo(":path", Some(b"http://elsewhere.test/")), MALFORMED),
        (":path with a space", with_pseudo(":path", Some(b"/x y")), MALFORMED),
        (":path with a version", with_pseudo(":path", Some(b"/ HTTP/1.1")), MALFORMED),
        (":path with DEL", with_pseudo(":path", Some(b"/x\x7f")), MALFORMED),
        (":path above ASCII", with_pseudo(":path", Some(b"/x\xff")), MALFORMED),
        (":path * for GET", with_pseudo(":path", Some(b"*")), BAD),
        (":scheme ftp", with_pseudo(":scheme", Some(b"ftp")), BAD),
        (":scheme empty", with_pseudo(":scheme", Some(b"")), BAD),
        (":scheme with more", with_pseudo(":scheme", Some(b"http://elsewhere.test/")), MALFORMED),
        (":method empty", with_pseudo(":method", Some(b"")), MALFORMED),
        (":method with a space", with_pseudo(":method", Some(b"GET /x")), MALFORMED),
        ("CONNECT", block(&[(":method", "CONNECT"), (":authority", "localhost:443")]), Status(501)),
        ("CONNECT with a path", with_pseudo(":method", Some(b"CONNECT")), MALFORMED),
        (
            "an unknown protocol",
            [with_pseudo(":method", Some(b"CONNECT")), block(&[(":protocol", "tape")])].concat(),
            Status(501),
        ),
    ]);
}

/// RFC 9113 §8.1.1: its sum is that of the DATA, or the request is malformed.
#[test]
fn content_length_is_what_the_data_come_to() {
    let gate = Gate::new();
    let post = |length: &str| block(&[&request("POST", "/")[..], &[("content-length", length)]].concat());
    gate.refuses(&[
        ("a body announced and the end said", post("5"), MALFORMED),
        ("not a number", post("5x"), MALFORMED),
        ("negative", post("-1"), MALFORMED),
        ("signed", post("+0"), MALFORMED),
        ("empty", post(""), BAD),
        ("a list", post("0, 0"), MALFORMED),
        ("twice, and different", [post("0"), block(&[("content-length", "5")])].concat(), MALFORMED),
        ("beyond 64 bits", post("18446744073709551616"), MALFORMED),
    ]);
    for (what, length, pieces) in [
        ("short", "5", &["four"][..]),
        ("long", "5", &["longer"]),
        ("long in pieces", "5", &["long", "er"]),
        ("none", "5", &[""]),
    ] {
        let (mut client, before) = (Http2::start(&gate.engine), gate.origin.connections());
        client.send(HEADERS, END_HEADERS, 1, &post(length));
        for (index, piece) in pieces.iter().enumerate() {
            let last = index + 1 == pieces.len();
            client.send(DATA, if last { END_STREAM } else { 0 }, 1, piece.as_bytes());
        }
        assert_eq!(outcome(&client.next_of(1)), MALFORMED, "{what}");
        // What the origin may have got of it is less than was announced, and its connection is not used again.
        holds("it is over", || gate.engine.metric("propylon_http2_streams", &[]) == 0.0);
        for seen in &gate.origin.received()[before..] {
            let end = head_end(seen).unwrap_or(seen.len());
            assert!(seen.len() < end + 5, "{what}: {:?}", String::from_utf8_lossy(seen));
        }
    }
}

/// RFC 9113 §8.1: trailers have no pseudo-header fields, end the stream, and nothing of theirs becomes a field of the head.
#[test]
fn trailers_are_fields_at_the_end_and_nothing_else() {
    let gate = Gate::new();
    let cases: &[(&str, u8, Fields)] = &[
        ("a late pseudo-header field", END_STREAM, &[("x-sum", "1"), (":path", "/admin")]),
        ("an upper-case name", END_STREAM, &[("X-Sum", "1")]),
        ("a line end", END_STREAM, &[("x-sum", "1\r\nx-more: 2")]),
        ("no end", 0, &[("x-sum", "1")]),
        ("a connection's field", END_STREAM, &[("transfer-encoding", "chunked")]),
    ];
    for (what, flags, trailers) in cases {
        let mut client = Http2::start(&gate.engine);
        client.headers(1, 0, &request("POST", "/trailed"));
        client.send(DATA, 0, 1, b"hello");
        client.headers(1, *flags, trailers);
        let got = outcome(&client.next_of(1));
        assert!(matches!(got, MALFORMED | BAD), "{what}: {got:?}");
    }
    for seen in gate.origin.received() {
        let seen = String::from_utf8_lossy(&seen).into_owned();
        assert!(!seen.contains("\r\n0\r\n"), "it was finished: {seen}");
        assert!(!seen.contains("x-more") && !seen.contains("admin"), "{seen}");
    }
    let mut client = Http2::start(&gate.engine);
    client.headers(1, 0, &request("POST", "/trailed-well"));
    client.send(DATA, 0, 1, b"hello");
    client.headers(1, END_STREAM, &[("x-sum", "1"), ("host", "elsewhere.test"), ("content-length", "9")]);
    assert_eq!(outcome(&client.next_of(1)), Status(200));
    let seen = gate.origin.received_text();
    let seen = &seen[seen.find("POST /trailed-well").expect("it arrived")..];
    assert!(seen.ends_with("5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n"), "{seen}");
}

/// A request may have as many fields as over HTTP/1.1, its pseudo-header fields apart.
#[test]
fn the_limit_of_fields_is_that_of_fields() {
    let gate = Gate::new();
    let mut client = Http2::start(&gate.engine);
    for (stream, count, status) in [(1, 100, 200), (3, 101, 431), (5, 100, 200), (7, 130, 431)] {
        let mut fields = request("GET", "/");
        fields.extend((0..count).map(|_| ("x-field", "1")));
        client.headers(stream, END_STREAM, &fields);
        assert_eq!(outcome(&client.next_of(stream)), Status(status), "{count} fields");
    }
    let refused = gate.engine.metric("propylon_requests_rejected_total", &[("reason", "too-many-fields")]);
    assert_eq!(refused, 2.0);
}

/// RFC 9113 §8.3.1: a path has no fragment, and nothing of what was said is left out unsaid. §8.1: trailers have no pseudo-header
/// fields, not even alone.
#[test]
fn nothing_is_dropped_in_silence() {
    let gate = Gate::new();
    for path in [&b"/page?x#fragment"[..], b"/page?x#\r\nX-Fragment: 1\r\n\r\n", b"/#", b"#"] {
        assert_eq!(gate.sends(&with_pseudo(":path", Some(path))), MALFORMED);
    }
    let mut client = Http2::start(&gate.engine);
    client.headers(1, 0, &request("POST", "/trailed"));
    client.send(DATA, 0, 1, b"hello");
    client.headers(1, END_STREAM, &[(":path", "/admin")]);
    assert_eq!(outcome(&client.next_of(1)), MALFORMED);
    client.get(3, "/after");
    assert_eq!(outcome(&client.next_of(3)), Status(200));
    let seen = gate.origin.received_text().to_lowercase();
    assert!(!seen.contains("fragment") && !seen.contains("admin") && !seen.contains("\r\n0\r\n"), "{seen}");
}

/// RFC 9113 §8.1.1 and §5.1: what one stream does wrong costs the others nothing, and the table of header fields is what it was.
#[test]
fn a_streams_error_is_not_the_connections() {
    let gate = Gate::new();
    let mut client = Http2::start(&gate.engine);
    client.headers(1, 0, &request("POST", "/in-progress"));
    client.send(DATA, 0, 1, b"begun");
    // All are put in the table, by their names and values (RFC 7541 §6.2.1).
    let kept = |name: &[u8], value: &[u8]| {
        let mut field = literal(name, value);
        field[0] = 0x40;
        field
    };
    let flawed = [
        kept(b"x-bad", b"a\r\nb: c"),
        kept(b"x-bad", b"a\0b"),
        kept(b"X-Upper", b"1"),
        kept(b":colour", b"red"),
        kept(b":path", b"/#x"),
        kept(b"", b"nameless"),
        kept(b":status", b"twenty"),
        [kept(b"x-fine", b"1"), kept(b":method", b"GET")].concat(),
        [kept(b"x-fine", b"1"), kept(b"transfer-encoding", b"chunked")].concat(),
    ];
    let mut stream = 1;
    for field in flawed {
        stream += 2;
        let list = [block(&request("GET", "/bad")), field].concat();
        // In two frames, the second time.
        if stream % 4 == 1 {
            client.send(HEADERS, END_STREAM, stream, &list[..9]);
            client.send(CONTINUATION, END_HEADERS, stream, &list[9..]);
        } else {
            client.send(HEADERS, END_HEADERS | END_STREAM, stream, &list);
        }
        assert_eq!(outcome(&client.next_of(stream)), MALFORMED);
    }
    // Of the table's entries, the newest first: transfer-encoding, x-fine.
    stream += 2;
    client.send(HEADERS, END_HEADERS | END_STREAM, stream, &[block(&request("GET", "/named")), vec![0xbf]].concat());
    assert_eq!(outcome(&client.next_of(stream)), Status(200));
    while !client.next_of(stream).ends() {}
    // A name whose value was bad is a name still: the first of eleven. A bad field is one wherever it is named.
    stream += 2;
    client.send(HEADERS, END_HEADERS | END_STREAM, stream, &[block(&request("GET", "/bad")), vec![0xc8]].concat());
    assert_eq!(outcome(&client.next_of(stream)), MALFORMED);
    stream += 2;
    let named = [&block(&request("GET", "/named-again"))[..], &[0x0f, 0xc8 - 0x80 - 0x0f, 1, b'2']].concat();
    client.send(HEADERS, END_HEADERS | END_STREAM, stream, &named);
    assert_eq!(outcome(&client.next_of(stream)), Status(200));
    while !client.next_of(stream).ends() {}
    // Frames after the end of a stream, and window updates of nothing.
    client.send(DATA, 0, stream, &[7; 10_000]);
    let heard = client.next_of(stream);
    assert_eq!((heard.kind, heard.code()), (RST_STREAM, STREAM_CLOSED));
    stream += 2;
    client.headers(stream, 0, &request("POST", "/bad"));
    client.send(WINDOW_UPDATE, 0, stream, &[0; 4]);
    let heard = client.next_of(stream);
    assert_eq!((heard.kind, heard.code()), (RST_STREAM, PROTOCOL_ERROR));
    client.send(DATA, END_STREAM, 1, b" and done");
    assert_eq!(outcome(&client.next_of(1)), Status(200));
    let seen = gate.origin.received_text();
    assert!(seen.contains("5\r\nbegun\r\n9\r\n and done\r\n0\r\n\r\n"), "{seen}");
    assert!(seen.contains("x-fine: 1\r\n") && seen.contains("x-bad: 2\r\n"), "{seen}");
    assert!(!seen.contains("GET /bad"), "{seen}");
}

/// A stream of messages may live for days: frames without data are counted by the second, as the configuration says, and
/// not by the connection's life.
#[test]
fn frames_without_data_cost_a_long_upload_nothing() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&with(&[origin.address()], "http2 = { flood = { empty_data = 100000 } }", ""));
    let mut client = Http2::start(&engine);
    client.headers(1, 0, &request("POST", "/long"));
    for _ in 0..1_000 {
        client.send(DATA, 0, 1, &[]);
        client.send(DATA, PADDED, 1, &[&[99][..], &[0; 99]].concat());
    }
    client.send(DATA, 0, 1, b"data");
    client.send(DATA, END_STREAM, 1, &[]);
    assert_eq!(outcome(&client.next_of(1)), Status(200));
    assert!(origin.received_text().ends_with("4\r\ndata\r\n0\r\n\r\n"));
}

/// The other way round: what is odd and allowed arrives as it was said, as one request.
#[test]
fn what_is_allowed_is_one_request_of_http_1() {
    let cases: &[(&str, Fields)] = &[
        ("GET", &[("te", "trailers"), ("x-empty", ""), ("x-colon", "a:b")]),
        ("GET", &[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2")]),
        ("GET", &[("host", "localhost")]),
        ("GET", &[("x-text", "HTTP/1.1 200 OK"), ("x-line", "a\\r\\nb")]),
        ("POST", &[("content-length", "0")]),
        ("GE1T'", &[("x-token!#$%&'*+-.^_`|~09", "1")]),
        ("DELETE", &[("expect-nothing", "1"), ("x-trailer", "x")]),
    ];
    for (method, fields) in cases {
        let gate = Gate::new();
        assert_eq!(gate.sends(&block(&[&request(method, "/x?y")[..], fields].concat())), Status(200), "{fields:?}");
        let seen = gate.origin.received_text();
        assert!(seen.starts_with(&format!("{method} /x?y HTTP/1.1\r\nHost: localhost\r\n")), "{seen}");
        assert_eq!(seen.find("\r\n\r\n"), Some(seen.len() - 4), "{seen}");
        assert!(values(&seen, "Transfer-Encoding").is_empty(), "{seen}");
        for (name, value) in fields.iter().filter(|(name, _)| *name != "cookie") {
            assert_eq!(values(&seen, name), [*value], "{seen}");
        }
        if fields[0].0 == "cookie" {
            assert_eq!(values(&seen, "cookie"), ["a=1; b=2"]);
        }
    }
}

/// RFC 9110 §7.4: a browser may send it on a connection made for another of the certificate's names.
#[test]
fn a_shared_connection_is_for_the_names_of_its_certificate() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = Http2::start_tls(&engine);
    let names =
        [("localhost", 200), ("shop.test", 200), ("a.shop.test", 200), ("elsewhere.test", 421), ("a.b.shop.test", 421)];
    for (index, (name, status)) in names.into_iter().enumerate() {
        let stream = index as u32 * 2 + 1;
        let fields = [(":method", "GET"), (":scheme", "https"), (":authority", name), (":path", "/")];
        client.headers(stream, END_STREAM, &fields);
        let head = client.next_of(stream);
        // The second 421 is an entry of the table that the first one made.
        let got = head.status().or(head.spelled_status());
        assert_eq!(got.unwrap_or(421), status, "{name}");
        while !head.ends() && !client.next_of(stream).ends() {}
    }
    assert!(!origin.received_text().contains("elsewhere") && !origin.received_text().contains("a.b."));
}

/// RFC 9110 §15.5.20: nor for those that its listener has no route for, while a path that it has none for is not found.
#[test]
fn a_shared_connection_is_for_the_names_of_its_listener() {
    let origin = Origin::always(HELLO);
    let config = simple(&[origin.address()]);
    let engine = Engine::start(&format!("{config}host = \"shop.test\"\npath = \"/api\"\n"));
    for (name, path, status) in [
        ("shop.test", "/api", 200),
        ("shop.test", "/", 404),
        ("localhost", "/api", 421),
        ("localhost:81", "/", 421),
        ("127.0.0.1", "/", 421),
    ] {
        for mut client in [Http2::start_tls(&engine), Http2::start(&engine)] {
            let fields = [(":method", "GET"), (":scheme", "https"), (":authority", name), (":path", path)];
            client.headers(1, END_STREAM, &fields);
            assert_eq!(outcome(&client.next_of(1)), Status(status), "{name}{path}");
        }
    }
    let old = engine.client("plain").ask("GET /api HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(old.status, 404, "a connection of HTTP/1.1 is not shared among names");
}
