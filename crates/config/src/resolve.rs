//! Checks across sections: what is right by itself, but not beside the rest.

mod answers;
mod change;
mod guards;

pub(crate) use change::note_server_names;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use crate::canonical::route_key;
use crate::context::{Context, RouteDraft};
use crate::hidden;
use crate::model::{
    AcmeChallenge, Action, At, Backend, CertificateSource, Conditions, Config, Fact, FactCondition, Forwarded,
    HedgeAfter, HostPattern, LimitKey, Listener, ListenerId, LogField, Ordered, PathChange, PathPattern, Percentile,
    Piece, Priority, Proof, Protocol, Redirect, RedirectPath, Route, ServerProtocol, Side, Steps, TextCondition,
    TextTest, TlsFact, TlsGroup, TlsProfile, TlsSuite, TlsVersion,
};
use crate::report::Report;
use crate::wording::{is_claim, shown};

/// Reports what clashes, what is unused and what cannot be reached.
pub(crate) fn check(context: &Context<'_, '_>, config: &Config, routes: &[RouteDraft]) {
    let report = context.report;
    binds(report, config);
    let patterns = ambiguous_routes(report, routes);
    redirect_loops(report, config, routes, &patterns);
    monitor_paths(report, config, routes);
    unreached(report, config, routes);
    plaintext_before_redirects(report, config, routes, &patterns);
    identities(report, config, routes);
    limit_keys(report, config, routes);
    facts(report, config);
    relays(report, config, routes);
    own_fields(report, config, routes);
    proven_fields(report, config, routes);
    facts_of_routes(report, config, routes);
    hidden::check(report, routes);
    mirrors(report, config, routes);
    questions(report, config, routes);
    priorities(report, config, routes);
    hedges(report, config, routes);
    browsers_calls(report, config, routes);
    buffers(report, config, routes);
    auth(report, config, routes);
    change::check(report, config, routes);
    logged_keys(report, config, routes);
    guards::check(report, routes);
    answers::check(report, config, routes);
    // Sections that are absent from the tree may only be missing because of an error elsewhere in the text.
    if report.is_whole() {
        reach(report, config, routes);
        relays_lead_somewhere(report, config, routes);
        challenges(report, config);
        unused(context, config, routes);
    }
}

/// Listener of an address.
#[derive(Clone, Copy)]
struct Taken<'c> {
    /// `None`: the admin API.
    listener: Option<&'c Listener>,
    address: SocketAddr,
    at: At,
}

impl Taken<'_> {
    fn owner(&self, report: &Report<'_>) -> String {
        let line = report.line_at(self.at);
        match self.listener {
            Some(listener) => format!("[listener.{}] in {line}", shown(&listener.name)),
            None => format!("[admin] in {line}"),
        }
    }

    fn is_wildcard(&self) -> bool {
        self.address.ip().is_unspecified()
    }
}

/// The same address twice would be served by both by turns, since all sockets share their ports. An address beside a
/// wildcard of the same port and family works: the kernel prefers the socket that is bound to the address itself. IPv4
/// and IPv6 do not meet, since IPv6 sockets are for IPv6 only.
fn binds(report: &Report<'_>, config: &Config) {
    let listeners = config.listeners.iter().flat_map(|listener| {
        let taken = |address, at| Taken { listener: Some(listener), address, at };
        listener.bind.iter().map(move |bind| taken(bind.address, bind.at))
    });
    let admin = config.admin.iter().filter_map(|admin| Some((admin.bind.address()?, admin.at)));
    let admin = admin.map(|(address, at)| Taken { listener: None, address, at });
    // With port 0 each socket gets a port of its own.
    let mut all: Vec<Taken<'_>> = listeners.chain(admin).filter(|taken| taken.address.port() != 0).collect();
    all.sort_by_key(|taken| taken.at);

    let mut exact: HashMap<SocketAddr, Taken<'_>> = HashMap::new();
    let mut wildcards: HashMap<(bool, u16), Taken<'_>> = HashMap::new();
    for taken in &all {
        if let Some(first) = exact.get(&taken.address) {
            let what = format!("{} is taken by {}", taken.address, first.owner(report));
            report.error_at(taken.at, what, "choose another address or port, or remove one of the two");
            continue;
        }
        exact.insert(taken.address, *taken);
        if taken.is_wildcard() {
            wildcards.insert((taken.address.is_ipv6(), taken.address.port()), *taken);
        }
    }
    let first = |taken: &&Taken<'_>| exact.get(&taken.address).is_some_and(|first| first.at == taken.at);
    for taken in all.iter().filter(first).filter(|taken| !taken.is_wildcard()) {
        if let Some(wildcard) = wildcards.get(&(taken.address.is_ipv6(), taken.address.port())) {
            overlap(report, taken, wildcard);
        }
    }
}

fn overlap(report: &Report<'_>, taken: &Taken<'_>, wildcard: &Taken<'_>) {
    let what = format!("{} is covered by {} of {}", taken.address, wildcard.address, wildcard.owner(report));
    match (taken.listener, wildcard.listener) {
        (Some(one), Some(other)) if std::ptr::eq(one, other) => {
            report.warning_at(taken.at, what, "remove it");
        }
        (Some(_), Some(_)) => {
            let what = format!("{what}; connections to {} come here only", taken.address.ip());
            report.warning_at(taken.at, what, "nothing, if that is meant; else choose another port");
        }
        // The admin API does not share its port.
        _ => report.error_at(taken.at, what, "choose another port"),
    }
}

/// Matching part of a route, as far as two routes can be equal in it: its path as it is compared with requests', so
/// that two spellings of one path are one here as well.
pub(crate) type Pattern<'c> = (Option<ListenerId>, &'c HostPattern, PathPattern, &'c Conditions);

pub(crate) fn pattern(route: &Route) -> Pattern<'_> {
    (route.listener, &route.host, compared(&route.path), &route.conditions)
}

