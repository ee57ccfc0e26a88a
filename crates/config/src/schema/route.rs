//! `[[route]]`

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::{answers, change, conditions, forwarding, steps, values};
use crate::context::{Context, RouteDraft};
use crate::describe::Form;
use crate::model::{
    Action, At, BackendId, Conditions, HostPattern, ListenerId, PathPattern, Redirect, RedirectPath, Respond, Route,
    Split, Steps,
};
use crate::report::Report;
use crate::text::Span;
use crate::tree::{Entry, Node, Value};
use crate::walk::{Found, Section, mismatch, number_of};
use crate::wording::shown;
use crate::{address, path};

/// Characters of a route's host and path in a label.
const PLACE_CHARS_MAX: usize = 96;
const REDIRECT_STATUS: u16 = 308;
const REDIRECT_STATUSES: [u16; 5] = [301, 302, 303, 307, 308];
const BODY_BYTES_MAX: usize = 64 * 1024;
const CONTENT_TYPE: &str = "text/plain; charset=utf-8";
const CONTENT_TYPE_BYTES_MAX: usize = 256;
const ACTION_FIX: &str = "give it exactly one of `backend`, `redirect` and `respond`";

pub(crate) fn routes(context: &Context<'_, '_>, top: &mut Section<'_, '_>) -> Vec<RouteDraft> {
    let report = context.report;
    let Some(entry) = top.forms("route", &[Form::List(&[Form::Table])]) else {
        return Vec::new();
    };
    match &entry.node.value {
        Value::Array(items) => {
            let mut drafts: Vec<RouteDraft> = items.iter().map(|item| route(context, item)).collect();
            label(report, &mut drafts);
            drafts
        }
        Value::Table(_) => {
            report.error(entry.key_span, "there can be several routes", "write [[route]] in double brackets");
            vec![route(context, &entry.node)]
        }
        _ => {
            mismatch::<()>(report, "route", "an array of tables", &entry.node);
            Vec::new()
        }
    }
}

fn route(context: &Context<'_, '_>, node: &Node<'_>) -> RouteDraft {
    let report = context.report;
    let mut draft = stand_in(report, node);
    let Some(mut section) = Section::of(report, node, "[[route]]", node.span) else {
        return draft;
    };
    section.title = "this route".to_string();
    draft.route.name = values::label(&mut section, "name", "a route");
    let errors = report.errors();
    let listener = section.string("listener");
    draft.route.listener = listener.and_then(|found| context.listeners.resolve(report, found)).map(ListenerId);
    if let Some(host) = section.string("host").and_then(|found| accepted(report, found, address::host_pattern)) {
        draft.route.host = host;
    }
    section.default_is("path", || "/".into());
    let path = section.forms("path", &[Form::String, Form::Table]);
    if let Some(path) = path.and_then(|entry| path_pattern(report, &entry.node)) {
        draft.route.path = path;
    }
    if let Some(section) = section.table("match") {
        draft.route.conditions = conditions::conditions(section);
    }
    // A listener that was given and is not known says nothing if a syntax error may have hidden it.
    let is_known = listener.is_none() || draft.route.listener.is_some();
    draft.complete = report.errors() == errors && is_known;
    let backend = forwarding::backend(context, &mut section);
    if let Some(action) = action(context, &mut section, backend.as_ref()) {
        draft.route.action = action;
    }
    draft.route.require_client_certificate = section.boolean_or("require_client_certificate", false);
    draft.route.steps = steps::steps(context, &mut section, (&draft.route.action, backend));
    section.close();
    draft
}

/// Gives each route its label: its name, or its host and path, with a number where others of the same come before it.
fn label(report: &Report<'_>, drafts: &mut [RouteDraft]) {
    let mut named: HashMap<String, At> = HashMap::new();
    let (mut numbers, mut taken): (HashMap<String, usize>, HashSet<String>) = Default::default();
    for RouteDraft { route, .. } in drafts {
        if let Some(name) = &route.name {
            route.label.clone_from(name);
            if let Some(first) = named.insert(name.clone(), route.at) {
                let what = format!("a route named \"{name}\" is there already, in {}", report.line_at(first));
                report.error_at(route.at, what, "give each route a `name` of its own");
            }
            continue;
        }
        let place = place(route);
        let number = numbers.entry(place.clone()).or_default();
        loop {
            *number += 1;
            // A `/` or a `~` is in no name.
            route.label = if *number == 1 { place.clone() } else { format!("{place}#{number}") };
            if taken.insert(route.label.clone()) {
                break;
            }
        }
    }
}

/// Host and path of a route, as labels have them.
pub(super) fn place(route: &Route) -> String {
    let (PathPattern::Prefix(path) | PathPattern::Exact(path) | PathPattern::Regex(path)) = &route.path;
    let separator = if path.starts_with('/') { "" } else { "~" };
    format!("{}{separator}{path}", route.host).chars().take(PLACE_CHARS_MAX).collect()
}

