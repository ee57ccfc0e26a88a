//! Responses as the client gets them, byte for byte.

use super::*;

const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

fn handed_on(asked: Asked<'_>, text: &str, client: Version, keep_alive: bool) -> String {
    let head = response_to(asked, text).unwrap();
    let context = AnswerContext { client, framing: head.framing_for(client), keep_alive, date: DATE.as_bytes() };
    let mut out = Vec::new();
    write_response(&head, text.as_bytes(), &context, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn a_response_goes_on_with_our_framing() {
    let text = "HTTP/1.1 200 Fine\r\nServer: x\r\ncontent-length: 05\r\nConnection: X-Hop, Set-Cookie\r\nX-Hop: 1\r\n\
        Set-Cookie: a\r\nKeep-Alive: 5\r\nUpgrade: h2,h2c\r\nProxy-Authenticate: x\r\nX_Own: 1\r\n\r\n";
    assert_eq!(
        handed_on(GET, text, Version::Http11, true),
        format!(
            "HTTP/1.1 200 Fine\r\nServer: x\r\nSet-Cookie: a\r\nX_Own: 1\r\nContent-Length: 5\r\nDate: {DATE}\r\n\
             Via: 1.1 propylon\r\n\r\n"
        )
    );
}

#[test]
fn a_body_without_a_length_is_chunked_or_ended_by_closing() {
    let text = "HTTP/1.0 200\r\nDate: then\r\n\r\n";
    assert_eq!(
        handed_on(GET, text, Version::Http11, true),
        "HTTP/1.1 200 \r\nDate: then\r\nTransfer-Encoding: chunked\r\nVia: 1.0 propylon\r\n\r\n"
    );
    assert_eq!(
        handed_on(GET, text, Version::Http10, true),
        "HTTP/1.1 200 \r\nDate: then\r\nConnection: close\r\nVia: 1.0 propylon\r\n\r\n"
    );
}

#[test]
fn the_client_is_told_what_its_version_does_not_take_for_granted() {
    let text = "HTTP/1.1 200 OK\r\nDate: then\r\nContent-Length: 0\r\n\r\n";
    let with = |connection: &str| {
        format!("HTTP/1.1 200 OK\r\nDate: then\r\nContent-Length: 0\r\n{connection}Via: 1.1 propylon\r\n\r\n")
    };
    assert_eq!(handed_on(GET, text, Version::Http11, true), with(""));
    assert_eq!(handed_on(GET, text, Version::Http11, false), with("Connection: close\r\n"));
    assert_eq!(handed_on(GET, text, Version::Http10, true), with("Connection: keep-alive\r\n"));
    assert_eq!(handed_on(GET, text, Version::Http10, false), with("Connection: close\r\n"));
}

#[test]
fn a_switch_of_protocols_goes_on() {
    let text = "HTTP/1.1 101 Switching Protocols\r\nDate: then\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Accept: x\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(
        handed_on(UPGRADE, text, Version::Http11, false),
        "HTTP/1.1 101 Switching Protocols\r\nDate: then\r\nSec-WebSocket-Accept: x\r\nConnection: upgrade\r\n\
         Upgrade: websocket\r\nVia: 1.1 propylon\r\n\r\n"
    );
    let text = "HTTP/1.1 426 No\r\nDate: then\r\nConnection: Upgrade\r\nUpgrade: a/2\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(
        handed_on(GET, text, Version::Http11, false),
        "HTTP/1.1 426 No\r\nDate: then\r\nContent-Length: 0\r\nConnection: upgrade, close\r\nUpgrade: a/2\r\n\
         Via: 1.1 propylon\r\n\r\n"
    );
}

#[test]
fn an_interim_response_goes_on_without_framing() {
    let text = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nContent-Length: 5\r\nConnection: close\r\n\r\n";
    let head = response_to(GET, text).unwrap();
    assert!(head.is_informational());
    let mut out = Vec::new();
    write_informational(&head, text.as_bytes(), &mut out);
    assert_eq!(out, b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
}

#[test]
fn our_own_answers_are_whole() {
    let answer = OwnResponse {
        status: 404,
        fields: &[("X-A", "b"), ("X-Bad", "a\r\nb: c")],
        lines: b"X-More: 1\r\n",
        content_type: "text/plain",
        body: b"none",
        client: Version::Http11,
        keep_alive: false,
        head_only: false,
        date: DATE.as_bytes(),
    };
    let written = |answer: &OwnResponse| {
        let mut out = Vec::new();
        write_own_response(answer, &mut out);
        String::from_utf8(out).unwrap()
    };
    let head = format!(
        "HTTP/1.1 404 Not Found\r\nX-A: b\r\nX-More: 1\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\
         Connection: close\r\nDate: {DATE}\r\n\r\n"
    );
    assert_eq!(written(&answer), format!("{head}none"));
    assert_eq!(written(&OwnResponse { head_only: true, ..answer }), head);
    let nothing =
        OwnResponse { status: 204, fields: &[], lines: b"", client: Version::Http10, keep_alive: true, ..answer };
    assert_eq!(written(&nothing), format!("HTTP/1.1 204 No Content\r\nConnection: keep-alive\r\nDate: {DATE}\r\n\r\n"));
}
