//! A budget of repeats over all cores: a share of the requests, so that trouble is not multiplied, and a number for
//! each second, so that little traffic has repeats too.
//!
//! A request writes a line of its own core's, and only while less than all is saved there. Whoever spends takes from
//! its core first and then from the others, so that what one core has earned is not lost to another in trouble. What is
//! for each second lies on one line, which is written only by those for whom nothing is saved.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Parts of a repeat: what a request earns is as many of them as the share has hundredths of a percent.
const PARTS: u32 = 10_000;
/// Parts that each core can save up: a burst of 256, as when a server with that many requests dies.
const SAVED_PARTS_MAX: u32 = 256 * PARTS;
/// Looks of one who finds enough for a repeat, and then finds that others have taken of it.
const LOOKS_MAX: u32 = 64;
const MICROS_PER_SECOND: u64 = 1_000_000;

/// Terms of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Repeats to requests, in hundredths of a percent. With 0 nothing is saved up, either.
    pub share: u32,
    /// Repeats that are let through in each second beside the share.
    pub per_second: u32,
}

/// Budget of repeats, shared by all cores. It begins with all that can be saved.
#[derive(Debug)]
pub struct SharedBudget {
    /// Share below, repeats for each second above. Read by all, written by a reload.
    terms: Lines<AtomicU64>,
    /// Time, in microseconds, by which the repeats that were let through beside the share would have had their turns.
    reserved_until: Lines<AtomicU64>,
    /// Parts that each core has saved.
    saved: Box<[Lines<AtomicU32>]>,
}

/// A value on a pair of cache lines of its own: the prefetcher fetches pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Lines<T>(T);

impl SharedBudget {
    /// For so many cores.
    #[must_use]
    pub fn new(terms: Terms, cores: usize) -> SharedBudget {
        let budget = SharedBudget {
            terms: Lines::default(),
            reserved_until: Lines::default(),
            saved: (0..cores).map(|_| Lines(AtomicU32::new(SAVED_PARTS_MAX))).collect(),
        };
        budget.set_terms(terms);
        budget
    }

    /// Puts other terms into effect. What is saved stays.
    pub fn set_terms(&self, terms: Terms) {
        self.terms.0.store(u64::from(terms.per_second) << 32 | u64::from(terms.share), SeqCst);
    }

    fn terms(&self) -> Terms {
        let word = self.terms.0.load(Relaxed);
        Terms { share: word as u32, per_second: (word >> 32) as u32 }
    }

    /// A request has come to this core, and earns its share.
    pub fn earn(&self, core: usize) {
        let saved = &self.saved[core].0;
        if saved.load(Relaxed) < SAVED_PARTS_MAX {
            put(saved, self.terms().share);
        }
    }

    /// Takes a repeat, if there is one. `now` is in milliseconds, on a clock that all cores share.
    #[must_use]
    pub fn spend(&self, core: usize, now: u64) -> bool {
        let Terms { share, per_second } = self.terms();
        share > 0 && self.spend_saved(core) || self.reserve(per_second, now)
    }

    /// Gives back a repeat that was taken and not made.
    pub fn give_back(&self, core: usize) {
        let Terms { share, per_second } = self.terms();
        if share > 0 {
            put(&self.saved[core].0, PARTS);
        } else if let Some(interval) = MICROS_PER_SECOND.checked_div(per_second.into()) {
            let _ = self.reserved_until.0.fetch_update(AcqRel, Acquire, |until| Some(until.saturating_sub(interval)));
        }
    }

    fn spend_saved(&self, core: usize) -> bool {
        for _ in 0..LOOKS_MAX {
            let is_enough =
                self.saved.iter().map(|saved| u64::from(saved.0.load(Acquire))).sum::<u64>() >= PARTS.into();
            if !is_enough {
                return false;
            }
            let (others, own) = self.saved.split_at(core);
            let mut left = PARTS;
            for saved in own.iter().chain(others) {
                left -= take(&saved.0, left);
                if left == 0 {
                    return true;
                }
            }
            // Others have taken of it meanwhile.
            put(&self.saved[core].0, PARTS - left);
        }
        false
    }

    /// Takes one of those that are let through in each second.
    fn reserve(&self, per_second: u32, now: u64) -> bool {
        let Some(interval) = MICROS_PER_SECOND.checked_div(per_second.into()) else { return false };
        let now = now.saturating_mul(1_000);
        let next = |until: u64| {
            let until = until.max(now.saturating_sub(MICROS_PER_SECOND)) + interval;
            (until <= now).then_some(until)
        };
        self.reserved_until.0.fetch_update(AcqRel, Acquire, next).is_ok()
    }
}

fn put(saved: &AtomicU32, parts: u32) {
    let _ = saved.fetch_update(AcqRel, Acquire, |saved| Some(saved.saturating_add(parts).min(SAVED_PARTS_MAX)));
}

