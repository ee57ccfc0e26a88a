//! A route in words: for these requests, do these steps, then this.
//!
//! The words are made of the keys as `/config` shows them, so that a key that has no words here yet is named all the
//! same. Values that people write into fields, parameters, cookies, queries and bodies are not told, since any of them
//! may be a secret: lists are shown to more people than configurations are.

use propylon_config::{Action, BackendId, Config, Route, effective, size_text, without_secrets};
use serde_json::{Map, Value};

/// A route in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentence {
    /// Requests that it is for: listener, host, path and conditions.
    pub requests: String,
    /// Steps in about the order in which they are taken; none if it has none.
    pub steps: Vec<String>,
    /// The action that follows.
    pub then: String,
    /// Backends that it names, the one that it leads to first.
    pub backends: Vec<BackendId>,
}

/// Keys of steps in the order in which they are taken; others come behind them.
const ORDER: [&str; 16] = [
    "limit",
    "cors",
    "require_client_certificate",
    "auth",
    "body_limit",
    "request",
    "timeouts",
    "retries",
    "sticky",
    "fallback",
    "mirror",
    "error_pages",
    "error_format",
    "intercept_errors",
    "security_headers",
    "response",
];
/// Keys that are no steps.
const NO_STEPS: [&str; 8] = ["name", "listener", "host", "path", "match", "backend", "redirect", "respond"];
/// Stand-in for a value that is not told.
const WITHHELD: &str = "…";
/// Characters of one value.
const VALUE_CHARS_MAX: usize = 120;

impl Sentence {
    /// The sentence of a route.
    pub fn of(config: &Config, route: &Route) -> Sentence {
        let shown = effective::route(config, route);
        let none = Map::new();
        let keys = shown.as_object().unwrap_or(&none);
        let known = ORDER.iter().filter_map(|key| Some((*key, keys.get(*key)?)));
        let others = keys.iter().map(|(key, value)| (key.as_str(), value));
        let others = others.filter(|(key, _)| !ORDER.contains(key) && !NO_STEPS.contains(key));
        let mut backends: Vec<BackendId> = match route.action {
            Action::Backend(first) => vec![first],
            Action::Redirect(_) | Action::Respond(_) => Vec::new(),
        };
        for backend in route.steps.named_backends() {
            if !backends.contains(&backend) {
                backends.push(backend);
            }
        }
        Sentence {
            requests: requests(keys),
            steps: known.chain(others).flat_map(|(key, value)| step(key, value)).collect(),
            then: then(keys),
            backends,
        }
    }
}

fn requests(keys: &Map<String, Value>) -> String {
    let mut parts = Vec::new();
    if let Some(listener) = keys.get("listener") {
        parts.push(format!("listener {}", text(listener)));
    }
    parts.push(keys.get("host").map_or_else(|| "any host".into(), |host| format!("host {}", text(host))));
    parts.push(match &keys["path"] {
        Value::String(prefix) if prefix == "/" => "any path".into(),
        Value::String(prefix) => format!("path from {prefix}"),
        path if path["exact"].is_string() => format!("exactly the path {}", text(&path["exact"])),
        path => format!("path with the pattern {}", text(&path["regex"])),
    });
    let conditions = keys.get("match").and_then(Value::as_object).into_iter().flatten();
    parts.extend(conditions.flat_map(|(kind, value)| condition(kind, value)));
    parts.join(", ")
}

/// A condition of a kind, or several of one.
fn condition(kind: &str, value: &Value) -> Vec<String> {
    let word = match kind {
        "header" => "field",
        "query" => "parameter",
        "client" => "client certificate's",
        kind => kind,
    };
    match value {
        Value::Object(tests) => {
            let may_be_secret = matches!(kind, "header" | "query" | "cookie");
            let told: fn(&Value) -> String = if may_be_secret { |_| WITHHELD.into() } else { quoted };
            tests.iter().map(|(name, value)| format!("{word} {name} {}", test(value, told))).collect()
        }
        value => vec![format!("{word} {}", alternatives(value))],
    }
}

