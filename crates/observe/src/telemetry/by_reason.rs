//! Counters that differ by a label's value alone.

use propylon_http::fault::Fault;
use propylon_metrics::{Counter, Registry};

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
