//! The whole configuration as text, and its check: what a rule asks for and engines do not take is left out with a
//! reason, so that one route cannot keep another from changing.

use std::collections::{BTreeMap, BTreeSet};

use propylon_config::canonical::route_key;
use propylon_config::{PUSHED_JSON, Problem, Severity, Source};
use serde_json::{Map, Value, json};

use super::attach::RoutePlan;
use super::backends::Backends;
use super::budget;
use super::draft::{Draft, closed};
use super::gateways::{Gateways, ListenerPlan, Mode};
use super::owners;
use crate::conditions::Trouble;
use crate::settings::Settings;

/// Words by which a text is taken for a key, and refused as one.
const PRIVATE_KEY: &str = "PRIVATE KEY-----";

/// Routes of last resort, by which a request stays with the most specific listener that its host has: those for less
/// specific ones are not asked (GEP-3155's listener isolation). A host that no listener is for is answered likewise,
/// with 404 as the API wants it, and not with the engine's 421. Where TLS is passed through, its connections are
/// closed, and not told by an alert; where it ends, those of a listener's hostname that has no route.
pub fn isolation(gateways: &Gateways<'_>, others: &[Draft]) -> Vec<Draft> {
    let led: BTreeSet<&str> = others.iter().map(|draft| draft.listener.as_str()).collect();
    let mut drafts = Vec::new();
    for gateway in &gateways.all {
        for listener in gateway.listeners.iter().filter(|listener| gateway.is_served(listener)) {
            let own = Some(listener.hostname()).filter(|host| host.is_some());
            let (hosts, path, then) = match listener.mode {
                Some(Mode::Http | Mode::Https) => {
                    let answer = Map::from_iter([("respond".to_owned(), json!({ "status": 404 }))]);
                    (own.into_iter().chain([None]), Some(json!("/")), answer)
                }
                Some(Mode::Passthrough) => (own.into_iter().chain([None]), None, closed()),
                // Without any route there is no such listener, and connections are refused.
                Some(Mode::Terminate) if own.is_some() && led.contains(listener.engine.as_str()) => {
                    (own.into_iter().chain([None]), None, closed())
                }
                _ => continue,
            };
            for host in hosts {
                drafts.push(Draft {
                    listener: listener.engine.clone(),
                    host: host.map(str::to_owned),
                    path: path.clone(),
                    conditions: Map::new(),
                    then: then.clone(),
                    origin: None,
                    name: format!("nothing_{}_{}", listener.engine, host.map_or("", |_| listener.spec.name.as_str())),
                });
            }
        }
    }
    drafts
}

/// The text of the configuration. Rules, backends and listeners that cannot be kept are noted where they come from. The
/// error is about something that no resource is to blame for.
pub fn whole<'w>(
    settings: &Settings,
    gateways: &mut Gateways<'w>,
    backends: &mut Backends<'w>,
    drafts: Vec<Draft>,
    routes: &mut [RoutePlan<'w>],
) -> Result<String, String> {
    let mut parts = Parts { gateways, backends, routes, drafts: distinct(drafts) };
    parts.remove_secrets();
    budget::keep(settings, &mut parts);
    // Each time shows what the one before hid, and leaves less to find something in.
    loop {
        let text = Text::new(settings, &parts);
        let source = Source { name: PUSHED_JSON.to_owned().into(), base: settings.files.clone(), text: text.text };
        let problems = match propylon_config::parse(&source) {
            Ok(_) => return Ok(source.text),
            Err(problems) => problems,
        };
        parts.mend(&problems, &text.owners)?;
    }
}

fn shown(problem: &Problem) -> String {
    format!("{}; {}", problem.what, problem.fix)
}

/// The first holds of routes for the same requests, which an engine sees in their canonical form.
fn distinct(drafts: Vec<Draft>) -> Vec<Draft> {
    let mut seen = BTreeSet::new();
    let key = |draft: &Draft| {
        let path = draft.path.as_ref().map(|path| match (path, &path["exact"]) {
            (Value::String(prefix), _) => json!(route_key(prefix)).to_string(),
            (_, Value::String(exact)) => json!({ "exact": route_key(exact) }).to_string(),
            _ => path.to_string(),
        });
        let host = draft.host.as_ref().map(|host| host.to_ascii_lowercase());
        (draft.listener.clone(), host, path, json!(draft.conditions).to_string())
    };
    drafts.into_iter().filter(|draft| seen.insert(key(draft))).collect()
}

/// Resource, or a part of one, that a line of the text is of.
#[derive(Clone)]
enum Owner {
    /// The base configuration, or we.
    Nobody,
    /// All listeners of a Gateway with one port.
    Listener(String),
    Backend(String),
    Draft(usize),
}