/// For every request, to no backend: what is not replaced is a default, or there is an error.
fn stand_in(report: &Report<'_>, node: &Node<'_>) -> RouteDraft {
    let route = Route {
        name: None,
        label: String::new(),
        listener: None,
        host: HostPattern::Any,
        path: PathPattern::Prefix("/".to_string()),
        conditions: Conditions::default(),
        action: Action::Backend(BackendId(usize::MAX)),
        require_client_certificate: false,
        steps: Steps::default(),
        at: report.at(node.span),
    };
    RouteDraft { route, span: node.span, complete: false }
}

/// The value as its type, or a problem.
fn accepted<T>(
    report: &Report<'_>,
    found: Found<&str>,
    accept: impl Fn(&str) -> Result<T, address::TextProblem>,
) -> Option<T> {
    accept(found.value).map_err(|(what, fix)| report.error(found.span, what, fix)).ok()
}

fn path_pattern(report: &Report<'_>, node: &Node<'_>) -> Option<PathPattern> {
    match &node.value {
        Value::String(text) => {
            let text = path_text(report, Found { value: text.as_ref(), span: node.span })?;
            Some(PathPattern::Prefix(text))
        }
        Value::Table(_) => {
            let mut section = Section::of(report, node, "`path`", node.span)?;
            section.one_of(&["exact", "regex"]);
            let (exact, regex) = (section.string("exact"), section.string("regex"));
            let is_known = !section.close();
            match (exact, regex) {
                (Some(exact), None) => path_text(report, exact).map(PathPattern::Exact),
                (None, Some(regex)) => conditions::regex(report, regex).map(PathPattern::Regex),
                _ => {
                    let fix = "write { exact = \"/PATH\" }, { regex = \"PATTERN\" }, or the prefix as a string";
                    if report.is_whole() && is_known {
                        report.error(node.span, "`path` is one of `exact` and `regex`", fix);
                    }
                    None
                }
            }
        }
        _ => mismatch(report, "path", "a string, { exact = \"/PATH\" } or { regex = \"PATTERN\" }", node),
    }
}

fn path_text(report: &Report<'_>, found: Found<&str>) -> Option<String> {
    let is_pattern = found.value.starts_with(['^', '~']);
    let pattern = shown(found.value.trim_start_matches(['~', '*', ' ']));
    let or_pattern = |fix| if is_pattern { format!("{fix}; or {{ regex = '{pattern}' }}") } else { fix };
    accepted(report, found, |text| path::check(text).map_err(|(what, fix)| (what, or_pattern(fix))))?;
    if let Some((what, fix)) = path::oddity(found.value) {
        report.warning(found.span, what, fix);
    } else if let Some(sign) = found.value.chars().find(|sign| "*{[".contains(*sign)) {
        let what = format!("the path \"{}\" has a `{sign}` in it, which stands for itself", shown(found.value));
        report.warning(found.span, what, "write { regex = \"PATTERN\" } for a pattern");
    }
    Some(found.value.to_string())
}

fn action(
    context: &Context<'_, '_>,
    section: &mut Section<'_, '_>,
    backend: Option<&(BackendId, Option<Split>)>,
) -> Option<Action> {
    let report = context.report;
    let actions = ["backend", "redirect", "respond"];
    section.one_of(&actions);
    let given: Vec<_> = actions.into_iter().filter_map(|key| section.entry(key)).collect();
    if given.is_empty() && report.is_whole() {
        report.error(section.span, "this route leads nowhere", ACTION_FIX);
    }
    for second in given.iter().skip(1) {
        let what = format!("this route has both `{}` and `{}`", given[0].key, second.key);
        report.error(second.key_span, what, ACTION_FIX);
    }
    let redirect = section.table("redirect").and_then(redirect);
    let respond = section.table("respond").and_then(|section| respond(section, context.base));
    let backend = backend.map(|(first, _)| Action::Backend(*first));
    backend.or(redirect.map(Action::Redirect)).or(respond.map(Action::Respond))
}

fn redirect(mut section: Section<'_, '_>) -> Option<Redirect> {
    let report = section.report;
    section.any_of(&[&["scheme"], &["host"], &["port"], &["path"]]);
    let errors = report.errors();
    let status = redirect_status(&mut section);
    let scheme = section.choice("scheme", &[("http", "http"), ("https", "https")]).map(|found| found.value.to_string());
    let host = section.string("host").and_then(|found| accepted(report, found, redirect_host));
    let port = section.integer("port", 1..=65_535).map(|found| found.value);
    let path = section.forms("path", &[Form::String, Form::Table]);
    let path = path.and_then(|entry| redirect_path(report, &entry.node));
    let span = section.span;
    section.close();
    if report.errors() > errors {
        return None;
    }
    if scheme.is_none() && host.is_none() && port.is_none() && path.is_none() {
        let fix = "give it at least one of `scheme`, `host`, `port` and `path`";
        report.error(span, "this redirect leads to where the request came from", fix);
    }
    Some(Redirect { status, scheme, host, port, path })
}

