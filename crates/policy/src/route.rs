//! Which rule a request falls under: of all that match, the most specific.
//!
//! A rule matches when its listener, its host and its path all match. Among the rules that match, the more specific
//! host wins; with the same host, the more specific path; with the same path, the rule for one listener before the
//! rule for any. Specific means:
//!
//! - host: an exact name, then suffixes from the longest to the shortest, then any host;
//! - path: an exact path, then patterns, then prefixes from the longest to the shortest;
//! - conditions, among rules for the same listener, host and path: one on the method, then the more on header fields,
//!   then the more on the query, then the more others, then the earlier in the file. A rule without conditions is last.
//!
//! (The order of the Kubernetes Gateway API's HTTPRouteMatch, which leaves patterns to implementations; nginx has them
//! before prefixes as well.) A rule whose conditions do not hold does not match, and the search goes on behind it.
//!
//! So a host whose own routes do not match the path **falls back** to the routes of less specific hosts: with
//! `shop.example /api` and `any host /`, a request for `shop.example/about` goes to the second. A route says what it
//! is for and nothing more; that `shop.example` exists is no statement about its other paths. (Envoy picks the host
//! first and answers 404 from there, and needs the catch-all repeated in every host; the Kubernetes Gateway API and
//! HAProxy's rules fall back as here.) Whoever wants a host to end its requests gives it a route for `/`.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

/// Conditions that a rule puts on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Absent: any listener.
    pub listener: Option<usize>,
    pub host: Host,
    pub path: Path,
    /// Absent: there are no conditions.
    pub conditions: Option<Rank>,
}

/// Number of conditions of each kind: of two rules that match, the one with the greater rank is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    pub has_method: bool,
    pub header_fields: u16,
    pub query_parameters: u16,
    pub others: u16,
}

/// Names are lower-case, without port and trailing dot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    Any,
    Exact(String),
    /// `.example`, with its dot: what ends with it and has at least one byte before it, so one label or several, and
    /// not `example` itself.
    Suffix(String),
}

/// Paths are compared byte by byte: case matters and nothing is decoded. Which spellings are the same is the caller's to
/// settle, for rules and requests alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// `/api`: by whole segments, so `/api` and `/api/x` but not `/apix`. `/api/`: what begins with it, so not `/api`.
    /// `/`: everything, also what does not begin with it (`*`).
    Prefix(String),
    Exact(String),
    /// A pattern, which is a condition to the router: its caller knows it.
    Pattern,
}

/// Rules, arranged for lookup.
///
/// A lookup allocates nothing. It costs a hash of the host, one more per label and configured suffix length, and per
/// host that it tries a binary search over the paths of that host. What a client sends cannot make it slower than the
/// configuration does: hosts are only searched up to the longest suffix, paths only along nested prefixes.
#[derive(Debug, Default)]
pub struct Router {
    exact: HashMap<Box<[u8]>, Paths>,
    suffixes: HashMap<Box<[u8]>, Paths>,
    /// Bytes in the longest of the suffixes.
    suffix_bytes_max: usize,
    any: Paths,
    /// Rules of which a request's other facts decide, in the order in which they are tried.
    groups: Vec<Box<[u32]>>,
}

/// Target of a request's listener, host and path: a rule, whatever else the request is, or rules of which its other
/// facts decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found(u32);

impl Found {
    /// The entry of `of_rules` for the rule, in the order of the rules; none where conditions decide, for which there
    /// is [`Router::find_where`].
    pub fn of<T>(self, of_rules: &[T]) -> Option<&T> {
        // Numbers of groups are beyond any rule's: the check of the bound tells them apart at no cost.
        of_rules.get(self.0 as usize)
    }

    /// Number of the rule, of so many; none where conditions decide, as in [`Found::of`].
    pub fn index_below(self, rules: usize) -> Option<usize> {
        Some(self.0 as usize).filter(|index| *index < rules)
    }
}

/// Bit of a rule's number in [`Choices`] that makes it the number of a group.
const GROUP: u32 = 1 << 31;

