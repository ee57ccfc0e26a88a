//! Servers of nginx at their addresses: whose a name is, which server is for all others, and whose word on the
//! addresses of clients is taken.
//!
//! All servers of an address are one listener here, which believes the same proxies for each of its routes. Rules by
//! address of a server that believes others would let in whom nginx keeps out: these answer 403.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use propylon_config::pattern::compile;

use super::reader::{Listen, Reader, bind};
use super::{if_redirect, locations};
use crate::changes::Changes;
use crate::guards::{Guard, Guarded};
use crate::plan::{CLOSED, Path, Route, escaped, quoted, respond};
use crate::terms::Term;
use crate::words::Directive;

/// Directives that say whose word on clients' addresses is taken.
pub(super) const REAL_IP: &[&str] = &["set_real_ip_from", "real_ip_header", "real_ip_recursive"];

/// Words for a rule by address that is not carried over.
pub(super) const APART: &str = "its addresses are not those that the listener goes by, which believes the same proxies \
                                for all servers at its port: give the server a port of its own, or write `source` in a \
                                route; until then its requests are answered with 403";
const OTHERS: &str = "a listener believes the same proxies for all of its servers, and by the PROXY protocol or \
                      X-Forwarded-For alone: write `forwarded` and `trusted_proxies` there, or give the server a port \
                      of its own";
const SHALLOW: &str = "without real_ip_recursive a client is the last address in X-Forwarded-For, and here the \
                       last that is no proxy's: see that `trusted_proxies` has the proxies alone, and write \
                       real_ip_recursive where one before a proxy's address is to be believed";
const TRUST: &str = "write `forwarded` and `trusted_proxies` in the listener, or accept_proxy_protocol";

/// Whose word on the address of a client is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Trust {
    /// The connection's alone.
    Peer,
    /// Word of X-Forwarded-For, from these networks; exact where nobody there is taken for a client.
    Forwarded { networks: BTreeSet<String>, is_exact: bool },
    /// Word of the PROXY protocol, from these networks.
    Proxy(BTreeSet<String>),
    /// Anything that the engine has no word for.
    Other,
}

/// A name of a server, with the hosts that it stands for.
struct Name<'d> {
    line: usize,
    text: &'d str,
    hosts: Vec<String>,
}

