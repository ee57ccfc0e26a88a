//! Servers of nginx: upstreams, what is passed to them and how.

use std::collections::BTreeMap;

use super::fields::value;
use super::reader::{Place, Reader};
use super::towards::Towards;
use crate::plan::{Action, Keys, Server, name_of, quoted};
use crate::words::{Directive, duration, unix_socket, with_port};
use crate::write::key_text;

impl Reader<'_> {
    pub(super) fn proxied(&mut self, place: &Place<'_>, location: &Directive, pass: &Directive) -> Option<Action> {
        let target = pass.word(1);
        if let Some(action) = self.split(place, location, pass) {
            return Some(action);
        }
        let Some((scheme @ ("http" | "https"), rest)) = target.split_once("://") else {
            self.plan.note(pass.line, pass.text(), "write the servers' addresses in a [backend.NAME]");
            return None;
        };
        let (authority, _) = target_parts(rest);
        let socket = unix_socket(authority);
        if rest.contains('$') || rest.starts_with("unix:") && socket.is_none() {
            let fix = "write the servers' addresses, HOST:PORT or unix:PATH, in a [backend.NAME] and a route to it";
            self.plan.note(pass.line, pass.text(), fix);
            return None;
        }
        let is_tls = scheme == "https";
        let towards = Towards::of(self, place, location, target);
        let name = towards.name(self.plan, authority, pass.line);
        let upstream = self.upstreams.get(authority).cloned();
        let is_new = !self.plan.backends.iter().any(|each| each.name == name);
        self.plan.backend(&name, pass.line);
        if is_new {
            match upstream {
                Some(upstream) => self.upstream(&name, &upstream, is_tls),
                None => {
                    let address = socket.unwrap_or_else(|| with_port(authority, if is_tls { "443" } else { "80" }));
                    self.plan.backend(&name, pass.line).servers.push(Server { address, keys: Keys::new() });
                }
            }
            towards.tell(self, place, location, &name);
            let backend = self.plan.backend(&name, pass.line);
            backend.tls = towards.tls;
            backend.keys.extend(towards.protocol.map(|protocol| ("protocol".to_owned(), protocol)));
        }
        self.timeouts(place, &name, pass.line);
        self.bound(place, location, &name);
        Some(Action::Backend(name))
    }

    /// Address that connections to a backend come from.
    fn bound(&mut self, place: &Place<'_>, location: &Directive, name: &str) {
        let found = [location, place.server, place.http].into_iter().find_map(|block| block.find("proxy_bind"));
        let Some(each) = found.filter(|each| each.word(1) != "off") else { return };
        let source = quoted(each.word(1));
        let keys = &mut self.plan.backend(name, each.line).keys;
        let is_address = each.words.len() == 2 && each.word(1).parse::<std::net::IpAddr>().is_ok();
        match keys.get("source") {
            Some(known) if *known == source => {}
            None if is_address => drop(keys.insert("source".into(), source)),
            _ => {
                let fix = format!("write `source`, an address of this machine, in [backend.{name}] or one of its own");
                self.plan.note(each.line, each.text(), fix);
            }
        }
    }

    /// Servers of gRPC.
    pub(super) fn grpc(&mut self, place: &Place<'_>, location: &Directive, pass: &Directive) -> Option<Action> {
        let target = pass.word(1);
        let (scheme, rest) = target.split_once("://").unwrap_or(("grpc", target));
        let scheme = if scheme == "grpcs" { "https" } else { "http" };
        let words = vec!["proxy_pass".to_owned(), format!("{scheme}://{rest}")];
        self.proxied(place, location, &Directive { line: pass.line, words, block: None })
    }

    /// Servers of FastCGI; none where their addresses or the root of their scripts are not written down.
    pub(super) fn fastcgi(&mut self, place: &Place<'_>, location: &Directive, pass: &Directive) -> Option<Action> {
        let target = pass.word(1);
        let upstream = self.upstreams.get(target).cloned();
        let servers = upstream.iter().flat_map(Directive::inner).filter(|each| each.name() == "server");
        let is_elsewhere =
            |address: &str| address.contains('$') || address.starts_with("unix:") && unix_socket(address).is_none();
        if is_elsewhere(target) || servers.map(|each| each.word(1)).any(is_elsewhere) {
            return None;
        }
        let find = |key: &str| [location, place.server, place.http].into_iter().find_map(|block| block.find(key));
        let (root, script) = script(&[location, place.server, place.http])?;
        let settings = self.settings(place, location, (&root, script));
        // The same servers with other settings are another backend.
        let known = |name: &str| self.plan.backends.iter().find(|each| each.name == name);
        let is_other = |name: &String| known(name).is_some_and(|each| each.keys.get("fastcgi") != Some(&settings));
        let name = Some(name_of(target)).filter(|name| !is_other(name));
        let name = name.unwrap_or_else(|| format!("{}-{}", name_of(target), location.line));
        if known(&name).is_none() {
            self.plan.backend(&name, pass.line);
            match upstream {
                Some(upstream) => self.upstream(&name, &upstream, false),
                None => {
                    let address = unix_socket(target).unwrap_or_else(|| with_port(target, "9000"));
                    self.plan.backend(&name, pass.line).servers.push(Server { address, keys: Keys::new() });
                }
            }
            let keys = &mut self.plan.backend(&name, pass.line).keys;
            keys.insert("protocol".into(), quoted("fastcgi"));
            keys.insert("fastcgi".into(), settings);
        }
        let timeouts = &mut self.plan.backend(&name, pass.line).timeouts;
        for (key, ours) in FASTCGI_TIMEOUTS {
            let Some(time) = find(key).and_then(|each| duration(each.word(1), 1000)) else { continue };
            ours.iter().for_each(|ours| _ = timeouts.entry((*ours).to_owned()).or_insert(time.clone()));
        }
        Some(Action::Backend(name))
    }

    /// `fastcgi` of a backend.
    fn settings(&mut self, place: &Place<'_>, location: &Directive, (root, script): (&str, Script)) -> String {
        let blocks = [location, place.server, place.http];
        let find = |key: &str| blocks.into_iter().find_map(|block| block.find(key));
        let mut keys = vec![format!("root = {}", quoted(root))];
        match script {
            Script::One(script) => keys.push(format!("index = {}", quoted(&script))),
            Script::Asked if location.word(1) == "=" => keys.push(format!("index = {}", quoted(location.word(2)))),
            Script::Asked => {
                keys.push(format!("scripts = {}", quoted("any")));
                if let Some(index) = find("fastcgi_index").filter(|each| each.word(1) != "index.php") {
                    keys.push(format!("index = {}", quoted(&format!("/{}", index.word(1).trim_start_matches('/')))));
                }
            }
        }
        if find("fastcgi_keep_conn").is_some_and(|each| each.word(1) == "on") {
            keys.push("keep = true".into());
        }
        let mut params = Vec::new();
        for each in fastcgi_params(&blocks).filter(|each| !each.word(2).is_empty()) {
            let (name, text) = (each.word(1), each.word(2));
            match value(text) {
                _ if name == "SCRIPT_FILENAME" => {}
                _ if CGI.contains(&name) && (text.contains('$') || name == "REDIRECT_STATUS") => {}
                Some(value) => params.push(format!("{} = {}", key_text(name), quoted(&value))),
                None => {
                    let fix = "its value is made of what is no fact here; write it in `fastcgi.params` of its backend";
                    self.plan.note(each.line, each.text(), fix);
                }
            }
        }
        if !params.is_empty() {
            keys.push(format!("params = {{ {} }}", params.join(", ")));
        }
        format!("{{ {} }}", keys.join(", "))
    }

    /// Timeouts of the server's block, which are the backend's; other ones of it are those of its routes.
    fn timeouts(&mut self, place: &Place<'_>, name: &str, line: usize) {
        for (key, ours) in TIMEOUTS {
            let found = [place.server, place.http].into_iter().find_map(|block| block.find(key));
            let Some(time) = found.and_then(|each| duration(each.word(1), 1000)) else { continue };
            let timeouts = &mut self.plan.backend(name, line).timeouts;
            ours.iter().for_each(|ours| _ = timeouts.entry((*ours).to_owned()).or_insert(time.clone()));
        }
    }

    /// Timeouts that are a route's: of its location, or of a server whose backend has others.
    pub(super) fn own_timeouts(&self, place: &Place<'_>, location: &Directive) -> BTreeMap<String, String> {
        let mut own = BTreeMap::new();
        let pass = location.find("proxy_pass");
        let (target, line) = pass.map_or(("", 0), |pass| (pass.word(1), pass.line));
        let (authority, _) = target_parts(target.split_once("://").map_or("", |(_, rest)| rest));
        let name = Towards::of(self, place, location, target).name(self.plan, authority, line);
        let backend = self.plan.backends.iter().find(|each| each.name == name);
        for (key, ours) in TIMEOUTS {
            let time = |block: &Directive| block.find(key).and_then(|each| duration(each.word(1), 1000));
            let outer = time(place.server).or_else(|| time(place.http));
            for ours in *ours {
                let known = backend.map_or(outer.clone(), |each| each.timeouts.get(*ours).cloned());
                let wanted = time(location).or_else(|| outer.clone());
                if let Some(wanted) = wanted.filter(|wanted| known.as_ref() != Some(wanted)) {
                    own.insert((*ours).to_owned(), wanted);
                }
            }
        }
        own
    }

    fn upstream(&mut self, name: &str, upstream: &Directive, is_tls: bool) {
        let mut notes = Vec::new();
        let backend = self.plan.backend(name, upstream.line);
        for each in upstream.inner() {
            match each.name() {
                "server" => match server(each, is_tls, &mut notes) {
                    Some(server) => backend.servers.push(server),
                    None => notes.push((each.line, each.text(), "write the server as HOST:PORT or unix:PATH")),
                },
                "least_conn" => drop(backend.keys.insert("balance".into(), quoted("least-connections"))),
                "random" => drop(backend.keys.insert("balance".into(), quoted("random"))),
                "ip_hash" => drop(backend.keys.insert("balance".into(), quoted("consistent-hash"))),
                "hash" => {
                    let key = match each.word(1) {
                        "$remote_addr" | "$binary_remote_addr" => Some(quoted("client-ip")),
                        "$uri" | "$request_uri" => Some(quoted("path")),
                        word => word
                            .strip_prefix("$http_")
                            .map(|name| format!("{{ header = {} }}", quoted(&name.replace('_', "-"))))
                            .or(word.strip_prefix("$cookie_").map(|name| format!("{{ cookie = {} }}", quoted(name)))),
                    };
                    match key {
                        Some(key) => {
                            backend.keys.insert("balance".into(), quoted("consistent-hash"));
                            backend.keys.insert("hash".into(), format!("{{ key = {key} }}"));
                        }
                        None => notes.push((each.line, each.text(), "hash by client-ip, path, a header or a cookie")),
                    }
                }
                "keepalive" | "zone" | "keepalive_timeout" | "keepalive_requests" | "keepalive_time" => {}
                _ => notes.push((each.line, each.text(), "it is not known to this command: see whether it matters")),
            }
        }
        for (line, text, fix) in notes {
            self.plan.note(line, text, fix);
        }
    }
}

