//! A client's connection: its socket and TLS session, what is known of the client, and its end.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use propylon_http::discarded::Discarded;
use propylon_http::fault::Fault;
use propylon_http::proxy_protocol::Ends;
use propylon_net::buffer::{Buffer, SMALL_BYTES};
use propylon_net::client_stream::ClientStream;
use propylon_net::socket::{Departure, Socket};
use propylon_net::timers::Deadline;
use propylon_observe::telemetry::{BackendMetrics, ListenerMetrics, Wait};
use propylon_policy::dispatch::rebalance::Moves;
use propylon_tls::{ClientHelloInfo, Facts, Failure};

use super::facts::is_told_again;
use crate::core::Core;
use crate::dispatch::AtRest;
use crate::request::After;
use crate::services::ListenerHandle;
use crate::snapshot::CoreSnapshot;

/// A connection that was quiet for so long gives up its task and its place in the event loop. That and the way back
/// cost as much as a request: clients that ask every few seconds are spared it.
pub const REST_AFTER_MILLIS: u64 = 5_000;
/// How long our last words on a connection may take to be accepted by the client's kernel.
pub const FAREWELL_MILLIS: u64 = 5_000;
/// How long a client is listened to after our last word: as long as it sends, and for how long without a byte.
const LINGER_MILLIS_MAX: u64 = 30_000;
const LINGER_QUIET_MILLIS: u64 = 2_000;
/// Bytes of a client's end of TLS, at most: a body has more, or is none.
const TLS_END_BYTES_MAX: u64 = 31;
/// Bytes that it has to send in each second of that.
const LINGER_RATE_MIN: u64 = 4 * 1024;

pub struct Connection {
    pub core: Rc<Core>,
    /// The listener it came in by.
    pub listener: Rc<ListenerHandle>,
    pub peer: SocketAddr,
    pub stream: ClientStream,
    /// Bytes that the client sent and nobody has taken yet.
    pub inbox: Buffer,
    /// Bytes that are on their way to the client.
    pub wire: Buffer,
    pub deadline: Deadline,
    /// Milliseconds on the core's clock.
    pub accepted: u64,
    pub facts: Option<Facts>,
    /// Duration of the handshake in microseconds, until the first request has logged it.
    pub handshake_us: Option<u32>,
    /// Requests begun on this connection.
    pub requests: u32,
    /// State that few connections have; `None` for nearly all.
    pub(crate) rare: Option<Box<Rare>>,
    /// The first backend that its requests went to.
    pub(crate) backend: Option<Arc<BackendMetrics>>,
    /// Whether the connection's handshake counts among those in progress.
    pub(crate) handshaking: bool,
    /// Some of a request's body is still to come, and nobody takes it any more.
    pub(crate) owes_body: bool,
}

/// State that few connections have, in a box of its own so that the others do not pay for it.
#[derive(Default)]
pub(crate) struct Rare {
    /// Addresses that a PROXY protocol header has given; `peer` is its source then.
    pub(crate) proxied: Option<Ends>,
    /// Key by which the pools know the server connections of this client alone.
    pub(crate) owner: Option<NonZeroU64>,
    /// Whether a proxy in front speaks first, and tells who the client is. The flag is set at the accept: the
    /// listener's configuration may change before the header is read.
    pub(crate) announced: bool,
    /// Announced, it counts among the connections of its source.
    pub(crate) counted: bool,
    /// A head has begun to come at that time, and the rest of it is waited for.
    pub(crate) head_began: Option<Instant>,
    /// Moves from core to core.
    pub(crate) moves: Moves,
    /// The connection has come from another core, at rest, and nothing of it has been served here.
    pub(crate) has_arrived: bool,
    /// The connection has gone to another core: what is left ends nothing.
    pub(crate) has_left: bool,
    /// Further backends that the connection's requests went to, by the addresses of their metrics.
    pub(crate) more_backends: BTreeMap<usize, Arc<BackendMetrics>>,
}

