//! Order of routes by patterns: that of the file, as with nginx, also where some have conditions.

use std::collections::{BTreeMap, BTreeSet};

use propylon_config::pattern::compile;

use super::reader::Reader;
use crate::patterns::lead;
use crate::plan::{Note, Path, Route, path_text};

/// Routes that stand once more, for methods of those behind them, at most.
const REPEATED_MAX: usize = 4000;

impl Reader<'_> {
    /// Sets right what is seen in all routes together.
    pub(super) fn finish(&mut self) -> Result<(), Note> {
        let routes = std::mem::take(&mut self.plan.routes);
        let is_too_long = |route: &&Route| matches!(&route.path, Path::Regex(text) if compile(text).is_err());
        if let Some(route) = routes.iter().find(is_too_long) {
            let fix = "the pattern that its paths make is too long, or none that Propylon has: write it in another way, \
                       and import again";
            return Err(Note::new(route.line, path_text(&route.path), fix));
        }
        self.plan.routes = in_order(routes)?;
        let mut seen = BTreeSet::new();
        self.plan.notes.retain(|note| seen.insert((note.line, note.what.clone(), note.fix.clone())));
        Ok(())
    }
}

/// Gives routes by patterns as many conditions as those behind them have: of two for one host that with a method goes
/// first, and then that with a source.
fn in_order(routes: Vec<Route>) -> Result<Vec<Route>, Note> {
    let (method, source) = (("method".to_owned(), String::new()), ("source".to_owned(), String::new()));
    let place = |route: &Route| (route.listener.clone(), route.host.clone());
    let key = |route: &Route| (place(route), route.path.clone(), route.conditions.clone());
    let known: BTreeSet<_> = routes.iter().map(key).collect();
    let mut behind: BTreeMap<(String, Option<String>), Behind> = BTreeMap::new();
    let mut repeated = 0;
    let mut ordered: Vec<Route> = Vec::new();
    for mut route in routes.into_iter().rev() {
        let Path::Regex(pattern) = &route.path else {
            ordered.push(route);
            continue;
        };
        let behind = behind.entry(place(&route)).or_default();
        let pattern = pattern.clone();
        let own_lead = lead(&pattern);
        let is_other = |(other, other_lead): (&String, &Lead)| {
            let are_apart = own_lead.as_ref().zip(other_lead.as_ref());
            let are_apart = are_apart.is_some_and(|(own, other)| !own.starts_with(other) && !other.starts_with(own));
            *other != pattern && !are_apart
        };
        let own = route.conditions.get(&method).cloned();
        let is_before = behind.sources.iter().any(is_other);
        let mut copies = Vec::new();
        if own.is_none() {
            for value in behind.methods.iter().filter(|(_, all)| all.iter().any(is_other)).map(|(value, _)| value) {
                let mut copy = route.clone();
                copy.conditions.insert(method.clone(), value.clone());
                if !known.contains(&key(&copy)) {
                    copies.push(copy);
                }
            }
        }
        if let Some(value) = own {
            behind.methods.entry(value).or_default().insert(pattern.clone(), own_lead.clone());
        }
        if route.conditions.contains_key(&source) {
            behind.sources.insert(pattern, own_lead);
        } else if is_before {
            for each in copies.iter_mut().chain([&mut route]) {
                each.conditions.insert(source.clone(), "[\"0.0.0.0/0\", \"::/0\"]".into());
            }
        }
        repeated += copies.len();
        if repeated > REPEATED_MAX {
            let fix = "its patterns and those with `limit_except` make too many routes: import its servers one by one";
            return Err(Note::new(route.line, "the file", fix));
        }
        ordered.push(route);
        ordered.extend(copies.into_iter().rev());
    }
    ordered.reverse();
    Ok(ordered)
}

/// The text that all paths of a pattern begin with, where there is one.
type Lead = Option<Vec<u8>>;

/// Conditions of the routes behind one.
#[derive(Default)]
struct Behind {
    /// Patterns by the methods that they have as a condition.
    methods: BTreeMap<String, BTreeMap<String, Lead>>,
    /// Patterns with a source as a condition.
    sources: BTreeMap<String, Lead>,
}
