//! Connections of one core that have not shown a certificate yet: how many there may be, and which is evicted when
//! there are too many.
//!
//! Anybody who can reach the port can open connections and say nothing. Such connections may have a part of the
//! places at most, each source a part of that, and where another comes the oldest is evicted: an engine's handshake
//! takes milliseconds, and is long over by the time that it would be the oldest of its source.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};

/// Divisor: connections without a certificate may have one in so many of all places.
const PART_OF_PLACES: usize = 4;
/// Divisor: one source may have one in so many of these places.
const PART_OF_SOURCE: usize = 4;
/// Minimum for one source: as many as an engine with many cores begins at once after a restart, even where places
/// are few.
const SOURCE_MIN: usize = 16;

/// Connections from one source are counted together: an IPv4 address, or an IPv6 network, since everybody has a
/// whole one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source(IpAddr);

/// Serial numbers rise with every connection, so that the oldest has the lowest.
pub struct PendingHandshakes {
    waiting: BTreeMap<u64, Source>,
    of_source: HashMap<Source, usize>,
    waiting_max: usize,
    source_max: usize,
}

impl Source {
    pub fn of(address: IpAddr) -> Source {
        Source(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        })
    }
}

impl PendingHandshakes {
    /// Makes the set of one core, in a process that holds so many connections with so many cores.
    pub fn new(connections_max: usize, cores: usize) -> PendingHandshakes {
        let waiting_max = (connections_max / PART_OF_PLACES / cores.max(1)).max(1);
        let source_max = (waiting_max / PART_OF_SOURCE).max(SOURCE_MIN).min(waiting_max);
        PendingHandshakes { waiting: BTreeMap::new(), of_source: HashMap::new(), waiting_max, source_max }
    }

    /// Adds a connection, and returns the one that is evicted for it, if any: the oldest of its source, if that has its
    /// part already; else, if all places are taken, the oldest of the source that has the most.
    pub fn enter(&mut self, serial: u64, source: Source) -> Option<u64> {
        let evicted = if self.of_source.get(&source).is_some_and(|count| *count >= self.source_max) {
            self.oldest_of(source)
        } else if self.waiting.len() >= self.waiting_max {
            self.next_evicted()
        } else {
            None
        };
        evicted.into_iter().for_each(|serial| self.leave(serial));
        self.waiting.insert(serial, source);
        *self.of_source.entry(source).or_default() += 1;
        evicted
    }

    /// Removes a connection that has shown a certificate, or has ended.
    pub fn leave(&mut self, serial: u64) {
        let Some(source) = self.waiting.remove(&serial) else { return };
        if let Some(count) = self.of_source.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.of_source.remove(&source);
            }
        }
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The oldest of the source that has the most, where somebody needs its place.
    pub fn next_evicted(&self) -> Option<u64> {
        let most = self.of_source.iter().max_by_key(|(_, count)| **count)?;
        self.oldest_of(*most.0)
    }

    fn oldest_of(&self, source: Source) -> Option<u64> {
        self.waiting.iter().find(|(_, of)| **of == source).map(|(serial, _)| *serial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::of(text.parse().expect("an address"))
    }

    #[test]
    fn a_source_has_its_part_and_its_oldest_goes_first() {
        let mut pending = PendingHandshakes::new(1024, 2);
        assert_eq!((pending.waiting_max, pending.source_max), (128, 32));
        let (one, other) = (source("10.0.0.1"), source("10.0.0.2"));
        assert!((0..32).all(|serial| pending.enter(serial, one).is_none()));
        assert_eq!((pending.enter(32, one), pending.enter(33, one)), (Some(0), Some(1)));
        assert_eq!(pending.enter(34, other), None, "another source is not concerned");
        pending.leave(2);
        assert_eq!((pending.enter(35, one), pending.enter(36, one)), (None, Some(3)));
        assert_eq!(pending.waiting.len(), 33);
    }

    #[test]
    fn where_all_are_taken_the_source_that_has_the_most_gives_one_up() {
        let mut pending = PendingHandshakes::new(1024, 2);
        for serial in 0..32 {
            pending.enter(serial, source("10.0.0.1"));
        }
        for serial in 32..128 {
            let each = format!("10.0.1.{serial}");
            assert_eq!(pending.enter(serial, source(&each)), None);
        }
        assert_eq!(pending.enter(200, source("10.0.0.9")), Some(0));
        assert_eq!((pending.waiting.len(), pending.next_evicted()), (128, Some(1)));
        (0..300).for_each(|serial| pending.leave(serial));
        assert!(pending.waiting.is_empty() && pending.of_source.is_empty() && pending.next_evicted().is_none());
    }

    #[test]
    fn a_network_of_ipv6_is_one_source_and_few_places_are_still_some() {
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        let mut pending = PendingHandshakes::new(1, 8);
        assert_eq!((pending.enter(1, source("::1")), pending.enter(2, source("::1"))), (None, Some(1)));
    }
}
