//! Promises for any bytes from a peer: shared by fuzz targets and by seeded runs among the tests. Each function panics
//! when a promise is broken.

use propylon_config::Http2Flood;

use super::frame::{self, PREFACE, kind};
use super::hpack::Recurring;
use super::settings::OwnSettings;
use super::testing::add_field;
use super::*;
use crate::h1::{
    self, Asked, Limits, Method, RequestBody, RequestHead, ResponseHead, Version, check_name, check_value,
};

const LIMITS: Limits = Limits { head_bytes: 64 * 1024, headers: 50 };

/// Names and values in turn, between bytes of 0xff. Fields that the decoder does not let through are left out.
fn pairs(input: &[u8]) -> Vec<(&[u8], &[u8])> {
    let parts: Vec<&[u8]> = input.split(|byte| *byte == 0xff).collect();
    let pairs = parts.chunks_exact(2).map(|pair| (pair[0], pair[1]));
    let is_fine = |name: &[u8], value: &[u8]| {
        (Pseudo::of(name).is_some() || check_name(name).is_ok()) && check_value(value).is_none()
    };
    pairs.filter(|(name, value)| is_fine(name, value)).collect()
}

/// A request of such fields is refused, or reads as what was asked and as nothing more, for servers of HTTP/1 as well.
/// The first byte's lowest bit says whether it ends with its head.
pub fn request(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    let (fields, end) = (pairs(rest), first & 1 == 1);
    let (mut text, mut head, mut reader) = (Vec::new(), RequestHead::default(), RequestReader::default());
    for (name, value) in &fields {
        let field = add_field(name, value, false, &mut text);
        reader.field(&text, field, &mut head);
    }
    if reader.finish(&mut text, end, &LIMITS, || [7; 16], &mut head).is_err() {
        return;
    }
    let given = |wanted: &[u8]| fields.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
    let is_tunnel = given(b":protocol").is_some();
    // Crumbs that were joined are not counted twice.
    assert!(head.version == Version::Http2 && head.length <= text.len());
    assert_eq!(head.method_text.bytes(&text), if is_tunnel { b"GET" } else { given(b":method").expect("a method") });
    assert_eq!(head.target(&text).concat(), given(b":path").expect("a path"));
    let authority = given(b":authority").or(given(b"host")).expect("a host");
    assert!(head.host.bytes(&text).eq_ignore_ascii_case(authority));
    assert!(head.fields.value(&text, "host").is_some());
    assert_eq!(head.upgrade.is_some(), is_tunnel);
    match (given(b"content-length"), end) {
        _ if is_tunnel => assert_eq!(head.body, RequestBody::None),
        (Some(value), _) => {
            let length = std::str::from_utf8(value).expect("digits").parse().expect("a number");
            assert_eq!(head.body, RequestBody::Length(length));
            assert!(!end || length == 0);
        }
        (None, true) => assert!(matches!(head.body, RequestBody::None | RequestBody::Length(0))),
        (None, false) => assert_eq!(head.body, RequestBody::Chunked),
    }
    check_fields(&head, &text, &fields);
    h1::fuzz::rewritten(&head, &text);
}

/// Every field is there with its value, cookies joined, and none that was not sent.
fn check_fields(head: &RequestHead, text: &[u8], fields: &[(&[u8], &[u8])]) {
    let ours = [&b"host"[..], b"sec-websocket-key", b"cookie"];
    let is_kept = |name: &[u8]| {
        name.first().is_some_and(|first| *first != b':') && !ours.iter().any(|ours| name.eq_ignore_ascii_case(ours))
    };
    let sent: Vec<(&[u8], &[u8])> = fields.iter().copied().filter(|(name, _)| is_kept(name)).collect();
    let read = head.fields.iter().map(|field| (field.name.bytes(text), field.value.bytes(text)));
    let read: Vec<(&[u8], &[u8])> = read.filter(|(name, _)| is_kept(name)).collect();
    assert_eq!(read, sent);
    let crumbs: Vec<&[u8]> = fields.iter().filter(|(name, _)| *name == b"cookie").map(|(_, value)| *value).collect();
    let cookies = head.fields.iter().filter(|field| field.forward && field.name.bytes(text) == b"cookie");
    let cookies: Vec<&[u8]> = cookies.map(|field| field.value.bytes(text)).collect();
    match crumbs.is_empty() {
        true => assert!(cookies.is_empty()),
        false => assert_eq!(cookies, [crumbs.join(&b"; "[..]).trim_ascii()]),
    }
}

/// A response of such fields is refused, or reads as what was sent.
pub fn response(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    let (fields, end) = (pairs(rest), first & 1 == 1);
    let asked = match first >> 1 & 3 {
        0 => Asked { method: Method::Head, upgrade: None },
        1 => Asked { method: Method::Get, upgrade: Some(b"websocket") },
        _ => Asked { method: Method::Get, upgrade: None },
    };
    let (mut text, mut head, mut reader) = (Vec::new(), ResponseHead::default(), ResponseReader::default());
    for (name, value) in &fields {
        let field = add_field(name, value, false, &mut text);
        reader.field(&text, field, asked, &mut head);
    }
    if let Err(reject) = reader.finish(&mut text, asked, (end.then_some(0), LIMITS.headers), &mut head) {
        return assert_eq!(reject.status, 502);
    }
    let status = fields.iter().find(|(name, _)| *name == b":status").map(|(_, value)| *value);
    let status = std::str::from_utf8(status.expect("a status")).expect("digits").parse::<u16>().expect("a number");
    let is_open = asked.upgrade.is_some() && (200..300).contains(&status);
    assert_eq!(head.status, if is_open { 101 } else { status });
    assert_eq!(fields.iter().filter(|(name, _)| name[0] == b':').count(), 1);
    let read: Vec<_> = head.fields.iter().map(|field| (field.name.bytes(&text), field.value.bytes(&text))).collect();
    let is_read = |(name, value): &(&[u8], &[u8])| read.contains(&(*name, *value));
    assert!(fields[1..].iter().filter(|(name, _)| *name != b"content-length").all(is_read));
}