/// A route's path as the engine compares it.
fn compared(path: &PathPattern) -> PathPattern {
    match path {
        PathPattern::Prefix(prefix) => PathPattern::Prefix(route_key(prefix)),
        PathPattern::Exact(path) => PathPattern::Exact(route_key(path)),
        PathPattern::Regex(_) => path.clone(),
    }
}

fn written(path: &PathPattern) -> &str {
    match path {
        PathPattern::Prefix(path) | PathPattern::Exact(path) | PathPattern::Regex(path) => path,
    }
}

/// A prefix that every path begins with.
fn is_every_path(path: &PathPattern) -> bool {
    compared(path) == PathPattern::Prefix("/".to_string())
}

/// A route of one listener beats the same route of any listener, so those two are not ambiguous.
fn ambiguous_routes<'c>(report: &Report<'_>, routes: &'c [RouteDraft]) -> HashSet<Pattern<'c>> {
    let mut first: HashMap<Pattern<'_>, &RouteDraft> = HashMap::new();
    for draft in routes.iter().filter(|draft| draft.complete) {
        if let Some(earlier) = first.get(&pattern(&draft.route)) {
            let line = report.line(earlier.span);
            let mut what = format!("this route stands for the same requests as the one in {line}");
            let (other, own) = (written(&earlier.route.path), written(&draft.route.path));
            if other != own {
                what.push_str(&format!(": \"{}\" and \"{}\" are one path to routes", shown(other), shown(own)));
            }
            report.error(draft.span, what, "change its listener, host, path or `match`, or remove one of the two");
        } else {
            first.insert(pattern(&draft.route), draft);
        }
    }
    first.into_keys().collect()
}

/// Listeners and addresses that are looked at for all redirects together; thousands of each would take too long, and
/// the check is a courtesy.
const LOOP_STEPS_MAX: usize = 1_000_000;

/// A redirect loops where some listener sends a request back to the very URL that it came for.
fn redirect_loops(report: &Report<'_>, config: &Config, routes: &[RouteDraft], patterns: &HashSet<Pattern<'_>>) {
    let mut steps = 0;
    for draft in routes.iter().filter(|draft| draft.complete) {
        let Action::Redirect(redirect) = &draft.route.action else {
            continue;
        };
        if !keeps_url(&draft.route, redirect) {
            continue;
        }
        let (_, host, path, conditions) = pattern(&draft.route);
        let loops = reached(config, &draft.route).find(|(id, listener)| {
            steps += 1 + listener.bind.len();
            let shadowed =
                draft.route.listener.is_none() && patterns.contains(&(Some(*id), host, path.clone(), conditions));
            steps <= LOOP_STEPS_MAX && !shadowed && keeps_origin(listener, redirect)
        });
        if steps > LOOP_STEPS_MAX {
            return;
        }
        if let Some((_, listener)) = loops {
            let name = shown(&listener.name);
            let what = format!("on [listener.{name}] this redirect leads to where the request came from");
            let fix = "name the `listener` that the route is for, or change where it leads";
            report.warning(draft.span, what, fix);
        }
    }
}

/// Whether the redirect leaves host and path as they are, for at least one request.
fn keeps_url(route: &Route, redirect: &Redirect) -> bool {
    let host = match (&redirect.host, &route.host) {
        (None, _) => true,
        (Some(to), HostPattern::Exact(from)) => to == from,
        // Most hosts that a pattern stands for lead elsewhere, and the one that does not has a route of its own.
        (Some(_), _) => false,
    };
    let path = match (&redirect.path, &route.path) {
        (None, _) => true,
        // Parts behind the path are not looked at when the request comes again.
        (Some(RedirectPath::Fixed(to)), from) => {
            route_key(to.split(['?', '#']).next().unwrap_or_default()) == route_key(written(from))
        }
        (Some(RedirectPath::Changed(change)), from) => keeps_path(change, from),
    };
    // Without any of them it is refused already.
    let empty =
        redirect.scheme.is_none() && redirect.host.is_none() && redirect.port.is_none() && redirect.path.is_none();
    host && path && !empty
}

/// Whether a change of paths leads to the path that the route is for.
fn keeps_path(change: &PathChange, from: &PathPattern) -> bool {
    match change {
        PathChange::ReplacePrefix { replace_prefix: to } | PathChange::Replace { replace: to } => {
            route_key(to) == route_key(written(from))
        }
        // Other paths are not redirected.
        PathChange::Strip { .. } | PathChange::Regex { .. } => false,
    }
}

/// Whether the redirect leaves scheme and port as they are on this listener.
fn keeps_origin(listener: &Listener, redirect: &Redirect) -> bool {
    let scheme = if listener.tls.is_some() { "https" } else { "http" };
    let same_scheme = redirect.scheme.as_deref().is_none_or(|to| to == scheme);
    let same_port = redirect.port.is_none_or(|to| listener.bind.iter().any(|bind| bind.address.port() == to));
    same_scheme && same_port
}

fn reached<'c>(config: &'c Config, route: &Route) -> impl Iterator<Item = (ListenerId, &'c Listener)> {
    let only = route.listener;
    let range = match only {
        Some(ListenerId(id)) => id..(id + 1).min(config.listeners.len()),
        None => 0..config.listeners.len(),
    };
    // A route for any listener is for http listeners.
    let is_reached = move |listener: &Listener| {
        (only.is_some() || !listener.protocol.is_relay()) && listener.redirect_to_https.is_none()
    };
    range.map(|id| (ListenerId(id), &config.listeners[id])).filter(move |(_, listener)| is_reached(listener))
}

