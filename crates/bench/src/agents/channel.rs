//! Frames between a coordinator and an agent: a length, JSON, and after the secret's handshake a tag.
//!
//! A frame is `length: u32 big-endian | JSON | tag: 32 bytes`. The tag is HMAC-SHA256 over the frame's number in its
//! direction and the JSON, with a key of this session and this direction: a frame that was changed, left out, repeated,
//! put elsewhere or sent back ends the session. Over TLS there is no tag, since TLS does the same and encrypts too.

use super::message::Message;
use crate::failure::{Failure, Outcome, While};
use aws_lc_rs::hmac;
use rustls::Connection;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Largest JSON in a frame, either way.
pub const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Largest JSON in a frame before the peer has shown who it is.
const GREETING_BYTES_MAX: usize = 4096;
/// MinRateTimeout with a peer that does not take what is sent to it.
const WRITE_MAX: Duration = Duration::from_secs(5);
const LENGTH_BYTES: usize = 4;
const TAG_BYTES: usize = 32;
const READ_BYTES: usize = 64 * 1024;

pub struct Channel {
    wire: Wire,
    seal: Seal,
    trusted: bool,
    /// Bytes that came and are not a whole frame yet.
    pending: Vec<u8>,
}

/// The socket that carries the bytes.
pub enum Wire {
    Plain(TcpStream),
    Tls(Box<Connection>, TcpStream),
}

/// The proof that a frame is the peer's.
enum Seal {
    /// Nothing: during the handshake, or because TLS does it.
    None,
    Keyed(Box<SessionKeys>),
}

/// Keys of one session, one per direction, and how many frames each has authenticated.
pub struct SessionKeys {
    send: hmac::Key,
    receive: hmac::Key,
    sent: u64,
    received: u64,
}

impl SessionKeys {
    pub fn new(send: hmac::Key, receive: hmac::Key) -> Self {
        Self { send, receive, sent: 0, received: 0 }
    }
}

impl Channel {
    pub fn new(wire: Wire) -> Outcome<Self> {
        let socket = wire.socket();
        socket.set_nodelay(true).when("the socket")?;
        socket.set_write_timeout(Some(WRITE_MAX)).when("the socket")?;
        Ok(Self { wire, seal: Seal::None, trusted: false, pending: Vec::new() })
    }

    /// From now on the peer is known, by TLS or by its tags, and frames may be large.
    pub fn trust(&mut self, keys: Option<SessionKeys>) {
        self.trusted = true;
        if let Some(keys) = keys {
            self.seal = Seal::Keyed(Box::new(keys));
        }
    }

    pub fn peer(&self) -> Option<SocketAddr> {
        self.wire.socket().peer_addr().ok()
    }

    pub fn send(&mut self, message: &Message) -> Outcome<()> {
        let json = serde_json::to_vec(message).when("writing a frame")?;
        if json.len() > FRAME_BYTES_MAX {
            return Err(Failure::new(format!("a frame of {} bytes; at most {FRAME_BYTES_MAX} are sent", json.len())));
        }
        let mut frame = Vec::with_capacity(LENGTH_BYTES + json.len() + TAG_BYTES);
        frame.extend_from_slice(&(json.len() as u32).to_be_bytes());
        frame.extend_from_slice(&json);
        if let Seal::Keyed(keys) = &mut self.seal {
            frame.extend_from_slice(tag(&keys.send, keys.sent, &json).as_ref());
            keys.sent += 1;
        }
        self.wire.write_all(&frame).when("sending")
    }

    /// The next message, if there is one within `wait`. An error is the end of the session.
    pub fn poll(&mut self, wait: Duration) -> Outcome<Option<Message>> {
        let until = Instant::now() + wait;
        let mut scratch = [0; READ_BYTES];
        loop {
            if let Some(message) = self.take_frame()? {
                return Ok(Some(message));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            // The kernel takes zero for "for ever", and rounds less than a millisecond as it likes.
            let timeout = left.max(Duration::from_millis(1));
            self.wire.socket().set_read_timeout(Some(timeout)).when("the socket")?;
            match self.wire.read(&mut scratch) {
                Ok(0) => return Err(Failure::new("the connection was closed")),
                Ok(count) => self.pending.extend_from_slice(&scratch[..count]),
                Err(error) if is_pause(&error) => {}
                Err(error) => return Err(Failure::new(format!("receiving: {error}"))),
            }
        }
    }

    /// The next message; its absence within `patience` is an error.
    pub fn receive(&mut self, patience: Duration) -> Outcome<Message> {
        self.poll(patience)?.ok_or_else(|| Failure::new(format!("nothing was heard for {} s", patience.as_secs_f64())))
    }

    fn take_frame(&mut self) -> Outcome<Option<Message>> {
        let Some(length) = self.pending.first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length) as usize;
        let limit = if self.trusted { FRAME_BYTES_MAX } else { GREETING_BYTES_MAX };
        if length > limit {
            return Err(Failure::new(format!("a frame of {length} bytes came; at most {limit} are taken here")));
        }
        let tag_bytes = if matches!(self.seal, Seal::Keyed(_)) { TAG_BYTES } else { 0 };
        let end = LENGTH_BYTES + length + tag_bytes;
        if self.pending.len() < end {
            return Ok(None);
        }
        let json = &self.pending[LENGTH_BYTES..LENGTH_BYTES + length];
        if let Seal::Keyed(keys) = &mut self.seal {
            let tagged = tagged(keys.received, json);
            hmac::verify(&keys.receive, &tagged, &self.pending[LENGTH_BYTES + length..end]).map_err(|_| {
                Failure::new(format!("frame {} is not authentic: changed, repeated or out of order", keys.received))
            })?;
            keys.received += 1;
        }
        let message = serde_json::from_slice(json).when("a malformed frame came")?;
        self.pending.drain(..end);
        Ok(Some(message))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Wire::Tls(session, socket) = &mut self.wire {
            session.send_close_notify();
            let _ = session.write_tls(socket);
        }
        let _ = self.wire.socket().shutdown(Shutdown::Both);
    }
}

