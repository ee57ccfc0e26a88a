//! A stream on a connection that carries many. Connections are made as they are needed, and waited for.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use propylon_config::BackendId;
use propylon_policy::reuse::Fit;

use super::{Experience, Found, Need, Pick, Refusal, Seat, count_refused, granted, pick, wait};
use crate::balance::Turn;
use crate::client_side::ClientSide;
use crate::core::Core;
use crate::http2::{self, Answer, Lane};
use crate::pool::{Permit, PoolKey, ServerTurnstile};
use crate::request::Request;
use crate::snapshot::CoreSnapshot;

/// How often a request may find that the connection that it has waited for has made way for another core's.
const SEAT_ROUNDS_MAX: u32 = 64;

/// Connection that a request is to go out on.
enum Chosen {
    /// On a connection to this server: one is there, or is being made.
    Server(usize),
    /// On a connection that carries one request at a time, and waits for it.
    Connection(usize, Seat),
    /// The core has got a connection while the request was in the line: it is to look again.
    Again,
}

pub async fn take(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    snapshot: &Rc<CoreSnapshot>,
    backend: BackendId,
    experience: &mut Experience,
) -> Result<Seat, Refusal> {
    experience.kept = None;
    request.note.reused = false;
    let certain = !request.head.method.is_idempotent();
    let mut server_before = None;
    for _ in 0..SEAT_ROUNDS_MAX {
        let chosen = choose(client, snapshot, backend, certain, experience).await;
        request.note.queue_us = experience.queue_us;
        let (server, seat) = match chosen? {
            Chosen::Again => continue,
            Chosen::Server(server) => (server, None),
            Chosen::Connection(server, seat) => (server, Some(seat)),
        };
        if server_before.replace(server) != Some(server) {
            arrive(client.core(), request, snapshot, backend, server, experience);
        }
        let core = Rc::clone(client.core());
        let found = seat.or_else(|| vacancy(&core, snapshot, backend, server, certain));
        let taken = match found {
            Some(seat) => Ok(Some(seat)),
            None => await_seat(client, request, snapshot, backend, (server, certain), experience).await,
        };
        count_refused(&core, backend, &taken);
        if let Some(seat) = taken? {
            experience.arrived = None;
            request.note.reused = seat.is_used();
            if request.note.reused {
                core.metrics.increment(core.telemetry.backends[backend.0].servers[server].reused);
            }
            return Ok(seat);
        }
    }
    let refused = Err(Refusal::Queue("queue-timeout"));
    count_refused(client.core(), backend, &refused);
    refused
}

impl Seat {
    /// Whether the connection has carried another request.
    fn is_used(&self) -> bool {
        match self {
            Seat::Stream(permit) => permit.slot.link.requests() > 1,
            Seat::Connection(connection) => connection.requests > 1,
        }
    }
}

/// The account of a request that goes to this server.
fn arrive(
    core: &Rc<Core>,
    request: &mut Request,
    snapshot: &CoreSnapshot,
    backend: BackendId,
    server: usize,
    experience: &mut Experience,
) {
    let state = &snapshot.backends[backend.0];
    request.note.server = Some(server);
    experience.turn = Some(Turn::begin(core, state, backend.0, server));
    state.pool.recent[server].set(state.pool.recent[server].get().saturating_add(1));
    core.metrics.increment(core.telemetry.backends[backend.0].servers[server].requests);
}

async fn choose(
    client: &mut ClientSide<'_>,
    snapshot: &Rc<CoreSnapshot>,
    backend: BackendId,
    certain: bool,
    experience: &mut Experience,
) -> Result<Chosen, Refusal> {
    let core = Rc::clone(client.core());
    let pool = &snapshot.backends[backend.0].pool;
    let wants = match pick(&core, snapshot, backend, experience) {
        Pick::Server(server, _) => return Ok(Chosen::Server(server)),
        Pick::None => {
            core.metrics.increment(core.telemetry.backends[backend.0].unavailable);
            return Err(Refusal::NoServer);
        }
        Pick::Full(wants) => wants,
    };
    // As many connections as there may be: a stream of one of ours will end, or another core's makes way.
    let alive = wants.iter().filter(|server| pool.lanes[**server].is_alive());
    if let Some(server) = alive.min_by_key(|server| (pool.lanes[**server].is_barren(), pool.lanes[**server].waiting()))
    {
        return Ok(Chosen::Server(*server));
    }
    let Some(turnstile) = &pool.turnstile else { return Err(Refusal::NoServer) };
    let lanes = wants.iter().map(|server| Rc::clone(&pool.lanes[*server])).collect();
    let waited = wait(client, snapshot, backend, turnstile, wants, lanes, experience).await;
    count_refused(&core, backend, &waited);
    let Some(grant) = waited? else { return Ok(Chosen::Again) };
    // Connections that lie in a pool carry one request at a time, and any of them.
    let need = Need { fit: Fit::Any, certain, owner: None };
    match granted(&core, snapshot, backend, turnstile, grant, &need) {
        (server, Found::Permit(permit)) => {
            http2::begin_server(&core, snapshot, backend, server, permit);
            Ok(Chosen::Server(server))
        }
        (server, Found::Connection(mut found)) => {
            found.requests = found.requests.saturating_add(1);
            Ok(Chosen::Connection(server, Seat::Connection(found)))
        }
    }
}

