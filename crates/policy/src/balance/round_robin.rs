//! Smooth weighted round robin, as nginx does it: weights 5, 1, 1 give `a a b a c a a`, not `a a a a a b c`.

use crate::predecessors::Predecessors;

/// At each turn every eligible server gains its weight, the one with the most is picked and pays the sum of what was
/// given out. After as many turns as the weights add up to, each server was picked exactly its weight, and the state is
/// as it was. A turn looks at every server.
#[derive(Clone, Debug)]
pub(super) struct RoundRobin {
    weights: Box<[i64]>,
    credits: Box<[i64]>,
    /// Common divisor of the weights.
    divisor: i64,
}

/// How much work a start offset may cost: turns times servers.
const OFFSET_STEPS_MAX: u64 = 1 << 20;

impl RoundRobin {
    /// `seed` sets where the round begins: with the same seed on every core, all of them would begin with the same
    /// server, and a server would see the cores' first requests at once. A core's number does.
    pub fn new(weights: &[u16], seed: u64) -> Self {
        let divisor = weights.iter().map(|weight| u64::from(*weight)).fold(0, greatest_common_divisor).max(1);
        let weights: Box<[i64]> = weights.iter().map(|weight| i64::from(*weight) / divisor as i64).collect();
        let mut round = Self { credits: vec![0; weights.len()].into(), weights, divisor: divisor as i64 };
        // The offset is walked, not computed: only states that turns lead to keep the promise of exact shares.
        let period = round.weights.iter().sum::<i64>() as u64;
        let turns_max = OFFSET_STEPS_MAX / (round.weights.len() as u64).max(1);
        for _ in 0..seed % period.min(turns_max).max(1) {
            round.pick(|_| true);
        }
        round
    }

    /// The turns of these go on where they were: a change must not have every core begin with the same server.
    pub fn continue_with(&mut self, earlier: &RoundRobin, predecessors: &Predecessors) {
        self.credits.fill(0);
        // No credit is larger than a round: a weight that was lowered would leave a debt that takes many to pay off.
        let most = self.weights.iter().sum::<i64>();
        for (server, before) in predecessors.pairs() {
            let credit = earlier.credits[before] * earlier.divisor / self.divisor;
            self.credits[server] = credit.clamp(-most, most);
        }
    }

    pub fn pick(&mut self, eligible: impl Fn(usize) -> bool) -> Option<usize> {
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

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_robin_is_smooth() {
        let mut round = RoundRobin::new(&[5, 1, 1], 0);
        let picks: Vec<_> = (0..7).map(|_| round.pick(|_| true).unwrap()).collect();
        assert_eq!(picks, [0, 0, 1, 0, 2, 0, 0]);
    }

    #[test]
    fn over_a_period_every_server_gets_exactly_its_weight() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let weights: Vec<u16> = (0..random.usize(1..20)).map(|_| random.u16(1..=256)).collect();
            let mut round = RoundRobin::new(&weights, random.u64(..));
            for _ in 0..2 {
                let mut shares = vec![0; weights.len()];
                for _ in 0..weights.iter().map(|weight| u64::from(*weight)).sum() {
                    shares[round.pick(|_| true).unwrap()] += 1;
                }
                assert_eq!(shares, weights, "seed {seed}");
            }
        }
    }

    #[test]
    fn turns_go_on_where_they_were_when_weights_change_and_servers_come() {
        let mut round = RoundRobin::new(&[1, 1, 1], 0);
        assert_eq!(round.pick(|_| true), Some(0));
        let mut same = RoundRobin::new(&[1, 1, 1], 0);
        same.continue_with(&round, &Predecessors::by_identity(b"abc", b"abc"));
        assert_eq!([same.pick(|_| true), same.pick(|_| true)], [Some(1), Some(2)]);
        // The first has had its turn, wherever it stands by now.
        let mut turned = RoundRobin::new(&[1, 1, 1], 0);
        turned.continue_with(&round, &Predecessors::by_identity(b"cda", b"abc"));
        assert_eq!([(); 2].map(|()| turned.pick(|_| true)), [Some(0), Some(1)]);
        let mut turned = RoundRobin::new(&[1, 1, 1], 0);
        turned.continue_with(&round, &Predecessors::by_identity(b"acb", b"cab"));
        assert_eq!([(); 2].map(|()| turned.pick(|_| true)), [Some(0), Some(2)]);
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut weights = |count: usize| (0..count).map(|_| random.u16(1..=256)).collect::<Vec<u16>>();
            let (before, after) = (weights(5), weights(7));
            let mut round = RoundRobin::new(&before, seed);
            (0..seed % 50).for_each(|_| _ = round.pick(|_| true));
            let mut next = RoundRobin::new(&after, 0);
            next.continue_with(&round, &Predecessors::by_identity(b"abcdefg", b"abcde"));
            let total: u64 = after.iter().map(|weight| u64::from(*weight)).sum();
            let mut shares = [0_u64; 7];
            (0..total * 10).for_each(|_| shares[next.pick(|_| true).unwrap()] += 1);
            for (share, weight) in shares.iter().zip(&after) {
                let due = u64::from(*weight) * 10;
                assert!(share.abs_diff(due) <= total, "seed {seed}: {shares:?} of {after:?} after {before:?}");
            }
        }
    }

    #[test]
    fn cores_begin_with_different_servers() {
        let first = |core| RoundRobin::new(&[3, 3, 3, 3], core).pick(|_| true).unwrap();
        assert_eq!((0..8).map(first).collect::<Vec<_>>(), [0, 1, 2, 3, 0, 1, 2, 3]);
    }

    #[test]
    fn a_thousand_heavy_servers_are_set_up_within_the_limit_of_steps() {
        let weights: Vec<u16> = (0..1_000).map(|server| 256 - server % 3).collect();
        assert!(RoundRobin::new(&weights, u64::MAX).pick(|_| true).is_some());
    }

    #[test]
    fn those_that_stay_eligible_share_in_proportion_while_one_is_out() {
        let mut round = RoundRobin::new(&[4, 2, 1], 0);
        let mut shares = [0; 3];
        for _ in 0..600 {
            shares[round.pick(|server| server != 1).unwrap()] += 1;
        }
        assert_eq!(shares, [480, 0, 120]);
    }

    #[test]
    fn a_server_that_comes_back_is_not_flooded() {
        let mut round = RoundRobin::new(&[1, 1], 0);
        for _ in 0..1_000 {
            round.pick(|server| server == 0);
        }
        let picks: Vec<_> = (0..4).map(|_| round.pick(|_| true).unwrap()).collect();
        assert_eq!(picks.iter().filter(|server| **server == 1).count(), 2);
    }
}
