//! How many connections a server may have, over all cores, and who waits for one in which order.
//!
//! One turnstile per backend, shared by all cores. While nobody waits, taking and giving back is an atomic operation, and
//! a core that has an idle connection of its own only looks at a word that nobody writes. The line of those who wait is
//! behind a lock, which is met by requests that have to wait anyway and by those who serve them.
//!
//! When the servers of a backend change, another turnstile succeeds the first: it shares the line and the permits of the
//! servers that stay, so that who still holds the first one counts, waits and is served together with the others.
//!
//! No wake-up is lost, because each side says what it did before it looks at what the other did (Dekker; all of these are
//! sequentially consistent): who joins the line raises `wanted` and then looks for permits and idle connections; who
//! frees a permit or lays a connection down does that first and then looks at `wanted`.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A server without a limit.
pub const UNLIMITED: u32 = u32::MAX;

/// Permits for a backend's servers and the line of those who wait for one. `C` is a connection: it brings its permit
/// with it and is never dropped while the line is locked, so that its drop may come back here.
#[derive(Debug)]
pub struct Turnstile<C> {
    servers: Arc<[Arc<Server>]>,
    /// By server: what comes into force with [`Turnstile::settle`].
    max: Box<[u32]>,
    limit: usize,
    common: Arc<Common<C>>,
}

/// What a turnstile shares with those that succeed it, beside the servers that stay.
#[derive(Debug)]
struct Common<C> {
    cores: Box<[Core]>,
    line: Mutex<Line<C>>,
    /// Requests that may wait.
    limit: AtomicUsize,
}

/// On cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Server {
    max: AtomicU32,
    /// Permits taken: connections that are being made, used, or idle.
    open: AtomicU32,
    /// Those in the line who would take this server.
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

#[derive(Debug)]
struct Line<C> {
    next: u64,
    /// In the order in which they came, and so by rising tickets.
    waiters: VecDeque<Waiter>,
    granted: HashMap<u64, Grant<C>>,
    /// Wakers of waiters who got their grant before they were first asked for it need none, so these are by ticket too.
    wakers: HashMap<u64, Waker>,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    /// Servers, any of which will do.
    wants: Box<[usize]>,
    /// Those of the turnstile that it came by: others may know fewer.
    servers: Arc<[Arc<Server>]>,
}

/// What somebody in the line gets.
#[derive(Debug, PartialEq, Eq)]
pub enum Grant<C> {
    /// A connection to this server may be made; to be given back with [`Turnstile::release`].
    Permit(usize),
    /// An idle connection to this server, its permit with it.
    Connection(usize, C),
}

