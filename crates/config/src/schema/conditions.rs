//! `match` of `[[route]]`: conditions on what a request is beside its listener, host and path.

use super::facts as spelling;
use crate::describe::Form;
use crate::model::{ClientFact, Conditions, FactCondition, GrpcCondition, Network, TextCondition, TextTest, TlsFact};
use crate::report::Report;
use crate::text::Span;
use crate::tree::{Entry, Node, Value};
use crate::walk::{Found, Section, mismatch, string};
use crate::wording::shown;
use crate::{address, pattern};

/// Conditions of one kind, and bytes of one of their texts.
const CONDITIONS_MAX: usize = 32;
const TEXT_BYTES_MAX: usize = 1024;
/// Networks of one condition.
const NETWORKS_MAX: usize = 1024;
const METHOD_BYTES_MAX: usize = 24;
const TEXT_FORMS: &str = "a string, or one of { exact = \"TEXT\" }, { prefix = \"TEXT\" }, { regex = \"PATTERN\" } and \
                          { present = true }";

pub(crate) fn conditions(mut section: Section<'_, '_>) -> Conditions {
    let errors = section.report.errors();
    let method = methods(&mut section);
    let header = texts(&mut section, "header", header_name);
    let query = texts(&mut section, "query", any_name);
    let cookie = texts(&mut section, "cookie", token);
    let source = networks(&mut section, "source");
    let report = section.report;
    let of_client = |fact, span, test| spelling::of_client(report, fact, span, test);
    let client = section.table("client").map(|section| facts(section, &ClientFact::ALL, of_client)).unwrap_or_default();
    let of_tls = |fact, span, test| spelling::of_tls(report, fact, span, test);
    let tls = section.table("tls").map(|section| facts(section, &TlsFact::ALL, of_tls)).unwrap_or_default();
    let grpc = section.table("grpc").and_then(grpc);
    let port = ports(&mut section);
    let host = host(&mut section);
    let conditions = Conditions { method, header, query, cookie, source, client, tls, grpc, port, host };
    let (span, report) = (section.span, section.report);
    section.close();
    if conditions.is_empty() && report.errors() == errors && report.is_whole() {
        report.warning(span, "`match` has no conditions", "remove it, or give it a condition");
    }
    if spelling::contradict(&conditions.client) {
        let what = "this route can never match: `client` asks for a certificate, and for none";
        report.warning(span, what, "remove `present = false`, or the others");
    }
    if conditions.grpc.is_some() && !conditions.method.is_empty() && !conditions.method.iter().any(|one| one == "POST")
    {
        let what = "this route can never match: calls of gRPC are POST, which `method` leaves out";
        report.warning(span, what, "remove `method`, or `grpc`");
    }
    conditions
}

fn methods(section: &mut Section<'_, '_>) -> Vec<String> {
    let report = section.report;
    let Some(entry) = section.forms("method", &[Form::String, Form::List(&[Form::String])]) else { return Vec::new() };
    let one = |node| {
        let found = string(report, "method", node)?;
        let text = found.value;
        if token(text).is_none() || text.len() > METHOD_BYTES_MAX {
            let what = format!("\"{}\" is not a method", shown(text));
            report.error(found.span, what, "write a token such as \"GET\"");
            return None;
        }
        if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
            let what = format!("methods are compared with case: \"{}\" is not \"{}\"", text, text.to_ascii_uppercase());
            report.warning(found.span, what, "write it in upper case");
        }
        if matches!(text, "CONNECT" | "TRACE") {
            let what = format!("requests with {text} are refused before any route is asked for");
            report.warning(found.span, what, "remove it");
        }
        Some(text.to_string())
    };
    list(report, entry, "method", one)
}

/// One network, or several.
pub(super) fn networks(section: &mut Section<'_, '_>, key: &'static str) -> Vec<Network> {
    let report = section.report;
    let Some(entry) = section.forms(key, &[Form::String, Form::List(&[Form::String])]) else { return Vec::new() };
    let networks = list(report, entry, key, |node| {
        let found = string(report, key, node)?;
        address::network(found.value).map_err(|(what, fix)| report.error(found.span, what, fix)).ok()
    });
    if networks.len() > NETWORKS_MAX {
        let what = format!("`{key}` has more than {NETWORKS_MAX} networks");
        report.error(entry.key_span, what, "write larger networks, as in \"10.0.0.0/8\"");
    }
    networks
}

