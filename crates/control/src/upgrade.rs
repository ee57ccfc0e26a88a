//! Another process takes over: it gets this one's listening sockets and secrets by a Unix socket, makes everything ready, and
//! only then this one lets go and drains.
//!
//! `takeover.rs` is the side of the process that begins, `handover.rs` that of the one that ends, `message.rs` what they say
//! to each other:
//!
//! ```text
//! successor                               predecessor
//!   hello, and what it takes         ->     one at a time; from here on nothing else may change it
//!     <- offer, files, secrets              its sockets, and what they are for; results of probes, issuers' keys
//!   (reads the configuration and the state, loads, binds what is missing, starts its workers)
//!   ready, with what it took         ->
//!     <- sessions, go
//!   (accepts)
//!   serving                          ->     accepts no more, drains
//!     <- draining, then its progress
//! ```
//!
//! Between `go` and `draining` both accept from the same queues, so there is no moment in which nobody does. Whatever
//! happens before `serving` leaves the predecessor as it was. Why it is so: `docs/decisions/0031-upgrade.md`.

pub mod argv;
pub mod handover;
mod keys;
pub mod launcher;
mod message;
mod past;
pub mod predecessors;
pub mod takeover;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use message::Channel;
use propylon_observe::telemetry::UPGRADE_FAILURES;

/// Version of the conversation; another one is refused.
const PROTOCOL: u64 = 1;
/// A whole start: certificates by the thousand take their time.
const READY_WAIT: Duration = Duration::from_secs(60);
/// For what needs no work: an answer of a process that is well.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Conversations at once: one successor, and others who have to be told so.
const CONVERSATIONS_MAX: usize = 16;
/// Processes that drain and are told of; of more nobody keeps account.
const PREDECESSORS_MAX: usize = 64;
/// Listening sockets that may be offered: an address on every core counts that often.
const SOCKETS_MAX: usize = 16 * 1024;
/// How long the kernel may take to end a process whose files it has closed already.
const END_WAIT: Duration = Duration::from_secs(1);

/// A conversation that another process has begun.
pub fn listen_to(socket: OwnedFd) -> io::Result<Channel> {
    Channel::new(socket)
}

/// Whatever a successor's logs, and ours, say of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// One of [`UPGRADE_FAILURES`].
    pub reason: &'static str,
    pub what: String,
}

impl Failure {
    fn new(reason: &'static str, what: impl Into<String>) -> Failure {
        Failure { reason, what: what.into() }
    }

    /// A word that came from elsewhere.
    fn received(reason: &str, what: String) -> Failure {
        let known = UPGRADE_FAILURES.iter().find(|known| **known == reason);
        Failure { reason: known.copied().unwrap_or("protocol"), what }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}
