//! Tests of the leader's decisions, one generation after the other.

use super::*;

const A: EngineId = EngineId(0);
const B: EngineId = EngineId(1);
const C: EngineId = EngineId(2);

/// A cluster of which all engines apply at once and have no flows, but for those in `busy`.
struct Cluster {
    table: FlowTable,
    planner: Planner,
    members: BTreeMap<EngineId, Member>,
    busy: BTreeSet<(EngineId, u32)>,
    seconds: u64,
}

impl Cluster {
    fn of(engines: u16, buckets: u32) -> Cluster {
        let planner = Planner::new(Limits { step_share: 1.0, ..Limits::default() });
        let table = FlowTable::first([0; 16], buckets, A);
        let mut cluster = Cluster { table, planner, members: BTreeMap::new(), busy: BTreeSet::new(), seconds: 0 };
        for engine in 0..engines {
            cluster.set(EngineId(engine), Standing::Serving, 1000);
        }
        cluster.rest();
        cluster
    }

    fn set(&mut self, engine: EngineId, standing: Standing, weight: u32) {
        self.members.insert(engine, Member { standing, weight, applied: 0, counted: None });
    }

    /// A second passes, in which all report; then the leader decides.
    fn next(&mut self) -> Option<Changes> {
        self.seconds += 1;
        for (engine, member) in &mut self.members {
            member.applied = self.table.generation;
            let busy = self.busy.iter().filter(|(at, _)| at == engine).map(|(_, bucket)| (*bucket, 1)).collect();
            let at = Duration::from_secs(self.seconds);
            member.counted = Some(Counted { at, generation: self.table.generation, busy });
        }
        self.decide()
    }

    fn decide(&mut self) -> Option<Changes> {
        let now = Duration::from_secs(self.seconds);
        let (table, changes) = self.planner.next(&self.table, &self.members, now)?;
        self.table = table;
        Some(changes)
    }

    /// Seconds go by until nothing has changed for as long as anything is waited for.
    fn rest(&mut self) -> usize {
        let (mut quiet, mut generations) = (0, 0);
        while quiet < 12 {
            match self.next() {
                Some(_) => (quiet, generations) = (0, generations + 1),
                None => quiet += 1,
            }
            assert!(generations < 100, "no end of it");
        }
        generations
    }

    fn owned(&self, engine: EngineId) -> usize {
        self.table.held_by(engine).0
    }
}

fn moved(before: &FlowTable, after: &FlowTable) -> usize {
    before.buckets.iter().zip(&after.buckets).filter(|(before, after)| before.owner != after.owner).count()
}

#[test]
fn an_engine_that_joins_gets_its_share_and_nothing_else_moves() {
    let mut cluster = Cluster::of(3, 1024);
    let before = cluster.table.clone();
    cluster.set(EngineId(3), Standing::Serving, 1000);
    assert_eq!(cluster.next(), Some(Changes { listed: 1, ..Changes::default() }));
    assert_eq!(cluster.next().unwrap().prepared, 256);
    assert_eq!(moved(&before, &cluster.table), 0);
    assert_eq!(cluster.next().unwrap().handed_over, 256);
    assert_eq!(moved(&before, &cluster.table), 256);
    cluster.rest();
    assert_eq!(moved(&before, &cluster.table), 256);
    assert!(cluster.table.buckets.iter().all(|bucket| !bucket.has_former()));
}

#[test]
fn what_drains_gives_all_away_and_is_released_when_its_flows_have_ended() {
    let mut cluster = Cluster::of(4, 1024);
    let of_a = cluster.table.buckets.iter().position(|bucket| bucket.owner == A).unwrap() as u32;
    cluster.busy.insert((A, of_a));
    let before = cluster.table.clone();
    cluster.set(A, Standing::Draining, 1000);
    cluster.rest();
    assert_eq!(cluster.table.held_by(A), (0, 1));
    assert_eq!(moved(&before, &cluster.table), 256);
    cluster.busy.clear();
    cluster.rest();
    assert_eq!(cluster.table.held_by(A), (0, 0));
}

#[test]
fn buckets_of_the_dead_go_to_the_living_at_once_though_nobody_has_acknowledged_anything() {
    let mut cluster = Cluster::of(4, 1024);
    let before = cluster.table.clone();
    cluster.members.remove(&B);
    for member in cluster.members.values_mut() {
        member.applied = 0;
    }
    let changes = cluster.decide().unwrap();
    assert_eq!(changes, Changes { rescued: 256, unlisted: 1, ..Changes::default() });
    assert!(cluster.table.buckets.iter().all(|bucket| !bucket.names(B)));
    assert_eq!(moved(&before, &cluster.table), 256);
    assert!([A, C, EngineId(3)].iter().all(|engine| (341..=342).contains(&cluster.owned(*engine))));
}

#[test]
fn nothing_but_the_dead_is_seen_to_before_all_who_live_have_acknowledged() {
    let mut cluster = Cluster::of(3, 64);
    cluster.set(C, Standing::Draining, 1000);
    assert!(!may_publish(&cluster.table, &cluster.members));
    assert_eq!(waited_for(&cluster.table, &cluster.members).collect::<Vec<_>>(), [C]);
    assert_eq!(cluster.decide(), None);
    assert!(cluster.next().is_some());
}

