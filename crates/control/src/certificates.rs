//! The certificates in use, on the main thread: read again when asked or when their files have changed, and told of.
//!
//! A file that cannot be used keeps what was there before in its place, and the log says why; of what stands for itself
//! no longer (authorities, revocation lists, what is shown to servers) either all is taken over, or nothing changes.

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use propylon_config::{Backend, Config, Provenance, Signer, SignerId, TlsProfile};
use propylon_metrics::gauge_text;
use propylon_proxy::snapshot::{Snapshot, load_profile_again, load_upstream};
use propylon_tls::{Finding, LinkProfile, Profile, SHOWN_MAX, Severity, Stamp, UpstreamProfile};

use crate::expiry;
use crate::sandbox;

pub struct Certificates {
    /// The files of the configuration.
    files: Provenance,
    /// Watched files by TLS profile.
    watched: Vec<Watched>,
    /// Watched files by signer: those with which links to key servers are made.
    links: Vec<Watched>,
    /// Signers of `links`, in the same order.
    signers: Vec<SignerId>,
    /// Watched files by backend: client certificates shown to its servers, and authorities trusted for them.
    towards: Vec<Watched>,
    /// Files of the last reading again that could not be used.
    refused: usize,
    load_failures: LoadFailures,
    watch: expiry::Watch,
    /// Time of the last log lines about certificates that expire soon.
    reminded: Instant,
}

/// Interval between log lines about certificates that expire soon.
const REMINDER: Duration = Duration::from_secs(24 * 3600);

/// Files that could not be used when they were last read, with what and whose they are; for the admin address.
pub type LoadFailures = Rc<RefCell<Vec<(&'static str, String, Finding)>>>;

/// Positions in the configuration of what is to be read again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Which {
    pub profiles: Vec<usize>,
    pub signers: Vec<usize>,
    pub backends: Vec<usize>,
}

/// The files of one profile.
struct Watched {
    name: String,
    interval: Option<Duration>,
    looked: Instant,
    /// As they were when they were last read.
    stamp: Stamp,
    /// Findings of that reading, which the log has had.
    logged: Vec<Finding>,
}

/// Outcome of reading certificates again.
pub enum Reloaded {
    /// A snapshot to be published.
    New(Box<Snapshot>),
    /// Only what is shown to key servers is new, and in use for new links.
    Links,
    /// The certificates have not changed, or are as wrong as before.
    Same,
    /// The reasons are in the log, and some of them are new.
    Failed,
}

impl Certificates {
    /// Watches a snapshot's files. Changes since the files were read show at the first check.
    pub fn new(snapshot: &Snapshot, now: Instant) -> Certificates {
        // The start has told of what expires.
        let mut certificates = Certificates {
            files: Provenance::default(),
            watched: Vec::new(),
            links: Vec::new(),
            signers: Vec::new(),
            towards: Vec::new(),
            refused: 0,
            load_failures: LoadFailures::default(),
            watch: expiry::Watch::new(SystemTime::now()),
            reminded: now,
        };
        certificates.reload(snapshot, now);
        certificates
    }

    /// Files that could not be used when they were last read again; told once.
    pub fn take_refused(&mut self) -> usize {
        std::mem::take(&mut self.refused)
    }

    /// Tells the log what comes near its end, as it does so, and once a day which certificates expire soon. For every second.
    pub fn remind(&mut self, snapshot: &Snapshot, now: Instant) {
        self.watch.log_expiring(snapshot, SystemTime::now());
        if now.duration_since(self.reminded) < REMINDER {
            return;
        }
        self.reminded = now;
        for profile in &snapshot.profiles {
            let findings = profile.expiring(SystemTime::now());
            findings
                .iter()
                .for_each(|finding| log_finding(&snapshot.config.provenance, ("tls", profile.name()), finding));
        }
    }

    pub fn load_failures(&self) -> LoadFailures {
        Rc::clone(&self.load_failures)
    }

    /// All files have been read again, and for these what was there before stays.
    pub fn set_load_failures(&self, config: &Config, kept: &[Finding]) {
        self.load_failures.borrow_mut().clear();
        self.add_load_failures(config, kept);
    }

    /// The same of some: what is known of other profiles stays.
    pub fn add_load_failures(&self, config: &Config, kept: &[Finding]) {
        for tls in &config.tls {
            let is_own = |finding: &&Finding| {
                tls.at == finding.at || tls.certificates.iter().any(|certificate| certificate.at == finding.at)
            };
            let own: Vec<Finding> = kept.iter().filter(is_own).cloned().collect();
            if !own.is_empty() {
                self.record_load_failures("tls", &tls.name, &own);
            }
        }
    }

