//! The life of a client connection, in the order in which it happens: handshake, then requests one after another with
//! quiet times between them, then an orderly end.

use std::future::poll_fn;
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use propylon_crypto::Outcome;
use propylon_http::fault::Fault;
use propylon_http::h1::{self, Parsed, Reject};
use propylon_net::budget::{self, Budget, REQUESTS_PER_POLL_MAX};
use propylon_net::buffer::{Buffer, SMALL_BYTES};
use propylon_net::client_stream::{Fill, ReadError};
use propylon_net::timers::coarse_millis;
use propylon_observe::telemetry::{Reason, Wait};
use propylon_policy::dispatch::Reason::Rest;
use propylon_tls::{Failure, FailureReason, Session, Step, Version};

use super::{announced, h2_connection};
use crate::alpn::is_http2;
use crate::client::connection::{Connection, REST_AFTER_MILLIS};
use crate::client::side::ClientSide;
use crate::core::{Core, REQUEST_TEXT_KEPT_MAX};
use crate::dispatch::{AtRest, Handover, Visitor};
use crate::exchange;
use crate::handshake_limiter::QueuedHandshake;
use crate::http2::PREFACE;
use crate::relay::{self, Relay};
use crate::request::{After, Request};
use crate::services::ListenerHandle;
use propylon_signer::Work;
use tokio::task::spawn_local;

/// A connection that was quiet for so long gives up its working state, and of its TLS session what can be remade from
/// the keys: a busy one would pay for it at every request.
const STANDS_BY_MILLIS: u64 = 1_000;
/// Connections of a core that keep their working state while they are quiet: to give it up and to make it
/// again for the next request costs as much as reading its head. They hold some 2 MiB together.
const STANDING_BY_MAX: usize = 256;
/// Bytes of a head that is not whole which are let come whether memory is short or not.
const HEAD_BYTES_FREE: usize = 1024;

/// Outcome of reading a head.
enum Arrival {
    Head,
    Http2,
    /// There is nothing more, of a head that has begun or at all.
    Quiet,
    Closed,
    Refused(Reject),
}

/// State in which a connection leaves its work.
enum Worked {
    /// The connection is quiet.
    Quiet,
    /// The connection has been quiet, with its working state, until this.
    Waited(Quiet),
    /// Another core has the connection.
    Moved,
    /// No request is to follow.
    Over(After),
}

/// One of the connections that keep their working state while they are quiet.
struct StandingBy<'a>(&'a Core);

impl StandingBy<'_> {
    /// `None` if there are as many as there may be.
    fn begin(core: &Core) -> Option<StandingBy<'_>> {
        let count = core.standing_by.get();
        (count < STANDING_BY_MAX).then(|| {
            core.standing_by.set(count + 1);
            StandingBy(core)
        })
    }
}

impl Drop for StandingBy<'_> {
    fn drop(&mut self) {
        self.0.standing_by.set(self.0.standing_by.get() - 1);
    }
}

/// State in which a connection leaves its task.
enum Left {
    /// The connection is over.
    Ended,
    /// The client speaks HTTP/2, which is to be served elsewhere.
    Http2,
    /// The connection rests, and is called when something comes or is due.
    Resting(Option<Box<Relay>>),
}

/// Outcome of a quiet time.
enum Quiet {
    /// Something can be read.
    News,
    /// Nothing more is waited for.
    Over,
    /// Nothing has come for as long as the working state is kept.
    Tired,
    /// Nothing is to be expected soon.
    Rest,
}

/// Limits of a quiet time, in milliseconds on the core's clock.
struct Pause {
    due: u64,
    /// Limit that counts: `None` once it is the connection's time to leave, and where a head has begun, which is not
    /// ended here.
    wait: Option<Wait>,
    /// Time to give up the working state.
    tired_at: u64,
    /// Time to rest.
    rest_at: u64,
}

/// Serves a client from accept to close. `announced`: a header of the PROXY protocol comes first; otherwise the
/// connection has been counted for its source, where sources have a limit. (Not an `async fn`: that would keep its
/// arguments beside the connection.)
pub fn serve(
    core: Rc<Core>,
    listener: Rc<ListenerHandle>,
    stream: TcpStream,
    peer: SocketAddr,
    announced: bool,
) -> impl Future<Output = ()> {
    run(Connection::new(core, listener, stream, peer, announced), None)
}

