//! The server's side of a bridge: a connection that carries one request at a time, or one of a connection's streams.

use std::io::IoSlice;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use propylon_http::fault::Fault;
use propylon_http::h1::{
    self, Asked, ChunkHeader, Decoder, Event, Parsed, RequestBody, RequestHead, ResponseBody, ResponseHead,
};
use propylon_net::budget;
use propylon_net::buffer::{Buffer, LARGE_BYTES};

use crate::exchange::transfer::{RESPONSE_LIMITS, Stop, server_fault};
use crate::fault::{Attempt, Repeatable};
use crate::http2::{self, Ahead, Chunk, Meter, translate};
use crate::services::Services;
use crate::upstream::connection::ServerConnection;
use crate::upstream::h2_pool::{H2Connection, H2Slot, StreamPermit};

pub enum Upstream {
    Http1(Box<Http1>),
    Http2(Box<Http2>),
}

/// How the request's body goes to a server of HTTP/1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// There is none, or its length was announced.
    Plain,
    Chunked,
    /// The bytes of a tunnel; their end closes the sending half.
    Tunnel,
}

/// The response body, as a server of HTTP/1 frames it.
enum Download {
    Length(u64),
    Chunked(Box<Decoder>),
    UntilClose,
    Done,
}

/// Part of a response's body.
#[derive(Default)]
pub struct Part {
    pub data: Option<Chunk>,
    /// The body is over: lines of its trailers, if it has any.
    pub end: Option<Vec<u8>>,
}

pub struct Http1 {
    pub connection: Box<ServerConnection>,
    framing: Framing,
    /// Heads and framing on their way to the server; `piece` and then `after` follow it.
    outbox: Buffer,
    piece: Bytes,
    after: &'static [u8],
    /// Bytes that the server sent and nobody has taken yet.
    answer: Buffer,
    download: Download,
    pub spent: bool,
    /// Bytes have come behind the response.
    excess: bool,
    /// Chunks that were decoded and are not paid for yet.
    chunks: usize,
}

pub struct Http2 {
    slot: H2Slot,
    response: ResponseFuture,
    send: SendStream<http2::Piece>,
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
    ended: bool,
}

impl Upstream {
    pub fn http1(connection: Box<ServerConnection>) -> Upstream {
        Upstream::Http1(Box::new(Http1 {
            connection,
            framing: Framing::Plain,
            outbox: Buffer::default(),
            piece: Bytes::new(),
            after: b"",
            answer: Buffer::default(),
            download: Download::Done,
            spent: false,
            excess: false,
            chunks: 0,
        }))
    }

    /// Begins a request with a head as `h1::write_request` writes it. `end`: it has no body.
    pub fn begin(&mut self, core: &Services, head: &RequestHead, text: &[u8]) {
        if let Upstream::Http1(http1) = self {
            if head.body == RequestBody::Chunked {
                http1.framing = Framing::Chunked;
            }
            core.buffers.equip(&mut http1.outbox);
            http1.outbox.extend(text);
        }
    }

    /// Opens a stream for a request with such a head.
    pub fn open(permit: StreamPermit, head: &RequestHead, text: &[u8]) -> Result<Upstream, Attempt> {
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
        Ok(Upstream::Http2(Box::new(Http2 {
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
            ended: false,
        })))
    }

    /// Sends what is staged. Returns how many bytes of the body the server has taken since the last call; ready with
    /// `true` when nothing is left.
    pub fn poll_send(&mut self, context: &mut Context<'_>, core: &Rc<Services>) -> (usize, Poll<Result<(), ()>>) {
        match self {
            Upstream::Http1(http1) => http1.poll_send(context, core),
            Upstream::Http2(http2) => http2.poll_send(context, core),
        }
    }

    pub fn stage(&mut self, core: &Services, piece: Bytes) {
        match self {
            Upstream::Http1(http1) => {
                if http1.framing == Framing::Chunked && !piece.is_empty() {
                    core.buffers.equip(&mut http1.outbox);
                    http1.outbox.extend(ChunkHeader::new(piece.len()).as_bytes());
                    http1.after = b"\r\n";
                }
                http1.piece = piece;
            }
            Upstream::Http2(http2) => http2.piece = piece,
        }
    }