impl Wire {
    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) | Self::Tls(_, socket) => socket,
        }
    }
}

impl Read for Wire {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let (session, socket) = match self {
            Self::Plain(socket) => return socket.read(out),
            Self::Tls(session, socket) => (session, socket),
        };
        loop {
            match session.reader().read(out) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            if session.read_tls(socket)? == 0 {
                return Ok(0);
            }
            let processed = session.process_new_packets();
            // An alert, if it came to that: it tells the peer why.
            while session.wants_write() {
                session.write_tls(socket)?;
            }
            processed.map_err(io::Error::other)?;
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (session, socket) = match self {
            Self::Plain(socket) => return socket.write(bytes),
            Self::Tls(session, socket) => (session, socket),
        };
        let taken = session.writer().write(bytes)?;
        while session.wants_write() {
            session.write_tls(socket)?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A read that brought nothing within its time.
pub fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn tag(key: &hmac::Key, number: u64, json: &[u8]) -> hmac::Tag {
    hmac::sign(key, &tagged(number, json))
}

fn tagged(number: u64, json: &[u8]) -> Vec<u8> {
    let mut tagged = number.to_be_bytes().to_vec();
    tagged.extend_from_slice(json);
    tagged
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// A raw socket and the channel at its other end.
    fn pair() -> (TcpStream, Channel) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let raw = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let channel = Channel::new(Wire::Plain(listener.accept().unwrap().0)).unwrap();
        (raw, channel)
    }

    fn key(name: &[u8]) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, name)
    }

    fn frame(message: &Message, seal: Option<(&hmac::Key, u64)>) -> Vec<u8> {
        let json = serde_json::to_vec(message).unwrap();
        let mut bytes = (json.len() as u32).to_be_bytes().to_vec();
        bytes.extend_from_slice(&json);
        if let Some((key, number)) = seal {
            bytes.extend_from_slice(tag(key, number, &json).as_ref());
        }
        bytes
    }

    fn keyed() -> (TcpStream, Channel) {
        let (raw, mut channel) = pair();
        channel.trust(Some(SessionKeys::new(key(b"from the agent"), key(b"to the agent"))));
        (raw, channel)
    }

    #[test]
    fn a_frame_that_comes_byte_by_byte_is_whole_in_the_end() {
        let (mut raw, mut channel) = keyed();
        let bytes = frame(&Message::Alive, Some((&key(b"to the agent"), 0)));
        raw.write_all(&bytes[..7]).unwrap();
        assert_eq!(channel.poll(Duration::from_millis(20)).unwrap(), None);
        raw.write_all(&bytes[7..]).unwrap();
        assert_eq!(channel.receive(PATIENCE).unwrap(), Message::Alive);
    }

    #[test]
    fn a_replayed_frame_ends_the_session() {
        let (mut raw, mut channel) = keyed();
        let bytes = frame(&Message::Alive, Some((&key(b"to the agent"), 0)));
        raw.write_all(&bytes).unwrap();
        raw.write_all(&bytes).unwrap();
        assert_eq!(channel.receive(PATIENCE).unwrap(), Message::Alive);
        let error = channel.receive(PATIENCE).unwrap_err().to_string();
        assert!(error.contains("frame 1 is not authentic"), "{error}");
    }

    #[test]
    fn a_changed_or_reflected_or_untagged_frame_ends_the_session() {
        let good = frame(&Message::Alive, Some((&key(b"to the agent"), 0)));
        let mut changed = good.clone();
        changed[6] ^= 1;
        let reflected = frame(&Message::Alive, Some((&key(b"from the agent"), 0)));
        let mut untagged = frame(&Message::Alive, None);
        untagged.extend_from_slice(&[0; TAG_BYTES]);
        for bytes in [changed, reflected, untagged] {
            let (mut raw, mut channel) = keyed();
            raw.write_all(&bytes).unwrap();
            assert!(channel.receive(PATIENCE).unwrap_err().to_string().contains("not authentic"));
        }
    }

    #[test]
    fn nonsense_and_too_much_of_it_are_told_apart() {
        let (mut raw, mut channel) = pair();
        raw.write_all(b"\0\0\0\x02{]").unwrap();
        assert!(channel.receive(PATIENCE).unwrap_err().to_string().contains("malformed"));
        // Four gigabytes announced: nobody waits for them, and an HTTP request is not a frame.
        for bytes in [&b"\xff\xff\xff\xff"[..], b"GET / HTTP/1.1\r\n\r\n", b"\0\0\x10\x01"] {
            let (mut raw, mut channel) = pair();
            raw.write_all(bytes).unwrap();
            assert!(channel.receive(PATIENCE).unwrap_err().to_string().contains("at most 4096"));
        }
    }
}
