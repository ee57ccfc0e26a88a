//! Changes of requests and responses by Caddy, limits and compression.

use super::Reader;
use super::matchers::has_placeholder;
use crate::changes::{Changes, Compress, Kind, Side, with_facts};
use crate::words::Directive;

impl Reader<'_> {
    /// Changes that a directive without a matcher makes for its block.
    pub(super) fn change(&mut self, each: &Directive) {
        if !CHANGES.contains(&each.name()) {
            return;
        }
        let is_of_fields = ["header", "request_header"].contains(&each.name());
        if let (true, Some(inner)) = (is_of_fields && each.words.len() == 1, &each.block) {
            for line in inner.iter().filter(|line| line.name() != "defer") {
                let words = [&each.words[..1], &line.words].concat();
                self.change(&Directive { line: line.line, words, block: None });
            }
            return;
        }
        let key = match each.name() {
            "header" => "response",
            "encode" => "compress",
            "request_body" => "body_limit",
            _ => "request",
        };
        let is_of_some = each.word(1).starts_with(['/', '@']) && each.name() != "request_body";
        let from = if each.word(1) == "*" { 2 } else { 1 };
        let words = each.words.get(from..).unwrap_or_default();
        let mut trial = self.changes.clone();
        let done = if is_of_some {
            Err("a change for some requests is not carried over".into())
        } else {
            changed(each, words, &mut trial)
        };
        if done.is_ok() {
            self.changes = trial;
            return;
        }
        let what = done.err().unwrap_or_default();
        let is_set = each.name() == "request_header" && words.len() == 2 && !is_of_some;
        let rest = if is_set { self.changes.withhold(&words[0]) } else { "" };
        self.plan.note(each.line, each.text(), format!("{what}; write `{key}` in the routes that it is for{rest}"));
    }
}

/// Directives that change, limit or compress what goes through.
pub(super) const CHANGES: &[&str] = &["header", "request_header", "encode", "request_body", "uri", "rewrite"];

/// A value with Caddy's placeholders, where there are facts for them.
pub(super) fn value(text: &str) -> Option<String> {
    const FACTS: &[(&str, &str)] = &[
        ("{remote_host}", "{client.ip}"),
        ("{http.request.remote.host}", "{client.ip}"),
        ("{client_ip}", "{request.source}"),
        ("{remote_port}", "{client.port}"),
        ("{host}", "{request.host}"),
        ("{method}", "{request.method}"),
        ("{scheme}", "{request.scheme}"),
        ("{path}", "{request.path}"),
        ("{uri}", "{request.path}{request.query}"),
        ("{upstream_hostport}", "{upstream.server}"),
        ("{http.reverse_proxy.upstream.hostport}", "{upstream.server}"),
    ];
    with_facts(text, '{', FACTS)
}

/// A change of a field: `NAME VALUE`, `+NAME VALUE`, `-NAME`.
pub(super) fn field(words: &[String], side: Side, changes: &mut Changes) -> Result<(), String> {
    let name = words.first().map_or("", String::as_str);
    let value = || {
        let text = words.get(1).map_or("", String::as_str);
        value(text).ok_or("its value is made of what is no fact here".to_owned())
    };
    match (name.chars().next(), words.len()) {
        (Some('-'), 1) => changes.field((side, Kind::Remove), &name[1..], ""),
        (Some('+'), 2) => changes.line(side, &name[1..], &value()?),
        (Some('>'), 2) => changes.field((side, Kind::Set), &name[1..], &value()?),
        (Some('?'), _) | (_, 0 | 1) => Err("a change of this kind is not carried over".into()),
        (Some(_), 2) if name.eq_ignore_ascii_case("host") && side == Side::Request => match words[1].as_str() {
            "{host}" | "{http.request.host}" => Ok(()),
            host => changes.host(&value().unwrap_or(host.to_owned())),
        },
        (Some(_), 2) => changes.field((side, Kind::Set), name, &value()?),
        _ => Err("a change of this kind is not carried over".into()),
    }
}

/// Bytes, with the units of Caddy.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1000,
        "kib" => 1 << 10,
        "m" | "mb" => 1_000_000,
        "mib" => 1 << 20,
        "g" | "gb" => 1_000_000_000,
        "gib" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// Makes the change of a directive, of which these words are behind its matcher.
fn changed(each: &Directive, words: &[String], changes: &mut Changes) -> Result<(), String> {
    let word = |index: usize| words.get(index).map_or("", String::as_str);
    match (each.name(), word(0)) {
        ("header" | "request_header", _) => {
            let side = if each.name() == "header" { Side::Response } else { Side::Request };
            field(words, side, changes)
        }
        ("encode", _) => {
            let mut compress = Compress { encodings: words.to_vec(), minimum: Some(512), ..Compress::default() };
            for inner in each.inner() {
                match inner.name() {
                    "gzip" | "zstd" | "br" => compress.encodings.push(inner.name().to_owned()),
                    "minimum_length" => compress.minimum = inner.word(1).parse().ok(),
                    _ => return Err("what it asks of responses is not carried over".into()),
                }
            }
            if compress.encodings.is_empty() {
                compress.encodings.extend(["zstd".to_owned(), "gzip".to_owned()]);
            }
            changes.compress(&compress)
        }
        ("request_body", _) => {
            let size = each.find("max_size").and_then(|size| bytes(size.word(1)));
            changes.body_limit(size.filter(|_| each.inner().len() == 1).ok_or("it is no size alone")?)
        }
        ("uri", _) if words.iter().any(|word| has_placeholder(word)) => {
            Err("it is made of what is no fact here".into())
        }
        ("uri", "strip_prefix") => changes.path("strip", word(1).trim_end_matches('/')),
        ("uri", "path_regexp") => changes.path_regex(word(1), word(2)),
        ("rewrite", target) => match target.strip_suffix("{uri}") {
            Some(prefix) if prefix.starts_with('/') && !prefix.contains('{') => {
                changes.path_regex("^", &prefix.replace('$', "$$"))
            }
            None if target.starts_with('/') && !target.contains(['{', '?']) => changes.path("replace", target),
            _ => Err("it is made of what is no path".into()),
        },
        _ => Err("a change of this kind is not carried over".into()),
    }
}
