//! A handshake that is set aside: where it runs, what it takes along, and what is left of it when nobody comes back.

use std::rc::Rc;

use propylon_crypto::{Job, JobKind, Outcome};

use super::step::Step;
use crate::parking::fiber::{Fiber, Turn};
use crate::parking::{Parking, Way};
use crate::provider::perform::along;

/// How a turn of a handshake that may be set aside ended.
pub(crate) enum Pause<T: 'static> {
    Parked(Box<Parked<T>>),
    Finished(T),
    /// A defect of ours, which ends this handshake and no other.
    Panicked(String),
}

/// What a handshake takes along, since the driver's buffers cannot be lent to it beyond one call, and brings back.
pub(crate) struct Shown<H, E> {
    pub handshake: Box<H>,
    pub records: Vec<u8>,
    pub out: Vec<u8>,
    pub progress: Result<(usize, Step), E>,
}

impl<H, E> Shown<H, E> {
    /// Shows some records to a handshake.
    pub fn to(mut handshake: Box<H>, mut records: Vec<u8>, advance: Advance<H, E>) -> Shown<H, E> {
        let mut out = Vec::new();
        let progress = advance(&mut handshake, &mut records, &mut out);
        Shown { handshake, records, out, progress }
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
    pub shown: usize,
}

impl<T: 'static> Parked<T> {
    /// Takes a turn of a handshake whose work may be set aside, with a copy of so many bytes.
    pub fn begin(way: &Way, shown: usize, turn: impl FnOnce() -> T + 'static) -> Pause<T> {
        let its_way = way.clone();
        match Fiber::start(&way.parking.stacks, move || along(its_way, turn)) {
            Ok(turn) => Parked::pause(turn, &way.parking, shown),
            // Without a stack the work is done on the spot.
            Err(call) => Pause::Finished(call()),
        }
    }

    pub fn take_job(&mut self) -> Option<Job> {
        self.job.take()
    }

    pub fn resume(mut self: Box<Self>, outcome: Outcome) -> Pause<T> {
        let Some(fiber) = self.fiber.take() else { return Pause::Panicked("resumed twice".into()) };
        let (parking, shown) = (self.parking.clone(), self.shown);
        // Its place is free while it runs, and the next one that it may take is counted anew.
        drop(self);
        Parked::pause(fiber.resume(outcome), &parking, shown)
    }

    fn pause(turn: Turn<T>, parking: &Rc<Parking>, shown: usize) -> Pause<T> {
        match turn {
            Turn::Suspended(fiber, job) => {
                let kind = job.kind();
                parking.enter(kind);
                let parking = parking.clone();
                Pause::Parked(Box::new(Parked { fiber: Some(fiber), job: Some(job), kind, parking, shown }))
            }
            Turn::Finished(shown) => Pause::Finished(shown),
            Turn::Panicked(message) => {
                parking.count(|counts| counts.panics += 1);
                Pause::Panicked(message)
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
