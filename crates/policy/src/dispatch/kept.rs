//! Clients that stay, while others go or begin to work: what becomes of the fullest core when nobody comes any more,
//! and how often a connection is moved.

use super::rebalance::{HOST_MILLIS, Moves};
use super::*;

const TICK_MILLIS: u64 = 100;

/// A client that stays.
#[derive(Clone, Copy, Default)]
struct Client {
    core: usize,
    /// Busy time that it makes, in thousandths of a core's.
    weight: f64,
    moves: Moves,
    moved: u32,
}

struct World {
    cores: Vec<Dispatch>,
    loads: Vec<Load>,
    host_until: Vec<u64>,
    clients: Vec<Client>,
    random: fastrand::Rng,
    tick: u64,
}

impl World {
    /// Clients as core and weight.
    fn new(cores: usize, clients: &[(usize, f64)], seed: u64) -> World {
        let client = |(core, weight): &(usize, f64)| Client { core: *core, weight: *weight, ..Client::default() };
        World {
            cores: (0..cores).map(|core| Dispatch::new(core, cores, u32::MAX)).collect(),
            loads: vec![Load::default(); cores],
            host_until: vec![0; cores],
            clients: clients.iter().map(client).collect(),
            random: fastrand::Rng::with_seed(seed),
            tick: 1,
        }
    }

    /// Busy time that the clients of each core make.
    fn works(&self) -> Vec<f64> {
        let mut works = vec![0.0; self.cores.len()];
        self.clients.iter().for_each(|client| works[client.core] += client.weight);
        works
    }

    fn counts(&self) -> Vec<u32> {
        let mut counts = vec![0; self.cores.len()];
        self.clients.iter().for_each(|client| counts[client.core] += 1);
        counts
    }

    fn moved(&self) -> u32 {
        self.clients.iter().map(|client| client.moved).sum()
    }

    /// Work of the fullest core to the mean.
    fn fullest(&self) -> f64 {
        let works = self.works();
        works.iter().copied().fold(0.0, f64::max) * works.len() as f64 / works.iter().sum::<f64>()
    }

    fn run(&mut self, ticks: u64) {
        (0..ticks).for_each(|_| self.tick());
    }

    fn tick(&mut self) {
        self.tick += 1;
        let now = self.tick * TICK_MILLIS;
        let works = self.works();
        for (core, count) in self.counts().into_iter().enumerate() {
            // One of twenty parts of a measure is chance.
            let busy = (works[core] * (0.95 + self.random.f64() * 0.1)).min(1_000.0) as u32;
            let load = &mut self.loads[core];
            load.connections = count;
            (load.busy, load.busy_connections) = (mean(load.busy, busy), mean(load.busy_connections, count));
        }
        for core in 0..self.cores.len() {
            let (loads, until) = (&self.loads, &self.host_until);
            let load = |other: usize| (now >= until[other]).then(|| loads[other]);
            let mut host = None;
            self.cores[core].tick();
            self.cores[core].rebalance(load, loads[core], |to| host.replace(to).is_none());
            host.into_iter().for_each(|to| self.host_until[to] = now + HOST_MILLIS);
        }
        self.requests(now, &works);
    }

    /// Each client's requests of a tick: one for ten thousandths of a core's time, by chance, as far as the core can.
    fn requests(&mut self, now: u64, works: &[f64]) {
        let mut asked: Vec<usize> = Vec::new();
        // Cores that do not ask are not told, which saves nine tenths of the time.
        let asking = |client: &Client| self.cores[client.core].is_attentive();
        for (number, client) in self.clients.iter().enumerate().filter(|(_, client)| asking(client)) {
            let rate = client.weight / 10.0 * (1_000.0 / works[client.core]).min(1.0);
            let count = (rate * (0.5 + self.random.f64())) as usize;
            let rest = self.random.f64() < (rate * (0.5 + self.random.f64())).fract();
            asked.extend(std::iter::repeat_n(number, count + usize::from(rest)));
        }
        self.random.shuffle(&mut asked);
        for number in asked {
            let client = &mut self.clients[number];
            let core = &mut self.cores[client.core];
            if !client.moves.allow(now) {
                core.note_other();
            } else if let Some(to) = core.note_rest(number as u32) {
                assert_ne!(to, client.core);
                (client.core, client.moves, client.moved) = (to, client.moves.and_one(now), client.moved + 1);
            }
        }
    }
}

/// Clients with these weights, placed by chance.
fn placed(cores: usize, weights: impl IntoIterator<Item = f64>, seed: u64) -> Vec<(usize, f64)> {
    let mut random = fastrand::Rng::with_seed(seed ^ 0x5eed);
    weights.into_iter().map(|weight| (random.usize(..cores), weight)).collect()
}

/// Ten seconds are enough, and ten minutes change nothing any more.
#[test]
fn of_eight_kept_clients_four_leave_from_one_core_and_those_that_stay_are_shared() {
    for seed in 0..20 {
        for weight in [110.0, 150.0, 250.0, 400.0] {
            let eight: Vec<(usize, f64)> = (0..8).map(|client| (client % 2, weight)).collect();
            let mut world = World::new(2, &eight, seed);
            world.run(100);
            assert_eq!((world.counts(), world.moved()), (vec![4, 4], 0), "seed {seed}, {weight}");
            world.clients.retain(|client| client.core == 0);
            world.run(100);
            assert_eq!((world.counts(), world.moved()), (vec![2, 2], 2), "seed {seed}, {weight}");
            world.run(6_000);
            assert_eq!(world.moved(), 2, "seed {seed}, {weight}");
        }
    }
}

