//! Lines of the log that strangers can cause, held to so many a second.

/// Counts in seconds of the caller's clock.
#[derive(Debug, Default)]
pub struct Throttle {
    second: u64,
    count: u32,
    withheld: u64,
}

/// Lines a second that each core may write.
const LINES_PER_SECOND_MAX: u32 = 5;

impl Throttle {
    /// Whether a line may be written now, and how many were not since the last one that was.
    pub fn admit(&mut self, millis: u64) -> Option<u64> {
        let second = millis / 1000;
        if second != self.second {
            (self.second, self.count) = (second, 0);
        }
        if self.count == LINES_PER_SECOND_MAX {
            self.withheld += 1;
            return None;
        }
        self.count += 1;
        Some(std::mem::take(&mut self.withheld))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_the_limit_is_counted_and_told_with_the_next_line() {
        let mut throttle = Throttle::default();
        let admitted = (0..100).filter_map(|_| throttle.admit(7_999)).count();
        assert_eq!(admitted, LINES_PER_SECOND_MAX as usize);
        assert_eq!(throttle.admit(8_000), Some(100 - u64::from(LINES_PER_SECOND_MAX)));
        assert_eq!(throttle.admit(8_001), Some(0));
    }
}
