use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::*;

const LOOK_US: u64 = 250_000;

/// A server with threads, each of which answers one request at a time, and clients that come without regard to it.
struct World {
    threads: usize,
    /// Mean microseconds of work for an answer.
    work_us: f64,
    /// Requests in a second.
    rate: f64,
    random: fastrand::Rng,
    now: u64,
    next_arrival: u64,
    queue: VecDeque<u64>,
    /// End and arrival of what is worked on.
    working: BinaryHeap<Reverse<(u64, u64)>>,
    gradient: Gradient,
}

/// Fate of requests over a time.
#[derive(Debug, Default)]
struct Seen {
    answers: u64,
    refused: u64,
    waited_us: u64,
    /// Limits at the looks.
    limits: Vec<u32>,
}

impl Seen {
    fn mean_us(&self) -> f64 {
        self.waited_us as f64 / self.answers.max(1) as f64
    }

    fn mean_limit(&self) -> f64 {
        self.limits.iter().map(|limit| f64::from(*limit)).sum::<f64>() / self.limits.len() as f64
    }
}

impl World {
    fn new(threads: usize, work_us: f64, rate: f64, seed: u64) -> World {
        let random = fastrand::Rng::with_seed(seed);
        let gradient = Gradient::new(Bounds { min: 2, max: 1_000 }, 20);
        let (queue, working) = (VecDeque::new(), BinaryHeap::new());
        World { threads, work_us, rate, random, now: 0, next_arrival: 0, queue, working, gradient }
    }

    /// Requests in a second that the server can answer.
    fn capacity(&self) -> f64 {
        self.threads as f64 * 1e6 / self.work_us
    }

    fn exponential(&mut self, mean: f64) -> u64 {
        (-self.random.f64().max(1e-12).ln() * mean) as u64 + 1
    }

    fn taken(&self) -> u32 {
        (self.queue.len() + self.working.len()) as u32
    }

    /// Runs for so many looks.
    fn run(&mut self, looks: u64) -> Seen {
        let mut seen = Seen::default();
        for _ in 0..looks {
            let mut window = Window { elapsed_us: LOOK_US, ..Window::default() };
            let end = self.now + LOOK_US;
            while self.step(end, &mut window) {}
            self.now = end;
            window.taken = self.taken();
            seen.answers += window.answers;
            seen.refused += window.refused;
            seen.waited_us += window.waited_us;
            seen.limits.push(self.gradient.look(&window, self.random.u64(..)));
        }
        seen
    }

    /// Takes the next event before `end`.
    fn step(&mut self, end: u64, window: &mut Window) -> bool {
        let done = self.working.peek().map_or(u64::MAX, |Reverse((done, _))| *done);
        if done.min(self.next_arrival) >= end {
            return false;
        }
        if done <= self.next_arrival {
            if let Some(Reverse((done, arrival))) = self.working.pop() {
                self.now = done;
                window.answers += 1;
                window.waited_us += done - arrival;
            }
        } else {
            self.now = self.next_arrival;
            self.next_arrival += self.exponential(1e6 / self.rate);
            match self.taken() < self.gradient.limit() {
                true => self.queue.push_back(self.now),
                false => window.refused += 1,
            }
        }
        while self.working.len() < self.threads
            && let Some(arrival) = self.queue.pop_front()
        {
            // Work differs by half of its mean either way.
            let work = self.work_us * (0.5 + self.random.f64());
            self.working.push(Reverse((self.now + work as u64 + 1, arrival)));
        }
        true
    }
}

#[test]
fn a_limit_comes_to_what_the_server_can_do_within_forty_looks() {
    for (threads, work_us) in [(2, 5_000.0), (4, 20_000.0), (16, 50_000.0), (64, 20_000.0), (200, 100_000.0)] {
        for seed in 0..4 {
            let mut world = World::new(threads, work_us, 0.0, seed);
            world.rate = world.capacity() * 2.0;
            world.run(40);
            let settled = world.run(160);
            let wanted = threads as f64;
            let mean = settled.mean_limit();
            assert!(mean >= wanted * 0.95 && mean <= wanted * 1.6 + 4.0, "{threads} threads, seed {seed}: {mean}");
            let rate = settled.answers as f64 / 40.0;
            assert!(rate >= world.capacity() * 0.92, "{threads} threads, seed {seed}: {rate} of {}", world.capacity());
            let slower = settled.mean_us() / work_us;
            assert!(slower < 2.6, "{threads} threads, seed {seed}: {slower} times as slow");
        }
    }
}

#[test]
fn a_limit_keeps_nobody_out_who_comes_less_often_than_the_server_can_answer() {
    for seed in 0..4 {
        let mut world = World::new(32, 50_000.0, 0.0, seed);
        world.rate = world.capacity() * 0.6;
        world.run(40);
        let settled = world.run(2_000);
        assert!(settled.refused * 500 <= settled.answers, "seed {seed}: {} of {}", settled.refused, settled.answers);
    }
}

