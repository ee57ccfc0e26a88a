//! End of a connection whose server has not answered and may be at work on the request: the client left, or it took too
//! long.
//!
//! The server is told at once that nobody waits: our side ends. A server that looks up from its work stops it; one
//! that does not goes on, as a process that serves one connection does, and takes no other. So the connection counts
//! against `max_connections` until the server is known to have done with it: it has closed its side, or sent
//! something, which is then too late. `timeouts.close` limits that wait. Records of TLS itself, as tickets behind a
//! handshake whose client has gone meanwhile (RFC 8446 §4.6), are no word of the server's.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use propylon_config::BackendId;
use propylon_net::buffer::Buffer;
use tokio::task::spawn_local;

use crate::core::Core;
use crate::pool::ServerConnection;
use crate::snapshot::CoreSnapshot;

/// Ends a connection whose server may be at work. Where nothing is counted it is closed and that is all.
pub fn part(core: &Rc<Core>, snapshot: &CoreSnapshot, backend: BackendId, connection: Box<ServerConnection>) {
    let server = connection.key.server;
    let metrics = &core.telemetry.backends[backend.0].servers[server];
    if connection.permit.is_none() {
        core.metrics.lower(metrics.open);
        return;
    }
    core.metrics.raise(metrics.closing);
    let patience = snapshot.shared.config.backends[backend.0].timeouts.close.as_millis() as u64;
    let closing = Closing { core: Rc::clone(core), backend: backend.0, connection, heard: Buffer::default() };
    spawn_local(closing.run(patience));
}

struct Closing {
    core: Rc<Core>,
    /// Index of the backend: its place is its own for as long as a connection counts as open.
    backend: usize,
    connection: Box<ServerConnection>,
    /// Bytes that have come on the connection, which nobody will read.
    heard: Buffer,
}

impl Closing {
    async fn run(mut self, patience: u64) {
        let core = Rc::clone(&self.core);
        let deadline = core.timers.deadline();
        let due = core.timers.now() + patience;
        let mut ended = false;
        let (stream, heard) = (&mut self.connection.stream, &mut self.heard);
        let done = poll_fn(|context| {
            if !ended && let Poll::Ready(end) = stream.poll_end(context, &core.stock) {
                ended = true;
                if end.is_err() {
                    return Poll::Ready(true);
                }
            }
            if stream.poll_fill(context, &core.stock, heard).is_ready() {
                return Poll::Ready(true);
            }
            if core.timers.now() >= due {
                return Poll::Ready(false);
            }
            deadline.set(due, context.waker());
            Poll::Pending
        })
        .await;
        if !done {
            let metrics = &core.telemetry.backends[self.backend].servers[self.connection.key.server];
            core.metrics.increment(metrics.close_timeouts);
            let _ = self.connection.stream.reset_on_close();
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.core.stock.give_back(&mut self.heard);
        let metrics = &self.core.telemetry.backends[self.backend].servers[self.connection.key.server];
        self.core.metrics.lower(metrics.closing);
        self.core.metrics.lower(metrics.open);
    }
}
