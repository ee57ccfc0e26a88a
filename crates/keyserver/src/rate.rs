//! The rate limit of a client: operations per second, over all its links and all cores.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use crate::access::ClientId;

/// A client may save up as much as a second's operations.
const BURST_NANOS: u64 = NANOS;
const NANOS: u64 = 1_000_000_000;

/// One client's allowance. Clones and links of the client share it.
#[derive(Debug)]
pub struct Rate {
    began: Instant,
    /// Nanoseconds of allowance that one operation uses up.
    nanos_each: u64,
    /// Time at which all that was allowed will have been paid for, in nanoseconds since `began`.
    paid_at: AtomicU64,
}

/// The allowances of the clients that are connected.
#[derive(Default)]
pub struct Rates(Mutex<HashMap<ClientId, Weak<Rate>>>);

impl Rate {
    fn new(a_second: NonZeroU32, now: Instant) -> Rate {
        Rate { began: now, nanos_each: NANOS / u64::from(a_second.get()), paid_at: AtomicU64::new(0) }
    }

    /// Whether another operation may be done now; if so, it is counted.
    pub fn allows(&self, now: Instant) -> bool {
        let now = now.saturating_duration_since(self.began).as_nanos() as u64;
        let next = |paid_at: u64| {
            let paid_at = paid_at.max(now) + self.nanos_each;
            (paid_at <= now + BURST_NANOS).then_some(paid_at)
        };
        self.paid_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

impl Rates {
    /// The allowance of a client, which begins with its first link and is forgotten with its last.
    pub fn of(&self, client: ClientId, a_second: NonZeroU32, now: Instant) -> Arc<Rate> {
        let mut rates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rate) = rates.get(&client).and_then(Weak::upgrade) {
            return rate;
        }
        rates.retain(|_, rate| rate.strong_count() > 0);
        let rate = Arc::new(Rate::new(a_second, now));
        rates.insert(client, Arc::downgrade(&rate));
        rate
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_client_has_a_second_of_its_rate_at_once_and_then_its_rate_over_all_its_links() {
        let (start, rates) = (Instant::now(), Rates::default());
        let a_second = NonZeroU32::new(100).expect("a number");
        let links = [0, 1].map(|_| rates.of(ClientId(7), a_second, start));
        let allowed =
            |from: Duration, times: usize| (0..times).filter(|time| links[time % 2].allows(start + from)).count();
        assert_eq!(allowed(Duration::ZERO, 300), 100);
        assert_eq!(allowed(Duration::from_millis(500), 300), 50);
        assert_eq!(allowed(Duration::from_secs(3600), 300), 100, "more is not saved up");
        assert!(rates.of(ClientId(8), a_second, start).allows(start), "another client has its own");
    }

    #[test]
    fn who_has_no_link_is_forgotten() {
        let (now, rates) = (Instant::now(), Rates::default());
        for client in 0..100 {
            drop(rates.of(ClientId(client), NonZeroU32::MIN, now));
        }
        assert_eq!(rates.0.lock().expect("nobody panics with it").len(), 1);
    }
}
