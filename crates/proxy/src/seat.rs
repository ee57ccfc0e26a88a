//! A place at a server for a request or a relay: its server and connection, and the wait while all are full.

mod closing;
mod streams;

use std::future::{Future, poll_fn};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use propylon_config::{Backend, BackendId, Reuse};
use propylon_net::server_stream::{ServerHandshake, ServerStream};
use propylon_net::socket::Socket;
use propylon_net::timers::{Deadline, coarse_millis};
use propylon_observe::telemetry::Wait;
use propylon_policy::balance::Draw;
use propylon_policy::reuse::{Fit, Level, fit};
use propylon_policy::turnstile::{Grant, Ticket};
use propylon_tls::{Connector, UpstreamFailure};
use rustix::io::Errno;

use crate::proxied;
use crate::balance::{Choice, Eligibility, Turn, Wish};
use crate::client_side::ClientSide;
use crate::core::Core;
use crate::fault::{Attempt, Repeatable};
use crate::http2::{Lane, StreamPermit};
use crate::notice::{Notice, Way};
use crate::pool::{Permit, PoolKey, Returned, ServerConnection, ServerTurnstile};
use crate::request::Request;
use crate::snapshot::CoreSnapshot;

/// Connections end up to so much earlier than `max_lifetime` says, by chance: those made together do not end together.
const LIFETIME_SPREAD_PERCENT: u64 = 10;

pub use closing::part;

pub const CONNECT_TIMEOUT: Attempt = Attempt { status: 504, reason: "connect-timeout", repeatable: Repeatable::Unsent };

/// State that a request or a relay carries from its earlier attempts.
#[derive(Default)]
pub struct Experience {
    /// Attempts that failed for another reason than a stale connection.
    pub failures: u32,
    /// Servers that it failed at, so that a repeat goes elsewhere if there is an elsewhere. Empty, and so without
    /// memory, for nearly every request.
    pub tried: Vec<usize>,
    /// A pooled connection was stale: the others are likely to be.
    pub fresh: bool,
    /// Attempts whose connection the server has ended for the sake of others.
    pub cut_off: u8,
    /// The permit of that connection, and its server: whoever has come so far does not go back to the end of the line.
    pub kept: Option<(usize, Permit)>,
    /// Affinity that it is balanced by.
    pub wish: Wish,
    /// Time of the request at its present server, and its count among those in flight there.
    pub turn: Option<Turn>,
    /// Microseconds in the backend's line, if there was a wait.
    pub queue_us: Option<u64>,
    /// Time since which it has been waiting for the connection that it has not got yet, in ms on the clock that all
    /// cores share: its place in the line, whatever it has waited for meanwhile.
    pub arrived: Option<NonZeroU64>,
}

impl Experience {
    /// An attempt has failed, and the server is to blame.
    pub fn failed(&mut self, server: usize) {
        self.failures += 1;
        self.tried.push(server);
    }

    /// Time of its arrival, for the order of those who wait. Waits before an attempt that failed count, and the
    /// attempt does not.
    fn arrived(&mut self) -> u64 {
        let waited = self.queue_us.unwrap_or(0) / 1_000;
        let now = || NonZeroU64::new(coarse_millis().saturating_sub(waited)).unwrap_or(NonZeroU64::MIN);
        self.arrived.get_or_insert_with(now).get()
    }

    /// Milliseconds for which the request may still wait in the backend's line: what it has waited before counts.
    fn patience_left(&self, config: &propylon_config::Backend) -> u64 {
        (config.queue.timeout.as_millis() as u64).saturating_sub(self.queue_us.unwrap_or(0) / 1_000)
    }
}