/// Conditions on facts, each of which is a key. `known` gives a condition as the fact's texts are written.
fn facts<F: Copy>(
    mut section: Section<'_, '_>,
    all: &[(&'static str, F)],
    known: impl Fn(F, Span, TextTest) -> Option<TextTest>,
) -> Vec<FactCondition<F>> {
    let report = section.report;
    let (span, errors) = (section.span, report.errors());
    let conditions = all.iter().filter_map(|(name, fact)| {
        let entry = section.forms(name, &[Form::String, Form::Table])?;
        let test = test(report, name, &entry.node)?;
        Some(FactCondition { fact: *fact, test: known(*fact, entry.node.span, test)? })
    });
    let conditions: Vec<_> = conditions.collect();
    if !section.close() && conditions.is_empty() && report.errors() == errors && report.is_whole() {
        let names: Vec<_> = all.iter().map(|(name, _)| format!("`{name}`")).collect();
        report.error(span, "nothing is asked here", format!("give it one of {}", names.join(", ")));
    }
    conditions
}

fn grpc(mut section: Section<'_, '_>) -> Option<GrpcCondition> {
    let report = section.report;
    let mut part = |name: &'static str| {
        let entry = section.forms(name, &[Form::String, Form::Table])?;
        let test = test(report, name, &entry.node)?;
        if let TextTest::Exact(text) = &test
            && (text.is_empty() || text.contains('/'))
        {
            let what = format!("\"{}\" is no {name} of gRPC", shown(text));
            report.error(entry.node.span, what, "write it without `/`, as in service = \"helloworld.Greeter\"");
        }
        Some(test)
    };
    let condition = GrpcCondition { service: part("service"), method: part("method") };
    section.close();
    Some(condition)
}

fn ports(section: &mut Section<'_, '_>) -> Vec<u16> {
    let report = section.report;
    let Some(entry) = section.forms("port", &[Form::Integer(1..=65_535), Form::List(&[Form::Integer(1..=65_535)])])
    else {
        return Vec::new();
    };
    list(report, entry, "port", |node| {
        let Value::Integer(value) = node.value else { return mismatch(report, "port", "an integer", node) };
        let port = u16::try_from(value).ok().filter(|port| *port > 0);
        if port.is_none() {
            report.error(node.span, format!("{value} is no port"), "use 1 to 65535");
        }
        port
    })
}

/// A condition on the host: names and `*.` in front of one are the route's own key.
fn host(section: &mut Section<'_, '_>) -> Option<TextTest> {
    let report = section.report;
    let entry = section.forms("host", &[Form::String, Form::Table])?;
    let test = test(report, "host", &entry.node)?;
    let text = match &test {
        TextTest::Prefix(text) | TextTest::Regex(text) => text,
        TextTest::Exact(_) | TextTest::Present | TextTest::Absent => {
            let fix =
                "write the route's `host`, or a pattern, as in match = { host = { regex = '^app[0-9]+[.]example$' } }";
            report.error(entry.node.span, "one name, or any, is no condition", fix);
            return None;
        }
    };
    let is_prefix = matches!(test, TextTest::Prefix(_));
    if is_prefix && text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        report.error(entry.node.span, "hosts are compared in lower case: none begins so", "write it in lower case");
    }
    Some(test)
}

/// One item, or an array of some.
pub(super) fn list<'n, 't, T>(
    report: &Report<'_>,
    entry: &'n Entry<'t>,
    key: &str,
    one: impl FnMut(&'n Node<'t>) -> Option<T>,
) -> Vec<T> {
    match &entry.node.value {
        Value::Array(items) if items.is_empty() => {
            report.error(entry.node.span, format!("`{key}` names none: nothing could ever match"), "name one");
            Vec::new()
        }
        Value::Array(items) => items.iter().filter_map(one).collect(),
        _ => [&entry.node].into_iter().filter_map(one).collect(),
    }
}

/// Conditions on texts by name. `name` gives a name as it is compared; none: there can be no such thing.
fn texts(
    section: &mut Section<'_, '_>,
    key: &'static str,
    name: impl Fn(&str) -> Option<String>,
) -> Vec<TextCondition> {
    let report = section.report;
    let Some(entry) = section.forms(key, &[Form::Texts]) else { return Vec::new() };
    let Value::Table(entries) = &entry.node.value else {
        mismatch::<()>(report, key, "a table such as { NAME = \"TEXT\" }", &entry.node);
        return Vec::new();
    };
    if entries.len() > CONDITIONS_MAX {
        let what = format!("`{key}` has more than {CONDITIONS_MAX} conditions");
        report.error(entry.key_span, what, "use a pattern, or more routes");
        return Vec::new();
    }
    let mut conditions: Vec<TextCondition> = Vec::new();
    for entry in entries {
        let Some(test) = test(report, key, &entry.node) else { continue };
        let Some(name) = name(&entry.key) else {
            let what = format!("\"{}\" cannot be the name of a {}", shown(&entry.key), thing(key));
            report.error(entry.key_span, what, "use letters, digits and `-`");
            continue;
        };
        if key == "header" && name == "host" {
            report.error(entry.key_span, "a host is no condition on a field", "write the route's `host`");
        }
        if let Some((what, fix)) = never(key, &name, &test) {
            report.warning(entry.node.span, format!("this route can never match: {what}"), fix);
        }
        if conditions.iter().any(|other| other.name == name) {
            let what = format!("`{key}` has \"{}\" twice: case does not tell fields apart", shown(&name));
            report.error(entry.key_span, what, "remove one of the two");
        }
        conditions.push(TextCondition { name, test });
    }
    conditions
}

