//! Servers with a limited number of hands, requests by chance, several cores with a balancer each: what becomes of shares
//! and waits.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;

/// A server that works on as many requests at once as it has hands; the others wait there.
#[derive(Clone)]
struct Server {
    weight: u16,
    hands: usize,
    /// Mean time of work on a request.
    work_us: f64,
    /// Outcome of a request that comes at this time, in microseconds.
    nature: fn(u64) -> Nature,
}

enum Nature {
    Works,
    /// So many times slower.
    Slow(f64),
    /// Answers with an error, in no time.
    FailsFast,
    /// Does not answer for ten seconds, and then with an error.
    Hangs,
}

const SERVER: Server = Server { weight: 1, hands: 4, work_us: 10_000.0, nature: |_| Nature::Works };

#[derive(Clone)]
struct World {
    method: Method,
    servers: Vec<Server>,
    cores: usize,
    /// The cores see each other's requests in flight.
    together: bool,
    /// Share of the capacity of all servers' hands.
    load: f64,
    seconds: f64,
    seed: u64,
}

struct Outcome {
    /// Picks by server and second.
    picks: Vec<Vec<u64>>,
    failures: u64,
    /// Durations of answered requests, sorted.
    times_us: Vec<u64>,
}

/// When, the core and the server, when it began, and whether it is a failure.
type End = (u64, usize, usize, u64, bool);

impl World {
    fn new(method: Method, servers: Vec<Server>, load: f64) -> World {
        World { method, servers, cores: 1, together: true, load, seconds: 60.0, seed: 1 }
    }

    fn run(&self) -> Outcome {
        let servers = &self.servers;
        let mut random = fastrand::Rng::with_seed(self.seed);
        let weights: Vec<u16> = servers.iter().map(|server| server.weight).collect();
        let shared = Loads::new(servers.len(), self.cores);
        let balancer = |core: usize| {
            let loads = if self.together { shared.for_core(core) } else { Loads::new(servers.len(), 1).for_core(0) };
            Balancer::new(self.method.clone(), &weights, core as u64, 0, loads)
        };
        let mut cores: Vec<Balancer> = (0..self.cores).map(balancer).collect();
        let mut hands: Vec<Vec<u64>> = servers.iter().map(|server| vec![0; server.hands]).collect();
        let per_us: f64 = servers.iter().map(|server| server.hands as f64 / server.work_us).sum::<f64>() * self.load;
        let mut ends: BinaryHeap<Reverse<End>> = BinaryHeap::new();
        let seconds = self.seconds as usize + 1;
        let picks = vec![vec![0; seconds]; servers.len()];
        let mut outcome = Outcome { picks, failures: 0, times_us: Vec::new() };
        let mut clock = 0.0;
        while clock < self.seconds * 1e6 {
            clock += exponential(&mut random, 1.0 / per_us);
            let now = clock as u64;
            while let Some(Reverse((at, core, server, began, failed))) =
                ends.peek().copied().filter(|end| end.0.0 <= now)
            {
                ends.pop();
                let verdict = if failed { Verdict::Failure } else { Verdict::Success };
                cores[core].settled(server, at / 1_000);
                cores[core].answered(server, at - began, verdict, at / 1_000);
                cores[core].ended(server);
                outcome.failures += u64::from(failed);
                if !failed {
                    outcome.times_us.push(at - began);
                }
            }
            let core = random.usize(0..self.cores);
            let draw = Draw { key: None, random: random.u64(..), now: now / 1_000 };
            let server = cores[core].pick(|_| true, draw).unwrap();
            cores[core].began(server);
            cores[core].sent(server, now / 1_000);
            outcome.picks[server][now as usize / 1_000_000 % seconds] += 1;
            let hand = hands[server].iter_mut().min().unwrap();
            let mut work = |times: f64| {
                *hand = (*hand).max(now) + exponential(&mut random, servers[server].work_us * times) as u64;
                (*hand, false)
            };
            let (at, failed) = match (servers[server].nature)(now) {
                Nature::Works => work(1.0),
                Nature::Slow(times) => work(times),
                Nature::FailsFast => (now + 100, true),
                Nature::Hangs => (now + 10_000_000, true),
            };
            ends.push(Reverse((at, core, server, now, failed)));
        }
        outcome.times_us.sort_unstable();
        outcome
    }
}