/// The script that a request of FastCGI runs.
enum Script {
    /// The one that its path names.
    Asked,
    /// This one below the root, whatever is asked for.
    One(String),
}

/// Parameters of the innermost block that has any.
fn fastcgi_params<'d>(blocks: &[&'d Directive]) -> impl Iterator<Item = &'d Directive> + use<'d> {
    let is_own = |each: &Directive| {
        each.name() == "fastcgi_param" || each.name() == "include" && each.word(1).contains("fastcgi")
    };
    let block = blocks.iter().find(|block| block.inner().iter().any(is_own));
    let all = block.map_or(&[][..], |block| block.inner());
    all.iter().filter(|each| each.name() == "fastcgi_param")
}

/// Root of the scripts, and which of them runs; none where `SCRIPT_FILENAME` is made of what is not known here.
fn script(blocks: &[&Directive]) -> Option<(String, Script)> {
    const ASKED: &[&str] = &["$fastcgi_script_name", "$uri", "$document_uri"];
    let is_root = |root: &&str| root.starts_with('/') && !root.contains('$');
    // With an `alias`, which is nearer, scripts are elsewhere than their paths say.
    let root = blocks.iter().find_map(|block| block.find("alias").or_else(|| block.find("root")));
    let root = root.filter(|each| each.name() == "root").map(|root| root.word(1)).filter(is_root);
    let file = fastcgi_params(blocks).filter(|each| each.word(1) == "SCRIPT_FILENAME").last();
    let file = file.map_or("$document_root$fastcgi_script_name", |each| each.word(2));
    let file = if file == "$request_filename" { "$document_root$fastcgi_script_name" } else { file };
    let (base, rest) = match ["$document_root", "$realpath_root"].iter().find_map(|name| file.strip_prefix(name)) {
        Some(rest) => (root?, rest),
        None => ("", file),
    };
    if let Some(folder) = ASKED.iter().find_map(|name| rest.strip_suffix(name)) {
        let root = format!("{base}{}", folder.trim_end_matches('/'));
        return is_root(&root.as_str()).then_some((root, Script::Asked));
    }
    if rest.contains('$') {
        return None;
    }
    // A script of the site's own root stays below that, since that is what it is told of.
    let own = root
        .filter(|_| base.is_empty())
        .and_then(|root| Some((root, rest.strip_prefix(root)?)))
        .filter(|(_, rest)| rest.starts_with('/'));
    let (base, rest) = own.unwrap_or((base, rest));
    let (base, rest) = match base {
        "" => rest.rsplit_once('/').map(|(folder, _)| (folder, &rest[folder.len()..]))?,
        base => (base, rest),
    };
    let base = if base.is_empty() { "/" } else { base };
    (is_root(&base) && rest.starts_with('/') && rest.len() > 1).then(|| (base.to_owned(), Script::One(rest.to_owned())))
}

