//! HTTP/2 with servers: few connections, many streams on each.
//!
//! A connection belongs to a core, is made by a task of its own and driven by it until its end; a request has a seat on it,
//! and what happens to its stream it hears from the library. Whoever finds no seat waits for one in its server's lane.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use h2::{Ping, PingPong, SendStream};
use propylon_config::{BackendId, Http2Flood, ServerHttp2, ServerProtocol};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::sleep;

use super::intake::{Intake, Moment};
use super::responses::Responses;
use super::stream::Piece;
use super::wire::{give_ready, stage, stage_words};
use crate::attempt::{Attempt, Repeatable};
use crate::budget::{self, Budget, FRAMES_BYTES_PER_POLL_MAX};
use crate::buffer::Buffer;
use crate::client::SEAL_BYTES_MAX;
use crate::core::Core;
use crate::notice::{Notice, Way};
use crate::pool::{Permit, PoolKey, ServerConnection};
use crate::seat;
use crate::server::ServerStream;
use crate::snapshot::CoreSnapshot;

/// A header list that a server may send, in bytes as RFC 9113 §10.5.1 counts them.
const HEADER_LIST_BYTES_MAX: u32 = 48 * 1024;
/// Body bytes of a response that may be on their way before the client has taken any. A connection has room for all its
/// streams: clients that read slowly hold up no other.
const STREAM_WINDOW_BYTES: u32 = 128 * 1024;
/// DATA frames of this size may fill the windows of all streams whose clients take nothing: a stream of small messages is
/// what gRPC is made of, and one stalled client must not cost the others their connection.
const DATA_FRAME_BYTES_MIN: usize = 16;
/// What the library charges for a frame that is smaller than this, less its size, while it lies unread.
const DATA_FRAME_CHARGE: usize = 256;
/// Body bytes of a request that the library may hold beyond the server's window.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Streams of ours that a server may answer wrongly on one connection.
const ERRORS_MAX: usize = 1000;
/// How long a connection that was made for requests of an earlier configuration waits for them, in milliseconds.
const LATECOMER_MILLIS: u64 = 1_000;
/// Connections to one server that a core makes at the same time.
const CONNECTING_MAX: usize = 4;
/// How long a core's only connection to a server with a limit is used before it makes way for another core's: making one costs
/// some round trips.
const SHARE_MILLIS: u64 = 100;

/// The connections to one server.
#[derive(Default)]
pub struct Lane {
    links: RefCell<Vec<Rc<ServerLink>>>,
    /// Connections being made.
    connecting: Cell<usize>,
    /// Those who wait for a seat.
    waiting: RefCell<Vec<Waker>>,
    /// Connections that came to nothing, and the last one's failure.
    failures: Cell<u64>,
    failure: Cell<Option<Attempt>>,
    /// The server has agreed on HTTP/1.1 the last time.
    speaks_http1: Cell<bool>,
    /// Only requests of earlier configurations come here.
    abandoned: Cell<bool>,
    /// There are more connections than there may be, since the limit was lowered.
    shedding: Cell<bool>,
}

/// A connection to a server.
pub struct ServerLink {
    /// None when no further stream may begin.
    send: RefCell<Option<SendRequest<Piece>>>,
    pub is_tls: bool,
    seats: Cell<usize>,
    /// Streams begun on it.
    requests: Cell<u32>,
    expires: Option<Instant>,
    /// Whether its server is open and still where the connection leads.
    notice: Arc<Notice>,
    way: Cell<Way>,
    /// Milliseconds on the core's clock: when it was made.
    since: u64,
    responses: Rc<Responses>,
    /// Whom to wake when it is to end.
    driver: RefCell<Option<Waker>>,
    /// Milliseconds on the core's clock: when the last seat was left.
    left: Cell<u64>,
}

impl ServerLink {
    /// Where the connection leads.
    pub fn peer(&self) -> SocketAddr {
        self.way.get().address
    }
}

/// A place for one request; it is left when it is dropped.
pub struct ServerSeat {
    pub link: Rc<ServerLink>,
    lane: Rc<Lane>,
    core: Rc<Core>,
}

