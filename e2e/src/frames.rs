//! HTTP/2 frame by frame: a client that says exactly what a story tells it, whether that is allowed or not.
//!
//! Header blocks are literals without compression on the way out; of those that come only the status is read, which the
//! engine takes from the static table or spells out.

use std::sync::Arc;
use std::time::Duration;

use crate::certificates::Certificates;
use crate::client::Client;
use crate::engine::Engine;
use crate::origin::Peer;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;
pub const ACK: u8 = 1;

pub const NO_ERROR: u32 = 0;
pub const PROTOCOL_ERROR: u32 = 1;
pub const INTERNAL_ERROR: u32 = 2;
pub const FLOW_CONTROL_ERROR: u32 = 3;
pub const STREAM_CLOSED: u32 = 5;
pub const REFUSED_STREAM: u32 = 7;
pub const CANCEL: u32 = 8;
pub const ENHANCE_YOUR_CALM: u32 = 11;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    /// The error code of RST_STREAM or GOAWAY.
    #[track_caller]
    pub fn code(&self) -> u32 {
        let at = match self.kind {
            RST_STREAM => 0,
            GOAWAY => 4,
            other => panic!("frame type {other} has no error code"),
        };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().expect("four bytes"))
    }

    pub fn ends(&self) -> bool {
        self.flags & END_STREAM != 0
    }

    /// The status of a response's HEADERS, if it is one of the static table's (RFC 7541 Appendix A).
    pub fn status(&self) -> Option<u16> {
        match self.payload.first()? {
            0x88 => Some(200),
            0x89 => Some(204),
            0x8a => Some(206),
            0x8b => Some(304),
            0x8c => Some(400),
            0x8d => Some(404),
            0x8e => Some(500),
            _ => None,
        }
    }

    /// The same where it is spelled out, as one is that the connection has not seen before.
    pub fn spelled_status(&self) -> Option<u16> {
        // A literal whose name is the static table's 8th, from a peer whose table may have got a smaller size first.
        let field = self.payload.iter().position(|byte| byte & 0xe0 != 0x20)?;
        let [first, length, value @ ..] = &self.payload[field..] else { return None };
        if !matches!(first, 0x08 | 0x18 | 0x48) {
            return None;
        }
        let value = value.get(..usize::from(length & 0x7f))?;
        let text = if length & 0x80 == 0 { value.to_vec() } else { huffman_digits(value) };
        String::from_utf8(text).ok()?.parse().ok()
    }
}

/// Digits in the code of RFC 7541 Appendix B: 0 to 2 have five bits, the others six.
fn huffman_digits(bytes: &[u8]) -> Vec<u8> {
    let bits: Vec<u8> = bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)).collect();
    let (mut at, mut digits) = (0, Vec::new());
    let number = |from: usize, count: usize| {
        bits.get(from..from + count).map(|bits| bits.iter().fold(0_u8, |sum, bit| sum << 1 | bit))
    };
    loop {
        match (number(at, 5), number(at, 6)) {
            (Some(short @ 0..=2), _) => (digits.push(b'0' + short), at += 5).1,
            (_, Some(long @ 0x19..=0x1f)) => (digits.push(b'3' + long - 0x19), at += 6).1,
            _ => return digits,
        }
    }
}

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header block of literals (RFC 7541 §6.2.2).
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    fields.iter().flat_map(|(name, value)| literal(name.as_bytes(), value.as_bytes())).collect()
}

/// One such literal, of any bytes.
pub fn literal(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = vec![0];
    for text in [name, value] {
        write_length(text.len(), &mut out);
        out.extend_from_slice(text);
    }
    out
}

fn write_length(length: usize, out: &mut Vec<u8>) {
    if length < 127 {
        out.push(length as u8);
        return;
    }
    out.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        out.push(rest as u8 | 128);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// The pseudo-header fields of a request for `localhost`.
pub fn request<'a>(method: &'a str, path: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![(":method", method), (":scheme", "http"), (":authority", "localhost"), (":path", path)]
}

/// A connection by prior knowledge.
pub struct Http2 {
    pub client: Client,
}

impl Http2 {
    /// Preface and empty SETTINGS are said.
    #[track_caller]
    pub fn start(engine: &Engine) -> Http2 {
        Http2::start_with(engine, &[])
    }

    /// The same at a listener of any name.
    #[track_caller]
    pub fn start_at(engine: &Engine, listener: &str) -> Http2 {
        let mut client = engine.client(listener);
        client.send([PREFACE, &frame(SETTINGS, 0, 0, &[])].concat());
        Http2 { client }
    }

    /// The same with these settings.
    #[track_caller]
    pub fn start_with(engine: &Engine, settings: &[(u16, u32)]) -> Http2 {
        Http2::over(engine.client("plain"), settings)
    }

    /// The same over TLS, where ALPN has to agree on it.
    #[track_caller]
    pub fn start_tls(engine: &Engine) -> Http2 {
        let mut config = (*Certificates::shared().client()).clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Http2::over(Client::tls_with(engine.address("web"), Arc::new(config)), &[])
    }

