//! The cluster's thread: it is one engine's membership. While etcd answers it runs one session after another; while
//! etcd is away it keeps what it has, and says so.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot, watch};

use crate::chance::{fill, now, random_text};
use crate::disk::Store;
use crate::ends::{Ask, AskKind, End, Failure, Figures, Handle, REQUESTS_WAITING_MAX, Request, Standing};
use crate::etcd::{self, Client, Lease};
use crate::keys::Keys;
use crate::last_will::LINEAGE;
use crate::lead::Leading;
use crate::mirror::Mirror;
use crate::records::{ConfigRecord, EngineRecord, Verdict, read, written};
use crate::runtime::{Runtime, STICKY_KEY, TICKET_KEYS};
use crate::seal::Sealer;
use crate::secrets::{CONFIG, Secrets};
use crate::settings::Settings;
use crate::ticket_keys;

/// Pause between two sessions, doubled from the first to the second.
const PAUSE: std::ops::Range<Duration> = Duration::from_millis(200)..Duration::from_secs(5);
/// A configuration that this engine could not serve is tried again after this.
const RETRY: Duration = Duration::from_secs(30);
/// Files of the state folder.
const INSTANCE: &str = "instance";

/// An engine's membership before its thread runs: what is on disk has been opened.
pub struct Opened {
    settings: Settings,
    client: Client,
    secrets: Secrets,
    instance: String,
    lineage: String,
    /// The cluster's configuration as it was last.
    pub config: Option<ConfigRecord>,
    /// Entries of the state folder that could not be used, in words.
    pub problems: Vec<String>,
}

/// State of the thread.
pub struct Agent {
    pub(crate) settings: Settings,
    pub(crate) keys: Keys,
    pub(crate) client: Client,
    pub(crate) secrets: Secrets,
    pub(crate) mirror: Mirror,
    pub(crate) instance: String,
    pub(crate) process: String,
    pub(crate) lineage: String,
    pub(crate) since: u64,
    pub(crate) lease: Option<Lease>,
    pub(crate) registration: Registration,
    /// The configuration that is served, and the candidate that it is of.
    pub(crate) served: Option<ConfigRecord>,
    pub(crate) served_candidate: Option<String>,
    /// The last configuration of the cluster's that was no candidate.
    good: Option<ConfigRecord>,
    /// The text that could not be served, and when it was tried.
    refused: Option<(String, Instant)>,
    pub(crate) in_flight: Option<InFlight>,
    /// Verdicts of this engine that are not in etcd yet, by candidate.
    pub(crate) verdicts_due: BTreeMap<String, Verdict>,
    /// The record that others have of this engine.
    pub(crate) published: Option<EngineRecord>,
    pub(crate) leading: Option<Leading>,
    /// Since when etcd answers, if it did not before.
    pub(crate) since_etcd: Option<Instant>,
    /// Since when this engine is about to leave.
    pub(crate) leaving: Option<Instant>,
    pub(crate) is_connected: bool,
    /// Trouble, by the subject.
    pub(crate) problems: BTreeMap<&'static str, String>,
    pub(crate) certificates_changed: bool,
    /// Revision of a leader's key that is under no lease.
    pub(crate) stray_leader: Option<u64>,
    /// Whether this process has served, or refused, what the cluster has.
    pub(crate) is_caught_up: bool,
    /// Generation of the flow table that the kernel's process was given last.
    pub(crate) handed_over: Option<u64>,
    /// Generation of the flow table that has this engine for the first time without a gap.
    pub(crate) listed: Option<u64>,
    pub(crate) asks: mpsc::Sender<Ask>,
    pub(crate) requests: mpsc::Receiver<Request>,
    pub(crate) figures: watch::Receiver<Figures>,
    pub(crate) standing: watch::Sender<Standing>,
    pub(crate) status: watch::Sender<Arc<Value>>,
    /// When somebody looked at the status last; nobody knows at first.
    pub(crate) viewed: watch::Receiver<Option<Instant>>,
    /// When the status was put together last.
    pub(crate) shown: Option<Instant>,
    pub(crate) end: watch::Receiver<End>,
}

/// Whether `engines/NAME` is this process's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Registration {
    Missing,
    Held,
    /// Another engine has the name.
    Taken,
    /// A process of the same engine has taken it over.
    Overtaken,
    /// Given up because somebody wanted it so; a restart joins again.
    Left,
}

/// An ask that the main thread has not answered yet.
pub(crate) struct InFlight {
    pub purpose: Purpose,
    pub answer: oneshot::Receiver<Result<u64, Vec<String>>>,
}

