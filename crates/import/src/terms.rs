//! Conditions of haproxy: what a test of an ACL asks for, as a route has it.

use std::collections::BTreeMap;

use crate::plan::{Path, escaped, one_or_list, quoted};

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
    /// Both; none where they ask for different things.
    pub fn and(&self, other: &Term) -> Option<Term> {
        fn one<T: PartialEq + Clone>(one: &Option<T>, two: &Option<T>) -> Result<Option<T>, ()> {
            match (one, two) {
                (Some(one), Some(two)) if one != two => Err(()),
                _ => Ok(one.clone().or_else(|| two.clone())),
            }
        }
        let mut conditions = self.conditions.clone();
        for (key, value) in &other.conditions {
            if conditions.insert(key.clone(), value.clone()).is_some_and(|known| known != *value) {
                return None;
            }
        }
        Some(Term {
            host: one(&self.host, &other.host).ok()?,
            path: one(&self.path, &other.path).ok()?,
            is_tls: one(&self.is_tls, &other.is_tls).ok()?,
            ignores_case: self.ignores_case || other.ignores_case,
            conditions,
        })
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

/// Alternatives of one test: `hdr(host) -i a.example b.example`.
pub fn terms(words: &[String]) -> Result<Vec<Term>, String> {
    let Some((test, rest)) = words.split_first() else { return Err("an empty condition".into()) };
    let mut values = rest.iter().filter(|word| !word.starts_with("--"));
    let mut texts: Vec<String> = Vec::new();
    let mut how = "";
    let mut ignores_case = false;
    while let Some(word) = values.next() {
        match word.as_str() {
            "-i" => ignores_case = true,
            "-m" => how = values.next().map_or("", String::as_str),
            "-f" => return Err("a file of values".into()),
            _ => texts.push(word.clone()),
        }
    }
    let name = test.split('(').next().unwrap_or_default();
    let path = |path: Path| Term { path: Some(path), ignores_case, ..Term::default() };
    let each = |make: &dyn Fn(&String) -> Option<Term>| -> Result<Vec<Term>, String> {
        texts.iter().map(make).collect::<Option<Vec<Term>>>().ok_or_else(|| format!("\"{}\"", words.join(" ")))
    };
    let is_host = argument(test).eq_ignore_ascii_case("host") || argument(test).starts_with("host,");
    let regex = |pattern: String| Some(path(Path::Regex(pattern)));
    match (name, how) {
        ("ssl_fc", _) => Ok(vec![Term { is_tls: Some(true), ..Term::default() }]),
        ("hdr" | "req.hdr" | "hdr_dom" | "hdr_str", "" | "str" | "dom") if is_host => each(&|text| host(text)),
        ("hdr_end", _) | ("hdr" | "req.hdr", "end") if is_host => {
            each(&|text| host(&format!("*.{}", text.strip_prefix('.')?)))
        }
        ("req.ssl_sni" | "req_ssl_sni" | "ssl_fc_sni", "" | "str") => each(&|text| host(text)),
        ("req.ssl_sni" | "req_ssl_sni" | "ssl_fc_sni", "end") => {
            each(&|text| host(&format!("*.{}", text.strip_prefix('.')?)))
        }
        ("path_beg", _) | ("path" | "url", "beg") | ("url_beg", _) => {
            each(&|text| Some(path(Path::Prefix(text.clone()))))
        }
        ("path" | "url", "" | "str") => each(&|text| Some(path(Path::Exact(text.clone())))),
        ("path_end", _) | ("path", "end") => each(&|text| regex(format!("{}$", escaped(text)))),
        ("path_sub", _) | ("path", "sub") => each(&|text| regex(escaped(text))),
        ("path_dir", _) => each(&|text| regex(format!("/{}(/|$)", escaped(text.trim_matches('/'))))),
        ("path_reg", _) | ("path", "reg") => each(&|text| regex(text.clone())),
        ("method", _) => Ok(vec![condition("method", "", one_or_list(&texts))]),
        ("src", _) => Ok(vec![condition("source", "", one_or_list(&texts))]),
        ("hdr" | "req.hdr", "" | "str") => each(&|text| Some(condition("header", argument(test), quoted(text)))),
        ("hdr" | "req.hdr", "found") => Ok(vec![condition("header", argument(test), "{ present = true }".into())]),
        ("hdr_beg" | "hdr" | "req.hdr", _) if !is_host && (how == "beg" || name == "hdr_beg") => {
            each(&|text| Some(condition("header", argument(test), format!("{{ prefix = {} }}", quoted(text)))))
        }
        ("hdr_reg" | "hdr_sub", _) if !is_host => each(&|text| {
            let pattern = if name == "hdr_reg" { text.clone() } else { escaped(text) };
            Some(condition("header", argument(test), format!("{{ regex = {} }}", quoted(&pattern))))
        }),
        ("cook" | "req.cook", "" | "str") => each(&|text| Some(condition("cookie", argument(test), quoted(text)))),
        ("cook" | "req.cook", "found") => Ok(vec![condition("cookie", argument(test), "{ present = true }".into())]),
        ("url_param" | "urlp", "" | "str") => each(&|text| Some(condition("query", argument(test), quoted(text)))),
        _ => Err(format!("\"{}\"", words.join(" "))),
    }
}

fn condition(kind: &str, name: &str, value: String) -> Term {
    let key = (kind.to_owned(), name.to_owned());
    Term { conditions: BTreeMap::from([(key, value)]), ..Term::default() }
}

fn host(text: &str) -> Option<Term> {
    let text = text.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(text, |(name, _)| name);
    let is_name = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._*".contains(c));
    is_name.then(|| Term { host: Some(text.to_ascii_lowercase()), ..Term::default() })
}

/// `x` of `hdr(x)`.
pub fn argument(test: &str) -> &str {
    test.split_once('(').map_or("", |(_, rest)| rest.trim_end_matches(')'))
}
