//! The chunked coding (RFC 9112 §7.1): taken apart strictly and piece by piece, and put together again.

use super::fields::{Lines, parse_field, write_line};
use super::grammar::{TOKEN, class};
use super::{Field, Name, Reject};
use crate::fault::Fault;

/// Takes a chunked body apart. Any division of the input gives the same data, the same trailers and the same verdict.
///
/// Chunk extensions are checked and dropped (a recipient must ignore those it does not know, and none is known).
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    state: State,
    /// Value of the chunk size being read, then bytes of its data still to come.
    remaining: u64,
    allowed: Allowed,
    /// Hexadecimal digits of the chunk size so far.
    digits: u8,
    /// Digits of the size that was read last.
    last_digits: u8,
    extension_bytes: usize,
    /// The trailer section as received, up to its blank line.
    section: Vec<u8>,
    lines: Lines,
    trailer_count: usize,
    /// Whether all trailers are dropped.
    drops_trailers: bool,
    trailers: Vec<u8>,
}

/// Bytes of data that may still come.
#[derive(Clone, Debug)]
struct Allowed(u64);

impl Default for Allowed {
    fn default() -> Allowed {
        Allowed(i64::MAX as u64)
    }
}

/// Content of the next input. `consumed` bytes of it are done with; the caller takes them off before it calls again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// All of it was framing, and more is needed.
    NeedMore { consumed: usize },
    /// `input[start..end]` is data of the body, never empty; `end` bytes are consumed.
    Data { start: usize, end: usize },
    /// The body is whole; what follows `consumed` belongs to the next message. See `Decoder::trailers`.
    End { consumed: usize },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Size,
    /// Whitespace after the size or after an extension: a `;` must come.
    BeforeSemicolon,
    /// After `;`, before the extension's name.
    BeforeName,
    Name,
    /// Whitespace after the name: `=` or `;` must come.
    AfterName,
    BeforeValue,
    Token,
    Quoted,
    Escaped,
    /// After the closing quote.
    AfterQuoted,
    LineFeed,
    Data,
    DataCr,
    DataLf,
    Trailers,
    Done,
}

/// 2^63 - 1 has sixteen digits, and leading zeros have no use.
const SIZE_DIGITS_MAX: u8 = 16;
/// In one body. Extensions are nearly unknown in practice, and cost the sender nothing.
const EXTENSION_BYTES_MAX: usize = 4096;
/// The trailer section of one body.
const TRAILER_BYTES_MAX: usize = 8192;
const TRAILERS_MAX: usize = 64;

impl Decoder {
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// Looks at the beginning of `input` up to the next piece of data.
    ///
    /// # Errors
    /// The body is malformed or breaks a limit: its end cannot be known, so the connection must not be used again.
    pub fn next(&mut self, input: &[u8]) -> Result<Event, Reject> {
        let mut at = 0;
        while at < input.len() || self.state == State::Done {
            match self.state {
                State::Data => {
                    let rest = input.len() - at;
                    let length = usize::try_from(self.remaining).map_or(rest, |n| n.min(rest));
                    self.remaining -= length as u64;
                    if self.remaining == 0 {
                        self.state = State::DataCr;
                    }
                    return Ok(Event::Data { start: at, end: at + length });
                }
                State::Trailers => at += self.take_trailers(&input[at..])?,
                State::Done => return Ok(Event::End { consumed: at }),
                _ => {
                    self.state = self.step(input[at])?;
                    at += 1;
                }
            }
        }
        Ok(Event::NeedMore { consumed: at })
    }

    /// Whether the end was reached.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Bytes that are still to come of the chunk's data which the input so far has begun; 0 elsewhere.
    pub fn left(&self) -> u64 {
        if self.state == State::Data { self.remaining } else { 0 }
    }

    /// Says that so many bytes of the chunk's data, which are to come, are taken by somebody else.
    ///
    /// # Panics
    /// If there are not so many, see [`Decoder::left`].
    pub fn skip(&mut self, count: u64) {
        assert!(count <= self.left(), "{count} of {} bytes", self.left());
        self.remaining -= count;
        if count > 0 && self.remaining == 0 {
            self.state = State::DataCr;
        }
    }

    /// Bytes of the framing between the last chunk's data and the next one's, if their sizes have as many digits.
    pub fn line_bytes(&self) -> u8 {
        self.last_digits + 4
    }

