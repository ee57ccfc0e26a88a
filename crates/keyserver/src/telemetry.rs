//! Metrics of the key server: names, labels, and the ids by which a thread writes them.

use std::sync::Arc;
use std::time::Duration;

use propylon_crypto::Scheme;
use propylon_crypto::keyless::ErrorCode;
use propylon_metrics::{Counter, Gauge, Histogram, Registry, Store};

use crate::kernels::KernelMetrics;
use crate::task::ThreadKind;

/// Upper bounds of waits in queues, in microseconds: 50 µs to 5 s.
const WAIT_BOUNDS: &[u64] = &[
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000,
];

pub struct Telemetry {
    pub connections: Gauge,
    pub accepted: Counter,
    pub accept_errors: Counter,
    pub turned_away: Counter,
    pub handshaking: Gauge,
    pub handshakes: Counter,
    /// Connections that have ended, indexed by [`End`].
    pub ended: [Counter; 10],
    /// Requests, indexed by [`RequestKind`].
    pub requests: [Counter; 5],
    /// Requests denied, indexed by [`Denied`].
    pub denied: [Counter; 2],
    /// Error replies, indexed by error byte, from 1.
    pub errors: [Counter; 11],
    /// The queues' metrics, indexed by [`ThreadKind`].
    pub queues: [QueueMetrics; 2],
    /// The tokens' metrics, indexed by position of the `[[pkcs11]]` section.
    pub tokens: Vec<TokenMetrics>,
    pub kernels: KernelMetrics,
    pub stopped_reading: Counter,
    pub panics: Counter,
    pub log_lost: Counter,
    pub keys: Gauge,
    pub reloads: Counter,
    pub reload_faults: Counter,
    pub draining: Gauge,
}

pub struct QueueMetrics {
    pub waiting: Gauge,
    pub refused: Counter,
    /// Tasks that gave up their place to a client that had fewer in the queue.
    pub displaced: Counter,
    pub expired: Counter,
    pub wait: Histogram,
}

/// Metrics of a hardware module.
#[cfg_attr(not(feature = "pkcs11"), allow(dead_code, reason = "nobody writes them"))]
pub struct TokenMetrics {
    pub queue: QueueMetrics,
    /// Threads that are logged in.
    pub sessions: Gauge,
    /// Threads whose module has not come back in time.
    pub stuck: Gauge,
    /// Sessions that were not to be had.
    pub failures: Counter,
    pub duration: Histogram,
    /// Operations, indexed by [`TokenOutcome`].
    pub operations: [Counter; 5],
}

/// The outcome of an operation of a hardware module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "pkcs11"), allow(dead_code, reason = "nobody asks a module"))]
pub enum TokenOutcome {
    Signed,
    /// The module does not do that with this key.
    Refused,
    /// The key is gone.
    NoKey,
    /// No session was open, and no new one could be opened.
    Failed,
    /// The result came after the operation had been refused.
    Late,
}

/// The kind of operation that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    Rsa,
    Ecdsa,
    Ed25519,
    Ping,
    Other,
}

/// The reason why a client is denied an operation, though it may use the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The operation is none of those that its `[[client]]` allows.
    Operation,
    /// The client has asked more often than its `[[client]]` section allows.
    Rate,
}

/// The way in which a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The client closed it.
    Client,
    /// The client's certificate, or its TLS, was not acceptable.
    Handshake,
    HandshakeTimeout,
    /// No certificate had been shown when another connection needed the place.
    HandshakeDisplaced,
    Tls,
    Malformed,
    Idle,
    /// The client did not take its replies.
    Slow,
    Broken,
    Drained,
}

const ENDS: [(End, &str); 10] = [
    (End::Client, "client"),
    (End::Handshake, "handshake"),
    (End::HandshakeTimeout, "handshake-timeout"),
    (End::HandshakeDisplaced, "handshake-displaced"),
    (End::Tls, "tls"),
    (End::Malformed, "malformed"),
    (End::Idle, "idle"),
    (End::Slow, "slow"),
    (End::Broken, "broken"),
    (End::Drained, "drained"),
];

impl RequestKind {
    pub fn of(scheme: Scheme) -> RequestKind {
        match scheme {
            Scheme::RsaPkcs1(_) | Scheme::RsaPss(_) | Scheme::RsaRaw => RequestKind::Rsa,
            Scheme::Ecdsa(_) => RequestKind::Ecdsa,
            Scheme::Ed25519 => RequestKind::Ed25519,
        }
    }
}

impl Telemetry {
    /// Registered once for the life of the process, like the process's threads that write it.
    /// `tokens` are the names of the hardware modules.
    pub fn new(columns: usize, tokens: &[String]) -> (&'static Telemetry, Arc<Store>) {
        let mut registry = Registry::new();
        let telemetry = Telemetry::register(&mut registry, tokens);
        (Box::leak(Box::new(telemetry)), registry.build(columns))
    }

