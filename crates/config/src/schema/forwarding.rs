//! Steps of `[[route]]` about where its requests go: `backend` as a list, `sticky`, `fallback`, `timeouts`, `retries`,
//! `hedge`, `priority`, `buffer`, `mirror`.

use std::ops::RangeInclusive;

use super::values::{DAY, HOUR, MILLISECOND, seconds, up_to};
use super::{balance, change, sticky};
use crate::context::Context;
use crate::describe::Form;
use crate::model::{
    At, BackendId, BodyBounds, Buffer, Hedge, HedgeAfter, Mirror, Percentile, Priority, Retries, RetryOn,
    RouteTimeouts, Side, SideSticky, SideTo, Split, Sticky,
};
use crate::report::Report;
use crate::text::Span;
use crate::tree::{Entry, Node, Value};
use crate::units;
use crate::walk::{Found, Section, mismatch, string, within};
use crate::wording::shown;

/// As the Gateway API has it.
const WEIGHT: RangeInclusive<i128> = 0..=1_000_000;
const SIDES_MAX: usize = 64;
/// Statuses of answers in the place of a backend, as `respond` of a route has them.
const ANSWERS: RangeInclusive<i128> = 200..=599;
const RETRIES: RangeInclusive<i128> = 0..=10;
const STATUSES: RangeInclusive<i128> = 400..=599;
const MILLIONTHS: u32 = 1_000_000;
/// Copies of one request.
const MIRRORS_MAX: usize = 16;
/// Each copy under way may have as much.
const MIRRORED_BODY_BYTES_MAX: u64 = 1024 * 1024;
/// From nothing to a GiB in memory, and to a TiB in a file.
const HELD_MEMORY_MAX: u64 = 1 << 30;
const HELD_DISK_MAX: u64 = 1 << 40;
const BACKEND_FORM: &str =
    "the name of a backend, or a list such as [{ name = \"a\", weight = 90 }, { name = \"b\", weight = 10 }]";
const ON_FORM: &str = "\"connect\", \"reset\", \"timeout\", or a status from 400 to 599";

/// Reads `backend`: the backend that a route leads to, or the first of several and how requests are divided.
pub(super) fn backend(context: &Context<'_, '_>, section: &mut Section<'_, '_>) -> Option<(BackendId, Option<Split>)> {
    let report = context.report;
    let entry = section.forms("backend", &[Form::String, Form::List(&[Form::Table])])?;
    let node = &entry.node;
    let sticky = side_sticky(context, section);
    match &node.value {
        Value::String(_) => {
            let name = string(report, "backend", node)?;
            Some((BackendId(context.backends.resolve(report, name)?), None))
        }
        Value::Array(items) => {
            let sides: Vec<Side> = items.iter().filter_map(|item| side(context, item)).collect();
            if items.is_empty() {
                report.error(node.span, "`backend` is an empty list", "name at least one backend");
            }
            if items.len() > SIDES_MAX {
                report.error(node.span, "`backend` has too many backends", format!("use at most {SIDES_MAX}"));
            }
            check_sides(report, items, (&sides, matches!(sticky, Some(SideSticky::Cookie(_)))), node);
            Some((sides.iter().find_map(Side::backend)?, Some(Split { sides, sticky })))
        }
        _ => {
            context.backends.miss();
            mismatch(report, "backend", BACKEND_FORM, node)
        }
    }
}

