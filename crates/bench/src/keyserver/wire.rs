//! The key server protocol on the wire: requests out, replies in, both as bytes.
//!
//! A frame is a header of 8 bytes (version 1.0, body length, ID; integers big-endian) and a body of items, each
//! `tag (1) | length (2) | data`. The decoder is stricter than the protocol asks of a client: what a reply may hold is
//! known exactly, and whatever is not that is reported.

use std::net::IpAddr;

pub const HEADER_BYTES: usize = 8;
pub const ITEM_HEADER_BYTES: usize = 3;
/// Frames are padded to this size, so that inside TLS they all look alike.
pub const PADDED_FRAME_BYTES: usize = 1024;
/// Largest body of a reply: room for an RSA-8192 signature, twice. Larger ones are taken for an attack on our memory.
pub const REPLY_BODY_BYTES_MAX: usize = 4096;
pub const SKI_BYTES: usize = 20;

pub mod tag {
    pub const SERVER_NAME: u8 = 0x02;
    pub const SKI: u8 = 0x04;
    pub const SERVER_IP: u8 = 0x05;
    pub const OPCODE: u8 = 0x11;
    pub const PAYLOAD: u8 = 0x12;
    pub const PADDING: u8 = 0x20;
}

/// Opcodes of replies.
pub mod status {
    pub const SUCCESS: u8 = 0xF0;
    pub const PONG: u8 = 0xF2;
    pub const ERROR: u8 = 0xFF;
}

/// One request, with the items that key servers of every age understand.
pub struct Request<'a> {
    pub id: u32,
    pub opcode: u8,
    pub payload: &'a [u8],
    pub ski: Option<[u8; SKI_BYTES]>,
    /// Address and name of the web site; servers only log them.
    pub server_ip: Option<IpAddr>,
    pub server_name: &'a str,
}

/// One reply, borrowed from the bytes that it came in.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    pub id: u32,
    pub answer: Answer<'a>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// Never empty.
    Success(&'a [u8]),
    Pong(&'a [u8]),
    Error(ErrorCode),
}

/// The byte of an error reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode(pub u8);

/// Bytes that are not a reply; the connection they came on has lost its place.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl Request<'_> {
    /// Appends the frame, items in the order of the stock client.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut frame = Frame::begin(out, self.id);
        frame.item(tag::OPCODE, &[self.opcode]);
        frame.item_unless_empty(tag::PAYLOAD, self.payload);
        if let Some(ski) = &self.ski {
            frame.item(tag::SKI, ski);
        }
        match self.server_ip.map(|address| address.to_canonical()) {
            Some(IpAddr::V4(address)) => frame.item(tag::SERVER_IP, &address.octets()),
            Some(IpAddr::V6(address)) => frame.item(tag::SERVER_IP, &address.octets()),
            None => {}
        }
        frame.item_unless_empty(tag::SERVER_NAME, self.server_name.as_bytes());
        frame.finish();
    }
}

/// A frame being written at the end of a buffer.
pub struct Frame<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Frame<'a> {
    pub fn begin(out: &'a mut Vec<u8>, id: u32) -> Self {
        let start = out.len();
        out.extend_from_slice(&[1, 0, 0, 0]);
        out.extend_from_slice(&id.to_be_bytes());
        Self { out, start }
    }

    pub fn item(&mut self, tag: u8, data: &[u8]) {
        let length = u16::try_from(data.len()).expect("items are made here, and small");
        self.out.push(tag);
        self.out.extend_from_slice(&length.to_be_bytes());
        self.out.extend_from_slice(data);
    }

    pub fn item_unless_empty(&mut self, tag: u8, data: &[u8]) {
        if !data.is_empty() {
            self.item(tag, data);
        }
    }

    /// Pads and fills in the length. From `PADDED_FRAME_BYTES` up there is no padding, and just below it an empty one.
    pub fn finish(mut self) {
        let bytes = self.out.len() - self.start;
        if bytes < PADDED_FRAME_BYTES {
            const ZEROS: [u8; PADDED_FRAME_BYTES] = [0; PADDED_FRAME_BYTES];
            self.item(tag::PADDING, &ZEROS[..PADDED_FRAME_BYTES.saturating_sub(bytes + ITEM_HEADER_BYTES)]);
        }
        let body = u16::try_from(self.out.len() - self.start - HEADER_BYTES).expect("items are made here, and small");
        self.out[self.start + 2..self.start + 4].copy_from_slice(&body.to_be_bytes());
    }
}

