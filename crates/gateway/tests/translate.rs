//! Cases of the API's conformance suite as resources in, routes and conditions out.

use std::collections::BTreeSet;

use base64ct::{Base64, Encoding};
use serde_json::{Map, Value, json};

use propylon_gateway::resources::Key;
use propylon_gateway::settings::{Outcome, Settings};
use propylon_gateway::translate::translate;
use propylon_gateway::world::{Kind, World};

#[path = "translate/owners.rs"]
mod owners;

/// A feature with a test of its own that no profile counts.
const UNREPORTED: &str = "GRPCRouteNamedRouteRule";

const NOW: &str = "2026-11-28T12:00:00Z";

fn settings() -> Settings {
    Settings {
        controller: "test/controller".into(),
        base: Map::from_iter([("listener".to_owned(), json!({ "own": { "bind": "127.0.0.1:9080" } }))]),
        addresses: vec!["192.0.2.1".parse().unwrap(), "192.0.2.2=198.51.100.2".parse().unwrap()],
        files: "/run/files".into(),
        closed_port: 9898,
        sticky_key: Some("/run/sticky.key".into()),
        ready: None,
    }
}

/// A resource of a kind: `namespace/name`, and the keys beside `metadata`.
fn put(world: &mut World, kind: Kind, name: &str, mut object: Value) {
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    let labels = object["labels"].take();
    let created = object["created"].as_str().unwrap_or("2026-01-01T00:00:00Z").to_owned();
    object["metadata"] = json!({
        "namespace": namespace, "name": name, "generation": 3, "resourceVersion": "1", "labels": labels,
        "creationTimestamp": created,
    });
    world.put(kind, object).unwrap();
}

fn service(world: &mut World, name: &str, address: &str) {
    put(world, Kind::Service, name, json!({ "spec": { "ports": [{ "port": 80, "name": "web" }] } }));
    let endpoints = match address {
        "" => json!([]),
        address => json!([{ "addresses": [address] }]),
    };
    let (_, own) = name.split_once('/').unwrap();
    let slice = json!({
        "labels": { "kubernetes.io/service-name": own }, "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{ "name": "web", "port": 8080 }],
    });
    put(world, Kind::EndpointSlice, &format!("{name}-1"), slice);
}

/// A class, a Gateway with one listener for HTTP, and two Services.
fn world() -> World {
    let mut world = World::default();
    put(&mut world, Kind::GatewayClass, "edge", json!({ "spec": { "controllerName": "test/controller" } }));
    gateway(&mut world, "infra/gw", json!([{ "name": "http", "port": 80, "protocol": "HTTP" }]));
    service(&mut world, "infra/v1", "10.0.0.1");
    service(&mut world, "infra/v2", "10.0.0.2");
    world
}

fn gateway(world: &mut World, name: &str, listeners: Value) {
    put(world, Kind::Gateway, name, json!({ "spec": { "gatewayClassName": "edge", "listeners": listeners } }));
}

fn route(world: &mut World, name: &str, mut spec: Value) {
    if spec["parentRefs"].is_null() {
        spec["parentRefs"] = json!([{ "name": "gw" }]);
    }
    put(world, Kind::HttpRoute, name, json!({ "spec": spec }));
}

fn translated(world: &World) -> Outcome {
    translate(world, &settings(), None, NOW)
}

fn config(outcome: &Outcome) -> Value {
    serde_json::from_str(outcome.config.as_deref().unwrap_or_else(|| panic!("{:?}", outcome.trouble))).unwrap()
}

/// All routes without their names and listeners, but for those of last resort.
fn routes(outcome: &Outcome) -> Vec<Value> {
    let mut all = all_routes(outcome);
    all.retain(|route| *route != json!({ "path": "/", "respond": { "status": 404 } }) && route["backend"] != "nobody");
    all
}

fn all_routes(outcome: &Outcome) -> Vec<Value> {
    let mut all = config(outcome)["route"].as_array().unwrap().clone();
    for route in &mut all {
        route.as_object_mut().unwrap().retain(|key, _| key != "name" && key != "listener");
    }
    all
}

/// `Type=Status:Reason` of each condition of a status.
fn said(conditions: &Value) -> Vec<String> {
    let text = |each: &Value, key: &str| each[key].as_str().unwrap().to_owned();
    let all = conditions.as_array().unwrap().iter();
    all.map(|each| format!("{}={}:{}", text(each, "type"), text(each, "status"), text(each, "reason"))).collect()
}

fn status(outcome: &Outcome, kind: Kind, name: &str) -> Value {
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    let key = Key::new(namespace, name);
    let found = outcome.statuses.iter().find(|change| change.kind == kind && change.key == key);
    found.unwrap_or_else(|| panic!("no status of {key}")).status.clone()
}

fn route_said(outcome: &Outcome, name: &str) -> Vec<String> {
    said(&status(outcome, Kind::HttpRoute, name)["parents"][0]["conditions"])
}

fn to(service: &str) -> Value {
    json!([{ "name": service, "port": 80 }])
}

/// Core features of the suite's profiles.
const CORE: [(&str, &str); 4] = [
    ("GATEWAY-GRPC", "GRPCRoute"),
    ("GATEWAY-HTTP", "HTTPRoute"),
    ("GATEWAY-TCP", "TCPRoute"),
    ("GATEWAY-TLS", "TLSRoute"),
];

#[test]
fn what_a_class_declares_is_what_the_suite_has_seen() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/conformance/report.yaml");
    let report = std::fs::read_to_string(path).unwrap();
    let mut seen = BTreeSet::from(["Gateway", "ReferenceGrant", UNREPORTED]);
    let mut is_supported = false;
    for line in report.lines() {
        if let Some(name) = line.strip_prefix("    - ") {
            seen.extend(is_supported.then_some(name));
            continue;
        }
        is_supported = line == "    supportedFeatures:";
        let profile = line.strip_prefix("  name: ");
        seen.extend(CORE.iter().filter(|(name, _)| Some(*name) == profile).map(|(_, feature)| feature));
        assert!(line.trim().strip_prefix("Failed: ").is_none_or(|number| number == "0"), "{line}");
    }
    assert!(CORE.iter().all(|(_, feature)| seen.contains(feature)), "{seen:?}");
    let class = status(&translated(&world()), Kind::GatewayClass, "edge");
    let declared: Vec<&str> =
        class["supportedFeatures"].as_array().unwrap().iter().filter_map(|each| each["name"].as_str()).collect();
    assert!(declared.is_sorted(), "{declared:?}");
    assert_eq!(declared.into_iter().collect::<BTreeSet<_>>(), seen);
}

