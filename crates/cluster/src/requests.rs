//! Answers to requests by the admin address.

use std::time::Instant;

use serde_json::{Value, json};

use crate::agent::{Agent, Registration};
use crate::chance::{now, random_text};
use crate::ends::{Failure, RequestKind, Secret};
use crate::etcd::{Compare, Error, Operation, Txn};
use crate::keys::Key;
use crate::percent::WeightPercent;
use crate::records::{Candidate, ConfigRecord, DrainRecord, OutcomeRecord, WeightRecord, read, written};
use crate::runtime::{CERTIFICATES_PATH, is_name};
use crate::secrets::Secrets;

/// Texts of a configuration: etcd takes values of 1.5 MB in a request, which has it in base64 and escaped.
pub const TEXT_BYTES_MAX: usize = 700 * 1024;
/// Entries of the history that are read at once.
const HISTORY_PAGE: usize = 5;

impl Agent {
    /// Does what was asked for, while etcd answers.
    pub(crate) async fn answer(&mut self, what: RequestKind, by: &str) -> Result<Value, Failure> {
        match what {
            RequestKind::Apply { text, is_json, why } => self.apply(text, is_json, by, &why).await,
            RequestKind::Abort => self.abort(by).await,
            RequestKind::History => self.history().await,
            RequestKind::Rollback(serial) => self.rollback(serial, by).await,
            RequestKind::Drain(engine) => self.drain(&engine, by).await,
            RequestKind::Undrain(engine) => self.undrain(&engine).await,
            RequestKind::Weigh { engine, percent } => self.weigh(&engine, percent, by).await,
            RequestKind::Leave if self.registration == Registration::Left => {
                Err(Failure::Conflict("this engine has left; a restart joins again".to_owned()))
            }
            RequestKind::Leave => {
                let own = self.settings.engine.clone();
                let drained = self.drain(&own, by).await?;
                self.leaving = Some(Instant::now());
                Ok(drained)
            }
            RequestKind::PutCertificate { name, pem } => self.put_certificate(&name, &pem).await,
            RequestKind::RemoveCertificate(name) => self.remove_certificate(&name).await,
            RequestKind::Certificates => Ok(json!({ "certificates": self.secrets.certificates() })),
        }
    }

    async fn apply(&mut self, text: String, is_json: bool, by: &str, why: &str) -> Result<Value, Failure> {
        if text.len() > TEXT_BYTES_MAX {
            let (has, may) = (text.len(), TEXT_BYTES_MAX);
            return Err(Failure::Wrong(format!("the configuration has {has} bytes; etcd takes {may} at most")));
        }
        self.readable_candidate()?;
        let key = self.keys.candidate();
        // Another engine may have heard of its end before.
        if let Some((candidate, _)) = &self.mirror.candidate
            && self.client.get(&key).await.map_err(away)?.is_some()
        {
            let (serial, by, phase) = (candidate.config.serial, &candidate.config.by, candidate.phase.name());
            return Err(Failure::Conflict(format!(
                "configuration {serial} of {by} is on its way ({phase}): wait for it, or end it with `propylon cluster abort`"
            )));
        }
        let known = self.client.get(self.keys.current()).await.map_err(away)?;
        let current: Option<ConfigRecord> = match &known {
            Some(known) => Some(read(&self.keys.current(), &known.value).map_err(Failure::Conflict)?),
            None => None,
        };
        let served = self.served.as_ref().map_or(0, |served| served.serial);
        let serial = current.as_ref().map_or(0, |current| current.serial).max(served) + 1;
        let config = ConfigRecord { serial, text, is_json, by: by.into(), why: why.into(), at: now() };
        let candidate = Candidate { id: random_text(8), config, ..Candidate::default() };
        let put = Operation::Put { key: key.clone().into(), value: written(&candidate), lease: None };
        let unchanged = Compare::ModRevision(known.map_or(0, |known| known.mod_revision));
        let txn = Txn::new().when_absent(&key).when(self.keys.current(), &unchanged).then(&put);
        match self.client.txn(&txn).await.map_err(away)?.succeeded {
            true => Ok(json!({ "id": candidate.id, "serial": serial })),
            false => Err(Failure::Conflict("another change came first: look at `propylon cluster status`".to_owned())),
        }
    }

    async fn abort(&mut self, by: &str) -> Result<Value, Failure> {
        if let Some(revision) = self.mirror.unreadable(&self.keys.candidate()) {
            return self.remove_damaged(self.keys.candidate(), revision).await;
        }
        let Some((candidate, revision)) = self.mirror.candidate.clone() else {
            return Err(Failure::Unknown("no configuration is on its way".to_owned()));
        };
        let (id, serial) = (candidate.id.clone(), candidate.config.serial);
        let why = format!("ended by {by}");
        let outcome = OutcomeRecord { id: id.clone(), serial, why, at: now(), ..OutcomeRecord::default() };
        let key = self.keys.candidate();
        let txn = Txn::new()
            .when(&key, &Compare::ModRevision(revision))
            .then(&Operation::Put { key: self.keys.outcome().into(), value: written(&outcome), lease: None })
            .then(&Operation::Delete { key: key.into() })
            .then(&Operation::DeletePrefix { prefix: self.keys.verdicts(&id).into() });
        match self.client.txn(&txn).await.map_err(away)?.succeeded {
            true => Ok(json!({ "id": id, "serial": serial })),
            false => Err(Failure::Conflict("it has moved on meanwhile: look at `propylon cluster status`".to_owned())),
        }
    }

