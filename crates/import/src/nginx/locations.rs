//! Locations of a server, also those inside others, in the order in which their routes are asked for.
//!
//! nginx takes the longest prefix, looks into what stands inside it, and then asks the patterns, but for those
//! beside a prefix with `^~`. Propylon asks whole paths, then patterns in their order, then prefixes by whole
//! segments. So what goes before a pattern, and what ends within a segment, becomes a pattern as well.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::rc::Rc;

use super::includes::is_unread;
use super::reader::location_path;
use crate::patterns::{Below, below, ending};
use crate::plan::{Note, Path, escaped};
use crate::words::Directive;

/// Locations of a server, and routes by patterns below prefixes, at most; beyond these are answered with 403.
const LOCATIONS_MAX: usize = 2000;
const TIED_MAX: usize = 2000;

/// Directives that a location inside another does not have from there, beside [`HANDLERS`].
const OWN: &[&str] = &["location", "if", "set", "limit_except"];
/// Handlers, which a location inside another does not have from there either; `limit_except` has those around it.
const HANDLERS: &[&str] = &[
    "proxy_pass",
    "fastcgi_pass",
    "uwsgi_pass",
    "scgi_pass",
    "grpc_pass",
    "return",
    "rewrite",
    "try_files",
    "stub_status",
];
/// Handlers that lead to another server.
const PASSES: &[&str] = &["proxy_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass", "grpc_pass"];
/// Directives of which one in a block hides all of those around it.
const TOGETHER: &[&[&str]] = &[&["allow", "deny"], &["root", "alias"]];

/// A location where it is asked for.
#[derive(Clone)]
pub(super) struct Spot {
    pub(super) path: Path,
    /// With what it has from those around it.
    pub(super) location: Rc<Directive>,
    /// Why it answers with 403 and nothing else.
    pub(super) shut: Option<&'static str>,
    /// Line of the location of the server that it stands in.
    top: usize,
}

/// A location by prefix.
struct Fixed {
    text: String,
    location: Rc<Directive>,
    /// Patterns that are asked below it and not in all of the server.
    own: Vec<Spot>,
    /// Whether patterns of the server are not asked below it.
    is_apart: bool,
    top: usize,
}

/// Surroundings of the locations inside one.
#[derive(Clone, Default)]
struct Outer {
    /// Patterns that are asked after those beside them.
    beyond: Vec<Spot>,
    is_apart: bool,
    /// Longer prefixes, which requests below them go to.
    barred: Vec<String>,
    top: Option<usize>,
}

/// Collection of a server's locations.
#[derive(Default)]
pub(super) struct Locations {
    exact: Vec<Spot>,
    patterns: Vec<Spot>,
    fixed: Vec<Fixed>,
    tied: usize,
    pub(super) notes: Vec<Note>,
}

/// All locations in a block, with those inside them.
pub(super) fn all(block: &Directive) -> Vec<&Directive> {
    let mut found: Vec<&Directive> = Vec::new();
    for each in block.inner().iter().filter(|each| each.name() == "location") {
        found.push(each);
        found.extend(all(each));
    }
    found
}

/// A location, with what it has from the one around it.
fn inherited(outer: &Directive, inner: &Directive) -> Directive {
    let hides = |each: &Directive| {
        let names = TOGETHER.iter().find(|names| names.contains(&each.name()));
        let alone = [each.name()];
        let names: &[&str] = names.map_or(&alone, |names| names);
        names.iter().any(|name| inner.find(name).is_some())
    };
    let is_own = |each: &Directive| OWN.contains(&each.name()) || HANDLERS.contains(&each.name());
    let is_left = |each: &&Directive| match each.name() {
        "include" => is_unread(each),
        _ => !is_own(each) && !hides(each),
    };
    let from = outer.inner().iter().filter(is_left);
    let block = inner.inner().iter().chain(from).cloned().collect();
    Directive { block: Some(block), ..inner.clone() }
}

/// A location as it is for methods that `limit_except` names, and for all others; none without it.
pub(super) fn by_method(location: &Directive) -> Option<(Vec<String>, Directive, Directive)> {
    let except = location.find("limit_except")?;
    let mut methods = except.arguments().to_vec();
    if methods.iter().any(|method| method == "GET") {
        methods.push("HEAD".into());
    }
    let rest: Vec<Directive> = location.inner().iter().filter(|each| each.name() != "limit_except").cloned().collect();
    let others = inherited(location, except);
    let is_passed = rest.iter().any(|each| PASSES.contains(&each.name()));
    // A `return` around it is not run for the others: whom its rules let in are looked for among files.
    let handler = |each: &Directive| match each.name() {
        "return" if is_passed => None,
        "return" => Some(Directive { words: vec!["return".into(), "405".into()], ..each.clone() }),
        name => (HANDLERS.contains(&name) && except.find(name).is_none()).then(|| each.clone()),
    };
    let block = others.inner().iter().cloned().chain(rest.iter().filter_map(handler)).collect();
    let others = Directive { block: Some(block), ..location.clone() };
    Some((methods, Directive { block: Some(rest), ..location.clone() }, others))
}