/// Why there is no connection.
pub enum Refusal {
    NoServer,
    /// One of `telemetry::QUEUE_REFUSALS`.
    Queue(&'static str),
    /// The client has closed or reset its connection while it waited: one of `telemetry::CLIENT_FAULTS`.
    ClientGone(&'static str),
    Failed(Attempt),
}

/// Connection or stream that a request goes out on.
pub enum Seat {
    Connection(Box<ServerConnection>),
    Stream(StreamPermit),
}

enum Pick {
    Server(usize, Choice),
    /// All servers that would do have as many connections as they may.
    Full(Box<[usize]>),
    None,
}

/// Requirements on a connection.
pub struct Need {
    pub fit: Fit,
    /// The kernel is asked whether an idle connection is still open.
    pub certain: bool,
    /// The only client connection whose bytes it may carry.
    pub owner: Option<NonZeroU64>,
}

pub enum Found {
    Connection(Box<ServerConnection>),
    /// The right to make one; none where there is no limit.
    Permit(Option<Permit>),
}

/// A connection to send a request on, from a pool or new; `Note::server` and `Note::reused` tell which.
pub async fn take(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    snapshot: &Rc<CoreSnapshot>,
    backend: BackendId,
    repeatable: bool,
    experience: &mut Experience,
) -> Result<Seat, Refusal> {
    let core = Rc::clone(client.core());
    if snapshot.backends[backend.0].pool.streams_max > 0 {
        return Box::pin(streams::take(client, request, snapshot, backend, experience)).await;
    }
    let config = &snapshot.shared.config.backends[backend.0];
    let level = level(config.reuse);
    // A connection's PROXY header names one client, so it must not carry another's requests.
    let is_private = level == Level::Never || config.send_proxy_protocol.is_some();
    let owner = is_private.then(|| client.owner());
    let need = Need {
        fit: if experience.fresh { Fit::New } else { fit(level, client.ordinal() <= 1, repeatable) },
        certain: !request.head.method.is_idempotent(),
        owner,
    };
    request.note.reused = false;
    let found = find(client, snapshot, backend, &need, experience).await;
    request.note.queue_us = experience.queue_us;
    let (server, found) = found?;
    request.note.server = Some(server);
    experience.turn = Some(Turn::begin(&core, &snapshot.backends[backend.0], backend.0, server));
    let state = &snapshot.backends[backend.0];
    state.pool.recent[server].set(state.pool.recent[server].get().saturating_add(1));
    let permit = match found {
        Found::Connection(mut found) => {
            found.requests = found.requests.saturating_add(1);
            core.metrics.increment(core.telemetry.backends[backend.0].servers[server].reused);
            request.note.reused = true;
            return Ok(Seat::Connection(found));
        }
        Found::Permit(permit) => permit,
    };
    let key = PoolKey { server, owner };
    let preamble = preamble(client, config).map_err(Refusal::Failed)?;
    let started = Instant::now();
    let made = connect_for(client, snapshot, backend, key, permit, &preamble).await;
    request.note.connect_us = Some(started.elapsed().as_micros() as u64);
    if matches!(made, Err(Refusal::Failed(Attempt { status: 504, .. }))) {
        client.count_timeout(Wait::Connect);
    }
    let mut made = made?;
    made.requests = 1;
    Ok(Seat::Connection(made))
}

/// Makes a connection while its client waits, whose body does not pile up meanwhile; gives up if the client goes away.
async fn connect_for(
    client: &mut ClientSide<'_>,
    snapshot: &CoreSnapshot,
    backend: BackendId,
    key: PoolKey,
    permit: Option<Permit>,
    preamble: &[u8],
) -> Result<Box<ServerConnection>, Refusal> {
    let core = Rc::clone(client.core());
    // The client's own is not to be had while the client is watched.
    let deadline = core.timers.deadline();
    let mut made = Box::pin(connect(&core, snapshot, backend, key, permit, preamble, &deadline));
    poll_fn(|context| {
        if let Poll::Ready(made) = made.as_mut().poll(context) {
            return Poll::Ready(made.map_err(Refusal::Failed));
        }
        client.read_ahead(context);
        client.poll_gone(context).map(|why| Err(Refusal::ClientGone(why)))
    })
    .await
}

/// Bytes that connections of this client to this backend begin with.
fn preamble(client: &ClientSide<'_>, config: &Backend) -> Result<Vec<u8>, Attempt> {
    let Some(version) = config.send_proxy_protocol else { return Ok(Vec::new()) };
    let failed = Attempt { status: 502, reason: "write-failed", repeatable: Repeatable::Unsent };
    let header = match client {
        ClientSide::Http1(connection) => proxied::header(connection, version, None),
        ClientSide::Http2(stream) => stream.link.proxy_header(version),
    };
    header.map_err(|_| failed)
}

/// Finds a connection of the kind that is needed or the right to make one, with the account of it; waits in the
/// backend's line while every server that would do is full.
pub async fn find(
    client: &mut ClientSide<'_>,
    snapshot: &CoreSnapshot,
    backend: BackendId,
    need: &Need,
    experience: &mut Experience,
) -> Result<(usize, Found), Refusal> {
    let core = Rc::clone(client.core());
    let metrics = &core.telemetry.backends[backend.0];
    let (server, found) = match experience.kept.take() {
        Some((server, permit)) => (server, Found::Permit(Some(permit))),
        None => match seek(&core, snapshot, backend, need, experience) {
            Ok(found) => found,
            Err(None) => {
                core.metrics.increment(metrics.unavailable);
                return Err(Refusal::NoServer);
            }
            // Boxed, as all that is rare: every request would carry room for it.
            Err(Some(wants)) => Box::pin(queue(client, snapshot, backend, wants, need, experience)).await?,
        },
    };
    experience.arrived = None;
    core.metrics.increment(metrics.servers[server].requests);
    Ok((server, found))
}

/// Makes a connection within the backend's patience, and keeps the account of it. It begins with `preamble`.
pub async fn connect(
    core: &Core,
    snapshot: &CoreSnapshot,
    backend: BackendId,
    key: PoolKey,
    permit: Option<Permit>,
    preamble: &[u8],
    deadline: &Deadline,
) -> Result<Box<ServerConnection>, Attempt> {
    let config = &snapshot.shared.config.backends[backend.0];
    // One patience for both: the server is there when it can be spoken to.
    let due = core.timers.now() + config.timeouts.connect.as_millis() as u64;
    let started = Instant::now();
    let notice = &snapshot.shared.servers[backend.0][key.server].notice;
    let reached = reach(core, notice, preamble, due, deadline).await;
    core.metrics.observe(core.telemetry.backends[backend.0].connect_duration, started.elapsed().as_micros() as u64);
    let made = match (reached, &snapshot.connectors[backend.0]) {
        (Ok((socket, way)), None) => Ok((ServerStream::plain(socket), way)),
        (Ok((socket, way)), Some(connector)) => {
            let greeted = greet(core, socket, connector, key.server, due, deadline).await;
            account_greeting(core, snapshot, backend, key.server, &greeted);
            greeted.map(|(stream, _)| (stream, way)).map_err(|failure| failure.attempt())
        }
        (Err(failed), _) => Err(failed),
    };
    settle(core, snapshot, backend, key, permit, made)
}

/// The account of an attempt to connect, and the connection if there is one.
pub fn settle(
    core: &Core,
    snapshot: &CoreSnapshot,
    backend: BackendId,
    key: PoolKey,
    permit: Option<Permit>,
    made: Result<(ServerStream, Way), Attempt>,
) -> Result<Box<ServerConnection>, Attempt> {
    let metrics = &core.telemetry.backends[backend.0];
    let state = &snapshot.backends[backend.0];
    let config = &snapshot.shared.config.backends[backend.0];
    match made {
        Ok((stream, way)) => {
            state.succeeded(key.server, core.timers.now());
            core.metrics.increment(metrics.servers[key.server].connections);
            core.metrics.raise(metrics.servers[key.server].open);
            let expires =
                config.max_lifetime.map(|lifetime| Instant::now() + spread(lifetime, &mut core.random.borrow_mut()));
            let home = core.metrics.index();
            Ok(Box::new(ServerConnection { stream, key, way, home, requests: 0, expires, permit }))
        }
        Err(failed) => {
            // A shortage on this machine is no fault of the server.
            if failed.status != 503 {
                state.suspects.borrow_mut().failed(key.server, core.timers.now());
            }
            if failed.reason != UpstreamFailure::UNSIGNED {
                core.metrics.increment(metrics.servers[key.server].connect_failures);
            }
            Err(failed)
        }
    }
}

/// Gives a connection up after a request: to its pool if it can serve again; else closed, its permit returned.
pub fn leave(
    core: &Core,
    snapshot: &CoreSnapshot,
    backend: BackendId,
    mut connection: Box<ServerConnection>,
    clean: bool,
) -> Option<Permit> {
    let server = connection.key.server;
    let metrics = &core.telemetry.backends[backend.0].servers[server];
    if !clean || core.draining.get() {
        core.metrics.lower(metrics.open);
        return connection.permit.take();
    }
    let pool = &snapshot.backends[backend.0].pool;
    let returned = pool.check_in(connection, core.timers.now());
    core.report_idle(backend.0, pool, server);
    if returned == Returned::Closed {
        core.metrics.lower(metrics.open);
    }
    None
}

fn spread(lifetime: Duration, random: &mut fastrand::Rng) -> Duration {
    let most = lifetime.as_millis() as u64 * LIFETIME_SPREAD_PERCENT / 100;
    lifetime - Duration::from_millis(random.u64(..=most))
}

fn level(reuse: Reuse) -> Level {
    match reuse {
        Reuse::Never => Level::Never,
        Reuse::Safe => Level::Safe,
        Reuse::Aggressive => Level::Aggressive,
        Reuse::Always => Level::Always,
    }
}

/// A connection or the right to make one, without waiting; else the servers to wait for, or none where there is none.
fn seek(
    core: &Core,
    snapshot: &CoreSnapshot,
    backend: BackendId,
    need: &Need,
    experience: &Experience,
) -> Result<(usize, Found), Option<Box<[usize]>>> {
    match pick(core, snapshot, backend, experience) {
        Pick::None => Err(None),
        Pick::Full(wants) => Err(Some(wants)),
        Pick::Server(server, choice) => match at(core, snapshot, backend, server, need) {
            Some(found) => Ok((server, found)),
            // Another core was faster.
            None => {
                let state = &snapshot.backends[backend.0];
                let suspects = state.suspects.borrow();
                let eligibility =
                    Eligibility::new(state.standing(&suspects), &state.tiers, &experience.tried, core.timers.now());
                Err(Some(acceptable(&eligibility, choice, state.pool.servers())))
            }
        },
    }
}

async fn queue(
    client: &mut ClientSide<'_>,
    snapshot: &CoreSnapshot,
    backend: BackendId,
    wants: Box<[usize]>,
    need: &Need,
    experience: &mut Experience,
) -> Result<(usize, Found), Refusal> {
    let core = Rc::clone(client.core());
    let Some(turnstile) = &snapshot.backends[backend.0].pool.turnstile else { return Err(Refusal::NoServer) };
    let waited = wait(client, snapshot, backend, turnstile, wants, Box::default(), experience).await;
    count_refused(&core, backend, &waited);
    // There is always one where no lanes are watched.
    let Some(grant) = waited? else { return Err(Refusal::NoServer) };
    Ok(granted(&core, snapshot, backend, turnstile, grant, need))
}

fn count_refused<T>(core: &Core, backend: BackendId, waited: &Result<T, Refusal>) {
    let metrics = &core.telemetry.backends[backend.0];
    match waited {
        Err(Refusal::Queue(reason)) => core.metrics.increment(metrics.queue_refused.of(reason)),
        Err(Refusal::ClientGone(_)) => core.metrics.increment(metrics.queue_refused.of("client-gone")),
        _ => {}
    }
}

fn pick(core: &Core, snapshot: &CoreSnapshot, backend: BackendId, experience: &Experience) -> Pick {
    let state = &snapshot.backends[backend.0];
    let now = core.timers.now();
    let draw = Draw { key: experience.wish.key, random: core.random.borrow_mut().u64(..), now };
    state.heed_notices(now);
    let mut suspects = state.suspects.borrow_mut();
    let eligibility = Eligibility::new(state.standing(&suspects), &state.tiers, &experience.tried, now);
    for choice in [Choice::Trusted, Choice::Untried, Choice::Any] {
        let fits = |server: usize| eligibility.fits(server, choice);
        let wished = experience.wish.server.filter(|server| choice == Choice::Trusted && fits(*server));
        let has_room = |server: usize| state.pool.has_room(server);
        let picked = match wished {
            // A client's affinity to this server is worth the wait.
            Some(server) if !has_room(server) => return Pick::Full(Box::new([server])),
            Some(server) => Some(server),
            None => state.balancer.borrow_mut().pick(|server| fits(server) && has_room(server), draw),
        };
        if let Some(server) = picked {
            core.note_tier(backend.0, eligibility.tier());
            suspects.tried(server, now);
            return Pick::Server(server, choice);
        }
        let wants = match state.pool.turnstile {
            Some(_) => acceptable(&eligibility, choice, state.pool.servers()),
            None => Box::default(),
        };
        // Waiting for a server that is trusted is better than failing at one that is not.
        if !wants.is_empty() {
            return Pick::Full(wants);
        }
    }
    Pick::None
}

/// Any of these will do.
fn acceptable(eligibility: &Eligibility<'_>, choice: Choice, servers: usize) -> Box<[usize]> {
    (0..servers).filter(|server| eligibility.fits(*server, choice)).collect()
}

/// An idle connection to this server, or the right to make one, without waiting.
fn at(core: &Core, snapshot: &CoreSnapshot, backend: BackendId, server: usize, need: &Need) -> Option<Found> {
    let pool = &snapshot.backends[backend.0].pool;
    let metrics = &core.telemetry.backends[backend.0].servers[server];
    if need.fit != Fit::New {
        let (found, stale) = pool.checkout(PoolKey { server, owner: need.owner }, need.fit, need.certain);
        for _ in 0..stale {
            core.metrics.increment(metrics.stale);
            core.metrics.lower(metrics.open);
        }
        if found.is_some() || stale > 0 {
            core.report_idle(backend.0, pool, server);
        }
        if let Some(found) = found {
            return Some(Found::Connection(found));
        }
    }
    let Some(turnstile) = &pool.turnstile else { return Some(Found::Permit(None)) };
    if turnstile.try_take(server) {
        return Some(Found::Permit(Some(Permit::taken(turnstile, server))));
    }
    if turnstile.is_wanted(server) {
        return None;
    }
    // The idle connection does not suit this request, and is in its way.
    let evicted = pool.evict(server)?;
    core.report_idle(backend.0, pool, server);
    core.metrics.lower(metrics.open);
    Some(Found::Permit(evicted.permit))
}

/// Result of the wait: a connection from this core or another, or the right to make one.
fn granted(
    core: &Core,
    snapshot: &CoreSnapshot,
    backend: BackendId,
    turnstile: &Arc<ServerTurnstile>,
    grant: Grant<Box<ServerConnection>>,
    need: &Need,
) -> (usize, Found) {
    let (server, mut found) = match grant {
        Grant::Permit(server) => (server, Found::Permit(Some(Permit::taken(turnstile, server)))),
        Grant::Connection(server, found) => (server, Found::Connection(found)),
    };
    let metrics = &core.telemetry.backends[backend.0].servers[server];
    if let Found::Connection(mut handed) = found {
        let home = core.metrics.index();
        let fits = handed.key.owner == need.owner && handed.suits(need.fit) && handed.stream.is_quiet();
        // The other core's event loop may know less than the kernel.
        let fits = fits && !((need.certain || handed.home != home) && handed.stream.has_news());
        let fits = fits && (handed.home == home || handed.stream.leave_event_loop().is_ok());
        found = if fits {
            if handed.home != home {
                core.metrics.increment(metrics.handed_over);
                handed.home = home;
            }
            Found::Connection(handed)
        } else {
            core.metrics.lower(metrics.open);
            Found::Permit(handed.permit)
        };
    }
    let now = core.timers.now();
    snapshot.backends[backend.0].suspects.borrow_mut().tried(server, now);
    (server, found)
}

/// A place in the line that is given up when it is dropped.
struct Place<'a> {
    core: &'a Core,
    backend: usize,
    turnstile: &'a Arc<ServerTurnstile>,
    ticket: Ticket,
    /// HTTP/2 connections that are watched meanwhile.
    lanes: Box<[Rc<Lane>]>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.lanes.iter().for_each(|lane| lane.watch_no_more(self.ticket));
        let metrics = &self.core.telemetry.backends[self.backend];
        self.core.metrics.lower(metrics.queue_depth);
        self.turnstile.leave(self.ticket).into_iter().for_each(|grant| self.pass_on(grant));
    }
}

