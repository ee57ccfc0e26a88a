//! Health of servers, on the main thread: probes, outcomes of requests and name look-ups go in; verdicts and addresses
//! go out to the workers, and with their reasons to the log, the metrics and the admin address.
//!
//! The decisions are made by `propylon_policy::health`; this file supplies its clock, its randomness and its
//! observations. The reasons for this design are in `docs/decisions/0027-health.md`.

pub mod failure;
mod fastcgi;
mod grpc;
mod http;
mod http2;
pub mod probe;
mod probe_limiter;
pub(crate) mod stream;

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use propylon_config::{Backend, HealthCheck, ProbeKind, ServerAddress, ServerProtocol};
use propylon_metrics::{Column, Store};
use propylon_policy::health::{Change, Outliers, Probes, Rules, Servers, SuccessRate, Verdict, next_probe};
use propylon_tls::{Connector, Parking, UpstreamProfile};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, JoinSet, spawn_local};
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until};

use crate::names::Names;
use failure::Failure;
use probe::probe;
use probe_limiter::{Kind, ProbeLimiter};
use propylon_observe::telemetry::{
    BackendHandles, PROBE_NOT_MADE, PROBE_RESULTS, PROBE_SUCCEEDED, ServerHealthMetrics, ServerMetrics, Telemetry,
};
use propylon_proxy::alpn::server_alpn;
use propylon_proxy::endpoint::{Availability, Endpoint, Target};
use propylon_proxy::snapshot::Snapshot;
use propylon_proxy::upstream::backend::Server;
use propylon_signer::KeyProcessClient;
use propylon_sys::Address;

/// Limit on the count of probes in progress at once, each of which has a socket; the others wait for a permit.
pub const PROBES_AT_ONCE_MAX: usize = 128;
/// Reason for which a server is down if its name has not been found since the start.
const NOWHERE: &str = "its name cannot be looked up";
/// Advice in the log line about a name that cannot be looked up.
const NAME_CURE: &str = "check the name and process.resolver";
/// Advice in the log line about an ejection.
const EJECTED_CURE: &str = "look at the server's own log";
/// Interval between checks of the outcomes of requests.
const LOOK: Duration = Duration::from_secs(1);

/// All servers of the configuration in effect, and the tasks that watch them.
#[derive(Clone)]
pub struct Health(Rc<Inner>);

/// State that outlives configurations.
struct Inner {
    /// The table of the configuration in effect.
    table: RefCell<Rc<HealthTable>>,
    /// Tasks by their servers' endpoints, which the table holds.
    tasks: RefCell<HashMap<*const Endpoint, Tasks>>,
    limiter: ProbeLimiter,
    random: RefCell<fastrand::Rng>,
    /// The key process, which signs for client certificates shown to servers; `None` without `keys.isolate`.
    key_process: Option<Rc<KeyProcessClient>>,
}

/// Tasks of one server. A task ends when the server is gone, or is to be watched in another way; otherwise it goes on
/// through changes of the configuration, so that frequent changes do not keep a server from being probed or looked up.
#[derive(Default)]
struct Tasks {
    probing: Option<Task>,
    following: Option<Task>,
}

/// A task that is aborted when this is dropped.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Verdicts on the servers of one configuration, and what they go by.
struct HealthTable {
    snapshot: Arc<Snapshot>,
    store: Arc<Store>,
    telemetry: Arc<Telemetry>,
    names: Names,
    began: Instant,
    began_at: SystemTime,
    /// TLS connectors for probes, by backend; `None` for plaintext, and for a backend without probes.
    connectors: Vec<Option<Connector>>,
    /// Metrics by backend.
    metrics: Vec<Arc<BackendHandles>>,
    /// Indexes of backend and server by endpoint.
    indexes: HashMap<*const Endpoint, (usize, usize)>,
    backends: RefCell<Vec<Watched>>,
}

/// A backend with its servers' verdicts.
struct Watched {
    servers: Servers,
    /// Further observations, by server.
    known: Vec<Known>,
}