/// The monitor path is answered before any route is looked at.
fn monitor_paths(report: &Report<'_>, config: &Config, routes: &[RouteDraft]) {
    let mut monitors: HashMap<&str, Vec<ListenerId>> = HashMap::new();
    for (id, listener) in config.listeners.iter().enumerate() {
        if let Some(path) = &listener.monitor_path {
            monitors.entry(path).or_default().push(ListenerId(id));
        }
    }
    for draft in routes.iter().filter(|draft| draft.complete) {
        let PathPattern::Exact(path) = &draft.route.path else {
            continue;
        };
        // A monitor path is written as it is compared.
        let Some(listeners) = monitors.get(route_key(path).as_str()) else {
            continue;
        };
        let hit = listeners.iter().find(|id| draft.route.listener.is_none_or(|only| only == **id));
        if let Some(ListenerId(id)) = hit {
            let name = shown(&config.listeners[*id].name);
            let what = format!("requests for this path are answered by `monitor_path` of [listener.{name}]");
            report.warning(draft.span, what, "choose another path for one of the two");
        }
    }
}

/// A listener that redirects everything looks at no route.
fn unreached(report: &Report<'_>, config: &Config, routes: &[RouteDraft]) {
    for draft in routes.iter().filter(|draft| draft.complete) {
        let listener = draft.route.listener.and_then(|id| config.listeners.get(id.0));
        if let Some(listener) = listener.filter(|listener| listener.redirect_to_https.is_some()) {
            let name = shown(&listener.name);
            let what = format!("[listener.{name}] has `redirect_to_https`: no request gets to this route");
            report.warning(draft.span, what, "remove the route, or name another `listener`");
        }
    }
}

/// A redirect of all to https looks as if it held for all, and a route that is for any listener and says more of the host
/// or the path goes before it: its requests are served in plaintext.
fn plaintext_before_redirects(
    report: &Report<'_>,
    config: &Config,
    routes: &[RouteDraft],
    patterns: &HashSet<Pattern<'_>>,
) {
    let is_for_all =
        |route: &Route| route.host == HostPattern::Any && is_every_path(&route.path) && route.conditions.is_empty();
    let is_to_https = |route: &Route| match &route.action {
        Action::Redirect(redirect) => redirect.scheme.as_deref() == Some("https"),
        _ => false,
    };
    let redirects =
        routes.iter().filter(|draft| draft.complete && is_for_all(&draft.route) && is_to_https(&draft.route));
    let mut redirected: Vec<(ListenerId, String)> = Vec::new();
    for draft in redirects {
        let plain = reached(config, &draft.route).filter(|(_, listener)| listener.tls.is_none());
        redirected.extend(plain.map(|(id, _)| (id, report.line(draft.span))));
    }
    let is_served = |draft: &&RouteDraft| {
        let route = &draft.route;
        draft.complete && route.listener.is_none() && !is_for_all(route) && matches!(route.action, Action::Backend(_))
    };
    let mut steps = 0;
    for draft in routes.iter().filter(is_served) {
        let (_, host, path, conditions) = pattern(&draft.route);
        let shadow = |id: ListenerId| patterns.contains(&(Some(id), host, path.clone(), conditions));
        steps += redirected.len();
        if steps > LOOP_STEPS_MAX {
            return;
        }
        if let Some((id, line)) = redirected.iter().find(|(id, _)| !shadow(*id)) {
            let name = shown(&config.listeners[id.0].name);
            let what = format!(
                "on [listener.{name}] this route goes before the redirect to https in {line}: its requests are served in plaintext"
            );
            let fix = format!(
                "name the `listener` that the route is for, or give [listener.{name}] redirect_to_https = true"
            );
            report.warning(draft.span, what, fix);
        }
    }
}

/// A route that only clients with a certificate may take needs a listener that asks for one.
fn identities(report: &Report<'_>, config: &Config, routes: &[RouteDraft]) {
    let asks = |listener: &Listener| profile(config, listener).is_some_and(|tls| tls.client_auth.is_some());
    for draft in routes.iter().filter(|draft| draft.complete && draft.route.require_client_certificate) {
        let deaf: Vec<&Listener> =
            reached(config, &draft.route).map(|(_, listener)| listener).filter(|listener| !asks(listener)).collect();
        let Some(first) = deaf.first() else { continue };
        let name = shown(&first.name);
        let what = format!("on [listener.{name}] no client is asked for a certificate: this route answers 403 to all");
        if deaf.len() == reached(config, &draft.route).count() {
            report.error(
                draft.span,
                what,
                "add `client_auth` to its [tls.NAME], or remove `require_client_certificate`",
            );
        } else {
            report.warning(draft.span, what, "name the `listener` that the route is for, if that is not meant");
        }
    }
}

/// Keys by which requests of a route are told apart: what has each, where it stands, and its parts.
fn keys<'a>(report: &Report<'_>, draft: &'a RouteDraft) -> impl Iterator<Item = (&'static str, At, &'a [LimitKey])> {
    let (steps, at) = (&draft.route.steps, report.at(draft.span));
    let paced = steps.throttle.iter().filter_map(|throttle| throttle.by.as_ref());
    let limits = steps.limit.iter().map(|limit| ("limit", limit.at, &limit.key[..]));
    limits.chain(paced.map(move |by| ("throttle", at, &by.parts[..])))
}

/// Parts of a key that no request of a listener has: all of them would have one key.
fn limit_keys(report: &Report<'_>, config: &Config, routes: &[RouteDraft]) {
    for draft in routes.iter().filter(|draft| draft.complete) {
        users(report, draft);
        for (owner, at, parts) in keys(report, draft) {
            let is_known = |listener: &Listener, part: &LimitKey| match part {
                LimitKey::Certificate => profile(config, listener).is_some_and(|tls| tls.client_auth.is_some()),
                LimitKey::Ja4 => profile(config, listener).is_some_and(|tls| tls.ja4),
                _ => true,
            };
            let lacks = |(_, listener): (ListenerId, &'_ Listener)| {
                let part = parts.iter().find(|part| !is_known(listener, part))?;
                Some((shown(&listener.name).to_string(), part.clone()))
            };
            let Some((name, part)) = reached(config, &draft.route).find_map(lacks) else { continue };
            let (what, needs) = match part {
                LimitKey::Ja4 => ("fingerprints are not computed", "ja4 = true"),
                _ => ("no client is asked for a certificate", "`client_auth`"),
            };
            let what = format!("on [listener.{name}] {what}: its requests have one key for this {owner}");
            let fix = format!("add {needs} to its [tls.NAME], or name the `listener` that the route is for");
            report.error_at(at, what, fix);
        }
    }
}

