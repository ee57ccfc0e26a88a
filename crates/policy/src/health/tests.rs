//! Verdicts by dialogue, and by seeds.

use std::cell::Cell;

use super::*;

thread_local! {
    /// Servers that were looked at.
    pub static LOOKS: Cell<usize> = const { Cell::new(0) };
}

const PROBES: Probes = Probes { rise: 2, fall: 3, starts_up: true };
const OUTLIERS: Outliers = Outliers {
    interval: 10_000,
    consecutive_failures: 5,
    success_rate: Some(SuccessRate { servers_min: 3, requests_min: 100, deviation_percent: 190 }),
    ejection: 30_000,
    ejection_max: 100_000,
    ejected_percent_max: 30,
};

fn probing(servers: usize) -> Servers {
    Servers::new(Rules { probes: Some(PROBES), outliers: None, min_healthy_percent: 0 }, servers, 0)
}

fn ejecting(servers: usize, outliers: Outliers) -> Servers {
    Servers::new(Rules { probes: None, outliers: Some(outliers), min_healthy_percent: 0 }, servers, 0)
}

fn bad() -> Result<(), Reason> {
    Err("status 500".into())
}

fn state(servers: &Servers, server: usize) -> &'static str {
    servers.verdict(server).0.name()
}

#[test]
fn the_first_probe_is_believed_and_later_ones_have_to_agree() {
    let mut servers = probing(2);
    assert_eq!(state(&servers, 0), "unknown");
    assert_eq!(servers.open(), 2);
    assert_eq!(servers.probed(0, Ok(()), 5).len(), 1);
    assert_eq!((state(&servers, 0), servers.verdict(0).1), ("up", 5));
    for now in [10, 11] {
        assert!(servers.probed(0, bad(), now).is_empty());
    }
    let changes = servers.probed(0, bad(), 12);
    let down = Verdict::Down("status 500".into());
    assert_eq!(changes, [Change { server: 0, from: Verdict::Up, to: down }]);
    assert!(servers.probed(0, Ok(()), 13).is_empty());
    assert_eq!((state(&servers, 0), servers.verdict(0).1), ("down", 12));
    servers.probed(0, Ok(()), 14);
    assert_eq!(state(&servers, 0), "up");
    servers.probed(1, bad(), 15);
    assert_eq!(state(&servers, 1), "down", "its first one failed");
}

#[test]
fn servers_that_start_down_have_to_rise() {
    let probes = Probes { starts_up: false, ..PROBES };
    let mut servers = Servers::new(Rules { probes: Some(probes), outliers: None, min_healthy_percent: 0 }, 1, 0);
    assert_eq!(servers.open(), 0);
    servers.probed(0, Ok(()), 1);
    assert_eq!(state(&servers, 0), "down");
    servers.probed(0, Ok(()), 2);
    assert_eq!(state(&servers, 0), "up");
    let mut servers = Servers::new(Rules { probes: Some(probes), outliers: None, min_healthy_percent: 0 }, 1, 0);
    assert_eq!(servers.probed(0, bad(), 7).len(), 1, "what was not known is known");
    assert_eq!(servers.verdict(0), (&Verdict::Down("status 500".into()), 7));
    assert!(servers.probed(0, Err("timeout".into()), 8).is_empty());
    assert_eq!(servers.verdict(0), (&Verdict::Down("timeout".into()), 7), "down as before, for what it is down now");
}

#[test]
fn what_others_have_found_is_believed_until_probes_contradict_it_often_enough() {
    let probes = Probes { starts_up: false, ..PROBES };
    let mut theirs = probing(3);
    theirs.probed(0, Ok(()), 1);
    theirs.probed(1, bad(), 1);
    let found: Vec<_> = (0..3).map(|server| theirs.found(server)).collect();
    assert_eq!(found, [Some(Ok(())), Some(bad()), None]);
    let mut ours = Servers::new(Rules { probes: Some(probes), ..Rules::default() }, 3, 0);
    for (server, found) in found.into_iter().enumerate() {
        found.into_iter().for_each(|found| ours.inherit(server, found.err()));
    }
    ours.review(2);
    assert_eq!([0, 1, 2].map(|server| state(&ours, server)), ["up", "down", "down"]);
    ours.probed(0, bad(), 3);
    assert_eq!(state(&ours, 0), "up", "one failure is not three");
    let mut unprobed = ejecting(1, OUTLIERS);
    unprobed.inherit(0, Some("status 500".into()));
    unprobed.review(2);
    assert_eq!((unprobed.found(0), state(&unprobed, 0)), (None, "unknown"));
}

