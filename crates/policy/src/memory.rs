//! Order in which things are given up as a process comes near its limit of memory.
//!
//! First new connections: from a soft mark on a growing share of them is refused, all of them at the limit. Then the
//! oldest idle client connections, as many as should bring the use back below a mark. Last, idle connections to servers.

/// Above this share of the limit new connections are refused; in thousandths.
const REFUSE_MARK: u64 = 850;
/// Above this idle client connections are closed, down to `RELIEF_MARK`.
const CLOSE_MARK: u64 = 930;
const RELIEF_MARK: u64 = 900;
/// Above this idle connections to servers are closed as well.
const POOLS_MARK: u64 = 970;
/// No more of the idle connections than this are closed at one step: the estimate behind it is a rough one.
const CLOSE_SHARE_MAX: u16 = SHARE_ALL / 4;
/// Steps that memory gets to come back after idle connections were closed, before more are. At the limit there is no time.
const SETTLE_STEPS: u32 = 4;

/// Shares are parts of this.
pub const SHARE_ALL: u16 = u16::MAX;

/// Measures until the next step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relief {
    /// The share of new connections that is refused, of `SHARE_ALL`.
    pub refuse: u16,
    /// The share of the idle client connections that is closed, once, the oldest first.
    pub close: u16,
    /// Idle connections to servers are closed.
    pub close_pools: bool,
    /// Memory kept for later is given back.
    pub give_back: bool,
}

/// One process's limit and what was done about it.
#[derive(Debug)]
pub struct Pressure {
    limit: u64,
    /// Bytes in use before the first connection.
    base: u64,
    settling: u32,
}

impl Pressure {
    /// `limit` and `base` in bytes.
    #[must_use]
    pub fn new(limit: u64, base: u64) -> Pressure {
        Pressure { limit: limit.max(1), base, settling: 0 }
    }

    /// Decides by what is used now, in bytes. To be called at a steady pace.
    pub fn step(&mut self, used: u64) -> Relief {
        let part = used.saturating_mul(1000) / self.limit;
        self.settling = self.settling.saturating_sub(1);
        let mut relief =
            Relief { refuse: refused_share(self.limit, used), give_back: part >= REFUSE_MARK, ..Relief::default() };
        if part >= CLOSE_MARK && (self.settling == 0 || part >= 1000) {
            relief.close = self.closed_share(used);
            self.settling = SETTLE_STEPS;
        }
        relief.close_pools = part >= POOLS_MARK;
        relief
    }

    /// Connections are taken to use all that is used above the base, in equal parts.
    fn closed_share(&self, used: u64) -> u16 {
        let wanted = used.saturating_sub(self.mark(RELIEF_MARK));
        let held = used.saturating_sub(self.base).max(1);
        scaled(wanted, held).clamp(1, CLOSE_SHARE_MAX)
    }

    fn mark(&self, thousandths: u64) -> u64 {
        mark(self.limit, thousandths)
    }
}

/// The share of new connections that is refused with so many bytes in use: none at the soft mark, all at the limit, and
/// three quarters half way: what has been let in goes on growing.
#[must_use]
pub fn refused_share(limit: u64, used: u64) -> u16 {
    let soft = mark(limit, REFUSE_MARK);
    let room = limit.saturating_sub(soft).max(1);
    let left = u32::from(SHARE_ALL - scaled(used.saturating_sub(soft), room));
    SHARE_ALL - (left * left / u32::from(SHARE_ALL)) as u16
}

fn mark(limit: u64, thousandths: u64) -> u64 {
    (u128::from(limit) * u128::from(thousandths) / 1000) as u64
}

fn scaled(part: u64, whole: u64) -> u16 {
    (u128::from(part.min(whole)) * u128::from(SHARE_ALL) / u128::from(whole)) as u16
}

