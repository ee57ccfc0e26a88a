//! Forwarding: attempts at servers, and what to do when one fails.
//!
//! An attempt may be repeated when nothing of the request was sent, or when the request may be sent twice
//! (RFC 9110 §9.2.2), all of its body is still here, and no byte of a response has come. Repeats are limited by the
//! backend's retry budget, but for a first one after a connection that had been idle: that it was closed is no sign of
//! trouble. So an outage is not met with more attempts than it has requests and a fifth.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

use propylon_config::{Listener, ServerProtocol};
use propylon_http::fault::{Blame, Fault};
use propylon_http::h1::{Name, RequestBody};
use propylon_observe::telemetry::Wait;
use propylon_policy::credits::Credits;
use propylon_steps::Steps;
use propylon_steps::sticky::CookieTarget;

use crate::client::side::ClientSide;
use crate::exchange::answers::{answer_busy, answer_fault};
use crate::exchange::blame::Cause;
use crate::exchange::http10;
use crate::exchange::record::{self, AttemptRecord};
use crate::exchange::transfer::{Ended, Parts, Rest, Transfer, Upload, held};
use crate::exchange::tunnel;
use crate::fault::{Attempt, Repeatable};
use crate::request::{After, Request};
use crate::snapshot::CoreSnapshot;
use crate::trace::{self, Trace};
use crate::upstream::backend::Backend;
use crate::upstream::balance::{Affinity, is_failure};
use crate::upstream::checkout::{self, Client, Refusal, RetryState, Traits, UpstreamStream, streams};
use crate::upstream::connection::Permit;
use crate::upstream::terms::{Checkout, Special};

/// Forwards a request to one of a backend's servers and streams the answer.
pub async fn forward(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    snapshot: &Rc<CoreSnapshot>,
    backend: &Rc<Backend>,
) -> After {
    let in_progress = match arrive(client, request, snapshot, backend).await {
        Ok(in_progress) => in_progress,
        Err(after) => return after,
    };
    let handle = Rc::clone(client.listener());
    let listener = snapshot.listener(&handle);
    withhold_fields(request, listener);
    let mut forwarding = Forwarding::new(client, request, listener, backend);
    loop {
        // Before another attempt, which is not to be for nobody.
        if request.note.attempts > 0
            && let Some(why) = gone(client).await
        {
            return forwarding.refuse(client, request, &Refusal::ClientGone(why));
        }
        let traits = forwarding.begin_attempt(client, request);
        let checked_out = forwarding.checkout(client, request, traits).await;
        note_cookie(client, request, backend);
        let mut record = AttemptRecord { connection: None, fault: None, reused: request.note.reused };
        let (failed, permit) = match checked_out {
            Err(Refusal::Failed(failed)) => (failed, None),
            Err(refusal) => return forwarding.refuse(client, request, &refusal),
            Ok(server_stream) => {
                record.connection = Some(record::reached(&server_stream));
                let Forwarding { upload, retry_state, .. } = &mut forwarding;
                let parts = Parts { client: client.reborrow(), request, upload, retry_state };
                let after = match Transfer::run(parts, snapshot, backend, server_stream).await {
                    Ended::Failed(failed, permit) => Err((failed, permit)),
                    Ended::Over(after) => Ok(note_outcome(client, request, backend, after)),
                    Ended::Held(rest) => {
                        drop((retry_state.turn.take(), in_progress));
                        return Box::pin(drain(client, request, backend, (rest, record))).await;
                    }
                    Ended::Switched(switched) => {
                        note_outcome(client, request, backend, After::Next);
                        let ClientSide::Http1(connection) = client else { return After::Abort };
                        Ok(tunnel::run(connection, request, snapshot, backend, switched).await)
                    }
                };
                match after {
                    Err(failed) => failed,
                    Ok(after) => {
                        record.fault = request.note.fault;
                        record::end_attempt(request, backend, &record);
                        return after;
                    }
                }
            }
        };
        record.fault = Some(failed.fault);
        record.follow(forwarding.retry_state.promoted.take(), request);
        record::end_attempt(request, backend, &record);
        let may_be_silent = record.connection.is_some_and(|reached| !reached.is_http2);
        if may_be_silent && !record.reused && matches!(failed.fault, Fault::BadResponse | Fault::ClosedBeforeResponse) {
            doubt_http1(request, backend);
        }
        if let Some(after) = forwarding.give_up(client, request, Failure { failed, permit, may_be_silent }) {
            return after;
        }
        if let Some(steps) = request.steps.as_ref().map(|taken| Rc::clone(&taken.steps)) {
            Box::pin(pause(client, request, &steps)).await;
        }
    }
}

