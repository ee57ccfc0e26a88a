//! A server's side of HTTP/2: one of a connection's streams.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use propylon_http::fault::Fault;
use propylon_http::h1::{Asked, RequestBody, RequestHead, ResponseBody, ResponseHead};
use propylon_http::h2::hpack::BlockWriter;
use propylon_http::h2::{Reason, Reset, ResponseReader};
use propylon_net::buffer::Buffer;
use propylon_sys::Address;

use super::part::{Part, RESPONSE_LIMITS, Written, bad_head};
use crate::client::h2_connection::ClientH2Connection;
use crate::exchange::transfer::stop::{Stop, server_fault};
use crate::fault::{Attempt, Repeatable};
use crate::http2::Link;
use crate::services::{ReceivedHead, STREAM_WINDOW_BYTES_MAX, Services, WIDE_WINDOW_BYTES};
use crate::upstream::h2_pool::{H2Connection, H2Slot, StreamPermit};

/// Bytes by which windows of servers' streams may be wider than at first for one client's connection.
const CLIENT_WIDENED_BYTES_MAX: u64 = 384 * 1024;

pub struct Http2 {
    slot: H2Slot,
    id: u32,
    /// The part of the body that is staged.
    piece: Option<Buffer>,
    /// Bytes of the part before it that were handed over, as long as the server's windows have not taken all of them.
    handed: usize,
    /// Each way of a tunnel ends by itself.
    tunnel: bool,
    /// The head that came last.
    head: Option<Box<ReceivedHead>>,
    /// The final head has been read.
    is_answered: bool,
    /// A stream's reset, for the client to hear of.
    pub reset: Option<Reason>,
    /// The response may have no body, whether the stream has ended or not.
    bodiless: bool,
    /// Share of memory of a window that was widened.
    widened: Option<Widened>,
    ended: bool,
}

