//! Clients of HTTP/1.1: on one connection or on new ones, with bodies either way.

use super::answer::{AnswerHead, BodyCheck, RequestEnd, ending_of};
use super::context::{CLIENT_TIMEOUT, Endpoint, LoadContext, PendingRequest};
use crate::content::{Content, Side};
use crate::model::{How, Kind, Outcome, Stage};
use crate::timeline::parse_server;
use crate::wire::Wire;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

const HEAD_BYTES_MAX: usize = 64 * 1024;
const FIELDS_MAX: usize = 64;
const READ_BYTES: usize = 32 * 1024;
/// A slow upload goes out in pieces of so many bytes, one in so long.
const UPLOAD_PIECE_BYTES: usize = 6_000;
const UPLOAD_PIECE_EVERY: Duration = Duration::from_millis(60);
/// Requests on a kept connection before another is made.
const KEPT_MAX: u32 = 200;

pub struct Connection {
    pub wire: Wire,
    reader: Vec<u8>,
    pub number: u32,
    pub served: u32,
    /// The last answer has said that it was the last.
    closes: bool,
}

/// A request, and what is wanted for it.
struct Ask {
    method: &'static str,
    path: String,
    body: Vec<u8>,
    is_slow: bool,
    wanted: u64,
}

/// The head of an answer, with what its framing says.
struct Framed {
    head: AnswerHead,
    framing: Framing,
    closes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

pub async fn run_client(context: &LoadContext, kind: Kind, index: usize) {
    // Every third client of most kinds does without TLS.
    let endpoint = match kind {
        Kind::Keyed => Endpoint::Keyed,
        _ if index % 3 == 2 => Endpoint::Plain,
        _ => Endpoint::Secure,
    };
    let mut kept: Option<Connection> = None;
    while !context.is_over() {
        let mut pending = context.pending(kind);
        let ask = ask_of(context, &pending);
        let going = async {
            match kept_or_new(context, endpoint, index, &mut kept).await {
                Ok(connection) => connection.carry(&mut pending, &ask).await,
                Err(stage) => RequestEnd::unopened(stage),
            }
        };
        let ending = timeout(CLIENT_TIMEOUT, going).await.unwrap_or_else(|_| RequestEnd::of(Outcome::Late));
        let is_done = matches!(ending.outcome, Outcome::Broken(..) | Outcome::Late | Outcome::Wrong(_));
        context.note(pending, ending);
        let is_over = |kept: &Connection| {
            is_done || kept.closes || kept.served >= KEPT_MAX || matches!(kind, Kind::Fresh | Kind::Keyed)
        };
        kept.take_if(|kept| is_over(kept));
        context.think().await;
    }
}

fn ask_of(context: &LoadContext, pending: &PendingRequest) -> Ask {
    let (id, kind) = (pending.id, pending.kind);
    let folder = if kind == Kind::Route { "extra" } else { "c" };
    let (method, up, down, pace) = match kind {
        Kind::Post => ("POST", context.draw(0..12_000), context.draw(0..4_000), 0),
        Kind::Upload => ("POST", context.draw(100_000..300_000), context.draw(0..4_000), 0),
        Kind::Download => ("GET", 0, context.draw(500_000..3_000_000), context.draw(10..60)),
        _ => ("GET", 0, context.draw(0..20_000), 0),
    };
    let framing = if context.draw(0..2) == 0 { "length" } else { "chunked" };
    Ask {
        method,
        path: format!("/{folder}/{id}/{down}/{pace}/{framing}"),
        body: Content::of(id, Side::Request).bytes(0, up as usize),
        is_slow: kind == Kind::Upload,
        wanted: down,
    }
}

/// The connection that was kept, or a new one.
async fn kept_or_new<'a>(
    context: &LoadContext,
    endpoint: Endpoint,
    index: usize,
    kept: &'a mut Option<Connection>,
) -> Result<&'a mut Connection, Stage> {
    match kept {
        Some(connection) => Ok(connection),
        None => {
            let (wire, number) = context.connect(endpoint, index).await?;
            Ok(kept.insert(Connection::new(wire, number)))
        }
    }
}

impl Connection {
    pub fn new(wire: Wire, number: u32) -> Self {
        Self { wire, reader: Vec::new(), number, served: 0, closes: false }
    }

    /// Carries one more request.
    async fn carry(&mut self, pending: &mut PendingRequest, ask: &Ask) -> RequestEnd {
        (pending.connection, pending.ordinal) = (self.number, self.served);
        self.served += 1;
        self.ask(pending.id, ask).await
    }

    async fn ask(&mut self, id: u64, ask: &Ask) -> RequestEnd {
        // Whatever becomes of the sending, there may be an answer.
        let sent = self.send(ask).await;
        let framed = match self.head().await {
            Ok(framed) => framed,
            Err(error) => return RequestEnd::of(Outcome::Broken(Stage::Unanswered, how(&error))),
        };
        self.closes = framed.closes || sent.is_err();
        let mut body = BodyCheck::new(id);
        match self.body(framed.framing, &mut body).await {
            Ok(()) => ending_of(id, &framed.head, &body, ask.wanted),
            Err(error) if framed.head.server.is_some() => RequestEnd {
                outcome: match body.wrong_at {
                    Some(at) => Outcome::Wrong(format!("byte {at} of the body is wrong, and then it breaks off")),
                    None => Outcome::Broken(Stage::Answering, how(&error)),
                },
                status: Some(framed.head.status),
                server: framed.head.server,
            },
            Err(error) => RequestEnd::of(Outcome::Wrong(format!("the engine's own answer breaks off: {error}"))),
        }
    }

