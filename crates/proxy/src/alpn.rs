//! Application protocols of TLS (ALPN, RFC 7301): those offered to servers, and those that clients may choose from.

use propylon_config::{Backend, ServerProtocol};

/// HTTP/2 over TLS (RFC 9113 §3.2).
pub const ALPN_HTTP2: &[u8] = b"h2";
/// Application protocols offered by ALPN (RFC 7301), the one liked best first. A client that speaks HTTP/1.0 offers
/// that alone (curl --http1.0 does), and would be turned away for lack of a common protocol.
pub const ALPN: &[&[u8]] = &[ALPN_HTTP2, b"http/1.1", b"http/1.0"];

/// Application protocols offered to servers, the one liked best first; see `UpstreamFacts::alpn`.
pub fn server_alpn(backend: &Backend) -> &'static [&'static [u8]] {
    match backend.protocol {
        ServerProtocol::Http1 | ServerProtocol::Http10 | ServerProtocol::FastCgi => &[b"http/1.1"],
        ServerProtocol::Http2 => &[ALPN_HTTP2],
        ServerProtocol::Auto => &[ALPN_HTTP2, b"http/1.1"],
    }
}

/// The protocol at that place in the list; see `Facts::alpn`.
pub fn alpn_name(position: u8) -> &'static str {
    ALPN.get(usize::from(position)).and_then(|name| std::str::from_utf8(name).ok()).unwrap_or_default()
}

/// Whether the protocol at that place is HTTP/2.
pub fn is_http2(position: u8) -> bool {
    ALPN.get(usize::from(position)) == Some(&ALPN_HTTP2)
}