impl Connection {
    pub fn new(
        core: Rc<Core>,
        listener: Rc<ListenerHandle>,
        stream: TcpStream,
        peer: SocketAddr,
        announced: bool,
    ) -> Connection {
        core.metrics.increment(listener.metrics.accepted);
        core.metrics.raise(listener.metrics.open);
        core.connection_begins();
        let tls = core.snapshot().acceptor(&listener).map(|acceptor| Box::new(acceptor.accept()));
        // A client that a proxy will announce is not known yet.
        let handshaking = tls.is_some() && !announced;
        if handshaking {
            core.begin_handshake(peer.ip());
        }
        let deadline = core.timers.deadline();
        let accepted = core.timers.at(Instant::now());
        let rare = announced.then(|| Box::new(Rare { announced, ..Rare::default() }));
        Connection {
            core,
            listener,
            peer,
            stream: ClientStream { socket: Socket::new(stream), tls, ended: false, closed: false },
            inbox: Buffer::default(),
            wire: Buffer::default(),
            deadline,
            accepted,
            facts: None,
            handshake_us: None,
            requests: 0,
            rare,
            handshaking,
            owes_body: false,
            backend: None,
        }
    }

    /// A connection that comes from another core, with its place and its count among those of its source.
    pub fn arrive(core: Rc<Core>, listener: Rc<ListenerHandle>, stream: TcpStream, at_rest: AtRest) -> Connection {
        let AtRest { peer, tls, facts, handshake_us, requests, accepted, proxied, backends, moves } = at_rest;
        core.metrics.raise(listener.metrics.open);
        core.connection_begins();
        backends.iter().for_each(|backend| core.metrics.raise(backend.clients_open));
        let mut backends = backends.into_iter();
        let backend = backends.next();
        let more_backends = backends.map(|backend| (Arc::as_ptr(&backend) as usize, backend)).collect();
        let rare = Rare { proxied, moves, has_arrived: true, more_backends, ..Rare::default() };
        let tls = tls.map(|session| Box::new(session.into()));
        Connection {
            listener,
            peer,
            stream: ClientStream { socket: Socket::new(stream), tls, ended: false, closed: false },
            inbox: Buffer::default(),
            wire: Buffer::default(),
            deadline: core.timers.deadline(),
            accepted: core.timers.of_shared(accepted),
            facts,
            handshake_us,
            requests,
            rare: Some(Box::new(rare)),
            handshaking: false,
            owes_body: false,
            backend,
            core,
        }
    }

    /// Whether the connection can go to another core now: nothing of it is under way, and nothing here is its own.
    pub fn may_leave(&self, now: u64) -> bool {
        let is_leaving = self.core.is_leaving(&self.listener);
        let is_under_way = !self.inbox.is_idle() || !self.wire.is_empty() || self.stream.ended || self.stream.closed;
        let is_free = |rare: &Rare| rare.owner.is_none() && rare.head_began.is_none() && rare.moves.allow(now);
        let is_established = self.stream.tls.as_ref().is_none_or(|session| session.is_established());
        !is_leaving && !is_under_way && self.requests > 0 && is_established && self.rare.as_deref().is_none_or(is_free)
    }

    /// Takes out what goes to another core. What stays behind is no connection any more, and where that fails as well.
    /// To be called where it [may leave](Connection::may_leave) alone.
    pub fn leave(&mut self, now: u64) -> io::Result<(TcpStream, AtRest)> {
        let stream = self.stream.socket.into_stream()?;
        let session = self.stream.tls.take().map(|session| session.into_established());
        let tls = session.transpose().map_err(|_| io::Error::other("the session is not established"))?;
        self.noted_backends().for_each(|backend| self.core.metrics.lower(backend.clients_open));
        let rare = self.rare.get_or_insert_default();
        rare.has_left = true;
        let more_backends = std::mem::take(&mut rare.more_backends).into_values();
        let at_rest = AtRest {
            peer: self.peer,
            tls,
            facts: self.facts,
            handshake_us: self.handshake_us,
            requests: self.requests,
            accepted: self.core.timers.to_shared(self.accepted),
            proxied: rare.proxied,
            backends: self.backend.take().into_iter().chain(more_backends).collect(),
            moves: rare.moves.and_one(now),
        };
        Ok((stream, at_rest))
    }

