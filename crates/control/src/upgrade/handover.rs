//! The side of the process that serves: it answers at the upgrade socket, gives a successor what it asks for, and lets go when
//! that one serves.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use propylon_crypto::TagKey;
use propylon_metrics::{Column, Store};
use propylon_net::listen::Bound;
use propylon_observe::history::History;
use propylon_observe::telemetry::Telemetry;
use propylon_proxy::snapshot::Snapshot;
use serde_json::{Value, json};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Mutex, MutexGuard, Notify, oneshot};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{interval, sleep, timeout};

use super::keys::{self, KEYS};
use super::launcher::Launcher;
use super::message::{Channel, Message, SESSIONS_BYTES_MAX, SecretKind, word};
use super::past::{self, PAST};
use super::predecessors::{Predecessors, unix_seconds};
use super::{ANSWER_WAIT, CONVERSATIONS_MAX, Failure, PROTOCOL, READY_WAIT};
use crate::health::Health;
use crate::logger;
use crate::service;
use crate::status::ConfigStatus;

/// How often it is seen to a process that was started here.
const CHILD_LOOK: Duration = Duration::from_millis(100);
/// How often a drain tells of itself.
const PROGRESS: Duration = Duration::from_millis(500);
/// How long accepting rests after it failed.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Handles of the main thread that a handover needs.
pub struct HandoverState {
    pub config_status: Rc<RefCell<ConfigStatus>>,
    pub store: Arc<Store>,
    pub telemetry: Arc<Telemetry>,
    pub health: Health,
    /// Absent where it could not be started.
    pub launcher: Option<Launcher>,
    /// As it is in the configuration, with another handle on the socket.
    pub admin: Option<(String, OwnedFd)>,
    pub path: PathBuf,
    pub socket: OwnedFd,
    pub predecessors: Predecessors,
    pub history: Rc<RefCell<History>>,
    /// Count of upgrades that have led to this process.
    pub upgrades: u64,
}

#[derive(Clone)]
pub struct Handover(Rc<Inner>);

struct Inner {
    handover_state: HandoverState,
    stage: RefCell<Stage>,
    /// Lock that is held by a change of anything that a successor would get, and by an upgrade.
    changes: Mutex<()>,
    conversations: Cell<usize>,
    /// Clients that have asked for the upgrade and wait for its outcome.
    waiting: RefCell<Vec<oneshot::Sender<Result<u32, Failure>>>>,
    succeeded: Notify,
    kept: RefCell<Kept>,
    listening: RefCell<Option<AbortHandle>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Serving,
    /// This one was started, and has yet to say a word.
    Called(u32),
    /// Somebody makes itself ready.
    Preparing(u32),
    Succeeded(u32, SystemTime),
}

/// Sockets beside the listeners' that the successor has kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub admin: bool,
    pub upgrade: bool,
}

/// An item that is offered under one number.
enum Item {
    Listener(Bound),
    Admin,
    Upgrade,
    Predecessor,
}

impl Handover {
    /// Begins to answer, on the current runtime.
    pub fn start(handover_state: HandoverState) -> io::Result<Handover> {
        let listener = watched(handover_state.socket.try_clone()?)?;
        let inner = Inner {
            handover_state,
            stage: RefCell::new(Stage::Serving),
            changes: Mutex::new(()),
            conversations: Cell::new(0),
            waiting: RefCell::default(),
            succeeded: Notify::new(),
            kept: RefCell::default(),
            listening: RefCell::default(),
        };
        let handover = Handover(Rc::new(inner));
        let listening = spawn_local(handover.clone().listen(listener));
        handover.0.listening.replace(Some(listening.abort_handle()));
        Ok(handover)
    }

