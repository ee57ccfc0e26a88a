//! `limit` of `[[route]]`

use std::collections::HashMap;

use super::client_auth::trusts;
use super::conditions::networks;
use super::{balance, route, values};
use crate::context::{Context, RouteDraft};
use crate::describe::Form;
use crate::model::{Amount, Limit, LimitKey, Per, Rate, ThrottleKey};
use crate::report::Report;
use crate::tree::{Node, Value};
use crate::units;
use crate::walk::{Found, Section, mismatch};
use crate::wording::{is_claim, shown};

const LIMITS_MAX: usize = 16;
const PARTS_MAX: usize = 8;
const AMOUNTS: [&str; 3] = ["rate", "bytes", "requests"];
const WORDS: [(&str, LimitKey); 6] = [
    ("source", LimitKey::Source),
    ("host", LimitKey::Host),
    ("path", LimitKey::Path),
    ("certificate", LimitKey::Certificate),
    ("ja4", LimitKey::Ja4),
    ("user", LimitKey::User),
];
const ALL: &str = "all";
const KEY_FORM: &str = "\"source\", \"host\", \"path\", \"certificate\", \"ja4\", \"user\", { header = \"NAME\" }, \
                        { cookie = \"NAME\" }, a list of these, or \"all\"";
const REQUESTS_MAX: i128 = 1_000_000;
/// A faster rate has no meaning at the resolution of nanoseconds.
const PER_SECOND_MAX: u64 = 1_000_000;
const BYTES_PER_SECOND_MAX: u64 = 1 << 40;
const BURST_MAX: u64 = 1 << 50;
const FILL_SECONDS_MAX: u64 = 366 * 24 * 3600;

pub(crate) fn limits(context: &Context<'_, '_>, section: &mut Section<'_, '_>) -> Vec<Limit> {
    let report = context.report;
    let Some(entry) = section.forms("limit", &[Form::Table, Form::List(&[Form::Table])]) else {
        return Vec::new();
    };
    match &entry.node.value {
        Value::Array(items) if items.is_empty() => {
            report.error(
                entry.node.span,
                "`limit` is empty",
                "write a limit such as { rate = \"10/s\" }, or leave it out",
            );
            Vec::new()
        }
        Value::Array(items) => {
            if items.len() > LIMITS_MAX {
                let what = format!("`limit` has more than {LIMITS_MAX} limits");
                report.error(entry.key_span, what, "use fewer");
            }
            items.iter().filter_map(|item| limit(context, item)).collect()
        }
        Value::Table(_) => limit(context, &entry.node).into_iter().collect(),
        _ => mismatch(report, "limit", "a limit such as { rate = \"10/s\" }, or a list of these", &entry.node)
            .unwrap_or_default(),
    }
}

fn limit(context: &Context<'_, '_>, node: &Node<'_>) -> Option<Limit> {
    let report = context.report;
    let mut section = Section::of(report, node, "`limit`", node.span)?;
    section.any_of(&[&["rate"], &["bytes"], &["requests"], &["deny"], &["deny_files"]]);
    let errors = report.errors();
    let name = values::label(&mut section, "name", "a limit");
    let amount = amount(&mut section);
    let key = key(&mut section);
    let ipv4_prefix = section.integer_or("ipv4_prefix", 1..=32, 32);
    let ipv6_prefix = section.integer_or("ipv6_prefix", 1..=128, 64);
    let keys = section.integer_or("keys", 64..=(1 << 22), Limit::KEYS);
    let (exempt, deny) = (networks(&mut section, "exempt"), networks(&mut section, "deny"));
    let fix = "name a file, or leave it out";
    let exempt_files = trusts(context, &mut section, "exempt_files", fix);
    let deny_files = trusts(context, &mut section, "deny_files", fix);
    let is_bare = amount.is_none() && section.node("deny").is_none() && section.node("deny_files").is_none();
    if report.errors() == errors && !is_bare {
        without_effect(&mut section, amount.is_some(), &key);
    }
    let misspelt = section.close();
    if is_bare && !misspelt && report.errors() == errors && report.is_whole() {
        let fix = "give it one of `rate`, `bytes` and `requests`, or a list of those to `deny`";
        report.error(node.span, "this limit allows everything", fix);
    }
    (report.errors() == errors).then(|| Limit {
        name,
        label: String::new(),
        amount,
        key,
        ipv4_prefix,
        ipv6_prefix,
        keys,
        exempt,
        exempt_files,
        deny,
        deny_files,
        at: report.at(node.span),
    })
}

