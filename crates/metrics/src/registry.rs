//! Families of metrics, their labels, and where each of them lives in a column.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::ops::Range;

use crate::store::SLOTS_PER_LINE;

/// A number that only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Counter {
    pub(crate) slot: u32,
}

/// A level that rises and falls. The columns are added up, so a core may lower what another core has raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gauge {
    pub(crate) slot: u32,
}

/// How often a value fell under each of some bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Histogram {
    pub(crate) index: u32,
}

/// The metrics of a process, in the order in which they will be shown.
///
/// Every method panics on a name, a label or bounds that are not valid, and on a metric that exists already: the
/// names are ours, so a bad one is our bug. Label values are free text and may come from a configuration.
#[derive(Debug, Default)]
pub struct Registry {
    pub(crate) families: Vec<Family>,
    /// Positions of families by their names.
    names: HashMap<String, usize>,
    pub(crate) scales: Vec<Scale>,
    pub(crate) slots: u32,
    /// The next slot and the next scale of a group that is given to other series.
    again: Option<(u32, u32)>,
}

/// Series that came together, and go together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    pub(crate) slots: Range<u32>,
    pub(crate) scales: Range<u32>,
}

/// All metrics of one name.
#[derive(Debug)]
pub(crate) struct Family {
    pub name: String,
    pub help: String,
    pub kind: Kind,
    /// Turns the unit of a gauge's levels into the one that is shown, where that is another.
    pub unit_scale: Option<f64>,
    pub members: Vec<Member>,
    /// Digests of the members' labels: one that is not here is new, without a look at every other.
    pub digests: HashSet<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Debug)]
pub(crate) struct Member {
    pub labels: Vec<(String, String)>,
    /// A slot for counters and gauges, an index into the scales for histograms.
    pub place: u32,
}

/// The bounds of one histogram and its slots: one per bound, one for what lies above, one for the sum.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scale {
    pub bounds: Box<[u64]>,
    pub unit_scale: f64,
    pub first_slot: u32,
}

impl Registry {
    pub fn new() -> Self {
        Self::default()
    }

    /// The same name with other labels extends the family; its help must be the same.
    pub fn counter(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) -> Counter {
        let slot = self.slots(1);
        self.register(name, help, Kind::Counter, labels, slot);
        Counter { slot }
    }

    /// As [`Registry::counter`].
    pub fn gauge(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) -> Gauge {
        let slot = self.slots(1);
        self.register(name, help, Kind::Gauge, labels, slot);
        Gauge { slot }
    }

    /// As [`Registry::gauge`], of levels in a unit that `unit_scale` turns into the one that is shown (1e-6 for
    /// microseconds shown as seconds). All members of a family have the same.
    pub fn scaled_gauge(&mut self, name: &str, help: &str, labels: &[(&str, &str)], unit_scale: f64) -> Gauge {
        assert!(unit_scale.is_finite() && unit_scale > 0.0, "gauge {name} has the unit scale {unit_scale}");
        let gauge = self.gauge(name, help, labels);
        if let Some(family) = self.names.get(name).map(|place| &mut self.families[*place]) {
            family.unit_scale = Some(unit_scale);
        }
        gauge
    }

    /// `bounds` are upper limits, inclusive and rising, in the unit in which values will be observed;
    /// `unit_scale` turns that unit into the one that is shown (1e-6 for microseconds shown as seconds).
    /// All members of a family have the same bounds, or their sum over labels would mean nothing.
    pub fn histogram(
        &mut self,
        name: &str,
        help: &str,
        labels: &[(&str, &str)],
        bounds: &[u64],
        unit_scale: f64,
    ) -> Histogram {
        assert!(!bounds.is_empty(), "histogram {name} has no bounds");
        assert!(bounds.is_sorted_by(|a, b| a < b), "the bounds of histogram {name} do not rise");
        assert!(unit_scale.is_finite() && unit_scale > 0.0, "histogram {name} has the unit scale {unit_scale}");
        if let Some(member) = self.family(name, Kind::Histogram).and_then(|family| family.members.first()) {
            let scale = &self.scales[member.place as usize];
            assert!(
                *scale.bounds == *bounds && scale.unit_scale == unit_scale,
                "histogram {name} has different bounds for different labels"
            );
        }
        assert!(labels.iter().all(|(key, _)| *key != "le"), "histogram {name}: the label le is the bound's");
        let index = match &mut self.again {
            Some((_, next)) => std::mem::replace(next, *next + 1),
            None => self.scales.len() as u32,
        };
        self.register(name, help, Kind::Histogram, labels, index);
        let first_slot = self.slots(bounds.len() as u32 + 2);
        let scale = Scale { bounds: bounds.into(), unit_scale, first_slot };
        match self.again {
            Some(_) => assert!(self.scales[index as usize] == scale, "histogram {name} does not fit its group"),
            None => self.scales.push(scale),
        }
        Histogram { index }
    }

