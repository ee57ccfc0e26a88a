//! Directives of a block in Caddy's order, and what of requests those before others have changed.

use std::collections::BTreeMap;

use crate::changed::Changed;
use crate::words::Directive;

/// Changes of requests in a block, with their places.
#[derive(Clone, Debug, Default)]
pub(super) struct Steps {
    /// Changes in front of all of the block.
    base: Changed,
    changes: Vec<((u8, usize), Changed)>,
    /// Places of directives in a `route`, where they come as they stand, by their addresses.
    places: Option<BTreeMap<usize, usize>>,
}

impl Steps {
    pub(super) fn of(owner: &Directive, base: Changed) -> Steps {
        let address = |each: &Directive| std::ptr::from_ref(each).addr();
        let is_ordered = owner.name() == "route";
        let places = || owner.inner().iter().enumerate().map(|(index, each)| (address(each), index)).collect();
        let mut steps = Steps { base, changes: Vec::new(), places: is_ordered.then(places) };
        for (index, each) in owner.inner().iter().enumerate() {
            let changed = changed(each);
            if !changed.is_nothing() {
                steps.changes.push(((turn(each.name()), index), changed));
            }
        }
        steps
    }

    /// Parts of requests that are changed in front of a directive.
    pub(super) fn before(&self, each: &Directive) -> Changed {
        let mut all = self.base.clone();
        let place = self.places.as_ref().map(|places| places.get(&std::ptr::from_ref(each).addr()).copied());
        let own = turn(each.name());
        for ((turn, index), changed) in &self.changes {
            // One alone of several blocks by `handle` is for a request.
            let is_beside = *turn == HANDLES && own == HANDLES;
            let is_before = match place {
                Some(place) => place.is_none_or(|place| *index < place),
                None => *turn <= own,
            };
            if is_before && !is_beside {
                all.extend(changed);
            }
        }
        all
    }
}

const HANDLES: u8 = 5;

/// Place of a directive in the order of Caddy, as far as changes of requests go.
fn turn(name: &str) -> u8 {
    match name {
        "redir" => 0,
        "method" => 1,
        "rewrite" | "uri" | "try_files" => 2,
        "basic_auth" | "basicauth" | "forward_auth" => 3,
        "request_header" => 4,
        "handle" | "handle_path" => HANDLES,
        "route" => 6,
        _ => 7,
    }
}

/// Parts of requests that a directive changes for what stands behind it. Paths are those of [`super::moved`].
fn changed(each: &Directive) -> Changed {
    let mut changed = Changed::default();
    match each.name() {
        "method" => changed.has_method = true,
        "rewrite" | "uri" | "try_files" => changed.has_query = true,
        "request_header" => {
            let from = if each.word(1).starts_with(['/', '@', '*']) { 2 } else { 1 };
            let inner = each.inner().iter().map(|line| line.name()).filter(|name| *name != "defer");
            let names = inner.chain(each.words.get(from).map(String::as_str));
            names.for_each(|name| add(&mut changed, name.trim_start_matches(['+', '-', '>', '?'])));
        }
        "forward_auth" => {
            let copies = each.inner().iter().filter(|inner| inner.name() == "copy_headers");
            let lines = copies.flat_map(|copy| {
                std::iter::once(copy.arguments()).chain(copy.inner().iter().map(|line| &line.words[..]))
            });
            let names = lines.flatten().map(|name| name.rsplit_once('>').map_or(name.as_str(), |(_, name)| name));
            names.for_each(|name| add(&mut changed, name));
        }
        "handle" | "handle_path" | "route" if !answers(each.inner()) => {
            each.inner().iter().for_each(|inner| changed.extend(&self::changed(inner)));
            changed.has_path |= each.name() == "handle_path";
            let moves = ["rewrite", "uri", "try_files"];
            changed.has_path |= each.inner().iter().any(|inner| moves.contains(&inner.name()));
        }
        _ => {}
    }
    changed
}

fn add(changed: &mut Changed, name: &str) {
    match name.contains(['*', '{']) {
        true => changed.has_all_fields = true,
        false => changed.field(name),
    }
}

/// Whether a block answers all that comes to it.
fn answers(block: &[Directive]) -> bool {
    const ANSWERS: &[&str] = &["reverse_proxy", "respond", "redir", "php_fastcgi", "error", "abort", "file_server"];
    block.iter().any(|each| {
        let is_block = ["handle", "handle_path", "route"].contains(&each.name());
        let is_for_all = !each.word(1).starts_with(['/', '@']);
        is_for_all && (ANSWERS.contains(&each.name()) || is_block && answers(each.inner()))
    })
}
