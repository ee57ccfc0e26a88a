//! Each server with a probability in proportion to its weight, whatever was picked before.

use super::hash::{below, mix};

#[derive(Clone, Debug)]
pub(super) struct Random {
    /// The weights up to and with each server.
    sums: Box<[u64]>,
}

impl Random {
    pub fn new(weights: &[u16]) -> Self {
        let sums = weights.iter().scan(0, |sum, weight| {
            *sum += u64::from(*weight);
            Some(*sum)
        });
        Self { sums: sums.collect() }
    }

    pub fn pick(&self, eligible: impl Fn(usize) -> bool, random: u64) -> Option<usize> {
        let target = below(random, *self.sums.last()?);
        let server = self.sums.partition_point(|sum| *sum <= target);
        if server < self.sums.len() && eligible(server) {
            return Some(server);
        }
        // Among the eligible ones the second draw keeps the proportions that the first one has.
        self.pick_among_eligible(eligible, mix(random))
    }

    pub fn weight(&self, server: usize) -> u64 {
        self.sums[server] - server.checked_sub(1).map_or(0, |before| self.sums[before])
    }

    /// Sum of all servers' weights.
    pub fn weights(&self) -> u64 {
        self.sums.last().copied().unwrap_or(0)
    }

    pub fn servers(&self) -> usize {
        self.sums.len()
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
}
