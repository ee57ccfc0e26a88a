//! Files between this thread and the process that loads the flow table into the kernel.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::Deserialize;

use crate::records::FlowsRecord;

/// A status that is older is of a process that is gone.
const STATUS_AGE_MAX: Duration = Duration::from_secs(5);
const STATUS_BYTES_MAX: u64 = 4 << 20;

/// The file that that process writes each second.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    generation: u64,
    /// Connections of each bucket that this engine had before.
    former: Vec<(u32, u64)>,
}

/// The process's state; `None` if none runs.
pub fn status(path: &Path) -> Option<FlowsRecord> {
    let metadata = std::fs::metadata(path).ok()?;
    let age = SystemTime::now().duration_since(metadata.modified().ok()?).unwrap_or_default();
    if age > STATUS_AGE_MAX || metadata.len() > STATUS_BYTES_MAX {
        return None;
    }
    let status: Status = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let former: BTreeMap<u32, u64> = status.former.into_iter().collect();
    Some(FlowsRecord { generation: status.generation, former })
}
