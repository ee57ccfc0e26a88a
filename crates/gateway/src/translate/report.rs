//! Statuses of classes, Gateways and routes, as far as they differ from those that are there.

use serde_json::{Value, json};

use super::attach::{Parent, RoutePlan};
use super::gateways::{GatewayPlan, Gateways, ListenerPlan};
use super::sets;
use crate::conditions::{Condition, Trouble, written};
use crate::settings::{Settings, StatusChange};
use crate::world::{Kind, World};

/// Features of the API that are declared, in order: what the conformance suite is run with.
pub const FEATURES: &[&str] = &[
    "BackendTLSPolicy",
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayBackendClientCertificate",
    "GatewayFrontendClientCertificateValidation",
    "GatewayHTTPListenerIsolation",
    "GatewayPort8080",
    "GatewayStaticAddresses",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteRetry",
    "HTTPRouteRetryBackendTimeout",
    "HTTPRouteRetryConnectionError",
    "HTTPRouteSchemeRedirect",
    "ListenerSet",
    "ReferenceGrant",
    "TCPRoute",
    "TLSRoute",
    "TLSRouteModeTerminate",
];

pub fn classes(world: &World, settings: &Settings, now: &str) -> Vec<StatusChange> {
    let ours = world.classes.iter().filter(|(_, class)| class.spec.controller_name == settings.controller);
    let changes = ours.map(|(key, class)| {
        let trouble = class.spec.parameters_ref.as_ref().map(|parameters| {
            Trouble::new("InvalidParameters", format!("parametersRef {parameters} is of no kind that is known here"))
        });
        let accepted = Condition::unless("Accepted", "Accepted", trouble.as_ref());
        let features: Vec<Value> = FEATURES.iter().map(|name| json!({ "name": name })).collect();
        let status = json!({
            "conditions": written(&[accepted], &class.status["conditions"], class.metadata.generation, now),
            "supportedFeatures": features,
        });
        change(Kind::GatewayClass, key, (&class.metadata.resource_version, &class.status), status)
    });
    changes.flatten().collect()
}

pub fn change(
    kind: Kind,
    key: &crate::resources::Key,
    (version, before): (&str, &Value),
    status: Value,
) -> Option<StatusChange> {
    let is_same = status.as_object().into_iter().flatten().all(|(name, value)| before[name] == *value);
    let change = StatusChange { kind, key: key.clone(), resource_version: version.to_owned(), status };
    (!is_same).then_some(change)
}

pub fn gateways(gateways: &Gateways<'_>, refused: Option<&str>, now: &str) -> Vec<StatusChange> {
    let changes = gateways.all.iter().filter_map(|plan| {
        let metadata = &plan.object.metadata;
        let before = &plan.object.status;
        let listeners: Vec<Value> =
            plan.listeners_of(None).map(|listener| listener_status(plan, listener, refused, now)).collect();
        let mut status = json!({
            "conditions": written(&conditions(plan, refused), &before["conditions"], metadata.generation, now),
            "listeners": listeners,
        });
        let attached = sets::attached(plan);
        if attached > 0 || before["attachedListenerSets"].is_number() {
            status["attachedListenerSets"] = attached.into();
        }
        if let Some(address) = &plan.address {
            status["addresses"] = json!([{ "type": "IPAddress", "value": address.advertised }]);
        } else if before["addresses"].is_array() {
            status["addresses"] = json!([]);
        }
        change(Kind::Gateway, &plan.key(), (&metadata.resource_version, before), status)
    });
    changes.collect()
}

fn conditions(plan: &GatewayPlan<'_>, refused: Option<&str>) -> Vec<Condition> {
    let bad: Vec<&str> = plan
        .listeners_of(None)
        .filter(|listener| listener.accepted.is_some() || listener.conflicted.is_some())
        .map(|listener| listener.spec.name.as_str())
        .collect();
    let what = format!("listeners that are not served, with their reasons below: {}", bad.join(", "));
    let accepted = match &plan.accepted {
        Some(trouble) => Condition::new("Accepted", false, trouble.reason, trouble.message.clone()),
        None if bad.is_empty() => Condition::new("Accepted", true, "Accepted", ""),
        None => {
            let is_any_left = bad.len() < plan.listeners_of(None).count() || sets::attached(plan) > 0;
            Condition::new("Accepted", is_any_left, "ListenersNotValid", what)
        }
    };
    let unprogrammed = match refused {
        _ if !accepted.holds => Some(Trouble::new("Invalid", "the Gateway is not accepted")),
        _ if plan.programmed.is_some() => plan.programmed.clone(),
        Some(why) => Some(Trouble::new("Pending", why)),
        None => None,
    };
    let mut all = vec![accepted, Condition::unless("Programmed", "Programmed", unprogrammed.as_ref())];
    if let Some(client) = &plan.client {
        all.push(Condition::unless("ResolvedRefs", "ResolvedRefs", client.as_ref().err()));
    }
    all
}

