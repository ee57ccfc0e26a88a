//! One request of an HTTP/2 stream to a server and its response back, both ways at once, with back-pressure.
//!
//! What `transfer.rs` does with bytes is done here with messages: pieces of a body come from one side as its version of
//! HTTP frames them and go to the other as its version does. A client may send as much as the server has taken, and the
//! server is read no faster than the stream takes.

use std::future::poll_fn;
use std::io::IoSlice;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{Buf, Bytes};
use h2::Reason;
use propylon_config::BackendId;
use propylon_policy::patience::Patience;

use crate::attempt::{Attempt, Repeatable};
use crate::buffer::{Buffer, LARGE_BYTES};
use crate::client_side::ClientSide;
use crate::connection::After;
use crate::core::Core;
use crate::exchange::{Request, answer_error};
use crate::http1::{self, Asked, ChunkHeader, Decoder, Event, Parsed, RequestBody, ResponseBody};
use crate::http2::{Stream, translate};
use crate::pool::ServerConnection;
use crate::seat;
use crate::snapshot::CoreSnapshot;
use crate::telemetry::Wait;
use crate::transfer::{
    Ended, INFORMATIONAL_MAX, LONG_BODY_BYTES, RESPONSE_LIMITS, Side, Stop, Upload, Waiting, progressed, server_fault,
    wait_for, write_request_head,
};

/// How the request's body goes to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// There is none, or its length was announced.
    Plain,
    Chunked,
    /// The bytes of a tunnel; their end closes the sending half.
    Tunnel,
}

/// Where the request's body stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Body,
    /// All of its data has come: its trailers are next.
    Trailers,
    /// The last of it is in the outbox.
    End,
}

/// The response body, from the server to the client.
enum Download {
    Length(u64),
    Chunked(Box<Decoder>),
    UntilClose,
    Done,
}

pub struct Bridge<'a> {
    stream: &'a mut Stream,
    request: &'a mut Request,
    upload: &'a mut Upload,
    core: Rc<Core>,
    server: Box<ServerConnection>,
    framing: Framing,
    sending: Sending,
    /// Heads and framing on their way to the server; `piece` and then `after` follow it.
    outbox: Buffer,
    piece: Bytes,
    after: &'static [u8],
    /// Trailers of the request are passed on.
    takes_trailers: bool,
    /// The request has been sent whole.
    sent: bool,
    sent_any: bool,
    /// What the server sent and nobody has taken yet.
    answer: Buffer,
    answered: bool,
    server_spent: bool,
    informational: u32,
    download: Download,
    /// The response is long: it is moved in large pieces.
    long: bool,
    /// Bytes of it that have been handed to the library.
    passed: u64,
    upload_wait: Option<Waiting>,
    download_wait: Option<Waiting>,
    upload_patience: Patience,
    download_patience: Patience,
    /// Bytes that the client had still to take when that was last looked at.
    outstanding: usize,
    first_byte: u64,
    body: u64,
    tunnel_idle: u64,
}

impl<'a> Bridge<'a> {
    /// Sends the request and relays the response.
    pub async fn run(
        stream: &'a mut Stream,
        request: &'a mut Request,
        snapshot: &CoreSnapshot,
        backend: BackendId,
        opened: Box<ServerConnection>,
        upload: &'a mut Upload,
    ) -> Ended {
        let core = Rc::clone(&stream.link.core);
        let last = snapshot.backends[backend.0].pool.is_last_request(&opened);
        let mut bridge = Bridge::new(stream, request, snapshot, backend, opened, upload);
        bridge.write_head(snapshot, last);
        let head_began = Instant::now();
        let ended = match poll_fn(|context| bridge.poll_head(context)).await {
            Err(stop) => bridge.fail(stop),
            Ok(()) => {
                let micros = head_began.elapsed().as_micros() as u64;
                bridge.request.note.first_byte_us = Some(micros);
                core.metrics.observe(core.telemetry.backends[backend.0].first_byte_duration, micros);
                bridge.relay().await
            }
        };
        bridge.settle(ended, snapshot, backend)
    }