/// How many of `count` a share is, rounded up.
#[must_use]
pub fn part_of(count: usize, share: u16) -> usize {
    (count as u128 * u128::from(share)).div_ceil(u128::from(SHARE_ALL)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn at(percent: u64) -> Relief {
        Pressure::new(1000 * MIB, 20 * MIB).step(percent * 10 * MIB)
    }

    #[test]
    fn nothing_is_given_up_below_the_soft_mark() {
        for percent in 0..85 {
            assert_eq!(at(percent), Relief::default(), "{percent} %");
        }
    }

    #[test]
    fn refusals_grow_from_the_soft_mark_to_all_at_the_limit() {
        let shares: Vec<u16> = (85..=101).map(|percent| at(percent).refuse).collect();
        assert!(shares.is_sorted());
        assert_eq!((shares[0], shares[15], shares[16]), (0, SHARE_ALL, SHARE_ALL));
    }

    #[test]
    fn half_way_to_the_limit_three_quarters_are_refused() {
        let limit = 1_000_000;
        for (percent, refused) in [(0, 0), (10, 19), (25, 44), (50, 75), (75, 94), (90, 99), (100, 100)] {
            let used = 850_000 + 1_500 * percent;
            let share = f64::from(refused_share(limit, used)) * 100.0 / f64::from(SHARE_ALL);
            assert!((share - f64::from(refused)).abs() < 0.51, "{percent} % of the way: {share} %");
        }
    }

    #[test]
    fn newcomers_are_refused_before_clients_are_closed_and_those_before_pools() {
        assert!(at(92).refuse > 0 && at(92).close == 0);
        assert!(at(94).close > 0 && !at(94).close_pools);
        assert!(at(98).close > 0 && at(98).close_pools);
    }

    #[test]
    fn memory_gets_time_to_come_back_but_not_at_the_limit() {
        let mut pressure = Pressure::new(1000 * MIB, 20 * MIB);
        let closes: Vec<bool> = (0..8).map(|_| pressure.step(950 * MIB).close > 0).collect();
        assert_eq!(closes, [true, false, false, false, true, false, false, false]);
        assert!(pressure.step(1000 * MIB).close > 0);
        assert!(pressure.step(1000 * MIB).close > 0);
    }

    #[test]
    fn a_share_of_few_is_one() {
        assert_eq!(part_of(0, SHARE_ALL), 0);
        assert_eq!(part_of(3, 1), 1);
        assert_eq!(part_of(3, SHARE_ALL), 3);
        assert!((249_900..=250_000).contains(&part_of(1_000_000, SHARE_ALL / 4)));
    }

    #[test]
    fn a_limit_of_any_size_is_reckoned_with() {
        for limit in [0, 1, u64::MAX] {
            let mut pressure = Pressure::new(limit, u64::MAX);
            for used in [0, 1, u64::MAX / 2, u64::MAX] {
                pressure.step(used);
            }
        }
    }

    /// A process of idle connections, whose allocator gives back what was closed after a while, and only a part of it
    /// for good: the rest serves new connections.
    struct Process {
        base: u64,
        idle: u64,
        bytes_each: u64,
        /// Free inside of the allocator.
        kept: u64,
        returning: [u64; 3],
        keeps_percent: u64,
    }

    impl Process {
        fn used(&self) -> u64 {
            self.base + self.idle * self.bytes_each + self.kept + self.returning.iter().sum::<u64>()
        }

        fn come(&mut self, count: u64) {
            let wanted = count * self.bytes_each;
            self.kept -= wanted.min(self.kept);
            self.idle += count;
        }

        fn close(&mut self, count: u64) {
            let freed = count.min(self.idle) * self.bytes_each;
            self.idle -= count.min(self.idle);
            self.kept += freed * self.keeps_percent / 100;
            self.returning.rotate_right(1);
            self.returning[0] = freed - freed * self.keeps_percent / 100;
        }
    }

    #[test]
    fn under_any_storm_the_limit_holds_and_calm_brings_everything_back() {
        for seed in 0..300 {
            let mut random = fastrand::Rng::with_seed(seed);
            let limit = random.u64(64..4096) * MIB;
            let base = random.u64(10..40) * MIB;
            let bytes_each = random.u64(1..64) << 10;
            let keeps_percent = random.u64(0..60);
            let mut process = Process { base, idle: 0, bytes_each, kept: 0, returning: [0; 3], keeps_percent };
            let mut pressure = Pressure::new(limit, base);
            // The measure is taken four times a second: between two, no more than a twentieth of the limit comes.
            let arrivals_max = limit / 20 / bytes_each;
            for _ in 0..400 {
                let relief = pressure.step(process.used());
                let arrivals = random.u64(0..=arrivals_max);
                process.close(part_of(process.idle as usize, relief.close) as u64);
                process.come(arrivals - part_of(arrivals as usize, relief.refuse) as u64);
                assert!(process.used() <= limit, "seed {seed}: {} of {limit}", process.used());
            }
            assert!(process.used() > limit * 8 / 10, "seed {seed}: the memory is there to be used");
            for _ in 0..100 {
                process.close(process.idle / 8 + 1);
            }
            process.kept = 0;
            assert_eq!(pressure.step(process.used()), Relief::default(), "seed {seed}");
        }
    }

    #[test]
    fn one_step_too_far_costs_no_more_than_it_has_to() {
        let mut pressure = Pressure::new(1000 * MIB, 20 * MIB);
        // 5 % above the mark to come back to, of 930 MiB that connections hold.
        let closed = part_of(100_000, pressure.step(950 * MIB).close);
        assert!((5_000..6_000).contains(&closed), "{closed}");
    }
}
