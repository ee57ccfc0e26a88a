//! Frames between a coordinator and an agent: `length: u32 big-endian | JSON`.

use super::message::Message;
use crate::failure::{Failure, Outcome, While};

/// Largest JSON in a frame, either way. A histogram with something in every bucket is below 2 MB.
pub const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;
const LENGTH_BYTES: usize = 4;

/// Bytes that came from the peer and are not a whole frame yet.
#[derive(Default)]
pub struct FrameBuffer(Vec<u8>);

impl FrameBuffer {
    pub fn extend(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The first whole message, taken out. An error is the end of the session: what follows cannot be found any more.
    pub fn take(&mut self) -> Outcome<Option<Message>> {
        let Some((length, rest)) = self.0.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(Failure::new(format!("a frame of {length} bytes came; at most {FRAME_BYTES_MAX} are taken")));
        }
        let Some(json) = rest.get(..length) else {
            return Ok(None);
        };
        let message = serde_json::from_slice(json).when("a malformed frame came")?;
        self.0.drain(..LENGTH_BYTES + length);
        Ok(Some(message))
    }
}

/// The message as a frame.
pub fn encode(message: &Message) -> Outcome<Vec<u8>> {
    let json = serde_json::to_vec(message).when("writing a frame")?;
    if json.len() > FRAME_BYTES_MAX {
        return Err(Failure::new(format!("a frame of {} bytes; at most {FRAME_BYTES_MAX} are sent", json.len())));
    }
    Ok([&(json.len() as u32).to_be_bytes()[..], &json].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_comes_byte_by_byte_is_whole_in_the_end() {
        let mut frames = FrameBuffer::default();
        let bytes = [encode(&Message::Alive).unwrap(), encode(&Message::Ready).unwrap()].concat();
        let mut messages = Vec::new();
        for byte in bytes {
            frames.extend(&[byte]);
            messages.extend(frames.take().unwrap());
        }
        assert_eq!(messages, [Message::Alive, Message::Ready]);
    }

    #[test]
    fn nonsense_and_too_much_of_it_are_told_apart() {
        let taken = |bytes: &[u8]| {
            let mut frames = FrameBuffer::default();
            frames.extend(bytes);
            frames.take()
        };
        assert!(taken(b"\0\0\0\x02{]").unwrap_err().to_string().contains("malformed"));
        // Four gigabytes announced: nobody waits for them, and an HTTP request is not a frame.
        for bytes in [&b"\xff\xff\xff\xff"[..], b"GET / HTTP/1.1\r\n\r\n", b"\x01\0\0\x01"] {
            assert!(taken(bytes).unwrap_err().to_string().contains("at most 16777216"));
        }
    }
}
