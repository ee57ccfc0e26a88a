//! `haproxy.cfg`.

use std::collections::BTreeMap;

use crate::changes::{Changes, Compress, Kind, Side, groups, whole, with_facts};
use crate::guards::{Guard, Guarded};
use crate::plan::{
    ALTERNATIVES_MAX, Action, CLOSED, Certificate, Keys, Note, Path, Plan, Route, Server, name_of, quoted, redirect,
    respond,
};
use crate::terms::{Term, argument, negated, terms};
use crate::words::{duration, unix_socket, with_port};

/// A line of a section.
#[derive(Clone, Debug)]
struct Line {
    number: usize,
    words: Vec<String>,
}

impl Line {
    fn word(&self, index: usize) -> &str {
        self.words.get(index).map_or("", String::as_str)
    }

    fn text(&self) -> String {
        self.words.join(" ")
    }

    /// The word behind this one.
    fn after(&self, word: &str) -> Option<&str> {
        let index = self.words.iter().position(|each| each == word)?;
        self.words.get(index + 1).map(String::as_str)
    }

    fn has(&self, word: &str) -> bool {
        self.words.iter().any(|each| each == word)
    }
}

#[derive(Clone, Debug)]
struct Section {
    number: usize,
    kind: String,
    name: String,
    lines: Vec<Line>,
}

impl Section {
    fn of<'s>(&'s self, word: &'s str) -> impl Iterator<Item = &'s Line> {
        self.lines.iter().filter(move |line| line.word(0) == word)
    }
}

const SECTIONS: &[&str] = &[
    "global",
    "defaults",
    "frontend",
    "backend",
    "listen",
    "resolvers",
    "userlist",
    "peers",
    "cache",
    "mailers",
    "program",
    "http-errors",
    "ring",
    "log-forward",
    "crt-store",
];

/// Directives for what Propylon does by itself, or has no need of: nothing is lost with these.
const NEEDLESS: &[&str] = &[
    "log",
    "chroot",
    "user",
    "group",
    "daemon",
    "stats",
    "pidfile",
    "ca-base",
    "crt-base",
    "ssl-default-bind-options",
    "ssl-default-bind-ciphersuites",
    "ssl-default-server-options",
    "ssl-default-server-ciphers",
    "tune.ssl.default-dh-param",
    "ssl-default-server-ciphersuites",
    "ssl-dh-param-file",
    "log-format",
    "log-tag",
    "log-send-hostname",
    "unique-id-format",
    "unique-id-header",
    "master-worker",
    "insecure-fork-wanted",
    "hard-stop-after",
    "cpu-map",
    "nbproc",
    "maxconn",
    "description",
    "default-server",
    "load-server-state-from-file",
    "server-state-file",
    "nbthread",
    "mode",
    "timeout",
    "retries",
    "balance",
    "acl",
    "bind",
    "server",
    "default_backend",
    "use_backend",
    "cookie",
    "http-check",
    "id",
    "monitor-uri",
    "redirect",
    "option",
    "tcp-check",
    "hash-type",
    "capture",
    "fullconn",
    "retry-on",
    "no",
    "hash-balance-factor",
    "errorfile",
    "lua-load",
    "maxsslconn",
    "maxconnrate",
    "maxsslrate",
    "spread-checks",
    "localpeer",
    "node",
    "tcp-request",
    "http-request",
    "http-response",
    "compression",
];
const NEEDLESS_OPTIONS: &[&str] = &[
    "httplog",
    "tcplog",
    "dontlognull",
    "dontlog-normal",
    "http-server-close",
    "http-keep-alive",
    "httpclose",
    "redispatch",
    "forwardfor",
    "tcp-smart-accept",
    "tcp-smart-connect",
    "tcpka",
    "clitcpka",
    "srvtcpka",
    "splice-auto",
    "abortonclose",
    "http-ignore-probes",
    "logasap",
    "log-health-checks",
    "log-separate-errors",
    "prefer-last-server",
    "contstats",
    "nolinger",
    "allbackups",
    "httpchk",
    "tcp-check",
    "ssl-hello-chk",
    "http-buffer-request",
    "http-use-htx",
    "socket-stats",
    "accept-invalid-http-request",
    "http-pretend-keepalive",
];

pub fn read(text: &str, plan: &mut Plan) -> Result<(), Note> {
    let sections = sections(text)?;
    let mut defaults: Vec<Line> = Vec::new();
    // Backends first: frontends lead to them.
    let mut resolved = Vec::new();
    for section in &sections {
        match section.kind.as_str() {
            "defaults" => defaults.clone_from(&section.lines),
            "global" => global(section, plan),
            "frontend" | "backend" | "listen" => resolved.push((section, defaults.clone())),
            "resolvers" | "peers" | "ring" | "crt-store" => {}
            _ => plan.note(
                section.number,
                format!("{} {}", section.kind, section.name),
                match section.kind.as_str() {
                    "userlist" => "write its users into a file, and `auth = { basic = { file = ... } }` in the routes",
                    "http-errors" => PAGES,
                    _ => "this section has no counterpart",
                },
            ),
        }
    }
    for (section, defaults) in resolved.iter().filter(|(section, _)| section.kind != "frontend") {
        Backends { plan, defaults }.read(section);
    }
    for (section, defaults) in resolved.iter().filter(|(section, _)| section.kind != "backend") {
        Frontend::new(plan, defaults, section).read();
    }
    for (section, defaults) in resolved.iter().filter(|(section, _)| section.kind == "backend") {
        Frontend::new(plan, defaults, section).guard_backend();
    }
    match plan.listeners.is_empty() {
        true => Err(Note::new(1, "the file", "no `bind` is in it; is it a configuration of haproxy?")),
        false => Ok(()),
    }
}

