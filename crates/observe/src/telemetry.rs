//! Every number that the engine keeps: names, labels, and the ids by which a core writes them.
//!
//! Everything a configuration names is registered before that configuration is published, so that the request path only
//! adds to a slot. Whoever counts holds the metrics, whose series are shown as long.

mod acme;
mod backend;
mod batches;
mod bodies;
mod by_reason;
mod cluster;
mod compression;
mod configured;
mod limits;
mod listener;
mod overload;
mod reasons;
mod routes;
mod series;
mod server_health;
mod signers;
mod statuses;
mod traces;
mod upgrades;
mod waits;

use std::sync::Arc;

use propylon_config::Config;
use propylon_crypto::JobKind;
use propylon_metrics::{Counter, Gauge, Histogram, Registry, Store};
use propylon_policy::admission::Refusal;
use propylon_policy::dispatch::Reason as DispatchReason;

pub use acme::AcmeMetrics;
pub use backend::{BackendMetrics, HedgeMetrics, ServerMetrics, ServerTlsMetrics};
use backend::{backend_metrics, hedge_after, server_metrics, sticky_metrics};
pub use batches::BatchMetrics;
pub use bodies::BodyMetrics;
pub use by_reason::{ByFault, ByReason, HandshakeFailures};
pub use cluster::{AnnounceMetrics, ClusterMetrics, FLOW_OUTCOMES, FlowsMetrics};
pub use compression::{COMPRESSION_SKIPS, CompressionMetrics};
pub use configured::{BackendHandles, ConfiguredMetrics, ListenerHandles};
pub use limits::LimitMetrics;
use limits::limit_metrics;
pub use listener::{Handshakes, Http2Metrics, ListenerMetrics, RelayMetrics, ResumptionMetrics, UNTRUSTED_PEER};
use listener::{listener_metrics, proxy_refused, relay_metrics};
pub use overload::{LimitedBy, Reason, ShortageMetrics};
use propylon_net::budget::BudgetMetrics;
pub use reasons::*;
pub use routes::RouteMetrics;
use series::{Registrar, SeriesTable};
use server_health::probe_metrics;
pub use server_health::{ProbeMetrics, ServerHealthMetrics};
pub use signers::{BESIDE_NAME, BESIDE_SERVER, CONCLUSIONS, LOOKUPS, OUTCOMES, SignerMetrics};
use signers::{KeyServerMetrics, SignerTotals};
pub use traces::{ExportCounts, TraceMetrics};
use upgrades::UpgradeMetrics;
pub use waits::{DURATION_BOUNDS, WAITS, Wait};

pub struct Telemetry {
    /// Metrics by a listener's name.
    listeners: SeriesTable<ListenerMetrics>,
    /// Metrics of relayed connections, by the name of a listener that relays.
    relays: SeriesTable<RelayMetrics>,
    /// Refused PROXY headers by reason, by the name of a listener that reads the PROXY protocol.
    proxy_refusals: SeriesTable<ByReason>,
    /// Metrics by a backend's name, and of its servers by [`series::within`]: see [`Telemetry::backend`].
    backends: SeriesTable<BackendMetrics>,
    server_tls: SeriesTable<ServerTlsMetrics>,
    sticky: SeriesTable<ByReason>,
    /// Gauges by a backend's name and a percentile's, by [`series::within`].
    hedge_after: SeriesTable<Gauge>,
    servers: SeriesTable<ServerMetrics>,
    probes: SeriesTable<ProbeMetrics>,
    /// Metrics by a limit's label.
    limits: SeriesTable<LimitMetrics>,
    /// Metrics of routes by [`RouteSeries::key`](routes::RouteSeries::key).
    routes: SeriesTable<RouteMetrics>,
    /// Shares of failing requests by a route's label.
    routes_failing: SeriesTable<Gauge>,
    pub process: ProcessMetrics,
    pub parking: ParkingMetrics,
    pub relay: PipeMetrics,
    pub batches: BatchMetrics,
    /// Metrics by a signer's name, and of its servers by [`series::within`]: see [`Telemetry::signer`].
    signers: SeriesTable<SignerTotals>,
    key_servers: SeriesTable<KeyServerMetrics>,
    /// Metrics of the key process, if there is one.
    pub key_process: Option<SignerMetrics>,
    pub handshake_queue: HandshakeQueueMetrics,
    pub overload: ShortageMetrics,
    pub traces: TraceMetrics,
    pub compression: CompressionMetrics,
    pub bodies: BodyMetrics,
    pub acme: AcmeMetrics,
    pub upgrades: UpgradeMetrics,
    /// Metrics of the cluster, of announced addresses and of flows, each where there are any.
    pub cluster: Option<ClusterMetrics>,
    pub announce: Option<AnnounceMetrics>,
    pub flows: Option<FlowsMetrics>,
}

/// Metrics of pipes that relays, tunnels and bodies are spliced through.
pub struct PipeMetrics {
    pub open: Gauge,
    pub refused: Counter,
}

/// Metrics of handshakes that wait for their turn, and of those that are refused.
pub struct HandshakeQueueMetrics {
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
    /// Clients handed over, in the order of `ProcessMetrics::dispatched`.
    dispatched: [Counter; 4],
    pub access_log_dropped: Counter,
    pub access_log_failed: Counter,
    pub access_log_lost: Counter,
    pub access_log_reopens: Counter,
    pub log_lost: Counter,
    pub replaced_files: Gauge,
    pub workers_outdated: Gauge,
    pub unusable_store: Gauge,
    pub panics: Counter,
    pub certificate_reloads: CertificateReloads,
    pub certificate_reload_errors: Counter,
    pub unusable_files: Gauge,
    pub identity: ProofMetrics,
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
    /// Refused changes in the order of `ADMIN_REFUSALS`.
    refused: Vec<Counter>,
}

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

