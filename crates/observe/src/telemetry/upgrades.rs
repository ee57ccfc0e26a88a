//! Metrics of upgrades, in which one process takes over from another.

use propylon_metrics::{Counter, Gauge, Registry};

use super::reasons::UPGRADE_FAILURES;

/// Metrics of upgrades.
pub struct UpgradeMetrics {
    pub upgrades: Counter,
    /// Failed upgrades, in the order of `UPGRADE_FAILURES`.
    failed: Vec<Counter>,
    pub predecessors: Gauge,
    pub predecessor_connections: Gauge,
    pub predecessor_requests: Gauge,
    pub predecessor_age: Gauge,
}

impl UpgradeMetrics {
    pub(super) fn new(r: &mut Registry) -> UpgradeMetrics {
        let failed = UPGRADE_FAILURES.iter().map(|reason| {
            let help = "Upgrades that came to nothing, by why; this process went on serving.";
            r.counter("propylon_upgrade_failures_total", help, &[("reason", reason)])
        });
        UpgradeMetrics {
            failed: failed.collect(),
            upgrades: r.counter("propylon_upgrades_total", "Upgrades that have led to this process.", &[]),
            predecessors: r.gauge(
                "propylon_upgrade_predecessors",
                "Processes that this one, or one before it, has succeeded, and that still drain.",
                &[],
            ),
            predecessor_connections: r.gauge(
                "propylon_upgrade_predecessor_connections",
                "Client connections that those have open.",
                &[],
            ),
            predecessor_requests: r.gauge(
                "propylon_upgrade_predecessor_requests_in_progress",
                "Requests that those have in progress.",
                &[],
            ),
            predecessor_age: r.gauge(
                "propylon_upgrade_predecessor_age_seconds",
                "Seconds since the oldest of those was succeeded.",
                &[],
            ),
        }
    }

    /// The counter of a reason; `None` if the reason is not in the list.
    pub fn failed(&self, reason: &str) -> Option<Counter> {
        let place = UPGRADE_FAILURES.iter().position(|known| *known == reason)?;
        self.failed.get(place).copied()
    }
}