/// The paths of one host in byte order.
#[derive(Debug, Default)]
struct Paths {
    entries: Vec<Entry>,
    patterns: Choices,
    /// Listeners that some rule is for; all of them.
    listeners: Vec<usize>,
    everywhere: bool,
}

/// One path, with the rules for it as a prefix and as a whole.
#[derive(Debug)]
struct Entry {
    path: Box<[u8]>,
    exact: Choices,
    prefix: Choices,
    /// The longest other entry that is a prefix rule and that this path begins with, byte for byte.
    parent: Option<u32>,
}

/// Rules that differ in nothing but the listener: at most one for each and one for any.
#[derive(Debug, Default)]
struct Choices {
    listeners: Vec<(usize, u32)>,
    any: Option<u32>,
}

impl Router {
    /// The first of two rules that are the same in everything counts; the configuration refuses such pairs.
    pub fn new(rules: Vec<Rule>) -> Self {
        let mut router = Self::default();
        let patterned: HashSet<Host> =
            rules.iter().filter(|rule| rule.path == Path::Pattern).map(|rule| rule.host.clone()).collect();
        let mut rivals: HashMap<(Option<usize>, &Host, &Path), Vec<u32>> = HashMap::new();
        for (index, rule) in rules.iter().enumerate() {
            rivals.entry((rule.listener, &rule.host, &rule.path)).or_default().push(index as u32);
        }
        // In the order of the rules, so that groups have the same numbers each time.
        let mut rivals: Vec<_> = rivals.into_iter().collect();
        rivals.sort_unstable_by_key(|(_, indexes)| indexes[0]);
        for ((listener, host, path), mut indexes) in rivals {
            let conditions = |index: &u32| rules[*index as usize].conditions;
            indexes.sort_by_key(|index| Reverse(conditions(index)));
            let last = indexes.iter().position(|index| conditions(index).is_none());
            indexes.truncate(last.map_or(usize::MAX, |last| last + 1));
            // A prefix beside patterns is found after them.
            let is_plain = match path {
                Path::Pattern => false,
                Path::Prefix(_) => !patterned.contains(host),
                Path::Exact(_) => true,
            };
            let target = if is_plain && last == Some(0) {
                indexes[0]
            } else {
                router.groups.push(indexes.into());
                GROUP | (router.groups.len() - 1) as u32
            };
            router.paths_of(host.clone()).add(path.clone(), listener, target);
        }
        let exact = router.exact.values_mut();
        for paths in exact.chain(router.suffixes.values_mut()).chain([&mut router.any]) {
            paths.arrange();
        }
        router
    }

