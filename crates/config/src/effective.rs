//! The configuration in effect, written as the JSON that a configuration file may be.
//!
//! Every default is filled in, and file names are as the process sees them. Keys and certificates are named and never
//! shown: the configuration holds their paths alone. Most of it is the model's own `Serialize`; what stands here are
//! references, which the model holds as ids, values with several forms, and keys that depend on others.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{
    Acme, Action, Backend, BackendId, Balance, Certificate, CertificateSource, Config, Hash, HashKey, HealthCheck,
    HostPattern, Listener, Mirror, Outlier, PathPattern, RetryBudget, Route, Side, SideSticky, SideTo, Signer,
    SignerServer, Steps, TicketKeys, TlsProfile, Tracing, units,
};

/// The whole configuration, as an object with the sections of a configuration file.
pub fn config(config: &Config) -> Value {
    let mut root = of_the_process(config);
    root["listener"] = config.listeners.iter().map(|each| (each.name.clone(), listener(config, each))).collect();
    root["route"] = config.routes.iter().map(|each| route(config, each)).collect();
    if let Some(each) = &config.tracing {
        root["tracing"] = tracing(each);
    }
    let named: [(&str, Map<String, Value>); 4] = [
        ("tls", config.tls.iter().map(|each| (each.name.clone(), tls(config, each))).collect()),
        ("signer", config.signers.iter().map(|each| (each.name.clone(), signer(each))).collect()),
        ("acme", config.acmes.iter().map(|each| (each.name.clone(), acme(each))).collect()),
        ("backend", config.backends.iter().map(|each| (each.name.clone(), backend(each))).collect()),
    ];
    for (kind, sections) in named.into_iter().filter(|(_, sections)| !sections.is_empty()) {
        root[kind] = sections.into();
    }
    root
}

/// The sections about the process itself, which may have what is for its life.
pub fn of_the_process(config: &Config) -> Value {
    let sections = (&config.process, &config.log, &config.keys, &config.admin);
    let mut root = json!({ "process": sections.0, "log": sections.1, "keys": sections.2, "admin": sections.3 });
    (root["cluster"], root["announce"]) = (json!(config.cluster), json!(config.announce));
    remove_absent(&mut root);
    root
}

/// A part of the model, without what is absent.
fn shown(part: &impl Serialize) -> Value {
    let mut value = json!(part);
    remove_absent(&mut value);
    value
}

fn remove_absent(value: &mut Value) {
    match value {
        Value::Object(keys) => {
            keys.retain(|_, value| !value.is_null());
            keys.values_mut().for_each(remove_absent);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_absent),
        _ => {}
    }
}

fn without(value: &mut Value, absent: &[&str]) {
    if let Value::Object(keys) = value {
        keys.retain(|key, _| !absent.contains(&key.as_str()));
    }
}

fn tracing(tracing: &Tracing) -> Value {
    let mut value = shown(tracing);
    if let Some(ca) = tracing.tls.as_ref().and_then(|tls| tls.ca.first()) {
        value["ca"] = json!(ca);
    }
    value
}

fn listener(config: &Config, listener: &Listener) -> Value {
    let mut value = shown(listener);
    let paths = listener.paths;
    value["paths"] = json!({ "merge_slashes": paths.merge_slashes, "allow": paths.allowed().collect::<Vec<&str>>() });
    if listener.protocol.is_relay() {
        // Keys about HTTP, which a file of the same shape may not have on such a listener.
        without(&mut value, &["forwarded", "half_close", "limits", "paths"]);
    }
    if let Some(id) = listener.tls {
        value["tls"] = json!(config.tls[id.0].name);
    }
    // One of these is `request_id`'s.
    let id = listener.request_id.as_ref().map_or("", |ids| &ids.header);
    let written: Vec<_> = listener.request_headers.iter().filter(|each| each.name != id).collect();
    if !written.is_empty() {
        let fields = written.into_iter().map(|each| (each.name.clone(), json!(each.template())));
        value["request_headers"] = fields.collect();
    }
    if listener.redirect_to_https.is_some() {
        without(&mut value["redirect_to_https"], &["scheme"]);
    }
    value
}

fn tls(config: &Config, profile: &TlsProfile) -> Value {
    let mut value = shown(profile);
    value["certificates"] = profile.certificates.iter().map(|each| certificate(config, each)).collect();
    match &profile.resumption.ticket_keys {
        TicketKeys::Memory => {}
        TicketKeys::File { path, rotate: None, .. } => value["ticket_keys"] = json!(path.to_string_lossy()),
        TicketKeys::File { path, rotate: Some(rotate), .. } => {
            let rotate = units::duration_text(rotate);
            value["ticket_keys"] = json!({ "file": path.to_string_lossy(), "rotate": rotate });
        }
    }
    if profile.client_auth.as_ref().is_some_and(|auth| auth.crl.is_empty()) {
        without(&mut value["client_auth"], &["crl_scope", "crl_missing", "crl_expired"]);
    }
    if let Some(id) = profile.signer {
        value["signer"] = json!(config.signer(id).map(|signer| &signer.name));
    }
    value
}