/// Counts a request as one of the backend's, whose servers of FastCGI get bodies of known length alone. An error: it has
/// ended so.
async fn arrive<'b>(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    snapshot: &CoreSnapshot,
    backend: &'b Rc<Backend>,
) -> Result<InProgress<'b>, After> {
    request.note.backend = Some(backend.id.0);
    client.note_backend(backend.metrics());
    if request.head.body == RequestBody::Chunked
        && let Some(fastcgi) = &backend.config().fastcgi
    {
        Box::pin(held::hold_whole(client, request, snapshot, fastcgi.body_buffer)).await?;
    }
    let in_progress = InProgress::begin(&backend.shared.circuit, backend.state.pool.core());
    in_progress.ok_or_else(|| refuse_open(client, request, backend))
}

/// Hands the rest of a response to its client, which is between that and this engine.
async fn drain(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    backend: &Rc<Backend>,
    (rest, mut record): (Box<Rest>, AttemptRecord),
) -> After {
    let after = rest.drain(client, request).await;
    let after = note_outcome(client, request, backend, after);
    record.fault = request.note.fault;
    record::end_attempt(request, backend, &record);
    after
}

/// Waits before the next attempt as long as the route says; not for a client that has gone, nor beyond the limit of
/// the whole request.
async fn pause(client: &mut ClientSide<'_>, request: &Request, steps: &Steps) {
    let core = Rc::clone(client.core());
    let random = core.services.random.borrow_mut().u64(..);
    let pause = steps.retries.as_ref().map_or(0, |retries| retries.pause(request.note.attempts, random));
    let due = core.timers.now() + pause.min(request.millis_left().unwrap_or(u64::MAX));
    client.rest();
    poll_fn(|context| {
        if core.timers.now() >= due || client.poll_gone(context).is_ready() {
            return Poll::Ready(());
        }
        client.deadline().set(due, context.waker());
        Poll::Pending
    })
    .await;
}

/// A server that was taken for one of HTTP/1.1 has not answered so on a new connection: it is asked again for HTTP/2.
fn doubt_http1(request: &Request, backend: &Backend) {
    let config = backend.config();
    if config.protocol == ServerProtocol::Auto
        && config.tls.is_none()
        && let Some(server) = request.note.server
    {
        backend.servers[server].endpoint.forget_http1();
    }
}

/// Keeps fields of the client's from servers: those that the listener adds itself, and announcements of trailers that
/// do not come, since bodies of that kind go on without trailers.
pub(super) fn withhold_fields(request: &mut Request, listener: &Listener) {
    if !listener.request_headers.is_empty() {
        let ours = listener.request_headers.iter().map(|header| header.name.as_str());
        request.head.fields.withhold(&request.text, ours);
    }
    if !listener.takes_trailers || request.head.body != RequestBody::Chunked {
        request.head.fields.withhold_kinds(|kind| kind == Name::Trailer);
    }
}

/// A request on its way to a backend, over all of its attempts.
struct Forwarding<'s> {
    backend: &'s Rc<Backend>,
    upload: Upload,
    retry_state: RetryState,
}

impl<'s> Forwarding<'s> {
    /// Inlined, so that it is built where it stays.
    #[inline(always)]
    fn new(client: &ClientSide<'_>, request: &mut Request, listener: &Listener, backend: &'s Rc<Backend>) -> Self {
        let upload = match client {
            ClientSide::Http1(connection) => Upload::of(request, &connection.inbox, listener),
            ClientSide::Http2(_) => Upload::of_stream(request),
        };
        backend.shared.retries.earn(backend.state.pool.core());
        let affinity = affinity(client, request, backend);
        Forwarding { backend, upload, retry_state: RetryState { affinity, ..RetryState::default() } }
    }

    /// Counts another attempt. One of a request that is recorded has a span, which servers are told of.
    fn begin_attempt(&mut self, client: &ClientSide<'_>, request: &mut Request) -> Traits {
        request.note.attempts += 1;
        self.retry_state.turn = None;
        if let Trace::Recorded(_) = request.trace {
            let mut tracer = client.core().tracer.borrow_mut();
            trace::begin_attempt(&mut request.trace, tracer.as_mut(), Instant::now());
        }
        let is_idempotent = request.head.method.is_idempotent();
        Traits {
            is_first: client.ordinal() <= 1,
            is_repeatable: self.backend.terms.retries > 0 && self.upload.is_whole() && is_idempotent,
            is_idempotent,
        }
    }

