//! The engine as a whole: sockets bound, workers started, signals heeded, and everything ended in order.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use propylon_acme::Keeper;
use propylon_config::{Config, Listener, Protocol, Workers};
use propylon_crypto::batch::Batching;
use propylon_metrics::{Column, Store};
use propylon_sys::ListenOptions;
use tokio::runtime::{Builder, LocalOptions};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::access_log::Writer;
use crate::acme;
use crate::admin;
use crate::batches;
use crate::certificates::{Certificates, Reloaded, Which};
use crate::health::{Health, PROBES_AT_ONCE_MAX};
use crate::shortage::{Shared, Watch};
use crate::signer;
use crate::snapshot::{Publication, Snapshot};
use crate::telemetry::Telemetry;
use crate::worker::{self, Assignment, Phase};

/// A connection is handed out when its first bytes are there, or after this: it saves a wake-up per connection.
const DEFER_ACCEPT: Duration = Duration::from_secs(2);
/// Files kept back from client connections: logs, listeners, the event loops, the admin address, health checks.
const FILES_RESERVED: u64 = 64 + PROBES_AT_ONCE_MAX as u64;
/// How often it is seen to what memory and files there are.
const SHORTAGE_LOOK: Duration = Duration::from_millis(250);
/// How often the drain tells what it still waits for.
const DRAIN_REPORT: Duration = Duration::from_secs(1);

/// How long the end of the process waits for the access log's reader.
const LOG_PATIENCE: Duration = Duration::from_secs(2);

/// Why the engine could not start.
#[derive(Debug)]
pub enum StartError {
    Bind { address: SocketAddr, listener: String, error: io::Error },
    AdminBind { address: SocketAddr, error: io::Error },
    AccessLog(io::Error),
    Privileges(propylon_sys::PrivilegesError),
    Threads(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Bind { address, listener, error } => {
                write!(f, "listener \"{listener}\" cannot bind {address}: {error}; {}", bind_advice(error))
            }
            StartError::AdminBind { address, error } => {
                write!(f, "admin cannot bind {address}: {error}; {}", bind_advice(error))
            }
            StartError::AccessLog(error) => {
                write!(f, "the access log cannot be opened: {error}; check log.access and its folder's permissions")
            }
            StartError::Privileges(error) => write!(f, "{error}"),
            StartError::Threads(error) => write!(f, "a thread cannot be started: {error}"),
        }
    }
}

fn bind_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "stop what listens there (ss -ltnp shows it) or choose another port",
        io::ErrorKind::PermissionDenied => "ports below 1024 need root or CAP_NET_BIND_SERVICE",
        io::ErrorKind::AddrNotAvailable => "use an address of this machine (ip address shows them)",
        _ => "check the address",
    }
}

/// Everything that needs the rights the process was started with, done.
pub struct Prepared {
    snapshot: Arc<Snapshot>,
    /// By worker; each socket with its listener's index.
    sockets: Vec<Vec<(usize, TcpListener)>>,
    admin: Option<TcpListener>,
    log: Writer,
    connections_max: usize,
}

/// Binds, opens, and gives up privileges. No thread exists before this returns.
pub fn prepare(snapshot: Snapshot) -> Result<Prepared, StartError> {
    let config = &snapshot.config;
    let files = propylon_sys::raise_files_limit();
    let workers = worker_count(config);
    let sockets = bind(config, workers)?;
    let admin = config.admin.as_ref().map(bind_admin).transpose()?;
    let log = Writer::open(&config.log.access).map_err(StartError::AccessLog)?;
    if let Some(user) = &config.process.user {
        let account = propylon_sys::drop_privileges(user).map_err(StartError::Privileges)?;
        log::info!("running as {account:?}");
    }
    // A request needs a file on each side; a client that is idle needs one.
    let by_files = files.saturating_sub(FILES_RESERVED) as usize * 9 / 10;
    let connections_max = config.process.max_connections.unwrap_or(by_files).div_ceil(workers).max(1);
    Ok(Prepared { snapshot: Arc::new(snapshot), sockets, admin, log, connections_max })
}

/// Threads that will serve.
pub fn worker_count(config: &Config) -> usize {
    match config.process.workers {
        Workers::Auto => propylon_sys::allowed_cores().len().max(1),
        Workers::Count(count) => count.get().into(),
    }
}

