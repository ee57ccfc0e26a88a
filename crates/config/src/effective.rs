//! The configuration in effect, written as the JSON that a configuration file may be.
//!
//! Every default is filled in, and file names are as the process sees them. Keys and certificates are named and never
//! shown: the configuration holds their paths alone.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use crate::{
    AccessLog, Acme, Action, Backend, BackendTls, Balance, Batch, Certificate, CertificateSource, ClientAuth,
    ClientAuthMode, Config, CookieSecure, CrlScope, ForwardIdentity, Forwarded, Hash, HashKey, HealthCheck,
    HostPattern, Http2, Leniency, Level, Listener, MemoryLimit, Outlier, PathPattern, Piece, ProbeKind, ProxyProtocol,
    Redirect, Reuse, Route, SameSite, SampleRate, ServerProtocol, Signer, SignerServer, Sticky, TicketKeys, TlsPolicy,
    TlsProfile, TraceTrust, Tracing, Trust, Verify, Workers,
};
use serde_json::{Map, Value, json};

/// The whole configuration, as an object with the sections of a configuration file.
pub fn config(config: &Config) -> Value {
    let named = |entries: Vec<(&String, Value)>| -> Value {
        entries.into_iter().map(|(name, value)| (name.clone(), value)).collect::<Map<String, Value>>().into()
    };
    let mut root = of_the_process(config);
    root["listener"] = named(config.live_listeners().map(|(_, each)| (&each.name, listener(config, each))).collect());
    root["route"] = config.routes.iter().map(|each| route(config, each)).collect::<Vec<Value>>().into();
    if let Some(each) = &config.tracing {
        root["tracing"] = tracing(each);
    }
    if !config.tls.is_empty() {
        root["tls"] = named(config.tls.iter().map(|each| (&each.name, tls(config, each))).collect());
    }
    let signers: Vec<_> = config.live_signers().map(|(_, each)| (&each.name, signer(each))).collect();
    if !signers.is_empty() {
        root["signer"] = named(signers);
    }
    if !config.acmes.is_empty() {
        root["acme"] = named(config.acmes.iter().map(|each| (&each.name, acme(each))).collect());
    }
    let backends: Vec<_> = config.live_backends().map(|(_, each)| (&each.name, backend(each))).collect();
    if !backends.is_empty() {
        root["backend"] = named(backends);
    }
    root
}

/// The sections about the process itself, which may have what is for its life.
pub fn of_the_process(config: &Config) -> Value {
    let mut root = json!({
        "process": process(config),
        "log": { "access": access(&config.log.access), "level": level(config.log.level) },
        "keys": { "isolate": config.keys.isolate.is_some() },
    });
    if let Some(store) = &config.keys.store {
        root["keys"]["store"] = path(&store.path);
    }
    if let Some(admin) = &config.admin {
        root["admin"] = json!({ "bind": admin.bind.to_string() });
        if let Some(file) = &admin.token_file {
            root["admin"]["token_file"] = path(&file.path);
        }
    }
    root
}