    /// Forgets what was wrong with files of what is not in use any more, or has been read from others since.
    pub fn forget_load_failures(&self, earlier: &Snapshot, later: &Snapshot) {
        let profile = |of: &Snapshot, name: &str| of.profiles.iter().find(|profile| profile.name() == name).cloned();
        let upstream = |of: &Snapshot, name: &str| {
            let index = of.config.backends.iter().position(|backend| backend.name == name)?;
            of.upstreams[index].clone()
        };
        let signer = |of: &Snapshot, name: &str| of.signers.iter().find(|signer| signer.config.name == name).cloned();
        let stays = |kind: &str, name: &str| match kind {
            "tls" => is_same(profile(earlier, name), profile(later, name)),
            "backend" => is_same(upstream(earlier, name), upstream(later, name)),
            _ => is_same(signer(earlier, name), signer(later, name)),
        };
        self.load_failures.borrow_mut().retain(|(kind, name, _)| stays(kind, name));
    }

    /// How many files could not be used when they were last read.
    pub fn unusable_files(&self) -> usize {
        let load_failures = self.load_failures.borrow();
        let paths: HashSet<&Path> = load_failures.iter().map(|(_, _, finding)| finding.path.as_path()).collect();
        paths.len()
    }

    /// Tells what is new of what is wrong with the files of one name, and keeps all of it. How many errors are new:
    /// files that are young are read twice, and those that were read on demand are read again when their time comes.
    fn log_news(&self, kind: &'static str, name: &str, mut news: Vec<Finding>, findings: &[Finding]) -> usize {
        let is_known = |finding: &Finding| {
            let judged = sandbox::judged(finding);
            self.load_failures
                .borrow()
                .iter()
                .any(|(of, whose, known)| (*of, whose.as_str(), known) == (kind, name, &judged))
        };
        news.retain(|finding| !is_known(finding));
        news.iter().for_each(|finding| log_finding(&self.files, (kind, name), finding));
        self.record_load_failures(kind, name, findings);
        news.iter().filter(|finding| finding.severity == Severity::Error).count()
    }

    /// Keeps what is wrong with the files of one name, in place of what was wrong with them before.
    fn record_load_failures(&self, kind: &'static str, name: &str, findings: &[Finding]) {
        let mut load_failures = self.load_failures.borrow_mut();
        load_failures.retain(|(known_kind, known_name, _)| (*known_kind, known_name.as_str()) != (kind, name));
        let errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
        load_failures.extend(errors.map(|finding| (kind, name.to_owned(), sandbox::judged(finding))));
    }

    /// Watches the files of a snapshot that is to be published. Known files are not checked any sooner for it.
    pub fn reload(&mut self, snapshot: &Snapshot, now: Instant) {
        let mut known = std::mem::take(&mut self.watched);
        let watched = |tls: &TlsProfile| {
            let before = known.iter().position(|known| known.name == tls.name).map(|place| known.swap_remove(place));
            before.unwrap_or_else(|| Watched::unread(now)).called(&tls.name, tls.watch)
        };
        self.files = snapshot.config.provenance.clone();
        self.watched = snapshot.config.tls.iter().map(watched).collect();
        let is_there = |name: &str| snapshot.config.tls.iter().any(|tls| tls.name == name);
        self.load_failures.borrow_mut().retain(|(kind, name, _)| *kind != "tls" || is_there(name));
        let mut known = std::mem::take(&mut self.towards);
        let watched = |backend: &Backend| {
            let before =
                known.iter().position(|known| known.name == backend.name).map(|place| known.swap_remove(place));
            let interval = backend.tls.as_ref().and_then(|tls| tls.watch);
            before.unwrap_or_else(|| Watched::unread(now)).called(&backend.name, interval)
        };
        self.towards = snapshot.config.backends.iter().map(watched).collect();
        let known = std::mem::take(&mut self.links);
        let mut known: HashMap<SignerId, Watched> = std::mem::take(&mut self.signers).into_iter().zip(known).collect();
        let watched = |signer: &Signer| {
            let before = known.remove(&signer.id).filter(|before| before.interval.is_some());
            before.unwrap_or_else(|| Watched::unread(now)).called(&signer.name, signer.watch)
        };
        self.links = snapshot.config.signers.iter().map(watched).collect();
        self.signers = snapshot.config.signers.iter().map(|signer| signer.id).collect();
    }

