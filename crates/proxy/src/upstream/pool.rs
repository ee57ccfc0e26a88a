//! Connections to servers that wait for their next request. One pool per core and backend; a connection leaves it for
//! another core only through the backend's limiter.
//!
//! The connection used last is used first, so that a pool shrinks to what is needed and the rest meets its idle limit.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use propylon_config::{Backend, ServerProtocol};
use propylon_net::timers::coarse_millis;
use propylon_policy::connection_limiter::{Bounds, ConnectionLimiter, UNLIMITED};
use propylon_policy::predecessors::Predecessors;
use propylon_policy::queue::Order;
use propylon_policy::reuse::Fit;

use super::connection::{PoolKey, ServerConnection, ServerLimiter};
use super::h2_pool::{H2Pool, Roamers, StreamPermit, Terms};
use crate::endpoint::Endpoint;
use crate::services::Services;

/// Idle time below which the kernel is not asked whether a server has closed a connection: an end that comes right
/// behind a response is among the events that the loop has had by then.
const RECENT_MILLIS: u64 = 10;

struct Idle {
    connection: Box<ServerConnection>,
    /// Milliseconds on the core's clock.
    since: u64,
}

/// Result of giving a connection back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    Idle,
    /// The first in the queue has it.
    HandedOver,
    /// The server had closed it or sent something nobody asked for, it has served its time, or the pool is full.
    Closed,
}

pub struct Pool {
    /// Idle connections by server. A pool shares them with the one that it succeeds, for servers that stay.
    idle: Vec<Rc<RefCell<Vec<Idle>>>>,
    /// Whether idle connections are kept, by server; false for a server that is gone. The flags are shared as the
    /// connections are: a request may give one back to a pool that has been succeeded more than once, and nobody looks
    /// after that pool any more.
    kept: Vec<Rc<Cell<bool>>>,
    idle_max: usize,
    requests_max: u32,
    core: usize,
    /// Address and state of each server, by server.
    pub endpoints: Box<[Arc<Endpoint>]>,
    /// Limits that all cores share; `None` where no server has a limit.
    pub limiter: Option<Arc<ServerLimiter>>,
    /// HTTP/2 connections by server: each carries many requests at a time.
    pub h2_pools: Vec<Rc<H2Pool>>,
    pub roamers: Rc<Roamers>,
    /// Streams on one of them; 0 where servers do not speak HTTP/2.
    pub streams_max: usize,
    /// Count of connections being made ahead, by server.
    pub warming: Vec<Cell<usize>>,
    /// Count of requests since pools were last looked after, by server.
    pub recent: Vec<Cell<u32>>,
}

/// Part of the time in a queue that a priority is worth beside the next one: so one of low priority waits for at most
/// half of that time behind those who come later.
const PRIORITY_PARTS: u64 = 4;

/// Makes the limits that all cores will share for a backend; `None` where no server has or had one and a connection
/// carries one request at a time. The limits are not in force before [`ConnectionLimiter::commit`].
pub fn limiter(
    backend: &Backend,
    cores: usize,
    earlier: Option<(&Arc<ServerLimiter>, Predecessors)>,
) -> Option<Arc<ServerLimiter>> {
    let limits = backend.servers.iter().map(|server| server.max_connections.map_or(UNLIMITED, u32::from));
    let limits: Vec<u32> = limits.collect();
    let bounds = Bounds { limit: backend.queue.limit, order: order(backend) };
    if let Some((earlier, predecessors)) = earlier {
        return Some(Arc::new(earlier.succeeded_by(&limits, bounds, &predecessors)));
    }
    // Streams are waited for wherever servers allow fewer than are wanted.
    let makes_wait = limits.iter().any(|limit| *limit < UNLIMITED) || backend.protocol.may_be_http2();
    makes_wait.then(|| Arc::new(ConnectionLimiter::new(&limits, cores, bounds)))
}

fn order(backend: &Backend) -> Order {
    let millis = |limit: Duration| limit.as_millis() as u64;
    Order { target: backend.queue.target.map(millis), head_start: millis(backend.queue.timeout) / PRIORITY_PARTS }
}

fn terms(backend: &Backend) -> Terms {
    Terms {
        streams_max: match backend.protocol {
            ServerProtocol::Http1 | ServerProtocol::Http10 | ServerProtocol::FastCgi => 0,
            ServerProtocol::Http2 | ServerProtocol::Auto => backend.http2.max_streams as usize,
        },
        requests_max: backend.max_requests.map_or(u32::MAX, u32::from),
        order: order(backend),
    }
}

