//! Messages as peers of HTTP/2 get them, of messages that came by HTTP/1.

use std::net::{IpAddr, Ipv4Addr};

use propylon_config::Forwarded;

use crate::h1::{
    Asked, ClientAddress, ForwardContext, Limits, Method, Parsed, RequestHead, ResponseHead, Scheme, parse_request,
    parse_response,
};
use crate::h2::testing::Written;
use crate::h2::{write_changed_response, write_informational, write_request};

const LIMITS: Limits = Limits { head_bytes: 4096, headers: 60 };
const DATE: &[u8] = b"Sun, 06 Nov 1994 08:49:37 GMT";

/// Fields of the request that a server gets, of one that came by HTTP/1.
fn request(text: &str, forwarded: Forwarded) -> String {
    let mut head = RequestHead::default();
    assert_eq!(parse_request(text.as_bytes(), &LIMITS, &mut head), Ok(Parsed::Complete));
    // A client of HTTP/2 may want this.
    head.fields.iter_mut().for_each(|field| field.secret = field.name.bytes(text.as_bytes()) == b"X-Secret");
    let context = ForwardContext {
        client: &ClientAddress::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7))),
        scheme: Scheme::Https,
        forwarded,
        host: None,
        body: head.body,
        expect_continue: true,
        keep_alive: false,
        via: true,
    };
    let mut out = Written::default();
    let more = |lines: &mut Vec<u8>| lines.extend_from_slice(b"X-Ours: 1\r\nX-More: 2\r\n");
    write_request((&head, text.as_bytes()), &context, (b"http", more), &mut Vec::new(), &mut out);
    out.text()
}

#[test]
fn a_request_for_a_server_of_http2_has_what_http2_has() {
    let text = "POST /a?b HTTP/1.1\r\nHost: shop.example:81\r\nX-A: 1\r\nX-Secret: s\r\nTransfer-Encoding: chunked\r\n\
        Connection: TE, X-Hop\r\nX-Hop: 1\r\nTE: trailers\r\nExpect: 100-continue\r\n\r\n";
    assert_eq!(
        request(text, Forwarded::Remove),
        ":method: POST\n:scheme: http\n:authority: shop.example:81\n:path: /a?b\nx-a: 1\nx-secret: s (secret)\n\
         expect: 100-continue\nte: trailers\nvia: 1.1 propylon\nx-ours: 1\nx-more: 2\n"
    );
    let text = "OPTIONS * HTTP/1.1\r\nHost: a\r\nMax-Forwards: 3\r\nContent-Length: 5\r\nX-Real-IP: 1\r\n\r\n";
    assert_eq!(
        request(text, Forwarded::Replace),
        ":method: OPTIONS\n:scheme: http\n:authority: a\n:path: *\ncontent-length: 5\nmax-forwards: 2\n\
         x-forwarded-for: 192.0.2.7\nx-forwarded-proto: https\nx-forwarded-host: a\nvia: 1.1 propylon\nx-ours: 1\nx-more: 2\n"
    );
    let text = "GET / HTTP/1.1\r\nHost: a\r\nForwarded: for=1\r\nX-Forwarded-For: 2\r\nX-Forwarded-For: 3\r\n\r\n";
    assert_eq!(
        request(text, Forwarded::Append),
        ":method: GET\n:scheme: http\n:authority: a\n:path: /\nx-forwarded-for: 2, 3, 192.0.2.7\n\
         forwarded: for=1, for=192.0.2.7;host=a;proto=https\nx-forwarded-proto: https\nx-forwarded-host: a\n\
         via: 1.1 propylon\nx-ours: 1\nx-more: 2\n"
    );
}

#[test]
fn an_upgrade_opens_a_tunnel() {
    let text = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\
        Sec-WebSocket-Version: 13\r\n\r\n";
    assert_eq!(
        request(text, Forwarded::Remove),
        ":method: CONNECT\n:scheme: http\n:authority: a\n:path: /chat\n:protocol: websocket\nsec-websocket-version: 13\n\
         via: 1.1 propylon\nx-ours: 1\nx-more: 2\n"
    );
    let text = "GET / HTTP/1.1\r\nHost: a\r\nSec-WebSocket-Key: x\r\n\r\n";
    assert!(request(text, Forwarded::Remove).contains("sec-websocket-key: x\n"), "nothing to do with a tunnel");
}

/// Fields of the response that a client gets, of one that came by HTTP/1.
fn response(text: &str, upgrade: Option<&[u8]>) -> String {
    let mut head = ResponseHead::default();
    let asked = Asked { method: Method::Get, upgrade };
    assert_eq!(parse_response(text.as_bytes(), asked, &LIMITS, &mut head), Ok(Parsed::Complete));
    let mut out = Written::default();
    match head.is_informational() {
        true => write_informational(&head, text.as_bytes(), &mut out),
        false => {
            let ours = b"Set-Cookie: ours\r\n";
            write_changed_response((&head, text.as_bytes()), DATE, (ours, true), &mut Vec::new(), &mut out);
        }
    }
    out.text()
}

#[test]
fn a_response_keeps_what_goes_on_and_loses_what_is_between_neighbours() {
    let text = "HTTP/1.1 200 Fine\r\nServer: x\r\nConnection: close, x-hop\r\nX-Hop: 1\r\nTransfer-Encoding: chunked\r\n\
        Set-Cookie: a\r\nSet-Cookie: b\r\nKeep-Alive: 5\r\n\r\n";
    assert_eq!(
        response(text, None),
        ":status: 200\nserver: x\nset-cookie: a\nset-cookie: b\ndate: Sun, 06 Nov 1994 08:49:37 GMT\n\
         via: 1.1 propylon\nset-cookie: ours\n"
    );
    let text = "HTTP/1.0 404 X\r\nDate: theirs\r\nContent-Length: 05\r\n\r\n";
    assert_eq!(
        response(text, None),
        ":status: 404\ndate: theirs\ncontent-length: 5\nvia: 1.0 propylon\nset-cookie: ours\n"
    );
    let text = "HTTP/1.1 103 X\r\nLink: </a>\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(response(text, None), ":status: 103\nlink: </a>\n");
    let text = "HTTP/1.1 101 X\r\nDate: theirs\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: y\r\n\r\n";
    assert_eq!(response(text, Some(b"websocket")), ":status: 200\ndate: theirs\nvia: 1.1 propylon\nset-cookie: ours\n");
}
