//! Every number that the engine keeps: names, labels, and the ids by which a core writes them.
//!
//! Everything a configuration names is registered before that configuration is published, so that the request path only
//! adds to a slot. Places are those of the configuration, and mean the same in each that follows.

mod acme;
mod batches;
mod ledger;
mod overload;
mod reasons;
mod server_health;
mod signers;
mod traces;
mod upgrades;

use std::sync::{Arc, Mutex, OnceLock};

use propylon_config::Config;
use propylon_crypto::JobKind;
use propylon_metrics::{Column, Counter, Gauge, Growing, Histogram, Registry, Store};
use propylon_policy::admission::Refusal;
use propylon_tls::{IdUse, Resumption, Unopened};

pub use acme::AcmeMetrics;
pub use batches::BatchMetrics;
use ledger::{BackendEntries, Entry, Ledger, ListenerEntries, SignerEntry, register_servers};
pub use overload::{LimitedBy, Reason, ShortageMetrics};
use propylon_http::fault::{Family, Fault};
use propylon_http::proxy_protocol::Malformed;
use propylon_net::budget::BudgetMetrics;
pub use reasons::*;
pub use server_health::ServerHealthMetrics;
use server_health::{probe_metrics, server_health_metrics};
pub use signers::{BESIDE_NAME, BESIDE_SERVER, CONCLUSIONS, LOOKUPS, OUTCOMES, SignerMetrics};
pub use traces::{ExportCounts, TraceMetrics};
use upgrades::UpgradeMetrics;

/// Upper bounds of the duration histograms, in microseconds: 100 µs to 60 s.
pub const DURATION_BOUNDS: &[u64] = &[
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000, 30_000_000, 60_000_000,
];

/// A limit on waiting that was met. The order is that of the label values in `WAITS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Handshake,
    RequestHead,
    RequestBody,
    ResponseBody,
    Idle,
    TunnelIdle,
    Connect,
    FirstByte,
    ServerBody,
}

pub const WAITS: &[(Wait, &str)] = &[
    (Wait::Handshake, "handshake"),
    (Wait::RequestHead, "request-head"),
    (Wait::RequestBody, "request-body"),
    (Wait::ResponseBody, "response-body"),
    (Wait::Idle, "idle"),
    (Wait::TunnelIdle, "tunnel-idle"),
    (Wait::Connect, "connect"),
    (Wait::FirstByte, "first-byte"),
    (Wait::ServerBody, "server-body"),
];

impl Wait {
    pub fn name(self) -> &'static str {
        WAITS[self as usize].1
    }
}

/// A counter per reason, where the reasons are a list known at start; what is not on it counts as "other".
pub struct ByReason {
    slots: Vec<(&'static str, Counter)>,
    other: Counter,
}

impl ByReason {
    fn new(registry: &mut Registry, name: &str, help: &str, label: (&str, &str), reasons: &[&'static str]) -> ByReason {
        let mut slot = |reason: &str| registry.counter(name, help, &[label, ("reason", reason)]);
        let slots = reasons.iter().map(|reason| (*reason, slot(reason))).collect();
        ByReason { slots, other: slot("other") }
    }

    pub fn each(&self) -> impl Iterator<Item = (&'static str, Counter)> {
        self.slots.iter().copied().chain([("other", self.other)])
    }

    pub fn of(&self, reason: &str) -> Counter {
        self.slots.iter().find(|(known, _)| *known == reason).map_or(self.other, |(_, counter)| *counter)
    }
}

/// A counter for each fault of a set; any other counts as "other".
pub struct ByFault {
    /// Counters at the places of the faults' discriminants.
    counters: Vec<Counter>,
    other: Counter,
}

impl ByFault {
    fn new(
        registry: &mut Registry,
        (name, help): (&str, &str),
        label: (&str, &str),
        is_member: impl Fn(Fault) -> bool,
    ) -> ByFault {
        let mut slot = |reason: &str| registry.counter(name, help, &[label, ("reason", reason)]);
        let other = slot("other");
        let each = |fault: &Fault| if is_member(*fault) { slot(fault.label()) } else { other };
        ByFault { counters: Fault::ALL.iter().map(each).collect(), other }
    }

