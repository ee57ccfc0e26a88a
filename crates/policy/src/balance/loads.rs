//! Load of a backend's servers as the cores share it: each writes its own row, and may read those of the others
//! (`docs/decisions/0026-balancing.md`).
//!
//! A server has a column of the table for as long as it is in any list that is in use, whatever its index there: what is
//! in flight by an earlier list counts in the later ones as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::predecessors::Predecessors;

use Ordering::Relaxed;

/// Columns come by so many: a few servers can be added without a new table.
const SPARE: usize = 8;

/// Loads of the servers of one list.
#[derive(Debug)]
pub struct Loads {
    table: Arc<Table>,
    /// Column by server.
    columns: Box<[usize]>,
}

/// All cores' rows, with room for some servers more than there are.
#[derive(Debug)]
struct Table {
    rows: Box<[Row]>,
    /// Count of [`Loads`] that have a column, by column.
    users: Box<[AtomicU32]>,
}

/// On cache lines of its own, with all that is in it.
#[derive(Debug)]
#[repr(align(128))]
struct Row {
    /// Requests in flight at all servers.
    total: AtomicU32,
    columns: Box<[Columns]>,
}

/// Some columns of a row. A pair of cache lines has one core's alone: the prefetcher fetches them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Columns {
    /// Requests in flight.
    in_flight: [AtomicU32; SPARE],
    /// Assumed latency in microseconds, for readers outside; 0: nothing is known.
    latencies: [AtomicU64; SPARE],
}

impl Row {
    fn in_flight(&self, column: usize) -> &AtomicU32 {
        &self.columns[column / SPARE].in_flight[column % SPARE]
    }

    fn latency(&self, column: usize) -> &AtomicU64 {
        &self.columns[column / SPARE].latencies[column % SPARE]
    }
}

/// The view of one core, who is the only one to write its row.
#[derive(Clone, Debug)]
pub struct CoreLoads {
    all: Arc<Loads>,
    core: usize,
}

