//! `[signer.NAME]`

use std::collections::HashMap;
use std::time::Duration;

use super::tls::WATCH_MIN;
use super::values::{DAY, HOUR, required_file, seconds, up_to};
use crate::context::Context;
use crate::describe::Form;
use crate::model::{Signer, SignerId, SignerServer, Trust, Verify};
use crate::report::Report;
use crate::tree::{Entry, Node, Value};
use crate::walk::{Found, Named, Section, mismatch};
use crate::wording::shown;
use crate::{address, units};

/// More would be asked for by a mistake, and each costs every core its connections.
const SERVERS_MAX: usize = 64;
const TIMEOUT: Duration = seconds(1);
const TIMEOUT_MAX: Duration = seconds(60);
/// Resolvers keep an answer for longer than a second.
const RESOLVE_MIN: Duration = seconds(1);
const RESOLVE_INTERVAL: Duration = seconds(30);

pub(crate) fn signer(context: &Context<'_, '_>, named: Named<'_, '_>, id: SignerId) -> Signer {
    let Named { name, span, mut section } = named;
    let report = context.report;
    let servers = servers(&mut section);
    let identity = required(context, &mut section, "identity", "add the PEM file of the engine's certificate and key");
    let ca = required(context, &mut section, "ca", "add the PEM file of the authority that signed the key servers");
    let timeout = section.duration_or("timeout", up_to(TIMEOUT_MAX), TIMEOUT);
    let connections = section.integer_or("connections", 1..=16, 2);
    let hedge = hedge(&mut section, timeout);
    let verifies = [("rsa", Verify::Rsa), ("all", Verify::All), ("off", Verify::Nothing)];
    let verify = section.choice_or("verify", &verifies, Verify::Rsa);
    let resolve_interval = section.duration_or("resolve_interval", RESOLVE_MIN..=HOUR, RESOLVE_INTERVAL);
    let watch = section.duration("watch", WATCH_MIN..=DAY).map(|found| found.value);
    section.close();
    let (name, at) = (name.to_string(), report.at(span));
    Signer {
        id,
        name,
        servers,
        identity,
        ca,
        timeout,
        connections,
        hedge,
        verify,
        resolve_interval,
        watch,
        allow_world_readable_keys: context.allow_world_readable_keys,
        at,
    }
}

fn servers(section: &mut Section<'_, '_>) -> Vec<SignerServer> {
    let report = section.report;
    section.require("servers", "add servers = [\"HOST:PORT\"]");
    let Some(list) = section.list("servers", &[Form::String, Form::Table]) else {
        return Vec::new();
    };
    if list.value.is_empty() {
        report.error(list.span, "`servers` is empty", "write at least one \"HOST:PORT\"");
    } else if list.value.len() > SERVERS_MAX {
        let fix = format!("write at most {SERVERS_MAX}, or use several signers");
        report.error(list.span, "`servers` has too many entries", fix);
    }
    let mut seen = HashMap::new();
    let mut servers = Vec::new();
    for server in list.value.iter().filter_map(|node| server(report, node)) {
        if let Some(first) = seen.insert(server.address.clone(), server.at) {
            let what = format!("this server is listed already, in {}", report.line_at(first));
            report.error_at(server.at, what, "remove one of the two, and use `connections` for more of them");
        }
        servers.push(server);
    }
    servers
}

fn server(report: &Report<'_>, node: &Node<'_>) -> Option<SignerServer> {
    let (text, server_name) = match &node.value {
        Value::String(text) => (Found { value: text.as_ref(), span: node.span }, None),
        Value::Table(_) => {
            let mut section = Section::of(report, node, "this server", node.span)?;
            section.require("address", "add address = \"HOST:PORT\"");
            let address = section.string("address");
            let name = section.string("server_name").and_then(|found| server_name(report, found));
            section.close();
            (address?, name)
        }
        _ => return mismatch(report, "servers", "a string or { address = \"HOST:PORT\" }", node),
    };
    match address::server(text.value) {
        Ok(address) => Some(SignerServer { address, server_name, at: report.at(text.span) }),
        Err((what, fix)) => {
            report.error(text.span, what, fix);
            None
        }
    }
}

fn server_name(report: &Report<'_>, found: Found<&str>) -> Option<String> {
    match address::host(found.value) {
        Ok(name) => Some(name),
        Err((what, fix)) => {
            report.error(found.span, what, fix);
            None
        }
    }
}

fn required(context: &Context<'_, '_>, section: &mut Section<'_, '_>, key: &'static str, fix: &str) -> Trust {
    let at = section.node(key).map(|node| section.report.at(node.span));
    let path = required_file(section, key, context.base, fix);
    let path = path.zip(at).map(|(path, at)| Trust { path, at });
    // Stands in for what is wrong, and has been reported.
    path.unwrap_or_else(|| Trust { path: context.base.into(), at: section.report.at(section.span) })
}

/// `"off"`, or a duration that is shorter than the timeout.
fn hedge(section: &mut Section<'_, '_>, timeout: Duration) -> Option<Duration> {
    let half = Duration::from_millis(timeout.as_millis() as u64 / 2);
    let default = (!half.is_zero()).then_some(half);
    let report = section.report;
    let forms = [Form::Words(&["off"]), Form::Duration];
    let Some(Entry { node, .. }) = section.forms("hedge", &forms) else { return default };
    let Value::String(text) = &node.value else {
        return mismatch::<()>(report, "hedge", "\"off\" or a duration such as \"50ms\"", node).and(default);
    };
    if text == "off" {
        return None;
    }
    match units::duration(text) {
        Ok(hedge) if hedge.is_zero() => {
            report.error(node.span, "`hedge` is too small", "write \"off\", or 1ms or more");
        }
        Ok(hedge) if hedge >= timeout => {
            let fix = format!("use less than {}, or \"off\"", units::write_duration(&timeout));
            report.error(node.span, "`hedge` is not shorter than `timeout`", fix);
        }
        Ok(hedge) => return Some(hedge),
        Err(fix) => report.error(node.span, format!("`hedge`: \"{}\" is not a duration", shown(text)), fix),
    }
    default
}
