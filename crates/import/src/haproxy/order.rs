//! Rules of haproxy in their order: the first that fits a request wins, while of routes the most specific does.
//!
//! So a rule that a later one would go before has a route for what both are for, which is more specific than either.

use super::frontend::{Fallen, Frontend};
use super::lines::{Line, is_of_old};
use crate::plan::{Action, Path, path_text};
use crate::terms::Term;

/// Routes for what several rules are for, at most, that come of one section.
const BOTH_MAX: usize = 4000;

/// A rule that leads requests somewhere.
#[derive(Clone)]
pub(super) struct Rule {
    pub(super) line: usize,
    pub(super) of: Term,
    pub(super) action: Action,
}

/// Place of a line's rule: connections are asked first, those of `http-request` before redirects, and backends are
/// chosen last.
pub(super) fn turn(line: &Line) -> u8 {
    match line.word(0) {
        "use_backend" => 5,
        "redirect" => 4,
        word if is_of_old(word) => 3,
        "block" => 1,
        "tcp-request" => 0,
        _ => 2,
    }
}

impl Frontend<'_> {
    /// Adds a rule's routes on a listener, behind those for requests that the first so many rules have before it.
    pub(super) fn place(&mut self, listener: &(String, bool), rule: &Rule, before: usize) {
        for index in 0..before {
            let earlier = &self.rules[index];
            let is_elsewhere = earlier.of.is_tls.is_some_and(|wanted| wanted != listener.1);
            if is_elsewhere || earlier.action == rule.action {
                continue;
            }
            let earlier = earlier.clone();
            let both = earlier.of.and(&rule.of);
            if !goes_before(&rule.of, &earlier.of) {
                self.place_narrowed(listener, (&earlier, &earlier.of), (rule, index));
                continue;
            }
            match both {
                Ok(None) => {}
                Ok(Some(both)) if both.is_same(&rule.of) => {
                    let is_told = self.refused.contains(&earlier.line);
                    if before == self.rules.len() && earlier.of.is_tls.is_none() && !is_told {
                        let path = rule.of.path.as_ref().map_or("/".to_owned(), path_text);
                        let line = earlier.line;
                        let fix = format!("line {line} is for all of these requests and goes before it: remove this");
                        self.plan.note(rule.line, path, fix);
                    }
                    return;
                }
                Ok(Some(both)) if self.both_count < BOTH_MAX => {
                    self.both_count += 1;
                    self.place_narrowed(listener, (&earlier, &both), (rule, index));
                    self.place(listener, &Rule { of: both, ..earlier }, index);
                }
                _ => self.unsaid(&listener.0, &earlier, rule),
            }
        }
        self.put(listener, rule);
    }

    /// Adds the routes of an earlier rule for what guards make of a later one, where that would go before it.
    fn place_narrowed(
        &mut self,
        listener: &(String, bool),
        (earlier, own): (&Rule, &Term),
        (rule, index): (&Rule, usize),
    ) {
        let behind = match &rule.action {
            Action::Backend(name) => self.shared.guards.get(name),
            _ => None,
        };
        let own_guards = self.guards.iter().map(|guard| (guard, guard.proof.is_some()));
        let guards = own_guards.chain(behind.into_iter().flatten().map(|guard| (guard, true)));
        let mut narrowed = Vec::new();
        for (guard, leads) in guards.filter(|(guard, _)| guard.of.is_tls.is_none_or(|wanted| wanted == listener.1)) {
            let Ok(Some(of)) = rule.of.and(&guard.of) else { continue };
            narrowed.extend(guard.except.iter().filter_map(|except| of.and(except).ok().flatten()));
            // Whom the frontend refuses is refused wherever the request leads.
            narrowed.extend(leads.then_some(of));
        }
        for of in narrowed.iter().filter(|of| goes_before(of, own)) {
            // A pair that no route says is seen later whether guards hold.
            if let Ok(Some(both)) = earlier.of.and(of)
                && self.both_count < BOTH_MAX
            {
                self.both_count += 1;
                self.place(listener, &Rule { of: both, ..earlier.clone() }, index);
            }
        }
    }

    /// Tells that a rule takes what an earlier one would have. Guards of the earlier one's backend hold for it as well.
    fn unsaid(&mut self, listener: &str, earlier: &Rule, rule: &Rule) {
        let path = rule.of.path.as_ref().map_or("/".to_owned(), path_text);
        let fix = format!(
            "line {} goes before it where both fit, which no route says: write routes for such requests; until then they \
             go here, and whom that line's backend keeps out, or limits, is kept out",
            earlier.line
        );
        self.plan.note(rule.line, path, fix);
        if let Action::Backend(name) = &earlier.action {
            let to = (rule.line, rule.of.host.clone());
            self.fallen.push(Fallen::beside(earlier.line, name, listener, to));
        }
    }
}

/// Whether a route for these requests goes before one for those, where both are for a request.
fn goes_before(one: &Term, two: &Term) -> bool {
    let host = |term: &Term| match &term.host {
        None => (0, 0),
        Some(host) if host.starts_with('*') => (1, host.len()),
        Some(_) => (2, 0),
    };
    let path = |term: &Term| match &term.path {
        None => (0, 1),
        Some(Path::Prefix(prefix)) => (0, prefix.len()),
        Some(Path::Regex(_)) => (1, 0),
        Some(Path::Exact(_)) => (2, 0),
    };
    let counts = |term: &Term| {
        let mut counts = [0; 4];
        for (kind, _) in term.conditions.keys() {
            counts[["method", "header", "query"].iter().position(|known| known == kind).unwrap_or(3)] += 1;
        }
        counts
    };
    let order = host(one).cmp(&host(two)).then(path(one).cmp(&path(two)));
    order.is_gt() || order.is_eq() && counts(one) > counts(two)
}
