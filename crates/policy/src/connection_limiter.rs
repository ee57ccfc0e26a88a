//! Connection limits of a backend's servers, over all cores, and the queue of requests that wait for a connection.
//!
//! One limiter per backend, shared by all cores. While the queue is empty, a permit is taken and released by an
//! atomic operation, and a core with an idle connection of its own only reads a word that nobody writes. The queue is
//! behind a lock, taken by requests that have to wait anyway and by those that serve them.
//!
//! There is one queue per set of servers that a request would take, and there are few such sets: a request without
//! an attempt behind it takes any server. A waiter is therefore found, and removed, in a time that does not depend on
//! the queue's length.
//!
//! A request that waits for something else of the backend (a stream on a multiplexed connection) queues for no server.
//!
//! When the servers of a backend change, a new limiter succeeds the old one: both share the queue and the permits of
//! the servers that stay, so that requests on the old one are counted, queued and served together with the others. An
//! index is a server's in one limiter only; what is shared knows servers by numbers that are never used again.
//!
//! Wake-ups are not lost, because each side publishes its change before it looks at the other's (Dekker; all these
//! accesses are sequentially consistent): a waiter raises `wanted` and then looks for permits and idle connections; a
//! core that releases a permit or returns a connection to the pool does that first and then looks at `wanted`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::predecessors::Predecessors;
use crate::queue::{Arrival, Order, Queue, Turns};

pub use crate::queue::QueueTicket;

/// Connection limit that stands for no limit.
pub const UNLIMITED: u32 = u32::MAX;

/// Permits for a backend's servers, and the queue of waiters. `C` is a connection: it carries its permit, and is never
/// dropped while the queue is locked, since its drop may call the limiter.
pub struct ConnectionLimiter<C> {
    servers: Box<[Arc<ServerPermits<C>>]>,
    /// Numbers of the servers in order, with their indexes.
    indexes: Box<[(u64, usize)]>,
    /// Connection limits by server, in force after [`ConnectionLimiter::commit`].
    max: Box<[u32]>,
    bounds: Bounds,
    shared: Arc<Shared<C>>,
}

/// Limits of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Requests that may wait, at most.
    pub limit: usize,
    pub order: Order,
}

/// State that a limiter shares with its successors, beside the servers that stay.
struct Shared<C> {
    cores: Box<[Core]>,
    queue: Mutex<WaitQueue<C>>,
    /// Number of the next server that is new.
    next: AtomicU64,
}

/// Permits of one server, the same in each limiter that has it, on cache lines of their own. They end with the last who
/// refers to them: a limiter, a connection, or a kind of waiters.
#[repr(align(128))]
pub struct ServerPermits<C> {
    shared: Arc<Shared<C>>,
    number: u64,
    max: AtomicU32,
    /// Permits taken: connections that are being made, used, or idle. All cores write it, for each connection.
    open: AtomicU32,
    /// Count of kinds of waiters that would take this server.
    wanted: AtomicU32,
    /// Idle connections by core.
    idle: Box<[Idle]>,
}

/// Count of idle connections, written by one core at each request, and on a pair of cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Idle(AtomicU32);

/// Signal to a core.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Core {
    /// Set while a waiter wants one of the core's idle connections.
    called: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// Waiters of all servers, and what they were granted. Servers are known by their numbers.
struct WaitQueue<C> {
    /// Limits in force.
    bounds: Bounds,
    next: u64,
    /// Kinds of waiters by place; a place not in use has no waiter.
    kinds: Vec<Kind<C>>,
    unused: Vec<usize>,
    by_wants: HashMap<Box<[u64]>, usize>,
    /// Places of the kinds with a waiter, by the server that they would take.
    by_server: HashMap<u64, Vec<usize>>,
    /// Waiters by ticket.
    waiters: HashMap<QueueTicket, Waiter>,
    turns: Turns,
    granted: HashMap<QueueTicket, Result<Award<C>, Full>>,
    /// Wakers by ticket, apart from `waiters`: a waiter with a grant before its first poll needs no waker.
    wakers: HashMap<QueueTicket, Waker>,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    /// Place of the waiter's kind.
    kind: usize,
    /// Turn at which the waiter should be served; `None` where it waits for no server.
    due: Option<u64>,
}

