//! How many connections a server may have, over all cores, and who waits for one in which order.
//!
//! One turnstile per backend, shared by all cores. While nobody waits, taking and giving back is an atomic operation, and
//! a core that has an idle connection of its own only looks at a word that nobody writes. The line of those who wait is
//! behind a lock, which is met by requests that have to wait anyway and by those who serve them.
//!
//! The line is one for each set of servers that somebody would take, and there are few of these: a request that was nowhere yet
//! takes any. So a place is found, and given up, in a time that does not depend on how many wait.
//!
//! Who waits for something else of this backend (a stream on a connection that carries many) is in the line for no server.
//!
//! When the servers of a backend change, another turnstile succeeds the first: it shares the line and the permits of the
//! servers that stay, so that who still holds the first one counts, waits and is served together with the others.
//!
//! No wake-up is lost, because each side says what it did before it looks at what the other did (Dekker; all of these are
//! sequentially consistent): who joins the line raises `wanted` and then looks for permits and idle connections; who
//! frees a permit or lays a connection down does that first and then looks at `wanted`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::line::{Line, Order, Turns};

pub use crate::line::Ticket;

/// A server without a limit.
pub const UNLIMITED: u32 = u32::MAX;

/// Permits for a backend's servers and the line of those who wait for one. `C` is a connection: it brings its permit
/// with it and is never dropped while the line is locked, so that its drop may come back here.
#[derive(Debug)]
pub struct Turnstile<C> {
    servers: Arc<[Arc<Server>]>,
    /// By server: what comes into force with [`Turnstile::settle`].
    max: Box<[u32]>,
    bounds: Bounds,
    common: Arc<Common<C>>,
}

/// What holds for the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Requests that may wait.
    pub limit: usize,
    pub order: Order,
}

/// What a turnstile shares with those that succeed it, beside the servers that stay.
#[derive(Debug)]
struct Common<C> {
    cores: Box<[Core]>,
    room: Mutex<Room<C>>,
}

/// On cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Server {
    max: AtomicU32,
    /// Permits taken: connections that are being made, used, or idle.
    open: AtomicU32,
    /// Kinds of waiters who would take this server.
    wanted: AtomicU32,
    /// By core: its idle connections.
    idle: Box<[Idle]>,
}

/// Written by one core, and on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Idle(AtomicU32);

/// How a core is called.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Core {
    /// Somebody waits for one of its idle connections.
    called: AtomicBool,
    steward: Mutex<Option<Waker>>,
}

/// Where they wait.
#[derive(Debug)]
struct Room<C> {
    /// In force.
    bounds: Bounds,
    next: u64,
    /// By place; one that is not in use has no waiter.
    kinds: Vec<Kind>,
    unused: Vec<usize>,
    by_wants: HashMap<Box<[usize]>, usize>,
    /// By server: the kinds that would take it and have a waiter.
    by_server: HashMap<usize, Vec<usize>>,
    /// By ticket.
    waiters: HashMap<Ticket, Waiter>,
    turns: Turns,
    granted: HashMap<Ticket, Result<Grant<C>, Full>>,
    /// Wakers of waiters who got their grant before they were first asked for it need none, so these are by ticket too.
    wakers: HashMap<Ticket, Waker>,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    /// The place of its kind.
    kind: usize,
    /// The turn by which it should be served; none where it waits for something else.
    due: Option<u64>,
}

/// Waiters who would take the same servers.
#[derive(Debug)]
struct Kind {
    /// Servers, any of which will do.
    wants: Box<[usize]>,
    /// Those of the turnstile that the first of them came by: others may know fewer.
    servers: Arc<[Arc<Server>]>,
    line: Line<()>,
}

/// What somebody in the line gets.
#[derive(Debug, PartialEq, Eq)]
pub enum Grant<C> {
    /// A connection to this server may be made; to be given back with [`Turnstile::release`].
    Permit(usize),
    /// An idle connection to this server, its permit with it.
    Connection(usize, C),
}

