//! One core's links: its own listening sockets, its connections, and nothing shared with other cores on the way of
//! a request but the lines of expensive work.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use propylon_crypto::key_process::HERE;
use propylon_crypto::{Job, Outcome};
use propylon_metrics::Column;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::sleep;

use crate::access::Rules;
use crate::connection::Connection;
use crate::hsm::Tokens;
use crate::kernels::{Kernels, Role, Seen};
use crate::keys::Keys;
use crate::lobby::{Lobby, Source};
use crate::rate::Rates;
use crate::signing::{Lines, Note};
use crate::telemetry::{End, Telemetry};

/// Taken from a socket at once: 60 requests.
const READ_BYTES: usize = 64 * 1024;
/// Pause before accepting again after an accept failed.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Pause before an engine that takes nothing is tried again.
const HERE_REST: Duration = Duration::from_millis(10);
/// Connections on their way from the core that accepted them to the one that serves them.
const HANDED_OVER_MAX: usize = 128;

/// State that all cores share.
pub struct Shared {
    pub keys: ArcSwap<Keys>,
    /// Absent where nobody comes by TCP.
    pub tls: ArcSwapOption<ServerConfig>,
    pub rules: Rules,
    pub rates: Rates,
    pub connections_max: usize,
    /// Connections of each core.
    counts: Box<[AtomicUsize]>,
}

/// An order to a worker.
pub enum Order {
    Serve(std::net::TcpStream),
    /// Drop this: whoever has another of it sees that this core goes on.
    Beat(Arc<()>),
    /// Accept no more, have every connection finish, and end.
    Drain,
}

pub struct Worker {
    pub index: usize,
    pub shared: Arc<Shared>,
    pub listeners: Vec<TcpListener>,
    /// Socket to one core of the engine whose key process this is; absent in a server of its own.
    pub pair: Option<OwnedFd>,
    pub orders: mpsc::Receiver<Order>,
    /// Order channels of all workers, this one included.
    pub doors: Vec<mpsc::Sender<Order>>,
    pub lines: Lines,
    pub tokens: Tokens,
    pub kernels: Kernels,
    pub column: Column,
    pub telemetry: &'static Telemetry,
    pub idle_timeout: Duration,
    pub timeout: Duration,
}

/// State that the connections of a core share.
pub struct Desk {
    pub shared: Arc<Shared>,
    pub lines: Lines,
    pub tokens: Tokens,
    pub column: Column,
    pub telemetry: &'static Telemetry,
    pub idle_timeout: Duration,
    pub timeout: Duration,
    pub scratch: RefCell<Scratch>,
    index: usize,
    doors: Vec<mpsc::Sender<Order>>,
    open: RefCell<HashMap<u64, mpsc::Sender<Note>>>,
    lobby: RefCell<Lobby>,
    last: Notify,
}

/// Room for one turn, which no other connection needs meanwhile.
pub struct Scratch {
    pub bytes: Box<[u8]>,
    pub ids: Vec<u32>,
    pub jobs: Vec<Job>,
    pub outcomes: Vec<Outcome>,
    /// The counts of this thread's kernels that have been reported.
    pub seen: Seen,
}

impl Shared {
    pub fn new(
        keys: Keys,
        tls: Option<Arc<ServerConfig>>,
        rules: Rules,
        connections_max: usize,
        workers: usize,
    ) -> Shared {
        let counts = (0..workers).map(|_| AtomicUsize::new(0)).collect();
        let (keys, tls) = (ArcSwap::from_pointee(keys), ArcSwapOption::new(tls));
        Shared { keys, tls, rules, rates: Rates::default(), connections_max, counts }
    }

    /// Takes a place on the core that has the fewest connections, `own` if it is one of them. Connections are few
    /// and live long, so that the kernel's dice alone would leave some cores with none. Absent if all places are
    /// taken.
    fn admit(&self, own: usize) -> Option<usize> {
        let load = |index: usize| self.counts[index].load(Ordering::Relaxed);
        if (0..self.counts.len()).map(load).sum::<usize>() >= self.connections_max {
            return None;
        }
        let least = (0..self.counts.len()).min_by_key(|index| (load(*index), *index != own)).unwrap_or(own);
        self.counts[least].fetch_add(1, Ordering::Relaxed);
        Some(least)
    }

