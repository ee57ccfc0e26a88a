//! The connections to one server of HTTP/2 on a core, and the requests that wait for a stream on one of them.
//!
//! A stream that becomes free goes to the request that is next in the pool's queue, and no other request is woken.
//! Requests that wait see to further connections: one at a time until the server has shown that they are of use, and
//! later and later after one that came to nothing, or on which the server allows no streams. While any connection is
//! open no request fails for another connection's sake.
//!
//! A place in the pool's queue is one in the backend's, but for those whom a connection that is being made will serve.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use propylon_http::fault::Fault;
use propylon_http::h2::Reason;
use propylon_http::h2::hpack::BlockWriter;
use propylon_net::alarms::sleep;
use propylon_net::timers::coarse_millis;
use propylon_observe::telemetry::BackendMetrics;
use propylon_policy::queue::{Arrival, Order, Queue, QueueTicket, Turns};
use propylon_sys::Address;
use tokio::task::spawn_local;

use super::connection::ServerLimiter;
use crate::endpoint::{Endpoint, EndpointAddress};
use crate::fault::{Attempt, Repeatable};
use crate::http2::Link;
use crate::services::{Driver, Services};

/// Connections to one server that a core makes at the same time, once one of them has been of use.
const CONNECTING_MAX: usize = 4;
/// Open connections on which the server allows no streams; a further one would not be of more use.
const BARREN_MAX: usize = 4;
/// Pause of a core, beside a connection that is open, before it makes another after one that was of no use, in ms: at
/// first, and at most. The pause doubles each time.
const PAUSE_MILLIS_MIN: u64 = 100;
const PAUSE_MILLIS_MAX: u64 = 5_000;
/// Time for which a core's only connection to a server with a limit is used before it makes way for another core's, in
/// ms: making one costs some round trips.
const SHARE_MILLIS: u64 = 100;

/// Settings of a pool from the configuration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    /// Limit on concurrent streams of one connection.
    pub streams_max: usize,
    /// Limit on streams over a connection's life.
    pub requests_max: u32,
    pub order: Order,
}

/// The connections to one server.
#[derive(Default)]
pub struct H2Pool {
    /// Index of the server in the last configuration that has the pool.
    server: Cell<usize>,
    terms: Cell<Terms>,
    links: RefCell<Vec<Rc<H2Connection>>>,
    /// Number of connections being made.
    connecting: Cell<usize>,
    /// Requests that wait for a stream.
    queue: RefCell<Queue<Rc<Waiter>>>,
    turns: RefCell<Turns>,
    /// Tickets of those of them who are not counted among all who wait.
    uncounted: RefCell<BTreeSet<QueueTicket>>,
    number: Cell<u64>,
    /// Requests that wait in the backend's queue for the right to make a connection: one that this core has will do.
    watching: RefCell<BTreeMap<QueueTicket, Waker>>,
    pace: Pace,
    /// Whether the server chose HTTP/1.1 by ALPN the last time.
    speaks_http1: Cell<bool>,
    /// Whether only requests of earlier configurations use the pool.
    abandoned: Cell<bool>,
    /// Whether there are more connections than the limit, since that was lowered.
    shedding: Cell<bool>,
    /// Requests that wait for any server of the backend.
    roamers: Rc<Roamers>,
}

/// Requests that wait for a stream of one server, and would take one of another.
#[derive(Default)]
pub struct Roamers {
    list: RefCell<BTreeMap<QueueTicket, Roamer>>,
    number: Cell<u64>,
}

struct Roamer {
    /// Connections to the other servers.
    wants: Rc<[Rc<H2Pool>]>,
    waker: Waker,
}

/// A request's entry among the roamers. Dropping it leaves them.
pub struct Roaming {
    services: Rc<Services>,
    roamers: Rc<Roamers>,
    ticket: QueueTicket,
    wants: Rc<[Rc<H2Pool>]>,
}

impl Roamers {
    /// Joins the requests that are invited to a stream of another server; `arrival` is the request's.
    pub fn join(
        self: &Rc<Roamers>,
        services: &Rc<Services>,
        wants: Rc<[Rc<H2Pool>]>,
        arrival: Arrival,
        context: &Context<'_>,
    ) -> Roaming {
        let order = wants.first().map_or(Order::default(), |h2_pool| h2_pool.terms.get().order);
        let ticket = order.ticket(arrival, self.number.get());
        self.number.set(self.number.get() + 1);
        let roaming = Roaming { services: Rc::clone(services), roamers: Rc::clone(self), ticket, wants };
        roaming.stay(context);
        roaming
    }