/// Limits of users where nobody says who that is.
fn users(report: &Report<'_>, draft: &RouteDraft) {
    let (what, fix) = match &draft.route.steps.auth {
        None => ("this route does not ask", "add `auth` to the route, or use \"source\""),
        Some(auth) if !auth.names_users() => {
            ("`forward` has no `user_from`", "name the field of the answer that has it")
        }
        Some(_) => return,
    };
    if let Some((_, at, _)) = keys(report, draft).find(|(_, _, parts)| parts.contains(&LimitKey::User)) {
        report.error_at(at, format!("`key` is the user, and {what}: nobody is known"), fix);
    }
}

/// Facts in `request_headers` that will never be known on the listener.
fn facts(report: &Report<'_>, config: &Config) {
    for listener in config.listeners.iter().filter(|listener| !listener.request_headers.is_empty()) {
        let pieces = listener.request_headers.iter().flat_map(|header| &header.value);
        let facts: Vec<Fact> =
            pieces.filter_map(|piece| if let Piece::Fact(f) = piece { Some(*f) } else { None }).collect();
        let name = shown(&listener.name);
        let never = |fact: &Fact, why: &str| format!("{{{}}} is never known on [listener.{name}]: {why}", fact.name());
        let of_tls = || facts.iter().find(|fact| fact.is_of_tls());
        if facts.contains(&Fact::RequestId) && listener.request_id.is_none() {
            let what = never(&Fact::RequestId, "its requests have none");
            report.error_at(listener.at, what, "add request_id = true, or remove the field");
        }
        let Some(tls) = profile(config, listener) else {
            if let (Some(fact), None) = (of_tls(), listener.tls) {
                report.error_at(listener.at, never(fact, "it speaks plaintext"), "add `tls`, or remove the field");
            }
            continue;
        };
        if let Some(fact) = facts.iter().find(|fact| fact.is_identity() && tls.client_auth.is_none()) {
            let fix = format!("add `client_auth` to [tls.{}], or remove the field", shown(&tls.name));
            report.error_at(listener.at, never(fact, "no client is asked for a certificate"), fix);
        }
        if facts.contains(&Fact::TlsJa4) && !tls.ja4 {
            let fix = format!("add ja4 = true to [tls.{}], or remove the field", shown(&tls.name));
            report.error_at(listener.at, never(&Fact::TlsJa4, "fingerprints are not computed"), fix);
        }
    }
}

/// Routes of listeners that hand bytes on: there is no path, no answer of our own, and a host only where TLS names one.
fn relays(report: &Report<'_>, config: &Config, routes: &[RouteDraft]) {
    for draft in routes.iter().filter(|draft| draft.complete) {
        let listener = draft.route.listener.and_then(|id| config.listeners.get(id.0));
        let Some(listener) = listener.filter(|listener| listener.protocol.is_relay()) else { continue };
        let (name, protocol) = (shown(&listener.name), listener.protocol.name());
        let on = format!("[listener.{name}] has protocol = \"{protocol}\"");
        if !is_every_path(&draft.route.path) {
            report.error(draft.span, format!("{on}: there are no paths"), "remove `path`");
        }
        if !draft.route.conditions.is_empty() {
            report.error(draft.span, format!("{on}: there are no requests to look at"), "remove `match`");
        }
        let steps = &draft.route.steps;
        if *steps != (Steps { split: steps.split.clone(), ..Steps::default() }) || !is_by_turns(steps) {
            let fix = "leave them to routes of listeners with protocol = \"http\"";
            report.error(draft.span, format!("{on}: there are no requests to take steps with"), fix);
        }
        if !matches!(draft.route.action, Action::Backend(_)) {
            report.error(draft.span, format!("{on}: nothing is answered here"), "give the route a `backend`");
        }
        let first = if let Action::Backend(backend) = &draft.route.action { Some(*backend) } else { None };
        let mut all = first.into_iter().chain(steps.other_backends());
        if all.any(|backend| config.backends.get(backend.0).is_some_and(|backend| backend.tls.is_some())) {
            let what = "a relay hands bytes on as they are, and this backend has `tls`";
            report.error(draft.span, what, "name a backend without `tls`, or use protocol = \"http\"");
        }
        let is_named = listener.protocol == Protocol::Passthrough || listener.tls.is_some();
        if draft.route.host != HostPattern::Any && !is_named {
            let fix = "remove `host`, or add `tls` to the listener";
            report.error(draft.span, format!("{on} and no TLS: clients name no host"), fix);
        }
    }
}

/// Whether connections are divided by turns alone: there are no fields, by which clients could be kept to a side.
fn is_by_turns(steps: &Steps) -> bool {
    steps.split.iter().all(|split| {
        let is_plain = |side: &Side| side.request.is_empty() && side.response.is_empty();
        split.sticky.is_none() && split.sides.iter().all(is_plain)
    })
}

/// Trailers go no further on listeners with routes to backends that any route tells something in fields: servers may
/// take a trailer for a field, and do not know which route a request has taken.
pub(crate) fn keep_trailers_away(config: &mut Config) {
    let tells = |route: &&Route| route.steps.auth.as_ref().is_some_and(|auth| auth.fields().next().is_some());
    let told: HashSet<usize> = config.routes.iter().filter(tells).flat_map(backends).collect();
    let is_of_told = |route: &&Route| tells(route) || backends(route).any(|backend| told.contains(&backend));
    let reached = |route: &Route| reached(config, route).map(|(id, _)| id.0).collect::<Vec<_>>();
    let all: Vec<usize> = config.routes.iter().filter(is_of_told).flat_map(reached).collect();
    all.into_iter().for_each(|id| config.listeners[id].takes_trailers = false);
}

