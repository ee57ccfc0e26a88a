//! Views of the admin address, put together from the metrics and the configuration at the moment they are asked for.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use propylon_acme::Renewer;
use propylon_config::{Backend, Balance, Listener};
use propylon_metrics::{Store, gauge_text};
use propylon_observe::conditions::Conditions;
use propylon_observe::history::{History, Span};
use propylon_observe::telemetry::{ListenerMetrics, Telemetry};
use propylon_tls::{Dated, Profile, SHOWN_MAX, Served};
use serde_json::{Value, json};

use super::routes_json::Sentences;
use crate::acme;
use crate::announce::Announcing;
use crate::certificates::{self, LoadFailures};
use crate::cluster::Membership;
use crate::expiry;
use crate::health::{Health, State};
use crate::last_minute::LastMinute;
use crate::sandbox::Sandbox;
use crate::status::ConfigStatus;
use crate::upgrade::handover::Handover;
use propylon_config::effective;
use propylon_proxy::snapshot::Snapshot;

/// Limit on the count of overrides by `process.state` that are shown one by one.
const OVERRIDES_MAX: usize = 20;

/// Sources of the admin address's views.
pub struct View {
    pub store: Arc<Store>,
    pub config_status: Rc<RefCell<ConfigStatus>>,
    pub orders: Arc<Renewer>,
    pub health: Health,
    pub telemetry: Arc<Telemetry>,
    pub started: Instant,
    /// Resident memory in bytes at the start, before any client had connected.
    pub memory_at_start: u64,
    /// Files of certificates that could not be used when they were last read.
    pub load_failures: LoadFailures,
    /// The upgrade socket's server, if one is configured.
    pub handover: Option<Handover>,
    /// The sandbox that the kernel enforces.
    pub sandbox: Arc<Sandbox>,
    /// Conditions that hold now.
    pub conditions: Rc<RefCell<Conditions>>,
    /// The numbers that matter, as they were.
    pub history: Rc<RefCell<History>>,
    /// The last minute of routes and servers.
    pub last_minute: Rc<RefCell<LastMinute>>,
    /// The cluster that this engine is one of.
    pub membership: Option<Rc<RefCell<Membership>>>,
    /// Announces this engine's addresses.
    pub announcing: Option<Rc<Announcing>>,
    /// Routes in words.
    pub sentences: Sentences,
}

impl View {
    /// The snapshot that was published last.
    pub fn current(&self) -> Arc<Snapshot> {
        Arc::clone(&self.config_status.borrow().snapshot)
    }

    /// Prometheus text.
    pub fn metrics(&self) -> String {
        let snapshot = self.current();
        self.store.prometheus()
            + &certificates::expiry(&snapshot.profiles)
            + &expiry::metrics(&snapshot, SystemTime::now())
            + &acme::metrics(&self.orders.status())
            + &self.memory()
    }

    /// The cluster, if this engine is one of one.
    pub async fn cluster(&self) -> Option<Value> {
        let status = self.membership.as_ref()?.borrow().status();
        let mut status = Value::clone(&*status.await);
        status["announce"] = self.announcing.as_ref().map(|announcing| announcing.to_json()).into();
        Some(status)
    }

    /// Whether the process drains and no successor serves: a client asks about the service, not about this process.
    pub fn is_draining(&self) -> bool {
        let is_succeeded = self.handover.as_ref().is_some_and(|handover| handover.kept().is_some());
        self.store.level(self.telemetry.process.draining) > 0 && !is_succeeded
    }

    /// The configuration with its defaults filled in, in the JSON that `propylon run` takes.
    pub fn config(&self) -> String {
        pretty(&effective::config(&self.current().config))
    }

    /// The past of the numbers that matter, by the second or by the minute: `span=5m`, which is what is told without a
    /// span, or `span=24h`. `None`: neither.
    pub fn history_json(&self, query: Option<&str>) -> Option<String> {
        let mut spans = query.unwrap_or_default().split('&').filter_map(|pair| pair.strip_prefix("span="));
        let span = spans.next().map_or(Some(Span::FiveMinutes), Span::of)?;
        Some(self.history.borrow().to_json(span).to_string())
    }