impl Place<'_> {
    /// Gives back what nobody here needs any more.
    fn pass_on(&self, grant: Grant<Box<ServerConnection>>) {
        match grant {
            Grant::Permit(server) => self.turnstile.release(server, coarse_millis()),
            // The connection's permit goes to the next in the line.
            Grant::Connection(server, _) => {
                self.core.metrics.lower(self.core.telemetry.backends[self.backend].servers[server].open);
            }
        }
    }
}

/// Waits in the backend's line, with no buffer in hand if there is nothing in it. `None` once one of these `lanes` has
/// a connection, or makes one: whichever comes first will do.
async fn wait(
    client: &mut ClientSide<'_>,
    snapshot: &CoreSnapshot,
    backend: BackendId,
    turnstile: &Arc<ServerTurnstile>,
    wants: Box<[usize]>,
    lanes: Box<[Rc<Lane>]>,
    experience: &mut Experience,
) -> Result<Option<Grant<Box<ServerConnection>>>, Refusal> {
    let core = Rc::clone(client.core());
    let metrics = &core.telemetry.backends[backend.0];
    let patience = experience.patience_left(&snapshot.shared.config.backends[backend.0]);
    let full = Refusal::Queue("queue-full");
    let began = Instant::now();
    let Ok(ticket) = turnstile.join_again(wants, experience.arrived(), coarse_millis()) else { return Err(full) };
    core.metrics.raise(metrics.queue_depth);
    let place = Place { core: &core, backend: backend.0, turnstile, ticket, lanes };
    let due = core.timers.now() + patience;
    client.rest();
    let granted = poll_fn(|context| {
        // Before there is a grant, which is not to be for nobody.
        if let Poll::Ready(why) = client.poll_gone(context) {
            return Poll::Ready(Err(Refusal::ClientGone(why)));
        }
        match turnstile.poll(ticket, context) {
            Poll::Ready(Err(_)) => return Poll::Ready(Err(Refusal::Queue("queue-full"))),
            Poll::Ready(Ok(grant)) => {
                // The kernel may know of it before the event loop does.
                let Some(why) = client.has_gone() else { return Poll::Ready(Ok(Some(grant))) };
                place.pass_on(grant);
                return Poll::Ready(Err(Refusal::ClientGone(why)));
            }
            Poll::Pending => {}
        }
        if place.lanes.iter().any(|lane| lane.is_alive()) {
            return Poll::Ready(Ok(None));
        }
        place.lanes.iter().for_each(|lane| lane.watch(ticket, context));
        client.read_ahead(context);
        if core.timers.now() >= due {
            return Poll::Ready(Err(Refusal::Queue("queue-timeout")));
        }
        client.deadline().set(due, context.waker());
        Poll::Pending
    })
    .await;
    drop(place);
    let micros = began.elapsed().as_micros() as u64;
    experience.queue_us = Some(experience.queue_us.unwrap_or(0) + micros);
    core.metrics.observe(metrics.queue_wait, micros);
    granted
}

