//! `[listener.NAME]`, as meant.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::{At, KeyType, Redirect, TlsId};

/// A set of addresses that clients connect to, and how they are spoken to.
#[derive(Clone, Debug)]
pub struct Listener {
    /// The NAME of `[listener.NAME]`.
    pub name: String,
    /// At least one.
    pub bind: Vec<Bind>,
    /// What is spoken here. Default http.
    pub protocol: Protocol,
    /// Absent: plaintext.
    pub tls: Option<TlsId>,
    /// Application protocols that TLS may agree on here, the one liked best first. For `Tcp` only; none: whatever a
    /// client offers is passed over.
    pub alpn: Vec<String>,
    /// Every connection begins with a header of the PROXY protocol, before TLS, and it is believed. Default no.
    pub accept_proxy_protocol: bool,
    /// Who is believed: whose headers of the PROXY protocol, and whose forwarded fields with `Forwarded::Append`. Absent:
    /// whoever connects.
    pub trusted_proxies: Option<Vec<Network>>,
    /// Key types in this listener's own order. Absent: its TLS profile's.
    pub prefer: Option<Vec<KeyType>>,
    /// Path that Propylon answers itself, with 200. Without escapes, and in canonical form.
    pub monitor_path: Option<String>,
    /// What all other requests are answered with: a redirect to the same URL with https. Only on plaintext listeners.
    pub redirect_to_https: Option<Redirect>,
    /// Whether requests for a host that the certificate of their connection is not for are answered with 421 (RFC 9110 §7.4).
    /// Absent: those of HTTP/2 are, whose clients share connections among names. Without TLS there is nothing to go by.
    pub strict_host: Option<bool>,
    /// Whether clients of HTTP/1 that have closed their sending half (FIN) behind a request get its answer. Default no:
    /// they are taken to have gone. Relays always serve them.
    pub half_close: bool,
    /// What becomes of the client's X-Forwarded fields.
    pub forwarded: Forwarded,
    /// Fields that servers get with every request, in place of any that the client sent by these names.
    pub request_headers: Vec<RequestHeader>,
    /// How the paths of requests are read.
    pub paths: PathRules,
    /// Patience with clients.
    pub timeouts: ClientTimeouts,
    /// Bounds on what a client may send.
    pub limits: ClientLimits,
    /// HTTP/2 with clients.
    pub http2: Http2,
    /// Generation of the first configuration without it: it only holds its place, for those who have used it before.
    pub retired: Option<u64>,
    /// Where the name is written.
    pub at: At,
}

impl Listener {
    /// Whether a peer is believed when it speaks for others.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.trusted_proxies.as_ref().is_none_or(|networks| networks.iter().any(|network| network.contains(peer)))
    }
}

/// Addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The first of them; IPv4 as itself, not as IPv6.
    pub address: IpAddr,
    /// How many bits are the same.
    pub prefix: u8,
}

impl Network {
    /// Whether an address is one of them. IPv4 mapped into IPv6 is IPv4.
    pub fn contains(self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let rest = 32 - u32::from(self.prefix);
                (own.to_bits() ^ other.to_bits()).checked_shr(rest).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let rest = 128 - u32::from(self.prefix);
                (own.to_bits() ^ other.to_bits()).checked_shr(rest).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// HTTP/2 with clients: agreed on by ALPN, or begun without a word before (prior knowledge) where there is no ALPN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2 {
    /// Whether it is spoken. Default yes.
    pub enabled: bool,
    /// Streams that a connection may have open. Default 128.
    pub max_concurrent_streams: u32,
    /// Bytes of a request body that may be on their way before the server has taken any: of a stream, at first. Default
    /// 64 KiB.
    pub initial_window: u32,
    /// What a stream's window grows to when bodies turn out to be long; a connection's is
    /// `initial_window` for every stream that may be. Default 1 MiB.
    pub window_max: u32,
    /// WebSocket by extended CONNECT (RFC 8441). Default yes.
    pub extended_connect: bool,
    /// What is taken for an attack.
    pub flood: Http2Flood,
}

/// Frames that a client may send on one connection in one second; more, and the connection is ended. Each is many times
/// what real clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2Flood {
    /// SETTINGS and their acknowledgements. Default 100.
    pub settings: u32,
    /// PING. Default 2000: gRPC measures with them while it downloads.
    pub pings: u32,
    /// PRIORITY and PRIORITY_UPDATE. Default 1000.
    pub priorities: u32,
    /// RST_STREAM for streams that were not answered, where more than half of the last streams were reset so. Default 300.
    pub resets: u32,
    /// CONTINUATION. Default 100.
    pub continuations: u32,
    /// DATA without data that does not end its stream. Default 100.
    pub empty_data: u32,
    /// WINDOW_UPDATE, besides one for each KiB that was sent, whenever that was. Default 1000.
    pub window_updates: u32,
    /// Frames of types that nobody knows, and GOAWAY. Default 1000.
    pub unknown: u32,
    /// Streams that were reset because of what the client did wrong, in a connection's whole life: as many by the library as by us.
    /// Default 1000.
    pub errors: u32,
}

impl Default for Http2 {
    fn default() -> Http2 {
        Http2 {
            enabled: true,
            max_concurrent_streams: 128,
            initial_window: 64 * 1024 - 1,
            window_max: 1024 * 1024,
            extended_connect: true,
            flood: Http2Flood::default(),
        }
    }
}

impl Default for Http2Flood {
    fn default() -> Http2Flood {
        Http2Flood {
            settings: 100,
            pings: 2000,
            priorities: 1000,
            resets: 300,
            continuations: 100,
            empty_data: 100,
            window_updates: 1000,
            unknown: 1000,
            errors: 1000,
        }
    }
}

