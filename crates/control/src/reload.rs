//! The configuration in use and its changes, asked for by a signal, the file or the admin API; applied whole or not at
//! all.
//!
//! A change is prepared beside the snapshot in use: text becomes a configuration, the configuration becomes a snapshot,
//! certificates are read and addresses are bound. Problems are collected, and as long as there is one nothing has
//! happened. Then the state is written to `process.state`; from there on nothing can fail: the snapshot is published,
//! and every worker adopts it.

mod file;
mod preparation;
mod upload;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use propylon_acme::Renewer;
use propylon_config::{Problem, ServerAddress, Severity, Source};
use propylon_metrics::{Column, Store};
use propylon_tls::Finding;
use serde_json::{Value, json};
use tokio::signal::unix::Signal;
use tokio::sync::{MutexGuard, mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::acme;
use crate::audit;
use crate::certificates::{Certificates, LoadFailures, ReadAgain, Reloaded, Which};
use crate::health::Health;
use crate::isolation;
use crate::logger;
use crate::names::Names;
use crate::origin::MergedConfig;
use crate::proofs::Proofs;
use crate::requests::{Change, ChangeError, ChangeOutcome, ChangeRequest, Refused, Settings};
use crate::sandbox::{self, Sandbox};
use crate::service;
use crate::state::{ClusterText, Leftovers, Pushed, ServerChange, ServerName, State, Uploads};
use crate::status::ConfigStatus;
use crate::upgrade::handover::Handover;
use crate::withheld;
use file::{Found, WatchedFile};
use preparation::{ParsedConfig, PreparedSnapshot, Sources, beside};
use propylon_net::listen;
use propylon_observe::telemetry::Telemetry;
use propylon_proxy::snapshot::{Answers, Files, Publication, Snapshot};
use propylon_signer::SignerProfile;
use upload::Upload;

/// Longest time for which the answer to a change waits for every worker to adopt the snapshot; it is then sent anyway.
const ADOPTION_WAIT: Duration = Duration::from_secs(2);

pub struct Reloader {
    path: PathBuf,
    /// The parsed configuration and state from which the snapshot in use was made.
    merged: MergedConfig,
    /// Watcher of the file, for `process.watch_config`.
    file: WatchedFile,
    config_status: Rc<RefCell<ConfigStatus>>,
    older: Vec<SupersededSnapshot>,
    certificates: Certificates,
    proofs: Proofs,
    /// Renewer of ordered certificates, on a thread of its own.
    orders: Arc<Renewer>,
    /// Uploads that are yet to be removed from the key process's folder.
    leftovers: Leftovers,
    sandbox: Arc<Sandbox>,
    publish: watch::Sender<Arc<Publication>>,
    health: Health,
    telemetry: Arc<Telemetry>,
    store: Arc<Store>,
}

/// The state that a process starts with.
pub struct InitialState {
    pub path: PathBuf,
    pub merged: MergedConfig,
    pub snapshot: Arc<Snapshot>,
    /// Uploaded files that could not be used.
    pub unusable: Vec<Finding>,
    /// Files and URLs of the snapshot's gates.
    pub proofs: Proofs,
    /// The sandbox: which files and folders this process can still reach.
    pub sandbox: Arc<Sandbox>,
    /// The thread that orders certificates.
    pub orders: Arc<Renewer>,
    pub publish: watch::Sender<Arc<Publication>>,
}

/// A snapshot that has been succeeded by a later one.
struct SupersededSnapshot {
    snapshot: Weak<Snapshot>,
    since: Instant,
}

impl Reloader {
    pub fn new(initial: InitialState, health: Health, telemetry: Arc<Telemetry>, store: Arc<Store>) -> Reloader {
        let InitialState { path, merged, snapshot, unusable, proofs, sandbox, orders, publish } = initial;
        let certificates = Certificates::new(&snapshot, Instant::now());
        certificates.set_load_failures(&snapshot.config, &unusable);
        let origin = origin_json(&merged);
        let overrides = merged.state.overrides();
        let config_status =
            ConfigStatus { snapshot, older: 0, oldest_age: Duration::ZERO, last: None, origin, overrides };
        let file = WatchedFile::new(&merged.file);
        let config_status = Rc::new(RefCell::new(config_status));
        let older = Vec::new();
        let leftovers = match merged.uploads() {
            Some(Uploads::Beside(_)) => Leftovers::of(&merged.state.unused),
            _ => Leftovers::default(),
        };
        let reloader = Reloader {
            path,
            merged,
            file,
            config_status,
            older,
            certificates,
            proofs,
            orders,
            leftovers,
            sandbox,
            publish,
            health,
            telemetry,
            store,
        };
        let generation = reloader.snapshot().generation;
        reloader.column().set(reloader.telemetry.process.reloads.generation, generation as i64);
        reloader
    }

    /// Applies changes one after another, and checks once a second for changed files. A change may wait for a name
    /// server or a busy worker; other tasks of the main thread go on meanwhile. While a successor starts, no change is
    /// applied: the successor may already have read the files that the change is about.
    pub async fn run(
        mut self,
        mut hangup: Signal,
        mut asked: mpsc::Receiver<ChangeRequest>,
        handover: Option<Handover>,
    ) {
        let mut seconds = interval(Duration::from_secs(1));
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut hangup_waits = false;
        loop {
            tokio::select! {
                // Without a handler SIGHUP would end the process.
                _ = hangup.recv() => hangup_waits = true,
                Some(ask) = asked.recv() => match turn(handover.as_ref()) {
                    Some(_turn) => self.answer(ask).await,
                    None => {
                        let _ = ask.reply.send(Err(being_succeeded()));
                    }
                },
                _ = seconds.tick() => {
                    if let Some(_turn) = turn(handover.as_ref()) {
                        self.watch_certificates().await;
                        self.watch_proofs().await;
                        self.watch_file().await;
                    }
                    self.review_older();
                    self.leftovers.tick(Instant::now());
                    let snapshot = self.snapshot();
                    self.certificates.remind(&snapshot, Instant::now());
                }
            }
            if hangup_waits && let Some(_turn) = turn(handover.as_ref()) {
                hangup_waits = false;
                service::reloading();
                // The sender of a signal finds the answer in the log alone.
                let _ = self.read_again("SIGHUP").await;
                service::ready(self.store.columns() - 1, self.snapshot().generation);
            }
        }
    }

    /// Applies a change that came by the admin address, and answers it.
    async fn answer(&mut self, request: ChangeRequest) {
        let ChangeRequest { change, by, dry_run, generation, reply } = request;
        let current = self.snapshot().generation;
        let asked = change.summary();
        let is_whole = matches!(change, Change::Push { .. } | Change::Cluster { .. } | Change::NoCluster);
        let outcome = match generation {
            Some(generation) if generation != current => Err(ChangeError::OtherGeneration(current)),
            // A dry run leaves no trace in the log or the metrics.
            _ if matches!(change, Change::ReadAgain) && !dry_run => {
                self.read_again("the admin API").await.map_err(ChangeError::Refused)
            }
            _ => self.change(change, dry_run).await.map_err(ChangeError::Refused),
        };
        if !dry_run {
            let made = outcome.as_ref().map(|done| (done.generation, done.changes.len()));
            audit::record(&by, &asked, made.map_err(ChangeError::reason));
            // The line before says all of a server's change.
            outcome.iter().filter(|_| is_whole).for_each(log_changes);
        }
        // The client may be gone.
        let _ = reply.send(outcome);
    }

    pub fn config_status(&self) -> Rc<RefCell<ConfigStatus>> {
        Rc::clone(&self.config_status)
    }

    pub fn load_failures(&self) -> LoadFailures {
        self.certificates.load_failures()
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.config_status.borrow().snapshot)
    }

    /// Applies a change, or with `dry_run` only finds out what it would do.
    async fn change(&mut self, change: Change, dry_run: bool) -> Result<ChangeOutcome, Refused> {
        if change.is_by_admin() && !dry_run {
            self.may_admin()?;
        }
        if matches!(change, Change::Push { .. }) && self.merged.config.cluster.is_some() && !dry_run {
            let what = "this engine is one of a cluster, which has one configuration for all".to_owned();
            return Err(Refused::Forbidden(what, "propylon cluster apply FILE"));
        }
        let mut upload = Upload::of(&change, &self.merged, &self.leftovers).await?;
        let outcome = self.make(change, &mut upload, dry_run).await;
        if let Some(upload) = upload {
            let is_kept = upload.kept;
            upload.end().await;
            // A file that could not be removed is to be known to the next process.
            if !is_kept && !self.leftovers.names().is_subset(&self.merged.state.unused) {
                self.note_leftovers();
            }
        }
        outcome
    }

    async fn make(
        &mut self,
        change: Change,
        upload: &mut Option<Upload>,
        dry_run: bool,
    ) -> Result<ChangeOutcome, Refused> {
        let by_admin = change.is_by_admin();
        let (is_watched, is_read) = (matches!(change, Change::FileChanged(_)), matches!(change, Change::ReadAgain));
        let files = if matches!(change, Change::ReadAgain | Change::ReadCertificates) {
            Files::ReadAgain
        } else {
            Files::AsTheyWere
        };
        let prepared = match self.intend(change, upload.as_ref(), dry_run).await {
            Ok(sources) => self.prepare(sources, files).await,
            Err(refused) => Err(refused),
        };
        let prepared = prepared.and_then(|prepared| self.whole(prepared, is_watched, is_read));
        let mut prepared = match prepared {
            Ok(prepared) => prepared,
            Err(refused) => {
                // Other refusals (unknown, taken, forbidden) say nothing about the configuration: no failure.
                if !dry_run && matches!(refused, Refused::Problems(_)) {
                    self.conclude_refused(by_admin);
                }
                return Err(match upload {
                    Some(upload) => upload.as_it_was_sent(refused),
                    None => refused,
                });
            }
        };
        let generation = self.snapshot().generation;
        let (changes, mut warnings) = (std::mem::take(&mut prepared.changes), std::mem::take(&mut prepared.warnings));
        let kept = prepared.kept.len();
        let unusable: BTreeSet<PathBuf> = prepared.kept.iter().map(|finding| finding.path.clone()).collect();
        if dry_run {
            return Ok(ChangeOutcome { generation, changes, warnings, kept, unusable });
        }
        if let Err(error) = self.write_state(&prepared.merged.state) {
            self.conclude_refused(by_admin);
            return Err(Refused::Unwritten(error));
        }
        upload.iter_mut().for_each(|upload| upload.kept = true);
        prepared.snapshot.renew_links();
        if files == Files::ReadAgain {
            self.proofs.forget_errors();
            self.certificates.set_load_failures(&prepared.merged.config, &prepared.kept);
        } else {
            self.certificates.forget_load_failures(&self.snapshot(), &prepared.snapshot);
            self.certificates.add_load_failures(&prepared.merged.config, &prepared.kept);
        }
        let changed = !changes.is_empty();
        let before = std::mem::replace(&mut self.merged, prepared.merged).state;
        {
            let mut config_status = self.config_status.borrow_mut();
            (config_status.origin, config_status.overrides) =
                (origin_json(&self.merged), self.merged.state.overrides());
        }
        if changed {
            self.publish(prepared.snapshot).await;
        }
        if before.certificates != self.merged.state.certificates {
            warnings.extend(self.remove_unused_certificates().await);
        }
        self.conclude(if changed { "applied" } else { "unchanged" });
        Ok(ChangeOutcome { generation: self.snapshot().generation, changes, warnings, kept, unusable })
    }

    /// A configuration of a file that was found changed, if that does not look cut off; of one that somebody has asked
    /// for with a warning.
    fn whole(
        &self,
        mut prepared: PreparedSnapshot,
        is_watched: bool,
        is_read: bool,
    ) -> Result<PreparedSnapshot, Refused> {
        match file::cut_off(&self.merged, &prepared.merged) {
            Some(problem) if is_watched => {
                Err(Refused::Problems(vec![Problem { severity: Severity::Error, ..problem }]))
            }
            found => {
                prepared.warnings.extend(found.filter(|_| is_read));
                Ok(prepared)
            }
        }
    }

    /// Fails if changes by the admin API are forbidden altogether: `process.immutable`, or no `process.state`.
    fn may_admin(&self) -> Result<(), Refused> {
        let process = &self.merged.config.process;
        if process.immutable {
            let what = "the configuration is declared immutable".to_owned();
            return Err(Refused::Forbidden(what, "change the file and send SIGHUP, or remove process.immutable"));
        }
        if process.state.is_none() {
            let what = "there is nowhere to keep what the admin API changes".to_owned();
            return Err(Refused::Forbidden(what, "set process.state to a folder, or change the file and send SIGHUP"));
        }
        Ok(())
    }

    /// Works out the file's text and the state that the change leads to.
    async fn intend(&mut self, change: Change, upload: Option<&Upload>, dry_run: bool) -> Result<Sources, Refused> {
        let mut state = self.merged.state.clone();
        let mut file = self.merged.file.clone();
        let (mut server, is_pushed) = (None, matches!(change, Change::Push { .. } | Change::Cluster { .. }));
        match change {
            Change::ReadAgain => file = self.read_file(dry_run).await?,
            Change::FileChanged(changed) => file = changed,
            Change::Push { text, is_json } => {
                state.servers.clear();
                let is_the_file = text == file.text && is_json == file.is_json();
                state.pushed = (!is_the_file).then(|| Pushed { text, is_json, over: file.text.clone() });
            }
            Change::ReadCertificates => {}
            Change::NoCluster => state.cluster = None,
            Change::Cluster { text, is_json } => state.cluster = Some(ClusterText { text, is_json }),
            Change::AddServer { backend, address, settings } => {
                let parsed = self.address(&backend, &address)?;
                let address = parsed.to_string();
                if self.has_server(&backend, &parsed) {
                    return Err(Refused::Taken(format!("[backend.{backend}] has the server {address} already")));
                }
                let known = self.merged.config.backends.iter().find(|known| known.name == backend);
                if let Some((what, fix)) = known.and_then(|known| known.misfit(&parsed)) {
                    return Err(Refused::Problems(vec![Problem::error("address", None, what, fix)]));
                }
                let entry = entry(&mut state, &backend, &address);
                *entry = ServerChange { added: true, ..ServerChange::default() };
                settings.lay_over(entry);
                server = Some(ServerName { backend, address });
            }
            Change::ChangeServer { backend, address, settings } => {
                let address = self.known(&backend, &address)?;
                settings.lay_over(entry(&mut state, &backend, &address));
                server = Some(ServerName { backend, address });
            }
            Change::RemoveServer { backend, address } => {
                let address = self.known(&backend, &address)?;
                let left = self.merged.config.backends.iter().find(|known| known.name == backend);
                if left.is_some_and(|left| left.servers.len() == 1) {
                    let what = format!("{address} is the only server of [backend.{backend}]");
                    return Err(Refused::Forbidden(what, "add another one first"));
                }
                let entry = entry(&mut state, &backend, &address);
                *entry = ServerChange { removed: true, ..ServerChange::default() };
                server = Some(ServerName { backend, address });
            }
            Change::PutCertificate { profile, name, .. } => {
                let file = upload.map(|upload| upload.file.clone()).unwrap_or_default();
                state.certificates.entry(profile).or_default().insert(name, file);
            }
            Change::RemoveCertificate { profile, name } => {
                let known = state.certificates.get_mut(&profile).and_then(|files| files.remove(&name));
                known
                    .ok_or_else(|| Refused::Unknown(format!("no certificate \"{name}\" was put to [tls.{profile}]")))?;
            }
        }
        state.tidy();
        // Other changes leave it as it is, and need not be written for its sake.
        if state.certificates != self.merged.state.certificates
            && let Some(Uploads::Beside(_)) = self.merged.uploads()
        {
            state.note_unused(&self.merged.state, self.leftovers.names());
        }
        Ok(Sources { file, state, server, is_pushed })
    }

    /// Reads the configuration's file again.
    async fn read_file(&mut self, dry_run: bool) -> Result<Source, Refused> {
        let path = self.path.clone();
        let read = beside(move || isolation::read_source(&path)).await?;
        let file = read.map_err(|problem| Refused::Problems(vec![self.unread(problem)]))?;
        // After a dry run the new text still counts as a change for `process.watch_config`.
        if !dry_run {
            self.file.take(&file);
        }
        Ok(file)
    }

    /// Parses a server's address, provided that the backend exists.
    fn address(&self, backend: &str, address: &str) -> Result<ServerAddress, Refused> {
        if !self.merged.config.backends.iter().any(|known| known.name == backend) {
            return Err(Refused::Unknown(format!("there is no [backend.{backend}]")));
        }
        match propylon_config::server_address(address) {
            Ok(address) => Ok(address),
            Err((what, fix)) => Err(Refused::Problems(vec![Problem::error("address", None, what, fix)])),
        }
    }

    fn has_server(&self, backend: &str, address: &ServerAddress) -> bool {
        let backends = self.merged.config.backends.iter().filter(|known| known.name == backend);
        backends.flat_map(|backend| &backend.servers).any(|server| server.address == *address)
    }

    fn known(&self, backend: &str, address: &str) -> Result<String, Refused> {
        let parsed = self.address(backend, address)?;
        let address = parsed.to_string();
        match self.has_server(backend, &parsed) {
            true => Ok(address),
            false => Err(Refused::Unknown(format!("[backend.{backend}] has no server {address}"))),
        }
    }

    /// Compiles a configuration to a snapshot. With thousands of servers this takes long: another thread does it.
    async fn prepare(&mut self, sources: Sources, files: Files) -> Result<PreparedSnapshot, Refused> {
        let (earlier, before) = (self.snapshot(), self.merged.config.clone());
        let sandbox = Arc::clone(&self.sandbox);
        let parsed = beside(move || ParsedConfig::new(sources, &before, earlier, &sandbox)).await??;
        let found = look_up(parsed.earlier.unknown_names(&parsed.config), &parsed.config).await;
        beside(move || parsed.compile(files, &found)).await?
    }

    fn write_state(&self, state: &State) -> Result<(), String> {
        let Some(folder) = &self.merged.config.process.state else { return Ok(()) };
        if *state == self.merged.state {
            return Ok(());
        }
        let unwritten = |error| {
            let (path, why) = (folder.path.display(), sandbox::explained(&folder.path, &error));
            format!("the state cannot be written: {path}: {why}")
        };
        state.save(&folder.path).map_err(unwritten)
    }

    /// Publishes the snapshot to every worker, and waits until each has adopted it, for at most `ADOPTION_WAIT`.
    async fn publish(&mut self, snapshot: Snapshot) {
        let earlier = self.snapshot();
        self.proofs.reload(&snapshot.config, Instant::now());
        let snapshot = self.proofs.complete(snapshot, &earlier.gates.kept_keys()).await;
        self.telemetry.reload(&self.store, &snapshot.config);
        listen::announce(&snapshot.config, &snapshot.sockets, &earlier.sockets);
        logger::start(snapshot.config.log.level);
        self.certificates.reload(&snapshot, Instant::now());
        let snapshot = Arc::new(snapshot);
        self.health.reload(&snapshot);
        let publication = Arc::new(Publication::new(Arc::clone(&snapshot), &self.telemetry));
        publication.prepare();
        start_resolver(&snapshot, Some(&earlier));
        if let Err(error) = self.orders.configure(propylon_acme::issuers(&snapshot.config)) {
            log::error!("certificates cannot be ordered: {error}");
        }
        self.publish.send_replace(Arc::clone(&publication));
        snapshot.commit(&earlier);
        let workers = self.store.columns() - 1;
        if timeout(ADOPTION_WAIT, publication.adopted_by(workers)).await.is_err() {
            log::warn!("not every worker goes by generation {} yet", snapshot.generation);
        }
        let older = SupersededSnapshot { since: Instant::now(), snapshot: Arc::downgrade(&earlier) };
        self.older.push(older);
        self.column().set(self.telemetry.process.reloads.generation, snapshot.generation as i64);
        self.config_status.borrow_mut().snapshot = snapshot;
        drop(earlier);
        // Memory that compiling took is given back; else it stays until this thread allocates again.
        propylon_sys::release_memory();
        self.review_older();
    }

    /// Counts a refusal; by the admin API it is no more than counted, since the client has the errors in its answer.
    fn conclude_refused(&mut self, by_admin: bool) {
        if by_admin {
            self.column().increment(self.telemetry.process.reloads.failed);
        } else {
            self.conclude("failed");
        }
    }

    /// Counts a result in the metrics and keeps it for `/snapshot`.
    fn conclude(&mut self, result: &'static str) {
        let (column, metrics) = (self.column(), &self.telemetry.process.reloads);
        column.increment(match result {
            "applied" => metrics.applied,
            "unchanged" => metrics.unchanged,
            _ => metrics.failed,
        });
        let now = SystemTime::now();
        let seconds = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        column.set(metrics.last, seconds as i64);
        column.set(metrics.last_failed, i64::from(result == "failed"));
        self.config_status.borrow_mut().last = Some((now, result));
    }

    /// Reports earlier snapshots and withdraws series that nobody uses: once a second, and after every change.
    fn review_older(&mut self) {
        self.older.retain(|older| older.snapshot.strong_count() > 0);
        let age = self.older.first().map_or(Duration::ZERO, |oldest| oldest.since.elapsed());
        let (column, metrics) = (self.column(), &self.telemetry.process.reloads);
        column.set(metrics.old, self.older.len() as i64);
        column.set(metrics.oldest_age, age.as_secs() as i64);
        column.set(self.telemetry.process.unusable_files, self.certificates.unusable_files() as i64);
        let mut config_status = self.config_status.borrow_mut();
        (config_status.older, config_status.oldest_age) = (self.older.len(), age);
        drop(config_status);
        self.telemetry.withdraw_unused(&self.store);
    }

    /// Reads file and certificates again, for SIGHUP or the admin API's reload: log and metrics are the same for both.
    async fn read_again(&mut self, by: &str) -> Result<ChangeOutcome, Refused> {
        log::info!("{by}: reading the configuration and the certificates again");
        let before = self.snapshot();
        let counters = &Arc::clone(&self.telemetry).process.certificate_reloads;
        let outcome = self.change(Change::ReadAgain, false).await;
        match &outcome {
            Ok(done) => {
                let refused = self.log_kept(done.kept);
                if !refused {
                    self.column().increment(counters.success);
                }
                let after = self.snapshot();
                let same =
                    |name: &Arc<propylon_tls::Profile>| before.profiles.iter().any(|known| Arc::ptr_eq(known, name));
                match after.profiles.iter().all(same) {
                    true if !refused => log::info!("the certificates are what they were"),
                    true => {}
                    false => self.log_certificates(),
                }
                self.log_outcome(done);
            }
            Err(refused) => {
                self.column().increment(counters.failure);
                // Certificates' files are named by the configuration, and that has errors.
                log::error!(
                    "certificates were not read again, for the configuration has errors; those from before stay in use"
                );
                log_refused(refused);
            }
        }
        outcome
    }

    /// Applies the file if `process.watch_config` is set and its text has changed.
    async fn watch_file(&mut self) {
        if !self.merged.config.process.watch_config {
            return;
        }
        let Some(identity) = self.file.changed(&self.path) else { return };
        let path = self.path.clone();
        let Ok(read) = beside(move || isolation::read_source(&path)).await else { return };
        match self.file.found(identity, read) {
            Found::Nothing => {}
            Found::New(file) => {
                log::info!("{} has changed", self.path.display());
                match self.change(Change::FileChanged(file), false).await {
                    Ok(done) => self.log_outcome(&done),
                    Err(refused) => log_refused(&refused),
                }
            }
            Found::Unreadable(problem) => {
                self.conclude_refused(false);
                log_refused(&Refused::Problems(vec![self.unread(problem)]));
            }
        }
    }

    /// A file's problem with what the sandbox has to do with it.
    fn unread(&self, problem: Problem) -> Problem {
        match sandbox::denial(&self.path) {
            Some((why, fix)) => Problem { what: format!("{}: {why}", problem.what), fix, ..problem },
            None => problem,
        }
    }

    /// Logs the outcome of reading the file again.
    fn log_outcome(&self, done: &ChangeOutcome) {
        log_done(done);
        if !self.merged.state.overrides().is_empty() {
            let name = &self.merged.file.name;
            log::info!("what the admin API has changed stands over {name}; /snapshot says what that is");
        }
    }

    /// Reads changed certificates again. Files that were touched and hold the same content are not reported.
    async fn watch_certificates(&mut self) {
        let snapshot = self.snapshot();
        let mut changed = self.certificates.changed(&snapshot.config, Instant::now());
        changed.profiles.extend(acme::profiles_with(&snapshot.config, &self.orders.take_changed()));
        changed.profiles.sort_unstable();
        changed.profiles.dedup();
        if changed == Which::default() {
            return;
        }
        let counters = &Arc::clone(&self.telemetry).process.certificate_reloads;
        let (earlier, which) = (Arc::clone(&snapshot), changed.clone());
        let Ok(read) = beside(move || ReadAgain::of(&earlier, &which)).await else {
            // Without `take_over` the files count as changed still, so the next second tries again.
            return log::error!("certificates that have changed cannot be read now");
        };
        let reloaded = self.certificates.take_over(&snapshot, read);
        let kept = self.certificates.take_refused();
        let refused = self.log_kept(kept);
        match reloaded {
            Reloaded::New(next) => {
                if !refused {
                    self.column().increment(counters.success);
                }
                drop(snapshot);
                self.publish(*next).await;
                self.log_certificates();
            }
            Reloaded::Links if refused => {}
            Reloaded::Links => self.column().increment(counters.success),
            Reloaded::Same => {}
            Reloaded::Failed => {
                if !refused {
                    self.column().increment(counters.failure);
                }
                log::error!("certificates could not be read again; those from before stay in use");
            }
        }
    }

    /// Reads changed files of proofs again, and fetches issuers' keys.
    async fn watch_proofs(&mut self) {
        while let Some(path) = self.proofs.changed_file(Instant::now()) {
            if let Some(gates) = self.proofs.read_again(&self.snapshot(), &path) {
                let next = self.snapshot().with_gates(gates);
                self.publish(next).await;
            }
        }
        if let Some(gates) = self.proofs.take_fetched(&self.snapshot(), Instant::now()) {
            let next = self.snapshot().with_gates(gates);
            self.publish(next).await;
        }
        self.proofs.fetch(&self.snapshot(), Instant::now());
        let (files, urls) = self.proofs.failing();
        let identity = &self.telemetry.process.identity;
        self.column().set(identity.unusable_files, files as i64);
        self.column().set(identity.failing_urls, urls as i64);
    }

    /// Counts and logs certificate files that could not be used; returns whether there are any.
    fn log_kept(&self, files: usize) -> bool {
        if files > 0 {
            let process = &self.telemetry.process;
            self.column().add(process.certificate_reload_errors, files as u64);
            self.column().increment(process.certificate_reloads.failure);
            log::error!("certificates could not all be read again; where one could not, that from before stays in use");
        }
        files > 0
    }

    fn log_certificates(&self) {
        let count: usize = self.snapshot().profiles.iter().map(|profile| profile.count()).sum();
        log::info!("certificates were read again: {count} in use");
    }

    /// Removes files of certificates that were replaced or removed; returns a warning if they cannot be removed.
    async fn remove_unused_certificates(&mut self) -> Option<Problem> {
        let (MergedConfig { config, state, source, .. }, leftovers) = (self.merged.clone(), self.leftovers.clone());
        let at = config.keys.store.as_ref().map(|store| store.at);
        let uploads = self.merged.uploads()?;
        let removed = beside(move || uploads.remove_unused(&config, &state, &leftovers)).await.ok()?;
        self.note_leftovers();
        let what =
            format!("certificates that were uploaded and are not used any more cannot be removed: {}", removed.err()?);
        log::warn!("{what}");
        Some(Problem::warning(&source.name, at, what, "their keys lie in keys.store until it can be written in"))
    }

    /// Notes in the state what is still to be removed, for the next process. If that fails, the state names more files
    /// than are there, which does no harm.
    fn note_leftovers(&mut self) {
        let state = State { unused: self.leftovers.names(), ..self.merged.state.clone() };
        match self.write_state(&state) {
            Ok(()) => self.merged.state = state,
            Err(error) => log::warn!("{error}"),
        }
    }

    /// The main thread's column, which is the last.
    fn column(&self) -> Column {
        Store::column(&self.store, self.store.columns() - 1)
    }
}