#[test]
fn a_route_leads_to_the_endpoints_of_its_service() {
    let mut world = world();
    route(&mut world, "infra/r", json!({ "hostnames": ["a.example"], "rules": [{ "backendRefs": to("v1") }] }));
    let outcome = translated(&world);
    let config = config(&outcome);
    assert_eq!(config["listener"]["infra_gw_80"], json!({ "bind": "192.0.2.1:80" }));
    assert_eq!(config["backend"], json!({ "infra_v1_80": { "servers": ["10.0.0.1:8080"] } }));
    assert_eq!(routes(&outcome), [json!({ "host": "a.example", "path": "/", "backend": "infra_v1_80" })]);
    assert_eq!(route_said(&outcome, "infra/r"), ["Accepted=True:Accepted", "ResolvedRefs=True:ResolvedRefs"]);
    let gateway = status(&outcome, Kind::Gateway, "infra/gw");
    assert_eq!(said(&gateway["conditions"]), ["Accepted=True:Accepted", "Programmed=True:Programmed"]);
    assert_eq!(gateway["addresses"], json!([{ "type": "IPAddress", "value": "192.0.2.1" }]));
    assert_eq!(gateway["listeners"][0]["attachedRoutes"], 1);
    assert_eq!(gateway["listeners"][0]["supportedKinds"][0]["kind"], "HTTPRoute");
    assert_eq!(status(&outcome, Kind::GatewayClass, "edge")["conditions"][0]["observedGeneration"], 3);
}

#[test]
fn what_is_written_once_is_not_written_again() {
    let mut world = world();
    route(&mut world, "infra/r", json!({ "rules": [{ "backendRefs": to("v1") }] }));
    for change in translated(&world).statuses {
        match change.kind {
            Kind::GatewayClass => world.classes.get_mut(&change.key).unwrap().status = change.status,
            Kind::Gateway => world.gateways.get_mut(&change.key).unwrap().status = change.status,
            _ => world.http_routes.get_mut(&change.key).unwrap().status = change.status,
        }
    }
    let again = translate(&world, &settings(), None, "2026-11-29T00:00:00Z");
    assert_eq!(again.statuses, []);
    let refused = translate(&world, &settings(), Some("engine x refused it"), "2026-11-29T00:00:00Z");
    let gateway = status(&refused, Kind::Gateway, "infra/gw");
    assert_eq!(said(&gateway["conditions"]), ["Accepted=True:Accepted", "Programmed=False:Pending"]);
    assert_eq!(gateway["conditions"][0]["lastTransitionTime"], NOW);
}

#[test]
fn entries_of_other_controllers_stay_in_a_routes_status() {
    let mut world = world();
    route(&mut world, "infra/r", json!({ "rules": [{ "backendRefs": to("v1") }] }));
    let other = json!({ "controllerName": "other/one", "parentRef": { "name": "x" }, "conditions": [] });
    let mine = json!({ "controllerName": "test/controller", "parentRef": { "name": "gone" }, "conditions": [] });
    world.http_routes.get_mut(&Key::new("infra", "r")).unwrap().status = json!({ "parents": [mine, other] });
    let parents = status(&translated(&world), Kind::HttpRoute, "infra/r")["parents"].clone();
    assert_eq!(parents[0], other);
    assert_eq!(parents[1]["parentRef"], json!({ "name": "gw" }));
    assert_eq!(parents.as_array().unwrap().len(), 2);
}

#[test]
fn matches_are_conditions_of_the_engine() {
    let mut world = world();
    let matches = json!([
        { "path": { "type": "Exact", "value": "/one" }, "method": "GET" },
        { "path": { "type": "PathPrefix", "value": "/two/" }, "headers": [
            { "name": "Version", "value": "2" }, { "name": "version", "value": "3" },
            { "type": "RegularExpression", "name": "color", "value": "r.*d" },
        ] },
        { "path": { "type": "RegularExpression", "value": "/a|/b" }, "queryParams": [{ "name": "q", "value": "x" }] },
    ]);
    route(&mut world, "infra/r", json!({ "rules": [{ "matches": matches, "backendRefs": to("v1") }] }));
    let expected = [
        json!({ "path": { "exact": "/one" }, "match": { "method": "GET" }, "backend": "infra_v1_80" }),
        json!({
            "path": "/two", "backend": "infra_v1_80",
            "match": { "header": { "version": { "exact": "2" }, "color": { "regex": "^(?:r.*d)$" } } },
        }),
        json!({
            "path": { "regex": "^(?:/a|/b)$" }, "match": { "query": { "q": { "exact": "x" } } },
            "backend": "infra_v1_80",
        }),
    ];
    assert_eq!(routes(&translated(&world)), expected);
}

#[test]
fn of_two_routes_for_the_same_requests_the_older_holds() {
    let mut world = world();
    let rules = |service: &str| json!({ "parentRefs": [{ "name": "gw" }], "rules": [{ "backendRefs": to(service) }] });
    let route = |created: &str, service: &str| json!({ "created": created, "spec": rules(service) });
    put(&mut world, Kind::HttpRoute, "infra/a", route("2026-01-02T00:00:00Z", "v1"));
    put(&mut world, Kind::HttpRoute, "infra/b", route("2026-01-01T00:00:00Z", "v2"));
    assert_eq!(routes(&translated(&world)), [json!({ "path": "/", "backend": "infra_v2_80" })]);
}

#[test]
fn filters_are_changes_redirects_and_copies() {
    let mut world = world();
    service(&mut world, "infra/v3", "10.0.0.3");
    let rule = |path: &str, filters: Value| json!({ "matches": [{ "path": { "value": path } }], "filters": filters, "backendRefs": to("v1") });
    let modifier = json!({ "set": [{ "name": "X-A", "value": "{b}" }], "add": [{ "name": "X-C", "value": "d" }],
        "remove": ["X-E"] });
    let rules = json!([
        rule(
            "/headers",
            json!([
                { "type": "RequestHeaderModifier", "requestHeaderModifier": modifier },
                { "type": "ResponseHeaderModifier", "responseHeaderModifier": { "remove": ["Server"] } },
            ])
        ),
        rule(
            "/rewrite",
            json!([{ "type": "URLRewrite", "urlRewrite": {
            "hostname": "one.example", "path": { "type": "ReplacePrefixMatch", "replacePrefixMatch": "/" } } }])
        ),
        rule(
            "/redirect",
            json!([{ "type": "RequestRedirect", "requestRedirect": {
            "scheme": "https", "statusCode": 301, "path": { "type": "ReplaceFullPath", "replaceFullPath": "/x" } } }])
        ),
        rule(
            "/mirror",
            json!([{ "type": "RequestMirror", "requestMirror": {
            "backendRef": { "name": "v2", "port": 80 }, "fraction": { "numerator": 1, "denominator": 4 } } },
                { "type": "RequestMirror", "requestMirror": { "backendRef": { "name": "v3", "port": 80 } } }])
        ),
        rule(
            "/cors",
            json!([{ "type": "CORS", "cors": {
            "allowOrigins": ["https://a.example"], "allowMethods": ["GET", "PUT"], "maxAge": 60 } }])
        ),
    ]);
    route(&mut world, "infra/r", json!({ "rules": rules }));
    let outcome = translated(&world);
    assert_eq!(route_said(&outcome, "infra/r"), ["Accepted=True:Accepted", "ResolvedRefs=True:ResolvedRefs"]);
    let found = routes(&outcome);
    let backend = "infra_v1_80";
    assert_eq!(found[0]["request"], json!({ "set": { "X-A": "{{b}}" }, "add": { "X-C": "d" }, "remove": ["X-E"] }));
    assert_eq!(found[0]["response"], json!({ "remove": ["Server"] }));
    assert_eq!(found[1]["request"], json!({ "host": "one.example", "path": { "replace_prefix": "/" } }));
    assert_eq!(
        found[2],
        json!({ "path": "/redirect", "redirect": { "status": 301, "scheme": "https", "path": "/x" } })
    );
    let mirror = json!([{ "backend": "infra_v2_80", "percent": 25.0 }, { "backend": "infra_v3_80" }]);
    assert_eq!(found[3], json!({ "path": "/mirror", "backend": backend, "mirror": mirror }));
    let cors = json!({ "origins": ["https://a.example"], "methods": ["GET", "PUT"], "max_age": "60s" });
    assert_eq!(found[4], json!({ "path": "/cors", "backend": backend, "cors": cors }));
}

