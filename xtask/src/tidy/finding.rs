//! What a rule finds: where, what, and how bad it is.

use std::fmt;
use std::path::{Path, PathBuf};

/// Something to put right, or only to think about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Relative to the top of the repository.
    pub file: PathBuf,
    pub line: usize,
    pub what: String,
    pub severity: Severity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Fails the run.
    Error,
    /// Is printed.
    Note,
}

impl Finding {
    pub fn error(file: &Path, line: usize, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, what: what.into(), severity: Severity::Error }
    }

    pub fn note(file: &Path, line: usize, what: impl Into<String>) -> Self {
        Self { severity: Severity::Note, ..Self::error(file, line, what) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "",
            Severity::Note => "note: ",
        };
        write!(formatter, "{}:{}: {severity}{}", self.file.display(), self.line, self.what)
    }
}

/// The line, counted from 1, of a byte in a text.
pub fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}
