//! Which traces are recorded: as the caller says, else a share of those that begin here; never more than a bound.

/// The part of a trace's identifier that is chance (W3C Trace Context Level 2 §3.2.2.3), in bits.
pub const RANDOM_BITS: u32 = 56;
/// The unit that spans are saved up in: a core's share of a small bound is little in a millisecond.
const SPAN: i64 = 1_000_000_000;
/// Millionths, which shares are given in.
const WHOLE: u64 = 1_000_000;

/// One core's.
#[derive(Clone, Debug)]
pub struct Sampler {
    /// Traces whose chance is below it are not recorded: so all who go by the same share agree.
    threshold: u64,
    trusts_parent: bool,
    /// Credit earned per millisecond.
    earned: i64,
    saved_max: i64,
    /// Below zero while spans of traces in progress were more than was saved.
    saved: i64,
    /// Milliseconds on the core's clock.
    seen: u64,
}

/// Decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Recorded,
    /// As the caller says, or by chance.
    Unrecorded,
    /// Not sampled only because there are too many.
    Limited,
}

impl Sampler {
    /// `millionths` of the traces that begin here; `spans_per_second` of all cores, of which there are `cores`.
    pub fn new(millionths: u32, trusts_parent: bool, spans_per_second: u32, cores: usize, now: u64) -> Sampler {
        let dropped = WHOLE.saturating_sub(u64::from(millionths));
        let threshold = ((u128::from(dropped) << RANDOM_BITS) / u128::from(WHOLE)) as u64;
        let a_second = i64::from(spans_per_second) * SPAN / cores.max(1) as i64;
        // A burst of a second, and at the least one span: else a small bound over many cores would be none at all.
        let saved_max = a_second.max(SPAN);
        Sampler { threshold, trusts_parent, earned: a_second / 1000, saved_max, saved: saved_max, seen: now }
    }

    pub fn trusts_parent(&self) -> bool {
        self.trusts_parent
    }

    /// A recorded trace is charged with one span at once. `parent`: what a caller that counts has decided. `chance`: the low [`RANDOM_BITS`] of the trace's identifier.
    pub fn decide(&mut self, parent: Option<bool>, chance: u64, now: u64) -> Decision {
        if !parent.unwrap_or(chance & ((1 << RANDOM_BITS) - 1) >= self.threshold) {
            return Decision::Unrecorded;
        }
        let milliseconds = now.saturating_sub(self.seen).min(i64::MAX as u64) as i64;
        self.seen = self.seen.max(now);
        self.saved = self.saved.saturating_add(self.earned.saturating_mul(milliseconds)).min(self.saved_max);
        if self.saved < SPAN {
            return Decision::Limited;
        }
        self.saved -= SPAN;
        Decision::Recorded
    }

    /// A recorded trace has come to so many spans beside the first.
    pub fn charge(&mut self, spans: usize) {
        self.saved = self.saved.saturating_sub(spans as i64 * SPAN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(sampler: &mut Sampler, chances: impl Iterator<Item = u64>) -> usize {
        chances.filter(|chance| sampler.decide(None, *chance, 0) == Decision::Recorded).count()
    }

    #[test]
    fn so_many_traces_are_recorded_as_their_share_says() {
        let spread = || (0..1_000_000_u64).map(|index| index * ((1 << RANDOM_BITS) / 1_000_000));
        for (millionths, expected) in [(0, 0), (1, 1), (10_000, 10_000), (250_000, 250_000), (1_000_000, 1_000_000)] {
            let found = recorded(&mut Sampler::new(millionths, true, 1_000_000, 1, 0), spread());
            assert!(found.abs_diff(expected) <= 1, "{found} of a million with {millionths}");
        }
    }

    #[test]
    fn what_one_engine_records_another_with_a_greater_share_records_too() {
        let (mut few, mut many) =
            (Sampler::new(1000, true, 1_000_000, 1, 0), Sampler::new(9000, true, 1_000_000, 1, 0));
        for index in 0..100_000_u64 {
            let chance = index.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            if few.decide(None, chance, 0) == Decision::Recorded {
                assert_eq!(many.decide(None, chance, 0), Decision::Recorded);
            }
        }
    }

    #[test]
    fn a_callers_decision_goes_before_chance() {
        let (mut none, mut all) = (Sampler::new(0, true, 1000, 1, 0), Sampler::new(1_000_000, true, 1000, 1, 0));
        assert_eq!(none.decide(Some(true), 0, 0), Decision::Recorded);
        assert_eq!(all.decide(Some(false), u64::MAX, 0), Decision::Unrecorded);
    }

    #[test]
    fn no_caller_gets_more_recorded_than_the_bound() {
        let mut sampler = Sampler::new(1_000_000, true, 100, 4, 0);
        let mut spans = 0;
        for now in 0..10_000 {
            for _ in 0..10 {
                if sampler.decide(Some(true), 0, now) == Decision::Recorded {
                    sampler.charge(1);
                    spans += 2;
                }
            }
        }
        // A quarter of a hundred in each of ten seconds, and those of the first burst.
        assert!((270..=280).contains(&spans), "{spans} spans");
    }

    #[test]
    fn a_small_bound_is_not_lost_among_many_cores() {
        let mut sampler = Sampler::new(1_000_000, true, 1, 1024, 0);
        assert_eq!(sampler.decide(None, 0, 0), Decision::Recorded);
        assert_eq!(sampler.decide(None, 0, 1_000), Decision::Limited);
        assert_eq!(sampler.decide(None, 0, 1_050_000), Decision::Recorded);
    }
}
