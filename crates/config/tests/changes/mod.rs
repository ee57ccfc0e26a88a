//! A configuration with one of its values changed or removed, each in turn.

use serde_json::{Value, json};

/// The configuration with each change of a value below `path`, good or not, and the path of the value.
pub fn each(root: &Value, path: &str) -> Vec<(String, Value)> {
    let mut paths = Vec::new();
    values(root.pointer(path).expect("a value"), path, &mut paths);
    let changed = |path: String| {
        let others = others(root.pointer(&path).expect("a value"));
        others.into_iter().map(|other| (path.clone(), with(root, &path, other))).collect::<Vec<_>>()
    };
    paths.into_iter().flat_map(changed).collect()
}

fn values(value: &Value, path: &str, found: &mut Vec<String>) {
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(keys) => keys.iter().map(|(key, value)| (key.clone(), value)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(at, value)| (at.to_string(), value)).collect(),
        _ => Vec::new(),
    };
    inner.iter().for_each(|(key, value)| values(value, &format!("{path}/{key}"), found));
    found.extend((!path.is_empty()).then(|| path.to_owned()));
}

/// Values in place of one, with which the configuration may still be good; `None`: without it.
fn others(value: &Value) -> Vec<Option<Value>> {
    let changed = match value {
        Value::Bool(value) => vec![json!(!value)],
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(whole), _) => vec![json!(whole + 1), json!(0), json!(1_000_000)],
            (_, Some(part)) => vec![json!(part + 1.0), json!(part / 2.0)],
            _ => Vec::new(),
        },
        Value::String(text) => {
            let words = ["off", "all", "leaf", "auto", "http", "24h", "16KiB", ""].map(|word| json!(word));
            let similar =
                [json!(format!("{text}x")), json!(format!("1{text}")), json!([text]), json!({ "path": text })];
            words.into_iter().chain(similar).collect()
        }
        Value::Array(items) => vec![items.iter().rev().cloned().collect(), json!([]), items.first().cloned().into()],
        Value::Object(_) | Value::Null => vec![json!({}), json!(true), json!(1)],
    };
    changed.into_iter().map(Some).chain([None]).collect()
}

fn with(root: &Value, path: &str, value: Option<Value>) -> Value {
    let mut root = root.clone();
    let (table, key) = path.rsplit_once('/').expect("a path");
    match (root.pointer_mut(table).expect("a table"), value) {
        (Value::Object(keys), Some(value)) => drop(keys.insert(key.into(), value)),
        (Value::Object(keys), None) => drop(keys.remove(key)),
        (Value::Array(items), Some(value)) => items[key.parse::<usize>().expect("a place")] = value,
        (Value::Array(items), None) => drop(items.remove(key.parse().expect("a place"))),
        _ => {}
    }
    root
}
