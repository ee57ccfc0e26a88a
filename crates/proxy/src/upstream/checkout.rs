//! Checkout of a connection for a request or a relay: the pick of a server, its connection, and the queue while all
//! servers are full.

pub mod rival;
pub mod streams;

use std::future::{Future, poll_fn};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use propylon_config::{ProxyProtocol, Reuse};
use propylon_http::fault::Fault;
use propylon_net::timers::{Deadline, coarse_millis};
use propylon_observe::telemetry::Wait;
use propylon_policy::balance::Draw;
use propylon_policy::connection_limiter::{Grant, QueueTicket};
use propylon_policy::reuse::{Fit, Level, fit};

use super::backend::Backend;
use super::balance::{Affinity, Choice, Eligibility};
use super::connect::connect;
use super::connection::{Permit, PoolKey, ServerConnection, ServerLimiter};
use super::h2_pool::{H2Pool, StreamPermit};
use super::in_flight::InFlight;
use crate::fault::{Attempt, Repeatable};
use crate::request::Note;
use crate::trace::Reached;

/// The client of a request that needs a connection, as far as the checkout uses it.
pub trait Client {
    fn deadline(&self) -> &Deadline;

    /// Key by which the pools know the server connections of this client alone.
    fn owner(&mut self) -> NonZeroU64;

    /// Header of the PROXY protocol for a connection on behalf of this client.
    fn proxy_header(&self, version: ProxyProtocol) -> std::io::Result<Vec<u8>>;

    fn count_timeout(&self, wait: Wait);

    /// Ready when the client has given up: it has closed or reset its connection, or the stream.
    fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<Fault>;

    /// As [`Client::poll_gone`], as the kernel knows it: before the event loop does, perhaps. One system call.
    fn has_gone(&self) -> Option<Fault>;

    /// Gives up buffers that hold nothing, while something else is waited for.
    fn rest(&mut self);
}

/// Conditions on the connections that a request may go out on.
#[derive(Clone, Copy)]
pub struct Traits {
    /// The request is the first of its client connection.
    pub is_first: bool,
    /// The request can be sent again if its connection turns out to be closed.
    pub is_repeatable: bool,
    /// RFC 9110 §9.2.2.
    pub is_idempotent: bool,
}

/// State that a request or a relay carries from its earlier attempts.
#[derive(Default)]
pub struct RetryState {
    /// Attempts that failed for another reason than a stale connection.
    pub failures: u32,
    /// Servers that it failed at, so that a repeat goes elsewhere if there is an elsewhere. Empty, and so without
    /// memory, for nearly every request.
    pub tried: Vec<usize>,
    /// A pooled connection was stale: the others are likely to be.
    pub fresh: bool,
    /// `fresh` is so by an attempt that was made beside the present one, which says nothing of that.
    pub fresh_beside: bool,
    /// Connection of the present attempt, where that was made beside another and has taken its place.
    pub promoted: Option<Reached>,
    /// Attempts whose connection the server has ended for the sake of others.
    pub cut_off: u8,
    /// The permit of that connection, and its server: whoever has come so far does not go back to the end of the queue.
    pub kept: Option<(usize, Permit)>,
    /// Affinity that it is balanced by.
    pub affinity: Affinity,
    /// Time of the request at its present server, and its count among those in flight there.
    pub turn: Option<InFlight>,
    /// Microseconds in the backend's queue, if there was a wait.
    pub queue_us: Option<u64>,
    /// Time since which it has been waiting for the connection that it has not got yet, in ms on the clock that all
    /// cores share: its place in the queue, whatever it has waited for meanwhile.
    pub arrived: Option<NonZeroU64>,
}

impl RetryState {
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

    /// Milliseconds for which the request may still wait in the backend's queue: what it has waited before counts.
    fn queue_timeout_left(&self, config: &propylon_config::Backend) -> u64 {
        (config.queue.timeout.as_millis() as u64).saturating_sub(self.queue_us.unwrap_or(0) / 1_000)
    }
}

/// Why there is no connection.
pub enum Refusal {
    NoServer,
    Queue(Fault),
    /// The client has closed or reset its connection while it waited.
    ClientGone(Fault),
    Failed(Attempt),
    /// The client has sent what servers of the backend cannot be given; it is told so.
    Unfit(Fault),
    /// The time of the whole request is over.
    TimedOut,
}

/// Connection or stream that a request goes out on.
pub enum UpstreamStream {
    Connection(Box<ServerConnection>),
    Stream(StreamPermit),
    /// A connection whose server speaks FastCGI.
    FastCgi(Box<ServerConnection>),
}

