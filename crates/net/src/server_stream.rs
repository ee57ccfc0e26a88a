//! The server's side of a connection: a socket with or without TLS, and how bytes get into it and out of it.
//!
//! Users of a connection to a server speak to this, never to the socket below: the bytes on the wire need not be those
//! that were written.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use propylon_crypto::{Job, Outcome};
use propylon_tls::{Step, UpstreamFacts, UpstreamFailure, UpstreamFailureReason, UpstreamHandshake, UpstreamSession};

use crate::buffer::{Buffer, BufferPool, LARGE_BYTES, READ_BYTES_MIN, SEAL_BYTES_MAX, SMALL_BYTES, WIDE_PIECE_BYTES};
use crate::socket::Socket;

/// The most plaintext in one TLS record (RFC 8446 §5.1); sealed, it fits a small buffer.
const RECORD_BYTES_MAX: usize = 16 * 1024;
/// So much that is sealed and not on its way yet is sent together with what follows; more goes first.
const JOINED_BYTES_MAX: usize = 2 * 1024;
/// Limit on sealed bytes that are not on their way: a stretch of data, and answers to a server that sends key updates
/// and reads nothing.
const WIRE_BYTES_MAX: usize = WIDE_PIECE_BYTES + SEAL_BYTES_MAX;
/// Limit on bytes that a server may send to a connection in the pool before it is given up: tickets and key updates.
const UNASKED_BYTES_MAX: usize = 16 * 1024;

pub struct ServerStream {
    socket: Socket,
    /// Absent: what is on the wire is what was written.
    tls: Option<Box<Tls>>,
}

/// A session, and what is on its way between it and the wire. Idle, it owns no buffer.
struct Tls {
    session: UpstreamSession,
    /// Sealed, to be sent.
    wire: Buffer,
    /// Bytes that came with the handshake's end.
    early: Buffer,
    /// The server has said that it sends no more (close_notify).
    ended: bool,
    /// We have said so.
    closed: bool,
    /// Why there is no more to be had from the session.
    failure: Option<UpstreamFailure>,
}

impl ServerStream {
    pub fn plain(socket: Socket) -> ServerStream {
        ServerStream { socket, tls: None }
    }

    /// Reads into `answer`, which gets memory when there is something to read and gives it up while it waits. Returns
    /// how many readable bytes came; 0 is the end that the server announced. On TLS an end that was not announced is an
    /// error, since anybody could have made it (RFC 8446 §6.1).
    pub fn poll_fill(
        &mut self,
        context: &mut Context<'_>,
        buffers: &BufferPool,
        answer: &mut Buffer,
    ) -> Poll<io::Result<usize>> {
        let ServerStream { socket, tls } = self;
        if let Some(tls) = tls {
            return tls.poll_fill(socket, context, buffers, answer);
        }
        if answer.capacity() == 0 {
            ready!(socket.poll_readable(context))?;
            buffers.equip(answer);
        }
        match socket.poll_read(context, answer.read_spare()) {
            Poll::Ready(Ok(count)) => {
                answer.filled(count);
                Poll::Ready(Ok(count))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                if answer.is_empty() {
                    buffers.release(answer);
                }
                Poll::Pending
            }
        }
    }

