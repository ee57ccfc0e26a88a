//! A server's side of HTTP/1: a connection that carries one request at a time.

use std::io::IoSlice;
use std::task::{Context, Poll, ready};

use propylon_http::fault::Fault;
use propylon_http::h1::{self, Asked, Event, Parsed, RequestBody, ResponseBody, ResponseHead};
use propylon_net::budget;
use propylon_net::buffer::{Buffer, BufferPool, LARGE_BYTES};

use super::part::{Part, RESPONSE_LIMITS, Written, bad_head};
use crate::exchange::transfer::body::Download;
use crate::exchange::transfer::splice::Splice;
use crate::exchange::transfer::stop::{Stop, server_fault};
use crate::fault::{self, Attempt, Repeatable};
use crate::services::Services;
use crate::upstream::connection::ServerConnection;

/// Bytes of a body that go out in one record with the head.
const FIRST_FLIGHT_BYTES: usize = 15 * 1024;

/// Bytes before a part of a body that the header of a frame may take (RFC 9113 §4.1).
const HEADER_BYTES: usize = 9;
/// Bytes of a body that are copied behind the head, at most.
const INLINED_BYTES_MAX: usize = 1024;

/// Framing of the request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is none, or its length was announced.
    Plain,
    Chunked,
    /// The bytes of a tunnel; their end closes the sending half.
    Tunnel,
}

pub struct Http1 {
    pub connection: Box<ServerConnection>,
    pub framing: Framing,
    /// Heads and framing on their way to the server; `piece` and then `after` follow it.
    pub outbox: Buffer,
    /// Bytes of the body at the outbox's end.
    inlined: usize,
    pub piece: Buffer,
    pub after: &'static [u8],
    /// Bytes that the server sent and nobody has taken yet.
    pub answer: Buffer,
    /// The rest of the response's body, as it is framed.
    pub download: Download,
    /// The connection cannot carry another request.
    pub spent: bool,
    /// Bytes have come behind the response.
    excess: bool,
    /// Chunks that were decoded and are not paid for yet.
    chunks: usize,
    /// Ways of the bodies past all buffers, where both sides are plaintext.
    pub up: Splice,
    pub down: Splice,
}

impl Http1 {
    /// Begins a request on a connection. The core's scratch memory has what goes out first, as `h1::write_request`
    /// writes it.
    #[inline(always)]
    pub fn new(connection: Box<ServerConnection>, core: &Services, body: RequestBody) -> Http1 {
        let mut outbox = Buffer::default();
        core.buffers.equip(&mut outbox);
        outbox.extend(&core.scratch.borrow());
        Http1 {
            connection,
            framing: if body == RequestBody::Chunked { Framing::Chunked } else { Framing::Plain },
            outbox,
            inlined: 0,
            piece: Buffer::default(),
            after: b"",
            answer: Buffer::default(),
            download: Download::Done,
            spent: false,
            excess: false,
            chunks: 0,
            up: Splice::default(),
            down: Splice::default(),
        }
    }

    /// Whether the request's body goes in chunks.
    pub fn is_chunked(&self) -> bool {
        self.framing == Framing::Chunked
    }