impl Drop for ServerSeat {
    fn drop(&mut self) {
        self.link.seats.set(self.link.seats.get() - 1);
        self.link.left.set(self.core.timers.now());
        if self.link.seats.get() == 0 && (self.lane.abandoned.get() || self.lane.shedding.get()) {
            self.link.close();
        }
        self.lane.wake();
    }
}

impl ServerLink {
    /// Whether the server takes WebSockets (RFC 8441 §3).
    pub fn speaks_websocket(&self) -> bool {
        self.send.borrow().as_ref().is_some_and(SendRequest::is_extended_connect_protocol_enabled)
    }

    /// Begins a stream.
    pub fn open(
        &self,
        request: http::Request<()>,
        end: bool,
    ) -> Result<(ResponseFuture, SendStream<Piece>), h2::Error> {
        let mut send = self.send.borrow_mut();
        // Of its own, so that one that waits to be opened does not stand in the way of the others.
        let mut send = send.as_mut().ok_or(h2::Reason::REFUSED_STREAM)?.clone();
        let (response, sending) = send.send_request(request, end)?;
        self.responses.begin(sending.stream_id().as_u32());
        Ok((response, sending))
    }

    /// Nobody reads this stream's response any more.
    pub fn forget(&self, sending: &SendStream<Piece>) {
        self.responses.forget(sending.stream_id().as_u32());
    }

    /// Gets no further streams; those begun go on.
    pub fn close(&self) {
        *self.send.borrow_mut() = None;
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    fn is_open(&self) -> bool {
        self.send.borrow().is_some()
    }

    /// Whether it leads to where its server is.
    fn is_current(&self) -> bool {
        let mut way = self.way.get();
        let current = self.notice.is_current(&mut way);
        self.way.set(way);
        current
    }

    fn has_room(&self, streams_max: usize, requests_max: u32) -> bool {
        let mut send = self.send.borrow_mut();
        let Some(sender) = send.as_mut() else { return false };
        // Says so when the server has said GOAWAY or the connection is lost.
        if let Poll::Ready(Err(_)) = sender.poll_ready(&mut Context::from_waker(Waker::noop())) {
            drop(send);
            self.close();
            return false;
        }
        let worn = self.requests.get() >= requests_max;
        if worn || self.expires.is_some_and(|expires| Instant::now() >= expires) || !self.is_current() {
            drop(send);
            self.close();
            return false;
        }
        self.seats.get() < streams_max.min(sender.current_max_send_streams())
    }
}

impl Lane {
    /// A seat on a connection that has one, the fullest first: those that are not needed are to become idle.
    pub fn seat(self: &Rc<Lane>, core: &Rc<Core>, streams_max: usize, requests_max: u32) -> Option<ServerSeat> {
        let links = self.links.borrow();
        let with_room = links.iter().filter(|link| link.has_room(streams_max, requests_max));
        let link = Rc::clone(with_room.max_by_key(|link| link.seats.get())?);
        link.seats.set(link.seats.get() + 1);
        link.requests.set(link.requests.get().saturating_add(1));
        Some(ServerSeat { link, lane: Rc::clone(self), core: Rc::clone(core) })
    }

    pub fn has_room(&self, streams_max: usize, requests_max: u32) -> bool {
        self.links.borrow().iter().any(|link| link.has_room(streams_max, requests_max))
    }

    /// The configuration that is in force has no use for these connections: each ends with its last stream. Requests that
    /// began before find them, and get others, for as long as they last.
    pub fn abandon(&self) {
        self.abandoned.set(true);
        self.close_unused();
    }

    pub fn is_abandoned(&self) -> bool {
        self.abandoned.get()
    }

    /// There are more connections than there may be now, over all cores: those that nobody uses end, the others one by one.
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
            && let Some(emptiest) = links.iter().min_by_key(|link| link.seats.get())
        {
            emptiest.close();
        }
    }

    fn close_unused(&self) {
        self.links.borrow().iter().filter(|link| link.seats.get() == 0).for_each(|link| link.close());
    }

    pub fn is_connecting(&self) -> bool {
        self.connecting.get() > 0
    }

    /// Whether there is a connection on which a seat will become free.
    pub fn is_alive(&self) -> bool {
        self.connecting.get() > 0 || self.links.borrow().iter().any(|link| link.is_open())
    }

    /// Its connections.
    pub fn links(&self) -> usize {
        self.links.borrow().len()
    }

