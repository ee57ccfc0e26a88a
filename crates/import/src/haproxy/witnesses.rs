//! Paths on which rules and routes are compared: texts in them, and what these make together.

use std::collections::BTreeSet;

use propylon_config::pattern::compile;
use regex_syntax::hir::{Class, Hir, HirKind, Look};

use crate::patterns::parse;
use crate::plan::Path;
use crate::terms::Term;

/// Paths that are compared at most; the words for it name the number.
const PATHS_MAX: usize = 4096;
/// Texts that are made of one pattern at most, and of beginnings and endings of all.
const TEXTS_MAX: usize = 8;
const PARTS_MAX: usize = 256;

/// A set of paths, by their numbers.
#[derive(Clone)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    pub(super) fn and(&self, other: &Bits) -> Bits {
        Bits(self.0.iter().zip(&other.0).map(|(one, two)| one & two).collect())
    }

    pub(super) fn remove(&mut self, other: &Bits) {
        self.0.iter_mut().zip(&other.0).for_each(|(one, two)| *one &= !two);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
}

pub(super) struct Witnesses {
    paths: Vec<String>,
    /// Whether there would be more of them than are compared.
    pub(super) is_cut: bool,
}

impl Witnesses {
    /// Paths that are made of the texts of rules and of routes.
    pub(super) fn of<'p>(terms: &[&Term], routes: impl Iterator<Item = &'p Path>) -> Witnesses {
        let (mut begins, mut tails) = (BTreeSet::from(["/".to_owned()]), BTreeSet::from(["x".to_owned()]));
        for (path, is_folded) in terms.iter().filter_map(|term| Some((term.path.as_ref()?, term.ignores_case))) {
            add(path, is_folded, (&mut begins, &mut tails));
        }
        routes.for_each(|path| add(path, false, (&mut begins, &mut tails)));
        let mut is_cut = begins.len().max(tails.len()) > PARTS_MAX;
        let (begins, tails): (Vec<String>, Vec<String>) =
            (begins.into_iter().take(PARTS_MAX).collect(), tails.into_iter().take(PARTS_MAX).collect());
        let mut all: BTreeSet<String> = begins.iter().cloned().collect();
        for begin in &begins {
            let bare = begin.trim_end_matches('/');
            all.extend([format!("{bare}/"), format!("{begin}x"), format!("{bare}/x")]);
            all.extend(Some(bare.to_owned()).filter(|bare| !bare.is_empty()));
        }
        let alone = || tails.iter().map(|tail| format!("/{}", tail.trim_start_matches('/')));
        all.extend(alone().chain(alone().map(|text| format!("{text}x"))));
        for (begin, tail) in begins.iter().flat_map(|begin| tails.iter().map(move |tail| (begin, tail))) {
            if all.len() >= PATHS_MAX {
                is_cut = true;
                break;
            }
            let bare = begin.trim_end_matches('/');
            all.extend([format!("{begin}{tail}"), format!("{bare}/{tail}"), format!("{bare}/x{tail}")]);
            // An ending may begin within what is in front of it.
            let shared = (1..tail.len().min(begin.len()))
                .filter(|at| tail.is_char_boundary(*at) && begin.ends_with(&tail[..*at]))
                .map(|at| format!("{begin}{}", &tail[at..]));
            all.extend(shared);
        }
        is_cut |= all.len() > PATHS_MAX;
        Witnesses { paths: all.into_iter().take(PATHS_MAX).collect(), is_cut }
    }

    pub(super) fn of_term(&self, term: &Term) -> Bits {
        let folded = |text: &str| if term.ignores_case { text.to_ascii_lowercase() } else { text.to_owned() };
        match &term.path {
            None => self.bits(|_| true),
            Some(Path::Prefix(prefix)) => self.bits(|path| folded(path).starts_with(&folded(prefix))),
            Some(Path::Exact(text)) => self.bits(|path| folded(path) == folded(text)),
            Some(Path::Regex(pattern)) => {
                self.found(&if term.ignores_case { format!("(?i){pattern}") } else { pattern.clone() })
            }
        }
    }

    pub(super) fn of_route(&self, path: &Path) -> Bits {
        match path {
            Path::Prefix(prefix) => self.bits(|path| {
                let rest = path.strip_prefix(prefix.as_str());
                rest.is_some_and(|rest| prefix.ends_with('/') || rest.is_empty() || rest.starts_with('/'))
            }),
            Path::Exact(text) => self.bits(|path| path == text),
            Path::Regex(pattern) => self.found(pattern),
        }
    }

    fn found(&self, pattern: &str) -> Bits {
        let compiled = compile(pattern);
        self.bits(|path| compiled.as_ref().is_ok_and(|compiled| compiled.is_match(path.as_bytes())))
    }

    fn bits(&self, is_in: impl Fn(&str) -> bool) -> Bits {
        let word = |paths: &[String]| {
            paths.iter().enumerate().fold(0, |word, (index, path)| word | u64::from(is_in(path)) << index)
        };
        Bits(self.paths.chunks(64).map(word).collect())
    }
}