    /// Target of a request, if any rule is for its listener, host and path.
    ///
    /// `host` is lower-case, without port and trailing dot, and empty if the request names none; `path` is without
    /// query and fragment. Dot segments and escapes are settled by then: no server may understand another path than is
    /// compared here.
    pub fn find(&self, listener: usize, host: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Option<Found> {
        let (host, path) = (host.as_ref(), path.as_ref());
        let exact = self.exact.get(host).and_then(|paths| paths.find(listener, path));
        let target =
            exact.or_else(|| self.find_by_suffix(listener, host, path)).or_else(|| self.any.find(listener, path))?;
        Some(Found(target))
    }

    /// The most specific rule that holds: of those that are for the request's listener, host and path, the first for
    /// which `holds` is true. It is asked for rules with conditions, patterns among these, and for none that is less
    /// specific than the answer. As of `find`.
    pub fn find_where(
        &self,
        listener: usize,
        host: impl AsRef<[u8]>,
        path: impl AsRef<[u8]>,
        mut holds: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        self.candidates(listener, host.as_ref(), path.as_ref()).find(|rule| holds(*rule))
    }

    /// All rules for a listener, host and path, the most specific first; whether conditions hold is not looked at.
    /// As of `find`.
    pub fn candidates<'r>(
        &'r self,
        listener: usize,
        host: &'r [u8],
        path: &'r [u8],
    ) -> impl Iterator<Item = usize> + 'r {
        let targets = self.hosts(host).flat_map(move |paths| paths.all(listener, path));
        targets
            .flat_map(|target| {
                let group = (target & GROUP != 0).then(|| &*self.groups[(target & !GROUP) as usize]);
                let single = group.is_none().then_some(target);
                group.unwrap_or_default().iter().copied().chain(single)
            })
            .map(|rule| rule as usize)
    }

    /// Paths for a host, the most specific host first.
    fn hosts<'r>(&'r self, host: &'r [u8]) -> impl Iterator<Item = &'r Paths> + 'r {
        let suffixes = self.starts(host).filter_map(|start| self.suffixes.get(&host[start..]));
        self.exact.get(host).into_iter().chain(suffixes).chain([&self.any])
    }

    /// Places in a host at which suffixes may begin. From 1, because something must stand before the suffix; and not
    /// before the longest suffix could begin, or a host of nothing but dots would be hashed once for each of them.
    fn starts<'h>(&self, host: &'h [u8]) -> impl Iterator<Item = usize> + use<'h> {
        let first = host.len().saturating_sub(self.suffix_bytes_max).max(1);
        (first..host.len()).filter(|start| host[*start] == b'.')
    }

    /// Whether any request for this host may have a rule, whatever its path. As of `find`.
    pub fn serves(&self, listener: usize, host: impl AsRef<[u8]>) -> bool {
        self.hosts(host.as_ref()).any(|paths| paths.serve(listener))
    }

    fn find_by_suffix(&self, listener: usize, host: &[u8], path: &[u8]) -> Option<u32> {
        let mut paths = self.starts(host).filter_map(|start| self.suffixes.get(&host[start..]));
        paths.find_map(|paths| paths.find(listener, path))
    }

    fn paths_of(&mut self, host: Host) -> &mut Paths {
        match host {
            Host::Any => &mut self.any,
            Host::Exact(name) => self.exact.entry(name.into_bytes().into()).or_default(),
            Host::Suffix(suffix) => {
                assert!(suffix.starts_with('.'), "a suffix begins with its dot: {suffix:?}");
                self.suffix_bytes_max = self.suffix_bytes_max.max(suffix.len());
                self.suffixes.entry(suffix.into_bytes().into()).or_default()
            }
        }
    }
}

impl Paths {
    fn serve(&self, listener: usize) -> bool {
        self.everywhere || self.listeners.contains(&listener)
    }

    fn add(&mut self, path: Path, listener: Option<usize>, rule: u32) {
        match listener {
            None => self.everywhere = true,
            Some(listener) if self.listeners.contains(&listener) => {}
            Some(listener) => self.listeners.push(listener),
        }
        let (path, exact) = match path {
            Path::Pattern => return self.patterns.add(listener, rule),
            Path::Exact(path) => (path, Some((listener, rule))),
            // The empty text begins everything.
            Path::Prefix(path) if path == "/" => (String::new(), None),
            Path::Prefix(path) => (path, None),
        };
        let mut entry = Entry {
            path: path.into_bytes().into(),
            exact: Choices::default(),
            prefix: Choices::default(),
            parent: None,
        };
        match exact {
            Some((listener, rule)) => entry.exact.add(listener, rule),
            None => entry.prefix.add(listener, rule),
        }
        self.entries.push(entry);
    }

    /// Sorts, makes one entry of those with the same path, and links each to its parent.
    fn arrange(&mut self) {
        self.entries.sort_by(|a, b| a.path.cmp(&b.path));
        self.entries.dedup_by(|later, first| {
            let same = later.path == first.path;
            if same {
                first.exact.merge(&mut later.exact);
                first.prefix.merge(&mut later.prefix);
            }
            same
        });
        // In byte order everything that begins with a path follows it directly, so the open prefixes form a stack.
        let mut open: Vec<u32> = Vec::new();
        for index in 0..self.entries.len() {
            while let Some(top) = open.last()
                && !self.entries[index].path.starts_with(&self.entries[*top as usize].path)
            {
                open.pop();
            }
            self.entries[index].parent = open.last().copied();
            if !self.entries[index].prefix.is_empty() {
                open.push(index as u32);
            }
        }
    }

