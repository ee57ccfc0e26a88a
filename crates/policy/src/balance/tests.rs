//! Promises of all balancing algorithms, and of the random ones.

use super::*;

fn alone(method: Method, weights: &[u16]) -> Balancer {
    Balancer::new(method, weights, 0, 0, Loads::new(weights.len(), 1).for_core(0))
}

fn table(servers: usize) -> Arc<Maglev> {
    let identities: Vec<u64> = (0..servers as u64).map(mix).collect();
    Arc::new(Maglev::new(&identities, &vec![1; servers]))
}

fn methods(servers: usize) -> [Method; 6] {
    [
        Method::RoundRobin,
        Method::Random,
        Method::LeastConnections,
        Method::PeakEwma { decay_millis: 10_000 },
        Method::ConsistentHash { table: table(servers), bound_percent: 125 },
        Method::First { order: (0..servers).collect() },
    ]
}

fn draw(random: u64) -> Draw {
    Draw { key: None, random, now: 0 }
}

#[test]
fn random_keeps_the_weights_in_the_long_run_with_and_without_ineligible_servers() {
    let weights = [1, 2, 5, 8];
    let mut random = fastrand::Rng::with_seed(7);
    let mut balancer = alone(Method::Random, &weights);
    for out in [None, Some(0), Some(3)] {
        let mut shares = [0.0; 4];
        for _ in 0..100_000 {
            shares[balancer.pick(|server| Some(server) != out, draw(random.u64(..))).unwrap()] += 1.0 / 100_000.0;
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
fn an_ineligible_server_is_never_picked_and_none_is_picked_only_when_none_is_eligible() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let weights: Vec<u16> = (0..random.usize(0..12)).map(|_| random.u16(1..=256)).collect();
        for method in methods(weights.len()) {
            let loads = Loads::new(weights.len(), 1).for_core(0);
            let mut balancer = Balancer::new(method, &weights, random.u64(..), 1_000, loads);
            for now in 0..200 {
                let up: Vec<bool> = weights.iter().map(|_| random.u8(0..4) == 0).collect();
                if let Some(server) = (!up.is_empty() && random.u8(0..20) == 0).then(|| random.usize(0..up.len())) {
                    balancer.joined(server, now);
                }
                let draw = Draw { key: random.bool().then(|| random.u64(..)), random: random.u64(..), now };
                match balancer.pick(|server| up[server], draw) {
                    Some(server) => {
                        assert!(up[server], "seed {seed}");
                        balancer.began(server);
                        balancer.sent(server, now);
                        if random.bool() {
                            balancer.settled(server, now);
                            balancer.answered(server, random.u64(..), Verdict::Failure, now);
                        }
                    }
                    None => assert!(!up.contains(&true), "seed {seed}"),
                }
            }
        }
    }
}

#[test]
fn first_takes_the_first_that_has_room() {
    let mut balancer = alone(Method::First { order: [2, 0, 1].into() }, &[1, 1, 1]);
    assert_eq!(balancer.pick(|_| true, draw(9)), Some(2));
    assert_eq!(balancer.pick(|server| server < 2, draw(9)), Some(0));
    assert_eq!(balancer.pick(|_| false, draw(9)), None);
}

#[test]
fn least_connections_fills_up_in_proportion_to_the_weights() {
    for seed in 0..50 {
        let mut random = fastrand::Rng::with_seed(seed);
        let weights: Vec<u16> = (0..random.usize(1..10)).map(|_| random.u16(1..=9)).collect();
        let mut balancer = alone(Method::LeastConnections, &weights);
        let total: u16 = weights.iter().sum();
        for _ in 0..total * 3 {
            let server = balancer.pick(|_| true, draw(0)).unwrap();
            balancer.began(server);
        }
        let loads: Vec<u32> = (0..weights.len()).map(|server| balancer.loads.in_flight(server)).collect();
        let expected: Vec<u32> = weights.iter().map(|weight| u32::from(*weight) * 3).collect();
        assert_eq!(loads, expected, "seed {seed}");
    }
}

#[test]
fn least_connections_with_nothing_in_flight_goes_by_turns() {
    let mut balancer = alone(Method::LeastConnections, &[3, 1]);
    let mut shares = [0; 2];
    for _ in 0..400 {
        shares[balancer.pick(|_| true, draw(0)).unwrap()] += 1;
    }
    assert_eq!(shares, [300, 100]);
}

#[test]
fn extreme_draws_stay_in_range() {
    let mut balancer = alone(Method::Random, &[256, 1]);
    assert_eq!(balancer.pick(|_| true, draw(0)), Some(0));
    assert_eq!(balancer.pick(|_| true, draw(u64::MAX)), Some(1));
    assert_eq!(balancer.pick(|server| server == 0, draw(u64::MAX)), Some(0));
}

#[test]
fn a_server_that_comes_back_gets_a_share_that_rises_to_what_it_is_due() {
    for method in [Method::RoundRobin, Method::Random, Method::LeastConnections] {
        let weights = [1; 5];
        let loads = Loads::new(5, 1).for_core(0);
        let mut balancer = Balancer::new(method.clone(), &weights, 0, 30_000, loads);
        let mut random = fastrand::Rng::with_seed(3);
        balancer.joined(2, 0);
        let mut tenths = [0; 12];
        for now in 0..36_000 {
            let draw = Draw { key: None, random: random.u64(..), now };
            let server = balancer.pick(|_| true, draw).unwrap();
            tenths[(now / 3_000) as usize] += u32::from(server == 2);
        }
        // A warm server has 600 of 3,000.
        assert!((60..200).contains(&tenths[0]), "{method:?}: {tenths:?}");
        assert!((250..450).contains(&tenths[4]), "{method:?}: {tenths:?}");
        assert!((450..660).contains(&tenths[9]), "{method:?}: {tenths:?}");
        assert!((530..670).contains(&tenths[10]) && (530..670).contains(&tenths[11]), "{method:?}: {tenths:?}");
    }
}

#[test]
fn a_server_that_comes_back_idle_is_not_everybodys_choice_at_once() {
    let loads = Loads::new(10, 1).for_core(0);
    let mut balancer = Balancer::new(Method::LeastConnections, &[1; 10], 0, 30_000, loads);
    for _ in 0..900 {
        let server = balancer.pick(|server| server != 0, draw(0)).unwrap();
        balancer.began(server);
    }
    balancer.joined(0, 0);
    let picks = (0..90).filter(|_| {
        let server = balancer.pick(|_| true, draw(0)).unwrap();
        balancer.began(server);
        server == 0
    });
    assert!(picks.count() <= 1);
}

#[test]
fn keys_come_back_to_a_warming_server_once_each() {
    let loads = Loads::new(4, 1).for_core(0);
    let method = Method::ConsistentHash { table: table(4), bound_percent: 125 };
    let mut balancer = Balancer::new(method, &[1; 4], 0, 10_000, loads);
    let mut pick = |key: u64, now| balancer.pick(|_| true, Draw { key: Some(key), random: 0, now }).unwrap();
    let home: Vec<usize> = (0..1_000).map(|key| pick(key, 0)).collect();
    balancer.joined(1, 0);
    let mut pick = |key: u64, now| balancer.pick(|_| true, Draw { key: Some(key), random: 0, now }).unwrap();
    let mut back = vec![false; 1_000];
    for now in (0..10_000).step_by(1_000) {
        for key in 0..1_000 {
            let server = pick(key as u64, now);
            assert!(server == home[key] || home[key] == 1, "a key of a warm server moved");
            assert!(!(back[key] && server != home[key]), "a key moved away again");
            back[key] |= home[key] == 1 && server == 1;
        }
    }
    assert!((0..1_000).all(|key| pick(key as u64, 10_000) == home[key]));
}

#[test]
fn a_backend_of_warming_servers_alone_is_used_all_the_same() {
    let loads = Loads::new(2, 1).for_core(0);
    let mut balancer = Balancer::new(Method::RoundRobin, &[1, 1], 0, 30_000, loads);
    balancer.joined(0, 0);
    balancer.joined(1, 0);
    for now in 0..100 {
        assert!(balancer.pick(|_| true, Draw { key: None, random: 0, now }).is_some());
    }
}

#[test]
fn keys_are_the_same_on_every_engine() {
    assert_eq!(key_of(b""), 0xe220a8397b1dcdaf);
    assert_eq!(key_of(b"/orders/1234567"), 0xfef5a7dfc8123e0c);
    assert_ne!(key_of(b"a"), key_of(b"a\0"));
    assert_ne!(key_of(b"/orders/1234567"), key_of(b"/orders/1234568"));
    let buckets = (0..10_000).fold([0; 16], |mut buckets, number: u32| {
        buckets[(key_of(format!("client-{number}").as_bytes()) >> 60) as usize] += 1;
        buckets
    });
    assert!(buckets.iter().all(|count| (500..750).contains(count)), "{buckets:?}");
}

#[test]
fn a_balancer_that_follows_another_knows_what_that_one_has_learnt_of_the_servers_that_stay() {
    let loads = Loads::new(3, 1);
    let of = |method: Method| Balancer::new(method, &[1, 1, 1], 0, 1_000, loads.for_core(0));
    let predecessors = Predecessors::by_identity(b"cda", b"abc");
    for method in methods(3) {
        let mut first = of(method.clone());
        first.joined(2, 0);
        let mut next = of(method).succeeding(&first, &predecessors);
        // The server is warm at the same time as it would have been.
        assert!(!next.slow_start.is_over() && !next.slow_start.admits(0) && next.slow_start.admits(2));
        next.pick(|_| true, Draw { key: None, random: 0, now: 1_000 });
        assert!(next.slow_start.is_over());
    }
    let slow = Method::PeakEwma { decay_millis: 10_000 };
    let mut first = of(slow.clone());
    for server in 0..3 {
        first.answered(server, 1_000 << (4 * server), Verdict::Success, 5);
    }
    let next = of(slow).succeeding(&first, &predecessors);
    next.report(5);
    let known: Vec<u64> = (0..3).map(|server| loads.latencies_us(server).sum()).collect();
    assert_eq!(known, [256_000, 0, 1_000]);
}