    fn is_empty(&self) -> bool {
        self.list.borrow().is_empty()
    }

    /// Wakes the first roamer that would take a stream of this server, and removes it from the roamers.
    fn invite(&self, to: &H2Pool) {
        let mut list = self.list.borrow_mut();
        let is_wanted = |roamer: &Roamer| roamer.wants.iter().any(|h2_pool| std::ptr::eq(&**h2_pool, to));
        let first = list.iter().find(|(_, roamer)| is_wanted(roamer)).map(|(ticket, _)| *ticket);
        let invited = first.and_then(|first| list.remove(&first));
        drop(list);
        invited.into_iter().for_each(|roamer| roamer.waker.wake());
    }
}

impl Roaming {
    /// Waits again after an invitation whose stream was gone.
    pub fn stay(&self, context: &Context<'_>) {
        let roamer = Roamer { wants: Rc::clone(&self.wants), waker: context.waker().clone() };
        let before = self.roamers.list.borrow_mut().insert(self.ticket, roamer);
        drop(before);
    }

    /// Whether the request was invited to another server's stream.
    pub fn is_invited(&self, context: &Context<'_>) -> bool {
        match self.roamers.list.borrow_mut().get_mut(&self.ticket) {
            Some(roamer) => {
                roamer.waker.clone_from(context.waker());
                false
            }
            None => true,
        }
    }
}

impl Drop for Roaming {
    fn drop(&mut self) {
        let left = self.roamers.list.borrow_mut().remove(&self.ticket);
        // An invitation that was not needed is the next request's.
        if left.is_none() {
            let now = self.services.timers.now();
            self.wants.iter().for_each(|pool| pool.invite_again(now));
        }
    }
}

/// State that decides when the pool makes further connections.
#[derive(Default)]
struct Pace {
    /// Whether the last connection that was made has served a request.
    is_proven: Cell<bool>,
    /// Length of the last pause in milliseconds; 0 after a connection that was of use.
    pause: Cell<u64>,
    /// End of the pause, in milliseconds on the core's clock.
    until: Cell<u64>,
    /// Whether a timer is set for the end of the pause.
    is_armed: Cell<bool>,
}

impl Pace {
    fn quicken(&self) {
        self.is_proven.set(true);
        self.pause.set(0);
        self.until.set(0);
    }

    fn slow(&self, now: u64) {
        self.is_proven.set(false);
        self.pause.set((self.pause.get() * 2).clamp(PAUSE_MILLIS_MIN, PAUSE_MILLIS_MAX));
        self.until.set(now + self.pause.get());
    }
}

/// Answer that a request in a pool's queue gets.
pub enum Answer {
    Stream(StreamPermit),
    /// The server speaks HTTP/1.1, and a connection lies in the pool.
    Look,
    /// There is no connection, and this is why the last one came to nothing.
    Failed(Attempt),
    /// The backend's queue is full.
    Full,
}

/// A request that waits for a stream, as the pool's queue holds it.
pub struct Waiter {
    services: Rc<Services>,
    /// The turn by which it should have its stream.
    due: u64,
    backend: Arc<BackendMetrics>,
    limiter: Arc<ServerLimiter>,
    waker: RefCell<Option<Waker>>,
    answer: Cell<Option<Answer>>,
    counted: RefCell<Option<Counted>>,
}

/// One of those who wait at a backend, until it is dropped.
struct Counted {
    services: Rc<Services>,
    backend: Arc<BackendMetrics>,
    limiter: Arc<ServerLimiter>,
    ticket: QueueTicket,
    began: Instant,
    /// Milliseconds on the core's clock.
    since: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.limiter.leave(self.ticket);
        self.services.metrics.lower(self.backend.queue_depth);
        self.services.metrics.observe(self.backend.queue_wait, self.began.elapsed().as_micros() as u64);
    }
}