    /// The body is over, with these trailers.
    pub fn stage_end(&mut self, core: &Rc<Services>, trailers: &[u8]) -> Result<(), Stop> {
        match self {
            Upstream::Http1(http1) if http1.framing == Framing::Chunked => {
                let mut scratch = core.scratch.borrow_mut();
                scratch.clear();
                h1::write_last_chunk(trailers, &mut scratch);
                core.buffers.equip(&mut http1.outbox);
                http1.outbox.extend(&scratch);
            }
            Upstream::Http1(_) => {}
            // Go's server takes trailers of a stream that it has done with for an error of the connection.
            Upstream::Http2(http2) if http2.is_answered() => {}
            Upstream::Http2(http2) => {
                let sent = match trailers {
                    [] => http2.send.send_data(http2::Piece::new(Chunk::default(), core, &http2.meter), true),
                    lines => http2.send.send_trailers(translate::trailer_map(lines)),
                };
                // A server that has answered already may have closed the stream.
                let _ = sent;
            }
        }
        Ok(())
    }

    /// A tunnel's client has ended.
    pub fn poll_end(&mut self, context: &mut Context<'_>, core: &Services) -> Poll<Result<(), Stop>> {
        match self {
            Upstream::Http1(http1) if http1.framing == Framing::Tunnel => {
                let ended = ready!(http1.connection.stream.poll_end(context, &core.buffers));
                Poll::Ready(ended.map_err(|_| server_fault(Fault::WriteFailed)))
            }
            _ => Poll::Ready(Ok(())),
        }
    }

    /// The next head, an interim one or the last; its text is [`Upstream::head_text`].
    pub fn poll_head(
        &mut self,
        context: &mut Context<'_>,
        core: &Services,
        asked: Asked<'_>,
        answered: &mut bool,
        response: &mut ResponseHead,
    ) -> Poll<Result<(), Stop>> {
        match self {
            Upstream::Http1(http1) => http1.poll_head(context, core, asked, answered, response),
            Upstream::Http2(http2) => http2.poll_head(context, asked, answered, response),
        }
    }

    pub fn head_text(&self) -> &[u8] {
        match self {
            Upstream::Http1(http1) => http1.answer.readable(),
            Upstream::Http2(http2) => &http2.text,
        }
    }

    /// The head has been read; `length` is that of its text.
    pub fn skip_head(&mut self, length: usize) {
        if let Upstream::Http1(http1) = self {
            http1.answer.consume(length);
        }
    }

    /// A body follows the head as it says; false where none does.
    pub fn begin_body(&mut self, response: &ResponseHead) -> bool {
        match self {
            Upstream::Http1(http1) => {
                http1.download = match response.body {
                    ResponseBody::None | ResponseBody::Length(0) => Download::Done,
                    ResponseBody::Length(length) => Download::Length(length),
                    ResponseBody::Chunked => Download::Chunked(Box::default()),
                    ResponseBody::UntilClose => Download::UntilClose,
                };
                !matches!(http1.download, Download::Done)
            }
            Upstream::Http2(http2) => {
                http2.recv = http2.head.take().map(http::Response::into_body);
                http2.ended = http2.recv.as_ref().is_none_or(RecvStream::is_end_stream);
                // A stream that goes on makes no body for a response that may have none (RFC 9110 §6.4.1).
                !http2.ended && response.body != ResponseBody::None
            }
        }
    }

    /// The connection's bytes are something else from here on.
    pub fn begin_tunnel(&mut self) {
        match self {
            Upstream::Http1(http1) => {
                http1.framing = Framing::Tunnel;
                http1.download = Download::UntilClose;
                http1.spent = true;
            }
            Upstream::Http2(http2) => {
                http2.recv = http2.head.take().map(http::Response::into_body);
                http2.ended = false;
            }
        }
    }

    /// Next part of the body. `large`: the body is worth a large buffer.
    pub fn poll_part(&mut self, context: &mut Context<'_>, core: &Services, large: bool) -> Poll<Result<Part, Stop>> {
        match self {
            Upstream::Http1(http1) => http1.poll_part(context, core, large),
            Upstream::Http2(http2) => http2.poll_part(context),
        }
    }