    /// Waits for a connection, or a stream of one that carries many requests.
    async fn checkout(
        &mut self,
        client: &mut ClientSide<'_>,
        request: &mut Request,
        traits: Traits,
    ) -> Result<UpstreamStream, Refusal> {
        let (backend, retry_state) = (self.backend, &mut self.retry_state);
        let note = &mut request.note;
        match backend.terms.checkout {
            Checkout::Connection => checkout::checkout(client, note, backend, traits, retry_state).await,
            // Boxed, since the wait for a stream is the larger one.
            Checkout::Stream => {
                Box::pin(streams::checkout(client, note, backend, traits.is_idempotent, retry_state)).await
            }
            Checkout::Timed => Box::pin(self.checkout_in_time(client, request, traits)).await,
            Checkout::Http10 => Box::pin(self.checkout_http10(client, request, traits)).await,
            Checkout::FastCgi => {
                checkout::checkout(client, note, backend, traits, retry_state).await.map(UpstreamStream::of_fastcgi)
            }
        }
    }

    /// As [`Forwarding::checkout`], for a request that has been made one of HTTP/1.0.
    async fn checkout_http10(
        &mut self,
        client: &mut ClientSide<'_>,
        request: &mut Request,
        traits: Traits,
    ) -> Result<UpstreamStream, Refusal> {
        http10::prepare(client, request, &mut self.upload).await?;
        let is_watched = |steps: &Steps| steps.throttle.is_some() || !steps.mirrors.is_empty();
        let is_watched = request.steps.as_deref().is_some_and(is_watched);
        match self.backend.terms.special != Special::None || is_watched {
            true => self.checkout_in_time(client, request, traits).await,
            false => checkout::checkout(client, &mut request.note, self.backend, traits, &mut self.retry_state).await,
        }
    }

    /// As [`Forwarding::checkout`], within the limit of the whole request if it has one, and with a body that is slowed
    /// down, or kept for a copy, if the route wants that.
    async fn checkout_in_time(
        &mut self,
        client: &mut ClientSide<'_>,
        request: &mut Request,
        traits: Traits,
    ) -> Result<UpstreamStream, Refusal> {
        let timers = Rc::clone(&client.core().timers);
        self.upload.slow_down(request, client.core());
        self.upload.keep_copy(client, request);
        // The client's own is in use meanwhile.
        let deadline = timers.deadline();
        let due = timers.now().saturating_add(request.millis_left().unwrap_or(u64::MAX));
        let (backend, retry_state) = (self.backend, &mut self.retry_state);
        let note = &mut request.note;
        let mut checkout: Pin<Box<dyn Future<Output = _>>> = match backend.state.pool.streams_max > 0 {
            true => Box::pin(streams::checkout(client, note, backend, traits.is_idempotent, retry_state)),
            false => Box::pin(checkout::checkout(client, note, backend, traits, retry_state)),
        };
        poll_fn(|context| {
            if let Poll::Ready(checked_out) = checkout.as_mut().poll(context) {
                return Poll::Ready(match backend.config().fastcgi {
                    Some(_) => checked_out.map(UpstreamStream::of_fastcgi),
                    None => checked_out,
                });
            }
            if timers.now() >= due {
                return Poll::Ready(Err(Refusal::TimedOut));
            }
            deadline.set(due, context.waker());
            Poll::Pending
        })
        .await
    }

    /// The answer to a request that got no connection for this attempt, or the end of one whose client is gone.
    fn refuse(&self, client: &mut ClientSide<'_>, request: &mut Request, refusal: &Refusal) -> After {
        let is_here = is_body_here(request, &self.upload);
        refuse(client, request, (self.backend, is_here), refusal)
    }

