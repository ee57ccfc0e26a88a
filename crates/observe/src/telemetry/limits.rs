//! Metrics of the limits that routes have.

use propylon_metrics::{Counter, Registry};

/// Metrics of a limit.
pub struct LimitMetrics {
    pub allowed: Counter,
    pub exempt: Counter,
    pub refused: Counter,
    pub denied: Counter,
    /// Keys that were forgotten before their time, or not counted, for want of room.
    pub full: Counter,
}

pub(super) fn limit_metrics(r: &mut Registry, limit: &str) -> LimitMetrics {
    let mut outcome = |outcome: &str| {
        let help = "Requests that a limit was asked about, by its answer.";
        r.counter("propylon_limit_requests_total", help, &[("limit", limit), ("outcome", outcome)])
    };
    LimitMetrics {
        allowed: outcome("allowed"),
        exempt: outcome("exempt"),
        refused: outcome("refused"),
        denied: outcome("denied"),
        full: r.counter(
            "propylon_limit_table_full_total",
            "Times that a limit forgot a key before its time, or let one through uncounted, for want of room.",
            &[("limit", limit)],
        ),
    }
}