#[test]
fn timeouts_and_retries_are_those_of_the_rule() {
    let mut world = world();
    let rule = json!({
        "backendRefs": to("v1"), "timeouts": { "request": "1m30s", "backendRequest": "500ms" },
        "retry": { "attempts": 3, "codes": [500, 429], "backoff": "10ms" },
    });
    route(&mut world, "infra/r", json!({ "rules": [rule] }));
    let outcome = translated(&world);
    let found = &routes(&outcome)[0];
    assert_eq!(found["timeouts"], json!({ "request": "90000ms", "attempt": "500ms", "first_byte": "500ms" }));
    let on = json!(["connect", "reset", "timeout", 500, 429]);
    assert_eq!(found["retries"], json!({ "attempts": 3, "on": on, "backoff": "10ms" }));
    assert_eq!(config(&outcome)["backend"]["infra_v1_80"]["retries"]["budget"], "100%");
}

#[test]
fn clients_come_back_to_the_server_that_they_had() {
    let mut world = world();
    let permanent = json!({
        "sessionName": "cart", "absoluteTimeout": "1h", "cookieConfig": { "lifetimeType": "Permanent" },
    });
    let both = json!([{ "name": "v1", "port": 80 }, { "name": "v2", "port": 80 }]);
    let matches = |path: &str| json!([{ "path": { "value": path } }]);
    route(
        &mut world,
        "infra/r",
        json!({ "rules": [
            { "matches": matches("/one"), "backendRefs": to("v1"), "sessionPersistence": {} },
            { "matches": matches("/both"), "backendRefs": both, "sessionPersistence": permanent },
            { "matches": matches("/none"), "backendRefs": to("v1") },
            { "matches": matches("/idle"), "backendRefs": to("v1"), "sessionPersistence": { "idleTimeout": "5m" } },
            { "matches": matches("/head"), "backendRefs": to("v1"), "sessionPersistence": { "type": "Header" } },
            { "matches": matches("/two"), "backendRefs": to("v1"), "sessionPersistence": {} },
        ] }),
    );
    let outcome = translated(&world);
    let config = config(&outcome);
    let all = routes(&outcome);
    let sticky = |backend: &Value| config["backend"][backend.as_str().unwrap()]["sticky"].clone();
    let unnamed = |place: usize| sticky(&all[place]["backend"])["cookie"].as_str().unwrap().to_owned();
    assert!(unnamed(0).starts_with("propylon-session-") && unnamed(0) != unnamed(5), "{}", unnamed(0));
    assert_eq!(all[1]["sticky"], json!({ "cookie": "cart-backend", "ttl": "3600s" }));
    let own = json!({ "cookie": "cart", "key_file": "/run/sticky.key", "ttl": "3600s" });
    assert_eq!([sticky(&all[1]["backend"][0]["name"]), sticky(&all[1]["backend"][1]["name"])], [own.clone(), own]);
    assert_eq!((&all[2]["backend"], sticky(&all[2]["backend"])), (&json!("infra_v1_80"), Value::Null));
    assert_eq!([&all[3]["respond"], &all[4]["respond"]], [&json!({ "status": 500 }); 2]);
    assert_eq!(route_said(&outcome, "infra/r")[2], "PartiallyInvalid=True:UnsupportedValue");
}

#[test]
fn a_rule_that_cannot_be_kept_keeps_no_other_from_changing() {
    let mut world = world();
    let forwarded = json!([{ "type": "RequestHeaderModifier",
        "requestHeaderModifier": { "set": [{ "name": "X-Forwarded-For", "value": "1" }] } }]);
    let bad = json!({ "filters": forwarded, "backendRefs": to("v1"), "matches": [{ "path": { "value": "/bad" } }] });
    let good = json!({ "backendRefs": to("v2"), "matches": [{ "path": { "value": "/good" } }] });
    route(&mut world, "infra/both", json!({ "rules": [bad, good] }));
    route(&mut world, "infra/none", json!({ "hostnames": ["b.example"], "rules": [bad] }));
    let outcome = translated(&world);
    let expected = [
        json!({ "path": "/bad", "respond": { "status": 500 } }),
        json!({ "path": "/good", "backend": "infra_v2_80" }),
        json!({ "host": "b.example", "path": "/bad", "respond": { "status": 500 } }),
    ];
    assert_eq!(routes(&outcome), expected);
    assert_eq!(
        route_said(&outcome, "infra/both"),
        ["Accepted=True:Accepted", "ResolvedRefs=True:ResolvedRefs", "PartiallyInvalid=True:UnsupportedValue"]
    );
    assert_eq!(
        route_said(&outcome, "infra/none"),
        ["Accepted=False:UnsupportedValue", "ResolvedRefs=True:ResolvedRefs"]
    );
    let parent = &status(&outcome, Kind::HttpRoute, "infra/none")["parents"][0];
    let message = parent["conditions"][0]["message"].as_str().unwrap();
    assert!(message.starts_with("rule 0: ") && message.contains("X-Forwarded-For"), "{message}");
}

#[test]
fn a_route_is_attached_where_listeners_allow_it() {
    let listeners = json!([
        { "name": "same", "port": 80, "protocol": "HTTP", "hostname": "*.same.example" },
        { "name": "all", "port": 8080, "protocol": "HTTP", "allowedRoutes": { "namespaces": { "from": "All" } } },
        { "name": "some", "port": 8081, "protocol": "HTTP", "allowedRoutes": { "namespaces": {
            "from": "Selector", "selector": { "matchLabels": { "team": "a" } } } } },
        { "name": "grpc", "port": 8082, "protocol": "HTTP", "allowedRoutes": { "kinds": [{ "kind": "GRPCRoute" }] } },
    ]);
    for (namespace, section, host, expected) in [
        ("infra", "same", "x.same.example", "Accepted=True:Accepted"),
        ("infra", "same", "x.example", "Accepted=False:NoMatchingListenerHostname"),
        ("other", "same", "x.same.example", "Accepted=False:NotAllowedByListeners"),
        ("other", "all", "x.example", "Accepted=True:Accepted"),
        ("infra", "none", "x.example", "Accepted=False:NoMatchingParent"),
        ("team", "some", "x.example", "Accepted=True:Accepted"),
        ("infra", "some", "x.example", "Accepted=False:NotAllowedByListeners"),
        ("infra", "grpc", "x.example", "Accepted=False:NotAllowedByListeners"),
    ] {
        let mut world = world();
        gateway(&mut world, "infra/gw", listeners.clone());
        put(&mut world, Kind::Namespace, "team", json!({ "labels": { "team": "a" } }));
        put(&mut world, Kind::Namespace, "infra", json!({}));
        let parents = json!([{ "name": "gw", "namespace": "infra", "sectionName": section }]);
        let spec = json!({ "parentRefs": parents, "hostnames": [host], "rules": [{}] });
        route(&mut world, &format!("{namespace}/r"), spec);
        let outcome = translated(&world);
        assert_eq!(route_said(&outcome, &format!("{namespace}/r"))[0], expected, "{namespace} {section} {host}");
    }
}

