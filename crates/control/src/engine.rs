//! The engine as a whole: binds sockets, starts workers, handles signals, and ends everything in order.

mod signals;

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use propylon_acme::Renewer;
use propylon_config::{AdminBind, At, Config};
use propylon_crypto::batch::Batching;
use propylon_metrics::{Column, Store};
use propylon_observe::access_log::{FailureCounts, Failures as LogFailures, Running, Writer};
use propylon_observe::conditions::{self, Conditions};
use propylon_observe::history::{self, History};
use propylon_observe::telemetry::{ExportCounts, Telemetry};
use propylon_proxy::batches;
use propylon_proxy::cores::{worker_count, worker_count_now};
use propylon_proxy::dispatch::Dispatcher;
use propylon_proxy::overload::files::ConnectionsMax;
use propylon_proxy::overload::{Shared, Watch};
use propylon_proxy::snapshot::{Publication, Snapshot};
use propylon_proxy::ticket_keys;
use propylon_proxy::trace::Outbox;
use propylon_proxy::worker::{self, Assignment, Phase};
use propylon_tls::Finding;
use tokio::runtime::{Builder, LocalOptions};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle as JoinHandleLocal, spawn_local};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::acme;
use crate::adaptive::AdaptiveLimits;
use crate::admin::{self, AdminListener, AdminSocket};
use crate::announce::Announcing;
use crate::announce::guardian::Guardian;
use crate::cluster::{Membership, Sampler, readiness, report};
use crate::folders;
use crate::health::Health;
use crate::hedge_times::HedgeTimes;
use crate::isolation::{KeyProcess, StoreCheck, UnusedKeys};
use crate::last_minute::LastMinute;
use crate::logger;
use crate::opening::{Opened, StartError, files_plan, open};
use crate::origin::MergedConfig;
use crate::proofs::Proofs;
use crate::reload::{self, InitialState, Reloader};
use crate::requests::ChangeRequest;
use crate::sandbox::{self, Sandbox};
use crate::service::{self, Watchdog};
use crate::spans::Exporter;
use crate::state;
use crate::status::ConfigStatus;
use crate::upgrade::argv::Argv;
use crate::upgrade::handover::{Handover, HandoverState, Kept};
use crate::upgrade::launcher::Launcher;
use crate::upgrade::predecessors::Predecessors;
use crate::upgrade::takeover::Takeover;
use crate::upgrade::{self, Failure};
use signals::Signals;

/// Interval between checks of memory and open files.
const SHORTAGE_LOOK: Duration = Duration::from_millis(250);
/// Interval between log lines about what the drain still waits for.
const DRAIN_REPORT: Duration = Duration::from_secs(1);

/// The workers.
type Threads = Vec<JoinHandle<io::Result<()>>>;

/// Interval of a timer that is never needed, if no service manager has a watchdog.
const NO_WATCHDOG: Duration = Duration::from_secs(3600);
/// Longest time for workers to get ready to accept.
const WORKERS_WAIT: Duration = Duration::from_secs(30);
/// How often a successor looks whether its key process answers.
const KEY_PROCESS_LOOK: Duration = Duration::from_millis(5);

/// Longest time for which the end of the process waits for the access log's reader.
const LOG_WAIT_MAX: Duration = Duration::from_secs(2);
/// Longest time for which a drain waits until the cluster's flow table has no new connections for this engine.
const LEAVE_TABLE_WAIT: Duration = Duration::from_secs(3);
const LEAVE_TABLE_LOOK: Duration = Duration::from_millis(10);
/// Longest time for which the end of the process waits for the trace collector.
const SPANS_WAIT_MAX: Duration = Duration::from_secs(3);

/// The input of `prepare`.
pub struct Start {
    pub path: PathBuf,
    pub merged: MergedConfig,
    pub snapshot: Snapshot,
    /// Uploaded files that could not be used.
    pub unusable: Vec<Finding>,
    pub own: Argv,
    /// The process that holds this one's keys, with `keys.isolate`.
    pub key_process: Option<KeyProcess>,
    /// The process that serves until this one is ready, in an upgrade.
    pub takeover: Option<Takeover>,
    /// The last good state of the cluster that this engine is one of.
    pub cluster: Option<propylon_cluster::Opened>,
}

/// The state after everything is done that needs the rights the process was started with.
pub struct Prepared {
    path: PathBuf,
    merged: MergedConfig,
    snapshot: Arc<Snapshot>,
    unusable: Vec<Finding>,
    launcher: Option<Launcher>,
    key_process: Option<KeyProcess>,
    sandbox: Arc<Sandbox>,
    admin: Option<AdminSocket>,
    upgrade: Option<OwnedFd>,
    takeover: Option<Takeover>,
    /// Indices of the predecessor's file descriptors that were used.
    adopted: Vec<usize>,
    log: Writer,
    connections_max: ConnectionsMax,
    cluster: Option<propylon_cluster::Opened>,
    guardian: Option<Guardian>,
}