fn bind(config: &Config, workers: usize) -> Result<Vec<Vec<(usize, TcpListener)>>, StartError> {
    let mut sockets: Vec<Vec<(usize, TcpListener)>> = (0..workers).map(|_| Vec::new()).collect();
    for (index, listener) in config.listeners.iter().enumerate() {
        for bind in &listener.bind {
            let fail = |error| StartError::Bind { address: bind.address, listener: listener.name.clone(), error };
            let mut address = bind.address;
            if address.port() != 0 && !config.process.share_address {
                propylon_sys::check_free(address).map_err(fail)?;
            }
            for own in &mut sockets {
                let defer_accept = clients_speak_first(listener).then_some(DEFER_ACCEPT);
                let options = ListenOptions { reuse_port: true, defer_accept, ..ListenOptions::default() };
                let socket = propylon_sys::listen(address, options).map_err(fail)?;
                // Accepted sockets inherit it: a call saved per connection.
                propylon_sys::set_nodelay(&socket).map_err(fail)?;
                address = socket.local_addr().map_err(fail)?;
                own.push((index, socket));
            }
            let scheme = match (listener.protocol, listener.tls) {
                (Protocol::Http, None) => "http",
                (Protocol::Http, Some(_)) => "https",
                (Protocol::Tcp, None) => "tcp",
                (Protocol::Tcp, Some(_)) | (Protocol::Passthrough, _) => "tls",
            };
            log::info!("listener \"{}\" at {scheme}://{address}", listener.name);
        }
    }
    Ok(sockets)
}

/// Of what is relayed as it is nothing is known: servers of SMTP, SSH or MySQL begin themselves.
fn clients_speak_first(listener: &Listener) -> bool {
    listener.protocol != Protocol::Tcp || listener.tls.is_some() || listener.accept_proxy_protocol
}

/// By listener. All workers have bound the same, so the first one's sockets tell.
fn bound_addresses(sockets: &[Vec<(usize, TcpListener)>], listeners: usize) -> Vec<Vec<SocketAddr>> {
    let mut addresses = vec![Vec::new(); listeners];
    for (listener, socket) in sockets.iter().take(1).flatten() {
        addresses[*listener].extend(socket.local_addr());
    }
    addresses
}

fn bind_admin(admin: &propylon_config::Admin) -> Result<TcpListener, StartError> {
    let fail = |error| StartError::AdminBind { address: admin.bind, error };
    let socket = propylon_sys::listen(admin.bind, ListenOptions::default()).map_err(fail)?;
    log::info!("admin at http://{}", socket.local_addr().map_err(fail)?);
    Ok(socket)
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every request in progress was finished.
    Drained,
    /// So many requests were cut off when the drain's time was up.
    CutOff(u64),
}

/// Serves until SIGTERM or SIGINT, then drains. A second signal ends it at once.
pub fn run(prepared: Prepared) -> Result<Outcome, StartError> {
    let Prepared { snapshot, sockets, admin, log, connections_max } = prepared;
    let workers = sockets.len();
    let addresses = bound_addresses(&sockets, snapshot.config.listeners.len());
    let (telemetry, store) = Telemetry::new(&snapshot.config, workers + 1);
    let telemetry = Arc::new(telemetry);
    let runtime = Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build_local(LocalOptions::default())
        .map_err(StartError::Threads)?;
    let (phase, watched) = watch::channel(Phase::Serving);
    let (publish, published) = watch::channel(Arc::new(Publication::new(Arc::clone(&snapshot), workers)));
    let log = log.start().map_err(StartError::Threads)?;
    let batching = batches::start(snapshot.config.process.batch);
    let cores = propylon_sys::allowed_cores();
    let shared = Arc::new(Shared::new(snapshot.config.process.connections_per_source));
    let mut threads = Vec::new();
    for (index, listeners) in sockets.into_iter().enumerate() {
        let assignment = Assignment {
            index,
            pin: (!cores.is_empty()).then(|| cores[index % cores.len()]),
            listeners,
            published: published.clone(),
            column: Store::column(&store, index),
            telemetry: Arc::clone(&telemetry),
            log: log.sheet(),
            shared: Arc::clone(&shared),
            connections_max,
            batching: Arc::clone(&batching),
            phase: watched.clone(),
        };
        threads.push(worker::start(assignment).map_err(StartError::Threads)?);
    }
    drop((watched, published));
    let places = snapshot.signers.iter().map(|signer| (signer.config.name.clone(), Arc::clone(&signer.places)));
    signer::start_resolver(places.collect()).map_err(StartError::Threads)?;
    let certificates = Certificates::new(&snapshot, Instant::now());
    // What loading took: else it would stay until this thread needs memory again.
    propylon_sys::give_memory_back();
    // Here and not before: folders are to be this account's, and what listens can answer.
    let keeper = Arc::new(acme::keeper());
    keeper.configure(propylon_acme::issuers(&snapshot.config)).map_err(StartError::Threads)?;
    let watch = Watch::new(shared, snapshot.config.process.memory_limit);
    let log_failures = log.failures();
    let main = Main {
        watch,
        keeper,
        batching,
        snapshot,
        certificates,
        health: None,
        publish,
        store,
        telemetry,
        phase,
        addresses,
        log_failures,
    };
    let outcome = runtime.block_on(main.watch(admin, threads)).map_err(StartError::Threads)?;
    log.finish(LOG_PATIENCE);
    Ok(outcome)
}

