//! Keys that are in a process beside this one: who reads files in which they may be.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use propylon_crypto::key_process::{Failure, KeyFiles, Unread};

use super::trouble::{self, Trouble};

/// Of the process, and for good: once it is set nothing in here reads a private key any more.
static KEY_FILES: OnceLock<Arc<KeyFiles>> = OnceLock::new();

/// From here on files of certificates and keys are read by the process behind `files`, which keeps the keys, and what
/// is made of them has handshakes wait for signatures of [`RemoteKey::BESIDE`](propylon_crypto::RemoteKey::BESIDE). To
/// be called before any is loaded.
pub fn hold_keys_beside(files: Arc<KeyFiles>) {
    let _ = KEY_FILES.set(files);
}

/// The folder in which another engine's key process keeps what it has made: see [`find_ordered_keys_in`].
static ORDERED_KEYS: OnceLock<PathBuf> = OnceLock::new();

/// From here on keys of ordered certificates are read from this folder (`keys.store`) by this process, which only looks
/// at the files of one that does not.
pub fn find_ordered_keys_in(folder: &Path) {
    let _ = ORDERED_KEYS.set(folder.into());
}

/// That folder, where there is one.
pub(super) fn ordered_keys() -> Option<&'static Path> {
    ORDERED_KEYS.get().map(PathBuf::as_path)
}

/// Whoever reads files with keys in place of this process.
pub fn key_files() -> Option<&'static KeyFiles> {
    KEY_FILES.get().map(|files| &**files)
}

/// What was read since is about to be used.
pub(super) fn publish() -> Option<Trouble> {
    let failure = key_files()?.publish().err()?;
    Some(trouble(Path::new(""), failure))
}

pub(super) fn trouble(path: &Path, failure: Failure) -> Trouble {
    match failure {
        Failure::Unread(Unread::TooLong) => Trouble::error(path, trouble::TOO_LONG, trouble::ONE_CHAIN),
        Failure::Unread(Unread::Encrypted) => trouble::encrypted(path),
        Failure::Unread(Unread::Malformed(why)) => trouble::malformed(path, &why),
        Failure::Unread(Unread::Denied) => {
            let fix = "with keys.isolate keys are read by the account of process.user from the start: give it, or a group of \
                       its, the right to read this file";
            Trouble::error(path, "the key process may not read this file", fix)
        }
        // Another process's error is none that this one met.
        failure => Trouble { error: None, ..trouble::unreadable(path, &failure.into()) },
    }
}
