//! The resolved model of `[cluster]`.

use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;

use super::{At, ServerAddress, StateFolder, Trust};
use crate::shown;

/// Engines that share a configuration, certificates and keys by etcd: `[cluster]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cluster {
    /// Name of the cluster: letters, digits, `-`, `_` and `.`, at most 64.
    pub name: String,
    /// Name of this engine in the cluster, of the same characters. Absent: the machine's host name.
    pub engine: Option<String>,
    /// Members of etcd, 1 to 16; any of them will do.
    pub endpoints: Vec<WebAddress>,
    /// Trust anchors for etcd's certificates. Absent: the system's.
    pub ca: Option<Trust>,
    /// File with the client certificate towards etcd, chain and key.
    pub identity: Option<Trust>,
    /// Account at etcd. Absent: none is named.
    #[serde(flatten)]
    pub user: Option<EtcdUser>,
    /// Files of sealing keys, at least one: the first seals, all of them open.
    pub sealing_keys: Vec<Trust>,
    /// Folder, on disk, that keeps the last good state, sealed. Default "/var/lib/propylon/cluster".
    pub state: StateFolder,
    /// Folder, in memory, of files that are served from: certificates with their keys among them. Default
    /// "/run/propylon/cluster".
    pub runtime: StateFolder,
    /// Address at which other engines reach this one. Absent: the source address of connections to etcd.
    pub address: Option<IpAddr>,
    /// Time after which an engine that is not heard of is taken for gone. Default 5 s.
    #[serde(serialize_with = "shown::written")]
    pub lease: Duration,
    /// Steps by which a new configuration comes to all engines.
    pub canary: Canary,
    /// Keys of session tickets that all engines share.
    pub ticket_keys: SharedTicketKeys,
    /// Time for which the flows of a draining engine are kept. Default 10 m.
    #[serde(serialize_with = "shown::written")]
    pub drain_limit: Duration,
    /// Virtual addresses that all engines share. Default none.
    pub vips: Vec<IpAddr>,
    /// Table by which a flow stays with its engine. Absent: there is none.
    pub flows: Option<FlowsSettings>,
    /// Computation of how many engines there should be. Absent: nothing is computed.
    pub capacity: Option<CapacitySettings>,
    /// Position of the section in the file.
    pub at: At,
}

impl Cluster {
    /// URL that is told how many engines are wanted, if there is one.
    pub fn webhook(&self) -> Option<&WebAddress> {
        match self.capacity.as_ref()?.recipient.as_ref()? {
            CapacityRecipient::Webhook(address) => Some(address),
            CapacityRecipient::Hook(_) => None,
        }
    }
}

/// A user of etcd: `user` and `password_file`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EtcdUser {
    /// Name of the user.
    #[serde(rename = "user")]
    pub name: String,
    /// File with the password.
    pub password_file: Trust,
}

/// A URL of http or https.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct WebAddress {
    /// URL as it was written.
    pub url: String,
    /// Whether it is one of https.
    #[serde(skip)]
    pub is_https: bool,
    /// Host and port.
    #[serde(skip)]
    pub address: ServerAddress,
    /// Host and port as the Host field has them: the port only if it was written.
    #[serde(skip)]
    pub authority: String,
    /// Path of the URL, with its leading slash: `/` if there was none.
    #[serde(skip)]
    pub path: String,
    /// Position of the URL in the file.
    #[serde(skip)]
    pub at: At,
}

/// The first engine with a new configuration, and the others after it: `canary`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Canary {
    /// Time for which one engine serves it alone. Default 30 s; zero: the others follow as soon as it serves.
    #[serde(serialize_with = "shown::written")]
    pub time: Duration,
    /// Share of the engines that each step after it adds, in percent, rounded up. 1 to 100, default 25.
    #[serde(rename = "step")]
    pub step_percent: u8,
    /// Whether faults and latency of the engines that serve it are compared with the rest's. Default yes.
    pub judge: bool,
}

impl Default for Canary {
    fn default() -> Canary {
        Canary { time: Duration::from_secs(30), step_percent: 25, judge: true }
    }
}

/// Ticket keys of a cluster: `cluster.ticket_keys`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SharedTicketKeys {
    /// Time after which a new key takes over. Default 6 h.
    #[serde(serialize_with = "shown::written")]
    pub rotate: Duration,
}

impl Default for SharedTicketKeys {
    fn default() -> SharedTicketKeys {
        SharedTicketKeys { rotate: Duration::from_secs(6 * 3600) }
    }
}

/// The flow table: `flows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FlowsSettings {
    /// UDP port at which engines send each other packets of flows. Default 6655.
    pub port: u16,
    /// Buckets of the table: a power of two from 256 to 65536. Default 1024.
    pub buckets: u32,
}

impl Default for FlowsSettings {
    fn default() -> FlowsSettings {
        FlowsSettings { port: 6655, buckets: 1024 }
    }
}

/// How many engines are wanted: `capacity`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CapacitySettings {
    /// Least number of engines. Default 1.
    pub min: u16,
    /// Greatest number of engines, not below `min`. Default 32.
    pub max: u16,
    /// Share of each engine's processors that is to be used, in percent. 1 to 100, default 60.
    #[serde(rename = "cpu")]
    pub cpu_percent: u8,
    /// Connections that each engine is to have at most. Absent: they do not count.
    pub connections: Option<u64>,
    /// Wait for handshakes above which another engine is wanted. Default 100 ms.
    #[serde(serialize_with = "shown::written")]
    pub handshake_wait: Duration,
    /// Engines that may fail without the others having more than is meant for them. Default 1.
    pub spare: u16,
    /// Recipient of the number, when it changes. Absent: only metrics and the admin API have it.
    #[serde(flatten)]
    pub recipient: Option<CapacityRecipient>,
    /// Time between two computations. Default 1 m.
    #[serde(serialize_with = "shown::written")]
    pub every: Duration,
}

impl Default for CapacitySettings {
    fn default() -> CapacitySettings {
        CapacitySettings {
            min: 1,
            max: 32,
            cpu_percent: 60,
            connections: None,
            handshake_wait: Duration::from_millis(100),
            spare: 1,
            recipient: None,
            every: Duration::from_secs(60),
        }
    }
}

/// Recipient of the number of engines that are wanted.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CapacityRecipient {
    /// Program with its arguments, at least one item; the first is a path that begins with a slash.
    Hook(Vec<String>),
    /// URL that gets a POST.
    Webhook(WebAddress),
}
