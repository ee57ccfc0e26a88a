//! Equal configurations for the programs that are compared.
//!
//! Equal means: one worker, no logs, the same certificates, TLS versions, ciphers and curves, tickets on, keep-alive on
//! both sides, `/ok` answered by the proxy itself, everything else from the origin; and each tuned as its own manual
//! advises for that. A relay hands on bytes and knows nothing of HTTP. Only rows about them have HTTP/2 offered, or
//! spoken to the origin (prior knowledge), or the origin behind TLS; its certificate is then verified by everyone.

use super::setting;
use super::site::{OWN_PATH, SITE_NAME, Site};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Connections that a proxy must be able to hold, with as many to the origin.
const CONNECTIONS_MAX: usize = 9500;
/// Pipes that haproxy may splice through; its default, with two files each, goes beyond a common limit of open files.
const SPLICE_PIPES: usize = 256;
/// TLS 1.2 ciphers, offered to all clients alike. (TLS 1.3 has its own three, on in every program.)
const CIPHERS_12: &str = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:\
    ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:\
    ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305";
const CIPHERS_13: &str = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";

pub fn propylon(site: &Site) -> String {
    if site.is_relay {
        return propylon_relay(site);
    }
    let (plain, tls) = (site.plain, site.tls);
    let origins = std::iter::once(&site.origin).chain(&site.more_origins).map(|origin| format!("\"{origin}\""));
    let origins = origins.collect::<Vec<_>>().join(", ");
    let certificates: Vec<String> =
        site.certificates.iter().map(|path| format!("{:?}", path.display().to_string())).collect();
    let (workers, certificates) = (site.workers, certificates.join(", "));
    let tls_with =
        |ca: &PathBuf| format!("tls = {{ ca = {:?}, server_name = {SITE_NAME:?} }}\n", ca.display().to_string());
    let origin_tls = site.origin_ca.as_ref().map(tls_with).unwrap_or_default();
    let origin_http = match (site.is_origin_http2, site.is_http2) {
        (true, _) => "protocol = \"h2\"\n".to_owned(),
        // As for nginx: each stream has a connection to the origin while it is answered.
        (false, true) => format!("max_idle = {CONNECTIONS_MAX}\n"),
        (false, false) => String::new(),
    };
    let front = site.front.map(|front| front.propylon(site).inner).unwrap_or_default();
    let text = format!(
        r#"[process]
workers = {workers}

[log]
access = "off"

[listener.plain]
bind = "{plain}"
protocol = "http"

[listener.secure]
bind = "{tls}"
protocol = "http"
tls = "site"

[tls.site]
certificates = [{certificates}]
policy = "intermediate"
prefer = ["ecdsa", "rsa"]

[backend.origin]
servers = [{origins}]
{origin_http}{origin_tls}
[[route]]
path = {{ exact = "{OWN_PATH}" }}
respond = {{ status = 200, body = "ok" }}

[[route]]
path = "/"
backend = "origin"
{front}"#
    );
    setting::apply(&site.settings, text)
}

/// The same without batches, and without key pairs made ahead.
pub fn propylon_unbatched(site: &Site) -> String {
    propylon(site).replacen("[process]\n", "[process]\nbatch = \"off\"\n", 1)
}

fn propylon_relay(site: &Site) -> String {
    let (plain, origin, workers) = (site.plain, site.origin, site.workers);
    format!(
        r#"[process]
workers = {workers}

[log]
access = "off"

[listener.relay]
bind = "{plain}"
protocol = "tcp"

[backend.origin]
servers = ["{origin}"]

[[route]]
listener = "relay"
backend = "origin"
"#
    )
}

