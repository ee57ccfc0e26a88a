//! A worker: one thread on one core, with its own listeners, connections and pools.

use std::cell::RefCell;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use propylon_crypto::batch::Batching;
use propylon_metrics::Column;
use propylon_net::alarms::{self, sleep};
use propylon_net::budget::{self, Budget};
use propylon_net::listen::Bound;
use propylon_net::ticks::Ticks;
use propylon_net::timers::TICK;
use propylon_observe::access_log::LogBuffer;
use propylon_observe::telemetry::{LimitedBy, Reason, Telemetry, UNTRUSTED_PEER};
use propylon_policy::dispatch::Reason::Stall;
use propylon_tls::{Parking, ParkingLimits};
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{Notify, watch};
use tokio::task::{spawn_local, yield_now};

use crate::batches;
use crate::core::Core;
use crate::dispatch::{Client, CoreDispatch, Dispatcher, Handover, Mailbox, Place, Visitor};
use crate::downstream::connection::{go_on, serve};
use crate::overload::files::ConnectionsMax;
use crate::overload::{Room, Shared};
use crate::services::{ListenerHandle, Services};
use crate::snapshot::{CoreSnapshot, Publication};
use crate::trace::Outbox;
use crate::upstream::backend::Upstreams;
use crate::upstream::warm::warm;

/// Connections accepted in a row before others have their turn.
const ACCEPTS_MAX: usize = 32;
/// How long accepting rests when the process is out of files or memory, or the socket fails.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Turns that relays and tunnels get to end in when the process ends, and how long each is.
const CUT_OFF_TURNS: u32 = 50;
const CUT_OFF_TURN: Duration = Duration::from_millis(2);
/// Ticks between two sweeps of the pools: one second.
const SWEEP_TICKS: u32 = 10;

/// Phase that the main thread wants the workers to be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Everything is made ready, and nothing is accepted: another process still serves.
    Waiting,
    Serving,
    /// The worker accepts no connections and finishes the requests in progress.
    Draining,
    /// As `Draining`, while a successor serves: nobody has to hurry. Clients may stay until told to go elsewhere.
    Succeeded,
    /// End now.
    Stopping,
}

impl Phase {
    /// Nothing more is accepted, for good.
    fn is_over(self) -> bool {
        !matches!(self, Phase::Waiting | Phase::Serving)
    }
}

/// Resources that a worker is given.
pub struct Assignment {
    /// Counts from 0; also the worker's column of the metrics.
    pub index: usize,
    /// The core to stay on; none where pinning is not possible.
    pub pin: Option<usize>,
    /// Configuration to go by, now and later.
    pub published: watch::Receiver<Arc<Publication>>,
    pub column: Column,
    pub telemetry: Arc<Telemetry>,
    pub log: LogBuffer,
    pub spans: Outbox,
    pub shared: Arc<Shared>,
    pub connections_max: ConnectionsMax,
    /// Spreads clients over the workers; none where each keeps what comes to its sockets.
    pub dispatcher: Option<Arc<Dispatcher>>,
    pub batching: Arc<Batching>,
    /// Socket to the process that holds the private keys.
    pub key_process: Option<OwnedFd>,
    pub phase: watch::Receiver<Phase>,
}

/// Starts a worker. Its thread ends when the phase is `Stopping`, or one of a drain and nothing is left to do. The
/// worker goes by the first publication once its sockets are watched.
pub fn start(assignment: Assignment) -> io::Result<JoinHandle<io::Result<()>>> {
    let name = format!("worker-{}", assignment.index);
    std::thread::Builder::new().name(name).spawn(move || run(assignment))
}