    /// Requests of another core wait for a connection to this server, which has as many as it may: whoever drives one looks
    /// whether it is to make way.
    pub fn call(&self) {
        for link in self.links.borrow().iter() {
            link.driver.borrow().iter().for_each(Waker::wake_by_ref);
        }
    }

    /// Whether this connection is to end for another core's sake: at most one at a time, the emptiest, and not before it has been
    /// of use. Else when to look again.
    fn make_way(&self, link: &Rc<ServerLink>, now: u64) -> Result<(), u64> {
        let links = self.links.borrow();
        if links.iter().any(|other| !other.is_open()) {
            return Err(u64::MAX);
        }
        let emptiest = links.iter().min_by_key(|other| other.seats.get());
        if !emptiest.is_some_and(|emptiest| Rc::ptr_eq(emptiest, link)) {
            return Err(u64::MAX);
        }
        let is_idle = link.seats.get() == 0 && link.requests.get() > 0;
        let due = link.since + SHARE_MILLIS;
        if is_idle || links.len() > 1 || now >= due { Ok(()) } else { Err(due) }
    }

    /// Whether those who wait are more than those being made will seat.
    pub fn wants_connection(&self, streams_max: usize) -> bool {
        let connecting = self.connecting.get();
        if self.speaks_http1.get() {
            return self.waiting.borrow().len() >= connecting;
        }
        connecting < CONNECTING_MAX && self.waiting.borrow().len() >= connecting * streams_max
    }

    /// Connections that carry one request at a time may be idle in the pool.
    pub fn speaks_http1(&self) -> bool {
        self.speaks_http1.get()
    }

    /// Takes in a connection whose server wants to be spoken to in HTTP/1.1: whoever waits finds it in the pool.
    async fn keep(&self, core: &Core, snapshot: &CoreSnapshot, backend: BackendId, made: Box<ServerConnection>) {
        let (pool, server) = (&snapshot.backends[backend.0].pool, made.key.server);
        self.speaks_http1.set(true);
        // Where idle ones are not kept it is for whoever waits all the same.
        pool.lend(made, core.timers.now());
        core.report_idle(backend.0, pool, server);
        self.connecting.set(self.connecting.get() - 1);
        self.wake();
        if !pool.keeps(server) {
            sleep(Duration::from_millis(LATECOMER_MILLIS)).await;
            for _ in 0..pool.take_back(server) {
                core.metrics.lower(core.telemetry.backends[backend.0].servers[server].open);
            }
            core.report_idle(backend.0, pool, server);
        }
    }

    pub fn failures(&self) -> u64 {
        self.failures.get()
    }

    pub fn failure(&self) -> Attempt {
        let unknown = Attempt { status: 502, reason: "connect-failed", repeatable: Repeatable::Unsent };
        self.failure.get().unwrap_or(unknown)
    }

    pub fn wait(&self, context: &Context<'_>) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
    }

