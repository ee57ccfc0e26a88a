//! Counters that differ by a label's value alone.

use propylon_http::fault::Fault;
use propylon_metrics::{Counter, Registry};
use propylon_tls::FailureReason;

use super::reasons::UNFINISHED_HANDSHAKES;

/// A counter per reason, where the reasons are a list known at start; what is not on it counts as "other".
pub struct ByReason {
    slots: Vec<(&'static str, Counter)>,
    other: Counter,
}

impl ByReason {
    pub(super) fn new(
        registry: &mut Registry,
        name: &str,
        help: &str,
        label: (&str, &str),
        reasons: &[&'static str],
    ) -> ByReason {
        let mut slot = |reason: &str| registry.counter(name, help, &[label, ("reason", reason)]);
        let slots = reasons.iter().map(|reason| (*reason, slot(reason))).collect();
        ByReason { slots, other: slot("other") }
    }

    /// A family that has no other label.
    pub(super) fn without_label(registry: &mut Registry, name: &str, help: &str, reasons: &[&'static str]) -> ByReason {
        let mut slot = |reason: &str| registry.counter(name, help, &[("reason", reason)]);
        let slots = reasons.iter().map(|reason| (*reason, slot(reason))).collect();
        ByReason { slots, other: slot("other") }
    }

    pub fn each(&self) -> impl Iterator<Item = (&'static str, Counter)> {
        self.slots.iter().copied().chain([("other", self.other)])
    }

    pub fn of(&self, reason: &str) -> Counter {
        self.slots.iter().find(|(known, _)| *known == reason).map_or(self.other, |(_, counter)| *counter)
    }
}

/// A counter for each fault of a set; any other counts as "other".
pub struct ByFault {
    /// Counters at the places of the faults' discriminants.
    counters: Vec<Counter>,
    other: Counter,
}

impl ByFault {
    pub(super) fn new(
        registry: &mut Registry,
        (name, help): (&str, &str),
        label: (&str, &str),
        is_member: impl Fn(Fault) -> bool,
    ) -> ByFault {
        let mut slot = |reason: &str| registry.counter(name, help, &[label, ("reason", reason)]);
        let other = slot("other");
        let each = |fault: &Fault| if is_member(*fault) { slot(fault.label()) } else { other };
        ByFault { counters: Fault::ALL.iter().map(each).collect(), other }
    }

    pub fn each(&self) -> impl Iterator<Item = (&'static str, Counter)> {
        let all = Fault::ALL.iter().map(|fault| fault.label()).zip(self.counters.iter().copied());
        all.filter(|(_, counter)| *counter != self.other).chain([("other", self.other)])
    }

    pub fn of(&self, fault: Fault) -> Counter {
        self.counters[fault as usize]
    }
}

/// A counter for each reason for which handshakes with clients fail, and for those that clients did not finish.
pub struct HandshakeFailures {
    /// Counters at the places of the reasons' discriminants.
    counters: Vec<Counter>,
    /// Handshakes in which the client closed the connection.
    pub closed: Counter,
    /// Handshakes that took longer than they may.
    pub timed_out: Counter,
}

impl HandshakeFailures {
    pub(super) fn new(registry: &mut Registry, (name, help): (&str, &str), label: (&str, &str)) -> HandshakeFailures {
        let mut slot = |reason: &str| registry.counter(name, help, &[label, ("reason", reason)]);
        let counters = FailureReason::ALL.iter().map(|reason| slot(reason.label())).collect();
        let [closed, timed_out] = UNFINISHED_HANDSHAKES.map(slot);
        HandshakeFailures { counters, closed, timed_out }
    }

    pub fn each(&self) -> impl Iterator<Item = (&'static str, Counter)> {
        let failed = FailureReason::ALL.iter().map(|reason| reason.label()).zip(self.counters.iter().copied());
        failed.chain(UNFINISHED_HANDSHAKES.into_iter().zip([self.closed, self.timed_out]))
    }

    pub fn of(&self, reason: FailureReason) -> Counter {
        self.counters[reason as usize]
    }
}
