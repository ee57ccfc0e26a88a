//! Metrics of a backend and of its servers.

use propylon_http::fault::{Family, Fault};
use propylon_metrics::{Counter, Gauge, Histogram, Registry};

use super::by_reason::{ByFault, ByReason};
use super::reasons::{MIRROR_OUTCOMES, STICKY_OUTCOMES, UNUSUAL_PICKS};
use super::server_health::{ServerHealthMetrics, server_health_metrics};
use super::statuses::ByStatus;
use super::waits::DURATION_BOUNDS;

pub struct BackendMetrics {
    pub retries: Counter,
    pub retries_refused: Counter,
    pub stale_retries: Counter,
    pub fallbacks: Counter,
    pub unavailable: Counter,
    /// Whether verdicts are not believed; the main thread writes this and the next metrics.
    pub panic: Gauge,
    pub probe_wait: Histogram,
    pub probes_late: Counter,
    pub panics: Counter,
    pub clients: Counter,
    pub clients_open: Gauge,
    pub queue_depth: Gauge,
    pub queue_wait: Histogram,
    pub queue_refused: ByFault,
    /// Requests that may be at the backend at once, 0 for no limit, and whether a limit that is adaptive has sunk to
    /// its floor; the main thread writes both.
    pub circuit_limit: Gauge,
    pub circuit_floored: Gauge,
    /// Picks of a server that is not an ordinary one which is up.
    pub unusual_picks: ByReason,
    /// Copies of requests, by what became of them.
    pub mirrored: ByReason,
    pub hedges: HedgeMetrics,
    pub faults: ByFault,
    /// Responses of its servers by status, whether or not they came to their end.
    pub responses: ByStatus,
    pub connect_duration: Histogram,
    pub first_byte_duration: Histogram,
}

/// Second attempts beside a first that was late, by which of the two has answered.
pub struct HedgeMetrics {
    pub first: Counter,
    pub second: Counter,
    pub neither: Counter,
    /// Attempts that the budget of repeats did not allow.
    pub refused: Counter,
}

fn hedge_metrics(r: &mut Registry, label: (&str, &str)) -> HedgeMetrics {
    let help = "Second attempts made beside a first that was late, by which of the two has answered.";
    let mut of = |result| r.counter("propylon_hedges_total", help, &[label, ("result", result)]);
    let (first, second, neither) = (of("first"), of("second"), of("neither"));
    let refused = r.counter(
        "propylon_hedges_refused_total",
        "Second attempts beside a first that was late which the retry budget did not allow.",
        &[label],
    );
    HedgeMetrics { first, second, neither, refused }
}

/// Time after which a server of the backend is late by a percentile, in microseconds.
pub(super) fn hedge_after(r: &mut Registry, backend: &str, percentile: &str) -> Gauge {
    let help =
        "Time after which a second attempt is made by this percentile of what servers took lately; 0: not known.";
    r.scaled_gauge("propylon_hedge_after_seconds", help, &[("backend", backend), ("percentile", percentile)], 1e-6)
}

