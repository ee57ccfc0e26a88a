//! The end of an HTTP/1.1 message body: by length, by chunks, or with the connection. For requests and responses.

/// Longest chunk-size line or trailer field taken.
const CHUNK_LINE_BYTES_MAX: usize = 4096;

/// The fault of bytes that are no valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadFraming(pub &'static str);

/// Reads one body after another; `begin_*` before each.
#[derive(Default)]
pub struct Body {
    at: Place,
    /// A line between chunks that came in more than one slice.
    partial: Vec<u8>,
    bytes: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Complete,
    /// Bytes still to come.
    Length(u64),
    UntilClose,
    ChunkSize,
    ChunkData(u64),
    /// The line end after a chunk's data.
    ChunkEnd,
    Trailer,
}

/// Framing of a body by its head (RFC 9112 §6.3), and whether the connection goes on after it.
pub struct Framing {
    pub length: Option<u64>,
    pub chunked: bool,
    pub close: bool,
}

impl Body {
    pub fn begin_empty(&mut self) {
        self.begin(Place::Complete);
    }

    pub fn begin_length(&mut self, length: u64) {
        self.begin(if length == 0 { Place::Complete } else { Place::Length(length) });
    }

    pub fn begin_chunked(&mut self) {
        self.begin(Place::ChunkSize);
    }

    pub fn begin_until_close(&mut self) {
        self.begin(Place::UntilClose);
    }

    fn begin(&mut self, at: Place) {
        self.at = at;
        self.bytes = 0;
        self.partial.clear();
    }

    pub fn is_complete(&self) -> bool {
        self.at == Place::Complete
    }

    /// Bytes of the body itself so far, framing not counted.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The connection closed.
    pub fn end(&mut self) {
        if self.at == Place::UntilClose {
            self.at = Place::Complete;
        }
    }

    /// Takes what belongs to the body, hands its data to `sink`, and returns the rest.
    pub fn feed<'a>(&mut self, mut bytes: &'a [u8], mut sink: impl FnMut(&[u8])) -> Result<&'a [u8], BadFraming> {
        while !bytes.is_empty() && !self.is_complete() {
            let (left, more, then): (u64, fn(u64) -> Place, Place) = match self.at {
                Place::Length(left) => (left, Place::Length, Place::Complete),
                Place::ChunkData(left) => (left, Place::ChunkData, Place::ChunkEnd),
                Place::UntilClose => (u64::MAX, |_| Place::UntilClose, Place::Complete),
                _ => {
                    bytes = self.take_line(bytes)?;
                    continue;
                }
            };
            let taken = left.min(bytes.len() as u64);
            sink(&bytes[..taken as usize]);
            self.bytes += taken;
            self.at = if taken == left { then } else { more(left - taken) };
            bytes = &bytes[taken as usize..];
        }
        Ok(bytes)
    }

    fn take_line<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], BadFraming> {
        let end = memchr::memchr(b'\n', bytes);
        let taken = end.map_or(bytes.len(), |end| end + 1);
        if self.partial.len() + taken > CHUNK_LINE_BYTES_MAX {
            return Err(BadFraming("a chunk line is too long"));
        }
        self.partial.extend_from_slice(&bytes[..taken]);
        if end.is_some() {
            let line = std::mem::take(&mut self.partial);
            self.read_line(&line)?;
            self.partial = line;
            self.partial.clear();
        }
        Ok(&bytes[taken..])
    }

    fn read_line(&mut self, line: &[u8]) -> Result<(), BadFraming> {
        let Some(line) = line.strip_suffix(b"\r\n") else {
            return Err(BadFraming("a chunk line without CRLF"));
        };
        self.at = match self.at {
            Place::ChunkSize => match parse_chunk_size(line)? {
                0 => Place::Trailer,
                size => Place::ChunkData(size),
            },
            Place::ChunkEnd if line.is_empty() => Place::ChunkSize,
            Place::Trailer if line.is_empty() => Place::Complete,
            Place::Trailer => Place::Trailer,
            _ => return Err(BadFraming("a chunk longer than its size")),
        };
        Ok(())
    }
}

impl Framing {
    /// Takes in one header field.
    pub fn see(&mut self, name: &str, value: &[u8]) -> Result<(), BadFraming> {
        if name.eq_ignore_ascii_case("content-length") {
            let length = std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok());
            if length.is_none() || self.length.is_some_and(|before| Some(before) != length) {
                return Err(BadFraming("a bad Content-Length"));
            }
            self.length = length;
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            if !value.eq_ignore_ascii_case(b"chunked") {
                return Err(BadFraming("a Transfer-Encoding other than chunked"));
            }
            self.chunked = true;
        } else if name.eq_ignore_ascii_case("connection") {
            self.close |=
                value.split(|byte| *byte == b',').any(|token| token.trim_ascii().eq_ignore_ascii_case(b"close"));
        }
        Ok(())
    }
}

/// RFC 9112 §7.1: hexadecimal digits, then perhaps extensions.
fn parse_chunk_size(line: &[u8]) -> Result<u64, BadFraming> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii_end();
    if digits.is_empty() || digits.len() > 15 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(BadFraming("a bad chunk size"));
    }
    let text = std::str::from_utf8(digits).map_err(|_| BadFraming("a bad chunk size"))?;
    u64::from_str_radix(text, 16).map_err(|_| BadFraming("a bad chunk size"))
}