/// Waiters that would take the same servers.
struct Kind<C> {
    /// Servers, any of which is acceptable; none once there is no waiter.
    wants: Box<[Arc<ServerPermits<C>>]>,
    queue: Queue<()>,
}

/// Grant as the limiters share it: a permit for a server, or a connection with one.
struct Award<C> {
    server: u64,
    connection: Option<C>,
}

/// Grant to a waiter.
#[derive(Debug, PartialEq, Eq)]
pub enum Grant<C> {
    /// Permission to make a connection to this server; released with [`ConnectionLimiter::release`].
    Permit(usize),
    /// An idle connection to this server, with its permit.
    Connection(usize, C),
}

/// Refusal: the queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl<C> ConnectionLimiter<C> {
    /// Creates a limiter; `max` is the connection limit by server.
    pub fn new(max: &[u32], cores: usize, bounds: Bounds) -> ConnectionLimiter<C> {
        let shared = Arc::new(Shared {
            cores: (0..cores).map(|_| Core::default()).collect(),
            queue: Mutex::new(WaitQueue::new(bounds)),
            next: AtomicU64::new(0),
        });
        let servers = max.iter().map(|max| ServerPermits::new(&shared, *max)).collect();
        ConnectionLimiter::of(servers, max, bounds, shared)
    }

    /// Successor of this limiter when limits or servers change; `max` is the connection limit by server, as these stand
    /// in the later list. The new limits come into force with [`ConnectionLimiter::commit`].
    #[must_use]
    pub fn succeeded_by(&self, max: &[u32], bounds: Bounds, predecessors: &Predecessors) -> ConnectionLimiter<C> {
        debug_assert_eq!(max.len(), predecessors.servers());
        let known = |(server, max): (usize, &u32)| match predecessors.of(server) {
            Some(before) => Arc::clone(&self.servers[before]),
            None => ServerPermits::new(&self.shared, *max),
        };
        let servers = max.iter().enumerate().map(known).collect();
        ConnectionLimiter::of(servers, max, bounds, Arc::clone(&self.shared))
    }

    fn of(
        servers: Box<[Arc<ServerPermits<C>>]>,
        max: &[u32],
        bounds: Bounds,
        shared: Arc<Shared<C>>,
    ) -> ConnectionLimiter<C> {
        let mut indexes: Box<[(u64, usize)]> = servers.iter().map(|server| server.number).zip(0..).collect();
        indexes.sort_unstable();
        ConnectionLimiter { servers, indexes, max: max.into(), bounds, shared }
    }

    /// Puts the limits of this limiter into force, and serves waiters that the new limits have room for. A server
    /// with more permits out than its new limit grants none until enough are released.
    pub fn commit(&self, now: u64) {
        self.shared.lock().bounds = self.bounds;
        for (server, max) in self.servers.iter().zip(&self.max) {
            server.max.store(*max, SeqCst);
            let mut queue = self.shared.lock();
            let woken = server.serve(&mut queue, now);
            drop(queue);
            woken.into_iter().for_each(Waker::wake);
        }
    }

    /// Permits of a server, for who has taken one and gives it back when the server may have another index.
    pub fn permits(&self, server: usize) -> &Arc<ServerPermits<C>> {
        &self.servers[server]
    }

    /// Whether the other limiter has the same queue.
    pub fn is_kin(&self, other: &ConnectionLimiter<C>) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Whether a waiter wants this server: then idle connections go to the queue, and newcomers join its end.
    pub fn is_wanted(&self, server: usize) -> bool {
        self.servers[server].is_wanted()
    }

    /// Whether a newcomer without an idle connection could have a permit.
    pub fn has_room(&self, server: usize) -> bool {
        !self.is_wanted(server) && self.servers[server].open.load(SeqCst) < self.servers[server].max.load(SeqCst)
    }

    /// Takes a permit if the queue for the server is empty.
    pub fn try_take(&self, server: usize) -> bool {
        !self.is_wanted(server) && self.servers[server].take()
    }

    /// Permits taken at present.
    pub fn open(&self, server: usize) -> u32 {
        self.servers[server].open.load(SeqCst)
    }

    /// Whether more permits are out than the limit allows, since it was lowered: idle connections should be closed.
    pub fn is_over(&self, server: usize) -> bool {
        self.servers[server].open.load(SeqCst) > self.servers[server].max.load(SeqCst)
    }

    /// Releases a permit. `now` is in milliseconds, on a clock that all cores share.
    pub fn release(&self, server: usize, now: u64) {
        self.servers[server].release(now);
    }

    /// Hands an idle connection to the next waiter that would take it; returns it if there is none.
    pub fn offer(&self, server: usize, connection: C, now: u64) -> Result<(), C> {
        if !self.is_wanted(server) {
            return Err(connection);
        }
        let number = self.servers[server].number;
        let mut queue = self.shared.lock();
        let Some(ticket) = queue.take_next(number, now) else { return Err(connection) };
        let woken = queue.answer(ticket, Ok(Award { server: number, connection: Some(connection) }));
        drop(queue);
        woken.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Joins the queue for any of these servers; the grant may be there at once. Every core with an idle connection to
    /// one of them is called. With no servers the waiter only counts towards the limit, and nothing is granted. The
    /// ticket is polled with [`ConnectionLimiter::poll`] and given up with [`ConnectionLimiter::leave`], both of this
    /// limiter or of one that has the same servers as well.
    pub fn join(&self, wants: impl Into<Box<[usize]>>, now: u64) -> Result<QueueTicket, Full> {
        self.join_again(wants, Arrival::at(now), now)
    }

    /// Joins like [`ConnectionLimiter::join`], for a request that may have waited before, and has a priority. A full
    /// queue refuses the newest waiter of its lowest priority, whether or not that is the one that joins; under
    /// overload, when the newest are served first, the oldest of these is refused.
    pub fn join_again(&self, wants: impl Into<Box<[usize]>>, arrival: Arrival, now: u64) -> Result<QueueTicket, Full> {
        let wants: Box<[usize]> = wants.into();
        let wants: Box<[_]> = wants.iter().map(|server| &self.servers[*server]).collect();
        let mut queue = self.shared.lock();
        let ticket = queue.join(&wants, arrival);
        let mut woken = Vec::new();
        for server in &wants {
            woken.extend(server.serve(&mut queue, now));
        }
        let waits = !queue.granted.contains_key(&ticket);
        let is_over = waits && queue.waiters.len() > queue.bounds.limit;
        let refused = is_over.then(|| queue.least(now)).flatten();
        let full = refused == Some(ticket);
        if let Some(refused) = refused {
            queue.lose(refused);
            if !full {
                woken.extend(queue.answer(refused, Err(Full)));
            }
        }
        drop(queue);
        woken.into_iter().for_each(Waker::wake);
        if full {
            return Err(Full);
        }
        if waits {
            let has_one = |core: usize| wants.iter().any(|server| server.idle[core].0.load(SeqCst) > 0);
            let cores = self.shared.cores.iter().enumerate();
            cores.filter(|(core, _)| has_one(*core)).for_each(|(_, core)| core.call());
        }
        Ok(ticket)
    }

    /// Polls a ticket for its grant, or its refusal. A ticket is not polled again after either.
    pub fn poll(&self, ticket: QueueTicket, context: &Context<'_>) -> Poll<Result<Grant<C>, Full>> {
        let mut queue = self.shared.lock();
        if let Some(answer) = queue.granted.remove(&ticket) {
            drop(queue);
            return Poll::Ready(answer.map(|award| self.grant(award)));
        }
        if queue.wakers.get(&ticket).is_some_and(|known| known.will_wake(context.waker())) {
            return Poll::Pending;
        }
        let replaced = queue.wakers.insert(ticket, context.waker().clone());
        drop(queue);
        // A waker may hold the last reference to a task, whose drop may call the limiter.
        drop(replaced);
        Poll::Pending
    }

    /// Leaves the queue. A grant made in the meantime is the caller's: a permit is to be released, a connection to be
    /// returned to the pool or closed.
    pub fn leave(&self, ticket: QueueTicket) -> Option<Grant<C>> {
        let mut queue = self.shared.lock();
        let waker = queue.wakers.remove(&ticket);
        queue.lose(ticket);
        let answer = queue.granted.remove(&ticket);
        drop(queue);
        drop(waker);
        answer.and_then(Result::ok).map(|award| self.grant(award))
    }

    /// The grant with the index that its server has here.
    fn grant(&self, award: Award<C>) -> Grant<C> {
        let place = self.indexes.binary_search_by_key(&award.server, |(number, _)| *number);
        let server = self.indexes[place.expect("who waits for a server asks by a limiter that has it")].1;
        award.connection.map_or(Grant::Permit(server), |connection| Grant::Connection(server, connection))
    }

    /// Oldest waiter that would take this server, and the newest of the same priority.
    pub fn ends(&self, server: usize) -> Option<(QueueTicket, QueueTicket)> {
        let server = &self.servers[server];
        server.is_wanted().then(|| self.shared.lock().ends(server.number)).flatten()
    }

    /// Length of the queue.
    pub fn depth(&self) -> usize {
        self.shared.lock().waiters.len()
    }

    /// Records how many idle connections a core has; called by that core only, and followed by a look at
    /// [`ConnectionLimiter::is_wanted`].
    pub fn note_idle(&self, core: usize, server: usize, count: usize) {
        self.servers[server].idle[core].0.store(count as u32, SeqCst);
    }

    /// Ready when a waiter wants one of this core's idle connections, which the core should then [`ConnectionLimiter::offer`].
    pub fn poll_called(&self, core: usize, context: &Context<'_>) -> Poll<()> {
        let core = &self.shared.cores[core];
        let replaced = lock(&core.waker).replace(context.waker().clone());
        drop(replaced);
        match core.called.swap(false, SeqCst) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Calls a core, whether or not a request waits.
    pub fn call(&self, core: usize) {
        self.shared.cores[core].call();
    }
}

impl<C> Shared<C> {
    fn lock(&self) -> MutexGuard<'_, WaitQueue<C>> {
        lock(&self.queue)
    }
}

