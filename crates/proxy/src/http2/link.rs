//! A connection of HTTP/2 with a client or a server, as its streams and its driver share it: what comes is put where
//! its stream's task finds it, and what tasks hand over is written as windows and turns allow.
//!
//! Each stream has one task, which asks here for what it waits for and is woken when that has happened, and the driver
//! has another, which alone reads and writes the socket.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use propylon_http::h2::hpack::BlockWriter;
use propylon_http::h2::{Connection, ConnectionFault, Ending, FieldWriter, Reason, Reset, Role, Sent, Stream, Terms};
use propylon_net::buffer::{Buffer, SEAL_BYTES_MAX};

use super::queue::BodyQueue;
use crate::services::{ReceivedHead, Services};

/// Bytes of a body that may wait for a peer's window or socket before more of it is read.
const PENDING_BYTES_MAX: usize = 32 * 1024;
/// Parts of a body from this length on are not copied to the output where that is not needed.
const BULK_BYTES_MIN: usize = 32 * 1024;
/// Output of a connection from which on nothing more is received from a client, and no stream is begun with a server.
const OUTPUT_BYTES_MAX: usize = 2 * SEAL_BYTES_MAX;
/// Output that a server has provoked and does not read, from which on nothing more is received from it.
const PROVOKED_BYTES_MAX: usize = 1024 * 1024;

/// Events that a stream's task waits for, as bits.
mod interest {
    /// Body bytes, their end, or a head.
    pub const RECEIVED: u8 = 1;
    /// Room for more of the body that is sent.
    pub const ROOM: u8 = 2;
    /// All of what was handed over is on its way.
    pub const EMPTY: u8 = 4;
    /// The end of the stream before its time.
    pub const GONE: u8 = 8;
    /// A window that is open, with nothing to be sent.
    pub const WINDOW: u8 = 16;
}

/// The streams of a connection.
pub type Streams = Connection<StreamState>;

/// Memory that the bodies of one connection take. What its streams still hold when they end is given back.
pub struct Accounts {
    services: Rc<Services>,
    /// Bytes of memory that bodies take which the peer has not read.
    unread: Cell<usize>,
    /// Bytes of bodies that the peer has sent and nobody has taken.
    untaken: Cell<u64>,
}

impl Accounts {
    /// Counts memory of bodies that a peer has not read.
    fn add_unread(&self, bytes: usize) {
        self.unread.set(self.unread.get() + bytes);
        self.services.unread.set(self.services.unread.get() + bytes);
    }

    fn remove_unread(&self, bytes: usize) {
        self.unread.set(self.unread.get() - bytes);
        self.services.unread.set(self.services.unread.get() - bytes);
    }
}

/// State of a stream that this side keeps.
pub struct StreamState {
    accounts: Rc<Accounts>,
    /// Body bytes that have come, and nobody has taken.
    received: BodyQueue,
    /// Bytes of them, and of those taken, whose window was not given back.
    untaken: u64,
    /// Lines of the trailers that have come.
    trailers: Option<Vec<u8>>,
    /// Body bytes to be sent, and lines of the trailers behind them.
    sending: BodyQueue,
    last_lines: Option<Vec<u8>>,
    waker: Option<Waker>,
    interest: u8,
    /// Heads of responses that have come, the oldest first.
    heads: VecDeque<Box<ReceivedHead>>,
}

impl StreamState {
    fn note_untaken(&mut self, bytes: u64) {
        self.untaken += bytes;
        self.accounts.untaken.set(self.accounts.untaken.get() + bytes);
    }

    fn note_taken(&mut self, bytes: u64) {
        let bytes = bytes.min(self.untaken);
        self.untaken -= bytes;
        self.accounts.untaken.set(self.accounts.untaken.get() - bytes);
    }

    fn drop_received(&mut self) {
        self.received.clear(&self.accounts.services.buffers);
        self.note_taken(self.untaken);
    }

    fn drop_sending(&mut self) {
        let freed = self.sending.clear(&self.accounts.services.buffers);
        self.accounts.remove_unread(freed);
    }

