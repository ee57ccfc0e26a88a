//! How the cluster stands, for the admin address, the dashboard and the terminal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agent::{Agent, Registration};
use crate::chance::now;
use crate::ends::Standing;
use crate::mirror::Mirror;
use crate::records::{Candidate, EngineRecord, OutcomeRecord};
use crate::runtime::CERTIFICATES_PATH;

impl Agent {
    /// Publishes how this engine stands, for the main thread and the admin address.
    pub(crate) fn publish(&mut self) {
        let standing = standing(self);
        self.standing.send_if_modified(|known| {
            let is_new = *known != standing;
            *known = standing;
            is_new
        });
        // A view has all of the cluster: one is put together for each look, and for nobody else.
        let viewed = *self.viewed.borrow();
        if self.shown.is_none_or(|shown| viewed.is_some_and(|viewed| viewed > shown)) {
            self.shown = Some(Instant::now());
            self.status.send_replace(Arc::new(view(self)));
        }
    }
}

impl Agent {
    /// Whether somebody has looked at the cluster lately.
    pub(crate) fn is_viewed(&self) -> bool {
        let viewed = *self.viewed.borrow();
        viewed.is_none_or(|viewed| viewed.elapsed() < VIEWED)
    }
}

/// Others' figures are kept up to date for so long after somebody has looked.
const VIEWED: Duration = Duration::from_secs(10);

fn standing(agent: &Agent) -> Standing {
    let (mirror, own) = (&agent.mirror, agent.settings.engine.as_str());
    let is_other = |(name, engine): &(&String, &EngineRecord)| {
        name.as_str() != own && engine.is_ready && engine.draining.is_none() && engine.announced != Some(false)
    };
    let buckets = mirror.flows.as_ref().map(|flows| flows.counts.get(own).copied().unwrap_or(0));
    Standing {
        is_connected: agent.is_connected,
        is_leader: agent.leading.is_some(),
        // An engine that has left gets no clients until it is started anew.
        is_draining: mirror.drains.contains_key(own) || agent.registration == Registration::Left,
        others_ready: agent.is_connected.then(|| mirror.engines.iter().filter(is_other).count()),
        buckets,
        is_listed: agent.settings.flows.map(|_| agent.is_listed()),
        is_behind: !agent.is_caught_up,
        wanted: mirror.capacity.as_ref().map(|capacity| (capacity.wanted, capacity.engines, capacity.reason.clone())),
        engines: mirror.engines.len(),
        serial: agent.served.as_ref().map_or(0, |served| served.serial),
        problems: problems(agent).len(),
        is_name_taken: agent.problems.contains_key("name"),
    }
}

fn problems(agent: &Agent) -> Vec<String> {
    let mut problems: Vec<String> = agent.problems.values().cloned().collect();
    problems.extend(agent.secrets.problems());
    problems.extend(agent.mirror.problems().cloned());
    problems.extend(agent.mirror.skewed(&agent.settings.engine, now(), Instant::now()));
    if agent.is_connected
        && !agent.mirror.is_there(&agent.keys.current())
        && let Some(served) = agent.served.as_ref().filter(|served| served.serial > 0)
    {
        problems.push(format!(
            "etcd has no configuration of this cluster (it was emptied, or is another one): configuration {} of this \
             engine's own copy is served; `propylon cluster apply` puts one back",
            served.serial
        ));
    }
    if let Some(served) = agent.served.as_ref().filter(|served| served.text.contains(CERTIFICATES_PATH))
        && agent.secrets.certificates().is_empty()
    {
        problems.push(format!(
            "the cluster has no certificate, and configuration {} names {CERTIFICATES_PATH}: engines serve what they had, and \
             cannot be started anew; `propylon cluster certificate put NAME FILE` puts one there",
            served.serial
        ));
    }
    problems
}

fn view(agent: &Agent) -> Value {
    let mirror = &agent.mirror;
    let engines = mirror.engines.iter().map(|(name, engine)| {
        let buckets = mirror.flows.as_ref().and_then(|flows| flows.counts.get(name).copied());
        shown_engine(name, engine, mirror, buckets)
    });
    json!({
        "name": agent.settings.cluster,
        "engine": agent.settings.engine,
        "left": agent.registration == Registration::Left,
        "connected": agent.is_connected,
        "leader": mirror.leader.as_ref().map(|(leader, _)| &leader.engine),
        "serial": agent.served.as_ref().map_or(0, |served| served.serial),
        "current": mirror.current.as_ref().map(|current| json!({
            "serial": current.serial, "by": current.by, "why": current.why, "at": current.at,
        })),
        "engines": engines.collect::<Vec<Value>>(),
        "candidate": mirror.candidate.as_ref().map(|(candidate, _)| {
            shown_candidate(candidate, mirror.verdicts(&candidate.id))
        }),
        "outcome": mirror.outcome.as_ref().map(shown_outcome),
        "flows": mirror.flows.as_ref().map(|flows| json!({
            "generation": flows.record.generation,
            "buckets": flows.counts.values().sum::<usize>(),
            "moving": flows.moving,
        })),
        "capacity": mirror.capacity.as_ref().map(|capacity| json!({
            "wanted": capacity.wanted, "engines": capacity.engines, "reason": capacity.reason,
        })),
        "certificates": agent.secrets.certificates().len(),
        "problems": problems(agent),
    })
}

fn shown_engine(name: &str, engine: &EngineRecord, mirror: &Mirror, buckets: Option<usize>) -> Value {
    json!({
        "name": name,
        "address": engine.address,
        "version": engine.version,
        "cores": engine.cores,
        "ready": engine.is_ready,
        "draining": engine.draining.is_some(),
        "announced": engine.announced,
        "serial": engine.serial,
        "candidate": engine.candidate,
        "generation": engine.generation,
        "flows_generation": engine.flows.as_ref().map(|flows| flows.generation),
        "since": engine.since,
        "load": mirror.loads.get(name).map(|load| json!({
            "cpu": load.cpu,
            "connections": load.connections,
            "requests": load.requests,
            "handshakes": load.handshakes,
            "faults": load.faults,
            "requests_per_second": load.requests_per_second,
            "handshakes_per_second": load.handshakes_per_second,
            "faults_per_second": load.faults_per_second,
            "age_seconds": mirror.heard.get(name).map(|heard| heard.elapsed().as_secs()),
            "memory": load.memory,
            "p99_ms": load.p99_microseconds as f64 / 1e3,
        })),
        "weight_percent": mirror.weight(name),
        "buckets": buckets,
        "problems": engine.problems,
    })
}

fn shown_candidate(candidate: &Candidate, verdicts: BTreeMap<String, crate::records::Verdict>) -> Value {
    let verdicts = verdicts
        .into_iter()
        .map(|(engine, verdict)| json!({ "engine": engine, "ok": verdict.passed, "problems": verdict.problems }));
    json!({
        "id": candidate.id,
        "serial": candidate.config.serial,
        "by": candidate.config.by,
        "why": candidate.config.why,
        "phase": candidate.phase.name(),
        "canary": candidate.canary,
        "serving": candidate.serving,
        "verdicts": verdicts.collect::<Vec<Value>>(),
        "since": candidate.config.at,
    })
}

fn shown_outcome(outcome: &OutcomeRecord) -> Value {
    json!({
        "id": outcome.id,
        "serial": outcome.serial,
        "result": if outcome.applied { "applied" } else { "refused" },
        "why": outcome.why,
        "engine": outcome.engine,
        "problems": outcome.problems,
        "at": outcome.at,
    })
}