/// The main thread's own work.
struct Main {
    watch: Watch,
    /// Orders certificates.
    keeper: Arc<Keeper>,
    batching: Arc<Batching>,
    /// The one that was published last.
    snapshot: Arc<Snapshot>,
    certificates: Certificates,
    /// None before it is begun.
    health: Option<Health>,
    publish: watch::Sender<Arc<Publication>>,
    store: Arc<Store>,
    telemetry: Arc<Telemetry>,
    phase: watch::Sender<Phase>,
    /// Writes of the access log that failed, counted by its thread.
    log_failures: Arc<AtomicU64>,
    /// By listener: what is bound, with the ports that the kernel chose.
    addresses: Vec<Vec<SocketAddr>>,
}

impl Main {
    async fn watch(
        mut self,
        admin: Option<TcpListener>,
        threads: Vec<JoinHandle<io::Result<()>>>,
    ) -> io::Result<Outcome> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let health = Health::start(&self.snapshot, &self.store, &self.telemetry);
        self.health = Some(health.clone());
        if let Some(socket) = admin {
            let view = admin::View {
                store: Arc::clone(&self.store),
                snapshot: Arc::clone(&self.snapshot),
                certificates: self.certificates.shown(),
                keeper: Arc::clone(&self.keeper),
                health,
                telemetry: Arc::clone(&self.telemetry),
                addresses: self.addresses.clone(),
                started: Instant::now(),
            };
            admin::start(socket, view)?;
        }
        let mut hangup = signal(SignalKind::hangup())?;
        let mut user = signal(SignalKind::user_defined1())?;
        // Not before the signals are heeded: whoever waits for this line may send one at once.
        let workers = threads.len();
        log::info!(
            "propylon {} runs with {workers} worker{}",
            env!("CARGO_PKG_VERSION"),
            if workers == 1 { "" } else { "s" }
        );
        let mut seconds = interval(Duration::from_secs(1));
        let mut looks = interval(SHORTAGE_LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut log_failures_seen = 0;
        loop {
            tokio::select! {
                () = heard(&mut terminate, &mut interrupt) => break,
                // Without a handler either would end the process.
                _ = hangup.recv() => self.reload_all_certificates(),
                _ = user.recv() => log::info!("SIGUSR1: nothing to do, a log file that was moved is opened anew by itself"),
                _ = looks.tick() => self.watch.look(&self.column(), &self.telemetry.shortage),
                _ = seconds.tick() => {
                    log_failures_seen = self.count_log_failures(log_failures_seen);
                    self.tend_tickets();
                    self.report_kernels();
                    self.report_lookups();
                    self.reload_changed_certificates();
                    self.certificates.remind(Instant::now());
                }
                () = any_finished(&threads) => {
                    log::error!("a worker has ended by itself; stopping");
                    break;
                }
            }
        }
        Ok(self.drain(&mut terminate, &mut interrupt, threads).await)
    }

    /// SIGHUP. Anything else that has changed in the configuration waits for a restart.
    fn reload_all_certificates(&mut self) {
        let config = &self.snapshot.config;
        let all = Which { profiles: (0..config.tls.len()).collect(), signers: (0..config.signers.len()).collect() };
        self.certificates.distrust_links();
        log::info!("SIGHUP: reading the certificates again; other changes of the configuration need a restart");
        match self.certificates.reload(&self.snapshot, &all, 0..self.snapshot.config.backends.len()) {
            Reloaded::Same if !self.tell_refused() => {
                self.column().increment(self.telemetry.process.certificate_reloads.success);
                log::info!("the certificates are what they were");
            }
            other => self.conclude(other),
        }
    }

    /// What was merely touched is nobody's news.
    fn reload_changed_certificates(&mut self) {
        let mut changed = self.certificates.changed(&self.snapshot.config, Instant::now());
        changed.profiles.extend(acme::profiles_with(&self.snapshot.config, &self.keeper.take_changed()));
        changed.profiles.sort_unstable();
        changed.profiles.dedup();
        if changed != Which::default() {
            let reloaded = self.certificates.reload(&self.snapshot, &changed, 0..0);
            self.conclude(reloaded);
        }
    }

    /// Some files of certificates could not be used, and this has been told and counted.
    fn tell_refused(&mut self) -> bool {
        let refused = self.certificates.take_refused();
        if refused > 0 {
            let process = &self.telemetry.process;
            self.column().add(process.certificate_reload_errors, refused as u64);
            self.column().increment(process.certificate_reloads.failure);
            log::error!("certificates could not all be read again; where one could not, that from before stays in use");
        }
        refused > 0
    }

