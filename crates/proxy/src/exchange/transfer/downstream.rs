//! The client's side of a transfer: a stream of HTTP/2, or a connection that carries one request at a time.

use std::mem::take;
use std::task::{Context, Poll, ready};

use propylon_http::fault::Fault;
use propylon_http::h1::{
    self, AnswerContext, Decoder, Event, Framing, Name, RequestBody, ResponseBody, ResponseHead, Version,
};
use propylon_http::h2;
use propylon_net::buffer::{Buffer, SMALL_BYTES};
use propylon_net::client_stream::{Fill, ReadError};

use super::copied;
use super::held::Next;
use super::upstream::part::Part;
use crate::client::connection::Connection;
use crate::client::h2_stream::Stream;
use crate::client::side::ClientSide;
use crate::exchange::response::kept_trailers;
use crate::exchange::transfer::body::{KEPT_BYTES_MAX, Upload, write_chunk};
use crate::exchange::transfer::stop::{Stop, bad_body, server_fault};
use crate::fault;
use crate::request::Request;
use crate::websocket;

/// Piece of a request's body.
pub enum Piece {
    Data(Buffer),
    /// The body is over; lines of its trailers, if it has any.
    End(Vec<u8>),
    /// The time for one has not come yet.
    Later,
}

/// A response's head, to be sent to the client.
pub struct Head<'a> {
    /// Text that the head was parsed from, and what came behind it.
    pub text: &'a [u8],
    /// So many bytes behind the head go out with it, for a client of HTTP/1.
    pub first_flight: usize,
    /// Whether a body follows.
    pub is_body: bool,
    /// Whether another request may come, for a client of HTTP/1.
    pub keep_alive: bool,
}

/// Body that a response's head has announced to its client. No other goes on, whatever the server's side brings: over
/// HTTP/1.1 it would be read as the next response (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Announced {
    /// The method or the status rules a body out.
    Nothing,
    /// Number of body bytes left.
    Length(u64),
    /// The framing of the body says where it ends.
    Open,
}

impl Announced {
    fn of(body: ResponseBody) -> Announced {
        match body {
            ResponseBody::None => Announced::Nothing,
            ResponseBody::Length(length) => Announced::Length(length),
            ResponseBody::Chunked | ResponseBody::UntilClose => Announced::Open,
        }
    }

    /// Takes so many bytes of the body, the last of it where it ends with them.
    fn take(&mut self, count: usize, ends: bool) -> Result<(), Stop> {
        let left = match self {
            Announced::Open => return Ok(()),
            Announced::Nothing => 0,
            Announced::Length(left) => *left,
        };
        let left = left.checked_sub(count as u64).ok_or(server_fault(Fault::ExcessData))?;
        if ends && left > 0 {
            return Err(server_fault(Fault::BodyCutShort));
        }
        if let Announced::Length(known) = self {
            *known = left;
        }
        Ok(())
    }
}

/// The client, and how far its request's and its response's bodies have come.
pub struct Downstream<'a> {
    pub client: ClientSide<'a>,
    /// Framing of the response for a client of HTTP/1.
    pub framing: Framing,
    announced: Announced,
    tunnel: bool,
    pieces: Pieces,
}

/// State of a response whose head the client has.
#[derive(Clone, Copy)]
pub struct Resumption {
    framing: Framing,
    announced: Announced,
}

/// Pieces of the request's body.
pub struct Pieces {
    /// Trailers are passed on.
    takes_trailers: bool,
    /// A body that was whole when the request began has been taken a copy of.
    copied: bool,
    /// Lines of the trailers behind that body. They were taken with it: a response that begins before they are asked
    /// for, while the server's windows have not taken the body, has the inbox give the body up.
    trailers: Vec<u8>,
    /// The body of a stream comes from the copy of an earlier attempt, which has taken it.
    is_repeat: bool,
}

impl Pieces {
    pub fn new(takes_trailers: bool) -> Pieces {
        Pieces { takes_trailers, copied: false, trailers: Vec::new(), is_repeat: false }
    }
}