impl Waiter {
    /// False where as many wait as may.
    fn count(&self, arrival: Arrival) -> bool {
        let none: Box<[usize]> = Box::default();
        let Ok(ticket) = self.limiter.join_again(none, arrival, coarse_millis()) else { return false };
        let services = Rc::clone(&self.services);
        services.metrics.raise(self.backend.queue_depth);
        let since = services.timers.now();
        let (limiter, backend) = (Arc::clone(&self.limiter), Arc::clone(&self.backend));
        *self.counted.borrow_mut() = Some(Counted { services, backend, limiter, ticket, began: Instant::now(), since });
        self.wake();
        true
    }

    /// Whether it has had to make way for others in the backend's queue.
    fn is_displaced(&self, context: &Context<'_>) -> bool {
        let counted = self.counted.borrow();
        counted.as_ref().is_some_and(|counted| self.limiter.poll(counted.ticket, context).is_ready())
    }

    fn hear(&self, answer: Answer) {
        self.answer.set(Some(answer));
        self.wake();
    }

    fn wake(&self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}

/// A request that waits for a stream in a pool's queue. Dropping it leaves the queue.
pub struct PendingStream {
    h2_pool: Rc<H2Pool>,
    ticket: QueueTicket,
    waiter: Rc<Waiter>,
    is_new: bool,
}

impl PendingStream {
    /// Polls for the answer; to be called each time, and to be called no more once there is one. Other requests are
    /// served as far as this one does not need to be: new ones have to take a place among all who wait.
    pub fn poll(&mut self, context: &Context<'_>) -> Poll<Answer> {
        if std::mem::take(&mut self.is_new) {
            self.h2_pool.enlist();
        }
        if let Some(answer) = self.waiter.answer.take() {
            return Poll::Ready(answer);
        }
        if self.waiter.is_displaced(context) {
            return Poll::Ready(Answer::Full);
        }
        let mut waker = self.waiter.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
        Poll::Pending
    }

    /// Leaves the queue for another server, which is no sign that clients give up.
    pub fn leave_for_another(&self) {
        let left = self.h2_pool.give(self.ticket);
        drop(left);
    }

    /// Time since which the backend's queue counts the request, in milliseconds on the core's clock.
    pub fn since(&self) -> Option<u64> {
        self.waiter.counted.borrow().as_ref().map(|counted| counted.since)
    }

    /// Time for which the backend's queue has counted the request, in microseconds.
    pub fn waited(&self) -> Option<u64> {
        self.waiter.counted.borrow().as_ref().map(|counted| counted.began.elapsed().as_micros() as u64)
    }
}

impl Drop for PendingStream {
    fn drop(&mut self) {
        self.h2_pool.lose(self.ticket);
        let now = self.waiter.services.timers.now();
        match self.waiter.answer.take() {
            // The stream goes to the next in the queue.
            Some(Answer::Stream(stream)) => drop(stream),
            Some(Answer::Look) => self.h2_pool.nudge(),
            _ => {}
        }
        // This request may have been the one to see to a connection.
        self.h2_pool.stir(now);
    }
}

/// A connection to a server.
pub struct H2Connection {
    services: Rc<Services>,
    pub link: Link,
    /// Whether no further stream may begin.
    is_closed: Cell<bool>,
    pub is_tls: bool,
    pub(super) streams: Cell<usize>,
    /// Reserved streams that have not begun.
    pub(super) reserved: Cell<usize>,
    /// Number of streams begun on the connection.
    requests: Cell<u32>,
    /// Streams that the server allowed when that was last looked at.
    allowed: Cell<usize>,
    expires: Option<Instant>,
    /// Endpoint of the server: whether it is open, and still has the connection's address.
    endpoint: Arc<Endpoint>,
    remote: Cell<EndpointAddress>,
    /// Time at which the connection was made, in milliseconds on the core's clock.
    since: u64,
    /// Whether the server has given a whole response on this connection.
    pub(super) has_answered: Cell<bool>,
    /// Waker of the connection's driver.
    pub(super) driver: Rc<Driver>,
    /// Time at which the last stream ended, in milliseconds on the core's clock.
    pub(super) left: Cell<u64>,
    /// Whether this side ends the connection.
    is_dismissed: Cell<bool>,
}

/// The right to begin a stream, which holds though the connection is closed for others meanwhile.
pub struct StreamPermit {
    reservation: Reservation,
    pub slot: H2Slot,
}

/// A stream that is to be begun.
struct Reservation(Rc<H2Connection>);

impl Drop for Reservation {
    fn drop(&mut self) {
        self.0.reserved.set(self.0.reserved.get() - 1);
        if !self.0.is_open() {
            self.0.link.wake_driver();
        }
    }
}

impl StreamPermit {
    /// Begins the stream with a head of which `write` writes the fields. `end`: it has no body. `None` where the server
    /// takes no more.
    pub fn open(self, end: bool, write: impl FnOnce(&mut BlockWriter<'_>)) -> Option<(H2Slot, u32)> {
        let StreamPermit { reservation, slot } = self;
        let id = slot.link.link.open_stream(end, write)?;
        drop(reservation);
        Some((slot, id))
    }
}

/// A reserved stream for one request. Dropping it frees the reservation.
pub struct H2Slot {
    pub link: Rc<H2Connection>,
    h2_pool: Rc<H2Pool>,
}

impl Drop for H2Slot {
    fn drop(&mut self) {
        self.link.streams.set(self.link.streams.get() - 1);
        let services = &self.link.services;
        self.link.left.set(services.timers.now());
        services.windows.end();
        if self.link.streams.get() == 0 && (self.h2_pool.abandoned.get() || self.h2_pool.shedding.get()) {
            self.link.close();
        }
        // A connection that takes no further streams ends with its last one.
        if self.link.streams.get() == 0 && !self.link.is_open() {
            self.link.link.wake_driver();
        }
        self.h2_pool.serve(services);
    }
}

impl H2Connection {
    pub(super) fn new(
        link: Link,
        is_tls: bool,
        expires: Option<Instant>,
        (endpoint, remote): (Arc<Endpoint>, EndpointAddress),
        services: &Rc<Services>,
    ) -> H2Connection {
        let (now, driver) = (services.timers.now(), Rc::default());
        services.windows.watch(&driver);
        H2Connection {
            services: Rc::clone(services),
            link,
            is_closed: Cell::new(false),
            is_tls,
            streams: Cell::new(0),
            reserved: Cell::new(0),
            requests: Cell::new(0),
            allowed: Cell::new(0),
            expires,
            endpoint,
            remote: Cell::new(remote),
            since: now,
            has_answered: Cell::new(false),
            driver,
            left: Cell::new(now),
            is_dismissed: Cell::new(false),
        }
    }

