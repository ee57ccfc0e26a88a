//! `[tls.NAME]`

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::suites::policy;
use super::values::{DAY, file, required_file, seconds};
use super::{acme, client_auth};
use crate::context::Context;
use crate::describe::Form;
use crate::model::{
    At, Certificate, CertificateSource, KeyType, Resumption, SignerId, TicketKeys, TlsPolicy, TlsProfile,
};
use crate::tree::{Entry, Node, Value};
use crate::walk::{Found, Named, Section, choice, mismatch, words};

/// A second is for tests. A client may use a ticket for two rotations, and TLS 1.3 allows it seven days (RFC 8446
/// §4.6.1).
pub(super) const ROTATE: RangeInclusive<Duration> = seconds(1)..=seconds(72 * 3600);
const PREFER: [KeyType; 2] = [KeyType::Ecdsa, KeyType::Rsa];
const TICKETS: RangeInclusive<i128> = 0..=8;
const SESSION_IDS: RangeInclusive<i128> = 0..=10_000_000;
const TICKET_KEYS_FORM: &str = "a path or { file = \"...\", rotate = \"6h\" }";
const CERTIFICATE_FORM: &str = "a path, { chain = \"...\", key = \"...\" } or { acme = \"NAME\", names = [...] }";
/// Looking at files more often than this would be work for nothing.
pub(super) const WATCH_MIN: Duration = seconds(1);

pub(crate) fn profile(context: &Context<'_, '_>, named: Named<'_, '_>) -> TlsProfile {
    let Named { name, span, mut section } = named;
    let signer = signer(context, &mut section);
    let certificates = certificates(context, &mut section, signer.is_some());
    section.default_is("policy", || "intermediate".into());
    let policy = policy(&mut section).unwrap_or(TlsPolicy::Intermediate);
    section.default_is("prefer", || PREFER.map(KeyType::name).to_vec().into());
    let prefer = prefer(&mut section).unwrap_or_else(|| PREFER.to_vec());
    let strict_sni = section.boolean_or("strict_sni", false);
    let watch = section.duration("watch", WATCH_MIN..=DAY).map(|found| found.value);
    let certificate_compression = section.boolean_or("certificate_compression", true);
    let resumption = resumption(context, &mut section);
    let client_auth = client_auth::client_auth(context, &mut section);
    let ja4 = section.boolean_or("ja4", false);
    never_here(&mut section);
    section.close();
    TlsProfile {
        name: name.to_string(),
        certificates,
        policy,
        prefer,
        strict_sni,
        watch,
        certificate_compression,
        resumption,
        client_auth,
        ja4,
        signer,
        allow_world_readable_keys: context.allow_world_readable_keys,
        at: context.report.at(span),
    }
}

/// With a signer a chain may come without its key.
fn certificates(context: &Context<'_, '_>, section: &mut Section<'_, '_>, signer: bool) -> Vec<Certificate> {
    let report = context.report;
    section.require("certificates", "add certificates = [\"PATH\"] with a PEM file of chain and key");
    let Some(list) = section.list("certificates", &[Form::String, Form::Table]) else {
        return Vec::new();
    };
    if list.value.is_empty() {
        report.error(list.span, "`certificates` is empty", "write at least one PEM file of chain and key");
    }
    let mut seen = HashMap::new();
    let mut certificates = Vec::new();
    for node in list.value {
        let Some(certificate) = certificate(context, node, signer) else {
            continue;
        };
        if let Some(first) = seen.insert(format!("{:?}", certificate.source), certificate.at) {
            let what = format!("this certificate is listed already, in {}", report.line_at(first));
            report.warning(node.span, what, "remove one of the two");
        }
        certificates.push(certificate);
    }
    certificates
}

fn certificate(context: &Context<'_, '_>, node: &Node<'_>, signer: bool) -> Option<Certificate> {
    let report = context.report;
    let at = report.at(node.span);
    match &node.value {
        Value::String(text) => {
            let found = Found { value: text.as_ref(), span: node.span };
            let source = file(report, "certificates", found, context.base).map(CertificateSource::Path)?;
            Some(Certificate { source, ocsp: None, default: false, uploaded: false, at })
        }
        Value::Table(_) => described(context, Section::of(report, node, "this certificate", node.span)?, signer, at),
        _ => mismatch(report, "certificates", CERTIFICATE_FORM, node),
    }
}