    pub fn end_handshake(&mut self) {
        if std::mem::take(&mut self.handshaking) {
            self.core.end_handshake(self.peer.ip());
        }
    }

    /// The client is somebody else than it seemed to be.
    pub fn stand_for(&mut self, ends: Ends) {
        self.peer = ends.source;
        self.rare.get_or_insert_default().proxied = Some(ends);
    }

    /// Source and destination of the connection: as a header of the PROXY protocol has said, or else as the socket
    /// says.
    pub fn ends(&self) -> io::Result<Ends> {
        match self.rare.as_ref().and_then(|rare| rare.proxied) {
            Some(ends) => Ok(ends),
            None => Ok(Ends { source: self.peer, destination: self.stream.socket.local_address()? }),
        }
    }

    pub fn owner(&mut self) -> NonZeroU64 {
        *self.rare.get_or_insert_default().owner.get_or_insert_with(|| self.core.next_owner())
    }

    /// A request goes to this backend.
    pub fn note_backend(&mut self, backend: &Arc<BackendMetrics>) {
        let address = Arc::as_ptr(backend) as usize;
        let is_known = self.rare.as_ref().is_some_and(|rare| rare.more_backends.contains_key(&address));
        match &self.backend {
            Some(known) if Arc::ptr_eq(known, backend) => return,
            _ if is_known => return,
            Some(_) => {
                let more = &mut self.rare.get_or_insert_default().more_backends;
                more.insert(address, Arc::clone(backend));
            }
            None => self.backend = Some(Arc::clone(backend)),
        }
        self.core.metrics.increment(backend.clients);
        self.core.metrics.raise(backend.clients_open);
        self.forget_removed_backends();
    }

    /// Stops being counted at backends that the configuration in effect does not have: a client that stays for long
    /// and uses each new backend would keep the series of all of them.
    fn forget_removed_backends(&mut self) {
        let core = &self.core;
        let is_removed = |backend: &Arc<BackendMetrics>| {
            let is_removed = core.upstreams.get(backend).is_none();
            if is_removed {
                core.metrics.lower(backend.clients_open);
            }
            is_removed
        };
        self.backend.take_if(|backend| is_removed(backend));
        if let Some(rare) = &mut self.rare {
            rare.more_backends.retain(|_, backend| !is_removed(backend));
        }
    }

    /// Backends that its requests went to.
    fn noted_backends(&self) -> impl Iterator<Item = &Arc<BackendMetrics>> {
        self.backend.iter().chain(self.rare.iter().flat_map(|rare| rare.more_backends.values()))
    }

    pub fn metrics(&self) -> &ListenerMetrics {
        &self.listener.metrics
    }

    /// Whether the connection counts among those of `peer`'s source, where sources have a limit: from its accept, or
    /// once it was announced.
    pub fn is_counted(&self) -> bool {
        self.rare.as_ref().is_none_or(|rare| !rare.announced || rare.counted)
    }

    pub fn count_timeout(&self, wait: Wait) {
        self.core.metrics.increment(self.metrics().timeouts[wait as usize]);
    }

    pub fn note_tls_failure(&self, failure: &Failure) {
        self.core.metrics.increment(self.metrics().handshake_failures.of(failure.reason));
        log::debug!("{}: TLS failed: {failure}", self.peer);
    }

    /// Facts of the client's hello, as far as they are still of use.
    pub fn hello_info(&self) -> Option<&ClientHelloInfo> {
        self.stream.tls.as_ref()?.hello_info()
    }

    /// The client has shown a certificate, and it was verified.
    pub fn is_identified(&self) -> bool {
        self.hello_info().is_some_and(|hello_info| hello_info.identity.is_some())
    }

    /// Gives up what no later request will need of what its hello said.
    pub fn forget_hello_info(&mut self, snapshot: &CoreSnapshot) {
        let listener = snapshot.listener(&self.listener);
        if let Some(session) = &mut self.stream.tls
            && session.hello_info().is_some_and(|hello_info| !is_told_again(hello_info, listener, snapshot.asks_hello))
        {
            session.forget_hello_info();
        }
    }