impl UpstreamStream {
    /// A connection for one request at a time as that of a server of FastCGI.
    pub fn of_fastcgi(self) -> UpstreamStream {
        match self {
            UpstreamStream::Connection(connection) => UpstreamStream::FastCgi(connection),
            other => other,
        }
    }
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
pub async fn checkout(
    client: &mut dyn Client,
    note: &mut Note,
    backend: &Rc<Backend>,
    traits: Traits,
    retry_state: &mut RetryState,
) -> Result<UpstreamStream, Refusal> {
    let services = Rc::clone(&backend.services);
    let config = backend.config();
    let level = level(config.reuse);
    // A connection's PROXY header names one client, so it must not carry another's requests.
    let is_private = level == Level::Never || config.send_proxy_protocol.is_some();
    let owner = is_private.then(|| client.owner());
    let need = Need {
        fit: if retry_state.fresh { Fit::New } else { fit(level, traits.is_first, traits.is_repeatable) },
        certain: !traits.is_idempotent,
        owner,
    };
    note.reused = false;
    let found = find(client, backend, &need, retry_state).await;
    note.queue_us = retry_state.queue_us;
    let (server, found) = found?;
    note.server = Some(server);
    retry_state.turn = Some(InFlight::begin(backend, server));
    let state = &backend.state;
    state.pool.recent[server].set(state.pool.recent[server].get().saturating_add(1));
    let permit = match found {
        Found::Connection(mut found) => {
            found.requests = found.requests.saturating_add(1);
            services.metrics.increment(backend.server_metrics(server).reused);
            note.reused = true;
            return Ok(UpstreamStream::Connection(found));
        }
        Found::Permit(permit) => permit,
    };
    let key = PoolKey { server, owner };
    let preamble = preamble(client, config).map_err(Refusal::Failed)?;
    let started = Instant::now();
    let made = connect_for(client, backend, key, permit, &preamble).await;
    note.connect_us = Some(started.elapsed().as_micros() as u64);
    if matches!(made, Err(Refusal::Failed(Attempt { fault, .. })) if fault.status() == 504) {
        client.count_timeout(Wait::Connect);
    }
    let mut made = made?;
    made.requests = 1;
    Ok(UpstreamStream::Connection(made))
}

/// Makes a connection while its client waits, whose body does not pile up meanwhile; gives up if the client goes away.
async fn connect_for(
    client: &mut dyn Client,
    backend: &Rc<Backend>,
    key: PoolKey,
    permit: Option<Permit>,
    preamble: &[u8],
) -> Result<Box<ServerConnection>, Refusal> {
    let services = Rc::clone(&backend.services);
    // The client's own is not to be had while the client is watched.
    let deadline = services.timers.deadline();
    let mut made = Box::pin(connect(backend, key, permit, preamble, &deadline));
    poll_fn(|context| {
        if let Poll::Ready(made) = made.as_mut().poll(context) {
            return Poll::Ready(made.map_err(Refusal::Failed));
        }
        client.poll_gone(context).map(|why| Err(Refusal::ClientGone(why)))
    })
    .await
}

/// Bytes that connections of this client to this backend begin with.
fn preamble(client: &dyn Client, config: &propylon_config::Backend) -> Result<Vec<u8>, Attempt> {
    let Some(version) = config.send_proxy_protocol else { return Ok(Vec::new()) };
    let failed = Attempt::new(Fault::WriteFailed, Repeatable::Unsent);
    client.proxy_header(version).map_err(|_| failed)
}

/// Finds a connection of the kind that is needed or the right to make one, with the account of it; waits in the
/// backend's queue while every server that would do is full.
pub async fn find(
    client: &mut dyn Client,
    backend: &Rc<Backend>,
    need: &Need,
    retry_state: &mut RetryState,
) -> Result<(usize, Found), Refusal> {
    let services = Rc::clone(&backend.services);
    let metrics = backend.metrics();
    let (server, found) = match retry_state.kept.take() {
        Some((server, permit)) => (server, Found::Permit(Some(permit))),
        None => match seek(backend, need, retry_state) {
            Ok(found) => found,
            Err(None) => {
                services.metrics.increment(metrics.unavailable);
                return Err(Refusal::NoServer);
            }
            // Boxed, as all that is rare: every request would carry room for it.
            Err(Some(wants)) => Box::pin(queue(client, backend, wants, need, retry_state)).await?,
        },
    };
    retry_state.arrived = None;
    services.metrics.increment(backend.server_metrics(server).requests);
    Ok((server, found))
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
fn seek(backend: &Rc<Backend>, need: &Need, retry_state: &RetryState) -> Result<(usize, Found), Option<Box<[usize]>>> {
    match pick(backend, retry_state) {
        Pick::None => Err(None),
        Pick::Full(wants) => Err(Some(wants)),
        Pick::Server(server, choice) => match at(backend, server, need) {
            Some(found) => Ok((server, found)),
            // Another core was faster.
            None => {
                let state = &backend.state;
                let suspects = state.suspects.borrow();
                let eligibility = Eligibility::new(
                    state.standing(&suspects),
                    &state.tiers,
                    &retry_state.tried,
                    backend.services.timers.now(),
                );
                Err(Some(acceptable(&eligibility, choice, state.pool.servers())))
            }
        },
    }
}

async fn queue(
    client: &mut dyn Client,
    backend: &Rc<Backend>,
    wants: Box<[usize]>,
    need: &Need,
    retry_state: &mut RetryState,
) -> Result<(usize, Found), Refusal> {
    let Some(limiter) = &backend.state.pool.limiter else { return Err(Refusal::NoServer) };
    let waited = wait(client, backend, limiter, wants, Box::default(), retry_state).await;
    count_refused(backend, &waited);
    // There is always one where no pools are watched.
    let Some(grant) = waited? else { return Err(Refusal::NoServer) };
    Ok(granted(backend, limiter, grant, need))
}

fn count_refused<T>(backend: &Rc<Backend>, waited: &Result<T, Refusal>) {
    let metrics = backend.metrics();
    match waited {
        Err(Refusal::Queue(fault)) => backend.services.metrics.increment(metrics.queue_refused.of(*fault)),
        Err(Refusal::ClientGone(_)) => backend.services.metrics.increment(metrics.queue_refused.of(Fault::ClientGone)),
        _ => {}
    }
}

fn pick(backend: &Rc<Backend>, retry_state: &RetryState) -> Pick {
    let state = &backend.state;
    let now = backend.services.timers.now();
    let draw = Draw { key: retry_state.affinity.key, random: backend.services.random.borrow_mut().u64(..), now };
    state.read_endpoints(now);
    let mut suspects = state.suspects.borrow_mut();
    let eligibility = Eligibility::new(state.standing(&suspects), &state.tiers, &retry_state.tried, now);
    for choice in [Choice::Trusted, Choice::Untried, Choice::Any] {
        let fits = |server: usize| eligibility.fits(server, choice);
        let wished = retry_state.affinity.server.filter(|server| choice == Choice::Trusted && fits(*server));
        let has_room = |server: usize| state.pool.has_room(server);
        let picked = match wished {
            // A client's affinity to this server is worth the wait.
            Some(server) if !has_room(server) => return Pick::Full(Box::new([server])),
            Some(server) => Some(server),
            None => state.balancer.borrow_mut().pick(|server| fits(server) && has_room(server), draw),
        };
        if let Some(server) = picked {
            backend.count_tier(eligibility.tier());
            suspects.tried(server, now);
            return Pick::Server(server, choice);
        }
        let wants = match state.pool.limiter {
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
fn at(backend: &Rc<Backend>, server: usize, need: &Need) -> Option<Found> {
    let pool = &backend.state.pool;
    if need.fit != Fit::New {
        let certain = need.certain.then(|| backend.services.timers.now());
        let (found, stale) = pool.checkout(PoolKey { server, owner: need.owner }, need.fit, certain);
        backend.count_stale(server, stale);
        if found.is_some() || stale > 0 {
            backend.report_idle(server);
        }
        if let Some(found) = found {
            return Some(Found::Connection(found));
        }
    }
    let Some(limiter) = &pool.limiter else { return Some(Found::Permit(None)) };
    if limiter.try_take(server) {
        return Some(Found::Permit(Some(Permit::taken(limiter, server))));
    }
    if limiter.is_wanted(server) {
        return None;
    }
    // The idle connection does not suit this request, and is in its way.
    let evicted = pool.evict(server)?;
    backend.report_idle(server);
    backend.count_closed(server, 1);
    Some(Found::Permit(evicted.permit))
}

/// Result of the wait: a connection from this core or another, or the right to make one.
fn granted(
    backend: &Rc<Backend>,
    limiter: &Arc<ServerLimiter>,
    grant: Grant<Box<ServerConnection>>,
    need: &Need,
) -> (usize, Found) {
    let (server, mut found) = match grant {
        Grant::Permit(server) => (server, Found::Permit(Some(Permit::taken(limiter, server)))),
        Grant::Connection(server, found) => (server, Found::Connection(found)),
    };
    let metrics = backend.server_metrics(server);
    if let Found::Connection(mut handed) = found {
        handed.key.server = server;
        let home = backend.services.metrics.index() as u32;
        let fits = handed.key.owner == need.owner && handed.suits(need.fit) && handed.stream.is_quiet();
        // The other core's event loop may know less than the kernel.
        let fits = fits && !((need.certain || handed.home != home) && handed.stream.has_news());
        let fits = fits && (handed.home == home || handed.stream.leave_event_loop().is_ok());
        found = if fits {
            if handed.home != home {
                backend.services.metrics.increment(metrics.handed_over);
                handed.home = home;
            }
            Found::Connection(handed)
        } else {
            backend.services.metrics.lower(metrics.open);
            Found::Permit(handed.permit)
        };
    }
    let now = backend.services.timers.now();
    backend.state.suspects.borrow_mut().tried(server, now);
    (server, found)
}

/// A request in the backend's queue. Dropping it leaves the queue.
struct QueuedRequest<'a> {
    backend: &'a Backend,
    limiter: &'a Arc<ServerLimiter>,
    ticket: QueueTicket,
    /// Pools of HTTP/2 connections that the request watches while it waits.
    h2_pools: Box<[Rc<H2Pool>]>,
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        self.h2_pools.iter().for_each(|h2_pool| h2_pool.watch_no_more(self.ticket));
        self.backend.services.metrics.lower(self.backend.metrics().queue_depth);
        self.limiter.leave(self.ticket).into_iter().for_each(|grant| self.pass_on(grant));
    }
}

impl QueuedRequest<'_> {
    /// Passes a grant that this request does not need to the next in the queue.
    fn pass_on(&self, grant: Grant<Box<ServerConnection>>) {
        match grant {
            Grant::Permit(server) => self.limiter.release(server, coarse_millis()),
            // The connection's permit goes to the next in the queue.
            Grant::Connection(server, _) => {
                self.backend.services.metrics.lower(self.backend.server_metrics(server).open);
            }
        }
    }
}

/// Waits in the backend's queue, with no buffer in hand if there is nothing in it. `None` once one of these `h2_pools`
/// has a connection, or makes one: whichever comes first will do. `None` too if none of their servers is open any more.
async fn wait(
    client: &mut dyn Client,
    backend: &Rc<Backend>,
    limiter: &Arc<ServerLimiter>,
    wants: Box<[usize]>,
    h2_pools: Box<[Rc<H2Pool>]>,
    retry_state: &mut RetryState,
) -> Result<Option<Grant<Box<ServerConnection>>>, Refusal> {
    let services = Rc::clone(&backend.services);
    let metrics = backend.metrics();
    let timeout = retry_state.queue_timeout_left(backend.config());
    let full = Refusal::Queue(Fault::QueueFull);
    let watched = if h2_pools.is_empty() { Box::default() } else { wants.clone() };
    let began = Instant::now();
    let arrival = backend.terms.arrival(retry_state.arrived());
    let Ok(ticket) = limiter.join_again(wants, arrival, coarse_millis()) else { return Err(full) };
    services.metrics.raise(metrics.queue_depth);
    let queued = QueuedRequest { backend, limiter, ticket, h2_pools };
    let due = services.timers.now() + timeout;
    client.rest();
    let granted = poll_fn(|context| {
        // The client is checked before the grant, which would be lost on a client that has gone.
        if let Poll::Ready(why) = client.poll_gone(context) {
            return Poll::Ready(Err(Refusal::ClientGone(why)));
        }
        match limiter.poll(ticket, context) {
            Poll::Ready(Err(_)) => return Poll::Ready(Err(Refusal::Queue(Fault::QueueFull))),
            Poll::Ready(Ok(grant)) => {
                // The kernel may know of it before the event loop does.
                let Some(why) = client.has_gone() else { return Poll::Ready(Ok(Some(grant))) };
                queued.pass_on(grant);
                return Poll::Ready(Err(Refusal::ClientGone(why)));
            }
            Poll::Pending => {}
        }
        let is_shut = !watched.is_empty() && !watched.iter().any(|server| backend.state.is_open(*server));
        if is_shut || queued.h2_pools.iter().any(|h2_pool| h2_pool.is_alive()) {
            return Poll::Ready(Ok(None));
        }
        queued.h2_pools.iter().for_each(|h2_pool| h2_pool.watch(ticket, context));
        if services.timers.now() >= due {
            return Poll::Ready(Err(Refusal::Queue(Fault::QueueTimeout)));
        }
        client.deadline().set(due, context.waker());
        Poll::Pending
    })
    .await;
    drop(queued);
    let micros = began.elapsed().as_micros() as u64;
    retry_state.queue_us = Some(retry_state.queue_us.unwrap_or(0) + micros);
    services.metrics.observe(metrics.queue_wait, micros);
    granted
}
