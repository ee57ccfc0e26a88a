//! Paths of locations: nginx compares what escapes stand for, and routes go by the canonical form, in which spaces,
//! controls, `%` and what is beyond ASCII are escapes. So these become escapes in prefixes and in patterns.

use std::collections::BTreeSet;

use propylon_config::pattern::compile;
use regex_syntax::hir::{Class, Hir, HirKind};

use super::access::guard_text;
use super::reader::split_kind;
use crate::patterns::parse;
use crate::plan::{Note, escaped};
use crate::words::Directive;

/// Bytes of a path, in a set.
type Bytes = [bool; 256];

/// Writes the paths of all locations in a block, which stands in these, in the canonical form. What cannot be said is
/// left out and told.
///
/// # Errors
/// A location that keeps requests out and whose path cannot be said: these would go to another one.
pub(super) fn canonical(block: &mut Directive, around: &[&Directive], notes: &mut Vec<Note>) -> Result<(), Note> {
    let (mut kept, mut merged) = (Vec::new(), Vec::new());
    let outer = Directive { block: Some(block.inner().to_vec()), words: block.words.clone(), line: block.line };
    let around: Vec<&Directive> = [&outer].into_iter().chain(around.iter().copied()).collect();
    for mut each in block.block.take().unwrap_or_default() {
        if each.name() == "location" && each.word(1).starts_with('@') {
            kept.push(each);
            continue;
        }
        if each.name() == "location" {
            split_kind(&mut each.words);
            let said = match (each.word(1), each.words.last()) {
                (kind @ ("~" | "~*"), Some(text)) => pattern(text, kind == "~*"),
                (_, Some(text)) => path(text),
                (_, None) => None,
            };
            let Some(said) = said else {
                let is_guarded = is_guarded(&each, &around);
                let note = Note::new(each.line, each.text(), if is_guarded { GUARDED } else { LOST });
                if is_guarded {
                    return Err(note);
                }
                notes.push(note);
                continue;
            };
            let one = if is_split(&around) && is_guarded(&each, &around) { one_slash(&said) } else { said.clone() };
            let is_merged = one != said;
            each.words.last_mut().into_iter().for_each(|text| *text = one.clone());
            canonical(&mut each, &around, notes)?;
            if is_merged {
                notes.push(Note::new(each.line, each.text(), SLASHES));
                merged.push(each);
                continue;
            }
        }
        kept.push(each);
    }
    // Others of the same paths are behind these, which go by their lines.
    let first = kept.iter().filter(|each| each.name() == "location").map(|each| each.line).min();
    merged.iter_mut().for_each(|each: &mut Directive| each.line = first.unwrap_or(each.line).min(each.line));
    kept.splice(0..0, merged);
    let is_missed = |each: &&Directive| has(each, "$") && is_guarded(each, &around);
    // A dot of nginx is no newline: who is let in by one does not come in by a path with that.
    let is_open = |each: &&Directive| has(each, ".") && kept.iter().any(|each| is_guarded(each, &around));
    let anywhere = kept.iter().find(is_open).map(|each| (each.line, "%0A"));
    let at_end = kept.iter().find(is_missed).map(|each| (each.line, "%0A$"));
    if let Some((line, pattern)) = anywhere.or(at_end).filter(|_| !is_pattern(block)) {
        kept.insert(0, newline(line, pattern));
    }
    block.block = Some(kept);
    Ok(())
}

/// Whether slashes in a row are more than one.
fn is_split(blocks: &[&Directive]) -> bool {
    blocks.iter().find_map(|block| block.find("merge_slashes")).is_some_and(|each| each.word(1) == "off")
}

/// A path or pattern with one slash where it has several in a row, or asks how many there are.
fn one_slash(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let begin = if rest[..at].ends_with('\\') { at - 1 } else { at };
        out.push_str(&rest[..begin]);
        let mut after = &rest[begin..];
        let (mut count, mut is_counted, mut is_some) = (0, false, false);
        while let Some(next) = after.strip_prefix('/').or_else(|| after.strip_prefix("\\/")) {
            let end = match next.chars().next() {
                Some('*' | '+' | '?') => 1,
                Some('{') => next.find('}').map_or(0, |end| end + 1),
                _ => 0,
            };
            is_counted |= next.starts_with('{') && end > 0;
            is_some |= !next.starts_with(['*', '?']);
            (count, after) = (count + 1, &next[end..]);
        }
        let run = &rest[begin..rest.len() - after.len()];
        out.push_str(if is_some && (count > 1 || is_counted) { "/" } else { run });
        rest = after;
    }
    out.push_str(rest);
    out
}

