//! One request and its response between two sides of which at least one speaks HTTP/2, both ways at once, with
//! back-pressure.
//!
//! This module does with messages what `transfer.rs` does with bytes: pieces of a body come from one side as its
//! version of HTTP frames them and go to the other as its version does. A client may send as much as the server has
//! taken, and the server is read no faster than the client takes.

mod downstream;
mod rest;
mod upstream;

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::Reason;
use propylon_http::fault::Fault;
use propylon_http::h1::{RequestBody, Version, elements};
use propylon_net::budget::{self, Budget, PIECES_PER_POLL_MAX};
use propylon_observe::telemetry::Wait;
use propylon_policy::min_rate_timeout::MinRateTimeout;

pub use self::upstream::Upstream;
use crate::client::side::ClientSide;
use crate::core::Core;
use crate::exchange::answers::answer_fault;
use crate::exchange::bridge::downstream::{Downstream, Head, Piece};
use crate::exchange::heads::{cookie_line, write_request_head};
use crate::exchange::transfer::{
    Ended, INFORMATIONAL_MAX, LONG_BODY_BYTES, PIECE_BYTES, Side, Stop, Upload, Waiting, body_timeout, is_unanswered,
    note_excess, progressed, server_fault, wait_for,
};
use crate::fault::{Attempt, Repeatable};
use crate::http2::translate;
use crate::request::{After, Request};
use crate::snapshot::CoreSnapshot;
use crate::upstream::backend::Backend;
use crate::upstream::checkout::{Client, UpstreamStream};
use crate::upstream::closing;
use crate::upstream::connect::{give_back, log_tls_failure};
use crate::upstream::in_flight::InFlight;

/// Progress of the request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Body,
    /// The last of it is staged.
    End,
}

pub struct Bridge<'a> {
    client: Downstream<'a>,
    request: &'a mut Request,
    upload: &'a mut Upload,
    core: Rc<Core>,
    server: Upstream,
    sending: Sending,
    tunnel: bool,
    /// Trailers of the request are passed on.
    takes_trailers: bool,
    /// The request has been sent whole.
    sent: bool,
    sent_any: bool,
    answered: bool,
    server_spent: bool,
    /// The response's head has not said that the client's connection ends.
    keeps: bool,
    informational: u32,
    /// The response's body is with the client's side.
    done: bool,
    /// The end of a tunnel has been said to the client.
    ended: bool,
    /// The response is long: it is moved in large pieces.
    long: bool,
    /// Bytes of it that have been handed on.
    passed: u64,
    upload_wait: Option<Waiting>,
    download_wait: Option<Waiting>,
    upload_patience: MinRateTimeout,
    download_patience: MinRateTimeout,
    /// Bytes that the client had still to take when that was last looked at.
    outstanding: usize,
    /// The upload has spent the last poll's budget: in this one the download comes first.
    download_first: bool,
    first_byte: u64,
    body: u64,
    tunnel_idle: u64,
    turn: Option<&'a InFlight>,
    /// When a request was sent whole whose body had to be waited for.
    sent_at: Option<Instant>,
    /// A line for the client, which leads it back to the server.
    cookie: Option<&'a [u8]>,
}

impl<'a> Bridge<'a> {
    /// Sends the request and relays the response.
    pub async fn run(
        client: ClientSide<'a>,
        request: &'a mut Request,
        snapshot: &'a CoreSnapshot,
        backend: &'a Rc<Backend>,
        server_stream: UpstreamStream,
        upload: &'a mut Upload,
        turn: Option<&'a InFlight>,
    ) -> Ended {
        let core = Rc::clone(client.core());
        let server = match open(&client, request, snapshot, backend, server_stream) {
            Ok(server) => server,
            Err(failed) => return Ended::Failed(failed, None),
        };
        let mut bridge = Bridge::new(client, request, snapshot, backend, server, upload, turn);
        let head_began = Instant::now();
        let ended = match poll_fn(|context| bridge.poll_head(context)).await {
            Err(stop) => bridge.fail(stop),
            Ok(()) => {
                let micros = head_began.elapsed().as_micros() as u64;
                bridge.request.note.first_byte_us = Some(micros);
                core.metrics.observe(backend.metrics().first_byte_duration, micros);
                // How long a client took to send its request is not the server's doing.
                let since_sent = bridge.sent_at.map(|sent| sent.elapsed().as_micros() as u64);
                if let Some(turn) = turn {
                    turn.answered(bridge.request.response.status, since_sent.unwrap_or(micros));
                }
                bridge.relay().await
            }
        };
        bridge.return_to_pool(ended, backend)
    }

