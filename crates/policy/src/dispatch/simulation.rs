//! Cores whose clients come by the kernel's hash, weigh as they like and stay as long as they like: what becomes of the
//! fullest core, and how many clients change cores.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;

#[derive(Clone, Copy)]
struct World {
    cores: usize,
    /// Clients that come in a tick, over all cores.
    arrivals: f64,
    /// Mean ticks that a client stays for.
    stay: f64,
    /// Weights are 1 to so many, the weight w with a chance of w^-2 (Zipf); 1: all are equal.
    heaviest: u64,
    /// Share of the hash that is core 0's beyond its own.
    bias: f64,
    /// Whether cores hand clients over at all.
    is_on: bool,
    seed: u64,
}

#[derive(Debug)]
struct Outcome {
    /// Weight of the fullest core to the mean, at 99 of 100 ticks.
    fullest: f64,
    /// Hand-overs for each client.
    handed_over: f64,
}

/// Ticks until a world is as it will be, in mean stays, and ticks that are measured.
const WARM_UP_STAYS: f64 = 4.0;
const MEASURED: usize = 600;

impl World {
    fn new(cores: usize, each: f64, stay: f64) -> World {
        let arrivals = each * cores as f64 / stay;
        World { cores, arrivals, stay, heaviest: 1, bias: 0.0, is_on: true, seed: 1 }
    }

    fn run(self) -> Outcome {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let weights: Vec<f64> = (1..=self.heaviest).map(|weight| (weight as f64).powi(-2)).collect();
        let all: f64 = weights.iter().sum();
        let usual: f64 =
            (1..=self.heaviest).zip(&weights).map(|(weight, part)| weight as f64 * part).sum::<f64>() / all;
        // Busy thousandths of one unit of weight: cores are busy for six tenths of their time.
        let unit = 600.0 * self.cores as f64 / (self.arrivals * self.stay * usual);
        let mut cores: Vec<Dispatch> = (0..self.cores).map(|core| Dispatch::new(core, self.cores, u32::MAX)).collect();
        let mut loads = vec![Load::default(); self.cores];
        let mut weight = vec![0_u64; self.cores];
        let mut ends: BinaryHeap<Reverse<(u64, usize, u64)>> = BinaryHeap::new();
        let (mut clients, mut moved, mut fullest) = (0_u64, 0_u64, Vec::new());
        let warm_up = (WARM_UP_STAYS * self.stay) as usize;
        let mut clock = 0.0;
        for tick in 0..warm_up + MEASURED {
            while clock < (tick + 1) as f64 {
                clock += -random.f64().max(1e-12).ln() / self.arrivals;
                while let Some(Reverse((at, core, heavy))) =
                    ends.peek().copied().filter(|end| end.0.0 as f64 <= clock * 1e6)
                {
                    ends.pop();
                    assert!(at > 0);
                    weight[core] -= heavy;
                    loads[core].connections -= 1;
                }
                let accepting = if random.f64() < self.bias { 0 } else { random.usize(0..self.cores) };
                let bits = random.u64(..);
                let picked = cores[accepting].pick(|core| loads[core], bits).filter(|_| self.is_on);
                let core = picked.map_or(accepting, |(core, _)| core);
                let mut draw = random.f64() * all;
                let heavy = weights.iter().position(|part| {
                    draw -= part;
                    draw <= 0.0
                });
                let heavy = heavy.unwrap_or(0) as u64 + 1;
                weight[core] += heavy;
                loads[core].connections += 1;
                let stay = -random.f64().max(1e-12).ln() * self.stay;
                ends.push(Reverse((((clock + stay) * 1e6) as u64 + 1, core, heavy)));
                if tick >= warm_up {
                    clients += 1;
                    moved += u64::from(picked.is_some());
                }
            }
            for core in 0..self.cores {
                let now = (weight[core] as f64 * unit).min(1_000.0);
                let load = &mut loads[core];
                load.busy = mean(load.busy, now as u32);
                load.busy_connections = mean(load.busy_connections, load.connections);
                cores[core].tick();
            }
            if tick >= warm_up {
                let most = *weight.iter().max().unwrap_or(&0) as f64;
                fullest.push(most * self.cores as f64 / weight.iter().sum::<u64>().max(1) as f64);
            }
        }
        fullest.sort_by(f64::total_cmp);
        Outcome { fullest: fullest[fullest.len() * 99 / 100], handed_over: moved as f64 / clients.max(1) as f64 }
    }
}

const CORES: [usize; 4] = [2, 4, 16, 64];
const STAYS_LONG: f64 = 100.0;
const GONE_SOON: f64 = 5.0;

#[test]
fn with_an_even_hash_and_equal_clients_few_change_cores_and_no_core_is_much_fuller_than_the_others() {
    for cores in CORES {
        for (seed, stay) in [(1, STAYS_LONG), (2, STAYS_LONG), (3, GONE_SOON)] {
            let outcome = World { seed, ..World::new(cores, 500.0, stay) }.run();
            assert!(outcome.handed_over <= 0.02 && outcome.fullest <= 1.15, "{cores} cores, seed {seed}: {outcome:?}");
        }
    }
}

/// The heaviest is a fortieth of a core's load; heavier ones no policy could put anywhere.
#[test]
fn clients_of_very_unequal_weight_that_stay_are_spread_evenly() {
    for cores in CORES {
        for seed in 1..=3 {
            let world = World { heaviest: 30, seed, ..World::new(cores, 500.0, STAYS_LONG) };
            let (on, off) = (world.run(), World { is_on: false, ..world }.run());
            assert!(on.fullest <= 1.15, "{cores} cores, seed {seed}: {on:?}, without {off:?}");
            assert!(on.fullest < off.fullest && on.handed_over <= 0.05, "{on:?}, without {off:?}");
        }
    }
}

#[test]
fn a_hash_that_prefers_one_core_is_evened_out_at_once() {
    for cores in CORES {
        let world = World { bias: 0.5, ..World::new(cores, 500.0, GONE_SOON) };
        let outcome = world.run();
        assert!(outcome.fullest <= 1.25, "{cores} cores: {outcome:?}");
    }
}

/// A hundred a second each, fifty at a time: chance makes one of 64 cores half as full again, and soon another.
#[test]
fn few_clients_that_are_gone_soon_are_left_where_they_are_for_the_most_part() {
    for cores in CORES {
        let outcome = World::new(cores, 50.0, GONE_SOON).run();
        assert!(outcome.handed_over <= 0.12, "{cores} cores: {outcome:?}");
    }
}

#[test]
fn few_clients_that_stay_are_spread_more_evenly_than_chance_would() {
    for cores in CORES {
        let world = World::new(cores, 50.0, STAYS_LONG);
        let (on, off) = (world.run(), World { is_on: false, ..world }.run());
        assert!(on.fullest <= 1.2 && on.fullest < off.fullest, "{cores} cores: {on:?}, without {off:?}");
    }
}

#[test]
#[ignore = "long: prints the figures of the decision record"]
fn table() {
    for cores in CORES {
        for each in [50.0, 500.0, 2_000.0] {
            for stay in [5.0, 100.0] {
                for heaviest in [1, 30] {
                    let world = World { heaviest, ..World::new(cores, each, stay) };
                    let (on, off) = (world.run(), World { is_on: false, ..world }.run());
                    println!(
                        "{cores:3} cores {each:5} each, stay {stay:4} ticks, weights to {heaviest:3}: {:.3} (off {:.3}), handed over {:.4}",
                        on.fullest, off.fullest, on.handed_over
                    );
                }
            }
        }
    }
}
