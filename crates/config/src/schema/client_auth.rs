//! `client_auth` of `[tls.NAME]`

use super::values::file;
use crate::context::Context;
use crate::describe::Form;
use crate::model::{ClientAuth, ClientAuthMode, CrlScope, ForwardIdentity, Leniency, Trust};
use crate::report::Report;
use crate::tree::{Entry, Node, Value};
use crate::walk::{Found, Section, mismatch, string};

const LENIENCIES: [(&str, Leniency); 2] = [("refuse", Leniency::Refuse), ("allow", Leniency::Allow)];

/// Certificates between a client's own and an authority that is trusted, as many as are verified: of a longer chain
/// none is.
const DEPTH_MAX: i128 = 6;

pub(crate) fn client_auth(context: &Context<'_, '_>, section: &mut Section<'_, '_>) -> Option<ClientAuth> {
    let mut table = section.table("client_auth")?;
    let report = context.report;
    let at = report.at(table.span);
    let fix = "add the PEM file of the authorities that sign client certificates";
    table.require("ca", fix);
    let ca = trusts(context, &mut table, "ca", fix);
    let crl = trusts(context, &mut table, "crl", "write at least one file, or leave it out");
    let modes = [("required", ClientAuthMode::Required), ("optional", ClientAuthMode::Optional)];
    let mode = table.choice_or("mode", &modes, ClientAuthMode::Required);
    let scopes = [("chain", CrlScope::Chain), ("leaf", CrlScope::Leaf)];
    let mut crl_scope = table.choice_or("crl_scope", &scopes, CrlScope::Chain);
    let mut crl_missing = table.choice_or("crl_missing", &LENIENCIES, Leniency::Refuse);
    let mut crl_expired = table.choice_or("crl_expired", &LENIENCIES, Leniency::Refuse);
    let is_checked = table.node("crl").is_some();
    if !is_checked {
        for key in ["crl_scope", "crl_missing", "crl_expired"] {
            without_effect(report, &mut table, key);
        }
        // Two configurations are not to differ in what has no effect.
        (crl_scope, crl_missing, crl_expired) = (CrlScope::Chain, Leniency::Refuse, Leniency::Refuse);
    }
    let depth = table.integer_or("depth", 0..=DEPTH_MAX, DEPTH_MAX as usize);
    let send_ca_names = table.boolean_or("send_ca_names", true);
    let forwards =
        [("leaf", ForwardIdentity::Leaf), ("chain", ForwardIdentity::Chain), ("nothing", ForwardIdentity::Nothing)];
    let forward = table.choice_or("forward", &forwards, ForwardIdentity::Leaf);
    table.close();
    Some(ClientAuth { mode, ca, crl, crl_scope, crl_missing, crl_expired, depth, send_ca_names, forward, at })
}

fn without_effect(report: &Report<'_>, table: &mut Section<'_, '_>, key: &'static str) {
    if let Some(entry) = table.entry(key) {
        report.warning(entry.key_span, format!("`{key}` has no effect without `crl`"), "add `crl`, or remove it");
    }
}

/// One path, or an array of them.
pub(super) fn trusts(
    context: &Context<'_, '_>,
    table: &mut Section<'_, '_>,
    key: &'static str,
    fix: &str,
) -> Vec<Trust> {
    let report = context.report;
    let forms = [Form::String, Form::List(&[Form::String])];
    let Some(Entry { node, .. }) = table.forms(key, &forms) else {
        return Vec::new();
    };
    let trust = |node: &Node<'_>| {
        let Found { value, span } = string(report, key, node)?;
        let path = file(report, key, Found { value, span }, context.base)?;
        Some(Trust { path, at: report.at(span) })
    };
    match &node.value {
        Value::Array(items) if items.is_empty() => {
            report.error(node.span, format!("`{key}` is empty"), fix);
            Vec::new()
        }
        Value::Array(items) => items.iter().filter_map(trust).collect(),
        Value::String(_) => trust(node).into_iter().collect(),
        _ => {
            mismatch::<()>(report, key, "a path or an array of paths", node);
            Vec::new()
        }
    }
}