    /// Profiles, links and backends whose next check is due and whose files have changed since they were read.
    pub fn changed(&mut self, config: &Config, now: Instant) -> Which {
        let changed = |all: &mut [Watched], stamp: &dyn Fn(usize) -> Stamp| {
            let all = all.iter_mut().enumerate();
            all.filter_map(|(index, watched)| watched.has_changed(now, || stamp(index)).then_some(index)).collect()
        };
        Which {
            profiles: changed(&mut self.watched, &|index| Stamp::take(&config.tls[index], SystemTime::now())),
            signers: changed(&mut self.links, &|index| Stamp::of_signer(&config.signers[index], SystemTime::now())),
            backends: changed(&mut self.towards, &|index| stamp_of(&config.backends[index])),
        }
    }

    /// Takes over what was read again: all or none of it.
    pub fn take_over(&mut self, snapshot: &Snapshot, read: ReadAgain) -> Reloaded {
        let mut errors = 0;
        let links = self.take_links(snapshot, read.signers, &mut errors);
        let mut profiles = snapshot.profiles.clone();
        let (mut failed, mut same) = (links.is_none(), true);
        for (index, stamp, loaded) in read.profiles {
            let tls = &snapshot.config.tls[index];
            self.watched[index].stamp = stamp;
            let (loaded, findings) = match loaded {
                Ok((profile, findings)) => (Some(profile), findings),
                Err(findings) => (None, findings),
            };
            let news = self.watched[index].news(&findings);
            let news = self.log_news("tls", &tls.name, news, &findings);
            self.refused += news;
            errors += news;
            match loaded {
                None => failed = true,
                Some(profile) if profile.same_as(&profiles[index]) => {}
                Some(profile) => {
                    same = false;
                    profiles[index] = Arc::new(profile);
                }
            }
        }
        let mut upstreams = snapshot.upstreams.clone();
        for (index, stamp, loaded) in read.backends {
            let backend = &snapshot.config.backends[index];
            self.towards[index].stamp = stamp;
            let (loaded, findings) = match loaded {
                Ok(loaded) => loaded,
                Err(findings) => {
                    failed = true;
                    (None, findings)
                }
            };
            let news = self.towards[index].news(&findings);
            errors += self.log_news("backend", &backend.name, news, &findings);
            if let (Some(loaded), Some(known)) = (loaded, &upstreams[index])
                && !loaded.same_as(known)
            {
                same = false;
                upstreams[index] = Some(Arc::new(loaded));
            }
        }
        if failed {
            // Good files among them have not been taken over, and are to be read again.
            for (index, _) in links.into_iter().flatten() {
                self.links[index].stamp = Stamp::unread();
            }
            return if errors > 0 { Reloaded::Failed } else { Reloaded::Same };
        }
        let links = links.unwrap_or_default();
        let has_links = !links.is_empty();
        for (index, link) in links {
            let signer = &snapshot.signers[index];
            signer.link.store(Arc::new(link));
            log::info!("signer \"{}\": identity and authorities were read again, for new links", signer.config.name);
        }
        match (same, has_links) {
            (true, true) => Reloaded::Links,
            (true, false) => Reloaded::Same,
            (false, _) => Reloaded::New(Box::new(snapshot.with_certificates(profiles, upstreams))),
        }
    }

    /// Takes the links of signers whose files have changed, by position; `None` if a file cannot be used.
    fn take_links(
        &mut self,
        snapshot: &Snapshot,
        read: Vec<OfFiles<LinkProfile>>,
        errors: &mut usize,
    ) -> Option<Vec<(usize, LinkProfile)>> {
        let mut links = Some(Vec::new());
        for (index, stamp, loaded) in read {
            let signer = &snapshot.config.signers[index];
            if !self.links[index].stamp.is_changed(&stamp) {
                continue;
            }
            self.links[index].stamp = stamp;
            let (loaded, findings) = match loaded {
                Ok((link, warnings)) => (Some(link), warnings),
                Err(findings) => (None, findings),
            };
            let news = self.links[index].news(&findings);
            *errors += self.log_news("signer", &signer.name, news, &findings);
            match (loaded, &mut links) {
                (Some(link), Some(links)) => links.push((index, link)),
                _ => links = None,
            }
        }
        links
    }
}

/// Files of a position: what they looked like, and what they hold.
type OfFiles<T> = (usize, Stamp, Result<(T, Vec<Finding>), Vec<Finding>>);

/// Certificates as files hold them now. It may take its time to find that out: a slow disk, another process that
/// reads.
pub struct ReadAgain {
    profiles: Vec<OfFiles<Profile>>,
    signers: Vec<OfFiles<LinkProfile>>,
    backends: Vec<OfFiles<Option<UpstreamProfile>>>,
}

