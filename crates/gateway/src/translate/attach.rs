//! Which listeners a route is attached to, and why not to others.

use std::collections::BTreeSet;

use super::gateways::{GatewayPlan, Gateways, ListenerPlan};
use crate::conditions::Trouble;
use crate::hostname;
use crate::resources::{AllowedNamespaces, GROUP, Key, Metadata, Object, Reference, RouteSpec};
use crate::world::{Kind, World};

/// Hosts of a listener that a route is for; an absent one is all.
pub struct Attachment {
    pub gateway: usize,
    pub listener: usize,
    pub hosts: Vec<Option<String>>,
}

/// A parent that is one of our Gateways.
pub struct Parent {
    pub reference: Reference,
    pub accepted: Option<Trouble>,
    pub attachments: Vec<Attachment>,
}

/// A route with a parent of ours, and what is found out about it.
pub struct RoutePlan<'w> {
    pub kind: Kind,
    pub metadata: &'w Metadata,
    pub status: &'w serde_json::Value,
    pub parents: Vec<Parent>,
    pub resolved: Option<Trouble>,
    /// Rules that are left out, with the reason.
    pub dropped: Vec<(usize, Trouble)>,
    pub rules: usize,
}

impl RoutePlan<'_> {
    pub fn key(&self) -> Key {
        self.metadata.key()
    }

    pub fn unresolved(&mut self, trouble: Trouble) {
        self.resolved.get_or_insert(trouble);
    }

    pub fn drop_rule(&mut self, rule: usize, trouble: Trouble) {
        if self.dropped.iter().all(|(other, _)| *other != rule) {
            self.dropped.push((rule, trouble));
        }
    }
}

/// All routes, by the order of precedence, those of HTTP before those of gRPC.
pub fn attach<'w>(world: &'w World, gateways: &mut Gateways<'w>) -> Vec<RoutePlan<'w>> {
    let mut all = Vec::new();
    all.extend(of_kind(world, gateways, Kind::HttpRoute, &world.http_routes));
    all.extend(of_kind(world, gateways, Kind::GrpcRoute, &world.grpc_routes));
    all.extend(of_kind(world, gateways, Kind::TlsRoute, &world.tls_routes));
    all.extend(of_kind(world, gateways, Kind::TcpRoute, &world.tcp_routes));
    all.sort_by_key(|route: &RoutePlan<'_>| (route.kind, route.metadata.precedence()));
    all
}

fn of_kind<'w, R>(
    world: &World,
    gateways: &mut Gateways<'w>,
    kind: Kind,
    routes: &'w std::collections::BTreeMap<Key, Object<RouteSpec<R>>>,
) -> Vec<RoutePlan<'w>> {
    let mut all = Vec::new();
    for route in routes.values() {
        let mut parents = Vec::new();
        for reference in &route.spec.parent_refs {
            let key = reference.key(&route.metadata.namespace);
            let Some((place, set)) = owner(gateways, reference, &key) else { continue };
            let site = (place, set, &gateways.all[place]);
            parents.push(parent(world, site, reference, kind, (route, &route.spec.hostnames)));
        }
        let mut plan = RoutePlan {
            kind,
            metadata: &route.metadata,
            status: &route.status,
            parents,
            resolved: None,
            dropped: Vec::new(),
            rules: route.spec.rules.len(),
        };
        let attachments = plan.parents.iter().flat_map(|parent| &parent.attachments);
        let places: BTreeSet<(usize, usize)> = attachments.map(|each| (each.gateway, each.listener)).collect();
        for (gateway, listener) in places {
            gateways.all[gateway].listeners[listener].attached += 1;
        }
        plan.parents.dedup_by(|one, other| one.reference == other.reference);
        all.push(plan);
    }
    all
}

/// The Gateway of ours that a parent is, or that has it as a ListenerSet.
fn owner(gateways: &Gateways<'_>, reference: &Reference, key: &Key) -> Option<(usize, Option<usize>)> {
    if reference.is(GROUP, "Gateway", (GROUP, "Gateway")) {
        return Some((gateways.all.iter().position(|plan| plan.key() == *key)?, None));
    }
    if !reference.is(GROUP, "ListenerSet", (GROUP, "Gateway")) {
        return None;
    }
    gateways.all.iter().enumerate().find_map(|(place, plan)| {
        let set = plan.sets.iter().position(|set| set.object.metadata.key() == *key)?;
        Some((place, Some(set)))
    })
}