    /// Waits until [`ServerStream::poll_fill`] may have something, an end or an error included.
    pub fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.tls {
            Some(tls) if tls.ended || !tls.early.is_idle() => Poll::Ready(Ok(())),
            _ => self.socket.poll_readable(context),
        }
    }

    /// Takes bytes from `slices`, in order, and returns how many. They need not be on their way yet: see
    /// [`ServerStream::poll_flush`]. An error means that none of these bytes have left.
    pub fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        buffers: &BufferPool,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.tls {
            None => self.socket.poll_write_vectored(context, slices),
            Some(tls) => tls.poll_write(&mut self.socket, context, buffers, slices),
        }
    }

    /// Sends what was taken.
    pub fn poll_flush(&mut self, context: &mut Context<'_>, buffers: &BufferPool) -> Poll<io::Result<()>> {
        match &mut self.tls {
            None => Poll::Ready(Ok(())),
            Some(tls) => tls.poll_flush(&mut self.socket, context, buffers),
        }
    }

    /// Says that nothing more will be written. What the server sends can still be read.
    pub fn poll_end(&mut self, context: &mut Context<'_>, buffers: &BufferPool) -> Poll<io::Result<()>> {
        if let Some(tls) = &mut self.tls {
            tls.stage_close(buffers);
            ready!(tls.poll_flush(&mut self.socket, context, buffers))?;
        }
        Poll::Ready(self.socket.shutdown_write())
    }

    /// True when nothing has come since the last read that matters to a request: no byte, no end, no error. Asks the
    /// event loop, not the kernel.
    pub fn is_quiet(&mut self) -> bool {
        let quiet = self.socket.is_quiet();
        match &mut self.tls {
            None => quiet,
            Some(tls) => tls.is_usable() && (quiet || tls.absorb_unasked(&mut self.socket)),
        }
    }

    /// As [`ServerStream::is_quiet`], at less expense: for a connection that was quiet when it was put aside.
    pub fn is_still_quiet(&mut self) -> bool {
        let quiet = self.socket.is_still_quiet();
        match &mut self.tls {
            None => quiet,
            Some(tls) => tls.is_usable() && (quiet || tls.absorb_unasked(&mut self.socket)),
        }
    }

    /// True when the kernel has something that nobody has read: a byte, an end, an error. One system call.
    pub fn has_news(&self) -> bool {
        self.socket.has_news()
    }

    /// For a connection that has been idle for a while: frees what can be remade.
    pub fn rest(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.session.rest();
        }
    }

    /// See [`Socket::leave_event_loop`].
    pub fn leave_event_loop(&mut self) -> io::Result<()> {
        self.socket.leave_event_loop()
    }

    /// See [`Socket::reset_on_close`].
    /// As [`Socket::unacknowledged`].
    pub fn unacknowledged(&self) -> u32 {
        self.socket.unacknowledged()
    }

    pub fn reset_on_close(&self) -> io::Result<()> {
        self.socket.reset_on_close()
    }

    /// Moves the connection out; what stays behind answers with errors.
    pub fn take(&mut self) -> ServerStream {
        ServerStream { socket: self.socket.take(), tls: self.tls.take() }
    }

    /// The socket, if what is on the wire is what was written: for those who let the kernel move the bytes.
    pub fn plain_socket(&mut self) -> Option<&mut Socket> {
        self.tls.is_none().then_some(&mut self.socket)
    }

    /// Parameters that were agreed on; none in plaintext, and after a failure.
    pub fn facts(&self) -> Option<UpstreamFacts> {
        self.tls.as_ref()?.session.facts()
    }

    /// No further request is to begin here: see `UpstreamSession::is_wearing`.
    pub fn is_wearing(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.session.is_wearing())
    }

    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Why the session has come to its end before its time.
    pub fn failure(&self) -> Option<&UpstreamFailure> {
        self.tls.as_ref()?.failure.as_ref()
    }
}

/// Says goodbye, as far as the socket takes it at once (RFC 8446 §6.1).
impl Drop for ServerStream {
    fn drop(&mut self) {
        let Some(tls) = &mut self.tls else { return };
        // Behind half a record it would be read as its other half.
        if !tls.closed && tls.failure.is_none() && tls.wire.is_empty() {
            let mut alert = Vec::new();
            tls.session.close(&mut alert);
            let _ = self.socket.poll_write(&mut Context::from_waker(Waker::noop()), &alert);
        }
    }
}

