//! Matchers of Caddy.

use std::collections::BTreeMap;
use std::net::IpAddr;

use propylon_config::{first_of_network, pattern};

use super::Reader;
use super::guard::term;
use crate::changed::Changed;
use crate::plan::{Path, escaped, one_or_list, quoted};
use crate::terms::{PRESENT, is_field};
use crate::variables::{self, lower};
use crate::words::Directive;

/// Requests that a matcher asks for.
#[derive(Clone, Debug)]
pub(super) struct Matched {
    pub(super) host: Option<String>,
    pub(super) path: Path,
    pub(super) conditions: BTreeMap<(String, String), String>,
}

impl Matched {
    pub(super) fn all() -> Matched {
        Matched { host: None, path: Path::Prefix("/".into()), conditions: BTreeMap::new() }
    }

    /// Asks that parameters of the query are there, whatever they are; whether that is more than was asked for.
    pub(super) fn ask_for_parameters(&mut self) -> bool {
        let all = self.conditions.iter_mut().filter(|((kind, _), value)| kind == "query" && *value != PRESENT);
        all.map(|(_, value)| PRESENT.clone_into(value)).count() > 0
    }

    fn with(self, kind: &str, name: &str, value: String) -> Matched {
        let mut conditions = self.conditions;
        conditions.insert((kind.to_owned(), name.to_owned()), value);
        Matched { conditions, ..self }
    }
}

impl Reader<'_> {
    /// Requests that a directive is for, and how many of its words say so; none where that cannot be said.
    pub(super) fn matched(&mut self, each: &Directive, outer: &[Matched]) -> Option<(Vec<Matched>, usize)> {
        let word = each.word(1);
        match word {
            "*" => return Some((outer.to_vec(), 2)),
            _ if !word.starts_with(['/', '@']) => return Some((outer.to_vec(), 1)),
            _ => {}
        }
        let own = match self.asked_for(word) {
            Ok(own) => own,
            Err(what) => {
                let fix = format!("{word}: {what} is not carried over: write a route with host, path and `match`");
                self.plan.note(each.line, each.text(), fix);
                return None;
            }
        };
        // Changes of paths in the block itself are seen to already.
        let changed = Changed { has_path: false, ..self.steps.before(each) };
        if own.iter().any(|one| changed.touches(&term(one, false))) {
            self.is_closed = true;
            let fix =
                format!("it asks for what is changed before it, and routes ask for what clients have sent: {BLOCK}");
            self.plan.note(each.line, each.text(), fix);
            return None;
        }
        let both = below(&self.prefix, own).and_then(|own| all_joined(outer, &own));
        match both {
            Ok(both) => Some((both, 2)),
            Err(()) => {
                self.close(each);
                None
            }
        }
    }

    /// Alternatives of a matcher, by its word; else what of it is not carried over.
    pub(super) fn asked_for(&self, word: &str) -> Result<Vec<Matched>, String> {
        if word.starts_with('/') {
            return match variables::is_in(word) || has_placeholder(word) {
                true => Err("a path that is made of others".into()),
                false => Ok(vec![Matched { path: path(word), ..Matched::all() }]),
            };
        }
        let tests = self.matchers.get(word).filter(|tests| !tests.is_empty());
        tests.ok_or("it is not there".to_owned()).and_then(|tests| tested(tests))
    }

    /// Closes the block at hand: what a directive in it is for cannot be said.
    pub(super) fn close(&mut self, each: &Directive) {
        self.is_closed = true;
        let fix = format!("it is in a block whose paths, hosts or conditions it cannot be joined with: {BLOCK}");
        self.plan.note(each.line, each.text(), fix);
    }
}

/// Words for what becomes of a block of which not all can be said.
pub(super) const BLOCK: &str = "write the routes of that block; until then every request that the block is for, and all \
                                of the site where it stands in no block, is answered with 403";

pub(super) fn host_is_within(host: &str, pattern: &str) -> bool {
    host == pattern || pattern.strip_prefix('*').is_some_and(|suffix| host.ends_with(suffix))
}

/// A path of a matcher: `/api/*` is a prefix, `/x` that path, `*.php` an ending.
pub(super) fn path(word: &str) -> Path {
    match word.strip_suffix('*') {
        // A last segment of dots is none in a route, and the beginning of one here.
        Some(prefix) if ["/.", "/.."].iter().any(|dots| prefix.ends_with(dots)) && !prefix.contains('*') => {
            Path::Regex(format!("(?i)^{}", escaped(prefix)))
        }
        Some(prefix) if !prefix.contains('*') && prefix.starts_with('/') => Path::Prefix(prefix.to_owned()),
        None if !word.contains('*') => Path::Exact(word.to_owned()),
        _ => {
            let parts: Vec<String> = word.split('*').map(escaped).collect();
            Path::Regex(format!("(?i)^{}$", parts.join(".*")))
        }
    }
}

