//! HTTP/2 with servers: few connections, many streams on each.
//!
//! A connection belongs to a core, is made by a task of its own and driven by it until its end; a request has a stream
//! on it, and hears of its stream from the library. A request without one waits in its server's pool (`h2_pool.rs`).

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, PingPong};
use propylon_config::{self as config, Http2Flood, ServerHttp2, ServerProtocol};
use propylon_http::fault::Fault;
use propylon_net::budget::{self, Budget, FRAMES_BYTES_PER_POLL_MAX};
use propylon_net::buffer::Buffer;
use propylon_net::client_stream::SEAL_BYTES_MAX;
use propylon_net::server_stream::ServerStream;
use propylon_observe::telemetry::{BackendMetrics, ServerMetrics};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::sleep;

use super::backend::{Backend, Upstreams};
use super::connect::connect;
use super::connection::{Permit, PoolKey, ServerConnection};
use super::h2_pool::{H2Connection, H2Pool};
use crate::fault::{Attempt, Repeatable};
use crate::http2::{Intake, Moment, Piece, Responses, give_ready, stage, stage_frames};
use crate::services::{STREAM_WINDOW_BYTES_MAX, Services};

/// A header list that a server may send, in bytes as RFC 9113 §10.5.1 counts them.
const HEADER_LIST_BYTES_MAX: u32 = 48 * 1024;
/// DATA frames of this size may fill the windows of all streams whose clients take nothing: gRPC is made of streams of
/// small messages, and one stalled client must not cost the others their connection.
const DATA_FRAME_BYTES_MIN: usize = 16;
/// Bytes that the library charges for a frame that is smaller than this, less its size, while it lies unread.
const DATA_FRAME_CHARGE: usize = 256;
/// Body bytes of a request that the library may hold beyond the server's window.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Streams of ours that a server may answer wrongly on one connection.
const ERRORS_MAX: usize = 1000;
/// How long a connection that was made for requests of an earlier configuration waits for them, in milliseconds.
const LATECOMER_MILLIS: u64 = 1_000;

/// Makes a connection for a server's pool and drives it to its end.
pub fn begin(backend: &Rc<Backend>, server: usize, permit: Option<Permit>) {
    let h2_pool = Rc::clone(&backend.state.pool.h2_pools[server]);
    let making = Making::begin(&h2_pool, &backend.services);
    tokio::task::spawn_local(live(Rc::clone(backend), server, permit, h2_pool, making));
}

/// A connection that is being made, as its server's pool counts it: one that does not come to be has failed, whatever
/// ends the making of it.
struct Making {
    h2_pool: Rc<H2Pool>,
    services: Rc<Services>,
    /// Error that the pool gets if the connection is not made; `None` once it is.
    failure: Option<Attempt>,
}

impl Making {
    fn begin(h2_pool: &Rc<H2Pool>, services: &Rc<Services>) -> Making {
        let failure = Attempt::new(Fault::ConnectFailed, Repeatable::Unsent);
        h2_pool.begun();
        Making { h2_pool: Rc::clone(h2_pool), services: Rc::clone(services), failure: Some(failure) }
    }

    fn failed(mut self, why: Attempt) {
        self.failure = Some(why);
    }

    /// Has the pool count the connection as made.
    fn made(mut self) {
        self.failure = None;
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if let Some(why) = self.failure.take() {
            self.h2_pool.failed(why, self.services.timers.now());
        }
    }
}

