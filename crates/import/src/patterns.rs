//! Patterns of paths: what they begin and end with, and what of them is below a prefix.

use std::collections::BTreeSet;

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Capture, Class, Hir, HirKind, Look, Repetition};

use crate::plan::{Path, escaped};

/// Bytes of a prefix that are looked at.
const PREFIX_BYTES_MAX: usize = 256;

/// Bytes of a pattern that are looked at.
pub const PATTERN_BYTES_MAX: usize = 2048;

/// Paths that begin with a prefix and in which a pattern is found.
#[derive(Debug, PartialEq, Eq)]
pub enum Below {
    /// No path does both.
    Apart,
    /// All that begin with the prefix.
    All,
    /// Paths in which this pattern is found.
    Some(String),
    /// No pattern of bearable size says it.
    Unknown,
}

/// Paths that begin with `prefix` and in which `pattern` is found: behind the prefix, or beginning within it.
pub fn below(prefix: &str, pattern: &str) -> Below {
    if prefix == "/" {
        return Below::Some(pattern.to_owned());
    }
    let Some(hir) = parse(pattern).filter(|_| prefix.len() <= PREFIX_BYTES_MAX) else { return Below::Unknown };
    let is_tied = hir.properties().look_set_prefix().contains(Look::Start);
    if lead(pattern).is_some_and(|lead| lead.starts_with(prefix.as_bytes())) {
        return Below::Some(pattern.to_owned());
    }
    let mut all = BTreeSet::new();
    for at in 0..if is_tied { 1 } else { prefix.len() } {
        match behind(&hir, &prefix.as_bytes()[at..], at == 0) {
            None => return Below::Unknown,
            Some(None) => return Below::All,
            Some(Some(rest)) if *rest.kind() == *Hir::fail().kind() => {}
            Some(Some(rest)) => _ = all.insert(rest.to_string()),
        }
    }
    let prefix = escaped(prefix);
    let plain = if pattern.contains('|') { format!(".*(?:{pattern})") } else { format!(".*{pattern}") };
    match (all.is_empty(), is_tied) {
        (true, true) => Below::Apart,
        (true, false) => Below::Some(format!("^{prefix}{plain}")),
        (false, _) => {
            let texts: Vec<String> = (!is_tied).then_some(plain).into_iter().chain(all).collect();
            Below::Some(format!("^{prefix}(?:{})", texts.join("|")))
        }
    }
}

/// The rest of a pattern behind a text with which it begins: inner `None` where it is content within the text, outer
/// where that is not known.
fn behind(hir: &Hir, text: &[u8], is_first: bool) -> Option<Option<Hir>> {
    let mut rest = hir.clone();
    for (index, byte) in text.iter().enumerate() {
        if may_be_empty(&rest, is_first && index == 0)? {
            return Some(None);
        }
        rest = after(&rest, *byte, is_first && index == 0)?;
        if rest.to_string().len() > PATTERN_BYTES_MAX {
            return None;
        }
    }
    Some((!may_be_empty(&rest, false)?).then_some(rest))
}

/// The rest of a pattern behind one byte (the derivative of Brzozowski); none with boundaries of words.
fn after(hir: &Hir, byte: u8, is_first: bool) -> Option<Hir> {
    Some(match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => Hir::fail(),
        HirKind::Literal(text) => match text.0.split_first() {
            Some((first, rest)) if *first == byte => Hir::literal(rest.to_vec()),
            _ => Hir::fail(),
        },
        HirKind::Class(class) => {
            let class = match class {
                Class::Bytes(class) => class.clone(),
                Class::Unicode(class) => class.to_byte_class()?,
            };
            let has = class.ranges().iter().any(|range| (range.start()..=range.end()).contains(&byte));
            if has { Hir::empty() } else { Hir::fail() }
        }
        HirKind::Repetition(Repetition { max: Some(0), .. }) => Hir::fail(),
        HirKind::Repetition(again) => {
            let rest =
                Repetition { min: again.min.saturating_sub(1), max: again.max.map(|max| max - 1), ..again.clone() };
            joined(after(&again.sub, byte, is_first)?, &[Hir::repetition(rest)])
        }
        HirKind::Capture(Capture { sub, .. }) => after(sub, byte, is_first)?,
        HirKind::Concat(parts) => {
            let mut all = Vec::new();
            for (index, part) in parts.iter().enumerate() {
                all.push(joined(after(part, byte, is_first)?, &parts[index + 1..]));
                if !may_be_empty(part, is_first)? {
                    break;
                }
            }
            either(all)
        }
        HirKind::Alternation(parts) => {
            either(parts.iter().map(|part| after(part, byte, is_first)).collect::<Option<Vec<Hir>>>()?)
        }
    })
}

fn joined(first: Hir, rest: &[Hir]) -> Hir {
    if *first.kind() == *Hir::fail().kind() {
        return first;
    }
    Hir::concat([first].into_iter().chain(rest.iter().cloned()).collect())
}

fn either(all: Vec<Hir>) -> Hir {
    let mut kept: Vec<Hir> = Vec::new();
    for each in all {
        if *each.kind() != *Hir::fail().kind() && !kept.contains(&each) {
            kept.push(each);
        }
    }
    Hir::alternation(kept)
}