    /// Registers what `describe` registers as a group.
    pub fn group<T>(&mut self, describe: impl FnOnce(&mut Registry) -> T) -> (T, Group) {
        let (slots, scales) = (self.slots, self.scales.len() as u32);
        let described = describe(self);
        (described, Group { slots: slots..self.slots, scales: scales..self.scales.len() as u32 })
    }

    /// Gives the places of a group that was withdrawn to other series, which must be of the same kinds in the same order.
    pub(crate) fn group_again<T>(&mut self, group: &Group, describe: impl FnOnce(&mut Registry) -> T) -> T {
        self.again = Some((group.slots.start, group.scales.start));
        let described = describe(self);
        let end = self.again.take();
        assert!(
            end == Some((group.slots.end, group.scales.end)),
            "other series than before were given the same places"
        );
        described
    }

    /// The groups' series are shown no more.
    pub(crate) fn withdraw(&mut self, groups: &[Group]) {
        let sorted = |of: fn(&Group) -> &Range<u32>| {
            let mut ranges: Vec<Range<u32>> = groups.iter().map(|group| of(group).clone()).collect();
            ranges.retain(|range| !range.is_empty());
            ranges.sort_unstable_by_key(|range| range.start);
            ranges
        };
        let (slots, scales) = (sorted(|group| &group.slots), sorted(|group| &group.scales));
        // No place is in two groups.
        let is_among = |ranges: &[Range<u32>], place: u32| {
            let after = ranges.partition_point(|range| range.start <= place);
            after > 0 && ranges[after - 1].contains(&place)
        };
        for family in &mut self.families {
            let places = if family.kind == Kind::Histogram { &scales } else { &slots };
            let digests = &mut family.digests;
            family.members.retain(|member| {
                let stays = !is_among(places, member.place);
                if !stays {
                    digests.remove(&digest(&member.labels));
                }
                stays
            });
        }
    }

    fn family(&self, name: &str, kind: Kind) -> Option<&Family> {
        self.names.get(name).map(|place| &self.families[*place]).filter(|family| family.kind == kind)
    }

    fn slots(&mut self, count: u32) -> u32 {
        let next = match &mut self.again {
            Some((next, _)) => next,
            None => &mut self.slots,
        };
        std::mem::replace(next, *next + count)
    }

    /// Has the next slot be the first of a line, and returns it.
    pub(crate) fn begin_line(&mut self) -> u32 {
        self.end_line();
        self.slots(0)
    }

    /// Leaves the rest of the line that the last slot is on to nobody.
    pub(crate) fn end_line(&mut self) {
        let line = SLOTS_PER_LINE as u32;
        let next = self.slots(0);
        self.slots(next.next_multiple_of(line) - next);
    }

    /// A counter that is written and never shown.
    pub(crate) fn hidden_counter(&mut self) -> Counter {
        Counter { slot: self.slots(1) }
    }

    fn register(&mut self, name: &str, help: &str, kind: Kind, labels: &[(&str, &str)], place: u32) {
        assert_names(name, labels);
        let member =
            Member { labels: labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(), place };
        if let Some(place) = self.names.get(name) {
            self.families[*place].extend(kind, help, member);
            return;
        }
        for family in &self.families {
            assert!(
                !writes_as(&family.name, family.kind, name) && !writes_as(name, kind, &family.name),
                "{name} would be confused with {}",
                family.name
            );
        }
        let digests = HashSet::from([digest(&member.labels)]);
        let members = vec![member];
        self.names.insert(name.to_owned(), self.families.len());
        let (name, help) = (name.to_owned(), help.to_owned());
        self.families.push(Family { name, help, kind, unit_scale: None, members, digests });
    }
}

