//! Conditions of nginx that refuse: what an `if` asks for as a route has it.

use propylon_config::pattern::compile;
use regex_syntax::hir::{Class, Hir, HirKind, Look};

use super::includes::is_unread;
use crate::patterns::parse;
use crate::plan::{Path, escaped, one_or_list, quoted};
use crate::terms::{Term, condition, is_field};
use crate::words::Directive;

/// An `if` that refuses.
pub(super) enum Refusal {
    /// Requests that it is for, and those of them that it excepts.
    Said { of: Vec<Term>, except: Vec<Term> },
    /// A condition that no route says.
    Unknown,
}

/// Requests that a directive refuses; none of one that refuses nobody, or all as long as a file is there.
pub(super) fn refusal(each: &Directive) -> Option<Refusal> {
    if each.name() != "if" || !each.inner().iter().any(refuses) {
        return None;
    }
    let text = each.arguments().join(" ");
    let text = text.trim();
    let text = text.strip_prefix('(').unwrap_or(text).trim_start();
    let text = text.strip_suffix(')').unwrap_or(text).trim_end();
    if text.trim_start_matches('!').starts_with('-') {
        let rest = text.replace("$document_root", "").replace("$realpath_root", "");
        return rest.contains('$').then_some(Refusal::Unknown);
    }
    let end = text.find([' ', '=', '!', '~']).unwrap_or(text.len());
    let (variable, test) = (&text[..end], text[end..].trim_start());
    let name = variable.strip_prefix('$').unwrap_or_default().trim_start_matches('{').trim_end_matches('}');
    let (operator, value) = test.split_at(test.find(|c: char| !"=!~*".contains(c)).unwrap_or(test.len()));
    let value = value.trim().trim_matches(['"', '\'']);
    let test = Test { name, value, ignores_case: operator.ends_with('*'), is_not: operator.starts_with('!') };
    let terms = match operator.trim_start_matches('!') {
        "" if operator.is_empty() => test.is_set(),
        "=" => test.is_text(),
        "~" | "~*" => test.is_found(),
        _ => None,
    };
    Some(match terms {
        Some(except) if test.is_not => Refusal::Said { of: vec![Term::default()], except },
        Some(of) => Refusal::Said { of, except: Vec::new() },
        None => Refusal::Unknown,
    })
}

/// A test of a variable.
struct Test<'t> {
    name: &'t str,
    value: &'t str,
    ignores_case: bool,
    is_not: bool,
}

impl Test<'_> {
    /// The field that a variable has the value of, where routes may ask for it.
    fn field(&self) -> Option<String> {
        let name = self.name.strip_prefix("http_").map(|name| name.replace('_', "-"))?;
        (is_field(&name) && name != "host").then_some(name)
    }

    fn is_set(&self) -> Option<Vec<Term>> {
        match self.name {
            "https" => Some(vec![over_tls(true)]),
            _ => Some(vec![condition("header", &self.field()?, "{ regex = \"[^0]|..\" }".into())?]),
        }
    }

    fn is_text(&self) -> Option<Vec<Term>> {
        let value = self.value;
        if value.contains('$') {
            return None;
        }
        if let Some(field) = self.field() {
            let mut all = vec![condition("header", &field, quoted(value))?];
            if value.is_empty() {
                all.push(condition("header", &field, ABSENT.into())?);
            }
            return Some(all);
        }
        let one = match self.name {
            "request_method" => method(&[value.to_owned()])?,
            "scheme" if ["http", "https"].contains(&value) => over_tls(value == "https"),
            "https" if ["", "on"].contains(&value) => over_tls(value == "on"),
            "host" | "http_host" => {
                // A host with a port is another text, and the same name to routes.
                let is_name =
                    value.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)) && !value.is_empty();
                let name = Some(value.to_ascii_lowercase()).filter(|_| is_name && self.is_host())?;
                // A route for the name would go before those of the server for other paths.
                condition("host", "", format!("{{ regex = {} }}", quoted(&format!("^{}$", escaped(&name)))))?
            }
            "uri" | "document_uri" | "request_uri" if !self.is_not && is_plain(value) => {
                path(Path::Exact(value.to_owned()))
            }
            // Escapes in a value are another text to nginx.
            name if name.starts_with("arg_")
                && !self.is_not
                && !value.is_empty()
                && !value.contains(['%', '+', '&']) =>
            {
                condition("query", &name["arg_".len()..], quoted(value))?
            }
            _ => return None,
        };
        Some(vec![one])
    }

    fn is_found(&self) -> Option<Vec<Term>> {
        let pattern = format!("{}{}", if self.ignores_case { "(?i)" } else { "" }, self.value);
        let compiled = compile(&pattern).ok()?;
        let of_text = format!("{{ regex = {} }}", quoted(&pattern));
        if let Some(field) = self.field() {
            let mut all = vec![condition("header", &field, of_text)?];
            if compiled.is_match(b"") {
                all.push(condition("header", &field, ABSENT.into())?);
            }
            return Some(all);
        }
        match self.name {
            "request_method" => {
                let words = words(self.value);
                let is_whole = self.value.starts_with('^') && self.value.ends_with('$');
                let words = words.filter(|_| is_whole || self.is_not)?;
                let upper: Vec<String> = words.iter().map(|word| word.to_ascii_uppercase()).collect();
                Some(vec![method(if self.ignores_case { &upper } else { &words })?])
            }
            "host" | "http_host" if self.is_host() && !self.value.contains(':') => {
                Some(vec![condition("host", "", of_text)?])
            }
            // In nginx an end is in front of a newline at the end as well, which a target as it came has not.
            "uri" | "document_uri" if self.value.contains('$') => None,
            "uri" | "document_uri" | "request_uri" if !self.is_not && is_of_path(self.value) => {
                Some(vec![Term { ignores_case: self.ignores_case, ..path(Path::Regex(self.value.to_owned())) }])
            }
            _ => None,
        }
    }

    /// Whether a host without its port is as good: `$http_host` has the port, with which it is another text.
    fn is_host(&self) -> bool {
        self.name == "host" || !self.is_not
    }
}

