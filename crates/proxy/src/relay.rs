//! The life of a connection whose bytes are handed on and not understood: routed by its listener and, where TLS names
//! one, by the server's name; a server dialled; bytes both ways until both sides have ended; one line in the log.

mod dial;
mod hello;
mod note;

use std::rc::Rc;
use std::time::Instant;

use propylon_config::Protocol;
use propylon_http::fault::Fault;

use crate::client::connection::Connection;
use crate::core::Core;
use crate::duplex::{Duplex, IdleLimit, Left};
use crate::request::After;
use crate::services::ListenerHandle;
use crate::snapshot::CoreSnapshot;
use crate::upstream::connection::ServerConnection;
use crate::upstream::in_flight::InFlight;

use note::{Note, Refusal, UNRECOGNIZED_NAME};
use propylon_observe::access_log::{RelayRecord, TlsFields};

/// A connection that has its server.
pub struct Relay {
    duplex: Duplex,
    snapshot: Rc<CoreSnapshot>,
    note: Note,
    turn: InFlight,
    in_progress: InProgress,
}

/// Relays a client's connection from its first byte (behind a header of the PROXY protocol and a TLS handshake), or
/// from its rest, to its end, or until it rests.
pub async fn run(connection: &mut Connection, relay: Option<Box<Relay>>) -> Option<Box<Relay>> {
    let mut relay = match relay {
        Some(relay) => relay,
        None => Box::pin(begin(connection)).await?,
    };
    match relay.run(connection).await {
        Left::Resting => Some(relay),
        Left::Ended(fault) => {
            Box::pin(relay.end(connection, fault)).await;
            None
        }
    }
}

/// Begins a relay. `None` when there is no server for this client; then all is said and done.
async fn begin(connection: &mut Connection) -> Option<Box<Relay>> {
    let core = Rc::clone(&connection.core);
    let in_progress = InProgress::begin(&core, &connection.listener);
    let snapshot = core.snapshot();
    let mut note = Note::begin();
    match find_server(connection, &snapshot, &mut note).await {
        Ok((server, sent, turn)) => {
            core.metrics.add(connection.metrics().account.received, sent);
            let duplex = Duplex::of_relay(connection, server, sent);
            Some(Box::new(Relay { duplex, snapshot, note, turn, in_progress }))
        }
        Err(Refusal { fault, alert }) => {
            if let Some(alert) = alert {
                connection.wire.extend(alert);
            }
            // On TLS that ended here, a close_notify at least.
            connection.farewell(if alert.is_some() { After::Linger } else { After::Close }).await;
            drop(in_progress);
            account(connection, &snapshot, &note, Some(fault), (0, 0));
            None
        }
    }
}

/// A server for this client, connected, and the bytes that it got already.
async fn find_server(
    connection: &mut Connection,
    snapshot: &Rc<CoreSnapshot>,
    note: &mut Note,
) -> Result<(Box<ServerConnection>, u64, InFlight), Refusal> {
    let is_passthrough = snapshot.listener(&connection.listener).protocol == Protocol::Passthrough;
    note.server_name = match is_passthrough {
        true => hello::server_name(connection).await?,
        false => connection.hello_info().and_then(|known| known.server_name.clone()),
    };
    let name = note.server_name.as_deref().unwrap_or_default();
    let Some(route) = snapshot.relay_route(&connection.listener, name) else {
        return Err(Refusal { fault: Fault::NoRoute, alert: is_passthrough.then_some(&UNRECOGNIZED_NAME[..]) });
    };
    if snapshot.shared.config.routes[route].require_client_certificate && !connection.is_identified() {
        return Err(Refusal::silent(Fault::ClientCertificateRequired));
    }
    let Some(backend) = snapshot.relay_backend(route) else { return Err(Refusal::silent(Fault::NoServer)) };
    note.backend = Some(backend.0 as u32);
    let backend = &snapshot.backends[backend.0];
    connection.note_backend(backend.metrics());
    let dialled = dial::dial(connection, backend, note).await.map_err(Refusal::silent)?;
    connection.forget_introduction_of_relay();
    Ok(dialled)
}

impl Connection {
    /// The log's line at the end is all that still needs it.
    fn forget_introduction_of_relay(&mut self) {
        if !self.core.log.borrow().is_on()
            && let Some(session) = &mut self.stream.tls
        {
            session.forget_hello_info();
        }
    }
}

