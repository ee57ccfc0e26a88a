//! Folders in which private keys are, and that with `keys.isolate` only the key process reads.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use propylon_config::Config;
use propylon_sys::folders_of;

/// Folder in which certbot and the like keep what they renew: its links lead within it, and new names come to both
/// ends.
const CERTBOT: &str = "/etc/letsencrypt";

/// Folders that the key process may read: where the configuration has keys, and where links there lead.
pub fn folders(config: &Config) -> BTreeSet<PathBuf> {
    let files = config.key_files();
    let mut folders: BTreeSet<PathBuf> = files.iter().flat_map(|(path, _)| folders_of(path)).collect();
    if files.iter().any(|(path, _)| path.starts_with(CERTBOT)) {
        folders.extend(["live", "archive"].map(|name| Path::new(CERTBOT).join(name)));
    }
    let found = folders.into_iter().filter_map(|folder| std::fs::canonicalize(folder).ok());
    found.chain(store(config)).collect()
}

/// Folder in which the key process keeps uploads, without links in its path; it may not exist yet.
pub fn store(config: &Config) -> Option<PathBuf> {
    let store = config.keys.store.as_ref().filter(|_| config.keys.isolate.is_some())?;
    Some(without_links(&store.path))
}

/// A path as far as it is there, without links in it.
pub fn without_links(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let known = path.ancestors().find_map(|above| Some((above, std::fs::canonicalize(above).ok()?)));
    match known.and_then(|(above, known)| Some((known, path.strip_prefix(above).ok()?))) {
        Some((known, rest)) if rest.as_os_str().is_empty() => known,
        Some((known, rest)) => known.join(rest),
        None => path,
    }
}
