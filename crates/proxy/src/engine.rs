//! The engine as a whole: sockets bound, workers started, signals heeded, and everything ended in order.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use propylon_config::{AdminBind, Config, Workers};
use propylon_crypto::batch::Batching;
use propylon_metrics::{Column, Store};
use propylon_sys::ListenOptions;
use tokio::runtime::{Builder, LocalOptions};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_local;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::access_log::Writer;
use crate::acme;
use crate::admin::{self, AdminSocket};
use crate::batches;
use crate::health::{Health, PROBES_AT_ONCE_MAX};
use crate::origin::Meant;
use crate::reload::{self, Beginning, Keeper};
use crate::shortage::{Shared, Watch};
use crate::snapshot::{Publication, Snapshot};
use crate::sockets::{self, BindError, bind_advice};
use crate::telemetry::Telemetry;
use crate::trace::{ExportCounts, Exporter};
use crate::worker::{self, Assignment, Phase};

/// Files kept back from client connections: logs, listeners, the event loops, the admin address, health checks.
const FILES_RESERVED: u64 = 64 + PROBES_AT_ONCE_MAX as u64;
/// How often it is seen to what memory and files there are.
const SHORTAGE_LOOK: Duration = Duration::from_millis(250);
/// How often the drain tells what it still waits for.
const DRAIN_REPORT: Duration = Duration::from_secs(1);

/// How long the end of the process waits for the access log's reader.
const LOG_PATIENCE: Duration = Duration::from_secs(2);
/// How long the end of the process waits for the collector.
const SPANS_PATIENCE: Duration = Duration::from_secs(3);