/// Binds sockets, opens files, and gives up privileges and whatever serving does not need. No thread exists before this
/// returns. In an upgrade the predecessor is told why this process cannot start.
pub fn prepare(start: Start) -> Result<Prepared, StartError> {
    let Start { path, merged, snapshot, unusable, own, key_process, mut takeover, cluster } = start;
    let config = Arc::clone(&snapshot.config);
    let opened = open(&config, takeover.as_mut()).inspect_err(|error| {
        let failure = Failure { reason: "start", what: error.to_string() };
        takeover.iter().for_each(|takeover| takeover.give_up(&failure));
    });
    let Opened { bound, admin, upgrade, log, adopted, connections_max } = opened?;
    let snapshot = Arc::new(snapshot.bound(bound));
    let launcher = upgrade.is_some().then(|| launcher(&config, &own)).flatten();
    let guardian = Guardian::start(&config, &path);
    folders::make_folders(&config);
    if let Some(why) = state::unusable(&config) {
        log::warn!("{why}; until that is mended, changes by the admin API are refused");
    }
    service::connect();
    let sandbox = Arc::new(Sandbox::enter(&config, &path));
    Ok(Prepared {
        path,
        merged,
        snapshot,
        unusable,
        launcher,
        key_process,
        sandbox,
        admin,
        upgrade,
        takeover,
        adopted,
        log,
        connections_max,
        cluster,
        guardian,
    })
}

/// Starts the process that launches successors: in its sandbox, this process cannot do so itself.
fn launcher(config: &Config, own: &Argv) -> Option<Launcher> {
    let socket = config.process.upgrade_socket.as_ref()?;
    let started = Launcher::start(own, &socket.path);
    started
        .inspect_err(|error| log::error!("upgrades by signal cannot be had: no launcher can be started: {error}"))
        .ok()
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every request in progress was finished.
    Drained,
    /// Count of requests that were cut off when the drain timeout was over.
    CutOff(u64),
    /// A worker had ended by itself.
    Failed,
}

/// Serves until SIGTERM, SIGINT or a successor's takeover, then drains. A second signal ends the drain at once.
pub fn run(prepared: Prepared) -> Result<Outcome, StartError> {
    let Prepared { path, merged, snapshot, launcher, sandbox, admin, upgrade, mut takeover, adopted, .. } = prepared;
    let (connections_max, mut key_process, unusable) =
        (prepared.connections_max, prepared.key_process, prepared.unusable);
    let (cluster, guardian, log) = (prepared.cluster, prepared.guardian, prepared.log);
    // The log's thread starts inside the sandbox, before any thread that serves.
    logger::start_writer().map_err(StartError::Threads)?;
    let workers = worker_count(&snapshot.config);
    let (telemetry, store) = Telemetry::new(&snapshot.config, workers + 1);
    let telemetry = Arc::new(telemetry);
    let runtime = Builder::new_current_thread().enable_io().enable_time().build_local(LocalOptions::default());
    let runtime = runtime.map_err(StartError::Threads)?;
    let Complete { signals, hangup, snapshot, proofs } = runtime.block_on(complete(snapshot, takeover.as_mut()))?;
    let (phase, watched) = watch::channel(if takeover.is_some() { Phase::Waiting } else { Phase::Serving });
    let publication = Arc::new(Publication::new(Arc::clone(&snapshot), &telemetry));
    let (publish, published) = watch::channel(Arc::clone(&publication));
    let log = log.start(sandbox::explained).map_err(StartError::Threads)?;
    let batching = batches::start(snapshot.config.process.batch);
    let shared = Arc::new(Shared::new(snapshot.config.process.connections_per_source));
    let own_link = key_process.as_mut().and_then(KeyProcess::take_aside);
    let (mut exporter, outboxes) = Exporter::new(published.clone(), workers);
    exporter.start_if_needed(&snapshot);
    let parts = WorkerParts {
        published,
        phase: watched,
        store: &store,
        telemetry: &telemetry,
        log: &log,
        shared: &shared,
        connections_max,
        dispatcher: Dispatcher::start(&snapshot.config, workers, connections_max),
        batching: &batching,
    };
    let threads = parts.start_all(outboxes, key_process.as_mut()).map_err(StartError::Threads)?;
    reload::start_resolver(&snapshot, None);
    // Memory that loading took is given back; else it stays until this thread allocates again.
    propylon_sys::release_memory();
    // The renewer begins here: ACME folders must be this account's, and listeners able to answer challenges.
    let orders = start_orders(&snapshot.config).map_err(StartError::Threads)?;
    let watch = Watch::new(shared, files_plan(&snapshot.config), snapshot.config.process.memory_limit);
    let main = Main {
        watch,
        batching,
        store,
        telemetry,
        phase,
        _publish: publish.clone(),
        log_failures: log.failures(),
        exporter,
        handover: None,
        predecessors: Predecessors::default(),
        started: Instant::now(),
        conditions: Rc::new(RefCell::new(conditions::watch())),
        history: Rc::new(RefCell::new(history::keep())),
        last_minute: Rc::default(),
        unused_keys: UnusedKeys::default(),
        store_check: StoreCheck::default(),
        key_process: own_link,
        wanted: Cell::default(),
    };
    let config = Arc::clone(&snapshot.config);
    let initial = InitialState { path, merged, snapshot, unusable, proofs, sandbox, orders, publish };
    let startup =
        Startup { initial, hangup, launcher, admin, upgrade, takeover, adopted, publication, cluster, guardian };
    let (outcome, kept, exporter) = runtime.block_on(main.watch(startup, signals, threads))?;
    exporter.finish(SPANS_WAIT_MAX);
    clear_away(&config, kept);
    log.finish(LOG_WAIT_MAX);
    Ok(outcome)
}