/// Backends that requests of a route, or copies of them, may go to.
fn backends(route: &Route) -> impl Iterator<Item = usize> {
    let first = if let Action::Backend(first) = &route.action { Some(*first) } else { None };
    first.into_iter().chain(route.steps.named_backends()).map(|id| id.0)
}

/// A field that lets its sender in is not logged.
fn logged_keys(report: &Report<'_>, config: &Config, routes: &[RouteDraft]) {
    for draft in routes {
        let proofs = draft.route.steps.auth.iter().flat_map(|auth| auth.proofs.iter());
        let mut own =
            proofs.filter_map(|proof| if let Proof::ApiKey(key) = proof { key.header.as_ref() } else { None });
        let is_logged = |own: &String| {
            let is_own = |field: &LogField| matches!(field, LogField::Header(name) if name.eq_ignore_ascii_case(own));
            config.log.fields.iter().any(is_own)
        };
        if own.any(is_logged) {
            let what =
                "the access log has the field that this route's keys come in, and whoever reads it could come in";
            report.error(draft.span, what, "take the field out of `log.fields`");
        }
    }
}

/// Proofs that routes ask clients for, and the listeners that these come by.
fn auth(report: &Report<'_>, config: &Config, routes: &[RouteDraft]) {
    let asking = routes.iter().filter(|draft| draft.complete);
    for (draft, auth) in asking.filter_map(|draft| Some((draft, draft.route.steps.auth.as_ref()?))) {
        for (_, listener) in reached(config, &draft.route) {
            let name = shown(&listener.name);
            let is_told = |own: &str| auth.fields().any(|field| field.eq_ignore_ascii_case(own));
            if let Some(header) = listener.request_headers.iter().find(|header| is_told(&header.name)) {
                let field = shown(&header.name);
                let what =
                    format!("[listener.{name}] writes the field \"{field}\" itself, and so does this route's `auth`");
                report.error(draft.span, what, "give one of the two another name");
                break;
            }
            // Another proxy that has ended TLS says so in fields that are believed.
            if listener.tls.is_none() && listener.forwarded != Forwarded::Append && !is_local(listener) {
                let what = format!(
                    "[listener.{name}] speaks plaintext: whoever is on the way can read what proves who clients are"
                );
                report.warning(
                    draft.span,
                    what,
                    "add `tls` to the listener, or name a `listener` of the route that has it",
                );
                break;
            }
        }
    }
}

/// Whether a listener is for this machine alone.
fn is_local(listener: &Listener) -> bool {
    listener.bind.iter().all(|bind| bind.address.ip().is_loopback())
}

/// Conditions are asked of what the client has sent, and a field that a listener writes itself is not that.
fn own_fields(report: &Report<'_>, config: &Config, routes: &[RouteDraft]) {
    for draft in routes.iter().filter(|draft| draft.complete && !draft.route.conditions.header.is_empty()) {
        for (_, listener) in reached(config, &draft.route) {
            let is_asked = |name: &str| {
                draft.route.conditions.header.iter().any(|condition| condition.name.eq_ignore_ascii_case(name))
            };
            if let Some(header) = listener.request_headers.iter().find(|header| is_asked(&header.name)) {
                let (name, field) = (shown(&listener.name), shown(&header.name));
                let what = format!(
                    "[listener.{name}] writes the field \"{field}\" itself, and clients can send what they like by that name"
                );
                report.error(draft.span, what, "remove the condition, or the field from `request_headers`");
                break;
            }
        }
    }
}

/// Conditions and limits are asked before proofs, of what clients have sent: a field that servers are told of by a proof
/// is not that.
fn proven_fields(report: &Report<'_>, config: &Config, routes: &[RouteDraft]) {
    for draft in routes.iter().filter(|draft| draft.complete) {
        let asked = draft.route.conditions.header.iter().map(|condition| (&*condition.name, "the condition"));
        let counted = keys(report, draft).flat_map(|(owner, _, parts)| parts.iter().map(move |part| (owner, part)));
        let counted = counted.filter_map(|(owner, part)| match part {
            LimitKey::Header(name) => {
                Some((&**name, if owner == "limit" { "the limit's key" } else { "the pace's key" }))
            }
            _ => None,
        });
        let mut names = asked.chain(counted).peekable();
        if names.peek().is_none() {
            continue;
        }
        let listeners: Vec<ListenerId> = reached(config, &draft.route).map(|(id, _)| id).collect();
        let is_beside = |other: &&RouteDraft| reached(config, &other.route).any(|(id, _)| listeners.contains(&id));
        let proofs = routes.iter().filter(|other| other.complete).filter(is_beside);
        let told: Vec<&str> =
            proofs.filter_map(|other| other.route.steps.auth.as_ref()).flat_map(|auth| auth.fields()).collect();
        if let Some((name, place)) = names.find(|(name, _)| told.iter().any(|told| told.eq_ignore_ascii_case(name))) {
            let name = shown(name);
            let what = format!(
                "`auth` tells servers \"{name}\", and {place} goes by it before that: clients can send what they like by that name"
            );
            report.error(draft.span, what, "go by another field, or have `auth` tell servers by another name");
        }
    }
}

/// Priorities where nobody ever waits.
fn priorities(report: &Report<'_>, config: &Config, routes: &[RouteDraft]) {
    for draft in routes.iter().filter(|draft| draft.complete && draft.route.steps.priority != Priority::Normal) {
        let Action::Backend(first) = draft.route.action else { continue };
        let mut backends = std::iter::once(first).chain(draft.route.steps.other_backends());
        let has_queue = |backend: &Backend| {
            let is_limited = backend.servers.iter().any(|server| server.max_connections.is_some());
            backend.queue.limit > 0 && (is_limited || backend.protocol.may_be_http2())
        };
        if !backends.any(|id| config.backends.get(id.0).is_none_or(has_queue)) {
            let what = "`priority` has no effect: requests of this route never wait for a connection";
            report.warning(draft.span, what, "give the servers of its backend `max_connections`, or remove `priority`");
        }
    }
}