fn signer(signer: &Signer) -> Value {
    let server = |server: &SignerServer| match &server.server_name {
        None => json!(server.address),
        Some(name) => json!({ "address": server.address, "server_name": name }),
    };
    let mut value = shown(signer);
    value["servers"] = signer.servers.iter().map(server).collect();
    value
}

fn acme(acme: &Acme) -> Value {
    let mut value = shown(acme);
    // Without the name, which is joined to it.
    value["state"] = json!(acme.state.parent().unwrap_or(&acme.state).to_string_lossy());
    value
}

fn certificate(config: &Config, certificate: &Certificate) -> Value {
    let mut value = match &certificate.source {
        CertificateSource::Path(file) if certificate.ocsp.is_none() && !certificate.default => {
            return json!(file.to_string_lossy());
        }
        CertificateSource::Path(file) => json!({ "path": file.to_string_lossy() }),
        CertificateSource::Pair { chain, key } => {
            json!({ "chain": chain.to_string_lossy(), "key": key.to_string_lossy() })
        }
        CertificateSource::Ordered(ordered) => json!({
            "acme": config.acmes[ordered.acme.0].name,
            "names": ordered.names,
            "key_types": ordered.files.iter().map(|(key_type, _)| key_type).collect::<Vec<_>>(),
        }),
    };
    if let Some(file) = &certificate.ocsp {
        value["ocsp"] = json!(file.to_string_lossy());
    }
    if certificate.default {
        value["default"] = json!(true);
    }
    value
}

fn backend(backend: &Backend) -> Value {
    let mut value = shown(backend);
    value["servers"] = backend.servers.iter().map(shown).collect();
    value["balance"] = json!(backend.balance.name());
    if backend.retry_budget != RetryBudget::default() {
        value["retries"] = shown(&backend.retry_budget);
        value["retries"]["attempts"] = json!(backend.retries);
    }
    if let Some(fastcgi) = &backend.fastcgi {
        // Keys about connections that carry several requests.
        let kept: &[&str] = if fastcgi.keep { &[] } else { &["reuse", "max_idle", "min_idle"] };
        without(&mut value, kept);
        without(&mut value, &["http2"]);
    }
    match &backend.balance {
        Balance::P2cEwma { decay } => value["ewma_decay"] = json!(units::duration_text(decay)),
        Balance::ConsistentHash(to) => value["hash"] = hash(to),
        Balance::RoundRobin | Balance::Random | Balance::LeastConnections | Balance::First => {}
    }
    value
}

/// The value of `health` in a `[backend.NAME]` section.
pub fn health(check: &HealthCheck) -> Value {
    shown(check)
}

/// The value of `outlier` in a `[backend.NAME]` section.
pub fn outlier(rules: &Outlier) -> Value {
    shown(rules)
}

fn hash(hash: &Hash) -> Value {
    json!({ "key": hash_key(&hash.key), "bound": f64::from(hash.bound_percent) / 100.0 })
}

fn hash_key(key: &HashKey) -> Value {
    match key {
        HashKey::ClientIp => json!("client-ip"),
        HashKey::Path => json!("path"),
        HashKey::Header(name) => json!({ "header": name }),
        HashKey::Cookie(name) => json!({ "cookie": name }),
    }
}

/// A `[[route]]`.
pub fn route(config: &Config, route: &Route) -> Value {
    let mut value = json!({
        "path": match &route.path {
            PathPattern::Prefix(prefix) => json!(prefix),
            PathPattern::Exact(path) => json!({ "exact": path }),
            PathPattern::Regex(pattern) => json!({ "regex": pattern }),
        },
    });
    if let Some(name) = &route.name {
        value["name"] = json!(name);
    }
    if !route.conditions.is_empty() {
        value["match"] = shown(&route.conditions);
    }
    if let (Value::Object(steps), Some(all)) = (shown(&route.steps), value.as_object_mut()) {
        all.extend(steps);
    }
    if route.require_client_certificate {
        value["require_client_certificate"] = json!(true);
    }
    if let Some(id) = route.listener {
        value["listener"] = json!(config.listeners[id.0].name);
    }
    match &route.host {
        HostPattern::Any => {}
        host => value["host"] = json!(host.to_string()),
    }
    match &route.action {
        Action::Backend(id) => value["backend"] = json!(config.backends[id.0].name),
        Action::Redirect(to) => value["redirect"] = shown(to),
        Action::Respond(respond) => value["respond"] = shown(respond),
    }
    forwarding(config, &route.steps, &mut value);
    value
}

