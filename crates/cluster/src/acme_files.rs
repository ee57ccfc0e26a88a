//! Folders of ordered certificates: the leader orders, and what is in its folders comes to all engines, sealed:
//! accounts, certificates, the record of attempts, and answers to challenges, so that any engine can answer an
//! authority.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};

use crate::agent::{Agent, Outcome};
use crate::etcd::Operation;
use crate::runtime::is_name;

/// Time between two looks at the folders. Authorities are told of challenges a second and a half after they are there.
const LOOK: Duration = Duration::from_millis(250);
const FILE_BYTES_MAX: u64 = 512 * 1024;
/// Files of one account; more are left to the leader alone.
const FILES_MAX: usize = 10_000;
/// Folders below an account's.
const FOLDERS: [&str; 2] = ["certificates", "challenges"];

/// Files of its folders that the leader has brought to etcd.
#[derive(Debug, Default)]
pub(crate) struct Mirrored {
    looked: Option<Instant>,
    /// Hash of each file's content, and when it was changed last.
    known: BTreeMap<String, (Stamp, Vec<u8>)>,
}

type Stamp = (u64, Option<std::time::SystemTime>);

impl Agent {
    /// As the leader: brings files of the folders that have changed to etcd.
    pub(crate) async fn mirror_acme(&mut self) -> Outcome<()> {
        let Some(leading) = &mut self.leading else { return Ok(()) };
        if self.secrets.accounts().is_empty() || leading.acme.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return Ok(());
        }
        leading.acme.looked = Some(Instant::now());
        let mut found = BTreeMap::new();
        for (account, folder) in self.secrets.accounts() {
            list(account, folder, "", &mut found);
            FOLDERS.iter().for_each(|sub| list(account, &folder.join(sub), sub, &mut found));
        }
        for (name, (path, stamp)) in &found {
            let known = self.leading.as_ref().and_then(|leading| leading.acme.known.get(name));
            if known.is_some_and(|(known, _)| known == stamp) {
                continue;
            }
            // Another look finds what is written just now.
            let Ok(content) = fs::read(path) else { continue };
            let hash = digest(&SHA256, &content).as_ref().to_vec();
            let is_same = known.is_some_and(|(_, known)| *known == hash);
            if !is_same {
                self.put_secret(name, &content).await?;
            }
            if let Some(leading) = &mut self.leading {
                leading.acme.known.insert(name.clone(), (*stamp, hash));
            }
        }
        let gone =
            self.secrets.names().into_iter().filter(|name| name.starts_with("acme/") && !found.contains_key(name));
        for name in gone.collect::<Vec<String>>() {
            if let Some(leading) = &mut self.leading {
                leading.acme.known.remove(&name);
            }
            let key = self.keys.secret(&name);
            let txn = self.as_leader().then(&Operation::Delete { key: key.into() });
            if self.write(txn).await?.is_some() {
                self.secrets.take(&name, crate::secrets::News::Gone);
            }
        }
        self.secrets.flush();
        Ok(())
    }
}

/// Files of a folder that are worth keeping, with their names in etcd.
fn list(account: &str, folder: &Path, sub: &str, found: &mut BTreeMap<String, (std::path::PathBuf, Stamp)>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten().take(FILES_MAX) {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| is_kept(name)) else { continue };
        let Ok(metadata) = entry.metadata() else { continue };
        if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
            continue;
        }
        let within = if sub.is_empty() { name.to_owned() } else { format!("{sub}/{name}") };
        let stamp = (metadata.len(), metadata.modified().ok());
        found.insert(format!("acme/{account}/{within}"), (entry.path(), stamp));
    }
}

fn is_kept(name: &str) -> bool {
    is_name(name) && (name.ends_with(".json") || name.ends_with(".pem"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_broken_files_and_files_that_are_being_written_stay_at_home() {
        assert!(is_kept("account-1.json") && is_kept("shop.example.pem") && is_kept("orders.json"));
        assert!(!is_kept("lock") && !is_kept("orders.json.broken-1") && !is_kept(".new.json") && !is_kept("a/b.json"));
    }
}