impl<'a> Downstream<'a> {
    /// `takes_trailers`: trailers of the request are passed on.
    pub fn new(client: ClientSide<'a>, takes_trailers: bool) -> Downstream<'a> {
        let pieces = Pieces::new(takes_trailers);
        Downstream { client, framing: Framing::None, announced: Announced::Nothing, tunnel: false, pieces }
    }

    /// State of the response, for another to go on with it.
    pub fn resumption(&self) -> Resumption {
        Resumption { framing: self.framing, announced: self.announced }
    }

    /// The client of a response whose head was sent.
    pub fn resumed(client: ClientSide<'a>, Resumption { framing, announced }: Resumption) -> Downstream<'a> {
        Downstream { framing, announced, ..Downstream::new(client, false) }
    }

    pub fn poll_piece(
        &mut self,
        context: &mut Context<'_>,
        upload: &mut Upload,
        request: &mut Request,
    ) -> Poll<Result<Piece, Stop>> {
        match &mut self.client {
            ClientSide::Http2(stream) => poll_stream(stream, context, (upload, request), &mut self.pieces),
            ClientSide::Http1(connection) if self.tunnel => poll_bytes(connection, context),
            ClientSide::Http1(connection) => poll_connection(connection, context, upload, request, &mut self.pieces),
        }
    }

    /// Whether a piece of a stream's body is here.
    pub fn has_piece(&self, upload: &Upload) -> bool {
        let is_kept = upload.kept().is_some() && !self.pieces.copied;
        matches!(&self.client, ClientSide::Http2(stream) if is_kept || stream.has_data())
    }

    /// Whether pieces of the body count as received: those of a connection are counted as they are unframed, and those
    /// that are sent again were counted.
    pub fn counts_pieces(&self) -> bool {
        self.is_stream() && !self.pieces.is_repeat
    }

    /// The server has taken so many bytes of the body.
    pub fn release(&mut self, count: usize) {
        if let ClientSide::Http2(stream) = &mut self.client
            && count > 0
            && !self.pieces.is_repeat
        {
            stream.release(count);
        }
    }

    /// Notes that a response has begun, so that the request is not repeated.
    pub fn commit(&mut self, upload: &mut Upload, request: &mut Request) {
        if let (ClientSide::Http1(connection), Upload::Whole(length)) = (&mut self.client, &mut *upload) {
            connection.inbox.consume(*length);
            request.note.bytes_received += *length as u64;
            *upload = Upload::Whole(0);
        }
    }

    pub fn send_informational(&mut self, request: &mut Request, text: &[u8]) {
        match &mut self.client {
            ClientSide::Http2(stream) => {
                stream.send_informational(&request.response, text);
                request.note.count_head(request.response.length, 0);
            }
            ClientSide::Http1(connection) if request.head.version >= Version::Http11 => {
                let core = std::rc::Rc::clone(&connection.core);
                let mut scratch = core.scratch.borrow_mut();
                scratch.clear();
                h1::write_informational(&request.response, text, &mut scratch);
                request.note.count_head(scratch.len(), 0);
                connection.stream.stage(&scratch, &core.buffers, &mut connection.wire);
            }
            ClientSide::Http1(_) => {}
        }
    }

    pub fn send_head(&mut self, request: &mut Request, said: &Head<'_>) -> Result<(), Stop> {
        let Head { text, keep_alive, .. } = *said;
        let core = std::rc::Rc::clone(self.client.core());
        self.tunnel = request.response.status == 101;
        self.announced = if self.tunnel { Announced::Open } else { Announced::of(request.response.body) };
        request.note.status = request.response.status;
        match &mut self.client {
            ClientSide::Http2(stream) => {
                let head = &request.response;
                if self.tunnel {
                    request.note.status = 200;
                }
                request.note.count_head(head.length, 0);
                let mut scratch = core.lines.borrow_mut();
                let lines = request.changes_response.then_some(&request.lines[..]);
                let says_via = !request.hides_via;
                let is_sent = core.with_date(|date| {
                    stream.send_head(!said.is_body, |fields| {
                        let (head, date) = ((head, text), date.as_bytes());
                        match lines {
                            None => h2::write_response(head, date, &mut scratch, fields),
                            Some(lines) => {
                                h2::write_changed_response(head, date, (lines, says_via), &mut scratch, fields)
                            }
                        }
                    })
                });
                if is_sent { Ok(()) } else { Err(Stop::Client(Fault::ClientReset)) }
            }
            ClientSide::Http1(connection) => {
                let version = request.head.version;
                self.framing = if self.tunnel { Framing::None } else { framing(&mut request.response, version) };
                let framing = self.framing;
                let mut scratch = core.scratch.borrow_mut();
                scratch.clear();
                core.with_date(|date| {
                    let context = AnswerContext { client: version, framing, keep_alive, date: date.as_bytes() };
                    h1::write_response(&request.response, text, &context, &mut scratch);
                });
                if request.changes_response {
                    if request.hides_via {
                        h1::drop_via(&request.response, &mut scratch);
                    }
                    h1::add_lines(&mut scratch, |out| out.extend_from_slice(&request.lines));
                }
                if self.tunnel && request.response.version == Version::Http2 {
                    // The server has not seen the key: over HTTP/2 there is none (RFC 8441 §5).
                    let key = request.head.fields.value(&request.text, "Sec-WebSocket-Key").unwrap_or_default();
                    let accept = websocket::accept(key);
                    h1::add_lines(&mut scratch, |out| {
                        h1::write_line(b"Sec-WebSocket-Accept", accept.as_bytes(), out);
                    });
                }
                let length = request.response.length;
                let body = &text[length..length + said.first_flight];
                request.note.count_head(scratch.len(), body.len());
                let Connection { stream, wire, .. } = &mut **connection;
                // Sealed together they are one record; in plaintext a copy is saved.
                let is_apart = stream.tls.is_none() && scratch.len() + body.len() <= SMALL_BYTES;
                if !is_apart {
                    scratch.extend_from_slice(body);
                }
                stream.stage(&scratch, &core.buffers, wire);
                if is_apart && !body.is_empty() {
                    stream.stage(body, &core.buffers, wire);
                }
                Ok(())
            }
        }
    }

    /// Says that a tunnel's server has ended.
    pub fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let ClientSide::Http1(connection) = &mut self.client else { return Poll::Ready(Ok(())) };
        let Connection { stream, wire, core, .. } = &mut **connection;
        stream.stage_close(wire);
        ready!(stream.poll_flush(context, &core.buffers, wire)).map_err(|_| Stop::Client(fault::of_write(stream)))?;
        Poll::Ready(stream.socket.shutdown_write().map_err(|_| Stop::Client(Fault::ClientReset)))
    }

    /// Whether the end of the response is that of the connection.
    pub fn ends_connection(&self) -> bool {
        self.framing == Framing::UntilClose
    }

    /// Whether the client's side is a stream, which takes what is left of its response by itself.
    pub fn is_stream(&self) -> bool {
        matches!(self.client, ClientSide::Http2(_))
    }

    /// Ready when the client takes enough for more to be worth reading.
    pub fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        match &mut self.client {
            ClientSide::Http2(stream) => stream.poll_room(context).map(Ok),
            ClientSide::Http1(connection) => {
                let Connection { stream, wire, core, .. } = &mut **connection;
                stream.poll_flush(context, &core.buffers, wire).map_err(|_| Stop::Client(fault::of_write(stream)))
            }
        }
    }

