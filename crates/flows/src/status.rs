//! The file by which `propylon-flows` tells the engine how it is.

use serde::{Deserialize, Serialize};

use crate::counters::Counters;

/// Written each second, by rename. If `at` is some seconds ago, the process is away, and the program in the kernel
/// goes on by the last table. A process of another version may say less than all of it, but for `at`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusFile {
    /// The table's that packets go by; 0 before the first.
    #[serde(default)]
    pub generation: u64,
    /// Packets since the program was loaded first, by outcome ([`crate::counters::COUNTERS`]).
    #[serde(default)]
    pub counters: Counters,
    /// Buckets in which this engine may have connections without being the owner, and how many it has there, with
    /// half-open ones. A bucket with 0 is listed too: it can be given up.
    #[serde(default)]
    pub former: Vec<(u32, u64)>,
    /// Sentences, each with a remedy.
    #[serde(default)]
    pub problems: Vec<String>,
    /// Milliseconds since 1970.
    pub at: u64,
}

impl StatusFile {
    /// As it is written.
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("numbers and texts have a form in JSON") + "\n"
    }

    /// # Errors
    /// For what is no status.
    pub fn parse(text: &str) -> Result<StatusFile, String> {
        serde_json::from_str(text).map_err(|error| format!("this is no status of propylon-flows: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let status = StatusFile {
            generation: 7,
            counters: Counters::from([("kept_own_socket".to_owned(), 12)]),
            former: vec![(3, 0), (900, 41)],
            problems: vec!["no route to e2 (10.0.0.2)".to_owned()],
            at: 1_700_000_000_000,
        };
        assert_eq!(StatusFile::parse(&status.text()), Ok(status));
    }
}
