//! `[backend.NAME]` but for its health, as meant.

use std::fmt;
use std::net::SocketAddr;
use std::num::{NonZeroU16, NonZeroU32};
use std::path::PathBuf;
use std::time::Duration;

use super::{At, Circuit, HealthCheck, Outlier, ProxyProtocol, TlsPolicy, Trust};

/// Servers that are as good as each other.
#[derive(Clone, Debug)]
pub struct Backend {
    /// The NAME of `[backend.NAME]`.
    pub name: String,
    /// How requests are spread. Default round-robin.
    pub balance: Balance,
    /// At least one.
    pub servers: Vec<Server>,
    /// Places of the servers in the order in which they are written. Empty: as they stand.
    pub order: Vec<usize>,
    /// Which version of HTTP the servers are spoken to in. Default HTTP/1.1.
    pub protocol: ServerProtocol,
    /// HTTP/2 with servers.
    pub http2: ServerHttp2,
    /// Which requests may share a server connection. Default safe. Where `send_proxy_protocol` is set, only those of one client
    /// connection do, whatever this says.
    pub reuse: Reuse,
    /// Connections begin with a header that tells of the client. Default none.
    pub send_proxy_protocol: Option<ProxyProtocol>,
    /// Requests and relays that wait while every server has as many connections as it may.
    pub queue: Queue,
    /// Patience with servers.
    pub timeouts: ServerTimeouts,
    /// Further attempts after a failed one, where a repeat is safe. Default 2.
    pub retries: u32,
    /// Idle connections that one core keeps per server. Default 128.
    pub max_idle: usize,
    /// Requests say in Via who has handed them on. Default no: nginx does not compress answers to such requests.
    pub via: bool,
    /// Idle connections that one core makes ahead per server while there are requests. Default 0.
    pub min_idle: usize,
    /// Requests that a server connection carries. Default: no limit.
    pub max_requests: Option<NonZeroU32>,
    /// A server connection that is older gets no further request. Default: no limit.
    pub max_lifetime: Option<Duration>,
    /// Generation of the first configuration without it: it only holds its place, for those who have used it before.
    pub retired: Option<u64>,
    /// How servers are probed. Absent: they are not.
    pub health: Option<HealthCheck>,
    /// When servers are left out for what they make of requests. Absent: never.
    pub outlier: Option<Outlier>,
    /// Bounds on what is in progress.
    pub circuit: Circuit,
    /// Absent: servers are reached in plaintext.
    pub tls: Option<BackendTls>,
    /// How long a server that comes back takes to get its share. Default: no time.
    pub slow_start: Option<Duration>,
    /// Percent of the servers that are no backups; with fewer up, all of these are used. Default 0: only when none is up.
    pub min_healthy: u8,
    /// Clients that come back to their server. Absent: none do.
    pub sticky: Option<Sticky>,
    /// Where the name is written.
    pub at: At,
}

/// Which version of HTTP servers are spoken to in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerProtocol {
    /// HTTP/1.1: a connection carries one request at a time.
    Http1,
    /// HTTP/2, without asking: many requests at a time.
    Http2,
    /// What a server agrees on by ALPN; there is `tls`.
    Auto,
}

/// HTTP/2 with servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerHttp2 {
    /// Requests that a connection carries at a time, if the server allows as many. Default 100.
    pub max_streams: u32,
    /// A server that says nothing for so long while streams are open is asked whether it is there, and given up when it does
    /// not answer for as long again. Default 15 s.
    pub ping: Duration,
}

impl Default for ServerHttp2 {
    fn default() -> ServerHttp2 {
        ServerHttp2 { max_streams: 100, ping: Duration::from_secs(15) }
    }
}

/// TLS to the servers of a backend.
#[derive(Clone, Debug)]
pub struct BackendTls {
    /// Authorities that may sign the servers' certificates. Empty: the system's.
    pub ca: Vec<Trust>,
    /// What certificates have to be for, and what is asked for by SNI. Absent: each server's own name, or its address.
    pub server_name: Option<String>,
    /// The name is sent. An address never is (RFC 6066 §3). Default yes.
    pub sni: bool,
    /// Certificates are verified. Default yes.
    pub verify: bool,
    /// Certificate and key to show to servers that ask for one.
    pub certificate: Option<Trust>,
    /// Modern or Intermediate. Default intermediate.
    pub policy: TlsPolicy,
    /// Sessions are resumed. Default yes.
    pub resume: bool,
    /// How often the files are looked at, to be read again when they have changed. Absent: only on SIGHUP.
    pub watch: Option<Duration>,
    /// Of `[process]`: see [`Process`](super::Process).
    pub allow_world_readable_keys: bool,
    /// Where it is written.
    pub at: At,
}

