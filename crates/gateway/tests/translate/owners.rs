//! Listeners of several owners on one port of a Gateway, and what none may take from another.

use super::*;
use propylon_gateway::settings::Ready;

/// A Gateway that lets all ListenerSets in, with these listeners.
fn shared(world: &mut World, listeners: Value) {
    let allowed = json!({ "namespaces": { "from": "All" } });
    let spec = json!({ "gatewayClassName": "edge", "listeners": listeners, "allowedListeners": allowed });
    put(world, Kind::Gateway, "infra/gw", json!({ "spec": spec }));
}

fn set(world: &mut World, name: &str, listeners: Value) {
    let spec = json!({ "parentRef": { "name": "gw", "namespace": "infra" }, "listeners": listeners });
    put(world, Kind::ListenerSet, name, json!({ "created": "2026-02-01T00:00:00Z", "spec": spec }));
}

fn listener(name: &str, host: &str, tls: Value) -> Value {
    let protocol = if tls["mode"].is_null() { "HTTPS" } else { "TLS" };
    let mut listener = json!({ "name": name, "port": 443, "protocol": protocol, "tls": tls });
    if !host.is_empty() {
        listener["hostname"] = host.into();
    }
    listener
}

fn secret(world: &mut World, name: &str, hosts: &[&str]) {
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let pair = rcgen::generate_simple_self_signed(hosts).unwrap();
    let encoded = |text: String| Base64::encode_string(text.as_bytes());
    let data = json!({ "tls.crt": encoded(pair.cert.pem()), "tls.key": encoded(pair.signing_key.serialize_pem()) });
    put(world, Kind::Secret, name, json!({ "type": "kubernetes.io/tls", "data": data }));
}

/// Routes of relays, by host: the backend that each leads to.
fn relayed(outcome: &Outcome) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    all_routes(outcome).iter().map(|route| (text(&route["host"]), text(&route["backend"]))).collect()
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(one, other)| ((*one).to_owned(), (*other).to_owned())).collect()
}

#[test]
fn connections_of_anothers_hostname_are_closed_and_not_given_to_a_wider_listener() {
    for mode in ["Passthrough", "Terminate"] {
        let mut world = world();
        secret(&mut world, "infra/wide", &["*.example"]);
        secret(&mut world, "app/own", &["a.example"]);
        let tls = |name: &str| json!({ "mode": mode, "certificateRefs": [{ "name": name }] });
        shared(&mut world, json!([listener("wide", "*.example", tls("wide"))]));
        set(&mut world, "app/set", json!([listener("own", "a.example", tls("own"))]));
        let rules = json!([{ "backendRefs": to("v1") }]);
        let spec = json!({ "parentRefs": [{ "name": "gw" }], "hostnames": ["*.example"], "rules": rules });
        put(&mut world, Kind::TlsRoute, "infra/t", json!({ "spec": spec }));
        let last = ("-", "nobody");
        let expected = pairs(&[("*.example", "infra_v1_80"), last, ("a.example", "nobody")]);
        assert_eq!(relayed(&translated(&world)), expected, "{mode}");
        // A route without a backend has its connections still, and they are closed.
        let parents = json!([{ "kind": "ListenerSet", "name": "set" }]);
        let missing = json!([{ "backendRefs": to("missing") }]);
        let spec = json!({ "parentRefs": parents, "hostnames": ["a.example"], "rules": missing });
        put(&mut world, Kind::TlsRoute, "app/t", json!({ "spec": spec }));
        let found = relayed(&translated(&world));
        assert_eq!(found.iter().filter(|(host, to)| host == "a.example" && to == "nobody").count(), 1, "{mode}");
    }
}

#[test]
fn a_certificate_for_anothers_names_is_not_shown_to_that_ones_clients() {
    let mut world = world();
    let tls = |name: &str| json!({ "certificateRefs": [{ "name": name }] });
    secret(&mut world, "infra/wide", &["*.example"]);
    secret(&mut world, "app/both", &["b.example", "a.example"]);
    secret(&mut world, "app/star", &["*.example"]);
    secret(&mut world, "app/own", &["b.example"]);
    shared(&mut world, json!([listener("wide", "*.example", tls("wide"))]));
    for (name, is_shown) in [("both", false), ("star", false), ("own", true)] {
        set(&mut world, "app/set", json!([listener("own", "b.example", tls(name))]));
        let outcome = translated(&world);
        let certificates = config(&outcome)["tls"]["infra_gw_443"]["certificates"].clone();
        assert_eq!(certificates.as_array().unwrap().len(), if is_shown { 2 } else { 1 }, "{name}");
        let conditions = said(&status(&outcome, Kind::ListenerSet, "app/set")["listeners"][0]["conditions"]);
        let refused =
            if is_shown { "ResolvedRefs=True:ResolvedRefs" } else { "ResolvedRefs=False:InvalidCertificateRef" };
        assert_eq!(conditions[2], refused, "{name}");
        // The narrower listener's is found first, and clients without a name get the Gateway's own.
        let default = certificates.as_array().unwrap().last().unwrap();
        assert_eq!(default["default"] == true, is_shown, "{certificates}");
        // The Gateway's own listener is as it was.
        let own = said(&status(&outcome, Kind::Gateway, "infra/gw")["listeners"][0]["conditions"]);
        assert_eq!(own[1..3], ["Programmed=True:Programmed", "ResolvedRefs=True:ResolvedRefs"], "{name}");
    }
    // One namespace may have its names in any of its certificates.
    secret(&mut world, "infra/both", &["c.example", "a.example"]);
    set(&mut world, "infra/set", json!([listener("own", "c.example", tls("both"))]));
    let set = status(&translated(&world), Kind::ListenerSet, "infra/set");
    assert_eq!(said(&set["listeners"][0]["conditions"])[2], "ResolvedRefs=True:ResolvedRefs");
}