/// A connection bears any frames: it ends, or goes on within its bounds. The first byte says which side it is, and how
/// the bytes are cut.
pub fn connection(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    let role = if first & 1 == 1 { Role::Server } else { Role::Client };
    let settings = OwnSettings {
        max_concurrent_streams: (role == Role::Server).then_some(4),
        initial_window: 65_535,
        header_list_bytes_max: 4096,
        enable_connect: first & 2 == 2,
    };
    let terms = Terms { settings, connection_window: 65_535, flood: Http2Flood::default() };
    let mut side = Side { h2: Connection::new(role, &terms), recurring: Recurring::default(), received: 0 };
    let mut hello = if role == Role::Server { PREFACE.to_vec() } else { Vec::new() };
    frame::write(kind::SETTINGS, 0, 0, &[], &mut hello);
    assert!(side.take(&hello, 0).is_ok());
    if role == Role::Client {
        for end in [true, false, false] {
            side.ask(end);
        }
    }
    let step = if first & 4 == 4 { usize::from(first >> 3) + 1 } else { usize::MAX };
    for (turn, piece) in rest.chunks(step.min(rest.len().max(1))).enumerate() {
        if let Err(fault) = side.take(piece, turn as u64) {
            side.h2.fail(fault);
            break;
        }
        assert!(side.h2.open() <= 4, "{} streams", side.h2.open());
        assert!(side.h2.owned_bytes() < 128 * 1024 + 4 * rest.len(), "{} bytes", side.h2.owned_bytes());
    }
    assert!(side.received <= rest.len());
    side.h2.lose();
    assert!(side.h2.streams().all(|stream| stream.is_closed()));
    check_frames(role, &side.h2, first);
}

/// Asserts that what was written are whole frames.
fn check_frames(role: Role, h2: &Connection<usize>, first: &u8) {
    let mut out = h2.output();
    if role == Role::Client {
        out = out.strip_prefix(PREFACE).expect("a preface");
    }
    while let Some((head, rest)) = out.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        assert!(length <= 16_384 && rest.len() >= length, "{first}");
        out = &rest[length..];
    }
    assert!(out.is_empty());
}

/// A side whose application answers everything with a short body, and keeps of a stream how much of it is left.
struct Side {
    h2: Connection<usize>,
    recurring: Recurring,
    received: usize,
}

impl Side {
    fn ask(&mut self, end: bool) {
        let id = self.h2.open_stream((end, 0, 0), &mut self.recurring, |out| {
            out.pseudo(Pseudo::Method, [b"GET", b""]);
            out.pseudo(Pseudo::Scheme, [b"http", b""]);
            out.pseudo(Pseudo::Path, [b"/", b""]);
        });
        if let Some(id) = id.filter(|_| !end) {
            self.offer(id);
        }
    }

    fn offer(&mut self, id: u32) {
        if let Some(stream) = self.h2.stream_mut(id) {
            stream.data += 1000;
            self.h2.offer(id, 1000, Ending::Data);
        }
    }

    fn take(&mut self, input: &[u8], now: u64) -> Result<(), ConnectionFault> {
        let mut at = 0;
        while at < input.len() {
            let (used, event) = self.h2.receive(&input[at..], now)?;
            assert!(used > 0 || event.is_some());
            if let Some(event) = event {
                self.hear(event, &input[at..], now)?;
            }
            at += used;
        }
        let write = |left: &mut usize, count: usize, out: &mut Vec<u8>| {
            *left -= count;
            out.resize(out.len() + count, b'x');
        };
        while self.h2.write_data(4096, write).is_some() {}
        Ok(())
    }

    fn hear(&mut self, event: Event, input: &[u8], now: u64) -> Result<(), ConnectionFault> {
        match event {
            Event::Request(block) => {
                let decoded = self.h2.decode(&block, input, &mut Vec::new(), 50, &mut |_, _| {})?;
                if decoded.flaw.is_some() {
                    return self.h2.reject(&block);
                }
                self.h2.accept(&block, now, 0);
                let answer = |out: &mut hpack::BlockWriter<'_>| out.pseudo(Pseudo::Status, [b"200", b""]);
                self.h2.send_head(block.stream, (true, false), &mut self.recurring, answer);
                self.offer(block.stream);
                if block.stream % 4 == 3 {
                    self.h2.forget(block.stream);
                }
            }
            Event::Response(block) => {
                let decoded = self.h2.decode(&block, input, &mut Vec::new(), 50, &mut |_, _| {})?;
                if decoded.flaw.is_some() {
                    return self.h2.reject(&block);
                }
                self.h2.responds(block.stream, true, block.end);
            }
            Event::Trailers(block) => {
                let _ = self.h2.decode(&block, input, &mut Vec::new(), 50, &mut |_, _| {})?;
                self.h2.trails(block.stream)?;
            }
            Event::Data { stream, bytes, .. } => {
                self.received += bytes.len();
                assert!(bytes.end <= input.len());
                self.h2.release(stream, bytes.len());
            }
            Event::Reset { stream } => {
                assert!(self.h2.stream(stream).is_none_or(|stream| stream.is_closed()));
                self.h2.forget(stream);
            }
            Event::Settings | Event::GoAway | Event::Pong => {}
        }
        Ok(())
    }
}