/// Observations of a server beside its verdict.
#[derive(Default)]
struct Known {
    /// All addresses of the server.
    targets: Vec<Target>,
    /// Addresses that did not answer their last probe.
    silent: Vec<Address>,
    /// Whether the last probe of one of the addresses took until its timeout.
    is_slow: bool,
    /// Counts of outcomes that the policy has been told of.
    successes: u64,
    failures: u64,
    /// Error of the last look-up of the server's name, if that failed.
    lookup: Option<String>,
}

/// A server's result of probes, handed over to the process that succeeds this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownServer {
    backend: String,
    /// The server's address as the configuration has it.
    server: String,
    /// Reason for which the server is down, if it is.
    down: Option<String>,
}

impl KnownServer {
    pub fn to_json(&self) -> Value {
        json!({ "backend": self.backend, "server": self.server, "down": self.down })
    }

    /// Returns `None` if the value is not such an object.
    pub fn from_json(value: &Value) -> Option<KnownServer> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Some(KnownServer {
            backend: text(&value["backend"])?,
            server: text(&value["server"])?,
            down: text(&value["down"]),
        })
    }
}

/// A server's state, for the admin address.
pub struct State {
    pub verdict: Verdict,
    /// Whether requests may go to the server.
    pub admitted: bool,
    pub since: SystemTime,
    /// End of the ejection, if the server is ejected.
    pub until: Option<SystemTime>,
    /// Error of the last look-up of the server's name, if that failed.
    pub lookup_failed: Option<String>,
}

impl Health {
    /// Starts to watch, on the current runtime, which is the main thread's. What is `known` already need not be found
    /// out before requests come.
    pub fn start(
        snapshot: &Arc<Snapshot>,
        store: &Arc<Store>,
        telemetry: &Arc<Telemetry>,
        known: &[KnownServer],
        key_process: Option<Rc<KeyProcessClient>>,
    ) -> Health {
        let (began, began_at) = (Instant::now(), SystemTime::now());
        let parking = key_process.as_ref().map(|key_process| key_process.parking());
        let mut table = HealthTable::new(snapshot, store, telemetry, parking, (began, began_at));
        table.inherit(known);
        let health = Health(Rc::new(Inner {
            table: RefCell::new(Rc::new(table)),
            tasks: RefCell::default(),
            limiter: ProbeLimiter::new(PROBES_AT_ONCE_MAX),
            random: RefCell::default(),
            key_process,
        }));
        health.begin(None);
        spawn_local(health.clone().review_outcomes());
        health
    }

    /// Watches the servers of another configuration from now on, which is about to be published. Of a server that is in
    /// both, which is one whose endpoint is the same, everything known goes on.
    pub fn reload(&self, snapshot: &Arc<Snapshot>) {
        let old = self.table();
        let parking = self.0.key_process.as_ref().map(|key_process| key_process.parking());
        let mut table = HealthTable::new(snapshot, &old.store, &old.telemetry, parking, (old.began, old.began_at));
        table.take_over(&old);
        *self.0.table.borrow_mut() = Rc::new(table);
        self.begin(Some(&old));
    }

    /// Ends all probes, for good: whoever has taken over makes them, and twice as many is what servers would see. What
    /// is known stays, for requests that are still in progress here.
    pub fn leave_to_successor(&self) {
        self.0.tasks.borrow_mut().values_mut().for_each(|tasks| tasks.probing = None);
    }

    /// Results of probes of all servers that are probed, for the successor.
    pub fn hand_over(&self) -> Vec<KnownServer> {
        let table = self.table();
        let backends = table.backends.borrow();
        let mut all = Vec::new();
        for (index, backend) in table.snapshot.config.backends.iter().enumerate() {
            for (server, configured) in backend.servers.iter().enumerate() {
                let down = match backends[index].servers.found(server) {
                    None => continue,
                    Some(found) => found.err().map(|reason| reason.to_string()),
                };
                all.push(KnownServer { backend: backend.name.clone(), server: configured.address.to_string(), down });
            }
        }
        all
    }

    fn table(&self) -> Rc<HealthTable> {
        Rc::clone(&self.0.table.borrow())
    }

