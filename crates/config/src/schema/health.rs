//! `health`, `outlier` and `circuit` of `[backend.NAME]`, and `process.resolver`.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::values::{HOUR, seconds, up_to};
use crate::describe::Form;
use crate::model::{Circuit, HealthCheck, HttpProbe, Outlier, ProbeKind, Resolver};
use crate::report::Report;
use crate::tree::{Node, Value};
use crate::walk::{Found, Section, mismatch, string};
use crate::wording::shown;
use crate::{address, path, units};

const CHECKS: RangeInclusive<i128> = 1..=1000;
/// Oftener would be load and no health check.
const INTERVAL_MIN: Duration = Duration::from_millis(50);
const TTL_MIN: Duration = Duration::from_millis(100);
const TEXT_BYTES_MAX: usize = 1024;
const NAME_SERVERS_MAX: usize = 8;
const DNS_PORT: u16 = 53;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tcp,
    Tls,
    Http,
    Grpc,
}

/// `secure`: the backend has `tls`, and probes go by it.
pub(crate) fn health(section: &mut Section<'_, '_>, secure: bool) -> Option<HealthCheck> {
    let mut table = section.table("health")?;
    let kind = kind(&mut table, secure);
    // Every key is asked for, so that none of them is unknown; those of another kind have no effect.
    let http = http(&mut table);
    table.default_is("service", || "".into());
    let service = table.string("service").and_then(|found| text(table.report, "service", found));
    let keys: &[(&'static str, Kind)] = &[
        ("path", Kind::Http),
        ("method", Kind::Http),
        ("host", Kind::Http),
        ("status", Kind::Http),
        ("body", Kind::Http),
        ("service", Kind::Grpc),
    ];
    for (key, of) in keys {
        if *of != kind
            && let Some(entry) = table.entry(key)
        {
            let what = format!("`{key}` has no effect on this kind of probe");
            table.report.error(entry.key_span, what, "remove it, or change `kind`");
        }
    }
    let interval = table.duration_or("interval", INTERVAL_MIN..=HOUR, seconds(2));
    let interval_down = table.duration("interval_down", INTERVAL_MIN..=HOUR).map(|found| found.value);
    let timeout = timeout(&mut table, interval, interval_down);
    let rise = table.integer_or("rise", CHECKS, 2);
    let fall = table.integer_or("fall", CHECKS, 3);
    let port = table.integer("port", 1..=65_535).map(|found| found.value);
    let starts_up = table.choice_or("start", &[("up", true), ("down", false)], true);
    table.close();
    let kind = match kind {
        Kind::Tcp => ProbeKind::Tcp,
        Kind::Tls => ProbeKind::Tls,
        Kind::Http => ProbeKind::Http(http),
        Kind::Grpc => ProbeKind::Grpc { service: service.unwrap_or_default() },
    };
    Some(HealthCheck { kind, interval, interval_down, timeout, rise, fall, port, starts_up })
}

fn kind(table: &mut Section<'_, '_>, secure: bool) -> Kind {
    let choices = [("http", Kind::Http), ("tcp", Kind::Tcp), ("tls", Kind::Tls), ("grpc", Kind::Grpc)];
    let default = if table.node("path").is_some() { Kind::Http } else { Kind::Tcp };
    let Some(Found { value, span }) = table.choice("kind", &choices) else { return default };
    if value == Kind::Tls && !secure {
        let what = "the backend has no `tls`, by which the servers could be asked";
        table.report.error(span, what, "add `tls` to the backend, or use \"tcp\"");
    }
    if value == Kind::Http && table.node("path").is_none() {
        table.missing_here("path", "add the path that is asked for, such as path = \"/healthz\"");
    }
    value
}

fn http(table: &mut Section<'_, '_>) -> HttpProbe {
    let report = table.report;
    let target = table.string("path").map_or("/", |found| {
        if let Err((what, fix)) = path::check_target(found.value) {
            report.error(found.span, what, fix);
        }
        found.value
    });
    let methods = [("GET", "GET"), ("HEAD", "HEAD"), ("OPTIONS", "OPTIONS")];
    let method = table.choice_or("method", &methods, "GET");
    let host = table.string("host").and_then(|found| host(report, found));
    let one = [Form::Integer(200..=599), Form::String];
    let [number, range] = one.clone();
    let status = table.forms("status", &[number, range, Form::List(&one)]);
    table.default_is("status", || "200-399".into());
    let status = status.and_then(|entry| statuses(report, &entry.node)).unwrap_or_else(|| vec![200..=399]);
    let body = table.string("body").and_then(|found| {
        if method == "HEAD" {
            report.error(
                found.span,
                "there is no body in the answer to HEAD",
                "remove `body`, or use method = \"GET\"",
            );
        }
        text(report, "body", found)
    });
    HttpProbe { path: target.to_string(), method, host, status, body }
}

/// As a Host field has it: a name or an address, and perhaps a port.
fn host(report: &Report<'_>, found: Found<&str>) -> Option<String> {
    let name = match found.value.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() && !name.ends_with(':') => name,
        _ => found.value,
    };
    match address::host(name) {
        Ok(_) => Some(found.value.to_ascii_lowercase()),
        Err((what, fix)) => {
            report.error(found.span, what, fix);
            None
        }
    }
}