    /// Starts this process's own program again, as its successor.
    pub fn upgrade(&self) -> Result<(), Failure> {
        let inner = &self.0;
        self.may_begin(false)?;
        let started = match &inner.handover_state.launcher {
            None => {
                Err(Failure::new("start", "there is no launcher, as the log has said; use run --upgrade".to_owned()))
            }
            Some(launcher) => {
                let program = launcher.program().display().to_string();
                match launcher.launch() {
                    Ok(pid) => Ok((pid, program)),
                    Err(error) => {
                        let cure = "see that the new version is at this path, and that this account may execute it";
                        Err(Failure::new("start", format!("{program} cannot be started: {error}; {cure}")))
                    }
                }
            }
        };
        match started {
            Ok((pid, program)) => {
                log::info!("upgrade: {program} was started as process {pid}");
                inner.stage.replace(Stage::Called(pid));
                spawn_local(self.clone().watch_successor(pid));
                Ok(())
            }
            Err(failure) => {
                self.failed(&failure);
                Err(failure)
            }
        }
    }

    /// The same, as a signal asks for it: what stands in the way is logged.
    pub fn upgrade_by_signal(&self) {
        if let Err(failure) = self.upgrade()
            && failure.reason == "refused"
        {
            log::error!("SIGUSR2: {failure}");
        }
    }

