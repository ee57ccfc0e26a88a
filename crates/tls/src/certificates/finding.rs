//! What is wrong with a certificate or a key, and what to do about it.

use std::io::ErrorKind;
use std::path::PathBuf;

use propylon_config::At;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    /// Where the configuration names the certificate.
    pub at: At,
    /// The file or directory it is about.
    pub path: PathBuf,
    pub what: String,
    /// What to do; never empty.
    pub fix: String,
    /// Error of the system that it comes from, if this process met one.
    pub error: Option<ErrorKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The profile works; somebody should look.
    Warning,
    /// The profile cannot be used.
    Error,
}