#[test]
fn four_of_eight_kept_clients_become_heavy_and_each_core_has_two_of_them() {
    for seed in 0..50 {
        let mut world = World::new(2, &[(0, 5.0), (1, 5.0)].repeat(4), seed);
        world.run(50);
        assert_eq!(world.moved(), 0, "seed {seed}: there is nothing to do");
        let mut heavy: Vec<usize> = (0..8).collect();
        world.random.shuffle(&mut heavy);
        heavy[..4].iter().for_each(|client| world.clients[*client].weight = 220.0);
        world.run(200);
        let works = world.works();
        assert!((works[0] - works[1]).abs() < 50.0 && world.moved() <= 4, "seed {seed}: {works:?}");
        let moved = world.moved();
        world.run(6_000);
        assert_eq!(world.moved(), moved, "seed {seed}");
    }
}

#[test]
fn a_client_that_is_the_whole_difference_stays_and_others_make_room_for_it_once() {
    for seed in 0..20 {
        let mut clients = vec![(0, 700.0)];
        clients.extend(placed(2, [30.0; 6], seed));
        let mut world = World::new(2, &clients, seed);
        world.run(6_000);
        assert_eq!(world.clients[0].moved, 0, "seed {seed}");
        assert!(world.moved() <= 6 && world.clients.iter().all(|client| client.moved <= 1), "seed {seed}");
    }
}

#[test]
fn cores_that_have_as_much_to_do_as_the_others_keep_what_they_have() {
    for seed in 0..3 {
        for cores in [2, 16, 64] {
            let even: Vec<(usize, f64)> = (0..cores * 50).map(|client| (client % cores, 12.0)).collect();
            let mut world = World::new(cores, &even, seed);
            world.run(300);
            assert_eq!(world.moved(), 0, "seed {seed}, {cores} cores");
        }
    }
}

/// Weights by Zipf's law that change all the time: half of the cores have clients too many after each change.
#[test]
fn nobody_goes_to_and_fro_whatever_clients_do() {
    for seed in 0..10 {
        let mut world = World::new(4, &placed(4, [0.0; 40], seed), seed);
        let mut times: Vec<Vec<u64>> = vec![Vec::new(); 40];
        for tick in 0..12_000 {
            if tick % 100 == 0 {
                for client in 0..40 {
                    world.clients[client].weight = (20.0 / world.random.f64().max(0.02)).min(400.0);
                }
            }
            let before: Vec<u32> = world.clients.iter().map(|client| client.moved).collect();
            world.tick();
            let moved = (0..40).filter(|client| world.clients[*client].moved > before[*client]);
            moved.for_each(|client| times[client].push(tick));
        }
        assert!(world.moved() > 0);
        for times in times {
            assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= 100), "seed {seed}: {times:?}");
            assert!(times.len() <= 10, "seed {seed}: {times:?}");
        }
    }
}

#[test]
fn clients_of_very_unequal_weight_that_came_by_chance_are_spread_in_a_minute() {
    for cores in [4, 16, 64] {
        for seed in 0..3 {
            let outcome = Outcome::of(cores, 50, seed);
            assert!(outcome.after <= 1.25_f64.min(outcome.before), "{cores} cores, seed {seed}: {outcome:?}");
            assert!(outcome.moved <= 0.05, "{cores} cores, seed {seed}: {outcome:?}");
        }
    }
}

#[derive(Debug)]
struct Outcome {
    /// The fullest core to the mean.
    before: f64,
    after: f64,
    /// Moves for each client.
    moved: f64,
}

impl Outcome {
    /// Clients whose weights are 1 to 30 by Zipf's law, a minute after they have come by chance to cores that are busy
    /// for six tenths.
    fn of(cores: usize, each: usize, seed: u64) -> Outcome {
        let mut random = fastrand::Rng::with_seed(seed);
        let weights: Vec<f64> = (0..cores * each).map(|_| (1.0 / random.f64().max(1e-3)).floor().min(30.0)).collect();
        let unit = 600.0 * cores as f64 / weights.iter().sum::<f64>();
        let clients = placed(cores, weights.iter().map(|weight| weight * unit), seed);
        let mut world = World::new(cores, &clients, seed);
        let before = world.fullest();
        world.run(600);
        Outcome { before, after: world.fullest(), moved: f64::from(world.moved()) / clients.len() as f64 }
    }
}

#[test]
#[ignore = "long: prints the figures of the decision record"]
fn table() {
    for cores in [2, 4, 16, 64] {
        for each in [8, 50, 500] {
            let outcomes: Vec<Outcome> = (0..5).map(|seed| Outcome::of(cores, each, seed)).collect();
            let mean = |of: fn(&Outcome) -> f64| outcomes.iter().map(of).sum::<f64>() / outcomes.len() as f64;
            let (before, after, moved) = (mean(|o| o.before), mean(|o| o.after), mean(|o| o.moved));
            println!("{cores:3} cores, {each:3} clients each: {before:.2} before, {after:.2} after, {moved:.3} moved");
        }
    }
}
