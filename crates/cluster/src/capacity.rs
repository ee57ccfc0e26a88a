//! How many engines are wanted, as the leader works it out, and who is told.

use std::time::{Duration, Instant};

use propylon_config::{CapacityRecipient, CapacitySettings};
use propylon_policy::capacity::{Capacity, Figures, Limits, Reason};
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::agent::{Agent, Outcome};
use crate::mirror::Mirror;
use crate::records::{CapacityRecord, written};
use crate::webhook;

/// Memory of the leader.
#[derive(Default)]
pub(crate) struct Watcher {
    began: Option<Instant>,
    looked: Option<Instant>,
    capacity: Option<Capacity>,
    /// Outcome of the last post, until it is known.
    post: Option<oneshot::Receiver<bool>>,
}

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watcher").field("looked", &self.looked).finish_non_exhaustive()
    }
}

impl Watcher {
    /// The number that is wanted, when it is time to work it out.
    fn wanted(&mut self, mirror: &Mirror, settings: &CapacitySettings, now: Instant) -> Option<CapacityRecord> {
        if self.looked.is_some_and(|looked| now.saturating_duration_since(looked) < settings.every) {
            return None;
        }
        self.looked = Some(now);
        let began = *self.began.get_or_insert(now);
        let at = |instant: Instant| instant.saturating_duration_since(began);
        let serving = mirror.engines.iter().filter(|(_, engine)| engine.draining.is_none());
        let figures: Vec<Option<Figures>> = serving
            .map(|(name, _)| {
                let load = mirror.loads.get(name)?;
                Some(Figures {
                    measured: at(*mirror.heard.get(name)?),
                    cpu: load.cpu,
                    connections: load.connections,
                    memory_bytes: load.memory,
                    handshake_wait: Duration::from_micros(load.handshake_wait_microseconds),
                })
            })
            .collect();
        let memory = mirror.loads.values().map(|load| load.memory_limit).filter(|limit| *limit > 0).min();
        let before = mirror.capacity.as_ref().map(|known| known.wanted);
        let capacity = self.capacity.get_or_insert_with(|| Capacity::new(limits(settings, memory), before));
        let wanted = capacity.wanted(&figures, at(now));
        if wanted.reason == Reason::FiguresMissing && mirror.capacity.is_none() {
            return None;
        }
        let engines = u32::try_from(figures.len()).unwrap_or(u32::MAX);
        let reason = wanted.reason.to_string();
        Some(CapacityRecord { wanted: wanted.engines, engines, reason, at: crate::chance::now() })
    }
}

impl Watcher {
    /// Whether the last post has failed. Says so once.
    fn has_post_failed(&mut self) -> bool {
        let outcome = self.post.as_mut().map(oneshot::Receiver::try_recv);
        match outcome {
            None | Some(Err(TryRecvError::Empty)) => false,
            Some(outcome) => {
                self.post = None;
                outcome != Ok(true)
            }
        }
    }
}

fn limits(settings: &CapacitySettings, memory: Option<u64>) -> Limits {
    Limits {
        cpu_target: f64::from(settings.cpu_percent) / 100.0,
        connections_max: settings.connections.unwrap_or(u64::MAX),
        memory_max_bytes: memory.unwrap_or(u64::MAX),
        handshake_wait_max: settings.handshake_wait,
        engines_min: settings.min.into(),
        engines_max: settings.max.into(),
        spare: settings.spare.into(),
        ..Limits::default()
    }
}

impl Agent {
    /// As the leader: works the number out, and tells whoever is to know.
    pub(crate) async fn watch_capacity(&mut self) -> Outcome<()> {
        let Some(settings) = &self.settings.capacity else { return Ok(()) };
        let Some(leading) = &mut self.leading else { return Ok(()) };
        let Some(next) = leading.capacity.wanted(&self.mirror, settings, Instant::now()) else { return Ok(()) };
        let known = self.mirror.capacity.as_ref();
        let is_other = known.is_none_or(|known| known.wanted != next.wanted);
        let said = |record: &CapacityRecord| (record.wanted, record.engines, record.reason.clone());
        let is_news = known.is_none_or(|known| said(known) != said(&next));
        if is_other {
            let (wanted, engines, reason) = (next.wanted, next.engines, &next.reason);
            log::info!("cluster: {wanted} engines are wanted, and {engines} are there: {reason}");
        }
        let watcher = &mut leading.capacity;
        if let Some(CapacityRecipient::Webhook(url)) = &settings.recipient
            && (is_other || watcher.has_post_failed())
        {
            watcher.post = Some(webhook::post(self.settings.cluster.clone(), url.clone(), next.clone()));
        }
        if is_news && self.put_as_leader(self.keys.capacity(), written(&next)).await? {
            self.mirror.capacity = Some(next);
        }
        Ok(())
    }
}
