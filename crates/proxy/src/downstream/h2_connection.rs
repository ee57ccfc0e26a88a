//! The life of a client's HTTP/2 connection: streams begun as they come, floods ended, quiet times, the drain.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use h2::Reason;
use h2::server::{Builder, SendResponse};
use propylon_config::Http2;
use propylon_http::fault::Fault;
use propylon_net::budget::{self, Budget, STREAMS_PER_POLL_MAX};
use propylon_net::socket::Departure;
use propylon_observe::telemetry::Wait;
use tokio::task::spawn_local;

use super::h2_stream;
use super::h2_wire::{DATA_FRAME_BUDGET, Wire};
use crate::client::connection::{Connection, FAREWELL_MILLIS, Farewell};
use crate::client::h2_connection::ClientH2Connection;
use crate::core::Core;
use crate::fault;
use crate::http2::{ConnectionFault, Piece};
use crate::request::After;
use crate::services::ListenerHandle;

/// A TLS session that was quiet for so long gives up what can be remade from its keys.
const REST_AFTER_MILLIS: u64 = 1_000;
/// Tasks of streams, in proportion to the streams that may be open: those that were reset take a moment to end.
const TASKS_PER_STREAM: usize = 2;
/// Streams that we have reset and the client may not have heard of; frames for them are let pass.
const RESET_STREAMS_MAX: usize = 64;
/// Body bytes that the library may hold of one response before it says that there is no room.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Windows' worth of bodies that have gone on to servers before wider ones are opened.
const WINDOWS_PER_WIDENING: u32 = 4;
/// Bytes by which windows may be wider than at first on one core: so much more may have to be held for servers that do
/// not take the uploads. Beyond that uploads go on with the windows that they have.
const CORE_WIDENED_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// How soon a connection that is not read is looked at again, though nothing has happened to it.
const PAUSE_MILLIS: u64 = 100;
/// How long a connection that is told to go away, and has no streams, may take to say that it has heard.
const DRAIN_MILLIS: u64 = 1_000;

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
    let end = match Box::pin(begin(&link, head_bytes)).await {
        Ok(library) => Box::pin(Driver::new(Rc::clone(&link), library).run()).await,
        Err(end) => end,
    };
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
            link.core.buffers.release(&mut link.staged.borrow_mut());
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