fn text(report: &Report<'_>, key: &str, found: Found<&str>) -> Option<String> {
    if found.value.is_empty() && key == "body" {
        report.error(found.span, "`body` is empty", "write a text that the body has in it, or remove it");
        return None;
    }
    if found.value.len() > TEXT_BYTES_MAX {
        let fix = format!("use at most {TEXT_BYTES_MAX} bytes");
        report.error(found.span, format!("`{key}` is too long"), fix);
        return None;
    }
    Some(found.value.to_string())
}

/// 204, `"200-399"`, or an array of either.
fn statuses(report: &Report<'_>, node: &Node<'_>) -> Option<Vec<RangeInclusive<u16>>> {
    match &node.value {
        Value::Array(items) if items.is_empty() => {
            report.error(node.span, "`status` is empty", "write a status or a range such as \"200-399\"");
            None
        }
        Value::Array(items) => Some(items.iter().filter_map(|item| status(report, item)).collect()),
        _ => Some(vec![status(report, node)?]),
    }
}

fn status(report: &Report<'_>, node: &Node<'_>) -> Option<RangeInclusive<u16>> {
    let range = match &node.value {
        Value::Integer(number) => u16::try_from(*number).ok().map(|number| number..=number),
        Value::String(text) => {
            let (low, high) = text.split_once('-').unwrap_or((text, text));
            low.trim().parse().ok().zip(high.trim().parse().ok()).map(|(low, high)| low..=high)
        }
        _ => return mismatch(report, "status", "a status or a range such as \"200-399\"", node),
    };
    // An informational answer is never the last one.
    let good = range.filter(|range| *range.start() >= 200 && *range.end() <= 599 && !range.is_empty());
    if good.is_none() {
        let what = format!("`status`: {} is no status that can be expected", shown(report.written(node.span)));
        report.error(node.span, what, "use 200 to 599, or a range such as \"200-399\"");
    }
    good
}

fn timeout(table: &mut Section<'_, '_>, interval: Duration, interval_down: Option<Duration>) -> Duration {
    let default = interval.min(seconds(1));
    let Some(Found { value, span }) = table.duration("timeout", up_to(HOUR)) else { return default };
    if value > interval {
        let what = "`timeout` is longer than `interval`: a slow server is asked less often than it says";
        table.report.warning(span, what, "shorten the one or lengthen the other");
    } else if interval_down.is_some_and(|interval| value > interval) {
        let what = "`timeout` is longer than `interval_down`: a silent server is asked less often than that says";
        table.report.warning(span, what, "shorten the one or lengthen the other");
    }
    value
}

pub(crate) fn outlier(section: &mut Section<'_, '_>) -> Option<Outlier> {
    let mut table = section.table("outlier")?;
    let mut number =
        |key: &'static str, range: RangeInclusive<i128>, default: u32| table.integer_or(key, range, default);
    let consecutive_failures = number("consecutive_failures", 0..=1_000_000, 5);
    let success_rate_servers = number("success_rate_servers", 0..=10_000, 5);
    let success_rate_requests = number("success_rate_requests", 1..=1_000_000, 100);
    let success_rate_deviation_percent = number("success_rate_deviation_percent", 1..=10_000, 190);
    let ejected_percent_max = number("ejected_percent_max", 1..=100, 30);
    let interval = table.duration_or("interval", seconds(1)..=HOUR, seconds(10));
    let ejection = table.duration_or("ejection", seconds(1)..=HOUR, seconds(30));
    const EJECTION_MAX: Duration = seconds(300);
    table.default_is("ejection_max", || units::duration_text(&EJECTION_MAX).into());
    let ejection_max = match table.duration("ejection_max", seconds(1)..=seconds(24 * 3600)) {
        Some(Found { value, span }) => {
            if value < ejection {
                let what = "`ejection_max` is shorter than `ejection`";
                table.report.error(span, what, "lengthen the one or shorten the other");
            }
            value
        }
        None => EJECTION_MAX.max(ejection),
    };
    if consecutive_failures == 0 && success_rate_servers == 0 {
        let what = "`outlier` has no effect: there is neither a `consecutive_failures` nor a `success_rate_servers`";
        table.report.warning(table.span, what, "remove it, or set one of them above 0");
    }
    table.close();
    Some(Outlier {
        interval,
        consecutive_failures,
        success_rate_servers,
        success_rate_requests,
        success_rate_deviation_percent,
        ejection,
        ejection_max,
        ejected_percent_max,
    })
}