    /// Number of streams begun on the connection.
    pub fn requests(&self) -> u32 {
        self.requests.get()
    }

    /// Address that the connection was made to.
    pub fn peer(&self) -> Address {
        self.remote.get().address
    }

    /// Whether the server takes WebSockets (RFC 8441 §3).
    pub fn speaks_websocket(&self) -> bool {
        self.link.h2.borrow().peer_settings().enable_connect
    }

    /// The server has given a whole response on this connection.
    pub fn has_answered(&self) -> bool {
        self.has_answered.get()
    }

    /// The server has ended the connection by GOAWAY with an error.
    pub fn has_failed(&self) -> bool {
        self.link.h2.borrow().goaway().is_some_and(|goaway| goaway.reason != Reason::NO_ERROR)
    }

    /// Has no further streams; who has one may begin a stream, and those begun go on.
    pub fn close(&self) {
        self.is_closed.set(true);
        self.link.wake_driver();
    }

    /// The same where it is not the server who wants it.
    pub fn dismiss(&self) {
        self.is_dismissed.set(true);
        self.close();
    }

    pub fn is_open(&self) -> bool {
        !self.is_closed.get()
    }

    /// Streams that the server allows at a time (RFC 9113 §5.1.2).
    fn allowed(&self) -> usize {
        if self.is_closed.get() { 0 } else { self.link.h2.borrow().streams_allowed() }
    }

    /// The server allows no streams, for now.
    fn is_barren(&self) -> bool {
        self.is_open() && self.allowed() == 0
    }

    /// Whether the server allows more streams than it did.
    pub(super) fn allows_more(&self) -> bool {
        let allowed = self.allowed();
        self.allowed.replace(allowed) < allowed
    }

    /// Whether the connection's address still is one of its server's.
    fn is_current(&self) -> bool {
        let mut remote = self.remote.get();
        let current = self.endpoint.is_current(&mut remote);
        self.remote.set(remote);
        current
    }

