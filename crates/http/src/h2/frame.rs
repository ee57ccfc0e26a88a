//! Frames as they stand on the wire (RFC 9113 §4, §6): their header, their types and flags, and how ours are written.

use super::Reason;

/// Length of a frame's header.
pub const HEADER_BYTES: usize = 9;
/// Payload of a frame at most, unless SETTINGS_MAX_FRAME_SIZE says otherwise: what every peer has to take, and all that
/// we take.
pub const PAYLOAD_BYTES: usize = 16_384;
/// Bytes that a client begins with (RFC 9113 §3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Types of frames.
pub mod kind {
    pub const DATA: u8 = 0x0;
    pub const HEADERS: u8 = 0x1;
    pub const PRIORITY: u8 = 0x2;
    pub const RST_STREAM: u8 = 0x3;
    pub const SETTINGS: u8 = 0x4;
    pub const PUSH_PROMISE: u8 = 0x5;
    pub const PING: u8 = 0x6;
    pub const GOAWAY: u8 = 0x7;
    pub const WINDOW_UPDATE: u8 = 0x8;
    pub const CONTINUATION: u8 = 0x9;
    /// RFC 9218 §7.1.
    pub const PRIORITY_UPDATE: u8 = 0x10;
}

/// Flags of frames.
pub mod flag {
    pub const ACK: u8 = 0x1;
    pub const END_STREAM: u8 = 0x1;
    pub const END_HEADERS: u8 = 0x4;
    pub const PADDED: u8 = 0x8;
    pub const PRIORITY: u8 = 0x20;
}

/// A frame's header, read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameHeader {
    /// Length of the payload in bytes.
    pub length: usize,
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
}

impl FrameHeader {
    pub fn read(bytes: &[u8; HEADER_BYTES]) -> FrameHeader {
        let [a, b, c, kind, flags, s0, s1, s2, s3] = *bytes;
        FrameHeader {
            length: u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            // The first bit is reserved (RFC 9113 §4.1).
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & 0x7fff_ffff,
        }
    }

    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let [_, a, b, c] = (self.length as u32).to_be_bytes();
        let [s0, s1, s2, s3] = self.stream.to_be_bytes();
        [a, b, c, self.kind, self.flags, s0, s1, s2, s3]
    }

    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Writes a frame whose payload is at hand.
pub fn write(kind: u8, flags: u8, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    let header = FrameHeader { length: payload.len(), kind, flags, stream };
    out.extend_from_slice(&header.to_bytes());
    out.extend_from_slice(payload);
}

pub fn write_reset(stream: u32, reason: Reason, out: &mut Vec<u8>) {
    write(kind::RST_STREAM, 0, stream, &reason.0.to_be_bytes(), out);
}

pub fn write_window_update(stream: u32, increment: u32, out: &mut Vec<u8>) {
    write(kind::WINDOW_UPDATE, 0, stream, &increment.to_be_bytes(), out);
}

pub fn write_goaway(last: u32, reason: Reason, out: &mut Vec<u8>) {
    let mut payload = [0; 8];
    payload[..4].copy_from_slice(&last.to_be_bytes());
    payload[4..].copy_from_slice(&reason.0.to_be_bytes());
    write(kind::GOAWAY, 0, 0, &payload, out);
}

/// Turns the bytes behind `start`, where there is room for a frame's header and a header block behind that, into
/// HEADERS and as many CONTINUATION as it takes.
pub fn finish_block(start: usize, stream: u32, end: bool, payload_bytes_max: usize, out: &mut Vec<u8>) {
    let length = out.len() - start - HEADER_BYTES;
    let end_stream = if end { flag::END_STREAM } else { 0 };
    if length <= payload_bytes_max {
        let header = FrameHeader { length, kind: kind::HEADERS, flags: flag::END_HEADERS | end_stream, stream };
        out[start..start + HEADER_BYTES].copy_from_slice(&header.to_bytes());
        return;
    }
    let block = out.split_off(start + HEADER_BYTES);
    out.truncate(start);
    let count = length.div_ceil(payload_bytes_max);
    for (index, part) in block.chunks(payload_bytes_max).enumerate() {
        let end_headers = if index + 1 == count { flag::END_HEADERS } else { 0 };
        match index {
            0 => write(kind::HEADERS, end_stream | end_headers, stream, part, out),
            _ => write(kind::CONTINUATION, end_headers, stream, part, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_as_it_was_written_without_its_reserved_bit() {
        let header = FrameHeader { length: 0x01_0203, kind: kind::PING, flags: 0x81, stream: 0x7fff_fffe };
        let mut bytes = header.to_bytes();
        assert_eq!(FrameHeader::read(&bytes), header);
        bytes[5] |= 0x80;
        assert_eq!(FrameHeader::read(&bytes), header);
    }

    #[test]
    fn a_block_that_is_too_long_for_a_frame_goes_on_in_others() {
        for (length, frames) in [(0, 1), (10, 1), (11, 2), (20, 2), (21, 3)] {
            let block: Vec<u8> = (0..length).collect();
            let mut out = b"before".to_vec();
            out.resize(6 + HEADER_BYTES, 0);
            out.extend_from_slice(&block);
            finish_block(6, 5, true, 10, &mut out);
            let (mut rest, mut joined, mut seen) = (&out[6..], Vec::new(), Vec::new());
            while let Some((header, after)) = rest.split_first_chunk() {
                let header = FrameHeader::read(header);
                joined.extend_from_slice(&after[..header.length]);
                rest = &after[header.length..];
                seen.push(header);
            }
            assert_eq!((joined, seen.len()), (block, frames));
            for (index, header) in seen.iter().enumerate() {
                assert_eq!((header.kind == kind::HEADERS, header.stream), (index == 0, 5));
                assert_eq!(header.has(flag::END_STREAM), index == 0);
                assert_eq!(header.has(flag::END_HEADERS), index + 1 == frames);
            }
        }
    }
}