fn redirect_path(report: &Report<'_>, node: &Node<'_>) -> Option<RedirectPath> {
    match &node.value {
        Value::String(text) => {
            let found = Found { value: text.as_ref(), span: node.span };
            accepted(report, found, path::check_target)?;
            Some(RedirectPath::Fixed(found.value.to_string()))
        }
        Value::Table(_) => change::path_change(report, node).map(RedirectPath::Changed),
        _ => mismatch(report, "path", "a string, or a table such as { strip = \"/PREFIX\" }", node),
    }
}

pub(crate) fn redirect_status(section: &mut Section<'_, '_>) -> u16 {
    section.default_is("status", || REDIRECT_STATUS.into());
    let Some(Entry { node, .. }) = section.forms("status", &[Form::Integers(&REDIRECT_STATUSES)]) else {
        return REDIRECT_STATUS;
    };
    let Some(value) = number_of(section.report, node) else {
        return mismatch(section.report, "status", "an integer", node).unwrap_or(REDIRECT_STATUS);
    };
    let status = u16::try_from(value).ok().filter(|status| REDIRECT_STATUSES.contains(status));
    if status.is_none() {
        let what = format!("{value} is not the status of a redirect");
        section.report.error(node.span, what, "use 301, 302, 303, 307 or 308");
    }
    status.unwrap_or(REDIRECT_STATUS)
}

fn redirect_host(text: &str) -> Result<String, address::TextProblem> {
    if text.contains('*') {
        let what = format!("\"{}\": a redirect leads to one host", crate::wording::shown(text));
        return Err((what, "write it without `*`, or leave `host` out to keep the request's".into()));
    }
    address::host(text)
}

fn respond(mut section: Section<'_, '_>, base: &Path) -> Option<Respond> {
    let report = section.report;
    let status: u16 = section.integer_or("status", 200..=599, 200);
    section.default_is("body", || "".into());
    let body = section.string("body");
    let body_file = body_file(&mut section, status, body, base);
    section.default_is("content_type", || CONTENT_TYPE.into());
    let content_type = section.string("content_type").and_then(|found| content_type(report, found));
    section.close();
    if let Some(found) = body {
        check_body(report, status, found.value, found.span);
    }
    let guessed = || match &body_file {
        None => Some(CONTENT_TYPE),
        Some(found) => answers::type_of(&found.value),
    };
    let content_type = content_type.or_else(|| guessed().map(str::to_string));
    if let (Some(found), None) = (&body_file, &content_type) {
        let what = "the file's extension does not say what is in it";
        report.error(found.span, what, "add a `content_type`, such as \"application/octet-stream\"");
    }
    Some(Respond {
        status,
        body: body.map(|found| found.value.to_string()).unwrap_or_default(),
        body_file: body_file.map(|found| found.value),
        content_type: content_type.unwrap_or_default(),
    })
}

fn body_file(
    section: &mut Section<'_, '_>,
    status: u16,
    body: Option<Found<&str>>,
    base: &Path,
) -> Option<Found<PathBuf>> {
    let report = section.report;
    let found = section.string("body_file")?;
    let path = values::file(report, "body_file", found, base)?;
    if body.is_some() {
        report.error(found.span, "`respond` has both `body` and `body_file`", "remove one of the two");
    }
    if has_no_body(status) {
        report.error(found.span, format!("a response with status {status} has no body"), "remove `body_file`");
    }
    Some(Found { value: path, span: found.span })
}

/// RFC 9110 §6.4.1: such responses cannot have content; 205 is in the same place, §15.3.6.
fn has_no_body(status: u16) -> bool {
    matches!(status, 204 | 205 | 304)
}

fn check_body(report: &Report<'_>, status: u16, body: &str, span: Span) {
    if body.len() > BODY_BYTES_MAX {
        let fix = format!("write at most {} KiB, or name a file as `body_file`", BODY_BYTES_MAX >> 10);
        report.error(span, "`body` is too large", fix);
    }
    if has_no_body(status) && !body.is_empty() {
        report.error(span, format!("a response with status {status} has no body"), "remove `body`");
    }
}

fn content_type(report: &Report<'_>, found: Found<&str>) -> Option<String> {
    let text = found.value;
    let printable = text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    let shaped = text.split_once('/').is_some_and(|(kind, rest)| !kind.is_empty() && !rest.is_empty());
    if !printable || !shaped || text.len() > CONTENT_TYPE_BYTES_MAX || text.trim() != text {
        let what = format!("\"{}\" is not a content type", crate::wording::shown(text));
        report.error(found.span, what, "write it as in \"text/html; charset=utf-8\"");
        return None;
    }
    Some(text.to_string())
}