/// Steps of a route about where its requests go, as far as they name backends.
fn forwarding(config: &Config, steps: &Steps, value: &mut Value) {
    let name = |id: BackendId| json!(config.backends[id.0].name);
    if let Some(split) = &steps.split {
        let side = |side: &Side| {
            let mut value = match side.to {
                SideTo::Backend(id) => json!({ "name": name(id), "weight": side.weight }),
                SideTo::Respond(status) => json!({ "respond": status, "weight": side.weight }),
            };
            for (key, changes) in [("request", &side.request), ("response", &side.response)] {
                if !changes.is_empty() {
                    value[key] = shown(changes);
                }
            }
            value
        };
        value["backend"] = split.sides.iter().map(side).collect();
        match &split.sticky {
            Some(SideSticky::Cookie(cookie)) => value["sticky"] = shown(cookie),
            Some(SideSticky::Hash(key)) => value["sticky"] = json!({ "key": hash_key(key) }),
            None => {}
        }
    }
    if let Some(id) = steps.fallback {
        value["fallback"] = name(id);
    }
    let mirror = |mirror: &Mirror| {
        json!({
            "backend": name(mirror.backend),
            "percent": f64::from(mirror.millionths) / 10_000.0,
            "body": mirror.body_bytes_max,
            "in_flight": mirror.in_flight_max,
        })
    };
    match steps.mirrors.as_slice() {
        [] => {}
        [one] => value["mirror"] = mirror(one),
        several => value["mirror"] = several.iter().map(mirror).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::PathBuf;

    use crate::Source;

    use super::*;

    const EVERYTHING: &str = r#"
        [process]
        workers = 3
        user = "nobody"
        drain_timeout = "1500ms"
        dispatch = false
        max_connections = 5000
        connections_per_source = 90
        memory_limit = "1GiB"
        watch_config = true
        allow_world_readable_keys = true
        state = "state"
        temp_dir = "bodies"
        buffer_memory = "32MiB"
        buffer_disk = "2GiB"
        resolver = { servers = ["10.0.0.2"], ttl_min = "1s" }
        handshakes = { in_progress = 500, per_source = 20, queue_wait = "750ms" }
        [admin]
        bind = "127.0.0.1:9900"
        token_file = "token"
        [keys]
        store = "keys"
        [log]
        access = { syslog = "udp:127.0.0.1:514", facility = "daemon", app_name = "edge" }
        format = "logfmt"
        fields = ["time", "duration_us.total", "header.User-Agent"]
        level = "warn"
        [tracing]
        endpoint = "https://collector.internal/traces"
        ca = "collector-ca.pem"
        headers = "collector.headers"
        sample = 0.000001
        trust = "never"
        spans_per_second = 10
        service_name = "edge"
        attributes = { "deployment.environment.name" = "test" }
        timeout = "1500ms"
        [cluster]
        name = "edge"
        engine = "one"
        endpoints = ["https://10.0.0.5:2379", "http://127.0.0.1:2379"]
        ca = "etcd-ca.pem"
        identity = "engine.pem"
        user = "propylon"
        password_file = "password"
        sealing_keys = ["seal", "old"]
        state = "cluster"
        runtime = "run"
        address = "10.0.0.2"
        lease = "2s"
        canary = { time = "5s", step = 10, judge = false }
        ticket_keys = { rotate = "90m" }
        drain_limit = "1500ms"
        vips = ["192.0.2.7"]
        flows = { port = 7000, buckets = 512 }
        capacity = { min = 2, max = 9, cpu = 50, connections = 700, handshake_wait = "5ms", spare = 0, webhook = "https://scaler.internal/edge", every = "5s" }
        [announce]
        bird = "bird.ctl"
        protocols = ["vip"]
        min_servers = 0
        hold = "4s"
        hold_up = "7s"
        [listener.web]
        bind = ["127.0.0.1:8443", "[::1]:8443"]
        tls = "public"
        monitor_path = "/up"
        strict_host = false
        half_close = true
        forwarded = "append"
        request_headers = { "X-Who" = "dn={client.subject} via {tls.version}" }
        error_pages = { "404" = { html = "404.html", json = "404.json", text = "404.txt" } }
        error_format = "accept"
        intercept_errors = true
        request_id = { header = "X-Trace", accept = "always", return = true }
        timeouts = { idle = "2m", tunnel_idle = "3h" }
        limits = { head_bytes = "8KiB", headers = 7, body_rate_min = 0 }
        paths = { merge_slashes = false, allow = ["%2F", ".."] }
        [listener.plain]
        bind = "127.0.0.1:8080"
        forwarded = "remove"
        accept_proxy_protocol = true
        trusted_proxies = ["10.0.0.0/8", "::1"]
        redirect_to_https = { port = 8443, status = 301 }
        [listener.relay]
        bind = "127.0.0.1:8444"
        protocol = "tcp"
        tls = "public"
        alpn = ["imap"]
        prefer = ["rsa"]
        [tls.public]
        certificates = ["a.pem", { chain = "c.pem", key = "k.pem" }, { path = "d.pem", ocsp = "d.ocsp", default = true }]
        watch = "3s"
        policy = "modern"
        prefer = ["rsa"]
        tickets = 1
        ticket_keys = { file = "keys", rotate = "90m" }
        session_ids = 9
        ja4 = true
        signer = "vault"
        client_auth = { ca = ["ca.pem"], mode = "optional", crl = "crl.pem", crl_scope = "leaf", forward = "chain", depth = 1 }
        [tls.spare]
        certificates = ["b.pem", { acme = "own", names = ["b.example", "a.example"], key_types = ["rsa", "ecdsa"], default = true }]
        ticket_keys = "keys"
        [signer.vault]
        servers = ["10.0.0.7:2407", { address = "keys.internal:2408", server_name = "keys" }]
        identity = "engine.pem"
        ca = "keys-ca.pem"
        timeout = "750ms"
        connections = 3
        watch = "4s"
        hedge = "off"
        verify = "all"
        [signer.near]
        servers = ["127.0.0.1:2407"]
        identity = "engine.pem"
        ca = "keys-ca.pem"
        [acme.own]
        directory = "https://ca.internal/dir"
        terms_agreed = true
        contact = "mailto:ops@a.example"
        state = "acme"
        challenge = "http-01"
        ca = "acme-ca.pem"
        external_account = { id = "kid", key = "eab.key" }
        renew_before = "720h"
        profile = "shortlived"
        orders_per_hour = 7
        retry = "90s"
        [backend.app]
        balance = "consistent-hash"
        hash = { key = { cookie = "user" }, bound = 1.1 }
        servers = [{ address = "10.0.0.1:80", drain = true }, { address = "app.internal:81", weight = 4, max_connections = 7 }, { address = "[fd00::1]:80", backup = true }]
        slow_start = "45s"
        min_healthy = 30
        sticky = { cookie = "seat", key_file = "sticky.key", ttl = "9h", secure = true, http_only = false, same_site = "none", path = "/a" }
        reuse = "aggressive"
        queue = { limit = 0, timeout = "3s", target = "250ms" }
        min_idle = 2
        max_requests = 500
        max_lifetime = "10m"
        tls = { ca = ["ca.pem", "cas"], server_name = "app.internal", names = ["spiffe://a/b"], sni = false, certificate = "c.pem", policy = "modern", resume = false, watch = "5s" }
        timeouts = { connect = "250ms", first_byte = "1h", close = "7s" }
        retries = 0
        max_idle = 9
        via = true
        health = { path = "/up", status = [204, "300-302"], body = "ok", host = "a.example", port = 81, rise = 1, interval_down = "30s", start = "down" }
        outlier = { consecutive_failures = 7, ejection = "1m" }
        circuit = { requests = 100, adaptive = true, requests_min = 8 }
        [backend.grpc]
        servers = ["srv+_grpc._tcp.app.internal"]
        health = { kind = "grpc", service = "shop.Cart" }
        [backend.raw]
        servers = ["10.0.0.9:1"]
        source = "eth1"
        health = {}
        send_proxy_protocol = "v2"
        [[route]]
        name = "orders"
        listener = "web"
        host = "*.shop.example"
        path = { exact = "/x" }
        require_client_certificate = true
        limit = [{ name = "edge", rate = "100/m", burst = 7, key = ["source", { header = "X-Key" }, { cookie = "user" }, "certificate", "ja4"], ipv4_prefix = 24, ipv6_prefix = 48, keys = 1000, exempt = "10.0.0.0/8", exempt_files = "friends.txt", deny = ["192.0.2.1"], deny_files = ["foes.txt"] }, { bytes = "1MiB/s", burst = "2MiB", key = "all" }, { requests = 5, key = ["host", "path"] }]
        backend = "app"
        [backend.quick]
        balance = "p2c-ewma"
        ewma_decay = "3s"
        servers = ["10.0.1.1:80"]
        retries = { attempts = 1, budget = "12.5%", min_per_second = 10 }
        source = ["10.0.1.9", "::1"]
        protocol = "http1.0"
        sticky = { cookie = "seat", secure = false, same_site = "unsaid" }
        [[route]]
        path = "/quick"
        compress = { encodings = ["gzip", "zstd"], types = ["text/*"], minimum = 9, level = { gzip = 1, zstd = 2 }, credentials = "never", busy_max = 50 }
        match = { method = ["GET", "HEAD"], header = { X-Beta = "on", X-Old = { present = false } }, query = { v = { prefix = "2" } }, cookie = { seat = { regex = "^[a-z]+$" }, other = { present = true } }, source = ["10.0.0.0/8", "::1"], client = { subject = { prefix = "CN=a" }, issuer = "CN=ca", serial = "01", sha256 = { present = true }, san = "a.example" }, tls = { version = "TLSv1.3", server_name = { regex = "^a" }, alpn = "h2", ja4 = { prefix = "t13" }, suite = "TLS_AES_256_GCM_SHA384", group = { prefix = "secp" } }, grpc = { service = "a.B", method = { prefix = "Get" } }, port = [8443, 443], host = { regex = "^a" } }
        backend = "quick"
        auth = { basic = { file = "users", realm = "Staff", remember = "1m" }, user_to = "X-User", hide_credentials = true, watch = "10s" }
        request = { set = { X-Real-IP = "{client.ip}", X-Brace = "{{x}}" }, add = { X-Server = "{upstream.server}" }, append = { X-Way = "edge" }, remove = ["X-Debug"], host = "app.internal:81", path = { strip = "/quick" }, query = { set = { v = "3" }, add = { w = "{request.method}" }, remove = ["utm_source"] } }
        response = { set = { Cache-Control = "no-store" }, add = { Link = "</a>" }, append = { Vary = "Origin" }, remove = ["Server", "Via"], cookies = { secure = true, http_only = false, same_site = "lax", domain = "shop.example", path = "/quick" }, location = [{ from = "/", to = "https://{request.host}/quick/" }] }
        security_headers = "strict"
        [[route]]
        path = "/keys"
        auth = { api_key = { file = "keys", header = "X-Key" } }
        backend = "quick"
        [[route]]
        path = "/forward"
        auth = { forward = { backend = "app", path = "/verify?x=1", host = "sso.test", send = ["Cookie"], copy = ["Remote-Groups"], user_from = "Remote-User" } }
        backend = "quick"
        [[route]]
        path = "/fetched"
        auth = { jwt = { issuer = "https://id.test", audience = "a", keys_url = "https://id.test/keys", keys_ca = "ca.pem", keys_refresh = "1m", type = "at+jwt", cookie = "session", claims_to = { X-Groups = "groups" } } }
        backend = "quick"
        [[route]]
        path = "/any"
        auth = { any = [{ basic = { file = "users" } }, { api_key = { file = "keys" } }, { api_key = { file = "keys", query = "key" } }, { jwt = { issuer = "https://id.test", audience = "a", keys_file = "jwks.json", type = "at+jwt", cookie = "session", claims_to = { X-Groups = "groups" } } }, { jwt = { issuer = "https://id.test", audience = "a", keys_url = "https://id.test/keys", keys_ca = "ca.pem", keys_refresh = "1m" } }, { forward = { backend = "app", path = "/verify", host = "sso.test", send = ["Cookie"], copy = ["Remote-Groups"], user_from = "Remote-User" } }], user_to = "X-User", watch = "9s" }
        backend = "quick"
        [[route]]
        path = "/all"
        auth = { all = [{ basic = { file = "users" } }, { api_key = { file = "keys" } }, { api_key = { file = "keys", query = "key" } }, { jwt = { issuer = "https://id.test", audience = "a", keys_file = "jwks.json", type = "at+jwt", cookie = "session", claims_to = { X-Groups = "groups" } } }, { jwt = { issuer = "https://id.test", audience = "a", keys_url = "https://id.test/keys", keys_ca = "ca.pem", keys_refresh = "1m", cookie = "other" } }, { forward = { backend = "app", path = "/verify", host = "sso.test", send = ["Cookie"], copy = ["Remote-Groups"], user_from = "Remote-User" } }], user_to = "X-User", watch = "9s" }
        limit = { rate = "1/s", key = "user", ipv4_prefix = 24, ipv6_prefix = 48 }
        backend = "quick"
        [[route]]
        path = "/query"
        auth = { api_key = { file = "keys", query = "key" } }
        backend = "quick"
        [[route]]
        path = "/tokens"
        auth = { jwt = { issuer = "https://id.test", audience = ["a", "b"], keys_file = "jwks.json", algorithms = ["ES256"], type = "at+jwt", cookie = "session", leeway = "5s", claims_to = { X-Groups = "groups" } } }
        backend = "quick"
        [[route]]
        path = { exact = "/regex" }
        backend = "quick"
        request = { host = "{upstream.server}", path = { regex = "^/r(.*)$", to = "/x$1" } }
        [[route]]
        path = "/prefix"
        backend = "quick"
        request = { path = { replace_prefix = "/x" } }
        [[route]]
        path = "/whole"
        backend = "quick"
        request = { path = { replace = "/x" } }
        [[route]]
        path = "/old"
        redirect = { path = { replace_prefix = "/new" } }
        [[route]]
        path = "/older"
        redirect = { path = { replace = "/new" } }
        [[route]]
        path = "/oldest"
        redirect = { path = { strip = "/oldest" } }
        [[route]]
        path = "/ancient"
        redirect = { path = { regex = "^/a", to = "/b" } }
        [[route]]
        path = { regex = "[.]php$" }
        compress = true
        backend = "quick"
        [[route]]
        host = "shop.example"
        redirect = { status = 301, scheme = "https", host = "www.shop.example", port = 444, path = "/y" }
        [[route]]
        path = "/later"
        error_pages = { "503" = { html = "503.html", json = "503.json", text = "503.txt" } }
        error_format = "json"
        intercept_errors = false
        cors = { origins = ["https://a.example", "*.b.example:8443"], methods = ["PUT"], headers = ["X-A"], expose = ["X-B"], credentials = true, max_age = "90s" }
        respond = { status = 503, body_file = "later.html" }
        [[route]]
        respond = { status = 418, body = "tea\n", content_type = "text/x-tea" }
        [[route]]
        listener = "relay"
        backend = "raw"
        [[route]]
        path = "/split"
        backend = [{ name = "app", weight = 90, request = { set = { X-Side = "app" }, add = { X-More = "{client.ip}" }, append = { X-Way = "app" }, remove = ["X-Debug"] }, response = { set = { X-From = "app" }, add = { Link = "</b>" }, append = { Vary = "X-Side" }, remove = ["X-Powered-By"] } }, { name = "quick" }, { respond = 503, weight = 2 }]
        sticky = { cookie = "side", ttl = "1h", secure = true, http_only = false, same_site = "strict", path = "/split" }
        fallback = "grpc"
        timeouts = { request = "30s", attempt = "25s", connect = "1s", first_byte = "20s", body = "5s" }
        retries = { attempts = 3, on = ["connect", "timeout", 503], backoff = "25ms" }
        priority = "low"
        buffer = { request = { memory = "32KiB", disk = "3MiB" }, response = { memory = "128KiB", disk = 0 } }
        body_limit = "2MiB"
        throttle = { download = "1MiB", upload = "2KiB", after = "3MiB", key = ["source", { cookie = "sid" }, { header = "X-Tenant" }], ipv4_prefix = 24, ipv6_prefix = 56, keys = 128 }
        mirror = { backend = "raw2", percent = 2.5, body = "8KiB", in_flight = 9 }
        [backend.raw2]
        servers = ["10.0.2.1:80"]
        [backend.php]
        servers = ["10.0.2.9:9000"]
        protocol = "fastcgi"
        fastcgi = { root = "/srv/app/public/", index = "app.php5", scripts = ["/admin/*.php5"], split = ".php5", keep = true, body_buffer = "2MiB", params = { APP_ENV = "prod", REMOTE_USER = "{client.subject}" } }
        [backend.rpc]
        servers = ["10.0.2.8:50051"]
        protocol = "h2"
        [[route]]
        path = "/shop.Cart/"
        backend = "rpc"
        grpc_web = true
        [[route]]
        path = "/hedged"
        backend = "rpc"
        hedge = { after = "p99.9" }
        [backend.php_once]
        servers = ["10.0.2.9:9001"]
        protocol = "fastcgi"
        fastcgi = { root = "/", scripts = "any" }
        [[route]]
        path = "/hashed"
        backend = [{ name = "app", weight = 0 }, { name = "quick", weight = 7 }]
        sticky = { key = { header = "X-User" } }
        mirror = [{ backend = "raw2" }, { backend = "rpc", percent = 1 }]
    "#;

    fn effective(name: &str, text: &str) -> Value {
        let source = Source { name: name.into(), base: PathBuf::new(), text: text.into() };
        match crate::parse(&source) {
            Ok((parsed, _)) => config(&parsed),
            Err(problems) => panic!("{}", crate::render(&problems, text)),
        }
    }

    #[test]
    fn what_is_shown_is_a_configuration_that_means_the_same() {
        let minimal = "[listener.web]\nbind = \"127.0.0.1:80\"\n[[route]]\nrespond = {}\n";
        for text in [EVERYTHING, minimal, include_str!("../tests/full.toml")] {
            let shown = effective("a.toml", text);
            assert_eq!(effective("a.json", &shown.to_string()), shown);
        }
    }

    /// The tables in a value, by their paths; of a list those of its entries.
    fn tables(value: &Value, path: Vec<String>, found: &mut Vec<Vec<String>>) {
        let inner: Vec<(String, &Value)> = match value {
            Value::Object(entries) => entries.iter().map(|(key, value)| (key.clone(), value)).collect(),
            Value::Array(entries) => entries.iter().enumerate().map(|(at, value)| (at.to_string(), value)).collect(),
            _ => return,
        };
        for (key, value) in inner {
            let mut path = path.clone();
            path.push(key);
            tables(value, path, found);
        }
        if value.is_object() {
            found.push(path);
        }
    }

    /// The keys that may stand in a table, by what is said of one that may not; none where any may, or it is no
    /// section.
    fn known_keys(shown: &Value, pointer: &str) -> Option<Vec<String>> {
        let mut asked = shown.clone();
        asked.pointer_mut(pointer)?.as_object_mut()?.insert("zqxjzqxjzqxj".into(), json!("?"));
        let source = Source { name: "a.json".into(), base: PathBuf::new(), text: asked.to_string() };
        let problems = crate::parse(&source).err()?;
        let problem =
            problems.iter().find(|problem| problem.what.contains("unknown") && problem.what.contains("zqxj"))?;
        Some(problem.fix.split('`').skip(1).step_by(2).map(str::to_owned).collect())
    }

    /// Settings that are not shown could not change: the difference between two configurations is one between what is
    /// shown of them.
    #[test]
    fn every_key_that_a_configuration_may_have_is_shown_somewhere() {
        let shown = effective("a.toml", EVERYTHING);
        let mut all = Vec::new();
        tables(&shown, Vec::new(), &mut all);
        let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut there: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for path in all {
            let pointer: String = path.iter().map(|step| format!("/{step}")).collect();
            let Some(keys) = known_keys(&shown, &pointer) else { continue };
            let named =
                |place: &usize| ["listener", "tls", "signer", "acme", "backend"].contains(&path[*place].as_str());
            let step = |(place, step): (usize, &String)| match place.checked_sub(1) {
                Some(0) if named(&0) => "*".to_owned(),
                _ if step.parse::<usize>().is_ok() => "*".to_owned(),
                // Conditions on texts are alike, whatever the text is of.
                Some(before) if path[before] == "match" => "TEXTS".to_owned(),
                Some(before) if before > 0 && path[before - 1] == "match" => "*".to_owned(),
                _ => step.clone(),
            };
            let kind = path.iter().enumerate().map(step).collect::<Vec<String>>().join(".");
            known.entry(kind.clone()).or_default().extend(keys);
            let table = shown.pointer(&pointer).and_then(Value::as_object).into_iter().flatten();
            there.entry(kind).or_default().extend(table.map(|(key, _)| key.clone()));
        }
        assert!(known.len() > 20 && known["process"].contains("watch_config"), "{known:?}");
        let mut missing = Vec::new();
        for (kind, keys) in &known {
            missing.extend(keys.difference(&there[kind]).map(|key| format!("{kind}.{key}")));
        }
        // One of several, and one that has one value only.
        let shown_elsewhere = [
            "backend.*.hash.key.header",
            "cluster.capacity.hook",
            "tls.*.early_data",
            "route.*.match.TEXTS.*.exact",
            // A condition on the host stands in `match` by itself, and is a pattern or a prefix.
            "route.*.match.TEXTS.exact",
            "route.*.match.TEXTS.prefix",
            "route.*.match.TEXTS.present",
            // Included sections are shown where they belong.
            ".include",
            "route.*.sticky.key.cookie",
        ];
        missing.retain(|key| !shown_elsewhere.contains(&key.as_str()));
        assert!(missing.is_empty(), "show these, and have EVERYTHING set them: {missing:?}");
    }

    #[test]
    fn nothing_that_was_written_is_lost() {
        let shown = effective("a.toml", EVERYTHING);
        assert_eq!(shown["process"]["drain_timeout"], "1500ms");
        assert_eq!((&shown["process"]["watch_config"], &shown["process"]["state"]), (&json!(true), &json!("state")));
        assert_eq!(shown["admin"], json!({ "bind": "127.0.0.1:9900", "token_file": "token" }));
        assert_eq!(shown["backend"]["app"]["servers"][0]["drain"], true);
        let handshakes = json!({ "in_progress": 500, "per_source": 20, "queue_wait": "750ms" });
        assert_eq!(shown["process"]["handshakes"], handshakes);
        assert_eq!(shown["listener"]["web"]["timeouts"]["tunnel_idle"], "3h");
        assert_eq!(shown["tls"]["public"]["certificates"][1]["key"], "k.pem");
        assert_eq!(
            shown["backend"]["app"]["servers"][1],
            json!({ "address": "app.internal:81", "weight": 4, "max_connections": 7 })
        );
        assert_eq!(shown["backend"]["app"]["max_lifetime"], "10m");
        let tls = json!({
            "ca": ["ca.pem", "cas"], "server_name": "app.internal", "names": ["spiffe://a/b"], "sni": false, "verify": true, "certificate": "c.pem",
            "policy": "modern", "resume": false, "watch": "5s"
        });
        assert_eq!(shown["backend"]["app"]["tls"], tls);
        assert_eq!(shown["backend"]["app"]["hash"], json!({ "key": { "cookie": "user" }, "bound": 1.1 }));
        assert_eq!(shown["backend"]["app"]["servers"][2]["backup"], true);
        let sticky = json!({ "cookie": "seat", "key_file": "sticky.key", "ttl": "9h", "secure": true, "http_only": false, "same_site": "none", "path": "/a" });
        assert_eq!(shown["backend"]["app"]["sticky"], sticky);
        assert_eq!(
            (&shown["backend"]["app"]["slow_start"], &shown["backend"]["app"]["min_healthy"]),
            (&json!("45s"), &json!(30))
        );
        assert_eq!(shown["backend"]["quick"]["ewma_decay"], "3s");
        assert_eq!(shown["backend"]["quick"]["sticky"]["secure"], false);
        assert_eq!(shown["tls"]["public"]["client_auth"]["crl"][0], "crl.pem");
        assert_eq!(shown["listener"]["web"]["request_headers"]["X-Who"], "dn={client.subject} via {tls.version}");
        assert_eq!(shown["backend"]["app"]["health"]["status"], json!(["204-204", "300-302"]));
        assert_eq!(shown["backend"]["app"]["health"]["interval_down"], "30s");
        assert_eq!(shown["backend"]["grpc"]["health"]["service"], "shop.Cart");
        assert_eq!(shown["backend"]["grpc"]["servers"][0]["address"], "srv+_grpc._tcp.app.internal");
        assert_eq!(shown["backend"]["raw"]["health"]["kind"], "tcp");
        assert_eq!(shown["backend"]["app"]["outlier"]["consecutive_failures"], 7);
        assert_eq!(shown["backend"]["app"]["circuit"], json!({"requests": 100, "adaptive": true, "requests_min": 8}));
        assert_eq!(shown["process"]["resolver"]["servers"], json!(["10.0.0.2:53"]));
        let cluster = &shown["cluster"];
        assert_eq!(cluster["endpoints"], json!(["https://10.0.0.5:2379", "http://127.0.0.1:2379"]));
        assert_eq!((&cluster["user"], &cluster["password_file"]), (&json!("propylon"), &json!("password")));
        assert_eq!(cluster["canary"], json!({ "time": "5s", "step": 10, "judge": false }));
        assert_eq!((&cluster["vips"], &cluster["runtime"]), (&json!(["192.0.2.7"]), &json!("run")));
        let capacity = json!({
            "min": 2, "max": 9, "cpu": 50, "connections": 700, "handshake_wait": "5ms", "spare": 0,
            "webhook": "https://scaler.internal/edge", "every": "5s"
        });
        assert_eq!(cluster["capacity"], capacity);
        let announce =
            json!({ "bird": "bird.ctl", "protocols": ["vip"], "min_servers": 0, "hold": "4s", "hold_up": "7s" });
        assert_eq!(shown["announce"], announce);
        let vault = &shown["signer"]["vault"];
        assert_eq!(vault["servers"][1], json!({ "address": "keys.internal:2408", "server_name": "keys" }));
        assert_eq!((&vault["hedge"], &vault["verify"]), (&json!("off"), &json!("all")));
        assert_eq!(shown["signer"]["near"]["hedge"], "500ms");
        assert_eq!(shown["tls"]["public"]["signer"], "vault");
    }

    #[test]
    fn nothing_that_was_written_of_routes_is_lost() {
        let shown = effective("a.toml", EVERYTHING);
        assert_eq!(shown["route"][0]["host"], "*.shop.example");
        let limits = &shown["route"][0]["limit"];
        assert_eq!((&limits[0]["rate"], &limits[0]["burst"]), (&json!("100/m"), &json!(7)));
        assert_eq!(limits[0]["key"][1], json!({ "header": "x-key" }));
        assert_eq!(limits[1], json!({ "bytes": "1048576B/s", "burst": 2 << 20, "key": "all" }));
        assert_eq!(limits[2], json!({ "requests": 5, "key": ["host", "path"], "keys": 65_536 }));
        assert_eq!(shown["route"][1]["match"]["header"], json!({ "x-beta": "on", "x-old": { "present": false } }));
        assert_eq!(route_of(&shown, &json!({ "regex": "[.]php$" }))["backend"], "quick");
        let routes = shown["route"].as_array().unwrap();
        assert!(routes.iter().any(|route| route["redirect"]["port"] == 444));
        assert!(routes.iter().any(|route| route["respond"]["status"] == 418));
        let later = route_of(&shown, &json!("/later"));
        let wanted = json!({ "status": 503, "body_file": "later.html", "content_type": "text/html; charset=utf-8" });
        assert_eq!(later["respond"], wanted);
        assert_eq!(later["cors"]["origins"], json!(["https://a.example", "https://*.b.example:8443"]));
    }

    /// The first route of this path.
    fn route_of<'v>(shown: &'v Value, path: &Value) -> &'v Value {
        let routes = shown["route"].as_array().expect("routes");
        routes.iter().find(|route| route["path"] == *path).expect("a route")
    }

    #[test]
    fn a_split_is_shown_as_it_was_written() {
        let shown = effective("a.toml", EVERYTHING);
        let split = route_of(&shown, &json!("/split"));
        let request = json!({
            "set": { "X-Side": "app" }, "add": { "X-More": "{client.ip}" }, "append": { "X-Way": "app" }, "remove": ["X-Debug"]
        });
        let response = json!({
            "set": { "X-From": "app" }, "add": { "Link": "</b>" }, "append": { "Vary": "X-Side" }, "remove": ["X-Powered-By"]
        });
        let app = json!({ "name": "app", "weight": 90, "request": request, "response": response });
        let quick = json!({ "name": "quick", "weight": 1 });
        assert_eq!(split["backend"], json!([app, quick, { "respond": 503, "weight": 2 }]));
        assert_eq!((&split["sticky"]["ttl"], &split["fallback"]), (&json!("1h"), &json!("grpc")));
        assert_eq!((&split["timeouts"]["request"], &split["retries"]["backoff"]), (&json!("30s"), &json!("25ms")));
        assert_eq!(split["mirror"], json!({ "backend": "raw2", "percent": 2.5, "body": 8192, "in_flight": 9 }));
        let mirrors = &route_of(&shown, &json!("/hashed"))["mirror"];
        assert_eq!((&mirrors[0]["percent"], &mirrors[1]["backend"]), (&json!(100.0), &json!("rpc")));
        assert_eq!(split["retries"]["on"], json!(["connect", "timeout", 503]));
        assert_eq!(route_of(&shown, &json!("/hedged"))["hedge"], json!({ "after": "p99.9" }));
        assert_eq!(route_of(&shown, &json!("/hashed"))["sticky"], json!({ "key": { "header": "x-user" } }));
    }

    #[test]
    fn changes_of_routes_are_shown_as_they_were_written() {
        let shown = effective("a.toml", EVERYTHING);
        let request = json!({
            "set": { "X-Real-IP": "{client.ip}", "X-Brace": "{{x}}" }, "add": { "X-Server": "{upstream.server}" },
            "append": { "X-Way": "edge" }, "remove": ["X-Debug"], "host": "app.internal:81", "path": { "strip": "/quick" },
            "query": { "set": { "v": "3" }, "add": { "w": "{request.method}" }, "remove": ["utm_source"] }
        });
        let quick = route_of(&shown, &json!("/quick"));
        assert_eq!(quick["request"], request);
        let cookies = json!({
            "secure": true, "http_only": false, "same_site": "lax", "domain": "shop.example", "path": "/quick"
        });
        assert_eq!(quick["response"]["cookies"], cookies);
        assert_eq!(quick["security_headers"], "strict");
        let location = json!([{ "from": "/", "to": "https://{request.host}/quick/" }]);
        assert_eq!(quick["response"]["location"], location);
        let regex = route_of(&shown, &json!({ "exact": "/regex" }));
        assert_eq!(regex["request"]["path"], json!({ "regex": "^/r(.*)$", "to": "/x$1" }));
    }
}
