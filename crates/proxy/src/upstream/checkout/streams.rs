//! A stream on a connection that carries many. Connections are made as they are needed, and waited for.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use propylon_http::fault::Fault;
use propylon_policy::queue::Arrival;
use propylon_policy::reuse::Fit;

use super::{
    Client, Found, Need, Pick, Refusal, RetryState, UpstreamStream, acceptable, count_refused, granted, pick, wait,
};
use crate::request::Note;
use crate::upstream::backend::Backend;
use crate::upstream::balance::{Choice, Eligibility};
use crate::upstream::connection::{Permit, PoolKey, ServerLimiter};
use crate::upstream::h2_connection;
use crate::upstream::h2_pool::{Answer, H2Pool, Roaming};
use crate::upstream::in_flight::InFlight;

/// How often a request may find that the connection that it has waited for has made way for another core's.
const CHECKOUT_ROUNDS_MAX: u32 = 64;

/// Other servers that a waiting request is invited to, at most: each takes a word for each request.
const ROAMS_MAX: usize = 64;

/// Connection that a request is to go out on.
enum Chosen {
    /// On a connection to this server: one is there, or is being made.
    Server(usize),
    /// On a connection that carries one request at a time, and waits for it.
    Connection(usize, UpstreamStream),
    /// The core has got a connection while the request was in the queue, or the servers that it waited for are not open
    /// any more: it is to look again.
    Again,
}

/// Result of the wait for a stream of one server.
enum Awaited {
    Stream(UpstreamStream),
    /// Another server of those that the request may go to is to be had at once.
    Elsewhere(usize),
    /// The server's last connection has gone, with no other for now, or the server is not open any more: the request is
    /// to look again.
    Again,
}

pub async fn checkout(
    client: &mut dyn Client,
    note: &mut Note,
    backend: &Rc<Backend>,
    is_idempotent: bool,
    retry_state: &mut RetryState,
) -> Result<UpstreamStream, Refusal> {
    retry_state.kept = None;
    note.reused = false;
    let certain = !is_idempotent;
    let (mut server_before, mut moves_to) = (None, None);
    for _ in 0..CHECKOUT_ROUNDS_MAX {
        let chosen = match moves_to.take() {
            Some(server) => Ok(Chosen::Server(server)),
            None => choose(client, backend, certain, retry_state).await,
        };
        note.queue_us = retry_state.queue_us;
        let (server, stream) = match chosen? {
            Chosen::Again => continue,
            Chosen::Server(server) => (server, None),
            Chosen::Connection(server, stream) => (server, Some(stream)),
        };
        if server_before.replace(server) != Some(server) {
            arrive(note, backend, server, retry_state);
        }
        let services = Rc::clone(&backend.services);
        let found = stream.or_else(|| vacancy(backend, server, certain));
        let taken = match found {
            Some(stream) => Ok(Awaited::Stream(stream)),
            None => await_stream(client, note, backend, (server, certain), retry_state).await,
        };
        count_refused(backend, &taken);
        match taken? {
            Awaited::Again => {}
            Awaited::Elsewhere(other) => moves_to = Some(other),
            Awaited::Stream(stream) => {
                retry_state.arrived = None;
                note.reused = stream.is_used();
                if note.reused {
                    services.metrics.increment(backend.server_metrics(server).reused);
                }
                return Ok(stream);
            }
        }
    }
    let refused = Err(Refusal::Queue(Fault::QueueTimeout));
    count_refused(backend, &refused);
    refused
}

impl UpstreamStream {
    /// Whether the connection has carried another request.
    pub fn is_used(&self) -> bool {
        match self {
            UpstreamStream::Stream(permit) => permit.slot.link.requests() > 1,
            UpstreamStream::Connection(connection) | UpstreamStream::FastCgi(connection) => connection.requests > 1,
        }
    }
}

/// The account of a request that goes to this server.
fn arrive(note: &mut Note, backend: &Rc<Backend>, server: usize, retry_state: &mut RetryState) {
    let state = &backend.state;
    note.server = Some(server);
    retry_state.turn = Some(InFlight::begin(backend, server));
    state.pool.recent[server].set(state.pool.recent[server].get().saturating_add(1));
    backend.services.metrics.increment(backend.server_metrics(server).requests);
}