    /// Sends what is staged, within the listener's body timeout.
    pub async fn flush(&mut self) -> After {
        let core = Rc::clone(&self.core);
        let mut due = None;
        poll_fn(|context| {
            match self.stream.poll_flush(context, &core.buffers, &mut self.wire) {
                Poll::Ready(Ok(())) => return Poll::Ready(After::Next),
                Poll::Ready(Err(_)) => return Poll::Ready(After::Abort),
                Poll::Pending => {}
            }
            let now = core.timers.now();
            let timeout = || core.snapshot().listener(&self.listener).timeouts.body.as_millis() as u64;
            let due = *due.get_or_insert_with(|| now + timeout());
            if now >= due {
                self.count_timeout(Wait::ResponseBody);
                return Poll::Ready(After::Abort);
            }
            self.deadline.set(due, context.waker());
            Poll::Pending
        })
        .await
    }

    /// Sends what is staged and closes, listening for a moment longer if the client may still be sending.
    pub async fn farewell(&mut self, after: After) {
        let mut farewell = Farewell::begin(self, after);
        poll_fn(|context| farewell.poll(context, self)).await;
        self.give_buffers_back();
    }

    pub fn give_buffers_back(&mut self) {
        self.core.buffers.release(&mut self.inbox);
        self.core.buffers.release(&mut self.wire);
    }

    /// A client of this listener has gone when it has reset its connection, or closed it (FIN). Relays have no
    /// requests: their clients' half-closes go on to the servers.
    fn departure(&self) -> Departure {
        match self.core.snapshot().listener(&self.listener).half_close {
            true => Departure::Reset,
            false => Departure::End,
        }
    }

    /// Ready when the client has gone, while nothing is read of it.
    pub fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<Fault> {
        let departure = self.departure();
        self.stream.socket.poll_departed(context, departure).map(|()| self.farewell_fault())
    }

    pub fn has_gone(&self) -> Option<Fault> {
        self.stream.socket.has_departed(self.departure()).then(|| self.farewell_fault())
    }

    fn farewell_fault(&self) -> Fault {
        match self.stream.socket.has_departed(Departure::Reset) {
            true => Fault::ClientReset,
            false => Fault::ClientClosed,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.give_buffers_back();
        if let Some(owner) = self.rare.as_ref().and_then(|rare| rare.owner) {
            self.core.upstreams.forget_owner(owner);
        }
        for backend in self.noted_backends() {
            self.core.metrics.lower(backend.clients_open);
        }
        self.end_handshake();
        self.core.metrics.lower(self.metrics().open);
        if self.rare.as_ref().is_some_and(|rare| rare.has_left) {
            return self.core.connection_leaves();
        }
        if let Some(sources) = self.core.overload.sources().filter(|_| self.is_counted()) {
            sources.give_back(self.peer.ip());
        }
        self.core.connection_ends();
    }
}

/// The orderly end of a connection, whatever version of HTTP it speaks.
pub struct Farewell {
    /// Milliseconds on the core's clock: by then the client's kernel is to have our last words.
    due: u64,
    /// The client is listened to behind them.
    lingers: bool,
    linger: Option<Linger>,
}

impl Farewell {
    /// Begins it behind what is staged.
    pub fn begin(connection: &mut Connection, after: After) -> Farewell {
        connection.deadline.work();
        if connection.facts.is_some() {
            connection.stream.stage_close(&mut connection.wire);
        }
        let due = connection.core.timers.now() + FAREWELL_MILLIS;
        Farewell { due, lingers: after == After::Linger, linger: None }
    }

