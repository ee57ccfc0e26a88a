//! `[acme.NAME]`, and the certificates that name one.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use super::values::{file, seconds};
use crate::address;
use crate::context::Context;
use crate::describe::Form;
use crate::model::{Acme, AcmeChallenge, AcmeId, CertificateSource, ExternalAccount, KeyType, Ordered, Trust};
use crate::report::Report;
use crate::tree::{Entry, Node, Value};
use crate::walk::{Found, Named, Section, choice, mismatch, string, words};
use crate::wording::shown;

const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";
const STATE: &str = "/var/lib/propylon/acme";
/// Limit on names that Let's Encrypt puts into a certificate.
const NAMES_MAX: usize = 100;
const CONTACTS_MAX: usize = 10;
const TEXT_BYTES_MAX: usize = 256;
const ORDERS: RangeInclusive<i128> = 1..=1000;
/// A second is for tests.
const RETRY: RangeInclusive<Duration> = seconds(1)..=seconds(3600);
const RENEW: RangeInclusive<Duration> = seconds(1)..=Duration::from_secs(365 * 24 * 3600);
const CHALLENGES: [(&str, AcmeChallenge); 2] =
    [("tls-alpn-01", AcmeChallenge::TlsAlpn), ("http-01", AcmeChallenge::Http)];

pub(crate) fn acme(context: &Context<'_, '_>, named: Named<'_, '_>) -> Acme {
    let Named { name, span, mut section } = named;
    let report = context.report;
    let terms_agreed = section.boolean_or("terms_agreed", false);
    let directory = directory(&mut section, terms_agreed);
    let contact = contact(&mut section);
    section.default_is("state", || STATE.into());
    let state = section.string("state").and_then(|found| file(report, "state", found, context.base));
    let state = state.unwrap_or_else(|| Path::new(STATE).to_path_buf()).join(name);
    let challenge = section.choice_or("challenge", &CHALLENGES, AcmeChallenge::TlsAlpn);
    let ca = trust(context, &mut section, "ca");
    let external_account = external_account(context, section.table("external_account"));
    let renew_before = section.duration("renew_before", RENEW).map(|found| found.value);
    let profile = section.string("profile").and_then(|found| text(report, "profile", found));
    let orders_per_hour = section.integer_or("orders_per_hour", ORDERS, 20);
    let retry = section.duration_or("retry", RETRY, seconds(300));
    section.close();
    Acme {
        name: name.to_string(),
        directory,
        terms_agreed,
        contact,
        state,
        challenge,
        ca,
        external_account,
        renew_before,
        profile,
        orders_per_hour,
        retry,
        at: report.at(span),
    }
}

/// The default is somebody's whose terms are to be known.
fn directory(section: &mut Section<'_, '_>, terms_agreed: bool) -> String {
    let report = section.report;
    section.default_is("directory", || LETS_ENCRYPT.into());
    let Some(found) = section.string("directory") else {
        if section.node("directory").is_none() && !terms_agreed {
            let fix = "read Let's Encrypt's terms of service (https://letsencrypt.org/repository) and add \
                       terms_agreed = true, or name another authority's `directory`";
            section.missing_here("terms_agreed", fix);
        }
        return LETS_ENCRYPT.to_string();
    };
    let has_host = found.value.strip_prefix("https://").is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
    let plain = found.value.len() <= 2048 && found.value.bytes().all(|byte| byte.is_ascii_graphic());
    if !has_host || !plain {
        let what = format!("`directory`: \"{}\" is not an https URL", shown(found.value));
        report.error(found.span, what, format!("write one such as \"{LETS_ENCRYPT}\""));
    }
    found.value.to_string()
}

/// One, or an array of them.
fn contact(section: &mut Section<'_, '_>) -> Vec<String> {
    let report = section.report;
    let forms = [Form::String, Form::List(&[Form::String])];
    let Some(Entry { node, .. }) = section.forms("contact", &forms) else { return Vec::new() };
    let one = |node: &Node<'_>| {
        let found = string(report, "contact", node)?;
        let fits = found.value.starts_with("mailto:") && found.value.contains('@');
        if !fits || found.value.len() > TEXT_BYTES_MAX || !found.value.bytes().all(|byte| byte.is_ascii_graphic()) {
            let what = format!("`contact`: \"{}\" is not a contact", shown(found.value));
            report.error(found.span, what, "write it as in \"mailto:ops@example.com\"");
            return None;
        }
        Some(found.value.to_string())
    };
    match &node.value {
        Value::Array(items) if items.len() > CONTACTS_MAX => {
            report.error(node.span, "`contact` has too many entries", format!("write at most {CONTACTS_MAX}"));
            Vec::new()
        }
        Value::Array(items) => items.iter().filter_map(one).collect(),
        _ => one(node).into_iter().collect(),
    }
}

fn trust(context: &Context<'_, '_>, section: &mut Section<'_, '_>, key: &'static str) -> Option<Trust> {
    let found = section.string(key)?;
    let path = file(context.report, key, found, context.base)?;
    Some(Trust { path, at: context.report.at(found.span) })
}

