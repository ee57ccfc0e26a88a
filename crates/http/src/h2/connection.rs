//! A connection of HTTP/2 (RFC 9113) without a socket, a clock or a runtime, for either side: bytes come in and events
//! go out (`receive.rs`); heads, bodies and the connection's own frames are written to a buffer (`send.rs`).
//!
//! Bodies are lent and not kept: what is received is a range of the caller's bytes, and what is to be sent is announced
//! by its length and copied into a frame when windows have room for it. A stream is known here from its first HEADERS
//! until both sides and the application are done with it.

use std::cell::Cell;
use std::collections::VecDeque;

use propylon_config::Http2Flood;

use super::Reason;
use super::discard::Discard;
use super::flood::{Flood, FloodLimiter};
use super::frame::{self, PREFACE};
use super::hpack::{Decoder, Encoder};
use super::inbound::{Block, Inbound};
use super::priority::{Priority, SendQueue};
use super::role::Role;
use super::settings::{self, OwnSettings, PeerSettings, TABLE_BYTES, WINDOW_BYTES};
use super::stream::{Ending, Half, Reset, Stream};
use super::window::{ReceiveWindow, SendWindow};
use crate::discarded::Discarded;

/// Streams that are over here and not for the peer, in proportion to those that may be open: a peer goes on sending for
/// a while after we have answered.
const LATE_PER_STREAM: usize = 2;
const LATE_MIN: usize = 64;
/// Bytes of frames that a peer may send on a stream that is over, beyond those that its window had room for, in bodies
/// and in headers of small frames.
const LATE_BYTES_MIN: usize = 2 * 1024 * 1024;
const LATE_PER_WINDOW: usize = 2;
/// Runs of identifiers left out by a client that are remembered: clients leave out none.
const SKIPPED_MAX: usize = 16;
/// The payload of our PING frames; each answer is that of the one before.
const PING_PAYLOAD: [u8; 8] = *b"propylon";
/// Last stream in the first GOAWAY of a graceful end (RFC 9113 §6.8).
const LAST_STREAM_MAX: u32 = 0x7fff_ffff;
/// Streams that one connection can have: then the identifiers are used up (RFC 9113 §5.1.1).
const NEXT_STREAM_MAX: u32 = 0x7fff_ffff;

/// Why a connection is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionFault {
    Flood(Flood),
    Error(Reason),
}

impl ConnectionFault {
    /// Code that GOAWAY is to say.
    pub fn reason(self) -> Reason {
        match self {
            ConnectionFault::Flood(_) => Reason::ENHANCE_YOUR_CALM,
            ConnectionFault::Error(reason) => reason,
        }
    }
}

impl From<Flood> for ConnectionFault {
    fn from(flood: Flood) -> ConnectionFault {
        ConnectionFault::Flood(flood)
    }
}

/// Terms of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub settings: OwnSettings,
    /// Window of the whole connection. Bytes are given back as they come: what holds a peer up are its streams'
    /// windows.
    pub connection_window: u32,
    /// Limits on frames that cost a peer nothing; of a server, those of errors alone count.
    pub flood: Http2Flood,
}

/// A GOAWAY of the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoAway {
    /// The last stream of ours that it has looked at, or may look at.
    pub last: u32,
    pub reason: Reason,
}

/// A stream that is over here, and its peer may not have heard of that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Late {
    pub stream: u32,
    /// Bytes that may still come.
    left: usize,
}

