//! Forwarding: which server, on which connection, and what to do when that fails.
//!
//! An attempt may be repeated when nothing of the request was sent, or when the request may be sent twice
//! (RFC 9110 §9.2.2), all of its body is still here, and no byte of a response has come. Repeats after sending are
//! limited by the backend's retry budget.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

use propylon_config::{BackendId, Reuse};

use crate::connection::{After, Connection};
use crate::exchange::{Request, answer_error};
use crate::http1::{Decoder, Event};
use crate::pool::ServerConnection;
use crate::proxied;
use crate::snapshot::CoreSnapshot;
use crate::socket::Socket;
use crate::telemetry::Wait;
use crate::transfer::{Ended, Transfer, Upload};
use crate::tunnel;

/// What went wrong with one attempt.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// The status for the client if this was the last attempt.
    pub status: u16,
    /// One of `telemetry::SERVER_FAULTS`.
    pub reason: &'static str,
    /// The request may be tried again as far as this failure goes.
    pub repeatable: Repeatable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeatable {
    /// Nothing was sent.
    Unsent,
    /// Sent, and the server closed before any byte of a response.
    Unanswered,
    No,
}

/// Forwards a request to one of a backend's servers and streams the answer.
pub async fn forward(
    connection: &mut Connection,
    request: &mut Request,
    snapshot: &Rc<CoreSnapshot>,
    backend: BackendId,
) -> After {
    let core = Rc::clone(&connection.core);
    let state = &snapshot.backends[backend.0];
    let metrics = &core.telemetry.backends[backend.0];
    let retries = snapshot.shared.config.backends[backend.0].retries;
    request.note.backend = Some(backend.0);
    state.retry_budget.borrow_mut().earn();
    let listener = snapshot.listener(connection.listener);
    if !listener.request_headers.is_empty() {
        let ours = listener.request_headers.iter().map(|header| header.name.as_str());
        request.head.fields.withhold(&request.text, ours);
    }
    let mut upload = Upload::of(&request.head, &connection.inbox, listener);
    // Servers that this request failed at, so that a repeat goes elsewhere if there is an elsewhere. Empty, and so without
    // memory, for nearly every request.
    let mut tried = Vec::new();
    let mut fresh = false;
    loop {
        let Some(server) = pick(connection, snapshot, backend, &tried) else {
            core.metrics.increment(metrics.unavailable);
            request.note.fault = Some("no-server");
            return answer_error(connection, request, 503, "no-server");
        };
        request.note.server = Some(server);
        request.note.attempts += 1;
        let failed = match open(connection, request, snapshot, backend, server, fresh).await {
            Err(failed) => failed,
            Ok(opened) => {
                match Transfer::run(connection, request, snapshot, backend, server, opened, &mut upload).await {
                    Ended::Over(after) => {
                        if request.note.status != 0 {
                            state.suspects.borrow_mut().succeeded(server);
                        }
                        return after;
                    }
                    Ended::Switched(switched) => {
                        return tunnel::run(connection, request, snapshot, backend, switched).await;
                    }
                    Ended::Failed(failed) => failed,
                }
            }
        };
        core.metrics.increment(metrics.faults.of(failed.reason));
        request.note.fault = Some(failed.reason);
        if failed.repeatable == Repeatable::Unanswered && request.note.reused {
            core.metrics.increment(metrics.servers[server].stale);
            // Where one pooled connection was stale the others are likely to be.
            fresh = true;
        }
        if request.note.attempts > retries || !may_repeat(request, &upload, &failed) {
            return answer_error(connection, request, failed.status, failed.reason);
        }
        if failed.repeatable == Repeatable::Unanswered && !state.retry_budget.borrow_mut().spend() {
            core.metrics.increment(metrics.retries_refused);
            return answer_error(connection, request, failed.status, failed.reason);
        }
        core.metrics.increment(metrics.retries);
        request.note.fault = None;
        tried.push(server);
    }
}

fn may_repeat(request: &Request, upload: &Upload, failed: &Attempt) -> bool {
    match failed.repeatable {
        Repeatable::No => false,
        Repeatable::Unsent => upload.is_untouched(),
        Repeatable::Unanswered => upload.is_untouched() && request.head.method.is_idempotent(),
    }
}

pub fn pick(connection: &Connection, snapshot: &CoreSnapshot, backend: BackendId, tried: &[usize]) -> Option<usize> {
    let core = &connection.core;
    let state = &snapshot.backends[backend.0];
    let now = core.timers.now();
    let mut suspects = state.suspects.borrow_mut();
    let mut balancer = state.balancer.borrow_mut();
    let random = core.random.borrow_mut().u64(..);
    let picked = balancer
        .pick(|server| !tried.contains(&server) && suspects.eligible(server, now), random)
        .or_else(|| balancer.pick(|server| !tried.contains(&server), random))
        .or_else(|| balancer.pick(|_| true, random))?;
    suspects.tried(picked, now);
    Some(picked)
}