pub(super) fn backend_metrics(r: &mut Registry, name: &str) -> BackendMetrics {
    let label = ("backend", name);
    let by = &[label];
    BackendMetrics {
        retries: r.counter("propylon_retries_total", "Requests tried again on another connection or server.", by),
        retries_refused: r.counter(
            "propylon_retries_refused_total",
            "Retries that the retry budget did not allow.",
            by,
        ),
        stale_retries: r.counter(
            "propylon_stale_retries_total",
            "Requests tried again because an idle connection turned out to be closed; among the retries.",
            by,
        ),
        fallbacks: r.counter(
            "propylon_fallbacks_total",
            "Requests that went to their route's fallback, since no server of the backend was to be had.",
            by,
        ),
        clients: r.counter(
            "propylon_backend_client_connections_total",
            "Client connections that sent a request to the backend.",
            by,
        ),
        clients_open: r.gauge(
            "propylon_backend_client_connections",
            "Client connections open that have sent a request to the backend.",
            by,
        ),
        queue_depth: r.gauge("propylon_queue_depth", "Requests that wait for a server connection.", by),
        queue_wait: r.histogram(
            "propylon_queue_wait_seconds",
            "Waits for a server connection while servers had as many as they may.",
            by,
            DURATION_BOUNDS,
            1e-6,
        ),
        queue_refused: ByFault::new(
            r,
            ("propylon_queue_refused_total", "Requests that left the queue without a server connection."),
            label,
            |fault| fault.family() == Family::Queue,
        ),
        circuit_limit: r.gauge(
            "propylon_circuit_limit",
            "Requests that may be at the backend at once, 0: any number; with circuit.adaptive as it is found to be.",
            by,
        ),
        circuit_floored: r.gauge(
            "propylon_circuit_floored",
            "1 while an adaptive limit is as low as it may be and keeps requests out.",
            by,
        ),
        unusual_picks: ByReason::new(
            r,
            "propylon_unusual_picks_total",
            "Picks of backups, of servers that are not up because too few are, and where none is up.",
            label,
            UNUSUAL_PICKS,
        ),
        mirrored: ByReason::new(
            r,
            "propylon_mirrored_requests_total",
            "Requests of routes that mirror to the backend, by what became of their copies.",
            label,
            MIRROR_OUTCOMES,
        ),
        hedges: hedge_metrics(r, label),
        panic: r.gauge(
            "propylon_backend_panic",
            "1 while fewer servers than min_healthy are up, so that those that are down get requests as well.",
            by,
        ),
        probe_wait: r.histogram(
            "propylon_health_check_wait_seconds",
            "How long health checks waited for their turn.",
            by,
            DURATION_BOUNDS,
            1e-6,
        ),
        probes_late: r.counter(
            "propylon_health_checks_late_total",
            "Health checks that waited for their turn for longer than their interval.",
            by,
        ),
        panics: r.counter("propylon_backend_panics_total", "Times that this began.", by),
        unavailable: r.counter("propylon_backend_unavailable_total", "Requests for which no server was left.", by),
        faults: ByFault::new(
            r,
            ("propylon_server_faults_total", "Attempts that failed on the server's side."),
            label,
            |fault| matches!(fault.family(), Family::Server | Family::ServerTls),
        ),
        responses: ByStatus::new(
            r,
            ("propylon_backend_responses_total", "Responses of servers to requests, by class and status."),
            label,
        ),
        connect_duration: r.histogram(
            "propylon_server_connect_duration_seconds",
            "TCP connects to servers.",
            by,
            DURATION_BOUNDS,
            1e-6,
        ),
        first_byte_duration: r.histogram(
            "propylon_server_first_byte_duration_seconds",
            "From a request sent to the head of its response.",
            by,
            DURATION_BOUNDS,
            1e-6,
        ),
    }
}

/// TLS with a backend's servers.
pub struct ServerTlsMetrics {
    pub full: Counter,
    pub resumed: Counter,
    pub failures: ByFault,
    pub duration: Histogram,
}

impl ServerTlsMetrics {
    pub fn new(r: &mut Registry, backend: &str) -> ServerTlsMetrics {
        let label = ("backend", backend);
        let mut slot = |resumed: &str| {
            let help = "TLS handshakes with servers finished, by whether a session was resumed.";
            r.counter("propylon_server_tls_handshakes_total", help, &[label, ("resumed", resumed)])
        };
        ServerTlsMetrics {
            full: slot("false"),
            resumed: slot("true"),
            failures: ByFault::new(
                r,
                ("propylon_server_tls_handshake_failures_total", "TLS handshakes with servers that failed."),
                label,
                |fault| fault.family() == Family::ServerTls || fault == Fault::TlsTimeout,
            ),
            duration: r.histogram(
                "propylon_server_tls_handshake_duration_seconds",
                "TLS handshakes with servers, once the connection was there.",
                &[label],
                DURATION_BOUNDS,
                1e-6,
            ),
        }
    }
}