    /// Those who wait look again.
    fn wake(&self) {
        let waiting = self.waiting.take();
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Ends the connections that nobody uses.
    pub fn clear(&self) {
        self.links.borrow().iter().for_each(|link| link.close());
    }

    /// Ends those that lead to a server that is closed or elsewhere by now, each when its last stream is over.
    pub fn sweep(&self) {
        let links = self.links.borrow();
        links.iter().filter(|link| !link.notice.is_open() || !link.is_current()).for_each(|link| link.close());
    }

    fn failed(&self, attempt: Attempt) {
        self.failures.set(self.failures.get() + 1);
        self.failure.set(Some(attempt));
        self.connecting.set(self.connecting.get() - 1);
        self.wake();
    }
}

/// Makes a connection for a lane and drives it to its end.
pub fn begin(core: &Rc<Core>, snapshot: &Rc<CoreSnapshot>, backend: BackendId, server: usize, permit: Option<Permit>) {
    let lane = Rc::clone(&snapshot.backends[backend.0].pool.lanes[server]);
    lane.connecting.set(lane.connecting.get() + 1);
    tokio::task::spawn_local(live(Rc::clone(core), Rc::clone(snapshot), backend, server, permit, lane));
}

async fn live(
    core: Rc<Core>,
    snapshot: Rc<CoreSnapshot>,
    backend: BackendId,
    server: usize,
    permit: Option<Permit>,
    lane: Rc<Lane>,
) {
    let deadline = core.timers.deadline();
    let key = PoolKey { server, owner: None };
    let made = match seat::connect(&core, &snapshot, backend, key, permit, &[], &deadline).await {
        Ok(made) => made,
        Err(failed) => return lane.failed(failed),
    };
    let config = &snapshot.shared.config.backends[backend.0];
    let is_tls = made.stream.is_tls();
    // Over TLS a server says by ALPN that it speaks HTTP/2 (RFC 9113 §3.2), which is what was offered first.
    let agreed = !is_tls || made.stream.facts().is_some_and(|facts| facts.alpn == Some(0));
    if config.protocol == ServerProtocol::Auto && !agreed {
        return lane.keep(&core, &snapshot, backend, made).await;
    }
    let ServerConnection { stream, permit, expires, way, .. } = *made;
    let wire = Rc::new(Wired::new(&core, stream));
    let patience = config.timeouts.connect.as_millis() as u64;
    let metrics = &core.telemetry.backends[backend.0].servers[server];
    let begun = greet(&core, &wire, config.http2, patience, &deadline).await;
    let Some((send, connection)) = begun.ok().filter(|_| agreed) else {
        core.metrics.lower(metrics.open);
        let failed = Attempt { status: 502, reason: "no-http2", repeatable: Repeatable::Unsent };
        return lane.failed(failed);
    };
    let link = Rc::new(ServerLink {
        send: RefCell::new(Some(send)),
        is_tls,
        seats: Cell::new(0),
        requests: Cell::new(0),
        expires,
        notice: Arc::clone(&snapshot.shared.servers[backend.0][server].notice),
        way: Cell::new(way),
        since: core.timers.now(),
        responses: Rc::clone(&wire.responses),
        driver: RefCell::default(),
        left: Cell::new(core.timers.now()),
    });
    lane.speaks_http1.set(false);
    lane.connecting.set(lane.connecting.get() - 1);
    lane.links.borrow_mut().push(Rc::clone(&link));
    note_links(&core, backend, server);
    lane.wake();
    drop(snapshot);
    let mut driver = Driver {
        core: Rc::clone(&core),
        link: Rc::clone(&link),
        lane: Rc::clone(&lane),
        backend,
        connection,
        wire,
        pings: None,
        pinged: None,
        server,
    };
    driver.pings = driver.connection.ping_pong();
    poll_fn(|context| driver.poll(context, &deadline)).await;
    link.close();
    lane.links.borrow_mut().retain(|known| !Rc::ptr_eq(known, &link));
    note_links(&core, backend, server);
    core.metrics.lower(metrics.open);
    drop(driver);
    // Whoever has a permit in mind may have this one now.
    drop(permit);
    lane.wake();
}

/// Says to other cores what they could have of this one's, by the configuration that is in force.
fn note_links(core: &Core, backend: BackendId, server: usize) {
    core.snapshot().backends[backend.0].pool.note(server);
}

type Begun = (SendRequest<Piece>, Connection<ServerWire, Piece>);

fn data_frame_budget(streams: u32) -> usize {
    STREAM_WINDOW_BYTES as usize / DATA_FRAME_BYTES_MIN * DATA_FRAME_CHARGE * streams as usize
}

/// Says our settings and waits for the server's: they tell how many streams there may be, and that it speaks HTTP/2.
async fn greet(
    core: &Rc<Core>,
    wire: &Rc<Wired>,
    config: ServerHttp2,
    patience: u64,
    deadline: &crate::deadline::Deadline,
) -> Result<Begun, ()> {
    let due = core.timers.now() + patience;
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_max_send_streams(config.max_streams as usize)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(STREAM_WINDOW_BYTES.saturating_mul(config.max_streams).min(i32::MAX as u32))
        .data_frame_budget(data_frame_budget(config.max_streams))
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .max_local_error_reset_streams(Some(ERRORS_MAX));
    let mut handshake = pin!(builder.handshake::<ServerWire, Piece>(ServerWire(Rc::clone(wire))));
    let mut begun: Option<Begun> = None;
    poll_fn(|context| {
        wire.turn.set(0);
        let over = match &mut begun {
            None => match handshake.as_mut().poll(context) {
                Poll::Ready(Ok(both)) => {
                    begun = Some(both);
                    context.waker().wake_by_ref();
                    false
                }
                Poll::Ready(Err(_)) => true,
                Poll::Pending => false,
            },
            Some((_, connection)) => Pin::new(connection).poll(context).is_ready(),
        };
        let flushed = wire.poll_flush(context);
        if over || matches!(flushed, Poll::Ready(Err(_))) || core.timers.now() >= due {
            return Poll::Ready(Err(()));
        }
        if wire.heard.get() > 0
            && let Some(begun) = begun.take()
        {
            return Poll::Ready(Ok(begun));
        }
        deadline.set(due, context.waker());
        Poll::Pending
    })
    .await
}

struct Driver {
    core: Rc<Core>,
    link: Rc<ServerLink>,
    lane: Rc<Lane>,
    backend: BackendId,
    connection: Connection<ServerWire, Piece>,
    wire: Rc<Wired>,
    pings: Option<PingPong>,
    /// Milliseconds on the core's clock: when the ping was sent that is not answered yet.
    pinged: Option<u64>,
    server: usize,
}

impl Driver {
    /// Ready when the connection is over.
    fn poll(&mut self, context: &mut Context<'_>, deadline: &crate::deadline::Deadline) -> Poll<()> {
        *self.link.driver.borrow_mut() = Some(context.waker().clone());
        self.wire.turn.set(0);
        loop {
            let over = Pin::new(&mut self.connection).poll(context).is_ready();
            self.wire.say();
            let flushed = self.wire.poll_flush(context);
            if over || matches!(flushed, Poll::Ready(Err(_))) {
                return Poll::Ready(());
            }
            if !(flushed.is_ready() && self.wire.blocked.take()) {
                break;
            }
        }
        let now = self.core.timers.now();
        let mut due = u64::MAX;
        // The place is this backend's for as long as the connection is counted as open.
        let (idle, ping, is_wanted) = {
            let snapshot = self.core.snapshot();
            let config = &snapshot.shared.config.backends[self.backend.0];
            let pool = &snapshot.backends[self.backend.0].pool;
            // A lane that only earlier configurations know has nobody to make way for.
            let is_wanted = pool.turnstile.as_ref().is_some_and(|turnstile| turnstile.is_wanted(self.server))
                && pool.lanes.get(self.server).is_some_and(|lane| Rc::ptr_eq(lane, &self.lane));
            (config.timeouts.idle.as_millis() as u64, config.http2.ping.as_millis() as u64, is_wanted)
        };
        if self.link.seats.get() == 0 {
            let patience = if self.lane.is_abandoned() { idle.min(LATECOMER_MILLIS) } else { idle };
            let quiet = self.link.left.get() + patience;
            if now >= quiet || self.core.draining.get() {
                self.link.close();
            }
            due = quiet.max(now + 1);
        } else {
            // Seats that are left wake nobody here.
            due = due.min(now + idle);
            if self.poll_ping(context, now, ping, &mut due) {
                return Poll::Ready(());
            }
        }
        if is_wanted {
            match self.lane.make_way(&self.link, now) {
                Ok(()) => self.link.close(),
                Err(later) => due = due.min(later),
            }
        }
        deadline.set(due, context.waker());
        Poll::Pending
    }

