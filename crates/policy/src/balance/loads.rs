//! Load of a backend's servers as the cores share it: each writes its own row, and may read those of the others
//! (`docs/decisions/0026-balancing.md`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Servers that there is room for from the first: so many can come without a new table.
const SPARE: usize = 8;

/// All cores' rows, with room for some servers more than there are.
#[derive(Debug)]
pub struct Loads {
    rows: Box<[Row]>,
}

/// On cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Row {
    /// Requests in flight at all servers.
    total: AtomicU32,
    /// Requests in flight, by server.
    servers: Box<[AtomicU32]>,
    /// Assumed latency by server, in microseconds, for readers outside; 0: nothing is known.
    latencies: Box<[AtomicU64]>,
}

/// The view of one core, who is the only one to write its row.
#[derive(Clone, Debug)]
pub struct CoreLoads {
    all: Arc<Loads>,
    core: usize,
}

impl Loads {
    pub fn new(servers: usize, cores: usize) -> Arc<Loads> {
        let servers = servers.next_multiple_of(SPARE);
        let row = |_| Row {
            total: AtomicU32::new(0),
            servers: (0..servers).map(|_| AtomicU32::new(0)).collect(),
            latencies: (0..servers).map(|_| AtomicU64::new(0)).collect(),
        };
        Arc::new(Loads { rows: (0..cores).map(row).collect() })
    }

    /// For a backend that has changed, with so many servers now: these, if there is room, so that what is in flight goes on
    /// being known; else new ones, which know of what begins from now on.
    pub fn succeeded_by(self: &Arc<Self>, servers: usize) -> Arc<Loads> {
        let room = self.rows.first().map_or(0, |row| row.servers.len());
        if servers <= room { Arc::clone(self) } else { Loads::new(servers, self.rows.len()) }
    }

    /// For one core, who alone may have it: for balancers that follow each other.
    pub fn for_core(self: &Arc<Self>, core: usize) -> CoreLoads {
        assert!(core < self.rows.len(), "there is no such core");
        CoreLoads { all: Arc::clone(self), core }
    }

    /// At one server, by all cores. What the others write is seen a little later.
    pub fn in_flight(&self, server: usize) -> u32 {
        self.rows.iter().map(|row| row.servers[server].load(Relaxed)).sum()
    }
}

impl Loads {
    /// A server's assumed latency by core, in microseconds; 0 where nothing is known.
    pub fn latencies_us(&self, server: usize) -> impl Iterator<Item = u64> {
        self.rows.iter().map(move |row| row.latencies[server].load(Relaxed))
    }
}

impl CoreLoads {
    pub fn in_flight(&self, server: usize) -> u32 {
        self.all.in_flight(server)
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

    pub(super) fn note_latency(&self, server: usize, latency_us: u64) {
        self.row().latencies[server].store(latency_us, Relaxed);
    }

    fn row(&self) -> &Row {
        &self.all.rows[self.core]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_core_writes_its_own_row_and_sees_all() {
        let all = Loads::new(3, 2);
        let (one, other) = (all.for_core(0), all.for_core(1));
        one.began(2);
        other.began(2);
        other.began(0);
        assert_eq!([0, 1, 2].map(|server| one.in_flight(server)), [1, 0, 2]);
        assert_eq!((one.total(), all.in_flight(2)), (3, 2));
        one.ended(2);
        assert_eq!((other.in_flight(2), other.total()), (1, 2));
        one.note_latency(1, 70);
        assert_eq!(all.latencies_us(1).collect::<Vec<_>>(), [70, 0]);
    }

    #[test]
    fn what_is_in_flight_is_known_to_those_who_follow_as_long_as_there_is_room() {
        let first = Loads::new(3, 1);
        first.for_core(0).began(2);
        let second = first.succeeded_by(SPARE);
        assert_eq!(second.in_flight(2), 1);
        second.for_core(0).began(SPARE - 1);
        first.for_core(0).ended(2);
        assert_eq!((second.in_flight(2), second.in_flight(SPARE - 1)), (0, 1));
        let third = second.succeeded_by(SPARE + 1);
        assert_eq!((third.in_flight(SPARE - 1), third.in_flight(SPARE)), (0, 0));
    }
}
