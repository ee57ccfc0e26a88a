//! Which server of a backend gets the next request.

/// The choice, with its memory. One per core and backend.
#[derive(Clone, Debug)]
pub enum Balancer {
    RoundRobin(RoundRobin),
    Random(Random),
}

/// Smooth weighted round robin, as nginx does it: weights 5, 1, 1 give `a a b a c a a`, not `a a a a a b c`.
///
/// At each turn every eligible server gains its weight, the one with the most is picked and pays the sum of what was
/// given out. After as many turns as the weights add up to, each server was picked exactly its weight, and the state is
/// as it was. A turn looks at every server.
#[derive(Clone, Debug)]
pub struct RoundRobin {
    weights: Box<[i64]>,
    credits: Box<[i64]>,
}

/// Each server with a probability in proportion to its weight, whatever was picked before.
#[derive(Clone, Debug)]
pub struct Random {
    /// The weights up to and with each server.
    sums: Box<[u64]>,
}

/// How much work a start offset may cost: turns times servers.
const OFFSET_STEPS_MAX: u64 = 1 << 20;

impl Balancer {
    /// `seed` sets where the round begins: with the same seed on every core, all of them would begin with the same
    /// server, and a server would see the cores' first requests at once. A core's number does.
    pub fn round_robin(weights: &[u16], seed: u64) -> Self {
        Self::RoundRobin(RoundRobin::new(weights, seed))
    }

    pub fn random(weights: &[u16]) -> Self {
        Self::Random(Random::new(weights))
    }

    /// The index of a server for which `eligible` holds, or none if it holds for no server.
    ///
    /// `random` is any 64 random bits; round robin does not look at them. `eligible` may be asked about a server more
    /// than once and must not change its mind.
    pub fn pick(&mut self, eligible: impl Fn(usize) -> bool, random: u64) -> Option<usize> {
        match self {
            Self::RoundRobin(round) => round.pick(eligible),
            Self::Random(chance) => chance.pick(eligible, random),
        }
    }
}

impl RoundRobin {
    fn new(weights: &[u16], seed: u64) -> Self {
        let divisor = weights.iter().map(|weight| u64::from(*weight)).fold(0, greatest_common_divisor).max(1);
        let weights: Box<[i64]> = weights.iter().map(|weight| i64::from(*weight) / divisor as i64).collect();
        let mut round = Self { credits: vec![0; weights.len()].into(), weights };
        // The offset is walked, not computed: only states that turns lead to keep the promise of exact shares.
        let period = round.weights.iter().sum::<i64>() as u64;
        let turns_max = OFFSET_STEPS_MAX / (round.weights.len() as u64).max(1);
        for _ in 0..seed % period.min(turns_max).max(1) {
            round.pick(|_| true);
        }
        round
    }

    fn pick(&mut self, eligible: impl Fn(usize) -> bool) -> Option<usize> {
        let mut given = 0;
        let mut best: Option<usize> = None;
        for server in (0..self.weights.len()).filter(|server| self.weights[*server] > 0 && eligible(*server)) {
            given += self.weights[server];
            self.credits[server] += self.weights[server];
            if best.is_none_or(|best| self.credits[server] > self.credits[best]) {
                best = Some(server);
            }
        }
        self.credits[best?] -= given;
        best
    }
}

impl Random {
    fn new(weights: &[u16]) -> Self {
        let sums = weights.iter().scan(0, |sum, weight| {
            *sum += u64::from(*weight);
            Some(*sum)
        });
        Self { sums: sums.collect() }
    }

    fn pick(&self, eligible: impl Fn(usize) -> bool, random: u64) -> Option<usize> {
        let target = below(random, *self.sums.last()?);
        let server = self.sums.partition_point(|sum| *sum <= target);
        if server < self.sums.len() && eligible(server) {
            return Some(server);
        }
        // Among the eligible ones the second draw keeps the proportions that the first one has.
        self.pick_among_eligible(eligible, mix(random))
    }

    fn pick_among_eligible(&self, eligible: impl Fn(usize) -> bool, random: u64) -> Option<usize> {
        let servers = || (0..self.sums.len()).filter(|server| self.weight(*server) > 0 && eligible(*server));
        let total: u64 = servers().map(|server| self.weight(server)).sum();
        let mut target = below(random, total);
        servers().find(|server| {
            let weight = self.weight(*server);
            let found = target < weight;
            target = target.saturating_sub(weight);
            found
        })
    }

    fn weight(&self, server: usize) -> u64 {
        self.sums[server] - server.checked_sub(1).map_or(0, |before| self.sums[before])
    }
}

/// A number below `limit` (0 if that is 0), as even as 64 bits allow.
fn below(random: u64, limit: u64) -> u64 {
    ((u128::from(random) * u128::from(limit)) >> 64) as u64
}