const ABSENT: &str = "{ present = false }";

fn over_tls(is_tls: bool) -> Term {
    Term { is_tls: Some(is_tls), ..Term::default() }
}

fn path(path: Path) -> Term {
    Term { path: Some(path), ..Term::default() }
}

fn method(words: &[String]) -> Option<Term> {
    let is_method =
        |word: &String| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_uppercase() || b"-_".contains(&byte));
    words.iter().all(is_method).then(|| condition("method", "", one_or_list(words)))?
}

/// Words of `^(GET|HEAD)$`.
fn words(pattern: &str) -> Option<Vec<String>> {
    let inside = pattern.strip_prefix('^').unwrap_or(pattern);
    let inside = inside.strip_suffix('$').unwrap_or(inside);
    let group = inside.strip_prefix("(?:").or_else(|| inside.strip_prefix('('));
    // Without a group the ends are those of the first and the last word alone.
    let inside = match group {
        Some(group) => group.strip_suffix(')')?,
        None if inside.contains('|') && inside.len() < pattern.len() => return None,
        None => inside,
    };
    let words: Vec<String> = inside.split('|').map(str::to_owned).collect();
    words.iter().all(|word| !word.is_empty() && escaped(word).replace("\\-", "-") == *word).then_some(words)
}

/// Whether a target as it came is a path in its canonical form.
fn is_plain(text: &str) -> bool {
    text.starts_with('/') && !text.contains(['%', '?', ';', '#']) && !text.contains("//") && !text.contains("/.")
}

/// Whether a pattern of a target as it came finds the beginning of a path that has no escapes.
fn is_of_path(pattern: &str) -> bool {
    fn is_said(hir: &Hir) -> bool {
        let is_said_byte = |byte: u8| byte.is_ascii_graphic() && !b"%?;".contains(&byte);
        match hir.kind() {
            HirKind::Empty | HirKind::Look(Look::Start | Look::End) => true,
            HirKind::Look(_) => false,
            HirKind::Literal(text) => text.0.iter().all(|byte| is_said_byte(*byte)),
            HirKind::Class(Class::Bytes(class)) => {
                class.ranges().iter().all(|range| (range.start()..=range.end()).all(is_said_byte))
            }
            HirKind::Class(Class::Unicode(_)) => false,
            HirKind::Repetition(again) => is_said(&again.sub),
            HirKind::Capture(capture) => is_said(&capture.sub),
            HirKind::Concat(all) | HirKind::Alternation(all) => all.iter().all(is_said),
        }
    }
    let is_tied = |hir: &Hir| hir.properties().look_set_prefix().contains(Look::Start);
    // Several slashes are one in a route, and so are those that a repetition makes.
    let is_single = !pattern.contains("//") && !pattern.contains("/+") && !pattern.contains("/{");
    is_single && parse(pattern).is_some_and(|hir| is_tied(&hir) && is_said(&hir))
}

/// Whether it is a `return` with an error, or what a file has that may be one.
pub(super) fn refuses(each: &Directive) -> bool {
    is_unread(each) || each.name() == "return" && each.word(1).parse::<u16>().is_ok_and(|status| status >= 400)
}
