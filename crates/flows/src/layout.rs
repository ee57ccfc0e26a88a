//! The maps of `bpf/flows.bpf.c`: names, sizes and how a table is written in them.

use std::net::IpAddr;

use propylon_policy::flows::{BUCKETS_MAX, Bucket};

use crate::table::{ENGINES_MAX, Table};

/// Grows with each change of a map's form: another number is another folder of pins.
pub const VERSION: u32 = 2;
pub const PROGRAM: &str = "second_hop";
pub const MAPS: [&str; 8] = ["active", "tables", "chunks", "engines", "vips", "peers", "listeners", "counters"];

const CHUNK_BUCKETS: usize = 512;
/// Chunks of a table, of which there are two.
const CHUNKS: u32 = BUCKETS_MAX / CHUNK_BUCKETS as u32;

/// `struct table`.
pub type TableWords = [u64; 9];
/// `struct chunk`.
pub type Chunk = [u32; CHUNK_BUCKETS];
/// `struct engine`.
pub type EngineWords = [u32; 6];
/// IPv4 as `::ffff:`.
pub type Address = [u8; 16];

/// Which of the two tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    First,
    Second,
}

/// How an engine is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// Number of the interface; 0 is no route.
    pub interface: u32,
    pub mtu: u32,
}

impl Half {
    pub fn of(number: u32) -> Half {
        if number & 1 == 0 { Half::First } else { Half::Second }
    }

    pub fn other(self) -> Half {
        match self {
            Half::First => Half::Second,
            Half::Second => Half::First,
        }
    }

    pub fn number(self) -> u32 {
        match self {
            Half::First => 0,
            Half::Second => 1,
        }
    }

    /// The bit of a table in the values of `vips` and `peers`.
    pub fn bit(self) -> u32 {
        1 << self.number()
    }

    pub fn chunk(self, number: u32) -> u32 {
        self.number() * CHUNKS + number
    }

    pub fn engine(self, slot: u16) -> u32 {
        self.number() * u32::from(ENGINES_MAX) + u32::from(slot)
    }
}

pub fn address(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// # Panics
/// If the table's own engine is not in it, which no table without contradictions is like.
pub fn table_words(table: &Table) -> TableWords {
    let own = table.engines.get(&table.own).expect("a table has its own engine").address;
    let (keys, _) = table.seed.as_chunks::<8>();
    let address = address(own);
    let (parts, _) = address.as_chunks::<8>();
    [
        u64::from_le_bytes(keys[0]),
        u64::from_le_bytes(keys[1]),
        table.buckets.len() as u64,
        u64::from(table.own),
        // As it is in a packet.
        u64::from(table.port.to_be()),
        u64::from(own.is_ipv6()),
        table.generation,
        u64::from_ne_bytes(parts[0]),
        u64::from_ne_bytes(parts[1]),
    ]
}

/// Generation and seed of a table that is in the map; none was written if there are no buckets.
pub fn identity(words: &TableWords) -> Option<(u64, [u8; 16])> {
    let mut seed = [0; 16];
    seed[..8].copy_from_slice(&words[0].to_le_bytes());
    seed[8..].copy_from_slice(&words[1].to_le_bytes());
    (words[2] != 0).then_some((words[6], seed))
}

pub fn chunks(buckets: &[Bucket]) -> impl Iterator<Item = Chunk> + '_ {
    buckets.chunks(CHUNK_BUCKETS).map(|buckets| {
        let mut chunk = [0; CHUNK_BUCKETS];
        for (word, bucket) in chunk.iter_mut().zip(buckets) {
            *word = u32::from(bucket.former.0) << 16 | u32::from(bucket.owner.0);
        }
        chunk
    })
}

pub fn engine_words(engine: IpAddr, path: Path) -> EngineWords {
    let address = address(engine);
    let (parts, _) = address.as_chunks::<4>();
    let part = |number: usize| u32::from_ne_bytes(parts[number]);
    [part(0), part(1), part(2), part(3), path.interface, path.mtu]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_program() {
        let source = include_str!("../bpf/flows.bpf.c");
        for (name, value) in [
            ("BUCKETS_MAX", u64::from(BUCKETS_MAX)),
            ("CHUNK_BUCKETS", CHUNK_BUCKETS as u64),
            ("ENGINES_MAX", u64::from(ENGINES_MAX)),
            ("VIPS_MAX", crate::table::VIPS_MAX as u64),
        ] {
            assert!(source.contains(&format!("\t{name} = {value},")), "{name} is not {value}");
        }
        for map in MAPS {
            assert!(source.contains(&format!("SECTION(\"maps\") struct map {map} =")), "no map {map}");
        }
    }
}