    /// Drops every trailer, where names that may not be forged are more than this module knows.
    pub fn without_trailers(self) -> Decoder {
        Decoder { drops_trailers: true, ..self }
    }

    /// Refuses bodies of more bytes of data than this, at the size of the chunk that goes beyond.
    pub fn limited_to(self, bytes: u64) -> Decoder {
        Decoder { allowed: Allowed(bytes.min(i64::MAX as u64)), ..self }
    }

    /// The trailer fields that go on, as lines ready to be written (see `write_last_chunk`); mostly empty.
    pub fn trailers(&self) -> &[u8] {
        &self.trailers
    }

    fn step(&mut self, byte: u8) -> Result<State, Reject> {
        match self.state {
            State::Size => return self.step_size(byte),
            State::LineFeed => return self.end_size_line(byte),
            State::DataCr if byte == b'\r' => return Ok(State::DataLf),
            State::DataLf if byte == b'\n' => return Ok(State::Size),
            State::DataCr | State::DataLf => return Err(Reject::of(Fault::BadChunkEnd)),
            _ => {}
        }
        self.extension_bytes += 1;
        if self.extension_bytes > EXTENSION_BYTES_MAX {
            return Err(Reject::of(Fault::ChunkExtensionsTooLong));
        }
        step_extension(self.state, byte).ok_or(Reject::of(Fault::BadChunkExtension))
    }

    fn step_size(&mut self, byte: u8) -> Result<State, Reject> {
        if let Some(digit) = (byte as char).to_digit(16) {
            self.digits += 1;
            self.remaining = self.remaining << 4 | u64::from(digit);
            if self.digits > SIZE_DIGITS_MAX || self.remaining > self.allowed.0 {
                let is_size = self.digits > SIZE_DIGITS_MAX || self.remaining > i64::MAX as u64;
                return Err(Reject::of(if is_size { Fault::ChunkSizeTooLarge } else { Fault::BodyTooLong }));
            }
            return Ok(State::Size);
        }
        match byte {
            _ if self.digits == 0 => Err(Reject::of(Fault::BadChunkSize)),
            b'\r' => Ok(State::LineFeed),
            b';' => Ok(State::BeforeName),
            b' ' | b'\t' => Ok(State::BeforeSemicolon),
            _ => Err(Reject::of(Fault::BadChunkSize)),
        }
    }

    fn end_size_line(&mut self, byte: u8) -> Result<State, Reject> {
        if byte != b'\n' {
            return Err(Reject::of(Fault::BareCr));
        }
        self.last_digits = std::mem::take(&mut self.digits);
        self.allowed.0 -= self.remaining;
        Ok(if self.remaining == 0 { State::Trailers } else { State::Data })
    }
}

/// Whether a chunked body that has begun so goes beyond this number of bytes of data. One that is malformed does not:
/// that is for whoever reads it.
pub fn is_chunked_longer(mut body: &[u8], limit: u64) -> bool {
    let mut decoder = Decoder::new().limited_to(limit);
    loop {
        match decoder.next(body) {
            Ok(Event::Data { end, .. }) => body = &body[end..],
            Ok(Event::NeedMore { .. } | Event::End { .. }) => return false,
            Err(reject) => return reject.fault == Fault::BodyTooLong,
        }
    }
}

/// `*( BWS ";" BWS token [ BWS "=" BWS ( token / quoted-string ) ] ) CRLF`
fn step_extension(state: State, byte: u8) -> Option<State> {
    let blank = matches!(byte, b' ' | b'\t');
    let token = class(byte) & TOKEN != 0;
    match (state, byte) {
        (State::BeforeSemicolon, b';') => Some(State::BeforeName),
        (State::BeforeSemicolon, _) if blank => Some(State::BeforeSemicolon),
        (State::BeforeName, _) if blank => Some(State::BeforeName),
        (State::BeforeName | State::Name, _) if token => Some(State::Name),
        (State::Name | State::AfterName, b'=') => Some(State::BeforeValue),
        (State::Name | State::AfterName, b';') => Some(State::BeforeName),
        (State::Name | State::AfterName, _) if blank => Some(State::AfterName),
        (State::BeforeValue, b'"') => Some(State::Quoted),
        (State::BeforeValue, _) if blank => Some(State::BeforeValue),
        (State::BeforeValue | State::Token, _) if token => Some(State::Token),
        (State::Token | State::AfterQuoted, b';') => Some(State::BeforeName),
        (State::Token | State::AfterQuoted, _) if blank => Some(State::BeforeSemicolon),
        (State::Name | State::Token | State::AfterQuoted, b'\r') => Some(State::LineFeed),
        (State::Quoted, b'"') => Some(State::AfterQuoted),
        (State::Quoted, b'\\') => Some(State::Escaped),
        (State::Quoted | State::Escaped, b'\t' | b' '..=b'~' | 0x80..) => Some(State::Quoted),
        _ => None,
    }
}