    /// Ready when the connection can be closed.
    pub fn poll(&mut self, context: &mut Context<'_>, connection: &mut Connection) -> Poll<()> {
        let core = Rc::clone(&connection.core);
        if self.linger.is_none() {
            let flushed = connection.stream.poll_flush(context, &core.buffers, &mut connection.wire);
            if flushed.is_pending() && core.timers.now() < self.due {
                connection.deadline.set(self.due, context.waker());
                return Poll::Pending;
            }
            let is_sent = matches!(flushed, Poll::Ready(Ok(())));
            if !is_sent || !self.lingers || connection.stream.socket.shutdown_write().is_err() {
                return Poll::Ready(());
            }
            connection.give_buffers_back();
        }
        let linger = self.linger.get_or_insert_with(|| Linger::begin(core.timers.now()));
        if let Poll::Ready(how) = linger.poll_end(context, &core, &mut connection.stream) {
            let least = if connection.facts.is_some() { TLS_END_BYTES_MAX } else { 0 };
            if connection.owes_body && linger.received_bytes > least {
                core.metrics.increment(connection.metrics().discarded[how as usize]);
            }
            return Poll::Ready(());
        }
        connection.deadline.set(linger.due(), context.waker());
        Poll::Pending
    }
}

/// A client that may still be sending when all is said to it: its bytes are thrown away until it has ended, since a
/// close with bytes unread is a reset, and a reset destroys our answer where the client has not read it yet (RFC 9112
/// §9.6). Clients that send all of an upload before they read are common. Lingering is over when the client is quiet,
/// slow, or at it for too long.
struct Linger {
    /// Milliseconds on the core's clock: when lingering began, and when bytes were received last.
    began: u64,
    received_at: u64,
    received_bytes: u64,
}

impl Linger {
    fn begin(now: u64) -> Linger {
        Linger { began: now, received_at: now, received_bytes: 0 }
    }

    /// Ready when the client has ended, or was listened to for long enough. Holds no memory while it waits.
    fn poll_end(&mut self, context: &mut Context<'_>, core: &Core, stream: &mut ClientStream) -> Poll<Discarded> {
        if stream.ended {
            return Poll::Ready(Discarded::Ended);
        }
        let mut buffer = core.buffers.small();
        let ended = loop {
            match stream.socket.poll_read(context, buffer.spare(SMALL_BYTES)) {
                Poll::Pending => break false,
                Poll::Ready(Ok(0) | Err(_)) => break true,
                Poll::Ready(Ok(count)) => {
                    (self.received_bytes, self.received_at) = (self.received_bytes + count as u64, core.timers.now())
                }
            }
        };
        core.buffers.release(&mut buffer);
        match self.over(core.timers.now()) {
            _ if ended => Poll::Ready(Discarded::Ended),
            Some(why) => Poll::Ready(why),
            None if core.hurries() => Poll::Ready(Discarded::Crowded),
            None => Poll::Pending,
        }
    }

    /// When to look again.
    fn due(&self) -> u64 {
        (self.received_at + LINGER_QUIET_MILLIS).min(self.began + LINGER_MILLIS_MAX)
    }

    /// Why it is over, if it is.
    fn over(&self, now: u64) -> Option<Discarded> {
        let lasts = now - self.began;
        let is_slow = lasts >= LINGER_QUIET_MILLIS && self.received_bytes < lasts / 1000 * LINGER_RATE_MIN;
        if lasts >= LINGER_MILLIS_MAX {
            return Some(Discarded::Long);
        }
        if now >= self.due() { Some(Discarded::Quiet) } else { is_slow.then_some(Discarded::Slow) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_listened_to_as_long_as_it_sends_and_within_bounds() {
        let lasts = |bytes_per_step: u64, steps: std::ops::Range<u64>| {
            let mut linger = Linger::begin(0);
            for now in (0..60_000).step_by(100) {
                if steps.contains(&now) {
                    (linger.received_bytes, linger.received_at) = (linger.received_bytes + bytes_per_step, now);
                }
                if let Some(why) = linger.over(now) {
                    return (now, why);
                }
            }
            (60_000, Discarded::Ended)
        };
        assert_eq!(lasts(0, 0..0), (LINGER_QUIET_MILLIS, Discarded::Quiet));
        assert_eq!(lasts(1, 0..60_000), (LINGER_QUIET_MILLIS, Discarded::Slow), "a byte at a time");
        assert_eq!(lasts(1 << 20, 0..5_000), (4_900 + LINGER_QUIET_MILLIS, Discarded::Quiet));
        assert_eq!(lasts(1 << 20, 0..60_000), (LINGER_MILLIS_MAX, Discarded::Long));
    }
}