    /// Says how things stand, and has every server watched as this configuration wants it.
    fn begin(&self, old: Option<&HealthTable>) {
        let table = self.table();
        let config = &table.snapshot.config;
        let mut tasks = self.0.tasks.borrow_mut();
        tasks.retain(|endpoint, _| table.indexes.contains_key(endpoint));
        let before = old.map(|old| old.snapshot.config.backend_indexes()).unwrap_or_default();
        let looks_up_alike = old.is_some_and(|old| old.looks_up_alike(&table));
        for (index, backend) in config.backends.iter().enumerate() {
            table.review(index);
            let is_panic = table.backends.borrow()[index].servers.is_panic();
            table.column().set(table.metrics[index].backend.panic, i64::from(is_panic));
            // Once for all servers: it is a look at the whole backend.
            let known = old.and_then(|old| Some((old, *before.get(backend.name.as_str())?)));
            let probes_alike = known.is_some_and(|(old, known)| old.probes_alike(known, &table, index));
            for (server, configured) in backend.servers.iter().enumerate() {
                table.announce(index, server);
                let endpoint = &table.snapshot.servers[index][server].endpoint;
                let tasks = tasks.entry(Arc::as_ptr(endpoint)).or_default();
                let is_same = old.is_some_and(|old| old.indexes.contains_key(&Arc::as_ptr(endpoint)));
                if backend.health.is_none() {
                    tasks.probing = None;
                } else if tasks.probing.is_none() || !(is_same && probes_alike) {
                    tasks.probing = Some(Task(spawn_local(self.clone().watch(Arc::clone(endpoint)))));
                }
                if configured.address.is_name() && (tasks.following.is_none() || !(is_same && looks_up_alike)) {
                    // Other name servers may know better at once. How long a first answer holds was not kept.
                    let wait = if is_same { Duration::ZERO } else { config.process.resolver.ttl_min };
                    tasks.following = Some(Task(spawn_local(self.clone().resolve_name(Arc::clone(endpoint), wait))));
                }
            }
        }
    }

    /// The state of the server with this endpoint. One that the configuration in effect does not have is unknown.
    pub fn state(&self, endpoint: &Arc<Endpoint>) -> State {
        let table = self.table();
        let Some((backend, server)) = table.indexes_of(endpoint) else {
            let (verdict, since) = (Verdict::Unknown, table.began_at);
            return State { verdict, admitted: true, since, until: None, lookup_failed: None };
        };
        let backends = table.backends.borrow();
        let (verdict, since) = backends[backend].servers.verdict(server);
        let until = if let Verdict::Ejected { until, .. } = verdict { Some(table.time(*until)) } else { None };
        let lookup_failed = backends[backend].known[server].lookup.clone();
        let admitted = backends[backend].servers.admits(server);
        State { verdict: verdict.clone(), admitted, since: table.time(since), until, lookup_failed }
    }

    /// Probes a server for as long as it is there and probed like this.
    async fn watch(self, endpoint: Arc<Endpoint>) {
        loop {
            let table = self.table();
            let Some((backend, server)) = table.indexes_of(&endpoint) else { return };
            if table.snapshot.config.backends[backend].health.is_none() {
                return;
            }
            let began = tokio::time::Instant::now();
            let targets = table.backends.borrow()[backend].known[server].targets.clone();
            let mut probes = JoinSet::new();
            for Target { address, .. } in targets {
                let (health, table) = (self.clone(), Rc::clone(&table));
                probes.spawn_local(async move { (address, health.ask(&table, backend, server, address).await) });
            }
            drop(table);
            let found = probes.join_all().await;
            let table = self.table();
            let Some((backend, server)) = table.indexes_of(&endpoint) else { return };
            table.conclude(backend, server, &found);
            let Some(check) = &table.snapshot.config.backends[backend].health else { return };
            let every = table.interval(check, backend, server).as_millis() as u64;
            drop(table);
            let wait = next_probe(every, self.0.random.borrow_mut().u64(..));
            sleep_until(began + Duration::from_millis(wait)).await;
        }
    }

