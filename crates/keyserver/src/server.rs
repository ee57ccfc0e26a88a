//! The life of the server: files are read, addresses bound and privileges dropped, threads start, and files are watched
//! until a signal ends it.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use propylon_config::Workers;
use propylon_config::keyserver::KeyServer;
use propylon_crypto::OPEN_TO_ALL;
use propylon_metrics::{Column, Store};
use propylon_sys::Account;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::access::Rules;
use crate::admin;
use crate::conditions::{self, LOOK_INTERVAL};
use crate::core::{Command, Shared};
use crate::hsm::Tokens;
use crate::identity;
use crate::kernels::Kernels;
use crate::key_files::{self, Change, KeyFiles, Watched};
use crate::keys::{Keys, Origin};
use crate::logger;
use crate::sandbox;
use crate::signing::TaskQueues;
use crate::telemetry::Telemetry;
use crate::worker::{self, Worker};

/// Interval at which files are checked for changes.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);
/// Files that are gone of which each has a line of its own.
const GONE_LOGGED_MAX: usize = 10;
/// Interval at which workers are checked for their end while draining.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Links, curves, RSA; each has a column of the metrics.
pub const THREADS_PER_CORE: usize = 3;

/// The reason why the server could not start, and what to do about it.
#[derive(Debug)]
pub struct Failure(pub String);

struct Server {
    config: KeyServer,
    key_files: KeyFiles,
    tokens: Tokens,
    /// The identity and the authority.
    links: Watched,
    shared: Arc<Shared>,
    column: Column,
    telemetry: &'static Telemetry,
    workers: WorkerThreads,
    view: Rc<admin::View>,
}

/// The workers' threads, and the senders of their commands.
struct WorkerThreads {
    command_senders: Vec<mpsc::Sender<Command>>,
    threads: Vec<JoinHandle<()>>,
}

/// Serves until a signal ends it.
pub fn run(config: KeyServer) -> Result<(), Failure> {
    harden(&config);
    let tls = identity::load(&config.server).map_err(|fault| Failure(fault.to_string()))?;
    let identity = &config.server.identity.path;
    if key_files::is_open_to_all(identity) && !config.server.allow_world_readable_keys {
        let fix = key_files::Wrong::OpenToAll.fix();
        return Err(Failure(format!("{}: {OPEN_TO_ALL}; {fix}", identity.display())));
    }
    let links = Watched::new([config.server.identity.path.clone(), config.server.ca.path.clone()]);
    let mut key_files = KeyFiles::new(config.keys.paths.clone(), config.server.allow_world_readable_keys);
    // All files must be good at the start: nothing is in service yet that a bad one would have to leave in place.
    if let Some(fault) = key_files.rescan().faults.first() {
        return Err(Failure(format!("{}; {}", describe(fault), fault.what.fix())));
    }
    for (path, _) in key_files.open_to_all() {
        log::warn!("{}: {OPEN_TO_ALL}; chmod o= it", path.display());
    }
    // Modules are opened before confinement: a module may look for files that Landlock keeps from it afterwards,
    // and logging in may want another account's rights.
    let tokens = Tokens::open(&config.tokens).map_err(|fault| Failure(format!("{}; {}", fault.what, fault.fix)))?;
    let rules = Rules::new(config.clients.clone());
    let keys = served(&key_files, &tokens, &rules);
    let count = worker_count(config.server.workers);
    let (sockets, admin) = bind(&config, count)?;
    confine(&config)?;
    logger::start_writer().map_err(Failure::threads)?;

    log::info!("serves {} keys on {count} cores", keys.len());
    let main = THREADS_PER_CORE * count;
    let (telemetry, store) = Telemetry::new(main + 1 + tokens.threads(), &token_names(&config));
    let column = Store::column(&store, main);
    column.set(telemetry.keys, keys.len() as i64);
    let shared = Arc::new(Shared::new(keys, Some(tls), rules, config.server.connections_max, count));
    let kernels = Kernels::start(config.ecdsa_batch, config.rsa_batch);
    kernels.log_state();
    let threads =
        Threads { config: &config, kernels: &kernels, tokens: &tokens, shared: &shared, telemetry, store: &store };
    let workers = threads.start(sockets).map_err(Failure::threads)?;
    let states = column.clone();
    let refresh = Box::new(move || telemetry.kernels.report_states(&states, &kernels));
    let view = Rc::new(admin::View { store, refresh, is_draining: Cell::new(false) });
    let server = Server { config, key_files, tokens, links, shared, column, telemetry, workers, view };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::threads)?;
    LocalSet::new().block_on(&runtime, server.life(admin))
}

/// The keys to be served. If a key is in a file and in a module, the file's is taken.
fn served(key_files: &KeyFiles, tokens: &Tokens, rules: &Rules) -> Keys {
    let in_tokens = tokens.found();
    let in_tokens = in_tokens.iter().map(|(key, name)| (key.clone(), Origin::Token(name)));
    Keys::new(key_files.found().chain(in_tokens), &rules.references())
}

