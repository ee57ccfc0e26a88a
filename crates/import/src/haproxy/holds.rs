//! Whether guards of haproxy hold on the routes that have come of its rules.
//!
//! Rules and routes are compared on paths that are made of the texts in them. Requests that haproxy would keep out, and
//! that some route takes before those that answer for the guard, get a route of their own that answers; where no one
//! route says which these are, the one that takes them answers nobody. Both is told.

use std::collections::{BTreeMap, BTreeSet};

use super::guard::LED_BY_CHANGED;
use super::witnesses::{Bits, Witnesses};
use crate::changes::Changes;
use crate::guards::{Guard, Guarded, is_in, is_refusal, values};
use crate::plan::{Action, Path, Plan, Route};
use crate::terms::{Term, is_host};

/// Comparisons of one listener at most; beyond these it is told that not all were made.
const COMPARISONS_MAX: usize = 20_000_000;
/// Routes that are added in front of one, at most; then it answers nobody.
const ADDED_MAX: usize = 16;

/// Rules of a frontend on one of its listeners.
pub(super) struct Front {
    pub(super) listener: (String, bool),
    pub(super) guards: Vec<Guard>,
    pub(super) leads: Vec<Lead>,
}

/// A rule that leads requests to an answer or to a backend, in the order in which haproxy asks them.
#[derive(Clone)]
pub(super) struct Lead {
    pub(super) of: Term,
    /// Name of the backend; none of an answer.
    pub(super) to: Option<String>,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// All that fits goes there.
    Known,
    /// Some of what fits goes there.
    Some,
    /// Some of what fits goes to any backend.
    Any,
}

/// Words for a rule that holds for more than it did.
const MORE: &str = "it holds for more requests than before, since routes go by what is most specific and not in this \
                    order: see the routes that answer for it";
const SHUT: &str = "it answers nobody, since a rule that keeps requests out may hold here, which no route says: write \
                    routes for what it is for";
const PATHS: &str = "the paths of all rules together";
const CUT: &str = "they are more than 4096, of which so many are compared with the routes: see whether guards hold on \
                   each, and where requests for the others go";
const UNCOMPARED: &str = "so many rules are not all compared with the routes: see whether guards hold on each";

const ELSEWHERE: &str = "some of its requests were for another rule, which no route says: routes go by what is most \
                         specific; look at what overlaps, and write routes for what both are for";
const REFUSED: &str = "some of its requests are refused that were not, since no route says for which of them a rule that \
                       keeps requests out is: write routes with `match` for those that may come in";
/// Names of what is told of.
const RULE: &str = "a rule that keeps requests out";
const LEADS: &str = "a rule that leads somewhere";

/// Texts that are told of lines, with the name of what stands there.
type Found = BTreeMap<(usize, &'static str), &'static str>;

/// Requests: of a host, of some paths, and with conditions that all hold.
#[derive(Clone)]
struct Area {
    host: Option<String>,
    paths: Bits,
    conditions: Vec<((String, String), String)>,
}

impl Area {
    fn of_term(term: &Term, paths: &Witnesses) -> Area {
        let conditions = term.conditions.clone().into_iter().collect();
        Area { host: term.host.clone(), paths: paths.of_term(term), conditions }
    }

    /// Requests of both; none where there are none.
    fn and(&self, other: &Area) -> Option<Area> {
        let host = match (&self.host, &other.host) {
            (Some(one), Some(two)) if is_in(one, two) => Some(one.clone()),
            (Some(one), Some(two)) if is_in(two, one) => Some(two.clone()),
            (Some(_), Some(_)) => return None,
            (one, two) => one.clone().or_else(|| two.clone()),
        };
        let paths = self.paths.and(&other.paths);
        if paths.is_empty() {
            return None;
        }
        let mut conditions = self.conditions.clone();
        for (key, asked) in &other.conditions {
            let is_apart = |(own, value): &((String, String), String)| {
                own == key && value != asked && matches!(values(&key.0, value, asked), Ok(None))
            };
            if conditions.iter().any(is_apart) {
                return None;
            }
            if !conditions.iter().any(|(own, value)| own == key && value == asked) {
                conditions.push((key.clone(), asked.clone()));
            }
        }
        let area = Area { host, paths, conditions };
        let is_other = |(key, asked): &((String, String), String)| {
            key.0 == "host" && area.host.as_deref().and_then(|host| is_host(host, asked)) == Some(false)
        };
        (!area.conditions.iter().any(is_other)).then_some(area)
    }

    /// Whether all requests of another area are of this one, but for their paths.
    fn covers(&self, other: &Area) -> bool {
        let is_host_in = match (&self.host, &other.host) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(host)) => is_in(host, own),
        };
        let is_said = |key: &(String, String), asked: &str| {
            let is_it = |(own, value): &((String, String), String)| {
                own == key
                    && (value == asked || values(&key.0, value, asked).is_ok_and(|both| both.as_ref() == Some(value)))
            };
            other.conditions.iter().any(is_it)
                || key.0 == "host" && other.host.as_deref().and_then(|host| is_host(host, asked)) == Some(true)
        };
        is_host_in && self.conditions.iter().all(|(key, asked)| is_said(key, asked))
    }
}

