//! One request to a server and its response back, both ways at once, with back-pressure.
//!
//! A response may begin (and end) before the request has been sent whole, so each direction is a little state machine
//! and one poll drives both. Bodies pass through in pieces of a buffer's size; neither side is read faster than the
//! other takes. Where both sides speak HTTP/1, bytes go from buffer to socket (`http1_pair`); between all others they
//! go in pieces that one side's version of HTTP unframes and the other's frames (`downstream`, `upstream`).

mod body;
mod compression;
mod copied;
mod downstream;
mod flow;
mod grpc_web;
pub mod held;
mod http1_pair;
mod limits;
mod progress;
mod race;
mod splice;
mod splice_chunks;
mod stop;
mod throttle;
mod upstream;

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use propylon_http::fault::Fault;
use propylon_http::h1::{RequestBody, ResponseBody, Version, elements};
use propylon_http::h2::Reason;
use propylon_net::budget::{self, Budget, PIECES_PER_POLL_MAX};
use propylon_net::buffer::{Buffer, LARGE_BYTES};
use propylon_net::pace::Pace;
use propylon_policy::min_rate_timeout::MinRateTimeout;

pub use self::body::Upload;
use self::body::write_whole_chunked;
use self::compression::Rewriting;
use self::downstream::{Downstream, Head, Piece};
pub use self::downstream::{decoded, poll_fill};
pub use self::flow::Rest;
use self::http1_pair::Http1Pair;
use self::limits::{DirectionLimit, Limits, Phase, Side};
pub use self::progress::PIECE_BYTES;
use self::progress::{Progress, Sending};
pub use self::stop::Stop;
use self::stop::server_fault;
pub use self::upstream::Upstream;
use self::upstream::fastcgi::FastCgi;
pub use self::upstream::fastcgi::Opening;
pub use self::upstream::http1::Http1;
pub use self::upstream::http2::Http2;
pub use self::upstream::rest::see_out;
use self::upstream::rest::{end_fastcgi, note_excess};
use crate::client::side::ClientSide;
use crate::exchange::answers::{answer_fault, answer_page};
use crate::exchange::heads::{write_request_fields, write_request_head};
use crate::exchange::{fastcgi, response};
use crate::fault::{Attempt, Repeatable};
use crate::request::{After, Request};
use crate::snapshot::CoreSnapshot;
use crate::upstream::backend::Backend;
use crate::upstream::checkout::{Client, RetryState, UpstreamStream};
use crate::upstream::closing;
use crate::upstream::connect::{check_in, log_tls_failure};
use crate::upstream::connection::{Permit, ServerConnection};
use crate::upstream::terms::Special;
use crate::websocket;

/// A body at least this long is moved in large pieces from its start.
const LONG_BODY_BYTES: u64 = 48 * 1024;
/// Bytes of a body that go out with their head, where a server of HTTP/2 has sent them already.
const FIRST_FLIGHT_BYTES: usize = 15 * 1024;
/// Bytes of a body that are taken and thrown away where a page takes its place.
const DISCARDED_BYTES_MAX: usize = 64 * 1024;
/// Interim responses (1xx) to one request; a server that sends more is taken to be broken.
const INFORMATIONAL_MAX: u32 = 16;

/// End of a transfer.
pub enum Ended {
    Over(After),
    /// The server said 101: the bytes are no longer HTTP.
    Switched(Box<Switched>),
    /// The response has come whole, and its client has still to take some of it: nothing more is the server's.
    Held(Box<Rest>),
    /// No byte of a final response has gone to the client: the attempt may be repeated, or answered with its status.
    /// The permit of its connection, which is closed, can be used for another to the same server.
    Failed(Attempt, Option<Permit>),
}

impl Ended {
    /// The response is whole, as far as its client goes.
    fn is_in_order(&self) -> bool {
        matches!(self, Ended::Held(_) | Ended::Over(After::Next | After::Close | After::Linger))
    }

    fn with_permit(self, permit: Option<Permit>) -> Ended {
        match self {
            Ended::Failed(failed, _) => Ended::Failed(failed, permit),
            ended => ended,
        }
    }
}