    /// Whether the bytes that its clients have not read take more memory than they may.
    pub fn is_crowded(&self) -> bool {
        matches!(&self.client, ClientSide::Http2(stream) if stream.is_crowded())
    }

    /// Whether nothing else that its connection carries has bytes which the client has not read.
    pub fn is_alone(&self) -> bool {
        if let ClientSide::Http2(stream) = &self.client { stream.link.link.unread() == 0 } else { true }
    }

    /// Bytes of the body that are worth handing over at once.
    pub fn part_max(&self) -> usize {
        if let ClientSide::Http2(stream) = &self.client { stream.part_max() } else { usize::MAX }
    }

    /// Bytes that the client has still to take.
    pub fn outstanding(&self) -> usize {
        match &self.client {
            ClientSide::Http2(stream) => stream.outstanding(),
            ClientSide::Http1(connection) => connection.wire.len(),
        }
    }

    /// Hands a part of the body on. Returns its length.
    pub fn pass(&mut self, request: &mut Request, part: Part) -> Result<usize, Stop> {
        let Part { data, end } = part;
        let part = Part { data, end: end.map(|lines| kept_trailers(&self.client, request, lines)) };
        let length = part.data.as_ref().map_or(0, Buffer::len);
        self.announced.take(length, part.end.is_some())?;
        request.note.bytes_sent += length as u64;
        match &mut self.client {
            ClientSide::Http2(stream) => pass_stream(stream, request, part)?,
            ClientSide::Http1(connection) => pass_connection(connection, request, self.framing, part),
        }
        Ok(length)
    }
}

