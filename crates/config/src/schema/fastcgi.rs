//! `fastcgi` of `[backend.NAME]`: where scripts are, which of them paths run, and what they are told.

use super::headers::pieces;
use crate::describe::Form;
use crate::model::{Fact, FastCgi, HealthCheck, ProbeKind, RequestHeader, Scripts, ServerProtocol};
use crate::report::Report;
use crate::text::Span;
use crate::tree::{Entry, Node, Value};
use crate::walk::{Found, Section, mismatch, string};
use crate::wording::shown;

const PATH_BYTES_MAX: usize = 512;
const SPLIT_BYTES_MAX: usize = 16;
const SCRIPTS_MAX: usize = 256;
const PARAMS_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 64;
const VALUE_BYTES_MAX: usize = 1024;
const BODY_BUFFER_MAX: u64 = 64 * 1024 * 1024;

/// Settings of FastCGI, which a backend has if its `protocol` is that.
pub(crate) fn fastcgi(section: &mut Section<'_, '_>, protocol: ServerProtocol) -> Option<FastCgi> {
    let report = section.report;
    let (is_spoken, entry) = (protocol == ServerProtocol::FastCgi, section.entry("fastcgi"));
    if is_spoken && entry.is_none() {
        section.missing("fastcgi", "add fastcgi = { root = \"/srv/app/public\" }: where the server has its scripts");
    }
    let table = section.table("fastcgi").map(table);
    if let Some(entry) = entry
        && !is_spoken
    {
        let what = "`fastcgi` has no effect: the servers are spoken to in HTTP";
        report.error(entry.key_span, what, "add protocol = \"fastcgi\", or remove it");
    }
    let table = table.filter(|_| is_spoken)?;
    for key in ["tls", "send_proxy_protocol", "http2"] {
        if let Some(entry) = section.entry(key) {
            let what = format!("`{key}` means nothing to servers of FastCGI");
            report.error(entry.key_span, what, "remove it, or use another `protocol`");
        }
    }
    for key in ["reuse", "max_idle", "min_idle", "max_requests", "max_lifetime"] {
        if let Some(entry) = section.entry(key).filter(|_| !table.keep) {
            let what = format!("`{key}` has no use: each connection carries one request");
            report.error(entry.key_span, what, "remove it, or write keep = true in `fastcgi`");
        }
    }
    Some(table)
}

/// Refuses probes in a protocol that these servers do not speak.
pub(crate) fn probes(section: &mut Section<'_, '_>, (protocol, health): (ServerProtocol, Option<&HealthCheck>)) {
    let is_of_grpc = |check: &HealthCheck| check.port.is_none() && matches!(check.kind, ProbeKind::Grpc { .. });
    if protocol == ServerProtocol::FastCgi
        && health.is_some_and(is_of_grpc)
        && let Some(entry) = section.entry("health")
    {
        let what = "`kind = \"grpc\"` asks in HTTP/2, which servers of FastCGI do not speak";
        section.report.error(entry.key_span, what, "ask for a `path`, or at a `port` of its own");
    }
}

fn table(mut section: Section<'_, '_>) -> FastCgi {
    let default = FastCgi::at_root("");
    section.require("root", "add root = \"/srv/app/public\": the folder of the scripts, as the server sees it");
    let root = section.string("root").and_then(|found| root(section.report, found)).unwrap_or_default();
    section.default_is("split", || ".php".into());
    let split = section.string("split").and_then(|found| split(section.report, found)).unwrap_or(default.split);
    section.default_is("index", || "/index.php".into());
    let index = section.string("index").and_then(|found| index(section.report, found, &split));
    let table = FastCgi {
        root,
        index: index.unwrap_or_else(|| format!("/index{split}")),
        scripts: scripts(&mut section, &split),
        split,
        keep: section.boolean_or("keep", default.keep),
        body_buffer: section.size_or("body_buffer", 0..=BODY_BUFFER_MAX, default.body_buffer),
        params: params(&mut section),
    };
    section.close();
    table
}

/// Whether a text is a path below which, or at which, something can be.
fn is_path(text: &str) -> bool {
    let is_bad = |segment: &str| segment == "." || segment == "..";
    text.starts_with('/')
        && text.len() <= PATH_BYTES_MAX
        && !text.contains(|letter: char| letter.is_control() || letter == '\\')
        && !text.split('/').any(is_bad)
}

