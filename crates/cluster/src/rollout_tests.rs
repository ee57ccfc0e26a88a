//! Dialogues of the roll-out, and a simulation with seeds.

use super::*;
use crate::records::ConfigRecord;

const POLICY: RolloutPolicy = RolloutPolicy { canary_time: Duration::from_secs(30), step: 25, is_judged: true };

struct World {
    engines: BTreeMap<String, EngineRecord>,
    loads: BTreeMap<String, LoadRecord>,
    verdicts: BTreeMap<String, Verdict>,
    candidate: Candidate,
    now: Instant,
    rollout: Rollout,
}

impl World {
    fn of(engines: usize) -> World {
        let ready = EngineRecord { is_ready: true, ..EngineRecord::default() };
        let engines: BTreeMap<_, _> = (1..=engines).map(|n| (format!("e{n}"), ready.clone())).collect();
        let candidate = Candidate {
            id: "7f".into(),
            config: ConfigRecord { serial: 5, text: "new".into(), ..ConfigRecord::default() },
            ..Candidate::default()
        };
        let now = Instant::now();
        let rollout = Rollout::new(&candidate, now);
        World { engines, loads: BTreeMap::new(), verdicts: BTreeMap::new(), candidate, now, rollout }
    }

    fn step(&mut self) -> Action {
        let cluster = Cluster { engines: &self.engines, loads: &self.loads, verdicts: &self.verdicts, leader: "e1" };
        let action = self.rollout.step(&self.candidate, &cluster, &POLICY, self.now);
        if let Action::Advance(next) = &action {
            self.candidate = next.clone();
        }
        action
    }

    fn all_pass(&mut self) {
        let passed = Verdict { passed: true, problems: Vec::new() };
        self.verdicts = self.engines.keys().map(|name| (name.clone(), passed.clone())).collect();
    }

    /// Engines do as they are told.
    fn serve(&mut self) {
        for name in self.candidate.serving.clone() {
            if let Some(engine) = self.engines.get_mut(&name) {
                engine.candidate = Some(self.candidate.id.clone());
            }
        }
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }
}

#[test]
fn a_candidate_is_checked_by_all_then_tried_by_one_that_does_not_lead_then_served_in_steps() {
    let mut world = World::of(8);
    assert_eq!(world.step(), Action::Wait);
    world.all_pass();
    assert!(matches!(world.step(), Action::Advance(_)));
    assert_eq!((world.candidate.phase, world.candidate.serving.clone()), (Phase::Canary, vec!["e2".to_owned()]));
    world.pass(10);
    assert_eq!(world.step(), Action::Wait);
    world.serve();
    assert_eq!(world.step(), Action::Wait);
    world.pass(29);
    assert_eq!(world.step(), Action::Wait, "the time begins when the canary serves");
    world.pass(1);
    assert!(matches!(world.step(), Action::Advance(_)));
    assert_eq!((world.candidate.phase, world.candidate.serving.len()), (Phase::Rolling, 3));
    assert_eq!(world.step(), Action::Wait, "the next step waits for the one before");
    for serving in [5, 7, 8] {
        world.serve();
        assert!(matches!(world.step(), Action::Advance(_)));
        assert_eq!(world.candidate.serving.len(), serving);
    }
    assert_eq!(world.step(), Action::Wait);
    world.serve();
    assert_eq!(world.step(), Action::Commit);
}

#[test]
fn one_engine_that_refuses_is_enough_and_is_named_with_its_problems() {
    let mut world = World::of(4);
    world.all_pass();
    let problems = vec!["cluster.toml:3:9: no backend named \"apii\"".to_owned()];
    world.verdicts.insert("e3".into(), Verdict { passed: false, problems: problems.clone() });
    let Action::Refuse(refusal) = world.step() else { panic!("not refused") };
    assert_eq!((refusal.engine.as_deref(), &refusal.problems), (Some("e3"), &problems));
    assert_eq!(refusal.why, "e3 refuses it: cluster.toml:3:9: no backend named \"apii\"");
}

#[test]
fn an_engine_that_lives_and_says_nothing_is_waited_for_until_a_limit() {
    let mut world = World::of(2);
    world.pass(59);
    assert_eq!(world.step(), Action::Wait);
    world.pass(1);
    assert!(
        matches!(world.step(), Action::Refuse(refusal) if refusal.why == "e1 lives, and has not said what it thinks of it after 60 s")
    );
    // One that died is not waited for.
    let mut world = World::of(2);
    world.all_pass();
    world.verdicts.remove("e1");
    world.engines.remove("e1");
    assert!(matches!(world.step(), Action::Advance(_)));
}