/// A connection to a server that is a tunnel now, and what it has sent already.
pub struct Switched {
    pub server: Box<ServerConnection>,
    pub answer: Buffer,
}

/// Client and request of a transfer, and what else it borrows.
pub struct Parts<'a> {
    pub client: ClientSide<'a>,
    pub request: &'a mut Request,
    pub upload: &'a mut Upload,
    /// State of the request over its attempts, with its time at its server.
    pub retry_state: &'a mut RetryState,
}

pub struct Transfer<'a> {
    client: Downstream<'a>,
    server: Upstream,
    progress: Progress<'a>,
}

impl<'a> Transfer<'a> {
    /// Sends the request and relays the response.
    pub async fn run(
        mut parts: Parts<'a>,
        snapshot: &'a CoreSnapshot,
        backend: &'a Rc<Backend>,
        server_stream: UpstreamStream,
    ) -> Ended {
        let opened = match open(&mut parts, snapshot, backend, server_stream) {
            Ok(opened) => opened,
            Err(failed) => return Ended::Failed(failed, None),
        };
        let mut transfer = Transfer::new(parts, snapshot, backend, opened);
        let mut head_began = Instant::now();
        let head = match poll_fn(|context| transfer.poll_head(context)).await {
            Err(_) if transfer.progress.limits.special == Special::Late => {
                Box::pin(race::run(&mut transfer, snapshot, backend, &mut head_began)).await
            }
            head => head,
        };
        let ended = match head {
            Err(stop) => transfer.fail(stop),
            Ok(()) => {
                transfer.progress.note_head(head_began.elapsed().as_micros() as u64, backend);
                transfer.relay_changed().await
            }
        };
        if let Ended::Switched(_) = ended {
            return ended;
        }
        let is_clean = transfer.finish(&ended, backend);
        // Not the transfer is moved, which is large, but what is needed of it.
        let progress = &mut transfer.progress;
        match transfer.server {
            Upstream::Http1(Http1 { connection, .. }) => {
                if !is_clean && is_unanswered(&ended, progress.request.note.fault) {
                    closing::end(backend, connection);
                    return ended;
                }
                ended.with_permit(check_in(backend, connection, is_clean))
            }
            Upstream::Http2(http2) => {
                if ended.is_in_order() && progress.sent && http2.is_open() {
                    see_out(http2, &mut progress.request.note, backend);
                }
                ended
            }
            Upstream::FastCgi(fastcgi) => {
                let is_whole = ended.is_in_order() && progress.sent && !progress.server_spent;
                let is_given_up = is_unanswered(&ended, progress.request.note.fault);
                let permit = end_fastcgi(fastcgi, (is_whole, is_given_up), progress.request, backend);
                ended.with_permit(permit)
            }
        }
    }

