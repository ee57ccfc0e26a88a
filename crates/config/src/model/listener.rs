//! The resolved model of `[listener.NAME]`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::Serialize;

use super::{At, Errors, KeyType, Redirect, RequestIds, TlsId};
use crate::shown;

/// A set of addresses that clients connect to, and the protocol and limits that apply there.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Listener {
    /// Name of the listener: the NAME of `[listener.NAME]`.
    #[serde(skip)]
    pub name: String,
    /// Addresses to listen on, at least one.
    pub bind: Vec<Bind>,
    /// Protocol spoken with clients. Default http.
    pub protocol: Protocol,
    /// TLS profile. Absent: plaintext.
    #[serde(skip)]
    pub tls: Option<TlsId>,
    /// ALPN protocols that the TLS handshake may select, in order of preference. For `Tcp` only; empty: the client's
    /// ALPN extension is ignored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alpn: Vec<String>,
    /// Whether every connection begins with a PROXY protocol header, before TLS, which is believed. Default no.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub accept_proxy_protocol: bool,
    /// Networks of the proxies that are trusted: their PROXY protocol headers, and their forwarded fields with
    /// `Forwarded::Append`. Absent: every peer is.
    pub trusted_proxies: Option<Vec<Network>>,
    /// Preference of key types for this listener. Absent: that of its TLS profile.
    pub prefer: Option<Vec<KeyType>>,
    /// Path that Propylon answers itself, with 200, for monitoring. Without escapes, and in canonical form.
    pub monitor_path: Option<String>,
    /// Redirect of all other requests to the same URL with https. Only on plaintext listeners.
    pub redirect_to_https: Option<Redirect>,
    /// Whether requests for a host that the connection's certificate is not for are answered with 421 (RFC 9110 §7.4).
    /// Absent: only on HTTP/2, whose clients share a connection among names. Without TLS there is no certificate to
    /// compare.
    pub strict_host: Option<bool>,
    /// Whether HTTP/1 clients that have closed their sending half (FIN) after a request still get its answer. Default
    /// no: such clients are taken to have gone. Relays always serve them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub half_close: bool,
    /// Treatment of the client's X-Forwarded-* and Forwarded fields.
    pub forwarded: Forwarded,
    /// Header fields added to every request for servers, in place of any that the client sent by these names.
    #[serde(skip)]
    pub request_headers: Vec<RequestHeader>,
    /// Whether trailers of requests go on. Not where servers are told something in fields: one that merges trailers
    /// into the head would take a client's for ours.
    #[serde(skip)]
    pub takes_trailers: bool,
    /// IDs of requests; the field that servers get is among `request_headers`. Absent: requests have none.
    pub request_id: Option<RequestIds>,
    /// Form of errors.
    #[serde(flatten)]
    pub errors: Errors,
    /// Whether routes of the listener tell the name that clients' TLS has asked for, which is then kept.
    #[serde(skip)]
    pub tells_server_name: bool,
    /// Rules for how the paths of requests are read.
    #[serde(skip)]
    pub paths: PathRules,
    /// Timeouts towards clients.
    pub timeouts: ClientTimeouts,
    /// Limits on what a client may send.
    pub limits: ClientLimits,
    /// HTTP/2 settings towards clients.
    pub http2: Http2,
    /// Position of the listener's name in the file.
    pub at: At,
}

impl Listener {
    /// Whether a peer is a trusted proxy, whose word about its clients is believed.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.trusted_proxies.as_ref().is_none_or(|networks| networks.iter().any(|network| network.contains(peer)))
    }
}

/// An IP network in CIDR form: addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    /// First address of the network; IPv4 as itself, not as IPv6.
    pub address: IpAddr,
    /// Length of the prefix in bits.
    pub prefix: u8,
}

