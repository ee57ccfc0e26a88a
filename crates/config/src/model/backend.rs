//! The resolved model of `[backend.NAME]`, all but its health checks.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU16, NonZeroU32};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::{At, Circuit, FastCgi, HealthCheck, Outlier, ProxyProtocol, TlsPolicy, Trust};
use crate::shown;
use crate::units::Share;

/// A pool of interchangeable servers: `[backend.NAME]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Backend {
    /// Name of the backend: the NAME of `[backend.NAME]`.
    #[serde(skip)]
    pub name: String,
    /// Balancing algorithm that spreads requests over the servers. Default round-robin.
    #[serde(skip)]
    pub balance: Balance,
    /// Servers of the backend, at least one.
    #[serde(skip)]
    pub servers: Vec<Server>,
    /// Protocol spoken to the servers. Default HTTP/1.1.
    pub protocol: ServerProtocol,
    /// Settings of FastCGI, where the servers speak that.
    pub fastcgi: Option<FastCgi>,
    /// HTTP/2 settings towards the servers.
    pub http2: ServerHttp2,
    /// Which requests may share a server connection. Default safe. Under `send_proxy_protocol` only requests of the
    /// same client connection share one, whatever is set here, because the header names the client.
    pub reuse: Reuse,
    /// PROXY protocol header sent at the start of every server connection, with the client's addresses. Absent
    /// (default): no header is sent.
    pub send_proxy_protocol: Option<ProxyProtocol>,
    /// Source of the connections to the servers. Absent (default): the address that the system chooses.
    pub source: Option<BackendSource>,
    /// Wait queue for requests and relays that find every server at its connection limit.
    pub queue: Queue,
    /// Timeouts towards the servers.
    pub timeouts: ServerTimeouts,
    /// Retries after a failed attempt, where a repeat is safe. Default 2.
    pub retries: u32,
    /// Budget that all retries have to keep.
    #[serde(skip)]
    pub retry_budget: RetryBudget,
    /// Idle connections that each core keeps per server, at most. Default 128.
    pub max_idle: usize,
    /// Whether requests carry a Via field naming Propylon. Default no: nginx does not compress answers to requests with
    /// Via.
    pub via: bool,
    /// Idle connections that each core opens in advance per server while there are requests. Default 0.
    pub min_idle: usize,
    /// Requests that one server connection may carry. Absent (default): no limit.
    pub max_requests: Option<NonZeroU32>,
    /// Age after which a server connection gets no further request. Absent (default): no limit.
    #[serde(serialize_with = "shown::written")]
    pub max_lifetime: Option<Duration>,
    /// Active health checks. Absent: servers are not probed.
    pub health: Option<HealthCheck>,
    /// Outlier ejection: servers are left out for how they answer requests. Absent: no server is ejected.
    pub outlier: Option<Outlier>,
    /// Circuit breaker: bounds on the requests in progress.
    #[serde(skip_serializing_if = "Circuit::has_no_bound")]
    pub circuit: Circuit,
    /// TLS towards the servers. Absent: connections are plaintext.
    pub tls: Option<BackendTls>,
    /// Duration over which a server that comes back is brought up to its full share. Absent (default): the full share
    /// at once.
    #[serde(serialize_with = "shown::written")]
    pub slow_start: Option<Duration>,
    /// Percent of the servers that are no backups which must be up; with fewer up, all of these are used, whatever
    /// health says. Default 0: all are used only when none is up.
    pub min_healthy: u8,
    /// Sticky sessions: a cookie brings a client back to its server. Absent: no cookie is set.
    pub sticky: Option<Sticky>,
    /// Position of the backend's name in the file.
    pub at: At,
}

impl Backend {
    /// Reason for which a server of this address cannot be one of this backend's, and what to do.
    #[must_use]
    pub fn misfit(&self, address: &ServerAddress) -> Option<(String, &'static str)> {
        if let ServerAddress::Ip(server) = address
            && self.source.as_ref().is_some_and(|source| !source.suits(server.is_ipv4()))
        {
            let (family, other) = if server.is_ipv4() { ("IPv4", "IPv6") } else { ("IPv6", "IPv4") };
            let what = format!("{address} is reached by {family}, and `source` has addresses of {other} alone");
            return Some((what, "add an address of the server's family to `source`"));
        }
        address.unix()?;
        if self.source.is_some() {
            let what = format!("connections to {address} come from no address or interface");
            return Some((what, "remove `source`, or put the server into a backend of its own"));
        }
        if self.tls.as_ref().is_some_and(|tls| tls.server_name.is_none()) {
            let what = format!("{address} has no name that a certificate could be for");
            return Some((what, "add `server_name` to the backend's `tls`, or remove `tls`"));
        }
        let port = self.health.as_ref().and_then(|health| health.port)?;
        let what = format!("{address} has no ports, and `health` asks at {port}");
        Some((what, "remove `port`, or put the server into a backend of its own"))
    }
}

