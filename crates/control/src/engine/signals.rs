//! Signals that the process handles while it serves.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that the process handles, but for SIGHUP, which is the reload's.
pub(super) struct Signals {
    pub ends: EndSignals,
    pub user: Signal,
    pub second_user: Signal,
}

impl Signals {
    pub fn subscribe() -> io::Result<Signals> {
        let ends =
            EndSignals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? };
        let (user, second_user) = (signal(SignalKind::user_defined1())?, signal(SignalKind::user_defined2())?);
        Ok(Signals { ends, user, second_user })
    }
}

/// The signals that end the process.
pub(super) struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl EndSignals {
    pub async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
