//! State that all clients of the load share, and what they have seen in the end.

use super::answer::RequestEnd;
use crate::clock::{Micros, now};
use crate::endpoints::Endpoints;
use crate::model::{Kind, RequestRecord, Stage};
use crate::wire::{Offer, Target, Wire};
use propylon_bench::failure;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time limit for one request, everything included. Far beyond all limits of the engine: a client that waits for so
/// long has found a defect.
pub const CLIENT_TIMEOUT: Duration = Duration::from_secs(40);
/// Between two requests of a client, in milliseconds.
const THINK: std::ops::Range<u64> = 15..70;

/// The clients' results at the end.
#[derive(Default)]
pub struct LoadResults {
    pub records: Vec<RequestRecord>,
    pub handshakes: Vec<Handshake>,
    /// Connections that were made, by endpoint.
    pub connections: BTreeMap<Endpoint, u64>,
}

/// One full handshake, and which certificate it has shown.
pub struct Handshake {
    pub from: Micros,
    pub to: Micros,
    pub leaf: u64,
}

/// A certificate in short.
pub fn mark(certificate: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    certificate.hash(&mut hasher);
    hasher.finish()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Endpoint {
    Secure,
    Plain,
    Relay,
    /// The listener whose certificate is none of those that are exchanged.
    Keyed,
}

/// State that all clients share.
pub struct LoadContext {
    pub secure: Target,
    /// The same, coming back with tickets.
    pub resuming: Target,
    pub multiplexed: Target,
    pub plain: Target,
    pub relay: Target,
    pub keyed: Target,
    pub stop: Arc<AtomicBool>,
    pub random: RefCell<fastrand::Rng>,
    pub next_id: Cell<u64>,
    pub next_connection: Cell<u32>,
    pub load_results: RefCell<LoadResults>,
}

/// A request whose record is being made.
pub struct PendingRequest {
    pub id: u64,
    pub kind: Kind,
    pub connection: u32,
    pub ordinal: u32,
    pub begun: Micros,
}

impl LoadContext {
    pub fn new(endpoints: Endpoints, ca: &Path, seed: u64, stop: Arc<AtomicBool>) -> failure::Outcome<Self> {
        let at = |address, resuming, offer| Target::secure(address, crate::certificates::NAME, ca, resuming, offer);
        Ok(Self {
            secure: at(endpoints.secure, false, Offer::None)?,
            resuming: at(endpoints.secure, true, Offer::None)?,
            multiplexed: at(endpoints.secure, true, Offer::Http2)?,
            plain: Target::plain(endpoints.plain),
            relay: Target::plain(endpoints.relay),
            keyed: at(endpoints.keyed, false, Offer::None)?,
            stop,
            random: RefCell::new(fastrand::Rng::with_seed(seed)),
            next_id: Cell::new(1),
            next_connection: Cell::new(1),
            load_results: RefCell::default(),
        })
    }

    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub fn draw(&self, range: std::ops::Range<u64>) -> u64 {
        self.random.borrow_mut().u64(range)
    }

    pub async fn think(&self) {
        let pause = self.draw(THINK);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }

    pub fn target(&self, endpoint: Endpoint, index: usize) -> &Target {
        match endpoint {
            Endpoint::Secure if index.is_multiple_of(2) => &self.resuming,
            Endpoint::Secure => &self.secure,
            Endpoint::Plain => &self.plain,
            Endpoint::Relay => &self.relay,
            Endpoint::Keyed => &self.keyed,
        }
    }

    /// A new connection, and what its handshake has shown.
    pub async fn connect(&self, endpoint: Endpoint, index: usize) -> Result<(Wire, u32), Stage> {
        let from = now();
        let wire = Wire::connect(self.target(endpoint, index)).await?;
        Ok((self.note_connection(endpoint, from, wire), self.number_connection()))
    }

    pub fn note_connection(&self, endpoint: Endpoint, from: Micros, wire: Wire) -> Wire {
        let mut load_results = self.load_results.borrow_mut();
        *load_results.connections.entry(endpoint).or_default() += 1;
        if endpoint != Endpoint::Keyed
            && let Some(leaf) = wire.shown_certificate()
        {
            load_results.handshakes.push(Handshake { from, to: now(), leaf: mark(leaf) });
        }
        wire
    }

    pub fn number_connection(&self) -> u32 {
        let number = self.next_connection.get();
        self.next_connection.set(number + 1);
        number
    }

    pub fn pending(&self, kind: Kind) -> PendingRequest {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        PendingRequest { id, kind, connection: 0, ordinal: 0, begun: now() }
    }

    pub fn note(&self, pending: PendingRequest, ending: RequestEnd) {
        let PendingRequest { id, kind, connection, ordinal, begun } = pending;
        let RequestEnd { outcome, status, server } = ending;
        let record = RequestRecord { id, kind, connection, ordinal, begun, ended: now(), server, status, outcome };
        self.load_results.borrow_mut().records.push(record);
    }
}
