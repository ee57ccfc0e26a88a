//! The end of an HTTP/1.1 response: fed with bytes in any slices, the parser says when the response is complete.

use crate::body::{BadFraming, Body, Framing};
use memchr::memmem;

/// Longest response head taken.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Most header fields taken.
const HEADERS_MAX: usize = 100;

/// The reader of one connection; `begin` before each request.
#[derive(Default)]
pub struct Response {
    at: Place,
    /// Bytes of a head that came in more than one slice.
    partial: Vec<u8>,
    body: Body,
    status: u16,
    /// The server will close the connection after this response.
    closes: bool,
    to_head_request: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    #[default]
    NotAsked,
    Head,
    Body,
}

impl Response {
    /// A request goes out; what comes next answers it.
    pub fn begin(&mut self, to_head_request: bool) {
        self.at = Place::Head;
        self.partial.clear();
        self.body.begin_empty();
        self.status = 0;
        self.closes = false;
        self.to_head_request = to_head_request;
    }

    pub fn is_complete(&self) -> bool {
        self.at == Place::Body && self.body.is_complete()
    }

    pub fn status(&self) -> u16 {
        self.status
    }

    pub fn body_bytes(&self) -> u64 {
        self.body.bytes()
    }

    pub fn closes(&self) -> bool {
        self.closes
    }

    /// Takes all of `bytes`. Bytes after the end of the response, or without a request, are an error.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), BadFraming> {
        while !bytes.is_empty() {
            bytes = match self.at {
                Place::Head => self.take_head(bytes)?,
                Place::Body if !self.body.is_complete() => self.body.feed(bytes, |_| {})?,
                _ => return Err(BadFraming("bytes that nobody asked for")),
            };
        }
        Ok(())
    }

    /// The server closed. True if that is a fine end (a body without a length).
    pub fn end(&mut self) -> bool {
        self.body.end();
        self.is_complete()
    }

    fn take_head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], BadFraming> {
        if self.partial.is_empty() {
            // The common case: the whole head in one slice, nothing copied.
            if let Some(end) = memmem::find(bytes, b"\r\n\r\n") {
                self.read_head(&bytes[..end + 4])?;
                return Ok(&bytes[end + 4..]);
            }
        }
        let before = self.partial.len();
        if before + bytes.len().min(HEAD_BYTES_MAX) > 2 * HEAD_BYTES_MAX {
            return Err(BadFraming("the response head is too long"));
        }
        self.partial.extend_from_slice(bytes);
        let from = before.saturating_sub(3);
        let Some(found) = memmem::find(&self.partial[from..], b"\r\n\r\n") else {
            if self.partial.len() > HEAD_BYTES_MAX {
                return Err(BadFraming("the response head is too long"));
            }
            return Ok(&[]);
        };
        let end = from + found + 4;
        let head = std::mem::take(&mut self.partial);
        self.read_head(&head[..end])?;
        Ok(&bytes[end - before..])
    }

    fn read_head(&mut self, head: &[u8]) -> Result<(), BadFraming> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut parsed = httparse::Response::new(&mut headers);
        match parsed.parse(head) {
            Ok(httparse::Status::Complete(_)) => {}
            _ => return Err(BadFraming("not an HTTP/1 response head")),
        }
        self.status = parsed.code.unwrap_or(0);
        if (100..200).contains(&self.status) && self.status != 101 {
            // An interim response; the real one follows (RFC 9110 §15.2).
            return Ok(());
        }
        let mut framing = Framing { length: None, chunked: false, close: parsed.version == Some(0) };
        for header in parsed.headers.iter() {
            framing.see(header.name, header.value)?;
        }
        self.closes = framing.close;
        self.at = Place::Body;
        self.begin_body(&framing);
        Ok(())
    }

    /// RFC 9112 §6.3, from the client's side.
    fn begin_body(&mut self, framing: &Framing) {
        if self.to_head_request || matches!(self.status, 204 | 304) {
            return self.body.begin_empty();
        }
        match (framing.chunked, framing.length) {
            (true, _) => self.body.begin_chunked(),
            (false, Some(length)) => self.body.begin_length(length),
            (false, None) => self.body.begin_until_close(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `bytes` whole and byte by byte; both must agree.
    fn read(bytes: &[u8]) -> Result<(bool, u16, u64), BadFraming> {
        let mut whole = Response::default();
        whole.begin(false);
        let of_whole = whole.feed(bytes);
        let mut sliced = Response::default();
        sliced.begin(false);
        let of_sliced = bytes.iter().try_for_each(|byte| sliced.feed(&[*byte]));
        assert_eq!(of_whole, of_sliced);
        of_whole?;
        let seen = (whole.is_complete(), whole.status(), whole.body_bytes());
        assert_eq!(seen, (sliced.is_complete(), sliced.status(), sliced.body_bytes()));
        Ok(seen)
    }

    #[test]
    fn a_response_ends_where_its_framing_says() {
        assert_eq!(read(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"), Ok((true, 200, 3)));
        assert_eq!(read(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"), Ok((false, 200, 2)));
        assert_eq!(read(b"HTTP/1.1 204 No Content\r\n\r\n"), Ok((true, 204, 0)));
        assert_eq!(
            read(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: 1\r\n\r\n"),
            Ok((true, 200, 13))
        );
        assert_eq!(
            read(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"),
            Ok((true, 200, 1))
        );
    }

    #[test]
    fn bytes_that_break_the_framing_are_an_error() {
        assert!(read(b"SSH-2.0-OpenSSH\r\n\r\n").is_err());
        assert!(read(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcd").is_err());
        assert!(read(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n").is_err());
        assert!(read(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n").is_err());
        assert!(read(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n").is_err());
    }

    #[test]
    fn a_body_without_a_length_ends_with_the_connection() {
        let mut response = Response::default();
        response.begin(false);
        response.feed(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc").unwrap();
        assert!(!response.is_complete() && response.closes());
        assert!(response.end());
        assert_eq!(response.body_bytes(), 3);
    }
}
