//! What is different between two configurations in effect, as their JSON shows it.

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
    // By their text: with thousands of routes each is not to be compared with each.
    let count = |list: &[Value]| {
        let mut counts = std::collections::HashMap::<String, usize>::new();
        list.iter().for_each(|entry| *counts.entry(entry.to_string()).or_default() += 1);
        counts
    };
    let mut missing = |list: &[Value], other: &[Value], word: &str| {
        let mut others = count(other);
        for entry in list {
            match others.get_mut(&entry.to_string()) {
                Some(left) if *left > 0 => *left -= 1,
                _ => changes.push(json!({ "path": path, word: entry })),
            }
        }
    };
    missing(earlier, later, "removed");
    missing(later, earlier, "added");
    if changes.len() == before {
        changes.push(json!({ "path": path, "from": earlier, "to": later }));
    }
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
        assert_eq!(diff(&json!([1, 2]), &json!([2, 1])), [json!({ "path": "", "from": [1, 2], "to": [2, 1] })]);
        assert!(diff(&earlier, &earlier).is_empty());
    }
}
