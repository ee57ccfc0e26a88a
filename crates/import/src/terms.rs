//! Conditions on requests, as routes have them: what rules that keep requests out are for.

use std::collections::BTreeMap;

use propylon_config::pattern;

use crate::patterns::{Below, below, between, ending, ends_apart};
use crate::plan::{Path, path_text};

/// Condition that something is there, whatever it is.
pub const PRESENT: &str = "{ present = true }";

/// Requests that a condition asks for; alternatives of it are several of these.
#[derive(Clone, Debug, Default)]
pub struct Term {
    pub host: Option<String>,
    pub path: Option<Path>,
    /// Whether over TLS.
    pub is_tls: Option<bool>,
    /// Whether the path is compared without case.
    pub ignores_case: bool,
    pub conditions: BTreeMap<(String, String), String>,
}

impl Term {
    /// Both; none where no request is of both, an error where no one route says that.
    pub fn and(&self, other: &Term) -> Result<Option<Term>, ()> {
        let Some(host) = both(&self.host, &other.host, hosts)? else { return Ok(None) };
        let Some(is_tls) = both(&self.is_tls, &other.is_tls, |_, _| Ok(None))? else { return Ok(None) };
        let Some((path, ignores_case)) = self.path_with(other)? else { return Ok(None) };
        let mut conditions = self.conditions.clone();
        for (key, value) in &other.conditions {
            let Some(known) = conditions.insert(key.clone(), value.clone()).filter(|known| known != value) else {
                continue;
            };
            match key.0.as_str() {
                "method" if !methods(&known).any(|one| methods(value).any(|two| one == two)) => return Ok(None),
                _ => return Err(()),
            }
        }
        let asked = conditions.iter().find(|((kind, _), _)| kind == "host").map(|(key, value)| (key.clone(), value));
        if let Some((key, asked)) = asked
            && let Some(is_it) = host.as_deref().and_then(|host| is_host(host, asked))
        {
            if !is_it {
                return Ok(None);
            }
            conditions.remove(&key);
        }
        Ok(Some(Term { host, path, is_tls, ignores_case, conditions }))
    }

    /// Paths of both, and whether these are compared without case.
    fn path_with(&self, other: &Term) -> Result<Option<(Option<Path>, bool)>, ()> {
        let (Some(one), Some(two)) = (&self.path, &other.path) else {
            let known = if self.path.is_some() { self } else { other };
            return Ok(Some((known.path.clone(), known.ignores_case)));
        };
        if self.ignores_case == other.ignores_case {
            let same = (one == two).then(|| one.clone());
            let both = same.map_or_else(|| paths(one, two, self.ignores_case), |path| Ok(Some(path)))?;
            return Ok(both.map(|path| (Some(path), self.ignores_case)));
        }
        let (exact, folded) = if self.ignores_case { (two, one) } else { (one, two) };
        let both = match (exact, folded) {
            (_, Path::Regex(pattern)) => paths(exact, &Path::Regex(format!("(?i){pattern}")), false)?,
            (Path::Regex(_), _) => return Err(()),
            _ => match paths(exact, folded, true)? {
                Some(path) if path != *exact => return Err(()),
                both => both,
            },
        };
        Ok(both.map(|path| (Some(path), false)))
    }

    /// Whether both ask for the same, but for TLS.
    pub fn is_same(&self, other: &Term) -> bool {
        (&self.host, &self.path, self.ignores_case, &self.conditions)
            == (&other.host, &other.path, other.ignores_case, &other.conditions)
    }

    /// The same for a rule that keeps requests out; whether it is for more then. Of several cookies or parameters of
    /// one name a route asks the first, and haproxy each of them: so these are kept out whatever they are.
    pub fn closed(mut self) -> (Term, bool) {
        let all = self.conditions.iter_mut().filter(|((kind, _), _)| ["cookie", "query"].contains(&kind.as_str()));
        let is_wider = all.fold(false, |is_wider, (_, value)| {
            let is_more = *value != PRESENT;
            PRESENT.clone_into(value);
            is_wider || is_more
        });
        (self, is_wider)
    }
}

/// Both of two values of which each may say nothing.
fn both<T: PartialEq + Clone>(
    one: &Option<T>,
    two: &Option<T>,
    meet: impl Fn(&T, &T) -> Result<Option<T>, ()>,
) -> Result<Option<Option<T>>, ()> {
    match (one, two) {
        (Some(one), Some(two)) if one != two => Ok(meet(one, two)?.map(Some)),
        _ => Ok(Some(one.clone().or_else(|| two.clone()))),
    }
}

fn hosts(one: &String, two: &String) -> Result<Option<String>, ()> {
    let is_in = |host: &str, all: &str| all.strip_prefix('*').is_some_and(|suffix| host.ends_with(suffix));
    Ok(match (one, two) {
        _ if is_in(one, two) => Some(one.clone()),
        _ if is_in(two, one) => Some(two.clone()),
        _ => None,
    })
}

fn methods(value: &str) -> impl Iterator<Item = &str> {
    value.split('"').skip(1).step_by(2)
}

