//! State that the cores share to spread clients: the load of each, clients on their way to it, and places for all.
//!
//! A core writes its own cell and reads those of two others when it accepts. Places are one word for all cores: the
//! sum of cells would let two cores take the last one.
//!
//! A client goes from core to core by a mailbox, behind a lock that hand-overs alone take. A mailbox is open for one
//! generation of the configuration at a time: sender and receiver have the same listeners by the same numbers, or the
//! sender keeps the client. A closed mailbox takes nothing, and what was in it is its owner's.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::Load;
use super::rebalance::HOST_MILLIS;

/// Clients that may be on their way to a core.
const MAILBOX_MAX: usize = 256;
/// Milliseconds without a heartbeat after which a core stands still: two ticks have been missed.
pub const STALL_MILLIS: u64 = 300;
/// Generation for which a mailbox is open that is closed.
const CLOSED: u64 = 0;

/// Loads, mailboxes and places. `P` is a client on its way.
pub struct Board<P> {
    cells: Box<[Cell]>,
    mailboxes: Box<[Mailbox<P>]>,
    pub places: Places,
}

/// Load of a core, written by that core alone.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cell {
    connections: AtomicU32,
    handshakes: AtomicU32,
    busy: AtomicU32,
    busy_connections: AtomicU32,
    /// Time of the last heartbeat, in milliseconds.
    beat: AtomicU64,
}

#[repr(align(128))]
struct Mailbox<P> {
    /// Count of `waiting`, for those who only ask for the load.
    count: AtomicU32,
    /// Time until which the core takes connections that stay from one other core, in milliseconds.
    host_until: AtomicU64,
    inner: Mutex<Inner<P>>,
}

struct Inner<P> {
    /// Generation that is taken, or `CLOSED`.
    generation: u64,
    waiting: VecDeque<P>,
    waker: Option<Waker>,
}

/// Places for connections, over all cores.
#[derive(Debug)]
#[repr(align(128))]
pub struct Places {
    max: usize,
    taken: AtomicUsize,
    /// Accept loops that wait for a place.
    wanted: AtomicUsize,
}

impl<P> Board<P> {
    /// `max` is the number of places.
    pub fn new(cores: usize, max: usize) -> Board<P> {
        Board {
            cells: (0..cores).map(|_| Cell::default()).collect(),
            mailboxes: (0..cores).map(|_| Mailbox::new()).collect(),
            places: Places { max, taken: AtomicUsize::new(0), wanted: AtomicUsize::new(0) },
        }
    }

    pub fn cores(&self) -> usize {
        self.cells.len()
    }

    /// Load of a core. `now` is in milliseconds, on the clock of the heartbeats.
    pub fn load(&self, core: usize, now: u64) -> Load {
        let (cell, mailbox) = (&self.cells[core], &self.mailboxes[core]);
        Load {
            connections: cell.connections.load(Relaxed) + mailbox.count.load(Relaxed),
            handshakes: cell.handshakes.load(Relaxed),
            busy: cell.busy.load(Relaxed),
            busy_connections: cell.busy_connections.load(Relaxed),
            is_stalled: now.saturating_sub(cell.beat.load(Relaxed)) > STALL_MILLIS,
        }
    }

    /// Sets the connections of a core; for that core alone.
    pub fn set_connections(&self, core: usize, connections: u32) {
        self.cells[core].connections.store(connections, Relaxed);
    }

    /// A core's heartbeat, with its work and the handshakes that wait; for that core alone.
    pub fn beat(&self, core: usize, now: u64, load: Load) {
        let cell = &self.cells[core];
        cell.handshakes.store(load.handshakes, Relaxed);
        cell.busy.store(load.busy, Relaxed);
        cell.busy_connections.store(load.busy_connections, Relaxed);
        cell.beat.store(now, Relaxed);
    }

    /// Cores that stand still and whose clients this core accepts: of those behind it, up to the next that runs.
    pub fn wards(&self, core: usize, now: u64) -> impl Iterator<Item = usize> {
        let cores = self.cores();
        (1..cores).map(move |step| (core + step) % cores).take_while(move |ward| self.load(*ward, now).is_stalled)
    }

    /// Whether a core takes connections that stay from nobody else.
    pub fn may_host(&self, core: usize, now: u64) -> bool {
        now >= self.mailboxes[core].host_until.load(Relaxed)
    }

