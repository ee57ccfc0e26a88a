use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3600 * SECOND;

fn is_taken(taken: Taken) -> bool {
    matches!(taken, Taken::Yes { .. })
}

#[test]
fn a_key_has_its_burst_at_once_and_its_rate_from_then_on() {
    let table = RateTable::new(Rate::new(10, SECOND, 20), 64);
    let start = 5 * SECOND;
    let at_once = (0..100).filter(|_| is_taken(table.take(7, start))).count();
    assert_eq!(at_once, 20);
    assert_eq!(table.take(7, start), Taken::No { wait: SECOND / 10 });
    assert_eq!(table.take(7, start + SECOND / 10), Taken::Yes { evicted: false });
    assert!(is_taken(table.take(8, start)), "another key has its own");
    // Ten seconds of a request each millisecond.
    let times = (1..=10_000).map(|step| start + SECOND / 10 + step * SECOND / 1000);
    assert_eq!(times.filter(|now| is_taken(table.take(7, *now))).count(), 100);
}

#[test]
fn what_is_given_back_can_be_taken_again() {
    let table = RateTable::new(Rate::new(1, HOUR, 2), 64);
    assert!(is_taken(table.take(1, SECOND)) && is_taken(table.take(1, SECOND)));
    assert!(!is_taken(table.take(1, SECOND)));
    table.give_back(1, 1);
    assert!(is_taken(table.take(1, SECOND)) && !is_taken(table.take(1, SECOND)));
}

#[test]
fn units_that_were_not_there_have_to_come_back_first() {
    let table = RateTable::new(Rate::new(1000, SECOND, 500), 64);
    assert!(is_taken(table.look(3, SECOND)));
    assert!(!table.charge(3, 499, SECOND));
    assert!(is_taken(table.look(3, SECOND)), "one is left");
    assert!(!table.charge(3, 10_001, SECOND));
    let Taken::No { wait } = table.look(3, SECOND) else { panic!("it is in debt") };
    assert_eq!(wait, 10 * SECOND + SECOND / 1000);
    assert!(!is_taken(table.look(3, SECOND + wait - SECOND / 1000)));
    assert!(is_taken(table.look(3, SECOND + wait)));
}

/// Against a model with a bucket for each key, where the table has room for all.
#[test]
fn the_table_decides_as_one_bucket_for_each_key_would_for_any_seed() {
    for seed in 0..50 {
        let mut random = fastrand::Rng::with_seed(seed);
        let rate = Rate::new(random.u64(1..100), SECOND, random.u64(1..30));
        let table = RateTable::new(rate, 4096);
        let keys: Vec<u64> = (0..40).map(|_| random.u64(..)).collect();
        let mut model: HashMap<u64, u64> = HashMap::new();
        let mut now = SECOND;
        for _ in 0..5_000 {
            now += random.u64(0..SECOND / 100);
            let key = keys[random.usize(0..keys.len())];
            let full_at = model.entry(key).or_insert(0);
            let next = (*full_at).max(now) + rate.cost(1);
            let wanted = next - now <= rate.burst;
            if wanted {
                *full_at = next;
            }
            assert_eq!(is_taken(table.take(key, now)), wanted, "seed {seed}");
        }
    }
}

#[test]
fn a_flood_of_keys_forgets_the_lightest_and_not_the_heavy_ones() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let table = RateTable::new(Rate::new(100, HOUR, 100), 1024);
        let heavy: Vec<u64> = (0..50).map(|_| random.u64(..)).collect();
        for key in &heavy {
            assert_eq!((0..200).filter(|_| is_taken(table.take(*key, SECOND))).count(), 100, "seed {seed}");
        }
        let mut evictions = 0;
        for _ in 0..100_000 {
            match table.take(random.u64(..), 2 * SECOND) {
                Taken::Yes { evicted } => evictions += u32::from(evicted),
                Taken::No { .. } => panic!("seed {seed}: a source that has come once is refused"),
            }
        }
        assert!(evictions > 90_000, "seed {seed}: {evictions}");
        let forgotten = heavy.iter().filter(|key| is_taken(table.take(**key, 2 * SECOND))).count();
        assert_eq!(forgotten, 0, "seed {seed}");
    }
}

#[test]
fn places_of_full_buckets_are_free() {
    let table = RateTable::new(Rate::new(10, SECOND, 10), 8);
    for step in 1..10_000 {
        // Nine keys a second, each of which is full again after 0.1 s.
        assert_eq!(table.take(step, step * SECOND / 9), Taken::Yes { evicted: false });
    }
}

