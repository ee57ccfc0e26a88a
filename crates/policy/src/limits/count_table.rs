//! Counts of requests in progress by key. A place is one word, which has a part of the key's hash above and the count
//! below, so that a place changes its key only while nothing is counted there.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use super::{LOOKS_MAX, WAYS, set_of, sets};

const COUNT_BITS: u32 = 24;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// Counts for a fixed number of keys. A key that finds no place is not counted, and is let through: as many other keys
/// of its set have requests in progress.
#[derive(Debug)]
pub struct CountTable {
    max: u64,
    sets: Box<[Set]>,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Set([AtomicU64; WAYS]);

/// Place at which a request is counted, for [`CountTable::give_back`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what is counted is given back"]
pub struct Place(Option<(usize, usize)>);

impl Place {
    /// Whether the request is counted: false if there was no room.
    pub fn is_counted(&self) -> bool {
        self.0.is_some()
    }
}

fn count(word: u64) -> u64 {
    word & COUNT_MAX
}

impl Set {
    /// Requests of a key: two cores may have counted its first ones in two places.
    fn sum(&self, tag: u64) -> u64 {
        let words = self.0.iter().map(|word| word.load(SeqCst));
        words.filter(|word| word & !COUNT_MAX == tag).map(count).sum()
    }

    /// The place of a key, or one where nothing is counted.
    fn find(&self, tag: u64) -> Option<(usize, u64)> {
        let words = || self.0.iter().map(|word| word.load(SeqCst)).enumerate();
        let own = words().find(|(_, word)| word & !COUNT_MAX == tag && count(*word) > 0);
        own.or_else(|| words().find(|(_, word)| count(*word) == 0))
    }
}

impl CountTable {
    /// `max` requests at once for each of at least so many keys; at most 2^24 - 1.
    #[must_use]
    pub fn new(max: u32, keys: usize) -> CountTable {
        CountTable { max: u64::from(max).min(COUNT_MAX), sets: sets(keys) }
    }

    /// Counts one more request of a key; `None` if it has as many as it may. The limit is not exceeded by any request
    /// that is counted; where several cores ask for the last place at once it may happen that none gets it.
    pub fn take(&self, key: u64) -> Option<Place> {
        let set = set_of(&self.sets, key);
        let index = key as usize & (self.sets.len() - 1);
        let tag = key & !COUNT_MAX;
        for _ in 0..LOOKS_MAX {
            if set.sum(tag) >= self.max {
                return None;
            }
            let Some((place, word)) = set.find(tag) else { return Some(Place(None)) };
            let next = tag | (count(word) + 1);
            if set.0[place].compare_exchange(word, next, SeqCst, SeqCst).is_err() {
                continue;
            }
            // Each core counts itself first and looks then: of two that exceed the limit one sees the other.
            if set.sum(tag) > self.max {
                set.0[place].fetch_sub(1, SeqCst);
                return None;
            }
            return Some(Place(Some((index, place))));
        }
        Some(Place(None))
    }

    /// Ends the count of a request, once for each place.
    pub fn give_back(&self, place: &Place) {
        if let Place(Some((index, place))) = place {
            let before = self.sets[*index].0[*place].fetch_sub(1, SeqCst);
            debug_assert!(count(before) > 0, "a request ends that was not counted");
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.sets.iter().flat_map(|set| &set.0).all(|word| count(word.load(SeqCst)) == 0)
    }
}
