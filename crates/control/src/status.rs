//! Status of the configuration in use, which the reload writes and other tasks of the main thread read.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use propylon_proxy::snapshot::Snapshot;
use serde_json::Value;

/// The configuration in use, as other tasks on this thread see it.
pub struct ConfigStatus {
    pub snapshot: Arc<Snapshot>,
    /// Count of earlier snapshots still in use; `oldest_age` is the time since the oldest was succeeded.
    pub older: usize,
    pub oldest_age: Duration,
    /// Time and result of the last attempt to apply something.
    pub last: Option<(SystemTime, &'static str)>,
    /// Source of the configuration: the file's name and a summary of what the admin API has changed.
    pub origin: Value,
    /// Sentences for people: how `process.state` differs from the file.
    pub overrides: Vec<String>,
}