fn test(value: &Value, told: fn(&Value) -> String) -> String {
    match value {
        Value::Object(of) if of.contains_key("present") => match of["present"].as_bool() {
            Some(false) => "not there".into(),
            _ => "there".into(),
        },
        Value::Object(of) if of.contains_key("prefix") => format!("from {}", told(&of["prefix"])),
        Value::Object(of) if of.contains_key("regex") => format!("with the pattern {}", told(&of["regex"])),
        value => told(value),
    }
}

fn quoted(value: &Value) -> String {
    format!("\"{}\"", text(value))
}

/// Words for a step; several where it has several parts.
fn step(key: &str, value: &Value) -> Vec<String> {
    let one = |words: String| vec![words];
    match key {
        "limit" => value.as_array().into_iter().flatten().map(limit).collect(),
        "cors" => one(format!("let pages of {} in (CORS)", alternatives(&value["origins"]))),
        "require_client_certificate" => one("ask for a client certificate".into()),
        "auth" => one(format!("ask for {}", proofs(value))),
        "body_limit" => one(format!("refuse bodies over {}", size(value))),
        "request" => changes("request", value),
        "response" => changes("response", value),
        "timeouts" => one(format!("wait at most {}", pairs(value))),
        "retries" => one(retries(value)),
        "sticky" => one("keep a client at its side".into()),
        "fallback" => one(format!("fall back to {}", text(value))),
        "mirror" => {
            let copy = |mirror: &Value| {
                format!("copy {} % to {}", mirror["percent"].as_f64().unwrap_or(100.0), text(&mirror["backend"]))
            };
            value.as_array().map_or_else(|| vec![copy(value)], |all| all.iter().map(copy).collect())
        }
        "error_pages" => one(format!("error pages for {}", names(value))),
        "error_format" => one(format!("errors as {}", text(value))),
        "intercept_errors" if *value == Value::Bool(false) => one("leave servers' errors as they are".into()),
        "intercept_errors" => one("error pages in place of servers' errors".into()),
        "security_headers" => one(format!("security headers: {}", text(value))),
        "compress" => one(format!("compress by {}", list(&value["encodings"]).join(", "))),
        key => one(key.replace('_', " ")),
    }
}

fn limit(value: &Value) -> String {
    let amounts = ["rate", "bytes", "requests"].into_iter().find_map(|key| Some((key, value.get(key)?)));
    let key = match &value["key"] {
        Value::Array(parts) => parts.iter().map(part).collect::<Vec<String>>().join(" and "),
        part => self::part(part),
    };
    let lists = if value.get("deny").or(value.get("deny_files")).is_some() { ", some denied" } else { "" };
    match amounts {
        Some(("requests", count)) => format!("limit to {count} requests at once by {key}{lists}"),
        Some((_, amount)) => format!("limit to {} by {key}{lists}", text(amount)),
        None => "deny some".into(),
    }
}

/// Part of a limit's key.
fn part(value: &Value) -> String {
    match value {
        Value::Object(of) => of.iter().map(|(kind, name)| format!("{kind} {}", text(name))).collect(),
        value => text(value),
    }
}

/// Proofs that are asked for.
fn proofs(value: &Value) -> String {
    let several = [("any", " or "), ("all", " and ")].into_iter().find_map(|(key, word)| Some((value.get(key)?, word)));
    match several {
        Some((list, word)) => list.as_array().into_iter().flatten().map(proof).collect::<Vec<String>>().join(word),
        None => proof(value),
    }
}

fn proof(value: &Value) -> String {
    if let Some(basic) = value.get("basic") {
        format!("a password of {}", text(&basic["file"]))
    } else if let Some(key) = value.get("api_key") {
        match key.get("header") {
            Some(header) => format!("a key in the field {}", text(header)),
            None => format!("a key in the parameter {}", text(&key["query"])),
        }
    } else if let Some(jwt) = value.get("jwt") {
        format!("a token of {}", address(&jwt["issuer"]))
    } else if let Some(forward) = value.get("forward") {
        format!("the word of {}", text(&forward["backend"]))
    } else {
        "a proof".into()
    }
}

fn retries(value: &Value) -> String {
    let on = alternatives(&value["on"]);
    match value.get("attempts").and_then(Value::as_u64) {
        Some(0) => "never repeat".into(),
        Some(attempts) => format!("repeat up to {attempts}× on {on}"),
        None => format!("repeat on {on}"),
    }
}

