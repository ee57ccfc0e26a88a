//! How fast a body goes: a bucket of bytes that fills with time, and may be overdrawn by the last piece taken.

/// Milliseconds whose bytes a body may have at once after it has stood still.
const BURST_MS: u64 = 200;
/// Milliseconds whose bytes are waited for: less would be pieces that cost more than they bring.
const PIECE_MS: u64 = 100;

/// Bytes of one body that may go, and when.
#[derive(Clone, Copy, Debug)]
pub struct Throttle {
    /// Bytes in a second, at least 1.
    per_second: u64,
    /// Bytes that go as fast as they can, before others are counted.
    free: u64,
    /// Bytes that may go now; below nothing what was taken too much.
    credit: i128,
    /// Thousandths of a byte beyond the credit.
    rest: u128,
    /// Milliseconds of the clock up to which credit was given.
    since: u64,
}

impl Throttle {
    /// Begins at `now`, in milliseconds of a clock that does not go backwards, with as much as a burst.
    #[must_use]
    pub fn new(per_second: u64, free: u64, now: u64) -> Throttle {
        let mut throttle = Throttle { per_second: per_second.max(1), free, credit: 0, rest: 0, since: now };
        throttle.credit = throttle.of(BURST_MS);
        throttle
    }

    /// Bytes that may go at `now`, at least one.
    ///
    /// # Errors
    /// The moment from which on some may.
    pub fn allowed(&mut self, now: u64) -> Result<u64, u64> {
        if self.free > 0 {
            return Ok(self.free);
        }
        let earned = u128::from(self.per_second) * u128::from(now.saturating_sub(self.since)) + self.rest;
        (self.since, self.rest) = (self.since.max(now), earned % 1_000);
        self.credit = (self.credit + (earned / 1_000) as i128).min(self.of(BURST_MS));
        if self.credit > 0 {
            return Ok(self.credit as u64);
        }
        let missing = (self.of(PIECE_MS) - self.credit) as u128 * 1_000;
        Err(now.saturating_add((missing.div_ceil(u128::from(self.per_second))) as u64))
    }

    /// Takes note of bytes that have gone, also of more than were allowed.
    pub fn took(&mut self, bytes: u64, now: u64) {
        let free = self.free.min(bytes);
        self.free -= free;
        self.credit -= i128::from(bytes - free);
        if free > 0 {
            // Time begins where bytes are counted.
            self.since = now;
        }
    }

    fn of(&self, millis: u64) -> i128 {
        (i128::from(self.per_second) * i128::from(millis) / 1_000).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds that it takes to pass so many bytes, in pieces of up to so many.
    fn millis(mut throttle: Throttle, mut bytes: u64, piece: u64) -> u64 {
        let mut now = 0;
        while bytes > 0 {
            match throttle.allowed(now) {
                Ok(allowed) => {
                    let took = allowed.max(1).min(piece).min(bytes);
                    bytes -= took;
                    throttle.took(took, now);
                }
                Err(due) => {
                    assert!(due > now, "{due} at {now}");
                    now = due;
                }
            }
        }
        now
    }

    #[test]
    fn a_body_takes_the_time_that_its_rate_wants() {
        for (rate, bytes) in [(1_000, 10_000), (1, 20), (333, 7_777), (1_000_000, 5_000_000), (1 << 40, 1 << 43)] {
            let taken = millis(Throttle::new(rate, 0, 0), bytes, u64::MAX) as f64;
            let wanted = bytes as f64 * 1_000.0 / rate as f64;
            assert!(taken <= wanted && taken >= wanted - 300.0 - 1_000.0 / rate as f64, "{rate}: {taken} of {wanted}");
        }
    }

    #[test]
    fn a_piece_that_was_too_large_is_paid_for() {
        let mut throttle = Throttle::new(1_000, 0, 0);
        assert_eq!(throttle.allowed(0), Ok(200));
        throttle.took(5_200, 0);
        assert_eq!(throttle.allowed(0), Err(5_100));
        assert_eq!(throttle.allowed(5_000), Err(5_100));
        assert_eq!(throttle.allowed(5_100), Ok(100));
        assert_eq!(throttle.allowed(4_000), Ok(100), "a clock that goes backwards gives nothing and takes nothing");
    }

    #[test]
    fn what_was_not_used_is_kept_for_a_burst_and_no_longer() {
        let mut throttle = Throttle::new(1_000, 0, 0);
        assert_eq!(throttle.allowed(1_000_000_000), Ok(200));
        throttle.took(200, 1_000_000_000);
        assert_eq!(throttle.allowed(1_000_000_001), Ok(1));
    }

    #[test]
    fn bytes_that_are_free_go_at_once_and_give_no_credit() {
        let mut throttle = Throttle::new(1_000, 10_000, 0);
        assert_eq!(throttle.allowed(0), Ok(10_000));
        throttle.took(9_000, 60_000);
        assert_eq!(throttle.allowed(60_000), Ok(1_000));
        throttle.took(1_300, 60_000);
        assert_eq!(throttle.allowed(60_000), Err(60_200));
        assert_eq!(millis(Throttle::new(1_000, 10_000, 0), 12_000, 16_384), 1_800);
    }
}