    /// Writes the outbox, `body` and what follows it, and flushes. Ready when nothing is left, with an error when the
    /// server takes nothing any more.
    #[inline(always)]
    pub fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        buffers: &BufferPool,
        body: &[u8],
    ) -> (Written, Poll<Result<(), ()>>) {
        let mut written = Written::default();
        loop {
            let (head, body) = (self.outbox.len(), &body[written.body..]);
            if head + body.len() + self.after.len() == 0 {
                buffers.release(&mut self.outbox);
                return (written, self.connection.stream.poll_flush(context, buffers).map_err(drop));
            }
            let slices = [IoSlice::new(self.outbox.readable()), IoSlice::new(body), IoSlice::new(self.after)];
            let slices = match (head, body.len() + self.after.len()) {
                (0, _) => &slices[1..],
                (_, 0) => &slices[..1],
                _ => &slices[..],
            };
            let Poll::Ready(result) = self.connection.stream.poll_write(context, buffers, slices) else {
                return (written, Poll::Pending);
            };
            let Some(count) = result.ok().filter(|count| *count > 0) else { return (written, Poll::Ready(Err(()))) };
            let of_head = count.min(head);
            let of_body = (count - of_head).min(body.len());
            self.outbox.consume(of_head);
            self.after = &self.after[count - of_head - of_body..];
            written.all += count;
            written.body += of_body;
        }
    }

    /// Writes what is staged.
    pub fn poll_send(&mut self, context: &mut Context<'_>, core: &Services) -> (Written, Poll<Result<(), ()>>) {
        let mut piece = std::mem::take(&mut self.piece);
        // A copy of few bytes costs less than a write of several parts.
        let is_small = piece.len() <= INLINED_BYTES_MAX && piece.len() <= self.outbox.room();
        if is_small && !self.outbox.is_empty() && self.after.is_empty() {
            self.outbox.extend(piece.readable());
            self.inlined += piece.len();
            piece.consume(piece.len());
        }
        let (mut written, sent) = self.poll_write(context, &core.buffers, piece.readable());
        piece.consume(written.body);
        if self.outbox.is_empty() {
            written.body += std::mem::take(&mut self.inlined);
        }
        if piece.is_empty() {
            core.buffers.release(&mut piece);
        } else {
            self.piece = piece;
        }
        (written, sent)
    }

    pub fn poll_head(
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
                Ok(count) if count > 0 => self.down.note_read(count),
                _ => return Poll::Ready(Err(self.unanswered(*answered))),
            }
        }
    }

    /// Takes note of the body that follows the head; false where none does.
    pub fn begin_body(&mut self, body: ResponseBody) -> bool {
        self.download = match body {
            ResponseBody::None | ResponseBody::Length(0) => Download::Done,
            ResponseBody::Length(length) => Download::Length(length),
            ResponseBody::Chunked => Download::Chunked(Box::default()),
            ResponseBody::UntilClose => Download::UntilClose,
        };
        !self.is_read()
    }

    /// Whether all of the response's body has been taken.
    pub fn is_read(&self) -> bool {
        matches!(self.download, Download::Done)
    }

    /// Takes from a body of known length what may go out with its head of `head_bytes`, and is behind it.
    pub fn take_first_flight(&mut self, head_bytes: usize) -> usize {
        let Download::Length(remaining) = &mut self.download else { return 0 };
        let here = (self.answer.len() - head_bytes).min(FIRST_FLIGHT_BYTES);
        let here = (here as u64).min(*remaining);
        *remaining -= here;
        if *remaining == 0 {
            self.download = Download::Done;
        }
        here as usize
    }

    /// The client has taken so many bytes of the body, as they came from the server.
    pub fn took(&mut self, count: usize) {
        if let Download::Length(remaining) = &mut self.download {
            *remaining -= count as u64;
            if *remaining == 0 {
                self.download = Download::Done;
            }
        }
    }

    /// Looks at what lies behind a body that was spliced to its end, as a read would have.
    pub fn settle(&mut self) {
        if let Some(socket) = self.connection.stream.plain_socket() {
            self.excess |= socket.settle();
        }
    }

    fn unanswered(&self, answered: bool) -> Stop {
        let repeatable = if answered { Repeatable::No } else { Repeatable::Unanswered };
        let fault = self.connection.stream.failure().map(|failure| fault::of_server_tls(failure.reason));
        Stop::Server(Attempt { fault: fault.unwrap_or(Fault::ClosedBeforeResponse), repeatable })
    }

    pub fn poll_part(&mut self, context: &mut Context<'_>, core: &Services, room: usize) -> Poll<Result<Part, Stop>> {
        loop {
            if self.is_read() {
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
            ready!(self.poll_room(context, &core.buffers, room));
            self.answer.indent(HEADER_BYTES);
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

    /// Makes sure that so many bytes can be read, large or wide. Ready when there is something to read, if there was no
    /// memory.
    pub fn poll_room(&mut self, context: &mut Context<'_>, buffers: &BufferPool, room: usize) -> Poll<()> {
        if self.answer.capacity() >= room {
            return Poll::Ready(());
        }
        if self.answer.capacity() == 0 {
            // An error shows again at the read.
            let _ = ready!(self.connection.stream.poll_readable(context));
        }
        match room > LARGE_BYTES {
            true => buffers.widen(&mut self.answer),
            false => buffers.enlarge(&mut self.answer),
        }
        Poll::Ready(())
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
    fn take_answer(&mut self, core: &Services) -> Buffer {
        if self.answer.sealed_len() == 0 {
            return std::mem::take(&mut self.answer);
        }
        let mut piece = core.buffers.small();
        piece.extend(self.answer.readable());
        self.answer.consume(self.answer.len());
        piece
    }

    /// Bytes have come behind the response.
    pub fn has_excess(&self) -> bool {
        self.excess || (self.is_read() && !self.answer.is_empty())
    }

    /// The connection can carry another request, as far as the server is concerned. Gives memory back.
    pub fn finish(&mut self, core: &Services) -> bool {
        let clean = !self.spent && !self.excess && self.answer.is_idle() && self.is_read();
        core.buffers.release(&mut self.outbox);
        core.buffers.release(&mut self.answer);
        self.up.release();
        self.down.release();
        clean
    }
}
