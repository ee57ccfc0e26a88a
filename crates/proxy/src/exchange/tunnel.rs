//! A request that has switched to another protocol (RFC 9110 §7.8): bytes both ways until both sides have ended.

use std::rc::Rc;

use propylon_http::fault::Fault;

use crate::client::connection::Connection;
use crate::duplex::{Duplex, IdleLimit, Left};
use crate::exchange::transfer::Switched;
use crate::request::{After, Request};
use crate::snapshot::CoreSnapshot;
use crate::upstream::backend::Backend;
use crate::upstream::connect::log_tls_failure;

/// Moves bytes until both directions have ended, one has failed, or nothing has moved for too long.
pub async fn run(
    connection: &mut Connection,
    request: &mut Request,
    snapshot: &Rc<CoreSnapshot>,
    backend: &Rc<Backend>,
    switched: Box<Switched>,
) -> After {
    let core = Rc::clone(&connection.core);
    core.metrics.increment(connection.metrics().tunnels);
    let limit = snapshot.listener(&connection.listener).timeouts.tunnel_idle;
    let Switched { server, answer } = *switched;
    let mut duplex = Duplex::new(connection, server, answer);
    // The request's own account has the bytes, when all is over.
    let left = duplex.run(connection, IdleLimit::new(limit, Fault::TunnelIdle), |_, _| {}).await;
    let fault = if let Left::Ended(fault) = left { fault } else { unreachable!("a request keeps its task") };
    if let Some(failure) = duplex.server.stream.failure() {
        log_tls_failure(backend, duplex.server.key.server, failure);
    }
    duplex.close(connection, fault);
    let (up, down) = duplex.moved();
    request.note.bytes_received += up;
    request.note.bytes_sent += down;
    if let Some(server) = request.note.server {
        core.metrics.lower(backend.server_metrics(server).open);
    }
    // A client that closes a tab leaves without a word: most tunnels end so, and nobody is at fault.
    request.note.fault = fault.filter(|fault| *fault != Fault::ClientReset);
    match fault {
        // The last words of a server that has closed must not be lost to a reset.
        None if duplex.is_broken() => After::Linger,
        None => After::Close,
        Some(_) => After::Abort,
    }
}
