//! Copies of requests for another backend, whose responses are thrown away.
//!
//! A copy is made before its request goes on, of bytes that are here, and then has a life of its own: the request does
//! not wait for it, and nothing that becomes of it is told to the client.

use std::future::poll_fn;
use std::io;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use propylon_config::{ProxyProtocol, Reuse};
use propylon_http::fault::Fault;
use propylon_http::h1::{Asked, Method, RequestBody, ResponseHead, whole_chunked};
use propylon_net::budget::{self, Budget, PIECES_PER_POLL_MAX};
use propylon_net::timers::Deadline;
use propylon_observe::telemetry::Wait;
use propylon_steps::mirror::{Mirror, Place};

use super::attempt::{InProgress, withhold_fields};
use super::heads::write_request_head;
use super::transfer::{Http1, decoded};
use crate::client::side::ClientSide;
use crate::request::{Note, Request};
use crate::services::Services;
use crate::snapshot::CoreSnapshot;
use crate::upstream::backend::Backend;
use crate::upstream::checkout::{self, Client, RetryState, Traits, UpstreamStream};
use crate::upstream::connect::check_in;

/// Sends a copy of a request to the route's mirror, if it is this request's turn.
pub fn send_copy(client: &ClientSide<'_>, request: &mut Request, snapshot: &Rc<CoreSnapshot>, mirror: &Mirror) {
    if !mirror.is_due() {
        return;
    }
    let backend = &snapshot.backends[mirror.backend.0];
    let count = |outcome| client.core().metrics.increment(backend.metrics().mirrored.of(outcome));
    let Some(place) = mirror.place() else { return count("too-many") };
    let Some(bytes) = copy(client, request, snapshot, mirror) else { return count("not-copied") };
    let (method, backend) = (request.head.method, Rc::clone(backend));
    tokio::task::spawn_local(async move {
        let outcome = if send(&backend, &bytes, method, place).await { "answered" } else { "failed" };
        backend.services.metrics.increment(backend.metrics().mirrored.of(outcome));
    });
}

/// The request as a server of HTTP/1 gets it, with its body; `None` if that is not here, or too long, or if the request
/// is to open a tunnel.
fn copy(
    client: &ClientSide<'_>,
    request: &mut Request,
    snapshot: &Rc<CoreSnapshot>,
    mirror: &Mirror,
) -> Option<Vec<u8>> {
    let body = match (request.head.body, client) {
        _ if request.head.upgrade.is_some() => return None,
        (RequestBody::None | RequestBody::Length(0), _) => Vec::new(),
        (_, ClientSide::Http2(_)) => return None,
        (RequestBody::Length(length), ClientSide::Http1(connection)) => {
            let length = usize::try_from(length).ok().filter(|_| length <= mirror.body_bytes_max)?;
            connection.inbox.readable().get(..length)?.to_vec()
        }
        (RequestBody::Chunked, ClientSide::Http1(connection)) => {
            let length = whole_chunked(connection.inbox.readable())?;
            let (data, _) = decoded(&connection.inbox.readable()[..length]);
            Some(data).filter(|data| data.len() as u64 <= mirror.body_bytes_max)?
        }
    };
    withhold_fields(request, snapshot.listener(client.listener()));
    let (backend, framing) = (request.note.backend, request.head.body);
    request.note.backend = Some(mirror.backend.0);
    if framing == RequestBody::Chunked {
        request.head.body = RequestBody::Length(body.len() as u64);
    }
    let mut bytes = Vec::new();
    write_request_head(client, request, snapshot, false, &mut bytes);
    (request.note.backend, request.head.body) = (backend, framing);
    bytes.extend_from_slice(&body);
    Some(bytes)
}

