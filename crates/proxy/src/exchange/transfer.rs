//! One request to a server and its response back, both ways at once, with back-pressure.
//!
//! A response may begin (and end) before the request has been sent whole, so each direction is a little state machine
//! and one poll drives both. Bodies pass through in pieces of a buffer's size; neither side is read faster than the
//! other takes.

mod body;

use std::future::poll_fn;
use std::io::IoSlice;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use propylon_http::fault::Fault;
use propylon_policy::min_rate_timeout::MinRateTimeout;

use crate::client::connection::Connection;
use crate::client::side::ClientSide;
use crate::core::Core;
use crate::exchange::answers::answer_fault;
use crate::exchange::heads::{cookie_line, write_request_head};
use crate::fault::{self, Attempt, Repeatable};
use crate::request::{After, Request};
use crate::snapshot::CoreSnapshot;
use crate::upstream::backend::Backend;
use crate::upstream::closing;
use crate::upstream::connect::{give_back, log_tls_failure};
use crate::upstream::connection::{Permit, ServerConnection};
use crate::upstream::in_flight::InFlight;

use body::{Download, Rechunked, rechunk, write_whole_chunked};
pub use body::{Upload, write_chunk};
use propylon_http::h1::{self, AnswerContext, Decoder, Event, Framing, Parsed, RequestBody, ResponseBody, Version};
use propylon_net::budget;
use propylon_net::buffer::{Buffer, LARGE_BYTES};
use propylon_net::client_stream::{Fill, ReadError};
use propylon_observe::telemetry::Wait;

/// A body at least this long is moved in large pieces from its start.
pub const LONG_BODY_BYTES: u64 = 48 * 1024;
/// Bytes of a body that go out in one record with the head.
const FIRST_FLIGHT_BYTES: usize = 15 * 1024;
/// Bytes taken from a small buffer at one go, so that what they become fits a small buffer too.
pub const PIECE_BYTES: usize = 16 * 1024;
/// A server's head may be this long, and have this many fields.
pub const RESPONSE_LIMITS: h1::Limits = h1::Limits { head_bytes: 32 * 1024, headers: 200 };
/// Interim responses (1xx) to one request; a server that sends more is taken to be broken.
pub const INFORMATIONAL_MAX: u32 = 16;

/// How a transfer came to its end.
pub enum Ended {
    Over(After),
    /// The server said 101: the bytes are no longer HTTP.
    Switched(Box<Switched>),
    /// No byte of a final response has gone to the client: the attempt may be repeated, or answered with its status.
    /// The permit of its connection, which is closed, can be used for another to the same server.
    Failed(Attempt, Option<Permit>),
}

/// A connection to a server that is a tunnel now, and what it has sent already.
pub struct Switched {
    pub server: Box<ServerConnection>,
    pub answer: Buffer,
}

/// Why a direction stopped.
pub enum Stop {
    Server(Attempt),
    Client(Fault),
}

/// The side that is being waited for, and since when.
#[derive(Clone, Copy)]
pub struct Waiting {
    pub side: Side,
    /// Milliseconds on the core's clock.
    pub since: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

pub struct Transfer<'a> {
    connection: &'a mut Connection,
    request: &'a mut Request,
    upload: &'a mut Upload,
    core: Rc<Core>,
    server: Box<ServerConnection>,
    /// The response is long: it is moved in large pieces.
    long: bool,
    /// The server's connection cannot carry another request.
    server_spent: bool,
    /// On its way to the server.
    outbox: Buffer,
    /// Bytes that the server sent and nobody has taken yet.
    answer: Buffer,
    /// The request has been sent whole.
    sent: bool,
    /// At least one byte has been sent.
    sent_any: bool,
    /// At least one byte of a response has come.
    answered: bool,
    informational: u32,
    download: Download,
    framing: Framing,
    /// The response's head has not said that the connection ends.
    keeps: bool,
    upload_wait: Option<Waiting>,
    download_wait: Option<Waiting>,
    upload_patience: MinRateTimeout,
    download_patience: MinRateTimeout,
    limits: ServerLimits,
    /// The upload has spent the last poll's budget: in this one the download comes first.
    download_first: bool,
    turn: Option<&'a InFlight>,
    /// When the last of the request went out, if that was later than the rest.
    sent_at: Option<Instant>,
    /// Lines for the response's head.
    cookie: Option<&'a [u8]>,
}