    fn has_room(&self, terms: Terms) -> bool {
        // A server that does not read gets no further requests to hold for it.
        if !self.is_open() || self.link.is_full() {
            return false;
        }
        // The server has said GOAWAY, or the identifiers are used up.
        if !self.link.h2.borrow().may_open() {
            self.close();
            return false;
        }
        let worn = self.requests.get() >= terms.requests_max;
        if worn || self.expires.is_some_and(|expires| Instant::now() >= expires) || !self.is_current() {
            self.dismiss();
            return false;
        }
        self.streams.get() < terms.streams_max.min(self.allowed())
    }
}

impl H2Pool {
    pub fn new(server: usize, terms: Terms, roamers: &Rc<Roamers>) -> H2Pool {
        let (server, terms) = (Cell::new(server), Cell::new(terms));
        H2Pool { server, terms, roamers: Rc::clone(roamers), ..H2Pool::default() }
    }

    /// Sets the pool's index and limits when another configuration takes the pool over.
    pub fn renew(&self, server: usize, terms: Terms) {
        self.server.set(server);
        self.terms.set(terms);
    }

    /// Index of the server among these pools of the configuration in effect; none where only earlier ones know it.
    pub fn index_in(self: &Rc<H2Pool>, h2_pools: &[Rc<H2Pool>]) -> Option<usize> {
        let server = self.server.get();
        h2_pools.get(server).is_some_and(|h2_pool| Rc::ptr_eq(h2_pool, self)).then_some(server)
    }

    /// Reserves a stream for a request that has just arrived, if no earlier one waits.
    pub fn stream(self: &Rc<H2Pool>, services: &Rc<Services>) -> Option<StreamPermit> {
        if !self.queue.borrow().is_empty() {
            return None;
        }
        let stream = self.free_stream(services);
        self.invite();
        stream
    }

    /// Passes on an invitation that still holds.
    fn invite_again(&self, now: u64) {
        if !self.roamers.is_empty() && (self.has_room() || self.may_connect(now)) {
            self.roamers.invite(self);
        }
    }

    /// A stream that nobody here waits for is one for somebody who waits for another server.
    fn invite(&self) {
        if !self.roamers.is_empty() && self.has_room() {
            self.roamers.invite(self);
        }
    }

    /// A stream on a connection that has one, the fullest first: those that are not needed are to become idle.
    fn free_stream(self: &Rc<H2Pool>, services: &Rc<Services>) -> Option<StreamPermit> {
        let links = self.links.borrow();
        let with_room = links.iter().filter(|link| link.has_room(self.terms.get()));
        let link = Rc::clone(with_room.max_by_key(|link| link.streams.get())?);
        link.streams.set(link.streams.get() + 1);
        link.reserved.set(link.reserved.get() + 1);
        // Only its first stream says that the connection which was made last is of use: the old one's streams do not.
        if link.requests.get() == 0 {
            self.pace.quicken();
        }
        link.requests.set(link.requests.get().saturating_add(1));
        services.windows.begin();
        let reservation = Reservation(Rc::clone(&link));
        Some(StreamPermit { reservation, slot: H2Slot { link, h2_pool: Rc::clone(self) } })
    }

    pub fn has_room(&self) -> bool {
        self.queue.borrow().is_empty() && self.links.borrow().iter().any(|link| link.has_room(self.terms.get()))
    }

    /// Joins the queue, with a request of this arrival on the clock that all cores share.
    pub fn join(
        self: &Rc<H2Pool>,
        services: &Rc<Services>,
        backend: &Arc<BackendMetrics>,
        limiter: &Arc<ServerLimiter>,
        arrival: Arrival,
    ) -> PendingStream {
        let ticket = self.terms.get().order.ticket(arrival, self.number.get());
        self.number.set(self.number.get() + 1);
        let waiter = Rc::new(Waiter {
            services: Rc::clone(services),
            due: self.turns.borrow().due(self.queue.borrow().len()),
            backend: Arc::clone(backend),
            limiter: Arc::clone(limiter),
            waker: RefCell::default(),
            answer: Cell::default(),
            counted: RefCell::default(),
        });
        self.queue.borrow_mut().join(ticket, Rc::clone(&waiter));
        self.uncounted.borrow_mut().insert(ticket);
        PendingStream { h2_pool: Rc::clone(self), ticket, waiter, is_new: true }
    }

    /// Removes a request from the queue, if it is there.
    fn leave(&self, ticket: QueueTicket) -> Option<Rc<Waiter>> {
        self.uncounted.borrow_mut().remove(&ticket);
        self.queue.borrow_mut().leave(ticket)
    }

