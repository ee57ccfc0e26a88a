//! Files and keys that proofs are compared with, on the main thread: files are read again when they have changed, and
//! issuers' keys are fetched. A file, or a set of keys, that cannot be used keeps what was there before in its place,
//! and the log says why.

mod fetch;

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use hyper::body::Bytes;
use propylon_config::{Config, KeysUrl, Proof};
use propylon_identity::{FetchId, KeptKeys, Loaded};
use propylon_proxy::snapshot::{Snapshot, gates};
use propylon_tls::{Finding, Severity, Stamp};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::timeout;

use crate::sandbox;

/// Time from a fetch that has failed to the next.
const RETRY: Duration = Duration::from_secs(5);
/// Time between fetches, however many tokens name keys that are not known.
const FETCH_INTERVAL_MIN: Duration = Duration::from_secs(5);
/// Longest time for which a start or a reload waits for the first keys of a URL.
const FIRST_KEYS_WAIT: Duration = Duration::from_secs(3);

/// Files and URLs of the gates in use.
#[derive(Default)]
pub struct Proofs {
    files: Vec<WatchedFile>,
    sets: HashMap<FetchId, FetchedSet>,
    /// Word that a fetch has ended.
    ended: Rc<Notify>,
}

struct WatchedFile {
    path: PathBuf,
    interval: Duration,
    looked: Instant,
    /// As it was when it was last read.
    stamp: Stamp,
    /// Faults of it, which the log has had.
    errors: Vec<Finding>,
}

/// A set of keys that is fetched.
struct FetchedSet {
    url: KeysUrl,
    due: Instant,
    began: Option<Instant>,
    under_way: Option<UnderWay>,
    /// Why the last fetch has failed, which the log has had.
    why: Option<String>,
}

impl FetchedSet {
    fn is_under_way(&self) -> bool {
        self.under_way.as_ref().is_some_and(|fetch| fetch.outcome.borrow().is_none())
    }
}