impl Table {
    fn new(servers: usize, cores: usize) -> Table {
        let columns = servers.next_multiple_of(SPARE);
        let row =
            |_| Row { total: AtomicU32::new(0), columns: (0..columns / SPARE).map(|_| Columns::default()).collect() };
        Table { rows: (0..cores).map(row).collect(), users: (0..columns).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Takes a column that nobody has.
    fn take(&self, column: usize) -> bool {
        // Acquire: what the last user has written is not to come after what the next one reads.
        let taken = self.users[column].compare_exchange(0, 1, Ordering::Acquire, Relaxed).is_ok();
        if taken {
            self.rows.iter().for_each(|row| row.latency(column).store(0, Relaxed));
        }
        taken
    }
}

impl Loads {
    pub fn new(servers: usize, cores: usize) -> Arc<Loads> {
        let table = Table::new(servers, cores);
        let columns = (0..servers).filter(|column| table.take(*column)).collect();
        Arc::new(Loads { table: Arc::new(table), columns })
    }

    /// For a later list of the backend's servers: where there is room, these of the servers that stay, so that what is
    /// in flight goes on being known; else new ones, which know of what begins from now on.
    pub fn succeeded_by(&self, predecessors: &Predecessors) -> Arc<Loads> {
        let table = &self.table;
        let mut free = (0..table.users.len()).filter(|column| table.take(*column));
        let column = |server: usize| match predecessors.of(server) {
            Some(before) => {
                let column = self.columns[before];
                table.users[column].fetch_add(1, Relaxed);
                Some(column)
            }
            None => free.next(),
        };
        let servers = predecessors.servers();
        let columns = (0..servers).map_while(column).collect();
        let next = Loads { table: Arc::clone(table), columns };
        if next.columns.len() == servers { Arc::new(next) } else { Loads::new(servers, table.rows.len()) }
    }

    /// For one core, who alone may have it: for balancers that follow each other.
    pub fn for_core(self: &Arc<Self>, core: usize) -> CoreLoads {
        assert!(core < self.table.rows.len(), "there is no such core");
        CoreLoads { all: Arc::clone(self), core }
    }

    /// At one server, by all cores. What the others write is seen a little later.
    pub fn in_flight(&self, server: usize) -> u32 {
        let column = self.columns[server];
        self.table.rows.iter().map(|row| row.in_flight(column).load(Relaxed)).sum()
    }

    /// A server's assumed latency by core, in microseconds; 0 where nothing is known.
    pub fn latencies_us(&self, server: usize) -> impl Iterator<Item = u64> {
        let column = self.columns[server];
        self.table.rows.iter().map(move |row| row.latency(column).load(Relaxed))
    }
}

impl Drop for Loads {
    fn drop(&mut self) {
        for column in &self.columns {
            self.table.users[*column].fetch_sub(1, Ordering::Release);
        }
    }
}

impl CoreLoads {
    pub fn in_flight(&self, server: usize) -> u32 {
        self.all.in_flight(server)
    }

    /// At all servers, by all cores.
    pub fn total(&self) -> u64 {
        self.all.table.rows.iter().map(|row| u64::from(row.total.load(Relaxed))).sum()
    }

    pub(super) fn began(&self, server: usize) {
        let (row, in_flight) = self.own(server);
        row.total.store(row.total.load(Relaxed).saturating_add(1), Relaxed);
        in_flight.store(in_flight.load(Relaxed).saturating_add(1), Relaxed);
    }

    pub(super) fn ended(&self, server: usize) {
        let (row, in_flight) = self.own(server);
        debug_assert!(in_flight.load(Relaxed) > 0, "a request ended twice");
        row.total.store(row.total.load(Relaxed).saturating_sub(1), Relaxed);
        in_flight.store(in_flight.load(Relaxed).saturating_sub(1), Relaxed);
    }

    pub(super) fn note_latency(&self, server: usize, latency_us: u64) {
        self.row().latency(self.all.columns[server]).store(latency_us, Relaxed);
    }

    /// This core's row, and the count of requests in flight at a server in it.
    fn own(&self, server: usize) -> (&Row, &AtomicU32) {
        let row = self.row();
        (row, row.in_flight(self.all.columns[server]))
    }

    fn row(&self) -> &Row {
        &self.all.table.rows[self.core]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_cores_write_on_one_pair_of_lines() {
        let all = Loads::new(SPARE + 1, 4);
        let pair = |address: usize| address / 128;
        let written = |row: &Row| {
            let columns = (0..2 * SPARE).flat_map(|column| {
                [std::ptr::from_ref(row.in_flight(column)) as usize, std::ptr::from_ref(row.latency(column)) as usize]
            });
            let all = columns.chain([std::ptr::from_ref(&row.total) as usize]);
            all.map(pair).collect::<std::collections::BTreeSet<_>>()
        };
        let rows: Vec<_> = all.table.rows.iter().map(written).collect();
        let users = std::ptr::from_ref(&all.table.users[0]) as usize;
        for (core, row) in rows.iter().enumerate() {
            assert!(!row.contains(&pair(users)), "the main thread's");
            assert!(rows[..core].iter().all(|other| other.is_disjoint(row)), "core {core}");
        }
        assert_eq!(size_of::<Columns>(), 128, "{SPARE} columns fill a pair of lines and no more");
    }

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
        let second = first.succeeded_by(&Predecessors::by_identity(b"abcdefgh", b"abc"));
        assert_eq!(second.in_flight(2), 1);
        second.for_core(0).began(SPARE - 1);
        first.for_core(0).ended(2);
        assert_eq!((second.in_flight(2), second.in_flight(SPARE - 1)), (0, 1));
        let third = second.succeeded_by(&Predecessors::by_identity(b"abcdefghi", b"abcdefgh"));
        assert_eq!((third.in_flight(SPARE - 1), third.in_flight(SPARE)), (0, 0));
        let fourth = second.succeeded_by(&Predecessors::by_identity(b"hg", b"abcdefgh"));
        assert_eq!((fourth.in_flight(0), fourth.in_flight(1)), (1, 0), "what had no room has left nothing behind");
    }

    #[test]
    fn a_server_that_has_another_index_has_what_is_in_flight_by_both_lists() {
        let first = Loads::new(3, 1);
        let second = first.succeeded_by(&Predecessors::by_identity(b"cda", b"abc"));
        let (before, now) = (first.for_core(0), second.for_core(0));
        (0..3).for_each(|server| (0..=server).for_each(|_| before.began(server)));
        now.began(1);
        now.note_latency(0, 70);
        let seen = |loads: &CoreLoads| [0, 1, 2].map(|server| loads.in_flight(server));
        assert_eq!((seen(&before), seen(&now)), ([1, 2, 3], [3, 1, 1]));
        assert_eq!((now.total(), first.latencies_us(2).sum::<u64>()), (7, 70));
        (0..3).for_each(|server| (0..=server).for_each(|_| before.ended(server)));
        assert_eq!((seen(&before), seen(&now)), ([0, 0, 0], [0, 1, 0]));
    }

    #[test]
    fn a_column_is_anothers_once_no_list_has_its_server_and_says_nothing_of_that_one() {
        let mut lists = vec![Loads::new(SPARE, 1)];
        lists[0].for_core(0).note_latency(7, 70);
        let of = |loads: &Arc<Loads>, later: &[u8; SPARE], earlier: &[u8; SPARE]| {
            loads.succeeded_by(&Predecessors::by_identity(later, earlier))
        };
        let is_kin = |one: &Arc<Loads>, other: &Arc<Loads>| Arc::ptr_eq(&one.table, &other.table);
        let other = of(&lists[0], b"abcdefgi", b"abcdefgh");
        assert!(!is_kin(&other, &lists[0]), "the first list is in use");
        let fewer = lists[0].succeeded_by(&Predecessors::by_identity(b"gfedcba", b"abcdefgh"));
        let last = Arc::clone(&lists[0]);
        lists.clear();
        let next = |loads: &Arc<Loads>| loads.succeeded_by(&Predecessors::by_identity(b"iabcdefg", b"gfedcba"));
        assert!(!is_kin(&next(&fewer), &fewer), "and still is");
        drop(last);
        let later = next(&fewer);
        assert!(is_kin(&later, &fewer));
        assert_eq!((later.latencies_us(0).sum::<u64>(), later.in_flight(0)), (0, 0));
    }
}
