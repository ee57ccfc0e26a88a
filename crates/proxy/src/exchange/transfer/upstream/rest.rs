//! The rest of what a server sends behind a response: the end of a stream whose response may have no body, in a frame
//! of its own as a rule, and the record that ends a request of FastCGI.
//!
//! The client has its response and is not kept waiting. Data that comes instead goes to nobody: the stream is reset,
//! and the fault counted.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tokio::task::spawn_local;

use propylon_http::fault::Fault;

use super::fastcgi::FastCgi;
use super::http2::Http2;
use crate::request::{Note, Request};
use crate::upstream::backend::Backend;
use crate::upstream::closing;
use crate::upstream::connect::{check_in, log_complaint};
use crate::upstream::connection::Permit;

/// How long the end of such a stream is waited for, in milliseconds; then it is reset. For so long it has its stream.
const END_WAIT_MILLIS: u64 = 1_000;

/// Takes note that the server has sent more than belongs to its response, which the client has.
pub fn note_excess(note: &mut Note, backend: &Backend) {
    note.fault = Some(Fault::ExcessData);
    backend.services.metrics.increment(backend.metrics().faults.of(Fault::ExcessData));
}

/// Sees a stream to its end. An excess here already is the request's fault, in its log line; a later one is counted
/// alone.
pub fn see_out(mut http2: Box<Http2>, note: &mut Note, backend: &Rc<Backend>) {
    match http2.poll_end(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(true) => {}
        Poll::Ready(false) => note_excess(note, backend),
        Poll::Pending => drop(spawn_local(wait(http2, Rc::clone(backend)))),
    }
}

async fn wait(mut http2: Box<Http2>, backend: Rc<Backend>) {
    let services = &backend.services;
    let (deadline, due) = (services.timers.deadline(), services.timers.now() + END_WAIT_MILLIS);
    let fine = poll_fn(|context| {
        if let Poll::Ready(fine) = http2.poll_end(context) {
            return Poll::Ready(fine);
        }
        if services.timers.now() >= due {
            return Poll::Ready(true);
        }
        deadline.set(due, context.waker());
        Poll::Pending
    })
    .await;
    if !fine {
        services.metrics.increment(backend.metrics().faults.of(Fault::ExcessData));
    }
}

/// Ends a request of FastCGI: its connection goes back where it can carry another, once the server has said that it has
/// done with this one. `is_whole`: both bodies are; `is_given_up`: the server may be at work, and nobody waits for it.
pub fn end_fastcgi(
    mut fastcgi: Box<FastCgi>,
    (is_whole, is_given_up): (bool, bool),
    request: &mut Request,
    backend: &Rc<Backend>,
) -> Option<Permit> {
    let services = &backend.services;
    let mut context = Context::from_waker(Waker::noop());
    let ended = if is_whole { fastcgi.poll_end(&mut context, services) } else { Poll::Ready(false) };
    log_complaint(backend, fastcgi.connection.key.server, &std::mem::take(&mut fastcgi.complaint));
    if is_whole && fastcgi.has_excess() {
        note_excess(&mut request.note, backend);
    }
    if ended.is_pending() {
        drop(spawn_local(wait_for_end(fastcgi, Rc::clone(backend))));
        return None;
    }
    if is_given_up {
        fastcgi.abort(&mut context, services);
        closing::end(backend, fastcgi.end(services).0);
        return None;
    }
    let (connection, is_clean) = fastcgi.end(services);
    check_in(backend, connection, is_whole && is_clean)
}

async fn wait_for_end(mut fastcgi: Box<FastCgi>, backend: Rc<Backend>) {
    let services = &backend.services;
    let (deadline, due) = (services.timers.deadline(), services.timers.now() + END_WAIT_MILLIS);
    let ended = poll_fn(|context| {
        if let Poll::Ready(ended) = fastcgi.poll_end(context, services) {
            return Poll::Ready(Some(ended));
        }
        if services.timers.now() >= due {
            return Poll::Ready(None);
        }
        deadline.set(due, context.waker());
        Poll::Pending
    })
    .await;
    if fastcgi.has_excess() {
        services.metrics.increment(backend.metrics().faults.of(Fault::ExcessData));
    }
    log_complaint(&backend, fastcgi.connection.key.server, &fastcgi.complaint);
    let (connection, is_clean) = fastcgi.end(services);
    match ended {
        // A script that works on behind its response: the connection counts for as long.
        None => closing::end(&backend, connection),
        Some(ended) => drop(check_in(&backend, connection, ended && is_clean)),
    }
}
