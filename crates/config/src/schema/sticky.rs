//! `sticky` of `[backend.NAME]`

use std::ops::RangeInclusive;
use std::time::Duration;

use super::balance;
use super::values::{DAY, file, seconds};
use crate::context::Context;
use crate::describe::Form;
use crate::model::{CookieSecure, SameSite, Sticky};
use crate::report::Report;
use crate::text::Span;
use crate::tree::{Entry, Value};
use crate::walk::{Found, Section, mismatch};
use crate::wording::shown;

/// Browsers cut what is longer down to 400 days (RFC 6265bis §5.5).
const TTL: RangeInclusive<Duration> = seconds(1)..=Duration::from_secs(400 * DAY.as_secs());
const PATH_BYTES_MAX: usize = 256;

pub(crate) fn sticky(context: &Context<'_, '_>, section: &mut Section<'_, '_>) -> Option<Sticky> {
    let mut table = section.table("sticky")?;
    let report = context.report;
    table.require("cookie", "add cookie = \"NAME\"");
    let key_file = table.string("key_file").and_then(|found| file(report, "key_file", found, context.base));
    attributes(report, table).map(|sticky| Sticky { key_file, ..sticky })
}

/// Reads the rest of a table about a cookie: its name, and what it says to browsers.
pub(crate) fn attributes(report: &Report<'_>, mut table: Section<'_, '_>) -> Option<Sticky> {
    let span = table.span;
    let cookie = balance::name(&mut table, "cookie");
    let ttl = table.duration("ttl", TTL).map(|found| found.value);
    let secure = secure(&mut table);
    let http_only = table.boolean_or("http_only", true);
    let sites =
        [("strict", SameSite::Strict), ("lax", SameSite::Lax), ("none", SameSite::None), ("unsaid", SameSite::Unsaid)];
    table.default_is("same_site", || "lax".into());
    let same_site = table.choice("same_site", &sites);
    table.default_is("path", || "/".into());
    let path = table.string("path").and_then(|found| path(report, found)).unwrap_or("/");
    if secure == CookieSecure::Never
        && let Some(Found { value: SameSite::None, span }) = same_site
    {
        let what = "browsers drop a cookie with same_site = \"none\" that is not secure";
        report.error(span, what, "remove secure = false, or choose \"lax\"");
    }
    prefixes(report, span, cookie.unwrap_or_default(), secure, path);
    table.close();
    Some(Sticky {
        cookie: cookie?.to_string(),
        key_file: None,
        ttl,
        secure,
        http_only,
        same_site: same_site.map_or(SameSite::Lax, |found| found.value),
        path: path.to_string(),
        at: report.at(span),
    })
}

fn secure(table: &mut Section<'_, '_>) -> CookieSecure {
    table.default_is("secure", || "auto".into());
    let forms = [Form::Words(&["auto"]), Form::Boolean];
    let Some(Entry { node, .. }) = table.forms("secure", &forms) else {
        return CookieSecure::Auto;
    };
    match &node.value {
        Value::Boolean(true) => CookieSecure::Always,
        Value::Boolean(false) => CookieSecure::Never,
        Value::String(text) if text == "auto" => CookieSecure::Auto,
        Value::String(text) if text == "true" && table.report.is_substituted(node.span) => CookieSecure::Always,
        Value::String(text) if text == "false" && table.report.is_substituted(node.span) => CookieSecure::Never,
        _ => mismatch(table.report, "secure", "\"auto\", true or false", node).unwrap_or(CookieSecure::Auto),
    }
}

/// Reads the path, which is written into `Set-Cookie` as it is.
pub(super) fn path<'r>(report: &Report<'_>, found: Found<&'r str>) -> Option<&'r str> {
    let Found { value, span } = found;
    let fits = value.starts_with('/') && value.len() <= PATH_BYTES_MAX;
    if !fits || !value.bytes().all(|byte| byte.is_ascii_graphic() && byte != b';') {
        let what = format!("\"{}\" cannot be the path of a cookie", shown(value));
        report.error(span, what, "write one that begins with `/`, of ASCII without spaces and `;`");
        return None;
    }
    Some(value)
}

/// Names that make browsers ask for more (RFC 6265bis §4.1.3).
fn prefixes(report: &Report<'_>, span: Span, cookie: &str, secure: CookieSecure, path: &str) {
    let lower = cookie.to_ascii_lowercase();
    let (host, always) = (lower.starts_with("__host-"), secure == CookieSecure::Always);
    if (host || lower.starts_with("__secure-")) && secure == CookieSecure::Never {
        let what = format!("browsers drop a cookie named \"{}\" that is not secure", shown(cookie));
        report.error(span, what, "remove secure = false, or choose another name");
    } else if host && path != "/" {
        let what = format!("browsers drop a cookie named \"{}\" with a path other than \"/\"", shown(cookie));
        report.error(span, what, "remove `path`, or choose another name");
    } else if (host || lower.starts_with("__secure-")) && !always {
        let what = format!("a cookie named \"{}\" is dropped by clients that come without TLS", shown(cookie));
        report.warning(span, what, "nothing, if all come over TLS: then secure = true says so");
    }
}
