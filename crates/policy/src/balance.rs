//! Load balancing: the choice of the server for the next request.
//!
//! One balancer per core and backend. What is in flight at the servers is known to all cores; averages, turns and slow
//! starts are each core's own.

mod ewma;
mod first;
mod hash;
mod least_connections;
mod loads;
mod maglev;
mod random;
mod round_robin;
#[cfg(test)]
mod simulation;
mod slow_start;
mod tiers;

use std::sync::Arc;

use self::ewma::PeakEwma;
pub use self::ewma::Verdict;
pub use self::hash::key_of;
use self::hash::{fraction, mix};
use self::least_connections::LeastConnections;
pub use self::loads::{CoreLoads, Loads};
pub use self::maglev::{Maglev, SERVERS_MAX as HASH_SERVERS_MAX};
use self::random::Random;
use self::round_robin::RoundRobin;
use self::slow_start::SlowStart;
pub use self::tiers::{Tier, Tiers};
use crate::predecessors::Predecessors;

/// Balancing algorithm.
#[derive(Clone, Debug)]
pub enum Method {
    /// Servers take turns, in proportion to their weights.
    RoundRobin,
    /// Servers are drawn at random, in proportion to their weights.
    Random,
    /// Server with the fewest requests in flight for its weight.
    LeastConnections,
    /// Power of two choices: of two servers drawn at random, the one expected to answer sooner.
    PeakEwma { decay_millis: u64 },
    /// Consistent hashing of the request's key. `bound_percent`: requests in flight that a server may have, of its
    /// share.
    ConsistentHash { table: Arc<Maglev>, bound_percent: u64 },
    /// First of these servers that has room.
    First { order: Box<[usize]> },
}

/// A balancing algorithm with its state.
#[derive(Clone, Debug)]
pub struct Balancer {
    algorithm: Algorithm,
    weights: Box<[u16]>,
    weights_total: f64,
    loads: CoreLoads,
    slow_start: SlowStart,
}

#[derive(Clone, Debug)]
enum Algorithm {
    RoundRobin(RoundRobin),
    Random(Random),
    LeastConnections(LeastConnections),
    PeakEwma(PeakEwma),
    ConsistentHash { table: Arc<Maglev>, bound_percent: u64 },
    First { order: Box<[usize]> },
}

/// Inputs of a choice.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// Hash of the request's key; without one a random number takes its place.
    pub key: Option<u64>,
    /// Any 64 random bits.
    pub random: u64,
    /// Milliseconds of any clock that does not go backwards.
    pub now: u64,
}

impl Balancer {
    /// `seed` sets where a round begins (a core's number does), `slow_start_millis` how long a server that comes back takes
    /// to get its share; 0: no time.
    pub fn new(method: Method, weights: &[u16], seed: u64, slow_start_millis: u64, loads: CoreLoads) -> Self {
        let algorithm = match method {
            Method::RoundRobin => Algorithm::RoundRobin(RoundRobin::new(weights, seed)),
            Method::Random => Algorithm::Random(Random::new(weights)),
            Method::LeastConnections => Algorithm::LeastConnections(LeastConnections::new(weights, seed)),
            Method::PeakEwma { decay_millis } => Algorithm::PeakEwma(PeakEwma::new(weights, decay_millis)),
            Method::ConsistentHash { table, bound_percent } => Algorithm::ConsistentHash { table, bound_percent },
            Method::First { order } => Algorithm::First { order },
        };
        Self {
            algorithm,
            weights: weights.into(),
            weights_total: weights.iter().map(|weight| f64::from(*weight)).sum(),
            loads,
            slow_start: SlowStart::new(weights.len(), slow_start_millis),
        }
    }

    /// Successor that takes over the state for the servers that stay: the turns, latencies and slow starts.
    #[must_use]
    pub fn succeeding(mut self, earlier: &Balancer, predecessors: &Predecessors) -> Self {
        self.slow_start.continue_with(&earlier.slow_start, predecessors);
        match (&mut self.algorithm, &earlier.algorithm) {
            (Algorithm::RoundRobin(round), Algorithm::RoundRobin(before)) => round.continue_with(before, predecessors),
            (Algorithm::LeastConnections(least), Algorithm::LeastConnections(before)) => {
                least.continue_with(before, predecessors);
            }
            (Algorithm::PeakEwma(ewma), Algorithm::PeakEwma(before)) => ewma.continue_with(before, predecessors),
            // All other algorithms have no state, or none that another algorithm could use.
            _ => {}
        }
        self
    }