/// A connection whose application keeps a `T` of each stream.
#[derive(Debug)]
pub struct Connection<T> {
    pub(super) role: Role,
    /// Streams that the peer may have at a time.
    pub(super) streams_max: usize,
    pub(super) list_bytes_max: usize,
    /// Whether extended CONNECT is taken.
    allows_connect: bool,
    pub(super) peer: PeerSettings,
    /// Whether the peer's first SETTINGS have come.
    pub(super) has_settings: bool,
    /// Window with which streams begin, by the SETTINGS of ours that the peer has acknowledged, and by those that it
    /// has not acknowledged yet.
    pub(super) initial_window: u32,
    pub(super) announced_window: Option<u32>,
    pub(super) decoder: Decoder,
    pub(super) encoder: Encoder,
    pub(super) inbound: Inbound,
    /// Streams in the order of their identifiers.
    pub(super) streams: VecDeque<Stream<T>>,
    /// Place at which a stream was found last: the same one is asked for again and again.
    last_place: Cell<usize>,
    /// Streams among them that are not closed.
    pub(super) open: usize,
    /// Identifiers that the client has left out, as first and last of each run, the newest last. No stream has them any
    /// more (RFC 9113 §5.1.1).
    pub(super) skipped: Vec<(u32, u32)>,
    /// The newest stream of the client's: at a server the newest that has come, at a client the newest begun.
    pub(super) last: u32,
    pub(super) late: VecDeque<Late>,
    /// Streams that were answered before all of their bodies had come, which are thrown away.
    pub(super) discards: Vec<Discard>,
    /// Bodies that were thrown away and have not been counted, by how that has ended.
    pub(super) discarded: [u32; Discarded::NAMES.len()],
    pub(super) send_window: SendWindow,
    pub(super) receive_window: ReceiveWindow,
    pub(super) queue: SendQueue,
    /// Whether the peer goes by RFC 9218's priorities: it has said any.
    pub(super) has_priorities: bool,
    pub(super) flood: FloodLimiter,
    pub(super) goaway: Option<GoAway>,
    /// Last stream in our GOAWAY: streams above this one are not looked at.
    pub(super) goaway_sent: Option<u32>,
    /// Whether that was said for good.
    is_leaving: bool,
    pub(super) is_pinged: bool,
    /// Frames to be sent.
    pub(super) out: Vec<u8>,
    /// Bytes of them that were taken.
    pub(super) taken: usize,
    /// Bytes sent before those.
    pub(super) sent: u64,
}

impl<T> Connection<T> {
    /// Begins a connection: our SETTINGS, behind the preface where we are the client, are in its output.
    pub fn new(role: Role, terms: &Terms) -> Connection<T> {
        let mut out = Vec::with_capacity(128);
        if role == Role::Client {
            out.extend_from_slice(PREFACE);
        }
        terms.settings.write(&mut out);
        let mut receive_window = ReceiveWindow::new(WINDOW_BYTES);
        receive_window.set_target(terms.connection_window.max(WINDOW_BYTES));
        if let Some(increment) = receive_window.take_increment() {
            frame::write_window_update(0, increment, &mut out);
        }
        Connection {
            role,
            streams_max: terms.settings.max_concurrent_streams.unwrap_or(0) as usize,
            list_bytes_max: terms.settings.header_list_bytes_max as usize,
            allows_connect: terms.settings.enable_connect,
            peer: PeerSettings::default(),
            has_settings: false,
            initial_window: WINDOW_BYTES,
            announced_window: Some(terms.settings.initial_window),
            decoder: Decoder::new(TABLE_BYTES as usize),
            encoder: Encoder::new(),
            inbound: Inbound::new(role),
            streams: VecDeque::new(),
            last_place: Cell::new(0),
            open: 0,
            skipped: Vec::new(),
            last: 0,
            late: VecDeque::new(),
            discards: Vec::new(),
            discarded: [0; Discarded::NAMES.len()],
            send_window: SendWindow::new(WINDOW_BYTES),
            receive_window,
            queue: SendQueue::default(),
            has_priorities: false,
            flood: FloodLimiter::new(terms.flood),
            goaway: None,
            goaway_sent: None,
            is_leaving: false,
            is_pinged: false,
            out,
            taken: 0,
            sent: 0,
        }
    }

    pub fn peer_settings(&self) -> &PeerSettings {
        &self.peer
    }

    /// Whether the peer has sent its SETTINGS, and so shown that it speaks HTTP/2.
    pub fn has_settings(&self) -> bool {
        self.has_settings
    }

    /// Whether clients may open tunnels (RFC 8441 §3).
    pub fn allows_connect(&self) -> bool {
        self.allows_connect
    }

    /// The peer's GOAWAY, if there was one.
    pub fn goaway(&self) -> Option<GoAway> {
        self.goaway
    }

    /// Streams that are not closed.
    pub fn open(&self) -> usize {
        self.open
    }

    /// The newest stream of the client's.
    pub fn last_stream(&self) -> u32 {
        self.last
    }

    pub fn streams(&self) -> impl Iterator<Item = &Stream<T>> {
        self.streams.iter()
    }