    async fn ask(&self, table: &HealthTable, backend: usize, server: usize, address: Address) -> Result<(), Failure> {
        let config = &table.snapshot.config.backends[backend];
        let Some(check) = &config.health else { return Err(Failure::new(PROBE_NOT_MADE, "")) };
        let due = Instant::now();
        let _permit = self.0.limiter.take(table.number(backend), table.kind(backend, server)).await;
        table.count_wait(backend, due.elapsed(), check.interval);
        let address = match address {
            Address::Ip(own) => SocketAddr::new(own.ip(), check.port.unwrap_or(own.port())).into(),
            Address::Unix(_) => address,
        };
        let host = host_of(&config.servers[server].address, address);
        let secure =
            table.connectors[backend].as_ref().map(|connector| (connector, server, self.0.key_process.as_deref()));
        let (protocol, from) = ((config.protocol, config.fastcgi.as_ref()), (address, config.source.as_ref()));
        let found = probe(check, protocol, from, &host, secure).await;
        let word = found.as_ref().map_or_else(|failure| failure.word, |()| PROBE_SUCCEEDED);
        let place = PROBE_RESULTS.iter().position(|known| *known == word);
        if let (Some(place), Some(probes)) = (place, &table.metrics[backend].probes[server]) {
            table.column().increment(probes.0[place]);
        }
        found
    }

    async fn review_outcomes(self) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let table = self.table();
            for (index, backend) in table.snapshot.config.backends.iter().enumerate() {
                if backend.outlier.is_some() {
                    table.review_backend(index);
                }
            }
        }
    }

    /// Looks a name up again whenever its answer is too old.
    async fn resolve_name(self, endpoint: Arc<Endpoint>, mut wait: Duration) {
        loop {
            sleep(wait).await;
            let table = self.table();
            let Some((backend, server)) = table.indexes_of(&endpoint) else { return };
            let question = table.snapshot.config.backends[backend].servers[server].address.clone();
            let (names, again) = (table.names.clone(), table.snapshot.config.process.resolver.ttl_min);
            drop(table);
            let found = names.look_up(&question).await;
            let table = self.table();
            let Some((backend, server)) = table.indexes_of(&endpoint) else { return };
            wait = match found {
                Ok(found) => {
                    table.found(backend, server, found.targets);
                    found.valid
                }
                Err(error) => {
                    table.not_found(backend, server, error);
                    again
                }
            };
        }
    }
}

impl Known {
    /// Counts of outcomes start at the present values: earlier requests are nothing to judge by.
    fn of(server: &Server, store: &Store, metrics: &ServerMetrics) -> Known {
        let (successes, failures) = (store.count(metrics.successes), store.count(metrics.failures));
        let targets = server.endpoint.targets();
        let lookup = targets.is_empty().then(|| "it was not found at the start".to_owned());
        Known { targets, successes, failures, lookup, ..Known::default() }
    }
}

fn connector(
    backend: &Backend,
    upstream: Option<&Arc<UpstreamProfile>>,
    parking: Option<&Rc<Parking>>,
) -> Option<Connector> {
    let check = backend.health.as_ref()?;
    let alpn: &[&[u8]] = match &check.kind {
        ProbeKind::Grpc { .. } => &[b"h2"],
        // A port of its own may be another server's.
        ProbeKind::Http(_) if backend.protocol == ServerProtocol::Http2 && check.port.is_some() => {
            &[b"h2", b"http/1.1"]
        }
        ProbeKind::Http(_) | ProbeKind::Tcp | ProbeKind::Tls => server_alpn(backend),
    };
    let connector = upstream?.connector_for(alpn);
    Some(match parking {
        Some(parking) => connector.deferring(parking),
        None => connector,
    })
}

fn rules(backend: &Backend) -> Rules {
    let probes = |check: &HealthCheck| Probes { rise: check.rise, fall: check.fall, starts_up: check.starts_up };
    let outliers = |outlier: &propylon_config::Outlier| Outliers {
        interval: outlier.interval.as_millis() as u64,
        consecutive_failures: outlier.consecutive_failures.into(),
        success_rate: (outlier.success_rate_servers > 0).then_some(SuccessRate {
            servers_min: outlier.success_rate_servers as usize,
            requests_min: outlier.success_rate_requests.into(),
            deviation_percent: outlier.success_rate_deviation_percent,
        }),
        ejection: outlier.ejection.as_millis() as u64,
        ejection_max: outlier.ejection_max.as_millis() as u64,
        ejected_percent_max: outlier.ejected_percent_max,
    };
    Rules {
        probes: backend.health.as_ref().map(probes),
        outliers: backend.outlier.as_ref().map(outliers),
        min_healthy_percent: backend.min_healthy,
    }
}