/// Whether second attempts by this percentile leave no repeats to those whose servers fail.
fn is_dear(backend: &Backend, percentile: Percentile) -> bool {
    u32::from(1000 - percentile.tenths()) * 10 >= backend.retry_budget.share.hundredths()
}

/// Second attempts that no request would have made.
fn hedges(report: &Report<'_>, config: &Config, routes: &[RouteDraft]) {
    for draft in routes.iter().filter(|draft| draft.complete) {
        let steps = &draft.route.steps;
        let (Some(hedge), Action::Backend(first)) = (steps.hedge, &draft.route.action) else { continue };
        let all = std::iter::once(*first).chain(steps.other_backends());
        let backends: Vec<&Backend> = all.filter_map(|id| config.backends.get(id.0)).collect();
        let is_other = |backend: &Backend| matches!(backend.protocol, ServerProtocol::FastCgi | ServerProtocol::Http10);
        let attempts = |backend: &Backend| {
            let own = steps.retries.as_ref().and_then(|retries| retries.attempts);
            let budget = &backend.retry_budget;
            let is_paid = budget.share.hundredths() > 0 || budget.min_per_second > 0;
            if is_paid { own.unwrap_or(backend.retries) } else { 0 }
        };
        let first_byte = |backend: &Backend| steps.timeouts.first_byte.unwrap_or(backend.timeouts.first_byte);
        if steps.timeouts.attempt.is_some() {
            let what = "`timeouts.attempt` ends an attempt, and `hedge` makes one beside it";
            report.error(draft.span, what, "remove one of the two, or limit the whole by `timeouts.request`");
        } else if let Some(backend) = backends.iter().find(|backend| is_other(backend)) {
            let name = shown(&backend.name);
            let what = format!("`hedge` asks twice in HTTP/1.1 or HTTP/2, and [backend.{name}] has another `protocol`");
            report.error(draft.span, what, "remove it, or give the route a backend whose servers speak one of these");
        } else if backends.iter().all(|backend| attempts(backend) == 0) {
            let what = "`hedge` has no effect: a second attempt is one of the repeats, and `retries` allows none";
            report.error(draft.span, what, "allow `retries` and their `budget`, or remove `hedge`");
        } else if matches!(hedge.after, HedgeAfter::Time(after) if backends.iter().all(|each| after >= first_byte(each)))
        {
            let what = "`hedge.after` is not shorter than `first_byte`, which ends the attempt before";
            report.error(draft.span, what, "shorten `after`, or lengthen `timeouts.first_byte`");
        } else if backends.iter().all(|backend| backend.servers.len() < 2) {
            let what = "`hedge` has no effect: there is one server, and a second attempt goes to another";
            report.warning(draft.span, what, "add a server to the backend, or remove `hedge`");
        } else if let HedgeAfter::Percentile(percentile) = hedge.after
            && let Some(backend) = backends.iter().find(|backend| is_dear(backend, percentile))
        {
            let (name, after) = (shown(&backend.name), percentile.name());
            let what = format!(
                "`hedge` by {after} asks twice for {}% of the requests, which takes all of the `budget` of [backend.{name}]",
                f64::from(1000 - percentile.tenths()) / 10.0
            );
            report.warning(draft.span, what, "choose a higher percentile, or allow a larger `budget` of `retries`");
        }
    }
}

/// Questions about who comes in are asked in HTTP/1.1 or HTTP/2.
fn questions(report: &Report<'_>, config: &Config, routes: &[RouteDraft]) {
    for draft in routes {
        let mut asked = draft.route.steps.asked_backends().filter_map(|id| config.backends.get(id.0));
        let is_old = |backend: &&Backend| matches!(backend.protocol, ServerProtocol::FastCgi | ServerProtocol::Http10);
        if let Some(backend) = asked.find(is_old) {
            let what =
                format!("`forward` asks in HTTP/1.1 or HTTP/2, and [backend.{}] has another `protocol`", backend.name);
            report.error(draft.span, what, "name a backend whose servers speak one of these");
        }
    }
}

/// Bodies that are held in files that there is no folder for, or of which more is let through than is held.
fn buffers(report: &Report<'_>, config: &Config, routes: &[RouteDraft]) {
    let forwards = |draft: &&RouteDraft| draft.complete && matches!(draft.route.action, Action::Backend(_));
    for draft in routes.iter().filter(forwards) {
        let (buffer, limit) = (&draft.route.steps.buffer, draft.route.steps.body_limit);
        let all = [("request", buffer.request), ("response", buffer.response)];
        for (key, bounds) in all.into_iter().filter_map(|(key, bounds)| Some((key, bounds?))) {
            if bounds.disk > 0 && config.process.buffers.folder.is_none() {
                let what = format!("`buffer.{key}` goes to files, and [process] has no `temp_dir` for them");
                let fix = format!(
                    "add temp_dir = \"/var/lib/propylon/bodies\" to [process], or write `{key} = {{ disk = 0 }}` for \
                     memory alone"
                );
                report.error(draft.span, what, fix);
                break;
            }
        }
        if let (Some(bounds), Some(limit)) = (buffer.request, limit)
            && limit > bounds.memory.saturating_add(bounds.disk)
        {
            let what = "`buffer.request` holds less than `body_limit` lets through: longer bodies get 413 before";
            report.warning(draft.span, what, "lower `body_limit`, or raise `disk` of `buffer.request`");
        }
    }
}

