//! The configuration as meant: names resolved to ids, units to types, defaults filled in.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

/// Where in the file something was written: line and column count from 1, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct At {
    pub line: u32,
    pub column: u32,
    /// Characters to underline; at least 1.
    pub length: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub usize);
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TlsId(pub usize);
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId(pub usize);

/// A whole configuration without errors. Ids index the vectors of the same name.
#[derive(Clone, Debug)]
pub struct Config {
    pub process: Process,
    pub admin: Option<Admin>,
    pub log: Log,
    pub listeners: Vec<Listener>,
    pub tls: Vec<TlsProfile>,
    pub backends: Vec<Backend>,
    pub routes: Vec<Route>,
}

#[derive(Clone, Debug)]
pub struct Process {
    pub workers: Workers,
    /// Account to run as once the listeners are bound.
    pub user: Option<String>,
    /// How long SIGTERM waits for requests in progress. Default 30 s.
    pub drain_timeout: Duration,
    /// Client connections held at once by the process, shared evenly by the workers.
    /// Absent: what the limit of open files allows.
    pub max_connections: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// One per core this process may run on.
    Auto,
    Count(NonZeroU16),
}

#[derive(Clone, Debug)]
pub struct Admin {
    pub bind: SocketAddr,
    pub at: At,
}

#[derive(Clone, Debug)]
pub struct Log {
    pub access: AccessLog,
    pub level: Level,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLog {
    Off,
    Stdout,
    Stderr,
    File(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

#[derive(Clone, Debug)]
pub struct Listener {
    pub name: String,
    pub bind: Vec<Bind>,
    pub protocol: Protocol,
    pub tls: Option<TlsId>,
    pub monitor_path: Option<String>,
    pub forwarded: Forwarded,
    pub timeouts: ClientTimeouts,
    pub limits: ClientLimits,
    pub at: At,
}

#[derive(Clone, Copy, Debug)]
pub struct Bind {
    pub address: SocketAddr,
    pub at: At,
}

/// Grows `Tcp` and `Passthrough`; until then the schema refuses them as "not supported yet".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http,
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
    /// Upgraded connection with no byte either way. Default 1 h.
    pub tunnel_idle: Duration,
}

#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// Request line and header section together. Default 16 KiB, at most 64 KiB.
    pub head_bytes: usize,
    /// Header fields in a request. Default 100.
    pub headers: usize,
    /// Bytes per second below which a client's patience (`ClientTimeouts::body`) runs out. Default 240.
    pub body_rate_min: u32,
}

#[derive(Clone, Debug)]
pub struct TlsProfile {
    pub name: String,
    pub certificates: Vec<Certificate>,
    pub policy: TlsPolicy,
    /// Key types in the order in which they are offered to a client that can do several. Default ecdsa, rsa.
    pub prefer: Vec<KeyType>,
    pub at: At,
}

#[derive(Clone, Debug)]
pub struct Certificate {
    pub source: CertificateSource,
    pub at: At,
}

/// Paths are absolute or relative to the working directory (the parser has joined the file's own folder on).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// One PEM with chain and key, or a directory of such files.
    Path(PathBuf),
    Pair { chain: PathBuf, key: PathBuf },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsPolicy {
    /// TLS 1.3 only.
    Modern,
    /// TLS 1.2 and 1.3.
    Intermediate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyType {
    Ecdsa,
    Rsa,
}

#[derive(Clone, Debug)]
pub struct Backend {
    pub name: String,
    pub balance: Balance,
    pub servers: Vec<Server>,
    pub reuse: Reuse,
    pub timeouts: ServerTimeouts,
    /// Further attempts after a failed one, where a repeat is safe. Default 2.
    pub retries: u32,
    /// Idle connections that one core keeps per server. Default 128.
    pub max_idle: usize,
    pub at: At,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    RoundRobin,
    Random,
}

#[derive(Clone, Debug)]
pub struct Server {
    pub address: ServerAddress,
    /// Default 1, at most 256.
    pub weight: NonZeroU16,
    pub at: At,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    Ip(SocketAddr),
    /// Looked up at start.
    Name { host: String, port: u16 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// A server connection serves one request.
    Never,
    /// Any request may go out on any idle connection. The default.
    Always,
}

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
}

#[derive(Clone, Debug)]
pub struct Route {
    /// Absent: every http listener.
    pub listener: Option<ListenerId>,
    pub host: HostPattern,
    pub path: PathPattern,
    pub action: Action,
    pub at: At,
}

/// Host names are lower-case ASCII without a trailing dot and without a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    Any,
    Exact(String),
    /// `*.example`: the text after `*`, with its dot; stands for one or more labels.
    Suffix(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PathPattern {
    /// Matches by whole segments: `/api` stands for `/api` and `/api/x`, not `/apix`; `/api/` for what begins with it.
    Prefix(String),
    Exact(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Backend(BackendId),
    Redirect(Redirect),
    Respond(Respond),
}

/// The location is made of what is given here; what is absent comes from the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// 301, 302, 303, 307 or 308 (default).
    pub status: u16,
    /// "http" or "https".
    pub scheme: Option<String>,
    pub host: Option<String>,
    pub port: Option<u16>,
    /// Replaces path and query.
    pub path: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Respond {
    /// 200 to 599.
    pub status: u16,
    pub body: String,
    /// Default "text/plain; charset=utf-8".
    pub content_type: String,
}
