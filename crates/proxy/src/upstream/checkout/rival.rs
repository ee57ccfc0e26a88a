//! Checkout for a second attempt that is made beside a first: at another server that is trusted and has room at once.
//! No queue is waited in, since that would take from requests that have no attempt yet.

use std::future::{poll_fn, ready};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use propylon_net::timers::coarse_millis;
use propylon_policy::balance::{Draw, Tier};
use propylon_policy::reuse::{Fit, Level};

use super::streams::{begin_connections, vacancy};
use super::{Client, Found, Need, RetryState, UpstreamStream, at, level, preamble};
use crate::fault::Attempt;
use crate::upstream::backend::Backend;
use crate::upstream::balance::{Choice, Eligibility};
use crate::upstream::connect::connect;
use crate::upstream::connection::PoolKey;
use crate::upstream::h2_pool::Answer;
use crate::upstream::in_flight::InFlight;

/// Connection or stream of a second attempt, once it is there; without a fault where there is none without a queue.
pub type Coming = Pin<Box<dyn Future<Output = Result<UpstreamStream, Option<Attempt>>>>>;

/// A second attempt's place at its server.
pub struct Rival {
    pub server: usize,
    /// Time at the server, and count among those in flight there.
    pub turn: InFlight,
    pub coming: Coming,
}

/// A server other than the `first`, which has room at once, and its tier; none if there is none that is trusted. One on
/// trial is left to requests that come to an end: a second attempt may be cancelled, and then says nothing of it.
pub fn other(backend: &Backend, retry_state: &RetryState, first: usize) -> Option<(usize, Tier)> {
    let state = &backend.state;
    let now = backend.services.timers.now();
    let draw = Draw { key: retry_state.affinity.key, random: backend.services.random.borrow_mut().u64(..), now };
    state.read_endpoints(now);
    let suspects = state.suspects.borrow();
    let tried = [&retry_state.tried[..], &[first]].concat();
    let eligibility = Eligibility::new(state.standing(&suspects), &state.tiers, &tried, now);
    // Too few servers that are up have no room to spare.
    if !matches!(eligibility.tier(), Tier::Ordinary | Tier::Backup) {
        return None;
    }
    let pool = &state.pool;
    let has_room = |server| match pool.streams_max > 0 {
        true => pool.is_to_be_had(server, now),
        false => pool.has_room(server),
    };
    let fits =
        |server: usize| eligibility.fits(server, Choice::Trusted) && suspects.is_trusted(server) && has_room(server);
    Some((state.balancer.borrow_mut().pick(fits, draw)?, eligibility.tier()))
}

/// Begins the second attempt at this server; none if it has no room any more. `fit`: of the connection it may have.
pub fn begin(client: &mut dyn Client, backend: &Rc<Backend>, (server, tier): (usize, Tier), fit: Fit) -> Option<Rival> {
    let coming = match backend.state.pool.streams_max > 0 {
        true => stream(backend, server)?,
        false => connection(client, backend, server, fit)?,
    };
    backend.count_tier(tier);
    let recent = &backend.state.pool.recent[server];
    recent.set(recent.get().saturating_add(1));
    backend.services.metrics.increment(backend.server_metrics(server).requests);
    Some(Rival { server, turn: InFlight::begin(backend, server), coming })
}

/// A connection that carries one request at a time.
fn connection(client: &mut dyn Client, backend: &Rc<Backend>, server: usize, fit: Fit) -> Option<Coming> {
    let config = backend.config();
    let is_private = level(config.reuse) == Level::Never || config.send_proxy_protocol.is_some();
    let owner = is_private.then(|| client.owner());
    let need = Need { fit, certain: false, owner };
    let preamble = preamble(client, config).ok()?;
    let permit = match at(backend, server, &need)? {
        Found::Connection(mut found) => {
            found.requests = found.requests.saturating_add(1);
            return Some(Box::pin(ready(Ok(of(backend, UpstreamStream::Connection(found))))));
        }
        Found::Permit(permit) => permit,
    };
    let (backend, key) = (Rc::clone(backend), PoolKey { server, owner });
    Some(Box::pin(async move {
        let deadline = backend.services.timers.deadline();
        let mut made = connect(&backend, key, permit, &preamble, &deadline).await?;
        made.requests = 1;
        Ok(of(&backend, UpstreamStream::Connection(made)))
    }))
}

fn of(backend: &Backend, stream: UpstreamStream) -> UpstreamStream {
    if backend.config().fastcgi.is_some() { stream.of_fastcgi() } else { stream }
}

/// A stream of a connection that carries many, which is made if there is none.
fn stream(backend: &Rc<Backend>, server: usize) -> Option<Coming> {
    if let Some(stream) = vacancy(backend, server, false) {
        return Some(Box::pin(ready(Ok(stream))));
    }
    let pool = &backend.state.pool;
    let limiter = pool.limiter.clone()?;
    let services = &backend.services;
    if !pool.is_to_be_had(server, services.timers.now()) {
        return None;
    }
    let h2_pool = Rc::clone(&pool.h2_pools[server]);
    let arrival = backend.terms.arrival(coarse_millis());
    let mut pending = h2_pool.join(services, backend.metrics(), &limiter, arrival);
    let (backend, due) = (Rc::clone(backend), services.timers.now() + backend.terms.connect);
    let deadline = services.timers.deadline();
    let poll = move |context: &mut Context<'_>| {
        if !backend.state.is_open(server) {
            return Poll::Ready(Err(None));
        }
        begin_connections(&backend, server, &limiter);
        if let Poll::Ready(answer) = pending.poll(context) {
            return Poll::Ready(match answer {
                Answer::Stream(stream) => Ok(UpstreamStream::Stream(stream)),
                Answer::Look => vacancy(&backend, server, false).ok_or(None),
                Answer::Failed(failed) => Err(Some(failed)),
                Answer::Full => Err(None),
            });
        }
        // Counted among those who wait: it has come to a queue.
        if pending.since().is_some() || !h2_pool.is_alive() || backend.services.timers.now() >= due {
            return Poll::Ready(Err(None));
        }
        deadline.set(due, context.waker());
        Poll::Pending
    };
    Some(Box::pin(poll_fn(poll)))
}
