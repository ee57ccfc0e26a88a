//! Whether this engine announces the virtual address: facts and the time in, a decision out.
//!
//! A route is worth having only where requests find an answer, yet no set of engines may end up with nobody
//! announcing. Every engine decides alone, from what it last heard of the others, so that the rules have to hold with
//! late news.

use std::time::Duration;

/// A backend's servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendFacts {
    pub name: String,
    /// Servers that take requests.
    pub up: usize,
    pub total: usize,
    /// Servers without which the backend is not ready, by its minimum in percent.
    pub needed: usize,
}

/// All that a decision goes by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Somebody ordered it, or the process ends.
    pub is_draining: bool,
    pub listeners_open: usize,
    pub listeners_wanted: usize,
    /// TLS profiles, and those of them without any certificate that can be used.
    pub profiles: usize,
    pub profiles_without: Vec<String>,
    pub backends: Vec<BackendFacts>,
    /// Other engines whose last [`Decision::is_ready`] was true and whose lease holds; `None` where nobody knows:
    /// there is no cluster, or this engine has lost it.
    pub others_ready: Option<usize>,
}

/// How long a cause has to last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holds {
    /// Before the route is withdrawn. It has to be longer than news of an engine takes to reach the others: two that
    /// fail at once each see in time that the other is no better off.
    pub withdraw: Duration,
    /// Before it is announced again after that.
    pub announce: Duration,
}

impl Default for Holds {
    fn default() -> Holds {
        Holds { withdraw: Duration::from_secs(3), announce: Duration::from_secs(15) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub is_announced: bool,
    /// Whether the others may rely on this engine: it announces and lacks nothing. For the engine's record in the
    /// cluster, as soon as it changes.
    pub is_ready: bool,
    pub reason: String,
}

/// Ability of an engine to serve clients.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ability {
    Whole,
    /// Some requests are answered.
    Part(String),
    /// Clients are greeted, and no backend has a server for them.
    Cut(String),
    /// No client gets as far as a request.
    Nothing(String),
    Draining,
}

impl Ability {
    fn of(facts: &Facts) -> Ability {
        if facts.is_draining {
            return Ability::Draining;
        }
        let missing = facts.profiles_without.len();
        if facts.listeners_open == 0 {
            return Ability::Nothing("no listener is open".to_owned());
        }
        if missing > 0 && missing >= facts.profiles {
            return Ability::Nothing("no TLS profile has a certificate that can be used".to_owned());
        }
        let lacking: Vec<&BackendFacts> = facts.backends.iter().filter(|backend| backend.up < backend.needed).collect();
        if let [first, rest @ ..] = lacking.as_slice() {
            let others = if rest.is_empty() { String::new() } else { format!(", and {} more like it", rest.len()) };
            let BackendFacts { name, up, total, needed } = first;
            let why = format!("backend {name} has {up} of {total} servers, and needs {needed}{others}");
            let is_cut = facts.backends.iter().all(|backend| backend.up == 0);
            return if is_cut { Ability::Cut(why) } else { Ability::Part(why) };
        }
        if let Some(first) = facts.profiles_without.first() {
            return Ability::Part(format!("TLS profile {first} has no certificate that can be used"));
        }
        if facts.listeners_open < facts.listeners_wanted {
            let Facts { listeners_open, listeners_wanted, .. } = facts;
            return Ability::Part(format!("{listeners_open} of {listeners_wanted} listeners are open"));
        }
        Ability::Whole
    }
}

/// The decision by the facts alone, as of an engine that announces or not by now. [`Decider`] adds how long they
/// last.
pub fn decide(facts: &Facts, is_announced: bool) -> Decision {
    let ability = Ability::of(facts);
    // An engine that can do all of it announces, whatever the others do.
    let is_ready = ability == Ability::Whole;
    let (announces, reason) = match (ability, facts.others_ready) {
        (Ability::Draining, _) => (false, "draining".to_owned()),
        (Ability::Nothing(why), _) => (false, why),
        (Ability::Whole, Some(_)) => (true, "ready".to_owned()),
        (Ability::Whole, None) => (true, "ready; nobody knows of other engines".to_owned()),
        (Ability::Part(why) | Ability::Cut(why), Some(1..)) => (false, format!("{why}; others are ready")),
        (Ability::Part(why) | Ability::Cut(why), Some(0)) => (true, format!("{why}; no other engine is ready")),
        (Ability::Part(why), None) => (true, format!("{why}; nobody knows whether others are better off")),
        // An engine that was withdrawn when the cluster was lost would bring clients nothing.
        (Ability::Cut(why), None) => (is_announced, format!("{why}; as before, since nobody knows of other engines")),
    };
    Decision { is_announced: announces, is_ready, reason }
}

/// Decisions over time, which a flapping fact cannot make flap.
#[derive(Debug)]
pub struct Decider {
    holds: Holds,
    is_announced: bool,
    /// Whether a fault is why the route was withdrawn last.
    after_fault: bool,
    /// Since when the facts speak against what is so, without a break.
    against_since: Option<Duration>,
}

impl Decider {
    /// `is_announced`: whether this engine's predecessor announces by now.
    pub fn new(holds: Holds, is_announced: bool) -> Decider {
        Decider { holds, is_announced, after_fault: false, against_since: None }
    }

