//! Storage of the numbers: one column of atomics per writer.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::growing::Growing;
use crate::registry::{Counter, Gauge, Group, Histogram, Kind, Registry, Scale};

/// The columns of all writers, and what their slots mean. Read by anybody, written through [`Column`].
///
/// Series may come and go while others are written: what a writer looks at never moves and takes no lock.
pub struct Store {
    /// Meaning of the slots: for whoever shows them, and for whoever brings new ones.
    registry: Mutex<Registry>,
    scales: Growing<Scale>,
    columns: Box<[Arc<Growing<Line>>]>,
}

/// The writer of one column.
///
/// A column may be moved to the thread that will write, and cloned there; it cannot be shared by two. An increment is a
/// load and a store, so two threads writing the same column would lose counts (nothing worse): one column per
/// thread is the caller's promise.
///
/// ```compile_fail,E0277
/// fn shared<T: Sync>() {}
/// shared::<propylon_metrics::Column>();
/// ```
#[derive(Clone)]
pub struct Column {
    store: Arc<Store>,
    column: usize,
    /// The column itself: what is written with each request is found by one look less.
    lines: Arc<Growing<Line>>,
    /// Takes `Sync` away.
    _one_thread: PhantomData<Cell<()>>,
}

/// Observations of a histogram, in the units in which they were made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    /// Upper bound and count of each bucket, not cumulative. The last bucket, of what lies above all bounds, has none.
    pub buckets: Vec<(Option<u64>, u64)>,
    pub count: u64,
    pub sum: u64,
}

pub(crate) const SLOTS_PER_LINE: usize = 16;

/// Two cache lines, because the prefetcher fetches them in pairs: a core's writes never slow down its neighbour's.
#[repr(align(128))]
#[derive(Default)]
struct Line([AtomicU64; SLOTS_PER_LINE]);

impl Registry {
    /// One column per writer: the workers, and the main thread.
    pub fn build(self, columns: usize) -> Arc<Store> {
        Arc::new(Store::new(self, columns))
    }
}

impl Column {
    pub fn increment(&self, counter: Counter) {
        self.add(counter, 1);
    }

    pub fn add(&self, counter: Counter, amount: u64) {
        self.bump(counter.slot, amount);
    }

    pub fn raise(&self, gauge: Gauge) {
        self.bump(gauge.slot, 1);
    }

    pub fn lower(&self, gauge: Gauge) {
        self.bump(gauge.slot, -1_i64 as u64);
    }

    /// Adds to this column's share, or takes from it.
    pub fn shift(&self, gauge: Gauge, change: i64) {
        self.bump(gauge.slot, change as u64);
    }

    /// Sets this column's share; what other columns hold is added to it.
    pub fn set(&self, gauge: Gauge, level: i64) {
        self.slot(gauge.slot).store(level as u64, Ordering::Relaxed);
    }

    /// `value` is in the unit of the histogram's bounds.
    pub fn observe(&self, histogram: Histogram, value: u64) {
        self.observe_many(histogram, value, 1);
    }

