//! Guards of Caddy: directives that keep requests out, and those that ask who they are from.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::matchers::{Matched, all_joined, below, tested};
use super::{Reader, Site};
use crate::changes::Changes;
use crate::guards::{Guard, Guarded, SHUT};
use crate::plan::{Action, CLOSED, Path, Route, respond};
use crate::terms::Term;
use crate::words::Directive;

impl Reader<'_> {
    /// Lays guards over the routes from the given one on; without any they have routes of their own.
    pub(super) fn guard(&mut self, sites: &[Site], first: usize, guards: &[Guard]) {
        let routes = self.plan.routes.split_off(first);
        let tls: BTreeMap<String, bool> =
            self.plan.listeners.iter().map(|each| (each.name.clone(), each.is_tls)).collect();
        let Guarded { routes, wider, shut, .. } = Guarded::over(guards, &tls, routes);
        for line in wider {
            self.plan.note(line, "a rule that keeps requests out", WIDER);
        }
        shut.iter().for_each(|line| self.plan.note(*line, "a rule that asks who comes", SHUT));
        let notes = self.plan.notes.len();
        routes.into_iter().for_each(|route| self.plan.route(route));
        // Requests that no other route is for are kept out as well.
        for guard in guards.iter().filter(|guard| guard.except.is_empty()) {
            let path = guard.of.path.clone().unwrap_or(Path::Prefix("/".into()));
            let matched = Matched { host: guard.of.host.clone(), path, conditions: guard.of.conditions.clone() };
            self.add(sites, guard.line, &[matched], &guard.action);
        }
        self.plan.notes.truncate(notes);
    }

    /// Adds to a site's routes that refuse or ask for a proof, from the given one on, those for paths in other cases:
    /// Caddy compares them without case. Refusals go before all other patterns, and what lets some in behind them.
    pub(super) fn other_cases(&mut self, first: usize) {
        let mut routes = self.plan.routes.split_off(first);
        let kept_out = |route: &&Route| refuses(route) || route.changes.auth.is_some();
        let mut guarded: Vec<&Route> = routes.iter().filter(kept_out).collect();
        guarded.sort_by_key(|route| Reverse(length(&route.path)));
        let other = |route: &Route| Some(Route { path: in_other_cases(route)?, ..route.clone() });
        let (refused, asked): (Vec<Route>, Vec<Route>) = guarded.into_iter().filter_map(other).partition(refuses);
        let is_same = |one: &Route, two: &Route| {
            (&one.listener, &one.host, &one.path, &one.conditions)
                == (&two.listener, &two.host, &two.path, &two.conditions)
        };
        routes.retain(|route| !refused.iter().any(|other| is_same(other, route)));
        let notes = self.plan.notes.len();
        refused.into_iter().chain(routes).chain(asked).for_each(|route| self.plan.route(route));
        self.plan.notes.truncate(notes);
    }

    /// Closes the routes of a block from the given one on, and whatever else it was for.
    pub(super) fn close_block(&mut self, sites: &[Site], first: usize, (line, outer): (usize, &[Matched])) {
        for route in &mut self.plan.routes[first..] {
            (route.action, route.changes) = (respond(403, ""), Changes::default());
        }
        let notes = self.plan.notes.len();
        self.add(sites, line, outer, &respond(403, ""));
        self.plan.notes.truncate(notes);
    }

    /// Requests that a directive keeps out. Of tests that are not carried over the rest holds, so that nobody gets in who did
    /// not before.
    pub(super) fn guards(&mut self, each: &Directive, outer: &[Matched]) -> Vec<Guard> {
        let is_auth = !denies(each);
        let (mut own, mut except, mut is_wider) = (vec![Matched::all()], Vec::new(), false);
        let word = each.word(1);
        let changed = self.steps.before(each);
        let touches = |all: &[Matched]| all.iter().any(|one| changed.touches(&term(one, false)));
        match self.asked_for(word) {
            Ok(found) if word.starts_with('/') && !touches(&found) => own = found,
            _ => is_wider |= word.starts_with('/') || word.starts_with('@') && !self.matchers.contains_key(word),
        }
        for test in self.matchers.get(word).cloned().unwrap_or_default() {
            if test.name() == "not" {
                let inline = [Directive { line: test.line, words: test.arguments().to_vec(), block: None }];
                match tested(test.block.as_deref().unwrap_or(&inline)) {
                    Ok(found) if touches(&found) => is_wider = true,
                    Ok(found) => except.extend(found),
                    Err(_) => is_wider = true,
                }
                continue;
            }
            match tested(std::slice::from_ref(&test)) {
                Ok(found) if touches(&found) => is_wider = true,
                Ok(found) => match all_joined(&own, &found) {
                    Ok(both) => own = both,
                    Err(()) => is_wider = true,
                },
                // A test that is not known may be for anybody whom the others are for.
                Err(_) => is_wider = true,
            }
        }
        // Caddy looks at each of several parameters of one name, and a route at the first.
        for matched in &mut own {
            is_wider |= matched.ask_for_parameters();
        }
        let proof = if each.name() == "forward_auth" { self.asked(each) } else { None };
        if is_auth && proof.is_none() {
            let fix = format!(
                "who may come in is not carried over: write `auth` in the route, with `basic`, whose file has a line NAME:HASH of each user, or `jwt`; {CLOSED}"
            );
            self.plan.note(each.line, each.text(), fix);
        } else if is_wider {
            self.plan.note(each.line, each.text(), WIDER);
        }
        let action = if is_auth { respond(403, "") } else { denial(each) };
        let Ok(both) = below(&self.prefix, own).and_then(|own| all_joined(outer, &own)) else {
            self.close(each);
            return Vec::new();
        };
        // Nobody is excepted whose paths cannot be said.
        let except = below(&self.prefix, except).unwrap_or_else(|()| {
            self.plan.note(each.line, each.text(), WIDER);
            Vec::new()
        });
        let except: Vec<Term> = except.iter().map(|one| term(one, false)).collect();
        let guard = |matched: Matched| Guard {
            line: each.line,
            from: if is_auth { 0 } else { each.line },
            of: term(&matched, true),
            except: except.clone(),
            action: action.clone(),
            proof: proof.clone(),
            is_whole: true,
        };
        both.into_iter().map(guard).collect()
    }
}

