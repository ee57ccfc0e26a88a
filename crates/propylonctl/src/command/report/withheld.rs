//! A configuration without its secrets. Keys, tokens, passwords and hashes are in files, which it only names; but
//! people also write values into fields, cookies, parameters and bodies.

use propylon_config::without_secrets;
use serde_json::{Map, Value};

const WITHHELD: &str = "(withheld)";
/// Tables whose values people choose, whatever is in them.
const TABLES: &[&str] = &[
    "add",
    "append",
    "attributes",
    "cookie",
    "header",
    "headers",
    "params",
    "query",
    "request_headers",
    "set",
    "trailers",
];
/// Texts that people choose, by the table that they are in.
const TEXTS: &[(&str, &str)] =
    &[("respond", "body"), ("health", "body"), ("health", "request"), ("capacity", "hook"), ("on", "hook")];

/// The configuration in effect, for others to read.
pub fn config(mut config: Value) -> Value {
    if let Value::Object(table) = &mut config {
        in_table(table, "");
    }
    config
}

/// A value that is at this path of a configuration, as `backend.app.servers[10.0.0.1:80].weight`.
pub fn value(path: &str, mut value: Value) -> Value {
    let mut names: Vec<&str> = Vec::new();
    // Brackets name an entry of a list, which has points of its own.
    for part in path.split(']') {
        names.extend(part.split('[').next().unwrap_or_default().split('.').filter(|name| !name.is_empty()));
    }
    let name = names.pop().unwrap_or_default();
    let above = names.last().copied().unwrap_or_default();
    let is_chosen = names.iter().any(|name| TABLES.contains(name)) || (TABLES.contains(&name) && value.is_object());
    match is_chosen || TEXTS.contains(&(above, name)) {
        true => hide(&mut value),
        false => look(&mut value, name),
    }
    value
}

/// Whether a field of this name is there to prove who somebody is.
pub fn is_secret(field: &str) -> bool {
    let name = field.to_ascii_lowercase();
    ["auth", "cookie", "key", "pass", "secret", "session", "token"].iter().any(|part| name.contains(part))
}

/// A line of a head, without its value where that is secret.
pub fn line(line: &str) -> String {
    match line.split_once(':') {
        Some((name, _)) if is_secret(name) => format!("{name}: {WITHHELD}"),
        _ => line.to_owned(),
    }
}

fn in_table(table: &mut Map<String, Value>, name: &str) {
    for (key, value) in table.iter_mut() {
        let is_chosen = TABLES.contains(&key.as_str()) && value.is_object();
        if is_chosen || TEXTS.contains(&(name, key.as_str())) {
            hide(value);
        } else {
            look(value, key);
        }
    }
}

fn look(value: &mut Value, name: &str) {
    match value {
        Value::Object(table) => in_table(table, name),
        Value::Array(all) => all.iter_mut().for_each(|each| look(each, name)),
        Value::String(text) => *text = without_secrets(text, WITHHELD),
        _ => {}
    }
}

/// Leaves shapes, and names of keys.
fn hide(value: &mut Value) {
    match value {
        Value::Object(table) => table.values_mut().for_each(hide),
        Value::Array(all) => all.iter_mut().for_each(hide),
        Value::String(text) => WITHHELD.clone_into(text),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_is_withheld_by_its_path() {
        let of = |path: &str, told: Value| value(path, told).to_string();
        let hidden = json!(WITHHELD).to_string();
        assert_eq!(of("listener.web.request_headers.X-Key", json!("canary")), hidden);
        assert_eq!(of("backend.app.health.body", json!("canary")), hidden);
        assert!(!of("route", json!({ "request": { "set": { "Authorization": "canary" } } })).contains("canary"));
        assert!(!of("tracing.headers", json!({ "A": "canary" })).contains("canary"));
        assert_eq!(of("backend.app.servers[10.0.0.1:80].weight", json!(5)), "5");
        assert_eq!(of("backend.app.hash.key.header", json!("X-Account")), "\"X-Account\"");
        assert_eq!(line("X-Api-Key: canary"), "X-Api-Key: (withheld)");
        assert_eq!(line("X-Forwarded-For: 10.0.0.1"), "X-Forwarded-For: 10.0.0.1");
    }

    #[test]
    fn values_that_people_write_are_withheld_wherever_they_are() {
        let shown = config(json!({
            "listener": { "web": { "bind": "127.0.0.1:1", "request_headers": { "X-Key": "canary" } } },
            "backend": { "app": {
                "servers": [{ "address": "a:1", "weight": 3 }],
                "hash": { "key": { "header": "X-Account" } },
                "health": { "path": "/up?key=canary", "body": "canary", "headers": { "Authorization": "canary" } },
                "fastcgi": { "params": { "DB": "canary" } },
                "timeouts": { "body": "3s" },
            } },
            "route": [{
                "match": { "header": { "x-key": { "exact": "canary" } }, "query": { "k": "canary" }, "cookie": { "c": ["canary"] } },
                "request": { "set": { "Authorization": "canary" }, "add": { "A": "canary" }, "query": { "set": { "k": "canary" } } },
                "response": { "append": { "A": "canary" }, "cookies": { "same_site": "lax" } },
                "respond": { "status": 200, "body": "canary", "content_type": "text/plain" },
                "redirect": { "path": "/new?k=canary" },
                "auth": { "jwt": { "keys_url": "https://a:canary@id.test/keys?k=canary", "issuer": "https://id.test" } },
                "limit": [{ "key": ["source", { "header": "X-Key" }] }],
            }],
            "tracing": { "endpoint": "https://canary@c:1/x", "headers": "collector.headers" },
            "cluster": { "capacity": { "hook": ["/usr/bin/engines", "canary"] } },
        }));
        let text = shown.to_string();
        assert!(!text.contains("canary"), "{shown:#}");
        for kept in
            ["127.0.0.1:1", "a:1", "X-Account", "3s", "lax", "https://id.test", "X-Key", "collector.headers", "/up?"]
        {
            assert!(text.contains(kept), "{kept}: {shown:#}");
        }
        assert_eq!(shown["route"][0]["auth"]["jwt"]["keys_url"], "https://(withheld)@id.test/keys?(withheld)");
    }
}
