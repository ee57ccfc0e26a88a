//! Findings: faults of certificates and keys, and what to do about them.

use std::io::ErrorKind;
use std::path::PathBuf;

use propylon_config::At;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    /// Position of the certificate in the configuration.
    pub at: At,
    /// File or directory at fault.
    pub path: PathBuf,
    pub what: String,
    /// Remedy; never empty.
    pub fix: String,
    /// System error behind the finding, if this process met one; `NotFound` for a key that the key process lacks.
    pub error: Option<ErrorKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The profile works.
    Warning,
    /// The profile cannot be used.
    Error,
}
