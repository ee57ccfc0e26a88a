//! `reverse_proxy` of Caddy: servers, balancing, health, and how they are spoken to.

use std::collections::BTreeMap;

use super::fields::{field, value};
use super::matchers::Matched;
use super::{Reader, Site};
use crate::changes::{Changes, Side};
use crate::plan::{Action, Keys, Path, Server, name_of, one_or_list, quoted};
use crate::variables::{BEGIN, END};
use crate::words::{Directive, duration, unix_socket, with_port};
use crate::write::key_text;

impl Reader<'_> {
    pub(super) fn proxied(&mut self, sites: &[Site], each: &Directive, outer: &[Matched]) {
        let Some((matched, from)) = self.matched(each, outer) else { return };
        let Some(name) = self.towards(each, from) else { return };
        let changes = self.changes.clone();
        for inner in each.inner() {
            let (side, key) = match inner.name() {
                "header_up" => (Side::Request, "request"),
                "header_down" => (Side::Response, "response"),
                _ => continue,
            };
            let lower = inner.word(1).to_ascii_lowercase();
            if side == Side::Request
                && ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"].contains(&lower.as_str())
            {
                continue;
            }
            if let Err(what) = field(inner.arguments(), side, &mut self.changes) {
                let is_set = side == Side::Request && inner.words.len() == 3;
                let rest = if is_set { self.changes.withhold(inner.word(1)) } else { "" };
                let fix = format!("{what}; write `{key}` in the routes that it is for{rest}");
                self.plan.note(inner.line, inner.text(), fix);
            }
        }
        self.add(sites, each.line, &matched, &Action::Backend(name));
        self.changes = changes;
    }

    /// The backend of the servers that a directive names, made where there is none yet.
    fn towards(&mut self, each: &Directive, from: usize) -> Option<String> {
        let mut targets: Vec<String> = each.words.get(from..).unwrap_or_default().to_vec();
        targets.extend(
            each.inner().iter().filter(|inner| inner.name() == "to").flat_map(|inner| inner.arguments().to_vec()),
        );
        let mut servers = Vec::new();
        let (mut is_tls, mut is_h2) = (false, false);
        for target in &targets {
            let (scheme, address) = target.split_once("://").unwrap_or(("http", target));
            if let Some(address) = unix_socket(target).filter(|_| target.starts_with("unix")) {
                servers.push(Server { address, keys: Keys::new() });
            } else if ["http", "https", "h2c"].contains(&scheme) && !address.starts_with('/') && !address.contains('{')
            {
                is_tls |= scheme == "https";
                is_h2 |= scheme == "h2c";
                let address = address.trim_end_matches('/');
                let address = if address.starts_with(':') { format!("127.0.0.1{address}") } else { address.to_owned() };
                // A variable has its own port, as most do.
                let is_variable = address.starts_with(BEGIN) && address.ends_with(END);
                let port = if scheme == "https" { "443" } else { "80" };
                let address = if is_variable { address } else { with_port(&address, port) };
                servers.push(Server { address, keys: Keys::new() });
            } else {
                self.plan.note(each.line, target.clone(), "write the server as HOST:PORT or unix:PATH");
            }
        }
        let Some(first) = servers.first() else {
            if targets.is_empty() {
                self.plan.note(each.line, each.text(), "it names no servers: write a [backend.NAME] and a route to it");
            }
            return None;
        };
        let name = self.name(&first.address, &servers, each);
        let backend = self.plan.backend(&name, each.line);
        if backend.servers.is_empty() {
            backend.servers = servers;
            if is_tls {
                backend.tls = Some(BTreeMap::new());
            }
            if is_h2 {
                backend.keys.insert("protocol".into(), quoted("h2"));
            }
            self.options_of_proxy(&name, each);
        }
        Some(name)
    }

    /// Proof that `forward_auth` asks for; none where that is not carried over.
    pub(super) fn asked(&mut self, each: &Directive) -> Option<Changes> {
        let from = if each.word(1).starts_with(['/', '@', '*']) { 2 } else { 1 };
        let is_own = |inner: &&Directive| ["uri", "copy_headers"].contains(&inner.name());
        let copies = each.inner().iter().filter(|inner| inner.name() == "copy_headers");
        let names = copies.flat_map(|inner| {
            let listed = inner.inner().iter().map(Directive::text);
            inner.arguments().iter().cloned().chain(listed).collect::<Vec<String>>()
        });
        let names: Vec<String> = names.collect();
        let path = each.find("uri").map_or("", |inner| inner.word(1));
        let rest = each.inner().iter().filter(|inner| !is_own(inner)).cloned().collect();
        let rest = Some(rest).filter(|rest: &Vec<Directive>| !rest.is_empty());
        let proxy = Directive { block: rest, ..each.clone() };
        let mut proof = Changes::default();
        // Names that are no backend's yet are tried first: a backend that nobody asks is none.
        if path.contains('{') || proof.forward("auth", path, &names).is_err() {
            return None;
        }
        for inner in proxy.inner().iter().filter(|inner| ["header_up", "method"].contains(&inner.name())) {
            let fix = "the service is asked by GET, with the request's own fields and X-Forwarded-*";
            self.plan.note(inner.line, inner.text(), fix);
        }
        let name = self.towards(&proxy, from)?;
        proof = Changes::default();
        proof.forward(&name, path, &names).ok().map(|()| proof)
    }

    /// Servers of `php_fastcgi`: those of scripts, and of all that is no file where there are no files beside them.
    pub(super) fn php(&mut self, sites: &[Site], each: &Directive, outer: &[Matched], has_files: bool) -> bool {
        const SETTINGS: &[&str] = &["root", "split", "env", "index"];
        let Some((matched, from)) = self.matched(each, outer) else { return true };
        let root = each.find("root").map(|inner| inner.word(1).to_owned()).or_else(|| self.root.clone());
        let Some(root) = root.filter(|root| root.starts_with('/') && !root.contains('{')) else { return false };
        let is_said = each.inner().iter().all(|inner| SETTINGS.contains(&inner.name()) && !inner.word(1).contains('{'));
        let is_everything = matched.iter().all(|one| one.path == Path::Prefix("/".into()) && one.conditions.is_empty());
        let is_proxy = !each.word(from).is_empty() && each.words[from..].iter().all(|word| !word.contains("://"));
        if !is_said || !is_proxy || has_files && !is_everything || each.words.len() > from + 1 {
            return false;
        }
        let index = each.find("index").map_or("index.php", |inner| inner.word(1));
        let mut keys = vec![format!("root = {}", quoted(&root)), "scripts = \"any\"".to_owned()];
        if index != "index.php" {
            keys.push(format!("index = {}", quoted(&format!("/{}", index.trim_start_matches('/')))));
        }
        keys.extend(each.find("split").map(|inner| format!("split = {}", quoted(inner.word(1)))));
        let params: Vec<String> = (each.inner().iter().filter(|inner| inner.name() == "env"))
            .filter_map(|inner| Some(format!("{} = {}", key_text(inner.word(1)), quoted(&value(inner.word(2))?))))
            .collect();
        if !params.is_empty() {
            keys.push(format!("params = {{ {} }}", params.join(", ")));
        }
        let proxy = Directive { block: None, words: each.words.clone(), line: each.line };
        let Some(name) = self.towards(&proxy, from) else { return true };
        let backend = self.plan.backend(&name, each.line);
        backend.keys.insert("protocol".into(), quoted("fastcgi"));
        backend.keys.insert("fastcgi".into(), format!("{{ {} }}", keys.join(", ")));
        let scripts = matched.iter().map(|one| Matched { path: Path::Regex("\\.php$".into()), ..one.clone() });
        let own = if has_files { scripts.collect() } else { matched.clone() };
        self.add(sites, each.line, &own, &Action::Backend(name));
        true
    }

    /// A backend's name: of its server, or of that and the line if there is another one with that server.
    fn name(&self, first: &str, servers: &[Server], each: &Directive) -> String {
        let name = name_of(first.trim_start_matches("127.0.0.1:").trim_start_matches("localhost:"));
        let name = if name.bytes().all(|byte| byte.is_ascii_digit()) { format!("app-{name}") } else { name };
        let known = self.plan.backends.iter().find(|backend| backend.name == name);
        match known {
            Some(known) if known.servers != servers || each.block.is_some() || each.name() == "php_fastcgi" => {
                format!("{name}-{}", each.line)
            }
            Some(known) if known.keys.contains_key("protocol") => format!("{name}-{}", each.line),
            _ => name,
        }
    }

    fn options_of_proxy(&mut self, name: &str, proxy: &Directive) {
        let mut notes: Vec<(usize, String, &str)> = Vec::new();
        let backend = self.plan.backend(name, proxy.line);
        for each in proxy.inner() {
            let time = || duration(each.word(1), 1000);
            match each.name() {
                "to" | "flush_interval" | "lb_try_duration" | "lb_try_interval" | "stream_timeout" => {}
                "fail_duration" | "max_fails" | "unhealthy_status" | "unhealthy_latency" | "stream_close_delay" => {
                    if each.name() == "fail_duration" {
                        backend.keys.insert("outlier".into(), "{}".into());
                    }
                }
                "lb_policy" => match each.word(1) {
                    "round_robin" => {}
                    "random" => drop(backend.keys.insert("balance".into(), quoted("random"))),
                    "first" => drop(backend.keys.insert("balance".into(), quoted("first"))),
                    "least_conn" | "random_choose" => {
                        drop(backend.keys.insert("balance".into(), quoted("least-connections")))
                    }
                    "ip_hash" | "client_ip_hash" => {
                        drop(backend.keys.insert("balance".into(), quoted("consistent-hash")))
                    }
                    "uri_hash" => hash(backend, quoted("path")),
                    "header" => hash(backend, format!("{{ header = {} }}", quoted(each.word(2)))),
                    "cookie" => {
                        let cookie = if each.word(2).is_empty() { "lb" } else { each.word(2) };
                        backend.keys.insert("sticky".into(), format!("{{ cookie = {} }}", quoted(cookie)));
                    }
                    _ => notes.push((each.line, each.text(), "see `balance` of a backend")),
                },
                "health_uri" | "health_path" => drop(backend.health.insert("path".into(), quoted(each.word(1)))),
                "health_interval" => {
                    time().into_iter().for_each(|time| drop(backend.health.insert("interval".into(), time)))
                }
                "health_timeout" => {
                    time().into_iter().for_each(|time| drop(backend.health.insert("timeout".into(), time)))
                }
                "health_port" => drop(backend.health.insert("port".into(), each.word(1).to_owned())),
                "health_status" => {
                    let status = each.word(1);
                    let status =
                        status.strip_suffix("xx").map_or(status.to_owned(), |class| format!("{class}00-{class}99"));
                    backend.health.insert("status".into(), quoted(&status));
                }
                "health_method" => drop(backend.health.insert("method".into(), quoted(each.word(1)))),
                "health_passes" => drop(backend.health.insert("rise".into(), each.word(1).to_owned())),
                "health_fails" => drop(backend.health.insert("fall".into(), each.word(1).to_owned())),
                "lb_retries" if each.word(1).parse::<u8>().is_ok_and(|count| count <= 10) => {
                    backend.keys.insert("retries".into(), each.word(1).to_owned());
                }
                "health_body" => drop(backend.health.insert("body".into(), quoted(each.word(1)))),
                "header_up" | "header_down" => {}
                "transport" => transport(backend, each, &mut notes),
                _ => notes.push((each.line, each.text(), "it is not known to this command: see whether it matters")),
            }
        }
        let has_probe = backend.health.contains_key("path") || backend.health.is_empty();
        if !has_probe {
            backend.health.clear();
        }
        notes.into_iter().for_each(|(line, text, fix)| self.plan.note(line, text, fix));
    }
}

