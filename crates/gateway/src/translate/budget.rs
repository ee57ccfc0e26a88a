//! Room in the configuration, which is of a limited size: older routes have it before younger ones.

use std::collections::{BTreeMap, BTreeSet};

use propylon_config::SOURCE_BYTES_MAX;
use serde_json::json;

use super::draft::Draft;
use super::tables::{Parts, Text};
use crate::conditions::Trouble;
use crate::settings::Settings;

/// Routes of the engine that one route of the API may become: rules by matches, hostnames and listeners.
const DRAFTS_MAX: usize = 2048;
/// Bytes that a draft may grow by when its rule is refused, and its separators.
const DRAFT_BYTES_MORE: usize = 64;
/// Listeners of relays are there with their first route alone.
const RELAY_BYTES: usize = 512;
/// Bytes that are kept free: shares that turn out to have no backend become answers, which are longer.
const BYTES_SPARE: usize = 64 << 10;

/// Removes routes that there is no room for. All of their parents are told.
pub fn keep(settings: &Settings, parts: &mut Parts<'_, '_>) {
    let drafts = std::mem::take(&mut parts.drafts);
    let (mut own, others): (Vec<Draft>, Vec<Draft>) = drafts.into_iter().partition(|draft| draft.origin.is_some());
    parts.drafts = others;
    let free = SOURCE_BYTES_MAX.saturating_sub(Text::new(settings, parts).text.len() + BYTES_SPARE);
    let mut by_route: BTreeMap<usize, Vec<&Draft>> = BTreeMap::new();
    for draft in &own {
        by_route.entry(draft.origin.map_or(0, |(route, _)| route)).or_default().push(draft);
    }
    let mut order: Vec<usize> = by_route.keys().copied().collect();
    order.sort_by_key(|index| parts.routes[*index].metadata.precedence());
    let mut used = 0;
    let mut backends: BTreeSet<&str> = BTreeSet::new();
    let mut gone: BTreeMap<usize, String> = BTreeMap::new();
    for index in order {
        let drafts = &by_route[&index];
        let names: BTreeSet<&str> = drafts.iter().flat_map(|draft| draft.backends()).collect();
        let table = |name: &&str| parts.backends.tables.get(*name).map_or(0, |table| bytes(name, table));
        let more: usize = names.difference(&backends).map(table).sum();
        let size = more + drafts.iter().map(|draft| size(draft)).sum::<usize>();
        if drafts.len() > DRAFTS_MAX {
            let what = format!("its rules, matches, hostnames and listeners make more than {DRAFTS_MAX} routes");
            gone.insert(index, what);
        } else if used + size > free {
            let what = format!("a configuration has at most {SOURCE_BYTES_MAX} bytes, and older routes fill it");
            gone.insert(index, what);
        } else {
            used += size;
            backends.extend(names);
        }
    }
    own.retain(|draft| draft.origin.is_none_or(|(route, _)| !gone.contains_key(&route)));
    own.append(&mut parts.drafts);
    parts.drafts = own;
    for (index, what) in gone {
        for parent in &mut parts.routes[index].parents {
            parent.accepted.get_or_insert_with(|| Trouble::new("UnsupportedValue", what.clone()));
        }
    }
}

fn size(draft: &Draft) -> usize {
    let relay = if draft.path.is_none() { RELAY_BYTES } else { 0 };
    draft.value(&draft.name).to_string().len() + DRAFT_BYTES_MORE + relay
}

fn bytes(name: &str, table: &serde_json::Value) -> usize {
    json!(name).to_string().len() + table.to_string().len() + 4
}