/// Keys that change nothing where the limit is what it is.
fn without_effect(section: &mut Section<'_, '_>, has_amount: bool, key: &[LimitKey]) {
    let has_source = key.contains(&LimitKey::Source) || key.contains(&LimitKey::User);
    let rules = [
        ("ipv4_prefix", has_source && has_amount, "`key` is \"source\" or \"user\""),
        ("ipv6_prefix", has_source && has_amount, "`key` is \"source\" or \"user\""),
        ("keys", has_amount && !key.is_empty(), "there are several keys to count for"),
        ("burst", section.node("rate").is_some() || section.node("bytes").is_some(), "there is a `rate` or `bytes`"),
    ];
    for (key, has_effect, unless) in rules {
        if let Some(entry) = section.entry(key).filter(|_| !has_effect) {
            section.report.error(entry.key_span, format!("`{key}` has no effect unless {unless}"), "remove it");
        }
    }
}

fn amount(section: &mut Section<'_, '_>) -> Option<Amount> {
    let report = section.report;
    let rate = section.string("rate");
    let bytes = section.string("bytes");
    let requests = section.integer("requests", 1..=REQUESTS_MAX);
    let burst = section.size("burst", 1..=BURST_MAX);
    let mut given = AMOUNTS.into_iter().filter_map(|key| section.entry(key));
    if let (Some(first), Some(second)) = (given.next(), given.next()) {
        let what = format!("this limit has both `{}` and `{}`", first.key, second.key);
        report.error(second.key_span, what, "write two limits, in a list: a request has to keep both");
        return None;
    }
    let with_burst = |(count, per), span| {
        let rate = Rate { count, per, burst: burst.map_or(count, |found| found.value) };
        if rate.burst / rate.count.max(1) * per.duration().as_secs() > FILL_SECONDS_MAX {
            report.error(span, "`burst` takes longer than a year to come back at this rate", "use a smaller one");
        }
        rate
    };
    if let Some(Found { value, span }) = rate {
        let read = |text: &str| text.parse::<u64>().map_err(|_| "write a whole number and a time".to_string());
        let fix = "write it as in \"10/s\", \"100/m\", \"1000/h\" or \"5000/d\"";
        return per_time(report, ("rate", fix), Found { value, span }, read, PER_SECOND_MAX)
            .map(|rate| Amount::Rate(with_burst(rate, span)));
    }
    if let Some(Found { value, span }) = bytes {
        let fix = "write it as in \"1MiB/s\" or \"10GB/d\"";
        return per_time(report, ("bytes", fix), Found { value, span }, units::size, BYTES_PER_SECOND_MAX)
            .map(|rate| Amount::Bytes(with_burst(rate, span)));
    }
    requests.map(|found| Amount::Requests(found.value))
}

/// A count and a time, as in `10/s`.
fn per_time(
    report: &Report<'_>,
    (key, fix): (&str, &str),
    found: Found<&str>,
    read: impl Fn(&str) -> Result<u64, String>,
    per_second_max: u64,
) -> Option<(u64, Per)> {
    let wrong = || {
        let what = format!("`{key}`: \"{}\" is not a rate", shown(found.value));
        report.error(found.span, what, fix);
        None
    };
    let Some((count, per)) = found.value.split_once('/') else { return wrong() };
    let per = match per.trim() {
        "s" | "sec" | "second" => Per::Second,
        "m" | "min" | "minute" => Per::Minute,
        "h" | "hour" => Per::Hour,
        "d" | "day" => Per::Day,
        _ => return wrong(),
    };
    let Ok(count) = read(count.trim()) else { return wrong() };
    if count == 0 {
        report.error(found.span, format!("`{key}` is 0: no request could pass"), "use 1 or more, or a list to `deny`");
        return None;
    }
    if count / per.duration().as_secs() > per_second_max {
        report.error(found.span, format!("`{key}` is too large"), format!("use {per_second_max} a second or less"));
        return None;
    }
    Some((count, per))
}

/// `key` of a `throttle`, and what goes with it; `None`: there is none.
pub(crate) fn throttle_key(section: &mut Section<'_, '_>) -> Option<ThrottleKey> {
    let parts = key_parts(section);
    let ipv4_prefix = section.integer_or("ipv4_prefix", 1..=32, 32);
    let ipv6_prefix = section.integer_or("ipv6_prefix", 1..=128, 64);
    let keys = section.integer_or("keys", 64..=(1 << 22), Limit::KEYS);
    let known = parts.as_deref().unwrap_or_default();
    let has_source = known.contains(&LimitKey::Source) || known.contains(&LimitKey::User);
    let rules = [
        ("ipv4_prefix", has_source, "`key` is \"source\" or \"user\""),
        ("ipv6_prefix", has_source, "`key` is \"source\" or \"user\""),
        ("keys", !known.is_empty(), "`key` tells requests apart"),
    ];
    for (key, has_effect, unless) in rules {
        if let Some(entry) = section.entry(key).filter(|_| !has_effect) {
            section.report.error(entry.key_span, format!("`{key}` has no effect unless {unless}"), "remove it");
        }
    }
    parts.map(|parts| ThrottleKey { parts, ipv4_prefix, ipv6_prefix, keys })
}

