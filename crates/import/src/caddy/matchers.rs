//! Matchers of Caddy.

use std::collections::BTreeMap;

use super::Reader;
use crate::plan::{Path, escaped, one_or_list, quoted};
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
        let own = match word {
            "*" => return Some((outer.to_vec(), 2)),
            _ if word.starts_with('/') => vec![Matched { path: path(word), ..Matched::all() }],
            _ if word.starts_with('@') => {
                let tests = self.matchers.get(word).cloned().unwrap_or_default();
                match tests
                    .is_empty()
                    .then_some("it is not there")
                    .map_or_else(|| tested(&tests), |what| Err(what.to_owned()))
                {
                    Ok(own) => own,
                    Err(what) => {
                        let fix =
                            format!("{word}: {what} is not carried over: write a route with host, path and `match`");
                        self.plan.note(each.line, each.text(), fix);
                        return None;
                    }
                }
            }
            _ => return Some((outer.to_vec(), 1)),
        };
        let both: Vec<Matched> = outer.iter().flat_map(|one| own.iter().map(move |two| joined(one, two))).collect();
        Some((both, 2))
    }
}

pub(super) fn host_is_within(host: &str, pattern: &str) -> bool {
    host == pattern || pattern.strip_prefix('*').is_some_and(|suffix| host.ends_with(suffix))
}

/// A path of a matcher: `/api/*` is a prefix, `/x` that path, `*.php` an ending.
pub(super) fn path(word: &str) -> Path {
    match word.strip_suffix('*') {
        Some(prefix) if !prefix.contains('*') && prefix.starts_with('/') => Path::Prefix(prefix.to_owned()),
        None if !word.contains('*') => Path::Exact(word.to_owned()),
        _ => {
            let parts: Vec<String> = word.split('*').map(escaped).collect();
            Path::Regex(format!("^{}$", parts.join(".*")))
        }
    }
}

/// Both of two matchers; of two paths that of the inner one.
pub(super) fn joined(one: &Matched, two: &Matched) -> Matched {
    let path = if two.path == Path::Prefix("/".into()) { one.path.clone() } else { two.path.clone() };
    let mut conditions = one.conditions.clone();
    conditions.extend(two.conditions.clone());
    Matched { host: two.host.clone().or_else(|| one.host.clone()), path, conditions }
}

/// Alternatives of a named matcher; else which of its tests has none.
pub(super) fn tested(tests: &[Directive]) -> Result<Vec<Matched>, String> {
    let mut all = vec![Matched::all()];
    for test in tests {
        let arguments = test.arguments();
        let each = |make: &dyn Fn(&String) -> Matched| arguments.iter().map(make).collect::<Vec<Matched>>();
        let own = match test.name() {
            "path" => each(&|word| Matched { path: path(word), ..Matched::all() }),
            "path_regexp" => {
                let pattern = arguments.last().cloned().unwrap_or_default();
                vec![Matched { path: Path::Regex(pattern), ..Matched::all() }]
            }
            "host" => each(&|word| Matched { host: Some(word.to_ascii_lowercase()), ..Matched::all() }),
            "method" => vec![Matched::all().with("method", "", one_or_list(arguments))],
            "remote_ip" | "client_ip" if !arguments.iter().any(|word| word == "forwarded") => {
                let networks = arguments.iter().flat_map(|word| match word.as_str() {
                    "private_ranges" => {
                        ["192.168.0.0/16", "172.16.0.0/12", "10.0.0.0/8", "127.0.0.1/8", "fd00::/8", "::1"]
                            .map(str::to_owned)
                            .to_vec()
                    }
                    word => vec![word.to_owned()],
                });
                vec![Matched::all().with("source", "", one_or_list(&networks.collect::<Vec<String>>()))]
            }
            "header" if !test.word(1).starts_with('!') => {
                vec![Matched::all().with("header", test.word(1), text_test(test.word(2)))]
            }
            "query" => each(&|word| {
                let (name, value) = word.split_once('=').unwrap_or((word, "*"));
                Matched::all().with("query", name, text_test(value))
            }),
            _ => return Err(format!("\"{}\"", test.text())),
        };
        all = all.iter().flat_map(|one| own.iter().map(move |two| joined(one, two))).collect();
        if all.len() > crate::plan::ALTERNATIVES_MAX {
            return Err("so many alternatives".into());
        }
    }
    Ok(all)
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