#[test]
fn a_backend_that_is_none_is_told_and_answered_with_500() {
    let granted = json!({ "spec": { "from": [{ "group": "gateway.networking.k8s.io", "kind": "HTTPRoute",
        "namespace": "infra" }], "to": [{ "group": "", "kind": "Service", "name": "open" }] } });
    for (reference, expected, status) in [
        (json!({ "name": "missing", "port": 80 }), "ResolvedRefs=False:BackendNotFound", 500),
        (json!({ "name": "v1", "port": 81 }), "ResolvedRefs=False:BackendNotFound", 500),
        (json!({ "name": "v1", "kind": "Other", "port": 80 }), "ResolvedRefs=False:InvalidKind", 500),
        (json!({ "name": "shut", "namespace": "apps", "port": 80 }), "ResolvedRefs=False:RefNotPermitted", 500),
        (json!({ "name": "open", "namespace": "apps", "port": 80 }), "ResolvedRefs=True:ResolvedRefs", 0),
        (json!({ "name": "empty", "port": 80 }), "ResolvedRefs=True:ResolvedRefs", 503),
    ] {
        let mut world = world();
        put(&mut world, Kind::ReferenceGrant, "apps/grant", granted.clone());
        service(&mut world, "apps/shut", "10.0.1.1");
        service(&mut world, "apps/open", "10.0.1.2");
        service(&mut world, "infra/empty", "");
        route(&mut world, "infra/r", json!({ "rules": [{ "backendRefs": [reference] }] }));
        let outcome = translated(&world);
        assert_eq!(route_said(&outcome, "infra/r")[1], expected, "{reference}");
        match status {
            0 => assert_eq!(routes(&outcome)[0]["backend"], "apps_open_80"),
            status => assert_eq!(routes(&outcome)[0]["respond"], json!({ "status": status }), "{reference}"),
        }
    }
}

#[test]
fn the_share_of_a_backend_that_is_none_is_answered_with_500() {
    let mut world = world();
    let references = json!([
        { "name": "v1", "port": 80, "weight": 3 }, { "name": "missing", "port": 80, "weight": 1 },
        { "name": "v2", "port": 80, "weight": 0 },
    ]);
    route(&mut world, "infra/r", json!({ "rules": [{ "backendRefs": references }] }));
    let outcome = translated(&world);
    let split = json!([{ "name": "infra_v1_80", "weight": 3 }, { "respond": 500, "weight": 1 }]);
    assert_eq!(routes(&outcome)[0]["backend"], split);
}

#[test]
fn a_backend_of_a_rule_has_changes_of_fields_of_its_own() {
    let mut world = world();
    let set = |kind: &str, key: &str, value: &str| json!([{ "type": kind, key: { "set": [{ "name": "X-A", "value": value }], "remove": ["X-B"] } }]);
    let asks = |value: &str| set("RequestHeaderModifier", "requestHeaderModifier", value);
    let answers = set("ResponseHeaderModifier", "responseHeaderModifier", "{1}");
    let references = json!([
        { "name": "v1", "port": 80, "weight": 3, "filters": asks("1") },
        { "name": "v1", "port": 80, "weight": 2, "filters": asks("2") },
        { "name": "v2", "port": 80, "filters": answers }, { "name": "missing", "port": 80, "filters": asks("1") },
    ]);
    let one = json!([{ "name": "v1", "port": 80, "filters": asks("1") }]);
    let rule = |path: &str, references: &Value, filters: Value| json!({ "matches": [{ "path": { "value": path } }], "backendRefs": references, "filters": filters });
    let mut mirrored = references.clone();
    mirrored[0]["filters"] = json!([{ "type": "RequestMirror", "requestMirror": { "backendRef": to("v2")[0] } }]);
    let rules =
        json!([rule("/a", &references, json!([])), rule("/b", &one, asks("0")), rule("/c", &mirrored, json!([]))]);
    route(&mut world, "infra/r", json!({ "rules": rules }));
    let outcome = translated(&world);
    let of = |value: &str| json!({ "set": { "X-A": value }, "remove": ["X-B"] });
    let v1 = |value: &str, weight: u32| json!({ "name": "infra_v1_80", "weight": weight, "request": of(value) });
    let v2 = json!({ "name": "infra_v2_80", "weight": 1, "response": of("{{1}}") });
    let found = routes(&outcome);
    let named = |path: &str| found.iter().find(|route| route["path"] == path).unwrap();
    assert_eq!(named("/a")["backend"], json!([v1("1", 3), v1("2", 2), v2, { "respond": 500, "weight": 1 }]));
    assert_eq!((&named("/b")["backend"], &named("/b")["request"]), (&json!([v1("1", 1)]), &of("0")));
    assert_eq!(named("/c")["respond"], json!({ "status": 500 }));
}

#[test]
fn requests_stay_with_the_most_specific_listener() {
    let mut world = world();
    let listener = |name: &str, host: &str| json!({ "name": name, "port": 80, "protocol": "HTTP", "hostname": host });
    let mut any = listener("any", "");
    any.as_object_mut().unwrap().remove("hostname");
    gateway(&mut world, "infra/gw", json!([any, listener("wide", "*.example"), listener("narrow", "a.example")]));
    let parent = |section: &str| json!([{ "name": "gw", "sectionName": section }]);
    for section in ["any", "wide", "narrow"] {
        let rule = json!({ "matches": [{ "path": { "value": format!("/{section}") } }], "backendRefs": to("v1") });
        let hosts = json!(["a.example"]);
        route(
            &mut world,
            &format!("infra/{section}"),
            json!({
                "parentRefs": parent(section), "hostnames": if section == "narrow" { json!([]) } else { hosts },
                "rules": [rule],
            }),
        );
    }
    let expected = [
        json!({ "host": "a.example", "path": "/narrow", "backend": "infra_v1_80" }),
        json!({ "path": "/", "respond": { "status": 404 } }),
        json!({ "host": "*.example", "path": "/", "respond": { "status": 404 } }),
        json!({ "host": "a.example", "path": "/", "respond": { "status": 404 } }),
    ];
    assert_eq!(all_routes(&translated(&world)), expected);
}