fn external_account(context: &Context<'_, '_>, table: Option<Section<'_, '_>>) -> Option<ExternalAccount> {
    let mut table = table?;
    for (key, fix) in [
        ("id", "add the name that the authority has given to the key"),
        ("key", "add the path of the file with the key, in base64url"),
    ] {
        table.require(key, fix);
    }
    let id = table.string("id").and_then(|found| text(context.report, "id", found));
    let key = trust(context, &mut table, "key");
    table.close();
    Some(ExternalAccount { id: id?, key: key? })
}

fn text(report: &Report<'_>, key: &str, found: Found<&str>) -> Option<String> {
    let fits = !found.value.is_empty() && found.value.len() <= TEXT_BYTES_MAX;
    if !fits || found.value.chars().any(char::is_control) {
        let what = format!("`{key}` cannot be \"{}\"", shown(found.value));
        report.error(found.span, what, "write it as the authority does");
        return None;
    }
    Some(found.value.to_string())
}

/// `{ acme = "NAME", names = [...], key_types = [...] }`. `None` where it does not name one.
pub(super) fn ordered(
    context: &Context<'_, '_>,
    section: &mut Section<'_, '_>,
    signer: bool,
) -> Option<Option<CertificateSource>> {
    let report = context.report;
    if section.is_described() {
        names(section);
        key_types(section);
    }
    let entry = section.forms("acme", &[Form::String])?;
    for key in ["path", "chain", "key", "ocsp"] {
        if let Some(other) = section.entry(key) {
            let what = format!("`{key}` and `acme` cannot stand together");
            report.error(other.key_span, what, "remove one of the two: what is ordered is kept in the `state` folder");
        }
    }
    if signer {
        let what = "a certificate that is ordered has its key here, and this profile has a `signer`";
        report.error(entry.key_span, what, "put it into a [tls.NAME] of its own, without `signer`");
    }
    let acme = section.string("acme").and_then(|found| context.acmes.resolve(report, found));
    // Faults of the names have been told, and the account is not to be called unused for them.
    let names = names(section).unwrap_or_default();
    let types = key_types(section);
    Some(acme.map(|id| {
        let acme = AcmeId(id);
        // The folder is known once the whole file is; see `locate`.
        let files = types.into_iter().map(|key_type| (key_type, Path::new("").to_path_buf())).collect();
        CertificateSource::Ordered(Ordered { acme, names, files })
    }))
}

/// Writes in where certificates will be kept.
pub(super) fn locate(source: &mut CertificateSource, acmes: &[Acme]) {
    let CertificateSource::Ordered(ordered) = source else { return };
    let Some(acme) = acmes.get(ordered.acme.0) else { return };
    for (key_type, file) in &mut ordered.files {
        *file = acme.file(&ordered.names, *key_type);
    }
}

fn names(section: &mut Section<'_, '_>) -> Option<Vec<String>> {
    let report = section.report;
    let list = section.list("names", &[Form::String]);
    if section.node("names").is_none() {
        section.missing_here("names", "add names = [\"shop.example\"]");
    }
    let list = list?;
    if list.value.is_empty() || list.value.len() > NAMES_MAX {
        report.error(list.span, "`names` has too few or too many entries", format!("write from 1 to {NAMES_MAX}"));
        return None;
    }
    let mut names: Vec<String> = Vec::new();
    for node in list.value {
        let found = string(report, "names", node)?;
        match name(found.value) {
            Ok(name) if names.contains(&name) => {
                report.error(found.span, format!("\"{name}\" is listed twice"), "remove one of the two");
            }
            Ok(name) => names.push(name),
            Err((what, fix)) => {
                report.error(found.span, what, fix);
                return None;
            }
        }
    }
    names.sort();
    Some(names)
}

fn name(text: &str) -> Result<String, (String, String)> {
    if text.contains('*') {
        let what = format!("\"{}\": a wildcard takes the challenge dns-01, which is not spoken here", shown(text));
        return Err((
            what,
            "list the names one by one, or name the files of a certificate that is had otherwise".into(),
        ));
    }
    let name = address::host(text)?;
    let is_address = name.starts_with('[') || name.parse::<std::net::Ipv4Addr>().is_ok();
    if is_address || !name.contains('.') {
        let what = format!("\"{}\" is not a name that an authority would certify", shown(text));
        return Err((what, "write a whole DNS name, such as \"shop.example\"".into()));
    }
    Ok(name.to_ascii_lowercase())
}

fn key_types(section: &mut Section<'_, '_>) -> Vec<KeyType> {
    let report = section.report;
    let default = vec![KeyType::Ecdsa];
    let known = [KeyType::Ecdsa, KeyType::Rsa].map(|each| (each.name(), each));
    section.default_is("key_types", || default.iter().map(|each| each.name()).collect());
    let forms = [Form::List(&[Form::Words(&words(&known))])];
    let Some(Entry { node, .. }) = section.forms("key_types", &forms) else { return default };
    let Value::Array(items) = &node.value else {
        return mismatch(report, "key_types", "an array", node).unwrap_or(default);
    };
    let mut types = Vec::new();
    for found in items.iter().filter_map(|node| choice(report, "key_types", node, &known)) {
        if types.contains(&found.value) {
            report.error(found.span, "`key_types` names this type twice", "remove one of the two");
        } else {
            types.push(found.value);
        }
    }
    if items.is_empty() {
        report.error(node.span, "`key_types` is empty", "use [\"ecdsa\"] or [\"ecdsa\", \"rsa\"], or leave it out");
    }
    types
}