/// Changes of a request or a response: fields by name, never by value.
fn changes(what: &str, value: &Value) -> Vec<String> {
    let written = ["set", "add", "append"].into_iter().filter_map(|key| Some((key, value.get(key)?)));
    let mut parts: Vec<String> = written.map(|(key, fields)| format!("{key} {}", names(fields))).collect();
    if let Some(fields) = value.get("remove") {
        parts.push(format!("remove {}", list(fields).join(", ")));
    }
    if let Some(host) = value.get("host") {
        parts.push(format!("host {}", text(host)));
    }
    if let Some(path) = value.get("path") {
        parts.push(path_change(path));
    }
    let others = ["query", "cookies", "location"].into_iter().filter(|key| value.get(*key).is_some());
    parts.extend(others.map(|key| format!("change {key}")));
    parts.into_iter().map(|part| format!("{what}: {part}")).collect()
}

fn path_change(value: &Value) -> String {
    let of = |key| value.get(key).map(text);
    match (of("strip"), of("replace_prefix"), of("replace"), of("regex")) {
        (Some(prefix), ..) => format!("path without {prefix}"),
        (_, Some(prefix), ..) => format!("path from {prefix}"),
        (.., Some(path), _) => format!("path {path}"),
        (.., Some(pattern)) => format!("path by the pattern {pattern}"),
        _ => "another path".into(),
    }
}

fn then(keys: &Map<String, Value>) -> String {
    match (keys.get("backend"), keys.get("redirect"), keys.get("respond")) {
        (Some(Value::Array(sides)), ..) => {
            let whole: u64 = sides.iter().filter_map(|side| side["weight"].as_u64()).sum();
            let to = |side: &Value| match side.get("respond") {
                Some(status) => format!("an answer of {status}"),
                None => text(&side["name"]),
            };
            let side = |side: &Value| format!("{} ({} of {whole})", to(side), side["weight"]);
            format!("backend {}", sides.iter().map(side).collect::<Vec<String>>().join(" or "))
        }
        (Some(backend), ..) => format!("backend {}", text(backend)),
        (_, Some(to), _) => {
            let part = |key: &str| Some(format!("{key} {}", text(to.get(key)?)));
            let path = to.get("path").map(|path| match path {
                Value::Object(_) => path_change(path),
                path => format!("path {}", address(path)),
            });
            let parts: Vec<String> = ["scheme", "host", "port"].into_iter().filter_map(part).chain(path).collect();
            format!("redirect ({}) to {}", to["status"], parts.join(", "))
        }
        (.., Some(respond)) => format!("respond {} ({})", respond["status"], text(&respond["content_type"])),
        _ => String::new(),
    }
}

/// Keys of a table with their values.
fn pairs(value: &Value) -> String {
    let pairs = value.as_object().into_iter().flatten().map(|(key, value)| format!("{key} {}", text(value)));
    pairs.collect::<Vec<String>>().join(", ").replace('_', " ")
}

/// Keys of a table.
fn names(value: &Value) -> String {
    value.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect::<Vec<&str>>().join(", ")
}

fn list(value: &Value) -> Vec<String> {
    match value {
        Value::Array(items) => items.iter().map(text).collect(),
        value => vec![text(value)],
    }
}

/// A number of bytes as configurations write it.
fn size(value: &Value) -> String {
    value.as_u64().map_or_else(|| text(value), size_text)
}

fn alternatives(value: &Value) -> String {
    list(value).join(" or ")
}

/// A path or a URL without its query and its user.
fn address(value: &Value) -> String {
    match value.as_str() {
        Some(whole) => text(&without_secrets(whole, WITHHELD).into()),
        None => text(value),
    }
}

fn text(value: &Value) -> String {
    let whole = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match whole.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &whole[..end]),
        None => whole,
    }
}

#[cfg(test)]
mod tests {
    use propylon_config::{Source, parse};

    use super::*;

    fn sentences(routes: &str) -> Vec<Sentence> {
        let text = format!(
            "[listener.web]\nbind = \"127.0.0.1:80\"\n[backend.app]\nservers = [\"a:1\"]\n[backend.next]\nservers = [\"b:1\"]\n[backend.last]\nservers = [\"c:1\"]\n{routes}"
        );
        let source = Source { name: "f".into(), base: "/".into(), text };
        let config = parse(&source).unwrap_or_else(|problems| panic!("{problems:?}")).0;
        config.routes.iter().map(|route| Sentence::of(&config, route)).collect()
    }