/// Source of connections to servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum BackendSource {
    /// Addresses of this machine, which connections of their family take in turn. At least one.
    Addresses(Vec<IpAddr>),
    /// Network interface.
    Interface(String),
}

impl BackendSource {
    /// Addresses of one family, if it is addresses.
    #[must_use]
    pub fn of_family(&self, is_ipv4: bool) -> Vec<IpAddr> {
        match self {
            BackendSource::Addresses(all) => {
                all.iter().filter(|address| address.is_ipv4() == is_ipv4).copied().collect()
            }
            BackendSource::Interface(_) => Vec::new(),
        }
    }

    /// Whether connections of this family can come from here.
    #[must_use]
    pub fn suits(&self, is_ipv4: bool) -> bool {
        matches!(self, BackendSource::Interface(_)) || !self.of_family(is_ipv4).is_empty()
    }
}

/// Protocol spoken to servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerProtocol {
    /// HTTP/1.1: a connection carries one request at a time.
    Http1,
    /// HTTP/1.0: as HTTP/1.1, of which the servers may know nothing: no chunked requests, no expectations, no upgrades,
    /// and connections that end with their request unless a server agrees to keep them.
    #[serde(rename = "http1.0")]
    Http10,
    /// HTTP/2 with prior knowledge, without negotiation: many requests at a time per connection.
    #[serde(rename = "h2")]
    Http2,
    /// HTTP/2 or HTTP/1.1, as a server agrees: by ALPN, and in plaintext by its answer to HTTP/2's preface.
    Auto,
    /// FastCGI: a connection carries one request at a time.
    FastCgi,
}

impl ServerProtocol {
    /// Whether connections may carry many requests at a time.
    #[must_use]
    pub fn may_be_http2(self) -> bool {
        matches!(self, ServerProtocol::Http2 | ServerProtocol::Auto)
    }
}

/// HTTP/2 settings towards servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ServerHttp2 {
    /// Concurrent streams per connection, if the server allows as many. Default 100.
    pub max_streams: u32,
    /// Silence of a server with open streams after which it is sent a PING; the connection is given up after as much
    /// silence again. Default 15 s.
    #[serde(serialize_with = "shown::written")]
    pub ping: Duration,
}

impl Default for ServerHttp2 {
    fn default() -> ServerHttp2 {
        ServerHttp2 { max_streams: 100, ping: Duration::from_secs(15) }
    }
}

/// TLS to the servers of a backend.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BackendTls {
    /// Certificate authorities that may sign the servers' certificates. Empty: the system's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ca: Vec<Trust>,
    /// Name that a server's certificate must be valid for, and that is sent as SNI. Absent: each server's own host name
    /// or IP address.
    pub server_name: Option<String>,
    /// Names of which a server's certificate must have one, in the place of the above: hosts, and URIs as they are
    /// written. Empty: the name above.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Whether SNI is sent. An IP address never is (RFC 6066 §3). Default yes.
    pub sni: bool,
    /// Whether server certificates are verified. Default yes.
    pub verify: bool,
    /// Client certificate and key, shown to servers that ask for one.
    pub certificate: Option<Trust>,
    /// TLS policy, Modern or Intermediate. Default intermediate.
    pub policy: TlsPolicy,
    /// Whether TLS sessions are resumed. Default yes.
    pub resume: bool,
    /// Interval at which the files are checked, and read again when they have changed. Absent: only on SIGHUP.
    #[serde(serialize_with = "shown::written")]
    pub watch: Option<Duration>,
    /// Copy of `allow_world_readable_keys` of `[process]`: see [`Process`](super::Process).
    #[serde(skip)]
    pub allow_world_readable_keys: bool,
    /// Position of the TLS section in the file.
    pub at: At,
}

