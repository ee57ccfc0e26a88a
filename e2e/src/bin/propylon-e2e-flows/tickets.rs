//! Sessions that are kept to be resumed, with a count of those that were offered.

use std::sync::atomic::{AtomicU64, Ordering};

use rustls::NamedGroup;
use rustls::client::{ClientSessionMemoryCache, ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

#[derive(Debug)]
pub struct Tickets {
    kept: ClientSessionMemoryCache,
    offered: AtomicU64,
}

impl Tickets {
    pub fn new(kept: ClientSessionMemoryCache) -> Tickets {
        Tickets { kept, offered: AtomicU64::new(0) }
    }

    /// Sessions that handshakes have begun with so far.
    pub fn offered(&self) -> u64 {
        self.offered.load(Ordering::Relaxed)
    }

    fn count<T>(&self, found: Option<T>) -> Option<T> {
        self.offered.fetch_add(u64::from(found.is_some()), Ordering::Relaxed);
        found
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, server: ServerName<'static>, group: NamedGroup) {
        self.kept.set_kx_hint(server, group);
    }

    fn kx_hint(&self, server: &ServerName<'_>) -> Option<NamedGroup> {
        self.kept.kx_hint(server)
    }

    fn set_tls12_session(&self, server: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.kept.set_tls12_session(server, value);
    }

    fn tls12_session(&self, server: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.count(self.kept.tls12_session(server))
    }

    fn remove_tls12_session(&self, server: &ServerName<'static>) {
        self.kept.remove_tls12_session(server);
    }

    fn insert_tls13_ticket(&self, server: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.kept.insert_tls13_ticket(server, value);
    }

    fn take_tls13_ticket(&self, server: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.count(self.kept.take_tls13_ticket(server))
    }
}
