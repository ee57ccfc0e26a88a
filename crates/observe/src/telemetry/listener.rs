//! Metrics of a listener: its clients' connections, handshakes, requests and relayed connections.

use propylon_http::discarded::Discarded;
use propylon_http::fault::Family;
use propylon_http::proxy_protocol::Malformed;
use propylon_metrics::{Account, AccountFamilies, Column, Counter, Gauge, Histogram, Registry};
use propylon_tls::{Resumption, SessionIdUse, TicketRefusal};

use super::by_reason::{ByFault, ByReason, HandshakeFailures};
use super::overload::LimitedBy;
use super::reasons::{HTTP2_ERRORS, HTTP2_FLOODS, RELAY_FAULTS};
use super::waits::{DURATION_BOUNDS, WAITS};

/// A peer that is not one of the proxies that a listener believes; it is reset before it has said anything.
pub const UNTRUSTED_PEER: &str = "untrusted-peer";

pub struct ListenerMetrics {
    pub accepted: Counter,
    pub open: Gauge,
    /// Sockets at which workers do not accept since they may have no more connections; by `LimitedBy`.
    pub paused: [Gauge; 2],
    pub in_progress: Gauge,
    /// Requests; those without a response are in no class that is shown.
    pub account: Account,
    pub rejected: ByFault,
    pub unidentified: ByFault,
    pub faults: ByFault,
    pub timeouts: Vec<Counter>,
    pub handshakes: Handshakes,
    pub handshake_failures: HandshakeFailures,
    pub handshake_duration: Histogram,
    pub resumption: ResumptionMetrics,
    pub tunnels: Counter,
    /// Bodies that were thrown away behind early answers, by how that has ended.
    pub discarded: [Counter; Discarded::NAMES.len()],
    pub http2: Http2Metrics,
}

impl ListenerMetrics {
    /// Responses by class of status: index 0 is 1xx.
    pub fn responses(&self) -> [Counter; 5] {
        let [one, two, three, four, five, _] = self.account.classes;
        [one, two, three, four, five]
    }
}

pub(super) fn listener_metrics(r: &mut Registry, name: &str) -> ListenerMetrics {
    let label = ("listener", name);
    let by = &[label];
    let families = AccountFamilies {
        classes: ("propylon_responses_total", "Responses sent to clients, by class of status."),
        received: ("propylon_received_bytes_total", "Request bytes (heads and bodies), decrypted."),
        sent: ("propylon_sent_bytes_total", "Response bytes (heads and bodies), before encryption."),
        duration: ("propylon_request_duration_seconds", "From a request's first byte to its response's last."),
    };
    ListenerMetrics {
        account: r.account(&families, by, &["1xx", "2xx", "3xx", "4xx", "5xx"], DURATION_BOUNDS),
        accepted: r.counter("propylon_connections_total", "Client connections accepted.", by),
        open: r.gauge("propylon_connections", "Client connections open.", by),
        paused: LimitedBy::ALL.map(|by| {
            r.gauge(
                "propylon_listener_paused",
                "Sockets at which nothing is accepted, since as many connections are open as `reason` allows.",
                &[label, ("reason", by.name())],
            )
        }),
        in_progress: r.gauge("propylon_requests_in_progress", "Requests between their head and their end.", by),
        rejected: ByFault::new(
            r,
            ("propylon_requests_rejected_total", "Requests refused as malformed or over a limit."),
            label,
            |fault| fault.family() == Family::Head,
        ),
        unidentified: unidentified(r, name),
        faults: ByFault::new(
            r,
            ("propylon_client_faults_total", "Requests cut short on the client's side."),
            label,
            |fault| fault.family() == Family::Client,
        ),
        timeouts: WAITS
            .iter()
            .map(|(_, wait)| {
                let labels = [label, ("wait", *wait)];
                r.counter("propylon_timeouts_total", "Waits that met their limit.", &labels)
            })
            .collect(),
        handshakes: Handshakes::new(r, name),
        handshake_failures: HandshakeFailures::new(
            r,
            ("propylon_tls_handshake_failures_total", "TLS handshakes that failed."),
            label,
        ),
        handshake_duration: r.histogram(
            "propylon_tls_handshake_duration_seconds",
            "From the first step of the handshake to its end.",
            by,
            DURATION_BOUNDS,
            1e-6,
        ),
        resumption: ResumptionMetrics::new(r, name),
        tunnels: r.counter("propylon_tunnels_total", "Connections upgraded to a tunnel.", by),
        discarded: discarded(r, name),
        http2: Http2Metrics::new(r, name),
    }
}

