//! `Caddyfile`.

use std::collections::BTreeMap;

use crate::changes::{Changes, Compress, Kind, Side, with_facts};
use crate::guards::{Guard, Guarded};
use crate::plan::{
    Action, CLOSED, Certificate, Keys, Note, Path, Plan, Route, Server, escaped, name_of, one_or_list, quoted,
    redirect, respond,
};
use crate::terms::Term;
use crate::words::{Directive, End, directives, duration, unix_socket, with_port};

/// Snippets inside each other.
const IMPORT_DEPTH_MAX: usize = 8;
/// Directives after all snippets are put in.
const DIRECTIVES_MAX: usize = 20_000;

/// Directives that have no counterpart, and what to do.
const WITHOUT: &[(&str, &str)] = &[
    ("rate_limit", "rates are not carried over: write `limit = { rate = ... }` in its routes"),
    ("error", "write `respond` in a route"),
    ("handle_errors", "pages are not carried over: write `error_pages` in the listener or in its routes"),
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
    /// Changes of the block at hand.
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
        let changes = self.changes.clone();
        block.iter().for_each(|each| self.change(each));
        let is_auth = |each: &&Directive| ["basic_auth", "basicauth", "forward_auth"].contains(&each.name());
        let auths: Vec<Guard> = block.iter().filter(is_auth).flat_map(|each| self.guards(each, outer)).collect();
        let denials: Vec<Guard> =
            block.iter().filter(|each| denies(each)).flat_map(|each| self.guards(each, outer)).collect();
        // The order of Caddy: who may come in, then blocks, then what keeps out, then the rest.
        let is_block = |each: &&Directive| ["handle", "handle_path", "route"].contains(&each.name());
        let first = self.plan.routes.len();
        self.directives(sites, block.iter().filter(is_block), outer);
        let behind = self.plan.routes.len();
        self.directives(sites, block.iter().filter(|each| !is_block(each) && !denies(each)), outer);
        self.guard(sites, behind, &denials);
        self.guard(sites, first, &auths);
        self.changes = changes;
    }

    fn directives<'d>(&mut self, sites: &[Site], all: impl Iterator<Item = &'d Directive>, outer: &[Matched]) {
        for each in all {
            let known = WITHOUT.iter().find(|(name, _)| *name == each.name());
            match each.name() {
                name if name.starts_with('@') => {}
                "tls" | "bind" | "log" | "log_skip" | "skip_log" | "log_append" | "root" | "try_files" | "import" => {}
                "handle" | "handle_path" | "route" => self.handle(sites, each, outer),
                "reverse_proxy" => self.proxied(sites, each, outer),
                "redir" => self.redirect(sites, each, outer),
                "respond" => self.respond(sites, each, outer),
                "basic_auth" | "basicauth" | "forward_auth" => {}
                name if CHANGES.contains(&name) => {}
                "file_server" | "php_fastcgi" => {
                    let why = if each.name() == "php_fastcgi" {
                        "scripts beside files are two routes: write a [backend.NAME] with protocol = \"fastcgi\", and one for the files"
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

    /// Changes that a directive without a matcher makes for its block.
    fn change(&mut self, each: &Directive) {
        if !CHANGES.contains(&each.name()) {
            return;
        }
        let is_of_fields = ["header", "request_header"].contains(&each.name());
        if let (true, Some(inner)) = (is_of_fields && each.words.len() == 1, &each.block) {
            for line in inner.iter().filter(|line| line.name() != "defer") {
                let words = [&each.words[..1], &line.words].concat();
                self.change(&Directive { line: line.line, words, block: None });
            }
            return;
        }
        let key = match each.name() {
            "header" => "response",
            "encode" => "compress",
            "request_body" => "body_limit",
            _ => "request",
        };
        let is_of_some = each.word(1).starts_with(['/', '@']) && each.name() != "request_body";
        let from = if each.word(1) == "*" { 2 } else { 1 };
        let words = each.words.get(from..).unwrap_or_default();
        let mut trial = self.changes.clone();
        let done = if is_of_some {
            Err("a change for some requests is not carried over".into())
        } else {
            changed(each, words, &mut trial)
        };
        if done.is_ok() {
            self.changes = trial;
            return;
        }
        let what = done.err().unwrap_or_default();
        let is_set = each.name() == "request_header" && words.len() == 2 && !is_of_some;
        let rest = if is_set { self.changes.withhold(&words[0]) } else { "" };
        self.plan.note(each.line, each.text(), format!("{what}; write `{key}` in the routes that it is for{rest}"));
    }

    fn handle(&mut self, sites: &[Site], each: &Directive, outer: &[Matched]) {
        let Some((matched, _)) = self.matched(each, outer) else { return };
        let changes = self.changes.clone();
        if each.name() == "handle_path" {
            let prefix = each.word(1).trim_end_matches('*').trim_end_matches('/');
            if !prefix.starts_with('/') || self.changes.path("strip", prefix).is_err() {
                self.plan.note(
                    each.line,
                    each.text(),
                    "write what becomes of the path as `request.path` of its routes",
                );
            }
        }
        self.block(sites, each.inner(), &matched);
        self.changes = changes;
    }

    /// Lays guards over the routes from the given one on; without any they have routes of their own.
    fn guard(&mut self, sites: &[Site], first: usize, guards: &[Guard]) {
        let routes = self.plan.routes.split_off(first);
        let tls: BTreeMap<String, bool> =
            self.plan.listeners.iter().map(|each| (each.name.clone(), each.is_tls)).collect();
        let mut guarded = Guarded { guards, tls: &tls, routes: Vec::new(), wider: Vec::new() };
        let all: Vec<usize> = (0..guards.len()).collect();
        for route in routes {
            match route.action {
                Action::Redirect(_) => guarded.routes.push(route),
                _ => guarded.add(route, &all),
            }
        }
        let Guarded { routes, mut wider, .. } = guarded;
        wider.dedup();
        for line in wider {
            self.plan.note(line, "a rule that keeps requests out", WIDER);
        }
        let notes = self.plan.notes.len();
        routes.into_iter().for_each(|route| self.plan.route(route));
        // Requests that no other route is for are kept out as well.
        for guard in guards.iter().filter(|guard| guard.except.is_empty()) {
            let path = guard.of.path.clone().unwrap_or(Path::Prefix("/".into()));
            let matched = Matched { host: guard.of.host.clone(), path, conditions: guard.of.conditions.clone() };
            self.add(sites, guard.line, &[matched], &guard.action);
        }
        self.plan.notes.truncate(notes);
    }

    /// Requests that a directive keeps out. Of tests that are not carried over the rest holds, so that nobody gets in who did
    /// not before.
    fn guards(&mut self, each: &Directive, outer: &[Matched]) -> Vec<Guard> {
        let is_auth = !denies(each);
        let (mut own, mut except, mut is_wider) = (vec![Matched::all()], Vec::new(), false);
        let word = each.word(1);
        let mut is_known = is_auth || !word.starts_with('@');
        if word.starts_with('/') {
            own = vec![Matched { path: path(word), ..Matched::all() }];
        }
        for test in self.matchers.get(word).cloned().unwrap_or_default() {
            if test.name() == "not" {
                is_known = true;
                let inline = [Directive { line: test.line, words: test.arguments().to_vec(), block: None }];
                match tested(test.block.as_deref().unwrap_or(&inline)) {
                    Ok(found) => except.extend(found),
                    Err(_) => is_wider = true,
                }
                continue;
            }
            match tested(std::slice::from_ref(&test)) {
                Ok(found) => {
                    is_known = true;
                    own = own.iter().flat_map(|one| found.iter().map(move |two| joined(one, two))).collect();
                }
                Err(_) => is_wider = true,
            }
        }
        if is_auth {
            let fix = format!(
                "who may come in is not carried over: write `auth` in the route, with `basic` or `jwt`; {CLOSED}"
            );
            self.plan.note(each.line, each.text(), fix);
        } else if !is_known {
            let fix = format!("{word} is not carried over: write a route with host, path and `match`");
            self.plan.note(each.line, each.text(), fix);
            return Vec::new();
        } else if is_wider {
            self.plan.note(each.line, each.text(), WIDER);
        }
        let action = if is_auth { respond(403, "") } else { denial(each) };
        let both = outer.iter().flat_map(|one| own.iter().map(move |two| joined(one, two)));
        let except: Vec<Term> = except.iter().map(|one| term(one, false)).collect();
        let guard = |matched: Matched| Guard {
            line: each.line,
            from: if is_auth { 0 } else { each.line },
            of: term(&matched, true),
            except: except.clone(),
            action: action.clone(),
            is_whole: true,
        };
        both.map(guard).collect()
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
        let Some((matched, from)) = self.matched(each, outer) else { return };
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
            if let Some(address) = unix_socket(target).filter(|_| target.starts_with("unix")) {
                servers.push(Server { address, keys: Keys::new() });
            } else if ["http", "https", "h2c"].contains(&scheme) && !address.starts_with('/') && !address.contains('{')
            {
                is_tls |= scheme == "https";
                let address = address.trim_end_matches('/');
                let address = if address.starts_with(':') { format!("127.0.0.1{address}") } else { address.to_owned() };
                let address = with_port(&address, if scheme == "https" { "443" } else { "80" });
                servers.push(Server { address, keys: Keys::new() });
            } else {
                self.plan.note(each.line, target.clone(), "write the server as HOST:PORT or unix:PATH");
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

/// Words for a guard that holds for more than it did.
const WIDER: &str = "it holds for more requests than before: add routes for those that it is not for";

/// Whether a directive keeps requests out.
fn denies(each: &Directive) -> bool {
    let has_status = || each.words.iter().any(|word| ["401", "403", "404"].contains(&word.as_str()));
    match each.name() {
        "abort" => true,
        "error" | "respond" => has_status(),
        _ => false,
    }
}

/// The answer of a directive that keeps requests out.
fn denial(each: &Directive) -> Action {
    let from = if each.word(1).starts_with(['/', '@', '*']) { 2 } else { 1 };
    let status = each.words.iter().rev().find_map(|word| word.parse().ok()).unwrap_or(403);
    let body = each.word(from);
    let has_body = each.name() == "respond" && body.parse::<u16>().is_err() && !body.contains('{');
    respond(status, if has_body { body } else { "" })
}

fn term(matched: &Matched, ignores_case: bool) -> Term {
    let path = Some(matched.path.clone()).filter(|path| *path != Path::Prefix("/".into()));
    let (host, conditions) = (matched.host.clone(), matched.conditions.clone());
    // Caddy compares paths without case.
    Term { host, path, is_tls: None, ignores_case, conditions }
}

/// Directives that change, limit or compress what goes through.
const CHANGES: &[&str] = &["header", "request_header", "encode", "request_body", "uri", "rewrite"];

/// A value with Caddy's placeholders, where there are facts for them.
fn value(text: &str) -> Option<String> {
    const FACTS: &[(&str, &str)] = &[
        ("{remote_host}", "{client.ip}"),
        ("{http.request.remote.host}", "{client.ip}"),
        ("{client_ip}", "{request.source}"),
        ("{remote_port}", "{client.port}"),
        ("{host}", "{request.host}"),
        ("{method}", "{request.method}"),
        ("{scheme}", "{request.scheme}"),
        ("{path}", "{request.path}"),
        ("{uri}", "{request.path}{request.query}"),
        ("{upstream_hostport}", "{upstream.server}"),
        ("{http.reverse_proxy.upstream.hostport}", "{upstream.server}"),
    ];
    with_facts(text, '{', FACTS)
}

/// A change of a field: `NAME VALUE`, `+NAME VALUE`, `-NAME`.
fn field(words: &[String], side: Side, changes: &mut Changes) -> Result<(), String> {
    let name = words.first().map_or("", String::as_str);
    let value = || {
        let text = words.get(1).map_or("", String::as_str);
        value(text).ok_or("its value is made of what is no fact here".to_owned())
    };
    match (name.chars().next(), words.len()) {
        (Some('-'), 1) => changes.field((side, Kind::Remove), &name[1..], ""),
        (Some('+'), 2) => changes.line(side, &name[1..], &value()?),
        (Some('>'), 2) => changes.field((side, Kind::Set), &name[1..], &value()?),
        (Some('?'), _) | (_, 0 | 1) => Err("a change of this kind is not carried over".into()),
        (Some(_), 2) if name.eq_ignore_ascii_case("host") && side == Side::Request => match words[1].as_str() {
            "{host}" | "{http.request.host}" => Ok(()),
            host => changes.host(&value().unwrap_or(host.to_owned())),
        },
        (Some(_), 2) => changes.field((side, Kind::Set), name, &value()?),
        _ => Err("a change of this kind is not carried over".into()),
    }
}

/// Bytes, with the units of Caddy.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1000,
        "kib" => 1 << 10,
        "m" | "mb" => 1_000_000,
        "mib" => 1 << 20,
        "g" | "gb" => 1_000_000_000,
        "gib" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// Makes the change of a directive, of which these words are behind its matcher.
fn changed(each: &Directive, words: &[String], changes: &mut Changes) -> Result<(), String> {
    let word = |index: usize| words.get(index).map_or("", String::as_str);
    match (each.name(), word(0)) {
        ("header" | "request_header", _) => {
            let side = if each.name() == "header" { Side::Response } else { Side::Request };
            field(words, side, changes)
        }
        ("encode", _) => {
            let mut compress = Compress { encodings: words.to_vec(), minimum: Some(512), ..Compress::default() };
            for inner in each.inner() {
                match inner.name() {
                    "gzip" | "zstd" | "br" => compress.encodings.push(inner.name().to_owned()),
                    "minimum_length" => compress.minimum = inner.word(1).parse().ok(),
                    _ => return Err("what it asks of responses is not carried over".into()),
                }
            }
            if compress.encodings.is_empty() {
                compress.encodings.extend(["zstd".to_owned(), "gzip".to_owned()]);
            }
            changes.compress(&compress)
        }
        ("request_body", _) => {
            let size = each.find("max_size").and_then(|size| bytes(size.word(1)));
            changes.body_limit(size.filter(|_| each.inner().len() == 1).ok_or("it is no size alone")?)
        }
        ("uri", "strip_prefix") => changes.path("strip", word(1).trim_end_matches('/')),
        ("uri", "path_regexp") => changes.path_regex(word(1), word(2)),
        ("rewrite", target) => match target.strip_suffix("{uri}") {
            Some(prefix) if prefix.starts_with('/') && !prefix.contains('{') => {
                changes.path_regex("^", &prefix.replace('$', "$$"))
            }
            None if target.starts_with('/') && !target.contains(['{', '?']) => changes.path("replace", target),
            _ => Err("it is made of what is no path".into()),
        },
        _ => Err("a change of this kind is not carried over".into()),
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
    if transport.word(1) == "fastcgi" {
        notes.push((
            transport.line,
            transport.text(),
            "write protocol = \"fastcgi\" and `fastcgi` in its [backend.NAME]",
        ));
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
