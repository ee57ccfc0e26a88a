//! The JSON Schema of configurations accepts what is read without an error, and refuses what an editor should mark.

#[path = "../changes/mod.rs"]
mod changes;
mod validator;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use propylon_config::{Source, json_schema, parse, parse_keyserver};
use validator::faults;

const FULL: &str = include_str!("../full.toml");

fn engine() -> Value {
    json_schema::engine(|_| None)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn as_json(text: &str) -> Value {
    toml::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn source(text: &str) -> Source {
    Source { name: "a.toml".into(), base: "/etc/propylon".into(), text: text.into() }
}

/// The `toml` blocks of a document.
fn blocks(document: &str) -> Vec<&str> {
    document.split("\n```toml\n").skip(1).filter_map(|rest| rest.split("\n```").next()).collect()
}

#[test]
fn every_key_is_accepted() {
    let schema = engine();
    assert_eq!(faults(&schema, &as_json(FULL)), [""; 0]);
    let json: Value = serde_json::from_str(include_str!("../full.json")).expect("JSON");
    assert_eq!(faults(&schema, &json), [""; 0]);
    let (config, _) = parse(&source(FULL)).expect("a good file");
    assert_eq!(faults(&schema, &propylon_config::effective::config(&config)), [""; 0], "what `/config` shows");
}

#[test]
fn the_examples_are_accepted() {
    let (engine, key_server) = (engine(), json_schema::key_server(|_| None));
    let mut seen = 0;
    let mut folders = vec![root().join("examples")];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.extension().is_some_and(|extension| extension == "toml") {
                let text = std::fs::read_to_string(&entry).expect("text");
                let is_key_server = text.contains("\n[server]\n");
                let schema = if is_key_server { &key_server } else { &engine };
                assert_eq!(faults(schema, &as_json(&text)), [""; 0], "{}", entry.display());
                seen += 1;
            }
        }
    }
    assert!(seen >= 2, "{seen} examples");
}

#[test]
fn whole_configurations_of_the_documents_are_accepted() {
    let (engine, key_server) = (engine(), json_schema::key_server(|_| None));
    let mut seen = 0;
    for document in ["README.md", "docs/manual.md", "docs/keyserver.md"] {
        let text = std::fs::read_to_string(root().join(document)).expect(document);
        for block in blocks(&text) {
            let schemas = [
                parse(&source(block)).is_ok().then_some(&engine),
                parse_keyserver(&source(block)).is_ok().then_some(&key_server),
            ];
            for schema in schemas.into_iter().flatten() {
                assert_eq!(faults(schema, &as_json(block)), [""; 0], "{document}:\n{block}");
                seen += 1;
            }
        }
    }
    assert!(seen >= 1, "{seen} blocks are whole configurations");
}

/// Each value of the full configuration is changed and removed by itself.
#[test]
fn nothing_is_refused_that_the_engine_accepts() {
    let (schema, mut accepted) = (engine(), 0);
    for (path, value) in changes::each(&as_json(FULL), "") {
        let text = Source { name: "a.json".into(), ..source(&value.to_string()) };
        if parse(&text).is_ok() {
            assert_eq!(faults(&schema, &value), [""; 0], "{path}: {value}");
            accepted += 1;
        }
    }
    assert!(accepted > 200, "{accepted} were accepted");
}

#[test]
fn variables_are_accepted_where_the_engine_takes_them() {
    for pointer in [
        "/process/workers",
        "/process/drain_timeout",
        "/process/share_address",
        "/log/level",
        "/listener/web/bind",
        "/listener/web/limits/head_bytes",
        "/listener/plain/redirect_to_https/status",
        "/backend/app/servers/1/weight",
        "/tracing/sample",
    ] {
        assert_eq!(changed(pointer, |place| *place = json!("${env:A:-1}")), [""; 0], "{pointer}");
    }
}

/// Faults that the schema finds in the full configuration with a change.
fn changed(pointer: &str, change: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut value = as_json(FULL);
    change(value.pointer_mut(pointer).unwrap_or_else(|| panic!("there is no {pointer}")));
    faults(&engine(), &value)
}

#[test]
fn slips_are_refused() {
    for (pointer, value) in [
        ("/process/workers", json!("four")),
        ("/process/workers", json!(0)),
        ("/process/memory_limit", json!("2 GiB")),
        ("/process/drain_timeout", json!(30)),
        ("/log/level", json!("loud")),
        ("/listener/web/bind", json!(443)),
        ("/listener/web/timeouts/idle", json!("4 s")),
        ("/listener/web/limits/headers", json!(1001)),
        ("/listener/web/forwarded", json!("apend")),
        ("/listener/web/tls", json!(true)),
        ("/listener/plain/redirect_to_https/status", json!(200)),
        ("/listener/web/paths/allow", json!(["%2E"])),
        ("/tls/public/certificates/0", json!({ "key": "a.pem" })),
        ("/tls/public/prefer", json!(["dsa"])),
        ("/backend/app/hash/key", json!({ "header": "A", "cookie": "b" })),
        ("/backend/app/servers/1/weight", json!(257)),
        ("/route/0/path", json!({ "exactly": "/x" })),
        ("/tracing/sample", json!(2)),
        ("/tracing/attributes", json!({ "a": 1 })),
    ] {
        assert!(!changed(pointer, |place| *place = value.clone()).is_empty(), "{pointer} = {value}");
    }
}

