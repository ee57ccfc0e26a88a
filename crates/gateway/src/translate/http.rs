//! HTTPRoute and GRPCRoute: rules as routes of the engine.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::attach::{RoutePlan, own_hosts};
use super::backends::{Asking, Backends};
use super::draft::{Draft, refused};
use super::filters::{self, Entrance};
use super::gateways::{Gateways, Mode};
use super::references::Referrer;
use super::sessions;
use crate::conditions::Trouble;
use crate::duration;
use crate::resources::{
    BackendRef, Filter, GrpcMatch, GrpcRule, HttpMatch, HttpRule, Key, Retry, SessionPersistence, Timeouts, ValueMatch,
};
use crate::world::{Kind, World};

/// A `backendRequest` of zero means no limit; this is the longest that an engine knows.
const NO_LIMIT: &str = "24h";

/// A rule of either kind.
struct Rule<'a> {
    name: Option<&'a str>,
    matches: Vec<(Value, Map<String, Value>)>,
    filters: &'a [Filter],
    backends: &'a [BackendRef],
    timeouts: Option<&'a Timeouts>,
    retry: Option<&'a Retry>,
    session: Option<&'a SessionPersistence>,
}

pub fn routes(
    world: &World,
    gateways: &Gateways<'_>,
    routes: &mut [RoutePlan<'_>],
    backends: &mut Backends<'_>,
) -> Vec<Draft> {
    let mut drafts = Vec::new();
    for (place, route) in routes.iter_mut().enumerate() {
        let key = route.key();
        let rules: Vec<Rule<'_>> = match route.kind {
            Kind::HttpRoute => world.http_routes[&key].spec.rules.iter().map(http_rule).collect(),
            Kind::GrpcRoute => world.grpc_routes[&key].spec.rules.iter().map(grpc_rule).collect(),
            _ => continue,
        };
        for (index, rule) in rules.iter().enumerate() {
            // Gateways that show servers another certificate have backends of their own.
            for client in clients(gateways, route) {
                let (made, trouble) = match rule_keys((index, rule, client), gateways, route, backends) {
                    Ok(keys) => (keys, None),
                    Err(trouble) => ([refused(), refused()], Some(trouble)),
                };
                place_rule((place, index), rule, (client, &made), (gateways, route), &mut drafts);
                if let Some(trouble) = trouble {
                    route.drop_rule(index, trouble);
                }
            }
        }
    }
    drafts
}

/// Certificates for servers of the Gateways that a route is attached to: files, or none.
fn clients<'g>(gateways: &'g Gateways<'_>, route: &RoutePlan<'_>) -> BTreeSet<Option<&'g str>> {
    let attachments = route.parents.iter().flat_map(|parent| &parent.attachments);
    let found: BTreeSet<_> = attachments.map(|each| gateways.all[each.gateway].client_file()).collect();
    // A route that is attached nowhere is told what is wrong with it all the same.
    if found.is_empty() { BTreeSet::from([None]) } else { found }
}

/// Keys of a rule for requests that come in without TLS, and with it.
type RuleKeys = [Map<String, Value>; 2];

