//! `Caddyfile`.

mod fields;
mod guard;
mod matchers;
mod moved;
mod order;
mod proxy;

use std::collections::BTreeMap;
use std::net::IpAddr;

use fields::CHANGES;
use guard::{closing, denies};
use matchers::{Matched, host_is_within, merged};
use moved::has_guards;
use order::Steps;

use crate::changes::Changes;
use crate::guards::Guard;
use crate::plan::{Action, CLOSED, Certificate, Note, Path, Plan, Route, path_text, quoted, redirect, respond};
use crate::terms::Term;
use crate::variables::{self, lower, marked};
use crate::words::{Directive, End, directives};

/// Snippets inside each other.
const IMPORT_DEPTH_MAX: usize = 8;
/// Directives after all snippets are put in.
const DIRECTIVES_MAX: usize = 20_000;

/// Directives that have no counterpart, and what to do.
const WITHOUT: &[(&str, &str)] = &[
    ("rate_limit", "rates are not carried over: write `limit = { rate = ... }` in its routes"),
    ("error", "write `respond` in a route"),
    ("templates", "files are not served here"),
    ("push", "nothing is pushed"),
    ("metrics", "metrics are at /metrics of the admin address: add [admin]"),
    ("vars", "variables are not carried over: write what they stand for"),
    ("map", "variables are not carried over: write what they stand for"),
];

pub fn read(text: &str, plan: &mut Plan) -> Result<(), Note> {
    let all = directives(&marked(text), End::Line)?;
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
    let mut reader = Reader {
        plan,
        snippets,
        is_https: true,
        default_bind: None,
        matchers: BTreeMap::new(),
        count: 0,
        changes: Changes::default(),
        root: None,
        prefix: String::new(),
        is_closed: false,
        steps: Steps::default(),
        is_reordered: false,
        falls_through: true,
    };
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
    // Sites whose addresses are not carried over have notes.
    match reader.plan.listeners.is_empty() && reader.plan.notes.is_empty() {
        true => Err(Note::new(1, "the file", "no site is in it; is it a Caddyfile?")),
        false => Ok(()),
    }
}

