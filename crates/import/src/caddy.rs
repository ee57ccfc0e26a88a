//! `Caddyfile`.

use std::collections::BTreeMap;

use crate::changes::Changes;
use crate::plan::{
    Action, CLOSED, Certificate, Keys, Note, Path, Plan, Route, Server, escaped, name_of, one_or_list, quoted,
    redirect, respond,
};
use crate::words::{Directive, End, directives, duration, with_port};

/// Snippets inside each other.
const IMPORT_DEPTH_MAX: usize = 8;
/// Directives after all snippets are put in.
const DIRECTIVES_MAX: usize = 20_000;

/// Directives that have no counterpart, and what to do.
const WITHOUT: &[(&str, &str)] = &[
    ("encode", "responses are compressed by the servers, or not at all"),
    ("header", "fields of responses are left to the servers: set it there"),
    ("rewrite", "paths are not rewritten: have the servers answer at the path that clients ask for"),
    ("uri", "paths are not rewritten: have the servers answer at the path that clients ask for"),
    ("request_body", "bodies have no limit of their size here: set it at the servers"),
    ("rate_limit", "rates are not limited per client here; [process] connections_per_source limits connections"),
    ("handle_errors", "Propylon's own answers have no pages"),
    ("error", "write `respond` in a route"),
    (
        "request_header",
        "fields of requests are made of facts about the client alone (`request_headers`): set it at the server",
    ),
    ("templates", "files are not served here"),
    ("push", "nothing is pushed"),
    ("metrics", "metrics are at /metrics of the admin address: add [admin]"),
    ("vars", "variables are not carried over: write what they stand for"),
    ("map", "variables are not carried over: write what they stand for"),
];

pub fn read(text: &str, plan: &mut Plan) -> Result<(), Note> {
    let all = directives(text, End::Line)?;
    let mut snippets = BTreeMap::new();
    let mut sites = Vec::new();
    let mut options = None;
    for directive in all {
        let name = directive.name();
        match name.strip_prefix('(').and_then(|name| name.strip_suffix(')')) {
            Some(name) => drop(snippets.insert(name.to_owned(), directive.block.unwrap_or_default())),
            None if name.is_empty() && options.is_none() => options = Some(directive),
            None => sites.push(directive),
        }
    }
    // A file of one site may have no braces at all.
    if let Some(first) = sites.first().filter(|first| first.block.is_none() && first.name() != "import") {
        let (line, words) = (first.line, first.words.clone());
        let rest = sites.split_off(1);
        sites = vec![Directive { line, words, block: Some(rest) }];
    }
    let mut reader =
        Reader { plan, snippets, is_https: true, matchers: BTreeMap::new(), count: 0, changes: Changes::default() };
    options.iter().for_each(|options| reader.options(options));
    for mut site in sites {
        if site.name() == "import" {
            reader.plan.note(site.line, site.text(), "import that file by itself");
            continue;
        }
        let block = reader.expanded(site.block.take().unwrap_or_default(), 0);
        site.block = Some(block);
        reader.site(&site);
    }
    match reader.plan.listeners.is_empty() {
        true => Err(Note::new(1, "the file", "no site is in it; is it a Caddyfile?")),
        false => Ok(()),
    }
}

struct Reader<'p> {
    plan: &'p mut Plan,
    snippets: BTreeMap<String, Vec<Directive>>,
    /// Whether certificates are ordered, and plaintext is redirected.
    is_https: bool,
    /// Named matchers of the site at hand.
    matchers: BTreeMap<String, Vec<Directive>>,
    count: usize,
    /// Of the block at hand.
    changes: Changes,
}

/// Requests that a matcher asks for.
#[derive(Clone, Debug)]
struct Matched {
    host: Option<String>,
    path: Path,
    conditions: BTreeMap<(String, String), String>,
}

impl Matched {
    fn all() -> Matched {
        Matched { host: None, path: Path::Prefix("/".into()), conditions: BTreeMap::new() }
    }

    fn with(self, kind: &str, name: &str, value: String) -> Matched {
        let mut conditions = self.conditions;
        conditions.insert((kind.to_owned(), name.to_owned()), value);
        Matched { conditions, ..self }
    }
}

