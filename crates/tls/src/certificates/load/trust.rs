//! Loading of authorities and revocation lists from files, with findings about everything that is wrong.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use propylon_config::{At, ClientAuth, Leniency, Trust};
use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use time::OffsetDateTime;
use webpki::BorrowedCertRevocationList;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;
use x509_parser::x509::X509Version;

use super::problem::Problem;
use super::{chain, folder, key_process, pem};
use crate::certificates::client_auth::ClientTrust;
use crate::certificates::dated::{Dated, DatedKind};
use crate::certificates::finding::{Finding, Severity};
use crate::certificates::wording;

/// Finding that is a warning, and an error in a process that must have no keys.
pub const KEY_AMONG_AUTHORITIES: &str = "there is a private key beside the authorities";
/// Limit of a file of revocation lists. Large authorities' have some 100,000 entries of 40 bytes each.
const CRL_BYTES_MAX: u64 = 64 << 20;

/// Loads what `client_auth` names, if nothing is wrong with it, and all findings.
pub(crate) fn client_trust(auth: &ClientAuth) -> (Option<ClientTrust>, Vec<Finding>) {
    let now = SystemTime::now();
    let mut findings = Vec::new();
    let mut roots = RootCertStore::empty();
    for trust in &auth.ca {
        let problems = authorities(&trust.path, now, &mut roots);
        findings.extend(problems.into_iter().map(|problem| problem.at(trust.at)));
    }
    let (mut crls, mut dated) = (Vec::new(), Vec::new());
    let mut fresh_until = None;
    for trust in &auth.crl {
        let (lists, problems) = revocation_lists(trust, auth.crl_expired, now);
        for List { der, updates, path } in lists {
            fresh_until = fresh_until.into_iter().chain(updates.next).min();
            dated.extend(updates.dated(path, trust.at));
            crls.push(der);
        }
        findings.extend(problems.into_iter().map(|problem| problem.at(trust.at)));
    }
    // An empty list has been told of with the configuration.
    if auth.ca.is_empty() || findings.iter().any(|finding| finding.severity == Severity::Error) {
        return (None, findings);
    }
    let fresh_until = fresh_until.map(UnixTime::since_unix_epoch);
    match ClientTrust::new(auth, roots, crls, dated, fresh_until) {
        Ok(trust) => (Some(trust), findings),
        Err(error) => {
            let problem = Problem::error(Path::new(""), error.to_string(), "export authorities and lists again");
            findings.push(problem.at(auth.at));
            (None, findings)
        }
    }
}

pub(super) fn authorities(path: &Path, now: SystemTime, roots: &mut RootCertStore) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in files(path, &mut problems) {
        let contents = match pem::read(&file) {
            Ok(contents) => contents,
            Err(problem) => {
                problems.push(problem);
                continue;
            }
        };
        if contents.certificates.is_empty() {
            let fix = "add the certificates of the authorities as PEM";
            problems.push(Problem::error(&file, "there is no certificate in this file", fix));
        }
        if !contents.keys.is_empty() {
            let fix = "keep an authority's private key away from servers";
            let what = KEY_AMONG_AUTHORITIES;
            // With a key process, this process must have no key.
            problems.push(match key_process::key_files() {
                None => Problem::warning(&file, what, fix),
                Some(_) => Problem::error(&file, what, fix),
            });
        }
        for der in contents.certificates {
            problems.extend(authority(&der, now, &file));
            if let Err(error) = roots.add(der) {
                let what = format!("this authority cannot be used: {}", wording::of(&error));
                problems.push(Problem::error(&file, what, "export it again as X.509 version 3 in PEM"));
            }
        }
    }
    problems
}

/// Warning about an authority. Its own dates do not matter: trust in it is configured (RFC 5280 §6.1.1).
fn authority(der: &CertificateDer<'_>, now: SystemTime, file: &Path) -> Option<Problem> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let name = certificate.subject();
    let not_after = certificate.validity().not_after.to_datetime();
    if OffsetDateTime::from(now) > not_after {
        let what = format!("the authority {name} expired on {}, and is trusted all the same", not_after.date());
        return Some(Problem::warning(file, what, "remove it if it should not be"));
    }
    if !certificate.is_ca() {
        let what = format!("{name} is not an authority: it may sign no other certificates");
        return Some(Problem::warning(file, what, "name the certificate of the authority that signed it"));
    }
    None
}