impl Family {
    fn extend(&mut self, kind: Kind, help: &str, member: Member) {
        assert!(self.kind == kind, "{} is registered as a {:?} and as a {kind:?}", self.name, self.kind);
        assert!(self.help == help, "{} has two help texts", self.name);
        assert!(
            self.digests.insert(digest(&member.labels))
                || !self.members.iter().any(|other| same_labels(&other.labels, &member.labels)),
            "{} is registered twice with the labels {:?}",
            self.name,
            member.labels
        );
        self.members.push(member);
    }
}

/// Whether the output of `family` has lines that begin with `name`, although that is not its own name.
fn writes_as(family: &str, kind: Kind, name: &str) -> bool {
    kind == Kind::Histogram
        && name.strip_prefix(family).is_some_and(|rest| matches!(rest, "_bucket" | "_sum" | "_count"))
}

/// Names as the text format 0.0.4 allows them.
fn assert_names(name: &str, labels: &[(&str, &str)]) {
    assert!(is_name(name, true), "{name:?} is not a metric name: letters, digits, _ and : only");
    for (index, (key, _)) in labels.iter().enumerate() {
        assert!(is_name(key, false) && !key.starts_with("__"), "{name}: {key:?} is not a label name");
        assert!(labels[..index].iter().all(|(other, _)| other != key), "{name}: the label {key} is given twice");
    }
}

fn is_name(text: &str, colons: bool) -> bool {
    !text.is_empty()
        && !text.starts_with(|first: char| first.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || (colons && byte == b':'))
}

/// The same for the same labels, in whichever order. Labels are our own operator's: nobody gains by a collision, which costs a look.
fn digest(labels: &[(String, String)]) -> u64 {
    let one = |label: &(String, String)| BuildHasherDefault::<DefaultHasher>::default().hash_one(label);
    labels.iter().map(one).fold(0, u64::wrapping_add)
}

/// Labels are a set; their order is only how they are shown.
fn same_labels(a: &[(String, String)], b: &[(String, String)]) -> bool {
    a.len() == b.len() && a.iter().all(|label| b.contains(label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_name_with_other_labels_extends_the_family() {
        let mut registry = Registry::new();
        let web = registry.counter("requests_total", "Requests.", &[("listener", "web")]);
        let api = registry.counter("requests_total", "Requests.", &[("listener", "api")]);
        assert_ne!(web, api);
        assert_eq!(registry.families.len(), 1);
    }

    #[test]
    #[should_panic(expected = "requests_total is registered twice")]
    fn the_same_metric_twice_is_our_bug() {
        let mut registry = Registry::new();
        registry.counter("requests_total", "Requests.", &[("a", "1"), ("b", "2")]);
        registry.counter("requests_total", "Requests.", &[("b", "2"), ("a", "1")]);
    }

    #[test]
    #[should_panic(expected = "is registered as a Counter and as a Gauge")]
    fn a_family_is_of_one_kind() {
        let mut registry = Registry::new();
        registry.counter("requests", "Requests.", &[]);
        registry.gauge("requests", "Requests.", &[("a", "1")]);
    }

    #[test]
    #[should_panic(expected = "is not a metric name")]
    fn a_name_with_a_hyphen_is_our_bug() {
        Registry::new().counter("requests-total", "Requests.", &[]);
    }

    #[test]
    #[should_panic(expected = "is not a label name")]
    fn a_label_of_the_reserved_kind_is_our_bug() {
        Registry::new().counter("requests_total", "Requests.", &[("__name__", "x")]);
    }

    #[test]
    #[should_panic(expected = "do not rise")]
    fn bounds_that_do_not_rise_are_our_bug() {
        Registry::new().histogram("seconds", "Time.", &[], &[10, 10], 1.0);
    }

    #[test]
    #[should_panic(expected = "has different bounds")]
    fn a_family_of_histograms_has_one_set_of_bounds() {
        let mut registry = Registry::new();
        registry.histogram("seconds", "Time.", &[("a", "1")], &[1, 2], 1.0);
        registry.histogram("seconds", "Time.", &[("a", "2")], &[1, 3], 1.0);
    }

    #[test]
    #[should_panic(expected = "would be confused with seconds")]
    fn a_counter_cannot_stand_where_a_histogram_writes_its_sum() {
        let mut registry = Registry::new();
        registry.histogram("seconds", "Time.", &[], &[1], 1.0);
        registry.counter("seconds_sum", "Time.", &[]);
    }
}