/// As many wait as may, and this one is not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl<C> Turnstile<C> {
    /// `max` is by server.
    pub fn new(max: &[u32], cores: usize, bounds: Bounds) -> Turnstile<C> {
        Turnstile {
            servers: max.iter().map(|max| Arc::new(Server::new(*max, cores))).collect(),
            max: max.into(),
            bounds,
            common: Arc::new(Common {
                cores: (0..cores).map(|_| Core::default()).collect(),
                room: Mutex::new(Room::new(bounds)),
            }),
        }
    }

    /// What follows this one when limits or servers change: those that both have are the same, and `max` has the further ones
    /// behind them. The new limits come into force with [`Turnstile::settle`].
    #[must_use]
    pub fn succeeded_by(&self, max: &[u32], bounds: Bounds) -> Turnstile<C> {
        let known = |(index, max): (usize, &u32)| match self.servers.get(index) {
            Some(server) => Arc::clone(server),
            None => Arc::new(Server::new(*max, self.common.cores.len())),
        };
        let servers = max.iter().enumerate().map(known).collect();
        Turnstile { servers, max: max.into(), bounds, common: Arc::clone(&self.common) }
    }

    /// Puts the limits of this one into force, and serves those in the line who have waited for more room. Where more
    /// permits are out than there may be now, none is given until enough have come back.
    pub fn settle(&self, now: u64) {
        self.lock().bounds = self.bounds;
        for (server, max) in self.max.iter().enumerate() {
            self.servers[server].max.store(*max, SeqCst);
            let mut room = self.lock();
            let woken = self.serve(&mut room, server, now);
            drop(room);
            woken.into_iter().for_each(Waker::wake);
        }
    }

    /// Whether the other has the same line.
    pub fn is_kin(&self, other: &Turnstile<C>) -> bool {
        Arc::ptr_eq(&self.common, &other.common)
    }

    /// Somebody waits for this server: what is laid down goes to the line, and newcomers go behind it.
    pub fn is_wanted(&self, server: usize) -> bool {
        self.servers[server].wanted.load(SeqCst) > 0
    }

    /// A newcomer with nothing idle could have a permit.
    pub fn has_room(&self, server: usize) -> bool {
        !self.is_wanted(server) && self.servers[server].open.load(SeqCst) < self.servers[server].max.load(SeqCst)
    }

    /// Takes a permit past an empty line.
    pub fn try_take(&self, server: usize) -> bool {
        !self.is_wanted(server) && self.servers[server].take()
    }

    /// Permits taken now.
    pub fn open(&self, server: usize) -> u32 {
        self.servers[server].open.load(SeqCst)
    }

    /// More permits are out than there may be, since the limit was lowered: what is laid down should be closed.
    pub fn is_over(&self, server: usize) -> bool {
        self.servers[server].open.load(SeqCst) > self.servers[server].max.load(SeqCst)
    }

    /// Gives a permit back. `now` is in milliseconds, on a clock that all cores share.
    pub fn release(&self, server: usize, now: u64) {
        let before = self.servers[server].open.fetch_sub(1, SeqCst);
        debug_assert!(before > 0, "a permit was given back twice");
        if self.is_wanted(server) {
            let mut room = self.lock();
            let woken = self.serve(&mut room, server, now);
            drop(room);
            woken.into_iter().for_each(Waker::wake);
        }
    }

    /// Hands a connection to the next in the line who would take it; back if there is nobody.
    pub fn offer(&self, server: usize, connection: C, now: u64) -> Result<(), C> {
        if !self.is_wanted(server) {
            return Err(connection);
        }
        let mut room = self.lock();
        let Some(ticket) = room.take_next(server, now) else { return Err(connection) };
        let woken = room.answer(ticket, Ok(Grant::Connection(server, connection)));
        drop(room);
        woken.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Joins the line for any of these servers; the grant may be there at once. Calls every core that has an idle connection to one of
    /// them. With none the place is one among all who wait, and nothing is granted. A ticket is to be asked with
    /// [`Turnstile::poll`] and given up with [`Turnstile::leave`].
    pub fn join(&self, wants: impl Into<Box<[usize]>>, now: u64) -> Result<Ticket, Full> {
        self.join_again(wants, now, now)
    }

    /// As [`Turnstile::join`], for one who has waited before and came then. In a full line whoever came last is refused, whether
    /// that is the one who joins or another; but where the newest are served first the one who has waited for the longest
    /// makes way.
    pub fn join_again(&self, wants: impl Into<Box<[usize]>>, since: u64, now: u64) -> Result<Ticket, Full> {
        let wants = wants.into();
        let mut room = self.lock();
        let ticket = room.join(&wants, &self.servers, since);
        let mut woken = Vec::new();
        for server in &wants {
            woken.extend(self.serve(&mut room, *server, now));
        }
        let waits = !room.granted.contains_key(&ticket);
        let is_over = waits && room.waiters.len() > room.bounds.limit;
        let refused = is_over.then(|| room.overdue(now).or_else(|| room.newest())).flatten();
        let full = refused == Some(ticket);
        if let Some(refused) = refused {
            room.lose(refused);
            if !full {
                woken.extend(room.answer(refused, Err(Full)));
            }
        }
        drop(room);
        woken.into_iter().for_each(Waker::wake);
        if full {
            return Err(Full);
        }
        if waits {
            let has_one = |core: usize| wants.iter().any(|server| self.servers[*server].idle[core].0.load(SeqCst) > 0);
            let cores = self.common.cores.iter().enumerate();
            cores.filter(|(core, _)| has_one(*core)).for_each(|(_, core)| core.call());
        }
        Ok(ticket)
    }

    /// What a ticket has brought, or that it had to make way. To be asked no more once it has.
    pub fn poll(&self, ticket: Ticket, context: &Context<'_>) -> Poll<Result<Grant<C>, Full>> {
        let mut room = self.lock();
        if let Some(answer) = room.granted.remove(&ticket) {
            return Poll::Ready(answer);
        }
        if room.wakers.get(&ticket).is_some_and(|known| known.will_wake(context.waker())) {
            return Poll::Pending;
        }
        let replaced = room.wakers.insert(ticket, context.waker().clone());
        drop(room);
        // A waker may be the last hold on a task, whose drop may come here.
        drop(replaced);
        Poll::Pending
    }

    /// Gives a place up. What was granted in the meantime is the caller's: a permit is to be given back, a connection to be
    /// laid down or closed.
    pub fn leave(&self, ticket: Ticket) -> Option<Grant<C>> {
        let mut room = self.lock();
        let waker = room.wakers.remove(&ticket);
        room.lose(ticket);
        let grant = room.granted.remove(&ticket);
        drop(room);
        drop(waker);
        grant.and_then(Result::ok)
    }

    /// Of those in the line who would take this server, who came first and who came last.
    pub fn ends(&self, server: usize) -> Option<(Ticket, Ticket)> {
        self.is_wanted(server).then(|| self.lock().ends(server)).flatten()
    }

    /// Those who wait now.
    pub fn depth(&self) -> usize {
        self.lock().waiters.len()
    }

    /// Says how many idle connections a core has; only that core says it. To be followed by a look at [`Turnstile::is_wanted`].
    pub fn note_idle(&self, core: usize, server: usize, count: usize) {
        self.servers[server].idle[core].0.store(count as u32, SeqCst);
    }

    /// Ready when somebody waits for what this core has idle, which it then should [`Turnstile::offer`].
    pub fn poll_called(&self, core: usize, context: &Context<'_>) -> Poll<()> {
        let core = &self.common.cores[core];
        let replaced = lock(&core.steward).replace(context.waker().clone());
        drop(replaced);
        match core.called.swap(false, SeqCst) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Calls a core, whether or not anybody waits.
    pub fn call(&self, core: usize) {
        self.common.cores[core].call();
    }

    /// Grants as many permits of a server as there are to those who want it.
    fn serve(&self, room: &mut Room<C>, server: usize, now: u64) -> Vec<Waker> {
        let mut woken = Vec::new();
        while self.is_wanted(server) && self.servers[server].take() {
            match room.take_next(server, now) {
                Some(ticket) => woken.extend(room.answer(ticket, Ok(Grant::Permit(server)))),
                None => {
                    debug_assert!(false, "a server is wanted by nobody in the line");
                    self.servers[server].open.fetch_sub(1, SeqCst);
                    break;
                }
            }
        }
        woken
    }

    fn lock(&self) -> MutexGuard<'_, Room<C>> {
        lock(&self.common.room)
    }
}