impl Tls {
    fn poll_fill(
        &mut self,
        socket: &mut Socket,
        context: &mut Context<'_>,
        buffers: &BufferPool,
        answer: &mut Buffer,
    ) -> Poll<io::Result<usize>> {
        if !self.wire.is_empty() {
            // An answer to a key update, which nobody else may come to send. An error shows again at the read.
            let _ = self.poll_flush(socket, context, buffers);
        }
        if !self.early.is_idle() && answer.is_idle() {
            buffers.release(answer);
            *answer = std::mem::take(&mut self.early);
            if !answer.is_empty() {
                return Poll::Ready(Ok(answer.len()));
            }
        }
        loop {
            if answer.sealed_len() > 0 {
                let count = self.open(socket, context, buffers, answer)?;
                if count > 0 {
                    return Poll::Ready(Ok(count));
                }
            }
            if self.ended {
                return Poll::Ready(Ok(0));
            }
            if answer.capacity() == 0 {
                ready!(socket.poll_readable(context))?;
                buffers.equip(answer);
            }
            match socket.poll_read(context, answer.sealed_read_spare()) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Poll::Ready(Ok(count)) => answer.sealed_filled(count),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    if answer.is_idle() {
                        buffers.release(answer);
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    /// Opens the records that `answer` holds. Returns how many bytes of data were in them.
    fn open(
        &mut self,
        socket: &mut Socket,
        context: &mut Context<'_>,
        buffers: &BufferPool,
        answer: &mut Buffer,
    ) -> io::Result<usize> {
        let (window, sealed) = answer.sealed_window();
        let mut said = Vec::new();
        let opened = self.session.open(window, sealed, &mut said);
        if !said.is_empty() {
            if self.wire.len() + said.len() > WIRE_BYTES_MAX {
                let detail = "the server has more answers coming than it reads";
                return Err(self.fail(UpstreamFailure::new(UpstreamFailureReason::Failure, detail)));
            }
            buffers.equip_small(&mut self.wire);
            self.wire.extend(&said);
            let _ = self.poll_flush(socket, context, buffers);
        }
        let opened = opened.map_err(|failure| self.fail(failure))?;
        answer.opened(opened.consumed, opened.plain);
        self.ended |= opened.end;
        Ok(opened.plain)
    }

    fn fail(&mut self, failure: UpstreamFailure) -> io::Error {
        self.failure = Some(failure);
        io::ErrorKind::InvalidData.into()
    }

    fn poll_write(
        &mut self,
        socket: &mut Socket,
        context: &mut Context<'_>,
        buffers: &BufferPool,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.wire.len() > JOINED_BYTES_MAX {
            ready!(self.poll_flush(socket, context, buffers))?;
        }
        let whole: usize = slices.iter().map(|slice| slice.len()).sum();
        // More than a large buffer and a head comes only from a wide one, which has leave for another.
        let is_wide = whole > LARGE_BYTES + SMALL_BYTES;
        let most = if is_wide { WIDE_PIECE_BYTES } else { SEAL_BYTES_MAX };
        match whole > RECORD_BYTES_MAX {
            _ if is_wide => buffers.widen(&mut self.wire),
            true => buffers.enlarge(&mut self.wire),
            false => buffers.equip_small(&mut self.wire),
        }
        let mut taken = 0;
        for slice in slices {
            let piece = &slice[..slice.len().min(most - taken)];
            let room = self.session.sealed_len(piece.len());
            let sealed = self.session.seal(piece, self.wire.spare(room));
            if sealed == 0 && !piece.is_empty() {
                if taken > 0 {
                    break;
                }
                // The server learns that nothing follows, and may still answer what it has.
                self.stage_close(buffers);
                let _ = self.poll_flush(socket, context, buffers);
                let detail = "the keys of the session are worn out, or it is closed";
                return Poll::Ready(Err(self.fail(UpstreamFailure::new(UpstreamFailureReason::Failure, detail))));
            }
            self.wire.filled(sealed);
            taken += piece.len();
        }
        // At once: an error now means that nothing has left, and a request may go elsewhere.
        match self.poll_flush(socket, context, buffers) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(taken)),
        }
    }

    /// A wire buffer that is empty owns no memory.
    fn poll_flush(
        &mut self,
        socket: &mut Socket,
        context: &mut Context<'_>,
        buffers: &BufferPool,
    ) -> Poll<io::Result<()>> {
        while !self.wire.is_empty() {
            let count = ready!(socket.poll_write(context, self.wire.readable()))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.wire.consume(count);
        }
        buffers.release(&mut self.wire);
        Poll::Ready(Ok(()))
    }

    fn stage_close(&mut self, buffers: &BufferPool) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        let mut alert = Vec::new();
        self.session.close(&mut alert);
        buffers.equip_small(&mut self.wire);
        self.wire.extend(&alert);
    }

