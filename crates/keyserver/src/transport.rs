//! The bytes of a connection, in and out: as TLS over TCP, or as they are over a socket pair to the engine whose
//! key process this is.

use std::io::{self, BufRead, IoSlice, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use propylon_crypto::key_process::MESSAGE_BYTES_MAX;
use propylon_crypto::keyless::{Decoder, whole_frames};
use rustls::pki_types::CertificateDer;
use rustls::{ServerConfig, ServerConnection};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;

use crate::message_socket::MessageSocket;

/// Replies sealed at once: three records, and what the kernel usually takes in one call.
const SEALED_BYTES_MAX: usize = 48 * 1024;

pub enum Transport {
    Tls {
        stream: TcpStream,
        tls: Box<ServerConnection>,
    },
    /// A socket pair to the engine; each message is of whole frames.
    Engine {
        socket: MessageSocket,
        unsent: Vec<u8>,
    },
}

/// Whether more bytes can follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    More,
    End,
}

impl Transport {
    pub fn tls(stream: TcpStream, config: Arc<ServerConfig>) -> Result<Transport, rustls::Error> {
        let mut tls = Box::new(ServerConnection::new(config)?);
        // The buffer needs no limit: what is sealed at once has one.
        tls.set_buffer_limit(None);
        Ok(Transport::Tls { stream, tls })
    }

    /// Makes a transport of a nonblocking socket that keeps messages apart.
    pub fn engine(socket: OwnedFd) -> io::Result<Transport> {
        Ok(Transport::Engine { socket: MessageSocket::new(socket)?, unsent: Vec::new() })
    }

    pub fn is_engine(&self) -> bool {
        matches!(self, Transport::Engine { .. })
    }

    pub fn peer(&self) -> Option<SocketAddr> {
        match self {
            Transport::Tls { stream, .. } => stream.peer_addr().ok(),
            Transport::Engine { .. } => None,
        }
    }

    pub fn peer_certificate(&self) -> Option<&CertificateDer<'static>> {
        match self {
            Transport::Tls { tls, .. } => tls.peer_certificates()?.first(),
            Transport::Engine { .. } => None,
        }
    }

    pub fn is_handshaking(&self) -> bool {
        matches!(self, Transport::Tls { tls, .. } if tls.is_handshaking())
    }

    /// 0: the end.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Transport::Tls { stream, .. } => {
                let mut buffer = ReadBuf::new(bytes);
                ready!(Pin::new(stream).poll_read(cx, &mut buffer))?;
                Poll::Ready(Ok(buffer.filled().len()))
            }
            Transport::Engine { socket, .. } => socket.poll_receive(cx, bytes),
        }
    }

    /// Decrypts what was read, and hands it to the decoder. An error without a TLS error means that TLS could not
    /// take the bytes.
    pub fn open(&mut self, mut bytes: &[u8], decoder: &mut Decoder) -> Result<Received, Option<rustls::Error>> {
        let tls = match self {
            Transport::Tls { tls, .. } => tls,
            Transport::Engine { .. } => {
                decoder.extend(bytes);
                return Ok(Received::More);
            }
        };
        while !bytes.is_empty() {
            let taken = tls.read_tls(&mut bytes).map_err(|_| None)?;
            let state = tls.process_new_packets()?;
            let mut reader = tls.reader();
            while let Ok(plaintext @ [_, ..]) = reader.fill_buf() {
                decoder.extend(plaintext);
                let length = plaintext.len();
                reader.consume(length);
            }
            // Bytes after a closure alert are not looked at (RFC 8446 §6.1).
            if state.peer_has_closed() || taken == 0 {
                return Ok(Received::End);
            }
        }
        Ok(Received::More)
    }

    /// Whether sealed bytes have not been taken yet.
    pub fn has_unsent(&self) -> bool {
        match self {
            Transport::Tls { tls, .. } => tls.wants_write(),
            Transport::Engine { unsent, .. } => !unsent.is_empty(),
        }
    }

    /// Makes what can be sent of the first of these frames, and removes them.
    pub fn seal(&mut self, replies: &mut Vec<u8>) {
        match self {
            Transport::Tls { tls, .. } => {
                let length = replies.len().min(SEALED_BYTES_MAX);
                // All is taken, since the buffer has no limit.
                let _ = tls.writer().write_all(&replies[..length]);
                replies.drain(..length);
            }
            Transport::Engine { unsent, .. } => {
                let length = whole_frames(replies, MESSAGE_BYTES_MAX);
                unsent.extend(replies.drain(..length));
            }
        }
    }

    /// Ready when some of it, or all, has been taken.
    pub fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Transport::Tls { stream, tls } => {
                ready!(stream.poll_write_ready(cx))?;
                match tls.write_tls(&mut Socket(stream)) {
                    Ok(1..) => Poll::Ready(Ok(())),
                    // The event loop believed that there is room; a second poll sets it right, and waits.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.poll_send(cx),
                    Ok(0) => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Err(error) => Poll::Ready(Err(error)),
                }
            }
            Transport::Engine { socket, unsent } => {
                let sent = ready!(socket.poll_send(cx, unsent));
                unsent.clear();
                Poll::Ready(sent)
            }
        }
    }

    /// Says that it ends, if that can be heard at once.
    pub fn close(&mut self) {
        let Transport::Tls { stream, tls } = self else { return };
        tls.send_close_notify();
        while tls.wants_write() {
            if !matches!(tls.write_tls(&mut Socket(stream)), Ok(1..)) {
                return;
            }
        }
    }
}

/// The socket as rustls writes to it: several records in one call, and never waiting.
struct Socket<'a>(&'a TcpStream);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