/// Why the engine could not start.
#[derive(Debug)]
pub enum StartError {
    Bind(BindError),
    AdminBind { address: String, error: io::Error },
    AccessLog(io::Error),
    Privileges(propylon_sys::PrivilegesError),
    Threads(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Bind(error) => write!(f, "{error}; {}", bind_advice(&error.error)),
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

/// Everything that needs the rights the process was started with, done.
pub struct Prepared {
    path: PathBuf,
    meant: Meant,
    snapshot: Arc<Snapshot>,
    admin: Option<AdminSocket>,
    log: Writer,
    connections_max: usize,
}

/// Binds, opens, and gives up privileges. No thread exists before this returns.
pub fn prepare(path: &Path, meant: Meant, snapshot: Snapshot) -> Result<Prepared, StartError> {
    let config = Arc::clone(&snapshot.config);
    let files = propylon_sys::raise_files_limit();
    let workers = worker_count(&config);
    let bound = sockets::bind(&config, workers, &[]).map_err(|mut errors| StartError::Bind(errors.remove(0)))?;
    sockets::announce(&config, &bound, &[]);
    let snapshot = snapshot.bound(bound);
    let admin = config.admin.as_ref().map(bind_admin).transpose()?;
    let log = Writer::open(&config.log.access).map_err(StartError::AccessLog)?;
    if let Some(user) = &config.process.user {
        let account = propylon_sys::drop_privileges(user).map_err(StartError::Privileges)?;
        log::info!("running as {account:?}");
    }
    // A request needs a file on each side; a client that is idle needs one.
    let by_files = files.saturating_sub(FILES_RESERVED) as usize * 9 / 10;
    let connections_max = config.process.max_connections.unwrap_or(by_files).div_ceil(workers).max(1);
    Ok(Prepared { path: path.to_owned(), meant, snapshot: Arc::new(snapshot), admin, log, connections_max })
}

/// Threads that will serve.
pub fn worker_count(config: &Config) -> usize {
    match config.process.workers {
        Workers::Auto => propylon_sys::allowed_cores().len().max(1),
        Workers::Count(count) => count.get().into(),
    }
}

fn bind_admin(admin: &propylon_config::Admin) -> Result<AdminSocket, StartError> {
    let fail = |error| StartError::AdminBind { address: admin.bind.to_string(), error };
    match &admin.bind {
        AdminBind::Tcp(address) => {
            let socket = propylon_sys::listen(*address, ListenOptions::default()).map_err(fail)?;
            log::info!("admin at http://{}", socket.local_addr().map_err(fail)?);
            Ok(AdminSocket::Tcp(socket))
        }
        AdminBind::Unix(path) => {
            let socket = propylon_sys::listen_unix(path).map_err(fail)?;
            log::info!("admin at {}", admin.bind);
            Ok(AdminSocket::Unix(socket))
        }
    }
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
    let Prepared { path, meant, snapshot, admin, log, connections_max } = prepared;
    let workers = worker_count(&snapshot.config);
    let (telemetry, store) = Telemetry::new(&snapshot.config, workers + 1);
    let telemetry = Arc::new(telemetry);
    let runtime = Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build_local(LocalOptions::default())
        .map_err(StartError::Threads)?;
    let (phase, watched) = watch::channel(Phase::Serving);
    let (publish, published) = watch::channel(Arc::new(Publication::new(Arc::clone(&snapshot))));
    let log = log.start().map_err(StartError::Threads)?;
    let batching = batches::start(snapshot.config.process.batch);
    let cores = propylon_sys::allowed_cores();
    let shared = Arc::new(Shared::new(snapshot.config.process.connections_per_source));
    let (mut exporter, mut outboxes) = Exporter::new(published.clone(), workers);
    exporter.start_if_needed(&snapshot);
    let mut threads = Vec::new();
    for index in 0..workers {
        let Some(spans) = outboxes.pop() else { unreachable!("one for each") };
        let assignment = Assignment {
            index,
            pin: (!cores.is_empty()).then(|| cores[index % cores.len()]),
            published: published.clone(),
            column: Store::column(&store, index),
            telemetry: Arc::clone(&telemetry),
            log: log.sheet(),
            spans,
            shared: Arc::clone(&shared),
            connections_max,
            batching: Arc::clone(&batching),
            phase: watched.clone(),
        };
        threads.push(worker::start(assignment).map_err(StartError::Threads)?);
    }
    drop((watched, published));
    reload::start_resolver(&snapshot, 0);
    // What loading took: else it would stay until this thread needs memory again.
    propylon_sys::give_memory_back();
    // Here and not before: folders are to be this account's, and what listens can answer.
    let orders = Arc::new(acme::keeper());
    orders.configure(propylon_acme::issuers(&snapshot.config)).map_err(StartError::Threads)?;
    let watch = Watch::new(shared, snapshot.config.process.memory_limit);
    let admin_bind = snapshot.config.admin.as_ref().map(|admin| admin.bind.clone());
    let beginning = Beginning { path, meant, snapshot, orders, publish: publish.clone() };
    let log_failures = log.failures();
    let main = Main { watch, batching, store, telemetry, phase, _publish: publish, log_failures, exporter };
    let (outcome, exporter) = runtime.block_on(main.watch(beginning, admin, threads)).map_err(StartError::Threads)?;
    exporter.finish(SPANS_PATIENCE);
    if let Some(AdminBind::Unix(path)) = admin_bind {
        // A successor would remove it as well.
        let _ = std::fs::remove_file(path);
    }
    log.finish(LOG_PATIENCE);
    Ok(outcome)
}

/// The main thread's own work.
struct Main {
    watch: Watch,
    batching: Arc<Batching>,
    /// Workers follow it for as long as it is there.
    _publish: watch::Sender<Arc<Publication>>,
    store: Arc<Store>,
    telemetry: Arc<Telemetry>,
    phase: watch::Sender<Phase>,
    /// Writes of the access log that failed, counted by its thread.
    log_failures: Arc<AtomicU64>,
    exporter: Exporter,
}

impl Main {
    async fn watch(
        mut self,
        beginning: Beginning,
        admin: Option<AdminSocket>,
        threads: Vec<JoinHandle<io::Result<()>>>,
    ) -> io::Result<(Outcome, Exporter)> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let orders = Arc::clone(&beginning.orders);
        let health = Health::start(&beginning.snapshot, &self.store, &self.telemetry);
        let (telemetry, store) = (Arc::clone(&self.telemetry), Arc::clone(&self.store));
        let keeper = Keeper::new(beginning, health.clone(), telemetry, store);
        let (shown, troubles) = (keeper.shown(), keeper.troubles());
        let (asks, asked) = mpsc::channel(admin::CHANGES_WAITING_MAX);
        if let Some(socket) = admin {
            let view = admin::View {
                store: Arc::clone(&self.store),
                shown: Rc::clone(&shown),
                orders,
                health,
                telemetry: Arc::clone(&self.telemetry),
                started: Instant::now(),
                memory_at_start: propylon_sys::resident_bytes().unwrap_or(0),
                troubles,
            };
            admin::start(socket, view, asks)?;
        }
        let hangup = signal(SignalKind::hangup())?;
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
        let mut exports_seen = ExportCounts::default();
        let mut keeper = spawn_local(keeper.keep(hangup, asked));
        loop {
            tokio::select! {
                () = heard(&mut terminate, &mut interrupt) => break,
                _ = &mut keeper => {
                    log::error!("nobody looks after the configuration any more; stopping");
                    break;
                }
                // Without a handler it would end the process.
                _ = user.recv() => log::info!("SIGUSR1: nothing to do, a log file that was moved is opened anew by itself"),
                _ = looks.tick() => self.watch.look(&self.column(), &self.telemetry.shortage),
                _ = seconds.tick() => {
                    log_failures_seen = self.count_log_failures(log_failures_seen);
                    let snapshot = Arc::clone(&shown.borrow().snapshot);
                    self.exporter.start_if_needed(&snapshot);
                    exports_seen = self.report_exports(exports_seen);
                    self.tend_tickets(&snapshot);
                    self.report_kernels();
                    self.report_lookups(&snapshot);
                }
                () = any_finished(&threads) => {
                    log::error!("a worker has ended by itself; stopping");
                    break;
                }
            }
        }
        // No changes any more.
        keeper.abort();
        let limit = shown.borrow().snapshot.config.process.drain_timeout;
        let outcome = self.drain(limit, &mut terminate, &mut interrupt, threads).await;
        Ok((outcome, self.exporter))
    }

    /// This thread's own: the last.
    fn column(&self) -> Column {
        Store::column(&self.store, self.store.columns() - 1)
    }

    /// Rotates ticket keys, or finds what others have rotated. Reads a small file, and that only when it has changed.
    fn tend_tickets(&self, snapshot: &Snapshot) {
        let (changes, errors) = snapshot.tend_tickets(SystemTime::now());
        let column = self.column();
        column.add(self.telemetry.process.ticket_key_changes, changes);
        column.add(self.telemetry.process.ticket_key_errors, errors.len() as u64);
        for error in errors {
            log::error!("ticket keys: {error}; those in use stay in use");
        }
    }

    fn report_lookups(&self, snapshot: &Snapshot) {
        let column = self.column();
        for (signer, metrics) in snapshot.signers.iter().zip(self.telemetry.signers.iter()) {
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

    /// As with the log.
    fn report_exports(&self, seen: ExportCounts) -> ExportCounts {
        let counts = self.exporter.counts();
        self.telemetry.traces.report(&self.column(), counts, seen);
        counts
    }

    async fn drain(
        &self,
        limit: Duration,
        terminate: &mut Signal,
        interrupt: &mut Signal,
        threads: Vec<JoinHandle<io::Result<()>>>,
    ) -> Outcome {
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