impl<C> ServerPermits<C> {
    fn new(shared: &Arc<Shared<C>>, max: u32) -> Arc<ServerPermits<C>> {
        Arc::new(ServerPermits {
            shared: Arc::clone(shared),
            number: shared.next.fetch_add(1, SeqCst),
            max: AtomicU32::new(max),
            open: AtomicU32::new(0),
            wanted: AtomicU32::new(0),
            idle: shared.cores.iter().map(|_| Idle::default()).collect(),
        })
    }

    /// Releases a permit. `now` is in milliseconds, on a clock that all cores share.
    pub fn release(&self, now: u64) {
        let before = self.open.fetch_sub(1, SeqCst);
        debug_assert!(before > 0, "a permit was given back twice");
        if self.is_wanted() {
            let mut queue = self.shared.lock();
            let woken = self.serve(&mut queue, now);
            drop(queue);
            woken.into_iter().for_each(Waker::wake);
        }
    }

    fn is_wanted(&self) -> bool {
        self.wanted.load(SeqCst) > 0
    }

    fn take(&self) -> bool {
        let max = self.max.load(SeqCst);
        let more = |open: u32| (open < max).then(|| open + 1);
        self.open.fetch_update(SeqCst, SeqCst, more).is_ok()
    }

    /// Grants the free permits to the waiters that want them.
    fn serve(&self, queue: &mut WaitQueue<C>, now: u64) -> Vec<Waker> {
        let mut woken = Vec::new();
        while self.is_wanted() && self.take() {
            match queue.take_next(self.number, now) {
                Some(ticket) => woken.extend(queue.answer(ticket, Ok(Award { server: self.number, connection: None }))),
                None => {
                    debug_assert!(false, "a server is wanted by nobody in the queue");
                    self.open.fetch_sub(1, SeqCst);
                    break;
                }
            }
        }
        woken
    }
}