#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    Verdict(String),
    /// With the candidate that it is of.
    Serve(ConfigRecord, Option<String>),
    ServeFile,
    Certificates,
}

/// Reads sealing keys and the state folder, and opens it into the runtime folder. To be called before the configuration
/// is compiled: it names files of that folder. The error says what to do.
pub fn open(settings: Settings, is_upgrade: bool) -> Result<Opened, String> {
    let sealer = Sealer::read(&settings.sealing_keys).map_err(|error| error.to_string())?;
    let client = Client::new(settings.etcd.clone()).map_err(|error| format!("cluster: {error}"))?;
    let fail = |path: &PathBuf, error: &dyn std::fmt::Display| {
        format!("{} cannot be used: {error}; give the folder to the account that serves", path.display())
    };
    let runtime = Runtime::open(&settings.runtime).map_err(|error| fail(&settings.runtime, &error))?;
    let opened = Store::open(&settings.state, &settings.cluster, sealer.clone());
    let (store, loaded) = opened.map_err(|error| fail(&settings.state, &error))?;
    let identity = |name, is_kept| identity(&settings.state.join(name), is_kept);
    let instance = identity(INSTANCE, true).map_err(|error| fail(&settings.state, &error))?;
    let lineage = identity(LINEAGE, is_upgrade).map_err(|error| fail(&settings.state, &error))?;
    let mut problems = loaded.problems;
    if let Some(address) = settings.address
        && let Err(error) = std::net::UdpSocket::bind((address, 0))
    {
        problems
            .push(format!("cluster.address {address} is not one of this machine's ({error}): no engine reaches it"));
    }
    let mut config = None;
    let keys = Keys::of(&settings.cluster);
    let mut secrets = Secrets::new(keys, sealer, store, runtime.clone());
    for entry in loaded.entries {
        match entry.name.as_str() {
            CONFIG => match read(CONFIG, &entry.plain) {
                Ok(record) => config = Some(record),
                Err(problem) => problems.push(problem),
            },
            name => secrets.restore(name, &entry.plain, entry.revision),
        }
    }
    fill_in(&runtime, &secrets, &settings).map_err(|error| fail(&settings.runtime, &error))?;
    Ok(Opened { settings, client, secrets, instance, lineage, config, problems })
}

/// Gives an engine that never had the cluster's keys keys of its own, which the cluster's displace.
fn fill_in(runtime: &Runtime, secrets: &Secrets, settings: &Settings) -> std::io::Result<()> {
    if !secrets.has(TICKET_KEYS) {
        let text = ticket_keys::rotated("", now(), settings.rotation, fill).unwrap_or_default();
        runtime.write(&runtime.path(TICKET_KEYS), text.as_bytes())?;
    }
    if !secrets.has(STICKY_KEY) {
        runtime.write(&runtime.path(STICKY_KEY), random_text(32).as_bytes())?;
    }
    Ok(())
}

