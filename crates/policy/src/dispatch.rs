//! Which core serves a client: the one that accepted it, unless another has well less to do.
//!
//! The kernel's hash gives each core as many clients as chance will have it: of eight, seven go to one of two cores. A
//! core that has accepted one therefore compares itself with two others, drawn at random (the power of two choices:
//! whoever looks at all of them sends everything to the same one), and hands the client over where the difference is
//! worth a hand-over, which costs a message and a wake-up.
//!
//! Small differences are mended out of an allowance: one hand-over at each tick, and one for each hundred clients.
//! Clients that come seldom stay for long, and are spread to the last one; those that come by the thousand are gone
//! soon, and stay where they are. A difference that an even hash does not make (three standard deviations) is mended at
//! once, whatever the allowance.
//!
//! Clients that stay may be moved as well, between two requests: see `rebalance`.

pub mod board;
#[cfg(test)]
mod kept;
pub mod rebalance;
#[cfg(test)]
mod simulation;

use rebalance::Rebalance;

/// Cost of a hand-over in units of the allowance; an accepted client brings one.
const HAND_OVER: u32 = 100;
/// Hand-overs that a tick brings, and the most that are saved up.
const PER_TICK: u32 = HAND_OVER;
const ALLOWANCE_MAX: u32 = 32 * HAND_OVER;
/// Ticks over which busy time and its connections are averaged.
const MEAN_TICKS: u32 = 8;
/// Busy time of two cores together, in thousandths, from which their work counts beside their connections, and from
/// which it counts as much as it ever does. Idle cores differ by chance.
const WORK_FROM: i64 = 400;
const WORK_FULL: i64 = 1_000;
/// Times that work counts as much as connections, at the most.
const WORK_WEIGHT: i64 = 16;
/// Standard deviations of an even hash beyond which a difference is no chance.
const DEVIATIONS: i64 = 3;
/// Part of both cores' load that a difference has to be, beside one connection: below it nobody is served better.
const LEAST_PART: i64 = 20;
/// Fractions of a connection that differences are kept in.
const SCALE: i64 = 64;

/// Load of a core, as others see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Client connections, those on their way to the core among them.
    pub connections: u32,
    /// Handshakes that wait for their turn.
    pub handshakes: u32,
    /// Share of its time in which the core was busy lately, in thousandths.
    pub busy: u32,
    /// Connections that it had then: the mean over the same time.
    pub busy_connections: u32,
    /// The core's heartbeat is late: somebody else has its processor.
    pub is_stalled: bool,
}

/// Reason for a hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The other core has less to do.
    Load,
    /// The share of the connections that the process may have is reached here, and not there.
    Room,
    /// The core has just stood still, and its clients have waited.
    Stall,
    /// The client has stayed, and the other core has less to do now.
    Rest,
}

/// One core's side of it.
#[derive(Debug)]
pub struct Dispatch {
    index: usize,
    cores: usize,
    /// Connections that are this core's share of all that the process may have.
    share: u32,
    allowance: u32,
    rebalance: Rebalance,
}

impl Load {
    fn weight(self) -> i64 {
        i64::from(self.connections) + i64::from(self.handshakes)
    }

    /// Busy time to be expected: connections that have come since it was measured bring `mean` each.
    fn expected_busy(self, (work, connections): (i64, i64)) -> i64 {
        let since = i64::from(self.connections) - i64::from(self.busy_connections);
        (i64::from(self.busy) + since * work / connections.max(1)).max(0)
    }
}

/// Moving mean of what is measured once a tick, in whatever unit.
pub fn mean(mean: u32, sample: u32) -> u32 {
    let (before, now) = (u64::from(mean), u64::from(sample));
    // Rounded towards the sample: it gets there.
    let rounding = if now > before { u64::from(MEAN_TICKS) - 1 } else { 0 };
    ((before * u64::from(MEAN_TICKS - 1) + now + rounding) / u64::from(MEAN_TICKS)) as u32
}

