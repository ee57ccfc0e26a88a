//! Mending without anybody: keys that an emptied etcd has lost, a leader's key that would outlive every leader,
//! and its own record.

use crate::agent::{Agent, Outcome, Registration};
use crate::etcd::{Compare, KeyValue, Operation, Txn};
use crate::records::{EngineRecord, read};
use crate::secrets::News;

/// Secrets that are put back between two other things.
const PUT_BACK_BATCH: usize = 20;

impl Agent {
    /// Puts secrets into an etcd that was emptied. Whoever has them does so: the leader may be one that begins with
    /// nothing.
    pub(crate) async fn put_back(&mut self) -> Outcome<()> {
        if self.registration != Registration::Held {
            return Ok(());
        }
        let mut unshared = self.secrets.unshared();
        // All engines do so at once, and each is to begin elsewhere.
        fastrand::shuffle(&mut unshared);
        let mut names = Vec::new();
        for name in unshared.into_iter().take(PUT_BACK_BATCH) {
            let Some(plain) = self.secrets.plain(&name) else { continue };
            let key = self.keys.secret(&name);
            let value = self.secrets.sealer.seal(&key, &plain);
            let put = Operation::Put { key: key.clone().into(), value, lease: None };
            match self.write(Txn::new().when_absent(&key).then(&put)).await? {
                Some(revision) => {
                    self.secrets.share(&name, &plain, revision);
                    names.push(name);
                }
                // Another engine was first, or etcd is full.
                None => {
                    if let Some(known) = self.client.get(&key).await? {
                        self.take_secret(&name, News::Put(&known.value, known.mod_revision));
                    }
                }
            }
        }
        if let Some(first) = names.first() {
            let more = names.len() - 1;
            log::info!("cluster: etcd has lost {first} and {more} other secrets: this engine puts back what it has");
        }
        self.secrets.flush();
        Ok(())
    }

    /// Takes note of a leader's key that is under no lease, as one that was written by hand: nothing would remove it
    /// when the leader is gone, and nobody could lead.
    pub(crate) fn look_at_leader(&mut self, entry: &KeyValue) {
        if entry.lease.is_none() && entry.key == self.keys.leader().as_bytes() {
            self.stray_leader = Some(entry.mod_revision);
        }
    }

    /// Removes such a key; then somebody leads again.
    pub(crate) async fn remove_stray_leader(&mut self) -> Outcome<()> {
        let Some(revision) = self.stray_leader.take() else { return Ok(()) };
        let key = self.keys.leader();
        let delete = Operation::Delete { key: key.clone().into() };
        let txn = Txn::new().when(&key, &Compare::ModRevision(revision)).then(&delete);
        if self.write(txn).await?.is_some() {
            log::warn!(
                "cluster: {key} in etcd was of no engine's making, and is removed: whoever leads is chosen anew"
            );
        }
        Ok(())
    }

    /// Writes this engine's record again where somebody has damaged it.
    pub(crate) fn look_at_damage(&mut self, entry: &KeyValue) {
        let key = self.keys.engine(&self.settings.engine);
        if self.registration != Registration::Held || entry.key != key.as_bytes() {
            return;
        }
        let is_whole = |record: EngineRecord| !record.process.is_empty();
        if !read::<EngineRecord>(&key, &entry.value).is_ok_and(is_whole) {
            log::warn!("cluster: the value of {key} in etcd was damaged: this engine writes it again");
            self.published = None;
        }
    }

    /// Finds out whether this engine has caught up with the cluster, once in its life: until then it counts as not
    /// ready, since what it has is as old as its state folder.
    pub(crate) fn look_whether_caught_up(&mut self) {
        let is_busy = self.certificates_changed || self.in_flight.is_some();
        if !self.is_caught_up && !is_busy && self.serves_what_is_wanted() {
            self.is_caught_up = true;
        }
    }
}
