//! The plan as TOML.

use std::collections::BTreeMap;
use std::fmt::Write;

use propylon_config::{Source, format};

use crate::plan::{Action, Backend, Certificate, Keys, Listener, Path, Plan, Route, one_or_list, quoted};

/// The account that certificates are ordered with.
const ACME: &str = "letsencrypt";

/// The whole text, formatted.
pub fn text(plan: &Plan, name: &str) -> String {
    let mut out = String::new();
    let name: String = name.chars().filter(|c| !c.is_control()).collect();
    let _ = writeln!(out, "# Made by `propylon import` of {name}: see what it says is not carried over.\n");
    if !plan.process.is_empty() {
        section(&mut out, "process", plan.process.iter());
    }
    if let Some(access) = &plan.access_log {
        let _ = writeln!(out, "[log]\naccess = {}\n", quoted(access));
    }
    plan.listeners.iter().for_each(|each| listener(&mut out, each));
    plan.listeners.iter().filter(|each| each.is_tls).for_each(|each| tls(&mut out, each));
    if let Some(contact) = &plan.acme {
        let _ = writeln!(out, "[acme.{ACME}]\nterms_agreed = true");
        if let Some(contact) = contact {
            let _ = writeln!(out, "contact = {}", quoted(&format!("mailto:{contact}")));
        }
        out.push('\n');
    }
    plan.backends.iter().for_each(|each| backend(&mut out, each));
    for each in &plan.routes {
        let is_tls = plan.listeners.iter().any(|listener| listener.name == each.listener && listener.is_tls);
        route(&mut out, each, is_tls);
    }
    let source = Source { name: "import.toml".into(), base: "".into(), text: out };
    format(&source).unwrap_or(source.text)
}

fn section<'k>(out: &mut String, title: &str, keys: impl Iterator<Item = &'k (String, String)>) {
    let _ = writeln!(out, "[{title}]");
    keys.for_each(|(key, value)| _ = writeln!(out, "{key} = {}", literal(value)));
    out.push('\n');
}

fn table<'k>(keys: impl IntoIterator<Item = (&'k String, &'k String)>) -> String {
    let keys: Vec<String> =
        keys.into_iter().map(|(key, value)| format!("{} = {}", key_text(key), literal(value))).collect();
    format!("{{ {} }}", keys.join(", "))
}

/// A value that the readers have written in TOML. What was to be a number and is none becomes a text, which `check`
/// refuses with its place.
fn literal(value: &str) -> String {
    let is_number = !value.is_empty() && value.len() < 19 && value.bytes().all(|byte| byte.is_ascii_digit());
    let is_number = is_number && (value.len() == 1 || !value.starts_with('0'));
    let is_plain = is_number || ["true", "false"].contains(&value);
    if is_plain || is_written(value) { value.to_owned() } else { quoted(value) }
}

/// Whether a text is a string, a list or a table of TOML and nothing else: words of the original may begin like one.
fn is_written(value: &str) -> bool {
    let text = format!("a = {value}\n");
    let begins = value.starts_with(['"', '[', '{']) && !value.contains('\n');
    begins && format(&Source { name: "value.toml".into(), base: "".into(), text }).is_ok()
}

fn pairs(keys: &Keys) -> impl Iterator<Item = (&String, &String)> {
    keys.iter().map(|(key, value)| (key, value))
}

pub fn key_text(key: &str) -> String {
    let is_bare = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if is_bare { key.to_owned() } else { quoted(key) }
}

fn name_text(name: &str) -> String {
    key_text(name)
}

fn listener(out: &mut String, listener: &Listener) {
    let _ = writeln!(out, "[listener.{}]\nbind = {}", name_text(&listener.name), one_or_list(&listener.bind));
    if listener.is_tls {
        let _ = writeln!(out, "tls = {}", quoted(&listener.name));
    }
    listener.keys.iter().for_each(|(key, value)| _ = writeln!(out, "{key} = {}", literal(value)));
    for (key, values) in [("request_headers", &listener.request_headers), ("timeouts", &listener.timeouts)] {
        if !values.is_empty() {
            let _ = writeln!(out, "{key} = {}", table(values));
        }
    }
    out.push('\n');
}

fn tls(out: &mut String, listener: &Listener) {
    let mut names = Vec::new();
    let mut certificates = Vec::new();
    for certificate in &listener.certificates {
        match certificate {
            Certificate::Path(path) => certificates.push(quoted(path)),
            Certificate::Pair { chain, key } => {
                certificates.push(format!("{{ chain = {}, key = {} }}", quoted(chain), quoted(key)));
            }
            Certificate::Ordered(name) => names.push(quoted(name)),
        }
    }
    // Each site has a certificate of its own, as with Caddy.
    certificates.extend(names.iter().map(|name| format!("{{ acme = \"{ACME}\", names = [{name}] }}")));
    let _ = writeln!(out, "[tls.{}]\ncertificates = [{}]", name_text(&listener.name), certificates.join(", "));
    if let Some(policy) = listener.policy {
        let _ = writeln!(out, "policy = {}", quoted(policy));
    }
    if !listener.client_auth.is_empty() {
        let _ = writeln!(out, "client_auth = {}", table(&listener.client_auth));
    }
    out.push('\n');
}

