//! Dialogues: frames as a peer writes them, what the application hears of, and what we say.

mod floods;
mod flow;
mod frames;
mod pairs;
mod requests;
mod responses;
mod states;
mod writing;

use propylon_config::Http2Flood;

use super::connection::{Connection, ConnectionFault, Terms};
use super::frame::{self, FrameHeader, PREFACE, flag, kind};
use super::hpack::Recurring;
use super::receive::Event;
use super::role::Role;
use super::settings::OwnSettings;
use super::stream::Ending;
use super::{FieldWriter, Pseudo, Reason};

/// `:method: GET`, `:scheme: https`, `:path: /`, `:authority: a`, by the static table as far as it goes.
pub const GET: &[u8] = &[0x82, 0x87, 0x84, 0x01, 0x01, b'a'];
/// `:status: 200`, and `:status: 103` as a literal without indexing.
pub const OK: &[u8] = &[0x88];
pub const EARLY_HINTS: &[u8] = &[0x08, 0x03, b'1', b'0', b'3'];
/// `x: y` as a literal without indexing.
pub const FIELD: &[u8] = &[0x00, 0x01, b'x', 0x01, b'y'];

pub fn terms(role: Role) -> Terms {
    let max_concurrent_streams = (role == Role::Server).then_some(4);
    let settings = OwnSettings {
        max_concurrent_streams,
        initial_window: 65_535,
        header_list_bytes_max: 16 * 1024,
        enable_connect: role == Role::Server,
    };
    Terms { settings, connection_window: 65_535, flood: Http2Flood::default() }
}

/// One side under test, whose application keeps the bodies that it is sent.
pub struct Side {
    pub h2: Connection<Vec<u8>>,
    pub recurring: Recurring,
    pub now: u64,
    role: Role,
    /// Whether bodies are taken as they come.
    pub releases: bool,
}

impl Side {
    /// One that has heard its peer's SETTINGS, and whose own are acknowledged.
    pub fn new(role: Role) -> Side {
        let mut side = Side::unheard(role, &terms(role));
        let mut hello = if role == Role::Server { PREFACE.to_vec() } else { Vec::new() };
        frame::write(kind::SETTINGS, 0, 0, &[], &mut hello);
        frame::write(kind::SETTINGS, flag::ACK, 0, &[], &mut hello);
        assert_eq!(side.hears(&hello), ["settings"]);
        side.says();
        side
    }

    pub fn unheard(role: Role, terms: &Terms) -> Side {
        let h2 = Connection::new(role, terms);
        Side { h2, recurring: Recurring::default(), now: 0, role, releases: true }
    }

    /// Words for what the application hears of these bytes; the last word is the connection's fault, if there is one.
    pub fn hears(&mut self, bytes: &[u8]) -> Vec<String> {
        let (mut heard, mut at) = (Vec::new(), 0);
        loop {
            match self.h2.receive(&bytes[at..], self.now) {
                Err(fault) => {
                    heard.push(told(fault));
                    return heard;
                }
                Ok((used, event)) => {
                    let input = &bytes[at..];
                    at += used;
                    match event.map(|event| self.takes(event, input)) {
                        None => return heard,
                        Some(Ok(word)) => heard.push(word),
                        Some(Err(fault)) => {
                            heard.push(told(fault));
                            return heard;
                        }
                    }
                }
            }
        }
    }

    fn takes(&mut self, event: Event, input: &[u8]) -> Result<String, ConnectionFault> {
        let (block, word) = match event {
            Event::Data { stream, bytes, end } => {
                let count = bytes.len();
                if let Some(known) = self.h2.stream_mut(stream) {
                    known.data.extend_from_slice(&input[bytes]);
                }
                if self.releases {
                    self.h2.release(stream, count);
                }
                return Ok(format!("data {stream} {count}{}", if end { " end" } else { "" }));
            }
            Event::Reset { stream } => {
                let why = self.h2.stream(stream).and_then(|stream| stream.reset());
                return Ok(format!("reset {stream} {why:?}"));
            }
            Event::Settings => return Ok("settings".into()),
            Event::GoAway => return Ok(format!("goaway {:?}", self.h2.goaway())),
            Event::Pong => return Ok("pong".into()),
            Event::Request(block) => (block, "request"),
            Event::Response(block) => (block, "response"),
            Event::Trailers(block) => (block, "trailers"),
        };
        let mut text = Vec::new();
        self.h2.decode(&block, input, &mut text, 100, &mut |_: &[u8], _| {})?;
        let text = String::from_utf8_lossy(&text).replace("\r\n", " ");
        match word {
            "request" => self.h2.accept(&block, self.now, Vec::new()),
            "response" => self.h2.responds(block.stream, !text.starts_with(":status: 1"), block.end),
            _ => self.h2.trails(block.stream)?,
        }
        let end = if block.end { " end" } else { "" };
        Ok(format!("{word} {}{end} {}", block.stream, text.trim()))
    }