    /// Removes a request from the queue that is next and gets a stream.
    fn give(&self, ticket: QueueTicket) -> Option<Rc<Waiter>> {
        let waiter = self.leave(ticket)?;
        self.turns.borrow_mut().give();
        Some(waiter)
    }

    /// Removes a request from the queue that leaves unserved, if it is there.
    fn lose(&self, ticket: QueueTicket) -> Option<Rc<Waiter>> {
        let waiter = self.leave(ticket)?;
        self.turns.borrow_mut().lose(waiter.due, self.queue.borrow().len());
        Some(waiter)
    }

    /// Ticket of the request that is next.
    fn next(&self, now: u64) -> Option<QueueTicket> {
        self.queue.borrow().next(&self.turns.borrow(), self.terms.get().order, now)
    }

    /// Gives free streams to the requests that are next.
    pub fn serve(self: &Rc<H2Pool>, services: &Rc<Services>) {
        let now = coarse_millis();
        while let Some(next) = self.next(now) {
            let Some(stream) = self.free_stream(services) else { break };
            match self.give(next) {
                Some(waiter) => waiter.hear(Answer::Stream(stream)),
                None => break,
            }
        }
        self.stir(services.timers.now());
        self.invite();
    }

    /// Has somebody see to what those who wait need. Without any connection each of them has to find another way.
    fn stir(&self, now: u64) {
        let queue = self.queue.borrow();
        if !self.is_alive() {
            queue.iter().for_each(|(_, waiter)| waiter.wake());
        } else if (self.wants_connection(now) || self.wants_alarm(now))
            && let Some(waiter) = queue.oldest().and_then(|oldest| queue.get(oldest))
        {
            waiter.wake();
        }
    }

    /// A connection lies in the pool for the next of those who wait.
    fn nudge(&self) {
        let waiter = self.next(coarse_millis()).and_then(|next| self.give(next));
        waiter.iter().for_each(|waiter| waiter.hear(Answer::Look));
    }

    /// Counts the requests that wait among all who wait, but for those that the connections being made will serve. If
    /// there are too many, the backend's queue says which is refused.
    fn enlist(&self) {
        let exempt = self.connecting.get().saturating_mul(self.terms.get().streams_max);
        if self.uncounted.borrow().len() > exempt {
            let beyond: Vec<QueueTicket> = self.uncounted.borrow().iter().skip(exempt).copied().collect();
            beyond.into_iter().for_each(|ticket| self.admit(ticket));
        }
    }

    fn admit(&self, ticket: QueueTicket) {
        self.uncounted.borrow_mut().remove(&ticket);
        if self.queue.borrow().get(ticket).is_none_or(|waiter| waiter.count(ticket.arrival())) {
            return;
        }
        let refused = self.lose(ticket);
        refused.iter().for_each(|waiter| waiter.hear(Answer::Full));
    }

    /// Whether those who wait are more than those being made will serve, and another may be made now.
    pub fn wants_connection(&self, now: u64) -> bool {
        let (waiting, connecting) = (self.queue.borrow().len(), self.connecting.get());
        if self.speaks_http1.get() {
            return waiting > connecting;
        }
        let most = if self.pace.is_proven.get() { CONNECTING_MAX } else { 1 };
        let is_needed = connecting < most && waiting > connecting * self.terms.get().streams_max;
        is_needed && (!self.is_open() || now >= self.pace.until.get()) && self.barren() < BARREN_MAX
    }

    /// Whether a first connection may be made for a request that waits elsewhere: none is there or being made, nobody
    /// waits for one, and the last one was of use.
    pub fn may_connect(&self, now: u64) -> bool {
        !self.is_alive() && self.queue.borrow().is_empty() && now >= self.pace.until.get()
    }

    /// Whether the pause alone keeps the pool from making another connection.
    fn wants_alarm(&self, now: u64) -> bool {
        now < self.pace.until.get() && !self.pace.is_armed.get() && self.wants_connection(self.pace.until.get())
    }

