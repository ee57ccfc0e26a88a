//! `[listener.NAME]`

use super::tls;
use super::values::{DAY, HOUR, close, seconds, timeout};
use crate::context::Context;
use crate::describe::Form;
use crate::model::{
    Bind, ClientLimits, ClientTimeouts, Forwarded, Listener, Network, PathRules, Protocol, Redirect, TlsId,
};
use crate::report::Report;
use crate::tree::{Entry, Node, Value};
use crate::walk::{Found, Named, Section, mismatch, string};
use crate::{address, path};

const HEAD_BYTES: std::ops::RangeInclusive<u64> = 1024..=64 * 1024;
const RATE_MAX: u64 = 1 << 30;
/// Protocols that may be offered by ALPN.
const ALPN_MAX: usize = 16;
/// A list is gone through for connections, or for requests.
const TRUSTED_PROXIES_MAX: usize = 256;

pub(crate) fn listener(context: &Context<'_, '_>, named: Named<'_, '_>) -> Listener {
    let Named { name, span, mut section } = named;
    let report = context.report;
    let bind = binds(&mut section);
    let protocol = protocol(&mut section);
    let tls_key = section.string("tls");
    if tls_key.is_none() && section.entry("tls").is_some() {
        context.tls.miss();
    }
    let tls = tls_key.and_then(|found| context.tls.resolve(report, found)).map(TlsId);
    if let (Protocol::Passthrough, Some(found)) = (protocol, tls_key) {
        let what = "with protocol = \"passthrough\" TLS ends at the servers, and `tls` has no meaning";
        report.error(found.span, what, "remove it, or use protocol = \"tcp\" to end TLS here");
    }
    let alpn = alpn(&mut section, protocol, tls_key.is_some());
    let prefer = tls::prefer(&mut section);
    if prefer.is_some() && tls.is_none() && report.is_whole() {
        let span = section.entry("prefer").map_or(span, |entry| entry.key_span);
        report.warning(span, "`prefer` has no effect on a listener without `tls`", "remove it, or name a TLS profile");
    }
    let monitor_path = section.string("monitor_path").and_then(|found| monitor_path(report, found));
    let accept_proxy_protocol = section.boolean_or("accept_proxy_protocol", false);
    let trusted_proxies = trusted_proxies(&mut section);
    let redirect_to_https = redirect_to_https(&mut section, tls_key.is_some());
    if protocol.is_relay() {
        http_only(&mut section, protocol);
    }
    let strict_host = strict_host(&mut section, tls_key.is_some());
    let half_close = section.boolean_or("half_close", protocol.is_relay());
    let choices = [("replace", Forwarded::Replace), ("append", Forwarded::Append), ("remove", Forwarded::Remove)];
    let forwarded = section.choice_or("forwarded", &choices, Forwarded::Replace);
    believes(&mut section, &bind, accept_proxy_protocol, forwarded, trusted_proxies.is_some());
    let mut request_headers = super::headers::request_headers(&mut section);
    let request_id = super::request_id::request_ids(&mut section, forwarded, &mut request_headers);
    let errors = super::answers::errors(&mut section, context.base);
    let paths = path_rules(section.table("paths"));
    let timeouts = timeouts(section.table("timeouts"));
    let limits = limits(section.table("limits"));
    let http2 = super::http2::http2(&mut section);
    section.close();
    let at = report.at(span);
    Listener {
        name: name.to_string(),
        bind,
        protocol,
        tls,
        alpn,
        accept_proxy_protocol,
        trusted_proxies,
        prefer,
        monitor_path,
        redirect_to_https,
        strict_host,
        half_close,
        forwarded,
        takes_trailers: request_headers.is_empty(),
        request_headers,
        request_id,
        errors,
        tells_server_name: false,
        paths,
        timeouts,
        limits,
        http2,
        at,
    }
}

