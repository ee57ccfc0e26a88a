//! The chunked coding, taken apart.

use super::*;

/// The data, the trailers and what is left over; or the reason of the refusal.
fn decode(body: &[u8]) -> Result<(String, String, usize), &'static str> {
    let (mut decoder, mut data, mut at) = (Decoder::new(), Vec::new(), 0);
    loop {
        match decoder.next(&body[at..]).map_err(|reject| reject.fault.label())? {
            Event::NeedMore { .. } => return Err("more"),
            Event::Data { start, end } => {
                data.extend_from_slice(&body[at + start..at + end]);
                at += end;
            }
            Event::End { consumed } => {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                return Ok((text(&data), text(decoder.trailers()), body.len() - at - consumed));
            }
        }
    }
}

#[test]
fn a_body_is_its_chunks() {
    for (body, data, rest) in [
        ("0\r\n\r\n", "", 0),
        ("5\r\nhello\r\n0\r\n\r\n", "hello", 0),
        ("5\r\nhello\r\n1\r\n!\r\n000\r\n\r\nGET /", "hello!", 5),
        ("0000000000000005\r\nhello\r\n0\r\n\r\n", "hello", 0),
        ("a\r\n0123456789\r\nA\r\n\r\n\r\n\r\n\r\n\r\n\r\n0\r\n\r\n", "0123456789\r\n\r\n\r\n\r\n\r\n", 0),
    ] {
        assert_eq!(decode(body.as_bytes()), Ok((data.into(), String::new(), rest)), "{body:?}");
    }
}

#[test]
fn data_that_others_take_is_counted_and_what_follows_is_judged_as_before() {
    let (first, rest) = (b"100\r\nbegins", b"\r\nA\r\n");
    let mut decoder = Decoder::new();
    assert_eq!((decoder.next(first), decoder.left()), (Ok(Event::Data { start: 5, end: 11 }), 250));
    decoder.skip(0);
    decoder.skip(249);
    assert_eq!(decoder.left(), 1);
    decoder.skip(1);
    // A line of as many digits would be as long as this.
    assert_eq!((decoder.left(), decoder.line_bytes()), (0, 7));
    assert_eq!((decoder.next(rest), decoder.left()), (Ok(Event::NeedMore { consumed: 5 }), 10));
    decoder.skip(10);
    assert!(decoder.clone().next(b"0\r\n\r\n").is_err(), "the chunk has no end");
    assert_eq!(decoder.next(b"\r\n0\r\n\r\n"), Ok(Event::End { consumed: 7 }));
}

#[test]
fn a_chunk_size_is_hexadecimal_digits_and_fits() {
    for (body, reason) in [
        ("\r\n", "bad-chunk-size"),
        (" 5\r\nhello\r\n", "bad-chunk-size"),
        ("+5\r\nhello\r\n", "bad-chunk-size"),
        ("-5\r\nhello\r\n", "bad-chunk-size"),
        ("0x5\r\nhello\r\n", "bad-chunk-size"),
        ("5_0\r\n", "bad-chunk-size"),
        ("g\r\n", "bad-chunk-size"),
        (";a\r\n", "bad-chunk-size"),
        ("5\nhello\r\n", "bad-chunk-size"),
        ("5\rhello\r\n", "bare-cr"),
        ("5\r\rhello", "bare-cr"),
        ("5\0\r\n", "bad-chunk-size"),
        ("8000000000000000\r\n", "chunk-size-too-large"),
        ("ffffffffffffffff\r\n", "chunk-size-too-large"),
        ("10000000000000005\r\n", "chunk-size-too-large"),
        ("00000000000000005\r\n", "chunk-size-too-large"),
    ] {
        assert_eq!(decode(body.as_bytes()), Err(reason), "{body:?}");
    }
    let largest = b"7fffffffffffffff\r\n";
    assert_eq!(Decoder::new().next(largest), Ok(Event::NeedMore { consumed: largest.len() }));
}

#[test]
fn data_ends_where_its_size_says() {
    for body in [
        "5\r\nhello0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\r\nhello\r0\r\n\r\n",
        "5\r\nhello!\n0\r\n\r\n",
        "4\r\nhello\r\n0\r\n\r\n",
    ] {
        assert_eq!(decode(body.as_bytes()), Err("bad-chunk-end"), "{body:?}");
    }
    assert_eq!(decode(b"6\r\nhello\r\n0\r\n\r\n"), Err("bad-chunk-end"));
}

#[test]
fn extensions_follow_the_grammar_and_are_dropped() {
    for extension in [
        ";a",
        ";a=b",
        ";a=b;c=d",
        ";a=\"\"",
        ";a=\"b;c\"",
        ";a=\"b\\\"c\\\\\"",
        " ; a = b",
        "\t;a\t=\t\"b\" ;c",
        ";a=\"\u{e9}\"",
    ] {
        let body = format!("5{extension}\r\nhello\r\n0{extension}\r\n\r\n");
        assert_eq!(decode(body.as_bytes()), Ok(("hello".into(), String::new(), 0)), "{extension}");
    }
    for extension in [
        " ",
        ";",
        "; ",
        ";;a",
        ";a=",
        ";a=;b",
        ";a b",
        ";a=b c",
        ";a=b=c",
        ";a=\"b",
        ";a=\"b\"c",
        ";a=\"b\nc\"",
        ";a=\"b\r\nc\"",
        ";a\n",
        ";a=b\0",
        ";\u{e9}",
        " a",
        ";a ",
        ";a=b ",
        ";=b",
        ";a=\"\\\x01\"",
    ] {
        let body = format!("5{extension}\r\nhello\r\n0\r\n\r\n");
        let verdict = decode(body.as_bytes());
        assert!(matches!(verdict, Err("bad-chunk-extension")), "{extension:?} {verdict:?}");
    }
    assert_eq!(decode(b"5;a\rb\r\n"), Err("bare-cr"));
}