fn rule_keys(
    (index, rule, client): (usize, &Rule<'_>, Option<&str>),
    gateways: &Gateways<'_>,
    route: &mut RoutePlan<'_>,
    backends: &mut Backends<'_>,
) -> Result<RuleKeys, Trouble> {
    let unsupported = |what: &str| Trouble::new("UnsupportedValue", what);
    let key_file = backends.settings.sticky_key.as_deref();
    let (own, name) = (route.key(), rule.name.map_or_else(|| json!(index), |name| json!(name)));
    let key = json!([route.kind.name(), own.namespace, own.name, name]);
    let sticky = rule.session.map(|session| sessions::sticky(session, &key, key_file)).transpose()?;
    let used: Vec<&BackendRef> = rule.backends.iter().filter(|each| each.weight() > 0).collect();
    let own = used.iter().flat_map(|each| &each.filters).filter(|filter| !filters::is_of_fields(filter));
    if used.len() > 1 && own.clone().next().is_some() {
        return Err(unsupported("filters of one of several backendRefs may change header fields alone"));
    }
    let filters: Vec<&Filter> = rule.filters.iter().chain(own).collect();
    let is_redirect = filters.iter().any(|filter| filter.kind == "RequestRedirect");
    let parents: BTreeSet<Key> = route
        .parents
        .iter()
        .flat_map(|parent| &parent.attachments)
        .map(|attachment| gateways.all[attachment.gateway].key())
        .collect();
    let (kind, namespace) = (route.kind.name(), &route.metadata.namespace);
    let is_grpc = route.kind == Kind::GrpcRoute;
    let from = Referrer { kind, namespace };
    let asking = Asking { from, is_grpc, is_relay: false, gateways: &parents, client, sticky: sticky.as_ref() };
    let guard = guard(&filters, &asking, route, backends)?;
    let mut common = Map::new();
    if !is_redirect {
        common = backends.split(rule.backends, &asking, route);
        if common.contains_key("backend") {
            common.extend(timing(rule)?);
            if rule.retry.is_some() {
                backends.allow_repeats(&common);
            }
            let mirrors = mirrors(&filters, &asking, route, backends);
            if !mirrors.is_empty() {
                common.insert("mirror".into(), mirrors.into());
            }
        }
    }
    let mut both = RuleKeys::default();
    for (keys, is_https) in both.iter_mut().zip([false, true]) {
        *keys = filters::keys(&filters, Entrance { is_https })?;
        // Nothing goes to a server: changes of the request would have no effect, and be refused.
        if !common.contains_key("backend") {
            keys.remove("request");
        }
        keys.extend(common.clone());
        if let Some(guard) = &guard {
            keys.insert("auth".into(), guard.clone());
        }
    }
    Ok(both)
}

/// The service that says which requests may come in. Without one none may.
fn guard(
    filters: &[&Filter],
    asking: &Asking<'_>,
    route: &mut RoutePlan<'_>,
    backends: &mut Backends<'_>,
) -> Result<Option<Value>, Trouble> {
    let mut guards = filters.iter().filter(|filter| filter.kind == "ExternalAuth").map(|filter| &filter.external_auth);
    let Some(guard) = guards.next() else { return Ok(None) };
    if guards.next().is_some() {
        return Err(Trouble::new("UnsupportedValue", "a rule may have one filter of type ExternalAuth"));
    }
    let mut keys = filters::guard(guard)?;
    let found = backends.mirror(&guard.backend_ref, &Asking { is_grpc: false, ..*asking });
    let name = found.inspect_err(|trouble| route.unresolved(trouble.clone()))?;
    let missing = || Trouble::new("UnsupportedValue", "the service of ExternalAuth has no endpoint that is ready");
    keys.insert("backend".into(), name.ok_or_else(missing)?.into());
    Ok(Some(json!({ "forward": keys })))
}

fn timing(rule: &Rule<'_>) -> Result<Map<String, Value>, Trouble> {
    let mut keys = Map::new();
    let wrong = |text: &str| Trouble::new("UnsupportedValue", format!("{text} is no duration"));
    let read = |text: &str| duration::milliseconds(text).ok_or_else(|| wrong(text));
    let mut timeouts = Map::new();
    if let Some(text) = rule.timeouts.and_then(|timeouts| timeouts.request.as_deref())
        && let limit @ 1.. = read(text)?
    {
        timeouts.insert("request".into(), format!("{limit}ms").into());
    }
    let attempt = rule.timeouts.and_then(|timeouts| timeouts.backend_request.as_deref());
    if let Some(text) = attempt {
        let limit = match read(text)? {
            0 => NO_LIMIT.to_owned(),
            limit => format!("{limit}ms"),
        };
        timeouts.insert("first_byte".into(), limit.clone().into());
        timeouts.insert("attempt".into(), limit.into());
    }
    if !timeouts.is_empty() {
        keys.insert("timeouts".into(), timeouts.into());
    }
    if let Some(retry) = rule.retry {
        let mut reasons = vec![json!("connect"), json!("reset")];
        if attempt.is_some() {
            reasons.push("timeout".into());
        }
        if let Some(code) = retry.codes.iter().find(|code| !(400..600).contains(*code)) {
            let what = format!("responses of {code} are not asked for again: those of 400 to 599 are");
            return Err(Trouble::new("UnsupportedValue", what));
        }
        reasons.extend(retry.codes.iter().map(|code| json!(code)));
        let mut table = json!({ "attempts": retry.attempts.unwrap_or(1), "on": reasons });
        if let Some(limit @ 1..) = retry.backoff.as_deref().map(read).transpose()? {
            table["backoff"] = format!("{limit}ms").into();
        }
        keys.insert("retries".into(), table);
    }
    Ok(keys)
}

/// The copies of a rule's requests, each by one filter.
fn mirrors(
    filters: &[&Filter],
    asking: &Asking<'_>,
    route: &mut RoutePlan<'_>,
    backends: &mut Backends<'_>,
) -> Vec<Value> {
    let mut all = Vec::new();
    for mirror in filters.iter().filter(|filter| filter.kind == "RequestMirror").map(|filter| &filter.request_mirror) {
        let name = match backends.mirror(&mirror.backend_ref, asking) {
            Ok(name) => name,
            Err(trouble) => {
                route.unresolved(trouble);
                None
            }
        };
        let share = mirror.fraction.as_ref().map(|part| part.numerator * 100.0 / part.denominator.unwrap_or(100.0));
        let percent = mirror.percent.or(share).unwrap_or(100.0);
        let table = |name: String| match percent >= 100.0 {
            true => json!({ "backend": name }),
            false => json!({ "backend": name, "percent": percent }),
        };
        all.extend(name.filter(|_| percent > 0.0).map(table));
    }
    all
}

/// Makes a route of the engine for each listener, host and match of a rule.
fn place_rule(
    origin: (usize, usize),
    rule: &Rule<'_>,
    (client, keys): (Option<&str>, &RuleKeys),
    (gateways, route): (&Gateways<'_>, &RoutePlan<'_>),
    drafts: &mut Vec<Draft>,
) {
    let (key, kind) = (route.key(), route.kind);
    let prefix = if kind == Kind::GrpcRoute { "grpc_" } else { "" };
    for attachment in route.parents.iter().flat_map(|parent| &parent.attachments) {
        let gateway = &gateways.all[attachment.gateway];
        let listener = &gateway.listeners[attachment.listener];
        if !gateway.is_served(listener) || gateway.client_file() != client {
            continue;
        }
        let then = &keys[usize::from(listener.mode == Some(Mode::Https))];
        for host in own_hosts(gateway, attachment) {
            for (path, conditions) in &rule.matches {
                drafts.push(Draft {
                    listener: listener.engine.clone(),
                    host: host.clone(),
                    path: Some(path.clone()),
                    conditions: conditions.clone(),
                    then: then.clone(),
                    origin: Some(origin),
                    name: format!("{prefix}{}_{}_{}", key.namespace, key.name, origin.1),
                });
            }
        }
    }
}

fn http_rule(rule: &HttpRule) -> Rule<'_> {
    let matches = match rule.matches.as_slice() {
        [] => vec![(json!("/"), Map::new())],
        matches => matches.iter().map(http_match).collect(),
    };
    Rule {
        name: rule.name.as_deref(),
        matches,
        filters: &rule.filters,
        backends: &rule.backend_refs,
        timeouts: Some(&rule.timeouts),
        retry: rule.retry.as_ref(),
        session: rule.session_persistence.as_ref(),
    }
}