impl HealthTable {
    fn new(
        snapshot: &Arc<Snapshot>,
        store: &Arc<Store>,
        telemetry: &Arc<Telemetry>,
        parking: Option<&Rc<Parking>>,
        (began, began_at): (Instant, SystemTime),
    ) -> HealthTable {
        let now = began.elapsed().as_millis() as u64;
        let metrics = telemetry.configured(&snapshot.config).backends;
        let watched = |((backend, servers), metrics): ((&Backend, &Arc<Vec<Server>>), &Arc<BackendHandles>)| {
            let mut judged = Servers::new(rules(backend), backend.servers.len(), now);
            let nowhere = servers.iter().enumerate().filter(|(_, server)| server.endpoint.targets().is_empty());
            nowhere.for_each(|(server, _)| judged.set_nowhere(server, Some(NOWHERE.into())));
            let known = servers.iter().zip(&metrics.servers);
            let known = known.map(|(server, metrics)| Known::of(server, store, metrics)).collect();
            Watched { servers: judged, known }
        };
        let config = &snapshot.config;
        let connectors = config.backends.iter().zip(&snapshot.upstreams);
        let indexes = snapshot.servers.iter().enumerate().flat_map(|(backend, servers)| {
            let servers = servers.iter().enumerate();
            servers.map(move |(server, each)| (Arc::as_ptr(&each.endpoint), (backend, server)))
        });
        let backends = config.backends.iter().zip(&snapshot.servers).zip(&metrics).map(watched).collect();
        HealthTable {
            snapshot: Arc::clone(snapshot),
            store: Arc::clone(store),
            telemetry: Arc::clone(telemetry),
            names: Names::new(&config.process.resolver),
            began,
            began_at,
            connectors: connectors.map(|(backend, upstream)| connector(backend, upstream.as_ref(), parking)).collect(),
            indexes: indexes.collect(),
            metrics,
            backends: RefCell::new(backends),
        }
    }

    /// Takes over the predecessor process's results of probes.
    fn inherit(&mut self, known: &[KnownServer]) {
        for (index, backend) in self.snapshot.config.backends.iter().enumerate() {
            let servers = &mut self.backends.get_mut()[index].servers;
            for (server, configured) in backend.servers.iter().enumerate() {
                let label = configured.address.to_string();
                if let Some(known) = known.iter().find(|known| known.backend == backend.name && known.server == label) {
                    servers.inherit(server, known.down.as_deref().map(Into::into));
                }
            }
        }
    }

    /// Takes over the observations of servers that are in both configurations.
    fn take_over(&mut self, old: &HealthTable) {
        let mut before = old.backends.borrow_mut();
        for (Watched { servers, known }, endpoints) in self.backends.get_mut().iter_mut().zip(&self.snapshot.servers) {
            for (server, Server { endpoint, .. }) in endpoints.iter().enumerate() {
                let Some((old_backend, old_server)) = old.indexes_of(endpoint) else { continue };
                let before = &mut before[old_backend];
                servers.adopt(server, &before.servers, old_server);
                let now = (known[server].successes, known[server].failures);
                known[server] = std::mem::take(&mut before.known[old_server]);
                if old.snapshot.config.backends[old_backend].outlier.is_none() {
                    // Nobody has looked at outcomes: only those to come count.
                    (known[server].successes, known[server].failures) = now;
                }
            }
        }
    }

    /// Whether servers of a backend are probed in the same way in the later table, where the backend has this index.
    fn probes_alike(&self, backend: usize, later: &HealthTable, index: usize) -> bool {
        let of = |table: &HealthTable, backend: usize| {
            let backend = &table.snapshot.config.backends[backend];
            (backend.health.clone(), backend.protocol, backend.source.clone())
        };
        let same_tls = match (&self.snapshot.upstreams[backend], &later.snapshot.upstreams[index]) {
            (Some(one), Some(two)) => one.is_kin(two),
            (one, two) => one.is_none() && two.is_none(),
        };
        of(self, backend) == of(later, index) && same_tls
    }

    fn looks_up_alike(&self, later: &HealthTable) -> bool {
        let of = |table: &HealthTable| table.snapshot.config.process.resolver.clone();
        of(self) == of(later)
    }