    /// Nothing is left over from the request before.
    fn is_usable(&self) -> bool {
        let is_over = self.ended || self.closed || self.failure.is_some() || self.session.is_wearing();
        !is_over && self.early.is_idle()
    }

    /// Something has come to a connection that waits for a request. Tickets and key updates may; true if there was
    /// nothing else.
    fn absorb_unasked(&mut self, socket: &mut Socket) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        let mut unasked = Buffer::default();
        loop {
            match socket.poll_read(&mut context, unasked.sealed_spare(READ_BYTES_MIN)) {
                Poll::Ready(Ok(count)) if count > 0 && unasked.sealed_len() + count <= UNASKED_BYTES_MAX => {
                    unasked.sealed_filled(count);
                }
                Poll::Ready(_) => return false,
                Poll::Pending => break,
            }
        }
        let (window, sealed) = unasked.sealed_window();
        let mut said = Vec::new();
        match self.session.open(window, sealed, &mut said) {
            Ok(opened) if opened.plain == 0 && !opened.end && opened.consumed == unasked.sealed_len() => {
                self.wire.extend(&said);
                loop {
                    match socket.poll_write(&mut context, self.wire.readable()) {
                        Poll::Ready(Ok(count)) if count > 0 => self.wire.consume(count),
                        Poll::Ready(Err(_)) => return false,
                        Poll::Ready(Ok(_)) | Poll::Pending => break,
                    }
                }
                if self.wire.is_empty() {
                    self.wire = Buffer::default();
                }
                true
            }
            _ => false,
        }
    }
}

/// A TLS session that is being agreed on with a server. `S` is a signature by our certificate's key while it is made.
pub struct ServerHandshake<S> {
    socket: Socket,
    handshake: UpstreamHandshake,
    /// The signature that it waits for.
    work: Option<S>,
    inbox: Buffer,
    wire: Buffer,
    /// Output of the last step, kept for its memory.
    said: Vec<u8>,
    begun: bool,
}

impl<S: Future<Output = Outcome> + Unpin> ServerHandshake<S> {
    /// With a socket that is connected.
    pub fn new(socket: Socket, handshake: UpstreamHandshake) -> Self {
        let (inbox, wire, said) = (Buffer::default(), Buffer::default(), Vec::new());
        Self { socket, handshake, work: None, inbox, wire, said, begun: false }
    }

    /// Whether it is not the server that is waited for, but somebody who signs.
    pub fn awaits_signature(&self) -> bool {
        self.work.is_some()
    }

    /// Ready when the handshake is over; what ends it may still have to be sent, and goes with the first request.
    /// `submit` has signatures made.
    pub fn poll(
        &mut self,
        context: &mut Context<'_>,
        buffers: &BufferPool,
        submit: impl Fn(Job) -> S,
    ) -> Poll<Result<ServerStream, UpstreamFailure>> {
        let greeted = self.poll_steps(context, buffers, submit);
        if greeted.is_ready() && !matches!(greeted, Poll::Ready(Ok(_))) {
            buffers.release(&mut self.inbox);
            buffers.release(&mut self.wire);
        }
        greeted
    }