/// The first reply in `bytes` and how many bytes it took; `None` while it is incomplete.
pub fn decode(bytes: &[u8]) -> Result<Option<(Reply<'_>, usize)>, Malformed> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let [major, minor, length @ .., _, _, _, _] = *header;
    if (major, minor) != (1, 0) {
        return Err(Malformed("a version other than 1.0"));
    }
    let length = usize::from(u16::from_be_bytes(length));
    // Before waiting for it: an oversized reply is not to be gathered first and refused then.
    if length > REPLY_BODY_BYTES_MAX {
        return Err(Malformed("a reply larger than any answer"));
    }
    let Some(body) = rest.get(..length) else {
        return Ok(None);
    };
    let id = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
    let answer = decode_body(body)?;
    Ok(Some((Reply { id, answer }, HEADER_BYTES + length)))
}

fn decode_body(mut body: &[u8]) -> Result<Answer<'_>, Malformed> {
    let (mut opcode, mut payload, mut padding) = (None, None, None);
    while !body.is_empty() {
        let [tag, high, low, rest @ ..] = body else {
            return Err(Malformed("stray bytes after the last item"));
        };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let (data, after) = rest.split_at_checked(length).ok_or(Malformed("an item past the end of the body"))?;
        let place = match *tag {
            tag::OPCODE => &mut opcode,
            tag::PAYLOAD => &mut payload,
            tag::PADDING => &mut padding,
            _ => return Err(Malformed("an item that no reply has")),
        };
        if place.replace(data).is_some() {
            return Err(Malformed("an item given twice"));
        }
        body = after;
    }
    // Receivers ignore padding; but whatever is in it instead of zeros came from the key server's memory.
    if padding.unwrap_or_default().iter().any(|byte| *byte != 0) {
        return Err(Malformed("padding that is not zeros"));
    }
    let payload = payload.unwrap_or_default();
    match (opcode, payload) {
        (Some(&[status::SUCCESS]), []) => Err(Malformed("success without a result")),
        (Some(&[status::SUCCESS]), result) => Ok(Answer::Success(result)),
        (Some(&[status::PONG]), echo) => Ok(Answer::Pong(echo)),
        (Some(&[status::ERROR]), &[code]) => Ok(Answer::Error(ErrorCode(code))),
        (Some(&[status::ERROR]), _) => Err(Malformed("an error of other than one byte")),
        (Some(_), _) => Err(Malformed("an opcode that no reply has")),
        (None, _) => Err(Malformed("a reply without opcode")),
    }
}

