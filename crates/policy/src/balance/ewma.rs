//! Power of two choices by peak-EWMA latency: of two servers drawn by weight, the one that would answer sooner.
//!
//! The cost of a server is its latency times the requests that are in flight there. The latency is an average that
//! rises at once and falls slowly (Finagle's peak EWMA), so that a server that became slow loses its traffic with the
//! first answer that says so. Three things keep the average honest:
//!
//! * A server that owes an answer for longer than its average is as slow as that wait shows, before any answer comes.
//! * A failure is no measurement of speed. Its share of the answers, squared, times a penalty of many times what others cost
//!   is added: a server that fails fast is dear, one that fails once in a hundred times is not.
//! * Without traffic a server is forgiven: average and failures fade with time, until it is tried with one request. If that fails
//!   as well they count as they did before, so that it is tried ever less often.

use super::hash::mix;
use super::loads::CoreLoads;
use super::random::Random;
use crate::predecessors::Predecessors;

/// Weight of an answer in the share of failures.
const FAILURE_WEIGHT: f64 = 1.0 / 8.0;
/// Cost of a server that only fails, relative to the average of the others.
const PENALTY_FACTOR: f64 = 30.0;
/// Bounds of that penalty, in microseconds.
const PENALTY_MIN: f64 = 30_000.0;
const PENALTY_MAX: f64 = 60_000_000.0;
/// Latency assumed of a server that owes its very first answer, in microseconds.
const UNKNOWN: f64 = 1_000_000.0;

/// Quality of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Success,
    Failure,
}

#[derive(Clone, Debug)]
pub(super) struct PeakEwma {
    draw: Random,
    servers: Box<[Server]>,
    /// Milliseconds in which an average falls to 1/e of its distance.
    decay: f64,
}

#[derive(Clone, Debug, Default)]
struct Server {
    /// In microseconds; 0 before the first answer.
    latency: f64,
    /// Share of answers that were failures, the recent ones weighing most.
    failures: f64,
    /// Cost of a share of 1, in microseconds.
    penalty: f64,
    /// When the two were last brought up to date, in milliseconds.
    at: u64,
    /// Requests of this core that have been sent and not been answered.
    waiting: u32,
    /// Since when there was no answer though one was owed, in milliseconds.
    waiting_since: u64,
}

impl PeakEwma {
    pub fn new(weights: &[u16], decay_millis: u64) -> Self {
        let servers = vec![Server::default(); weights.len()].into();
        Self { draw: Random::new(weights), servers, decay: decay_millis.max(1) as f64 }
    }

    /// Answers that these servers owe are owed to the earlier balancer, which waits for them.
    pub fn continue_with(&mut self, earlier: &PeakEwma, predecessors: &Predecessors) {
        for (server, before) in predecessors.pairs() {
            self.servers[server] = Server { waiting: 0, ..earlier.servers[before].clone() };
        }
    }

    pub fn pick(&self, eligible: impl Fn(usize) -> bool, loads: &CoreLoads, random: u64, now: u64) -> Option<usize> {
        let one = self.draw.pick(&eligible, random)?;
        let Some(other) = self.draw.pick(|server| server != one && eligible(server), mix(!random)) else {
            return Some(one);
        };
        // The first drawn among equals keeps the shares by weight.
        Some(if self.cost(other, loads, now) < self.cost(one, loads, now) { other } else { one })
    }

    /// The request is with the server, who owes an answer from here on.
    pub fn sent(&mut self, server: usize, now: u64) {
        let server = &mut self.servers[server];
        if server.waiting == 0 {
            server.waiting_since = now;
        }
        server.waiting += 1;
    }

    /// No answer is owed any more: it came, or it is known that it will not.
    pub fn settled(&mut self, server: usize, now: u64) {
        let server = &mut self.servers[server];
        server.waiting = server.waiting.saturating_sub(1);
        server.waiting_since = now;
    }

    /// Nobody waits any more: the answer would have taken this long at least.
    pub fn abandoned(&mut self, server: usize, waited_us: u64, now: u64) {
        let server = &mut self.servers[server];
        server.waiting = server.waiting.saturating_sub(1);
        if server.latency < waited_us as f64 {
            server.latency = waited_us as f64;
            server.at = now;
        }
    }