/// One address to listen on; IPv6 means IPv6 only, so `[::]:443` stands beside `0.0.0.0:443`.
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    /// Port 0 lets the kernel choose.
    pub address: SocketAddr,
    /// Where it is written.
    pub at: At,
}

/// What a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1 and, where TLS agrees on it, HTTP/2.
    Http,
    /// Bytes both ways, whatever they mean; TLS may end here.
    Tcp,
    /// TLS that ends at the servers: only the name that the client asks for is read.
    Passthrough,
}

impl Protocol {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Tcp => "tcp",
            Protocol::Passthrough => "passthrough",
        }
    }

    /// Bytes are handed on and not understood.
    pub fn is_relay(self) -> bool {
        self != Protocol::Http
    }
}

/// Which form of the PROXY protocol is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// A line of text with the addresses.
    V1,
    /// Binary: the addresses and, where TLS ended here, what is known of it.
    V2,
}

/// What becomes of X-Forwarded-For/-Proto/-Host and Forwarded that a client sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarded {
    /// The client is not trusted: its fields are dropped, ours are set. The default.
    Replace,
    /// The client is a trusted proxy: X-Forwarded-For (and Forwarded, if it came) is appended to,
    /// -Proto and -Host are kept if they came and set if not.
    Append,
    /// All of them are dropped and none is set.
    Remove,
}

/// What is done with spellings of a path that servers read differently. The default merges slashes and allows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRules {
    /// Servers get one slash for several. Routes see one in any case. Default yes.
    pub merge_slashes: bool,
    /// `%2F` is taken, as part of a segment.
    pub escaped_slash: bool,
    /// `\` and `%5C` are taken, as parts of a segment.
    pub backslash: bool,
    /// `%00` is taken.
    pub escaped_nul: bool,
    /// `..` at the root is taken, and leads to the root (RFC 3986 §5.2.4).
    pub above_root: bool,
}

impl PathRules {
    /// What can be allowed, as it is written.
    pub const ALLOWANCES: [&'static str; 4] = ["%2F", "%5C", "%00", ".."];

    /// What is allowed, as it is written.
    pub fn allowed(self) -> impl Iterator<Item = &'static str> {
        let allowed = [self.escaped_slash, self.backslash, self.escaped_nul, self.above_root];
        PathRules::ALLOWANCES.into_iter().zip(allowed).filter(|(_, allowed)| *allowed).map(|(name, _)| name)
    }
}

impl Default for PathRules {
    fn default() -> PathRules {
        PathRules { merge_slashes: true, escaped_slash: false, backslash: false, escaped_nul: false, above_root: false }
    }
}

/// A field for servers, made of facts about the client's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Letters, digits and `-`; none of the names that Propylon itself gives a meaning to.
    pub name: String,
    /// Not empty, printable. Where a fact in it is not known the field is not sent.
    pub value: Vec<Piece>,
}

/// A part of a [`RequestHeader`]'s value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// As it is.
    Text(String),
    /// What it is for this connection.
    Fact(Fact),
}

/// What can be told of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names in `Fact::ALL` and the manual say it
pub enum Fact {
    TlsVersion,
    TlsSuite,
    TlsGroup,
    TlsSignature,
    TlsCertificate,
    TlsServerName,
    TlsAlpn,
    TlsResumed,
    TlsJa4,
    ClientIp,
    ClientSubject,
    ClientIssuer,
    ClientSerial,
    ClientSha256,
}

impl Fact {
    /// Every fact by the name that stands in braces.
    pub const ALL: &'static [(&'static str, Fact)] = &[
        ("tls.version", Fact::TlsVersion),
        ("tls.suite", Fact::TlsSuite),
        ("tls.group", Fact::TlsGroup),
        ("tls.signature", Fact::TlsSignature),
        ("tls.certificate", Fact::TlsCertificate),
        ("tls.server_name", Fact::TlsServerName),
        ("tls.alpn", Fact::TlsAlpn),
        ("tls.resumed", Fact::TlsResumed),
        ("tls.ja4", Fact::TlsJa4),
        ("client.ip", Fact::ClientIp),
        ("client.subject", Fact::ClientSubject),
        ("client.issuer", Fact::ClientIssuer),
        ("client.serial", Fact::ClientSerial),
        ("client.sha256", Fact::ClientSha256),
    ];

    /// As it stands in braces.
    pub fn name(self) -> &'static str {
        Fact::ALL.iter().find(|(_, fact)| *fact == self).map_or("", |(name, _)| name)
    }

    /// Whether it comes from the client's certificate.
    pub fn is_identity(self) -> bool {
        matches!(self, Fact::ClientSubject | Fact::ClientIssuer | Fact::ClientSerial | Fact::ClientSha256)
    }
}

/// Patience with clients.
#[derive(Clone, Copy, Debug)]
pub struct ClientTimeouts {
    /// From accept to a finished TLS handshake. Default 10 s.
    pub handshake: Duration,
    /// From the first byte of a request (or the accept) to the end of its head. Default 10 s.
    pub request_head: Duration,
    /// Patience with a client that is sending or taking a body; see `ClientLimits::body_rate_min`. Default 30 s.
    pub body: Duration,
    /// Keep-alive connection with nothing in progress. Default 75 s.
    pub idle: Duration,
    /// Upgraded or relayed connection with no byte either way. Default 1 h.
    pub tunnel_idle: Duration,
}

/// Bounds on what a client may send.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// Request line and header section together. Default 16 KiB, at most 64 KiB.
    pub head_bytes: usize,
    /// Header fields in a request. Default 100.
    pub headers: usize,
    /// Bytes per second below which a client's patience (`ClientTimeouts::body`) runs out. Default 240.
    pub body_rate_min: u32,
}