    fn leave(&self, index: usize) {
        self.counts[index].fetch_sub(1, Ordering::Relaxed);
    }
}

/// The channel on which a worker is told things.
pub fn door() -> (mpsc::Sender<Order>, mpsc::Receiver<Order>) {
    mpsc::channel(HANDED_OVER_MAX)
}

impl Worker {
    /// Serves until it is told to drain and the last connection has ended; `ready` is waited for by all threads.
    pub fn run(self, ready: &Barrier) -> io::Result<()> {
        self.kernels.install(if self.pair.is_some() { Role::Beside } else { Role::Links });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else {
            ready.wait();
            return runtime.map(drop);
        };
        LocalSet::new().block_on(&runtime, self.serve(ready))
    }

    async fn serve(mut self, ready: &Barrier) -> io::Result<()> {
        let mut seen = Seen::default();
        self.telemetry.kernels.report(&self.column, &mut seen, 0, 0);
        let lobby = Lobby::new(self.shared.connections_max, self.doors.len());
        let desk = Rc::new(Desk {
            shared: self.shared,
            lines: self.lines,
            tokens: self.tokens,
            column: self.column,
            telemetry: self.telemetry,
            idle_timeout: self.idle_timeout,
            timeout: self.timeout,
            scratch: RefCell::new(Scratch::new(seen)),
            index: self.index,
            doors: self.doors,
            open: RefCell::default(),
            lobby: RefCell::new(lobby),
            last: Notify::new(),
        });
        let accepting = self.listeners.into_iter().map(|listener| desk.listen(listener));
        let accepting: io::Result<Vec<JoinHandle<()>>> = accepting.collect();
        // Blocks this thread, which has nothing else to do before all others are as far.
        ready.wait();
        let accepting = accepting?;
        self.pair.map(|pair| desk.serve_engine(pair)).transpose()?;
        let mut serial = 0;
        while let Some(order) = self.orders.recv().await {
            match order {
                Order::Serve(stream) => {
                    serial += 1;
                    desk.serve(stream, serial);
                }
                Order::Beat(beat) => drop(beat),
                Order::Drain => break,
            }
        }
        accepting.iter().for_each(JoinHandle::abort);
        // Connections that were on their way here are not begun any more.
        while let Ok(order) = self.orders.try_recv() {
            if matches!(order, Order::Serve(_)) {
                desk.shared.leave(desk.index);
            }
        }
        desk.drain().await;
        Ok(())
    }
}

