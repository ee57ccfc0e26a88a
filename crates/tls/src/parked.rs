//! A handshake that is set aside: where it runs, what it takes along, and what is left of it when nobody comes back.

use std::rc::Rc;

use propylon_crypto::{Job, JobKind, Outcome};

use crate::deferral::{Parking, Way, along};
use crate::failure::Failure;
use crate::handshake::Handshake;
use crate::park::{Fiber, Turn};
use crate::session::Step;

/// How a turn of a handshake that may be set aside ended.
pub(crate) enum Pause {
    Parked(Box<Parked>),
    Finished(Shown),
    /// A defect of ours, which ends this handshake and no other.
    Panicked(String),
}

/// What a handshake takes along, since the driver's buffers cannot be lent to it beyond one call, and brings back.
pub(crate) struct Shown {
    pub handshake: Box<Handshake>,
    pub records: Vec<u8>,
    pub out: Vec<u8>,
    pub progress: Result<(usize, Step), Failure>,
}

pub(crate) struct Parked {
    /// Absent once it has been resumed.
    fiber: Option<Fiber<Shown>>,
    job: Option<Job>,
    kind: JobKind,
    parking: Rc<Parking>,
    /// Bytes at the buffer's front of which it has a copy.
    pub shown: usize,
}

impl Parked {
    /// Shows some records to a handshake whose work may be set aside.
    pub fn begin(way: &Way, mut handshake: Box<Handshake>, mut records: Vec<u8>) -> Pause {
        let shown = records.len();
        let its_way = way.clone();
        let call = move || {
            let mut out = Vec::new();
            let progress = along(its_way, || handshake.advance(&mut records, &mut out));
            Shown { handshake, records, out, progress }
        };
        match Fiber::start(&way.parking.stacks, call) {
            Ok(turn) => Parked::pause(turn, &way.parking, shown),
            // Without a stack the work is done on the spot.
            Err(call) => Pause::Finished(call()),
        }
    }

    pub fn take_job(&mut self) -> Option<Job> {
        self.job.take()
    }

    pub fn resume(mut self: Box<Self>, outcome: Outcome) -> Pause {
        let Some(fiber) = self.fiber.take() else { return Pause::Panicked("resumed twice".into()) };
        let (parking, shown) = (self.parking.clone(), self.shown);
        // Its place is free while it runs, and the next one that it may take is counted anew.
        drop(self);
        Parked::pause(fiber.resume(outcome), &parking, shown)
    }

    fn pause(turn: Turn<Shown>, parking: &Rc<Parking>, shown: usize) -> Pause {
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

impl Drop for Parked {
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
