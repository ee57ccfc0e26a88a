//! A second attempt beside a first that is late: the first head decides, and the other attempt is cancelled.
//!
//! Requests of this kind have no body and have been sent whole, so that an attempt is the head alone. The second goes
//! to another server, is paid from the budget of repeats, and waits in no queue (`upstream/checkout/rival.rs`). As long
//! as both are under way the transfer is the first's; what the second has of its own is here, and changes places with
//! the first's when it wins. If the first fails the second takes its place, and no repeat is bought. Why it is so:
//! `docs/decisions/0065-per-route.md`.

use std::future::poll_fn;
use std::mem::{replace, swap};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use propylon_http::fault::Fault;
use propylon_http::h1::{RequestBody, ResponseHead};
use propylon_metrics::Counter;
use propylon_net::alarms::sleep;
use propylon_observe::telemetry::{HedgeMetrics, Wait};
use propylon_policy::reuse::Fit;

use super::limits::Phase;
use super::progress::Progress;
use super::stop::{Stop, server_fault};
use super::upstream::Upstream;
use super::upstream::http1::Http1;
use super::upstream::rest::end_fastcgi;
use super::{Opened, Parts, Transfer, open};
use crate::exchange::blame::Cause;
use crate::exchange::record::{self, AttemptRecord};
use crate::fault::{Attempt, Repeatable};
use crate::request::Request;
use crate::services::Services;
use crate::snapshot::CoreSnapshot;
use crate::trace::{self, Reached, Trace};
use crate::upstream::backend::Backend;
use crate::upstream::checkout::rival::{self, Coming};
use crate::upstream::checkout::{Client, UpstreamStream};
use crate::upstream::closing;
use crate::upstream::connect::{check_in, log_tls_failure};
use crate::upstream::in_flight::InFlight;
use crate::upstream::terms::{Hedge, Late, Special};

const RETRIED_STATUS: Attempt = Attempt::new(Fault::RetriedStatus, Repeatable::Unanswered);
const LATE: Attempt = Attempt::new(Fault::FirstByteTimeout, Repeatable::No);

/// Waits for a response's head whose server is late, or is late by a percentile at some time, with a second attempt if
/// there may be one. `began`: when the attempt began that it is of.
pub async fn run(
    transfer: &mut Transfer<'_>,
    snapshot: &CoreSnapshot,
    backend: &Rc<Backend>,
    began: &mut Instant,
) -> Result<(), Stop> {
    // At most one for each attempt.
    transfer.progress.limits.special = Special::Timed;
    transfer.progress.request.silence_alarm();
    if !may_be_sent_twice(transfer) {
        return head(transfer).await;
    }
    let Hedge::Percentile(late) = &backend.terms.hedge else { return race(transfer, snapshot, backend, began).await };
    let since = Instant::now();
    let (is_late, head) = match head_unless_late(transfer, late).await {
        Some(head) => (false, head),
        None => (true, Box::pin(race(transfer, snapshot, backend, began)).await),
    };
    note(late, backend.state.pool.core(), since, (is_late, &head));
    head
}

/// Whether the request may go to two servers at once.
fn may_be_sent_twice(transfer: &Transfer<'_>) -> bool {
    let progress = &transfer.progress;
    let head = &progress.request.head;
    let is_bare = matches!(head.body, RequestBody::None | RequestBody::Length(0)) && head.upgrade.is_none();
    is_bare && head.method.is_idempotent() && progress.sent && !progress.server_spent
}

/// Waits for a head until the server is late; none where it is. While the percentile is not known no server is late,
/// nor is one that has answered in part.
async fn head_unless_late(transfer: &mut Transfer<'_>, late: &Late) -> Option<Result<(), Stop>> {
    let after = late.first_bytes.late_after(late.place);
    let mut alarm = after.map(|after| Box::pin(sleep(after)));
    poll_fn(|context| {
        if let Poll::Ready(head) = transfer.poll_head(context) {
            return Poll::Ready(Some(head));
        }
        if transfer.progress.answered || transfer.progress.informational > 0 {
            alarm = None;
        }
        match &mut alarm {
            Some(alarm) => alarm.as_mut().poll(context).map(|()| None),
            None => Poll::Pending,
        }
    })
    .await
}