fn run(assignment: Assignment) -> io::Result<()> {
    if let Some(core) = assignment.pin
        && let Err(error) = propylon_sys::pin_to_core(core)
    {
        log::warn!("worker {} cannot stay on core {core}: {error}", assignment.index);
    }
    // Handshakes that may be parked run on stacks of 32 KiB.
    propylon_sys::block_signals()?;
    let mut builder = Builder::new_current_thread();
    // Without timers of the runtime's own, which would be asked at each turn: sleeps are alarms.
    builder.enable_io();
    if batches::makes_ahead(&assignment.batching) {
        // Before it waits for events; a core that is busy passes there as well, once a turn.
        builder.on_thread_park(batches::refill);
    }
    let runtime = builder.build_local(LocalOptions::default())?;
    runtime.block_on(work(assignment))
}

async fn work(assignment: Assignment) -> io::Result<()> {
    let Assignment {
        index,
        mut published,
        column,
        telemetry,
        log,
        spans,
        shared,
        connections_max,
        dispatcher,
        batching,
        key_process,
        mut phase,
        ..
    } = assignment;
    alarms::start()?;
    let seed = fastrand::u64(..);
    let first = Arc::clone(&published.borrow_and_update());
    // Every handshake in progress may wait for a key server: none of them is to fail for want of a place.
    let remote = first.snapshot.config.process.handshakes.in_progress;
    let parking = Parking::new(ParkingLimits { remote, ..ParkingLimits::default() });
    let deferral = batches::install(&batching);
    let limits = (first.snapshot.config.process.handshakes, deferral.rsa);
    let services = Services::new(limits, Rc::clone(&parking), column, telemetry, log, (shared, seed));
    let dispatch = dispatcher.map(|dispatcher| Rc::new(CoreDispatch::new(dispatcher, index)));
    let _mailbox = dispatch.clone().map(Mailbox);
    dispatch.into_iter().for_each(|dispatch| drop(services.dispatch.set(dispatch)));
    let upstreams = Upstreams::new(&services);
    let snapshot = CoreSnapshot::new(&first, index, deferral, &parking, &upstreams);
    let core = Core::new(snapshot, upstreams);
    core.take_outbox(spans);
    let mut doors = ListeningSockets {
        core: Rc::clone(&core),
        worker: index,
        connections_max,
        phase: phase.clone(),
        open: Vec::new(),
    };
    doors.open(&first.snapshot.sockets)?;
    first.adopted();
    if let Some(dispatch) = core.dispatch.get() {
        admit_all(&core, dispatch.open(first.snapshot.generation));
        spawn_local(receive(Rc::clone(&core)));
    }
    drop(first);
    spawn_local(reload_listeners(doors, published));
    spawn_local(tick(Rc::clone(&core), Ticks::every(TICK)?, phase.clone()));
    spawn_local(Rc::clone(&core.services).leave_desk());
    spawn_local(Rc::clone(&core.resting).attend());
    key_process.into_iter().for_each(|socket| core.take_key_process(socket));
    core.start();
    spawn_local(Rc::clone(&core.handshake_limiter).drive());
    // The sender lives as long as the process.
    let _ = phase.wait_for(|phase| phase.is_over()).await;
    if *phase.borrow() == Phase::Succeeded {
        core.let_go_slowly();
    }
    core.draining.set(true);
    // Clients on their way here were accepted for us; those who would send more keep them.
    core.dispatch.get().into_iter().for_each(|dispatch| admit_all(&core, dispatch.close()));
    core.timers.wake_all();
    core.upstreams.clear();
    loop {
        tokio::select! {
            _ = phase.wait_for(|phase| *phase == Phase::Stopping) => break,
            // The accept loops empty their queues first, which takes a turn.
            () = sleep(TICK) => {
                if core.connections.get() == 0 {
                    break;
                }
            }
        }
    }
    if core.requests.get() > 0 {
        cut_off(&core).await;
    }
    core.resting.clear();
    core.upstreams.clear();
    core.tick(false);
    // Something may still have the core when its tasks are gone: the process ends once the log has its lines.
    core.log.borrow_mut().close();
    // The exporter waits for nobody's spans after this.
    core.end_traces();
    Ok(())
}

