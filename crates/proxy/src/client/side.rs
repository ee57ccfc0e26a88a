//! The client as a request sees it, whatever version of HTTP it speaks: its source, and how the wait for it is kept.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use propylon_config::ProxyProtocol;
use propylon_http::fault::Fault;
use propylon_net::timers::Deadline;
use propylon_observe::telemetry::{BackendMetrics, ListenerMetrics, Wait};
use propylon_steps::conditions;
use propylon_tls::{ClientHelloInfo, Facts, Group, Ja4};

use super::proxy_header;
use crate::alpn::alpn_name;
use crate::client::connection::Connection;
use crate::client::h2_stream::Stream;
use crate::core::Core;
use crate::services::ListenerHandle;
use crate::snapshot::ClientSight;
use crate::upstream::checkout::Client;

/// The client that asks.
pub enum ClientSide<'a> {
    /// A connection, which carries one request at a time.
    Http1(&'a mut Connection),
    /// One of a connection's streams.
    Http2(&'a mut Stream),
}

impl ClientSide<'_> {
    /// The same client, lent for a shorter time.
    pub fn reborrow(&mut self) -> ClientSide<'_> {
        match self {
            ClientSide::Http1(connection) => ClientSide::Http1(connection),
            ClientSide::Http2(stream) => ClientSide::Http2(stream),
        }
    }

    pub fn core(&self) -> &Rc<Core> {
        match self {
            ClientSide::Http1(connection) => &connection.core,
            ClientSide::Http2(stream) => &stream.link.core,
        }
    }

    /// The listener it came in by.
    pub fn listener(&self) -> &Rc<ListenerHandle> {
        match self {
            ClientSide::Http1(connection) => &connection.listener,
            ClientSide::Http2(stream) => &stream.link.listener,
        }
    }

    pub fn peer(&self) -> SocketAddr {
        match self {
            ClientSide::Http1(connection) => connection.peer,
            ClientSide::Http2(stream) => stream.link.peer,
        }
    }

    /// The client as routes see it.
    #[cold]
    pub fn sight(&self) -> ClientSight<'_> {
        let destination = match self {
            ClientSide::Http1(connection) => connection.ends(),
            ClientSide::Http2(stream) => stream.link.ends(),
        };
        let (facts, hello) = (self.facts(), self.hello_info());
        let connection = conditions::Connection {
            destination: destination.ok().map(|ends| ends.destination),
            version: facts.map(|facts| facts.version.name()),
            alpn: facts.and_then(|facts| facts.alpn).map(alpn_name),
            server_name: hello.and_then(|hello| hello.server_name.as_deref()),
            ja4: hello.and_then(|hello| hello.ja4.as_deref()).map(Ja4::as_str),
            suite: facts.map(|facts| facts.agreed),
            group: facts.and_then(|facts| facts.group).map(Group::configured),
            identity: hello.and_then(|hello| hello.identity.as_deref()),
        };
        ClientSight { peer: self.peer(), connection }
    }

    pub fn is_tls(&self) -> bool {
        match self {
            ClientSide::Http1(connection) => connection.stream.tls.is_some(),
            ClientSide::Http2(stream) => stream.link.facts.is_some(),
        }
    }

    /// Nothing of the client's connection is read for now, so that what the client does cannot be seen.
    pub fn is_paused(&self) -> bool {
        match self {
            ClientSide::Http1(_) => false,
            ClientSide::Http2(stream) => stream.link.is_paused(),
        }
    }

    /// Which request of its connection this is, from 1.
    pub fn ordinal(&self) -> u32 {
        match self {
            ClientSide::Http1(connection) => connection.requests,
            ClientSide::Http2(stream) => stream.ordinal,
        }
    }

    pub fn metrics(&self) -> &ListenerMetrics {
        &self.listener().metrics
    }

    /// A request goes to this backend.
    pub fn note_backend(&mut self, backend: &Arc<BackendMetrics>) {
        match self {
            ClientSide::Http1(connection) => connection.note_backend(backend),
            ClientSide::Http2(stream) => stream.link.note_backend(backend),
        }
    }

    pub fn facts(&self) -> Option<&Facts> {
        match self {
            ClientSide::Http1(connection) => connection.facts.as_ref(),
            ClientSide::Http2(stream) => stream.link.facts.as_ref(),
        }
    }

    /// Facts of the client's hello, as far as they are still of use.
    pub fn hello_info(&self) -> Option<&ClientHelloInfo> {
        match self {
            ClientSide::Http1(connection) => connection.hello_info(),
            ClientSide::Http2(stream) => stream.link.hello_info.as_deref(),
        }
    }

    /// The client has shown a certificate, and it was verified.
    pub fn is_identified(&self) -> bool {
        self.hello_info().is_some_and(|hello_info| hello_info.identity.is_some())
    }

    /// Duration of the handshake in microseconds, for the first request that asks.
    pub fn take_handshake_us(&mut self) -> Option<u32> {
        match self {
            ClientSide::Http1(connection) => connection.handshake_us.take(),
            ClientSide::Http2(stream) => stream.link.handshake_us.take(),
        }
    }
}

impl Client for ClientSide<'_> {
    fn deadline(&self) -> &Deadline {
        match self {
            ClientSide::Http1(connection) => &connection.deadline,
            ClientSide::Http2(stream) => &stream.deadline,
        }
    }

    fn owner(&mut self) -> NonZeroU64 {
        match self {
            ClientSide::Http1(connection) => connection.owner(),
            ClientSide::Http2(stream) => stream.link.owner(),
        }
    }

    fn proxy_header(&self, version: ProxyProtocol) -> io::Result<Vec<u8>> {
        match self {
            ClientSide::Http1(connection) => proxy_header::header(connection, version, None),
            ClientSide::Http2(stream) => stream.link.proxy_header(version),
        }
    }

    fn count_timeout(&self, wait: Wait) {
        self.core().metrics.increment(self.metrics().timeouts[wait as usize]);
    }

    fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<Fault> {
        match self {
            ClientSide::Http1(connection) => connection.poll_gone(context),
            ClientSide::Http2(stream) => stream.poll_gone(context).map(|()| Fault::ClientReset),
        }
    }

    fn has_gone(&self) -> Option<Fault> {
        match self {
            ClientSide::Http1(connection) => connection.has_gone(),
            // Bytes that its connection has brought have been read.
            ClientSide::Http2(_) => None,
        }
    }

    fn rest(&mut self) {
        if let ClientSide::Http1(connection) = self
            && connection.inbox.is_idle()
        {
            connection.core.buffers.release(&mut connection.inbox);
        }
    }
}