impl<C> Room<C> {
    fn new(bounds: Bounds) -> Room<C> {
        Room {
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

    fn join(&mut self, wants: &[usize], servers: &Arc<[Arc<Server>]>, since: u64) -> Ticket {
        let ticket = Ticket::new(since, self.next);
        self.next += 1;
        let due = (!wants.is_empty()).then(|| self.turns.due(self.takers()));
        let kind = match self.by_wants.get(wants) {
            Some(kind) => *kind,
            None => self.begin_kind(wants, servers),
        };
        self.kinds[kind].line.join(ticket, ());
        self.waiters.insert(ticket, Waiter { kind, due });
        ticket
    }

    fn begin_kind(&mut self, wants: &[usize], servers: &Arc<[Arc<Server>]>) -> usize {
        let new = Kind { wants: wants.into(), servers: Arc::clone(servers), line: Line::default() };
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
        self.by_wants.insert(wants.into(), place);
        for server in wants {
            servers[*server].wanted.fetch_add(1, SeqCst);
            self.by_server.entry(*server).or_default().push(place);
        }
        place
    }

    /// Waiters for any server.
    fn takers(&self) -> usize {
        let others = self.by_wants.get(&[][..]).map_or(0, |kind| self.kinds[*kind].line.len());
        self.waiters.len() - others
    }

    /// Takes a waiter out of the line that goes away unserved, if it is there.
    fn lose(&mut self, ticket: Ticket) {
        if let Some(due) = self.leave(ticket).and_then(|waiter| waiter.due) {
            let left = self.takers();
            self.turns.lose(due, left);
        }
    }

    /// Takes a waiter out of the line, if it is there.
    fn leave(&mut self, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.waiters.remove(&ticket)?;
        let kind = &mut self.kinds[waiter.kind];
        kind.line.leave(ticket);
        if kind.line.is_empty() {
            self.end_kind(waiter.kind);
        }
        Some(waiter)
    }

    fn end_kind(&mut self, place: usize) {
        let kind = &mut self.kinds[place];
        let wants = std::mem::take(&mut kind.wants);
        self.by_wants.remove(&wants);
        for server in &wants {
            kind.servers[*server].wanted.fetch_sub(1, SeqCst);
            if let Some(places) = self.by_server.get_mut(server) {
                places.retain(|known| *known != place);
            }
        }
        kind.servers = Arc::new([]);
        self.unused.push(place);
    }

    /// Takes the next who would take this server out of the line.
    fn take_next(&mut self, server: usize, now: u64) -> Option<Ticket> {
        let (oldest, newest) = self.ends(server)?;
        let is_newest_first = self.turns.is_newest_first(self.bounds.order, oldest.since, now);
        let next = if is_newest_first { newest } else { oldest };
        self.leave(next);
        self.turns.give();
        Some(next)
    }

    fn ends(&self, server: usize) -> Option<(Ticket, Ticket)> {
        let kinds = || self.by_server.get(&server).into_iter().flatten().map(|place| &self.kinds[*place].line);
        Some((kinds().filter_map(Line::oldest).min()?, kinds().filter_map(Line::newest).max()?))
    }

    /// The one who has waited for the longest, if that is too long.
    fn overdue(&self, now: u64) -> Option<Ticket> {
        let oldest = self.kinds.iter().filter_map(|kind| kind.line.oldest()).min()?;
        self.bounds.order.is_overload(oldest.since, now).then_some(oldest)
    }

    fn newest(&self) -> Option<Ticket> {
        self.kinds.iter().filter_map(|kind| kind.line.newest()).max()
    }

    fn answer(&mut self, ticket: Ticket, answer: Result<Grant<C>, Full>) -> Option<Waker> {
        self.granted.insert(ticket, answer);
        self.wakers.remove(&ticket)
    }
}

impl Server {
    fn new(max: u32, cores: usize) -> Server {
        Server {
            max: AtomicU32::new(max),
            open: AtomicU32::new(0),
            wanted: AtomicU32::new(0),
            idle: (0..cores).map(|_| Idle::default()).collect(),
        }
    }

    fn take(&self) -> bool {
        let max = self.max.load(SeqCst);
        let more = |open: u32| (open < max).then(|| open + 1);
        self.open.fetch_update(SeqCst, SeqCst, more).is_ok()
    }
}

impl Core {
    fn call(&self) {
        self.called.store(true, SeqCst);
        let steward = lock(&self.steward).take();
        steward.into_iter().for_each(Waker::wake);
    }
}

/// Nothing in here panics half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod overload;
#[cfg(test)]
mod tests;