#[test]
fn a_lost_engine_gets_no_new_flows_and_its_old_ones_are_found() {
    let mut cluster = Cluster::of(3, 64);
    let before = cluster.table.clone();
    cluster.set(C, Standing::Lost, 1000);
    cluster.decide().unwrap();
    for (before, after) in before.buckets.iter().zip(&cluster.table.buckets) {
        if before.owner == C {
            assert!(after.owner != C && after.former == C);
        }
    }
    cluster.set(C, Standing::Serving, 1000);
    cluster.rest();
    assert!(cluster.owned(C) >= 21);
}

#[test]
fn an_owner_that_drains_gives_the_bucket_back_to_a_former_one_that_serves() {
    let mut cluster = Cluster::of(2, 64);
    cluster.table.buckets[5] = Bucket { owner: A, former: B };
    cluster.busy = BTreeSet::from([(B, 5), (A, 5)]);
    cluster.set(A, Standing::Draining, 1000);
    cluster.next().unwrap();
    assert_eq!(cluster.table.buckets[5], Bucket { owner: B, former: A });
}

#[test]
fn a_bucket_whose_two_engines_drain_waits_and_is_given_up_after_its_limit() {
    let mut cluster = Cluster::of(3, 64);
    cluster.table.buckets[5] = Bucket { owner: A, former: B };
    cluster.busy = BTreeSet::from([(B, 5)]);
    cluster.set(A, Standing::Draining, 1000);
    cluster.set(B, Standing::Draining, 1000);
    cluster.rest();
    assert_eq!(cluster.table.buckets[5], Bucket { owner: A, former: B });
    assert_eq!(cluster.table.held_by(A), (1, 0));
    cluster.seconds += 300;
    assert_eq!(cluster.next().map(|changes| changes.given_up), Some(1));
    cluster.rest();
    assert_eq!(cluster.table.buckets[5], Bucket::of(C));
}

#[test]
fn small_differences_of_weight_move_nothing() {
    let mut cluster = Cluster::of(4, 1024);
    cluster.set(A, Standing::Serving, 980);
    assert_eq!(cluster.rest(), 0);
    cluster.set(A, Standing::Serving, 800);
    assert!(cluster.rest() > 0);
    assert_eq!(cluster.owned(A), 216);
}

#[test]
fn an_engine_without_weight_gives_all_away_keeps_its_flows_and_may_come_back() {
    let mut cluster = Cluster::of(3, 64);
    let of_a: Vec<u32> = (0..64).filter(|bucket| cluster.table.buckets[*bucket as usize].owner == A).collect();
    cluster.busy = of_a.iter().map(|bucket| (A, *bucket)).collect();
    cluster.set(A, Standing::Serving, 0);
    cluster.rest();
    assert_eq!(cluster.table.held_by(A), (0, of_a.len()), "its flows are found");
    assert_eq!([B, C].map(|engine| cluster.owned(engine)), [32, 32]);
    // Buckets of the dead go to those that may have it.
    cluster.members.remove(&C);
    cluster.rest();
    assert_eq!((cluster.owned(A), cluster.owned(B)), (0, 64));
    cluster.set(A, Standing::Serving, 1000);
    cluster.rest();
    assert_eq!((cluster.owned(A), cluster.owned(B)), (32, 32));
}

#[test]
fn the_last_of_a_share_moves_however_little_it_is_if_there_is_to_be_nothing() {
    let mut cluster = Cluster::of(4, 1024);
    cluster.set(A, Standing::Serving, 1);
    cluster.rest();
    let few = cluster.owned(A);
    assert!(few <= 8, "{few}");
    cluster.table.buckets[0] = Bucket::of(A);
    cluster.set(A, Standing::Serving, 0);
    cluster.rest();
    assert_eq!(cluster.owned(A), 0);
}

#[test]
fn engines_without_weight_have_all_of_it_if_no_other_serves() {
    let mut cluster = Cluster::of(3, 64);
    cluster.set(A, Standing::Serving, 0);
    cluster.set(B, Standing::Serving, 0);
    cluster.set(C, Standing::Draining, 1000);
    cluster.rest();
    assert_eq!([A, B, C].map(|engine| cluster.owned(engine)), [32, 32, 0]);
}

#[test]
fn shares_are_evened_out_in_bounded_steps() {
    let mut cluster = Cluster::of(2, 1024);
    cluster.planner = Planner::new(Limits { step_share: 1.0 / 16.0, ..Limits::default() });
    cluster.set(C, Standing::Serving, 1000);
    while let Some(changes) = cluster.next() {
        assert!(changes.prepared <= 64, "{changes:?}");
    }
    assert!(cluster.owned(C) >= 341 - 11);
}

#[test]
fn a_leader_that_takes_over_goes_on_from_the_table() {
    let mut cluster = Cluster::of(3, 1024);
    cluster.set(EngineId(3), Standing::Serving, 1000);
    cluster.next();
    cluster.next();
    cluster.planner = Planner::new(Limits { step_share: 1.0, ..Limits::default() });
    assert_eq!(cluster.next().unwrap().handed_over, 256);
    cluster.rest();
    assert_eq!(cluster.owned(EngineId(3)), 256);
}

#[test]
fn those_that_drain_take_over_from_the_dead_if_nobody_serves() {
    let mut cluster = Cluster::of(2, 64);
    cluster.set(A, Standing::Draining, 1000);
    cluster.members.remove(&B);
    cluster.rest();
    assert_eq!(cluster.owned(A), 64);
}
