//! State of a reader of nginx, and where its routes are made.

use std::collections::BTreeMap;

use super::access::Access;
use super::limits::Zones;
use crate::changes::Changes;
use crate::plan::{Path, Plan};
use crate::words::{Directive, with_port};

pub(super) struct Reader<'p> {
    pub(super) plan: &'p mut Plan,
    /// Hosts of servers that no route is made of: listener, line of the server, and the pattern, or none of one that
    /// Propylon does not have.
    pub(super) shut: Vec<(String, usize, Option<String>)>,
    pub(super) upstreams: BTreeMap<String, Directive>,
    pub(super) zones: Zones,
}

pub(super) fn upstreams(block: &Directive) -> BTreeMap<String, Directive> {
    let all = block.inner().iter().filter(|each| each.name() == "upstream");
    all.map(|each| (each.word(1).to_owned(), each.clone())).collect()
}

/// An address and port that a server listens on.
#[derive(Clone, Default)]
pub(super) struct Listen {
    pub(super) listener: String,
    pub(super) is_tls: bool,
    pub(super) is_default: bool,
    /// Hosts that are the server's there; none for those that no name is for.
    pub(super) hosts: Vec<Option<String>>,
    /// Patterns of hosts that are the server's there.
    pub(super) patterns: Vec<String>,
    /// Hosts that conditions of the server ask for, and that no other server there has.
    pub(super) asked: Vec<String>,
    /// Whether clients have other addresses for the server than for the listener.
    pub(super) is_apart: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Place<'p> {
    pub(super) http: &'p Directive,
    pub(super) server: &'p Directive,
    pub(super) listens: &'p [Listen],
    pub(super) access: &'p Access,
    pub(super) changes: &'p Changes,
}

pub(super) fn bind(address: &str) -> String {
    match address.parse::<u16>() {
        Ok(port) => format!("0.0.0.0:{port}"),
        Err(_) => with_port(&address.replace('*', "0.0.0.0").replace("localhost", "127.0.0.1"), "80"),
    }
}

/// Splits what says the kind of a location from its path, which may follow without a space.
pub(super) fn split_kind(words: &mut Vec<String>) {
    let [_, text] = words.as_slice() else { return };
    let kind = ["=", "^~", "~*", "~"].into_iter().find(|kind| text.starts_with(kind) && text.len() > kind.len());
    if let Some(kind) = kind {
        let path = text[kind.len()..].to_owned();
        words.truncate(1);
        words.extend([kind.to_owned(), path]);
    }
}

pub(super) fn location_path(arguments: &[String]) -> Option<Path> {
    match arguments {
        [path] if path.starts_with('@') => None,
        [path] | [_, path] if path.is_empty() => None,
        [path] => Some(Path::Prefix(path.clone())),
        [kind, path] if kind == "=" => Some(Path::Exact(path.clone())),
        [kind, path] if kind == "^~" => Some(Path::Prefix(path.clone())),
        [kind, pattern] if kind == "~" => Some(Path::Regex(pattern.clone())),
        [kind, pattern] if kind == "~*" => Some(Path::Regex(format!("(?i){pattern}"))),
        _ => None,
    }
}