fn backend(out: &mut String, backend: &Backend) {
    if let Some(comment) = &backend.comment {
        let _ = writeln!(out, "# {comment}");
    }
    let _ = writeln!(out, "[backend.{}]", name_text(&backend.name));
    let server = |server: &crate::plan::Server| match server.keys.is_empty() {
        true => quoted(&server.address),
        false => {
            let address = ("address".to_owned(), quoted(&server.address));
            table([(&address.0, &address.1)].into_iter().chain(pairs(&server.keys)))
        }
    };
    let servers: Vec<String> = backend.servers.iter().map(server).collect();
    let _ = writeln!(out, "servers = [{}]", servers.join(", "));
    backend.keys.iter().for_each(|(key, value)| _ = writeln!(out, "{key} = {}", literal(value)));
    let mut tls = backend.tls.clone();
    // A socket has no name that a certificate could be for.
    if let Some(keys) = tls.as_mut().filter(|_| backend.servers.iter().any(|each| each.address.starts_with("unix:"))) {
        keys.entry("server_name".into()).or_insert_with(|| quoted("localhost"));
    }
    let tables: [(&str, Option<&BTreeMap<String, String>>); 3] = [
        ("tls", tls.as_ref()),
        ("health", Some(&backend.health).filter(|keys| !keys.is_empty())),
        ("timeouts", Some(&backend.timeouts).filter(|keys| !keys.is_empty())),
    ];
    for (key, values) in tables {
        if let Some(values) = values {
            let _ = writeln!(out, "{key} = {}", if values.is_empty() { "{}".to_owned() } else { table(values) });
        }
    }
    out.push('\n');
}

fn route(out: &mut String, route: &Route, is_tls: bool) {
    let _ = writeln!(out, "[[route]]\nlistener = {}", quoted(&route.listener));
    if let Some(host) = &route.host {
        let _ = writeln!(out, "host = {}", quoted(host));
    }
    match &route.path {
        Path::Prefix(path) if path == "/" => {}
        Path::Prefix(path) => _ = writeln!(out, "path = {}", quoted(path)),
        Path::Exact(path) => _ = writeln!(out, "path = {{ exact = {} }}", quoted(path)),
        Path::Regex(pattern) => _ = writeln!(out, "path = {{ regex = {} }}", quoted(pattern)),
    }
    if !route.conditions.is_empty() {
        let mut kinds: BTreeMap<&str, Vec<(&String, &String)>> = BTreeMap::new();
        for ((kind, name), value) in &route.conditions {
            kinds.entry(kind).or_default().push((name, value));
        }
        let kind = |(kind, values): (&&str, &Vec<(&String, &String)>)| match values.as_slice() {
            [(name, value)] if name.is_empty() => format!("{kind} = {value}"),
            values => format!("{kind} = {}", table(values.iter().copied())),
        };
        let all: Vec<String> = kinds.iter().map(kind).collect();
        let _ = writeln!(out, "match = {{ {} }}", all.join(", "));
    }
    if route.requires_certificate {
        out.push_str("require_client_certificate = true\n");
    }
    match &route.action {
        Action::Backend(name) => _ = writeln!(out, "backend = {}", quoted(name)),
        Action::Split { backends, key } => {
            let each = |(name, weight): &(String, u32)| format!("{{ name = {}, weight = {weight} }}", quoted(name));
            let all: Vec<String> = backends.iter().map(each).collect();
            let _ = writeln!(out, "backend = [{}]\nsticky = {{ key = {key} }}", all.join(", "));
        }
        Action::Redirect(keys) => _ = writeln!(out, "redirect = {}", table(pairs(keys))),
        Action::Respond(keys) => _ = writeln!(out, "respond = {}", table(pairs(keys))),
    }
    out.push_str(&route.changes.text(!route.action.backends().is_empty(), is_tls));
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_only_begins_like_a_value_of_toml_is_a_text() {
        let words = ["50", "true", "\"x\"", "{ a = 1 }", "{50", "[\"a\"", "\"a\" b", "\"a\"\n[x]", "050"];
        let written = ["50", "true", "\"x\"", "{ a = 1 }"].map(str::to_owned).into_iter();
        let texts = words[4..].iter().map(|word| quoted(word));
        assert_eq!(words.map(literal).to_vec(), written.chain(texts).collect::<Vec<String>>());
    }
}
