//! The numbers of an engine whose past is kept: `propylon_metrics::history` does so by this table.

use std::time::Duration;

use Source::{Given, GivenRate, Level, Quantile, Rate};
use propylon_metrics::Store;
pub use propylon_metrics::history::{History, Span};
use propylon_metrics::history::{Series, Source};

const fn row(name: &'static str, unit: &'static str, source: Source) -> Series {
    Series { name, source, only: None, unit }
}

const fn only(series: Series, label: &'static str, is: &'static str) -> Series {
    Series { only: Some((label, is)), ..series }
}

const REQUEST: &str = "propylon_request_duration_seconds";
const FIRST_BYTE: &str = "propylon_server_first_byte_duration_seconds";

/// The thirty and some that matter. Names are part of what `/history.json` says: they are not changed.
const TABLE: &[Series] = &[
    row("requests", "1/s", Rate("propylon_responses_total")),
    only(row("responses_4xx", "1/s", Rate("propylon_responses_total")), "class", "4xx"),
    only(row("responses_5xx", "1/s", Rate("propylon_responses_total")), "class", "5xx"),
    row("requests_in_progress", "1", Level("propylon_requests_in_progress")),
    row("request_duration_p50", "s", Quantile(REQUEST, 0.5)),
    row("request_duration_p99", "s", Quantile(REQUEST, 0.99)),
    row("connections", "1", Level("propylon_connections")),
    row("connections_new", "1/s", Rate("propylon_connections_total")),
    row("connections_refused", "1/s", Rate("propylon_connections_refused_total")),
    row("http2_connections", "1", Level("propylon_http2_connections")),
    row("handshakes", "1/s", Rate("propylon_tls_handshakes_total")),
    only(row("handshakes_resumed", "1/s", Rate("propylon_tls_handshakes_total")), "resumed", "true"),
    row("handshakes_failed", "1/s", Rate("propylon_tls_handshake_failures_total")),
    row("handshakes_queued", "1", Level("propylon_handshakes_queued")),
    row("received_bytes", "B/s", Rate("propylon_received_bytes_total")),
    row("sent_bytes", "B/s", Rate("propylon_sent_bytes_total")),
    row("server_requests", "1/s", Rate("propylon_server_requests_total")),
    row("server_connections", "1", Level("propylon_server_connections")),
    row("server_connections_idle", "1", Level("propylon_server_connections_idle")),
    row("server_connect_failures", "1/s", Rate("propylon_server_connect_failures_total")),
    row("server_faults", "1/s", Rate("propylon_server_faults_total")),
    row("server_first_byte_p99", "s", Quantile(FIRST_BYTE, 0.99)),
    row("servers_up", "1", Level("propylon_server_up")),
    row("queued", "1", Level("propylon_queue_depth")),
    row("queue_wait_p99", "s", Quantile("propylon_queue_wait_seconds", 0.99)),
    row("queue_refused", "1/s", Rate("propylon_queue_refused_total")),
    row("retries", "1/s", Rate("propylon_retries_total")),
    row("without_server", "1/s", Rate("propylon_backend_unavailable_total")),
    only(row("limited", "1/s", Rate("propylon_limit_requests_total")), "outcome", "refused"),
    row("rejected", "1/s", Rate("propylon_requests_rejected_total")),
    row("memory_bytes", "B", Given(0)),
    row("cpu_cores", "1", GivenRate(1)),
];

/// To be looked at with once a second, by [`look`].
pub fn keep() -> History {
    History::new(TABLE)
}

/// Looks at the metrics and at what the kernel says of the process; `now` is the time since its start, `wall` that
/// since 1970.
pub fn look(history: &mut History, store: &Store, now: Duration, wall: Duration) {
    let memory = propylon_sys::resident_bytes().map_or(f64::NAN, |bytes| bytes as f64);
    history.look(store, &[memory, propylon_sys::process_cpu().as_secs_f64()], now, wall);
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_told_apart_and_metrics_are_ones_that_the_manual_knows() {
        let names: HashSet<&str> = TABLE.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), TABLE.len());
        let manual = include_str!("../../../docs/manual.md");
        for row in TABLE {
            if let Rate(metric) | Level(metric) | Quantile(metric, _) = row.source {
                assert!(manual.contains(&format!("`{metric}`")), "{metric}");
            }
        }
    }
}