    /// Reads while the client takes nothing: bytes that come do not stay with the library, in the way of others.
    pub fn read_ahead(&mut self, context: &mut Context<'_>) {
        if let Upstream::Http2(http2) = self
            && let Some(recv) = http2.recv.as_mut().filter(|_| !http2.ended)
        {
            http2.ahead.fill(recv, context);
        }
    }

    /// Reason that a client of HTTP/2 is to get for a response that was broken off: the server's own, unless that would
    /// tell the client that all is well, that its request was not processed, or how to ask us (RFC 9113 §7, §8.7).
    pub fn abort_reason(&self) -> Reason {
        let told = match self {
            Upstream::Http1(_) => None,
            Upstream::Http2(http2) => http2.reset,
        };
        match told {
            None | Some(Reason::NO_ERROR | Reason::REFUSED_STREAM | Reason::HTTP_1_1_REQUIRED) => {
                Reason::INTERNAL_ERROR
            }
            Some(reason) => reason,
        }
    }
}

impl Http1 {
    fn poll_send(&mut self, context: &mut Context<'_>, core: &Services) -> (usize, Poll<Result<(), ()>>) {
        let mut taken = 0;
        loop {
            let (head, body) = (self.outbox.len(), self.piece.len());
            if head + body + self.after.len() == 0 {
                core.buffers.give_back(&mut self.outbox);
                self.piece = Bytes::new();
                return (taken, self.connection.stream.poll_flush(context, &core.buffers).map_err(drop));
            }
            let slices = [IoSlice::new(self.outbox.readable()), IoSlice::new(&self.piece), IoSlice::new(self.after)];
            let slices = match (head, body + self.after.len()) {
                (0, _) => &slices[1..],
                (_, 0) => &slices[..1],
                _ => &slices[..],
            };
            let Poll::Ready(written) = self.connection.stream.poll_write(context, &core.buffers, slices) else {
                return (taken, Poll::Pending);
            };
            let Some(count) = written.ok().filter(|count| *count > 0) else { return (taken, Poll::Ready(Err(()))) };
            self.outbox.consume(count.min(head));
            let of_body = (count - count.min(head)).min(body);
            self.piece.advance(of_body);
            self.after = &self.after[count - count.min(head) - of_body..];
            taken += of_body;
        }
    }

    fn poll_head(
        &mut self,
        context: &mut Context<'_>,
        core: &Services,
        asked: Asked<'_>,
        answered: &mut bool,
        response: &mut ResponseHead,
    ) -> Poll<Result<(), Stop>> {
        loop {
            if !self.answer.is_empty() {
                *answered = true;
                match h1::parse_response(self.answer.readable(), asked, &RESPONSE_LIMITS, response) {
                    Ok(Parsed::Complete) => return Poll::Ready(Ok(())),
                    Ok(Parsed::Partial) => {}
                    Err(reject) => return Poll::Ready(Err(bad_head(&reject))),
                }
            }
            match ready!(self.connection.stream.poll_fill(context, &core.buffers, &mut self.answer)) {
                Ok(count) if count > 0 => {}
                _ => return Poll::Ready(Err(unanswered(*answered))),
            }
        }
    }

    fn poll_part(&mut self, context: &mut Context<'_>, core: &Services, large: bool) -> Poll<Result<Part, Stop>> {
        loop {
            if let Download::Done = self.download {
                return Poll::Ready(Ok(Part { data: None, end: Some(Vec::new()) }));
            }
            if !self.answer.is_empty() {
                let part = self.take_part(core)?;
                budget::charge_chunks(context, std::mem::take(&mut self.chunks));
                if part.data.is_some() || part.end.is_some() {
                    return Poll::Ready(Ok(part));
                }
                continue;
            }
            if large && self.answer.capacity() < LARGE_BYTES {
                if self.answer.capacity() == 0 {
                    // An error shows again at the read.
                    let _ = ready!(self.connection.stream.poll_readable(context));
                }
                core.buffers.enlarge(&mut self.answer);
            }
            match ready!(self.connection.stream.poll_fill(context, &core.buffers, &mut self.answer)) {
                Ok(0) if matches!(self.download, Download::UntilClose) => {
                    self.download = Download::Done;
                    self.spent = true;
                }
                Ok(count) if count > 0 => {}
                _ => return Poll::Ready(Err(server_fault(Fault::BodyCutShort))),
            }
        }
    }

