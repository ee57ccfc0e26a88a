//! A handshake that is set aside: where it runs, what it takes along, and what is left of it when nobody comes back.

use std::rc::Rc;

use propylon_crypto::{Job, JobKind, Outcome};

use super::step::Step;
use crate::parking::fiber::{Fiber, FiberState};
use crate::parking::{JobRouting, Parking};
use crate::provider::jobs::with_routing;

/// How a turn of a handshake that may be set aside ended.
pub(crate) enum RunResult<T: 'static> {
    Parked(Box<Parked<T>>),
    Finished(T),
    /// A defect of ours, which ends this handshake and no other.
    Panicked(String),
}

/// What a handshake takes along, since the driver's buffers cannot be lent to it beyond one call, and brings back.
pub(crate) struct DetachedHandshake<H, E> {
    pub handshake: Box<H>,
    pub records: Vec<u8>,
    pub out: Vec<u8>,
    pub progress: Result<(usize, Step), E>,
}

impl<H, E> DetachedHandshake<H, E> {
    /// Shows some records to a handshake.
    pub fn advance(mut handshake: Box<H>, mut records: Vec<u8>, advance: Advance<H, E>) -> DetachedHandshake<H, E> {
        let mut out = Vec::new();
        let progress = advance(&mut handshake, &mut records, &mut out);
        DetachedHandshake { handshake, records, out, progress }
    }
}

/// Takes a handshake as far as some records allow, and appends what is to be sent.
type Advance<H, E> = fn(&mut H, &mut [u8], &mut Vec<u8>) -> Result<(usize, Step), E>;

/// A handshake that waits for a job; `T` is what it comes back with.
pub(crate) struct Parked<T: 'static> {
    /// Absent once it has been resumed.
    fiber: Option<Fiber<T>>,
    job: Option<Job>,
    kind: JobKind,
    parking: Rc<Parking>,
    /// Bytes at the buffer's front of which it has a copy.
    pub copied: usize,
}

impl<T: 'static> Parked<T> {
    /// Takes a turn of a handshake whose work may be set aside, with a copy of so many bytes.
    pub fn begin(routing: &JobRouting, copied: usize, turn: impl FnOnce() -> T + 'static) -> RunResult<T> {
        let own_routing = routing.clone();
        match Fiber::start(&routing.parking.stacks, move || with_routing(own_routing, turn)) {
            Ok(turn) => Parked::of_state(turn, &routing.parking, copied),
            // Without a stack the work is done on the spot.
            Err(call) => RunResult::Finished(call()),
        }
    }

    pub fn take_job(&mut self) -> Option<Job> {
        self.job.take()
    }

    pub fn resume(mut self: Box<Self>, outcome: Outcome) -> RunResult<T> {
        let Some(fiber) = self.fiber.take() else { return RunResult::Panicked("resumed twice".into()) };
        let (parking, copied) = (self.parking.clone(), self.copied);
        // Its place is free while it runs, and the next one that it may take is counted anew.
        drop(self);
        Parked::of_state(fiber.resume(outcome), &parking, copied)
    }

    fn of_state(turn: FiberState<T>, parking: &Rc<Parking>, copied: usize) -> RunResult<T> {
        match turn {
            FiberState::Suspended(fiber, job) => {
                let kind = job.kind();
                parking.enter(kind);
                let parking = parking.clone();
                RunResult::Parked(Box::new(Parked { fiber: Some(fiber), job: Some(job), kind, parking, copied }))
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
