//! The configuration as meant: names resolved to ids, units to types, defaults filled in.

mod health;

use std::fmt;
use std::net::SocketAddr;
use std::num::{NonZeroU16, NonZeroU32};
use std::path::PathBuf;
use std::time::Duration;

pub use health::*;

/// Where in the file something was written: line and column count from 1, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct At {
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
    /// Characters to underline; at least 1.
    pub length: u32,
}

/// Index into [`Config::listeners`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub usize);
/// Index into [`Config::tls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TlsId(pub usize);
/// Index into [`Config::backends`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId(pub usize);

/// Index into [`Config::signers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SignerId(pub usize);

/// A whole configuration without errors. Ids index the vectors of the same name.
#[derive(Clone, Debug)]
pub struct Config {
    /// `[process]`
    pub process: Process,
    /// `[admin]`; absent: no admin API.
    pub admin: Option<Admin>,
    /// `[log]`
    pub log: Log,
    /// `[listener.NAME]`, in file order.
    pub listeners: Vec<Listener>,
    /// `[tls.NAME]`, in file order.
    pub tls: Vec<TlsProfile>,
    /// `[signer.NAME]`, in file order.
    pub signers: Vec<Signer>,
    /// `[backend.NAME]`, in file order.
    pub backends: Vec<Backend>,
    /// `[[route]]`, in file order, which means nothing.
    pub routes: Vec<Route>,
}

/// What concerns the process as a whole.
#[derive(Clone, Debug)]
pub struct Process {
    /// Threads that serve connections. Default auto.
    pub workers: Workers,
    /// Account to run as once the listeners are bound.
    pub user: Option<String>,
    /// How long SIGTERM waits for requests in progress. Default 30 s.
    pub drain_timeout: Duration,
    /// Client connections held at once by the process, shared evenly by the workers.
    /// Absent: what the limit of open files allows.
    pub max_connections: Option<usize>,
    /// Client connections held at once of one IPv4 address or IPv6 /64, by all workers together. Absent: no limit.
    pub connections_per_source: Option<u32>,
    /// Memory that the process may use. Absent: no limit.
    pub memory_limit: Option<MemoryLimit>,
    /// Whether other processes of the same user may listen on the same addresses. Default false.
    pub share_address: bool,
    /// Whether private-key work is done in batches. Default auto.
    pub batch: Batch,
    /// Bounds on TLS handshakes in progress, of each worker by itself.
    pub handshakes: HandshakeLimits,
    /// The configuration file is read again when it changes. Default no; SIGHUP reads it in any case.
    pub watch_config: bool,
    /// Folder where the admin API writes what it changes. Absent: it changes nothing.
    pub state: Option<StateFolder>,
    /// The admin API changes nothing, whatever else is said. Default no.
    pub immutable: bool,
    /// Unix socket by which another process takes over. Absent: none can.
    pub upgrade_socket: Option<UpgradeSocket>,
    /// How names of servers are looked up.
    pub resolver: Resolver,
}

/// Where a process that succeeds this one asks for its sockets.
#[derive(Clone, Debug)]
pub struct UpgradeSocket {
    /// Joined to the configuration's folder.
    pub path: PathBuf,
    /// Where it is written.
    pub at: At,
}

/// Where the admin API's changes are kept.
#[derive(Clone, Debug)]
pub struct StateFolder {
    /// Joined to the configuration's folder.
    pub path: PathBuf,
    /// Where it is written.
    pub at: At,
}

/// How much memory the process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLimit {
    /// Four fifths of what the control group allows, or of the machine's.
    Auto,
    /// So many bytes, resident.
    Bytes(u64),
}

/// Bounds on TLS handshakes in progress, of each worker by itself: `[process.handshakes]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeLimits {
    /// At once, those included that wait for a key server. Default 8192.
    pub in_progress: usize,
    /// At once by one IPv4 address or IPv6 /64. Absent: [`HandshakeLimits::PER_SOURCE_CROWDED`] while more than half of
    /// `in_progress` are, and as many as there may be otherwise.
    pub per_source: Option<usize>,
    /// New connections are refused while they would have to expect a longer wait for their turn. Default 2 s.
    pub queue_wait: Duration,
}