/// Requests that both of two matchers ask for: none where they are for different ones, an error where no one route says
/// that.
pub(super) fn joined(one: &Matched, two: &Matched) -> Result<Option<Matched>, ()> {
    let mut conditions = one.conditions.clone();
    for (key, value) in &two.conditions {
        if conditions.insert(key.clone(), value.clone()).is_some_and(|known| known != *value) {
            return Err(());
        }
    }
    let host = match (&one.host, &two.host) {
        (Some(outer), Some(inner)) if host_is_within(outer, inner) => Some(outer.clone()),
        (Some(outer), Some(inner)) if !host_is_within(inner, outer) => return Ok(None),
        (outer, inner) => inner.clone().or_else(|| outer.clone()),
    };
    Ok(both(&one.path, &two.path)?.map(|path| Matched { host, path, conditions }))
}

/// Requests that are of both lists.
pub(super) fn all_joined(one: &[Matched], two: &[Matched]) -> Result<Vec<Matched>, ()> {
    let pairs = one.iter().flat_map(|one| two.iter().map(move |two| joined(one, two)));
    Ok(pairs.collect::<Result<Vec<Option<Matched>>, ()>>()?.into_iter().flatten().collect())
}

/// Paths that are of both, which Caddy compares without case.
fn both(one: &Path, two: &Path) -> Result<Option<Path>, ()> {
    let begins = |text: &str, prefix: &str| text.to_ascii_lowercase().starts_with(&prefix.to_ascii_lowercase());
    Ok(match (one, two) {
        _ if one == two => Some(one.clone()),
        (Path::Prefix(root), other) | (other, Path::Prefix(root)) if root == "/" => Some(other.clone()),
        (Path::Prefix(outer), Path::Prefix(inner)) if begins(inner, outer) => Some(two.clone()),
        (Path::Prefix(outer), Path::Prefix(inner)) => begins(outer, inner).then(|| one.clone()),
        (Path::Prefix(prefix), Path::Exact(text)) => begins(text, prefix).then(|| two.clone()),
        (Path::Exact(text), Path::Prefix(prefix)) => begins(text, prefix).then(|| one.clone()),
        (Path::Exact(outer), Path::Exact(inner)) => outer.eq_ignore_ascii_case(inner).then(|| one.clone()),
        (Path::Exact(text), Path::Regex(asked)) | (Path::Regex(asked), Path::Exact(text)) => {
            let compiled = pattern::compile(asked).map_err(drop)?;
            compiled.is_match(text.as_bytes()).then(|| Path::Exact(text.clone()))
        }
        (Path::Prefix(prefix), Path::Regex(asked)) | (Path::Regex(asked), Path::Prefix(prefix)) => {
            // Endings without a slash share nothing with a prefix that ends with one.
            let end = asked.strip_prefix(ENDING).filter(|end| !end.contains(['/']) && !end.contains(".*")).ok_or(())?;
            let prefix = Some(prefix).filter(|prefix| prefix.ends_with('/')).ok_or(())?;
            Some(Path::Regex(format!("(?i)^{}.*{end}", escaped(prefix))))
        }
        (Path::Regex(_), Path::Regex(_)) => return Err(()),
    })
}

/// Requests of a matcher in a `handle_path`, which takes this prefix away before; an error where they cannot be said.
pub(super) fn below(prefix: &str, all: Vec<Matched>) -> Result<Vec<Matched>, ()> {
    let moved = |one: Matched| {
        let path = match &one.path {
            _ if prefix.is_empty() => one.path,
            Path::Prefix(text) if text == "/" => one.path,
            Path::Prefix(text) => Path::Prefix(format!("{prefix}{text}")),
            Path::Exact(text) => Path::Exact(format!("{prefix}{text}")),
            Path::Regex(text) if text.starts_with(ENDING) => one.path,
            Path::Regex(_) => return Err(()),
        };
        Ok(Matched { path, ..one })
    };
    all.into_iter().map(moved).collect()
}

/// Head of the pattern of a matcher that asks for an ending.
const ENDING: &str = "(?i)^.*";

