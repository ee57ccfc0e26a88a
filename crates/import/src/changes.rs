//! Changes, limits and compression of a route.

use std::collections::{BTreeMap, BTreeSet};

use propylon_config::{Source, parse};

use crate::plan::quoted;
use crate::variables::filled;
use crate::write::key_text;

/// Keys of a route beside what it is for and where it leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub request: Fields,
    pub response: Fields,
    /// `request.host`.
    pub host: Option<String>,
    /// `request.path` as TOML has it.
    pub path: Option<String>,
    /// `response.location`: what a server's Location begins with, and what instead.
    pub locations: Vec<(String, String)>,
    pub timeouts: BTreeMap<String, String>,
    pub body_limit: Option<String>,
    /// `compress` as TOML has it.
    pub compress: Option<String>,
    /// `limit` as TOML has it, a table each.
    pub limits: Vec<String>,
    /// `auth` as TOML has it.
    pub auth: Option<String>,
    /// `error_pages`: files by status.
    pub pages: BTreeMap<String, String>,
    /// Further keys of routes to servers, as TOML has them.
    pub keys: BTreeMap<&'static str, String>,
    /// Backends that these name beside the route's own.
    pub backends: BTreeSet<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    pub set: BTreeMap<String, String>,
    pub add: BTreeMap<String, String>,
    pub remove: BTreeSet<String>,
}

/// A change of a field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Set,
    Add,
    Remove,
}

/// Side of the exchange.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Request,
    Response,
}

/// Words for a second line of a field that a route adds or sets.
const ONE_MORE: &str = "a route writes one line more of a field";

impl Changes {
    /// Makes a change of a field, if a route may make it.
    pub fn field(&mut self, (side, kind): (Side, Kind), name: &str, value: &str) -> Result<(), String> {
        let mut trial = self.clone();
        let fields = if side == Side::Request { &mut trial.request } else { &mut trial.response };
        let is_it = |known: &str| known.eq_ignore_ascii_case(name);
        if kind != Kind::Add {
            fields.set.retain(|known, _| !is_it(known));
            fields.add.retain(|known, _| !is_it(known));
        }
        let is_set = fields.set.keys().any(|known| is_it(known));
        let is_added = fields.add.keys().any(|known| is_it(known));
        let is_removed = fields.remove.iter().any(|known| is_it(known));
        match kind {
            Kind::Add if is_set || is_added => return Err(ONE_MORE.into()),
            Kind::Remove => drop(fields.remove.insert(name.to_owned())),
            Kind::Add if !is_removed => drop(fields.add.insert(name.to_owned(), quoted(value))),
            _ => {
                fields.remove.retain(|known| !is_it(known));
                fields.set.insert(name.to_owned(), quoted(value));
            }
        }
        self.take(trial)
    }

