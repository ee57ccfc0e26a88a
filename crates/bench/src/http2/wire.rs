//! A connection as the HTTP/2 library wants it: a socket, perhaps TLS over it, that can be polled.

use crate::link::Broken;
use crate::stats::{ErrorKind, Negotiated};
use crate::stream::TlsStream;
use crate::target::Target;
use rustls::ServerConnection;
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

pub enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<NonBlocking>>),
}

/// Reads and writes what can be read and written at once.
pub struct NonBlocking(TcpStream);

impl Wire {
    /// Connected, and with TLS agreed on HTTP/2.
    pub async fn open(target: &Target) -> Result<Self, Broken> {
        Self::begin(Self::connect(target).await?, target).await
    }

    /// A socket that is connected.
    pub async fn connect(target: &Target) -> Result<TcpStream, Broken> {
        let connect = |error: io::Error| Broken::new(ErrorKind::Connect, error);
        let socket = TcpStream::from_std(target.connect().map_err(connect)?).map_err(connect)?;
        socket.writable().await.map_err(connect)?;
        match socket.take_error().map_err(connect)? {
            Some(error) => Err(connect(error)),
            None => Ok(socket),
        }
    }

    /// The client's side of a connected socket, with TLS agreed on HTTP/2.
    pub async fn begin(socket: TcpStream, target: &Target) -> Result<Self, Broken> {
        let session = target.tls_session().map_err(|error| Broken::new(ErrorKind::Tls, error))?;
        let wire = Self::over(socket, session.map(|session| (*session).into())).await;
        let wire = wire.map_err(|error| Broken::new(ErrorKind::Tls, error))?;
        match wire.agrees() {
            true => Ok(wire),
            false => Err(Broken::new(ErrorKind::Tls, "the server did not take h2 (ALPN)")),
        }
    }

    /// The server's side, with TLS agreed on HTTP/2.
    pub async fn accept(socket: TcpStream, session: Option<ServerConnection>) -> io::Result<Self> {
        let wire = Self::over(socket, session.map(Into::into)).await?;
        match wire.agrees() {
            true => Ok(wire),
            false => Err(io::Error::other("the client did not offer h2 (ALPN)")),
        }
    }

    /// Whatever is agreed on.
    async fn over(socket: TcpStream, session: Option<rustls::Connection>) -> io::Result<Self> {
        let Some(session) = session else {
            return Ok(Self::Plain(socket));
        };
        let mut stream = TlsStream::new(NonBlocking(socket), session);
        poll_fn(|cx| poll_handshake(&mut stream, cx)).await?;
        Ok(Self::Tls(Box::new(stream)))
    }

    /// Without TLS, HTTP/2 is taken for known (RFC 9113 §3.3).
    fn agrees(&self) -> bool {
        match self {
            Self::Plain(_) => true,
            Self::Tls(stream) => stream.session.alpn_protocol() == Some(b"h2"),
        }
    }

    pub fn negotiated(&self) -> Option<Negotiated> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => Negotiated::of(&stream.session),
        }
    }
}

fn would_block<T>(result: &io::Result<T>) -> bool {
    matches!(result, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

fn poll_handshake(stream: &mut TlsStream<NonBlocking>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    loop {
        let result = stream.handshake();
        if !would_block(&result) {
            return Poll::Ready(result);
        }
        let socket = &stream.socket.0;
        ready!(if stream.session.wants_write() { socket.poll_write_ready(cx) } else { socket.poll_read_ready(cx) })?;
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buffer),
            Self::Tls(stream) => loop {
                let result = stream.read(buffer.initialize_unfilled());
                if !would_block(&result) {
                    return Poll::Ready(result.map(|count| buffer.advance(count)));
                }
                ready!(stream.socket.0.poll_read_ready(cx))?;
            },
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            Self::Tls(stream) => loop {
                let result = stream.write(bytes);
                if !would_block(&result) {
                    return Poll::Ready(result);
                }
                ready!(stream.socket.0.poll_write_ready(cx))?;
            },
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(stream) => loop {
                let result = stream.flush_ciphertext();
                if !would_block(&result) {
                    return Poll::Ready(result);
                }
                ready!(stream.socket.0.poll_write_ready(cx))?;
            },
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Self::Tls(stream) = &mut *self {
            stream.session.send_close_notify();
        }
        ready!(self.as_mut().poll_flush(cx))?;
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(&mut stream.socket.0).poll_shutdown(cx),
        }
    }
}

impl Read for NonBlocking {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

impl Write for NonBlocking {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
