//! Which rule a request falls under: of all that match, the most specific.
//!
//! A rule matches when its listener, its host and its path all match. Among the rules that match, the more specific
//! host wins; with the same host, the more specific path; with the same path, the rule for one listener before the
//! rule for any. Specific means:
//!
//! - host: an exact name, then suffixes from the longest to the shortest, then any host;
//! - path: an exact path, then prefixes from the longest to the shortest.
//!
//! So a host whose own routes do not match the path **falls back** to the routes of less specific hosts: with
//! `shop.example /api` and `any host /`, a request for `shop.example/about` goes to the second. A route says what it
//! is for and nothing more; that `shop.example` exists is no statement about its other paths. (Envoy picks the host
//! first and answers 404 from there, and needs the catch-all repeated in every host; the Kubernetes Gateway API and
//! HAProxy's rules fall back as here.) Whoever wants a host to end its requests gives it a route for `/`.

use std::collections::HashMap;

/// Conditions that a rule puts on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Absent: any listener.
    pub listener: Option<usize>,
    pub host: Host,
    pub path: Path,
}

/// Names are lower-case, without port and trailing dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    Any,
    Exact(String),
    /// `.example`, with its dot: what ends with it and has at least one byte before it, so one label or several, and
    /// not `example` itself.
    Suffix(String),
}

/// Paths are compared byte by byte: case matters and nothing is decoded. Which spellings are the same is the caller's to
/// settle, for rules and requests alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Path {
    /// `/api`: by whole segments, so `/api` and `/api/x` but not `/apix`. `/api/`: what begins with it, so not `/api`.
    /// `/`: everything, also what does not begin with it (`*`).
    Prefix(String),
    Exact(String),
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
}

