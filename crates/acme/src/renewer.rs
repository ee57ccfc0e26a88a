//! The thread that orders: for each account its folder, its lock, and whichever certificate's time has come, one after
//! the other.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use instant_acme::CertificateIdentifier;
use propylon_crypto::key_process::{Failure, KeptKey, KeyFiles, Purpose};
use rustls_pki_types::CertificateDer;
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::answer::Answer;
use crate::chain::{self, Held, PEM_BYTES_MAX};
use crate::folder::{self, FileStamp, Folder, Lock};
use crate::http::Http;
use crate::issuer::{Issuer, Wanted};
use crate::key_process::{self, Spent};
use crate::order::{self, OrderJob};
use crate::plan;
use crate::record::{FailedAttempt, Record};
use crate::refusal::Refusal;
use crate::status::{CertificateStatus, Counts, IssuerStatus, State};

/// Publishes all outstanding challenges, whenever they have changed.
pub type Publish = Box<dyn Fn(&[Answer]) + Send + Sync>;

/// The thread's handle, and there is none before something is ordered. It ends soon after this is dropped.
pub struct Renewer {
    shared: Arc<Shared>,
    thread: Mutex<Option<watch::Sender<Vec<Issuer>>>>,
}

/// Interval at which folders are checked: for challenges of other processes, and for files that have been written.
const TICK: Duration = Duration::from_secs(1);
/// Pause before an account whose task has panicked begins anew.
const RESTART_WAIT: Duration = Duration::from_secs(30);
/// Number of ticks after which a process without the lock asks for it again.
const LOCK_TICKS: u64 = 5;
/// Ticks from one search for keys without a use to the next. A key of this process's own that two of them find is
/// removed: until then somebody may serve a certificate that has been replaced.
const UNUSED_TICKS: u64 = 20;
/// Time for which nothing refers to a certificate's key of another time before it is removed.
const UNUSED_TIME: Duration = Duration::from_secs(24 * 60 * 60);
const AWAY: &str = "the key process does not answer";
/// How the trouble begins that the key process cannot read its store.
const UNREAD: &str = "keys.store cannot be read: ";
/// Time limit for an order, from the account to the chain. Beyond it something hangs.
const ORDER_TIME: Duration = Duration::from_secs(600);
/// Interval in seconds at which the authority is asked when it would have a certificate replaced, unless it says.
const SUGGESTION: i64 = 6 * plan::HOUR;
const SUGGESTION_RANGE: std::ops::RangeInclusive<i64> = plan::HOUR..=24 * plan::HOUR;

impl Renewer {
    /// Makes a renewer that orders nothing yet. With `keys`, another process makes and holds all keys, and is asked.
    pub fn new(publish: Publish, keys: Option<&'static KeyFiles>) -> Renewer {
        Renewer {
            shared: Arc::new(Shared {
                publish,
                may_order: AtomicBool::new(true),
                keys,
                spent: Spent::default(),
                inner: Mutex::default(),
            }),
            thread: Mutex::default(),
        }
    }

    /// Sets what is ordered from now on: these, and no others. Orders in progress of accounts that stay are ended
    /// in order.
    ///
    /// # Errors
    /// Starting the thread may fail, which happens here when it is needed first.
    pub fn configure(&self, issuers: Vec<Issuer>) -> io::Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        match &*thread {
            Some(sender) => drop(sender.send_if_modified(|known| {
                let is_new = *known != issuers;
                *known = issuers;
                is_new
            })),
            None if issuers.is_empty() => {}
            None => {
                let (sender, receiver) = watch::channel(issuers);
                let runtime = Builder::new_current_thread().enable_all().build()?;
                let shared = Arc::clone(&self.shared);
                let begin = {
                    let shared = Arc::clone(&shared);
                    move |issuer, receiver| tokio::spawn(Account::new(Arc::clone(&shared), issuer).run(receiver))
                };
                let run = move || {
                    // Keys are made here, and libraries write them down.
                    propylon_sys::wipe_freed_memory();
                    runtime.block_on(supervise(shared, receiver, RESTART_WAIT, begin))
                };
                std::thread::Builder::new().name("acme".into()).spawn(run)?;
                *thread = Some(sender);
            }
        }
        Ok(())
    }

    /// Sets whether this process orders, from its next look at the folders on; challenges are answered all the same.
    pub fn order(&self, may_order: bool) {
        self.shared.may_order.store(may_order, Ordering::Relaxed);
    }

    /// Files that are not what they were when this was asked last.
    pub fn take_changed(&self) -> BTreeSet<PathBuf> {
        std::mem::take(&mut self.shared.lock().changed)
    }

    /// The status of all accounts, in the order of their names.
    pub fn status(&self) -> Vec<IssuerStatus> {
        self.shared.lock().status.values().cloned().collect()
    }
}