/// How much more `own` has to do than `other`, in fractions of a connection of their mean.
fn gap(own: Load, other: Load) -> i64 {
    let both = own.weight() + other.weight();
    let by_count = (own.weight() - other.weight()) * SCALE;
    let measured = i64::from(own.busy + other.busy);
    let weight = (measured - WORK_FROM).clamp(0, WORK_FULL - WORK_FROM) * WORK_WEIGHT;
    if weight == 0 {
        return by_count;
    }
    let mean = (measured, i64::from(own.busy_connections) + i64::from(other.busy_connections));
    let (mine, others) = (own.expected_busy(mean), other.expected_busy(mean));
    let by_work = both * SCALE * (mine - others) / (mine + others).max(1);
    let unit = WORK_FULL - WORK_FROM;
    (by_count * unit + by_work * weight) / (unit + weight)
}

impl Dispatch {
    /// `share` is in connections. Panics if `index` is not below `cores`.
    pub fn new(index: usize, cores: usize, share: u32) -> Dispatch {
        assert!(index < cores, "core {index} of {cores}");
        Dispatch { index, cores, share, allowance: ALLOWANCE_MAX, rebalance: Rebalance::new() }
    }

    /// Once a tick.
    pub fn tick(&mut self) {
        self.allowance = (self.allowance + PER_TICK).min(ALLOWANCE_MAX);
    }

    /// Once a tick as well: looks whether there is too much to do here for those who stay. `load` is none of a core
    /// that could not take a connection now; `host` has a core take from this one, unless it takes from another.
    pub fn rebalance(&mut self, load: impl Fn(usize) -> Option<Load>, own: Load, host: impl FnOnce(usize) -> bool) {
        let (index, cores) = (self.index, self.cores);
        // Counted from this core on, so that not all begin with the same.
        let others = (1..cores).map(|step| (index + step) % cores);
        let least = || others.filter_map(|core| Some((core, load(core)?))).min_by_key(|(_, load)| load.busy);
        self.rebalance.tick(own, least, self.allowance, host);
    }

    /// Whether [`Dispatch::note_rest`] and [`Dispatch::note_other`] are of use now.
    pub fn is_attentive(&self) -> bool {
        self.rebalance.is_attentive()
    }

    /// A connection comes to rest, behind a request, that could go to another core: the one that it goes to.
    pub fn note_rest(&mut self, connection: u32) -> Option<usize> {
        let to = self.rebalance.note_rest(connection)?;
        self.allowance = self.allowance.checked_sub(HAND_OVER)?;
        Some(to)
    }

    /// A request is over whose connection could not go to another core.
    pub fn note_other(&mut self) {
        self.rebalance.note_other();
    }

    /// The core that a client goes to which this one has accepted, and why; none: it stays. `random` has 64 even bits.
    pub fn pick(&mut self, load: impl Fn(usize) -> Load, random: u64) -> Option<(usize, Reason)> {
        self.allowance = (self.allowance + 1).min(ALLOWANCE_MAX);
        let own = load(self.index);
        let (to, other) = self
            .draw(random)
            .map(|core| (core, load(core)))
            .filter(|(_, other)| !other.is_stalled)
            .max_by_key(|(_, other)| gap(own, *other))?;
        if own.is_stalled {
            return Some((to, Reason::Stall));
        }
        if own.connections >= self.share && other.connections < self.share {
            return Some((to, Reason::Room));
        }
        let gap = gap(own, other);
        let chance = (own.weight() + other.weight()) * (DEVIATIONS * SCALE).pow(2);
        if gap < SCALE.max((own.weight() + other.weight()) * SCALE / LEAST_PART) {
            return None;
        }
        if gap * gap <= chance {
            self.allowance = self.allowance.checked_sub(HAND_OVER)?;
        }
        Some((to, Reason::Load))
    }

