//! Programs that are installed for administrators alone, and so are not on every user's path.

use std::path::{Path, PathBuf};
use std::process::Command;

const FOLDERS: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// The place of a program, if it is installed.
pub fn path(program: &str) -> Option<PathBuf> {
    FOLDERS.iter().map(|folder| Path::new(folder).join(program)).find(|path| path.exists())
}

/// A command by such a path.
pub fn system(program: &str) -> Command {
    Command::new(path(program).unwrap_or_else(|| PathBuf::from(program)))
}
