//! Connections that stay, and a core that has too much of them: which of them go to another, between two requests.
//!
//! Clients are spread as they come. One that stays was spread by what was known of it then: four of eight leave, and
//! all of them one core, or four begin to work, and nobody comes by whom that would be mended. A core that has had well
//! more to do than another for a second therefore counts for a second whose requests it serves, chooses connections
//! whose share of its work is half of the difference together, and lets each of them go as it comes to rest the next
//! time.
//!
//! Nothing goes to and fro. A choice makes the difference smaller in any case: a connection that is most of it stays.
//! A core takes from one other at a time, nobody looks again before what has gone shows in the means, and a connection
//! that has gone stays where it is, for twice as long each time.

use super::{HAND_OVER, Load, MEAN_TICKS};

/// Ticks for which another core has to have well less to do; ticks for which requests are counted; ticks for which
/// those that were chosen are waited for; and ticks until what has gone shows in the means.
const PATIENCE_TICKS: u32 = 10;
const COUNT_TICKS: u32 = 10;
const LEAVE_TICKS: u32 = 10;
const SETTLE_TICKS: u32 = 4 * MEAN_TICKS;
/// Milliseconds for which a core takes from the core that it has begun to take from.
pub const HOST_MILLIS: u64 = 4_000;
/// Busy time in thousandths from which a core gives anything away, and the least difference that is worth it. A core
/// that is busy for a third of its time keeps nobody waiting.
const BUSY_FROM: i64 = 400;
const GAP_MIN: i64 = 200;
/// Connections that are told apart while requests are counted: those of which most come are among the first.
const COUNTED_MAX: usize = 64;
/// Requests below which nobody's share is known.
const REQUESTS_MIN: u32 = 8;
/// Parts of a thousandth that work is kept in.
const SCALE: i64 = 64;
/// Milliseconds for which a connection stays that has gone once, and how often that is doubled.
const STAY_MILLIS: u64 = 10_000;
const DOUBLED_MAX: u32 = 8;

/// Moves of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    count: u32,
    /// Time of the last one, in milliseconds on a clock that all cores share.
    last: u64,
}

impl Moves {
    /// Whether the connection may go to another core.
    pub fn allow(self, now: u64) -> bool {
        let Some(doubled) = self.count.checked_sub(1) else { return true };
        now.saturating_sub(self.last) >= STAY_MILLIS << doubled.min(DOUBLED_MAX)
    }

    /// The connection goes.
    #[must_use]
    pub fn and_one(self, now: u64) -> Moves {
        Moves { count: self.count.saturating_add(1), last: now }
    }
}

/// Requests by connection.
#[derive(Debug, Default)]
struct Count {
    /// All of them, those of connections that are not told apart or may not go among them.
    requests: u32,
    /// Numbers of connections, and their requests.
    connections: Vec<(u32, u32)>,
}

impl Count {
    fn note(&mut self, connection: u32) {
        if let Some((_, requests)) = self.connections.iter_mut().find(|(known, _)| *known == connection) {
            *requests += 1;
        } else if self.connections.len() < COUNTED_MAX {
            self.connections.push((connection, 1));
        }
    }

    /// Connections that are half of the difference `gap` together, `most` at the most, of a core that is busy for
    /// `busy` thousandths.
    fn choose(mut self, busy: u32, gap: i64, most: usize) -> Vec<u32> {
        if self.requests < REQUESTS_MIN {
            return Vec::new();
        }
        self.connections.sort_unstable_by_key(|(connection, requests)| (std::cmp::Reverse(*requests), *connection));
        let half = gap * SCALE / 2;
        let (mut chosen, mut sum) = (Vec::new(), 0);
        for (connection, requests) in self.connections {
            let work = i64::from(busy) * SCALE * i64::from(requests) / i64::from(self.requests);
            // One of two equal clients on a core goes, whichever side of half a noisy measure puts it; a single one
            // stays, which is the whole of the difference.
            let most_work = if chosen.is_empty() { half * 5 / 4 } else { half * 11 / 10 };
            if chosen.len() < most && sum + work <= most_work {
                chosen.push(connection);
                sum += work;
            }
        }
        chosen
    }
}

