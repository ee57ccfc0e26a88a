//! One request's stream: what its body brings, and what is said to its client.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use propylon_http::fault::Fault;
use propylon_http::h1::{Method, RequestBody, ResponseHead, reason_phrase};
use propylon_http::h2::hpack::BlockWriter;
use propylon_http::h2::{self, Reason, Reset};
use propylon_net::buffer::Buffer;
use propylon_net::timers::Deadline;
use propylon_observe::telemetry::Wait;

use super::h2_connection::ClientH2Connection;
use crate::answer::Answer;
use crate::request::{After, Request};

/// Bytes of memory that unread bodies may take on one connection, and on one core; beyond that a stream gets more to
/// say only when its client would take it at once, and in small pieces.
const CONNECTION_UNREAD_BYTES_MAX: usize = 256 * 1024;
const CORE_UNREAD_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Windows' worth of a body that have gone on to its server before a wider one is opened.
const WINDOWS_PER_WIDENING: u64 = 4;
/// Bytes by which windows may be wider than at first on one core: so much more may have to be held for servers that do
/// not take the uploads. Beyond that uploads go on with the windows that they have.
const CORE_WIDENED_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// A stream of a client's connection.
pub struct Stream {
    pub link: Rc<ClientH2Connection>,
    pub id: u32,
    pub deadline: Deadline,
    /// Which of the connection's requests it is, from 1.
    pub ordinal: u32,
    /// Window of the stream in bytes, where the request has, or may have, a body.
    pub(crate) upload: Option<UploadWindow>,
    /// Reason that the client is told when the response is broken off.
    pub abort_reason: Reason,
    /// The server has broken off: what it has said before is the client's.
    pub cut_short: bool,
}

/// Window in which a client may send ahead of its server.
pub(crate) struct UploadWindow {
    /// In bytes: at first, and now.
    first: u32,
    now: u32,
    /// Bytes that have gone on since it was opened.
    taken: u64,
}

impl Stream {
    /// `window`: with which the stream has begun, in bytes.
    pub(crate) fn new(link: Rc<ClientH2Connection>, id: u32, (ordinal, uploads): (u32, bool), window: u32) -> Stream {
        if uploads {
            link.upload_began();
        }
        Stream {
            deadline: link.core.timers.deadline(),
            id,
            ordinal,
            upload: uploads.then_some(UploadWindow { first: window, now: window, taken: 0 }),
            abort_reason: Reason::INTERNAL_ERROR,
            cut_short: false,
            link,
        }
    }