fn sections(text: &str) -> Result<Vec<Section>, Note> {
    let mut all: Vec<Section> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let (number, words) = (index + 1, words(line));
        let Some(first) = words.first() else { continue };
        if SECTIONS.contains(&first.as_str()) && !line.starts_with([' ', '\t']) {
            let name = words.get(1).cloned().unwrap_or_default();
            all.push(Section { number, kind: first.clone(), name, lines: Vec::new() });
            // `frontend NAME ADDRESS`, as it was written long ago.
            if let (Some(address), true) = (words.get(2), ["frontend", "listen"].contains(&first.as_str())) {
                let bind = Line { number, words: vec!["bind".into(), address.clone()] };
                all.last_mut().into_iter().for_each(|section| section.lines.push(bind.clone()));
            }
            continue;
        }
        match all.last_mut() {
            Some(section) => section.lines.push(Line { number, words }),
            None if first.starts_with('.') => {}
            None => {
                return Err(Note::new(number, line.trim(), "it is in no section; is it a configuration of haproxy?"));
            }
        }
    }
    Ok(all)
}

/// Words of a line without its comment.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut is_word, mut quote) = (Vec::new(), String::new(), false, None);
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(open), close) if open == close => quote = None,
            (None | Some('"'), '\\') => {
                match characters.next() {
                    Some('n') => word.push('\n'),
                    Some('r') => word.push('\r'),
                    Some('t') => word.push('\t'),
                    Some(next @ (' ' | '#' | '\\' | '"' | '\'')) => word.push(next),
                    // Others are of a regular expression.
                    other => word.extend(['\\'].into_iter().chain(other)),
                }
                is_word = true;
            }
            (Some(_), _) => word.push(character),
            (None, '"' | '\'') => (quote, is_word) = (Some(character), true),
            (None, '#') => break,
            (None, ' ' | '\t') => {
                if is_word {
                    words.push(std::mem::take(&mut word));
                }
                is_word = false;
            }
            (None, _) => {
                word.push(character);
                is_word = true;
            }
        }
    }
    if is_word {
        words.push(word);
    }
    words
}

fn global(section: &Section, plan: &mut Plan) {
    for line in &section.lines {
        match line.word(0) {
            "maxconn" => plan.process.push(("max_connections".into(), line.word(1).to_owned())),
            "nbthread" => plan.process.push(("workers".into(), line.word(1).to_owned())),
            "ssl-default-bind-ciphers" => {
                plan.note(
                    line.number,
                    line.text(),
                    "the policy \"intermediate\" has its own; a table of your own is `policy` in [tls.NAME]",
                );
            }
            "stats" if line.word(1) == "socket" => {
                plan.note(
                    line.number,
                    line.text(),
                    "the running engine is asked and changed at its admin address: add [admin]",
                );
            }
            "lua-load" => plan.note(line.number, line.text(), "there are no scripts"),
            word if NEEDLESS.contains(&word) || word.starts_with("tune.") => {}
            _ => plan.note(line.number, line.text(), "it is not known to this command: see whether it matters"),
        }
    }
    plan.process.retain(|(_, value)| value.parse::<u32>().is_ok_and(|number| number > 0));
}

/// The line of this kind that holds: the section's own, or that of `defaults`.
fn holding<'l>(section: &'l Section, defaults: &'l [Line], words: &[&str]) -> Option<&'l Line> {
    let is =
        |line: &&Line| words.iter().zip(&line.words).all(|(one, two)| one == two) && line.words.len() >= words.len();
    section.lines.iter().rfind(is).or_else(|| defaults.iter().rfind(is))
}

struct Backends<'b> {
    plan: &'b mut Plan,
    defaults: &'b [Line],
}

