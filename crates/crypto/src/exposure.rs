//! Whose business a private key's file is: one rule for engines and key servers.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// Message for a key's file that [`is_open_to_all`].
pub const OPEN_TO_ALL: &str = "every account of this machine may read or change this private key";

/// Whether every account of the machine may read, or write to, a file.
pub fn is_open_to_all(metadata: &Metadata) -> bool {
    const OTHERS_READ_OR_WRITE: u32 = 0o006;
    metadata.mode() & OTHERS_READ_OR_WRITE != 0
}