async fn choose(
    client: &mut dyn Client,
    backend: &Rc<Backend>,
    certain: bool,
    retry_state: &mut RetryState,
) -> Result<Chosen, Refusal> {
    let services = Rc::clone(&backend.services);
    let pool = &backend.state.pool;
    let wants = match pick(backend, retry_state) {
        Pick::Server(server, _) => return Ok(Chosen::Server(server)),
        Pick::None => {
            services.metrics.increment(backend.metrics().unavailable);
            return Err(Refusal::NoServer);
        }
        Pick::Full(wants) => wants,
    };
    // As many connections as there may be: a stream of one of ours will end, or another core's makes way.
    let alive = wants.iter().filter(|server| pool.h2_pools[**server].is_alive());
    if let Some(server) =
        alive.min_by_key(|server| (pool.h2_pools[**server].is_barren(), pool.h2_pools[**server].waiting()))
    {
        return Ok(Chosen::Server(*server));
    }
    let Some(limiter) = &pool.limiter else { return Err(Refusal::NoServer) };
    let h2_pools = wants.iter().map(|server| Rc::clone(&pool.h2_pools[*server])).collect();
    let waited = wait(client, backend, limiter, wants, h2_pools, retry_state).await;
    count_refused(backend, &waited);
    let Some(grant) = waited? else { return Ok(Chosen::Again) };
    // Connections that lie in a pool carry one request at a time, and any of them.
    let need = Need { fit: Fit::Any, certain, owner: None };
    match granted(backend, limiter, grant, &need) {
        (server, Found::Permit(permit)) => {
            h2_connection::begin(backend, server, permit);
            Ok(Chosen::Server(server))
        }
        (server, Found::Connection(mut found)) => {
            found.requests = found.requests.saturating_add(1);
            Ok(Chosen::Connection(server, UpstreamStream::Connection(found)))
        }
    }
}

/// A place that there is already: a stream, or an idle connection where the server has agreed on HTTP/1.1.
pub(super) fn vacancy(backend: &Rc<Backend>, server: usize, certain: bool) -> Option<UpstreamStream> {
    let pool = &backend.state.pool;
    if let Some(stream) = pool.stream(&backend.services, server) {
        return Some(UpstreamStream::Stream(stream));
    }
    if !pool.h2_pools[server].speaks_http1() {
        return None;
    }
    let certain = certain.then(|| backend.services.timers.now());
    let (found, stale) = pool.checkout(PoolKey { server, owner: None }, Fit::Any, certain);
    backend.count_stale(server, stale);
    backend.report_idle(server);
    let mut found = found?;
    found.requests = found.requests.saturating_add(1);
    Some(UpstreamStream::Connection(found))
}