fn process(config: &Config) -> Value {
    let mut process = json!({
        "workers": match config.process.workers {
            Workers::Auto => json!("auto"),
            Workers::Count(count) => json!(count),
        },
        "drain_timeout": duration(config.process.drain_timeout),
    });
    process["batch"] = match config.process.batch {
        Batch::Auto => json!("auto"),
        Batch::Off => json!("off"),
    };
    if let Some(user) = &config.process.user {
        process["user"] = json!(user);
    }
    if let Some(connections) = config.process.max_connections {
        process["max_connections"] = json!(connections);
    }
    process["watch_config"] = json!(config.process.watch_config);
    process["immutable"] = json!(config.process.immutable);
    process["allow_world_readable_keys"] = json!(config.process.allow_world_readable_keys);
    if let Some(state) = &config.process.state {
        process["state"] = path(&state.path);
    }
    if let Some(socket) = &config.process.upgrade_socket {
        process["upgrade_socket"] = path(&socket.path);
    }
    if let Some(connections) = config.process.connections_per_source {
        process["connections_per_source"] = json!(connections);
    }
    if let Some(limit) = config.process.memory_limit {
        process["memory_limit"] = match limit {
            MemoryLimit::Auto => json!("auto"),
            MemoryLimit::Bytes(bytes) => json!(bytes),
        };
    }
    process["share_address"] = json!(config.process.share_address);
    let handshakes = config.process.handshakes;
    process["handshakes"] = json!({
        "in_progress": handshakes.in_progress,
        "queue_wait": duration(handshakes.queue_wait),
    });
    if let Some(count) = handshakes.per_source {
        process["handshakes"]["per_source"] = json!(count);
    }
    let resolver = &config.process.resolver;
    process["resolver"] = json!({ "ttl_min": duration(resolver.ttl_min), "ttl_max": duration(resolver.ttl_max) });
    if !resolver.servers.is_empty() {
        process["resolver"]["servers"] = json!(resolver.servers);
    }
    let sandbox = &config.process.sandbox;
    process["sandbox"] = json!(if sandbox.on { "on" } else { "off" });
    if !sandbox.paths.is_empty() {
        process["sandbox_paths"] = sandbox.paths.iter().map(|each| path(&each.path)).collect();
    }
    if let Some(ports) = &sandbox.ports {
        let one = |ports: &RangeInclusive<u16>| json!(format!("{}-{}", ports.start(), ports.end()));
        process["sandbox_ports"] = ports.iter().map(one).collect();
    }
    process
}

/// Fields for the collector are secrets: their file is named, and they are not shown.
pub fn tracing(tracing: &Tracing) -> Value {
    let attributes = tracing.attributes.iter().map(|(key, value)| (key.clone(), json!(value)));
    let mut value = json!({
        "endpoint": tracing.endpoint.url,
        "sample": f64::from(tracing.sample.0) / f64::from(SampleRate::ALL),
        "trust": match tracing.trust {
            TraceTrust::Parent => "parent",
            TraceTrust::Never => "never",
        },
        "spans_per_second": tracing.spans_per_second,
        "service_name": tracing.service_name,
        "attributes": attributes.collect::<Map<String, Value>>(),
        "timeout": duration(tracing.timeout),
    });
    if let Some(ca) = tracing.tls.as_ref().and_then(|tls| tls.ca.first()) {
        value["ca"] = path(&ca.path);
    }
    if let Some(headers) = &tracing.headers {
        value["headers"] = path(&headers.path);
    }
    value
}

fn access(access: &AccessLog) -> Value {
    match access {
        AccessLog::Off => json!("off"),
        AccessLog::Stdout => json!("stdout"),
        AccessLog::Stderr => json!("stderr"),
        AccessLog::File(file) => path(file),
    }
}

fn level(level: Level) -> &'static str {
    match level {
        Level::Error => "error",
        Level::Warn => "warn",
        Level::Info => "info",
        Level::Debug => "debug",
    }
}

fn listener(config: &Config, listener: &Listener) -> Value {
    let (timeouts, limits) = (&listener.timeouts, &listener.limits);
    let mut value = json!({
        "bind": listener.bind.iter().map(|bind| bind.address.to_string()).collect::<Vec<String>>(),
        "protocol": listener.protocol.name(),
        "forwarded": match listener.forwarded {
            Forwarded::Replace => "replace",
            Forwarded::Append => "append",
            Forwarded::Remove => "remove",
        },
        "timeouts": {
            "handshake": duration(timeouts.handshake),
            "request_head": duration(timeouts.request_head),
            "body": duration(timeouts.body),
            "idle": duration(timeouts.idle),
            "tunnel_idle": duration(timeouts.tunnel_idle),
        },
        "limits": {
            "head_bytes": limits.head_bytes,
            "headers": limits.headers,
            "body_rate_min": limits.body_rate_min,
        },
        "http2": http2(&listener.http2),
    });
    value["paths"] = json!({
        "merge_slashes": listener.paths.merge_slashes,
        "allow": listener.paths.allowed().collect::<Vec<&str>>(),
    });
    if let Some(strict) = listener.strict_host {
        value["strict_host"] = json!(strict);
    }
    if listener.half_close && !listener.protocol.is_relay() {
        value["half_close"] = json!(true);
    }
    if listener.accept_proxy_protocol {
        value["accept_proxy_protocol"] = json!(true);
    }
    if let Some(networks) = &listener.trusted_proxies {
        value["trusted_proxies"] = json!(networks.iter().map(ToString::to_string).collect::<Vec<String>>());
    }
    if !listener.alpn.is_empty() {
        value["alpn"] = json!(listener.alpn);
    }
    if listener.protocol.is_relay() {
        // Keys about HTTP, which a file of the same shape may not have on such a listener.
        let Value::Object(keys) = &mut value else { return value };
        keys.retain(|key, _| !matches!(key.as_str(), "forwarded" | "limits" | "paths"));
    }
    if let Some(id) = listener.tls {
        value["tls"] = json!(config.tls[id.0].name);
    }
    if let Some(prefer) = &listener.prefer {
        value["prefer"] = json!(prefer.iter().map(|each| each.name()).collect::<Vec<&str>>());
    }
    if !listener.request_headers.is_empty() {
        let fields = listener.request_headers.iter().map(|each| (each.name.clone(), json!(template(&each.value))));
        value["request_headers"] = fields.collect::<Map<String, Value>>().into();
    }
    if let Some(redirect) = &listener.redirect_to_https {
        value["redirect_to_https"] = json!({ "status": redirect.status });
        if let Some(port) = redirect.port {
            value["redirect_to_https"]["port"] = json!(port);
        }
    }
    if let Some(path) = &listener.monitor_path {
        value["monitor_path"] = json!(path);
    }
    value
}

