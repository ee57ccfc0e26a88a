//! The record of attempts, so that a process that is started over and over does not order over and over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::{self, HOUR, RETRY_AFTER_MAX};

/// The record of one account. Written before an order is made and after it has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Times of the orders in the last hour, in seconds since 1970.
    orders: Vec<i64>,
    /// Failed attempts, by the certificate's file.
    attempts: BTreeMap<String, Attempts>,
}

/// Failures in a row for one certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attempts {
    pub failures: u32,
    /// Seconds since 1970.
    pub next: i64,
    pub problem: String,
}

/// The failure of an attempt. Times are seconds since 1970.
#[derive(Clone, Copy)]
pub(crate) struct FailedAttempt<'a> {
    pub why: &'a str,
    pub now: i64,
    /// Time before which the authority wants no other attempt.
    pub retry_after: Option<i64>,
}

impl Record {
    pub fn of(&self, file: &str) -> Option<&Attempts> {
        self.attempts.get(file)
    }

    /// The time at which this certificate may be tried for: a clock that was wrong binds nobody for longer than an
    /// authority could.
    pub fn may_try_at(&self, file: &str, per_hour: u32, now: i64) -> i64 {
        let latest = now + RETRY_AFTER_MAX.as_secs() as i64;
        let own = self.of(file).map_or(now, |attempts| attempts.next.min(latest));
        own.max(plan::allowed_at(&self.orders, per_hour, now))
    }

    /// An attempt begins: should nothing more be heard of it, it has failed.
    pub fn begin(&mut self, file: &str, retry: Duration, now: i64, chance: f64) {
        self.orders.retain(|at| (now - HOUR..=now).contains(at));
        self.orders.push(now);
        self.orders.sort_unstable();
        let attempts = self.attempts.entry(file.into()).or_default();
        attempts.failures = attempts.failures.saturating_add(1);
        attempts.next = plan::next_attempt(attempts.failures, retry, now, None, chance);
        attempts.problem = "the process ended before the order did".into();
    }

    /// Records that the attempt that has begun has failed.
    pub fn fail(&mut self, file: &str, failed: FailedAttempt<'_>, retry: Duration, chance: f64) {
        let FailedAttempt { why, now, retry_after } = failed;
        let attempts = self.attempts.entry(file.into()).or_default();
        attempts.next = plan::next_attempt(attempts.failures.max(1), retry, now, retry_after, chance);
        attempts.problem = why.into();
    }

    pub fn succeed(&mut self, file: &str) {
        self.attempts.remove(file);
    }

    /// Forgets the attempts for certificates that nobody wants any more.
    pub fn keep_only(&mut self, files: &BTreeSet<String>) {
        self.attempts.retain(|file, _| files.contains(file));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: Duration = Duration::from_secs(300);

    #[test]
    fn whoever_is_killed_in_every_order_orders_ever_less_often() {
        let mut record = Record::default();
        let (mut orders, mut now) = (0, 1_000_000);
        let end = now + HOUR;
        while now < end {
            if record.may_try_at("a", 20, now) <= now {
                record.begin("a", RETRY, now, 0.0);
                orders += 1;
                // Killed, and started a second later.
                record = serde_json::from_slice(&serde_json::to_vec(&record).unwrap()).unwrap();
            }
            now += 1;
        }
        assert_eq!(orders, 4);
    }

    #[test]
    fn one_certificate_that_fails_does_not_hold_up_another_and_success_forgets() {
        let mut record = Record::default();
        record.begin("a", RETRY, 100, 0.0);
        record.fail("a", FailedAttempt { why: "no", now: 110, retry_after: Some(50_000) }, RETRY, 0.0);
        assert_eq!(record.may_try_at("a", 20, 200), 50_000);
        assert_eq!(record.may_try_at("b", 20, 200), 200);
        assert_eq!(record.of("a").unwrap().problem, "no");
        record.succeed("a");
        assert_eq!((record.may_try_at("a", 20, 200), record.of("a")), (200, None));
        assert_eq!(record.may_try_at("a", 1, 200), 100 + HOUR + 1);
    }
}
