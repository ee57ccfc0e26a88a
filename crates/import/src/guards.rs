//! Rules of haproxy that keep requests out, laid over the routes of those whom they are for.
//!
//! A rule of haproxy holds for all of its section, while a route of Propylon goes by what it matches alone, and the
//! most specific wins. So each route gets one beside it that answers in its place where a guard holds, and one more
//! for whom the guard excepts. Where both together cannot be said, the route answers nobody.

use std::collections::{BTreeMap, BTreeSet};

use propylon_config::pattern;

use crate::changes::Changes;
use crate::patterns::{Below, below, between, ending, ends_apart, lead};
use crate::plan::{Action, Path, Route, escaped};
use crate::terms::{Term, is_host};
use crate::variables;

/// Routes that come of one section at most; those beyond answer nobody.
const ROUTES_MAX: usize = 4000;

/// A rule that keeps requests out.
#[derive(Clone, Debug)]
pub struct Guard {
    pub line: usize,
    /// Fixed answers of lines before this one are not behind it.
    pub from: usize,
    /// Requests that it is for ...
    pub of: Term,
    /// ... but for these.
    pub except: Vec<Term>,
    /// The answer.
    pub action: Action,
    /// Proof that is asked for in place of that answer, as changes of a route.
    pub proof: Option<Changes>,
    /// Whether it is for all routes of a listener, so that it may stand at paths beside its route's own.
    pub is_whole: bool,
}

impl Guard {
    /// Has a guard over a route by pattern except nobody who would go before other patterns then, as by a field:
    /// methods are put in order, and what the route decides by itself is no condition. Whether that is more.
    pub fn is_patterned(&mut self, tls: &BTreeMap<String, bool>, route: &Route) -> bool {
        let count = self.except.len();
        let guarded = Guarded::none(&[], tls);
        let is_of_method =
            |term: &Term| term.host.is_none() && term.conditions.keys().all(|(kind, _)| kind == "method");
        let is_decided = |term: &Term| match guarded.meet(route, term, false) {
            Meet::Apart => true,
            Meet::Both(both) => is_same(&both, route),
            Meet::Unknown => false,
        };
        self.except.retain(|term| is_of_method(term) || is_decided(term));
        self.except.len() < count
    }
}

/// Words for a guard that asks for a proof where a route cannot.
pub const SHUT: &str = "some routes cannot ask for its proof, as where they ask for another: write one `auth` for both; \
                        until then requests there are answered with its refusal";

enum Meet {
    /// No request is in both.
    Apart,
    Both(Box<Route>),
    Unknown,
}

/// Routes with their guards.
pub struct Guarded<'g> {
    pub guards: &'g [Guard],
    /// Listeners with TLS.
    pub tls: &'g BTreeMap<String, bool>,
    pub routes: Vec<Route>,
    /// Lines of the guards that hold for more than they did.
    pub wider: Vec<usize>,
    /// Lines of the guards that ask for a proof where a route cannot: it answers nobody.
    pub shut: BTreeSet<usize>,
    /// Whether the routes are compared with the rules afterwards, so that guards are laid over patterns as far as goes.
    pub is_compared: bool,
}

