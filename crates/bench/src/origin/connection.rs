//! A client's connection to the origin: requests one after the other, answers without waiting.

use super::request::{Request, RequestedAnswer, TEXT_BYTES_MAX};
use super::settings::Settings;
use crate::body::{BadFraming, Body};
use crate::stream::Stream;
use memchr::memmem;
use std::io::{self, Read};
use std::sync::LazyLock;
use std::time::Instant;

/// Longest request head taken.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Largest body that is echoed; more is answered with 413.
pub const ECHO_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Answers to pipelined requests gathered before the first of them must be sent.
const OUTPUT_BYTES_MAX: usize = 256 * 1024;
/// Size of one chunk of `/chunked`.
const CHUNK_BYTES: u64 = 16 * 1024;
/// The bytes that `/bytes` sends.
pub static FILLER: [u8; 256 * 1024] = [b'x'; 256 * 1024];
/// The bytes that `/text` sends: the same at each start.
pub static TEXT: LazyLock<Vec<u8>> = LazyLock::new(make_text);

pub struct Connection {
    stream: Stream,
    /// Bytes read and not yet understood.
    input: Vec<u8>,
    /// Bytes to write, from `written` on.
    output: Vec<u8>,
    written: usize,
    /// The rest of a body that is made as it goes.
    streaming: Streaming,
    /// The request whose body is being read, and its body.
    reading: Option<Request>,
    body: Body,
    echo: Vec<u8>,
    /// The answer waits for this time.
    held_until: Option<Instant>,
    close_after: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Streaming {
    Nothing,
    Bytes(u64),
    Chunks(u64),
}

/// The event that the connection waits for.
pub enum Next {
    Event,
    Timer(Instant),
    /// The connection's turn was long; it goes on when others had theirs.
    Again,
    Close,
}

/// How understanding the input came to a halt.
#[derive(PartialEq)]
enum Halt {
    NeedsMore,
    /// An answer is on its way; the rest of the input waits for it.
    Answering,
}

impl Connection {
    pub fn new(stream: Stream) -> Self {
        Self {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            written: 0,
            streaming: Streaming::Nothing,
            reading: None,
            body: Body::default(),
            echo: Vec::new(),
            held_until: None,
            close_after: false,
        }
    }

    /// The time that an answer was held for has come.
    pub fn release(&mut self) {
        self.held_until = None;
    }

    /// Goes on as far as it can without waiting.
    pub fn drive(&mut self, settings: &Settings, scratch: &mut [u8], closing: bool) -> Next {
        self.try_drive(settings, scratch, closing).unwrap_or(Next::Close)
    }

    fn try_drive(&mut self, settings: &Settings, scratch: &mut [u8], closing: bool) -> io::Result<Next> {
        if self.held_until.is_some() {
            // A timer is set already; whatever came meanwhile waits in the socket.
            return Ok(Next::Event);
        }
        loop {
            if !self.flush()? {
                return Ok(Next::Event);
            }
            if self.close_after {
                return Ok(Next::Close);
            }
            if !self.input.is_empty() {
                let input = std::mem::take(&mut self.input);
                let halt = self.understand(settings, &input);
                if let Some(due) = self.held_until {
                    return Ok(Next::Timer(due));
                }
                if halt == Halt::Answering {
                    continue;
                }
            }
            let count = match self.stream.read(scratch) {
                Ok(0) => return Ok(Next::Close),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Next::Event),
                Err(error) => return Err(error),
            };
            let halt = if self.input.is_empty() {
                self.understand(settings, &scratch[..count])
            } else {
                self.input.extend_from_slice(&scratch[..count]);
                let input = std::mem::take(&mut self.input);
                self.understand(settings, &input)
            };
            if let Some(due) = self.held_until {
                return Ok(Next::Timer(due));
            }
            // A short read emptied the socket: answer, and save the look that would only say so.
            let drained = count < scratch.len() && !closing && self.stream.short_read_is_last();
            if drained && self.flush()? && !self.close_after && (halt == Halt::NeedsMore || self.input.is_empty()) {
                return Ok(Next::Event);
            }
        }
    }

