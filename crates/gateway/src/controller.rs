//! The loop: changes of resources come in, a configuration goes to engines, and statuses go back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::engines::{Engines, HandOver};
use crate::exchange::{Ask, Peer};
use crate::resources::Key;
use crate::settings::{Files, Settings, StatusChange};
use crate::translate::translate;
use crate::watch::{Event, Scope, follow};
use crate::world::{Kind, World};

/// Changes that wait for their turn; then watches have to wait.
const EVENTS_WAITING_MAX: usize = 1024;
/// Changes that come within this time after another are made together.
const SETTLE: Duration = Duration::from_millis(20);
/// How often engines are asked whether they still go by the configuration.
const ENGINES_EVERY: Duration = Duration::from_secs(1);

/// Statuses that are written before changes are looked at again.
const WRITES_MAX: usize = 50;

/// The end of writing a status.
enum Write {
    Done,
    /// Nothing comes of writing the same again.
    Left,
    /// The API server cannot do it at the moment.
    Failed,
}

pub struct Controller {
    api: Arc<Peer>,
    settings: Settings,
    engines: Engines,
    world: World,
    /// Kinds that were not listed yet. Nothing is done before all are known.
    unknown: BTreeSet<Scope>,
    /// Something has changed since resources were translated.
    is_stale: bool,
    config: Option<(Arc<str>, Files)>,
    said: HandOver,
    /// Statuses that were written, without their times, and the versions that they were written to.
    written: BTreeMap<(Kind, Key), (String, Value)>,
}

impl Controller {
    pub fn new(api: Arc<Peer>, settings: Settings, engines: Engines) -> Controller {
        Controller {
            api,
            settings,
            engines,
            world: World::default(),
            unknown: BTreeSet::new(),
            is_stale: true,
            config: None,
            said: HandOver::default(),
            written: BTreeMap::new(),
        }
    }

    /// Follows all kinds in these scopes, for good.
    pub async fn run(mut self, scopes: Vec<Scope>, mut leads: watch::Receiver<bool>) {
        let (sender, mut events) = mpsc::channel(EVENTS_WAITING_MAX);
        self.unknown = scopes.iter().cloned().collect();
        for scope in scopes {
            tokio::spawn(follow(self.api.clone(), scope, sender.clone()));
        }
        loop {
            let next = Instant::now() + ENGINES_EVERY;
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.take(event),
                    None => return,
                },
                Ok(()) = leads.changed() => self.is_stale = true,
                () = sleep_until(next) => {}
            }
            let until = Instant::now() + SETTLE;
            while let Ok(Some(event)) = timeout_at(until, events.recv()).await {
                self.take(event);
            }
            if self.unknown.is_empty() {
                self.reconcile(&leads).await;
            }
        }
    }

    fn take(&mut self, event: Event) {
        self.is_stale = true;
        match event {
            Event::List(scope, items) => {
                self.unknown.remove(&scope);
                self.written.retain(|(kind, key), _| {
                    *kind != scope.kind || scope.namespace.as_ref().is_some_and(|namespace| *namespace != key.namespace)
                });
                for why in self.world.replace(scope.kind, scope.namespace.as_deref(), items) {
                    eprintln!("warning: {} {why}", scope.kind.name());
                }
            }
            Event::Put(kind, object) => self.put(kind, object),
            Event::Remove(kind, key) => {
                self.world.remove(kind, &key);
                self.written.remove(&(kind, key));
            }
            Event::Trouble(kind, why) => eprintln!("warning: {} is listed anew: {why}", kind.name()),
        }
    }

    fn put(&mut self, kind: Kind, object: Value) {
        if let Err(why) = self.world.put(kind, object) {
            eprintln!("warning: {} {why}", kind.name());
        }
    }

    /// Brings engines and statuses to what the resources say. Where nothing has changed, engines are asked whether they
    /// still go by it.
    async fn reconcile(&mut self, leads: &watch::Receiver<bool>) {
        let statuses = if std::mem::take(&mut self.is_stale) { self.translate() } else { Vec::new() };
        // Resources say why there is nothing to hand over, before engines have anything.
        let Some((config, files)) = &self.config else { return self.write_all(statuses, leads).await };
        let said = self.engines.hand_over(config, files).await;
        let is_other = said != self.said;
        if is_other {
            for why in said.refused.iter().chain(&said.away) {
                eprintln!("warning: {why}");
            }
            self.said = said;
        }
        // The engines' words are a part of statuses.
        let statuses = if is_other { self.translate() } else { statuses };
        // An engine that was never reached has nothing yet, and a status would say otherwise.
        if self.said.away.is_empty() {
            self.write_all(statuses, leads).await;
        }
    }

    /// Writes statuses while it is ours to do so. What is left, or could not be written, is for the next turn.
    async fn write_all(&mut self, statuses: Vec<StatusChange>, leads: &watch::Receiver<bool>) {
        let mut left = WRITES_MAX;
        for change in statuses {
            let place = (change.kind, change.key.clone());
            let written = (change.resource_version.clone(), without_times(change.status.clone()));
            // A status that was written to this version is on its way here with the next.
            if self.written.get(&place) == Some(&written) {
                continue;
            }
            if !*leads.borrow() {
                return;
            }
            if left == 0 {
                self.is_stale = true;
                return;
            }
            left -= 1;
            match self.write(change).await {
                Write::Done => {
                    self.written.insert(place, written);
                }
                Write::Left => {}
                Write::Failed => {
                    self.is_stale = true;
                    return;
                }
            }
        }
    }

    fn translate(&mut self) -> Vec<StatusChange> {
        let now = OffsetDateTime::now_utc().replace_nanosecond(0).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let now = now.format(&Rfc3339).unwrap_or_default();
        let outcome = translate(&self.world, &self.settings, self.said.refused.as_deref(), &now);
        if let Some(config) = outcome.config {
            self.config = Some((config.into(), outcome.files));
        } else if let Some(why) = &outcome.trouble {
            eprintln!("error: {why}");
        }
        outcome.statuses
    }

    async fn write(&self, change: StatusChange) -> Write {
        let StatusChange { kind, key, resource_version, status } = change;
        let (group, plural) = kind.path();
        let path = match key.namespace.as_str() {
            "" => format!("{group}/{plural}/{}/status", key.name),
            namespace => format!("{group}/namespaces/{namespace}/{plural}/{}/status", key.name),
        };
        // With the version, another's change in between is a conflict, and none of its entries are lost.
        let patch = json!({ "metadata": { "resourceVersion": resource_version }, "status": status });
        let content_type = "application/merge-patch+json";
        let ask = Ask { method: Method::PATCH, path: &path, content_type, body: Bytes::from(patch.to_string()) };
        let (outcome, why) = match self.api.ask(&ask).await {
            Ok((status, ..)) if status.is_success() => return Write::Done,
            // The change that it conflicts with is on its way here.
            Ok((StatusCode::CONFLICT | StatusCode::NOT_FOUND, ..)) => return Write::Left,
            Ok((status, _, body)) => {
                let is_passing = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
                let outcome = if is_passing { Write::Failed } else { Write::Left };
                (outcome, crate::watch::said(status, &body))
            }
            Err(why) => (Write::Failed, why),
        };
        eprintln!("warning: status of {} {key}: {why}", kind.name());
        outcome
    }
}

/// A status to compare: conditions that were written twice differ in their times alone.
fn without_times(status: Value) -> Value {
    match status {
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(key, _)| key != "lastTransitionTime");
            Value::Object(kept.map(|(key, value)| (key, without_times(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_times).collect()),
        value => value,
    }
}