/// A name for each token, unique even if two have the same label.
fn token_names(config: &KeyServer) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (number, token) in config.tokens.iter().enumerate() {
        let name = token.token.name();
        names.push(if names.contains(&name) { format!("{name} ({number})") } else { name });
    }
    names
}

/// Inputs of the threads of a server.
struct Threads<'a> {
    config: &'a KeyServer,
    kernels: &'a Kernels,
    tokens: &'a Tokens,
    shared: &'a Arc<Shared>,
    telemetry: &'static Telemetry,
    store: &'a Arc<Store>,
}

impl Threads<'_> {
    /// Starts all threads, and returns when each has what it needs.
    fn start(&self, sockets: Vec<Vec<TcpListener>>) -> io::Result<WorkerThreads> {
        let &Threads { config, kernels, tokens, telemetry, store, .. } = self;
        let count = sockets.len();
        let columns = |kind| (0..count).map(|index| Store::column(store, kind * count + index)).collect::<Vec<_>>();
        let ready = Arc::new(Barrier::new(THREADS_PER_CORE * count + 1 + tokens.threads()));
        let mut next = THREADS_PER_CORE * count;
        let column_of_token = || {
            next += 1;
            Store::column(store, next)
        };
        tokens.start(&telemetry.tokens, column_of_token, &ready)?;
        let queues = TaskQueues::start(kernels, telemetry, columns(1), columns(2), &ready)?;
        let (command_senders, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| worker::command_channel()).unzip();
        let mut threads = Vec::new();
        let of_each = sockets.into_iter().zip(receivers).zip(columns(0)).enumerate();
        for (index, ((listeners, commands), column)) in of_each {
            let worker = Worker {
                index,
                shared: Arc::clone(self.shared),
                listeners,
                engine: None,
                commands,
                command_senders: command_senders.clone(),
                queues: queues.clone(),
                tokens: tokens.clone(),
                kernels: kernels.clone(),
                column,
                telemetry,
                idle_timeout: config.server.idle_timeout,
                timeout: config.server.timeout,
            };
            threads.push(start_worker(worker, Arc::clone(&ready))?);
        }
        ready.wait();
        Ok(WorkerThreads { command_senders, threads })
    }
}

fn start_worker(worker: Worker, ready: Arc<Barrier>) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(format!("links-{}", worker.index)).spawn(move || {
        if let Err(error) = worker.run(&ready) {
            // Connections would still be given to it.
            log::error!("a worker cannot start: {error}; the process ends");
            log::logger().flush();
            std::process::exit(1);
        }
    })
}

/// Steps to take before a key is read.
fn harden(config: &KeyServer) {
    if let Err(error) = propylon_sys::no_core_dumps() {
        log::warn!("core dumps cannot be turned off: {error}");
    }
    if config.sandbox.lock_memory {
        match propylon_sys::lock_memory() {
            Ok(true) => log::info!("memory: locked, out of swap"),
            Ok(false) => log::warn!("memory: not locked, since the limit on it is not lifted (LimitMEMLOCK=infinity)"),
            Err(error) => log::warn!("memory: not locked: {error}"),
        }
    }
    propylon_sys::raise_files_limit();
}

/// Gives up what is not needed any more: the account, files, further rights.
fn confine(config: &KeyServer) -> Result<(), Failure> {
    if let Some(user) = &config.server.user {
        let account = Account::find(user).map_err(|error| Failure(error.to_string()))?;
        propylon_sys::drop_privileges(&account).map_err(|error| Failure(error.to_string()))?;
        log::info!("runs as {}", account.user);
    }
    propylon_sys::no_new_privileges().map_err(|error| Failure(format!("no_new_privs was refused: {error}")))?;
    if config.sandbox.landlock {
        let what = sandbox::confine_files(config).map_err(Failure)?;
        log::info!("Landlock: {what}");
    }
    Ok(())
}

fn worker_count(workers: Workers) -> usize {
    match workers {
        Workers::Auto => propylon_sys::usable_cores(),
        Workers::Count(count) => count.get().into(),
    }
}

/// The listening sockets of each worker, and the admin's.
fn bind(config: &KeyServer, workers: usize) -> Result<(Vec<Vec<TcpListener>>, Option<TcpListener>), Failure> {
    let failed = |address: SocketAddr| {
        move |error: io::Error| {
            let cure = propylon_sys::bind_advice(&error);
            Failure(format!("{address} cannot be listened on: {error}; {cure}"))
        }
    };
    let mut sockets: Vec<Vec<TcpListener>> = (0..workers).map(|_| Vec::new()).collect();
    for (address, _) in &config.server.bind {
        let mut address = *address;
        if address.port() != 0 {
            propylon_sys::check_free(address).map_err(failed(address))?;
        }
        for of_worker in &mut sockets {
            let options = propylon_sys::ListenOptions { reuse_port: true, ..Default::default() };
            let socket = propylon_sys::listen(address, options).map_err(failed(address))?;
            // The port that the kernel has chosen for the first is that of the others.
            address = socket.local_addr().map_err(failed(address))?;
            of_worker.push(socket);
        }
        log::info!("listens at {address}");
    }
    let admin = config.admin.as_ref().map(|admin| {
        let socket = propylon_sys::listen(admin.address, Default::default()).map_err(failed(admin.address))?;
        log::info!("admin at http://{}", socket.local_addr().map_err(failed(admin.address))?);
        Ok(socket)
    });
    Ok((sockets, admin.transpose()?))
}