    fn take_part(&mut self, core: &Services) -> Result<Part, Stop> {
        match &mut self.download {
            Download::Length(remaining) => {
                let here = (self.answer.len() as u64).min(*remaining);
                *remaining -= here;
                let last = *remaining == 0;
                // Bytes after the body belong to nobody.
                self.excess |= here < self.answer.len() as u64;
                self.answer.truncate(here as usize);
                if last {
                    self.download = Download::Done;
                }
                Ok(Part { data: Some(self.take_answer(core)), end: last.then(Vec::new) })
            }
            Download::Chunked(_) => self.take_chunks(core),
            Download::UntilClose | Download::Done => Ok(Part { data: Some(self.take_answer(core)), end: None }),
        }
    }

    /// Takes the framing out where the data lies.
    fn take_chunks(&mut self, core: &Services) -> Result<Part, Stop> {
        let Download::Chunked(decoder) = &mut self.download else { return Ok(Part::default()) };
        let bytes = self.answer.readable_mut();
        let (mut at, mut length, mut end) = (0, 0, None);
        while at < bytes.len() {
            match decoder.next(&bytes[at..]).map_err(|_| server_fault(Fault::BadResponse))? {
                Event::NeedMore { consumed } => at += consumed,
                Event::Data { start, end } => {
                    bytes.copy_within(at + start..at + end, length);
                    self.chunks += 1;
                    length += end - start;
                    at += end;
                }
                Event::End { consumed } => {
                    at += consumed;
                    end = Some(decoder.trailers().to_vec());
                    break;
                }
            }
        }
        self.excess |= at < bytes.len();
        self.answer.truncate(length);
        if end.is_some() {
            self.download = Download::Done;
        }
        if length == 0 {
            self.answer.consume(0);
        }
        Ok(Part { data: (length > 0).then(|| self.take_answer(core)), end })
    }

    /// Takes the readable bytes of the answer; the others stay.
    fn take_answer(&mut self, core: &Services) -> Chunk {
        if self.answer.sealed_len() == 0 {
            return Chunk::BufferPool(std::mem::take(&mut self.answer));
        }
        let mut piece = core.buffers.small();
        piece.extend(self.answer.readable());
        self.answer.consume(self.answer.len());
        Chunk::BufferPool(piece)
    }

    /// Bytes have come behind the response.
    pub fn has_excess(&self) -> bool {
        self.excess || (matches!(self.download, Download::Done) && !self.answer.is_empty())
    }

    /// The connection can carry another request, as far as the server is concerned. Gives memory back.
    pub fn finish(&mut self, core: &Services) -> bool {
        let clean = !self.spent && !self.excess && self.answer.is_idle() && matches!(self.download, Download::Done);
        core.buffers.give_back(&mut self.outbox);
        core.buffers.give_back(&mut self.answer);
        clean
    }
}

impl Http2 {
    /// Hands the piece to the library as far as the server's windows go. A piece is not reserved room for before it is
    /// there: windows that one stream reserves the others cannot have.
    fn poll_send(&mut self, context: &mut Context<'_>, core: &Rc<Services>) -> (usize, Poll<Result<(), ()>>) {
        let mut taken = 0;
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
            if self.send.send_data(http2::Piece::new(part, core, &self.meter), false).is_err() {
                return (taken, Poll::Ready(Err(())));
            }
            taken += count;
        }
        (taken, Poll::Ready(Ok(())))
    }

    fn poll_head(
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
        match ready!(std::pin::Pin::new(&mut self.response).poll(context)) {
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

    fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<Result<Part, Stop>> {
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

fn bad_head(reject: &h1::Reject) -> Stop {
    Stop::Server(Attempt::of_bad_head(reject))
}

/// Whether a server that resets a stream with such a code speaks of the request, and not of itself. gRPC's servers say
/// CANCEL when a deadline of the client's is over.
fn is_about_request(reason: Reason) -> bool {
    matches!(reason, Reason::PROTOCOL_ERROR | Reason::CANCEL | Reason::ENHANCE_YOUR_CALM | Reason::HTTP_1_1_REQUIRED)
}

fn unanswered(answered: bool) -> Stop {
    let repeatable = if answered { Repeatable::No } else { Repeatable::Unanswered };
    Stop::Server(Attempt::new(Fault::ClosedBeforeResponse, repeatable))
}
