//! The life of a client's HTTP/2 connection: streams begun as they come, floods ended, quiet times, the drain.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use propylon_http::fault::Fault;
use propylon_http::h1::{Limits, RequestBody};
use propylon_http::h2::{Block, ConnectionFault, Event, Flood, Reason, Refusal};
use propylon_net::budget::{self, Budget, FRAMES_BYTES_PER_POLL_MAX, STREAMS_PER_POLL_MAX};
use propylon_net::buffer::{Buffer, LARGE_BYTES, WIDE_BYTES};
use propylon_net::client_stream::{ClientStream, Fill, ReadError};
use propylon_net::pace::Pace;
use propylon_net::socket::Departure;
use propylon_observe::telemetry::Wait;
use tokio::task::spawn_local;

use super::h2_stream;
use crate::client::connection::{Connection, FAREWELL_MILLIS, Farewell};
use crate::client::h2_connection::ClientH2Connection;
use crate::client::h2_stream::Stream;
use crate::core::Core;
use crate::fault;
use crate::http2::{Streams, messages};
use crate::request::After;
use crate::services::ListenerHandle;

/// A TLS session that was quiet for so long gives up what can be remade from its keys.
const REST_AFTER_MILLIS: u64 = 1_000;
/// How long a client that has asked for nothing yet is spared where room is needed: those that have been idle make it.
const NEWCOMER_MILLIS: u64 = 1_000;
/// Tasks of streams, in proportion to the streams that may be open: those that were reset take a moment to end.
const TASKS_PER_STREAM: usize = 2;
/// How soon a connection that is not read is looked at again, though nothing has happened to it.
const PAUSE_MILLIS: u64 = 100;
/// How long a client that is told to go away may take to say that it has heard.
const DRAIN_MILLIS: u64 = 1_000;
/// Body bytes of frames from this length on cost a quarter: of small frames a budget's worth has thousands.
const LARGE_FRAME_BYTES: usize = 4 * 1024;
const LARGE_FRAME_SHARE: usize = 4;
/// Bytes of the longest record of TLS (RFC 8446 §5.1): a read that brings them has filled a small buffer.
const RECORD_BYTES_MAX: usize = 16 * 1024;

/// How the connection came to its end.
enum End {
    /// Staged bytes are the last word.
    Spoken,
    /// There is nobody to speak to.
    Lost,
}

/// Serves a client that speaks HTTP/2, from its preface to the connection's end.
pub async fn serve(connection: Connection) {
    let core = Rc::clone(&connection.core);
    let (limits, head_bytes) = {
        let snapshot = core.snapshot();
        let listener = snapshot.listener(&connection.listener);
        (listener.http2, listener.limits.head_bytes)
    };
    let metrics = &connection.listener.metrics.http2;
    core.metrics.increment(metrics.connections);
    core.metrics.raise(metrics.open);
    let _open = Open { core: Rc::clone(&core), listener: Rc::clone(&connection.listener) };
    let link = Rc::new(ClientH2Connection::new(connection, limits, head_bytes));
    let mut driver = Driver::new(Rc::clone(&link));
    let end = poll_fn(|context| driver.poll(context)).await;
    link.link.lose();
    link.count_discarded();
    match end {
        End::Spoken => Box::pin(farewell(&link)).await,
        End::Lost => {
            let _ = link.connection.borrow().stream.socket.reset_on_close();
        }
    }
}

/// After a write that has failed. A client whose session's key is worn out is still there to be told that it ends.
fn end_of_writing(link: &ClientH2Connection) -> End {
    match fault::of_write(&link.connection.borrow().stream) {
        Fault::KeysExhausted => {
            let faults = &link.listener.metrics.faults;
            link.core.metrics.increment(faults.of(Fault::KeysExhausted));
            link.link.h2.borrow_mut().clear_output();
            End::Spoken
        }
        _ => End::Lost,
    }
}

/// Keeps the count of open connections right.
struct Open {
    core: Rc<Core>,
    listener: Rc<ListenerHandle>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.core.metrics.lower(self.listener.metrics.http2.open);
    }
}