/// Between the thread and whoever asks how it stands.
struct Shared {
    publish: Publish,
    /// Whether this process may order at all; another one of the cluster does otherwise.
    may_order: AtomicBool,
    keys: Option<&'static KeyFiles>,
    spent: Spent,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    changed: BTreeSet<PathBuf>,
    status: BTreeMap<String, IssuerStatus>,
    /// Answers that are outstanding, by account.
    answers: BTreeMap<String, Vec<Answer>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the answers that are outstanding for this account.
    fn publish(&self, account: &str, answers: Vec<Answer>) {
        let mut inner = self.lock();
        let known = inner.answers.entry(account.into()).or_default();
        if *known == answers {
            return;
        }
        *known = answers;
        let all: Vec<Answer> = inner.answers.values().flatten().cloned().collect();
        // Published under the lock: then what is published last is what is so.
        (self.publish)(&all);
    }

    fn forget(&self, account: &str) {
        self.publish(account, Vec::new());
        let mut inner = self.lock();
        inner.answers.remove(account);
        inner.status.remove(account);
    }
}

/// Runs one task for each account, for as long as the configuration has it. A task that has panicked is begun anew:
/// its orders are in its folder, with the time at which it may try again.
async fn supervise(
    shared: Arc<Shared>,
    mut configured: watch::Receiver<Vec<Issuer>>,
    restart_wait: Duration,
    begin: impl Fn(Issuer, watch::Receiver<Issuer>) -> JoinHandle<()>,
) {
    let mut tasks: BTreeMap<String, (watch::Sender<Issuer>, JoinHandle<()>)> = BTreeMap::new();
    loop {
        for name in ended(&mut tasks) {
            log::error!("acme \"{name}\": its task has panicked, which is a bug in Propylon; it begins anew");
        }
        let issuers = configured.borrow_and_update().clone();
        let names: BTreeSet<&str> = issuers.iter().map(|issuer| issuer.acme.name.as_str()).collect();
        // An order of an account that is gone is broken off; the folder remembers that it was begun.
        let gone: Vec<String> = tasks.keys().filter(|name| !names.contains(name.as_str())).cloned().collect();
        for name in gone {
            if let Some((_, task)) = tasks.remove(&name) {
                task.abort();
                let _ = task.await;
            }
            shared.forget(&name);
        }
        for issuer in issuers {
            match tasks.get(&issuer.acme.name) {
                Some((sender, _)) => drop(sender.send(issuer)),
                None => {
                    let (sender, receiver) = watch::channel(issuer.clone());
                    let name = issuer.acme.name.clone();
                    tasks.insert(name, (sender, begin(issuer, receiver)));
                }
            }
        }
        tokio::select! {
            changed = configured.changed() => if changed.is_err() { return },
            () = panicked(&tasks, restart_wait) => {}
        }
    }
}

/// Takes out those that have ended, which they do by a panic alone as long as they are wanted.
fn ended(tasks: &mut BTreeMap<String, (watch::Sender<Issuer>, JoinHandle<()>)>) -> Vec<String> {
    let names: Vec<String> =
        tasks.iter().filter(|(_, (_, task))| task.is_finished()).map(|(name, _)| name.clone()).collect();
    tasks.retain(|_, (_, task)| !task.is_finished());
    names
}

/// Waits until there is one that has ended. What panics at once does so no more often than it is looked.
async fn panicked(tasks: &BTreeMap<String, (watch::Sender<Issuer>, JoinHandle<()>)>, restart_wait: Duration) {
    loop {
        sleep(restart_wait).await;
        if tasks.values().any(|(_, task)| task.is_finished()) {
            return;
        }
    }
}