    pub fn streams_mut(&mut self) -> impl Iterator<Item = &mut Stream<T>> {
        self.streams.iter_mut()
    }

    pub fn stream(&self, id: u32) -> Option<&Stream<T>> {
        self.place(id).map(|place| &self.streams[place])
    }

    pub fn stream_mut(&mut self, id: u32) -> Option<&mut Stream<T>> {
        self.place(id).map(|place| &mut self.streams[place])
    }

    pub(super) fn place(&self, id: u32) -> Option<usize> {
        let last = self.last_place.get();
        if self.streams.get(last).is_some_and(|stream| stream.id == id) {
            return Some(last);
        }
        let place = self.streams.binary_search_by_key(&id, |stream| stream.id).ok()?;
        self.last_place.set(place);
        Some(place)
    }

    /// Adds the newest stream.
    pub(super) fn add(&mut self, id: u32, (receive, send): (Half, Half), now: u64, data: T) {
        debug_assert!(self.streams.back().is_none_or(|last| last.id < id), "streams begin in order");
        self.open += 1;
        self.last_place.set(self.streams.len());
        self.streams.push_back(Stream {
            id,
            receive,
            send,
            reset: None,
            send_window: SendWindow::new(self.peer.initial_window),
            receive_window: ReceiveWindow::new(self.initial_window),
            received: 0,
            expected: None,
            pending: 0,
            ending: Ending::Open,
            is_queued: false,
            is_forgotten: false,
            priority: Priority { incremental: !self.has_priorities, ..Priority::default() },
            begun: now,
            data,
        });
    }

    /// Takes note of what a stream has come to by `change`, and forgets it when everybody is done with it.
    pub(super) fn update<R>(&mut self, place: usize, change: impl FnOnce(&mut Stream<T>) -> R) -> R {
        let stream = &mut self.streams[place];
        let was_closed = stream.is_closed();
        let result = change(stream);
        let (id, is_closed, is_done) = (stream.id, stream.is_closed(), stream.is_closed() && stream.is_forgotten);
        if is_closed && !was_closed {
            self.open -= 1;
            self.leave_queue(place);
            self.note_closed(place);
        }
        if is_done {
            debug_assert_eq!(self.streams[place].id, id);
            self.streams.remove(place);
        }
        result
    }

    /// Remembers a stream that is closed, as far as frames may come for it that are nobody's fault.
    fn note_closed(&mut self, place: usize) {
        self.end_discard(self.streams[place].id, Discarded::Ended);
        let stream = &self.streams[place];
        match stream.reset {
            Some(Reset::ByPeer(_) | Reset::Unprocessed(_)) => {}
            // Frames that the peer has sent before it knows are thrown away (RFC 9113 §5.1, closed).
            _ if stream.receive != Half::Ended => {
                let (id, window) = (stream.id, stream.receive_window.target());
                self.note_late(id, window);
            }
            _ if self.role == Role::Server => self.flood.note_finished(stream.id),
            _ => {}
        }
    }

    /// Takes note of the client's newest stream.
    pub(super) fn note_newest(&mut self, id: u32) {
        let first = if self.last == 0 { 1 } else { self.last + 2 };
        self.last = id;
        if id > first {
            if self.skipped.len() == SKIPPED_MAX {
                self.skipped.remove(0);
            }
            self.skipped.push((first, id - 2));
        }
    }

    /// Whether the client has left out an identifier, as far as that is remembered.
    pub(super) fn has_skipped(&self, id: u32) -> bool {
        self.skipped.iter().any(|(first, last)| (*first..=*last).contains(&id))
    }

    /// Remembers a stream that is over here, for which its peer may have frames on their way, as its window lets it.
    pub(super) fn note_late(&mut self, stream: u32, window: u32) {
        let late_max = LATE_MIN.max(LATE_PER_STREAM * self.streams_max.max(self.streams.len()));
        if self.late.len() >= late_max {
            self.late.pop_front();
        }
        let left = LATE_BYTES_MIN + LATE_PER_WINDOW * window as usize;
        self.late.push_back(Late { stream, left });
    }

    /// Remembers a stream that is not served from its begin on: the body behind its head is no offence of its own. `end`:
    /// it has none.
    pub(super) fn note_unserved(&mut self, stream: u32, end: bool) {
        if !end {
            self.note_late(stream, self.initial_window);
        }
    }

