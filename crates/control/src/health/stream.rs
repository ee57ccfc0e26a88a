//! A probe's connection: a socket with or without TLS, as the libraries that speak over it want it.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use propylon_net::buffer::{Buffer, BufferPool};
use propylon_net::server_stream::{ServerHandshake, ServerStream};
use propylon_net::socket::Socket;
use propylon_observe::telemetry::PROBE_NOT_MADE;
use propylon_signer::KeyProcessClient;
use propylon_tls::{Connector, UpstreamFailure};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::failure::Failure;

pub enum ProbeStream {
    Plain(TcpStream),
    Secure(Box<Secure>),
}

pub struct Secure {
    stream: ServerStream,
    pool: BufferPool,
    /// Read and not yet taken.
    inbox: Buffer,
}

impl ProbeStream {
    /// Agrees on TLS by the settings of the backend. `beside` has what is shown to servers signed for, and
    /// `awaits_signature` says whether that is waited for now.
    pub async fn secure(
        stream: TcpStream,
        connector: &Connector,
        server: usize,
        key_process: Option<&KeyProcessClient>,
        awaits_signature: &Cell<bool>,
    ) -> Result<ProbeStream, Failure> {
        let failed = |failure: UpstreamFailure| {
            let word = if failure.is_own() { PROBE_NOT_MADE } else { "tls-failed" };
            Failure::new(word, failure.to_string())
        };
        let handshake = connector.connect(server).map_err(failed)?;
        let pool = BufferPool::default();
        let mut handshake = ServerHandshake::new(Socket::new(stream.into_std()?), handshake);
        let polled = poll_fn(|context| {
            let polled = handshake.poll(context, &pool, |job| KeyProcessClient::submit_to(key_process, job));
            awaits_signature.set(handshake.awaits_signature());
            polled
        });
        let stream = polled.await.map_err(failed)?;
        Ok(ProbeStream::Secure(Box::new(Secure { stream, pool, inbox: Buffer::default() })))
    }

    /// Whether the protocol that was offered first was agreed on; none without TLS.
    pub fn agreed_on_first(&self) -> Option<bool> {
        match self {
            ProbeStream::Plain(_) => None,
            ProbeStream::Secure(secure) => Some(secure.stream.facts().and_then(|facts| facts.alpn) == Some(0)),
        }
    }
}

impl Secure {
    fn poll_read(&mut self, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.inbox.is_empty() {
            // Nothing is the end.
            ready!(self.stream.poll_fill(context, &self.pool, &mut self.inbox))?;
        }
        let count = self.inbox.len().min(into.remaining());
        into.put_slice(&self.inbox.readable()[..count]);
        self.inbox.consume(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for ProbeStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ProbeStream::Plain(stream) => Pin::new(stream).poll_read(context, into),
            ProbeStream::Secure(secure) => secure.poll_read(context, into),
        }
    }
}

impl AsyncWrite for ProbeStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ProbeStream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            ProbeStream::Secure(secure) => {
                let count = ready!(secure.stream.poll_write(context, &secure.pool, &[IoSlice::new(bytes)]))?;
                // Bytes that were taken need not have been sent, and nobody may flush before the answer is waited for.
                if let Poll::Ready(Err(error)) = secure.stream.poll_flush(context, &secure.pool) {
                    return Poll::Ready(Err(error));
                }
                Poll::Ready(Ok(count))
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ProbeStream::Plain(stream) => Pin::new(stream).poll_flush(context),
            ProbeStream::Secure(secure) => secure.stream.poll_flush(context, &secure.pool),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ProbeStream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            ProbeStream::Secure(secure) => secure.stream.poll_end(context, &secure.pool),
        }
    }
}
