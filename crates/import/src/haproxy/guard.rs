//! Rules of haproxy that keep requests out.

use std::collections::BTreeMap;

use super::acls::terms;
use super::frontend::{Frontend, Fronts, returned};
use super::lines::{Line, changed, is_guard, is_of_old, refusal};
use super::order::turn;
use crate::changes::Changes;
use crate::guards::{Guard, Guarded, SHUT};
use crate::plan::{ALTERNATIVES_MAX, Action, CLOSED, Route, name_of, respond};
use crate::terms::Term;

impl Frontend<'_> {
    pub(super) fn read_guards(&mut self) {
        let (section, defaults) = (self.section, self.defaults);
        let is_http = self.is_http();
        let mut lines: Vec<&Line> = defaults.iter().chain(&section.lines).collect();
        lines.sort_by_key(|line| turn(line));
        for line in lines {
            match (line.word(0), line.word(1)) {
                ("http-request", "allow") => self.allow(line),
                // A relay has no limits.
                _ if is_guard(line) && is_http && self.limited(line) => {}
                _ if is_guard(line) => self.read_guard(line),
                _ => self.changed.extend(&changed(line)),
            }
        }
    }

    /// Guards of a backend hold on all routes to it, and those of frontends on what comes of these.
    pub(super) fn guard_backend(&mut self, fronts: &Fronts) {
        let fallen = &fronts.fallen;
        self.read_acls();
        self.read_guards();
        let to = Action::Backend(name_of(&self.section.name));
        let name = name_of(&self.section.name);
        let mut routes = std::mem::take(&mut self.plan.routes);
        let mut own: Vec<&mut Route> = routes.iter_mut().filter(|route| route.action == to).collect();
        self.change_all(&mut own);
        let is_own = |route: &Route| route.action == to || fallen.iter().any(|each| each.leads(&name, route));
        self.limit(&mut routes.iter_mut().filter(|route| is_own(route)).collect::<Vec<_>>());
        self.plan.routes = routes;
        if self.guards.is_empty() && self.limits.is_empty() && self.body_limit.is_none() {
            return;
        }
        for each in fallen {
            if self.plan.routes.iter().any(|route| each.leads(&name, route)) {
                each.tell(self.plan, &name);
            }
        }
        if self.guards.is_empty() {
            return;
        }
        self.listeners = self.plan.listeners.iter().map(|each| (each.name.clone(), each.is_tls)).collect();
        self.guards.iter_mut().for_each(|guard| guard.is_whole = false);
        let is_relay =
            |name: &str| self.plan.listeners.iter().any(|each| each.name == name && each.keys.contains_key("protocol"));
        let (relayed, routes): (Vec<Route>, Vec<Route>) = std::mem::take(&mut self.plan.routes)
            .into_iter()
            .partition(|route| is_own(route) && is_relay(&route.listener));
        let own = self.guards.clone();
        if !relayed.is_empty() {
            self.guard(relayed, false);
        }
        self.guards.clear();
        let mut guards = Vec::new();
        let mut places = BTreeMap::new();
        for (listener, all) in &fronts.guards {
            places.insert(listener.as_str(), guards.len()..guards.len() + all.len());
            guards.extend(all.iter().cloned());
        }
        let first = guards.len();
        guards.extend(own);
        let over = |route: &Route| match is_own(route) {
            true => places.get(route.listener.as_str()).cloned().unwrap_or(0..0).chain(first..guards.len()).collect(),
            false => Vec::new(),
        };
        let tls = self.listeners.iter().cloned().collect();
        let guarded = Guarded { is_compared: true, ..Guarded::none(&guards, &tls) };
        self.put_guarded(guarded.with(routes, over));
    }

    /// Puts routes into the plan, with what the guards keep out.
    pub(super) fn guard(&mut self, routes: Vec<Route>, is_http: bool) {
        let guards = std::mem::take(&mut self.guards);
        if let (Some(guard), false) = (guards.first(), is_http) {
            let fix = "a relay answers nobody and does not ask who comes: it has no route until you have decided";
            self.plan.note(guard.line, "a rule that keeps connections out", fix);
            return;
        }
        if routes.is_empty() {
            guards.iter().for_each(|guard| self.add(guard.line, std::slice::from_ref(&guard.of), &guard.action));
        }
        let tls: BTreeMap<String, bool> = self.listeners.iter().cloned().collect();
        let guarded = Guarded { is_compared: true, ..Guarded::none(&guards, &tls) };
        self.put_guarded(guarded.with(routes, |_| (0..guards.len()).collect()));
    }

    fn put_guarded(&mut self, guarded: Guarded) {
        let Guarded { routes, wider, shut, .. } = guarded;
        for line in wider {
            if !self.plan.notes.iter().any(|note| note.line == line) {
                self.plan.note(line, "a rule that keeps requests out", WIDER);
            }
        }
        shut.iter().for_each(|line| self.plan.note(*line, "a rule that asks who comes", SHUT));
        // Clients that a guard excepts may have a route by now.
        let notes = self.plan.notes.len();
        routes.into_iter().for_each(|route| self.plan.route(route));
        self.plan.notes.truncate(notes);
    }

    /// Requests that an `allow` is for; of a condition that is not carried over none.
    fn allow(&mut self, line: &Line) {
        let found = match line.words.iter().position(|word| word == "if" || word == "unless") {
            None => Ok(vec![Term::default()]),
            Some(index) => self.condition(&line.words[index + 1..], line.word(index) == "unless"),
        };
        match found {
            Ok(terms) => self.allowed.extend(terms),
            Err(what) => {
                let fix = format!("{what} is not carried over: the rules behind it hold for these requests as well");
                self.plan.note(line.number, line.text(), fix);
            }
        }
    }

    /// Reads a rule that keeps requests out. Of a condition that is not carried over the rest holds, so that nobody
    /// gets in who did not before.
    fn read_guard(&mut self, line: &Line) {
        let is_auth = line.word(1) == "auth";
        let status = line.after("deny_status").or(line.after("status")).and_then(|status| status.parse().ok());
        let status = status.filter(|status| (400..600).contains(status) && !is_auth).unwrap_or(403);
        let action = refusal(line).and_then(|status| returned(line, status)).unwrap_or(respond(status, ""));
        // Rules of long ago have a pattern of the whole head in front of their condition.
        let mut is_wider = is_of_old(line.word(0));
        let place = line.words.iter().position(|word| word == "if" || word == "unless");
        let parts: Vec<Kept> = match place {
            None => vec![Kept { of: vec![Term::default()], ..Kept::default() }],
            Some(index) if line.word(index) == "unless" => {
                let mut kept = Kept { of: vec![Term::default()], ..Kept::default() };
                for part in line.words[index + 1..].split(|word| word == "or" || word == "||") {
                    match self.condition(part, false) {
                        Ok(terms) => kept.except.extend(terms),
                        Err(_) => is_wider |= !kept.asks(self.proof(part, line)),
                    }
                }
                vec![kept]
            }
            Some(index) => {
                let parts = line.words[index + 1..].split(|word| word == "or" || word == "||");
                parts.map(|part| self.kept_out(part, line, &mut is_wider)).collect()
            }
        };
        if parts.iter().any(|part| part.proofs.len() > 1) {
            let fix =
                format!("a route asks for one file of users: write one with the users of all its lists; {CLOSED}");
            self.plan.note(line.number, line.text(), fix);
        } else if is_auth && parts.iter().any(|part| part.proof().is_none()) {
            let fix =
                format!("its users are not carried over: write `auth = {{ basic = ... }}` in the routes; {CLOSED}");
            self.plan.note(line.number, line.text(), fix);
        } else if is_wider {
            let condition = place.map_or(&[][..], |index| &line.words[index + 1..]);
            let fix = if self.asks_changed(condition) { CHANGED } else { WIDER };
            self.plan.note(line.number, line.text(), fix);
        }
        for part in parts {
            let proof = part.proof().cloned();
            let Kept { of, mut except, .. } = part;
            except.extend(self.allowed.iter().cloned());
            for of in of {
                let (line, action, except, proof) = (line.number, action.clone(), except.clone(), proof.clone());
                self.guards.push(Guard { line, from: line, of, except, action, proof, is_whole: true });
            }
        }
    }

    /// Requests that one alternative of a guard's condition keeps out, and whom it excepts of these. A test that is not
    /// carried over keeps out whoever fits the rest.
    fn kept_out(&mut self, part: &[String], line: &Line, is_wider: &mut bool) -> Kept {
        let mut kept = Kept { of: vec![Term::default()], ..Kept::default() };
        let mut is_more = false;
        let mut rest = part;
        while let Some(first) = rest.first() {
            let length = match first.ends_with('{') {
                true => rest.iter().position(|word| word == "}").map_or(rest.len(), |end| end + 1),
                false => 1,
            };
            let (one, after) = rest.split_at(length);
            rest = after;
            match first.strip_prefix('!') {
                Some(word) => {
                    let mut asked = one.to_vec();
                    asked[0] = word.to_owned();
                    match self.condition(&asked, false) {
                        Ok(terms) => kept.except.extend(terms),
                        Err(_) => is_more |= !kept.asks(self.proof(&asked, line)),
                    }
                }
                None => match self.condition(one, false) {
                    Ok(terms) => {
                        let terms: Vec<(Term, bool)> = terms.into_iter().map(Term::closed).collect();
                        is_more |= terms.iter().any(|(_, is_wider)| *is_wider);
                        let pairs = kept.of.iter().flat_map(|one| terms.iter().map(move |(two, _)| one.and(two)));
                        let both: Result<Vec<Option<Term>>, ()> = pairs.collect();
                        // One of two conditions that cannot be said together holds for more.
                        match both.map(|both| both.into_iter().flatten().collect::<Vec<Term>>()) {
                            Ok(both) if both.len() <= ALTERNATIVES_MAX => kept.of = both,
                            _ => is_more = true,
                        }
                    }
                    Err(_) => is_more = true,
                },
            }
        }
        *is_wider |= is_more;
        kept
    }
}

