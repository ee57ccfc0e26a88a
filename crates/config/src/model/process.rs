//! `[process]`, `[admin]` and `[log]`, as meant.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::{At, Resolver, Trust};

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
    /// What the process denies itself once it serves.
    pub sandbox: Sandbox,
    /// Files of private keys that every account of the machine may read or change are used, with a warning. Default no: they
    /// are refused.
    pub allow_world_readable_keys: bool,
}

/// What the process denies itself once it serves, as far as the kernel can hold it to that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Default yes.
    pub on: bool,
    /// Files and folders that may be read beside those that the configuration names at the start.
    pub paths: Vec<Trust>,
    /// TCP ports that may be connected to beside those that the configuration names at the start. Absent: any.
    pub ports: Option<Vec<RangeInclusive<u16>>>,
}

impl Default for Sandbox {
    fn default() -> Sandbox {
        Sandbox { on: true, paths: Vec::new(), ports: None }
    }
}

/// Where a process that succeeds this one asks for its sockets.
#[derive(Clone, Debug)]
pub struct UpgradeSocket {
    /// Joined to the configuration's folder.
    pub path: PathBuf,
    /// Where it is written.
    pub at: At,
}

/// A folder in which what the admin API changes is kept.
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