    fn conclude(&mut self, reloaded: Reloaded) {
        let told = self.tell_refused();
        let counters = &self.telemetry.process.certificate_reloads;
        match reloaded {
            Reloaded::New(snapshot) => {
                if !told {
                    self.column().increment(counters.success);
                }
                let count: usize = snapshot.profiles.iter().map(|profile| profile.count()).sum();
                self.publish(snapshot);
                propylon_sys::give_memory_back();
                log::info!("certificates were read again: {count} in use");
            }
            Reloaded::Links if told => {}
            Reloaded::Links => self.column().increment(counters.success),
            Reloaded::Same => {}
            Reloaded::Failed => {
                if !told {
                    self.column().increment(counters.failure);
                }
                log::error!("certificates could not be read again; those from before stay in use");
            }
        }
    }

    fn publish(&mut self, snapshot: Snapshot) {
        self.snapshot = Arc::new(snapshot);
        if let Some(health) = &self.health {
            health.follow(&self.snapshot, &self.telemetry);
        }
        let workers = self.store.columns() - 1;
        let publication = Publication::new(Arc::clone(&self.snapshot), workers);
        publication.prepare();
        self.publish.send_replace(Arc::new(publication));
    }

    /// This thread's own: the last.
    fn column(&self) -> Column {
        Store::column(&self.store, self.store.columns() - 1)
    }

    /// Rotates ticket keys, or finds what others have rotated. Reads a small file, and that only when it has changed.
    fn tend_tickets(&self) {
        let (changes, errors) = self.snapshot.tend_tickets(SystemTime::now());
        let column = self.column();
        column.add(self.telemetry.process.ticket_key_changes, changes);
        column.add(self.telemetry.process.ticket_key_errors, errors.len() as u64);
        for error in errors {
            log::error!("ticket keys: {error}; those in use stay in use");
        }
    }

    fn report_lookups(&self) {
        let column = self.column();
        for (signer, metrics) in self.snapshot.signers.iter().zip(&self.telemetry.signers) {
            metrics.add_lookups(&column, signer.places.take_counts());
        }
    }

    fn report_kernels(&self) {
        let column = Store::column(&self.store, self.store.columns() - 1);
        self.telemetry.batches.report_kernels(&column, &self.batching);
    }

    /// Brings what the log's writer has counted into the metrics; returns what is counted by now.
    fn count_log_failures(&self, seen: u64) -> u64 {
        let failures = self.log_failures.load(Ordering::Relaxed);
        self.column().add(self.telemetry.process.access_log_failed, failures - seen);
        failures
    }

    async fn drain(
        &self,
        terminate: &mut Signal,
        interrupt: &mut Signal,
        threads: Vec<JoinHandle<io::Result<()>>>,
    ) -> Outcome {
        let limit = self.snapshot.config.process.drain_timeout;
        let started = Instant::now();
        self.column().set(self.telemetry.process.draining, 1);
        let _ = self.phase.send(Phase::Draining);
        self.report("draining", limit);
        let mut reports = interval(DRAIN_REPORT);
        reports.tick().await;
        loop {
            tokio::select! {
                () = all_finished(&threads) => break,
                () = sleep(limit.saturating_sub(started.elapsed())) => break,
                () = heard(terminate, interrupt) => break,
                _ = reports.tick() => self.report("still draining", limit.saturating_sub(started.elapsed())),
            }
        }
        let (_, left) = self.open();
        let _ = self.phase.send(Phase::Stopping);
        for thread in threads {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => log::error!("a worker failed: {error}"),
                Err(_) => log::error!("a worker panicked"),
            }
        }
        match left {
            0 => {
                log::info!("drained in {:.1} s", started.elapsed().as_secs_f64());
                Outcome::Drained
            }
            left => {
                log::warn!("stopped with {left} requests in progress");
                Outcome::CutOff(left)
            }
        }
    }

    fn report(&self, what: &str, left: Duration) {
        let (connections, requests) = self.open();
        let left = left.as_secs_f64();
        log::info!("{what}: {connections} connections open, {requests} requests in progress, {left:.0} s left");
    }

    /// Client connections and requests in progress.
    fn open(&self) -> (u64, u64) {
        let sum = |gauge: fn(&crate::telemetry::ListenerMetrics) -> propylon_metrics::Gauge| {
            let levels = self.telemetry.listeners.iter().map(|listener| self.store.level(gauge(listener)));
            levels.sum::<i64>().max(0) as u64
        };
        (sum(|listener| listener.open), sum(|listener| listener.in_progress))
    }
}

async fn heard(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

async fn any_finished(threads: &[JoinHandle<io::Result<()>>]) {
    while !threads.iter().any(JoinHandle::is_finished) {
        sleep(Duration::from_millis(200)).await;
    }
}

async fn all_finished(threads: &[JoinHandle<io::Result<()>>]) {
    while !threads.iter().all(JoinHandle::is_finished) {
        sleep(Duration::from_millis(10)).await;
    }
}
