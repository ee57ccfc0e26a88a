//! A limit over all cores that no core writes at another's side: each core has credits on cache lines of its own, takes
//! there and gives back there, and goes to another's only when its own are used up
//! (`docs/decisions/0049-shared-writes.md`).
//!
//! A credit is given back where it was taken for, so credits gather where they are wanted: a core that has had so many
//! at once finds as many at home. A credit that comes from another core's lines is taken there in one step, and is
//! between the two at no time: a core that looks for one meanwhile misses none.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use Ordering::{AcqRel, Acquire, SeqCst};

/// Looks at all cores' credits that a core takes before it is refused, when each time another core has given one back
/// and a third has been faster.
const LOOKS_MAX: u32 = 64;

/// A count of things in use that never exceeds its limit.
#[derive(Debug)]
pub struct Credits {
    limit: Lines<AtomicU32>,
    /// Credits that are to vanish since the limit was lowered; nobody is let through before. Not written otherwise.
    owed: Lines<AtomicU32>,
    cells: Box<[Lines<Cell>]>,
}

/// A pair of cache lines: the prefetcher fetches them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Lines<T>(T);

/// Credits of a core that nobody has taken: below, their number; above, a count of changes for the more, so that two
/// looks that find the same have missed nothing in between.
#[derive(Debug, Default)]
struct Cell(AtomicU64);

impl Cell {
    fn free(&self) -> u32 {
        free(self.0.load(Acquire))
    }

    fn take(&self) -> bool {
        self.0.fetch_update(AcqRel, Acquire, |word| (free(word) > 0).then(|| word - 1)).is_ok()
    }

    fn take_all(&self) -> u32 {
        let taken = self.0.fetch_update(AcqRel, Acquire, |word| Some(word - u64::from(free(word))));
        taken.map_or(0, free)
    }

    fn put(&self, credits: u32) {
        let more = |word: u64| {
            let changes = (word >> 32).wrapping_add(1) << 32;
            Some(changes | u64::from(free(word).saturating_add(credits)))
        };
        let _ = self.0.fetch_update(AcqRel, Acquire, more);
    }
}

fn free(word: u64) -> u32 {
    word as u32
}

impl Credits {
    /// For so many cores, which have the credits in equal parts at first.
    #[must_use]
    pub fn new(limit: u32, cores: usize) -> Credits {
        assert!(cores > 0, "nobody would take a credit");
        let cells = (0..cores).map(|_| Lines::default()).collect();
        let credits = Credits { limit: Lines(AtomicU32::new(limit)), owed: Lines::default(), cells };
        credits.spread(limit);
        credits
    }

    /// How many may be taken at once.
    pub fn limit(&self) -> u32 {
        self.limit.0.load(SeqCst)
    }

    /// Changes the limit; one thread at a time may. Taken ones stay so: with more than the new limit allows, nobody is
    /// let through until enough were given back. A core that looks while the limit is being lowered may be refused.
    pub fn set_limit(&self, limit: u32) {
        let before = self.limit.0.swap(limit, SeqCst);
        if limit >= before {
            // Debts first: what those who hold too many give back then is free again.
            let raised = limit - before;
            self.spread(raised - self.pay(raised));
            return;
        }
        self.owed.0.fetch_add(before - limit, SeqCst);
        for Lines(cell) in &self.cells {
            let found = cell.take_all();
            let rest = found - self.pay(found);
            if rest > 0 {
                cell.put(rest);
            }
        }
    }

    /// Takes one for a core, to be given back for the same; false if all are taken.
    #[must_use]
    pub fn take(&self, core: usize) -> bool {
        for _ in 0..LOOKS_MAX {
            if self.cells[core].0.take() || self.take_elsewhere(core) {
                if self.owed.0.load(SeqCst) == 0 || self.pay(1) == 0 {
                    return true;
                }
            } else if self.are_all_taken() {
                return false;
            }
        }
        false
    }

    /// Gives one back, once for each that was taken for this core.
    pub fn give_back(&self, core: usize) {
        if self.owed.0.load(SeqCst) == 0 || self.pay(1) == 0 {
            self.cells[core].0.put(1);
        }
    }

    /// Taken at present; what others do meanwhile is in it or not.
    pub fn taken(&self) -> u32 {
        let free: u32 = self.cells.iter().map(|cell| cell.0.free()).fold(0, u32::saturating_add);
        self.limit().saturating_add(self.owed.0.load(SeqCst)).saturating_sub(free)
    }

    /// Takes one from the core that has the most.
    fn take_elsewhere(&self, core: usize) -> bool {
        let others = self.cells.iter().enumerate().filter(|(index, _)| *index != core).map(|(_, cell)| &cell.0);
        others.max_by_key(|cell| cell.free()).is_some_and(Cell::take)
    }

    /// Whether there was a moment at which no core had one: two looks have found the same. Between those at one core
    /// nothing has been put there, and nothing taken, since there was nothing.
    fn are_all_taken(&self) -> bool {
        let look = || self.cells.iter().map(|cell| cell.0.0.load(SeqCst));
        let looked: Changes = look().collect();
        looked.none_is_free && looked == look().collect()
    }

    /// Pays debts with so many credits at most; returns with how many.
    fn pay(&self, credits: u32) -> u32 {
        let pay = |owed: u32| (owed > 0 && credits > 0).then(|| owed - owed.min(credits));
        self.owed.0.fetch_update(SeqCst, SeqCst, pay).map_or(0, |owed| owed.min(credits))
    }

    /// Puts so many in equal parts.
    fn spread(&self, credits: u32) {
        let count = self.cells.len() as u32;
        for (Lines(cell), core) in self.cells.iter().zip(0..) {
            let part = credits / count + u32::from(core < credits % count);
            if part > 0 {
                cell.put(part);
            }
        }
    }
}

/// One look at all cores.
#[derive(PartialEq, Eq)]
struct Changes {
    none_is_free: bool,
    /// Sum over all cells: one of counts that only grow is the same only if each of them is.
    sum: u64,
}

impl FromIterator<u64> for Changes {
    fn from_iter<I: IntoIterator<Item = u64>>(words: I) -> Changes {
        let begin = Changes { none_is_free: true, sum: 0 };
        words.into_iter().fold(begin, |looked, word| Changes {
            none_is_free: looked.none_is_free && free(word) == 0,
            sum: looked.sum.wrapping_add(word >> 32),
        })
    }
}

#[cfg(test)]
mod tests;
