//! Headers of the PROXY protocol for servers: a client's address, and what is known of its TLS.

use propylon_config::ProxyProtocol;
use propylon_http::proxy_protocol::{Ends, Tls, common_name, write_v1, write_v2};
use propylon_tls::Version;

use super::connection::Connection;
use crate::alpn::alpn_name;

/// The header for a connection to a server on behalf of this client.
pub fn header(connection: &Connection, version: ProxyProtocol, server_name: Option<&str>) -> std::io::Result<Vec<u8>> {
    let ends = connection.ends()?;
    let mut out = Vec::with_capacity(128);
    match version {
        ProxyProtocol::V1 => write_v1(ends, &mut out),
        ProxyProtocol::V2 => write_binary(connection, ends, server_name, &mut out),
    }
    Ok(out)
}

fn write_binary(connection: &Connection, ends: Ends, server_name: Option<&str>, out: &mut Vec<u8>) {
    let hello_info = connection.hello_info();
    let name = server_name.or_else(|| hello_info.and_then(|known| known.server_name.as_deref()));
    let Some(facts) = &connection.facts else { return write_v2(ends, name, None, out) };
    let identity = hello_info.and_then(|known| known.identity.as_deref());
    let common_name = identity.and_then(|identity| common_name(&identity.subject));
    let cipher = suite_name(facts);
    let snapshot = connection.core.snapshot();
    let own = &snapshot.listener(&connection.listener).alpn;
    let alpn = facts.alpn.map(|at| own.get(usize::from(at)).map_or_else(|| alpn_name(at), String::as_str));
    let tls = Tls {
        version: facts.version.name(),
        cipher: cipher.as_deref(),
        is_identified: identity.is_some(),
        is_resumed: facts.resumed,
        common_name: common_name.as_deref(),
        alpn: alpn.map(str::as_bytes),
    };
    write_v2(ends, name, Some(&tls), out);
}

/// As OpenSSL calls it; not known of a TLS 1.2 session that was resumed, whose certificate is not shown again.
fn suite_name(facts: &propylon_tls::Facts) -> Option<String> {
    use propylon_tls::Suite::{Aes128Gcm, Aes256Gcm, Chacha20Poly1305};
    if facts.version == Version::Tls13 {
        return Some(
            match facts.suite {
                Aes128Gcm => "TLS_AES_128_GCM_SHA256",
                Aes256Gcm => "TLS_AES_256_GCM_SHA384",
                Chacha20Poly1305 => "TLS_CHACHA20_POLY1305_SHA256",
            }
            .to_owned(),
        );
    }
    let key = facts.certificate?.name().to_ascii_uppercase();
    Some(match facts.suite {
        Aes128Gcm => format!("ECDHE-{key}-AES128-GCM-SHA256"),
        Aes256Gcm => format!("ECDHE-{key}-AES256-GCM-SHA384"),
        Chacha20Poly1305 => format!("ECDHE-{key}-CHACHA20-POLY1305"),
    })
}
