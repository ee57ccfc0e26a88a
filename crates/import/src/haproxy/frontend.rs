//! Frontends of haproxy: listeners, and where their requests go.

use std::collections::{BTreeMap, BTreeSet};

use super::acls::terms;
use super::holds::{Front, Kind, Lead};
use super::known::{PAGES, RATES, request_rule};
use super::lines::{Line, Section, Tables, changed, holding, is_change, is_guard, refusal};
use super::order::{Rule, turn};
use super::users::Lists;
use crate::changed::Changed;
use crate::changes::Changes;
use crate::guards::{Guard, beside};
use crate::plan::{
    ALTERNATIVES_MAX, Action, Certificate, Path, Plan, Route, escaped, name_of, path_text, quoted, redirect, respond,
};
use crate::terms::{Term, negated};
use crate::variables::is_in;
use crate::words::duration;

pub(super) struct Frontend<'f> {
    pub(super) plan: &'f mut Plan,
    pub(super) defaults: &'f [Line],
    pub(super) section: &'f Section,
    pub(super) acls: BTreeMap<String, Vec<Result<Vec<Term>, String>>>,
    /// Names of its listeners, and whether they have TLS.
    pub(super) listeners: Vec<(String, bool)>,
    pub(super) guards: Vec<Guard>,
    /// Requests that an `allow` lets past the rules behind it.
    pub(super) allowed: Vec<Term>,
    pub(super) shared: &'f Shared<'f>,
    /// Limits of all of its routes, as TOML has them.
    pub(super) limits: Vec<String>,
    /// Longest body of requests by its routes.
    pub(super) body_limit: Option<u64>,
    /// Lines that lead to a backend and are not carried over.
    pub(super) fallen: Vec<Fallen>,
    /// Rules that lead requests somewhere, in the order in which they are asked.
    pub(super) rules: Vec<Rule>,
    /// Routes for what several of these are for.
    pub(super) both_count: usize,
    /// Guards that lie over its routes.
    pub(super) laid: Vec<Guard>,
    /// Parts of requests that the rules before the one at hand have changed.
    pub(super) changed: Changed,
    /// Lines whose requests are refused, since they ask for what is changed.
    pub(super) refused: BTreeSet<usize>,
}

/// Facts of all frontends that the guards of backends go by.
#[derive(Default)]
pub(super) struct Fronts {
    pub(super) fallen: Vec<Fallen>,
    /// Guards by the names of listeners.
    pub(super) guards: BTreeMap<String, Vec<Guard>>,
    /// Rules by listeners.
    pub(super) rules: Vec<Front>,
}

impl Fronts {
    pub(super) fn take(&mut self, frontend: Frontend) {
        let leads = frontend.leads();
        for listener in &frontend.listeners {
            let (listener, guards, leads) = (listener.clone(), frontend.laid.clone(), leads.clone());
            self.rules.push(Front { listener, guards, leads });
        }
        self.fallen.extend(frontend.fallen);
        for (name, _) in frontend.listeners {
            self.guards.entry(name).or_default().extend(frontend.laid.clone());
        }
    }
}

/// A `use_backend` that is not carried over: its requests go to the routes behind it.
pub(super) struct Fallen {
    line: usize,
    /// Number of the rules that are asked before it.
    place: usize,
    /// The backend; none where its name is made of requests.
    backend: Option<String>,
    default: Option<String>,
    listeners: Vec<String>,
    /// The rule that takes its requests, by line and host; all behind it where the line is not carried over.
    taker: Option<(usize, Option<String>)>,
}

impl Fallen {
    /// Some of a backend's requests go by another rule.
    pub(super) fn beside(line: usize, backend: &str, listener: &str, taker: (usize, Option<String>)) -> Fallen {
        let (backend, listeners) = (Some(backend.to_owned()), vec![listener.to_owned()]);
        Fallen { line, place: 0, backend, default: None, listeners, taker: Some(taker) }
    }

