//! State of a server of a run, which all of its connections share.

use super::behaviour::Behaviour;
use crate::journal::{Journal, Progress, Protocol};
use rustls::ServerConfig;
use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A piece of a body that is sent piece by piece.
pub const PIECE_BYTES: u64 = 32 * 1024;
/// A client that says nothing for so long is gone.
pub const IDLE_MAX: Duration = Duration::from_secs(60);

/// State that every connection of the process shares.
pub struct Server {
    pub name: String,
    pub tls: Arc<ServerConfig>,
    pub behaviour: Cell<Behaviour>,
    pub journal: RefCell<Journal>,
    pub random: RefCell<fastrand::Rng>,
}

impl Server {
    pub fn note(&self, progress: Progress, id: u64) -> io::Result<()> {
        self.journal.borrow_mut().note(progress, id)
    }

    pub fn note_head(&self, id: u64, protocol: Protocol) -> io::Result<()> {
        self.journal.borrow_mut().note_head(id, protocol)
    }

    pub fn hits(&self, percent: u8) -> bool {
        percent > 0 && self.random.borrow_mut().u8(..100) < percent
    }

    /// Whether this connection ends at the place where this is asked. There are four such places on a request's way.
    pub fn cuts(&self) -> io::Result<()> {
        match self.hits(self.behaviour.get().cut_percent / 4) {
            true => Err(io::ErrorKind::ConnectionAborted.into()),
            false => Ok(()),
        }
    }
}