    /// Inlined with what it calls, so that a transfer is built where it stays.
    #[inline(always)]
    fn new(parts: Parts<'a>, snapshot: &'a CoreSnapshot, backend: &'a Rc<Backend>, opened: Opened) -> Transfer<'a> {
        let Parts { client, request, upload, retry_state } = parts;
        let handle = Rc::clone(client.listener());
        let listener = snapshot.listener(&handle);
        let terms = &backend.terms;
        let min_rate = MinRateTimeout::new(listener.timeouts.body, listener.limits.body_rate_min);
        request.response.clear();
        let empty = matches!(request.head.body, RequestBody::None | RequestBody::Length(0));
        if empty {
            upload.end_copy();
        }
        let core = Rc::clone(client.core());
        let attempt_due = core.timers.now().saturating_add(terms.attempt);
        let server = match opened {
            Opened::Connection(connection) => Upstream::Http1(Http1::new(connection, &core, request.head.body)),
            Opened::Stream(http2) => Upstream::Http2(http2),
            Opened::FastCgi(fastcgi) => Upstream::FastCgi(fastcgi),
        };
        let progress = Progress {
            core,
            backend,
            request,
            upload,
            retry_state,
            sending: if empty { Sending::End } else { Sending::Body },
            sent: false,
            sent_any: false,
            sent_at: None,
            answered: false,
            informational: 0,
            server_spent: false,
            keeps: true,
            up: Pace::default(),
            down: Pace::default(),
            passed: 0,
            outstanding: 0,
            tunnel: false,
            ended: false,
            limits: Limits {
                upload: DirectionLimit::new(min_rate),
                download: DirectionLimit::new(min_rate),
                first_byte: terms.first_byte,
                body: terms.body,
                attempt_due,
                special: terms.special,
                tunnel_idle: listener.timeouts.tunnel_idle.as_millis() as u64,
            },
            download_first: false,
        };
        Transfer { client: Downstream::new(client, listener.takes_trailers), server, progress }
    }

    /// The fast path, if both sides speak HTTP/1.
    fn http1_pair(&mut self) -> Option<Http1Pair<'_, 'a>> {
        match (&mut self.client, &mut self.server) {
            (Downstream { client: ClientSide::Http1(connection), framing, .. }, Upstream::Http1(server)) => {
                Some(Http1Pair { connection, server, progress: &mut self.progress, framing: *framing })
            }
            _ => None,
        }
    }

    /// Drives both directions until the response's head is complete.
    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        // A stream that is reset before its request is sent is to cost the server nothing; once that is sent the
        // question is worth asking only while there is no answer.
        if !self.progress.sent && self.client.is_stream() {
            self.poll_gone(context)?;
        }
        let upload_first = !std::mem::take(&mut self.progress.download_first);
        if upload_first {
            self.poll_upload(context)?;
            self.progress.download_first = budget::is_spent();
        }
        if let Poll::Ready(result) = self.poll_response_head(context) {
            return Poll::Ready(result);
        }
        if !upload_first {
            self.poll_upload(context)?;
        }
        if self.progress.sent || self.progress.is_stalled() || !self.client.is_stream() {
            self.poll_gone(context)?;
        }
        self.poll_limits(context)
    }

    /// Ends the server's work at once if the client has given up. A connection of HTTP/1 is looked at while its server
    /// or the time for more is waited for: at other times it is read or written.
    #[inline]
    fn poll_gone(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        let progress = &self.progress;
        let gone = match &mut self.client.client {
            ClientSide::Http2(stream) => stream.poll_gone(context).map(|()| Fault::ClientReset),
            ClientSide::Http1(connection) => {
                // A request that waits owns no buffer.
                if progress.limits.download.waits_for(Side::Server) && connection.inbox.is_idle() {
                    progress.core.buffers.release(&mut connection.inbox);
                }
                let is_paced = progress.sent && progress.limits.download.waits_for(Side::Pace);
                match progress.tunnel || is_paced {
                    _ if !progress.leaves_client_alone() => return Ok(()),
                    // The end of one way of a tunnel is no end of the other. A response that is slowed down goes on for
                    // whoever asks for nothing more; a client that is gone is noticed by its next piece at the latest.
                    true => connection.stream.socket.poll_reset(context).map(|()| Fault::ClientReset),
                    false => connection.poll_gone(context),
                }
            }
        };
        match gone {
            Poll::Ready(why) => Err(Stop::Client(why)),
            Poll::Pending => Ok(()),
        }
    }