impl Pool {
    pub fn new(
        backend: &Backend,
        core: usize,
        limiter: Option<Arc<ServerLimiter>>,
        endpoints: Box<[Arc<Endpoint>]>,
        roamers: Rc<Roamers>,
    ) -> Pool {
        let servers = backend.servers.len();
        Pool {
            idle: (0..servers).map(|_| Rc::default()).collect(),
            kept: backend.servers.iter().map(|_| Rc::new(Cell::new(true))).collect(),
            idle_max: backend.max_idle,
            requests_max: backend.max_requests.map_or(u32::MAX, u32::from),
            core,
            endpoints,
            limiter,
            h2_pools: (0..servers).map(|server| Rc::new(H2Pool::new(server, terms(backend), &roamers))).collect(),
            roamers,
            streams_max: terms(backend).streams_max,
            warming: vec![Cell::new(0); servers],
            recent: vec![Cell::new(0); servers],
        }
    }

    /// As [`Pool::new`], with the connections to those servers that stay.
    pub fn succeeding(
        earlier: &Pool,
        backend: &Backend,
        limiter: Option<Arc<ServerLimiter>>,
        endpoints: Box<[Arc<Endpoint>]>,
        predecessors: &Predecessors,
    ) -> Pool {
        let mut pool = Pool::new(backend, earlier.core, limiter, endpoints, Rc::clone(&earlier.roamers));
        // Connections made without a permit are not counted by permits: requests in progress finish on the earlier
        // pool.
        if pool.limiter.is_some() != earlier.limiter.is_some() {
            return pool;
        }
        for (server, before) in predecessors.pairs() {
            pool.idle[server] = Rc::clone(&earlier.idle[before]);
            earlier.kept[before].set(pool.kept[server].get());
            pool.kept[server] = Rc::clone(&earlier.kept[before]);
            if !earlier.h2_pools[before].is_abandoned() {
                pool.h2_pools[server] = Rc::clone(&earlier.h2_pools[before]);
                pool.h2_pools[server].renew(server, terms(backend));
            }
        }
        pool
    }

    /// Closes what the pool that follows has not taken over, now and when it comes back.
    pub fn abandon_for(&self, later: Option<&Pool>, mut closed: impl FnMut(usize, usize)) {
        let taken: HashSet<_> = later.iter().flat_map(|later| &later.kept).map(Rc::as_ptr).collect();
        self.kept.iter().filter(|kept| !taken.contains(&Rc::as_ptr(kept))).for_each(|kept| kept.set(false));
        let taken: HashSet<_> = later.iter().flat_map(|later| &later.h2_pools).map(Rc::as_ptr).collect();
        self.h2_pools
            .iter()
            .filter(|h2_pool| !taken.contains(&Rc::as_ptr(h2_pool)))
            .for_each(|h2_pool| h2_pool.abandon());
        self.retain(|server, _| self.kept[server].get(), &mut closed);
    }

    /// Has the other cores know of what is here.
    pub fn commit(&self) {
        for server in 0..self.servers() {
            self.note(server);
            // Somebody may have joined the queue before these could be seen.
            self.give_away(server);
        }
    }

    /// Whether a request could get a connection to this server without waiting, as far as one can tell before trying.
    pub fn has_room(&self, server: usize) -> bool {
        self.limiter.as_ref().is_none_or(|limiter| {
            let is_barren = self.streams_max > 0 && self.h2_pools[server].is_barren();
            (limiter.has_room(server) && !is_barren)
                || (self.streams_max > 0 && self.h2_pools[server].has_room())
                || !limiter.is_wanted(server) && !self.idle[server].borrow().is_empty()
        })
    }

    /// Whether this server has a stream for a request that waits for another, or may have a first connection made.
    pub fn is_to_be_had(&self, server: usize, now: u64) -> bool {
        let h2_pool = &self.h2_pools[server];
        let has_permit = || self.limiter.as_ref().is_some_and(|limiter| limiter.has_room(server));
        self.endpoints[server].is_open() && (h2_pool.has_room() || (h2_pool.may_connect(now) && has_permit()))
    }

