//! Connections made ahead, so that the next requests find one: up to `min_idle` per server, and only while there are
//! requests.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use super::backend::{Backend, Upstreams};
use super::connect::connect;
use super::connection::{Permit, PoolKey};
use super::pool::{Pool, Returned};

/// Connections that one look may begin, for each server: a server that comes back is not flooded.
const WARM_AT_ONCE_MAX: usize = 16;

/// Begins the connections that are missing. To be called once a second.
pub fn warm(upstreams: &Upstreams) {
    if !upstreams.services.draining.get() {
        upstreams.all().iter().for_each(warm_backend);
    }
}

fn warm_backend(backend: &Rc<Backend>) {
    let (state, min_idle) = (&backend.state, backend.config().min_idle);
    for server in 0..state.pool.servers() {
        let has_traffic = state.pool.recent[server].take() > 0;
        if min_idle == 0
            || !has_traffic
            || !state.is_open(server)
            || !state.suspects.borrow().eligible(server, backend.services.timers.now())
        {
            continue;
        }
        let there = state.pool.idle(server) + state.pool.warming[server].get();
        for _ in 0..min_idle.saturating_sub(there).min(WARM_AT_ONCE_MAX) {
            let Some(permit) = permit(&state.pool, server) else { break };
            let warming = &state.pool.warming[server];
            warming.set(warming.get() + 1);
            tokio::task::spawn_local(make(Rc::clone(backend), server, permit));
        }
    }
}

/// The right to make a connection, if nobody needs it more: none, or none needed.
fn permit(pool: &Pool, server: usize) -> Option<Option<Permit>> {
    let Some(limiter) = &pool.limiter else { return Some(None) };
    limiter.try_take(server).then(|| Some(Permit::taken(limiter, server)))
}

async fn make(backend: Rc<Backend>, server: usize, permit: Option<Permit>) {
    let services = &backend.services;
    let deadline = services.timers.deadline();
    let key = PoolKey { server, owner: None };
    let made = connect(&backend, key, permit, &[], &deadline).await;
    let pool = &backend.state.pool;
    pool.warming[server].set(pool.warming[server].get() - 1);
    let metrics = backend.server_metrics(server);
    let Ok(mut made) = made else { return };
    // The end of a handshake, for which the server waits. What is left of it after this goes with the first request.
    let _ = poll_fn(|context| Poll::Ready(made.stream.poll_flush(context, &services.buffers))).await;
    services.metrics.increment(metrics.warmed);
    if services.draining.get() || pool.check_in(made, services.timers.now()) == Returned::Closed {
        services.metrics.lower(metrics.open);
    }
    backend.report_idle(server);
}
