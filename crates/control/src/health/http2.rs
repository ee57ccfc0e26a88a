//! A probe's HTTP/2: one connection with one stream, by prior knowledge or by ALPN, and an answer to the same questions as by
//! HTTP/1.1.

use propylon_config::{Http2Flood, HttpProbe};
use propylon_http::h1::{Asked, Method, Name, Pseudo, ResponseHead};
use propylon_http::h2::hpack::Recurring;
use propylon_http::h2::settings::{OwnSettings, WINDOW_BYTES};
use propylon_http::h2::{
    Block, Connection, ConnectionFault, Ending, Event, FieldWriter, Reset, ResponseReader, Role, Terms, read_trailer,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::failure::Failure;
use super::http::BODY_BYTES_MAX;
use super::stream::ProbeStream;

const HEAD_BYTES_MAX: u32 = 16 * 1024;
const FIELDS_MAX: usize = 100;
/// Heads of 1xx before the answer.
const INFORMATIONAL_MAX: u32 = 8;
const READ_BYTES: usize = 4096;

/// A probe's request.
pub struct Request<'a> {
    pub method: &'a str,
    pub host: &'a str,
    pub path: &'a str,
    /// Over TLS.
    pub secure: bool,
    /// Fields besides `user-agent`.
    pub fields: &'a [(&'a str, &'a str)],
    pub body: Option<Vec<u8>>,
}

/// A server's answer, as far as it has come.
#[derive(Default)]
pub struct Answer {
    head: ResponseHead,
    /// Text of the head.
    text: Vec<u8>,
    pub body: Vec<u8>,
    /// Lines of the trailers.
    trailers: Vec<u8>,
    is_whole: bool,
}

impl Answer {
    /// 0 before the head has come.
    pub fn status(&self) -> u16 {
        self.head.status
    }

    /// A field of the head or, where it has none, of the trailers.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        let in_head = self.head.fields.value(&self.text, name);
        in_head.or_else(|| {
            let mut lines = self.trailers.split(|byte| *byte == b'\n');
            lines.find_map(|line| {
                let (key, value) = line.split_at(memchr::memchr(b':', line)?);
                key.eq_ignore_ascii_case(name.as_bytes()).then(|| value[1..].trim_ascii())
            })
        })
    }
}

/// A connection with one request.
struct Exchange {
    h2: Connection<Vec<u8>>,
    stream: u32,
    method: Method,
    informational: u32,
    answer: Answer,
}

/// Sends the request, and reads the answer until it is whole or `is_enough`. The connection ends with it.
pub async fn exchange(
    mut stream: ProbeStream,
    request: Request<'_>,
    is_enough: impl Fn(&Answer) -> bool,
) -> Result<Answer, Failure> {
    let mut exchange = Exchange::begin(request);
    let mut input = Vec::new();
    loop {
        exchange.write_body();
        stream.write_all(exchange.h2.output()).await?;
        stream.flush().await?;
        exchange.h2.clear_output();
        if exchange.answer.is_whole || exchange.answer.status() > 0 && is_enough(&exchange.answer) {
            return Ok(exchange.answer);
        }
        input.reserve(READ_BYTES);
        if stream.read_buf(&mut input).await? == 0 {
            return Err(Failure::new("closed", "before the end of the answer"));
        }
        exchange.take(&input)?;
        input.clear();
    }
}

impl Exchange {
    fn begin(request: Request<'_>) -> Exchange {
        let settings = OwnSettings {
            max_concurrent_streams: None,
            initial_window: WINDOW_BYTES,
            header_list_bytes_max: HEAD_BYTES_MAX,
            enable_connect: false,
        };
        let terms = Terms { settings, connection_window: WINDOW_BYTES, flood: Http2Flood::default() };
        let mut h2 = Connection::new(Role::Client, &terms);
        let body = request.body.unwrap_or_default();
        let (end, length) = (body.is_empty(), body.len());
        let stream = h2.open_stream((end, 0, body), &mut Recurring::default(), |out| {
            out.pseudo(Pseudo::Method, [request.method.as_bytes(), b""]);
            out.pseudo(Pseudo::Scheme, [if request.secure { b"https" } else { b"http" }, b""]);
            out.pseudo(Pseudo::Authority, [request.host.as_bytes(), b""]);
            out.pseudo(Pseudo::Path, [request.path.as_bytes(), b""]);
            out.field(b"user-agent", concat!("propylon-health/", env!("CARGO_PKG_VERSION")).as_bytes(), false);
            for (name, value) in request.fields {
                out.field(name.as_bytes(), value.as_bytes(), false);
            }
        });
        let stream = stream.unwrap_or_default();
        h2.offer(stream, length, if end { Ending::Open } else { Ending::Data });
        let method = Method::of(request.method.as_bytes());
        Exchange { h2, stream, method, informational: 0, answer: Answer::default() }
    }

    /// Writes what the server's windows have room for of the request's body.
    fn write_body(&mut self) {
        let write = |body: &mut Vec<u8>, count: usize, out: &mut Vec<u8>| out.extend(body.drain(..count));
        while self.h2.write_data(usize::MAX, write).is_some() {}
    }