/// Has relays and tunnels end: with resets, since an end in order would pass for their peer's, and with their lines in
/// the log. Requests are cut off with their tasks.
async fn cut_off(core: &Core) {
    core.cuts_off.set(true);
    core.timers.wake_all();
    for _ in 0..CUT_OFF_TURNS {
        if core.requests.get() == 0 {
            break;
        }
        sleep(CUT_OFF_TURN).await;
    }
}

/// A listener whose accepts we make ourselves: tokio's own would register every connection with the event loop at once.
#[expect(
    deprecated,
    reason = "deprecated for types that may close their file behind its back; std's listener does not"
)]
fn watched(socket: Arc<TcpListener>) -> io::Result<AsyncFd<Arc<TcpListener>>> {
    AsyncFd::new(socket)
}

/// Goes by whatever the main thread publishes; of several in between only the last counts.
async fn reload_listeners(mut doors: ListeningSockets, mut published: watch::Receiver<Arc<Publication>>) {
    while published.changed().await.is_ok() {
        let publication = Arc::clone(&published.borrow_and_update());
        let sockets = &publication.snapshot.sockets;
        doors.close(sockets);
        if let Some(dispatch) = doors.core.dispatch.get() {
            // A core that drains stays closed.
            let generation = if doors.core.draining.get() { 0 } else { publication.snapshot.generation };
            admit_all(&doors.core, dispatch.open(generation));
        }
        doors.core.adopt(&publication, doors.worker);
        if let Err(error) = doors.open(sockets) {
            log::error!("worker {}: a listening socket cannot be watched: {error}", doors.worker);
        }
        publication.adopted();
    }
}

/// The listening sockets of one worker.
struct ListeningSockets {
    core: Rc<Core>,
    worker: usize,
    /// Client connections at once.
    connections_max: ConnectionsMax,
    phase: watch::Receiver<Phase>,
    open: Vec<(Bound, Weak<ListeningSocket>)>,
}

/// A listening socket. The accepting task owns it, and closes it at its end.
struct ListeningSocket {
    /// Listener that the socket belongs to: a reload may give the address to another listener.
    listener: RefCell<Rc<ListenerHandle>>,
    bound: Bound,
    socket: AsyncFd<Arc<TcpListener>>,
    closing: Notify,
}

impl ListeningSockets {
    /// Closes those that are not among `sockets`. Connections that the kernel has accepted on them are promised to
    /// clients already, and are served on the snapshot that has their listeners.
    fn close(&mut self, sockets: &[Bound]) {
        let core = &self.core;
        self.open.retain(|(known, listening)| {
            let stays = sockets.iter().any(|bound| bound.is_same(known));
            if !stays && let Some(listening) = listening.upgrade() {
                listening.take_all(core);
                listening.closing.notify_one();
            }
            stays
        });
    }

    /// Accepts on new sockets, and sets the listener of those that stay.
    fn open(&mut self, sockets: &[Bound]) -> io::Result<()> {
        let snapshot = self.core.snapshot();
        let listeners = &snapshot.listeners;
        // First what is there: no socket keeps a listener that is gone if a new one cannot be watched.
        for bound in sockets {
            for (_, listening) in self.open.iter().filter(|(known, _)| known.is_same(bound)) {
                listening
                    .upgrade()
                    .iter()
                    .for_each(|listening| *listening.listener.borrow_mut() = Rc::clone(&listeners[bound.listener]));
            }
        }
        for bound in sockets {
            for socket in bound.take(self.worker) {
                let listener = RefCell::new(Rc::clone(&listeners[bound.listener]));
                let socket = watched(socket)?;
                let listening =
                    Rc::new(ListeningSocket { listener, bound: bound.clone(), socket, closing: Notify::new() });
                self.open.push((bound.clone(), Rc::downgrade(&listening)));
                spawn_local(accept(Rc::clone(&self.core), listening, self.connections_max, self.phase.clone()));
            }
        }
        Ok(())
    }
}