/// Trailers.
impl Decoder {
    /// Returns how many bytes it took.
    fn take_trailers(&mut self, input: &[u8]) -> Result<usize, Reject> {
        // The usual end, without a copy.
        if self.section.is_empty() && input.starts_with(b"\r\n") {
            self.state = State::Done;
            return Ok(2);
        }
        let before = self.section.len();
        let room = TRAILER_BYTES_MAX - before;
        self.section.extend_from_slice(&input[..input.len().min(room)]);
        while let Some(line) = self.lines.next(&self.section)? {
            if line.is_empty() {
                self.state = State::Done;
                return Ok(line.end as usize + 2 - before);
            }
            self.trailer_count += 1;
            if self.trailer_count > TRAILERS_MAX {
                return Err(Reject::of(Fault::TooManyTrailers));
            }
            let field = parse_field(&self.section, line, self.trailer_count == 1)?;
            let name = field.name.bytes(&self.section);
            if !self.drops_trailers && may_trail(&field, &self.section) {
                write_line(name, field.value.bytes(&self.section), &mut self.trailers);
            }
        }
        if self.section.len() == TRAILER_BYTES_MAX {
            return Err(Reject::of(Fault::TrailersTooLong));
        }
        Ok(input.len())
    }
}

/// Fields that frame, route, authenticate or steer must be known before the body (RFC 9110 §6.5.1); a recipient that
/// merged them into the head would be led by whoever wrote the body's end.
pub(crate) fn may_trail(field: &Field, text: &[u8]) -> bool {
    const REFUSED: [&str; 11] = [
        "age",
        "accept-encoding",
        "expires",
        "if-match",
        "if-none-match",
        "if-modified-since",
        "if-unmodified-since",
        "if-range",
        "pragma",
        "range",
        "retry-after",
    ];
    let name = field.name.bytes(text);
    field.kind == Name::Other
        && !REFUSED.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
        && !(field.odd && Name::is_lookalike(name))
}

/// The line before a chunk's data.
#[derive(Clone, Copy, Debug)]
pub struct ChunkHeader {
    bytes: [u8; 18],
    start: u8,
}

impl ChunkHeader {
    /// For a chunk of `length` bytes, which must not be zero: that would end the body.
    pub fn new(length: usize) -> ChunkHeader {
        assert_ne!(length, 0, "an empty chunk ends the body");
        let mut bytes = *b"................\r\n";
        let mut start = 16;
        let mut rest = length;
        while rest > 0 {
            start -= 1;
            bytes[start] = b"0123456789abcdef"[rest & 15];
            rest >>= 4;
        }
        ChunkHeader { bytes, start: start as u8 }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.start as usize..]
    }
}

/// The end of a body without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Writes the line before `length` bytes of data; `CRLF` must come after them.
pub fn write_chunk_header(length: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(ChunkHeader::new(length).as_bytes());
}

/// Writes the end of a body, with trailers as `Decoder::trailers` gives them.
pub fn write_last_chunk(trailers: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n");
    out.extend_from_slice(trailers);
    out.extend_from_slice(b"\r\n");
}

/// The length of a whole chunked body at the front of `bytes`, framing included; none if its end is not there yet
/// or it is malformed.
pub fn whole_chunked(bytes: &[u8]) -> Option<usize> {
    let mut decoder = Decoder::new();
    let mut at = 0;
    loop {
        match decoder.next(&bytes[at..]).ok()? {
            Event::NeedMore { .. } => return None,
            Event::Data { end, .. } => at += end,
            Event::End { consumed } => return Some(at + consumed),
        }
    }
}
