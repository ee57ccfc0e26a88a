//! A session: etcd answers, this engine is registered under a lease, and everything that changes is watched and acted
//! upon. A session ends with the error that ends it, and the next one begins by reading everything again.

use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};

use crate::agent::{Agent, Outcome, Registration, answered};
use crate::chance::now;
use crate::ends::{End, Request};
use crate::etcd::{Batch, Compare, Error, Event, KeyValue, Lease, Operation, Txn, Watch};
use crate::last_will;
use crate::mirror::{Mirror, Touched};
use crate::records::{EngineRecord, FlowsRecord, read, written};
use crate::runtime::FLOWS_STATUS;
use crate::secrets::News;

/// Small values of one page, and secrets of one.
const PAGE_KEYS: usize = 500;
/// More secrets than this that have changed are read in pages of all.
const SECRETS_ALONE_MAX: usize = 100;
/// Time between two looks at what nobody tells of: folders, and the clock.
const LOOK: Duration = Duration::from_millis(250);
/// Others learn within this that an engine leaves.
const LEAVE_WAIT: Duration = Duration::from_secs(3);
/// Time between two readings of others' figures, for those who look.
const FIGURES_PAUSE: Duration = Duration::from_secs(1);
/// A name that is taken is asked for again after this.
const NAME_RETRY: Duration = Duration::from_secs(5);
/// Time between two registrations, however often somebody removes the record.
const REGISTRATION_PAUSE: Duration = Duration::from_secs(1);
/// An engine that was registered and whose figures say less than this is not written down again.
const PROBLEMS_MAX: usize = 16;

