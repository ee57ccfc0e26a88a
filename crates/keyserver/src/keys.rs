//! The keys that are served: by SKI, each with the clients that may use it.

use std::collections::HashMap;
use std::path::PathBuf;

use propylon_config::keyserver::KeyReference;
use propylon_crypto::{KeyKind, PrivateKey, Ski};

use crate::access::{Access, RuleId};

/// What is published to the workers, whole. A request finishes with the keys it began with.
#[derive(Default)]
pub struct Keys {
    held: HashMap<Ski, Held>,
}

struct Held {
    key: PrivateKey,
    /// Rules that name this key.
    rules: Vec<RuleId>,
}

impl Keys {
    /// Of a key that several files hold, one is taken: they are the same. `references` are each rule's, by its id.
    pub fn new<'a>(
        found: impl IntoIterator<Item = (&'a PrivateKey, &'a PathBuf)>,
        references: &[Option<Vec<KeyReference>>],
    ) -> Keys {
        let mut keys = Keys::default();
        for (key, path) in found {
            let held = keys.held.entry(key.ski()).or_insert_with(|| Held { key: key.clone(), rules: Vec::new() });
            for (id, references) in references.iter().enumerate() {
                let names = |reference: &KeyReference| match reference {
                    KeyReference::Ski(ski) => *ski == key.ski(),
                    KeyReference::Path(named) => path.starts_with(&named.path),
                };
                let id = RuleId(id);
                if references.iter().flatten().any(names) && !held.rules.contains(&id) {
                    held.rules.push(id);
                }
            }
        }
        keys
    }

    /// None if there is no such key, or this client may not use it: it is not told which.
    pub fn find(&self, ski: &Ski, access: &Access) -> Option<&PrivateKey> {
        let held = self.held.get(ski)?;
        let allowed = match access {
            Access::Everything => true,
            Access::Rules(rules) => rules.iter().any(|rule| held.rules.contains(rule)),
        };
        allowed.then_some(&held.key)
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