    /// Judges by the rules of this configuration, and by who is to be drained.
    fn review(&self, backend: usize) {
        self.change(backend, |servers, now| {
            for (server, configured) in self.snapshot.config.backends[backend].servers.iter().enumerate() {
                servers.set_drain(server, configured.drain.map(|by| by.reason().into()));
                servers.set_backup(server, configured.backup);
            }
            servers.review(now)
        });
    }

    /// Tells the cores and the metrics how it stands with a server.
    fn announce(&self, backend: usize, server: usize) {
        let verdict = self.backends.borrow()[backend].servers.verdict(server).0.clone();
        self.set_availability(backend, server);
        self.set_gauges(backend, server, &verdict);
        let is_lost = self.backends.borrow()[backend].known[server].lookup.is_some();
        self.column().set(self.metrics(backend, server).lookup_failing, i64::from(is_lost));
        self.publish_addresses(backend, server);
    }

    /// A server is as good as the best of its addresses, and those that did not answer get no connections meanwhile.
    fn conclude(&self, backend: usize, server: usize, found: &[(Address, Result<(), Failure>)]) {
        let label = &self.snapshot.servers[backend][server].label;
        let (mut silent, mut is_slow) = (Vec::new(), false);
        let mut verdict = None;
        for (address, found) in found {
            match found {
                Ok(()) => verdict = Some(Ok(())),
                Err(failure) if failure.word == PROBE_NOT_MADE => {
                    log::warn!("a health check of {label} was not made: {failure}")
                }
                Err(failure) => {
                    silent.push(*address);
                    is_slow |= failure.took_too_long();
                    verdict = verdict.or_else(|| Some(Err(failure.to_string().into())));
                }
            }
        }
        let mut backends = self.backends.borrow_mut();
        let known = &mut backends[backend].known[server];
        (known.silent, known.is_slow) = (silent, is_slow);
        drop(backends);
        self.publish_addresses(backend, server);
        if let Some(verdict) = verdict {
            if verdict.is_ok() && self.snapshot.config.backends[backend].outlier.is_some() {
                // Failures from before the probe belong before its verdict.
                self.count_outcomes(backend, server);
            }
            self.change(backend, |servers, now| servers.probed(server, verdict, now));
        }
    }

    /// Interval between the probes of a server, by what they have found. One that answers again is asked at the shorter
    /// of both intervals until it is up.
    fn interval(&self, check: &HealthCheck, backend: usize, server: usize) -> Duration {
        let servers = &self.backends.borrow()[backend].servers;
        match (servers.found(server), check.interval_down) {
            (Some(Err(_)), Some(interval)) if servers.is_rising(server) => interval.min(check.interval),
            (Some(Err(_)), Some(interval)) => interval,
            _ => check.interval,
        }
    }

    /// How long the next probe of a server is likely to take. That of one which is up is awaited, whatever the last one
    /// found: it may be what its end is known by.
    fn kind(&self, backend: usize, server: usize) -> Kind {
        let Watched { servers, known } = &self.backends.borrow()[backend];
        let is_down = matches!(servers.found(server), Some(Err(_)));
        if is_down && known[server].is_slow { Kind::Silent } else { Kind::Prompt }
    }

    /// Counts how long a probe waited for its permit, and whether that was too long.
    fn count_wait(&self, backend: usize, waited: Duration, interval: Duration) {
        let metrics = &self.metrics[backend].backend;
        self.column().observe(metrics.probe_wait, waited.as_micros() as u64);
        if waited > interval {
            self.column().increment(metrics.probes_late);
        }
    }

    fn review_backend(&self, backend: usize) {
        let all = self.backends.borrow()[backend].known.len();
        (0..all).for_each(|server| self.count_outcomes(backend, server));
        self.change(backend, Servers::tick);
    }

    /// Tells the policy what came of a server's requests since the last time.
    fn count_outcomes(&self, backend: usize, server: usize) {
        let metrics = &self.metrics[backend].servers[server];
        let now = (self.store.count(metrics.successes), self.store.count(metrics.failures));
        let Watched { servers, known } = &mut self.backends.borrow_mut()[backend];
        let known = &mut known[server];
        servers.counted(server, now.0.saturating_sub(known.successes), now.1.saturating_sub(known.failures));
        (known.successes, known.failures) = now;
    }

