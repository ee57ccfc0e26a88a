//! `[backend.NAME]`

use std::collections::HashMap;
use std::num::{NonZeroU16, NonZeroU32};
use std::ops::RangeInclusive;

use super::backend_tls::backend_tls;
use super::fastcgi::{fastcgi, probes as fastcgi_probes};
use super::values::{DAY, HOUR, close, seconds, timeout, up_to};
use super::{balance, health, source, sticky};
use crate::address;
use crate::context::Context;
use crate::describe::Form;
use crate::model::{
    Backend, Drain, ProxyProtocol, Queue, RetryBudget, Reuse, Server, ServerHttp2, ServerProtocol, ServerTimeouts,
};
use crate::report::Report;
use crate::tree::{Entry, Node, Value};
use crate::walk::{Found, Named, Section, integer, mismatch};

const WEIGHT: RangeInclusive<i128> = 1..=256;
const CONNECTIONS: RangeInclusive<i128> = 1..=10_000_000;
const RETRIES: RangeInclusive<i128> = 0..=10;
const RETRIES_DEFAULT: u32 = 2;
const PER_SECOND: RangeInclusive<i128> = 0..=1_000_000;
const REQUESTS: RangeInclusive<i128> = 1..=1_000_000_000;

pub(crate) fn backend(context: &Context<'_, '_>, named: Named<'_, '_>) -> Backend {
    let Named { name, span, mut section } = named;
    let report = context.report;
    let balance = balance::balance(&mut section);
    let servers = servers(&mut section);
    let protocol = protocol(&mut section);
    let fastcgi = fastcgi(&mut section, protocol);
    let http2 = http2(&mut section);
    balance::check(&mut section, &balance, &servers);
    let sticky = sticky::sticky(context, &mut section);
    let send_proxy_protocol = send_proxy_protocol(&mut section);
    let source = source::source(&mut section);
    let reuse = reuse(&mut section);
    if protocol.may_be_http2() {
        check_sharing(&mut section, send_proxy_protocol, reuse);
    }
    let tls = backend_tls(context, &mut section);
    let health = health::health(&mut section, tls.is_some());
    fastcgi_probes(&mut section, (protocol, health.as_ref()));
    let outlier = health::outlier(&mut section);
    let circuit = health::circuit(&mut section);
    let queue = queue(&mut section);
    let slow_start = section.duration("slow_start", up_to(HOUR)).map(|found| found.value);
    let min_healthy = section.integer_or("min_healthy", 0..=100, 0);
    let timeouts = timeouts(section.table("timeouts"));
    let (retries, retry_budget) = retries(&mut section);
    let via = section.boolean_or("via", false);
    let max_idle = section.integer_or("max_idle", 0..=65_536, 128);
    let min_idle = min_idle(&mut section, max_idle, reuse, send_proxy_protocol.is_some());
    let max_requests = section.integer("max_requests", REQUESTS).and_then(|found| NonZeroU32::new(found.value));
    let max_lifetime = section.duration("max_lifetime", up_to(DAY)).map(|found| found.value);
    section.close();
    let backend = Backend {
        name: name.to_string(),
        balance,
        servers,
        protocol,
        fastcgi,
        http2,
        reuse,
        send_proxy_protocol,
        source,
        queue,
        timeouts,
        retries,
        retry_budget,
        max_idle,
        via,
        min_idle,
        max_requests,
        max_lifetime,
        health,
        outlier,
        circuit,
        tls,
        slow_start,
        min_healthy,
        sticky,
        at: report.at(span),
    };
    if let Some((server, (what, fix))) =
        backend.servers.iter().find_map(|server| Some((server, backend.misfit(&server.address)?)))
    {
        report.error_at(server.at, what, fix);
    }
    backend
}

/// Keys that do not go with connections that many requests share.
fn check_sharing(section: &mut Section<'_, '_>, send_proxy_protocol: Option<ProxyProtocol>, reuse: Reuse) {
    const FIX: &str = "remove it, or use protocol = \"http1\"";
    let report = section.report;
    if let Some(entry) = section.entry("send_proxy_protocol").filter(|_| send_proxy_protocol.is_some()) {
        let what = "`send_proxy_protocol` tells of one client, and connections of HTTP/2 are shared by many";
        report.error(entry.key_span, what, FIX);
    }
    if let Some(entry) = section.entry("reuse").filter(|_| reuse == Reuse::Never) {
        let what = "connections of HTTP/2 carry many requests, whatever `reuse` says";
        report.warning(entry.key_span, what, FIX);
    }
}