/// A connection to the server, by the address whose turn it is; by another where that fails.
async fn reach(
    core: &Core,
    notice: &Notice,
    preamble: &[u8],
    due: u64,
    deadline: &Deadline,
) -> Result<(Socket, Way), Attempt> {
    let mut ways = notice.ways();
    let share = due.saturating_sub(core.timers.now()) / ways.len().max(1) as u64;
    let mut failed = Attempt { status: 502, reason: "connect-failed", repeatable: Repeatable::Unsent };
    let mut lost: Option<Way> = None;
    while let Some(way) = ways.next() {
        // One that does not answer leaves time for the others.
        let due = if ways.len() == 0 { due } else { (core.timers.now() + share).min(due) };
        match reach_by(core, way, preamble, due, deadline).await {
            Ok(socket) => {
                lost.into_iter().for_each(|lost| notice.note_failed(lost));
                return Ok((socket, way));
            }
            Err(other) => (failed, lost) = (other, Some(way)),
        }
        if failed.repeatable == Repeatable::No {
            break;
        }
    }
    Err(failed)
}

async fn reach_by(core: &Core, way: Way, preamble: &[u8], due: u64, deadline: &Deadline) -> Result<Socket, Attempt> {
    let stream = propylon_sys::connect(way.address).map_err(|error| connect_failure(&error));
    let stream = stream.and_then(|stream| match core.shortage.is_kept_from_servers(&stream) {
        true => Err(OUT_OF_FILES),
        false => Ok(stream),
    });
    if stream.as_ref().is_err_and(|failure| failure.reason == OUT_OF_FILES.reason) {
        // For the next one.
        core.make_room();
    }
    let mut socket = Socket::new(stream?);
    poll_fn(|context| {
        if let Poll::Ready(connected) = socket.poll_connected(context) {
            return Poll::Ready(connected.map_err(|error| connect_failure(&error)));
        }
        if core.timers.now() >= due {
            return Poll::Ready(Err(CONNECT_TIMEOUT));
        }
        deadline.set(due, context.waker());
        Poll::Pending
    })
    .await?;
    // The request follows at once. The kernel takes a first few hundred bytes whole, or the connection has failed.
    if !preamble.is_empty() && socket.send_more(preamble).ok() != Some(preamble.len()) {
        return Err(Attempt { status: 502, reason: "write-failed", repeatable: Repeatable::Unsent });
    }
    Ok(socket)
}