    /// Whether a frame for a stream that is over here was on its way when its peer heard of that. `ends`: nothing more
    /// comes behind it.
    pub(super) fn is_late(&mut self, id: u32, bytes: usize, ends: bool) -> bool {
        let Some(place) = self.late.iter().position(|late| late.stream == id) else { return false };
        let late = &mut self.late[place];
        let is_fine = late.left >= bytes;
        late.left = late.left.saturating_sub(bytes);
        if ends || !is_fine {
            self.late.remove(place);
        }
        is_fine
    }

    /// Puts a stream among those that may send, or takes it from there.
    pub(super) fn requeue(&mut self, place: usize) {
        let stream = &mut self.streams[place];
        match (stream.may_send(), stream.is_queued) {
            (true, false) => {
                stream.is_queued = true;
                self.queue.join(stream.id, stream.priority);
            }
            (false, true) => self.leave_queue(place),
            _ => {}
        }
    }

    fn leave_queue(&mut self, place: usize) {
        let stream = &mut self.streams[place];
        if std::mem::take(&mut stream.is_queued) {
            self.queue.leave(stream.id);
        }
    }

    /// The application needs a stream no more. What was offered of a message that is whole goes out all the same; else
    /// the stream is reset. A client that goes on sending behind the end of our message is let finish, within bounds.
    pub fn forget(&mut self, id: u32) {
        let Some(place) = self.place(id) else { return };
        self.streams[place].is_forgotten = true;
        self.release_held(place);
        self.finish_forgotten(place);
    }

    /// Ends a stream that the application has let go of, unless its message is whole and on its way.
    pub(super) fn finish_forgotten(&mut self, place: usize) {
        let stream = &self.streams[place];
        let is_on_its_way = stream.send == Half::Body && stream.ending != Ending::Open;
        if stream.is_closed() {
            self.update(place, |_| ());
        } else if stream.is_sent() && self.role == Role::Server {
            self.begin_discarding(stream.id);
        } else if !is_on_its_way || self.role == Role::Client {
            self.reset_at(place, Reason::CANCEL, Reset::ByUs);
        }
    }

    /// Breaks a stream off.
    pub fn reset(&mut self, id: u32, reason: Reason) {
        if let Some(place) = self.place(id).filter(|place| !self.streams[*place].is_closed()) {
            self.reset_at(place, reason, Reset::ByUs);
        }
    }

    /// Refuses a stream that has just come, and that nobody has looked at.
    pub fn refuse(&mut self, block: &Block) {
        self.note_unserved(block.stream, block.end);
        frame::write_reset(block.stream, Reason::REFUSED_STREAM, &mut self.out);
    }

    pub(super) fn reset_at(&mut self, place: usize, reason: Reason, as_what: fn(Reason) -> Reset) {
        frame::write_reset(self.streams[place].id, reason, &mut self.out);
        self.update(place, |stream| {
            stream.reset = Some(as_what(reason));
            stream.pending = 0;
        });
    }

    /// The connection has ended: so have all its streams.
    pub fn lose(&mut self) {
        for stream in self.streams.iter_mut().filter(|stream| !stream.is_closed()) {
            (stream.reset, stream.pending, stream.is_queued) = (Some(Reset::ConnectionLost), 0, false);
        }
        (self.open, self.queue) = (0, SendQueue::default());
        self.end_discards();
    }

    /// Bytes of a stream's body that its peer would take now, beyond those that were offered.
    pub fn room(&self, id: u32) -> usize {
        let window = |stream: &Stream<T>| stream.send_window.bytes().min(self.send_window.bytes());
        self.stream(id).map_or(0, |stream| window(stream).saturating_sub(stream.pending))
    }

    /// Gives back the window of bytes that were received on a stream and have gone on.
    pub fn release(&mut self, id: u32, bytes: usize) {
        let Some(place) = self.place(id) else { return };
        let stream = &mut self.streams[place];
        stream.receive_window.release(u32::try_from(bytes).unwrap_or(u32::MAX));
        self.widen(place);
    }

    /// Wants a stream's window to be so wide, in bytes.
    pub fn set_window(&mut self, id: u32, bytes: u32) {
        if let Some(place) = self.place(id) {
            self.streams[place].receive_window.set_target(bytes);
            self.widen(place);
        }
    }