    #[track_caller]
    fn over(mut client: Client, settings: &[(u16, u32)]) -> Http2 {
        let payload: Vec<u8> =
            settings.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect();
        client.send([PREFACE, &frame(SETTINGS, 0, 0, &payload)].concat());
        Http2 { client }
    }

    #[track_caller]
    pub fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.client.send(frame(kind, flags, stream, payload));
    }

    /// HEADERS in one frame.
    #[track_caller]
    pub fn headers(&mut self, stream: u32, flags: u8, fields: &[(&str, &str)]) {
        self.send(HEADERS, END_HEADERS | flags, stream, &block(fields));
    }

    #[track_caller]
    pub fn get(&mut self, stream: u32, path: &str) {
        self.headers(stream, END_STREAM, &request("GET", path));
    }

    /// The next frame, whatever it is.
    #[track_caller]
    pub fn next_frame(&mut self) -> Frame {
        let head = self.client.read_exact(9);
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes(head[5..9].try_into().expect("four bytes"));
        Frame { kind: head[3], flags: head[4], stream, payload: self.client.read_exact(length as usize) }
    }

    /// The next frame of a stream, or the connection's GOAWAY; SETTINGS are acknowledged on the way.
    #[track_caller]
    pub fn next_of(&mut self, stream: u32) -> Frame {
        loop {
            let frame = self.next_frame();
            if frame.kind == SETTINGS && frame.flags & ACK == 0 {
                self.send(SETTINGS, ACK, 0, &[]);
            }
            if frame.kind == GOAWAY || (frame.stream == stream && frame.kind != WINDOW_UPDATE) {
                return frame;
            }
        }
    }

    /// A whole response: its head and its data.
    #[track_caller]
    pub fn response(&mut self, stream: u32) -> (Frame, Vec<u8>) {
        let head = self.next_of(stream);
        assert_eq!(head.kind, HEADERS, "{head:?}");
        let (mut ended, mut data) = (head.ends(), Vec::new());
        while !ended {
            let frame = self.next_of(stream);
            assert!(matches!(frame.kind, DATA | HEADERS), "{frame:?}");
            ended = frame.ends();
            if frame.kind == DATA {
                data.extend(frame.payload);
            }
        }
        (head, data)
    }

    /// Reads up to GOAWAY.
    #[track_caller]
    pub fn goaway(&mut self) -> Frame {
        self.client.read_timeout(Duration::from_secs(10));
        loop {
            let frame = self.next_frame();
            if frame.kind == GOAWAY {
                return frame;
            }
        }
    }
}

/// An origin's end of a connection by prior knowledge.
pub struct Http2Server<'a> {
    peer: &'a mut Peer,
    /// SETTINGS_INITIAL_WINDOW_SIZE, as the engine has said last.
    pub initial_window: i64,
}

impl<'a> Http2Server<'a> {
    /// Hears the preface and says these settings; none when the engine has closed.
    pub fn start(peer: &'a mut Peer, settings: &[(u16, u32)]) -> Option<Http2Server<'a>> {
        peer.read_exact(PREFACE.len())?;
        let payload: Vec<u8> =
            settings.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect();
        peer.send(frame(SETTINGS, 0, 0, &payload));
        Some(Http2Server { peer, initial_window: 65_535 })
    }

    /// The next frame; SETTINGS are acknowledged. None when the engine has closed.
    pub fn next_frame(&mut self) -> Option<Frame> {
        loop {
            let head = self.peer.read_exact(9)?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let stream = u32::from_be_bytes(head[5..9].try_into().expect("four bytes"));
            let frame =
                Frame { kind: head[3], flags: head[4], stream, payload: self.peer.read_exact(length as usize)? };
            match frame.kind {
                SETTINGS if frame.flags & ACK == 0 => {
                    self.apply_settings(&frame.payload);
                    self.send(SETTINGS, ACK, 0, &[]);
                }
                SETTINGS => {}
                _ => return Some(frame),
            }
        }
    }

    fn apply_settings(&mut self, settings: &[u8]) {
        for setting in settings.chunks_exact(6) {
            let (id, value) = setting.split_at(2);
            if id == [0, 4] {
                self.initial_window = u32::from_be_bytes(value.try_into().expect("four bytes")).into();
            }
        }
    }

    pub fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.peer.send(frame(kind, flags, stream, payload));
    }

    /// Bytes as they are: many frames at once.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.peer.send(bytes);
    }

    /// A whole response.
    pub fn answer(&mut self, stream: u32, body: &[u8]) {
        self.send(HEADERS, END_HEADERS, stream, &[0x88]);
        self.send(DATA, END_STREAM, stream, body);
    }
}

impl Frame {
    /// Whether it begins a POST: the engine's first field is the method, by the static table.
    pub fn is_post(&self) -> bool {
        self.kind == HEADERS && self.payload.first() == Some(&0x83)
    }
}
