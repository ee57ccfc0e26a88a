//! Jobs of the library's callbacks: done by somebody else while the handshake is parked, or on the spot.

use std::cell::Cell;

use propylon_crypto::{Job, JobError, JobKind, Outcome};

use super::captured::{self, Fault};
use crate::parking::{Way, fiber};

thread_local! {
    /// Of the handshake whose turn it is.
    static WAY: Cell<Option<Way>> = const { Cell::new(None) };
}

/// Runs a turn of a handshake whose work may be set aside.
pub(crate) fn along<T>(way: Way, turn: impl FnOnce() -> T) -> T {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            WAY.set(None);
        }
    }
    WAY.set(Some(way));
    let _reset = Reset;
    turn()
}

/// Has a job done: by somebody else, with the handshake parked meanwhile, or here and now. Called from the depth of the
/// library, where nothing is borrowed or locked.
pub(crate) fn perform(job: Job) -> Outcome {
    let outcome = set_aside_or_run(job);
    if let Err(error) = &outcome {
        captured::note(|heard| {
            heard.fault.get_or_insert(Fault::Job(*error));
        });
    }
    outcome
}

fn set_aside_or_run(job: Job) -> Outcome {
    if !fiber::can_suspend() {
        return job.run();
    }
    let Some(way) = WAY.take() else { return fiber::deep(|| job.run()) };
    let kind = job.kind();
    let (takes, room) = (way.takes(kind), way.parking.has_room(kind));
    if takes && room {
        // Both are the running handshake's, and another will run before this one goes on.
        let heard = captured::set_aside();
        let outcome = fiber::suspend(job);
        captured::put_back(heard);
        WAY.set(Some(way));
        return outcome;
    }
    if takes {
        way.parking.count(|counts| match kind {
            JobKind::Remote => counts.refused += 1,
            _ => counts.done_on_the_spot += 1,
        });
    }
    WAY.set(Some(way));
    if kind == JobKind::Remote {
        captured::note(|heard| heard.fault = Some(Fault::Busy));
        return Err(JobError::Unavailable);
    }
    fiber::deep(|| job.run())
}