/// Takes as many of these parts as there are; returns how many.
fn take(saved: &AtomicU32, parts: u32) -> u32 {
    let fewer = |saved: u32| (saved > 0).then(|| saved - saved.min(parts));
    saved.fetch_update(AcqRel, Acquire, fewer).map_or(0, |saved| saved.min(parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000;

    #[test]
    fn what_is_given_back_can_be_spent_again() {
        for terms in [Terms { share: 2_000, per_second: 0 }, Terms { share: 0, per_second: 10 }] {
            let budget = SharedBudget::new(terms, 2);
            assert!(spend_all(&budget, 0, NOW) > 0, "{terms:?}");
            budget.give_back(1);
            assert!(budget.spend(0, NOW) && !budget.spend(0, NOW), "{terms:?}");
        }
    }

    fn budget(share: u32, per_second: u32, cores: usize) -> SharedBudget {
        SharedBudget::new(Terms { share, per_second }, cores)
    }

    fn spend_all(budget: &SharedBudget, core: usize, now: u64) -> u32 {
        let mut spent = 0;
        while budget.spend(core, now) {
            spent += 1;
        }
        spent
    }

    #[test]
    fn repeats_are_a_share_of_the_requests_whichever_cores_these_came_to() {
        let budget = budget(2_000, 0, 3);
        assert_eq!(spend_all(&budget, 1, NOW), 3 * 256, "what was saved up on all cores");
        for requests in 0..1_000 {
            budget.earn(requests % 3);
        }
        assert_eq!(spend_all(&budget, 2, NOW), 200);
        // Less than one on each core, and one in sum.
        for core in [0, 0, 1, 1, 2] {
            budget.earn(core);
        }
        assert_eq!(spend_all(&budget, 0, NOW), 1);
        assert!(!budget.spend(1, NOW + 1_000_000), "time brings nothing");
    }

    #[test]
    fn no_more_is_saved_than_a_burst() {
        let budget = budget(10_000, 0, 2);
        (0..10_000).for_each(|_| budget.earn(0));
        assert_eq!(spend_all(&budget, 0, NOW), 2 * 256);
    }

    #[test]
    fn some_are_let_through_in_each_second_and_no_more_than_those_of_one_second_at_once() {
        let budget = budget(0, 10, 2);
        assert_eq!(spend_all(&budget, 0, NOW), 10, "nothing is saved without a share");
        assert_eq!(spend_all(&budget, 1, NOW + 99), 0);
        assert_eq!(spend_all(&budget, 1, NOW + 100), 1);
        assert_eq!(spend_all(&budget, 0, NOW + 1_000), 9);
        assert_eq!(spend_all(&budget, 0, NOW + 600_000), 10);
    }

    #[test]
    fn other_terms_hold_at_once_and_what_is_saved_stays() {
        let budget = budget(2_000, 0, 1);
        assert!(budget.spend(0, NOW));
        budget.set_terms(Terms { share: 0, per_second: 0 });
        assert!(!budget.spend(0, NOW));
        budget.set_terms(Terms { share: 5_000, per_second: 3 });
        assert_eq!(spend_all(&budget, 0, NOW), 255 + 3);
        (0..10).for_each(|_| budget.earn(0));
        assert_eq!(spend_all(&budget, 0, NOW), 5);
    }

    #[test]
    fn cores_that_earn_and_spend_at_once_lose_nothing_and_make_nothing() {
        const REQUESTS: u32 = 20_000;
        let budget = budget(2_000, 0, 4);
        let run = |core: usize| {
            let mut spent = 0;
            for request in 0..REQUESTS {
                budget.earn(core);
                // Two cores have trouble, the others earn for them.
                if core < 2 && request % 2 == 0 {
                    spent += u32::from(budget.spend(core, NOW));
                }
            }
            spent
        };
        let spent: u32 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|core| scope.spawn(move || run(core))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        let (saved, earned) = (4 * 256, 4 * REQUESTS / 5);
        let all = spent + spend_all(&budget, 3, NOW);
        assert!(all <= saved + earned, "{all}");
        assert!(
            all >= 2 * REQUESTS / 5,
            "{all}: what those in trouble have earned themselves is never lost to a full core"
        );
    }

    #[test]
    fn what_cores_write_lies_on_lines_of_their_own() {
        let budget = budget(0, 1, 3);
        let address = |at: *const u8| at as usize / 128;
        let mut lines: Vec<usize> = budget.saved.iter().map(|saved| address((&raw const saved.0).cast())).collect();
        lines.push(address((&raw const budget.terms.0).cast()));
        lines.push(address((&raw const budget.reserved_until.0).cast()));
        let count = lines.len();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), count);
    }
}
