//! Encoding of a message to its frame: items in the order of the stock sender, empty ones left out, padding at the end.

use std::fmt;
use std::net::IpAddr;

use super::{BODY_BYTES_MAX, HEADER_BYTES, ITEM_BYTES_MAX, ITEM_HEADER_BYTES, Message, PADDED_FRAME_BYTES, tag};

/// The items do not fit into one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl Message<'_> {
    /// Appends the frame. If it is too long, nothing is appended.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
        let start = out.len();
        let done = self.append(out, start);
        if done.is_err() {
            out.truncate(start);
        }
        done
    }

    fn append(&self, out: &mut Vec<u8>, start: usize) -> Result<(), TooLong> {
        out.reserve(PADDED_FRAME_BYTES);
        out.extend_from_slice(&[1, 0, 0, 0]);
        out.extend_from_slice(&self.id.to_be_bytes());
        if let Some(opcode) = self.opcode {
            item(out, tag::OPCODE, &[opcode])?;
        }
        unless_empty(out, tag::PAYLOAD, self.payload)?;
        unless_empty(out, tag::EXTRA, self.extra)?;
        if let Some(ski) = self.ski.filter(|ski| *ski != [0; 20]) {
            item(out, tag::SKI, &ski)?;
        }
        if let Some(digest) = &self.digest {
            item(out, tag::DIGEST, digest)?;
        }
        address(out, tag::CLIENT_IP, self.client_ip)?;
        address(out, tag::SERVER_IP, self.server_ip)?;
        unless_empty(out, tag::SERVER_NAME, self.server_name)?;
        unless_empty(out, tag::CERTIFICATE_ID, self.certificate_id)?;
        unless_empty(out, tag::FUNCTION, self.function)?;
        unless_empty(out, tag::SPAN, self.span)?;
        unless_empty(out, tag::CONTEXT, self.context)?;
        if self.region != 0 {
            item(out, tag::REGION, &[self.region])?;
        }
        finish(out, start)
    }
}

/// Padding, and the length now that it is known.
fn finish(out: &mut Vec<u8>, start: usize) -> Result<(), TooLong> {
    let used = out.len() - start;
    if used < PADDED_FRAME_BYTES {
        let zeros = PADDED_FRAME_BYTES.saturating_sub(used + ITEM_HEADER_BYTES) as u16;
        out.push(tag::PADDING);
        out.extend_from_slice(&zeros.to_be_bytes());
        out.resize(out.len() + usize::from(zeros), 0);
    }
    let body = out.len() - start - HEADER_BYTES;
    let length = u16::try_from(body).map_err(|_| TooLong)?;
    out[start + 2..start + 4].copy_from_slice(&length.to_be_bytes());
    Ok(())
}

fn item(out: &mut Vec<u8>, tag: u8, data: &[u8]) -> Result<(), TooLong> {
    let length = u16::try_from(data.len()).map_err(|_| TooLong)?;
    if data.len() > ITEM_BYTES_MAX {
        return Err(TooLong);
    }
    out.push(tag);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(data);
    Ok(())
}

fn unless_empty(out: &mut Vec<u8>, tag: u8, data: &[u8]) -> Result<(), TooLong> {
    if data.is_empty() { Ok(()) } else { item(out, tag, data) }
}

/// IPv4 addresses in the guise of IPv6 are sent as what they are.
fn address(out: &mut Vec<u8>, tag: u8, address: Option<IpAddr>) -> Result<(), TooLong> {
    match address.map(|address| address.to_canonical()) {
        Some(IpAddr::V4(address)) => item(out, tag, &address.octets()),
        Some(IpAddr::V6(address)) => item(out, tag, &address.octets()),
        None => Ok(()),
    }
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the message is longer than the {BODY_BYTES_MAX} bytes of a frame")
    }
}

impl std::error::Error for TooLong {}

#[cfg(test)]
mod tests {
    use super::super::{ErrorCode, opcode};
    use super::*;