#[test]
fn listeners_that_cannot_be_told_apart_are_conflicted() {
    let mut world = world();
    gateway(
        &mut world,
        "infra/gw",
        json!([
            { "name": "one", "port": 80, "protocol": "HTTP", "hostname": "a.example" },
            { "name": "two", "port": 80, "protocol": "HTTP", "hostname": "a.example" },
            { "name": "three", "port": 81, "protocol": "HTTP" },
            { "name": "four", "port": 82, "protocol": "HTTP" },
            { "name": "five", "port": 82, "protocol": "TCP" },
            { "name": "six", "port": 83, "protocol": "UDP" },
        ]),
    );
    let gateway = status(&translated(&world), Kind::Gateway, "infra/gw");
    assert_eq!(said(&gateway["conditions"]), ["Accepted=True:ListenersNotValid", "Programmed=True:Programmed"]);
    let listener = |index: usize| said(&gateway["listeners"][index]["conditions"]);
    assert_eq!(listener(0)[0], "Accepted=False:HostnameConflict");
    assert_eq!(listener(1)[3], "Conflicted=True:HostnameConflict");
    assert_eq!(
        listener(2),
        [
            "Accepted=True:Accepted",
            "Programmed=True:Programmed",
            "ResolvedRefs=True:ResolvedRefs",
            "Conflicted=False:NoConflicts"
        ]
    );
    assert_eq!(listener(3)[3], "Conflicted=True:ProtocolConflict");
    assert_eq!(listener(4)[1], "Programmed=False:ProtocolConflict");
    assert_eq!(listener(5)[0], "Accepted=False:UnsupportedProtocol");
}

#[test]
fn listeners_of_a_listener_set_stand_behind_those_of_its_gateway() {
    let mut world = world();
    let listener = |name: &str, protocol: &str, host: &str| {
        let mut listener = json!({ "name": name, "port": 80, "protocol": protocol });
        if protocol == "HTTP" {
            listener["hostname"] = host.into();
        }
        listener
    };
    let own = json!([listener("own", "HTTP", "own.example")]);
    let spec = |from: &str| {
        let allowed = json!({ "namespaces": { "from": from } });
        json!({ "spec": { "gatewayClassName": "edge", "listeners": own, "allowedListeners": allowed } })
    };
    put(&mut world, Kind::Gateway, "infra/gw", spec("All"));
    let mut set = |name: &str, created: &str, listeners: Value| {
        let parent = json!({ "name": "gw", "namespace": "infra" });
        let spec = json!({ "parentRef": parent, "listeners": listeners });
        put(&mut world, Kind::ListenerSet, name, json!({ "created": created, "spec": spec }));
    };
    let [first, second, third] = [1, 2, 3].map(|day| format!("2026-02-0{day}T00:00:00Z"));
    set("app/old", &first, json!([listener("a", "HTTP", "a.example"), listener("b", "HTTP", "own.example")]));
    set("app/new", &second, json!([listener("a", "HTTP", "a.example"), listener("c", "HTTP", "c.example")]));
    set("app/none", &third, json!([listener("d", "TCP", "")]));
    let parents = json!([
        { "kind": "ListenerSet", "name": "new" },
        { "name": "gw", "namespace": "infra", "sectionName": "c" },
    ]);
    service(&mut world, "app/v3", "10.0.0.3");
    route(&mut world, "app/r", json!({ "parentRefs": parents, "rules": [{ "backendRefs": to("v3") }] }));
    let outcome = translated(&world);
    let reached = routes(&outcome).into_iter().filter(|route| route["backend"] == "app_v3_80").collect::<Vec<_>>();
    assert_eq!(reached, [json!({ "host": "c.example", "path": "/", "backend": "app_v3_80" })]);
    assert_eq!(status(&outcome, Kind::Gateway, "infra/gw")["attachedListenerSets"], 2);
    let set = |name: &str| status(&outcome, Kind::ListenerSet, name);
    let old = set("app/old");
    assert_eq!(said(&old["conditions"]), ["Accepted=True:ListenersNotValid", "Programmed=True:Programmed"]);
    assert_eq!(said(&old["listeners"][0]["conditions"])[3], "Conflicted=False:NoConflicts");
    assert_eq!(said(&old["listeners"][1]["conditions"])[1], "Programmed=False:HostnameConflict");
    assert_eq!(said(&set("app/new")["listeners"][0]["conditions"])[3], "Conflicted=True:HostnameConflict");
    assert_eq!(set("app/new")["listeners"][1]["attachedRoutes"], 1);
    let nothing = ["Accepted=False:ListenersNotValid", "Programmed=False:ListenersNotValid"];
    assert_eq!(said(&set("app/none")["conditions"]), nothing);
    let parent =
        |place: usize| said(&status(&outcome, Kind::HttpRoute, "app/r")["parents"][place]["conditions"]).swap_remove(0);
    assert_eq!([parent(0), parent(1)], ["Accepted=True:Accepted", "Accepted=False:NoMatchingParent"]);
    put(&mut world, Kind::Gateway, "infra/gw", spec("Same"));
    let refused = status(&translated(&world), Kind::ListenerSet, "app/old");
    assert_eq!(said(&refused["conditions"]), ["Accepted=False:NotAllowed", "Programmed=False:NotAllowed"]);
    assert_eq!(refused["listeners"], json!([]));
}

#[test]
fn gateways_have_addresses_of_their_own_as_far_as_there_are_some() {
    let mut world = world();
    let listeners = json!([{ "name": "http", "port": 80, "protocol": "HTTP" }]);
    let object = |created: &str, addresses: Value| json!({ "created": created, "spec": { "gatewayClassName": "edge", "listeners": listeners, "addresses": addresses } });
    let wish = json!([{ "type": "IPAddress", "value": "192.0.2.1" }]);
    put(&mut world, Kind::Gateway, "infra/gw", object("2026-01-01T00:00:00Z", json!([])));
    put(&mut world, Kind::Gateway, "infra/wish", object("2026-01-02T00:00:00Z", wish));
    put(&mut world, Kind::Gateway, "infra/late", object("2026-01-03T00:00:00Z", json!([])));
    put(&mut world, Kind::Gateway, "infra/odd", object("2026-01-03T00:00:00Z", json!([{ "type": "Hostname" }])));
    let outcome = translated(&world);
    let of = |name: &str| status(&outcome, Kind::Gateway, name);
    assert_eq!(of("infra/gw")["addresses"][0]["value"], "198.51.100.2");
    assert_eq!(config(&outcome)["listener"]["infra_gw_80"]["bind"], "192.0.2.2:80");
    assert_eq!(of("infra/wish")["addresses"][0]["value"], "192.0.2.1");
    assert_eq!(said(&of("infra/late")["conditions"])[1], "Programmed=False:AddressNotAssigned");
    assert_eq!(said(&of("infra/odd")["conditions"])[0], "Accepted=False:UnsupportedAddress");
}