impl Telemetry {
    /// Registers everything for `config`; `columns` writers will be needed.
    pub fn new(config: &Config, columns: usize) -> (Telemetry, Arc<Store>) {
        let mut registry = Registry::new();
        let r = &mut registry;
        let version = env!("CARGO_PKG_VERSION");
        let info = r.gauge("propylon_build_info", "Always 1; the version is the label.", &[("version", version)]);
        let process = process_metrics(r);
        let parking = parking_metrics(r);
        let relay = pipe_metrics(r);
        let batches = BatchMetrics::new(r);
        let key_process = config.keys.isolate.map(|_| SignerMetrics::of_key_process(r));
        let handshake_queue = handshake_queue_metrics(r);
        let overload = ShortageMetrics::new(r);
        let traces = TraceMetrics::new(r);
        let compression = CompressionMetrics::new(r);
        let bodies = BodyMetrics::new(r);
        let acme = AcmeMetrics::new(r);
        let upgrades = UpgradeMetrics::new(r);
        let cluster = config.cluster.as_ref().map(|_| ClusterMetrics::new(r));
        let announce = config.announce.as_ref().map(|_| AnnounceMetrics::new(r));
        let flows = config.cluster.as_ref().and_then(|cluster| cluster.flows.as_ref()).map(|_| FlowsMetrics::new(r));
        let telemetry = Telemetry {
            listeners: SeriesTable::default(),
            relays: SeriesTable::default(),
            proxy_refusals: SeriesTable::default(),
            backends: SeriesTable::default(),
            server_tls: SeriesTable::default(),
            sticky: SeriesTable::default(),
            hedge_after: SeriesTable::default(),
            servers: SeriesTable::default(),
            probes: SeriesTable::default(),
            limits: SeriesTable::default(),
            routes: SeriesTable::default(),
            routes_failing: SeriesTable::default(),
            process,
            parking,
            relay,
            batches,
            signers: SeriesTable::default(),
            key_servers: SeriesTable::default(),
            key_process,
            handshake_queue,
            overload,
            traces,
            compression,
            bodies,
            acme,
            upgrades,
            cluster,
            announce,
            flows,
        };
        telemetry.show_configured(&mut Registrar::First(&mut registry), config);
        let store = registry.build(columns);
        Store::column(&store, 0).set(info, 1);
        (telemetry, store)
    }

    /// The metrics of all listeners that are shown.
    pub fn all_listeners(&self) -> Vec<Arc<ListenerMetrics>> {
        self.listeners.all()
    }

    /// Client connections and requests in progress.
    pub fn open(&self, store: &Store) -> (u64, u64) {
        let sum = |gauge: fn(&ListenerMetrics) -> Gauge| {
            self.listeners.all().iter().map(|listener| store.level(gauge(listener))).sum::<i64>().max(0) as u64
        };
        (sum(|listener| listener.open), sum(|listener| listener.in_progress))
    }
}

fn pipe_metrics(r: &mut Registry) -> PipeMetrics {
    PipeMetrics {
        open: r.gauge("propylon_splice_pipes", "Pipes that bytes are spliced through; two files each.", &[]),
        refused: r.counter(
            "propylon_splice_pipes_refused_total",
            "Times that a relay, a tunnel or a body went on being copied because no pipe was to be had.",
            &[],
        ),
    }
}

impl ProcessMetrics {
    /// Client connections that another core serves, for this reason.
    pub fn dispatched(&self, reason: DispatchReason) -> Counter {
        let [load, room, stall, rest] = self.dispatched;
        match reason {
            DispatchReason::Load => load,
            DispatchReason::Room => room,
            DispatchReason::Stall => stall,
            DispatchReason::Rest => rest,
        }
    }
}

/// Files and keys that proofs are to be compared with, and cannot be.
pub struct ProofMetrics {
    pub unusable_files: Gauge,
    pub failing_urls: Gauge,
}

impl ProofMetrics {
    fn new(r: &mut Registry) -> ProofMetrics {
        ProofMetrics {
            unusable_files: r.gauge(
                "propylon_identity_unusable_files",
                "Watched files of users, keys and issuers that could not be used when they were last read.",
                &[],
            ),
            failing_urls: r.gauge(
                "propylon_identity_failing_urls",
                "URLs of issuers' keys whose last fetch has failed.",
                &[],
            ),
        }
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
        identity: ProofMetrics::new(r),
        ready_certificates: ReadyMetrics::new(r),
        accept_errors: r.counter("propylon_accept_errors_total", "Accepts that failed (out of files, for one).", &[]),
        accept_pauses: r.counter(
            "propylon_accept_pauses_total",
            "Times that a worker stopped accepting because process.max_connections was met.",
            &[],
        ),
        dispatched: ["load", "room", "stall", "rest"].map(|reason| {
            let help = "Client connections handed to another worker: as they came, or later between two requests.";
            r.counter("propylon_dispatched_total", help, &[("reason", reason)])
        }),
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
        workers_outdated: r.gauge(
            "propylon_workers_outdated",
            "1 while a process that is started now would have another number of workers.",
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

fn handshake_queue_metrics(r: &mut Registry) -> HandshakeQueueMetrics {
    let mut refused = |reason: &str| {
        let help = "TLS connections reset before their handshake, because there were too many or the wait too long.";
        r.counter("propylon_handshakes_refused_total", help, &[("reason", reason)])
    };
    let refused = RefusedHandshakes { queue: refused("queue"), core: refused("core"), source: refused("source") };
    HandshakeQueueMetrics {
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