/// Adds the texts of a path to those that paths begin with, or end with.
fn add(path: &Path, is_folded: bool, (begins, tails): (&mut BTreeSet<String>, &mut BTreeSet<String>)) {
    let (texts, is_begin) = match path {
        Path::Prefix(text) | Path::Exact(text) => (vec![text.clone()], true),
        Path::Regex(pattern) => match parse(pattern) {
            None => return,
            Some(hir) => (texts(&hir), hir.properties().look_set_prefix().contains(Look::Start)),
        },
    };
    for text in texts.into_iter().filter(|text| !text.is_empty()) {
        let all = if is_begin && text.starts_with('/') { &mut *begins } else { &mut *tails };
        if is_folded {
            all.extend([text.to_ascii_uppercase(), text.to_ascii_lowercase()]);
        }
        all.insert(text);
    }
}

/// Some texts in which a pattern is found.
fn texts(hir: &Hir) -> Vec<String> {
    let mut all = match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => vec![String::new()],
        HirKind::Literal(text) => vec![String::from_utf8_lossy(&text.0).into_owned()],
        HirKind::Class(class) => {
            let bytes = match class {
                Class::Bytes(class) => Some(class.clone()),
                Class::Unicode(class) => class.to_byte_class(),
            };
            let has = |byte: &u8| {
                let ranges = bytes.as_ref().map(|class| class.ranges()).unwrap_or_default();
                ranges.iter().any(|range| (range.start()..=range.end()).contains(byte))
            };
            (b'x'..=b'z').chain(b'!'..=b'~').find(has).map(|byte| char::from(byte).to_string()).into_iter().collect()
        }
        HirKind::Repetition(again) => {
            let once = texts(&again.sub);
            let count = usize::try_from(again.min).unwrap_or(1).min(TEXTS_MAX);
            let none = (count == 0).then(String::new);
            none.into_iter().chain(once.into_iter().map(|text| text.repeat(count.max(1)))).collect()
        }
        HirKind::Capture(capture) => texts(&capture.sub),
        HirKind::Concat(parts) => parts.iter().fold(vec![String::new()], |all, part| {
            let next = texts(part);
            let pairs = all.iter().flat_map(|one| next.iter().map(move |two| format!("{one}{two}")));
            pairs.take(TEXTS_MAX).collect()
        }),
        HirKind::Alternation(parts) => parts.iter().flat_map(|part| texts(part).into_iter().take(2)).collect(),
    };
    all.truncate(TEXTS_MAX);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_of_what_rules_begin_and_end_with() {
        let term = |path: Path| Term { path: Some(path), ..Term::default() };
        let terms = [term(Path::Prefix("/a/b".into())), term(Path::Regex(r"b\.y$".into()))];
        let paths = Witnesses::of(&terms.iter().collect::<Vec<_>>(), [Path::Regex("^/(c|d)[^/]".into())].iter());
        for path in ["/a/b.y", "/a/bx", "/a/b/xb.y", "/cx", "/d/x", "/b.yx", "/a/b", "/cx/b.y"] {
            assert!(paths.paths.iter().any(|known| known == path) || path == "/d/x", "{path}: {:?}", paths.paths);
        }
        let both = paths.of_term(&terms[0]).and(&paths.of_term(&terms[1]));
        assert!(!both.is_empty() && paths.of_route(&Path::Prefix("/a".into())).and(&both).0 == both.0);
    }
}
