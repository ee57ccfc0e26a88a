//! The flow table as this engine knows it.

use std::collections::{BTreeMap, HashMap};

use base64ct::{Base64, Encoding};
use propylon_policy::flows::{FlowTable, wire};
use serde::Deserialize;

use crate::records::{FlowsTable, Slot};

/// A table as it is in etcd, read once: every change of anything in the cluster asks for some of it.
#[derive(Debug, Default, Deserialize)]
#[serde(from = "FlowsTable")]
pub struct KnownTable {
    pub record: FlowsTable,
    /// `None` if it cannot be read.
    pub table: Option<FlowTable>,
    /// Buckets of each engine, by name.
    pub counts: BTreeMap<String, usize>,
    /// Buckets that have a second engine.
    pub moving: usize,
}

impl From<FlowsTable> for KnownTable {
    fn from(record: FlowsTable) -> KnownTable {
        let table = Base64::decode_vec(&record.table).ok().and_then(|bytes| wire::parse(&bytes).ok());
        let buckets = table.as_ref().map_or(&[][..], |table| &table.buckets);
        let mut owned: HashMap<u16, usize> = HashMap::new();
        buckets.iter().for_each(|bucket| *owned.entry(bucket.owner.0).or_default() += 1);
        let count = |slot: &Slot| owned.get(&slot.slot).copied().unwrap_or(0);
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        record.slots.iter().for_each(|slot| *counts.entry(slot.name.clone()).or_default() += count(slot));
        let moving = buckets.iter().filter(|bucket| bucket.has_former()).count();
        KnownTable { record, table, counts, moving }
    }
}