pub(crate) fn circuit(section: &mut Section<'_, '_>) -> Circuit {
    let report = section.report;
    let Some(mut table) = section.table("circuit") else { return Circuit::default() };
    let requests = table.integer("requests", 1..=10_000_000).map(|found| found.value);
    let adaptive = table.boolean_or("adaptive", false);
    let least = table.integer::<u32>("requests_min", 1..=10_000_000);
    let (requests_min, most) = (least.as_ref().map(|found| found.value), requests.unwrap_or(Circuit::ADAPTIVE_MAX));
    match least {
        Some(least) if !adaptive => {
            let fix = "leave it out, or write `adaptive = true`";
            report.error(least.span, "`requests_min` has no effect without `adaptive`", fix);
        }
        Some(least) if least.value > most => {
            let what = format!("`requests_min` is more than the {most} requests that the limit may be at most");
            report.error(least.span, what, "use a smaller number, or raise `requests`");
        }
        _ => {}
    }
    table.close();
    Circuit { requests, adaptive, requests_min }
}

/// An address, an array of them, or a table.
pub(crate) fn resolver(section: &mut Section<'_, '_>) -> Resolver {
    let report = section.report;
    let mut resolver = Resolver::default();
    let node = match section.forms("resolver", &[Form::String, Form::List(&[Form::String]), Form::Table]) {
        None => return resolver,
        Some(entry) => &entry.node,
    };
    if !matches!(node.value, Value::Table(_)) {
        resolver.servers = name_servers(report, node);
        return resolver;
    }
    let Some(mut table) = section.table("resolver") else { return resolver };
    let servers = table.forms("servers", &[Form::String, Form::List(&[Form::String])]);
    resolver.servers = servers.map_or_else(Vec::new, |entry| name_servers(report, &entry.node));
    resolver.ttl_min = table.duration_or("ttl_min", TTL_MIN..=HOUR, resolver.ttl_min);
    table.default_is("ttl_max", || units::duration_text(&resolver.ttl_max).into());
    resolver.ttl_max = resolver.ttl_max.max(resolver.ttl_min);
    if let Some(Found { value, span }) = table.duration("ttl_max", TTL_MIN..=seconds(24 * 3600)) {
        if value < resolver.ttl_min {
            report.error(span, "`ttl_max` is shorter than `ttl_min`", "lengthen the one or shorten the other");
        }
        resolver.ttl_max = value;
    }
    table.close();
    resolver
}

fn name_servers(report: &Report<'_>, node: &Node<'_>) -> Vec<SocketAddr> {
    match &node.value {
        Value::Array(items) => {
            if items.is_empty() {
                report.error(node.span, "there is no name server", "write its address, or leave it out");
            }
            if items.len() > NAME_SERVERS_MAX {
                let fix = format!("write at most {NAME_SERVERS_MAX}");
                report.error(node.span, "these are too many name servers", fix);
            }
            items.iter().filter_map(|item| name_server(report, item)).collect()
        }
        _ => name_server(report, node).into_iter().collect(),
    }
}

fn name_server(report: &Report<'_>, node: &Node<'_>) -> Option<SocketAddr> {
    let found = string(report, "resolver", node)?;
    let parsed = found.value.parse().ok().or_else(|| Some(SocketAddr::new(found.value.parse().ok()?, DNS_PORT)));
    let good = parsed.filter(|address| address.port() != 0 && !address.ip().is_unspecified());
    if good.is_none() {
        let what = format!("\"{}\" is not the address of a name server", shown(found.value));
        report.error(found.span, what, "write it in numbers, such as \"10.0.0.2\" or \"127.0.0.1:5353\"");
    }
    good
}