impl Backends<'_> {
    fn read(&mut self, section: &Section) {
        let name = name_of(&section.name);
        self.plan.backend(&name, section.number);
        self.balance(section, &name);
        self.times(section, &name);
        let is_http = holding(section, self.defaults, &["mode"]).is_none_or(|line| line.word(1) == "http");
        self.health(section, &name, is_http);
        let base: Vec<String> = self
            .defaults
            .iter()
            .chain(&section.lines)
            .filter(|line| line.word(0) == "default-server")
            .flat_map(|line| line.words[1..].to_vec())
            .collect();
        for line in section.of("server").chain(section.of("server-template")) {
            self.server(&name, line, &base);
        }
        for line in &section.lines {
            self.rest(section, &name, line);
        }
    }

    fn balance(&mut self, section: &Section, name: &str) {
        let Some(line) = holding(section, self.defaults, &["balance"]) else { return };
        let hash = |key: String| ("consistent-hash", Some(format!("{{ key = {key} }}")));
        let (balance, hash) = match line.word(1) {
            "roundrobin" | "static-rr" => return,
            "leastconn" => ("least-connections", None),
            "random" => ("random", None),
            "first" => ("first", None),
            "source" => ("consistent-hash", None),
            "uri" => hash(quoted("path")),
            word if word.starts_with("hdr(") => hash(format!("{{ header = {} }}", quoted(argument(word)))),
            "hash" if line.word(2) == "src" => ("consistent-hash", None),
            _ => {
                self.plan.note(
                    line.number,
                    line.text(),
                    "balance by client-ip, path, a header or a cookie: see `hash`",
                );
                return;
            }
        };
        let keys = &mut self.plan.backend(name, section.number).keys;
        keys.insert("balance".into(), quoted(balance));
        hash.into_iter().for_each(|hash| drop(keys.insert("hash".into(), hash)));
    }

    fn times(&mut self, section: &Section, name: &str) {
        let time =
            |kind: &str| holding(section, self.defaults, &["timeout", kind]).and_then(|line| duration(line.word(2), 1));
        let (connect, server, queue) = (time("connect"), time("server"), time("queue"));
        let retries = holding(section, self.defaults, &["retries"]).and_then(|line| line.word(1).parse::<u8>().ok());
        let is_http = holding(section, self.defaults, &["mode"]).is_some_and(|line| line.word(1) == "http");
        let backend = self.plan.backend(name, section.number);
        let server = server.filter(|_| is_http);
        for (key, time) in [("connect", &connect), ("first_byte", &server), ("body", &server)] {
            time.iter().for_each(|time| drop(backend.timeouts.insert(key.into(), time.clone())));
        }
        queue.into_iter().for_each(|time| drop(backend.keys.insert("queue".into(), format!("{{ timeout = {time} }}"))));
        // haproxy's three are tries to connect; Propylon's two are its default.
        if let Some(retries) = retries.filter(|retries| *retries != 3) {
            backend.keys.insert("retries".into(), retries.min(10).to_string());
        }
    }

    fn health(&mut self, section: &Section, name: &str, is_http: bool) {
        let check = holding(section, self.defaults, &["option", "httpchk"]);
        let is_checked = section.of("server").any(|line| line.has("check"))
            || section
                .of("default-server")
                .chain(self.defaults.iter().filter(|line| line.word(0) == "default-server"))
                .any(|line| line.has("check"));
        if !is_checked {
            return;
        }
        let mut keys = BTreeMap::new();
        match check {
            Some(line) if is_http || line.words.len() > 2 => {
                let (method, path) = match line.words.len() {
                    2 => ("", "/"),
                    3 => ("", line.word(2)),
                    _ => (line.word(2), line.word(3)),
                };
                keys.insert("path".to_owned(), quoted(path));
                if ["HEAD", "OPTIONS"].contains(&method) {
                    keys.insert("method".into(), quoted(method));
                } else if method.is_empty() {
                    // haproxy asks with OPTIONS where no method is said.
                    keys.insert("method".into(), quoted("OPTIONS"));
                }
            }
            _ => drop(keys.insert("kind".to_owned(), quoted("tcp"))),
        }
        let mut notes = Vec::new();
        for line in section.of("http-check") {
            match line.word(1) {
                "send" => {
                    let method = line.after("meth").unwrap_or("GET");
                    line.after("uri").into_iter().for_each(|path| drop(keys.insert("path".into(), quoted(path))));
                    match method {
                        "GET" => drop(keys.remove("method")),
                        method => drop(keys.insert("method".into(), quoted(method))),
                    }
                    if let Some(index) =
                        line.words.windows(2).position(|pair| pair[0] == "hdr" && pair[1].eq_ignore_ascii_case("host"))
                    {
                        keys.insert("host".into(), quoted(line.word(index + 2)));
                    }
                }
                "expect" if line.word(2) == "status" => drop(keys.insert("status".into(), quoted(line.word(3)))),
                "expect" if line.word(2) == "string" => drop(keys.insert("body".into(), quoted(line.word(3)))),
                _ => notes.push((line.number, line.text())),
            }
        }
        notes
            .into_iter()
            .for_each(|(line, text)| self.plan.note(line, text, "see what `health` of a backend can ask for"));
        self.plan.backend(name, section.number).health = keys;
    }

    fn server(&mut self, name: &str, line: &Line, base: &[String]) {
        let address = line.word(2);
        if line.word(0) == "server-template" {
            self.plan.note(line.number, line.text(), "write the name as one server: all of its addresses are used");
            return;
        }
        let socket = unix_socket(address);
        if socket.is_none() && (address.starts_with(['/', '@']) || address.contains('@')) {
            let fix = "write the server as HOST:PORT, or as \"unix:PATH\" with an absolute path";
            self.plan.note(line.number, line.text(), fix);
            return;
        }
        let port = if line.has("ssl") { "443" } else { "80" };
        let address = socket.unwrap_or_else(|| with_port(address, port));
        let mut server = Server { address, keys: Keys::new() };
        let mut options = Options::default();
        options.read(base);
        options.read(line.words.get(3..).unwrap_or_default());
        match options.values.get("weight").map(String::as_str) {
            Some("0") => server.keys.push(("drain".into(), "true".into())),
            Some(weight) if weight != "1" => server.keys.push(("weight".into(), weight.to_owned())),
            _ => {}
        }
        let count = options.values.get("maxconn").filter(|count| *count != "0");
        count.into_iter().for_each(|count| server.keys.push(("max_connections".into(), count.clone())));
        for (word, key) in [("backup", "backup"), ("disabled", "drain")] {
            if options.words.iter().any(|each| each == word) && !server.keys.iter().any(|(known, _)| known == key) {
                server.keys.push((key.into(), "true".into()));
            }
        }
        let backend = self.plan.backend(name, line.number);
        backend.servers.push(server);
        options.to(backend);
        for word in options.unknown {
            self.plan.note(line.number, word, "this option of a server is not carried over: see whether it matters");
        }
    }

    fn rest(&mut self, section: &Section, name: &str, line: &Line) {
        let backend = self.plan.backend(name, section.number);
        match line.word(0) {
            "cookie" if line.has("insert") => {
                backend.keys.insert("sticky".into(), format!("{{ cookie = {} }}", quoted(line.word(1))));
            }
            "cookie" => {
                self.plan.note(line.number, line.text(), "cookies of Propylon's own bring clients back: `sticky`")
            }
            "stick-table" | "stick" => self.plan.note(
                line.number,
                line.text(),
                "cookies bring clients back: `sticky`; or balance = \"consistent-hash\" by client-ip",
            ),
            "errorfile" => self.plan.note(line.number, line.text(), PAGES),
            _ if section.kind == "backend" => request_rule(self.plan, line),
            _ => {}
        }
    }
}

/// Options of a server.
#[derive(Default)]
struct Options {
    values: BTreeMap<String, String>,
    words: Vec<String>,
    unknown: Vec<String>,
}

