//! How many repeats a backend's requests may cause: a share of the requests, so that trouble is not multiplied.

/// Repeats earned by one request, in hundredths: 20 %.
const EARNED_HUNDREDTHS: u32 = 20;
/// Repeats that can be saved up, in hundredths: a burst of 256, as when a server with that many requests dies.
const SAVED_HUNDREDTHS_MAX: u32 = 25_600;

/// A token bucket of retries. It starts full.
#[derive(Clone, Debug)]
pub struct Budget {
    saved: u32,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget::new()
    }
}

impl Budget {
    pub fn new() -> Budget {
        Budget { saved: SAVED_HUNDREDTHS_MAX }
    }

    /// A request arrived and earns its share.
    pub fn earn(&mut self) {
        self.saved = (self.saved + EARNED_HUNDREDTHS).min(SAVED_HUNDREDTHS_MAX);
    }

    /// Takes one retry if there is one.
    pub fn spend(&mut self) -> bool {
        match self.saved.checked_sub(100) {
            Some(rest) => {
                self.saved = rest;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_after_it_one_retry_in_five_requests() {
        let mut budget = Budget::new();
        let burst = (0..1_000).filter(|_| budget.spend()).count();
        assert_eq!(burst, 256);
        let later = (0..1_000)
            .filter(|_| {
                budget.earn();
                budget.spend()
            })
            .count();
        assert_eq!(later, 200);
    }

    #[test]
    fn hours_without_a_failure_save_up_no_more_than_a_burst() {
        let mut budget = Budget::new();
        (0..100_000).for_each(|_| budget.earn());
        assert_eq!((0..1_000).filter(|_| budget.spend()).count(), 256);
    }
}