fn is_pattern(block: &Directive) -> bool {
    block.name() == "location" && ["~", "~*"].contains(&block.word(1))
}

/// Whether there is such a piece in the pattern of a location, or of one inside it: `$`, a dot.
fn has(location: &Directive, piece: &str) -> bool {
    let mut rest = location.words.last().map_or("", String::as_str);
    while is_pattern(location) && !rest.is_empty() {
        let (token, after) = rest.split_at(token(rest));
        if token == piece {
            return true;
        }
        rest = after;
    }
    is_pattern(location) && location.inner().iter().any(|each| has(each, piece))
}

/// A location that refuses paths with a newline, or with one at their end: in nginx `$` is in front of that as well,
/// and what keeps requests out would not be found here.
fn newline(line: usize, pattern: &str) -> Directive {
    let directive = |words: &str, block| {
        let words = words.split(' ').map(str::to_owned).collect();
        Directive { line, words, block }
    };
    let open = ["allow all", "auth_basic off", "auth_request off", "return 403"];
    let block = open.iter().map(|words| directive(words, None)).collect();
    directive(&format!("location ~ {pattern}"), Some(block))
}

const SLASHES: &str = "paths are compared with one slash in place of several: it holds for those with one as well";
const LOST: &str = "no pattern of Propylon says which paths it is for (there are no look-arounds, no back references \
                    and no parameters, `;x`): write a route; until then its requests go to other locations";
const GUARDED: &str = "no pattern of Propylon says which paths it is for (there are no look-arounds, no back references \
                       and no parameters, `;x`), and it keeps requests out: write it in another way, and import again";

/// Whether a location, or one inside it, keeps requests out.
fn is_guarded(location: &Directive, around: &[&Directive]) -> bool {
    let blocks: Vec<&Directive> = [location].into_iter().chain(around.iter().copied()).collect();
    let mut inner = location.inner().iter().filter(|each| each.name() == "location");
    !guard_text(&blocks).is_empty() || inner.any(|each| is_guarded(each, &blocks))
}

/// Whether a byte of a path stands as its escape in the canonical form.
fn is_escaped(byte: u8) -> bool {
    !byte.is_ascii_graphic() || byte == b'%'
}

/// A prefix or a whole path.
fn path(text: &str) -> Option<String> {
    (!text.contains(';')).then(|| text.bytes().map(escape).collect())
}

fn escape(byte: u8) -> String {
    if is_escaped(byte) { format!("%{byte:02X}") } else { char::from(byte).to_string() }
}

/// A pattern that finds in the canonical form what this one finds in what that stands for; none where there is none.
fn pattern(text: &str, ignores_case: bool) -> Option<String> {
    let flags = if ignores_case { "(?i)" } else { "" };
    let (text, behind) = but_for(text).unwrap_or((text, String::new()));
    let mut out = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = token(rest);
        let (token, after) = rest.split_at(length);
        rest = after;
        let is_many = rest.starts_with(['*', '+']);
        match first {
            ';' => return None,
            // A letter beside an escape is at no boundary, and may be at one beside what that stands for.
            '\\' if token == "\\b" || token == "\\B" => return None,
            // Lines are those of what escapes stand for.
            '(' if token.starts_with("(?") && !token.ends_with('>') && token.contains('m') => return None,
            '(' | ')' | '|' | '^' | '$' | '*' | '+' | '?' | '{' => out.push_str(token),
            '[' | '.' | '\\' => {
                let class = bytes(&format!("{flags}{}", ascii(token)));
                match class.map(|class| escapes(&class, is_many || out.is_empty())) {
                    Some(Some(said)) => out.push_str(&said),
                    Some(None) | None => out.push_str(token),
                }
            }
            _ => {
                let all: Vec<u8> = token.bytes().collect();
                let is_repeated = rest.starts_with(['*', '+', '?', '{']);
                for (index, byte) in all.iter().enumerate() {
                    match is_escaped(*byte) {
                        false => out.push(char::from(*byte)),
                        true if is_repeated && index + 1 == all.len() => out.push_str(&format!("(?:%{byte:02X})")),
                        true => out.push_str(&format!("%{byte:02X}")),
                    }
                }
            }
        }
    }
    // The first byte of an escape is as good as all of it where nothing follows.
    out.push_str(&behind);
    compile(&format!("{flags}{out}")).is_ok().then_some(out)
}

