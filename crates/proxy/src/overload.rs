//! Measures against a shortage of memory or files: the main thread measures and decides, each core gives up its part.
//!
//! Memory: `propylon_policy::memory` says which share of new connections is refused and which share of the idle ones is
//! closed; here it is published, and carried out by every core at its next tick. Files: the kernel gives out the lowest
//! number that is free, so a number near the limit tells that they run out. Client connections stop below the numbers
//! that server connections may have, and these below the admin address's.

pub mod files;

use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use propylon_config::MemoryLimit;
use propylon_metrics::Column;
use propylon_policy::memory::{Pressure, Relief, SHARE_ALL, refused_share};
use propylon_policy::sources::Sources;
use propylon_sys::MemoryGroup;

use files::{FilesPlan, client_files, server_files};
use propylon_observe::telemetry::ShortageMetrics;

/// Count of idle connections that are closed at once to make room for others' files, and in one tick. Beyond that
/// newcomers wait in the kernel's queue: a flood is not to turn over all clients at its own pace.
const ROOM: usize = 16;
const CLOSED_PER_TICK_MAX: usize = 64;
/// Memory is given back when a crowd of at least so many has shrunk to half.
const CROWD_MIN: usize = 256;
/// Ticks after which it is given back once more: the last ones to go leave nearly empty pages behind.
const STRAGGLERS: u32 = 20;

/// Newcomers after which a core looks for itself: a crowd can come between two looks of the main thread, which may be
/// late as well if the machine is busy.
const NEWCOMERS_PER_LOOK: u32 = 64;

/// State by which the main thread tells the cores of a shortage, and they tell each other.
pub struct Shared {
    /// `process.memory_limit` in bytes; 0 where there is none.
    limit: AtomicU64,
    /// A `Announcement`, packed.
    announcement: AtomicU64,
    /// The process's limit of open files.
    files: AtomicU64,
    /// Times that a core needed files and had nothing idle to close.
    calls: AtomicU64,
    /// Limits of connections by source; `None` where sources have no limit.
    sources: Option<Sources>,
}

/// A relief and its number, by which a core knows whether it has seen it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Announcement {
    number: u16,
    relief: Relief,
}

impl Announcement {
    fn pack(self) -> u64 {
        let Relief { refuse, close, close_pools, give_back } = self.relief;
        u64::from(self.number) << 48
            | u64::from(refuse) << 32
            | u64::from(close) << 16
            | u64::from(close_pools) << 1
            | u64::from(give_back)
    }

    fn unpack(bits: u64) -> Announcement {
        let relief = Relief {
            refuse: (bits >> 32) as u16,
            close: (bits >> 16) as u16,
            close_pools: bits & 2 != 0,
            give_back: bits & 1 != 0,
        };
        Announcement { number: (bits >> 48) as u16, relief }
    }
}

impl Shared {
    pub fn new(per_source: Option<u32>) -> Shared {
        Shared {
            limit: AtomicU64::new(0),
            announcement: AtomicU64::new(0),
            files: AtomicU64::new(propylon_sys::files_limit()),
            calls: AtomicU64::new(0),
            sources: per_source.map(Sources::new),
        }
    }
}

/// Result of making room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    Made,
    /// Enough were closed in this tick.
    Later,
    /// Nobody is idle here.
    None,
}

/// The main thread's part: measures, decides, tells.
pub struct Watch {
    shared: Arc<Shared>,
    files: FilesPlan,
    memory: Option<Memory>,
    number: u16,
}

struct Memory {
    limit: u64,
    /// Whose use counts where it is the control group that sets the limit; none: this process's.
    group: Option<MemoryGroup>,
    pressure: Pressure,
}

impl Watch {
    /// To be called when everything is loaded: what is used by then is what the process takes without any connection.
    pub fn new(shared: Arc<Shared>, files: FilesPlan, limit: Option<MemoryLimit>) -> Watch {
        let memory = limit.and_then(Memory::new);
        shared.limit.store(memory.as_ref().map_or(0, |memory| memory.limit), Ordering::Relaxed);
        Watch { shared, files, memory, number: 0 }
    }

