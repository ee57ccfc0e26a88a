//! Refusals of nginx by conditions, as guards over the routes of their block.

use std::collections::BTreeMap;

use super::conditions::{Refusal, refusal};
use super::fields::unescaped;
use super::if_redirect;
use super::reader::Reader;
use crate::changes::Changes;
use crate::guards::{Guard, Guarded};
use crate::plan::{Action, Path, Route, respond};
use crate::words::Directive;

/// Routes of a server with its refusals at most; those beyond answer nobody.
const ROUTES_MAX: usize = 8000;

const WIDER: &str = "some of its requests are refused whatever they ask for, since no route says for which of them it is: \
                     write a route with `match` for those that may come in";

impl Reader<'_> {
    /// Lays what a block refuses over its routes, from the given one on.
    pub(super) fn refuse(&mut self, first: usize, (block, is_server): (&Directive, bool)) {
        let guards = self.refusals(block, is_server);
        if guards.is_empty() || self.plan.routes.len() <= first {
            return;
        }
        let tls: BTreeMap<String, bool> =
            self.plan.listeners.iter().map(|each| (each.name.clone(), each.is_tls)).collect();
        let all: Vec<usize> = (0..guards.len()).collect();
        let mut done: Vec<Route> = Vec::new();
        let mut wider = Vec::new();
        for route in self.plan.routes.split_off(first) {
            let mut own = guards.clone();
            if matches!(route.path, Path::Regex(_)) {
                wider.extend(own.iter_mut().filter_map(|guard| guard.is_patterned(&tls, &route).then_some(guard.line)));
            }
            if done.len() > ROUTES_MAX {
                wider.push(guards[0].line);
                done.push(Route { action: respond(403, ""), changes: Changes::default(), ..route });
                continue;
            }
            let mut guarded = Guarded::none(&own, &tls);
            guarded.add(route, &all);
            wider.extend(guarded.wider);
            done.extend(guarded.routes);
        }
        for line in wider {
            let told = block.inner().iter().find(|each| each.line == line).map_or("if".into(), Directive::text);
            self.plan.note(line, told, WIDER);
        }
        let notes = self.plan.notes.len();
        done.into_iter().for_each(|route| self.plan.route(route));
        self.plan.notes.truncate(notes);
    }

    /// Guards of the conditions of a block that are said.
    fn refusals(&self, block: &Directive, is_server: bool) -> Vec<Guard> {
        let mut guards = Vec::new();
        for each in block.inner().iter().filter(|each| !is_server || if_redirect(each).is_none()) {
            let Some(Refusal::Said { of, except }) = refusal(each) else { continue };
            let action = each.inner().iter().find(|inner| inner.name() == "return").map_or(respond(403, ""), answer);
            for of in of {
                let (line, action, except) = (each.line, action.clone(), except.clone());
                guards.push(Guard { line, from: 0, of, except, action, proof: None, is_whole: is_server });
            }
        }
        guards
    }
}

/// The answer of a `return` that refuses.
fn answer(back: &Directive) -> Action {
    let status = back.word(1).parse().ok().filter(|status| (400..600).contains(status)).unwrap_or(403);
    respond(status, if back.word(2).contains('$') { String::new() } else { unescaped(back.word(2)) }.as_str())
}