fn send_proxy_protocol(section: &mut Section<'_, '_>) -> Option<ProxyProtocol> {
    let choices = [("v1", ProxyProtocol::V1), ("v2", ProxyProtocol::V2)];
    section.choice("send_proxy_protocol", &choices).map(|found| found.value)
}

fn protocol(section: &mut Section<'_, '_>) -> ServerProtocol {
    let choices = [
        ("http1", ServerProtocol::Http1),
        ("http1.0", ServerProtocol::Http10),
        ("h2", ServerProtocol::Http2),
        ("auto", ServerProtocol::Auto),
        ("fastcgi", ServerProtocol::FastCgi),
    ];
    section.default_is("protocol", || "http1".into());
    // The nearest by its letters would be "http1".
    if let Some(entry) = section.entry("protocol")
        && let Value::String(written) = &entry.node.value
        && ["http2", "http/2", "h2c"].iter().any(|name| name.eq_ignore_ascii_case(written))
    {
        section.report.error(entry.node.span, format!("`protocol` cannot be {written:?}"), "write \"h2\"");
        return ServerProtocol::Http2;
    }
    // nginx has `proxy_http_version 1.0`.
    if let Some(entry) = section.entry("protocol")
        && let Value::String(written) = &entry.node.value
        && ["1.0", "http/1.0", "http10"].iter().any(|name| name.eq_ignore_ascii_case(written))
    {
        section.report.error(entry.node.span, format!("`protocol` cannot be {written:?}"), "write \"http1.0\"");
        return ServerProtocol::Http10;
    }
    section.choice("protocol", &choices).map_or(ServerProtocol::Http1, |found| found.value)
}

fn http2(section: &mut Section<'_, '_>) -> ServerHttp2 {
    let mut http2 = ServerHttp2::default();
    let Some(mut table) = section.table("http2") else { return http2 };
    http2.max_streams = table.integer_or("max_streams", 1..=10_000, http2.max_streams);
    http2.ping = table.duration_or("ping", up_to(HOUR), http2.ping);
    table.close();
    http2
}

fn reuse(section: &mut Section<'_, '_>) -> Reuse {
    let choices =
        [("never", Reuse::Never), ("safe", Reuse::Safe), ("aggressive", Reuse::Aggressive), ("always", Reuse::Always)];
    section.choice_or("reuse", &choices, Reuse::Safe)
}

fn min_idle(section: &mut Section<'_, '_>, max_idle: usize, reuse: Reuse, announces: bool) -> usize {
    section.default_is("min_idle", || 0.into());
    let Some(Found { value, span }) = section.integer("min_idle", 0..=65_536) else { return 0 };
    if value > max_idle {
        let what = format!("`min_idle` is above `max_idle`, which is {max_idle}");
        section.report.error(span, what, "lower the one or raise the other");
    }
    if value > 0 && reuse == Reuse::Never {
        section.report.error(span, "`min_idle` has no use with reuse = \"never\"", "remove it, or allow reuse");
    }
    if value > 0 && announces {
        let what = "`min_idle` has no use with `send_proxy_protocol`: connections begin with a client's address";
        section.report.error(span, what, "remove one of the two");
    }
    value
}

fn servers(section: &mut Section<'_, '_>) -> Vec<Server> {
    let report = section.report;
    section.require("servers", "add servers = [\"HOST:PORT\"]");
    let Some(list) = section.list("servers", &[Form::String, Form::Table]) else {
        return Vec::new();
    };
    if list.value.is_empty() {
        report.error(list.span, "`servers` is empty", "write at least one \"HOST:PORT\"");
    }
    let mut seen = HashMap::new();
    let mut servers = Vec::new();
    for node in list.value {
        let Some(server) = server(report, node) else {
            continue;
        };
        if let Some(first) = seen.insert(server.address.clone(), server.at) {
            let what = format!("this server is listed already, in {}", report.line_at(first));
            report.warning(node.span, what, "remove one of the two, and use `weight` to give it more");
        }
        servers.push(server);
    }
    servers
}