    fn found(&self, backend: usize, server: usize, targets: Vec<Target>) {
        let place = self.place(backend, server);
        self.column().set(self.metrics(backend, server).lookup_failing, 0);
        let mut backends = self.backends.borrow_mut();
        let known = &mut backends[backend].known[server];
        let was_nowhere = known.targets.is_empty();
        if known.lookup.take().is_some() {
            log::info!("{place}: its name is found{}", if was_nowhere { "" } else { " again" });
        }
        if known.targets != targets {
            log::info!("{place} is now at {}", listed(&targets));
            known.targets = targets;
            drop(backends);
            self.publish_addresses(backend, server);
            if was_nowhere {
                self.change(backend, |servers, now| {
                    servers.set_nowhere(server, None);
                    servers.review(now)
                });
            }
        }
    }

    fn not_found(&self, backend: usize, server: usize, error: String) {
        let (column, metrics) = (self.column(), self.metrics(backend, server));
        column.increment(metrics.lookup_failures);
        column.set(metrics.lookup_failing, 1);
        let mut backends = self.backends.borrow_mut();
        let known = &mut backends[backend].known[server];
        if known.lookup.is_none() {
            let kept = match known.targets.is_empty() {
                true => "it has no address yet".to_owned(),
                false => format!("it stays at {}", listed(&known.targets)),
            };
            log::warn!("{}: its name cannot be looked up: {error}; {kept}; {NAME_CURE}", self.place(backend, server));
        }
        known.lookup = Some(error);
    }

    /// Tells the cores where a server is: at all its addresses but the silent ones, unless all are. Where somebody asks
    /// them, those that stand in are told of only while no better one answers, so that nobody stays with them for
    /// longer.
    fn publish_addresses(&self, backend: usize, server: usize) {
        let backends = self.backends.borrow();
        let Known { targets, silent, .. } = &backends[backend].known[server];
        let answering = targets.iter().filter(|target| !silent.contains(&target.address)).copied();
        let mut published: Vec<Target> = answering.collect();
        if published.is_empty() {
            published.clone_from(targets);
        } else if self.snapshot.config.backends[backend].health.is_some() {
            let first = published.iter().map(|target| target.priority).min();
            published.retain(|target| Some(target.priority) == first);
        }
        let first = published.iter().map(|target| target.priority).min();
        let in_turn = published.iter().filter(|target| Some(target.priority) == first).count();
        self.column().set(self.metrics(backend, server).addresses, in_turn as i64);
        self.snapshot.servers[backend][server].endpoint.set_targets(published);
    }

    /// Lets the policy judge, and tells everybody what is different.
    fn change(&self, backend: usize, judge: impl FnOnce(&mut Servers, u64) -> Vec<Change>) {
        let now = self.began.elapsed().as_millis() as u64;
        let mut backends = self.backends.borrow_mut();
        let servers = &mut backends[backend].servers;
        let panicked = servers.is_panic();
        let changes = judge(servers, now);
        let panics = servers.is_panic();
        if changes.is_empty() && panics == panicked {
            return;
        }
        let (open, all) = (servers.open(), servers.count_all());
        drop(backends);
        for Change { server, from, to } in changes {
            self.set_availability(backend, server);
            let (column, metrics) = (self.column(), self.metrics(backend, server));
            self.set_gauges(backend, server, &to);
            column.increment(metrics.changes);
            let place = self.place(backend, server);
            let left = format!("{open} of {all} servers can be used");
            match &to {
                // The first probe of a server that was taken for fit is no news.
                Verdict::Up | Verdict::Unknown if from.is_open() => {}
                Verdict::Up | Verdict::Unknown => log::info!("{place} {}; {left}", returned(&from, now)),
                Verdict::Draining(reason) => log::info!("{place} is draining: {reason}; {left}"),
                Verdict::Down(reason) if open == 0 => {
                    log::error!(
                        "{place} is down: {reason}; {left}; bring servers back, or see what they answer to health checks"
                    );
                }
                Verdict::Down(reason) => log::warn!("{place} is down: {reason}; {left}"),
                Verdict::Ejected { reason, until } => {
                    column.increment(metrics.ejections);
                    let seconds = until.saturating_sub(now) / 1000;
                    log::warn!("{place} is ejected for {seconds} s: {reason}; {left}; {EJECTED_CURE}");
                }
            }
        }
        if panics != panicked {
            self.log_panic(backend, panics, (open, all));
        }
    }