/// All that becomes text.
pub(super) struct Parts<'p, 'w> {
    pub gateways: &'p mut Gateways<'w>,
    pub backends: &'p mut Backends<'w>,
    pub routes: &'p mut [RoutePlan<'w>],
    pub drafts: Vec<Draft>,
}

impl Parts<'_, '_> {
    /// A text with a key in it is refused without a word on where it is.
    fn remove_secrets(&mut self) {
        let has_key = |draft: &Draft| draft.value("").to_string().contains(PRIVATE_KEY);
        let bad: Vec<usize> = (0..self.drafts.len()).filter(|index| has_key(&self.drafts[*index])).collect();
        let what = "it has a private key in it, which is not for configurations";
        self.refuse(&bad.into_iter().map(|index| (index, what.to_owned())).collect());
        // One with a key in what it matches has it still.
        self.drafts.retain(|draft| !has_key(draft));
    }

    /// Takes out what the check has found something in.
    fn mend(&mut self, problems: &[Problem], owners: &[Owner]) -> Result<(), String> {
        let (mut drafts, mut listeners, mut backends) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut other = None;
        for problem in problems.iter().filter(|problem| problem.severity == Severity::Error) {
            let line = problem.at.map_or(0, |at| at.line as usize);
            match line.checked_sub(1).and_then(|index| owners.get(index)).cloned() {
                Some(Owner::Draft(index)) if self.drafts[index].origin.is_some() => {
                    drafts.entry(index).or_insert_with(|| shown(problem));
                }
                Some(Owner::Draft(index)) => {
                    let engine = self.drafts[index].listener.clone();
                    listeners.entry(engine).or_insert_with(|| shown(problem));
                }
                Some(Owner::Listener(name)) => {
                    listeners.entry(name).or_insert_with(|| shown(problem));
                }
                Some(Owner::Backend(name)) => {
                    backends.entry(name).or_insert_with(|| shown(problem));
                }
                Some(Owner::Nobody) | None => {
                    other.get_or_insert_with(|| shown(problem));
                }
            }
        }
        if let Some(what) = other.filter(|_| drafts.is_empty() && listeners.is_empty() && backends.is_empty()) {
            return Err(format!("the configuration would be refused: {what}"));
        }
        self.refuse(&drafts);
        for (name, what) in &backends {
            self.remove_backend(name, what);
        }
        for (engine, what) in &listeners {
            self.remove_listener(engine, what);
        }
        Ok(())
    }

    /// Answers requests of these drafts' rules with 500, and closes connections. A draft that is refused nevertheless,
    /// for its host, its path or its conditions, is removed.
    fn refuse(&mut self, bad: &BTreeMap<usize, String>) {
        let mut removed = BTreeSet::new();
        let mut rules = BTreeSet::new();
        for (&index, what) in bad {
            let draft = &self.drafts[index];
            let Some((route, rule)) = draft.origin else { continue };
            self.routes[route].drop_rule(rule, Trouble::new("UnsupportedValue", what.clone()));
            if draft.then == draft.refused() {
                removed.insert(index);
            }
            rules.insert((route, rule));
        }
        let mut index = 0;
        self.drafts.retain_mut(|draft| {
            let is_removed = removed.contains(&index);
            index += 1;
            if !draft.origin.is_some_and(|origin| rules.contains(&origin)) {
                return true;
            }
            draft.then = draft.refused();
            !is_removed
        });
    }

    /// Requests for a backend that cannot be are answered with 500, those of a share of a rule as well.
    fn remove_backend(&mut self, name: &str, what: &str) {
        self.backends.tables.remove(name);
        for draft in self.drafts.iter_mut() {
            if !draft.backends().any(|each| each == name) {
                continue;
            }
            if let Some((route, _)) = draft.origin {
                let what = format!("backend {name}: {what}");
                self.routes[route].unresolved(Trouble::new("UnsupportedValue", what));
            }
            draft.without_backend(name);
        }
    }

    fn remove_listener(&mut self, engine: &str, what: &str) {
        let all = self.gateways.all.iter_mut().flat_map(|gateway| &mut gateway.listeners);
        for listener in all.filter(|listener| listener.engine == engine) {
            listener.accepted.get_or_insert_with(|| Trouble::new("UnsupportedValue", what));
        }
        self.drafts.retain(|draft| draft.listener != engine);
    }
}

pub(super) struct Text {
    pub text: String,
    /// Owners in the order of the lines.
    owners: Vec<Owner>,
}