/// State that serving begins with.
struct Complete {
    signals: Signals,
    hangup: Signal,
    snapshot: Arc<Snapshot>,
    proofs: Proofs,
}

/// The snapshot with issuers' keys: the predecessor's, or the first that are fetched, if they come soon. Requests of the
/// first moment would be refused without. From here on signals are heard.
async fn complete(snapshot: Arc<Snapshot>, takeover: Option<&mut Takeover>) -> Result<Complete, StartError> {
    let mut signals = Signals::subscribe().map_err(StartError::Threads)?;
    let hangup = signal(SignalKind::hangup()).map_err(StartError::Threads)?;
    let mut proofs = Proofs::new(&snapshot, Instant::now());
    let kept = takeover.map(|takeover| std::mem::take(&mut takeover.inherited_state.keys)).unwrap_or_default();
    tokio::select! {
        snapshot = proofs.complete(Arc::unwrap_or_clone(snapshot), &kept) => {
            Ok(Complete { signals, hangup, snapshot: Arc::new(snapshot), proofs })
        }
        () = signals.ends.received() => Err(StartError::Stopped),
    }
}

/// Starts the thread that orders certificates.
fn start_orders(config: &Config) -> io::Result<Arc<Renewer>> {
    let orders = Arc::new(acme::renewer());
    // One engine of a cluster orders, which is not known yet.
    orders.order(config.cluster.is_none());
    orders.configure(propylon_acme::issuers(config))?;
    Ok(orders)
}

/// Parts of an assignment that all workers share.
struct WorkerParts<'a> {
    published: watch::Receiver<Arc<Publication>>,
    phase: watch::Receiver<Phase>,
    store: &'a Arc<Store>,
    telemetry: &'a Arc<Telemetry>,
    log: &'a Running,
    shared: &'a Arc<Shared>,
    connections_max: ConnectionsMax,
    dispatcher: Option<Arc<Dispatcher>>,
    batching: &'a Arc<Batching>,
}

impl WorkerParts<'_> {
    /// Starts a worker for each outbox of spans, on the cores that the process may run on.
    fn start_all(self, outboxes: Vec<Outbox>, mut key_process: Option<&mut KeyProcess>) -> io::Result<Threads> {
        let cores = propylon_sys::allowed_cores();
        // With a quota for less than the machine has, others are on these cores as well, who would all begin with the
        // first: the system is to choose.
        let is_pinned = !cores.is_empty() && propylon_sys::quota().is_none_or(|quota| quota >= cores.len() as f64);
        let assignments = outboxes.into_iter().rev().enumerate().map(|(index, spans)| Assignment {
            index,
            pin: is_pinned.then(|| cores[index % cores.len()]),
            published: self.published.clone(),
            column: Store::column(self.store, index),
            telemetry: Arc::clone(self.telemetry),
            log: self.log.log_buffer(),
            spans,
            shared: Arc::clone(self.shared),
            connections_max: self.connections_max,
            dispatcher: self.dispatcher.clone(),
            batching: Arc::clone(self.batching),
            key_process: key_process.as_mut().and_then(|process| process.take_link()),
            phase: self.phase.clone(),
        });
        assignments.map(worker::start).collect()
    }
}

/// Removes the files of Unix sockets that no process listens on any more.
fn clear_away(config: &Config, kept: Kept) {
    if let Some(AdminBind::Unix(path)) = config.admin.as_ref().map(|admin| &admin.bind)
        && !kept.admin
    {
        // A successor would remove the file as well.
        let _ = std::fs::remove_file(path);
    }
    if let Some(socket) = &config.process.upgrade_socket
        && !kept.upgrade
    {
        let _ = std::fs::remove_file(&socket.path);
    }
}

/// The main thread's input beside `Main`.
struct Startup {
    initial: InitialState,
    hangup: Signal,
    launcher: Option<Launcher>,
    admin: Option<AdminSocket>,
    upgrade: Option<OwnedFd>,
    takeover: Option<Takeover>,
    adopted: Vec<usize>,
    /// The publication that workers start with.
    publication: Arc<Publication>,
    cluster: Option<propylon_cluster::Opened>,
    guardian: Option<Guardian>,
}