#[test]
fn listener_sets_have_so_many_listeners_and_no_more() {
    let mut world = world();
    shared(&mut world, json!([{ "name": "own", "port": 80, "protocol": "HTTP", "hostname": "own.example" }]));
    let listener = |index: usize| json!({ "name": format!("l{index}"), "port": 80, "protocol": "HTTP", "hostname": format!("h{index}.example") });
    set(&mut world, "app/set", (0..513).map(listener).collect());
    let outcome = translated(&world);
    let set = status(&outcome, Kind::ListenerSet, "app/set");
    assert_eq!(said(&set["listeners"][511]["conditions"])[0], "Accepted=True:Accepted");
    assert_eq!(said(&set["listeners"][512]["conditions"])[0], "Accepted=False:TooManyListeners");
    let own = said(&status(&outcome, Kind::Gateway, "infra/gw")["listeners"][0]["conditions"]);
    assert_eq!(own[0], "Accepted=True:Accepted");
}

#[test]
fn an_engine_is_ready_by_a_configuration_of_ours() {
    let ready: Ready = "own/ready".parse().unwrap();
    let settings = Settings { ready: Some(ready), ..settings() };
    let outcome = translate(&world(), &settings, None, NOW);
    assert_eq!(config(&outcome)["listener"]["own"], json!({ "bind": "127.0.0.1:9080", "monitor_path": "/ready" }));
    for text in ["ready", "/ready", "own/"] {
        assert!(text.parse::<Ready>().is_err(), "{text}");
    }
}

#[test]
fn servers_may_be_known_by_other_names() {
    let mut world = world();
    let names = json!([{ "type": "Hostname", "hostname": "b.example" }, { "type": "URI", "uri": "spiffe://a/b" }]);
    let policy = |names: &Value| {
        json!({ "spec": { "targetRefs": [{ "group": "", "kind": "Service", "name": "v1" }], "validation": {
            "hostname": "a.example", "wellKnownCACertificates": "System", "subjectAltNames": names } } })
    };
    route(&mut world, "infra/r", json!({ "rules": [{ "backendRefs": to("v1") }] }));
    put(&mut world, Kind::BackendTlsPolicy, "infra/p", policy(&names));
    let tls = config(&translated(&world))["backend"]["infra_v1_80_tls_p"]["tls"].clone();
    assert_eq!(tls, json!({ "server_name": "a.example", "names": ["b.example", "spiffe://a/b"] }));
    put(&mut world, Kind::BackendTlsPolicy, "infra/p", policy(&json!([{ "type": "Hostname", "hostname": "*.b" }])));
    assert_eq!(routes(&translated(&world))[0]["respond"], json!({ "status": 500 }));
}

#[test]
fn credentials_for_every_origin_are_served_as_the_api_has_them() {
    let mut world = world();
    let cors = json!({ "allowOrigins": ["*"], "allowMethods": ["*"], "allowHeaders": ["*"], "allowCredentials": true });
    let rule = json!({ "filters": [{ "type": "CORS", "cors": cors }], "backendRefs": to("v1") });
    route(&mut world, "infra/r", json!({ "rules": [rule] }));
    let expected = json!({ "origins": ["*"], "methods": ["*"], "headers": ["*"], "credentials": true, "echo": true,
        "max_age": "5s" });
    assert_eq!(routes(&translated(&world))[0]["cors"], expected);
}

#[test]
fn another_service_says_who_may_come_in_and_without_it_nobody_may() {
    let rule =
        |auth: Value| json!({ "filters": [{ "type": "ExternalAuth", "externalAuth": auth }], "backendRefs": to("v1") });
    let auth = |service: &str| {
        json!({ "protocol": "HTTP", "backendRef": { "name": service, "port": 80 }, "http": {
            "allowedHeaders": ["Cookie", "Host"], "allowedResponseHeaders": ["X-User"] } })
    };
    let mut world = world();
    route(&mut world, "infra/r", json!({ "rules": [rule(auth("v2"))] }));
    let outcome = translated(&world);
    let keys = json!({ "send": ["authorization", "cookie"], "copy": ["x-user"], "backend": "infra_v2_80" });
    let expected = json!({ "path": "/", "backend": "infra_v1_80", "auth": { "forward": keys } });
    assert_eq!(routes(&outcome), [expected]);
    assert!(config(&outcome)["backend"]["infra_v2_80"].is_object());
    let mut with_path = auth("v2");
    with_path["http"]["path"] = "/verify".into();
    let mut with_body = auth("v2");
    with_body["forwardBody"] = json!({ "maxSize": 100 });
    let mut of_grpc = auth("v2");
    of_grpc["protocol"] = "GRPC".into();
    for auth in [auth("missing"), with_path, with_body, of_grpc] {
        route(&mut world, "infra/r", json!({ "rules": [rule(auth.clone())] }));
        let outcome = translated(&world);
        assert_eq!(routes(&outcome), [json!({ "path": "/", "respond": { "status": 500 } })], "{auth}");
        assert!(route_said(&outcome, "infra/r")[0].starts_with("Accepted=False:"), "{auth}");
    }
}