#[test]
fn a_limit_recovers_from_a_slow_down() {
    for seed in 0..4 {
        let mut world = World::new(16, 20_000.0, 1_600.0, seed);
        world.run(80);
        world.work_us = 200_000.0;
        let slow = world.run(40);
        world.work_us = 20_000.0;
        world.run(40);
        let after = world.run(160);
        assert!(slow.limits.iter().min().is_some_and(|least| *least < 16), "seed {seed}: {:?}", slow.limits);
        assert!(after.answers as f64 / 40.0 >= world.capacity() * 0.92, "seed {seed}: {:?}", after.limits);
    }
}

#[test]
fn a_server_that_stays_slower_is_measured_anew_and_starves_nobody() {
    for seed in 0..4 {
        let mut world = World::new(16, 20_000.0, 1_600.0, seed);
        world.run(80);
        world.work_us = 120_000.0;
        // Five minutes are more than two measurements.
        let meanwhile = world.run(1_200);
        assert!(meanwhile.limits.iter().all(|limit| *limit >= 2));
        let after = world.run(160);
        let rate = after.answers as f64 / 40.0;
        assert!(rate >= world.capacity() * 0.85, "seed {seed}: {rate} of {}: {:?}", world.capacity(), after.limits);
    }
}

#[test]
fn more_threads_are_found_and_fewer_are_too() {
    let mut world = World::new(8, 20_000.0, 6_000.0, 5);
    world.run(80);
    world.threads = 64;
    world.run(60);
    let more = world.run(100);
    assert!(more.answers as f64 / 25.0 >= world.capacity() * 0.92, "{:?}", more.limits);
    world.threads = 8;
    world.run(60);
    let fewer = world.run(100);
    assert!(fewer.mean_limit() <= 8.0 * 1.6 + 4.0, "{:?}", fewer.limits);
}

#[test]
fn measurements_do_not_come_at_the_same_time() {
    let (early, late) = (later(0), later(u64::MAX));
    assert_eq!((early, late / 1_000_000), (60_000_000, 69));
}

/// A window that is full, in which nobody was kept out.
fn window(mean_us: u64) -> Window {
    Window { elapsed_us: LOOK_US, answers: 50, waited_us: 50 * mean_us, taken: 20, ..Window::default() }
}

#[test]
fn one_slow_window_and_a_few_cheap_answers_change_little() {
    let mut gradient = Gradient::new(Bounds { min: 2, max: 100 }, 20);
    let busy = Window { taken: 60, ..window(10_000) };
    let limits: Vec<u32> = (0..12).map(|_| gradient.look(&busy, 0)).collect();
    assert!(limits.is_sorted() && *limits.last().unwrap() == 100, "{limits:?}");
    assert_eq!(gradient.look(&window(1_000_000), 0), 100, "one slow window");
    assert_eq!(gradient.look(&window(1_000_000), 0), 55, "two of them");
    assert_eq!(gradient.look(&window(1_000), 0), 55, "quick again, but less than half of the limit is in use");
    assert_eq!(gradient.quick_us(), Some(9_100));
    let used = Window { taken: 40, ..window(10_000) };
    assert!(gradient.look(&used, 0) > 55);
}

#[test]
fn quick_failures_do_not_raise_a_limit() {
    let mut gradient = Gradient::new(Bounds { min: 2, max: 100 }, 50);
    gradient.look(&window(10_000), 0);
    let failing = Window { failures: 10, refused: 5, ..window(100) };
    gradient.is_guess = false;
    for _ in 0..40 {
        gradient.look(&failing, 0);
    }
    assert_eq!((gradient.limit(), gradient.is_floored()), (2, true));
    for _ in 0..40 {
        gradient.look(&failing, 0);
        assert!(gradient.is_floored(), "also after it was measured anew");
    }
    gradient.look(&Window { refused: 0, ..failing }, 0);
    assert!(!gradient.is_floored());
}

#[test]
fn a_limit_without_answers_stays_as_it_is_also_when_it_was_being_measured() {
    let mut gradient = Gradient::new(Bounds { min: 2, max: 100 }, 40);
    let full = Window { refused: 100, taken: 40, waited_us: 40 * LOOK_US, answers: 50, ..window(0) };
    gradient.look(&full, 0);
    let at_first = gradient.limit();
    let measured = gradient.look(&full, 0);
    assert!(measured < at_first, "{measured} of {at_first}: what is quick is being measured");
    let silent = Window { elapsed_us: LOOK_US, refused: 100, taken: 40, ..Window::default() };
    let limits: Vec<u32> = (0..60).map(|_| gradient.look(&silent, 0)).collect();
    assert_eq!((limits[0], limits[59]), (measured, at_first), "{limits:?}");
}

#[test]
fn other_bounds_hold_at_once() {
    let mut gradient = Gradient::new(Bounds { min: 2, max: 100 }, 500);
    assert_eq!(gradient.limit(), 100);
    gradient.set_bounds(Bounds { min: 1, max: 10 });
    assert_eq!(gradient.limit(), 10);
    gradient.set_bounds(Bounds { min: 30, max: 40 });
    assert_eq!(gradient.limit(), 30);
}