    fn find(&self, listener: usize, path: &[u8]) -> Option<u32> {
        let Some(last) = self.last(path) else { return self.patterns.find(listener) };
        if *last.path == *path
            && let Some(rule) = last.exact.find(listener)
        {
            return Some(rule);
        }
        self.prefixes(last, path).find_map(|entry| entry.prefix.find(listener)).or_else(|| self.patterns.find(listener))
    }

    /// The rules and groups of all entries for a path, the most specific first.
    fn all<'p>(&'p self, listener: usize, path: &'p [u8]) -> impl Iterator<Item = u32> + 'p {
        let last = self.last(path);
        let exact = last.filter(|last| *last.path == *path).map(|last| &last.exact);
        let prefixes = last.into_iter().flat_map(|last| self.prefixes(last, path)).map(|entry| &entry.prefix);
        exact.into_iter().chain([&self.patterns]).chain(prefixes).flat_map(move |choices| choices.all(listener))
    }

    /// The last entry that is not greater than the path. Every prefix of the path is this one or an ancestor of it:
    /// whatever lies between a prefix and the path in byte order begins with that prefix too.
    fn last(&self, path: &[u8]) -> Option<&Entry> {
        let after = self.entries.partition_point(|entry| *entry.path <= *path);
        Some(&self.entries[after.checked_sub(1)?])
    }

    fn prefixes<'p>(&'p self, last: &'p Entry, path: &'p [u8]) -> impl Iterator<Item = &'p Entry> + 'p {
        let parent = |entry: &&'p Entry| entry.parent.map(|index| &self.entries[index as usize]);
        std::iter::successors(Some(last), parent).filter(|entry| entry.is_prefix_of(path))
    }
}

impl Entry {
    fn is_prefix_of(&self, path: &[u8]) -> bool {
        let Some(rest) = path.strip_prefix(&*self.path) else {
            return false;
        };
        let ends_a_segment = matches!(self.path.last(), None | Some(b'/'));
        ends_a_segment || matches!(rest.first(), None | Some(b'/'))
    }
}

impl Choices {
    fn add(&mut self, listener: Option<usize>, rule: u32) {
        match listener {
            None => self.any = self.any.or(Some(rule)),
            Some(listener) if self.listeners.iter().any(|(other, _)| *other == listener) => {}
            Some(listener) => self.listeners.push((listener, rule)),
        }
    }

    fn merge(&mut self, later: &mut Self) {
        if let Some(rule) = later.any {
            self.add(None, rule);
        }
        for (listener, rule) in later.listeners.drain(..) {
            self.add(Some(listener), rule);
        }
    }

    fn is_empty(&self) -> bool {
        self.any.is_none() && self.listeners.is_empty()
    }

    fn find(&self, listener: usize) -> Option<u32> {
        let own = self.listeners.iter().find(|(other, _)| *other == listener);
        own.map(|(_, rule)| *rule).or(self.any)
    }

