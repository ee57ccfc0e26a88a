//! A connection that is no longer HTTP (RFC 9110 §7.8): bytes both ways until both sides have ended.

use std::future::poll_fn;
use std::io::IoSlice;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use propylon_http::fault::Fault;
use propylon_net::budget;
use propylon_net::buffer::Buffer;
use propylon_net::client_stream::Fill;
use propylon_observe::telemetry::Wait;

use crate::client::connection::Connection;
use crate::exchange::transfer::{PIECE_BYTES, Switched};
use crate::fault;
use crate::request::{After, Request};
use crate::snapshot::CoreSnapshot;
use crate::upstream::backend::Backend;

/// The client has closed or reset its connection while the server had not ended.
const CLIENT_LEFT: Fault = Fault::ClientReset;

/// One way of a tunnel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HalfState {
    Open,
    /// Nothing more will come; what has come is still on its way.
    Ending,
    Ended,
}

struct Tunnel<'a> {
    connection: &'a mut Connection,
    switched: &'a mut Switched,
    to_server: HalfState,
    to_client: HalfState,
    /// The way to the server has spent the last poll's budget: in this one the other comes first.
    client_first: bool,
    up: u64,
    down: u64,
}

/// Relays until both ways have ended, one has failed, or nothing has moved for too long.
pub async fn run(
    connection: &mut Connection,
    request: &mut Request,
    snapshot: &Rc<CoreSnapshot>,
    backend: &Rc<Backend>,
    mut switched: Box<Switched>,
) -> After {
    let core = Rc::clone(&connection.core);
    let metrics = &core.telemetry.listeners[connection.listener];
    core.metrics.increment(metrics.tunnels);
    let idle_limit = snapshot.listener(connection.listener).timeouts.tunnel_idle.as_millis() as u64;
    let mut tunnel = Tunnel {
        connection,
        switched: &mut switched,
        to_server: HalfState::Open,
        to_client: HalfState::Open,
        client_first: false,
        up: 0,
        down: 0,
    };
    let (mut moved, mut since) = (0, core.timers.now());
    let fault = poll_fn(|context| {
        if let Poll::Ready(ended) = tunnel.poll(context) {
            return Poll::Ready(ended.err());
        }
        let now = core.timers.now();
        if moved != tunnel.up + tunnel.down {
            (moved, since) = (tunnel.up + tunnel.down, now);
        }
        if now >= since + idle_limit {
            tunnel.connection.count_timeout(Wait::TunnelIdle);
            return Poll::Ready(Some(Fault::TunnelIdle));
        }
        tunnel.connection.deadline.set(since + idle_limit, context.waker());
        Poll::Pending
    })
    .await;
    request.note.bytes_received += tunnel.up;
    request.note.bytes_sent += tunnel.down;
    core.buffers.give_back(&mut switched.answer);
    if let Some(server) = request.note.server {
        core.metrics.lower(backend.server_metrics(server).open);
    }
    // A client that closes a tab leaves without a word: most tunnels end so, and nobody is at fault.
    request.note.fault = fault.filter(|fault| *fault != CLIENT_LEFT);
    match fault {
        None => After::Close,
        Some(_) => After::Abort,
    }
}

impl Tunnel<'_> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        if std::mem::take(&mut self.client_first) {
            self.move_to_client(context)?;
            self.move_to_server(context)?;
        } else {
            self.move_to_server(context)?;
            self.client_first = budget::is_spent();
            self.move_to_client(context)?;
        }
        match (self.to_server, self.to_client) {
            (HalfState::Ended, HalfState::Ended) => Poll::Ready(Ok(())),
            // Nobody may be reading what the client sends: it has ended, or the server takes nothing more.
            _ => self.connection.stream.socket.poll_reset(context).map(|()| Err(CLIENT_LEFT)),
        }
    }

    fn move_to_server(&mut self, context: &mut Context<'_>) -> Result<(), Fault> {
        if self.to_server != HalfState::Ended
            && let Poll::Ready(result) = self.poll_to_server(context)
        {
            result?;
            self.to_server = HalfState::Ended;
        }
        Ok(())
    }

    fn move_to_client(&mut self, context: &mut Context<'_>) -> Result<(), Fault> {
        if self.to_client != HalfState::Ended
            && let Poll::Ready(result) = self.poll_to_client(context)
        {
            result?;
            self.to_client = HalfState::Ended;
        }
        Ok(())
    }

    fn poll_to_server(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        let connection = &mut *self.connection;
        let buffers = &connection.core.buffers;
        let server = &mut self.switched.server.stream;
        loop {
            while !connection.inbox.is_empty() {
                let count = ready!(server.poll_write(context, buffers, &[IoSlice::new(connection.inbox.readable())]))
                    .map_err(|_| Fault::WriteFailed)?;
                connection.inbox.consume(count);
                self.up += count as u64;
            }
            ready!(server.poll_flush(context, buffers)).map_err(|_| Fault::WriteFailed)?;
            if self.to_server == HalfState::Ending {
                // The server may go on sending after the client has ended.
                return server.poll_end(context, buffers).map_err(|_| Fault::WriteFailed);
            }
            match ready!(connection.stream.poll_fill(context, buffers, &mut connection.inbox, &mut connection.wire)) {
                Ok(Fill::Bytes) => {}
                Ok(Fill::End) => self.to_server = HalfState::Ending,
                Err(_) => return Poll::Ready(Err(CLIENT_LEFT)),
            }
        }
    }

    fn poll_to_client(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        let connection = &mut *self.connection;
        let buffers = &connection.core.buffers;
        loop {
            ready!(connection.stream.poll_flush(context, buffers, &mut connection.wire))
                .map_err(|_| fault::of_write(&connection.stream))?;
            let answer: &mut Buffer = &mut self.switched.answer;
            if !answer.is_empty() {
                let count = answer.len().min(PIECE_BYTES);
                connection.stream.stage(&answer.readable()[..count], buffers, &mut connection.wire);
                answer.consume(count);
                self.down += count as u64;
                continue;
            }
            if self.to_client == HalfState::Ending {
                return Poll::Ready(connection.stream.socket.shutdown_write().map_err(|_| CLIENT_LEFT));
            }
            match ready!(self.switched.server.stream.poll_fill(context, buffers, answer)) {
                Ok(0) => {
                    connection.stream.stage_close(&mut connection.wire);
                    self.to_client = HalfState::Ending;
                }
                Ok(_) => {}
                Err(_) => return Poll::Ready(Err(Fault::ServerReset)),
            }
        }
    }
}
