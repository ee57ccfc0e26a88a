//! A client's connection of HTTP/2, as far as its streams share it.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;

use propylon_config::{Http2, ProxyProtocol};
use propylon_http::h2::settings::OwnSettings;
use propylon_http::h2::{ConnectionFault, Role, Terms};
use propylon_http::proxy_protocol::Ends;
use propylon_net::buffer::WideLease;
use propylon_observe::telemetry::{BackendMetrics, Wait};
use propylon_tls::{ClientHelloInfo, Facts};

use super::connection::Connection;
use super::proxy_header;
use crate::core::Core;
use crate::http2::Link;
use crate::services::ListenerHandle;

/// State that a connection and its streams share.
pub struct ClientH2Connection {
    pub core: Rc<Core>,
    pub listener: Rc<ListenerHandle>,
    pub peer: SocketAddr,
    /// Facts that the handshake agreed on; `None` on plaintext.
    pub facts: Option<Facts>,
    pub hello_info: Option<Box<ClientHelloInfo>>,
    pub handshake_us: Cell<Option<u32>>,
    /// The client's socket and TLS session; borrowed for a moment at a time.
    pub(crate) connection: RefCell<Connection>,
    pub(crate) link: Link,
    pub(crate) limits: Http2,
    /// Streams whose tasks have not ended.
    pub(crate) streams: Cell<usize>,
    pub(crate) requests: Cell<u32>,
    /// Milliseconds on the core's clock: when a stream last began or ended.
    pub(crate) active: Cell<u64>,
    /// Streams that have, or may have, a body.
    pub(crate) uploads: Cell<u64>,
    /// Bytes of their bodies that servers have not taken, as they were counted last.
    untaken: Cell<u64>,
    /// Bytes by which windows of servers' streams are wider than at first, for this client.
    pub widened: Cell<u64>,
    /// Nothing is read until servers have taken more of what came before.
    paused: Cell<bool>,
    /// Leave for what is sealed to lie in a wide buffer, as long as some of it does.
    pub(crate) wide_output: Cell<Option<WideLease>>,
}

/// Terms on which clients of a listener are served, whose streams begin with windows of so many bytes.
fn terms(limits: &Http2, window: u32, head_bytes: usize) -> Terms {
    const MAX: u32 = i32::MAX as u32;
    Terms {
        settings: OwnSettings {
            max_concurrent_streams: Some(limits.max_concurrent_streams),
            initial_window: window,
            header_list_bytes_max: u32::try_from(head_bytes).unwrap_or(u32::MAX),
            enable_connect: limits.extended_connect,
        },
        connection_window: window.saturating_mul(limits.max_concurrent_streams).clamp(window, MAX),
        flood: limits.flood,
    }
}

impl ClientH2Connection {
    pub fn new(mut connection: Connection, limits: Http2, head_bytes: usize) -> ClientH2Connection {
        let core = Rc::clone(&connection.core);
        let window = limits.initial_window.min(core.uploads.width());
        ClientH2Connection {
            listener: Rc::clone(&connection.listener),
            peer: connection.peer,
            facts: connection.facts,
            hello_info: connection.hello_info().cloned().map(Box::new),
            handshake_us: Cell::new(connection.handshake_us.take()),
            connection: RefCell::new(connection),
            link: Link::new(&core.services, Role::Server, &terms(&limits, window, head_bytes)),
            limits,
            streams: Cell::new(0),
            requests: Cell::new(0),
            active: Cell::new(core.timers.now()),
            uploads: Cell::new(0),
            untaken: Cell::new(0),
            widened: Cell::new(0),
            paused: Cell::new(false),
            wide_output: Cell::new(None),
            core,
        }
    }

    pub fn owner(&self) -> NonZeroU64 {
        self.connection.borrow_mut().owner()
    }

    /// See [`Connection::ends`].
    pub fn ends(&self) -> std::io::Result<Ends> {
        self.connection.borrow().ends()
    }

    /// See [`proxy_header::header`].
    pub fn proxy_header(&self, version: ProxyProtocol) -> std::io::Result<Vec<u8>> {
        proxy_header::header(&self.connection.borrow(), version, None)
    }