    /// Moves the request on. An error of the server is kept to itself here: it may have answered before it closed,
    /// and its answer is worth more than our complaint.
    fn poll_upload(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        if self.progress.sent {
            return Ok(());
        }
        let polled = match self.http1_pair() {
            Some(mut pair) => pair.poll_request(context),
            None => self.poll_pieces(context),
        };
        match polled {
            Poll::Pending => return Ok(()),
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(Stop::Server(_))) if self.progress.sent_any && !self.progress.tunnel => {
                self.progress.server_spent = true;
            }
            Poll::Ready(Err(stop)) => return Err(stop),
        }
        self.progress.note_request_sent();
        Ok(())
    }

    /// Sends the request's body piece by piece. Ready when all of it has been.
    fn poll_pieces(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let Transfer { client, server, progress } = self;
        for _ in 0..PIECES_PER_POLL_MAX {
            // Body bytes that are here already go out with the head. What comes behind the head of a tunnel is no body.
            let has_more = progress.sending == Sending::Body && client.has_piece(progress.upload);
            if !(server.has_head_alone() && has_more) {
                let (written, sent) = server.poll_send(context, &progress.core.services);
                // The client may send as much anew as the server has taken.
                client.release(written.body);
                ready!(progress.note_sent(written, sent))?;
            }
            if progress.sending == Sending::End {
                return match progress.tunnel {
                    true => server.poll_end(context, &progress.core),
                    false => Poll::Ready(Ok(())),
                };
            }
            let Poll::Ready(piece) = client.poll_piece(context, progress.upload, progress.request) else {
                progress.limits.upload.wait_for(Side::Client, &progress.core);
                return Poll::Pending;
            };
            match piece? {
                Piece::Data(piece) => {
                    progress.note_piece(&piece, client.counts_pieces());
                    server.stage(&progress.core, piece);
                }
                Piece::Later => {
                    progress.limits.upload.wait_for(Side::Pace, &progress.core);
                    return Poll::Pending;
                }
                Piece::End(trailers) => {
                    server.stage_end(&progress.core.services, &trailers);
                    progress.sending = Sending::End;
                }
            }
        }
        budget::spend(Budget::Pieces, context);
        Poll::Pending
    }

    fn poll_response_head(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        loop {
            let Transfer { client, server, progress } = self;
            if progress.informational > 0
                && let Poll::Ready(Err(stop)) = client.poll_room(context)
            {
                return Poll::Ready(Err(stop));
            }
            let Request { head, text, response, .. } = &mut *progress.request;
            let asked = head.asked(text);
            let Poll::Ready(head) = server.poll_head(context, &progress.core, asked, &mut progress.answered, response)
            else {
                progress.limits.download.wait_for(Side::Server, &progress.core);
                return Poll::Pending;
            };
            head?;
            if let Some(last) = self.take_head()? {
                return Poll::Ready(last);
            }
        }
    }

    /// Checks a head that has come, if it is the last; hands an interim one on.
    #[inline(always)]
    fn take_head(&mut self) -> Result<Option<Result<(), Stop>>, Stop> {
        match self.progress.request.response.status {
            200..400 => Ok(Some(self.check_switch())),
            101 | 400.. => Ok(Some(self.check_switch().and_then(|()| self.check_status()))),
            _ => self.pass_informational().map(|()| None),
        }
    }

    /// Checks that the response opens a tunnel if a client of HTTP/2 takes it to do so: any 2xx would (RFC 9110
    /// §9.3.6), and a server of HTTP/1.1 that answers as if there were no Upgrade is free to. The key that the server
    /// has to prove to have read was made here.
    fn check_switch(&self) -> Result<(), Stop> {
        let request = &*self.progress.request;
        let (ClientSide::Http2(_), Some(_)) = (&self.client.client, request.head.upgrade) else { return Ok(()) };
        let response = &request.response;
        match response.status {
            200..300 => Err(server_fault(Fault::UpgradeIgnored)),
            101 if response.version == Version::Http2 => Ok(()),
            101 => {
                let key = request.head.fields.value(&request.text, "Sec-WebSocket-Key").unwrap_or_default();
                let accept = response.fields.value(self.server.head_text(), "Sec-WebSocket-Accept");
                let is_right = accept == Some(websocket::accept(key).as_bytes());
                if is_right { Ok(()) } else { Err(server_fault(Fault::BadSwitch)) }
            }
            _ => Ok(()),
        }
    }

    /// Checks that the response is the last word: its route may have another attempt made for such a status, where all
    /// of the request can be sent again.
    fn check_status(&self) -> Result<(), Stop> {
        let Progress { request, upload, backend, .. } = &self.progress;
        let is_meant = request.is_asked_again(request.response.status) && request.head.method.is_idempotent();
        if !is_meant || !upload.is_untouched() || request.note.attempts > backend.terms.retries {
            return Ok(());
        }
        if !backend.spend_retry() {
            return Ok(());
        }
        Err(Stop::Server(Attempt::new(Fault::RetriedStatus, Repeatable::Unanswered)))
    }

    /// Hands an interim response (RFC 9110 §15.2) on.
    fn pass_informational(&mut self) -> Result<(), Stop> {
        let Transfer { client, server, progress } = self;
        progress.informational += 1;
        if progress.informational > INFORMATIONAL_MAX {
            return Err(server_fault(Fault::BadResponse));
        }
        let length = progress.request.response.length;
        if progress.request.changes_response {
            response::amend_interim(&client.client, progress.request, server.head_text());
        }
        client.send_informational(progress.request, server.head_text());
        server.skip_head(length);
        progress.request.response.clear();
        Ok(())
    }

    /// Relays a response whose head is complete, as the route's steps change it. Inlined: few have any.
    #[inline(always)]
    async fn relay_changed(&mut self) -> Ended {
        if self.progress.request.changes_response && self.amend() {
            return Ended::Over(self.replace().await);
        }
        match Rewriting::begin(self) {
            None => self.relay().await,
            Some(Rewriting::Compressed(compression)) => Box::pin((*compression).relay(self)).await,
            Some(Rewriting::Web(call)) => Box::pin(call.relay(self)).await,
        }
    }

    /// Relays a response as it is.
    async fn relay(&mut self) -> Ended {
        if let Err(stop) = self.send_head() {
            return self.fail(stop);
        }
        if let Some(switched) = self.switch() {
            return Ended::Switched(switched);
        }
        match poll_fn(|context| self.poll_body(context)).await {
            Ok(()) => Ended::Over(self.over()),
            Err(stop) => self.fail(stop),
        }
    }

    /// Changes the response's head as the route's steps say. True: a page takes the place of the response.
    #[cold]
    fn amend(&mut self) -> bool {
        let Transfer { client, server, progress } = self;
        response::amend(&client.client, progress.request, progress.backend, server.head_text())
    }

    /// Answers with the page that takes the response's place. What is here of its body is thrown away, so that the
    /// server's connection can be used again; for more of it nobody waits.
    async fn replace(&mut self) -> After {
        let Transfer { client, server, progress } = self;
        progress.upload.note_taken(progress.request);
        let after = answer_page(&mut client.client, progress.request, server.head_text());
        let length = progress.request.response.length;
        server.begin_body(&progress.request.response);
        server.skip_head(length);
        let mut left = DISCARDED_BYTES_MAX;
        poll_fn(|context| {
            while !server.is_read() && left > 0 {
                let Poll::Ready(Ok(part)) = server.poll_part(context, &progress.core, (0, left)) else { break };
                if let Some(mut data) = part.data {
                    left = left.saturating_sub(data.len());
                    progress.core.buffers.release(&mut data);
                }
            }
            Poll::Ready(())
        })
        .await;
        after
    }

    #[inline(always)]
    fn send_head(&mut self) -> Result<(), Stop> {
        let is_leaving = self.is_leaving();
        let Transfer { client, server, progress } = self;
        client.commit(progress.upload, progress.request);
        let response = &progress.request.response;
        let (length, is_switch) = (response.length, response.status == 101);
        let is_long = matches!(response.body, ResponseBody::Length(length) if length >= LONG_BODY_BYTES);
        progress.down.note_long(is_long);
        let is_body = is_switch || server.begin_body(response);
        // The rest of the request is not waited for, and its end is not known (RFC 9112 §9.6). Nor can be told whether
        // a client sends a body that waits for 100 when it gets this response instead.
        progress.keeps = is_switch || (progress.request.head.keep_alive && progress.upload.is_read() && !is_leaving);
        let first_flight = match (&client.client, &mut *server) {
            (ClientSide::Http1(_), Upstream::Http1(server)) => server.take_first_flight(length),
            _ => 0,
        };
        let (text, keep_alive) = (server.head_text(), progress.keeps);
        client.send_head(progress.request, &Head { text, first_flight, is_body, keep_alive })?;
        server.skip_head(length + first_flight);
        Ok(())
    }

    /// Whether nothing follows on the client's connection.
    fn is_leaving(&self) -> bool {
        self.progress.core.is_leaving(self.client.client.listener())
    }

    /// Turns a transfer whose response has switched protocols into a tunnel. Between two connections of HTTP/1 that is
    /// all theirs: they are given away. Elsewhere the body is what was switched to from here on (RFC 8441 §5).
    fn switch(&mut self) -> Option<Box<Switched>> {
        if self.progress.request.response.status != 101 {
            return None;
        }
        if let Some(Http1Pair { server, .. }) = self.http1_pair() {
            let answer = std::mem::take(&mut server.answer);
            let connection = &mut server.connection;
            let server = Box::new(ServerConnection {
                stream: connection.stream.take(),
                permit: connection.permit.take(),
                ..**connection
            });
            return Some(Box::new(Switched { server, answer }));
        }
        self.progress.core.metrics.increment(self.client.client.metrics().tunnels);
        let Transfer { server, progress, .. } = self;
        server.begin_tunnel();
        (progress.tunnel, progress.sending, progress.sent) = (true, Sending::Body, false);
        progress.limits.begin_tunnel();
        None
    }

    /// Drives both directions until the response is with the client's side.
    fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        // A stream takes what is left of its response by itself.
        if self.server.is_read() && self.client.is_stream() && !self.progress.is_tunnel_open() {
            return Poll::Ready(Ok(()));
        }
        // The rest of the request is nothing to a response that is complete.
        let is_complete = self.is_complete();
        if is_complete {
            self.progress.limits.upload.clear();
        }
        let upload_first = !std::mem::take(&mut self.progress.download_first);
        if upload_first && !is_complete {
            self.poll_upload(context)?;
            self.progress.download_first = budget::is_spent();
        }
        let polled = match self.http1_pair() {
            Some(mut pair) => pair.poll_download(context),
            None => self.poll_parts(context),
        };
        if let Poll::Ready(result) = polled {
            result?;
            if !self.progress.is_tunnel_open() {
                return Poll::Ready(Ok(()));
            }
        }
        if !upload_first && !is_complete {
            self.poll_upload(context)?;
        }
        self.poll_gone(context)?;
        self.poll_limits(context)
    }

    /// Whether nothing more is to come of the response, though the client may still have to take some of it.
    fn is_complete(&self) -> bool {
        !self.progress.tunnel && self.server.is_read()
    }

    /// Passes the response's body on part by part. Ready when all of it is with the client's side.
    fn poll_parts(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let Transfer { client, server, progress } = self;
        loop {
            // A client that does not read must not fill our memory. A stream takes what is left by itself.
            let is_over = server.is_read() && (progress.tunnel || client.is_stream()) || server.has_end();
            // Body bytes that are here already go out with the head.
            let is_first_flight = !server.is_read() && server.has_part() && client.outstanding() < FIRST_FLIGHT_BYTES;
            let room = match is_over || is_first_flight && !client.is_stream() {
                true => Poll::Ready(Ok(())),
                false => client.poll_room(context),
            };
            progress.note_taken(client.outstanding());
            if room.is_pending() {
                progress.limits.download.wait_for(Side::Client, &progress.core);
                return Poll::Pending;
            }
            ready!(room)?;
            if server.is_read() {
                if progress.tunnel && !progress.ended {
                    ready!(client.poll_end(context))?;
                    progress.ended = true;
                }
                return Poll::Ready(Ok(()));
            }
            let room = match progress.passed > 0 && !client.is_crowded() {
                true if client.is_alone() => progress.down.read_bytes(),
                true => progress.down.read_bytes().min(LARGE_BYTES),
                false => 0,
            };
            let Poll::Ready(part) = server.poll_part(context, &progress.core, (room, client.part_max())) else {
                progress.limits.download.wait_for(Side::Server, &progress.core);
                return Poll::Pending;
            };
            let part = part?;
            progress.limits.download.clear();
            let length = client.pass(progress.request, part)?;
            progress.passed += length as u64;
            // The connection has leave of its own for what is sealed of a stream's.
            let count = if client.is_stream() { 1 } else { 2 };
            progress.down.note_read(length, count, &progress.core.buffers);
            progress.outstanding = client.outstanding();
            if progress.outstanding == 0 {
                server.widen(&client.client, progress.passed);
            }
            // A part that fills a small buffer is not the last of the body.
            progress.down.note_long(length >= PIECE_BYTES);
        }
    }

    /// Sets the deadline to the nearest limit, or says which one was met.
    #[inline(always)]
    fn poll_limits(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let (client, progress) = (&self.client.client, &mut self.progress);
        let now = progress.core.timers.now();
        // Waits for a client that is not heard do not count.
        if client.is_paused() {
            progress.limits.excuse_client(now);
        }
        let phase = Phase { has_head: progress.request.note.has_head(), sent: progress.sent };
        let next = match progress.limits.special {
            Special::None => progress.limits.next(now, phase),
            special => {
                if special == Special::Hedged && progress.is_late(context) {
                    progress.limits.special = Special::Late;
                    return Poll::Ready(Err(server_fault(Fault::FirstByteTimeout)));
                }
                progress.next_special_limit(now, phase)
            }
        };
        match next {
            Ok(due) => {
                client.deadline().set(due, context.waker());
                Poll::Pending
            }
            Err((wait, stop)) => {
                client.count_timeout(wait);
                Poll::Ready(Err(stop))
            }
        }
    }

    /// Decides what becomes of the client's connection once the response is with its side.
    fn over(&mut self) -> After {
        if self.client.is_stream() {
            return After::Next;
        }
        if self.progress.tunnel {
            return After::Close;
        }
        if !self.progress.upload.is_read() {
            // The server answered without waiting for the rest of the request. What is left of it cannot be told from
            // the next request unless it is read, so this connection ends.
            if let ClientSide::Http1(connection) = &mut self.client.client {
                connection.owes_body = true;
            }
            return After::Linger;
        }
        // The head's word holds: a drain that began since then is told of by the next answer.
        if self.progress.keeps && !self.client.ends_connection() {
            return After::Next;
        }
        // A client that meant to stay may have sent more: unread, it would make a reset of the close.
        let was_to_stay = self.progress.request.head.keep_alive && self.is_leaving();
        if was_to_stay { After::Linger } else { After::Close }
    }

    fn fail(&mut self, stop: Stop) -> Ended {
        let progress = &mut self.progress;
        let begun = progress.request.note.status != 0;
        let attempt = match stop {
            Stop::Server(attempt) => attempt,
            Stop::Client(fault) => return self.fail_client(fault, begun),
        };
        if let ClientSide::Http2(stream) = &mut self.client.client {
            stream.abort_reason = self.server.abort_reason();
            stream.cut_short = begun;
        }
        if !begun {
            let owed = !progress.upload.is_whole() && (!progress.sent || progress.server_spent);
            return Ended::Failed(attempt.with_body_owed(owed), None);
        }
        progress.request.note.fault = Some(attempt.fault);
        progress.core.metrics.increment(progress.backend.metrics().faults.of(attempt.fault));
        Ended::Over(After::Abort)
    }

    /// Ends a request for its client's fault. A client that sent a body we cannot take, or took too long, is answered
    /// so if no response has begun.
    fn fail_client(&mut self, fault: Fault, begun: bool) -> Ended {
        let (client, progress) = (&mut self.client.client, &mut self.progress);
        // A client that closes a tab leaves a tunnel without a word: most of them end so, and nobody is at fault.
        if !(progress.tunnel && fault == Fault::ClientReset) {
            progress.request.note.fault = Some(fault);
            progress.core.metrics.increment(client.metrics().faults.of(fault));
        }
        // A stream is reset for a bad body already.
        let can_hear = fault != Fault::BadBody || matches!(client, ClientSide::Http1(_));
        if fault.status() > 0 && can_hear && !begun {
            answer_fault(client, progress.request, fault);
            return Ended::Over(After::Linger);
        }
        if let ClientSide::Http2(stream) = client {
            stream.abort_reason = Reason::CANCEL;
        }
        Ended::Over(After::Abort)
    }

    /// Gives memory back. Whether the server's connection can carry another request; a stream has none to give.
    #[inline(always)]
    fn finish(&mut self, ended: &Ended, backend: &Rc<Backend>) -> bool {
        let Transfer { server: Upstream::Http1(server), progress, .. } = self else { return false };
        if ended.is_in_order() && progress.request.note.has_head() && server.has_excess() {
            note_excess(&mut progress.request.note, backend);
        }
        if let Some(failure) = server.connection.stream.failure() {
            log_tls_failure(backend, server.connection.key.server, failure);
        }
        server.finish(&progress.core)
            && matches!(ended, Ended::Held(_) | Ended::Over(After::Next | After::Close))
            && progress.sent
            && !progress.server_spent
            && progress.request.response.keep_alive
    }
}