pub struct ServerMetrics {
    pub requests: Counter,
    pub connections: Counter,
    pub open: Gauge,
    /// Open connections that are ending while their servers may still work on a request.
    pub closing: Gauge,
    pub close_timeouts: Counter,
    pub idle: Gauge,
    pub in_flight: Gauge,
    /// Workers that pass over the server since it failed them.
    pub passed_over: Gauge,
    pub reused: Counter,
    pub stale: Counter,
    pub handed_over: Counter,
    pub warmed: Counter,
    pub connect_failures: Counter,
    /// Successful requests, by which ejections are decided, as by `failures`.
    pub successes: Counter,
    pub failures: Counter,
    /// From a request sent to the head of its response.
    pub response_wait: Histogram,
    /// Mean of those waits as a multiple of the other servers', where it is too large; the main thread writes it.
    pub slow: Gauge,
    pub health: ServerHealthMetrics,
}

/// Upper bounds of a server's waits, in microseconds: few, since there may be thousands of servers.
const SERVER_WAIT_BOUNDS: &[u64] = &[10_000, 100_000, 1_000_000, 10_000_000];

pub(super) fn server_metrics(r: &mut Registry, backend: &str, server: &str) -> ServerMetrics {
    let by = &[("backend", backend), ("server", server)];
    let outcome = |r: &mut Registry, outcome: &str| {
        let help = "What servers made of requests: success, or failure (5xx, no answer, or only a part of it).";
        r.counter("propylon_server_outcomes_total", help, &[by[0], by[1], ("outcome", outcome)])
    };
    ServerMetrics {
        requests: r.counter(
            "propylon_server_requests_total",
            "Attempts to send a request to a server, those whose connect failed among them.",
            by,
        ),
        connections: r.counter("propylon_server_connections_total", "Connections made to a server.", by),
        open: r.gauge("propylon_server_connections", "Connections to a server, open.", by),
        in_flight: r.gauge(
            "propylon_server_requests_in_flight",
            "Requests at a server, from their pick to their end.",
            by,
        ),
        closing: r.gauge(
            "propylon_server_connections_closing",
            "Connections to a server that count against its limit because it may be at work on a request that is over.",
            by,
        ),
        close_timeouts: r.counter(
            "propylon_server_close_timeouts_total",
            "Connections that were closing for as long as timeouts.close allows, and count no more.",
            by,
        ),
        passed_over: r.gauge(
            "propylon_server_passed_over",
            "Workers that pass a server over, since it did not answer them; one request at a time tries it again.",
            by,
        ),
        idle: r.gauge("propylon_server_connections_idle", "Connections to a server, waiting in a pool.", by),
        reused: r.counter("propylon_server_reused_total", "Requests sent on a connection from the pool.", by),
        stale: r.counter(
            "propylon_server_stale_total",
            "Connections from the pool that turned out to be closed by the server.",
            by,
        ),
        handed_over: r.counter(
            "propylon_server_handed_over_total",
            "Connections to a server that one worker gave to another's request.",
            by,
        ),
        warmed: r.counter("propylon_server_warmed_total", "Connections to a server made ahead.", by),
        connect_failures: r.counter("propylon_server_connect_failures_total", "Connects that failed.", by),
        successes: outcome(r, "success"),
        failures: outcome(r, "failure"),
        response_wait: r.histogram(
            "propylon_server_response_wait_seconds",
            "From a request sent to a server to the head of its response.",
            by,
            SERVER_WAIT_BOUNDS,
            1e-6,
        ),
        slow: r.gauge(
            "propylon_server_slow_factor",
            "How many times as long as the median of its backend's other servers a server takes for its heads, over the last minute; 0 while it is not slow.",
            by,
        ),
        health: server_health_metrics(r, by),
    }
}

pub(super) fn sticky_metrics(r: &mut Registry, backend: &str) -> ByReason {
    let help = "Requests by what their cookie was worth: it was followed, or why not.";
    ByReason::new(r, "propylon_sticky_requests_total", help, ("backend", backend), STICKY_OUTCOMES)
}
