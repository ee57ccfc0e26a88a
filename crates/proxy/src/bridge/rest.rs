//! The rest of a server's stream whose response may have no body: its end, as a rule, in a frame of its own.
//!
//! The client has its response and is not kept waiting. Data that comes instead goes to nobody: the stream is reset, and the
//! fault counted.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use propylon_config::BackendId;
use tokio::task::spawn_local;

use super::note_excess;
use super::upstream::Http2;
use crate::core::Core;
use crate::fault::EXCESS_DATA;
use crate::request::Request;

/// How long the end of such a stream is waited for, in milliseconds; then it is reset. For so long it has its seat.
const END_WAIT_MILLIS: u64 = 1_000;

/// Sees a stream to its end. An excess here already is the request's fault, in its log line; a later one is counted
/// alone.
pub fn follow(mut http2: Box<Http2>, core: &Rc<Core>, request: &mut Request, backend: BackendId) {
    match http2.poll_end(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(true) => {}
        Poll::Ready(false) => note_excess(core, request, backend),
        Poll::Pending => drop(spawn_local(wait(http2, Rc::clone(core), backend))),
    }
}

async fn wait(mut http2: Box<Http2>, core: Rc<Core>, backend: BackendId) {
    let (deadline, due) = (core.timers.deadline(), core.timers.now() + END_WAIT_MILLIS);
    let fine = poll_fn(|context| {
        if let Poll::Ready(fine) = http2.poll_end(context) {
            return Poll::Ready(fine);
        }
        if core.timers.now() >= due {
            return Poll::Ready(true);
        }
        deadline.set(due, context.waker());
        Poll::Pending
    })
    .await;
    if !fine {
        core.metrics.increment(core.telemetry.backends[backend.0].faults.of(EXCESS_DATA));
    }
}