fn builder(limits: &Http2, first_window: u32, head_bytes: usize) -> Builder {
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(limits.max_concurrent_streams)
        .initial_window_size(first_window)
        .initial_connection_window_size(connection_window(limits))
        .max_header_list_size(u32::try_from(head_bytes).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .data_frame_budget(DATA_FRAME_BUDGET.max(connection_window(limits) as usize / 2))
        // Rapid reset (CVE-2023-44487) in one piece: `flood.rs` has the rest of it, and the same limit.
        .max_pending_accept_reset_streams(limits.flood.resets as usize)
        .max_concurrent_reset_streams(RESET_STREAMS_MAX)
        .max_local_error_reset_streams(Some(limits.flood.errors as usize));
    if limits.extended_connect {
        builder.enable_connect_protocol();
    }
    builder
}

/// Room for all streams: uploads that their servers do not take hold up no other.
fn connection_window(limits: &Http2) -> u32 {
    together(limits.initial_window, limits)
}

/// The connection's window where each of its streams has this one.
fn together(window: u32, limits: &Http2) -> u32 {
    const MAX: u32 = i32::MAX as u32;
    window.saturating_mul(limits.max_concurrent_streams).clamp(window, MAX)
}

type Library = h2::server::Connection<Wire, Piece>;

/// Says our settings and hears the client's preface.
async fn begin(link: &Rc<ClientH2Connection>, head_bytes: usize) -> Result<Library, End> {
    let core = Rc::clone(&link.core);
    let timeout = core.snapshot().listener(&link.listener).timeouts.request_head.as_millis() as u64;
    let due = core.timers.now() + timeout;
    let mut handshake =
        pin!(builder(&link.limits, link.first_window, head_bytes).handshake::<Wire, Piece>(Wire(Rc::clone(link))));
    poll_fn(|context| {
        match handshake.as_mut().poll(context) {
            Poll::Ready(Ok(library)) => return Poll::Ready(Ok(library)),
            Poll::Ready(Err(_)) => return Poll::Ready(Err(End::Spoken)),
            Poll::Pending => {}
        }
        if let Poll::Ready(Err(_)) = link.poll_flush(context) {
            return Poll::Ready(Err(End::Lost));
        }
        if core.timers.now() >= due {
            link.count_timeout(Wait::RequestHead);
            return Poll::Ready(Err(End::Spoken));
        }
        link.connection.borrow().deadline.set(due, context.waker());
        Poll::Pending
    })
    .await
}

struct Driver {
    link: Rc<ClientH2Connection>,
    library: Library,
    /// Window of each stream in bytes, as SETTINGS have announced it.
    announced_window: u32,
    /// As they are while there is room, and what they come to.
    window: u32,
    together: u32,
    /// Milliseconds on the core's clock: since when the client's socket takes nothing.
    stalled: Option<u64>,
    /// The last GOAWAY is on its way: by then it is to be over.
    closing: Option<u64>,
    /// The first GOAWAY of the drain was said, in milliseconds on the core's clock.
    draining: Option<u64>,
    /// When it is to be said, once that is known.
    leaves_at: Option<u64>,
    rested: bool,
}

impl Driver {
    fn new(link: Rc<ClientH2Connection>, library: Library) -> Driver {
        let (window, together) = (link.limits.initial_window, connection_window(&link.limits));
        link.connection.borrow().deadline.rest();
        let announced_window = link.first_window;
        Driver {
            link,
            library,
            announced_window,
            window,
            together,
            stalled: None,
            closing: None,
            draining: None,
            leaves_at: None,
            rested: false,
        }
    }

    async fn run(mut self) -> End {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<End> {
        self.link.turn.set(0);
        loop {
            let over = self.poll_library(context);
            self.link.say();
            let flushed = self.link.poll_flush(context);
            match flushed {
                Poll::Ready(Err(_)) => return Poll::Ready(end_of_writing(&self.link)),
                Poll::Ready(Ok(())) => self.stalled = None,
                Poll::Pending => {
                    self.stalled.get_or_insert(self.link.core.timers.now());
                }
            }
            if over {
                return Poll::Ready(End::Spoken);
            }
            // The event that the library waited for has happened: nothing else would have it looked at again.
            if flushed.is_ready() && self.link.blocked.take() {
                continue;
            }
            match self.poll_limits(context) {
                Limit::Kept => return Poll::Pending,
                Limit::SaysGoodbye => {}
                Limit::Over(end) => return Poll::Ready(end),
            }
        }
    }

    /// Begins the streams that have come. True when the connection is over.
    fn poll_library(&mut self, context: &mut Context<'_>) -> bool {
        for _ in 0..STREAMS_PER_POLL_MAX {
            match self.library.poll_accept(context) {
                Poll::Pending => return false,
                Poll::Ready(None) => return true,
                Poll::Ready(Some(Ok((head, respond)))) => self.begin_stream(head, respond),
                Poll::Ready(Some(Err(error))) => {
                    if error.is_library() && error.reason() == Some(Reason::ENHANCE_YOUR_CALM) {
                        self.link.count_flood("library");
                    } else if error.is_library() && error.is_go_away() {
                        self.link.count_error(error.reason().unwrap_or(Reason::INTERNAL_ERROR));
                    }
                    log::debug!("{}: HTTP/2 ended: {error}", self.link.peer);
                    return true;
                }
            }
        }
        budget::spend(Budget::Streams, context);
        false
    }

    fn begin_stream(&mut self, head: http::Request<h2::RecvStream>, mut respond: SendResponse<Piece>) {
        let link = &self.link;
        let open = link.streams.get();
        if open >= link.limits.max_concurrent_streams as usize * TASKS_PER_STREAM {
            link.count_flood("streams");
            link.intake.borrow_mut().leaves(respond.stream_id().as_u32());
            respond.send_reset(Reason::REFUSED_STREAM);
            return;
        }
        {
            let mut intake = link.intake.borrow_mut();
            intake.serves(respond.stream_id().as_u32());
            link.count_untaken(&intake);
        }
        if open == 0 {
            link.connection.borrow().deadline.work();
        }
        link.streams.set(open + 1);
        link.active.set(link.core.timers.now());
        let ordinal = link.requests.get().saturating_add(1);
        link.requests.set(ordinal);
        if ordinal > 1 {
            link.core.handshake_limiter.note_request();
        }
        let metrics = &link.listener.metrics.http2;
        link.core.metrics.increment(metrics.streams_begun);
        link.core.metrics.raise(metrics.streams);
        self.rested = false;
        // Boxed: the runtime moves what it is given from place to place, and this is close to two kilobytes.
        spawn_local(Box::pin(h2_stream::serve(Rc::clone(link), ordinal, head, respond)));
    }

    fn poll_limits(&mut self, context: &mut Context<'_>) -> Limit {
        let link = Rc::clone(&self.link);
        let core = &link.core;
        let now = core.timers.now();
        if let Some(fault) = link.fault.get()
            && self.closing.is_none()
        {
            let reason = match fault {
                ConnectionFault::Flood(reason) => {
                    link.count_flood(reason);
                    Reason::ENHANCE_YOUR_CALM
                }
                ConnectionFault::Error(reason) => {
                    link.count_error(reason);
                    reason
                }
            };
            self.say_goodbye(reason, now);
            return Limit::SaysGoodbye;
        }
        let mut due = u64::MAX;
        if self.draining.is_none() && (core.is_leaving(&link.listener) || self.is_outdated() || link.is_wearing()) {
            let leaves_at = *self.leaves_at.get_or_insert_with(|| core.leaves_at());
            if now >= leaves_at {
                self.draining = Some(now);
                self.library.graceful_shutdown();
                return Limit::SaysGoodbye;
            }
            due = leaves_at;
        }
        if self.fit_windows() {
            return Limit::SaysGoodbye;
        }
        if link.paused.get() {
            // Nothing of it is read, so that nobody else would learn that its client has gone.
            if link.connection.borrow().stream.socket.has_departed(Departure::End) {
                return Limit::Over(End::Lost);
            }
            due = due.min(now + PAUSE_MILLIS);
        }
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
        if let Some(closing) = self.closing {
            if now >= closing {
                return Limit::Over(End::Spoken);
            }
            due = due.min(closing);
        } else if link.streams.get() == 0 {
            let quiet_due = match self.draining {
                // A request may be on its way that was sent before the client could know.
                Some(since) => link.active.get().max(since) + DRAIN_MILLIS,
                None => link.active.get() + idle,
            };
            if now >= quiet_due {
                if self.draining.is_none() {
                    link.count_timeout(if link.requests.get() == 0 { Wait::RequestHead } else { Wait::Idle });
                }
                self.say_goodbye(Reason::NO_ERROR, now);
                return Limit::SaysGoodbye;
            }
            // Memory or files are needed elsewhere.
            if link.connection.borrow().deadline.is_called() {
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

    /// Whether the listener's HTTP/2 terms differ from those agreed on when the connection began: the client has to
    /// reconnect.
    fn is_outdated(&self) -> bool {
        let link = &self.link;
        link.core.snapshot().listener(&link.listener).http2 != link.limits
    }

    /// When to look again.
    fn rest_when_quiet(&mut self, now: u64) -> u64 {
        if self.rested || self.link.facts.is_none() {
            return u64::MAX;
        }
        let rest_at = self.link.active.get() + REST_AFTER_MILLIS;
        if now < rest_at {
            return rest_at;
        }
        self.rested = true;
        if let Some(session) = &mut self.link.connection.borrow_mut().stream.tls {
            session.rest();
        }
        u64::MAX
    }

    /// Says GOAWAY for the last time; streams in progress end with it.
    fn say_goodbye(&mut self, reason: Reason, now: u64) {
        self.closing = Some(now + FAREWELL_MILLIS);
        self.library.abrupt_shutdown(reason);
    }

    /// Windows as wide as bodies are long and as there is room for. True when the client is to be told.
    fn fit_windows(&mut self) -> bool {
        let is_wider = self.widen();
        let window = self.window.min(self.link.core.uploads.width());
        // The library takes no other change while the last one has not been acknowledged: whatever comes next has it
        // asked again.
        if window == self.announced_window || self.library.set_initial_window_size(window).is_err() {
            return is_wider;
        }
        self.announced_window = window;
        true
    }

    /// Long bodies get wider windows: once four windows have gone on to servers, twice as much. True when the
    /// connection has one.
    fn widen(&mut self) -> bool {
        let uploaded = self.link.uploaded.get();
        if self.window >= self.link.limits.window_max
            || self.announced_window != self.window
            || uploaded < u64::from(self.window) * u64::from(WINDOWS_PER_WIDENING)
        {
            return false;
        }
        let wider = self.window.saturating_mul(2).min(self.link.limits.window_max);
        self.link.uploaded.set(0);
        let together = together(wider, &self.link.limits);
        let more = together - self.together;
        let widened = &self.link.core.widened;
        if widened.get() + u64::from(more) > CORE_WIDENED_BYTES_MAX {
            return false;
        }
        widened.set(widened.get() + u64::from(more));
        (self.window, self.together) = (wider, together);
        self.library.set_target_window_size(together);
        true
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let widened = &self.link.core.widened;
        widened.set(widened.get() - u64::from(self.together - connection_window(&self.link.limits)));
    }
}

/// Result of looking at the limits.
enum Limit {
    Kept,
    /// There is something for the library to say.
    SaysGoodbye,
    Over(End),
}

/// Sends what is staged and closes, listening for a moment longer: our last word must not be destroyed by a reset.
async fn farewell(link: &ClientH2Connection) {
    link.seal();
    let mut farewell = Farewell::begin(&mut link.connection.borrow_mut(), After::Linger);
    poll_fn(|context| farewell.poll(context, &mut link.connection.borrow_mut())).await;
}