    fn wait(&mut self, interest: u8, context: &Context<'_>) {
        self.interest |= interest;
        match &mut self.waker {
            Some(known) => known.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
    }

    /// Wakes the stream's task where it waits for any of these.
    fn wake(&mut self, interest: u8) {
        if self.interest & interest != 0
            && let Some(waker) = self.waker.take()
        {
            self.interest = 0;
            waker.wake();
        }
    }
}

impl Drop for StreamState {
    fn drop(&mut self) {
        self.drop_received();
        self.drop_sending();
    }
}

/// A connection, as the tasks of its streams and its driver share it.
pub struct Link {
    pub services: Rc<Services>,
    pub h2: RefCell<Streams>,
    role: Role,
    /// Fault of the peer's that a stream's task has found, and for which the connection is to end.
    fault: Cell<Option<ConnectionFault>>,
    /// Waker of the driver, once it waits.
    driver: RefCell<Option<Waker>>,
    /// Bytes of output that what was received has provoked, since the output was empty last.
    provoked: Cell<usize>,
    /// A task waits for the peer to open a window.
    is_starved: Cell<bool>,
    accounts: Rc<Accounts>,
}

impl Link {
    pub fn new(services: &Rc<Services>, role: Role, terms: &Terms) -> Link {
        let accounts = Accounts { services: Rc::clone(services), unread: Cell::new(0), untaken: Cell::new(0) };
        Link {
            services: Rc::clone(services),
            h2: RefCell::new(Connection::new(role, terms)),
            role,
            fault: Cell::new(None),
            driver: RefCell::default(),
            provoked: Cell::new(0),
            is_starved: Cell::new(false),
            accounts: Rc::new(accounts),
        }
    }

    /// State of a stream that begins.
    pub fn state(&self) -> StreamState {
        StreamState {
            accounts: Rc::clone(&self.accounts),
            received: BodyQueue::default(),
            untaken: 0,
            trailers: None,
            sending: BodyQueue::default(),
            last_lines: None,
            waker: None,
            interest: 0,
            heads: VecDeque::new(),
        }
    }

    /// Bytes of memory that bodies take which the peer has not read.
    pub fn unread(&self) -> usize {
        self.accounts.unread.get()
    }

    /// Bytes of bodies that the peer has sent and nobody has taken.
    pub fn untaken(&self) -> u64 {
        self.accounts.untaken.get()
    }

