//! The ticket keys of every TLS profile: in memory, or in files that other engines share.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use propylon_config::{At, TicketKeys, TlsProfile};
use propylon_tls::{Finding, KeyFileError, Severity, Tickets};

/// By profile: keys of its own from a file, or those that all others share.
pub struct TicketSets(Vec<Arc<Tickets>>);

impl TicketSets {
    /// Reads the files, and makes those that are this engine's to make. Profiles that name the same file share its keys.
    pub fn open(profiles: &[TlsProfile], shared: &Arc<Tickets>) -> Result<TicketSets, Vec<Finding>> {
        let now = SystemTime::now();
        let mut files: HashMap<&Path, Arc<Tickets>> = HashMap::new();
        let (mut all, mut findings) = (Vec::new(), Vec::new());
        for tls in profiles {
            let TicketKeys::File { path, rotate, at } = &tls.resumption.ticket_keys else {
                all.push(Arc::clone(shared));
                continue;
            };
            if let Some(tickets) = files.get(path.as_path()) {
                all.push(Arc::clone(tickets));
                continue;
            }
            match Tickets::from_file(path, *rotate, now) {
                Ok(tickets) => {
                    let tickets = Arc::new(tickets);
                    files.insert(path, Arc::clone(&tickets));
                    all.push(tickets);
                }
                Err(error) => findings.push(finding(error, *at)),
            }
        }
        if findings.is_empty() { Ok(TicketSets(all)) } else { Err(findings) }
    }

    pub fn of(&self, profile: usize) -> &Arc<Tickets> {
        &self.0[profile]
    }

    /// Does what the time asks for, with each set once. Returns how many sets have changed, and what failed.
    pub fn tend(&self, now: SystemTime) -> (u64, Vec<KeyFileError>) {
        let (mut changes, mut errors) = (0, Vec::new());
        for (index, tickets) in self.0.iter().enumerate() {
            if self.0[..index].iter().any(|earlier| Arc::ptr_eq(earlier, tickets)) {
                continue;
            }
            match tickets.tend(now) {
                Ok(changed) => changes += u64::from(changed),
                Err(error) => errors.push(error),
            }
        }
        (changes, errors)
    }
}

/// What is wrong with the files. Makes none.
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

fn finding(error: KeyFileError, at: At) -> Finding {
    let what = format!("{}: {}", error.path.display(), error.what);
    Finding { severity: Severity::Error, at, path: error.path, what, fix: error.fix }
}