    /// Tells the metrics what is thought of a server.
    fn set_gauges(&self, backend: usize, server: usize, verdict: &Verdict) {
        let (column, metrics) = (self.column(), self.metrics(backend, server));
        column.set(metrics.up, i64::from(verdict.is_open()));
        column.set(metrics.ejected, i64::from(matches!(verdict, Verdict::Ejected { .. })));
    }

    /// Lets requests to a server, or keeps them away.
    fn set_availability(&self, backend: usize, server: usize) {
        let servers = &self.backends.borrow()[backend].servers;
        let door = match (servers.verdict(server).0.is_open(), servers.admits(server)) {
            (true, _) => Availability::Open,
            (false, true) => Availability::Panic,
            (false, false) => Availability::Closed,
        };
        self.snapshot.servers[backend][server].endpoint.set_availability(door);
    }

    /// The verdicts are not believed from now on, or are again.
    fn log_panic(&self, backend: usize, panic: bool, (open, all): (usize, usize)) {
        let configured = &self.snapshot.config.backends[backend];
        let (column, metrics) = (self.column(), &self.metrics[backend].backend);
        column.set(metrics.panic, i64::from(panic));
        (0..configured.servers.len()).for_each(|server| self.set_availability(backend, server));
        let (name, percent) = (&configured.name, configured.min_healthy);
        if panic {
            column.increment(metrics.panics);
            log::error!(
                "backend \"{name}\": panic: {open} of {all} servers are up, and min_healthy is {percent} %: those that are down \
                 get requests as well; bring servers back, or lower min_healthy"
            );
        } else {
            log::info!("backend \"{name}\": the panic is over; {open} of {all} servers can be used");
        }
    }

    /// The main thread's own, which is the last.
    fn column(&self) -> Column {
        Store::column(&self.store, self.store.columns() - 1)
    }

    fn metrics(&self, backend: usize, server: usize) -> &ServerHealthMetrics {
        &self.metrics[backend].servers[server].health
    }

    /// Indexes of backend and server; `None` if the configuration does not have the server.
    fn indexes_of(&self, endpoint: &Arc<Endpoint>) -> Option<(usize, usize)> {
        self.indexes.get(&Arc::as_ptr(endpoint)).copied()
    }

    /// Number that a backend has in each configuration.
    fn number(&self, backend: usize) -> usize {
        Arc::as_ptr(&self.metrics[backend].backend) as usize
    }

    fn place(&self, backend: usize, server: usize) -> String {
        let name = &self.snapshot.config.backends[backend].name;
        format!("backend \"{name}\": server {}", self.snapshot.servers[backend][server].label)
    }

    fn time(&self, millis: u64) -> SystemTime {
        self.began_at + Duration::from_millis(millis)
    }
}

/// How it comes that a server gets requests again, in words that claim no more than is known.
fn returned(from: &Verdict, now: u64) -> &'static str {
    match from {
        Verdict::Ejected { until, .. } if now < *until => {
            "is used again before its ejection is over: no other server is left"
        }
        Verdict::Ejected { .. } => "is used again: its ejection is over",
        Verdict::Draining(_) => "is drained no more",
        _ => "is up again",
    }
}

fn listed(targets: &[Target]) -> String {
    targets.iter().map(|target| target.address.to_string()).collect::<Vec<_>>().join(", ")
}

/// A server's name in a request's Host, without the port where it is HTTP's own (RFC 9110 §7.2). A Unix socket has
/// none: nginx and curl ask "localhost" there.
fn host_of(server: &ServerAddress, address: Address) -> String {
    let Address::Ip(address) = address else { return "localhost".into() };
    let host = match server {
        ServerAddress::Name { host, .. } => host.clone(),
        // The names behind a service are no names of its own.
        ServerAddress::Srv { name } => name.splitn(3, '.').last().unwrap_or_default().to_string(),
        _ if address.is_ipv6() => format!("[{}]", address.ip()),
        _ => address.ip().to_string(),
    };
    if address.port() == 80 { host } else { format!("{host}:{}", address.port()) }
}

#[cfg(test)]
mod tests;
