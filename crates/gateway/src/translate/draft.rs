//! A route of the engine before it is written.

use serde_json::{Map, Value};

/// Longest name of a route that engines take.
const NAME_CHARS_MAX: usize = 64;

/// Which requests it is for, what is done then, and which rule it is of.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The engine's listener.
    pub listener: String,
    pub host: Option<String>,
    /// Absent for relays.
    pub path: Option<Value>,
    pub conditions: Map<String, Value>,
    /// All other keys.
    pub then: Map<String, Value>,
    /// Place among all routes, and of the rule. Absent for what is of no rule.
    pub origin: Option<(usize, usize)>,
    pub name: String,
}

impl Draft {
    pub fn value(&self, name: &str) -> Value {
        let mut table = Map::new();
        // One that is too long is called by its host and path.
        if name.len() <= NAME_CHARS_MAX {
            table.insert("name".into(), name.into());
        }
        table.insert("listener".into(), self.listener.clone().into());
        if let Some(host) = &self.host {
            table.insert("host".into(), host.clone().into());
        }
        if let Some(path) = &self.path {
            table.insert("path".into(), path.clone());
        }
        if !self.conditions.is_empty() {
            table.insert("match".into(), self.conditions.clone().into());
        }
        table.extend(self.then.clone());
        Value::Object(table)
    }
}