impl Outcome {
    /// Share of the requests that began in these seconds.
    fn share(&self, server: usize, from: usize, to: usize) -> f64 {
        let sum = |picks: &Vec<u64>| picks[from..to].iter().sum::<u64>();
        sum(&self.picks[server]) as f64 / self.picks.iter().map(sum).sum::<u64>() as f64
    }

    fn mean_us(&self) -> f64 {
        self.times_us.iter().sum::<u64>() as f64 / self.times_us.len() as f64
    }

    fn percentile_us(&self, percent: usize) -> u64 {
        self.times_us[self.times_us.len() * percent / 100]
    }
}

fn exponential(random: &mut fastrand::Rng, mean: f64) -> f64 {
    -(1.0 - random.f64()).ln() * mean
}

const EWMA: Method = Method::PeakEwma { decay_millis: 10_000 };

fn fair_methods() -> [Method; 4] {
    [Method::RoundRobin, Method::Random, Method::LeastConnections, EWMA]
}

/// Ten servers, the first of them special.
fn ten(first: Server) -> Vec<Server> {
    std::iter::once(first).chain(std::iter::repeat_n(SERVER, 9)).collect()
}

#[test]
fn equal_servers_get_equal_shares_and_none_is_starved() {
    for method in fair_methods() {
        for load in [0.1, 0.5, 0.9] {
            for seed in 1..3 {
                let world = World { seed, cores: 2, seconds: 40.0, ..World::new(method.clone(), ten(SERVER), load) };
                let outcome = world.run();
                for server in 0..10 {
                    let share = outcome.share(server, 0, 40);
                    let bounds = if matches!(method, Method::PeakEwma { .. }) { 0.05..0.18 } else { 0.09..0.11 };
                    assert!(bounds.contains(&share), "{method:?} at {load}, seed {seed}: server {server} has {share}");
                    for second in 0..4 {
                        let share = outcome.share(server, second * 10, second * 10 + 10);
                        assert!(share > 0.01, "{method:?} at {load}, seed {seed}: server {server} is starved");
                    }
                }
            }
        }
    }
}

#[test]
fn shares_follow_the_weights_of_servers_that_are_as_strong_as_these_say() {
    let servers: Vec<Server> =
        [1, 2, 4].iter().map(|weight| Server { weight: *weight, hands: usize::from(*weight) * 2, ..SERVER }).collect();
    for method in fair_methods() {
        let outcome = World::new(method.clone(), servers.clone(), 0.7).run();
        for (server, expected) in [1.0 / 7.0, 2.0 / 7.0, 4.0 / 7.0].into_iter().enumerate() {
            let share = outcome.share(server, 0, 60);
            let most = if matches!(method, Method::PeakEwma { .. }) { 0.45 } else { 0.2 };
            assert!((share / expected - 1.0).abs() < most, "{method:?}: server {server} has {share}, not {expected}");
        }
    }
}

#[test]
fn a_slow_server_gets_less_where_speed_or_load_counts_and_those_that_wait_are_fewer() {
    let slow = Server { nature: |_| Nature::Slow(10.0), ..SERVER };
    let run = |method| World::new(method, ten(slow.clone()), 0.5).run();
    let (blind, least, ewma) = (run(Method::RoundRobin), run(Method::LeastConnections), run(EWMA));
    assert!(blind.share(0, 5, 60) > 0.09);
    assert!(least.share(0, 5, 60) < 0.05, "{}", least.share(0, 5, 60));
    assert!(ewma.share(0, 5, 60) < 0.02, "{}", ewma.share(0, 5, 60));
    assert!(ewma.percentile_us(99) < 80_000, "{}", ewma.percentile_us(99));
    assert!(ewma.mean_us() < least.mean_us() && least.mean_us() < blind.mean_us());
}

