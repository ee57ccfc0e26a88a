//! How many requests are in flight at each server of a backend: each core writes its own row, and may read those of the
//! others (`docs/decisions/0026-balancing.md`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// All cores' rows.
#[derive(Debug)]
pub struct InFlight {
    rows: Box<[Row]>,
}

/// On cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Row {
    total: AtomicU32,
    servers: Box<[AtomicU32]>,
}

/// The view of one core, who is the only one to write its row.
#[derive(Clone, Debug)]
pub struct CoreInFlight {
    all: Arc<InFlight>,
    core: usize,
}

impl InFlight {
    pub fn new(servers: usize, cores: usize) -> Arc<InFlight> {
        let row = |_| Row { total: AtomicU32::new(0), servers: (0..servers).map(|_| AtomicU32::new(0)).collect() };
        Arc::new(InFlight { rows: (0..cores).map(row).collect() })
    }

    /// For one core; each may be asked for once.
    pub fn for_core(self: &Arc<Self>, core: usize) -> CoreInFlight {
        assert!(core < self.rows.len(), "there is no such core");
        CoreInFlight { all: Arc::clone(self), core }
    }

    /// At one server, by all cores. What the others write is seen a little later.
    pub fn of(&self, server: usize) -> u32 {
        self.rows.iter().map(|row| row.servers[server].load(Relaxed)).sum()
    }
}

impl CoreInFlight {
    pub fn of(&self, server: usize) -> u32 {
        self.all.of(server)
    }

    /// At all servers, by all cores.
    pub fn total(&self) -> u64 {
        self.all.rows.iter().map(|row| u64::from(row.total.load(Relaxed))).sum()
    }

    pub(super) fn began(&self, server: usize) {
        let row = self.row();
        // One writer: a load and a store are enough.
        row.total.store(row.total.load(Relaxed).saturating_add(1), Relaxed);
        row.servers[server].store(row.servers[server].load(Relaxed).saturating_add(1), Relaxed);
    }

    pub(super) fn ended(&self, server: usize) {
        let row = self.row();
        debug_assert!(row.servers[server].load(Relaxed) > 0, "a request ended twice");
        row.total.store(row.total.load(Relaxed).saturating_sub(1), Relaxed);
        row.servers[server].store(row.servers[server].load(Relaxed).saturating_sub(1), Relaxed);
    }

    fn row(&self) -> &Row {
        &self.all.rows[self.core]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_core_writes_its_own_row_and_sees_the_sum() {
        let all = InFlight::new(3, 2);
        let (one, other) = (all.for_core(0), all.for_core(1));
        one.began(2);
        other.began(2);
        other.began(0);
        assert_eq!([0, 1, 2].map(|server| one.of(server)), [1, 0, 2]);
        assert_eq!((one.total(), all.of(2)), (3, 2));
        one.ended(2);
        assert_eq!((other.of(2), other.total()), (1, 2));
    }
}