fn parent<R>(
    world: &World,
    (index, set, gateway): (usize, Option<usize>, &GatewayPlan<'_>),
    reference: &Reference,
    kind: Kind,
    (route, hostnames): (&Object<RouteSpec<R>>, &[String]),
) -> Parent {
    let mut parent = Parent { reference: reference.clone(), accepted: None, attachments: Vec::new() };
    let named = match set.map(|place| &gateway.sets[place].object.metadata) {
        Some(set) => format!("ListenerSet {}", set.key()),
        None => format!("Gateway {}", gateway.key()),
    };
    let is_named = |listener: &ListenerPlan<'_>| {
        listener.set == set
            && reference.section_name.as_ref().is_none_or(|name| *name == listener.spec.name)
            && reference.port.is_none_or(|port| port == listener.spec.port)
    };
    let mut trouble = Trouble::new("NoMatchingParent", format!("{named} has no listener of this name and port"));
    for (place, listener) in gateway.listeners.iter().enumerate().filter(|(_, listener)| is_named(listener)) {
        if !is_allowed(world, listener, &route.metadata.namespace, kind) {
            if trouble.reason == "NoMatchingParent" {
                let what = format!("no listener of {named} allows a {} of this namespace", kind.name());
                trouble = Trouble::new("NotAllowedByListeners", what);
            }
            continue;
        }
        let hosts = hosts(listener, hostnames);
        if hosts.is_empty() {
            let what = format!("none of its hostnames is one of a listener of {named}");
            trouble = Trouble::new("NoMatchingListenerHostname", what);
            continue;
        }
        if listener.conflicted.is_some() {
            continue;
        }
        parent.attachments.push(Attachment { gateway: index, listener: place, hosts });
    }
    if parent.attachments.is_empty() {
        parent.accepted = Some(trouble);
    }
    parent
}

fn is_allowed(world: &World, listener: &ListenerPlan<'_>, namespace: &str, kind: Kind) -> bool {
    let allowed = &listener.spec.allowed_routes.namespaces;
    is_let_in(world, allowed, "Same", (listener.namespace, namespace))
        && listener.kinds.iter().any(|each| each.kind == kind.name())
}

/// Whether resources of a namespace are let in by one of another; `default` stands where nothing is said.
pub fn is_let_in(world: &World, allowed: &AllowedNamespaces, default: &str, (own, other): (&str, &str)) -> bool {
    match allowed.from.as_deref().unwrap_or(default) {
        "All" => true,
        "Same" => own == other,
        "Selector" => {
            let found = world.namespaces.get(&Key::new("", other));
            let selector = allowed.selector.as_ref();
            found.is_some_and(|found| selector.is_some_and(|selector| selector.holds(&found.metadata.labels)))
        }
        _ => false,
    }
}

fn hosts(listener: &ListenerPlan<'_>, hostnames: &[String]) -> Vec<Option<String>> {
    let own = listener.hostname();
    if hostnames.is_empty() {
        return vec![own.map(str::to_owned)];
    }
    let mut all: Vec<Option<String>> = hostnames.iter().filter_map(|host| hostname::common(Some(host), own)).collect();
    all.sort();
    all.dedup();
    all
}

/// Hosts of an attachment without those that a more specific listener of the same port has to itself.
pub fn own_hosts<'a>(
    gateway: &'a GatewayPlan<'_>,
    attachment: &'a Attachment,
) -> impl Iterator<Item = &'a Option<String>> {
    let listener = &gateway.listeners[attachment.listener];
    let others = gateway.listeners.iter().enumerate().filter(move |(index, other)| {
        *index != attachment.listener && other.spec.port == listener.spec.port && other.is_usable()
    });
    let narrower: Vec<&str> = others
        .filter_map(|(_, other)| other.hostname())
        .filter(|name| listener.hostname().is_none_or(|own| hostname::is_within(name, own)))
        .collect();
    attachment.hosts.iter().filter(move |host| {
        host.as_deref().is_none_or(|host| !narrower.iter().any(|other| hostname::is_within(host, other)))
    })
}
