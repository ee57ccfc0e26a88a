//! TLSRoute and TCPRoute: bytes that are handed on.

use std::collections::BTreeSet;

use super::attach::{RoutePlan, own_hosts};
use super::backends::{Asking, Backends};
use super::draft::Draft;
use super::gateways::Gateways;
use super::references::Referrer;
use crate::resources::Key;
use crate::world::{Kind, World};

pub fn routes(
    world: &World,
    gateways: &Gateways<'_>,
    routes: &mut [RoutePlan<'_>],
    backends: &mut Backends<'_>,
) -> Vec<Draft> {
    let mut drafts = Vec::new();
    for (place, route) in routes.iter_mut().enumerate() {
        let key = route.key();
        let (rules, prefix) = match route.kind {
            Kind::TlsRoute => (&world.tls_routes[&key].spec.rules, "tls"),
            Kind::TcpRoute => (&world.tcp_routes[&key].spec.rules, "tcp"),
            _ => continue,
        };
        let parents: BTreeSet<Key> = route
            .parents
            .iter()
            .flat_map(|parent| &parent.attachments)
            .map(|attachment| gateways.all[attachment.gateway].key())
            .collect();
        for (index, rule) in rules.iter().enumerate() {
            let (kind, namespace) = (route.kind.name(), &route.metadata.namespace);
            let from = Referrer { kind, namespace };
            let asking =
                Asking { from, is_grpc: false, is_relay: true, gateways: &parents, client: None, sticky: None };
            let then = backends.split(&rule.backend_refs, &asking, route);
            // A connection has one rule, the first: nothing tells rules of a relay apart.
            if index > 0 {
                continue;
            }
            for attachment in route.parents.iter().flat_map(|parent| &parent.attachments) {
                let gateway = &gateways.all[attachment.gateway];
                let listener = &gateway.listeners[attachment.listener];
                if !gateway.is_served(listener) {
                    continue;
                }
                drafts.extend(own_hosts(gateway, attachment).map(|host| Draft {
                    listener: listener.engine.clone(),
                    host: host.clone(),
                    path: None,
                    conditions: Default::default(),
                    then: then.clone(),
                    origin: Some((place, index)),
                    name: format!("{prefix}_{}_{}_{index}", key.namespace, key.name),
                }));
            }
        }
    }
    drafts
}
