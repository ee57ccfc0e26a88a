//! The flow table as bytes: four for each bucket, whatever the number of engines.
//!
//! | bytes | content, integers big endian |
//! |---|---|
//! | 4 | `PFT1` |
//! | 8 | generation |
//! | 16 | seed |
//! | 2 | number of engines, then 2 for each, in rising order |
//! | 4 | number of buckets, then owner and former owner, 2 each |

use super::{BUCKETS_MAX, Bucket, EngineId, FlowTable};

const MAGIC: &[u8; 4] = b"PFT1";
const HEAD_BYTES: usize = 4 + 8 + 16 + 2 + 4;

/// Why bytes are no flow table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Not begun with `PFT1`: written by a version that this one does not know.
    Version,
    /// Longer or shorter than its own counts say.
    Length,
    /// No power of two, or over [`BUCKETS_MAX`].
    Buckets,
    /// Engines that are not in rising order.
    Engines,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, to: &mut std::fmt::Formatter) -> std::fmt::Result {
        to.write_str(match self {
            Malformed::Version => "the flow table is of a version that this engine does not know; upgrade the engine",
            Malformed::Length => "the flow table is cut short, or longer than it says; have the leader write it again",
            Malformed::Buckets => "the flow table's number of buckets is no power of two up to 131072",
            Malformed::Engines => "the flow table lists its engines out of order",
        })
    }
}

pub fn bytes(table: &FlowTable) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length(table.engines.len(), table.buckets.len()));
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&table.generation.to_be_bytes());
    bytes.extend_from_slice(&table.seed);
    bytes.extend_from_slice(&(table.engines.len() as u16).to_be_bytes());
    for engine in &table.engines {
        bytes.extend_from_slice(&engine.0.to_be_bytes());
    }
    bytes.extend_from_slice(&(table.buckets.len() as u32).to_be_bytes());
    for bucket in &table.buckets {
        bytes.extend_from_slice(&bucket.owner.0.to_be_bytes());
        bytes.extend_from_slice(&bucket.former.0.to_be_bytes());
    }
    bytes
}

/// Length of a table as bytes.
pub fn length(engines: usize, buckets: usize) -> usize {
    HEAD_BYTES + 2 * engines + 4 * buckets
}

pub fn parse(bytes: &[u8]) -> Result<FlowTable, Malformed> {
    let mut rest = bytes;
    if &take::<4>(&mut rest)? != MAGIC {
        return Err(Malformed::Version);
    }
    let generation = u64::from_be_bytes(take(&mut rest)?);
    let seed = take(&mut rest)?;
    let count = usize::from(u16::from_be_bytes(take(&mut rest)?));
    let mut engines = Vec::new();
    for _ in 0..count {
        engines.push(engine(&mut rest)?);
    }
    if !engines.is_sorted_by(|left, right| left < right) {
        return Err(Malformed::Engines);
    }
    let count = u32::from_be_bytes(take(&mut rest)?);
    if !count.is_power_of_two() || count > BUCKETS_MAX {
        return Err(Malformed::Buckets);
    }
    if rest.len() != 4 * count as usize {
        return Err(Malformed::Length);
    }
    let mut buckets = Vec::with_capacity(count as usize);
    for _ in 0..count {
        buckets.push(Bucket { owner: engine(&mut rest)?, former: engine(&mut rest)? });
    }
    Ok(FlowTable { generation, seed, engines: engines.into_iter().collect(), buckets })
}

fn engine(rest: &mut &[u8]) -> Result<EngineId, Malformed> {
    Ok(EngineId(u16::from_be_bytes(take(rest)?)))
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Malformed> {
    let (taken, left) = rest.split_first_chunk::<N>().ok_or(Malformed::Length)?;
    *rest = left;
    Ok(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> FlowTable {
        let mut table = FlowTable::first([9; 16], 1024, EngineId(3));
        table.engines.insert(EngineId(500));
        table.buckets[17] = Bucket { owner: EngineId(500), former: EngineId(3) };
        table.generation = 1 << 40;
        table
    }

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let written = bytes(&table());
        assert_eq!(written.len(), length(2, 1024));
        assert_eq!(parse(&written), Ok(table()));
    }

    #[test]
    fn a_table_that_is_cut_anywhere_is_refused() {
        let written = bytes(&table());
        for end in 0..written.len() {
            assert_eq!(parse(&written[..end]), Err(Malformed::Length), "{end}");
        }
        assert_eq!(parse(&[&written[..], &[0]].concat()), Err(Malformed::Length));
    }

    #[test]
    fn tables_of_other_versions_and_sizes_are_refused() {
        let written = bytes(&table());
        let changed = |at: usize, byte: u8| {
            let mut bytes = written.clone();
            bytes[at] = byte;
            parse(&bytes)
        };
        assert_eq!(changed(3, b'2'), Err(Malformed::Version));
        assert_eq!(changed(34, 0xff), Err(Malformed::Buckets));
        assert_eq!(changed(37, 1), Err(Malformed::Buckets));
        assert_eq!(changed(30, 0xff), Err(Malformed::Engines));
    }
}