struct Reader<'p> {
    plan: &'p mut Plan,
    snippets: BTreeMap<String, Vec<Directive>>,
    /// Whether certificates are ordered, and plaintext is redirected.
    is_https: bool,
    /// `default_bind`.
    default_bind: Option<Directive>,
    /// Named matchers of the block at hand.
    matchers: BTreeMap<String, Vec<Directive>>,
    count: usize,
    /// Changes of the block at hand.
    changes: Changes,
    /// Folder of the files of the block at hand.
    root: Option<String>,
    /// Prefix that blocks of `handle_path` have taken from paths.
    prefix: String,
    /// Whether the block at hand answers nobody.
    is_closed: bool,
    /// Changes of requests in the block at hand, with their places.
    steps: Steps,
    /// Whether the order of directives is another than Caddy's own.
    is_reordered: bool,
    /// Whether no other `handle` would get what one in the block at hand does not answer.
    falls_through: bool,
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
                "default_bind" => self.default_bind = Some(each.clone()),
                "order" if is_known(each.word(1)) => {
                    self.is_reordered = true;
                    let fix = "directives are read in Caddy's own order: put those of this one and of what it stands \
                               beside into a `route`; until then every request of all sites is answered with 403";
                    self.plan.note(each.line, each.text(), fix);
                }
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
                _ => {
                    let fix =
                        format!("there is no snippet of this name here: put that file's lines in its place; {CLOSED}");
                    self.plan.note(each.line, each.text(), fix);
                    out.push(each);
                }
            }
        }
        out
    }

    fn site(&mut self, site: &Directive) {
        self.matchers = BTreeMap::new();
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
                Some(places) => sites.extend(places),
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
        let first = self.plan.routes.len();
        self.block(&sites, site, &[Matched::all()]);
        if self.is_reordered {
            self.close_block(&sites, first, (site.line, &[Matched::all()]));
        }
        self.other_cases(first);
    }

    /// Places of a site: one for each address that it is served at.
    fn address(&mut self, site: &Directive, address: &str) -> Option<Vec<Site>> {
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
        if port.is_none() && variables::is_in(host) {
            let fix = "its variable is taken for a name without a port, and its site for one with a certificate: write \
                       the listener's address and the route's host where it is something else";
            self.plan.note(site.line, address, fix);
        }
        // A certificate is had for names; a port alone is plaintext, unless there is a `tls`.
        let has_tls = site.find("tls").is_some();
        let is_tls = match scheme {
            Some(scheme) => scheme == "https",
            None => has_tls || self.is_https && is_name && port != Some(80),
        };
        let port = port.unwrap_or(if is_tls { 443 } else { 80 });
        let hosts = self.binds(site);
        let host = is_name.then(|| lower(host));
        let mut sites = Vec::new();
        for address in &hosts {
            let listener = self.plan.listener(&format!("{address}:{port}"), is_tls).name.clone();
            sites.push(Site { listener, host: host.clone() });
            if is_tls && port == 443 && scheme.is_none() && self.is_https {
                self.redirects_to_https(site.line, address, host.as_deref());
            }
        }
        Some(sites)
    }

    /// Addresses that a site is served at: its own, those of all sites, or every one.
    fn binds(&mut self, site: &Directive) -> Vec<String> {
        let all: Vec<&Directive> = site.inner().iter().filter(|each| each.name() == "bind").collect();
        let asked = if all.is_empty() { self.default_bind.iter().collect() } else { all };
        if asked.is_empty() {
            return vec!["0.0.0.0".to_owned(), "[::]".to_owned()];
        }
        let (mut found, mut lost) = (Vec::new(), Vec::new());
        for each in asked {
            for word in each.arguments() {
                match word.trim_matches(['[', ']']).parse::<IpAddr>() {
                    Ok(IpAddr::V4(address)) => found.push(address.to_string()),
                    Ok(IpAddr::V6(address)) => found.push(format!("[{address}]")),
                    Err(_) if word == "localhost" => found.push("127.0.0.1".to_owned()),
                    Err(_) => lost.push((each.line, each.text())),
                }
            }
        }
        for (line, text) in lost {
            self.plan.note(line, text, "listeners are TCP at an address: write a listener with it, and its routes");
        }
        found
    }

    /// Caddy sends plaintext requests for its names to https, at the addresses of their sites.
    fn redirects_to_https(&mut self, line: usize, address: &str, host: Option<&str>) {
        let listener = self.plan.listener(&format!("{address}:80"), false).name.clone();
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

    /// Directives of a site, or of a `handle` in it, which are for what matches. Returns whom they keep out of what
    /// stands behind them.
    fn block(&mut self, sites: &[Site], owner: &Directive, outer: &[Matched]) -> Vec<Guard> {
        let block = owner.inner();
        let (changes, root, prefix) = (self.changes.clone(), self.root.clone(), self.prefix.clone());
        let matchers = self.matchers.clone();
        self.matchers.extend(named(block));
        let is_closed = std::mem::take(&mut self.is_closed);
        let falls_through = std::mem::replace(&mut self.falls_through, falls_through(block));
        // The lines of another file may keep anybody out.
        self.is_closed |= block.iter().any(|each| each.name() == "import");
        if let Some(each) = block.iter().find(|each| each.name() == "root") {
            self.root = each.words.last().cloned();
        }
        block.iter().for_each(|each| self.change(each));
        let steps = std::mem::take(&mut self.steps);
        self.steps = Steps::of(owner, steps.before(owner));
        let moved = self.moved(owner, outer);
        block.iter().filter(|each| each.name() == "handle_errors").for_each(|each| self.pages(each));
        let is_auth = |each: &&Directive| ["basic_auth", "basicauth", "forward_auth"].contains(&each.name());
        let mut auths: Vec<Guard> = block.iter().filter(is_auth).flat_map(|each| self.guards(each, outer)).collect();
        auths.extend(moved);
        let denials: Vec<Guard> =
            block.iter().filter(|each| denies(each)).flat_map(|each| self.guards(each, outer)).collect();
        let redirects = self.redirects(sites, owner, outer);
        // The order of Caddy: redirects, who may come in, then blocks, then what keeps out, then the rest.
        let is_block = |each: &&Directive| ["handle", "handle_path", "route"].contains(&each.name());
        let has_files = block.iter().any(|each| each.name() == "file_server");
        let is_alone = outer.len() == 1 && !block.iter().any(|each| is_block(&each));
        let first = self.plan.routes.len();
        let raised = self.blocks(sites, block, outer);
        let behind = self.plan.routes.len();
        // A pattern for scripts would go before what stands in blocks.
        let is_redirect = |each: &Directive| each.name() == "redir" && owner.name() != "route";
        let rest = block.iter().filter(|each| !is_block(each) && !denies(each) && !is_redirect(each));
        let is_php = |each: &&Directive| each.name() == "php_fastcgi";
        let (php, rest): (Vec<&Directive>, Vec<&Directive>) = rest.partition(is_php);
        for each in php {
            if !is_alone && has_files || !self.php(sites, each, outer, has_files) {
                self.directives(sites, std::iter::once(each), outer);
            }
        }
        self.directives(sites, rest.into_iter(), outer);
        self.falls_through = falls_through;
        if !falls_through && ["handle", "handle_path"].contains(&owner.name()) {
            self.answer_nothing(sites, owner, outer);
        }
        // Guards of blocks come last: a pattern that is let in beside another guard is behind them too.
        self.guard(sites, behind, &denials);
        self.guard(sites, behind, &raised);
        self.guard(sites, first, &auths);
        self.redirect_before(sites, first, redirects);
        let mut guards = [raised, denials, auths].concat();
        if std::mem::replace(&mut self.is_closed, is_closed) {
            let line = block.first().map_or(1, |each| each.line);
            self.close_block(sites, first, (line, outer));
            guards = outer.iter().map(|matched| closing(line, matched)).collect();
        }
        (self.changes, self.root, self.prefix, self.matchers) = (changes, root, prefix, matchers);
        self.steps = steps;
        guards
    }

    /// Blocks inside another. Of `handle` one alone is for a request, and `route` comes behind them: whom one keeps out
    /// does not come to what is behind it, and has other routes there.
    fn blocks(&mut self, sites: &[Site], block: &[Directive], outer: &[Matched]) -> Vec<Guard> {
        let mut raised = Vec::new();
        for each in block.iter().filter(|each| ["handle", "handle_path"].contains(&each.name())) {
            raised.extend(self.handle(sites, each, outer));
        }
        for each in block.iter().filter(|each| each.name() == "route") {
            let first = self.plan.routes.len();
            let own = self.handle(sites, each, outer);
            self.guard(sites, first, &raised);
            raised.extend(own);
        }
        // Answers behind a block are behind all of its lines.
        raised.iter_mut().for_each(|guard| guard.from = 0);
        raised
    }

    /// Answers what nothing in a `handle` does as Caddy answers it, with an empty 200: no other `handle` comes to it.
    fn answer_nothing(&mut self, sites: &[Site], owner: &Directive, outer: &[Matched]) {
        let notes = self.plan.notes.len();
        let changes = std::mem::take(&mut self.changes);
        // Guards of the block are laid over answers of lines behind their own.
        let line = owner.inner().iter().map(|each| each.line).max().unwrap_or(owner.line);
        self.add(sites, line, outer, &respond(200, ""));
        self.changes = changes;
        self.plan.notes.truncate(notes);
    }

    fn directives<'d>(&mut self, sites: &[Site], all: impl Iterator<Item = &'d Directive>, outer: &[Matched]) {
        for each in all {
            let known = WITHOUT.iter().find(|(name, _)| *name == each.name());
            match each.name() {
                name if name.starts_with('@') => {}
                "tls" | "bind" | "log" | "log_skip" | "skip_log" | "log_append" | "root" | "try_files" | "import" => {}
                "handle" | "handle_path" | "route" => {}
                "reverse_proxy" => self.proxied(sites, each, outer),
                "redir" => self.redirect(sites, each, outer),
                "respond" => self.respond(sites, each, outer),
                "basic_auth" | "basicauth" | "forward_auth" | "handle_errors" => {}
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

    /// `handle_errors` that answers with one file.
    fn pages(&mut self, each: &Directive) {
        let own = each.find("root").and_then(|root| root.words.last());
        let root = own.or(self.root.as_ref()).filter(|root| root.starts_with('/')).cloned();
        let file = each.find("rewrite").and_then(|rewrite| rewrite.words.last()).filter(|file| file.starts_with('/'));
        let is_said = each.inner().iter().all(|inner| ["root", "rewrite", "file_server"].contains(&inner.name()));
        let all = ["4xx".to_owned(), "5xx".to_owned()];
        let statuses = if each.arguments().is_empty() { &all[..] } else { each.arguments() };
        let mut changes = self.changes.clone();
        let done = root.zip(file).filter(|(_, file)| is_said && !file.contains('{')).is_some_and(|(root, file)| {
            let path = format!("{}{file}", root.trim_end_matches('/'));
            statuses.iter().all(|status| changes.page(status, &path).is_ok())
        });
        if done {
            self.changes = changes;
        } else {
            let fix =
                "pages are carried over where they are one file, by `rewrite` and `file_server`: write `error_pages`";
            self.plan.note(each.line, each.text(), fix);
        }
    }

    fn handle(&mut self, sites: &[Site], each: &Directive, outer: &[Matched]) -> Vec<Guard> {
        let Some((matched, _)) = self.matched(each, outer) else {
            // Nobody may come past its guards to what stands beside it.
            if has_guards(each.inner()) {
                self.close(each);
            }
            return Vec::new();
        };
        if each.name() == "handle_path" && each.word(1).trim_end_matches('*').contains('*') {
            self.close(each);
            return Vec::new();
        }
        let (changes, outer_prefix) = (self.changes.clone(), self.prefix.clone());
        if each.name() == "handle_path" {
            let prefix = each.word(1).trim_end_matches('*').trim_end_matches('/');
            if !prefix.starts_with('/') || self.changes.path("strip", prefix).is_err() {
                self.plan.note(
                    each.line,
                    each.text(),
                    "write what becomes of the path as `request.path` of its routes",
                );
            }
            self.prefix.push_str(prefix);
        }
        // A block that no request comes to has no routes, and no guards that would be for all.
        let guards = if matched.is_empty() { Vec::new() } else { self.block(sites, each, &matched) };
        (self.changes, self.prefix) = (changes, outer_prefix);
        guards
    }

    /// Redirects of a block, but for one whose lines are in order, with the requests that each is for.
    fn redirects(&mut self, sites: &[Site], owner: &Directive, outer: &[Matched]) -> Vec<(Route, Guard)> {
        let mut all: Vec<(Route, Guard)> = Vec::new();
        let first = self.plan.routes.len();
        for each in owner.inner().iter().filter(|each| each.name() == "redir" && owner.name() != "route") {
            self.redirect(sites, each, outer);
            for route in self.plan.routes.split_off(first) {
                let matched = Matched {
                    host: route.host.clone(),
                    path: route.path.clone(),
                    conditions: route.conditions.clone(),
                };
                let guard = Guard { action: route.action.clone(), ..closing(each.line, &matched) };
                let guard = Guard { of: Term { ignores_case: false, ..guard.of.clone() }, ..guard };
                if !all.iter().any(|(known, _)| {
                    (&known.listener, &known.host, &known.path, &known.conditions)
                        == (&route.listener, &route.host, &route.path, &route.conditions)
                }) {
                    all.push((route, guard));
                }
            }
        }
        // The longest path is first.
        all.sort_by_key(|(route, _)| std::cmp::Reverse(path_text(&route.path).len()));
        all
    }

    /// Lays redirects over the routes from the given one on, whatever these are for.
    fn redirect_before(&mut self, sites: &[Site], first: usize, redirects: Vec<(Route, Guard)>) {
        if redirects.is_empty() {
            return;
        }
        let routes = self.plan.routes.split_off(first);
        let (moved, mut guards): (Vec<Route>, Vec<Guard>) = redirects.into_iter().unzip();
        let is_same = |one: &Guard, two: &Guard| one.line == two.line && one.of.is_same(&two.of);
        guards.dedup_by(|one, two| is_same(one, two));
        self.plan.routes.extend(moved.into_iter().chain(routes));
        self.guard(sites, first, &guards);
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

/// Whether a directive is one of those that are carried over.
fn is_known(name: &str) -> bool {
    const KNOWN: &[&str] = &["redir", "basic_auth", "basicauth", "forward_auth", "handle", "handle_path", "route"];
    const ANSWERS: &[&str] = &["abort", "error", "respond", "reverse_proxy", "php_fastcgi", "file_server", "try_files"];
    KNOWN.contains(&name) || ANSWERS.contains(&name) || CHANGES.contains(&name) || name == "method"
}

/// Named matchers of a block, which are known inside it alone.
fn named(block: &[Directive]) -> impl Iterator<Item = (String, Vec<Directive>)> {
    block.iter().filter(|each| each.name().starts_with('@')).map(|each| {
        // A test on the matcher's own line has the block, if there is one: `@name not { ... }`.
        let alone = || vec![Directive { line: each.line, words: each.arguments().to_vec(), block: each.block.clone() }];
        let inner = each.block.as_deref().filter(|_| each.arguments().is_empty());
        (each.name().to_owned(), inner.map_or_else(alone, merged))
    })
}

/// Whether what a `handle` of a block does not answer goes on to what stands beside it, and to no other `handle`.
fn falls_through(block: &[Directive]) -> bool {
    const ANSWERS: &[&str] = &["reverse_proxy", "respond", "redir", "file_server", "php_fastcgi", "error", "abort"];
    let handles: Vec<&Directive> =
        block.iter().filter(|each| ["handle", "handle_path"].contains(&each.name())).collect();
    let has_rest = handles.iter().any(|each| ["", "*"].contains(&each.word(1)));
    handles.len() < 2 || !has_rest && block.iter().any(|each| ANSWERS.contains(&each.name()))
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