/// Takes note of how long a server has taken since then, which was late or was not. Where another has answered in its
/// place it has taken longer than the percentile, which is all that counts: without it all would seem to be quick. An
/// attempt that failed before it was late says nothing.
fn note(late: &Late, core: usize, since: Instant, (is_late, head): (bool, &Result<(), Stop>)) {
    let is_timeout = matches!(head, Err(Stop::Server(failed)) if failed.fault == Fault::FirstByteTimeout);
    if is_late || head.is_ok() || is_timeout {
        late.first_bytes.note(core, since.elapsed());
    }
}

/// Waits for a head whose server is late.
async fn race(
    transfer: &mut Transfer<'_>,
    snapshot: &CoreSnapshot,
    backend: &Rc<Backend>,
    began: &mut Instant,
) -> Result<(), Stop> {
    let Some(second) = begin(transfer, backend) else { return head(transfer).await };
    let race = Race { transfer, snapshot, backend, began, second, first_failed: None };
    race.run().await
}

/// Begins a second attempt; none where none can be had now.
fn begin(transfer: &mut Transfer<'_>, backend: &Rc<Backend>) -> Option<Second> {
    let Transfer { client, progress, .. } = transfer;
    let (request, retry_state) = (&mut *progress.request, &*progress.retry_state);
    // A cookie's client is to have its own server.
    let is_free = retry_state.affinity.server.is_none() && request.note.attempts <= backend.terms.retries;
    let first = request.note.server.filter(|_| is_free)?;
    let (server, tier) = rival::other(backend, retry_state, first)?;
    if !backend.spend_hedge() {
        return None;
    }
    let fit = if retry_state.fresh { Fit::New } else { Fit::Any };
    let Some(rival) = rival::begin(&mut client.client, backend, (server, tier), fit) else {
        backend.refund_hedge();
        return None;
    };
    request.note.attempts += 1;
    let mut attempt = None;
    if let Trace::Recorded(_) = request.trace {
        let first = attempt_of(request).and_then(Option::take);
        trace::begin_attempt(&mut request.trace, progress.core.tracer.borrow_mut().as_mut(), Instant::now());
        attempt = attempt_of(request).and_then(|now| replace(now, first));
    }
    let stage = Stage::Coming(rival.coming, Instant::now());
    Some(Second { server, turn: rival.turn, stage, reused: false, connect_us: None, attempt })
}

/// The attempt in progress of a request that is recorded.
fn attempt_of(request: &mut Request) -> Option<&mut Option<trace::Attempt>> {
    if let Trace::Recorded(recording) = &mut request.trace { Some(&mut recording.attempt) } else { None }
}

/// A second attempt.
struct Second {
    server: usize,
    turn: InFlight,
    stage: Stage,
    /// On a connection that has served before.
    reused: bool,
    connect_us: Option<u64>,
    /// Span of the attempt, while the request's record has that of the first.
    attempt: Option<trace::Attempt>,
}

enum Stage {
    /// The connection is not there, and is waited for since then.
    Coming(Coming, Instant),
    Asked(Box<Asked>),
}

/// A second attempt on its connection.
struct Asked {
    server: Upstream,
    response: ResponseHead,
    began: Instant,
    /// Since when an answer is owed, in milliseconds on the core's clock: when the request was sent whole.
    since: Option<u64>,
    sent_any: bool,
    /// The server takes nothing any more; it may have answered before.
    spent: bool,
    answered: bool,
}

/// Event that a race goes on with.
enum Event {
    FirstHead,
    SecondHead,
    FirstFailed(Attempt),
    /// Without a fault where there was no connection to be had without a queue.
    SecondFailed(Option<Attempt>),
    /// The second is on its connection, and the first has failed.
    SecondAlone,
    /// Neither has anybody to answer any more, or any time.
    Over(Stop),
}

struct Race<'r, 'a> {
    transfer: &'r mut Transfer<'a>,
    snapshot: &'r CoreSnapshot,
    backend: &'r Rc<Backend>,
    began: &'r mut Instant,
    second: Second,
    /// Why the first came to nothing, if it has, before the second was on its connection.
    first_failed: Option<Attempt>,
}