    /// A server that says nothing for a while, with streams open, is asked whether it is there. True when it is not.
    fn poll_ping(&mut self, context: &mut Context<'_>, now: u64, ping: u64, due: &mut u64) -> bool {
        let Some(pings) = &mut self.pings else { return false };
        if let Some(since) = self.pinged {
            match pings.poll_pong(context) {
                Poll::Ready(_) => self.pinged = None,
                Poll::Pending if now >= since + ping => return true,
                Poll::Pending => *due = (*due).min(since + ping),
            }
        }
        if self.pinged.is_none() {
            let quiet_due = self.wire.heard_at.get() + ping;
            if now >= quiet_due && pings.send_ping(Ping::opaque()).is_ok() {
                self.pinged = Some(now);
                // The library sends it when it is polled next.
                context.waker().wake_by_ref();
            }
            *due = (*due).min(quiet_due.max(now + ping));
        }
        false
    }
}

/// What the library's end and whoever drives the connection share.
struct Wired {
    core: Rc<Core>,
    stream: RefCell<ServerStream>,
    inbox: RefCell<Buffer>,
    /// What the library has written and the stream has not taken yet.
    staged: RefCell<Buffer>,
    /// Bytes that have come, and when the last did in milliseconds on the core's clock.
    heard: Cell<u64>,
    heard_at: Cell<u64>,
    /// The library waits for the socket.
    blocked: Cell<bool>,
    intake: RefCell<Intake>,
    responses: Rc<Responses>,
    /// Bytes read in this turn of the connection's.
    turn: Cell<usize>,
    /// Of these only that of errors is asked of a server.
    limits: Http2Flood,
}

impl Wired {
    fn new(core: &Rc<Core>, stream: ServerStream) -> Wired {
        let responses = Rc::<Responses>::default();
        Wired {
            core: Rc::clone(core),
            stream: RefCell::new(stream),
            inbox: RefCell::default(),
            staged: RefCell::default(),
            heard: Cell::new(0),
            heard_at: Cell::new(core.timers.now()),
            blocked: Cell::new(false),
            intake: RefCell::new(Intake::of_server(HEADER_LIST_BYTES_MAX as usize, Rc::clone(&responses))),
            responses,
            turn: Cell::new(0),
            limits: Http2Flood::default(),
        }
    }