/// Listener and host of a site.
struct Site {
    listener: String,
    host: Option<String>,
}

impl Reader<'_> {
    fn options(&mut self, options: &Directive) {
        let mut contact = None;
        for each in options.inner() {
            match each.name() {
                "email" => contact = Some(each.word(1).to_owned()),
                "auto_https" if each.word(1).starts_with("off") => self.is_https = false,
                "admin" | "log" | "order" | "storage" | "grace_period" | "persist_config" | "debug" => {}
                "acme_ca" => self.plan.note(each.line, each.text(), "write it as `directory` of [acme.letsencrypt]"),
                _ => self.plan.note(each.line, each.text(), "it is not known to this command: see whether it matters"),
            }
        }
        if contact.is_some() {
            // Whether anything is ordered is seen later.
            self.plan.acme = Some(contact);
        }
    }

    /// A block with snippets in place of their imports.
    fn expanded(&mut self, block: Vec<Directive>, depth: usize) -> Vec<Directive> {
        let mut out = Vec::new();
        for mut each in block {
            self.count += 1;
            if self.count > DIRECTIVES_MAX {
                return out;
            }
            if each.name() != "import" {
                each.block = each.block.map(|inner| self.expanded(inner, depth));
                out.push(each);
                continue;
            }
            match self.snippets.get(each.word(1)).cloned() {
                Some(snippet) if depth < IMPORT_DEPTH_MAX => {
                    let arguments = each.words.get(2..).unwrap_or_default();
                    let snippet = snippet.into_iter().map(|one| with_arguments(one, arguments)).collect();
                    out.extend(self.expanded(snippet, depth + 1));
                }
                _ => self.plan.note(
                    each.line,
                    each.text(),
                    "there is no snippet of this name here: import that file by itself",
                ),
            }
        }
        out
    }

    fn site(&mut self, site: &Directive) {
        self.matchers = BTreeMap::new();
        for each in site.inner().iter().filter(|each| each.name().starts_with('@')) {
            let tests = match each.block.clone() {
                Some(block) => block,
                None => vec![Directive { line: each.line, words: each.arguments().to_vec(), block: None }],
            };
            self.matchers.insert(each.name().to_owned(), tests);
        }
        let addresses: Vec<String> = site
            .words
            .iter()
            .flat_map(|word| word.split(','))
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect();
        let mut sites = Vec::new();
        for address in &addresses {
            match self.address(site, address) {
                Some(place) => sites.push(place),
                None => self.plan.note(
                    site.line,
                    address.clone(),
                    "it is no host with or without a port: write a listener for it",
                ),
            }
        }
        let tls = site.find("tls");
        for place in &sites {
            self.certificate(place, tls);
        }
        self.block(&sites, site.inner(), &[Matched::all()]);
    }

    fn address(&mut self, site: &Directive, address: &str) -> Option<Site> {
        let (scheme, rest) = match address.split_once("://") {
            Some((scheme @ ("http" | "https"), rest)) => (Some(scheme), rest),
            Some(_) => return None,
            None => (None, address),
        };
        let rest = rest.trim_end_matches('/');
        if rest.contains(['/', '{']) {
            return None;
        }
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse::<u16>().ok()?)),
            None => (rest, None),
        };
        let is_name = !host.is_empty();
        // A certificate is had for names; a port alone is plaintext, unless there is a `tls`.
        let has_tls = site.find("tls").is_some();
        let is_tls = match scheme {
            Some(scheme) => scheme == "https",
            None => has_tls || self.is_https && is_name && port != Some(80),
        };
        let port = port.unwrap_or(if is_tls { 443 } else { 80 });
        let binds: Vec<String> = match site.find("bind") {
            Some(bind) => bind.arguments().iter().map(|address| format!("{address}:{port}")).collect(),
            None => vec![format!("0.0.0.0:{port}"), format!("[::]:{port}")],
        };
        let mut name = String::new();
        for bind in &binds {
            name.clone_from(&self.plan.listener(bind, is_tls).name);
        }
        let host = is_name.then(|| host.to_ascii_lowercase());
        if is_tls && port == 443 && scheme.is_none() && self.is_https {
            self.redirects_to_https(site.line, host.as_deref());
        }
        Some(Site { listener: name, host })
    }

    /// Caddy sends plaintext requests for its names to https.
    fn redirects_to_https(&mut self, line: usize, host: Option<&str>) {
        let listener = {
            self.plan.listener("0.0.0.0:80", false);
            self.plan.listener("[::]:80", false).name.clone()
        };
        let action = Action::Redirect(vec![("status".into(), "308".into()), ("scheme".into(), quoted("https"))]);
        let host = host.map(str::to_owned);
        let (path, conditions) = (Path::Prefix("/".into()), BTreeMap::new());
        let changes = Changes::default();
        self.plan.route(Route { line, listener, host, path, conditions, requires_certificate: false, action, changes });
    }

    fn certificate(&mut self, place: &Site, tls: Option<&Directive>) {
        let Some(index) = self.plan.listeners.iter().position(|each| each.name == place.listener && each.is_tls) else {
            return;
        };
        let certificate = match tls.map_or(&[][..], Directive::arguments) {
            [chain, key] if chain == key => Some(Certificate::Path(chain.clone())),
            [chain, key] => Some(Certificate::Pair { chain: chain.clone(), key: key.clone() }),
            [word] if word == "internal" => {
                let line = tls.map_or(1, |each| each.line);
                let fix = "Propylon makes no certificates: name the files of one as `certificates` of its [tls.NAME]";
                self.plan.note(line, "tls internal", fix);
                None
            }
            word => {
                let contact = word.first().filter(|word| word.contains('@')).cloned();
                let known = self.plan.acme.take().flatten();
                self.plan.acme = Some(known.or(contact));
                match place.host.as_deref() {
                    Some(host) if host.starts_with("*.") => {
                        let line = tls.map_or(1, |each| each.line);
                        let fix = "certificates for wildcards are not ordered (that takes DNS): name the files of one as `certificates` of its [tls.NAME]";
                        self.plan.note(line, host, fix);
                        None
                    }
                    Some(host) => Some(Certificate::Ordered(host.to_owned())),
                    None => None,
                }
            }
        };
        for each in tls.map_or(&[][..], Directive::inner) {
            match (each.name(), each.word(1)) {
                ("protocols", "tls1.3") => self.plan.listeners[index].policy = Some("modern"),
                ("protocols", _) => {}
                ("client_auth", _) => self.client_auth(index, each),
                _ => self.plan.note(each.line, each.text(), "see what [tls.NAME] and [acme.NAME] have for it"),
            }
        }
        let listener = &mut self.plan.listeners[index];
        if let Some(certificate) = certificate.filter(|certificate| !listener.certificates.contains(certificate)) {
            listener.certificates.push(certificate);
        }
    }

    fn client_auth(&mut self, index: usize, each: &Directive) {
        let ca = each.inner().iter().find_map(|inner| match inner.name() {
            "trusted_ca_cert_file" => Some(inner.word(1)),
            "trust_pool" => inner.find("pem_file").map(|file| file.word(1)).or(Some(inner.word(2))),
            _ => None,
        });
        let Some(ca) = ca.filter(|ca| !ca.is_empty()) else {
            self.plan.note(each.line, each.text(), "write client_auth = { ca = \"PATH\" } in [tls.NAME]");
            return;
        };
        let auth = &mut self.plan.listeners[index].client_auth;
        auth.insert("ca".into(), quoted(ca));
        if each.find("mode").is_some_and(|mode| mode.word(1) == "verify_if_given") {
            auth.insert("mode".into(), quoted("optional"));
        }
    }

    /// Directives of a site, or of a `handle` in it, which are for what matches.
    fn block(&mut self, sites: &[Site], block: &[Directive], outer: &[Matched]) {
        // Guards go before the directives that they guard.
        let guards = |each: &&Directive| ["basic_auth", "basicauth", "forward_auth"].contains(&each.name());
        let (first, rest): (Vec<&Directive>, Vec<&Directive>) = block.iter().partition(guards);
        for each in first.into_iter().chain(rest) {
            let known = WITHOUT.iter().find(|(name, _)| *name == each.name());
            match each.name() {
                name if name.starts_with('@') => {}
                "tls" | "bind" | "log" | "log_skip" | "skip_log" | "log_append" | "root" | "try_files" | "import" => {}
                "handle" | "handle_path" | "route" => self.handle(sites, each, outer),
                "reverse_proxy" => self.proxied(sites, each, outer),
                "redir" => self.redirect(sites, each, outer),
                "respond" => self.respond(sites, each, outer),
                "basic_auth" | "basicauth" | "forward_auth" => self.guard(sites, each, outer),
                "abort" => {
                    if let Some((matched, _)) = self.matched_at_least(each, outer) {
                        self.add(sites, each.line, &matched, &respond(403, ""));
                    }
                }
                "file_server" | "php_fastcgi" => {
                    let why = if each.name() == "php_fastcgi" {
                        "this protocol is not spoken to servers"
                    } else {
                        "files are not served here"
                    };
                    let Some((matched, _)) = self.matched(each, outer) else { continue };
                    let action = self.plan.files(each.line, &each.text(), "Caddy", why);
                    self.add(sites, each.line, &matched, &action);
                }
                _ => match known {
                    Some((_, fix)) => self.plan.note(each.line, each.text(), *fix),
                    None => self.plan.note(
                        each.line,
                        each.text(),
                        "it is not known to this command: see whether it matters",
                    ),
                },
            }
        }
    }

    fn handle(&mut self, sites: &[Site], each: &Directive, outer: &[Matched]) {
        let Some((matched, _)) = self.matched(each, outer) else { return };
        if each.name() == "handle_path" {
            let fix = "servers get the path as clients ask for it, with this prefix in it: have them answer there";
            self.plan.note(each.line, each.text(), fix);
        }
        self.block(sites, each.inner(), &matched);
    }

    /// Something that lets only some in: nobody, since who they are is not asked here.
    fn guard(&mut self, sites: &[Site], each: &Directive, outer: &[Matched]) {
        let Some((matched, _)) = self.matched_at_least(each, outer) else { return };
        let fix = format!("nobody is asked here: have the servers ask, and lead the route to them; {CLOSED}");
        self.plan.note(each.line, each.text(), fix);
        self.add(sites, each.line, &matched, &respond(403, ""));
    }

    /// As `matched`, and where a test is not carried over what is left of the tests, which match more.
    fn matched_at_least(&mut self, each: &Directive, outer: &[Matched]) -> Option<(Vec<Matched>, usize)> {
        let notes = self.plan.notes.len();
        if let Some(found) = self.matched(each, outer) {
            return Some(found);
        }
        let tests = self.matchers.get(each.word(1)).cloned().unwrap_or_default();
        let tests: Vec<Directive> =
            tests.into_iter().filter(|test| tested(std::slice::from_ref(test)).is_ok()).collect();
        let own = tested(&tests).ok().filter(|_| !tests.is_empty())?;
        self.plan.notes.truncate(notes);
        self.plan.note(
            each.line,
            each.text(),
            "it holds for more requests than before: add routes for those that it is not for",
        );
        Some((outer.iter().flat_map(|one| own.iter().map(move |two| joined(one, two))).collect(), 2))
    }

    /// Requests that a directive is for, and how many of its words say so; none where that cannot be said.
    fn matched(&mut self, each: &Directive, outer: &[Matched]) -> Option<(Vec<Matched>, usize)> {
        let word = each.word(1);
        let own = match word {
            "*" => return Some((outer.to_vec(), 2)),
            _ if word.starts_with('/') => vec![Matched { path: path(word), ..Matched::all() }],
            _ if word.starts_with('@') => {
                let tests = self.matchers.get(word).cloned().unwrap_or_default();
                match tests
                    .is_empty()
                    .then_some("it is not there")
                    .map_or_else(|| tested(&tests), |what| Err(what.to_owned()))
                {
                    Ok(own) => own,
                    Err(what) => {
                        let fix =
                            format!("{word}: {what} is not carried over: write a route with host, path and `match`");
                        self.plan.note(each.line, each.text(), fix);
                        return None;
                    }
                }
            }
            _ => return Some((outer.to_vec(), 1)),
        };
        let both: Vec<Matched> = outer.iter().flat_map(|one| own.iter().map(move |two| joined(one, two))).collect();
        Some((both, 2))
    }

    fn redirect(&mut self, sites: &[Site], each: &Directive, outer: &[Matched]) {
        let Some((matched, from)) = self.matched(each, outer) else { return };
        let status = match each.word(from + 1) {
            "permanent" => 301,
            "" | "temporary" => 302,
            word => word.parse().unwrap_or(0),
        };
        let keys = redirect(
            each.word(from),
            &["{host}", "{http.request.host}"],
            &["{uri}", "{http.request.uri}", "{path}"],
            status,
        );
        match keys.filter(|_| [301, 302, 303, 307, 308].contains(&status)) {
            Some(keys) => self.add(sites, each.line, &matched, &Action::Redirect(keys)),
            None => self.plan.note(each.line, each.text(), "write a route with `redirect`: host, path, scheme, port"),
        }
    }

    fn respond(&mut self, sites: &[Site], each: &Directive, outer: &[Matched]) {
        let denies = each.words.iter().any(|word| ["401", "403", "404"].contains(&word.as_str()));
        let found = if denies { self.matched_at_least(each, outer) } else { self.matched(each, outer) };
        let Some((matched, from)) = found else { return };
        let (body, status) = match (each.word(from), each.word(from + 1)) {
            (word, "") if word.parse::<u16>().is_ok() => ("", word.parse().unwrap_or(200)),
            (body, "") => (body, 200),
            (body, status) => (body, status.parse().unwrap_or(0)),
        };
        match (200..600).contains(&status) && !body.contains('{') {
            true => self.add(sites, each.line, &matched, &respond(status, body)),
            false => {
                self.plan.note(each.line, each.text(), "write `respond` with a status and a fixed body in a route")
            }
        }
    }

    fn proxied(&mut self, sites: &[Site], each: &Directive, outer: &[Matched]) {
        let Some((matched, from)) = self.matched(each, outer) else { return };
        let mut targets: Vec<String> = each.words.get(from..).unwrap_or_default().to_vec();
        targets.extend(
            each.inner().iter().filter(|inner| inner.name() == "to").flat_map(|inner| inner.arguments().to_vec()),
        );
        let mut servers = Vec::new();
        let mut is_tls = false;
        for target in &targets {
            let (scheme, address) = target.split_once("://").unwrap_or(("http", target));
            if ["http", "https", "h2c"].contains(&scheme) && !address.starts_with('/') && !address.contains('{') {
                is_tls |= scheme == "https";
                let address = address.trim_end_matches('/');
                let address = if address.starts_with(':') { format!("127.0.0.1{address}") } else { address.to_owned() };
                let address = with_port(&address, if scheme == "https" { "443" } else { "80" });
                servers.push(Server { address, keys: Keys::new() });
            } else {
                self.plan.note(each.line, target.clone(), "servers have an address with port: write HOST:PORT");
            }
        }
        let Some(first) = servers.first() else {
            if targets.is_empty() {
                self.plan.note(each.line, each.text(), "it names no servers: write a [backend.NAME] and a route to it");
            }
            return;
        };
        let name = self.name(&first.address, &servers, each);
        let backend = self.plan.backend(&name, each.line);
        if backend.servers.is_empty() {
            backend.servers = servers;
            if is_tls {
                backend.tls = Some(BTreeMap::new());
            }
            self.options_of_proxy(&name, each);
        }
        self.add(sites, each.line, &matched, &Action::Backend(name));
    }

    /// A backend's name: of its server, or of that and the line if there is another one with that server.
    fn name(&self, first: &str, servers: &[Server], each: &Directive) -> String {
        let name = name_of(first.trim_start_matches("127.0.0.1:").trim_start_matches("localhost:"));
        let name = if name.bytes().all(|byte| byte.is_ascii_digit()) { format!("app-{name}") } else { name };
        let known = self.plan.backends.iter().find(|backend| backend.name == name);
        match known {
            Some(known) if known.servers != servers || each.block.is_some() => format!("{name}-{}", each.line),
            _ => name,
        }
    }

    fn options_of_proxy(&mut self, name: &str, proxy: &Directive) {
        let mut notes: Vec<(usize, String, &str)> = Vec::new();
        let backend = self.plan.backend(name, proxy.line);
        for each in proxy.inner() {
            let time = || duration(each.word(1), 1000);
            match each.name() {
                "to" | "flush_interval" | "lb_retries" | "lb_try_duration" | "lb_try_interval" | "stream_timeout" => {}
                "fail_duration" | "max_fails" | "unhealthy_status" | "unhealthy_latency" | "stream_close_delay" => {
                    if each.name() == "fail_duration" {
                        backend.keys.insert("outlier".into(), "{}".into());
                    }
                }
                "lb_policy" => match each.word(1) {
                    "round_robin" => {}
                    "random" => drop(backend.keys.insert("balance".into(), quoted("random"))),
                    "first" => drop(backend.keys.insert("balance".into(), quoted("first"))),
                    "least_conn" | "random_choose" => drop(backend.keys.insert("balance".into(), quoted("least-connections"))),
                    "ip_hash" | "client_ip_hash" => drop(backend.keys.insert("balance".into(), quoted("consistent-hash"))),
                    "uri_hash" => hash(backend, quoted("path")),
                    "header" => hash(backend, format!("{{ header = {} }}", quoted(each.word(2)))),
                    "cookie" => {
                        let cookie = if each.word(2).is_empty() { "lb" } else { each.word(2) };
                        backend.keys.insert("sticky".into(), format!("{{ cookie = {} }}", quoted(cookie)));
                    }
                    _ => notes.push((each.line, each.text(), "see `balance` of a backend")),
                },
                "health_uri" | "health_path" => drop(backend.health.insert("path".into(), quoted(each.word(1)))),
                "health_interval" => time().into_iter().for_each(|time| drop(backend.health.insert("interval".into(), time))),
                "health_timeout" => time().into_iter().for_each(|time| drop(backend.health.insert("timeout".into(), time))),
                "health_port" => drop(backend.health.insert("port".into(), each.word(1).to_owned())),
                "health_status" => {
                    let status = each.word(1);
                    let status = status.strip_suffix("xx").map_or(status.to_owned(), |class| format!("{class}00-{class}99"));
                    backend.health.insert("status".into(), quoted(&status));
                }
                "health_body" => drop(backend.health.insert("body".into(), quoted(each.word(1)))),
                "header_up" => match (each.word(1).to_ascii_lowercase().as_str(), each.word(2)) {
                    ("host", "{host}" | "{http.request.host}") => {}
                    ("host", "{upstream_hostport}" | "{http.reverse_proxy.upstream.hostport}") => {
                        notes.push((each.line, each.text(), "servers get the Host that clients send"));
                    }
                    (field, "{remote_host}" | "{remote}" | "{client_ip}" | "{http.request.remote.host}") if !field.starts_with("x-forwarded") => {
                        notes.push((each.line, each.text(), "write request_headers = { \"X-Real-IP\" = \"{client.ip}\" } in the listener"));
                    }
                    (field, _) if field.starts_with("x-forwarded") => {}
                    _ => notes.push((each.line, each.text(), "fields of requests are made of facts about the client alone (`request_headers`): set it at the server")),
                },
                "header_down" => notes.push((each.line, each.text(), "fields of responses are left to the servers: set it there")),
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

    fn add(&mut self, sites: &[Site], line: usize, matched: &[Matched], action: &Action) {
        for site in sites {
            for each in matched {
                let host = match (&site.host, &each.host) {
                    (Some(own), Some(asked)) if !host_is_within(asked, own) => continue,
                    (own, asked) => asked.clone().or_else(|| own.clone()),
                };
                self.plan.route(Route {
                    line,
                    listener: site.listener.clone(),
                    host,
                    path: each.path.clone(),
                    conditions: each.conditions.clone(),
                    requires_certificate: false,
                    action: action.clone(),
                    changes: self.changes.clone(),
                });
            }
        }
    }
}

fn host_is_within(host: &str, pattern: &str) -> bool {
    host == pattern || pattern.strip_prefix('*').is_some_and(|suffix| host.ends_with(suffix))
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
    if transport.word(1) != "http" {
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
            "versions" => {}
            _ => notes.push((each.line, each.text(), "it is not known to this command: see whether it matters")),
        }
    }
}

/// A path of a matcher: `/api/*` is a prefix, `/x` that path, `*.php` an ending.
fn path(word: &str) -> Path {
    match word.strip_suffix('*') {
        Some(prefix) if !prefix.contains('*') && prefix.starts_with('/') => Path::Prefix(prefix.to_owned()),
        None if !word.contains('*') => Path::Exact(word.to_owned()),
        _ => {
            let parts: Vec<String> = word.split('*').map(escaped).collect();
            Path::Regex(format!("^{}$", parts.join(".*")))
        }
    }
}

/// Both of two matchers; of two paths that of the inner one.
fn joined(one: &Matched, two: &Matched) -> Matched {
    let path = if two.path == Path::Prefix("/".into()) { one.path.clone() } else { two.path.clone() };
    let mut conditions = one.conditions.clone();
    conditions.extend(two.conditions.clone());
    Matched { host: two.host.clone().or_else(|| one.host.clone()), path, conditions }
}

/// Alternatives of a named matcher; else which of its tests has none.
fn tested(tests: &[Directive]) -> Result<Vec<Matched>, String> {
    let mut all = vec![Matched::all()];
    for test in tests {
        let arguments = test.arguments();
        let each = |make: &dyn Fn(&String) -> Matched| arguments.iter().map(make).collect::<Vec<Matched>>();
        let own = match test.name() {
            "path" => each(&|word| Matched { path: path(word), ..Matched::all() }),
            "path_regexp" => {
                let pattern = arguments.last().cloned().unwrap_or_default();
                vec![Matched { path: Path::Regex(pattern), ..Matched::all() }]
            }
            "host" => each(&|word| Matched { host: Some(word.to_ascii_lowercase()), ..Matched::all() }),
            "method" => vec![Matched::all().with("method", "", one_or_list(arguments))],
            "remote_ip" | "client_ip" if !arguments.iter().any(|word| word == "forwarded") => {
                let networks = arguments.iter().flat_map(|word| match word.as_str() {
                    "private_ranges" => {
                        ["192.168.0.0/16", "172.16.0.0/12", "10.0.0.0/8", "127.0.0.1/8", "fd00::/8", "::1"]
                            .map(str::to_owned)
                            .to_vec()
                    }
                    word => vec![word.to_owned()],
                });
                vec![Matched::all().with("source", "", one_or_list(&networks.collect::<Vec<String>>()))]
            }
            "header" if !test.word(1).starts_with('!') => {
                vec![Matched::all().with("header", test.word(1), text_test(test.word(2)))]
            }
            "query" => each(&|word| {
                let (name, value) = word.split_once('=').unwrap_or((word, "*"));
                Matched::all().with("query", name, text_test(value))
            }),
            _ => return Err(format!("\"{}\"", test.text())),
        };
        all = all.iter().flat_map(|one| own.iter().map(move |two| joined(one, two))).collect();
        if all.len() > crate::plan::ALTERNATIVES_MAX {
            return Err("so many alternatives".into());
        }
    }
    Ok(all)
}

/// `x`, `x*`, `*`.
fn text_test(word: &str) -> String {
    match word.strip_suffix('*') {
        Some("") => "{ present = true }".into(),
        None if word.is_empty() => "{ present = true }".into(),
        Some(prefix) if !prefix.contains('*') => format!("{{ prefix = {} }}", quoted(prefix)),
        _ if word.contains('*') => {
            let parts: Vec<String> = word.split('*').map(escaped).collect();
            format!("{{ regex = {} }}", quoted(&format!("^{}$", parts.join(".*"))))
        }
        _ => quoted(word),
    }
}

/// A directive of a snippet, with the arguments of its import.
fn with_arguments(mut directive: Directive, arguments: &[String]) -> Directive {
    if let Some(index) = directive.words.iter().position(|word| word == "{args[:]}") {
        directive.words.splice(index..=index, arguments.iter().cloned());
    }
    for word in &mut directive.words {
        for (index, argument) in arguments.iter().enumerate() {
            *word =
                word.replace(&format!("{{args[{index}]}}"), argument).replace(&format!("{{args.{index}}}"), argument);
        }
    }
    directive.block =
        directive.block.map(|block| block.into_iter().map(|each| with_arguments(each, arguments)).collect());
    directive
}
