//! `request`, `response` and `security_headers` of `[[route]]`, and changes of paths.

use super::conditions;
use super::headers::{is_name, pieces};
use crate::describe::Form;
use crate::model::{
    CookieChanges, Fact, FieldChanges, HostChange, LocationChange, PathChange, Piece, QueryChanges, RequestChanges,
    RequestHeader, ResponseChanges, SameSite, SecurityHeaders,
};
use crate::report::Report;
use crate::tree::{Node, Value};
use crate::walk::{Found, Section, mismatch, string};
use crate::wording::shown;
use crate::{address, path, pattern};

/// Fields, or parameters, of one kind of change, and bytes of a value.
const LINES_MAX: usize = 32;
const VALUE_BYTES_MAX: usize = 4096;
const NAME_BYTES_MAX: usize = 64;
const PARAMETER_BYTES_MAX: usize = 128;
const FACTS: &[&[(&str, Fact)]] = &[Fact::ALL, Fact::OF_REQUESTS];

/// Names that frame messages, are for one hop, or that Propylon writes by rules of their own, in both directions.
const RESERVED: &[&str] = &[
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "date",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "max-forwards",
    "proxy",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "proxy-connection",
    "sec-websocket-accept",
    "sec-websocket-extensions",
    "sec-websocket-key",
    "sec-websocket-version",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Names of [`RESERVED`]'s kind in requests alone.
const RESERVED_IN_REQUESTS: &[&str] = &[
    "client-cert",
    "client-cert-chain",
    "forwarded",
    "traceparent",
    "tracestate",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
];
/// Names of fields whose values are no lists (RFC 9110 §5.3).
const SINGLE: &[&str] = &[
    "age",
    "authorization",
    "content-disposition",
    "content-location",
    "content-security-policy",
    "content-type",
    "cookie",
    "etag",
    "expires",
    "last-modified",
    "location",
    "origin",
    "referer",
    "retry-after",
    "server",
    "set-cookie",
    "strict-transport-security",
    "user-agent",
    "via",
    "x-frame-options",
];
/// Names of [`SINGLE`] that may have several lines all the same.
const SEVERAL: &[&str] = &["content-security-policy", "set-cookie"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Request,
    Response,
}

pub(crate) fn request(mut section: Section<'_, '_>) -> RequestChanges {
    let errors = section.report.errors();
    let fields = fields(&mut section, Direction::Request);
    let report = section.report;
    let host = section.string("host").and_then(|found| host(report, found));
    let path = section.forms("path", &[Form::Table]).and_then(|entry| match &entry.node.value {
        Value::Table(_) => path_change(report, &entry.node),
        _ => mismatch(report, "path", "a table such as { strip = \"/PREFIX\" }", &entry.node),
    });
    let query = section.table("query").map(query).unwrap_or_default();
    let changes = RequestChanges { fields, host, path, query };
    close(section, errors, changes.is_empty());
    changes
}

pub(crate) fn response(mut section: Section<'_, '_>) -> ResponseChanges {
    let errors = section.report.errors();
    let fields = fields(&mut section, Direction::Response);
    let cookies = section.table("cookies").map(cookies).unwrap_or_default();
    let location = locations(&mut section);
    let changes = ResponseChanges { fields, cookies, location };
    close(section, errors, changes.is_empty());
    changes
}

/// Changes of what goes to a backend of a list.
pub(crate) fn side_request(mut section: Section<'_, '_>) -> FieldChanges {
    let errors = section.report.errors();
    let changes = fields(&mut section, Direction::Request);
    close(section, errors, changes.is_empty());
    changes
}

/// Changes of what comes from a backend of a list.
pub(crate) fn side_response(mut section: Section<'_, '_>) -> FieldChanges {
    let errors = section.report.errors();
    let changes = fields(&mut section, Direction::Response);
    close(section, errors, changes.is_empty());
    changes
}

pub(crate) fn security_headers(section: &mut Section<'_, '_>) -> Option<SecurityHeaders> {
    section.choice("security_headers", &[("strict", SecurityHeaders::Strict)]).map(|found| found.value)
}

/// Reports unknown keys, or else that nothing is changed.
/// `errors`: how many there were before it was read.
fn close(section: Section<'_, '_>, errors: usize, is_empty: bool) {
    let (report, span, title) = (section.report, section.span, section.title.clone());
    if !section.close() && is_empty && report.errors() == errors && report.is_whole() && !title.is_empty() {
        report.warning(span, format!("{title} changes nothing"), "remove it, or say what is to be changed");
    }
}

fn fields(section: &mut Section<'_, '_>, direction: Direction) -> FieldChanges {
    let mut of =
        |key: &'static str| lines(section, key, |report, line, node| field(report, (key, direction), line, node));
    let (set, add, append) = (of("set"), of("add"), of("append"));
    let remove = names(section, "remove", |report, found| removed(report, found, direction));
    let changes = FieldChanges { set, add, append, remove };
    twice(section, &changes);
    changes
}

/// Reports a field that is changed in two ways of which one undoes the other.
fn twice(section: &Section<'_, '_>, changes: &FieldChanges) {
    let FieldChanges { set, add, append, remove } = changes;
    let is_in = |lines: &[RequestHeader], name: &str| lines.iter().any(|line| line.name.eq_ignore_ascii_case(name));
    let replaced = set.iter().chain(append).find(|line| {
        let others = usize::from(is_in(set, &line.name)) + usize::from(is_in(append, &line.name));
        others > 1 || is_in(add, &line.name)
    });
    let written = changes.written().find(|line| remove.iter().any(|name| name.eq_ignore_ascii_case(&line.name)));
    if let Some(line) = written {
        let what = format!("the field \"{}\" is removed and written", shown(&line.name));
        section.report.error(section.span, what, "`set` alone replaces all lines of a field");
    } else if let Some(line) = replaced {
        let what = format!("the field \"{}\" is changed in two ways", shown(&line.name));
        section.report.error(section.span, what, "give it one of `set`, `add` and `append`");
    }
}

/// A table of names and values, each of which `one` reads.
fn lines(
    section: &mut Section<'_, '_>,
    key: &'static str,
    one: impl Fn(&Report<'_>, Found<&str>, Found<&str>) -> Option<RequestHeader>,
) -> Vec<RequestHeader> {
    let report = section.report;
    let Some(entry) = section.forms(key, &[Form::Strings]) else { return Vec::new() };
    let Value::Table(entries) = &entry.node.value else {
        mismatch::<()>(report, key, "a table such as { NAME = \"VALUE\" }", &entry.node);
        return Vec::new();
    };
    if entries.len() > LINES_MAX {
        report.error(entry.key_span, format!("`{key}` has too many names"), format!("use at most {LINES_MAX}"));
        return Vec::new();
    }
    let mut lines: Vec<RequestHeader> = Vec::new();
    for entry in entries {
        let Some(value) = string(report, key, &entry.node) else { continue };
        let name = Found { value: entry.key.as_ref(), span: entry.key_span };
        let Some(line) = one(report, name, value) else { continue };
        if lines.iter().any(|other| other.name.eq_ignore_ascii_case(&line.name)) {
            let what = format!("`{key}` has \"{}\" twice", shown(&line.name));
            report.error(entry.key_span, what, "remove one of the two");
        }
        lines.push(line);
    }
    lines
}

fn names(
    section: &mut Section<'_, '_>,
    key: &'static str,
    one: impl Fn(&Report<'_>, Found<&str>) -> Option<String>,
) -> Vec<String> {
    let report = section.report;
    let Some(found) = section.list(key, &[Form::String]) else { return Vec::new() };
    if found.value.len() > LINES_MAX {
        report.error(found.span, format!("`{key}` has too many names"), format!("use at most {LINES_MAX}"));
    }
    found.value.iter().filter_map(|node| one(report, string(report, key, node)?)).collect()
}

fn field(
    report: &Report<'_>,
    (key, direction): (&str, Direction),
    name: Found<&str>,
    value: Found<&str>,
) -> Option<RequestHeader> {
    if !is_name(report, name.value, name.span) || !is_free(report, name, direction) {
        return None;
    }
    let is_among = |names: &[&str]| names.iter().any(|known| known.eq_ignore_ascii_case(name.value));
    let is_single = is_among(SINGLE);
    if key == "append" && is_single || key == "add" && is_single && !is_among(SEVERAL) {
        let what = format!("the field \"{}\" is no list, of which it could have more", name.value);
        let fix = if is_among(SEVERAL) { "use `add`, for another line" } else { "use `set`" };
        report.error(name.span, what, fix);
        return None;
    }
    if value.value.is_empty() {
        report.error(value.span, "a field is not sent without a value", "name it in `remove`");
        return None;
    }
    let value_span = value.span;
    let value = pieces(report, value, VALUE_BYTES_MAX, FACTS)?;
    let line = RequestHeader { name: name.value.to_string(), value };
    if key == "append" && crate::model::facts(std::slice::from_ref(&line)).any(|fact| fact == Fact::UpstreamServer) {
        report.error(value_span, "{upstream.server} is not known when a list is made longer", "use `set` or `add`");
        return None;
    }
    Some(line)
}

/// Whether a route may change a field.
fn is_free(report: &Report<'_>, name: Found<&str>, direction: Direction) -> bool {
    let lower = name.value.to_ascii_lowercase();
    let is_reserved = RESERVED.contains(&lower.as_str())
        || direction == Direction::Request && RESERVED_IN_REQUESTS.contains(&lower.as_str());
    if !is_reserved {
        return true;
    }
    let fix = match lower.as_str() {
        "host" => "write `host` beside it: request = { host = \"NAME\" }",
        "forwarded" | "x-forwarded-for" | "x-forwarded-host" | "x-forwarded-proto" => {
            "see `forwarded` of the listener, and `trusted_proxies` for a proxy in front"
        }
        "via" => "see `via` of the backend",
        "client-cert" | "client-cert-chain" => "see `client_auth` of [tls.NAME]",
        "traceparent" | "tracestate" => "see [tracing]",
        _ => "leave it out: it frames messages, or is for one connection",
    };
    report.error(name.span, format!("the field \"{}\" is written by rules of its own", shown(name.value)), fix);
    false
}

fn removed(report: &Report<'_>, found: Found<&str>, direction: Direction) -> Option<String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let fits = !found.value.is_empty() && found.value.len() <= NAME_BYTES_MAX && found.value.bytes().all(is_token);
    if !fits || found.value.contains('*') {
        let what = format!("\"{}\" is not the name of a field", shown(found.value));
        report.error(found.span, what, format!("write one name, of up to {NAME_BYTES_MAX} letters, digits and `-`"));
        return None;
    }
    is_free(report, found, direction).then(|| found.value.to_string())
}

fn host(report: &Report<'_>, found: Found<&str>) -> Option<HostChange> {
    if found.value == "{upstream.server}" {
        return Some(HostChange::Server);
    }
    if found.value.contains(['{', '}']) {
        let what = format!("\"{}\" cannot be made a host of", shown(found.value));
        report.error(found.span, what, "write a name, or \"{upstream.server}\" for the server's own");
        return None;
    }
    let (name, port) = match found.value.rsplit_once(':') {
        Some((name, port)) if !name.is_empty() && !port.contains(']') && !port.is_empty() => (name, Some(port)),
        _ => (found.value, None),
    };
    let name = address::host(name).map_err(|(what, fix)| report.error(found.span, what, fix)).ok()?;
    if let Some(port) = port
        && port.parse::<u16>().ok().filter(|port| *port > 0).is_none()
    {
        let what = format!("\"{}\" is not a port", shown(port));
        report.error(found.span, what, "write a number from 1 to 65535, or leave it out");
        return None;
    }
    Some(HostChange::Name(port.map_or_else(|| name.clone(), |port| format!("{name}:{port}"))))
}

/// Change of a path: exactly one thing.
pub(crate) fn path_change(report: &Report<'_>, node: &Node<'_>) -> Option<PathChange> {
    let mut section = Section::of(report, node, "`path`", node.span)?;
    section.one_of(&["strip", "replace_prefix", "replace", "regex"]);
    let errors = report.errors();
    let mut text = |key: &'static str| section.string(key);
    let (strip, prefix, replace) = (text("strip"), text("replace_prefix"), text("replace"));
    let (regex, to) = (text("regex"), text("to"));
    let span = section.span;
    let is_misspelt = section.close();
    let given = [strip, prefix, replace, regex].into_iter().flatten().count();
    if given != 1 && !is_misspelt && report.is_whole() {
        let fix = "give it one of `strip`, `replace_prefix`, `replace`, and `regex` with `to`";
        report.error(span, "a path is changed in one way", fix);
    }
    if let (None, Some(to)) = (regex, to)
        && given == 1
    {
        report.error(to.span, "`to` goes with `regex`", "remove it");
    }
    let change = match (strip, prefix, replace) {
        (Some(strip), ..) => prefix_text(report, strip).map(|strip| PathChange::Strip { strip }),
        (_, Some(prefix), _) => {
            plain(report, prefix).map(|replace_prefix| PathChange::ReplacePrefix { replace_prefix })
        }
        (_, _, Some(replace)) => plain(report, replace).map(|replace| PathChange::Replace { replace }),
        _ => substitution(report, regex?, to),
    };
    change.filter(|_| report.errors() == errors)
}

/// A path without a query, as it is sent.
fn plain(report: &Report<'_>, found: Found<&str>) -> Option<String> {
    let text = found.value;
    path::check(text).map_err(|(what, fix)| report.error(found.span, what, fix)).ok()?;
    if let Some((what, fix)) = path::oddity(text) {
        report.error(found.span, what, fix);
        return None;
    }
    Some(text.to_string())
}

fn prefix_text(report: &Report<'_>, found: Found<&str>) -> Option<String> {
    let text = plain(report, found)?;
    if text == "/" {
        report.error(found.span, "`strip` takes nothing off", "write the prefix, as in \"/api\"");
        return None;
    }
    Some(text)
}

fn substitution(report: &Report<'_>, regex: Found<&str>, to: Option<Found<&str>>) -> Option<PathChange> {
    let pattern = conditions::regex(report, regex)?;
    let Some(to) = to else {
        report.error(regex.span, "`regex` is without `to`", "add to = \"TEXT\", in which `$1` is the first group");
        return None;
    };
    let compiled = pattern::compile(&pattern).ok()?;
    let pieces = match pattern::substitutes(to.value, &compiled) {
        Ok(pieces) => pieces,
        Err(what) => {
            report.error(to.span, format!("`to`: {what}"), "see the syntax of the crate `regex`");
            return None;
        }
    };
    let plain: String = pieces
        .iter()
        .map(|piece| if let pattern::Substitute::Text(text) = piece { text.as_str() } else { "x" })
        .collect();
    let rooted = if plain.starts_with('/') { plain } else { format!("/{plain}") };
    let checked = path::check_target(&rooted).and_then(|()| match rooted.split_once('#') {
        Some(_) => Err(("`to` has a `#` in it, which no request has".into(), "write \"%23\"".into())),
        None => Ok(()),
    });
    if let Err((what, fix)) = checked {
        report.error(to.span, what, fix);
        return None;
    }
    Some(PathChange::Regex { regex: pattern, to: to.value.to_string() })
}

fn query(mut section: Section<'_, '_>) -> QueryChanges {
    let errors = section.report.errors();
    let parameter = |report: &Report<'_>, name: Found<&str>, value: Found<&str>| {
        let name = parameter_name(report, name)?;
        Some(RequestHeader { name, value: pieces(report, value, VALUE_BYTES_MAX, FACTS)? })
    };
    let (set, add) = (lines(&mut section, "set", parameter), lines(&mut section, "add", parameter));
    let remove = names(&mut section, "remove", parameter_name);
    let (report, span) = (section.report, section.span);
    let all = set.iter().chain(&add).find(|line| line.value.contains(&UPSTREAM));
    if all.is_some() {
        report.error(span, "{upstream.server} is not known when a query is made", "leave it to a field");
    }
    let changes = QueryChanges { set, add, remove };
    close(section, errors, changes.is_empty());
    changes
}

const UPSTREAM: Piece = Piece::Fact(Fact::UpstreamServer);

fn parameter_name(report: &Report<'_>, found: Found<&str>) -> Option<String> {
    let Found { value, span } = found;
    if value.is_empty() || value.len() > PARAMETER_BYTES_MAX || value.chars().any(char::is_control) {
        let what = format!("\"{}\" cannot be the name of a parameter", shown(value));
        report.error(span, what, format!("use 1 to {PARAMETER_BYTES_MAX} bytes without control characters"));
        return None;
    }
    Some(value.to_string())
}

fn locations(section: &mut Section<'_, '_>) -> Vec<LocationChange> {
    let report = section.report;
    let Some(found) = section.list("location", &[Form::Table]) else { return Vec::new() };
    if found.value.len() > LINES_MAX {
        report.error(found.span, "`location` has too many changes", format!("use at most {LINES_MAX}"));
    }
    let one = |node| {
        let mut table = Section::of(report, node, "`location`", node.span)?;
        table.require("from", "add from = \"URL\", the beginning of what servers say");
        table.require("to", "add to = \"URL\", what takes the place of the beginning");
        let text = |found: Found<&str>| pieces(report, found, VALUE_BYTES_MAX, FACTS);
        let from = table.string("from").and_then(|found| {
            if found.value.contains(['{', '}']) {
                report.error(found.span, "`from` is compared as it is", "write it without facts and braces");
                return None;
            }
            text(found).map(|_| found.value.to_string())
        });
        let to = table.string("to").and_then(text);
        table.close();
        Some(LocationChange { from: from?, to: to? })
    };
    found.value.iter().filter_map(one).collect()
}

fn cookies(mut section: Section<'_, '_>) -> CookieChanges {
    let report = section.report;
    let errors = report.errors();
    let secure = section.boolean("secure");
    let http_only = section.boolean("http_only").map(|found| found.value);
    let sites =
        [("strict", SameSite::Strict), ("lax", SameSite::Lax), ("none", SameSite::None), ("unsaid", SameSite::Unsaid)];
    let same_site = section.choice("same_site", &sites);
    let domain = section.string("domain").and_then(|found| match found.value {
        "" => Some(String::new()),
        text => address::host(text.strip_prefix('.').unwrap_or(text))
            .map_err(|(what, fix)| report.error(found.span, what, fix))
            .ok(),
    });
    let path = section.string("path").and_then(|found| super::sticky::path(report, found)).map(str::to_string);
    if let (Some(Found { value: SameSite::None, span }), Some(Found { value: false, .. })) = (same_site, secure) {
        let what = "browsers drop a cookie with same_site = \"none\" that is not secure";
        report.error(span, what, "write secure = true, or choose \"lax\"");
    }
    let (secure, same_site) = (secure.map(|found| found.value), same_site.map(|found| found.value));
    let changes = CookieChanges { secure, http_only, same_site, domain, path };
    close(section, errors, changes.is_empty());
    changes
}