#[test]
fn a_server_that_flaps_does_not_flap_the_verdict() {
    let mut servers = probing(1);
    servers.probed(0, Ok(()), 0);
    let mut changes = 0;
    for now in 1..1_000 {
        changes += servers.probed(0, if now % 3 == 0 { Ok(()) } else { bad() }, now).len();
    }
    assert_eq!((changes, state(&servers, 0)), (0, "up"), "two failures in a row are not three");
    for now in 1_000..1_003 {
        servers.probed(0, bad(), now);
    }
    for now in 1_003..2_000 {
        changes += servers.probed(0, if now % 2 == 0 { Ok(()) } else { bad() }, now).len();
    }
    assert_eq!((changes, state(&servers, 0)), (0, "down"), "one success in a row is not two");
}

/// Any row of probes, against the words of the manual: `fall` failures in a row take a server out, `rise` successes in a row
/// bring it back, and the first probe of all is believed.
#[test]
fn only_what_is_found_in_a_row_changes_a_verdict() {
    let (mut falls, mut rises) = (0, 0);
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let probes = Probes { rise: random.u32(1..5), fall: random.u32(1..5), starts_up: true };
        let mut servers = Servers::new(Rules { probes: Some(probes), ..Rules::default() }, 1, 0);
        let (mut is_up, mut row, mut last) = (true, 0, true);
        for now in 0..500 {
            let found = random.bool();
            row = if found == last { row + 1 } else { 1 };
            last = found;
            let needed = if now == 0 {
                1
            } else if is_up {
                probes.fall
            } else {
                probes.rise
            };
            if found != is_up && row >= needed {
                is_up = found;
                *(if found { &mut rises } else { &mut falls }) += 1;
            }
            servers.probed(0, if found { Ok(()) } else { bad() }, now);
            assert_eq!(state(&servers, 0), if is_up { "up" } else { "down" }, "seed {seed}, probe {now}: {probes:?}");
        }
    }
    assert!(falls > 1_000 && rises > 1_000, "{falls} {rises}");
}

#[test]
fn all_may_be_down_and_each_comes_back_by_its_probes() {
    let mut servers = probing(3);
    (0..3).for_each(|server| drop(servers.probed(server, bad(), 1)));
    assert_eq!(servers.open(), 0);
    (0..2).for_each(|now| drop(servers.probed(1, Ok(()), now)));
    assert_eq!(servers.open(), 1);
}

#[test]
fn failures_in_a_row_eject_for_longer_each_time_and_a_calm_interval_is_forgiven() {
    let mut servers = ejecting(4, Outliers { success_rate: None, ..OUTLIERS });
    let (mut now, mut lengths) = (0, Vec::new());
    for _ in 0..5 {
        servers.counted(2, 0, 5);
        let changes = servers.tick(now);
        let Verdict::Ejected { until, reason } = &changes[0].to else { panic!("{changes:?}") };
        assert_eq!(&**reason, "5 failures in a row");
        lengths.push(until - now);
        assert!(servers.tick(until - 1).is_empty());
        now = *until;
        assert_eq!(servers.tick(now)[0].to, Verdict::Unknown, "back by itself");
    }
    assert_eq!(lengths, [30_000, 60_000, 90_000, 100_000, 100_000]);
    for _ in 0..20 {
        now += OUTLIERS.interval;
        servers.tick(now);
    }
    servers.counted(2, 0, 5);
    let Verdict::Ejected { until, .. } = servers.tick(now)[0].to else { panic!("not ejected") };
    assert_eq!(until - now, 30_000);
}