    fn all(&self, listener: usize) -> impl Iterator<Item = u32> {
        let own = self.listeners.iter().find(|(other, _)| *other == listener);
        own.map(|(_, rule)| *rule).into_iter().chain(self.any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(listener: Option<usize>, host: &str, path: &str) -> Rule {
        let host = match host {
            "" => Host::Any,
            suffix if suffix.starts_with('.') => Host::Suffix(suffix.to_owned()),
            name => Host::Exact(name.to_owned()),
        };
        let path = match path.strip_prefix('=') {
            Some(exact) => Path::Exact(exact.to_owned()),
            None => Path::Prefix(path.to_owned()),
        };
        Rule { listener, host, path, conditions: None }
    }

    /// The rule for a request none of whose other facts fulfils a condition.
    fn find(router: &Router, listener: usize, host: &str, path: &str) -> Option<usize> {
        let Found(rule) = router.find(listener, host, path)?;
        assert!(rule & GROUP == 0, "a rule of {host}{path} has conditions");
        Some(rule as usize)
    }

    fn router(rules: &[(&str, &str)]) -> Router {
        Router::new(rules.iter().map(|(host, path)| rule(None, host, path)).collect())
    }

    #[test]
    fn a_host_is_served_where_any_path_of_it_is() {
        let rules =
            [rule(None, "shop.example", "/api"), rule(Some(1), ".tenant.example", "=/x"), rule(Some(2), "", "/any")];
        let router = Router::new(rules.into());
        for (listener, host, serves) in [
            (0, "shop.example", true),
            (0, "other.example", false),
            (0, "a.tenant.example", false),
            (0, "", false),
            (1, "a.tenant.example", true),
            (1, "tenant.example", false),
            (2, "other.example", true),
        ] {
            assert_eq!(router.serves(listener, host), serves, "{listener} {host}");
        }
    }

    #[test]
    fn a_prefix_stands_for_whole_segments() {
        let router = router(&[("", "/api")]);
        for path in ["/api", "/api/", "/api/x", "/api//"] {
            assert_eq!(find(&router, 0, "h", path), Some(0), "{path}");
        }
        for path in ["/", "/apix", "/ap", "/API", "", "/x/api"] {
            assert_eq!(find(&router, 0, "h", path), None, "{path}");
        }
    }

    #[test]
    fn a_prefix_with_a_slash_stands_for_what_begins_with_it() {
        let router = router(&[("", "/api/")]);
        assert_eq!(find(&router, 0, "h", "/api/"), Some(0));
        assert_eq!(find(&router, 0, "h", "/api/x"), Some(0));
        assert_eq!(find(&router, 0, "h", "/api"), None);
    }

    #[test]
    fn the_root_stands_for_everything() {
        let router = router(&[("", "/")]);
        for path in ["/", "/x", "*", "", "shop.example:443"] {
            assert_eq!(find(&router, 0, "", path), Some(0), "{path}");
        }
    }

    #[test]
    fn an_exact_path_wins_over_any_prefix_and_a_long_prefix_over_a_short_one() {
        let router = router(&[("", "/"), ("", "/a"), ("", "/a/"), ("", "/a/b"), ("", "=/a/b"), ("", "=/a")]);
        assert_eq!(find(&router, 0, "h", "/a/b"), Some(4));
        assert_eq!(find(&router, 0, "h", "/a/b/"), Some(3));
        assert_eq!(find(&router, 0, "h", "/a/bc"), Some(2));
        assert_eq!(find(&router, 0, "h", "/a"), Some(5));
        assert_eq!(find(&router, 0, "h", "/ab"), Some(0));
    }

    #[test]
    fn an_exact_host_wins_over_suffixes_and_a_long_suffix_over_a_short_one() {
        let router = router(&[("", "/"), (".example", "/"), (".shop.example", "/"), ("a.shop.example", "/")]);
        assert_eq!(find(&router, 0, "a.shop.example", "/"), Some(3));
        assert_eq!(find(&router, 0, "b.shop.example", "/"), Some(2));
        assert_eq!(find(&router, 0, "x.b.shop.example", "/"), Some(2));
        assert_eq!(find(&router, 0, "shop.example", "/"), Some(1));
        assert_eq!(find(&router, 0, "example", "/"), Some(0));
        assert_eq!(find(&router, 0, ".example", "/"), Some(0), "no label before the suffix");
        assert_eq!(find(&router, 0, "", "/"), Some(0));
    }

    #[test]
    fn a_host_without_a_matching_path_falls_back_to_less_specific_hosts() {
        let router = router(&[("", "/"), (".example", "/static"), ("shop.example", "/api")]);
        assert_eq!(find(&router, 0, "shop.example", "/api/x"), Some(2));
        assert_eq!(find(&router, 0, "shop.example", "/static/x"), Some(1));
        assert_eq!(find(&router, 0, "shop.example", "/about"), Some(0));
    }

    #[test]
    fn the_host_counts_before_the_path_and_the_path_before_the_listener() {
        let router = Router::new(vec![
            rule(Some(7), "", "=/a/b"),
            rule(None, "h", "/"),
            rule(Some(7), "h", "/a"),
            rule(None, "h", "/a/b"),
            rule(None, "h", "/a"),
        ]);
        assert_eq!(find(&router, 7, "h", "/a/b"), Some(3));
        assert_eq!(find(&router, 7, "h", "/a"), Some(2));
        assert_eq!(find(&router, 8, "h", "/a"), Some(4));
        assert_eq!(find(&router, 8, "i", "/a/b"), None);
        assert_eq!(find(&router, 7, "i", "/a/b"), Some(0));
    }

    #[test]
    fn a_rule_of_another_listener_does_not_hide_a_shorter_prefix() {
        let router = Router::new(vec![rule(Some(1), "h", "/a/b"), rule(None, "h", "/a"), rule(Some(1), "h", "=/a/b")]);
        assert_eq!(find(&router, 0, "h", "/a/b"), Some(1));
        assert_eq!(find(&router, 1, "h", "/a/b"), Some(2));
    }

    #[test]
    fn of_two_equal_rules_the_first_counts() {
        let router = Router::new(vec![
            rule(Some(1), "h", "/a"),
            rule(Some(1), "h", "/a"),
            rule(None, "h", "/a"),
            rule(None, "h", "/a"),
        ]);
        assert_eq!(find(&router, 1, "h", "/a"), Some(0));
        assert_eq!(find(&router, 2, "h", "/a"), Some(2));
    }

    #[test]
    fn without_rules_nothing_is_found() {
        assert_eq!(find(&Router::new(Vec::new()), 0, "h", "/"), None);
    }

    #[test]
    fn rules_with_conditions_go_before_one_without_and_fall_back_to_it_and_to_shorter_paths() {
        let conditions = |has_method, header_fields| Some(Rank { has_method, header_fields, ..Rank::default() });
        let router = Router::new(vec![
            rule(None, "h", "/"),
            Rule { conditions: conditions(false, 1), ..rule(None, "h", "/a") },
            Rule { conditions: conditions(false, 2), ..rule(None, "h", "/a") },
            Rule { conditions: conditions(true, 0), ..rule(None, "h", "/a") },
            rule(None, "h", "/b"),
        ]);
        let of_rules = ["/", "1", "2", "method", "/b"];
        let plain = |path| router.find(0, "h", path).unwrap().of(&of_rules).copied();
        assert_eq!([plain("/"), plain("/b"), plain("/a")], [Some("/"), Some("/b"), None]);
        let asked = |holding: &[usize]| {
            let mut asked = Vec::new();
            let found = router.find_where(0, "h", "/a/x", |rule| {
                asked.push(rule);
                rule == 0 || holding.contains(&rule)
            });
            (found, asked)
        };
        assert_eq!(asked(&[]), (Some(0), vec![3, 2, 1, 0]));
        assert_eq!(asked(&[1]), (Some(1), vec![3, 2, 1]));
        assert_eq!(asked(&[1, 2, 3]), (Some(3), vec![3]));
    }

    #[test]
    fn patterns_are_tried_after_exact_paths_and_before_prefixes_of_their_host() {
        let pattern = Rule { path: Path::Pattern, conditions: Some(Rank::default()), ..rule(None, "h", "/") };
        let router = Router::new(vec![
            rule(None, "h", "/long/prefix"),
            pattern,
            rule(None, "h", "=/exact"),
            rule(None, "", "/"),
        ]);
        let found = |host, path, holds: bool| router.find_where(0, host, path, |rule| rule != 1 || holds);
        assert_eq!(found("h", "/long/prefix/x", true), Some(1));
        assert_eq!(found("h", "/long/prefix/x", false), Some(0));
        assert_eq!(found("h", "/exact", true), Some(2));
        assert_eq!(found("h", "/x", false), Some(3));
        assert!(router.find(0, "h", "/exact").unwrap().of(&[(); 4]).is_some());
        assert!(router.find(0, "h", "/long/prefix").unwrap().of(&[(); 4]).is_none());
        assert!(router.find(0, "other", "/long/prefix").unwrap().of(&[(); 4]).is_some());
    }

    /// The rules of the module's documentation, word by word and without any cleverness.
    fn find_naively((rules, holds): (&[Rule], &[bool]), listener: usize, host: &str, path: &str) -> Option<usize> {
        let rank = |rule: &Rule| {
            let listener_rank = match rule.listener {
                None => 0,
                Some(own) if own == listener => 1,
                Some(_) => return None,
            };
            let host_rank = match &rule.host {
                Host::Any => (0, 0),
                Host::Suffix(suffix) if host.len() > suffix.len() && host.ends_with(suffix) => (1, suffix.len()),
                Host::Exact(name) if name == host => (2, 0),
                _ => return None,
            };
            let path_rank = match &rule.path {
                Path::Exact(exact) if exact == path => (2, 0),
                Path::Pattern => (1, 0),
                Path::Prefix(prefix) if prefix == "/" => (0, 0),
                Path::Prefix(prefix) if prefix.ends_with('/') && path.starts_with(prefix) => (0, prefix.len()),
                Path::Prefix(prefix) if path == prefix || path.starts_with(&format!("{prefix}/")) => (0, prefix.len()),
                _ => return None,
            };
            Some((host_rank, path_rank, listener_rank, rule.conditions))
        };
        let holding = rules.iter().enumerate().filter(|(index, _)| holds[*index]);
        let ranked = holding.filter_map(|(index, rule)| Some((rank(rule)?, Reverse(index))));
        ranked.max().map(|(_, index)| index.0)
    }

    #[test]
    fn any_set_of_rules_agrees_with_the_naive_reading() {
        for seed in 0..400 {
            let mut random = fastrand::Rng::with_seed(seed);
            // Few letters, so that names and paths collide, nest and share beginnings.
            let path = |random: &mut fastrand::Rng| {
                let bytes = (0..random.usize(0..6)).map(|_| *random.choice(b"//ab-").unwrap() as char);
                format!("/{}", bytes.collect::<String>())
            };
            let host = |random: &mut fastrand::Rng| {
                let labels: Vec<_> =
                    (0..random.usize(1..4)).map(|_| *random.choice(&["a", "b", "aa"]).unwrap()).collect();
                labels.join(".")
            };
            let conditions = |random: &mut fastrand::Rng| Rank {
                has_method: random.bool(),
                header_fields: random.u16(0..2),
                query_parameters: random.u16(0..2),
                others: 0,
            };
            // Half of the sets are without conditions and patterns, as most configurations are.
            let with_conditions = random.bool();
            let rules: Vec<Rule> = (0..random.usize(0..40))
                .map(|_| Rule {
                    listener: random.bool().then(|| random.usize(0..2)),
                    host: match random.u8(0..3) {
                        0 => Host::Any,
                        1 => Host::Exact(host(&mut random)),
                        _ => Host::Suffix(format!(".{}", host(&mut random))),
                    },
                    path: match random.u8(0..9) {
                        0 if with_conditions => Path::Pattern,
                        0..5 => Path::Exact(path(&mut random)),
                        _ => Path::Prefix(path(&mut random)),
                    },
                    conditions: (with_conditions && random.bool()).then(|| conditions(&mut random)),
                })
                .map(|rule| match rule.path {
                    Path::Pattern => Rule { conditions: rule.conditions.or(Some(Rank::default())), ..rule },
                    _ => rule,
                })
                .collect();
            let router = Router::new(rules.clone());
            for _ in 0..200 {
                let (listener, host, path) = (random.usize(0..3), host(&mut random), path(&mut random));
                let holds: Vec<bool> = rules.iter().map(|rule| rule.conditions.is_none() || random.bool()).collect();
                let wanted = find_naively((&rules, &holds), listener, &host, &path);
                let about = || format!("seed {seed}: listener {listener}, {host}{path} among {rules:#?}, {holds:?}");
                assert_eq!(router.find_where(listener, &host, &path, |rule| holds[rule]), wanted, "{}", about());
                let plain = router.find(listener, &host, &path);
                let indexes: Vec<usize> = (0..rules.len()).collect();
                match plain.map(|found| found.of(&indexes)) {
                    None => assert_eq!(wanted, None, "{}", about()),
                    Some(Some(rule)) => assert_eq!(wanted, Some(*rule), "{}", about()),
                    Some(None) => assert!(with_conditions, "{}", about()),
                }
            }
        }
    }
}