    fn new(
        client: ClientSide<'a>,
        request: &'a mut Request,
        snapshot: &'a CoreSnapshot,
        backend: &'a Rc<Backend>,
        server: Upstream,
        upload: &'a mut Upload,
        turn: Option<&'a InFlight>,
    ) -> Bridge<'a> {
        let listener = snapshot.listener(client.listener());
        let timeouts = backend.config().timeouts;
        let patience = MinRateTimeout::new(listener.timeouts.body, listener.limits.body_rate_min);
        request.response.clear();
        let cookie = cookie_line(&client, request, backend);
        let empty = matches!(request.head.body, RequestBody::None | RequestBody::Length(0));
        Bridge {
            core: Rc::clone(client.core()),
            client: Downstream::new(client),
            request,
            upload,
            server,
            sending: if empty { Sending::End } else { Sending::Body },
            tunnel: false,
            takes_trailers: listener.request_headers.is_empty(),
            sent: false,
            sent_any: false,
            answered: false,
            server_spent: false,
            keeps: true,
            informational: 0,
            done: false,
            ended: false,
            long: false,
            passed: 0,
            upload_wait: None,
            download_wait: None,
            upload_patience: patience,
            download_patience: patience,
            outstanding: 0,
            download_first: false,
            first_byte: timeouts.first_byte.as_millis() as u64,
            body: timeouts.body.as_millis() as u64,
            tunnel_idle: listener.timeouts.tunnel_idle.as_millis() as u64,
            turn,
            sent_at: None,
            cookie,
        }
    }

    /// Both directions until the response's head is complete.
    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        // A request that is taken back before it is sent is to cost its server nothing; once it is sent the question is
        // worth asking only while there is no answer.
        if !self.sent {
            self.poll_gone(context)?;
        }
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
        if self.sent || self.is_stalled() {
            self.poll_gone(context)?;
        }
        self.poll_limits(context)
    }

    /// The server takes nothing more of the request for now, so that nobody reads what the client sends.
    fn is_stalled(&self) -> bool {
        !self.sent && matches!(self.upload_wait, Some(Waiting { side: Side::Server, .. }))
    }

    /// Ends the server's work at once if the client has given up. Over HTTP/1 that shows only while nothing is read.
    fn poll_gone(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        if let ClientSide::Http1(_) = self.client.client {
            self.client.client.rest();
            if !self.sent && !self.is_stalled() {
                return Ok(());
            }
        }
        let gone = match &mut self.client.client {
            // The end of one way of a tunnel is no end of the other.
            ClientSide::Http1(connection) if self.tunnel => {
                connection.stream.socket.poll_reset(context).map(|()| Fault::ClientReset)
            }
            client => client.poll_gone(context),
        };
        match gone {
            Poll::Ready(why) => Err(Stop::Client(why)),
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
            Poll::Ready(Err(Stop::Server(_))) if self.sent_any && !self.tunnel => {
                self.server_spent = true;
            }
            Poll::Ready(Err(stop)) => return Err(stop),
        }
        self.sent = true;
        if !self.tunnel {
            self.sent_at = (!self.upload.is_whole()).then(Instant::now);
            if let Some(turn) = self.turn {
                turn.sent();
            }
        }
        self.upload_wait = None;
        // The wait for the response's first byte begins now.
        self.download_wait = None;
        Ok(())
    }

    fn poll_request(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        for _ in 0..PIECES_PER_POLL_MAX {
            let Poll::Ready(sent) = self.poll_server_send(context) else {
                if self.sending == Sending::Body {
                    self.client.read_ahead(context);
                }
                return Poll::Pending;
            };
            sent?;
            if self.sending == Sending::End {
                return match self.tunnel {
                    true => self.server.poll_end(context, &self.core),
                    false => Poll::Ready(Ok(())),
                };
            }
            let piece = self.client.poll_piece(context, self.upload, self.request, self.takes_trailers);
            let Poll::Ready(piece) = piece else {
                wait_for(&mut self.upload_wait, Side::Client, &self.core);
                return Poll::Pending;
            };
            match piece? {
                Piece::Data(piece) => self.stage(piece),
                Piece::End(trailers) => {
                    self.server.stage_end(&self.core.services, &trailers)?;
                    self.sending = Sending::End;
                }
            }
        }
        budget::spend(Budget::Pieces, context);
        Poll::Pending
    }

    fn stage(&mut self, piece: Bytes) {
        progressed(&mut self.upload_wait, &mut self.upload_patience, piece.len(), &self.core);
        if let ClientSide::Http2(_) = self.client.client {
            self.request.note.bytes_received += piece.len() as u64;
        }
        self.server.stage(&self.core, piece);
    }

    /// Sends what is staged; what the server has taken of the body the client may send anew.
    fn poll_server_send(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let (taken, sent) = self.server.poll_send(context, &self.core.services);
        if taken > 0 {
            self.upload_wait = None;
            self.sent_any = true;
            self.client.release(taken);
        }
        match sent {
            Poll::Pending => {
                wait_for(&mut self.upload_wait, Side::Server, &self.core);
                Poll::Pending
            }
            Poll::Ready(Ok(())) => {
                self.sent_any = true;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(())) => {
                let repeatable = if self.sent_any { Repeatable::Unanswered } else { Repeatable::Unsent };
                Poll::Ready(Err(Stop::Server(Attempt::new(Fault::WriteFailed, repeatable))))
            }
        }
    }

    fn poll_response_head(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        loop {
            if self.informational > 0
                && let Poll::Ready(Err(stop)) = self.client.poll_room(context)
            {
                return Poll::Ready(Err(stop));
            }
            let Request { head, text, response, .. } = &mut *self.request;
            let asked = head.asked(text);
            let head = self.server.poll_head(context, &self.core, asked, &mut self.answered, response);
            let Poll::Ready(head) = head else {
                wait_for(&mut self.download_wait, Side::Server, &self.core);
                return Poll::Pending;
            };
            head?;
            if !self.request.response.is_informational() {
                return Poll::Ready(self.judge_switch());
            }
            self.pass_informational()?;
        }
    }

    /// Judges whether the response opens a tunnel, which it has to if a client of HTTP/2 takes it for one: any 2xx
    /// would (RFC 9110 §9.3.6), and a server of HTTP/1.1 that answers as if there were no Upgrade is free to. The key
    /// that the server has to prove to have read was made here.
    fn judge_switch(&self) -> Result<(), Stop> {
        let (ClientSide::Http2(_), Some(_)) = (&self.client.client, self.request.head.upgrade) else { return Ok(()) };
        let response = &self.request.response;
        match response.status {
            200..300 => Err(server_fault(Fault::UpgradeIgnored)),
            101 if response.version == Version::Http2 => Ok(()),
            101 => {
                let key = self.request.head.fields.value(&self.request.text, "Sec-WebSocket-Key").unwrap_or_default();
                let accept = response.fields.value(self.server.head_text(), "Sec-WebSocket-Accept");
                let is_right = accept == Some(translate::websocket_accept(key).as_bytes());
                if is_right { Ok(()) } else { Err(server_fault(Fault::BadSwitch)) }
            }
            _ => Ok(()),
        }
    }

    /// Hands an interim response (RFC 9110 §15.2) on.
    fn pass_informational(&mut self) -> Result<(), Stop> {
        self.informational += 1;
        if self.informational > INFORMATIONAL_MAX {
            return Err(server_fault(Fault::BadResponse));
        }
        let length = self.request.response.length;
        self.client.send_informational(self.request, self.server.head_text());
        self.server.skip_head(length);
        self.request.response.clear();
        Ok(())
    }

    /// Relays a response whose head is complete.
    async fn relay(&mut self) -> Ended {
        if let Err(stop) = self.send_head() {
            return self.fail(stop);
        }
        match poll_fn(|context| self.poll_body(context)).await {
            Ok(()) => Ended::Over(self.over()),
            Err(stop) => self.fail(stop),
        }
    }

    fn send_head(&mut self) -> Result<(), Stop> {
        self.client.commit(self.upload, self.request);
        let length = self.request.response.length;
        let is_body = match self.request.response.status {
            101 => {
                self.begin_tunnel();
                true
            }
            _ => self.server.begin_body(&self.request.response),
        };
        self.done = !is_body;
        let body = self.request.response.body;
        self.long = matches!(body, propylon_http::h1::ResponseBody::Length(length) if length >= LONG_BODY_BYTES);
        // As in `transfer.rs`: the rest of a request is not waited for.
        self.keeps = self.request.head.keep_alive && self.upload.is_read() && !self.is_leaving();
        let head = Head { text: self.server.head_text(), is_body, keep_alive: self.keeps, cookie: self.cookie };
        self.client.send_head(self.request, &head)?;
        self.server.skip_head(length);
        Ok(())
    }

    /// Nothing follows on the client's connection.
    fn is_leaving(&self) -> bool {
        self.core.is_leaving(self.client.client.listener())
    }

    /// From here on the body is what was switched to (RFC 8441 §5).
    fn begin_tunnel(&mut self) {
        let listener = self.client.client.listener();
        self.core.metrics.increment(self.core.telemetry.listeners[listener].tunnels);
        self.server.begin_tunnel();
        (self.tunnel, self.sending, self.sent) = (true, Sending::Body, false);
        let patience = millis(self.tunnel_idle);
        (self.upload_patience, self.download_patience) =
            (MinRateTimeout::new(patience, 0), MinRateTimeout::new(patience, 0));
    }

    /// Both directions until the response is with the client's side.
    fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        if self.done && !self.is_tunnel_open() {
            return Poll::Ready(Ok(()));
        }
        let upload_first = !std::mem::take(&mut self.download_first);
        if upload_first {
            self.poll_upload(context)?;
            self.download_first = budget::is_spent();
        }
        if let Poll::Ready(result) = self.poll_download(context) {
            result?;
            if !self.is_tunnel_open() {
                return Poll::Ready(Ok(()));
            }
        }
        if !upload_first {
            self.poll_upload(context)?;
        }
        self.poll_gone(context)?;
        self.poll_limits(context)
    }

    /// The server has ended and the client has not.
    fn is_tunnel_open(&self) -> bool {
        self.tunnel && !self.sent
    }

    fn poll_download(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        loop {
            // A client that does not read must not fill our memory.
            let room = match self.done {
                true => Poll::Ready(Ok(())),
                false => self.client.poll_room(context),
            };
            self.note_taken();
            if room.is_pending() {
                self.server.read_ahead(context);
                wait_for(&mut self.download_wait, Side::Client, &self.core);
                return Poll::Pending;
            }
            ready!(room)?;
            if self.done {
                if self.tunnel && !self.ended {
                    ready!(self.client.poll_end(context))?;
                    self.ended = true;
                }
                return Poll::Ready(Ok(()));
            }
            let large = self.long && self.passed > 0 && !self.client.is_crowded();
            let Poll::Ready(part) = self.server.poll_part(context, &self.core, large) else {
                wait_for(&mut self.download_wait, Side::Server, &self.core);
                return Poll::Pending;
            };
            let part = part?;
            self.download_wait = None;
            self.done = part.end.is_some();
            let length = self.client.pass(self.request, part)?;
            self.passed += length as u64;
            self.outstanding = self.client.outstanding();
            // A part that fills a small buffer is not the last of the body.
            self.long |= length >= PIECE_BYTES;
        }
    }

    /// The client is given time for what it takes.
    fn note_taken(&mut self) {
        let outstanding = self.client.outstanding();
        if outstanding < self.outstanding {
            let taken = self.outstanding - outstanding;
            progressed(&mut self.download_wait, &mut self.download_patience, taken, &self.core);
        }
        self.outstanding = outstanding;
    }

    /// Sets the deadline to the nearest limit, or says which one was met.
    fn poll_limits(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let now = self.core.timers.now();
        let mut due = u64::MAX;
        if self.client.client.is_paused() {
            self.excuse_client(now);
        }
        let met = match self.tunnel {
            true => self.tunnel_limit(now, &mut due),
            false => self.upload_limit(now, &mut due).or_else(|| self.download_limit(now, &mut due)),
        };
        if let Some((wait, stop)) = met {
            self.client.client.count_timeout(wait);
            return Poll::Ready(Err(stop));
        }
        self.client.client.deadline().set(due, context.waker());
        Poll::Pending
    }

    /// Waits for a client that is not heard do not count.
    fn excuse_client(&mut self, now: u64) {
        for waiting in [&mut self.upload_wait, &mut self.download_wait].into_iter().flatten() {
            if waiting.side == Side::Client {
                waiting.since = now;
            }
        }
    }

    fn upload_limit(&self, now: u64, due: &mut u64) -> Option<(Wait, Stop)> {
        let waiting = self.upload_wait?;
        let (limit, wait, stop) = match waiting.side {
            Side::Client => {
                (self.upload_patience.remaining(), Wait::RequestBody, Stop::Client(Fault::ClientBodyTimeout))
            }
            Side::Server => (millis(self.body), Wait::ServerBody, server_fault(Fault::BodyTimeout)),
        };
        limit_met(waiting, limit, now, due).then_some((wait, stop))
    }

    fn download_limit(&self, now: u64, due: &mut u64) -> Option<(Wait, Stop)> {
        let waiting = self.download_wait?;
        let head_is_awaited = self.request.note.first_byte_us.is_none();
        let (limit, wait, stop) = match waiting.side {
            Side::Client => {
                (self.download_patience.remaining(), Wait::ResponseBody, Stop::Client(Fault::ClientReadTimeout))
            }
            // While the request is still on its way its own limits apply.
            Side::Server if head_is_awaited && !self.sent => return None,
            Side::Server if head_is_awaited => {
                (millis(self.first_byte), Wait::FirstByte, server_fault(Fault::FirstByteTimeout))
            }
            Side::Server => (millis(self.body), Wait::ServerBody, server_fault(body_timeout(self.upload_wait))),
        };
        limit_met(waiting, limit, now, due).then_some((wait, stop))
    }

    /// Either way may be quiet for as long as the other moves.
    fn tunnel_limit(&self, now: u64, due: &mut u64) -> Option<(Wait, Stop)> {
        let since = |waiting: Option<Waiting>| waiting.map_or(0, |waiting| waiting.since);
        let since = since(self.upload_wait).max(since(self.download_wait));
        let waiting = Waiting { side: Side::Client, since: if since == 0 { now } else { since } };
        let met = limit_met(waiting, millis(self.tunnel_idle), now, due);
        met.then_some((Wait::TunnelIdle, Stop::Client(Fault::TunnelIdle)))
    }

    /// The response is with the client's side: what becomes of its connection.
    fn over(&mut self) -> After {
        let ClientSide::Http1(_) = self.client.client else { return After::Next };
        if self.tunnel {
            return After::Close;
        }
        if !self.upload.is_read() {
            // The rest of the request cannot be told from the next one unless it is read.
            return After::Linger;
        }
        let keeps = self.keeps && !self.client.ends_connection() && !self.is_leaving();
        if keeps { After::Next } else { After::Close }
    }

    fn fail(&mut self, stop: Stop) -> Ended {
        let begun = self.request.note.status != 0;
        match stop {
            Stop::Server(attempt) => {
                if let ClientSide::Http2(stream) = &mut self.client.client {
                    stream.abort_reason = self.server.abort_reason();
                    stream.cut_short = begun;
                }
                if !begun {
                    let owed = !self.upload.is_whole() && (!self.sent || self.server_spent);
                    return Ended::Failed(attempt.with_body_owed(owed), None);
                }
                self.request.note.fault = Some(attempt.fault);
                let backend = self.request.note.backend.unwrap_or(0);
                self.core.metrics.increment(self.core.telemetry.backends[backend].faults.of(attempt.fault));
                Ended::Over(After::Abort)
            }
            Stop::Client(fault) => self.fail_client(fault, begun),
        }
    }

    /// A client that sent a body we cannot take, or took too long, is told so if nothing else was said to it.
    fn fail_client(&mut self, fault: Fault, begun: bool) -> Ended {
        // A client that closes a tab leaves a tunnel without a word: most of them end so, and nobody is at fault.
        if !(self.tunnel && fault == Fault::ClientReset) {
            self.request.note.fault = Some(fault);
            self.core.metrics.increment(self.client.client.metrics().faults.of(fault));
        }
        // A stream is reset for a bad body already.
        let is_told = fault != Fault::BadBody || matches!(self.client.client, ClientSide::Http1(_));
        if fault.status() > 0 && is_told && !begun {
            answer_fault(&mut self.client.client, self.request, fault);
            return Ended::Over(After::Linger);
        }
        if let ClientSide::Http2(stream) = &mut self.client.client {
            stream.abort_reason = Reason::CANCEL;
        }
        Ended::Over(After::Abort)
    }

    /// Gives back what was borrowed: the server's connection to its pool if it can serve again.
    fn return_to_pool(self, ended: Ended, backend: &Rc<Backend>) -> Ended {
        let is_over = matches!(ended, Ended::Over(After::Next | After::Close | After::Linger));
        let mut http1 = match self.server {
            Upstream::Http1(http1) => http1,
            Upstream::Http2(http2) => {
                if is_over && self.sent && http2.is_open() {
                    rest::see_out(http2, self.request, backend);
                }
                return ended;
            }
        };
        if is_over && http1.has_excess() {
            note_excess(self.request, backend);
        }
        let clean = http1.finish(&self.core)
            && matches!(ended, Ended::Over(After::Next | After::Close))
            && self.sent
            && !self.server_spent
            && self.request.response.keep_alive;
        if let Some(failure) = http1.connection.stream.failure() {
            log_tls_failure(backend, http1.connection.key.server, failure);
        }
        if !clean && is_unanswered(&ended, self.request.note.fault) {
            closing::end(backend, http1.connection);
            return ended;
        }
        let permit = give_back(backend, http1.connection, clean);
        match ended {
            Ended::Failed(failed, _) => Ended::Failed(failed, permit),
            ended => ended,
        }
    }
}

