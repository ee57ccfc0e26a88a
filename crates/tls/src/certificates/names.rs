//! Choice of certificates by server name.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use propylon_config::KeyType;

use super::credential::Credential;

/// Indices of certificates by name, the preferred ones first.
#[derive(Debug)]
pub(crate) struct Names {
    exact: HashMap<Box<str>, Box<[u32]>>,
    /// Wildcards, by what follows `*.`, which stands for one label (RFC 9525 §6.3).
    wildcard: HashMap<Box<str>, Box<[u32]>>,
    /// Certificates for clients that send no name, or an unknown one: those marked as default, or else the first, and
    /// others for the same names. Empty where such clients are refused.
    pub default: Box<[u32]>,
}

impl Names {
    pub fn new(credentials: &[Arc<Credential>], prefer: &[KeyType], strict: bool) -> Names {
        let (mut exact, mut wildcard) = (HashMap::with_capacity(credentials.len()), HashMap::new());
        for (index, credential) in (0..).zip(credentials) {
            for name in credential.names() {
                let (map, name) = match name.strip_prefix("*.") {
                    Some(parent) => (&mut wildcard, parent),
                    None => (&mut exact, name),
                };
                add(map, name, index);
            }
        }
        let mut default = if strict { Box::default() } else { defaults(credentials) };
        let rank = |index: &u32| rank(credentials[*index as usize].material.kind.key_type(), prefer);
        let sets = exact.values_mut().chain(wildcard.values_mut());
        for set in sets.chain([&mut default]).filter(|set| set.len() > 1) {
            // The sort is stable: of two with the same rank the one configured first is preferred.
            set.sort_by_key(rank);
        }
        exact.shrink_to_fit();
        Names { exact, wildcard, default }
    }

    /// Certificates that match the name, without the defaults.
    pub fn named(&self, name: &str) -> impl Iterator<Item = u32> + Clone {
        let exact = self.exact.get(name);
        let wildcard = name.split_once('.').and_then(|(_, parent)| self.wildcard.get(parent));
        exact.into_iter().chain(wildcard).flat_map(|set| set.iter().copied())
    }

    /// Certificates for a name in order of choice. An exact match goes before a wildcard; defaults are used only where
    /// there is neither.
    pub fn candidates(&self, name: Option<&str>) -> impl Iterator<Item = u32> + Clone {
        let name = name.map(|name| name.strip_suffix('.').unwrap_or(name));
        let exact = name.and_then(|name| self.exact.get(name)).map_or(&[][..], |set| set);
        let wildcard = name
            .and_then(|name| name.split_once('.'))
            .and_then(|(_, parent)| self.wildcard.get(parent))
            .map_or(&[][..], |set| set);
        let default = match exact.is_empty() && wildcard.is_empty() {
            true => &*self.default,
            false => &[],
        };
        exact.iter().chain(wildcard).chain(default).copied()
    }
}

/// Adds an index to the set of a name. Nearly all sets have one element, and take no more room than that.
fn add(map: &mut HashMap<Box<str>, Box<[u32]>>, name: &str, index: u32) {
    match map.get_mut(name) {
        Some(set) => *set = set.iter().copied().chain([index]).collect(),
        None => drop(map.insert(name.into(), Box::new([index]))),
    }
}

/// Rank of a key type in an order of preference. A type that is not in it comes last, but for Ed25519, which then ranks
/// with ECDSA.
fn rank(key_type: KeyType, prefer: &[KeyType]) -> usize {
    let position = |wanted| prefer.iter().position(|preferred| *preferred == wanted);
    let with_ecdsa = || if key_type == KeyType::Ed25519 { position(KeyType::Ecdsa) } else { None };
    position(key_type).or_else(with_ecdsa).unwrap_or(prefer.len())
}

fn defaults(credentials: &[Arc<Credential>]) -> Box<[u32]> {
    let marked = credentials.iter().any(|credential| credential.default);
    let is_default = |index: usize| if marked { credentials[index].default } else { index == 0 };
    let chosen = (0..credentials.len()).filter(|&index| is_default(index));
    let names: HashSet<&str> = chosen.flat_map(|index| credentials[index].names()).collect();
    let is_listed = |index: &usize| is_default(*index) || credentials[*index].names().any(|name| names.contains(name));
    (0..credentials.len()).filter(is_listed).map(|index| index as u32).collect()
}