fn side(context: &Context<'_, '_>, node: &Node<'_>) -> Option<Side> {
    let report = context.report;
    if !matches!(node.value, Value::Table(_)) {
        context.backends.miss();
    }
    let mut section = Section::of(report, node, "this backend", node.span)?;
    section.one_of(&["name", "respond"]);
    let backend = section.string("name").and_then(|found| context.backends.resolve(report, found));
    let answer: Option<Found<u16>> = section.integer("respond", ANSWERS);
    let weight = section.integer_or("weight", WEIGHT, 1);
    let request = section.table("request").map(change::side_request).unwrap_or_default();
    let response = section.table("response").map(change::side_response).unwrap_or_default();
    if let (Some(_), Some(entry)) = (answer, section.entry("request").or(section.entry("response"))) {
        let what = format!("`{}` of an entry is about a backend, and this one is an answer", entry.key);
        report.error(entry.key_span, what, "remove it");
    }
    let (name, respond) = (section.entry("name").is_some(), section.entry("respond").is_some());
    if !name && !respond {
        context.backends.miss();
    }
    let is_misspelt = section.close();
    if name && respond || !name && !respond && !is_misspelt && report.is_whole() {
        let what = "an entry of `backend` is one of `name` and `respond`";
        report.error(node.span, what, "write name = \"NAME\" of a [backend.NAME], or respond = 503");
        return None;
    }
    let to = match answer {
        Some(status) => SideTo::Respond(status.value),
        None => SideTo::Backend(BackendId(backend?)),
    };
    Some(Side { to, weight, request, response })
}

fn check_sides(report: &Report<'_>, items: &[Node<'_>], (sides, is_named): (&[Side], bool), node: &Node<'_>) {
    if sides.len() < items.len() {
        return;
    }
    for (place, side) in sides.iter().enumerate() {
        let is_same = |other: &Side| (&other.request, &other.response) == (&side.request, &side.response);
        // A cookie names a backend, and not one of its entries.
        if sides[..place].iter().any(|earlier| earlier.to == side.to && (is_named || is_same(earlier))) {
            let fix = "remove one of the two, and add their weights up";
            let what = match side.to {
                SideTo::Backend(_) => "this backend is listed already",
                SideTo::Respond(_) => "this answer is listed already",
            };
            report.error(items[place].span, what, fix);
        }
    }
    if !sides.is_empty() && sides.iter().all(|side| side.backend().is_none()) {
        let fix = "name a backend in the list, or write `respond` in place of `backend`";
        report.error(node.span, "`backend` is a list without a backend", fix);
    }
    if !sides.is_empty() && sides.iter().all(|side| side.weight == 0) {
        let what = "all weights are 0: every request is answered with 503, or goes to the `fallback`";
        report.warning(node.span, what, "give one of them a weight");
    }
}

/// Reads `sticky`: `{ cookie = "NAME", .. }` or `{ key = .. }`.
fn side_sticky(context: &Context<'_, '_>, section: &mut Section<'_, '_>) -> Option<SideSticky> {
    let report = context.report;
    let divides = section.entry("backend").is_none_or(|entry| matches!(entry.node.value, Value::Array(_)));
    let entry = section.forms("sticky", &[Form::Table])?;
    if !divides {
        let what = "`sticky` of a route keeps clients at one of several backends, and this route has one";
        let fix = "remove it, or give `backend` a list; clients are kept at a server by `sticky` of [backend.NAME]";
        report.error(entry.key_span, what, fix);
    }
    let mut table = Section::of(report, &entry.node, "`sticky`", entry.node.span)?;
    table.one_of(&["cookie", "key"]);
    let (cookie, key) = (table.entry("cookie").is_some(), table.entry("key"));
    if cookie && key.is_some() || !cookie && key.is_none() && report.is_whole() {
        let what = "`sticky` of a route is one of `cookie` and `key`";
        report.error(entry.node.span, what, "write { cookie = \"NAME\" } or { key = \"client-ip\" }");
    }
    if key.is_some() || table.is_described() {
        let key = balance::key(&mut table);
        if !table.is_described() {
            table.close();
            return key.map(SideSticky::Hash);
        }
    }
    // The position says nothing here: there is no file that it could be told apart by.
    sticky::attributes(report, table).map(|cookie| SideSticky::Cookie(Sticky { at: At::default(), ..cookie }))
}