fn http2(http2: &Http2) -> Value {
    let flood = &http2.flood;
    json!({
        "enabled": http2.enabled,
        "max_concurrent_streams": http2.max_concurrent_streams,
        "initial_window": http2.initial_window,
        "window_max": http2.window_max,
        "extended_connect": http2.extended_connect,
        "flood": {
            "settings": flood.settings,
            "pings": flood.pings,
            "priorities": flood.priorities,
            "resets": flood.resets,
            "continuations": flood.continuations,
            "empty_data": flood.empty_data,
            "window_updates": flood.window_updates,
            "unknown": flood.unknown,
            "errors": flood.errors,
        },
    })
}

/// A `[tls.NAME]` section; paths as in `config`, in which its signers are named.
pub fn tls(config: &Config, profile: &TlsProfile) -> Value {
    let mut value = json!({
        "certificates": profile.certificates.iter().map(|each| certificate(config, each)).collect::<Vec<Value>>(),
        "policy": policy(&profile.policy),
        "prefer": profile.prefer.iter().map(|each| each.name()).collect::<Vec<&str>>(),
        "strict_sni": profile.strict_sni,
        "certificate_compression": profile.certificate_compression,
        "tickets": profile.resumption.tickets,
        "session_ids": profile.resumption.session_ids,
        "ja4": profile.ja4,
    });
    if let Some(interval) = profile.watch {
        value["watch"] = json!(duration(interval));
    }
    match &profile.resumption.ticket_keys {
        TicketKeys::Memory => {}
        TicketKeys::File { path: file, rotate: None, .. } => value["ticket_keys"] = json!(path(file)),
        TicketKeys::File { path: file, rotate: Some(rotate), .. } => {
            value["ticket_keys"] = json!({ "file": path(file), "rotate": duration(*rotate) });
        }
    }
    if let Some(auth) = &profile.client_auth {
        value["client_auth"] = client_auth(auth);
    }
    if let Some(id) = profile.signer {
        value["signer"] = json!(config.signers[id.0].name);
    }
    value
}

fn signer(signer: &Signer) -> Value {
    let mut value = connections_of(signer);
    value["resolve_interval"] = json!(duration(signer.resolve_interval));
    if let Some(interval) = signer.watch {
        value["watch"] = json!(duration(interval));
    }
    value
}

fn connections_of(signer: &Signer) -> Value {
    let server = |server: &SignerServer| {
        let address = server.address.to_string();
        match &server.server_name {
            None => json!(address),
            Some(name) => json!({ "address": address, "server_name": name }),
        }
    };
    json!({
        "servers": signer.servers.iter().map(server).collect::<Vec<Value>>(),
        "identity": path(&signer.identity.path),
        "ca": path(&signer.ca.path),
        "timeout": duration(signer.timeout),
        "connections": signer.connections,
        "hedge": signer.hedge.map_or_else(|| "off".to_owned(), duration),
        "verify": match signer.verify {
            Verify::Rsa => "rsa",
            Verify::All => "all",
            Verify::Nothing => "off",
        },
    })
}