    /// Four times a second.
    pub fn look(&mut self, column: &Column, metrics: &ShortageMetrics) {
        let files = propylon_sys::files_limit();
        self.shared.files.store(files, Ordering::Relaxed);
        let set = |gauge, files| column.set(gauge, i64::try_from(files).unwrap_or(i64::MAX));
        set(metrics.files, files);
        let needed = self.files.needed();
        set(metrics.files_needed, if files < needed { needed } else { 0 });
        let Some(memory) = &mut self.memory else { return };
        // Unreadable: what was decided last stands.
        let Some(used) = memory.used() else { return };
        let relief = memory.pressure.step(used);
        self.number = self.number.wrapping_add(1);
        self.shared.announcement.store(Announcement { number: self.number, relief }.pack(), Ordering::Relaxed);
        column.set(metrics.limit, memory.limit as i64);
        column.set(metrics.used, used as i64);
        column.set(metrics.refusing, (u32::from(relief.refuse) * 100).div_ceil(u32::from(SHARE_ALL)).into());
    }
}

impl Memory {
    fn new(limit: MemoryLimit) -> Option<Memory> {
        let (limit, group) = match limit {
            MemoryLimit::Bytes(bytes) => (bytes, None),
            MemoryLimit::Auto => match automatic() {
                Some(found) => found,
                None => {
                    log::error!("process.memory_limit: the machine's memory cannot be read; there is no limit");
                    return None;
                }
            },
        };
        let base = propylon_sys::resident_bytes().unwrap_or(0);
        log::info!("memory is limited to {} MiB, of which {} are used", limit >> 20, base >> 20);
        if base > limit / 2 {
            log::warn!("process.memory_limit is less than twice what the process takes without a connection");
        }
        Some(Memory { limit, group, pressure: Pressure::new(limit, base) })
    }

    fn used(&self) -> Option<u64> {
        match &self.group {
            // The process's sockets count in its group, and the kernel's killer goes by that.
            Some(group) => group.used().ok(),
            None => propylon_sys::resident_bytes().ok(),
        }
    }
}

/// Four fifths of what there is.
fn automatic() -> Option<(u64, Option<MemoryGroup>)> {
    let machine = propylon_sys::machine_memory_bytes().ok()?;
    let group = MemoryGroup::own(machine);
    let whole = group.as_ref().map_or(machine, MemoryGroup::limit);
    Some((whole / 5 * 4, group))
}

/// One core's part.
pub struct Overload {
    shared: Arc<Shared>,
    announcement: Cell<Announcement>,
    /// Newcomers since that announcement.
    newcomers: Cell<u32>,
    /// The share of them that is refused by what this core has seen since.
    refused_here: Cell<u16>,
    calls_seen: Cell<u64>,
    /// Idle connections that may still be closed for their files in this tick.
    closable: Cell<usize>,
    /// The most client connections since memory was last given back.
    crowd: Cell<usize>,
    /// Ticks until memory is given back once more; 0 when it is not.
    stragglers: Cell<u32>,
}

/// Work of a core at a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Duty {
    /// The share of idle connections to be closed for their memory.
    pub close: u16,
    /// Idle connections to be closed for their files.
    pub make_room: usize,
    pub close_pools: bool,
    pub give_back: bool,
}

impl Overload {
    pub fn new(shared: Arc<Shared>) -> Overload {
        let calls_seen = Cell::new(shared.calls.load(Ordering::Relaxed));
        Overload {
            shared,
            announcement: Cell::default(),
            newcomers: Cell::default(),
            refused_here: Cell::default(),
            calls_seen,
            closable: Cell::new(CLOSED_PER_TICK_MAX),
            crowd: Cell::default(),
            stragglers: Cell::default(),
        }
    }

    /// Once a tick, with the connections that this core has.
    pub fn duty(&self, connections: usize) -> Duty {
        self.closable.set(CLOSED_PER_TICK_MAX);
        let mut duty = Duty::default();
        let announcement = Announcement::unpack(self.shared.announcement.load(Ordering::Relaxed));
        if self.announcement.replace(announcement).number != announcement.number {
            let Relief { close, close_pools, give_back, .. } = announcement.relief;
            duty = Duty { close, close_pools, give_back, make_room: 0 };
            self.newcomers.set(0);
            self.refused_here.set(0);
        }
        let calls = self.shared.calls.load(Ordering::Relaxed);
        if self.calls_seen.replace(calls) != calls {
            duty.make_room = self.take_room();
        }
        duty.give_back |= self.crowd_has_gone(connections);
        duty
    }

