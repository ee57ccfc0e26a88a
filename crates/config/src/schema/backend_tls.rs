//! `tls` of `[backend.NAME]`

use super::client_auth::trusts;
use super::tls::WATCH_MIN;
use super::values::{DAY, file};
use crate::address;
use crate::context::Context;
use crate::describe::Form;
use crate::model::{BackendTls, TlsPolicy, Trust};
use crate::tree::Value;
use crate::walk::{Found, Section, string};

/// Names that a server's certificate may have one of.
const NAMES_MAX: usize = 64;
/// Longest URI among them.
const URI_BYTES_MAX: usize = 2048;

pub(crate) fn backend_tls(context: &Context<'_, '_>, section: &mut Section<'_, '_>) -> Option<BackendTls> {
    let mut table = section.table("tls")?;
    let report = context.report;
    let at = report.at(table.span);
    let ca_fix = "add the PEM file of the authority that signed the servers' certificates";
    let ca = trusts(context, &mut table, "ca", ca_fix);
    let server_name = table.string("server_name").and_then(|name| match address::host(name.value) {
        Ok(host) => Some(host),
        Err((what, fix)) => {
            report.error(name.span, what, fix);
            None
        }
    });
    let names = names(&mut table);
    let sni = table.boolean_or("sni", true);
    let verify = verify(&mut table);
    let certificate = table.string("certificate").and_then(|found| {
        let path = file(report, "certificate", found, context.base)?;
        Some(Trust { path, at: report.at(found.span) })
    });
    let modern = table.choice_or("policy", &[("modern", true), ("intermediate", false)], false);
    let policy = if modern { TlsPolicy::Modern } else { TlsPolicy::Intermediate };
    let resume = table.boolean_or("resume", true);
    let watch = table.duration("watch", WATCH_MIN..=DAY).map(|found| found.value);
    table.close();
    let allow_world_readable_keys = context.allow_world_readable_keys;
    Some(BackendTls {
        ca,
        server_name,
        names,
        sni,
        verify,
        certificate,
        policy,
        resume,
        watch,
        allow_world_readable_keys,
        at,
    })
}

/// Reads `names`: hosts, and URIs, which are compared as they are written.
fn names(table: &mut Section<'_, '_>) -> Vec<String> {
    let report = table.report;
    let Some(list) = table.list("names", &[Form::String]) else { return Vec::new() };
    if list.value.is_empty() || list.value.len() > NAMES_MAX {
        let what = format!("`names` has {} entries, and not 1 to {NAMES_MAX}", list.value.len());
        report.error(list.span, what, "name what a certificate of these servers may be for, or leave `names` out");
    }
    let one = |found: Found<&str>| {
        let is_uri = found.value.split_once(':').is_some_and(|(scheme, rest)| {
            !rest.is_empty() && scheme.starts_with(|first: char| first.is_ascii_alphabetic()) && is_scheme(scheme)
        });
        match address::host(found.value) {
            _ if is_uri
                && found.value.len() <= URI_BYTES_MAX
                && found.value.bytes().all(|byte| byte.is_ascii_graphic()) =>
            {
                Some(found.value.to_owned())
            }
            Ok(host) => Some(host),
            Err((what, _)) => {
                report.error(found.span, what, "write a host, or a URI such as \"spiffe://cluster.example/shop\"");
                None
            }
        }
    };
    let names = list.value.iter().filter_map(|node| string(report, "names", node)).filter_map(one).collect();
    if table.entry("verify").is_some_and(|entry| matches!(entry.node.value, Value::Boolean(false))) {
        report.error(list.span, "`names` has no effect with `verify = false`", "remove one of the two");
    }
    names
}

fn is_scheme(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// Off, it is worth a warning every time.
fn verify(table: &mut Section<'_, '_>) -> bool {
    table.default_is("verify", || true.into());
    let Some(found) = table.boolean("verify") else { return true };
    if found.value {
        return true;
    }
    let report = table.report;
    let what = "`verify = false`: whoever gets between here and the servers can read and change everything";
    report.warning(found.span, what, "remove it, and name the servers' authority in `ca`");
    if let Some(entry) = table.entry("ca") {
        report.warning(entry.key_span, "`ca` has no effect with `verify = false`", "remove one of the two");
    }
    false
}
