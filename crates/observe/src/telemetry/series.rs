//! Series of what comes and goes with configurations: listeners, backends, servers, signers.

use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use propylon_metrics::{Group, Registry, Store};

/// Metrics of one kind by their label. Whoever counts holds the metrics; series that nobody holds and no configuration
/// in effect has are shown no more, and their slots go to others.
pub struct SeriesTable<T> {
    inner: Mutex<Inner<T>>,
}

struct Inner<T> {
    entries: HashMap<String, Entry<T>>,
    /// Groups of slots whose series are shown no more.
    spare: Vec<Group>,
}

struct Entry<T> {
    metrics: Arc<T>,
    group: Group,
    /// The configuration in effect has it.
    is_configured: bool,
}

/// The label of what is within something: a server's, by its backend or signer.
pub fn within(outer: &str, inner: &str) -> String {
    // No name has a line break in it.
    format!("{outer}\n{inner}")
}

/// The place in which series are registered: those of the first configuration come before the store is built, since its
/// slots lie in one piece.
pub(super) enum Registrar<'a> {
    First(&'a mut Registry),
    Later(&'a Store),
}

impl Registrar<'_> {
    /// Registers what `describe` does, in the slots of `spare` if there are any.
    fn register<T>(&mut self, spare: Option<Group>, describe: impl FnOnce(&mut Registry) -> T) -> (T, Group) {
        match (self, spare) {
            (Registrar::First(registry), _) => registry.group(describe),
            (Registrar::Later(store), Some(group)) => (store.register_again(&group, describe), group),
            (Registrar::Later(store), None) => store.register(describe),
        }
    }
}

impl<T> Default for SeriesTable<T> {
    fn default() -> SeriesTable<T> {
        SeriesTable { inner: Mutex::new(Inner { entries: HashMap::new(), spare: Vec::new() }) }
    }
}

impl<T> SeriesTable<T> {
    /// The metrics with this label, if they are shown.
    pub fn get(&self, label: &str) -> Option<Arc<T>> {
        self.inner().entries.get(label).map(|entry| Arc::clone(&entry.metrics))
    }

    /// All that are shown.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.inner().entries.values().map(|entry| Arc::clone(&entry.metrics)).collect()
    }

    /// Begins with another configuration: what it has is to be named by [`SeriesTable::show`].
    pub(super) fn reload(&self) {
        self.inner().entries.values_mut().for_each(|entry| entry.is_configured = false);
    }

    /// Has the series with this label shown: those that are, or new ones from 0 on. `describe` registers the same kinds
    /// in the same order for every label.
    pub(super) fn show(&self, registrar: &mut Registrar<'_>, label: &str, describe: impl FnOnce(&mut Registry) -> T) {
        let inner = &mut *self.inner();
        if let Some(entry) = inner.entries.get_mut(label) {
            entry.is_configured = true;
            return;
        }
        let (metrics, group) = registrar.register(inner.spare.pop(), describe);
        let entry = Entry { metrics: Arc::new(metrics), group, is_configured: true };
        inner.entries.insert(label.to_owned(), entry);
    }

    /// Takes out what nobody holds and the configuration in effect has not; the series of these groups are to be
    /// withdrawn. Whoever holds metrics has had them from here, so that none can be had while this looks.
    pub(super) fn sweep(&self, withdrawn: &mut Vec<Group>) {
        let Inner { entries, spare } = &mut *self.inner();
        let is_unused = |entry: &Entry<T>| !entry.is_configured && Arc::strong_count(&entry.metrics) == 1;
        let unused: Vec<Entry<T>> = entries.extract_if(|_, entry| is_unused(entry)).map(|(_, entry)| entry).collect();
        // The last writes of whoever held them come before their slots are cleared for others.
        fence(Ordering::Acquire);
        for entry in unused {
            withdrawn.push(entry.group.clone());
            spare.push(entry.group);
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_stay_while_somebody_counts_and_their_slots_go_to_others_then() {
        let store = Registry::new().build(1);
        let column = Store::column(&store, 0);
        let table = SeriesTable::default();
        let show = |label: &str| {
            table.show(&mut Registrar::Later(&store), label, |r| r.gauge("open", "Open.", &[("at", label)]));
        };
        let sweep = || {
            let mut groups = Vec::new();
            table.sweep(&mut groups);
            store.withdraw(&groups);
        };
        show("a");
        let held = table.get("a").expect("it is shown");
        column.raise(*held);
        table.reload();
        show("b");
        sweep();
        assert!(store.prometheus().contains("open{at=\"a\"} 1\n"), "it is held");
        // One that comes back goes on.
        show("a");
        assert_eq!(store.level(*table.get("a").expect("it is shown")), 1);
        table.reload();
        drop(held);
        sweep();
        assert!(!store.prometheus().contains("open{"), "neither is held nor configured");
        assert!(table.get("a").is_none());
        show("c");
        show("a");
        assert!(store.prometheus().contains("open{at=\"a\"} 0\n"), "{}", store.prometheus());
        assert_eq!(table.all().len(), 2);
    }
}
