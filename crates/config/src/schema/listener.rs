//! `[listener.NAME]`

use super::{Context, DAY, HOUR, close, seconds, timeout, tls};
use crate::model::{Bind, ClientLimits, ClientTimeouts, Forwarded, Listener, Protocol, TlsId};
use crate::report::Report;
use crate::tree::{Node, Value};
use crate::walk::{Found, Named, Section, mismatch, string};
use crate::{address, path};

const HEAD_BYTES: std::ops::RangeInclusive<u64> = 1024..=64 * 1024;
const RATE_MAX: u64 = 1 << 30;

pub(crate) fn listener(context: &Context<'_, '_>, named: Named<'_, '_>) -> Listener {
    let Named { name, span, mut section } = named;
    let report = context.report;
    let bind = binds(&mut section);
    protocol(&mut section);
    let tls = section.string("tls").and_then(|found| context.tls.resolve(report, found)).map(TlsId);
    let prefer = section.list("prefer").map(|found| tls::prefer(report, found));
    if prefer.is_some() && tls.is_none() && report.is_whole() {
        let span = section.entry("prefer").map_or(span, |entry| entry.key_span);
        report.warning(span, "`prefer` has no effect on a listener without `tls`", "remove it, or name a TLS profile");
    }
    let monitor_path = section.string("monitor_path").and_then(|found| monitor_path(report, found));
    if section.boolean("accept_proxy_protocol").is_some_and(|found| found.value)
        && let Some(entry) = section.entry("accept_proxy_protocol")
    {
        report.unsupported(entry.key_span, "accept_proxy_protocol", "or set it to false");
    }
    let choices = [("replace", Forwarded::Replace), ("append", Forwarded::Append), ("remove", Forwarded::Remove)];
    let forwarded = section.choice("forwarded", &choices).map_or(Forwarded::Replace, |found| found.value);
    let request_headers = super::headers::request_headers(&mut section);
    let timeouts = timeouts(section.table("timeouts"));
    let limits = limits(section.table("limits"));
    let http2 = super::http2::http2(&mut section);
    section.close();
    let at = report.at(span);
    Listener {
        name: name.to_string(),
        bind,
        protocol: Protocol::Http,
        tls,
        prefer,
        monitor_path,
        forwarded,
        request_headers,
        timeouts,
        limits,
        http2,
        at,
    }
}

fn binds(section: &mut Section<'_, '_>) -> Vec<Bind> {
    let report = section.report;
    let fix = "add one, such as bind = \"0.0.0.0:443\"";
    let Some(node) = section.node("bind") else {
        section.missing("bind", fix);
        return Vec::new();
    };
    match &node.value {
        Value::Array(items) if items.is_empty() => {
            report.error(node.span, "`bind` is empty", "write at least one address, such as \"0.0.0.0:443\"");
            Vec::new()
        }
        Value::Array(items) => items.iter().filter_map(|item| bind(report, item)).collect(),
        _ => bind(report, node).into_iter().collect(),
    }
}

fn bind(report: &Report<'_>, node: &Node<'_>) -> Option<Bind> {
    if let Value::Integer(port) = node.value {
        let fix = format!("write \"0.0.0.0:{port}\" for IPv4, \"[::]:{port}\" for IPv6, or both in an array");
        report.error(node.span, "`bind`: expected a string, found an integer", fix);
        return None;
    }
    if matches!(node.value, Value::Table(_)) {
        return mismatch(report, "bind", "a string", node);
    }
    let found = string(report, "bind", node)?;
    match address::bind(found.value) {
        Ok(address) => Some(Bind { address, at: report.at(found.span) }),
        Err((what, fix)) => {
            report.error(found.span, what, fix);
            None
        }
    }
}

fn protocol(section: &mut Section<'_, '_>) {
    let choices = [("http", None), ("tcp", Some("tcp")), ("passthrough", Some("passthrough"))];
    if let Some(Found { value: Some(name), span }) = section.choice("protocol", &choices) {
        let key = format!("protocol = \"{name}\"");
        section.report.unsupported(span, &key, "or use \"http\"");
    }
}

fn monitor_path(report: &Report<'_>, found: Found<&str>) -> Option<String> {
    if let Err((what, fix)) = path::check(found.value) {
        report.error(found.span, what, fix);
        return None;
    }
    if let Some((what, fix)) = path::never_sent(found.value) {
        report.warning(found.span, what, fix);
    }
    Some(found.value.to_string())
}

fn timeouts(mut section: Option<Section<'_, '_>>) -> ClientTimeouts {
    let timeouts = ClientTimeouts {
        handshake: timeout(&mut section, "handshake", HOUR, seconds(10)),
        request_head: timeout(&mut section, "request_head", HOUR, seconds(10)),
        body: timeout(&mut section, "body", HOUR, seconds(30)),
        idle: timeout(&mut section, "idle", DAY, seconds(75)),
        tunnel_idle: timeout(&mut section, "tunnel_idle", DAY * 7, HOUR),
    };
    close(section);
    timeouts
}

fn limits(mut section: Option<Section<'_, '_>>) -> ClientLimits {
    let head_bytes = section.as_mut().and_then(|section| section.size("head_bytes", HEAD_BYTES));
    let headers = section.as_mut().and_then(|section| section.integer("headers", 1..=1000));
    let rate = section.as_mut().and_then(|section| section.size("body_rate_min", 0..=RATE_MAX));
    close(section);
    ClientLimits {
        head_bytes: head_bytes.map_or(16 * 1024, |found| found.value as usize),
        headers: headers.map_or(100, |found| found.value),
        body_rate_min: rate.map_or(240, |found| found.value as u32),
    }
}