#[test]
fn a_server_that_was_down_comes_back_up_and_not_ejected() {
    for back in [10, OUTLIERS.ejection - 1, OUTLIERS.ejection] {
        let mut servers =
            Servers::new(Rules { probes: Some(PROBES), outliers: Some(OUTLIERS), min_healthy_percent: 0 }, 2, 0);
        (0..2).for_each(|server| drop(servers.probed(server, Ok(()), 0)));
        servers.counted(0, 0, 5);
        assert_eq!(servers.tick(0).len(), 1);
        (1..4).for_each(|now| drop(servers.probed(0, bad(), now)));
        assert_eq!(state(&servers, 0), "down");
        // No tick in between: probes come whenever they come.
        servers.probed(0, Ok(()), back - 1);
        servers.probed(0, Ok(()), back);
        assert_eq!(state(&servers, 0), "up");
    }
}

#[test]
fn a_server_that_comes_back_is_not_ejected_for_what_it_did_before() {
    let rules = Rules { probes: Some(PROBES), outliers: Some(OUTLIERS), min_healthy_percent: 0 };
    let mut servers = Servers::new(rules, 2, 0);
    (0..2).for_each(|server| drop(servers.probed(server, Ok(()), 0)));
    // Both die, and what fails meanwhile can eject neither, or the one and not the last.
    (1..4).for_each(|now| (0..2).for_each(|server| drop(servers.probed(server, bad(), now))));
    (0..2).for_each(|server| servers.counted(server, 0, 18));
    assert!(servers.tick(1_000).is_empty());
    for (server, now) in [(0, 20_000), (1, 21_000)] {
        (0..2).for_each(|_| drop(servers.probed(server, Ok(()), now)));
        servers.tick(now);
    }
    assert_eq!([state(&servers, 0), state(&servers, 1)], ["up", "up"]);
    servers.counted(0, 0, OUTLIERS.consecutive_failures - 1);
    assert!(servers.tick(22_000).is_empty(), "what it does now is counted from its return on");
    servers.counted(0, 0, 1);
    assert_eq!(servers.tick(23_000).len(), 1);
}

#[test]
fn a_server_that_was_drained_for_its_failures_begins_anew() {
    let mut servers = ejecting(3, OUTLIERS);
    servers.counted(0, 0, 4);
    servers.set_drain(0, Some("for maintenance".into()));
    servers.review(1);
    servers.counted(0, 0, 4);
    assert!(servers.tick(2).is_empty(), "it gets nothing that it could be kept from");
    servers.set_drain(0, None);
    servers.review(3);
    servers.counted(0, 0, 4);
    assert!(servers.tick(4).is_empty());
    assert_eq!(state(&servers, 0), "unknown");
}

#[test]
fn a_success_ends_a_row_of_failures() {
    let mut servers = ejecting(2, OUTLIERS);
    for now in 0..100 {
        servers.counted(0, u64::from(now % 5 == 4), 1);
        assert!(servers.tick(now).is_empty());
    }
}

#[test]
fn a_success_rate_far_below_its_peers_ejects() {
    let mut servers = ejecting(6, Outliers { consecutive_failures: 0, ..OUTLIERS });
    let count = |servers: &mut Servers, rates: [u64; 6]| {
        rates.iter().enumerate().for_each(|(server, rate)| servers.counted(server, *rate, 100 - rate));
    };
    count(&mut servers, [99, 98, 99, 100, 98, 70]);
    assert!(servers.tick(9_999).is_empty(), "not before the interval is over");
    let changes = servers.tick(10_000);
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].server, 5);
    assert_eq!(changes[0].to.reason(), Some("success rate 70.0 %, its peers' mean is 94.0 %"));
    count(&mut servers, [50, 51, 49, 52, 48, 0]);
    assert!(servers.tick(20_000).is_empty(), "all equally bad: nobody is an outlier");
    servers.counted(0, 0, 99);
    (1..5).for_each(|server| servers.counted(server, 100, 0));
    assert!(servers.tick(30_000).iter().all(|change| change.server == 5), "99 requests are not enough for a judgement");
}

#[test]
fn draining_is_above_everything_and_ends_when_told() {
    let mut servers = probing(2);
    servers.probed(0, Ok(()), 0);
    servers.set_drain(0, Some("moving house".into()));
    servers.review(1);
    assert_eq!(servers.verdict(0), (&Verdict::Draining("moving house".into()), 1));
    assert!(servers.probed(0, bad(), 2).is_empty());
    servers.set_drain(0, None);
    servers.review(3);
    assert_eq!(state(&servers, 0), "up");
}