struct Driver {
    link: Rc<ClientH2Connection>,
    /// Milliseconds on the core's clock: when the connection began to speak HTTP/2.
    begun: u64,
    /// The client is still spared as one that is about to ask.
    is_newcomer: bool,
    /// Milliseconds on the core's clock: since when the client's socket takes nothing.
    stalled: Option<u64>,
    /// The last GOAWAY is on its way: by then it is to be over.
    closing: Option<u64>,
    /// The first GOAWAY of the drain was said, in milliseconds on the core's clock.
    draining: Option<u64>,
    /// When it is to be said, once that is known.
    leaves_at: Option<u64>,
    /// The client has heard the first GOAWAY.
    has_heard: bool,
    rested: bool,
    /// Width of what uploads are read in.
    pace: Pace,
}

impl Driver {
    fn new(link: Rc<ClientH2Connection>) -> Driver {
        Driver {
            begun: link.core.timers.now(),
            is_newcomer: true,
            link,
            stalled: None,
            closing: None,
            draining: None,
            leaves_at: None,
            has_heard: false,
            rested: false,
            pace: Pace::default(),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<End> {
        let link = Rc::clone(&self.link);
        link.link.set_driver(context);
        loop {
            let is_open = match self.poll_read(context) {
                Ok(is_open) => is_open,
                Err(fault) => {
                    link.count_fault(fault);
                    self.say_goodbye(fault.reason(), link.core.timers.now());
                    true
                }
            };
            let was_full = link.link.is_full();
            match poll_flush(&link, context) {
                Poll::Ready(Err(_)) => return Poll::Ready(end_of_writing(&link)),
                Poll::Ready(Ok(())) if self.closing.is_some() => return Poll::Ready(End::Spoken),
                Poll::Ready(Ok(())) => {
                    self.stalled = None;
                    if was_full {
                        // Nothing was read, and no event will say again that there is something to be.
                        context.waker().wake_by_ref();
                    }
                }
                Poll::Pending => {
                    self.stalled.get_or_insert(link.core.timers.now());
                }
            }
            if !is_open {
                return Poll::Ready(End::Spoken);
            }
            match self.poll_limits(context) {
                Limit::Kept => return Poll::Pending,
                Limit::SaysGoodbye => {}
                Limit::Over(end) => return Poll::Ready(end),
            }
        }
    }

    /// Reads what has come. False when the client has ended.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Result<bool, ConnectionFault> {
        let link = Rc::clone(&self.link);
        let (mut cost, mut begun) = (0, 0);
        if link.uploads.get() == 0 {
            self.pace = Pace::default();
        }
        while self.closing.is_none() && !link.is_held_up() && !link.link.is_full() {
            if cost >= FRAMES_BYTES_PER_POLL_MAX {
                budget::spend(Budget::Frames, context);
                break;
            }
            if begun >= STREAMS_PER_POLL_MAX {
                budget::spend(Budget::Streams, context);
                break;
            }
            let mut inbox = {
                let mut connection = link.connection.borrow_mut();
                if connection.inbox.is_empty() {
                    match poll_fill(&mut connection, context, self.pace.read_bytes()) {
                        Poll::Pending => break,
                        Poll::Ready(false) => return Ok(false),
                        Poll::Ready(true) => {}
                    }
                    if link.uploads.get() > 0 {
                        let count = connection.inbox.len();
                        self.pace.note_long(count >= RECORD_BYTES_MAX);
                        // One to read into, and one that a body waits in.
                        self.pace.note_read(count, 2, &link.core.buffers);
                    }
                }
                std::mem::take(&mut connection.inbox)
            };
            let taken = self.take(&mut inbox, STREAMS_PER_POLL_MAX - begun, FRAMES_BYTES_PER_POLL_MAX - cost);
            let mut connection = link.connection.borrow_mut();
            connection.inbox = inbox;
            let (count, streams) = taken?;
            (cost, begun) = (cost + count, begun + streams);
        }
        Ok(true)
    }

    /// Takes in what lies in the inbox, until that has cost so much or has begun so many streams. Returns what it has.
    fn take(&mut self, inbox: &mut Buffer, streams_max: u32, cost_max: usize) -> Result<(usize, u32), ConnectionFault> {
        let link = Rc::clone(&self.link);
        let mut h2 = link.link.h2.borrow_mut();
        let (now, mut cost, mut streams) = (link.core.timers.now(), 0, 0);
        // Bytes behind those of a frame are of the same body, if there is but one.
        let is_alone = link.uploads.get() == 1;
        while !inbox.is_empty() && streams < streams_max && cost < cost_max {
            let (used, event) = h2.receive(inbox.readable(), now)?;
            let mut discount = 0;
            match event {
                Some(Event::Request(block)) => {
                    streams += 1;
                    self.begin_stream(&mut h2, &block, inbox.readable())?;
                }
                Some(Event::Data { stream, bytes, .. }) => {
                    if bytes.len() >= LARGE_FRAME_BYTES {
                        discount = bytes.len() / LARGE_FRAME_SHARE * (LARGE_FRAME_SHARE - 1);
                    }
                    let ahead = if is_alone { inbox.len() - bytes.end } else { 0 };
                    link.link.received(&mut h2, stream, &inbox.readable()[bytes], ahead);
                }
                Some(Event::Trailers(block)) => {
                    messages::read_trailers(&link.link, &mut h2, &block, inbox.readable())?;
                }
                Some(Event::Reset { stream }) => link.link.wake_stream(&mut h2, stream),
                Some(Event::Pong) => self.has_heard = true,
                Some(Event::Settings | Event::GoAway | Event::Response(_)) | None => {}
            }
            inbox.consume(used);
            cost += used - discount;
        }
        link.count_untaken();
        Ok((cost, streams))
    }

    fn begin_stream(&mut self, h2: &mut Streams, block: &Block, bytes: &[u8]) -> Result<(), ConnectionFault> {
        let link = &self.link;
        let core = &link.core;
        let mut request = core.request();
        request.begin(Instant::now());
        let limits = {
            let snapshot = core.snapshot();
            let limits = &snapshot.listener(&link.listener).limits;
            Limits { head_bytes: limits.head_bytes, headers: limits.headers }
        };
        let read = messages::read_request(h2, (block, bytes), &limits, &mut core.random.borrow_mut(), &mut request)?;
        let rejected = match read {
            Ok(()) => Ok(()),
            Err(Refusal::Rejected(reject)) => Err(reject),
            Err(Refusal::Malformed) => {
                core.give_request_back(request);
                return h2.reject(block);
            }
        };
        if link.streams.get() >= link.limits.max_concurrent_streams as usize * TASKS_PER_STREAM {
            link.count_fault(ConnectionFault::Flood(Flood::Streams));
            core.give_request_back(request);
            h2.refuse(block);
            return Ok(());
        }
        h2.accept(block, core.timers.now(), link.link.state());
        if let (Ok(()), RequestBody::Length(length)) = (&rejected, request.head.body) {
            h2.expect(block.stream, length)?;
        }
        if let Some(priority) = request.head.fields.value(&request.text, "priority") {
            h2.set_priority(block.stream, priority);
        }
        link.stream_began();
        let ordinal = link.requests.get().saturating_add(1);
        link.requests.set(ordinal);
        if ordinal > 1 {
            core.handshake_limiter.note_request();
        }
        self.rested = false;
        let uploads = !block.end;
        let stream = Stream::new(Rc::clone(link), block.stream, (ordinal, uploads), h2.announced_window());
        // Boxed: the runtime moves what it is given from place to place, and this is close to two kilobytes.
        spawn_local(Box::pin(h2_stream::serve(stream, request, rejected)));
        Ok(())
    }

    fn poll_limits(&mut self, context: &mut Context<'_>) -> Limit {
        let link = Rc::clone(&self.link);
        let core = &link.core;
        let now = core.timers.now();
        let mut due = u64::MAX;
        if self.begin_drain(now, &mut due) {
            return Limit::SaysGoodbye;
        }
        if let Some(since) = self.draining
            && self.drain(since, now, &mut due)
        {
            return Limit::SaysGoodbye;
        }
        if self.fit_windows() || link.end_discarding(now) {
            return Limit::SaysGoodbye;
        }
        if link.is_paused() {
            // Nothing of it is read, so that nobody else would learn that its client has gone.
            if link.connection.borrow().stream.socket.has_departed(Departure::End) {
                return Limit::Over(End::Lost);
            }
            due = due.min(now + PAUSE_MILLIS);
        }
        due = due.min(self.spare_newcomer(now));
        let (idle, stall) = {
            let snapshot = core.snapshot();
            let timeouts = &snapshot.listener(&link.listener).timeouts;
            let idle = if link.requests.get() == 0 { timeouts.request_head } else { timeouts.idle };
            (idle.as_millis() as u64, timeouts.body.as_millis() as u64)
        };
        if let Some(since) = self.stalled {
            if now >= since + stall {
                link.count_timeout(Wait::ResponseBody);
                return Limit::Over(End::Lost);
            }
            due = due.min(since + stall);
        }
        let is_called = link.connection.borrow().deadline.is_called();
        let discards_until = link.link.h2.borrow_mut().discards_until(now);
        if let Some(until) = discards_until {
            link.active.set(now);
            due = due.min(until);
        }
        if let Some(closing) = self.closing {
            if now >= closing {
                return Limit::Over(End::Spoken);
            }
            due = due.min(closing);
        } else if link.streams.get() == 0 && (discards_until.is_none() || is_called) {
            let quiet_due = link.active.get() + idle;
            if now >= quiet_due {
                link.count_timeout(if link.requests.get() == 0 { Wait::RequestHead } else { Wait::Idle });
                self.say_goodbye(Reason::NO_ERROR, now);
                return Limit::SaysGoodbye;
            }
            // Nothing follows, or memory or files are needed elsewhere.
            if link.link.h2.borrow().is_leaving() || is_called {
                self.say_goodbye(Reason::NO_ERROR, now);
                return Limit::SaysGoodbye;
            }
            due = due.min(quiet_due);
            due = due.min(self.rest_when_quiet(now));
        } else {
            // Streams that end wake nobody: look again when the connection could be quiet for too long.
            due = due.min(now + idle);
        }
        link.connection.borrow().deadline.set(due, context.waker());
        Limit::Kept
    }

    /// Has a client that has not asked for anything rest once it has had the time to. Returns when to look again.
    fn spare_newcomer(&mut self, now: u64) -> u64 {
        let has_asked = self.link.requests.get() > 0;
        if !self.is_newcomer || has_asked {
            self.is_newcomer = false;
            return u64::MAX;
        }
        let until = self.begun + NEWCOMER_MILLIS;
        if now < until {
            return until;
        }
        self.is_newcomer = false;
        self.link.connection.borrow().deadline.rest();
        u64::MAX
    }

    /// Whether the listener's HTTP/2 terms differ from those agreed on when the connection began: the client has to
    /// reconnect.
    fn is_outdated(&self) -> bool {
        let link = &self.link;
        link.core.snapshot().listener(&link.listener).http2 != link.limits
    }

    /// Says the first GOAWAY where the client is to come again elsewhere, or on other terms. True: that is said now.
    fn begin_drain(&mut self, now: u64, due: &mut u64) -> bool {
        let (link, core) = (&self.link, &self.link.core);
        let is_over = core.is_leaving(&link.listener) || self.is_outdated() || link.is_wearing();
        if self.draining.is_some() || !is_over {
            return false;
        }
        let leaves_at = *self.leaves_at.get_or_insert_with(|| core.leaves_at());
        if now < leaves_at {
            *due = leaves_at;
            return false;
        }
        self.draining = Some(now);
        let mut h2 = link.link.h2.borrow_mut();
        h2.announce_goaway();
        h2.ping();
        true
    }

    /// Says the last GOAWAY of a drain when the client has heard the first one, or has had the time to: a request may
    /// be on its way that was sent before it could know. True when that is said now.
    fn drain(&mut self, since: u64, now: u64, due: &mut u64) -> bool {
        let mut h2 = self.link.link.h2.borrow_mut();
        if h2.is_leaving() {
            return false;
        }
        if self.has_heard || now >= since + DRAIN_MILLIS {
            h2.go_away(Reason::NO_ERROR);
            return true;
        }
        *due = (*due).min(since + DRAIN_MILLIS);
        false
    }

    /// Returns when to look again.
    fn rest_when_quiet(&mut self, now: u64) -> u64 {
        if self.rested {
            return u64::MAX;
        }
        let rest_at = self.link.active.get() + REST_AFTER_MILLIS;
        if now < rest_at {
            return rest_at;
        }
        self.rested = true;
        self.link.link.h2.borrow_mut().rest();
        if let Some(session) = &mut self.link.connection.borrow_mut().stream.tls {
            session.rest();
        }
        u64::MAX
    }

    /// Says GOAWAY for the last time; streams in progress end with it.
    fn say_goodbye(&mut self, reason: Reason, now: u64) {
        self.closing = Some(now + FAREWELL_MILLIS);
        self.link.link.h2.borrow_mut().go_away(reason);
    }

    /// Windows as wide as there is room for. True when the client is to be told.
    fn fit_windows(&mut self) -> bool {
        let window = self.link.limits.initial_window.min(self.link.core.uploads.width());
        let mut h2 = self.link.link.h2.borrow_mut();
        // The last change has to be acknowledged first: whatever comes next has it asked again.
        window != h2.announced_window() && h2.announce_window(window)
    }
}

/// Result of looking at the limits.
enum Limit {
    Kept,
    /// There is something to be sent.
    SaysGoodbye,
    Over(End),
}

/// Sends what is staged and closes, listening for a moment longer: our last word must not be destroyed by a reset.
async fn farewell(link: &ClientH2Connection) {
    seal(link);
    let mut farewell = Farewell::begin(&mut link.connection.borrow_mut(), After::Linger);
    poll_fn(|context| farewell.poll(context, &mut link.connection.borrow_mut())).await;
}

/// Reads into memory of so many bytes at least until there is something, or the client has ended: then false.
fn poll_fill(connection: &mut Connection, context: &mut Context<'_>, room: usize) -> Poll<bool> {
    let Connection { stream, inbox, wire, core, .. } = connection;
    ready!(stream.poll_room(context, &core.buffers, inbox, room));
    match ready!(stream.poll_fill(context, &core.buffers, inbox, wire)) {
        Ok(fill) => Poll::Ready(fill == Fill::Bytes),
        Err(ReadError::Io(_)) => Poll::Ready(false),
        Err(ReadError::Tls(failure)) => {
            connection.note_tls_failure(&failure);
            Poll::Ready(false)
        }
    }
}

/// Sends what streams and the connection have to say, sealed in full records.
fn poll_flush(link: &ClientH2Connection, context: &mut Context<'_>) -> Poll<io::Result<()>> {
    let mut h2 = link.link.h2.borrow_mut();
    let mut connection = link.connection.borrow_mut();
    let Connection { stream, wire, core, .. } = &mut *connection;
    loop {
        ready!(stream.poll_flush(context, &core.buffers, wire))?;
        link.wide_output.take();
        if !h2.output().is_empty() {
            stream.stage(h2.output(), &core.buffers, wire);
            h2.clear_output();
        }
        send_bodies(link, &mut h2, stream, wire);
        if wire.is_empty() && h2.output().is_empty() {
            link.link.wake_starved(&mut h2);
            return stream.poll_flush(context, &core.buffers, wire);
        }
    }
}

/// Seals what streams have to send behind what is staged, frame by frame as turns and windows have it: as much as is
/// sealed at one go, or as a wide buffer takes where so much is here and there is leave for one. Trailers, which are
/// output, end it.
fn send_bodies(link: &ClientH2Connection, h2: &mut Streams, stream: &mut ClientStream, wire: &mut Buffer) {
    let buffers = &link.core.buffers;
    let may_send = |h2: &Streams| h2.has_data() && h2.output().is_empty();
    if !may_send(h2) {
        return;
    }
    let lease = if link.link.unread() > LARGE_BYTES { buffers.lease_wide(1) } else { None };
    buffers.provide(wire, if lease.is_some() { WIDE_BYTES } else { LARGE_BYTES });
    link.wide_output.set(lease);
    let overhead = stream.staged_len(RECORD_BYTES_MAX) - RECORD_BYTES_MAX;
    while may_send(h2) {
        // A piece's last bytes, which the headers of its frames have left over, go out with it.
        let room = wire.room().saturating_sub(overhead).min(RECORD_BYTES_MAX);
        if !link.link.send_body(h2, room, |frame| stream.stage(frame, buffers, wire)) {
            return;
        }
    }
}

/// Puts what is to be said behind what is on its way, for a connection that ends.
fn seal(link: &ClientH2Connection) {
    let mut h2 = link.link.h2.borrow_mut();
    let mut connection = link.connection.borrow_mut();
    let Connection { stream, wire, core, .. } = &mut *connection;
    if !h2.output().is_empty() {
        stream.stage(h2.output(), &core.buffers, wire);
        h2.clear_output();
    }
}
