//! Why a probe did not succeed.

use std::{fmt, io};

/// Why a probe did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// One of [`propylon_observe::telemetry::PROBE_RESULTS`].
    pub word: &'static str,
    /// Further detail; may be empty.
    pub detail: String,
}

impl Failure {
    /// Nothing came in all the time that there was.
    pub fn took_too_long(&self) -> bool {
        matches!(self.word, "timeout" | "connect-timeout")
    }

    pub fn new(word: &'static str, detail: impl Into<String>) -> Failure {
        Failure { word, detail: detail.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.detail.is_empty() {
            true => f.write_str(self.word),
            false => write!(f, "{} ({})", self.word, self.detail),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::new("closed", error.to_string())
    }
}
