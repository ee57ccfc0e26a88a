//! What one core tells of a signer: numbers for the metrics, and a line in the log when something changes.

use std::fmt::Write;
use std::sync::Arc;

use propylon_crypto::Ski;
use propylon_crypto::keyless::ErrorCode;
use propylon_metrics::{Column, Counter, Gauge, Histogram, Registry, Store};
use serde_json::{Value, json};

use super::places::Found;
use super::{BESIDE_NAME, BESIDE_SERVER};
use crate::telemetry::DURATION_BOUNDS;
use crate::throttle::Throttle;

/// What became of handshakes that waited for a signer.
pub const CONCLUSIONS: &[&str] = &["signed", "timeout", "unavailable", "refused", "cancelled", "full"];
/// What became of requests to a key server.
pub const OUTCOMES: &[&str] = &["signed", "refused", "wrong", "lost", "unanswered", "superfluous"];

pub struct SignerMetrics {
    conclusions: Vec<Counter>,
    retries: Counter,
    hedges: Counter,
    unsent: Gauge,
    /// In the order of `Found::NAMES`.
    lookups: [Counter; 3],
    servers: Vec<ServerMetrics>,
    /// Of the process beside this one.
    restarts: Option<Counter>,
    is_over: Option<Gauge>,
}

struct ServerMetrics {
    /// In the order of `OUTCOMES`.
    outcomes: Vec<Counter>,
    outstanding: Gauge,
    duration: Histogram,
    connections: Gauge,
    connect_failures: Counter,
    unsigned: Counter,
    ejections: Counter,
    ejected: Gauge,
    strays: Counter,
}

impl SignerMetrics {
    pub fn new(r: &mut Registry, signer: &str, servers: &[String]) -> SignerMetrics {
        let by = &[("signer", signer)];
        let conclusion = |r: &mut Registry, outcome: &str| {
            let help = "Signatures that handshakes waited for, by what came of it; full: as many waited as may.";
            r.counter("propylon_signer_jobs_total", help, &[("signer", signer), ("outcome", outcome)])
        };
        SignerMetrics {
            conclusions: CONCLUSIONS.iter().map(|outcome| conclusion(r, outcome)).collect(),
            retries: r.counter("propylon_signer_retries_total", "Signatures asked for again.", by),
            hedges: r.counter(
                "propylon_signer_hedges_total",
                "Signatures asked for at a second server because the first took long; retries are counted too.",
                by,
            ),
            unsent: r.gauge("propylon_signer_unsent", "Signatures that wait for a connection.", by),
            lookups: Found::NAMES.map(|outcome| {
                let help = "Lookups of key servers' names after the first, by what came of it.";
                r.counter("propylon_signer_lookups_total", help, &[("signer", signer), ("outcome", outcome)])
            }),
            servers: servers.iter().map(|server| ServerMetrics::new(r, signer, server)).collect(),
            restarts: None,
            is_over: None,
        }
    }

    /// Of the process that holds this one's keys.
    pub fn of_key_process(r: &mut Registry) -> SignerMetrics {
        let restarts = "Times that the key process has ended and was started again.";
        let is_over = "Cores that will never reach a key process again: the process that starts it is gone.";
        SignerMetrics {
            restarts: Some(r.counter("propylon_key_process_restarts_total", restarts, &[])),
            is_over: Some(r.gauge("propylon_key_process_lost", is_over, &[])),
            ..SignerMetrics::new(r, BESIDE_NAME, &[BESIDE_SERVER.to_owned()])
        }
    }
}