/// Files of keys are named; their content is nowhere here.
fn acme(acme: &Acme) -> Value {
    let mut value = json!({
        "directory": acme.directory,
        "terms_agreed": acme.terms_agreed,
        "contact": acme.contact,
        // Without the name, which is joined to it.
        "state": path(acme.state.parent().unwrap_or(&acme.state)),
        "challenge": acme.challenge.name(),
        "orders_per_hour": acme.orders_per_hour,
        "retry": duration(acme.retry),
    });
    if let Some(ca) = &acme.ca {
        value["ca"] = path(&ca.path);
    }
    if let Some(external) = &acme.external_account {
        value["external_account"] = json!({ "id": external.id, "key": path(&external.key.path) });
    }
    if let Some(renew_before) = acme.renew_before {
        value["renew_before"] = json!(duration(renew_before));
    }
    if let Some(profile) = &acme.profile {
        value["profile"] = json!(profile);
    }
    value
}

fn certificate(config: &Config, certificate: &Certificate) -> Value {
    let mut value = match &certificate.source {
        CertificateSource::Path(file) if certificate.ocsp.is_none() && !certificate.default => return path(file),
        CertificateSource::Path(file) => json!({ "path": path(file) }),
        CertificateSource::Pair { chain, key } => json!({ "chain": path(chain), "key": path(key) }),
        CertificateSource::Ordered(ordered) => json!({
            "acme": config.acmes[ordered.acme.0].name,
            "names": ordered.names,
            "key_types": ordered.files.iter().map(|(key_type, _)| key_type.name()).collect::<Vec<&str>>(),
        }),
    };
    if let Some(file) = &certificate.ocsp {
        value["ocsp"] = path(file);
    }
    if certificate.default {
        value["default"] = json!(true);
    }
    value
}

fn policy(policy: &TlsPolicy) -> Value {
    match policy {
        TlsPolicy::Modern => json!("modern"),
        TlsPolicy::Intermediate => json!("intermediate"),
        TlsPolicy::Custom(custom) => json!({
            "versions": custom.versions.iter().map(|each| each.name()).collect::<Vec<&str>>(),
            "suites": custom.suites.iter().map(|each| each.name()).collect::<Vec<&str>>(),
            "groups": custom.groups.iter().map(|each| each.name()).collect::<Vec<&str>>(),
        }),
    }
}

fn client_auth(auth: &ClientAuth) -> Value {
    let paths = |trusts: &[Trust]| trusts.iter().map(|trust| path(&trust.path)).collect::<Vec<Value>>();
    let leniency = |leniency: Leniency| match leniency {
        Leniency::Refuse => "refuse",
        Leniency::Allow => "allow",
    };
    let mut value = json!({
        "ca": paths(&auth.ca),
        "mode": match auth.mode {
            ClientAuthMode::Required => "required",
            ClientAuthMode::Optional => "optional",
        },
        "depth": auth.depth,
        "send_ca_names": auth.send_ca_names,
        "forward": match auth.forward {
            ForwardIdentity::Nothing => "nothing",
            ForwardIdentity::Leaf => "leaf",
            ForwardIdentity::Chain => "chain",
        },
    });
    if !auth.crl.is_empty() {
        value["crl"] = json!(paths(&auth.crl));
        value["crl_scope"] = json!(match auth.crl_scope {
            CrlScope::Leaf => "leaf",
            CrlScope::Chain => "chain",
        });
        value["crl_missing"] = json!(leniency(auth.crl_missing));
        value["crl_expired"] = json!(leniency(auth.crl_expired));
    }
    value
}

/// As it was written.
fn template(pieces: &[Piece]) -> String {
    let text = |piece: &Piece| match piece {
        Piece::Text(text) => text.clone(),
        Piece::Fact(fact) => format!("{{{}}}", fact.name()),
    };
    pieces.iter().map(text).collect()
}