impl Options {
    fn read(&mut self, words: &[String]) {
        const VALUES: &[&str] = &[
            "weight",
            "maxconn",
            "inter",
            "fall",
            "rise",
            "fastinter",
            "downinter",
            "port",
            "verify",
            "ca-file",
            "sni",
            "crt",
            "cookie",
            "slowstart",
            "maxqueue",
            "resolvers",
            "init-addr",
            "alpn",
            "check-sni",
            "verifyhost",
            "observe",
            "error-limit",
            "on-marked-down",
            "on-error",
            "pool-max-conn",
            "resolve-prefer",
            "id",
            "minconn",
            "check-alpn",
            "addr",
            "pool-purge-delay",
        ];
        const WORDS: &[&str] = &[
            "check",
            "ssl",
            "backup",
            "disabled",
            "send-proxy",
            "send-proxy-v2",
            "check-ssl",
            "enabled",
            "no-ssl",
            "check-send-proxy",
            "allow-0rtt",
            "no-sslv3",
            "no-tlsv10",
            "no-tlsv11",
        ];
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if VALUES.contains(&word.as_str()) {
                self.values.insert(word.clone(), words.next().cloned().unwrap_or_default());
            } else if WORDS.contains(&word.as_str()) {
                self.words.push(word.clone());
            } else {
                self.unknown.push(word.clone());
            }
        }
    }

    fn has(&self, word: &str) -> bool {
        self.words.iter().any(|each| each == word)
    }

    fn to(&self, backend: &mut crate::plan::Backend) {
        if self.has("check") {
            let time = |key: &str| self.values.get(key).and_then(|text| duration(text, 1));
            for (key, ours) in [("inter", "interval"), ("downinter", "interval_down")] {
                time(key).into_iter().for_each(|time| drop(backend.health.insert(ours.into(), time)));
            }
            for (key, ours) in [("rise", "rise"), ("fall", "fall"), ("port", "port")] {
                self.values
                    .get(key)
                    .into_iter()
                    .for_each(|value| drop(backend.health.insert(ours.into(), value.clone())));
            }
        }
        if let Some(time) = self.values.get("slowstart").and_then(|text| duration(text, 1)) {
            backend.keys.insert("slow_start".into(), time);
        }
        for (word, version) in [("send-proxy", "v1"), ("send-proxy-v2", "v2")] {
            if self.has(word) {
                backend.keys.insert("send_proxy_protocol".into(), quoted(version));
            }
        }
        if !self.has("ssl") {
            return;
        }
        let mut tls = BTreeMap::new();
        if self.values.get("verify").is_none_or(|verify| verify == "none") {
            tls.insert("verify".to_owned(), "false".to_owned());
        } else if let Some(ca) = self.values.get("ca-file").filter(|ca| !ca.starts_with('@')) {
            tls.insert("ca".into(), quoted(ca));
        }
        let name = self.values.get("sni").and_then(|sni| sni.strip_prefix("str(")?.strip_suffix(')'));
        name.or(self.values.get("verifyhost").map(String::as_str))
            .into_iter()
            .for_each(|name| drop(tls.insert("server_name".into(), quoted(name))));
        self.values.get("crt").into_iter().for_each(|path| drop(tls.insert("certificate".into(), quoted(path))));
        backend.tls = Some(tls);
    }
}

struct Frontend<'f> {
    plan: &'f mut Plan,
    defaults: &'f [Line],
    section: &'f Section,
    acls: BTreeMap<String, Vec<Result<Vec<Term>, String>>>,
    /// Names of its listeners, and whether they have TLS.
    listeners: Vec<(String, bool)>,
    guards: Vec<Guard>,
    /// Requests that an `allow` lets past the rules behind it.
    allowed: Vec<Term>,
}