impl HandshakeLimits {
    /// What one source may have where there is not enough for all.
    pub const PER_SOURCE_CROWDED: usize = 256;
}

impl Default for HandshakeLimits {
    fn default() -> HandshakeLimits {
        HandshakeLimits { in_progress: 8192, per_source: None, queue_wait: Duration::from_secs(2) }
    }
}

/// Whether private-key work is done in batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// Where the processor has the instructions, and the kernels give the known answers.
    Auto,
    /// Each handshake does its own, as it comes.
    Off,
}

/// How many threads serve connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// One per core this process may run on.
    Auto,
    /// This many, at most 1024.
    Count(NonZeroU16),
}

/// The admin API.
#[derive(Clone, Debug)]
pub struct Admin {
    /// The one address it listens on.
    pub bind: AdminBind,
    /// File with the token that changes must come with. Absent: no changes by TCP, and none needed on a Unix socket.
    pub token_file: Option<Trust>,
    /// Where the address is written.
    pub at: At,
}

/// Where the admin API listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminBind {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix socket that its owner alone can open.
    Unix(PathBuf),
}

impl fmt::Display for AdminBind {
    /// As it is written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdminBind::Tcp(address) => address.fmt(f),
            AdminBind::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl AdminBind {
    /// Where it is an address of the network.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            AdminBind::Tcp(address) => Some(*address),
            AdminBind::Unix(_) => None,
        }
    }
}

/// What is written down, and where.
#[derive(Clone, Debug)]
pub struct Log {
    /// One line per request. Default off.
    pub access: AccessLog,
    /// Least severe message that is written to stderr. Default info.
    pub level: Level,
}

/// Where the access log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// Nowhere.
    Off,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// Appended to this file; the path is joined to the configuration's folder.
    File(PathBuf),
}

/// Severity of a log message, the gravest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something failed.
    Error,
    /// Something is off and was worked around.
    Warn,
    /// Something happened.
    Info,
    /// What a developer wants to know.
    Debug,
}

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
    /// Key types in this listener's own order. Absent: its TLS profile's.
    pub prefer: Option<Vec<KeyType>>,
    /// Path that Propylon answers itself, with 200.
    pub monitor_path: Option<String>,
    /// What becomes of the client's X-Forwarded fields.
    pub forwarded: Forwarded,
    /// Fields that servers get with every request, in place of any that the client sent by these names.
    pub request_headers: Vec<RequestHeader>,
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
    /// RST_STREAM. Default 300.
    pub resets: u32,
    /// CONTINUATION. Default 100.
    pub continuations: u32,
    /// DATA without data that does not end its stream. Default 100.
    pub empty_data: u32,
    /// WINDOW_UPDATE, besides one for each KiB that was sent. Default 1000.
    pub window_updates: u32,
    /// Frames of types that nobody knows. Default 1000.
    pub unknown: u32,
    /// Streams that were reset because of what the client did wrong, in a connection's whole life. Default 1000.
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

/// How TLS is terminated, shared by any number of listeners.
#[derive(Clone, Debug)]
pub struct TlsProfile {
    /// The NAME of `[tls.NAME]`.
    pub name: String,
    /// At least one.
    pub certificates: Vec<Certificate>,
    /// Versions, cipher suites and groups. Default intermediate.
    pub policy: TlsPolicy,
    /// Key types in the order in which they are offered to a client that can do several. Default ecdsa, rsa.
    pub prefer: Vec<KeyType>,
    /// A client that asks for a name that no certificate stands for, or for none, is refused. Default no.
    pub strict_sni: bool,
    /// How often the files are looked at for changes. Absent: never; SIGHUP reads them again in any case.
    pub watch: Option<Duration>,
    /// Certificates are sent compressed to clients that can take it (RFC 8879). Default yes.
    pub certificate_compression: bool,
    /// How clients come back to a session.
    pub resumption: Resumption,
    /// Clients are asked for a certificate. Default: they are not.
    pub client_auth: Option<ClientAuth>,
    /// Every client's JA4 fingerprint is computed. Default no.
    pub ja4: bool,
    /// Who signs for the certificates whose keys are not here. Default: nobody.
    pub signer: Option<SignerId>,
    /// Where the name is written.
    pub at: At,
}

