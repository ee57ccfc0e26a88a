//! How many connections each source has, counted for the whole process: a source's connections come in on all cores, and
//! one that has its share on every core would have it many times over.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::admission::Source;

/// Tables, so that cores seldom meet at one. Each is locked for a look-up.
const TABLES: usize = 64;

/// Connections by source. It has an entry for each source that has a connection and none for others: as many as there are
/// connections at the most. Trees rather than hash tables, since the keys are the peers' choice.
#[derive(Debug)]
pub struct Sources {
    max: u32,
    tables: [Mutex<BTreeMap<Source, u32>>; TABLES],
}

impl Sources {
    /// `max` is what a source may have at once.
    #[must_use]
    pub fn new(max: u32) -> Sources {
        Sources { max, tables: [const { Mutex::new(BTreeMap::new()) }; TABLES] }
    }

    /// Counts one more connection, or says no.
    #[must_use]
    pub fn take(&self, peer: IpAddr) -> bool {
        let source = Source::from(peer);
        let mut table = self.table(source);
        let count = table.entry(source).or_default();
        let allowed = *count < self.max;
        *count += u32::from(allowed);
        allowed
    }

    /// Once for each [`Sources::take`] that said yes.
    pub fn give_back(&self, peer: IpAddr) {
        let source = Source::from(peer);
        let mut table = self.table(source);
        match table.entry(source) {
            Entry::Occupied(mut entry) if *entry.get() > 1 => *entry.get_mut() -= 1,
            Entry::Occupied(entry) => drop(entry.remove()),
            Entry::Vacant(_) => debug_assert!(false, "a connection ends that was not counted"),
        }
    }

    fn table(&self, source: Source) -> MutexGuard<'_, BTreeMap<Source, u32>> {
        // Neighbours are in different tables; that somebody could choose theirs only costs them.
        let bits = match source {
            Source::V4(bits) => u64::from(bits),
            Source::V6(bits) => bits,
        };
        let table = bits.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58;
        // Nothing in here panics.
        self.tables[table as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_source_has_so_many_and_not_one_more_until_one_ends() {
        let sources = Sources::new(2);
        assert!(sources.take(ip("192.0.2.1")) && sources.take(ip("::ffff:192.0.2.1")));
        assert!(!sources.take(ip("192.0.2.1")));
        assert!(sources.take(ip("192.0.2.2")));
        sources.give_back(ip("192.0.2.1"));
        assert!(sources.take(ip("192.0.2.1")));
    }

    #[test]
    fn an_ipv6_network_is_one_source() {
        let sources = Sources::new(1);
        assert!(sources.take(ip("2001:db8:0:1::1")));
        assert!(!sources.take(ip("2001:db8:0:1:ffff::2")));
        assert!(sources.take(ip("2001:db8:0:2::1")));
    }

    #[test]
    fn the_tables_hold_only_those_who_are_there_for_any_seed() {
        for seed in 0..50 {
            let mut random = fastrand::Rng::with_seed(seed);
            let sources = Sources::new(3);
            let mut model: HashMap<IpAddr, u32> = HashMap::new();
            for _ in 0..3_000 {
                let peer = IpAddr::from([192, 0, 2, random.u8(0..40)]);
                let count = model.entry(peer).or_default();
                if random.bool() {
                    let taken = sources.take(peer);
                    assert_eq!(taken, *count < 3, "seed {seed}");
                    *count += u32::from(taken);
                } else if *count > 0 {
                    sources.give_back(peer);
                    *count -= 1;
                }
            }
            let entries: usize = sources.tables.iter().map(|table| table.lock().unwrap().len()).sum();
            assert_eq!(entries, model.values().filter(|count| **count > 0).count(), "seed {seed}");
        }
    }

    #[test]
    fn cores_that_count_at_once_lose_nothing() {
        let sources = Sources::new(1_000_000);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for n in 0..10_000_u32 {
                        assert!(sources.take(IpAddr::from((n % 7).to_be_bytes())));
                    }
                    (0..10_000_u32).for_each(|n| sources.give_back(IpAddr::from((n % 7).to_be_bytes())));
                });
            }
        });
        assert!(sources.tables.iter().all(|table| table.lock().unwrap().is_empty()));
    }
}