/// Serves a client until its connection ends or rests; in a rest it is no task. `relay`: what it had with it in its
/// rest.
fn run(mut connection: Connection, relay: Option<Box<Relay>>) -> impl Future<Output = ()> {
    let id = connection.deadline.id();
    async move {
        match connection.live(relay).await {
            Left::Ended => {}
            Left::Http2 => Box::pin(h2_connection::serve(connection)).await,
            Left::Resting(relay) => {
                let resting = Rc::clone(&connection.core.resting);
                resting.keep(id, Box::new(move || drop(spawn_local(run(connection, relay)))));
            }
        }
    }
}

/// Serves a client from a rest between two requests to close: it has come from another core.
pub fn go_on(
    core: Rc<Core>,
    listener: Rc<ListenerHandle>,
    stream: TcpStream,
    at_rest: AtRest,
) -> impl Future<Output = ()> {
    run(Connection::arrive(core, listener, stream, at_rest), None)
}

impl Connection {
    /// Admits a client that a proxy has announced, as the accept loop does for one that connects directly. False when
    /// there are too many handshakes, or too many of this client's, or too many connections of its source.
    pub fn admit_announced(&mut self) -> bool {
        if let Some(sources) = self.core.overload.sources() {
            let counted = sources.take(self.peer.ip());
            self.rare.get_or_insert_default().counted = counted;
            if !counted {
                self.core.metrics.increment(self.core.telemetry.overload.refused(Reason::Source));
                let _ = self.stream.socket.reset_on_close();
                return false;
            }
        }
        if self.stream.tls.is_none() {
            return true;
        }
        if let Err(refusal) = self.core.check_handshake(self.peer.ip()) {
            self.core.metrics.increment(self.core.telemetry.handshake_queue.refused.of(refusal));
            let _ = self.stream.socket.reset_on_close();
            return false;
        }
        self.core.begin_handshake(self.peer.ip());
        self.handshaking = true;
        true
    }

    /// Serves the client's requests. This future is kept small, since it is what a connection costs that has just
    /// become idle: working state is boxed and gone when the connection is quiet.
    async fn live(&mut self, relay: Option<Box<Relay>>) -> Left {
        // A connection that comes from its rest is still quiet.
        let mut has_news = !self.stream.socket.is_resting();
        if has_news && !Box::pin(self.begin()).await {
            return Left::Ended;
        }
        if relay.is_some() || has_news && !self.has_arrived() && self.is_relayed() {
            return Box::pin(relay::run(self, relay)).await.map_or(Left::Ended, |relay| Left::Resting(Some(relay)));
        }
        if has_news && self.facts.is_some_and(|facts| facts.alpn.is_some_and(is_http2)) {
            return Left::Http2;
        }
        loop {
            let worked = match has_news && !self.take_arrival() {
                true => Box::pin(self.work()).await,
                false => Worked::Quiet,
            };
            let quiet = match worked {
                Worked::Quiet => self.quiet(0).await,
                Worked::Waited(Quiet::Tired) => self.quiet(STANDS_BY_MILLIS).await,
                Worked::Waited(quiet) => quiet,
                Worked::Moved => return Left::Ended,
                Worked::Over(After::Http2) => return Left::Http2,
                Worked::Over(After::Abort) => {
                    let _ = self.stream.socket.reset_on_close();
                    return Left::Ended;
                }
                Worked::Over(after) => {
                    Box::pin(self.farewell(after)).await;
                    return Left::Ended;
                }
            };
            match quiet {
                Quiet::News => has_news = true,
                // Said to those alone who stand by.
                Quiet::Tired => has_news = false,
                Quiet::Rest => return Left::Resting(None),
                Quiet::Over => {
                    Box::pin(self.farewell(After::Close)).await;
                    return Left::Ended;
                }
            }
        }
    }

    /// Everything before the first request or byte. False when there is nothing more to do with the client.
    async fn begin(&mut self) -> bool {
        if self.is_announced() && !announced::read(self).await {
            return false;
        }
        if self.stream.tls.is_some() && self.facts.is_none() && !self.handshake().await {
            return false;
        }
        if self.stream.tls.as_ref().is_some_and(|session| session.was_challenge()) {
            self.core.metrics.increment(self.core.telemetry.acme.tls_alpn);
            self.farewell(After::Close).await;
            return false;
        }
        true
    }