async fn await_stream(
    client: &mut dyn Client,
    note: &mut Note,
    backend: &Rc<Backend>,
    (server, certain): (usize, bool),
    retry_state: &mut RetryState,
) -> Result<Awaited, Refusal> {
    let services = Rc::clone(&backend.services);
    let pool = &backend.state.pool;
    let Some(limiter) = &pool.limiter else { return Err(Refusal::NoServer) };
    let (h2_pool, config) = (&pool.h2_pools[server], backend.config());
    let (connect, timeout) = (backend.terms.connect, retry_state.queue_timeout_left(config));
    let (began, since) = (Instant::now(), services.timers.now());
    client.rest();
    let arrived = backend.terms.arrival(retry_state.arrived());
    let mut pending = h2_pool.join(&services, backend.metrics(), limiter, arrived);
    let mut roaming: Option<Roaming> = None;
    let awaited = poll_fn(|context| {
        // Before there is a stream, which is not to be for nobody.
        if let Poll::Ready(why) = client.poll_gone(context) {
            return Poll::Ready(Err(Refusal::ClientGone(why)));
        }
        if !backend.state.is_open(server) {
            return Poll::Ready(Ok(Awaited::Again));
        }
        begin_connections(backend, server, limiter);
        if let Poll::Ready(answer) = pending.poll(context) {
            return Poll::Ready(match answer {
                Answer::Stream(stream) => match client.has_gone() {
                    Some(why) => Err(Refusal::ClientGone(why)),
                    None => Ok(Awaited::Stream(UpstreamStream::Stream(stream))),
                },
                Answer::Look => Ok(vacancy(backend, server, certain).map_or(Awaited::Again, Awaited::Stream)),
                Answer::Failed(failed) => Err(Refusal::Failed(failed)),
                Answer::Full => Err(Refusal::Queue(Fault::QueueFull)),
            });
        }
        if !h2_pool.is_alive() {
            return Poll::Ready(Ok(Awaited::Again));
        }
        // A request in the queue would as soon have another server; a connection that is being made is waited for.
        if pending.since().is_some()
            && let Some(other) = roam((backend, server), retry_state, &mut roaming, arrived, context)
        {
            return Poll::Ready(Ok(Awaited::Elsewhere(other)));
        }
        h2_pool.arm(&services);
        // A connection that is being made is waited for no longer than it may take, and then in the queue.
        let due = pending.since().map_or(since + connect, |since| since) + timeout;
        if services.timers.now() >= due {
            return Poll::Ready(Err(Refusal::Queue(Fault::QueueTimeout)));
        }
        client.deadline().set(due, context.waker());
        Poll::Pending
    })
    .await;
    let waited = pending.waited();
    if let Ok(Awaited::Elsewhere(_)) = awaited {
        pending.leave_for_another();
    }
    drop((pending, roaming));
    if let Some(micros) = waited {
        retry_state.queue_us = Some(retry_state.queue_us.unwrap_or(0) + micros);
        note.queue_us = retry_state.queue_us;
    }
    note.connect_us = Some((began.elapsed().as_micros() as u64).saturating_sub(waited.unwrap_or(0)));
    awaited
}

/// Another server that the request may go to, if one is to be had; otherwise the request is told when one may be.
fn roam(
    (backend, server): (&Rc<Backend>, usize),
    retry_state: &RetryState,
    roaming: &mut Option<Roaming>,
    arrived: Arrival,
    context: &Context<'_>,
) -> Option<usize> {
    let is_alone = backend.state.pool.servers() < 2;
    if is_alone || roaming.as_ref().is_some_and(|roaming| !roaming.is_invited(context)) {
        return None;
    }
    let (pool, now) = (&backend.state.pool, backend.services.timers.now());
    // Servers may have become suspect since the request joined.
    let others = others(backend, server, retry_state);
    if let Some(other) = others.iter().find(|other| pool.is_to_be_had(**other, now)) {
        backend.state.suspects.borrow_mut().tried(*other, now);
        return Some(*other);
    }
    match roaming {
        Some(roaming) => roaming.stay(context),
        None if others.is_empty() => {}
        None => {
            let wants = others.iter().take(ROAMS_MAX).map(|other| Rc::clone(&pool.h2_pools[*other])).collect();
            *roaming = Some(pool.roamers.join(&backend.services, wants, arrived, context));
        }
    }
    None
}

/// Servers that a request may go to beside the one that it waits for.
fn others(backend: &Rc<Backend>, server: usize, retry_state: &RetryState) -> Box<[usize]> {
    // A client's affinity is worth the wait.
    if retry_state.affinity.server == Some(server) {
        return Box::default();
    }
    let state = &backend.state;
    let suspects = state.suspects.borrow();
    let now = backend.services.timers.now();
    let eligibility = Eligibility::new(state.standing(&suspects), &state.tiers, &retry_state.tried, now);
    let choices = [Choice::Trusted, Choice::Untried, Choice::Any];
    let choice = choices.into_iter().find(|choice| eligibility.fits(server, *choice)).unwrap_or(Choice::Any);
    let mut others = acceptable(&eligibility, choice, state.pool.servers()).into_vec();
    others.retain(|other| *other != server);
    others.into()
}

/// Begins the connections that those who wait have need of, as far as there may be more.
pub(super) fn begin_connections(backend: &Rc<Backend>, server: usize, limiter: &Arc<ServerLimiter>) {
    let h2_pool: &H2Pool = &backend.state.pool.h2_pools[server];
    while h2_pool.wants_connection(backend.services.timers.now()) && limiter.try_take(server) {
        let permit = Permit::taken(limiter, server);
        h2_connection::begin(backend, server, Some(permit));
    }
}