/// A route with what it is for.
struct Item {
    route: Route,
    area: Area,
    is_closed: bool,
    /// Whether it is in front of a route for a guard that did not hold there.
    is_added: bool,
}

impl Item {
    fn new(route: Route, paths: &Witnesses) -> Item {
        let conditions = route.conditions.clone().into_iter().collect();
        let area = Area { host: route.host.clone(), paths: paths.of_route(&route.path), conditions };
        let is_closed = is_refusal(&route.action);
        Item { route, area, is_closed, is_added: false }
    }

    /// Order of routes that are for one request: host, path, and conditions.
    fn rank(&self) -> ((u8, usize), (u8, usize), [usize; 4]) {
        let host = match &self.route.host {
            None => (0, 0),
            Some(host) if host.starts_with('*') => (1, host.len()),
            Some(_) => (2, 0),
        };
        let path = match &self.route.path {
            Path::Prefix(prefix) => (0, prefix.len()),
            Path::Regex(_) => (1, 0),
            Path::Exact(_) => (2, 0),
        };
        let mut counts = [0; 4];
        for (kind, _) in self.route.conditions.keys() {
            counts[["method", "header", "query"].iter().position(|known| known == kind).unwrap_or(3)] += 1;
        }
        (host, path, counts)
    }

    fn asks(&self, guard: &Guard) -> bool {
        guard.proof.as_ref().is_some_and(|proof| proof.auth.is_some() && proof.auth == self.route.changes.auth)
    }
}

/// A guard with the requests that it is for.
struct Held<'g> {
    guard: &'g Guard,
    area: Area,
    except: Vec<Area>,
}

impl Held<'_> {
    /// Whether it refuses all of these requests at paths of its own, whoever they are from.
    fn refuses(&self, area: &Area) -> bool {
        self.guard.proof.is_none() && self.area.covers(area)
    }
}

/// Routes of a listener beside the rules of haproxy that they are made of.
struct Compared<'c> {
    front: &'c Front,
    paths: Witnesses,
    items: Vec<Item>,
    leads: Vec<Option<Area>>,
    guards: Vec<Held<'c>>,
    /// Guards of backends, by name.
    behind: BTreeMap<&'c str, Vec<Held<'c>>>,
    tls: &'c BTreeMap<String, bool>,
    left: usize,
}

/// Compares the routes of all listeners with the rules, and closes what guards do not hold on.
pub(super) fn hold(plan: &mut Plan, fronts: &[Front], backends: &BTreeMap<String, Vec<Guard>>) {
    let tls: BTreeMap<String, bool> = plan.listeners.iter().map(|each| (each.name.clone(), each.is_tls)).collect();
    for front in fronts {
        let is_own = |route: &Route| route.listener == front.listener.0;
        let all = std::mem::take(&mut plan.routes);
        let own = all.iter().filter(|route| is_own(route)).cloned().collect();
        let mut compared = Compared::new(front, backends, &tls, own);
        let noted: BTreeSet<usize> = plan.notes.iter().map(|note| note.line).collect();
        let told = compared.hold(&noted);
        // Each stays in its place, with what is added in front of it.
        let mut items = compared.items.into_iter();
        for route in all {
            if !is_own(&route) {
                plan.routes.push(route);
                continue;
            }
            for item in items.by_ref() {
                plan.routes.push(item.route);
                if !item.is_added {
                    break;
                }
            }
        }
        for ((line, what), fix) in told {
            if !plan
                .notes
                .iter()
                .any(|note| note.line == line && (note.fix == fix || what == RULE || note.fix == LED_BY_CHANGED))
            {
                plan.note(line, what, fix);
            }
        }
    }
}