impl<C> WaitQueue<C> {
    fn new(bounds: Bounds) -> WaitQueue<C> {
        WaitQueue {
            bounds,
            next: 0,
            kinds: Vec::new(),
            unused: Vec::new(),
            by_wants: HashMap::new(),
            by_server: HashMap::new(),
            waiters: HashMap::new(),
            turns: Turns::default(),
            granted: HashMap::new(),
            wakers: HashMap::new(),
        }
    }

    fn join(&mut self, wants: &[&Arc<ServerPermits<C>>], arrival: Arrival) -> QueueTicket {
        let ticket = self.bounds.order.ticket(arrival, self.next);
        self.next += 1;
        let due = (!wants.is_empty()).then(|| self.turns.due(self.takers()));
        let numbers: Box<[u64]> = wants.iter().map(|server| server.number).collect();
        let kind = match self.by_wants.get(&numbers) {
            Some(kind) => *kind,
            None => self.begin_kind(wants, numbers),
        };
        self.kinds[kind].queue.join(ticket, ());
        self.waiters.insert(ticket, Waiter { kind, due });
        ticket
    }

    fn begin_kind(&mut self, wants: &[&Arc<ServerPermits<C>>], numbers: Box<[u64]>) -> usize {
        let new = Kind { wants: wants.iter().map(|server| Arc::clone(server)).collect(), queue: Queue::default() };
        let place = match self.unused.pop() {
            Some(place) => {
                self.kinds[place] = new;
                place
            }
            None => {
                self.kinds.push(new);
                self.kinds.len() - 1
            }
        };
        self.by_wants.insert(numbers, place);
        for server in wants {
            server.wanted.fetch_add(1, SeqCst);
            self.by_server.entry(server.number).or_default().push(place);
        }
        place
    }

