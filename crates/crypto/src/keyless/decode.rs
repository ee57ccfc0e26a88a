//! Decoding of bytes to messages, however they were split or put together on their way.

use std::fmt;
use std::net::IpAddr;

use super::{BODY_BYTES_MAX, HEADER_BYTES, ITEM_HEADER_BYTES, Message, tag};

/// Gathers bytes until there is a frame. Whoever feeds it takes the messages out before feeding more, so that it never
/// holds more than what is fed at once and one frame.
#[derive(Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Start of the bytes that are not decoded yet.
    start: usize,
}

/// The bytes are no frame: the connection has lost its place, and is of no further use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl Decoder {
    /// A frame that is not yet whole, at most.
    pub const FRAME_BYTES_MAX: usize = HEADER_BYTES + BODY_BYTES_MAX;

    #[must_use]
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// Takes what came next.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next message that is whole, or none until more bytes have come.
    pub fn next_message(&mut self) -> Result<Option<Message<'_>>, Malformed> {
        let Some((frame, rest)) = frame(&self.buffer[self.start..]) else { return Ok(None) };
        self.start = self.buffer.len() - rest;
        message(frame).map(Some)
    }

    /// Whether [`Decoder::next_message`] has a message or an error without more bytes.
    #[must_use]
    pub fn has_message(&self) -> bool {
        frame(&self.buffer[self.start..]).is_some()
    }

    /// Bytes that wait to be decoded.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// Gives memory back if nothing waits.
    pub fn release(&mut self) {
        if self.buffered() == 0 {
            *self = Decoder::default();
        }
    }
}

/// Number of these bytes that the first frames have which fit whole into `max`, or one frame if none does.
#[must_use]
pub fn whole_frames(bytes: &[u8], max: usize) -> usize {
    let mut end = 0;
    while let Some((frame, _)) = frame(&bytes[end..]) {
        if end > 0 && end + frame.len() > max {
            break;
        }
        end += frame.len();
    }
    end
}

/// A whole frame, and how many bytes follow it.
fn frame(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let length = bytes.get(2..4)?;
    let end = HEADER_BYTES + usize::from(u16::from_be_bytes([length[0], length[1]]));
    Some((bytes.get(..end)?, bytes.len() - end))
}

/// The version is not looked at: nothing ever depended on it, and what is said in one version is said in all.
fn message(frame: &[u8]) -> Result<Message<'_>, Malformed> {
    let (header, mut body) = frame.split_at(HEADER_BYTES);
    let mut message =
        Message { id: u32::from_be_bytes([header[4], header[5], header[6], header[7]]), ..Message::default() };
    let mut seen = 0_u64;
    // One or two bytes at the end are no item, and nobody's mistake.
    while let Some((&[tag, high, low], rest)) = body.split_first_chunk::<ITEM_HEADER_BYTES>() {
        let length = usize::from(u16::from_be_bytes([high, low]));
        let (data, rest) = rest.split_at_checked(length).ok_or(Malformed("an item runs past the end of its frame"))?;
        if is_known(tag) {
            let bit = 1 << tag;
            if seen & bit != 0 {
                return Err(Malformed("an item occurs twice"));
            }
            seen |= bit;
            take(&mut message, tag, data)?;
        }
        body = rest;
    }
    Ok(message)
}

/// Items that may occur once; all others may come as they like.
fn is_known(tag: u8) -> bool {
    matches!(tag, tag::DIGEST..=tag::CERTIFICATE_ID | tag::OPCODE..=tag::REGION | tag::PADDING)
}

fn take<'a>(message: &mut Message<'a>, tag: u8, data: &'a [u8]) -> Result<(), Malformed> {
    match tag {
        tag::OPCODE => message.opcode = Some(single(data, "an opcode is not one byte long")?),
        tag::PAYLOAD => message.payload = data,
        tag::EXTRA => message.extra = data,
        // An SKI of a wrong length, or all zero, counts as absent.
        tag::SKI => message.ski = data.try_into().ok().filter(|ski| *ski != [0; 20]),
        tag::DIGEST => message.digest = data.try_into().ok(),
        tag::CLIENT_IP => message.client_ip = Some(address(data)?),
        tag::SERVER_IP => message.server_ip = Some(address(data)?),
        tag::SERVER_NAME => message.server_name = data,
        tag::CERTIFICATE_ID => message.certificate_id = data,
        tag::FUNCTION => message.function = data,
        tag::SPAN => message.span = data,
        tag::CONTEXT => message.context = data,
        tag::REGION => message.region = single(data, "a compliance region is not one byte long")?,
        // Padding: what it consists of is not looked at.
        _ => {}
    }
    Ok(())
}

fn single(data: &[u8], wrong: &'static str) -> Result<u8, Malformed> {
    match data {
        [byte] => Ok(*byte),
        _ => Err(Malformed(wrong)),
    }
}