/// A stream, and how long it took to agree on it, in microseconds.
type Greeted = Result<(ServerStream, u64), Ungreeted>;

/// Why TLS with a server came to nothing.
enum Ungreeted {
    Timeout,
    Failed(UpstreamFailure),
}

impl Ungreeted {
    fn attempt(&self) -> Attempt {
        if matches!(self, Ungreeted::Failed(failure) if failure.is_own()) {
            // Another server would fare no better.
            return Attempt { status: 503, reason: self.reason(), repeatable: Repeatable::No };
        }
        let status = if matches!(self, Ungreeted::Timeout) { 504 } else { 502 };
        Attempt { status, reason: self.reason(), repeatable: Repeatable::Unsent }
    }

    fn reason(&self) -> &'static str {
        match self {
            Ungreeted::Timeout => "tls-timeout",
            Ungreeted::Failed(failure) => failure.reason,
        }
    }
}

async fn greet(
    core: &Core,
    socket: Socket,
    connector: &Connector,
    server: usize,
    due: u64,
    deadline: &Deadline,
) -> Greeted {
    let began = Instant::now();
    let handshake = connector.connect(server).map_err(Ungreeted::Failed)?;
    let mut greeting = ServerHandshake::new(socket, handshake);
    let stream = poll_fn(|context| {
        if let Poll::Ready(greeted) = greeting.poll(context, &core.stock, |job| core.submit(job)) {
            return Poll::Ready(greeted.map_err(Ungreeted::Failed));
        }
        if core.timers.now() >= due {
            return Poll::Ready(Err(match greeting.awaits_signature() {
                true => Ungreeted::Failed(UpstreamFailure::unsigned_in_time()),
                false => Ungreeted::Timeout,
            }));
        }
        deadline.set(due, context.waker());
        Poll::Pending
    })
    .await?;
    Ok((stream, began.elapsed().as_micros() as u64))
}