impl<'r, 'a> Race<'r, 'a> {
    async fn run(mut self) -> Result<(), Stop> {
        loop {
            match poll_fn(|context| self.poll(context)).await {
                Event::FirstHead => return go_on(self.cancel_second(|hedges| hedges.first)).await,
                Event::SecondHead => {
                    let transfer = self.promote();
                    count(transfer, |hedges| hedges.second);
                    return go_on(transfer).await;
                }
                Event::FirstFailed(failed) => self.first_failed = Some(failed),
                Event::SecondAlone => {
                    let transfer = self.promote();
                    let head = head(transfer).await;
                    count(transfer, |hedges| if head.is_ok() { hedges.second } else { hedges.neither });
                    return head;
                }
                Event::SecondFailed(failed) => {
                    let first_failed = self.first_failed;
                    if failed.is_none() {
                        // No server was asked.
                        let note = &mut self.transfer.progress.request.note;
                        note.attempts = note.attempts.saturating_sub(1);
                        self.backend.refund_hedge();
                    }
                    let transfer = self.end_second(failed);
                    let head = match first_failed {
                        // The head is here: another attempt is bought, or it is the last word.
                        Some(failed) if failed.fault == Fault::RetriedStatus => go_on(transfer).await,
                        Some(failed) => Err(Stop::Server(failed)),
                        None => head(transfer).await,
                    };
                    count(transfer, |hedges| if head.is_ok() { hedges.first } else { hedges.neither });
                    return head;
                }
                Event::Over(stop) => {
                    tell_first_failed(&mut self.transfer.progress, self.backend, self.first_failed);
                    self.cancel_second(|hedges| hedges.neither);
                    return Err(stop);
                }
            }
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        if self.first_failed.is_none()
            && let Poll::Ready(event) = self.poll_first(context)
        {
            return Poll::Ready(event);
        }
        if let Poll::Ready(event) = self.poll_second(context) {
            return Poll::Ready(event);
        }
        if let Err(stop) = self.transfer.poll_gone(context) {
            return Poll::Ready(Event::Over(stop));
        }
        self.poll_limits(context)
    }

    /// Any head decides, an interim one too: its client hears of it.
    fn poll_first(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        let Transfer { server, progress, .. } = &mut *self.transfer;
        let Request { head, text, response, .. } = &mut *progress.request;
        let asked = head.asked(text);
        let polled = ready!(server.poll_head(context, &progress.core, asked, &mut progress.answered, response));
        Poll::Ready(match polled {
            Ok(()) if progress.request.is_asked_again(progress.request.response.status) => {
                Event::FirstFailed(RETRIED_STATUS)
            }
            Ok(()) => Event::FirstHead,
            Err(Stop::Server(failed)) => Event::FirstFailed(failed),
            Err(stop) => Event::Over(stop),
        })
    }

    fn poll_second(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        if let Stage::Coming(coming, since) = &mut self.second.stage {
            let (came, since) = (ready!(coming.as_mut().poll(context)), *since);
            if let Err(failed) = came.and_then(|stream| self.ask(stream, since).map_err(Some)) {
                return Poll::Ready(Event::SecondFailed(failed));
            }
        }
        if self.first_failed.is_some() {
            return Poll::Ready(Event::SecondAlone);
        }
        let Stage::Asked(asked) = &mut self.second.stage else { return Poll::Pending };
        let progress = &self.transfer.progress;
        if let Err(failed) = asked.send(context, &progress.core.services, &self.second.turn) {
            return Poll::Ready(Event::SecondFailed(Some(failed)));
        }
        let Request { head, text, .. } = &*progress.request;
        let Asked { server, response, answered, .. } = &mut **asked;
        let polled = ready!(server.poll_head(context, &progress.core, head.asked(text), answered, response));
        Poll::Ready(match polled {
            Ok(()) if progress.request.is_asked_again(response.status) => Event::SecondFailed(Some(RETRIED_STATUS)),
            Ok(()) => Event::SecondHead,
            Err(Stop::Server(failed)) => Event::SecondFailed(Some(failed)),
            Err(stop) => Event::Over(stop),
        })
    }

    /// Sets the deadline to the nearest limit, of either attempt or of the whole request.
    fn poll_limits(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        let (client, progress) = (&self.transfer.client.client, &self.transfer.progress);
        let (now, left) = (progress.core.timers.now(), progress.request.millis_left());
        if left == Some(0) {
            client.count_timeout(Wait::Request);
            return Poll::Ready(Event::Over(server_fault(Fault::RequestTimeout)));
        }
        let mut due = now.saturating_add(left.unwrap_or(u64::MAX));
        if self.first_failed.is_none() {
            match progress.limits.next(now, Phase { has_head: false, sent: true }) {
                Ok(next) => due = due.min(next),
                Err((wait, stop)) => {
                    client.count_timeout(wait);
                    return Poll::Ready(match stop {
                        Stop::Server(failed) => Event::FirstFailed(failed),
                        stop => Event::Over(stop),
                    });
                }
            }
        }
        if let Stage::Asked(asked) = &self.second.stage
            && let Some(since) = asked.since
        {
            let met = since.saturating_add(self.backend.terms.first_byte);
            if now >= met {
                client.count_timeout(Wait::FirstByte);
                return Poll::Ready(Event::SecondFailed(Some(LATE)));
            }
            due = due.min(met);
        }
        client.deadline().set(due, context.waker());
        Poll::Pending
    }

    /// Begins the request on the second's connection, or its stream.
    fn ask(&mut self, stream: UpstreamStream, since: Instant) -> Result<(), Attempt> {
        let Transfer { client, progress, .. } = &mut *self.transfer;
        let second = &mut self.second;
        second.reused = stream.is_used();
        if second.reused {
            progress.core.metrics.increment(self.backend.server_metrics(second.server).reused);
        } else {
            second.connect_us = Some(since.elapsed().as_micros() as u64);
        }
        if let Some(attempt) = &mut second.attempt {
            attempt.rival = Some((record::reached(&stream), second.reused));
        }
        // The server is told of the span of its own attempt.
        let mut swap_spans = |request: &mut Request| {
            if let Some(attempt) = attempt_of(request) {
                swap(attempt, &mut second.attempt);
            }
        };
        swap_spans(progress.request);
        let mut parts = Parts {
            client: client.client.reborrow(),
            request: progress.request,
            upload: progress.upload,
            retry_state: progress.retry_state,
        };
        // The head speaks of the second as its server.
        let first = parts.request.note.server.replace(second.server);
        let opened = open(&mut parts, self.snapshot, self.backend, stream);
        progress.request.note.server = first;
        swap_spans(progress.request);
        let server = match opened? {
            Opened::Connection(connection) => {
                Upstream::Http1(Http1::new(connection, &progress.core, progress.request.head.body))
            }
            Opened::Stream(http2) => Upstream::Http2(http2),
            Opened::FastCgi(fastcgi) => Upstream::FastCgi(fastcgi),
        };
        second.stage = Stage::Asked(Box::new(Asked {
            server,
            response: ResponseHead::default(),
            began: Instant::now(),
            since: None,
            sent_any: false,
            spent: false,
            answered: false,
        }));
        Ok(())
    }

    /// Puts the second in the first's place, which has failed or is cancelled.
    fn promote(self) -> &'r mut Transfer<'a> {
        let Race { transfer, backend, began, second, first_failed, .. } = self;
        let Stage::Asked(asked) = second.stage else { return transfer };
        let mut asked = *asked;
        let Transfer { server, progress, .. } = &mut *transfer;
        tell_first_failed(progress, backend, first_failed);
        let first = replace(server, asked.server);
        progress.retry_state.promoted = Some(server.reached());
        swap(&mut progress.request.response, &mut asked.response);
        end_span(progress.request, backend, (Some(first.reached()), first_failed));
        if let Some(attempt) = attempt_of(progress.request) {
            *attempt = second.attempt;
        }
        let note = &mut progress.request.note;
        (note.server, note.reused, note.connect_us) = (Some(second.server), second.reused, second.connect_us);
        // The first is in flight no more.
        progress.retry_state.turn = Some(second.turn);
        progress.sent = asked.since.is_some() || asked.spent;
        (progress.sent_any, progress.server_spent, progress.answered) = (asked.sent_any, asked.spent, asked.answered);
        (progress.informational, progress.sent_at) = (0, None);
        progress.limits.upload.clear();
        // The server's time began when it was asked.
        progress.limits.download.clear();
        if let Some(since) = asked.since {
            progress.limits.download.wait_for_server_since(since);
        }
        *began = asked.began;
        dismiss(first, backend, progress.request, first_failed);
        transfer
    }

    /// Cancels the second, and counts how the race has ended.
    fn cancel_second(self, result: fn(&HedgeMetrics) -> Counter) -> &'r mut Transfer<'a> {
        count(self.transfer, result);
        self.end_second(None)
    }

    /// Ends the second, which has failed or is cancelled.
    fn end_second(self, failed: Option<Attempt>) -> &'r mut Transfer<'a> {
        let Race { transfer, backend, second, .. } = self;
        let Transfer { progress, .. } = &mut *transfer;
        if let Some(failed) = &failed {
            let status = if let Stage::Asked(asked) = &second.stage { asked.response.status } else { 0 };
            let cause = Cause::of(failed, second.reused, progress.retry_state);
            cause.tell(failed, status, &second.turn);
            cause.count_beside(failed, (backend, second.server), status, progress.retry_state);
        }
        let request = &mut *progress.request;
        if second.attempt.is_some() {
            let first = attempt_of(request).and_then(|now| replace(now, second.attempt));
            let server = request.note.server.replace(second.server);
            end_span(request, backend, (None, failed));
            request.note.server = server;
            if let Some(now) = attempt_of(request) {
                *now = first;
            }
        }
        if let Stage::Asked(asked) = second.stage {
            dismiss(asked.server, backend, request, failed);
        }
        transfer
    }
}

impl Asked {
    /// Sends what is left of the request.
    fn send(&mut self, context: &mut Context<'_>, core: &Rc<Services>, turn: &InFlight) -> Result<(), Attempt> {
        if self.since.is_some() || self.spent {
            return Ok(());
        }
        let (written, sent) = self.server.poll_send(context, core);
        self.sent_any |= written.all > 0;
        match sent {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => {
                (self.sent_any, self.since) = (true, Some(core.timers.now()));
                turn.sent();
            }
            Poll::Ready(Err(())) if self.sent_any => self.spent = true,
            Poll::Ready(Err(())) => return Err(Attempt::new(Fault::WriteFailed, Repeatable::Unsent)),
        }
        Ok(())
    }
}

/// Says of the first what its failure says, if it has failed.
fn tell_first_failed(progress: &mut Progress<'_>, backend: &Backend, failed: Option<Attempt>) {
    let note = &progress.request.note;
    let (Some(failed), Some(server)) = (failed, note.server) else { return };
    let cause = Cause::of(&failed, note.reused, progress.retry_state);
    if let Some(turn) = &progress.retry_state.turn {
        cause.tell(&failed, progress.request.response.status, turn);
    }
    cause.count_beside(&failed, (backend, server), progress.request.response.status, progress.retry_state);
}

async fn head(transfer: &mut Transfer<'_>) -> Result<(), Stop> {
    poll_fn(|context| transfer.poll_head(context)).await
}

/// Goes on with a head that has come, alone.
async fn go_on(transfer: &mut Transfer<'_>) -> Result<(), Stop> {
    match transfer.take_head()? {
        Some(last) => last,
        None => head(transfer).await,
    }
}

fn count(transfer: &Transfer<'_>, result: impl Fn(&HedgeMetrics) -> Counter) {
    let progress = &transfer.progress;
    progress.core.metrics.increment(result(&progress.backend.metrics().hedges));
}

/// Ends the span of an attempt that has failed, or was cancelled where it has not.
fn end_span(request: &mut Request, backend: &Backend, (reached, failed): (Option<Reached>, Option<Attempt>)) {
    let reused = request.note.reused;
    match failed {
        Some(Attempt { fault, .. }) => {
            record::end_attempt(request, backend, &AttemptRecord { connection: reached, fault: Some(fault), reused });
        }
        None => record::end_cancelled(request, backend, (reached, reused)),
    }
}

/// Leaves the server's side of an attempt that is over: its connection ends, or its stream is reset. A server that has
/// not answered may be at work.
fn dismiss(server: Upstream, backend: &Rc<Backend>, request: &mut Request, failed: Option<Attempt>) {
    let may_work = failed.is_none_or(|failed| failed.fault.status() == 504);
    match server {
        Upstream::Http1(mut http1) => {
            if let Some(failure) = http1.connection.stream.failure() {
                log_tls_failure(backend, http1.connection.key.server, failure);
            }
            http1.finish(&backend.services);
            match may_work {
                true => closing::end(backend, http1.connection),
                false => drop(check_in(backend, http1.connection, false)),
            }
        }
        Upstream::Http2(http2) => drop(http2),
        Upstream::FastCgi(fastcgi) => drop(end_fastcgi(fastcgi, (false, may_work), request, backend)),
    }
}