impl ReadAgain {
    /// Reads these.
    pub fn of(snapshot: &Snapshot, which: &Which) -> ReadAgain {
        let config = &snapshot.config;
        let profiles = which.profiles.iter().map(|&index| {
            let stamp = Stamp::take(&config.tls[index], SystemTime::now());
            (index, stamp, load_profile_again(&snapshot.profiles[index], &config.tls[index]))
        });
        let signers = which.signers.iter().map(|&index| {
            let stamp = Stamp::of_signer(&config.signers[index], SystemTime::now());
            (index, stamp, LinkProfile::load(&config.signers[index]))
        });
        let backends = which
            .backends
            .iter()
            .map(|&index| (index, stamp_of(&config.backends[index]), load_upstream(&config.backends[index])));
        ReadAgain { profiles: profiles.collect(), signers: signers.collect(), backends: backends.collect() }
    }
}

impl Watched {
    fn unread(now: Instant) -> Watched {
        Watched { name: String::new(), interval: None, looked: now, stamp: Stamp::unread(), logged: Vec::new() }
    }

    fn called(self, name: &str, interval: Option<Duration>) -> Watched {
        Watched { name: name.to_owned(), interval, ..self }
    }

    /// Findings that the reading before did not have.
    fn news(&mut self, findings: &[Finding]) -> Vec<Finding> {
        let before = std::mem::replace(&mut self.logged, findings.to_vec());
        findings.iter().filter(|finding| !before.contains(finding)).cloned().collect()
    }

    fn has_changed(&mut self, now: Instant, stamp: impl FnOnce() -> Stamp) -> bool {
        let is_due = self.interval.is_some_and(|interval| now.duration_since(self.looked) >= interval);
        if is_due {
            self.looked = now;
        }
        is_due && self.stamp.is_changed(&stamp())
    }
}

fn is_same<T>(one: Option<Arc<T>>, two: Option<Arc<T>>) -> bool {
    one.zip(two).is_some_and(|(one, two)| Arc::ptr_eq(&one, &two))
}

fn stamp_of(backend: &Backend) -> Stamp {
    backend.tls.as_ref().map_or_else(Stamp::unread, |tls| Stamp::of_backend(tls, SystemTime::now()))
}

fn log_finding(files: &Provenance, (kind, name): (&str, &str), finding: &Finding) {
    let Finding { severity, at, path, what, fix, .. } = &sandbox::judged(finding);
    let text = format!("{kind} \"{name}\" ({}): {}: {what}; {fix}", files.line(at.line), path.display());
    match severity {
        Severity::Warning => log::warn!("{text}"),
        Severity::Error => log::error!("{text}"),
    }
}

/// When certificates expire, in Prometheus' text format, and how many there are. They are not known before they are read, so
/// these series are not in the store.
pub fn expiry(profiles: &[Arc<Profile>]) -> String {
    let mut earliest: HashMap<[(&str, String); 3], i64> = HashMap::new();
    let mut order = Vec::new();
    for profile in profiles {
        for served in profile.served() {
            let labels = [
                ("profile", profile.name().to_string()),
                ("name", served.name),
                ("type", served.key_type.name().to_string()),
            ];
            // Two on different curves have the same labels; the one that expires first matters.
            match earliest.entry(labels) {
                Entry::Occupied(mut known) => *known.get_mut() = served.not_after.min(*known.get()),
                Entry::Vacant(new) => {
                    order.push(new.key().clone());
                    new.insert(served.not_after);
                }
            }
        }
    }
    let series: Vec<_> = order.into_iter().map(|labels| (labels.clone(), earliest[&labels])).collect();
    let help = format!(
        "When a certificate expires, in seconds since 1970; of a profile with more than {SHOWN_MAX} those that do so first."
    );
    let each = gauge_text("propylon_certificate_expiry_seconds", &help, &series);
    let of_all = |value: fn(&Profile) -> i64| {
        let series = profiles.iter().map(|profile| ([("profile", profile.name().to_string())], value(profile)));
        series.collect::<Vec<_>>()
    };
    let count = of_all(|profile| profile.count() as i64);
    let soonest = of_all(Profile::soonest_expiry);
    let soonest_help = "When the first of a profile's certificates expires, in seconds since 1970.";
    each + &gauge_text("propylon_certificates", "Certificates in use.", &count)
        + &gauge_text("propylon_certificate_soonest_expiry_seconds", soonest_help, &soonest)
}