#[test]
fn a_server_that_becomes_slow_loses_its_traffic_and_gets_it_back() {
    let changes = Server {
        nature: |now| if (20_000_000..40_000_000).contains(&now) { Nature::Slow(20.0) } else { Nature::Works },
        ..SERVER
    };
    let outcome = World { seconds: 90.0, ..World::new(EWMA, ten(changes), 0.5) }.run();
    assert!(outcome.share(0, 5, 20) > 0.05);
    assert!(outcome.share(0, 22, 40) < 0.015, "{}", outcome.share(0, 22, 40));
    assert!(outcome.share(0, 75, 90) > 0.05, "{}", outcome.share(0, 75, 90));
}

#[test]
fn a_server_that_fails_fast_does_not_attract_traffic() {
    for load in [0.05, 0.3, 0.8] {
        for servers in [2, 10] {
            let fails = Server { nature: |_| Nature::FailsFast, ..SERVER };
            let all = ten(fails).into_iter().take(servers).collect();
            // Load on the other servers.
            let load = load * (servers - 1) as f64 / servers as f64;
            let outcome = World { cores: 2, ..World::new(EWMA, all, load) }.run();
            let share = outcome.share(0, 5, 60);
            assert!(share < 0.06 / servers as f64, "{servers} servers at {load}: the failing one has {share}");
        }
    }
}

#[test]
fn fewest_in_flight_alone_does_attract_traffic_to_a_server_that_fails_fast() {
    // Known of every least-connections balancer: what fails at once is never in flight. The manual says so.
    let fails = Server { nature: |_| Nature::FailsFast, ..SERVER };
    assert!(World::new(Method::LeastConnections, ten(fails), 0.7).run().share(0, 5, 60) > 0.2);
}

#[test]
fn a_server_that_fails_for_a_time_gets_its_traffic_back() {
    let recovers = Server { nature: |now| if now < 30_000_000 { Nature::FailsFast } else { Nature::Works }, ..SERVER };
    let outcome = World { seconds: 90.0, ..World::new(EWMA, ten(recovers), 0.5) }.run();
    assert!(outcome.share(0, 3, 30) < 0.02);
    assert!(outcome.share(0, 70, 90) > 0.05, "{}", outcome.share(0, 70, 90));
}

#[test]
fn an_error_in_a_hundred_answers_costs_a_server_little() {
    let errs = Server { nature: |now| if now % 100 == 0 { Nature::FailsFast } else { Nature::Works }, ..SERVER };
    let share = World::new(EWMA, ten(errs), 0.5).run().share(0, 5, 60);
    assert!(share > 0.09, "{share}");
}

#[test]
fn a_server_that_hangs_is_left_alone_before_it_has_answered_anything() {
    let hangs = Server { nature: |now| if now > 20_000_000 { Nature::Hangs } else { Nature::Works }, ..SERVER };
    let outcome = World::new(EWMA, ten(hangs), 0.5).run();
    let stuck = |from, to| outcome.picks[0][from..to].iter().sum::<u64>();
    assert!(outcome.share(0, 5, 20) > 0.05);
    // 2,000 requests a second; ten seconds pass before the first of them fails.
    assert!(stuck(21, 29) < 100, "{}", stuck(21, 29));
    assert!(outcome.share(0, 21, 60) < 0.01, "{}", outcome.share(0, 21, 60));
}

/// The figures of docs/decisions/0026-balancing.md: `cargo test -p propylon-policy cores_that_see -- --nocapture`.
#[test]
fn cores_that_see_each_others_requests_in_flight_keep_the_waits_of_one() {
    let all = vec![SERVER; 8];
    for method in [Method::LeastConnections, EWMA] {
        let mean = |cores, together, load| {
            let runs = (1..4).map(|seed| {
                let world =
                    World { cores, together, seed, seconds: 30.0, ..World::new(method.clone(), all.clone(), load) };
                world.run().mean_us()
            });
            runs.sum::<f64>() / 3.0
        };
        for load in [0.7, 0.9] {
            let one = mean(1, true, load);
            for cores in [2, 4, 8] {
                let (apart, together) = (mean(cores, false, load), mean(cores, true, load));
                println!(
                    "{method:?} load {load}, {cores} cores: apart {apart:.0}, together {together:.0}, one core {one:.0}"
                );
                if matches!(method, Method::LeastConnections) {
                    assert!(together < one * 1.05 && together <= apart, "{cores} cores at {load}");
                }
            }
        }
    }
}
