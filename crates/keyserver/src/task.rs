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

/// The result of an operation, with the number of the request that asked for it.
pub struct Reply {
    pub id: u32,
    pub result: Result<Signature, ErrorCode>,
}

/// An event for a connection, from another thread or another connection.
pub enum ConnectionEvent {
    /// Results of operations that another thread has done, none of them twice.
    Done(Vec<Reply>),
    /// Finish what is in progress, and end.
    Drain,
    /// End now: another needs the place, and no certificate has been shown.
    Evict,
}

pub type Signature = zeroize::Zeroizing<Vec<u8>>;

/// Results on their way to connections. Those of a pass leave together, so that a connection's thread is woken once for
/// all of its own, and writes them once.
#[derive(Default)]
pub struct Replies(Vec<(mpsc::Sender<ConnectionEvent>, Vec<Reply>)>);

impl Task {
    /// Replies with a refusal. A connection that is gone needs no answer; for others the channel has room: no
    /// connection has more in work than it holds.
    pub fn refuse(self) {
        let reply = Reply { id: self.id, result: Err(ErrorCode::Internal) };
        let _ = self.reply_to.try_send(ConnectionEvent::Done(vec![reply]));
    }
}

impl Replies {
    /// Puts a result to those of the same connection. A pass has few, so that a search is cheaper than a table.
    pub fn add(&mut self, to: mpsc::Sender<ConnectionEvent>, reply: Reply) {
        match self.0.iter_mut().find(|(known, _)| known.same_channel(&to)) {
            Some((_, replies)) => replies.push(reply),
            None => self.0.push((to, vec![reply])),
        }
    }

    /// Sends them, each connection's as one event.
    pub fn send(self) {
        for (to, replies) in self.0 {
            // The channel has room: a connection has no more in work than it holds.
            let _ = to.try_send(ConnectionEvent::Done(replies));
        }
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
