use std::collections::BTreeSet;
use std::thread;

use super::*;

const P50: usize = 0;
const P90: usize = 2;
const P95: usize = 3;
const P99: usize = 5;
const P999: usize = 6;

/// Chance from a seed (xorshift64*).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Milliseconds around the middle, as servers take them: few take twice as long.
    fn around(&mut self, middle: f64) -> f64 {
        let sum: f64 = (0..6).map(|_| self.next()).sum();
        middle * (0.4 + 0.2 * sum)
    }
}

/// A backend whose requests have a second attempt made by one percentile, over seconds.
struct Backend {
    first_bytes: FirstBytes,
    recent: Recent,
    place: usize,
    chance: Chance,
}

/// Requests of a second, those that were late among them, and the mean milliseconds of all.
struct Second {
    requests: u32,
    late: u32,
    mean: f64,
}

impl Backend {
    fn new(place: usize, seed: u64) -> Backend {
        let (first_bytes, recent, chance) = (FirstBytes::new(2), Recent::default(), Chance(seed));
        Backend { first_bytes, recent, place, chance }
    }

    /// Has so many requests served, whose attempts take as long as `takes` says, in milliseconds. A late one is asked
    /// of another server as well: how long the first would have taken nobody learns then.
    fn second(&mut self, requests: u32, takes: impl Fn(&mut Chance) -> f64) -> Second {
        let (mut late, mut sum) = (0, 0.0);
        for request in 0..requests {
            let first = takes(&mut self.chance);
            let after = self.first_bytes.late_after(self.place).map(|after| after.as_secs_f64() * 1_000.0);
            let waited = match after.filter(|after| first > *after) {
                Some(after) => {
                    late += 1;
                    first.min(after + takes(&mut self.chance))
                }
                None => first,
            };
            sum += waited;
            self.first_bytes.note(request as usize % 2, Duration::from_secs_f64(waited / 1_000.0));
        }
        self.recent.look(&self.first_bytes.counts(), Duration::from_secs(1), &[self.place]);
        self.first_bytes.publish(&self.recent);
        Second { requests, late, mean: sum / f64::from(requests.max(1)) }
    }

    /// Share of late requests over so many seconds.
    fn late(&mut self, seconds: u32, requests: u32, takes: impl Fn(&mut Chance) -> f64) -> f64 {
        let all: Vec<Second> = (0..seconds).map(|_| self.second(requests, &takes)).collect();
        let late: u32 = all.iter().map(|second| second.late).sum();
        f64::from(late) / f64::from(all.iter().map(|second| second.requests).sum::<u32>())
    }

    fn after(&self) -> f64 {
        self.first_bytes.late_after(self.place).map_or(0.0, |after| after.as_secs_f64() * 1_000.0)
    }
}

#[test]
fn buckets_follow_each_other_and_are_a_sixteenth_wide_at_most() {
    let mut before = Duration::ZERO;
    for at in 0..BUCKETS - 1 {
        let to = end(at);
        assert_eq!((bucket(to - Duration::from_micros(1)), bucket(to)), (at, at + 1), "{to:?}");
        assert!(at == 0 || (to - before).as_secs_f64() <= before.as_secs_f64() / 16.0 + 1e-9, "{before:?} to {to:?}");
        before = to;
    }
    assert_eq!((bucket(Duration::ZERO), bucket(Duration::MAX)), (0, BUCKETS - 1));
    assert!(before > Duration::from_secs(3_600));
}

#[test]
fn nothing_is_known_before_there_are_ten_beyond_and_no_server_is_late_before_a_millisecond() {
    assert_eq!([P50, P90, P95, P99, P999].map(needed), [20, 100, 200, 1_000, 10_000]);
    let mut backend = Backend::new(P95, 1);
    assert_eq!(backend.second(199, |_| 0.02).late, 0);
    assert_eq!(backend.after(), 0.0);
    backend.second(1, |_| 0.02);
    let after = backend.after();
    assert!((1.0..1.1).contains(&after), "{after}");
    // Nothing is forgotten while nothing comes.
    for _ in 0..1_000 {
        backend.second(0, |_| 0.0);
    }
    assert_eq!(backend.after(), after);
}