    /// Whether requests that were for this backend may come to a route.
    pub(super) fn leads(&self, backend: &str, route: &Route) -> bool {
        let Action::Backend(to) = &route.action else { return false };
        if let Some((line, host)) = &self.taker {
            let is_in =
                |own: &str, host: &str| own == host || host.strip_prefix('*').is_some_and(|end| own.ends_with(end));
            // Guards of the frontend have made routes for fewer hosts of it.
            let is_its = host.as_ref().is_none_or(|host| route.host.as_ref().is_some_and(|own| is_in(own, host)));
            let is_backend = self.backend.as_deref() == Some(backend);
            return is_backend && is_its && self.listeners.contains(&route.listener) && *line == route.line;
        }
        self.backend.as_ref().is_none_or(|name| name == backend)
            && self.listeners.contains(&route.listener)
            && (route.line > self.line || self.default.as_ref() == Some(to))
    }

    /// Tells that what the backend keeps out is kept out of other routes.
    pub(super) fn tell(&self, plan: &mut Plan, backend: &str) {
        if self.taker.is_some() {
            return;
        }
        let fix = "whom the backend keeps out, or limits, is kept out of the routes behind this line as well, since its \
                   requests go there: add its route";
        plan.note(self.line, format!("use_backend {backend}"), fix);
    }
}

/// Facts that all sections have in common.
pub(super) struct Shared<'s> {
    pub(super) tables: &'s Tables,
    pub(super) lists: &'s Lists,
    /// Sockets at all addresses of IPv4.
    pub(super) ipv4: BTreeSet<String>,
    /// Guards of backends, by name.
    pub(super) guards: BTreeMap<String, Vec<Guard>>,
    /// Parts of requests that frontends change in front of backends, by name.
    pub(super) changed: BTreeMap<String, Changed>,
}

impl<'s> Shared<'s> {
    pub(super) fn of(sections: &[Section], tables: &'s Tables, lists: &'s Lists) -> Shared<'s> {
        let lines = sections.iter().flat_map(|section| section.of("bind"));
        let addresses = lines.flat_map(|line| line.word(1).split(',').filter_map(bind));
        let ipv4 = addresses.filter(|address| address.starts_with("0.0.0.0:")).collect();
        Shared { tables, lists, ipv4, guards: BTreeMap::new(), changed: BTreeMap::new() }
    }
}

/// Words of a `location` that stand for the request's host, and for the rest of what it asked for.
const HOSTS: &[&str] = &["%[hdr(host)]", "%[req.hdr(host)]", "%[req.hdr(Host)]", "%[hdr(Host)]", "%[req.fhdr(host)]"];
const RESTS: &[&str] = &["%[capture.req.uri]", "%HU", "%[url]", "%[pathq]"];
/// Words of these that rules change; the others are of the request as it came.
const CHANGED_RESTS: &[&str] = &["%[url]", "%[pathq]"];

/// Words for conditions that all have to hold.
const TOGETHER: &str = "conditions of which no one route says all";