/// Reason for which no request has such a text, and what to do.
fn never(key: &str, name: &str, test: &TextTest) -> Option<(String, &'static str)> {
    let (text, is_exact) = match test {
        TextTest::Exact(text) => (text.as_str(), true),
        TextTest::Prefix(text) => (text.as_str(), false),
        TextTest::Present | TextTest::Regex(_) => ("", false),
        TextTest::Absent => return None,
    };
    if key == "header" && matches!(name, "connection" | "transfer-encoding") {
        let what = format!("{name} is between the client and Propylon alone, and conditions do not see it");
        return Some((what, "remove the condition"));
    }
    let is_bared = text.starts_with([' ', '\t']) || is_exact && text.ends_with([' ', '\t']);
    match key {
        "header" | "cookie" if is_bared => {
            Some(("blanks around a value are no part of it (RFC 9110 §5.5)".into(), "remove the blank"))
        }
        "cookie" if text.contains(';') => {
            Some(("a `;` ends a cookie's value (RFC 6265 §4.2)".into(), "write the value in front of it"))
        }
        _ => None,
    }
}

fn thing(key: &str) -> &'static str {
    match key {
        "header" => "field",
        "cookie" => "cookie",
        _ => "parameter",
    }
}

fn test(report: &Report<'_>, key: &str, node: &Node<'_>) -> Option<TextTest> {
    if let Value::String(text) = &node.value {
        return bounded(report, Found { value: text.as_ref(), span: node.span }).map(TextTest::Exact);
    }
    let Value::Table(entries) = &node.value else { return mismatch(report, key, TEXT_FORMS, node) };
    let mut section = Section::of(report, node, &format!("`{key}`"), node.span)?;
    section.one_of(&["exact", "prefix", "regex", "present"]);
    let exact = section.string("exact").map(|found| bounded(report, found).map(TextTest::Exact));
    let prefix = section.string("prefix").map(|found| bounded(report, found).map(TextTest::Prefix));
    let regex = section.string("regex").map(|found| self::regex(report, found).map(TextTest::Regex));
    let present = section.boolean("present");
    let present = present.map(|found| Some(if found.value { TextTest::Present } else { TextTest::Absent }));
    let misspelt = section.close();
    let mut given = [exact, prefix, regex, present].into_iter().flatten();
    match (given.next(), given.next()) {
        (Some(test), None) => test,
        // The only one is wrong, and was said to be where it was read.
        (None, _) if misspelt || entries.len() == 1 || !report.is_whole() => None,
        _ => {
            report.error(node.span, "a condition is one thing", format!("write {TEXT_FORMS}"));
            None
        }
    }
}

fn bounded(report: &Report<'_>, found: Found<&str>) -> Option<String> {
    let text = found.value;
    if text.len() > TEXT_BYTES_MAX || text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        let what = format!("\"{}\" cannot be compared with", shown(text));
        report.error(found.span, what, format!("use up to {TEXT_BYTES_MAX} bytes without control characters"));
        return None;
    }
    Some(text.to_string())
}

/// A pattern, as it is written, if it can be compiled within bounds.
pub(crate) fn regex(report: &Report<'_>, found: Found<&str>) -> Option<String> {
    bounded(report, found)?;
    match pattern::compile(found.value) {
        Ok(_) => Some(found.value.to_string()),
        Err(regex::Error::CompiledTooBig(_)) => {
            let what =
                format!("\"{}\" is too large a pattern: a worker searches while others wait", shown(found.value));
            report.error(found.span, what, "write it with fewer and smaller repetitions, or more routes");
            None
        }
        Err(error) => {
            // The crate draws a picture over several lines; its last says what is wrong.
            let why = error.to_string();
            let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ").to_string();
            let what = format!("\"{}\" is not a pattern: {why}", shown(found.value));
            report.error(
                found.span,
                what,
                "see https://docs.rs/regex for the syntax; a `\\` in a TOML string is written twice, or use 'PATTERN'",
            );
            None
        }
    }
}

/// A name of a field, in lower case.
fn header_name(name: &str) -> Option<String> {
    token(name).map(|name| name.to_ascii_lowercase())
}

/// A token (RFC 9110 §5.6.2).
pub(crate) fn token(text: &str) -> Option<String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    (!text.is_empty() && text.bytes().all(is_token)).then(|| text.to_string())
}

fn any_name(name: &str) -> Option<String> {
    (!name.is_empty()).then(|| name.to_string())
}
