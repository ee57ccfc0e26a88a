//! Keys in this engine's key process (`keys.isolate`): which process reads the files that may hold keys.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use propylon_crypto::key_process::{Failure, KeyFiles, Unread};

use super::problem::{self, Problem};

/// Connection to the key process. Once set, nothing in this process reads a private key any more.
static KEY_FILES: OnceLock<Arc<KeyFiles>> = OnceLock::new();

/// Has files of certificates and keys read by the key process behind `files`, which keeps the keys; handshakes wait for
/// its signatures ([`RemoteKey::KEY_PROCESS`](propylon_crypto::RemoteKey::KEY_PROCESS)). To be called before any file
/// is loaded.
pub fn use_key_process(files: Arc<KeyFiles>) {
    let _ = KEY_FILES.set(files);
}

/// Folder in which another engine's key process stores keys: see [`find_ordered_keys_in`].
static ORDERED_KEYS: OnceLock<PathBuf> = OnceLock::new();

/// Reads keys of ordered certificates from this folder (`keys.store`), in a process without a key process that checks
/// the files of an engine with one.
pub fn find_ordered_keys_in(folder: &Path) {
    let _ = ORDERED_KEYS.set(folder.into());
}

/// The folder of stored keys, where there is one.
pub(super) fn ordered_keys() -> Option<&'static Path> {
    ORDERED_KEYS.get().map(PathBuf::as_path)
}

/// The key process that reads files with keys, where there is one.
pub fn key_files() -> Option<&'static KeyFiles> {
    KEY_FILES.get().map(|files| &**files)
}

/// Has the key process publish the keys that it has read, which are about to be used.
pub(super) fn publish() -> Option<Problem> {
    let failure = key_files()?.publish().err()?;
    Some(problem(Path::new(""), failure))
}

pub(super) fn problem(path: &Path, failure: Failure) -> Problem {
    match failure {
        Failure::Unread(Unread::TooLong) => Problem::error(path, problem::TOO_LONG, problem::ONE_CHAIN),
        Failure::Unread(Unread::Encrypted) => problem::encrypted(path),
        Failure::Unread(Unread::Malformed(why)) => problem::malformed(path, &why),
        Failure::Unread(Unread::Denied) => {
            let fix = "with keys.isolate keys are read by the account of process.user from the start: give it, or a group of \
                       its, the right to read this file";
            Problem::error(path, "the key process may not read this file", fix)
        }
        // The error is the key process's, not one that this process met.
        failure => Problem { error: None, ..problem::unreadable(path, &failure.into()) },
    }
}