    /// Refuses a change while the one before cannot be read.
    fn readable_candidate(&self) -> Result<(), Failure> {
        let key = self.keys.candidate();
        match self.mirror.unreadable(&key) {
            Some(_) => Err(Failure::Conflict(format!(
                "the value of {key} in etcd cannot be read: remove it with `propylon cluster abort`"
            ))),
            None => Ok(()),
        }
    }

    async fn remove_damaged(&mut self, key: String, revision: u64) -> Result<Value, Failure> {
        let delete = Operation::Delete { key: key.clone().into() };
        let txn = Txn::new().when(&key, &Compare::ModRevision(revision)).then(&delete);
        match self.client.txn(&txn).await.map_err(away)?.succeeded {
            true => Ok(json!({ "removed": key })),
            false => Err(Failure::Conflict("it has changed meanwhile: look at `propylon cluster status`".to_owned())),
        }
    }

    async fn histories(&self) -> Result<Vec<ConfigRecord>, Failure> {
        let range = self.client.range(self.keys.histories(), HISTORY_PAGE).await.map_err(away)?;
        Ok(range.entries.iter().filter_map(|entry| read("config/history", &entry.value).ok()).collect())
    }

    async fn history(&mut self) -> Result<Value, Failure> {
        let current = self.mirror.current.as_ref().map(|current| current.serial);
        let entries = self.histories().await?.into_iter().rev().map(|entry| {
            json!({
                "serial": entry.serial, "by": entry.by, "why": entry.why, "at": entry.at, "bytes": entry.text.len(),
                "current": current == Some(entry.serial),
            })
        });
        Ok(json!({ "history": entries.collect::<Vec<Value>>() }))
    }

    async fn rollback(&mut self, serial: Option<u64>, by: &str) -> Result<Value, Failure> {
        let current = self.mirror.current.as_ref().map_or(0, |current| current.serial);
        let histories = self.histories().await?;
        let found = match serial {
            Some(serial) => histories.into_iter().find(|entry| entry.serial == serial),
            None => histories.into_iter().rev().find(|entry| entry.serial < current),
        };
        let Some(found) = found else {
            let which = serial.map_or_else(|| "before this one".to_owned(), |serial| format!("{serial}"));
            let what = format!("no configuration {which} is kept: see `propylon cluster history`");
            return Err(Failure::Unknown(what));
        };
        let why = format!("back to {}", found.serial);
        self.apply(found.text, found.is_json, by, &why).await
    }

    async fn drain(&mut self, engine: &str, by: &str) -> Result<Value, Failure> {
        self.known(engine)?;
        let record = DrainRecord { by: by.into(), at: now() };
        self.client.put(self.keys.drain(engine), &written(&record), None).await.map_err(away)?;
        Ok(json!({ "engine": engine, "draining": true }))
    }

    async fn undrain(&mut self, engine: &str) -> Result<Value, Failure> {
        match self.client.delete(self.keys.drain(engine)).await.map_err(away)? {
            true => Ok(json!({ "engine": engine, "draining": false })),
            false => Err(Failure::Unknown(format!("{engine} is not drained"))),
        }
    }

    async fn weigh(&mut self, engine: &str, percent: WeightPercent, by: &str) -> Result<Value, Failure> {
        let key = self.keys.weight(engine);
        // The weight of an engine that has died may be taken away.
        if !(percent.is_default() && self.mirror.is_there(&key)) {
            self.known(engine)?;
        }
        if percent.is_default() {
            self.client.delete(key).await.map_err(away)?;
        } else {
            if self.settings.flows.is_none() {
                let what = "weights are shares of the flow table, and this cluster has none: set `flows` in [cluster]";
                return Err(Failure::Wrong(what.to_owned()));
            }
            let record = WeightRecord { percent, by: by.into(), at: now() };
            self.client.put(&key, &written(&record), None).await.map_err(away)?;
        }
        Ok(json!({ "engine": engine, "weight_percent": percent }))
    }

    fn known(&self, engine: &str) -> Result<(), Failure> {
        match self.mirror.engines.contains_key(engine) {
            true => Ok(()),
            false => {
                let names: Vec<&str> = self.mirror.engines.keys().map(String::as_str).collect();
                Err(Failure::Unknown(format!("no engine {engine} is here; there are {}", names.join(", "))))
            }
        }
    }

    async fn put_certificate(&mut self, name: &str, pem: &Secret) -> Result<Value, Failure> {
        if !is_name(name) {
            let what = "a certificate's name has letters, digits, `-`, `_`, `.` and `*`, at most 128 of them";
            return Err(Failure::Wrong(what.to_owned()));
        }
        let key = self.keys.secret(&Secrets::certificate(name));
        let sealed = self.secrets.sealer.seal(&key, pem.0.as_bytes());
        let revision = self.client.put(&key, &sealed, None).await.map_err(away)?;
        Ok(json!({ "certificate": name, "revision": revision }))
    }

    async fn remove_certificate(&mut self, name: &str) -> Result<Value, Failure> {
        let is_needed = self.mirror.current.as_ref().is_some_and(|current| current.text.contains(CERTIFICATES_PATH));
        if is_needed && self.secrets.certificates() == [name] {
            return Err(Failure::Conflict(format!(
                "{name} is the cluster's last certificate, and its configuration names {CERTIFICATES_PATH}: put another one \
                 first, or apply a configuration without that"
            )));
        }
        let key = self.keys.secret(&Secrets::certificate(name));
        debug_assert!(matches!(self.keys.parse(&key), Key::Secret(_)));
        match self.client.delete(key).await.map_err(away)? {
            true => Ok(json!({ "certificate": name })),
            false => Err(Failure::Unknown(format!("no certificate {name} is in the cluster"))),
        }
    }
}

fn away(error: Error) -> Failure {
    Failure::Away(error.to_string())
}
