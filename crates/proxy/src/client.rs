//! The client's side of a connection: a socket with or without TLS, and the bytes on their way to it.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use propylon_tls::{Failure, Session};

use crate::buffer::{Buffer, SMALL_BYTES, Stock};
use crate::socket::Socket;

/// Plaintext that is sealed at one go; more waits until this is on its way.
pub const SEAL_BYTES_MAX: usize = 64 * 1024;

pub struct ClientStream {
    pub socket: Socket,
    pub tls: Option<Box<Session>>,
    /// The client has said that it sends no more (FIN, or close_notify).
    pub ended: bool,
    /// We have said so (close_notify).
    pub closed: bool,
}

/// Why bytes from the client could not be had.
#[derive(Debug)]
pub enum ReadError {
    Io(io::Error),
    Tls(Failure),
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> ReadError {
        ReadError::Io(error)
    }
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    Bytes,
    End,
}

impl ClientStream {
    /// Reads until `inbox` has more readable bytes or the client has ended. TLS answers (key updates, alerts) go to `wire`.
    pub fn poll_fill(
        &mut self,
        context: &mut Context<'_>,
        inbox: &mut Buffer,
        wire: &mut Buffer,
    ) -> Poll<Result<Fill, ReadError>> {
        if self.ended {
            return Poll::Ready(Ok(Fill::End));
        }
        let Some(session) = &mut self.tls else {
            let count = ready!(self.socket.poll_read(context, inbox.spare(1024)))?;
            inbox.filled(count);
            self.ended = count == 0;
            return Poll::Ready(Ok(if count == 0 { Fill::End } else { Fill::Bytes }));
        };
        loop {
            if inbox.sealed_len() > 0 {
                let opened = open(session, inbox, wire).map_err(ReadError::Tls)?;
                self.ended = opened.end;
                if opened.plain > 0 {
                    return Poll::Ready(Ok(Fill::Bytes));
                }
                if opened.end {
                    return Poll::Ready(Ok(Fill::End));
                }
            }
            let missing = SMALL_BYTES.saturating_sub(inbox.sealed_len()).max(1024);
            let room = if inbox.is_empty() { missing.min(SMALL_BYTES / 2) } else { 1024 };
            let count = ready!(self.socket.poll_read(context, inbox.sealed_spare(room)))?;
            inbox.sealed_filled(count);
            if count == 0 {
                // RFC 8446 §6.1: an end without close_notify is a truncation; whoever needs the rest will notice.
                self.ended = true;
                return Poll::Ready(Ok(Fill::End));
            }
        }
    }

    /// Puts `plain` on the wire buffer, sealed if this is a TLS connection.
    pub fn stage(&mut self, plain: &[u8], wire: &mut Buffer) {
        match &mut self.tls {
            None => wire.extend(plain),
            Some(session) => {
                for piece in plain.chunks(SEAL_BYTES_MAX) {
                    let room = session.sealed_len(piece.len());
                    let count = session.seal(piece, wire.spare(room));
                    wire.filled(count);
                }
            }
        }
    }

    /// Sends what is staged.
    pub fn poll_flush(&mut self, context: &mut Context<'_>, wire: &mut Buffer) -> Poll<io::Result<()>> {
        while !wire.is_empty() {
            let count = ready!(self.socket.poll_write(context, wire.readable()))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            wire.consume(count);
        }
        Poll::Ready(Ok(()))
    }

    /// Takes bytes of a long body from where they lie and returns how many were taken: sealed into the wire buffer, or,
    /// without TLS, written straight from there behind what is staged.
    pub fn poll_send_body(
        &mut self,
        context: &mut Context<'_>,
        wire: &mut Buffer,
        body: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.tls.is_some() {
            ready!(self.poll_flush(context, wire))?;
            let piece = &body[..body.len().min(SEAL_BYTES_MAX)];
            self.stage(piece, wire);
            return Poll::Ready(Ok(piece.len()));
        }
        loop {
            let staged = wire.len();
            let slices = [IoSlice::new(wire.readable()), IoSlice::new(body)];
            let slices = if staged == 0 { &slices[1..] } else { &slices[..] };
            let count = ready!(self.socket.poll_write_vectored(context, slices))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            wire.consume(count.min(staged));
            if count > staged {
                return Poll::Ready(Ok(count - staged));
            }
        }
    }

    /// Stages the orderly end of the TLS session, if there is one.
    pub fn stage_close(&mut self, wire: &mut Buffer) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        if let Some(session) = &mut self.tls {
            let mut alert = Vec::new();
            session.close(&mut alert);
            wire.extend(&alert);
        }
    }
}

/// Opens the records that `inbox` holds; what TLS has to say in answer goes to `wire`, also when it fails.
fn open(session: &mut Session, inbox: &mut Buffer, wire: &mut Buffer) -> Result<propylon_tls::Opened, Failure> {
    let (window, sealed) = inbox.sealed_window();
    let mut answer = Vec::new();
    let result = session.open(window, sealed, &mut answer);
    if !answer.is_empty() {
        wire.extend(&answer);
    }
    let opened = result?;
    inbox.opened(opened.consumed, opened.plain);
    Ok(opened)
}

/// Gives back what a quiet connection does not need.
pub fn rest(stock: &Stock, inbox: &mut Buffer, wire: &mut Buffer) {
    if inbox.is_idle() && inbox.capacity() > 0 {
        stock.give_back(inbox);
    }
    if wire.is_empty() && wire.capacity() > 0 {
        stock.give_back(wire);
    }
}
