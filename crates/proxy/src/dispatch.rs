//! Clients that go from the core that accepted them to another: see `propylon_policy::dispatch`, which decides.
//!
//! A client is handed over before anything of it is read or counted, with its place among the connections that the
//! process may have. The core that gets it treats it as if it had accepted it. A client that stays may be handed over
//! between two requests, with what is known of it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::{SocketAddr, TcpStream};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use propylon_config::Config;
use propylon_http::proxy_protocol::Ends;
use propylon_net::timers::coarse_millis;
use propylon_observe::telemetry::BackendMetrics;
use propylon_policy::dispatch::board::Board;
use propylon_policy::dispatch::rebalance::Moves;
use propylon_policy::dispatch::{Dispatch, Load, Reason, mean};
use propylon_tls::{EstablishedSession, Facts};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::overload::files::ConnectionsMax;

/// Fractions of a connection that the mean of the connections is kept in.
const SCALE: u32 = 64;

/// A client on its way to another core.
pub struct Handover {
    pub stream: TcpStream,
    pub visitor: Visitor,
    /// Index of its listener in the configuration of this generation.
    pub listener: usize,
    generation: u64,
}

/// Facts that are known of a client on its way.
pub enum Visitor {
    /// Accepted a moment ago, from that address.
    New(SocketAddr),
    AtRest(Box<AtRest>),
}

/// A connection of HTTP/1 between two requests, with nothing of it under way: plain data, beside its socket. Its count
/// among those of its source goes along with its place.
pub struct AtRest {
    pub peer: SocketAddr,
    /// `None` on plaintext.
    pub tls: Option<EstablishedSession>,
    pub facts: Option<Facts>,
    pub handshake_us: Option<u32>,
    pub requests: u32,
    /// Milliseconds on the clock that all cores share.
    pub accepted: u64,
    pub proxied: Option<Ends>,
    /// Backends that its requests went to, the first one first.
    pub backends: Vec<Arc<BackendMetrics>>,
    pub moves: Moves,
}

/// State by which all cores spread their clients.
pub struct Dispatcher {
    board: Board<Handover>,
    connections_max: ConnectionsMax,
    /// A place has been given back while somebody waits for one.
    room: Notify,
}

impl Dispatcher {
    /// The dispatcher of a process with this configuration; none where each worker keeps what comes to its sockets.
    pub fn start(config: &Config, workers: usize, connections_max: ConnectionsMax) -> Option<Arc<Dispatcher>> {
        (config.process.dispatch && workers > 1).then(|| Arc::new(Dispatcher::new(workers, connections_max)))
    }

    fn new(workers: usize, connections_max: ConnectionsMax) -> Dispatcher {
        Dispatcher { board: Board::new(workers, connections_max.all), connections_max, room: Notify::new() }
    }

    fn give_back(&self) {
        if self.board.places.give_back() {
            self.room.notify_one();
        }
    }

    /// Waits until there is a place, or there was one a moment ago.
    pub async fn wait_for_room(&self) {
        let mut room = pin!(self.room.notified());
        room.as_mut().enable();
        let _wanted = self.board.places.want();
        if !self.board.places.has_room() {
            room.await;
        }
    }
}

/// One core's part.
pub struct CoreDispatch {
    pub dispatcher: Arc<Dispatcher>,
    index: usize,
    policy: RefCell<Dispatch>,
    /// The policy's answer to `is_attentive`, as each request's end asks for it.
    is_attentive: Cell<bool>,
    work: RefCell<Work>,
}

/// Moving means of a core's work.
struct Work {
    /// Time of the last look, and time for which the core had been busy by then.
    looked: Instant,
    busy: Duration,
    /// Thousandths, and `SCALE`ths of a connection.
    busy_mean: u32,
    connections_mean: u32,
}

impl Work {
    fn look(&mut self, connections: u32) -> (u32, u32) {
        let (now, busy) = (Instant::now(), Handle::current().metrics().worker_total_busy_duration(0));
        let passed = now.duration_since(self.looked).as_micros().max(1);
        let share = (busy.saturating_sub(self.busy).as_micros() * 1_000 / passed).min(1_000) as u32;
        (self.looked, self.busy) = (now, busy);
        self.busy_mean = mean(self.busy_mean, share);
        self.connections_mean = mean(self.connections_mean, connections.saturating_mul(SCALE));
        (self.busy_mean, self.connections_mean / SCALE)
    }
}

