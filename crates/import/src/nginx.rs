//! `nginx.conf`, or one file of its sites.

mod access;
mod bodies;
mod conditions;
mod decoded;
mod fields;
mod includes;
mod known;
mod limits;
mod locations;
mod order;
mod reader;
mod refusals;
mod servers;
mod sites;
mod split;
mod stream;
mod subrequests;
mod tls;
mod towards;

use std::collections::{BTreeMap, BTreeSet};

use access::{Access, guard_text, guards};
use conditions::refusal;
use fields::{has_own_port, unescaped};
use known::{NEEDLESS, WITHOUT, is_handled, is_unknown_guard};
use limits::Zones;
use locations::{Locations, Spot, by_method};
use reader::{Listen, Place, Reader, upstreams};
use sites::{APART, REAL_IP, host};
use stream::stream;
use subrequests::is_beside;

use crate::changes::Changes;
use crate::plan::{Action, CLOSED, Note, Path, Plan, Route, one_or_list, redirect, respond};
use crate::words::{Directive, End, directives, duration};

pub fn read(text: &str, plan: &mut Plan) -> Result<(), Note> {
    let mut all = directives(text, End::Semicolon)?;
    let mut streams = Vec::new();
    // `server` may stand alone in a file of sites.
    let mut top = Vec::new();
    for directive in all.drain(..) {
        match directive.name() {
            "http" => top.extend(directive.block.unwrap_or_default()),
            "stream" => streams.push(directive),
            "worker_processes" => workers(&directive, plan),
            _ => top.push(directive),
        }
    }
    let around = top.iter().filter(|each| each.name() != "server").cloned().collect();
    let around = Directive { block: Some(around), ..Directive::default() };
    for server in top.iter_mut().filter(|each| each.name() == "server") {
        decoded::canonical(server, &[&around], &mut plan.notes)?;
    }
    let http = Directive { block: Some(top), ..Directive::default() };
    let mut reader = Reader { upstreams: upstreams(&http), zones: Zones::of(&http), shut: Vec::new(), plan };
    reader.notes(&http);
    let servers: Vec<&Directive> = http.inner().iter().filter(|each| each.name() == "server").collect();
    let sites = reader.sites(&http, &servers);
    for (server, listens) in servers.into_iter().zip(sites) {
        reader.server(&http, server, listens);
    }
    streams.iter().for_each(|each| stream(each, reader.plan));
    reader.shut_hosts();
    reader.finish()?;
    // Relays that are guarded, and servers in other files, have no listener, but notes.
    let is_told = |block: &Directive| block.find("server").is_some() || block.find("include").is_some();
    let is_any = streams.iter().chain([&http]).any(is_told);
    if !is_any && reader.plan.listeners.is_empty() {
        return Err(Note::new(1, "the file", "no `server` with a `listen` is in it; is it a configuration of nginx?"));
    }
    Ok(())
}

/// Whether what a location does begins with another search for a location, by the path that it has made.
fn looks_again(location: &Directive) -> bool {
    const STAYS: &[&str] = &["break", "redirect", "permanent"];
    let is_elsewhere = |to: &str| to.starts_with("http://") || to.starts_with("https://") || to.starts_with("$scheme");
    let mut rewrites = location.inner().iter().filter(|each| each.name() == "rewrite");
    rewrites.any(|each| !STAYS.contains(&each.word(3)) && !is_elsewhere(each.word(2)))
}

/// Whether a location of this server keeps requests out.
fn is_guarded(place: &Place<'_>, location: &Directive) -> bool {
    !guard_text(&[location, place.server, place.http]).is_empty()
}

fn workers(directive: &Directive, plan: &mut Plan) {
    if directive.word(1).parse::<u16>().is_ok_and(|count| count > 0) {
        plan.process.push(("workers".into(), directive.word(1).to_owned()));
    }
}

/// Cure for servers of FastCGI whose address or root is not written down.
const FASTCGI: &str = "write a [backend.NAME] with protocol = \"fastcgi\" and its servers' addresses";