impl Settings {
    fn lay_over(&self, change: &mut ServerChange) {
        change.weight = self.weight.or(change.weight);
        change.max_connections = self.max_connections.or(change.max_connections);
        change.drain = self.drain.or(change.drain);
        change.backup = self.backup.or(change.backup);
    }
}

fn entry<'s>(state: &'s mut State, backend: &str, address: &str) -> &'s mut ServerChange {
    state.servers.entry(backend.to_owned()).or_default().entry(address.to_owned()).or_default()
}

/// Looks up all names at once.
async fn look_up(questions: Vec<propylon_config::ServerAddress>, config: &propylon_config::Config) -> Answers {
    let names = Names::new(&config.process.resolver);
    let found = names.look_up_beside(questions.clone()).await;
    questions.into_iter().zip(found).collect()
}

fn origin_json(merged: &MergedConfig) -> Value {
    json!({ "file": merged.file.name, "changed_by_admin": merged.state.summary() })
}

/// Starts look-ups of the names of key servers of new signers, and ends those of signers that are gone.
pub fn start_resolver(snapshot: &Snapshot, earlier: Option<&Snapshot>) {
    let known = earlier.map_or(&[][..], |earlier| &earlier.signers);
    let is_gone = |signer: &&Arc<SignerProfile>| !snapshot.signers.iter().any(|current| Arc::ptr_eq(current, signer));
    known.iter().filter(is_gone).for_each(|signer| signer.addresses.look_no_more());
    let is_known = |signer: &&Arc<SignerProfile>| known.iter().any(|known| Arc::ptr_eq(known, signer));
    let new = snapshot.signers.iter().filter(|signer| !is_known(signer));
    let resolved = new.map(|signer| (signer.config.name.clone(), Arc::clone(&signer.addresses)));
    if let Err(error) = propylon_signer::start_resolver(resolved.collect()) {
        log::error!("key servers' names cannot be looked up again: {error}");
    }
}