impl BackendTls {
    /// Terms of TLS with one that this authority, or the system's, has signed for: those of servers by default.
    pub(crate) fn verified_by(ca: Option<Trust>, at: At) -> BackendTls {
        BackendTls {
            ca: ca.into_iter().collect(),
            server_name: None,
            names: Vec::new(),
            sni: true,
            verify: true,
            certificate: None,
            policy: TlsPolicy::Intermediate,
            resume: true,
            watch: None,
            // There is none to show.
            allow_world_readable_keys: false,
            at,
        }
    }
}

/// Balancing algorithm: how requests are spread over the servers of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Balance {
    /// Servers take turns, in proportion to their weights.
    RoundRobin,
    /// Servers are drawn at random, in proportion to their weights.
    Random,
    /// Server with the fewest requests in flight for its weight.
    LeastConnections,
    /// Power of two choices: of two servers drawn at random, the one that is expected to answer sooner (EWMA of its
    /// latency).
    P2cEwma {
        /// Time constant of the average, in which it falls to 1/e of its distance. Default 10 s.
        decay: Duration,
    },
    /// Consistent hashing: requests with the same key go to the same server.
    ConsistentHash(Hash),
    /// First server in the list that has room.
    First,
}

impl Balance {
    /// Name of the algorithm in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Balance::RoundRobin => "round-robin",
            Balance::Random => "random",
            Balance::LeastConnections => "least-connections",
            Balance::P2cEwma { .. } => "p2c-ewma",
            Balance::ConsistentHash(_) => "consistent-hash",
            Balance::First => "first",
        }
    }
}

/// Consistent hashing: the key of a request, and how uneven the load may become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hash {
    /// Part of the request that is hashed. Default the client's address.
    pub key: HashKey,
    /// Requests that a server may have in flight at most, in percent of its share. Default 125.
    pub bound_percent: u16,
}

/// Part of a request that decides its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashKey {
    /// The client's address, without its port.
    ClientIp,
    /// The target's path, without its query.
    Path,
    /// The value of the first header field of this name, which is in lower case.
    Header(String),
    /// The value of the first cookie of this name.
    Cookie(String),
}

/// Sticky sessions: a cookie by which a client comes back to its server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sticky {
    /// Name of the cookie.
    pub cookie: String,
    /// File of the key that cookie values are made with; engines with the same file accept each other's cookies.
    /// Absent: a random key, made anew at every start.
    #[serde(serialize_with = "shown::written")]
    pub key_file: Option<PathBuf>,
    /// Lifetime of the cookie. Absent: until the browser is closed.
    #[serde(serialize_with = "shown::written")]
    pub ttl: Option<Duration>,
    /// Whether the cookie says Secure, so that browsers send it back over TLS only. Default auto.
    pub secure: CookieSecure,
    /// Whether the cookie says HttpOnly, which hides it from scripts. Default yes.
    pub http_only: bool,
    /// The cookie's SameSite: whether browsers send it with requests that come from other sites. Default lax.
    pub same_site: SameSite,
    /// Path of the cookie. Default `/`.
    pub path: String,
    /// Position of the section in the file.
    pub at: At,
}

/// Whether a cookie says Secure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CookieSecure {
    /// Secure for clients that came over TLS.
    Auto,
    /// Secure for all clients.
    Always,
    /// Secure for no client.
    Never,
}

impl Serialize for CookieSecure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            CookieSecure::Auto => serializer.serialize_str("auto"),
            CookieSecure::Always => serializer.serialize_bool(true),
            CookieSecure::Never => serializer.serialize_bool(false),
        }
    }
}

/// The SameSite of a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SameSite {
    /// SameSite=Strict: the cookie is sent within the site only.
    Strict,
    /// SameSite=Lax: the cookie is sent also when the user follows a link to the site.
    Lax,
    /// SameSite=None: the cookie is always sent; browsers want Secure with it.
    None,
    /// The attribute is left out.
    Unsaid,
}

/// One server of a backend.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Server {
    /// Address that the server listens on.
    pub address: ServerAddress,
    /// Weight for balancing. Default 1, at most 256.
    pub weight: NonZeroU16,
    /// Connections to the server from all cores, including those that are being made or idle. Absent (default): no
    /// limit.
    pub max_connections: Option<NonZeroU32>,
    /// Draining: the server gets no new requests, those in progress are finished. Absent (default): not draining.
    pub drain: Option<Drain>,
    /// Whether the server is a backup, used only while no other server is up. Default no.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub backup: bool,
    /// Position of the server in the file.
    pub at: At,
}

