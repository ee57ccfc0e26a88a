//! One client connection: a socket, perhaps TLS over it, and the response it is waiting for. Never waits itself.

use crate::response::Response;
use crate::stats::{ErrorKind, Negotiated};
use crate::target::Target;
use rustls::{ClientConnection, HandshakeKind};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Plaintext handed to a TLS session at once: a large body then waits in the request, not once more in each session.
const TLS_PIECE_BYTES: usize = 64 * 1024;

/// A request as it goes over the wire, and whether its answer has no body.
#[derive(Clone, Serialize, Deserialize)]
pub struct Request {
    pub bytes: Vec<u8>,
    /// Bytes at the end of `bytes` that are the body.
    pub body_bytes: usize,
    pub is_head: bool,
}

impl Request {
    /// `headers` are whole lines, each with its CRLF.
    pub fn new(method: &str, path: &str, host: &str, headers: &str, body_bytes: usize) -> Self {
        let mut bytes = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}").into_bytes();
        if body_bytes > 0 || matches!(method, "POST" | "PUT" | "PATCH") {
            bytes.extend_from_slice(format!("Content-Length: {body_bytes}\r\n").as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.resize(bytes.len() + body_bytes, b'x');
        Self { bytes, body_bytes, is_head: method == "HEAD" }
    }
}

pub struct Link {
    pub socket: TcpStream,
    tls: Option<Box<ClientConnection>>,
    pub response: Response,
    /// Bytes of the request that may go out by now, and of those the ones that the socket, or the TLS session, has
    /// taken.
    allowed: usize,
    sent: usize,
    connected: bool,
    /// The handshake was seen to be over.
    handshaken: bool,
    /// The server said close_notify: no more plaintext will come (RFC 8446 §6.1), whenever the socket closes.
    pub notified: bool,
}

/// Why a connection is of no more use.
#[derive(Debug)]
pub struct Broken {
    pub kind: ErrorKind,
    pub detail: String,
}

impl Link {
    /// Starts to connect.
    pub fn open(target: &Target) -> Result<Self, Broken> {
        let socket = target.connect().map_err(|error| Broken::new(ErrorKind::Connect, error))?;
        let tls = target.tls_session().map_err(|error| Broken::new(ErrorKind::Tls, error))?;
        Ok(Self {
            socket,
            tls,
            response: Response::default(),
            allowed: 0,
            sent: 0,
            connected: false,
            handshaken: false,
            notified: false,
        })
    }

    /// Queues the request and sends what can be sent.
    pub fn ask(&mut self, request: &Request) -> Result<(), Broken> {
        self.begin(request);
        self.allow(request, request.bytes.len())
    }

    /// A request whose bytes go out piece by piece, by `allow`.
    pub fn begin(&mut self, request: &Request) {
        self.response.begin(request.is_head);
        self.allowed = 0;
        self.sent = 0;
    }

    /// Lets `count` more bytes of the request go, or what is left of it.
    pub fn allow(&mut self, request: &Request, count: usize) -> Result<(), Broken> {
        self.allowed = self.allowed.saturating_add(count).min(request.bytes.len());
        self.flush(request)
    }

    pub fn is_request_sent(&self, request: &Request) -> bool {
        self.allowed == request.bytes.len()
    }

    /// Whether the TCP handshake is done. Needed by those who connect before they have anything to say.
    pub fn check_connected(&mut self) -> Result<bool, Broken> {
        match self.socket.take_error() {
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => return Err(Broken::new(ErrorKind::Connect, error)),
        }
        self.connected |= self.socket.peer_addr().is_ok();
        Ok(self.connected)
    }

    /// Neither TCP nor TLS has anything left to agree on.
    pub fn is_established(&self) -> bool {
        self.connected && self.tls.as_ref().is_none_or(|tls| !tls.is_handshaking())
    }

