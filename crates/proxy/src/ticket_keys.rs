//! The ticket keys of every TLS profile: in memory, or in files that other engines share.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use propylon_config::{At, TicketKeys, TlsProfile};
use propylon_tls::{Finding, KeyFileError, Severity, Tickets};

/// QueueTicket keys by profile: its own from a file, or those that all others share.
pub struct TicketSets {
    sets: Vec<Arc<Tickets>>,
    shared: Arc<Tickets>,
    /// The file of each set that has one, with how often it is rotated.
    files: Vec<(PathBuf, Option<Duration>, Arc<Tickets>)>,
}

impl TicketSets {
    /// Reads the files, and makes those that are this engine's to make. Profiles that name the same file share its
    /// keys.
    pub fn open(profiles: &[TlsProfile], shared: &Arc<Tickets>) -> Result<TicketSets, Vec<Finding>> {
        TicketSets::open_beside(profiles, shared, &[])
    }

    /// The same for other profiles. Keys that are in use already go on being used.
    pub fn succeeded_by(&self, profiles: &[TlsProfile]) -> Result<TicketSets, Vec<Finding>> {
        TicketSets::open_beside(profiles, &self.shared, &self.files)
    }

    fn open_beside(
        profiles: &[TlsProfile],
        shared: &Arc<Tickets>,
        known: &[(PathBuf, Option<Duration>, Arc<Tickets>)],
    ) -> Result<TicketSets, Vec<Finding>> {
        let now = SystemTime::now();
        let mut files: HashMap<&Path, (Option<Duration>, Arc<Tickets>)> = HashMap::new();
        let (mut all, mut findings) = (Vec::new(), Vec::new());
        for tls in profiles {
            let TicketKeys::File { path, rotate, at } = &tls.resumption.ticket_keys else {
                all.push(Arc::clone(shared));
                continue;
            };
            if let Some((_, tickets)) = files.get(path.as_path()) {
                all.push(Arc::clone(tickets));
                continue;
            }
            if let Some((.., tickets)) = known.iter().find(|(file, every, _)| (file, every) == (path, rotate)) {
                files.insert(path, (*rotate, Arc::clone(tickets)));
                all.push(Arc::clone(tickets));
                continue;
            }
            match Tickets::from_file(path, *rotate, now) {
                Ok(tickets) => {
                    let tickets = Arc::new(tickets);
                    files.insert(path, (*rotate, Arc::clone(&tickets)));
                    all.push(tickets);
                }
                Err(error) => findings.push(finding(error, *at)),
            }
        }
        if !findings.is_empty() {
            return Err(findings);
        }
        let files = files.into_iter().map(|(path, (rotate, tickets))| (path.to_owned(), rotate, tickets)).collect();
        Ok(TicketSets { sets: all, shared: Arc::clone(shared), files })
    }

    /// QueueTicket keys of this process, in no file.
    pub fn shared(&self) -> &Tickets {
        &self.shared
    }

    pub fn of(&self, profile: usize) -> &Arc<Tickets> {
        &self.sets[profile]
    }

    /// Does what the time asks for, with each set once. Returns how many sets have changed, and what failed.
    pub fn rotate(&self, now: SystemTime) -> (u64, Vec<KeyFileError>) {
        let (mut changes, mut errors) = (0, Vec::new());
        for (index, tickets) in self.sets.iter().enumerate() {
            if self.sets[..index].iter().any(|earlier| Arc::ptr_eq(earlier, tickets)) {
                continue;
            }
            match tickets.rotate_if_due(now) {
                Ok(changed) => changes += u64::from(changed),
                Err(error) => errors.push(error),
            }
        }
        (changes, errors)
    }
}

/// Finds errors in the files of keys. Makes none.
pub fn check(profiles: &[TlsProfile]) -> Vec<Finding> {
    let now = SystemTime::now();
    let check = |tls: &TlsProfile| match &tls.resumption.ticket_keys {
        TicketKeys::Memory => None,
        TicketKeys::File { path, rotate, at } => {
            Tickets::check_file(path, *rotate, now).err().map(|error| finding(error, *at))
        }
    };
    profiles.iter().filter_map(check).collect()
}

pub fn finding(error: KeyFileError, at: At) -> Finding {
    let what = format!("{}: {}", error.path.display(), error.what);
    Finding { severity: Severity::Error, at, path: error.path, what, fix: error.fix, error: error.error }
}
