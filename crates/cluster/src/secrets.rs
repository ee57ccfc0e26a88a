//! Secrets of the cluster on this engine: opened into the runtime folder, and sealed on disk, so that the engine starts
//! with them while etcd is away.

use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use zeroize::Zeroizing;

use crate::disk::{Change, Store};
use crate::keys::Keys;
use crate::runtime::{Runtime, STICKY_KEY, TICKET_KEYS, is_name};
use crate::seal::Sealer;

/// Name of the last good configuration in the store.
pub const CONFIG: &str = "config";
const CERTIFICATE: &str = "certificates/";
const ACME: &str = "acme/";
/// Problems that are remembered; more of them say nothing new.
const PROBLEMS_MAX: usize = 32;
/// Problems that are told one by one, and how many more of them are counted.
const PROBLEMS_TOLD_MAX: usize = 3;
const PROBLEMS_MORE_MAX: usize = PROBLEMS_MAX - PROBLEMS_TOLD_MAX;
/// In place of the revision of what etcd does not have.
const UNSHARED: u64 = 0;
/// Changes that wait while the disk takes none.
const PENDING_MAX: usize = 1000;

pub struct Secrets {
    keys: Keys,
    pub sealer: Sealer,
    store: Store,
    runtime: Runtime,
    /// Folders of ordered certificates, by account.
    acme: BTreeMap<String, PathBuf>,
    /// Revision of each secret that is kept here.
    revisions: BTreeMap<String, u64>,
    /// The keys of session tickets, which the leader rotates.
    ticket_keys: Zeroizing<String>,
    /// Trouble, by the secret's name.
    problems: BTreeMap<String, String>,
    pending: Vec<Change>,
    /// Files of ordered certificates from the state folder, until it is known where they belong.
    restored: Vec<(String, Zeroizing<Vec<u8>>)>,
    /// Whether this engine orders certificates, so that their folders are its own.
    pub is_leader: bool,
}

/// News of a secret.
pub enum News<'a> {
    /// The sealed value, and the revision that put it.
    Put(&'a [u8], u64),
    Gone,
}

impl Secrets {
    pub fn new(keys: Keys, sealer: Sealer, store: Store, runtime: Runtime) -> Secrets {
        let (revisions, problems, acme) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let ticket_keys = Zeroizing::new(String::new());
        Secrets {
            keys,
            sealer,
            store,
            runtime,
            acme,
            revisions,
            ticket_keys,
            problems,
            pending: Vec::new(),
            restored: Vec::new(),
            is_leader: false,
        }
    }

    /// Takes what was kept on disk, by its name and its revision in etcd.
    pub fn restore(&mut self, name: &str, plain: &[u8], revision: u64) {
        if name.starts_with(ACME) {
            self.restored.push((name.into(), Zeroizing::new(plain.to_vec())));
            self.revisions.insert(name.into(), revision);
            return;
        }
        match self.materialise(name, plain) {
            Ok(()) => drop(self.revisions.insert(name.into(), revision)),
            Err(problem) => self.note(name, problem),
        }
    }

    /// Takes news of a secret; `flush` keeps it. One that cannot be opened leaves the one before in use.
    pub fn take(&mut self, name: &str, news: News) {
        self.problems.remove(name);
        match news {
            News::Put(_, revision) if self.revisions.get(name) == Some(&revision) => {}
            News::Put(sealed, revision) => {
                let key = self.keys.secret(name);
                let opened = self.sealer.open(&key, sealed).map_err(|error| format!("{key} in etcd: {error}"));
                let kept = opened.and_then(|plain| self.materialise(name, &plain).map(|()| plain));
                match kept {
                    Ok(plain) => {
                        self.revisions.insert(name.into(), revision);
                        self.pending.push(Change::Put { name: name.into(), plain, revision });
                    }
                    Err(problem) => self.note(name, problem),
                }
            }
            // Nobody removes the cluster's own keys but by mistake: they are put back.
            News::Gone if self.has(name) && matches!(name, TICKET_KEYS | STICKY_KEY) => self.unshare(name),
            News::Gone => {
                self.revisions.remove(name);
                if let Some(path) = self.path(name)
                    && let Err(error) = self.runtime.remove(&path)
                {
                    self.note(name, format!("{} cannot be removed: {error}", path.display()));
                }
                self.pending.push(Change::Remove { name: name.into() });
            }
        }
    }

    /// Takes the configuration that is the cluster's, and that this engine serves.
    pub fn keep_config(&mut self, record: Vec<u8>, revision: u64) {
        self.pending.push(Change::Put { name: CONFIG.into(), plain: Zeroizing::new(record), revision });
    }