    /// To be held while something changes that a successor would get; none while there is one.
    pub fn may_change(&self) -> Option<MutexGuard<'_, ()>> {
        self.0.changes.try_lock().ok()
    }

    /// Waits until a successor serves.
    pub async fn succeeded(&self) {
        if self.kept().is_none() {
            self.0.succeeded.notified().await;
        }
    }

    /// Sockets that the successor has kept, if there is a successor.
    pub fn kept(&self) -> Option<Kept> {
        matches!(*self.0.stage.borrow(), Stage::Succeeded(..)).then(|| *self.0.kept.borrow())
    }

    /// For /snapshot.
    pub fn to_json(&self) -> Value {
        let handover_state = &self.0.handover_state;
        let (stage, successor, since) = match *self.0.stage.borrow() {
            Stage::Serving => ("serving", None, None),
            Stage::Called(pid) | Stage::Preparing(pid) => ("successor-starts", Some(pid), None),
            Stage::Succeeded(pid, since) => ("draining", Some(pid), Some(unix_seconds(since))),
        };
        json!({
            "socket": handover_state.path.display().to_string(),
            "upgrades": handover_state.upgrades,
            "stage": stage,
            "successor": successor,
            "draining_since": since,
            "predecessors": handover_state.predecessors.to_json(),
        })
    }

    fn column(&self) -> Column {
        let store = &self.0.handover_state.store;
        Store::column(store, store.columns() - 1)
    }

    fn count(&self, failure: &Failure) {
        let counter = self.0.handover_state.telemetry.upgrades.failed(failure.reason);
        counter.into_iter().for_each(|counter| self.column().increment(counter));
    }

    /// Whether somebody may become the successor: one that was called may come, another one may not be called.
    fn may_begin(&self, comes: bool) -> Result<(), Failure> {
        let what = match *self.0.stage.borrow() {
            Stage::Serving => return Ok(()),
            Stage::Called(_) if comes => return Ok(()),
            Stage::Called(pid) => format!("process {pid} has been started to take over already"),
            Stage::Preparing(pid) => format!("process {pid} is taking over at this moment"),
            Stage::Succeeded(pid, _) => format!("process {pid} has taken over already, and this one drains"),
        };
        let failure = Failure::new("refused", what);
        self.count(&failure);
        Err(failure)
    }

    /// Reports a failed upgrade to the log, the metrics and the clients that wait.
    fn failed(&self, failure: &Failure) {
        log::error!("the upgrade has failed: {failure}; this process serves on");
        self.count(failure);
        self.0.stage.replace(Stage::Serving);
        self.announce(Err(failure.clone()));
    }

    fn announce(&self, outcome: Result<u32, Failure>) {
        for waiting in self.0.waiting.take() {
            // The client may be gone.
            let _ = waiting.send(outcome.clone());
        }
    }

    /// Sees to it that a process started here either comes or is forgotten, and that its end is noticed.
    async fn watch_successor(self, pid: u32) {
        let Some(launcher) = &self.0.handover_state.launcher else { return };
        let began = Instant::now();
        loop {
            sleep(CHILD_LOOK).await;
            let waits = *self.0.stage.borrow() == Stage::Called(pid);
            match launcher.ended(pid) {
                None if waits && began.elapsed() > READY_WAIT => {
                    launcher.kill();
                    self.failed(&Failure::new("timeout", format!("process {pid} did not say a word")));
                }
                None => {}
                Some(status) => {
                    if waits {
                        let what = format!("process {pid} ended before it said a word: {status}");
                        self.failed(&Failure::new("ended", what));
                    }
                    return;
                }
            }
        }
    }

    async fn listen(self, listener: AsyncFd<OwnedFd>) {
        loop {
            match accept(&listener).await {
                Ok(socket) => self.receive(socket),
                Err(_) => sleep(ACCEPT_REST).await,
            }
        }
    }

    fn receive(&self, socket: OwnedFd) {
        let inner = &self.0;
        if !propylon_sys::is_peer_trusted(&socket).unwrap_or(false) {
            let failure = Failure::new("forbidden", "somebody of another account has come to the upgrade socket");
            log::warn!("{failure}, and was sent away");
            return self.count(&failure);
        }
        if inner.conversations.get() >= CONVERSATIONS_MAX {
            return self.count(&Failure::new("refused", ""));
        }
        inner.conversations.set(inner.conversations.get() + 1);
        let handover = self.clone();
        spawn_local(async move {
            // Errors beyond what is logged are for the other side to see.
            let _ = handover.converse(socket).await;
            handover.0.conversations.set(handover.0.conversations.get() - 1);
        });
    }

    async fn converse(&self, socket: OwnedFd) -> io::Result<()> {
        let pid = propylon_sys::peer_process(&socket)?;
        let channel = Channel::new(socket)?;
        let Ok(first) = timeout(ANSWER_WAIT, channel.receive()).await else { return Ok(()) };
        match first? {
            Some(Message::Word(hello)) if hello["word"] == "hello" => self.hand_over(&channel, pid, &hello).await,
            Some(Message::Word(asked)) if asked["word"] == "upgrade" => self.upgrade_for(&channel).await,
            // Somebody who only looked whether we are here.
            _ => Ok(()),
        }
    }

    /// Somebody wants to know what becomes of the upgrade that is asked for.
    async fn upgrade_for(&self, channel: &Channel) -> io::Result<()> {
        let (announce, outcome) = oneshot::channel();
        let begun = self.upgrade();
        if begun.is_ok() {
            self.0.waiting.borrow_mut().push(announce);
        }
        let outcome = match begun {
            Ok(()) => outcome.await.unwrap_or_else(|_| Err(Failure::new("ended", "the process is ending"))),
            Err(failure) => Err(failure),
        };
        match outcome {
            Ok(pid) => channel.send_json(&json!({ "word": "upgraded", "pid": pid })).await,
            Err(failure) => channel.send_json(&refusal("failed", &failure)).await,
        }
    }

    async fn hand_over(&self, channel: &Channel, pid: u32, hello: &Value) -> io::Result<()> {
        let spoken = hello["protocol"].as_u64();
        let may_begin = match spoken == Some(PROTOCOL) {
            true => self.may_begin(true),
            false => {
                Err(Failure::new("protocol", format!("this process speaks protocol {PROTOCOL} of upgrades alone")))
            }
        };
        if let Err(failure) = may_begin {
            log::warn!("process {pid} wants to take over and may not: {failure}");
            return channel.send_json(&refusal("refused", &failure)).await;
        }
        let inner = &self.0;
        inner.stage.replace(Stage::Preparing(pid));
        let version = hello["version"].as_str().unwrap_or("unknown");
        log::info!("upgrade: process {pid}, version {version}, is getting ready to take over");
        // A change that is being made is made first.
        let _turn = inner.changes.lock().await;
        let adopted = match self.negotiate(channel, hello).await {
            Ok(adopted) => adopted,
            Err(failure) => {
                self.failed(&failure);
                return Ok(());
            }
        };
        self.let_go(pid, &adopted);
        channel.send_json(&word("draining")).await?;
        self.send_progress(channel).await
    }

    /// Up to the successor's word that it serves. Returns what it has kept.
    async fn negotiate(&self, channel: &Channel, hello: &Value) -> Result<Vec<Item>, Failure> {
        let snapshot = Arc::clone(&self.0.handover_state.config_status.borrow().snapshot);
        let offered = limited(ANSWER_WAIT, self.offer(channel, &snapshot, hello)).await?;
        let adopted = limited(READY_WAIT, await_ready(channel)).await??;
        let ready = async {
            for profile in &snapshot.profiles {
                for message in profile.hand_over_sessions(SESSIONS_BYTES_MAX, SystemTime::now()) {
                    channel.send_secret(SecretKind::Sessions, profile.name(), &message).await?;
                }
            }
            channel.send_json(&word("go")).await?;
            match channel.receive().await? {
                Some(message) if message.word() == "serving" => Ok(()),
                _ => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        };
        limited(ANSWER_WAIT, ready).await?;
        let kept = offered.into_iter().enumerate().filter(|(place, _)| adopted.contains(place));
        Ok(kept.map(|(_, item)| item).collect())
    }

    async fn offer(&self, channel: &Channel, snapshot: &Snapshot, hello: &Value) -> io::Result<Vec<Item>> {
        let handover_state = &self.0.handover_state;
        channel
            .send_json(&json!({
                "word": "offer",
                "pid": std::process::id(),
                "version": env!("CARGO_PKG_VERSION"),
                "generation": snapshot.generation,
                "upgrades": handover_state.upgrades,
                "cluster": snapshot.config.cluster.as_ref().map(|cluster| &cluster.name),
            }))
            .await?;
        channel.send_secret(SecretKind::TicketKeys, "", &snapshot.ticket_keys()).await?;
        channel.send_secret(SecretKind::StickySecret, "", &TagKey::secret_of_process()).await?;
        let mut items = Vec::new();
        for bound in snapshot.sockets.iter() {
            let sockets = bound.sockets();
            let files: Vec<BorrowedFd<'_>> = sockets.iter().map(|socket: &Arc<TcpListener>| socket.as_fd()).collect();
            let description = json!({
                "kind": "listener",
                "listener": snapshot.config.listeners[bound.listener].name,
                "wanted": bound.wanted().to_string(),
                "address": bound.address.to_string(),
            });
            give(channel, description, &files).await?;
            items.push(Item::Listener(bound.clone()));
        }
        if let Some((bind, socket)) = &handover_state.admin {
            give(channel, json!({ "kind": "admin", "bind": bind }), &[socket.as_fd()]).await?;
            items.push(Item::Admin);
        }
        // The other process may have been started in another folder.
        let path = std::path::absolute(&handover_state.path).unwrap_or_else(|_| handover_state.path.clone());
        let path = path.display().to_string();
        give(channel, json!({ "kind": "upgrade", "path": path }), &[handover_state.socket.as_fd()]).await?;
        items.push(Item::Upgrade);
        for (description, file) in handover_state.predecessors.offered() {
            let Ok(file) = file else { continue };
            let mut description = description.to_json();
            description["kind"] = json!("predecessor");
            give(channel, description, &[file.as_fd()]).await?;
            items.push(Item::Predecessor);
        }
        self.offer_knowledge(channel, snapshot, hello).await?;
        channel.send_json(&word("offered")).await?;
        Ok(items)
    }

    /// Everything that is known beside sockets and secrets.
    async fn offer_knowledge(&self, channel: &Channel, snapshot: &Snapshot, hello: &Value) -> io::Result<()> {
        let handover_state = &self.0.handover_state;
        for known in handover_state.health.hand_over() {
            channel.send_json(&json!({ "word": "server", "server": known.to_json() })).await?;
        }
        // Earlier versions end a conversation at a word that they do not know.
        let takes =
            |wanted: &str| hello["takes"].as_array().is_some_and(|takes| takes.iter().any(|word| word == wanted));
        let takes_keys = takes(KEYS);
        // Keys that are beyond what is taken are fetched.
        let kept_max = if takes_keys { keys::TEXTS_MAX } else { 0 };
        for part in snapshot.gates.kept_keys().iter().take(kept_max).flat_map(keys::parts) {
            channel.send_json(&part).await?;
        }
        if takes(PAST) {
            let parts = past::parts(&handover_state.history.borrow(), &logger::recent());
            for part in parts {
                channel.send_json(&part).await?;
            }
        }
        Ok(())
    }

    /// From here on the successor is the one that serves.
    fn let_go(&self, pid: u32, adopted: &[Item]) {
        let mut kept = Kept::default();
        for item in adopted {
            match item {
                Item::Listener(bound) => bound.hand_over(),
                Item::Admin => kept.admin = true,
                Item::Upgrade => kept.upgrade = true,
                Item::Predecessor => {}
            }
        }
        let inner = &self.0;
        inner.kept.replace(kept);
        if kept.upgrade {
            // At once: whoever comes from here on wants the successor, and would be refused here.
            inner.listening.take().iter().for_each(AbortHandle::abort);
        }
        inner.stage.replace(Stage::Succeeded(pid, SystemTime::now()));
        inner.handover_state.predecessors.leave();
        // Before the successor says a word to the service manager: it hears the main process alone.
        service::notify_main_pid(pid);
        log::info!("upgrade: process {pid} serves from here on");
        self.announce(Ok(pid));
        inner.succeeded.notify_one();
    }

    /// Until this process ends, or nobody listens any more.
    async fn send_progress(&self, channel: &Channel) -> io::Result<()> {
        let handover_state = &self.0.handover_state;
        let (began, limit) =
            (Instant::now(), handover_state.config_status.borrow().snapshot.config.process.drain_timeout);
        let mut ticks = interval(PROGRESS);
        loop {
            ticks.tick().await;
            let (connections, requests) = handover_state.telemetry.open(&handover_state.store);
            channel
                .send_json(&json!({
                    "word": "progress",
                    "connections": connections,
                    "requests": requests,
                    "seconds_left": limit.saturating_sub(began.elapsed()).as_secs(),
                }))
                .await?;
        }
    }
}

