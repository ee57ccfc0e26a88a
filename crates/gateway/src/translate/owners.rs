//! Certificates on a port that listeners of several namespaces share: none stands for the names of another's listener.

use std::collections::BTreeMap;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use super::gateways::{GatewayPlan, ListenerPlan};
use crate::conditions::Trouble;
use crate::hostname;
use crate::settings::Files;

/// Takes certificates away from listeners whose names are those of a listener that stands before, and is of another
/// namespace: engines choose a certificate by name, and would show it to that one's clients.
pub fn part(plan: &mut GatewayPlan<'_>, files: &Files) {
    let owners = plan.listeners.iter().map(|listener| listener.namespace);
    if owners.clone().all(|owner| Some(owner) == plan.listeners.first().map(|first| first.namespace)) {
        return;
    }
    let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for index in 0..plan.listeners.len() {
        let (before, rest) = plan.listeners.split_at_mut(index);
        let one = &mut rest[0];
        let others: Vec<&ListenerPlan<'_>> = before.iter().filter(|other| is_other(other, one)).collect();
        if others.is_empty() || !one.is_usable() {
            continue;
        }
        for file in one.certificates.iter().chain(others.iter().flat_map(|other| &other.certificates)) {
            names.entry(file.clone()).or_insert_with(|| files.get(file).map_or_else(Vec::new, |pem| names_of(pem)));
        }
        let mut kept = Vec::new();
        for file in std::mem::take(&mut one.certificates) {
            match taken(one, &file, &others, &names) {
                None => kept.push(file),
                Some(what) => one.resolved = Some(Trouble::new("InvalidCertificateRef", what)),
            }
        }
        one.certificates = kept;
    }
}

fn is_other(other: &ListenerPlan<'_>, one: &ListenerPlan<'_>) -> bool {
    other.namespace != one.namespace && other.spec.port == one.spec.port && other.is_usable()
}

/// A name of the certificate that another's listener has, in words.
fn taken(
    one: &ListenerPlan<'_>,
    file: &String,
    others: &[&ListenerPlan<'_>],
    names: &BTreeMap<String, Vec<String>>,
) -> Option<String> {
    let is_own = |name: &str, other: &ListenerPlan<'_>| {
        one.hostname().is_some_and(|own| {
            let is_narrower = other.hostname().is_none_or(|wide| hostname::is_within(own, wide));
            is_narrower && hostname::is_within(name, own)
        })
    };
    for other in others.iter().filter(|other| !other.certificates.contains(file)) {
        // A certificate for exactly the host goes before one for a wildcard.
        let has_own = other.hostname().is_some_and(|host| {
            !host.starts_with('*') && other.certificates.iter().any(|each| names[each].iter().any(|name| name == host))
        });
        let is_taken = |name: &&String| {
            hostname::common(Some(name), other.hostname()).is_some()
                && !is_own(name, other)
                && !(has_own && name.starts_with('*'))
        };
        if let Some(name) = names[file].iter().find(is_taken) {
            let (listener, namespace) = (&other.spec.name, other.namespace);
            return Some(format!(
                "a certificate is for {name} as well, which listener {listener} of namespace {namespace} has: use one \
                 for this listener's names alone"
            ));
        }
    }
    None
}

/// Hosts that a certificate is for, in lower case.
fn names_of(pem: &[u8]) -> Vec<String> {
    let Some(Ok(leaf)) = CertificateDer::pem_slice_iter(pem).next() else { return Vec::new() };
    let Ok((_, parsed)) = X509Certificate::from_der(&leaf) else { return Vec::new() };
    let Ok(Some(extension)) = parsed.subject_alternative_name() else { return Vec::new() };
    let host = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some(name.trim_end_matches('.').to_ascii_lowercase()),
        _ => None,
    };
    extension.value.general_names.iter().filter_map(host).collect()
}

/// Files of certificates in the order in which engines are to choose: those of the narrowest hostname first, since the
/// first of a name has it. The one for clients without a name is the widest listener's, the oldest of these.
pub fn ordered<'a>(listeners: &[&'a ListenerPlan<'_>]) -> (Vec<&'a str>, Option<&'a str>) {
    let width = |listener: &&&ListenerPlan<'_>| match listener.hostname() {
        Some(host) => (host.starts_with('*'), usize::MAX - host.len()),
        None => (true, usize::MAX),
    };
    let mut order: Vec<&&ListenerPlan<'_>> = listeners.iter().collect();
    order.sort_by_key(width);
    let mut files: Vec<&str> = Vec::new();
    for file in order.iter().flat_map(|listener| &listener.certificates) {
        if !files.contains(&file.as_str()) {
            files.push(file);
        }
    }
    let widest = listeners.iter().find(|listener| listener.hostname().is_none()).or(listeners.first());
    let default = widest.and_then(|listener| listener.certificates.first()).map(String::as_str);
    let default = default.filter(|default| files.first() != Some(default));
    (files, default)
}