#[test]
fn certificates_of_secrets_are_files_of_the_engine() {
    let pair = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
    let other = rcgen::generate_simple_self_signed(["b.example".to_owned()]).unwrap();
    let secret = |chain: &str, key: &str| {
        json!({ "type": "kubernetes.io/tls", "data": { "tls.crt": Base64::encode_string(chain.as_bytes()),
            "tls.key": Base64::encode_string(key.as_bytes()) } })
    };
    let listeners = |name: &str| {
        json!([{ "name": "https", "port": 443, "protocol": "HTTPS",
            "tls": { "certificateRefs": [{ "name": name }] } }])
    };
    let mut world = world();
    put(&mut world, Kind::Secret, "infra/good", secret(&pair.cert.pem(), &pair.signing_key.serialize_pem()));
    put(&mut world, Kind::Secret, "infra/mixed", secret(&pair.cert.pem(), &other.signing_key.serialize_pem()));
    put(&mut world, Kind::Secret, "infra/odd", secret("x", "y"));
    gateway(&mut world, "infra/gw", listeners("good"));
    let outcome = translated(&world);
    let (name, content) = outcome.files.first_key_value().unwrap();
    assert!(String::from_utf8_lossy(content).contains("PRIVATE KEY"));
    let config = config(&outcome);
    assert_eq!(config["tls"]["infra_gw_443"]["certificates"], json!([format!("/run/files/{name}")]));
    assert_eq!(config["listener"]["infra_gw_443"]["tls"], "infra_gw_443");
    for name in ["mixed", "odd", "missing"] {
        gateway(&mut world, "infra/gw", listeners(name));
        let outcome = translated(&world);
        let conditions = said(&status(&outcome, Kind::Gateway, "infra/gw")["listeners"][0]["conditions"]);
        assert_eq!(
            conditions[1..3],
            ["Programmed=False:Invalid", "ResolvedRefs=False:InvalidCertificateRef"],
            "{name}"
        );
        assert!(outcome.files.is_empty());
    }
}

#[test]
fn calls_of_grpc_are_found_by_service_and_method() {
    let mut world = world();
    let rule = json!({ "backendRefs": to("v1"), "matches": [
        { "method": { "service": "a.B", "method": "C" } }, { "method": { "service": "a.B" } },
        { "method": { "method": "D" } }, {},
    ] });
    put(
        &mut world,
        Kind::GrpcRoute,
        "infra/g",
        json!({ "spec": { "parentRefs": [{ "name": "gw" }], "rules": [rule] } }),
    );
    let outcome = translated(&world);
    let found = routes(&outcome);
    let paths: Vec<&Value> = found.iter().map(|route| &route["path"]).collect();
    assert_eq!(paths, [&json!({ "exact": "/a.B/C" }), &json!("/a.B"), &json!({ "regex": "^/[^/]+/D$" }), &json!("/")]);
    assert_eq!(found[0]["match"], json!({ "grpc": {} }));
    assert_eq!(config(&outcome)["backend"]["infra_v1_80_h2"]["protocol"], "h2");
}

#[test]
fn relays_hand_on_what_their_routes_say() {
    let mut world = world();
    gateway(
        &mut world,
        "infra/gw",
        json!([
            { "name": "tls", "port": 443, "protocol": "TLS", "hostname": "*.example", "tls": { "mode": "Passthrough" } },
            { "name": "tcp", "port": 5432, "protocol": "TCP" },
        ]),
    );
    let spec = |section: &str, hosts: Value| {
        json!({ "spec": { "parentRefs": [{ "name": "gw", "sectionName": section }], "hostnames": hosts,
            "rules": [{ "backendRefs": to("v1") }] } })
    };
    // Connections that nobody is for are closed; where nothing is served they are refused.
    let alone = translated(&world);
    assert_eq!(config(&alone)["listener"].as_object().unwrap().len(), 2);
    let closed = [json!({ "host": "*.example", "backend": "nobody" }), json!({ "backend": "nobody" })];
    assert_eq!(all_routes(&alone), closed);
    assert_eq!(config(&alone)["backend"]["nobody"], json!({ "servers": ["127.0.0.1:9898"] }));
    put(&mut world, Kind::TlsRoute, "infra/t", spec("tls", json!(["a.example"])));
    put(&mut world, Kind::TcpRoute, "infra/d", spec("tcp", json!([])));
    let outcome = translated(&world);
    let config = config(&outcome);
    assert_eq!(config["listener"]["infra_gw_443"]["protocol"], "passthrough");
    assert_eq!(config["listener"]["infra_gw_5432"]["protocol"], "tcp");
    assert_eq!(
        routes(&outcome),
        [json!({ "host": "a.example", "backend": "infra_v1_80" }), json!({ "backend": "infra_v1_80" })]
    );
    let shares = json!([{ "name": "v1", "port": 80, "weight": 70 }, { "name": "v2", "port": 80, "weight": 35 },
        { "name": "v1", "port": 80, "weight": 0 }, { "name": "missing", "port": 80, "weight": 5 }]);
    let parents = json!([{ "name": "gw", "sectionName": "tcp" }]);
    let spec = json!({ "parentRefs": parents, "rules": [{ "backendRefs": shares }] });
    put(&mut world, Kind::TcpRoute, "infra/d", json!({ "spec": spec }));
    let outcome = translated(&world);
    // Whatever the number of their servers; a share without a backend is closed.
    let shares = json!([{ "name": "infra_v1_80", "weight": 70 }, { "name": "infra_v2_80", "weight": 35 },
        { "respond": 500, "weight": 5 }]);
    assert_eq!(routes(&outcome)[1]["backend"], shares);
}

#[test]
fn servers_are_verified_as_a_policy_says_or_not_asked() {
    let pair = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
    let mut world = world();
    put(&mut world, Kind::ConfigMap, "infra/ca", json!({ "data": { "ca.crt": pair.cert.pem() } }));
    let policy = |name: &str| {
        json!({ "spec": { "targetRefs": [{ "group": "", "kind": "Service", "name": "v1" }], "validation": {
            "hostname": "a.example", "caCertificateRefs": [{ "group": "", "kind": "ConfigMap", "name": name }] } } })
    };
    route(&mut world, "infra/r", json!({ "rules": [{ "backendRefs": to("v1") }] }));
    put(&mut world, Kind::BackendTlsPolicy, "infra/p", policy("ca"));
    let outcome = translated(&world);
    let tls = &config(&outcome)["backend"]["infra_v1_80_tls_p"]["tls"];
    assert_eq!(tls["server_name"], "a.example");
    assert!(outcome.files.contains_key(tls["ca"].as_str().unwrap().trim_start_matches("/run/files/")));
    let ancestors = &status(&outcome, Kind::BackendTlsPolicy, "infra/p")["ancestors"];
    assert_eq!(said(&ancestors[0]["conditions"]), ["Accepted=True:Accepted", "ResolvedRefs=True:ResolvedRefs"]);
    put(&mut world, Kind::BackendTlsPolicy, "infra/p", policy("missing"));
    let outcome = translated(&world);
    assert_eq!(routes(&outcome)[0]["respond"], json!({ "status": 500 }));
    let ancestors = &status(&outcome, Kind::BackendTlsPolicy, "infra/p")["ancestors"];
    let expected = ["Accepted=False:NoValidCACertificate", "ResolvedRefs=False:InvalidCACertificateRef"];
    assert_eq!(said(&ancestors[0]["conditions"]), expected);
}