fn hash(backend: &mut crate::plan::Backend, key: String) {
    backend.keys.insert("balance".into(), quoted("consistent-hash"));
    backend.keys.insert("hash".into(), format!("{{ key = {key} }}"));
}

fn transport(
    backend: &mut crate::plan::Backend,
    transport: &Directive,
    notes: &mut Vec<(usize, String, &'static str)>,
) {
    let root = transport.find("root").map_or("", |root| root.word(1));
    let is_said = transport.inner().iter().all(|each| ["root", "split"].contains(&each.name()));
    if transport.word(1) == "fastcgi" && is_said && root.starts_with('/') && !root.contains('{') {
        let split = transport.find("split").map(|each| format!(", split = {}", quoted(each.word(1))));
        let settings = format!("{{ root = {}, scripts = \"any\"{} }}", quoted(root), split.unwrap_or_default());
        backend.keys.insert("protocol".into(), quoted("fastcgi"));
        backend.keys.insert("fastcgi".into(), settings);
        return;
    }
    if transport.word(1) == "fastcgi" {
        notes.push((
            transport.line,
            transport.text(),
            "write protocol = \"fastcgi\" and `fastcgi` in its [backend.NAME]",
        ));
        return;
    } else if transport.word(1) != "http" {
        notes.push((transport.line, transport.text(), "this protocol is not spoken to servers"));
    }
    for each in transport.inner() {
        let time = || duration(each.word(1), 1000);
        let tls = &mut backend.tls;
        match each.name() {
            "tls" => drop(tls.get_or_insert_default()),
            "tls_insecure_skip_verify" => drop(tls.get_or_insert_default().insert("verify".into(), "false".into())),
            "tls_server_name" => drop(tls.get_or_insert_default().insert("server_name".into(), quoted(each.word(1)))),
            "tls_trusted_ca_certs" => {
                drop(tls.get_or_insert_default().insert("ca".into(), one_or_list(each.arguments())))
            }
            "dial_timeout" => time().into_iter().for_each(|time| drop(backend.timeouts.insert("connect".into(), time))),
            "response_header_timeout" => {
                time().into_iter().for_each(|time| drop(backend.timeouts.insert("first_byte".into(), time)));
            }
            "read_timeout" => time().into_iter().for_each(|time| drop(backend.timeouts.insert("body".into(), time))),
            "keepalive" => {
                time().into_iter().for_each(|time| drop(backend.timeouts.insert("idle".into(), time)));
            }
            "keepalive_idle_conns"
            | "compression"
            | "max_conns_per_host"
            | "write_timeout"
            | "read_buffer"
            | "write_buffer" => {}
            "versions" if each.arguments().iter().any(|version| version == "h2c") => {
                drop(backend.keys.insert("protocol".into(), quoted("h2")));
            }
            "versions" => {}
            _ => notes.push((each.line, each.text(), "it is not known to this command: see whether it matters")),
        }
    }
}