/// One account at work.
struct Account {
    shared: Arc<Shared>,
    issuer: Issuer,
    folder: Folder,
    lock: Option<Lock>,
    /// Record of attempts: this process's or, with the lock, the folder's.
    record: Record,
    /// State of the certificates' files, by path.
    kept: HashMap<PathBuf, Kept>,
    answers_stamp: Option<FileStamp>,
    ticks: u64,
    counts: Counts,
    trouble: Option<String>,
    unused: Unused,
}

/// Unused keys are those that nothing in the account's folder refers to, each since it was found so first.
#[derive(Default)]
struct Unused(BTreeMap<KeptKey, Instant>);

impl Unused {
    /// Chooses what is to go of those that were `found` now. Those of `spent` do, by the second time: this process has
    /// made them for an attempt that failed, or has replaced their certificate. Of others the folder may be the wrong
    /// one, such as that below a volume which is not mounted: certificates' keys stay for long, and accounts' for good.
    fn removable(&mut self, found: BTreeSet<KeptKey>, spent: &BTreeSet<KeptKey>, now: Instant) -> Vec<KeptKey> {
        let known = std::mem::take(&mut self.0);
        let is_over = |key: &KeptKey| {
            let Some(since) = known.get(key) else { return false };
            let is_certificate_s = key.purpose() == Purpose::Certificate;
            spent.contains(key) || is_certificate_s && now.duration_since(*since) >= UNUSED_TIME
        };
        let over = found.iter().filter(|key| is_over(key)).cloned().collect();
        self.0 = found.into_iter().map(|key| (key.clone(), known.get(&key).copied().unwrap_or(now))).collect();
        over
    }
}

/// State of one certificate's file.
#[derive(Default)]
struct Kept {
    stamp: Option<FileStamp>,
    seen: bool,
    held: Option<Held>,
    /// The authority's window, and when to ask for it again.
    suggested: Option<(i64, i64)>,
    ask_at: i64,
}

impl Account {
    fn new(shared: Arc<Shared>, issuer: Issuer) -> Account {
        Account {
            folder: Folder::new(&issuer.acme.state),
            shared,
            issuer,
            lock: None,
            record: Record::default(),
            kept: HashMap::new(),
            answers_stamp: None,
            ticks: 0,
            counts: Counts::default(),
            trouble: None,
            unused: Unused::default(),
        }
    }

    async fn run(mut self, mut configured: watch::Receiver<Issuer>) {
        loop {
            self.adopt(configured.borrow_and_update().clone());
            self.work().await;
            self.ticks += 1;
            tokio::select! {
                () = sleep(TICK) => {}
                changed = configured.changed() => if changed.is_err() { return },
            }
        }
    }

    fn adopt(&mut self, issuer: Issuer) {
        if issuer.acme.state != self.issuer.acme.state {
            self.folder = Folder::new(&issuer.acme.state);
            self.lock = None;
        }
        let files: BTreeSet<&PathBuf> = issuer.wanted.iter().map(|wanted| &wanted.file).collect();
        self.kept.retain(|file, _| files.contains(file));
        self.issuer = issuer;
    }

    /// Checks the folder and the files once, and makes one order at most.
    async fn work(&mut self) {
        let now = now();
        let may_order = self.shared.may_order.load(Ordering::Relaxed);
        if !may_order {
            self.lock = None;
        } else if self.lock.is_none() && self.ticks.is_multiple_of(LOCK_TICKS) {
            let taken = self.take_over(now);
            self.note_failure(taken);
        }
        for wanted in self.issuer.wanted.clone() {
            self.check_file(&wanted, now);
        }
        let is_owner = self.lock.is_some();
        let answers_stamp = self.folder.answers_stamp();
        // The regular check finds answers that are over: nothing but the time shows them.
        if answers_stamp != self.answers_stamp || self.ticks.is_multiple_of(60) {
            self.answers_stamp = answers_stamp;
            self.shared.publish(&self.issuer.acme.name, self.folder.answers(now, is_owner));
        }
        self.report(None, now);
        let due = self.issuer.wanted.iter().find(|wanted| is_owner && self.attempt_at(wanted, now) <= now).cloned();
        if let Some(wanted) = due {
            self.report(Some(&wanted), now);
            self.attempt(&wanted).await;
            self.report(None, self::now());
        } else if is_owner {
            self.ask_for_suggestion(now).await;
            if self.ticks.is_multiple_of(UNUSED_TICKS) {
                self.remove_unused();
            }
        }
    }

