//! `[signer.NAME]`: checked, and refused until there are remote signers.

use super::{Context, required_file, seconds, up_to};
use crate::tree::Value;
use crate::walk::{Named, string};
use crate::{address, walk};

pub(crate) fn signer(context: &Context<'_, '_>, named: Named<'_, '_>) {
    let Named { name, span, mut section } = named;
    let report = context.report;
    report.unsupported(
        span,
        &format!("signer.{}", crate::report::shown(name)),
        "and keep the keys beside the certificates",
    );
    if section.node("servers").is_none() {
        section.missing("servers", "add servers = [\"HOST:PORT\"]");
    } else if let Some(list) = section.list("servers") {
        if list.value.is_empty() {
            report.error(list.span, "`servers` is empty", "write at least one \"HOST:PORT\"");
        }
        for node in list.value {
            if let Value::Table(_) = node.value {
                walk::mismatch::<()>(report, "servers", "a string", node);
            } else if let Some(found) = string(report, "servers", node)
                && let Err((what, fix)) = address::server(found.value)
            {
                report.error(found.span, what, fix);
            }
        }
    }
    required_file(&mut section, "identity", context.base, "add the PEM file of the engine's certificate and key");
    required_file(&mut section, "ca", context.base, "add the PEM file of the authority that signed the key servers");
    section.duration("timeout", up_to(seconds(60)));
    section.close();
}
