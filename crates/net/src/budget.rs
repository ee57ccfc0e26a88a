//! Budgets of a poll: what one connection may do before the others of its core have their turn.
//!
//! A task whose sockets are always ready never waits, and all others of its core wait for it. So every poll of a task has the
//! budget of tokio's cooperative scheduling, 128 units that the runtime gives anew at each poll, and everything that sockets
//! do is paid for out of it: a unit for an operation, and one for each `BYTES_PER_UNIT` that it moves. What costs no operation of
//! a socket has a limit of its own: requests that lie in a buffer, pieces of a body, streams that begin.
//!
//! A task that has spent a budget is polled again when all that are ready have been polled, and the event loop has been asked who
//! else is. (A task that wakes itself would come before those that the event loop does not know of yet.)

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll};

use propylon_metrics::{Column, Counter, Registry};
use tokio::task::coop::{RestoreOnPending, has_budget_remaining, poll_proceed};
use tokio::task::yield_now;

/// Bytes that cost a unit: moving them takes about as long as a small read or write. A poll moves 1 MiB at most, in and out
/// together.
pub const BYTES_PER_UNIT: usize = 8 * 1024;
/// Chunks that cost a unit: of a byte each, a buffer of them takes as long as a hundred of large ones.
pub const CHUNKS_PER_UNIT: usize = 64;
/// Requests of one buffer that are served before others have their turn.
pub const REQUESTS_PER_POLL_MAX: u32 = 32;
/// Pieces of a body that are handed from one side to the other without an operation of a socket.
pub const PIECES_PER_POLL_MAX: u32 = 64;
/// Streams that one connection begins.
pub const STREAMS_PER_POLL_MAX: u32 = 32;
/// Bytes that one connection hands to the HTTP/2 library, which piles frames up as long as there are any: those of a few bytes are
/// many.
pub const FRAMES_BYTES_PER_POLL_MAX: usize = 64 * 1024;

/// A limit on what is done in one poll. The order is that of `NAMES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// Operations and bytes of the sockets.
    Sockets,
    /// `REQUESTS_PER_POLL_MAX`
    Requests,
    /// `PIECES_PER_POLL_MAX`
    Pieces,
    /// `STREAMS_PER_POLL_MAX`
    Streams,
    /// `FRAMES_BYTES_PER_POLL_MAX`
    Frames,
    /// One direction of a relay.
    Relay,
    /// Connections accepted in a row.
    Accepts,
}

const NAMES: [&str; 7] = ["sockets", "requests", "pieces", "streams", "frames", "relay", "accepts"];

type Counts = [u64; NAMES.len()];

thread_local! {
    /// How often each budget was spent on this core.
    static SPENT: Cell<Counts> = const { Cell::new([0; NAMES.len()]) };
}

/// A unit for one operation. It comes back if the operation turns out to have to wait, and is spent by `made_progress`.
pub fn poll_unit(context: &mut Context<'_>) -> Poll<RestoreOnPending> {
    match poll_proceed(context) {
        Poll::Pending => {
            note(Budget::Sockets);
            Poll::Pending
        }
        paid => paid,
    }
}

/// Pays for the bytes of an operation beyond those that its unit pays for.
#[inline]
pub fn charge_bytes(context: &mut Context<'_>, count: usize) {
    if count > BYTES_PER_UNIT {
        charge_units(context, count / BYTES_PER_UNIT);
    }
}

/// Pays for the chunks of a body that were decoded at one go.
#[inline]
pub fn charge_chunks(context: &mut Context<'_>, count: usize) {
    if count > CHUNKS_PER_UNIT {
        charge_units(context, count / CHUNKS_PER_UNIT);
    }
}

fn charge_units(context: &mut Context<'_>, count: usize) {
    for _ in 0..count {
        if !has_budget_remaining() {
            return;
        }
        if let Poll::Ready(unit) = poll_proceed(context) {
            unit.made_progress();
        }
    }
}

/// Passes on the outcome of an operation that the runtime has asked for its unit, with the bytes that it has moved.
#[inline]
pub fn charged<E>(context: &mut Context<'_>, outcome: Poll<Result<usize, E>>) -> Poll<Result<usize, E>> {
    match &outcome {
        Poll::Ready(Ok(count)) => charge_bytes(context, *count),
        Poll::Ready(Err(_)) => {}
        Poll::Pending if is_spent() => note(Budget::Sockets),
        Poll::Pending => {}
    }
    outcome
}

/// Whether sockets do nothing more in this poll.
pub fn is_spent() -> bool {
    !has_budget_remaining()
}

/// Has the task polled again after all others. Whoever calls this returns `Pending`.
pub fn spend(budget: Budget, context: &mut Context<'_>) {
    note(budget);
    // The first poll is all there is to it: the runtime wakes the task when it has asked the event loop.
    let _ = pin!(yield_now()).poll(context);
}

/// Lets all others go first.
pub async fn wait_for_others(budget: Budget) {
    note(budget);
    yield_now().await;
}

fn note(budget: Budget) {
    let mut counts = SPENT.get();
    counts[budget as usize] += 1;
    SPENT.set(counts);
}

pub struct BudgetMetrics([Counter; NAMES.len()]);

impl BudgetMetrics {
    pub fn new(r: &mut Registry) -> BudgetMetrics {
        let help = "Polls of a connection's task that a budget has ended, so that others of its core had their turn.";
        BudgetMetrics(NAMES.map(|name| r.counter("propylon_budgets_spent_total", help, &[("budget", name)])))
    }

    /// Counts what was spent on this core since it was last asked.
    pub fn report(&self, column: &Column) {
        for (counter, count) in self.0.iter().zip(SPENT.take()) {
            column.add(*counter, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    #[test]
    fn a_poll_decodes_no_more_chunks_than_its_budget_pays_for() {
        crate::socket::tests::on_a_core(async {
            // Pieces of a byte each, in buffers of 64 KiB.
            let polls = poll_fn(|context| {
                let mut decoded = 0;
                while let Poll::Ready(unit) = poll_unit(context) {
                    unit.made_progress();
                    charge_chunks(context, 64 * 1024 / 6);
                    decoded += 64 * 1024 / 6;
                }
                Poll::Ready(decoded)
            });
            let decoded = polls.await;
            assert!((8_000..=22_000).contains(&decoded), "{decoded} chunks");
        });
    }

    #[test]
    fn a_poll_moves_no_more_than_its_budget_pays_for() {
        crate::socket::tests::on_a_core(async {
            let polls = poll_fn(|context| {
                let mut moved = 0;
                while let Poll::Ready(unit) = poll_unit(context) {
                    unit.made_progress();
                    charge_bytes(context, 64 * 1024);
                    moved += 64 * 1024;
                }
                Poll::Ready(moved)
            });
            let moved = polls.await;
            assert!((900 * 1024..=1100 * 1024).contains(&moved), "{moved} bytes");
        });
    }
}