    fn is_announced(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.announced)
    }

    /// The connection has come from another core, at rest, and nothing of it has been served here.
    fn has_arrived(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.has_arrived)
    }

    fn take_arrival(&mut self) -> bool {
        self.rare.as_mut().is_some_and(|rare| std::mem::take(&mut rare.has_arrived))
    }

    fn is_relayed(&self) -> bool {
        self.core.snapshot().listener(&self.listener).protocol.is_relay()
    }

    /// Hands the connection to another core, where it is to go to one. True when nothing is left of it here.
    fn has_moved(&mut self) -> bool {
        let core = Rc::clone(&self.core);
        let Some(dispatch) = core.dispatch() else { return false };
        let Some(to) = dispatch.note_rest(self.deadline.id(), |now| self.may_leave(now)) else { return false };
        let generation = core.snapshot().shared.generation;
        // Listeners that are gone are known to nobody else.
        let Some(index) = self.listener.index_in(generation) else { return false };
        // A socket that cannot be had is one whose client has gone.
        let Ok(leaving) = self.leave(coarse_millis()) else { return false };
        match dispatch.hand_over_at_rest(to, (generation, index), leaving) {
            Ok(()) => core.metrics.increment(core.telemetry.process.dispatched(Rest)),
            Err(Handover { stream, visitor, .. }) => {
                if let Visitor::AtRest(at_rest) = visitor {
                    spawn_local(go_on(core, Rc::clone(&self.listener), stream, *at_rest));
                }
            }
        }
        true
    }

    /// Waits for the next request, or for the rest of its head, with no buffer in hand. `waited`: so many milliseconds
    /// of the wait are over.
    fn quiet(&mut self, waited: u64) -> impl Future<Output = Quiet> {
        let mut pause = self.pause(waited);
        poll_fn(move |context| self.poll_quiet(context, &mut pause, false))
    }

    /// As [`Connection::quiet`], until the working state is to be given up.
    fn stand_by(&mut self) -> impl Future<Output = Quiet> {
        let mut pause = self.pause(0);
        poll_fn(move |context| self.poll_quiet(context, &mut pause, true))
    }

    /// Begins a quiet time, or goes on with one.
    fn pause(&self, waited: u64) -> Pause {
        let snapshot = self.core.snapshot();
        let timeouts = &snapshot.listener(&self.listener).timeouts;
        let now = self.core.timers.now();
        let since = now.saturating_sub(waited);
        let (due, wait) = match self.head_began() {
            Some(began) => (self.head_due(began, timeouts.request_head), None),
            None if self.requests == 0 => {
                (self.accepted + timeouts.request_head.as_millis() as u64, Some(Wait::RequestHead))
            }
            None => (since + timeouts.idle.as_millis() as u64, Some(Wait::Idle)),
        };
        if self.stream.socket.is_resting() {
            return Pause { due: self.deadline.due(), wait, tired_at: u64::MAX, rest_at: now };
        }
        // A connection that has waited keeps its seniority: the oldest are called first.
        match self.head_began() {
            _ if waited > 0 => {}
            Some(_) => self.deadline.rest_begun(),
            None => self.deadline.rest(),
        }
        let tired_at = if waited < STANDS_BY_MILLIS { since + STANDS_BY_MILLIS } else { u64::MAX };
        Pause { due, wait, tired_at, rest_at: since + REST_AFTER_MILLIS }
    }

    fn poll_quiet(&mut self, context: &mut Context<'_>, pause: &mut Pause, stands_by: bool) -> Poll<Quiet> {
        // A request that came before the drain began is answered: a close would destroy it, and its client could not
        // know whether it was carried out.
        if let Poll::Ready(readable) = self.stream.socket.poll_readable(context) {
            self.deadline.work();
            return Poll::Ready(if readable.is_ok() { Quiet::News } else { Quiet::Over });
        }
        let (is_begun, now) = (self.head_began().is_some(), self.core.timers.now());
        // A client that has just got an answer may be asking: it hears of the drain from the next one.
        let is_asking = now < pause.tired_at && pause.tired_at != u64::MAX;
        if self.core.hurries() && !is_begun && !is_asking || self.deadline.is_called() {
            return Poll::Ready(Quiet::Over);
        }
        if is_begun && now >= pause.due {
            // The code that reads the head reports its timeout.
            self.deadline.work();
            return Poll::Ready(Quiet::News);
        }
        if self.core.draining.get() && pause.wait.is_some() && self.requests > 0 {
            // A client that has not asked for anything yet is about to, and stays.
            pause.wait = None;
            let leaves_at = if is_asking { self.core.leaves_at().max(pause.tired_at) } else { self.core.leaves_at() };
            pause.due = pause.due.min(leaves_at);
        }
        if now >= pause.due {
            pause.wait.into_iter().for_each(|wait| self.count_timeout(wait));
            return Poll::Ready(Quiet::Over);
        }
        if now >= pause.tired_at {
            self.stream.tls.iter_mut().for_each(|session| session.rest());
            if stands_by {
                return Poll::Ready(Quiet::Tired);
            }
            pause.tired_at = u64::MAX;
        }
        if now >= pause.rest_at {
            if self.may_rest() && self.stream.socket.rest(&self.core.resting, self.deadline.id()) {
                self.deadline.leave(pause.due);
                return Poll::Ready(Quiet::Rest);
            }
            pause.rest_at = u64::MAX;
            // The socket is waited for anew.
            context.waker().wake_by_ref();
        }
        self.deadline.set(pause.due.min(pause.tired_at).min(pause.rest_at), context.waker());
        Poll::Pending
    }

    /// Whether nothing is on its way to the client but what waits for its request.
    fn may_rest(&self) -> bool {
        self.wire.is_empty() || self.requests == 0
    }

    /// Time at which the head began that is not complete yet.
    fn head_began(&self) -> Option<Instant> {
        self.rare.as_ref().and_then(|rare| rare.head_began)
    }

    /// Deadline of a head that began at `began`: that of the first head counts from the accept.
    fn head_due(&self, began: Instant, timeout: Duration) -> u64 {
        let since = if self.requests == 0 { self.accepted } else { self.core.timers.at(began) };
        since + timeout.as_millis() as u64
    }

    /// Serves requests as long as there is something of one to be read, or will be soon.
    async fn work(&mut self) -> Worked {
        let mut request = self.core.request();
        let core = Rc::clone(&self.core);
        let worked = loop {
            match self.work_with(&mut request).await {
                After::Next => {}
                after => break Worked::Over(after),
            }
            self.rest();
            if self.has_moved() {
                break Worked::Moved;
            }
            if self.stream.ended {
                break Worked::Over(After::Close);
            }
            let may_stand_by = self.requests > 0 && self.inbox.is_idle();
            let is_small = request.text.capacity() <= REQUEST_TEXT_KEPT_MAX;
            let standing_by = if may_stand_by && is_small { StandingBy::begin(&core) } else { None };
            let Some(_standing_by) = standing_by else { break Worked::Quiet };
            match self.stand_by().await {
                Quiet::News => {}
                quiet => break Worked::Waited(quiet),
            }
        };
        core.give_request_back(request);
        worked
    }

    async fn work_with(&mut self, request: &mut Request) -> After {
        let mut served = 0;
        loop {
            if served == REQUESTS_PER_POLL_MAX {
                served = 0;
                budget::wait_for_others(Budget::Requests).await;
            }
            served += 1;
            self.core.buffers.equip_small(&mut self.inbox);
            match self.read_head(request).await {
                Arrival::Quiet => return After::Next,
                Arrival::Closed => return After::Close,
                Arrival::Http2 => return After::Http2,
                Arrival::Refused(reject) => return exchange::refuse(&mut ClientSide::Http1(self), request, reject),
                Arrival::Head => {}
            }
            self.requests += 1;
            // The one that comes with its handshake is no reason to hurry others past handshakes.
            if self.requests > 1 {
                self.core.handshake_limiter.note_request();
            }
            match exchange::exchange(&mut ClientSide::Http1(self), request).await {
                // A close_notify came in the same read as the request: no event is left to tell of it.
                After::Next if self.inbox.is_idle() && self.stream.ended => return After::Close,
                After::Next if self.inbox.is_idle() => return After::Next,
                After::Next => {}
                after => return after,
            }
        }
    }

    /// Reads until a whole head is there, and takes it out of the inbox.
    async fn read_head(&mut self, request: &mut Request) -> Arrival {
        let core = Rc::clone(&self.core);
        let snapshot = core.snapshot();
        let handle = Rc::clone(&self.listener);
        let listener = snapshot.listener(&handle);
        let limits = h1::Limits { head_bytes: listener.limits.head_bytes, headers: listener.limits.headers };
        // A client that did not offer HTTP/2 where ALPN could have said so has another protocol in mind (RFC 9113
        // §3.3).
        let may_be_http2 =
            self.requests == 0 && listener.http2.enabled && self.facts.is_none_or(|facts| facts.alpn.is_none());
        let began = self.rare.as_mut().and_then(|rare| rare.head_began.take());
        request.begin(began.unwrap_or_else(Instant::now));
        // Never waits: a head that does not come whole is not worth a buffer and a request's memory meanwhile.
        let arrival = poll_fn(|context| match self.poll_head(context, request, &limits, may_be_http2) {
            Poll::Pending => Poll::Ready(Arrival::Quiet),
            ready => ready,
        })
        .await;
        match arrival {
            Arrival::Head => request.take_head(&mut self.inbox, began.is_some()),
            Arrival::Refused(ref reject) if reject.is_of_whole_head() => {
                request.take_head(&mut self.inbox, began.is_some());
            }
            Arrival::Quiet if !self.inbox.is_idle() => return self.await_rest(request, listener.timeouts.request_head),
            _ => {}
        }
        arrival
    }

    /// Handles a head that is not complete: it is refused after its timeout, or reset from 1 KiB on while memory is
    /// short; else the connection waits for the rest.
    fn await_rest(&mut self, request: &Request, timeout: Duration) -> Arrival {
        let core = &self.core;
        if core.timers.now() >= self.head_due(request.started, timeout) {
            self.count_timeout(Wait::RequestHead);
            return Arrival::Refused(Reject::of(Fault::RequestHeadTimeout));
        }
        // A connection let in with a byte is refused as newcomers are when it grows.
        if self.inbox.len() >= HEAD_BYTES_FREE && core.overload.refuses(|| core.random.borrow_mut().u16(..)) {
            core.metrics.increment(core.telemetry.overload.refused(Reason::Memory));
            let _ = self.stream.socket.reset_on_close();
            return Arrival::Closed;
        }
        self.rare.get_or_insert_default().head_began = Some(request.started);
        Arrival::Quiet
    }

    fn poll_head(
        &mut self,
        context: &mut Context<'_>,
        request: &mut Request,
        limits: &h1::Limits,
        may_be_http2: bool,
    ) -> Poll<Arrival> {
        loop {
            let here = self.inbox.readable();
            let shared = here.len().min(PREFACE.len());
            let begins_http2 = may_be_http2 && here[..shared] == PREFACE[..shared];
            if begins_http2 && shared == PREFACE.len() {
                return Poll::Ready(Arrival::Http2);
            }
            if !here.is_empty() && !begins_http2 {
                match h1::parse_request(self.inbox.readable(), limits, &mut request.head) {
                    Ok(Parsed::Complete) => return Poll::Ready(Arrival::Head),
                    Ok(Parsed::Partial) => {}
                    Err(reject) => return Poll::Ready(Arrival::Refused(reject)),
                }
            }
            match self.stream.poll_fill(context, &self.core.buffers, &mut self.inbox, &mut self.wire) {
                Poll::Pending => break,
                Poll::Ready(Ok(Fill::Bytes)) => {}
                Poll::Ready(Ok(Fill::End)) if self.inbox.is_empty() => return Poll::Ready(Arrival::Closed),
                Poll::Ready(Ok(Fill::End)) => {
                    let reject = Reject::of(Fault::HeadCutShort);
                    return Poll::Ready(Arrival::Refused(reject));
                }
                Poll::Ready(Err(ReadError::Io(_))) => return Poll::Ready(Arrival::Closed),
                Poll::Ready(Err(ReadError::Tls(failure))) => {
                    self.note_tls_failure(&failure);
                    return Poll::Ready(Arrival::Closed);
                }
            }
        }
        // Answers of TLS itself (to a key update) do not wait for a response.
        if !self.wire.is_empty() && self.requests > 0 {
            // A failed write shows at the next read or write as well.
            let _ = self.stream.poll_flush(context, &self.core.buffers, &mut self.wire);
        }
        Poll::Pending
    }

    /// The TLS handshake. False when there is nothing more to do with the client.
    async fn handshake(&mut self) -> bool {
        let core = Rc::clone(&self.core);
        let started = Instant::now();
        let timeout = core.snapshot().listener(&self.listener).timeouts.handshake.as_millis() as u64;
        let due = self.accepted + timeout;
        let mut handshake_wait = HandshakeWait::Read { at_once: true };
        let result = poll_fn(|context| {
            core.buffers.equip_small(&mut self.inbox);
            if let Poll::Ready(result) = self.poll_handshake(context, &mut handshake_wait) {
                return Poll::Ready(result);
            }
            if let HandshakeWait::Read { .. } = handshake_wait {
                core.buffers.fold(&mut self.inbox);
            }
            if core.timers.now() >= due {
                return Poll::Ready(Err(Unfinished::TimedOut));
            }
            self.deadline.set(due, context.waker());
            Poll::Pending
        })
        .await;
        drop(handshake_wait);
        self.end_handshake();
        match result {
            Ok(()) => {
                self.handshake_done(started);
                true
            }
            Err(unfinished) => {
                self.log_failed_handshake(&unfinished, started);
                self.handshake_failed(&unfinished);
                if self.wire.is_empty() {
                    self.give_buffers_back();
                } else {
                    self.farewell(After::Linger).await;
                }
                false
            }
        }
    }

    fn poll_handshake(
        &mut self,
        context: &mut Context<'_>,
        handshake_wait: &mut HandshakeWait,
    ) -> Poll<Result<(), Unfinished>> {
        if self.facts.is_some() {
            return self.poll_last_flight(context).map(Ok);
        }
        let mut answer = Vec::new();
        loop {
            let progress = self.progress(context, handshake_wait, &mut answer);
            let Some(session) = &mut self.stream.tls else { return Poll::Ready(Ok(())) };
            if !answer.is_empty() {
                // The client has to see it before it can answer.
                handshake_wait.read_later();
                self.core.buffers.equip(&mut self.wire);
                self.wire.extend(&answer);
                answer.clear();
            }
            match progress {
                Some(Ok(Step::Done)) => {
                    self.facts = Some(session.facts());
                    return self.poll_last_flight(context).map(Ok);
                }
                Some(Ok(Step::Work)) => {
                    if let Some(job) = session.take_job() {
                        *handshake_wait = HandshakeWait::Work(self.core.submit(job));
                    }
                    continue;
                }
                Some(Ok(_)) | None => {}
                Some(Err(failure)) => return Poll::Ready(Err(Unfinished::Failed(failure))),
            }
            if let Poll::Ready(Err(_)) = self.stream.poll_flush(context, &self.core.buffers, &mut self.wire) {
                return Poll::Ready(Err(Unfinished::Closed));
            }
            let spare = self.inbox.capacity() - self.inbox.sealed_len();
            let room = match handshake_wait {
                HandshakeWait::Read { .. } if self.inbox.sealed_len() >= Session::WANT_MAX => {
                    return Poll::Ready(Err(Unfinished::Closed));
                }
                HandshakeWait::Read { .. } if spare < 1024 => SMALL_BYTES,
                HandshakeWait::Read { .. } => 1024,
                // A client that goes away is noticed as long as there is room; what it sends finds no more than that.
                HandshakeWait::Admission(_) | HandshakeWait::Work(_) if spare == 0 => {
                    return self.stream.socket.poll_reset(context).map(|()| Err(Unfinished::Closed));
                }
                HandshakeWait::Admission(_) | HandshakeWait::Work(_) => 1,
            };
            let into = self.inbox.sealed_spare(room);
            let read = match handshake_wait {
                HandshakeWait::Read { at_once: true } => self.stream.socket.poll_read(context, into),
                _ => self.stream.socket.poll_read_later(context, into),
            };
            match read {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(Unfinished::Closed)),
                Poll::Ready(Ok(count)) => self.inbox.sealed_filled(count),
            }
        }
    }

    /// Takes the handshake on, with the outcome of its work or with bytes that the client sent; `None` if neither is
    /// there, or if its turn has not come.
    fn progress(
        &mut self,
        context: &mut Context<'_>,
        handshake_wait: &mut HandshakeWait,
        answer: &mut Vec<u8>,
    ) -> Option<Result<Step, Failure>> {
        let Connection { core, stream, inbox, .. } = self;
        let session = stream.tls.as_mut()?;
        let outcome = match handshake_wait {
            HandshakeWait::Work(pending) => match Pin::new(pending).poll(context) {
                Poll::Ready(outcome) => Some(outcome),
                Poll::Pending => return None,
            },
            HandshakeWait::Read { .. } if inbox.sealed_len() == 0 => return None,
            HandshakeWait::Read { .. } | HandshakeWait::Admission(_) => None,
        };
        if outcome.is_none() && poll_admission(context, core, session, inbox, handshake_wait).is_pending() {
            return None;
        }
        if !matches!(handshake_wait, HandshakeWait::Read { .. }) {
            *handshake_wait = HandshakeWait::Read { at_once: false };
        }
        let began = Instant::now();
        let step = match outcome {
            Some(outcome) => resume(session, outcome, inbox, answer),
            None => advance(session, inbox, answer),
        };
        core.handshake_limiter.charge(began.elapsed());
        Some(step)
    }

    /// Flushes our last flight. In TLS 1.2 the client waits for our Finished before it sends its request, so nobody
    /// may wait for that request before the Finished is on its way. A socket that the event loop has only just met may
    /// not be written to yet.
    fn poll_last_flight(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let is_awaited = self.facts.is_some_and(|facts| facts.version == Version::Tls12);
        if !is_awaited || self.inbox.sealed_len() > 0 {
            return Poll::Ready(());
        }
        // A failed write shows at the next read as well.
        self.stream.poll_flush(context, &self.core.buffers, &mut self.wire).map(drop)
    }

    fn handshake_done(&mut self, started: Instant) {
        let micros = started.elapsed().as_micros() as u64;
        self.handshake_us = Some(u32::try_from(micros).unwrap_or(u32::MAX));
        let metrics = self.metrics();
        self.core.metrics.observe(metrics.handshake_duration, micros);
        let Some(facts) = &self.facts else { return };
        let certificate = facts.certificate.map(propylon_config::KeyType::name);
        if let Some(counter) = metrics.handshakes.of(facts.version.name(), certificate, facts.resumed) {
            self.core.metrics.increment(counter);
        }
        metrics.resumption.count(&self.core.metrics, &facts.resumption);
        // Routing goes by the Host field, except for relays: the server name is of use to the log alone. Over HTTP/2
        // the name also says for which names the connection was made.
        let is_http2 = facts.alpn.is_some_and(is_http2);
        if !self.is_relayed() && !is_http2 && !self.core.log.borrow().is_on() {
            let core = Rc::clone(&self.core);
            self.forget_hello_info(&core.snapshot());
        }
    }

    /// Logs a failed handshake, as often as the throttle admits. A client that closes is not logged.
    fn log_failed_handshake(&self, unfinished: &Unfinished, started: Instant) {
        let (reason, detail) = match unfinished {
            Unfinished::Closed => return,
            Unfinished::TimedOut => ("timeout", "the client took too long"),
            Unfinished::Failed(failure) => (failure.reason.label(), failure.detail.as_str()),
        };
        let Some(withheld) = self.core.failures_logged.borrow_mut().admit(self.core.timers.now()) else { return };
        let snapshot = self.core.snapshot();
        let (peer, listener) = (self.peer, &snapshot.listener(&self.listener).name);
        let micros = started.elapsed().as_micros();
        let hello_info = self.hello_info();
        let name = hello_info.and_then(|known| known.server_name.as_deref()).unwrap_or("-");
        let ja4 = hello_info.and_then(|known| known.ja4.as_deref()).map_or("-", propylon_tls::Ja4::as_str);
        let others = if withheld > 0 { format!(" ({withheld} more were not logged)") } else { String::new() };
        log::info!(
            "TLS handshake failed: client={peer} listener={listener} server_name={name} ja4={ja4} \
             reason={reason} duration_us={micros} detail={detail:?}{others}"
        );
    }

    fn handshake_failed(&mut self, unfinished: &Unfinished) {
        match unfinished {
            Unfinished::TimedOut => {
                self.count_timeout(Wait::Handshake);
                self.core.metrics.increment(self.metrics().handshake_failures.timed_out);
            }
            // A port check or a client that changed its mind.
            Unfinished::Closed => self.core.metrics.increment(self.metrics().handshake_failures.closed),
            Unfinished::Failed(failure) => {
                self.note_tls_failure(failure);
                if failure.reason == FailureReason::NotTls && looks_like_http(&mut self.inbox) {
                    self.wire = Buffer::default();
                    self.wire.extend(PLAIN_ON_TLS);
                }
                // Bytes that could not be opened will not be looked at again.
                self.core.buffers.release(&mut self.inbox);
            }
        }
    }

    /// Gives up what a quiet connection does not need. The end of a handshake may wait for the first response, to go
    /// out with it, but not in a whole buffer; nor may the begin of a head.
    fn rest(&mut self) {
        self.core.buffers.fold(&mut self.inbox);
        self.core.buffers.fold(&mut self.wire);
    }
}

