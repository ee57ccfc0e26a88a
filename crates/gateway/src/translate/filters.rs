//! Filters of rules as keys of a route.

use serde_json::{Map, Value, json};

use crate::conditions::Trouble;
use crate::resources::{Cors, ExternalAuth, Filter, HeaderChanges, PathModifier, Redirect, Rewrite};

/// The way in of a rule's requests: its scheme is a part of redirects.
#[derive(Clone, Copy)]
pub struct Entrance {
    pub is_https: bool,
}

/// Keys of a route for the filters of a rule, without copies.
pub fn keys(filters: &[&Filter], entrance: Entrance) -> Result<Map<String, Value>, Trouble> {
    let mut keys = Map::new();
    let mut request = Map::new();
    let has = |kind: &str| filters.iter().any(|filter| filter.kind == kind);
    if has("RequestRedirect") && has("URLRewrite") {
        let what = "RequestRedirect and URLRewrite cannot be used in one rule";
        return Err(Trouble::new("IncompatibleFilters", what));
    }
    for filter in filters {
        match filter.kind.as_str() {
            "RequestHeaderModifier" => headers(&filter.request_header_modifier, &mut request),
            "ResponseHeaderModifier" => {
                let mut response = Map::new();
                headers(&filter.response_header_modifier, &mut response);
                keys.insert("response".into(), response.into());
            }
            "RequestRedirect" => {
                keys.insert("redirect".into(), redirect(&filter.request_redirect, entrance));
            }
            "URLRewrite" => rewrite(&filter.url_rewrite, &mut request),
            "CORS" => {
                keys.insert("cors".into(), cors(&filter.cors));
            }
            // Both lead to backends of their own.
            "RequestMirror" | "ExternalAuth" => {}
            other => {
                return Err(Trouble::new("UnsupportedValue", format!("filters of type {other} are not known here")));
            }
        }
    }
    if !request.is_empty() {
        keys.insert("request".into(), request.into());
    }
    Ok(keys)
}

/// Keys of the question to a service, but for its backend. What engines cannot do is refused, and nobody comes in.
pub fn guard(guard: &ExternalAuth) -> Result<Map<String, Value>, Trouble> {
    let unsupported = |what: &str| Err(Trouble::new("UnsupportedValue", what));
    if guard.protocol != "HTTP" {
        return unsupported("ExternalAuth is served with protocol HTTP alone");
    }
    if !guard.http.path.is_empty() {
        return unsupported("ExternalAuth asks with the request's own path: http.path cannot be put before it");
    }
    if guard.forward_body.max_size > 0 {
        return unsupported("ExternalAuth asks without a body: remove forwardBody");
    }
    if guard.http.allowed_response_headers.is_empty() {
        return unsupported("ExternalAuth copies fields that are named: write http.allowedResponseHeaders");
    }
    let mut sent = vec!["authorization".to_owned()];
    for name in guard.http.allowed_headers.iter().map(|name| name.to_ascii_lowercase()) {
        // The engine's question has these in any case, or none.
        if !sent.contains(&name) && !["host", "content-length"].contains(&name.as_str()) {
            sent.push(name);
        }
    }
    let mut copied: Vec<String> = Vec::new();
    for name in guard.http.allowed_response_headers.iter().map(|name| name.to_ascii_lowercase()) {
        if !copied.contains(&name) {
            copied.push(name);
        }
    }
    Ok(Map::from_iter([("send".to_owned(), json!(sent)), ("copy".to_owned(), json!(copied))]))
}

/// Whether a filter changes header fields alone.
pub fn is_of_fields(filter: &Filter) -> bool {
    ["RequestHeaderModifier", "ResponseHeaderModifier"].contains(&filter.kind.as_str())
}

/// Keys of an entry of a list of backends for the filters of a backendRef that change header fields.
pub fn of_backend(filters: &[Filter]) -> Map<String, Value> {
    let mut keys = Map::new();
    for filter in filters.iter().filter(|filter| is_of_fields(filter)) {
        let (key, changes) = match filter.kind.as_str() {
            "RequestHeaderModifier" => ("request", &filter.request_header_modifier),
            _ => ("response", &filter.response_header_modifier),
        };
        let mut table = Map::new();
        headers(changes, &mut table);
        if !table.is_empty() {
            keys.insert(key.into(), table.into());
        }
    }
    keys
}

/// A text in which braces stand for themselves, and no fact is named.
fn literal(text: &str) -> String {
    text.replace('{', "{{").replace('}', "}}")
}

fn headers(changes: &HeaderChanges, table: &mut Map<String, Value>) {
    for (key, list) in [("set", &changes.set), ("add", &changes.add)] {
        let fields = list.iter().map(|header| (header.name.clone(), literal(&header.value).into()));
        let fields: Map<String, Value> = fields.collect();
        if !fields.is_empty() {
            table.insert(key.into(), fields.into());
        }
    }
    if !changes.remove.is_empty() {
        table.insert("remove".into(), json!(changes.remove));
    }
}

fn redirect(redirect: &Redirect, entrance: Entrance) -> Value {
    let own = if entrance.is_https { "https" } else { "http" };
    let mut table = json!({ "status": redirect.status_code.unwrap_or(302) });
    let scheme = redirect.scheme.as_deref();
    // Without a scheme the request's port stays; with one it is the scheme's.
    let port = match (redirect.port, scheme) {
        (Some(port), _) => Some(port),
        (None, Some(scheme)) if scheme == own => Some(if scheme == "https" { 443 } else { 80 }),
        (None, _) => None,
    };
    table["scheme"] = scheme.unwrap_or(own).into();
    if let Some(port) = port {
        table["port"] = port.into();
    }
    if let Some(host) = &redirect.hostname {
        table["host"] = host.clone().into();
    }
    match redirect.path.as_ref().map(modified) {
        Some((true, path)) => table["path"] = path.into(),
        Some((false, prefix)) => table["path"] = json!({ "replace_prefix": prefix }),
        None => {}
    }
    table
}

/// Whether the whole path is replaced, and by what.
fn modified(modifier: &PathModifier) -> (bool, &str) {
    let is_whole = modifier.kind == "ReplaceFullPath";
    let path = if is_whole { &modifier.replace_full_path } else { &modifier.replace_prefix_match };
    (is_whole, path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/"))
}

fn rewrite(rewrite: &Rewrite, request: &mut Map<String, Value>) {
    if let Some(host) = &rewrite.hostname {
        request.insert("host".into(), host.clone().into());
    }
    match rewrite.path.as_ref().map(modified) {
        Some((true, path)) => request.insert("path".into(), json!({ "replace": literal(path) })),
        Some((false, prefix)) => request.insert("path".into(), json!({ "replace_prefix": literal(prefix) })),
        None => None,
    };
}

fn cors(cors: &Cors) -> Value {
    let mut table = json!({ "origins": cors.allow_origins });
    let lists = [("methods", &cors.allow_methods), ("headers", &cors.allow_headers), ("expose", &cors.expose_headers)];
    for (key, list) in lists {
        if !list.is_empty() {
            table[key] = json!(list);
        }
    }
    if cors.allow_credentials {
        table["credentials"] = true.into();
        // With credentials browsers take `*` for a name: the API has what is asked for named in its place.
        let is_any = |list: &[String]| list.iter().any(|text| text == "*");
        if is_any(&cors.allow_origins) || is_any(&cors.allow_methods) || is_any(&cors.allow_headers) {
            table["echo"] = true.into();
        }
    }
    table["max_age"] = format!("{}s", cors.max_age.unwrap_or(5)).into();
    table
}