impl SignerMetrics {
    /// For the dashboard: signatures by outcome, and what there is of each server, in the order of the configuration.
    pub fn glance(&self, store: &Store) -> (Value, Vec<Value>) {
        let counts = |names: &[&str], counters: &[Counter]| {
            let pairs =
                names.iter().zip(counters).map(|(name, counter)| ((*name).to_owned(), store.count(*counter).into()));
            Value::Object(pairs.collect())
        };
        let server = |server: &ServerMetrics| {
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

    /// For the main thread.
    pub fn add_lookups(&self, column: &Column, counts: [u64; 3]) {
        for (counter, count) in self.lookups.iter().zip(counts) {
            column.add(*counter, count);
        }
    }
}

impl ServerMetrics {
    fn new(r: &mut Registry, signer: &str, server: &str) -> ServerMetrics {
        let by = &[("signer", signer), ("server", server)];
        let outcome = |r: &mut Registry, outcome: &str| {
            let help = "Requests for signatures, by what became of them.";
            let labels = [("signer", signer), ("server", server), ("outcome", outcome)];
            r.counter("propylon_signer_requests_total", help, &labels)
        };
        ServerMetrics {
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

/// One core's.
pub struct Report {
    column: Column,
    metrics: Arc<SignerMetrics>,
    signer: String,
    /// As the user wrote them.
    servers: Vec<String>,
    throttle: Throttle,
    /// Cores learn the same at the same time; one of them tells it, the others at the level for debugging.
    speaks: bool,
    /// Milliseconds.
    now: u64,
}

/// How a line begins that tells of a server.
macro_rules! tell {
    ($self:ident, $level:ident, $($words:tt)+) => {
        if let Some(withheld) = $self.throttle.admit($self.now) {
            let level = if $self.speaks { log::Level::$level } else { log::Level::Debug };
            let others = if withheld > 0 { format!(" ({withheld} more were not logged)") } else { String::new() };
            log::log!(level, "signer \"{}\": {}{others}", $self.signer, format_args!($($words)+));
        }
    };
}

impl Report {
    pub fn new(column: Column, metrics: Arc<SignerMetrics>, signer: &str, servers: Vec<String>) -> Report {
        let speaks = column.index() == 0;
        Report { column, metrics, signer: signer.to_owned(), servers, throttle: Throttle::default(), speaks, now: 0 }
    }

    /// The process beside this one was started again; all cores learn it, and one counts.
    pub fn restarted(&self) {
        if let Some(restarts) = self.metrics.restarts.filter(|_| self.speaks) {
            self.column.increment(restarts);
        }
    }

    /// It will not be.
    pub fn over(&mut self, why: &str) {
        if let Some(is_over) = self.metrics.is_over {
            self.column.set(is_over, 1);
        }
        tell!(self, Error, "no key process will be there any more: {why}; restart, or upgrade, this one");
    }

    /// For the limit on lines.
    pub fn at(&mut self, millis: u64) {
        self.now = millis;
    }

    pub fn concluded(&self, outcome: &str) {
        if let Some(at) = CONCLUSIONS.iter().position(|known| *known == outcome) {
            self.column.increment(self.metrics.conclusions[at]);
        }
    }

    pub fn full(&self) {
        self.concluded("full");
    }

    pub fn retried(&self) {
        self.column.increment(self.metrics.retries);
    }

    pub fn hedged(&self) {
        self.column.increment(self.metrics.hedges);
    }

    pub fn unsent(&self, count: usize) {
        self.column.set(self.metrics.unsent, count as i64);
    }

    pub fn outstanding(&self, server: usize, change: i64) {
        let gauge = self.metrics.servers[server].outstanding;
        if change > 0 { self.column.raise(gauge) } else { self.column.lower(gauge) }
    }

    pub fn answered(&self, server: usize, outcome: &str) {
        if let Some(at) = OUTCOMES.iter().position(|known| *known == outcome) {
            self.column.increment(self.metrics.servers[server].outcomes[at]);
        }
    }

    pub fn duration(&self, server: usize, micros: u64) {
        self.column.observe(self.metrics.servers[server].duration, micros);
    }

    pub fn strays(&self, server: usize, count: u64) {
        self.column.add(self.metrics.servers[server].strays, count);
    }

    pub fn links(&self, server: usize, change: i64) {
        let gauge = self.metrics.servers[server].connections;
        if change > 0 { self.column.raise(gauge) } else { self.column.lower(gauge) }
    }

    pub fn server_up(&mut self, server: usize) {
        tell!(self, Info, "key server {} is connected", self.servers[server]);
    }

    pub fn server_down(&mut self, server: usize, why: &str) {
        tell!(self, Warn, "key server {} is no longer connected: {why}", self.servers[server]);
    }

    pub fn connect_failed(&mut self, server: usize, why: &str) {
        self.not_connected(server, self.metrics.servers[server].connect_failures, why);
    }

    /// No fault of the server's.
    pub fn unsigned(&mut self, server: usize, why: &str) {
        self.not_connected(server, self.metrics.servers[server].unsigned, why);
    }

    fn not_connected(&self, server: usize, counter: Counter, why: &str) {
        self.column.increment(counter);
        log::debug!("signer \"{}\": key server {}: no connection: {why}", self.signer, self.servers[server]);
    }

    /// The first failure after a server was connected, or ever; later ones are only counted.
    pub fn unreachable(&mut self, server: usize, why: &str) {
        tell!(self, Warn, "key server {} cannot be reached: {why}", self.servers[server]);
    }

    pub fn ejected(&mut self, server: usize) {
        let metrics = &self.metrics.servers[server];
        self.column.increment(metrics.ejections);
        self.column.raise(metrics.ejected);
        tell!(self, Info, "key server {} does not answer in time and is passed over", self.servers[server]);
    }

    pub fn readmitted(&mut self, server: usize) {
        self.column.lower(self.metrics.servers[server].ejected);
        tell!(self, Info, "key server {} answers in time again", self.servers[server]);
    }

    pub fn wrong(&mut self, server: usize) {
        tell!(self, Error, "key server {} has sent what is not a signature by the key", self.servers[server]);
    }

    pub fn refused(&mut self, server: usize, ski: &Ski, code: Option<ErrorCode>) {
        let mut key = String::new();
        for byte in ski {
            let _ = write!(key, "{byte:02x}");
        }
        let why = code.map_or_else(|| "unknown error".to_owned(), |code| code.to_string());
        let cure = "`propylon-keyserver keys` there lists the keys that it has";
        tell!(self, Warn, "key server {} does not sign with the key {key}: {why}; {cure}", self.servers[server]);
    }
}