    fn crowd_has_gone(&self, connections: usize) -> bool {
        let crowd = self.crowd.get().max(connections);
        let has_gone = crowd >= CROWD_MIN && connections <= crowd / 2;
        self.crowd.set(if has_gone { connections } else { crowd });
        let stragglers = self.stragglers.get();
        self.stragglers.set(if has_gone { STRAGGLERS } else { stragglers.saturating_sub(1) });
        has_gone || stragglers == 1
    }

    /// Whether a newcomer is refused, by chance.
    pub fn refuses(&self, chance: impl FnOnce() -> u16) -> bool {
        let limit = self.shared.limit.load(Ordering::Relaxed);
        if limit > 0 {
            self.look(limit);
        }
        match self.announcement.get().relief.refuse.max(self.refused_here.get()) {
            0 => false,
            SHARE_ALL => true,
            share => chance() < share,
        }
    }

    fn look(&self, limit: u64) {
        let newcomers = self.newcomers.get().wrapping_add(1);
        self.newcomers.set(newcomers);
        if newcomers.is_multiple_of(NEWCOMERS_PER_LOOK)
            && let Ok(used) = propylon_sys::resident_bytes()
        {
            self.refused_here.set(refused_share(limit, used));
        }
    }

    /// A client's connection has a number that is kept for others.
    pub fn is_kept_from_clients(&self, file: &impl AsRawFd) -> bool {
        number(file) >= client_files(self.shared.files.load(Ordering::Relaxed))
    }

    /// A server's connection has a number that is kept for the admin address.
    pub fn is_kept_from_servers(&self, file: &impl AsRawFd) -> bool {
        number(file) >= server_files(self.shared.files.load(Ordering::Relaxed))
    }

    /// How many idle connections may be closed now for their files.
    pub fn take_room(&self) -> usize {
        let room = self.closable.get().min(ROOM);
        self.closable.set(self.closable.get() - room);
        room
    }

    /// Asks the other cores for files.
    pub fn call_others(&self) {
        self.calls_seen.set(self.shared.calls.fetch_add(1, Ordering::Relaxed) + 1);
    }

    pub fn sources(&self) -> Option<&Sources> {
        self.shared.sources.as_ref()
    }
}