/// Framing for a client of HTTP/1. A body whose server of HTTP/2 announces trailers goes on in chunks, though its
/// length is known: only behind chunks can they follow (RFC 9112 §6.5).
fn framing(response: &mut ResponseHead, client: Version) -> Framing {
    if response.version == Version::Http2
        && client == Version::Http11
        && matches!(response.body, ResponseBody::Length(_))
        && response.fields.of_kind(Name::Trailer).next().is_some()
    {
        response.forget_length();
    }
    response.framing_for(client)
}

fn pass_stream(stream: &mut Stream, request: &mut Request, part: Part) -> Result<(), Stop> {
    request.note.bytes_sent += part.end.as_ref().map_or(0, Vec::len) as u64;
    match stream.send_data(part.data, part.end) {
        true => Ok(()),
        false => Err(Stop::Client(Fault::ClientReset)),
    }
}

fn pass_connection(connection: &mut Connection, request: &mut Request, framing: Framing, part: Part) {
    let core = std::rc::Rc::clone(&connection.core);
    let mut scratch = core.scratch.borrow_mut();
    scratch.clear();
    let chunked = framing == Framing::Chunked;
    if let Some(data) = &part.data {
        match chunked {
            true if data.is_empty() => {}
            true => write_chunk(data.readable(), &mut scratch),
            false => scratch.extend_from_slice(data.readable()),
        }
    }
    if let Some(lines) = part.end.filter(|_| chunked) {
        request.note.bytes_sent += lines.len() as u64;
        h1::write_last_chunk(&lines, &mut scratch);
    }
    connection.stream.stage(&scratch, &core.buffers, &mut connection.wire);
    if let Some(mut buffer) = part.data {
        core.buffers.release(&mut buffer);
    }
}

/// Whether a stream's first piece is all of its body, and small enough for a copy to be kept.
fn is_kept(piece: &Buffer, stream: &Stream) -> bool {
    piece.len() <= KEPT_BYTES_MAX && stream.is_exhausted()
}

fn poll_stream(
    stream: &mut Stream,
    context: &mut Context<'_>,
    (upload, request): (&mut Upload, &Request),
    pieces: &mut Pieces,
) -> Poll<Result<Piece, Stop>> {
    match upload {
        Upload::Stream { kept: Some(body), .. } if !pieces.copied => {
            (pieces.copied, pieces.is_repeat) = (true, true);
            return Poll::Ready(Ok(Piece::Data(Buffer::exactly(body))));
        }
        Upload::Paced(paced) => {
            return paced
                .poll_piece(context, |context, upload| poll_stream(stream, context, (upload, request), pieces));
        }
        Upload::Copied(copied) => {
            let piece = ready!(poll_stream(stream, context, (&mut copied.upload, request), pieces))?;
            copied::note(upload, &piece);
            return Poll::Ready(Ok(piece));
        }
        Upload::Held(_) => {
            // The bytes were counted, and the client was given leave for more.
            pieces.is_repeat = true;
            if let Some(piece) = ready!(poll_held(upload, context))? {
                return Poll::Ready(Ok(piece));
            }
            pieces.is_repeat = false;
            // The rest has a pace or a limit of its own.
            return poll_stream(stream, context, (upload, request), pieces);
        }
        _ => {}
    }
    match ready!(stream.poll_data(context)).map_err(Stop::Client)? {
        Some(piece) => {
            match upload {
                Upload::Stream { begun, kept, .. } => {
                    if !*begun && is_kept(&piece, stream) {
                        *kept = Some(piece.readable().into());
                        pieces.copied = true;
                    }
                    *begun = true;
                }
                Upload::LimitedStream { begun, left } => {
                    let rest = left.checked_sub(piece.len() as u64).ok_or(Stop::Client(Fault::BodyTooLong))?;
                    if !*begun && is_kept(&piece, stream) {
                        // Nothing more comes that the limit could be for.
                        *upload = Upload::Stream { empty: false, begun: true, kept: Some(piece.readable().into()) };
                        pieces.copied = true;
                        return Poll::Ready(Ok(Piece::Data(piece)));
                    }
                    (*begun, *left) = (true, rest);
                }
                _ => {}
            }
            Poll::Ready(Ok(Piece::Data(piece)))
        }
        None => {
            let lines = stream.take_trailers().filter(|_| pieces.takes_trailers && !request.drops_trailers());
            Poll::Ready(Ok(Piece::End(lines.unwrap_or_default())))
        }
    }
}

