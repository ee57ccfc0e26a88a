//! Idle connections handed to requests of other cores.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;

use super::backend::Backend;
use super::connection::ServerLimiter;

/// Hands this core's idle connections to requests of others whenever it is called, for as long as the limiter of the
/// backend in effect is this one.
pub async fn hand_over_idle(backend: Rc<Backend>, mut limiter: Arc<ServerLimiter>) {
    let upstreams = Rc::clone(&backend.upstreams);
    let metrics = Arc::clone(backend.metrics());
    drop(backend);
    loop {
        poll_fn(|context| limiter.poll_called(upstreams.services.metrics.index(), context)).await;
        let Some(backend) = upstreams.get(&metrics) else { return };
        let pool = &backend.state.pool;
        let Some(current) = pool.limiter.as_ref().filter(|current| current.is_kin(&limiter)) else { return };
        for server in 0..pool.servers() {
            if pool.give_away(server) > 0 {
                backend.report_idle(server);
            }
            if current.is_wanted(server) {
                pool.h2_pools[server].call();
            }
        }
        limiter = Arc::clone(current);
    }
}