#[test]
fn what_is_known_goes_on_under_new_rules_as_far_as_they_go() {
    let mut before =
        Servers::new(Rules { probes: Some(PROBES), outliers: Some(OUTLIERS), min_healthy_percent: 0 }, 4, 0);
    before.probed(0, bad(), 1);
    before.probed(1, Ok(()), 1);
    before.set_drain(1, Some("moving house".into()));
    before.review(2);
    before.counted(2, 0, 9);
    before.tick(3);
    let mut probed = probing(3);
    (0..3).for_each(|server| probed.adopt(server, &before, 2 - server));
    let changes = probed.review(4);
    assert_eq!(changes.iter().map(|change| (change.server, change.from.name())).collect::<Vec<_>>(), [(0, "ejected")]);
    assert_eq!([state(&probed, 0), state(&probed, 1), state(&probed, 2)], ["unknown", "draining", "down"]);
    assert_eq!(probed.verdict(2).1, 1, "since when it was");
    let mut unprobed = ejecting(3, OUTLIERS);
    (0..3).for_each(|server| unprobed.adopt(server, &before, server));
    let changes = unprobed.review(4);
    assert_eq!(changes.iter().map(|change| (change.server, change.from.name())).collect::<Vec<_>>(), [(0, "down")]);
    assert_eq!([state(&unprobed, 0), state(&unprobed, 1), state(&unprobed, 2)], ["unknown", "draining", "ejected"]);
}

#[test]
fn the_share_that_may_be_ejected_is_one_of_the_servers_that_are_there() {
    let mut servers = ejecting(3, Outliers { ejected_percent_max: 40, ..OUTLIERS });
    (0..2).for_each(|server| servers.counted(server, 0, 50));
    assert_eq!(servers.tick(1).len(), 1, "40 % of three is one");
    let mut servers = ejecting(10, Outliers { ejected_percent_max: 40, ..OUTLIERS });
    (0..9).for_each(|server| servers.counted(server, 0, 50));
    assert_eq!(servers.tick(1).len(), 4, "and of ten four");
}

#[test]
fn the_last_server_that_is_open_is_not_ejected_and_brings_nobody_back() {
    let mut servers = ejecting(2, Outliers { ejected_percent_max: 100, ..OUTLIERS });
    servers.counted(0, 0, 50);
    assert_eq!(servers.tick(1).len(), 1);
    servers.counted(1, 0, 50);
    assert!(servers.tick(2).is_empty());
    assert_eq!(
        [state(&servers, 0), state(&servers, 1)],
        ["ejected", "unknown"],
        "the first one's failures still count"
    );
}

#[test]
fn where_not_all_that_lag_behind_may_be_ejected_the_worst_are() {
    let success_rate = Some(SuccessRate { servers_min: 3, requests_min: 100, deviation_percent: 100 });
    for (one, other, worst) in [(60, 40, 1), (40, 60, 0)] {
        let rules = Outliers { consecutive_failures: 0, ejected_percent_max: 10, success_rate, ..OUTLIERS };
        let mut servers = ejecting(10, rules);
        let rates = [one, other].into_iter().chain([100; 8]);
        rates.enumerate().for_each(|(server, rate)| servers.counted(server, rate, 100 - rate));
        let ejected: Vec<usize> = servers.tick(10_000).iter().map(|change| change.server).collect();
        assert_eq!(ejected, [worst], "both lag behind, and one of ten may be ejected");
    }
}

#[test]
fn rules_that_change_all_the_time_keep_no_rates_from_being_compared() {
    let mut servers = ejecting(6, Outliers { consecutive_failures: 0, ..OUTLIERS });
    let mut ejected = 0;
    for now in (1_000..15_000).step_by(1_000) {
        (0..5).for_each(|server| servers.counted(server, 50, 0));
        servers.counted(5, 25, 25);
        ejected += servers.tick(now).len();
        let mut next = Servers::new(servers.rules, 6, now);
        (0..6).for_each(|server| next.adopt(server, &servers, server));
        assert!(next.review(now).is_empty());
        servers = next;
    }
    assert_eq!((ejected, state(&servers, 5)), (1, "ejected"));
}