impl ListeningSocket {
    fn listener(&self) -> Rc<ListenerHandle> {
        Rc::clone(&self.listener.borrow())
    }

    fn take_all(&self, core: &Rc<Core>) {
        while let Ok((stream, peer)) = propylon_sys::accept(self.socket.get_ref()) {
            admit(core, &self.listener(), (stream, peer, Place::take_anyway(core.dispatch())));
        }
    }

    /// Waits for room among the connections that there may be, while the process is in the same phase. False where the
    /// socket is to be closed.
    async fn pause(
        &self,
        core: &Core,
        by: LimitedBy,
        phase: &mut watch::Receiver<Phase>,
        room: impl Future<Output = ()>,
    ) -> bool {
        core.metrics.increment(core.telemetry.process.accept_pauses);
        let paused = self.listener().metrics.paused[by as usize];
        core.metrics.raise(paused);
        let stays = tokio::select! {
            () = room => true,
            () = self.closing.notified() => false,
            _ = phase.changed() => true,
        };
        core.metrics.lower(paused);
        stays
    }
}

/// Serves the clients that other cores hand over.
async fn receive(core: Rc<Core>) {
    let Some(dispatch) = core.dispatch.get() else { return };
    loop {
        for _ in 0..ACCEPTS_MAX {
            let client = dispatch.receive().await;
            admit_all(&core, [client]);
        }
        yield_now().await;
    }
}

/// Serves clients that have come from other cores by the configuration that is in effect here and was there.
fn admit_all(core: &Rc<Core>, clients: impl IntoIterator<Item = Handover>) {
    let snapshot = core.snapshot();
    for Handover { stream, visitor, listener, .. } in clients {
        let listener = &snapshot.listeners[listener];
        match visitor {
            Visitor::New(peer) => admit(core, listener, (stream, peer, Place::brought(core.dispatch()))),
            Visitor::AtRest(at_rest) => {
                spawn_local(go_on(Rc::clone(core), Rc::clone(listener), stream, *at_rest));
            }
        }
    }
}

/// Accepts clients of cores that stand still, and takes those that are on their way to these: they would wait until
/// these run again.
fn accept_for_others(core: &Rc<Core>) {
    let Some(dispatch) = core.dispatch.get() else { return };
    for ward in dispatch.wards() {
        let snapshot = core.snapshot();
        // Clients that were sent to it before anybody could know.
        let waiting = dispatch.take_waiting(ward, snapshot.shared.generation);
        core.metrics.add(core.telemetry.process.dispatched(Stall), waiting.len() as u64);
        admit_all(core, waiting);
        for bound in snapshot.shared.sockets.iter().filter(|bound| !bound.is_handed_over()) {
            let listener = &snapshot.listeners[bound.listener];
            for socket in bound.sockets_of(ward) {
                let before = core.connections.get();
                accept_some(core, listener, &socket, ACCEPTS_MAX);
                let accepted = core.connections.get().saturating_sub(before);
                core.metrics.add(core.telemetry.process.dispatched(Stall), accepted as u64);
            }
        }
    }
}

async fn tick(core: Rc<Core>, mut ticks: Ticks, phase: watch::Receiver<Phase>) {
    let mut count: u32 = 0;
    while ticks.tick().await.is_ok() {
        count = count.wrapping_add(1);
        let sweep = count.is_multiple_of(SWEEP_TICKS);
        core.tick(sweep);
        if *phase.borrow() == Phase::Serving {
            accept_for_others(&core);
        }
        if sweep {
            warm(&core.upstreams);
        }
    }
}