fn binds(section: &mut Section<'_, '_>) -> Vec<Bind> {
    let report = section.report;
    let fix = "add one, such as bind = \"0.0.0.0:443\"";
    let Some(Entry { node, .. }) = section.forms("bind", &[Form::String, Form::List(&[Form::String])]) else {
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

fn protocol(section: &mut Section<'_, '_>) -> Protocol {
    let choices = [Protocol::Http, Protocol::Tcp, Protocol::Passthrough].map(|protocol| (protocol.name(), protocol));
    section.choice_or("protocol", &choices, Protocol::Http)
}

/// `true`, or a table for another port or status.
fn redirect_to_https(section: &mut Section<'_, '_>, has_tls: bool) -> Option<Redirect> {
    let report = section.report;
    section.default_is("redirect_to_https", || false.into());
    let entry = section.forms("redirect_to_https", &[Form::Boolean, Form::Table])?;
    let mut redirect = Redirect { status: 308, scheme: Some("https".to_string()), host: None, port: None, path: None };
    match &entry.node.value {
        Value::Boolean(false) => return None,
        Value::Boolean(true) => {}
        Value::String(text) if text == "false" && report.is_substituted(entry.node.span) => return None,
        Value::String(text) if text == "true" && report.is_substituted(entry.node.span) => {}
        Value::Table(_) => {
            let mut table = Section::of(report, &entry.node, "`redirect_to_https`", entry.node.span)?;
            redirect.port = table.integer("port", 1..=65_535).map(|found| found.value);
            let status = super::route::redirect_status(&mut table);
            redirect.status = status;
            table.close();
        }
        _ => return mismatch(report, "redirect_to_https", "a boolean or { port = 8443, status = 301 }", &entry.node),
    }
    if has_tls {
        let what = "`redirect_to_https` on a listener with `tls` would lead to where the request came from";
        report.error(entry.key_span, what, "remove it, or put it on the listener without `tls`");
    }
    Some(redirect)
}

fn trusted_proxies(section: &mut Section<'_, '_>) -> Option<Vec<Network>> {
    let report = section.report;
    let list = section.list("trusted_proxies", &[Form::String])?;
    if list.value.len() > TRUSTED_PROXIES_MAX {
        let what = format!("`trusted_proxies` has more than {TRUSTED_PROXIES_MAX} entries");
        report.error(list.span, what, "write larger networks, as in \"10.0.0.0/8\"");
    }
    let networks = list.value.iter().filter_map(|node| string(report, "trusted_proxies", node));
    let checked = networks.filter_map(|found| {
        address::network(found.value).map_err(|(what, fix)| report.error(found.span, what, fix)).ok()
    });
    Some(checked.collect())
}

/// Warns of a listener that believes what any client says of its address: no `trusted_proxies` is given.
fn believes(section: &mut Section<'_, '_>, bind: &[Bind], announced: bool, forwarded: Forwarded, has_list: bool) {
    let report = section.report;
    let key = match (announced, forwarded) {
        (true, _) => "accept_proxy_protocol",
        (_, Forwarded::Append) => "forwarded",
        _ => {
            if let Some(entry) = section.entry("trusted_proxies").filter(|_| report.is_whole()) {
                let what = "`trusted_proxies` has no effect without `accept_proxy_protocol` or forwarded = \"append\"";
                report.warning(entry.key_span, what, "remove it, or say what is believed");
            }
            return;
        }
    };
    let is_reached = bind.iter().any(|bind| !bind.address.ip().is_loopback());
    if let Some(entry) = section.entry(key).filter(|_| is_reached && !has_list && report.is_whole()) {
        let what = format!("`{key}` believes whoever connects, and any client can pretend to be another");
        let fix = "name the proxies in front, as in trusted_proxies = [\"10.0.0.0/8\"]";
        report.warning(entry.key_span, what, fix);
    }
}

fn strict_host(section: &mut Section<'_, '_>, has_tls: bool) -> Option<bool> {
    let strict = section.boolean("strict_host").map(|found| found.value);
    if !has_tls
        && section.report.is_whole()
        && let Some(entry) = section.entry("strict_host")
    {
        let what = "`strict_host` has no effect on a listener without `tls`";
        section.report.warning(entry.key_span, what, "remove it, or name a TLS profile");
    }
    strict
}

/// Keys that are about requests, on a listener that knows none.
fn http_only(section: &mut Section<'_, '_>, protocol: Protocol) {
    let keys = [
        "monitor_path",
        "redirect_to_https",
        "strict_host",
        "half_close",
        "forwarded",
        "request_headers",
        "request_id",
        "error_pages",
        "error_format",
        "intercept_errors",
        "paths",
        "limits",
    ];
    for key in keys {
        if let Some(entry) = section.entry(key) {
            let what = format!("`{key}` is about HTTP, which protocol = \"{}\" does not look into", protocol.name());
            section.report.error(entry.key_span, what, "remove it, or use protocol = \"http\"");
        }
    }
}

fn alpn(section: &mut Section<'_, '_>, protocol: Protocol, has_tls: bool) -> Vec<String> {
    let report = section.report;
    let Some(list) = section.list("alpn", &[Form::String]) else {
        return Vec::new();
    };
    if protocol != Protocol::Tcp || !has_tls {
        let fix = "remove it: http listeners know what they speak, and without TLS nothing is agreed on";
        let span = section.entry("alpn").map_or(list.span, |entry| entry.key_span);
        report.error(span, "`alpn` is for listeners with protocol = \"tcp\" and `tls`", fix);
    }
    if list.value.len() > ALPN_MAX {
        report.error(list.span, format!("`alpn` has more than {ALPN_MAX} entries"), "remove some");
    }
    let names = list.value.iter().filter_map(|node| string(report, "alpn", node));
    let legal = |found: &Found<&str>| {
        // RFC 7301 §3.1: 1 to 255 bytes; that they are printable is our own wish.
        let is_legal =
            (1..=255).contains(&found.value.len()) && found.value.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_legal {
            report.error(
                found.span,
                "not the name of a protocol",
                "write 1 to 255 printable characters, as in \"imap\"",
            );
        }
        is_legal
    };
    names.filter(legal).map(|found| found.value.to_string()).collect()
}

fn monitor_path(report: &Report<'_>, found: Found<&str>) -> Option<String> {
    if let Err((what, fix)) = path::check(found.value) {
        report.error(found.span, what, fix);
        return None;
    }
    if let Some((what, fix)) = path::oddity(found.value) {
        report.error(found.span, what, fix);
        return None;
    }
    if found.value.contains('%') {
        let what = format!("the path \"{}\" has an escape in it", crate::wording::shown(found.value));
        report.error(found.span, what, "choose a path of letters and digits");
        return None;
    }
    Some(found.value.to_string())
}

fn path_rules(mut section: Option<Section<'_, '_>>) -> PathRules {
    let mut rules = PathRules::default();
    let Some(table) = &mut section else { return rules };
    rules.merge_slashes = table.boolean_or("merge_slashes", rules.merge_slashes);
    let report = table.report;
    // Beside those in the canonical spelling, which is the one that is shown.
    let spellings = [&PathRules::ALLOWANCES[..], &["%2f", "%5c", "\\"]].concat();
    let allow = table.list("allow", &[Form::Words(&spellings)]);
    for node in allow.map(|found| found.value).unwrap_or_default() {
        let Some(found) = string(report, "allow", node) else { continue };
        match found.value {
            "%2F" | "%2f" => rules.escaped_slash = true,
            "%5C" | "%5c" | "\\" => rules.backslash = true,
            "%00" => rules.escaped_nul = true,
            ".." => rules.above_root = true,
            other => {
                let what =
                    format!("\"{}\" in a path is not refused, or cannot be allowed", crate::wording::shown(other));
                let fix = format!("use any of \"{}\"", PathRules::ALLOWANCES.join("\", \""));
                report.error(found.span, what, fix);
            }
        }
    }
    close(section);
    rules
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
    let mut limits = ClientLimits { head_bytes: 16 * 1024, headers: 100, body_rate_min: 240 };
    let Some(table) = &mut section else { return limits };
    limits.head_bytes = table.size_or("head_bytes", HEAD_BYTES, limits.head_bytes as u64) as usize;
    limits.headers = table.integer_or("headers", 1..=1000, limits.headers);
    limits.body_rate_min = table.size_or("body_rate_min", 0..=RATE_MAX, limits.body_rate_min.into()) as u32;
    close(section);
    limits
}
