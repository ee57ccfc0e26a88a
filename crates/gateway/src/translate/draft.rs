//! A route of the engine before it is written.

use serde_json::{Map, Value, json};

/// Longest name that engines take.
const NAME_CHARS_MAX: usize = 64;
/// Characters that a longer one keeps, before what tells it from others that begin so.
const NAME_CHARS_KEPT: usize = 47;

/// A name of a listener or a backend that engines take.
pub fn short(name: String) -> String {
    if name.len() <= NAME_CHARS_MAX {
        return name;
    }
    let digest = propylon_crypto::sha256(name.as_bytes());
    let digest: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let kept: String = name.chars().take(NAME_CHARS_KEPT).collect();
    format!("{kept}_{digest}")
}

/// A few characters that tell a value from others, for names.
pub fn mark(value: &Value) -> String {
    let digest = propylon_crypto::sha256(value.to_string().as_bytes());
    digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// Keys of a rule that cannot be kept. Its requests are answered so, and not by a rule that is for more: a filter of
/// this one may have had to let them in.
pub fn refused() -> Map<String, Value> {
    Map::from_iter([("respond".to_owned(), json!({ "status": 500 }))])
}

/// The backend of connections that have none: its one server is a port where nobody listens, so that they are closed.
pub const NOBODY: &str = "nobody";

/// Keys of a relay's route that closes its connections.
pub fn closed() -> Map<String, Value> {
    Map::from_iter([("backend".to_owned(), NOBODY.into())])
}

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

    /// Backends that it leads to.
    pub fn backends(&self) -> impl Iterator<Item = &str> {
        let (one, list) = match self.then.get("backend") {
            Some(Value::Array(list)) => (None, list.as_slice()),
            one => (one.and_then(Value::as_str), &[][..]),
        };
        let mirrors = self.then.get("mirror").and_then(Value::as_array).into_iter().flatten();
        let mirrors = mirrors.filter_map(|mirror| mirror["backend"].as_str());
        let guard = self.guard().into_iter();
        one.into_iter().chain(list.iter().filter_map(|each| each["name"].as_str())).chain(mirrors).chain(guard)
    }

    /// The backend that is asked who may come in.
    fn guard(&self) -> Option<&str> {
        self.then.get("auth")?["forward"]["backend"].as_str()
    }

    /// Keys that it has where it cannot be kept: requests are answered with 500, connections closed. Neither is given
    /// to a route that is for more.
    pub fn refused(&self) -> Map<String, Value> {
        if self.path.is_none() { closed() } else { refused() }
    }

    /// Answers with 500 in the place of a backend, or closes a relay's connections.
    pub fn without_backend(&mut self, name: &str) {
        let refused = self.refused();
        if self.guard() == Some(name) {
            self.then = refused;
            return;
        }
        if let Some(Value::Array(mirrors)) = self.then.get_mut("mirror") {
            mirrors.retain(|mirror| mirror["backend"] != name);
            if mirrors.is_empty() {
                self.then.remove("mirror");
            }
        }
        match self.then.get_mut("backend") {
            Some(Value::Array(list)) => {
                let (gone, mut kept): (Vec<Value>, Vec<Value>) =
                    std::mem::take(list).into_iter().partition(|each| each["name"] == name);
                let weight = |each: &Value| each["weight"].as_u64().unwrap_or(0);
                let lost: u64 = gone.iter().map(weight).sum();
                match kept.iter_mut().find(|each| each["respond"] == 500) {
                    _ if lost == 0 => {}
                    Some(refusal) => refusal["weight"] = (weight(refusal) + lost).into(),
                    None => kept.push(json!({ "respond": 500, "weight": lost })),
                }
                let has_backend = kept.iter().any(|each| each["name"].is_string());
                *list = kept;
                if !has_backend {
                    self.then = refused;
                }
            }
            Some(one) if *one == name => self.then = refused,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_that_is_gone_leaves_its_share_to_a_refusal() {
        let draft = |then: Value| Draft {
            listener: "l".into(),
            host: None,
            path: Some(json!("/")),
            conditions: Map::new(),
            then: then.as_object().cloned().unwrap_or_default(),
            origin: None,
            name: "n".into(),
        };
        let list = json!([{ "name": "a", "weight": 1 }, { "name": "b", "weight": 2 }, { "respond": 500, "weight": 3 }]);
        let mut split = draft(json!({ "backend": list, "mirror": [{ "backend": "b" }] }));
        assert_eq!(split.backends().collect::<Vec<_>>(), ["a", "b", "b"]);
        split.without_backend("b");
        let kept = json!([{ "name": "a", "weight": 1 }, { "respond": 500, "weight": 5 }]);
        assert_eq!(Value::Object(split.then.clone()), json!({ "backend": kept }));
        split.without_backend("a");
        assert_eq!(split.then, refused());
        let mut one = draft(json!({ "backend": "a", "retries": {} }));
        one.without_backend("a");
        assert_eq!(one.then, refused());
        let mut relay = Draft { path: None, ..draft(json!({ "backend": "a" })) };
        relay.without_backend("a");
        assert_eq!(relay.then, closed());
    }

    #[test]
    fn long_names_are_told_apart_still() {
        assert_eq!(short("a".repeat(64)), "a".repeat(64));
        let (one, other) = (short("a".repeat(65)), short("a".repeat(66)));
        assert!(one.len() == 64 && other.len() == 64 && one != other);
    }
}