#[derive(Debug)]
enum Phase {
    /// Another core has had well less to do for so many ticks.
    Watching { ticks: u32 },
    /// Requests are counted for so many more ticks.
    Counting { left: u32, count: Count },
    /// Connections that go to that core as they come to rest, for so many more ticks.
    Leaving { left: u32, to: usize, connections: Vec<u32> },
    /// Ticks for which nobody looks.
    Settling { left: u32 },
}

/// One core's side of it.
#[derive(Debug)]
pub(super) struct Rebalance(Phase);

/// How much more one core has to do than another, in thousandths of a core's time.
fn gap(own: Load, other: Load) -> i64 {
    let mean = (i64::from(own.busy + other.busy), i64::from(own.busy_connections + other.busy_connections));
    own.expected_busy(mean) - other.expected_busy(mean)
}

fn is_worth_it(own: Load, other: Load) -> bool {
    let (busy, gap) = (i64::from(own.busy), gap(own, other));
    busy >= BUSY_FROM && gap >= GAP_MIN.max(busy / 4)
}

impl Rebalance {
    pub fn new() -> Rebalance {
        Rebalance(Phase::Watching { ticks: 0 })
    }

    /// Whether connections that come to rest are asked after.
    pub fn is_attentive(&self) -> bool {
        matches!(self.0, Phase::Counting { .. } | Phase::Leaving { .. })
    }

    /// Once a tick. `least` is the core with the least to do, of those that could take a connection; `host` has one
    /// take from this one, unless it takes from another.
    pub fn tick(
        &mut self,
        own: Load,
        least: impl FnOnce() -> Option<(usize, Load)>,
        allowance: u32,
        host: impl FnOnce(usize) -> bool,
    ) {
        let receiver = || least().filter(|(_, other)| is_worth_it(own, *other));
        match &mut self.0 {
            Phase::Watching { ticks } => {
                // Most cores have nothing to give, and look at no other.
                let is_worth_it = i64::from(own.busy) >= BUSY_FROM && receiver().is_some();
                *ticks = if is_worth_it { *ticks + 1 } else { 0 };
                if *ticks >= PATIENCE_TICKS {
                    self.0 = Phase::Counting { left: COUNT_TICKS, count: Count::default() };
                }
            }
            Phase::Counting { left: left @ 2.., .. } | Phase::Settling { left: left @ 2.. } => *left -= 1,
            Phase::Counting { count, .. } => {
                let count = std::mem::take(count);
                self.0 = Phase::Settling { left: SETTLE_TICKS };
                let Some((to, other)) = receiver() else { return };
                let connections = count.choose(own.busy, gap(own, other), (allowance / HAND_OVER) as usize);
                if !connections.is_empty() && host(to) {
                    self.0 = Phase::Leaving { left: LEAVE_TICKS, to, connections };
                }
            }
            Phase::Leaving { left: left @ 2.., connections, .. } if !connections.is_empty() => *left -= 1,
            Phase::Leaving { .. } => self.0 = Phase::Settling { left: SETTLE_TICKS },
            Phase::Settling { .. } => self.0 = Phase::Watching { ticks: 0 },
        }
    }

    /// A request is over that is no reason to give its connection away.
    pub fn note_other(&mut self) {
        if let Phase::Counting { count, .. } = &mut self.0 {
            count.requests += 1;
        }
    }

