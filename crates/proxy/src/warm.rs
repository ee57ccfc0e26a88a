//! Connections made ahead, so that the next requests find one: up to `min_idle` per server, and only while there are
//! requests.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use propylon_config::BackendId;

use crate::core::Core;
use crate::pool::{Permit, Pool, PoolKey, Returned};
use crate::seat;
use crate::snapshot::CoreSnapshot;

/// Connections that one look may begin, for each server: a server that comes back is not flooded.
const WARM_AT_ONCE_MAX: usize = 16;

/// Begins the connections that are missing. To be called once a second.
pub fn warm(core: &Rc<Core>) {
    let snapshot = core.snapshot();
    if core.draining.get() {
        return;
    }
    for (backend, state) in snapshot.backends.iter().enumerate() {
        let min_idle = snapshot.shared.config.backends[backend].min_idle;
        for server in 0..state.pool.servers() {
            let has_traffic = state.pool.recent[server].take() > 0;
            if min_idle == 0
                || !has_traffic
                || !state.is_open(server)
                || !state.suspects.borrow().eligible(server, core.timers.now())
            {
                continue;
            }
            let there = state.pool.idle(server) + state.pool.warming[server].get();
            for _ in 0..min_idle.saturating_sub(there).min(WARM_AT_ONCE_MAX) {
                let Some(permit) = permit(&state.pool, server) else { break };
                let warming = &state.pool.warming[server];
                warming.set(warming.get() + 1);
                tokio::task::spawn_local(make(
                    Rc::clone(core),
                    Rc::clone(&snapshot),
                    BackendId(backend),
                    server,
                    permit,
                ));
            }
        }
    }
}

/// The right to make a connection, if nobody needs it more: none, or none needed.
fn permit(pool: &Pool, server: usize) -> Option<Option<Permit>> {
    let Some(turnstile) = &pool.turnstile else { return Some(None) };
    turnstile.try_take(server).then(|| Some(Permit::taken(turnstile, server)))
}

async fn make(core: Rc<Core>, snapshot: Rc<CoreSnapshot>, backend: BackendId, server: usize, permit: Option<Permit>) {
    let deadline = core.timers.deadline();
    let key = PoolKey { server, owner: None };
    let made = seat::connect(&core, &snapshot, backend, key, permit, &[], &deadline).await;
    let pool = &snapshot.backends[backend.0].pool;
    pool.warming[server].set(pool.warming[server].get() - 1);
    let metrics = &core.telemetry.backends[backend.0].servers[server];
    let Ok(mut made) = made else { return };
    // The end of a handshake, for which the server waits. What is left of it after this goes with the first request.
    let _ = poll_fn(|context| Poll::Ready(made.stream.poll_flush(context, &core.stock))).await;
    core.metrics.increment(metrics.warmed);
    if core.draining.get() || pool.check_in(made, core.timers.now()) == Returned::Closed {
        core.metrics.lower(metrics.open);
    }
    core.report_idle(backend.0, pool, server);
}