    #[test]
    fn a_route_reads_as_for_do_then() {
        let all = sentences(
            "[[route]]\nlistener = \"web\"\nhost = \"*.a.test\"\npath = \"/api\"\n\
             match = { method = [\"GET\", \"PUT\"], header = { X-Canary = \"yes\", X-Api-Key = \"hush\" }, query = { v = { present = true } }, source = \"10.0.0.0/8\" }\n\
             limit = { rate = \"10/s\", burst = 20, key = [\"source\", { cookie = \"user\" }], deny = [\"192.0.2.1\"] }\n\
             auth = { api_key = { file = \"keys\", header = \"X-Api-Key\" } }\n\
             body_limit = \"1MiB\"\nrequest = { set = { Authorization = \"Basic aHVzaA==\" }, remove = [\"X-B\"], path = { strip = \"/api\" } }\n\
             backend = [{ name = \"app\", weight = 9 }, { name = \"next\", weight = 1 }]\nfallback = \"last\"\nmirror = { backend = \"last\", percent = 5 }\n\
             retries = { attempts = 2, on = [\"connect\", 503] }\ntimeouts = { first_byte = \"2s\" }\ncompress = true\n\
             [[route]]\npath = { exact = \"/old\" }\nredirect = { scheme = \"https\", host = \"b.test\", path = \"/new\" }\n\
             [[route]]\npath = \"/both\"\nauth = { all = [{ basic = { file = \"u\" } }, { forward = { backend = \"last\" } }] }\nlimit = { rate = \"1/s\", key = \"user\" }\nbackend = \"app\"\n\
             [[route]]\npath = { regex = \"[.]php$\" }\nrespond = { status = 404, body = \"no\" }\n",
        );
        let Sentence { requests, steps, then, backends } = &all[0];
        assert_eq!(
            requests,
            "listener web, host *.a.test, path from /api, field x-api-key …, field x-canary …, method GET or PUT, \
             parameter v there, source 10.0.0.0/8"
        );
        assert_eq!(
            steps[..],
            [
                "limit to 10/s by source and cookie user, some denied",
                "ask for a key in the field X-Api-Key",
                "refuse bodies over 1MiB",
                "request: set Authorization",
                "request: remove X-B",
                "request: path without /api",
                "wait at most first byte 2s",
                "repeat up to 2× on connect or 503",
                "fall back to last",
                "copy 5 % to last",
                "compress by zstd, br, gzip",
            ]
        );
        assert_eq!((then.as_str(), backends.len()), ("backend app (9 of 10) or next (1 of 10)", 3));
        assert_eq!(all[1].requests, "any host, exactly the path /old");
        assert_eq!(
            (all[1].then.as_str(), &all[1].steps[..]),
            ("redirect (308) to scheme https, host b.test, path /new", &[][..])
        );
        assert_eq!(all[2].steps, ["limit to 1/s by user", "ask for a password of /u and the word of last"]);
        assert_eq!((all[3].requests.as_str(), all[3].backends.len()), ("any host, path with the pattern [.]php$", 0));
        assert!(all[3].then.starts_with("respond 404 (text/plain"));
    }

    #[test]
    fn no_secret_of_a_route_is_in_its_words() {
        let all = format!(
            "{:?}",
            sentences(
                "[[route]]\nmatch = { header = { Authorization = \"Bearer hush\", X-Seat = { prefix = \"hush\" } }, cookie = { c = { regex = \"^hush\" } }, query = { code = \"hush\" } }\n\
                 request = { set = { X-Pass = \"hush\" }, query = { set = { k = \"hush\" } } }\nresponse = { add = { X-A = \"hush\" } }\nbackend = \"app\"\n\
                 [[route]]\npath = \"/b\"\nrespond = { body = \"hush\" }\n\
                 [[route]]\npath = \"/c\"\nredirect = { path = \"/d?k=hush\" }\n"
            )
        );
        assert!(!all.contains("hush"), "{all}");
        for told in ["X-Pass", "field x-seat from …", "cookie c with the pattern …", "parameter code …", "to path /d?…"]
        {
            assert!(all.contains(told), "no {told} in {all}");
        }
    }
}