/// A place in the line: to be asked with [`Turnstile::poll`] and given up with [`Turnstile::leave`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// As many wait as may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl<C> Turnstile<C> {
    /// `max` is by server; `limit` is how many may wait.
    pub fn new(max: &[u32], cores: usize, limit: usize) -> Turnstile<C> {
        Turnstile {
            servers: max.iter().map(|max| Arc::new(Server::new(*max, cores))).collect(),
            max: max.into(),
            limit,
            common: Arc::new(Common {
                cores: (0..cores).map(|_| Core::default()).collect(),
                line: Mutex::new(Line {
                    next: 0,
                    waiters: VecDeque::new(),
                    granted: HashMap::new(),
                    wakers: HashMap::new(),
                }),
                limit: AtomicUsize::new(limit),
            }),
        }
    }

    /// What follows this one when limits or servers change: those that both have are the same, and `max` has the further ones
    /// behind them. The new limits come into force with [`Turnstile::settle`].
    #[must_use]
    pub fn succeeded_by(&self, max: &[u32], limit: usize) -> Turnstile<C> {
        let known = |(index, max): (usize, &u32)| match self.servers.get(index) {
            Some(server) => Arc::clone(server),
            None => Arc::new(Server::new(*max, self.common.cores.len())),
        };
        let servers = max.iter().enumerate().map(known).collect();
        Turnstile { servers, max: max.into(), limit, common: Arc::clone(&self.common) }
    }

    /// Puts the limits of this one into force, and serves those in the line who have waited for more room. Where more
    /// permits are out than there may be now, none is given until enough have come back.
    pub fn settle(&self) {
        self.common.limit.store(self.limit, SeqCst);
        for (server, max) in self.max.iter().enumerate() {
            self.servers[server].max.store(*max, SeqCst);
            let mut line = self.lock();
            let woken = self.serve(&mut line, server);
            drop(line);
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

    /// Gives a permit back.
    pub fn release(&self, server: usize) {
        let before = self.servers[server].open.fetch_sub(1, SeqCst);
        debug_assert!(before > 0, "a permit was given back twice");
        if self.is_wanted(server) {
            let mut line = self.lock();
            let woken = self.serve(&mut line, server);
            drop(line);
            woken.into_iter().for_each(Waker::wake);
        }
    }

    /// Hands a connection to the first in the line who would take it; back if there is nobody.
    pub fn offer(&self, server: usize, connection: C) -> Result<(), C> {
        if !self.is_wanted(server) {
            return Err(connection);
        }
        let mut line = self.lock();
        let Some(ticket) = self.next_for(&mut line, server) else { return Err(connection) };
        let woken = line.grant(ticket, Grant::Connection(server, connection));
        drop(line);
        woken.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Joins the line for any of these servers; the grant may be there at once. Calls every core that has an idle connection to one of
    /// them.
    pub fn join(&self, wants: impl Into<Box<[usize]>>) -> Result<Ticket, Full> {
        let wants = wants.into();
        let mut line = self.lock();
        let ticket = line.next;
        line.next += 1;
        for server in &wants {
            self.servers[*server].wanted.fetch_add(1, SeqCst);
        }
        line.waiters.push_back(Waiter { ticket, wants: wants.clone(), servers: Arc::clone(&self.servers) });
        let mut woken = Vec::new();
        for server in &wants {
            woken.extend(self.serve(&mut line, *server));
        }
        let waits = !line.granted.contains_key(&ticket);
        let full = waits && line.waiters.len() > self.common.limit.load(SeqCst);
        if full && let Some(last) = line.waiters.pop_back() {
            last.unwant();
        }
        drop(line);
        woken.into_iter().for_each(Waker::wake);
        if full {
            return Err(Full);
        }
        if waits {
            let has_one = |core: usize| wants.iter().any(|server| self.servers[*server].idle[core].0.load(SeqCst) > 0);
            let cores = self.common.cores.iter().enumerate();
            cores.filter(|(core, _)| has_one(*core)).for_each(|(_, core)| core.call());
        }
        Ok(Ticket(ticket))
    }

    /// What a ticket has brought. To be asked no more once it has.
    pub fn poll(&self, ticket: Ticket, context: &Context<'_>) -> Poll<Grant<C>> {
        let mut line = self.lock();
        if let Some(grant) = line.granted.remove(&ticket.0) {
            return Poll::Ready(grant);
        }
        let replaced = line.wakers.insert(ticket.0, context.waker().clone());
        drop(line);
        // A waker may be the last hold on a task, whose drop may come here.
        drop(replaced);
        Poll::Pending
    }

    /// Gives a place up. What was granted in the meantime is the caller's: a permit is to be given back, a connection to be
    /// laid down or closed.
    pub fn leave(&self, ticket: Ticket) -> Option<Grant<C>> {
        let mut line = self.lock();
        let waker = line.wakers.remove(&ticket.0);
        if let Ok(place) = line.waiters.binary_search_by_key(&ticket.0, |waiter| waiter.ticket)
            && let Some(waiter) = line.waiters.remove(place)
        {
            waiter.unwant();
        }
        let grant = line.granted.remove(&ticket.0);
        drop(line);
        drop(waker);
        grant
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
    fn serve(&self, line: &mut Line<C>, server: usize) -> Vec<Waker> {
        let mut woken = Vec::new();
        while self.is_wanted(server) && self.servers[server].take() {
            match self.next_for(line, server) {
                Some(ticket) => woken.extend(line.grant(ticket, Grant::Permit(server))),
                None => {
                    debug_assert!(false, "a server is wanted by nobody in the line");
                    self.servers[server].open.fetch_sub(1, SeqCst);
                    break;
                }
            }
        }
        woken
    }

    /// Takes the first who would take this server out of the line.
    fn next_for(&self, line: &mut Line<C>, server: usize) -> Option<u64> {
        let place = line.waiters.iter().position(|waiter| waiter.wants.contains(&server))?;
        let waiter = line.waiters.remove(place)?;
        waiter.unwant();
        Some(waiter.ticket)
    }

    fn lock(&self) -> MutexGuard<'_, Line<C>> {
        lock(&self.common.line)
    }
}

impl<C> Line<C> {
    fn grant(&mut self, ticket: u64, grant: Grant<C>) -> Option<Waker> {
        self.granted.insert(ticket, grant);
        self.wakers.remove(&ticket)
    }
}

impl Waiter {
    fn unwant(&self) {
        for server in &self.wants {
            self.servers[*server].wanted.fetch_sub(1, SeqCst);
        }
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
mod tests;