    /// Takes in what has come.
    fn take(&mut self, input: &[u8]) -> Result<(), Failure> {
        let mut at = 0;
        while at < input.len() {
            let (used, event) = self.h2.receive(&input[at..], 0).map_err(ended)?;
            match event {
                Some(Event::Response(block)) => self.read_head(&block, &input[at..])?,
                Some(Event::Trailers(block)) => self.read_trailers(&block, &input[at..])?,
                Some(Event::Data { stream, bytes, end }) => {
                    self.answer.body.extend_from_slice(&input[at..][bytes.clone()]);
                    self.answer.is_whole |= end;
                    self.h2.release(stream, bytes.len());
                }
                Some(Event::Reset { .. } | Event::GoAway) => self.check_reset()?,
                Some(Event::Settings | Event::Pong | Event::Request(_)) | None => {}
            }
            at += used;
        }
        Ok(())
    }

    fn check_reset(&self) -> Result<(), Failure> {
        match self.h2.stream(self.stream).and_then(|stream| stream.reset()) {
            _ if self.answer.is_whole => Ok(()),
            None => Ok(()),
            Some(Reset::Unprocessed(reason)) => Err(Failure::new("closed", format!("GOAWAY: {reason}"))),
            Some(Reset::ByPeer(reason)) => Err(Failure::new("bad-response", format!("RST_STREAM: {reason}"))),
            Some(_) => Err(Failure::new("bad-response", "the answer breaks a rule of HTTP/2")),
        }
    }

    fn read_head(&mut self, block: &Block, input: &[u8]) -> Result<(), Failure> {
        let asked = Asked { method: self.method, upgrade: None };
        let (mut text, mut head, mut reader) = (Vec::new(), ResponseHead::default(), ResponseReader::default());
        let mut is_interim = false;
        let decoded = self.h2.decode(block, input, &mut text, FIELDS_MAX, &mut |text, field| {
            if field.kind == Name::Pseudo(Pseudo::Status) {
                is_interim = field.value.bytes(text).first() == Some(&b'1');
            }
            reader.field(text, field, asked, &mut head);
        });
        let decoded = decoded.map_err(ended)?;
        if let Some(fault) = decoded.flaw {
            return Err(Failure::new("bad-response", fault.label()));
        }
        if decoded.is_cut {
            return Err(Failure::new("bad-response", "the head is too long"));
        }
        self.h2.responds(block.stream, !is_interim, block.end);
        let whole = block.end.then_some(0);
        reader
            .finish(&mut text, asked, (whole, FIELDS_MAX), &mut head)
            .map_err(|reject| Failure::new("bad-response", reject.fault.label()))?;
        if is_interim {
            self.informational += 1;
            return match self.informational > INFORMATIONAL_MAX || block.end {
                true => Err(Failure::new("bad-response", "too many informational answers")),
                false => Ok(()),
            };
        }
        (self.answer.head, self.answer.text, self.answer.is_whole) = (head, text, block.end);
        Ok(())
    }

    fn read_trailers(&mut self, block: &Block, input: &[u8]) -> Result<(), Failure> {
        let (mut text, mut is_fine) = (Vec::new(), true);
        let lines = &mut self.answer.trailers;
        let decoded = self.h2.decode(block, input, &mut text, FIELDS_MAX, &mut |text, field| {
            is_fine &= read_trailer(text, field, lines);
        });
        let decoded = decoded.map_err(ended)?;
        if !is_fine || decoded.flaw.is_some() || decoded.is_cut {
            return Err(Failure::new("bad-response", "malformed trailers"));
        }
        self.h2.trails(block.stream).map_err(ended)?;
        self.answer.is_whole = true;
        Ok(())
    }
}

fn ended(fault: ConnectionFault) -> Failure {
    Failure::new("bad-response", format!("HTTP/2: {}", fault.reason()))
}

/// Sends the request and judges the answer.
pub async fn ask(stream: ProbeStream, probe: &HttpProbe, host: &str, secure: bool) -> Result<(), Failure> {
    let host = probe.host.as_deref().unwrap_or(host);
    let fields = &[("accept", "*/*")];
    let request = Request { method: probe.method, host, path: &probe.path, secure, fields, body: None };
    let is_expected = |answer: &Answer| probe.status.iter().any(|range| range.contains(&answer.status()));
    let has_text = |answer: &Answer| match &probe.body {
        Some(expected) => memchr::memmem::find(&answer.body, expected.as_bytes()).is_some(),
        None => true,
    };
    let answer = exchange(stream, request, |answer| {
        !is_expected(answer) || has_text(answer) || answer.body.len() >= BODY_BYTES_MAX
    });
    let answer = answer.await?;
    match (is_expected(&answer), has_text(&answer)) {
        (false, _) => Err(Failure::new("unexpected-status", answer.status().to_string())),
        (true, true) => Ok(()),
        (true, false) => {
            let detail = format!("status {}, {} bytes without the text", answer.status(), answer.body.len());
            Err(Failure::new("body-mismatch", detail))
        }
    }
}