/// Why a handshake did not finish.
enum Unfinished {
    TimedOut,
    Closed,
    Failed(Failure),
}

/// Answer for a browser that speaks HTTP to a port that speaks TLS.
const PLAIN_ON_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\
Content-Length: 55\r\nConnection: close\r\n\r\nThis port speaks TLS: use https:// instead of http://.\n";

fn looks_like_http(inbox: &mut Buffer) -> bool {
    let (window, sealed) = inbox.sealed_window();
    let text = &window[sealed];
    [&b"GET "[..], b"HEAD ", b"POST ", b"PUT ", b"OPTIONS ", b"DELETE ", b"PATCH "].iter().any(|m| text.starts_with(m))
}

/// Event that a handshake waits for.
enum HandshakeWait {
    /// Bytes from the client. At once: there may be some already.
    Read { at_once: bool },
    /// Admission by the core's limiter, with a whole ClientHello in the inbox.
    Admission(QueuedHandshake),
    /// The outcome of what it is parked for.
    Work(Work),
}

impl HandshakeWait {
    fn read_later(&mut self) {
        if let HandshakeWait::Read { at_once } = self {
            *at_once = false;
        }
    }
}

/// Waits until the handshake may go on with the bytes in the inbox: at once, unless they are a whole ClientHello that
/// the core's limiter queues.
fn poll_admission(
    context: &mut Context<'_>,
    core: &Core,
    session: &mut Session,
    inbox: &mut Buffer,
    handshake_wait: &mut HandshakeWait,
) -> Poll<()> {
    let wait = core.telemetry.handshake_queue.wait;
    if let HandshakeWait::Read { .. } = handshake_wait {
        let (window, sealed) = inbox.sealed_window();
        let Some(class) = session.hello_class(&window[sealed]) else { return Poll::Ready(()) };
        match core.handshake_limiter.admit(class) {
            Some(queued) => *handshake_wait = HandshakeWait::Admission(queued),
            None => {
                core.metrics.observe(wait, 0);
                return Poll::Ready(());
            }
        }
    }
    let HandshakeWait::Admission(queued) = handshake_wait else { return Poll::Ready(()) };
    queued.poll(context).map(|waited| core.metrics.observe(wait, waited.as_micros() as u64))
}