    /// Words for what we say, frame by frame.
    pub fn says(&mut self) -> Vec<String> {
        let out = self.h2.output().to_vec();
        self.h2.clear_output();
        let rest = out.strip_prefix(PREFACE).unwrap_or(&out);
        frames(rest).into_iter().map(|(header, payload)| spoken(&header, &payload)).collect()
    }

    /// Asks, as a client.
    pub fn asks(&mut self, end: bool) -> Option<u32> {
        assert_eq!(self.role, Role::Client);
        self.h2.open_stream((end, self.now, Vec::new()), &mut self.recurring, |fields| {
            fields.pseudo(Pseudo::Method, [b"GET", b""]);
            fields.pseudo(Pseudo::Path, [b"/", b""]);
        })
    }

    /// Answers, as a server.
    pub fn answers(&mut self, stream: u32, end: bool) -> bool {
        self.h2
            .send_head(stream, (true, end), &mut self.recurring, |fields| fields.pseudo(Pseudo::Status, [b"200", b""]))
    }

    /// Offers a body of so many bytes, and writes as many DATA frames of whatever stream as windows have room for.
    pub fn offers(&mut self, stream: u32, bytes: usize, ending: Ending) -> bool {
        self.h2.offer(stream, bytes, ending) && self.sends()
    }

    pub fn sends(&mut self) -> bool {
        while self.h2.write_data(64 * 1024, |_, count, out| out.resize(out.len() + count, b'.')).is_some() {}
        true
    }
}

fn told(fault: ConnectionFault) -> String {
    match fault {
        ConnectionFault::Flood(flood) => format!("flood {}", flood.as_str()),
        ConnectionFault::Error(reason) => format!("error {reason}"),
    }
}

pub fn frames(mut bytes: &[u8]) -> Vec<(FrameHeader, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk() {
        let header = FrameHeader::read(header);
        frames.push((header, rest[..header.length].to_vec()));
        bytes = &rest[header.length..];
    }
    assert!(bytes.is_empty(), "whole frames alone are said");
    frames
}

fn spoken(header: &FrameHeader, payload: &[u8]) -> String {
    let number = |at: usize| payload[at..].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
    let end = if header.has(flag::END_STREAM) { " end" } else { "" };
    let stream = header.stream;
    match header.kind {
        kind::DATA => format!("data {stream} {}{end}", header.length),
        kind::HEADERS => format!("headers {stream}{end}"),
        kind::CONTINUATION => format!("continuation {stream}"),
        kind::RST_STREAM => format!("reset {stream} {}", Reason(number(0))),
        kind::SETTINGS if header.has(flag::ACK) => "settings ack".into(),
        kind::SETTINGS => format!("settings {:x?}", payload.chunks(6).map(|setting| setting[1]).collect::<Vec<_>>()),
        kind::PING if header.has(flag::ACK) => "pong".into(),
        kind::PING => "ping".into(),
        kind::GOAWAY => format!("goaway {} {}", number(0), Reason(number(4))),
        kind::WINDOW_UPDATE => format!("window {stream} {}", number(0)),
        other => format!("frame {other}"),
    }
}

/// A frame as a peer writes it.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::write(kind, flags, stream, payload, &mut out);
    out
}

/// HEADERS that are a whole block.
pub fn headers(stream: u32, end: bool, block: &[u8]) -> Vec<u8> {
    frame(kind::HEADERS, flag::END_HEADERS | if end { flag::END_STREAM } else { 0 }, stream, block)
}

pub fn data(stream: u32, end: bool, bytes: usize) -> Vec<u8> {
    frame(kind::DATA, if end { flag::END_STREAM } else { 0 }, stream, &vec![b'-'; bytes])
}

pub fn reset(stream: u32, reason: Reason) -> Vec<u8> {
    frame(kind::RST_STREAM, 0, stream, &reason.0.to_be_bytes())
}

pub fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

pub fn setting(id: u8, value: u32) -> Vec<u8> {
    let mut payload = vec![0, id];
    payload.extend_from_slice(&value.to_be_bytes());
    frame(kind::SETTINGS, 0, 0, &payload)
}
