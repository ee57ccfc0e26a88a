//! Expiry of certificates, revocation lists and OCSP responses, and the steps before it at which users are warned.

use std::fmt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use propylon_config::At;

/// An object from a file that has an end of its validity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dated {
    pub kind: DatedKind,
    /// Name of the certificate, where it has one.
    pub name: String,
    /// Path of the file.
    pub path: PathBuf,
    /// Start of validity in seconds since 1970, where it is known.
    pub from: Option<i64>,
    /// End of validity in seconds since 1970.
    pub until: i64,
    /// Position in the configuration.
    pub at: At,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DatedKind {
    /// Certificate served to clients.
    ServerCertificate,
    /// Client certificate for servers.
    ClientCertificate,
    /// Client certificate for key servers.
    SignerIdentity,
    RevocationList,
    OcspResponse,
}

impl DatedKind {
    /// Name as in metrics.
    pub fn name(self) -> &'static str {
        match self {
            DatedKind::ServerCertificate => "server-certificate",
            DatedKind::ClientCertificate => "client-certificate",
            DatedKind::SignerIdentity => "signer-identity",
            DatedKind::RevocationList => "revocation-list",
            DatedKind::OcspResponse => "ocsp-response",
        }
    }
}

impl fmt::Display for DatedKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DatedKind::ServerCertificate => "the certificate",
            DatedKind::ClientCertificate => "the certificate that servers are shown",
            DatedKind::SignerIdentity => "the certificate that key servers are shown",
            DatedKind::RevocationList => "the revocation list",
            DatedKind::OcspResponse => "the OCSP response",
        })
    }
}

/// Urgency of an expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExpiryStep {
    /// 30 days or less are left: time to plan the renewal.
    Known,
    /// 14 days or less, or the last third of a short life: renewal is due.
    Soon,
    /// A day or less, or the last ninth of a short life.
    Now,
    Over,
}

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
/// Seconds before the end at which users are warned.
const STEPS: [(i64, ExpiryStep); 6] = [
    (30 * DAY, ExpiryStep::Known),
    (14 * DAY, ExpiryStep::Soon),
    (7 * DAY, ExpiryStep::Soon),
    (3 * DAY, ExpiryStep::Soon),
    (DAY, ExpiryStep::Now),
    (HOUR, ExpiryStep::Now),
];

/// The last step towards its end that an object which is valid from `from` to `until` has reached between `last` and
/// `now`, if any. All times are in seconds since 1970.
///
/// Short-lived objects are renewed late by design: for them steps count only in the last third of their life.
pub fn step_between(from: Option<i64>, until: i64, last: i64, now: i64) -> Option<ExpiryStep> {
    // `until` is the last second of validity.
    if last <= until && until < now {
        return Some(ExpiryStep::Over);
    }
    // Objects without a known start (OCSP responses) are replaced just in time.
    let third = until.saturating_sub(from?) / 3;
    let passed = |left: i64| last < until.saturating_sub(left) && until.saturating_sub(left) <= now;
    let by_days = STEPS.iter().filter(|(left, _)| *left < third && passed(*left)).map(|(_, step)| *step);
    let by_life = [(third, ExpiryStep::Soon), (third / 3, ExpiryStep::Now)];
    let by_life = by_life.into_iter().filter(|(left, _)| third <= 14 * DAY && passed(*left)).map(|(_, step)| step);
    by_days.chain(by_life).max()
}

/// Converts to seconds since 1970.
pub(crate) fn seconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_secs() as i64,
        Err(before) => -(before.duration().as_secs() as i64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BORN: i64 = 1_700_000_000;

    /// Every step of a life, looked at every so many seconds from its beginning to a day after its end.
    fn life(length: i64, interval: i64) -> Vec<(i64, ExpiryStep)> {
        let until = BORN + length;
        let looks = (0..).map(|file_stamp| BORN + file_stamp * interval).take_while(|now| *now <= until + DAY);
        let step = |now: i64| Some((until - now, step_between(Some(BORN), until, now - interval, now)?));
        looks.filter_map(step).collect()
    }

    #[test]
    fn a_year_ends_in_seven_steps_and_each_is_told_once() {
        use ExpiryStep::*;
        let expected = [
            (30 * DAY, Known),
            (14 * DAY, Soon),
            (7 * DAY, Soon),
            (3 * DAY, Soon),
            (DAY, Now),
            (HOUR, Now),
            (-60, Over),
        ];
        assert_eq!(life(360 * DAY, 60), expected);
    }

    #[test]
    fn what_lives_for_days_or_seconds_is_told_of_in_its_last_third() {
        use ExpiryStep::*;
        assert_eq!(life(6 * DAY, 60), [(2 * DAY, Soon), (DAY, Now), (16 * HOUR, Now), (HOUR, Now), (-60, Over)]);
        assert_eq!(life(9, 1), [(3, Soon), (1, Now), (-1, Over)]);
    }

    #[test]
    fn looks_that_are_far_apart_tell_the_last_step_alone() {
        assert_eq!(step_between(Some(BORN), BORN + 90 * DAY, BORN, BORN + 89 * DAY), Some(ExpiryStep::Now));
        assert_eq!(step_between(Some(BORN), BORN + 90 * DAY, BORN, BORN + 91 * DAY), Some(ExpiryStep::Over));
        assert_eq!(step_between(Some(BORN), BORN + 90 * DAY, BORN + 91 * DAY, BORN + 92 * DAY), None);
    }

    #[test]
    fn without_a_beginning_only_the_end_is_told() {
        let steps: Vec<_> = (0..60)
            .filter_map(|day| step_between(None, BORN + 40 * DAY, BORN + day * DAY, BORN + (day + 1) * DAY))
            .collect();
        assert_eq!(steps, [ExpiryStep::Over]);
    }

    #[test]
    fn dates_out_of_reach_are_no_problem() {
        assert_eq!(step_between(Some(i64::MIN), i64::MAX, 0, 1), None);
        assert_eq!(step_between(Some(i64::MAX), i64::MIN, 0, 1), None);
    }
}