    /// Has the driver woken when there is something to be written.
    pub fn set_driver(&self, context: &Context<'_>) {
        let mut driver = self.driver.borrow_mut();
        match &mut *driver {
            Some(known) => known.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
    }

    /// Wakes the driver.
    pub fn wake_driver(&self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    /// Wakes the driver where there is something for it to write.
    fn wake_if_output(&self, h2: &Streams) {
        if !h2.output().is_empty() || h2.has_data() {
            self.wake_driver();
        }
    }

    /// Fault that a stream's task has found.
    pub fn fault(&self) -> Option<ConnectionFault> {
        self.fault.get()
    }

    /// Whether a server has provoked so much that nothing more is to be received. A server's answers are taken though
    /// requests fill the connection: two peers that both wait for the other to read would wait for ever.
    pub fn is_flooded(&self) -> bool {
        self.provoked.get() >= PROVOKED_BYTES_MAX
    }

    /// Counts output that was provoked by what was received.
    pub fn note_provoked(&self, bytes: usize) {
        self.provoked.set(self.provoked.get() + bytes);
    }

    /// All of the output is on its way.
    pub fn note_flushed(&self) {
        self.provoked.set(0);
    }

    /// Whether so much waits to be written that nothing more is to be received from a client, or asked of a server.
    pub fn is_full(&self) -> bool {
        self.h2.borrow().output().len() >= OUTPUT_BYTES_MAX
    }

    /// Writes what streams have to send into the connection's output, as much as is sealed at one go.
    pub fn write_bodies(&self, h2: &mut Streams) {
        while let Some(room) = SEAL_BYTES_MAX.checked_sub(h2.output().len()) {
            let sent = h2.write_data(room, |state, count, out| {
                let freed = state.sending.copy_out(count, &self.services.buffers, out);
                state.accounts.remove_unread(freed);
            });
            let Some(sent) = sent else { return };
            self.note_sent(h2, sent);
        }
    }

    /// Hands one DATA frame of the stream whose turn it is, of `room` bytes at most, to `send`, past the output, which
    /// must be empty. False where nothing may be sent.
    pub fn send_body(&self, h2: &mut Streams, room: usize, send: impl FnOnce(&[u8])) -> bool {
        let sent = h2.send_data(room, |state, header, count| {
            let mut scratch = self.services.scratch.borrow_mut();
            let freed = state.sending.send_out((&header, count), &self.services.buffers, &mut scratch, send);
            state.accounts.remove_unread(freed);
        });
        sent.is_some_and(|sent| {
            self.note_sent(h2, sent);
            true
        })
    }

    fn note_sent(&self, h2: &mut Streams, sent: Sent) {
        let Some(stream) = h2.stream_mut(sent.stream) else { return };
        let is_roomy = stream.pending() <= PENDING_BYTES_MAX;
        let empty = if sent.is_drained { interest::EMPTY } else { 0 };
        stream.data.wake(if is_roomy { interest::ROOM | empty } else { empty });
        if sent.is_drained && stream.data.last_lines.is_some() {
            self.send_trailers(h2, sent.stream);
        }
    }

    fn send_trailers(&self, h2: &mut Streams, id: u32) {
        let lines = h2.stream_mut(id).and_then(|stream| stream.data.last_lines.take()).unwrap_or_default();
        let mut recurring = self.services.recurring.borrow_mut();
        h2.send_head(id, (true, true), &mut recurring, |fields| fields.lines(&lines));
    }

    /// Body bytes of a stream have come, and `ahead` bytes with them that may be of the same body.
    pub fn received(&self, h2: &mut Streams, id: u32, bytes: &[u8], ahead: usize) {
        let Some(stream) = h2.stream_mut(id) else { return };
        stream.data.received.push(bytes, ahead, &self.services.buffers);
        stream.data.note_untaken(bytes.len() as u64);
        stream.data.wake(interest::RECEIVED);
    }

    /// Trailers of a stream have come, as lines.
    pub fn received_trailers(&self, h2: &mut Streams, id: u32, lines: Vec<u8>) {
        if let Some(stream) = h2.stream_mut(id) {
            stream.data.trailers = Some(lines);
            stream.data.wake(interest::RECEIVED);
        }
    }

    /// Heads of a stream that wait for its task.
    pub fn waiting_heads(&self, h2: &Streams, id: u32) -> usize {
        h2.stream(id).map_or(0, |stream| stream.data.heads.len())
    }

    /// The head of a response has come.
    pub fn received_head(&self, h2: &mut Streams, id: u32, head: Box<ReceivedHead>) {
        if let Some(stream) = h2.stream_mut(id) {
            stream.data.heads.push_back(head);
            stream.data.wake(interest::RECEIVED);
        }
    }

    /// A stream was reset, or has lost its connection.
    pub fn wake_stream(&self, h2: &mut Streams, id: u32) {
        if let Some(stream) = h2.stream_mut(id) {
            stream.data.drop_sending();
            stream.data.wake(u8::MAX);
        }
    }

    /// Streams may have been reset: their tasks hear of it.
    pub fn wake_reset(&self, h2: &mut Streams) {
        let reset = h2.streams().filter(|stream| stream.reset().is_some()).map(Stream::id);
        let reset: Vec<u32> = reset.collect();
        reset.into_iter().for_each(|id| self.wake_stream(h2, id));
    }

    /// Wakes the tasks that wait until more of their bodies would go out at once, where it would.
    pub fn wake_starved(&self, h2: &mut Streams) {
        if !self.is_starved.take() {
            return;
        }
        let starved = h2.streams().filter(|stream| stream.data.interest & interest::WINDOW != 0).map(Stream::id);
        let starved: Vec<u32> = starved.collect();
        for id in starved {
            match room(h2, id) > 0 {
                true => h2.stream_mut(id).into_iter().for_each(|stream| stream.data.wake(interest::WINDOW)),
                false => self.is_starved.set(true),
            }
        }
    }

    /// The connection has ended: all of its streams' tasks hear of it.
    pub fn lose(&self) {
        let mut h2 = self.h2.borrow_mut();
        h2.lose();
        let streams: Vec<u32> = h2.streams().map(Stream::id).collect();
        streams.into_iter().for_each(|id| self.wake_stream(&mut h2, id));
    }
}

/// Whether a stream was reset for what is wrong with its message. Frames behind the end of a message leave that whole.
fn is_malformed(stream: &Stream<StreamState>) -> bool {
    let is_behind_the_end = |reason| reason == Reason::STREAM_CLOSED && stream.is_received();
    matches!(stream.reset(), Some(Reset::ForError(reason)) if !is_behind_the_end(reason))
}

/// Bytes of a stream's body that would go out at once.
fn room(h2: &Streams, id: u32) -> usize {
    h2.room(id).min(SEAL_BYTES_MAX.saturating_sub(h2.output().len()))
}

/// Questions and orders of a stream's task.
impl Link {
    /// Why the stream was broken off, if it was; also when it is gone.
    pub fn reset_of(&self, id: u32) -> Option<Reset> {
        self.h2.borrow().stream(id).map_or(Some(Reset::ConnectionLost), Stream::reset)
    }

    /// Ready when the stream is broken off.
    pub fn poll_reset(&self, id: u32, context: &Context<'_>) -> Poll<Reset> {
        let mut h2 = self.h2.borrow_mut();
        let Some(stream) = h2.stream_mut(id) else { return Poll::Ready(Reset::ConnectionLost) };
        match stream.reset() {
            Some(reset) => Poll::Ready(reset),
            None => {
                stream.data.wait(interest::GONE, context);
                Poll::Pending
            }
        }
    }

    /// Ready when a head, body bytes or their end are there, or the stream is broken off.
    pub fn poll_received(&self, id: u32, context: &Context<'_>) -> Poll<()> {
        let mut h2 = self.h2.borrow_mut();
        let Some(stream) = h2.stream_mut(id) else { return Poll::Ready(()) };
        let is_ready = !stream.data.heads.is_empty()
            || !stream.data.received.is_empty()
            || stream.is_received()
            || stream.reset().is_some();
        if is_ready {
            return Poll::Ready(());
        }
        stream.data.wait(interest::RECEIVED | interest::GONE, context);
        Poll::Pending
    }

    /// The next body bytes, so many at most, `None` behind the last of them.
    ///
    /// # Errors
    /// The stream was broken off. What a server has sent before it broke off comes first; a client's reset is the end
    /// of everything.
    pub fn poll_data(&self, id: u32, most: usize, context: &Context<'_>) -> Poll<Result<Option<Buffer>, Reset>> {
        let mut h2 = self.h2.borrow_mut();
        let Some(stream) = h2.stream_mut(id) else { return Poll::Ready(Err(Reset::ConnectionLost)) };
        if let Some(buffer) = stream.data.received.pop(most, &self.services.buffers) {
            return Poll::Ready(Ok(Some(buffer)));
        }
        match stream.reset() {
            // A malformed message is not whole, whoever has ended it.
            Some(reset) if is_malformed(stream) => return Poll::Ready(Err(reset)),
            _ if stream.is_received() => return Poll::Ready(Ok(None)),
            Some(reset) => return Poll::Ready(Err(reset)),
            None => {}
        }
        stream.data.wait(interest::RECEIVED | interest::GONE, context);
        Poll::Pending
    }

    /// Bytes that are left of a body without trailers all of which is here.
    pub fn whole_body(&self, id: u32) -> Option<usize> {
        let h2 = self.h2.borrow();
        let is_whole = |stream: &&Stream<StreamState>| {
            stream.is_received() && stream.data.trailers.is_none() && !is_malformed(stream)
        };
        let stream = h2.stream(id).filter(is_whole);
        stream.map(|stream| stream.data.received.len())
    }

    /// Ready when all of a body has come, trailers included, or so many bytes of it, or its stream is gone.
    pub fn poll_whole(&self, id: u32, most: usize, context: &mut Context<'_>) -> Poll<()> {
        let mut h2 = self.h2.borrow_mut();
        let Some(stream) = h2.stream_mut(id) else { return Poll::Ready(()) };
        if stream.is_received() || stream.reset().is_some() || stream.data.received.len() >= most {
            return Poll::Ready(());
        }
        stream.data.wait(interest::RECEIVED | interest::GONE, context);
        Poll::Pending
    }

    /// Whether all of a body without trailers has come and was taken.
    pub fn is_exhausted(&self, id: u32) -> bool {
        self.whole_body(id) == Some(0)
    }

    /// The head of a response that is next, if one has come.
    pub fn take_head(&self, id: u32) -> Option<Box<ReceivedHead>> {
        self.h2.borrow_mut().stream_mut(id).and_then(|stream| stream.data.heads.pop_front())
    }

    /// Whether body bytes, or their end, are there.
    pub fn has_received(&self, id: u32) -> bool {
        let h2 = self.h2.borrow();
        h2.stream(id).is_some_and(|stream| !stream.data.received.is_empty() || stream.is_received())
    }

    /// Whether body bytes are here.
    pub fn has_data(&self, id: u32) -> bool {
        self.h2.borrow().stream(id).is_some_and(|stream| !stream.data.received.is_empty())
    }

    /// Whether the end of a body is here, and nothing before it.
    pub fn has_end(&self, id: u32) -> bool {
        let h2 = self.h2.borrow();
        h2.stream(id).is_some_and(|stream| stream.data.received.is_empty() && stream.is_received())
    }

    /// Whether the peer's message is whole, or its stream closed.
    pub fn has_ended(&self, id: u32) -> bool {
        self.h2.borrow().stream(id).is_none_or(|stream| stream.is_received() || stream.reset().is_some())
    }

    /// Says how long the body of a message is: 0 where there can be none. A stream on which it is not is reset.
    pub fn expect(&self, id: u32, bytes: u64) {
        let mut h2 = self.h2.borrow_mut();
        if let Err(fault) = h2.expect(id, bytes) {
            self.fault.set(Some(fault));
            self.wake_driver();
        }
        self.wake_if_output(&h2);
    }

    /// Wants a stream's window to be so wide.
    pub fn set_window(&self, id: u32, bytes: u32) {
        let mut h2 = self.h2.borrow_mut();
        h2.set_window(id, bytes);
        self.wake_if_output(&h2);
    }

    /// Lines of the trailers that have come.
    pub fn take_trailers(&self, id: u32) -> Option<Vec<u8>> {
        self.h2.borrow_mut().stream_mut(id).and_then(|stream| stream.data.trailers.take())
    }

    /// Body bytes have gone on: the peer may send as many anew.
    pub fn release(&self, id: u32, bytes: usize) {
        let mut h2 = self.h2.borrow_mut();
        if let Some(stream) = h2.stream_mut(id) {
            stream.data.note_taken(bytes as u64);
        }
        h2.release(id, bytes);
        self.wake_if_output(&h2);
    }

    /// Begins a stream, with a request's head of which `write` writes the fields. `None` where the peer takes no more.
    pub fn open_stream(&self, end: bool, write: impl FnOnce(&mut BlockWriter<'_>)) -> Option<u32> {
        let mut h2 = self.h2.borrow_mut();
        let (now, state) = (self.services.timers.now(), self.state());
        let id = h2.open_stream((end, now, state), &mut self.services.recurring.borrow_mut(), write);
        self.wake_if_output(&h2);
        id
    }

    /// Sends a head, of which `write` writes the fields: an interim one or the last. False where the stream is closed.
    pub fn send_head(&self, id: u32, (is_last, end): (bool, bool), write: impl FnOnce(&mut BlockWriter<'_>)) -> bool {
        let mut h2 = self.h2.borrow_mut();
        let is_sent = h2.send_head(id, (is_last, end), &mut self.services.recurring.borrow_mut(), write);
        self.wake_if_output(&h2);
        is_sent
    }

    /// Hands over a part of a body, the last of it if it `ends`; `lines` are the trailers behind that, empty for none.
    /// False where the stream is closed.
    pub fn send_data(&self, id: u32, data: Option<Buffer>, end: Option<Vec<u8>>) -> bool {
        let mut h2 = self.h2.borrow_mut();
        let Some(stream) = h2.stream_mut(id) else { return false };
        let ending = match &end {
            None => Ending::Open,
            Some(lines) if lines.is_empty() => Ending::Data,
            Some(_) => Ending::Trailers,
        };
        if stream.reset().is_some() || stream.is_sent() {
            return false;
        }
        stream.data.last_lines = end.filter(|lines| !lines.is_empty());
        let bytes = data.as_ref().map_or(0, Buffer::len);
        if let Some(buffer) = data {
            self.accounts.add_unread(buffer.capacity());
            stream.data.sending.push_buffer(buffer);
        }
        let has_nothing = stream.pending() + bytes == 0;
        h2.offer(id, bytes, ending);
        if has_nothing && ending == Ending::Trailers {
            self.send_trailers(&mut h2, id);
        }
        // The driver takes much from where it lies.
        if bytes < BULK_BYTES_MIN || self.role == Role::Client {
            self.write_bodies(&mut h2);
        }
        self.wake_if_output(&h2);
        true
    }

    /// Bytes handed over that no window has had room for.
    pub fn pending(&self, id: u32) -> usize {
        self.h2.borrow().stream(id).map_or(0, Stream::pending)
    }

    /// Ready when so little waits to be sent that more is worth handing over.
    pub fn poll_room(&self, id: u32, context: &Context<'_>) -> Poll<()> {
        let is_roomy = |h2: &Streams| h2.stream(id).is_none_or(|stream| stream.pending() <= PENDING_BYTES_MAX);
        self.poll_until(id, is_roomy, interest::ROOM, context)
    }

    /// Ready when nothing waits to be sent.
    pub fn poll_empty(&self, id: u32, context: &Context<'_>) -> Poll<()> {
        let is_empty = |h2: &Streams| h2.stream(id).is_none_or(|stream| stream.pending() == 0);
        self.poll_until(id, is_empty, interest::EMPTY, context)
    }

    /// Bytes that would go out at once.
    pub fn room(&self, id: u32) -> usize {
        room(&self.h2.borrow(), id)
    }

    /// Ready when more would go out at once.
    pub fn poll_window(&self, id: u32, context: &Context<'_>) -> Poll<()> {
        let polled = self.poll_until(id, |h2| room(h2, id) > 0, interest::WINDOW, context);
        if polled.is_pending() {
            self.is_starved.set(true);
        }
        polled
    }

    fn poll_until(&self, id: u32, is_due: impl Fn(&Streams) -> bool, interest: u8, context: &Context<'_>) -> Poll<()> {
        let mut h2 = self.h2.borrow_mut();
        if is_due(&h2) {
            return Poll::Ready(());
        }
        match h2.stream_mut(id).filter(|stream| !stream.is_closed()) {
            Some(stream) => {
                stream.data.wait(interest | interest::GONE, context);
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }

    /// Breaks the stream off.
    pub fn reset(&self, id: u32, reason: Reason) {
        let mut h2 = self.h2.borrow_mut();
        h2.reset(id, reason);
        self.wake_stream(&mut h2, id);
        self.wake_if_output(&h2);
    }

    /// The stream's task has ended.
    pub fn forget(&self, id: u32) {
        let mut h2 = self.h2.borrow_mut();
        if let Some(stream) = h2.stream_mut(id) {
            stream.data.drop_received();
            (stream.data.waker, stream.data.interest) = (None, 0);
        }
        h2.forget(id);
        match h2.is_discarding() {
            // The driver sees to it that the rest of a body comes to an end.
            true => self.wake_driver(),
            false => self.wake_if_output(&h2),
        }
    }
}