/// Other bits of the same quality, from the same draw (the finaliser of splitmix64).
fn mix(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(balancer: &mut Balancer, servers: usize, turns: usize, random: &mut fastrand::Rng) -> Vec<usize> {
        let mut shares = vec![0; servers];
        for _ in 0..turns {
            shares[balancer.pick(|_| true, random.u64(..)).unwrap()] += 1;
        }
        shares
    }

    #[test]
    fn round_robin_is_smooth() {
        let mut balancer = Balancer::round_robin(&[5, 1, 1], 0);
        let picks: Vec<_> = (0..7).map(|_| balancer.pick(|_| true, 0).unwrap()).collect();
        assert_eq!(picks, [0, 0, 1, 0, 2, 0, 0]);
    }

    #[test]
    fn over_a_period_every_server_gets_exactly_its_weight() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let weights: Vec<u16> = (0..random.usize(1..20)).map(|_| random.u16(1..=256)).collect();
            let mut balancer = Balancer::round_robin(&weights, random.u64(..));
            let period = weights.iter().map(|weight| usize::from(*weight)).sum();
            let expected: Vec<usize> = weights.iter().map(|weight| usize::from(*weight)).collect();
            for _ in 0..2 {
                assert_eq!(shares(&mut balancer, weights.len(), period, &mut random), expected, "seed {seed}");
            }
        }
    }

    #[test]
    fn cores_begin_with_different_servers() {
        let first = |core| Balancer::round_robin(&[3, 3, 3, 3], core).pick(|_| true, 0).unwrap();
        assert_eq!((0..8).map(first).collect::<Vec<_>>(), [0, 1, 2, 3, 0, 1, 2, 3]);
    }

    #[test]
    fn a_thousand_heavy_servers_are_set_up_within_the_limit_of_steps() {
        let weights: Vec<u16> = (0..1_000).map(|server| 256 - server % 3).collect();
        let mut balancer = Balancer::round_robin(&weights, u64::MAX);
        assert!(balancer.pick(|_| true, 0).is_some());
    }

    #[test]
    fn random_keeps_the_weights_in_the_long_run_with_and_without_ineligible_servers() {
        let weights = [1, 2, 5, 8];
        let mut random = fastrand::Rng::with_seed(7);
        let mut balancer = Balancer::random(&weights);
        for out in [None, Some(0), Some(3)] {
            let mut shares = [0.0; 4];
            for _ in 0..100_000 {
                shares[balancer.pick(|server| Some(server) != out, random.u64(..)).unwrap()] += 1.0 / 100_000.0;
            }
            let share = |server| {
                if Some(server) == out { 0.0 } else { f64::from(weights[server]) }
            };
            let total: f64 = (0..4).map(share).sum();
            for server in 0..4 {
                let expected = share(server) / total;
                assert!((shares[server] - expected).abs() < 0.01, "without {out:?}: {shares:?}");
            }
        }
    }

    #[test]
    fn an_ineligible_server_is_never_picked_and_none_is_picked_when_none_is_eligible() {
        for seed in 0..100 {
            let mut random = fastrand::Rng::with_seed(seed);
            let weights: Vec<u16> = (0..random.usize(0..12)).map(|_| random.u16(1..=256)).collect();
            let seed_of_round = random.u64(..);
            for mut balancer in [Balancer::round_robin(&weights, seed_of_round), Balancer::random(&weights)] {
                for _ in 0..200 {
                    let up: Vec<bool> = weights.iter().map(|_| random.u8(0..4) == 0).collect();
                    match balancer.pick(|server| up[server], random.u64(..)) {
                        Some(server) => assert!(up[server], "seed {seed}"),
                        None => assert!(!up.contains(&true), "seed {seed}"),
                    }
                }
            }
        }
    }

    #[test]
    fn those_that_stay_eligible_share_in_proportion_while_one_is_out() {
        let mut balancer = Balancer::round_robin(&[4, 2, 1], 0);
        let mut shares = [0; 3];
        for _ in 0..600 {
            shares[balancer.pick(|server| server != 1, 0).unwrap()] += 1;
        }
        assert_eq!(shares, [480, 0, 120]);
    }

    #[test]
    fn a_server_that_comes_back_is_not_flooded() {
        let mut balancer = Balancer::round_robin(&[1, 1], 0);
        for _ in 0..1_000 {
            balancer.pick(|server| server == 0, 0);
        }
        let picks: Vec<_> = (0..4).map(|_| balancer.pick(|_| true, 0).unwrap()).collect();
        assert_eq!(picks.iter().filter(|server| **server == 1).count(), 2);
    }

    #[test]
    fn extreme_draws_stay_in_range() {
        let mut balancer = Balancer::random(&[256, 1]);
        assert_eq!(balancer.pick(|_| true, 0), Some(0));
        assert_eq!(balancer.pick(|_| true, u64::MAX), Some(1));
        assert_eq!(balancer.pick(|server| server == 0, u64::MAX), Some(0));
    }
}
