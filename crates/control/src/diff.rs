//! Differences between two effective configurations, as their JSON shows them.

use std::collections::HashMap;

use serde_json::{Value, json};

/// A list of changes: `{"path": "backend.app.retries", "from": 2, "to": 3}` for a value, and for the entries of a list
/// `{"path": "backend.app.servers", "removed": ...}` or `"added"`. A list whose order alone has changed has `from` and `to`.
pub fn diff(earlier: &Value, later: &Value) -> Vec<Value> {
    let mut changes = Vec::new();
    compare("", Some(earlier), Some(later), &mut changes);
    changes
}

fn compare(path: &str, earlier: Option<&Value>, later: Option<&Value>, changes: &mut Vec<Value>) {
    match (earlier, later) {
        (Some(earlier), Some(later)) if earlier == later => {}
        (Some(Value::Object(earlier)), Some(Value::Object(later))) => {
            let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
            for (key, value) in earlier {
                compare(&below(key), Some(value), later.get(key), changes);
            }
            for (key, value) in later.iter().filter(|(key, _)| !earlier.contains_key(*key)) {
                compare(&below(key), None, Some(value), changes);
            }
        }
        (Some(Value::Array(earlier)), Some(Value::Array(later))) => lists(path, earlier, later, changes),
        (Some(earlier), Some(later)) => changes.push(json!({ "path": path, "from": earlier, "to": later })),
        (Some(earlier), None) => changes.push(json!({ "path": path, "removed": earlier })),
        (None, Some(later)) => changes.push(json!({ "path": path, "added": later })),
        (None, None) => {}
    }
}

fn lists(path: &str, earlier: &[Value], later: &[Value], changes: &mut Vec<Value>) {
    let before = changes.len();
    let (gone, mut came) = (missing(earlier, later), missing(later, earlier));
    // An entry with the same address before and after has changed, and has not gone.
    let mut places: HashMap<&str, usize> = HashMap::new();
    came.iter().enumerate().rev().for_each(|(place, entry)| {
        address(entry.0).into_iter().for_each(|address| _ = places.insert(address, place));
    });
    for entry in gone {
        match address(entry.0).and_then(|address| Some((address, places.remove(address)?))) {
            Some((address, place)) => {
                compare(&format!("{path}[{address}]"), Some(entry.0), Some(came[place].0), changes);
                came[place].1 = true;
            }
            None => changes.push(json!({ "path": path, "removed": entry.0 })),
        }
    }
    came.iter()
        .filter(|(_, is_reported)| !is_reported)
        .for_each(|(entry, _)| changes.push(json!({ "path": path, "added": entry })));
    if changes.len() == before {
        changes.push(json!({ "path": path, "from": earlier, "to": later }));
    }
}

/// Entries of a list that the other has not, each with whether it has been reported, which it has not.
fn missing<'v>(list: &'v [Value], other: &[Value]) -> Vec<(&'v Value, bool)> {
    // Entries are found by their text: with thousands of routes, comparing each with each would take too long.
    let mut others = HashMap::<String, usize>::new();
    other.iter().for_each(|entry| *others.entry(entry.to_string()).or_default() += 1);
    let mut is_missing = |entry: &&Value| match others.get_mut(&entry.to_string()) {
        Some(left) if *left > 0 => {
            *left -= 1;
            false
        }
        _ => true,
    };
    list.iter().filter(|entry| is_missing(entry)).map(|entry| (entry, false)).collect()
}

/// The address that identifies a server.
fn address(entry: &Value) -> Option<&str> {
    entry["address"].as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named_by_its_path() {
        let earlier = json!({ "a": { "b": 1, "c": [1, 2, 2], "d": 0 }, "e": { "f": 1 }, "same": [{ "x": 1 }] });
        let later = json!({ "a": { "b": 2, "c": [2, 3, 1], "d": 0 }, "g": 5, "same": [{ "x": 1 }] });
        assert_eq!(
            diff(&earlier, &later),
            [
                json!({ "path": "a.b", "from": 1, "to": 2 }),
                json!({ "path": "a.c", "removed": 2 }),
                json!({ "path": "a.c", "added": 3 }),
                json!({ "path": "e", "removed": { "f": 1 } }),
                json!({ "path": "g", "added": 5 }),
            ]
        );
        let servers = |drain: Value, weight: u16| json!({ "servers": [{ "address": "a:1", "weight": weight, "drain": drain }, { "address": "b:1" }] });
        assert_eq!(
            diff(&servers(json!(false), 1), &servers(json!(true), 1)),
            [json!({ "path": "servers[a:1].drain", "from": false, "to": true })],
            "a drain is reported as one"
        );
        assert_eq!(diff(&json!([1, 2]), &json!([2, 1])), [json!({ "path": "", "from": [1, 2], "to": [2, 1] })]);
        assert!(diff(&earlier, &earlier).is_empty());
    }
}