impl Locations {
    /// Locations of a server.
    pub(super) fn of(server: &Directive) -> (Vec<Spot>, Vec<Note>) {
        let mut found = Locations::default();
        if all(server).len() > LOCATIONS_MAX {
            let why = "more than 2000 locations are not carried over; until then its requests are answered with 403";
            let spot = Spot {
                path: Path::Prefix("/".into()),
                location: Rc::new(Directive { line: server.line, words: server.words.clone(), block: None }),
                shut: Some(why),
                top: server.line,
            };
            return (vec![spot], Vec::new());
        }
        found.patterns = found.patterns_in(server, None);
        found.level(server, &[], &Outer::default());
        let spots = found.ordered();
        (spots, found.notes)
    }

    /// Patterns directly inside a block, each behind those inside it.
    fn patterns_in(&mut self, block: &Directive, top: Option<usize>) -> Vec<Spot> {
        let is_server = top.is_none();
        let mut found = Vec::new();
        for each in block.inner().iter().filter(|each| each.name() == "location") {
            if let Some(Path::Regex(pattern)) = location_path(each.arguments()) {
                let location = if is_server { each.clone() } else { inherited(block, each) };
                found.extend(self.pattern(pattern, Rc::new(location), top.unwrap_or(each.line)));
            }
        }
        found
    }

    /// A location by pattern, behind those inside it.
    fn pattern(&mut self, pattern: String, location: Rc<Directive>, top: usize) -> Vec<Spot> {
        let mut found = Vec::new();
        let mut shut = None;
        for each in location.inner().iter().filter(|each| each.name() == "location") {
            match location_path(each.arguments()) {
                Some(Path::Regex(inner)) if let Some(both) = within(&pattern, &inner) => {
                    found.extend(self.pattern(both, Rc::new(inherited(&location, each)), top));
                }
                _ => {
                    shut = Some(
                        "which of its requests are for the locations inside it is not carried over: write a route \
                         for each; until then all are answered with 403",
                    );
                }
            }
        }
        if shut.is_some() {
            found.clear();
        }
        found.push(Spot { path: Path::Regex(pattern), location, shut, top });
        found
    }

    /// Whole paths and prefixes inside a block, beside these patterns.
    fn level(&mut self, block: &Directive, here: &[Spot], outer: &Outer) {
        let is_server = outer.top.is_none();
        let is_plain = |each: &&Directive| each.name() == "location" && !["~", "~*"].contains(&each.word(1));
        let prefixes = block.inner().iter().filter(is_plain).filter(|each| each.word(1) != "=");
        let prefixes: Vec<&str> = prefixes.filter_map(|each| each.words.last().map(String::as_str)).collect();
        for each in block.inner().iter().filter(is_plain) {
            let fix = match location_path(each.arguments()) {
                None => Some("named locations are not carried over"),
                Some(Path::Prefix(text) | Path::Exact(text))
                    if outer.barred.iter().any(|bar| text.starts_with(bar)) =>
                {
                    Some("no request comes there: another location has a longer prefix of its paths")
                }
                Some(_) => None,
            };
            if let Some(fix) = fix {
                self.notes.push(Note::new(each.line, each.text(), fix));
                continue;
            }
            let location = Rc::new(if is_server { each.clone() } else { inherited(block, each) });
            let top = outer.top.unwrap_or(each.line);
            let Some(Path::Prefix(text)) = location_path(each.arguments()) else {
                let path = Path::Exact(each.words.last().cloned().unwrap_or_default());
                self.exact.push(Spot { path, location, shut: None, top });
                continue;
            };
            let is_firm = each.word(1) == "^~";
            let beyond: Vec<Spot> = if is_firm { &[] } else { here }.iter().chain(&outer.beyond).cloned().collect();
            let is_apart = if is_server { is_firm } else { outer.is_apart };
            let inner = self.patterns_in(&location, Some(top));
            let own = inner.iter().chain(&beyond).cloned().collect();
            if location.find("location").is_some() {
                let longer = prefixes.iter().filter(|longer| longer.len() > text.len() && longer.starts_with(&*text));
                let barred = outer.barred.iter().cloned().chain(longer.map(|longer| (*longer).to_owned())).collect();
                self.level(&location, &inner, &Outer { beyond, is_apart, barred, top: Some(top) });
            }
            self.fixed.push(Fixed { text, location, own, is_apart, top });
        }
    }

