//! The resolved model of `[process]`, `[admin]` and `[log]`.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::{At, Resolver, Trust};
use crate::shown;

/// Settings of the process as a whole: `[process]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Process {
    /// Worker threads, which serve connections. Default auto.
    pub workers: Workers,
    /// User account that the process switches to once the listeners are bound.
    pub user: Option<String>,
    /// Time after SIGTERM in which requests in progress may finish. Default 30 s.
    #[serde(serialize_with = "shown::written")]
    pub drain_timeout: Duration,
    /// Whether workers hand accepted connections to each other, so that all have as much to do. Default true.
    pub dispatch: bool,
    /// Client connections of the process at a time. Absent: what the limit of open files allows.
    pub max_connections: Option<usize>,
    /// Client connections at a time from one IPv4 address or IPv6 /64, over all workers. Absent: no limit.
    pub connections_per_source: Option<u32>,
    /// Memory limit of the process. Absent: no limit.
    pub memory_limit: Option<MemoryLimit>,
    /// Whether other processes of the same user may listen on the same addresses. Default false.
    pub share_address: bool,
    /// Batching of private-key operations. Default auto.
    pub batch: Batch,
    /// Limits on TLS handshakes in progress, per worker.
    pub handshakes: HandshakeLimits,
    /// Whether the configuration file is read again when it changes. Default no; SIGHUP reads it in any case.
    pub watch_config: bool,
    /// Folder to which the admin API writes its changes. Absent: the admin API changes nothing.
    pub state: Option<StateFolder>,
    /// Whether the admin API is read-only, whatever else is configured. Default no.
    pub immutable: bool,
    /// Unix socket by which a new process takes over the listening sockets. Absent: no upgrade is possible.
    pub upgrade_socket: Option<UpgradeSocket>,
    /// DNS resolution of servers' host names.
    pub resolver: Resolver,
    /// Sandbox: permissions that the process gives up once it serves.
    #[serde(flatten)]
    pub sandbox: Sandbox,
    /// Room for bodies that are held for slow clients.
    #[serde(flatten)]
    pub buffers: BodyBuffers,
    /// Whether private key files that every account of the machine may read or change are used, with a warning. Default
    /// no: such files are refused.
    pub allow_world_readable_keys: bool,
}

/// Sandbox: permissions that the process gives up once it serves, as far as the kernel can enforce that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sandbox {
    /// Whether the sandbox is on. Default yes.
    #[serde(rename = "sandbox", serialize_with = "shown::on_or_off")]
    pub on: bool,
    /// Files and folders that may be read in addition to those that the configuration names at the start.
    #[serde(rename = "sandbox_paths", skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<Trust>,
    /// TCP ports that may be connected to in addition to those that the configuration names at the start. Absent: any.
    #[serde(rename = "sandbox_ports", serialize_with = "shown::ranges_if_any")]
    pub ports: Option<Vec<RangeInclusive<u16>>>,
}

impl Default for Sandbox {
    fn default() -> Sandbox {
        Sandbox { on: true, paths: Vec::new(), ports: None }
    }
}

/// Room for bodies that are held for slow clients, over all routes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BodyBuffers {
    /// Bytes in memory at most. Default 64 MiB.
    #[serde(rename = "buffer_memory")]
    pub memory: u64,
    /// Bytes in files at most. Default 4 GiB.
    #[serde(rename = "buffer_disk")]
    pub disk: u64,
    /// Folder of the files. Absent: none is made.
    #[serde(rename = "temp_dir")]
    pub folder: Option<StateFolder>,
}

impl Default for BodyBuffers {
    fn default() -> BodyBuffers {
        BodyBuffers { memory: 64 << 20, disk: 4 << 30, folder: None }
    }
}

/// Unix socket on which a successor process asks for the listening sockets.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct UpgradeSocket {
    /// Path of the socket, joined to the configuration's folder.
    #[serde(serialize_with = "shown::written")]
    pub path: PathBuf,
    /// Position of the path in the file.
    #[serde(skip)]
    pub at: At,
}

/// Folder in which the admin API keeps its changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct StateFolder {
    /// Path of the folder, joined to the configuration's folder.
    #[serde(serialize_with = "shown::written")]
    pub path: PathBuf,
    /// Position of the path in the file.
    #[serde(skip)]
    pub at: At,
}

/// Memory limit of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryLimit {
    /// Four fifths of what the control group allows, or of the machine's.
    Auto,
    /// Resident bytes.
    #[serde(untagged)]
    Bytes(u64),
}

/// Limits on TLS handshakes in progress, per worker: `[process.handshakes]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HandshakeLimits {
    /// Handshakes in progress at a time, including those that wait for a key server. Default 8192.
    pub in_progress: usize,
    /// Handshakes in progress from one IPv4 address or IPv6 /64. Absent: [`HandshakeLimits::PER_SOURCE_CROWDED`] while
    /// more than half of `in_progress` is in use, and no limit of its own otherwise.
    pub per_source: Option<usize>,
    /// Expected wait of a new handshake for its turn above which new connections are refused. Default 2 s.
    #[serde(serialize_with = "shown::written")]
    pub queue_wait: Duration,
}

impl HandshakeLimits {
    /// Handshakes that one source may have in progress while more than half of `in_progress` is in use.
    pub const PER_SOURCE_CROWDED: usize = 256;
}

impl Default for HandshakeLimits {
    fn default() -> HandshakeLimits {
        HandshakeLimits { in_progress: 8192, per_source: None, queue_wait: Duration::from_secs(2) }
    }
}

/// Batching of private-key operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Batch {
    /// Batches where the processor has the instructions, and the kernels pass their known-answer tests.
    Auto,
    /// No batches: each handshake computes its own signature at once.
    Off,
}

/// Number of worker threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Workers {
    /// One worker per core that this process may run on.
    Auto,
    /// Fixed number of workers, at most 1024.
    #[serde(untagged)]
    Count(NonZeroU16),
}

/// The admin API: `[admin]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Admin {
    /// Address that the admin API listens on.
    pub bind: AdminBind,
    /// File with the token that authorises changes. Absent: no changes by TCP, and no token needed on a Unix socket.
    pub token_file: Option<Trust>,
    /// Position of the address in the file.
    pub at: At,
}

/// Address of the admin API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminBind {
    /// TCP address.
    Tcp(SocketAddr),
    /// Unix socket that only its owner can open.
    Unix(PathBuf),
}

shown::serialize_as_displayed!(AdminBind);

impl fmt::Display for AdminBind {
    /// The address as it is written in the configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdminBind::Tcp(address) => address.fmt(f),
            AdminBind::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl AdminBind {
    /// The TCP address; `None` for a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            AdminBind::Tcp(address) => Some(*address),
            AdminBind::Unix(_) => None,
        }
    }
}

/// Severity of a log message, the gravest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Something failed.
    Error,
    /// Something is off and was worked around.
    Warn,
    /// Something happened.
    Info,
    /// Details for developers.
    Debug,
}