async fn live(backend: Rc<Backend>, server: usize, permit: Option<Permit>, h2_pool: Rc<H2Pool>, making: Making) {
    let services = Rc::clone(&backend.services);
    let deadline = services.timers.deadline();
    let key = PoolKey { server, owner: None };
    let made = match connect(&backend, key, permit, &[], &deadline).await {
        Ok(made) => made,
        Err(failed) => return making.failed(failed),
    };
    let config = backend.config();
    let is_tls = made.stream.is_tls();
    // Over TLS a server says by ALPN that it speaks HTTP/2 (RFC 9113 §3.2), which is what was offered first.
    let agreed = !is_tls || made.stream.facts().is_some_and(|facts| facts.alpn == Some(0));
    if config.protocol == ServerProtocol::Auto && !agreed {
        return keep(&backend, &h2_pool, made, making).await;
    }
    let ServerConnection { stream, permit, expires, remote, .. } = *made;
    let wire = Rc::new(Wired::new(&services, stream));
    let timeout = config.timeouts.connect.as_millis() as u64;
    let window = services.windows.width();
    let begun = greet(&services, &wire, (config.http2, window), timeout, &deadline).await;
    let Some((send, connection)) = begun.ok().filter(|_| agreed) else {
        services.metrics.lower(backend.server_metrics(server).open);
        let failed = Attempt::new(Fault::NoHttp2, Repeatable::Unsent);
        return making.failed(failed);
    };
    let endpoint = Arc::clone(&backend.servers[server].endpoint);
    let link =
        Rc::new(H2Connection::new((send, Rc::clone(&wire.responses)), is_tls, expires, (endpoint, remote), &services));
    let (of, server) = (Arc::clone(backend.metrics()), Arc::clone(backend.server_metrics(server)));
    let life = Life { upstreams: Rc::clone(&backend.upstreams), backend: of, server, h2_pool, link, permit };
    let timeouts = Timeouts::of(config);
    making.made();
    life.h2_pool.opened(&services, &life.link);
    // The configuration that the connection was made by does not live as long as the connection.
    drop(backend);
    life.note_links();
    let (pings, pinged, ending) = (None, None, None);
    let mut driver = Driver { connection, wire, pings, pinged, ending, timeouts, window, life };
    driver.pings = driver.connection.ping_pong();
    poll_fn(|context| driver.poll(context, &deadline)).await;
}

/// A connection that was made, until its end: whatever ends it, its pool counts it no more, and its permit is free.
struct Life {
    upstreams: Rc<Upstreams>,
    backend: Arc<BackendMetrics>,
    server: Arc<ServerMetrics>,
    h2_pool: Rc<H2Pool>,
    link: Rc<H2Connection>,
    permit: Option<Permit>,
}

impl Life {
    /// Reports to other cores which connections of this one they could have, by the configuration in effect.
    fn note_links(&self) {
        let Some(backend) = self.upstreams.get(&self.backend) else { return };
        let pool = &backend.state.pool;
        self.h2_pool.index_in(&pool.h2_pools).into_iter().for_each(|server| pool.note(server));
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let services = Rc::clone(&self.upstreams.services);
        services.metrics.lower(self.server.open);
        // A request that waits for a permit may have this one now.
        drop(self.permit.take());
        self.h2_pool.ended(&services, &self.link);
        self.note_links();
    }
}

/// Takes in a connection whose server wants to be spoken to in HTTP/1.1: whoever waits finds it in the pool.
async fn keep(backend: &Backend, h2_pool: &Rc<H2Pool>, made: Box<ServerConnection>, making: Making) {
    let (services, pool, server) = (&backend.services, &backend.state.pool, made.key.server);
    // If the pool keeps no idle connections, this one is lent to the requests that wait all the same.
    pool.lend(made, services.timers.now());
    backend.report_idle(server);
    making.made();
    h2_pool.opened_http1(services.timers.now());
    if !pool.keeps(server) {
        sleep(Duration::from_millis(LATECOMER_MILLIS)).await;
        backend.count_closed(server, pool.take_back(server));
        backend.report_idle(server);
    }
}

type Begun = (SendRequest<Piece>, Connection<ServerWire, Piece>);

fn data_frame_budget(streams: u32) -> usize {
    STREAM_WINDOW_BYTES_MAX as usize / DATA_FRAME_BYTES_MIN * DATA_FRAME_CHARGE * streams as usize
}

/// Sends our SETTINGS and waits for the server's, which limit its streams and prove that it speaks HTTP/2.
async fn greet(
    services: &Rc<Services>,
    wire: &Rc<Wired>,
    (config, window): (ServerHttp2, u32),
    timeout: u64,
    deadline: &propylon_net::timers::Deadline,
) -> Result<Begun, ()> {
    let due = services.timers.now() + timeout;
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_max_send_streams(config.max_streams as usize)
        .initial_window_size(window)
        // Room for all its streams: clients that read slowly hold up no other.
        .initial_connection_window_size(STREAM_WINDOW_BYTES_MAX.saturating_mul(config.max_streams).min(i32::MAX as u32))
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
        if over || matches!(flushed, Poll::Ready(Err(_))) || services.timers.now() >= due {
            return Poll::Ready(Err(()));
        }
        if wire.received_bytes.get() > 0
            && let Some(begun) = begun.take()
        {
            return Poll::Ready(Ok(begun));
        }
        deadline.set(due, context.waker());
        Poll::Pending
    })
    .await
}

/// Timeouts of a connection in milliseconds: of the configuration in effect, or of the last one that had its backend.
#[derive(Clone, Copy)]
struct Timeouts {
    idle: u64,
    close: u64,
    ping: u64,
}