/// Copies are sent on connections that they share, in HTTP/1.1 or HTTP/2.
fn mirrors(report: &Report<'_>, config: &Config, routes: &[RouteDraft]) {
    let all = routes.iter().flat_map(|draft| draft.route.steps.mirrors.iter().map(move |mirror| (draft, mirror)));
    for (draft, mirror) in all {
        let Some(backend) = config.backends.get(mirror.backend.0) else { continue };
        let name = shown(&backend.name);
        if !matches!(backend.protocol, ServerProtocol::Http1 | ServerProtocol::Http2 | ServerProtocol::Auto) {
            let what =
                format!("`mirror` sends its copies in HTTP/1.1 or HTTP/2, and [backend.{name}] has another `protocol`");
            report.error(draft.span, what, "name a backend with protocol = \"http1\", \"h2\" or \"auto\"");
        }
        if backend.send_proxy_protocol.is_some() {
            let what = format!("`mirror` shares its connections, and those of [backend.{name}] tell of one client");
            report.error(draft.span, what, "name a backend without `send_proxy_protocol`");
        }
    }
}

/// Calls of browsers become those of gRPC, which is spoken over HTTP/2 alone.
fn browsers_calls(report: &Report<'_>, config: &Config, routes: &[RouteDraft]) {
    for draft in routes.iter().filter(|draft| draft.complete && draft.route.steps.grpc_web) {
        let Action::Backend(first) = draft.route.action else {
            let what = "`grpc_web` on a route that answers by itself: it is for calls that go to servers";
            report.error(draft.span, what, "remove it, or put it on a route with a `backend`");
            continue;
        };
        let all = std::iter::once(first).chain(draft.route.steps.other_backends());
        let known = all.filter_map(|backend| config.backends.get(backend.0));
        let mut others = known.filter(|each| !each.protocol.may_be_http2());
        if let Some(backend) = others.next() {
            let name = shown(&backend.name);
            let what = format!("`grpc_web` makes calls of gRPC, and [backend.{name}] does not speak HTTP/2");
            report.error(draft.span, what, "write protocol = \"h2\" in the backend, or remove it");
        }
    }
}

/// Conditions on facts that are known on none of the listeners that a route is for.
fn facts_of_routes(report: &Report<'_>, config: &Config, routes: &[RouteDraft]) {
    let is_met_by_absence = |test: &TextTest| *test == TextTest::Absent;
    for draft in routes.iter().filter(|draft| draft.complete) {
        let conditions = &draft.route.conditions;
        let profiles = || reached(config, &draft.route).filter_map(|(_, listener)| profile(config, listener));
        let mut asked = conditions.tls.iter().filter(|condition| !is_met_by_absence(&condition.test)).peekable();
        let asks_client = conditions.client.iter().any(|condition| !is_met_by_absence(&condition.test));
        let asks_ja4 = asked.clone().any(|condition| condition.fact == TlsFact::Ja4);
        let never = |what: &str| format!("this route can never match: {what}");
        if (asked.peek().is_some() || asks_client)
            && reached(config, &draft.route).all(|(_, known)| known.tls.is_none())
        {
            let what = never("it asks for facts of TLS, and its listeners speak plaintext");
            report.error(draft.span, what, "add `tls` to a listener, or remove the conditions");
        } else if asks_client && profiles().all(|tls| tls.client_auth.is_none()) {
            let fix = "add `client_auth` to the [tls.NAME] of its listener, or remove `match.client`";
            report.error(draft.span, never("no client is asked for a certificate"), fix);
        } else if asks_ja4 && profiles().all(|tls| !tls.ja4) {
            let fix = "add ja4 = true to the [tls.NAME] of its listener, or remove the condition";
            report.error(draft.span, never("fingerprints are not computed"), fix);
        } else if let Some(thing) = asked.find_map(|condition| never_agreed(condition, profiles())) {
            let what = never(&format!("its listeners agree on no {thing} that fits"));
            let fix = "change `policy` of the [tls.NAME] of its listener, or remove the condition";
            report.error(draft.span, what, fix);
        }
        if let (HostPattern::Exact(host), Some(test)) = (&draft.route.host, &conditions.host)
            && !test.fits(host)
        {
            let what = never(&format!("its `host` is {host}, which `match.host` leaves out"));
            report.warning(draft.span, what, "remove one of the two");
        }
        let is_never_there = |each: &&TextCondition| !is_met_by_absence(&each.test) && is_claim(&each.name);
        if let Some(each) = conditions.header.iter().find(is_never_there) {
            let what = never(&format!("{} of clients goes to no server, and conditions do not see it", each.name));
            let fix = "use `match.source`, which goes by X-Forwarded-For of `trusted_proxies`, or remove the condition";
            report.warning(draft.span, what, fix);
        }
        let ports: Vec<u16> = reached(config, &draft.route)
            .flat_map(|(_, listener)| &listener.bind)
            .map(|bind| bind.address.port())
            .collect();
        let is_told = reached(config, &draft.route).any(|(_, listener)| listener.accept_proxy_protocol);
        if !conditions.port.is_empty()
            && !is_told
            && !ports.iter().any(|port| *port == 0 || conditions.port.contains(port))
        {
            let what = never("no listener that it is for has one of its ports");
            report.error(draft.span, what, "write a port of `bind`, or remove `match.port`");
        }
    }
}

/// Choices that no profile ever agrees on with a client as the condition asks for it; none: one does.
fn never_agreed<'c>(
    condition: &FactCondition<TlsFact>,
    mut profiles: impl Iterator<Item = &'c TlsProfile>,
) -> Option<&'static str> {
    let FactCondition { fact, test } = condition;
    let suite = |tls: &TlsProfile| {
        let mut suites = TlsSuite::ALL.iter().map(|(_, suite)| *suite);
        suites.any(|suite| tls.policy.allows_suite(suite) && test.fits(suite.name()))
    };
    let group = |tls: &TlsProfile| {
        TlsGroup::ALL.into_iter().any(|group| tls.policy.allows_group(group) && test.fits(group.name()))
    };
    let version = |tls: &TlsProfile| {
        TlsVersion::ALL.into_iter().any(|version| tls.policy.allows_version(version) && test.fits(version.fact()))
    };
    match fact {
        TlsFact::Suite => (!profiles.any(suite)).then_some("cipher suite"),
        TlsFact::Group => (!profiles.any(group)).then_some("group"),
        TlsFact::Version => (!profiles.any(version)).then_some("version"),
        TlsFact::ServerName | TlsFact::Alpn | TlsFact::Ja4 => None,
    }
}