    fn ordered(&mut self) -> Vec<Spot> {
        let mut fixed = std::mem::take(&mut self.fixed);
        fixed.sort_by_key(|each| Reverse(each.text.len()));
        let has_patterns = !self.patterns.is_empty();
        let is_first = |each: &&Fixed| !each.own.is_empty() || each.is_apart && has_patterns;
        let firsts: Vec<&str> = fixed.iter().filter(is_first).map(|each| each.text.as_str()).collect();
        let is_longer = |each: &Fixed, than: &str| each.text.len() > than.len() && each.text.starts_with(than);
        let mut spots = Vec::new();
        let mut rest: Vec<&Fixed> = Vec::new();
        for each in &fixed {
            let is_whole = each.is_apart && has_patterns || firsts.iter().any(|first| is_longer(each, first));
            let mut before = each.own.clone();
            if is_whole && !each.is_apart {
                before.extend(self.patterns.iter().cloned());
            }
            let is_left = self.tied(each, &before, &mut spots);
            match is_whole {
                true if is_left => spots.push(each.spot(Path::Regex(format!("^{}", escaped(&each.text))), None)),
                false if is_left => rest.push(each),
                _ => {}
            }
        }
        // A prefix of nginx ends anywhere in a segment.
        let ends: Vec<bool> = rest.iter().map(|each| !each.text.ends_with('/')).collect();
        let ended: Vec<&str> =
            rest.iter().zip(&ends).filter(|(_, is)| **is).map(|(each, _)| each.text.as_str()).collect();
        let is_beside =
            |each: &Fixed| ended.iter().any(|end| is_longer(each, end) && !each.text[end.len()..].starts_with('/'));
        let mut last = Vec::new();
        for (each, is_end) in rest.iter().zip(&ends) {
            let path = escaped(&each.text);
            if is_beside(each) {
                last.push(each.spot(Path::Regex(format!("^{path}")), None));
            } else if *is_end {
                last.push(each.spot(Path::Regex(format!("^{path}[^/]")), None));
            }
        }
        let slashless: Vec<Spot> = fixed.iter().filter_map(Fixed::slashless).collect();
        let is_known = |path: &Path| match path {
            Path::Exact(text) => {
                fixed.iter().any(|each| each.text == *text) || self.exact.iter().any(|each| each.path == *path)
            }
            _ => false,
        };
        last.extend(slashless.into_iter().filter(|each| !is_known(&each.path)));
        let mut middle: Vec<Spot> = self.exact.drain(..).chain(self.patterns.drain(..)).collect();
        middle.extend(rest.iter().map(|each| each.spot(Path::Prefix(each.text.clone()), None)));
        middle.sort_by_key(|each| each.top);
        spots.extend(middle.into_iter().chain(last));
        // No request comes to a later one of the same path, whatever its conditions are.
        let mut seen = BTreeSet::new();
        spots.retain(|each| seen.insert(each.path.clone()));
        spots
    }

    /// Adds routes for what patterns find below a prefix; whether anything is left for the prefix itself.
    fn tied(&mut self, fixed: &Fixed, patterns: &[Spot], spots: &mut Vec<Spot>) -> bool {
        let whole = || Path::Regex(format!("^{}", escaped(&fixed.text)));
        for each in patterns {
            let Path::Regex(pattern) = &each.path else { continue };
            match below(&fixed.text, pattern) {
                Below::Apart => {}
                Below::Some(both) if self.tied < TIED_MAX => {
                    self.tied += 1;
                    spots.push(Spot { path: Path::Regex(both), top: fixed.top, ..each.clone() });
                }
                Below::All => {
                    spots.push(Spot { path: whole(), top: fixed.top, ..each.clone() });
                    return false;
                }
                Below::Some(_) | Below::Unknown => {
                    let why = "which of its paths a pattern is for is not carried over: write a route for these; \
                               until then all are answered with 403";
                    spots.push(fixed.spot(whole(), Some(why)));
                    return false;
                }
            }
        }
        true
    }
}

impl Fixed {
    fn spot(&self, path: Path, shut: Option<&'static str>) -> Spot {
        Spot { path, location: Rc::clone(&self.location), shut, top: self.top }
    }

    /// The path of a prefix to servers without its slash, which nginx answers with a redirect there.
    fn slashless(&self) -> Option<Spot> {
        let is_passed = HANDLERS.iter().any(|name| name.ends_with("_pass") && self.location.find(name).is_some());
        let text = self.text.strip_suffix('/').filter(|text| !text.is_empty() && is_passed)?;
        let line = self.location.line;
        let words = vec!["return".into(), "301".into(), self.text.clone()];
        let block = Some(vec![Directive { line, words, block: None }]);
        let location = Rc::new(Directive { line, words: self.location.words.clone(), block });
        Some(Spot { path: Path::Exact(text.to_owned()), location, shut: None, top: self.top })
    }
}

/// The pattern of paths in which two are found; none where it is not known.
fn within(outer: &str, inner: &str) -> Option<String> {
    if outer == inner {
        return Some(inner.to_owned());
    }
    if let Some(prefix) = outer.strip_prefix('^')
        && let Some(prefix) = ending(&format!("{prefix}$"))
    {
        return match below(&prefix, inner) {
            Below::Some(both) => Some(both),
            Below::All => Some(outer.to_owned()),
            Below::Apart | Below::Unknown => None,
        };
    }
    let text = ending(outer.strip_prefix("(?i)").unwrap_or(outer))?;
    let is_below = inner.ends_with(&format!("{}$", escaped(&text))) && !inner.contains('|') && !inner.contains("(?i");
    is_below.then(|| inner.to_owned())
}
