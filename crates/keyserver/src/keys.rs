//! The keys that are served: by SKI, each with the clients that may use it.

use std::collections::HashMap;
use std::path::Path;

use propylon_config::At;
use propylon_config::keyserver::{KeyReference, Operations};
use propylon_crypto::{Key, KeyKind, Ski};

use crate::access::{Access, RuleId};

/// The keys in service, published to the workers as a whole. A request finishes with the keys that it began with.
#[derive(Default)]
pub struct Keys {
    held: HashMap<Ski, Held>,
}

struct Held {
    key: Key,
    /// Rules that name this key.
    rules: Vec<RuleId>,
}

/// The reason why the keys of a hardware module cannot be served, its place in the configuration, and what to do.
#[derive(Debug)]
pub struct TokenFault {
    pub at: At,
    pub what: String,
    pub fix: &'static str,
}

/// The place where a key was found.
#[derive(Clone, Copy, Debug)]
pub enum Origin<'a> {
    File(&'a Path),
    /// `TOKEN/LABEL`
    Token(&'a str),
}

impl Origin<'_> {
    /// Whether a `[[client]]` section's key reference covers keys from here.
    pub fn is_named_by(self, reference: &KeyReference) -> bool {
        match (reference, self) {
            (KeyReference::Path(named), Origin::File(path)) => path.starts_with(&named.path),
            (KeyReference::Token(name), Origin::Token(key)) => {
                key.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
            _ => false,
        }
    }
}

impl std::fmt::Display for Origin<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Token(name) => write!(f, "pkcs11:{name}"),
        }
    }
}

impl Keys {
    /// Collects the keys. If a key is in several places, the first is taken: they are the same. `references` are
    /// each rule's, by its id.
    pub fn new<'a>(
        found: impl IntoIterator<Item = (Key, Origin<'a>)>,
        references: &[Option<Vec<KeyReference>>],
    ) -> Keys {
        let mut keys = Keys::default();
        for (key, origin) in found {
            let ski = key.ski();
            let held = keys.held.entry(ski).or_insert_with(|| Held { key, rules: Vec::new() });
            for (id, references) in references.iter().enumerate() {
                let names = |reference: &KeyReference| match reference {
                    KeyReference::Ski(named) => *named == ski,
                    reference => origin.is_named_by(reference),
                };
                let id = RuleId(id);
                if references.iter().flatten().any(names) && !held.rules.contains(&id) {
                    held.rules.push(id);
                }
            }
        }
        keys
    }

    /// The key, and the operations that this client may use it for. Absent if there is no such key, or this client
    /// may not use it: the client is not told which.
    pub fn find(&self, ski: &Ski, access: &Access) -> Option<(&Key, Operations)> {
        let held = self.held.get(ski)?;
        Some((&held.key, access.to_key(&held.rules)?))
    }

    pub fn len(&self) -> usize {
        self.held.len()
    }
}

pub fn kind_name(kind: KeyKind) -> String {
    match kind {
        KeyKind::P256 => "P-256".into(),
        KeyKind::P384 => "P-384".into(),
        KeyKind::P521 => "P-521".into(),
        KeyKind::Ed25519 => "Ed25519".into(),
        KeyKind::Rsa { bytes } => format!("RSA-{}", 8 * u32::from(bytes)),
    }
}

pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