/// The guard to hold while changing something; none while a successor starts. Without an upgrade socket: `Some(None)`.
fn turn(handover: Option<&Handover>) -> Option<Option<MutexGuard<'_, ()>>> {
    match handover {
        Some(handover) => handover.may_change().map(Some),
        None => Some(None),
    }
}

fn being_succeeded() -> ChangeError {
    let what = "another process is taking over".to_owned();
    ChangeError::Refused(Refused::Forbidden(what, "ask again in a moment: the successor will answer"))
}

fn log_done(done: &ChangeOutcome) {
    done.warnings.iter().for_each(|problem| log::warn!("{}", problem.unmarked()));
    match done.changes.len() {
        0 => log::info!("the configuration is what it was: generation {}", done.generation),
        1 => log::info!("the configuration is in effect, with 1 change: generation {}", done.generation),
        count => log::info!("the configuration is in effect, with {count} changes: generation {}", done.generation),
    }
    log_changes(done);
}

/// Logs what has changed: whoever looks at night has not seen what the one who asked for it was told.
fn log_changes(done: &ChangeOutcome) {
    withheld::changes(&done.changes).iter().for_each(|line| log::info!("generation {}: {line}", done.generation));
}

fn log_refused(refused: &Refused) {
    match refused {
        Refused::Problems(problems) => {
            for problem in problems {
                match problem.severity {
                    Severity::Error => log::error!("{}", problem.unmarked()),
                    Severity::Warning => log::warn!("{}", problem.unmarked()),
                }
            }
        }
        Refused::Forbidden(what, fix) => log::error!("{what}; {fix}"),
        Refused::Unknown(what) | Refused::Taken(what) | Refused::Unwritten(what) => log::error!("{what}"),
    }
    log::error!("the configuration was refused; the one from before stays in effect");
}
