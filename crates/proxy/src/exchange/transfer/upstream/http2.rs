//! A server's side of HTTP/2: one of a connection's streams.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use propylon_http::fault::Fault;
use propylon_http::h1::{self, Asked, Decoder, Parsed, RequestBody, RequestHead, ResponseBody, ResponseHead};

use super::part::{Part, RESPONSE_LIMITS, Written, bad_head};
use crate::exchange::transfer::stop::{Stop, server_fault};
use crate::fault::{Attempt, Repeatable};
use crate::http2::{Ahead, Chunk, Meter, Piece, translate};
use crate::services::Services;
use crate::upstream::h2_pool::{H2Connection, H2Slot, StreamPermit};

pub struct Http2 {
    slot: H2Slot,
    response: ResponseFuture,
    send: SendStream<Piece>,
    /// The part of the body that is staged.
    piece: Bytes,
    meter: Rc<Meter>,
    /// Each way of a tunnel ends by itself.
    tunnel: bool,
    recv: Option<RecvStream>,
    ahead: Ahead,
    /// The head that came last, as HTTP/1 would have written it.
    text: Vec<u8>,
    /// The library's response, until its text is read.
    head: Option<http::Response<RecvStream>>,
    /// A stream's reset, for the client to hear of.
    pub reset: Option<Reason>,
    /// The response may have no body, whether the stream has ended or not.
    bodiless: bool,
    ended: bool,
}

impl Http2 {
    /// Opens a stream for a request with such a head.
    pub fn open(permit: StreamPermit, head: &RequestHead, text: &[u8]) -> Result<Http2, Attempt> {
        let link = &permit.slot.link;
        let tunnel = head.upgrade.is_some();
        if tunnel && !link.speaks_websocket() {
            return Err(Attempt::new(Fault::NoExtendedConnect, Repeatable::No));
        }
        let no = Attempt::new(Fault::BadRequestForHttp2, Repeatable::No);
        let request = translate::server_request(text, tunnel, link.is_tls).ok_or(no)?;
        let end = !tunnel && matches!(head.body, RequestBody::None | RequestBody::Length(0));
        let closed = if link.has_answered() { Fault::Goaway } else { Fault::ClosedBeforeResponse };
        let (slot, response, send) = permit.open(request, end).map_err(|_| Attempt::new(closed, Repeatable::Unsent))?;
        Ok(Http2 {
            slot,
            response,
            send,
            piece: Bytes::new(),
            meter: Rc::default(),
            tunnel,
            recv: None,
            ahead: Ahead::default(),
            text: Vec::new(),
            head: None,
            reset: None,
            bodiless: false,
            ended: false,
        })
    }

    pub fn stage(&mut self, piece: Bytes) {
        self.piece = piece;
    }

    /// Sends the end of the body, with these trailers.
    pub fn send_end(&mut self, core: &Rc<Services>, trailers: &[u8]) {
        // Go's server takes trailers of a stream that it has done with for an error of the connection.
        if self.is_answered() {
            return;
        }
        let sent = match trailers {
            [] => self.send.send_data(Piece::new(Chunk::default(), core, &self.meter), true),
            lines => self.send.send_trailers(translate::trailer_map(lines)),
        };
        // A server that has answered already may have closed the stream.
        let _ = sent;
    }

    pub fn head_text(&self) -> &[u8] {
        &self.text
    }

    /// Takes the body that follows the head; false where none does.
    pub fn begin_body(&mut self, body: ResponseBody) -> bool {
        self.recv = self.head.take().map(http::Response::into_body);
        self.ended = self.recv.as_ref().is_none_or(RecvStream::is_end_stream);
        // A stream that goes on makes no body for a response that may have none (RFC 9110 §6.4.1).
        self.bodiless = body == ResponseBody::None;
        !self.is_read()
    }

    /// Whether nothing more is to come of the response's body.
    pub fn is_read(&self) -> bool {
        self.ended || self.bodiless
    }

    pub fn begin_tunnel(&mut self) {
        self.recv = self.head.take().map(http::Response::into_body);
        self.ended = false;
    }