fn account_greeting(core: &Core, snapshot: &CoreSnapshot, backend: BackendId, server: usize, greeted: &Greeted) {
    let Some(metrics) = core.telemetry.backends[backend.0].tls.get() else { return };
    match greeted {
        Ok((stream, micros)) => {
            let resumed = stream.facts().is_some_and(|facts| facts.resumed);
            core.metrics.increment(if resumed { metrics.resumed } else { metrics.full });
            core.metrics.observe(metrics.duration, *micros);
        }
        Err(why) => {
            core.metrics.increment(metrics.failures.of(why.reason()));
            if let Ungreeted::Failed(failure) = why {
                complain(core, snapshot, backend, server, failure);
            }
        }
    }
}

/// Says in the log which server TLS came to nothing with, and what to do.
pub fn complain(core: &Core, snapshot: &CoreSnapshot, backend: BackendId, server: usize, failure: &UpstreamFailure) {
    let Some(withheld) = core.server_failures_logged.borrow_mut().admit(core.timers.now()) else { return };
    let label = &snapshot.shared.servers[backend.0][server].label;
    let backend = &snapshot.shared.config.backends[backend.0].name;
    let more = if withheld > 0 { format!(" ({withheld} like this were not logged)") } else { String::new() };
    log::warn!("backend \"{backend}\", server {label}: {failure}; {}{more}", failure.advice());
}
/// Another server would fare no better.
const OUT_OF_FILES: Attempt = Attempt { status: 503, reason: "out-of-files", repeatable: Repeatable::No };

