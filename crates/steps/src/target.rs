//! Targets of requests, changed: the path as a prefix, a whole or a pattern, and parameters of the query.
//!
//! Paths come in canonical form and leave in it, so that no change makes a path of one that is refused, or one that
//! servers read in several ways.

use std::cell::RefCell;

use propylon_config::canonical::{prefix_end, rooted, route_key};
use propylon_config::pattern::{self, Substitute};
use propylon_config::{PathChange, PathPattern, PathRules, QueryChanges, RequestHeader};
use propylon_http::h1::{Reject, path as paths};
use regex::bytes::{CaptureLocations, Regex};

use crate::change::{Tell, write_value};
use crate::conditions::decoded;

/// Bytes that most changes make a path or a query longer by, so that memory is asked for once.
const ROOM_BYTES: usize = 32;

/// Change of a path, compiled.
///
/// Patterns keep scratch space that threads would wait for: each core has its own.
pub enum PathRewrite {
    /// The key of a prefix, and what takes its place: empty, or a path.
    Prefix(String, String),
    Replace(String),
    /// The first match of the pattern becomes the text.
    Regex(Substitution),
}

/// Text that takes the place of a pattern's first match.
pub struct Substitution {
    pattern: Regex,
    to: Vec<Substitute>,
    /// Places of the groups, which are asked for once and not by each request.
    groups: RefCell<CaptureLocations>,
}

/// A path that has been changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewritten {
    pub path: Vec<u8>,
    /// Parameters that the change has made, without a `?`; empty if none.
    pub query: Vec<u8>,
}

impl PathRewrite {
    /// A change of a route whose paths are these. It has been checked with the configuration.
    pub fn of(change: &PathChange, route: &PathPattern) -> PathRewrite {
        match change {
            PathChange::Strip { strip } => PathRewrite::Prefix(route_key(strip), String::new()),
            PathChange::ReplacePrefix { replace_prefix } => {
                let prefix = if let PathPattern::Prefix(prefix) = route { prefix } else { "/" };
                PathRewrite::Prefix(route_key(prefix), replace_prefix.clone())
            }
            PathChange::Replace { replace } => PathRewrite::Replace(replace.clone()),
            PathChange::Regex { regex, to } => {
                let pattern = pattern::compile(regex).expect("a configuration's patterns are checked");
                let to = pattern::substitutes(to, &pattern).expect("what takes their place is checked");
                let groups = RefCell::new(pattern.capture_locations());
                PathRewrite::Regex(Substitution { pattern, to, groups })
            }
        }
    }

    /// The other path, in canonical form; `None` where there is nothing to change. `path` is in canonical form.
    ///
    /// # Errors
    /// 400 for a path that has become one which such a listener refuses.
    pub fn apply(&self, path: &[u8], rules: PathRules) -> Result<Option<Rewritten>, Reject> {
        // An OPTIONS of the whole server has no path.
        if !path.starts_with(b"/") {
            return Ok(None);
        }
        let (path, query) = match self {
            PathRewrite::Replace(to) => (to.clone().into_bytes(), Vec::new()),
            PathRewrite::Prefix(prefix, to) => {
                let Some(end) = prefix_end(path, prefix) else { return Ok(None) };
                let rest = &path[end..];
                let to = if rest.is_empty() { to } else { to.trim_end_matches('/') };
                ([to.as_bytes(), rest].concat(), Vec::new())
            }
            PathRewrite::Regex(substitution) => match substitution.apply(path) {
                Some(substituted) => substituted,
                None => return Ok(None),
            },
        };
        Ok(Some(Rewritten { path: canonical(path, rules)?, query }))
    }
}

impl PathRewrite {
    /// Path and query of a redirect; `None` where there is nothing to change. `query` has its `?`, or is empty.
    ///
    /// # Errors
    /// As [`PathRewrite::apply`].
    pub fn target(&self, path: &[u8], query: &[u8], rules: PathRules) -> Result<Option<Vec<u8>>, Reject> {
        let Some(Rewritten { path, query: made }) = self.apply(path, rules)? else { return Ok(None) };
        let query = match made.is_empty() {
            true => query.to_vec(),
            false => change_query(&QueryChanges::default(), &made, query, &|_, _| false),
        };
        Ok(Some([path, query].concat()))
    }
}

impl Substitution {
    /// Path and query with the first match replaced.
    fn apply(&self, path: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut groups = self.groups.borrow_mut();
        let whole = self.pattern.captures_read(&mut groups, path)?.range();
        let mut out = Vec::with_capacity(path.len() + ROOM_BYTES);
        out.extend_from_slice(&path[..whole.start]);
        let mut query: Option<Vec<u8>> = None;
        for piece in &self.to {
            match (piece, &mut query) {
                (Substitute::Text(text), Some(query)) => query.extend_from_slice(text.as_bytes()),
                (Substitute::Text(text), None) => match text.split_once('?') {
                    Some((before, after)) => {
                        out.extend_from_slice(before.as_bytes());
                        let mut begun = Vec::with_capacity(after.len() + ROOM_BYTES);
                        begun.extend_from_slice(after.as_bytes());
                        query = Some(begun);
                    }
                    None => out.extend_from_slice(text.as_bytes()),
                },
                (Substitute::Group(number), query) => {
                    let text = groups.get(*number).map_or(&b""[..], |(start, end)| &path[start..end]);
                    match query {
                        Some(query) => write_parameter_part(text, query),
                        None => out.extend_from_slice(text),
                    }
                }
            }
        }
        out.extend_from_slice(&path[whole.end..]);
        Some((out, query.unwrap_or_default()))
    }
}