    pub fn answered(&mut self, server: usize, latency_us: u64, verdict: Verdict, loads: &CoreLoads, now: u64) {
        let latency = latency_us as f64;
        let fade = self.fade(server, now);
        match verdict {
            Verdict::Success => {
                let server = &mut self.servers[server];
                let rises = server.latency < latency;
                server.latency = if rises { latency } else { server.latency * fade + latency * (1.0 - fade) };
                server.failures *= fade * (1.0 - FAILURE_WEIGHT);
                server.at = now;
            }
            Verdict::Failure => {
                let penalty = self.penalty(server, loads);
                let server = &mut self.servers[server];
                // A fast failure says nothing of latency; a slow one does.
                server.latency = server.latency.max(latency);
                // Without `fade`: it was left alone for having failed, and has not become better by that.
                server.failures = server.failures * (1.0 - FAILURE_WEIGHT) + FAILURE_WEIGHT;
                server.penalty = penalty;
                server.at = now;
            }
        }
    }

    /// The server's latency now, in microseconds, with the penalty for its failures.
    pub fn latency(&self, server: usize, loads: &CoreLoads, now: u64) -> f64 {
        let state = &self.servers[server];
        let owed = match state.waiting {
            0 => 0.0,
            _ => (now.saturating_sub(state.waiting_since) * 1_000) as f64,
        };
        let measured = state.latency.max(owed) + state.failures * state.failures * state.penalty;
        match loads.in_flight(server) {
            0 => measured * self.fade(server, now),
            // One request goes out to see whether it is to be forgiven, not all there are.
            _ if state.latency == 0.0 => measured.max(UNKNOWN),
            _ => measured,
        }
    }

    fn cost(&self, server: usize, loads: &CoreLoads, now: u64) -> f64 {
        self.latency(server, loads, now) * self.crowd(server, loads)
    }

    /// One and the requests in flight, measured by the server's share of the weights.
    fn crowd(&self, server: usize, loads: &CoreLoads) -> f64 {
        let mean = self.draw.weights() as f64 / self.servers.len() as f64;
        1.0 + f64::from(loads.in_flight(server)) * mean / self.draw.weight(server).max(1) as f64
    }

    /// Share of an average that is left after the time since its last update.
    fn fade(&self, server: usize, now: u64) -> f64 {
        (-(now.saturating_sub(self.servers[server].at) as f64) / self.decay).exp()
    }

