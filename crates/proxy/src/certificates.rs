//! The certificates in use, on the main thread: read again when asked or when their files have changed, and told of.
//!
//! Either all of what was read again is good and published as a whole, or nothing changes and the log says why.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use propylon_config::TlsProfile;
use propylon_tls::{Finding, Profile, Severity, Stamp};

use crate::snapshot::{Snapshot, load_profile, load_upstream};

/// Shared with the admin address, on the same thread.
pub type Shown = Rc<RefCell<Vec<Arc<Profile>>>>;

pub struct Certificates {
    watched: Vec<Watched>,
    shown: Shown,
}

/// The files of one profile.
struct Watched {
    interval: Option<Duration>,
    looked: Instant,
    /// As they were when they were last read.
    stamp: Stamp,
}

/// What reading certificates again has come to.
pub enum Reloaded {
    /// To be published.
    New(Snapshot),
    /// They are what they were.
    Same,
    /// The reasons are in the log.
    Failed,
}

impl Certificates {
    /// Those of a snapshot. What has changed since they were read shows at the first look.
    pub fn new(snapshot: &Snapshot, now: Instant) -> Certificates {
        let watched = |tls: &TlsProfile| Watched { interval: tls.watch, looked: now, stamp: Stamp::unread() };
        Certificates {
            watched: snapshot.config.tls.iter().map(watched).collect(),
            shown: Rc::new(RefCell::new(snapshot.profiles.clone())),
        }
    }

    pub fn shown(&self) -> Shown {
        Rc::clone(&self.shown)
    }

    /// Profiles whose time it is to be looked at, and whose files are not what they were when they were read.
    pub fn changed(&mut self, profiles: &[TlsProfile], now: Instant) -> Vec<usize> {
        let mut changed = Vec::new();
        for (index, watched) in self.watched.iter_mut().enumerate() {
            let Some(interval) = watched.interval else { continue };
            if now.duration_since(watched.looked) < interval {
                continue;
            }
            watched.looked = now;
            if watched.stamp.is_changed(&Stamp::take(&profiles[index], SystemTime::now())) {
                changed.push(index);
            }
        }
        changed
    }

    /// Reads these profiles again, and what these backends show to their servers and trust of them: all or none of it.
    pub fn reload(&mut self, snapshot: &Snapshot, which: &[usize], towards: Range<usize>) -> Reloaded {
        let mut profiles = snapshot.profiles.clone();
        let mut upstreams = snapshot.upstreams.clone();
        let (mut failed, mut same) = (false, true);
        for &index in which {
            let tls = &snapshot.config.tls[index];
            self.watched[index].stamp = Stamp::take(tls, SystemTime::now());
            let (loaded, findings) = match load_profile(tls) {
                Ok((profile, warnings)) => (Some(profile), warnings),
                Err(findings) => (None, findings),
            };
            findings.iter().for_each(|finding| tell("tls", &tls.name, finding));
            match loaded {
                None => failed = true,
                Some(profile) if profile.same_as(&profiles[index]) => {}
                Some(profile) => {
                    same = false;
                    profiles[index] = Arc::new(profile.succeeding(&profiles[index]));
                }
            }
        }
        for index in towards {
            let backend = &snapshot.config.backends[index];
            let (loaded, findings) = match load_upstream(backend) {
                Ok((loaded, warnings)) => (loaded, warnings),
                Err(findings) => {
                    failed = true;
                    (None, findings)
                }
            };
            findings.iter().for_each(|finding| tell("backend", &backend.name, finding));
            if let (Some(loaded), Some(known)) = (loaded, &upstreams[index])
                && !loaded.same_as(known)
            {
                same = false;
                upstreams[index] = Some(Arc::new(loaded));
            }
        }
        if failed {
            return Reloaded::Failed;
        }
        if same {
            return Reloaded::Same;
        }
        *self.shown.borrow_mut() = profiles.clone();
        Reloaded::New(snapshot.with_certificates(profiles, upstreams))
    }
}

fn tell(kind: &str, name: &str, finding: &Finding) {
    let Finding { severity, at, path, what, fix } = finding;
    let text = format!("{kind} \"{name}\" (line {}): {}: {what}; {fix}", at.line, path.display());
    match severity {
        Severity::Warning => log::warn!("{text}"),
        Severity::Error => log::error!("{text}"),
    }
}

/// When each certificate expires, in Prometheus' text format. The certificates are not known before they are read, so these
/// series are not in the store.
pub fn expiry(profiles: &[Arc<Profile>]) -> String {
    let mut series: Vec<([(&str, String); 3], i64)> = Vec::new();
    for profile in profiles {
        for served in profile.served() {
            let labels = [
                ("profile", profile.name().to_string()),
                ("name", served.name),
                ("type", served.key_type.name().to_string()),
            ];
            // Two on different curves have the same labels; the one that expires first matters.
            match series.iter_mut().find(|(known, _)| *known == labels) {
                Some((_, earliest)) => *earliest = served.not_after.min(*earliest),
                None => series.push((labels, served.not_after)),
            }
        }
    }
    let help = "When a certificate expires, in seconds since 1970.";
    propylon_metrics::gauge_text("propylon_certificate_expiry_seconds", help, &series)
}
