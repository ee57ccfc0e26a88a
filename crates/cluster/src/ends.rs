//! Messages between the cluster's thread and the engine's main thread: the one asks for changes of the
//! configuration, the other for changes of the cluster, and each publishes how it stands.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use crate::percent::WeightPercent;
use crate::records::LoadRecord;

/// Requests of the main thread's that wait.
pub const REQUESTS_WAITING_MAX: usize = 16;

/// The engine as it is now, once a second and whenever it changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    pub load: LoadRecord,
    pub cores: u32,
    pub is_ready: bool,
    /// The engine's own count of configurations.
    pub generation: u64,
    pub announced: Option<bool>,
    /// Folders of ordered certificates, by account.
    pub accounts: BTreeMap<String, PathBuf>,
    /// Reasons why it is not ready, and other trouble that others should know of.
    pub problems: Vec<String>,
}

/// A change of the configuration that the cluster's thread asks for.
pub struct Ask {
    pub kind: AskKind,
    pub text: String,
    pub is_json: bool,
    /// The generation that serves it, or problems with line and column.
    pub reply: oneshot::Sender<Result<u64, Vec<String>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskKind {
    /// Only compile it.
    Check,
    Serve,
    /// Serve the engine's own file again: the cluster has no configuration.
    ServeFile,
    /// Files of certificates have changed: they are read again.
    ReadCertificates,
}

/// How the engine stands in its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    pub is_connected: bool,
    pub is_leader: bool,
    /// Somebody wants this engine to drain.
    pub is_draining: bool,
    /// Other engines that are ready and do not drain; `None` while etcd is away.
    pub others_ready: Option<usize>,
    /// Buckets of the flow table that this engine owns; `None` without a table.
    pub buckets: Option<usize>,
    /// Whether the flow table has this engine, and its kernel goes by it; `None` without a flow table.
    pub is_listed: Option<bool>,
    /// Whether this process has not yet served what the cluster has: it begins with what it had when it was there last.
    pub is_behind: bool,
    /// Wanted number of engines, those that serve, and why, if the leader computes one.
    pub wanted: Option<(u32, u32, String)>,
    pub engines: usize,
    pub serial: u64,
    pub problems: usize,
    /// Another process has this engine's name.
    pub is_name_taken: bool,
}

/// A request by the admin address.
pub struct Request {
    pub what: RequestKind,
    /// Caller, in words.
    pub by: String,
    pub reply: oneshot::Sender<Result<Value, Failure>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestKind {
    Apply {
        text: String,
        is_json: bool,
        why: String,
    },
    /// Ends a candidate that is on its way.
    Abort,
    History,
    /// To the configuration of this serial, or to the one before.
    Rollback(Option<u64>),
    Drain(String),
    Undrain(String),
    /// An engine gets so much of its share of new connections.
    Weigh {
        engine: String,
        percent: WeightPercent,
    },
    Leave,
    PutCertificate {
        name: String,
        pem: Secret,
    },
    RemoveCertificate(String),
    Certificates,
}

/// A text that is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Why a request came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// etcd does not answer, or will not take it.
    Away(String),
    /// Something else is in its way.
    Conflict(String),
    Unknown(String),
    Wrong(String),
}

/// The end of the thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    #[default]
    Running,
    /// This engine drains, and others are to know.
    Draining,
    /// The engine ends: its keys in etcd go.
    Leave,
    /// A successor on this machine has its place: its keys stay.
    Succeeded,
}

/// The main thread's side.
pub struct Handle {
    pub requests: mpsc::Sender<Request>,
    pub figures: watch::Sender<Figures>,
    pub standing: watch::Receiver<Standing>,
    /// For the admin address.
    pub status: watch::Receiver<Arc<Value>>,
    /// When somebody looked at that last: it is kept up to date for a while after.
    pub viewed: watch::Sender<Option<Instant>>,
    pub end: watch::Sender<End>,
    pub thread: std::thread::JoinHandle<()>,
}

impl Handle {
    /// Waits until the thread has ended, for a limited time: etcd may be away.
    pub fn join(self, limit: Duration) {
        let until = std::time::Instant::now() + limit;
        while !self.thread.is_finished() && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