/// Begins the request on its stream.
fn open(
    client: &ClientSide<'_>,
    request: &mut Request,
    snapshot: &CoreSnapshot,
    backend: &Rc<Backend>,
    server_stream: UpstreamStream,
) -> Result<Upstream, Attempt> {
    let core = client.core();
    let mut scratch = core.scratch.borrow_mut();
    scratch.clear();
    match server_stream {
        UpstreamStream::Connection(connection) => {
            let last = backend.state.pool.is_last_request(&connection);
            write_request_head(client, request, snapshot, last, &mut scratch);
            let mut server = Upstream::http1(connection);
            server.begin(core, &request.head, &scratch);
            Ok(server)
        }
        UpstreamStream::Stream(server_stream) => {
            if !is_websocket(request) {
                // HTTP/2 has a word for this protocol alone; a server may answer an Upgrade as if there were none.
                request.head.upgrade = None;
            }
            write_request_head(client, request, snapshot, false, &mut scratch);
            Upstream::open(server_stream, &request.head, &scratch)
        }
    }
}

fn is_websocket(request: &Request) -> bool {
    let protocols = request.head.protocols(&request.text).unwrap_or_default();
    let has_key = request.head.fields.value(&request.text, "Sec-WebSocket-Key").is_some();
    has_key && elements(protocols).any(|protocol| protocol.eq_ignore_ascii_case(b"websocket"))
}

fn limit_met(waiting: Waiting, limit: Duration, now: u64, due: &mut u64) -> bool {
    let met = waiting.since + limit.as_millis() as u64;
    *due = (*due).min(met);
    now >= met
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}
