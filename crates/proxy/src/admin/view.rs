//! What the admin address shows, put together from the metrics and the configuration at the moment it is asked for.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use propylon_acme::Keeper;
use propylon_config::{Backend, Balance, Listener};
use propylon_metrics::Store;
use propylon_tls::{Profile, SHOWN_MAX, Served};
use serde_json::{Value, json};

use super::effective;
use crate::acme;
use crate::certificates::{self, GLANCED_AT_MAX, Shown};
use crate::health::{Health, State};
use crate::snapshot::Snapshot;
use crate::telemetry::{BackendMetrics, ListenerMetrics, Telemetry};

/// What the admin address can show.
pub struct View {
    pub store: Arc<Store>,
    /// The one that was started with; its certificates may have been replaced.
    pub snapshot: Arc<Snapshot>,
    pub certificates: Shown,
    pub keeper: Arc<Keeper>,
    pub health: Health,
    pub telemetry: Arc<Telemetry>,
    /// By listener: the addresses that were bound, with the ports that the kernel chose.
    pub addresses: Vec<Vec<SocketAddr>>,
    pub started: Instant,
}

impl View {
    /// Prometheus text.
    pub fn metrics(&self) -> String {
        self.store.prometheus()
            + &certificates::expiry(&self.certificates.borrow())
            + &acme::metrics(&self.keeper.status())
    }

    pub fn is_draining(&self) -> bool {
        self.store.level(self.telemetry.process.draining) > 0
    }

    /// The configuration with its defaults filled in, in the JSON that `propylon run` takes.
    pub fn config(&self) -> String {
        pretty(&effective::config(&self.snapshot.config))
    }

    /// What is running, for people and scripts.
    pub fn snapshot(&self) -> String {
        pretty(&self.running(SHOWN_MAX))
    }

    /// What is running and every metric, for the dashboard.
    pub fn status(&self) -> String {
        format!("{{\"snapshot\":{},\"metrics\":{}}}", self.running(GLANCED_AT_MAX), self.store.json())
    }

    /// With so many of each profile's certificates, those that expire first.
    fn running(&self, certificates_max: usize) -> Value {
        let config = &self.snapshot.config;
        let listeners = config.listeners.iter().zip(&self.telemetry.listeners).zip(&self.addresses);
        let listeners = listeners.map(|((listener, metrics), addresses)| self.listener(listener, metrics, addresses));
        let backends = config.backends.iter().zip(&self.telemetry.backends).enumerate();
        let backends = backends.map(|(index, (backend, metrics))| self.backend(index, backend, metrics));
        let certificates = self.certificates.borrow();
        // The last column is the main thread's.
        let workers = (0..self.store.columns() - 1).map(|index| self.worker(index));
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime_seconds": (self.started.elapsed().as_secs_f64() * 1e3).round() / 1e3,
            "draining": self.is_draining(),
            "memory_bytes": propylon_sys::resident_bytes().unwrap_or(0),
            "cpu_seconds": propylon_sys::process_cpu().as_secs_f64(),
            "workers": workers.collect::<Vec<Value>>(),
            "listeners": listeners.collect::<Vec<Value>>(),
            "certificates": certificates.iter().flat_map(|each| served(each, certificates_max)).collect::<Vec<Value>>(),
            "certificates_total": certificates.iter().map(|profile| profile.count()).sum::<usize>(),
            "acme": acme::view(&self.keeper.status()),
            "backends": backends.collect::<Vec<Value>>(),
        })
    }

    fn worker(&self, index: usize) -> Value {
        let sum = |gauge: fn(&ListenerMetrics) -> propylon_metrics::Gauge| {
            let levels = self.telemetry.listeners.iter().map(|listener| self.store.level_in(index, gauge(listener)));
            levels.sum::<i64>()
        };
        json!({ "connections": sum(|listener| listener.open), "requests_in_progress": sum(|listener| listener.in_progress) })
    }

    fn listener(&self, listener: &Listener, metrics: &ListenerMetrics, addresses: &[SocketAddr]) -> Value {
        json!({
            "name": listener.name,
            "addresses": addresses,
            "tls": listener.tls.map(|id| self.snapshot.config.tls[id.0].name.as_str()),
            "connections": self.store.level(metrics.open),
            "connections_total": self.store.count(metrics.accepted),
            "requests_in_progress": self.store.level(metrics.in_progress),
            "responses_total": metrics.responses.iter().map(|class| self.store.count(*class)).sum::<u64>(),
        })
    }

    /// By worker, what it takes the server's latency for; null where that is of no concern, or nothing is known.
    fn latencies(&self, backend: usize, server: usize) -> Value {
        if !matches!(self.snapshot.config.backends[backend].balance, Balance::P2cEwma { .. }) {
            return Value::Null;
        }
        let millis = |micros: u64| (micros > 0).then_some(micros as f64 / 1e3);
        self.snapshot.balance[backend].loads.latencies_us(server).map(millis).collect()
    }

    fn backend(&self, index: usize, backend: &Backend, metrics: &BackendMetrics) -> Value {
        let servers = backend.servers.iter().zip(&self.snapshot.servers[index]).zip(&metrics.servers);
        let servers = servers.enumerate().map(|(place, ((configured, server), metrics))| {
            json!({
                "address": server.label,
                "resolved": *server.notice.addresses(),
                "health": health(&self.health.state(index, place)),
                "weight": configured.weight,
                "backup": configured.backup,
                "requests_in_flight": self.store.level(metrics.in_flight),
                "latency_estimates_ms": self.latencies(index, place),
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
        json!({
            "name": backend.name,
            "balance": backend.balance.name(),
            "client_connections": self.store.level(metrics.clients_open),
            "client_connections_total": self.store.count(metrics.clients),
            "queued": self.store.level(metrics.queue_depth),
            "retries_total": self.store.count(metrics.retries),
            "stale_retries_total": self.store.count(metrics.stale_retries),
            "retries_refused_total": self.store.count(metrics.retries_refused),
            "unavailable_total": self.store.count(metrics.unavailable),
            "servers": servers.collect::<Vec<Value>>(),
        })
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
        "usable": state.verdict.is_open(),
        "reason": state.verdict.reason(),
        "since": seconds(state.since),
        "until": state.until.map(seconds),
        "lookup_failed": state.lookup_failed,
    })
}

fn served(profile: &Profile, max: usize) -> Vec<Value> {
    let one = |served: Served| {
        json!({
            "profile": profile.name(),
            "name": served.name,
            "type": served.key_type.name(),
            "file": served.path.display().to_string(),
            "not_after": served.not_after,
            "ocsp": served.stapled,
        })
    };
    profile.served_at_most(max).map(one).collect()
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}