    pub fn each(&self) -> impl Iterator<Item = (&'static str, Counter)> {
        let all = Fault::ALL.iter().map(|fault| fault.label()).zip(self.counters.iter().copied());
        all.filter(|(_, counter)| *counter != self.other).chain([("other", self.other)])
    }

    pub fn of(&self, fault: Fault) -> Counter {
        self.counters[fault as usize]
    }
}

pub struct Telemetry {
    /// Metrics by a listener's place; `backends` are by place likewise.
    pub listeners: Growing<ListenerMetrics>,
    pub backends: Growing<BackendMetrics>,
    pub process: ProcessMetrics,
    pub parking: ParkingMetrics,
    pub relay: PipeMetrics,
    pub batches: BatchMetrics,
    /// Metrics by a signer's place; a place's metrics are its present owner's.
    pub signers: Mutex<Vec<Arc<SignerMetrics>>>,
    /// Metrics of the key process, if there is one.
    pub key_process: Option<Arc<SignerMetrics>>,
    pub gate: GateMetrics,
    pub overload: ShortageMetrics,
    pub traces: TraceMetrics,
    pub acme: AcmeMetrics,
    pub upgrades: UpgradeMetrics,
    ledger: Mutex<Ledger>,
}

/// Metrics of pipes that relays splice through.
pub struct PipeMetrics {
    pub open: Gauge,
    pub refused: Counter,
}

/// Metrics of connections whose bytes are relayed.
pub struct RelayMetrics {
    /// Ends in order.
    pub closed: Counter,
    pub failed: ByFault,
    pub duration: Histogram,
}

/// Metrics of handshakes that wait for their turn, and of those that are refused.
pub struct GateMetrics {
    pub in_progress: Gauge,
    pub queued: Gauge,
    pub wait: Histogram,
    pub refused: RefusedHandshakes,
}

/// Refused handshakes by reason.
pub struct RefusedHandshakes {
    queue: Counter,
    core: Counter,
    source: Counter,
}

impl RefusedHandshakes {
    pub fn of(&self, refusal: Refusal) -> Counter {
        match refusal {
            Refusal::Queue => self.queue,
            Refusal::Core => self.core,
            Refusal::Source => self.source,
        }
    }
}

/// Metrics of handshakes that are set aside while their private-key work is done.
pub struct ParkingMetrics {
    pub parked: Gauge,
    pub stacks: Gauge,
    /// Greatest stack use in bytes, of the whole process: in the first column alone.
    pub stack_high_water: Gauge,
    /// Handshakes set aside, in the order of `JobKind::ALL`.
    pub parked_total: Vec<Counter>,
    pub done_on_the_spot: Counter,
    pub refused: Counter,
    pub cancelled: Counter,
}

pub struct ProcessMetrics {
    pub accept_errors: Counter,
    pub accept_pauses: Counter,
    pub access_log_dropped: Counter,
    pub access_log_failed: Counter,
    pub access_log_lost: Counter,
    pub access_log_reopens: Counter,
    pub log_lost: Counter,
    pub replaced_files: Gauge,
    pub unusable_store: Gauge,
    pub panics: Counter,
    pub certificate_reloads: CertificateReloads,
    pub certificate_reload_errors: Counter,
    pub unusable_files: Gauge,
    pub ready_certificates: ReadyMetrics,
    pub ticket_key_changes: Counter,
    pub ticket_key_errors: Counter,
    pub draining: Gauge,
    pub reloads: ReloadMetrics,
    /// Ticks of the workers' clocks.
    pub ticks: Counter,
    pub budgets: BudgetMetrics,
    pub unread: Gauge,
    pub widened: Gauge,
    pub granted: Gauge,
    pub untaken: Gauge,
}

/// Metrics of reloads and of the configurations in use.
pub struct ReloadMetrics {
    pub generation: Gauge,
    pub applied: Counter,
    pub unchanged: Counter,
    pub failed: Counter,
    /// Time of the last reload in seconds since 1970.
    pub last: Gauge,
    pub last_failed: Gauge,
    pub old: Gauge,
    pub oldest_age: Gauge,
    /// Counts of places in the order of `PLACES`.
    pub places: [Gauge; 4],
    /// Refused changes in the order of `ADMIN_REFUSALS`.
    refused: Vec<Counter>,
}

/// Objects that have places in a configuration.
pub const PLACES: [&str; 4] = ["listener", "backend", "server", "signer"];

/// Reasons for which the admin API refuses a change.
pub const ADMIN_REFUSALS: &[&str] = &["no-token", "wrong-token", "read-only", "cross-site"];

impl ReloadMetrics {
    fn new(r: &mut Registry) -> ReloadMetrics {
        let mut result = |result: &str| {
            let help = "Configurations that were to be applied, by what became of them.";
            r.counter("propylon_config_reloads_total", help, &[("result", result)])
        };
        let (applied, unchanged, failed) = (result("applied"), result("unchanged"), result("failed"));
        ReloadMetrics {
            applied,
            unchanged,
            failed,
            places: PLACES.map(|kind| {
                let help =
                    "Places of the configuration in effect, those that are kept for earlier ones or free among them.";
                r.gauge("propylon_config_places", help, &[("kind", kind)])
            }),
            generation: r.gauge("propylon_config_generation", "Number of the configuration in effect.", &[]),
            last: r.gauge(
                "propylon_config_last_reload_timestamp_seconds",
                "When a configuration was last to be applied, in seconds since 1970.",
                &[],
            ),
            last_failed: r.gauge(
                "propylon_config_last_reload_failed",
                "1 if the configuration's file was refused when it was read last; what the admin API was asked for does not count.",
                &[],
            ),
            old: r.gauge(
                "propylon_config_old_snapshots",
                "Earlier configurations that some request is still served by.",
                &[],
            ),
            oldest_age: r.gauge(
                "propylon_config_oldest_snapshot_age_seconds",
                "Seconds since the oldest of those was succeeded.",
                &[],
            ),
            refused: ADMIN_REFUSALS
                .iter()
                .map(|reason| {
                    let help = "Changes by the admin API that were refused before they were looked at.";
                    r.counter("propylon_admin_refused_total", help, &[("reason", reason)])
                })
                .collect(),
        }
    }