impl ErrorCode {
    pub fn name(self) -> &'static str {
        match self.0 {
            0x00 => "error-none",
            0x01 => "cryptographic-failure",
            0x02 => "key-not-found",
            0x03 => "read-failure",
            0x04 => "version-mismatch",
            0x05 => "bad-opcode",
            0x06 => "unexpected-opcode",
            0x07 => "malformed-request",
            0x08 => "internal",
            0x09 => "certificate-not-found",
            0x0A => "expired",
            0x0B => "remote-configuration",
            _ => "unknown-error-code",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// Bytes seen between the stock bench tool and the stock server, less the zeros at the end of each frame.
    const REQUEST: &str = "010003f801020304 110001 15 120020
        e2df9470de8ddfddbcec8048318ddbac3394c5bed4a33974200443bc40da417c
        040014 e0a390c68021cb41aaf45af5530870c3cad93056 050004 7f000001 020009 6c6f63616c686f7374 2003a4";
    const REPLY: &str = "010003f801020304 110001 f0 120046
        3044022006ceacd400741aae59cfa83a61a72f97272f8d6737d5c8aa2a26a16be935f14102201cc88577b9a645e490b024
        a274217a7f9e4f382d84e13f500265162034 11e8b6 2003a8";
    const KEY_NOT_FOUND: &str = "010003f801020304 110001 ff 120001 02 2003ed";

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    fn captured(text: &str) -> Vec<u8> {
        let mut frame = hex(text);
        frame.resize(PADDED_FRAME_BYTES, 0);
        frame
    }

    fn frame(items: &[(u8, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut frame = Frame::begin(&mut bytes, 7);
        items.iter().for_each(|(tag, data)| frame.item(*tag, data));
        frame.finish();
        bytes
    }

    /// Items as given and nothing else.
    fn unpadded(body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![1, 0];
        bytes.extend_from_slice(&(body.len() as u16).to_be_bytes());
        bytes.extend_from_slice(&[0, 0, 0, 7]);
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn a_request_is_byte_for_byte_what_the_stock_tool_sends() {
        let request = Request {
            id: 0x0102_0304,
            opcode: 0x15,
            payload: &hex("e2df9470de8ddfddbcec8048318ddbac3394c5bed4a33974200443bc40da417c"),
            ski: Some(hex("e0a390c68021cb41aaf45af5530870c3cad93056").try_into().unwrap()),
            server_ip: Some(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into()),
            server_name: "localhost",
        };
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        assert_eq!(bytes, captured(REQUEST));
    }

    #[test]
    fn captured_replies_are_understood() {
        let bytes = captured(REPLY);
        let (reply, used) = decode(&bytes).unwrap().unwrap();
        assert_eq!((reply.id, used), (0x0102_0304, 1024));
        assert_eq!(reply.answer, Answer::Success(&bytes[15..85]));
        let point = hex("04 806f2daf2a6148540f0e3efc3f89c5a5040e6fe874e37d8abaa77d26cc6ada69
            3a5502104f12a12e64786b7b7ffa9d19f19cac252392e7efb65cfbfed14e93fc");
        let key = aws_lc_rs::signature::UnparsedPublicKey::new(&aws_lc_rs::signature::ECDSA_P256_SHA256_ASN1, point);
        key.verify(b"keyless lab worked example", &bytes[15..85]).unwrap();
        let bytes = captured(KEY_NOT_FOUND);
        let (reply, _) = decode(&bytes).unwrap().unwrap();
        assert_eq!(reply.answer, Answer::Error(ErrorCode(2)));
        assert_eq!(ErrorCode(2).name(), "key-not-found");
    }

    #[test]
    fn padding_follows_the_senders_rule_around_its_limit() {
        // The whole frame is the header, an opcode item of 4, and the payload's item.
        let sizes = [(1000, 1024), (1006, 1024), (1007, 1025), (1008, 1026), (1009, 1024), (1010, 1025)];
        for (payload, expected) in sizes {
            let bytes = frame(&[(tag::OPCODE, &[status::PONG]), (tag::PAYLOAD, &vec![b'x'; payload])]);
            assert_eq!(bytes.len(), expected, "payload of {payload}");
            assert!(
                matches!(decode(&bytes), Ok(Some((Reply { answer: Answer::Pong(echo), .. }, _))) if echo.len() == payload)
            );
        }
    }

    #[test]
    fn a_reply_is_exactly_a_reply() {
        let refused: [(&str, &str); 12] = [
            ("", "a reply without opcode"),
            ("120001 02", "a reply without opcode"),
            ("110001 f0", "success without a result"),
            ("110002 f0f0 120001 01", "an opcode that no reply has"),
            ("110001 15 120001 01", "an opcode that no reply has"),
            ("110001 ff", "an error of other than one byte"),
            ("110001 ff 120002 0102", "an error of other than one byte"),
            ("110001 f0 110001 f0 120001 01", "an item given twice"),
            ("110001 f0 120001 01 040001 01", "an item that no reply has"),
            ("110001 f0 120002 01", "an item past the end of the body"),
            ("110001 f0 120001 01 20", "stray bytes after the last item"),
            ("110001 f0 120001 01 200003 000100", "padding that is not zeros"),
        ];
        for (body, why) in refused {
            assert_eq!(decode(&unpadded(&hex(body))), Err(Malformed(why)), "{body}");
        }
        let bytes = unpadded(&hex("200001 00 120001 09 110001 f0"));
        assert_eq!(
            decode(&bytes).unwrap().unwrap().0.answer,
            Answer::Success(&[9]),
            "any order will do, and no padding"
        );
    }

    #[test]
    fn an_oversized_reply_is_refused_by_its_header() {
        assert_eq!(decode(&hex("0100 1001 00000000")), Err(Malformed("a reply larger than any answer")));
        assert_eq!(decode(&hex("0100 1000 00000000")), Ok(None));
        assert_eq!(decode(&hex("0200 0004 00000000")), Err(Malformed("a version other than 1.0")));
    }

    #[test]
    fn no_bytes_make_the_decoder_lose_its_place() {
        let seed = 20_261_120;
        let mut random = fastrand::Rng::with_seed(seed);
        let seeds = [captured(REPLY), captured(KEY_NOT_FOUND), unpadded(&hex("110001 f2 120002 0102"))];
        for round in 0..20_000 {
            let mut bytes = seeds[random.usize(..seeds.len())].clone();
            for _ in 0..random.usize(1..8) {
                let place = random.usize(..bytes.len().min(100));
                match random.u8(..4) {
                    0 => bytes[place] = random.u8(..),
                    1 => bytes[place] ^= 1 << random.u8(..8),
                    2 => bytes.truncate(place + 1),
                    _ => bytes.insert(place, random.u8(..)),
                }
            }
            let Ok(Some((reply, used))) = decode(&bytes) else { continue };
            let length = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
            assert_eq!(used, HEADER_BYTES + length, "seed {seed}, round {round}");
            assert!(used <= bytes.len() && length <= REPLY_BODY_BYTES_MAX, "seed {seed}, round {round}");
            // The bytes taken are a whole reply, and fewer are none.
            assert_eq!(decode(&bytes[..used]), Ok(Some((reply, used))), "seed {seed}, round {round}");
            assert_eq!(decode(&bytes[..used - 1]), Ok(None), "seed {seed}, round {round}");
        }
    }
}