    fn new(
        stream: &'a mut Stream,
        request: &'a mut Request,
        snapshot: &CoreSnapshot,
        backend: BackendId,
        opened: Box<ServerConnection>,
        upload: &'a mut Upload,
    ) -> Bridge<'a> {
        let listener = snapshot.listener(stream.link.listener);
        let timeouts = &snapshot.shared.config.backends[backend.0].timeouts;
        let patience = Patience::new(listener.timeouts.body, listener.limits.body_rate_min);
        request.response.clear();
        let framing = match request.head.body {
            RequestBody::Chunked => Framing::Chunked,
            _ => Framing::Plain,
        };
        let empty = matches!(request.head.body, RequestBody::None | RequestBody::Length(0));
        Bridge {
            core: Rc::clone(&stream.link.core),
            stream,
            request,
            upload,
            server: opened,
            framing,
            sending: if empty { Sending::End } else { Sending::Body },
            outbox: Buffer::default(),
            piece: Bytes::new(),
            after: b"",
            takes_trailers: listener.request_headers.is_empty(),
            sent: false,
            sent_any: false,
            answer: Buffer::default(),
            answered: false,
            server_spent: false,
            informational: 0,
            download: Download::Done,
            long: false,
            passed: 0,
            upload_wait: None,
            download_wait: None,
            upload_patience: patience,
            download_patience: patience,
            outstanding: 0,
            first_byte: timeouts.first_byte.as_millis() as u64,
            body: timeouts.body.as_millis() as u64,
            tunnel_idle: listener.timeouts.tunnel_idle.as_millis() as u64,
        }
    }

    fn write_head(&mut self, snapshot: &CoreSnapshot, last: bool) {
        let core = Rc::clone(&self.core);
        let mut scratch = core.scratch.borrow_mut();
        scratch.clear();
        write_request_head(&ClientSide::Http2(self.stream), self.request, snapshot, last, &mut scratch);
        core.stock.equip(&mut self.outbox);
        self.outbox.extend(&scratch);
    }

    /// Both directions until the response's head is complete.
    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        self.poll_gone(context)?;
        self.poll_upload(context)?;
        if let Poll::Ready(result) = self.poll_response_head(context) {
            return Poll::Ready(result);
        }
        self.poll_limits(context)
    }

    /// A client that has reset its stream ends the work at the server at once.
    fn poll_gone(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        match self.stream.poll_gone(context) {
            Poll::Ready(()) => Err(Stop::Client("client-reset")),
            Poll::Pending => Ok(()),
        }
    }

    /// Moves the request on. An error of the server is kept to itself here: it may have answered before it closed,
    /// and its answer is worth more than our complaint.
    fn poll_upload(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        if self.sent {
            return Ok(());
        }
        match self.poll_request(context) {
            Poll::Pending => return Ok(()),
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(Stop::Server(_))) if self.sent_any && self.framing != Framing::Tunnel => {
                self.server_spent = true;
            }
            Poll::Ready(Err(stop)) => return Err(stop),
        }
        self.sent = true;
        self.upload_wait = None;
        // The wait for the response's first byte begins now.
        self.download_wait = None;
        Ok(())
    }

    fn poll_request(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        loop {
            ready!(self.poll_outbox(context))?;
            match self.sending {
                Sending::Body => ready!(self.poll_body_piece(context))?,
                Sending::Trailers => ready!(self.poll_body_end(context))?,
                Sending::End if self.framing == Framing::Tunnel => {
                    let closed = ready!(self.server.stream.poll_end(context, &self.core.stock));
                    return Poll::Ready(closed.map_err(|_| server_fault(502, "write-failed")));
                }
                Sending::End => return Poll::Ready(Ok(())),
            }
        }
    }

    fn poll_body_piece(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let Poll::Ready(data) = self.stream.poll_data(context) else {
            wait_for(&mut self.upload_wait, Side::Client, &self.core);
            return Poll::Pending;
        };
        match data {
            None => self.sending = Sending::Trailers,
            Some(Err(error)) => return Poll::Ready(Err(Stop::Client(client_fault(&error)))),
            Some(Ok(piece)) => {
                progressed(&mut self.upload_wait, &mut self.upload_patience, piece.len(), &self.core);
                self.request.note.bytes_received += piece.len() as u64;
                self.request.body_begun = true;
                if let Upload::Stream { begun, .. } = self.upload {
                    *begun = true;
                }
                if self.framing == Framing::Chunked && !piece.is_empty() {
                    self.core.stock.equip(&mut self.outbox);
                    self.outbox.extend(ChunkHeader::new(piece.len()).as_bytes());
                    self.after = b"\r\n";
                }
                self.piece = piece;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_body_end(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let Poll::Ready(trailers) = self.stream.poll_trailers(context) else {
            wait_for(&mut self.upload_wait, Side::Client, &self.core);
            return Poll::Pending;
        };
        let trailers = trailers.map_err(|error| Stop::Client(client_fault(&error)))?;
        if self.framing == Framing::Chunked {
            let lines = match trailers {
                Some(trailers) if self.takes_trailers => translate::trailer_lines(&trailers, Decoder::new()),
                _ => Vec::new(),
            };
            let mut scratch = self.core.scratch.borrow_mut();
            scratch.clear();
            http1::write_last_chunk(&lines, &mut scratch);
            self.core.stock.equip(&mut self.outbox);
            self.outbox.extend(&scratch);
        }
        self.sending = Sending::End;
        Poll::Ready(Ok(()))
    }

    /// Sends the outbox and the piece behind it; what the server has taken of the piece the client may send anew.
    fn poll_outbox(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        loop {
            let (head, body) = (self.outbox.len(), self.piece.len());
            if head + body + self.after.len() == 0 {
                self.core.stock.give_back(&mut self.outbox);
                self.piece = Bytes::new();
                return self.poll_server_flush(context);
            }
            let slices = [IoSlice::new(self.outbox.readable()), IoSlice::new(&self.piece), IoSlice::new(self.after)];
            let slices = match (head, body + self.after.len()) {
                (0, _) => &slices[1..],
                (_, 0) => &slices[..1],
                _ => &slices[..],
            };
            let Poll::Ready(written) = self.server.stream.poll_write(context, &self.core.stock, slices) else {
                wait_for(&mut self.upload_wait, Side::Server, &self.core);
                return Poll::Pending;
            };
            let Some(count) = written.ok().filter(|count| *count > 0) else {
                return Poll::Ready(Err(self.write_failed()));
            };
            self.upload_wait = None;
            self.sent_any = true;
            self.outbox.consume(count.min(head));
            let of_body = (count - count.min(head)).min(body);
            self.piece.advance(of_body);
            self.after = &self.after[count - count.min(head) - of_body..];
            if of_body > 0 {
                self.stream.release(of_body);
            }
        }
    }

    /// Sends what the server's stream has taken.
    fn poll_server_flush(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        match self.server.stream.poll_flush(context, &self.core.stock) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
            Poll::Ready(Err(_)) => Poll::Ready(Err(self.write_failed())),
            Poll::Pending => {
                wait_for(&mut self.upload_wait, Side::Server, &self.core);
                Poll::Pending
            }
        }
    }

    fn write_failed(&self) -> Stop {
        let repeatable = if self.sent_any { Repeatable::Unanswered } else { Repeatable::Unsent };
        Stop::Server(Attempt { status: 502, reason: "write-failed", repeatable })
    }

    fn poll_response_head(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let asked = Asked { method: self.request.head.method, upgrade: self.request.head.upgrade.is_some() };
        loop {
            if !self.answer.is_empty() {
                self.answered = true;
                let response = &mut self.request.response;
                match http1::parse_response(self.answer.readable(), asked, &RESPONSE_LIMITS, response) {
                    Ok(Parsed::Complete) if response.is_informational() => {
                        self.pass_informational()?;
                        continue;
                    }
                    Ok(Parsed::Complete) => return Poll::Ready(Ok(())),
                    Ok(Parsed::Partial) => {}
                    Err(reject) => {
                        let reason = match reject.reason {
                            "head-too-long" | "too-many-fields" => "response-head-too-large",
                            _ => "bad-response",
                        };
                        log::debug!("a server's response was refused: {reject}");
                        return Poll::Ready(Err(server_fault(502, reason)));
                    }
                }
            }
            match self.server.stream.poll_fill(context, &self.core.stock, &mut self.answer) {
                Poll::Pending => {
                    wait_for(&mut self.download_wait, Side::Server, &self.core);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(count)) if count > 0 => {}
                Poll::Ready(_) => {
                    let repeatable = if self.answered { Repeatable::No } else { Repeatable::Unanswered };
                    let reason = "closed-before-response";
                    return Poll::Ready(Err(Stop::Server(Attempt { status: 502, reason, repeatable })));
                }
            }
        }
    }

    /// Hands an interim response (RFC 9110 §15.2) on.
    fn pass_informational(&mut self) -> Result<(), Stop> {
        self.informational += 1;
        if self.informational > INFORMATIONAL_MAX {
            return Err(server_fault(502, "bad-response"));
        }
        let length = self.request.response.length;
        self.stream.send_informational(&self.request.response, self.answer.readable());
        self.request.note.bytes_sent += length as u64;
        self.answer.consume(length);
        self.request.response.clear();
        Ok(())
    }

    /// Relays a response whose head is complete.
    async fn relay(&mut self) -> Ended {
        if let Err(stop) = self.send_head() {
            return self.fail(stop);
        }
        match poll_fn(|context| self.poll_body(context)).await {
            Ok(()) => Ended::Over(After::Next),
            Err(stop) => self.fail(stop),
        }
    }

    fn send_head(&mut self) -> Result<(), Stop> {
        let tunnel = self.request.response.status == 101;
        if tunnel {
            self.begin_tunnel();
        } else {
            self.download = match self.request.response.body {
                ResponseBody::None | ResponseBody::Length(0) => Download::Done,
                ResponseBody::Length(length) => Download::Length(length),
                ResponseBody::Chunked => Download::Chunked(Box::default()),
                ResponseBody::UntilClose => Download::UntilClose,
            };
        }
        self.long = matches!(self.download, Download::Length(length) if length >= LONG_BODY_BYTES);
        let core = Rc::clone(&self.core);
        let head = &self.request.response;
        let response = core.with_date(|date| translate::response(head, self.answer.readable(), Some(date)));
        let Some(mut response) = response else { return Err(server_fault(502, "bad-response")) };
        if tunnel {
            translate::accept_tunnel(&mut response);
        }
        let length = head.length;
        self.request.note.status = response.status().as_u16();
        self.request.note.bytes_sent += length as u64;
        let end = matches!(self.download, Download::Done);
        if !self.stream.send_head(response, end) {
            return Err(Stop::Client("client-reset"));
        }
        self.answer.consume(length);
        Ok(())
    }

    /// From here on DATA is what was switched to (RFC 8441 §5).
    fn begin_tunnel(&mut self) {
        self.core.metrics.increment(self.core.telemetry.listeners[self.stream.link.listener].tunnels);
        self.framing = Framing::Tunnel;
        self.download = Download::UntilClose;
        self.server_spent = true;
        (self.sending, self.sent) = (Sending::Body, false);
        let patience = std::time::Duration::from_millis(self.tunnel_idle);
        (self.upload_patience, self.download_patience) = (Patience::new(patience, 0), Patience::new(patience, 0));
        self.body = self.tunnel_idle;
    }

    /// Both directions until the response is with the library.
    fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        if matches!(self.download, Download::Done) && !self.is_tunnel_open() {
            return Poll::Ready(Ok(()));
        }
        self.poll_gone(context)?;
        self.poll_upload(context)?;
        if let Poll::Ready(result) = self.poll_download(context) {
            result?;
            if !self.is_tunnel_open() {
                return Poll::Ready(Ok(()));
            }
        }
        self.poll_limits(context)
    }

    /// The server has ended and the client has not.
    fn is_tunnel_open(&self) -> bool {
        self.framing == Framing::Tunnel && !self.sent
    }

    fn poll_download(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        loop {
            if matches!(self.download, Download::Done) {
                return Poll::Ready(Ok(()));
            }
            // A client that does not read must not fill our memory.
            if self.stream.poll_room(context).is_pending() {
                self.note_taken();
                wait_for(&mut self.download_wait, Side::Client, &self.core);
                return Poll::Pending;
            }
            self.note_taken();
            if !self.answer.is_empty() {
                self.pass()?;
                continue;
            }
            if self.long && self.passed > 0 && self.answer.capacity() < LARGE_BYTES {
                if self.answer.capacity() == 0
                    && let Poll::Pending = self.server.stream.poll_readable(context)
                {
                    wait_for(&mut self.download_wait, Side::Server, &self.core);
                    return Poll::Pending;
                }
                self.core.stock.enlarge(&mut self.answer);
            }
            match self.server.stream.poll_fill(context, &self.core.stock, &mut self.answer) {
                Poll::Pending => {
                    wait_for(&mut self.download_wait, Side::Server, &self.core);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(0)) if matches!(self.download, Download::UntilClose) => {
                    self.download = Download::Done;
                    self.server_spent = true;
                    self.hand_over(Buffer::default(), true)?;
                }
                Poll::Ready(Ok(count)) if count > 0 => {
                    self.download_wait = None;
                    // What fills a small buffer is not the last of it.
                    self.long |= self.answer.len() == self.answer.capacity();
                }
                Poll::Ready(_) => return Poll::Ready(Err(server_fault(502, "body-cut-short"))),
            }
        }
    }

    /// The client is given time for what it takes.
    fn note_taken(&mut self) {
        let outstanding = self.stream.outstanding();
        if outstanding < self.outstanding {
            let taken = self.outstanding - outstanding;
            progressed(&mut self.download_wait, &mut self.download_patience, taken, &self.core);
        }
        self.outstanding = outstanding;
    }

    /// Passes on what the server has sent.
    fn pass(&mut self) -> Result<(), Stop> {
        match &mut self.download {
            Download::Length(remaining) => {
                let here = (self.answer.len() as u64).min(*remaining);
                *remaining -= here;
                let last = *remaining == 0;
                // What comes after the body belongs to nobody.
                self.server_spent |= here < self.answer.len() as u64;
                self.answer.truncate(here as usize);
                if last {
                    self.download = Download::Done;
                }
                let piece = self.take_answer();
                self.hand_over(piece, last)
            }
            Download::Chunked(_) => self.pass_chunked(),
            Download::UntilClose | Download::Done => {
                let piece = self.take_answer();
                self.hand_over(piece, false)
            }
        }
    }

    /// Takes the framing out where the data lies.
    fn pass_chunked(&mut self) -> Result<(), Stop> {
        let Download::Chunked(decoder) = &mut self.download else { return Ok(()) };
        let bytes = self.answer.readable_mut();
        let (mut at, mut length, mut trailers) = (0, 0, None);
        while at < bytes.len() {
            match decoder.next(&bytes[at..]).map_err(|_| server_fault(502, "bad-response"))? {
                Event::NeedMore { consumed } => at += consumed,
                Event::Data { start, end } => {
                    bytes.copy_within(at + start..at + end, length);
                    length += end - start;
                    at += end;
                }
                Event::End { consumed } => {
                    at += consumed;
                    trailers = Some(translate::trailer_map(decoder.trailers()));
                    break;
                }
            }
        }
        self.server_spent |= at < bytes.len();
        self.answer.truncate(length);
        let trailing = trailers.as_ref().is_some_and(|trailers| !trailers.is_empty());
        let last = trailers.is_some() && !trailing;
        if length > 0 || last {
            let piece = self.take_answer();
            self.hand_over(piece, last)?;
        }
        let Some(trailers) = trailers else { return Ok(()) };
        self.download = Download::Done;
        if trailing {
            self.request.note.bytes_sent +=
                trailers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>() as u64;
            if !self.stream.send_trailers(trailers) {
                return Err(Stop::Client("client-reset"));
            }
        }
        Ok(())
    }

    /// What is readable of the answer; what is not stays.
    fn take_answer(&mut self) -> Buffer {
        if self.answer.sealed_len() == 0 {
            return std::mem::take(&mut self.answer);
        }
        let mut piece = self.core.stock.small();
        piece.extend(self.answer.readable());
        self.answer.consume(self.answer.len());
        piece
    }

    fn hand_over(&mut self, piece: Buffer, last: bool) -> Result<(), Stop> {
        let length = piece.len();
        self.request.note.bytes_sent += length as u64;
        self.passed += length as u64;
        self.outstanding += length;
        match self.stream.send_piece(piece, last) {
            true => Ok(()),
            false => Err(Stop::Client("client-reset")),
        }
    }

    /// Sets the deadline to the nearest limit, or says which one was met.
    fn poll_limits(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let head_is_awaited = self.request.note.first_byte_us.is_none();
        let now = self.core.timers.now();
        let mut due = u64::MAX;
        let tunnel = self.framing == Framing::Tunnel;
        let waits = [(self.upload_wait, true), (self.download_wait, false)];
        for (waiting, is_upload) in waits.into_iter().filter_map(|(waiting, up)| Some((waiting?, up))) {
            let (limit, wait, stop) = match (waiting.side, is_upload) {
                // Either may be quiet for as long as the other talks.
                _ if tunnel => continue,
                (Side::Client, true) => {
                    (self.upload_patience.remaining(), Wait::RequestBody, Stop::Client("client-body-timeout"))
                }
                (Side::Client, false) => {
                    (self.download_patience.remaining(), Wait::ResponseBody, Stop::Client("client-read-timeout"))
                }
                // While the request is still on its way its own limits apply.
                (Side::Server, false) if head_is_awaited && !self.sent => continue,
                (Side::Server, false) if head_is_awaited => {
                    (millis(self.first_byte), Wait::FirstByte, server_fault(504, "first-byte-timeout"))
                }
                (Side::Server, _) => (millis(self.body), Wait::ServerBody, server_fault(504, "body-timeout")),
            };
            let met = waiting.since + limit.as_millis() as u64;
            if now >= met {
                ClientSide::Http2(self.stream).count_timeout(wait);
                return Poll::Ready(Err(stop));
            }
            due = due.min(met);
        }
        if tunnel && let Some(since) = self.quiet_since(now) {
            if now >= since + self.tunnel_idle {
                ClientSide::Http2(self.stream).count_timeout(Wait::TunnelIdle);
                return Poll::Ready(Err(Stop::Client("tunnel-idle")));
            }
            due = due.min(since + self.tunnel_idle);
        }
        self.stream.deadline.set(due, context.waker());
        Poll::Pending
    }

    /// Since when neither direction has moved.
    fn quiet_since(&self, now: u64) -> Option<u64> {
        let since = |waiting: Option<Waiting>| waiting.map_or(now, |waiting| waiting.since);
        Some(since(self.upload_wait).max(since(self.download_wait)))
    }

    fn fail(&mut self, stop: Stop) -> Ended {
        let begun = self.request.note.status != 0;
        match stop {
            Stop::Server(attempt) if !begun => Ended::Failed(attempt, None),
            Stop::Server(attempt) => {
                self.request.note.fault = Some(attempt.reason);
                self.core.metrics.increment(
                    self.core.telemetry.backends[self.request.note.backend.unwrap_or(0)].faults.of(attempt.reason),
                );
                Ended::Over(After::Abort)
            }
            Stop::Client(reason) => {
                self.request.note.fault = Some(reason);
                let metrics = &self.core.telemetry.listeners[self.stream.link.listener];
                self.core.metrics.increment(metrics.faults.of(reason));
                if reason == "client-body-timeout" && !begun {
                    answer_error(&mut ClientSide::Http2(self.stream), self.request, 408, reason);
                    return Ended::Over(After::Linger);
                }
                self.stream.abort_reason = Reason::CANCEL;
                Ended::Over(After::Abort)
            }
        }
    }

    /// Gives back what was borrowed: the server's connection to its pool if it can serve again.
    fn settle(mut self, ended: Ended, snapshot: &CoreSnapshot, backend: BackendId) -> Ended {
        let clean = matches!(ended, Ended::Over(After::Next))
            && self.sent
            && !self.server_spent
            && self.answer.is_idle()
            && self.request.response.keep_alive;
        self.core.stock.give_back(&mut self.outbox);
        self.core.stock.give_back(&mut self.answer);
        let permit = seat::leave(&self.core, snapshot, backend, self.server, clean);
        match ended {
            Ended::Failed(failed, _) => Ended::Failed(failed, permit),
            ended => ended,
        }
    }
}

fn millis(count: u64) -> std::time::Duration {
    std::time::Duration::from_millis(count)
}

/// What is wrong with a body that the library does not take: the client has reset it, or has broken a rule.
fn client_fault(error: &h2::Error) -> &'static str {
    match error.is_reset() && error.is_library() {
        true => "bad-body",
        false => "client-reset",
    }
}
