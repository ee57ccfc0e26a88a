//! Which of etcd's members is asked next: the one that works for as long as it does, then the others in turn.
//!
//! A member that failed is left alone for a pause that doubles with each failure in a row, up to a limit. Clock and
//! chance are arguments.

use std::time::{Duration, Instant};

/// Pause after the first failure of an endpoint.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause. An endpoint that is back is asked after this time at the latest, if it is needed.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Doublings until the pause is longest.
const DOUBLINGS_MAX: u32 = 5;

/// Choice among a fixed number of endpoints, which are told by their position.
#[derive(Debug)]
pub(super) struct Endpoints {
    current: usize,
    each: Vec<Standing>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    failures: u32,
    not_before: Option<Instant>,
}

impl Endpoints {
    /// `count` is at least 1. Engines that start at different endpoints spread over etcd's members.
    pub fn new(count: usize, chance: f64) -> Endpoints {
        let start = (chance * count as f64) as usize;
        Endpoints { current: start.min(count - 1), each: vec![Standing::default(); count] }
    }

    /// The endpoints to try, in their order: the current one and those behind it, but those in a pause last, and the
    /// ones whose pause ends first before others.
    pub fn order(&self, now: Instant) -> Vec<usize> {
        let count = self.each.len();
        let mut order: Vec<usize> = (0..count).map(|step| (self.current + step) % count).collect();
        order.sort_by_key(|&index| self.pause_of(index, now));
        order
    }

    /// How long nothing can be tried, because every endpoint is in its pause.
    pub fn pause(&self, now: Instant) -> Duration {
        (0..self.each.len()).map(|index| self.pause_of(index, now)).min().unwrap_or_default()
    }

    pub fn worked(&mut self, index: usize) {
        self.current = index;
        self.each[index] = Standing::default();
    }

    /// An endpoint that works for a watch; requests stay at the current one.
    pub fn is_alive(&mut self, index: usize) {
        self.each[index] = Standing::default();
    }

    /// `chance` is from 0 up to 1.
    pub fn failed(&mut self, index: usize, now: Instant, chance: f64) {
        let standing = &mut self.each[index];
        let pause = (PAUSE_MIN * 2_u32.pow(standing.failures.min(DOUBLINGS_MAX))).min(PAUSE_MAX);
        standing.failures = standing.failures.saturating_add(1);
        // Engines that lost the same member do not all come back in the same moment.
        standing.not_before = Some(now + pause.mul_f64(0.5 + chance / 2.0));
        if self.current == index {
            self.current = (index + 1) % self.each.len();
        }
    }

    fn pause_of(&self, index: usize, now: Instant) -> Duration {
        self.each[index].not_before.map_or(Duration::ZERO, |then| then.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_that_works_is_kept_and_the_others_follow_in_turn() {
        let now = Instant::now();
        let mut endpoints = Endpoints::new(3, 0.0);
        assert_eq!(endpoints.order(now), [0, 1, 2]);
        endpoints.failed(0, now, 0.0);
        assert_eq!(endpoints.order(now), [1, 2, 0]);
        endpoints.worked(1);
        let later = now + PAUSE_MAX;
        assert_eq!(endpoints.order(later), [1, 2, 0], "it is not left again for the first one");
        assert_eq!(Endpoints::new(3, 0.99).order(now), [2, 0, 1]);
    }

    #[test]
    fn pauses_grow_to_a_limit_and_end_with_success() {
        let now = Instant::now();
        let mut endpoints = Endpoints::new(1, 0.0);
        assert_eq!(endpoints.pause(now), Duration::ZERO);
        let mut pauses = Vec::new();
        for _ in 0..100 {
            endpoints.failed(0, now, 1.0);
            pauses.push(endpoints.pause(now));
        }
        assert!(pauses.is_sorted() && pauses[0] == PAUSE_MIN && pauses[99] == PAUSE_MAX, "{pauses:?}");
        endpoints.worked(0);
        assert_eq!(endpoints.pause(now), Duration::ZERO);
    }

    #[test]
    fn nothing_waits_while_one_endpoint_is_not_in_its_pause() {
        let now = Instant::now();
        let mut endpoints = Endpoints::new(2, 0.0);
        endpoints.failed(0, now, 0.0);
        assert_eq!(endpoints.pause(now), Duration::ZERO);
        endpoints.failed(1, now, 0.0);
        endpoints.failed(1, now, 0.0);
        assert_eq!(endpoints.pause(now), PAUSE_MIN / 2);
        assert_eq!(endpoints.order(now), [0, 1]);
    }
}