impl Server {
    async fn life(mut self, admin: Option<TcpListener>) -> Result<(), Failure> {
        let install = |kind| signal(kind).map_err(|error| Failure(format!("signals cannot be had: {error}")));
        let mut terminate = install(SignalKind::terminate())?;
        let mut interrupt = install(SignalKind::interrupt())?;
        let mut hangup = install(SignalKind::hangup())?;
        if let Some(admin) = admin {
            admin::start(admin, Rc::clone(&self.view)).map_err(Failure::threads)?;
        }
        if self.config.sandbox.seccomp {
            match sandbox::confine_calls(&self.config).map_err(Failure)? {
                true => log::info!("seccomp: enforced"),
                false => log::warn!("seccomp: not enforced: no filter is known for this processor"),
            }
        }
        let mut ticks = interval(WATCH_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut condition_ticks, mut conditions, started) =
            (interval(LOOK_INTERVAL), conditions::watch(), Instant::now());
        condition_ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut lines_lost = 0;
        log::info!("propylon-keyserver {} runs", env!("CARGO_PKG_VERSION"));
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = hangup.recv() => {
                    // New keys are seen at one of the next ticks: nothing here waits for a module.
                    self.tokens.request_scan();
                    self.reload(true);
                }
                _ = condition_ticks.tick() => {
                    lines_lost = self.count_lost_lines(lines_lost);
                    conditions.look(&self.view.store, started.elapsed(), SystemTime::now());
                }
                _ = ticks.tick() => {
                    self.publish_new_tokens();
                    if self.config.keys.watch {
                        self.reload(false);
                    }
                }
            }
        }
        self.drain().await;
        Ok(())
    }

    /// Brings what the log has lost into the metrics; returns what is counted by now.
    fn count_lost_lines(&self, seen: u64) -> u64 {
        let now = logger::lost();
        self.column.add(self.telemetry.log_lost, now - seen);
        now
    }

    /// Takes changed files over; faults change nothing and are logged. `asked`: a signal has asked, and the log answers
    /// even if nothing has changed.
    fn reload(&mut self, asked: bool) {
        let Change { any, faults, gone } = self.key_files.rescan();
        for fault in &faults {
            self.column.increment(self.telemetry.reload_faults);
            let kept = if fault.kept { "; the keys that were in it stay in service" } else { "" };
            let what = sandbox::explained(&fault.path, describe(fault));
            log::warn!("{what}{kept}; {}", fault.what.fix());
        }
        for (path, keys) in gone.iter().take(GONE_LOGGED_MAX) {
            let keys = if *keys == 1 { "the key that was in it is" } else { "the keys that were in it are" };
            let fix = "put it back, if engines still have its certificate";
            log::warn!("{} is gone, and {keys} served no more; {fix}", path.display());
        }
        if gone.len() > GONE_LOGGED_MAX {
            log::warn!("{} more files are gone with their keys", gone.len() - GONE_LOGGED_MAX);
        }
        if any {
            self.publish();
        } else if asked {
            log::info!("no key has changed; {} are served", self.shared.keys.load().len());
        }
        if self.links.have_changed() || asked {
            match identity::load(&self.config.server) {
                Ok(tls) => {
                    log::info!("the identity was read again, for new connections");
                    self.shared.tls.store(Some(tls));
                }
                Err(fault) => {
                    self.column.increment(self.telemetry.reload_faults);
                    let what = sandbox::explained(&fault.named.path, &fault);
                    log::warn!("{what}; the identity stays what it was");
                }
            }
        }
    }

    /// Publishes the keys again if the tokens' threads have found others than before.
    fn publish_new_tokens(&mut self) {
        if self.tokens.have_changed() {
            self.publish();
        }
    }

    fn publish(&mut self) {
        let keys = served(&self.key_files, &self.tokens, &self.shared.rules);
        self.column.set(self.telemetry.keys, keys.len() as i64);
        self.column.increment(self.telemetry.reloads);
        log::info!("serves {} keys now", keys.len());
        self.shared.keys.store(Arc::new(keys));
    }

    async fn drain(self) {
        log::info!("drains");
        self.view.is_draining.set(true);
        self.column.set(self.telemetry.draining, 1);
        let deadline = Instant::now() + self.config.server.drain_timeout;
        for sender in &self.workers.command_senders {
            let _ = sender.try_send(Command::Drain);
        }
        while self.workers.threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < deadline {
            sleep(DRAIN_POLL_INTERVAL).await;
        }
        log::info!("ends");
    }
}

/// Description of a key file's fault, in one line.
pub fn describe(fault: &key_files::Fault) -> String {
    format!("{}: {}", fault.path.display(), fault.what)
}

impl Failure {
    fn threads(error: io::Error) -> Failure {
        Failure(format!("a thread or its event loop cannot be started: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}
