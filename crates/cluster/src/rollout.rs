//! How a configuration reaches every engine: checked by all, tried by a few, then served by all in steps. Pure: the
//! leader asks what to do next whenever something has changed, and a leader that takes over goes on from the record.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::judge::{Judgement, Trial};
use crate::records::{Candidate, EngineRecord, LoadRecord, Phase, Verdict};

/// Longest time in which an engine that lives has to compile a candidate, or to serve it once it was told to.
pub const ANSWER_WAIT_MAX: Duration = Duration::from_secs(60);

/// How changes are made.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutPolicy {
    /// Time for which the canary serves a candidate before others do.
    pub canary_time: Duration,
    /// Percent of all engines that follow at once.
    pub step: u8,
    /// Whether the canary's figures are compared with those of the rest.
    pub is_judged: bool,
}

/// All that is known of the cluster.
pub struct Cluster<'a> {
    pub engines: &'a BTreeMap<String, EngineRecord>,
    pub loads: &'a BTreeMap<String, LoadRecord>,
    /// On this candidate.
    pub verdicts: &'a BTreeMap<String, Verdict>,
    /// The leader, which is the canary only if nobody else can be.
    pub leader: &'a str,
}

/// The leader's next step.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Wait,
    /// The candidate's record is replaced by this one.
    Advance(Candidate),
    /// Every engine serves it: it is the cluster's configuration.
    Commit,
    Refuse(Refusal),
}

/// Why a candidate is not served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    pub why: String,
    pub engine: Option<String>,
    pub problems: Vec<String>,
}

impl Refusal {
    fn by(engine: &str, why: String, problems: Vec<String>) -> Refusal {
        Refusal { why, engine: Some(engine.into()), problems }
    }
}

/// Memory of the leader about the candidate under way: times by its own clock.
#[derive(Debug)]
pub struct Rollout {
    id: String,
    phase: Phase,
    serving: usize,
    /// When this leader first saw the candidate as it is now.
    since: Instant,
    /// From when all canaries serve it, with the figures of then.
    trial: Option<Trial>,
}

impl Rollout {
    pub fn new(candidate: &Candidate, now: Instant) -> Rollout {
        let (phase, serving) = (candidate.phase, candidate.serving.len());
        Rollout { id: candidate.id.clone(), phase, serving, since: now, trial: None }
    }

    /// Decides the next step. To be asked at every change, and each second.
    pub fn step(&mut self, candidate: &Candidate, cluster: &Cluster, policy: &RolloutPolicy, now: Instant) -> Action {
        let known = (self.id.as_str(), self.phase, self.serving);
        if known != (candidate.id.as_str(), candidate.phase, candidate.serving.len()) {
            *self = Rollout::new(candidate, now);
        }
        match candidate.phase {
            Phase::Checking => self.check(candidate, cluster, now),
            Phase::Canary => self.try_out(candidate, cluster, policy, now),
            Phase::Rolling => self.roll(candidate, cluster, policy, now),
        }
    }

    fn check(&self, candidate: &Candidate, cluster: &Cluster, now: Instant) -> Action {
        let refused = cluster.verdicts.iter().find(|(_, verdict)| !verdict.passed);
        if let Some((engine, verdict)) = refused {
            let first = verdict.problems.first().map_or("no reason given", String::as_str);
            return Action::Refuse(Refusal::by(
                engine,
                format!("{engine} refuses it: {first}"),
                verdict.problems.clone(),
            ));
        }
        let missing = cluster.engines.keys().find(|engine| !cluster.verdicts.contains_key(*engine));
        if let Some(engine) = missing {
            return self.wait_for(engine, "has not said what it thinks of it", now);
        }
        let Some(canary) = choose_canary(cluster) else { return Action::Wait };
        let (canary, serving) = (vec![canary.to_owned()], vec![canary.to_owned()]);
        Action::Advance(Candidate { phase: Phase::Canary, canary, serving, ..candidate.clone() })
    }