pub fn haproxy(site: &Site) -> String {
    if site.is_relay {
        return haproxy_relay(site);
    }
    let (plain, tls, origin, curves) = (site.plain, site.tls, site.origin, site.curves);
    let crt: Vec<String> = site.certificates.iter().map(|path| format!("crt {}", path.display())).collect();
    let (workers, crt) = (site.workers, crt.join(" "));
    let alpn = if site.is_http2 { "h2,http/1.1" } else { "http/1.1" };
    let tls_with = |ca: &PathBuf| {
        let ca = ca.display();
        format!(" ssl verify required ca-file {ca} sni str({SITE_NAME}) verifyhost {SITE_NAME}")
    };
    let origin_tls = site.origin_ca.as_ref().map(tls_with).unwrap_or_default();
    let origin_proto = if site.is_origin_http2 { " proto h2" } else { "" };
    let front = site.front.map(|front| front.haproxy(site).outer).unwrap_or_default();
    format!(
        "global
    nbthread {workers}
    maxconn {CONNECTIONS_MAX}
    ssl-default-bind-options ssl-min-ver TLSv1.2
    ssl-default-bind-ciphers {CIPHERS_12}
    ssl-default-bind-ciphersuites {CIPHERS_13}

defaults
    mode http
    no log
    option dontlognull
    http-reuse always
    timeout connect 5s
    timeout client 10m
    timeout server 10m
    timeout http-keep-alive 10m

frontend site
    bind {plain} backlog 4096
    bind {tls} backlog 4096 ssl {crt} curves {curves} alpn {alpn}
    http-request return status 200 content-type text/plain string ok if {{ path {OWN_PATH} }}
{front}    default_backend origin

backend origin
    server origin {origin} pool-purge-delay 10m{origin_proto}{origin_tls}
"
    )
}

fn haproxy_relay(site: &Site) -> String {
    let (plain, origin, workers) = (site.plain, site.origin, site.workers);
    format!(
        "global
    nbthread {workers}
    maxconn {CONNECTIONS_MAX}
    maxpipes {SPLICE_PIPES}

defaults
    mode tcp
    no log
    option dontlognull
    option splice-auto
    timeout connect 5s
    timeout client 10m
    timeout server 10m

frontend relay
    bind {plain} backlog 4096
    default_backend origin

backend origin
    server origin {origin}
"
    )
}

/// Writes nginx's configuration. `with_commands` says that its TLS library is OpenSSL, whose own settings nginx
/// hands on; AWS-LC and BoringSSL have none, and the same order of TLS 1.3 suites by themselves.
pub fn nginx(site: &Site, stream_module: Option<&Path>, with_commands: bool) -> String {
    let (pid, workers) = (site.file("nginx.pid"), site.workers);
    // Started by root it would become another user, who may not write to our directory.
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let module = stream_module.filter(|_| site.is_relay);
    let module = module.map(|path| format!("load_module {};", path.display())).unwrap_or_default();
    let service = if site.is_relay { nginx_stream(site) } else { nginx_http(site, with_commands) };
    format!(
        "{user}
{module}
daemon off;
worker_processes {workers};
worker_rlimit_nofile 20000;
pid {pid};
error_log stderr crit;
events {{
    worker_connections 16384;
}}
{service}"
    )
}

/// Several workers share the load evenly only with sockets of their own, as its manual advises.
fn nginx_listen(site: &Site) -> &'static str {
    if site.workers > 1 { "backlog=4096 reuseport" } else { "backlog=4096" }
}

fn nginx_stream(site: &Site) -> String {
    let (plain, origin, listen) = (site.plain, site.origin, nginx_listen(site));
    format!(
        "stream {{
    access_log off;
    tcp_nodelay on;
    server {{
        listen {plain} {listen};
        proxy_pass {origin};
        proxy_timeout 600s;
    }}
}}
"
    )
}

fn nginx_http(site: &Site, with_commands: bool) -> String {
    let origin = site.origin;
    let temp = site.file("nginx-temp");
    let server = nginx_server(site, with_commands);
    // As many as there may be requests at once: each stream has a connection to the origin while it is answered.
    let idle_max = if site.is_http2 { CONNECTIONS_MAX } else { 128 };
    let front = site.front.map(|front| front.nginx().outer).unwrap_or_default();
    format!(
        "http {{
    access_log off;
    default_type text/plain;
    client_body_temp_path {temp}-body;
    proxy_temp_path {temp}-proxy;
    fastcgi_temp_path {temp}-fastcgi;
    uwsgi_temp_path {temp}-uwsgi;
    scgi_temp_path {temp}-scgi;
    keepalive_timeout 600s;
    keepalive_requests 1000000000;
    keepalive_time 24h;
    upstream origin {{
        server {origin};
        keepalive {idle_max};
        keepalive_requests 1000000000;
        keepalive_timeout 600s;
        keepalive_time 24h;
    }}
{front}{server}}}
"
    )
}

