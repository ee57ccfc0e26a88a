//! Requests of the origin's clients.

use crate::body::{BadFraming, Framing};
use std::time::Duration;

/// Most header fields taken.
const HEADERS_MAX: usize = 100;
/// Largest body that `/bytes` and `/chunked` make.
const BODY_BYTES_MAX: u64 = 1 << 40;
/// Largest body that `/text` makes.
pub const TEXT_BYTES_MAX: usize = 256 * 1024;
/// `/slow` without a time.
const SLOW_DEFAULT: Duration = Duration::from_secs(1);
/// `/slow/MS` at most.
const SLOW_MAX_MILLISECONDS: u64 = 600_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedAnswer {
    /// The fixed body, or the length of the request's body if it is of a kind that has one.
    Fixed,
    Bytes(u64),
    Chunked(u64),
    /// Words, as a page has them.
    Text(usize),
    Slow(Duration),
    Status(u16),
    Echo,
}

/// A request's head, understood.
pub struct Request {
    pub requested: RequestedAnswer,
    pub framing: Framing,
    pub is_head: bool,
    /// POST, PUT, PATCH: answered with the length of the body.
    pub is_upload: bool,
    pub expects_continue: bool,
}

impl Request {
    /// `head` ends with its empty line.
    pub fn parse(head: &[u8]) -> Result<Self, BadFraming> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut parsed = httparse::Request::new(&mut headers);
        match parsed.parse(head) {
            Ok(httparse::Status::Complete(_)) => {}
            _ => return Err(BadFraming("not an HTTP/1 request head")),
        }
        let method = parsed.method.unwrap_or_default();
        let mut framing = Framing { length: None, chunked: false, close: false };
        let mut keeps_alive = parsed.version == Some(1);
        let mut expects_continue = false;
        for header in parsed.headers.iter() {
            framing.see(header.name, header.value)?;
            if header.name.eq_ignore_ascii_case("expect") {
                expects_continue = header.value.eq_ignore_ascii_case(b"100-continue");
            } else if parsed.version == Some(0) && header.name.eq_ignore_ascii_case("connection") {
                keeps_alive = header.value.eq_ignore_ascii_case(b"keep-alive");
            }
        }
        framing.close |= !keeps_alive;
        Ok(Self {
            requested: RequestedAnswer::of_path(parsed.path.unwrap_or("/")),
            framing,
            is_head: method == "HEAD",
            is_upload: matches!(method, "POST" | "PUT" | "PATCH"),
            expects_continue,
        })
    }

    pub fn has_body(&self) -> bool {
        self.framing.chunked || self.framing.length.is_some_and(|length| length > 0)
    }
}

impl RequestedAnswer {
    pub fn of_path(path: &str) -> Self {
        let path = path.split('?').next().unwrap_or(path);
        let mut parts = path.trim_start_matches('/').splitn(2, '/');
        let (first, argument) = (parts.next().unwrap_or_default(), parts.next());
        let number = argument.and_then(|argument| argument.parse::<u64>().ok());
        match (first, number) {
            ("bytes", Some(bytes)) => Self::Bytes(bytes.min(BODY_BYTES_MAX)),
            ("chunked", Some(bytes)) => Self::Chunked(bytes.min(BODY_BYTES_MAX)),
            ("text", Some(bytes)) => Self::Text(bytes.min(TEXT_BYTES_MAX as u64) as usize),
            ("slow", Some(milliseconds)) => Self::Slow(Duration::from_millis(milliseconds.min(SLOW_MAX_MILLISECONDS))),
            ("slow", None) => Self::Slow(SLOW_DEFAULT),
            ("status", Some(status @ 200..=999)) => Self::Status(status as u16),
            ("echo", _) => Self::Echo,
            _ => Self::Fixed,
        }
    }
}

pub fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        200 => "OK",
        201 => "Created",
        204 => "No Content",
        301 => "Moved Permanently",
        302 => "Found",
        304 => "Not Modified",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        413 => "Content Too Large",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Status",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_wishes() {
        assert_eq!(RequestedAnswer::of_path("/bytes/12?x=y"), RequestedAnswer::Bytes(12));
        assert_eq!(RequestedAnswer::of_path("/bytes/many"), RequestedAnswer::Fixed);
        assert_eq!(RequestedAnswer::of_path("/text/70"), RequestedAnswer::Text(70));
        assert_eq!(RequestedAnswer::of_path("/text/1000000"), RequestedAnswer::Text(TEXT_BYTES_MAX));
        assert_eq!(RequestedAnswer::of_path("/slow/20"), RequestedAnswer::Slow(Duration::from_millis(20)));
        assert_eq!(RequestedAnswer::of_path("/status/99"), RequestedAnswer::Fixed);
        assert_eq!(RequestedAnswer::of_path("/status/503"), RequestedAnswer::Status(503));
    }

    #[test]
    fn http_1_0_closes_unless_asked_to_stay() {
        assert!(Request::parse(b"GET / HTTP/1.0\r\n\r\n").unwrap().framing.close);
        assert!(!Request::parse(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").unwrap().framing.close);
    }
}