#[derive(Clone, Copy)]
struct ServerLimits {
    first_byte: u64,
    body: u64,
}

impl<'a> Transfer<'a> {
    /// Sends the request and relays the response.
    pub async fn run(
        connection: &'a mut Connection,
        request: &'a mut Request,
        snapshot: &'a CoreSnapshot,
        backend: &'a Rc<Backend>,
        opened: Box<ServerConnection>,
        upload: &'a mut Upload,
        turn: Option<&'a InFlight>,
    ) -> Ended {
        let core = Rc::clone(&connection.core);
        let last = backend.state.pool.is_last_request(&opened);
        let mut transfer = Transfer::new(connection, request, snapshot, backend, opened, upload, turn);
        transfer.write_head(snapshot, last);
        let head_began = Instant::now();
        let ended = match poll_fn(|context| transfer.poll_head(context)).await {
            Err(stop) => transfer.fail(stop),
            Ok(()) => {
                let micros = head_began.elapsed().as_micros() as u64;
                transfer.request.note.first_byte_us = Some(micros);
                core.metrics.observe(backend.metrics().first_byte_duration, micros);
                transfer.note_answer(micros);
                transfer.relay().await
            }
        };
        transfer.return_to_pool(ended, backend)
    }

    fn new(
        connection: &'a mut Connection,
        request: &'a mut Request,
        snapshot: &'a CoreSnapshot,
        backend: &'a Rc<Backend>,
        opened: Box<ServerConnection>,
        upload: &'a mut Upload,
        turn: Option<&'a InFlight>,
    ) -> Transfer<'a> {
        let core = Rc::clone(&connection.core);
        let listener = snapshot.listener(connection.listener);
        let timeouts = backend.config().timeouts;
        let patience = MinRateTimeout::new(listener.timeouts.body, listener.limits.body_rate_min);
        request.response.clear();
        let cookie = cookie_line(&ClientSide::Http1(connection), request, backend);
        if let Upload::Length { remaining, .. } = upload
            && *remaining >= LONG_BODY_BYTES
            && connection.inbox.capacity() > 0
        {
            core.buffers.enlarge(&mut connection.inbox);
        }
        Transfer {
            outbox: Buffer::default(),
            answer: Buffer::default(),
            connection,
            request,
            upload,
            core,
            server: opened,
            long: false,
            server_spent: false,
            sent: false,
            sent_any: false,
            answered: false,
            informational: 0,
            download: Download::Done,
            framing: Framing::None,
            keeps: true,
            upload_wait: None,
            download_wait: None,
            upload_patience: patience,
            download_patience: patience,
            download_first: false,
            turn,
            sent_at: None,
            cookie,
            limits: ServerLimits {
                first_byte: timeouts.first_byte.as_millis() as u64,
                body: timeouts.body.as_millis() as u64,
            },
        }
    }

    /// Puts the head for the server, and a body that is here already, into the outbox.
    fn write_head(&mut self, snapshot: &CoreSnapshot, last: bool) {
        let mut scratch = self.core.scratch.borrow_mut();
        scratch.clear();
        write_request_head(&ClientSide::Http1(self.connection), self.request, snapshot, last, &mut scratch);
        let head = &self.request.head;
        let listener = snapshot.listener(self.connection.listener);
        if let Upload::Whole(length) = self.upload {
            let body = &self.connection.inbox.readable()[..*length];
            match head.body {
                RequestBody::Chunked => write_whole_chunked(body, listener, &mut scratch),
                _ => scratch.extend_from_slice(body),
            }
        }
        self.core.buffers.equip(&mut self.outbox);
        self.outbox.extend(&scratch);
    }

    /// Both directions until the response's head is complete.
    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let upload_first = !std::mem::take(&mut self.download_first);
        if upload_first {
            self.poll_upload(context)?;
            self.download_first = budget::is_spent();
        }
        if let Poll::Ready(result) = self.poll_response_head(context) {
            return Poll::Ready(result);
        }
        if !upload_first {
            self.poll_upload(context)?;
        }
        self.poll_limits(context)
    }

    /// Moves the request on. An error of the server is kept to itself here: it may have answered before it closed,
    /// and its answer is worth more than our complaint.
    fn poll_upload(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        if self.sent {
            return Ok(());
        }
        match self.poll_request(context) {
            Poll::Pending => Ok(()),
            Poll::Ready(Ok(())) => {
                self.request_sent();
                Ok(())
            }
            Poll::Ready(Err(Stop::Server(_))) if self.sent_any => {
                self.request_sent();
                self.server_spent = true;
                Ok(())
            }
            Poll::Ready(Err(stop)) => Err(stop),
        }
    }

    fn request_sent(&mut self) {
        self.sent = true;
        self.sent_at = (!self.upload.is_whole()).then(Instant::now);
        if let Some(turn) = self.turn {
            turn.sent();
        }
        self.upload_wait = None;
        // The wait for the response's first byte begins now.
        self.download_wait = None;
    }

    /// How long a client took to send its request is not the server's doing.
    fn note_answer(&self, micros: u64) {
        let since_sent = self.sent_at.map(|sent| sent.elapsed().as_micros() as u64);
        if let Some(turn) = self.turn {
            turn.answered(self.request.response.status, since_sent.unwrap_or(micros));
        }
    }

    fn poll_request(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        loop {
            ready!(self.poll_outbox(context))?;
            match self.upload {
                Upload::Whole(_) | Upload::Length { remaining: 0, .. } => return Poll::Ready(Ok(())),
                Upload::Chunked { decoder, .. } if decoder.is_done() => return Poll::Ready(Ok(())),
                Upload::Chunked { .. } if !self.connection.inbox.is_empty() => {
                    self.rechunk_request(context)?;
                    if !self.outbox.is_empty() {
                        continue;
                    }
                }
                _ => {}
            }
            if matches!(self.upload, Upload::Chunked { decoder, .. } if decoder.is_done()) {
                continue;
            }
            ready!(self.poll_client_body(context))?;
        }
    }

    /// Sends the outbox, and of a body of known length what is in the inbox, straight from there.
    fn poll_outbox(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        loop {
            let head = self.outbox.len();
            let direct = match self.upload {
                Upload::Length { remaining, .. } => (self.connection.inbox.len() as u64).min(*remaining) as usize,
                _ => 0,
            };
            if head + direct == 0 {
                self.core.buffers.give_back(&mut self.outbox);
                return self.poll_server_flush(context);
            }
            let slices =
                [IoSlice::new(self.outbox.readable()), IoSlice::new(&self.connection.inbox.readable()[..direct])];
            let slices = match (head, direct) {
                (0, _) => &slices[1..],
                (_, 0) => &slices[..1],
                _ => &slices[..],
            };
            let written = match self.server.stream.poll_write(context, &self.core.buffers, slices) {
                Poll::Ready(written) => written,
                Poll::Pending => return self.stall(context),
            };
            let count = match written {
                Ok(count) if count > 0 => count,
                _ => return Poll::Ready(Err(self.write_failed())),
            };
            self.upload_wait = None;
            self.sent_any = true;
            self.outbox.consume(count.min(head));
            if count > head
                && let Upload::Length { remaining, begun } = self.upload
            {
                *begun = true;
                self.request.body_begun = true;
                *remaining -= (count - head) as u64;
                self.connection.inbox.consume(count - head);
                self.request.note.bytes_received += (count - head) as u64;
            }
        }
    }

    /// Sends what the stream has taken.
    fn poll_server_flush(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        match self.server.stream.poll_flush(context, &self.core.buffers) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
            Poll::Ready(Err(_)) => Poll::Ready(Err(self.write_failed())),
            Poll::Pending => self.stall(context),
        }
    }

    /// Waits while the server takes nothing more of the request: the client is not read, and its end ends the wait.
    fn stall(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        wait_for(&mut self.upload_wait, Side::Server, &self.core);
        self.connection.poll_gone(context).map(|why| Err(Stop::Client(why)))
    }

    fn write_failed(&self) -> Stop {
        let repeatable = if self.sent_any { Repeatable::Unanswered } else { Repeatable::Unsent };
        Stop::Server(Attempt::new(Fault::WriteFailed, repeatable))
    }

    /// Decodes what the inbox has of a chunked body and frames it anew in the outbox.
    fn rechunk_request(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        let Upload::Chunked { decoder, begun } = self.upload else { return Ok(()) };
        *begun = true;
        self.request.body_begun = true;
        let mut scratch = self.core.scratch.borrow_mut();
        scratch.clear();
        let inbox = &mut self.connection.inbox;
        let rechunked = rechunk(decoder, inbox.readable(), &mut scratch);
        let Rechunked { consumed, chunks } = rechunked.map_err(|_| Stop::Client(Fault::BadBody))?;
        budget::charge_chunks(context, chunks);
        inbox.consume(consumed);
        self.request.note.bytes_received += consumed as u64;
        self.core.buffers.equip(&mut self.outbox);
        self.outbox.extend(&scratch);
        Ok(())
    }

    fn poll_client_body(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let connection = &mut *self.connection;
        let before = connection.inbox.len();
        let Poll::Ready(filled) =
            connection.stream.poll_fill(context, &self.core.buffers, &mut connection.inbox, &mut connection.wire)
        else {
            // A response may be waiting for these to go first (a key update's answer).
            wait_for(&mut self.upload_wait, Side::Client, &self.core);
            return Poll::Pending;
        };
        match filled {
            Ok(Fill::Bytes) => {
                let count = connection.inbox.len() - before;
                progressed(&mut self.upload_wait, &mut self.upload_patience, count, &self.core);
                Poll::Ready(Ok(()))
            }
            Ok(Fill::End) => Poll::Ready(Err(Stop::Client(Fault::ClientClosed))),
            Err(ReadError::Io(_)) => Poll::Ready(Err(Stop::Client(Fault::ClientReset))),
            Err(ReadError::Tls(failure)) => {
                connection.note_tls_failure(&failure);
                Poll::Ready(Err(Stop::Client(Fault::ClientTlsFailure)))
            }
        }
    }

    fn poll_response_head(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        loop {
            if !self.answer.is_empty() {
                self.answered = true;
                let asked = self.request.head.asked(&self.request.text);
                match h1::parse_response(self.answer.readable(), asked, &RESPONSE_LIMITS, &mut self.request.response) {
                    Ok(Parsed::Complete) if self.request.response.is_informational() => {
                        self.pass_informational()?;
                        continue;
                    }
                    Ok(Parsed::Complete) => return Poll::Ready(Ok(())),
                    Ok(Parsed::Partial) => {}
                    Err(reject) => return Poll::Ready(Err(Stop::Server(Attempt::of_bad_head(&reject)))),
                }
            }
            if !self.connection.wire.is_empty() && self.informational > 0 {
                let connection = &mut *self.connection;
                if let Poll::Ready(Err(_)) =
                    connection.stream.poll_flush(context, &self.core.buffers, &mut connection.wire)
                {
                    return Poll::Ready(Err(Stop::Client(fault::of_write(&connection.stream))));
                }
            }
            match self.server.stream.poll_fill(context, &self.core.buffers, &mut self.answer) {
                Poll::Pending => {
                    wait_for(&mut self.download_wait, Side::Server, &self.core);
                    return self.rest(context);
                }
                Poll::Ready(Ok(count)) if count > 0 => {}
                Poll::Ready(_) => {
                    let repeatable = if self.answered { Repeatable::No } else { Repeatable::Unanswered };
                    let fault = self.server.stream.failure().map(|failure| Fault::of_server_tls(failure.reason));
                    let fault = fault.unwrap_or(Fault::ClosedBeforeResponse);
                    return Poll::Ready(Err(Stop::Server(Attempt { fault, repeatable })));
                }
            }
        }
    }

    /// Hands an interim response (RFC 9110 §15.2) on to a client that can read it.
    fn pass_informational(&mut self) -> Result<(), Stop> {
        self.informational += 1;
        if self.informational > INFORMATIONAL_MAX {
            return Err(server_fault(Fault::BadResponse));
        }
        let length = self.request.response.length;
        if self.request.head.version == Version::Http11 {
            let mut scratch = self.core.scratch.borrow_mut();
            scratch.clear();
            h1::write_informational(&self.request.response, self.answer.readable(), &mut scratch);
            self.request.note.bytes_sent += scratch.len() as u64;
            self.connection.stream.stage(&scratch, &self.core.buffers, &mut self.connection.wire);
        }
        self.answer.consume(length);
        self.request.response.clear();
        Ok(())
    }

    /// Relays a response whose head is complete.
    async fn relay(&mut self) -> Ended {
        if self.request.response.status == 101 {
            return self.switch();
        }
        self.write_response_head();
        match poll_fn(|context| self.poll_body(context)).await {
            Ok(()) => Ended::Over(self.over()),
            Err(stop) => self.fail(stop),
        }
    }

    fn switch(&mut self) -> Ended {
        self.stage_head(Framing::None, true, 0);
        let answer = std::mem::take(&mut self.answer);
        let server = Box::new(ServerConnection {
            stream: self.server.stream.take(),
            permit: self.server.permit.take(),
            ..*self.server
        });
        Ended::Switched(Box::new(Switched { server, answer }))
    }

    fn write_response_head(&mut self) {
        let response = &self.request.response;
        self.framing = response.framing_for(self.request.head.version);
        self.download = match response.body {
            ResponseBody::None => Download::Done,
            ResponseBody::Length(0) => Download::Done,
            ResponseBody::Length(length) => Download::Length(length),
            ResponseBody::Chunked => Download::Chunked(Box::new(Decoder::new())),
            ResponseBody::UntilClose => Download::UntilClose,
        };
        if let Upload::Whole(length) = self.upload {
            // Nothing will be repeated now.
            self.connection.inbox.consume(*length);
            self.request.note.bytes_received += *length as u64;
            *self.upload = Upload::Whole(0);
        }
        // The rest of the request is not waited for, and its end is not known (RFC 9112 §9.6). Nor can be told whether
        // a client sends a body that waits for 100 when it gets this response instead.
        let stays = !self.core.is_leaving(self.connection.listener);
        self.keeps = self.request.head.keep_alive && self.upload.is_read() && stays;
        let first = match self.download {
            Download::Length(remaining) => {
                let here = self.answer.len() - self.request.response.length;
                (here as u64).min(remaining).min(FIRST_FLIGHT_BYTES as u64) as usize
            }
            _ => 0,
        };
        if matches!(self.download, Download::Length(remaining) if remaining >= LONG_BODY_BYTES) {
            self.long = true;
        }
        self.stage_head(self.framing, self.keeps, first);
        if let Download::Length(remaining) = &mut self.download {
            *remaining -= first as u64;
            if *remaining == 0 {
                self.download = Download::Done;
            }
        }
    }

    /// Stages the head for the client and the first `body` bytes behind it, as one.
    fn stage_head(&mut self, framing: Framing, keep_alive: bool, body: usize) {
        let core = Rc::clone(&self.core);
        let mut scratch = core.scratch.borrow_mut();
        scratch.clear();
        let response = &self.request.response;
        let client = self.request.head.version;
        core.with_date(|date| {
            let context = AnswerContext { client, framing, keep_alive, date: date.as_bytes() };
            h1::write_response(response, self.answer.readable(), &context, &mut scratch);
        });
        if let Some(cookie) = self.cookie {
            h1::add_lines(&mut scratch, |out| out.extend_from_slice(cookie));
        }
        let length = response.length;
        scratch.extend_from_slice(&self.answer.readable()[length..length + body]);
        self.answer.consume(length + body);
        self.request.note.status = response.status;
        self.request.note.bytes_sent += scratch.len() as u64;
        self.connection.stream.stage(&scratch, &self.core.buffers, &mut self.connection.wire);
    }

    /// While the server is waited for: a request that waits owns no buffer, and a client that is gone ends the wait.
    fn rest(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let connection = &mut *self.connection;
        if connection.inbox.is_idle() {
            self.core.buffers.give_back(&mut connection.inbox);
        }
        match self.sent {
            true => connection.poll_gone(context).map(|why| Err(Stop::Client(why))),
            false => Poll::Pending,
        }
    }

    fn poll_server_readable(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        match self.server.stream.poll_readable(context) {
            // An error shows again at the read.
            Poll::Ready(_) => Poll::Ready(Ok(())),
            Poll::Pending => {
                wait_for(&mut self.download_wait, Side::Server, &self.core);
                self.rest(context)
            }
        }
    }

    /// Both directions until the response is with the client.
    fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let upload_first = !std::mem::take(&mut self.download_first);
        if upload_first {
            self.poll_upload(context)?;
            self.download_first = budget::is_spent();
        }
        if let Poll::Ready(result) = self.poll_download(context) {
            return Poll::Ready(result);
        }
        if !upload_first {
            self.poll_upload(context)?;
        }
        self.poll_limits(context)
    }

    fn poll_download(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        loop {
            if matches!(self.download, Download::Done) {
                return self.poll_client_flush(context);
            }
            if !self.answer.is_empty() {
                ready!(self.poll_pass(context))?;
                continue;
            }
            // Bytes on their way to the client go first: a client that does not read must not fill our memory.
            ready!(self.poll_client_flush(context))?;
            if self.long && self.answer.capacity() < LARGE_BYTES {
                if self.answer.capacity() == 0 {
                    ready!(self.poll_server_readable(context))?;
                }
                self.core.buffers.enlarge(&mut self.answer);
            }
            match self.server.stream.poll_fill(context, &self.core.buffers, &mut self.answer) {
                Poll::Pending => {
                    wait_for(&mut self.download_wait, Side::Server, &self.core);
                    return self.rest(context);
                }
                Poll::Ready(Ok(0)) if matches!(self.download, Download::UntilClose) => self.end_by_close(),
                Poll::Ready(Ok(count)) if count > 0 => {
                    self.download_wait = None;
                    // A read that fills a small buffer is not the last of the response.
                    let full = if self.server.stream.is_tls() { PIECE_BYTES } else { self.answer.capacity() };
                    self.long |= self.answer.len() >= full;
                }
                Poll::Ready(_) => return Poll::Ready(Err(server_fault(Fault::BodyCutShort))),
            }
        }
    }

    fn end_by_close(&mut self) {
        self.download = Download::Done;
        self.server_spent = true;
        if self.framing == Framing::Chunked {
            self.connection.stream.stage(h1::LAST_CHUNK, &self.core.buffers, &mut self.connection.wire);
            self.request.note.bytes_sent += h1::LAST_CHUNK.len() as u64;
        }
    }

    fn poll_client_flush(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let connection = &mut *self.connection;
        loop {
            if connection.wire.is_empty() {
                let flushed = connection.stream.poll_flush(context, &self.core.buffers, &mut connection.wire);
                return flushed.map_err(|_| Stop::Client(fault::of_write(&connection.stream)));
            }
            match connection.stream.socket.poll_write(context, connection.wire.readable()) {
                Poll::Pending => {
                    wait_for(&mut self.download_wait, Side::Client, &self.core);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(count)) if count > 0 => {
                    connection.wire.consume(count);
                    progressed(&mut self.download_wait, &mut self.download_patience, count, &self.core);
                }
                Poll::Ready(_) => return Poll::Ready(Err(Stop::Client(Fault::ClientReset))),
            }
        }
    }

    /// Passes on some of what the server has sent.
    fn poll_pass(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let limit = if self.answer.capacity() >= LARGE_BYTES { LARGE_BYTES } else { PIECE_BYTES };
        let here = self.answer.len().min(limit);
        let here = match &self.download {
            Download::Length(remaining) => (here as u64).min(*remaining) as usize,
            _ => here,
        };
        if self.framing == Framing::Chunked {
            ready!(self.poll_client_flush(context))?;
            return Poll::Ready(self.pass_chunked(context, here));
        }
        // A chunked body for a client that cannot read chunks: the data alone.
        if let Download::Chunked(_) = self.download {
            ready!(self.poll_client_flush(context))?;
            return Poll::Ready(self.pass_unchunked(context, here));
        }
        let connection = &mut *self.connection;
        let piece = &self.answer.readable()[..here];
        match connection.stream.poll_send_body(context, &self.core.buffers, &mut connection.wire, piece) {
            Poll::Pending => {
                wait_for(&mut self.download_wait, Side::Client, &self.core);
                Poll::Pending
            }
            Poll::Ready(Err(_)) => Poll::Ready(Err(Stop::Client(fault::of_write(&connection.stream)))),
            Poll::Ready(Ok(count)) => {
                progressed(&mut self.download_wait, &mut self.download_patience, count, &self.core);
                self.answer.consume(count);
                self.request.note.bytes_sent += count as u64;
                if let Download::Length(remaining) = &mut self.download {
                    *remaining -= count as u64;
                    if *remaining == 0 {
                        self.download = Download::Done;
                    }
                }
                Poll::Ready(Ok(()))
            }
        }
    }

    fn pass_chunked(&mut self, context: &mut Context<'_>, here: usize) -> Result<(), Stop> {
        let core = Rc::clone(&self.core);
        let mut scratch = core.scratch.borrow_mut();
        scratch.clear();
        let bytes = &self.answer.readable()[..here];
        let consumed = match &mut self.download {
            Download::Chunked(decoder) => {
                let rechunked = rechunk(decoder, bytes, &mut scratch);
                let Rechunked { consumed, chunks } = rechunked.map_err(|_| server_fault(Fault::BadResponse))?;
                budget::charge_chunks(context, chunks);
                if decoder.is_done() {
                    self.download = Download::Done;
                }
                consumed
            }
            _ => {
                write_chunk(bytes, &mut scratch);
                here
            }
        };
        self.answer.consume(consumed);
        self.request.note.bytes_sent += scratch.len() as u64;
        self.connection.stream.stage(&scratch, &self.core.buffers, &mut self.connection.wire);
        Ok(())
    }

    fn pass_unchunked(&mut self, context: &mut Context<'_>, here: usize) -> Result<(), Stop> {
        let Download::Chunked(decoder) = &mut self.download else { return Ok(()) };
        let (mut at, mut chunks) = (0, 0);
        let bytes = &self.answer.readable()[..here];
        while at < here || decoder.is_done() {
            match decoder.next(&bytes[at..]).map_err(|_| server_fault(Fault::BadResponse))? {
                Event::NeedMore { consumed } => at += consumed,
                Event::Data { start, end } => {
                    self.connection.stream.stage(
                        &bytes[at + start..at + end],
                        &self.core.buffers,
                        &mut self.connection.wire,
                    );
                    self.request.note.bytes_sent += (end - start) as u64;
                    at += end;
                    chunks += 1;
                }
                Event::End { consumed } => {
                    at += consumed;
                    self.download = Download::Done;
                    break;
                }
            }
        }
        self.answer.consume(at);
        budget::charge_chunks(context, chunks);
        Ok(())
    }

    /// Sets the deadline to the nearest limit, or says which one was met.
    fn poll_limits(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let head_is_awaited = self.request.note.first_byte_us.is_none();
        let now = self.core.timers.now();
        let mut due = u64::MAX;
        if let Some(waiting) = self.upload_wait {
            let (limit, wait, stop) = match waiting.side {
                Side::Client => (
                    self.upload_patience.remaining().as_millis() as u64,
                    Wait::RequestBody,
                    Stop::Client(Fault::ClientBodyTimeout),
                ),
                Side::Server => (self.limits.body, Wait::ServerBody, server_fault(Fault::BodyTimeout)),
            };
            due = due.min(waiting.since + limit);
            if now >= due {
                self.connection.count_timeout(wait);
                return Poll::Ready(Err(stop));
            }
        }
        if let Some(waiting) = self.download_wait {
            let (limit, wait, stop) = match waiting.side {
                Side::Client => (
                    self.download_patience.remaining().as_millis() as u64,
                    Wait::ResponseBody,
                    Stop::Client(Fault::ClientReadTimeout),
                ),
                Side::Server if head_is_awaited => {
                    // While the request is still on its way its own limits apply.
                    let limit = if self.sent { self.limits.first_byte } else { u64::MAX / 2 };
                    (limit, Wait::FirstByte, server_fault(Fault::FirstByteTimeout))
                }
                Side::Server => (self.limits.body, Wait::ServerBody, server_fault(body_timeout(self.upload_wait))),
            };
            if now >= waiting.since + limit {
                self.connection.count_timeout(wait);
                return Poll::Ready(Err(stop));
            }
            due = due.min(waiting.since + limit);
        }
        self.connection.deadline.set(due, context.waker());
        Poll::Pending
    }

    /// The response is with the client: what becomes of the client's connection.
    fn over(&mut self) -> After {
        if !self.upload.is_read() {
            // The server answered without waiting for the rest of the request. What is left of it cannot be told from
            // the next request unless it is read, so this connection ends.
            return After::Linger;
        }
        let stays = self.framing != Framing::UntilClose && !self.core.is_leaving(self.connection.listener);
        match self.keeps && stays {
            true => After::Next,
            false => After::Close,
        }
    }

    fn fail(&mut self, stop: Stop) -> Ended {
        let begun = self.request.note.status != 0;
        match stop {
            Stop::Server(attempt) if !begun => {
                let owed = !self.upload.is_whole() && (!self.sent || self.server_spent);
                Ended::Failed(attempt.with_body_owed(owed), None)
            }
            Stop::Server(attempt) => {
                self.request.note.fault = Some(attempt.fault);
                self.core.metrics.increment(
                    self.core.telemetry.backends[self.request.note.backend.unwrap_or(0)].faults.of(attempt.fault),
                );
                Ended::Over(After::Abort)
            }
            Stop::Client(fault) => {
                self.request.note.fault = Some(fault);
                self.core.metrics.increment(self.connection.metrics().faults.of(fault));
                // A client that sent a body we cannot take, or took too long, is told if nothing else was said to it.
                if begun || fault.status() == 0 {
                    return Ended::Over(After::Abort);
                }
                answer_fault(&mut ClientSide::Http1(self.connection), self.request, fault);
                Ended::Over(After::Linger)
            }
        }
    }

    /// Gives back what was borrowed: the server's connection to its pool if it can serve again.
    fn return_to_pool(mut self, ended: Ended, backend: &Rc<Backend>) -> Ended {
        self.core.buffers.give_back(&mut self.outbox);
        if matches!(ended, Ended::Switched(_)) {
            return ended;
        }
        if matches!(ended, Ended::Over(After::Next | After::Close | After::Linger)) && !self.answer.is_empty() {
            note_excess(self.request, backend);
        }
        let clean = matches!(ended, Ended::Over(After::Next | After::Close))
            && self.sent
            && !self.server_spent
            && self.answer.is_idle()
            && self.request.response.keep_alive;
        self.core.buffers.give_back(&mut self.answer);
        if let Some(failure) = self.server.stream.failure() {
            log_tls_failure(backend, self.server.key.server, failure);
        }
        if !clean && is_unanswered(&ended, self.request.note.fault) {
            closing::end(backend, self.server);
            return ended;
        }
        let permit = give_back(backend, self.server, clean);
        match ended {
            Ended::Failed(failed, _) => Ended::Failed(failed, permit),
            ended => ended,
        }
    }
}

