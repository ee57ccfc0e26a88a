//! The rest of a server's stream whose response may have no body: its end, as a rule, in a frame of its own.
//!
//! The client has its response and is not kept waiting. Data that comes instead goes to nobody: the stream is reset,
//! and the fault counted.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tokio::task::spawn_local;

use propylon_http::fault::Fault;

use super::http2::Http2;
use crate::request::Request;
use crate::upstream::backend::Backend;

/// How long the end of such a stream is waited for, in milliseconds; then it is reset. For so long it has its stream.
const END_WAIT_MILLIS: u64 = 1_000;

/// Takes note that the server has sent more than belongs to its response, which the client has.
pub fn note_excess(request: &mut Request, backend: &Backend) {
    request.note.fault = Some(Fault::ExcessData);
    backend.services.metrics.increment(backend.metrics().faults.of(Fault::ExcessData));
}

/// Sees a stream to its end. An excess here already is the request's fault, in its log line; a later one is counted
/// alone.
pub fn see_out(mut http2: Box<Http2>, request: &mut Request, backend: &Rc<Backend>) {
    match http2.poll_end(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(true) => {}
        Poll::Ready(false) => note_excess(request, backend),
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
