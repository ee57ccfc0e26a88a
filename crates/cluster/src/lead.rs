//! Leading: one engine of the cluster moves candidates on, makes and rotates keys, and keeps the flow table.
//! Everything it writes is bound to the revision by which it leads, so that a leader that was one cannot write any
//! more.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::agent::{Agent, Outcome, Registration};
use crate::chance::{fill, now, random_text};
use crate::ends::End;
use crate::etcd::{Compare, Error, Operation, Txn};
use crate::records::{Candidate, ConfigRecord, EngineRecord, LeaderRecord, OutcomeRecord, written};
use crate::rollout::{Action, Cluster, Refusal, Rollout};
use crate::runtime::{STICKY_KEY, TICKET_KEYS};
use crate::secrets::News;
use crate::ticket_keys;

/// Configurations that are kept for a return to them.
pub const HISTORY_MAX: u64 = 50;
/// Least time between two campaigns of one engine.
const CAMPAIGN_PAUSE: std::time::Duration = std::time::Duration::from_millis(500);

/// Memory of a leader.
#[derive(Debug)]
pub(crate) struct Leading {
    /// Revision that made the leader's key.
    pub revision: u64,
    rollout: Option<Rollout>,
    pub flows: crate::flow_table::TableWriter,
    pub capacity: crate::capacity::Watcher,
    pub acme: crate::acme_files::Mirrored,
    /// Secrets that were not looked at yet, by whether they are sealed with the first key.
    pub resealing: Option<Vec<String>>,
}

impl Agent {
    /// Campaigns where nobody leads, and does a leader's work where this engine does.
    pub(crate) async fn lead(&mut self) -> Outcome<()> {
        let may = self.registration == Registration::Held && *self.end.borrow() == End::Running;
        self.remove_stray_leader().await?;
        match &self.mirror.leader {
            None if may => return self.campaign().await,
            Some((leader, revision)) if leader.process == self.process => {
                let revision = *revision;
                if !may {
                    return self.resign(revision).await;
                }
                if self.leading.as_ref().is_none_or(|leading| leading.revision != revision) {
                    log::info!("cluster: this engine leads");
                    self.leading = Some(Leading::new(revision));
                }
            }
            _ => self.leading = None,
        }
        if self.leading.is_some() {
            self.move_candidate_on().await?;
            self.keep_keys().await?;
            self.mirror_acme().await?;
            self.reseal().await?;
            self.keep_flows().await?;
            self.watch_capacity().await?;
        }
        Ok(())
    }

    async fn campaign(&mut self) -> Outcome<()> {
        let Some(lease) = self.lease else { return Ok(()) };
        let key = self.keys.leader();
        let record = LeaderRecord { engine: self.settings.engine.clone(), process: self.process.clone() };
        let put = Operation::Put { key: key.clone().into(), value: written(&record), lease: Some(lease) };
        let outcome = match self.client.txn(&Txn::new().when_absent(&key).then(&put)).await {
            Err(Error::NoSpace) => {
                tokio::time::sleep(CAMPAIGN_PAUSE).await;
                return Ok(());
            }
            // The lease is looked at with the next beat.
            Err(Error::LeaseGone) => return Ok(()),
            outcome => outcome?,
        };
        if outcome.succeeded {
            // The watch says so as well; whoever waits for it would campaign again meanwhile.
            self.mirror.leader = Some((record, outcome.revision));
        } else if let Some(known) = self.client.get(&key).await? {
            let revisions = (known.create_revision, known.mod_revision);
            self.mirror.put(&self.keys, &key, &known.value, revisions, Instant::now());
            self.look_at_leader(&known);
        }
        Ok(())
    }

    async fn resign(&mut self, revision: u64) -> Outcome<()> {
        self.leading = None;
        let key = self.keys.leader();
        let delete = Operation::Delete { key: key.clone().into() };
        let outcome = self.client.txn(&Txn::new().when(&key, &Compare::CreateRevision(revision)).then(&delete)).await?;
        self.mirror.delete(&self.keys, &key, outcome.revision);
        Ok(())
    }

    /// A transaction that fails where this engine does not lead any more.
    pub(crate) fn as_leader(&self) -> Txn {
        let revision = self.leading.as_ref().map_or(0, |leading| leading.revision);
        Txn::new().when(self.keys.leader(), &Compare::CreateRevision(revision))
    }