impl Http2 {
    /// Opens a stream for a request with such a head, of which `write` writes the fields.
    pub fn open(
        permit: StreamPermit,
        head: &RequestHead,
        write: impl FnOnce(&mut BlockWriter<'_>, bool),
    ) -> Result<Http2, Attempt> {
        let link = &permit.slot.link;
        let tunnel = head.upgrade.is_some();
        if tunnel && !link.speaks_websocket() {
            return Err(Attempt::new(Fault::NoExtendedConnect, Repeatable::No));
        }
        let end = !tunnel && matches!(head.body, RequestBody::None | RequestBody::Length(0));
        let (closed, is_tls) =
            (if link.has_answered() { Fault::Goaway } else { Fault::ClosedBeforeResponse }, link.is_tls);
        let opened = permit.open(end, |fields| write(fields, is_tls));
        let (slot, id) = opened.ok_or(Attempt::new(closed, Repeatable::Unsent))?;
        Ok(Http2 {
            slot,
            id,
            piece: None,
            handed: 0,
            tunnel,
            head: None,
            is_answered: false,
            reset: None,
            bodiless: false,
            widened: None,
            ended: false,
        })
    }

    fn link(&self) -> &Link {
        &self.slot.link.link
    }

    fn connection(&self) -> &H2Connection {
        &self.slot.link
    }

    pub fn peer(&self) -> Address {
        self.connection().peer()
    }

    pub fn stage(&mut self, piece: Buffer) {
        self.piece = Some(piece);
    }

    /// Sends the end of the body, with these trailers.
    pub fn send_end(&mut self, trailers: &[u8]) {
        // Go's server takes trailers of a stream that it has done with for an error of the connection. One that has
        // answered already may have closed the stream.
        if !self.has_ended() {
            self.link().send_data(self.id, None, Some(trailers.to_vec()));
        }
    }

    pub fn head_text(&self) -> &[u8] {
        self.head.as_ref().map_or(b"", |head| &head.text)
    }

    /// Takes note of the body that follows the head; false where none does.
    pub fn begin_body(&mut self, body: ResponseBody) -> bool {
        // A stream that goes on makes no body for a response that may have none (RFC 9110 §6.4.1).
        self.bodiless = body == ResponseBody::None;
        match body {
            ResponseBody::None => self.link().expect(self.id, 0),
            ResponseBody::Length(length) => self.link().expect(self.id, length),
            ResponseBody::Chunked | ResponseBody::UntilClose => {}
        }
        self.ended = self.link().is_exhausted(self.id);
        !self.is_read()
    }

    /// Whether nothing more is to come of the response's body.
    pub fn is_read(&self) -> bool {
        self.ended || self.bodiless
    }

    /// Whether a part of the body is here already.
    pub fn has_part(&self) -> bool {
        self.is_read() || self.link().has_received(self.id)
    }

    /// Whether the end of the body is here, and nothing before it.
    pub fn has_end(&self) -> bool {
        self.link().has_end(self.id)
    }

    /// Widens the stream's window once, when its client has taken the first bytes of a body that is longer than the
    /// window. `client`: its connection, where it speaks HTTP/2.
    pub fn widen(&mut self, client: Option<&Rc<ClientH2Connection>>, passed: u64) {
        if self.widened.is_none() && !self.is_read() && passed * 2 >= u64::from(STREAM_WINDOW_BYTES_MAX) {
            self.widened = Widened::take(&self.link().services, client);
            if self.widened.is_some() {
                self.link().set_window(self.id, WIDE_WINDOW_BYTES);
            }
        }
    }

    pub fn begin_tunnel(&mut self) {
        (self.ended, self.bodiless) = (false, false);
    }

    /// Hands the piece over. Ready when the server's windows have taken all of it: until then its client is not to send
    /// more.
    pub fn poll_send(&mut self, context: &mut Context<'_>) -> (Written, Poll<Result<(), ()>>) {
        let nothing = Written::default();
        if let Some(piece) = self.piece.take() {
            self.handed = piece.len();
            if self.has_ended() || !self.link().send_data(self.id, Some(piece), None) {
                return (nothing, Poll::Ready(Err(())));
            }
        }
        if self.handed == 0 {
            return (nothing, Poll::Ready(Ok(())));
        }
        let is_taken = self.link().pending(self.id) == 0 && self.link().reset_of(self.id).is_none();
        if !is_taken {
            if self.has_ended() {
                return (nothing, Poll::Ready(Err(())));
            }
            if self.link().poll_empty(self.id, context).is_pending() {
                return (nothing, Poll::Pending);
            }
        }
        let count = std::mem::take(&mut self.handed);
        (Written { all: count, body: count }, Poll::Ready(Ok(())))
    }

    pub fn poll_head(
        &mut self,
        context: &mut Context<'_>,
        asked: Asked<'_>,
        answered: &mut bool,
        response: &mut ResponseHead,
    ) -> Poll<Result<(), Stop>> {
        self.drop_head();
        ready!(self.link().poll_received(self.id, context));
        if let Some(head) = self.link().take_head(self.id) {
            *answered = true;
            return Poll::Ready(self.read_head(head, asked, response));
        }
        let reset = self.link().reset_of(self.id).unwrap_or(Reset::ConnectionLost);
        Poll::Ready(Err(self.fault(reset, *answered)))
    }

    fn read_head(
        &mut self,
        mut head: Box<ReceivedHead>,
        asked: Asked<'_>,
        response: &mut ResponseHead,
    ) -> Result<(), Stop> {
        let mut reader = ResponseReader::default();
        response.clear();
        for field in &head.fields {
            reader.field(&head.text, *field, asked, response);
        }
        let whole = match head.end {
            true => Some(0),
            false => self.link().whole_body(self.id).map(|bytes| bytes as u64),
        };
        let read = match head.flaw {
            Some(_) => Err(server_fault(Fault::BadResponse)),
            None => reader
                .finish(&mut head.text, asked, (whole, RESPONSE_LIMITS.headers), response)
                .map_err(|reject| bad_head(&reject)),
        };
        // Nothing of a response has gone on that is known to be too short or too long.
        let read = match (read, whole, response.body) {
            (Ok(()), Some(whole), ResponseBody::Length(length)) if whole != length => {
                Err(server_fault(if whole < length { Fault::BodyCutShort } else { Fault::ExcessData }))
            }
            (read, ..) => read,
        };
        if read.is_err() {
            self.link().reset(self.id, Reason::PROTOCOL_ERROR);
            self.ended = true;
        }
        self.is_answered = !response.is_informational();
        self.head = Some(head);
        read
    }

    fn drop_head(&mut self) {
        if let Some(head) = self.head.take() {
            self.link().services.heads.give_back(head);
        }
    }

    /// Reads the next part of the body, of so many bytes at most.
    pub fn poll_part(&mut self, context: &mut Context<'_>, most: usize) -> Poll<Result<Part, Stop>> {
        if self.ended {
            return Poll::Ready(Ok(Part { data: None, end: Some(Vec::new()) }));
        }
        match ready!(self.link().poll_data(self.id, most, context)) {
            Ok(Some(data)) => {
                // The client has room for it: whoever asks has looked.
                self.link().release(self.id, data.len());
                self.ended = self.link().is_exhausted(self.id);
                let end = self.ended.then(Vec::new);
                Poll::Ready(Ok(Part { data: Some(data), end }))
            }
            Ok(None) => {
                self.ended = true;
                let lines = self.link().take_trailers(self.id);
                Poll::Ready(Ok(Part { data: None, end: Some(lines.unwrap_or_default()) }))
            }
            Err(reset) => Poll::Ready(Err(self.fault(reset, true))),
        }
    }

    /// The server has ended the stream, and so has all that it wants of the request.
    fn has_ended(&self) -> bool {
        !self.tunnel && self.link().has_ended(self.id)
    }

    /// The server's stream has not ended.
    pub fn is_open(&self) -> bool {
        !self.ended
    }

    /// Polls for the end of the stream of a response that may have no body. Ready with false where data came instead.
    pub fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        loop {
            match ready!(self.link().poll_data(self.id, usize::MAX, context)) {
                Ok(Some(mut data)) => self.link().services.buffers.release(&mut data),
                Ok(None) => {
                    self.ended = true;
                    return Poll::Ready(true);
                }
                Err(reset) => {
                    self.ended = true;
                    return Poll::Ready(!matches!(reset, Reset::ForError(_)));
                }
            }
        }
    }