fn discarded(r: &mut Registry, name: &str) -> [Counter; Discarded::NAMES.len()] {
    let help = "What clients went on sending behind the last answer and was thrown away, by how that has ended.";
    let of = |result| r.counter("propylon_discarded_bodies_total", help, &[("listener", name), ("result", result)]);
    Discarded::NAMES.map(of)
}

fn unidentified(r: &mut Registry, name: &str) -> ByFault {
    let help = "Requests refused for want of a proof of whom they are from.";
    let of_identity = |fault: propylon_http::fault::Fault| fault.family() == Family::Identity;
    ByFault::new(r, ("propylon_identity_refused_total", help), ("listener", name), of_identity)
}

pub(super) fn proxy_refused(r: &mut Registry, name: &str) -> ByReason {
    let help = "Connections closed for want of a good header of the PROXY protocol.";
    let reasons = [Malformed::REASONS, &["closed", "timeout", UNTRUSTED_PEER]].concat();
    ByReason::new(r, "propylon_proxy_protocol_refused_total", help, ("listener", name), &reasons)
}

/// HTTP/2 with clients.
pub struct Http2Metrics {
    pub connections: Counter,
    pub open: Gauge,
    pub streams_begun: Counter,
    pub streams: Gauge,
    pub floods: ByReason,
    pub reads_paused: Counter,
    pub paused: Gauge,
    pub errors: ByReason,
}

impl Http2Metrics {
    pub(super) fn new(r: &mut Registry, listener: &str) -> Http2Metrics {
        let label = ("listener", listener);
        let by = &[label];
        Http2Metrics {
            connections: r.counter("propylon_http2_connections_total", "Client connections that spoke HTTP/2.", by),
            open: r.gauge("propylon_http2_connections", "Client connections open that speak HTTP/2.", by),
            streams_begun: r.counter("propylon_http2_streams_total", "Streams that clients began.", by),
            streams: r.gauge("propylon_http2_streams", "Streams of clients that are served.", by),
            paused: r.gauge(
                "propylon_http2_connections_paused",
                "Client connections that are not read until servers have taken more of what they have sent of bodies.",
                by,
            ),
            reads_paused: r.counter(
                "propylon_http2_reads_paused_total",
                "Times that a connection was not read any more until servers had taken what it had sent of bodies.",
                by,
            ),
            floods: ByReason::new(
                r,
                "propylon_http2_floods_total",
                "Client connections ended (or, for streams, streams refused) because there was too much of something.",
                label,
                HTTP2_FLOODS,
            ),
            errors: ByReason::new(
                r,
                "propylon_http2_errors_total",
                "Client connections ended because the client broke the protocol.",
                label,
                HTTP2_ERRORS,
            ),
        }
    }
}

/// Finished handshakes by what was negotiated.
pub struct Handshakes {
    full: Vec<(&'static str, &'static str, Counter)>,
    resumed: Vec<(&'static str, Counter)>,
}

impl Handshakes {
    pub(super) fn new(registry: &mut Registry, listener: &str) -> Handshakes {
        let help =
            "TLS handshakes finished, by version, type of the certificate shown and whether a session was resumed.";
        let mut slot = |version: &str, certificate: &str, resumed: &str| {
            let labels =
                [("listener", listener), ("version", version), ("certificate", certificate), ("resumed", resumed)];
            registry.counter("propylon_tls_handshakes_total", help, &labels)
        };
        let mut full = Vec::new();
        let mut resumed = Vec::new();
        for version in ["TLSv1.2", "TLSv1.3"] {
            for certificate in ["ecdsa", "ed25519", "rsa"] {
                full.push((version, certificate, slot(version, certificate, "false")));
            }
            resumed.push((version, slot(version, "none", "true")));
        }
        Handshakes { full, resumed }
    }