    pub fn read_ahead(&mut self, context: &mut Context<'_>) {
        if let Some(recv) = self.recv.as_mut().filter(|_| !self.ended) {
            self.ahead.fill(recv, context);
        }
    }

    /// Hands the piece to the library as far as the server's windows go. A piece is not reserved room for before it is
    /// there: windows that one stream reserves the others cannot have.
    pub fn poll_send(&mut self, context: &mut Context<'_>, core: &Rc<Services>) -> (Written, Poll<Result<(), ()>>) {
        let mut taken = Written::default();
        while !self.piece.is_empty() {
            if self.is_answered() {
                return (taken, Poll::Ready(Err(())));
            }
            if self.meter.poll_room(context).is_pending() {
                return (taken, Poll::Pending);
            }
            self.send.reserve_capacity(self.piece.len());
            let room = match self.send.capacity() {
                0 => match self.send.poll_capacity(context) {
                    Poll::Pending => return (taken, Poll::Pending),
                    Poll::Ready(Some(Ok(room))) => room,
                    Poll::Ready(_) => return (taken, Poll::Ready(Err(()))),
                },
                room => room,
            };
            let count = room.min(self.piece.len());
            let part = Chunk::Shared(self.piece.split_to(count));
            if self.send.send_data(Piece::new(part, core, &self.meter), false).is_err() {
                return (taken, Poll::Ready(Err(())));
            }
            taken.all += count;
            taken.body += count;
        }
        (taken, Poll::Ready(Ok(())))
    }

    pub fn poll_head(
        &mut self,
        context: &mut Context<'_>,
        asked: Asked<'_>,
        answered: &mut bool,
        response: &mut ResponseHead,
    ) -> Poll<Result<(), Stop>> {
        self.text.clear();
        if let Poll::Ready(Some(Ok(interim))) = self.response.poll_informational(context) {
            *answered = true;
            return Poll::Ready(self.read_head(&interim, asked, true, response));
        }
        match ready!(Pin::new(&mut self.response).poll(context)) {
            Ok(head) => {
                *answered = true;
                let ended = head.body().is_end_stream();
                let read = self.read_head(&head, asked, ended, response);
                self.head = Some(head);
                Poll::Ready(read)
            }
            Err(error) => Poll::Ready(Err(self.fault(&error, *answered))),
        }
    }

    fn read_head<T>(
        &mut self,
        head: &http::Response<T>,
        asked: Asked<'_>,
        ended: bool,
        response: &mut ResponseHead,
    ) -> Result<(), Stop> {
        let fault = || server_fault(Fault::BadResponse);
        translate::write_response(head, asked, ended, &mut self.text).map_err(|_| fault())?;
        match h1::parse_response(&self.text, asked, &RESPONSE_LIMITS, response) {
            Ok(Parsed::Complete) => {}
            Ok(Parsed::Partial) => return Err(fault()),
            Err(reject) => return Err(bad_head(&reject)),
        }
        response.version = h1::Version::Http2;
        Ok(())
    }

    pub fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<Result<Part, Stop>> {
        let Some(recv) = self.recv.as_mut().filter(|_| !self.ended) else {
            return Poll::Ready(Ok(Part { data: None, end: Some(Vec::new()) }));
        };
        loop {
            match ready!(self.ahead.poll(recv, context)) {
                Some(Ok(data)) => {
                    // The client has room for it: whoever asks has looked.
                    let _ = recv.flow_control().release_capacity(data.len());
                    let ended = self.ahead.is_empty() && recv.is_end_stream();
                    if data.is_empty() && !ended {
                        continue;
                    }
                    self.ended = ended;
                    let end = self.ended.then(Vec::new);
                    let data = (!data.is_empty()).then_some(Chunk::Shared(data));
                    return Poll::Ready(Ok(Part { data, end }));
                }
                Some(Err(error)) => return Poll::Ready(Err(self.fault(&error, true))),
                None => break,
            }
        }
        match ready!(recv.poll_trailers(context)) {
            Ok(trailers) => {
                self.ended = true;
                let lines = trailers.map(|trailers| translate::trailer_lines(&trailers, Decoder::new()));
                Poll::Ready(Ok(Part { data: None, end: Some(lines.unwrap_or_default()) }))
            }
            Err(error) => Poll::Ready(Err(self.fault(&error, true))),
        }
    }