/// Paths of both, where prefixes end anywhere in a segment.
fn paths(one: &Path, two: &Path, ignores_case: bool) -> Result<Option<Path>, ()> {
    let folded = |path: &Path| match ignores_case {
        true => path_text(path).to_ascii_lowercase(),
        false => path_text(path),
    };
    let (first, second) = (folded(one), folded(two));
    Ok(match (one, two) {
        (Path::Exact(_), Path::Exact(_)) => (first == second).then(|| one.clone()),
        (Path::Prefix(_) | Path::Exact(_), Path::Prefix(_)) if first.starts_with(&second) => Some(one.clone()),
        (Path::Prefix(_), Path::Prefix(_) | Path::Exact(_)) if second.starts_with(&first) => Some(two.clone()),
        (Path::Prefix(_) | Path::Exact(_), Path::Prefix(_) | Path::Exact(_)) => None,
        (Path::Prefix(prefix), Path::Regex(pattern)) | (Path::Regex(pattern), Path::Prefix(prefix)) => {
            match ending(pattern) {
                Some(ending) => Some(between(prefix, &ending, ignores_case)),
                None if prefix == "/" => Some(Path::Regex(pattern.clone())),
                None if ignores_case => return Err(()),
                None => match below(prefix, pattern) {
                    Below::Apart => None,
                    Below::All => Some(Path::Prefix(prefix.clone())),
                    Below::Some(pattern) => Some(Path::Regex(pattern)),
                    Below::Unknown => return Err(()),
                },
            }
        }
        (Path::Exact(text), Path::Regex(pattern)) | (Path::Regex(pattern), Path::Exact(text)) => {
            let case = if ignores_case { "(?i)" } else { "" };
            let compiled = pattern::compile(&format!("{case}{pattern}")).map_err(drop)?;
            compiled.is_match(text.as_bytes()).then(|| Path::Exact(text.clone()))
        }
        (Path::Regex(one), Path::Regex(two)) if !ignores_case && ends_apart(one, two) => None,
        _ => return Err(()),
    })
}

/// Whether a host is as a condition asks; none of one that stands for several.
pub fn is_host(host: &str, asked: &str) -> Option<bool> {
    let text = asked.split_once('"')?.1.rsplit_once('"')?.0.replace("\\\\", "\\").replace("\\\"", "\"");
    match host {
        _ if host.starts_with("*.") => None,
        _ if asked.starts_with("{ prefix") => Some(host.starts_with(&text)),
        _ => Some(pattern::compile(&text).ok()?.is_match(host.as_bytes())),
    }
}

/// The opposite of a condition, where that can be said.
pub fn negated(terms: &[Term]) -> Result<Vec<Term>, String> {
    match terms {
        [Term { host: None, path: None, is_tls: Some(is_tls), conditions, .. }] if conditions.is_empty() => {
            Ok(vec![Term { is_tls: Some(!is_tls), ..Term::default() }])
        }
        _ => Err("a condition with `!` or `unless`".into()),
    }
}

/// A condition; none of a text that cannot be compared with.
pub fn condition(kind: &str, name: &str, value: String) -> Option<Term> {
    let key = (kind.to_owned(), name.to_owned());
    let is_plain = !value.contains(|c: char| c.is_control()) && !name.contains(|c: char| c.is_control());
    is_plain.then(|| Term { conditions: BTreeMap::from([(key, value)]), ..Term::default() })
}

/// Whether a field may be asked for: names alone, and none by which clients say who they are, which are never there.
pub fn is_field(name: &str) -> bool {
    const NEVER: &[&str] = &["forwarded", "x-real-ip", "client-cert", "client-cert-chain"];
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token) && !name.starts_with("x-forwarded-") && !NEVER.contains(&name)
}

/// `x` of `hdr(x)`.
pub fn argument(test: &str) -> &str {
    test.split_once('(').map_or("", |(_, rest)| rest.trim_end_matches(')'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_conditions_are_one_where_a_route_says_both_and_none_where_no_request_is_of_both() {
        let of = |path: Path| Term { path: Some(path), ..Term::default() };
        let prefix = |text: &str| of(Path::Prefix(text.into()));
        let exact = |text: &str| of(Path::Exact(text.into()));
        let regex = |text: &str| of(Path::Regex(text.into()));
        let path = |one: &Term, two: &Term| one.and(two).map(|both| both.and_then(|both| both.path));
        assert_eq!(path(&prefix("/api"), &prefix("/apix")), Ok(Some(Path::Prefix("/apix".into()))));
        assert_eq!(path(&exact("/apix"), &prefix("/api")), Ok(Some(Path::Exact("/apix".into()))));
        assert_eq!(path(&prefix("/a"), &exact("/b")), Ok(None));
        assert_eq!(path(&prefix("/a"), &regex(r"\.php$")), Ok(Some(Path::Regex(r"^(?:/a.*\.php)$".into()))));
        assert_eq!(path(&regex("x"), &regex("y")), Err(()));
        let host = |name: &str| Term { host: Some(name.into()), ..Term::default() };
        let both = |one: &str, two: &str| host(one).and(&host(two)).map(|both| both.and_then(|both| both.host));
        assert_eq!((both("*.a.test", "x.a.test"), both("a.test", "b.test")), (Ok(Some("x.a.test".into())), Ok(None)));
        let method = |value: &str| Term {
            conditions: BTreeMap::from([(("method".to_owned(), String::new()), value.to_owned())]),
            ..Term::default()
        };
        assert!(matches!(method("\"GET\"").and(&method("[\"PUT\", \"POST\"]")), Ok(None)));
        assert!(method("\"GET\"").and(&method("[\"GET\", \"POST\"]")).is_err());
        assert_eq!(is_host("x.a.test", r#"{ regex = "a\\.test$" }"#), Some(true));
        assert_eq!(is_host("x.abtest", r#"{ regex = "a\\.test$" }"#), Some(false));
        assert_eq!(
            (is_host("a.b", r#"{ prefix = "a." }"#), is_host("*.b", r#"{ prefix = "a." }"#)),
            (Some(true), None)
        );
    }
}