/// The server has sent more than belongs to its response, which the client has.
pub fn note_excess(request: &mut Request, backend: &Backend) {
    request.note.fault = Some(Fault::ExcessData);
    backend.services.metrics.increment(backend.metrics().faults.of(Fault::ExcessData));
}

/// Whether a server may still be at work on a request that is over here: nobody waits for its answer any more.
pub fn is_unanswered(ended: &Ended, fault: Option<Fault>) -> bool {
    match ended {
        Ended::Failed(failed, _) => failed.fault.status() == 504,
        Ended::Over(_) => fault.is_some(),
        Ended::Switched(_) => false,
    }
}

pub fn server_fault(fault: Fault) -> Stop {
    Stop::Server(Attempt::new(fault, Repeatable::No))
}

/// Reason for which a response's body has come to a halt: its server may be waiting for the rest of the request, when
/// the client is known to be waited for.
pub fn body_timeout(upload_wait: Option<Waiting>) -> Fault {
    match upload_wait {
        Some(Waiting { side: Side::Client, .. }) => Fault::IdleBothWays,
        _ => Fault::BodyTimeout,
    }
}

pub fn wait_for(waiting: &mut Option<Waiting>, side: Side, core: &Core) {
    match waiting {
        Some(known) if known.side == side => {}
        _ => *waiting = Some(Waiting { side, since: core.timers.now() }),
    }
}

/// Bytes moved: the wait is over, and patience pays for it.
pub fn progressed(waiting: &mut Option<Waiting>, patience: &mut MinRateTimeout, bytes: usize, core: &Core) {
    if let Some(known) = waiting.take()
        && known.side == Side::Client
    {
        patience.waited(Duration::from_millis(core.timers.now() - known.since));
        patience.moved(bytes);
    }
}
