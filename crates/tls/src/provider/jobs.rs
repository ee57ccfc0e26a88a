//! Jobs of the library's callbacks: deferred while the handshake is parked, or done on the spot.

use std::cell::Cell;

use propylon_crypto::{Job, JobError, JobKind, Outcome};

use super::captured::{self, Fault};
use crate::parking::{JobRouting, fiber};

thread_local! {
    /// Routing of the handshake that runs now.
    static ROUTING: Cell<Option<JobRouting>> = const { Cell::new(None) };
}

/// Runs a call into a handshake whose jobs may be deferred.
pub(crate) fn with_routing<T>(routing: JobRouting, turn: impl FnOnce() -> T) -> T {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            ROUTING.set(None);
        }
    }
    ROUTING.set(Some(routing));
    let _reset = Reset;
    turn()
}

/// Has a job done: deferred, with the handshake parked meanwhile, or on the spot. Called by the library's callbacks, in
/// which nothing is borrowed or locked.
pub(crate) fn run_job(job: Job) -> Outcome {
    let outcome = park_or_run(job);
    if let Err(error) = &outcome {
        captured::record(|captured| {
            captured.fault.get_or_insert(Fault::Job(*error));
        });
    }
    outcome
}

fn park_or_run(job: Job) -> Outcome {
    if !fiber::can_suspend() {
        return job.run();
    }
    let Some(routing) = ROUTING.take() else { return fiber::on_parent_stack(|| job.run()) };
    let kind = job.kind();
    let (defers, room) = (routing.defers(kind), routing.parking.has_room(kind));
    if defers && room {
        // Captured secrets and routing belong to the running handshake; another one will run before it is resumed.
        let captured = captured::take();
        let outcome = fiber::suspend(job);
        captured::restore(captured);
        ROUTING.set(Some(routing));
        return outcome;
    }
    if defers {
        routing.parking.count(|counts| match kind {
            JobKind::Remote => counts.refused += 1,
            _ => counts.done_on_the_spot += 1,
        });
    }
    ROUTING.set(Some(routing));
    if kind == JobKind::Remote {
        captured::record(|captured| captured.fault = Some(Fault::Busy));
        return Err(JobError::Unavailable);
    }
    fiber::on_parent_stack(|| job.run())
}