/// Starts the thread.
pub fn start(opened: Opened, asks: mpsc::Sender<Ask>) -> std::io::Result<Handle> {
    let (requests, requested) = mpsc::channel(REQUESTS_WAITING_MAX);
    let (figures, figured) = watch::channel(Figures::default());
    let unlisted = opened.settings.flows.map(|_| false);
    let (standing, stood) = watch::channel(Standing { is_listed: unlisted, is_behind: true, ..Standing::default() });
    let (status, shown) = watch::channel(Arc::new(Value::Null));
    let (end, ending) = watch::channel(End::default());
    let (viewed, viewing) = watch::channel(None);
    let keys = Keys::of(&opened.settings.cluster);
    let agent = Agent {
        settings: opened.settings,
        keys,
        client: opened.client,
        secrets: opened.secrets,
        mirror: Mirror::default(),
        instance: opened.instance,
        process: random_text(8),
        lineage: opened.lineage,
        since: now(),
        lease: None,
        registration: Registration::Missing,
        served: opened.config.clone(),
        served_candidate: None,
        good: opened.config,
        refused: None,
        in_flight: None,
        verdicts_due: BTreeMap::new(),
        published: None,
        leading: None,
        since_etcd: None,
        leaving: None,
        is_connected: false,
        problems: BTreeMap::new(),
        certificates_changed: false,
        stray_leader: None,
        is_caught_up: false,
        handed_over: None,
        listed: None,
        asks,
        requests: requested,
        figures: figured,
        standing,
        status,
        viewed: viewing,
        shown: None,
        end: ending,
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let thread = std::thread::Builder::new().name("cluster".into()).spawn(move || runtime.block_on(agent.run()))?;
    Ok(Handle { requests, figures, standing: stood, status: shown, viewed, end, thread })
}

impl Agent {
    async fn run(mut self) {
        log::info!("cluster {}: this engine is {}", self.settings.cluster, self.settings.engine);
        if let Some(served) = &self.served {
            log::info!("cluster: begins with configuration {} of the last good state", served.serial);
        }
        let mut pause = PAUSE.start;
        loop {
            let began = Instant::now();
            let Err(error) = self.session().await else { break };
            match error {
                etcd::Error::Compacted { .. } | etcd::Error::Rewound { .. } => {
                    log::warn!("cluster: everything is read again: {error}");
                }
                _ if self.is_connected => {
                    log::warn!("cluster: etcd is away: {error}; this engine keeps what it has, and goes on serving");
                }
                _ => {}
            }
            self.is_connected = false;
            self.problems.insert("etcd", error.to_string());
            self.publish();
            if began.elapsed() > PAUSE.end {
                pause = PAUSE.start;
            }
            if self.rest(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await {
                break;
            }
            pause = (pause * 2).min(PAUSE.end);
        }
        self.leave().await;
    }

    /// Waits for a while. Returns whether the thread is to end.
    async fn rest(&mut self, pause: Duration) -> bool {
        let until = tokio::time::Instant::now() + pause;
        loop {
            if self.is_over() {
                return true;
            }
            tokio::select! {
                () = tokio::time::sleep_until(until) => return false,
                changed = self.end.changed() => if changed.is_err() { return true },
                changed = self.figures.changed() => {
                    if changed.is_err() {
                        return true;
                    }
                    // Ordered certificates of the last good state, which are not to wait for etcd.
                    let accounts = self.figures.borrow_and_update().accounts.clone();
                    self.secrets.set_accounts(&accounts);
                }
                answered = answered(&mut self.in_flight) => self.conclude(answered),
                _ = self.viewed.changed() => self.publish(),
                Some(request) = self.requests.recv() => {
                    let why = self.problems.get("etcd").cloned().unwrap_or_default();
                    let _ = request.reply.send(Err(Failure::Away(format!("etcd is away: {why}"))));
                }
            }
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(*self.end.borrow(), End::Leave | End::Succeeded)
    }

    /// Takes this engine's keys away, unless a successor has them.
    async fn leave(&mut self) {
        if *self.end.borrow() != End::Leave {
            return;
        }
        if self.registration != Registration::Held {
            return;
        }
        let _ = self.client.put(self.keys.death(&self.settings.engine), self.lineage.as_bytes(), None).await;
        if let Some(lease) = self.lease.take()
            && let Err(error) = self.client.revoke(lease).await
        {
            log::warn!("cluster: this engine's keys stay until their lease ends: {error}");
        }
    }

    /// The configuration that this engine should serve, and the candidate that it is of.
    fn wanted(&self) -> Option<(&ConfigRecord, Option<&str>)> {
        if let Some((candidate, _)) = &self.mirror.candidate
            && crate::rollout::is_served_by(candidate, &self.settings.engine)
        {
            return Some((&candidate.config, Some(&candidate.id)));
        }
        // Back from a candidate that was ended, though etcd has nothing that is current.
        let good = self.good.as_ref().filter(|_| self.served_candidate.is_some());
        self.mirror.current.as_ref().or(good).map(|config| (config, None))
    }

    /// Asks the main thread for what is due, one thing at a time.
    pub(crate) fn ask(&mut self) {
        if self.in_flight.is_some() {
            return;
        }
        if self.certificates_changed {
            self.certificates_changed = false;
            self.send(AskKind::ReadCertificates, String::new(), false, Purpose::Certificates);
            return;
        }
        let is_due = |(config, candidate): &(&ConfigRecord, Option<&str>)| {
            self.served.as_ref() != Some(config) || self.served_candidate.as_deref() != *candidate
        };
        if let Some((config, candidate)) = self.wanted().filter(is_due) {
            let (config, candidate) = (config.clone(), candidate.map(str::to_owned));
            let is_same = |served: &ConfigRecord| served.text == config.text && served.is_json == config.is_json;
            if self.served.as_ref().is_some_and(is_same) {
                self.now_serves(config, candidate);
            } else if !self.was_refused(&config.text) {
                let (text, is_json) = (config.text.clone(), config.is_json);
                self.send(AskKind::Serve, text, is_json, Purpose::Serve(config, candidate));
                return;
            }
        }
        if self.wanted().is_none() && self.served_candidate.is_some() {
            self.send(AskKind::ServeFile, String::new(), false, Purpose::ServeFile);
            return;
        }
        let engine = &self.settings.engine;
        let unjudged = self.mirror.candidate.as_ref().map(|(candidate, _)| candidate);
        let unjudged = unjudged.filter(|candidate| self.mirror.verdict(&candidate.id, engine).is_none());
        if let Some(candidate) = unjudged.cloned()
            && self.lease.is_some()
        {
            let config = candidate.config;
            self.send(AskKind::Check, config.text, config.is_json, Purpose::Verdict(candidate.id));
        }
    }

    /// Whether what this engine should serve is served, or was refused.
    pub(crate) fn serves_what_is_wanted(&self) -> bool {
        self.wanted().is_none_or(|(config, _)| {
            self.served.as_ref().is_some_and(|served| served.text == config.text && served.is_json == config.is_json)
                || self.was_refused(&config.text)
        })
    }

    fn was_refused(&self, text: &str) -> bool {
        self.refused.as_ref().is_some_and(|(refused, at)| refused == text && at.elapsed() < RETRY)
    }

    fn send(&mut self, kind: AskKind, text: String, is_json: bool, purpose: Purpose) {
        let (reply, answer) = oneshot::channel();
        if self.asks.try_send(Ask { kind, text, is_json, reply }).is_ok() {
            self.in_flight = Some(InFlight { purpose, answer });
        }
    }

    /// Takes the main thread's answer. Verdicts go to etcd at the next opportunity.
    pub(crate) fn conclude(&mut self, (purpose, answer): (Purpose, Result<u64, Vec<String>>)) {
        match (purpose, answer) {
            (Purpose::Certificates, Ok(_)) => drop(self.problems.remove("certificates")),
            (Purpose::Certificates, Err(problems)) => {
                self.problems.insert("certificates", problems.join("; "));
            }
            (Purpose::Verdict(id), answer) => self.verdict(id, answer.map(drop)),
            (Purpose::ServeFile, Ok(_)) => (self.served, self.served_candidate) = (None, None),
            (Purpose::ServeFile, Err(problems)) => {
                self.problems.insert("configuration", problems.join("; "));
            }
            (Purpose::Serve(config, candidate), Ok(generation)) => {
                let which = if candidate.is_some() { "candidate" } else { "configuration" };
                log::info!("cluster: serves {which} {} as generation {generation}", config.serial);
                self.problems.remove("configuration");
                self.refused = None;
                // Else the same text would be taken for served already.
                self.served = None;
                self.now_serves(config, candidate);
            }
            (Purpose::Serve(config, candidate), Err(problems)) => {
                let what = problems.join("; ");
                log::error!("cluster: configuration {} cannot be served: {what}", config.serial);
                self.problems.insert("configuration", format!("configuration {} is not served: {what}", config.serial));
                self.refused = Some((config.text, Instant::now()));
                if let Some(id) = candidate {
                    self.verdict(id, Err(problems));
                }
            }
        }
    }

    fn verdict(&mut self, id: String, answer: Result<(), Vec<String>>) {
        let verdict = Verdict { passed: answer.is_ok(), problems: answer.err().unwrap_or_default() };
        self.verdicts_due.insert(id, verdict);
    }

    fn now_serves(&mut self, config: ConfigRecord, candidate: Option<String>) {
        let is_new = self.served.as_ref() != Some(&config) || self.served_candidate != candidate;
        if is_new && candidate.is_none() {
            // A candidate is not kept: whoever starts in between starts with what is good.
            self.secrets.keep_config(written(&config), config.serial);
            self.secrets.flush();
        }
        if candidate.is_none() {
            self.good = Some(config.clone());
        }
        (self.served, self.served_candidate) = (Some(config), candidate);
    }
}

/// Waits for the answer to an ask, and takes the ask; waits forever if there is none.
pub(crate) async fn answered(in_flight: &mut Option<InFlight>) -> (Purpose, Result<u64, Vec<String>>) {
    match in_flight {
        Some(ask) => {
            let answer = (&mut ask.answer).await.unwrap_or_else(|_| Err(vec!["the engine is ending".to_owned()]));
            let purpose = ask.purpose.clone();
            *in_flight = None;
            (purpose, answer)
        }
        None => std::future::pending().await,
    }
}

/// A random text that is kept in a file; another one is made where there is none, or where it `is_kept` no longer.
fn identity(path: &std::path::Path, is_kept: bool) -> std::io::Result<String> {
    match std::fs::read_to_string(path) {
        Ok(text) if is_kept && text.trim().len() >= 16 => Ok(text.trim().chars().take(64).collect()),
        _ => {
            let made = random_text(16);
            std::fs::write(path, &made)?;
            Ok(made)
        }
    }
}

pub(crate) type Outcome<T> = Result<T, etcd::Error>;