impl Network {
    /// Whether the network contains an address. IPv4 mapped into IPv6 counts as IPv4.
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

shown::serialize_as_displayed!(Network);
shown::serialize_by_name!(Protocol);

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// HTTP/2 settings towards clients. HTTP/2 is selected by ALPN, or begun with prior knowledge where there is no ALPN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Http2 {
    /// Whether HTTP/2 is spoken. Default yes.
    pub enabled: bool,
    /// Concurrent streams per connection. Default 128.
    pub max_concurrent_streams: u32,
    /// Initial flow-control window of a stream in bytes: request body that may be on its way before the server has
    /// taken any. Default 64 KiB.
    pub initial_window: u32,
    /// Largest window of a stream in bytes, to which it grows when bodies turn out to be long; the connection's window
    /// is `initial_window` for every stream that may be open. Default 1 MiB.
    pub window_max: u32,
    /// Whether WebSocket by extended CONNECT (RFC 8441) is offered. Default yes.
    pub extended_connect: bool,
    /// Rates of frames above which a client is taken for an attacker.
    pub flood: Http2Flood,
}

/// Frames per connection and second that a client may send of each kind; above that the connection is ended. Each limit
/// is many times what real clients send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Http2Flood {
    /// SETTINGS frames and their acknowledgements. Default 100.
    pub settings: u32,
    /// PING frames. Default 2000: gRPC measures bandwidth with them during a download.
    pub pings: u32,
    /// PRIORITY and PRIORITY_UPDATE frames. Default 1000.
    pub priorities: u32,
    /// RST_STREAM frames for streams not yet answered, counted while more than half of the last streams were reset so.
    /// Default 300.
    pub resets: u32,
    /// CONTINUATION frames. Default 100.
    pub continuations: u32,
    /// DATA frames that are empty and do not end their stream. Default 100.
    pub empty_data: u32,
    /// WINDOW_UPDATE frames beyond one for each KiB that was sent, whenever that was. Default 1000.
    pub window_updates: u32,
    /// Frames of unknown types, and GOAWAY. Default 1000.
    pub unknown: u32,
    /// Streams reset for the client's errors, over the whole life of a connection: so many by the library, and so many
    /// by us. Default 1000.
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
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Bind {
    /// Address and port; port 0 lets the kernel choose.
    pub address: SocketAddr,
    /// Position of the address in the file.
    #[serde(skip)]
    pub at: At,
}

/// Protocol that a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1 and, where TLS agrees on it, HTTP/2.
    Http,
    /// TCP relay: bytes both ways, without interpretation; TLS may be terminated here.
    Tcp,
    /// TLS passthrough: TLS is terminated by the servers, and only the SNI of the ClientHello is read.
    Passthrough,
}

impl Protocol {
    /// Name of the protocol in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Tcp => "tcp",
            Protocol::Passthrough => "passthrough",
        }
    }

    /// Whether bytes are relayed without being interpreted.
    pub fn is_relay(self) -> bool {
        self != Protocol::Http
    }
}

/// Version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProxyProtocol {
    /// Version 1: a line of text with the addresses.
    V1,
    /// Version 2: binary, with the addresses and, where TLS was terminated here, facts about it.
    V2,
}

/// Treatment of X-Forwarded-For/-Proto/-Host and Forwarded that a client sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Forwarded {
    /// The client is not trusted: its fields are dropped, ours are set. The default.
    Replace,
    /// The client is a trusted proxy: X-Forwarded-For (and Forwarded, if it came) is appended to,
    /// -Proto and -Host are kept if they came and set if not.
    Append,
    /// All of them are dropped and none is set.
    Remove,
}

/// Treatment of spellings of a path that servers read differently. The default merges slashes and allows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRules {
    /// Whether servers get one slash for several. Routes see one in any case. Default yes.
    pub merge_slashes: bool,
    /// Whether `%2F` is allowed, as part of a segment.
    pub escaped_slash: bool,
    /// Whether `\` and `%5C` are allowed, as parts of a segment.
    pub backslash: bool,
    /// Whether `%00` is allowed.
    pub escaped_nul: bool,
    /// Whether `..` at the root is allowed; it leads to the root (RFC 3986 §5.2.4).
    pub above_root: bool,
}