    /// Keys of orders that came to nothing, and of certificates that have been replaced.
    fn remove_unused(&mut self) {
        let Some(keys) = self.shared.keys else { return };
        let name = &self.issuer.acme.name;
        // A file that cannot be read may have a use for one.
        let found = key_process::unused(keys, name, &self.issuer.acme.state).unwrap_or_default();
        for key in self.unused.removable(found, &self.shared.spent.all(), Instant::now()) {
            match keys.remove_kept(&key) {
                Ok(()) => {
                    log::info!("acme \"{name}\": {key} is removed: nothing has a use for it");
                    self.shared.spent.take_back(&key);
                }
                Err(failure) => log::warn!("acme \"{name}\": {key} cannot be removed: {failure:?}"),
            }
        }
    }

    fn take_over(&mut self, now: i64) -> Result<(), String> {
        self.folder.make()?;
        let at = self.issuer.acme.state.display();
        self.lock = self.folder.lock().map_err(|error| format!("{at}: the lock cannot be taken: {error}"))?;
        if self.lock.is_none() {
            return Ok(());
        }
        let read = self.folder.record(now);
        let (record, aside) = read.map_err(|error| {
            self.lock = None;
            format!("{at}/orders.json cannot be read: {error}")
        })?;
        self.record = record;
        if let Some(aside) = aside {
            self.say(format!("orders.json was broken and is now {}", aside.display()));
        }
        Ok(())
    }

    /// Trouble is told when it begins.
    fn note_failure(&mut self, result: Result<(), String>) {
        let trouble = result.err();
        if let Some(trouble) = &trouble
            && self.trouble.as_ref() != Some(trouble)
        {
            self.say(trouble.clone());
        }
        self.trouble = trouble;
    }

    fn say(&self, what: String) {
        log::error!("acme \"{}\": {what}", self.issuer.acme.name);
    }

    /// Looks whether the file has changed, and what it holds now. With the lock, a file that cannot be used is set
    /// aside.
    fn check_file(&mut self, wanted: &Wanted, now: i64) {
        let kept = self.kept.entry(wanted.file.clone()).or_default();
        let stamp = folder::file_stamp(&wanted.file);
        if kept.seen && kept.stamp == stamp {
            return;
        }
        let bytes = match folder::read(&wanted.file, PEM_BYTES_MAX) {
            Ok(bytes) => bytes.map(zeroize::Zeroizing::new),
            Err(error) => {
                // A file that cannot be read now is not ours to judge: it may be readable later.
                let trouble = Err(format!("{} cannot be read: {error}", wanted.file.display()));
                return self.note_failure(trouble);
            }
        };
        let name = &self.issuer.acme.name;
        let checked = match self.shared.keys {
            None => bytes.map(|bytes| chain::check_file(&bytes, &wanted.names, now)),
            Some(keys) => {
                let own = match keys.kept(name) {
                    Ok(own) => own,
                    // The key process may be there later.
                    Err(Failure::Unavailable) => return self.note_failure(Err(AWAY.into())),
                    Err(failure) => {
                        return self.note_failure(Err(format!("{UNREAD}{}", std::io::Error::from(failure))));
                    }
                };
                if self.trouble.as_deref().is_some_and(|trouble| trouble == AWAY || trouble.starts_with(UNREAD)) {
                    self.trouble = None;
                }
                let keeps = |public: &[u8]| key_process::keeps(&own, name, public);
                bytes.map(|bytes| chain::check_kept(&bytes, &wanted.names, now, keeps))
            }
        };
        *kept = Kept { stamp, seen: true, ..Kept::default() };
        match checked {
            None => {}
            Some(Ok(held)) => kept.held = Some(held),
            Some(Err(why)) if self.lock.is_some() => {
                let file = wanted.file.display();
                match folder::set_aside(&wanted.file, now) {
                    Ok(aside) => self.say(format!("{file} cannot be used ({why}) and is now {}", aside.display())),
                    Err(error) => self.say(format!("{file} cannot be used ({why}), nor set aside: {error}")),
                }
            }
            Some(Err(_)) => {}
        }
        if stamp.is_some() {
            self.shared.lock().changed.insert(wanted.file.clone());
        }
    }