/// The paths of one host in byte order.
#[derive(Debug, Default)]
struct Paths {
    entries: Vec<Entry>,
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
        for (index, rule) in rules.into_iter().enumerate() {
            router.paths_of(rule.host).add(rule.path, rule.listener, index as u32);
        }
        let exact = router.exact.values_mut();
        for paths in exact.chain(router.suffixes.values_mut()).chain([&mut router.any]) {
            paths.arrange();
        }
        router
    }

    /// The index of the rule for a request, if one matches.
    ///
    /// `host` is lower-case, without port and trailing dot, and empty if the request names none; `path` is without
    /// query and fragment. Dot segments and escapes are settled by then: no server may understand another path than is
    /// compared here.
    pub fn find(&self, listener: usize, host: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Option<usize> {
        let (host, path) = (host.as_ref(), path.as_ref());
        let exact = self.exact.get(host).and_then(|paths| paths.find(listener, path));
        let found =
            exact.or_else(|| self.find_by_suffix(listener, host, path)).or_else(|| self.any.find(listener, path));
        found.map(|index| index as usize)
    }

    /// Whether any request for this host has a rule, whatever its path. As of `find`.
    pub fn serves(&self, listener: usize, host: impl AsRef<[u8]>) -> bool {
        let host = host.as_ref();
        let first = host.len().saturating_sub(self.suffix_bytes_max).max(1);
        let starts = (first..host.len()).filter(|start| host[*start] == b'.');
        let suffixes = starts.filter_map(|start| self.suffixes.get(&host[start..]));
        self.exact.get(host).into_iter().chain(suffixes).chain([&self.any]).any(|paths| paths.serve(listener))
    }

    fn find_by_suffix(&self, listener: usize, host: &[u8], path: &[u8]) -> Option<u32> {
        // From 1, because something must stand before the suffix; and not before the longest suffix could begin,
        // or a host of nothing but dots would be hashed once for each of them.
        let first = host.len().saturating_sub(self.suffix_bytes_max).max(1);
        let starts = (first..host.len()).filter(|start| host[*start] == b'.');
        starts.filter_map(|start| self.suffixes.get(&host[start..])).find_map(|paths| paths.find(listener, path))
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
        // Every prefix of the path is the last entry that is not greater than the path, or an ancestor of that one:
        // whatever lies between a prefix and the path in byte order begins with that prefix too.
        let after = self.entries.partition_point(|entry| *entry.path <= *path);
        let last = &self.entries[after.checked_sub(1)?];
        if *last.path == *path
            && let Some(rule) = last.exact.find(listener)
        {
            return Some(rule);
        }
        let parent = |entry: &&Entry| entry.parent.map(|index| &self.entries[index as usize]);
        std::iter::successors(Some(last), parent)
            .filter(|entry| entry.is_prefix_of(path))
            .find_map(|entry| entry.prefix.find(listener))
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
        Rule { listener, host, path }
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
            assert_eq!(router.find(0, "h", path), Some(0), "{path}");
        }
        for path in ["/", "/apix", "/ap", "/API", "", "/x/api"] {
            assert_eq!(router.find(0, "h", path), None, "{path}");
        }
    }

    #[test]
    fn a_prefix_with_a_slash_stands_for_what_begins_with_it() {
        let router = router(&[("", "/api/")]);
        assert_eq!(router.find(0, "h", "/api/"), Some(0));
        assert_eq!(router.find(0, "h", "/api/x"), Some(0));
        assert_eq!(router.find(0, "h", "/api"), None);
    }

    #[test]
    fn the_root_stands_for_everything() {
        let router = router(&[("", "/")]);
        for path in ["/", "/x", "*", "", "shop.example:443"] {
            assert_eq!(router.find(0, "", path), Some(0), "{path}");
        }
    }

    #[test]
    fn an_exact_path_wins_over_any_prefix_and_a_long_prefix_over_a_short_one() {
        let router = router(&[("", "/"), ("", "/a"), ("", "/a/"), ("", "/a/b"), ("", "=/a/b"), ("", "=/a")]);
        assert_eq!(router.find(0, "h", "/a/b"), Some(4));
        assert_eq!(router.find(0, "h", "/a/b/"), Some(3));
        assert_eq!(router.find(0, "h", "/a/bc"), Some(2));
        assert_eq!(router.find(0, "h", "/a"), Some(5));
        assert_eq!(router.find(0, "h", "/ab"), Some(0));
    }

    #[test]
    fn an_exact_host_wins_over_suffixes_and_a_long_suffix_over_a_short_one() {
        let router = router(&[("", "/"), (".example", "/"), (".shop.example", "/"), ("a.shop.example", "/")]);
        assert_eq!(router.find(0, "a.shop.example", "/"), Some(3));
        assert_eq!(router.find(0, "b.shop.example", "/"), Some(2));
        assert_eq!(router.find(0, "x.b.shop.example", "/"), Some(2));
        assert_eq!(router.find(0, "shop.example", "/"), Some(1));
        assert_eq!(router.find(0, "example", "/"), Some(0));
        assert_eq!(router.find(0, ".example", "/"), Some(0), "no label before the suffix");
        assert_eq!(router.find(0, "", "/"), Some(0));
    }

    #[test]
    fn a_host_without_a_matching_path_falls_back_to_less_specific_hosts() {
        let router = router(&[("", "/"), (".example", "/static"), ("shop.example", "/api")]);
        assert_eq!(router.find(0, "shop.example", "/api/x"), Some(2));
        assert_eq!(router.find(0, "shop.example", "/static/x"), Some(1));
        assert_eq!(router.find(0, "shop.example", "/about"), Some(0));
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
        assert_eq!(router.find(7, "h", "/a/b"), Some(3));
        assert_eq!(router.find(7, "h", "/a"), Some(2));
        assert_eq!(router.find(8, "h", "/a"), Some(4));
        assert_eq!(router.find(8, "i", "/a/b"), None);
        assert_eq!(router.find(7, "i", "/a/b"), Some(0));
    }

    #[test]
    fn a_rule_of_another_listener_does_not_hide_a_shorter_prefix() {
        let router = Router::new(vec![rule(Some(1), "h", "/a/b"), rule(None, "h", "/a"), rule(Some(1), "h", "=/a/b")]);
        assert_eq!(router.find(0, "h", "/a/b"), Some(1));
        assert_eq!(router.find(1, "h", "/a/b"), Some(2));
    }

    #[test]
    fn of_two_equal_rules_the_first_counts() {
        let router = Router::new(vec![
            rule(Some(1), "h", "/a"),
            rule(Some(1), "h", "/a"),
            rule(None, "h", "/a"),
            rule(None, "h", "/a"),
        ]);
        assert_eq!(router.find(1, "h", "/a"), Some(0));
        assert_eq!(router.find(2, "h", "/a"), Some(2));
    }

    #[test]
    fn without_rules_nothing_is_found() {
        assert_eq!(Router::new(Vec::new()).find(0, "h", "/"), None);
    }

    /// The rules of the module's documentation, word by word and without any cleverness.
    fn find_naively(rules: &[Rule], listener: usize, host: &str, path: &str) -> Option<usize> {
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
                Path::Exact(exact) if exact == path => (1, 0),
                Path::Prefix(prefix) if prefix == "/" => (0, 0),
                Path::Prefix(prefix) if prefix.ends_with('/') && path.starts_with(prefix) => (0, prefix.len()),
                Path::Prefix(prefix) if path == prefix || path.starts_with(&format!("{prefix}/")) => (0, prefix.len()),
                _ => return None,
            };
            Some((host_rank, path_rank, listener_rank))
        };
        let ranked = rules.iter().enumerate().filter_map(|(index, rule)| Some((rank(rule)?, std::cmp::Reverse(index))));
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
            let rules: Vec<Rule> = (0..random.usize(0..40))
                .map(|_| Rule {
                    listener: random.bool().then(|| random.usize(0..2)),
                    host: match random.u8(0..3) {
                        0 => Host::Any,
                        1 => Host::Exact(host(&mut random)),
                        _ => Host::Suffix(format!(".{}", host(&mut random))),
                    },
                    path: if random.bool() { Path::Exact(path(&mut random)) } else { Path::Prefix(path(&mut random)) },
                })
                .collect();
            let router = Router::new(rules.clone());
            for _ in 0..200 {
                let (listener, host, path) = (random.usize(0..3), host(&mut random), path(&mut random));
                assert_eq!(
                    router.find(listener, &host, &path),
                    find_naively(&rules, listener, &host, &path),
                    "seed {seed}: listener {listener}, {host}{path} among {rules:#?}"
                );
            }
        }
    }
}
