//! The whole configuration as text, and its check: what a rule asks for and engines do not take is left out with a
//! reason, so that one route cannot keep another from changing.

use std::collections::{BTreeMap, BTreeSet};

use propylon_config::{PUSHED_JSON, Problem, Severity, Source};
use serde_json::{Map, Value, json};

use super::attach::RoutePlan;
use super::backends::{Backends, REFUSALS};
use super::draft::Draft;
use super::gateways::{Gateways, Mode};
use crate::conditions::Trouble;
use crate::settings::Settings;

/// How often rules are taken out that the check has found something in. Each time shows what the one before hid.
const CHECKS_MAX: usize = 16;
/// The listener of refusals.
const REFUSING: &str = "refusals";

/// Routes of last resort, by which a request stays with the most specific listener that its host has: those for less
/// specific ones are not asked (GEP-3155's listener isolation).
pub fn isolation(gateways: &Gateways<'_>) -> Vec<Draft> {
    let mut drafts = Vec::new();
    for gateway in &gateways.all {
        for listener in gateway.listeners.iter().filter(|listener| gateway.is_served(listener)) {
            if matches!(listener.mode, Some(Mode::Http | Mode::Https)) && listener.hostname().is_some() {
                drafts.push(Draft {
                    listener: listener.engine.clone(),
                    host: listener.hostname().map(str::to_owned),
                    path: Some(json!("/")),
                    conditions: Map::new(),
                    then: Map::from_iter([("respond".to_owned(), json!({ "status": 404 }))]),
                    origin: None,
                    name: format!("nothing_{}_{}", listener.engine, listener.spec.name),
                });
            }
        }
    }
    drafts
}