/// A `[backend.NAME]` section.
pub fn backend(backend: &Backend) -> Value {
    let timeouts = &backend.timeouts;
    let server = |server: &crate::Server| {
        let mut value = json!({ "address": server.address.to_string(), "weight": server.weight });
        if let Some(connections) = server.max_connections {
            value["max_connections"] = json!(connections);
        }
        if server.drain.is_some() {
            value["drain"] = json!(true);
        }
        if server.backup {
            value["backup"] = json!(true);
        }
        value
    };
    let mut value = json!({
        "balance": backend.balance.name(),
        "min_healthy": backend.min_healthy,
        "servers": backend.servers_as_written().map(|(_, each)| server(each)).collect::<Vec<Value>>(),
        "protocol": match backend.protocol {
            ServerProtocol::Http1 => "http1",
            ServerProtocol::Http2 => "h2",
            ServerProtocol::Auto => "auto",
        },
        "http2": { "max_streams": backend.http2.max_streams, "ping": duration(backend.http2.ping) },
        "reuse": match backend.reuse {
            Reuse::Never => "never",
            Reuse::Safe => "safe",
            Reuse::Aggressive => "aggressive",
            Reuse::Always => "always",
        },
        "queue": { "limit": backend.queue.limit, "timeout": duration(backend.queue.timeout) },
        "timeouts": {
            "connect": duration(timeouts.connect),
            "first_byte": duration(timeouts.first_byte),
            "body": duration(timeouts.body),
            "idle": duration(timeouts.idle),
            "close": duration(timeouts.close),
        },
        "retries": backend.retries,
        "max_idle": backend.max_idle,
        "via": backend.via,
        "min_idle": backend.min_idle,
    });
    if let Some(target) = backend.queue.target {
        value["queue"]["target"] = json!(duration(target));
    }
    if let Some(version) = backend.send_proxy_protocol {
        value["send_proxy_protocol"] = json!(match version {
            ProxyProtocol::V1 => "v1",
            ProxyProtocol::V2 => "v2",
        });
    }
    if let Some(requests) = backend.max_requests {
        value["max_requests"] = json!(requests);
    }
    if let Some(lifetime) = backend.max_lifetime {
        value["max_lifetime"] = json!(duration(lifetime));
    }
    if let Some(check) = &backend.health {
        value["health"] = health(check);
    }
    if let Some(rules) = &backend.outlier {
        value["outlier"] = outlier(rules);
    }
    if let Some(requests) = backend.circuit.requests {
        value["circuit"] = json!({ "requests": requests });
    }
    if let Some(tls) = &backend.tls {
        value["tls"] = backend_tls(tls);
    }
    match &backend.balance {
        Balance::P2cEwma { decay } => value["ewma_decay"] = json!(duration(*decay)),
        Balance::ConsistentHash(to) => value["hash"] = hash(to),
        Balance::RoundRobin | Balance::Random | Balance::LeastConnections | Balance::First => {}
    }
    if let Some(window) = backend.slow_start {
        value["slow_start"] = json!(duration(window));
    }
    if let Some(to) = &backend.sticky {
        value["sticky"] = sticky(to);
    }
    value
}

/// How a backend's servers are probed, alone.
pub fn health_of(backend: &Backend) -> Option<Value> {
    backend.health.as_ref().map(health)
}

fn backend_tls(tls: &BackendTls) -> Value {
    let mut value = json!({
        "sni": tls.sni,
        "verify": tls.verify,
        "policy": if tls.policy == TlsPolicy::Modern { "modern" } else { "intermediate" },
        "resume": tls.resume,
    });
    // Absent it is the system's.
    if !tls.ca.is_empty() {
        value["ca"] = tls.ca.iter().map(|trust| json!(trust.path.display().to_string())).collect();
    }
    if let Some(interval) = tls.watch {
        value["watch"] = json!(duration(interval));
    }
    if let Some(name) = &tls.server_name {
        value["server_name"] = json!(name);
    }
    if let Some(certificate) = &tls.certificate {
        value["certificate"] = json!(certificate.path.display().to_string());
    }
    value
}