/// Key servers that hold the same private keys, and how they are spoken to.
#[derive(Clone, Debug)]
pub struct Signer {
    /// The NAME of `[signer.NAME]`.
    pub name: String,
    /// At least one, at most 64.
    pub servers: Vec<SignerServer>,
    /// PEM file of the chain and key that this engine shows to them.
    pub identity: Trust,
    /// PEM file of the authorities that sign their certificates.
    pub ca: Trust,
    /// How long a handshake waits for its signature. Default 1 s.
    pub timeout: Duration,
    /// Connections to each server that each core keeps. Default 2.
    pub connections: u16,
    /// After how long another server is asked as well; absent: never. Default half of `timeout`.
    pub hedge: Option<Duration>,
    /// Which signatures are verified before they are used. Default those of RSA keys.
    pub verify: Verify,
    /// Generation of the first configuration without it: it only holds its place, for those who have used it before.
    pub retired: Option<u64>,
    /// How often names of servers are looked up. Default 30 s.
    pub resolve_interval: Duration,
    /// How often `identity` and `ca` are looked at, and read again when they have changed; absent: at SIGHUP only.
    pub watch: Option<Duration>,
    /// Where the name is written.
    pub at: At,
}

/// A key server.
#[derive(Clone, Debug)]
pub struct SignerServer {
    /// Where it listens.
    pub address: ServerAddress,
    /// The name that its certificate must be for; absent: the host of the address.
    pub server_name: Option<String>,
    /// Where it is written.
    pub at: At,
}

/// Which signatures of key servers are verified before they are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Those of RSA keys: it costs little, and a faulty one can give away the key.
    Rsa,
    /// All of them.
    All,
    /// None.
    Nothing,
}

/// How clients come back to a session without a full handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumption {
    /// Tickets that a TLS 1.3 client gets after a full handshake; after a resumed one it gets one at most. 0: no tickets
    /// at all, with TLS 1.2 neither. Default 2, at most 8.
    pub tickets: u8,
    /// Where the keys of tickets come from. Default memory.
    pub ticket_keys: TicketKeys,
    /// Sessions kept in memory for TLS 1.2 clients that take no tickets; 0: none. Default 16384.
    pub session_ids: usize,
}

impl Default for Resumption {
    fn default() -> Resumption {
        Resumption { tickets: 2, ticket_keys: TicketKeys::Memory, session_ids: 16_384 }
    }
}

/// Where the keys come from that session tickets are sealed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TicketKeys {
    /// Made at start, replaced every six hours, known to this process alone.
    Memory,
    /// Shared with other engines through a file.
    File {
        /// Joined to the configuration's folder.
        path: PathBuf,
        /// How often this engine sees to a new key, and that it makes the file if there is none. Absent: somebody else
        /// writes the file, and it is only read.
        rotate: Option<Duration>,
        /// Where the path is written.
        at: At,
    },
}

/// A certificate chain with its key.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// Where to find it; whether it is there is the reader's to find out.
    pub source: CertificateSource,
    /// The file of its OCSP response. Absent: the chain's file name and `.ocsp`, if there is such a file.
    pub ocsp: Option<PathBuf>,
    /// Served where no other certificate fits. With none marked so it is the first.
    pub default: bool,
    /// Where it is written.
    pub at: At,
}

/// Paths are absolute or relative to the working directory (the parser has joined the file's own folder on).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// One PEM with chain and key, or a directory of such files.
    Path(PathBuf),
    /// Chain and key in a PEM file each.
    Pair {
        /// The chain, leaf first.
        chain: PathBuf,
        /// The leaf's private key.
        key: PathBuf,
    },
}

