//! Prefixes that keep clients out, and patterns, which go before all prefixes of their host.

use super::is_every_path;
use crate::canonical::route_key;
use crate::context::RouteDraft;
use crate::model::{Action, PathPattern, Route};
use crate::report::Report;
use crate::wording::shown;

/// Routes of either kind that are compared at most; the check is a courtesy.
const COMPARED_MAX: usize = 1_000;
/// Patterns that a warning names; of others it says how many there are.
const NAMED_MAX: usize = 3;

/// Warns of each prefix that keeps clients out, once, if patterns lead past it that ask for nothing.
pub(super) fn check(report: &Report<'_>, routes: &[RouteDraft]) {
    let complete = || routes.iter().filter(|draft| draft.complete);
    let patterns: Vec<&RouteDraft> =
        complete().filter(|draft| is_open_pattern(&draft.route)).take(COMPARED_MAX).collect();
    for guard in complete().filter(|draft| is_guard(&draft.route)).take(COMPARED_MAX) {
        let PathPattern::Prefix(prefix) = &guard.route.path else { continue };
        let past = |draft: &&&RouteDraft| goes_past(&draft.route, &guard.route, &route_key(prefix));
        let past: Vec<&&RouteDraft> = patterns.iter().filter(past).collect();
        let which = match past[..] {
            [] => continue,
            [only] => format!("the pattern in {} fits", report.line(only.span)),
            _ => {
                let lines: Vec<String> = past.iter().map(|draft| report.line(draft.span)).collect();
                format!("one of {} patterns fits ({})", past.len(), line_list(&lines))
            }
        };
        let prefix = shown(prefix);
        let what = format!(
            "this route keeps clients out of {prefix}, but not from paths there that {which}: patterns go before prefixes"
        );
        let fix = "nothing, if they fit no such path; else begin them with `^` and a folder of their own, or have them keep \
                   clients out as well";
        report.warning(guard.span, what, fix);
    }
}

/// The first of these lines, and how many there are beside them.
fn line_list(lines: &[String]) -> String {
    let named = lines.len().min(NAMED_MAX);
    let first = lines[..named].join(", ");
    match lines.len() - named {
        0 => first,
        left => format!("{first}, and {left} more"),
    }
}

fn is_guard(route: &Route) -> bool {
    let keeps_out = matches!(&route.action, Action::Respond(respond) if respond.status >= 400);
    let is_prefix = matches!(route.path, PathPattern::Prefix(_)) && !is_every_path(&route.path);
    is_prefix && (keeps_out || route.require_client_certificate || route.steps.auth.is_some())
}

fn is_open_pattern(route: &Route) -> bool {
    let leads_on =
        matches!(route.action, Action::Backend(_)) && !route.require_client_certificate && route.steps.auth.is_none();
    leads_on && matches!(route.path, PathPattern::Regex(_))
}

fn goes_past(own: &Route, guard: &Route, prefix: &str) -> bool {
    let PathPattern::Regex(pattern) = &own.path else { return false };
    own.host == guard.host
        && (own.listener.is_none() || guard.listener.is_none() || own.listener == guard.listener)
        && may_fit_below(pattern, prefix)
}

/// Whether a pattern may fit a path that has this prefix, as far as the text says that it begins with.
fn may_fit_below(pattern: &str, prefix: &str) -> bool {
    let prefix = prefix.trim_end_matches('/');
    let (beginning, ends_in_segment) = beginning(pattern);
    match beginning.strip_prefix(prefix) {
        Some("") => !ends_in_segment,
        Some(rest) => rest.starts_with('/'),
        None => prefix.starts_with(&beginning),
    }
}

/// Plain text with which all paths begin that a pattern fits, and whether what follows in them is no slash.
fn beginning(pattern: &str) -> (String, bool) {
    let Some(mut rest) = pattern.strip_prefix('^').filter(|rest| !has_alternatives(rest)) else {
        return (String::new(), false);
    };
    let mut text = String::new();
    loop {
        let mut letters = rest.chars();
        let (letter, after) = match letters.next() {
            Some('\\') => match letters.next() {
                Some(letter) if letter.is_ascii_punctuation() => (letter, letters.as_str()),
                _ => return (text, false),
            },
            Some(letter) if !".+*?()|[]{}^$".contains(letter) => (letter, letters.as_str()),
            _ => return (text, rest.starts_with("[^/]") && !rest[4..].starts_with(['*', '?', '{'])),
        };
        // The letter may be missing, or come again.
        if after.starts_with(['*', '?', '{', '+']) {
            return (text, false);
        }
        text.push(letter);
        rest = after;
    }
}

/// Whether a pattern has alternatives outside of all groups.
fn has_alternatives(pattern: &str) -> bool {
    let (mut depth, mut is_class, mut is_escaped) = (0_u32, false, false);
    for letter in pattern.chars() {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '[' => is_class = true,
            ']' => is_class = false,
            '(' if !is_class => depth += 1,
            ')' if !is_class => depth = depth.saturating_sub(1),
            '|' if !is_class && depth == 0 => return true,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_fits_below_a_prefix_unless_the_text_that_it_begins_with_is_another() {
        for pattern in [
            "js$",
            "^/",
            "^/a",
            "^/admin",
            "^/admin/",
            "^/admin/[a-z]+",
            "^/adm.n/",
            "^/admins?/",
            "^/own/|js$",
            "^/(own|admin)/",
            "(?i)^/own/",
            "^(?i)/own/",
            "^/adminx*",
            "^/admin[^/]*/",
            "^/[^/]+/keys",
        ] {
            assert!(may_fit_below(pattern, "/admin") && may_fit_below(pattern, "/admin/"), "{pattern}");
        }
        for pattern in ["^/own/", "^/own/.*\\.js$", "^/administrator", "^/admin[^/]", "^/own/(a|b)", "^/adm\\.n/"] {
            assert!(!may_fit_below(pattern, "/admin") && !may_fit_below(pattern, "/admin/"), "{pattern}");
        }
        assert!(may_fit_below("^/\\.git/", "/.git") && !may_fit_below("^/\\.git[^/]", "/.git"));
        assert!(may_fit_below("^/admin[^/]", "/admins"));
        assert!(!may_fit_below("^/admin/x/[a|b]/", "/admin/y"));
    }
}
