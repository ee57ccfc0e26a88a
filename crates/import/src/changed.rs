//! Parts of requests that a configuration changes before others of its lines ask for them: routes ask the request as
//! the client has sent it.

use std::collections::BTreeSet;

use crate::terms::Term;

#[derive(Clone, Debug, Default)]
pub struct Changed {
    /// Names in lower case; "host" is the host.
    pub fields: BTreeSet<String>,
    pub has_all_fields: bool,
    pub has_path: bool,
    pub has_query: bool,
    pub has_method: bool,
    /// Whether clients have another address.
    pub has_source: bool,
}

impl Changed {
    /// A request of which nothing is known any more.
    pub fn all() -> Changed {
        Changed {
            fields: BTreeSet::new(),
            has_all_fields: true,
            has_path: true,
            has_query: true,
            has_method: true,
            has_source: true,
        }
    }

    pub fn field(&mut self, name: &str) {
        self.fields.insert(name.to_ascii_lowercase());
    }

    pub fn extend(&mut self, other: &Changed) {
        self.fields.extend(other.fields.iter().cloned());
        self.has_all_fields |= other.has_all_fields;
        self.has_path |= other.has_path;
        self.has_query |= other.has_query;
        self.has_method |= other.has_method;
        self.has_source |= other.has_source;
    }

    pub fn is_nothing(&self) -> bool {
        let is_any = self.has_all_fields || self.has_path || self.has_query || self.has_method || self.has_source;
        self.fields.is_empty() && !is_any
    }

    pub fn has_field(&self, name: &str) -> bool {
        self.has_all_fields || self.fields.contains(&name.to_ascii_lowercase())
    }

    /// Whether a condition asks for what is changed.
    pub fn touches(&self, term: &Term) -> bool {
        let is_asked = |(kind, name): &(String, String)| match kind.as_str() {
            "host" => self.has_field("host"),
            "header" => self.has_field(name),
            "cookie" => self.has_field("cookie"),
            "query" => self.has_query,
            "method" => self.has_method,
            "source" => self.has_source,
            _ => false,
        };
        term.path.is_some() && self.has_path
            || term.host.is_some() && self.has_field("host")
            || term.conditions.keys().any(is_asked)
    }
}