    /// The time to attempt an order for this certificate: its own time, and then as soon as an attempt is allowed.
    fn attempt_at(&self, wanted: &Wanted, now: i64) -> i64 {
        // A file that has not been seen yet may be there and serve: it is looked at again, and not ordered meanwhile.
        let Some(kept) = self.kept.get(&wanted.file).filter(|kept| kept.seen) else { return i64::MAX };
        let wanted_at = kept.held.as_ref().map_or(now, |held| {
            plan::renew_at(held.lifetime, self.issuer.acme.renew_before, kept.suggested, held.chance())
        });
        wanted_at.max(self.record.may_try_at(&key(wanted), self.issuer.acme.orders_per_hour, now))
    }

    async fn attempt(&mut self, wanted: &Wanted) {
        let (began, acme) = (now(), self.issuer.acme.clone());
        self.record.keep_only(&self.issuer.wanted.iter().map(key).collect());
        self.record.begin(&key(wanted), acme.retry, began, fastrand::f64());
        // Attempts are written down first, and not begun if that fails: a process that is started again would begin
        // them again.
        if let Err(error) = self.folder.write_record(&self.record) {
            let why = format!("{}/orders.json cannot be written: {error}; nothing is ordered", acme.state.display());
            return self.note_failure(Err(why));
        }
        self.trouble = None;
        log::info!(
            "acme \"{}\": ordering an {} certificate for {}",
            acme.name,
            wanted.key_type.name(),
            wanted.names.join(", ")
        );
        let (outcome, retry_after) = self.order(wanted, began).await;
        let now = now();
        match outcome {
            Ok(()) => {
                self.counts.succeeded += 1;
                self.record.succeed(&key(wanted));
                log::info!("acme \"{}\": the certificate for {} is there", acme.name, wanted.names.join(", "));
                self.check_file(wanted, now);
            }
            Err(refusal) => {
                self.counts.failed += 1;
                self.counts.rate_limited += u64::from(refusal.rate_limited);
                let chance = fastrand::f64();
                let failed = FailedAttempt { why: &refusal.why, now, retry_after };
                self.record.fail(&key(wanted), failed, acme.retry, chance);
                let wait = self.attempt_at(wanted, now).saturating_sub(now);
                let names = wanted.names.join(", ");
                self.say(format!("{names}: {}; next attempt in {wait} s; what is served stays", refusal.why));
                if refusal.account_is_gone {
                    self.forget_account(now);
                }
            }
        }
        let written = self.folder.write_record(&self.record);
        self.note_failure(
            written.map_err(|error| format!("{}/orders.json cannot be written: {error}", acme.state.display())),
        );
    }

    /// The next attempt makes a new one.
    fn forget_account(&self, now: i64) {
        match folder::set_aside(&self.issuer.acme.account_file(), now) {
            Ok(aside) => {
                self.say(format!("the authority does not know the account; its key is now {}", aside.display()))
            }
            Err(error) => self.say(format!("the authority does not know the account, whose file stays: {error}")),
        }
    }

    /// An order, and a certificate kept; or why not, and when the authority would hear of us again.
    async fn order(&self, wanted: &Wanted, now: i64) -> (Result<(), Refusal>, Option<i64>) {
        let acme = &self.issuer.acme;
        let http = match Http::new(acme.ca.as_ref().map(|ca| ca.path.as_path())) {
            Ok(http) => http,
            Err(why) => return (Err(Refusal::new(why)), None),
        };
        let kept = self.kept.get(&wanted.file);
        // `replaces` is sent only where the authority has a say in it, and once: it may be what made the first
        // attempt fail.
        let first = self.record.of(&key(wanted)).is_none_or(|attempts| attempts.failures <= 1);
        let replaces = kept.filter(|kept| first && kept.suggested.is_some());
        let replaces = replaces.and_then(|kept| Some(kept.held.as_ref()?.leaf.clone()));
        let before = kept.and_then(|kept| Some(kept.held.as_ref()?.leaf.clone()));
        let (folder, keys, spent) = (&self.folder, self.shared.keys, &self.shared.spent);
        let is_shared = self.issuer.is_shared;
        let job = OrderJob { acme, wanted, folder, is_shared, http: &http, keys, spent, replaces, now };
        let publish = |answers: Vec<Answer>| self.shared.publish(&acme.name, answers);
        let result = match timeout(ORDER_TIME, order::obtain(&job, &publish)).await {
            Ok(Ok(pem)) => {
                let written = folder::write(&wanted.file, pem.as_bytes());
                if written.is_ok() && self.shared.keys.is_some() {
                    self.spend(before.as_deref(), pem.as_bytes());
                }
                written.map_err(|error| Refusal::new(format!("{} cannot be written: {error}", wanted.file.display())))
            }
            Ok(Err(refusal)) => Err(refusal),
            Err(_) => {
                publish(Vec::new());
                Err(Refusal::new("the order took too long"))
            }
        };
        (result, http.take_retry_after())
    }