    /// The counter of a reason; `None` if the reason is not in the list.
    pub fn refused(&self, reason: &str) -> Option<Counter> {
        let place = ADMIN_REFUSALS.iter().position(|known| *known == reason)?;
        Some(self.refused[place])
    }
}

/// Certificates and signing keys in the form in which handshakes use them.
pub struct ReadyMetrics {
    pub kept: Gauge,
    pub made: Counter,
    pub evicted: Counter,
}

impl ReadyMetrics {
    fn new(r: &mut Registry) -> ReadyMetrics {
        ReadyMetrics {
            kept: r.gauge(
                "propylon_tls_certificates_ready",
                "Certificates with their signing keys that cores keep ready for handshakes.",
                &[],
            ),
            made: r.counter(
                "propylon_tls_certificates_made_ready_total",
                "Times that a core made a certificate ready, because a handshake was the first to need it.",
                &[],
            ),
            evicted: r.counter(
                "propylon_tls_certificates_evicted_total",
                "Certificates that a core no longer keeps ready, to make room for others.",
                &[],
            ),
        }
    }
}

pub struct CertificateReloads {
    pub success: Counter,
    pub failure: Counter,
}

impl CertificateReloads {
    fn new(r: &mut Registry) -> CertificateReloads {
        let mut slot = |result: &str| {
            let help = "Times that certificates were read again: by SIGHUP, by the admin API or because their files had changed.";
            r.counter("propylon_certificate_reloads_total", help, &[("result", result)])
        };
        CertificateReloads { success: slot("success"), failure: slot("failure") }
    }
}

pub struct ListenerMetrics {
    pub accepted: Counter,
    pub open: Gauge,
    /// Sockets at which workers do not accept since they may have no more connections; by `LimitedBy`.
    pub paused: [Gauge; 2],
    pub in_progress: Gauge,
    pub bytes_received: Counter,
    pub bytes_sent: Counter,
    /// Responses by class of status: index 0 is 1xx.
    pub responses: [Counter; 5],
    pub duration: Histogram,
    pub rejected: ByFault,
    pub faults: ByFault,
    pub timeouts: Vec<Counter>,
    pub handshakes: Handshakes,
    pub handshake_failures: ByReason,
    pub handshake_duration: Histogram,
    pub resumption: ResumptionMetrics,
    pub tunnels: Counter,
    pub http2: Http2Metrics,
    /// Metrics of relayed connections, on listeners that relay.
    pub relay: OnceLock<RelayMetrics>,
    /// Refused PROXY headers by reason, on listeners that read the PROXY protocol.
    pub proxy_refused: OnceLock<ByReason>,
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
    fn new(r: &mut Registry, listener: &str) -> Http2Metrics {
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
    fn new(registry: &mut Registry, listener: &str) -> Handshakes {
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
    /// Tickets not accepted, in the order of `Unopened::ALL`.
    refused: [Counter; 3],
    /// Uses of session IDs, in the order of `IdUse::ALL`.
    session_ids: [Counter; 3],
}

impl ResumptionMetrics {
    fn new(r: &mut Registry, listener: &str) -> ResumptionMetrics {
        let label = ("listener", listener);
        ResumptionMetrics {
            issued: r.counter("propylon_tls_tickets_issued_total", "Session tickets given to clients.", &[label]),
            refused: Unopened::ALL.map(|why| {
                let help = "TLS handshakes whose session ticket was of no use.";
                r.counter("propylon_tls_tickets_refused_total", help, &[label, ("reason", why.name())])
            }),
            session_ids: IdUse::ALL.map(|what| {
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

pub struct BackendMetrics {
    /// Metrics by a server's place.
    pub servers: Growing<ServerMetrics>,
    pub retries: Counter,
    pub retries_refused: Counter,
    pub stale_retries: Counter,
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
    /// Picks of a server that is not an ordinary one which is up.
    pub unusual_picks: ByReason,
    /// Outcomes of session cookies; unset if the backend has no `sticky`.
    pub sticky: OnceLock<ByReason>,
    pub faults: ByFault,
    pub connect_duration: Histogram,
    /// Metrics of TLS with servers; unset if servers are reached in plaintext.
    pub tls: OnceLock<ServerTlsMetrics>,
    pub first_byte_duration: Histogram,
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

#[derive(Clone)]
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
    pub health: Arc<ServerHealthMetrics>,
}

impl Telemetry {
    /// Registers everything for `config`; `columns` writers will be needed.
    pub fn new(config: &Config, columns: usize) -> (Telemetry, Arc<Store>) {
        let mut registry = Registry::new();
        let r = &mut registry;
        let version = env!("CARGO_PKG_VERSION");
        let info = r.gauge("propylon_build_info", "Always 1; the version is the label.", &[("version", version)]);
        let mut ledger = Ledger::default();
        let listeners = config.listeners.iter().map(|listener| {
            let (metrics, group) = r.group(|r| listener_metrics(r, &listener.name));
            let mut entries = ListenerEntries { all: Entry::new(&listener.name, group), relay: None, proxied: None };
            entries.register_more(r, listener, &metrics);
            ledger.listeners.push(entries);
            metrics
        });
        let listeners = listeners.collect();
        let backends = config.backends.iter().map(|backend| {
            let (metrics, group) = r.group(|r| backend_metrics(r, &backend.name));
            let mut entries = Vec::new();
            let servers = register_servers(r, backend, &metrics, &mut entries);
            let mut all = BackendEntries { all: Entry::new(&backend.name, group), tls: None, sticky: None };
            all.register_more(r, backend, &metrics);
            ledger.backends.push((all, entries));
            BackendMetrics { servers: servers.into_iter().collect(), ..metrics }
        });
        let backends = backends.collect();
        let process = process_metrics(r);
        let parking = parking_metrics(r);
        let relay = PipeMetrics {
            open: r.gauge("propylon_relay_pipes", "Pipes open for relays to splice through; two files each.", &[]),
            refused: r.counter(
                "propylon_relay_pipes_refused_total",
                "Times that a relay went on copying because no pipe was to be had.",
                &[],
            ),
        };
        let batches = BatchMetrics::new(r);
        let signers = config.signers.iter().map(|signer| {
            let (metrics, group) = r.group(|r| signer_metrics(r, signer));
            let metrics = Arc::new(metrics);
            ledger.signers.push(SignerEntry::new(signer, group, &metrics));
            metrics
        });
        let signers = Mutex::new(signers.collect());
        let key_process = config.keys.isolate.map(|_| Arc::new(SignerMetrics::of_key_process(r)));
        let gate = gate_metrics(r);
        let overload = ShortageMetrics::new(r);
        let traces = TraceMetrics::new(r);
        let acme = AcmeMetrics::new(r);
        let upgrades = UpgradeMetrics::new(r);
        let store = registry.build(columns);
        Store::column(&store, 0).set(info, 1);
        let ledger = Mutex::new(ledger);
        let telemetry = Telemetry {
            listeners,
            backends,
            process,
            parking,
            relay,
            batches,
            signers,
            key_process,
            gate,
            overload,
            traces,
            acme,
            upgrades,
            ledger,
        };
        (telemetry, store)
    }

    /// Client connections and requests in progress.
    pub fn open(&self, store: &Store) -> (u64, u64) {
        let sum = |gauge: fn(&ListenerMetrics) -> Gauge| {
            self.listeners.iter().map(|listener| store.level(gauge(listener))).sum::<i64>().max(0) as u64
        };
        (sum(|listener| listener.open), sum(|listener| listener.in_progress))
    }
}

fn process_metrics(r: &mut Registry) -> ProcessMetrics {
    ProcessMetrics {
        certificate_reloads: CertificateReloads::new(r),
        certificate_reload_errors: r.counter(
            "propylon_certificate_reload_errors_total",
            "Errors found in certificates that were read again; what was there before stayed in use.",
            &[],
        ),
        unusable_files: r.gauge(
            "propylon_certificate_unusable_files",
            "Files of certificates, keys or authorities that could not be used when they were last read.",
            &[],
        ),
        ready_certificates: ReadyMetrics::new(r),
        accept_errors: r.counter("propylon_accept_errors_total", "Accepts that failed (out of files, for one).", &[]),
        accept_pauses: r.counter(
            "propylon_accept_pauses_total",
            "Times that a worker stopped accepting because it held its share of process.max_connections.",
            &[],
        ),
        access_log_dropped: r.counter(
            "propylon_access_log_dropped_total",
            "Access log lines dropped because the log's reader was too slow.",
            &[],
        ),
        access_log_failed: r.counter("propylon_access_log_write_errors_total", "Failed writes of the access log.", &[]),
        log_lost: r.counter("propylon_log_lost_total", "Lines on standard error lost because nobody took them.", &[]),
        access_log_lost: r.counter(
            "propylon_access_log_lost_total",
            "Access log lines lost because they could not be written.",
            &[],
        ),
        access_log_reopens: r.counter(
            "propylon_access_log_reopen_errors_total",
            "Attempts to open the access log anew, after it was moved away, that failed.",
            &[],
        ),
        unusable_store: r.gauge(
            "propylon_key_store_unusable",
            "1 while the key process can keep nothing new in keys.store.",
            &[],
        ),
        replaced_files: r.gauge(
            "propylon_sandbox_replaced_files",
            "Files of the system for look-ups of names that were replaced, and that the sandbox keeps the process from.",
            &[],
        ),
        panics: r.counter("propylon_panics_total", "Panics, most of which end one connection: defects in Propylon.", &[]),
        ticket_key_changes: r.counter(
            "propylon_tls_ticket_key_changes_total",
            "Times that keys of session tickets came or went.",
            &[],
        ),
        ticket_key_errors: r.counter(
            "propylon_tls_ticket_key_errors_total",
            "Files of ticket keys that could not be read, or not be rotated.",
            &[],
        ),
        draining: r.gauge("propylon_draining", "1 while the engine finishes its last requests.", &[]),
        reloads: ReloadMetrics::new(r),
        ticks: r.counter("propylon_worker_ticks_total", "Ticks of the workers' clocks, ten a second each.", &[]),
        budgets: BudgetMetrics::new(r),
        unread: r.gauge("propylon_http2_unread_bytes", "Memory of bodies that peers of HTTP/2 have not read.", &[]),
        widened: r.gauge(
            "propylon_http2_widened_bytes",
            "Upload windows beyond the first ones, over all connections.",
            &[],
        ),
        granted: r.gauge(
            "propylon_http2_granted_bytes",
            "What servers of HTTP/2 may send before their clients have taken any, over all streams.",
            &[],
        ),
        untaken: r.gauge(
            "propylon_http2_untaken_bytes",
            "What clients of HTTP/2 have sent of bodies and servers have not taken, over all streams.",
            &[],
        ),
    }
}

fn parking_metrics(r: &mut Registry) -> ParkingMetrics {
    let mut full = |outcome: &str| {
        let help = "Work of handshakes that could not be parked because as many as may be were.";
        r.counter("propylon_tls_parking_full_total", help, &[("outcome", outcome)])
    };
    let (done_on_the_spot, refused) = (full("done-on-the-spot"), full("refused"));
    let kinds = JobKind::ALL.iter().map(|kind| {
        let help = "Times that a handshake was parked, by the private-key work it waited for.";
        r.counter("propylon_tls_parked_total", help, &[("work", kind.name())])
    });
    ParkingMetrics {
        parked_total: kinds.collect(),
        done_on_the_spot,
        refused,
        parked: r.gauge("propylon_tls_parked_handshakes", "Handshakes that are parked now.", &[]),
        stacks: r.gauge("propylon_tls_parking_stacks", "Stacks of 32 KiB kept for parked handshakes.", &[]),
        stack_high_water: r.gauge(
            "propylon_tls_parking_stack_high_water_bytes",
            "The most that any handshake has used of its stack of 32 KiB.",
            &[],
        ),
        cancelled: r.counter(
            "propylon_tls_parked_cancelled_total",
            "Handshakes given up while they were parked: the client went away, or the time was over.",
            &[],
        ),
    }
}

/// Upper bounds for whole connections, in milliseconds: 1 ms to a day.
const RELAY_BOUNDS: &[u64] =
    &[1, 5, 10, 50, 100, 500, 1_000, 5_000, 10_000, 60_000, 300_000, 1_800_000, 3_600_000, 14_400_000, 86_400_000];

fn relay_metrics(r: &mut Registry, listener: &str) -> RelayMetrics {
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

fn signer_metrics(r: &mut Registry, signer: &propylon_config::Signer) -> SignerMetrics {
    let servers: Vec<String> = signer.servers.iter().map(|server| server.address.to_string()).collect();
    SignerMetrics::new(r, &signer.name, &servers)
}

fn gate_metrics(r: &mut Registry) -> GateMetrics {
    let mut refused = |reason: &str| {
        let help = "TLS connections reset before their handshake, because there were too many or the wait too long.";
        r.counter("propylon_handshakes_refused_total", help, &[("reason", reason)])
    };
    let refused = RefusedHandshakes { queue: refused("queue"), core: refused("core"), source: refused("source") };
    GateMetrics {
        refused,
        in_progress: r.gauge("propylon_handshakes_in_progress", "TLS handshakes between accept and end.", &[]),
        queued: r.gauge("propylon_handshakes_queued", "TLS handshakes that wait for their turn.", &[]),
        wait: r.histogram(
            "propylon_handshake_queue_seconds",
            "How long handshakes waited for their turn once the client's hello was there.",
            &[],
            DURATION_BOUNDS,
            1e-6,
        ),
    }
}

/// A peer that is not one of the proxies that a listener believes; it is reset before it has said anything.
pub const UNTRUSTED_PEER: &str = "untrusted-peer";

fn proxy_refused(r: &mut Registry, name: &str) -> ByReason {
    let help = "Connections closed for want of a good header of the PROXY protocol.";
    let reasons = [Malformed::REASONS, &["closed", "timeout", UNTRUSTED_PEER]].concat();
    ByReason::new(r, "propylon_proxy_protocol_refused_total", help, ("listener", name), &reasons)
}

fn listener_metrics(r: &mut Registry, name: &str) -> ListenerMetrics {
    let label = ("listener", name);
    let by = &[label];
    let class = |r: &mut Registry, class: &str| {
        let labels = [label, ("class", class)];
        r.counter("propylon_responses_total", "Responses sent to clients, by class of status.", &labels)
    };
    ListenerMetrics {
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
        bytes_received: r.counter("propylon_received_bytes_total", "Request bytes (heads and bodies), decrypted.", by),
        bytes_sent: r.counter("propylon_sent_bytes_total", "Response bytes (heads and bodies), before encryption.", by),
        responses: ["1xx", "2xx", "3xx", "4xx", "5xx"].map(|c| class(r, c)),
        duration: r.histogram(
            "propylon_request_duration_seconds",
            "From a request's first byte to its response's last.",
            by,
            DURATION_BOUNDS,
            1e-6,
        ),
        rejected: ByFault::new(
            r,
            ("propylon_requests_rejected_total", "Requests refused as malformed or over a limit."),
            label,
            |fault| fault.family() == Family::Head,
        ),
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
        handshake_failures: ByReason::new(
            r,
            "propylon_tls_handshake_failures_total",
            "TLS handshakes that failed.",
            label,
            &[propylon_tls::Failure::REASONS, &["closed", "timeout"]].concat(),
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
        http2: Http2Metrics::new(r, name),
        relay: OnceLock::new(),
        proxy_refused: OnceLock::new(),
    }
}

fn backend_metrics(r: &mut Registry, name: &str) -> BackendMetrics {
    let label = ("backend", name);
    let by = &[label];
    BackendMetrics {
        servers: Growing::new([]),
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
        unusual_picks: ByReason::new(
            r,
            "propylon_unusual_picks_total",
            "Picks of backups, of servers that are not up because too few are, and where none is up.",
            label,
            UNUSUAL_PICKS,
        ),
        sticky: OnceLock::new(),
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
        connect_duration: r.histogram(
            "propylon_server_connect_duration_seconds",
            "TCP connects to servers.",
            by,
            DURATION_BOUNDS,
            1e-6,
        ),
        tls: OnceLock::new(),
        first_byte_duration: r.histogram(
            "propylon_server_first_byte_duration_seconds",
            "From a request sent to the head of its response.",
            by,
            DURATION_BOUNDS,
            1e-6,
        ),
    }
}

fn sticky_metrics(r: &mut Registry, backend: &str) -> ByReason {
    let help = "Requests by what their cookie was worth: it was followed, or why not.";
    ByReason::new(r, "propylon_sticky_requests_total", help, ("backend", backend), STICKY_OUTCOMES)
}

fn server_metrics(r: &mut Registry, backend: &str, server: &str) -> ServerMetrics {
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
        health: Arc::new(server_health_metrics(r, by)),
    }
}