/// The text of the configuration. Rules that cannot be kept are noted at their routes. The error is about something
/// that no route is to blame for.
pub fn whole(
    settings: &Settings,
    gateways: &Gateways<'_>,
    backends: &Backends<'_>,
    drafts: Vec<Draft>,
    routes: &mut [RoutePlan<'_>],
) -> Result<String, String> {
    let mut drafts = distinct(drafts);
    for _ in 0..CHECKS_MAX {
        let text = Text::new(settings, gateways, backends, &drafts);
        let source = Source { name: PUSHED_JSON.to_owned().into(), base: settings.files.clone(), text: text.text };
        let problems = match propylon_config::parse(&source) {
            Ok(_) => return Ok(source.text),
            Err(problems) => problems,
        };
        let mut bad: BTreeMap<(usize, usize), String> = BTreeMap::new();
        for problem in problems.iter().filter(|problem| problem.severity == Severity::Error) {
            let line = problem.at.map_or(0, |at| at.line as usize);
            let draft = line.checked_sub(text.first_route).and_then(|index| drafts.get(index));
            match draft.and_then(|draft| draft.origin) {
                Some(origin) => bad.entry(origin).or_insert_with(|| shown(problem)),
                None => return Err(format!("the configuration would be refused: {}", shown(problem))),
            };
        }
        drafts.retain(|draft| draft.origin.is_none_or(|origin| !bad.contains_key(&origin)));
        for ((route, rule), what) in bad {
            routes[route].drop_rule(rule, Trouble::new("UnsupportedValue", what));
        }
    }
    Err(format!("something is wrong with some rule still after {CHECKS_MAX} checks"))
}

fn shown(problem: &Problem) -> String {
    format!("{}; {}", problem.what, problem.fix)
}

/// The first holds of routes for the same requests.
fn distinct(drafts: Vec<Draft>) -> Vec<Draft> {
    let mut seen = BTreeSet::new();
    let key = |draft: &Draft| {
        let path = draft.path.as_ref().map(Value::to_string);
        (draft.listener.clone(), draft.host.clone(), path, json!(draft.conditions).to_string())
    };
    drafts.into_iter().filter(|draft| seen.insert(key(draft))).collect()
}

struct Text {
    text: String,
    /// Line of the first draft.
    first_route: usize,
}

impl Text {
    fn new(settings: &Settings, gateways: &Gateways<'_>, backends: &Backends<'_>, drafts: &[Draft]) -> Text {
        let mut base = settings.base.clone();
        let mut own_routes = match base.remove("route") {
            Some(Value::Array(routes)) => routes,
            _ => Vec::new(),
        };
        let mut tables: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
        for section in ["listener", "tls", "backend"] {
            let own = base.remove(section).and_then(|value| value.as_object().cloned());
            tables.insert(section, own.unwrap_or_default());
        }
        listeners(settings, gateways, drafts, &mut tables);
        let mut backend_tables = backends.tables.clone();
        if backends.has_refusals {
            let ports = [settings.refusals, settings.refusals + 1];
            let bind = ports.map(|port| format!("127.0.0.1:{port}"));
            tables.entry("listener").or_default().insert(REFUSING.into(), json!({ "bind": bind }));
            for ((name, status), port) in REFUSALS.iter().zip(ports) {
                backend_tables.insert((*name).into(), json!({ "servers": [format!("127.0.0.1:{port}")] }));
                own_routes.push(json!({
                    "name": name, "listener": REFUSING, "match": { "port": port }, "respond": { "status": status },
                }));
            }
        }
        tables.entry("backend").or_default().extend(backend_tables);
        let mut text = "{".to_owned();
        let mut lines = 1;
        let sections = base.iter().map(|(key, value)| (key.as_str(), value.clone()));
        let filled = tables.into_iter().filter(|(_, table)| !table.is_empty());
        for (key, value) in sections.chain(filled.map(|(key, table)| (key, Value::Object(table)))) {
            text += &format!("\n{}:{value},", json!(key));
            lines += 1;
        }
        text += "\n\"route\":[";
        lines += 1;
        let first_route = lines + 1 + own_routes.len();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for draft in drafts {
            let count = counts.entry(&draft.name).or_default();
            *count += 1;
            own_routes.push(match *count {
                1 => draft.value(&draft.name),
                count => draft.value(&format!("{}.{count}", draft.name)),
            });
        }
        let written: Vec<String> = own_routes.iter().map(|route| format!("\n{route}")).collect();
        text += &written.join(",");
        text += "\n]\n}\n";
        Text { text, first_route }
    }
}

/// Adds listeners of the engine, and their profiles of TLS.
fn listeners(
    settings: &Settings,
    gateways: &Gateways<'_>,
    drafts: &[Draft],
    tables: &mut BTreeMap<&str, Map<String, Value>>,
) {
    for gateway in &gateways.all {
        let Some(address) = &gateway.address else { continue };
        let mut profiles: BTreeMap<&str, (BTreeSet<&str>, BTreeSet<&str>)> = BTreeMap::new();
        for listener in gateway.listeners.iter().filter(|listener| gateway.is_served(listener)) {
            let Some(mode) = listener.mode else { continue };
            let is_relay = !matches!(mode, Mode::Http | Mode::Https);
            // A relay without a route has nowhere to lead, and is refused: connections are, instead.
            if is_relay && drafts.iter().all(|draft| draft.listener != listener.engine) {
                continue;
            }
            let mut table = json!({ "bind": address.with(listener.spec.port) });
            match mode {
                Mode::Http | Mode::Https => {}
                Mode::Passthrough => table["protocol"] = "passthrough".into(),
                Mode::Terminate | Mode::Tcp => table["protocol"] = "tcp".into(),
            }
            if mode.has_certificates() {
                table["tls"] = listener.engine.clone().into();
                let (certificates, authorities) = profiles.entry(&listener.engine).or_default();
                certificates.extend(listener.certificates.iter().map(String::as_str));
                authorities.extend(listener.authorities.iter().map(String::as_str));
            }
            tables.entry("listener").or_default().insert(listener.engine.clone(), table);
        }
        for (name, (certificates, authorities)) in profiles {
            let path = |name: &&str| settings.files.join(name).display().to_string();
            let mut table = json!({ "certificates": certificates.iter().map(path).collect::<Vec<_>>() });
            if !authorities.is_empty() {
                table["client_auth"] = json!({ "ca": authorities.iter().map(path).collect::<Vec<_>>() });
            }
            tables.entry("tls").or_default().insert(name.to_owned(), table);
        }
    }
}
