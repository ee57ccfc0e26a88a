//! Repeats of a route's requests: which faults and statuses are met with another attempt, and after what pause.

use std::time::Duration;

use propylon_config::{self as config, RetryOn};
use propylon_http::fault::Fault;

/// Pauses grow by doubling, up to so many times the first.
const BACKOFF_FACTOR_MAX: u32 = 32;

/// Rules of one route.
#[derive(Clone, Debug)]
pub struct Retries {
    on: RetryOn,
    backoff: Option<Duration>,
}

impl Retries {
    pub fn of(retries: &config::Retries) -> Retries {
        Retries { on: retries.on.clone(), backoff: retries.backoff }
    }

    /// Whether a fault of an attempt is met with another, if it may be. `is_unsent`: nothing of the request was sent.
    pub fn takes_fault(&self, fault: Fault, is_unsent: bool) -> bool {
        match fault {
            Fault::FirstByteTimeout => self.on.timeout,
            Fault::RetriedStatus => true,
            _ if is_unsent => self.on.connect,
            _ => self.on.reset,
        }
    }

    /// Whether a response with this status is met with another attempt, if there may be one.
    pub fn takes_status(&self, status: u16) -> bool {
        self.on.statuses.binary_search(&status).is_ok()
    }

    /// Whether an attempt whose response did not begin in time is met with another, if there may be one.
    pub fn takes_timeout(&self) -> bool {
        self.on.timeout
    }

    /// Pause before a repeat, in milliseconds: after so many attempts, of which at least one, doubled with each, half
    /// of it by chance, so that those who failed together do not come back together.
    pub fn pause(&self, attempts: u32, random: u64) -> u64 {
        let Some(first) = self.backoff else { return 0 };
        let factor = 1u32.checked_shl(attempts.saturating_sub(1)).unwrap_or(BACKOFF_FACTOR_MAX).min(BACKOFF_FACTOR_MAX);
        let whole = first.as_millis() as u64 * u64::from(factor);
        whole - random % (whole / 2 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retries(on: RetryOn) -> Retries {
        Retries { on, backoff: Some(Duration::from_millis(100)) }
    }

    #[test]
    fn faults_and_statuses_are_taken_as_they_were_named() {
        let plain = retries(RetryOn::default());
        assert!(
            plain.takes_fault(Fault::ConnectRefused, true) && plain.takes_fault(Fault::ClosedBeforeResponse, false)
        );
        assert!(!plain.takes_timeout() && !plain.takes_fault(Fault::FirstByteTimeout, false));
        assert!(!plain.takes_status(503));
        let some = retries(RetryOn { connect: false, reset: false, timeout: true, statuses: vec![500, 503] });
        assert!(!some.takes_fault(Fault::ConnectRefused, true) && !some.takes_fault(Fault::StreamReset, false));
        assert!(some.takes_fault(Fault::FirstByteTimeout, false) && some.takes_timeout());
        assert!(some.takes_fault(Fault::RetriedStatus, false));
        let unsent = retries(RetryOn { connect: true, reset: false, timeout: false, statuses: Vec::new() });
        assert!(unsent.takes_fault(Fault::StreamReset, true) && !unsent.takes_fault(Fault::StreamReset, false));
        assert!(some.takes_status(500) && !some.takes_status(502) && some.takes_status(503));
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_chance_takes_half_at_most() {
        let retries = retries(RetryOn::default());
        for (attempts, whole) in [(1, 100), (2, 200), (3, 400), (6, 3_200), (7, 3_200), (40, 3_200)] {
            let pauses: Vec<u64> = (0..10_000).map(|random| retries.pause(attempts, random)).collect();
            assert_eq!((pauses.iter().min(), pauses.iter().max()), (Some(&(whole / 2)), Some(&whole)), "{attempts}");
        }
        let without = Retries { on: RetryOn::default(), backoff: None };
        assert_eq!(without.pause(1, 77), 0);
    }
}
