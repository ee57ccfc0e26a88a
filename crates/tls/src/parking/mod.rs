//! Which work of a handshake is set aside for somebody else to do, and how much of it at once.

#[allow(unsafe_code, reason = "stacks and switching between them")]
pub(crate) mod fiber;

use std::cell::Cell;
use std::rc::Rc;

use propylon_crypto::JobKind;

use fiber::Stacks;

/// The kinds of work that an acceptor's handshakes set aside. What a remote key does always is: there is no other way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deferral {
    pub rsa: bool,
    pub ecdsa: bool,
    pub ed25519: bool,
    pub x25519: bool,
    /// Local work is set aside only while other handshakes of the core may soon have such work too: one that is alone
    /// could wait for nobody, and does its work faster on the spot.
    pub in_company_only: bool,
}

impl Deferral {
    pub const ALL: Deferral = Deferral { rsa: true, ecdsa: true, ed25519: true, x25519: true, in_company_only: false };

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

/// How many handshakes a core may have parked at once, by what they wait for. A parked handshake holds some 34 KB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParkingLimits {
    /// For a batch on this core, which takes microseconds. Beyond it the work is done on the spot.
    pub local: usize,
    /// For a signer elsewhere, which takes a round trip. Beyond it handshakes fail with the reason `busy`.
    pub remote: usize,
}

impl Default for ParkingLimits {
    fn default() -> ParkingLimits {
        ParkingLimits { local: 256, remote: 8192 }
    }
}

/// One core's room for handshakes that are set aside; all acceptors of a core share it.
pub struct Parking {
    pub(crate) stacks: Rc<Stacks>,
    limits: ParkingLimits,
    local: Cell<usize>,
    remote: Cell<usize>,
    /// Handshakes whose keys are not agreed on.
    pending_key_exchanges: Cell<usize>,
    counts: Cell<ParkingCounts>,
}

/// Since the parking was made, unless it says now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParkingCounts {
    /// Now.
    pub local: usize,
    /// Now.
    pub remote: usize,
    /// Suspensions by kind of work, in the order of [`JobKind::ALL`].
    pub parked: [u64; JobKind::ALL.len()],
    /// Local work that was done on the spot because there was no room.
    pub done_on_the_spot: u64,
    /// Remote work that was refused because there was no room.
    pub refused: u64,
    /// Handshakes that were dropped while they were parked.
    pub cancelled: u64,
    /// Handshakes that ended by a panic, contained: defects.
    pub panics: u64,
    /// Stacks that have been opened. They are kept.
    pub stacks: usize,
    /// Those among them that nobody uses now.
    pub stacks_idle: usize,
    /// The most that any handshake has used of its stack.
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

    /// Whether there is anybody beside the handshake whose turn it is whose work could be done together with its own.
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

/// What an acceptor gives to its handshakes.
#[derive(Clone)]
pub(crate) struct JobRouting {
    pub deferral: Deferral,
    pub parking: Rc<Parking>,
    /// Some of the acceptor's keys are elsewhere.
    pub remote: bool,
}

impl JobRouting {
    pub fn defers(&self, kind: JobKind) -> bool {
        self.deferral.defers(kind) && (kind == JobKind::Remote || self.may_defer_local())
    }

    fn may_defer_local(&self) -> bool {
        !self.deferral.in_company_only || self.parking.has_company()
    }

    /// Whether a handshake that runs now could come to be set aside.
    pub fn may_defer(&self) -> bool {
        self.remote || self.may_defer_local()
    }
}

/// A handshake whose keys are not agreed on, so that others may count on its company.
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
