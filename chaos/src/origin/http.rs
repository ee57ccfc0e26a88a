//! Requests as a server of a run reads them: heads whole, bodies in pieces.

use crate::wire::Wire;
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const HEAD_BYTES_MAX: usize = 64 * 1024;
const FIELDS_MAX: usize = 64;
const READ_BYTES: usize = 16 * 1024;

/// The answer that the path asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestedAnswer {
    pub bytes: u64,
    pub piece_ms: u64,
    pub is_chunked: bool,
}

#[derive(Debug)]
pub struct Head {
    pub path: String,
    pub wanted: RequestedAnswer,
    pub close: bool,
    body: Framing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(u64),
    Chunked,
}

impl Head {
    /// `/c/ID/...`, `/extra/ID/...`, `/ws/ID`
    pub fn id(&self) -> Option<u64> {
        id_of(&self.path)
    }

    fn parse(bytes: &[u8]) -> io::Result<(Self, bool)> {
        let bad = |_| io::Error::other("not a request");
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        request.parse(bytes).map_err(bad)?;
        let path = request.path.unwrap_or_default().to_owned();
        let mut head = Self { wanted: wanted(&path), path, close: false, body: Framing::Length(0) };
        let mut expects = false;
        for field in request.headers.iter() {
            let value = String::from_utf8_lossy(field.value);
            match field.name.to_ascii_lowercase().as_str() {
                "content-length" => {
                    head.body = Framing::Length(value.parse().map_err(|_| io::Error::other("not a length"))?);
                }
                "transfer-encoding" => head.body = Framing::Chunked,
                "connection" => head.close |= value.eq_ignore_ascii_case("close"),
                "expect" => expects = true,
                _ => {}
            }
        }
        Ok((head, expects))
    }
}

pub fn wanted(path: &str) -> RequestedAnswer {
    let mut words = path.split('/').skip(3);
    let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let (bytes, piece_ms) = (number(), number());
    RequestedAnswer { bytes, piece_ms, is_chunked: words.next() == Some("chunked") }
}

/// The number of a request, by its path.
pub fn id_of(path: &str) -> Option<u64> {
    path.split('/').nth(2)?.parse().ok()
}

/// A connection and what was read of it and not yet used.
pub struct RequestReader {
    pub wire: Wire,
    bytes: Vec<u8>,
    /// Bytes of the present chunk that are still to come; `None` between two.
    chunk_left: Option<u64>,
}

impl RequestReader {
    pub fn new(wire: Wire) -> Self {
        Self { wire, bytes: Vec::new(), chunk_left: None }
    }

    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.wire.write_all(bytes).await?;
        self.wire.flush().await
    }

    /// Bytes that were read beyond the head.
    pub fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// The next head; none if the client has left.
    pub async fn head(&mut self) -> io::Result<Option<Head>> {
        loop {
            if let Some(end) = find(&self.bytes, b"\r\n\r\n") {
                let (head, expects) = Head::parse(&self.bytes[..end + 4])?;
                self.bytes.drain(..end + 4);
                if expects {
                    self.send(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
                }
                return Ok(Some(head));
            }
            if self.bytes.len() > HEAD_BYTES_MAX {
                return Err(io::Error::other("a head without an end"));
            }
            if self.more().await? == 0 {
                return Ok(None);
            }
        }
    }

    /// The next piece of the body; none at its end. `offset`: what was taken before.
    pub async fn piece(&mut self, head: &Head, offset: u64) -> io::Result<Option<Vec<u8>>> {
        let left = match head.body {
            Framing::Length(length) => length - offset,
            Framing::Chunked => match self.chunk().await? {
                Some(left) => left,
                None => return Ok(None),
            },
        };
        if left == 0 {
            return Ok(None);
        }
        if self.bytes.is_empty() && self.more().await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let count = self.bytes.len().min(left as usize);
        self.chunk_left = self.chunk_left.map(|left| left - count as u64);
        Ok(Some(self.bytes.drain(..count).collect()))
    }

    /// Length of what is left of the present chunk, or of all of the next; `None` after the last.
    async fn chunk(&mut self) -> io::Result<Option<u64>> {
        match self.chunk_left {
            Some(left @ 1..) => return Ok(Some(left)),
            Some(0) => drop(self.line().await?),
            None => {}
        }
        let line = self.line().await?;
        let length = u64::from_str_radix(line.trim(), 16).map_err(|_| io::Error::other("not a chunk"))?;
        self.chunk_left = Some(length);
        if length > 0 {
            return Ok(Some(length));
        }
        self.chunk_left = None;
        // Trailers are nobody's here.
        while !self.line().await?.is_empty() {}
        Ok(None)
    }

    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = find(&self.bytes, b"\r\n") {
                let line = String::from_utf8_lossy(&self.bytes[..end]).into_owned();
                self.bytes.drain(..end + 2);
                return Ok(line);
            }
            if self.bytes.len() > HEAD_BYTES_MAX || self.more().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    async fn more(&mut self) -> io::Result<usize> {
        self.bytes.reserve(READ_BYTES);
        self.wire.read_buf(&mut self.bytes).await
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_says_who_asks_and_for_what() {
        let text =
            b"POST /c/17/4096/20/chunked HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n";
        let (head, expects) = Head::parse(text).unwrap();
        assert_eq!((head.id(), expects), (Some(17), true));
        assert_eq!(head.wanted, RequestedAnswer { bytes: 4096, piece_ms: 20, is_chunked: true });
        assert_eq!(head.body, Framing::Length(3));
        let (head, _) = Head::parse(b"GET /ws/5 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        assert_eq!((head.id(), head.close, head.wanted), (Some(5), true, RequestedAnswer::default()));
        assert_eq!(Head::parse(b"GET / HTTP/1.1\r\n\r\n").unwrap().0.id(), None);
    }
}