    async fn send(&mut self, ask: &Ask) -> io::Result<()> {
        let Ask { method, path, body, .. } = ask;
        let name = crate::certificates::NAME;
        let mut out = format!("{method} {path} HTTP/1.1\r\nHost: {name}\r\n").into_bytes();
        if *method == "POST" {
            out.extend_from_slice(format!("Content-Length: {}\r\n", body.len()).as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        if !ask.is_slow {
            out.extend_from_slice(body);
            self.wire.write_all(&out).await?;
            return self.wire.flush().await;
        }
        self.wire.write_all(&out).await?;
        for piece in body.chunks(UPLOAD_PIECE_BYTES) {
            self.wire.write_all(piece).await?;
            self.wire.flush().await?;
            // An answer that comes meanwhile is the end of it.
            if let Ok(read) = timeout(UPLOAD_PIECE_EVERY, self.more()).await {
                read?;
                return Err(io::Error::other("answered early"));
            }
        }
        Ok(())
    }

    async fn head(&mut self) -> io::Result<Framed> {
        loop {
            if let Some(end) = memchr::memmem::find(&self.reader, b"\r\n\r\n") {
                let framed = parse_head(&self.reader[..end + 4])?;
                self.reader.drain(..end + 4);
                if framed.head.status == 100 {
                    continue;
                }
                return Ok(framed);
            }
            if self.reader.len() > HEAD_BYTES_MAX {
                return Err(io::Error::other("a head without an end"));
            }
            self.some().await?;
        }
    }

    /// The head of an answer that changes the protocol, for tunnels; what follows stays in `rest`.
    pub async fn upgraded(&mut self, id: u64, request: &str) -> Result<AnswerHead, RequestEnd> {
        let broken = |error: io::Error| RequestEnd::of(Outcome::Broken(Stage::Unanswered, how(&error)));
        let sent = match self.wire.write_all(request.as_bytes()).await {
            Ok(()) => self.wire.flush().await,
            Err(error) => Err(error),
        };
        let framed = self.head().await.map_err(|error| broken(sent.err().unwrap_or(error)))?;
        if framed.head.status == 101 {
            return Ok(framed.head);
        }
        let mut body = BodyCheck::new(id);
        let _ = self.body(framed.framing, &mut body).await;
        Err(ending_of(id, &framed.head, &body, 0))
    }

    pub fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.reader)
    }

    async fn body(&mut self, framing: Framing, check: &mut BodyCheck) -> io::Result<()> {
        match framing {
            Framing::Length(length) => self.take(length, check).await,
            Framing::UntilClose => loop {
                check.take(&self.reader);
                self.reader.clear();
                if self.more().await? == 0 {
                    return Ok(());
                }
            },
            Framing::Chunked => loop {
                let line = self.line().await?;
                let size = line.split(';').next().unwrap_or_default().trim();
                let length = u64::from_str_radix(size, 16).map_err(|_| io::Error::other("not a chunk"))?;
                if length == 0 {
                    while !self.line().await?.is_empty() {}
                    return Ok(());
                }
                self.take(length, check).await?;
                if !self.line().await?.is_empty() {
                    return Err(io::Error::other("a chunk that is longer than it says"));
                }
            },
        }
    }

    async fn take(&mut self, mut left: u64, check: &mut BodyCheck) -> io::Result<()> {
        while left > 0 {
            if self.reader.is_empty() {
                self.some().await?;
            }
            let count = self.reader.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            check.take(&self.reader[..count]);
            self.reader.drain(..count);
            left -= count as u64;
        }
        Ok(())
    }

    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = memchr::memmem::find(&self.reader, b"\r\n") {
                let line = String::from_utf8_lossy(&self.reader[..end]).into_owned();
                self.reader.drain(..end + 2);
                return Ok(line);
            }
            if self.reader.len() > HEAD_BYTES_MAX {
                return Err(io::Error::other("a line without an end"));
            }
            self.some().await?;
        }
    }

    async fn some(&mut self) -> io::Result<()> {
        match self.more().await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    async fn more(&mut self) -> io::Result<usize> {
        self.reader.reserve(READ_BYTES);
        self.wire.read_buf(&mut self.reader).await
    }
}

pub fn how(error: &io::Error) -> How {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => How::Closed,
        _ => How::Reset,
    }
}

fn parse_head(bytes: &[u8]) -> io::Result<Framed> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    response.parse(bytes).map_err(|error| io::Error::other(format!("not a response: {error}")))?;
    let head = AnswerHead { status: response.code.unwrap_or(0), ..AnswerHead::default() };
    let mut framed = Framed { head, framing: Framing::UntilClose, closes: false };
    for field in response.headers.iter() {
        let value = String::from_utf8_lossy(field.value);
        match field.name.to_ascii_lowercase().as_str() {
            "content-length" => {
                framed.framing = Framing::Length(value.parse().map_err(|_| io::Error::other("not a length"))?);
            }
            "transfer-encoding" => framed.framing = Framing::Chunked,
            "connection" => framed.closes |= value.eq_ignore_ascii_case("close"),
            "x-chaos-id" => framed.head.id = value.parse().ok(),
            "x-chaos-server" => framed.head.server = parse_server(&value),
            _ => {}
        }
    }
    framed.closes |= framed.framing == Framing::UntilClose;
    if framed.head.status == 204 {
        framed.framing = Framing::Length(0);
    }
    Ok(framed)
}