    /// Counts a failed attempt. Returns how the request ends if there is to be no other.
    fn give_up(&mut self, client: &mut ClientSide<'_>, request: &mut Request, failure: Failure) -> Option<After> {
        let Forwarding { backend, upload, retry_state, .. } = self;
        let Failure { failed, permit, may_be_silent } = failure;
        let core = Rc::clone(client.core());
        let metrics = backend.metrics();
        let retries = backend.terms.retries;
        let server = request.note.server.unwrap_or(0);
        request.note.fault = Some(failed.fault);
        request.silence_alarm();
        let cause = Cause::of(&failed, request.note.reused, retry_state);
        if let Some(turn) = &retry_state.turn {
            cause.tell(&failed, request.response.status, turn);
        }
        cause.count(&failed, (backend, server), request.response.status, retry_state);
        retry_state.fresh_beside = false;
        let (stale, cut_off) = (cause == Cause::Stale, cause == Cause::CutOff);
        if stale {
            retry_state.kept = permit.map(|permit| (server, permit));
        }
        let (failed, is_taken) = by_rules(request, failed);
        let may_repeat = may_repeat(request, upload, &failed) && (is_taken || stale || cut_off);
        if retries == 0 || retry_state.failures > retries || !may_repeat {
            // On a connection that has served before a client takes an end without an answer for what it is, and may
            // ask again (RFC 9112 §9.3.1); an answer it would take for the last word.
            let silent = stale && may_be_silent && client.ordinal() > 1 && matches!(client, ClientSide::Http1(_));
            return Some(match silent {
                true => After::Close,
                false => end_failed(client, request, (backend, upload), &failed),
            });
        }
        if cut_off {
            // Outside of the budget, as those are which the server has closed while they were idle.
        } else if stale {
            core.metrics.increment(metrics.stale_retries);
        } else if failed.fault == Fault::RetriedStatus {
            // The budget has paid before the response was thrown away.
        } else if !backend.spend_retry() {
            return Some(end_failed(client, request, (backend, upload), &failed));
        }
        upload.rewind_held();
        core.metrics.increment(metrics.retries);
        request.note.fault = None;
        None
    }
}

async fn gone(client: &mut ClientSide<'_>) -> Option<Fault> {
    poll_fn(|context| match client.poll_gone(context) {
        Poll::Ready(why) => Poll::Ready(Some(why)),
        Poll::Pending => Poll::Ready(client.has_gone()),
    })
    .await
}

/// One of the requests that are at a backend.
pub(super) struct InProgress<'a> {
    circuit: &'a Credits,
    core: usize,
}

impl InProgress<'_> {
    /// Counts a request; `None` if there are as many as there may be.
    pub(super) fn begin(circuit: &Credits, core: usize) -> Option<InProgress<'_>> {
        circuit.take(core).then(|| InProgress { circuit, core })
    }
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.circuit.give_back(self.core);
    }
}

/// Counts what the server has made of a request that it got an answer for. What went wrong on the client's side says
/// nothing about the server, nor does what a client can bring about. Returns how the request ends.
fn note_outcome(client: &ClientSide<'_>, request: &Request, backend: &Rc<Backend>, after: After) -> After {
    let Some(server) = request.note.server else { return after };
    let status = request.response.status;
    // A status alone may be an answer of ours.
    if request.note.has_head() {
        backend.state.succeeded(server, client.core().timers.now());
    }
    let is_whole = !matches!(after, After::Abort);
    let failed = match request.note.fault {
        // The server has switched, as it was asked to. How the two then part is their affair.
        _ if status == 101 => false,
        None => is_failure(status),
        // The client has its response: that HEAD has a body at this server is no reason to do without it.
        Some(Fault::ExcessData) if is_whole => is_failure(status),
        Some(fault) if fault.blame() == Blame::Server => true,
        Some(_) => return after,
    };
    let metrics = backend.server_metrics(server);
    client.core().metrics.increment(if failed { metrics.failures } else { metrics.successes });
    after
}

/// Affinity of a request; notes the cookie's server for the log and counts cookies that name none.
fn affinity(client: &ClientSide<'_>, request: &mut Request, backend: &Rc<Backend>) -> Affinity {
    let sticky = backend.shared.sticky.as_ref();
    let config = backend.config();
    let (affinity, target) = Affinity::of(client.peer().ip(), request, config, sticky);
    request.note.cookie_server = affinity.server;
    request.changes_response |= sticky.is_some();
    if let Some(metrics) = &backend.metrics.sticky {
        let reason = match target {
            CookieTarget::Absent => "none",
            CookieTarget::Server(_) => return affinity,
            CookieTarget::Gone => "gone",
            CookieTarget::Forged => "forged",
        };
        client.core().metrics.increment(metrics.of(reason));
    }
    affinity
}

/// Counts whether a cookie that names a server was followed, once for each request.
fn note_cookie(client: &ClientSide<'_>, request: &Request, backend: &Rc<Backend>) {
    let note = &request.note;
    if let (Some(cookie_server), Some(server), 1) = (note.cookie_server, note.server, note.attempts)
        && let Some(metrics) = &backend.metrics.sticky
    {
        client.core().metrics.increment(metrics.of(if cookie_server == server { "hit" } else { "unusable" }));
    }
}

/// An attempt that failed.
struct Failure {
    failed: Attempt,
    /// The permit that its connection has left.
    permit: Option<Permit>,
    /// Whether the request was on a connection of HTTP/1: its server may have closed that, being idle, while the
    /// request was on its way. A server of HTTP/2 says which streams it has not looked at, others may be done.
    may_be_silent: bool,
}