async fn accept(
    core: Rc<Core>,
    listening: Rc<ListeningSocket>,
    connections_max: ConnectionsMax,
    mut phase: watch::Receiver<Phase>,
) {
    loop {
        let now = *phase.borrow();
        if now == Phase::Waiting {
            tokio::select! {
                _ = phase.wait_for(|phase| *phase != Phase::Waiting) => {}
                () = listening.closing.notified() => return,
            }
            continue;
        }
        // Without a dispatcher the core has its share.
        let has_share = core.dispatch.get().is_none() && core.connections.get() >= connections_max.each;
        if now == Phase::Serving && has_share {
            if !listening.pause(&core, connections_max.by, &mut phase, core.ended.notified()).await {
                return;
            }
            continue;
        }
        let mut is_full = false;
        tokio::select! {
            biased;
            _ = phase.wait_for(|phase| phase.is_over()) => {
                // Connections that the kernel has accepted are promises to clients already. A successor keeps them as
                // well as we do.
                if !listening.bound.is_handed_over() {
                    listening.take_all(&core);
                }
                return;
            }
            () = listening.closing.notified() => return,
            ready = listening.socket.readable() => {
                let Ok(mut guard) = ready else { return };
                let room = match core.dispatch.get() {
                    Some(_) => ACCEPTS_MAX,
                    None => connections_max.each.saturating_sub(core.connections.get()).min(ACCEPTS_MAX),
                };
                match accept_some(&core, &listening.listener(), listening.socket.get_ref(), room) {
                    Accepted::All => guard.clear_ready(),
                    Accepted::More => budget::wait_for_others(Budget::Accepts).await,
                    // Connections that were asked to end have their turn first.
                    Accepted::RoomMade => yield_now().await,
                    Accepted::Exhausted => {
                        sleep(ACCEPT_REST).await;
                    }
                    Accepted::Full => is_full = true,
                }
            }
        }
        if is_full && let Some(dispatch) = core.dispatch.get() {
            let room = dispatch.dispatcher.wait_for_room();
            if !listening.pause(&core, connections_max.by, &mut phase, room).await {
                return;
            }
        }
    }
}

/// Serves a client, or resets its connection at once if it, or its handshake, could only be one too many: told early
/// the client can turn to another address, and it has cost next to nothing.
fn admit(core: &Rc<Core>, listener: &Rc<ListenerHandle>, (stream, peer, place): Client<'_>) {
    if core.overload.refuses(|| core.random.borrow_mut().u16(..)) {
        return refuse(core, &stream, Reason::Memory);
    }
    let snapshot = core.snapshot();
    // A proxy in front is not the client: see `Connection::admit_announced`.
    let announced = snapshot.listener(listener).accept_proxy_protocol;
    if announced && !snapshot.listener(listener).trusts(peer.ip()) {
        if let Some(refused) = listener.proxy_refused() {
            core.metrics.increment(refused.of(UNTRUSTED_PEER));
        }
        let _ = propylon_sys::reset_on_close(&stream);
        return;
    }
    if snapshot.acceptor(listener).is_some()
        && !announced
        && let Err(refusal) = core.check_handshake(peer.ip())
    {
        core.metrics.increment(core.telemetry.handshake_queue.refused.of(refusal));
        // If the reset fails the client sees an orderly end instead.
        let _ = propylon_sys::reset_on_close(&stream);
        return;
    }
    // The last question: from here on it counts, and the end of the connection gives it back.
    if !announced && core.overload.sources().is_some_and(|sources| !sources.take(peer.ip())) {
        return refuse(core, &stream, Reason::Source);
    }
    spawn_local(serve(Rc::clone(core), Rc::clone(listener), stream, peer, announced));
    place.keep();
}

/// Serves a client that was accepted here, or has another core serve it.
fn spread(core: &Rc<Core>, listener: &Rc<ListenerHandle>, client: Client<'_>) {
    let Some(dispatch) = core.dispatch() else { return admit(core, listener, client) };
    let generation = core.snapshot().shared.generation;
    // Listeners that are gone are known to nobody else.
    let Some(index) = listener.index_in(generation) else { return admit(core, listener, client) };
    let random = core.random.borrow_mut().u64(..);
    match dispatch.hand_over(random, (generation, index), client) {
        Ok(reason) => core.metrics.increment(core.telemetry.process.dispatched(reason)),
        Err(client) => admit(core, listener, client),
    }
}

