//! A configuration without its secrets. Keys, tokens, passwords and hashes are in files, which it only names; but
//! people also write values into fields, cookies, parameters and bodies.

use propylon_config::without_secrets;
use serde_json::{Map, Value};

const WITHHELD: &str = "(withheld)";
/// Changes that the log tells one by one, and characters of each.
const CHANGES_MAX: usize = 5;
const LINE_CHARS_MAX: usize = 160;
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

/// A change as `diff` finds it, `backend.app.servers[10.0.0.3:80].drain: false -> true`, without values that may be
/// secret: what a command prints stays in logs of whoever runs it.
pub fn change(change: &Value) -> String {
    let path = path_of(change);
    let shown = |key: &str| change.get(key).map(|told| value(&path, told.clone()).to_string());
    match (shown("from"), shown("to"), shown("added"), shown("removed")) {
        (Some(from), Some(to), ..) => format!("{path}: {from} -> {to}"),
        (_, _, Some(added), _) => format!("{path}: added {added}"),
        (_, _, _, Some(removed)) => format!("{path}: removed {removed}"),
        _ => format!("{path}: read again"),
    }
}

/// The first of these changes for the log, each in a line of limited length, and how many more there are. Of routes and
/// other tables that came or went their names are told; one that went and came has changed.
pub fn changes(all: &[Value]) -> Vec<String> {
    let entry = |change: &Value, key: &str| {
        let path = path_of(change);
        // Names are made of the rest: a withheld value is in no name either.
        let name = entry_name(&value(&path, change.get(key)?.clone()))?;
        Some((path, name))
    };
    let added: Vec<(String, String)> = all.iter().filter_map(|change| entry(change, "added")).collect();
    let removed: Vec<(String, String)> = all.iter().filter_map(|change| entry(change, "removed")).collect();
    let line = |one: &Value| match (entry(one, "removed"), entry(one, "added")) {
        (Some(gone), _) if added.contains(&gone) => Some(format!("{} {}: changed", gone.0, gone.1)),
        (Some((path, name)), _) => Some(format!("{path} {name}: removed")),
        (_, Some(came)) if removed.contains(&came) => None,
        (_, Some((path, name))) => Some(format!("{path} {name}: added")),
        _ => Some(cut(change(one))),
    };
    let mut lines: Vec<String> = all.iter().filter_map(line).collect();
    let more = lines.len().saturating_sub(CHANGES_MAX);
    lines.truncate(CHANGES_MAX);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

/// The path of a change, without what would act on a terminal.
fn path_of(change: &Value) -> String {
    change["path"].as_str().unwrap_or_default().chars().filter(|one| !one.is_control()).collect()
}

/// A name for an entry of a list, such as a route: its own, its address, or its host and path.
fn entry_name(entry: &Value) -> Option<String> {
    let table = entry.as_object()?;
    let text = |key: &str| table.get(key).and_then(Value::as_str);
    let path = || match &entry["path"] {
        Value::Object(of) => of.values().next().and_then(Value::as_str),
        other => other.as_str(),
    };
    let place = || text("host").map(|host| format!("{host}{}", path().unwrap_or_default()));
    let name = text("name").or_else(|| text("address")).map(str::to_owned).or_else(place)?;
    // As JSON has it, nothing in it acts on a terminal.
    Some(cut(Value::from(name).to_string()))
}

fn cut(line: String) -> String {
    match line.char_indices().nth(LINE_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
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
    fn the_log_has_the_first_changes_in_short_and_no_value_that_may_be_secret() {
        let route =
            |host: &str, key: &str| json!({ "host": host, "path": "/api", "request": { "set": { "X-Key": key } } });
        let mut all = vec![
            json!({ "path": "backend.app.retries", "from": 2, "to": 3 }),
            json!({ "path": "listener.web.request_headers.X-Key", "from": "canary", "to": "canary2" }),
            json!({ "path": "route", "removed": route("a.test", "canary") }),
            json!({ "path": "route", "removed": { "name": "old\u{1b}", "respond": {} } }),
            json!({ "path": "route", "added": route("a.test", "canary2") }),
            json!({ "path": "tls.public", "certificates": "read again" }),
        ];
        let told = [
            "backend.app.retries: 2 -> 3",
            "listener.web.request_headers.X-Key: \"(withheld)\" -> \"(withheld)\"",
            "route \"a.test/api\": changed",
            "route \"old\\u001b\": removed",
            "tls.public: read again",
        ];
        assert_eq!(changes(&all), told);
        let health = json!({ "host": "h.test", "path": "/h?token=canary" });
        let set = json!({ "name": "canary", "X-Key": "canary" });
        let named = [
            json!({ "path": "backend.app.health", "removed": health }),
            json!({ "path": "route[a.test/].request.set", "added": set }),
        ];
        let told =
            ["backend.app.health \"h.test/h?(withheld)\": removed", "route[a.test/].request.set \"(withheld)\": added"];
        assert_eq!(changes(&named), told);
        let long = json!({ "path": "log.fields", "from": [], "to": ["x".repeat(500)] });
        all.splice(..1, [long.clone(), long.clone(), long]);
        let lines = changes(&all);
        assert_eq!((lines.len(), lines[5].as_str()), (6, "and 2 more"));
        assert!(lines[0].chars().count() == LINE_CHARS_MAX + 1 && lines[0].ends_with('…'), "{lines:?}");
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