/// A pattern in front of what must not follow at its end, as in `/\.(?!well-known)`, and that without a look-around;
/// none of another, and where that is no text.
fn but_for(text: &str) -> Option<(&str, String)> {
    let (before, after) = text.split_once("(?!")?;
    let inside = ["", ".*", ".*$"].iter().find_map(|end| after.strip_suffix(end)?.strip_suffix(')'))?;
    let group = inside.strip_prefix("(?:").or(inside.strip_prefix('(')).and_then(|group| group.strip_suffix(')'));
    let words: Vec<String> = group.unwrap_or(inside).split('|').map(|word| word.replace('\\', "")).collect();
    // Escapes of what is no letter stand for themselves.
    let is_text = |word: &str| {
        word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_/.".contains(&byte)) && !word.is_empty()
    };
    let is_plain = |inside: &str| {
        let bytes = inside.as_bytes();
        (0..bytes.len()).all(|at| match bytes[at] {
            b'\\' => bytes.get(at + 1).is_some_and(|next| b"-_/.".contains(next)),
            b'.' => at > 0 && bytes[at - 1] == b'\\',
            _ => true,
        })
    };
    let is_said = is_plain(inside) && words.iter().all(|word| is_text(word));
    (is_said && !before.contains('|')).then(|| (before, others(&words)))
}

/// A pattern of what begins with none of these words.
fn others(words: &[String]) -> String {
    let firsts: BTreeSet<char> = words.iter().filter_map(|word| word.chars().next()).collect();
    let class: String =
        firsts.iter().map(|first| if *first == '-' { "\\-".into() } else { first.to_string() }).collect();
    let mut all = vec![r"\z".to_owned(), format!("[^{class}]")];
    for first in firsts {
        let rests: Vec<String> = words.iter().filter_map(|word| word.strip_prefix(first).map(str::to_owned)).collect();
        if rests.iter().all(|rest| !rest.is_empty()) {
            all.push(format!("{}{}", escaped(&first.to_string()), others(&rests)));
        }
    }
    format!("(?:{})", all.join("|"))
}

/// Length of the piece of a pattern at its beginning: a character, a class, the head of a group, a repetition.
fn token(text: &str) -> usize {
    let one = |text: &str| text.chars().next().map_or(0, char::len_utf8);
    let rest = &text[one(text)..];
    match text.as_bytes()[0] {
        b'\\' if rest.starts_with('x') && rest.len() > 2 && rest.is_char_boundary(3) && !rest.starts_with("x{") => 4,
        b'\\' => 1 + one(rest),
        b'(' if rest.starts_with('?') => text
            .find([':', ')', '>', '=', '!'])
            .map_or(text.len(), |end| end + usize::from(!text[end..].starts_with(')'))),
        b'{' => text.find('}').map_or(text.len(), |end| end + 1),
        b'[' => {
            let start = 1 + usize::from(rest.starts_with('^'));
            let mut at = start;
            while at < text.len() {
                match &text[at..] {
                    inside if inside.starts_with(']') && at > start => return at + 1,
                    inside if inside.starts_with('\\') => at += 1 + one(&inside[1..]),
                    inside if inside.starts_with("[:") => at += inside.find(":]").map_or(1, |end| end + 2),
                    inside => at += one(inside),
                }
            }
            text.len()
        }
        _ => one(text),
    }
}

/// A piece of a pattern in which what is beyond ASCII is bytes, as nginx takes it.
fn ascii(token: &str) -> String {
    let token = token.strip_prefix('\\').filter(|rest| !rest.is_ascii() || rest.starts_with(' ')).unwrap_or(token);
    let one = |byte: u8| match byte {
        b' ' | 0x80.. => format!("\\x{byte:02X}"),
        byte => char::from(byte).to_string(),
    };
    token.bytes().map(one).collect()
}

