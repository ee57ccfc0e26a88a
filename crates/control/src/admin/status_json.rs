//! Status for the dashboard and `propylon top`, asked for every second: sums over everything, and one by one only what
//! is worst.
//!
//! The status is bounded whatever the configuration holds: thousands of servers and certificates are counted here, and
//! those that somebody should look at come first in lists of limited length. Who looks for others names them.

use std::sync::Arc;
use std::time::SystemTime;

use propylon_config::{Backend, Listener, Protocol};
use propylon_observe::telemetry::{BackendMetrics, ListenerHandles, ServerMetrics};
use propylon_policy::health::Verdict;
use propylon_tls::Profile;
use serde_json::{Map, Value, json};

use super::faults::Fault;
use super::routes_json::bounds_seconds;
use super::view::{View, certificate};
use crate::expiry;
use crate::health::State;
use crate::upgrade::handover::Handover;

/// The shape of the answer; it changes with what a reader of an earlier one would misunderstand.
const SHAPE: u32 = 1;
/// Limits on what is listed one by one, of each kind.
const LISTENERS_MAX: usize = 50;
const BACKENDS_MAX: usize = 100;
const SERVERS_MAX: usize = 200;
const CERTIFICATES_MAX: usize = 100;
const OTHER_DATED_MAX: usize = 50;
const UNUSABLE_FILES_MAX: usize = 20;
const SIGNERS_MAX: usize = 20;
const FAULTS_MAX: usize = 60;
/// Limit on a listener's addresses.
const ADDRESSES_MAX: usize = 4;
/// Characters of a name that somebody looks for.
const FILTER_CHARS_MAX: usize = 100;

/// Which of the many somebody wants to see.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Filter {
    servers: String,
    certificates: String,
    /// Absent: no routes are wanted.
    routes: Option<String>,
}

impl Filter {
    /// Parses the query of a URL: `servers=TEXT&certificates=TEXT&routes=TEXT`, each of them empty for all. The first
    /// two may be absent for all.
    pub fn parse(query: Option<&str>) -> Filter {
        let mut filter = Filter::default();
        for (key, value) in query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('=')) {
            let value = || decode(value).chars().take(FILTER_CHARS_MAX).collect::<String>().to_lowercase();
            match key {
                "servers" => filter.servers = value(),
                "certificates" => filter.certificates = value(),
                "routes" => filter.routes = Some(value()),
                _ => {}
            }
        }
        filter
    }
}