    /// Takes a field from clients whose value is not carried over: they could send it in its place. Words for that.
    pub fn withhold(&mut self, name: &str) -> &'static str {
        match self.field((Side::Request, Kind::Remove), name, "") {
            Ok(()) => ", until then the field does not go on",
            Err(_) => "",
        }
    }

    /// Like `field`, and where the field can have one line alone it has this one.
    pub fn line(&mut self, side: Side, name: &str, value: &str) -> Result<(), String> {
        match self.field((side, Kind::Add), name, value) {
            Err(what) if what != ONE_MORE => self.field((side, Kind::Set), name, value),
            done => done,
        }
    }

    /// `strip`, `replace`, `replace_prefix`: what becomes of a path.
    pub fn path(&mut self, key: &str, value: &str) -> Result<(), String> {
        self.path_table(format!("{{ {key} = {} }}", quoted(value)))
    }

    /// Text in place of a pattern that is found in a path.
    pub fn path_regex(&mut self, pattern: &str, to: &str) -> Result<(), String> {
        self.path_table(format!("{{ regex = {}, to = {} }}", quoted(pattern), quoted(to)))
    }

    fn path_table(&mut self, table: String) -> Result<(), String> {
        if self.path.is_some() {
            return Err("a path is changed in one way".into());
        }
        self.take(Changes { path: Some(table), ..self.clone() })
    }

    pub fn host(&mut self, host: &str) -> Result<(), String> {
        self.take(Changes { host: Some(quoted(host)), ..self.clone() })
    }

    /// Has a server's Location that begins with a text begin with another one.
    pub fn location(&mut self, from: &str, to: &str) -> Result<(), String> {
        let mut trial = self.clone();
        trial.locations.push((from.to_owned(), to.to_owned()));
        self.take(trial)
    }

    pub fn body_limit(&mut self, bytes: u64) -> Result<(), String> {
        let text = match bytes {
            bytes if bytes.is_multiple_of(1 << 30) => quoted(&format!("{}GiB", bytes >> 30)),
            bytes if bytes.is_multiple_of(1 << 20) => quoted(&format!("{}MiB", bytes >> 20)),
            bytes if bytes.is_multiple_of(1 << 10) => quoted(&format!("{}KiB", bytes >> 10)),
            bytes => bytes.to_string(),
        };
        self.take(Changes { body_limit: Some(text), ..self.clone() })
    }

    /// Adds a limit, a table of TOML.
    pub fn limit(&mut self, table: &str) -> Result<(), String> {
        let mut trial = self.clone();
        trial.limits.push(table.to_owned());
        self.take(trial)
    }

    /// Passwords by a file of users, which browsers ask for with the name of a realm.
    pub fn basic(&mut self, file: &str, realm: &str) -> Result<(), String> {
        let table = format!("{{ basic = {{ file = {}, realm = {} }} }}", quoted(file), quoted(realm));
        self.take(Changes { auth: Some(table), ..self.clone() })
    }

    /// The word of another service, a backend, which is asked for a path; fields of its answer go on.
    pub fn forward(&mut self, backend: &str, path: &str, copy: &[String]) -> Result<(), String> {
        let mut keys = vec![format!("backend = {}", quoted(backend))];
        if !path.is_empty() {
            keys.push(format!("path = {}", quoted(path)));
        }
        if !copy.is_empty() {
            keys.push(format!("copy = [{}]", copy.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", ")));
        }
        let mut trial = Changes { auth: Some(format!("{{ forward = {{ {} }} }}", keys.join(", "))), ..self.clone() };
        trial.backends.insert(backend.to_owned());
        self.take(trial)
    }

    /// Copies of requests for a backend, with bodies as long as they may be.
    pub fn mirror(&mut self, backend: &str) -> Result<(), String> {
        let mut trial = self.clone();
        trial.keys.insert("mirror", format!("{{ backend = {}, body = \"1MiB\" }}", quoted(backend)));
        trial.backends.insert(backend.to_owned());
        self.take(trial)
    }

    /// Sets a key, whose value is written in TOML.
    pub fn key(&mut self, key: &'static str, value: &str) -> Result<(), String> {
        let mut trial = self.clone();
        trial.keys.insert(key, value.to_owned());
        self.take(trial)
    }

    /// A file that has what errors of this status, or class of them, are answered with.
    pub fn page(&mut self, status: &str, file: &str) -> Result<(), String> {
        let mut trial = self.clone();
        trial.pages.insert(status.to_owned(), quoted(file));
        self.take(trial)
    }

    pub fn compress(&mut self, compress: &Compress) -> Result<(), String> {
        self.take(Changes { compress: Some(compress.text()), ..self.clone() })
    }

    /// Joins the changes of another, which are made after these.
    pub fn then(&mut self, other: &Changes) -> Result<(), String> {
        let mut trial = self.clone();
        for (side, fields) in [(Side::Request, &other.request), (Side::Response, &other.response)] {
            for name in &fields.remove {
                trial.field((side, Kind::Remove), name, "")?;
            }
            let own = if side == Side::Request { &mut trial.request } else { &mut trial.response };
            for (name, value) in &fields.set {
                own.remove.retain(|known| !known.eq_ignore_ascii_case(name));
                own.set.retain(|known, _| !known.eq_ignore_ascii_case(name));
                own.add.retain(|known, _| !known.eq_ignore_ascii_case(name));
                own.set.insert(name.clone(), value.clone());
            }
            own.add.extend(fields.add.clone());
        }
        if trial.path.is_some() && other.path.is_some() {
            return Err("a path is changed in one way".into());
        }
        trial.path = trial.path.or_else(|| other.path.clone());
        trial.locations.extend(other.locations.clone());
        trial.host = other.host.clone().or(trial.host);
        trial.body_limit = other.body_limit.clone().or(trial.body_limit);
        trial.compress = other.compress.clone().or(trial.compress);
        trial.timeouts.extend(other.timeouts.clone());
        trial.limits.extend(other.limits.clone());
        trial.auth = other.auth.clone().or(trial.auth);
        trial.pages.extend(other.pages.clone());
        trial.keys.extend(other.keys.clone());
        trial.backends.extend(other.backends.clone());
        self.take(trial)
    }

    /// Takes changes, if the configuration's own check has nothing to say.
    fn take(&mut self, trial: Changes) -> Result<(), String> {
        const FRAME: &str = "[listener.a]\nbind = \"127.0.0.1:443\"\ntls = \"a\"\n\n[tls.a]\ncertificates = [\"a\"]\n\n\
                             [backend.a]\nservers = [\"127.0.0.1:80\"]\n\n[[route]]\nbackend = \"a\"\n";
        let others = trial.backends.iter().filter(|name| *name != "a");
        let others = others.map(|name| format!("\n[backend.{}]\nservers = [\"127.0.0.1:81\"]\n", key_text(name)));
        let text = filled(&format!("{FRAME}{}{}", trial.text(true, true), others.collect::<String>()));
        match parse(&Source { name: "changes.toml".into(), base: "/".into(), text }) {
            Ok(_) => {
                *self = trial;
                Ok(())
            }
            Err(problems) => Err(problems.first().map_or_else(String::new, |problem| problem.what.clone())),
        }
    }

    /// Keys of the route, for one to servers and for one that answers by itself.
    pub fn text(&self, has_servers: bool, is_tls: bool) -> String {
        let mut out = String::new();
        self.auth.iter().for_each(|auth| out.push_str(&format!("auth = {auth}\n")));
        match self.limits.as_slice() {
            [] => {}
            [limit] => out.push_str(&format!("limit = {limit}\n")),
            limits => out.push_str(&format!("limit = [\n  {},\n]\n", limits.join(",\n  "))),
        }
        let mut request = if has_servers { self.request.text(is_tls) } else { Vec::new() };
        if has_servers {
            request.extend(self.host.iter().map(|host| format!("host = {host}")));
            request.extend(self.path.iter().map(|path| format!("path = {path}")));
        }
        let mut response = self.response.text(is_tls);
        if has_servers && !self.locations.is_empty() {
            let one = |(from, to): &(String, String)| format!("{{ from = {}, to = {} }}", quoted(from), quoted(to));
            response
                .push(format!("location = [{}]", self.locations.iter().map(one).collect::<Vec<String>>().join(", ")));
        }
        for (key, all) in [("request", request), ("response", response)] {
            if !all.is_empty() {
                out.push_str(&format!("{key} = {{ {} }}\n", all.join(", ")));
            }
        }
        if !self.pages.is_empty() {
            let all: Vec<String> = self.pages.iter().map(|(status, file)| format!("\"{status}\" = {file}")).collect();
            out.push_str(&format!("error_pages = {{ {} }}\n", all.join(", ")));
        }
        if has_servers {
            self.keys.iter().for_each(|(key, value)| out.push_str(&format!("{key} = {value}\n")));
            if !self.timeouts.is_empty() {
                let all: Vec<String> = self.timeouts.iter().map(|(key, time)| format!("{key} = {time}")).collect();
                out.push_str(&format!("timeouts = {{ {} }}\n", all.join(", ")));
            }
            for (key, value) in [("body_limit", &self.body_limit), ("compress", &self.compress)] {
                value.iter().for_each(|value| out.push_str(&format!("{key} = {value}\n")));
            }
        }
        out
    }
}