/// Reads `fallback`.
pub(super) fn fallback(
    context: &Context<'_, '_>,
    section: &mut Section<'_, '_>,
    own: &[BackendId],
) -> Option<BackendId> {
    let found = section.string("fallback")?;
    let backend = BackendId(context.backends.resolve(context.report, found)?);
    if own.contains(&backend) {
        let what = format!("\"{}\" is where this route leads anyway", shown(found.value));
        context.report.error(found.span, what, "name another backend, or remove `fallback`");
    }
    Some(backend)
}

/// Reads `timeouts`.
pub(super) fn timeouts(section: &mut Section<'_, '_>) -> RouteTimeouts {
    let report = section.report;
    let errors = report.errors();
    let Some(mut table) = section.table("timeouts") else { return RouteTimeouts::default() };
    let mut read = |key, bound| table.duration(key, up_to(bound));
    let (request, connect) = (read("request", DAY), read("connect", HOUR));
    let (attempt, first_byte, body) = (read("attempt", DAY), read("first_byte", DAY), read("body", DAY));
    let wholes = [("request", request), ("attempt", attempt)];
    let parts = [("attempt", attempt), ("connect", connect), ("first_byte", first_byte), ("body", body)];
    for (key, part) in parts {
        for (name, whole) in wholes.iter().filter(|(name, _)| *name != key) {
            // A connection may have been there before the attempt.
            if let (Some(whole), Some(part)) = (whole, part)
                && part.value > whole.value
                && (*name, key) != ("attempt", "connect")
            {
                let what = format!("`{key}` is longer than `{name}`, which ends the whole of it before");
                report.warning(part.span, what, "shorten the one or lengthen the other");
                break;
            }
        }
    }
    let span = table.span;
    let is_misspelt = table.close();
    let value = |found: Option<Found<std::time::Duration>>| found.map(|found| found.value);
    let timeouts = RouteTimeouts {
        request: value(request),
        attempt: value(attempt),
        connect: value(connect),
        first_byte: value(first_byte),
        body: value(body),
    };
    let is_read = !is_misspelt && report.errors() == errors && report.is_whole();
    if timeouts == RouteTimeouts::default() && is_read {
        report.warning(
            span,
            "`timeouts` is empty",
            "remove it, or add one of `request`, `attempt`, `connect`, `first_byte`, `body`",
        );
    }
    timeouts
}

/// Reads `priority`.
pub(super) fn priority(section: &mut Section<'_, '_>) -> Priority {
    let choices = [("high", Priority::High), ("normal", Priority::Normal), ("low", Priority::Low)];
    section.choice_or("priority", &choices, Priority::Normal)
}

/// Reads `buffer`.
pub(super) fn buffer(section: &mut Section<'_, '_>) -> Buffer {
    let Some(mut table) = section.table("buffer") else { return Buffer::default() };
    let buffer = Buffer { request: body_bounds(&mut table, "request"), response: body_bounds(&mut table, "response") };
    let (report, span) = (table.report, table.span);
    let is_empty = table.entry("request").is_none() && table.entry("response").is_none();
    if !table.close() && is_empty && report.is_whole() {
        report.warning(span, "`buffer` holds nothing", "add request = true or response = true, or remove it");
    }
    buffer
}

/// Reads which bodies are held: `true`, or their bounds.
fn body_bounds(table: &mut Section<'_, '_>, key: &'static str) -> Option<BodyBounds> {
    table.default_is(key, || false.into());
    let entry = table.forms(key, &[Form::Boolean, Form::Table])?;
    let default = BodyBounds::default();
    match &entry.node.value {
        Value::Boolean(is_on) => is_on.then_some(default),
        Value::Table(_) => {
            let mut bounds = Section::of(table.report, &entry.node, key, entry.node.span)?;
            let memory = bounds.size_or("memory", 0..=HELD_MEMORY_MAX, default.memory);
            let disk = bounds.size_or("disk", 0..=HELD_DISK_MAX, default.disk);
            if memory == 0 && disk == 0 {
                let what = format!("`{key}` holds nothing");
                table.report.error(
                    entry.node.span,
                    what,
                    format!("write {key} = false, or give it `memory` or `disk`"),
                );
            }
            bounds.close();
            Some(BodyBounds { memory, disk })
        }
        _ => mismatch(table.report, key, "true, false or a table", &entry.node),
    }
}