impl CoreDispatch {
    /// To be called on the worker's own core.
    pub fn new(dispatcher: Arc<Dispatcher>, index: usize) -> CoreDispatch {
        let share = u32::try_from(dispatcher.connections_max.each).unwrap_or(u32::MAX);
        let policy = RefCell::new(Dispatch::new(index, dispatcher.board.cores(), share));
        let work = Work { looked: Instant::now(), busy: Duration::ZERO, busy_mean: 0, connections_mean: 0 };
        CoreDispatch { dispatcher, index, policy, is_attentive: Cell::new(false), work: RefCell::new(work) }
    }

    /// The core has so many connections.
    pub fn set_connections(&self, connections: usize) {
        self.dispatcher.board.set_connections(self.index, u32::try_from(connections).unwrap_or(u32::MAX));
    }

    /// A connection has ended.
    pub fn give_back(&self) {
        self.dispatcher.give_back();
    }

    /// Once a tick: the others see what this core has to do, and that it runs.
    pub fn tick(&self, connections: usize, handshakes: usize) {
        self.policy.borrow_mut().tick();
        let (busy, busy_connections) = self.work.borrow_mut().look(u32::try_from(connections).unwrap_or(u32::MAX));
        let handshakes = u32::try_from(handshakes).unwrap_or(u32::MAX);
        let load = Load { busy, busy_connections, handshakes, ..Load::default() };
        self.dispatcher.board.beat(self.index, coarse_millis(), load);
        self.rebalance();
    }

    /// Looks whether there is too much to do here for those who stay.
    fn rebalance(&self) {
        let (board, now) = (&self.dispatcher.board, coarse_millis());
        let mut policy = self.policy.borrow_mut();
        let load = |core| Some(board.load(core, now)).filter(|load| !load.is_stalled && board.may_host(core, now));
        policy.rebalance(load, board.load(self.index, now), |core| board.host(core, now));
        self.is_attentive.set(policy.is_attentive());
    }

    /// A connection of HTTP/1 is between two requests. `may_leave` says whether it could go to another core, and is
    /// asked where that is of interest. Returns the core that it goes to, if it is to go.
    pub fn note_rest(&self, connection: u32, may_leave: impl FnOnce(u64) -> bool) -> Option<usize> {
        if !self.is_attentive.get() {
            return None;
        }
        let mut policy = self.policy.borrow_mut();
        if may_leave(coarse_millis()) {
            return policy.note_rest(connection);
        }
        policy.note_other();
        None
    }

    /// A request is over whose connection goes nowhere.
    pub fn note_other(&self) {
        if self.is_attentive.get() {
            self.policy.borrow_mut().note_other();
        }
    }

    /// Cores that stand still and whose clients this one accepts.
    pub fn wards(&self) -> impl Iterator<Item = usize> {
        self.dispatcher.board.wards(self.index, coarse_millis())
    }

    /// The core that a client goes to; none: it stays here.
    fn pick(&self, random: u64) -> Option<(usize, Reason)> {
        let now = coarse_millis();
        self.policy.borrow_mut().pick(|core| self.dispatcher.board.load(core, now), random)
    }

    /// Takes the clients that are on their way to a core that stands still, by this generation's listeners.
    #[must_use]
    pub fn take_waiting(&self, ward: usize, generation: u64) -> VecDeque<Handover> {
        self.dispatcher.board.take_waiting(ward, generation)
    }

    /// Takes clients of this generation's listeners from here on; returns those that have come with the one before.
    #[must_use]
    pub fn open(&self, generation: u64) -> VecDeque<Handover> {
        self.dispatcher.board.open(self.index, generation)
    }

    /// Takes no clients any more; returns those that have come.
    #[must_use]
    pub fn close(&self) -> VecDeque<Handover> {
        self.dispatcher.board.close(self.index)
    }

    /// The next client that another core hands over.
    pub async fn receive(&self) -> Handover {
        poll_fn(|context| self.dispatcher.board.poll_receive(self.index, context)).await
    }
}

/// A worker's mailbox, for as long as the worker lives. Clients that it leaves there go to others: a worker that fails
/// takes none with it.
pub struct Mailbox(pub Rc<CoreDispatch>);

impl Drop for Mailbox {
    fn drop(&mut self) {
        let dispatch = &self.0;
        let board = &dispatch.dispatcher.board;
        for client in dispatch.close() {
            let mut others = (0..board.cores()).filter(|core| *core != dispatch.index);
            let left = others.try_fold(client, |client, core| board.send(core, client.generation, client).err());
            // No other takes clients where all end: then they are lost with their process.
            if left.is_some() {
                dispatch.give_back();
            }
        }
    }
}