    fn try_out(&mut self, candidate: &Candidate, cluster: &Cluster, policy: &RolloutPolicy, now: Instant) -> Action {
        for canary in &candidate.canary {
            let Some(engine) = cluster.engines.get(canary) else {
                return Action::Refuse(Refusal::by(canary, format!("{canary} was lost while it tried it"), Vec::new()));
            };
            if let Some(refused) = cluster.verdicts.get(canary).filter(|verdict| !verdict.passed) {
                let first = refused.problems.first().map_or("no reason given", String::as_str);
                let why = format!("{canary} cannot serve it: {first}");
                return Action::Refuse(Refusal::by(canary, why, refused.problems.clone()));
            }
            if engine.candidate.as_deref() != Some(candidate.id.as_str()) {
                return self.wait_for(canary, "does not serve it yet", now);
            }
        }
        let trial = self.trial.get_or_insert_with(|| Trial::begin(&candidate.canary, cluster.loads, now));
        if policy.is_judged
            && let Judgement::Worse(why) = trial.judge(&candidate.canary, cluster.loads)
        {
            return Action::Refuse(Refusal { why, engine: candidate.canary.first().cloned(), problems: Vec::new() });
        }
        if trial.age(now) < policy.canary_time {
            return Action::Wait;
        }
        self.roll(&Candidate { phase: Phase::Rolling, ..candidate.clone() }, cluster, policy, now)
    }

    fn roll(&self, candidate: &Candidate, cluster: &Cluster, policy: &RolloutPolicy, now: Instant) -> Action {
        let serves = |name: &String| {
            cluster.engines.get(name).is_none_or(|engine| engine.candidate.as_deref() == Some(candidate.id.as_str()))
        };
        if let Some((engine, verdict)) = cluster.verdicts.iter().find(|(_, verdict)| !verdict.passed) {
            let first = verdict.problems.first().map_or("no reason given", String::as_str);
            let why = format!("{engine} cannot serve it: {first}");
            return Action::Refuse(Refusal::by(engine, why, verdict.problems.clone()));
        }
        // Engines that have died in between serve nothing, and get what is current when they come back.
        if let Some(engine) = candidate.serving.iter().find(|engine| !serves(engine)) {
            return self.wait_for(engine, "does not serve it yet", now);
        }
        let left: Vec<&String> = cluster.engines.keys().filter(|engine| !candidate.serving.contains(engine)).collect();
        if left.is_empty() {
            return Action::Commit;
        }
        let step = (cluster.engines.len() * usize::from(policy.step)).div_ceil(100).max(1);
        let mut next = Candidate { phase: Phase::Rolling, ..candidate.clone() };
        next.serving.extend(left.into_iter().take(step).cloned());
        Action::Advance(next)
    }

    fn wait_for(&self, engine: &str, what: &str, now: Instant) -> Action {
        let waited = now.saturating_duration_since(self.since);
        if waited < ANSWER_WAIT_MAX {
            return Action::Wait;
        }
        let why = format!("{engine} lives, and {what} after {} s", ANSWER_WAIT_MAX.as_secs());
        Action::Refuse(Refusal::by(engine, why, Vec::new()))
    }
}

/// The engine that tries a candidate: one that gets requests, and that does not lead, if there is one.
fn choose_canary<'a>(cluster: &Cluster<'a>) -> Option<&'a str> {
    let rank = |(name, engine): &(&'a String, &'a EngineRecord)| {
        let busy = cluster.loads.get(*name).map_or(0, |load| load.connections);
        (!engine.is_ready, engine.draining.is_some(), name.as_str() == cluster.leader, busy == 0)
    };
    cluster.engines.iter().min_by_key(rank).map(|(name, _)| name.as_str())
}

/// Whether this engine serves the candidate, and not what is current.
pub fn is_served_by(candidate: &Candidate, engine: &str) -> bool {
    candidate.phase != Phase::Checking && candidate.serving.iter().any(|serving| serving == engine)
}

#[cfg(test)]
#[path = "rollout_tests.rs"]
mod tests;
