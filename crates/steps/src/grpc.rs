//! Errors of the engine's own as clients of gRPC are told of them: HTTP's status is 200, and gRPC's stands in a field.

use propylon_http::fault::Fault;
use propylon_http::h1::{Method, RequestHead, Version, reason_phrase};

use crate::grpc_web::{self, Call};

/// Forms in which a client of gRPC is told how its call has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Teller {
    /// A head that is all there is of the response ("Trailers-Only" of gRPC over HTTP/2).
    Grpc,
    /// The last frame of a body, since pages see no trailers; in base64 if `is_text`.
    Web { is_text: bool },
}

impl Teller {
    /// The form for a request; `None` for one that is no call. `takes_web`: its route has `grpc_web`.
    pub fn of((head, text): (&RequestHead, &[u8]), takes_web: bool) -> Option<Teller> {
        if head.method != Method::Post {
            return None;
        }
        if takes_web && let Some(call) = Call::of(head, text) {
            return Some(Teller::Web { is_text: call.wants_text });
        }
        // Calls of gRPC itself need HTTP/2: elsewhere somebody has written them by hand.
        let kind = head.fields.value(text, "content-type").filter(|_| head.version == Version::Http2)?;
        grpc_web::is_type_of_grpc(kind).then_some(Teller::Grpc)
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Teller::Grpc => "application/grpc",
            Teller::Web { is_text: false } => "application/grpc-web",
            Teller::Web { is_text: true } => "application/grpc-web-text",
        }
    }

    /// Body that has a call's status, and the message; none where they are fields of the head.
    pub fn body(self, status: &str, message: &str) -> Vec<u8> {
        match self {
            Teller::Grpc => Vec::new(),
            Teller::Web { is_text } => {
                let lines = format!("grpc-status: {status}\r\ngrpc-message: {message}\r\n");
                grpc_web::ending(lines.as_bytes(), is_text)
            }
        }
    }
}

/// Status of gRPC for an error: what a client would make of HTTP's by itself (gRPC, "HTTP to gRPC Status Code Mapping"),
/// but for requests that have run out of time.
pub fn status(status: u16, fault: Option<Fault>) -> &'static str {
    const DEADLINE_EXCEEDED: &str = "4";
    // Clients that hear UNAVAILABLE ask again, and the server may be at work on this request still.
    if let Some(Fault::FirstByteTimeout | Fault::BodyTimeout | Fault::RequestTimeout) = fault {
        return DEADLINE_EXCEEDED;
    }
    match status {
        // INTERNAL, UNAUTHENTICATED, PERMISSION_DENIED, UNIMPLEMENTED, UNAVAILABLE; UNKNOWN for all others.
        400 => "13",
        401 => "16",
        403 => "7",
        404 => "12",
        429 | 502..=504 => "14",
        _ => "2",
    }
}

/// Text of an error: HTTP's status and what there is to be said beside it, escaped as gRPC has it ("Percent-Encoded").
pub fn message(status: u16, detail: &str) -> String {
    let between = if detail.is_empty() { "" } else { ": " };
    let mut message = String::new();
    for byte in format!("{status} {}{between}{detail}", reason_phrase(status)).bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => message.push(char::from(byte)),
            _ => message.push_str(&format!("%{byte:02X}")),
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use propylon_http::h1::{Limits, parse_request};

    use super::*;

    fn teller(version: Version, kind: &str, takes_web: bool) -> Option<Teller> {
        let text = format!("POST /a.B/C HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\n\r\n");
        let mut head = RequestHead::default();
        let limits = Limits { head_bytes: 4096, headers: 20 };
        parse_request(text.as_bytes(), &limits, &mut head).expect("a request");
        head.version = version;
        Teller::of((&head, text.as_bytes()), takes_web)
    }

    #[test]
    fn calls_of_grpc_are_known_over_http2_and_those_of_pages_where_their_route_takes_them() {
        let web = |is_text| Some(Teller::Web { is_text });
        assert_eq!(teller(Version::Http2, "Application/gRPC+proto", false), Some(Teller::Grpc));
        assert_eq!(teller(Version::Http11, "application/grpc", true), None);
        assert_eq!(teller(Version::Http2, "application/grpcs", true), None);
        assert_eq!(teller(Version::Http11, "application/grpc-web", true), web(false));
        assert_eq!(teller(Version::Http2, "application/grpc-web-text+proto", true), web(true));
        assert_eq!(teller(Version::Http2, "application/grpc-web", false), None);
        assert_eq!(teller(Version::Http2, "application/json", true), None);
    }

    #[test]
    fn statuses_are_those_that_clients_would_make_of_http_but_for_deadlines() {
        let all = [400, 401, 403, 404, 413, 429, 500, 502, 503, 504].map(|known| status(known, None));
        assert_eq!(all, ["13", "16", "7", "12", "2", "14", "2", "14", "14", "14"]);
        assert_eq!(status(504, Some(Fault::RequestTimeout)), "4");
        assert_eq!(status(504, Some(Fault::ConnectTimeout)), "14", "nothing was sent");
    }

    #[test]
    fn messages_are_escaped_and_stand_in_the_last_frame_of_a_body() {
        assert_eq!(message(503, "no-server"), "503 Service Unavailable: no-server");
        assert_eq!(message(421, "100% \u{e9}\r\n"), "421 Misdirected Request: 100%25 %C3%A9%0D%0A");
        assert_eq!(message(404, ""), "404 Not Found");
        let lines = "grpc-status: 14\r\ngrpc-message: a\r\n";
        let body = Teller::Web { is_text: false }.body("14", "a");
        assert_eq!(body, [&[0x80, 0, 0, 0, lines.len() as u8][..], lines.as_bytes()].concat());
        assert!(Teller::Web { is_text: true }.body("14", "a").starts_with(b"gAAAA"));
        assert_eq!(Teller::Grpc.body("14", "a"), b"");
    }
}
