//! HTTP/2 with servers: few connections, many streams on each.
//!
//! A connection belongs to a core, is made by a task of its own and driven by it until its end; a request has a stream
//! on it, and hears of its stream from the connection. A request without one waits in its server's pool (`h2_pool.rs`).

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use propylon_config::{self as config, Http2Flood, ServerHttp2, ServerProtocol};
use propylon_http::fault::Fault;
use propylon_http::h2::settings::OwnSettings;
use propylon_http::h2::{ConnectionFault, Event, Reason, Role, Terms};
use propylon_net::alarms::sleep;
use propylon_net::budget::{self, Budget, FRAMES_BYTES_PER_POLL_MAX};
use propylon_net::buffer::{Buffer, SEAL_BYTES_MAX};
use propylon_net::server_stream::ServerStream;
use propylon_net::timers::Deadline;
use propylon_observe::telemetry::{BackendMetrics, ServerMetrics};

use super::backend::{Backend, Upstreams};
use super::connect::connect;
use super::connection::{Permit, PoolKey, ServerConnection};
use super::h2_pool::{H2Connection, H2Pool};
use crate::fault::{Attempt, Repeatable};
use crate::http2::{Link, Streams, messages};
use crate::services::{Services, WIDE_WINDOW_BYTES};

/// A header list that a server may send, in bytes as RFC 9113 §10.5.1 counts them.
const HEADER_LIST_BYTES_MAX: u32 = 48 * 1024;
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
    let endpoint = Arc::clone(&backend.servers[server].endpoint);
    let is_tls = made.stream.is_tls();
    // Over TLS a server says by ALPN that it speaks HTTP/2 (RFC 9113 §3.2), which is what was offered first.
    let agreed = !is_tls || made.stream.facts().is_some_and(|facts| facts.alpn == Some(0));
    let may_be_http1 = config.protocol == ServerProtocol::Auto;
    if may_be_http1 && (!agreed || !is_tls && endpoint.is_known_as_http1()) {
        return keep(&backend, &h2_pool, made, making).await;
    }
    let ServerConnection { stream, permit, expires, remote, .. } = *made;
    let timeout = config.timeouts.connect.as_millis() as u64;
    let link = Link::new(&services, Role::Client, &terms(config.http2, services.windows.width()));
    let mut wire = Wire::new(&services, stream);
    let greeted = if agreed { greet(&mut wire, &link, timeout, &deadline).await } else { Err(Silence::Speaks) };
    if let Err(silence) = greeted {
        services.metrics.lower(backend.server_metrics(server).open);
        let fails = silence == Silence::Total && endpoint.falls_silent();
        if !may_be_http1 || is_tls || fails {
            return making.failed(Attempt::new(Fault::NoHttp2, Repeatable::Unsent));
        }
        drop(wire);
        endpoint.note_http1();
        return match connect(&backend, key, permit, &[], &deadline).await {
            Ok(made) => keep(&backend, &h2_pool, made, making).await,
            Err(failed) => making.failed(failed),
        };
    }
    if may_be_http1 {
        endpoint.note_http2();
    }
    let link = Rc::new(H2Connection::new(link, is_tls, expires, (endpoint, remote), &services));
    let (of, server) = (Arc::clone(backend.metrics()), Arc::clone(backend.server_metrics(server)));
    let life = Life { upstreams: Rc::clone(&backend.upstreams), backend: of, server, h2_pool, link, permit };
    let timeouts = Timeouts::of(config);
    making.made();
    life.h2_pool.opened(&services, &life.link);
    // The configuration that the connection was made by does not live as long as the connection.
    drop(backend);
    life.note_links();
    let mut driver = Driver { wire, pinged: None, ending: None, is_deaf: false, timeouts, life };
    poll_fn(|context| driver.poll(context, &deadline)).await;
    driver.life.link.link.lose();
}

