//! Causes of failed attempts: what they say about their servers, and how they count.

use propylon_http::fault::{Blame, Fault};

use crate::fault::{Attempt, Repeatable};
use crate::upstream::backend::Backend;
use crate::upstream::balance::is_failure;
use crate::upstream::checkout::RetryState;
use crate::upstream::in_flight::InFlight;

/// Attempts of one request that may be cut off so before they count.
const CUT_OFF_REPEATS_MAX: u8 = 4;

/// Cause of a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Other requests have had the connection ended, which is no sign of trouble, and happens as often as clients like.
    CutOff,
    /// A connection that had served before broke before it answered: its server has closed it while it was idle, or
    /// while our request was on its way. The repeat is on a new one, so there is one of these at most. Over HTTP/2,
    /// where the repeat may be on the same one, a second time is a failure like any other.
    Stale,
    Failure,
}

impl Cause {
    /// `reused`: the attempt was on a connection that had served before.
    pub fn of(failed: &Attempt, reused: bool, retry_state: &RetryState) -> Cause {
        if failed.fault == Fault::Goaway && retry_state.cut_off < CUT_OFF_REPEATS_MAX {
            return Cause::CutOff;
        }
        let is_known = retry_state.fresh && !retry_state.fresh_beside;
        // A status is an answer: the connection is well.
        let is_broken = failed.fault != Fault::RetriedStatus;
        let is_stale = is_broken && reused && failed.repeatable != Repeatable::No && !is_known;
        if is_stale { Cause::Stale } else { Cause::Failure }
    }

    /// As [`Cause::count`], of one of two attempts that are made beside each other: both connections are from before.
    pub fn count_beside(self, failed: &Attempt, at: (&Backend, usize), status: u16, retry_state: &mut RetryState) {
        let was_fresh = retry_state.fresh;
        self.count(failed, at, status, retry_state);
        retry_state.fresh_beside |= retry_state.fresh && !was_fresh;
    }

    /// Tells the balancer. A shortage on this machine is no fault of the server, nor is a faulty request.
    /// `status`: the response's, if it had any.
    pub fn tell(self, failed: &Attempt, status: u16, turn: &InFlight) {
        match self {
            Cause::CutOff | Cause::Stale => turn.stale(),
            Cause::Failure if is_servers(failed, status) => turn.failed(),
            Cause::Failure => {}
        }
    }

    /// Counts the attempt at this server, whose response had this status if it had any.
    pub fn count(
        self,
        failed: &Attempt,
        (backend, server): (&Backend, usize),
        status: u16,
        retry_state: &mut RetryState,
    ) {
        let (column, metrics) = (&backend.services.metrics, backend.metrics());
        column.increment(metrics.faults.of(failed.fault));
        if failed.fault == Fault::RetriedStatus {
            column.increment(metrics.responses.of(status));
        }
        match self {
            Cause::CutOff => retry_state.cut_off += 1,
            Cause::Stale => {
                column.increment(backend.server_metrics(server).stale);
                retry_state.fresh = true;
            }
            Cause::Failure => {
                retry_state.failed(server);
                let metrics = backend.server_metrics(server);
                if is_servers(failed, status) {
                    column.increment(metrics.failures);
                } else if failed.fault == Fault::RetriedStatus {
                    column.increment(metrics.successes);
                }
            }
        }
    }
}

/// Whether a failed attempt is the server's fault: a status that its route has asked for again is, from 500 on.
fn is_servers(failed: &Attempt, status: u16) -> bool {
    failed.fault.blame() == Blame::Server && (failed.fault != Fault::RetriedStatus || is_failure(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_below_500_that_is_asked_for_again_is_no_fault_of_its_server() {
        let asked_again = Attempt::new(Fault::RetriedStatus, Repeatable::Unanswered);
        assert!(is_servers(&asked_again, 503) && !is_servers(&asked_again, 429) && is_servers(&CLOSED, 0));
    }

    const CLOSED: Attempt = Attempt::new(Fault::ClosedBeforeResponse, Repeatable::Unanswered);

    #[test]
    fn an_idle_connection_that_breaks_blames_nobody_and_a_new_one_its_server() {
        let mut retry_state = RetryState::default();
        assert_eq!(Cause::of(&CLOSED, false, &retry_state), Cause::Failure);
        assert_eq!(Cause::of(&CLOSED, true, &retry_state), Cause::Stale);
        let begun = Attempt { repeatable: Repeatable::No, ..CLOSED };
        assert_eq!(Cause::of(&begun, true, &retry_state), Cause::Failure);
        retry_state.fresh = true;
        assert_eq!(Cause::of(&CLOSED, true, &retry_state), Cause::Failure);
        // An attempt beside it has learnt so, and not this one.
        retry_state.fresh_beside = true;
        assert_eq!(Cause::of(&CLOSED, true, &retry_state), Cause::Stale);
        assert_eq!(Cause::of(&CLOSED, false, &retry_state), Cause::Failure);
    }

    #[test]
    fn an_answer_that_is_asked_again_does_not_make_its_connection_a_stale_one() {
        let asked_again = Attempt::new(Fault::RetriedStatus, Repeatable::Unanswered);
        for (reused, fresh) in [(false, false), (true, false), (true, true)] {
            let retry_state = RetryState { fresh, ..RetryState::default() };
            assert_eq!(Cause::of(&asked_again, reused, &retry_state), Cause::Failure, "{reused} {fresh}");
        }
    }

    #[test]
    fn attempts_that_were_cut_off_count_as_failures_after_so_many() {
        let cut_off = Attempt::new(Fault::Goaway, Repeatable::Unanswered);
        let mut retry_state = RetryState::default();
        for _ in 0..CUT_OFF_REPEATS_MAX {
            assert_eq!(Cause::of(&cut_off, false, &retry_state), Cause::CutOff);
            retry_state.cut_off += 1;
        }
        assert_eq!(Cause::of(&cut_off, false, &retry_state), Cause::Failure);
    }
}
