//! Content of a configuration of Propylon: filled by the readers, written by [`crate::write`].

use std::collections::{BTreeMap, BTreeSet};

use crate::changes::Changes;
use crate::variables;

/// Alternatives of one condition at most: what is combined of several may be many.
pub const ALTERNATIVES_MAX: usize = 64;
/// The address at which whatever served files before goes on to do so.
pub const FILES_ADDRESS: &str = "127.0.0.1:8081";
const FILES: &str = "files";

/// Something that is not carried over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Line of the text, from 1.
    pub line: usize,
    /// The directive as it is written, shortened.
    pub what: String,
    /// Why it is not carried over, and what to do.
    pub fix: String,
}

impl Note {
    pub(crate) fn new(line: usize, what: impl Into<String>, fix: impl Into<String>) -> Note {
        const SHOWN_MAX: usize = 80;
        let what = variables::read(&what.into());
        let mut shown: String = what.chars().take(SHOWN_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
        if what.chars().count() > SHOWN_MAX {
            shown.push('…');
        }
        Note { line, what: shown, fix: variables::read(&fix.into()) }
    }
}

/// Keys with their values as they are written in TOML.
pub type Keys = Vec<(String, String)>;

#[derive(Debug, Default)]
pub struct Plan {
    pub process: Keys,
    /// Contact of the account that orders certificates; none where none are ordered.
    pub acme: Option<Option<String>>,
    pub access_log: Option<String>,
    pub listeners: Vec<Listener>,
    pub backends: Vec<Backend>,
    pub routes: Vec<Route>,
    /// Files that it names and that are made with it: names and texts.
    pub files: BTreeMap<String, String>,
    pub notes: Vec<Note>,
}

#[derive(Debug, Default)]
pub struct Listener {
    /// Until the plan is finished this is told apart by address as well.
    pub name: String,
    /// Beginning of its name.
    pub base: String,
    pub bind: Vec<String>,
    pub is_tls: bool,
    pub certificates: Vec<Certificate>,
    /// Further keys, each once.
    pub keys: BTreeMap<String, String>,
    /// `timeouts`.
    pub timeouts: BTreeMap<String, String>,
    /// `request_headers`.
    pub request_headers: BTreeMap<String, String>,
    /// `client_auth` of its TLS profile.
    pub client_auth: BTreeMap<String, String>,
    pub policy: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certificate {
    Path(String),
    Pair { chain: String, key: String },
    Ordered(String),
}

#[derive(Clone, Debug, Default)]
pub struct Backend {
    pub name: String,
    pub servers: Vec<Server>,
    pub keys: BTreeMap<String, String>,
    pub health: BTreeMap<String, String>,
    pub timeouts: BTreeMap<String, String>,
    /// `tls`, where it has it.
    pub tls: Option<BTreeMap<String, String>>,
    /// Comment above it.
    pub comment: Option<String>,
    pub line: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Server {
    pub address: String,
    pub keys: Keys,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    Prefix(String),
    Exact(String),
    Regex(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Backend(String),
    /// Several backends with their weights, and what decides for which of them, as TOML has it.
    Split {
        backends: Vec<(String, u32)>,
        key: String,
    },
    Redirect(Keys),
    Respond(Keys),
}

#[derive(Clone, Debug)]
pub struct Route {
    pub line: usize,
    pub listener: String,
    pub host: Option<String>,
    pub path: Path,
    /// `match`: kind, name where it has one, value.
    pub conditions: BTreeMap<(String, String), String>,
    pub requires_certificate: bool,
    pub action: Action,
    pub changes: Changes,
}

impl Action {
    /// Backends that it leads to.
    pub fn backends(&self) -> Vec<&str> {
        match self {
            Action::Backend(name) => vec![name],
            Action::Split { backends, .. } => backends.iter().map(|(name, _)| name.as_str()).collect(),
            Action::Redirect(_) | Action::Respond(_) => Vec::new(),
        }
    }
}

impl Plan {
    pub fn note(&mut self, line: usize, what: impl Into<String>, fix: impl Into<String>) {
        self.notes.push(Note::new(line, what, fix));
    }

    /// The backend of this name, made where there is none.
    pub fn backend(&mut self, name: &str, line: usize) -> &mut Backend {
        let known = self.backends.iter().position(|each| each.name == name);
        let index = known.unwrap_or_else(|| {
            self.backends.push(Backend { name: name.to_owned(), line, ..Backend::default() });
            self.backends.len() - 1
        });
        &mut self.backends[index]
    }

    /// The backend that stands for what serves files, or speaks to programs, on this machine.
    pub fn files(&mut self, line: usize, what: &str, program: &str, why: &str) -> Action {
        let fix = format!("{why}; have {program} go on with it at {FILES_ADDRESS}, where [backend.{FILES}] leads");
        self.note(line, what, fix);
        let backend = self.backend(FILES, line);
        if backend.servers.is_empty() {
            backend.servers.push(Server { address: FILES_ADDRESS.to_owned(), keys: Keys::new() });
            backend.comment = Some(format!("{program} serves files and programs here."));
        }
        Action::Backend(FILES.to_owned())
    }

    /// Adds a route, unless there is one for the same requests, which goes before it.
    pub fn route(&mut self, route: Route) {
        let same = |each: &&Route| {
            (&each.listener, &each.host, &each.path) == (&route.listener, &route.host, &route.path)
                && each.conditions == route.conditions
        };
        match self.routes.iter().find(same).map(|each| (each.line, each.action == route.action)) {
            None => self.routes.push(route),
            Some((_, true)) => {}
            Some((line, false)) => {
                let fix = format!("line {line} is for the same requests and goes before it; remove one of them");
                self.note(route.line, path_text(&route.path), fix);
            }
        }
    }

    /// Drops backends that no route leads to; joins and names listeners. Routes to backends that are not there answer
    /// with this error: without them their requests would go to the next that fits.
    pub fn finish(&mut self, error: u16) {
        let named: BTreeSet<String> =
            self.backends.iter().filter(|each| !each.servers.is_empty()).map(|each| each.name.clone()).collect();
        let mut lost = Vec::new();
        // Relays have no answers: connections to them end.
        let is_relay = |listener: &&Listener| listener.keys.contains_key("protocol");
        let relays: BTreeSet<&str> = self.listeners.iter().filter(is_relay).map(|each| each.name.as_str()).collect();
        self.routes.retain_mut(|route| {
            let gone = route.action.backends().into_iter().find(|name| !named.contains(*name)).map(str::to_owned);
            let Some(name) = gone else { return true };
            lost.push((route.line, name));
            (route.action, route.changes) = (respond(error, ""), Changes::default());
            !relays.contains(route.listener.as_str())
        });
        for route in &mut self.routes {
            if let Some(name) = route.changes.backends.iter().find(|name| !named.contains(*name)) {
                lost.push((route.line, name.clone()));
                (route.action, route.changes) = (respond(403, ""), Changes::default());
            }
        }
        for (line, name) in lost {
            self.note(
                line,
                name,
                "it has no servers that could be carried over; add a [backend.NAME] and lead its routes there, which \
                 answer with an error until then",
            );
        }
        let leads = |route: &Route, name: &str| {
            route.action.backends().contains(&name) || route.changes.backends.contains(name)
        };
        let used = |name: &str| self.routes.iter().any(|route| leads(route, name));
        let (kept, unused): (Vec<Backend>, Vec<Backend>) =
            std::mem::take(&mut self.backends).into_iter().partition(|each| used(&each.name));
        for backend in unused.iter().filter(|each| !each.servers.is_empty()) {
            self.note(backend.line, backend.name.clone(), "no request is sent there; add a route if one should be");
        }
        self.backends = kept;
        self.settle_listeners();
    }
}

pub fn path_text(path: &Path) -> String {
    match path {
        Path::Prefix(text) | Path::Exact(text) | Path::Regex(text) => text.clone(),
    }
}

/// Longest name of a section that is made.
pub const NAME_LENGTH_MAX: usize = 64;

/// A name that a section may have.
pub fn name_of(text: &str) -> String {
    let name = text.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' });
    let name: String = name.take(NAME_LENGTH_MAX).collect();
    let name = name.trim_matches('-').to_owned();
    if name.is_empty() { "app".to_owned() } else { name }
}

/// A text as TOML writes it.
pub fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    // A text that looks like a variable of Propylon is none.
    out.push('"');
    variables::written(&out.replace("${env:", "$${env:"))
}

/// A list of texts as TOML writes it; of one the text alone.
pub fn one_or_list(texts: &[String]) -> String {
    match texts {
        [one] => quoted(one),
        all => format!("[{}]", all.iter().map(|text| quoted(text)).collect::<Vec<String>>().join(", ")),
    }
}

/// A redirect to a URL in which `rest` stands for the request's own path and query; none where it cannot be said.
pub fn redirect(target: &str, own_hosts: &[&str], rests: &[&str], status: u16) -> Option<Keys> {
    let mut keys = vec![("status".to_owned(), status.to_string())];
    let (scheme, after) = match target.split_once("://") {
        Some((scheme @ ("http" | "https"), after)) => (Some(scheme), after),
        Some((scheme, after)) if ["$scheme", "{scheme}"].contains(&scheme) => (None, after),
        Some(_) => return None,
        None if target.starts_with('/') => (None, target),
        None => return None,
    };
    let slash = after.find(['/', '$', '{']).unwrap_or(after.len());
    let (mut host, mut path) = after.split_at(slash);
    if let Some(own) = own_hosts.iter().find(|own| path.starts_with(**own)) {
        path = &path[own.len()..];
        // A name of which the client's is a part is none that a route has.
        if !host.is_empty() || !(path.is_empty() || path.starts_with(['/', ':', '$', '{'])) {
            return None;
        }
    } else if host.is_empty() && !path.starts_with('/') {
        return None;
    }
    let mut port = None;
    if let Some((name, number)) = host.rsplit_once(':') {
        (host, port) = (name, Some(number.parse::<u16>().ok()?));
    }
    if let Some(after) = path.strip_prefix(':') {
        let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        port = Some(after[..end].parse().ok()?);
        path = &after[end..];
    }
    if let Some(scheme) = scheme {
        keys.push(("scheme".into(), quoted(scheme)));
    }
    if !host.is_empty() {
        keys.push(("host".into(), quoted(host)));
    }
    if let Some(port) = port {
        keys.push(("port".into(), port.to_string()));
    }
    let keeps =
        path.is_empty() || rests.contains(&path) || rests.iter().any(|rest| path.strip_prefix('/') == Some(rest));
    if !keeps {
        if path.contains(['$', '{']) {
            return None;
        }
        keys.push(("path".into(), quoted(path)));
    } else if path.is_empty() && scheme.is_none() && host.is_empty() {
        return None;
    } else if path.is_empty() && !host.is_empty() {
        // Without the rest it leads to the other host's first page.
        keys.push(("path".into(), quoted("/")));
    }
    (keys.len() > 1).then_some(keys)
}

/// Words for a guard that is not carried over.
pub const CLOSED: &str = "until then its requests are answered with 403";

/// A fixed answer.
pub fn respond(status: u16, body: &str) -> Action {
    let mut keys = vec![("status".to_owned(), status.to_string())];
    if !body.is_empty() {
        keys.push(("body".into(), quoted(body)));
    }
    Action::Respond(keys)
}

/// A regular expression that finds this text.
pub fn escaped(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        if "\\.+*?()|[]{}^$#&-~".contains(character) {
            out.push('\\');
        }
        out.push(character);
    }
    out
}