#[test]
fn extensions_are_bounded_over_the_whole_body() {
    let body = "1;abcdefgh\r\nx\r\n".repeat(500);
    assert_eq!(decode(body.as_bytes()), Err("chunk-extensions-too-long"));
    // The last byte of the extension is the CR behind it.
    let body = |length: usize| format!("1;{}\r\nx\r\n0\r\n\r\n", "a".repeat(length - 1));
    assert_eq!(decode(body(4096).as_bytes()), Ok(("x".into(), String::new(), 0)));
    assert_eq!(decode(body(4097).as_bytes()), Err("chunk-extensions-too-long"));
}

#[test]
fn trailers_go_on_unless_they_would_belong_into_the_head() {
    let body = "1\r\nx\r\n0\r\nGrpc-Status:  0 \r\nHost: b\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\
        Connection: X\r\nAuthorization: x\r\nCookie: x\r\nSet-Cookie: x\r\nX-Forwarded-For: x\r\nContent_Length: 5\r\n\
        Cache-Control: x\r\nTE: x\r\nTrailer: x\r\nUpgrade: x\r\nVia: x\r\nDate: x\r\nContent-Type: x\r\nRange: x\r\n\
        Client-Cert: x\r\nClient_Cert-Chain: x\r\nX-Real-IP: x\r\nTrue_Client-IP: x\r\nETag: \"1\"\r\n\r\nrest";
    let trailers = "Grpc-Status: 0\r\nETag: \"1\"\r\n";
    assert_eq!(decode(body.as_bytes()), Ok(("x".into(), trailers.into(), 4)));
}

/// The end of a line that comes by itself is not the end of the body: what follows would be read as the next request.
#[test]
fn trailers_end_with_their_empty_line_however_they_are_cut() {
    let body = b"0\r\nX: a\r\nY: b\r\n\r\nGET /";
    for cut in 3..body.len() {
        let mut decoder = Decoder::new();
        let mut end = 0;
        for piece in [&body[..cut], &body[cut..]] {
            match decoder.next(piece).unwrap() {
                Event::NeedMore { consumed } => end += consumed,
                Event::End { consumed } => {
                    end += consumed;
                    break;
                }
                data => panic!("{data:?}"),
            }
        }
        assert_eq!((end, decoder.trailers()), (body.len() - 5, &b"X: a\r\nY: b\r\n"[..]), "cut at {cut}");
    }
}

#[test]
fn no_trailer_goes_on_where_none_is_to() {
    let mut decoder = Decoder::new().without_trailers();
    let body = b"0\r\nETag: \"1\"\r\nX: y\r\n\r\n";
    assert_eq!(decoder.next(body), Ok(Event::End { consumed: body.len() }));
    assert_eq!(decoder.trailers(), b"");
}

#[test]
fn trailers_are_checked_as_fields_are() {
    for (trailers, reason) in [
        ("X: a\n\r\n", "bare-lf"),
        ("X: a\rb\r\n\r\n", "bare-cr"),
        ("X: \0\r\n\r\n", "control-byte"),
        ("X : a\r\n\r\n", "space-in-field-name"),
        (" X: a\r\n\r\n", "space-before-first-field"),
        ("X: a\r\n b\r\n\r\n", "folded-field"),
        (": a\r\n\r\n", "empty-field-name"),
        ("GET / HTTP/1.1\r\n\r\n", "space-in-field-name"),
        ("\n", "bare-lf"),
        ("\r\r\n", "bare-cr"),
    ] {
        assert_eq!(decode(format!("0\r\n{trailers}").as_bytes()), Err(reason), "{trailers:?}");
    }
    let many = |count: usize| decode(format!("0\r\n{}\r\n", "X: a\r\n".repeat(count)).as_bytes());
    assert_eq!(many(64), Ok((String::new(), "X: a\r\n".repeat(64), 0)));
    assert_eq!(many(65), Err("too-many-trailers"));
    let long = "a".repeat(9000);
    assert_eq!(decode(format!("0\r\nX: {long}\r\n\r\n").as_bytes()), Err("trailers-too-long"));
}

#[test]
fn a_chunk_line_states_its_length() {
    for length in [1, 9, 10, 15, 16, 255, 4096, 0xdead_beef, usize::MAX] {
        let mut out = Vec::new();
        write_chunk_header(length, &mut out);
        assert_eq!(out, format!("{length:x}\r\n").as_bytes());
    }
    let mut out = Vec::new();
    write_last_chunk(b"X: a\r\n", &mut out);
    assert_eq!(out, b"0\r\nX: a\r\n\r\n");
    assert_eq!(LAST_CHUNK, b"0\r\n\r\n");
}
