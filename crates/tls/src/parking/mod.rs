//! Parking of handshakes: which of their jobs are deferred, and how many handshakes may wait at once.

#[allow(unsafe_code, reason = "stacks and switching between them")]
pub(crate) mod fiber;

use std::cell::Cell;
use std::rc::Rc;

use propylon_crypto::JobKind;

use fiber::Stacks;

/// Kinds of jobs that an acceptor's handshakes defer. Jobs of remote keys are always deferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deferral {
    pub rsa: bool,
    pub ecdsa: bool,
    pub ed25519: bool,
    pub x25519: bool,
    /// Defers local jobs only while other handshakes of the core may soon have such jobs too: a single one has nobody
    /// to be batched with, and is done faster on the spot.
    pub in_company_only: bool,
}

impl Deferral {
    pub const ALL: Deferral = Deferral { rsa: true, ecdsa: true, ed25519: true, x25519: true, in_company_only: false };

    /// Whether local jobs of any kind are deferred.
    pub(crate) fn defers_any(self) -> bool {
        self.rsa || self.ecdsa || self.ed25519 || self.x25519
    }

    fn defers(self, kind: JobKind) -> bool {
        match kind {
            JobKind::Rsa => self.rsa,
            JobKind::Ecdsa => self.ecdsa,
            JobKind::Ed25519 => self.ed25519,
            JobKind::X25519 => self.x25519,
            JobKind::Remote => true,
        }
    }
}

/// Limits of parked handshakes per core, by the kind of job that they wait for. A parked handshake takes some 34 KB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParkingLimits {
    /// Handshakes that wait for a batch on this core, which takes microseconds. Above the limit jobs are done on the
    /// spot.
    pub local: usize,
    /// Handshakes that wait for a remote signer, which takes a round trip. Above the limit handshakes fail with the
    /// reason `busy`.
    pub remote: usize,
}

impl Default for ParkingLimits {
    fn default() -> ParkingLimits {
        ParkingLimits { local: 256, remote: 8192 }
    }
}

/// One core's parked handshakes and their stacks, shared by all acceptors of the core.
pub struct Parking {
    pub(crate) stacks: Rc<Stacks>,
    limits: ParkingLimits,
    local: Cell<usize>,
    remote: Cell<usize>,
    /// Handshakes whose key exchange is not complete.
    pending_key_exchanges: Cell<usize>,
    counts: Cell<ParkingCounts>,
}

/// Counters since the parking was made, and gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParkingCounts {
    /// Gauge: handshakes parked for local jobs.
    pub local: usize,
    /// Gauge: handshakes parked for remote jobs.
    pub remote: usize,
    /// Handshakes parked, by kind of job, in the order of [`JobKind::ALL`].
    pub parked: [u64; JobKind::ALL.len()],
    /// Local jobs done on the spot since [`ParkingLimits::local`] was reached.
    pub done_on_the_spot: u64,
    /// Remote jobs refused since [`ParkingLimits::remote`] was reached.
    pub refused: u64,
    /// Handshakes dropped while they were parked.
    pub cancelled: u64,
    /// Handshakes ended by a panic, which was contained: defects.
    pub panics: u64,
    /// Gauge: stacks that have been opened; they are kept.
    pub stacks: usize,
    /// Gauge: opened stacks that are not in use.
    pub stacks_idle: usize,
    /// High-water mark of the stack use of all handshakes.
    pub stack_high_water_bytes: usize,
}

impl Parking {
    #[must_use]
    pub fn new(limits: ParkingLimits) -> Rc<Parking> {
        Rc::new(Parking {
            // One handshake may be running on top of those that are parked.
            stacks: Stacks::new(limits.local + limits.remote + 1),
            limits,
            local: Cell::new(0),
            remote: Cell::new(0),
            pending_key_exchanges: Cell::new(0),
            counts: Cell::default(),
        })
    }

    #[must_use]
    pub fn counts(&self) -> ParkingCounts {
        let (stacks, stacks_idle) = self.stacks.counts();
        ParkingCounts {
            local: self.local.get(),
            remote: self.remote.get(),
            stacks,
            stacks_idle,
            stack_high_water_bytes: self.stacks.high_water_bytes(),
            ..self.counts.get()
        }
    }

    /// Whether another handshake of the core may have a job for the same batch.
    fn has_company(&self) -> bool {
        self.local.get() > 0 || self.pending_key_exchanges.get() > 1
    }

    pub(crate) fn has_room(&self, kind: JobKind) -> bool {
        match kind {
            JobKind::Remote => self.remote.get() < self.limits.remote,
            _ => self.local.get() < self.limits.local,
        }
    }

    pub(crate) fn enter(&self, kind: JobKind) {
        let place = self.place(kind);
        place.set(place.get() + 1);
        self.count(|counts| counts.parked[kind as usize] += 1);
    }

    pub(crate) fn leave(&self, kind: JobKind) {
        let place = self.place(kind);
        place.set(place.get() - 1);
    }

    fn place(&self, kind: JobKind) -> &Cell<usize> {
        if kind == JobKind::Remote { &self.remote } else { &self.local }
    }

    pub(crate) fn count(&self, add: impl FnOnce(&mut ParkingCounts)) {
        let mut counts = self.counts.get();
        add(&mut counts);
        self.counts.set(counts);
    }
}

/// Rules by which a handshake's jobs are deferred, and where the handshake is parked meanwhile.
#[derive(Clone)]
pub(crate) struct JobRouting {
    pub deferral: Deferral,
    pub parking: Rc<Parking>,
    /// Some of the acceptor's keys are remote.
    pub remote: bool,
}

impl JobRouting {
    pub fn defers(&self, kind: JobKind) -> bool {
        self.deferral.defers(kind) && (kind == JobKind::Remote || self.may_defer_local())
    }

    fn may_defer_local(&self) -> bool {
        !self.deferral.in_company_only || self.parking.has_company()
    }

    /// Whether a job of this handshake may be deferred now.
    pub fn may_defer(&self) -> bool {
        self.remote || self.may_defer_local()
    }
}

/// Guard that counts a handshake whose key exchange is not complete, and with which others may share a batch.
pub(crate) struct PendingKeyExchange(Rc<Parking>);

impl PendingKeyExchange {
    pub fn new(parking: &Rc<Parking>) -> PendingKeyExchange {
        parking.pending_key_exchanges.set(parking.pending_key_exchanges.get() + 1);
        PendingKeyExchange(parking.clone())
    }
}

impl Drop for PendingKeyExchange {
    fn drop(&mut self) {
        self.0.pending_key_exchanges.set(self.0.pending_key_exchanges.get() - 1);
    }
}
