//! Values in etcd: what engines and their leader tell each other, as JSON.
//!
//! Times are seconds since 1970 (UTC) by the writer's clock and are shown, never compared: whoever waits for something
//! measures from when it was heard of.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Deserializer, Serialize};

use crate::percent::WeightPercent;

/// Changes of a configuration: one each second for longer than anybody runs a cluster. JavaScript counts no further.
const SERIAL_MAX: u64 = 1 << 53;

/// An engine, under its lease: what changes seldom. `engines/NAME`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineRecord {
    /// Random, kept in the state folder: the same engine after a restart or an upgrade.
    pub instance: String,
    /// Random, of this process.
    pub process: String,
    /// Random, made at a start and handed on in an upgrade: whose connections the machine's system has.
    pub lineage: String,
    pub version: String,
    /// Other engines reach it there.
    pub address: Option<IpAddr>,
    pub cores: u32,
    /// Start of the process.
    pub since: u64,
    /// Listeners are open, certificates are there, and backends have servers.
    pub is_ready: bool,
    /// Since when it drains.
    pub draining: Option<u64>,
    /// The cluster's configuration that it serves; 0 is its own file.
    pub serial: u64,
    /// The candidate that it serves in place of that.
    pub candidate: Option<String>,
    /// The engine's own count of configurations.
    pub generation: u64,
    /// The flow table that its kernel goes by; `None` where no flow table is run.
    pub flows: Option<FlowsRecord>,
    /// Whether its address is announced; `None` where it announces nothing.
    pub announced: Option<bool>,
    pub problems: Vec<String>,
}

/// An engine's end of the flow table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlowsRecord {
    pub generation: u64,
    /// Connections of buckets that this engine had before, where there are any.
    pub former: BTreeMap<u32, u64>,
}

/// Figures of an engine, each second: sums since its process began, and levels. Apart from the rest, in
/// `propylon/CLUSTER@load/NAME`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadRecord {
    /// The writer's clock.
    pub at: u64,
    /// Share of its cores in the last second, 0 to 1.
    pub cpu: f64,
    pub connections: u64,
    /// Bytes resident, and its limit; 0 without one.
    pub memory: u64,
    pub memory_limit: u64,
    pub requests: u64,
    /// Requests that ended badly for the engine's or a server's fault.
    pub faults: u64,
    pub handshakes: u64,
    pub handshake_failures: u64,
    /// In the last second.
    pub requests_per_second: f64,
    pub faults_per_second: f64,
    pub handshakes_per_second: f64,
    /// Time of all requests together.
    pub request_microseconds: u64,
    /// 99th percentile of the last seconds.
    pub p99_microseconds: u64,
    /// Longest that a handshake has waited for its turn lately.
    pub handshake_wait_microseconds: u64,
}

/// A configuration that the cluster has or had. `config/current`, `config/history/SERIAL`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfigRecord {
    #[serde(deserialize_with = "serial")]
    pub serial: u64,
    pub text: String,
    pub is_json: bool,
    pub by: String,
    pub why: String,
    pub at: u64,
}

/// How far a candidate has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Every engine compiles it, and none serves it.
    #[default]
    Checking,
    /// A few engines serve it and are compared with the others.
    Canary,
    /// Step by step the others follow.
    Rolling,
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Phase::Checking => "checking",
            Phase::Canary => "canary",
            Phase::Rolling => "rolling",
        }
    }
}

/// A configuration on its way. `config/candidate`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Candidate {
    pub id: String,
    pub config: ConfigRecord,
    pub phase: Phase,
    pub canary: Vec<String>,
    /// Engines that serve it, or are about to.
    pub serving: Vec<String>,
}

/// An engine's finding when it compiled a candidate. `config/verdicts/ID/NAME`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verdict {
    pub passed: bool,
    /// With line and column.
    pub problems: Vec<String>,
}

/// How the last candidate ended. `config/outcome`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutcomeRecord {
    pub id: String,
    pub serial: u64,
    pub applied: bool,
    pub why: String,
    pub engine: Option<String>,
    pub problems: Vec<String>,
    pub at: u64,
}

/// The engine that leads. `leader`, under its lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeaderRecord {
    pub engine: String,
    pub process: String,
}

/// An engine is to drain. `drains/NAME`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainRecord {
    pub by: String,
    pub at: u64,
}

/// An engine is to have more or less than its share of new connections. `weights/NAME`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightRecord {
    pub percent: WeightPercent,
    #[serde(default)]
    pub by: String,
    #[serde(default)]
    pub at: u64,
}

/// The flow table of all shared addresses. `flows`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlowsTable {
    pub generation: u64,
    pub port: u16,
    pub vips: Vec<IpAddr>,
    pub slots: Vec<Slot>,
    /// The bytes of `propylon_policy::flows::wire`, in base64.
    pub table: String,
}

/// An engine's number in the flow table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Slot {
    pub slot: u16,
    pub name: String,
    /// Lineage of the engine when it got the number: another one has none of its connections.
    pub lineage: String,
    pub address: Option<IpAddr>,
}

/// How many engines are wanted. `capacity`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CapacityRecord {
    pub wanted: u32,
    pub engines: u32,
    pub reason: String,
    pub at: u64,
}

/// Reads a value; the error says which key holds what cannot be read.
pub fn read<T: for<'a> Deserialize<'a>>(key: &str, value: &[u8]) -> Result<T, String> {
    let wrong = |what: &dyn std::fmt::Display| {
        format!("the value of {key} in etcd cannot be read ({what}): it is left alone; write it again, or remove it")
    };
    // A list would be taken for a record's fields in their order.
    if value.trim_ascii_start().first() != Some(&b'{') {
        return Err(wrong(&"it is no object of JSON"));
    }
    serde_json::from_slice(value).map_err(|error| wrong(&error))
}

/// A serial number after which there is room for more.
fn serial<'a, D: Deserializer<'a>>(deserializer: D) -> Result<u64, D::Error> {
    let serial = u64::deserialize(deserializer)?;
    if serial > SERIAL_MAX {
        return Err(serde::de::Error::custom(format!("the serial number {serial} is above {SERIAL_MAX}")));
    }
    Ok(serial)
}

/// A value as it is written.
pub fn written<T: Serialize>(record: &T) -> Vec<u8> {
    serde_json::to_vec(record).expect("records have no keys but texts")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_a_later_version_is_read_and_one_that_is_damaged_is_named() {
        let later = br#"{"serial":3,"text":"x","colour":"red"}"#;
        assert_eq!(read::<ConfigRecord>("config/current", later).unwrap().serial, 3);
        for damaged in ["{\"serial\":", "[]", "[3,\"x\"]", "null", "", "{\"serial\":18446744073709551615}"] {
            let error = read::<ConfigRecord>("config/current", damaged.as_bytes()).unwrap_err();
            assert!(error.starts_with("the value of config/current in etcd cannot be read"), "{damaged}: {error}");
        }
        let record =
            EngineRecord { flows: Some(FlowsRecord { generation: 1, former: [(3, 4)].into() }), ..Default::default() };
        assert_eq!(read::<EngineRecord>("engines/a", &written(&record)).unwrap(), record);
    }
}