    /// `now` counts from any fixed moment and never goes back.
    pub fn decide(&mut self, facts: &Facts, now: Duration) -> Decision {
        let bare = decide(facts, self.is_announced);
        if bare.is_announced == self.is_announced {
            self.against_since = None;
            return bare;
        }
        let since = *self.against_since.get_or_insert(now);
        let hold = self.hold(facts, bare.is_announced);
        let lasted = now.saturating_sub(since);
        if lasted < hold {
            let left = (hold - lasted).as_secs_f64();
            let becomes = if bare.is_announced { "to be announced" } else { "to be withdrawn" };
            let reason = format!("{}; {becomes} in {left:.1} s if it stays so", bare.reason);
            return Decision { is_announced: self.is_announced, is_ready: false, reason };
        }
        self.against_since = None;
        self.is_announced = bare.is_announced;
        if !self.is_announced {
            self.after_fault = !facts.is_draining;
        }
        bare
    }

    /// How long the facts have to speak for a change.
    fn hold(&self, facts: &Facts, announces: bool) -> Duration {
        let is_whole = Ability::of(facts) == Ability::Whole;
        match (announces, facts.others_ready) {
            (false, _) if facts.is_draining => Duration::ZERO,
            (false, _) => self.holds.withdraw,
            // Nobody else serves: each moment counts.
            (true, Some(0)) => Duration::ZERO,
            (true, None) if is_whole => Duration::ZERO,
            // An election in the cluster's store is over by then, and clients have the others meanwhile.
            (true, None) => self.holds.announce,
            (true, Some(_)) if self.after_fault => self.holds.announce,
            (true, Some(_)) => self.holds.withdraw,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ready(others: Option<usize>) -> Facts {
        let backends = vec![servers("api", 4, 2), servers("web", 2, 1)];
        Facts {
            listeners_open: 2,
            listeners_wanted: 2,
            profiles: 2,
            backends,
            others_ready: others,
            ..Facts::default()
        }
    }

    fn servers(name: &str, up: usize, needed: usize) -> BackendFacts {
        BackendFacts { name: name.to_owned(), up, total: 4, needed }
    }

    fn lame(others: Option<usize>) -> Facts {
        Facts { backends: vec![servers("api", 1, 2), servers("web", 2, 1)], ..ready(others) }
    }

    fn cut(others: Option<usize>) -> Facts {
        Facts { backends: vec![servers("api", 0, 2), servers("web", 0, 1)], ..ready(others) }
    }

    fn announces(facts: &Facts) -> bool {
        decide(facts, true).is_announced
    }

    #[test]
    fn an_engine_announces_while_it_is_ready_and_whoever_else_is() {
        for others in [None, Some(0), Some(3)] {
            assert!(decide(&ready(others), false).is_announced);
            assert!(decide(&ready(others), false).is_ready);
        }
        let closed = Facts { listeners_open: 0, ..ready(Some(0)) };
        let bare = Facts { profiles_without: vec!["a".into(), "b".into()], ..ready(Some(0)) };
        let draining = Facts { is_draining: true, ..ready(Some(0)) };
        assert!(!announces(&closed) && !announces(&bare) && !announces(&draining));
    }

    #[test]
    fn an_engine_without_servers_makes_way_for_others_that_have_some_and_for_nobody_else() {
        let short = Facts { listeners_open: 1, ..ready(None) };
        let one = Facts { profiles_without: vec!["a".into()], ..ready(None) };
        for facts in [lame(None), cut(None), short, one] {
            assert!(!announces(&Facts { others_ready: Some(1), ..facts.clone() }), "{facts:?}");
            assert!(announces(&Facts { others_ready: Some(0), ..facts.clone() }), "{facts:?}");
            assert!(announces(&facts), "{facts:?}");
            assert!(!decide(&facts, true).is_ready);
        }
        assert!(!decide(&cut(None), false).is_announced, "lost the cluster as well");
        assert!(decide(&lame(None), false).is_announced);
        assert!(decide(&lame(Some(1)), true).reason.starts_with("backend api has 1 of 4 servers, and needs 2"));
    }

    #[test]
    fn health_that_flaps_each_second_does_not_flap_the_route() {
        let mut decider = Decider::new(Holds::default(), true);
        for second in 0..600 {
            let facts = if second % 2 == 0 { lame(Some(2)) } else { ready(Some(2)) };
            assert!(decider.decide(&facts, second * SECOND).is_announced, "second {second}");
        }
        for second in 600..604 {
            decider.decide(&lame(Some(2)), second * SECOND);
        }
        for second in 604..1200 {
            let facts = if second % 2 == 0 { lame(Some(2)) } else { ready(Some(2)) };
            assert!(!decider.decide(&facts, second * SECOND).is_announced, "second {second}");
        }
    }

    #[test]
    fn a_fault_has_to_last_and_so_has_its_end_but_a_drain_is_at_once() {
        let holds = Holds::default();
        let mut decider = Decider::new(holds, false);
        assert!(decider.decide(&ready(None), Duration::ZERO).is_announced);
        let mut at = SECOND;
        let waiting = decider.decide(&lame(Some(1)), at);
        assert!(waiting.is_announced && !waiting.is_ready, "{waiting:?}");
        at += holds.withdraw;
        assert!(!decider.decide(&lame(Some(1)), at).is_announced);
        assert!(!decider.decide(&ready(Some(1)), at).is_announced);
        assert!(!decider.decide(&ready(Some(1)), at + holds.announce - Duration::from_millis(1)).is_announced);
        assert!(decider.decide(&ready(Some(1)), at + holds.announce).is_announced);
        at += holds.announce;
        assert!(!decider.decide(&Facts { is_draining: true, ..ready(Some(1)) }, at).is_announced);
        // Taken back by whoever ordered it: nothing was wrong.
        decider.decide(&ready(Some(1)), at);
        assert!(decider.decide(&ready(Some(1)), at + holds.withdraw).is_announced);
    }

    #[test]
    fn beside_others_that_serve_a_route_comes_and_goes_no_faster_than_the_holds_allow() {
        let holds = Holds::default();
        for seed in 0..200 {
            println!("seed {seed}");
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut decider, mut is_announced, mut changes) = (Decider::new(holds, true), true, 0);
            let mut facts = ready(Some(2));
            for step in 0..2400 {
                if random.u8(..30) == 0 {
                    facts = random.choice([ready(Some(2)), lame(Some(2)), cut(Some(2))]).unwrap();
                }
                let decision = decider.decide(&facts, STEP * step);
                changes += u128::from(decision.is_announced != is_announced);
                is_announced = decision.is_announced;
            }
            let cycles = (STEP * 2400).as_millis() / (holds.withdraw + holds.announce).as_millis();
            assert!(changes <= 2 * cycles + 2, "{changes} changes");
        }
    }

    #[test]
    fn a_short_loss_of_the_cluster_brings_nobody_back_that_lacks_servers() {
        let holds = Holds::default();
        let mut decider = Decider::new(holds, true);
        decider.decide(&lame(Some(1)), Duration::ZERO);
        assert!(!decider.decide(&lame(Some(1)), 3 * SECOND).is_announced);
        assert!(!decider.decide(&lame(None), 4 * SECOND).is_announced);
        assert!(!decider.decide(&lame(None), 6 * SECOND).is_announced);
        assert!(!decider.decide(&lame(Some(1)), 7 * SECOND).is_announced);
        assert!(!decider.decide(&lame(None), 8 * SECOND).is_announced);
        assert!(decider.decide(&lame(None), 8 * SECOND + holds.announce).is_announced);
    }

    #[test]
    fn the_last_one_serves_again_at_once_when_the_others_are_gone() {
        let mut decider = Decider::new(Holds::default(), true);
        decider.decide(&cut(Some(1)), Duration::ZERO);
        assert!(!decider.decide(&cut(Some(1)), 5 * SECOND).is_announced);
        assert!(decider.decide(&cut(Some(0)), 6 * SECOND).is_announced);
    }

    /// Engines that decide by late news of each other, in steps.
    struct Lab {
        random: fastrand::Rng,
        engines: Vec<Engine>,
        /// Words of each engine about itself, step by step.
        said: Vec<Vec<bool>>,
    }

    struct Engine {
        decider: Decider,
        facts: Facts,
        is_announced: bool,
        changes: usize,
        drains: usize,
    }

    const STEP: Duration = Duration::from_millis(250);
    /// Longest time that news is underway; below the hold before a withdrawal.
    const LATE_STEPS: usize = 8;

    impl Lab {
        fn new(seed: u64) -> Lab {
            let mut random = fastrand::Rng::with_seed(seed);
            let engine = |_| Engine {
                decider: Decider::new(Holds::default(), true),
                facts: ready(None),
                is_announced: true,
                changes: 0,
                drains: 0,
            };
            let engines: Vec<Engine> = (0..random.usize(2..6)).map(engine).collect();
            let said = vec![vec![true; engines.len()]; LATE_STEPS + 1];
            Lab { random, engines, said }
        }

        /// Ready engines besides one, as this one has heard.
        fn heard(&mut self, engine: usize) -> usize {
            let steps = self.said.len();
            let others = (0..self.engines.len()).filter(|other| *other != engine);
            others.filter(|other| self.said[steps - 1 - self.random.usize(..=LATE_STEPS)][*other]).count()
        }

        fn change_facts(&mut self, drains: bool) {
            let storm = self.random.u8(..40) == 0;
            for at in 0..self.engines.len() {
                if !storm && self.random.u8(..12) != 0 {
                    continue;
                }
                let draining = drains && self.random.u8(..6) == 0;
                let facts = match self.random.u8(..8) {
                    0 | 1 => lame(None),
                    2 => cut(None),
                    3 => Facts { listeners_open: 1, ..ready(None) },
                    4 => Facts { listeners_open: 0, ..ready(None) },
                    _ => ready(None),
                };
                let engine = &mut self.engines[at];
                engine.drains += usize::from(draining && !engine.facts.is_draining);
                engine.facts = Facts { is_draining: draining, ..facts };
            }
        }

        /// One step: news, decisions, what was said. `isolated`: how many engines have lost the cluster.
        fn step(&mut self, now: Duration, isolated: usize) {
            let mut said = Vec::new();
            for at in 0..self.engines.len() {
                let others = (at >= isolated).then(|| self.heard(at));
                let engine = &mut self.engines[at];
                engine.facts.others_ready = others;
                let decision = engine.decider.decide(&engine.facts, now);
                engine.changes += usize::from(decision.is_announced != engine.is_announced);
                engine.is_announced = decision.is_announced;
                said.push(decision.is_ready);
            }
            self.said.push(said);
        }

        fn can_serve(engine: &Engine) -> bool {
            matches!(Ability::of(&engine.facts), Ability::Whole | Ability::Part(_))
        }
    }

    fn run(seed: u64, drains: bool) {
        println!("seed {seed}, drains {drains}");
        let mut lab = Lab::new(seed);
        // Steps in which nobody announced although the same engine could have served all the time.
        let mut dark = vec![0; lab.engines.len()];
        let mut isolated = 0;
        let steps: usize = 2400;
        for step in 0..steps {
            lab.change_facts(drains);
            if lab.random.u8(..100) == 0 {
                isolated = if drains { lab.random.usize(..=lab.engines.len()) } else { 0 };
            }
            lab.step(STEP * u32::try_from(step).unwrap(), isolated);
            let is_dark = !lab.engines.iter().any(|engine| engine.is_announced);
            for (at, engine) in lab.engines.iter().enumerate() {
                dark[at] = if is_dark && Lab::can_serve(engine) { dark[at] + 1 } else { 0 };
            }
            // After the last one drained or closed its listeners, the news of it has to come round; whoever can do
            // part and has lost the cluster waits for its hold.
            let limit = if isolated > 0 { 60 + LATE_STEPS + 2 } else { LATE_STEPS + 2 };
            assert!(dark.iter().all(|steps| *steps <= limit), "step {step}: {dark:?}");
        }
        let lasted = STEP * u32::try_from(steps).unwrap();
        let most = 2 * (lasted.as_millis() / Holds::default().withdraw.as_millis()) as usize;

        for engine in &lab.engines {
            assert!(engine.changes <= most + 2 * engine.drains, "{} changes", engine.changes);
        }
    }

    #[test]
    fn nobody_is_left_without_an_engine_while_one_could_serve() {
        for seed in 0..150 {
            run(seed, false);
            run(seed, true);
        }
    }

    #[test]
    fn engines_that_lose_servers_never_all_withdraw_however_late_the_news() {
        for seed in 0..300 {
            println!("seed {seed}");
            let mut lab = Lab::new(seed);
            for step in 0..1200 {
                for at in 0..lab.engines.len() {
                    if lab.random.u8(..6) == 0 {
                        lab.engines[at].facts = match lab.random.u8(..3) {
                            0 => ready(None),
                            1 => lame(None),
                            _ => cut(None),
                        };
                    }
                    // Faults that last are what withdraws.
                    if lab.random.u8(..60) == 0 {
                        lab.engines.iter_mut().for_each(|engine| engine.facts = lame(None));
                    }
                }
                lab.step(STEP * step, 0);
                assert!(lab.engines.iter().any(|engine| engine.is_announced), "step {step}");
            }
        }
    }
}