    /// Reserves a stream on an HTTP/2 connection, if one has room.
    pub fn stream(&self, services: &Rc<Services>, server: usize) -> Option<StreamPermit> {
        let h2_pool = &self.h2_pools[server];
        // A lower limit may have come into force after this core took over its configuration.
        let is_over = self.is_over(server);
        if is_over && !h2_pool.is_shedding() {
            h2_pool.shed_from_here_on();
        }
        if h2_pool.is_shedding() {
            h2_pool.shed(is_over);
        }
        h2_pool.stream(services)
    }

    fn is_over(&self, server: usize) -> bool {
        self.limiter.as_ref().is_some_and(|limiter| limiter.is_over(server))
    }

    /// Whether connections to this server are kept when their request is over.
    pub fn keeps(&self, server: usize) -> bool {
        self.kept[server].get()
    }

    /// Has a connection found by those who wait for one on this core, whatever the limits say of idle ones.
    pub fn lend(&self, connection: Box<ServerConnection>, now: u64) {
        let server = connection.key.server;
        self.idle[server].borrow_mut().push(Idle { connection, since: now });
        self.note(server);
    }

    /// Closes what was lent and not taken, where nothing is kept. Returns how many.
    pub fn take_back(&self, server: usize) -> usize {
        if self.keeps(server) {
            return 0;
        }
        let idle = self.idle[server].take();
        self.note(server);
        idle.len()
    }

    /// An idle connection that its server has not closed as far as the event loop knows, and how many were found
    /// closed. For a request that could not be repeated it is certain, at this time on the core's clock: the kernel is
    /// asked as well about a connection that was idle for a while. One that was in use a moment ago the event loop
    /// knows.
    pub fn checkout(&self, key: PoolKey, fit: Fit, certain: Option<u64>) -> (Option<Box<ServerConnection>>, u64) {
        let mut stale = 0;
        if self.limiter.as_ref().is_some_and(|limiter| limiter.is_wanted(key.server)) {
            // The connection belongs to those who wait.
            return (None, 0);
        }
        let found = loop {
            let mut all = self.idle[key.server].borrow_mut();
            let fits = |idle: &Idle| idle.connection.key.owner == key.owner && idle.connection.suits(fit);
            // The last one, nearly always.
            let found = match all.last() {
                None => None,
                Some(last) if fits(last) => all.pop(),
                Some(_) => all.iter().rposition(fits).map(|place| all.remove(place)),
            };
            let Some(mut idle) = found else { break None };
            drop(all);
            idle.connection.key = key;
            let current = self.endpoints[key.server].is_current(&mut idle.connection.remote);
            let stream = &mut idle.connection.stream;
            let asks = certain.is_some_and(|now| now >= idle.since + RECENT_MILLIS);
            if current && stream.is_still_quiet() && !(asks && stream.has_news()) && !idle.connection.is_expired() {
                break Some(idle.connection);
            }
            stale += 1;
            // The permit goes back here, which may wake somebody but does not come back to this pool.
            drop(idle);
        };
        if found.is_some() || stale > 0 {
            self.note(key.server);
        }
        (found, stale)
    }

    /// The connection gets no request after the one it is in.
    pub fn is_last_request(&self, connection: &ServerConnection) -> bool {
        connection.requests >= self.requests_max
    }

    /// Any idle connection of this server, the one idle for the longest: it is in the way of another.
    pub fn evict(&self, server: usize) -> Option<Box<ServerConnection>> {
        let mut all = self.idle[server].borrow_mut();
        let idle = (!all.is_empty()).then(|| all.remove(0))?;
        drop(all);
        self.note(server);
        Some(idle.connection)
    }

    /// Takes a connection back after a complete response, or a new one that was made ahead.
    pub fn check_in(&self, mut connection: Box<ServerConnection>, now: u64) -> Returned {
        let server = connection.key.server;
        // The last that was asked of it was its response's end, which was there: nobody's waker has stayed behind.
        if !connection.stream.is_still_quiet()
            || connection.requests >= self.requests_max
            || connection.is_expired()
            || !self.kept[server].get()
        {
            return Returned::Closed;
        }
        if let Some(limiter) = &self.limiter
            && (limiter.is_over(server) || connection.permit.is_none())
        {
            return Returned::Closed;
        }
        // No request goes to a closed server, and the server may wait for the end of its connections.
        let endpoint = &self.endpoints[server];
        if !endpoint.is_open() || !endpoint.is_current(&mut connection.remote) {
            return Returned::Closed;
        }
        if let Some(limiter) = &self.limiter
            && limiter.is_wanted(server)
        {
            match limiter.offer(server, connection, coarse_millis()) {
                Ok(()) => return Returned::HandedOver,
                Err(back) => connection = back,
            }
        }
        let mut all = self.idle[server].borrow_mut();
        if all.len() >= self.idle_max {
            return Returned::Closed;
        }
        all.push(Idle { connection, since: now });
        drop(all);
        self.note(server);
        // Somebody may have joined the queue just before this one could be seen.
        match self.give_away(server) {
            0 => Returned::Idle,
            _ => Returned::HandedOver,
        }
    }