    /// Counters with version and certificate type; resumed sessions have the type "resumed".
    pub fn each(&self) -> impl Iterator<Item = (&'static str, &'static str, Counter)> {
        let resumed = self.resumed.iter().map(|(version, counter)| (*version, "resumed", *counter));
        self.full.iter().copied().chain(resumed)
    }

    pub fn of(&self, version: &str, certificate: Option<&str>, resumed: bool) -> Option<Counter> {
        if resumed {
            return self.resumed.iter().find(|(v, _)| *v == version).map(|(_, counter)| *counter);
        }
        let certificate = certificate?;
        self.full.iter().find(|(v, c, _)| *v == version && *c == certificate).map(|(_, _, counter)| *counter)
    }
}

/// Results of session tickets and session IDs.
pub struct ResumptionMetrics {
    pub issued: Counter,
    /// Tickets not accepted, in the order of `TicketRefusal::ALL`.
    refused: [Counter; 3],
    /// Uses of session IDs, in the order of `SessionIdUse::ALL`.
    session_ids: [Counter; 3],
}

impl ResumptionMetrics {
    pub(super) fn new(r: &mut Registry, listener: &str) -> ResumptionMetrics {
        let label = ("listener", listener);
        ResumptionMetrics {
            issued: r.counter("propylon_tls_tickets_issued_total", "Session tickets given to clients.", &[label]),
            refused: TicketRefusal::ALL.map(|why| {
                let help = "TLS handshakes whose session ticket was of no use.";
                r.counter("propylon_tls_tickets_refused_total", help, &[label, ("reason", why.name())])
            }),
            session_ids: SessionIdUse::ALL.map(|what| {
                let help = "TLS 1.2 handshakes by what a session ID did in them: kept for later, found, missed.";
                r.counter("propylon_tls_session_ids_total", help, &[label, ("outcome", what.name())])
            }),
        }
    }

    /// Counts one handshake.
    pub fn count(&self, column: &Column, resumption: &Resumption) {
        column.add(self.issued, resumption.issued.into());
        if let Some(why) = resumption.refused {
            column.increment(self.refused[why as usize]);
        }
        if let Some(what) = resumption.session_id {
            column.increment(self.session_ids[what as usize]);
        }
    }
}

/// Metrics of connections whose bytes are relayed.
pub struct RelayMetrics {
    /// Ends in order.
    pub closed: Counter,
    pub failed: ByFault,
    pub duration: Histogram,
}

/// Upper bounds for whole connections, in milliseconds: 1 ms to a day.
const RELAY_BOUNDS: &[u64] =
    &[1, 5, 10, 50, 100, 500, 1_000, 5_000, 10_000, 60_000, 300_000, 1_800_000, 3_600_000, 14_400_000, 86_400_000];

pub(super) fn relay_metrics(r: &mut Registry, listener: &str) -> RelayMetrics {
    let label = ("listener", listener);
    let (name, help) = ("propylon_relays_total", "Relayed connections, by how they ended.");
    RelayMetrics {
        closed: r.counter(name, help, &[label, ("reason", "closed")]),
        failed: ByFault::new(r, (name, help), label, |fault| RELAY_FAULTS.contains(&fault)),
        duration: r.histogram(
            "propylon_relay_duration_seconds",
            "Relayed connections, from their accept to their end.",
            &[label],
            RELAY_BOUNDS,
            1e-3,
        ),
    }
}
