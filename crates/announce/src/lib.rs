//! A virtual address that follows what an engine can serve: announced by BIRD, or held by keepalived.
//!
//! BIRD speaks BGP with the routers, keepalived speaks VRRP; here is what tells them whether this engine takes part.
#![forbid(unsafe_code)]

use std::path::PathBuf;

pub mod announcer;
pub mod answers;
pub mod bird;
pub mod birdcheck;
pub mod birdconf;
pub mod decision;
pub mod guard;
pub mod keepalived;

pub use announcer::{Announcer, ProtocolStatus, SessionStatus, Status, Wanted};
pub use answers::{BfdSession, BirdStatus, Channel, Protocol, ProtocolState};
pub use bird::{Bird, BirdError, ProtocolName, Switched};
pub use decision::{BackendFacts, Decider, Decision, Facts, Holds};

/// BIRD's control socket, and the protocols in BIRD that have the virtual addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub socket: PathBuf,
    /// Static protocols; each has one virtual address or several, of one family.
    pub protocols: Vec<ProtocolName>,
}
