//! Token buckets by key, each in one word: the time at which the bucket will be full again (the generic cell rate
//! algorithm, ITU-T I.371). A bucket that is full is equal to none, so its place is free.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use super::{LOOKS_MAX, WAYS, set_of, sets};

/// A rate with its burst. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    count: u64,
    period: u64,
    /// Time that an empty bucket takes to fill.
    pub(super) burst: u64,
    /// Time in which one unit comes back.
    unit: u64,
}

impl Rate {
    /// So many units a period; `burst` units at once, after a time without any. All of them are at least 1.
    #[must_use]
    pub fn new(count: u64, period: u64, burst: u64) -> Rate {
        let bare = Rate { count, period, burst: 0, unit: 0 };
        Rate { burst: bare.cost(burst), unit: bare.cost(1), ..bare }
    }

    /// Time in which so many units come back.
    pub(super) fn cost(&self, units: u64) -> u64 {
        let cost = u128::from(units) * u128::from(self.period) / u128::from(self.count.max(1));
        u64::try_from(cost).unwrap_or(u64::MAX)
    }
}

/// Outcome of a request for units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Units were there. `evicted`: another key's bucket, which was not full, had to be forgotten for this one's.
    Yes { evicted: bool },
    /// Units are missing; nothing was taken.
    No {
        /// Time in nanoseconds after which they will be there.
        wait: u64,
    },
}

/// Token buckets of a rate, for a fixed number of keys.
#[derive(Debug)]
pub struct RateTable {
    rate: Rate,
    sets: Box<[Set]>,
}

/// Eight buckets, on a pair of cache lines: the prefetcher fetches pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Set {
    /// Keys; 0 where there is none.
    keys: [AtomicU64; WAYS],
    /// Time at which the bucket is full, by place.
    full_at: [AtomicU64; WAYS],
}

impl Set {
    /// The first place of a key is its place.
    fn find(&self, key: u64) -> Option<usize> {
        self.keys.iter().position(|known| known.load(Acquire) == key)
    }

    /// Makes a place the key's, with a full bucket: a free one, or the one whose bucket lacks the least. `None`:
    /// another core was faster. Says whether a bucket was forgotten that was not full.
    fn claim(&self, key: u64, now: u64) -> Option<(usize, bool)> {
        let times: [u64; WAYS] = std::array::from_fn(|place| self.full_at[place].load(Acquire));
        let free = times.iter().position(|time| *time <= now);
        let place = free.or_else(|| (0..WAYS).min_by_key(|place| times[*place]))?;
        let evicted = times[place] > now;
        let known = self.keys[place].load(Acquire);
        // The key may have come by now, in this place or in another.
        if self.find(key).is_some() {
            return None;
        }
        if evicted {
            self.full_at[place].compare_exchange(times[place], now, AcqRel, Acquire).ok()?;
        }
        self.keys[place].compare_exchange(known, key, AcqRel, Acquire).ok()?;
        // Two cores that claim two places at once both see it here, and agree on the first.
        match self.find(key) {
            Some(first) if first < place => {
                let _ = self.keys[place].compare_exchange(key, 0, AcqRel, Acquire);
                None
            }
            _ => Some((place, evicted)),
        }
    }
}

impl RateTable {
    /// For at least so many keys.
    #[must_use]
    pub fn new(rate: Rate, keys: usize) -> RateTable {
        RateTable { rate, sets: sets(keys) }
    }

    /// Takes a unit for a key. `now` is in nanoseconds, on a clock that all cores share.
    pub fn take(&self, key: u64, now: u64) -> Taken {
        let (full_at, evicted) = self.bucket(key, now);
        let cost = self.rate.unit;
        let more = |time: u64| {
            let next = time.max(now).saturating_add(cost);
            (next - now <= self.rate.burst).then_some(next)
        };
        match full_at.fetch_update(AcqRel, Acquire, more) {
            Ok(_) => Taken::Yes { evicted },
            Err(time) => Taken::No { wait: time.max(now).saturating_add(cost) - now - self.rate.burst },
        }
    }

    /// Gives back units that were taken and are not used after all.
    pub fn give_back(&self, key: u64, units: u64) {
        let set = set_of(&self.sets, key.max(1));
        if let Some(place) = set.find(key.max(1)) {
            let cost = self.rate.cost(units);
            let _ = set.full_at[place].fetch_update(AcqRel, Acquire, |time| Some(time.saturating_sub(cost)));
        }
    }

    /// Whether a key has anything left; `No` with the time until it has.
    pub fn look(&self, key: u64, now: u64) -> Taken {
        let set = set_of(&self.sets, key.max(1));
        let lacks = set.find(key.max(1)).map_or(0, |place| set.full_at[place].load(Acquire).saturating_sub(now));
        match lacks.checked_sub(self.rate.burst) {
            Some(wait) => Taken::No { wait: wait.saturating_add(self.rate.unit.max(1)) },
            None => Taken::Yes { evicted: false },
        }
    }

    /// Takes so many units for the first time at which they are there, behind those that others have taken before:
    /// turns come in the order in which they were asked for. Says how long that is, and whether another key's bucket
    /// had to be forgotten.
    pub fn reserve(&self, key: u64, units: u64, now: u64) -> (u64, bool) {
        let (full_at, evicted) = self.bucket(key, now);
        let next = |time: u64| time.max(now).saturating_add(self.rate.cost(units));
        let before = full_at.fetch_update(AcqRel, Acquire, |time| Some(next(time))).unwrap_or_else(|time| time);
        ((next(before) - now).saturating_sub(self.rate.burst), evicted)
    }

    /// Takes so many units whether they are there or not: what is missing has to come back before [`RateTable::look`]
    /// says yes again. Says whether another key's bucket had to be forgotten.
    pub fn charge(&self, key: u64, units: u64, now: u64) -> bool {
        let (full_at, evicted) = self.bucket(key, now);
        let cost = self.rate.cost(units);
        let _ = full_at.fetch_update(AcqRel, Acquire, |time| Some(time.max(now).saturating_add(cost)));
        evicted
    }

    /// The bucket of a key, made if there is none.
    fn bucket(&self, key: u64, now: u64) -> (&AtomicU64, bool) {
        let key = key.max(1);
        let set = set_of(&self.sets, key);
        let mut evicted = false;
        for _ in 0..LOOKS_MAX {
            if let Some(place) = set.find(key) {
                return (&set.full_at[place], evicted);
            }
            if let Some((place, forgot)) = set.claim(key, now) {
                evicted = forgot;
                return (&set.full_at[place], evicted);
            }
        }
        // Others have changed the set all the while: any bucket of it serves for this one request.
        (&set.full_at[0], evicted)
    }
}