/// State of the main thread.
struct Main {
    watch: Watch,
    batching: Arc<Batching>,
    /// Workers run for as long as this sender exists.
    _publish: watch::Sender<Arc<Publication>>,
    store: Arc<Store>,
    telemetry: Arc<Telemetry>,
    phase: watch::Sender<Phase>,
    /// Counts of access log lines that could not be written, by the log's thread.
    log_failures: Arc<LogFailures>,
    exporter: Exporter,
    /// The server of the upgrade socket, if one is configured.
    handover: Option<Handover>,
    predecessors: Predecessors,
    started: Instant,
    /// Conditions that hold now; the admin address shows them.
    conditions: Rc<RefCell<Conditions>>,
    /// The numbers that matter, as they were; the admin address shows them, and a successor gets them.
    history: Rc<RefCell<History>>,
    /// The last minute of routes and servers; the admin address shows it.
    last_minute: Rc<RefCell<LastMinute>>,
    unused_keys: UnusedKeys,
    store_check: StoreCheck,
    /// A link to the process that holds this one's keys, until the health checks take it.
    key_process: Option<OwnedFd>,
    /// Number of engines that the cluster's hook was told last.
    wanted: Cell<Option<u32>>,
}

/// Tasks and handles that are started beside the workers.
struct StartedTasks {
    reloader: JoinHandleLocal<()>,
    config_status: Rc<RefCell<ConfigStatus>>,
    listener: Option<AdminListener>,
    orders: Arc<Renewer>,
    health: Health,
    membership: Option<Rc<RefCell<Membership>>>,
    announcing: Option<Rc<Announcing>>,
    guardian: Option<Rc<Guardian>>,
}

/// Counts that the metrics or the log have had already, as of the last second.
#[derive(Default)]
struct Reported {
    log_failures: FailureCounts,
    lines_lost: u64,
    panics: u64,
    /// Workers that a process would have that is started now.
    workers: usize,
    exports: ExportCounts,
    /// Files of the system that were replaced.
    replaced: Vec<&'static str>,
    cluster: report::Reports,
    hedge_times: HedgeTimes,
}

impl Main {
    async fn watch(
        mut self,
        startup: Startup,
        mut signals: Signals,
        threads: Threads,
    ) -> Result<(Outcome, Kept, Exporter), StartError> {
        // Limits stand in the metrics before the log says that the engine runs.
        self.watch.look(&self.column(), &self.telemetry.overload);
        let sandbox = Arc::clone(&startup.initial.sandbox);
        let tasks = tokio::select! {
            tasks = self.begin(startup, threads.len()) => tasks,
            () = signals.ends.received() => Err(StartError::Stopped),
        };
        let mut tasks = match tasks {
            Ok(tasks) => tasks,
            Err(error) => {
                let _ = self.phase.send(Phase::Stopping);
                join(threads);
                return Err(error);
            }
        };
        // Signals are handled before this line is logged: a script that waits for the line may send one at once.
        let workers = threads.len();
        log::info!(
            "propylon {} runs with {workers} worker{}",
            env!("CARGO_PKG_VERSION"),
            if workers == 1 { "" } else { "s" }
        );
        service::ready(workers, tasks.config_status.borrow().snapshot.generation);
        let end = self.serve(&mut tasks, &mut signals, &sandbox, &threads).await;
        let StartedTasks { reloader, config_status, listener, orders, health, membership, announcing, guardian } =
            tasks;
        match end {
            Phase::Succeeded => {
                guardian.iter().for_each(|guardian| guardian.hand_over());
            }
            _ => {
                leave_table(membership.as_ref()).await;
                if let Some(announcing) = &announcing {
                    announcing.withdraw().await;
                }
            }
        }
        // Changes end here.
        reloader.abort();
        let kept = self.handover.as_ref().and_then(Handover::kept).unwrap_or_default();
        if kept.admin {
            listener.into_iter().for_each(AdminListener::close);
        }
        let limit = config_status.borrow().snapshot.config.process.drain_timeout;
        // The successor orders certificates from now on; two processes must not do so.
        if let Err(error) = orders.configure(Vec::new()) {
            log::warn!("orders of certificates go on: {error}");
        }
        if end == Phase::Succeeded {
            health.leave_to_successor();
        }
        let outcome = self.drain(end, limit, &mut signals, threads).await;
        membership.iter().for_each(|membership| membership.borrow_mut().end(end == Phase::Succeeded));
        Ok((outcome, kept, self.exporter))
    }

