//! How long a slow peer is waited for: by what it has moved, not by its last byte.
//!
//! A timeout that starts anew with every byte lets a peer hold a connection for ever at one byte per timeout. MinRateTimeout
//! is a bucket of time instead: waiting empties it, bytes refill it at the least rate that is acceptable. Who is faster
//! than that never runs out; who is slower is cut after the grace, stretched by what it did move.

use std::time::Duration;

/// The time that a peer may still take.
///
/// The story of a driver: wait for the peer, at most [`MinRateTimeout::remaining`]; say how long it took with
/// [`MinRateTimeout::waited`]; give up if [`MinRateTimeout::expired`], else move the bytes and say how many with
/// [`MinRateTimeout::moved`]. Only time spent waiting for this peer counts: time in which the other side holds things up is
/// not to be told.
#[derive(Clone, Copy, Debug)]
pub struct MinRateTimeout {
    grace: Duration,
    /// Bytes per second.
    rate_min: u32,
    credit: Duration,
}

impl MinRateTimeout {
    /// `grace` is the wait allowed at the start and the most there can be. With a `rate_min` of 0 bytes per second any
    /// progress restores all of it: a plain idle timeout.
    pub fn new(grace: Duration, rate_min: u32) -> Self {
        Self { grace, rate_min, credit: grace }
    }

    /// How long the next wait may be.
    pub fn remaining(&self) -> Duration {
        self.credit
    }

    pub fn expired(&self) -> bool {
        self.credit.is_zero()
    }

    pub fn waited(&mut self, elapsed: Duration) {
        self.credit = self.credit.saturating_sub(elapsed);
    }

    pub fn moved(&mut self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.credit = match self.rate_min {
            0 => self.grace,
            rate => {
                let nanoseconds = (bytes as u64).saturating_mul(1_000_000_000) / u64::from(rate);
                self.credit.saturating_add(Duration::from_nanos(nanoseconds)).min(self.grace)
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(30);

    /// When a peer that moves `bytes` every `pause` is cut, if within a day.
    fn cut_at(mut timeout: MinRateTimeout, bytes: usize, pause: Duration) -> Option<Duration> {
        let mut clock = Duration::ZERO;
        while clock < Duration::from_secs(86_400) {
            let wait = pause.min(timeout.remaining());
            clock += wait;
            timeout.waited(wait);
            if timeout.expired() {
                return Some(clock);
            }
            timeout.moved(bytes);
        }
        None
    }

    #[test]
    fn a_peer_at_one_byte_per_second_is_cut_after_the_grace() {
        let cut = cut_at(MinRateTimeout::new(GRACE, 240), 1, Duration::from_secs(1)).unwrap();
        assert!(cut >= GRACE && cut < GRACE + Duration::from_millis(200), "{cut:?}");
    }

    #[test]
    fn a_peer_at_half_the_rate_gets_twice_the_grace() {
        let cut = cut_at(MinRateTimeout::new(GRACE, 240), 120, Duration::from_secs(1)).unwrap();
        assert!((58.0..=60.0).contains(&cut.as_secs_f64()), "{cut:?}");
    }

    #[test]
    fn a_peer_at_the_rate_or_above_is_never_cut() {
        assert_eq!(cut_at(MinRateTimeout::new(GRACE, 240), 240, Duration::from_secs(1)), None);
        assert_eq!(cut_at(MinRateTimeout::new(GRACE, 240), 10_000, Duration::from_secs(1)), None);
    }

    #[test]
    fn credit_cannot_be_saved_up() {
        let mut timeout = MinRateTimeout::new(GRACE, 240);
        timeout.moved(usize::MAX);
        assert_eq!(timeout.remaining(), GRACE);
        assert_eq!(cut_at(timeout, 0, Duration::from_secs(1)), Some(GRACE));
    }

    #[test]
    fn without_a_rate_any_byte_restores_the_grace() {
        assert_eq!(cut_at(MinRateTimeout::new(GRACE, 0), 1, Duration::from_secs(29)), None);
        assert_eq!(cut_at(MinRateTimeout::new(GRACE, 0), 1, Duration::from_secs(31)), Some(GRACE));
        assert_eq!(cut_at(MinRateTimeout::new(GRACE, 0), 0, Duration::from_secs(1)), Some(GRACE));
    }

    #[test]
    fn time_that_is_not_told_does_not_count() {
        let mut timeout = MinRateTimeout::new(GRACE, 240);
        timeout.waited(Duration::from_secs(29));
        assert!(!timeout.expired());
        assert_eq!(timeout.remaining(), Duration::from_secs(1));
        timeout.waited(Duration::from_secs(2));
        assert!(timeout.expired());
    }
}