#[test]
fn a_canary_that_dies_or_cannot_serve_it_or_does_worse_ends_it() {
    let on_trial = || {
        let mut world = World::of(3);
        world.all_pass();
        world.step();
        world.serve();
        let load = LoadRecord { requests: 1000, ..LoadRecord::default() };
        world.loads = world.engines.keys().map(|name| (name.clone(), load.clone())).collect();
        assert_eq!(world.step(), Action::Wait);
        world
    };
    let mut world = on_trial();
    world.engines.remove("e2");
    assert!(matches!(world.step(), Action::Refuse(refusal) if refusal.why == "e2 was lost while it tried it"));
    let mut world = on_trial();
    world.verdicts.insert("e2".into(), Verdict { passed: false, problems: vec!["port 443 is taken".into()] });
    assert!(matches!(world.step(), Action::Refuse(refusal) if refusal.why == "e2 cannot serve it: port 443 is taken"));
    let mut world = on_trial();
    world.loads.insert("e2".into(), LoadRecord { requests: 1100, faults: 60, ..LoadRecord::default() });
    world.loads.insert("e3".into(), LoadRecord { requests: 1100, ..LoadRecord::default() });
    assert!(matches!(world.step(), Action::Refuse(refusal) if refusal.why.starts_with("e2 has more faults with it")));
}

#[test]
fn a_leader_that_takes_over_goes_on_and_gives_the_canary_its_whole_time() {
    let mut world = World::of(3);
    world.all_pass();
    world.step();
    world.serve();
    world.step();
    world.pass(29);
    assert_eq!(world.step(), Action::Wait);
    world.rollout = Rollout::new(&world.candidate, world.now);
    world.pass(1);
    assert_eq!(world.step(), Action::Wait);
    world.pass(30);
    assert!(matches!(world.step(), Action::Advance(_)));
}

#[test]
fn whatever_engines_do_a_candidate_ends_and_is_never_committed_unless_all_that_live_serve_it() {
    for seed in 0..2_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut world = World::of(random.usize(1..9));
        let mut ended = None;
        for _ in 0..400 {
            match random.u8(0..8) {
                0 if world.engines.len() > 1 && random.u8(0..4) == 0 => {
                    let name = world.engines.keys().nth(random.usize(..world.engines.len())).cloned().expect("one");
                    world.engines.remove(&name);
                    world.verdicts.remove(&name);
                }
                1 if random.u8(0..6) == 0 => {
                    let ready = EngineRecord { is_ready: random.bool(), ..EngineRecord::default() };
                    world.engines.insert(format!("n{}", random.u8(..)), ready);
                }
                2 | 3 => {
                    let name = world.engines.keys().nth(random.usize(..world.engines.len())).cloned().expect("one");
                    let passed = random.u16(0..200) != 0;
                    let problems = if passed { Vec::new() } else { vec!["wrong".to_owned()] };
                    world.verdicts.insert(name, Verdict { passed, problems });
                }
                4 | 5 => world.serve(),
                6 => world.pass(random.u64(0..20)),
                _ if random.u8(0..10) == 0 => world.rollout = Rollout::new(&world.candidate, world.now),
                _ => {}
            }
            let before = world.candidate.clone();
            match world.step() {
                Action::Wait => {}
                Action::Advance(next) => {
                    assert!(next.serving.starts_with(&before.serving), "seed {seed}: nobody is taken back");
                    assert!(next.serving.len() > before.serving.len(), "seed {seed}");
                }
                Action::Commit => {
                    let serves = |engine: &EngineRecord| engine.candidate.as_deref() == Some("7f");
                    assert!(world.engines.values().all(serves), "seed {seed}");
                    ended = Some(true);
                }
                Action::Refuse(refusal) => {
                    assert!(!refusal.why.is_empty(), "seed {seed}");
                    ended = Some(false);
                }
            }
            if ended.is_some() {
                break;
            }
        }
        if ended.is_none() {
            // With everybody there and willing it ends.
            for _ in 0..40 {
                world.all_pass();
                world.serve();
                world.pass(31);
                if matches!(world.step(), Action::Commit | Action::Refuse(_)) {
                    ended = Some(true);
                    break;
                }
            }
        }
        assert!(ended.is_some(), "seed {seed}: {:?}", world.candidate);
    }
}