impl<'c> Compared<'c> {
    fn new(
        front: &'c Front,
        backends: &'c BTreeMap<String, Vec<Guard>>,
        tls: &'c BTreeMap<String, bool>,
        routes: Vec<Route>,
    ) -> Compared<'c> {
        let is_led =
            |name: &str| front.leads.iter().any(|lead| lead.kind == Kind::Any || lead.to.as_deref() == Some(name));
        let behind: Vec<(&String, &Vec<Guard>)> = backends.iter().filter(|(name, _)| is_led(name)).collect();
        let guards = || front.guards.iter().chain(behind.iter().flat_map(|(_, all)| *all));
        let terms = guards().flat_map(|guard| std::iter::once(&guard.of).chain(&guard.except));
        let terms: Vec<&Term> = terms.chain(front.leads.iter().map(|lead| &lead.of)).collect();
        let paths = Witnesses::of(&terms, routes.iter().map(|route| &route.path));
        let is_here = |term: &Term| term.is_tls.is_none_or(|wanted| wanted == front.listener.1);
        let area = |term: &Term| is_here(term).then(|| Area::of_term(term, &paths));
        let held = |guard: &'c Guard| {
            let except = guard.except.iter().filter_map(area).collect();
            Some(Held { guard, area: area(&guard.of)?, except })
        };
        Compared {
            front,
            leads: front.leads.iter().map(|lead| area(&lead.of)).collect(),
            guards: front.guards.iter().filter_map(held).collect(),
            behind: behind.iter().map(|(name, all)| (name.as_str(), all.iter().filter_map(held).collect())).collect(),
            items: routes.into_iter().map(|route| Item::new(route, &paths)).collect(),
            paths,
            tls,
            left: COMPARISONS_MAX,
        }
    }

    /// Closes what guards do not hold on; lines of these guards and what is told of them.
    fn hold(&mut self, noted: &BTreeSet<usize>) -> Found {
        let mut told = BTreeMap::new();
        let (mut index, mut added) = (0, 0);
        while index < self.items.len() && self.left > 0 {
            let Some((guard, lead)) = self.unheld(index) else {
                (index, added) = (index + 1, 0);
                continue;
            };
            told.insert((guard.line, RULE), MORE);
            let narrow = if added < ADDED_MAX { self.narrowed(index, guard, lead) } else { None };
            match narrow {
                Some(item) => {
                    self.items.insert(index, item);
                    // The route itself is one further, and looked at again.
                    (index, added) = (index + 1, added + 1);
                    if self.unheld(index).is_some_and(|again| std::ptr::eq(again.0, guard) && again.1 == lead) {
                        added = ADDED_MAX;
                    }
                }
                None => {
                    let item = &mut self.items[index];
                    told.insert((item.route.line, LEADS), SHUT);
                    (item.route.action, item.route.changes) = (guard.action.clone(), Changes::default());
                    item.is_closed = true;
                }
            }
        }
        if self.paths.is_cut {
            let lines = self.front.guards.iter().map(|guard| guard.line);
            let lines = lines.chain(self.items.iter().map(|item| item.route.line));
            told.insert((lines.min().unwrap_or(1), PATHS), CUT);
        }
        if self.left == 0 {
            told.insert((self.front.guards.first().map_or(1, |guard| guard.line), RULE), UNCOMPARED);
        }
        for index in 0..self.items.len() {
            if self.differs(index) && !self.is_noted(index, noted) {
                let fix = if self.items[index].is_closed { REFUSED } else { ELSEWHERE };
                told.entry((self.items[index].route.line, LEADS)).or_insert(fix);
            }
        }
        told
    }

    /// A guard that does not hold on some requests of a route, and the rule that leads these to its backend.
    fn unheld(&mut self, index: usize) -> Option<(&'c Guard, Option<usize>)> {
        let item = &self.items[index];
        if item.is_closed || matches!(item.route.action, Action::Redirect(_)) {
            return None;
        }
        let mut asked: Vec<(&'c Guard, Option<usize>, Area)> = Vec::new();
        for held in &self.guards {
            let is_before = matches!(item.route.action, Action::Respond(_)) && item.route.line < held.guard.from;
            if !is_before && let Some(area) = self.asked(item, held, &item.area, &[]) {
                asked.push((held.guard, None, area));
            }
        }
        for (place, lead) in self.front.leads.iter().enumerate() {
            let Some(led) = self.leads[place].as_ref().and_then(|area| area.and(&item.area)) else { continue };
            let before: Vec<&Area> = (0..place)
                .filter(|earlier| self.front.leads[*earlier].kind == Kind::Known)
                .filter_map(|earlier| self.leads[earlier].as_ref())
                .collect();
            let is_it = |name: &str| lead.kind == Kind::Any || lead.to.as_deref() == Some(name);
            for held in self.behind.iter().filter(|(name, _)| is_it(name)).flat_map(|(_, all)| all) {
                asked.extend(self.asked(item, held, &led, &before).map(|area| (held.guard, Some(place), area)));
            }
        }
        let mut unheld = None;
        for (guard, lead, area) in asked {
            self.left = self.left.saturating_sub(self.items.len());
            if !self.behind_others(index, area, |other| other.is_closed || other.asks(guard)).is_empty() {
                unheld = Some((guard, lead));
                break;
            }
        }
        unheld
    }

    /// Paths of an area that a route has when those of others that go before it are gone.
    fn behind_others(&self, index: usize, mut area: Area, is_it: impl Fn(&Item) -> bool) -> Bits {
        let rank = self.items[index].rank();
        for (place, other) in self.items.iter().enumerate() {
            let is_first = || other.rank() > rank || other.rank() == rank && place < index;
            if place != index && is_it(other) && is_first() && other.area.covers(&area) {
                area.paths.remove(&other.area.paths);
            }
        }
        area.paths
    }

    /// Whether a guard that meets a route which refuses is told of already.
    fn is_noted(&self, index: usize, noted: &BTreeSet<usize>) -> bool {
        let item = &self.items[index];
        let mut all = self.guards.iter().chain(self.behind.values().flatten());
        item.is_closed && all.any(|held| noted.contains(&held.guard.line) && held.area.and(&item.area).is_some())
    }

    /// Whether a route has requests that haproxy does something else with.
    fn differs(&self, index: usize) -> bool {
        let item = &self.items[index];
        let to = match &item.route.action {
            Action::Backend(name) => Some(name.as_str()),
            _ if item.is_closed => None,
            _ => return false,
        };
        let own = Area { paths: self.behind_others(index, item.area.clone(), |_| true), ..item.area.clone() };
        // Paths of another rule's requests that come here.
        let of_others = |other: &Area| own.and(other).map(|both| self.behind_others(index, both, |_| true));
        let without = |paths: &Bits, others: &mut dyn Iterator<Item = &Area>| {
            others.filter_map(of_others).fold(paths.clone(), |mut paths, others| {
                paths.remove(&others);
                paths
            })
        };
        let mut left = own.paths.clone();
        for held in self.guards.iter().filter(|held| to.is_none() && held.refuses(&own)) {
            left.remove(&without(&held.area.paths, &mut held.except.iter()));
        }
        for (place, lead) in self.front.leads.iter().enumerate() {
            let Some(area) = self.leads[place].as_ref().filter(|area| area.covers(&own)) else { continue };
            let is_other = |earlier: &usize| to.is_none() || self.front.leads[*earlier].to.as_deref() != to;
            // Rules that are not carried over are told of by themselves.
            let is_known = |place: usize| self.front.leads[place].kind == Kind::Known;
            let before = (0..place).filter(|earlier| is_known(place) && is_known(*earlier) && is_other(earlier));
            let before = before.filter_map(|earlier| self.leads[earlier].as_ref());
            let led = without(&area.paths, &mut before.into_iter());
            if to.is_some() && (lead.to.as_deref() == to || lead.kind == Kind::Any) {
                left.remove(&led);
            }
            let behind = lead.to.as_deref().and_then(|name| self.behind.get(name)).into_iter().flatten();
            for held in behind.filter(|held| to.is_none() && held.refuses(&own)) {
                left.remove(&without(&led.and(&held.area.paths), &mut held.except.iter()));
            }
        }
        !left.is_empty()
    }

    /// Requests of a route that a guard is for: without those that it excepts, and those that go elsewhere before.
    fn asked(&self, item: &Item, held: &Held, led: &Area, before: &[&Area]) -> Option<Area> {
        let mut area = led.and(&held.area).filter(|_| !item.asks(held.guard))?;
        for less in held.except.iter().chain(before.iter().copied()) {
            if less.covers(&area) {
                area.paths.remove(&less.paths);
            }
        }
        (!area.paths.is_empty()).then_some(area)
    }

    /// A route that answers for a guard in front of another, where one says which requests that are.
    fn narrowed(&self, index: usize, guard: &Guard, lead: Option<usize>) -> Option<Item> {
        let meeting = Guarded::none(&[], self.tls);
        let mut route = self.items[index].route.clone();
        for term in lead.map(|place| &self.front.leads[place].of).into_iter().chain([&guard.of]) {
            route = meeting.both(&route, term)?;
        }
        (route.action, route.changes) = (guard.action.clone(), Changes::default());
        let item = Item { is_added: true, ..Item::new(route, &self.paths) };
        let is_known = self.items.iter().any(|known| {
            (&known.route.host, &known.route.path, &known.route.conditions)
                == (&item.route.host, &item.route.path, &item.route.conditions)
        });
        (!is_known).then_some(item)
    }
}