#[test]
fn as_many_requests_are_late_as_the_percentile_says_and_that_does_not_creep() {
    for (seed, (place, share)) in [(P50, 0.5), (P90, 0.1), (P95, 0.05), (P99, 0.01)].into_iter().enumerate() {
        let mut backend = Backend::new(place, 7 + seed as u64);
        backend.late(30, 300, |chance| chance.around(20.0));
        let begun = backend.after();
        // Attempts that are cancelled would make servers seem quicker than they are, minute by minute.
        let late = backend.late(200, 300, |chance| chance.around(20.0));
        // Buckets end a sixteenth later at most, which makes a difference where all answers are much alike.
        assert!(late < share * 1.1 && late > share * 0.35, "{late} of {share}");
        assert!((backend.after() / begun - 1.0).abs() < 0.15, "{begun} to {}", backend.after());
    }
}

#[test]
fn a_step_is_followed_at_once_upwards_and_within_half_a_minute_downwards() {
    let mut backend = Backend::new(P95, 3);
    backend.late(60, 500, |chance| chance.around(10.0));
    assert!((10.0..20.0).contains(&backend.after()), "{}", backend.after());
    // All servers are slow: everything is late for a second or two, and then what is slower still.
    backend.late(2, 500, |chance| chance.around(200.0));
    let late = backend.late(60, 500, |chance| chance.around(200.0));
    assert!(backend.after() > 200.0 && late < 0.06, "{} {late}", backend.after());
    backend.late(30, 500, |chance| chance.around(10.0));
    assert!((10.0..20.0).contains(&backend.after()), "{}", backend.after());
}

#[test]
fn of_two_kinds_of_answers_the_rare_slow_kind_is_late() {
    let takes = |share: f64| move |chance: &mut Chance| if chance.next() < share { 500.0 } else { chance.around(5.0) };
    let mut backend = Backend::new(P95, 5);
    backend.late(60, 500, takes(0.03));
    let second = backend.second(2_000, takes(0.03));
    assert!(backend.after() < 10.0 && second.late < 120, "{} {}", backend.after(), second.late);
    assert!(second.mean < 7.0, "{}: it would be 20 ms without", second.mean);
    // One in ten is slow: that is within the 95th percentile, and beyond the 75th.
    let mut backend = Backend::new(P95, 6);
    backend.late(60, 500, takes(0.1));
    assert!(backend.after() > 490.0, "{}", backend.after());
    let mut backend = Backend::new(1, 6);
    backend.late(60, 500, takes(0.1));
    assert!(backend.after() < 10.0, "{}", backend.after());
}

#[test]
fn few_requests_are_remembered_for_long_and_a_step_is_followed_all_the_same() {
    let mut backend = Backend::new(P95, 9);
    backend.late(200, 1, |chance| chance.around(10.0));
    assert!((10.0..20.0).contains(&backend.after()), "{}", backend.after());
    let late = backend.late(1_800, 1, |chance| chance.around(10.0));
    assert!((0.02..0.07).contains(&late), "{late}");
    backend.late(60, 1, |chance| chance.around(100.0));
    assert!(backend.after() > 100.0, "{}", backend.after());
    backend.late(1_500, 1, |chance| chance.around(10.0));
    assert!(backend.after() < 20.0, "{}", backend.after());
}

#[test]
fn counts_may_wrap_and_percentiles_have_their_own_needs() {
    let mut recent = Recent::default();
    let mut counts = Box::new([0; BUCKETS]);
    counts[20] = u32::MAX - 50;
    recent.seen.copy_from_slice(&counts[..]);
    counts[20] = 49;
    recent.look(&counts, Duration::from_secs(1), &[P50, P90]);
    assert_eq!(recent.percentile(P90), Some(end(20)));
    assert_eq!(recent.percentile(P95), None);
}

#[test]
fn cores_count_beside_each_other_on_lines_of_their_own() {
    let first_bytes = FirstBytes::new(3);
    thread::scope(|scope| {
        for core in 0..3 {
            let first_bytes = &first_bytes;
            scope.spawn(move || (0..10_000).for_each(|_| first_bytes.note(core, Duration::from_millis(3))));
        }
    });
    assert_eq!(first_bytes.counts()[bucket(Duration::from_millis(3))], 30_000);
    let bytes = size_of::<Lines<[AtomicU32; BUCKETS]>>();
    let of = |at: *const u8, bytes: usize| (at as usize / 128)..=((at as usize + bytes - 1) / 128);
    let mut lines: Vec<usize> =
        first_bytes.counts.iter().flat_map(|core| of((&raw const core.0).cast(), bytes)).collect();
    lines.extend(of((&raw const first_bytes.late.0).cast(), 28));
    assert_eq!(lines.iter().collect::<BTreeSet<_>>().len(), lines.len());
}