pub fn connect_failure(error: &std::io::Error) -> Attempt {
    let (status, reason, repeatable) = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => return OUT_OF_FILES,
        // Towards this address: another has ports of its own.
        Some(Errno::ADDRNOTAVAIL) => (503, "out-of-ports", Repeatable::Unsent),
        Some(Errno::CONNREFUSED) => (502, "connect-refused", Repeatable::Unsent),
        _ => (502, "connect-failed", Repeatable::Unsent),
    };
    Attempt { status, reason, repeatable }
}

/// Hands this core's idle connections to requests of others whenever it is called, for as long as the backend's line is
/// this one.
pub async fn steward(core: Rc<Core>, backend: usize, line: Arc<ServerTurnstile>) {
    loop {
        poll_fn(|context| line.poll_called(core.metrics.index(), context)).await;
        let snapshot = core.snapshot();
        let Some(pool) = snapshot.backends.get(backend).map(|state| &state.pool) else { return };
        if pool.turnstile.as_ref().is_none_or(|turnstile| !turnstile.is_kin(&line)) {
            return;
        }
        for server in 0..pool.servers() {
            if pool.give_away(server) > 0 {
                core.report_idle(backend, pool, server);
            }
            if pool.turnstile.as_ref().is_some_and(|turnstile| turnstile.is_wanted(server)) {
                pool.lanes[server].call();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_are_made_together_do_not_end_together() {
        let (hour, mut random) = (Duration::from_secs(3_600), fastrand::Rng::with_seed(7));
        let ends: Vec<Duration> = (0..1_000).map(|_| spread(hour, &mut random)).collect();
        let (first, last) = (ends.iter().min().unwrap(), ends.iter().max().unwrap());
        assert!(*first >= hour * 9 / 10 && *last <= hour, "{first:?} to {last:?}");
        assert!(*last - *first > hour * 9 / 100, "{first:?} to {last:?}");
    }

    #[test]
    fn what_this_machine_is_short_of_blames_no_server_and_ports_are_short_towards_one_address_only() {
        let failure = |errno: Errno| connect_failure(&std::io::Error::from(errno));
        let ports = failure(Errno::ADDRNOTAVAIL);
        assert_eq!((ports.status, ports.reason, ports.repeatable), (503, "out-of-ports", Repeatable::Unsent));
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            let files = failure(errno);
            assert_eq!((files.status, files.reason, files.repeatable), (503, "out-of-files", Repeatable::No));
        }
        assert_eq!(failure(Errno::CONNREFUSED).status, 502);
    }
}