/// A connection to send a request on, from the pool or new; `Note::reused` tells which.
async fn open(
    connection: &mut Connection,
    request: &mut Request,
    snapshot: &CoreSnapshot,
    backend: BackendId,
    server: usize,
    fresh: bool,
) -> Result<ServerConnection, Attempt> {
    let core = Rc::clone(&connection.core);
    let config = &snapshot.shared.config.backends[backend.0];
    let state = &snapshot.backends[backend.0];
    let metrics = &core.telemetry.backends[backend.0].servers[server];
    core.metrics.increment(metrics.requests);
    request.note.reused = false;
    if config.reuse == Reuse::Always && !fresh {
        let (pooled, stale) = state.pool.checkout(server, !request.head.method.is_idempotent());
        for _ in 0..stale {
            core.metrics.increment(metrics.stale);
            core.metrics.lower(metrics.idle);
            core.metrics.lower(metrics.open);
        }
        if let Some(pooled) = pooled {
            core.metrics.lower(metrics.idle);
            core.metrics.increment(metrics.reused);
            request.note.reused = true;
            return Ok(pooled);
        }
    }
    let started = Instant::now();
    let connected = connect(connection, snapshot, backend, server).await;
    let micros = started.elapsed().as_micros() as u64;
    request.note.connect_us = Some(micros);
    core.metrics.observe(core.telemetry.backends[backend.0].connect_duration, micros);
    match connected {
        Ok(socket) => {
            if let Some(version) = config.send_proxy_protocol {
                proxied::announce(connection, version, &socket)?;
            }
            state.suspects.borrow_mut().succeeded(server);
            core.metrics.increment(metrics.connections);
            core.metrics.raise(metrics.open);
            Ok(ServerConnection { socket })
        }
        Err(failed) => {
            state.suspects.borrow_mut().failed(server, core.timers.now());
            core.metrics.increment(metrics.connect_failures);
            Err(failed)
        }
    }
}

async fn connect(
    connection: &mut Connection,
    snapshot: &CoreSnapshot,
    backend: BackendId,
    server: usize,
) -> Result<Socket, Attempt> {
    let core = Rc::clone(&connection.core);
    let patience = snapshot.shared.config.backends[backend.0].timeouts.connect.as_millis() as u64;
    let address = snapshot.shared.servers[backend.0][server].address;
    let mut socket = Socket::new(propylon_sys::connect(address).map_err(|error| connect_failure(&error))?);
    let due = core.timers.now() + patience;
    poll_fn(|context| {
        if let Poll::Ready(connected) = socket.poll_connected(context) {
            return Poll::Ready(connected.map_err(|error| connect_failure(&error)));
        }
        if core.timers.now() >= due {
            connection.count_timeout(Wait::Connect);
            let repeatable = Repeatable::Unsent;
            return Poll::Ready(Err(Attempt { status: 504, reason: "connect-timeout", repeatable }));
        }
        connection.deadline.set(due, context.waker());
        Poll::Pending
    })
    .await?;
    Ok(socket)
}

pub fn connect_failure(error: &std::io::Error) -> Attempt {
    let reason = match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connect-refused",
        _ => "connect-failed",
    };
    Attempt { status: 502, reason, repeatable: Repeatable::Unsent }
}

/// Sends what is staged, within the client's patience.
pub async fn flush(connection: &mut Connection) -> After {
    let core = Rc::clone(&connection.core);
    let patience = core.snapshot().listener(connection.listener).timeouts.body.as_millis() as u64;
    let mut due = None;
    poll_fn(|context| {
        match connection.stream.poll_flush(context, &core.stock, &mut connection.wire) {
            Poll::Ready(Ok(())) => return Poll::Ready(After::Next),
            Poll::Ready(Err(_)) => return Poll::Ready(After::Abort),
            Poll::Pending => {}
        }
        let now = core.timers.now();
        let due = *due.get_or_insert(now + patience);
        if now >= due {
            connection.count_timeout(Wait::ResponseBody);
            return Poll::Ready(After::Abort);
        }
        connection.deadline.set(due, context.waker());
        Poll::Pending
    })
    .await
}

/// The length of a whole chunked body at the front of `bytes`, framing included; none if its end is not there yet
/// or it is malformed.
pub fn whole_chunked(bytes: &[u8]) -> Option<usize> {
    let mut decoder = Decoder::new();
    let mut at = 0;
    loop {
        match decoder.next(&bytes[at..]).ok()? {
            Event::NeedMore { .. } => return None,
            Event::Data { end, .. } => at += end,
            Event::End { consumed } => return Some(at + consumed),
        }
    }
}