impl Fields {
    /// Facts of TLS are never known on a listener in plaintext, and an error there.
    fn text(&self, is_tls: bool) -> Vec<String> {
        let mut all = Vec::new();
        for (key, lines) in [("set", &self.set), ("add", &self.add)] {
            let lines: Vec<String> = lines
                .iter()
                .filter(|(_, value)| is_tls || !value.contains("{tls."))
                .map(|(name, value)| format!("{} = {value}", key_text(name)))
                .collect();
            if !lines.is_empty() {
                all.push(format!("{key} = {{ {} }}", lines.join(", ")));
            }
        }
        // A client in plaintext cannot send in its place what was made of its TLS.
        let unknown = self.set.iter().filter(|(_, value)| !is_tls && value.contains("{tls.")).map(|(name, _)| name);
        let names: BTreeSet<&String> = self.remove.iter().chain(unknown).collect();
        if !names.is_empty() {
            let names: Vec<String> = names.into_iter().map(|name| quoted(name)).collect();
            all.push(format!("remove = [{}]", names.join(", ")));
        }
        all
    }
}

/// `compress`.
#[derive(Clone, Debug, Default)]
pub struct Compress {
    pub encodings: Vec<String>,
    pub types: Vec<String>,
    pub minimum: Option<u64>,
    pub level: Option<u8>,
}

