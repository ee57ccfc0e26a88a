//! Signatures by keys that are elsewhere, and who makes them.

use std::ops::Deref;
use std::sync::Arc;

use propylon_metrics::{Column, Counter, Gauge, Histogram, Registry, Store};
use serde_json::{Value, json};

use super::waits::DURATION_BOUNDS;

/// Results of looking up key servers' names again.
pub const LOOKUPS: [&str; 3] = ["same", "changed", "failed"];
/// The key process's name, where signers have theirs.
pub const BESIDE_NAME: &str = "keys.isolate";

pub const BESIDE_SERVER: &str = "key process";
/// Ends of a handshake's wait for a signer.
pub const CONCLUSIONS: &[&str] = &["signed", "timeout", "unavailable", "refused", "cancelled", "full"];

/// Ends of a request to a key server.
pub const OUTCOMES: &[&str] = &["signed", "refused", "wrong", "lost", "unanswered", "superfluous"];

/// Metrics of a signer and of its servers.
#[derive(Clone)]
pub struct SignerMetrics {
    pub totals: Arc<SignerTotals>,
    /// Metrics by server, in the order of the configuration.
    pub servers: Vec<Arc<KeyServerMetrics>>,
}

impl Deref for SignerMetrics {
    type Target = SignerTotals;

    fn deref(&self) -> &SignerTotals {
        &self.totals
    }
}

pub struct SignerTotals {
    pub conclusions: Vec<Counter>,
    pub retries: Counter,
    pub hedges: Counter,
    pub unsent: Gauge,
    /// Look-ups of names by result, in the order of `LOOKUPS`.
    pub lookups: [Counter; 3],
    /// Restarts of the key process; only its own metrics have them.
    pub restarts: Option<Counter>,
    pub is_over: Option<Gauge>,
}

pub struct KeyServerMetrics {
    /// Requests by end, in the order of `OUTCOMES`.
    pub outcomes: Vec<Counter>,
    pub outstanding: Gauge,
    pub duration: Histogram,
    pub connections: Gauge,
    pub connect_failures: Counter,
    pub unsigned: Counter,
    pub ejections: Counter,
    pub ejected: Gauge,
    pub strays: Counter,
}

impl SignerTotals {
    pub(super) fn new(r: &mut Registry, signer: &str) -> SignerTotals {
        let by = &[("signer", signer)];
        let conclusion = |r: &mut Registry, outcome: &str| {
            let help = "Signatures that handshakes waited for, by what came of it; full: as many waited as may.";
            r.counter("propylon_signer_jobs_total", help, &[("signer", signer), ("outcome", outcome)])
        };
        SignerTotals {
            conclusions: CONCLUSIONS.iter().map(|outcome| conclusion(r, outcome)).collect(),
            retries: r.counter("propylon_signer_retries_total", "Signatures asked for again.", by),
            hedges: r.counter(
                "propylon_signer_hedges_total",
                "Signatures asked for at a second server because the first took long; retries are counted too.",
                by,
            ),
            unsent: r.gauge("propylon_signer_unsent", "Signatures that wait for a connection.", by),
            lookups: LOOKUPS.map(|outcome| {
                let help = "Lookups of key servers' names after the first, by what came of it.";
                r.counter("propylon_signer_lookups_total", help, &[("signer", signer), ("outcome", outcome)])
            }),
            restarts: None,
            is_over: None,
        }
    }

    /// Adds counts of look-ups; called by the main thread.
    pub fn add_lookups(&self, column: &Column, counts: [u64; 3]) {
        for (counter, count) in self.lookups.iter().zip(counts) {
            column.add(*counter, count);
        }
    }
}

impl SignerMetrics {
    /// Registers the metrics of a signer and of its servers, for as long as the store lives.
    pub fn new(r: &mut Registry, signer: &str, servers: &[String]) -> SignerMetrics {
        let servers = servers.iter().map(|server| Arc::new(KeyServerMetrics::new(r, signer, server)));
        let servers = servers.collect();
        SignerMetrics { totals: Arc::new(SignerTotals::new(r, signer)), servers }
    }

    /// Registers the metrics of the key process.
    pub fn of_key_process(r: &mut Registry) -> SignerMetrics {
        let restarts = "Times that the key process has ended and was started again.";
        let is_over = "Cores that will never reach a key process again: the process that starts it is gone.";
        let totals = SignerTotals {
            restarts: Some(r.counter("propylon_key_process_restarts_total", restarts, &[])),
            is_over: Some(r.gauge("propylon_key_process_lost", is_over, &[])),
            ..SignerTotals::new(r, BESIDE_NAME)
        };
        let servers = vec![Arc::new(KeyServerMetrics::new(r, BESIDE_NAME, BESIDE_SERVER))];
        SignerMetrics { totals: Arc::new(totals), servers }
    }
}

impl SignerMetrics {
    /// Counts for the dashboard: signatures by outcome, and each server's metrics in the order of the configuration.
    pub fn summary(&self, store: &Store) -> (Value, Vec<Value>) {
        let counts = |names: &[&str], counters: &[Counter]| {
            let pairs =
                names.iter().zip(counters).map(|(name, counter)| ((*name).to_owned(), store.count(*counter).into()));
            Value::Object(pairs.collect())
        };
        let server = |server: &Arc<KeyServerMetrics>| {
            json!({
                "connections": store.level(server.connections),
                "outstanding": store.level(server.outstanding),
                "ejected": store.level(server.ejected),
                "connect_failures": store.count(server.connect_failures),
                "outcomes": counts(OUTCOMES, &server.outcomes),
                "durations": store.counts(server.duration),
            })
        };
        (counts(CONCLUSIONS, &self.conclusions), self.servers.iter().map(server).collect())
    }
}

impl KeyServerMetrics {
    pub(super) fn new(r: &mut Registry, signer: &str, server: &str) -> KeyServerMetrics {
        let by = &[("signer", signer), ("server", server)];
        let outcome = |r: &mut Registry, outcome: &str| {
            let help = "Requests for signatures, by what became of them.";
            let labels = [("signer", signer), ("server", server), ("outcome", outcome)];
            r.counter("propylon_signer_requests_total", help, &labels)
        };
        KeyServerMetrics {
            outcomes: OUTCOMES.iter().map(|name| outcome(r, name)).collect(),
            outstanding: r.gauge("propylon_signer_outstanding", "Requests without an answer, pings among them.", by),
            duration: r.histogram(
                "propylon_signer_duration_seconds",
                "From a request for a signature to its answer.",
                by,
                DURATION_BOUNDS,
                1e-6,
            ),
            connections: r.gauge("propylon_signer_connections", "Connections that are up.", by),
            connect_failures: r.counter(
                "propylon_signer_connect_failures_total",
                "Connections that did not come up.",
                by,
            ),
            unsigned: r.counter(
                "propylon_signer_identity_unsigned_total",
                "Connections that did not come up, since nobody signed for the identity that the server is shown.",
                by,
            ),
            ejections: r.counter("propylon_signer_ejections_total", "Times that a core passed the server over.", by),
            ejected: r.gauge("propylon_signer_ejected", "Cores that pass the server over now.", by),
            strays: r.counter(
                "propylon_signer_strays_total",
                "Replies that nothing waited for: late ones, or such as nobody asked for.",
                by,
            ),
        }
    }
}
