//! Messages between the two processes of an upgrade: JSON, files, and secrets, which are in no JSON because that leaves
//! copies behind.
//!
//! A message is one byte for its kind and the rest. JSON that knows more keys is no problem, which is how versions may differ.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use propylon_sys::MESSAGE_BYTES_MAX;
use serde_json::{Value, json};
use tokio::io::unix::AsyncFd;
use zeroize::Zeroizing;

const WORD: u8 = b'W';
const FILES: u8 = b'F';
const SECRET: u8 = b'S';
/// Bytes of a named secret's head: the kind of the message, the kind of the secret, and the name's length.
const SECRET_HEAD_BYTES: usize = 3;
/// Bytes that a message of sessions has room for beside its head and the longest name of a profile.
pub const SESSIONS_BYTES_MAX: usize = MESSAGE_BYTES_MAX - SECRET_HEAD_BYTES - u8::MAX as usize;

#[derive(Debug)]
pub enum Message {
    /// `{"word": ...}` and what belongs to it.
    Word(Value),
    /// As many as the offer has said, over one message or several.
    Files(Vec<OwnedFd>),
    Secret {
        kind: SecretKind,
        /// Name of a TLS profile, for sessions.
        name: String,
        bytes: Zeroizing<Vec<u8>>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretKind {
    TicketKeys = 1,
    StickySecret = 2,
    Sessions = 3,
}

impl SecretKind {
    fn of(byte: u8) -> Option<SecretKind> {
        [SecretKind::TicketKeys, SecretKind::StickySecret, SecretKind::Sessions]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// A message that is one word.
pub fn word(word: &str) -> Value {
    json!({ "word": word })
}

impl Message {
    /// The word, where it is one.
    pub fn word(&self) -> &str {
        match self {
            Message::Word(value) => value["word"].as_str().unwrap_or_default(),
            Message::Files(_) => "files",
            Message::Secret { .. } => "secret",
        }
    }

    fn decode(bytes: &[u8], files: Vec<OwnedFd>) -> io::Result<Message> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "a message that this version does not know");
        let (kind, rest) = bytes.split_first().ok_or_else(wrong)?;
        match *kind {
            WORD => {
                let value: Value = serde_json::from_slice(rest).map_err(|_| wrong())?;
                if value["word"].is_string() { Ok(Message::Word(value)) } else { Err(wrong()) }
            }
            FILES => Ok(Message::Files(files)),
            SECRET => {
                let [kind, length, rest @ ..] = rest else { return Err(wrong()) };
                let (name, secret) = rest.split_at_checked((*length).into()).ok_or_else(wrong)?;
                Ok(Message::Secret {
                    kind: SecretKind::of(*kind).ok_or_else(wrong)?,
                    name: String::from_utf8(name.to_vec()).map_err(|_| wrong())?,
                    bytes: Zeroizing::new(secret.to_vec()),
                })
            }
            _ => Err(wrong()),
        }
    }
}

fn encode_word(value: &Value) -> Vec<u8> {
    let mut bytes = vec![WORD];
    bytes.extend_from_slice(value.to_string().as_bytes());
    bytes
}

fn encode_secret(kind: SecretKind, name: &str, secret: &[u8]) -> Zeroizing<Vec<u8>> {
    // Names of profiles are shorter by far: the configuration sees to it.
    let name = &name.as_bytes()[..name.len().min(u8::MAX.into())];
    let mut bytes = Zeroizing::new(Vec::with_capacity(SECRET_HEAD_BYTES + name.len() + secret.len()));
    bytes.extend_from_slice(&[SECRET, kind as u8, name.len() as u8]);
    bytes.extend_from_slice(name);
    bytes.extend_from_slice(secret);
    bytes
}

/// Says something over a socket that may wait.
pub fn send_now(socket: &OwnedFd, value: &Value) -> io::Result<()> {
    propylon_sys::send_message(socket, &encode_word(value), &[])
}

/// The next message from a socket that may wait; none where the other end has closed.
pub fn receive_now(socket: &OwnedFd) -> io::Result<Option<Message>> {
    let mut buffer = Zeroizing::new(vec![0; MESSAGE_BYTES_MAX]);
    let (length, files) = propylon_sys::receive_message(socket, &mut buffer)?;
    if length == 0 {
        return Ok(None);
    }
    Message::decode(&buffer[..length], files).map(Some)
}

/// A conversation in an event loop.
pub struct Channel {
    socket: AsyncFd<OwnedFd>,
}

impl Channel {
    #[expect(
        deprecated,
        reason = "deprecated for types that may close their file behind its back; an owned one does not"
    )]
    pub fn new(socket: OwnedFd) -> io::Result<Channel> {
        propylon_sys::set_nonblocking(&socket, true)?;
        Ok(Channel { socket: AsyncFd::new(socket)? })
    }

    pub fn file(&self) -> &OwnedFd {
        self.socket.get_ref()
    }

    pub async fn send_json(&self, value: &Value) -> io::Result<()> {
        self.send(&encode_word(value), &[]).await
    }

    pub async fn send_secret(&self, kind: SecretKind, name: &str, secret: &[u8]) -> io::Result<()> {
        self.send(&encode_secret(kind, name, secret), &[]).await
    }

    /// As many messages as it takes.
    pub async fn send_files(&self, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        for part in files.chunks(propylon_sys::FILES_PER_MESSAGE_MAX) {
            self.send(&[FILES], part).await?;
        }
        Ok(())
    }

    async fn send(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            let mut ready = self.socket.writable().await?;
            match ready.try_io(|socket| propylon_sys::send_message(socket.get_ref(), bytes, files)) {
                Ok(done) => return done,
                Err(_) => continue,
            }
        }
    }

    /// The next message; `None` if the other end has closed.
    pub async fn receive(&self) -> io::Result<Option<Message>> {
        let mut buffer = Zeroizing::new(vec![0; MESSAGE_BYTES_MAX]);
        loop {
            let mut ready = self.socket.readable().await?;
            match ready.try_io(|socket| propylon_sys::receive_message(socket.get_ref(), &mut buffer)) {
                Ok(Ok((0, _))) => return Ok(None),
                Ok(Ok((length, files))) => return Message::decode(&buffer[..length], files).map(Some),
                Ok(Err(error)) => return Err(error),
                Err(_) => continue,
            }
        }
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.get_ref().as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_is_heard() {
        let Ok(Message::Word(value)) = Message::decode(&encode_word(&word("go")), Vec::new()) else {
            panic!("no word")
        };
        assert_eq!(value["word"], "go");
        let secret = encode_secret(SecretKind::Sessions, "public", b"state");
        let Ok(Message::Secret { kind, name, bytes }) = Message::decode(&secret, Vec::new()) else {
            panic!("no secret")
        };
        assert_eq!((kind, name.as_str(), &**bytes), (SecretKind::Sessions, "public", &b"state"[..]));
        assert!(matches!(Message::decode(b"F", Vec::new()), Ok(Message::Files(files)) if files.is_empty()));
    }

    #[test]
    fn what_is_not_a_message_is_an_error() {
        for wrong in [
            &b""[..],
            b"X",
            b"W",
            b"W{",
            b"W{}",
            b"W{\"word\":7}",
            b"S",
            b"S\x01",
            b"S\x09\0",
            b"S\x01\x05abc",
            b"S\x01\x01\xff",
        ] {
            assert!(Message::decode(wrong, Vec::new()).is_err(), "{wrong:?}");
        }
    }
}
