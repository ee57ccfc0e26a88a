//! Files of `tls` of `[backend.NAME]`: authorities, and the client certificate.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use propylon_config::BackendTls;
use propylon_crypto::Ski;
use rustls::RootCertStore;
use rustls::sign::SigningKey;
use rustls_pki_types::CertificateDer;

use super::link::identity;
use super::problem::Problem;
use super::trust::authorities;
use crate::certificates::dated::{Dated, DatedKind};
use crate::certificates::finding::{Finding, Severity};

pub(crate) struct Upstream {
    /// Authorities; empty where certificates are not verified.
    pub roots: RootCertStore,
    /// Chain of the client certificate; empty without one.
    pub chain: Vec<CertificateDer<'static>>,
    pub key: Option<Arc<dyn SigningKey>>,
    /// Name of the client certificate's key at the key process, if it is there.
    pub key_process_ski: Option<Ski>,
    /// Expiry of the client certificate.
    pub dated: Option<Dated>,
}

/// Loads the files, unless something is wrong, and all findings.
pub(crate) fn upstream(tls: &BackendTls) -> (Option<Upstream>, Vec<Finding>) {
    let now = SystemTime::now();
    let mut findings = Vec::new();
    let mut loaded =
        Upstream { roots: RootCertStore::empty(), chain: Vec::new(), key: None, key_process_ski: None, dated: None };
    for trust in tls.ca.iter().filter(|_| tls.verify) {
        let problems = authorities(&trust.path, now, &mut loaded.roots);
        findings.extend(problems.into_iter().map(|problem| problem.at(trust.at)));
    }
    if tls.ca.is_empty() && tls.verify {
        findings.extend(system_authorities(&mut loaded.roots).map(|problem| problem.at(tls.at)));
    }
    if let Some(certificate) = &tls.certificate {
        let mut problems = Vec::new();
        if let Some(identity) = identity(&certificate.path, tls.allow_world_readable_keys, now, &mut problems) {
            loaded.dated = identity.dated(DatedKind::ClientCertificate, &certificate.path, certificate.at);
            loaded.key_process_ski = identity.key_process_ski;
            (loaded.chain, loaded.key) = (identity.chain, Some(identity.key));
        }
        findings.extend(problems.into_iter().map(|problem| problem.at(certificate.at)));
    }
    let failed = findings.iter().any(|finding| finding.severity == Severity::Error);
    ((!failed).then_some(loaded), findings)
}

/// Adds the system's authorities. Single ones that cannot be read are skipped.
fn system_authorities(roots: &mut RootCertStore) -> Option<Problem> {
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if !roots.is_empty() {
        return None;
    }
    let why = found.errors.first().map_or(String::new(), |error| format!(" ({error})"));
    let what = format!("no authorities are installed on this system{why}, and `ca` names none");
    let fix = "install the package ca-certificates, or name the servers' authority in `ca`";
    Some(Problem::error(Path::new(""), what, fix))
}