    fn encoded(message: &Message<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        message.encode(&mut out).expect("it fits");
        out
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    /// Captured from gokeyless: the request, then its reply; zeros follow up to 1024 bytes.
    const REQUEST: &str = "010003f80102030411000115120020e2df9470de8ddfddbcec8048318ddbac3394c5bed4a33974200443bc40da\
        417c040014e0a390c68021cb41aaf45af5530870c3cad930560500047f0000010200096c6f63616c686f73742003a4";
    const REPLY: &str = "010003f801020304110001f01200463044022006ceacd400741aae59cfa83a61a72f97272f8d6737d5c8aa2a26a1\
        6be935f14102201cc88577b9a645e490b024a274217a7f9e4f382d84e13f500265162034\
        11e8b62003a8";

    #[test]
    fn a_request_and_its_reply_are_the_captured_bytes() {
        let digest = bytes("e2df9470de8ddfddbcec8048318ddbac3394c5bed4a33974200443bc40da417c");
        let request = Message {
            id: 0x0102_0304,
            opcode: Some(0x15),
            payload: &digest,
            ski: bytes("e0a390c68021cb41aaf45af5530870c3cad93056").try_into().ok(),
            server_ip: Some([127, 0, 0, 1].into()),
            server_name: b"localhost",
            ..Message::default()
        };
        let mut expected = bytes(REQUEST);
        expected.resize(1024, 0);
        assert_eq!(encoded(&request), expected);

        let mut expected = bytes(REPLY);
        let signature = expected[15..15 + 70].to_vec();
        let success =
            Message { payload: &signature, opcode: Some(opcode::SUCCESS), id: 0x0102_0304, ..Message::default() };
        expected.resize(1024, 0);
        assert_eq!(encoded(&success), expected);

        let error = Message {
            payload: &[ErrorCode::KeyNotFound as u8],
            opcode: Some(opcode::ERROR),
            id: 0x0102_0304,
            ..Message::default()
        };
        let mut expected = bytes("010003f801020304110001ff120001022003ed");
        expected.resize(1024, 0);
        assert_eq!(encoded(&error), expected);
    }

    #[test]
    fn frames_are_1024_bytes_until_padding_itself_makes_them_longer() {
        // Header, opcode and the payload's tag and length take 15 bytes.
        for (payload, frame) in [(0, 1024), (500, 1024), (1006, 1024), (1007, 1025), (1008, 1026), (1009, 1024)] {
            let payload = vec![1; payload];
            let pong = Message { payload: &payload, opcode: Some(opcode::PONG), ..Message::default() };
            assert_eq!(encoded(&pong).len(), frame, "{} bytes of payload", payload.len());
        }
        let payload = vec![1; 1010];
        assert_eq!(
            encoded(&Message { payload: &payload, opcode: Some(opcode::PONG), ..Message::default() }).len(),
            1025
        );
    }

    #[test]
    fn what_does_not_fit_leaves_nothing_behind() {
        let payload = vec![1; BODY_BYTES_MAX];
        let mut out = b"before".to_vec();
        for (len, fits) in [(BODY_BYTES_MAX - 7, true), (BODY_BYTES_MAX - 6, false), (BODY_BYTES_MAX, false)] {
            let message = Message { payload: &payload[..len], opcode: Some(opcode::PONG), ..Message::default() };
            assert_eq!(message.encode(&mut out).is_ok(), fits, "{len}");
            assert_eq!(out == b"before", !fits);
            out.truncate(6);
        }
    }

    #[test]
    fn mapped_addresses_are_sent_short_and_zeros_are_not_sent() {
        let plain = Message { client_ip: Some([10, 0, 0, 1].into()), ..Message::default() };
        let mapped =
            Message { client_ip: "::ffff:10.0.0.1".parse().ok(), ski: Some([0; 20]), region: 0, ..Message::default() };
        assert_eq!(encoded(&mapped), encoded(&plain));
    }
}
