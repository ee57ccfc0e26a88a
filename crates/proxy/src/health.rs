//! Which servers are fit, on the main thread: probes, outcomes of requests and names go in; verdicts and addresses go out to the
//! cores, and with their reasons into log, metrics and the admin address.
//!
//! Who decides is `propylon_policy::health`. Here are its clock, its chance and its eyes. Why it is so:
//! `docs/decisions/0027-health.md`.

mod grpc;
mod http;
pub(crate) mod line;
pub mod probe;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use propylon_config::{Backend, HealthCheck, ProbeKind, ServerAddress};
use propylon_metrics::{Column, Store};
use propylon_policy::health::{Change, Outliers, Probes, Rules, Servers, SuccessRate, Verdict, next_probe};
use propylon_tls::{Connector, UpstreamProfile};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until};

use crate::names::Names;
use crate::snapshot::{Server, Snapshot, server_alpn};
use crate::telemetry::{ServerHealthMetrics, Telemetry};
use probe::{Failure, NOT_MADE, SUCCESS, probe};

pub use probe::RESULTS;

/// Probes under way at once; the others wait for their turn. Each has a socket.
pub const PROBES_AT_ONCE_MAX: usize = 128;
/// How often outcomes of requests are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// All servers of a configuration, and the tasks that watch them.
#[derive(Clone)]
pub struct Health(Rc<RefCell<Rc<Board>>>);

struct Board {
    snapshot: Arc<Snapshot>,
    store: Arc<Store>,
    telemetry: Arc<Telemetry>,
    names: Names,
    began: Instant,
    began_at: SystemTime,
    permits: Semaphore,
    /// By backend: how TLS with its servers is begun; none for plaintext.
    connectors: Vec<Option<Connector>>,
    random: RefCell<fastrand::Rng>,
    backends: RefCell<Vec<Watched>>,
    /// They end with the configuration.
    tasks: RefCell<JoinSet<()>>,
}

/// A backend.
struct Watched {
    servers: Servers,
    /// By server.
    known: Vec<Known>,
}

/// What else is known of a server.
#[derive(Default)]
struct Known {
    /// All its addresses.
    addresses: Vec<SocketAddr>,
    /// Those of them that did not answer their last probe.
    silent: Vec<SocketAddr>,
    /// Outcomes that have been looked at.
    successes: u64,
    failures: u64,
    /// Why the last lookup of its name failed, if it did.
    lookup: Option<String>,
}

/// A server's state for people.
pub struct State {
    pub verdict: Verdict,
    pub since: SystemTime,
    /// The end of an ejection.
    pub until: Option<SystemTime>,
    /// Why its name cannot be looked up at the moment.
    pub lookup_failed: Option<String>,
}

impl Health {
    /// Starts to watch, on the current runtime, which is the main thread's.
    pub fn start(snapshot: &Arc<Snapshot>, store: &Arc<Store>, telemetry: &Arc<Telemetry>) -> Health {
        let (began, began_at) = (Instant::now(), SystemTime::now());
        let board = Board::new(snapshot, store, telemetry, began, began_at);
        board.begin();
        Health(Rc::new(RefCell::new(board)))
    }

    /// Watches the servers of another configuration from now on. Of a server that is in both, which is one whose notice is
    /// the same, everything known goes on.
    pub fn follow(&self, snapshot: &Arc<Snapshot>, telemetry: &Arc<Telemetry>) {
        let old = Rc::clone(&self.0.borrow());
        old.tasks.borrow_mut().abort_all();
        let board = Board::new(snapshot, &old.store, telemetry, old.began, old.began_at);
        board.take_over(&old);
        board.begin();
        *self.0.borrow_mut() = board;
    }

    /// What is thought of a server, by positions in the configuration.
    pub fn state(&self, backend: usize, server: usize) -> State {
        let board = self.0.borrow();
        let backends = board.backends.borrow();
        let (verdict, since) = backends[backend].servers.verdict(server);
        let until = if let Verdict::Ejected { until, .. } = verdict { Some(board.time(*until)) } else { None };
        let lookup_failed = backends[backend].known[server].lookup.clone();
        State { verdict: verdict.clone(), since: board.time(since), until, lookup_failed }
    }