fn resume(session: &mut Session, outcome: Outcome, inbox: &mut Buffer, answer: &mut Vec<u8>) -> Result<Step, Failure> {
    let (window, sealed) = inbox.sealed_window();
    let (consumed, step) = session.resume(outcome, &mut window[sealed], answer)?;
    inbox.opened(consumed, 0);
    Ok(step)
}

fn advance(session: &mut Session, inbox: &mut Buffer, answer: &mut Vec<u8>) -> Result<Step, Failure> {
    let (window, sealed) = inbox.sealed_window();
    let (consumed, step) = session.handshake(&mut window[sealed], answer)?;
    inbox.opened(consumed, 0);
    Ok(step)
}

#[cfg(test)]
mod parked_tests;
#[cfg(test)]
mod session_tests;

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of_future<A, B, C, D, E, F>(_: fn(A, B, C, D, E) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn an_idle_connection_is_a_small_future() {
        // With tokio's part (about 110 bytes) it fills a block of 512; the allocator's next one is 768.
        let size = bytes_of_future(serve);
        assert!(size <= 352, "{size} bytes");
    }

    #[test]
    fn a_connection_at_rest_is_a_block_of_256_bytes() {
        let connection = size_of::<Connection>();
        assert!(connection + size_of::<Option<Box<Relay>>>() <= 256, "{connection} bytes");
    }
}