fn http_match(each: &HttpMatch) -> (Value, Map<String, Value>) {
    let path = each.path.as_ref();
    let text = path.and_then(|path| path.value.as_deref()).unwrap_or("/");
    let path = match path.and_then(|path| path.kind.as_deref()) {
        Some("Exact") => json!({ "exact": text }),
        Some("RegularExpression") => json!({ "regex": whole(text) }),
        _ => json!(prefix(text)),
    };
    let mut conditions = Map::new();
    if let Some(method) = &each.method {
        conditions.insert("method".into(), method.clone().into());
    }
    values(&each.headers, true, "header", &mut conditions);
    values(&each.query_params, false, "query", &mut conditions);
    (path, conditions)
}

/// A prefix stands for whole segments, with or without a slash at its end.
fn prefix(text: &str) -> &str {
    match text.trim_end_matches('/') {
        "" => "/",
        text => text,
    }
}

/// A pattern for the whole of a text.
fn whole(pattern: &str) -> String {
    format!("^(?:{pattern})$")
}

/// The first counts of several matches with one name.
fn values(all: &[ValueMatch], is_header: bool, key: &str, conditions: &mut Map<String, Value>) {
    let mut table: BTreeMap<String, Value> = BTreeMap::new();
    for each in all {
        let name = if is_header { each.name.to_ascii_lowercase() } else { each.name.clone() };
        table.entry(name).or_insert_with(|| match each.kind.as_deref() {
            Some("RegularExpression") => json!({ "regex": whole(&each.value) }),
            _ => json!({ "exact": each.value }),
        });
    }
    if !table.is_empty() {
        conditions.insert(key.into(), json!(table));
    }
}

fn grpc_rule(rule: &GrpcRule) -> Rule<'_> {
    let matches = match rule.matches.as_slice() {
        [] => vec![grpc_match(&GrpcMatch::default())],
        matches => matches.iter().map(grpc_match).collect(),
    };
    Rule {
        name: rule.name.as_deref(),
        matches,
        filters: &rule.filters,
        backends: &rule.backend_refs,
        timeouts: None,
        retry: None,
        session: rule.session_persistence.as_ref(),
    }
}

/// A call's path is `/SERVICE/METHOD`: so the precedence of paths is that of services and methods.
fn grpc_match(each: &GrpcMatch) -> (Value, Map<String, Value>) {
    let method = each.method.as_ref();
    let part = |text: Option<&String>| text.filter(|text| !text.is_empty()).cloned();
    let (service, name) = (
        part(method.and_then(|method| method.service.as_ref())),
        part(method.and_then(|method| method.method.as_ref())),
    );
    let is_pattern = method.and_then(|method| method.kind.as_deref()) == Some("RegularExpression");
    let path = match (service, name) {
        (None, None) => json!("/"),
        (Some(service), Some(name)) if !is_pattern => json!({ "exact": format!("/{service}/{name}") }),
        (Some(service), None) if !is_pattern => json!(format!("/{service}")),
        (service, name) => {
            let part = |text: Option<String>| match text {
                None => "[^/]+".to_owned(),
                Some(text) if is_pattern => format!("(?:{text})"),
                Some(text) => text.replace('.', "[.]"),
            };
            json!({ "regex": format!("^/{}/{}$", part(service), part(name)) })
        }
    };
    let mut conditions = Map::from_iter([("grpc".to_owned(), json!({}))]);
    values(&each.headers, true, "header", &mut conditions);
    (path, conditions)
}
