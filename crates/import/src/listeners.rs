//! Listeners of a plan: one for each address and port while a configuration is read; those that answer alike are one
//! in the end, and all get their names.
//!
//! An address of its own keeps requests apart in haproxy, nginx and Caddy: what is served at 127.0.0.1 is nobody's
//! business at 0.0.0.0. The kernel gives a connection to the socket of its address before that of the wildcard.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use crate::plan::{Listener, NAME_LENGTH_MAX, Plan, Route, name_of};

impl Plan {
    /// The listener of HTTP at this address and port, made where there is none.
    pub fn listener(&mut self, bind: &str, is_tls: bool) -> &mut Listener {
        let base = match (port(bind), is_tls) {
            ("80", false) => "http".to_owned(),
            ("443", true) => "https".to_owned(),
            (port, false) => format!("http-{port}"),
            (port, true) => format!("https-{port}"),
        };
        self.listener_named(&base, bind, is_tls)
    }

    /// The listener at this address and port whose name begins so, made where there is none. Until the plan is
    /// finished it is known by all of these.
    pub fn listener_named(&mut self, base: &str, bind: &str, is_tls: bool) -> &mut Listener {
        let bind = bind.parse::<SocketAddr>().map_or(bind.to_owned(), |address| address.to_string());
        let name = format!("{base} {bind}{}", if is_tls { " tls" } else { "" });
        let known = self.listeners.iter().position(|each| each.name == name);
        let index = known.unwrap_or_else(|| {
            let (base, bind) = (base.to_owned(), vec![bind]);
            self.listeners.push(Listener { name, base, bind, is_tls, ..Listener::default() });
            self.listeners.len() - 1
        });
        &mut self.listeners[index]
    }

    /// Joins listeners that answer alike, and names all of them.
    pub fn settle_listeners(&mut self) {
        let mut kept: Vec<Listener> = Vec::new();
        for listener in std::mem::take(&mut self.listeners) {
            let alike = kept.iter().position(|each| self.is_alike(each, &listener));
            match alike {
                None => kept.push(listener),
                Some(index) => {
                    self.routes.retain(|route| route.listener != listener.name);
                    kept[index].bind.extend(listener.bind);
                }
            }
        }
        for listener in &mut kept {
            let all = listener.bind.clone();
            // An address beside its own listener's wildcard is no other one.
            listener.bind.retain(|bind| is_wildcard(bind) || !all.iter().any(|wildcard| covers(wildcard, bind)));
        }
        let names = names(&kept);
        for route in &mut self.routes {
            if let Some(index) = kept.iter().position(|each| each.name == route.listener) {
                route.listener.clone_from(&names[index]);
            }
        }
        kept.iter_mut().zip(names).for_each(|(listener, name)| listener.name = name);
        self.listeners = kept;
    }

    /// Whether two listeners, by their names so far, are the same but for their addresses.
    fn is_alike(&self, one: &Listener, two: &Listener) -> bool {
        let is_same_but_bind = (&one.base, one.is_tls, one.policy) == (&two.base, two.is_tls, two.policy)
            && (&one.certificates, &one.client_auth) == (&two.certificates, &two.client_auth)
            && (&one.keys, &one.timeouts, &one.request_headers) == (&two.keys, &two.timeouts, &two.request_headers);
        let routes = |of: &Listener| {
            let name = of.name.clone();
            self.routes.iter().filter(move |route| route.listener == name)
        };
        is_same_but_bind && routes(one).map(said).eq(routes(two).map(said))
    }
}

/// Everything that a route says, but for its listener and the line that it comes of.
fn said(route: &Route) -> impl PartialEq + '_ {
    let Route { line: _, listener: _, host, path, conditions, requires_certificate, action, changes } = route;
    (host, path, conditions, requires_certificate, action, changes)
}

fn port(bind: &str) -> &str {
    bind.rsplit(':').next().unwrap_or_default()
}

fn address(bind: &str) -> &str {
    bind.rsplit_once(':').map_or("", |(address, _)| address)
}

fn is_wildcard(bind: &str) -> bool {
    ["0.0.0.0", "[::]"].contains(&address(bind))
}

/// Whether an address is one of those of a wildcard, at the same port.
fn covers(wildcard: &str, bind: &str) -> bool {
    match (wildcard.parse::<SocketAddr>(), bind.parse::<SocketAddr>()) {
        (Ok(wildcard), Ok(bind)) => {
            wildcard.ip().is_unspecified() && (wildcard.is_ipv4(), wildcard.port()) == (bind.is_ipv4(), bind.port())
        }
        _ => false,
    }
}

/// A name for each listener: the one that it begins with, and the address of those that are not alone with it. The
/// wildcard of IPv4 has none behind it, whatever stands beside it.
fn names(listeners: &[Listener]) -> Vec<String> {
    let mut taken = BTreeSet::new();
    let mut names = vec![String::new(); listeners.len()];
    let is_alone = |listener: &Listener| listeners.iter().filter(|each| each.base == listener.base).count() == 1;
    let has_plain = |listener: &Listener| {
        is_alone(listener) || listener.bind.first().is_some_and(|bind| address(bind) == "0.0.0.0")
    };
    let plain = listeners.iter().enumerate().filter(|(_, listener)| has_plain(listener));
    for (index, listener) in plain {
        if taken.insert(listener.base.clone()) {
            names[index].clone_from(&listener.base);
        }
    }
    for (index, listener) in listeners.iter().enumerate() {
        if !names[index].is_empty() {
            continue;
        }
        let bind = listener.bind.first().map_or("", String::as_str);
        let port = port(bind);
        let place = match address(bind) {
            "0.0.0.0" => port.to_owned(),
            "[::]" => "ipv6".to_owned(),
            address => match address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                Some(ipv6) => format!("ipv6-{}", ipv6.replace(':', "-").trim_matches('-')),
                None => address.to_owned(),
            },
        };
        let tries = [place.clone(), format!("{place}-{port}")];
        let more = (2..).map(|number| format!("{place}-{port}-{number}"));
        let mut all = tries.into_iter().chain(more).map(|end| ending_with(&listener.base, &end));
        names[index] = all.find(|name| taken.insert(name.clone())).unwrap_or_default();
    }
    names
}

/// A name of both; of those that are too long for one the beginnings go on.
fn ending_with(base: &str, end: &str) -> String {
    let end: String = end.chars().rev().take(NAME_LENGTH_MAX / 2).collect::<Vec<char>>().into_iter().rev().collect();
    let base: String = base.chars().take(NAME_LENGTH_MAX - 1 - end.chars().count()).collect();
    name_of(&format!("{base}-{end}"))
}