impl<'g> Guarded<'g> {
    /// Guards over no routes yet.
    pub fn none(guards: &'g [Guard], tls: &'g BTreeMap<String, bool>) -> Guarded<'g> {
        Guarded { guards, tls, routes: Vec::new(), wider: Vec::new(), shut: BTreeSet::new(), is_compared: false }
    }

    /// Lays all guards over routes; redirects are for whoever comes. Lines of guards that hold for more are told once.
    pub fn over(guards: &'g [Guard], tls: &'g BTreeMap<String, bool>, routes: Vec<Route>) -> Guarded<'g> {
        Guarded::none(guards, tls).with(routes, |_| (0..guards.len()).collect())
    }

    /// Lays over each route the guards whose numbers are its own.
    pub fn with(mut self, routes: Vec<Route>, own: impl Fn(&Route) -> Vec<usize>) -> Guarded<'g> {
        for route in routes {
            match route.action {
                Action::Redirect(_) => self.routes.push(route),
                _ => {
                    let left = own(&route);
                    self.add(route, &left);
                }
            }
        }
        self.wider.dedup();
        self
    }

    /// Adds a route, with what these guards, by their numbers, keep out of it.
    pub fn add(&mut self, route: Route, left: &[usize]) {
        for (place, index) in left.iter().enumerate() {
            let guard = &self.guards[*index];
            if matches!(route.action, Action::Respond(_)) && route.line < guard.from {
                continue;
            }
            // A route that asks for a guard's proof already has it behind itself.
            let is_asked = |proof: &Changes| proof.auth.is_some() && proof.auth == route.changes.auth;
            if guard.proof.as_ref().is_some_and(is_asked) {
                continue;
            }
            let out = match self.meet(&route, &guard.of, guard.is_whole) {
                Meet::Apart => continue,
                Meet::Both(out) if self.routes.len() < ROUTES_MAX => *out,
                // A refusal stays: others are laid over it, or whom they let in would go before it.
                _ if is_refusal(&route.action) => continue,
                _ => {
                    self.wider.push(guard.line);
                    self.answer(route, guard, &[&left[..place], &left[place + 1..]].concat());
                    return;
                }
            };
            if guard.except.iter().any(|except| self.is_within(&route, except)) {
                continue;
            }
            let others: Vec<usize> = [&left[..place], &left[place + 1..]].concat();
            // A pattern in place of two paths holds for those of other routes too: nobody is excepted there.
            let is_said = is_said(&route.path, &out.path, guard.of.path.as_ref());
            if !is_said && !guard.except.is_empty() {
                self.wider.push(guard.line);
            }
            for except in guard.except.iter().filter(|_| is_said) {
                match self.meet(&out, except, false) {
                    Meet::Both(passed) => self.add(Route { action: route.action.clone(), ..*passed }, &others),
                    Meet::Apart => {}
                    Meet::Unknown => self.wider.push(guard.line),
                }
            }
            let is_all = is_same(&out, &route);
            if let (Some(pattern), false) = (beside(&guard.of, &out), out.path == route.path) {
                let beside = Route { path: pattern, ..out.clone() };
                // Other guards cannot be laid over a pattern: beside some of them it answers nobody.
                match others.is_empty() || self.is_compared {
                    true => self.answer(beside, guard, &others),
                    false => self.routes.push(closed(beside, guard)),
                }
            }
            self.answer(out, guard, &others);
            if is_all {
                return;
            }
        }
        self.routes.push(route);
    }

    /// Adds the route that stands where a guard holds: one that answers, or one that asks for a proof.
    fn answer(&mut self, route: Route, guard: &Guard, others: &[usize]) {
        let mut changes = route.changes.clone();
        match &guard.proof {
            Some(proof) if route.changes.auth.is_none() && changes.then(proof).is_ok() => {
                self.add(Route { changes, ..route }, others);
            }
            proof => {
                self.shut.extend(proof.as_ref().map(|_| guard.line));
                self.routes.push(closed(route, guard));
            }
        }
    }

    /// Requests of a route that a condition asks for, where one route says that.
    pub fn both(&self, route: &Route, term: &Term) -> Option<Route> {
        if let Meet::Both(both) = self.meet(route, term, false) { Some(*both) } else { None }
    }

    fn is_within(&self, route: &Route, term: &Term) -> bool {
        matches!(self.meet(route, term, false), Meet::Both(both) if is_same(&both, route))
    }

    /// Requests of a route that a condition asks for.
    fn meet(&self, route: &Route, term: &Term, is_whole: bool) -> Meet {
        if term.is_tls.is_some_and(|wanted| self.tls.get(&route.listener) != Some(&wanted)) {
            return Meet::Apart;
        }
        let host = match (&route.host, &term.host) {
            (Some(own), Some(asked)) if is_in(own, asked) => Some(own.clone()),
            (Some(own), Some(asked)) if is_in(asked, own) => Some(asked.clone()),
            (Some(_), Some(_)) => return Meet::Apart,
            (own, asked) => own.clone().or_else(|| asked.clone()),
        };
        let path = match &term.path {
            None => Ok(Some(route.path.clone())),
            Some(asked) => paths(&route.path, asked, term.ignores_case, is_whole),
        };
        let path = match path {
            Ok(Some(path)) => path,
            Ok(None) => return Meet::Apart,
            Err(()) => return Meet::Unknown,
        };
        let mut conditions = route.conditions.clone();
        for (key, asked) in &term.conditions {
            if key.0 == "host"
                && let Some(is_asked) = host.as_deref().and_then(|host| is_host(host, asked))
            {
                if is_asked {
                    continue;
                }
                return Meet::Apart;
            }
            let own = conditions.get(key).cloned();
            match own.map_or(Ok(Some(asked.clone())), |own| values(&key.0, &own, asked)) {
                Ok(Some(value)) => drop(conditions.insert(key.clone(), value)),
                Ok(None) => return Meet::Apart,
                Err(()) => return Meet::Unknown,
            }
        }
        Meet::Both(Box::new(Route { host, path, conditions, ..route.clone() }))
    }
}

/// Whether a route answers with an error.
pub fn is_refusal(action: &Action) -> bool {
    let is_error = |(key, value): &(String, String)| key == "status" && value.as_str() >= "400";
    matches!(action, Action::Respond(keys) if keys.iter().any(is_error))
}

/// A route that answers for a guard.
fn closed(route: Route, guard: &Guard) -> Route {
    Route { action: guard.action.clone(), changes: Changes::default(), ..route }
}

