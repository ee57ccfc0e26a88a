//! Folders of the cluster that root has made belong to the account that serves.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::Path;

use propylon_config::Config;
use propylon_sys::Account;

/// Folders below the cluster's are no deeper.
const DEPTH_MAX: usize = 4;

/// Gives `state` and `runtime`, and what is in them, to the account of `process.user`, where this process is root.
///
/// # Errors
/// In words, with the folder.
pub fn give_to_account(config: &Config) -> Result<(), String> {
    let (Some(section), Some(user)) = (&config.cluster, &config.process.user) else { return Ok(()) };
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let account = Account::find(user).map_err(|error| error.to_string())?;
    for folder in [&section.state.path, &section.runtime.path] {
        let failed = |error: io::Error| format!("{} cannot be given to {user}: {error}", folder.display());
        give(folder, (account.uid, account.gid), 0).map_err(failed)?;
    }
    Ok(())
}

fn give(path: &Path, (uid, gid): (u32, u32), depth: usize) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if (metadata.uid(), metadata.gid()) != (uid, gid) {
        lchown(path, Some(uid), Some(gid))?;
    }
    if metadata.is_dir() && depth < DEPTH_MAX {
        for entry in fs::read_dir(path)? {
            give(&entry?.path(), (uid, gid), depth + 1)?;
        }
    }
    Ok(())
}
