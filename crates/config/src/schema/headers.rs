//! `request_headers` of `[listener.NAME]`: fields made of facts about the client's connection.

use crate::describe::Form;
use crate::foreign;
use crate::model::{Fact, Piece, RequestHeader};
use crate::report::Report;
use crate::text::Span;
use crate::tree::{Entry, Value};
use crate::walk::{Found, Section, mismatch, string};
use crate::wording::{one_of, shown};

const HEADERS_MAX: usize = 32;
const NAME_BYTES_MAX: usize = 64;
const VALUE_BYTES_MAX: usize = 512;

/// Names that frame, route or authenticate, that are for one hop, or that Propylon writes by rules of their own.
const RESERVED: &[&str] = &[
    "authorization",
    "cache-control",
    "client-cert",
    "client-cert-chain",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "cookie",
    "date",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "location",
    "max-forwards",
    "origin",
    "proxy",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "proxy-connection",
    "server",
    "set-cookie",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "vary",
    "via",
    "www-authenticate",
];

pub(crate) fn request_headers(section: &mut Section<'_, '_>) -> Vec<RequestHeader> {
    let report = section.report;
    let Some(entry) = section.forms("request_headers", &[Form::Strings]) else {
        return Vec::new();
    };
    let Value::Table(entries) = &entry.node.value else {
        mismatch::<()>(
            report,
            "request_headers",
            "a table such as { \"X-TLS-Version\" = \"{tls.version}\" }",
            &entry.node,
        );
        return Vec::new();
    };
    if entries.len() > HEADERS_MAX {
        report.error(entry.key_span, "`request_headers` has too many fields", format!("use at most {HEADERS_MAX}"));
        return Vec::new();
    }
    let mut headers: Vec<RequestHeader> = Vec::new();
    for entry in entries {
        let Some(header) = header(report, entry) else {
            continue;
        };
        if headers.iter().any(|other| other.name.eq_ignore_ascii_case(&header.name)) {
            let what = format!("`request_headers` has \"{}\" twice: case does not tell fields apart", header.name);
            report.error(entry.key_span, what, "remove one of the two");
        }
        headers.push(header);
    }
    headers
}

fn header(report: &Report<'_>, entry: &Entry<'_>) -> Option<RequestHeader> {
    let name = checked_name(report, &entry.key, entry.key_span);
    let found = string(report, "request_headers", &entry.node)?;
    let value = pieces(report, found, VALUE_BYTES_MAX, &[Fact::ALL])?;
    Some(RequestHeader { name: name?.to_string(), value })
}

/// Whether a text can be the name of a field that is written here.
pub(super) fn is_name(report: &Report<'_>, name: &str, span: Span) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_name = !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(fits);
    if !is_name {
        let what = format!("\"{}\" cannot be the name of a field here", shown(name));
        // Many servers take `_` and `-` for the same, so a name with one could not be protected from forgery.
        report.error(span, what, format!("use up to {NAME_BYTES_MAX} letters, digits and `-`"));
    }
    is_name
}

pub(crate) fn checked_name<'a>(report: &Report<'_>, name: &'a str, span: Span) -> Option<&'a str> {
    let lower = name.to_ascii_lowercase();
    if !is_name(report, name, span) {
        return None;
    }
    if RESERVED.contains(&lower.as_str()) || lower.starts_with("x-forwarded-") {
        let what = format!("the field \"{name}\" has a meaning of its own");
        report.error(
            span,
            what,
            "choose another name, such as one that begins with \"X-\" and not with \"X-Forwarded-\"",
        );
        return None;
    }
    Some(name)
}

/// Takes `text {fact} text` apart; two braces are one that stands for itself. `facts` may be told.
pub(super) fn pieces(
    report: &Report<'_>,
    found: Found<&str>,
    bytes_max: usize,
    facts: &[&[(&'static str, Fact)]],
) -> Option<Vec<Piece>> {
    let Found { value, span } = found;
    let printable = value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    if value.is_empty() || value.len() > bytes_max || !printable || value.trim() != value {
        let what = format!("\"{}\" cannot be the value of a field", shown(value));
        let fix = format!("use 1 to {bytes_max} printable ASCII characters without spaces around them");
        report.error(span, what, fix);
        return None;
    }
    if let Some((name, fact)) = foreign::variable(value) {
        let what = format!("`${name}` is sent as these letters: facts have braces here");
        report.warning(span, what, format!("write {fact} in its place, if that is meant"));
    }
    let (mut pieces, mut text, mut rest) = (Vec::new(), String::new(), value);
    while let Some(open) = rest.find(['{', '}']) {
        text.push_str(&rest[..open]);
        rest = &rest[open..];
        if rest.starts_with("{{") || rest.starts_with("}}") {
            text.push_str(&rest[..1]);
            rest = &rest[2..];
            continue;
        }
        let Some((name, after)) = rest.strip_prefix('{').and_then(|inner| inner.split_once('}')) else {
            let fix = "write facts as in \"{tls.version}\", and a brace that stands for itself twice";
            report.error(span, "a brace is without its other half", fix);
            return None;
        };
        if !text.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut text)));
        }
        pieces.push(Piece::Fact(fact(report, Found { value: name, span }, facts)?));
        rest = after;
    }
    text.push_str(rest);
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    Some(pieces)
}

fn fact(report: &Report<'_>, name: Found<&str>, facts: &[&[(&'static str, Fact)]]) -> Option<Fact> {
    let known = || facts.iter().copied().flatten();
    if let Some((_, fact)) = known().find(|(known, _)| *known == name.value) {
        return Some(*fact);
    }
    let names = known().map(|(name, _)| *name);
    let is_of_requests = Fact::OF_REQUESTS.iter().any(|(known, _)| *known == name.value);
    let fix = match report.closest(name.value, names.clone()) {
        _ if is_of_requests => {
            "write the field to `request` of the routes that it is for: a listener knows its connections only".into()
        }
        Some(close) => format!("did you mean \"{{{close}}}\"?"),
        None => format!("use {} in braces", one_of(names)),
    };
    report.error(name.span, format!("nothing is known as {{{}}}", shown(name.value)), fix);
    None
}