fn number(file: &impl AsRawFd) -> u64 {
    u64::try_from(file.as_raw_fd()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_arrives_as_it_was_sent() {
        let relief = Relief { refuse: 0x1234, close: 0x5678, close_pools: true, give_back: false };
        for announcement in [Announcement { number: 7, relief }, Announcement::default()] {
            assert_eq!(Announcement::unpack(announcement.pack()), announcement);
        }
    }

    #[test]
    fn a_notice_is_carried_out_once_and_refuses_until_the_next() {
        let shared = Arc::new(Shared::new(None));
        let overload = Overload::new(Arc::clone(&shared));
        let relief = Relief { refuse: SHARE_ALL / 2, close: 9, close_pools: false, give_back: true };
        shared.announcement.store(Announcement { number: 1, relief }.pack(), Ordering::Relaxed);
        assert_eq!(overload.duty(10), Duty { close: 9, give_back: true, ..Duty::default() });
        assert_eq!(overload.duty(10), Duty::default());
        assert!(overload.refuses(|| 5) && !overload.refuses(|| SHARE_ALL - 5));
        shared.announcement.store(Announcement { number: 2, ..Announcement::default() }.pack(), Ordering::Relaxed);
        overload.duty(10);
        assert!(!overload.refuses(|| 0));
    }

    #[test]
    fn a_crowd_between_two_notices_is_noticed() {
        let shared = Arc::new(Shared::new(None));
        let overload = Overload::new(Arc::clone(&shared));
        // Less than any process has.
        shared.limit.store(1 << 10, Ordering::Relaxed);
        let refused = (0..2 * NEWCOMERS_PER_LOOK).filter(|_| overload.refuses(|| 0)).count() as u32;
        assert_eq!(refused, NEWCOMERS_PER_LOOK + 1);
        shared.announcement.store(Announcement { number: 1, ..Announcement::default() }.pack(), Ordering::Relaxed);
        overload.duty(0);
        assert!(!overload.refuses(|| 0), "the main thread has looked since");
    }

    #[test]
    fn memory_is_given_back_once_for_each_half_of_a_crowd_that_goes() {
        let overload = Overload::new(Arc::new(Shared::new(None)));
        let given_back = |connections| overload.duty(connections).give_back;
        let times = [100, 0, 1000, 600, 500, 490, 300, 249, 248, 0].map(given_back);
        assert_eq!(times, [false, false, false, false, true, false, false, true, false, false]);
        let later = (0..100).filter(|_| given_back(0)).count();
        assert_eq!(later, 1, "once more for the last ones");
    }

    #[test]
    fn a_core_without_idle_connections_calls_the_others() {
        let shared = Arc::new(Shared::new(None));
        let (one, other) = (Overload::new(Arc::clone(&shared)), Overload::new(shared));
        one.call_others();
        assert_eq!((one.duty(0).make_room, other.duty(0).make_room), (0, ROOM));
        assert_eq!(other.duty(0).make_room, 0);
    }

    #[test]
    fn no_more_than_so_many_are_closed_for_files_in_a_tick() {
        let overload = Overload::new(Arc::new(Shared::new(None)));
        let closed: usize = (0..100).map(|_| overload.take_room()).sum();
        assert_eq!(closed, CLOSED_PER_TICK_MAX);
        overload.duty(0);
        assert_eq!(overload.take_room(), ROOM);
    }

    #[test]
    fn some_files_are_kept_for_servers_and_some_for_the_admin_address() {
        assert_eq!((client_files(200), server_files(200)), (172, 184));
        assert_eq!((client_files(20_000), server_files(20_000)), (19_728, 19_984));
        assert_eq!((client_files(6), server_files(6)), (0, 2));
        assert_eq!(server_files(u64::MAX), u64::MAX - 16);
    }

    struct Numbered(i32);

    impl AsRawFd for Numbered {
        fn as_raw_fd(&self) -> i32 {
            self.0
        }
    }

    #[test]
    fn the_first_file_that_is_kept_for_others_is_given_up() {
        let shared = Arc::new(Shared::new(None));
        shared.files.store(200, Ordering::Relaxed);
        let overload = Overload::new(shared);
        let clients = [0, 171, 172, 199].map(|number| overload.is_kept_from_clients(&Numbered(number)));
        assert_eq!(clients, [false, false, true, true]);
        let servers = [0, 183, 184, 199].map(|number| overload.is_kept_from_servers(&Numbered(number)));
        assert_eq!(servers, [false, false, true, true]);
    }

    #[test]
    fn of_all_chances_the_share_that_is_refused_is_refused() {
        let shared = Arc::new(Shared::new(None));
        let overload = Overload::new(Arc::clone(&shared));
        for (number, refuse) in (1..).zip([0, 1, 7, SHARE_ALL - 1, SHARE_ALL]) {
            let relief = Relief { refuse, ..Relief::default() };
            shared.announcement.store(Announcement { number, relief }.pack(), Ordering::Relaxed);
            overload.duty(0);
            let refused = (0..SHARE_ALL).filter(|chance| overload.refuses(|| *chance)).count();
            assert_eq!(refused, usize::from(refuse));
        }
    }

    #[test]
    fn newcomers_are_counted_from_the_last_notice_on() {
        let shared = Arc::new(Shared::new(None));
        let overload = Overload::new(Arc::clone(&shared));
        shared.limit.store(1 << 10, Ordering::Relaxed);
        let refused = |count: u32| (0..count).filter(|_| overload.refuses(|| 0)).count();
        assert_eq!(refused(NEWCOMERS_PER_LOOK - 1), 0);
        shared.announcement.store(Announcement { number: 1, ..Announcement::default() }.pack(), Ordering::Relaxed);
        overload.duty(0);
        assert_eq!((refused(NEWCOMERS_PER_LOOK - 1), refused(1)), (0, 1));
    }

    #[test]
    fn a_crowd_begins_at_so_many_connections() {
        for (crowd, given_back) in [(CROWD_MIN, true), (CROWD_MIN - 1, false)] {
            let overload = Overload::new(Arc::new(Shared::new(None)));
            overload.duty(crowd);
            assert_eq!(overload.duty(crowd / 2).give_back, given_back, "{crowd}");
        }
    }
}