    /// Ready when the client has reset the stream, or its connection is lost.
    pub fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.link.link.poll_reset(self.id, context).map(drop)
    }

    /// Whether bytes of the request's body are here.
    pub fn has_data(&self) -> bool {
        self.link.link.has_data(self.id)
    }

    /// Framing of the request's body for a server of HTTP/1: its length, where all of it is here, or was `kept` of an
    /// earlier attempt.
    pub fn framing(&self, body: RequestBody, kept: Option<&[u8]>) -> RequestBody {
        match kept.map(<[u8]>::len).or_else(|| self.link.link.whole_body(self.id)) {
            Some(length) if body == RequestBody::Chunked => RequestBody::Length(length as u64),
            _ => body,
        }
    }

    /// Ready when all of the request's body has come, or as much as the client may send ahead; whether it is whole.
    /// Trailers of one that is are dropped, for whoever can say its length and no more (RFC 9110 §6.5.1).
    pub fn poll_whole(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let window = self.upload.as_ref().map_or(0, |window| window.now as usize);
        ready!(self.link.link.poll_whole(self.id, window, context));
        drop(self.take_trailers());
        Poll::Ready(self.link.link.whole_body(self.id).is_some())
    }

    /// Whether all of the request's body, and no trailers, has come and was taken.
    pub fn is_exhausted(&self) -> bool {
        self.link.link.is_exhausted(self.id)
    }

    /// The next piece of the request's body; `None` behind the last.
    ///
    /// # Errors
    /// The client has reset the stream, or broken a rule.
    pub fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Buffer>, Fault>> {
        self.poll_some(usize::MAX, context)
    }

    /// As [`Stream::poll_data`], in so many bytes at most.
    ///
    /// # Errors
    /// The same.
    pub fn poll_some(&mut self, most: usize, context: &mut Context<'_>) -> Poll<Result<Option<Buffer>, Fault>> {
        self.link.link.poll_data(self.id, most, context).map_err(|reset| match reset {
            Reset::ForError(_) => Fault::BadBody,
            _ => Fault::ClientReset,
        })
    }

    /// Lines of the request's trailers, once its body is over.
    pub fn take_trailers(&mut self) -> Option<Vec<u8>> {
        self.link.link.take_trailers(self.id)
    }

    /// So many bytes of the body have gone on: the client may send as many more.
    pub fn release(&mut self, count: usize) {
        self.link.link.release(self.id, count);
        self.link.count_untaken();
        self.widen(count);
    }

    /// Long bodies get wider windows: once four windows have gone on to servers, twice as much.
    fn widen(&mut self, count: usize) {
        let Some(window) = &mut self.upload else { return };
        window.taken += count as u64;
        let (widened, limits) = (&self.link.core.widened, &self.link.limits);
        let wider = window.now.saturating_mul(2).min(limits.window_max);
        let more = u64::from(wider.saturating_sub(window.now));
        let is_due = window.taken >= u64::from(window.now) * WINDOWS_PER_WIDENING && more > 0;
        if !is_due || widened.get() + more > CORE_WIDENED_BYTES_MAX || self.link.core.uploads.is_crowded() {
            return;
        }
        widened.set(widened.get() + more);
        (window.now, window.taken) = (wider, 0);
        self.link.link.set_window(self.id, wider);
    }

    pub fn send_informational(&mut self, head: &ResponseHead, text: &[u8]) {
        self.link.link.send_head(self.id, (false, false), |fields| h2::write_informational(head, text, fields));
    }

    /// Sends the response's head, of which `write` writes the fields. False where the client is gone.
    pub fn send_head(&mut self, end: bool, write: impl FnOnce(&mut BlockWriter<'_>)) -> bool {
        self.link.link.send_head(self.id, (true, end), write)
    }

    /// Hands a piece of the body on, the last if there are lines of trailers, even none of them. False where the client
    /// is gone.
    pub fn send_data(&mut self, data: Option<Buffer>, end: Option<Vec<u8>>) -> bool {
        self.link.link.send_data(self.id, data, end)
    }

    /// Ready when the client takes enough for another piece to be worth reading.
    pub fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self.is_crowded() {
            true => self.link.link.poll_window(self.id, context),
            false => self.link.link.poll_room(self.id, context),
        }
    }

    /// Bytes that are worth handing over at once.
    pub fn part_max(&self) -> usize {
        if self.is_crowded() { self.link.link.room(self.id).max(1) } else { usize::MAX }
    }

    /// Bodies that nobody reads take more of the connection's memory, or of the core's, than they may.
    pub fn is_crowded(&self) -> bool {
        self.link.link.unread() > CONNECTION_UNREAD_BYTES_MAX || self.link.core.unread.get() > CORE_UNREAD_BYTES_MAX
    }

    /// Bytes that the client has not taken.
    pub fn outstanding(&self) -> usize {
        self.link.link.pending(self.id)
    }

    /// Says an answer of our own.
    pub fn answer(&mut self, request: &mut Request, answer: &Answer<'_>) {
        let core = Rc::clone(&self.link.core);
        let head_only = request.head.method == Method::Head;
        let body = if head_only || matches!(answer.status, 204 | 304) { b"" } else { answer.body };
        request.note.status = answer.status;
        log::trace!("{} {}", answer.status, reason_phrase(answer.status));
        let mut written = 0;
        let is_sent = core.with_date(|date| {
            self.send_head(body.is_empty(), |fields| {
                written = crate::answer::write_fields(answer, date.as_bytes(), fields);
            })
        });
        request.note.count_head(written, body.len());
        if is_sent && !body.is_empty() {
            self.send_data(Some(Buffer::exactly(body)), Some(Vec::new()));
        }
    }

    /// Waits until the client's windows have taken all that was handed over, for the listener's body timeout at most.
    pub async fn flush(&mut self) -> After {
        let core = Rc::clone(&self.link.core);
        if self.outstanding() == 0 {
            return After::Next;
        }
        let timeout = core.snapshot().listener(&self.link.listener).timeouts.body.as_millis() as u64;
        let (mut left, mut due) = (self.outstanding(), core.timers.now() + timeout);
        poll_fn(|context| {
            if self.poll_gone(context).is_ready() {
                return Poll::Ready(After::Abort);
            }
            if self.link.link.poll_empty(self.id, context).is_ready() {
                return Poll::Ready(After::Next);
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
        self.link.link.reset(self.id, self.abort_reason);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(window) = &self.upload {
            let widened = &self.link.core.widened;
            widened.set(widened.get() - u64::from(window.now - window.first));
            self.link.upload_ended();
        }
        self.link.link.forget(self.id);
        self.link.stream_ended();
    }
}