#[expect(deprecated, reason = "deprecated for types that may close their file behind its back; an owned one does not")]
fn watched(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(socket)
}

async fn accept(listener: &AsyncFd<OwnedFd>) -> io::Result<OwnedFd> {
    loop {
        let mut ready = listener.readable().await?;
        if let Ok(accepted) = ready.try_io(|listener| propylon_sys::accept_messages(listener.get_ref())) {
            return accepted;
        }
    }
}

async fn give(channel: &Channel, mut description: Value, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    description["word"] = json!("sockets");
    description["count"] = json!(files.len());
    channel.send_json(&description).await?;
    channel.send_files(files).await
}

/// Numbers of the items in the offer that the successor has adopted.
async fn await_ready(channel: &Channel) -> io::Result<Result<BTreeSet<usize>, Failure>> {
    let mut adopted = BTreeSet::new();
    loop {
        match channel.receive().await? {
            Some(Message::Word(value)) => match value["word"].as_str() {
                Some("adopted") => {
                    let places = value["places"].as_array().into_iter().flatten();
                    adopted.extend(places.filter_map(Value::as_u64).map(|place| place as usize));
                }
                Some("ready") => return Ok(Ok(adopted)),
                Some("failed") => {
                    let what = value["what"].as_str().unwrap_or_default().to_owned();
                    return Ok(Err(Failure::received(value["reason"].as_str().unwrap_or_default(), what)));
                }
                _ => return Err(io::ErrorKind::InvalidData.into()),
            },
            Some(_) => return Err(io::ErrorKind::InvalidData.into()),
            None => return Ok(Err(Failure::new("ended", "the successor ended before it was ready"))),
        }
    }
}

async fn limited<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> Result<T, Failure> {
    match timeout(limit, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(Failure::new("ended", format!("the conversation with the successor broke off: {error}"))),
        Err(_) => Err(Failure::new("timeout", format!("the successor took longer than {} s", limit.as_secs()))),
    }
}

fn refusal(word: &str, failure: &Failure) -> Value {
    json!({ "word": word, "reason": failure.reason, "what": failure.what })
}