    /// Reads and writes what can be read and written; true once the server has closed.
    ///
    /// `closing` is the poll's word that an end is due, so that a short read is not taken for the last.
    pub fn advance(&mut self, request: &Request, scratch: &mut [u8], closing: bool) -> Result<bool, Broken> {
        self.flush(request)?;
        loop {
            let count = match self.socket.read(scratch) {
                Ok(0) => return Ok(true),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Broken by the server after all was said: as good as closed.
                Err(_) if self.response.is_complete() => return Ok(true),
                Err(error) => return Err(self.broken(error)),
            };
            self.take(&scratch[..count])?;
            // The session may have something to say, or have become ready for the request.
            if self.tls.as_ref().is_some_and(|tls| tls.wants_write() || self.sent < request.bytes.len()) {
                self.flush(request)?;
            }
            if count < scratch.len() && !closing {
                return Ok(false);
            }
        }
    }

    pub fn is_resumed(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.handshake_kind() == Some(HandshakeKind::Resumed))
    }

    /// Once per connection, when its handshake is over: what it agreed on.
    pub fn take_negotiated(&mut self) -> Option<Negotiated> {
        let tls = self.tls.as_ref().filter(|tls| !self.handshaken && !tls.is_handshaking())?;
        self.handshaken = true;
        Negotiated::of(tls)
    }

    /// Bytes of the request's body that were sent.
    pub fn body_bytes_sent(&self, request: &Request) -> u64 {
        self.sent.saturating_sub(request.bytes.len() - request.body_bytes) as u64
    }

    /// The kind of error that an end at this point is.
    pub fn kind_of_end(&self) -> ErrorKind {
        match &self.tls {
            _ if !self.connected => ErrorKind::Connect,
            Some(tls) if tls.is_handshaking() => ErrorKind::Tls,
            _ => ErrorKind::Closed,
        }
    }

    /// Closes with a reset, so that no TIME_WAIT holds the local port. For connections that are done with.
    pub fn close(self) {
        let _ = socket2::SockRef::from(&self.socket).set_linger(Some(Duration::ZERO));
    }

    fn flush(&mut self, request: &Request) -> Result<(), Broken> {
        loop {
            let left = &request.bytes[self.sent..self.allowed];
            let result = match &mut self.tls {
                // The first piece joins whatever ends the handshake, so that both leave in one write.
                Some(tls) if tls.wants_write() && (self.sent > 0 || left.is_empty() || tls.is_handshaking()) => {
                    tls.write_tls(&mut self.socket)
                }
                Some(tls) if !left.is_empty() && !tls.is_handshaking() => {
                    let piece = &left[..left.len().min(TLS_PIECE_BYTES)];
                    tls.writer().write(piece).inspect(|count| self.sent += count)
                }
                None if !left.is_empty() => self.socket.write(left).inspect(|count| self.sent += count),
                _ => return Ok(()),
            };
            match result {
                Ok(_) => self.connected = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if self.response.is_complete() => return Ok(()),
                Err(error) => return Err(self.broken(error)),
            }
        }
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Broken> {
        let bad = |error: crate::body::BadFraming| Broken::new(ErrorKind::BadFraming, error.0);
        let Some(tls) = &mut self.tls else {
            return self.response.feed(bytes).map_err(bad);
        };
        while !bytes.is_empty() {
            let before = bytes.len();
            tls.read_tls(&mut bytes).map_err(|error| Broken::new(ErrorKind::Tls, error))?;
            let state = tls.process_new_packets().map_err(|error| Broken::new(ErrorKind::Tls, error))?;
            self.notified |= state.peer_has_closed();
            let mut left = state.plaintext_bytes_to_read();
            while left > 0 {
                let mut reader = tls.reader();
                let plaintext = reader.fill_buf().map_err(|error| Broken::new(ErrorKind::Tls, error))?;
                let count = plaintext.len();
                self.response.feed(plaintext).map_err(bad)?;
                reader.consume(count);
                left -= count;
            }
            if bytes.len() == before {
                // After close_notify the session takes nothing more.
                return Ok(());
            }
        }
        Ok(())
    }

    fn broken(&self, error: io::Error) -> Broken {
        let kind = if self.connected { ErrorKind::Reset } else { ErrorKind::Connect };
        Broken::new(kind, error)
    }
}

impl Broken {
    pub fn new(kind: ErrorKind, detail: impl std::fmt::Display) -> Self {
        Self { kind, detail: detail.to_string() }
    }
}
