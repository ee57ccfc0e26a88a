//! A directory for the length of one run, gone with its owner, however that ends.
//!
//! The owner removes it, a second signal does (`interrupt`), and the next run removes what a process has left that
//! was killed.

use crate::failure::{Failure, Outcome, While};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Names tried before giving up on the temp directory.
const ATTEMPTS: u32 = 16;
/// In front of the number of the process that owns it.
const PREFIX: &str = "propylon-bench-";
/// Prefix of folders that are kept for somebody to look at: nobody sweeps them.
const KEPT_PREFIX: &str = "propylon-kept-";
/// Mark that a file with a private key has in it.
const KEY_MARK: &[u8] = b"PRIVATE KEY-----";

/// Directories of this process.
static OPEN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Readable by its owner only: private keys live in it.
pub struct ScratchDir(PathBuf);

impl ScratchDir {
    pub fn new() -> Outcome<Self> {
        sweep(&std::env::temp_dir());
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let name = format!("{PREFIX}{}-{:016x}", std::process::id(), fastrand::u64(..));
            let path = std::env::temp_dir().join(name);
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    OPEN.lock().unwrap_or_else(PoisonError::into_inner).push(path.clone());
                    return Ok(Self(path));
                }
                Err(error) => last = Some((path, error)),
            }
        }
        let (path, error) = last.expect("at least one attempt was made");
        Err(Failure::new(format!("making {}: {error}", path.display())))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Leaves it where it can be looked at, without the private keys in it, and says where that is.
    pub fn keep(self) -> Outcome<PathBuf> {
        remove_keys(&self.0).when("removing private keys from what is kept")?;
        let kept = std::env::temp_dir().join(format!("{KEPT_PREFIX}{:016x}", fastrand::u64(..)));
        fs::rename(&self.0, &kept).when("keeping what the run has left")?;
        Ok(kept)
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        OPEN.lock().unwrap_or_else(PoisonError::into_inner).retain(|path| *path != self.0);
    }
}

/// Removes the directories of this process, which is about to end without a word to their owners.
pub fn remove_all() {
    for path in OPEN.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        let _ = fs::remove_dir_all(path);
    }
}

/// Removes what processes have left that are gone.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once('-')?.0.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Ticket keys are of no use to anybody once the engine is gone; a certificate's key may be trusted somewhere.
fn remove_keys(folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_keys(&path)?;
        } else if fs::read(&path)?.windows(KEY_MARK.len()).any(|part| part == KEY_MARK) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_has_no_keys_in_it() {
        let scratch = ScratchDir::new().expect("a folder");
        fs::create_dir(scratch.path().join("deeper")).expect("a folder");
        fs::write(scratch.path().join("engine.log"), "a word").expect("a file");
        for name in ["site.pem", "deeper/key"] {
            fs::write(scratch.path().join(name), "-----BEGIN EC PRIVATE KEY-----\nAAAA\n").expect("a file");
        }
        let first = scratch.path().to_owned();
        let kept = scratch.keep().expect("it can be kept");
        assert!(kept.join("engine.log").exists() && !first.exists());
        assert!(!kept.join("site.pem").exists() && !kept.join("deeper/key").exists());
        fs::remove_dir_all(kept).expect("it can be removed");
    }

    #[test]
    fn what_a_killed_process_has_left_is_removed_and_what_others_use_is_not() {
        let parent = ScratchDir::new().expect("a folder");
        // No process has this number: it is beyond the kernel's largest (proc(5), pid_max).
        let [gone, used, kept] =
            ["propylon-bench-4194305-1", &format!("{PREFIX}{}-1", std::process::id()), "propylon-kept-1"]
                .map(|name| parent.path().join(name));
        for path in [&gone, &used, &kept] {
            fs::create_dir(path).expect("a folder");
        }
        sweep(parent.path());
        assert!(!gone.exists() && used.exists() && kept.exists());
    }
}