    /// Keeps on disk what has come. The error is remembered, and what is kept in memory and served is not affected.
    pub fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        const DISK: &str = "state";
        let pending: Vec<Change> = self.pending.iter().map(Change::clone).collect();
        match self.store.apply(pending) {
            Ok(()) => {
                self.pending.clear();
                self.problems.remove(DISK);
            }
            Err(error) => {
                let what =
                    format!("the last good state cannot be kept: {error}; a start without etcd would not have it");
                log::error!("cluster: {what}");
                self.note(DISK, what);
                // Changes that are lost by this are found missing at a start, and read again.
                let excess = self.pending.len().saturating_sub(PENDING_MAX);
                self.pending.drain(..excess);
            }
        }
    }

    pub fn revision(&self, name: &str) -> Option<u64> {
        self.revisions.get(name).copied()
    }

    /// Notes that etcd has not this secret, which is kept here all the same.
    pub fn unshare(&mut self, name: &str) {
        self.revisions.insert(name.into(), UNSHARED);
    }

    /// Notes that etcd has this secret since this revision.
    pub fn share(&mut self, name: &str, plain: &Zeroizing<Vec<u8>>, revision: u64) {
        self.revisions.insert(name.into(), revision);
        self.pending.push(Change::Put { name: name.into(), plain: plain.clone(), revision });
    }

    /// Names of secrets that are kept here and not in etcd.
    pub fn unshared(&self) -> Vec<String> {
        self.revisions.iter().filter(|(_, revision)| **revision == UNSHARED).map(|(name, _)| name.clone()).collect()
    }

    /// Has all that etcd has read anew, where etcd is at an earlier revision than what is kept here: a revision does
    /// not say then what it said.
    pub fn look_for_rewind(&mut self, revision: u64) {
        if self.revisions.values().any(|known| *known > revision) {
            self.revisions.values_mut().for_each(|known| *known = UNSHARED);
        }
    }

    /// The secret as it is in its file.
    pub fn plain(&self, name: &str) -> Option<Zeroizing<Vec<u8>>> {
        std::fs::read(self.path(name)?).ok().map(Zeroizing::new)
    }

    /// Removes files of certificates that the cluster does not have, as after a state folder has come from a backup.
    /// Returns whether there were any.
    pub fn sweep(&mut self, is_there: impl Fn(&str) -> bool) -> bool {
        let mut was_any = false;
        for name in self.runtime.certificates() {
            let secret = Secrets::certificate(&name);
            if !is_there(&secret) && !self.has(&secret) {
                was_any |= self.runtime.remove(&self.runtime.certificate(&name)).unwrap_or_default();
            }
        }
        was_any
    }

    /// Names of secrets that are kept here.
    pub fn names(&self) -> Vec<String> {
        self.revisions.keys().cloned().collect()
    }

    /// Takes the accounts of the configuration. Returns whether they are others: then their files have to be read.
    pub fn set_accounts(&mut self, accounts: &BTreeMap<String, PathBuf>) -> bool {
        if self.acme == *accounts {
            return false;
        }
        self.acme.clone_from(accounts);
        self.revisions.retain(|name, _| !name.starts_with(ACME));
        for (name, plain) in std::mem::take(&mut self.restored) {
            // A file that is there was this engine's own all the time.
            if self.path(&name).is_some_and(|path| !path.exists())
                && let Err(problem) = self.materialise(&name, &plain)
            {
                self.note(&name, problem);
            }
        }
        true
    }

    /// Folders of ordered certificates, by account.
    pub fn accounts(&self) -> &BTreeMap<String, PathBuf> {
        &self.acme
    }

    /// Names of certificates that are kept here.
    pub fn certificates(&self) -> Vec<&str> {
        self.revisions.keys().filter_map(|name| name.strip_prefix(CERTIFICATE)).collect()
    }

    pub fn ticket_keys(&self) -> &str {
        &self.ticket_keys
    }

    pub fn has(&self, name: &str) -> bool {
        self.revisions.contains_key(name)
    }

    /// The first of them, and how many there are besides: one wrong sealing key is wrong for all.
    pub fn problems(&self) -> Vec<String> {
        let mut told: Vec<String> = self.problems.values().take(PROBLEMS_TOLD_MAX).cloned().collect();
        match self.problems.len().saturating_sub(PROBLEMS_TOLD_MAX) {
            0 => {}
            PROBLEMS_MORE_MAX.. => {
                told.push(format!("{PROBLEMS_MORE_MAX} or more other secrets have a problem as well"))
            }
            more => told.push(format!("{more} other secrets have a problem as well")),
        }
        told
    }

    /// Name of the secret that is a certificate.
    pub fn certificate(name: &str) -> String {
        format!("{CERTIFICATE}{name}")
    }

    fn note(&mut self, name: &str, problem: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.insert(name.into(), problem);
        }
    }

    fn materialise(&mut self, name: &str, plain: &[u8]) -> Result<(), String> {
        let is_acme = name.starts_with(ACME);
        let path = match self.path(name) {
            Some(path) => path,
            // The account is one that this engine's configuration does not have yet.
            None if is_acme => return Ok(()),
            None => return Err(format!("secrets/{name} in etcd has no meaning to this version")),
        };
        if name == TICKET_KEYS {
            let text = std::str::from_utf8(plain).map_err(|_| "the cluster's ticket keys are no text".to_owned())?;
            *self.ticket_keys = text.into();
        }
        if is_acme && self.is_leader {
            // The folder is the original, and may be ahead of what comes back.
            return Ok(());
        }
        if is_acme && let Some(folder) = path.parent() {
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(|error| format!("{} cannot be made: {error}", folder.display()))?;
        }
        let written = self.runtime.write(&path, plain);
        written.map(drop).map_err(|error| format!("{} cannot be written: {error}", path.display()))
    }

    /// The file of a secret.
    fn path(&self, name: &str) -> Option<PathBuf> {
        if let Some(certificate) = name.strip_prefix(CERTIFICATE) {
            return is_name(certificate).then(|| self.runtime.certificate(certificate));
        }
        if let Some((account, file)) = name.strip_prefix(ACME).and_then(|rest| rest.split_once('/')) {
            let is_file = file.split('/').count() <= 2 && file.split('/').all(is_name);
            return self.acme.get(account).filter(|_| is_file).map(|folder| folder.join(file));
        }
        matches!(name, TICKET_KEYS | STICKY_KEY).then(|| self.runtime.path(name))
    }
}