impl Relay {
    /// Moves bytes until both directions have ended, one has failed, or nothing has moved for too long.
    fn run<'a>(&'a mut self, connection: &'a mut Connection) -> impl Future<Output = Left> + 'a {
        let limit = self.snapshot.listener(&connection.listener).timeouts.tunnel_idle;
        self.duplex.run(connection, IdleLimit::new(limit, Fault::Idle), |connection, moved| {
            let (core, metrics) = (&connection.core, connection.metrics());
            core.metrics.add(metrics.account.received, moved.0);
            core.metrics.add(metrics.account.sent, moved.1);
        })
    }

    /// Closes the server's side, says goodbye to the client where that is called for, and writes the account.
    async fn end(mut self: Box<Self>, connection: &mut Connection, fault: Option<Fault>) {
        let (moved, is_broken) = (self.duplex.moved(), self.duplex.is_broken());
        self.duplex.close(connection, fault);
        let Relay { duplex, snapshot, note, turn, in_progress } = *self;
        // The permit of the connection goes back now, whatever the client still does.
        drop((duplex, turn));
        let core = Rc::clone(&connection.core);
        if let (Some(backend), Some(server)) = (note.backend, note.server) {
            core.metrics.lower(snapshot.backends[backend as usize].server_metrics(server as usize).open);
        }
        if fault.is_none() && is_broken || fault == Some(Fault::KeysExhausted) {
            // The server has closed with bytes of the client's unread, or its answer is too long for the session's key:
            // the part of the answer that there is must not be lost to a reset.
            connection.farewell(After::Linger).await;
        }
        drop(in_progress);
        account(connection, &snapshot, &note, fault, moved);
    }
}

/// Keeps the count of what the drain waits for right, also when the task is dropped half-way.
struct InProgress {
    core: Rc<Core>,
    listener: Rc<ListenerHandle>,
}

impl InProgress {
    fn begin(core: &Rc<Core>, listener: &Rc<ListenerHandle>) -> InProgress {
        core.requests.set(core.requests.get() + 1);
        core.metrics.raise(listener.metrics.in_progress);
        InProgress { core: Rc::clone(core), listener: Rc::clone(listener) }
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.core.requests.set(self.core.requests.get() - 1);
        self.core.metrics.lower(self.listener.metrics.in_progress);
    }
}

/// Writes a finished connection into metrics and log.
fn account(connection: &Connection, snapshot: &CoreSnapshot, note: &Note, fault: Option<Fault>, moved: (u64, u64)) {
    let core = &connection.core;
    let total = note.started.elapsed();
    if let Some(metrics) = connection.listener.relay() {
        core.metrics.increment(fault.map_or(metrics.closed, |fault| metrics.failed.of(fault)));
        let millis = core.timers.at(Instant::now()).saturating_sub(connection.accepted);
        core.metrics.observe(metrics.duration, millis);
    }
    let mut log = core.log.borrow_mut();
    if !log.is_on() {
        return;
    }
    let config = &snapshot.shared.config;
    let listener = snapshot.listener(&connection.listener);
    let hello_info = connection.hello_info();
    let alpn = |at: u8| listener.alpn.get(usize::from(at)).map(String::as_str);
    let tls = connection.facts.as_ref().map(|facts| TlsFields {
        version: facts.version.name(),
        suite: facts.suite.name(),
        group: facts.group.map(propylon_tls::Group::name),
        certificate: facts.certificate.map(propylon_config::KeyType::name),
        signature: facts.signature.map(propylon_tls::Scheme::name),
        alpn: facts.alpn.and_then(alpn),
        resumed: facts.resumed,
        server_name: None,
        ja4: hello_info.and_then(|known| known.ja4.as_deref()).map(propylon_tls::Ja4::as_str),
        client: hello_info.and_then(|known| known.identity.as_deref()),
    });
    let (backend, server) = (note.backend.map(|at| at as usize), note.server.map(|at| at as usize));
    log.write_relay(&RelayRecord {
        client: connection.peer,
        listener: &listener.name,
        protocol: listener.protocol.name(),
        server_name: note.server_name.as_deref(),
        bytes_received: moved.0,
        bytes_sent: moved.1,
        handshake_us: connection.handshake_us.map(u64::from),
        queue_us: note.queue_us.map(u64::from),
        connect_us: note.connect_us.map(u64::from),
        total_us: total.as_micros() as u64,
        backend: backend.map(|backend| config.backends[backend].name.as_str()),
        server: backend.zip(server).map(|(b, s)| snapshot.shared.servers[b][s].label.as_str()),
        attempts: note.attempts,
        tls: tls.as_ref(),
        fault,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_at_rest_is_two_small_blocks_beside_its_connection() {
        let sizes = (size_of::<Relay>(), size_of::<ServerConnection>());
        assert!(sizes.0 <= 256 && sizes.1 <= 160, "{sizes:?} bytes");
    }
}