fn files(path: &Path, problems: &mut Vec<Problem>) -> Vec<PathBuf> {
    if path.is_dir() { folder::pem_files(path, problems) } else { vec![path.to_path_buf()] }
}

struct List {
    der: CertificateRevocationListDer<'static>,
    updates: Updates,
    path: PathBuf,
}

/// Times of this and of the next update, since 1970.
struct Updates {
    this: i64,
    next: Option<Duration>,
}

impl Updates {
    fn dated(&self, path: PathBuf, at: At) -> Option<Dated> {
        let (from, until) = (Some(self.this), self.next?.as_secs() as i64);
        Some(Dated { kind: DatedKind::RevocationList, name: String::new(), path, from, until, at })
    }
}

/// Revocation lists of a file or folder, each with the time of its next update.
fn revocation_lists(trust: &Trust, expired: Leniency, now: SystemTime) -> (Vec<List>, Vec<Problem>) {
    let mut problems = Vec::new();
    let mut lists = Vec::new();
    for file in files(&trust.path, &mut problems) {
        match read(&file) {
            Ok(ders) => {
                for der in ders {
                    match updates(&der, &file) {
                        Ok(updates) => {
                            problems.extend(overdue(updates.next, expired, now, &file));
                            lists.push(List { der, updates, path: file.clone() });
                        }
                        Err(problem) => problems.push(problem),
                    }
                }
            }
            Err(problem) => problems.push(problem),
        }
    }
    (lists, problems)
}

fn read(file: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, Problem> {
    const SEQUENCE: u8 = 0x30;
    let text = pem::bytes(file, CRL_BYTES_MAX)?;
    if text.first() == Some(&SEQUENCE) {
        return Ok(vec![text.into()]);
    }
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&text).collect();
    match lists {
        Ok(lists) if !lists.is_empty() => Ok(lists),
        _ => {
            let what = "there is no revocation list in this file";
            Err(Problem::error(file, what, "export it as PEM (\"BEGIN X509 CRL\") or as DER"))
        }
    }
}

fn updates(der: &CertificateRevocationListDer<'_>, file: &Path) -> Result<Updates, Problem> {
    let unusable = |why: &str| {
        Problem::error(file, format!("this revocation list cannot be used: {why}"), "get another from its authority")
    };
    let (_, list) = CertificateRevocationList::from_der(der).map_err(|_| unusable("it is damaged"))?;
    if list.version() != Some(X509Version::V2) || list.extensions().is_empty() {
        let what = "this revocation list is of version 1, without the extensions that one must have (RFC 5280 §5.2)";
        return Err(Problem::error(file, what, VERSION_2));
    }
    let Some(next) = list.next_update() else {
        return Err(unusable("it does not say when the next one is due (RFC 5280 §5.1.2.5)"));
    };
    // The verifier's own parser has the last word.
    let verifiers = BorrowedCertRevocationList::from_der(der).map_err(|why| unusable(&wording::chain(&why)))?;
    if let Some(why) = verifiers.into_iter().find_map(Result::err) {
        return Err(unusable(&wording::chain(&why)));
    }
    let next = Some(Duration::from_secs(next.timestamp().max(0) as u64));
    Ok(Updates { this: list.last_update().timestamp(), next })
}

/// Remedy for lists that `openssl ca -gencrl` makes without `crlnumber` and `crl_extensions`.
const VERSION_2: &str = "make it again as version 2: with openssl, name a `crlnumber` file in the authority's section, \
                         with `echo 01` in it, or add `crl_extensions`, and run `openssl ca -gencrl` once more";

fn overdue(next: Option<Duration>, expired: Leniency, now: SystemTime, file: &Path) -> Option<Problem> {
    let (next, now) = (next?, now.duration_since(SystemTime::UNIX_EPOCH).ok()?);
    let ago = chain::days(time::Duration::try_from(now.checked_sub(next)?).ok()?);
    let (effect, fix) = match expired {
        Leniency::Refuse => ("every client it speaks of is refused", "get the authority's present list"),
        Leniency::Allow => ("it is heeded all the same", "get the authority's present list"),
    };
    Some(Problem::warning(file, format!("the next revocation list was due {ago} ago; {effect}"), fix))
}
