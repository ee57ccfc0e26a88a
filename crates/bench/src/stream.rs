//! A socket, perhaps TLS over it, that is read and written like a socket and never waits: for the origin, HTTP/2 and
//! relays.
//!
//! `link` does without it, and so without its copy: there the plaintext goes from the session straight to its reader.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

/// Ciphertext taken from the socket at once; four records, so that a bulk download takes few system calls.
const CIPHERTEXT_BYTES: usize = 64 * 1024;
/// Plaintext taken before it has left as ciphertext.
const PLAINTEXT_BYTES: usize = 64 * 1024;

pub enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    pub fn new(socket: TcpStream, session: Option<rustls::Connection>) -> Self {
        match session {
            None => Self::Plain(socket),
            Some(session) => Self::Tls(Box::new(TlsStream::new(socket, session))),
        }
    }

    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => &stream.socket,
        }
    }

    /// Says that no more will come, once all that was written has left; false if it has to wait for that.
    pub fn end(&mut self) -> io::Result<bool> {
        if let Self::Tls(stream) = self {
            stream.session.send_close_notify();
        }
        if !self.flush_some()? {
            return Ok(false);
        }
        self.socket().shutdown(Shutdown::Write)?;
        Ok(true)
    }

    /// A read of less than the buffer emptied the socket. With TLS it says nothing: a record is what is read.
    pub fn short_read_is_last(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Bytes taken by the socket; none if it has no room.
    pub fn write_some(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        match self.write(bytes) {
            Ok(count) => Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }

    /// True once nothing taken by `write_some` waits any more.
    pub fn flush_some(&mut self) -> io::Result<bool> {
        match self.flush() {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(stream) => stream.flush_ciphertext(),
        }
    }
}

pub struct TlsStream<S> {
    pub socket: S,
    pub session: rustls::Connection,
    /// Bytes that were read and not yet given to the session, from `taken` on. Empty, and without memory, between
    /// reads.
    ciphertext: Vec<u8>,
    taken: usize,
}

impl<S: Read + Write> TlsStream<S> {
    pub fn new(socket: S, session: rustls::Connection) -> Self {
        Self { socket, session, ciphertext: Vec::new(), taken: 0 }
    }

    /// Writes the ciphertext that waits; an error of kind "would block" if some is left.
    pub fn flush_ciphertext(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            self.session.write_tls(&mut self.socket)?;
        }
        Ok(())
    }

    /// Goes on with the handshake; an error of kind "would block" if it waits for the peer.
    pub fn handshake(&mut self) -> io::Result<()> {
        while self.session.is_handshaking() {
            self.flush_ciphertext()?;
            if self.session.is_handshaking() && !self.take_ciphertext()? {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed during the handshake"));
            }
        }
        self.flush_ciphertext()
    }

    /// Gives more ciphertext to the session; false at the end of the stream.
    fn take_ciphertext(&mut self) -> io::Result<bool> {
        if self.taken == self.ciphertext.len() {
            self.ciphertext.resize(CIPHERTEXT_BYTES, 0);
            let read = self.socket.read(&mut self.ciphertext);
            self.taken = 0;
            self.ciphertext.truncate(*read.as_ref().unwrap_or(&0));
            if self.ciphertext.is_empty() {
                self.ciphertext = Vec::new();
            }
            if read? == 0 {
                return Ok(false);
            }
        }
        let mut rest = &self.ciphertext[self.taken..];
        let before = rest.len();
        self.session.read_tls(&mut rest)?;
        let count = before - rest.len();
        self.taken += count;
        let failed = self.session.process_new_packets().err();
        // An alert, or the next message of the handshake; what finds no room now is written with the next flush.
        match self.flush_ciphertext() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
        match failed {
            Some(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            // After close_notify the session takes nothing more.
            None => Ok(count > 0),
        }
    }
}

impl<S: Read + Write> Read for TlsStream<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.session.is_handshaking() {
            self.handshake()?;
        }
        loop {
            match self.session.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // A peer that closes without close_notify has closed nonetheless; message framing tells if too early.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                result => return result,
            }
            if !self.take_ciphertext()? {
                return Ok(0);
            }
        }
    }
}

impl<S: Read + Write> Write for TlsStream<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Before its end a session would take plaintext without a limit.
        if self.session.is_handshaking() {
            self.handshake()?;
        }
        self.flush_ciphertext()?;
        let count = self.session.writer().write(&bytes[..bytes.len().min(PLAINTEXT_BYTES)])?;
        match self.flush_ciphertext() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(count),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flush_ciphertext()
    }
}