    /// Counts a stream that was reset for what the peer did on it: of a client, who may do that to cause work. A server's
    /// errors cost nobody else anything.
    pub(super) fn count_error(&mut self) -> Result<(), Flood> {
        if self.role == Role::Server { self.flood.count_error() } else { Ok(()) }
    }

    /// Tells the peer of a stream's window as far as that is worth a frame.
    pub(super) fn widen(&mut self, place: usize) {
        let stream = &mut self.streams[place];
        if stream.receive == Half::Ended || stream.reset.is_some() {
            return;
        }
        if let Some(increment) = stream.receive_window.take_increment() {
            frame::write_window_update(stream.id, increment, &mut self.out);
        }
    }

    /// Releases what was received of a stream; a frame whose rest is still to come is released as that comes.
    fn release_held(&mut self, place: usize) {
        let stream = &mut self.streams[place];
        let to_come = self.inbound.owed(stream.id);
        let held = stream.receive_window.held();
        stream.receive_window.release(held.saturating_sub(to_come));
    }

    /// Window of each stream from its begin on, as the peer was told last.
    pub fn announced_window(&self) -> u32 {
        self.announced_window.unwrap_or(self.initial_window)
    }

    /// Tells the peer of another window for all its streams; false while it has not acknowledged the last one.
    pub fn announce_window(&mut self, bytes: u32) -> bool {
        if self.announced_window.is_some() {
            return false;
        }
        self.announced_window = Some(bytes);
        settings::write_initial_window(bytes, &mut self.out);
        true
    }

    /// Asks for a sign of life, which is told by `Event::Pong`; false while the last one has not come.
    pub fn ping(&mut self) -> bool {
        if self.is_pinged {
            return false;
        }
        self.is_pinged = true;
        frame::write(frame::kind::PING, 0, 0, &PING_PAYLOAD, &mut self.out);
        true
    }

    pub(super) fn is_our_ping(&self, payload: &[u8]) -> bool {
        self.is_pinged && payload == PING_PAYLOAD
    }

    /// Says that no further stream is to be begun, while those on their way are still taken.
    pub fn announce_goaway(&mut self) {
        if self.goaway_sent.is_none() {
            self.goaway_sent = Some(LAST_STREAM_MAX);
            frame::write_goaway(LAST_STREAM_MAX, Reason::NO_ERROR, &mut self.out);
        }
    }

    /// Says GOAWAY for good: streams that the peer begins from now on are not looked at. Those in progress go on.
    pub fn go_away(&mut self, reason: Reason) {
        let last = if self.role == Role::Server { self.last } else { 0 };
        let last = self.goaway_sent.map_or(last, |said| said.min(last));
        (self.goaway_sent, self.is_leaving) = (Some(last), true);
        frame::write_goaway(last, reason, &mut self.out);
    }

    /// Whether GOAWAY was said for good.
    pub fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Whether a client's connection has an identifier left, and the peer takes streams.
    pub fn may_open(&self) -> bool {
        self.goaway.is_none() && self.goaway_sent.is_none() && self.last < NEXT_STREAM_MAX - 1
    }

    /// Streams that the peer allows at a time. A peer that has not said so allows as many as there are identifiers.
    pub fn streams_allowed(&self) -> usize {
        self.peer.max_concurrent_streams.map_or(usize::MAX, |streams| streams as usize)
    }

    /// Bytes that the connection owns in memory beside itself.
    pub fn owned_bytes(&self) -> usize {
        self.decoder.owned_bytes()
            + self.encoder.owned_bytes()
            + self.inbound.owned_bytes()
            + self.streams.capacity() * size_of::<Stream<T>>()
            + self.late.capacity() * size_of::<Late>()
            + self.discards.capacity() * size_of::<Discard>()
            + self.skipped.capacity() * size_of::<(u32, u32)>()
            + self.out.capacity()
    }

    /// Gives up memory that a connection without streams does not need.
    pub fn rest(&mut self) {
        if self.streams.is_empty() {
            self.streams = VecDeque::new();
            self.queue.shrink();
        }
        if self.late.is_empty() {
            self.late = VecDeque::new();
        }
        if self.discards.is_empty() {
            self.discards = Vec::new();
        }
        if self.out.is_empty() {
            self.out = Vec::new();
        }
    }
}
