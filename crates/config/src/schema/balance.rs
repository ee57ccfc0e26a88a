//! `balance` of `[backend.NAME]`, and the keys that go with it

use std::ops::RangeInclusive;
use std::time::Duration;

use super::values::{HOUR, MILLISECOND, seconds};
use crate::describe::Form;
use crate::model::{Balance, Hash, HashKey, Server};
use crate::report::Report;
use crate::tree::{Entry, Node, Value};
use crate::walk::{Found, Section, mismatch};
use crate::wording::shown;

/// A table of 65,537 entries has ten for each of them.
const HASHED_SERVERS_MAX: usize = 6_553;
const DECAY: RangeInclusive<Duration> = MILLISECOND..=HOUR;
const DECAY_DEFAULT: Duration = seconds(10);
/// In percent. At 100 a server with one request more than its share is passed over.
const BOUND: RangeInclusive<f64> = 1.0..=100.0;
const BOUND_DEFAULT: u16 = 125;
const KEY_FORM: &str = "\"client-ip\", \"path\", { header = \"NAME\" } or { cookie = \"NAME\" }";
const NAME_BYTES_MAX: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    RoundRobin,
    Random,
    LeastConnections,
    P2cEwma,
    ConsistentHash,
    First,
}

pub(crate) fn balance(section: &mut Section<'_, '_>) -> Balance {
    let choices = [
        ("round-robin", Method::RoundRobin),
        ("random", Method::Random),
        ("least-connections", Method::LeastConnections),
        ("p2c-ewma", Method::P2cEwma),
        ("consistent-hash", Method::ConsistentHash),
        ("first", Method::First),
    ];
    let method = section.choice_or("balance", &choices, Method::RoundRobin);
    let decay = section.duration_or("ewma_decay", DECAY, DECAY_DEFAULT);
    let hash = hash(section);
    for (key, of, name) in
        [("ewma_decay", Method::P2cEwma, "p2c-ewma"), ("hash", Method::ConsistentHash, "consistent-hash")]
    {
        if let Some(entry) = section.entry(key).filter(|_| method != of) {
            let what = format!("`{key}` has no effect without balance = \"{name}\"");
            section.report.warning(entry.key_span, what, format!("add balance = \"{name}\", or remove it"));
        }
    }
    match method {
        Method::RoundRobin => Balance::RoundRobin,
        Method::Random => Balance::Random,
        Method::LeastConnections => Balance::LeastConnections,
        Method::P2cEwma => Balance::P2cEwma { decay },
        Method::ConsistentHash => Balance::ConsistentHash(hash),
        Method::First => Balance::First,
    }
}

/// Checks the servers beside the way in which they are picked.
pub(crate) fn check(section: &mut Section<'_, '_>, balance: &Balance, servers: &[Server]) {
    let report = section.report;
    let Some(entry) = section.entry("servers") else { return };
    if matches!(balance, Balance::ConsistentHash(_)) && servers.len() > HASHED_SERVERS_MAX {
        let what = format!("balance = \"consistent-hash\" has no room for {} servers", servers.len());
        report.error(entry.key_span, what, format!("use at most {HASHED_SERVERS_MAX}, or another `balance`"));
    }
    if !servers.is_empty() && servers.iter().all(|server| server.backup) {
        report.warning(entry.key_span, "every server is a backup, of nothing", "remove `backup` from some");
    }
}

fn hash(section: &mut Section<'_, '_>) -> Hash {
    let mut hash = Hash { key: HashKey::ClientIp, bound_percent: BOUND_DEFAULT };
    let Some(mut table) = section.table("hash") else {
        return hash;
    };
    if let Some(key) = key(&mut table) {
        hash.key = key;
    }
    if let Some(bound) = bound(&mut table) {
        hash.bound_percent = bound;
    }
    table.close();
    hash
}

/// Part of a request that is hashed.
pub(crate) fn key(table: &mut Section<'_, '_>) -> Option<HashKey> {
    let report = table.report;
    table.default_is("key", || "client-ip".into());
    let Entry { node, .. } = table.forms("key", &[Form::Words(&["client-ip", "path"]), Form::Table])?;
    match &node.value {
        Value::String(text) if text == "client-ip" => Some(HashKey::ClientIp),
        Value::String(text) if text == "path" => Some(HashKey::Path),
        Value::String(text) => {
            let what = format!("`key` cannot be \"{}\"", shown(text));
            report.error(node.span, what, format!("use {KEY_FORM}"));
            None
        }
        Value::Table(_) => named_key(report, node),
        _ => mismatch(report, "key", KEY_FORM, node),
    }
}

fn named_key(report: &Report<'_>, node: &Node<'_>) -> Option<HashKey> {
    let mut table = Section::of(report, node, "`key`", node.span)?;
    table.one_of(&["header", "cookie"]);
    let header = name(&mut table, "header");
    let cookie = name(&mut table, "cookie");
    let both = table.node("header").is_some() && table.node("cookie").is_some();
    let neither = table.node("header").is_none() && table.node("cookie").is_none();
    let unknown = table.close();
    if both || neither && !unknown {
        report.error(node.span, "`key` is one of `header` and `cookie`", format!("use {KEY_FORM}"));
        return None;
    }
    match header {
        Some(header) => Some(HashKey::Header(header.to_ascii_lowercase())),
        None => Some(HashKey::Cookie(cookie?.to_string())),
    }
}

/// The name of a field or a cookie: a token (RFC 9110 §5.6.2).
pub(crate) fn name<'r>(table: &mut Section<'r, '_>, key: &'static str) -> Option<&'r str> {
    let Found { value, span } = table.string(key)?;
    let report = table.report;
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if value.is_empty() || value.len() > NAME_BYTES_MAX || !value.bytes().all(is_token) {
        let what = format!("\"{}\" cannot be the name of a {key}", shown(value));
        report.error(span, what, format!("use up to {NAME_BYTES_MAX} letters, digits, `-` and `_`"));
        return None;
    }
    Some(value)
}

/// A factor, in percent.
fn bound(table: &mut Section<'_, '_>) -> Option<u16> {
    let report = table.report;
    table.default_is("bound", || (f64::from(BOUND_DEFAULT) / 100.0).into());
    let Entry { node, .. } = table.forms("bound", &[Form::Number(BOUND)])?;
    let number = match &node.value {
        Value::Integer(number) => *number as f64,
        Value::Float => report.written(node.span).replace('_', "").parse().unwrap_or(f64::NAN),
        Value::String(text) if report.is_substituted(node.span) => text.parse().unwrap_or(f64::NAN),
        _ => return mismatch(report, "bound", "a number such as 1.25", node),
    };
    let percent = (number * 100.0).round();
    if !BOUND.contains(&number) || percent <= 100.0 {
        let what = "`bound` is not between 1 and 100";
        report.error(node.span, what, "use 1.25 for a quarter more than a server's share; at least 1.01");
        return None;
    }
    Some(percent as u16)
}