/// A guard that keeps everybody out of what matches.
pub(super) fn closing(line: usize, matched: &Matched) -> Guard {
    let (of, action) = (term(matched, true), respond(403, ""));
    Guard { line, from: 0, of, except: Vec::new(), action, proof: None, is_whole: true }
}

fn length(path: &Path) -> usize {
    match path {
        Path::Prefix(text) | Path::Exact(text) | Path::Regex(text) => text.len(),
    }
}

/// Whether a route answers with an error.
fn refuses(route: &Route) -> bool {
    let is_error = |(key, value): &(String, String)| key == "status" && value.starts_with(['4', '5']);
    matches!(&route.action, Action::Respond(keys) if keys.iter().any(is_error))
}

/// The pattern of a route's path in other cases than its own: the one that a guard of that path has beside it.
fn in_other_cases(route: &Route) -> Option<Path> {
    let of = Term { path: Some(route.path.clone()), ignores_case: true, ..Term::default() };
    let (action, root) = (respond(403, ""), Path::Prefix("/".into()));
    let guard = Guard { line: 0, from: 0, of, except: Vec::new(), action, proof: None, is_whole: true };
    let tls = BTreeMap::new();
    let mut guarded = Guarded::none(std::slice::from_ref(&guard), &tls);
    if matches!(route.path, Path::Regex(_)) || route.path == root {
        return None;
    }
    guarded.add(Route { path: root, ..route.clone() }, &[0]);
    guarded.routes.into_iter().map(|route| route.path).find(|path| matches!(path, Path::Regex(_)))
}

/// Words for a guard that holds for more than it did.
const WIDER: &str = "it holds for more requests than before, since some of what it asks for is not carried over: add \
                     routes for those that it is not for, with host, path and `match`";

/// Whether a directive keeps requests out.
pub(super) fn denies(each: &Directive) -> bool {
    let is_error = |word: &String| word.parse::<u16>().is_ok_and(|status| (400..600).contains(&status));
    match each.name() {
        "abort" | "error" => true,
        "respond" => each.words.iter().any(is_error),
        _ => false,
    }
}

/// The answer of a directive that keeps requests out.
fn denial(each: &Directive) -> Action {
    let from = if each.word(1).starts_with(['/', '@', '*']) { 2 } else { 1 };
    let status = each.words.iter().rev().find_map(|word| word.parse().ok()).unwrap_or(403);
    let body = each.word(from);
    let has_body = each.name() == "respond" && body.parse::<u16>().is_err() && !body.contains('{');
    respond(status, if has_body { body } else { "" })
}

pub(super) fn term(matched: &Matched, ignores_case: bool) -> Term {
    let path = Some(matched.path.clone()).filter(|path| *path != Path::Prefix("/".into()));
    let (host, conditions) = (matched.host.clone(), matched.conditions.clone());
    // Caddy compares paths without case.
    Term { host, path, is_tls: None, ignores_case, conditions }
}