/// Terms on which we speak to servers, whose streams begin with windows of so many bytes.
fn terms(config: ServerHttp2, window: u32) -> Terms {
    let settings = OwnSettings {
        max_concurrent_streams: None,
        initial_window: window,
        header_list_bytes_max: HEADER_LIST_BYTES_MAX,
        enable_connect: false,
    };
    // Room for all its streams: clients that read slowly hold up no other.
    let connection_window = WIDE_WINDOW_BYTES.saturating_mul(config.max_streams).min(i32::MAX as u32);
    Terms { settings, connection_window, flood: Http2Flood::default() }
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

/// Reply of a server to the preface that does not speak HTTP/2 with us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Silence {
    /// Something else: another protocol's answer.
    Speaks,
    /// Nothing, or it ends the connection.
    Total,
}

/// Sends our SETTINGS and waits for the server's, which limit its streams and prove that it speaks HTTP/2.
async fn greet(wire: &mut Wire, link: &Link, timeout: u64, deadline: &Deadline) -> Result<(), Silence> {
    let due = wire.services.timers.now() + timeout;
    poll_fn(|context| {
        let read = wire.poll_read(
            context,
            |event, _, _| {
                debug_assert!(matches!(event, Event::Settings | Event::GoAway), "no stream has begun");
                Ok(())
            },
            link,
        );
        let flushed = wire.poll_flush(context, link);
        if link.h2.borrow().has_settings() {
            return Poll::Ready(Ok(()));
        }
        if read.is_err() {
            return Poll::Ready(Err(Silence::Speaks));
        }
        let is_over = matches!(read, Ok(false)) || matches!(flushed, Poll::Ready(Err(_)));
        if is_over || wire.services.timers.now() >= due {
            return Poll::Ready(Err(Silence::Total));
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
    wire: Wire,
    /// Milliseconds on the core's clock: when the ping was sent that is not answered yet.
    pinged: Option<u64>,
    /// Milliseconds on the core's clock: since when it is closed and nobody has a stream on it.
    ending: Option<u64>,
    /// The server takes nothing any more: what it has said before that is still to be read.
    is_deaf: bool,
    timeouts: Timeouts,
    /// Dropped last: its permit stands for the connection until that is closed.
    life: Life,
}

impl Driver {
    /// Drives the connection; ready when it has ended.
    fn poll(&mut self, context: &mut Context<'_>, deadline: &Deadline) -> Poll<()> {
        let connection = Rc::clone(&self.life.link);
        let (link, services) = (&connection.link, Rc::clone(&self.life.upstreams.services));
        *connection.driver.borrow_mut() = Some(context.waker().clone());
        link.set_driver(context);
        // The window is set ahead of streams that have just begun, since the server must hear of it before them. While
        // the last change has not been acknowledged none is made; then the connection is polled again.
        let window = services.windows.width();
        if window != link.h2.borrow().announced_window() {
            link.h2.borrow_mut().announce_window(window);
        }
        let is_open = self.poll_read(context, &connection);
        let (was_full, was_flooded) = (link.is_full(), link.is_flooded());
        // Servers may stay for a while after an error, and say no more (Go's for a second): nobody waits for that.
        if !is_open || connection.has_failed() || self.is_deaf && self.wire.count == 0 {
            return Poll::Ready(());
        }
        let flushed = match self.is_deaf {
            true => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            false => self.wire.poll_flush(context, link),
        };
        if matches!(flushed, Poll::Ready(Err(_))) {
            // A server that closes with bytes unread makes its end a reset, which answers have come before.
            self.is_deaf = true;
            connection.close();
            link.h2.borrow_mut().clear_output();
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if was_flooded && flushed.is_ready() {
            // Nothing was read, and no event will say again that there is something to be.
            context.waker().wake_by_ref();
        }
        if connection.allows_more() || was_full && flushed.is_ready() {
            self.life.h2_pool.serve(&services);
        }
        if connection.is_open() && self.wire.stream.is_wearing() {
            connection.close();
        }
        // Closing wakes this task: once is enough.
        if connection.is_open() && !link.h2.borrow().may_open() {
            connection.close();
        }
        self.poll_limits(context, deadline, flushed.is_ready())
    }

    /// Reads what has come. False when the connection has ended.
    fn poll_read(&mut self, context: &mut Context<'_>, connection: &H2Connection) -> bool {
        let link = &connection.link;
        let read = self.wire.poll_read(
            context,
            |event, bytes, h2| {
                match event {
                    Event::Response(block) => {
                        messages::read_response(link, h2, &block, bytes)?;
                        note_answer(connection, h2.stream(block.stream).is_some_and(|stream| stream.is_received()));
                    }
                    Event::Trailers(block) => {
                        messages::read_trailers(link, h2, &block, bytes)?;
                        note_answer(connection, true);
                    }
                    Event::Data { stream, bytes: range, end } => {
                        link.received(h2, stream, &bytes[range], 0);
                        note_answer(connection, end);
                    }
                    Event::Reset { stream } => link.wake_stream(h2, stream),
                    Event::GoAway => link.wake_reset(h2),
                    Event::Pong => self.pinged = None,
                    Event::Settings | Event::Request(_) => {}
                }
                Ok(())
            },
            link,
        );
        let read = match link.fault() {
            Some(fault) => Err(fault),
            None => read,
        };
        if let Err(fault) = read {
            // Streams in progress end with the connection, which says why as far as the server still listens.
            link.h2.borrow_mut().go_away(fault.reason());
            let _ = self.wire.poll_flush(context, link);
            return false;
        }
        read.unwrap_or(false)
    }

    fn poll_limits(&mut self, context: &mut Context<'_>, deadline: &Deadline, is_flushed: bool) -> Poll<()> {
        let connection = Rc::clone(&self.life.link);
        let services = Rc::clone(&self.life.upstreams.services);
        let now = services.timers.now();
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
        let is_unused = connection.streams.get() == 0 && connection.reserved.get() == 0;
        if is_unused && !connection.is_open() {
            if self.poll_end(context, &connection, is_flushed) {
                return Poll::Ready(());
            }
            // The connection's last words are on their way. A server that does not take them goes without.
            due = self.ending.get_or_insert(now).saturating_add(close);
            if now >= due {
                services.metrics.increment(self.life.server.close_timeouts);
                let _ = self.wire.stream.reset_on_close();
                return Poll::Ready(());
            }
        } else if is_unused {
            let idle = if self.life.h2_pool.is_abandoned() { idle.min(LATECOMER_MILLIS) } else { idle };
            let quiet = connection.left.get() + idle;
            if now >= quiet || services.draining.get() {
                connection.dismiss();
                context.waker().wake_by_ref();
            }
            due = quiet.max(now + 1);
        } else {
            // Reservations that are dropped do not wake this task.
            due = due.min(now + idle);
            if self.poll_ping(context, now, ping, &mut due) {
                return Poll::Ready(());
            }
        }
        if let Some(others) = others.filter(|_| connection.is_open()) {
            match self.life.h2_pool.make_way(&connection, others, now) {
                Ok(()) => connection.dismiss(),
                Err(later) => due = due.min(later),
            }
        }
        deadline.set(due, context.waker());
        Poll::Pending
    }

    /// Says GOAWAY and ends the connection, once all that was to be said is on its way. True when that is done.
    fn poll_end(&mut self, context: &mut Context<'_>, connection: &H2Connection, is_flushed: bool) -> bool {
        let link = &connection.link;
        if !link.h2.borrow().is_leaving() {
            link.h2.borrow_mut().go_away(Reason::NO_ERROR);
            if self.wire.poll_flush(context, link).is_pending() {
                return false;
            }
        } else if !is_flushed {
            return false;
        }
        self.wire.stream.poll_end(context, &self.wire.services.buffers).is_ready()
    }

    /// Sends a PING to a server that was silent for a while with streams open. True when no answer came in time.
    fn poll_ping(&mut self, context: &mut Context<'_>, now: u64, ping: u64, due: &mut u64) -> bool {
        if let Some(since) = self.pinged {
            if now >= since + ping {
                return true;
            }
            *due = (*due).min(since + ping);
            return false;
        }
        let quiet_due = self.wire.received_at + ping;
        if now >= quiet_due && self.life.link.link.h2.borrow_mut().ping() {
            self.pinged = Some(now);
            // Frames written just now are sent when the connection is polled next.
            context.waker().wake_by_ref();
        }
        *due = (*due).min(quiet_due.max(now + ping));
        false
    }
}

/// Takes note of a response that is whole: an error that ends the connection later is not all that the server can do.
/// Heads alone are no use, since a server may break off whatever it begins.
fn note_answer(connection: &H2Connection, is_whole: bool) {
    if is_whole {
        connection.has_answered.set(true);
    }
}

/// A server's socket and what has come from it.
struct Wire {
    services: Rc<Services>,
    stream: ServerStream,
    inbox: Buffer,
    /// Milliseconds on the core's clock: when the last bytes came.
    received_at: u64,
    /// Bytes that were taken in by the last poll.
    count: usize,
}

impl Wire {
    fn new(services: &Rc<Services>, stream: ServerStream) -> Wire {
        let received_at = services.timers.now();
        Wire { services: Rc::clone(services), stream, inbox: Buffer::default(), received_at, count: 0 }
    }

    /// Reads what has come, and hands events on with the bytes that they are in. False when the server has ended.
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        mut take: impl FnMut(Event, &[u8], &mut Streams) -> Result<(), ConnectionFault>,
        link: &Link,
    ) -> Result<bool, ConnectionFault> {
        self.count = 0;
        while !link.is_flooded() {
            if self.count >= FRAMES_BYTES_PER_POLL_MAX {
                budget::spend(Budget::Frames, context);
                break;
            }
            if self.inbox.is_empty() {
                match self.stream.poll_fill(context, &self.services.buffers, &mut self.inbox) {
                    Poll::Pending => break,
                    Poll::Ready(Ok(count)) if count > 0 => self.received_at = self.services.timers.now(),
                    Poll::Ready(_) => return Ok(false),
                }
            }
            let mut h2 = link.h2.borrow_mut();
            let before = h2.output().len();
            while !self.inbox.is_empty() {
                let (used, event) = h2.receive(self.inbox.readable(), self.received_at)?;
                if let Some(event) = event {
                    take(event, self.inbox.readable(), &mut h2)?;
                }
                self.inbox.consume(used);
                self.count += used;
            }
            link.note_provoked(h2.output().len() - before);
        }
        if self.inbox.is_idle() {
            self.services.buffers.release(&mut self.inbox);
        }
        Ok(true)
    }

    /// Sends what streams and the connection have to say.
    fn poll_flush(&mut self, context: &mut Context<'_>, link: &Link) -> Poll<io::Result<()>> {
        let (mut h2, buffers) = (link.h2.borrow_mut(), &self.services.buffers);
        loop {
            link.write_bodies(&mut h2);
            if h2.output().is_empty() {
                link.note_flushed();
                return self.stream.poll_flush(context, buffers);
            }
            let output = &h2.output()[..h2.output().len().min(SEAL_BYTES_MAX)];
            let count = ready!(self.stream.poll_write(context, buffers, &[IoSlice::new(output)]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            h2.consume_output(count);
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.services.buffers.release(&mut self.inbox);
    }
}

#[cfg(test)]
mod tests {
    use propylon_config::Source;
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
        let log = Writer::open(&config.log).unwrap().start(|_, error| error.to_string()).unwrap().log_buffer();
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
