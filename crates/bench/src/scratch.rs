//! A directory for the length of one run, gone with its owner.

use crate::failure::{Failure, Outcome};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Names tried before giving up on the temp directory.
const ATTEMPTS: u32 = 16;

/// Readable by its owner only: private keys live in it.
pub struct ScratchDir(PathBuf);

impl ScratchDir {
    pub fn new() -> Outcome<Self> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let path = std::env::temp_dir().join(format!("propylon-bench-{:016x}", fastrand::u64(..)));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) => last = Some((path, error)),
            }
        }
        let (path, error) = last.expect("at least one attempt was made");
        Err(Failure::new(format!("making {}: {error}", path.display())))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