/// How requests are spread over the servers of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Balance {
    /// In turn, as often as the weights say.
    RoundRobin,
    /// By chance, as likely as the weights say.
    Random,
    /// To the server with the fewest requests in flight for its weight.
    LeastConnections,
    /// To the one of two drawn by chance that would answer sooner.
    P2cEwma {
        /// In which an average falls to 1/e of its distance. Default 10 s.
        decay: Duration,
    },
    /// The same key to the same server.
    ConsistentHash(Hash),
    /// To the first in the list that has room.
    First,
}

impl Balance {
    /// As it is written.
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

/// What requests are told apart by, and how far that goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hash {
    /// Default the client's address.
    pub key: HashKey,
    /// What a server may have in flight at most, in percent of its share. Default 125.
    pub bound_percent: u16,
}

/// What requests with the same server have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashKey {
    /// The client's address, without its port.
    ClientIp,
    /// The target's path, without its query.
    Path,
    /// The first field of this name, in lower case.
    Header(String),
    /// The first cookie of this name.
    Cookie(String),
}

/// A cookie by which clients come back to their server.
#[derive(Clone, Debug)]
pub struct Sticky {
    /// Its name.
    pub cookie: String,
    /// What its values are made with; engines with the same file know each other's. Absent: chance, anew with every start.
    pub key_file: Option<PathBuf>,
    /// How long the client keeps it. Absent: until its browser ends.
    pub ttl: Option<Duration>,
    /// Sent back over TLS only. Default auto.
    pub secure: CookieSecure,
    /// Kept from scripts. Default yes.
    pub http_only: bool,
    /// Sent along with requests that come from other sites. Default lax.
    pub same_site: SameSite,
    /// Default `/`.
    pub path: String,
    /// Where it is written.
    pub at: At,
}

/// Whether a cookie says Secure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CookieSecure {
    /// To clients that came over TLS.
    Auto,
    /// To all.
    Always,
    /// To none.
    Never,
}

/// The SameSite of a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameSite {
    /// Only within the site.
    Strict,
    /// And where the user follows a link to it.
    Lax,
    /// Always; browsers want Secure with it.
    None,
    /// Nothing is said.
    Unsaid,
}

/// One server of a backend.
#[derive(Clone, Debug)]
pub struct Server {
    /// Where it listens.
    pub address: ServerAddress,
    /// Default 1, at most 256.
    pub weight: NonZeroU16,
    /// Connections to it from all cores, those being made and idle ones among them. Default: no limit.
    pub max_connections: Option<NonZeroU32>,
    /// It gets no new requests; those in progress are finished. Default no.
    pub drain: Option<Drain>,
    /// Generation of the first configuration without it: it only holds its place, for those who have used it before.
    pub retired: Option<u64>,
    /// Used only while no other server is up. Default no.
    pub backup: bool,
    /// Where it is written.
    pub at: At,
}

/// Who wants a server to get no new requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// The configuration.
    Written,
    /// Whoever used the admin API.
    AskedFor,
}

impl Drain {
    /// For people.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Drain::Written => "drained in the configuration",
            Drain::AskedFor => "drained by the admin API",
        }
    }
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerAddress {
    /// An address; the port is not 0.
    Ip(SocketAddr),
    /// Looked up at start, and again when its records say so.
    Name {
        /// Lower-case ASCII.
        host: String,
        /// Not 0.
        port: u16,
    },
    /// The names and ports are those of an SRV record (RFC 2782), `_service._proto.name`.
    Srv {
        /// Lower-case ASCII.
        name: String,
    },
}

/// A server as metrics and logs call it, and as its user wrote it.
impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Ip(address) => address.fmt(f),
            ServerAddress::Name { host, port } => write!(f, "{host}:{port}"),
            ServerAddress::Srv { name } => write!(f, "srv+{name}"),
        }
    }
}

/// Which requests may share a server connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// A server connection serves one client connection.
    Never,
    /// A client's first request goes out on a connection of its own, unless it could be repeated. The default.
    Safe,
    /// Such a first request may go out on a connection that has been reused before.
    Aggressive,
    /// Any request may go out on any idle connection.
    Always,
}

/// The line in which requests wait for a server connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Requests in it, over all cores. Default 1024; 0: nobody waits.
    pub limit: usize,
    /// How long one waits. Default 5 s.
    pub timeout: Duration,
    /// While somebody has waited for longer, those who came last are served first. Absent: always those who came first.
    pub target: Option<Duration>,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { limit: 1024, timeout: Duration::from_secs(5), target: None }
    }
}

/// Patience with servers.
#[derive(Clone, Copy, Debug)]
pub struct ServerTimeouts {
    /// TCP connect. Default 3 s.
    pub connect: Duration,
    /// From the request's last byte to the response's first. Default 60 s.
    pub first_byte: Duration,
    /// Between two reads of a response body, or two writes of a request body. Default 60 s.
    pub body: Duration,
    /// A pooled connection unused for this long is closed. Default 50 s.
    pub idle: Duration,
    /// How long a connection counts against its server's limit after its request was given up, while the server has not closed
    /// it. Default 10 s.
    pub close: Duration,
}