/// A seat that there is already: a stream, or an idle connection where the server has agreed on HTTP/1.1.
fn vacancy(core: &Rc<Core>, snapshot: &CoreSnapshot, backend: BackendId, server: usize, certain: bool) -> Option<Seat> {
    let pool = &snapshot.backends[backend.0].pool;
    if let Some(seat) = pool.seat(core, server) {
        return Some(Seat::Stream(seat));
    }
    if !pool.lanes[server].speaks_http1() {
        return None;
    }
    let (found, stale) = pool.checkout(PoolKey { server, owner: None }, Fit::Any, certain);
    let metrics = &core.telemetry.backends[backend.0].servers[server];
    for _ in 0..stale {
        core.metrics.increment(metrics.stale);
        core.metrics.lower(metrics.open);
    }
    core.report_idle(backend.0, pool, server);
    let mut found = found?;
    found.requests = found.requests.saturating_add(1);
    Some(Seat::Connection(found))
}

/// `None` if the server's last connection has gone, with no other for now, or if the request is to look again.
async fn await_seat(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    snapshot: &Rc<CoreSnapshot>,
    backend: BackendId,
    (server, certain): (usize, bool),
    experience: &mut Experience,
) -> Result<Option<Seat>, Refusal> {
    let core = Rc::clone(client.core());
    let pool = &snapshot.backends[backend.0].pool;
    let Some(turnstile) = &pool.turnstile else { return Err(Refusal::NoServer) };
    let lane = &pool.lanes[server];
    let config = &snapshot.shared.config.backends[backend.0];
    let (connect, patience) = (config.timeouts.connect.as_millis() as u64, experience.patience_left(config));
    let (began, since) = (Instant::now(), core.timers.now());
    client.rest();
    let mut place = lane.join(&core, backend.0, turnstile, experience.arrived());
    let awaited = poll_fn(|context| {
        client.read_ahead(context);
        // Before there is a seat, which is not to be for nobody.
        if let Poll::Ready(why) = client.poll_gone(context) {
            return Poll::Ready(Err(Refusal::ClientGone(why)));
        }
        begin_connections(&core, snapshot, backend, server, turnstile);
        if let Poll::Ready(answer) = place.poll(context) {
            return Poll::Ready(match answer {
                Answer::Seat(seat) => match client.has_gone() {
                    Some(why) => Err(Refusal::ClientGone(why)),
                    None => Ok(Some(Seat::Stream(seat))),
                },
                Answer::Look => Ok(vacancy(&core, snapshot, backend, server, certain)),
                Answer::Failed(failed) => Err(Refusal::Failed(failed)),
                Answer::Full => Err(Refusal::Queue("queue-full")),
            });
        }
        if !lane.is_alive() {
            return Poll::Ready(Ok(None));
        }
        lane.arm(&core);
        // A connection that is being made is waited for no longer than it may take, and then in the line.
        let due = place.since().map_or(since + connect, |since| since) + patience;
        if core.timers.now() >= due {
            return Poll::Ready(Err(Refusal::Queue("queue-timeout")));
        }
        client.deadline().set(due, context.waker());
        Poll::Pending
    })
    .await;
    let waited = place.waited();
    drop(place);
    if let Some(micros) = waited {
        experience.queue_us = Some(experience.queue_us.unwrap_or(0) + micros);
        request.note.queue_us = experience.queue_us;
    }
    request.note.connect_us = Some((began.elapsed().as_micros() as u64).saturating_sub(waited.unwrap_or(0)));
    awaited
}

/// Begins the connections that those who wait have need of, as far as there may be more.
fn begin_connections(
    core: &Rc<Core>,
    snapshot: &Rc<CoreSnapshot>,
    backend: BackendId,
    server: usize,
    turnstile: &Arc<ServerTurnstile>,
) {
    let lane: &Lane = &snapshot.backends[backend.0].pool.lanes[server];
    while lane.wants_connection(core.timers.now()) && turnstile.try_take(server) {
        let permit = Permit::taken(turnstile, server);
        http2::begin_server(core, snapshot, backend, server, Some(permit));
    }
}