/// A server's connection that a request goes out on, or the stream on which it has begun.
enum Opened {
    Connection(Box<ServerConnection>),
    Stream(Box<Http2>),
    FastCgi(Box<FastCgi>),
}

/// Writes the request's head, as HTTP/1 has it, into the core's scratch memory. A stream begins with it; a connection
/// is to send it, and the body behind it if that is here already.
fn open(
    parts: &mut Parts<'_>,
    snapshot: &CoreSnapshot,
    backend: &Rc<Backend>,
    server_stream: UpstreamStream,
) -> Result<Opened, Attempt> {
    let Parts { client, request, upload, .. } = parts;
    if let Upload::Paced(paced) = &mut **upload {
        paced.rewind();
    }
    let core = Rc::clone(client.core());
    let mut scratch = core.scratch.borrow_mut();
    scratch.clear();
    let permit = match server_stream {
        UpstreamStream::Connection(connection) => {
            if let ClientSide::Http2(stream) = client {
                request.head.body = upload.framing(stream, request.head.body);
            }
            let last = backend.state.pool.is_last_request(&connection);
            write_request_head(client, request, snapshot, last, &mut scratch);
            begin_upload(client, request, snapshot, upload, &mut scratch);
            return Ok(Opened::Connection(connection));
        }
        UpstreamStream::Stream(permit) => permit,
        UpstreamStream::FastCgi(connection) => {
            request.head.body = match (&mut *client, upload.held_length()) {
                // Trailers are nothing to this server.
                (_, Some(length)) => RequestBody::Length(length),
                (ClientSide::Http2(stream), None) => upload.framing(stream, request.head.body),
                (ClientSide::Http1(_), None) => request.head.body,
            };
            let opening = fastcgi::opening(client, request, snapshot, backend, &mut scratch);
            // A client that was told to send its body is not told again.
            request.head.expect_continue = false;
            return Ok(Opened::FastCgi(Box::new(FastCgi::new(connection, &core, opening))));
        }
    };
    if !is_websocket(request) {
        // HTTP/2 has a word for this protocol alone; a server may answer an Upgrade as if there were none.
        request.head.upgrade = None;
    }
    drop(scratch);
    let http2 = Http2::open(permit, &request.head, |fields, is_tls| {
        write_request_fields(client, request, snapshot, is_tls, fields);
    })?;
    Ok(Opened::Stream(Box::new(http2)))
}