/// A relay without a route could only close every connection; a route for any listener is for http listeners.
fn relays_lead_somewhere(report: &Report<'_>, config: &Config, routes: &[RouteDraft]) {
    if routes.iter().any(|draft| !draft.complete) {
        return;
    }
    let routed: HashSet<ListenerId> = routes.iter().filter_map(|draft| draft.route.listener).collect();
    for (id, listener) in config.listeners.iter().enumerate() {
        if listener.protocol.is_relay() && !routed.contains(&ListenerId(id)) {
            let name = shown(&listener.name);
            let what = format!("no route is for [listener.{name}]: its connections have nowhere to go");
            let fix = format!("add a [[route]] with listener = \"{name}\" and a `backend`");
            report.error_at(listener.at, what, fix);
        }
    }
}

fn profile<'c>(config: &'c Config, listener: &Listener) -> Option<&'c TlsProfile> {
    listener.tls.and_then(|id| config.tls.get(id.0))
}

fn reach(report: &Report<'_>, config: &Config, routes: &[RouteDraft]) {
    if routes.iter().any(|draft| !draft.complete || draft.route.listener.is_none()) {
        return;
    }
    let reached: HashSet<ListenerId> = routes.iter().filter_map(|draft| draft.route.listener).collect();
    for (id, listener) in config.listeners.iter().enumerate() {
        let answers = listener.protocol.is_relay() || listener.redirect_to_https.is_some();
        if !reached.contains(&ListenerId(id)) && !answers {
            let name = shown(&listener.name);
            let what = format!("no route is for [listener.{name}]: it answers every request with 404");
            report.warning_at(listener.at, what, "add a [[route]], or remove the listener");
        }
    }
}

fn unused(context: &Context<'_, '_>, config: &Config, routes: &[RouteDraft]) {
    let report = context.report;
    let backends: HashSet<usize> = routes
        .iter()
        .flat_map(|draft| {
            let first = if let Action::Backend(id) = &draft.route.action { Some(*id) } else { None };
            let steps = &draft.route.steps;
            first.into_iter().chain(steps.named_backends()).chain(steps.asked_backends()).map(|id| id.0)
        })
        .collect();
    // Stands for a backend that is not known: any of them may be the one that was meant.
    if !backends.contains(&usize::MAX) && !context.backends.missed() {
        for (_, backend) in config.backends.iter().enumerate().filter(|(id, _)| !backends.contains(id)) {
            let what = format!("no route leads to [backend.{}]", shown(&backend.name));
            report.warning_at(backend.at, what, "add a [[route]] to it, or remove it");
        }
    }
    let profiles: HashSet<usize> = config.listeners.iter().filter_map(|listener| listener.tls).map(|id| id.0).collect();
    if !context.tls.missed() {
        for (_, profile) in config.tls.iter().enumerate().filter(|(id, _)| !profiles.contains(id)) {
            let what = format!("no listener uses [tls.{}]", shown(&profile.name));
            report.warning_at(profile.at, what, "name it in a listener, or remove it");
        }
    }
    let signers: HashSet<usize> = config.tls.iter().filter_map(|tls| tls.signer).map(|id| id.0).collect();
    if !context.signers.missed() {
        for (_, signer) in config.signers.iter().enumerate().filter(|(id, _)| !signers.contains(id)) {
            let what = format!("no certificates use [signer.{}]", shown(&signer.name));
            report.warning_at(signer.at, what, "name it in a [tls.NAME], or remove it");
        }
    }
    let acmes: HashSet<usize> = ordered(config).map(|(_, ordered)| ordered.acme.0).collect();
    if !context.acmes.missed() {
        for (_, acme) in config.acmes.iter().enumerate().filter(|(id, _)| !acmes.contains(id)) {
            let what = format!("no certificate is ordered from [acme.{}]", shown(&acme.name));
            let fix =
                "name it in a [tls.NAME], as in certificates = [{ acme = \"NAME\", names = [...] }], or remove it";
            report.warning_at(acme.at, what, fix);
        }
    }
}

/// Certificates that are ordered, and the profiles that they are for.
fn ordered(config: &Config) -> impl Iterator<Item = (&TlsProfile, &Ordered)> {
    let certificates = config.tls.iter().flat_map(|tls| tls.certificates.iter().map(move |each| (tls, each)));
    certificates.filter_map(|(tls, certificate)| match &certificate.source {
        CertificateSource::Ordered(ordered) => Some((tls, ordered)),
        _ => None,
    })
}

/// The authority asks by plaintext where http-01 is preferred; otherwise in a handshake.
fn challenges(report: &Report<'_>, config: &Config) {
    let answers_http = |listener: &Listener| listener.protocol == Protocol::Http && listener.tls.is_none();
    if config.listeners.iter().any(answers_http) {
        return;
    }
    let used: HashSet<usize> = ordered(config).map(|(_, ordered)| ordered.acme.0).collect();
    for (id, acme) in config.acmes.iter().enumerate() {
        if acme.challenge == AcmeChallenge::Http && used.contains(&id) {
            let name = shown(&acme.name);
            let what = format!("[acme.{name}] has challenge = \"http-01\", and no listener speaks plaintext HTTP");
            let fix = "add a [listener.NAME] on port 80 without `tls`, or use challenge = \"tls-alpn-01\"";
            report.error_at(acme.at, what, fix);
        }
    }
}