    /// Says what the library does not say, between two of its frames: it waits for the socket only within one.
    fn say(&self) {
        if !self.blocked.get() {
            let room = stage_words(&self.core.stock, &mut self.staged.borrow_mut(), &mut self.intake.borrow_mut());
            self.blocked.set(!room);
        }
    }

    /// Sends what has gathered.
    fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (mut stream, mut staged) = (self.stream.borrow_mut(), self.staged.borrow_mut());
        let stock = &self.core.stock;
        while !staged.is_empty() {
            let count = ready!(stream.poll_write(context, stock, &[IoSlice::new(staged.readable())]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            staged.consume(count);
        }
        stock.give_back(&mut staged);
        stream.poll_flush(context, stock)
    }
}

impl Drop for Wired {
    fn drop(&mut self) {
        self.core.stock.give_back(&mut self.inbox.borrow_mut());
        self.core.stock.give_back(&mut self.staged.borrow_mut());
    }
}

/// The library's end.
struct ServerWire(Rc<Wired>);

impl AsyncRead for ServerWire {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let wired = &*self.0;
        let (mut inbox, mut intake) = (wired.inbox.borrow_mut(), wired.intake.borrow_mut());
        let mut passed = 0;
        while passed == 0 && !give_ready(&mut intake, into) {
            if wired.turn.get() >= FRAMES_BYTES_PER_POLL_MAX {
                budget::spend(Budget::Frames, context);
                return Poll::Pending;
            }
            if inbox.is_empty() {
                let count = ready!(wired.stream.borrow_mut().poll_fill(context, &wired.core.stock, &mut inbox))?;
                if count == 0 {
                    break;
                }
                wired.heard.set(wired.heard.get() + count as u64);
                wired.heard_at.set(wired.core.timers.now());
            }
            let bytes = &inbox.readable()[..inbox.len().min(into.remaining())];
            let moment = Moment { now: wired.core.timers.now(), sent: 0, limits: &wired.limits };
            // What a server has done that ends its connection needs no last word.
            let taken = intake.take(bytes, moment).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
            into.put_slice(&bytes[..taken.pass]);
            inbox.consume(taken.used);
            wired.turn.set(wired.turn.get() + taken.used);
            passed = taken.pass;
        }
        if inbox.is_idle() {
            wired.core.stock.give_back(&mut inbox);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ServerWire {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wired = &*self.0;
        if wired.staged.borrow().len() >= SEAL_BYTES_MAX {
            wired.blocked.set(true);
            ready!(wired.poll_flush(context))?;
            wired.blocked.set(false);
        }
        Poll::Ready(Ok(stage(&wired.core.stock, &mut wired.staged.borrow_mut(), slices)))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Whoever drives the connection flushes when there is nothing more to be written.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wired = &*self.0;
        ready!(wired.poll_flush(context))?;
        wired.stream.borrow_mut().poll_end(context, &wired.core.stock)
    }
}