impl<'f> Frontend<'f> {
    pub(super) fn new(
        plan: &'f mut Plan,
        defaults: &'f [Line],
        section: &'f Section,
        shared: &'f Shared<'f>,
    ) -> Frontend<'f> {
        let acls = BTreeMap::new();
        // Backends of any name are led to where names are made of requests.
        let names = [section.name.as_str(), ""].into_iter().filter(|_| section.kind == "backend");
        let mut changed = Changed::default();
        names.filter_map(|name| shared.changed.get(name)).for_each(|other| changed.extend(other));
        Frontend {
            plan,
            defaults,
            section,
            acls,
            listeners: Vec::new(),
            guards: Vec::new(),
            allowed: Vec::new(),
            shared,
            limits: Vec::new(),
            body_limit: None,
            fallen: Vec::new(),
            rules: Vec::new(),
            both_count: 0,
            laid: Vec::new(),
            changed,
            refused: BTreeSet::new(),
        }
    }

    pub(super) fn read(&mut self) {
        let section = self.section;
        let first_route = self.plan.routes.len();
        let is_http = self.is_http();
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
        self.changed = Changed::default();
        self.defaults.iter().for_each(|line| self.changed.extend(&changed(line)));
        let mut lines: Vec<&Line> = section.lines.iter().collect();
        lines.sort_by_key(|line| turn(line));
        for line in lines {
            self.rule(line);
            self.changed.extend(&changed(line));
        }
        if let Some(line) = holding(section, self.defaults, &["default_backend"]) {
            let action = if is_in(line.word(1)) {
                let fix = "write the name of the backend as `backend` of its route; until then its requests have 503";
                self.plan.note(line.number, line.text(), fix);
                respond(503, "")
            } else {
                Action::Backend(name_of(line.word(1)))
            };
            self.add(line.number, &[Term::default()], &action);
        }
        if section.kind == "listen" && section.of("server").next().is_some() {
            self.add(section.number, &[Term::default()], &Action::Backend(name_of(&section.name)));
        }
        let mut routes = self.plan.routes.split_off(first_route);
        self.change(&mut routes);
        self.limit(&mut routes.iter_mut().collect::<Vec<_>>());
        self.laid.clone_from(&self.guards);
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
        let protocol = if is_passthrough { "passthrough" } else { "tcp" };
        for line in section.of("bind") {
            if line.has("interface") || line.has("namespace") {
                let fix = "a listener is at an address: write one at that of the interface, and its routes";
                self.plan.note(line.number, line.text(), fix);
                continue;
            }
            for address in line.word(1).split(',') {
                let Some(bind) = bind(address) else {
                    self.plan.note(
                        line.number,
                        line.text(),
                        "listeners are TCP at one address and port: write each of them",
                    );
                    continue;
                };
                // A wildcard of IPv6 is one of IPv4 as well, where no other socket is that.
                let port = bind.strip_prefix("[::]:").filter(|_| !line.has("v6only"));
                let ipv4 = port.map(|port| format!("0.0.0.0:{port}")).filter(|ipv4| !self.shared.ipv4.contains(ipv4));
                for bind in [bind].into_iter().chain(ipv4) {
                    self.bound(line, &bind, is_http, protocol);
                }
            }
            if line.has("crt-list") {
                self.plan.note(line.number, line.text(), "write the files of the list in `certificates` of [tls.NAME]");
            }
        }
    }

    /// A listener at one address of a `bind`.
    fn bound(&mut self, line: &Line, bind: &str, is_http: bool, protocol: &str) {
        let (section, is_tls) = (self.section, line.has("ssl"));
        let listener = match is_http {
            true => self.plan.listener(bind, is_tls),
            false => self.plan.listener_named(&name_of(&section.name), bind, is_tls),
        };
        if !is_http {
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
        if let Some(ca) = line.after("ca-file").filter(|_| line.after("verify").is_some_and(|verify| verify != "none"))
        {
            listener.client_auth.insert("ca".into(), quoted(ca));
            listener.client_auth.extend(line.after("crl-file").map(|crl| ("crl".to_owned(), quoted(crl))));
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
            ("use_backend", name) if !name.contains('%') && !is_in(name) => {
                let name = name_of(name);
                let Some(line) = &self.with_servers(line) else { return };
                if !self.when(line, 2, &Action::Backend(name.clone())) {
                    self.falls(line, Some(name));
                }
            }
            ("use_backend", _) => {
                let fix = "write a route for each backend: names are not made of requests";
                self.plan.note(line.number, line.text(), fix);
                self.falls(line, None);
            }
            ("redirect", _) => self.redirect(line, 1),
            ("http-request", "redirect") => self.redirect(line, 2),
            // Requests that no other route is for have the same answer.
            _ if refusal(line).is_some() => self.refused(line),
            _ if is_guard(line) || is_change(line) => {}
            ("http-request", "allow") => {}
            ("http-request", "return") => {
                let status = line.after("status").and_then(|status| status.parse().ok()).unwrap_or(200);
                match returned(line, status) {
                    Some(action) => drop(self.when(line, 2, &action)),
                    None => self.plan.note(line.number, line.text(), "write `respond` with a body in a route"),
                }
            }
            ("tcp-request", "inspect-delay") => {}
            ("tcp-request", "content") if line.word(2) == "accept" => {}
            ("errorfile", _) => self.plan.note(line.number, line.text(), PAGES),
            ("stick", _) => self.plan.note(line.number, line.text(), RATES),
            _ if self.section.kind == "listen" && ["cookie"].contains(&line.word(0)) => {}
            _ => request_rule(self.plan, line),
        }
    }

    /// Adds routes for a fixed answer that is laid over the others as well; its reader there tells what is not said.
    fn refused(&mut self, line: &Line) {
        let Some(status) = refusal(line) else { return };
        let (notes, rules) = (self.plan.notes.len(), self.rules.len());
        self.when(line, 2, &returned(line, status).unwrap_or(respond(status, "")));
        self.plan.notes.truncate(notes);
        self.rules.truncate(rules);
    }

    /// `redirect scheme https code 301 if !{ ssl_fc }`, `redirect prefix URL`, `redirect location URL`.
    fn redirect(&mut self, line: &Line, from: usize) {
        let status = line.after("code").and_then(|code| code.parse().ok()).unwrap_or(302);
        let target = line.word(from + 1);
        let keys = match line.word(from) {
            "scheme" => Some(vec![("status".to_owned(), status.to_string()), ("scheme".to_owned(), quoted(target))]),
            "prefix" if target.contains('%') => None,
            "prefix" => redirect(&format!("{}{{rest}}", target.trim_end_matches('/')), &[], &["{rest}"], status),
            "location" => {
                let put = |text: String, (words, sign): (&[&str], &str)| {
                    words.iter().fold(text, |text, word| text.replace(word, sign))
                };
                let text = [(HOSTS, "{host}"), (RESTS, "{uri}")].into_iter().fold(target.to_owned(), put);
                (!text.contains('%')).then(|| redirect(&text, &["{host}"], &["{uri}"], status)).flatten()
            }
            _ => None,
        };
        match keys {
            Some(keys) => {
                if self.leads_by_changed(line, from) {
                    let fix = "it leads to the host and path that clients have sent, and not to what rules before it \
                               have made of these: see whether that is the same";
                    self.plan.note(line.number, line.text(), fix);
                }
                self.when(line, from, &Action::Redirect(keys));
            }
            None => self.plan.note(line.number, line.text(), "write a route with `redirect`: host, path, scheme, port"),
        }
    }

    /// Whether a redirect leads to what is made of a changed part of the request.
    fn leads_by_changed(&self, line: &Line, from: usize) -> bool {
        let has = |signs: &[&str]| signs.iter().any(|sign| line.word(from + 1).contains(sign));
        let is_location = line.word(from) == "location";
        let has_host = line.word(from) == "scheme" || is_location && has(HOSTS);
        let has_rest = !is_location || has(CHANGED_RESTS);
        has_host && self.changed.has_field("host") || has_rest && (self.changed.has_path || self.changed.has_query)
    }

    pub(super) fn is_http(&self) -> bool {
        holding(self.section, self.defaults, &["mode"]).is_some_and(|line| line.word(1) == "http")
    }

    pub(super) fn read_acls(&mut self) {
        let (section, is_http) = (self.section, self.is_http());
        for line in self.defaults.iter().filter(|line| line.word(0) == "acl").chain(section.of("acl")) {
            let alternatives = terms(&line.words[2.min(line.words.len())..], is_http);
            self.acls.entry(line.word(1).to_owned()).or_default().push(alternatives);
        }
    }

    /// Keeps in mind that a line leads no requests to a backend.
    fn falls(&mut self, line: &Line, backend: Option<String>) {
        let default = holding(self.section, self.defaults, &["default_backend"]);
        let default = default.filter(|line| !is_in(line.word(1))).map(|line| name_of(line.word(1)));
        let own = Some(name_of(&self.section.name)).filter(|_| self.section.kind == "listen");
        let listeners = self.listeners.iter().map(|(name, _)| name.clone()).collect();
        let (line, place, default) = (line.number, self.rules.len(), default.or(own));
        self.fallen.push(Fallen { line, place, backend, default, listeners, taker: None });
    }

    /// Rules of it with those that are not carried over, in the order in which haproxy asks them.
    fn leads(&self) -> Vec<Lead> {
        let mut leads = Vec::new();
        for place in 0..=self.rules.len() {
            for fallen in self.fallen.iter().filter(|fallen| fallen.taker.is_none() && fallen.place == place) {
                let kind = if fallen.backend.is_some() { Kind::Some } else { Kind::Any };
                leads.push(Lead { of: Term::default(), to: fallen.backend.clone(), kind });
            }
            leads.extend(self.rules.get(place).map(|rule| {
                let to = if let Action::Backend(name) = &rule.action { Some(name.clone()) } else { None };
                Lead { of: rule.of.clone(), to, kind: Kind::Known }
            }));
        }
        leads
    }

    /// Adds routes for what a line does `if` or `unless` its condition holds; whether that could be said.
    fn when(&mut self, line: &Line, from: usize, action: &Action) -> bool {
        let place =
            line.words.iter().enumerate().skip(from).find(|(_, word)| ["if", "unless"].contains(&word.as_str()));
        if place.is_some_and(|(index, _)| self.asks_changed(&line.words[index + 1..])) {
            self.refuse(line);
            return true;
        }
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
                true
            }
            Err(what) => {
                let fix = format!("{what} is not carried over: write a route with host, path and `match`");
                self.plan.note(line.number, line.text(), fix);
                false
            }
        }
    }

    /// Alternatives of a condition: names of ACLs and conditions in braces, joined by `or`.
    pub(super) fn condition(&self, words: &[String], is_unless: bool) -> Result<Vec<Term>, String> {
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
                        (terms(&after[..end], self.is_http())?, &after[end + 1..])
                    }
                    "" => {
                        rest = after;
                        continue;
                    }
                    name => (self.acl(name)?, after),
                };
                if found.iter().any(|term| self.changed.touches(term)) {
                    return Err("a test of what rules before it have changed".into());
                }
                let found = if is_not != is_unless { negated(&found)? } else { found };
                let pairs = all.iter().flat_map(|one| found.iter().map(move |two| one.and(two)));
                let both: Result<Vec<Option<Term>>, ()> = pairs.collect();
                all = both.map_err(|()| TOGETHER)?.into_iter().flatten().collect();
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

    pub(super) fn acl(&self, name: &str) -> Result<Vec<Term>, String> {
        let test = |words: &[&str]| terms(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<String>>(), true);
        match name {
            "TRUE" | "HTTP" => return Ok(vec![Term::default()]),
            "FALSE" => return Ok(Vec::new()),
            "LOCALHOST" => return test(&["src", "127.0.0.0/8", "::1"]),
            "METH_GET" => return test(&["method", "GET", "HEAD"]),
            _ if name.starts_with("METH_") => return test(&["method", &name["METH_".len()..]]),
            _ => {}
        }
        let known = self.acls.get(name).ok_or_else(|| format!("\"{name}\""))?;
        let mut all = Vec::new();
        for terms in known {
            all.extend(terms.clone()?);
        }
        Ok(all)
    }

    pub(super) fn add(&mut self, line: usize, terms: &[Term], action: &Action) {
        let has_both =
            self.listeners.iter().any(|(_, is_tls)| *is_tls) && self.listeners.iter().any(|(_, is_tls)| !is_tls);
        for term in terms {
            let rule = Rule { line, of: term.clone(), action: action.clone() };
            for listener in self.listeners.clone() {
                let is_tls = listener.1;
                // A redirect to https stands on the plaintext listener only, and nothing else does behind it.
                let is_elsewhere = term.is_tls.is_some_and(|wanted| wanted != is_tls);
                let is_redirected = !is_tls && has_both && matches!(action, Action::Backend(_));
                if !(is_elsewhere || is_redirected && self.is_redirected(&listener.0)) {
                    self.place(&listener, &rule, self.rules.len());
                }
            }
            self.rules.push(rule);
        }
    }

    /// Adds the routes of a rule on a listener.
    pub(super) fn put(&mut self, listener: &(String, bool), rule: &Rule) {
        let term = &rule.of;
        let path = match &term.path {
            None => Path::Prefix("/".into()),
            Some(Path::Regex(pattern)) if term.ignores_case => Path::Regex(format!("(?i){pattern}")),
            Some(path) => path.clone(),
        };
        let route = Route {
            line: rule.line,
            listener: listener.0.clone(),
            host: term.host.clone(),
            path,
            conditions: term.conditions.clone(),
            requires_certificate: false,
            action: rule.action.clone(),
            changes: Changes::default(),
        };
        self.add_beside(term, &route);
        let notes = self.plan.notes.len();
        self.plan.route(route);
        // Routes that a refused line stands in front of are told with that line.
        if !self.refused.is_empty() {
            self.plan.notes.truncate(notes);
        }
    }

    /// Adds the pattern for what a prefix of haproxy is for and one of segments is not. Prefixes before it that the
    /// pattern would take from become patterns in front of it.
    fn add_beside(&mut self, term: &Term, route: &Route) {
        let (Some(pattern), Path::Prefix(text) | Path::Exact(text)) = (beside(term, route), &route.path) else {
            return;
        };
        let is_before = |each: &&Route| match &each.path {
            Path::Prefix(longer) if (&each.listener, &each.host) == (&route.listener, &route.host) => {
                let is_longer =
                    longer.strip_prefix(text).is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
                let is_other = term.ignores_case && longer.to_ascii_lowercase().starts_with(&text.to_ascii_lowercase());
                is_longer || is_other && !longer.starts_with(text)
            }
            _ => false,
        };
        let before: Vec<Route> = self.plan.routes.iter().filter(is_before).cloned().collect();
        for each in before {
            let path = Path::Regex(format!("^{}", escaped(&path_text(&each.path))));
            let is_known = |known: &Route| {
                (&known.listener, &known.host, &known.path, &known.conditions)
                    == (&each.listener, &each.host, &path, &each.conditions)
            };
            if !self.plan.routes.iter().any(is_known) {
                self.plan.route(Route { path, ..each });
            }
        }
        self.plan.route(Route { path: pattern, ..route.clone() });
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

/// The fixed answer of a `return`; none where its body is made of requests.
pub(super) fn returned(line: &Line, status: u16) -> Option<Action> {
    let rest = line.words.iter().position(|word| word == "if" || word == "unless").unwrap_or(line.words.len());
    let own = line.until(rest);
    let mut keys = match (own.after("string"), own.after("file")) {
        (None, Some(file)) => vec![("status".into(), status.to_string()), ("body_file".into(), quoted(file))],
        (Some(body), _) => match respond(status, body) {
            Action::Respond(keys) => keys,
            _ => return None,
        },
        _ if rest <= 4 => return Some(respond(status, "")),
        _ => return None,
    };
    keys.extend(own.after("content-type").map(|kind| ("content_type".to_owned(), quoted(kind))));
    Some(Action::Respond(keys))
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