/// What is offered to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsPolicy {
    /// TLS 1.3 only.
    Modern,
    /// TLS 1.2 and 1.3.
    Intermediate,
    /// As written.
    Custom(CustomPolicy),
}

/// A policy of the user's own. Each list is without repeats and not empty, and each version can be spoken with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomPolicy {
    /// Default both.
    pub versions: Vec<TlsVersion>,
    /// The most preferred first: this order decides, not the client's. Default all.
    pub suites: Vec<TlsSuite>,
    /// A set: of these the client's order decides. Default all.
    pub groups: Vec<TlsGroup>,
    /// Where it is written.
    pub at: At,
}

/// A version of TLS that is not refused everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TlsVersion {
    /// RFC 5246.
    Tls12,
    /// RFC 8446.
    Tls13,
}

/// A cipher suite: the record cipher, and for TLS 1.2 the kind of certificate it goes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TlsSuite {
    /// TLS_AES_128_GCM_SHA256 and the like.
    Tls13(TlsCipher),
    /// TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 and the like; Ed25519 certificates go with these too (RFC 8422 §5.1.3).
    Ecdsa(TlsCipher),
    /// TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 and the like.
    Rsa(TlsCipher),
}

/// What records are encrypted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TlsCipher {
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    Chacha20Poly1305,
}

impl TlsVersion {
    /// As the configuration has it.
    pub fn name(self) -> &'static str {
        match self {
            TlsVersion::Tls12 => "1.2",
            TlsVersion::Tls13 => "1.3",
        }
    }
}

impl TlsSuite {
    /// IANA's.
    pub fn name(self) -> &'static str {
        use TlsCipher::*;
        match self {
            TlsSuite::Tls13(Aes128Gcm) => "TLS_AES_128_GCM_SHA256",
            TlsSuite::Tls13(Aes256Gcm) => "TLS_AES_256_GCM_SHA384",
            TlsSuite::Tls13(Chacha20Poly1305) => "TLS_CHACHA20_POLY1305_SHA256",
            TlsSuite::Ecdsa(Aes128Gcm) => "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            TlsSuite::Ecdsa(Aes256Gcm) => "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
            TlsSuite::Ecdsa(Chacha20Poly1305) => "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            TlsSuite::Rsa(Aes128Gcm) => "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            TlsSuite::Rsa(Aes256Gcm) => "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            TlsSuite::Rsa(Chacha20Poly1305) => "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        }
    }
}

/// A group for the exchange of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TlsGroup {
    /// X25519 and ML-KEM-768 together; TLS 1.3 only.
    X25519MlKem768,
    /// Curve25519.
    X25519,
    /// P-256.
    P256,
    /// P-384.
    P384,
}

impl TlsGroup {
    /// IANA's.
    pub fn name(self) -> &'static str {
        match self {
            TlsGroup::X25519MlKem768 => "X25519MLKEM768",
            TlsGroup::X25519 => "x25519",
            TlsGroup::P256 => "secp256r1",
            TlsGroup::P384 => "secp384r1",
        }
    }
}

/// Who clients have to be, and what servers are told of it.
#[derive(Clone, Debug)]
pub struct ClientAuth {
    /// Whether a client may come without a certificate. Default required.
    pub mode: ClientAuthMode,
    /// PEM files, or folders of such files, with the authorities that clients' certificates must lead to; at least one.
    pub ca: Vec<Trust>,
    /// Files with revocation lists, PEM or DER. None: revocation is not looked at.
    pub crl: Vec<Trust>,
    /// Which certificates the lists are asked about. Default chain.
    pub crl_scope: CrlScope,
    /// A certificate that no list speaks of. Default refuse.
    pub crl_missing: Leniency,
    /// A list whose next update is overdue. Default refuse.
    pub crl_expired: Leniency,
    /// Certificates that a client may send beside its own. Default 6, at most 8.
    pub depth: usize,
    /// Clients are told the names of the authorities. Default yes.
    pub send_ca_names: bool,
    /// What servers are told. Default leaf.
    pub forward: ForwardIdentity,
    /// Where the key is written.
    pub at: At,
}