    /// Looks after what runs until a signal or a successor ends it, which the phase says.
    async fn serve(
        &mut self,
        tasks: &mut StartedTasks,
        signals: &mut Signals,
        sandbox: &Sandbox,
        threads: &Threads,
    ) -> Phase {
        let mut watchdog = Watchdog::start();
        let mut beats = interval(watchdog.as_ref().map_or(NO_WATCHDOG, Watchdog::every));
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seconds = interval(Duration::from_secs(1));
        let mut looks = interval(SHORTAGE_LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reported = Reported::default();
        let mut adaptive_limits = AdaptiveLimits::default();
        loop {
            tokio::select! {
                () = signals.ends.received() => break Phase::Draining,
                () = succeeded(self.handover.as_ref()) => break Phase::Succeeded,
                _ = &mut tasks.reloader => {
                    log::error!("nobody looks after the configuration any more; stopping");
                    break Phase::Draining;
                }
                // Without a handler SIGUSR1 would end the process.
                _ = signals.user.recv() => log::info!("SIGUSR1: nothing to do, a log file that was moved is opened anew by itself"),
                _ = signals.second_user.recv() => self.upgrade(),
                _ = looks.tick() => {
                    self.watch.look(&self.column(), &self.telemetry.overload);
                    let snapshot = Arc::clone(&tasks.config_status.borrow().snapshot);
                    adaptive_limits.look(&snapshot, &self.telemetry, (&self.store, &self.column()));
                    announce_if_ready(tasks);
                }
                _ = beats.tick(), if watchdog.is_some() => {
                    watchdog.iter_mut().for_each(|watchdog| watchdog.notify_if_alive(&self.store, self.telemetry.process.ticks));
                }
                _ = seconds.tick() => {
                    let snapshot = Arc::clone(&tasks.config_status.borrow().snapshot);
                    self.report_standing(tasks, &snapshot.config, &mut reported.cluster);
                    self.each_second(&snapshot, sandbox, &mut reported);
                    self.report_to_cluster(tasks, &snapshot);
                }
                () = any_finished(threads) => {
                    log::error!("a worker has ended by itself; stopping");
                    break Phase::Draining;
                }
            }
        }
    }

    /// Brings the metrics up to date, and does what is due by the clock.
    fn each_second(&mut self, snapshot: &Snapshot, sandbox: &Sandbox, reported: &mut Reported) {
        reported.log_failures = self.count_log_failures(reported.log_failures);
        reported.lines_lost = self.count_lost_lines(reported.lines_lost);
        reported.panics = self.count_panics(reported.panics);
        reported.workers = self.report_workers(snapshot, reported.workers);
        reported.replaced = self.report_replaced(sandbox, std::mem::take(&mut reported.replaced));
        reported.hedge_times.look(snapshot, &self.telemetry, &self.column());
        self.exporter.start_if_needed(snapshot);
        reported.exports = self.report_exports(reported.exports);
        self.rotate_ticket_keys(snapshot);
        self.unused_keys.tick(snapshot, Instant::now());
        self.check_store(snapshot);
        let (since_start, now) = (self.started.elapsed(), SystemTime::now());
        let mut conditions = self.conditions.borrow_mut();
        let numbers = (&*self.store, &self.column());
        self.last_minute.borrow_mut().look(snapshot, &self.telemetry, numbers, &mut conditions);
        conditions.look(&self.store, since_start, now);
        drop(conditions);
        let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        history::look(&mut self.history.borrow_mut(), &self.store, since_start, since_1970);
        self.report_kernels();
        self.report_lookups(snapshot);
        self.report_predecessors();
    }

    /// Starts what comes between the workers' start and their first accept; in an upgrade, with the predecessor's
    /// consent.
    async fn begin(&mut self, startup: Startup, workers: usize) -> Result<StartedTasks, StartError> {
        let Startup { initial, hangup, launcher, admin, upgrade, mut takeover, adopted, publication, .. } = startup;
        let (cluster, guardian) = (startup.cluster, startup.guardian);
        let is_upgrade = takeover.is_some();
        let (snapshot, orders) = (Arc::clone(&initial.snapshot), Arc::clone(&initial.orders));
        let known =
            takeover.as_mut().map(|takeover| std::mem::take(&mut takeover.inherited_state.health)).unwrap_or_default();
        let key_process = self.key_process.take().map(propylon_signer::key_process_client);
        let health = Health::start(&snapshot, &self.store, &self.telemetry, &known, key_process);
        let mut upgrades = 0;
        if let Some(takeover) = takeover {
            upgrades = takeover.inherited_state.upgrades + 1;
            self.take_over(takeover, &adopted, &snapshot, &publication, workers).await?;
        }
        self.column().add(self.telemetry.upgrades.upgrades, upgrades);
        for bound in snapshot.sockets.iter() {
            if let Err(error) = bound.commit() {
                log::warn!("{}: its deferred accepts cannot be set: {error}", bound.address);
            }
        }
        let config = Arc::clone(&snapshot.config);
        let sandbox = Arc::clone(&initial.sandbox);
        let (telemetry, store) = (Arc::clone(&self.telemetry), Arc::clone(&self.store));
        let reloader = Reloader::new(initial, health.clone(), telemetry, store);
        let (config_status, load_failures) = (reloader.config_status(), reloader.load_failures());
        if let (Some(socket), Some(wanted)) = (upgrade, &config.process.upgrade_socket) {
            let handover_state = HandoverState {
                config_status: Rc::clone(&config_status),
                store: Arc::clone(&self.store),
                telemetry: Arc::clone(&self.telemetry),
                health: health.clone(),
                launcher,
                admin: admin.as_ref().and_then(|socket| for_successor(&config, socket)),
                path: wanted.path.clone(),
                socket,
                predecessors: self.predecessors.clone(),
                history: Rc::clone(&self.history),
                upgrades,
            };
            self.handover = Some(Handover::start(handover_state).map_err(StartError::Threads)?);
        }
        let (change_requests, requested) = mpsc::channel(admin::CHANGES_WAITING_MAX);
        let membership = cluster.map(|opened| self.join_cluster(opened, &change_requests)).transpose()?;
        let guardian = guardian.map(Rc::new);
        let announcing = config.announce.as_ref().zip(guardian.as_ref());
        let announcing =
            announcing.map(|(announce, guardian)| Rc::new(Announcing::new(announce, Rc::clone(guardian), is_upgrade)));
        let view = admin::View {
            store: Arc::clone(&self.store),
            config_status: Rc::clone(&config_status),
            orders: Arc::clone(&orders),
            health: health.clone(),
            telemetry: Arc::clone(&self.telemetry),
            started: Instant::now(),
            memory_at_start: propylon_sys::resident_bytes().unwrap_or(0),
            load_failures,
            handover: self.handover.clone(),
            sandbox,
            conditions: Rc::clone(&self.conditions),
            history: Rc::clone(&self.history),
            last_minute: Rc::clone(&self.last_minute),
            membership: membership.clone(),
            announcing: announcing.clone(),
            sentences: admin::Sentences::default(),
        };
        let listener =
            admin.map(|socket| admin::start(socket, view, change_requests)).transpose().map_err(StartError::Threads)?;
        let reloader = spawn_local(reloader.run(hangup, requested, self.handover.clone()));
        Ok(StartedTasks { reloader, config_status, listener, orders, health, membership, announcing, guardian })
    }

    /// Starts the cluster's thread.
    fn join_cluster(
        &self,
        opened: propylon_cluster::Opened,
        changes: &mpsc::Sender<ChangeRequest>,
    ) -> Result<Rc<RefCell<Membership>>, StartError> {
        let (store, telemetry) = (Arc::clone(&self.store), Arc::clone(&self.telemetry));
        let sampler = Sampler::new(store, telemetry);
        Membership::start(opened, sampler, changes.clone()).map_err(StartError::Threads)
    }

    /// Tells the cluster how this engine is, and the authorities' thread whether it orders for all.
    fn report_to_cluster(&self, tasks: &StartedTasks, snapshot: &Snapshot) {
        let Some(membership) = &tasks.membership else { return };
        let membership = membership.borrow();
        let not_ready = readiness::problems(snapshot, &tasks.health);
        let announced = tasks.announcing.as_ref().map(|announcing| announcing.is_announced());
        membership.report(not_ready.is_empty(), announced, not_ready, &snapshot.config);
        let standing = membership.standing();
        tasks.orders.order(standing.is_leader);
        if let (true, Some((wanted, engines, reason)), Some(guardian)) =
            (standing.is_leader, &standing.wanted, &tasks.guardian)
            && self.wanted.replace(Some(*wanted)) != Some(*wanted)
        {
            guardian.run_hook(*wanted, *engines, reason);
        }
    }

    /// Brings the metrics of the cluster, of announced addresses and of flows up to date.
    fn report_standing(&self, tasks: &StartedTasks, config: &Config, reports: &mut report::Reports) {
        let (column, now) = (self.column(), Instant::now());
        if let (Some(metrics), Some(membership)) = (&self.telemetry.cluster, &tasks.membership) {
            reports.cluster(&column, metrics, &membership.borrow().standing(), now);
        }
        if let Some(metrics) = &self.telemetry.announce {
            report::announce(
                &column,
                metrics,
                tasks.announcing.as_ref().map(|announcing| announcing.to_json()).as_ref(),
            );
        }
        if let (Some(metrics), Some(cluster)) = (&self.telemetry.flows, &config.cluster) {
            let path = cluster.runtime.path.join(propylon_cluster::FLOWS_STATUS);
            let status = propylon_cluster::flows_status(&path, SystemTime::now());
            reports.flows(&column, metrics, status.ok(), now);
        }
    }

    async fn take_over(
        &mut self,
        mut takeover: Takeover,
        adopted: &[usize],
        snapshot: &Snapshot,
        publication: &Publication,
        workers: usize,
    ) -> Result<(), StartError> {
        let until = Instant::now() + WORKERS_WAIT;
        let ready = match timeout(WORKERS_WAIT, publication.adopted_by(workers)).await {
            Ok(()) => self.await_key_process(workers, until).await,
            Err(_) => Err(format!("not every worker was ready within {} s", WORKERS_WAIT.as_secs())),
        };
        if let Err(what) = ready {
            let failure = Failure { reason: "start", what };
            takeover.give_up(&failure);
            return Err(StartError::Upgrade(failure));
        }
        let cluster = snapshot.config.cluster.as_ref().map(|cluster| cluster.name.as_str());
        if let Some(warning) = takeover.inherited_state.leaves(cluster) {
            log::warn!("{warning}");
        }
        let earlier = std::mem::take(&mut takeover.inherited_state.predecessors);
        std::mem::take(&mut takeover.inherited_state.past).put_back(&mut self.history.borrow_mut());
        let begin = || {
            let _ = self.phase.send(Phase::Serving);
        };
        let predecessor = takeover.complete(adopted, &snapshot.profiles, begin).await;
        let predecessor = predecessor.map_err(StartError::Upgrade)?;
        for (description, file) in earlier {
            match upgrade::listen_to(file) {
                Ok(channel) => self.predecessors.watch(description, channel),
                Err(error) => log::warn!("process {} drains unheard: {error}", description.pid),
            }
        }
        if let Some((description, channel)) = predecessor {
            log::info!("upgrade: this process serves; process {} drains", description.pid);
            self.predecessors.watch(description, channel);
        }
        Ok(())
    }

    /// Waits until the key process has answered every worker: the process before serves well meanwhile. The error says
    /// why there is none.
    async fn await_key_process(&self, workers: usize, until: Instant) -> Result<(), String> {
        let Some(metrics) = &self.telemetry.key_process else { return Ok(()) };
        loop {
            if metrics.is_over.is_some_and(|is_over| self.store.level(is_over) > 0) {
                return Err("the process that starts its key process is gone".into());
            }
            if self.store.level(metrics.servers[0].connections) >= workers as i64 {
                log::info!("upgrade: the key process answers every worker");
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(format!("its key process did not answer every worker within {} s", WORKERS_WAIT.as_secs()));
            }
            sleep(KEY_PROCESS_LOOK).await;
        }
    }

    /// Handles SIGUSR2.
    fn upgrade(&self) {
        match &self.handover {
            Some(handover) => handover.upgrade_by_signal(),
            None => {
                log::error!("SIGUSR2: without process.upgrade_socket nobody can take over; set it, and restart once")
            }
        }
    }

    fn report_predecessors(&self) {
        let (sum, column, metrics) = (self.predecessors.sum(), self.column(), &self.telemetry.upgrades);
        column.set(metrics.predecessors, sum.processes as i64);
        column.set(metrics.predecessor_connections, sum.connections as i64);
        column.set(metrics.predecessor_requests, sum.requests as i64);
        column.set(metrics.predecessor_age, sum.oldest.as_secs() as i64);
    }

    /// The main thread's column, which is the last.
    fn column(&self) -> Column {
        Store::column(&self.store, self.store.columns() - 1)
    }

    /// Rotates session ticket keys, or adopts those rotated elsewhere. A small file is read only when it has changed.
    fn rotate_ticket_keys(&self, snapshot: &Snapshot) {
        let (changes, errors) = snapshot.rotate_ticket_keys(SystemTime::now());
        let column = self.column();
        column.add(self.telemetry.process.ticket_key_changes, changes);
        column.add(self.telemetry.process.ticket_key_errors, errors.len() as u64);
        for error in errors {
            let Finding { what, fix, .. } = sandbox::judged(&ticket_keys::finding(error, At::default()));
            log::error!("ticket keys: {what}; those in use stay in use; {fix}");
        }
    }

    fn report_lookups(&self, snapshot: &Snapshot) {
        let column = self.column();
        for signer in &snapshot.signers {
            if let Some(metrics) = self.telemetry.signer(&signer.config) {
                metrics.add_lookups(&column, signer.addresses.take_counts());
            }
        }
    }

    fn report_kernels(&self) {
        self.telemetry.batches.report_kernels(&self.column(), &self.batching);
    }

    /// Adds the access log writer's counts since `seen` to the metrics; returns the counts by now.
    fn count_log_failures(&self, seen: FailureCounts) -> FailureCounts {
        let now = self.log_failures.counts();
        let (column, process) = (self.column(), &self.telemetry.process);
        column.add(process.access_log_failed, now.writes - seen.writes);
        column.add(process.access_log_lost, now.lines - seen.lines);
        if now.lines > seen.lines {
            self.conditions.borrow_mut().explain("access-log-lost", &[], self.log_failures.reason());
        }
        column.add(process.access_log_reopens, now.reopens - seen.reopens);
        now
    }

    /// Adds lines that this process's own log has lost since `seen`; returns the count by now.
    fn count_lost_lines(&self, seen: u64) -> u64 {
        let now = logger::lost();
        self.column().add(self.telemetry.process.log_lost, now - seen);
        now
    }

    /// Adds panics of all threads since `seen`: a contained panic may show nowhere else. Returns the count by now.
    fn count_panics(&self, seen: u64) -> u64 {
        let now = logger::panics();
        self.column().add(self.telemetry.process.panics, now - seen);
        now
    }

    /// Reports whether a process that is started now would have another number of workers, as after a change of its
    /// quota or its cores. Returns that number.
    fn report_workers(&self, snapshot: &Snapshot, reported: usize) -> usize {
        let (serving, now) = (worker_count(&snapshot.config), worker_count_now(&snapshot.config));
        self.column().set(self.telemetry.process.workers_outdated, i64::from(now != serving));
        if now != serving && now != reported {
            log::warn!(
                "cores that the process can use by now: {now}; workers that serve: {serving}. `propylon upgrade` follows"
            );
        }
        now
    }

    /// Reports whether the key process can store what is uploaded and ordered.
    fn check_store(&mut self, snapshot: &Snapshot) {
        let store = snapshot.config.keys.store.as_ref().map(|store| store.path.as_path());
        if let Some(is_unusable) = self.store_check.tick(store, Instant::now()) {
            self.column().set(self.telemetry.process.unusable_store, i64::from(is_unusable));
        }
    }

    /// Logs files that name look-ups need and that the sandbox hides since they were replaced. Returns them.
    fn report_replaced(&self, sandbox: &Sandbox, reported: Vec<&'static str>) -> Vec<&'static str> {
        let replaced = sandbox.replaced();
        self.column().set(self.telemetry.process.replaced_files, replaced.len() as i64);
        for path in replaced.iter().filter(|path| !reported.contains(path)) {
            log::warn!(
                "{path} was replaced: the sandbox of a process of root's knows the file that was there at its start, and \
                 this one cannot be read; {}; another account than root follows such files (process.user)",
                sandbox.remedy()
            );
        }
        replaced
    }

    /// Adds the trace exporter's counts since `seen` to the metrics; returns the counts by now.
    fn report_exports(&self, seen: ExportCounts) -> ExportCounts {
        let counts = self.exporter.counts();
        self.telemetry.traces.report(&self.column(), counts, seen);
        counts
    }

    async fn drain(&self, how: Phase, limit: Duration, signals: &mut Signals, threads: Threads) -> Outcome {
        let started = Instant::now();
        self.column().set(self.telemetry.process.draining, 1);
        let _ = self.phase.send(how);
        self.report("draining", limit);
        if how != Phase::Succeeded {
            service::stopping(self.telemetry.open(&self.store).0);
        }
        let mut reports = interval(DRAIN_REPORT);
        reports.tick().await;
        loop {
            tokio::select! {
                () = all_finished(&threads) => break,
                () = sleep(limit.saturating_sub(started.elapsed())) => break,
                () = signals.ends.received() => break,
                _ = signals.second_user.recv() => log::error!("SIGUSR2: this process drains, and has nothing to hand over"),
                _ = reports.tick() => self.report("still draining", limit.saturating_sub(started.elapsed())),
            }
        }
        let (_, left) = self.telemetry.open(&self.store);
        let _ = self.phase.send(Phase::Stopping);
        let has_failed = !join(threads);
        match left {
            _ if has_failed => Outcome::Failed,
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
        let (connections, requests) = self.telemetry.open(&self.store);
        let left = left.as_secs_f64();
        log::info!("{what}: {connections} connections open, {requests} requests in progress, {left:.0} s left");
    }
}

/// Waits for all workers. Returns whether all ended without a failure or panic.
fn join(threads: Threads) -> bool {
    let mut in_order = true;
    for thread in threads {
        match thread.join() {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => log::error!("a worker failed: {error}"),
            Err(_) => log::error!("a worker panicked"),
        }
        in_order = false;
    }
    in_order
}

/// The admin address for a successor, which may be started in another working directory.
fn for_successor(config: &Config, socket: &AdminSocket) -> Option<(String, OwnedFd)> {
    let bind = match &config.admin.as_ref()?.bind {
        AdminBind::Unix(path) => AdminBind::Unix(std::path::absolute(path).unwrap_or_else(|_| path.clone())),
        tcp => tcp.clone(),
    };
    Some((bind.to_string(), socket.another().ok()?))
}

/// Decides whether addresses are announced.
fn announce_if_ready(tasks: &StartedTasks) {
    let Some(announcing) = &tasks.announcing else { return };
    let standing = tasks.membership.as_ref().map(|membership| membership.borrow().standing());
    let snapshot = Arc::clone(&tasks.config_status.borrow().snapshot);
    announcing.look(&snapshot, &tasks.health, standing.as_ref());
}

/// Lets other engines have what comes next before listeners close.
async fn leave_table(membership: Option<&Rc<RefCell<Membership>>>) {
    let Some(membership) = membership else { return };
    membership.borrow().drain();
    let until = Instant::now() + LEAVE_TABLE_WAIT;
    while Instant::now() < until && membership.borrow().standing().buckets.is_some_and(|buckets| buckets > 0) {
        sleep(LEAVE_TABLE_LOOK).await;
    }
}

async fn succeeded(handover: Option<&Handover>) {
    match handover {
        Some(handover) => handover.succeeded().await,
        None => std::future::pending().await,
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

#[cfg(test)]
mod tests {
    use propylon_config::Source;

    use propylon_config::Workers;

    use super::*;

    #[test]
    fn a_worker_on_its_core_counts_as_many_workers_as_everybody_else() {
        let text = "[listener.plain]\nbind = \"127.0.0.1:0\"\n[[route]]\nrespond = { status = 204 }\n";
        let source = Source::of(std::path::Path::new("propylon.toml"), text.into()).expect("text");
        let (config, _) = propylon_config::parse(&source).expect("a configuration");
        assert_eq!(config.process.workers, Workers::Auto);
        let everywhere = worker_count(&config);
        let core = propylon_sys::allowed_cores()[0];
        let pinned = std::thread::spawn(move || propylon_sys::pin_to_core(core).map(|()| worker_count(&config)));
        assert_eq!(pinned.join().expect("no panic").expect("a core of ours"), everywhere);
    }
}