fn refuse(core: &Core, stream: &TcpStream, reason: Reason) {
    core.metrics.increment(core.telemetry.overload.refused(reason));
    let _ = propylon_sys::reset_on_close(stream);
}

enum Accepted {
    /// As many connections are open as there may be.
    Full,
    /// The queue is empty.
    All,
    /// The queue may hold more.
    More,
    /// Files have run out, and idle connections end to make room.
    RoomMade,
    /// Files or memory have run out, or the socket itself is at fault, and nothing more is to be done about it now.
    Exhausted,
}

fn accept_some(core: &Rc<Core>, listener: &Rc<ListenerHandle>, socket: &TcpListener, room: usize) -> Accepted {
    for _ in 0..room {
        let Some(place) = Place::take(core.dispatch()) else { return Accepted::Full };
        match propylon_sys::accept(socket) {
            Ok((stream, peer)) if core.overload.is_kept_from_clients(&stream) => {
                let room = core.make_room();
                match room {
                    Room::None => refuse(core, &stream, Reason::Files),
                    Room::Made | Room::Later => admit(core, listener, (stream, peer, place)),
                }
                return if room == Room::Made { Accepted::RoomMade } else { Accepted::Exhausted };
            }
            Ok((stream, peer)) => spread(core, listener, (stream, peer, place)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Accepted::All,
            Err(error) if matches!(error.raw_os_error(), Some(EMFILE | ENFILE | ENOBUFS | ENOMEM)) => {
                core.metrics.increment(core.telemetry.process.accept_errors);
                core.make_room();
                return Accepted::Exhausted;
            }
            Err(error) if is_one_clients(&error) => core.metrics.increment(core.telemetry.process.accept_errors),
            // The next one would fail as well, and there would be no end to them.
            Err(_) => {
                core.metrics.increment(core.telemetry.process.accept_errors);
                return Accepted::Exhausted;
            }
        }
    }
    Accepted::More
}

/// Whether an accept has failed for one client alone: it has gone again, or the network has a complaint about it, or a
/// firewall (accept(2), "Error handling"). The next one is asked for at once.
fn is_one_clients(error: &io::Error) -> bool {
    use rustix::io::Errno;
    const ONE_CLIENTS: [Errno; 11] = [
        Errno::CONNABORTED,
        Errno::INTR,
        Errno::PERM,
        Errno::NETDOWN,
        Errno::PROTO,
        Errno::NOPROTOOPT,
        Errno::HOSTDOWN,
        Errno::NONET,
        Errno::HOSTUNREACH,
        Errno::OPNOTSUPP,
        Errno::NETUNREACH,
    ];
    ONE_CLIENTS.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

const ENOMEM: i32 = rustix::io::Errno::NOMEM.raw_os_error();
const ENFILE: i32 = rustix::io::Errno::NFILE.raw_os_error();
const EMFILE: i32 = rustix::io::Errno::MFILE.raw_os_error();
const ENOBUFS: i32 = rustix::io::Errno::NOBUFS.raw_os_error();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accept_that_fails_for_one_client_is_followed_by_another_and_one_that_fails_for_all_is_not() {
        let socket = propylon_sys::listen("127.0.0.1:0".parse().unwrap(), Default::default()).unwrap();
        // A socket that listens no longer fails with EINVAL at every accept.
        rustix::net::shutdown(&socket, rustix::net::Shutdown::Both).unwrap();
        for _ in 0..3 {
            let error = propylon_sys::accept(&socket).map(drop).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::INVAL.raw_os_error()));
            assert!(!is_one_clients(&error));
        }
        assert!(is_one_clients(&io::Error::from_raw_os_error(rustix::io::Errno::CONNABORTED.raw_os_error())));
    }
}
