//! A server for a relay: picked, connected, and told of the client; another one where that fails, since nothing was
//! sent.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use propylon_http::fault::Fault;
use propylon_net::server_stream::ServerStream;
use propylon_net::socket::Socket;
use propylon_observe::telemetry::Wait;
use propylon_policy::reuse::Fit;
use propylon_sys::Address;

use super::note::Note;
use crate::client::connection::Connection;
use crate::client::proxy_header;
use crate::client::side::ClientSide;
use crate::endpoint::EndpointAddress;
use crate::fault::{Attempt, Repeatable};
use crate::upstream::backend::Backend;
use crate::upstream::balance::Affinity;
use crate::upstream::checkout::{Found, Need, Refusal, RetryState, find};
use crate::upstream::connect::{CONNECT_TIMEOUT, commit, connect_failure, connect_ip, connect_unix};
use crate::upstream::connection::{PoolKey, ServerConnection};
use crate::upstream::in_flight::InFlight;

const READ_BYTES_MIN: usize = 4096;

/// A connected server, and how many of the client's bytes it got already. The error is one of
/// `telemetry::RELAY_FAULTS`.
pub async fn dial(
    connection: &mut Connection,
    backend: &Rc<Backend>,
    note: &mut Note,
) -> Result<(Box<ServerConnection>, u64, InFlight), Fault> {
    let core = Rc::clone(&connection.core);
    let config = backend.config();
    let metrics = backend.metrics();
    let header = match config.send_proxy_protocol {
        None => Vec::new(),
        Some(version) => {
            proxy_header::header(connection, version, note.server_name.as_deref()).map_err(|_| Fault::ClientReset)?
        }
    };
    // An idle connection has a request behind it; a relay's server sees its client from the first byte.
    let need = Need { fit: Fit::New, certain: false, owner: None };
    let affinity = Affinity::of_client(connection.peer.ip(), config);
    let mut retry_state = RetryState { affinity, ..RetryState::default() };
    backend.shared.retries.earn(backend.state.pool.core());
    loop {
        let found = find(&mut ClientSide::Http1(connection), backend, &need, &mut retry_state).await;
        note.queue_us = retry_state.queue_us.map(narrow);
        let (server, found) = found.map_err(fault)?;
        let Found::Permit(permit) = found else { unreachable!("an idle connection is not new") };
        note.server = Some(server as u32);
        note.attempts += 1;
        let turn = InFlight::begin(backend, server);
        let began = Instant::now();
        let opened = open(connection, backend, server, &header).await;
        let micros = began.elapsed().as_micros() as u64;
        note.connect_us = Some(narrow(micros));
        let (made, sent) = match opened {
            Ok((socket, remote, sent)) => (Ok((ServerStream::plain(socket), remote)), sent),
            Err(Failed::Client) => return Err(Fault::ClientReset),
            Err(Failed::Server(failed)) => (Err(failed), 0),
        };
        core.metrics.observe(metrics.connect_duration, micros);
        let key = PoolKey { server, owner: None };
        match commit(backend, key, permit, made) {
            Ok(server) => {
                turn.connected(micros);
                return Ok((server, sent, turn));
            }
            Err(failed) => {
                core.metrics.increment(metrics.faults.of(failed.fault));
                // A shortage on this machine is no fault of the server.
                if failed.fault.status() != 503 {
                    turn.failed();
                }
                retry_state.failed(server);
                if failed.repeatable == Repeatable::No || retry_state.failures > config.retries {
                    return Err(failed.fault);
                }
                if !backend.spend_retry() {
                    return Err(failed.fault);
                }
                core.metrics.increment(metrics.retries);
            }
        }
    }
}

fn fault(refusal: Refusal) -> Fault {
    match refusal {
        Refusal::NoServer => Fault::NoServer,
        Refusal::TimedOut => Fault::RequestTimeout,
        Refusal::Queue(fault) | Refusal::Unfit(fault) => fault,
        Refusal::ClientGone(why) => why,
        Refusal::Failed(failed) => failed.fault,
    }
}

fn narrow(micros: u64) -> u32 {
    u32::try_from(micros).unwrap_or(u32::MAX)
}

enum Failed {
    /// The client has reset its connection meanwhile.
    Client,
    Server(Attempt),
}