    /// Count of waiters that wait for a server.
    fn takers(&self) -> usize {
        let others = self.by_wants.get(&[][..]).map_or(0, |kind| self.kinds[*kind].queue.len());
        self.waiters.len() - others
    }

    /// Removes a waiter that goes away unserved, if it is in the queue.
    fn lose(&mut self, ticket: QueueTicket) {
        if let Some(due) = self.leave(ticket).and_then(|waiter| waiter.due) {
            let left = self.takers();
            self.turns.lose(due, left);
        }
    }

    /// Removes a waiter, if it is in the queue.
    fn leave(&mut self, ticket: QueueTicket) -> Option<Waiter> {
        let waiter = self.waiters.remove(&ticket)?;
        let kind = &mut self.kinds[waiter.kind];
        kind.queue.leave(ticket);
        if kind.queue.is_empty() {
            self.end_kind(waiter.kind);
        }
        Some(waiter)
    }

    fn end_kind(&mut self, place: usize) {
        let wants = std::mem::take(&mut self.kinds[place].wants);
        let numbers: Box<[u64]> = wants.iter().map(|server| server.number).collect();
        self.by_wants.remove(&numbers);
        for server in &wants {
            server.wanted.fetch_sub(1, SeqCst);
            if let Entry::Occupied(mut places) = self.by_server.entry(server.number) {
                places.get_mut().retain(|known| *known != place);
                if places.get().is_empty() {
                    places.remove();
                }
            }
        }
        self.unused.push(place);
    }

    /// Removes the next waiter that would take this server.
    fn take_next(&mut self, server: u64, now: u64) -> Option<QueueTicket> {
        let (oldest, newest) = self.ends(server)?;
        let is_newest_first = self.turns.is_newest_first(self.bounds.order, oldest.since, now);
        let next = if is_newest_first { newest } else { oldest };
        self.leave(next);
        self.turns.give();
        Some(next)
    }

    fn ends(&self, server: u64) -> Option<(QueueTicket, QueueTicket)> {
        let kinds = || self.by_server.get(&server).into_iter().flatten().map(|place| &self.kinds[*place].queue);
        let oldest = kinds().filter_map(Queue::oldest).min()?;
        Some((oldest, kinds().filter_map(|queue| queue.newest_of(oldest.priority)).max()?))
    }

    /// Waiter that makes way where there are too many: of the lowest priority the oldest, if its wait amounts to
    /// overload, or the newest.
    fn least(&self, now: u64) -> Option<QueueTicket> {
        let queues = || self.kinds.iter().map(|kind| &kind.queue);
        let lowest = queues().filter_map(Queue::lowest).max()?;
        let oldest = queues().filter_map(|queue| queue.oldest_of(lowest)).min()?;
        match self.bounds.order.is_overload(oldest.since, now) {
            true => Some(oldest),
            false => queues().filter_map(|queue| queue.newest_of(lowest)).max(),
        }
    }

    fn answer(&mut self, ticket: QueueTicket, answer: Result<Award<C>, Full>) -> Option<Waker> {
        self.granted.insert(ticket, answer);
        self.wakers.remove(&ticket)
    }
}

impl Core {
    fn call(&self) {
        self.called.store(true, SeqCst);
        let waker = lock(&self.waker).take();
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Poisoning is ignored: no code under the lock panics half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod overload;
#[cfg(test)]
mod tests;