/// Writes a part of a path so that it stays within a parameter's value.
fn write_parameter_part(text: &[u8], out: &mut Vec<u8>) {
    for byte in text {
        match byte {
            b'&' | b'=' | b'+' | b';' | b'#' => write_escape(*byte, out),
            _ => out.push(*byte),
        }
    }
}

fn write_escape(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
}

/// A path that changes have made, in canonical form and of no other host.
fn canonical(path: Vec<u8>, rules: PathRules) -> Result<Vec<u8>, Reject> {
    let path = if path.starts_with(b"/") { path } else { [b"/", &path[..]].concat() };
    if paths::is_plain(&path) {
        return Ok(path);
    }
    let rewritten = paths::rewrite(&path, rules)?;
    let path = if rewritten.canonical.is_empty() { path } else { rewritten.canonical };
    Ok(rooted(&path))
}

/// A query with its parameters changed, with its `?` if it is not empty. `made` are parameters that a change of the
/// path has made, `query` the one that came, with its `?`: both are changed.
pub(crate) fn change_query(changes: &QueryChanges, made: &[u8], query: &[u8], tell: &Tell<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(query.len() + made.len() + 16);
    let mut add = |parameter: &[u8]| {
        out.push(if out.is_empty() { b'?' } else { b'&' });
        out.extend_from_slice(parameter);
    };
    let takes_away = !changes.set.is_empty() || !changes.remove.is_empty();
    let is_gone = |parameter: &[u8]| {
        if !takes_away {
            return false;
        }
        let name = decoded(parameter.split(|byte| *byte == b'=').next().unwrap_or_default());
        let gone = changes.set.iter().map(|line| &line.name).chain(&changes.remove);
        gone.into_iter().any(|gone| gone.as_bytes() == &*name)
    };
    let received = query.strip_prefix(b"?").unwrap_or_default();
    let there = [made, received].into_iter().flat_map(|query| query.split(|byte| *byte == b'&'));
    there.filter(|parameter| !parameter.is_empty() && !is_gone(parameter)).for_each(&mut add);
    for line in changes.set.iter().chain(&changes.add) {
        if let Some(parameter) = written(line, tell) {
            add(&parameter);
        }
    }
    out
}

/// A parameter as it is sent; none where something in it is not known.
fn written(line: &RequestHeader, tell: &Tell<'_>) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    let is_known = write_value(&line.value, tell, &mut value);
    let mut out = Vec::with_capacity(line.name.len() + value.len() + 8);
    write_encoded(line.name.as_bytes(), &mut out);
    out.push(b'=');
    write_encoded(&value, &mut out);
    is_known.then_some(out)
}