fn root(report: &Report<'_>, found: Found<&str>) -> Option<String> {
    if !is_path(found.value) {
        let what = format!("`root`: \"{}\" is no absolute path", shown(found.value));
        report.error(found.span, what, "write it from the first / on, as in \"/srv/app/public\"");
        return None;
    }
    Some(found.value.trim_end_matches('/').into())
}

fn split(report: &Report<'_>, found: Found<&str>) -> Option<String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let Found { value, span } = found;
    if value.len() < 2 || value.len() > SPLIT_BYTES_MAX || !value.starts_with('.') || !value.bytes().all(fits) {
        let what = format!("`split`: \"{}\" is not the end of a script's name", shown(value));
        report.error(span, what, "write it from the dot on, as in \".php\"");
        return None;
    }
    Some(value.into())
}

fn index(report: &Report<'_>, found: Found<&str>, split: &str) -> Option<String> {
    let path = if found.value.starts_with('/') { found.value.into() } else { format!("/{}", found.value) };
    is_script(report, ("index", &path, found.span), split).then_some(path)
}

fn is_script(report: &Report<'_>, (key, path, span): (&str, &str, Span), split: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let is_script = is_path(path) && name.ends_with(split) && name.len() > split.len();
    if !is_script {
        let what = format!("`{key}`: \"{}\" is no path of a script", shown(path));
        report.error(span, what, format!("write it from the root on, with {split} at its end"));
    }
    is_script
}

fn scripts(section: &mut Section<'_, '_>, split: &str) -> Scripts {
    let report = section.report;
    section.default_is("scripts", || "index".into());
    let Some(entry) = section.forms("scripts", &[Form::Words(&["index", "any"]), Form::List(&[Form::String])]) else {
        return Scripts::Index;
    };
    let form = "\"index\", \"any\" or a list of paths such as [\"/admin/*.php\"]";
    match &entry.node.value {
        Value::String(word) if word == "index" => Scripts::Index,
        Value::String(word) if word == "any" => Scripts::Any,
        Value::Array(items) if items.is_empty() => {
            report.error(entry.node.span, "`scripts` names none", "name one, or write \"index\"");
            Scripts::Index
        }
        Value::Array(items) if items.len() > SCRIPTS_MAX => {
            let what = format!("`scripts` has more than {SCRIPTS_MAX} entries");
            report.error(entry.node.span, what, "write wider ones, as in \"/admin/*.php\"");
            Scripts::Index
        }
        Value::Array(items) => Scripts::Named(items.iter().filter_map(|item| script(report, item, split)).collect()),
        _ => mismatch(report, "scripts", form, &entry.node).unwrap_or(Scripts::Index),
    }
}

fn script(report: &Report<'_>, node: &Node<'_>, split: &str) -> Option<String> {
    let Found { value, span } = string(report, "scripts", node)?;
    if !is_script(report, ("scripts", value, span), split) {
        return None;
    }
    let (folder, name) = value.rsplit_once('/')?;
    if folder.contains('*') || name.matches('*').count() > 1 {
        let what = format!("`scripts`: \"{}\" has a `*` too many", shown(value));
        report.error(span, what, "one may stand in the last part of a path, for any part of a name");
        return None;
    }
    Some(value.into())
}

fn params(section: &mut Section<'_, '_>) -> Vec<RequestHeader> {
    let report = section.report;
    let Some(entry) = section.forms("params", &[Form::Strings]) else { return Vec::new() };
    let Value::Table(entries) = &entry.node.value else {
        let form = "a table such as { APP_ENV = \"production\" }";
        return mismatch(report, "params", form, &entry.node).unwrap_or_default();
    };
    if entries.len() > PARAMS_MAX {
        report.error(entry.key_span, "`params` has too many entries", format!("use at most {PARAMS_MAX}"));
        return Vec::new();
    }
    entries.iter().filter_map(|entry| param(report, entry)).collect()
}

fn param(report: &Report<'_>, entry: &Entry<'_>) -> Option<RequestHeader> {
    let name: &str = &entry.key;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(fits) {
        let what = format!("\"{}\" cannot be the name of a parameter", shown(name));
        report.error(entry.key_span, what, format!("use up to {NAME_BYTES_MAX} letters, digits and `_`"));
        return None;
    }
    if name == "CONTENT_LENGTH" {
        let fix = "remove it: it is the length of the body that is sent";
        report.error(entry.key_span, "CONTENT_LENGTH has a meaning of its own", fix);
        return None;
    }
    let found = string(report, "params", &entry.node)?;
    let value = pieces(report, found, VALUE_BYTES_MAX, &[Fact::ALL, Fact::OF_REQUESTS])?;
    Some(RequestHeader { name: name.into(), value })
}