    /// Penalty relative to the others' cost without their own penalties: failing together, servers would drive each
    /// other's up.
    fn penalty(&self, failed: usize, loads: &CoreLoads) -> f64 {
        let (mut sum, mut count) = (0.0, 0.0);
        let others = (0..self.draw.servers()).filter(|server| *server != failed);
        for server in others.filter(|server| self.servers[*server].latency > 0.0) {
            sum += self.servers[server].latency * self.crowd(server, loads);
            count += 1.0;
        }
        let mean = if count > 0.0 { sum / count } else { UNKNOWN / PENALTY_FACTOR };
        (mean * PENALTY_FACTOR).clamp(PENALTY_MIN, PENALTY_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::super::loads::Loads;
    use super::*;

    fn idle(servers: usize) -> CoreLoads {
        Loads::new(servers, 1).for_core(0)
    }

    #[test]
    fn the_average_rises_at_once_and_falls_with_time() {
        let loads = idle(2);
        let mut ewma = PeakEwma::new(&[1, 1], 10_000);
        ewma.answered(0, 1_000, Verdict::Success, &loads, 0);
        ewma.answered(0, 50_000, Verdict::Success, &loads, 1);
        assert_eq!(ewma.latency(0, &loads, 1), 50_000.0);
        ewma.answered(0, 1_000, Verdict::Success, &loads, 10_001);
        let expected = 1_000.0 + 49_000.0 / std::f64::consts::E;
        assert!((ewma.latency(0, &loads, 10_001) - expected).abs() < 1.0);
    }

    #[test]
    fn a_server_that_owes_an_answer_is_as_slow_as_the_wait_shows() {
        let loads = idle(2);
        let mut ewma = PeakEwma::new(&[1, 1], 10_000);
        ewma.answered(0, 1_000, Verdict::Success, &loads, 0);
        loads.began(0);
        ewma.sent(0, 100);
        assert_eq!(ewma.latency(0, &loads, 2_100), 2_000_000.0);
        ewma.settled(0, 2_100);
        assert_eq!(ewma.latency(0, &loads, 2_100), 1_000.0);
    }

    #[test]
    fn clients_that_give_up_do_not_hide_that_a_server_hangs() {
        let loads = idle(2);
        let mut ewma = PeakEwma::new(&[1, 1], 10_000);
        ewma.answered(0, 1_000, Verdict::Success, &loads, 0);
        ewma.sent(0, 0);
        ewma.abandoned(0, 2_000_000, 2_000);
        assert_eq!(ewma.latency(0, &loads, 2_000), 2_000_000.0);
        ewma.sent(0, 2_000);
        ewma.abandoned(0, 10, 2_000);
        assert_eq!(ewma.latency(0, &loads, 2_000), 2_000_000.0, "a client that goes at once says nothing");
    }

    #[test]
    fn a_server_without_an_answer_yet_gets_one_request_and_not_all() {
        let loads = idle(2);
        let mut ewma = PeakEwma::new(&[1, 1], 10_000);
        ewma.answered(1, 20_000, Verdict::Success, &loads, 0);
        for random in 0..10 {
            let picked = ewma.pick(|_| true, &loads, mix(random), 0).unwrap();
            assert_eq!(picked, usize::from(random > 0));
            if picked == 0 {
                loads.began(0);
                ewma.sent(0, 0);
            }
        }
    }

    /// One client that asks again when it has its answer: nothing is ever in flight but its request, and the averages of the
    /// server that it does not ask get old. The share of the requests that the first of two servers has, which fails at once.
    fn share_at_one_request_at_a_time(latency_ms: u64, requests: u64) -> f64 {
        let loads = idle(2);
        let mut ewma = PeakEwma::new(&[1, 1], 10_000);
        let (mut now, mut failed) = (0, 0);
        for request in 0..requests {
            let picked = ewma.pick(|_| true, &loads, mix(request), now).unwrap();
            loads.began(picked);
            ewma.sent(picked, now);
            let (latency_us, verdict) = match picked {
                0 => (100, Verdict::Failure),
                _ => (latency_ms * 1_000, Verdict::Success),
            };
            now += latency_us / 1_000;
            ewma.settled(picked, now);
            ewma.answered(picked, latency_us, verdict, &loads, now);
            loads.ended(picked);
            failed += u64::from(picked == 0);
        }
        failed as f64 / requests as f64
    }

    #[test]
    fn a_server_that_fails_each_time_it_is_tried_is_tried_ever_less_often() {
        for latency_ms in [1, 5, 20, 100, 200, 500] {
            // Ten minutes.
            let share = share_at_one_request_at_a_time(latency_ms, 600_000 / latency_ms);
            println!("{latency_ms} ms: {:.3} %", share * 100.0);
            // One in 30 s, and some at the beginning.
            let most = (20.0 + 600.0 / 28.0) * latency_ms as f64 / 600_000.0;
            assert!(share < most, "at {latency_ms} ms it has {share}");
        }
    }

    #[test]
    fn servers_that_fail_together_do_not_drive_each_others_penalty_up() {
        let loads = idle(3);
        let mut ewma = PeakEwma::new(&[1, 1, 1], 10_000);
        for server in 0..3 {
            ewma.answered(server, 1_000, Verdict::Success, &loads, 0);
        }
        for turn in 0..1_000 {
            ewma.answered(turn % 2, 100, Verdict::Failure, &loads, 1);
        }
        assert!(ewma.latency(0, &loads, 1) <= 1_000.0 + PENALTY_MIN);
        assert!(ewma.latency(0, &loads, 1) > 20.0 * ewma.latency(2, &loads, 1));
    }

    #[test]
    fn extreme_latencies_and_clocks_are_harmless() {
        let loads = idle(2);
        let mut ewma = PeakEwma::new(&[1, 256], 1);
        ewma.answered(0, u64::MAX, Verdict::Failure, &loads, u64::MAX);
        ewma.answered(0, 0, Verdict::Success, &loads, 0);
        ewma.settled(1, 5);
        ewma.sent(1, u64::MAX / 2);
        for now in [0, 1, u64::MAX / 1_000] {
            assert!(ewma.latency(0, &loads, now).is_finite());
            assert!(ewma.pick(|_| true, &loads, now, now).is_some());
        }
    }
}
