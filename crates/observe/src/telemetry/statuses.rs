//! Counters by the status of a response.

use propylon_metrics::{Counter, Registry};

/// Statuses that are counted each by itself; any other is counted with those of its class.
const STATUSES: [u16; 31] = [
    101, 200, 201, 202, 204, 206, 301, 302, 303, 304, 307, 308, 400, 401, 403, 404, 405, 408, 409, 410, 412, 413, 415,
    422, 429, 500, 501, 502, 503, 504, 505,
];
/// Classes, each with a place for what is not in the list; the last is for what is in no class.
const CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "other"];
const PLACES: [u8; 600] = places();

const fn places() -> [u8; 600] {
    let mut places = [(STATUSES.len() + CLASSES.len() - 1) as u8; 600];
    let mut status = 100;
    while status < places.len() {
        places[status] = (STATUSES.len() + status / 100 - 1) as u8;
        status += 1;
    }
    let mut at = 0;
    while at < STATUSES.len() {
        places[STATUSES[at] as usize] = at as u8;
        at += 1;
    }
    places
}

/// A counter for each status that is common, and one for the others of each class.
pub struct ByStatus {
    counters: [Counter; STATUSES.len() + CLASSES.len()],
}

impl ByStatus {
    pub(super) fn new(registry: &mut Registry, (name, help): (&str, &str), label: (&str, &str)) -> ByStatus {
        ByStatus {
            counters: std::array::from_fn(|place| {
                let (class, status) = match STATUSES.get(place) {
                    Some(status) => (CLASSES[usize::from(*status) / 100 - 1], status.to_string()),
                    None => (CLASSES[place - STATUSES.len()], "other".to_owned()),
                };
                registry.counter(name, help, &[label, ("class", class), ("status", &status)])
            }),
        }
    }

    /// The counter of a status.
    #[inline]
    pub fn of(&self, status: u16) -> Counter {
        let place = PLACES.get(usize::from(status)).copied().unwrap_or(PLACES[0]);
        self.counters[usize::from(place)]
    }
}

#[cfg(test)]
mod tests {
    use propylon_metrics::Store;

    use super::*;

    #[test]
    fn a_status_is_counted_by_itself_or_with_its_class() {
        let mut registry = Registry::new();
        let by_status = ByStatus::new(&mut registry, ("responses_total", "Responses."), ("backend", "app"));
        let store = registry.build(1);
        let column = Store::column(&store, 0);
        for status in [200, 200, 299, 203, 418, 599, 101, 0, 99, 600, 999, u16::MAX] {
            column.increment(by_status.of(status));
        }
        let has = |class: &str, status: &str, count: u64| {
            let line = format!("{{backend=\"app\",class=\"{class}\",status=\"{status}\"}} {count}\n");
            assert!(store.prometheus().contains(&line), "{line}{}", store.prometheus());
        };
        has("2xx", "200", 2);
        has("2xx", "other", 2);
        has("4xx", "other", 1);
        has("5xx", "other", 1);
        has("1xx", "101", 1);
        has("1xx", "other", 0);
        has("other", "other", 5);
    }
}