/// The next piece of a body that is held; `None` where the rest comes from the client, as the upload says from here on.
fn poll_held(upload: &mut Upload, context: &Context<'_>) -> Poll<Result<Option<Piece>, Stop>> {
    let Upload::Held(held) = upload else { return Poll::Ready(Ok(None)) };
    let next = ready!(held.borrow_mut().poll_next(context))?;
    Poll::Ready(Ok(match next {
        Next::Data(data) => Some(Piece::Data(data)),
        Next::End(trailers) => Some(Piece::End(trailers)),
        Next::Rest(rest) => {
            *upload = rest;
            None
        }
    }))
}

/// The bytes of a tunnel.
fn poll_bytes(connection: &mut Connection, context: &mut Context<'_>) -> Poll<Result<Piece, Stop>> {
    if connection.inbox.is_empty() && !ready!(poll_fill(connection, context, 0))? {
        return Poll::Ready(Ok(Piece::End(Vec::new())));
    }
    let piece = connection.core.buffers.copy(connection.inbox.readable());
    connection.inbox.consume(piece.len());
    Poll::Ready(Ok(Piece::Data(piece)))
}

/// Reads what the client sends, into memory of so many bytes at least; false at the end.
pub fn poll_fill(connection: &mut Connection, context: &mut Context<'_>, room: usize) -> Poll<Result<bool, Stop>> {
    let Connection { stream, inbox, wire, core, .. } = connection;
    ready!(stream.poll_room(context, &core.buffers, inbox, room));
    match ready!(stream.poll_fill(context, &core.buffers, inbox, wire)) {
        Ok(fill) => Poll::Ready(Ok(fill == Fill::Bytes)),
        Err(ReadError::Io(_)) => Poll::Ready(Err(Stop::Client(Fault::ClientReset))),
        Err(ReadError::Tls(failure)) => {
            connection.note_tls_failure(&failure);
            Poll::Ready(Err(Stop::Client(Fault::ClientTlsFailure)))
        }
    }
}