/// Bytes that a piece of a pattern finds, where it finds one.
fn bytes(token: &str) -> Option<Bytes> {
    let mut found = [false; 256];
    match parse(token).as_ref().map(Hir::kind)? {
        HirKind::Literal(text) => match &*text.0 {
            [byte] => found[usize::from(*byte)] = true,
            _ => return None,
        },
        HirKind::Class(Class::Bytes(class)) => {
            let ranges = class.ranges().iter().map(|range| usize::from(range.start())..=usize::from(range.end()));
            ranges.for_each(|range| found[range].fill(true));
        }
        HirKind::Class(Class::Unicode(class)) => {
            let class = class.to_byte_class()?;
            let ranges = class.ranges().iter().map(|range| usize::from(range.start())..=usize::from(range.end()));
            ranges.for_each(|range| found[range].fill(true));
        }
        _ => return None,
    }
    Some(found)
}

/// A class with escapes in it; none where it is the same with them: any number of what all of an escape is made of.
fn escapes(class: &Bytes, is_many: bool) -> Option<String> {
    let all = || (0..=255_u8).filter(|byte| is_escaped(*byte));
    let has = |byte: u8| class[usize::from(byte)];
    if !all().any(has) {
        return None;
    }
    let is_all = all().all(has);
    if is_all && is_many && b"0123456789ABCDEF".iter().all(|digit| has(*digit)) {
        return None;
    }
    let plain = |is_in: bool| (0..=255).filter(|byte| has(*byte) == is_in && !is_escaped(*byte)).collect::<Vec<u8>>();
    let mut parts = Vec::new();
    match is_all {
        true => {
            let others = plain(false);
            let others = if others.is_empty() { String::new() } else { inside(&others) };
            parts.extend([format!("[^%{others}]"), "%[0-9A-F]{2}".into()]);
        }
        false => {
            if !plain(true).is_empty() {
                parts.push(set(&plain(true)));
            }
            let low = |high: u8| (0..16).filter(|low| is_escaped(high << 4 | low) && has(high << 4 | low)).collect();
            let lows: Vec<Vec<u8>> = (0..16).map(low).collect();
            let digits = |all: &[u8]| {
                set(&all.iter().map(|digit| b"0123456789ABCDEF"[usize::from(*digit)]).collect::<Vec<u8>>())
            };
            let mut done: Vec<&Vec<u8>> = Vec::new();
            for own in lows.iter().filter(|own| !own.is_empty()) {
                if !done.contains(&own) {
                    let highs: Vec<u8> = (0..16).filter(|high| lows[usize::from(*high)] == *own).collect();
                    parts.push(format!("%{}{}", digits(&highs), digits(own)));
                    done.push(own);
                }
            }
        }
    }
    Some(format!("(?:{})", parts.join("|")))
}

/// A class of these bytes, which are in their order.
fn set(bytes: &[u8]) -> String {
    format!("[{}]", inside(bytes))
}