/// Percent-encoding undone; what is not well-formed stands for itself.
fn decode(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        let hex = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
        match (first, after) {
            (b'%', &[high, low, ..]) if hex(high).is_some() && hex(low).is_some() => {
                bytes.push(hex(high).unwrap_or(0) << 4 | hex(low).unwrap_or(0));
                rest = &after[2..];
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = after;
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A server on its way into the list.
struct Row {
    rank: u8,
    backend: usize,
    server: usize,
    metrics: Arc<ServerMetrics>,
    state: State,
    slow_until: Option<SystemTime>,
}

/// Sums over servers.
#[derive(Default)]
struct Sums {
    open: i64,
    idle: i64,
    in_flight: i64,
    made: u64,
    requests: u64,
    reused: u64,
    stale: u64,
    connect_failures: u64,
}

/// Servers by their state.
#[derive(Clone, Copy, Default)]
struct States {
    total: usize,
    usable: usize,
    down: usize,
    ejected: usize,
    draining: usize,
    unknown: usize,
    slow: usize,
    unresolved: usize,
    /// Servers that are not open and used all the same, since too few are open (`min_healthy`).
    panic: usize,
}

impl States {
    fn count(&mut self, row: &Row) {
        self.total += 1;
        self.usable += usize::from(row.state.admitted);
        self.panic += usize::from(row.state.admitted && !row.state.verdict.is_open());
        self.slow += usize::from(row.slow_until.is_some());
        self.unresolved += usize::from(row.state.lookup_failed.is_some());
        match row.state.verdict {
            Verdict::Up => {}
            Verdict::Unknown => self.unknown += 1,
            Verdict::Down(_) => self.down += 1,
            Verdict::Ejected { .. } => self.ejected += 1,
            Verdict::Draining(_) => self.draining += 1,
        }
    }

    fn add(&mut self, other: States) {
        self.total += other.total;
        self.usable += other.usable;
        self.down += other.down;
        self.ejected += other.ejected;
        self.draining += other.draining;
        self.unknown += other.unknown;
        self.slow += other.slow;
        self.unresolved += other.unresolved;
        self.panic += other.panic;
    }

    fn to_json(self) -> Value {
        json!({
            "total": self.total, "usable": self.usable, "down": self.down, "ejected": self.ejected,
            "draining": self.draining, "not_checked": self.unknown, "slow_starting": self.slow,
            "name_not_found": self.unresolved, "panic": self.panic,
        })
    }
}

impl View {
    /// All of it, as JSON in one line.
    pub fn status_json(&self, filter: &Filter) -> String {
        let now = SystemTime::now();
        let (rows, backends, states, server_faults) = self.survey(now);
        let (listeners, all) = self.listeners_summary();
        let mut faults = self.faults();
        faults.extend(server_faults);
        faults.sort_by_key(|fault| std::cmp::Reverse(fault.count));
        let faults_total = faults.len();
        let faults: Vec<Value> = faults.iter().take(FAULTS_MAX).map(Fault::to_json).collect();
        let last_minute = self.last_minute.borrow().all();
        let workers = (0..self.store.columns() - 1).map(|index| self.worker(index));
        json!({
            "shape": SHAPE,
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "time": seconds(now),
            "uptime_seconds": (self.started.elapsed().as_secs_f64() * 1e3).round() / 1e3,
            "draining": self.is_draining(),
            "sandbox": self.sandbox.to_json(),
            "cluster": self.membership.is_some(),
            "keys": { "isolated": self.current().config.keys.isolate.is_some() },
            "upgrade": self.handover.as_ref().map(Handover::to_json),
            "configuration": self.configuration(),
            "memory_bytes": propylon_sys::resident_bytes().unwrap_or(0),
            "memory_at_start_bytes": self.memory_at_start,
            "cpu_seconds": propylon_sys::process_cpu().as_secs_f64(),
            "workers": workers.collect::<Vec<Value>>(),
            "bounds_seconds": bounds_seconds(),
            "all": all,
            "last_minute": { "responses": last_minute.total, "failed": last_minute.failed },
            "listeners": listeners,
            "backends": backends,
            "servers": self.servers_summary(rows, states, &filter.servers),
            "certificates": self.certificates_summary(now, &filter.certificates),
            "routes": filter.routes.as_deref().map(|routes| self.routes_summary(routes)),
            "signers": self.signers_summary(),
            "conditions": self.conditions.borrow().to_json(),
            "changes": self.changes(),
            "faults": { "total": faults_total, "list": faults },
        })
        .to_string()
    }

    /// Every server's state, backends, and what went wrong at either.
    fn survey(&self, now: SystemTime) -> (Vec<Row>, Value, States, Vec<Fault>) {
        let snapshot = self.current();
        let (mut rows, mut states, mut faults) = (Vec::new(), States::default(), Vec::new());
        let mut backends = Vec::new();
        for (index, backend) in snapshot.config.backends.iter().enumerate() {
            let Some(handles) = self.telemetry.backend(backend) else { continue };
            let metrics = &handles.backend;
            let (mut own, mut sums) = (States::default(), Sums::default());
            for (at, (configured, server)) in backend.servers.iter().zip(&handles.servers).enumerate() {
                let state = self.health.state(&snapshot.servers[index][at].endpoint);
                let slow_until = self.slow_until(backend, server, &state, now);
                let least = match (self.store.level(server.passed_over), self.store.level(server.slow)) {
                    (0, 0) => u8::MAX,
                    (0, _) => SLOW_RANK,
                    _ => PASSED_OVER_RANK,
                };
                let row = Row {
                    rank: rank(&state, slow_until, configured.backup).min(least),
                    backend: index,
                    server: at,
                    metrics: Arc::clone(server),
                    state,
                    slow_until,
                };
                own.count(&row);
                self.sum(&mut sums, server);
                let label = &snapshot.servers[index][at].label;
                faults.extend(self.server_faults(&backend.name, label, server));
                rows.push(row);
            }
            states.add(own);
            faults.extend(self.backend_faults(backend, metrics));
            backends.push((urgency(own), self.backend_summary(backend, metrics, own, &sums)));
        }
        let total = backends.len();
        backends.sort_by_key(|(urgency, _)| *urgency);
        let list: Vec<Value> = backends.into_iter().take(BACKENDS_MAX).map(|(_, backend)| backend).collect();
        (rows, json!({ "total": total, "list": list }), states, faults)
    }

    fn sum(&self, sums: &mut Sums, server: &ServerMetrics) {
        let (level, count) = (|gauge| self.store.level(gauge), |counter| self.store.count(counter));
        sums.open += level(server.open);
        sums.idle += level(server.idle);
        sums.in_flight += level(server.in_flight);
        sums.made += count(server.connections);
        sums.requests += count(server.requests);
        sums.reused += count(server.reused);
        sums.stale += count(server.stale);
        sums.connect_failures += count(server.connect_failures);
    }

    /// Until when a server that has come back gets less than its share.
    fn slow_until(
        &self,
        backend: &Backend,
        server: &ServerMetrics,
        state: &State,
        now: SystemTime,
    ) -> Option<SystemTime> {
        let until = state.since + backend.slow_start?;
        // The first change is from what was not known.
        let has_come_back = self.store.count(server.health.changes) > 1;
        (state.verdict.is_open() && has_come_back && until > now).then_some(until)
    }

    fn backend_summary(&self, backend: &Backend, metrics: &BackendMetrics, states: States, sums: &Sums) -> Value {
        let (level, count) = (|gauge| self.store.level(gauge), |counter| self.store.count(counter));
        json!({
            "name": backend.name,
            "balance": backend.balance.name(),
            "states": states.to_json(),
            "clients": level(metrics.clients_open),
            "clients_total": count(metrics.clients),
            "connections": sums.open,
            "connections_idle": sums.idle,
            "connections_total": sums.made,
            "in_flight": sums.in_flight,
            "requests_total": sums.requests,
            "reused_total": sums.reused,
            "stale_total": sums.stale,
            "connect_failures_total": sums.connect_failures,
            "queued": level(metrics.queue_depth),
            "circuit_limit": backend.circuit.has_limit().then(|| level(metrics.circuit_limit)),
            "circuit_adaptive": backend.circuit.adaptive,
            "queue_waits": self.store.counts(metrics.queue_wait),
            "queue_refused_total": metrics.queue_refused.each().map(|(_, counter)| count(counter)).sum::<u64>(),
            "first_bytes": self.store.counts(metrics.first_byte_duration),
            "retries_total": count(metrics.retries),
            "unavailable_total": count(metrics.unavailable),
            "faults_total": metrics.faults.each().map(|(_, counter)| count(counter)).sum::<u64>(),
        })
    }

    /// The worst first; else in the order of the configuration.
    fn servers_summary(&self, mut rows: Vec<Row>, states: States, filter: &str) -> Value {
        let snapshot = self.current();
        if !filter.is_empty() {
            rows.retain(|row| {
                let name = &snapshot.config.backends[row.backend].name;
                let texts = [name, row.state.verdict.name(), &snapshot.servers[row.backend][row.server].label];
                let reason = row.state.verdict.reason().into_iter();
                texts.into_iter().chain(reason).any(|text| text.to_lowercase().contains(filter))
            });
        }
        let found = rows.len();
        rows.sort_by_key(|row| row.rank);
        let list: Vec<Value> = rows.iter().take(SERVERS_MAX).map(|row| self.server_summary(row)).collect();
        json!({ "states": states.to_json(), "found": found, "list": list })
    }

    fn server_summary(&self, row: &Row) -> Value {
        let snapshot = self.current();
        let backend = &snapshot.config.backends[row.backend];
        let configured = &backend.servers[row.server];
        let metrics = &row.metrics;
        let (level, count) = (|gauge| self.store.level(gauge), |counter| self.store.count(counter));
        let waits = self.last_minute.borrow().waits(snapshot.generation, row.backend, row.server);
        json!({
            "backend": backend.name,
            "address": snapshot.servers[row.backend][row.server].label,
            "rank": row.rank,
            "state": row.state.verdict.name(),
            "usable": row.state.admitted,
            "panic": row.state.admitted && !row.state.verdict.is_open(),
            "reason": row.state.verdict.reason(),
            "since": seconds(row.state.since),
            "until": row.state.until.map(seconds),
            "slow_until": row.slow_until.map(seconds),
            "lookup_failed": row.state.lookup_failed,
            "weight": configured.weight,
            "drain": configured.drain.is_some(),
            "backup": configured.backup,
            "connections": level(metrics.open),
            "connections_idle": level(metrics.idle),
            "passed_over": level(metrics.passed_over),
            "connections_total": count(metrics.connections),
            "max_connections": configured.max_connections,
            "in_flight": level(metrics.in_flight),
            "requests_total": count(metrics.requests),
            "connect_failures_total": count(metrics.connect_failures),
            "successes_total": count(metrics.successes),
            "failures_total": count(metrics.failures),
            "first_byte_seconds": waits.mean_seconds(),
            "slow_times": waits.slow_times,
        })
    }

    /// Listeners, and the sums over all of them.
    fn listeners_summary(&self) -> (Value, Value) {
        let snapshot = self.current();
        let mut all = Clients::default();
        let (mut list, mut total) = (Vec::new(), 0);
        for (index, listener) in snapshot.config.listeners.iter().enumerate() {
            let Some(metrics) = self.telemetry.listener(listener) else { continue };
            total += 1;
            let clients = self.clients(&metrics);
            if list.len() < LISTENERS_MAX {
                list.push(self.listener_summary(index, listener, &clients));
            }
            all.add(clients);
        }
        (json!({ "total": total, "list": list }), all.to_json())
    }

    fn listener_summary(&self, index: usize, listener: &Listener, clients: &Clients) -> Value {
        let snapshot = self.current();
        let addresses = snapshot.addresses(index);
        let protocol = match listener.protocol {
            Protocol::Http => "http",
            Protocol::Tcp => "tcp",
            Protocol::Passthrough => "passthrough",
        };
        let mut value = clients.to_json();
        if let Value::Object(fields) = &mut value {
            fields.insert("name".into(), listener.name.clone().into());
            fields.insert("protocol".into(), protocol.into());
            fields.insert("tls".into(), listener.tls.map(|id| snapshot.config.tls[id.0].name.clone()).into());
            let config_status = addresses.iter().take(ADDRESSES_MAX).map(|address| Value::from(address.to_string()));
            fields.insert("addresses".into(), config_status.collect());
            fields.insert("addresses_total".into(), addresses.len().into());
        }
        value
    }

    fn clients(&self, handles: &ListenerHandles) -> Clients {
        let metrics = &handles.listener;
        let (level, count) = (|gauge| self.store.level(gauge), |counter| self.store.count(counter));
        Clients {
            open: level(metrics.open),
            in_progress: level(metrics.in_progress),
            http2_open: level(metrics.http2.open),
            http2_streams: level(metrics.http2.streams),
            accepted: count(metrics.accepted),
            received: count(metrics.account.received),
            sent: count(metrics.account.sent),
            responses: metrics.responses().map(count),
            requests: self.store.counts(metrics.account.duration),
            handshakes: metrics
                .handshakes
                .each()
                .map(|(version, kind, counter)| (version, kind, count(counter)))
                .collect(),
            handshake_failures: metrics.handshake_failures.each().map(|(_, counter)| count(counter)).sum(),
            handshake_durations: self.store.counts(metrics.handshake_duration),
            relays: handles
                .relay
                .as_ref()
                .map(|relay| count(relay.closed) + relay.failed.each().map(|(_, counter)| count(counter)).sum::<u64>()),
        }
    }

    fn certificates_summary(&self, now: SystemTime, filter: &str) -> Value {
        let snapshot = self.current();
        let profiles = &snapshot.profiles;
        let now = seconds(now) as i64;
        let mut list: Vec<_> = profiles.iter().flat_map(|profile| soonest(profile, filter)).collect();
        list.sort_by_key(|(_, served)| served.not_after);
        let found = list.len();
        let one = |(profile, served): (&Profile, propylon_tls::Served)| certificate(profile, &served);
        let list: Vec<Value> = list.into_iter().take(CERTIFICATES_MAX).map(one).collect();
        let others = expiry::others(&snapshot, OTHER_DATED_MAX);
        let others = others.iter().map(|(of, dated)| {
            json!({
                "kind": dated.kind.name(), "of": of, "name": dated.name,
                "file": dated.path.display().to_string(), "until": dated.until,
            })
        });
        let load_failures = self.load_failures.borrow();
        let load_failures = load_failures.iter().take(UNUSABLE_FILES_MAX).map(|(what, of, finding)| {
            let file = finding.path.display().to_string();
            json!({ "kind": what, "of": of, "file": file, "what": finding.what, "fix": finding.fix })
        });
        json!({
            "total": profiles.iter().map(|profile| profile.count()).sum::<usize>(),
            "by_days_left": expiry::by_days_left(profiles.iter().map(|profile| &**profile), now),
            "found": found,
            "list": list,
            "others": others.collect::<Vec<Value>>(),
            "unusable_files": load_failures.collect::<Vec<Value>>(),
        })
    }

    /// Changes that a page may ask for here with the token.
    fn changes(&self) -> Value {
        let config = &self.current().config;
        let process = &config.process;
        json!({
            "token": config.admin.as_ref().is_some_and(|admin| admin.token_file.is_some()),
            "servers": process.state.is_some() && !process.immutable,
        })
    }

    fn signers_summary(&self) -> Value {
        let snapshot = self.current();
        let signers = snapshot.signers.iter().take(SIGNERS_MAX).filter_map(|signer| {
            let (outcomes, mut servers) = self.telemetry.signer(&signer.config)?.summary(&self.store);
            for (server, label) in servers.iter_mut().zip(&signer.labels) {
                server["address"] = label.clone().into();
            }
            Some(json!({ "name": signer.config.name, "outcomes": outcomes, "servers": servers }))
        });
        signers.collect()
    }
}

/// Clients of one listener, or of all.
#[derive(Default)]
struct Clients {
    open: i64,
    in_progress: i64,
    http2_open: i64,
    http2_streams: i64,
    accepted: u64,
    received: u64,
    sent: u64,
    responses: [u64; 5],
    requests: Vec<u64>,
    handshakes: Vec<(&'static str, &'static str, u64)>,
    handshake_failures: u64,
    handshake_durations: Vec<u64>,
    /// Relayed connections that have ended; `None` on listeners that do not relay.
    relays: Option<u64>,
}

impl Clients {
    fn add(&mut self, other: Clients) {
        self.open += other.open;
        self.in_progress += other.in_progress;
        self.http2_open += other.http2_open;
        self.http2_streams += other.http2_streams;
        self.accepted += other.accepted;
        self.received += other.received;
        self.sent += other.sent;
        self.responses.iter_mut().zip(other.responses).for_each(|(sum, count)| *sum += count);
        add(&mut self.requests, &other.requests);
        add(&mut self.handshake_durations, &other.handshake_durations);
        self.handshake_failures += other.handshake_failures;
        match self.handshakes.is_empty() {
            true => self.handshakes = other.handshakes,
            false => self.handshakes.iter_mut().zip(other.handshakes).for_each(|(sum, (_, _, count))| sum.2 += count),
        }
        self.relays = self.relays.into_iter().chain(other.relays).reduce(|one, other| one + other);
    }

    fn to_json(&self) -> Value {
        let mut handshakes = Map::new();
        for (version, kind, count) in &self.handshakes {
            let versions = handshakes.entry(*version).or_insert_with(|| json!({}));
            versions[*kind] = (*count).into();
        }
        json!({
            "connections": self.open,
            "connections_total": self.accepted,
            "in_progress": self.in_progress,
            "http2_connections": self.http2_open,
            "http2_streams": self.http2_streams,
            "received_bytes_total": self.received,
            "sent_bytes_total": self.sent,
            "responses_total": self.responses,
            "requests": self.requests,
            "handshakes_total": handshakes,
            "handshake_failures_total": self.handshake_failures,
            "handshakes": self.handshake_durations,
            "relays_total": self.relays,
        })
    }
}

fn add(sums: &mut Vec<u64>, counts: &[u64]) {
    sums.resize(sums.len().max(counts.len()), 0);
    sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
}

/// Rank of a server that workers pass over, whatever its verdict.
const PASSED_OVER_RANK: u8 = 2;

/// Rank of a server that takes far longer than the others, and of one that starts slowly.
const SLOW_RANK: u8 = 4;

/// Worst first.
fn rank(state: &State, slow_until: Option<SystemTime>, backup: bool) -> u8 {
    match (&state.verdict, &state.lookup_failed) {
        (Verdict::Down(_), _) => 0,
        (Verdict::Ejected { .. }, _) => 1,
        (_, Some(_)) => 2,
        (Verdict::Draining(_), _) => 3,
        _ if slow_until.is_some() => SLOW_RANK,
        _ if backup => 6,
        _ => 5,
    }
}

/// Rank of a backend: without a usable server, without some, and then the rest.
fn urgency(states: States) -> u8 {
    match states.total - states.usable {
        0 => 2,
        _ if states.usable == 0 => 0,
        _ => 1,
    }
}

fn soonest<'a>(profile: &'a Profile, filter: &str) -> impl Iterator<Item = (&'a Profile, propylon_tls::Served)> {
    let max = if filter.is_empty() { CERTIFICATES_MAX } else { propylon_tls::SHOWN_MAX };
    let fits = |served: &propylon_tls::Served| {
        filter.is_empty()
            || [&*served.name, served.key_type.name(), profile.name()]
                .iter()
                .any(|text| text.to_lowercase().contains(filter))
            || served.path.to_string_lossy().to_lowercase().contains(filter)
    };
    let fitting: Vec<_> = profile.soonest(max).filter(fits).collect();
    fitting.into_iter().map(move |served| (profile, served))
}

/// Seconds since 1970.
fn seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_looked_for_is_decoded_and_bounded() {
        let filter = |query: &str| Filter::parse(Some(query));
        assert_eq!(filter("servers=App%20%C3%84+1&certificates=").servers, "app ä 1");
        assert_eq!(filter("servers=%zz%4&x=1&=").servers, "%zz%4");
        assert_eq!(filter("certificates=%ff").certificates, "\u{fffd}");
        assert_eq!(filter(&format!("servers={}", "a".repeat(5000))).servers.len(), FILTER_CHARS_MAX);
        assert_eq!(Filter::parse(None), Filter::default());
        assert_eq!((filter("routes=").routes, filter("servers=").routes), (Some(String::new()), None));
        assert_eq!(filter("routes=Shop").routes.as_deref(), Some("shop"));
    }

    #[test]
    fn sums_over_listeners_add_up_kind_by_kind() {
        let one = |count| Clients {
            open: 1,
            responses: [0, count, 0, 0, 1],
            requests: vec![count, 0, 1],
            handshakes: vec![("TLSv1.3", "ecdsa", count), ("TLSv1.3", "resumed", 1)],
            relays: (count > 5).then_some(count),
            ..Clients::default()
        };
        let mut all = Clients::default();
        [3, 7].into_iter().for_each(|count| all.add(one(count)));
        let value = all.to_json();
        assert_eq!(value["responses_total"], json!([0, 10, 0, 0, 2]));
        assert_eq!(value["requests"], json!([10, 0, 2]));
        assert_eq!(value["handshakes_total"], json!({ "TLSv1.3": { "ecdsa": 10, "resumed": 2 } }));
        assert_eq!((&value["connections"], &value["relays_total"]), (&json!(2), &json!(7)));
    }
}
