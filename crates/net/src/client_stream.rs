//! The client's side of a connection: a socket with or without TLS, and the bytes on their way to it.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use propylon_tls::{Failure, FailureReason, Session};

use crate::buffer::{Buffer, BufferPool, LARGE_BYTES, SEAL_BYTES_MAX, WIDE_PIECE_BYTES};
use crate::socket::Socket;

/// The most plaintext in one TLS record (RFC 8446 §5.1); sealed, it fits a small buffer.
const RECORD_BYTES_MAX: usize = 16 * 1024;
/// Limit on the wire buffer when an answer of TLS itself is put behind it: a stretch that was sealed, and answers
/// to a client that sends key updates and reads nothing. RFC 8446 §4.6.3 has it wait for them.
const WIRE_BYTES_MAX: usize = WIDE_PIECE_BYTES + SEAL_BYTES_MAX;

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

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    Bytes,
    End,
}

impl ClientStream {
    /// Makes sure that `inbox` has memory for so many bytes, once there is something to read if it has none.
    pub fn poll_room(
        &mut self,
        context: &mut Context<'_>,
        buffers: &BufferPool,
        inbox: &mut Buffer,
        bytes: usize,
    ) -> Poll<()> {
        if inbox.capacity() < bytes && !self.ended {
            if inbox.capacity() == 0 {
                // An error shows again at the read.
                let _ = ready!(self.socket.poll_readable(context));
            }
            buffers.provide(inbox, bytes);
        }
        Poll::Ready(())
    }

    /// Reads until `inbox` has more readable bytes or the client has ended. TLS answers (key updates, alerts) go to
    /// `wire`. An inbox without memory gets some when there is something to read, and gives it up while it waits.
    pub fn poll_fill(
        &mut self,
        context: &mut Context<'_>,
        buffers: &BufferPool,
        inbox: &mut Buffer,
        wire: &mut Buffer,
    ) -> Poll<Result<Fill, ReadError>> {
        if self.ended {
            return Poll::Ready(Ok(Fill::End));
        }
        loop {
            if inbox.sealed_len() > 0 {
                let staged = wire.len();
                if let Some(fill) = self.open(inbox, wire)? {
                    return Poll::Ready(Ok(fill));
                }
                // An answer of TLS itself, and no request whose answer it could go out with. An error shows again at
                // the read.
                if wire.len() > staged {
                    let _ = self.poll_flush(context, buffers, wire);
                }
            }
            if inbox.capacity() == 0 {
                ready!(self.socket.poll_readable(context))?;
                buffers.equip(inbox);
            }
            let into = match &self.tls {
                None => inbox.read_spare(),
                Some(_) => inbox.sealed_read_spare(),
            };
            let count = match self.socket.poll_read(context, into) {
                Poll::Ready(count) => count?,
                Poll::Pending => {
                    if inbox.is_idle() {
                        buffers.release(inbox);
                    }
                    return Poll::Pending;
                }
            };
            if count == 0 {
                // On TLS an end without close_notify is a truncation (RFC 8446 §6.1); whoever needs the rest will
                // notice.
                self.ended = true;
                return Poll::Ready(Ok(Fill::End));
            }
            if self.tls.is_none() {
                inbox.filled(count);
                return Poll::Ready(Ok(Fill::Bytes));
            }
            inbox.sealed_filled(count);
        }
    }

    /// Opens the records that `inbox` holds; none if there is no whole one with data in it.
    fn open(&mut self, inbox: &mut Buffer, wire: &mut Buffer) -> Result<Option<Fill>, ReadError> {
        let Some(session) = &mut self.tls else { return Ok(None) };
        let (window, sealed) = inbox.sealed_window();
        let mut answer = Vec::new();
        let result = session.open(window, sealed, &mut answer);
        if wire.len() + answer.len() > WIRE_BYTES_MAX {
            let detail = "the client has more answers coming than it reads";
            return Err(ReadError::Tls(Failure::new(FailureReason::Flood, detail)));
        }
        if !answer.is_empty() {
            wire.extend(&answer);
        }
        let opened = result.map_err(ReadError::Tls)?;
        inbox.opened(opened.consumed, opened.plain);
        self.ended = opened.end;
        Ok(match (opened.plain, opened.end) {
            (0, false) => None,
            (0, true) => Some(Fill::End),
            _ => Some(Fill::Bytes),
        })
    }

    /// Puts `plain` on the wire buffer, sealed if this is a TLS connection. All or nothing of it, and nothing from
    /// there on, when the session's key is worn out: [`ClientStream::poll_flush`] fails then.
    pub fn stage(&mut self, plain: &[u8], buffers: &BufferPool, wire: &mut Buffer) {
        if plain.len() > LARGE_BYTES {
            buffers.equip_wide(wire);
        } else if plain.len() > RECORD_BYTES_MAX {
            buffers.equip_large(wire);
        } else {
            buffers.equip_small(wire);
        }
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

    /// Bytes that so many become on the wire, at most.
    pub fn staged_len(&self, plain_len: usize) -> usize {
        self.tls.as_ref().map_or(plain_len, |session| session.sealed_len(plain_len))
    }

    /// Half of what the session's key may seal has been sealed: nothing new is to begin here.
    pub fn is_wearing(&self) -> bool {
        self.tls.as_ref().is_some_and(|session| session.is_wearing())
    }

    /// The session's key may seal nothing more, and something was to be sealed.
    pub fn is_worn_out(&self) -> bool {
        self.tls.as_ref().is_some_and(|session| session.is_worn_out())
    }

    /// Sends what is staged. A wire buffer that is empty owns no memory. Fails when all of it is on its way and more
    /// would have been, were the session's key not worn out; not once the session's end is staged.
    pub fn poll_flush(
        &mut self,
        context: &mut Context<'_>,
        buffers: &BufferPool,
        wire: &mut Buffer,
    ) -> Poll<io::Result<()>> {
        while !wire.is_empty() {
            let count = ready!(self.socket.poll_write(context, wire.readable()))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            wire.consume(count);
        }
        buffers.release(wire);
        match self.is_worn_out() && !self.closed {
            true => Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
            false => Poll::Ready(Ok(())),
        }
    }

    /// Takes bytes of a long body from where they lie and returns how many were taken: sealed into the wire buffer, or,
    /// without TLS, written straight from there behind what is staged.
    pub fn poll_send_body(
        &mut self,
        context: &mut Context<'_>,
        buffers: &BufferPool,
        wire: &mut Buffer,
        body: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.tls.is_some() {
            ready!(self.poll_flush(context, buffers, wire))?;
            let piece = &body[..body.len().min(WIDE_PIECE_BYTES)];
            self.stage(piece, buffers, wire);
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
                buffers.release(wire);
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
            match wire.capacity() {
                0 => *wire = Buffer::exactly(&alert),
                _ => wire.extend(&alert),
            }
        }
    }
}
