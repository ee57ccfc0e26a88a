//! Expiry of certificates, revocation lists and OCSP responses: told of before it comes, counted, and shown.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use propylon_config::Provenance;
use propylon_metrics::gauge_text;
use propylon_proxy::snapshot::Snapshot;
use propylon_tls::{Dated, DatedKind, ExpiryStep, Profile};
use serde_json::{Value, json};

/// Lines about the end of something that one look may write to the log, and all looks of a minute together. Of the rest
/// their number is told.
const LINES_PER_LOOK_MAX: usize = 20;
const LINES_PER_MINUTE_MAX: usize = 40;
/// With more certificates than this a look takes long enough to be had once a minute only.
const LOOKED_AT_EACH_SECOND_MAX: usize = 1000;
const MINUTE: i64 = 60;
/// Series of other things than server certificates.
const SERIES_MAX: usize = 100;

/// Tells the log as things come nearer to their end.
pub struct Watch {
    /// The last look, in seconds since 1970.
    last: i64,
    /// The minute that lines are counted in, and how many it had.
    minute: (i64, usize),
}

impl Watch {
    /// Starts the watch; the start of the process logs by itself what is near its end already.
    pub fn new(now: SystemTime) -> Watch {
        Watch { last: seconds(now), minute: (0, 0) }
    }

    /// For every second.
    pub fn log_expiring(&mut self, snapshot: &Snapshot, now: SystemTime) {
        let profiles = &snapshot.profiles;
        let now = seconds(now);
        let count: usize = profiles.iter().map(|profile| profile.count()).sum();
        let interval = if count > LOOKED_AT_EACH_SECOND_MAX { MINUTE } else { 1 };
        // A clock that was set back has nothing to tell until it is where it was.
        if now < self.last.saturating_add(interval) {
            return;
        }
        let last = std::mem::replace(&mut self.last, now);
        let mut near: Vec<(String, Dated, ExpiryStep)> = Vec::new();
        for profile in profiles {
            let steps = profile.steps_between(last, now, LINES_PER_LOOK_MAX + 1);
            near.extend(steps.into_iter().map(|(dated, step)| (of_profile(profile), dated, step)));
        }
        for (of, dated) in links(snapshot) {
            if let Some(step) = propylon_tls::step_between(dated.from, dated.until, last, now) {
                near.push((of, dated, step));
            }
        }
        near.sort_by_key(|(_, _, step)| std::cmp::Reverse(*step));
        let lines = self.allowance(now).min(LINES_PER_LOOK_MAX);
        for (of, dated, step) in near.iter().take(lines) {
            log_expiry(of, dated, *step, now, &snapshot.config.provenance);
        }
        self.minute.1 += near.len().min(lines);
        if let Some(rest) = near.len().checked_sub(lines).filter(|rest| *rest > 0) {
            log::warn!(
                "{rest} or more others have come nearer to their end; /metrics counts them, /snapshot names them"
            );
        }
    }

    fn allowance(&mut self, now: i64) -> usize {
        if self.minute.0 != now / MINUTE {
            self.minute = (now / MINUTE, 0);
        }
        LINES_PER_MINUTE_MAX.saturating_sub(self.minute.1)
    }
}

fn log_expiry(of: &str, dated: &Dated, step: ExpiryStep, now: i64, files: &Provenance) {
    let level = match step {
        ExpiryStep::Known => log::Level::Info,
        ExpiryStep::Soon | ExpiryStep::Now => log::Level::Warn,
        ExpiryStep::Over => log::Level::Error,
    };
    log::log!(level, "{of} ({}): {}", files.line(dated.at.line), words(dated, step, now));
}

fn words(dated: &Dated, step: ExpiryStep, now: i64) -> String {
    let Dated { kind, path, until, .. } = dated;
    let path = path.display();
    let name = if dated.name.is_empty() { String::new() } else { format!(" for {}", dated.name) };
    if step == ExpiryStep::Over {
        let effect = match kind {
            DatedKind::ServerCertificate => {
                "clients refuse it, unless one of another type takes its place; renew it: it is read again at SIGHUP, or with `watch` by itself"
            }
            DatedKind::ClientCertificate => {
                "servers will refuse it; renew it: it is read again at SIGHUP, or with `watch` by itself"
            }
            DatedKind::SignerIdentity => {
                "key servers will refuse it; renew it: it is read again at SIGHUP, or with `watch` by itself"
            }
            DatedKind::RevocationList => "`crl_expired` says whether clients are refused for it; get the present list",
            DatedKind::OcspResponse => "it is not stapled any more; fetch it again",
        };
        return format!("{path}: {kind}{name} has expired: {effect}");
    }
    format!("{path}: {kind}{name} expires in {}; renew it", span(until - now))
}