/// The value of `health` in a `[backend.NAME]` section.
pub fn health(check: &HealthCheck) -> Value {
    let mut value = json!({
        "interval": duration(check.interval),
        "timeout": duration(check.timeout),
        "rise": check.rise,
        "fall": check.fall,
        "start": if check.starts_up { "up" } else { "down" },
    });
    if let Some(port) = check.port {
        value["port"] = json!(port);
    }
    match &check.kind {
        ProbeKind::Tcp => value["kind"] = json!("tcp"),
        ProbeKind::Tls => value["kind"] = json!("tls"),
        ProbeKind::Grpc { service } => {
            value["kind"] = json!("grpc");
            value["service"] = json!(service);
        }
        ProbeKind::Http(http) => {
            let range = |range: &RangeInclusive<u16>| format!("{}-{}", range.start(), range.end());
            value["kind"] = json!("http");
            value["path"] = json!(http.path);
            value["method"] = json!(http.method);
            value["status"] = http.status.iter().map(range).collect::<Vec<String>>().into();
            if let Some(host) = &http.host {
                value["host"] = json!(host);
            }
            if let Some(body) = &http.body {
                value["body"] = json!(body);
            }
        }
    }
    value
}

/// The value of `outlier` in a `[backend.NAME]` section.
pub fn outlier(rules: &Outlier) -> Value {
    json!({
        "interval": duration(rules.interval),
        "consecutive_failures": rules.consecutive_failures,
        "success_rate_servers": rules.success_rate_servers,
        "success_rate_requests": rules.success_rate_requests,
        "success_rate_deviation_percent": rules.success_rate_deviation_percent,
        "ejection": duration(rules.ejection),
        "ejection_max": duration(rules.ejection_max),
        "ejected_percent_max": rules.ejected_percent_max,
    })
}

fn hash(hash: &Hash) -> Value {
    let key = match &hash.key {
        HashKey::ClientIp => json!("client-ip"),
        HashKey::Path => json!("path"),
        HashKey::Header(name) => json!({ "header": name }),
        HashKey::Cookie(name) => json!({ "cookie": name }),
    };
    json!({ "key": key, "bound": f64::from(hash.bound_percent) / 100.0 })
}

fn sticky(sticky: &Sticky) -> Value {
    let mut value = json!({
        "cookie": sticky.cookie,
        "secure": match sticky.secure {
            CookieSecure::Auto => json!("auto"),
            CookieSecure::Always => json!(true),
            CookieSecure::Never => json!(false),
        },
        "http_only": sticky.http_only,
        "same_site": match sticky.same_site {
            SameSite::Strict => "strict",
            SameSite::Lax => "lax",
            SameSite::None => "none",
            SameSite::Unsaid => "unsaid",
        },
        "path": sticky.path,
    });
    if let Some(file) = &sticky.key_file {
        value["key_file"] = path(file);
    }
    if let Some(ttl) = sticky.ttl {
        value["ttl"] = json!(duration(ttl));
    }
    value
}

fn route(config: &Config, route: &Route) -> Value {
    let mut value = json!({
        "path": match &route.path {
            PathPattern::Prefix(prefix) => json!(prefix),
            PathPattern::Exact(path) => json!({ "exact": path }),
        },
    });
    if route.require_client_certificate {
        value["require_client_certificate"] = json!(true);
    }
    if let Some(id) = route.listener {
        value["listener"] = json!(config.listeners[id.0].name);
    }
    match &route.host {
        HostPattern::Any => {}
        HostPattern::Exact(host) => value["host"] = json!(host),
        HostPattern::Suffix(suffix) => value["host"] = json!(format!("*{suffix}")),
    }
    match &route.action {
        Action::Backend(id) => value["backend"] = json!(config.backends[id.0].name),
        Action::Redirect(to) => value["redirect"] = redirect(to),
        Action::Respond(respond) => {
            value["respond"] =
                json!({ "status": respond.status, "body": respond.body, "content_type": respond.content_type });
        }
    }
    value
}

fn redirect(redirect: &Redirect) -> Value {
    let mut value = json!({ "status": redirect.status });
    let texts = [("scheme", &redirect.scheme), ("host", &redirect.host), ("path", &redirect.path)];
    for (key, text) in texts {
        if let Some(text) = text {
            value[key] = json!(text);
        }
    }
    if let Some(port) = redirect.port {
        value["port"] = json!(port);
    }
    value
}

/// In the largest unit that leaves a whole number of it.
fn duration(duration: Duration) -> String {
    match duration.as_millis() {
        0 => "0s".into(),
        millis if millis % 3_600_000 == 0 => format!("{}h", millis / 3_600_000),
        millis if millis % 60_000 == 0 => format!("{}m", millis / 60_000),
        millis if millis % 1_000 == 0 => format!("{}s", millis / 1_000),
        millis => format!("{millis}ms"),
    }
}