    /// The index of a server for which `eligible` holds, or none if it holds for no server.
    ///
    /// `eligible` may be asked about a server more than once and must not change its mind.
    pub fn pick(&mut self, eligible: impl Fn(usize) -> bool, draw: Draw) -> Option<usize> {
        if self.slow_start.is_over() {
            return self.algorithm.pick(eligible, &self.loads, draw);
        }
        let share = |server: usize| match self.algorithm {
            // The first server is due everything.
            Algorithm::First { .. } => 1.0,
            _ => f64::from(self.weights[server]) / self.weights_total,
        };
        self.slow_start.advance(draw.now, share);
        let (slow_start, by_key) = (&self.slow_start, matches!(self.algorithm, Algorithm::ConsistentHash { .. }));
        let admits = |server: usize| match (by_key, draw.key) {
            (true, Some(key)) => slow_start.admits_key(server, fraction(mix(key ^ SLOW_START_SALT)), draw.now),
            _ => slow_start.admits(server),
        };
        let warm = |server: usize| eligible(server) && admits(server);
        let picked = self.algorithm.pick(warm, &self.loads, draw);
        let picked = picked.or_else(|| self.algorithm.pick(eligible, &self.loads, draw))?;
        self.slow_start.picked(picked);
        Some(picked)
    }

    /// The server is back after a failure, or new among others: its slow start begins.
    pub fn joined(&mut self, server: usize, now: u64) {
        self.slow_start.begin(server, now);
    }

    /// A request has a place at a server, until [`Balancer::ended`].
    pub fn began(&mut self, server: usize) {
        self.loads.began(server);
    }

    /// Records that the request has been sent whole: the server owes an answer, until [`Balancer::settled`].
    pub fn sent(&mut self, server: usize, now: u64) {
        if let Algorithm::PeakEwma(ewma) = &mut self.algorithm {
            ewma.sent(server, now);
        }
    }

    /// The answer has begun, or has failed.
    pub fn settled(&mut self, server: usize, now: u64) {
        if let Algorithm::PeakEwma(ewma) = &mut self.algorithm {
            ewma.settled(server, now);
        }
    }

    /// Records the result of a request, and the microseconds to the answer's head or to the failure.
    pub fn answered(&mut self, server: usize, latency_us: u64, verdict: Verdict, now: u64) {
        if let Algorithm::PeakEwma(ewma) = &mut self.algorithm {
            ewma.answered(server, latency_us, verdict, &self.loads, now);
        }
    }

    /// Nothing of the request is in flight any more.
    pub fn ended(&mut self, server: usize) {
        self.loads.ended(server);
    }

    /// Records that the answer is no longer waited for, after so many microseconds since the request was sent.
    pub fn abandoned(&mut self, server: usize, waited_us: u64, now: u64) {
        if let Algorithm::PeakEwma(ewma) = &mut self.algorithm {
            ewma.abandoned(server, waited_us, now);
        }
    }

    /// Writes down what servers' latencies are taken for, for those who look from outside.
    pub fn report(&self, now: u64) {
        if let Algorithm::PeakEwma(ewma) = &self.algorithm {
            for server in 0..self.weights.len() {
                self.loads.note_latency(server, ewma.latency(server, &self.loads, now) as u64);
            }
        }
    }
}

impl Algorithm {
    fn pick(&mut self, eligible: impl Fn(usize) -> bool, loads: &CoreLoads, draw: Draw) -> Option<usize> {
        match self {
            Self::RoundRobin(round) => round.pick(eligible),
            Self::Random(chance) => chance.pick(eligible, draw.random),
            Self::LeastConnections(least) => least.pick(eligible, loads),
            Self::PeakEwma(ewma) => ewma.pick(eligible, loads, draw.random, draw.now),
            Self::ConsistentHash { table, bound_percent } => {
                table.pick(eligible, draw.key.unwrap_or(draw.random), *bound_percent, loads)
            }
            Self::First { order } => first::pick(order, eligible),
        }
    }
}

/// Which keys a warming server gets first has nothing to do with which server a key has.
const SLOW_START_SALT: u64 = 0x5157_AB1E_5107_57A7;

#[cfg(test)]
mod tests;