#[test]
fn ejections_give_way_where_nobody_else_is_left() {
    let rules = Rules { probes: Some(PROBES), outliers: Some(OUTLIERS), min_healthy_percent: 0 };
    let mut servers = Servers::new(rules, 2, 0);
    (0..2).for_each(|server| drop(servers.probed(server, Ok(()), 0)));
    servers.counted(0, 0, 50);
    servers.tick(1);
    assert_eq!(state(&servers, 0), "ejected");
    servers.counted(1, 0, 50);
    assert!(servers.tick(2).is_empty(), "the last one is not ejected");
    (3..6).for_each(|now| drop(servers.probed(1, bad(), now)));
    assert_eq!((state(&servers, 1), state(&servers, 0)), ("down", "up"));
    // Failures after that are no reason to eject it.
    servers.counted(0, 0, 500);
    servers.tick(6);
    assert_eq!(state(&servers, 0), "up");
}

#[test]
fn with_too_few_open_verdicts_are_not_believed_and_drains_are() {
    let rules = Rules { probes: Some(PROBES), outliers: None, min_healthy_percent: 50 };
    let mut servers = Servers::new(rules, 6, 0);
    servers.set_backup(5, true);
    servers.set_drain(4, Some("moving house".into()));
    (0..6).for_each(|server| drop(servers.probed(server, Ok(()), 0)));
    let fall = |servers: &mut Servers, server: usize| (1..4).for_each(|now| drop(servers.probed(server, bad(), now)));
    let admitted = |servers: &Servers| (0..6).filter(|server| servers.admits(*server)).collect::<Vec<_>>();
    fall(&mut servers, 0);
    fall(&mut servers, 1);
    assert_eq!((servers.is_panic(), admitted(&servers)), (false, vec![2, 3, 5]), "two of four are enough");
    fall(&mut servers, 2);
    assert_eq!((servers.is_panic(), admitted(&servers)), (true, vec![0, 1, 2, 3, 5]));
    fall(&mut servers, 3);
    assert_eq!((servers.is_panic(), admitted(&servers)), (false, vec![5]), "a backup is better than panic");
    fall(&mut servers, 5);
    assert_eq!((servers.is_panic(), admitted(&servers)), (true, vec![0, 1, 2, 3, 5]));
    (4..6).for_each(|now| (0..2).for_each(|server| drop(servers.probed(server, Ok(()), now))));
    assert_eq!((servers.is_panic(), admitted(&servers)), (false, vec![0, 1]));
    // One that has to be looked at first is: there is nothing to be doubted.
    let probes = Some(Probes { starts_up: false, ..PROBES });
    let mut servers = Servers::new(Rules { probes, ..rules }, 2, 0);
    servers.review(0);
    assert!(!servers.is_panic() && !servers.admits(0));
}

/// Servers fall, rise, are drained and removed as they like: who is admitted is exactly who may be.
#[test]
fn a_panic_begins_and_ends_with_the_share_and_admits_nobody_who_was_drained() {
    let (mut panics, mut calm) = (0, 0);
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let count = random.usize(1..10);
        let percent = random.u8(0..=100);
        let rules = Rules { probes: Some(PROBES), outliers: Some(OUTLIERS), min_healthy_percent: percent };
        let mut servers = Servers::new(rules, count, 0);
        let backups: Vec<bool> = (0..count).map(|_| random.u8(0..5) == 0).collect();
        let mut drained = vec![false; count];
        backups.iter().enumerate().for_each(|(server, backup)| servers.set_backup(server, *backup));
        let sickness = random.u32(1..=10);
        for now in (0..100_000).step_by(1_000) {
            let server = random.usize(0..count);
            match random.u8(0..20) {
                0 => {
                    drained[server] = !drained[server];
                    servers.set_drain(server, drained[server].then(|| "moving house".into()));
                }
                2 => servers.counted(server, 0, 10),
                _ => drop(servers.probed(server, if random.u32(0..10) < sickness { bad() } else { Ok(()) }, now)),
            }
            servers.tick(now);
            let is_used = |server: &usize| !drained[*server];
            let open = |server: &usize| servers.verdict(*server).0.is_open();
            let ordinary: Vec<usize> = (0..count).filter(is_used).filter(|server| !backups[*server]).collect();
            let up = ordinary.iter().filter(|server| open(server)).count();
            let stood_in_for = up == 0 && (0..count).any(|server| backups[server] && open(&server));
            let closed = (0..count).filter(is_used).any(|server| !open(&server));
            let too_few = up * 100 < ordinary.len() * usize::from(percent);
            assert_eq!(servers.is_panic(), too_few && !stood_in_for && closed, "seed {seed} at {now}");
            for server in 0..count {
                let expected = is_used(&server) && (servers.is_panic() || open(&server));
                assert_eq!(servers.admits(server), expected, "seed {seed} at {now}: server {server}");
            }
            *(if servers.is_panic() { &mut panics } else { &mut calm }) += 1;
        }
    }
    assert!(panics > 1_000 && calm > 1_000, "{panics} and {calm} moments");
}