/// A fetch, which ends with its owner.
struct UnderWay {
    task: AbortHandle,
    outcome: Rc<RefCell<Option<Result<Bytes, String>>>>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proofs {
    pub fn new(snapshot: &Snapshot, now: Instant) -> Proofs {
        let mut proofs = Proofs::default();
        proofs.reload(&snapshot.config, now);
        proofs
    }

    /// Looks after the files and URLs of a configuration. Known ones are not looked at any sooner for it.
    pub fn reload(&mut self, config: &Config, now: Instant) {
        let mut known = std::mem::take(&mut self.files);
        for auth in config.routes.iter().filter_map(|route| route.steps.auth.as_ref()) {
            let Some(interval) = auth.watch else { continue };
            for path in auth.files() {
                if let Some(file) = self.files.iter_mut().find(|file| file.path == *path) {
                    file.interval = file.interval.min(interval);
                    continue;
                }
                let before = known.iter().position(|known| known.path == *path).map(|place| known.swap_remove(place));
                let new = || WatchedFile {
                    path: path.clone(),
                    interval,
                    looked: now,
                    stamp: Stamp::unread(),
                    errors: Vec::new(),
                };
                self.files.push(WatchedFile { interval, ..before.unwrap_or_else(new) });
            }
        }
        let mut known = std::mem::take(&mut self.sets);
        for (id, url) in urls(config) {
            let before = self.sets.remove(&id).or_else(|| known.remove(&id));
            let new = || FetchedSet { url: url.clone(), due: now, began: None, under_way: None, why: None };
            let mut set = before.unwrap_or_else(new);
            set.url = url.clone();
            self.sets.insert(id, set);
        }
    }

    /// The first watched file whose next look is due and that has changed since it was read.
    pub fn changed_file(&mut self, now: Instant) -> Option<PathBuf> {
        self.files.iter_mut().find_map(|file| {
            if now.duration_since(file.looked) < file.interval {
                return None;
            }
            file.looked = now;
            let stamp = Stamp::of_file(&file.path, SystemTime::now());
            let has_changed = file.stamp.is_changed(&stamp);
            file.stamp = stamp;
            has_changed.then(|| file.path.clone())
        })
    }

    /// Reads a file again. The gates with what it says, if that is new.
    pub fn read_again(&mut self, snapshot: &Snapshot, path: &Path) -> Option<Arc<Loaded>> {
        let (loaded, mut errors) = match gates::read_again(&snapshot.config, &snapshot.gates, path) {
            Ok(loaded) => (loaded, Vec::new()),
            Err(findings) => (None, findings),
        };
        errors.retain(|finding| finding.severity == Severity::Error);
        let file = self.files.iter_mut().find(|file| file.path == path)?;
        for finding in errors.iter().filter(|finding| !file.errors.contains(finding)) {
            let Finding { what, fix, .. } = sandbox::judged(finding);
            log::error!("{what}; what it said before stays in use; {fix}");
        }
        file.errors = errors;
        if loaded.is_some() {
            log::info!("{} has changed, and was read again", path.display());
        }
        loaded
    }

    /// All files have been read again, and can be used.
    pub fn forget_errors(&mut self) {
        self.files.iter_mut().for_each(|file| file.errors.clear());
    }

    /// How many watched files, and how many URLs, cannot be used.
    pub fn failing(&self) -> (usize, usize) {
        let files = self.files.iter().filter(|file| !file.errors.is_empty()).count();
        (files, self.sets.values().filter(|set| set.why.is_some()).count())
    }

    /// The snapshot with keys for the sets that have none: those that were kept, or else the first that are fetched, if
    /// they come soon. A set that has been asked for before is not waited for.
    pub async fn complete(&mut self, mut snapshot: Snapshot, kept: &[KeptKeys]) -> Snapshot {
        if let Some(gates) = snapshot.gates.with_kept(&snapshot.config, kept) {
            snapshot = snapshot.completed(Arc::new(gates));
        }
        let lacking: Vec<FetchId> = snapshot.gates.fetched().filter(|set| !set.1).map(|set| set.0.clone()).collect();
        let is_first = |id: &FetchId| self.sets.get(id).is_some_and(|set| set.began.is_none());
        let awaited: Vec<FetchId> = lacking.into_iter().filter(is_first).collect();
        if awaited.is_empty() {
            return snapshot;
        }
        self.fetch(&snapshot, Instant::now());
        let all = async {
            while awaited.iter().any(|id| self.sets.get(id).is_some_and(FetchedSet::is_under_way)) {
                self.ended.notified().await;
            }
        };
        if timeout(FIRST_KEYS_WAIT, all).await.is_err() {
            log::warn!("keys have not come within {} s, and are not waited for", FIRST_KEYS_WAIT.as_secs());
        }
        match self.take_fetched(&snapshot, Instant::now()) {
            Some(gates) => snapshot.completed(gates),
            None => snapshot,
        }
    }

    /// Begins the fetches that are due, on the current thread.
    pub fn fetch(&mut self, snapshot: &Snapshot, now: Instant) {
        for (id, _, is_missed) in snapshot.gates.fetched() {
            let Some(set) = self.sets.get_mut(id) else { continue };
            let is_free = set.began.is_none_or(|began| now.duration_since(began) >= FETCH_INTERVAL_MIN);
            let is_wanted = is_free && is_missed.load(Ordering::Relaxed);
            if set.under_way.is_some() || now < set.due && !is_wanted {
                continue;
            }
            is_missed.store(false, Ordering::Relaxed);
            set.began = Some(now);
            let (url, resolver) = (set.url.clone(), snapshot.config.process.resolver.clone());
            let outcome: Rc<RefCell<Option<Result<Bytes, String>>>> = Rc::default();
            let (slot, ended) = (Rc::clone(&outcome), Rc::clone(&self.ended));
            let task = spawn_local(async move {
                let fetched = fetch::fetch(&url, &resolver).await;
                *slot.borrow_mut() = Some(fetched);
                ended.notify_one();
            });
            set.under_way = Some(UnderWay { task: task.abort_handle(), outcome });
        }
    }

    /// Takes what has come. The gates with new keys, if there are any.
    pub fn take_fetched(&mut self, snapshot: &Snapshot, now: Instant) -> Option<Arc<Loaded>> {
        let mut gates: Option<Loaded> = None;
        for (id, set) in &mut self.sets {
            let Some(outcome) = set.under_way.as_ref().and_then(|fetch| fetch.outcome.borrow_mut().take()) else {
                continue;
            };
            set.under_way = None;
            let current = gates.as_ref().unwrap_or(&snapshot.gates);
            let taken = outcome.and_then(|text| current.with_keys(&snapshot.config, id, &text));
            let url = &set.url.address.url;
            match taken {
                Ok(news) => {
                    if news.is_some() || set.why.is_some() {
                        log::info!("keys were fetched from {url}");
                    }
                    (set.why, set.due) = (None, now + set.url.keys_refresh);
                    gates = news.or(gates);
                }
                Err(why) => {
                    let has_keys = snapshot.gates.fetched().any(|(known, has_keys, _)| known == id && has_keys);
                    if set.why.as_ref() != Some(&why) {
                        let until = match has_keys {
                            true => "those from before stay in use",
                            false => "tokens are answered with 503 until there are some",
                        };
                        log::error!("no keys from {url}: {why}; {until}");
                    }
                    (set.why, set.due) = (Some(why), now + RETRY.min(set.url.keys_refresh));
                }
            }
        }
        gates.map(Arc::new)
    }
}

/// The URLs of keys, with the sets that they are of; of one and the same the shortest time.
fn urls(config: &Config) -> Vec<(FetchId, KeysUrl)> {
    let mut urls: Vec<(FetchId, KeysUrl)> = Vec::new();
    let proofs = config.routes.iter().filter_map(|route| route.steps.auth.as_ref()).flat_map(|auth| auth.proofs.iter());
    for proof in proofs {
        let (Proof::Jwt(jwt), Some(url)) = (proof, proof.keys_url()) else { continue };
        let id = (url.address.url.clone(), url.keys_ca.clone(), jwt.algorithms.clone());
        match urls.iter_mut().find(|(known, _)| *known == id) {
            Some((_, known)) => known.keys_refresh = known.keys_refresh.min(url.keys_refresh),
            None => urls.push((id, url.clone())),
        }
    }
    urls
}
