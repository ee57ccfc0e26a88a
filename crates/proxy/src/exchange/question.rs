//! Questions about a request to another service, which says who may come in. The request waits for the answer, and
//! nothing of its body is read before that.
//!
//! A question goes out as requests do: by the pool of its backend, to a server that is well, by HTTP/1 or HTTP/2,
//! within the backend's timeouts; and again where its connection turns out to be closed, or the backend's retries and
//! its budget allow it. It has a span of its own. It is given up when its client goes away.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

use propylon_config::Forwarded;
use propylon_http::fault::{Blame, Fault};
use propylon_http::h1::{self, ClientAddress, ForwardContext, Method, RequestBody};
use propylon_http::h2;
use propylon_identity::{Forward, Question};

use super::attempt::{InProgress, withhold_fields};
use super::heads;
use super::reading::{Answer, Reading, Wanted};
use super::record::{self, AttemptRecord};
use super::transfer::{Http1, Http2, Upstream};
use crate::client::side::ClientSide;
use crate::fault::{Attempt, Repeatable};
use crate::request::Request;
use crate::snapshot::CoreSnapshot;
use crate::trace::{self, Trace};
use crate::upstream::backend::Backend;
use crate::upstream::balance::{Affinity, is_failure};
use crate::upstream::checkout::{self, Client, Refusal, RetryState, Traits, UpstreamStream, streams};
use crate::upstream::terms::Checkout;

/// Bytes of an answer's body. Clients get it where the answer is a refusal.
const BODY_BYTES_MAX: usize = 256 * 1024;
/// Repeats of one question, beside those that the backend's retries allow: of connections that were closed meanwhile.
const STALE_MAX: u32 = 4;

/// Asks a question about a request.
///
/// # Errors
/// The fault of the last attempt, or of the client if that has gone.
pub async fn ask(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    snapshot: &CoreSnapshot,
    (forward, question): (&Forward, Question),
) -> Result<Answer, Fault> {
    let backend = &snapshot.backends[forward.backend.0];
    let core = Rc::clone(client.core());
    let Some(_in_progress) = InProgress::begin(&backend.shared.circuit, backend.state.pool.core()) else {
        core.metrics.increment(backend.metrics().queue_refused.of(Fault::CircuitOpen));
        return Err(Fault::CircuitOpen);
    };
    backend.shared.retries.earn(backend.state.pool.core());
    let mut own = Box::new(Request::about(request, question.head, question.text));
    own.note.backend = Some(backend.id.0);
    // Spans of questions are beside those of attempts at servers.
    own.trace = std::mem::replace(&mut request.trace, Trace::Off);
    withhold_fields(&mut own, snapshot.listener(client.listener()));
    let sticky = backend.shared.sticky.as_ref();
    let affinity = Affinity::of(client.peer().ip(), &own, backend.config(), sticky).0;
    let retry_state = RetryState { affinity, ..RetryState::default() };
    let host = forward.host.as_deref();
    let due = request.millis_left().map_or(u64::MAX, |left| core.timers.now() + left);
    let mut asking = Asking { backend, host, due, own, retry_state, stale: 0 };
    let answer = loop {
        match asking.attempt(client, snapshot).await {
            Ok(answer) => break Ok(answer),
            Err(why) => {
                if let Some(fault) = asking.give_up(why) {
                    break Err(fault);
                }
            }
        }
    };
    request.trace = std::mem::replace(&mut asking.own.trace, Trace::Off);
    answer
}

/// A question, over all of its attempts.
struct Asking<'a> {
    backend: &'a Rc<Backend>,
    host: Option<&'a str>,
    /// Time at which the request has waited for long enough, in milliseconds.
    due: u64,
    own: Box<Request>,
    retry_state: RetryState,
    /// Attempts on connections that were closed meanwhile.
    stale: u32,
}

/// Why there is no answer.
enum Why {
    Refused(Refusal),
    Failed(Attempt),
    Gone(Fault),
}

