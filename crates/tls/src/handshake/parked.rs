//! Parked handshakes: fibers, the data that they own, and their cancellation.

use std::rc::Rc;

use propylon_crypto::{Job, JobKind, Outcome};

use super::step::Step;
use crate::parking::fiber::{Fiber, FiberState};
use crate::parking::{JobRouting, Parking};
use crate::provider::jobs::with_routing;

/// Result of running a handshake on a fiber.
pub(crate) enum RunResult<T: 'static> {
    Parked(Box<Parked<T>>),
    Finished(T),
    /// A panic, which ends this handshake and no other.
    Panicked(String),
}

/// Bytes that were consumed, and the next step.
type Progress<E> = Result<(usize, Step), E>;

/// A handshake on a fiber with copies of the buffers, since the driver's cannot be lent to it beyond one call.
pub(crate) struct DetachedHandshake<H, E> {
    pub handshake: Box<H>,
    pub records: Vec<u8>,
    pub out: Vec<u8>,
    pub progress: Progress<E>,
}

impl<H, E> DetachedHandshake<H, E> {
    /// Advances a handshake by some records.
    pub fn advance(mut handshake: Box<H>, mut records: Vec<u8>, advance: Advance<H, E>) -> DetachedHandshake<H, E> {
        let mut out = Vec::new();
        let progress = advance(&mut handshake, &mut records, &mut out);
        DetachedHandshake { handshake, records, out, progress }
    }

    /// Gives the handshake back with its progress. Output is appended to `out`, and the records are copied to the front
    /// of `buffer`, since the library moves the parts of a message together there and expects to find them. Absent if
    /// the buffer has shrunk while the handshake was parked.
    pub fn reattach(self, buffer: &mut [u8], out: &mut Vec<u8>) -> Option<(Box<H>, Progress<E>)> {
        out.extend_from_slice(&self.out);
        buffer.get_mut(..self.records.len())?.copy_from_slice(&self.records);
        Some((self.handshake, self.progress))
    }
}

/// Function that advances a handshake by some records, and appends output.
type Advance<H, E> = fn(&mut H, &mut [u8], &mut Vec<u8>) -> Progress<E>;

/// A handshake that waits for a job; `T` is the result of its run.
pub(crate) struct Parked<T: 'static> {
    /// The suspended run; absent once it has been resumed.
    fiber: Option<Fiber<T>>,
    job: Option<Job>,
    kind: JobKind,
    parking: Rc<Parking>,
}

impl<T: 'static> Parked<T> {
    /// Runs part of a handshake on a fiber.
    pub fn begin(routing: &JobRouting, turn: impl FnOnce() -> T + 'static) -> RunResult<T> {
        let own_routing = routing.clone();
        match Fiber::start(&routing.parking.stacks, move || with_routing(own_routing, turn)) {
            Ok(turn) => Parked::of_state(turn, &routing.parking),
            // Without a stack jobs are done on the spot.
            Err(call) => RunResult::Finished(call()),
        }
    }

    pub fn take_job(&mut self) -> Option<Job> {
        self.job.take()
    }

    pub fn resume(mut self: Box<Self>, outcome: Outcome) -> RunResult<T> {
        let Some(fiber) = self.fiber.take() else { return RunResult::Panicked("resumed twice".into()) };
        let parking = self.parking.clone();
        // A running handshake does not count as parked.
        drop(self);
        Parked::of_state(fiber.resume(outcome), &parking)
    }

    fn of_state(turn: FiberState<T>, parking: &Rc<Parking>) -> RunResult<T> {
        match turn {
            FiberState::Suspended(fiber, job) => {
                let kind = job.kind();
                parking.enter(kind);
                let parking = parking.clone();
                RunResult::Parked(Box::new(Parked { fiber: Some(fiber), job: Some(job), kind, parking }))
            }
            FiberState::Finished(answer) => RunResult::Finished(answer),
            FiberState::Panicked(message) => {
                parking.count(|counts| counts.panics += 1);
                RunResult::Panicked(message)
            }
        }
    }
}

impl<T: 'static> Drop for Parked<T> {
    fn drop(&mut self) {
        self.parking.leave(self.kind);
        if let Some(fiber) = self.fiber.take() {
            self.parking.count(|counts| counts.cancelled += 1);
            drop(fiber);
        }
    }
}

#[cfg(test)]
mod tests;
