//! `tls` of `[backend.NAME]`

use super::client_auth::trusts;
use super::tls::WATCH_MIN;
use super::values::{DAY, file};
use crate::address;
use crate::context::Context;
use crate::model::{BackendTls, TlsPolicy, Trust};
use crate::walk::Section;

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
    Some(BackendTls { ca, server_name, sni, verify, certificate, policy, resume, watch, allow_world_readable_keys, at })
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