pub(super) fn poll_connection(
    connection: &mut Connection,
    context: &mut Context<'_>,
    upload: &mut Upload,
    request: &mut Request,
    pieces: &mut Pieces,
) -> Poll<Result<Piece, Stop>> {
    let takes_trailers = pieces.takes_trailers;
    loop {
        match upload {
            Upload::Held(_) => {
                if let Some(piece) = ready!(poll_held(upload, context))? {
                    return Poll::Ready(Ok(piece));
                }
            }
            Upload::Whole(_) if pieces.copied => return Poll::Ready(Ok(Piece::End(take(&mut pieces.trailers)))),
            Upload::Whole(length) => {
                pieces.copied = true;
                let body = &connection.inbox.readable()[..*length];
                if request.head.body != RequestBody::Chunked {
                    return Poll::Ready(Ok(Piece::Data(connection.core.buffers.copy(body))));
                }
                // Decoded once without an error when its end was looked for.
                let (data, lines) = decoded(body);
                pieces.trailers = if takes_trailers && !request.drops_trailers() { lines } else { Vec::new() };
                return Poll::Ready(Ok(Piece::Data(Buffer::exactly(&data))));
            }
            Upload::Length { remaining: 0, .. } | Upload::Stream { .. } | Upload::LimitedStream { .. } => {
                return Poll::Ready(Ok(Piece::End(Vec::new())));
            }
            Upload::Length { remaining, begun } if !connection.inbox.is_empty() => {
                let count = (connection.inbox.len() as u64).min(*remaining) as usize;
                let piece = connection.core.buffers.copy(&connection.inbox.readable()[..count]);
                connection.inbox.consume(count);
                (*remaining, *begun, request.body_begun) = (*remaining - count as u64, true, true);
                request.note.bytes_received += count as u64;
                return Poll::Ready(Ok(Piece::Data(piece)));
            }
            Upload::Chunked { decoder, begun } if !connection.inbox.is_empty() => {
                (*begun, request.body_begun) = (true, true);
                if let Some(piece) = next_chunk(connection, decoder, request, takes_trailers)? {
                    return Poll::Ready(Ok(piece));
                }
            }
            Upload::Paced(paced) => {
                return paced.poll_piece(context, |context, upload| {
                    poll_connection(connection, context, upload, request, pieces)
                });
            }
            Upload::Copied(copied) => {
                let piece = ready!(poll_connection(connection, context, &mut copied.upload, request, pieces))?;
                copied::note(upload, &piece);
                return Poll::Ready(Ok(piece));
            }
            Upload::Length { .. } | Upload::Chunked { .. } => {
                if !ready!(poll_fill(connection, context, 0))? {
                    return Poll::Ready(Err(Stop::Client(Fault::ClientClosed)));
                }
            }
        }
    }
}

fn next_chunk(
    connection: &mut Connection,
    decoder: &mut Decoder,
    request: &mut Request,
    takes_trailers: bool,
) -> Result<Option<Piece>, Stop> {
    let bytes = connection.inbox.readable();
    let (consumed, piece) = match decoder.next(bytes).map_err(bad_body)? {
        Event::NeedMore { consumed } => (consumed, None),
        Event::Data { start, end } => (end, Some(Piece::Data(connection.core.buffers.copy(&bytes[start..end])))),
        Event::End { consumed } => {
            let lines = if takes_trailers { decoder.trailers().to_vec() } else { Vec::new() };
            (consumed, Some(Piece::End(lines)))
        }
    };
    connection.inbox.consume(consumed);
    request.note.bytes_received += consumed as u64;
    Ok(piece)
}

/// Data and trailers.
pub fn decoded(body: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (mut decoder, mut at, mut data) = (Decoder::new(), 0, Vec::with_capacity(body.len()));
    while let Ok(event) = decoder.next(&body[at..]) {
        match event {
            Event::NeedMore { .. } | Event::End { .. } => break,
            Event::Data { start, end } => {
                data.extend_from_slice(&body[at + start..at + end]);
                at += end;
            }
        }
    }
    (data, decoder.trailers().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a client would get all of these pieces, the last of which ends the body.
    fn passes(body: ResponseBody, pieces: &[usize]) -> bool {
        let mut announced = Announced::of(body);
        pieces.iter().enumerate().all(|(at, count)| announced.take(*count, at + 1 == pieces.len()).is_ok())
    }

    #[test]
    fn a_client_gets_the_body_that_its_head_has_announced_and_no_other() {
        let lengths = [ResponseBody::None, ResponseBody::Length(0), ResponseBody::Length(5)];
        for (body, length) in lengths.into_iter().zip([0, 0, 5]) {
            for first in 0..7 {
                for last in 0..7 {
                    assert_eq!(passes(body, &[first, last]), first + last == length, "{body:?}: {first} and {last}");
                }
            }
        }
        assert!(passes(ResponseBody::Chunked, &[7, 0, 7]) && passes(ResponseBody::UntilClose, &[usize::MAX, 1]));
    }
}