#[test]
fn probes_are_spread_around_their_interval() {
    let mut random = fastrand::Rng::with_seed(1);
    let waits: Vec<u64> = (0..10_000).map(|_| next_probe(2_000, random.u64(..))).collect();
    assert_eq!((waits.iter().min(), waits.iter().max()), (Some(&1_800), Some(&2_200)));
    assert_eq!(next_probe(1, random.u64(..)), 1);
}

/// Servers that fail, heal and are drained as they like, for ten minutes.
#[test]
fn whatever_happens_limits_hold_and_who_is_well_for_long_is_open() {
    for seed in 0..100 {
        let mut random = fastrand::Rng::with_seed(seed);
        let count = random.usize(1..12);
        let rules = Rules { probes: random.bool().then_some(PROBES), outliers: Some(OUTLIERS), min_healthy_percent: 0 };
        let mut servers = Servers::new(rules, count, 0);
        let mut sick = vec![false; count];
        for now in (0..600_000).step_by(1_000) {
            for (server, sick) in sick.iter_mut().enumerate() {
                if random.u32(0..60) == 0 {
                    *sick = !*sick;
                }
                let requests = if servers.verdict(server).0.is_open() { random.u64(0..200) } else { 0 };
                let failures = if *sick { requests } else { requests / 100 };
                servers.counted(server, requests - failures, failures);
                servers.probed(server, if *sick { bad() } else { Ok(()) }, now);
            }
            servers.tick(now);
            check(&servers, &sick, rules.probes.is_some(), seed);
        }
        // All are well again.
        for now in (600_000..1_000_000).step_by(1_000) {
            (0..count).for_each(|server| {
                servers.counted(server, 100, 0);
                servers.probed(server, Ok(()), now);
            });
            servers.tick(now);
        }
        assert_eq!(servers.open(), count, "seed {seed}: all of them are back");
    }
}

fn check(servers: &Servers, sick: &[bool], probed: bool, seed: u64) {
    let ejected = servers.all.iter().filter(|server| server.ejected.is_some()).count();
    let allowed = (sick.len() * 30 / 100).max(1);
    assert!(ejected <= allowed, "seed {seed}: {ejected} of {} ejected", sick.len());
    let down = servers.all.iter().filter(|server| matches!(server.verdict, Verdict::Down(_))).count();
    assert!(servers.open() > 0 || down == sick.len(), "seed {seed}: nobody is left, and not for the probes");
    assert!(probed || servers.open() > 0, "seed {seed}: ejection alone never takes all");
}

#[test]
fn a_server_that_nobody_knows_the_place_of_is_down_and_gets_nothing_in_a_panic_either() {
    let mut servers = Servers::new(Rules { min_healthy_percent: 100, ..Rules::default() }, 2, 0);
    servers.set_nowhere(0, Some("no such name".into()));
    let changes = servers.review(1);
    assert_eq!((changes.len(), changes[0].server, changes[0].to.name()), (1, 0, "down"));
    assert_eq!(servers.verdict(0).0.reason(), Some("no such name"));
    assert!(!servers.admits(0) && servers.admits(1));
    servers.set_nowhere(0, None);
    assert_eq!(servers.review(2)[0].to, Verdict::Unknown);
    assert!(servers.admits(0));
}

