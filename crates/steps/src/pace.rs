//! Pace of bodies that share it by a key, compiled: buckets for all cores, which outlive a reload, and the part of one
//! body in them.

use std::hash::DefaultHasher;
use std::sync::Arc;

use propylon_config::{Throttle, ThrottleKey};
use propylon_policy::limits::RateTable;
use propylon_policy::throttle::{Turn, shared};

use crate::limits::{Asked, Secret, key_of};

/// Buckets of one route, for all cores.
pub struct Pace {
    by: ThrottleKey,
    /// Hasher that has taken in the secret.
    hasher: DefaultHasher,
    download: Option<Table>,
    upload: Option<Table>,
}

struct Table {
    buckets: RateTable,
    per_second: u64,
}

/// Way of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the server to the client.
    Download,
    /// From the client to the server.
    Upload,
}

impl Pace {
    /// The buckets of a throttle, all of them full; `None`: each of its requests has a pace of its own.
    pub fn of(throttle: &Throttle, secret: Secret) -> Option<Pace> {
        let by = throttle.by.clone()?;
        let keys = if by.parts.is_empty() { 1 } else { by.keys as usize };
        let table = |rate: Option<u64>| rate.map(|per_second| Table { buckets: shared(per_second, keys), per_second });
        let (download, upload) = (table(throttle.download), table(throttle.upload));
        Some(Pace { by, hasher: secret.hasher(), download, upload })
    }

    /// The key of a request.
    pub fn key(&self, asked: &Asked<'_>) -> u64 {
        key_of(&self.by.parts, (self.by.ipv4_prefix, self.by.ipv6_prefix), asked, self.hasher.clone())
    }

    fn table(&self, way: Way) -> Option<&Table> {
        match way {
            Way::Download => self.download.as_ref(),
            Way::Upload => self.upload.as_ref(),
        }
    }
}

/// Part of one body in its key's pace. What it has taken and not used goes back when it is dropped.
pub struct Share {
    pace: Arc<Pace>,
    way: Way,
    turn: Turn,
}

impl Share {
    /// The part of a body of this key, whose first `free` bytes are not counted; `None`: bodies of this way have no
    /// pace.
    pub fn of((pace, key): (&Arc<Pace>, u64), way: Way, free: u64) -> Option<Share> {
        let turn = Turn::new(key, pace.table(way)?.per_second, free);
        Some(Share { pace: Arc::clone(pace), way, turn })
    }

    /// Bytes that may go at `now`, in nanoseconds on a clock that all cores share; `forgot` is called where another key
    /// had to make room.
    ///
    /// # Errors
    /// The time until some may.
    pub fn allowed(&mut self, now: u64, forgot: impl FnOnce()) -> Result<u64, u64> {
        match self.pace.table(self.way) {
            Some(table) => self.turn.allowed(&table.buckets, now, forgot),
            None => Ok(u64::MAX),
        }
    }

    /// Takes note of bytes that have gone.
    pub fn took(&mut self, bytes: u64, now: u64) {
        if let Some(table) = self.pace.table(self.way) {
            self.turn.took(bytes, &table.buckets, now);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(table) = self.pace.table(self.way) {
            self.turn.end(&table.buckets);
        }
    }
}