impl Frontend<'_> {
    /// Whether a condition asks for what the rules before it have changed.
    pub(super) fn asks_changed(&self, condition: &[String]) -> bool {
        let mut rest = condition;
        while let Some((first, after)) = rest.split_first().filter(|_| !self.changed.is_nothing()) {
            let end =
                if first.trim_start_matches('!') == "{" { after.iter().position(|word| word == "}") } else { None };
            let found = match (end, first.trim_start_matches('!')) {
                (Some(end), _) => terms(&after[..end], self.is_http()).into_iter().flatten().collect(),
                (None, name) => match self.acls.get(name) {
                    Some(lines) => lines.iter().flatten().flatten().cloned().collect(),
                    None => self.acl(name).unwrap_or_default(),
                },
            };
            if found.iter().any(|term| self.changed.touches(term)) {
                return true;
            }
            rest = &after[end.map_or(0, |end| end + 1)..];
        }
        false
    }

    /// Refuses the requests of a line that asks for what is changed: which of those that fit the rest are its own is
    /// not known.
    pub(super) fn refuse(&mut self, line: &Line) {
        let place = line.words.iter().position(|word| word == "if" || word == "unless");
        let terms: Vec<Term> = match place.filter(|index| line.word(*index) == "if") {
            None => vec![Term::default()],
            Some(index) => {
                let parts = line.words[index + 1..].split(|word| word == "or" || word == "||");
                parts.flat_map(|part| self.kept_out(part, line, &mut false).of).collect()
            }
        };
        self.plan.note(line.number, line.text(), LED_BY_CHANGED);
        self.refused.insert(line.number);
        self.add(line.number, &terms, &respond(403, ""));
    }
}