/// A place among the connections that the process may have, from before the accept until the connection has it.
/// Nothing, on a core that keeps its own clients.
pub struct Place<'c>(Option<&'c CoreDispatch>);

impl<'c> Place<'c> {
    /// Takes a place; there is none where all are taken.
    pub fn take(dispatch: Option<&'c CoreDispatch>) -> Option<Place<'c>> {
        // Made only where there is one: its drop gives one back.
        dispatch.is_none_or(|dispatch| dispatch.dispatcher.board.places.take()).then(|| Place(dispatch))
    }

    /// A place for a client that is served in any case.
    pub fn take_anyway(dispatch: Option<&'c CoreDispatch>) -> Place<'c> {
        dispatch.iter().for_each(|dispatch| dispatch.dispatcher.board.places.take_anyway());
        Place(dispatch)
    }

    /// The place that a client has brought along.
    pub fn brought(dispatch: Option<&'c CoreDispatch>) -> Place<'c> {
        Place(dispatch)
    }

    /// The connection has it, and gives it back.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|dispatch| dispatch.give_back());
    }
}

/// A client that was accepted here, with its place.
pub type Client<'c> = (TcpStream, SocketAddr, Place<'c>);

impl CoreDispatch {
    /// Hands a client to another core, if that is to serve it. `listener` is its index in the configuration of that
    /// generation.
    ///
    /// # Errors
    /// The client, if it stays.
    pub fn hand_over<'c>(
        &self,
        random: u64,
        (generation, listener): (u64, usize),
        client: Client<'c>,
    ) -> Result<Reason, Client<'c>> {
        let Some((to, reason)) = self.pick(random) else { return Err(client) };
        let (stream, peer, place) = client;
        let client = Handover { stream, visitor: Visitor::New(peer), listener, generation };
        match self.dispatcher.board.send(to, generation, client) {
            Ok(()) => {
                place.keep();
                Ok(reason)
            }
            Err(Handover { stream, .. }) => Err((stream, peer, place)),
        }
    }

    /// Hands a client that stays to the core `to`, with its place. `listener` is its index in the configuration of that
    /// generation.
    ///
    /// # Errors
    /// The client, if that core does not take it.
    pub fn hand_over_at_rest(
        &self,
        to: usize,
        (generation, listener): (u64, usize),
        (stream, at_rest): (TcpStream, AtRest),
    ) -> Result<(), Handover> {
        let visitor = Visitor::AtRest(Box::new(at_rest));
        self.dispatcher.board.send(to, generation, Handover { stream, visitor, listener, generation })
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use propylon_observe::telemetry::LimitedBy;

    use super::*;

    fn core(dispatcher: &Arc<Dispatcher>, index: usize) -> (Rc<CoreDispatch>, Mailbox) {
        let dispatch = Rc::new(CoreDispatch::new(Arc::clone(dispatcher), index));
        assert!(dispatch.open(1).is_empty());
        (Rc::clone(&dispatch), Mailbox(dispatch))
    }

    /// A client of the listener with this number.
    fn client(listener: usize) -> Handover {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(socket.local_addr().unwrap()).unwrap();
        let visitor = Visitor::New(stream.peer_addr().unwrap());
        Handover { stream, visitor, listener, generation: 1 }
    }

    /// One of three cores fails with three clients in its mailbox, while another has other listeners already.
    #[test]
    fn clients_in_the_mailbox_of_a_core_that_fails_are_served_by_another() {
        let max = ConnectionsMax { all: 9, each: 3, by: LimitedBy::Configuration };
        let dispatcher = Arc::new(Dispatcher::new(3, max));
        let (one, mailbox_of_one) = core(&dispatcher, 0);
        let (failing, mailbox) = core(&dispatcher, 1);
        let (_other, _mailbox) = core(&dispatcher, 2);
        assert!(dispatcher.board.open(2, 2).is_empty());
        for listener in 0..3 {
            assert!(dispatcher.board.places.take());
            assert!(dispatcher.board.send(failing.index, 1, client(listener)).is_ok());
        }
        let failed = catch_unwind(AssertUnwindSafe(move || {
            let _mailbox = mailbox;
            panic!("a worker fails");
        }));
        assert!(failed.is_err());
        assert!(dispatcher.board.send(failing.index, 1, client(9)).is_err(), "nobody is there any more");
        let came: Vec<usize> = one.close().iter().map(|client| client.listener).collect();
        assert_eq!(came, [0, 1, 2]);
        // Each brings its place along: six are left.
        let places = &dispatcher.board.places;
        assert_eq!((0..9).filter(|_| places.take()).count(), 6);
        drop(mailbox_of_one);
    }
}
