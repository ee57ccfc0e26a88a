//! `capacity` of `[cluster]`.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::url::{UrlKey, warn_of_plaintext, web_address};
use super::values::{HOUR, MILLISECOND, seconds};
use crate::describe::Form;
use crate::model::{CapacityRecipient, CapacitySettings};
use crate::report::Report;
use crate::tree::Node;
use crate::walk::{Found, Section, string};
use crate::wording::shown;

const ENGINES: RangeInclusive<i128> = 1..=10_000;
const SPARE: RangeInclusive<i128> = 0..=10_000;
const PERCENT: RangeInclusive<i128> = 1..=100;
const CONNECTIONS: RangeInclusive<i128> = 1..=100_000_000;
const WAIT: RangeInclusive<Duration> = MILLISECOND..=seconds(60);
const EVERY: RangeInclusive<Duration> = seconds(1)..=HOUR;
const HOOK_ITEMS_MAX: usize = 16;
const HOOK_BYTES_MAX: usize = 4096;
const HOOK_FIX: &str =
    "write the path of a program and its arguments, such as hook = [\"/usr/local/bin/engines\", \"edge\"]";
const WEBHOOK: UrlKey = UrlKey {
    key: "webhook",
    fix: "write a URL such as \"https://scaler.internal/engines\"",
    elsewhere: "what is secret may not be in it; a program, as in `hook`, can add it",
};

pub(super) fn capacity(section: Option<Section<'_, '_>>) -> Option<CapacitySettings> {
    let mut section = section?;
    let report = section.report;
    let default = CapacitySettings::default();
    let capacity = CapacitySettings {
        min: section.integer_or("min", ENGINES, default.min),
        max: section.integer_or("max", ENGINES, default.max),
        cpu_percent: section.integer_or("cpu", PERCENT, default.cpu_percent),
        connections: section.integer("connections", CONNECTIONS).map(|found| found.value),
        handshake_wait: section.duration_or("handshake_wait", WAIT, default.handshake_wait),
        spare: section.integer_or("spare", SPARE, default.spare),
        recipient: recipient(&mut section),
        every: section.duration_or("every", EVERY, default.every),
    };
    if capacity.min > capacity.max
        && let Some(entry) = section.entry("min").or(section.entry("max"))
    {
        let what = format!("`min` is above `max`, which is {}", capacity.max);
        report.error(entry.node.span, what, format!("use {} or less, or a greater `max`", capacity.max));
    }
    if capacity.spare >= capacity.max
        && let Some(entry) = section.entry("spare").or(section.entry("max"))
    {
        let what = format!("`spare` is {}, and `max` is {}: no engine is left to serve", capacity.spare, capacity.max);
        report.error(entry.node.span, what, "use a `spare` below `max`");
    }
    section.close();
    Some(capacity)
}

fn recipient(section: &mut Section<'_, '_>) -> Option<CapacityRecipient> {
    let report = section.report;
    let hook = section.list("hook", &[Form::String]).and_then(|list| hook(report, list));
    let webhook = section.string("webhook").and_then(|found| web_address(report, WEBHOOK, found));
    if let (Some(_), Some(second)) = (section.entry("hook"), section.entry("webhook")) {
        let what = "`hook` and `webhook` exclude each other: the number has one recipient";
        report.error(second.key_span, what, "remove one of the two");
    }
    match webhook {
        None => hook.map(CapacityRecipient::Hook),
        Some(address) => {
            warn_of_plaintext(report, "webhook", &address);
            Some(CapacityRecipient::Webhook(address))
        }
    }
}

fn hook(report: &Report<'_>, list: Found<&[Node<'_>]>) -> Option<Vec<String>> {
    if list.value.is_empty() || list.value.len() > HOOK_ITEMS_MAX {
        let what = format!("`hook` has {} items, and 1 to {HOOK_ITEMS_MAX} are possible", list.value.len());
        report.error(list.span, what, HOOK_FIX);
        return None;
    }
    let items: Option<Vec<_>> = list.value.iter().map(|node| string(report, "hook", node)).collect();
    let items = items?;
    if let Some(item) = items.iter().find(|item| item.value.len() > HOOK_BYTES_MAX || item.value.contains('\0')) {
        let fix = format!("write at most {HOOK_BYTES_MAX} bytes, none of them zero");
        report.error(item.span, "an item of `hook` cannot be handed to a program", fix);
        return None;
    }
    // A program that is looked for in PATH could be another one where the engine is started by a service manager.
    if let Some(program) = items.first()
        && !program.value.starts_with('/')
    {
        let what = format!("`hook`: \"{}\" is not the whole path of a program", shown(program.value));
        report.error(program.span, what, HOOK_FIX);
        return None;
    }
    Some(items.into_iter().map(|item| item.value.to_string()).collect())
}