#[test]
fn a_misspelt_key_is_refused_in_every_table() {
    fn tables(value: &Value, path: &str, found: &mut Vec<String>) {
        let inner: Vec<(String, &Value)> = match value {
            Value::Object(keys) => keys.iter().map(|(key, value)| (key.clone(), value)).collect(),
            Value::Array(items) => items.iter().enumerate().map(|(at, value)| (at.to_string(), value)).collect(),
            _ => return,
        };
        found.extend(value.is_object().then(|| path.to_owned()));
        inner.iter().for_each(|(key, value)| tables(value, &format!("{path}/{key}"), found));
    }
    let mut all = Vec::new();
    tables(&as_json(FULL), "", &mut all);
    // Keys of these are the user's choice.
    let free = ["/listener", "/tls", "/signer", "/backend", "/listener/web/request_headers", "/tracing/attributes"];
    all.retain(|path| !free.contains(&path.as_str()));
    assert!(all.len() > 25, "{all:?}");
    for path in all {
        assert!(!changed(&path, |table| table["zqxj"] = true.into()).is_empty(), "{path}");
    }
}

#[test]
fn keys_that_must_be_there_are_required() {
    for (pointer, key) in [
        ("/listener/web", "bind"),
        ("/admin", "bind"),
        ("/tls/public", "certificates"),
        ("/tls/public/client_auth", "ca"),
        ("/tls/public/ticket_keys", "file"),
        ("/backend/app", "servers"),
        ("/backend/app/servers/1", "address"),
        ("/backend/app/sticky", "cookie"),
        ("/route/0", "backend"),
        ("/signer/vault", "identity"),
        ("/tracing", "endpoint"),
    ] {
        let faults = changed(pointer, |table| drop(table.as_object_mut().and_then(|table| table.remove(key))));
        assert!(!faults.is_empty(), "{pointer} without {key}");
    }
}

/// A key that the schema looks for has its forms said by whoever reads it, or every value would do.
#[test]
fn every_key_has_a_form() {
    fn check(schema: &Value, path: &str) {
        let has_form = ["type", "enum", "anyOf", "$ref"].iter().any(|keyword| schema.get(keyword).is_some());
        let is_empty = schema.get("anyOf") == Some(&json!([]));
        assert!(has_form && !is_empty, "{path}: say its forms where it is read ({schema})");
        for (key, inner) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            check(inner, &format!("{path}.{key}"));
        }
        let inner = ["items", "additionalProperties"].iter().filter_map(|keyword| schema.get(keyword));
        inner.filter(|inner| inner.is_object()).for_each(|inner| check(inner, &format!("{path}.*")));
        if path.contains('.') && schema.get("properties").is_none() {
            let forms = schema.get("anyOf").and_then(Value::as_array).into_iter().flatten();
            forms.for_each(|inner| check(inner, path));
        }
    }
    check(&engine(), "");
    check(&json_schema::key_server(|_| None), "");
}

/// Defaults of the schema are in effect where the keys are absent.
#[test]
fn defaults_are_what_is_in_effect() {
    let text = "[listener.a]\nbind = '127.0.0.1:80'\n[backend.b]\nservers = [{ address = 'c:1' }]\nhealth = {}\n\
                outlier = {}\n[backend.b.tls]\n[[route]]\nbackend = 'b'\n";
    let (config, _) = parse(&source(text)).expect("a good file");
    let shown = propylon_config::effective::config(&config);
    let written = as_json(text);
    let mut seen = 0;
    let mut compare = |schema: &str, path: &str| {
        let all = engine();
        let properties = all.pointer(schema).and_then(|table| table.get("properties")).and_then(Value::as_object);
        for (key, property) in properties.unwrap_or_else(|| panic!("no table at {schema}")) {
            let place = format!("{path}/{key}");
            if let (Some(default), Some(in_effect), None) =
                (property.get("default"), shown.pointer(&place), written.pointer(&place))
            {
                assert_eq!(default, in_effect, "{place}");
                seen += 1;
            }
        }
    };
    let backend = "/properties/backend/additionalProperties";
    let listener = "/properties/listener/additionalProperties";
    compare("/properties/process", "/process");
    compare("/properties/process/properties/handshakes", "/process/handshakes");
    compare("/properties/log", "/log");
    compare("/properties/keys", "/keys");
    compare(listener, "/listener/a");
    for table in ["paths", "timeouts", "limits", "http2", "http2/properties/flood"] {
        compare(
            &format!("{listener}/properties/{table}"),
            &format!("/listener/a/{}", table.replace("properties/", "")),
        );
    }
    compare(backend, "/backend/b");
    for table in ["http2", "queue", "timeouts", "outlier", "tls"] {
        compare(&format!("{backend}/properties/{table}"), &format!("/backend/b/{table}"));
    }
    compare(&format!("{backend}/properties/servers/items/anyOf/1"), "/backend/b/servers/0");
    compare("/properties/route/items", "/route/0");
    assert!(seen > 50, "{seen} defaults were compared");
}