fn is_same(one: &Route, two: &Route) -> bool {
    (&one.host, &one.path, &one.conditions) == (&two.host, &two.path, &two.conditions)
}

pub fn is_in(host: &str, pattern: &str) -> bool {
    host == pattern || pattern.strip_prefix('*').is_some_and(|suffix| host.ends_with(suffix))
}

/// Whether the path in which a route and a guard meet is of both of them, and of nothing else.
fn is_said(own: &Path, both: &Path, asked: Option<&Path>) -> bool {
    match (own, asked) {
        _ if own == both => true,
        (Path::Regex(own), Some(Path::Prefix(_))) => ending(own).is_some(),
        (Path::Prefix(own), Some(Path::Regex(asked))) => own == "/" || ending(asked).is_some(),
        (Path::Regex(_), _) => false,
        _ => true,
    }
}

/// A pattern for paths that a guard names and a route's path does not: prefixes of haproxy end anywhere in a segment,
/// and some are compared without case.
pub fn beside(of: &Term, out: &Route) -> Option<Path> {
    let (Path::Prefix(text) | Path::Exact(text)) = of.path.as_ref()? else { return None };
    let is_exact = matches!(out.path, Path::Exact(_));
    let end = if is_exact { "$" } else { "" };
    let mut all = Vec::new();
    if of.ignores_case {
        all.extend(cases(text).into_iter().map(|pattern| format!("{pattern}{end}")));
    }
    if !text.ends_with('/') && out.path == Path::Prefix(text.clone()) {
        all.push(format!("{}[^/]", escaped(text)));
    }
    match all.as_slice() {
        [] => None,
        [one] => Some(Path::Regex(format!("^{one}"))),
        all => Some(Path::Regex(format!("^(?:{})", all.join("|")))),
    }
}

/// Patterns of a text in other cases than its own.
fn cases(text: &str) -> Vec<String> {
    const LETTERS_MAX: usize = 24;
    let letters: Vec<(usize, char)> = text.char_indices().filter(|(_, c)| c.is_ascii_alphabetic()).collect();
    // Texts of variables are any.
    if letters.len() > LETTERS_MAX || variables::is_in(text) {
        return vec![format!("(?i:{})", escaped(text))];
    }
    let other = |c: char| if c.is_ascii_uppercase() { c.to_ascii_lowercase() } else { c.to_ascii_uppercase() };
    let pattern = |(at, letter): &(usize, char)| match &text[at + 1..] {
        "" => format!("{}{}", escaped(&text[..*at]), other(*letter)),
        rest => format!("{}{}(?i:{})", escaped(&text[..*at]), other(*letter), escaped(rest)),
    };
    letters.iter().map(pattern).collect()
}

/// Paths that are both a route's and a condition's of haproxy; an error where no one path or pattern says that.
fn paths(own: &Path, asked: &Path, ignores_case: bool, is_whole: bool) -> Result<Option<Path>, ()> {
    let folded = |text: &str| if ignores_case { text.to_ascii_lowercase() } else { text.to_owned() };
    let begins = |text: &str, prefix: &str| folded(text).starts_with(&folded(prefix));
    let both = match (own, asked) {
        _ if own == asked => Some(own.clone()),
        (Path::Prefix(own_text), Path::Prefix(asked_text)) => {
            if begins(own_text, asked_text) {
                Some(own.clone())
            } else {
                is_below(&folded(asked_text), &folded(own_text)).then(|| asked.clone())
            }
        }
        (Path::Prefix(own), Path::Exact(text)) => is_below(&folded(text), &folded(own)).then(|| asked.clone()),
        (Path::Exact(text), Path::Prefix(prefix)) => begins(text, prefix).then(|| own.clone()),
        (Path::Exact(one), Path::Exact(two)) => (folded(one) == folded(two)).then(|| own.clone()),
        (Path::Exact(text), Path::Regex(asked)) => {
            let compiled = pattern::compile(&if ignores_case { format!("(?i){asked}") } else { asked.clone() });
            compiled.map_err(drop)?.is_match(text.as_bytes()).then(|| own.clone())
        }
        (Path::Prefix(prefix), Path::Regex(pattern)) if prefix != "/" && ending(pattern).is_some() => {
            let prefix = format!("{}/", prefix.trim_end_matches('/'));
            Some(between(&prefix, &ending(pattern).unwrap_or_default(), ignores_case))
        }
        (Path::Regex(own), Path::Prefix(text) | Path::Exact(text)) if !ignores_case && begins_apart(own, text) => None,
        (Path::Regex(own), Path::Prefix(prefix)) if ending(own).is_some() => {
            Some(between(prefix, &ending(own).unwrap_or_default(), ignores_case))
        }
        (Path::Regex(own), Path::Regex(asked)) if ends_apart(own, asked) && !ignores_case => None,
        (Path::Prefix(prefix), Path::Regex(pattern)) if is_whole || prefix == "/" => {
            Some(Path::Regex(if ignores_case { format!("(?i){pattern}") } else { pattern.clone() }))
        }
        (Path::Regex(_), Path::Regex(pattern)) if is_whole => {
            Some(Path::Regex(if ignores_case { format!("(?i){pattern}") } else { pattern.clone() }))
        }
        (Path::Regex(_), Path::Prefix(text)) if is_whole => {
            let case = if ignores_case { "(?i)" } else { "" };
            Some(Path::Regex(format!("{case}^{}", escaped(text))))
        }
        (Path::Regex(_), Path::Exact(text)) if is_whole => {
            let case = if ignores_case { "(?i)" } else { "" };
            Some(Path::Regex(format!("{case}^{}$", escaped(text))))
        }
        _ => return Err(()),
    };
    Ok(both)
}