fn nginx_server(site: &Site, with_commands: bool) -> String {
    let suites = match with_commands {
        true => format!("ssl_conf_command Ciphersuites {CIPHERS_13};"),
        false => String::new(),
    };
    let (plain, tls, curves) = (site.plain, site.tls, site.curves);
    let listen = nginx_listen(site);
    let http2 = if site.is_http2 { "http2 " } else { "" };
    let scheme = if site.origin_ca.is_some() { "https" } else { "http" };
    let origin_tls = nginx_origin_tls(site);
    let front = site.front.map(|front| front.nginx().inner).unwrap_or_default();
    // Taken from 1.29.4 on.
    let origin_http = if site.is_origin_http2 { "2" } else { "1.1" };
    let pair = |path: &PathBuf| format!("ssl_certificate {0};\n        ssl_certificate_key {0};", path.display());
    let certificates = site.certificates.iter().map(pair).collect::<Vec<_>>().join("\n        ");
    format!(
        "    server {{
        listen {plain} {listen};
        listen {tls} ssl {http2}{listen};
        server_name {SITE_NAME};
        {certificates}
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_ciphers {CIPHERS_12};
        {suites}
        ssl_prefer_server_ciphers on;
        ssl_ecdh_curve {curves};
        ssl_session_tickets on;
        location = {OWN_PATH} {{
            return 200 ok;
        }}
        location / {{
            proxy_pass {scheme}://origin;
            proxy_http_version {origin_http};
            proxy_set_header Connection \"\";
            proxy_set_header Host $host;
            proxy_max_temp_file_size 0;{origin_tls}{front}
        }}
    }}
"
    )
}

/// Without being told it verifies nothing, sends no name, and some versions offer no TLS 1.3.
fn nginx_origin_tls(site: &Site) -> String {
    let Some(ca) = &site.origin_ca else {
        return String::new();
    };
    let lines = [
        "proxy_ssl_verify on".to_owned(),
        format!("proxy_ssl_trusted_certificate {}", ca.display()),
        format!("proxy_ssl_name {SITE_NAME}"),
        "proxy_ssl_server_name on".to_owned(),
        "proxy_ssl_session_reuse on".to_owned(),
        "proxy_ssl_protocols TLSv1.2 TLSv1.3".to_owned(),
    ];
    lines.iter().map(|line| format!("\n            {line};")).collect()
}

/// JSON, which Envoy takes as well as YAML and which cannot be indented wrongly.
pub fn envoy(site: &Site) -> String {
    let codec = if site.is_http2 { "AUTO" } else { "HTTP1" };
    let listeners = if site.is_relay {
        vec![envoy_listener("relay", site.plain, envoy_relay(), None)]
    } else {
        vec![
            envoy_listener("plain", site.plain, envoy_http("plain", "HTTP1"), None),
            envoy_listener("secure", site.tls, envoy_http("secure", codec), Some(envoy_tls(site))),
        ]
    };
    let config = json!({ "static_resources": { "listeners": listeners, "clusters": [envoy_origin(site)] } });
    format!("{config:#}\n")
}

fn envoy_address(address: SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } })
}

fn envoy_listener(name: &str, address: SocketAddr, filter: Value, tls: Option<Value>) -> Value {
    let mut chain = json!({ "filters": [filter] });
    if let Some(tls) = tls {
        chain["transport_socket"] = tls;
    }
    json!({
        "name": name,
        "address": envoy_address(address),
        "tcp_backlog_size": 4096,
        "filter_chains": [chain],
    })
}

/// Without what the others do not do either: request IDs and its own header fields.
fn envoy_http(name: &str, codec: &str) -> Value {
    let any = |message: &str| format!("type.googleapis.com/envoy.extensions.filters.{message}");
    json!({
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": any("network.http_connection_manager.v3.HttpConnectionManager"),
            "stat_prefix": name,
            "codec_type": codec,
            "generate_request_id": false,
            // Envoy waits a second by default for the client to close first, on each connection that it has to close.
            "delayed_close_timeout": "0s",
            "common_http_protocol_options": { "idle_timeout": "600s" },
            "http_filters": [{
                "name": "envoy.filters.http.router",
                "typed_config": { "@type": any("http.router.v3.Router"), "suppress_envoy_headers": true },
            }],
            "route_config": { "virtual_hosts": [{
                "name": "site",
                "domains": ["*"],
                "routes": [
                    {
                        "match": { "path": OWN_PATH },
                        "direct_response": { "status": 200, "body": { "inline_string": "ok" } },
                    },
                    { "match": { "prefix": "/" }, "route": { "cluster": "origin" } },
                ],
            }] },
        },
    })
}