impl Asking<'_> {
    async fn attempt(&mut self, client: &mut ClientSide<'_>, snapshot: &CoreSnapshot) -> Result<Answer, Why> {
        let (own, backend) = (&mut self.own, self.backend);
        own.note.attempts += 1;
        (own.note.fault, self.retry_state.turn) = (None, None);
        if let Trace::Recorded(_) = own.trace {
            let mut tracer = client.core().tracer.borrow_mut();
            trace::begin_attempt(&mut own.trace, tracer.as_mut(), Instant::now());
        }
        let checked_out = self.checkout(client).await;
        let mut record = AttemptRecord { connection: None, fault: None, reused: self.own.note.reused };
        let answer = match checked_out {
            Ok(server_stream) => {
                record.connection = Some(record::reached(&server_stream));
                self.exchange(client, snapshot, server_stream).await
            }
            Err(Refusal::Failed(failed)) => Err(Why::Failed(failed)),
            Err(Refusal::ClientGone(fault)) => Err(Why::Gone(fault)),
            Err(refusal) => Err(Why::Refused(refusal)),
        };
        match &answer {
            Ok(answer) => (self.own.response.status, self.own.note.status) = (answer.head.status, answer.head.status),
            Err(Why::Failed(failed)) => record.fault = Some(failed.fault),
            Err(Why::Gone(fault)) => record.fault = Some(*fault),
            Err(Why::Refused(_)) => record.fault = Some(Fault::NoServer),
        }
        record::end_attempt(&mut self.own, backend, &record);
        answer
    }

    /// Waits for a connection or a stream, and no longer than the whole request may take.
    async fn checkout(&mut self, client: &mut ClientSide<'_>) -> Result<UpstreamStream, Refusal> {
        let Asking { backend, due, own, retry_state, .. } = self;
        let (backend, due) = (*backend, *due);
        let timers = Rc::clone(&client.core().timers);
        // The client's own is in use meanwhile.
        let deadline = timers.deadline();
        let is_first = client.ordinal() <= 1;
        let traits = Traits { is_first, is_repeatable: backend.terms.retries > 0, is_idempotent: true };
        let note = &mut own.note;
        let mut checkout: std::pin::Pin<Box<dyn Future<Output = _>>> = match backend.terms.checkout {
            Checkout::Stream => Box::pin(streams::checkout(client, note, backend, true, retry_state)),
            _ => Box::pin(checkout::checkout(client, note, backend, traits, retry_state)),
        };
        poll_fn(|context| {
            if let Poll::Ready(checked_out) = checkout.as_mut().poll(context) {
                return Poll::Ready(checked_out);
            }
            if timers.now() >= due {
                return Poll::Ready(Err(Refusal::TimedOut));
            }
            deadline.set(due, context.waker());
            Poll::Pending
        })
        .await
    }

    async fn exchange(
        &mut self,
        client: &mut ClientSide<'_>,
        snapshot: &CoreSnapshot,
        server_stream: UpstreamStream,
    ) -> Result<Answer, Why> {
        let services = Rc::clone(&self.backend.services);
        let server = self.open(client, snapshot, server_stream).map_err(Why::Failed)?;
        let mut reading = Reading::new(server, Method::Get, None, Wanted::Kept(BODY_BYTES_MAX));
        let (began, deadline, terms) = (Instant::now(), services.timers.deadline(), &self.backend.terms);
        let (mut had_head, mut due) = (false, self.due.min(services.timers.now() + terms.first_byte));
        let read = poll_fn(|context| {
            if let Poll::Ready(read) = reading.poll(context, &services) {
                return Poll::Ready(read.map_err(Why::Failed));
            }
            if let Poll::Ready(gone) = client.poll_gone(context) {
                return Poll::Ready(Err(Why::Gone(gone)));
            }
            let now = services.timers.now();
            if reading.has_head && !had_head {
                (had_head, due) = (true, self.due.min(now + terms.body));
            }
            if now >= due {
                let fault = match had_head {
                    // No fault of the other service.
                    _ if now >= self.due => Fault::RequestTimeout,
                    true => Fault::BodyTimeout,
                    false => Fault::FirstByteTimeout,
                };
                return Poll::Ready(Err(Why::Failed(Attempt::new(fault, Repeatable::No))));
            }
            deadline.set(due, context.waker());
            Poll::Pending
        })
        .await;
        if read.is_ok() {
            self.note_answer(reading.answer.head.status, began.elapsed().as_micros() as u64);
        }
        let answer = reading.end(self.backend, &mut self.own.note, (read.is_ok(), false));
        read.map(|()| answer)
    }

    /// Writes the question to a connection, or opens a stream with it.
    fn open(
        &mut self,
        client: &ClientSide<'_>,
        snapshot: &CoreSnapshot,
        server_stream: UpstreamStream,
    ) -> Result<Upstream, Attempt> {
        let services = &self.backend.services;
        let address = ClientAddress::new(client.peer().ip());
        let own = &*self.own;
        let context = |last| {
            let context = heads::context((client, &address), own, snapshot, last);
            let host = self.host.map(str::as_bytes).or(context.host);
            // The other service cannot do without.
            let forwarded = match context.forwarded {
                Forwarded::Remove => Forwarded::Replace,
                forwarded => forwarded,
            };
            ForwardContext { host, forwarded, ..context }
        };
        let facts = heads::facts((client, &address), own, snapshot);
        let lines = |out: &mut Vec<u8>| heads::write_lines(client, (own, facts), snapshot, out);
        match server_stream {
            // Questions to FastCGI are refused with the configuration.
            UpstreamStream::Connection(connection) | UpstreamStream::FastCgi(connection) => {
                let mut out = services.scratch.borrow_mut();
                out.clear();
                let last = self.backend.state.pool.is_last_request(&connection);
                h1::write_request(&own.head, &own.text, &context(last), &mut out);
                h1::add_lines(&mut out, lines);
                drop(out);
                Ok(Upstream::Http1(Http1::new(connection, services, RequestBody::None)))
            }
            UpstreamStream::Stream(permit) => {
                let context = context(false);
                let opened = Http2::open(permit, &own.head, |fields, is_tls| {
                    let scheme: &[u8] = if is_tls { b"https" } else { b"http" };
                    let mut scratch = client.core().lines.borrow_mut();
                    h2::write_request((&own.head, &own.text), &context, (scheme, lines), &mut scratch, fields);
                })?;
                Ok(Upstream::Http2(Box::new(opened)))
            }
        }
    }

    /// Takes note of what a server has made of the question.
    fn note_answer(&self, status: u16, micros: u64) {
        let (backend, services) = (self.backend, &self.backend.services);
        services.metrics.observe(backend.metrics().first_byte_duration, micros);
        let Some(server) = self.own.note.server else { return };
        backend.state.succeeded(server, services.timers.now());
        if let Some(turn) = &self.retry_state.turn {
            turn.answered(status, micros);
        }
        let metrics = backend.server_metrics(server);
        services.metrics.increment(if is_failure(status) { metrics.failures } else { metrics.successes });
    }

    /// Counts an attempt without an answer. Returns the fault of the question if there is to be no other attempt.
    fn give_up(&mut self, why: Why) -> Option<Fault> {
        let (backend, services) = (self.backend, &self.backend.services);
        let metrics = backend.metrics();
        let failed = match why {
            Why::Gone(fault) => return Some(fault),
            Why::Refused(Refusal::Queue(fault)) => return Some(fault),
            Why::Refused(Refusal::TimedOut) => {
                services.metrics.increment(metrics.faults.of(Fault::RequestTimeout));
                return Some(Fault::RequestTimeout);
            }
            Why::Refused(_) => {
                services.metrics.increment(metrics.faults.of(Fault::NoServer));
                return Some(Fault::NoServer);
            }
            Why::Failed(failed) => failed,
        };
        services.metrics.increment(metrics.faults.of(failed.fault));
        let may_repeat = failed.repeatable != Repeatable::No;
        let is_closed = self.own.note.reused && !self.retry_state.fresh || failed.fault == Fault::Goaway;
        if may_repeat && is_closed && self.stale < STALE_MAX {
            self.stale += 1;
            self.retry_state.fresh |= failed.fault != Fault::Goaway;
            if let Some(turn) = &self.retry_state.turn {
                turn.stale();
            }
            return None;
        }
        let server = self.own.note.server.unwrap_or(0);
        self.retry_state.failed(server);
        if failed.fault.blame() == Blame::Server {
            services.metrics.increment(backend.server_metrics(server).failures);
            if let Some(turn) = &self.retry_state.turn {
                turn.failed();
            }
        }
        if !may_repeat || self.retry_state.failures > backend.terms.retries {
            return Some(failed.fault);
        }
        if !backend.spend_retry() {
            return Some(failed.fault);
        }
        services.metrics.increment(metrics.retries);
        None
    }
}