pub fn listener_status(plan: &GatewayPlan<'_>, listener: &ListenerPlan<'_>, refused: Option<&str>, now: &str) -> Value {
    let set = listener.set.map(|place| plan.sets[place].object);
    let (status, generation) = match set {
        None => (&plan.object.status, plan.object.metadata.generation),
        Some(set) => (&set.status, set.metadata.generation),
    };
    let before = status["listeners"].as_array().map_or(&[][..], Vec::as_slice);
    let before = before.iter().find(|each| each["name"] == listener.spec.name.as_str());
    let programmed = match refused {
        _ if listener.conflicted.is_some() => listener.conflicted.clone(),
        _ if plan.accepted.is_some() || !listener.is_usable() || listener.resolved.is_some() => {
            Some(Trouble::new("Invalid", "it is not served: the other conditions say why"))
        }
        _ if plan.address.is_none() => Some(Trouble::new("Pending", "the Gateway has no address")),
        Some(why) => Some(Trouble::new("Pending", why)),
        None => None,
    };
    let conflicted = match &listener.conflicted {
        Some(trouble) => Condition::new("Conflicted", true, trouble.reason, trouble.message.clone()),
        None => Condition::new("Conflicted", false, "NoConflicts", ""),
    };
    let conditions = [
        Condition::unless("Accepted", "Accepted", listener.accepted.as_ref()),
        Condition::unless("Programmed", "Programmed", programmed.as_ref()),
        Condition::unless("ResolvedRefs", "ResolvedRefs", listener.resolved.as_ref()),
        conflicted,
    ];
    let known = before.map_or(&Value::Null, |before| &before["conditions"]);
    // No route has anything of a listener that is conflicted.
    let kinds = if listener.conflicted.is_some() { &[][..] } else { &listener.kinds };
    json!({
        "name": listener.spec.name,
        "supportedKinds": kinds,
        "attachedRoutes": listener.attached,
        "conditions": written(&conditions, known, generation, now),
    })
}

pub fn routes(settings: &Settings, routes: &[RoutePlan<'_>], now: &str) -> Vec<StatusChange> {
    let changes = routes.iter().filter_map(|route| {
        let before = route.status["parents"].as_array().map_or(&[][..], Vec::as_slice);
        let is_ours = |each: &Value| each["controllerName"] == settings.controller.as_str();
        let mut parents: Vec<Value> = before.iter().filter(|each| !is_ours(each)).cloned().collect();
        for parent in &route.parents {
            let reference = json!(parent.reference);
            let known =
                before.iter().find(|each| is_ours(each) && is_same_parent(&each["parentRef"], &parent.reference));
            let conditions = route_conditions(route, parent);
            let known = known.map_or(&Value::Null, |known| &known["conditions"]);
            parents.push(json!({
                "parentRef": reference,
                "controllerName": settings.controller,
                "conditions": written(&conditions, known, route.metadata.generation, now),
            }));
        }
        // Nothing is written to routes that were never ours.
        let is_touched = !route.parents.is_empty() || before.iter().any(is_ours);
        let status = json!({ "parents": parents });
        is_touched
            .then(|| change(route.kind, &route.key(), (&route.metadata.resource_version, route.status), status))
            .flatten()
    });
    changes.collect()
}

fn is_same_parent(value: &Value, reference: &crate::resources::Reference) -> bool {
    *value == json!(reference)
}

fn route_conditions(route: &RoutePlan<'_>, parent: &Parent) -> Vec<Condition> {
    let all_dropped = route.rules > 0 && route.dropped.len() == route.rules;
    let listed = || {
        let each = route.dropped.iter().map(|(rule, trouble)| format!("rule {rule}: {}", trouble.message));
        each.collect::<Vec<_>>().join("; ")
    };
    let reason = route.dropped.first().map_or("UnsupportedValue", |(_, trouble)| trouble.reason);
    let dropped = all_dropped.then(|| Trouble::new(reason, listed()));
    let trouble = parent.accepted.clone().or(dropped);
    let mut conditions = vec![
        Condition::unless("Accepted", "Accepted", trouble.as_ref()),
        Condition::unless("ResolvedRefs", "ResolvedRefs", route.resolved.as_ref()),
    ];
    if trouble.is_none() && !route.dropped.is_empty() {
        let what = format!("Dropped Rule: {}", listed());
        conditions.push(Condition::new("PartiallyInvalid", true, "UnsupportedValue", what));
    }
    conditions
}