    fn poll_steps(
        &mut self,
        context: &mut Context<'_>,
        buffers: &BufferPool,
        submit: impl Fn(Job) -> S,
    ) -> Poll<Result<ServerStream, UpstreamFailure>> {
        if !std::mem::replace(&mut self.begun, true) {
            self.step(None, context, buffers)?;
        }
        loop {
            // The server has its turn again when there is a signature.
            if let Some(work) = &mut self.work {
                let outcome = ready!(Pin::new(work).poll(context));
                self.work = None;
                match self.step(Some(outcome), context, buffers)? {
                    Step::Done => return Poll::Ready(self.finish(context, buffers)),
                    Step::Work => self.work = self.handshake.take_job().map(&submit),
                    _ => {}
                }
                continue;
            }
            ready!(self.poll_flush(context, buffers)).map_err(|_| UpstreamFailure::closed())?;
            buffers.equip(&mut self.inbox);
            let read = match self.socket.poll_read(context, self.inbox.spare(READ_BYTES_MIN)) {
                Poll::Ready(read) => read,
                Poll::Pending => {
                    if self.inbox.is_empty() {
                        buffers.release(&mut self.inbox);
                    }
                    return Poll::Pending;
                }
            };
            match read {
                Ok(count) if count > 0 => self.inbox.filled(count),
                _ => return Poll::Ready(Err(UpstreamFailure::closed())),
            }
            match self.step(None, context, buffers)? {
                Step::Done => return Poll::Ready(self.finish(context, buffers)),
                Step::Work => self.work = self.handshake.take_job().map(&submit),
                _ => {}
            }
        }
    }

    /// `signed`: what has come of the signature that was waited for.
    fn step(
        &mut self,
        signed: Option<Outcome>,
        context: &mut Context<'_>,
        buffers: &BufferPool,
    ) -> Result<Step, UpstreamFailure> {
        self.said.clear();
        let received = self.inbox.readable_mut();
        let stepped = match signed {
            None => self.handshake.advance(received, &mut self.said),
            Some(outcome) => self.handshake.resume(outcome, received, &mut self.said),
        };
        if !self.said.is_empty() {
            buffers.equip_small(&mut self.wire);
            self.wire.extend(&self.said);
        }
        match stepped {
            Ok((consumed, step)) => {
                self.inbox.consume(consumed);
                match self.inbox.len() > UpstreamHandshake::WANT_MAX {
                    true => Err(UpstreamFailure::closed()),
                    false => Ok(step),
                }
            }
            Err(failure) => {
                // The alert that tells the server what we did not like about it.
                let _ = self.poll_flush(context, buffers);
                Err(failure)
            }
        }
    }

    fn poll_flush(&mut self, context: &mut Context<'_>, buffers: &BufferPool) -> Poll<io::Result<()>> {
        while !self.wire.is_empty() {
            let count = ready!(self.socket.poll_write(context, self.wire.readable()))?;
            self.wire.consume(count);
        }
        buffers.release(&mut self.wire);
        Poll::Ready(Ok(()))
    }

    /// Bytes behind the handshake were taken for plain ones so far.
    fn finish(&mut self, context: &mut Context<'_>, buffers: &BufferPool) -> Result<ServerStream, UpstreamFailure> {
        let Some(session) = self.handshake.finish() else { return Err(UpstreamFailure::closed()) };
        let mut tls = Tls {
            session,
            wire: std::mem::take(&mut self.wire),
            early: Buffer::default(),
            ended: false,
            closed: false,
            failure: None,
        };
        let mut socket = self.socket.take();
        if !self.inbox.is_empty() {
            let rest = self.inbox.readable();
            tls.early = buffers.small();
            tls.early.sealed_spare(rest.len())[..rest.len()].copy_from_slice(rest);
            tls.early.sealed_filled(rest.len());
            let mut early = std::mem::take(&mut tls.early);
            if tls.open(&mut socket, context, buffers, &mut early).is_err() {
                return Err(tls.failure.take().unwrap_or_else(UpstreamFailure::closed));
            }
            match early.is_idle() {
                true => buffers.release(&mut early),
                false => tls.early = early,
            }
        }
        buffers.release(&mut self.inbox);
        Ok(ServerStream { socket, tls: Some(Box::new(tls)) })
    }
}
