//! The resolved model of `[announce]`.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::At;
use crate::shown;

/// Announcement of virtual addresses by BIRD while this engine can serve: `[announce]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Announce {
    /// Path of BIRD's control socket. Default "/run/bird/bird.ctl".
    #[serde(serialize_with = "shown::written")]
    pub bird: PathBuf,
    /// Names of BIRD's protocols that are enabled and disabled, 1 to 8.
    pub protocols: Vec<String>,
    /// Share of a backend's servers that has to be up, in percent, but at least one server. 0 to 100, default 1; zero:
    /// servers are not looked at.
    #[serde(rename = "min_servers")]
    pub min_servers_percent: u8,
    /// Time not ready after which it withdraws: longer than news takes to others. Default 3 s.
    #[serde(serialize_with = "shown::written")]
    pub hold: Duration,
    /// Time ready after which it announces again. Default 5 s.
    #[serde(serialize_with = "shown::written")]
    pub hold_up: Duration,
    /// Position of the section in the file.
    pub at: At,
}
