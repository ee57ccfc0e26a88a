//! Series of what is known of a server's health: written by the main thread.

use propylon_metrics::{Counter, Gauge, Registry};

use super::reasons::PROBE_RESULTS;

pub struct ServerHealthMetrics {
    pub up: Gauge,
    pub changes: Counter,
    pub ejections: Counter,
    pub ejected: Gauge,
    pub addresses: Gauge,
    pub lookup_failures: Counter,
    pub lookup_failing: Gauge,
}

pub fn server_health_metrics(r: &mut Registry, by: &[(&str, &str); 2]) -> ServerHealthMetrics {
    ServerHealthMetrics {
        up: r.gauge(
            "propylon_server_up",
            "1 while requests may go to a server; 0 while it is down, ejected or drained.",
            by,
        ),
        changes: r.counter("propylon_server_state_changes_total", "Changes of a server's state.", by),
        ejections: r.counter("propylon_server_ejections_total", "Times that a server was ejected for its answers.", by),
        ejected: r.gauge("propylon_server_ejected", "1 while a server is ejected for its answers.", by),
        addresses: r.gauge("propylon_server_addresses", "Addresses that new connections to a server take in turn.", by),
        lookup_failures: r.counter(
            "propylon_server_lookup_failures_total",
            "Lookups of a server's name that failed; it keeps the addresses it had.",
            by,
        ),
        lookup_failing: r.gauge(
            "propylon_server_lookup_failing",
            "1 from a failed lookup of a server's name until one succeeds.",
            by,
        ),
    }
}

/// Probes of a server by result, in the order of `PROBE_RESULTS`.
pub struct ProbeMetrics(pub Vec<Counter>);

/// Registers the counters of a server that is probed.
pub fn probe_metrics(r: &mut Registry, backend: &str, server: &str) -> ProbeMetrics {
    let mut probes = |result: &str| {
        let help = "Health checks that have ended, by what they found.";
        let by = [("backend", backend), ("server", server), ("result", result)];
        r.counter("propylon_health_checks_total", help, &by)
    };
    ProbeMetrics(PROBE_RESULTS.iter().map(|result| probes(result)).collect())
}