async fn open(
    connection: &mut Connection,
    backend: &Backend,
    server: usize,
    header: &[u8],
) -> Result<(Socket, EndpointAddress, u64), Failed> {
    let core = Rc::clone(&connection.core);
    let timeout = backend.config().timeouts.connect.as_millis() as u64;
    let endpoint = &backend.servers[server].endpoint;
    let Some(remote) = endpoint.connect_order().next() else { return Err(Failed::Server(CONNECT_TIMEOUT)) };
    // Another attempt takes another address, where there is one.
    let fail = |error: &io::Error| {
        endpoint.note_failed(remote);
        Failed::Server(connect_failure(error))
    };
    // Bytes that the client has sent already go to the server with the last segment of the TCP handshake.
    poll_fn(|context| Poll::Ready(listen(context, connection))).await.map_err(|Gone| Failed::Client)?;
    let has_bytes = !header.is_empty() || !connection.inbox.is_empty();
    let due = core.timers.now() + timeout;
    let socket = match remote.address {
        Address::Ip(address) => connect_ip(backend, address, (false, has_bytes)),
        Address::Unix(name) => connect_unix(backend, server, name, (due, &connection.deadline)).await,
    };
    let socket = socket.map_err(|error| fail(&error))?;
    let mut first = First { socket: Socket::new(socket), at: 0, has_listened: true };
    let sent = poll_fn(|context| {
        match first.poll(context, connection, header) {
            Poll::Ready(Ok(sent)) => return Poll::Ready(Ok(sent)),
            Poll::Ready(Err(Side::Client)) => return Poll::Ready(Err(Failed::Client)),
            Poll::Ready(Err(Side::Server(error))) => return Poll::Ready(Err(fail(&error))),
            Poll::Pending => {}
        }
        if core.timers.now() >= due {
            connection.count_timeout(Wait::Connect);
            endpoint.note_failed(remote);
            return Poll::Ready(Err(Failed::Server(CONNECT_TIMEOUT)));
        }
        connection.deadline.set(due, context.waker());
        Poll::Pending
    })
    .await?;
    Ok((first.socket, remote, sent))
}

/// The client has reset its connection.
struct Gone;

enum Side {
    Client,
    Server(io::Error),
}

/// A connection whose first write tells whether it was made: where the client's bytes are there, and the server is
/// near, no event need be waited for.
struct First {
    socket: Socket,
    /// Bytes of the header that the server has.
    at: usize,
    /// The client was asked for bytes just now.
    has_listened: bool,
}

impl First {
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        connection: &mut Connection,
        header: &[u8],
    ) -> Poll<Result<u64, Side>> {
        if !std::mem::take(&mut self.has_listened) {
            listen(context, connection).map_err(|Gone| Side::Client)?;
        }
        let header = &header[self.at..];
        if header.is_empty() && connection.inbox.is_empty() {
            return self.socket.poll_connected(context).map(|done| done.map(|()| 0).map_err(Side::Server));
        }
        let slices = [IoSlice::new(header), IoSlice::new(connection.inbox.readable())];
        let slices = match (header.is_empty(), connection.inbox.is_empty()) {
            (true, _) => &slices[1..],
            (false, true) => &slices[..1],
            (false, false) => &slices[..],
        };
        match self.socket.poll_write_vectored(context, slices) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(Side::Server(error))),
            Poll::Ready(Ok(count)) if count < header.len() => {
                self.at += count;
                let _ = self.socket.set_nodelay();
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(Ok(count)) => {
                let sent = count - header.len();
                connection.inbox.consume(sent);
                Poll::Ready(Ok(sent as u64))
            }
        }
    }
}

/// Takes what the client has sent meanwhile, once: in plaintext it can go out with the first write.
fn listen(context: &mut Context<'_>, connection: &mut Connection) -> Result<(), Gone> {
    let stream = &mut connection.stream;
    if stream.tls.is_some() || stream.ended || !connection.inbox.is_empty() {
        return match stream.socket.poll_reset(context) {
            Poll::Ready(()) => Err(Gone),
            Poll::Pending => Ok(()),
        };
    }
    let buffers = &connection.core.buffers;
    buffers.equip(&mut connection.inbox);
    match stream.socket.poll_read(context, connection.inbox.spare(READ_BYTES_MIN)) {
        Poll::Pending => buffers.release(&mut connection.inbox),
        Poll::Ready(Ok(0)) => stream.ended = true,
        Poll::Ready(Ok(count)) => connection.inbox.filled(count),
        Poll::Ready(Err(_)) => return Err(Gone),
    }
    Ok(())
}
