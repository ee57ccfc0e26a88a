//! One request's stream: what its body brings, and what is said to its client.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::HeaderMap;
use propylon_http::h1::{Method, ResponseHead, reason_phrase};
use propylon_net::buffer::Buffer;
use propylon_net::timers::Deadline;
use propylon_observe::telemetry::Wait;

use super::h2_connection::ClientH2Connection;
use crate::answer::Answer;
use crate::http2::{Ahead, Chunk, Meter, Piece, translate};
use crate::request::{After, Request};

/// Bytes of memory that unread bodies may take on one connection, and on one core; beyond that a stream gets more to
/// say only when its client has taken all of what it got, and in small pieces.
const CONNECTION_UNREAD_BYTES_MAX: usize = 1024 * 1024;
const CORE_UNREAD_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A stream of a client's connection.
pub struct Stream {
    pub link: Rc<ClientH2Connection>,
    pub deadline: Deadline,
    /// Which of the connection's requests it is, from 1.
    pub ordinal: u32,
    pub(crate) body: RecvStream,
    pub(crate) ahead: Ahead,
    pub(crate) respond: SendResponse<Piece>,
    /// Once the response has begun.
    pub(crate) send: Option<SendStream<Piece>>,
    pub(crate) meter: Option<Rc<Meter>>,
    /// The request has, or may have, a body.
    pub(crate) uploads: bool,
    /// All that was said will go out as far as the windows go.
    pub(crate) certain: bool,
    /// Reason that the client is told when the response is broken off.
    pub abort_reason: Reason,
    /// The server has broken off: what it has said before is the client's.
    pub cut_short: bool,
}

impl Stream {
    pub fn id(&self) -> u32 {
        self.respond.stream_id().as_u32()
    }

    /// Ready when the client has reset the stream, or its connection is lost.
    pub fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.send {
            Some(send) => send.poll_reset(context).map(drop),
            None => self.respond.poll_reset(context).map(drop),
        }
    }

    /// The next piece of the request's body.
    pub fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, h2::Error>>> {
        self.ahead.poll(&mut self.body, context)
    }

    /// While nobody takes the body: what comes of it does not stay with the library.
    pub fn read_ahead(&mut self, context: &mut Context<'_>) {
        self.ahead.fill(&mut self.body, context);
    }

    pub fn poll_trailers(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<HeaderMap>, h2::Error>> {
        self.body.poll_trailers(context)
    }

    /// So many bytes of the body have gone on: the client may send as many more.
    pub fn release(&mut self, count: usize) {
        // Fails where the stream is gone, and then it does not matter.
        let _ = self.body.flow_control().release_capacity(count);
        let untaken = self.body.flow_control().used_capacity();
        self.link.note_upload(self.id(), count, untaken);
    }

    pub fn send_informational(&mut self, head: &ResponseHead, text: &[u8]) {
        if let Some(response) = translate::response(head, text, None, &mut self.link.core.headers.borrow_mut()) {
            let _ = self.respond.send_informational(response);
        }
    }

    /// False where the client is gone.
    pub fn send_head(&mut self, response: http::Response<()>, end: bool) -> bool {
        self.link.intake.borrow_mut().answers(self.id());
        self.send = self.respond.send_response(response, end).ok();
        self.send.is_some()
    }

    /// Hands a piece of the body on. False where the client is gone.
    pub fn send_piece(&mut self, chunk: Chunk, end: bool) -> bool {
        let Some(send) = &mut self.send else { return false };
        let length = chunk.len();
        let unread = Rc::clone(&self.link.unread);
        if end && self.meter.is_none() {
            send.reserve_capacity(length);
            if send.capacity() >= length {
                // The whole body, and it will go out: nobody asks how much of it has.
                let piece = Piece::unmetered(chunk, &self.link.core.services, unread);
                return send.send_data(piece, true).is_ok();
            }
        }
        let meter = self.meter.get_or_insert_default();
        if end {
            send.reserve_capacity(length);
            self.certain = meter.outstanding.get() == 0 && send.capacity() >= length;
        }
        send.send_data(Piece::new(chunk, &self.link.core.services, meter).on(unread), end).is_ok()
    }

    pub fn send_trailers(&mut self, trailers: HeaderMap) -> bool {
        let Some(send) = &mut self.send else { return false };
        self.certain = self.meter.as_ref().is_none_or(|meter| meter.outstanding.get() == 0);
        send.send_trailers(trailers).is_ok()
    }

    /// Ready when the client takes enough for another piece to be worth reading.
    pub fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &self.meter {
            None => Poll::Ready(()),
            Some(meter) if self.is_crowded() => meter.poll_empty(context),
            Some(meter) => meter.poll_room(context),
        }
    }

    /// Bodies that nobody reads take more of the connection's memory, or of the core's, than they may.
    pub fn is_crowded(&self) -> bool {
        self.link.unread.get() > CONNECTION_UNREAD_BYTES_MAX || self.link.core.unread.get() > CORE_UNREAD_BYTES_MAX
    }

    /// Bytes that the client has not taken.
    pub fn outstanding(&self) -> usize {
        self.meter.as_ref().map_or(0, |meter| meter.outstanding.get())
    }

    /// Says an answer of our own.
    pub fn answer(&mut self, request: &mut Request, answer: &Answer<'_>) {
        let core = Rc::clone(&self.link.core);
        let head_only = request.head.method == Method::Head;
        let response = translate::own_response(answer, core.date_value());
        let body = if head_only || matches!(answer.status, 204 | 304) { "" } else { answer.body };
        request.note.status = answer.status;
        request.note.bytes_sent += (translate::head_bytes(&response) + body.len()) as u64;
        log::trace!("{} {}", answer.status, reason_phrase(answer.status));
        if self.send_head(response, body.is_empty()) && !body.is_empty() {
            self.send_piece(Chunk::BufferPool(Buffer::exactly(body.as_bytes())), true);
        }
    }

    /// Waits until the client's windows have taken all staged bytes, for the listener's body timeout at most.
    pub async fn flush(&mut self) -> After {
        if self.certain {
            return After::Next;
        }
        let core = Rc::clone(&self.link.core);
        let timeout = core.snapshot().listener(&self.link.listener).timeouts.body.as_millis() as u64;
        let (mut left, mut due) = (self.outstanding(), core.timers.now() + timeout);
        poll_fn(|context| {
            if self.meter.as_ref().is_none_or(|meter| meter.poll_empty(context).is_ready()) {
                return Poll::Ready(After::Next);
            }
            if self.poll_gone(context).is_ready() {
                return Poll::Ready(After::Abort);
            }
            let now = core.timers.now();
            if self.outstanding() < left {
                (left, due) = (self.outstanding(), now + timeout);
            }
            if now >= due {
                self.abort_reason = Reason::CANCEL;
                self.link.count_timeout(Wait::ResponseBody);
                return Poll::Ready(After::Abort);
            }
            self.deadline.set(due, context.waker());
            Poll::Pending
        })
        .await
    }

    /// Breaks the response off: the client must not take it for whole.
    pub fn reset(&mut self) {
        match &mut self.send {
            Some(send) => send.send_reset(self.abort_reason),
            None => self.respond.send_reset(self.abort_reason),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.uploads {
            self.link.upload_ended();
        }
        self.link.stream_ended(self.id());
    }
}