/// Puts a body that has come with its head behind that, and makes room for one that will be long, for clients of
/// HTTP/1.
fn begin_upload(
    client: &mut ClientSide<'_>,
    request: &Request,
    snapshot: &CoreSnapshot,
    upload: &Upload,
    out: &mut Vec<u8>,
) {
    let ClientSide::Http1(connection) = client else { return };
    match upload {
        Upload::Whole(length) => {
            let body = &connection.inbox.readable()[..*length];
            match request.head.body {
                RequestBody::Chunked => {
                    write_whole_chunked(body, request, snapshot.listener(&connection.listener), out);
                }
                _ => out.extend_from_slice(body),
            }
        }
        Upload::Length { remaining, .. } if *remaining >= LONG_BODY_BYTES && connection.inbox.capacity() > 0 => {
            connection.core.buffers.enlarge(&mut connection.inbox);
        }
        _ => {}
    }
}

fn is_websocket(request: &Request) -> bool {
    let protocols = request.head.protocols(&request.text).unwrap_or_default();
    let has_key = request.head.fields.value(&request.text, "Sec-WebSocket-Key").is_some();
    has_key && elements(protocols).any(|protocol| protocol.eq_ignore_ascii_case(b"websocket"))
}

/// Whether a server may still be at work on a request that is over here: nobody waits for its answer any more.
fn is_unanswered(ended: &Ended, fault: Option<Fault>) -> bool {
    match ended {
        Ended::Failed(failed, _) => failed.fault.status() == 504,
        Ended::Over(_) => fault.is_some(),
        Ended::Switched(_) | Ended::Held(_) => false,
    }
}