impl Reader<'_> {
    /// Notes of the directives in a block that have no counterpart.
    fn notes(&mut self, block: &Directive) {
        for each in block.inner() {
            if each.name() == "include" {
                self.included(block.name(), each);
                continue;
            }
            if refusal(each).is_some() {
                continue;
            }
            if each.name() == "rewrite" {
                if block.find("proxy_pass").is_none() {
                    let fix = "write a route with `redirect`, or with `request.path` for what servers are asked for";
                    self.plan.note(each.line, each.text(), fix);
                }
                continue;
            }
            let known = WITHOUT.iter().find(|(name, _)| *name == each.name());
            let is_off = each.word(1) == "off";
            if each.name() == "merge_slashes" && is_off {
                let fix = "several slashes in a row are one to routes: `//x` goes where `/x` does";
                self.plan.note(each.line, each.text(), fix);
            }
            match known {
                Some(_) if is_off => {}
                Some((_, fix)) => self.plan.note(each.line, each.text(), *fix),
                None if NEEDLESS.contains(&each.name()) || each.name().starts_with("gzip_") => {}
                None if is_handled(each.name()) || is_unknown_guard(each) => {}
                None => {
                    self.plan.note(each.line, each.text(), "it is not known to this command: see whether it matters")
                }
            }
        }
    }

    fn server(&mut self, http: &Directive, server: &Directive, mut listens: Vec<Listen>) {
        self.tls(http, server, &listens);
        self.own_notes(server);
        for listen in &listens {
            self.times(http, server, &listen.listener);
        }
        let access = Access::of(server, &Access::of(http, &Access::default()));
        let changes = self.changes(http, server, &Directive::default());
        let place = Place { http, server, listens: &listens, access: &access, changes: &changes };
        self.if_redirects(&place);
        let redirected: Vec<String> = server.inner().iter().filter_map(if_redirect).map(|(host, _)| host).collect();
        let is_left = |host: &Option<String>| host.as_ref().is_none_or(|host| !redirected.contains(host));
        listens.iter_mut().for_each(|listen| listen.hosts.retain(is_left));
        let place = Place { http, server, listens: &listens, access: &access, changes: &changes };
        let own = server.inner().iter().find(|each| each.name() == "return");
        let first = self.plan.routes.len();
        match own {
            Some(own) if is_answer(own) && guards(&[server]).iter().any(|each| each.name() == "if") => {
                let action = guards(&[server]).first().map_or(respond(403, ""), |each| self.asks(each));
                self.add(&place, own.line, Path::Prefix("/".into()), &action);
            }
            Some(own) => {
                let lost = guard_text(&[server, http]);
                if let Some(action) = self.returned(server, own).or_else(|| self.lost(own, &lost)) {
                    self.add(&place, own.line, Path::Prefix("/".into()), &action);
                }
            }
            None => {
                self.locations(&place);
            }
        }
        self.refuse(first, (server, true));
    }

    /// Routes of a server's locations, and of what it has for all other paths.
    fn locations(&mut self, place: &Place<'_>) {
        let (http, server) = (place.http, place.server);
        let is_root = |each: &Directive| each.words.last().is_some_and(|word| word == "/") && each.word(1) != "=";
        let has_root = server.inner().iter().any(|each| each.name() == "location" && is_root(each));
        let root = server.find("root").filter(|_| !has_root);
        let (spots, notes) = Locations::of(server);
        self.plan.notes.extend(notes);
        spots.iter().for_each(|spot| self.spot(place, spot));
        let Some(root) = root else { return };
        let mut changes = place.changes.clone();
        let is_open = Self::passwords(&[server, http], &mut changes);
        let action = match guards(&[server, http]).first() {
            Some(each) if !is_open => self.asks_any(each, &[server, http]),
            _ => self.plan.files(root.line, &root.text(), "nginx", "files are not served here"),
        };
        let place = Place { changes: &changes, ..*place };
        self.add(&place, root.line, Path::Prefix("/".into()), &action);
    }

    /// As `notes`, without the conditions that became redirects.
    fn own_notes(&mut self, server: &Directive) {
        let block = server.inner().iter().filter(|each| if_redirect(each).is_none()).cloned().collect();
        self.notes(&Directive { block: Some(block), ..server.clone() });
    }

    /// Timeouts of a server's clients.
    fn times(&mut self, http: &Directive, server: &Directive, listener: &str) {
        let Some(listener) = self.plan.listeners.iter_mut().find(|each| each.name == listener) else { return };
        for (name, key) in
            [("keepalive_timeout", "idle"), ("client_header_timeout", "request_head"), ("client_body_timeout", "body")]
        {
            let found = [server, http].into_iter().find_map(|block| block.find(name));
            if let Some(time) = found.and_then(|each| duration(each.word(1), 1000)) {
                listener.timeouts.insert(key.into(), time);
            }
        }
    }

    /// `if ($host = x) { return 301 https://$host$request_uri; }`, as certbot writes it.
    fn if_redirects(&mut self, place: &Place<'_>) {
        for each in place.server.inner() {
            let Some((name, back)) = if_redirect(each) else { continue };
            let own = place.listens.iter().filter(|listen| listen.asked.contains(&name));
            let hosts = vec![Some(name.clone())];
            let listens: Vec<Listen> = own.map(|listen| Listen { hosts: hosts.clone(), ..listen.clone() }).collect();
            if listens.is_empty() {
                let fix = "no name of its server is known to be for this host, and nothing is made of it: remove it, or \
                           write a route for the host";
                self.plan.note(each.line, each.text(), fix);
                continue;
            }
            let action = self.returned(place.server, back).unwrap_or_else(|| {
                self.plan.note(each.line, each.text(), format!("its answer is not carried over; {CLOSED}"));
                respond(403, "")
            });
            self.add(&Place { listens: &listens, ..*place }, each.line, Path::Prefix("/".into()), &action);
        }
    }

    fn returned(&mut self, server: &Directive, each: &Directive) -> Option<Action> {
        let (status, target) = match each.word(1).parse::<u16>() {
            Ok(status) => (status, each.word(2)),
            Err(_) => (302, each.word(1)),
        };
        let is_redirect = [301, 302, 303, 307, 308].contains(&status);
        let hosts = ["$host", "$server_name", "$http_host"];
        let action = match is_redirect {
            true => redirect(target, &hosts, &["$request_uri", "$uri", "$uri$is_args$args", "$1", "/$1"], status)
                .map(Action::Redirect),
            false if status == 444 => {
                let fix =
                    "nginx closes the connection without an answer, and here the answer is an empty one of this status";
                self.plan.note(each.line, each.text(), fix);
                Some(respond(status, ""))
            }
            false if (200..600).contains(&status) && !target.contains('$') => Some(respond(status, &unescaped(target))),
            false => None,
        };
        if action.is_some() && is_redirect && target.contains("$http_host") && has_own_port(server) {
            let fix = "nginx keeps the port that clients write, and where the scheme changes a redirect here has none: \
                       write `port` in its `redirect`";
            self.plan.note(each.line, each.text(), fix);
        }
        if action.is_none() {
            self.plan.note(
                each.line,
                each.text(),
                "this answer cannot be said in a route: write `redirect` or `respond`; until you write it, its requests \
                 go to what else is for them, or are answered with 404",
            );
        }
        action
    }

    fn spot(&mut self, place: &Place<'_>, spot: &Spot) {
        let (location, none) = (&*spot.location, Changes::default());
        let bare = Place { access: &Access::default(), changes: &none, ..*place };
        if is_beside(place.http, place.server, location) {
            self.add(&bare, location.line, spot.path.clone(), &respond(404, ""));
            return;
        }
        if let Some(why) = spot.shut {
            self.plan.note(location.line, location.text(), why);
            self.add(&bare, location.line, spot.path.clone(), &respond(403, ""));
            return;
        }
        let first = self.plan.routes.len();
        match by_method(location) {
            None => self.location(place, (location, &spot.path), &[]),
            Some((methods, named, others)) => {
                self.location(place, (&named, &spot.path), &methods);
                self.location(place, (&others, &spot.path), &[]);
            }
        }
        self.refuse(first, (location, false));
    }

    /// Routes of a location, for these methods or all.
    fn location(&mut self, place: &Place<'_>, (location, path): (&Directive, &Path), methods: &[String]) {
        self.notes(location);
        let mut access = Access { methods: methods.to_vec(), ..Access::of(location, place.access) };
        access.is_apart = REAL_IP.iter().any(|name| location.find(name).is_some());
        let blocks = [location, place.server, place.http];
        let mut changes = self.changes(place.http, place.server, location);
        if access.is_shut() {
            self.keeps_out(&blocks);
        } else if !Self::passwords(&blocks, &mut changes)
            && !self.forward(place, &blocks, &mut changes)
            && let Some(each) = guards(&blocks).first()
        {
            let action = self.asks_any(each, &blocks);
            let place = Place { access: &access, changes: &changes, ..*place };
            self.add(&place, location.line, path.clone(), &action);
            return;
        }
        if looks_again(location) && locations::all(place.server).iter().any(|each| is_guarded(place, each)) {
            let fix =
                format!("nginx looks for the location of the new path, which others guard: write its route; {CLOSED}");
            self.plan.note(location.line, location.text(), fix);
            let place = Place { access: &access, changes: &changes, ..*place };
            self.add(&place, location.line, path.clone(), &respond(403, ""));
            return;
        }
        if location.find("proxy_pass").is_some() {
            self.path_changes(location, path, &mut changes);
            self.passed(&blocks, &mut changes);
            changes.timeouts = self.own_timeouts(place, location);
        }
        if location.find("proxy_pass").is_some() || location.find("fastcgi_pass").is_some() {
            self.mirrors(place, location, &mut changes);
        }
        let place = &Place { access: &access, changes: &changes, ..*place };
        let action = self.action(place, location);
        if let Some(action) = action.or_else(|| self.lost(location, &guard_text(&blocks))) {
            self.add(place, location.line, path.clone(), &action);
        }
    }

    /// The answer in place of a guarded location's: without one its requests would go to the next that fits.
    fn lost(&mut self, location: &Directive, guard: &str) -> Option<Action> {
        if guard.is_empty() {
            return None;
        }
        let fix = format!("what it leads to is not carried over, and it keeps requests out: write its route; {CLOSED}");
        self.plan.note(location.line, location.text(), fix);
        Some(respond(403, ""))
    }

    /// The action for the requests of a location.
    fn action(&mut self, place: &Place<'_>, location: &Directive) -> Option<Action> {
        if location.find("internal").is_some() {
            Some(respond(404, ""))
        } else if place.access.is_shut() {
            Some(respond(403, ""))
        } else if let Some(each) = location.find("proxy_pass") {
            self.proxied(place, location, each)
        } else if let Some(each) = location.find("fastcgi_pass")
            && let Some(action) = self.fastcgi(place, location, each)
        {
            const TRIED: &[&str] = &["$uri", "$fastcgi_script_name", "$document_root$fastcgi_script_name", "=404"];
            if let Some(each) = location
                .find("try_files")
                .filter(|each| !each.arguments().iter().all(|word| TRIED.contains(&word.as_str())))
            {
                let fix = "files are not looked for here: each request of the location goes to the script that its path names";
                self.plan.note(each.line, each.text(), fix);
            }
            Some(action)
        } else if let Some(each) = location.find("grpc_pass") {
            self.grpc(place, location, each)
        } else if let Some(each) = location.find("return") {
            self.returned(place.server, each)
        } else if location.find("stub_status").is_some() {
            self.plan.note(location.line, "stub_status", "metrics are at /metrics of the admin address: add [admin]");
            None
        } else {
            let program = ["fastcgi_pass", "uwsgi_pass", "scgi_pass"];
            let found = program.iter().find_map(|name| location.find(name));
            let why = match found.map(Directive::name) {
                Some("fastcgi_pass") => FASTCGI,
                Some(_) => "this protocol is not spoken to servers",
                None => "files are not served here",
            };
            let found =
                found.or_else(|| ["root", "alias", "try_files", "index"].iter().find_map(|name| location.find(name)));
            let each = found.unwrap_or(location);
            Some(self.plan.files(each.line, &each.text(), "nginx", why))
        }
    }

    /// Routes of a location: for those that its `allow` and `deny` let in.
    fn add(&mut self, place: &Place<'_>, line: usize, path: Path, action: &Action) {
        let mut base = BTreeMap::new();
        if !place.access.methods.is_empty() {
            base.insert(("method".to_owned(), String::new()), one_or_list(&place.access.methods));
        }
        // A client that is kept out is not asked for a proof first.
        let changes = Changes { auth: None, backends: BTreeSet::new(), ..place.changes.clone() };
        let shut = Place { changes: &changes, ..*place };
        let is_apart = |listen: &Listen| !place.access.rules.is_empty() && (place.access.is_apart || listen.is_apart);
        let (apart, listens): (Vec<Listen>, Vec<Listen>) = place.listens.iter().cloned().partition(is_apart);
        if !apart.is_empty() {
            self.plan.note(line, "allow, deny", APART);
            self.add_for(&Place { listens: &apart, ..shut }, line, (&path, &base), &respond(403, ""));
        }
        let (place, shut) = (&Place { listens: &listens, ..*place }, Place { listens: &listens, ..shut });
        for rule in &place.access.rules {
            let mut conditions = base.clone();
            conditions.insert(("source".to_owned(), String::new()), one_or_list(&rule.networks));
            match rule.is_let_in {
                true => self.add_for(place, line, (&path, &conditions), action),
                false => self.add_for(&shut, line, (&path, &conditions), &respond(403, "")),
            }
        }
        match place.access.denies_rest {
            true => self.add_for(&shut, line, (&path, &base), &respond(403, "")),
            false => self.add_for(place, line, (&path, &base), action),
        }
    }

    fn add_for(
        &mut self,
        place: &Place<'_>,
        line: usize,
        (path, conditions): (&Path, &BTreeMap<(String, String), String>),
        action: &Action,
    ) {
        for listen in place.listens {
            let requires = self.requires_certificate(place, listen);
            let closed = (respond(403, ""), Changes::default());
            let (action, changes) = match requires {
                Some(_) => (action, place.changes),
                None => (&closed.0, &closed.1),
            };
            let patterned = |pattern: &String| {
                let key = ("host".to_owned(), String::new());
                (
                    None,
                    conditions
                        .iter()
                        .map(|(key, value)| (key.clone(), value.clone()))
                        .chain([(key, pattern.clone())])
                        .collect(),
                )
            };
            let named = listen.hosts.iter().map(|host| (host.clone(), conditions.clone()));
            for (host, conditions) in named.chain(listen.patterns.iter().map(patterned)) {
                self.plan.route(Route {
                    line,
                    listener: listen.listener.clone(),
                    host,
                    path: path.clone(),
                    conditions,
                    requires_certificate: requires.unwrap_or_default(),
                    action: action.clone(),
                    changes: changes.clone(),
                });
            }
        }
    }
}

/// Whether a `return` answers by itself, and leads nowhere else.
fn is_answer(each: &Directive) -> bool {
    each.word(1).parse::<u16>().is_ok_and(|status| !(300..400).contains(&status))
}

/// `if ($host = NAME) { return ...; }`.
fn if_redirect(each: &Directive) -> Option<(String, &Directive)> {
    let condition = each.arguments().join(" ");
    let inside = condition.strip_prefix('(')?.strip_suffix(')')?;
    let (variable, name) = inside.split_once('=')?;
    let is_host = each.name() == "if" && ["$host", "$http_host"].contains(&variable.trim());
    let [back] = each.inner() else { return None };
    let name = host(name.trim()).filter(|name| !name.starts_with("*."));
    name.filter(|_| is_host && back.name() == "return").map(|name| (name, back))
}