#[test]
fn of_two_servers_the_one_that_fails_half_is_ejected_and_small_differences_are_none() {
    let compared = |rates: [(u64, u64); 2]| {
        let mut servers = ejecting(2, Outliers { consecutive_failures: 0, ..OUTLIERS });
        rates.iter().enumerate().for_each(|(server, (good, bad))| servers.counted(server, *good, *bad));
        servers.tick(OUTLIERS.interval);
        [0, 1].map(|server| servers.verdict(server).0.name())
    };
    assert_eq!(compared([(500, 500), (1000, 0)]), ["ejected", "unknown"]);
    assert_eq!(compared([(1000, 0), (500, 500)]), ["unknown", "ejected"]);
    assert_eq!(compared([(500, 500), (500, 500)]), ["unknown", "unknown"], "both are as good");
    assert_eq!(compared([(750, 250), (1000, 0)]), ["unknown", "unknown"], "too little to tell");
    assert_eq!(compared([(20, 20), (1000, 0)]), ["unknown", "unknown"], "too few requests to compare");
}

#[test]
fn a_probe_that_finds_what_is_known_already_changes_nothing_and_one_that_does_not_is_told() {
    let rules = Rules { probes: Some(Probes { rise: 1, fall: 2, starts_up: true }), ..Rules::default() };
    let mut servers = Servers::new(rules, 2, 0);
    assert_eq!(servers.probed(0, Ok(()), 1)[0].to, Verdict::Up);
    assert!(servers.probed(0, Ok(()), 2).is_empty());
    assert!(servers.probed(0, Err("silent".into()), 3).is_empty(), "one is not enough");
    assert_eq!(servers.probed(0, Err("silent".into()), 4)[0].to, Verdict::Down("silent".into()));
    assert!(servers.probed(0, Err("refused".into()), 5).is_empty(), "it is down already");
    assert_eq!(servers.probed(0, Ok(()), 6)[0].to, Verdict::Up);
    assert_eq!(servers.verdict(0), (&Verdict::Up, 6));
}

#[test]
fn a_probe_costs_no_look_at_the_other_servers() {
    let rules = Rules { probes: Some(PROBES), outliers: Some(OUTLIERS), min_healthy_percent: 50 };
    for count in [10, 1_000] {
        let mut servers = Servers::new(rules, count, 0);
        LOOKS.set(0);
        let mut probes = 0;
        for found in [Ok(()), bad(), bad(), bad(), Ok(()), Ok(())] {
            for server in 0..count {
                servers.probed(server, found.clone(), 1);
                probes += 1;
            }
        }
        assert_eq!((servers.open(), servers.count_all()), (count, count));
        assert!(LOOKS.get() <= 2 * probes, "{} looks for {probes} probes of {count} servers", LOOKS.get());
    }
}

/// Probes bring up to date one by one the same as a look at all of them would.
#[test]
fn verdicts_that_are_settled_one_by_one_are_those_that_are_settled_together() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let outliers = random.bool().then_some(OUTLIERS);
        let rules = Rules { probes: Some(PROBES), outliers, min_healthy_percent: random.u8(0..=100) };
        let count = random.usize(1..12);
        let mut servers = Servers::new(rules, count, 0);
        println!("seed {seed}");
        for now in (0..400_000).step_by(1_000) {
            let server = random.usize(..count);
            match random.u8(..12) {
                0 => servers.set_drain(server, random.bool().then(|| "asked for".into())),
                1 => servers.set_backup(server, random.bool()),
                2 => servers.set_nowhere(server, random.bool().then(|| "no name".into())),
                3 => servers.counted(server, random.u64(..20), random.u64(..20)),
                _ => _ = servers.probed(server, if random.bool() { Ok(()) } else { bad() }, now),
            }
            if random.u8(..3) == 0 {
                servers.tick(now);
            }
            servers.review(now);
            servers.probed(random.usize(..count), if random.bool() { Ok(()) } else { bad() }, now);
            let mut all = servers.clone();
            assert!(all.commit(now).is_empty());
            assert_eq!((all.tally, all.panic), (servers.tally, servers.panic));
        }
    }
}