/// The inside of a class of these bytes.
fn inside(bytes: &[u8]) -> String {
    let one = |byte: u8| match byte.is_ascii_alphanumeric() || byte == b'/' {
        true => char::from(byte).to_string(),
        false => format!("\\{}", char::from(byte)),
    };
    let mut out = String::new();
    let mut rest = bytes;
    while let Some(first) = rest.first() {
        let length = rest.iter().zip(*first..).take_while(|(byte, next)| *byte == next).count();
        let last = rest[length - 1];
        out.push_str(&one(*first));
        if length > 2 {
            out.push('-');
        }
        if length > 1 {
            out.push_str(&one(last));
        }
        rest = &rest[length..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use propylon_config::PathRules;
    use propylon_config::canonical::rewrite;

    #[test]
    fn slashes_in_a_row_become_one() {
        for (text, one) in [
            ("^//y", "^/y"),
            (r"^\/\/y", "^/y"),
            ("/a/+/b//c/", "/a/b/c/"),
            ("^/{2,}x", "^/x"),
            ("/a/b", "/a/b"),
            ("^/+a/?$", "^/+a/?$"),
            (r"^/*a\.b$", r"^/*a\.b$"),
        ] {
            assert_eq!(one_slash(text), one, "{text}");
        }
    }

    #[test]
    fn a_pattern_says_what_must_not_follow() {
        for text in [r"/\.(?!well-known)", r"/\.(?!well-known\/).*", r"/\.(?!(?:well-known|wide))", "^/(?!a|ab)"] {
            let said = pattern(text, false).expect(text);
            let found = compile(&said).expect("a pattern");
            for (path, is_found) in [
                ("/.git", true),
                ("/.well-known", text.contains("known\\/") || text.starts_with('^')),
                ("/.well-known/x", text.starts_with('^')),
                ("/.wel", true),
                ("/.", true),
                ("/x/.well-knowN", true),
                ("/.wide", !text.contains("wide")),
                ("/abc", false),
            ] {
                assert_eq!(found.is_match(path.as_bytes()), is_found, "{text} {path}: {said}");
            }
        }
        for text in ["^/(?!x+)", "^/(?!a.b)", "^/a(?!b)c", "^/(?!a)(?!b)", "x|/(?!a)", r"^/(?!\d)"] {
            assert_eq!(pattern(text, false), None, "{text}");
        }
    }

    /// A pattern whose letters beyond ASCII are bytes, as they are to nginx.
    fn beyond(pattern: &str) -> String {
        pattern
            .bytes()
            .map(|byte| if byte.is_ascii() { char::from(byte).into() } else { format!("\\x{byte:02X}") })
            .collect()
    }

    #[test]
    fn a_pattern_finds_in_escapes_what_nginx_finds_in_what_they_stand_for() {
        const PATTERNS: &[&str] = &[
            r"^/my docs/",
            r"^/my\ docs/",
            r"^/my\sdocs/",
            r"^/my.docs/",
            "^/gr\u{fc}n$",
            "^/[\u{fc}x]+$",
            "^/gr\u{fc}+n",
            r"^/[^/]/x$",
            r"^/[^a-z]+$",
            r"^/\S+$",
            r"^/\W\w",
            r"\.php$",
            r"[^/]\.php(/|$)",
            r"^/(?<first>[^/]+)/(?:a|b c)$",
            r"^/100%$",
            r"^/a {2}b",
            r"^/[\x80-\xff]",
            r"^/[^\x20]$",
        ];
        const PATHS: &[&[u8]] = &[
            b"/my docs/",
            b"/my docs/x",
            b"/my/docs/",
            b"/mydocs/",
            b"/my\tdocs/",
            "/gr\u{fc}n".as_bytes(),
            "/gr\u{fc}\u{fc}n".as_bytes(),
            "/\u{fc}".as_bytes(),
            b"/x",
            b"/ ",
            b"/ /x",
            b"/y/x",
            b"/0",
            b"/ a",
            b"/a.php",
            b"/a .php",
            b"/.php",
            b"/x y/b c",
            b"/100%",
            b"/100",
            b"/a  b",
            b"/a b",
            b"/\xff",
        ];
        for text in PATTERNS {
            let alone = compile(&beyond(text)).expect("a pattern");
            let said = pattern(text, false).unwrap_or_else(|| panic!("{text}"));
            for path in PATHS {
                let escaped: String = path.iter().map(|byte| escape(*byte)).collect();
                let key = rewrite(escaped.as_bytes(), PathRules::default()).expect("a path");
                assert!(key.canonical.is_empty() && key.key.is_empty(), "{escaped}");
                let is_found = compile(&said).expect("a pattern").is_match(escaped.as_bytes());
                assert_eq!(is_found, alone.is_match(path), "{text} as {said}: {escaped}");
            }
        }
        assert_eq!(pattern(r"^/(.+\.php)(/.*)?$", false), Some(r"^/(.+\.php)(/.*)?$".into()));
        assert_eq!(pattern(r"^/[^/]+\.(js|css)$", true), Some(r"^/[^/]+\.(js|css)$".into()));
        assert_eq!((pattern("^/(?!x+)", false), pattern(r"\bx", false), pattern("^/a;b", false)), (None, None, None));
        assert_eq!((pattern("(?m)^/x", false), pattern("(?im:^/x)", false)), (None, None));
        assert_eq!((path("/my docs"), path("/a;b")), (Some("/my%20docs".into()), None));
    }
}