/// Reads `retries`: their number, or a table.
pub(super) fn retries(section: &mut Section<'_, '_>) -> Option<Retries> {
    let report = section.report;
    let entry = section.forms("retries", &[Form::Integer(RETRIES), Form::Table])?;
    if let Value::Integer(_) = entry.node.value {
        let found = crate::walk::integer(report, "retries", &entry.node, RETRIES)?;
        return Some(Retries { attempts: Some(found.value), on: RetryOn::default(), backoff: None });
    }
    let mut table = Section::of(report, &entry.node, "`retries`", entry.node.span)?;
    let attempts: Option<Found<u32>> = table.integer("attempts", RETRIES);
    let on = retry_on(&mut table);
    let backoff = table.duration("backoff", MILLISECOND..=seconds(60));
    if let Some(Found { value: 0, .. }) = attempts {
        for key in ["on", "backoff"] {
            if let Some(entry) = table.entry(key) {
                let what = format!("`{key}` has no effect with attempts = 0");
                report.error(entry.key_span, what, "remove it, or allow attempts");
            }
        }
    }
    table.close();
    Some(Retries {
        attempts: attempts.map(|found| found.value),
        on: on.unwrap_or_default(),
        backoff: backoff.map(|found| found.value),
    })
}

/// Reads `hedge`.
pub(super) fn hedge(section: &mut Section<'_, '_>) -> Option<Hedge> {
    let mut table = section.table("hedge")?;
    table.require("after", "add after = \"50ms\", or how long a good response takes at most");
    let after = hedge_after(&mut table);
    table.close();
    Some(Hedge { after: after? })
}

/// A percentile, or a time.
fn hedge_after(table: &mut Section<'_, '_>) -> Option<HedgeAfter> {
    let report = table.report;
    let Entry { node, .. } = table.forms("after", &[Form::Duration, Form::Words(&Percentile::NAMES)])?;
    let Value::String(text) = &node.value else {
        return mismatch(report, "after", "a duration such as \"50ms\" or a percentile such as \"p95\"", node);
    };
    if let Some(percentile) = Percentile::parse(text) {
        return Some(HedgeAfter::Percentile(percentile));
    }
    match units::duration(text) {
        Ok(value) => {
            let found = Found { value, span: node.span };
            let time = within(report, "after", found, up_to(HOUR), units::write_duration)?;
            return Some(HedgeAfter::Time(time.value));
        }
        Err(_) if text.starts_with('p') => {
            let what = format!("`after`: there is no percentile \"{}\"", shown(text));
            report.error(node.span, what, format!("use one of {}", Percentile::NAMES.join(", ")));
        }
        Err(fix) => {
            let what = format!("`after`: \"{}\" is neither a duration nor a percentile", shown(text));
            report.error(node.span, what, format!("{fix}, or \"p95\""));
        }
    }
    None
}

fn retry_on(table: &mut Section<'_, '_>) -> Option<RetryOn> {
    let report = table.report;
    let words = ["connect", "reset", "timeout"];
    table.default_is("on", || serde_json::json!(["connect", "reset"]));
    let list = table.list("on", &[Form::Words(&words), Form::Integer(STATUSES)])?;
    let mut on = RetryOn { connect: false, reset: false, timeout: false, statuses: Vec::new() };
    if list.value.is_empty() {
        report.error(list.span, "`on` is empty", "write attempts = 0 for no repeats");
    }
    for Node { value, span, .. } in list.value {
        match value {
            Value::String(text) => match text.as_ref() {
                "connect" => on.connect = true,
                "reset" => on.reset = true,
                "timeout" => on.timeout = true,
                other => {
                    let fix = match other.parse::<u16>() {
                        Ok(status) => format!("write {status} without quotes"),
                        Err(_) => format!("use {ON_FORM}"),
                    };
                    report.error(*span, format!("`on` cannot have \"{}\" in it", shown(other)), fix);
                }
            },
            Value::Integer(status) if STATUSES.contains(status) => on.statuses.push(*status as u16),
            _ => report.error(*span, "`on`: this is no fault and no status", format!("use {ON_FORM}")),
        }
    }
    on.statuses.sort_unstable();
    on.statuses.dedup();
    Some(on)
}