/// A file or folder that trust or distrust comes from.
#[derive(Clone, Debug)]
pub struct Trust {
    /// As certificates' paths are.
    pub path: PathBuf,
    /// Where it is written.
    pub at: At,
}

/// Whether a client may come without a certificate. One that comes with a wrong one is always refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuthMode {
    /// It may not.
    Required,
    /// It may, and routes can refuse it.
    Optional,
}

/// Which certificates revocation lists are asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrlScope {
    /// The client's own.
    Leaf,
    /// The client's own and all intermediates.
    Chain,
}

/// What becomes of a doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leniency {
    /// The client is refused.
    Refuse,
    /// The client is let in.
    Allow,
}

/// Which of a client's certificates go to servers (RFC 9440).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardIdentity {
    /// None.
    Nothing,
    /// Its own, as Client-Cert.
    Leaf,
    /// The others as well, as Client-Cert-Chain.
    Chain,
}

/// Kind of a certificate's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyType {
    /// An elliptic curve key on P-256, P-384 or P-521.
    Ecdsa,
    /// An Ed25519 key. Where an order of preference does not name it, it stands with `Ecdsa`.
    Ed25519,
    /// An RSA key.
    Rsa,
}

impl KeyType {
    /// As it is called in the configuration, the metrics and the access log.
    pub fn name(self) -> &'static str {
        match self {
            KeyType::Ecdsa => "ecdsa",
            KeyType::Ed25519 => "ed25519",
            KeyType::Rsa => "rsa",
        }
    }
}

/// Servers that are as good as each other.
#[derive(Clone, Debug)]
pub struct Backend {
    /// The NAME of `[backend.NAME]`.
    pub name: String,
    /// How requests are spread. Default round-robin.
    pub balance: Balance,
    /// At least one.
    pub servers: Vec<Server>,
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
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { limit: 1024, timeout: Duration::from_secs(5) }
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
}

/// Which requests go where. The most specific route wins.
#[derive(Clone, Debug)]
pub struct Route {
    /// Absent: every http listener.
    pub listener: Option<ListenerId>,
    /// Hosts it stands for. Default any.
    pub host: HostPattern,
    /// Paths it stands for. Default all: the prefix `/`.
    pub path: PathPattern,
    /// What is done with the request.
    pub action: Action,
    /// Clients without a verified certificate get 403. Default no.
    pub require_client_certificate: bool,
    /// Where it is written.
    pub at: At,
}

/// Host names are lower-case ASCII without a trailing dot and without a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// Every host, and requests without one.
    Any,
    /// This host.
    Exact(String),
    /// `*.example`: the text after `*`, with its dot; stands for one or more labels.
    Suffix(String),
}

/// Paths are compared with those of requests as they were sent, without any normalisation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PathPattern {
    /// Matches by whole segments: `/api` stands for `/api` and `/api/x`, not `/apix`; `/api/` for what begins with it.
    Prefix(String),
    /// This path.
    Exact(String),
}

/// What is done with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A server of this backend answers it.
    Backend(BackendId),
    /// The client is sent elsewhere.
    Redirect(Redirect),
    /// Propylon answers it.
    Respond(Respond),
}

/// The location is made of what is given here; what is absent comes from the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// 301, 302, 303, 307 or 308 (default).
    pub status: u16,
    /// "http" or "https".
    pub scheme: Option<String>,
    /// Lower-case ASCII.
    pub host: Option<String>,
    /// Not 0.
    pub port: Option<u16>,
    /// Replaces path and query.
    pub path: Option<String>,
}

/// An answer made up on the spot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Respond {
    /// 200 to 599.
    pub status: u16,
    /// Default empty.
    pub body: String,
    /// Default "text/plain; charset=utf-8".
    pub content_type: String,
}