/// RFC 3986 §2.3: all but these may mean something to some reader of a query.
fn write_encoded(text: &[u8], out: &mut Vec<u8>) {
    for byte in text {
        match byte {
            b'-' | b'.' | b'_' | b'~' => out.push(*byte),
            _ if byte.is_ascii_alphanumeric() => out.push(*byte),
            _ => write_escape(*byte, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: PathRules = PathRules {
        merge_slashes: true,
        escaped_slash: false,
        backslash: false,
        escaped_nul: false,
        above_root: false,
    };
    const LOOSE: PathRules =
        PathRules { merge_slashes: false, escaped_slash: true, backslash: true, escaped_nul: true, above_root: true };

    fn changed(change: &PathChange, route: &str, path: &str, rules: PathRules) -> String {
        let rewrite = PathRewrite::of(change, &PathPattern::Prefix(route.into()));
        match rewrite.apply(path.as_bytes(), rules) {
            Ok(None) => "unchanged".into(),
            Ok(Some(Rewritten { path, query })) => {
                String::from_utf8([&path[..], if query.is_empty() { b"" } else { b"?" }, &query].concat()).unwrap()
            }
            Err(reject) => reject.to_string(),
        }
    }

    #[test]
    fn prefixes_are_of_whole_segments() {
        let strip = PathChange::Strip { strip: "/api".into() };
        for (path, wanted) in [
            ("/api/x", "/x"),
            ("/api", "/"),
            ("/api/", "/"),
            ("/apix", "unchanged"),
            ("/x/api", "unchanged"),
            ("/api;v=1/x;y", "/x;y"),
            ("*", "unchanged"),
        ] {
            assert_eq!(changed(&strip, "/", path, RULES), wanted, "{path}");
        }
        for (path, wanted) in [
            ("/api//evil.test/", "/evil.test/"),
            ("/api/%2Fevil", "/evil"),
            ("/api%2Fx", "/x"),
            ("/api/\\evil", "/evil"),
        ] {
            assert_eq!(changed(&strip, "/", path, LOOSE), wanted, "{path}");
        }
        let to = |prefix: &str| PathChange::ReplacePrefix { replace_prefix: prefix.into() };
        for (route, prefix, path, wanted) in [
            ("/a", "/b/c", "/a/x", "/b/c/x"),
            ("/a", "/b", "/a", "/b"),
            ("/a", "/b/", "/a/x", "/b/x"),
            ("/a", "/b/", "/a", "/b/"),
            ("/a", "/", "/a/x", "/x"),
            ("/a", "/", "/a", "/"),
            ("/a/", "/b", "/a/x", "/b/x"),
            ("/", "/v2", "/x", "/v2/x"),
            ("/", "/v2", "/", "/v2/"),
            ("/a@b", "/c", "/a%40b/%C3%A9", "/c/%C3%A9"),
        ] {
            assert_eq!(changed(&to(prefix), route, path, RULES), wanted, "{route} {prefix} {path}");
        }
        assert_eq!(changed(&PathChange::Replace { replace: "/all".into() }, "/", "/x/y", RULES), "/all");
    }

    #[test]
    fn patterns_make_canonical_paths_of_canonical_ones() {
        for (regex, to, path, wanted) in [
            ("^/u/([0-9]+)/(.*)$", "/users/$1/$2", "/u/7/a%20b", "/users/7/a%20b"),
            ("^/u/(?P<id>[0-9]+)", "/users/${id}0", "/u/7/x", "/users/70/x"),
            ("/old/", "/new/", "/a/old/b/old/c", "/a/new/b/old/c"),
            ("^/p/(.*)$", "/index.php?page=$1&x=1", "/p/a&b=c+d", "/index.php?page=a%26b%3Dc%2Bd&x=1"),
            ("^/p", "/q?x=1", "/p/rest", "/q/rest?x=1"),
            ("^/(.*)$", "$1", "/a", "/a"),
            ("^/x$", "", "/x", "/"),
            ("^/(.*)$", "/$$$1", "/a", "/$a"),
            ("^/a(.*)$", "/.$1", "/a./b", "400 path-above-root"),
            ("^/a(.*)$", "/b/.$1", "/a./c", "/c"),
            ("^/(..)", "/$1x", "/%C3%A9", "400 bad-escape"),
            ("^/a", "/b", "/c", "unchanged"),
        ] {
            let change = PathChange::Regex { regex: regex.into(), to: to.into() };
            assert_eq!(changed(&change, "/", path, RULES), wanted, "{regex} {to} {path}");
        }
        let change = PathChange::Regex { regex: "^/go".into(), to: "".into() };
        assert_eq!(changed(&change, "/", "/go//evil.test/", LOOSE), "/evil.test/");
    }

    #[test]
    fn a_redirect_keeps_the_query_behind_what_its_path_has_made() {
        let target = |change: PathChange, path: &str, query: &str| {
            let rewrite = PathRewrite::of(&change, &PathPattern::Prefix("/".into()));
            let target = rewrite.target(path.as_bytes(), query.as_bytes(), RULES).unwrap();
            target.map(|target| String::from_utf8(target).unwrap())
        };
        let strip = || PathChange::Strip { strip: "/a".into() };
        assert_eq!(target(strip(), "/a/x", "?b=1&&c").as_deref(), Some("/x?b=1&&c"));
        assert_eq!(target(strip(), "/b", "?b=1"), None);
        let regex = PathChange::Regex { regex: "^/(.)$".into(), to: "/x?y=$1".into() };
        assert_eq!(target(regex, "/z", "?b=1&c").as_deref(), Some("/x?y=z&b=1&c"));
    }

    #[test]
    fn a_querys_other_parameters_stay_as_they_came() {
        let line = |name: &str, value: &str| RequestHeader {
            name: name.into(),
            value: vec![propylon_config::Piece::Text(value.into())],
        };
        let changes = QueryChanges {
            set: vec![line("a b", "1&2 %")],
            add: vec![line("c", "3")],
            remove: vec!["utm".into(), "\u{e9}".into()],
        };
        let of = |made: &str, query: &str| {
            String::from_utf8(change_query(&changes, made.as_bytes(), query.as_bytes(), &|_, _| false)).unwrap()
        };
        assert_eq!(of("", ""), "?a%20b=1%262%20%25&c=3");
        assert_eq!(of("m=1", "?x=%zz&utm=1&a+b=0&%61%20b&utm&%C3%A9=1&c"), "?m=1&x=%zz&c&a%20b=1%262%20%25&c=3");
        assert_eq!(of("a+b=7&m=1&%75tm=2&m=3", "?a%20b=0"), "?m=1&m=3&a%20b=1%262%20%25&c=3");
        let none = QueryChanges { remove: vec!["x".into()], ..QueryChanges::default() };
        assert_eq!(change_query(&none, b"", b"?x=1", &|_, _| false), b"");
        assert_eq!(change_query(&none, b"", b"?x1=1&&y", &|_, _| false), b"?x1=1&y");
    }
}