/// Whether a pattern finds nothing at all in front of a further byte, where that is known.
fn may_be_empty(hir: &Hir, is_first: bool) -> Option<bool> {
    Some(match hir.kind() {
        HirKind::Empty => true,
        HirKind::Literal(_) | HirKind::Class(_) => false,
        HirKind::Look(Look::Start) => is_first,
        HirKind::Look(Look::End) => false,
        HirKind::Look(_) => return None,
        HirKind::Repetition(again) => again.min == 0 || may_be_empty(&again.sub, is_first)?,
        HirKind::Capture(Capture { sub, .. }) => may_be_empty(sub, is_first)?,
        HirKind::Concat(parts) => {
            for part in parts {
                if !may_be_empty(part, is_first)? {
                    return Some(false);
                }
            }
            true
        }
        HirKind::Alternation(parts) => {
            let mut any = false;
            for part in parts {
                any |= may_be_empty(part, is_first)?;
            }
            any
        }
    })
}

/// The text that a pattern asks a path to end with, if that is all of it.
pub fn ending(pattern: &str) -> Option<String> {
    let body = pattern.strip_suffix('$').filter(|body| !body.ends_with('\\'))?;
    let text: String = {
        let mut characters = body.chars();
        let mut text = String::new();
        while let Some(character) = characters.next() {
            text.push(if character == '\\' { characters.next()? } else { character });
        }
        text
    };
    (!text.is_empty() && escaped(&text) == body).then_some(text)
}

/// Whether no path ends as both patterns ask.
pub fn ends_apart(one: &str, two: &str) -> bool {
    ending(one).zip(ending(two)).is_some_and(|(one, two)| !one.ends_with(&two) && !two.ends_with(&one))
}

/// The text with which all that a pattern finds begins, where it is tied to the beginning of a path.
pub fn lead(pattern: &str) -> Option<Vec<u8>> {
    let hir = parse(pattern)?;
    let HirKind::Concat(parts) = hir.kind() else { return None };
    match parts.as_slice() {
        [start, text, ..] if *start.kind() == HirKind::Look(Look::Start) => match text.kind() {
            HirKind::Literal(text) => Some(text.0.to_vec()),
            _ => None,
        },
        _ => None,
    }
}

/// A pattern as the engine takes it, taken apart; none where it is none, or longer than it is looked at.
pub fn parse(pattern: &str) -> Option<Hir> {
    let mut parser = ParserBuilder::new().unicode(false).utf8(false).dot_matches_new_line(true).nest_limit(50).build();
    parser.parse(pattern).ok().filter(|_| pattern.len() <= PATTERN_BYTES_MAX)
}

/// A pattern of paths that begin and end so.
pub fn between(prefix: &str, ending: &str, ignores_case: bool) -> Path {
    let mut all = vec![format!("{}.*{}", escaped(prefix), escaped(ending))];
    // Prefix and ending may share what is between them.
    let shared = |index: &usize| prefix.ends_with(&ending[..*index]);
    all.extend(
        (1..=ending.len().min(prefix.len()))
            .filter(|index| ending.is_char_boundary(*index))
            .filter(shared)
            .map(|index| escaped(&format!("{prefix}{}", &ending[index..]))),
    );
    Path::Regex(format!("{}^(?:{})$", if ignores_case { "(?i)" } else { "" }, all.join("|")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use propylon_config::pattern;

    #[test]
    fn a_prefix_and_an_ending_make_one_pattern_with_what_they_share() {
        assert_eq!(ending(r"\.css$"), Some(".css".into()));
        assert_eq!((ending("[.]css$"), ending(r"\.css"), ending(r"a\$"), ending("$")), (None, None, None, None));
        assert_eq!(between("/a.c", ".css", false), Path::Regex(r"^(?:/a\.c.*\.css|/a\.css)$".into()));
    }

    #[test]
    fn a_pattern_below_a_prefix_is_found_where_both_hold_and_nowhere_else() {
        const PREFIXES: &[&str] = &["/", "/a/", "/a", "/a/b.php/", "/admin/"];
        const PATTERNS: &[&str] = &[
            r"\.php$",
            "/admin/",
            r"^/a/(.+\.php)$",
            "^/b/",
            r"^(.+\.php)(/.*)?$",
            r"(\.php|\.inc)$",
            r"[^/]\.php(/|$)",
            "(?i)/A(/|$)",
            "a|^b",
            "^",
            ".*/admin",
            "^/a$",
            "/{2}",
            "^/(a|b)/x",
            "b.p",
            "^(/|/a)/?b",
            "(?i)^/ADMIN/x",
        ];
        const PATHS: &[&str] = &[
            "/",
            "/a",
            "/a/",
            "/a/x.php",
            "/a/admin/",
            "/admin/",
            "/admin/x",
            "/admin/admin/",
            "/b/",
            "/a/b.php/",
            "/a/b",
            "/a/b.php/x",
            "/x.php",
            "/a/x.php/y",
            "/a/.inc",
            "/a.php",
            "/ab",
            "/a/x",
            "/a/b.php",
            "/a//b",
            "/ADMIN/x",
        ];
        for (prefix, text) in PREFIXES.iter().flat_map(|prefix| PATTERNS.iter().map(move |text| (*prefix, *text))) {
            let alone = pattern::compile(text).expect("a pattern");
            let both = below(prefix, text);
            for path in PATHS {
                let is_asked = path.starts_with(prefix) && alone.is_match(path.as_bytes());
                let is_found = match &both {
                    Below::Apart => false,
                    Below::All => path.starts_with(prefix),
                    Below::Some(both) => pattern::compile(both).expect("a pattern").is_match(path.as_bytes()),
                    Below::Unknown => panic!("{prefix} {text}"),
                };
                assert_eq!(is_found, is_asked, "{prefix} {text} {path}: {both:?}");
            }
        }
        assert_eq!(below("/a/", r"\bx"), Below::Unknown);
        assert_eq!(below("/a/", "(?!x)"), Below::Unknown);
        assert_eq!(below("/a/", r"\.php$"), Below::Some(r"^/a/.*\.php$".into()));
    }
}
