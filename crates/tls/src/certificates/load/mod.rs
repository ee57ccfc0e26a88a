//! Loading of certificates and keys from files, with findings about everything that is wrong.

mod bundle;
mod chain;
pub(crate) mod folder;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod key_process;
mod link;
mod ocsp;
mod pem;
mod problem;
mod profile;
mod sent;
mod side_by_side;
mod trust;
mod upstream;

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use propylon_config::TlsProfile;

pub use key_process::{find_ordered_keys_in, key_files, use_key_process};
#[cfg(test)]
pub(crate) use link::config as link_config;
pub(crate) use link::{LoadedLink, link_identity};
pub(crate) use ocsp::ocsp_path;
use problem::Problem;
pub use profile::NOT_THERE_YET;
use profile::{Entry, Item, Loading};
pub use sent::{UnfitPem, check_pem};
pub use trust::KEY_AMONG_AUTHORITIES;
pub(crate) use trust::client_trust;
pub(crate) use upstream::{Upstream, upstream};

use super::credential::Credential;
use super::finding::{Finding, Severity};

/// All usable credentials and all findings, in the order of the configuration. Files with the same metadata as in
/// `earlier` are not read again, and credentials whose files cannot be used any more are kept.
pub(crate) fn credentials(profile: &TlsProfile, earlier: &[Arc<Credential>]) -> (Vec<Arc<Credential>>, Vec<Finding>) {
    let loading = Loading::new(profile, earlier);
    let mut findings = Vec::new();
    let (entries, items): (Vec<_>, Vec<_>) = profile.certificates.iter().map(Entry::list).unzip();
    let lens: Vec<usize> = items.iter().map(Vec::len).collect();
    let items: Vec<Item<'_>> = items.into_iter().flatten().collect();
    // A reload leaves most cores to their work.
    let cores = if earlier.is_empty() { usize::MAX } else { side_by_side::QUARTER };
    let mut read = side_by_side::map(items, cores, |item| loading.read(item)).into_iter();
    let mut candidates = Vec::new();
    for (entry, len) in entries.into_iter().zip(lens) {
        let at = entry.certificate.at;
        let (found, problems) = loading.conclude(entry, read.by_ref().take(len), cores);
        candidates.extend(found);
        findings.extend(problems.into_iter().map(|problem| problem.at(at)));
    }
    if profile.certificates.is_empty() {
        let what = "the profile has no certificates";
        let fix = "list at least one file under `certificates`";
        findings.push(Problem::error(Path::new(""), what, fix).at(profile.at));
    }
    findings.extend(key_process::publish().map(|problem| problem.at(profile.at)));
    let credentials = loading.admit(&candidates, &mut findings);
    findings.extend(idle_signer(profile, &credentials));
    let new = credentials.iter().filter(|credential| !loading.knows(credential));
    let mut findings = bounded(findings);
    findings.extend(expiring(new, loading.now));
    // The sort is stable: findings of one entry stay in order.
    findings.sort_by_key(|finding| (finding.at.line, finding.at.column));
    (credentials, findings)
}

/// Compresses the Certificate messages, on all cores: brotli takes milliseconds for a chain.
pub(crate) fn compress(credentials: &[Arc<Credential>]) {
    side_by_side::map(credentials.iter().collect(), usize::MAX, |credential| credential.compress());
}

/// Warnings of certificates that have expired or soon will, in order; bounded where there are very many.
pub(crate) fn expiring<'a>(credentials: impl Iterator<Item = &'a Arc<Credential>>, now: SystemTime) -> Vec<Finding> {
    let aging = |credential: &Arc<Credential>| {
        let material = &credential.material;
        Some(chain::aging(material.validity, now, &material.path)?.at(credential.at))
    };
    bounded(credentials.filter_map(aging).collect())
}

/// Limit of findings of one severity that are reported one by one.
const REPORTED_MAX: usize = 100;

/// Bounds the findings: with 50,000 files most have the same fault.
fn bounded(findings: Vec<Finding>) -> Vec<Finding> {
    let (mut reported, mut more) = (Vec::new(), Vec::new());
    for severity in [Severity::Error, Severity::Warning] {
        let fitting = || findings.iter().filter(|finding| finding.severity == severity);
        if let Some(first_left_out) = fitting().nth(REPORTED_MAX) {
            let what =
                format!("the same, or the like, is to be said of {} more files", fitting().count() - REPORTED_MAX);
            let fix = "see to those that are named, and look again".to_string();
            more.push(Finding { what, fix, ..first_left_out.clone() });
        }
    }
    let mut left = [REPORTED_MAX; 2];
    for finding in findings {
        let left = &mut left[usize::from(finding.severity == Severity::Error)];
        if *left > 0 {
            *left -= 1;
            reported.push(finding);
        }
    }
    reported.extend(more);
    reported
}

fn idle_signer(profile: &TlsProfile, credentials: &[Arc<Credential>]) -> Option<Finding> {
    let remote = |credential: &Arc<Credential>| credential.material.is_remote();
    if profile.signer.is_none() || credentials.is_empty() || credentials.iter().any(remote) {
        return None;
    }
    let what = format!("[tls.{}] has a signer, but every certificate has its key beside it", profile.name);
    let fix = "remove the keys that the signer holds, or remove `signer`";
    Some(Problem::warning(Path::new(""), what, fix).at(profile.at))
}