    /// Sets a timer for the time at which another connection may be made.
    pub fn arm(self: &Rc<H2Pool>, services: &Rc<Services>) {
        let now = services.timers.now();
        if !self.wants_alarm(now) {
            return;
        }
        self.pace.is_armed.set(true);
        let (h2_pool, services) = (Rc::clone(self), Rc::clone(services));
        let pause = Duration::from_millis(self.pace.until.get() - now);
        spawn_local(async move {
            sleep(pause).await;
            h2_pool.pace.is_armed.set(false);
            h2_pool.stir(services.timers.now());
        });
    }

    /// The server allows no streams on the connections that there are. Requests had better go elsewhere.
    pub fn is_barren(&self) -> bool {
        let links = self.links.borrow();
        let mut open = links.iter().filter(|link| link.is_open()).peekable();
        open.peek().is_some() && open.all(|link| link.is_barren())
    }

    /// Count of requests that wait for a stream.
    pub fn waiting(&self) -> usize {
        self.queue.borrow().len()
    }

    fn barren(&self) -> usize {
        self.links.borrow().iter().filter(|link| link.is_barren()).count()
    }

    fn is_open(&self) -> bool {
        self.links.borrow().iter().any(|link| link.is_open())
    }

    /// Abandons connections that the configuration in force has no use for: each ends with its last stream. Requests
    /// that began before find the connections, and get others, for as long as they last.
    pub fn abandon(&self) {
        self.abandoned.set(true);
        self.close_unused();
    }

    pub fn is_abandoned(&self) -> bool {
        self.abandoned.get()
    }

    /// Ends surplus connections, as counted over all cores: unused ones at once, others one by one.
    pub fn shed_from_here_on(&self) {
        self.shedding.set(true);
        self.close_unused();
    }

    pub fn is_shedding(&self) -> bool {
        self.shedding.get()
    }

    /// Has the emptiest connection end with its streams, if there is another and none is ending already.
    pub fn shed(&self, is_over: bool) {
        if !is_over {
            return self.shedding.set(false);
        }
        let links = self.links.borrow();
        if links.len() > 1
            && links.iter().all(|link| link.is_open())
            && let Some(emptiest) = links.iter().min_by_key(|link| link.streams.get())
        {
            emptiest.dismiss();
        }
    }

    fn close_unused(&self) {
        self.links.borrow().iter().filter(|link| link.streams.get() == 0).for_each(|link| link.dismiss());
    }

    /// Whether there is a connection on which a stream will become free.
    pub fn is_alive(&self) -> bool {
        self.connecting.get() > 0 || self.is_open()
    }

    /// Count of the pool's connections.
    pub fn links(&self) -> usize {
        self.links.borrow().len()
    }

    /// Wakes the driver of each connection: requests of another core wait for one to this server, which has as many as
    /// it may, or streams have other windows.
    pub fn call(&self) {
        for link in self.links.borrow().iter() {
            link.driver.borrow().iter().for_each(Waker::wake_by_ref);
        }
    }

    /// Whether this connection is to end for the sake of other cores; `others` are the requests of theirs that came
    /// first and last. At most one ends at a time, the emptiest; a core's only one, unless it is idle after use, not
    /// before it has been in use for `SHARE_MILLIS` and a request of theirs has the next turn. Otherwise the time at
    /// which to look again.
    pub(super) fn make_way(
        &self,
        link: &Rc<H2Connection>,
        others: (QueueTicket, QueueTicket),
        now: u64,
    ) -> Result<(), u64> {
        let links = self.links.borrow();
        if links.iter().any(|other| !other.is_open()) {
            return Err(u64::MAX);
        }
        let emptiest = links.iter().min_by_key(|other| other.streams.get());
        if !emptiest.is_some_and(|emptiest| Rc::ptr_eq(emptiest, link)) {
            return Err(u64::MAX);
        }
        let is_idle = link.streams.get() == 0 && link.requests.get() > 0;
        let due = link.since + SHARE_MILLIS;
        if is_idle || links.len() > 1 {
            return Ok(());
        }
        match (now >= due, self.is_before(others)) {
            (true, false) => Ok(()),
            (true, true) => Err(now + SHARE_MILLIS),
            (false, _) => Err(due),
        }
    }

    /// Whether the next turn is a request's that waits here, not one of those elsewhere, first and last.
    fn is_before(&self, (first, last): (QueueTicket, QueueTicket)) -> bool {
        let queue = self.queue.borrow();
        let Some(own_first) = queue.oldest() else { return false };
        let own_last = queue.newest_of(own_first.priority).unwrap_or(own_first);
        let longest = own_first.since.min(first.since);
        match self.turns.borrow().is_newest_first(self.terms.get().order, longest, coarse_millis()) {
            true => own_last.is_newer(last),
            false => own_first.is_before(first),
        }
    }