/// Reads `mirror`: a table, or a list of several.
pub(super) fn mirrors(context: &Context<'_, '_>, section: &mut Section<'_, '_>, own: &[BackendId]) -> Vec<Mirror> {
    let report = context.report;
    let Some(entry) = section.forms("mirror", &[Form::Table, Form::List(&[Form::Table])]) else { return Vec::new() };
    let Value::Array(items) = &entry.node.value else {
        return mirror(context, (&entry.node, entry.key_span), own).into_iter().collect();
    };
    if items.is_empty() {
        report.error(entry.node.span, "`mirror` is an empty list", "name at least one backend, or remove it");
    }
    if items.len() > MIRRORS_MAX {
        report.error(entry.node.span, "`mirror` has too many backends", format!("use at most {MIRRORS_MAX}"));
    }
    items.iter().filter_map(|item| mirror(context, (item, item.span), own)).collect()
}

fn mirror(context: &Context<'_, '_>, (node, span): (&Node<'_>, Span), own: &[BackendId]) -> Option<Mirror> {
    let mut table = Section::of(context.report, node, "`mirror`", span)?;
    let report = context.report;
    table.require("backend", "add backend = \"NAME\" of a [backend.NAME]");
    let found = table.string("backend");
    let backend = found.and_then(|found| context.backends.resolve(report, found)).map(BackendId);
    if let Some(found) = found.filter(|_| backend.is_some_and(|backend| own.contains(&backend))) {
        let what = format!("\"{}\" is where this route leads anyway", shown(found.value));
        report.error(found.span, what, "name another backend, which may have the same servers");
    }
    let millionths = percent(&mut table).unwrap_or(MILLIONTHS);
    let body_bytes_max = table.size_or("body", 0..=MIRRORED_BODY_BYTES_MAX, 64 * 1024);
    let in_flight_max = table.integer_or("in_flight", 1..=10_000, 64);
    if found.is_none() {
        context.backends.miss();
    }
    table.close();
    Some(Mirror { backend: backend?, millionths, body_bytes_max, in_flight_max })
}

/// Reads `percent` as millionths.
fn percent(table: &mut Section<'_, '_>) -> Option<u32> {
    let report = table.report;
    table.default_is("percent", || 100.into());
    let Entry { node, .. } = table.forms("percent", &[Form::Number(0.0..=100.0)])?;
    let number = match &node.value {
        Value::Integer(number) => *number as f64,
        Value::Float => report.written(node.span).replace('_', "").parse().unwrap_or(f64::NAN),
        _ => return mismatch(report, "percent", "a number such as 5", node),
    };
    let millionths = (number * f64::from(MILLIONTHS) / 100.0).round();
    if !(0.0..=100.0).contains(&number) || (number > 0.0 && millionths == 0.0) {
        report.error(
            node.span,
            "`percent` is not between 0 and 100",
            "write 5 for one request in twenty; the least is 0.0001",
        );
        return None;
    }
    Some(millionths as u32)
}

/// Says which key of a route needs a backend, where it has none.
pub(super) fn without_backend(section: &mut Section<'_, '_>) {
    for key in ["sticky", "fallback", "timeouts", "retries", "hedge", "priority", "buffer", "throttle", "mirror"] {
        let Some(Entry { key_span, .. }) = section.entry(key) else { continue };
        let what = format!("`{key}` is about a backend, and this route has none");
        section.report.error(*key_span, what, "remove it, or give the route a `backend`");
    }
}
