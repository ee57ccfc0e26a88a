//! Times at which certificates are ordered: pure decisions. Times are seconds since 1970; `chance` is from 0 up to 1.

use std::time::Duration;

/// A certificate's, by its own word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lifetime {
    pub not_before: i64,
    pub not_after: i64,
}

/// The wait between two attempts for one certificate does not grow further.
pub(crate) const BACKOFF_MAX: Duration = Duration::from_secs(6 * 3600);
/// Longest wait that an authority may ask for: its limits are of weeks at most.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// Age below which a certificate is not replaced, whatever is configured or suggested: a mistake on either side
/// would else order without end. For short lives it is a sixth of the life.
const YOUNG: Duration = Duration::from_secs(24 * 3600);

impl Lifetime {
    pub fn is_over(self, now: i64) -> bool {
        now >= self.not_after
    }

    fn seconds(self) -> i64 {
        self.not_after.saturating_sub(self.not_before).max(0)
    }
}

/// The time to replace a certificate: some moment of the window that the authority suggests (RFC 9773 §4.2); or so
/// long before its end; or with a third of its time left. All holders of certificates of one moment would come at
/// one moment: so the last two are spread over a twentieth of the certificate's time, towards its beginning.
pub(crate) fn renew_at(
    lifetime: Lifetime,
    before: Option<Duration>,
    suggested: Option<(i64, i64)>,
    chance: f64,
) -> i64 {
    let whole = lifetime.seconds();
    let spread = (whole as f64 / 20.0 * chance) as i64;
    let wanted = match (suggested, before) {
        (Some((start, end)), _) => start.saturating_add((end.saturating_sub(start).max(0) as f64 * chance) as i64),
        (None, Some(before)) => lifetime.not_after.saturating_sub(seconds(before)).saturating_sub(spread),
        (None, None) => lifetime.not_after - whole / 3 - spread,
    };
    let grown = lifetime.not_before.saturating_add((whole / 6).min(seconds(YOUNG)));
    // A suggestion beyond the end would leave a name without a certificate.
    wanted.clamp(grown, grown.max(lifetime.not_after - whole / 20))
}

/// The time to try again after so many failures in a row, the last of them now. Never before the authority says.
pub(crate) fn next_attempt(failures: u32, first: Duration, now: i64, retry_after: Option<i64>, chance: f64) -> i64 {
    let doubled = seconds(first).saturating_mul(1 << failures.saturating_sub(1).min(20));
    let wait = doubled.min(seconds(BACKOFF_MAX).max(seconds(first)));
    let spread = (wait as f64 / 4.0 * chance) as i64;
    let own = now.saturating_add(wait).saturating_add(spread);
    let asked = retry_after.map_or(own, |at| at.min(now.saturating_add(seconds(RETRY_AFTER_MAX))));
    own.max(asked)
}

/// The time at which the next order may be made, given the orders so far: no more than so many in any hour.
pub(crate) fn allowed_at(orders: &[i64], per_hour: u32, now: i64) -> i64 {
    let recent: Vec<i64> = orders.iter().copied().filter(|at| (now - HOUR..=now).contains(at)).collect();
    match recent.len().checked_sub(per_hour as usize) {
        None => now,
        Some(over) => recent[over] + HOUR + 1,
    }
}

pub(crate) const HOUR: i64 = 3600;

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * HOUR;
    const QUARTER: Lifetime = Lifetime { not_before: 0, not_after: 90 * DAY };

    #[test]
    fn a_certificate_is_replaced_with_a_third_of_its_time_left_and_not_all_at_once() {
        assert_eq!(renew_at(QUARTER, None, None, 0.0), 60 * DAY);
        let moments: Vec<i64> = (0..10).map(|tenth| renew_at(QUARTER, None, None, f64::from(tenth) / 10.0)).collect();
        assert!(moments.is_sorted_by(|one, other| one > other));
        assert!(moments.iter().all(|moment| (55 * DAY..=60 * DAY).contains(moment)), "{moments:?}");
        let week = Lifetime { not_before: 0, not_after: 6 * DAY };
        assert_eq!(renew_at(week, None, None, 0.0), 4 * DAY);
    }

    #[test]
    fn the_authority_s_window_goes_before_what_is_configured() {
        let before = Some(Duration::from_secs(7 * 24 * 3600));
        assert_eq!(renew_at(QUARTER, before, None, 0.0), 83 * DAY);
        assert_eq!(renew_at(QUARTER, before, Some((40 * DAY, 42 * DAY)), 0.5), 41 * DAY);
    }

    #[test]
    fn whatever_is_configured_or_suggested_a_certificate_lives_for_a_while_and_is_replaced_before_its_end() {
        let ever = Some(Duration::from_secs(365 * 24 * 3600));
        assert_eq!(renew_at(QUARTER, ever, None, 0.9), DAY);
        assert_eq!(renew_at(QUARTER, None, Some((-5 * DAY, -4 * DAY)), 0.9), DAY);
        assert_eq!(renew_at(Lifetime { not_before: 100, not_after: 160 }, ever, None, 0.0), 110);
        assert_eq!(renew_at(QUARTER, None, Some((200 * DAY, 300 * DAY)), 0.5), 90 * DAY - 90 * DAY / 20);
        let absurd = renew_at(QUARTER, None, Some((i64::MIN, i64::MAX)), 0.5);
        assert!((DAY..90 * DAY).contains(&absurd));
        let backwards = Lifetime { not_before: 50, not_after: 10 };
        assert_eq!(renew_at(backwards, None, None, 0.5), 50);
    }

    #[test]
    fn waits_double_up_to_a_bound_and_the_authority_s_word_is_kept() {
        let first = Duration::from_secs(300);
        let waits: Vec<i64> = (1..10).map(|failures| next_attempt(failures, first, 0, None, 0.0)).collect();
        assert_eq!(waits, [300, 600, 1200, 2400, 4800, 9600, 19200, 21600, 21600]);
        assert_eq!(next_attempt(1, first, 0, None, 1.0), 375);
        assert_eq!(next_attempt(1, first, 0, Some(5000), 0.0), 5000);
        assert_eq!(next_attempt(1, first, 0, Some(10), 0.0), 300);
        assert_eq!(next_attempt(1, first, 0, Some(i64::MAX), 0.0), 7 * DAY);
        assert_eq!(next_attempt(u32::MAX, first, i64::MAX, None, 1.0), i64::MAX);
    }

    /// Five failed validations of a name in an hour, and Let's Encrypt hears no more of it.
    #[test]
    fn a_name_that_fails_is_tried_less_than_five_times_in_its_first_hour() {
        let (mut now, mut attempts) = (0, 0);
        while now < HOUR {
            attempts += 1;
            now = next_attempt(attempts, Duration::from_secs(300), now, None, 0.0);
        }
        assert_eq!(attempts, 4);
    }

    #[test]
    fn no_hour_has_more_orders_than_it_may() {
        let mut orders: Vec<i64> = Vec::new();
        for now in 0..3 * HOUR {
            if allowed_at(&orders, 3, now) <= now {
                orders.push(now);
            }
        }
        assert!(orders.windows(4).all(|four| four[3] - four[0] > HOUR), "{orders:?}");
        assert_eq!(orders.len(), 9);
        assert_eq!(allowed_at(&[10_000], 1, 100), 100, "what a wrong clock has noted binds nobody");
    }
}