/// Alternatives of a named matcher; else which of its tests has none.
pub(super) fn tested(tests: &[Directive]) -> Result<Vec<Matched>, String> {
    let mut all = vec![Matched::all()];
    for test in &merged(tests) {
        let arguments = test.arguments();
        // A variable in a pattern would be a pattern, and no text: fields are lists here, and paths have other cases.
        let is_pattern = ["path", "path_regexp", "header", "header_regexp"].contains(&test.name())
            || test.words.iter().any(|word| word.contains('*'));
        let has_variable = is_pattern && test.words.iter().any(|word| variables::is_in(word));
        if has_variable || test.words.iter().any(|word| has_placeholder(word)) {
            return Err(format!("\"{}\"", test.text()));
        }
        let each = |make: &dyn Fn(&String) -> Matched| arguments.iter().map(make).collect::<Vec<Matched>>();
        let own = match test.name() {
            "path" => each(&|word| Matched { path: path(word), ..Matched::all() }),
            "path_regexp" => {
                let pattern = arguments.last().cloned().unwrap_or_default();
                vec![Matched { path: Path::Regex(pattern), ..Matched::all() }]
            }
            "host" => each(&|word| Matched { host: Some(lower(word)), ..Matched::all() }),
            "method" => vec![Matched::all().with("method", "", one_or_list(arguments))],
            "remote_ip" | "client_ip" if !arguments.iter().any(|word| word == "forwarded") => {
                let networks = arguments.iter().flat_map(|word| match word.as_str() {
                    "private_ranges" => {
                        ["192.168.0.0/16", "172.16.0.0/12", "10.0.0.0/8", "127.0.0.0/8", "fd00::/8", "::1"]
                            .map(str::to_owned)
                            .to_vec()
                    }
                    word => vec![network(word)],
                });
                vec![Matched::all().with("source", "", one_or_list(&networks.collect::<Vec<String>>()))]
            }
            "header" if !is_asked(test.word(1).trim_start_matches('!')) => return Err(format!("\"{}\"", test.text())),
            "header" => match test.word(1).strip_prefix('!') {
                Some(name) => vec![Matched::all().with("header", name, "{ present = false }".into())],
                None => {
                    let values = arguments.get(1..).filter(|values| !values.is_empty());
                    let all = values.map_or_else(|| vec![String::new()], <[String]>::to_vec);
                    all.iter().map(|value| Matched::all().with("header", test.word(1), line_test(value))).collect()
                }
            },
            "query" => parameters(arguments).map_err(|()| format!("\"{}\"", test.text()))?,
            _ => return Err(format!("\"{}\"", test.text())),
        };
        all = all_joined(&all, &own).map_err(|()| format!("\"{}\" beside others", test.text()))?;
        if all.len() > crate::plan::ALTERNATIVES_MAX {
            return Err("so many alternatives".into());
        }
    }
    Ok(all)
}

/// Whether a text has a placeholder of Caddy's, and no repetition of a pattern.
pub(super) fn has_placeholder(text: &str) -> bool {
    text.split('{').skip(1).any(|inside| inside.starts_with(|c: char| c.is_alphabetic() || "_$.".contains(c)))
}

/// Whether routes see a field as Caddy does.
fn is_asked(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    is_field(&name) && name != "host"
}

/// A test that one of a field's lines has to fit, which a route has joined by commas.
fn line_test(word: &str) -> String {
    match text_test(word) {
        test if word.is_empty() || test == "{ present = true }" => test,
        _ => {
            let parts: Vec<String> = word.split('*').map(escaped).collect();
            format!("{{ regex = {} }}", quoted(&format!("(?:^|, ){}(?:, |$)", parts.join(".*"))))
        }
    }
}

/// Alternatives of a test of parameters: values of one name are alternatives, and each name has to be there.
fn parameters(words: &[String]) -> Result<Vec<Matched>, ()> {
    let mut named: BTreeMap<&str, Vec<Matched>> = BTreeMap::new();
    for word in words {
        let (name, value) = word.split_once('=').unwrap_or((word, "*"));
        named.entry(name).or_default().push(Matched::all().with("query", name, text_test(value)));
    }
    let mut all = vec![Matched::all()];
    for own in named.values() {
        all = all_joined(&all, own)?;
        if all.len() > crate::plan::ALTERNATIVES_MAX {
            return Err(());
        }
    }
    Ok(all)
}

/// A network as a route has it: Caddy takes no notice of bits behind the prefix.
fn network(word: &str) -> String {
    let masked = || -> Option<String> {
        let (address, length) = word.split_once('/')?;
        let (address, length): (IpAddr, u8) = (address.parse().ok()?, length.parse().ok()?);
        let width = if address.is_ipv4() { 32 } else { 128 };
        (length <= width).then(|| format!("{}/{length}", first_of_network(address, length)))
    };
    masked().unwrap_or_else(|| word.to_owned())
}

/// Tests of a matcher, of which lines of one kind are alternatives of each other: Caddy takes them for one.
pub(super) fn merged(tests: &[Directive]) -> Vec<Directive> {
    let mut all: Vec<Directive> = Vec::new();
    for test in tests {
        let is_same = |known: &&mut Directive| {
            known.name() == test.name()
                && match test.name() {
                    "path" | "method" | "host" | "remote_ip" | "client_ip" | "query" => true,
                    "header" => !test.word(1).starts_with('!') && known.word(1).eq_ignore_ascii_case(test.word(1)),
                    _ => false,
                }
        };
        match all.iter_mut().find(is_same) {
            Some(known) => {
                let from = if test.name() == "header" { 2 } else { 1 };
                known.words.extend_from_slice(test.words.get(from..).unwrap_or_default());
            }
            None => all.push(test.clone()),
        }
    }
    all
}

/// `x`, `x*`, `*`.
fn text_test(word: &str) -> String {
    match word.strip_suffix('*') {
        Some("") => "{ present = true }".into(),
        None if word.is_empty() => "{ present = true }".into(),
        Some(prefix) if !prefix.contains('*') => format!("{{ prefix = {} }}", quoted(prefix)),
        _ if word.contains('*') => {
            let parts: Vec<String> = word.split('*').map(escaped).collect();
            format!("{{ regex = {} }}", quoted(&format!("^{}$", parts.join(".*"))))
        }
        _ => quoted(word),
    }
}