impl<'f> Frontend<'f> {
    fn new(plan: &'f mut Plan, defaults: &'f [Line], section: &'f Section) -> Frontend<'f> {
        let acls = BTreeMap::new();
        Frontend { plan, defaults, section, acls, listeners: Vec::new(), guards: Vec::new(), allowed: Vec::new() }
    }

    fn read(&mut self) {
        let section = self.section;
        let first_route = self.plan.routes.len();
        let is_http = holding(section, self.defaults, &["mode"]).is_some_and(|line| line.word(1) == "http");
        self.binds(is_http);
        self.times();
        self.read_acls();
        if section.lines.iter().any(|line| line.word(0) == "stats" && ["enable", "uri"].contains(&line.word(1))) {
            let line = section.of("stats").next().map_or(section.number, |line| line.number);
            self.plan.note(
                line,
                "stats",
                "the dashboard and /metrics are at the admin address: add [admin] with bind = \"127.0.0.1:9900\"",
            );
        }
        self.read_guards();
        for line in &section.lines {
            self.rule(line);
        }
        if let Some(line) = holding(section, self.defaults, &["default_backend"]) {
            self.add(line.number, &[Term::default()], &Action::Backend(name_of(line.word(1))));
        }
        if section.kind == "listen" && section.of("server").next().is_some() {
            self.add(section.number, &[Term::default()], &Action::Backend(name_of(&section.name)));
        }
        let mut routes = self.plan.routes.split_off(first_route);
        self.change(&mut routes);
        self.guard(routes, is_http);
        // Listeners that only answer statistics have nothing to do here.
        let served = |name: &str| self.plan.routes.iter().any(|route| route.listener == name);
        let idle: Vec<String> =
            self.listeners.iter().map(|(name, _)| name.clone()).filter(|name| !served(name)).collect();
        for name in idle {
            self.plan.listeners.retain(|each| each.name != name);
        }
    }

    fn binds(&mut self, is_http: bool) {
        let section = self.section;
        let is_passthrough = !is_http && section.lines.iter().any(|line| line.text().contains("ssl_sni"));
        for line in section.of("bind") {
            let is_tls = line.has("ssl");
            for address in line.word(1).split(',') {
                let Some(bind) = bind(address) else {
                    self.plan.note(
                        line.number,
                        line.text(),
                        "listeners are TCP at one address and port: write each of them",
                    );
                    continue;
                };
                let listener = match is_http {
                    true => self.plan.listener(&bind, is_tls),
                    false => self.plan.listener_named(&name_of(&section.name), &bind, is_tls),
                };
                if !is_http {
                    let protocol = if is_passthrough { "passthrough" } else { "tcp" };
                    listener.keys.insert("protocol".into(), quoted(protocol));
                }
                if line.has("accept-proxy") {
                    listener.keys.insert("accept_proxy_protocol".into(), "true".into());
                }
                if let Some(monitor) = section.of("monitor-uri").next() {
                    listener.keys.insert("monitor_path".into(), quoted(monitor.word(1)));
                }
                for pair in line.words.windows(2).filter(|pair| pair[0] == "crt") {
                    let certificate = Certificate::Path(pair[1].clone());
                    if !listener.certificates.contains(&certificate) {
                        listener.certificates.push(certificate);
                    }
                }
                if let Some(ca) =
                    line.after("ca-file").filter(|_| line.after("verify").is_some_and(|verify| verify != "none"))
                {
                    listener.client_auth.insert("ca".into(), quoted(ca));
                    if line.after("verify") == Some("optional") {
                        listener.client_auth.insert("mode".into(), quoted("optional"));
                    }
                }
                if line.after("ssl-min-ver") == Some("TLSv1.3") {
                    listener.policy = Some("modern");
                }
                let name = listener.name.clone();
                if !self.listeners.iter().any(|(known, _)| *known == name) {
                    self.listeners.push((name, is_tls));
                }
            }
            if line.has("crt-list") {
                self.plan.note(line.number, line.text(), "write the files of the list in `certificates` of [tls.NAME]");
            }
        }
    }

    fn times(&mut self) {
        let time = |kind: &str| {
            holding(self.section, self.defaults, &["timeout", kind]).and_then(|line| duration(line.word(2), 1))
        };
        let keep_alive = time("http-keep-alive");
        let times = [
            ("request_head", time("http-request")),
            ("body", time("client")),
            ("idle", keep_alive),
            ("tunnel_idle", time("tunnel")),
        ];
        let names: Vec<String> = self.listeners.iter().map(|(name, _)| name.clone()).collect();
        for listener in self.plan.listeners.iter_mut().filter(|each| names.contains(&each.name)) {
            let is_relay = listener.keys.contains_key("protocol");
            for (key, time) in &times {
                let key = if is_relay && *key == "body" { "tunnel_idle" } else { key };
                if is_relay && key != "tunnel_idle" {
                    continue;
                }
                if let Some(time) = time {
                    listener.timeouts.entry(key.to_owned()).or_insert(time.clone());
                }
            }
        }
    }

    fn rule(&mut self, line: &Line) {
        match (line.word(0), line.word(1)) {
            ("use_backend", name) if !name.contains('%') => {
                let name = name_of(name);
                self.when(line, 2, &Action::Backend(name));
            }
            ("use_backend", _) => self.plan.note(
                line.number,
                line.text(),
                "write a route for each backend: names are not made of requests",
            ),
            ("redirect", _) => self.redirect(line, 1),
            ("http-request", "redirect") => self.redirect(line, 2),
            _ if is_guard(line) || is_change(line) => {}
            ("http-request", "allow") => {}
            ("http-request", "return") => {
                let status = line.after("status").and_then(|status| status.parse().ok()).unwrap_or(200);
                match line.after("string") {
                    Some(body) => self.when(line, 2, &respond(status, body)),
                    None if line.words.len() <= 4 || line.has("if") => self.when(line, 2, &respond(status, "")),
                    None => self.plan.note(line.number, line.text(), "write `respond` with a body in a route"),
                }
            }
            ("tcp-request", "inspect-delay") => {}
            ("tcp-request", "content") if line.word(2) == "accept" => {}
            ("errorfile", _) => self.plan.note(line.number, line.text(), PAGES),
            ("stick-table" | "stick", _) => self.plan.note(line.number, line.text(), RATES),
            _ if self.section.kind == "listen" && ["cookie"].contains(&line.word(0)) => {}
            _ => request_rule(self.plan, line),
        }
    }

    /// `redirect scheme https code 301 if !{ ssl_fc }`, `redirect prefix URL`, `redirect location URL`.
    fn redirect(&mut self, line: &Line, from: usize) {
        let status = line.after("code").and_then(|code| code.parse().ok()).unwrap_or(302);
        let target = line.word(from + 1);
        let keys = match line.word(from) {
            "scheme" => Some(vec![("status".to_owned(), status.to_string()), ("scheme".to_owned(), quoted(target))]),
            "prefix" => redirect(&format!("{}{{rest}}", target.trim_end_matches('/')), &[], &["{rest}"], status),
            "location" if !target.contains('%') => redirect(target, &[], &[], status),
            _ => None,
        };
        match keys {
            Some(keys) => self.when(line, from, &Action::Redirect(keys)),
            None => self.plan.note(line.number, line.text(), "write a route with `redirect`: host, path, scheme, port"),
        }
    }

    fn read_acls(&mut self) {
        let section = self.section;
        for line in self.defaults.iter().filter(|line| line.word(0) == "acl").chain(section.of("acl")) {
            let alternatives = terms(&line.words[2.min(line.words.len())..]);
            self.acls.entry(line.word(1).to_owned()).or_default().push(alternatives);
        }
    }

    fn read_guards(&mut self) {
        let section = self.section;
        for line in self.defaults.iter().chain(&section.lines) {
            match (line.word(0), line.word(1)) {
                ("http-request", "allow") => self.allow(line),
                _ if is_guard(line) => self.read_guard(line),
                _ => {}
            }
        }
    }

    /// Guards of a backend hold on all routes to it.
    fn guard_backend(&mut self) {
        self.read_acls();
        self.read_guards();
        let to = Action::Backend(name_of(&self.section.name));
        let mut routes = std::mem::take(&mut self.plan.routes);
        let mut own: Vec<&mut Route> = routes.iter_mut().filter(|route| route.action == to).collect();
        self.change_all(&mut own);
        self.plan.routes = routes;
        if self.guards.is_empty() {
            return;
        }
        let (own, others): (Vec<Route>, Vec<Route>) =
            std::mem::take(&mut self.plan.routes).into_iter().partition(|route| route.action == to);
        self.plan.routes = others;
        self.listeners = self.plan.listeners.iter().map(|each| (each.name.clone(), each.is_tls)).collect();
        self.guards.iter_mut().for_each(|guard| guard.is_whole = false);
        let relays: Vec<String> = self
            .plan
            .listeners
            .iter()
            .filter(|each| each.keys.contains_key("protocol"))
            .map(|each| each.name.clone())
            .collect();
        let (relayed, own): (Vec<Route>, Vec<Route>) =
            own.into_iter().partition(|route| relays.contains(&route.listener));
        if !relayed.is_empty() {
            self.guard(relayed, false);
        }
        if !own.is_empty() {
            self.guard(own, true);
        }
    }

    /// Puts routes into the plan, with what the guards keep out.
    fn guard(&mut self, routes: Vec<Route>, is_http: bool) {
        let guards = std::mem::take(&mut self.guards);
        if let (Some(guard), false) = (guards.first(), is_http) {
            let fix = "a relay answers nobody and does not ask who comes: it has no route until you have decided";
            self.plan.note(guard.line, "a rule that keeps connections out", fix);
            return;
        }
        if routes.is_empty() {
            guards.iter().for_each(|guard| self.add(guard.line, std::slice::from_ref(&guard.of), &guard.action));
        }
        let tls: BTreeMap<String, bool> = self.listeners.iter().cloned().collect();
        let all: Vec<usize> = (0..guards.len()).collect();
        let mut guarded = Guarded { guards: &guards, tls: &tls, routes: Vec::new(), wider: Vec::new() };
        for route in routes {
            match route.action {
                Action::Redirect(_) => guarded.routes.push(route),
                _ => guarded.add(route, &all),
            }
        }
        let Guarded { routes, mut wider, .. } = guarded;
        wider.dedup();
        for line in wider {
            if !self.plan.notes.iter().any(|note| note.line == line) {
                self.plan.note(line, "a rule that keeps requests out", WIDER);
            }
        }
        // Clients that a guard excepts may have a route by now.
        let notes = self.plan.notes.len();
        routes.into_iter().for_each(|route| self.plan.route(route));
        self.plan.notes.truncate(notes);
    }

    fn change(&mut self, routes: &mut [Route]) {
        let mut led: Vec<&mut Route> =
            routes.iter_mut().filter(|route| matches!(route.action, Action::Backend(_))).collect();
        self.change_all(&mut led);
    }

    /// Gives routes what this section changes and compresses.
    fn change_all(&mut self, routes: &mut [&mut Route]) {
        let section = self.section;
        let mut changes = Changes::default();
        let all: Vec<&Line> = self.defaults.iter().chain(&section.lines).filter(|line| is_change(line)).collect();
        let mut compress = Compress::default();
        let mut compression = None;
        for line in all {
            let name = line.word(2).to_ascii_lowercase();
            let done = match (line.word(0), line.word(1)) {
                ("compression", "algo" | "algo-res") => {
                    compression = Some(line);
                    compress.encodings.clear();
                    if line.words[2..].iter().any(|word| ["gzip", "deflate", "raw-deflate"].contains(&word.as_str())) {
                        compress.encodings.push("gzip".into());
                    }
                    Ok(())
                }
                ("compression", "type" | "type-res") => {
                    compress.types.clone_from(&line.words[2..].to_vec());
                    Ok(())
                }
                ("compression", _) => Err("this is not carried over".into()),
                ("http-request", "set-header" | "add-header")
                    if ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"].contains(&name.as_str()) =>
                {
                    Ok(())
                }
                _ => change(line, &mut changes),
            };
            if let Err(what) = done {
                let key = match line.word(0) {
                    "compression" => "compress",
                    "http-request" => "request",
                    _ => "response",
                };
                let is_set = key == "request" && line.word(1) == "set-header" && line.words.len() == 4;
                let rest = if is_set { changes.withhold(line.word(2)) } else { "" };
                let fix = format!("{what}; write `{key}` in the routes that it is for{rest}");
                self.plan.note(line.number, line.text(), fix);
            }
        }
        if let Some(line) = compression.filter(|_| !compress.encodings.is_empty())
            && let Err(what) = changes.compress(&compress)
        {
            self.plan.note(line.number, line.text(), format!("{what}; write `compress` in its routes"));
        }
        for route in routes.iter_mut() {
            if let Err(what) = route.changes.then(&changes) {
                let name = format!("{} {}", section.kind, section.name);
                let fix = format!("what it changes is not carried over to all of its routes ({what}): write it there");
                self.plan.note(section.number, name, fix);
            }
        }
    }

    /// Requests that an `allow` is for; of a condition that is not carried over none.
    fn allow(&mut self, line: &Line) {
        let found = match line.words.iter().position(|word| word == "if" || word == "unless") {
            None => Ok(vec![Term::default()]),
            Some(index) => self.condition(&line.words[index + 1..], line.word(index) == "unless"),
        };
        match found {
            Ok(terms) => self.allowed.extend(terms),
            Err(what) => {
                let fix = format!("{what} is not carried over: the rules behind it hold for these requests as well");
                self.plan.note(line.number, line.text(), fix);
            }
        }
    }

    /// Reads a rule that keeps requests out. Of a condition that is not carried over the rest holds, so that nobody
    /// gets in who did not before.
    fn read_guard(&mut self, line: &Line) {
        let is_auth = line.word(1) == "auth";
        let status = line.after("deny_status").or(line.after("status")).and_then(|status| status.parse().ok());
        let action = respond(status.filter(|status| (400..600).contains(status) && !is_auth).unwrap_or(403), "");
        let mut is_wider = false;
        let place = line.words.iter().position(|word| word == "if" || word == "unless");
        let parts: Vec<(Vec<Term>, Vec<Term>)> = match place {
            None => vec![(vec![Term::default()], Vec::new())],
            Some(index) if line.word(index) == "unless" => {
                let mut except = Vec::new();
                for part in line.words[index + 1..].split(|word| word == "or" || word == "||") {
                    match self.condition(part, false) {
                        Ok(terms) => except.extend(terms),
                        Err(_) => is_wider = true,
                    }
                }
                vec![(vec![Term::default()], except)]
            }
            Some(index) => {
                let parts = line.words[index + 1..].split(|word| word == "or" || word == "||");
                parts.filter_map(|part| self.kept_out(part, line, &mut is_wider)).collect()
            }
        };
        if is_auth {
            let fix =
                format!("its users are not carried over: write `auth = {{ basic = ... }}` in the routes; {CLOSED}");
            self.plan.note(line.number, line.text(), fix);
        } else if is_wider {
            self.plan.note(line.number, line.text(), WIDER);
        }
        for (of, mut except) in parts {
            except.extend(self.allowed.iter().cloned());
            for of in of {
                let (line, action, except) = (line.number, action.clone(), except.clone());
                self.guards.push(Guard { line, from: line, of, except, action, is_whole: true });
            }
        }
    }

    /// Requests that one alternative of a guard's condition keeps out, and whom it excepts of these; none of a list
    /// of which nothing is known.
    fn kept_out(&mut self, part: &[String], line: &Line, is_wider: &mut bool) -> Option<(Vec<Term>, Vec<Term>)> {
        let (mut all, mut except, mut is_more) = (vec![Term::default()], Vec::new(), false);
        let mut rest = part;
        let mut is_known = line.word(1) == "auth" || rest.is_empty();
        while let Some(first) = rest.first() {
            let length = match first.ends_with('{') {
                true => rest.iter().position(|word| word == "}").map_or(rest.len(), |end| end + 1),
                false => 1,
            };
            let (one, after) = rest.split_at(length);
            rest = after;
            match first.strip_prefix('!') {
                Some(word) => {
                    let mut asked = one.to_vec();
                    asked[0] = word.to_owned();
                    is_known = true;
                    match self.condition(&asked, false) {
                        Ok(terms) => except.extend(terms),
                        Err(_) => is_more = true,
                    }
                }
                None => match self.condition(one, false) {
                    Ok(terms) => {
                        is_known = true;
                        let both: Vec<Term> =
                            all.iter().flat_map(|one| terms.iter().filter_map(|two| one.and(two))).collect();
                        // One of two conditions that cannot be said together holds for more.
                        let is_said = !both.is_empty() && both.len() <= ALTERNATIVES_MAX;
                        is_more |= !is_said;
                        all = if is_said { both } else { all };
                    }
                    Err(_) => is_more = true,
                },
            }
        }
        if !is_known {
            let fix = "a list or a test of those to keep out, which is not carried over: write a route with `match`, \
                       or a `limit` with `deny_files`";
            self.plan.note(line.number, line.text(), fix);
            return None;
        }
        *is_wider |= is_more;
        Some((all, except))
    }

    /// Adds routes for what a line does `if` or `unless` its condition holds.
    fn when(&mut self, line: &Line, from: usize, action: &Action) {
        let place =
            line.words.iter().enumerate().skip(from).find(|(_, word)| ["if", "unless"].contains(&word.as_str()));
        let alternatives = match place {
            None => Ok(vec![Term::default()]),
            Some((index, word)) => self.condition(&line.words[index + 1..], word == "unless"),
        };
        match alternatives {
            Ok(terms) => {
                // Redirects to https are for what comes in plaintext, whatever is said.
                let is_to_https = matches!(action, Action::Redirect(keys) if keys.iter().any(|(key, value)| key == "scheme" && value == "\"https\"") && keys.len() == 2);
                let terms: Vec<Term> = terms
                    .into_iter()
                    .map(|term| if is_to_https { Term { is_tls: term.is_tls.or(Some(false)), ..term } } else { term })
                    .collect();
                self.add(line.number, &terms, action);
            }
            Err(what) => {
                let fix = format!("{what} is not carried over: write a route with host, path and `match`");
                self.plan.note(line.number, line.text(), fix);
            }
        }
    }

    /// Alternatives of a condition: names of ACLs and conditions in braces, joined by `or`.
    fn condition(&self, words: &[String], is_unless: bool) -> Result<Vec<Term>, String> {
        let mut alternatives = Vec::new();
        for part in words.split(|word| word == "or" || word == "||") {
            let mut all = vec![Term::default()];
            let mut rest = part;
            while let Some((word, after)) = rest.split_first() {
                let (is_not, word) = match word.strip_prefix('!') {
                    Some(word) => (true, word),
                    None => (false, word.as_str()),
                };
                let (found, left) = match word {
                    "{" => {
                        let end = after.iter().position(|word| word == "}").ok_or("a condition without its end")?;
                        (terms(&after[..end])?, &after[end + 1..])
                    }
                    "" => {
                        rest = after;
                        continue;
                    }
                    name => (self.acl(name)?, after),
                };
                let found = if is_not != is_unless { negated(&found)? } else { found };
                all = all.iter().flat_map(|one| found.iter().filter_map(|two| one.and(two))).collect();
                if all.len() > ALTERNATIVES_MAX {
                    return Err("a condition with so many alternatives".into());
                }
                rest = left;
                if is_unless && !rest.is_empty() {
                    return Err("`unless` with several conditions".into());
                }
            }
            alternatives.extend(all);
        }
        Ok(alternatives)
    }

    fn acl(&self, name: &str) -> Result<Vec<Term>, String> {
        match name {
            "TRUE" => return Ok(vec![Term::default()]),
            "HTTP" => return Ok(vec![Term::default()]),
            "METH_GET" => return terms(&["method".to_owned(), "GET".to_owned()]),
            "METH_POST" => return terms(&["method".to_owned(), "POST".to_owned()]),
            _ => {}
        }
        let known = self.acls.get(name).ok_or_else(|| format!("\"{name}\""))?;
        let mut all = Vec::new();
        for terms in known {
            all.extend(terms.clone()?);
        }
        Ok(all)
    }

    fn add(&mut self, line: usize, terms: &[Term], action: &Action) {
        let has_both =
            self.listeners.iter().any(|(_, is_tls)| *is_tls) && self.listeners.iter().any(|(_, is_tls)| !is_tls);
        for term in terms {
            for (listener, is_tls) in self.listeners.clone() {
                // A redirect to https stands on the plaintext listener only, and nothing else does behind it.
                if term.is_tls.is_some_and(|wanted| wanted != is_tls) {
                    continue;
                }
                let is_redirected =
                    !is_tls && has_both && matches!(action, Action::Backend(_)) && self.is_redirected(&listener);
                if is_redirected {
                    continue;
                }
                let (host, path) = (term.host.clone(), term.path.clone().unwrap_or(Path::Prefix("/".into())));
                let (conditions, action) = (term.conditions.clone(), action.clone());
                self.plan.route(Route {
                    line,
                    listener,
                    host,
                    path,
                    conditions,
                    requires_certificate: false,
                    action,
                    changes: Changes::default(),
                });
            }
        }
    }

    /// Whether everything on a listener is sent to https.
    fn is_redirected(&self, listener: &str) -> bool {
        self.plan.routes.iter().any(|route| {
            route.listener == listener
                && route.host.is_none()
                && route.path == Path::Prefix("/".into())
                && route.conditions.is_empty()
                && matches!(&route.action, Action::Redirect(keys) if keys.iter().any(|(key, _)| key == "scheme"))
        })
    }
}

/// Words for a guard that holds for more than it did.
const WIDER: &str = "it holds for more requests than before: add routes for those that it is not for, with `match`";

const PAGES: &str = "pages are not carried over: write `error_pages` in the listener or in its routes";
const RATES: &str = "rates are not carried over: write `limit = { rate = ... }` in its routes";

/// Whether a line changes requests or responses on their way.
fn is_change(line: &Line) -> bool {
    const CHANGES: &[&str] = &[
        "set-header",
        "add-header",
        "del-header",
        "replace-header",
        "replace-value",
        "set-path",
        "replace-path",
        "replace-pathq",
        "set-pathq",
        "set-uri",
        "replace-uri",
        "set-query",
    ];
    match line.word(0) {
        "http-request" | "http-response" | "http-after-response" => CHANGES.contains(&line.word(1)),
        "compression" => true,
        _ => false,
    }
}

/// Makes the change of a line.
fn change(line: &Line, changes: &mut Changes) -> Result<(), String> {
    let side = if line.word(0) == "http-request" { Side::Request } else { Side::Response };
    let (name, lower) = (line.word(2), line.word(2).to_ascii_lowercase());
    if line.has("if") || line.has("unless") {
        return Err("a change under a condition is not carried over".into());
    }
    let count = line.words.len();
    let value = || value(line.word(3)).ok_or("its value is made of what is no fact here".to_owned());
    match (line.word(1), side) {
        ("set-header", Side::Request) if lower == "host" && count == 4 => changes.host(&value()?),
        ("set-header", _) if count == 4 => changes.field((side, Kind::Set), name, &value()?),
        ("add-header", _) if count == 4 => changes.line(side, name, &value()?),
        ("del-header", _) if count == 3 => changes.field((side, Kind::Remove), name, ""),
        ("replace-path", Side::Request) if count == 4 => {
            let to = groups(line.word(3), '\\').ok_or("it is made of what is no group")?;
            changes.path_regex(&whole(name), &to)
        }
        ("set-path", Side::Request) if count == 3 && !name.contains('%') => changes.path("replace", name),
        ("set-path", Side::Request) if count == 3 => match name.split_once("%[path") {
            Some((prefix, "]")) if !prefix.contains('%') => changes.path_regex("^", &prefix.replace('$', "$$")),
            Some(("", rest)) => {
                let inside = rest.strip_prefix(",regsub(").and_then(|rest| rest.strip_suffix(")]"));
                let (pattern, to) =
                    inside.and_then(|inside| inside.split_once(',')).ok_or("it is not made of a pattern alone")?;
                let is_plain = !to.contains([',', '\'', '"']) && !pattern.contains(['\'', '"']);
                let to = groups(to, '\\').filter(|_| is_plain).ok_or("it is made of what is no group")?;
                changes.path_regex(pattern, &to)
            }
            _ => Err("it is not made of the path alone".into()),
        },
        _ => Err("a change of this kind is not carried over".into()),
    }
}

/// A value with haproxy's expressions, where there are facts for them.
fn value(text: &str) -> Option<String> {
    const FACTS: &[(&str, &str)] = &[
        ("%[src]", "{client.ip}"),
        ("%[src_port]", "{client.port}"),
        ("%[method]", "{request.method}"),
        ("%[ssl_fc_sni]", "{tls.server_name}"),
        ("%[ssl_fc_protocol]", "{tls.version}"),
        ("%[ssl_fc_alpn]", "{tls.alpn}"),
        ("%ci", "{client.ip}"),
        ("%cp", "{client.port}"),
        ("%%", "%"),
    ];
    with_facts(text, '%', FACTS)
}

/// Whether a line keeps requests out.
fn is_guard(line: &Line) -> bool {
    // Relays by name take nothing but TLS.
    let is_of_protocol = ["ssl_hello_type", "proto_http", "WAIT_END"].iter().any(|word| line.text().contains(word));
    match (line.word(0), line.word(1)) {
        ("http-request", "deny" | "tarpit" | "reject" | "auth" | "silent-drop") | ("block", _) => true,
        ("tcp-request", _) => ["reject", "silent-drop"].contains(&line.word(2)) && !is_of_protocol,
        _ => false,
    }
}

/// Rules about requests and responses that have no counterpart, and lines that need none.
fn request_rule(plan: &mut Plan, line: &Line) {
    if is_guard(line) || line.word(1) == "allow" || line.text() == "filter compression" {
        return;
    }
    match (line.word(0), line.word(1)) {
        _ if is_change(line) => {}
        ("http-response" | "http-after-response" | "rspadd" | "rspidel", _) => {
            plan.note(line.number, line.text(), "write what becomes of it as `response` of its routes");
        }
        ("http-request", "track-sc0" | "track-sc1" | "track-sc2") | ("tcp-request", "connection") => {
            plan.note(line.number, line.text(), RATES);
        }
        ("http-request" | "tcp-request", _) => {
            plan.note(line.number, line.text(), "this rule has no counterpart: see whether a route with `match` does")
        }
        ("option", option) if NEEDLESS_OPTIONS.contains(&option) => {}
        ("option", _) => {
            plan.note(line.number, line.text(), "this option is not known to this command: see whether it matters")
        }
        (word, _) if NEEDLESS.contains(&word) => {}
        _ => plan.note(line.number, line.text(), "it is not known to this command: see whether it matters"),
    }
}

fn bind(address: &str) -> Option<String> {
    let address = address.strip_prefix("ipv4@").unwrap_or(address);
    let (host, port) = address.strip_prefix("ipv6@").unwrap_or(address).rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    Some(match host {
        "" | "*" => format!("0.0.0.0:{port}"),
        "::" | "[::]" => format!("[::]:{port}"),
        host if host.contains('/') => return None,
        host if host.contains(':') && !host.starts_with('[') => format!("[{host}]:{port}"),
        host => format!("{host}:{port}"),
    })
}