impl Timeouts {
    fn of(config: &config::Backend) -> Timeouts {
        let millis = |time: Duration| time.as_millis() as u64;
        Timeouts {
            idle: millis(config.timeouts.idle),
            close: millis(config.timeouts.close),
            ping: millis(config.http2.ping),
        }
    }
}

struct Driver {
    connection: Connection<ServerWire, Piece>,
    wire: Rc<Wired>,
    pings: Option<PingPong>,
    /// Milliseconds on the core's clock: when the ping was sent that is not answered yet.
    pinged: Option<u64>,
    /// Milliseconds on the core's clock: since when it is closed and nobody has a stream on it.
    ending: Option<u64>,
    timeouts: Timeouts,
    /// Window of each stream in bytes, as SETTINGS have announced it.
    window: u32,
    /// Dropped last: its permit stands for the connection until that is closed.
    life: Life,
}

impl Driver {
    /// Drives the connection; ready when it has ended.
    fn poll(&mut self, context: &mut Context<'_>, deadline: &propylon_net::timers::Deadline) -> Poll<()> {
        *self.life.link.driver.borrow_mut() = Some(context.waker().clone());
        self.wire.turn.set(0);
        // The window is set ahead of streams that have just begun, since the server must hear of it before them. While
        // the last change has not been acknowledged the library takes no other; then it is polled again.
        let window = self.life.upstreams.services.windows.width();
        if window != self.window && self.connection.set_initial_window_size(window).is_ok() {
            self.window = window;
        }
        loop {
            let over = Pin::new(&mut self.connection).poll(context).is_ready();
            self.wire.say();
            let flushed = self.wire.poll_flush(context);
            // Servers may stay for a while after an error, and say no more (Go's for a second): nobody waits for that.
            if over || self.wire.responses.has_failed() || matches!(flushed, Poll::Ready(Err(_))) {
                return Poll::Ready(());
            }
            if self.life.link.allows_more() {
                self.life.h2_pool.serve(&self.life.upstreams.services);
            }
            if !(flushed.is_ready() && self.wire.blocked.take()) {
                break;
            }
        }
        if self.life.link.is_open() && self.wire.stream.borrow().is_wearing() {
            self.life.link.close();
        }
        let now = self.life.upstreams.services.timers.now();
        let mut due = u64::MAX;
        let backend = self.life.upstreams.get(&self.life.backend);
        if let Some(backend) = &backend {
            self.timeouts = Timeouts::of(backend.config());
        }
        let Timeouts { idle, close, ping } = self.timeouts;
        // A pool that only earlier configurations know has nobody to make way for.
        let others = backend.and_then(|backend| {
            let pool = &backend.state.pool;
            pool.limiter.as_ref()?.ends(self.life.h2_pool.index_in(&pool.h2_pools)?)
        });
        if self.life.link.streams.get() == 0 && !self.life.link.is_open() {
            // The connection's last words are on their way. A server that does not take them goes without.
            due = self.ending.get_or_insert(now).saturating_add(close);
            if now >= due {
                self.life.upstreams.services.metrics.increment(self.life.server.close_timeouts);
                let _ = self.wire.stream.borrow().reset_on_close();
                return Poll::Ready(());
            }
        } else if self.life.link.streams.get() == 0 {
            let idle = if self.life.h2_pool.is_abandoned() { idle.min(LATECOMER_MILLIS) } else { idle };
            let quiet = self.life.link.left.get() + idle;
            if now >= quiet || self.life.upstreams.services.draining.get() {
                self.life.link.dismiss();
            }
            due = quiet.max(now + 1);
        } else {
            // Reservations that are dropped do not wake this task.
            due = due.min(now + idle);
            if self.poll_ping(context, now, ping, &mut due) {
                return Poll::Ready(());
            }
        }
        if let Some(others) = others.filter(|_| self.life.link.is_open()) {
            match self.life.h2_pool.make_way(&self.life.link, others, now) {
                Ok(()) => self.life.link.dismiss(),
                Err(later) => due = due.min(later),
            }
        }
        deadline.set(due, context.waker());
        Poll::Pending
    }