#[test]
fn servers_are_shown_the_certificate_of_the_gateway_that_leads_to_them() {
    let pair = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
    let mut world = world();
    let encoded = |text: String| Base64::encode_string(text.as_bytes());
    let data = json!({ "tls.crt": encoded(pair.cert.pem()), "tls.key": encoded(pair.signing_key.serialize_pem()) });
    put(&mut world, Kind::Secret, "infra/client", json!({ "type": "kubernetes.io/tls", "data": data }));
    let policy = json!({
        "targetRefs": [{ "group": "", "kind": "Service", "name": "v1" }],
        "validation": { "hostname": "a.example", "wellKnownCACertificates": "System" },
    });
    put(&mut world, Kind::BackendTlsPolicy, "infra/p", json!({ "spec": policy }));
    let shown = |world: &mut World, secret: &str| {
        let spec = json!({
            "gatewayClassName": "edge", "listeners": [{ "name": "http", "port": 81, "protocol": "HTTP" }],
            "tls": { "backend": { "clientCertificateRef": { "name": secret } } },
        });
        put(world, Kind::Gateway, "infra/shown", json!({ "created": "2026-02-01T00:00:00Z", "spec": spec }));
    };
    shown(&mut world, "client");
    let parents = json!([{ "name": "gw" }, { "name": "shown" }]);
    route(&mut world, "infra/r", json!({ "parentRefs": parents, "rules": [{ "backendRefs": to("v1") }] }));
    let outcome = translated(&world);
    let config = config(&outcome);
    let certificates: Vec<Value> = routes(&outcome)
        .iter()
        .map(|route| config["backend"][route["backend"].as_str().unwrap()]["tls"]["certificate"].clone())
        .collect();
    let file = format!("/run/files/{}", outcome.files.first_key_value().unwrap().0);
    assert_eq!(certificates, [Value::Null, file.into()]);
    let said_of = |outcome: &Outcome| said(&status(outcome, Kind::Gateway, "infra/shown")["conditions"]);
    assert_eq!(said_of(&outcome)[2], "ResolvedRefs=True:ResolvedRefs");
    shown(&mut world, "missing");
    let outcome = translated(&world);
    assert_eq!(said_of(&outcome)[0], "Accepted=True:Accepted");
    assert_eq!(said_of(&outcome)[2], "ResolvedRefs=False:InvalidClientCertificateRef");
}

#[test]
fn requests_of_a_rule_with_an_unknown_filter_get_no_other_rule() {
    let mut world = world();
    let open = json!({ "backendRefs": to("v1") });
    let closed = json!({ "filters": [{ "type": "ExternalAuth" }], "backendRefs": to("v1"),
        "matches": [{ "path": { "value": "/admin" } }] });
    // The host is none that an engine takes: nothing of this one can be kept, and of the others all.
    let unfit = json!({ "hostnames": ["a.123"], "rules": [closed] });
    route(&mut world, "infra/r", json!({ "rules": [open, closed] }));
    route(&mut world, "infra/unfit", unfit);
    let outcome = translated(&world);
    let expected =
        [json!({ "path": "/", "backend": "infra_v1_80" }), json!({ "path": "/admin", "respond": { "status": 500 } })];
    assert_eq!(routes(&outcome), expected);
    assert_eq!(route_said(&outcome, "infra/r")[2], "PartiallyInvalid=True:UnsupportedValue");
    assert_eq!(route_said(&outcome, "infra/unfit")[0], "Accepted=False:UnsupportedValue");
}

#[test]
fn a_rule_with_a_key_in_it_is_the_only_one_that_is_refused() {
    let mut world = world();
    let secret = json!([{ "type": "RequestHeaderModifier",
        "requestHeaderModifier": { "set": [{ "name": "X-A", "value": "-----BEGIN PRIVATE KEY-----" }] } }]);
    let bad = json!({ "filters": secret, "backendRefs": to("v1") });
    let worse = json!({ "backendRefs": to("v1"),
        "matches": [{ "headers": [{ "name": "x", "value": "PRIVATE KEY-----" }] }] });
    route(&mut world, "infra/r", json!({ "hostnames": ["a.example"], "rules": [bad] }));
    route(&mut world, "infra/s", json!({ "rules": [worse, { "backendRefs": to("v2") }] }));
    let expected = [
        json!({ "host": "a.example", "path": "/", "respond": { "status": 500 } }),
        json!({ "path": "/", "backend": "infra_v2_80" }),
    ];
    assert_eq!(routes(&translated(&world)), expected);
}

#[test]
fn a_selector_that_is_absent_lets_nobody_in() {
    let parents = json!([{ "name": "gw", "namespace": "infra" }]);
    for (selector, expected) in
        [(json!(null), "Accepted=False:NotAllowedByListeners"), (json!({}), "Accepted=True:Accepted")]
    {
        let mut world = world();
        let namespaces = json!({ "from": "Selector", "selector": selector });
        let listener =
            json!({ "name": "http", "port": 80, "protocol": "HTTP", "allowedRoutes": { "namespaces": namespaces } });
        gateway(&mut world, "infra/gw", json!([listener]));
        put(&mut world, Kind::Namespace, "other", json!({}));
        route(&mut world, "other/r", json!({ "parentRefs": parents, "rules": [{}] }));
        assert_eq!(route_said(&translated(&world), "other/r")[0], expected);
    }
}

#[test]
fn names_and_ports_that_engines_do_not_take_keep_nobody_else_from_changing() {
    let long = format!("infra/{}", "n".repeat(63));
    let mut world = world();
    let http = |name: &str, port: u16| json!({ "name": name, "port": port, "protocol": "HTTP" });
    let mut unfit = http("unfit", 81);
    unfit["hostname"] = "a.123".into();
    gateway(&mut world, &long, json!([http("http", 80), unfit, http("own", 9080)]));
    let mut settings = settings();
    settings.base.insert("admin".into(), json!({ "bind": "127.0.0.1:9081" }));
    settings.addresses = vec!["0.0.0.0".parse().unwrap()];
    gateway(&mut world, "infra/gw", json!([http("http", 82), http("admin", 9081)]));
    service(&mut world, &long, "10.0.0.9");
    service(&mut world, "infra/odd", "239.1.1.1");
    let own = json!([{ "name": "gw" }, { "name": "n".repeat(63) }]);
    let rule =
        |service: &str, path: &str| json!({ "backendRefs": to(service), "matches": [{ "path": { "value": path } }] });
    let rules = json!([rule(&"n".repeat(63), "/"), rule("odd", "/odd")]);
    route(&mut world, "infra/r", json!({ "parentRefs": own, "rules": rules }));
    let outcome = translate(&world, &settings, None, NOW);
    let config = config(&outcome);
    let backend = config["backend"].as_object().unwrap().keys().next().unwrap();
    assert!(backend.len() == 64 && backend.starts_with("infra_nnn"), "{backend}");
    assert_eq!(config["listener"].as_object().unwrap().len(), 3);
    assert_eq!(config["route"][2]["respond"], json!({ "status": 503 }));
    let listeners = |name: &str| status(&outcome, Kind::Gateway, name)["listeners"].clone();
    let accepted = |name: &str, index: usize| said(&listeners(name)[index]["conditions"])[0].clone();
    assert_eq!(accepted(&long, 0), "Accepted=True:Accepted");
    assert_eq!(accepted(&long, 1), "Accepted=False:UnsupportedValue");
    assert_eq!(accepted(&long, 2), "Accepted=False:PortUnavailable");
    assert_eq!(accepted("infra/gw", 1), "Accepted=False:PortUnavailable");
}