    /// Connections that carry one request at a time may be idle in the pool.
    pub fn speaks_http1(&self) -> bool {
        self.speaks_http1.get()
    }

    /// Somebody in the backend's queue is to be woken once there is a connection here, or one is being made.
    pub fn watch(&self, ticket: QueueTicket, context: &Context<'_>) {
        self.watching.borrow_mut().insert(ticket, context.waker().clone());
    }

    pub fn watch_no_more(&self, ticket: QueueTicket) {
        let waker = self.watching.borrow_mut().remove(&ticket);
        drop(waker);
    }

    /// Counts a connection that is being made.
    pub(super) fn begun(&self) {
        self.connecting.set(self.connecting.get() + 1);
        self.watching.take().into_values().for_each(Waker::wake);
    }

    /// Adds a connection that was made.
    pub(super) fn opened(self: &Rc<H2Pool>, services: &Rc<Services>, link: &Rc<H2Connection>) {
        let now = services.timers.now();
        self.speaks_http1.set(false);
        self.connecting.set(self.connecting.get() - 1);
        link.allows_more();
        if link.is_barren() {
            self.pace.slow(now);
        }
        self.links.borrow_mut().push(Rc::clone(link));
        self.serve(services);
        self.enlist();
    }

    /// A connection was made whose server wants to be spoken to in HTTP/1.1, and lies in the pool.
    pub(super) fn opened_http1(&self, now: u64) {
        self.speaks_http1.set(true);
        self.connecting.set(self.connecting.get() - 1);
        self.nudge();
        self.enlist();
        self.stir(now);
    }

    /// Notes that a connection could not be made; requests that wait get the error, unless there is another connection.
    pub(super) fn failed(&self, attempt: Attempt, now: u64) {
        self.connecting.set(self.connecting.get() - 1);
        self.was_of_no_use(attempt, now);
    }

    fn was_of_no_use(&self, attempt: Attempt, now: u64) {
        self.pace.slow(now);
        if self.is_alive() {
            self.enlist();
            return self.stir(now);
        }
        self.uncounted.take();
        let queue = self.queue.take();
        queue.iter().for_each(|(_, waiter)| waiter.hear(Answer::Failed(attempt)));
    }

    /// Removes a connection that has ended.
    pub(super) fn ended(self: &Rc<H2Pool>, services: &Rc<Services>, link: &Rc<H2Connection>) {
        link.close();
        self.links.borrow_mut().retain(|known| !Rc::ptr_eq(known, link));
        if link.requests.get() == 0 && !link.is_dismissed.get() {
            let unused = Attempt::new(Fault::ClosedBeforeResponse, Repeatable::Unsent);
            self.was_of_no_use(unused, services.timers.now());
        }
        self.serve(services);
        // Another connection may be made in its place, unless this one was of no use.
        if self.may_connect(services.timers.now()) {
            self.roamers.invite(self);
        }
    }

    /// Ends the connections that have no streams.
    pub fn clear(&self) {
        self.links.borrow().iter().for_each(|link| link.dismiss());
    }

    /// Ends those that lead to a server that is closed or elsewhere, each when its last stream is over. Who waits
    /// for a server that is not open has to look for another.
    pub fn sweep(&self, is_open: bool) {
        {
            let links = self.links.borrow();
            links.iter().filter(|link| !link.endpoint.is_open() || !link.is_current()).for_each(|link| link.dismiss());
        }
        if !is_open {
            self.queue.borrow().iter().for_each(|(_, waiter)| waiter.wake());
            self.watching.take().into_values().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_twice_as_long_each_time_up_to_the_longest_and_short_again_after_one_of_use() {
        let pace = Pace::default();
        let pauses = || {
            pace.slow(1_000);
            pace.until.get() - 1_000
        };
        assert_eq!([(); 8].map(|()| pauses()), [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        assert!(!pace.is_proven.get());
        pace.quicken();
        assert!(pace.is_proven.get() && pace.until.get() == 0);
        pace.slow(1_000);
        assert_eq!(pace.until.get(), 1_100);
    }
}