/// Whether no path in which a pattern is found begins with a text.
fn begins_apart(pattern: &str, text: &str) -> bool {
    lead(pattern).is_some_and(|lead| !lead.starts_with(text.as_bytes()) && !text.as_bytes().starts_with(&lead))
        || below(text, pattern) == Below::Apart
}

/// Whether a path is below a prefix of whole segments.
fn is_below(path: &str, prefix: &str) -> bool {
    let rest = path.strip_prefix(prefix);
    rest.is_some_and(|rest| prefix.ends_with('/') || rest.is_empty() || rest.starts_with('/'))
}

/// Values that are in both of two conditions on the same thing, as TOML has them.
pub fn values(kind: &str, own: &str, asked: &str) -> Result<Option<String>, ()> {
    if own == asked || asked == "{ present = true }" && own != "{ present = false }" {
        return Ok(Some(own.to_owned()));
    }
    let is_text = |value: &str| value.starts_with('"');
    if ["header", "cookie", "query"].contains(&kind) {
        return if is_text(own) && is_text(asked) { Ok(None) } else { Err(()) };
    }
    fn items(value: &str) -> Vec<&str> {
        value.split('"').skip(1).step_by(2).collect()
    }
    let (own_items, asked_items) = (items(own), items(asked));
    let is_all = own_items.iter().all(|item| asked_items.contains(item));
    let is_none = own_items.iter().all(|item| !asked_items.contains(item));
    match kind {
        _ if is_all => Ok(Some(own.to_owned())),
        "method" if is_none => Ok(None),
        _ => Err(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_in_other_cases_is_not_the_text_itself() {
        assert_eq!(cases("/a.b"), [r"/A(?i:\.b)", r"/a\.B"]);
        let pattern = pattern::compile(&format!("^(?:{})$", cases("/admin/").join("|"))).unwrap();
        assert!(["/Admin/", "/ADMIN/", "/admiN/"].iter().all(|path| pattern.is_match(path.as_bytes())));
        assert!(!pattern.is_match(b"/admin/"));
    }

    #[test]
    fn paths_of_routes_and_guards_meet_where_both_are() {
        let prefix = |text: &str| Path::Prefix(text.into());
        let exact = |text: &str| Path::Exact(text.into());
        let regex = |text: &str| Path::Regex(text.into());
        let both = |own: &Path, asked: &Path| paths(own, asked, false, false);
        assert_eq!(both(&prefix("/"), &prefix("/admin")), Ok(Some(prefix("/admin"))));
        assert_eq!(both(&prefix("/administrator"), &prefix("/admin")), Ok(Some(prefix("/administrator"))));
        assert_eq!(both(&prefix("/api"), &prefix("/admin")), Ok(None));
        assert_eq!(both(&exact("/x.bak"), &regex(r"\.bak$")), Ok(Some(exact("/x.bak"))));
        assert_eq!(both(&exact("/x"), &regex(r"\.bak$")), Ok(None));
        assert_eq!(both(&prefix("/api"), &regex("^/a[0-9]")), Err(()));
        assert!(ends_apart(r"\.css$", r"\.js$") && !ends_apart(r"\.css$", r"n\.css$"));
        assert_eq!(both(&regex(r"^(?:/a/.*\.php)$"), &prefix("/b")), Ok(None));
        assert_eq!(both(&regex("^/a[^/]"), &exact("/a/b")), Ok(None));
        assert_eq!(both(&regex(r"^(?:/a/.*\.php)$"), &prefix("/a/x")), Err(()));
        assert_eq!(paths(&prefix("/API"), &prefix("/api"), true, false), Ok(Some(prefix("/API"))));
        assert_eq!(values("source", "\"10.1.0.0/16\"", "\"10.0.0.0/8\""), Err(()));
        assert_eq!(values("method", "[\"GET\", \"POST\"]", "\"PUT\""), Ok(None));
    }
}