    /// New requests go to other servers from now on, those in progress finish; or requests may come again. By positions in
    /// the configuration.
    pub fn set_drain(&self, backend: usize, server: usize, draining: bool) {
        self.0.borrow().change(backend, |servers, now| servers.set_drain(server, draining, now));
    }
}

impl Known {
    fn of(server: &Server) -> Known {
        Known { addresses: server.notice.addresses().to_vec(), ..Known::default() }
    }
}

fn connector((backend, upstream): (&Backend, &Option<Arc<UpstreamProfile>>)) -> Option<Connector> {
    let alpn: &[&[u8]] = match &backend.health.as_ref()?.kind {
        ProbeKind::Grpc { .. } => &[b"h2"],
        // Probes are HTTP/1.1, whatever requests are.
        ProbeKind::Http(_) => &[b"http/1.1"],
        ProbeKind::Tcp | ProbeKind::Tls => server_alpn(backend),
    };
    Some(upstream.as_ref()?.connector_for(alpn))
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
    Rules { probes: backend.health.as_ref().map(probes), outliers: backend.outlier.as_ref().map(outliers) }
}

impl Board {
    fn new(
        snapshot: &Arc<Snapshot>,
        store: &Arc<Store>,
        telemetry: &Arc<Telemetry>,
        began: Instant,
        began_at: SystemTime,
    ) -> Rc<Board> {
        let now = began.elapsed().as_millis() as u64;
        let watched = |(backend, servers): (&Backend, &Vec<Server>)| Watched {
            servers: Servers::new(rules(backend), backend.servers.len(), now),
            known: servers.iter().map(Known::of).collect(),
        };
        let config = &snapshot.config;
        Rc::new(Board {
            snapshot: Arc::clone(snapshot),
            store: Arc::clone(store),
            telemetry: Arc::clone(telemetry),
            names: Names::new(&config.process.resolver),
            began,
            began_at,
            permits: Semaphore::new(PROBES_AT_ONCE_MAX),
            connectors: config.backends.iter().zip(&snapshot.upstreams).map(connector).collect(),
            random: RefCell::default(),
            backends: RefCell::new(config.backends.iter().zip(&*snapshot.servers).map(watched).collect()),
            tasks: RefCell::default(),
        })
    }

    fn take_over(&self, old: &Board) {
        let mut backends = self.backends.borrow_mut();
        let mut before = old.backends.borrow_mut();
        for (index, servers) in self.snapshot.servers.iter().enumerate() {
            for (server, Server { notice, .. }) in servers.iter().enumerate() {
                let places = old.snapshot.servers.iter().enumerate().flat_map(|(backend, servers)| {
                    servers.iter().enumerate().map(move |(server, known)| (backend, server, known))
                });
                let Some((backend, at, _)) = places.into_iter().find(|(.., known)| Arc::ptr_eq(&known.notice, notice))
                else {
                    continue;
                };
                backends[index].servers.adopt(server, &before[backend].servers, at);
                backends[index].known[server] = std::mem::take(&mut before[backend].known[at]);
            }
        }
    }

    /// Says how things stand, and starts the tasks.
    fn begin(self: &Rc<Board>) {
        for (index, backend) in self.snapshot.config.backends.iter().enumerate() {
            for (server, configured) in backend.servers.iter().enumerate() {
                let open = self.backends.borrow()[index].servers.verdict(server).0.is_open();
                self.snapshot.servers[index][server].notice.set_open(open);
                self.column().set(self.metrics(index, server).up, i64::from(open));
                self.publish_addresses(index, server);
                if backend.health.is_some() {
                    self.tasks.borrow_mut().spawn_local(Rc::clone(self).watch(index, server));
                }
                if !matches!(configured.address, ServerAddress::Ip(_)) {
                    self.tasks.borrow_mut().spawn_local(Rc::clone(self).follow_name(index, server));
                }
            }
        }
        if self.snapshot.config.backends.iter().any(|backend| backend.outlier.is_some()) {
            self.tasks.borrow_mut().spawn_local(Rc::clone(self).look_at_outcomes());
        }
    }

