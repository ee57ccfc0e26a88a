//! Tasks for other threads than the one that has read a request, and events for its connection.

use std::time::Instant;

use propylon_crypto::Job;
use propylon_crypto::keyless::ErrorCode;
use tokio::sync::mpsc;

use crate::access::ClientId;

/// A job on its way to another thread, and where its result is to go.
pub struct Task {
    pub id: u32,
    pub client: ClientId,
    pub job: Job,
    pub since: Instant,
    pub deadline: Instant,
    pub reply_to: mpsc::Sender<ConnectionEvent>,
}

/// Threads with a queue of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadKind {
    Curves,
    Rsa,
}

/// An event for a connection, from another thread or another connection.
pub enum ConnectionEvent {
    Done {
        id: u32,
        result: Result<Signature, ErrorCode>,
    },
    /// Finish what is in progress, and end.
    Drain,
    /// End now: another needs the place, and no certificate has been shown.
    Evict,
}

pub type Signature = zeroize::Zeroizing<Vec<u8>>;

impl Task {
    /// Replies with a refusal. A connection that is gone needs no answer; for others the channel has room: no
    /// connection has more in work than it holds.
    pub fn refuse(self) {
        let _ = self.reply_to.try_send(ConnectionEvent::Done { id: self.id, result: Err(ErrorCode::Internal) });
    }
}

impl ThreadKind {
    pub const ALL: [ThreadKind; 2] = [ThreadKind::Curves, ThreadKind::Rsa];

    pub fn name(self) -> &'static str {
        match self {
            ThreadKind::Curves => "curves",
            ThreadKind::Rsa => "rsa",
        }
    }
}