impl Desk {
    fn listen(self: &Rc<Self>, listener: TcpListener) -> io::Result<JoinHandle<()>> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let desk = Rc::clone(self);
        Ok(spawn_local(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => desk.accepted(stream).await,
                    Err(_) => {
                        desk.column.increment(desk.telemetry.accept_errors);
                        sleep(ACCEPT_REST).await;
                    }
                }
            }
        }))
    }

    /// Finds the core that serves a connection.
    async fn accepted(&self, stream: TcpStream) {
        self.column.increment(self.telemetry.accepted);
        let Some(index) = self.shared.admit(self.index).or_else(|| self.make_room()) else {
            self.column.increment(self.telemetry.turned_away);
            return;
        };
        let _ = stream.set_nodelay(true);
        let is_sent = match stream.into_std() {
            // Waits if that core is behind with its new connections: then this one accepts no more for a while.
            Ok(stream) => self.doors[index].send(Order::Serve(stream)).await.is_ok(),
            Err(_) => false,
        };
        if !is_sent {
            self.shared.leave(index);
        }
    }

    /// Takes the place of a connection without a certificate, if this core has any, when all places are taken. The
    /// displaced one leaves in a moment, and until then there is one connection more.
    fn make_room(&self) -> Option<usize> {
        let serial = self.lobby.borrow().first_to_go()?;
        self.displace(serial);
        self.shared.counts[self.index].fetch_add(1, Ordering::Relaxed);
        Some(self.index)
    }

    fn displace(&self, serial: u64) {
        self.has_come_in(serial);
        if let Some(ear) = self.open.borrow().get(&serial) {
            // The channel has room for this note.
            let _ = ear.try_send(Note::MakeRoom);
        }
    }

    /// A connection has shown its certificate, or need not any more.
    pub fn has_come_in(&self, serial: u64) {
        self.lobby.borrow_mut().leave(serial);
        self.column.set(self.telemetry.handshaking, self.lobby.borrow().len() as i64);
    }

    fn serve(self: &Rc<Self>, stream: std::net::TcpStream, serial: u64) {
        let place = Taken { desk: Rc::clone(self), serial, end: End::Broken };
        self.column.raise(self.telemetry.connections);
        let Ok(stream) = TcpStream::from_std(stream) else { return };
        // Gone already.
        let Ok(peer) = stream.peer_addr() else { return };
        let Some(tls) = self.shared.tls.load_full() else { return };
        let Ok(connection) = Connection::new(Rc::clone(self), serial, stream, tls) else { return };
        self.open.borrow_mut().insert(serial, connection.ear());
        let goes = self.lobby.borrow_mut().enter(serial, Source::of(peer.ip()));
        goes.into_iter().for_each(|serial| self.displace(serial));
        self.column.set(self.telemetry.handshaking, self.lobby.borrow().len() as i64);
        spawn_local(async move {
            let mut place = place;
            let peer = log::log_enabled!(log::Level::Debug).then(|| connection.peer()).flatten();
            place.end = connection.run().await;
            if let Some(peer) = peer {
                log::debug!("{peer}: ended: {:?}", place.end);
            }
        });
    }

    /// Serves the engine for as long as this process lives, which exits when the engine's socket ends: the
    /// supervisor starts another.
    fn serve_engine(self: &Rc<Self>, pair: OwnedFd) -> io::Result<()> {
        propylon_sys::set_nonblocking(&pair, true)?;
        let connection = Connection::beside(Rc::clone(self), 0, pair.try_clone()?)?;
        spawn_local(async move {
            // The word that this process is here follows what the process before has left unanswered, which is
            // asked again.
            while propylon_sys::try_send_message(&pair, HERE).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
            {
                sleep(HERE_REST).await;
            }
            let end = connection.run().await;
            // An end with unread words on their way counts as the engine's end too: it did not wait for them.
            let is_over = matches!(end, End::Client | End::Broken);
            if !is_over {
                log::error!("key process: an engine's socket cannot be served any more: {end:?}");
            }
            log::logger().flush();
            std::process::exit(i32::from(!is_over));
        });
        Ok(())
    }

    async fn drain(&self) {
        for ear in self.open.borrow().values() {
            // The channel has room for this note.
            let _ = ear.try_send(Note::Drain);
        }
        while !self.open.borrow().is_empty() {
            self.last.notified().await;
        }
    }
}

/// A connection's place, given back however the connection ends.
struct Taken {
    desk: Rc<Desk>,
    serial: u64,
    end: End,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let desk = &self.desk;
        desk.open.borrow_mut().remove(&self.serial);
        desk.has_come_in(self.serial);
        desk.shared.leave(desk.index);
        desk.column.lower(desk.telemetry.connections);
        desk.column.increment(desk.telemetry.ended[self.end as usize]);
        if std::thread::panicking() {
            desk.column.increment(desk.telemetry.panics);
        }
        desk.last.notify_one();
    }
}

impl Scratch {
    fn new(seen: Seen) -> Scratch {
        let bytes = vec![0; READ_BYTES].into_boxed_slice();
        Scratch { bytes, ids: Vec::new(), jobs: Vec::new(), outcomes: Vec::new(), seen }
    }
}