fn address(data: &[u8]) -> Result<IpAddr, Malformed> {
    let four = <[u8; 4]>::try_from(data).map(IpAddr::from);
    let sixteen = <[u8; 16]>::try_from(data).map(|octets| IpAddr::from(octets).to_canonical());
    four.or(sixteen).map_err(|_| Malformed("an address is neither 4 nor 16 bytes long"))
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

#[cfg(test)]
mod tests {
    use super::super::opcode;
    use super::*;

    fn frame_of(body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(body.len()).expect("a body that fits");
        [&[9, 9], length.to_be_bytes().as_slice(), &[0, 0, 0, 5], body].concat()
    }

    fn decoded(body: &[u8], check: impl FnOnce(Result<Message<'_>, Malformed>)) {
        let mut decoder = Decoder::new();
        decoder.extend(&frame_of(body));
        check(decoder.next_message().map(|message| message.expect("the frame is whole")));
    }

    fn is_malformed(body: &[u8]) -> bool {
        let mut malformed = false;
        decoded(body, |message| malformed = message.is_err());
        malformed
    }

    fn full() -> Message<'static> {
        Message {
            id: u32::MAX,
            opcode: Some(0x15),
            payload: b"payload",
            extra: b"extra",
            ski: Some([4; 20]),
            digest: Some([1; 32]),
            client_ip: Some([10, 0, 0, 1].into()),
            server_ip: "fd00::1".parse().ok(),
            server_name: b"shop.example",
            certificate_id: b"one",
            function: b"f",
            span: b"1:2:3:4",
            context: b"{}",
            region: 1,
        }
    }

    #[test]
    fn every_item_comes_out_as_it_went_in() {
        let mut wire = Vec::new();
        full().encode(&mut wire).expect("it fits");
        let mut decoder = Decoder::new();
        decoder.extend(&wire);
        assert_eq!(decoder.next_message(), Ok(Some(full())));
        assert_eq!(decoder.next_message(), Ok(None));
        assert_eq!(decoder.buffered(), 0);
    }

    #[test]
    fn frames_arrive_in_any_split_and_several_at_once() {
        let mut wire = Vec::new();
        for id in 0..5 {
            let payload = vec![id as u8; 400 * id as usize];
            Message { id, opcode: Some(opcode::PING), payload: &payload, ..Message::default() }
                .encode(&mut wire)
                .unwrap();
        }
        for step in [1, 2, 7, 8, 9, 1023, 1024, 1025, 4000, wire.len()] {
            let mut decoder = Decoder::new();
            let mut ids = Vec::new();
            for part in wire.chunks(step) {
                decoder.extend(part);
                while decoder.has_message() {
                    let message = decoder.next_message().expect("well-formed").expect("whole");
                    assert_eq!(message.payload.len(), 400 * message.id as usize);
                    ids.push(message.id);
                }
            }
            assert_eq!(ids, [0, 1, 2, 3, 4], "in steps of {step}");
        }
    }

    #[test]
    fn frames_are_put_together_whole_as_long_as_they_fit() {
        let wire = frame_of(&[0; 92]).repeat(3);
        for (max, taken) in [(0, 100), (99, 100), (199, 100), (200, 200), (1000, 300)] {
            assert_eq!(whole_frames(&wire, max), taken, "{max}");
        }
        assert_eq!((whole_frames(&wire[..150], 1000), whole_frames(&wire[..99], 1000)), (100, 0));
    }

    #[test]
    fn a_receiver_asks_for_no_order_no_padding_and_no_version() {
        decoded(b"\x12\0\x02ab\x11\0\x01\x15", |message| {
            let message = message.expect("well-formed");
            assert_eq!((message.id, message.opcode, message.payload), (5, Some(0x15), b"ab".as_slice()));
        });
        decoded(b"", |message| assert_eq!(message.expect("well-formed").opcode, None));
    }

    #[test]
    fn stray_bytes_at_the_end_and_unknown_items_are_passed_over() {
        for tail in [&b"\x11"[..], b"\x11\0", b"\x99\0\x01x\x99\0\x01y", b"\x07\0\0\x07\0\0", b"\xff\0\0"] {
            decoded(&[b"\x11\0\x01\xf1", tail].concat(), |message| {
                assert_eq!(message.expect("well-formed").opcode, Some(opcode::PING));
            });
        }
    }

    #[test]
    fn a_known_item_occurs_once() {
        for tag in (0x01..=0x06).chain(0x11..=0x17).chain([0x20]) {
            let data: &[u8] = if tag == 0x03 || tag == 0x05 { &[1; 4] } else { &[1] };
            let item = [&[tag, 0, data.len() as u8], data].concat();
            assert!(!is_malformed(&item), "{tag:#x} once");
            assert!(is_malformed(&item.repeat(2)), "{tag:#x} twice");
        }
    }

    #[test]
    fn items_of_a_wrong_length_are_refused_or_as_if_absent() {
        assert!(is_malformed(b"\x12\0\x05abc"));
        assert!(is_malformed(b"\x12\xff\xff"));
        for body in [&b"\x11\0\0"[..], b"\x11\0\x02\x15\x15", b"\x17\0\0", b"\x03\0\x05abcde", b"\x05\0\0"] {
            assert!(is_malformed(body), "{body:x?}");
        }
        for len in [0, 19, 21] {
            let body = [&[0x04, 0, len], vec![1; usize::from(len)].as_slice()].concat();
            decoded(&body, |message| assert_eq!(message.expect("well-formed").ski, None));
        }
        let zero = [&[0x04, 0, 20][..], &[0; 20]].concat();
        decoded(&zero, |message| assert_eq!(message.expect("well-formed").ski, None));
        decoded(b"\x01\0\x01a", |message| assert_eq!(message.expect("well-formed").digest, None));
    }

    #[test]
    fn the_largest_frame_is_decoded_and_memory_is_given_back() {
        let payload = vec![7; BODY_BYTES_MAX - 3];
        let mut decoder = Decoder::new();
        decoder.extend(&frame_of(&[&[0x12, 0xff, 0xfc], payload.as_slice()].concat()));
        assert_eq!(decoder.next_message().map(|message| message.map(|m| m.payload.len())), Ok(Some(payload.len())));
        decoder.release();
        assert_eq!(decoder.buffer.capacity(), 0);
    }
}