/// Timeouts, and what they are here.
const FASTCGI_TIMEOUTS: &[(&str, &[&str])] =
    &[("fastcgi_connect_timeout", &["connect"]), ("fastcgi_read_timeout", &["first_byte", "body"])];

/// Parameters that scripts are told of anyway.
const CGI: &[&str] = &[
    "QUERY_STRING",
    "REQUEST_METHOD",
    "CONTENT_TYPE",
    "CONTENT_LENGTH",
    "SCRIPT_FILENAME",
    "SCRIPT_NAME",
    "PATH_INFO",
    "PATH_TRANSLATED",
    "REQUEST_URI",
    "DOCUMENT_URI",
    "DOCUMENT_ROOT",
    "SERVER_PROTOCOL",
    "REQUEST_SCHEME",
    "HTTPS",
    "GATEWAY_INTERFACE",
    "SERVER_SOFTWARE",
    "REMOTE_ADDR",
    "REMOTE_PORT",
    "SERVER_ADDR",
    "SERVER_PORT",
    "SERVER_NAME",
    "REDIRECT_STATUS",
];

/// Timeouts of servers of HTTP, and what they are here.
const TIMEOUTS: &[(&str, &[&str])] =
    &[("proxy_connect_timeout", &["connect"]), ("proxy_read_timeout", &["first_byte", "body"])];