    /// Probes a server for as long as there is an engine.
    async fn watch(self: Rc<Board>, backend: usize, server: usize) {
        let Some(check) = &self.snapshot.config.backends[backend].health else { return };
        let every = check.interval.as_millis() as u64;
        loop {
            let began = tokio::time::Instant::now();
            let addresses = self.backends.borrow()[backend].known[server].addresses.clone();
            let mut probes = JoinSet::new();
            for address in addresses {
                let board = Rc::clone(&self);
                probes.spawn_local(async move { (address, board.ask(backend, server, address).await) });
            }
            let found = probes.join_all().await;
            self.conclude(backend, server, &found);
            let wait = next_probe(every, self.random.borrow_mut().u64(..));
            sleep_until(began + Duration::from_millis(wait)).await;
        }
    }

    async fn ask(&self, backend: usize, server: usize, address: SocketAddr) -> Result<(), Failure> {
        let config = &self.snapshot.config.backends[backend];
        let Some(check) = &config.health else { return Err(Failure::new(NOT_MADE, "")) };
        let Ok(_permit) = self.permits.acquire().await else { return Err(Failure::new(NOT_MADE, "")) };
        let address = SocketAddr::new(address.ip(), check.port.unwrap_or(address.port()));
        let host = host_of(&config.servers[server].address, address);
        let secure = self.connectors[backend].as_ref().map(|connector| (connector, server));
        let found = probe(check, address, &host, secure).await;
        let word = found.as_ref().map_or_else(|failure| failure.word, |()| SUCCESS);
        if let Some(index) = RESULTS.iter().position(|known| *known == word) {
            self.column().increment(self.metrics(backend, server).probes[index]);
        }
        found
    }

    /// A server is as good as the best of its addresses, and those that did not answer get no connections meanwhile.
    fn conclude(&self, backend: usize, server: usize, found: &[(SocketAddr, Result<(), Failure>)]) {
        let label = &self.snapshot.servers[backend][server].label;
        let mut silent = Vec::new();
        let mut verdict = None;
        for (address, found) in found {
            match found {
                Ok(()) => verdict = Some(Ok(())),
                Err(failure) if failure.word == NOT_MADE => {
                    log::warn!("a health check of {label} was not made: {failure}")
                }
                Err(failure) => {
                    silent.push(*address);
                    verdict = verdict.or_else(|| Some(Err(failure.to_string().into())));
                }
            }
        }
        self.backends.borrow_mut()[backend].known[server].silent = silent;
        self.publish_addresses(backend, server);
        if let Some(verdict) = verdict {
            self.change(backend, |servers, now| servers.probed(server, verdict, now));
        }
    }