    fn link(&self) -> &H2Connection {
        &self.slot.link
    }

    /// The server has ended the stream, and so has all that it wants of the request.
    fn is_answered(&self) -> bool {
        !self.tunnel && self.link().has_ended(&self.send)
    }

    /// The server's stream has not ended.
    pub fn is_open(&self) -> bool {
        !self.ended
    }

    /// Polls for the end of the stream of a response that may have no body. Ready with false when data comes instead,
    /// or a frame that the library refuses: after an answer to HEAD the library looks by itself.
    pub fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let Some(recv) = self.recv.as_mut() else { return Poll::Ready(true) };
        let fine = loop {
            match ready!(self.ahead.poll(recv, context)) {
                Some(Ok(data)) if data.is_empty() => {}
                Some(Ok(_)) => {
                    self.send.send_reset(Reason::PROTOCOL_ERROR);
                    break false;
                }
                Some(Err(error)) => break !error.is_library(),
                None => break true,
            }
        };
        self.ended = true;
        Poll::Ready(fine)
    }

    /// Fault of the request that an error of the stream means (RFC 9113 §8.7).
    fn fault(&mut self, error: &h2::Error, answered: bool) -> Stop {
        self.reset = error.reason().filter(|_| error.is_reset() && error.is_remote());
        let refused = error.is_remote() && error.reason() == Some(Reason::REFUSED_STREAM);
        // Streams above the last that the server has looked at end so, whatever GOAWAY's code: they may be treated as
        // if they had never been begun (RFC 9113 §6.8).
        let passed_over = error.is_go_away() && error.is_remote();
        let is_of_use = self.link().has_answered();
        // Streams below it end with the connection, and nobody knows what has become of them.
        let cut_off = error.is_io() && self.link().has_failed() && is_of_use;
        if error.is_go_away() || error.is_io() {
            self.link().close();
        }
        let reset = if self.reset.is_some_and(is_about_request) { Fault::RequestReset } else { Fault::StreamReset };
        let passed_over_as = if is_of_use { Fault::Goaway } else { Fault::StreamRefused };
        let (fault, repeatable) = match (refused || passed_over, answered) {
            (true, false) if passed_over => (passed_over_as, Repeatable::Unsent),
            (true, false) => (Fault::StreamRefused, Repeatable::Unsent),
            // A server that has sent an interim response has looked at it all the same.
            (true, true) if passed_over && self.recv.is_none() => (passed_over_as, Repeatable::Unanswered),
            (_, true) if cut_off => (Fault::Goaway, Repeatable::No),
            (_, false) if cut_off => (Fault::Goaway, Repeatable::Unanswered),
            // A response of this stream that the library does not take is malformed (RFC 9113 §8.1.1).
            _ if error.is_reset() && error.is_library() => (Fault::BadResponse, Repeatable::No),
            // Behind an interim response: the final one is still owed.
            (_, true) if error.is_io() && self.recv.is_none() => (Fault::ClosedBeforeResponse, Repeatable::No),
            (_, true) => (if error.is_io() { Fault::BodyCutShort } else { reset }, Repeatable::No),
            (_, false) if error.is_reset() => (reset, Repeatable::No),
            (_, false) => (Fault::ClosedBeforeResponse, Repeatable::Unanswered),
        };
        Stop::Server(Attempt::new(fault, repeatable))
    }
}

/// A request that is given up is given up at the server as well.
impl Drop for Http2 {
    fn drop(&mut self) {
        if !self.ended {
            self.send.send_reset(Reason::CANCEL);
        }
        self.link().forget(&self.send);
    }
}
/// Whether a server that resets a stream with such a code speaks of the request, and not of itself. gRPC's servers say
/// CANCEL when a deadline of the client's is over.
fn is_about_request(reason: Reason) -> bool {
    matches!(reason, Reason::PROTOCOL_ERROR | Reason::CANCEL | Reason::ENHANCE_YOUR_CALM | Reason::HTTP_1_1_REQUIRED)
}
