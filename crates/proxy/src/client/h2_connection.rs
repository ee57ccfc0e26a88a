//! A client's connection of HTTP/2, as far as its streams share it.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;

use h2::Reason;
use propylon_config::{Http2, ProxyProtocol};
use propylon_net::buffer::Buffer;
use propylon_observe::telemetry::{BackendMetrics, Wait};
use propylon_tls::{ClientHelloInfo, Facts};

use super::connection::Connection;
use super::proxy_header;
use crate::core::Core;
use crate::http2::{ConnectionFault, Intake, Moment, stage_frames};
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
    /// Bytes that the library has written and nobody has sealed yet.
    pub(crate) staged: RefCell<Buffer>,
    /// Bytes that the library has written.
    pub(crate) sent: Cell<u64>,
    /// Bytes of memory that bodies take which the client has not read.
    pub(crate) unread: Rc<Cell<usize>>,
    /// Set when the connection is to end for what the client did.
    pub(crate) fault: Cell<Option<ConnectionFault>>,
    /// The library waits for the socket.
    pub(crate) blocked: Cell<bool>,
    pub(crate) intake: RefCell<Intake>,
    /// Bytes read in this turn of the connection's.
    pub(crate) turn: Cell<usize>,
    pub(crate) limits: Http2,
    /// Streams whose tasks have not ended.
    pub(crate) streams: Cell<usize>,
    pub(crate) requests: Cell<u32>,
    /// Milliseconds on the core's clock: when a stream last began or ended.
    pub(crate) active: Cell<u64>,
    /// Body bytes that have gone on to servers since the window was last looked at.
    pub(crate) uploaded: Cell<u64>,
    /// A stream's window as the client is told at first.
    pub(crate) first_window: u32,
    /// Streams that have, or may have, a body.
    pub(crate) uploads: Cell<u64>,
    /// Bytes of their bodies that servers have not taken, as they were counted last.
    pub(crate) untaken: Cell<u64>,
    /// Nothing is read until servers have taken more of what came before.
    pub(crate) paused: Cell<bool>,
}

impl ClientH2Connection {
    pub fn new(mut connection: Connection, limits: Http2, head_bytes: usize) -> ClientH2Connection {
        let core = Rc::clone(&connection.core);
        ClientH2Connection {
            listener: Rc::clone(&connection.listener),
            peer: connection.peer,
            facts: connection.facts,
            hello_info: connection.hello_info().cloned().map(Box::new),
            handshake_us: Cell::new(connection.handshake_us.take()),
            connection: RefCell::new(connection),
            staged: RefCell::default(),
            sent: Cell::new(0),
            unread: Rc::default(),
            fault: Cell::new(None),
            blocked: Cell::new(false),
            intake: RefCell::new(Intake::of_client(limits.max_concurrent_streams, head_bytes)),
            limits,
            turn: Cell::new(0),
            streams: Cell::new(0),
            requests: Cell::new(0),
            active: Cell::new(core.timers.now()),
            uploaded: Cell::new(0),
            first_window: limits.initial_window.min(core.uploads.width()),
            uploads: Cell::new(0),
            untaken: Cell::new(0),
            paused: Cell::new(false),
            core,
        }
    }

    pub fn owner(&self) -> NonZeroU64 {
        self.connection.borrow_mut().owner()
    }

    /// See [`proxy_header::header`].
    pub fn proxy_header(&self, version: ProxyProtocol) -> std::io::Result<Vec<u8>> {
        proxy_header::header(&self.connection.borrow(), version, None)
    }

    pub fn note_backend(&self, backend: &Arc<BackendMetrics>) {
        self.connection.borrow_mut().note_backend(backend);
    }

    pub(crate) fn moment(&self) -> Moment<'_> {
        Moment { now: self.core.timers.now(), sent: self.sent.get(), limits: &self.limits.flood }
    }

    /// Says what the library does not say, between two of its frames: it waits for the socket only within one.
    pub fn say(&self) {
        if !self.blocked.get() {
            let mut intake = self.intake.borrow_mut();
            // If there is no room now there will be when the staged bytes are gone.
            let room = stage_frames(&self.core.buffers, &mut self.staged.borrow_mut(), &mut intake);
            self.blocked.set(!room);
        }
    }

    /// So many bytes of a body have gone on to a server, and so many that have come have not.
    pub(crate) fn note_upload(&self, stream: u32, count: usize, untaken: usize) {
        self.uploaded.set(self.uploaded.get() + count as u64);
        let mut intake = self.intake.borrow_mut();
        intake.leaves_untaken(stream, untaken as u64);
        self.count_untaken(&intake);
    }

    pub(crate) fn upload_began(&self) {
        self.uploads.set(self.uploads.get() + 1);
        self.core.uploads.begin();
    }

    pub(crate) fn upload_ended(&self) {
        self.uploads.set(self.uploads.get() - 1);
        self.core.uploads.end();
    }

    pub(crate) fn count_untaken(&self, intake: &Intake) {
        let untaken = intake.untaken();
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

    pub(crate) fn stream_ended(&self, stream: u32) {
        {
            let mut intake = self.intake.borrow_mut();
            intake.leaves(stream);
            self.count_untaken(&intake);
        }
        self.streams.set(self.streams.get() - 1);
        if self.streams.get() == 0 {
            self.connection.borrow().deadline.rest();
        }
        self.active.set(self.core.timers.now());
        self.core.metrics.lower(self.listener.metrics.http2.streams);
    }

    pub fn count_flood(&self, reason: &str) {
        self.core.metrics.increment(self.listener.metrics.http2.floods.of(reason));
        log::debug!("{}: connection ended, too much of: {reason}", self.peer);
    }

    pub fn count_error(&self, reason: Reason) {
        let metrics = &self.listener.metrics.http2;
        self.core.metrics.increment(metrics.errors.of(reason_name(Some(reason))));
        log::debug!("{}: HTTP/2 ended: {reason}", self.peer);
    }

    pub fn count_timeout(&self, wait: Wait) {
        self.connection.borrow().count_timeout(wait);
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

pub fn reason_name(reason: Option<Reason>) -> &'static str {
    match reason {
        Some(Reason::PROTOCOL_ERROR) => "protocol-error",
        Some(Reason::FLOW_CONTROL_ERROR) => "flow-control-error",
        Some(Reason::FRAME_SIZE_ERROR) => "frame-size-error",
        Some(Reason::COMPRESSION_ERROR) => "compression-error",
        Some(Reason::STREAM_CLOSED) => "stream-closed",
        Some(Reason::SETTINGS_TIMEOUT) => "settings-timeout",
        _ => "other",
    }
}