impl PathRules {
    /// Everything that can be allowed, as it is written in the configuration.
    pub const ALLOWANCES: [&'static str; 4] = ["%2F", "%5C", "%00", ".."];

    /// Spellings that are allowed, as they are written in the configuration.
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

/// A header field added to requests, made of facts about the client's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Field name: letters, digits and `-`; not one of the names that Propylon itself gives a meaning to.
    pub name: String,
    /// Field value, printable and not empty. A field with a fact that is not known is not sent.
    pub value: Vec<Piece>,
}

impl RequestHeader {
    /// Value as a configuration has it, with its facts in braces.
    pub fn template(&self) -> String {
        template(&self.value)
    }
}

/// Text of pieces as a configuration has it: facts in braces, braces twice.
pub fn template(pieces: &[Piece]) -> String {
    let text = |piece: &Piece| match piece {
        Piece::Text(text) => text.replace('{', "{{").replace('}', "}}"),
        Piece::Fact(fact) => format!("{{{}}}", fact.name()),
    };
    pieces.iter().map(text).collect()
}

/// A piece of a [`RequestHeader`]'s value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Literal text.
    Text(String),
    /// The value of a fact on this connection.
    Fact(Fact),
}

/// A fact about a client's connection, or about a request on it.
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
    RequestId,
    ClientPort,
    RequestMethod,
    RequestScheme,
    RequestHost,
    RequestPath,
    RequestQuery,
    RequestSource,
    RoutePath,
    UpstreamServer,
}

impl Fact {
    /// Every fact about a connection, with the name that stands in braces.
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
        ("request.id", Fact::RequestId),
    ];

    /// Facts about a request, which only routes can tell, with the names that stand in braces.
    pub const OF_REQUESTS: &'static [(&'static str, Fact)] = &[
        ("client.port", Fact::ClientPort),
        ("request.method", Fact::RequestMethod),
        ("request.scheme", Fact::RequestScheme),
        ("request.host", Fact::RequestHost),
        ("request.path", Fact::RequestPath),
        ("request.query", Fact::RequestQuery),
        ("request.source", Fact::RequestSource),
        ("route.path", Fact::RoutePath),
        ("upstream.server", Fact::UpstreamServer),
    ];

    /// Name of the fact, as it stands in braces.
    pub fn name(self) -> &'static str {
        let mut known = Fact::ALL.iter().chain(Fact::OF_REQUESTS);
        known.find(|(_, fact)| *fact == self).map_or("", |(name, _)| name)
    }

    /// Whether only a connection with TLS has the fact.
    pub fn is_of_tls(self) -> bool {
        use Fact::*;
        let is_other = matches!(self, ClientIp | ClientPort | RequestId)
            || Fact::OF_REQUESTS.iter().any(|(_, fact)| *fact == self);
        !is_other
    }

    /// Whether the fact comes from the client's certificate.
    pub fn is_identity(self) -> bool {
        matches!(self, Fact::ClientSubject | Fact::ClientIssuer | Fact::ClientSerial | Fact::ClientSha256)
    }
}

/// Timeouts towards clients.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClientTimeouts {
    /// Time from accept to the end of the TLS handshake. Default 10 s.
    #[serde(serialize_with = "shown::written")]
    pub handshake: Duration,
    /// Time from the first byte of a request (or the accept) to the end of its head. Default 10 s.
    #[serde(serialize_with = "shown::written")]
    pub request_head: Duration,
    /// Stall of a body, sent or taken by the client, that is tolerated; see `ClientLimits::body_rate_min`. Default 30
    /// s.
    #[serde(serialize_with = "shown::written")]
    pub body: Duration,
    /// Idle time of a keep-alive connection. Default 75 s.
    #[serde(serialize_with = "shown::written")]
    pub idle: Duration,
    /// Idle time of an upgraded or relayed connection, without a byte either way. Default 1 h.
    #[serde(serialize_with = "shown::written")]
    pub tunnel_idle: Duration,
}

/// Limits on what a client may send.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClientLimits {
    /// Bytes of request line and header section together. Default 16 KiB, at most 64 KiB.
    pub head_bytes: usize,
    /// Header fields in a request. Default 100.
    pub headers: usize,
    /// Rate of a body, in bytes per second, below which `ClientTimeouts::body` runs down. Default 240.
    pub body_rate_min: u32,
}