    async fn look_at_outcomes(self: Rc<Board>) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            for (index, backend) in self.snapshot.config.backends.iter().enumerate() {
                if backend.outlier.is_some() {
                    self.look_at_backend(index);
                }
            }
        }
    }

    fn look_at_backend(&self, backend: usize) {
        let mut backends = self.backends.borrow_mut();
        let Watched { servers, known } = &mut backends[backend];
        for (server, known) in known.iter_mut().enumerate() {
            let metrics = &self.telemetry.backends[backend].servers[server];
            let now = (self.store.count(metrics.successes), self.store.count(metrics.failures));
            servers.counted(server, now.0 - known.successes, now.1 - known.failures);
            (known.successes, known.failures) = now;
        }
        drop(backends);
        self.change(backend, Servers::tick);
    }

    /// Looks a name up again whenever its answer is too old.
    async fn follow_name(self: Rc<Board>, backend: usize, server: usize) {
        let config = &self.snapshot.config;
        // How long the first answer holds was not kept.
        let mut wait = config.process.resolver.ttl_min;
        loop {
            sleep(wait).await;
            let question = &config.backends[backend].servers[server].address;
            wait = match self.names.look_up(question).await {
                Ok(found) => {
                    self.found(backend, server, found.addresses);
                    found.valid
                }
                Err(error) => {
                    self.not_found(backend, server, error);
                    config.process.resolver.ttl_min
                }
            };
        }
    }

    fn found(&self, backend: usize, server: usize, addresses: Vec<SocketAddr>) {
        let place = self.place(backend, server);
        let mut backends = self.backends.borrow_mut();
        let known = &mut backends[backend].known[server];
        if known.lookup.take().is_some() {
            log::info!("{place}: its name is found again");
        }
        if known.addresses != addresses {
            log::info!("{place} is now at {}", listed(&addresses));
            known.addresses = addresses;
            drop(backends);
            self.publish_addresses(backend, server);
        }
    }

    fn not_found(&self, backend: usize, server: usize, error: String) {
        self.column().increment(self.metrics(backend, server).lookup_failures);
        let mut backends = self.backends.borrow_mut();
        let known = &mut backends[backend].known[server];
        if known.lookup.is_none() {
            let kept = listed(&known.addresses);
            log::warn!("{}: its name cannot be looked up: {error}; it stays at {kept}", self.place(backend, server));
        }
        known.lookup = Some(error);
    }

    /// Tells the cores where a server is: at all its addresses but the silent ones, unless all are.
    fn publish_addresses(&self, backend: usize, server: usize) {
        let backends = self.backends.borrow();
        let Known { addresses, silent, .. } = &backends[backend].known[server];
        let answering: Vec<SocketAddr> =
            addresses.iter().copied().filter(|address| !silent.contains(address)).collect();
        let published = if answering.is_empty() { addresses.clone() } else { answering };
        self.column().set(self.metrics(backend, server).addresses, published.len() as i64);
        self.snapshot.servers[backend][server].notice.set_addresses(published);
    }

    /// Lets the policy judge, and tells everybody what is different.
    fn change(&self, backend: usize, judge: impl FnOnce(&mut Servers, u64) -> Vec<Change>) {
        let now = self.began.elapsed().as_millis() as u64;
        let mut backends = self.backends.borrow_mut();
        let servers = &mut backends[backend].servers;
        let changes = judge(servers, now);
        let (open, all) = (servers.open(), self.snapshot.servers[backend].len());
        drop(backends);
        for Change { server, from, to } in changes {
            self.snapshot.servers[backend][server].notice.set_open(to.is_open());
            let (column, metrics) = (self.column(), self.metrics(backend, server));
            column.set(metrics.up, i64::from(to.is_open()));
            column.increment(metrics.changes);
            let place = self.place(backend, server);
            let left = format!("{open} of {all} servers can be used");
            match &to {
                // The first probe of a server that was taken for fit is no news.
                Verdict::Up | Verdict::Unknown if from.is_open() => {}
                Verdict::Up | Verdict::Unknown => log::info!("{place} is up again; {left}"),
                Verdict::Draining => log::info!("{place} is draining; {left}"),
                Verdict::Down(reason) => log::warn!("{place} is down: {reason}; {left}"),
                Verdict::Ejected { reason, until } => {
                    column.increment(metrics.ejections);
                    let seconds = (until - now) / 1000;
                    log::warn!("{place} is ejected for {seconds} s: {reason}; {left}");
                }
            }
        }
    }

    /// The main thread's own, which is the last.
    fn column(&self) -> Column {
        Store::column(&self.store, self.store.columns() - 1)
    }

    fn metrics(&self, backend: usize, server: usize) -> &ServerHealthMetrics {
        &self.telemetry.backends[backend].servers[server].health
    }

    fn place(&self, backend: usize, server: usize) -> String {
        let name = &self.snapshot.config.backends[backend].name;
        format!("backend \"{name}\": server {}", self.snapshot.servers[backend][server].label)
    }

    fn time(&self, millis: u64) -> SystemTime {
        self.began_at + Duration::from_millis(millis)
    }
}

fn listed(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ")
}

/// What a server is called in a request, without the port where it is HTTP's own (RFC 9110 §7.2).
fn host_of(server: &ServerAddress, address: SocketAddr) -> String {
    let host = match server {
        ServerAddress::Name { host, .. } => host.clone(),
        // The names behind a service are no names of its own.
        ServerAddress::Srv { name } => name.splitn(3, '.').last().unwrap_or_default().to_string(),
        ServerAddress::Ip(_) if address.is_ipv6() => format!("[{}]", address.ip()),
        ServerAddress::Ip(_) => address.ip().to_string(),
    };
    if address.port() == 80 { host } else { format!("{host}:{}", address.port()) }
}

#[cfg(test)]
mod tests;