    /// The same value so many times.
    pub fn observe_many(&self, histogram: Histogram, value: u64, times: u64) {
        let scale = &self.store.scales[histogram.index as usize];
        let bucket = scale.bounds.partition_point(|bound| *bound < value) as u32;
        self.bump(scale.first_slot + bucket, times);
        self.bump(scale.sum_slot(), value * times);
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Which column of the store this is.
    pub fn index(&self) -> usize {
        self.column
    }

    fn bump(&self, slot: u32, amount: u64) {
        let slot = self.slot(slot);
        // Not fetch_add: the only writer is here, and a locked instruction costs twenty times a plain one.
        slot.store(slot.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    fn slot(&self, slot: u32) -> &AtomicU64 {
        slot_of(&self.lines, slot)
    }

    /// Two lines of the column, one after the other.
    #[inline]
    pub(crate) fn two_lines(&self, first: usize) -> [&[AtomicU64; SLOTS_PER_LINE]; 2] {
        [&self.lines[first].0, &self.lines[first + 1].0]
    }
}

impl fmt::Debug for Column {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Column").field("column", &self.column).finish_non_exhaustive()
    }
}

impl Store {
    pub(crate) fn new(registry: Registry, columns: usize) -> Self {
        assert!(columns > 0, "a store without columns has no writer");
        let lines = (registry.slots as usize).div_ceil(SLOTS_PER_LINE);
        let column = || Arc::new((0..lines).map(|_| Line::default()).collect());
        Self {
            scales: registry.scales.iter().cloned().collect(),
            registry: Mutex::new(registry),
            columns: std::iter::repeat_with(column).take(columns).collect(),
        }
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings new series, which may be written at once.
    pub fn register<T>(&self, describe: impl FnOnce(&mut Registry) -> T) -> (T, Group) {
        let mut registry = self.registry();
        let registered = registry.group(describe);
        for scale in &registry.scales[self.scales.len()..] {
            self.scales.push(scale.clone());
        }
        let lines = (registry.slots as usize).div_ceil(SLOTS_PER_LINE);
        for column in &self.columns {
            for _ in column.len()..lines {
                column.push(Line::default());
            }
        }
        registered
    }

    /// The groups' series are shown no more. Whoever still writes them does no harm. It is one look at all series there are,
    /// however many the groups.
    pub fn withdraw(&self, groups: &[Group]) {
        if !groups.is_empty() {
            self.registry().withdraw(groups);
        }
    }

    /// Gives the places of a group that was withdrawn to other series of the same kinds in the same order, from 0 on. Nobody may
    /// write the old ones any more, or they would be counted among the new.
    pub fn register_again<T>(&self, group: &Group, describe: impl FnOnce(&mut Registry) -> T) -> T {
        let mut registry = self.registry();
        for column in 0..self.columns.len() {
            group.slots.clone().for_each(|slot| self.slot(column, slot).store(0, Ordering::Relaxed));
        }
        registry.group_again(group, describe)
    }

    /// The writer of column `index`. Panics if there is no such column.
    pub fn column(store: &Arc<Self>, index: usize) -> Column {
        assert!(index < store.columns.len(), "column {index} of {}", store.columns.len());
        let lines = Arc::clone(&store.columns[index]);
        Column { store: Arc::clone(store), column: index, lines, _one_thread: PhantomData }
    }

    /// How many columns there are.
    pub fn columns(&self) -> usize {
        self.columns.len()
    }

    pub fn count(&self, counter: Counter) -> u64 {
        self.sum(counter.slot)
    }

    pub fn count_in(&self, column: usize, counter: Counter) -> u64 {
        self.load(column, counter.slot)
    }

    pub fn level(&self, gauge: Gauge) -> i64 {
        self.sum(gauge.slot) as i64
    }

    pub fn level_in(&self, column: usize, gauge: Gauge) -> i64 {
        self.load(column, gauge.slot) as i64
    }

    pub fn distribution(&self, histogram: Histogram) -> Distribution {
        self.scale_distribution(&self.scales[histogram.index as usize])
    }

    /// How many values each bucket of a histogram has seen, the one above all bounds last.
    pub fn counts(&self, histogram: Histogram) -> Vec<u64> {
        self.distribution(histogram).buckets.into_iter().map(|(_, count)| count).collect()
    }

    /// Visits the series of a family of counters or gauges: a number that is the series' own for as long as it is shown, its
    /// labels, and what it stands at over all columns. A family that is not there has none.
    pub fn each_series(&self, name: &str, mut visit: impl FnMut(u32, &[(String, String)], i64)) {
        let registry = self.registry();
        let family = registry.families.iter().find(|family| family.name == name && family.kind != Kind::Histogram);
        for member in family.into_iter().flat_map(|family| &family.members) {
            visit(member.place, &member.labels, self.sum(member.place) as i64);
        }
    }

    /// How many values each bucket of a family of histograms has seen, over all of its series, the one above all bounds
    /// last. A family that is not there has no buckets.
    pub fn family_counts(&self, name: &str) -> Vec<u64> {
        let registry = self.registry();
        let mut counts = Vec::new();
        for scale in histograms(&registry, name).map(|index| &self.scales[index]) {
            counts.resize(scale.bounds.len() + 1, 0u64);
            for (count, slot) in counts.iter_mut().zip(scale.first_slot..) {
                *count += self.sum(slot);
            }
        }
        counts
    }

    /// The bounds of a family of histograms, in the unit that is shown.
    pub fn family_bounds(&self, name: &str) -> Vec<f64> {
        let first = histograms(&self.registry(), name).next();
        let shown = |index: usize| {
            let scale = &self.scales[index];
            scale.bounds.iter().map(|bound| *bound as f64 * scale.unit_scale).collect()
        };
        first.map_or_else(Vec::new, shown)
    }

    pub(crate) fn scale_distribution(&self, scale: &Scale) -> Distribution {
        let bounds = scale.bounds.iter().map(|bound| Some(*bound)).chain([None]);
        let buckets: Vec<_> = bounds.zip(scale.first_slot..).map(|(bound, slot)| (bound, self.sum(slot))).collect();
        // Counted from the buckets: a count of its own could be read between two writes and contradict them.
        let count = buckets.iter().map(|(_, count)| count).sum();
        Distribution { buckets, count, sum: self.sum(scale.sum_slot()) }
    }

    /// The sum over all columns. It wraps, which is what makes it right for gauges.
    pub(crate) fn sum(&self, slot: u32) -> u64 {
        (0..self.columns.len()).map(|column| self.load(column, slot)).fold(0, u64::wrapping_add)
    }

    pub(crate) fn load(&self, column: usize, slot: u32) -> u64 {
        self.slot(column, slot).load(Ordering::Relaxed)
    }

    fn slot(&self, column: usize, slot: u32) -> &AtomicU64 {
        slot_of(&self.columns[column], slot)
    }
}

/// Places of a family's histograms among the scales.
fn histograms<'a>(registry: &'a Registry, name: &str) -> impl Iterator<Item = usize> + use<'a> {
    let family = registry.families.iter().find(|family| family.name == name && family.kind == Kind::Histogram);
    family.into_iter().flat_map(|family| &family.members).map(|member| member.place as usize)
}

#[inline]
fn slot_of(column: &Growing<Line>, slot: u32) -> &AtomicU64 {
    let slot = slot as usize;
    &column[slot / SLOTS_PER_LINE].0[slot % SLOTS_PER_LINE]
}

impl fmt::Debug for Store {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Store").field("columns", &self.columns.len()).finish_non_exhaustive()
    }
}

