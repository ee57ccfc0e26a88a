//! Certificates that are ordered: what cores answer while an authority asks, and what is told of the orders.
//!
//! The thread of `propylon-acme` publishes which challenges are outstanding; every core reads that, and nothing else of it.
//! The files that it brings are read again like all others that have changed.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use propylon_acme::{Answer, CertificateStatus, FileProblem, IssuerStatus, Renewer};
use propylon_config::{Acme, AcmeChallenge, CertificateSource, Config, Listener, Protocol};
use propylon_metrics::{counter_text, gauge_text};
use propylon_proxy::challenges;
use propylon_tls::{ChallengeCertificate, Finding, Severity, publish_challenges};
use serde_json::{Value, json};

/// Orders nothing before it is told what. All keys are in the key process, where there is one.
pub fn renewer() -> Renewer {
    Renewer::new(Box::new(publish), propylon_tls::key_files())
}

fn publish(answers: &[Answer]) {
    let (http, tls): (Vec<&Answer>, Vec<&Answer>) =
        answers.iter().partition(|answer| answer.challenge == AcmeChallenge::Http);
    let http: HashMap<String, Arc<str>> =
        http.into_iter().map(|answer| (answer.token.clone(), answer.key_authorization.as_str().into())).collect();
    challenges::publish(http);
    let certificate = |answer: &Answer| {
        let (certificate, key) = answer.certificate()?;
        Some(ChallengeCertificate { name: answer.name.clone(), certificate, key })
    };
    publish_challenges(tls.into_iter().filter_map(certificate).collect());
}

/// Problems with the files that accounts name.
pub fn check(acmes: &[Acme]) -> Vec<Finding> {
    let finding = |FileProblem { at, path, what }| {
        let fix = "put the file there, in the form that the manual has under \"Ordered certificates\"".to_string();
        Finding { severity: Severity::Error, at, path, what, fix, error: None }
    };
    acmes.iter().flat_map(propylon_acme::check).map(finding).collect()
}

/// Accounts whose authority asks at a port where no listener of the configuration answers, with the port.
pub fn unasked(config: &Config) -> Vec<(String, u16)> {
    let answers = |listener: &Listener, port: u16| {
        let fits = match port {
            80 => listener.protocol == Protocol::Http && listener.tls.is_none(),
            _ => listener.tls.is_some(),
        };
        fits && listener.bind.iter().any(|bind| bind.address.port() == port)
    };
    let port = |acme: &Acme| if acme.challenge == AcmeChallenge::Http { 80 } else { 443 };
    let accounts = propylon_acme::issuers(config).into_iter().map(|issuer| (port(&issuer.acme), issuer.acme.name));
    let unanswered = accounts.filter(|(port, _)| !config.listeners.iter().any(|listener| answers(listener, *port)));
    unanswered.map(|(port, name)| (name, port)).collect()
}

/// The profiles that have one of these files.
pub fn profiles_with(config: &Config, files: &BTreeSet<PathBuf>) -> Vec<usize> {
    let has = |source: &CertificateSource| match source {
        CertificateSource::Ordered(ordered) => ordered.files.iter().any(|(_, file)| files.contains(file)),
        _ => false,
    };
    let profiles = config.tls.iter().enumerate();
    let with = profiles.filter(|(_, tls)| tls.certificates.iter().any(|certificate| has(&certificate.source)));
    with.map(|(index, _)| index).collect()
}

/// In Prometheus' text format; nothing where nothing is ordered.
pub fn metrics(status: &[IssuerStatus]) -> String {
    if status.is_empty() {
        return String::new();
    }
    let results = |issuer: &IssuerStatus| {
        let counts = issuer.counts;
        let limited = counts.rate_limited;
        [("success", counts.succeeded), ("failure", counts.failed - limited), ("rate-limited", limited)]
            .map(|(result, count)| ([("acme", issuer.name.clone()), ("result", result.to_string())], count as i64))
    };
    let orders: Vec<_> = status.iter().flat_map(results).collect();
    let each = |value: &dyn Fn(&CertificateStatus) -> Option<i64>| {
        let all = status.iter().flat_map(|issuer| issuer.certificates.iter().map(move |each| (issuer, each)));
        let series = all.filter_map(|(issuer, certificate)| {
            let name = certificate.names.first().cloned().unwrap_or_default();
            let kind = certificate.key_type.name().to_string();
            Some(([("acme", issuer.name.clone()), ("name", name), ("type", kind)], value(certificate)?))
        });
        series.collect::<Vec<_>>()
    };
    let trouble: Vec<_> =
        status.iter().map(|issuer| ([("acme", issuer.name.clone())], i64::from(issuer.trouble.is_some()))).collect();
    counter_text("propylon_acme_orders_total", "Orders of certificates that have ended, by result.", &orders)
        + &gauge_text(
            "propylon_acme_next_attempt_seconds",
            "When a certificate is ordered next, in seconds since 1970.",
            &each(&|certificate| certificate.next_attempt),
        )
        + &gauge_text(
            "propylon_acme_failures",
            "Orders of a certificate that have failed in a row.",
            &each(&|certificate| Some(certificate.failures.into())),
        )
        + &gauge_text(
            "propylon_acme_trouble",
            "1 while nothing can be ordered: the state folder cannot be used.",
            &trouble,
        )
}

/// For people and scripts.
pub fn view(status: &[IssuerStatus]) -> Value {
    let certificate = |each: &CertificateStatus| {
        json!({
            "names": each.names,
            "type": each.key_type.name(),
            "file": each.file.display().to_string(),
            "state": each.state.name(),
            "not_after": each.not_after,
            "next_attempt": each.next_attempt,
            "failures": each.failures,
            "problem": each.problem,
        })
    };
    let issuer = |issuer: &IssuerStatus| {
        json!({
            "name": issuer.name,
            "trouble": issuer.trouble,
            "orders": { "succeeded": issuer.counts.succeeded, "failed": issuer.counts.failed },
            "certificates": issuer.certificates.iter().map(certificate).collect::<Vec<Value>>(),
        })
    };
    status.iter().map(issuer).collect()
}