    /// Sends a PING to a server that was silent for a while with streams open. True when no answer came in time.
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
            let quiet_due = self.wire.received_at.get() + ping;
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

/// State that the library's stream and the connection's driver share.
struct Wired {
    services: Rc<Services>,
    stream: RefCell<ServerStream>,
    inbox: RefCell<Buffer>,
    /// Bytes that the library has written and the stream has not taken yet.
    staged: RefCell<Buffer>,
    /// Bytes received, and when the last were, in milliseconds on the core's clock.
    received_bytes: Cell<u64>,
    received_at: Cell<u64>,
    /// Whether the library waits for the socket.
    blocked: Cell<bool>,
    intake: RefCell<Intake>,
    responses: Rc<Responses>,
    /// Bytes read in this poll of the connection.
    turn: Cell<usize>,
    /// Limits for floods; a server is held to that of errors alone.
    limits: Http2Flood,
}

impl Wired {
    fn new(services: &Rc<Services>, stream: ServerStream) -> Wired {
        let responses = Rc::<Responses>::default();
        Wired {
            services: Rc::clone(services),
            stream: RefCell::new(stream),
            inbox: RefCell::default(),
            staged: RefCell::default(),
            received_bytes: Cell::new(0),
            received_at: Cell::new(services.timers.now()),
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
            let room =
                stage_frames(&self.services.buffers, &mut self.staged.borrow_mut(), &mut self.intake.borrow_mut());
            self.blocked.set(!room);
        }
    }

    /// Sends the staged bytes.
    fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (mut stream, mut staged) = (self.stream.borrow_mut(), self.staged.borrow_mut());
        let buffers = &self.services.buffers;
        while !staged.is_empty() {
            let count = ready!(stream.poll_write(context, buffers, &[IoSlice::new(staged.readable())]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            staged.consume(count);
        }
        buffers.release(&mut staged);
        stream.poll_flush(context, buffers)
    }
}

impl Drop for Wired {
    fn drop(&mut self) {
        self.services.buffers.release(&mut self.inbox.borrow_mut());
        self.services.buffers.release(&mut self.staged.borrow_mut());
    }
}

/// The library's side of the connection.
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
                let count = ready!(wired.stream.borrow_mut().poll_fill(context, &wired.services.buffers, &mut inbox))?;
                if count == 0 {
                    break;
                }
                wired.received_bytes.set(wired.received_bytes.get() + count as u64);
                wired.received_at.set(wired.services.timers.now());
            }
            let bytes = &inbox.readable()[..inbox.len().min(into.remaining())];
            let moment = Moment { now: wired.services.timers.now(), sent: 0, limits: &wired.limits };
            // An offence of a server that ends its connection needs no last word.
            let taken = intake.take(bytes, moment).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
            into.put_slice(&bytes[..taken.pass]);
            inbox.consume(taken.used);
            wired.turn.set(wired.turn.get() + taken.used);
            passed = taken.pass;
        }
        if inbox.is_idle() {
            wired.services.buffers.release(&mut inbox);
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
        Poll::Ready(Ok(stage(&wired.services.buffers, &mut wired.staged.borrow_mut(), slices)))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Flushing is left to the connection's driver, when there is nothing more to be written.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wired = &*self.0;
        ready!(wired.poll_flush(context))?;
        wired.stream.borrow_mut().poll_end(context, &wired.services.buffers)
    }
}

#[cfg(test)]
mod tests {
    use propylon_config::{AccessLog, Source};
    use propylon_metrics::Store;
    use propylon_observe::access_log::Writer;
    use propylon_observe::telemetry::Telemetry;
    use propylon_tls::{Parking, ParkingLimits};

    use super::*;
    use crate::overload::Shared;

    fn services() -> Rc<Services> {
        let text = "[listener.web]\nbind = \"127.0.0.1:0\"\n[backend.app]\nservers = [\"127.0.0.1:1\"]\n\
                    [[route]]\nbackend = \"app\"\n";
        let source = Source { name: "propylon.toml".into(), base: std::path::PathBuf::new(), text: text.into() };
        let (config, _) = propylon_config::parse(&source).unwrap();
        let (telemetry, store) = Telemetry::new(&config, 1);
        let log = Writer::open(&AccessLog::Off).unwrap().start(|_, error| error.to_string()).unwrap().log_buffer();
        let (limits, shared) = ((config.process.handshakes, false), (Arc::new(Shared::new(None)), 1));
        let parking = Parking::new(ParkingLimits::default());
        Services::new(limits, parking, Store::column(&store, 0), Arc::new(telemetry), log, shared)
    }

    #[test]
    fn a_connection_whose_making_is_cut_short_is_not_waited_for() {
        let (services, h2_pool) = (services(), Rc::<H2Pool>::default());
        let making = Making::begin(&h2_pool, &services);
        assert!(h2_pool.is_alive());
        drop(making);
        assert!(!h2_pool.is_alive());
        // The pool takes note of the connection made, once.
        Making::begin(&h2_pool, &services).made();
        assert!(h2_pool.is_alive());
        h2_pool.opened_http1(services.timers.now());
        assert!(!h2_pool.is_alive());
    }
}