impl Scale {
    fn sum_slot(&self) -> u32 {
        self.first_slot + self.bounds.len() as u32 + 1
    }

    /// A raw value in the unit that is shown.
    pub(crate) fn shown(&self, raw: u64) -> f64 {
        scaled(raw as f64, self.unit_scale)
    }
}

/// A value in the unit in which it is shown.
pub(crate) fn scaled(raw: f64, unit_scale: f64) -> f64 {
    let parts = (1.0 / unit_scale).round();
    // 3 * 1e-6 is not 0.000003, but 3 / 1e6 is: division by a whole number gives the nearest double.
    if parts > 1.0 && (parts * unit_scale - 1.0).abs() < 1e-9 { raw / parts } else { raw * unit_scale }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn no_two_columns_are_on_one_pair_of_cache_lines_whenever_their_series_came() {
        let mut registry = Registry::new();
        registry.counter("requests_total", "Requests.", &[]);
        let store = registry.build(3);
        for index in 0..100 {
            let label = index.to_string();
            store.register(|r| r.counter("refused_total", "Refused.", &[("listener", &label)]));
        }
        let slots = store.registry().slots;
        let pairs = |column: usize| {
            let address = |slot| std::ptr::from_ref(store.slot(column, slot)) as usize / 128;
            (0..slots).map(address).collect::<std::collections::BTreeSet<_>>()
        };
        let pairs: Vec<_> = (0..3).map(pairs).collect();
        assert!(
            pairs[0].len() >= 7
                && (1..3).all(|column| pairs[..column].iter().all(|one| one.is_disjoint(&pairs[column])))
        );
    }

    #[test]
    fn every_writer_counts_for_itself_and_the_reader_adds_up() {
        let mut registry = Registry::new();
        let requests = registry.counter("requests_total", "Requests.", &[]);
        let open = registry.gauge("open", "Open.", &[]);
        let store = registry.build(4);
        thread::scope(|scope| {
            for index in 0..4 {
                let column = Store::column(&store, index);
                scope.spawn(move || {
                    for _ in 0..1_000 * (index + 1) {
                        column.increment(requests);
                        column.raise(open);
                    }
                });
            }
        });
        assert_eq!(store.count(requests), 10_000);
        assert_eq!(store.count_in(2, requests), 3_000);
        assert_eq!(store.level(open), 10_000);
    }

    #[test]
    fn the_series_of_a_family_are_visited_with_their_labels_and_sums() {
        let mut registry = Registry::new();
        let [a, b] = ["a", "b"].map(|name| registry.counter("refused_total", "Refused.", &[("listener", name)]));
        let waits = registry.histogram("waits", "Waits.", &[], &[1], 1.0);
        let store = registry.build(2);
        (0..2).for_each(|column| Store::column(&store, column).add(b, 3));
        Store::column(&store, 0).observe(waits, 1);
        let mut seen = Vec::new();
        store.each_series("refused_total", |_, labels, value| seen.push((labels[0].1.clone(), value)));
        assert_eq!(seen, [("a".to_owned(), 0), ("b".to_owned(), 6)]);
        ["waits", "none"].iter().for_each(|name| store.each_series(name, |_, _, _| panic!("{name}")));
        assert_ne!(a, b);
    }

    #[test]
    fn one_core_may_lower_what_another_has_raised() {
        let mut registry = Registry::new();
        let open = registry.gauge("open", "Open.", &[]);
        let store = registry.build(2);
        let (a, b) = (Store::column(&store, 0), Store::column(&store, 1));
        a.raise(open);
        a.raise(open);
        b.lower(open);
        assert_eq!((store.level(open), store.level_in(1, open)), (1, -1));
        b.set(open, -7);
        assert_eq!(store.level(open), -5);
    }

    #[test]
    fn a_value_on_a_bound_belongs_to_the_bucket_below_it() {
        let mut registry = Registry::new();
        let sizes = registry.histogram("bytes", "Sizes.", &[], &[10, 100], 1.0);
        let after = registry.counter("after_total", "A neighbour.", &[]);
        let store = registry.build(2);
        let (a, b) = (Store::column(&store, 0), Store::column(&store, 1));
        for value in [0, 10, 11, 100] {
            a.observe(sizes, value);
        }
        b.observe(sizes, 101);
        assert_eq!(
            store.distribution(sizes),
            Distribution { buckets: vec![(Some(10), 2), (Some(100), 2), (None, 1)], count: 5, sum: 222 }
        );
        assert_eq!(store.count(after), 0);
    }

    #[test]
    fn series_that_come_later_are_counted_as_the_others_are() {
        let mut registry = Registry::new();
        let first = registry.counter("requests_total", "Requests.", &[("server", "a")]);
        let store = registry.build(2);
        let column = Store::column(&store, 1);
        column.increment(first);
        let mut groups = Vec::new();
        for name in 0..100 {
            let name = name.to_string();
            let ((requests, sizes), group) = store.register(|r| {
                let by = &[("server", name.as_str())];
                let requests = r.counter("requests_total", "Requests.", by);
                (requests, r.histogram("bytes", "Sizes.", by, &[10, 20, 30], 1.0))
            });
            column.add(requests, 7);
            column.observe(sizes, 15);
            assert_eq!((store.count(requests), store.distribution(sizes).sum), (7, 15));
            groups.push(group);
        }
        assert_eq!(store.count(first), 1);
        assert!(store.prometheus().contains("requests_total{server=\"99\"} 7\n"));
        store.withdraw(&groups);
        assert_eq!(store.prometheus().lines().count(), 3, "the family that is left, and its one member");
    }

    #[test]
    fn places_that_are_given_to_others_begin_at_nothing() {
        let describe = |r: &mut Registry, name: &str| {
            let by = &[("server", name)];
            (r.gauge("open", "Open.", by), r.histogram("bytes", "Sizes.", by, &[10], 1.0))
        };
        let store = Registry::new().build(1);
        let column = Store::column(&store, 0);
        let ((open, sizes), group) = store.register(|r| describe(r, "a"));
        let (_, other) = store.register(|r| describe(r, "b"));
        column.raise(open);
        column.observe(sizes, 3);
        store.withdraw(std::slice::from_ref(&group));
        let again = store.register_again(&group, |r| describe(r, "c"));
        assert_eq!(again, (open, sizes));
        assert_eq!((store.level(open), store.distribution(sizes).count), (0, 0));
        let shown = store.prometheus();
        assert!(shown.contains("open{server=\"c\"} 0\n") && !shown.contains("\"a\""), "{shown}");
        assert_ne!(group, other);
    }

    #[test]
    #[should_panic(expected = "the same places")]
    fn places_are_given_to_series_of_the_same_kinds_only() {
        let store = Registry::new().build(1);
        let (_, group) = store.register(|r| r.gauge("open", "Open.", &[("a", "1")]));
        store.register_again(&group, |_| ());
    }

    #[test]
    fn columns_share_no_cache_line() {
        assert_eq!((size_of::<Line>(), align_of::<Line>()), (128, 128));
    }
}