impl Text {
    pub fn new(settings: &Settings, parts: &Parts<'_, '_>) -> Text {
        let mut base = settings.base.clone();
        let own_routes = match base.remove("route") {
            Some(Value::Array(routes)) => routes,
            _ => Vec::new(),
        };
        let mut tables = listeners(settings, parts);
        let used: BTreeSet<&str> = parts.drafts.iter().flat_map(Draft::backends).collect();
        let backends = parts.backends.tables.iter().filter(|(name, _)| used.contains(name.as_str()));
        tables.insert("backend", backends.map(|(name, table)| (name.clone(), table.clone())).collect());
        let mut text = Text { text: "{".to_owned(), owners: vec![Owner::Nobody] };
        let mut own_tables = BTreeMap::new();
        for section in ["listener", "tls", "backend"] {
            let own = base.remove(section).and_then(|value| value.as_object().cloned());
            own_tables.insert(section, own.unwrap_or_default());
        }
        for (key, value) in &base {
            text.line(&format!("{}:{value},", json!(key)), Owner::Nobody);
        }
        if let Some(ready) = &settings.ready
            && let Some(table) = own_tables.get_mut("listener").and_then(|own| own.get_mut(&ready.listener))
        {
            table["monitor_path"] = ready.path.clone().into();
        }
        for (section, own) in own_tables {
            text.section(section, own, tables.remove(section).unwrap_or_default());
        }
        text.line("\"route\":[", Owner::Nobody);
        let mut comma = "";
        for route in own_routes {
            text.line(&format!("{comma}{route}"), Owner::Nobody);
            comma = ",";
        }
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (index, draft) in parts.drafts.iter().enumerate() {
            let count = counts.entry(&draft.name).or_default();
            *count += 1;
            let value = match *count {
                1 => draft.value(&draft.name),
                count => draft.value(&format!("{}.{count}", draft.name)),
            };
            text.line(&format!("{comma}{value}"), Owner::Draft(index));
            comma = ",";
        }
        text.text += "\n]\n}\n";
        text
    }

    fn line(&mut self, line: &str, owner: Owner) {
        self.text.push('\n');
        self.text += line;
        self.owners.push(owner);
    }

    /// A section of named tables: those of the base first, so that ours is the one that there is no room for.
    fn section(&mut self, section: &str, own: Map<String, Value>, ours: BTreeMap<String, Value>) {
        if own.is_empty() && ours.is_empty() {
            return;
        }
        self.line(&format!("{}:{{", json!(section)), Owner::Nobody);
        let mut comma = "";
        for (name, table) in &own {
            self.line(&format!("{comma}{}:{table}", json!(name)), Owner::Nobody);
            comma = ",";
        }
        for (name, table) in ours {
            let line = format!("{comma}{}:{table}", json!(name));
            comma = ",";
            let owner = if section == "backend" { Owner::Backend(name) } else { Owner::Listener(name) };
            self.line(&line, owner);
        }
        self.line("},", Owner::Nobody);
    }
}

/// Listeners of the engine, and their profiles of TLS.
fn listeners(settings: &Settings, parts: &Parts<'_, '_>) -> BTreeMap<&'static str, BTreeMap<String, Value>> {
    let mut tables: BTreeMap<&str, BTreeMap<String, Value>> = BTreeMap::new();
    let led: BTreeSet<&str> = parts.drafts.iter().map(|draft| draft.listener.as_str()).collect();
    for gateway in &parts.gateways.all {
        let Some(address) = &gateway.address else { continue };
        let mut profiles: BTreeMap<&str, Vec<&ListenerPlan<'_>>> = BTreeMap::new();
        for listener in gateway.listeners.iter().filter(|listener| gateway.is_served(listener)) {
            let Some(mode) = listener.mode else { continue };
            let is_relay = !matches!(mode, Mode::Http | Mode::Https);
            // A relay without a route has nowhere to lead, and is refused: connections are, instead.
            if is_relay && !led.contains(listener.engine.as_str()) {
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
                profiles.entry(&listener.engine).or_default().push(listener);
            }
            tables.entry("listener").or_default().insert(listener.engine.clone(), table);
        }
        for (name, listeners) in profiles {
            tables.entry("tls").or_default().insert(name.to_owned(), profile(settings, &listeners));
        }
    }
    tables
}

/// The profile of TLS of listeners of one port.
fn profile(settings: &Settings, listeners: &[&ListenerPlan<'_>]) -> Value {
    let path = |name: &str| settings.files.join(name).display().to_string();
    let (certificates, default) = owners::ordered(listeners);
    let certificates = certificates.iter().map(|name| match Some(*name) == default {
        true => json!({ "path": path(name), "default": true }),
        false => path(name).into(),
    });
    let mut table = json!({ "certificates": certificates.collect::<Vec<Value>>() });
    let authorities: BTreeSet<&String> = listeners.iter().flat_map(|listener| &listener.authorities).collect();
    if !authorities.is_empty() {
        table["client_auth"] = json!({ "ca": authorities.iter().map(|name| path(name)).collect::<Vec<_>>() });
    }
    table
}