fn envoy_relay() -> Value {
    json!({
        "name": "envoy.filters.network.tcp_proxy",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
            "stat_prefix": "relay",
            "cluster": "origin",
            "idle_timeout": "600s",
        },
    })
}

fn envoy_tls(site: &Site) -> Value {
    let pair = |path: &PathBuf| {
        let file = json!({ "filename": path.display().to_string() });
        json!({ "certificate_chain": file, "private_key": file })
    };
    let certificates: Vec<Value> = site.certificates.iter().map(pair).collect();
    let alpn: &[&str] = if site.is_http2 { &["h2", "http/1.1"] } else { &["http/1.1"] };
    json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {
                "tls_params": {
                    "tls_minimum_protocol_version": "TLSv1_2",
                    "tls_maximum_protocol_version": "TLSv1_3",
                    "cipher_suites": CIPHERS_12.split(':').collect::<Vec<_>>(),
                    "ecdh_curves": site.curves.split(':').collect::<Vec<_>>(),
                },
                "tls_certificates": certificates,
                "alpn_protocols": alpn,
            },
        },
    })
}

/// Limits on connections and requests (1024 each by default) are raised out of the way.
fn envoy_origin(site: &Site) -> Value {
    let any = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let origin_http = if site.is_origin_http2 { "http2_protocol_options" } else { "http_protocol_options" };
    let mut cluster = json!({
        "name": "origin",
        "type": "STATIC",
        "connect_timeout": "5s",
        "circuit_breakers": { "thresholds": [{
            "max_connections": CONNECTIONS_MAX,
            "max_pending_requests": CONNECTIONS_MAX,
            "max_requests": CONNECTIONS_MAX,
        }] },
        "typed_extension_protocol_options": { "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": any,
            "common_http_protocol_options": { "idle_timeout": "600s" },
            "explicit_http_config": { origin_http: {} },
        } },
        "load_assignment": {
            "cluster_name": "origin",
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": envoy_address(site.origin) } }] }],
        },
    });
    if let Some(ca) = &site.origin_ca {
        cluster["transport_socket"] = envoy_origin_tls(ca);
    }
    cluster
}