    /// A chain has taken the place of another: the one key is in use from now on, and the other is not.
    fn spend(&self, before: Option<&[u8]>, chain: &[u8]) {
        let name = |public: Vec<u8>| key_process::name(&self.issuer.acme.name, &public, Purpose::Certificate);
        if let Some(key) = before.and_then(chain::public_key_of).and_then(name) {
            self.shared.spent.add(&key);
        }
        if let Some(key) = chain::public_key(chain).and_then(name) {
            self.shared.spent.take_back(&key);
        }
    }

    /// Asks for one window, if it is time for one (RFC 9773 §4.3).
    async fn ask_for_suggestion(&mut self, now: i64) {
        if self.issuer.acme.renew_before.is_some() {
            return;
        }
        let due = |wanted: &&Wanted| {
            self.kept.get(&wanted.file).is_some_and(|kept| kept.held.is_some() && kept.ask_at <= now)
        };
        let Some(wanted) = self.issuer.wanted.iter().find(due).cloned() else { return };
        let Some(leaf) = self.kept[&wanted.file].held.as_ref().map(|held| held.leaf.clone()) else { return };
        // An account that is not there yet is not made for this.
        let answer = match self.issuer.acme.account_file().exists() {
            true => timeout(ORDER_TIME, self.suggestion(&wanted, leaf, now)).await.ok().flatten(),
            false => None,
        };
        let Some(kept) = self.kept.get_mut(&wanted.file) else { return };
        kept.ask_at =
            now + answer.map_or(SUGGESTION, |(_, wait)| wait.clamp(*SUGGESTION_RANGE.start(), *SUGGESTION_RANGE.end()));
        // Suggestions stay as they were when the authority is not heard for once.
        kept.suggested = answer.map(|(window, _)| window).or(kept.suggested);
    }

    /// The window that the authority suggests, and the seconds until it is to be asked again. Absent if it has no
    /// opinion, or cannot be heard.
    async fn suggestion(&self, wanted: &Wanted, leaf: CertificateDer<'static>, now: i64) -> Option<((i64, i64), i64)> {
        let acme = &self.issuer.acme;
        let http = Http::new(acme.ca.as_ref().map(|ca| ca.path.as_path())).ok()?;
        let (folder, keys, spent) = (&self.folder, self.shared.keys, &self.shared.spent);
        let is_shared = self.issuer.is_shared;
        let job = OrderJob { acme, wanted, folder, is_shared, http: &http, keys, spent, replaces: None, now };
        let account = order::account(&job).await.ok()?.account;
        let (info, wait) = account.renewal_info(&CertificateIdentifier::try_from(&leaf).ok()?).await.ok()?;
        let window = (info.suggested_window.start.unix_timestamp(), info.suggested_window.end.unix_timestamp());
        Some((window, i64::try_from(wait.as_secs()).unwrap_or(i64::MAX)))
    }

    fn report(&self, ordering: Option<&Wanted>, now: i64) {
        let is_owner = self.lock.is_some();
        let certificate = |wanted: &Wanted| {
            let attempts = self.record.of(&key(wanted));
            let held = self.kept.get(&wanted.file).and_then(|kept| kept.held.as_ref());
            let at = self.attempt_at(wanted, now);
            let state = match held {
                _ if !is_owner => State::Elsewhere,
                _ if ordering == Some(wanted) => State::Ordering,
                Some(_) if at > now && attempts.is_none() => State::Good,
                _ => State::Due,
            };
            CertificateStatus {
                names: wanted.names.clone(),
                key_type: wanted.key_type,
                file: wanted.file.clone(),
                state,
                not_after: held.map(|held| held.lifetime.not_after),
                next_attempt: is_owner.then_some(at),
                failures: attempts.map_or(0, |attempts| attempts.failures),
                problem: attempts.map(|attempts| attempts.problem.clone()),
            }
        };
        let status = IssuerStatus {
            name: self.issuer.acme.name.clone(),
            trouble: self.trouble.clone(),
            certificates: self.issuer.wanted.iter().map(certificate).collect(),
            counts: self.counts,
        };
        self.shared.lock().status.insert(status.name.clone(), status);
    }
}