    /// Has a core take connections that stay from the caller alone for a while; false where another was first.
    pub fn host(&self, core: usize, now: u64) -> bool {
        let until = &self.mailboxes[core].host_until;
        let free = |until| (now >= until).then_some(now + HOST_MILLIS);
        until.fetch_update(Relaxed, Relaxed, free).is_ok()
    }

    /// Puts a client into a core's mailbox.
    ///
    /// # Errors
    /// The client, where the mailbox is full, closed, or open for another generation.
    pub fn send(&self, to: usize, generation: u64, client: P) -> Result<(), P> {
        let mailbox = &self.mailboxes[to];
        let mut inner = mailbox.lock();
        if generation == CLOSED || inner.generation != generation || inner.waiting.len() >= MAILBOX_MAX {
            return Err(client);
        }
        inner.waiting.push_back(client);
        mailbox.count.store(inner.waiting.len() as u32, Relaxed);
        let waker = inner.waker.take();
        drop(inner);
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// The next client of a mailbox, as soon as there is one; for its owner.
    pub fn poll_receive(&self, core: usize, context: &mut Context<'_>) -> Poll<P> {
        let mailbox = &self.mailboxes[core];
        let mut inner = mailbox.lock();
        if let Some(client) = inner.waiting.pop_front() {
            mailbox.count.store(inner.waiting.len() as u32, Relaxed);
            return Poll::Ready(client);
        }
        inner.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Takes what is in the mailbox of a core that stands still, if it is open for this generation.
    #[must_use]
    pub fn take_waiting(&self, ward: usize, generation: u64) -> VecDeque<P> {
        let mailbox = &self.mailboxes[ward];
        if mailbox.count.load(Relaxed) == 0 {
            return VecDeque::new();
        }
        let mut inner = mailbox.lock();
        if inner.generation != generation {
            return VecDeque::new();
        }
        mailbox.count.store(0, Relaxed);
        std::mem::take(&mut inner.waiting)
    }

    /// Opens a mailbox for this generation, and for no earlier one any more; returns the clients of the one before.
    #[must_use]
    pub fn open(&self, core: usize, generation: u64) -> VecDeque<P> {
        let mailbox = &self.mailboxes[core];
        let mut inner = mailbox.lock();
        inner.generation = generation;
        mailbox.count.store(0, Relaxed);
        std::mem::take(&mut inner.waiting)
    }

    /// Closes a mailbox for good; returns the clients that were in it.
    #[must_use]
    pub fn close(&self, core: usize) -> VecDeque<P> {
        self.open(core, CLOSED)
    }
}

impl<P> Mailbox<P> {
    fn new() -> Mailbox<P> {
        let inner = Inner { generation: CLOSED, waiting: VecDeque::new(), waker: None };
        Mailbox { count: AtomicU32::new(0), host_until: AtomicU64::new(0), inner: Mutex::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<P>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    /// Takes a place, if there is one.
    pub fn take(&self) -> bool {
        self.taken.fetch_update(SeqCst, SeqCst, |taken| (taken < self.max).then_some(taken + 1)).is_ok()
    }

    /// Takes a place whether there is one or not: the kernel has accepted a client that is to be served.
    pub fn take_anyway(&self) {
        self.taken.fetch_add(1, SeqCst);
    }

    /// Gives a place back. True where somebody waits for one, and is to be told: whoever waits says so by
    /// [`Places::want`] first and looks for a place then, and here it is the other way round (Dekker).
    #[must_use]
    pub fn give_back(&self) -> bool {
        self.taken.fetch_sub(1, SeqCst);
        self.wanted.load(SeqCst) > 0
    }

    pub fn has_room(&self) -> bool {
        self.taken.load(SeqCst) < self.max
    }

    /// Somebody waits for a place, until what is returned is dropped.
    pub fn want(&self) -> Wanted<'_> {
        self.wanted.fetch_add(1, SeqCst);
        Wanted(self)
    }
}

/// An accept loop that waits for a place.
#[derive(Debug)]
pub struct Wanted<'p>(&'p Places);

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.wanted.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mailbox_takes_clients_of_its_generation_alone_and_loses_none() {
        let board = Board::new(2, 10);
        assert_eq!(board.send(1, 1, 'a'), Err('a'), "nobody is there yet");
        assert!(board.open(1, 1).is_empty());
        assert_eq!(board.send(1, 1, 'a'), Ok(()));
        assert_eq!(board.send(1, 2, 'b'), Err('b'));
        assert_eq!(board.load(1, 0).connections, 1);
        assert_eq!(board.open(1, 2), ['a'], "it is served by the configuration that it came with");
        assert_eq!(board.send(1, 1, 'b'), Err('b'));
        assert_eq!(board.send(1, 2, 'c'), Ok(()));
        assert_eq!(board.close(1), ['c']);
        assert_eq!(board.send(1, 2, 'd'), Err('d'));
    }

    #[test]
    fn a_core_takes_connections_that_stay_from_one_other_at_a_time() {
        let board: Board<()> = Board::new(2, 10);
        assert!(board.may_host(1, 7) && board.host(1, 7) && !board.host(1, 8) && !board.may_host(1, 6 + HOST_MILLIS));
        assert!(board.may_host(1, 7 + HOST_MILLIS) && board.host(1, 7 + HOST_MILLIS));
    }

    #[test]
    fn clients_in_the_mailbox_of_a_core_that_stands_still_are_taken_by_their_generation_once() {
        let board = Board::new(2, 10);
        assert!(board.open(1, 3).is_empty());
        assert_eq!(board.send(1, 3, 'a'), Ok(()));
        assert!(board.take_waiting(1, 2).is_empty());
        assert_eq!(board.load(1, 0).connections, 1);
        assert_eq!(board.take_waiting(1, 3), ['a']);
        assert_eq!(board.load(1, 0).connections, 0);
        assert!(board.take_waiting(1, 3).is_empty());
    }

    #[test]
    fn a_mailbox_has_an_end() {
        let board = Board::new(1, 10);
        assert!(board.open(0, 1).is_empty());
        let taken = (0..1_000).filter(|client| board.send(0, 1, *client).is_ok()).count();
        assert_eq!(taken, MAILBOX_MAX);
    }

    #[test]
    fn the_owner_of_a_mailbox_is_woken() {
        struct Flag(std::sync::atomic::AtomicBool);
        impl std::task::Wake for Flag {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.store(true, SeqCst);
            }
        }
        let board = Board::new(1, 10);
        let flag = std::sync::Arc::new(Flag(false.into()));
        let waker = Waker::from(std::sync::Arc::clone(&flag));
        let mut context = Context::from_waker(&waker);
        assert!(board.open(0, 1).is_empty());
        assert_eq!(board.poll_receive(0, &mut context), Poll::Pending);
        assert_eq!(board.send(0, 1, 'a'), Ok(()));
        assert!(flag.0.load(SeqCst));
        assert_eq!(board.poll_receive(0, &mut context), Poll::Ready('a'));
        assert_eq!(board.load(0, 0).connections, 0);
    }