/// Requests that a rule keeps out.
#[derive(Default)]
struct Kept {
    of: Vec<Term>,
    /// But for these ...
    except: Vec<Term>,
    /// ... and for those with one of these proofs.
    proofs: Vec<Changes>,
}

impl Kept {
    /// Takes a proof, where there is one.
    fn asks(&mut self, proof: Option<Changes>) -> bool {
        self.proofs.extend(proof.clone());
        proof.is_some()
    }

    /// The proof that it asks for: of several none, since a route asks for one.
    fn proof(&self) -> Option<&Changes> {
        if let [proof] = self.proofs.as_slice() { Some(proof) } else { None }
    }
}

/// Words for rules that ask for what is changed.
const CHANGED: &str = "it asks for what rules before it have changed, and routes ask for what clients have sent: until \
                       you have written routes that do without, it keeps out every request that fits the rest of its \
                       condition, and all where nothing is left of it";
pub(super) const LED_BY_CHANGED: &str = "it goes by what rules before it have changed, and routes go by what clients have sent: write a route for it; until \
     then every request that fits the rest of its condition, and that no rule before it is for, is refused with 403";

/// Words for a guard that holds for more than it did.
const WIDER: &str = "it holds for more requests than before, since some of what it asks for is not carried over: write a \
                     route with `match` for those whom it is for, or a `limit`; until then all that fit the rest are kept \
                     out";
