//! Accounts of requests: what is counted of each lies on two pairs of cache lines, found with one look each.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::registry::{Counter, Histogram, Registry};
use crate::store::{Column, SLOTS_PER_LINE};

/// Bounds of an account's durations, in number.
pub const ACCOUNT_BOUNDS: usize = 18;
/// Classes of requests in an account, in number.
pub const ACCOUNT_CLASSES: usize = 6;

const RECEIVED: usize = ACCOUNT_CLASSES;
const SENT: usize = RECEIVED + 1;
const BUCKETS: usize = SENT + 1;
const SUM: usize = BUCKETS + ACCOUNT_BOUNDS + 1;

/// Requests that are counted together: of a listener, of a route. Booking one costs an addition for each of its five
/// figures and nothing to find their places, which lie where the account says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Counts by class, as far as these have a label.
    pub classes: [Counter; ACCOUNT_CLASSES],
    pub received: Counter,
    pub sent: Counter,
    pub duration: Histogram,
    /// The first of the account's lines in each column.
    line: u32,
}

/// Name and help of each of an account's families.
#[derive(Clone, Copy, Debug)]
pub struct AccountFamilies<'a> {
    pub classes: (&'a str, &'a str),
    pub received: (&'a str, &'a str),
    pub sent: (&'a str, &'a str),
    pub duration: (&'a str, &'a str),
}

/// A request as it is booked.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Place of its class; what is beyond the last counts as the last.
    pub class: usize,
    /// Number of the bounds that lie below its duration: see [`bucket`].
    pub bucket: usize,
    /// Duration in the unit of the bounds.
    pub duration: u64,
    /// Bytes.
    pub received: u64,
    pub sent: u64,
}

/// Place of a value among these bounds.
#[inline]
pub fn bucket(bounds: &[u64; ACCOUNT_BOUNDS], value: u64) -> usize {
    bounds.partition_point(|bound| *bound < value)
}

impl Registry {
    /// Registers an account. `classes` are the values of the label `class`, of all classes or the first; durations are
    /// shown in seconds, and their bounds are in microseconds.
    pub fn account(
        &mut self,
        families: &AccountFamilies<'_>,
        labels: &[(&str, &str)],
        classes: &[&str],
        bounds: &[u64; ACCOUNT_BOUNDS],
    ) -> Account {
        let first = self.begin_line();
        let mut class = |place: usize| match classes.get(place) {
            Some(class) => {
                let labels = [labels, &[("class", *class)]].concat();
                self.counter(families.classes.0, families.classes.1, &labels)
            }
            None => self.hidden_counter(),
        };
        let classes = [0, 1, 2, 3, 4, 5].map(&mut class);
        let received = self.counter(families.received.0, families.received.1, labels);
        let sent = self.counter(families.sent.0, families.sent.1, labels);
        let (name, help) = families.duration;
        let duration = self.histogram(name, help, labels, bounds, 1e-6);
        self.end_line();
        Account { classes, received, sent, duration, line: first / SLOTS_PER_LINE as u32 }
    }
}

impl Column {
    /// Counts a request.
    #[inline]
    pub fn book(&self, account: &Account, entry: &Entry) {
        let [first, second] = self.two_lines(account.line as usize);
        add(&first[entry.class.min(ACCOUNT_CLASSES - 1)], 1);
        add(&first[RECEIVED], entry.received);
        add(&first[SENT], entry.sent);
        let slot = BUCKETS + entry.bucket.min(ACCOUNT_BOUNDS);
        let line = if slot < SLOTS_PER_LINE { first } else { second };
        add(&line[slot % SLOTS_PER_LINE], 1);
        add(&second[SUM - SLOTS_PER_LINE], entry.duration);
    }
}

/// As in `Column::bump`.
#[inline]
fn add(slot: &AtomicU64, amount: u64) {
    slot.store(slot.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    const FAMILIES: AccountFamilies<'_> = AccountFamilies {
        classes: ("requests_total", "Requests."),
        received: ("received_bytes_total", "Bytes."),
        sent: ("sent_bytes_total", "Bytes."),
        duration: ("seconds", "Time."),
    };
    const BOUNDS: [u64; ACCOUNT_BOUNDS] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18];

    #[test]
    fn a_request_is_where_readers_look_for_it_whatever_its_class_and_duration() {
        let mut registry = Registry::new();
        registry.counter("before_total", "Before.", &[]);
        let describe = |r: &mut Registry, name: &str, classes: &[&str]| {
            let account = r.account(&FAMILIES, &[("of", name)], classes, &BOUNDS);
            (account, r.counter("after_total", "After.", &[("of", name)]))
        };
        let all = ["1xx", "2xx", "3xx", "4xx", "5xx", "none"];
        let (first, after) = describe(&mut registry, "a", &all);
        let store = registry.build(2);
        let ((later, _), group) = store.register(|r| describe(r, "b", &all[..5]));
        store.withdraw(std::slice::from_ref(&group));
        let (again, _) = store.register_again(&group, |r| describe(r, "c", &all[..5]));
        assert_eq!(again, later, "the places of before");
        let column = Store::column(&store, 1);
        for account in [first, later] {
            for duration in 0..=20 {
                let class = duration as usize % 7;
                let entry = Entry { class, bucket: bucket(&BOUNDS, duration), duration, received: 3, sent: 5 };
                column.book(&account, &entry);
            }
            assert_eq!(account.classes.map(|class| store.count(class)), [3, 3, 3, 3, 3, 6]);
            assert_eq!((store.count(account.received), store.count(account.sent)), (63, 105));
            let distribution = store.distribution(account.duration);
            assert_eq!((distribution.count, distribution.sum), (21, 210));
            let counts = store.counts(account.duration);
            assert!(counts[0] == 2 && counts[1..18].iter().all(|count| *count == 1) && counts[18] == 2, "{counts:?}");
        }
        let shown = store.prometheus();
        assert!(shown.contains("requests_total{of=\"a\",class=\"none\"} 6\n"));
        assert!(
            shown.contains("requests_total{of=\"c\",class=\"5xx\"} 3\n") && !shown.contains("of=\"c\",class=\"none\"")
        );
        assert_eq!(store.count(after), 0, "a neighbour's slot");
    }
}