fn may_repeat(request: &Request, upload: &Upload, failed: &Attempt) -> bool {
    match failed.repeatable {
        Repeatable::No => false,
        Repeatable::Unsent => upload.is_untouched(),
        Repeatable::Unanswered => upload.is_untouched() && request.head.method.is_idempotent(),
    }
}

/// A failure by the rules of the request's route, and whether that has another attempt made for it.
fn by_rules(request: &Request, failed: Attempt) -> (Attempt, bool) {
    let rules = request.steps.as_deref().and_then(|steps| steps.retries.as_ref());
    let Some(rules) = rules else { return (failed, true) };
    let is_taken = rules.takes_fault(failed.fault, failed.repeatable == Repeatable::Unsent);
    match failed.fault {
        Fault::FirstByteTimeout if is_taken => (Attempt { repeatable: Repeatable::Unanswered, ..failed }, true),
        _ => (failed, is_taken),
    }
}

/// Whether the request's route names another backend than this, which has no server for it; counts that.
fn turns_to_fallback(client: &ClientSide<'_>, request: &mut Request, backend: &Backend) -> bool {
    let fallback = request.steps.as_deref().and_then(|steps| steps.fallback);
    if fallback.is_none_or(|fallback| fallback == backend.id) {
        return false;
    }
    client.core().metrics.increment(backend.metrics().fallbacks);
    request.note.fault = None;
    true
}

/// The answer to a request beyond those that may be at the backend.
fn refuse_open(client: &mut ClientSide<'_>, request: &mut Request, backend: &Rc<Backend>) -> After {
    client.core().metrics.increment(backend.metrics().queue_refused.of(Fault::CircuitOpen));
    refuse(client, request, (backend, true), &Refusal::Queue(Fault::CircuitOpen))
}

/// Whether all of the body is here for another backend. A stream's copy of it is this attempt's alone, but for a body
/// that the route has taken.
fn is_body_here(request: &Request, upload: &Upload) -> bool {
    upload.is_untouched() && (upload.kept().is_none() || request.own_body().is_some())
}

/// The answer to a request that got no connection, or the end of one whose client is gone. The fallback is for those
/// whose body is here, which an attempt before may have taken.
fn refuse(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    (backend, is_here): (&Rc<Backend>, bool),
    refusal: &Refusal,
) -> After {
    match refusal {
        Refusal::NoServer | Refusal::Failed(_) | Refusal::Queue(_)
            if is_here && turns_to_fallback(client, request, backend) =>
        {
            After::Fallback
        }
        Refusal::TimedOut => {
            let fault = Fault::RequestTimeout;
            client.count_timeout(Wait::Request);
            client.core().metrics.increment(backend.metrics().faults.of(fault));
            answer_fault(client, request, fault)
        }
        Refusal::NoServer | Refusal::Failed(_) => {
            // All of them are known to be down, or drained: nobody was asked.
            let fault = if backend.state.open() == 0 { Fault::NoHealthyServer } else { Fault::NoServer };
            let core = Rc::clone(client.core());
            core.metrics.increment(backend.metrics().faults.of(fault));
            answer_busy(client, request, fault, 1)
        }
        Refusal::Queue(fault) => {
            let wait = match fault {
                Fault::CircuitOpen => 1,
                _ => backend.config().queue.timeout.as_secs().max(1),
            };
            answer_busy(client, request, *fault, wait)
        }
        Refusal::ClientGone(why) => {
            request.note.fault = Some(*why);
            client.core().metrics.increment(client.metrics().faults.of(*why));
            After::Abort
        }
        Refusal::Unfit(fault) => {
            request.note.fault = Some(*fault);
            client.core().metrics.increment(client.metrics().faults.of(*fault));
            answer_fault(client, request, *fault);
            After::Linger
        }
    }
}

/// Answers a request that there is to be no other attempt of, unless it can go to its route's fallback.
fn end_failed(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    (backend, upload): (&Backend, &Upload),
    failed: &Attempt,
) -> After {
    let is_unsent = failed.repeatable == Repeatable::Unsent && is_body_here(request, upload);
    if is_unsent && turns_to_fallback(client, request, backend) {
        return After::Fallback;
    }
    upload.note_taken(request);
    if let ClientSide::Http2(_) = client
        && matches!(failed.fault, Fault::StreamReset | Fault::RequestReset)
    {
        // As the server has said it.
        return After::Abort;
    }
    match failed.fault.status() {
        503 => answer_busy(client, request, failed.fault, 1),
        _ => answer_fault(client, request, failed.fault),
    }
}