pub(super) fn server(each: &Directive, is_tls: bool, notes: &mut Vec<(usize, String, &'static str)>) -> Option<Server> {
    let address = match each.word(1) {
        socket if socket.starts_with("unix:") => unix_socket(socket)?,
        address => with_port(address, if is_tls { "443" } else { "80" }),
    };
    let mut server = Server { address, keys: Keys::new() };
    for word in each.arguments().iter().skip(1) {
        match word.split_once('=') {
            Some(("weight", weight)) => server.keys.push(("weight".into(), weight.to_owned())),
            Some(("max_conns", count)) if count != "0" => {
                server.keys.push(("max_connections".into(), count.to_owned()))
            }
            Some(("max_fails" | "fail_timeout" | "slow_start" | "max_conns", _)) => {}
            _ if word == "backup" => server.keys.push(("backup".into(), "true".into())),
            _ if word == "down" => server.keys.push(("drain".into(), "true".into())),
            _ => notes.push((each.line, word.clone(), "it is not known to this command: see whether it matters")),
        }
    }
    Some(server)
}

/// Parts of what stands behind the scheme in `proxy_pass`: server and URI. A socket's path ends with a colon where a
/// URI follows.
pub(super) fn target_parts(rest: &str) -> (&str, &str) {
    let end = match rest.strip_prefix("unix:") {
        Some(path) => path.find(':').map_or(rest.len(), |end| "unix:".len() + end),
        None => rest.find('/').unwrap_or(rest.len()),
    };
    let (server, uri) = rest.split_at(end);
    (server, uri.trim_start_matches(':'))
}