fn key(section: &mut Section<'_, '_>) -> Vec<LimitKey> {
    section.default_is("key", || "source".into());
    key_parts(section).unwrap_or_else(|| vec![LimitKey::Source])
}

/// Parts of a key that is written; none of them is `"all"`.
fn key_parts(section: &mut Section<'_, '_>) -> Option<Vec<LimitKey>> {
    let report = section.report;
    let mut words: Vec<&'static str> = WORDS.iter().map(|(word, _)| *word).collect();
    let parts: &[Form<'_>] = &[Form::Words(&words.clone()), Form::Table];
    words.push(ALL);
    let entry = section.forms("key", &[Form::Words(&words), Form::Table, Form::List(parts)])?;
    let key: Vec<LimitKey> = match &entry.node.value {
        Value::String(text) if text == ALL => return Some(Vec::new()),
        Value::Array(items) if items.is_empty() => {
            report.error(entry.node.span, "`key` is empty", "write \"all\" for one key of all requests");
            return Some(Vec::new());
        }
        Value::Array(items) => items.iter().filter_map(|item| part(report, item)).collect(),
        _ => part(report, &entry.node).into_iter().collect(),
    };
    if key.len() > PARTS_MAX {
        report.error(entry.key_span, format!("`key` has more than {PARTS_MAX} parts"), "use fewer");
    }
    if (1..key.len()).any(|place| key[..place].contains(&key[place])) {
        report.error(entry.key_span, "`key` has a part twice", "remove one of the two");
    }
    Some(key)
}

fn part(report: &Report<'_>, node: &Node<'_>) -> Option<LimitKey> {
    match &node.value {
        Value::String(text) => {
            let word = WORDS.iter().find(|(word, _)| word == text);
            if word.is_none() {
                let what = format!("`key` cannot have \"{}\" in it", shown(text));
                let fix = match text.as_ref() {
                    ALL => "\"all\" stands alone: key = \"all\"".to_string(),
                    "client-ip" | "ip" | "client.ip" => "write \"source\"".to_string(),
                    _ => format!("use {KEY_FORM}"),
                };
                report.error(node.span, what, fix);
            }
            word.map(|(_, part)| part.clone())
        }
        Value::Table(_) => named_part(report, node),
        _ => mismatch(report, "key", KEY_FORM, node),
    }
}

fn named_part(report: &Report<'_>, node: &Node<'_>) -> Option<LimitKey> {
    let mut table = Section::of(report, node, "`key`", node.span)?;
    table.one_of(&["header", "cookie"]);
    let (header, cookie) = (balance::name(&mut table, "header"), balance::name(&mut table, "cookie"));
    let given = usize::from(table.node("header").is_some()) + usize::from(table.node("cookie").is_some());
    let unknown = table.close();
    if given > 1 || given == 0 && !unknown {
        report.error(node.span, "a part of `key` is one of `header` and `cookie`", format!("use {KEY_FORM}"));
        return None;
    }
    let header = header.map(str::to_ascii_lowercase);
    if let Some(name) = header.as_ref().filter(|name| is_claim(name)) {
        let what = format!("the field {} is a claim that anybody can make", shown(name));
        let fix = "use \"source\", which goes by X-Forwarded-For of `trusted_proxies` where `forwarded` is \"append\"";
        report.error(node.span, what, fix);
        return None;
    }
    header.map(LimitKey::Header).or(cookie.map(|name| LimitKey::Cookie(name.to_string())))
}

/// Gives each limit its label. Limits of one name are one limit, and have to say the same.
pub(crate) fn label(report: &Report<'_>, drafts: &mut [RouteDraft]) {
    let mut named: HashMap<String, Limit> = HashMap::new();
    let mut numbers: HashMap<String, usize> = HashMap::new();
    for draft in drafts {
        let place = route::place(&draft.route);
        for limit in &mut draft.route.steps.limit {
            let Some(name) = limit.name.clone() else {
                let number = numbers.entry(place.clone()).or_default();
                *number += 1;
                // A `#` is in no name.
                limit.label = format!("{place}#{number}");
                continue;
            };
            limit.label.clone_from(&name);
            let first = named.entry(name).or_insert_with(|| limit.clone());
            if !first.says_the_same(limit) {
                let what = format!("the limit \"{}\" is another in {}", limit.label, report.line_at(first.at));
                report.error_at(limit.at, what, "limits of one name are one: write the same, or another name");
            }
        }
    }
}