    /// Hands idle connections to those who wait for this server. Returns how many.
    pub fn give_away(&self, server: usize) -> usize {
        let mut given = 0;
        let Some(limiter) = &self.limiter else { return 0 };
        while limiter.is_wanted(server) {
            let Some(idle) = self.idle[server].borrow_mut().pop() else { break };
            match limiter.offer(server, idle.connection, coarse_millis()) {
                Ok(()) => given += 1,
                Err(connection) => {
                    self.idle[server].borrow_mut().push(Idle { connection, since: idle.since });
                    break;
                }
            }
        }
        if given > 0 {
            self.note(server);
        }
        given
    }

    /// Idle connections of a server.
    pub fn idle(&self, server: usize) -> usize {
        self.idle[server].borrow().len()
    }

    /// The core it is of.
    pub fn core(&self) -> usize {
        self.core
    }

    pub fn servers(&self) -> usize {
        self.idle.len()
    }

    /// Closes connections that the servers have closed, that have been idle since before `limit`, whose time is up, or
    /// that lead to a server closed or moved by now. A connection idle since before `rested` gives up the memory that
    /// it can do without. Returns counts by server.
    pub fn sweep(&self, limit: u64, rested: u64, closed: impl FnMut(usize, usize)) {
        let keep = |server: usize, idle: &mut Idle| {
            let connection = &mut idle.connection;
            let endpoint = &self.endpoints[server];
            let is_kept = idle.since >= limit
                && self.kept[server].get()
                && endpoint.is_open()
                && endpoint.is_current(&mut connection.remote)
                && connection.stream.is_quiet()
                && !connection.is_expired();
            // Memory is released after the check for received bytes, which may be session tickets.
            if is_kept && idle.since < rested {
                connection.stream.rest();
            }
            is_kept
        };
        self.h2_pools.iter().zip(&self.endpoints).for_each(|(h2_pool, endpoint)| h2_pool.sweep(endpoint.is_open()));
        self.retain(keep, closed);
    }

    /// Closes idle connections of servers that have more than they may, since their limit was lowered. To be called
    /// again and again: a limit comes into force at about the time at which cores take over what it stands in.
    pub fn trim(&self, mut closed: impl FnMut(usize, usize)) {
        for server in (0..self.servers()).filter(|server| self.is_over(*server)) {
            self.h2_pools[server].shed_from_here_on();
            while self.is_over(server)
                && let Some(idle) = self.evict(server)
            {
                closed(server, 1);
                drop(idle);
            }
        }
    }

    /// Closes what belongs to a client that is gone.
    pub fn forget(&self, owner: NonZeroU64, closed: impl FnMut(usize, usize)) {
        self.retain(|_, idle| idle.connection.key.owner != Some(owner), closed);
    }

    /// Closes everything.
    pub fn clear(&self, closed: impl FnMut(usize, usize)) {
        self.h2_pools.iter().for_each(|h2_pool| h2_pool.clear());
        self.retain(|_, _| false, closed);
    }

    fn retain(&self, mut keep: impl FnMut(usize, &mut Idle) -> bool, mut closed: impl FnMut(usize, usize)) {
        for server in 0..self.idle.len() {
            let gone: Vec<Idle> = self.idle[server].borrow_mut().extract_if(.., |idle| !keep(server, idle)).collect();
            if !gone.is_empty() {
                closed(server, gone.len());
                drop(gone);
                self.note(server);
            }
        }
    }

    /// Says what others could have of this core's: idle connections, and those of many streams, which make way
    /// ([`H2Pool::make_way`]).
    pub fn note(&self, server: usize) {
        if let Some(limiter) = &self.limiter {
            limiter.note_idle(self.core, server, self.idle(server) + self.h2_pools[server].links());
        }
    }
}

#[cfg(test)]
mod tests;