    /// Takes requests from `bytes` until more are needed or an answer cannot be sent at once; keeps the rest.
    fn understand(&mut self, settings: &Settings, mut bytes: &[u8]) -> Halt {
        loop {
            let taken =
                if self.reading.is_some() { self.take_body(settings, bytes) } else { self.take_head(settings, bytes) };
            match taken {
                Ok(Some(rest)) => bytes = rest,
                Ok(None) => {
                    self.input.extend_from_slice(bytes);
                    return Halt::NeedsMore;
                }
                Err(BadFraming(_)) => {
                    self.reading = None;
                    self.close_after = true;
                    self.say(settings, 400, b"");
                    return Halt::Answering;
                }
            }
            let full = self.output.len() > OUTPUT_BYTES_MAX || self.streaming != Streaming::Nothing;
            if full || self.held_until.is_some() || self.close_after {
                self.input.extend_from_slice(bytes);
                return Halt::Answering;
            }
            if bytes.is_empty() {
                return Halt::NeedsMore;
            }
        }
    }

    /// Returns what follows the head, or nothing if the head is not whole yet.
    fn take_head<'a>(&mut self, settings: &Settings, bytes: &'a [u8]) -> Result<Option<&'a [u8]>, BadFraming> {
        let Some(end) = memmem::find(bytes, b"\r\n\r\n") else {
            return if bytes.len() > HEAD_BYTES_MAX { Err(BadFraming("the head is too long")) } else { Ok(None) };
        };
        let request = Request::parse(&bytes[..end + 4])?;
        let rest = &bytes[end + 4..];
        if !request.has_body() {
            self.body.begin_empty();
            self.answer(settings, &request);
            return Ok(Some(rest));
        }
        if request.framing.chunked {
            self.body.begin_chunked();
        } else {
            self.body.begin_length(request.framing.length.unwrap_or(0));
        }
        if request.expects_continue && rest.is_empty() {
            self.output.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        self.reading = Some(request);
        Ok(Some(rest))
    }

    fn take_body<'a>(&mut self, settings: &Settings, bytes: &'a [u8]) -> Result<Option<&'a [u8]>, BadFraming> {
        let Some(request) = &self.reading else {
            return Ok(None);
        };
        let echoed = request.requested == RequestedAnswer::Echo;
        let echo = &mut self.echo;
        let rest = self.body.feed(bytes, |data| {
            if echoed && echo.len() <= ECHO_BYTES_MAX {
                echo.extend_from_slice(data);
            }
        })?;
        if let Some(request) = self.reading.take_if(|_| self.body.is_complete()) {
            self.answer(settings, &request);
        }
        Ok(Some(rest))
    }

    fn answer(&mut self, settings: &Settings, request: &Request) {
        let number = settings.requests.get() + 1;
        settings.requests.set(number);
        self.close_after = request.framing.close;
        let mut delay = settings.delay;
        let body_from = self.output.len();
        if settings.fail_every.is_some_and(|every| number.is_multiple_of(every)) {
            self.say(settings, 500, b"failed on purpose\n");
        } else if request.is_upload && matches!(request.requested, RequestedAnswer::Fixed | RequestedAnswer::Slow(_)) {
            let length = format!("{}\n", self.body.bytes());
            self.say(settings, 200, length.as_bytes());
        } else {
            self.grant(settings, request.requested);
        }
        if let RequestedAnswer::Slow(more) = request.requested {
            delay += more;
        }
        if request.is_head {
            self.cut_body(body_from);
        }
        if !delay.is_zero() {
            self.held_until = Some(Instant::now() + delay);
        }
    }

    fn grant(&mut self, settings: &Settings, requested: RequestedAnswer) {
        match requested {
            RequestedAnswer::Fixed | RequestedAnswer::Slow(_) if !self.close_after => {
                self.output.extend_from_slice(&settings.fixed)
            }
            RequestedAnswer::Fixed | RequestedAnswer::Slow(_) => self.begin_bytes(settings, settings.body_bytes as u64),
            RequestedAnswer::Bytes(length) => self.begin_bytes(settings, length),
            RequestedAnswer::Chunked(length) => {
                settings.write_head(&mut self.output, 200, None, self.close_after);
                self.streaming = Streaming::Chunks(length);
            }
            RequestedAnswer::Text(length) => self.say(settings, 200, &TEXT[..length]),
            RequestedAnswer::Status(status) => self.say(settings, status, b""),
            RequestedAnswer::Echo if self.echo.len() > ECHO_BYTES_MAX => {
                self.echo = Vec::new();
                self.say(settings, 413, b"");
            }
            RequestedAnswer::Echo => {
                let echo = std::mem::take(&mut self.echo);
                self.say(settings, 200, &echo);
            }
        }
    }

    fn begin_bytes(&mut self, settings: &Settings, length: u64) {
        settings.write_head(&mut self.output, 200, Some(length), self.close_after);
        self.streaming = Streaming::Bytes(length);
    }

    fn say(&mut self, settings: &Settings, status: u16, body: &[u8]) {
        settings.write_head(&mut self.output, status, Some(body.len() as u64), self.close_after);
        self.output.extend_from_slice(body);
    }

    /// A HEAD request gets the head that GET would get, and nothing more (RFC 9110 §9.3.2).
    fn cut_body(&mut self, from: usize) {
        self.streaming = Streaming::Nothing;
        if let Some(end) = memmem::find(&self.output[from..], b"\r\n\r\n") {
            self.output.truncate(from + end + 4);
        }
    }

    /// Writes what there is to write; false if the socket has no room for all of it.
    fn flush(&mut self) -> io::Result<bool> {
        loop {
            if self.written == self.output.len() {
                self.written = 0;
                self.output.clear();
                match self.streaming {
                    Streaming::Nothing | Streaming::Bytes(0) => {
                        self.streaming = Streaming::Nothing;
                        return self.stream.flush_some();
                    }
                    Streaming::Chunks(left) => self.make_chunks(left),
                    Streaming::Bytes(left) => {
                        let piece = &FILLER[..left.min(FILLER.len() as u64) as usize];
                        let Some(count) = self.stream.write_some(piece)? else {
                            return Ok(false);
                        };
                        self.streaming = Streaming::Bytes(left - count as u64);
                    }
                }
            } else {
                let Some(count) = self.stream.write_some(&self.output[self.written..])? else {
                    return Ok(false);
                };
                self.written += count;
            }
        }
    }

    /// The next few chunks of `left` bytes, or the last of all.
    fn make_chunks(&mut self, mut left: u64) {
        const CHUNKS_AT_ONCE: usize = 4;
        for _ in 0..CHUNKS_AT_ONCE {
            let size = left.min(CHUNK_BYTES);
            self.output.extend_from_slice(format!("{size:x}\r\n").as_bytes());
            if size == 0 {
                self.output.extend_from_slice(b"\r\n");
                self.streaming = Streaming::Nothing;
                return;
            }
            self.output.extend_from_slice(&FILLER[..size as usize]);
            self.output.extend_from_slice(b"\r\n");
            left -= size;
        }
        self.streaming = Streaming::Chunks(left);
    }
}

/// Words of a made-up language between tags, common ones more often than rare ones, as Zipf's law has it.
fn make_text() -> Vec<u8> {
    const WORDS: usize = 4000;
    let mut random = fastrand::Rng::with_seed(1);
    let mut word = |_| -> String {
        let length = random.usize(2..10);
        std::iter::repeat_with(|| random.lowercase()).take(length).collect()
    };
    let words: Vec<String> = (0..WORDS).map(&mut word).collect();
    let mut text = Vec::with_capacity(TEXT_BYTES_MAX + 32);
    while text.len() < TEXT_BYTES_MAX {
        text.extend_from_slice(b"<p class=\"line\">");
        for _ in 0..random.usize(4..20) {
            let rank = (WORDS as f64).powf(random.f64()) as usize - 1;
            text.extend_from_slice(words[rank.min(WORDS - 1)].as_bytes());
            text.push(b' ');
        }
        text.extend_from_slice(b"</p>\n");
    }
    text
}
