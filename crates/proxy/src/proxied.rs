//! The PROXY protocol on sockets: a client's address as the proxy in front tells it, and as servers are told.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use propylon_config::ProxyProtocol;
use propylon_http::proxy_protocol::{
    Ends, Header, Malformed, Tls, V2_BYTES_MAX, common_name, parse, write_v1, write_v2,
};
use propylon_tls::Version;

use crate::alpn::alpn_name;
use crate::connection::Connection;

/// Reads the header that the connection begins with, and takes over what it says. False when there is none to be had:
/// whoever connects without one is not the proxy, and is not listened to.
pub async fn read(connection: &mut Connection) -> bool {
    let core = Rc::clone(&connection.core);
    let patience = core.snapshot().listener(connection.listener).timeouts.handshake.as_millis() as u64;
    let due = connection.accepted + patience;
    core.stock.equip(&mut connection.inbox);
    let result = poll_fn(|context| {
        loop {
            match parse(received(connection)) {
                Ok(Some(header)) => return Poll::Ready(Ok(header)),
                Ok(None) => {}
                Err(Malformed(reason)) => return Poll::Ready(Err(reason)),
            }
            let into = match connection.stream.tls {
                Some(_) => connection.inbox.sealed_spare(1024),
                None => connection.inbox.spare(1024),
            };
            // Not beyond what a header may have: what is longer than that is refused, and the rest is not ours yet.
            let room = into.len().min(V2_BYTES_MAX);
            match connection.stream.socket.poll_read(context, &mut into[..room]) {
                Poll::Pending => break,
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err("closed")),
                Poll::Ready(Ok(count)) if connection.stream.tls.is_some() => connection.inbox.sealed_filled(count),
                Poll::Ready(Ok(count)) => connection.inbox.filled(count),
            }
        }
        if core.timers.now() >= due {
            return Poll::Ready(Err("timeout"));
        }
        connection.deadline.set(due, context.waker());
        Poll::Pending
    })
    .await;
    match result {
        Ok(header) => {
            take_over(connection, &header);
            connection.admit_announced()
        }
        Err(reason) => {
            if let Some(refused) = connection.metrics().proxy_refused.get() {
                core.metrics.increment(refused.of(reason));
            }
            log::debug!("{}: no header of the PROXY protocol: {reason}", connection.peer);
            false
        }
    }
}

/// Bytes that have come so far: a TLS client's lie where its records will be looked for.
fn received(connection: &mut Connection) -> &[u8] {
    if connection.stream.tls.is_none() {
        return connection.inbox.readable();
    }
    let (window, sealed) = connection.inbox.sealed_window();
    &window[sealed]
}

fn take_over(connection: &mut Connection, header: &Header) {
    match connection.stream.tls {
        Some(_) => connection.inbox.opened(header.length, 0),
        None => connection.inbox.consume(header.length),
    }
    if let Some(ends) = header.ends {
        connection.stand_for(ends);
    }
}

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
    let own = &snapshot.listener(connection.listener).alpn;
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