#[test]
fn a_path_that_stands_for_all_requests_stands_before_the_listeners_own() {
    let mut world = world();
    let listener = json!({ "name": "http", "port": 80, "protocol": "HTTP", "hostname": "a.example" });
    gateway(&mut world, "infra/gw", json!([listener]));
    let rule = json!({ "matches": [{ "path": { "value": "/%2E" } }], "backendRefs": to("v1") });
    route(&mut world, "infra/r", json!({ "rules": [rule] }));
    let expected = [json!({ "host": "a.example", "path": "/%2E", "backend": "infra_v1_80" })];
    assert_eq!(routes(&translated(&world)), expected);
}

#[test]
fn a_route_that_is_too_large_is_the_only_one_that_is_left_out() {
    let mut world = world();
    let rule = |index: usize| {
        let matches = (0..64).map(|each| json!({ "path": { "value": format!("/{index}/{each}") } }));
        json!({ "matches": matches.collect::<Vec<_>>(), "backendRefs": to("v1") })
    };
    let hosts: Vec<String> = (0..3).map(|index| format!("{index}.example")).collect();
    let rules: Vec<Value> = (0..16).map(rule).collect();
    route(&mut world, "infra/large", json!({ "hostnames": hosts, "rules": rules }));
    route(&mut world, "infra/r", json!({ "rules": [{ "backendRefs": to("v2") }] }));
    let outcome = translated(&world);
    assert_eq!(routes(&outcome), [json!({ "path": "/", "backend": "infra_v2_80" })]);
    assert_eq!(route_said(&outcome, "infra/large")[0], "Accepted=False:UnsupportedValue");
    // As many drafts as one check tells of, all refused.
    let bad = json!([{ "type": "RequestHeaderModifier",
        "requestHeaderModifier": { "set": [{ "name": "X-Forwarded-For", "value": "1" }] } }]);
    let mut rules = rules;
    for rule in &mut rules {
        rule["filters"] = bad.clone();
    }
    for name in ["infra/large", "infra/second"] {
        route(&mut world, name, json!({ "hostnames": [format!("{}.example", &name[6..])], "rules": rules }));
    }
    let outcome = translated(&world);
    let found = routes(&outcome);
    assert_eq!(found.len(), 2049);
    assert_eq!(found.iter().filter(|route| route["respond"] == json!({ "status": 500 })).count(), 2048);
}

#[test]
fn authorities_that_are_no_certificates_are_none() {
    let rubbish = "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n";
    let pair = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
    let large = pair.cert.pem() + &" ".repeat(256 << 10);
    let policy = |hostname: &str| {
        json!({ "spec": { "targetRefs": [{ "group": "", "kind": "Service", "name": "v1" }], "validation": {
            "hostname": hostname, "caCertificateRefs": [{ "group": "", "kind": "ConfigMap", "name": "ca" }] } } })
    };
    for (authorities, hostname, reason) in [
        (rubbish, "a.example", "NoValidCACertificate"),
        (&large, "a.example", "NoValidCACertificate"),
        (&pair.cert.pem(), "a.123", "Invalid"),
    ] {
        let mut world = world();
        put(&mut world, Kind::ConfigMap, "infra/ca", json!({ "data": { "ca.crt": authorities } }));
        put(&mut world, Kind::BackendTlsPolicy, "infra/p", policy(hostname));
        route(&mut world, "infra/r", json!({ "rules": [{ "backendRefs": to("v1") }] }));
        let outcome = translated(&world);
        assert_eq!(routes(&outcome)[0]["respond"], json!({ "status": 500 }));
        let ancestors = &status(&outcome, Kind::BackendTlsPolicy, "infra/p")["ancestors"];
        assert_eq!(said(&ancestors[0]["conditions"])[0], format!("Accepted=False:{reason}"));
    }
    let mut world = world();
    let secret = json!({ "type": "kubernetes.io/tls", "data": {
        "tls.crt": Base64::encode_string((pair.cert.pem() + rubbish).as_bytes()),
        "tls.key": Base64::encode_string(pair.signing_key.serialize_pem().as_bytes()) } });
    put(&mut world, Kind::Secret, "infra/odd", secret);
    let tls = json!({ "certificateRefs": [{ "name": "odd" }] });
    gateway(&mut world, "infra/gw", json!([{ "name": "https", "port": 443, "protocol": "HTTPS", "tls": tls }]));
    let outcome = translated(&world);
    let conditions = said(&status(&outcome, Kind::Gateway, "infra/gw")["listeners"][0]["conditions"]);
    assert_eq!(conditions[2], "ResolvedRefs=False:InvalidCertificateRef");
}

#[test]
fn the_youngest_routes_are_left_out_where_there_is_no_room() {
    let mut world = world();
    let path = "x".repeat(1000);
    for (name, created) in
        [("young", "2026-01-03"), ("old", "2026-01-01"), ("small", "2026-01-04"), ("new", "2026-01-02")]
    {
        let count = if name == "small" { 1 } else { 1600 };
        let matches = (0..count).map(|each| json!({ "path": { "type": "Exact", "value": format!("/{each}{path}") } }));
        let rule = json!({ "matches": matches.collect::<Vec<_>>(), "backendRefs": to("v1") });
        let spec =
            json!({ "parentRefs": [{ "name": "gw" }], "hostnames": [format!("{name}.example")], "rules": [rule] });
        put(&mut world, Kind::HttpRoute, &format!("infra/{name}"), json!({ "created": created, "spec": spec }));
    }
    let outcome = translated(&world);
    assert_eq!(routes(&outcome).len(), 3201);
    assert_eq!(route_said(&outcome, "infra/young")[0], "Accepted=False:UnsupportedValue");
    for name in ["infra/old", "infra/new", "infra/small"] {
        assert_eq!(route_said(&outcome, name)[0], "Accepted=True:Accepted");
    }
}

#[test]
fn a_listener_that_engines_do_not_take_is_the_only_one_that_is_not_served() {
    let mut world = world();
    gateway(&mut world, "infra/second", json!([{ "name": "http", "port": 80, "protocol": "HTTP" }]));
    let parents = json!([{ "name": "gw" }, { "name": "second" }]);
    route(&mut world, "infra/r", json!({ "parentRefs": parents, "rules": [{ "backendRefs": to("v1") }] }));
    let mut settings = settings();
    settings.addresses[1] = "224.0.0.1".parse().unwrap();
    let outcome = translate(&world, &settings, None, NOW);
    assert_eq!(routes(&outcome), [json!({ "path": "/", "backend": "infra_v1_80" })]);
    let conditions = |name: &str| said(&status(&outcome, Kind::Gateway, name)["listeners"][0]["conditions"]);
    assert_eq!(conditions("infra/gw")[0], "Accepted=True:Accepted");
    assert_eq!(conditions("infra/second")[0], "Accepted=False:UnsupportedValue");
}