impl Reader<'_> {
    /// Addresses of each server, with the hosts that are its own there.
    pub(super) fn sites(&mut self, http: &Directive, servers: &[&Directive]) -> Vec<Vec<Listen>> {
        let all = servers.iter().flat_map(|server| server.inner()).filter(|each| each.name() == "listen");
        // The option holds for the socket, whichever of its servers has it.
        let is_both = |each: &&Directive| each.arguments().iter().any(|word| word == "ipv6only=off");
        let known: BTreeSet<String> = all.clone().map(|each| bind(each.word(1))).collect();
        let is_free = |own: &String| !known.contains(&own.replace("[::]", "0.0.0.0"));
        let both = all.filter(is_both).map(|each| bind(each.word(1))).filter(is_free).collect();
        let mut sites: Vec<Vec<Listen>> = servers.iter().map(|server| self.listens(server, &both)).collect();
        self.hosts(servers, &mut sites);
        self.patterns(servers, &mut sites);
        asked(servers, &mut sites);
        self.trusts(http, servers, &mut sites);
        sites
    }

    fn listens(&mut self, server: &Directive, both: &BTreeSet<String>) -> Vec<Listen> {
        let mut listens: Vec<Listen> = Vec::new();
        let all: Vec<&Directive> = server.inner().iter().filter(|each| each.name() == "listen").collect();
        let implied = Directive { line: server.line, words: vec!["listen".into(), "80".into()], block: None };
        for each in if all.is_empty() { vec![&implied] } else { all } {
            let has = |word: &str| each.arguments().iter().any(|each| each == word);
            if has("quic") {
                self.plan.note(each.line, each.text(), "HTTP/3 is not served yet");
                continue;
            }
            if each.word(1).starts_with("unix:") {
                self.plan.note(each.line, each.text(), "listeners are TCP: write an address with port");
                continue;
            }
            let own = bind(each.word(1));
            let ipv4 = own.strip_prefix("[::]").filter(|_| both.contains(&own)).map(|port| format!("0.0.0.0{port}"));
            let is_tls = has("ssl") || server.find("ssl").is_some_and(|ssl| ssl.word(1) == "on");
            for bind in ipv4.into_iter().chain([own]) {
                let listener = self.plan.listener(&bind, is_tls);
                if has("proxy_protocol") {
                    listener.keys.insert("accept_proxy_protocol".into(), "true".into());
                }
                let listener = listener.name.clone();
                let is_default = has("default_server") || has("default");
                match listens.iter_mut().find(|listen| listen.listener == listener) {
                    Some(known) => known.is_default |= is_default,
                    None => listens.push(Listen { listener, is_tls, is_default, ..Listen::default() }),
                }
            }
        }
        listens
    }

    /// Gives each server the hosts that are its own at an address: a name is the first server's that has it there, and
    /// what no name is for the default's.
    fn hosts(&mut self, servers: &[&Directive], sites: &mut [Vec<Listen>]) {
        let mut taken: BTreeMap<(String, String), (usize, usize)> = BTreeMap::new();
        let defaults = defaults(servers, sites);
        for (index, (server, listens)) in servers.iter().zip(sites).enumerate() {
            let names = self.names(server);
            for listen in listens {
                for name in &names {
                    let key = |host: &String| (listen.listener.clone(), host.clone());
                    let known = name.hosts.iter().find_map(|host| taken.get(&key(host)));
                    match known.filter(|(owner, _)| *owner != index) {
                        Some((_, line)) => {
                            let fix = format!(
                                "the server in line {line} has this name at the same address, and nginx ignores it \
                                 here, too: remove one of them"
                            );
                            self.plan.note(name.line, name.text, fix);
                        }
                        None => {
                            for host in &name.hosts {
                                taken.insert(key(host), (index, server.line));
                                let host = Some(host.clone());
                                if !listen.hosts.contains(&host) {
                                    listen.hosts.push(host);
                                }
                            }
                        }
                    }
                }
                match defaults.get(&listen.listener) {
                    Some((default, true)) if *default == index => listen.hosts.push(None),
                    Some((default, false)) if *default == index => {}
                    Some((default, _)) if is_nameless(server) => {
                        let fix = format!(
                            "it has no name that a request could ask for, and nginx leads what no name is for to the \
                             server in line {}: no request comes to it; write a `host` for its routes, or \
                             `default_server`",
                            servers[*default].line
                        );
                        self.plan.note(server.line, "server", fix);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Gives servers the hosts that their names say by patterns: `~^a\d\.test$`, `mail.*`. Routes with these go behind
    /// any others for longer paths, so that one server alone of an address can have them, and no default beside it;
    /// hosts of others are answered with 403.
    fn patterns(&mut self, servers: &[&Directive], sites: &mut [Vec<Listen>]) {
        let all: Vec<Vec<(usize, &str)>> = servers.iter().map(|server| unsaid(server)).collect();
        for at in 0..servers.len() {
            for place in 0..sites[at].len() {
                let listener = sites[at][place].listener.clone();
                let is_there = |index: &usize| sites[*index].iter().any(|listen| listen.listener == listener);
                let is_open = |index: usize| {
                    let own = sites[index].iter().filter(|listen| listen.listener == listener);
                    !all[index].is_empty() || own.into_iter().any(|listen| listen.hosts.contains(&None))
                };
                let is_alone = !(0..servers.len()).filter(is_there).any(|index| index != at && is_open(index));
                // Hosts that no name is for are the default's, and these are as well.
                if is_alone && sites[at][place].hosts.contains(&None) {
                    continue;
                }
                for (line, name) in &all[at] {
                    let pattern = pattern(name);
                    match &pattern {
                        Some(pattern) if is_alone => {
                            let value = format!("{{ regex = {} }}", quoted(pattern));
                            sites[at][place].patterns.push(value);
                        }
                        _ => {
                            let fix = format!(
                                "it is no host name or `*.` before one, and routes of other servers would go before \
                                 those by its pattern: write a route for each host; {CLOSED}"
                            );
                            self.plan.note(*line, *name, fix);
                            self.shut.push((listener.clone(), servers[at].line, pattern));
                        }
                    }
                }
            }
        }
    }

    /// Answers for hosts of servers that no route is made of, in front of all that no name is for.
    pub(super) fn shut_hosts(&mut self) {
        let tls: BTreeMap<String, bool> =
            self.plan.listeners.iter().map(|each| (each.name.clone(), each.is_tls)).collect();
        for (listener, line, pattern) in std::mem::take(&mut self.shut) {
            let value = format!("{{ regex = {} }}", quoted(pattern.as_deref().unwrap_or("")));
            let conditions = BTreeMap::from([(("host".to_owned(), String::new()), value)]);
            let of = Term { conditions: conditions.clone(), ..Term::default() };
            let action = respond(403, "");
            let guard =
                Guard { line, from: 0, of, except: Vec::new(), action: action.clone(), proof: None, is_whole: true };
            let is_for_others = |route: &Route| route.listener == listener && route.host.is_none();
            let (open, rest): (Vec<Route>, Vec<Route>) =
                std::mem::take(&mut self.plan.routes).into_iter().partition(is_for_others);
            let guarded = Guarded::over(std::slice::from_ref(&guard), &tls, open);
            self.plan.routes = rest;
            let notes = self.plan.notes.len();
            guarded.routes.into_iter().for_each(|route| self.plan.route(route));
            let (path, changes) = (Path::Prefix("/".into()), Changes::default());
            let (host, requires_certificate) = (None, false);
            self.plan.route(Route { line, listener, host, path, conditions, requires_certificate, action, changes });
            self.plan.notes.truncate(notes);
        }
    }

    /// Names of a server that can be said.
    fn names<'d>(&mut self, server: &'d Directive) -> Vec<Name<'d>> {
        let mut names = Vec::new();
        for each in server.inner().iter().filter(|each| each.name() == "server_name") {
            for text in each.arguments() {
                // Names by patterns are looked at with the other servers of an address.
                let Some(host) = host(text) else { continue };
                // A name with a dot in front is that name as well.
                let bare = text.strip_prefix('.').map(str::to_ascii_lowercase);
                let hosts = bare.into_iter().chain([host]).collect();
                names.push(Name { line: each.line, text, hosts });
            }
        }
        names
    }

    /// Has each listener believe whom its servers with rules by address believe, or else whom the first of them does.
    fn trusts(&mut self, http: &Directive, servers: &[&Directive], sites: &mut [Vec<Listen>]) {
        for server in servers {
            for each in locations::all(server).into_iter().flat_map(|location| location.find("set_real_ip_from")) {
                self.plan.note(each.line, each.text(), TRUST);
            }
        }
        let trusts: Vec<Trust> = servers.iter().map(|server| trust(&[server, http])).collect();
        let has_rules: Vec<bool> = servers.iter().map(|server| has_rules(http, server)).collect();
        let all: BTreeSet<String> = sites.iter().flatten().map(|listen| listen.listener.clone()).collect();
        for name in all {
            let Some(listener) = self.plan.listeners.iter_mut().find(|each| each.name == name) else { continue };
            let accepts = listener.keys.contains_key("accept_proxy_protocol");
            let own = |index: &usize| sites[*index].iter().any(|listen| listen.listener == name);
            let of: Vec<(usize, Option<Trust>)> =
                (0..servers.len()).filter(own).map(|index| (index, trusts[index].at(accepts))).collect();
            let ruled = of.iter().filter(|(index, _)| has_rules[*index]).filter_map(|(_, trust)| trust.as_ref());
            let first = of.iter().filter_map(|(_, trust)| trust.as_ref()).find(|trust| **trust != Trust::Peer);
            let chosen = ruled.clone().find(|trust| trust.is_exact()).or(first).cloned().unwrap_or(Trust::Peer);
            match &chosen {
                Trust::Forwarded { networks, .. } => {
                    listener.keys.insert("forwarded".into(), quoted("append"));
                    listener.keys.insert("trusted_proxies".into(), list(networks));
                }
                Trust::Proxy(networks) => drop(listener.keys.insert("trusted_proxies".into(), list(networks))),
                Trust::Peer | Trust::Other => {}
            }
            for (index, trust) in of {
                let is_other = trust.as_ref() != Some(&chosen);
                let is_apart = is_other || !chosen.is_exact();
                let directive = [servers[index], http].iter().find_map(|block| block.find("set_real_ip_from"));
                if let Some(each) = directive.filter(|_| is_other || is_apart && has_rules[index]) {
                    self.plan.note(each.line, each.text(), if is_other { OTHERS } else { SHALLOW });
                }
                let own = sites[index].iter_mut().filter(|listen| listen.listener == name);
                own.for_each(|listen| listen.is_apart = is_apart);
            }
        }
    }
}

impl Trust {
    fn is_exact(&self) -> bool {
        !matches!(self, Trust::Forwarded { is_exact: false, .. })
    }

    /// The same as the engine has it, at a listener that accepts the PROXY protocol or not; none where it has not.
    fn at(&self, accepts: bool) -> Option<Trust> {
        match (self, accepts) {
            (Trust::Peer | Trust::Forwarded { .. }, false) | (Trust::Proxy(_), true) => Some(self.clone()),
            (Trust::Proxy(_), false) => Some(Trust::Peer),
            (Trust::Peer | Trust::Forwarded { .. }, true) | (Trust::Other, _) => None,
        }
    }
}

fn list(networks: &BTreeSet<String>) -> String {
    format!("[{}]", networks.iter().map(|network| quoted(network)).collect::<Vec<String>>().join(", "))
}

/// Whose word a server takes. Without `real_ip_recursive` nginx asks one proxy alone, and the engine as many as it
/// believes: clients at a proxy's own address could claim any address.
fn trust(blocks: &[&Directive]) -> Trust {
    let find = |name: &str| blocks.iter().find_map(|block| block.find(name));
    let Some(block) = blocks.iter().find(|block| block.find("set_real_ip_from").is_some()) else { return Trust::Peer };
    let all = block.inner().iter().filter(|each| each.name() == "set_real_ip_from").map(|each| each.word(1));
    let networks: BTreeSet<String> = all.filter(|from| *from != "unix:").map(str::to_owned).collect();
    let is_network = |text: &String| {
        let (address, length) = text.split_once('/').unwrap_or((text, "0"));
        address.parse::<IpAddr>().is_ok() && length.parse::<u8>().is_ok()
    };
    let is_deep = find("real_ip_recursive").is_some_and(|each| each.word(1) == "on");
    match find("real_ip_header").map_or("x-real-ip".into(), |each| each.word(1).to_ascii_lowercase()).as_str() {
        _ if networks.is_empty() => Trust::Peer,
        _ if !networks.iter().all(is_network) => Trust::Other,
        "x-forwarded-for" => Trust::Forwarded { networks, is_exact: is_deep },
        "proxy_protocol" => Trust::Proxy(networks),
        _ => Trust::Other,
    }
}

/// Whether some request to a server is kept out or let in by its address.
fn has_rules(http: &Directive, server: &Directive) -> bool {
    let locations = locations::all(server);
    let excepts = locations.iter().filter_map(|location| location.find("limit_except"));
    let blocks = locations.iter().copied().chain(excepts).chain([server, http]);
    let mut all = blocks.flat_map(Directive::inner).filter(|each| ["allow", "deny"].contains(&each.name()));
    all.any(|each| each.word(1) != "all")
}

/// The default of each listener, and whether it is for all hosts that no name is for. The first is one by its place
/// alone: where all have names it has no others.
fn defaults(servers: &[&Directive], sites: &[Vec<Listen>]) -> BTreeMap<String, (usize, bool)> {
    let mut defaults: BTreeMap<String, (usize, bool)> = BTreeMap::new();
    let each = |(index, listens): (usize, &Vec<Listen>)| {
        listens.iter().map(|listen| (index, listen.is_default, listen.listener.clone())).collect::<Vec<_>>()
    };
    let all: Vec<(usize, bool, String)> = sites.iter().enumerate().flat_map(each).collect();
    for (index, is_default, listener) in &all {
        let is_for_all = *is_default || is_nameless(servers[*index]);
        defaults.entry(listener.clone()).and_modify(|(_, known)| *known |= is_for_all).or_insert((*index, is_for_all));
    }
    for (index, _, listener) in all.into_iter().filter(|(_, is_default, _)| *is_default) {
        defaults.insert(listener, (index, true));
    }
    defaults
}

/// Gives each server the hosts that its conditions ask for, where requests for these come to it.
fn asked(servers: &[&Directive], sites: &mut [Vec<Listen>]) {
    let defaults = defaults(servers, sites);
    for (index, server) in servers.iter().enumerate() {
        let hosts: BTreeSet<String> = server.inner().iter().filter_map(if_redirect).map(|(host, _)| host).collect();
        for at in 0..sites[index].len() {
            let listener = sites[index][at].listener.clone();
            let rank_at = |index: usize, host: &str| {
                let own = sites[index].iter().find(|listen| listen.listener == listener)?;
                rank(servers[index], own, host)
            };
            let owner = |host: &str| {
                // The first of those that fit equally well has it.
                let all = (0..servers.len()).rev().filter_map(|index| Some((rank_at(index, host)?, index)));
                let best = all.max_by_key(|(rank, _)| *rank).map(|(_, index)| index);
                best.or_else(|| defaults.get(&listener).map(|(index, _)| *index))
            };
            let own = hosts.iter().filter(|host| owner(host) == Some(index)).cloned().collect();
            sites[index][at].asked = own;
        }
    }
}

/// Rank of the name of a server that fits a host best, as nginx chooses: by kind and length.
fn rank(server: &Directive, listen: &Listen, host: &str) -> Option<(u8, usize)> {
    let is_below = |suffix: &str| host.len() > suffix.len() && host.ends_with(suffix);
    let of_host = |own: &String| match own.strip_prefix('*') {
        Some(suffix) => is_below(suffix).then_some((2, suffix.len())),
        None => (own == host).then_some((3, 0)),
    };
    let of_name = |name: &String| {
        let prefix = name.strip_suffix('*').filter(|prefix| prefix.ends_with('.')).map(str::to_ascii_lowercase);
        match (name.strip_prefix('~'), prefix) {
            (Some(text), _) => {
                let pattern = compile(&format!("(?i){text}")).ok()?;
                pattern.is_match(host.as_bytes()).then_some((0, 0))
            }
            (None, Some(prefix)) => {
                (host.len() > prefix.len() && host.starts_with(&prefix)).then_some((1, prefix.len()))
            }
            (None, None) => None,
        }
    };
    let names = server.inner().iter().filter(|each| each.name() == "server_name").flat_map(Directive::arguments);
    listen.hosts.iter().flatten().filter_map(of_host).chain(names.filter_map(of_name)).max()
}

/// Whether a server has no name that a request could ask for, and none by pattern.
fn is_nameless(server: &Directive) -> bool {
    let all = server.inner().iter().filter(|each| each.name() == "server_name");
    all.flat_map(Directive::arguments).all(|name| is_no_name(name))
}

/// Names of a server that are no hosts, with their lines.
fn unsaid(server: &Directive) -> Vec<(usize, &str)> {
    let lines = server.inner().iter().filter(|each| each.name() == "server_name");
    let all = lines.flat_map(|each| each.arguments().iter().map(|name| (each.line, name.as_str())));
    all.filter(|(_, name)| host(name).is_none() && !is_no_name(name)).collect()
}

/// The pattern of the hosts that a name stands for; none where Propylon has no such pattern.
fn pattern(name: &str) -> Option<String> {
    let pattern = match (name.strip_prefix('~'), name.strip_suffix('*')) {
        (Some(pattern), _) => format!("(?i){pattern}"),
        (None, Some(begin)) if begin.ends_with('.') => format!("(?i)^{}.", escaped(begin)),
        _ => return None,
    };
    compile(&pattern).is_ok().then_some(pattern)
}

fn is_no_name(name: &str) -> bool {
    !name.starts_with('~') && !name.contains(|c: char| c.is_alphanumeric() || c == '*')
}

/// The host of a name, where it is one or has `*.` in front.
pub(super) fn host(name: &str) -> Option<String> {
    let name = name.to_ascii_lowercase();
    let name = name.strip_prefix('.').map_or(name.clone(), |rest| format!("*.{rest}"));
    let rest = name.strip_prefix("*.").unwrap_or(&name);
    let is_name = rest.contains(|c: char| c.is_ascii_alphanumeric())
        && rest.chars().all(|c| c.is_alphanumeric() || "-._".contains(c))
        && rest != "_";
    is_name.then_some(name)
}