impl Agent {
    /// Runs until the thread is to end, or etcd fails.
    pub(crate) async fn session(&mut self) -> Outcome<()> {
        self.published = None;
        self.leading = None;
        let revision = self.load().await?;
        let mut watch = self.client.watch(self.keys.all(), revision + 1);
        if !self.is_connected {
            self.since_etcd = Some(Instant::now());
            log::info!("cluster: etcd answers; {} engines are there", self.mirror.engines.len());
        }
        self.is_connected = true;
        self.problems.remove("etcd");
        let mut beats = interval(self.settings.lease / 3);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seconds = interval(LOOK);
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut registered = None;
        let (mut figures, mut read) = (None, Instant::now());
        while !self.is_over() {
            self.act(&mut registered).await?;
            self.follow_figures(&mut figures, &mut read).await?;
            tokio::select! {
                biased;
                _ = self.end.changed() => {}
                _ = self.viewed.changed() => {}
                _ = beats.tick() => self.beat().await?,
                Some(request) = self.requests.recv() => self.take_request(request).await,
                batch = watch.next() => self.take_batch(batch)?,
                batch = next_of(&mut figures) => self.take_batch(batch)?,
                answered = answered(&mut self.in_flight) => self.conclude(answered),
                changed = self.figures.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    self.report().await?;
                    self.follow_accounts().await?;
                }
                _ = seconds.tick() => {}
            }
        }
        Ok(())
    }

    /// Does what the admin address asks for, unless whoever asked has given up: a change that was told of as failed is
    /// not made later.
    async fn take_request(&mut self, request: Request) {
        if request.reply.is_closed() {
            return;
        }
        let answer = self.answer(request.what, &request.by).await;
        let _ = request.reply.send(answer);
    }

    /// Reads everything small, and then of the secrets what has changed: a configuration must not be here before a
    /// certificate that was put before it. Returns the revision to watch from.
    async fn load(&mut self) -> Outcome<u64> {
        let mut first = None;
        let mut mirror = Mirror::default();
        std::mem::swap(&mut mirror.heard, &mut self.mirror.heard);
        let now = Instant::now();
        let prefix = self.keys.all().to_owned();
        for part in
            ["engines/", "drains/", "weights/", "deaths/", "config/current", "config/candidate", "config/verdicts/"]
                .into_iter()
                .chain(["config/outcome", "leader", "flows", "capacity"])
        {
            let range = self.client.range(format!("{prefix}{part}"), PAGE_KEYS).await?;
            first.get_or_insert(range.revision);
            for entry in range.entries {
                let revisions = (entry.create_revision, entry.mod_revision);
                if let Ok(key) = std::str::from_utf8(&entry.key) {
                    mirror.put(&self.keys, key, &entry.value, revisions, now);
                }
                self.look_at_leader(&entry);
            }
        }
        self.mirror = mirror;
        self.load_figures().await?;
        let secrets = self.keys.secrets();
        let listed = self.client.keys(&secrets).await?;
        self.secrets.look_for_rewind(listed.revision);
        let first = first.unwrap_or(listed.revision);
        // Changes from before the list come once more by the watch.
        let late = listed.entries.iter().filter(|entry| entry.mod_revision > first);
        late.for_each(|entry| self.mirror.note(&entry.key, entry.mod_revision));
        self.load_secrets(&listed.entries, &secrets).await?;
        self.secrets.flush();
        Ok(first)
    }

    /// Reads the files of accounts that the configuration has now.
    async fn follow_accounts(&mut self) -> Outcome<()> {
        let accounts = self.figures.borrow().accounts.clone();
        if !self.secrets.set_accounts(&accounts) {
            return Ok(());
        }
        let secrets = self.keys.secrets();
        let listed = self.client.keys(&secrets).await?;
        self.load_secrets(&listed.entries, &secrets).await?;
        self.secrets.flush();
        Ok(())
    }

    /// Reads figures of all engines, and returns the revision that they are of.
    async fn load_figures(&mut self) -> Outcome<u64> {
        let range = self.client.range(self.keys.loads(), PAGE_KEYS).await?;
        let now = Instant::now();
        for entry in range.entries {
            if let Ok(key) = std::str::from_utf8(&entry.key) {
                let revisions = (entry.create_revision, entry.mod_revision);
                self.mirror.put(&self.keys, key, &entry.value, revisions, now);
            }
        }
        Ok(range.revision)
    }

    /// The leader watches figures of all engines; others read them while somebody looks at the cluster.
    async fn follow_figures(&mut self, watch: &mut Option<Watch>, read: &mut Instant) -> Outcome<()> {
        match (self.leading.is_some(), watch.is_some()) {
            (true, false) => {
                let revision = self.load_figures().await?;
                *watch = Some(self.client.watch(self.keys.loads(), revision + 1));
            }
            (false, true) => *watch = None,
            _ => {}
        }
        if watch.is_none() && self.is_viewed() && read.elapsed() >= FIGURES_PAUSE {
            *read = Instant::now();
            self.load_figures().await?;
        }
        Ok(())
    }

    async fn load_secrets(&mut self, listed: &[KeyValue], prefix: &str) -> Outcome<()> {
        let name = |key: &[u8]| std::str::from_utf8(key).ok()?.strip_prefix(prefix).map(str::to_owned);
        let mut changed = Vec::new();
        let mut known: std::collections::BTreeSet<String> = self.secrets.names().into_iter().collect();
        for entry in listed {
            let Some(name) = name(&entry.key) else { continue };
            if self.secrets.revision(&name) != Some(entry.mod_revision) {
                changed.push(name.clone());
            }
            known.remove(&name);
        }
        if changed.len() > SECRETS_ALONE_MAX {
            for entry in self.client.range(prefix, PAGE_KEYS).await?.entries {
                if let Some(name) = name(&entry.key) {
                    self.take_secret(&name, News::Put(&entry.value, entry.mod_revision));
                }
            }
        } else {
            for name in changed {
                if let Some(entry) = self.client.get(self.keys.secret(&name)).await? {
                    self.take_secret(&name, News::Put(&entry.value, entry.mod_revision));
                }
            }
        }
        // An etcd that was emptied, or put in another's place, must not take away what is served.
        if !self.mirror.is_there(&self.keys.current()) && self.served.is_some() {
            known.iter().for_each(|name| self.secrets.unshare(name));
            return Ok(());
        }
        known.into_iter().for_each(|name| self.take_secret(&name, News::Gone));
        let names: std::collections::BTreeSet<String> = listed.iter().filter_map(|entry| name(&entry.key)).collect();
        self.certificates_changed |= self.secrets.sweep(|secret| names.contains(secret));
        Ok(())
    }

    pub(crate) fn take_secret(&mut self, name: &str, news: News) {
        self.certificates_changed |= name.starts_with("certificates/");
        self.secrets.take(name, news);
    }

    /// Takes what has changed. Most errors of a watch are only news of its member: it goes on at another one.
    fn take_batch(&mut self, batch: Result<Batch, Error>) -> Outcome<()> {
        match batch {
            Ok(batch) => batch.events.into_iter().for_each(|event| self.event(event)),
            Err(error @ (Error::Compacted { .. } | Error::Rewound { .. })) => return Err(error),
            Err(error) => log::debug!("cluster: the watch: {error}"),
        }
        self.secrets.flush();
        Ok(())
    }

    fn event(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Put(entry) => {
                let Ok(key) = std::str::from_utf8(&entry.key) else { return };
                let revisions = (entry.create_revision, entry.mod_revision);
                if let Touched::Secret(name) = self.mirror.put(&self.keys, key, &entry.value, revisions, now) {
                    self.take_secret(&name, News::Put(&entry.value, entry.mod_revision));
                }
                self.look_at_leader(&entry);
                self.look_at_damage(&entry);
                self.look_at_own_record();
            }
            Event::Delete { key, mod_revision } => {
                let Ok(key) = std::str::from_utf8(&key) else { return };
                let touched = self.mirror.delete(&self.keys, key, mod_revision);
                if let Touched::Secret(name) = &touched {
                    self.take_secret(name, News::Gone);
                }
                // The end of the lease before is told of when the record is there again under another one.
                let is_own = touched == Touched::Value && key == self.keys.engine(&self.settings.engine);
                if is_own && matches!(self.registration, Registration::Held | Registration::Overtaken) {
                    log::warn!("cluster: this engine's record was removed, as when its lease ends: registering anew");
                    self.registration = Registration::Missing;
                }
            }
        }
    }

    /// Finds out whether another process writes under this engine's name.
    fn look_at_own_record(&mut self) {
        let own = self.mirror.engines.get(&self.settings.engine);
        if self.registration == Registration::Held
            && let Some(own) = own
            && own.process != self.process
            && !own.process.is_empty()
        {
            self.registration = Registration::Overtaken;
            if own.lineage == self.lineage {
                // The successor of an upgrade.
                return;
            }
            let what = format!(
                "another process is {} of this cluster now, since its name or its state folder is the same",
                self.settings.engine
            );
            log::warn!("cluster: {what}");
            self.problems.insert("name", what);
        }
    }

    /// Does whatever is due. To be called after every change; does nothing when nothing is due.
    async fn act(&mut self, registered: &mut Option<Instant>) -> Outcome<()> {
        // Before registration: the first record says whether this engine is ready.
        self.ask();
        self.look_whether_caught_up();
        let pause = match self.registration {
            // Nobody knows how this engine is before its first figures; others would take it for one that drains.
            Registration::Missing if self.figures.borrow().cores > 0 => Some(REGISTRATION_PAUSE),
            Registration::Taken => Some(NAME_RETRY),
            _ => None,
        };
        if pause.is_some_and(|pause| registered.is_none_or(|at: Instant| at.elapsed() >= pause)) {
            *registered = Some(Instant::now());
            self.register().await?;
        }
        self.leave_when_drained().await?;
        self.put_back().await?;
        self.look_for_own_slot();
        self.hand_over_table();
        self.tell().await?;
        self.lead().await?;
        self.secrets.is_leader = self.leading.is_some();
        self.publish();
        Ok(())
    }

    /// Takes this engine's name under a new lease. A full etcd is no reason to end the session: it can be read.
    async fn register(&mut self) -> Outcome<()> {
        let lease = match self.client.grant(self.settings.lease).await {
            Ok((lease, _)) => lease,
            Err(error @ Error::NoSpace) => {
                self.problems.insert("space", error.to_string());
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let before = self.lease.replace(lease);
        let result = self.take_name(lease).await;
        // Not before: the end of a lease removes whatever is under it.
        if let Some(before) = before {
            let _ = self.client.revoke(before).await;
        }
        result
    }

    async fn take_name(&mut self, lease: Lease) -> Outcome<()> {
        let key = self.keys.engine(&self.settings.engine);
        let record = self.record();
        let put = Operation::Put { key: key.clone().into(), value: written(&record), lease: Some(lease) };
        let get = Operation::Get { key: key.clone().into() };
        let outcome = self.client.txn(&Txn::new().when_absent(&key).then(&put).otherwise(&get)).await;
        let mut outcome = match outcome {
            Err(error @ Error::NoSpace) => {
                self.problems.insert("space", error.to_string());
                return Ok(());
            }
            outcome => outcome?,
        };
        self.problems.remove("space");
        if !outcome.succeeded {
            let known = self.client.get(&key).await?;
            let Some(known) = known else { return Ok(()) };
            let holder = read::<EngineRecord>(&key, &known.value).unwrap_or_default();
            if holder.instance != self.instance {
                return self.report_taken(&holder).await;
            }
            let unchanged = Compare::ModRevision(known.mod_revision);
            outcome = self.client.txn(&Txn::new().when(&key, &unchanged).then(&put)).await?;
            if !outcome.succeeded {
                return Ok(());
            }
        }
        self.registration = Registration::Held;
        last_will::note(&self.settings.state, self.lease);
        self.problems.remove("name");
        let revisions = (outcome.revision, outcome.revision);
        self.mirror.put(&self.keys, &key, &written(&record), revisions, Instant::now());
        self.published = Some(record);
        Ok(())
    }

    async fn report_taken(&mut self, holder: &EngineRecord) -> Outcome<()> {
        let (name, cluster) = (&self.settings.engine, &self.settings.cluster);
        let what = format!(
            "cluster {cluster} has an engine named {name} already, at {}: this one is not counted, and follows the \
             cluster's configuration; set cluster.engine to another name",
            holder.address.map_or_else(|| "another machine".to_owned(), |address| address.to_string())
        );
        if self.registration != Registration::Taken {
            log::error!("cluster: {what}");
        }
        self.problems.insert("name", what);
        self.registration = Registration::Taken;
        if let Some(lease) = self.lease.take() {
            let _ = self.client.revoke(lease).await;
        }
        Ok(())
    }

    /// Gives the name up once nobody is connected any more, or the drain's time is over.
    async fn leave_when_drained(&mut self) -> Outcome<()> {
        let Some(since) = self.leaving else { return Ok(()) };
        let is_over = since.elapsed() >= self.settings.drain_limit;
        if !is_over && (self.figures.borrow().load.connections > 0 || since.elapsed() < LEAVE_WAIT) {
            return Ok(());
        }
        log::info!("cluster: this engine has left; a restart joins again");
        (self.leaving, self.registration) = (None, Registration::Left);
        self.client.delete(self.keys.drain(&self.settings.engine)).await?;
        self.client.delete(self.keys.weight(&self.settings.engine)).await?;
        if let Some(lease) = self.lease.take() {
            self.client.revoke(lease).await?;
        }
        Ok(())
    }

    /// Keeps the lease.
    async fn beat(&mut self) -> Outcome<()> {
        let Some(lease) = self.lease else { return Ok(()) };
        match self.client.keep_alive(lease).await {
            Ok(_) => Ok(()),
            Err(Error::LeaseGone) => {
                if self.registration == Registration::Held {
                    log::warn!("cluster: the lease has ended, as after a pause of this machine: registering anew");
                    self.registration = Registration::Missing;
                }
                (self.lease, self.published) = (None, None);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Writes this engine's record, if it is another than others have, and verdicts that are due.
    async fn tell(&mut self) -> Outcome<()> {
        let Some(lease) = self.lease.filter(|_| self.registration == Registration::Held) else { return Ok(()) };
        let record = self.record();
        if self.published.as_ref() != Some(&record) {
            let key = self.keys.engine(&self.settings.engine);
            if self.put(&key, &written(&record), lease).await? {
                self.published = Some(record);
            }
        }
        while let Some((id, verdict)) = self.verdicts_due.pop_first() {
            let is_open = self.mirror.candidate.as_ref().is_some_and(|(candidate, _)| candidate.id == id);
            let key = self.keys.verdict(&id, &self.settings.engine);
            if is_open && !self.put(&key, &written(&verdict), lease).await? {
                self.verdicts_due.insert(id, verdict);
                break;
            }
        }
        Ok(())
    }

    /// Writes this engine's figures.
    async fn report(&mut self) -> Outcome<()> {
        let Some(lease) = self.lease.filter(|_| self.registration == Registration::Held) else { return Ok(()) };
        let mut load = self.figures.borrow_and_update().load.clone();
        load.at = now();
        let key = self.keys.load(&self.settings.engine);
        self.put(&key, &written(&load), lease).await.map(drop)
    }

    /// Puts a value under the lease. A full etcd, or a lease that has ended, is no reason to end the session; the
    /// outcome says whether it was put.
    async fn put(&mut self, key: &str, value: &[u8], lease: Lease) -> Outcome<bool> {
        match self.client.put(key, value, Some(lease)).await {
            Ok(_) => {
                self.problems.remove("space");
                Ok(true)
            }
            Err(error @ Error::NoSpace) => {
                self.problems.insert("space", error.to_string());
                Ok(false)
            }
            Err(Error::LeaseGone) => {
                (self.lease, self.published) = (None, None);
                self.registration = Registration::Missing;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// This engine, as others are to know it.
    pub(crate) fn record(&self) -> EngineRecord {
        let figures = self.figures.borrow();
        let is_ending = *self.end.borrow() != End::Running;
        let drained = self.mirror.drains.get(&self.settings.engine).map(|drain| drain.at);
        let mut problems: Vec<String> = figures.problems.clone();
        problems.extend(self.problems.iter().filter(|(about, _)| **about != "etcd").map(|(_, what)| what.clone()));
        problems.extend(self.secrets.problems());
        problems.truncate(PROBLEMS_MAX);
        EngineRecord {
            instance: self.instance.clone(),
            process: self.process.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            lineage: self.lineage.clone(),
            address: self.settings.address,
            cores: figures.cores,
            since: self.since,
            is_ready: figures.is_ready && self.is_caught_up && !is_ending,
            draining: drained.or(is_ending.then(now_if_new(self.published.as_ref()))),
            serial: self.served.as_ref().map_or(0, |served| served.serial),
            candidate: self.served_candidate.clone(),
            generation: figures.generation,
            flows: self.flows(),
            announced: figures.announced,
            problems,
        }
    }

    /// The state of the flow table's process, if one runs.
    fn flows(&self) -> Option<FlowsRecord> {
        self.settings.flows?;
        crate::tables::record(&self.settings.runtime.join(FLOWS_STATUS))
    }
}

/// The next changes of a watch, if there is one.
async fn next_of(watch: &mut Option<Watch>) -> Result<Batch, Error> {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}

/// The time since when an engine drains by itself stays what it was.
fn now_if_new(published: Option<&EngineRecord>) -> impl FnOnce() -> u64 + use<> {
    let known = published.and_then(|record| record.draining);
    move || known.unwrap_or_else(now)
}
