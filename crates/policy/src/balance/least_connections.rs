//! The server with the fewest requests in flight for its weight.
//!
//! Among equals it goes by turns in proportion to the weights, so that where hardly anything is in flight this is round
//! robin, and not the first server of the list.

use super::loads::CoreLoads;
use super::round_robin::RoundRobin;
use crate::predecessors::Predecessors;

#[derive(Clone, Debug)]
pub(super) struct LeastConnections {
    weights: Box<[u64]>,
    among_equals: RoundRobin,
}

impl LeastConnections {
    pub fn new(weights: &[u16], seed: u64) -> Self {
        let among_equals = RoundRobin::new(weights, seed);
        Self { weights: weights.iter().map(|weight| u64::from(*weight)).collect(), among_equals }
    }

    pub fn continue_with(&mut self, earlier: &LeastConnections, predecessors: &Predecessors) {
        self.among_equals.continue_with(&earlier.among_equals, predecessors);
    }

    pub fn pick(&mut self, eligible: impl Fn(usize) -> bool, loads: &CoreLoads) -> Option<usize> {
        let mut least: Option<(u64, u64)> = None;
        for server in (0..self.weights.len()).filter(|server| eligible(*server)) {
            let load = (u64::from(loads.in_flight(server)), self.weights[server]);
            if least.is_none_or(|least| is_less(load, least)) {
                least = Some(load);
            }
        }
        let least = least?;
        let weights = &self.weights;
        let is_equal = |server: usize| !is_less(least, (u64::from(loads.in_flight(server)), weights[server]));
        // Requests of other cores may have changed since, so that no server is equal any more.
        let picked = self.among_equals.pick(|server| eligible(server) && is_equal(server));
        picked.or_else(|| self.among_equals.pick(eligible))
    }
}

/// Compares requests per weight, without a division.
fn is_less((one, one_weight): (u64, u64), (other, other_weight): (u64, u64)) -> bool {
    one * other_weight < other * one_weight
}
