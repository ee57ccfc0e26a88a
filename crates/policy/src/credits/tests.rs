use super::*;
use std::mem::{align_of, size_of};
use std::sync::atomic::AtomicBool;

fn addresses(credits: &Credits) -> Vec<usize> {
    let cells = credits.cells.iter().map(|cell| std::ptr::from_ref(&cell.0.0) as usize);
    let own = [std::ptr::from_ref(&credits.limit.0) as usize, std::ptr::from_ref(&credits.owed.0) as usize];
    cells.chain(own).collect()
}

#[test]
fn no_two_cores_have_their_credits_on_one_pair_of_lines() {
    assert_eq!((size_of::<Lines<Cell>>(), align_of::<Lines<Cell>>()), (128, 128));
    let mut pairs: Vec<usize> = addresses(&Credits::new(9, 8)).iter().map(|address| address / 128).collect();
    let count = pairs.len();
    pairs.sort_unstable();
    pairs.dedup();
    assert_eq!(pairs.len(), count, "the limit and what is owed, which all read, are apart as well");
}

#[test]
fn a_core_that_has_enough_of_its_own_writes_no_others() {
    let credits = Credits::new(8, 4);
    let words = || credits.cells.iter().map(|cell| cell.0.0.load(SeqCst)).collect::<Vec<_>>();
    let before = words();
    for _ in 0..1_000 {
        assert!(credits.take(1) && credits.take(1));
        credits.give_back(1);
        credits.give_back(1);
    }
    let after = words();
    assert_eq!([0, 2, 3].map(|core| after[core]), [0, 2, 3].map(|core| before[core]));
}

#[test]
fn credits_stay_where_they_were_wanted() {
    let credits = Credits::new(8, 4);
    assert!((0..8).all(|_| credits.take(3)) && !credits.take(3) && !credits.take(0));
    (0..8).for_each(|_| credits.give_back(3));
    assert_eq!(credits.cells.iter().map(|cell| cell.0.free()).collect::<Vec<_>>(), [0, 0, 0, 8]);
    assert!(credits.take(0), "another core has one all the same");
}

#[test]
fn a_lower_limit_lets_nobody_through_until_enough_is_given_back() {
    let credits = Credits::new(u32::MAX, 2);
    assert!((0..3).all(|_| credits.take(0)) && (0..2).all(|_| credits.take(1)));
    credits.set_limit(3);
    assert_eq!((credits.taken(), credits.take(0), credits.take(1)), (5, false, false));
    credits.give_back(0);
    credits.give_back(1);
    assert!(!credits.take(0) && !credits.take(1));
    credits.give_back(1);
    assert!(credits.take(0) && !credits.take(1));
    credits.set_limit(5);
    assert!(credits.take(1) && credits.take(1) && !credits.take(0));
    assert_eq!((credits.taken(), credits.limit()), (5, 5));
    // Raised while more than that are taken: what is owed is less.
    credits.set_limit(1);
    credits.set_limit(4);
    credits.give_back(0);
    assert!(!credits.take(1), "four are taken");
    credits.give_back(1);
    assert!(credits.take(0) && !credits.take(0));
}

/// The model: a number, and who has how many.
#[test]
fn as_many_as_the_limit_are_taken_and_the_next_is_refused_for_any_seed() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let cores = random.usize(1..9);
        let limits = |random: &mut fastrand::Rng| *random.choice(&[0, 1, 2, 7, 30, u32::MAX]).unwrap();
        let mut limit = limits(&mut random);
        let credits = Credits::new(limit, cores);
        let mut taken = vec![0_u32; cores];
        for step in 0..2_000 {
            let core = random.usize(0..cores);
            match random.u8(0..100) {
                0 => {
                    limit = limits(&mut random);
                    credits.set_limit(limit);
                }
                1..60 => {
                    let expected = taken.iter().sum::<u32>() < limit;
                    assert_eq!(credits.take(core), expected, "seed {seed}, step {step}");
                    taken[core] += u32::from(expected);
                }
                _ if taken[core] > 0 => {
                    credits.give_back(core);
                    taken[core] -= 1;
                }
                _ => {}
            }
            assert_eq!(credits.taken(), taken.iter().sum::<u32>(), "seed {seed}, step {step}");
        }
    }
}

/// Threads that take and give as fast as they can: never are more out than the limit, and none is lost or made.
#[test]
fn cores_at_once_never_have_more_than_the_limit_and_lose_none() {
    const CORES: usize = 4;
    const LIMIT: u32 = 6;
    let (credits, out, most) = (Credits::new(LIMIT, CORES), AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for core in 0..CORES {
            let (credits, out, most) = (&credits, &out, &most);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(core as u64);
                let mut held = 0;
                for _ in 0..50_000 {
                    if random.bool() && credits.take(core) {
                        most.fetch_max(out.fetch_add(1, SeqCst) + 1, SeqCst);
                        held += 1;
                    } else if held > 0 {
                        out.fetch_sub(1, SeqCst);
                        credits.give_back(core);
                        held -= 1;
                    }
                }
                (0..held).for_each(|_| {
                    out.fetch_sub(1, SeqCst);
                    credits.give_back(core);
                });
            });
        }
    });
    assert!((1..=LIMIT).contains(&most.into_inner()));
    assert_eq!(credits.taken(), 0);
    assert!((0..LIMIT).all(|n| credits.take(n as usize % CORES)) && !credits.take(0));
}

/// One credit more than there are threads: as each has one at most, one is always free, wherever it is.
#[test]
fn nobody_is_refused_while_one_is_free_however_they_go_round() {
    const CORES: usize = 4;
    let credits = Credits::new(CORES as u32, CORES);
    std::thread::scope(|scope| {
        for thread in 0..CORES {
            let credits = &credits;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread as u64);
                for turn in 0..50_000 {
                    // A thread is on another core each time, so that credits wander.
                    let core = random.usize(0..CORES);
                    assert!(credits.take(core), "turn {turn}");
                    credits.give_back(core);
                }
            });
        }
    });
    assert_eq!(credits.taken(), 0);
}

/// A limit that goes up and down while all take and give: in the end it is what it is.
#[test]
fn limits_that_change_meanwhile_make_and_lose_none() {
    const CORES: usize = 3;
    let (credits, over) = (Credits::new(5, CORES), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for core in 0..CORES {
            let (credits, over) = (&credits, &over);
            scope.spawn(move || {
                while !over.load(SeqCst) {
                    let held = (0..4).filter(|_| credits.take(core)).count();
                    (0..held).for_each(|_| credits.give_back(core));
                }
            });
        }
        let mut random = fastrand::Rng::with_seed(7);
        (0..5_000).for_each(|_| credits.set_limit(*random.choice(&[0, 1, 3, 9, u32::MAX]).unwrap()));
        credits.set_limit(4);
        over.store(true, SeqCst);
    });
    assert_eq!((credits.taken(), credits.limit()), (0, 4));
    assert!((0..4).all(|_| credits.take(0)) && !credits.take(1));
}
