//! Backends of haproxy: servers, balancing, health, times.

use std::collections::BTreeMap;

use super::known::{PAGES, request_rule};
use super::lines::{Line, Section, holding};
use crate::plan::{Keys, Plan, Server, name_of, quoted};
use crate::terms::argument;
use crate::variables::{BEGIN, END};
use crate::words::{duration, unix_socket, with_port};
use crate::write::key_text;

pub(super) struct Backends<'b> {
    pub(super) plan: &'b mut Plan,
    pub(super) defaults: &'b [Line],
    pub(super) sections: &'b [Section],
}

impl Backends<'_> {
    pub(super) fn read(&mut self, section: &Section) {
        let name = name_of(&section.name);
        self.plan.backend(&name, section.number);
        self.balance(section, &name);
        self.bound(section, &name);
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
        let lines: Vec<&Line> = section.of("server").chain(section.of("server-template")).collect();
        let servers = lines.into_iter().filter_map(|line| Some((line, self.server(line, &base)?))).collect();
        self.servers(&name, servers);
        for line in &section.lines {
            self.rest(section, &name, line);
        }
    }

    /// Address that connections come from.
    fn bound(&mut self, section: &Section, name: &str) {
        let Some(line) = holding(section, self.defaults, &["source"]) else { return };
        let address = line.word(1).trim_end_matches(":0");
        match address.parse::<std::net::IpAddr>() {
            Ok(_) if line.words.len() == 2 => {
                self.plan.backend(name, section.number).keys.insert("source".into(), quoted(address));
            }
            _ => self.plan.note(line.number, line.text(), "write `source`, an address of this machine"),
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
        if let Some(time) =
            holding(section, self.defaults, &["timeout", "check"]).and_then(|line| duration(line.word(2), 1))
        {
            keys.insert("timeout".into(), time);
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

    /// Puts servers into a backend, which is asked in one way: that of its first server that is no spare. Others are
    /// left out, and certificates are verified where those of one are.
    fn servers(&mut self, name: &str, servers: Vec<(&Line, (Server, Options))>) {
        let is_first = |(_, (_, options)): &&(&Line, (Server, Options))| !options.has("backup");
        let Some((_, (_, first))) = servers.iter().find(is_first).or(servers.first()) else { return };
        let mut way = first.way();
        let all: Vec<Way> = servers.iter().map(|(_, (_, options))| options.way()).collect();
        if let Some(strict) = all.iter().find(|each| each.is_verified() && way.is_like(each)) {
            way = strict.clone();
        }
        for ((line, (server, options)), own) in servers.into_iter().zip(all) {
            if own != way && (own.is_verified() || !own.is_like(&way)) {
                let fix = "it is spoken to in another way than the first of its backend (ssl, verify, ca-file, sni, crt, \
                           send-proxy or proto), and left out: write a [backend.NAME] of its own for it";
                self.plan.note(line.number, line.text(), fix);
                continue;
            }
            if own != way {
                let fix = if way.is_verified() { VERIFIED } else { SAME };
                self.plan.note(line.number, line.text(), fix);
            }
            let backend = self.plan.backend(name, line.number);
            backend.servers.push(server);
            options.to(backend);
        }
        let backend = self.plan.backend(name, 0);
        backend.keys.extend(way.protocol.map(|protocol| ("protocol".to_owned(), quoted(&protocol))));
        backend.keys.extend(way.proxy.map(|version| ("send_proxy_protocol".to_owned(), quoted(version))));
        backend.tls = way.tls;
    }

    fn server(&mut self, line: &Line, base: &[String]) -> Option<(Server, Options)> {
        let address = line.word(2);
        if line.word(0) == "server-template" {
            self.plan.note(line.number, line.text(), "write the name as one server: all of its addresses are used");
            return None;
        }
        let socket = unix_socket(address);
        if socket.is_none() && (address.starts_with(['/', '@']) || address.contains('@')) {
            let fix = "write the server as HOST:PORT, or as \"unix:PATH\" with an absolute path";
            self.plan.note(line.number, line.text(), fix);
            return None;
        }
        let port = if line.has("ssl") { "443" } else { "80" };
        // A variable may have its own port.
        let is_variable = address.starts_with(BEGIN) && address.ends_with(END);
        let address = if is_variable { address.to_owned() } else { with_port(address, port) };
        let address = socket.unwrap_or(address);
        let mut server = Server { address, keys: Keys::new() };
        let mut options = Options::default();
        options.read(base);
        options.read(line.words.get(3..).unwrap_or_default());
        match options.values.get("weight").map(String::as_str) {
            Some("0") => server.keys.push(("drain".into(), "true".into())),
            Some(weight) if weight != "1" && weight.parse::<u16>().is_ok() => {
                server.keys.push(("weight".into(), weight.to_owned()))
            }
            _ => {}
        }
        let count = options.values.get("maxconn").filter(|count| *count != "0" && count.parse::<u32>().is_ok());
        count.into_iter().for_each(|count| server.keys.push(("max_connections".into(), count.clone())));
        for (word, key) in [("backup", "backup"), ("disabled", "drain")] {
            if options.words.iter().any(|each| each == word) && !server.keys.iter().any(|(known, _)| known == key) {
                server.keys.push((key.into(), "true".into()));
            }
        }
        for word in std::mem::take(&mut options.unknown) {
            self.plan.note(line.number, word, "this option of a server is not carried over: see whether it matters");
        }
        Some((server, options))
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
            "use-fcgi-app" => self.application(name, line),
            "stick" => self.plan.note(
                line.number,
                line.text(),
                "cookies bring clients back: `sticky`; or balance = \"consistent-hash\" by client-ip",
            ),
            "errorfile" | "errorfiles" | "errorloc" => self.plan.note(line.number, line.text(), PAGES),
            _ if section.kind == "backend" => request_rule(self.plan, line),
            _ => {}
        }
    }
}

impl Backends<'_> {
    /// `fcgi-app`: how servers of FastCGI are spoken to.
    fn application(&mut self, name: &str, line: &Line) {
        let is_it = |section: &&Section| section.kind == "fcgi-app" && section.name == line.word(1);
        let app = self.sections.iter().find(is_it);
        let root = app.and_then(|app| app.of("docroot").next()).map_or("", |line| line.word(1));
        let (Some(app), true) = (app, root.starts_with('/')) else {
            self.plan.note(line.number, line.text(), "write protocol = \"fastcgi\" and `fastcgi` with its `root`");
            return;
        };
        let mut keys = vec![format!("root = {}", quoted(root)), "scripts = \"any\"".to_owned()];
        let mut params = Vec::new();
        let mut is_kept = false;
        for line in &app.lines {
            let text = line.word(2);
            match line.word(0) {
                "docroot" | "option" | "no" | "log-stderr" if line.text() != "option keep-conn" => {}
                "option" => is_kept = true,
                "index" if line.word(1) == "index.php" => {}
                "index" => keys.push(format!("index = {}", quoted(&format!("/{}", line.word(1))))),
                "path-info" if line.word(1).contains(".php") => {}
                "set-param" if line.words.len() == 3 && !text.contains(['%', '{', '}']) => {
                    params.push(format!("{} = {}", key_text(line.word(1)), quoted(text)));
                }
                _ => self.plan.note(line.number, line.text(), "see what `fastcgi` of a backend has for it"),
            }
        }
        if is_kept {
            keys.push("keep = true".into());
        }
        if !params.is_empty() {
            keys.push(format!("params = {{ {} }}", params.join(", ")));
        }
        self.plan.note(line.number, line.text(), "paths that name no script run the index here: lead files elsewhere");
        let backend = self.plan.backend(name, line.number);
        backend.keys.insert("protocol".into(), quoted("fastcgi"));
        backend.keys.insert("fastcgi".into(), format!("{{ {} }}", keys.join(", ")));
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
            "proto",
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
            "check-send-proxy",
            "allow-0rtt",
            "no-sslv3",
            "no-tlsv10",
            "no-tlsv11",
        ];
        /// Words that `no-` in front takes back.
        const OFF: &[&str] =
            &["ssl", "send-proxy", "send-proxy-v2", "check", "backup", "check-ssl", "check-send-proxy"];
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if VALUES.contains(&word.as_str()) {
                self.values.insert(word.clone(), words.next().cloned().unwrap_or_default());
            } else if let Some(off) = word.strip_prefix("no-").filter(|off| OFF.contains(off)) {
                self.words.retain(|known| known != off);
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
    }

    /// How the server is spoken to.
    fn way(&self) -> Way {
        let versions = [("send-proxy-v2", "v2"), ("send-proxy", "v1")];
        Way {
            tls: self.has("ssl").then(|| self.tls()),
            protocol: self.values.get("proto").filter(|protocol| *protocol == "h2").cloned(),
            proxy: versions.into_iter().find(|(word, _)| self.has(word)).map(|(_, version)| version),
        }
    }

    fn tls(&self) -> BTreeMap<String, String> {
        let mut tls = BTreeMap::new();
        let ca = self.values.get("ca-file");
        // Certificates are verified by default, for which haproxy asks for a file.
        if self.values.get("verify").map_or(ca.is_none(), |verify| verify == "none") {
            tls.insert("verify".to_owned(), "false".to_owned());
        } else if let Some(ca) = ca.filter(|ca| !ca.starts_with('@')) {
            tls.insert("ca".into(), quoted(ca));
        }
        let name = self.values.get("sni").and_then(|sni| sni.strip_prefix("str(")?.strip_suffix(')'));
        name.or(self.values.get("verifyhost").map(String::as_str))
            .into_iter()
            .for_each(|name| drop(tls.insert("server_name".into(), quoted(name))));
        self.values.get("crt").into_iter().for_each(|path| drop(tls.insert("certificate".into(), quoted(path))));
        tls
    }
}

/// How a server is spoken to, which all servers of a backend have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Way {
    tls: Option<BTreeMap<String, String>>,
    protocol: Option<String>,
    proxy: Option<&'static str>,
}

impl Way {
    fn is_verified(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| !tls.contains_key("verify"))
    }

    /// Whether another is the same but for what it says of certificates.
    fn is_like(&self, other: &Way) -> bool {
        (self.tls.is_some(), &self.protocol, self.proxy) == (other.tls.is_some(), &other.protocol, other.proxy)
    }
}

/// Words for a server whose certificate was not verified beside others.
const VERIFIED: &str = "the certificates of other servers of its backend are verified, and so is its own now: write a \
                        [backend.NAME] of its own for it where it has none that can be";
const SAME: &str = "the name and the certificate of the first server of its backend hold for it as well: write a \
                    [backend.NAME] of its own where they should not";