    /// Configuration in use, for people and scripts.
    pub fn snapshot(&self) -> String {
        pretty(&self.running())
    }

    /// Memory now and at the start, from which the dashboard computes memory per connection.
    fn memory(&self) -> String {
        let gauge = |name, help, bytes: u64| gauge_text::<0>(name, help, &[([], bytes as i64)]);
        let now = propylon_sys::resident_bytes().unwrap_or(0);
        let at_start = "Memory of the process, resident, before the first client.";
        gauge("propylon_resident_bytes", "Memory of the process, resident.", now)
            + &gauge("propylon_resident_at_start_bytes", at_start, self.memory_at_start)
    }

    fn running(&self) -> Value {
        let snapshot = &self.current();
        let config = &snapshot.config;
        let listeners =
            config.listeners.iter().enumerate().filter_map(|(index, each)| self.listener(snapshot, index, each));
        let backends =
            config.backends.iter().enumerate().filter_map(|(index, each)| self.backend(snapshot, index, each));
        let certificates = &snapshot.profiles;
        // The last column is the main thread's.
        let workers = (0..self.store.columns() - 1).map(|index| self.worker(index));
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime_seconds": (self.started.elapsed().as_secs_f64() * 1e3).round() / 1e3,
            "draining": self.is_draining(),
            "sandbox": self.sandbox.to_json_whole(),
            "keys": { "isolated": config.keys.isolate.is_some() },
            "upgrade": self.handover.as_ref().map(Handover::to_json),
            "configuration": self.configuration(),
            "memory_bytes": propylon_sys::resident_bytes().unwrap_or(0),
            "cpu_seconds": propylon_sys::process_cpu().as_secs_f64(),
            "workers": workers.collect::<Vec<Value>>(),
            "listeners": listeners.collect::<Vec<Value>>(),
            "certificates": certificates.iter().flat_map(|each| served(each)).collect::<Vec<Value>>(),
            "other_expiries": self.other_expiries(),
            "certificates_total": certificates.iter().map(|profile| profile.count()).sum::<usize>(),
            "acme": acme::view(&self.orders.status()),
            "backends": backends.collect::<Vec<Value>>(),
        })
    }

    pub fn configuration(&self) -> Value {
        let config_status = self.config_status.borrow();
        let seconds = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        json!({
            "generation": config_status.snapshot.generation,
            "origin": config_status.origin,
            "overrides": {
                "total": config_status.overrides.len(),
                "list": config_status.overrides.iter().take(OVERRIDES_MAX).collect::<Vec<&String>>(),
            },
            "last_reload": config_status.last.map(|(when, result)| json!({ "timestamp": seconds(when), "result": result })),
            "old_snapshots": config_status.older,
            "oldest_snapshot_age_seconds": config_status.oldest_age.as_secs(),
        })
    }

    /// The kinds of things beside certificates that end.
    fn other_expiries(&self) -> Vec<Value> {
        let one = |(of, dated): (String, Dated)| {
            let file = dated.path.display().to_string();
            json!({ "kind": dated.kind.name(), "of": of, "name": dated.name, "file": file, "not_after": dated.until })
        };
        expiry::others(&self.current(), SHOWN_MAX).into_iter().map(one).collect()
    }

    pub fn worker(&self, index: usize) -> Value {
        let sum = |gauge: fn(&ListenerMetrics) -> propylon_metrics::Gauge| {
            let levels =
                self.telemetry.all_listeners().into_iter().map(|each| self.store.level_in(index, gauge(&each)));
            levels.sum::<i64>()
        };
        json!({ "connections": sum(|listener| listener.open), "requests_in_progress": sum(|listener| listener.in_progress) })
    }

    fn listener(&self, snapshot: &Snapshot, index: usize, listener: &Listener) -> Option<Value> {
        let metrics = self.telemetry.listener(listener)?.listener;
        Some(json!({
            "name": listener.name,
            "addresses": snapshot.addresses(index),
            "tls": listener.tls.map(|id| snapshot.config.tls[id.0].name.as_str()),
            "connections": self.store.level(metrics.open),
            "connections_total": self.store.count(metrics.accepted),
            "requests_in_progress": self.store.level(metrics.in_progress),
            "responses_total": metrics.responses().map(|class| self.store.count(class)).iter().sum::<u64>(),
        }))
    }

    /// Latencies of the server by worker; null if the balancer does not use them, or nothing is known.
    fn latencies(snapshot: &Snapshot, backend: usize, server: usize) -> Value {
        if !matches!(snapshot.config.backends[backend].balance, Balance::P2cEwma { .. }) {
            return Value::Null;
        }
        let millis = |micros: u64| (micros > 0).then_some(micros as f64 / 1e3);
        snapshot.balance[backend].loads.latencies_us(server).map(millis).collect()
    }

    fn backend(&self, snapshot: &Snapshot, index: usize, backend: &Backend) -> Option<Value> {
        let handles = self.telemetry.backend(backend)?;
        let metrics = &handles.backend;
        let servers = backend.servers.iter().zip(&handles.servers).enumerate().map(|(at, (configured, metrics))| {
            let server = &snapshot.servers[index][at];
            let waits = self.last_minute.borrow().waits(snapshot.generation, index, at);
            json!({
                "address": server.label,
                "resolved": server.endpoint.addresses().iter().map(ToString::to_string).collect::<Vec<_>>(),
                "health": health(&self.health.state(&server.endpoint)),
                "weight": configured.weight,
                "draining": configured.drain.is_some(),
                "backup": configured.backup,
                "requests_in_flight": self.store.level(metrics.in_flight),
                "first_byte_seconds": waits.mean_seconds(),
                "slow_times": waits.slow_times,
                "latency_estimates_ms": View::latencies(snapshot, index, at),
                "max_connections": configured.max_connections,
                "connections": self.store.level(metrics.open),
                "connections_idle": self.store.level(metrics.idle),
                "connections_total": self.store.count(metrics.connections),
                "connect_failures_total": self.store.count(metrics.connect_failures),
                "requests_total": self.store.count(metrics.requests),
                "requests_on_reused_connections_total": self.store.count(metrics.reused),
                "stale_connections_total": self.store.count(metrics.stale),
                "handed_over_total": self.store.count(metrics.handed_over),
                "made_ahead_total": self.store.count(metrics.warmed),
            })
        });
        Some(json!({
            "name": backend.name,
            "balance": backend.balance.name(),
            "panic": self.store.level(metrics.panic) > 0,
            "client_connections": self.store.level(metrics.clients_open),
            "client_connections_total": self.store.count(metrics.clients),
            "queued": self.store.level(metrics.queue_depth),
            "retries_total": self.store.count(metrics.retries),
            "stale_retries_total": self.store.count(metrics.stale_retries),
            "retries_refused_total": self.store.count(metrics.retries_refused),
            "unavailable_total": self.store.count(metrics.unavailable),
            "servers": servers.collect::<Vec<Value>>(),
        }))
    }
}

/// Times in seconds since 1970.
fn health(state: &State) -> Value {
    let seconds = |time: SystemTime| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        since.as_millis() as f64 / 1e3
    };
    json!({
        "state": state.verdict.name(),
        "usable": state.admitted,
        "panic": state.admitted && !state.verdict.is_open(),
        "reason": state.verdict.reason(),
        "since": seconds(state.since),
        "until": state.until.map(seconds),
        "lookup_failed": state.lookup_failed,
    })
}

/// A certificate as it is shown everywhere.
pub(super) fn certificate(profile: &Profile, served: &Served) -> Value {
    json!({
        "profile": profile.name(),
        "name": served.name,
        "type": served.key_type.name(),
        "file": served.path.display().to_string(),
        "not_after": served.not_after,
        "ocsp": served.stapled,
    })
}

fn served(profile: &Profile) -> Vec<Value> {
    profile.served().map(|served| certificate(profile, &served)).collect()
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}