    /// Carries out a leader's transaction. A full etcd is told of and not the end of a session.
    pub(crate) async fn write(&mut self, txn: Txn) -> Outcome<Option<u64>> {
        match self.client.txn(&txn).await {
            Ok(outcome) => Ok(outcome.succeeded.then_some(outcome.revision)),
            Err(error @ Error::NoSpace) => {
                self.problems.insert("space", error.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn move_candidate_on(&mut self) -> Outcome<()> {
        let Some((candidate, revision)) = self.mirror.candidate.clone() else {
            self.leading.iter_mut().for_each(|leading| leading.rollout = None);
            return Ok(());
        };
        // Engines that drain go, and are not waited for.
        let engines: BTreeMap<String, EngineRecord> = self.mirror.engines.clone();
        let verdicts = self.mirror.verdicts(&candidate.id);
        let cluster = Cluster {
            engines: &engines,
            loads: &self.mirror.loads,
            verdicts: &verdicts,
            leader: &self.settings.engine,
        };
        let (policy, now) = (self.settings.rollout.clone(), Instant::now());
        let Some(leading) = &mut self.leading else { return Ok(()) };
        let rollout = leading.rollout.get_or_insert_with(|| Rollout::new(&candidate, now));
        match rollout.step(&candidate, &cluster, &policy, now) {
            Action::Wait => Ok(()),
            Action::Advance(next) => self.advance(next, revision).await,
            Action::Commit => self.commit(candidate, revision).await,
            Action::Refuse(refusal) => self.refuse(&candidate, revision, refusal).await,
        }
    }

    async fn advance(&mut self, next: Candidate, revision: u64) -> Outcome<()> {
        let key = self.keys.candidate();
        log::info!("cluster: {} {}: {}", next.config.summary(), next.phase.name(), next.serving.join(", "));
        let put = Operation::Put { key: key.clone().into(), value: written(&next), lease: None };
        let txn = self.as_leader().when(&key, &Compare::ModRevision(revision)).then(&put);
        if let Some(revision) = self.write(txn).await? {
            self.mirror.candidate = Some((next, revision));
        }
        Ok(())
    }

    async fn commit(&mut self, candidate: Candidate, revision: u64) -> Outcome<()> {
        let (key, serial) = (self.keys.candidate(), candidate.config.serial);
        log::info!("cluster: {} is the cluster's", candidate.config.summary());
        let outcome = self.outcome(&candidate, true, Refusal::default());
        let put = |key: String, value| Operation::Put { key: key.into(), value, lease: None };
        let mut txn = self
            .as_leader()
            .when(&key, &Compare::ModRevision(revision))
            .then(&put(self.keys.current(), written(&candidate.config)))
            .then(&put(self.keys.history(serial), written(&candidate.config)))
            .then(&put(self.keys.outcome(), written(&outcome)))
            .then(&Operation::Delete { key: key.into() })
            .then(&Operation::DeletePrefix { prefix: self.keys.verdicts(&candidate.id).into() });
        if serial > HISTORY_MAX {
            txn = txn.then(&Operation::Delete { key: self.keys.history(serial - HISTORY_MAX).into() });
        }
        if self.write(txn).await?.is_some() {
            (self.mirror.candidate, self.mirror.current) = (None, Some(candidate.config));
            self.mirror.outcome = Some(outcome);
        }
        Ok(())
    }

    async fn refuse(&mut self, candidate: &Candidate, revision: u64, refusal: Refusal) -> Outcome<()> {
        log::error!("cluster: {} is refused: {}", candidate.config.summary(), refusal.why);
        let key = self.keys.candidate();
        let outcome = self.outcome(candidate, false, refusal);
        let txn = self
            .as_leader()
            .when(&key, &Compare::ModRevision(revision))
            .then(&Operation::Put { key: self.keys.outcome().into(), value: written(&outcome), lease: None })
            .then(&Operation::Delete { key: key.into() })
            .then(&Operation::DeletePrefix { prefix: self.keys.verdicts(&candidate.id).into() });
        if self.write(txn).await?.is_some() {
            self.mirror.candidate = None;
            self.mirror.outcome = Some(outcome);
        }
        Ok(())
    }

    fn outcome(&self, candidate: &Candidate, applied: bool, refusal: Refusal) -> OutcomeRecord {
        let Refusal { why, engine, problems } = refusal;
        let (id, serial) = (candidate.id.clone(), candidate.config.serial);
        OutcomeRecord { id, serial, applied, why, engine, problems, at: now() }
    }

    /// Makes the cluster's keys where there are none, and the next ticket key when its time has come.
    async fn keep_keys(&mut self) -> Outcome<()> {
        if !self.secrets.has(STICKY_KEY) {
            self.put_secret(STICKY_KEY, random_text(32).as_bytes()).await?;
        }
        // Keys that are there and cannot be opened here are others' to rotate: this engine lacks the sealing key.
        let is_unreadable = self.secrets.ticket_keys().is_empty() && !self.secrets.problems().is_empty();
        if is_unreadable {
            return Ok(());
        }
        if let Some(text) = ticket_keys::rotated(self.secrets.ticket_keys(), now(), self.settings.rotation, fill) {
            self.put_secret(TICKET_KEYS, text.as_bytes()).await?;
        }
        Ok(())
    }

    pub(crate) async fn put_secret(&mut self, name: &str, plain: &[u8]) -> Outcome<()> {
        let key = self.keys.secret(name);
        let sealed = self.secrets.sealer.seal(&key, plain);
        let unchanged = match self.secrets.revision(name) {
            Some(revision) => Compare::ModRevision(revision),
            None => Compare::CreateRevision(0),
        };
        let put = Operation::Put { key: key.clone().into(), value: sealed.clone(), lease: None };
        let txn = self.as_leader().when(&key, &unchanged).then(&put);
        if let Some(revision) = self.write(txn).await? {
            self.secrets.take(name, News::Put(&sealed, revision));
            self.secrets.flush();
        }
        Ok(())
    }

    /// A leader's put of a value of its own.
    pub(crate) async fn put_as_leader(&mut self, key: String, value: Vec<u8>) -> Outcome<bool> {
        let put = Operation::Put { key: key.into(), value, lease: None };
        let txn = self.as_leader().then(&put);
        Ok(self.write(txn).await?.is_some())
    }
}

impl Leading {
    fn new(revision: u64) -> Leading {
        Leading {
            revision,
            rollout: None,
            flows: Default::default(),
            capacity: Default::default(),
            acme: Default::default(),
            resealing: None,
        }
    }
}

impl ConfigRecord {
    /// In a line of the log.
    fn summary(&self) -> String {
        let why = if self.why.is_empty() { String::new() } else { format!(" ({})", self.why) };
        format!("configuration {} of {}{why}", self.serial, self.by)
    }
}