fn path(path: &Path) -> Value {
    json!(path.to_string_lossy())
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
        max_connections = 5000
        connections_per_source = 90
        memory_limit = "1GiB"
        watch_config = true
        allow_world_readable_keys = true
        state = "state"
        resolver = { servers = ["10.0.0.2"], ttl_min = "1s" }
        handshakes = { in_progress = 500, per_source = 20, queue_wait = "750ms" }
        [admin]
        bind = "127.0.0.1:9900"
        token_file = "token"
        [keys]
        store = "keys"
        [log]
        access = "logs/access.log"
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
        [listener.web]
        bind = ["127.0.0.1:8443", "[::1]:8443"]
        tls = "public"
        monitor_path = "/up"
        strict_host = false
        half_close = true
        forwarded = "append"
        request_headers = { "X-Who" = "dn={client.subject} via {tls.version}" }
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
        tls = { ca = ["ca.pem", "cas"], server_name = "app.internal", sni = false, certificate = "c.pem", policy = "modern", resume = false, watch = "5s" }
        timeouts = { connect = "250ms", first_byte = "1h", close = "7s" }
        retries = 0
        max_idle = 9
        via = true
        health = { path = "/up", status = [204, "300-302"], body = "ok", host = "a.example", port = 81, rise = 1, start = "down" }
        outlier = { consecutive_failures = 7, ejection = "1m" }
        circuit = { requests = 100 }
        [backend.grpc]
        servers = ["srv+_grpc._tcp.app.internal"]
        health = { kind = "grpc", service = "shop.Cart" }
        [backend.raw]
        servers = ["10.0.0.9:1"]
        health = {}
        send_proxy_protocol = "v2"
        [[route]]
        listener = "web"
        host = "*.shop.example"
        path = { exact = "/x" }
        require_client_certificate = true
        backend = "app"
        [backend.quick]
        balance = "p2c-ewma"
        ewma_decay = "3s"
        servers = ["10.0.1.1:80"]
        sticky = { cookie = "seat", secure = false, same_site = "unsaid" }
        [[route]]
        path = "/quick"
        backend = "quick"
        [[route]]
        host = "shop.example"
        redirect = { status = 301, scheme = "https", host = "www.shop.example", port = 444, path = "/y" }
        [[route]]
        respond = { status = 418, body = "tea\n", content_type = "text/x-tea" }
        [[route]]
        listener = "relay"
        backend = "raw"
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
        for text in [EVERYTHING, minimal] {
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

    /// The keys that may stand in a table, by what is said of one that may not; none where any may, or it is no section.
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
        missing.retain(|key| !["backend.*.hash.key.header", "tls.*.early_data"].contains(&key.as_str()));
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
            "ca": ["ca.pem", "cas"], "server_name": "app.internal", "sni": false, "verify": true, "certificate": "c.pem",
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
        assert_eq!(shown["backend"]["grpc"]["health"]["service"], "shop.Cart");
        assert_eq!(shown["backend"]["grpc"]["servers"][0]["address"], "srv+_grpc._tcp.app.internal");
        assert_eq!(shown["backend"]["raw"]["health"]["kind"], "tcp");
        assert_eq!(shown["backend"]["app"]["outlier"]["consecutive_failures"], 7);
        assert_eq!(shown["backend"]["app"]["circuit"]["requests"], 100);
        assert_eq!(shown["process"]["resolver"]["servers"], json!(["10.0.0.2:53"]));
        let vault = &shown["signer"]["vault"];
        assert_eq!(vault["servers"][1], json!({ "address": "keys.internal:2408", "server_name": "keys" }));
        assert_eq!((&vault["hedge"], &vault["verify"]), (&json!("off"), &json!("all")));
        assert_eq!(shown["signer"]["near"]["hedge"], "500ms");
        assert_eq!(shown["tls"]["public"]["signer"], "vault");
        assert_eq!(shown["route"][0]["host"], "*.shop.example");
        assert_eq!(shown["route"][2]["redirect"]["port"], 444);
        assert_eq!(shown["route"][3]["respond"]["status"], 418);
    }
}