/// Source of the wish that a server gets no new requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// The configuration file.
    Written,
    /// A user of the admin API.
    AskedFor,
}

impl Serialize for Drain {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bool(true)
    }
}

impl Drain {
    /// Explanation for people.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Drain::Written => "drained in the configuration",
            Drain::AskedFor => "drained by the admin API",
        }
    }
}

/// Address of a server, as configured.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerAddress {
    /// An IP address; the port is not 0.
    Ip(SocketAddr),
    /// A host name, looked up at start, and again when its records expire.
    Name {
        /// Host name, lower-case ASCII.
        host: String,
        /// Port, not 0.
        port: u16,
    },
    /// An SRV record (RFC 2782), `_service._proto.name`, which gives host names and ports.
    Srv {
        /// Name of the record, lower-case ASCII.
        name: String,
    },
    /// A Unix socket of this machine.
    Unix {
        /// Absolute path, or behind `@` a name of the abstract namespace.
        name: String,
    },
}

impl ServerAddress {
    /// Whether the address has to be looked up.
    #[must_use]
    pub fn is_name(&self) -> bool {
        matches!(self, ServerAddress::Name { .. } | ServerAddress::Srv { .. })
    }

    /// Name of the Unix socket that the address is, if it is one.
    #[must_use]
    pub fn unix(&self) -> Option<&str> {
        match self {
            ServerAddress::Unix { name } => Some(name),
            _ => None,
        }
    }
}

shown::serialize_as_displayed!(ServerAddress);

/// The address as metrics and logs name it, and as the user wrote it.
impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Ip(address) => address.fmt(f),
            ServerAddress::Name { host, port } => write!(f, "{host}:{port}"),
            ServerAddress::Srv { name } => write!(f, "srv+{name}"),
            ServerAddress::Unix { name } => write!(f, "unix:{name}"),
        }
    }
}

/// Which requests may share a server connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reuse {
    /// A server connection serves a single client connection.
    Never,
    /// A client's first request goes out on a connection of its own, unless it could be repeated. The default.
    Safe,
    /// Such a first request may go out on a connection that has been reused before.
    Aggressive,
    /// Any request may go out on any idle connection.
    Always,
}

/// Retries that a backend's requests may cause, over all cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RetryBudget {
    /// Retries to requests. Default 20 %.
    #[serde(rename = "budget")]
    pub share: Share,
    /// Retries that are let through in each second beside the share. Default 0.
    pub min_per_second: u32,
}

impl Default for RetryBudget {
    fn default() -> RetryBudget {
        RetryBudget { share: Share::from_percent(20), min_per_second: 0 }
    }
}

/// Queue of the requests that wait for a server connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Queue {
    /// Requests in the queue at most, over all cores. Default 1024; 0: no request waits.
    pub limit: usize,
    /// Longest wait of a request. Default 5 s.
    #[serde(serialize_with = "shown::written")]
    pub timeout: Duration,
    /// Wait above which the queue turns to last-in-first-out: while a request has waited for longer, the newest are
    /// served first. Absent: always first-in-first-out.
    #[serde(serialize_with = "shown::written")]
    pub target: Option<Duration>,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { limit: 1024, timeout: Duration::from_secs(5), target: None }
    }
}

/// Timeouts towards servers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ServerTimeouts {
    /// TCP connect timeout. Default 3 s.
    #[serde(serialize_with = "shown::written")]
    pub connect: Duration,
    /// Time from the request's last byte to the response's first. Default 60 s.
    #[serde(serialize_with = "shown::written")]
    pub first_byte: Duration,
    /// Time between two reads of a response body, or two writes of a request body. Default 60 s.
    #[serde(serialize_with = "shown::written")]
    pub body: Duration,
    /// Idle time after which a pooled connection is closed. Default 50 s.
    #[serde(serialize_with = "shown::written")]
    pub idle: Duration,
    /// Time for which a connection still counts against its server's limit after its request was given up, unless the
    /// server closes it sooner. Default 10 s.
    #[serde(serialize_with = "shown::written")]
    pub close: Duration,
}