#[test]
fn cores_together_let_no_more_through_than_one_would() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let table = RateTable::new(Rate::new(1000, HOUR, 1000), 256);
        let keys: Vec<u64> = (0..5).map(|_| random.u64(..)).collect();
        // The first request of a key finds its place, which two cores may do at once: see below.
        keys.iter().for_each(|key| assert!(is_taken(table.take(*key, SECOND))));
        let taken: Vec<AtomicU64> = keys.iter().map(|_| AtomicU64::new(1)).collect();
        std::thread::scope(|scope| {
            for core in 0..4_usize {
                let (table, keys, taken) = (&table, &keys, &taken);
                // The first core has most of the requests.
                let requests = if core == 0 { 20_000 } else { 2_000 };
                scope.spawn(move || {
                    for step in 0..requests {
                        let key = (step + core) % keys.len();
                        if is_taken(table.take(keys[key], SECOND)) {
                            taken[key].fetch_add(1, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        assert!(taken.iter().all(|taken| taken.load(Ordering::SeqCst) == 1000), "seed {seed}: {taken:?}");
    }
}

/// Two cores that see a key for the first time may count a request each before they agree on its place; a core that
/// charges a place in the moment in which it becomes another key's charges that one. A request for each core, both ways.
#[test]
fn cores_that_see_a_key_first_at_once_are_out_by_a_request_each_at_most() {
    for seed in 0..200 {
        let key = fastrand::Rng::with_seed(seed).u64(..);
        let table = RateTable::new(Rate::new(50, HOUR, 50), 8);
        let taken = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for core in 0..4 {
                let (table, taken) = (&table, &taken);
                scope.spawn(move || {
                    for step in 0..100 {
                        // Others of the set come and go meanwhile.
                        let _ = table.take(key ^ (1 << (20 + (core + step) % 5)), SECOND);
                        if is_taken(table.take(key, SECOND)) {
                            taken.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        let taken = taken.load(Ordering::SeqCst);
        assert!((46..=54).contains(&taken), "seed {seed}: {taken}");
    }
}

#[test]
fn a_key_has_so_many_requests_at_once_and_one_more_when_one_ends() {
    let table = CountTable::new(2, 64);
    let key = 0xABCD_EF01_2345_6789;
    let (first, second) = (table.take(key).unwrap(), table.take(key).unwrap());
    assert!(first.is_counted() && table.take(key).is_none());
    let other = table.take(!key).unwrap();
    table.give_back(&first);
    let third = table.take(key).unwrap();
    assert!(table.take(key).is_none());
    [&second, &third, &other].into_iter().for_each(|place| table.give_back(place));
    assert!(table.is_empty());
}

#[test]
fn a_key_without_a_place_is_let_through_and_not_counted() {
    let table = CountTable::new(1, 8);
    let places: Vec<Place> = (1..=8).map(|key| table.take(key << 32).unwrap()).collect();
    assert!(places.iter().all(Place::is_counted));
    let ninth = table.take(9 << 32).unwrap();
    assert!(!ninth.is_counted());
    table.give_back(&ninth);
    assert!(table.take(1 << 32).is_none(), "those with a place are held to the limit");
    table.give_back(&places[3]);
    assert!(table.take(9 << 32).unwrap().is_counted());
}

#[test]
fn cores_never_have_more_at_once_than_allowed_for_any_seed() {
    for seed in 0..20 {
        let table = CountTable::new(3, 8);
        let open: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for core in 0..4 {
                let (table, open) = (&table, &open);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed * 4 + core);
                    let mut held: Vec<(usize, Place)> = Vec::new();
                    for _ in 0..5_000 {
                        if random.bool() || held.is_empty() {
                            let key = random.usize(0..4);
                            if let Some(place) = table.take((key as u64 + 1) << 40) {
                                assert!(place.is_counted(), "seed {seed}: there is room for four keys");
                                let now = open[key].fetch_add(1, Ordering::SeqCst) + 1;
                                assert!(now <= 3, "seed {seed}: {now} at once");
                                held.push((key, place));
                            }
                        } else {
                            let (key, place) = held.swap_remove(random.usize(0..held.len()));
                            open[key].fetch_sub(1, Ordering::SeqCst);
                            table.give_back(&place);
                        }
                    }
                    for (key, place) in &held {
                        open[*key].fetch_sub(1, Ordering::SeqCst);
                        table.give_back(place);
                    }
                });
            }
        });
        assert!(table.is_empty(), "seed {seed}");
    }
}