/// `{ chain, key, ocsp, default }`, or `path` for one file with both, or `acme` for one that is ordered.
fn described(context: &Context<'_, '_>, mut section: Section<'_, '_>, signer: bool, at: At) -> Option<Certificate> {
    let report = context.report;
    let optional = |section: &mut Section<'_, '_>, key| {
        let found = section.string(key)?;
        file(report, key, found, context.base)
    };
    section.any_of(&[&["path"], &["chain"], &["acme", "names"]]);
    if section.is_described() {
        for key in ["path", "chain", "key"] {
            section.string(key);
        }
    }
    let needed = |section: &mut Section<'_, '_>, key, fix| {
        if section.node(key).is_none() {
            section.missing_here(key, fix);
        }
        optional(section, key)
    };
    let source = if let Some(ordered) = acme::ordered(context, &mut section, signer) {
        ordered
    } else if section.node("path").is_some() {
        for key in ["chain", "key"] {
            if let Some(entry) = section.entry(key) {
                let what = format!("`{key}` and `path` cannot stand together");
                report.error(entry.key_span, what, "keep `path` for one file with chain and key, or `chain` and `key`");
            }
        }
        optional(&mut section, "path").map(CertificateSource::Path)
    } else {
        let chain = needed(&mut section, "chain", "add the PEM file of the chain");
        if signer && section.node("key").is_none() {
            chain.map(CertificateSource::Path)
        } else {
            let key = needed(&mut section, "key", "add the PEM file of the private key");
            chain.zip(key).map(|(chain, key)| CertificateSource::Pair { chain, key })
        }
    };
    let ocsp = optional(&mut section, "ocsp");
    let default = section.boolean_or("default", false);
    section.close();
    Some(Certificate { source: source?, ocsp, default, uploaded: false, at })
}

/// An order of key types: of a profile, or of one listener.
pub(crate) fn prefer(section: &mut Section<'_, '_>) -> Option<Vec<KeyType>> {
    let report = section.report;
    let types = [KeyType::Ecdsa, KeyType::Ed25519, KeyType::Rsa].map(|each| (each.name(), each));
    let list = section.list("prefer", &[Form::Words(&words(&types))])?;
    if list.value.is_empty() {
        report.error(list.span, "`prefer` is empty", "use [\"ecdsa\", \"rsa\"], or leave it out");
    }
    let mut prefer = Vec::new();
    for node in list.value {
        let Some(found) = choice(report, "prefer", node, &types) else {
            continue;
        };
        if prefer.contains(&found.value) {
            report.error(found.span, "`prefer` names this key type twice", "remove one of the two");
        } else {
            prefer.push(found.value);
        }
    }
    Some(prefer)
}

fn resumption(context: &Context<'_, '_>, section: &mut Section<'_, '_>) -> Resumption {
    let default = Resumption::default();
    section.default_is("early_data", || "off".into());
    let early_data = section.entry("early_data");
    if let (Some(entry), Some(found)) = (early_data, section.choice("early_data", &[("off", false), ("safe", true)]))
        && found.value
    {
        context.report.unsupported(entry.key_span, "early_data", "and clients wait for the handshake's end");
    }
    Resumption {
        tickets: section.integer_or("tickets", TICKETS, default.tickets),
        session_ids: section.integer_or("session_ids", SESSION_IDS, default.session_ids),
        ticket_keys: ticket_keys(context, section).unwrap_or(default.ticket_keys),
    }
}

fn ticket_keys(context: &Context<'_, '_>, section: &mut Section<'_, '_>) -> Option<TicketKeys> {
    let report = context.report;
    let Entry { node, .. } = section.forms("ticket_keys", &[Form::String, Form::Table])?;
    let at = report.at(node.span);
    match &node.value {
        Value::String(text) => {
            let found = Found { value: text.as_ref(), span: node.span };
            let path = file(report, "ticket_keys", found, context.base)?;
            Some(TicketKeys::File { path, rotate: None, at })
        }
        Value::Table(_) => {
            let mut table = Section::of(report, node, "`ticket_keys`", node.span)?;
            let path = required_file(&mut table, "file", context.base, "add the path of the file of keys");
            let rotate = table.duration("rotate", ROTATE).map(|found| found.value);
            table.close();
            Some(TicketKeys::File { path: path?, rotate, at })
        }
        _ => mismatch(report, "ticket_keys", TICKET_KEYS_FORM, node),
    }
}

/// Reads the signer. For a name that leads nowhere any signer stands in: keys that are missing are then not to be
/// complained about.
fn signer(context: &Context<'_, '_>, section: &mut Section<'_, '_>) -> Option<SignerId> {
    let name = section.string("signer");
    section.entry("signer")?;
    let known = name.and_then(|name| context.signers.resolve(context.report, name));
    Some(SignerId(known.unwrap_or(usize::MAX)))
}

/// Refuses what the TLS library cannot do as a server; docs/decisions/0011 and 0012 say what is missing.
fn never_here(section: &mut Section<'_, '_>) {
    const REASONS: [(&str, &str); 2] = [
        (
            "ech",
            "the TLS library has Encrypted Client Hello for clients only; ECH clients fall back to their outer name",
        ),
        ("delegated_credentials", "the TLS library cannot serve them; keep keys off this machine with a `signer`"),
    ];
    for (key, reason) in REASONS {
        section.unsupported(key, &format!("because {reason}"));
    }
}