    fn register(registry: &mut Registry, tokens: &[String]) -> Telemetry {
        let (ended, requests) = (ended_counters(registry), request_counters(registry));
        let (denied, errors) = (denied_counters(registry), error_counters(registry));
        let counter = |registry: &mut Registry, name: &str, help: &str| registry.counter(name, help, &[]);
        let gauge = |registry: &mut Registry, name: &str, help: &str| registry.gauge(name, help, &[]);
        Telemetry {
            connections: gauge(registry, "propylon_keyserver_connections", "Connections open."),
            accepted: counter(registry, "propylon_keyserver_connections_total", "Connections accepted."),
            accept_errors: counter(registry, "propylon_keyserver_accept_errors_total", "Accepts that failed."),
            turned_away: counter(
                registry,
                "propylon_keyserver_connections_refused_total",
                "Connections closed because there were too many.",
            ),
            handshaking: gauge(
                registry,
                "propylon_keyserver_handshaking",
                "Connections that have not shown a certificate yet.",
            ),
            handshakes: counter(registry, "propylon_keyserver_handshakes_total", "TLS handshakes finished."),
            ended,
            requests,
            denied,
            errors,
            queues: ThreadKind::ALL.map(|kind| QueueMetrics::register(registry, kind.name())),
            tokens: tokens.iter().map(|token| TokenMetrics::register(registry, token)).collect(),
            kernels: KernelMetrics::register(registry),
            stopped_reading: counter(
                registry,
                "propylon_keyserver_read_stops_total",
                "Times that a connection was not read from because its client did not take its replies, or had as many \
                 requests in work as it may.",
            ),
            panics: counter(registry, "propylon_keyserver_panics_total", "Connections that a bug of ours has ended."),
            log_lost: counter(
                registry,
                "propylon_keyserver_log_lost_total",
                "Lines on standard error lost because nobody took them.",
            ),
            keys: gauge(registry, "propylon_keyserver_keys", "Private keys served."),
            reloads: counter(
                registry,
                "propylon_keyserver_key_reloads_total",
                "Times that changed key files were taken over.",
            ),
            reload_faults: counter(
                registry,
                "propylon_keyserver_key_faults_total",
                "Key files, or certificates, that could not be read.",
            ),
            draining: gauge(registry, "propylon_keyserver_draining", "1 while finishing what is in progress."),
        }
    }
}

/// Counters of requests, in the order of [`RequestKind`].
fn request_counters(registry: &mut Registry) -> [Counter; 5] {
    ["rsa", "ecdsa", "ed25519", "ping", "other"].map(|operation| {
        let help = "Requests decoded, by what they ask for.";
        registry.counter("propylon_keyserver_requests_total", help, &[("operation", operation)])
    })
}

/// Counters of error replies, by error byte, from 1.
fn error_counters(registry: &mut Registry) -> [Counter; 11] {
    ErrorCode::ALL.map(|code| {
        let help = "Error replies, by the byte in them.";
        let byte = format!("0x{:02x}", code as u8);
        registry.counter("propylon_keyserver_errors_total", help, &[("code", &byte), ("meaning", &code.to_string())])
    })
}

/// Counters of denied requests, in the order of [`Denied`].
fn denied_counters(registry: &mut Registry) -> [Counter; 2] {
    ["operation", "rate"].map(|reason| {
        let help = "Operations that clients may not ask for, by reason: not this one, or not as often.";
        registry.counter("propylon_keyserver_denied_total", help, &[("reason", reason)])
    })
}

/// Counters of ended connections, in the order of [`End`].
fn ended_counters(registry: &mut Registry) -> [Counter; 10] {
    ENDS.map(|(_, reason)| {
        let help = "Connections ended, by reason.";
        registry.counter("propylon_keyserver_connections_ended_total", help, &[("reason", reason)])
    })
}

impl QueueMetrics {
    pub fn register(registry: &mut Registry, queue: &str) -> QueueMetrics {
        let labels = [("queue", queue)];
        let refused_help = "Operations refused, by reason: the queue was full, or full and a client with fewer needed the \
            place, or their time was up before their turn.";
        let mut refused = |reason| {
            let labels = [("queue", queue), ("reason", reason)];
            registry.counter("propylon_keyserver_refused_total", refused_help, &labels)
        };
        let (full, displaced, expired) = (refused("full"), refused("displaced"), refused("expired"));
        QueueMetrics {
            waiting: registry.gauge("propylon_keyserver_waiting", "Operations that wait for a thread.", &labels),
            refused: full,
            displaced,
            expired,
            wait: registry.histogram(
                "propylon_keyserver_wait_seconds",
                "How long operations waited for a thread.",
                &labels,
                WAIT_BOUNDS,
                1e-6,
            ),
        }
    }
}

impl TokenMetrics {
    fn register(registry: &mut Registry, token: &str) -> TokenMetrics {
        let labels = [("token", token)];
        let operations = ["signed", "refused", "no-key", "failed", "late"].map(|outcome| {
            let help = "Operations that a hardware module was asked for, by what came of it.";
            registry.counter(
                "propylon_keyserver_token_operations_total",
                help,
                &[("token", token), ("outcome", outcome)],
            )
        });
        let gauge = |registry: &mut Registry, what: &str, help: &str| registry.gauge(what, help, &labels);
        TokenMetrics {
            queue: QueueMetrics::register(registry, &format!("pkcs11:{token}")),
            sessions: gauge(
                registry,
                "propylon_keyserver_token_sessions",
                "Threads that are logged in to a hardware module.",
            ),
            stuck: gauge(
                registry,
                "propylon_keyserver_token_stuck",
                "Threads whose hardware module has not come back in time.",
            ),
            failures: registry.counter(
                "propylon_keyserver_token_failures_total",
                "Sessions that were not to be had.",
                &labels,
            ),
            duration: registry.histogram(
                "propylon_keyserver_token_duration_seconds",
                "How long a hardware module took for an operation, getting a session included.",
                &labels,
                WAIT_BOUNDS,
                1e-6,
            ),
            operations,
        }
    }
}

pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