    pub fn note_backend(&self, backend: &Arc<BackendMetrics>) {
        self.connection.borrow_mut().note_backend(backend);
    }

    pub(crate) fn upload_began(&self) {
        self.uploads.set(self.uploads.get() + 1);
        self.core.uploads.begin();
    }

    pub(crate) fn upload_ended(&self) {
        self.uploads.set(self.uploads.get() - 1);
        self.core.uploads.end();
    }

    /// Has the core count what servers have not taken by now.
    pub(crate) fn count_untaken(&self) {
        let untaken = self.link.untaken();
        self.core.uploads.count(self.untaken.replace(untaken), untaken);
    }

    /// Nothing more is to be read for now. Nobody is waked when that is over: whoever drives the connection looks
    /// again.
    pub(crate) fn is_held_up(&self) -> bool {
        let is_held_up = self.core.uploads.holds_up(self.uploads.get(), self.untaken.get());
        self.set_paused(is_held_up);
        is_held_up
    }

    fn set_paused(&self, paused: bool) {
        let (column, metrics) = (&self.core.metrics, &self.listener.metrics.http2);
        match (self.paused.replace(paused), paused) {
            (false, true) => {
                column.increment(metrics.reads_paused);
                column.raise(metrics.paused);
            }
            (true, false) => column.lower(metrics.paused),
            _ => {}
        }
    }

    /// Nothing of the connection is read for now: what its client does cannot be seen.
    pub fn is_paused(&self) -> bool {
        self.paused.get()
    }

    pub(crate) fn stream_began(&self) {
        if self.streams.get() == 0 {
            self.connection.borrow().deadline.work();
        }
        self.streams.set(self.streams.get() + 1);
        self.active.set(self.core.timers.now());
        let metrics = &self.listener.metrics.http2;
        self.core.metrics.increment(metrics.streams_begun);
        self.core.metrics.raise(metrics.streams);
    }

    pub(crate) fn stream_ended(&self) {
        self.count_untaken();
        self.core.dispatch().into_iter().for_each(|dispatch| dispatch.note_other());
        self.streams.set(self.streams.get() - 1);
        if self.streams.get() == 0 {
            self.connection.borrow().deadline.rest();
            if self.link.h2.borrow().is_leaving() {
                self.link.wake_driver();
            }
        }
        self.active.set(self.core.timers.now());
        self.core.metrics.lower(self.listener.metrics.http2.streams);
    }

    /// Counts a fault of the client's that ends the connection.
    pub fn count_fault(&self, fault: ConnectionFault) {
        let metrics = &self.listener.metrics.http2;
        let counter = match fault {
            ConnectionFault::Flood(flood) => metrics.floods.of(flood.as_str()),
            ConnectionFault::Error(reason) => metrics.errors.of(reason.as_str()),
        };
        self.core.metrics.increment(counter);
        log::debug!("{}: HTTP/2 ended: {fault:?}", self.peer);
    }

    pub fn count_timeout(&self, wait: Wait) {
        self.connection.borrow().count_timeout(wait);
    }

    /// Ends and counts bodies that were thrown away for long enough; whether there are any.
    pub fn end_discarding(&self, now: u64) -> bool {
        let is_told = self.link.h2.borrow_mut().end_discarding(now);
        self.count_discarded();
        is_told
    }

    /// Counts bodies that were thrown away since the last time.
    pub fn count_discarded(&self) {
        let Some(discarded) = self.link.h2.borrow_mut().take_discarded() else { return };
        let connection = self.connection.borrow();
        for (counter, count) in connection.metrics().discarded.into_iter().zip(discarded) {
            self.core.metrics.add(counter, count.into());
        }
    }

    /// The client is to come again for new keys.
    pub fn is_wearing(&self) -> bool {
        self.connection.borrow().stream.is_wearing()
    }

    pub fn is_worn_out(&self) -> bool {
        self.connection.borrow().stream.is_worn_out()
    }
}

impl Drop for ClientH2Connection {
    fn drop(&mut self) {
        self.set_paused(false);
        self.core.uploads.count(self.untaken.get(), 0);
    }
}
