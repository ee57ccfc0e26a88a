//! Metrics of bodies that are held.

use propylon_metrics::{Counter, Registry};

/// Metrics of bodies that are held for slow clients.
pub struct BodyMetrics {
    /// Requests' bodies, in memory and in files, and responses' bodies.
    held: [Counter; 3],
    pub exhausted: Counter,
    /// Keys of a pace that were forgotten before their time, for want of room.
    pub pace_forgot: Counter,
}

impl BodyMetrics {
    pub fn new(r: &mut Registry) -> BodyMetrics {
        let mut counter = |what: &str| {
            r.counter("propylon_held_bodies_total", "Bodies that were held for slow clients.", &[("of", what)])
        };
        BodyMetrics {
            held: [counter("request"), counter("request-on-disk"), counter("response")],
            exhausted: r.counter(
                "propylon_held_bodies_exhausted_total",
                "Bodies that were not held any further, since the engine has no more room for bodies.",
                &[],
            ),
            pace_forgot: r.counter(
                "propylon_throttle_table_full_total",
                "Times that a route's pace forgot a key before its time, for want of room.",
                &[],
            ),
        }
    }

    /// Counter of bodies of requests, or of responses.
    pub fn held(&self, of_request: bool, is_on_disk: bool) -> Counter {
        self.held[match (of_request, is_on_disk) {
            (true, false) => 0,
            (true, true) => 1,
            (false, _) => 2,
        }]
    }
}