/// As a client it would stop at TLS 1.2 in some versions, and verify the chain but no name.
fn envoy_origin_tls(ca: &Path) -> Value {
    json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "sni": SITE_NAME,
            "common_tls_context": {
                "tls_params": {
                    "tls_minimum_protocol_version": "TLSv1_2",
                    "tls_maximum_protocol_version": "TLSv1_3",
                },
                "validation_context": {
                    "trusted_ca": { "filename": ca.display().to_string() },
                    "match_typed_subject_alt_names": [{ "san_type": "DNS", "matcher": { "exact": SITE_NAME } }],
                },
                "alpn_protocols": ["http/1.1"],
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::super::front::Front;
    use super::super::peers::{Peer, Program};
    use super::*;

    fn written(peer: Peer, change: impl FnOnce(&mut Site)) -> String {
        let mut site = Site::at(Path::new("/x"), "127.0.0.1:9".parse().unwrap()).unwrap();
        change(&mut site);
        let program =
            Program { peer, path: "x".into(), version: String::new(), tls_library: None, stream_module: None };
        program.config(&site)
    }

    #[test]
    fn http2_is_offered_where_the_row_is_about_it() {
        let parts = [(Peer::Haproxy, "alpn h2,http/1.1"), (Peer::Nginx, " ssl http2 "), (Peer::Envoy, "\"AUTO\"")];
        for (peer, part) in parts {
            assert!(written(peer, |site| site.is_http2 = true).contains(part), "{part}");
            assert!(!written(peer, |_| {}).contains(part), "{part}");
        }
    }

    #[test]
    fn http2_is_spoken_to_the_origin_where_the_row_is_about_it() {
        let parts = [
            (Peer::Propylon, "protocol = \"h2\"\n"),
            (Peer::Baseline, "protocol = \"h2\"\n"),
            (Peer::Haproxy, " proto h2\n"),
            (Peer::Nginx, "proxy_http_version 2;"),
            (Peer::Envoy, "\"http2_protocol_options\""),
        ];
        for (peer, part) in parts {
            assert!(written(peer, |site| site.is_origin_http2 = true).contains(part), "{part}");
            assert!(!written(peer, |site| site.is_http2 = true).contains(part), "{part}");
        }
    }

    #[test]
    fn a_baseline_is_configured_as_propylon_is() {
        let site = Site::at(Path::new("/x"), "127.0.0.1:9".parse().unwrap()).unwrap();
        let program = |peer| {
            let (path, version) = ("x".into(), String::new());
            Program { peer, path, version, tls_library: None, stream_module: None }.config(&site)
        };
        assert_eq!(program(Peer::Baseline), program(Peer::Propylon));
    }

    #[test]
    fn propylon_without_batches_differs_in_nothing_else() {
        let site = Site::at(Path::new("/x"), "127.0.0.1:9".parse().unwrap()).unwrap();
        let without = propylon_unbatched(&site);
        assert_eq!(without.replacen("batch = \"off\"\n", "", 1), propylon(&site));
        assert_ne!(without, propylon(&site));
    }

    #[test]
    fn nginx_on_another_library_than_openssl_gets_no_openssl_commands() {
        let with = |library: Option<&str>| {
            let site = Site::at(Path::new("/x"), "127.0.0.1:9".parse().unwrap()).unwrap();
            let tls_library = library.map(str::to_owned);
            let program = Program {
                peer: Peer::Nginx,
                path: "x".into(),
                version: String::new(),
                tls_library,
                stream_module: None,
            };
            program.config(&site).contains("ssl_conf_command")
        };
        assert!(with(Some("OpenSSL 3.0.19 27 Jan 2026")) && with(None));
        assert!(!with(Some("AWS-LC 5.12.0")) && !with(Some("BoringSSL")));
    }

    #[test]
    fn everyone_verifies_a_tls_origin_with_the_same_ca_and_name() {
        let parts = [
            (Peer::Propylon, r#"tls = { ca = "/x/ca.pem", server_name = "bench.test" }"#),
            (Peer::Haproxy, "ssl verify required ca-file /x/ca.pem sni str(bench.test) verifyhost bench.test"),
            (Peer::Nginx, "proxy_ssl_verify on;\n            proxy_ssl_trusted_certificate /x/ca.pem;"),
            (Peer::Nginx, "proxy_pass https://origin;"),
            (Peer::Envoy, "UpstreamTlsContext"),
        ];
        for (peer, part) in parts {
            assert!(written(peer, |site| site.origin_ca = Some("/x/ca.pem".into())).contains(part), "{part}");
            assert!(!written(peer, |_| {}).contains(part), "{part}");
        }
    }

    #[test]
    fn everyone_does_the_same_to_a_request_where_the_row_is_about_it() {
        let parts = [
            (Front::Changes, ["remove = [\"X-Origin\"]", "del-header X-Origin", "proxy_hide_header X-Origin;"]),
            (Front::Rewrite, ["regex = '^/api/v", "replace-uri ^/api/v", "rewrite ^/api/v"]),
            (Front::Limit, ["1000000/s", "gt 1000000 ", "1000000r/s"]),
            (Front::Gzip, ["gzip = 5", "compression algo gzip", "gzip_comp_level 5;"]),
        ];
        for (front, parts) in parts {
            for (peer, part) in [Peer::Propylon, Peer::Haproxy, Peer::Nginx].into_iter().zip(parts) {
                assert!(written(peer, |site| site.front = Some(front)).contains(part), "{part}");
                assert!(!written(peer, |_| {}).contains(part), "{part}");
            }
        }
        assert!(written(Peer::Haproxy, |site| site.front = Some(Front::Token)).contains("jwt_verify"));
        assert!(Front::Token.objection(Peer::Nginx).is_some() && Front::Token.objection(Peer::Haproxy).is_none());
    }
}
