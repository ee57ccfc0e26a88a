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

use propylon_net::buffer::Buffer;
use tokio::task::spawn_local;

use super::backend::Backend;
use super::connection::ServerConnection;

/// Ends a connection whose server may be at work. Where nothing is counted it is closed and that is all.
pub fn end(backend: &Rc<Backend>, connection: Box<ServerConnection>) {
    let metrics = backend.server_metrics(connection.key.server);
    if connection.permit.is_none() {
        backend.services.metrics.lower(metrics.open);
        return;
    }
    backend.services.metrics.raise(metrics.closing);
    let closing = Closing { backend: Rc::clone(backend), connection, received: Buffer::default() };
    spawn_local(closing.run());
}

struct Closing {
    backend: Rc<Backend>,
    connection: Box<ServerConnection>,
    /// Bytes that have come on the connection, which nobody will read.
    received: Buffer,
}

impl Closing {
    async fn run(mut self) {
        let services = Rc::clone(&self.backend.services);
        let timeout = self.backend.config().timeouts.close.as_millis() as u64;
        let deadline = services.timers.deadline();
        let due = services.timers.now() + timeout;
        let mut ended = false;
        let (stream, received) = (&mut self.connection.stream, &mut self.received);
        let done = poll_fn(|context| {
            if !ended && let Poll::Ready(end) = stream.poll_end(context, &services.buffers) {
                ended = true;
                if end.is_err() {
                    return Poll::Ready(true);
                }
            }
            if stream.poll_fill(context, &services.buffers, received).is_ready() {
                return Poll::Ready(true);
            }
            if services.timers.now() >= due {
                return Poll::Ready(false);
            }
            deadline.set(due, context.waker());
            Poll::Pending
        })
        .await;
        if !done {
            let metrics = self.backend.server_metrics(self.connection.key.server);
            services.metrics.increment(metrics.close_timeouts);
            let _ = self.connection.stream.reset_on_close();
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        let (services, server) = (&self.backend.services, self.connection.key.server);
        services.buffers.release(&mut self.received);
        services.metrics.lower(self.backend.server_metrics(server).closing);
        services.metrics.lower(self.backend.server_metrics(server).open);
    }
}