    #[test]
    fn each_core_that_stands_still_has_one_that_accepts_for_it() {
        let board: Board<()> = Board::new(5, 10);
        let now = 10_000;
        for running in [0, 3] {
            board.beat(running, now - STALL_MILLIS, Load::default());
        }
        let wards = |core| board.wards(core, now).collect::<Vec<usize>>();
        assert_eq!((wards(0), wards(3)), (vec![1, 2], vec![4]));
    }

    #[test]
    fn threads_never_hold_more_places_than_there_are_and_whoever_waits_is_told() {
        use std::thread::{park_timeout, scope, yield_now};
        const MAX: usize = 3;
        let board: Board<()> = Board::new(4, MAX);
        let (held, told) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let places = &board.places;
        scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        while !places.take() {
                            let _wanted = places.want();
                            // The word of a place that was given back is not lost between these two.
                            let seen = told.load(SeqCst);
                            while !places.has_room() && told.load(SeqCst) == seen {
                                park_timeout(std::time::Duration::from_micros(10));
                            }
                        }
                        assert!(held.fetch_add(1, SeqCst) < MAX);
                        yield_now();
                        held.fetch_sub(1, SeqCst);
                        if places.give_back() {
                            told.fetch_add(1, SeqCst);
                        }
                    }
                });
            }
        });
        assert!(places.has_room() && places.taken.load(SeqCst) == 0);
    }
}