/// Sends a copy and reads its response to the end. Whether there was a whole one.
async fn send(backend: &Rc<Backend>, bytes: &[u8], method: Method, _place: Place) -> bool {
    let services = &backend.services;
    let Some(_in_progress) = InProgress::begin(&backend.shared.circuit, backend.state.pool.core()) else {
        services.metrics.increment(backend.metrics().queue_refused.of(Fault::CircuitOpen));
        return false;
    };
    let mut nobody = Nobody { deadline: services.timers.deadline() };
    // A connection that is for one client alone is for no copy after this one.
    let is_alone = backend.config().reuse == Reuse::Never;
    let mut retry_state = RetryState { fresh: is_alone, ..RetryState::default() };
    let traits = Traits { is_first: false, is_repeatable: false, is_idempotent: false };
    let checked_out = checkout::checkout(&mut nobody, &mut Note::default(), backend, traits, &mut retry_state).await;
    let Ok(UpstreamStream::Connection(connection)) = checked_out else { return false };
    let http1 = {
        let mut scratch = services.scratch.borrow_mut();
        scratch.clear();
        scratch.extend_from_slice(bytes);
        drop(scratch);
        Http1::new(connection, services, RequestBody::None)
    };
    let mut copy = Copy { http1, method, response: ResponseHead::default(), is_sent: false, has_head: false };
    let (began, due) = (Instant::now(), services.timers.now() + backend.terms.first_byte + backend.terms.body);
    let is_whole = poll_fn(|context| {
        if let Poll::Ready(is_whole) = copy.poll(context, services) {
            return Poll::Ready(is_whole);
        }
        if services.timers.now() >= due {
            return Poll::Ready(false);
        }
        nobody.deadline.set(due, context.waker());
        Poll::Pending
    })
    .await;
    if let Some(turn) = &retry_state.turn {
        match copy.has_head {
            true => turn.answered(copy.response.status, began.elapsed().as_micros() as u64),
            false => turn.failed(),
        }
    }
    let is_clean = copy.http1.finish(services) && is_whole && copy.response.keep_alive && !is_alone;
    check_in(backend, copy.http1.connection, is_clean);
    is_whole
}

/// A copy on a connection.
struct Copy {
    http1: Http1,
    method: Method,
    response: ResponseHead,
    is_sent: bool,
    has_head: bool,
}

impl Copy {
    /// Ready when the response is whole, or there is none.
    fn poll(&mut self, context: &mut Context<'_>, services: &Rc<Services>) -> Poll<bool> {
        if !self.is_sent {
            match self.http1.poll_send(context, services).1 {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => self.is_sent = true,
                Poll::Ready(Err(())) => return Poll::Ready(false),
            }
        }
        while !self.has_head {
            let asked = Asked { method: self.method, upgrade: None };
            let polled = self.http1.poll_head(context, services, asked, &mut false, &mut self.response);
            if ready!(polled).is_err() {
                return Poll::Ready(false);
            }
            self.has_head = !self.response.is_informational();
            self.http1.answer.consume(self.response.length);
            match self.has_head {
                true => _ = self.http1.begin_body(self.response.body),
                false => self.response.clear(),
            }
        }
        for _ in 0..PIECES_PER_POLL_MAX {
            if self.http1.is_read() {
                return Poll::Ready(self.is_sent);
            }
            match ready!(self.http1.poll_part(context, services, 0)) {
                Ok(part) => part.data.into_iter().for_each(|mut data| services.buffers.release(&mut data)),
                Err(_) => return Poll::Ready(false),
            }
        }
        budget::spend(Budget::Pieces, context);
        Poll::Pending
    }
}

/// The client of a copy, who never goes away.
struct Nobody {
    deadline: Deadline,
}

impl Client for Nobody {
    fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    fn owner(&mut self) -> NonZeroU64 {
        NonZeroU64::MAX
    }

    fn proxy_header(&self, _: ProxyProtocol) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn count_timeout(&self, _: Wait) {}

    fn poll_gone(&mut self, _: &mut Context<'_>) -> Poll<Fault> {
        Poll::Pending
    }

    fn has_gone(&self) -> Option<Fault> {
        None
    }

    fn rest(&mut self) {}
}