impl Compress {
    fn text(&self) -> String {
        let list =
            |texts: &[String]| format!("[{}]", texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(", "));
        let mut keys = vec![format!("encodings = {}", list(&self.encodings))];
        if !self.types.is_empty() {
            keys.push(format!("types = {}", list(&self.types)));
        }
        keys.extend(self.minimum.map(|bytes| format!("minimum = {bytes}")));
        keys.extend(self.level.map(|level| format!("level = {{ gzip = {level} }}")));
        format!("{{ {} }}", keys.join(", "))
    }
}

/// A text in which braces stand for themselves.
pub fn plain(text: &str) -> String {
    text.replace('{', "{{").replace('}', "}}")
}

/// A text with facts in place of what stands for them in another language, each of which begins with `first`; `None`
/// where there is one that no fact is known for.
pub fn with_facts(text: &str, first: char, facts: &[(&str, &str)]) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(first) {
        out.push_str(&plain(&rest[..at]));
        let (sign, fact) = facts.iter().find(|(sign, _)| rest[at..].starts_with(sign))?;
        out.push_str(fact);
        rest = &rest[at + sign.len()..];
    }
    out.push_str(&plain(rest));
    Some(out)
}

/// A pattern of all of a path, where a language has one that is found in it and replaces the whole.
pub fn whole(pattern: &str) -> String {
    let begin = if pattern.starts_with(['^']) || pattern.starts_with("(.*)") { "" } else { "^.*?" };
    let end = if pattern.ends_with('$') || pattern.ends_with("(.*)") { "" } else { ".*$" };
    format!("{begin}{pattern}{end}")
}

/// A text with groups, `$1` or `\1`, as Propylon has it; none with anything else that stands for something.
pub fn groups(text: &str, sign: char) -> Option<String> {
    let mut out = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            c if c == sign => match characters.next() {
                Some(digit) if digit.is_ascii_digit() => out.push_str(&format!("${{{digit}}}")),
                _ => return None,
            },
            '$' => out.push_str("$$"),
            '%' if sign == '\\' => return None,
            c => out.push(c),
        }
    }
    Some(out)
}