fn server(report: &Report<'_>, node: &Node<'_>) -> Option<Server> {
    let (address, weight, max_connections, drain, backup) = match &node.value {
        Value::String(text) => (Found { value: text.as_ref(), span: node.span }, NonZeroU16::MIN, None, None, false),
        Value::Table(_) => server_table(report, node)?,
        _ => {
            return mismatch(report, "servers", "\"HOST:PORT\" or { address = \"HOST:PORT\" }", node);
        }
    };
    match address::backend_server(address.value) {
        Ok(value) => {
            let at = report.at(address.span);
            Some(Server { address: value, weight, max_connections, drain, backup, at })
        }
        Err((what, fix)) => {
            report.error(address.span, what, fix);
            None
        }
    }
}

type ServerTable<'r> = (Found<&'r str>, NonZeroU16, Option<NonZeroU32>, Option<Drain>, bool);

fn server_table<'r>(report: &'r Report<'_>, node: &'r Node<'_>) -> Option<ServerTable<'r>> {
    let mut section = Section::of(report, node, "this server", node.span)?;
    section.require("address", "add address = \"HOST:PORT\"");
    let address = section.string("address");
    let weight = weight(&mut section).unwrap_or(NonZeroU16::MIN);
    let max_connections =
        section.integer("max_connections", CONNECTIONS).and_then(|found| NonZeroU32::new(found.value));
    let backup = section.boolean_or("backup", false);
    let drain = section.boolean_or("drain", false).then_some(Drain::Written);
    section.close();
    Some((address?, weight, max_connections, drain, backup))
}

fn weight(section: &mut Section<'_, '_>) -> Option<NonZeroU16> {
    section.default_is("weight", || 1.into());
    let Entry { node, .. } = section.forms("weight", &[Form::Integer(WEIGHT)])?;
    if let Value::Integer(0) = node.value {
        section.report.error(node.span, "`weight` is 0", "use 1 to 256, or remove the server");
        return None;
    }
    let found = section.integer("weight", WEIGHT)?;
    NonZeroU16::new(found.value)
}

fn timeouts(mut section: Option<Section<'_, '_>>) -> ServerTimeouts {
    let timeouts = ServerTimeouts {
        connect: timeout(&mut section, "connect", HOUR, seconds(3)),
        first_byte: timeout(&mut section, "first_byte", DAY, seconds(60)),
        body: timeout(&mut section, "body", DAY, seconds(60)),
        idle: timeout(&mut section, "idle", DAY, seconds(50)),
        close: timeout(&mut section, "close", HOUR, seconds(10)),
    };
    close(section);
    timeouts
}

/// Reads `retries`: their number, or a table.
fn retries(section: &mut Section<'_, '_>) -> (u32, RetryBudget) {
    let (report, budget) = (section.report, RetryBudget::default());
    section.default_is("retries", || RETRIES_DEFAULT.into());
    let Some(entry) = section.forms("retries", &[Form::Integer(RETRIES), Form::Table]) else {
        return (RETRIES_DEFAULT, budget);
    };
    if !matches!(entry.node.value, Value::Table(_)) {
        let found = integer(report, "retries", &entry.node, RETRIES);
        return (found.map_or(RETRIES_DEFAULT, |found| found.value), budget);
    }
    let Some(mut table) = Section::of(report, &entry.node, "`retries`", entry.node.span) else {
        return (RETRIES_DEFAULT, budget);
    };
    let attempts = table.integer_or("attempts", RETRIES, RETRIES_DEFAULT);
    table.default_is("budget", || budget.share.to_string().into());
    let share = table.share("budget").map_or(budget.share, |found| found.value);
    let min_per_second = table.integer_or("min_per_second", PER_SECOND, budget.min_per_second);
    table.close();
    (attempts, RetryBudget { share, min_per_second })
}

fn queue(section: &mut Section<'_, '_>) -> Queue {
    let mut queue = Queue::default();
    let Some(mut table) = section.table("queue") else {
        return queue;
    };
    queue.limit = table.integer_or("limit", 0..=1_000_000, queue.limit);
    queue.timeout = table.duration_or("timeout", up_to(HOUR), queue.timeout);
    queue.target = table.duration("target", up_to(HOUR)).map(|found| found.value);
    table.close();
    queue
}