fn span(seconds: i64) -> String {
    let (count, unit) = match seconds {
        172_800.. => (seconds / 86_400, "day"),
        7200.. => (seconds / 3600, "hour"),
        120.. => (seconds / 60, "minute"),
        _ => (seconds, "second"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

fn of_profile(profile: &Profile) -> String {
    format!("tls \"{}\"", profile.name())
}

/// Certificates shown to servers and key servers, each with its owner.
fn links(snapshot: &Snapshot) -> Vec<(String, Dated)> {
    let upstreams = snapshot.config.backends.iter().zip(&snapshot.upstreams).filter_map(|(backend, upstream)| {
        let dated = upstream.as_ref()?.dated()?.clone();
        Some((format!("backend \"{}\"", backend.name), dated))
    });
    let signers = snapshot.signers.iter();
    let signers = signers.filter_map(|signer| {
        let dated = signer.link.load().dated()?.clone();
        Some((format!("signer \"{}\"", signer.config.name), dated))
    });
    upstreams.chain(signers).collect()
}

/// Everything but server certificates, with whose it is; what ends first goes first.
pub fn others(snapshot: &Snapshot, max: usize) -> Vec<(String, Dated)> {
    let mut all = links(snapshot);
    for profile in &snapshot.profiles {
        all.extend(profile.other_dated().map(|dated| (of_profile(profile), dated)));
    }
    all.sort_by_key(|(_, dated)| dated.until);
    all.truncate(max);
    all
}

/// Names and upper ends, in days, of what certificates are counted by.
const DAYS_LEFT: [(&str, i64); 5] = [("expired", 0), ("under-1", 1), ("1-to-7", 7), ("7-to-14", 14), ("14-to-30", 30)];
const MORE_DAYS_LEFT: &str = "over-30";

fn counts<'a>(profiles: impl Iterator<Item = &'a Profile> + Clone, now: i64) -> Vec<(&'static str, usize)> {
    let before = |moment: i64| profiles.clone().map(|profile| profile.expiring_before(moment)).sum::<usize>();
    let mut below = 0;
    let mut counts = Vec::new();
    for (name, days) in DAYS_LEFT {
        let until = before(now + days * 86_400);
        counts.push((name, until - below));
        below = until;
    }
    counts.push((MORE_DAYS_LEFT, before(i64::MAX) - below));
    counts
}

/// Certificates by the days that they have left: an array of names and counts, those in most need first.
pub fn by_days_left<'a>(profiles: impl Iterator<Item = &'a Profile> + Clone, now: i64) -> Value {
    counts(profiles, now).into_iter().map(|(name, count)| json!([name, count])).collect()
}

/// For Prometheus: certificates by days left, and when other things end.
pub fn metrics(snapshot: &Snapshot, now: SystemTime) -> String {
    let now = seconds(now);
    let by_profile = snapshot.profiles.iter().flat_map(|profile| {
        let labels = |left: &str| [("profile", profile.name().to_owned()), ("days_left", left.to_owned())];
        counts(std::iter::once(&**profile), now).into_iter().map(move |(left, count)| (labels(left), count as i64))
    });
    let by_profile: Vec<_> = by_profile.collect();
    let others = others(snapshot, SERIES_MAX);
    let others: Vec<_> = others
        .into_iter()
        .map(|(of, dated)| {
            let file = dated.path.display().to_string();
            ([("kind", dated.kind.name().to_owned()), ("of", of), ("file", file)], dated.until)
        })
        .collect();
    let help = format!(
        "When client certificates, signers' identities, revocation lists and OCSP responses end, in seconds since 1970; the first {SERIES_MAX}."
    );
    gauge_text(
        "propylon_certificates_by_days_left",
        "Certificates in use by the days that they have left.",
        &by_profile,
    ) + &gauge_text("propylon_other_expiry_seconds", &help, &others)
}

fn seconds(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dated(kind: DatedKind) -> Dated {
        let at = propylon_config::At { line: 3, column: 1, length: 1 };
        Dated { kind, name: "shop.test".into(), path: "a.pem".into(), from: None, until: 1000, at }
    }

    #[test]
    fn each_kind_says_what_its_end_means_and_what_to_do() {
        for (kind, expected) in [
            (DatedKind::ServerCertificate, "clients refuse it"),
            (DatedKind::ClientCertificate, "servers will refuse it"),
            (DatedKind::SignerIdentity, "key servers will refuse it"),
            (DatedKind::RevocationList, "get the present list"),
            (DatedKind::OcspResponse, "not stapled any more"),
        ] {
            let text = words(&dated(kind), ExpiryStep::Over, 1001);
            assert!(
                text.starts_with("a.pem: the ") && text.contains("has expired") && text.contains(expected),
                "{text}"
            );
        }
        let text = words(&dated(DatedKind::ServerCertificate), ExpiryStep::Now, 993);
        assert_eq!(text, "a.pem: the certificate for shop.test expires in 7 seconds; renew it");
    }

    #[test]
    fn a_minute_has_a_limited_number_of_lines() {
        let mut watch = Watch::new(UNIX_EPOCH);
        assert_eq!(watch.allowance(59), LINES_PER_MINUTE_MAX);
        watch.minute.1 = 35;
        assert_eq!(watch.allowance(59), 5);
        watch.minute.1 = 50;
        assert_eq!(watch.allowance(59), 0);
        assert_eq!(watch.allowance(60), LINES_PER_MINUTE_MAX);
    }
}