/// The name of a certificate in the record.
fn key(wanted: &Wanted) -> String {
    wanted.file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use propylon_config::Source;

    use super::*;
    use crate::issuer::issuers;

    fn ordered() -> Vec<Issuer> {
        let text = "[listener.web]\nbind = '127.0.0.1:443'\ntls = 'public'\n[[route]]\nrespond = { status = 200 }\n\
            [acme.le]\nterms_agreed = true\n[tls.public]\ncertificates = [{ acme = 'le', names = ['a.test'] }]\n";
        let source = Source { name: "a.toml".into(), base: "/nowhere".into(), text: text.into() };
        issuers(&propylon_config::parse(&source).expect("a good file").0)
    }

    #[test]
    fn a_key_of_another_time_is_not_removed_since_a_folder_does_not_refer_to_it() {
        let key = |number, purpose| KeptKey::new("le", [number; 20], purpose).expect("a name");
        let (account, certificate) = (key(1, Purpose::Account), key(2, Purpose::Certificate));
        let (own_account, own) = (key(3, Purpose::Account), key(4, Purpose::Certificate));
        let all = BTreeSet::from([account.clone(), certificate.clone(), own_account.clone(), own.clone()]);
        let spent = BTreeSet::from([own_account.clone(), own.clone()]);
        let (mut unused, start) = (Unused::default(), Instant::now());
        assert_eq!(unused.removable(all, &spent, start), []);
        let others = BTreeSet::from([account.clone(), certificate.clone()]);
        let mut both = others.clone();
        both.extend(spent.clone());
        assert_eq!(unused.removable(both, &spent, start + Duration::from_secs(20)), [own_account, own]);
        let mut at = start + UNUSED_TIME - Duration::from_secs(1);
        assert_eq!(unused.removable(others.clone(), &spent, at), []);
        // The folder is there again for a moment.
        assert_eq!(unused.removable(BTreeSet::new(), &spent, at), []);
        at += Duration::from_secs(1);
        assert_eq!(unused.removable(others.clone(), &spent, at), []);
        assert_eq!(unused.removable(others.clone(), &spent, at + UNUSED_TIME), [certificate]);
        assert_eq!(unused.removable([account].into(), &spent, at + 1000 * UNUSED_TIME), []);
    }

    #[tokio::test]
    async fn an_account_whose_task_has_panicked_begins_anew_and_not_at_once() {
        const RESTART_WAIT: Duration = Duration::from_millis(100);
        let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
        let count = AtomicUsize::new(0);
        let begin = move |_: Issuer, mut configured: watch::Receiver<Issuer>| {
            let number = count.fetch_add(1, Ordering::Relaxed);
            begun.send(Instant::now()).expect("somebody counts");
            tokio::spawn(async move {
                assert!(number >= 2, "twice, as a bug would");
                while configured.changed().await.is_ok() {}
            })
        };
        let shared = Arc::new(Shared {
            may_order: AtomicBool::new(true),
            publish: Box::new(|_| {}),
            keys: None,
            spent: Spent::default(),
            inner: Mutex::default(),
        });
        let (sender, receiver) = watch::channel(ordered());
        assert_eq!(sender.borrow().len(), 1);
        let supervisor = tokio::spawn(supervise(shared, receiver, RESTART_WAIT, begin));
        let mut before: Option<Instant> = None;
        for _ in 0..3 {
            let at = begins.recv().await.expect("it begins");
            assert!(before.replace(at).is_none_or(|before| at >= before + RESTART_WAIT), "not at once");
        }
        sleep(RESTART_WAIT * 3).await;
        assert!(begins.try_recv().is_err(), "what goes on is left alone");
        drop(sender);
        supervisor.await.expect("it ends with its configuration");
    }
}