    /// A connection comes to rest that could go: the core it goes to, if it is to.
    pub fn note_rest(&mut self, connection: u32) -> Option<usize> {
        match &mut self.0 {
            Phase::Counting { count, .. } => {
                count.requests += 1;
                count.note(connection);
                None
            }
            Phase::Leaving { connections, to, .. } => {
                let place = connections.iter().position(|known| *known == connection)?;
                connections.swap_remove(place);
                Some(*to)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(requests: &[u32], others: u32) -> Count {
        let connections: Vec<(u32, u32)> = (0..).zip(requests.iter().copied()).collect();
        Count { requests: requests.iter().sum::<u32>() + others, connections }
    }

    #[test]
    fn half_of_the_difference_is_chosen_and_never_most_of_it() {
        let choose = |requests: &[u32], busy, gap| count(requests, 0).choose(busy, gap, 32);
        assert_eq!(choose(&[100; 8], 1_000, 1_000), [0, 1, 2, 3]);
        assert_eq!(choose(&[100; 2], 600, 600), [0]);
        assert_eq!(choose(&[100; 3], 900, 600), [0], "three and one");
        assert!(choose(&[100; 3], 900, 300).is_empty(), "three and two");
        assert!(choose(&[100], 900, 900).is_empty(), "it would be as bad there");
        assert_eq!(choose(&[900, 50, 50], 1_000, 1_000), [1, 2], "what is beside the heavy one");
        assert_eq!(choose(&[103, 97], 600, 600), [0], "a noisy measure");
        assert!(choose(&[3, 3], 600, 600).is_empty(), "nobody's share is known");
        assert_eq!(count(&[100; 8], 0).choose(1_000, 1_000, 1).len(), 1, "the allowance");
        assert_eq!(count(&[100; 2], 600).choose(800, 300, 32), [0], "others' requests count");
    }

    #[test]
    fn a_choice_makes_every_difference_smaller() {
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..10_000 {
            let requests: Vec<u32> =
                (0..random.usize(1..20)).map(|_| 1 + (1.0 / random.f64()) as u32 % 1_000).collect();
            let (busy, gap) = (random.u32(400..=1_000), random.i64(200..=1_000));
            let all: u32 = requests.iter().sum();
            let chosen = count(&requests, 0).choose(busy, gap.min(busy.into()), 32);
            let work: f64 = chosen.iter().map(|at| f64::from(requests[*at as usize] * busy) / f64::from(all)).sum();
            let gap = gap.min(busy.into()) as f64;
            assert!(chosen.is_empty() || (gap - 2.0 * work).abs() < gap, "{work} of {gap}");
        }
    }

    #[test]
    fn so_many_connections_are_told_apart_and_all_requests_count() {
        let mut rebalance = Rebalance(Phase::Counting { left: 5, count: Count::default() });
        (0..1_000).for_each(|connection| assert_eq!(rebalance.note_rest(connection), None));
        rebalance.note_other();
        let Phase::Counting { count, .. } = rebalance.0 else { panic!("another phase") };
        assert_eq!((count.requests, count.connections.len()), (1_001, COUNTED_MAX));
    }

    #[test]
    fn a_connection_that_has_gone_stays_for_twice_as_long_each_time() {
        let once = Moves::default().and_one(1_000);
        assert!(Moves::default().allow(0) && !once.allow(10_999) && once.allow(11_000));
        let twice = once.and_one(11_000);
        assert!(!twice.allow(30_999) && twice.allow(31_000));
        let often = (0..100).fold(Moves::default(), |moves, _| moves.and_one(0));
        assert!(often.allow(STAY_MILLIS << DOUBLED_MAX));
    }

    #[test]
    fn only_those_that_were_chosen_leave_and_each_once() {
        let mut rebalance = Rebalance::new();
        let (own, other) = (Load { busy: 1_000, ..Load::default() }, Load::default());
        for _ in 0..PATIENCE_TICKS {
            assert!(!rebalance.is_attentive());
            rebalance.tick(own, || Some((3, other)), 3_200, |_| panic!("nobody has been counted"));
        }
        for _ in 0..COUNT_TICKS {
            assert!(rebalance.is_attentive());
            (0..4).for_each(|connection| assert_eq!(rebalance.note_rest(connection), None));
            rebalance.tick(own, || Some((3, other)), 3_200, |core| core == 3);
        }
        let left: Vec<Option<usize>> = [0, 2, 0, 1, 1].map(|connection| rebalance.note_rest(connection)).into();
        assert_eq!(left, [Some(3), None, None, Some(3), None]);
        rebalance.tick(own, || Some((3, other)), 3_200, |_| true);
        for _ in 0..SETTLE_TICKS + PATIENCE_TICKS {
            assert!(!rebalance.is_attentive());
            rebalance.tick(own, || Some((3, other)), 3_200, |_| true);
        }
        assert!(rebalance.is_attentive());
    }

    #[test]
    fn a_difference_that_passes_is_no_reason() {
        let mut rebalance = Rebalance::new();
        let (own, other) = (Load { busy: 1_000, ..Load::default() }, Load::default());
        for tick in 0..100 {
            let other = if tick % PATIENCE_TICKS == 5 { own } else { other };
            rebalance.tick(own, || Some((1, other)), 3_200, |_| true);
            assert!(!rebalance.is_attentive());
        }
    }
}