    /// Fault of the request that the end of its stream means (RFC 9113 §8.7).
    fn fault(&mut self, why: Reset, answered: bool) -> Stop {
        self.ended = true;
        let is_of_use = self.connection().has_answered();
        // A server that has sent an interim response has looked at the request all the same.
        let is_awaited = !self.is_answered;
        let (fault, repeatable) = match (why, answered) {
            // Streams above the last that the server has looked at end so, whatever GOAWAY's code: they may be treated
            // as if they had never been begun (RFC 9113 §6.8).
            (Reset::Unprocessed(_), _) => {
                self.connection().close();
                let passed_over_as = if is_of_use { Fault::Goaway } else { Fault::StreamRefused };
                let repeatable = match answered {
                    false => Repeatable::Unsent,
                    true if is_awaited => Repeatable::Unanswered,
                    true => Repeatable::No,
                };
                (passed_over_as, repeatable)
            }
            (Reset::ConnectionLost, _) => {
                self.connection().close();
                self.lost(is_of_use, answered)
            }
            (Reset::ByPeer(Reason::REFUSED_STREAM), false) => (Fault::StreamRefused, Repeatable::Unsent),
            (Reset::ByPeer(Reason::REFUSED_STREAM), true) if is_awaited => {
                (Fault::StreamRefused, Repeatable::Unanswered)
            }
            (Reset::ByPeer(reason), _) => {
                self.reset = Some(reason);
                (if is_about_request(reason) { Fault::RequestReset } else { Fault::StreamReset }, Repeatable::No)
            }
            // A response of this stream that breaks a rule is malformed (RFC 9113 §8.1.1).
            (Reset::ForError(_) | Reset::ByUs(_), _) => (Fault::BadResponse, Repeatable::No),
        };
        Stop::Server(Attempt::new(fault, repeatable))
    }

    /// Fault of a request whose connection has ended.
    fn lost(&self, is_of_use: bool, answered: bool) -> (Fault, Repeatable) {
        // Streams that end with the connection of a server that has said GOAWAY with an error: nobody knows what has
        // become of them.
        let is_cut_off = self.connection().has_failed() && is_of_use;
        match (answered, is_cut_off) {
            (true, true) => (Fault::Goaway, Repeatable::No),
            (false, true) => (Fault::Goaway, Repeatable::Unanswered),
            // Behind an interim response: the final one is still owed.
            (true, false) if !self.is_answered => (Fault::ClosedBeforeResponse, Repeatable::No),
            (true, false) => (Fault::BodyCutShort, Repeatable::No),
            (false, false) => (Fault::ClosedBeforeResponse, Repeatable::Unanswered),
        }
    }
}

/// Share of memory of a window that was widened, among those of its core and of the client's connection.
struct Widened {
    services: Rc<Services>,
    client: Option<Rc<ClientH2Connection>>,
}

impl Widened {
    const BYTES: u64 = (WIDE_WINDOW_BYTES - STREAM_WINDOW_BYTES_MAX) as u64;

    /// `None` where there is no room for it.
    fn take(services: &Rc<Services>, client: Option<&Rc<ClientH2Connection>>) -> Option<Widened> {
        let has_room =
            |client: &Rc<ClientH2Connection>| client.widened.get() + Widened::BYTES <= CLIENT_WIDENED_BYTES_MAX;
        if !client.is_none_or(has_room) || !services.windows.widen(Widened::BYTES) {
            return None;
        }
        if let Some(client) = client {
            client.widened.set(client.widened.get() + Widened::BYTES);
        }
        Some(Widened { services: Rc::clone(services), client: client.map(Rc::clone) })
    }
}

impl Drop for Widened {
    fn drop(&mut self) {
        self.services.windows.narrow(Widened::BYTES);
        if let Some(client) = &self.client {
            client.widened.set(client.widened.get() - Widened::BYTES);
        }
    }
}

/// A request that is given up is given up at the server as well.
impl Drop for Http2 {
    fn drop(&mut self) {
        self.drop_head();
        self.link().forget(self.id);
    }
}

/// Whether a server that resets a stream with such a code speaks of the request, and not of itself. gRPC's servers say
/// CANCEL when a deadline of the client's is over.
fn is_about_request(reason: Reason) -> bool {
    matches!(reason, Reason::PROTOCOL_ERROR | Reason::CANCEL | Reason::ENHANCE_YOUR_CALM | Reason::HTTP_1_1_REQUIRED)
}