    /// Two other cores, or the one that there is; none of a single core.
    fn draw(&self, random: u64) -> impl Iterator<Item = usize> {
        let others = self.cores - 1;
        // Numbers of the others, counted from this core on.
        let step = move |bits: u64, count: usize| (((bits & 0xffff_ffff) * count as u64) >> 32) as usize;
        let first = step(random, others);
        let second = (first + 1 + step(random >> 32, others.saturating_sub(1))) % others.max(1);
        let (index, cores) = (self.index, self.cores);
        [first, second].into_iter().take(others).map(move |number| (index + 1 + number) % cores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle(connections: u32) -> Load {
        Load { connections, busy_connections: connections, ..Load::default() }
    }

    fn pick(loads: &[Load]) -> Option<(usize, Reason)> {
        Dispatch::new(0, loads.len(), 100).pick(|core| loads[core], 0x1234_5678_9abc_def0)
    }

    #[test]
    fn clients_that_come_one_after_another_are_spread_to_the_last_one_whichever_core_accepts_them() {
        for accepts in 0..256_u32 {
            let mut cores = [Dispatch::new(0, 2, 100), Dispatch::new(1, 2, 100)];
            let mut open = [0_u32; 2];
            for client in 0..8 {
                let at = (accepts >> client & 1) as usize;
                let to = cores[at].pick(|core| idle(open[core]), 7).map_or(at, |(to, _)| to);
                open[to] += 1;
                assert!(open[0].abs_diff(open[1]) <= 1, "{accepts:08b}: {open:?}");
            }
        }
    }

    #[test]
    fn a_mean_gets_to_what_stays() {
        for (from, to) in [(0, 1_000), (1_000, 0), (7, 8), (u32::MAX, u32::MAX)] {
            assert_eq!((0..200).fold(from, |before, _| mean(before, to)), to);
        }
    }

    #[test]
    fn one_core_alone_keeps_everything() {
        assert_eq!(pick(&[idle(1_000)]), None);
    }

    #[test]
    fn a_core_that_stands_still_gets_nothing_and_gives_away_what_waited() {
        let still = Load { is_stalled: true, ..idle(0) };
        assert_eq!(pick(&[idle(50), still]), None);
        assert_eq!(pick(&[still, idle(50)]), Some((1, Reason::Stall)));
        assert_eq!(pick(&[still, still]), None);
        assert_eq!(pick(&[idle(50), still, idle(30)]), Some((2, Reason::Load)));
    }

    #[test]
    fn a_core_with_its_share_looks_for_another_that_has_room() {
        assert_eq!(pick(&[idle(100), idle(99)]), Some((1, Reason::Room)));
        assert_eq!(pick(&[idle(100), idle(100)]), None);
    }

    #[test]
    fn work_counts_where_there_is_enough_of_it() {
        let with = |busy, connections| Load { busy, ..idle(connections) };
        assert_eq!(pick(&[with(900, 10), with(300, 10)]), Some((1, Reason::Load)));
        assert_eq!(pick(&[with(150, 10), with(50, 10)]), None, "by chance");
        assert_eq!(pick(&[with(300, 30), with(900, 10)]), None, "fewer connections, and more work");
        // Connections that have come since count as if they worked.
        let filled = Load { connections: 60, ..with(300, 10) };
        assert_eq!(pick(&[with(900, 10), filled]), None);
    }

    #[test]
    fn small_differences_are_mended_as_far_as_the_allowance_goes_and_large_ones_always() {
        let mut dispatch = Dispatch::new(0, 2, u32::MAX);
        let mut count = |own, other, times| {
            let loads = [idle(own), idle(other)];
            (0..times).filter(|_| dispatch.pick(|core| loads[core], 0).is_some()).count()
        };
        let mended = count(52, 45, 10_000);
        assert!((130..=132).contains(&mended), "{mended}");
        assert_eq!(count(2_000, 1_000, 500), 500);
    }

    #[test]
    fn two_different_others_are_drawn_and_all_of_them_alike() {
        let mut random = fastrand::Rng::with_seed(1);
        for cores in 3..=64 {
            let index = random.usize(0..cores);
            let dispatch = Dispatch::new(index, cores, 1);
            let mut drawn = vec![0_usize; cores];
            for _ in 0..cores * 200 {
                let both: Vec<usize> = dispatch.draw(random.u64(..)).collect();
                assert!(both.len() == 2 && both[0] != both[1], "{both:?}");
                both.iter().for_each(|core| drawn[*core] += 1);
            }
            assert_eq!(drawn[index], 0);
            drawn.remove(index);
            let each = cores * 400 / (cores - 1);
            assert!(drawn.iter().all(|count| count.abs_diff(each) <= each / 4), "{cores}: {drawn:?}");
        }
    }
}
