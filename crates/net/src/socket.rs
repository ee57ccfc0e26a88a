//! A TCP socket that asks the kernel first and the event loop only when it has to wait.
//!
//! A connection that is served at once (accept, read, write, close) never meets epoll at all: it is registered at its
//! first wait. A read that fills less than it was given tells that the kernel has no more, so the next wait costs no
//! read that fails (edge-triggered epoll reports whatever comes later; tokio's streams know this too).
//!
//! Whatever a socket does is paid for out of its task's budget (`budget.rs`), whether the event loop knows it or not.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use propylon_sys::Pipe;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};

use crate::budget;
use crate::resting::{Place, RestingList};

pub struct Socket(State);

/// The end of a peer that is waited for while nobody reads what it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The connection has failed: the peer has reset it.
    Reset,
    /// A reset, or the peer has said that it sends no more (FIN).
    End,
}

impl Departure {
    /// As the kernel knows it: before the event loop does, perhaps. One system call.
    fn is_seen(self, stream: impl AsFd) -> bool {
        match self {
            Departure::Reset => propylon_sys::peek_reset(stream),
            Departure::End => propylon_sys::peek_ended(stream),
        }
    }

    fn interest(self) -> Interest {
        match self {
            Departure::Reset => Interest::ERROR,
            // The event loop has no word for an end alone. Waits for urgent data hear of it, and of nothing else here.
            Departure::End => Interest::ERROR.add(Interest::PRIORITY),
        }
    }
}

enum State {
    Fresh(TcpStream),
    Registered(tokio::net::TcpStream),
    /// Quiet for a while: what comes is told to the owner's deadline, and not by the event loop.
    Resting(Resting),
    /// A write has met the peer's reset, or that the peer is not there any more, which the kernel tells once: what a read
    /// takes for an end then is none. Behind
    /// the peer's end it would have been a broken pipe (tcp(7)). Boxed, so that sockets that meet none are not larger.
    Reset(Box<tokio::net::TcpStream>),
    /// Nobody wants to read what has come, but the peer's departure is waited for.
    Watched(Box<Watch>),
    /// Only while moving from one to the other, and after a failed registration.
    Gone,
}

struct Resting {
    stream: TcpStream,
    place: Place,
}

/// A wait for a departure alone: a socket with something to be read is always readable to the event loop.
struct Watch {
    /// Absent once it has come: a wait that is over may be asked for again, by whoever waits next.
    departed: Option<Pin<Box<dyn Future<Output = io::Result<Ready>> + Send>>>,
    stream: Arc<tokio::net::TcpStream>,
}

impl Watch {
    fn new(stream: tokio::net::TcpStream, departure: Departure) -> Watch {
        let stream = Arc::new(stream);
        let watched = Arc::clone(&stream);
        Watch { departed: Some(Box::pin(async move { watched.ready(departure.interest()).await })), stream }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(departed) = &mut self.departed {
            drop(ready!(departed.as_mut().poll(context)));
            self.departed = None;
        }
        Poll::Ready(())
    }

    /// The stream, which nobody else has.
    fn end(self) -> Option<tokio::net::TcpStream> {
        drop(self.departed);
        Arc::into_inner(self.stream)
    }
}

impl Socket {
    /// `stream` must be non-blocking.
    pub fn new(stream: TcpStream) -> Socket {
        Socket(State::Fresh(stream))
    }

    /// Lets the event loop forget the socket until something comes: `list` then wakes the owner of the deadline `id`,
    /// or has it resumed. To be called where nothing waits for the socket to take bytes; an owner that goes on
    /// waiting is to keep a waker in that deadline. False where the socket cannot rest: its owner has to wait for it
    /// anew.
    pub fn rest(&mut self, list: &RestingList, id: u32) -> bool {
        if let State::Registered(_) = self.0
            && self.leave_event_loop().is_ok()
            && let State::Fresh(stream) = std::mem::replace(&mut self.0, State::Gone)
        {
            self.0 = match list.add(&stream, id) {
                Ok(place) => State::Resting(Resting { stream, place }),
                Err(_) => State::Fresh(stream),
            };
        }
        self.is_resting()
    }

    pub fn is_resting(&self) -> bool {
        matches!(self.0, State::Resting(_))
    }

    /// Ends the rest if something has come. (One that waits to read meets nothing else here.)
    fn poll_roused(&mut self) -> Poll<()> {
        if let State::Resting(resting) = &self.0
            && !propylon_sys::peek_readable(&resting.stream)
        {
            return Poll::Pending;
        }
        self.rouse();
        Poll::Ready(())
    }

    #[cold]
    fn rouse(&mut self) {
        if let State::Resting(_) = self.0
            && let State::Resting(resting) = std::mem::replace(&mut self.0, State::Gone)
        {
            resting.place.leave(&resting.stream);
            self.0 = State::Fresh(resting.stream);
        }
    }

    pub fn poll_read(&mut self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        if self.is_resting() {
            ready!(self.poll_roused());
        }
        if let State::Fresh(stream) = &mut self.0 {
            let unit = ready!(budget::poll_unit(context));
            match stream.read(into) {
                Err(error) if must_wait(&error) => {}
                done => {
                    unit.made_progress();
                    return budget::charged(context, Poll::Ready(done));
                }
            }
        }
        if let State::Registered(stream) = &self.0 {
            let unit = ready!(budget::poll_unit(context));
            if let Some(done) = read_now(stream, into) {
                unit.made_progress();
                return budget::charged(context, Poll::Ready(done));
            }
        }
        let mut into = ReadBuf::new(into);
        let read = Pin::new(self.registered(context)?).poll_read(context, &mut into);
        let read = read.map_ok(|()| into.filled().len());
        budget::charged(context, self.note_read(read))
    }

    /// As [`Socket::poll_read`], for when nothing can have come yet: the event loop says when to try.
    pub fn poll_read_later(&mut self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.registered(context)?;
        self.poll_read(context, into)
    }

    pub fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let State::Fresh(stream) | State::Resting(Resting { stream, .. }) = &mut self.0 {
            let unit = ready!(budget::poll_unit(context));
            match stream.write(bytes) {
                Err(error) if must_wait(&error) => {}
                done => {
                    unit.made_progress();
                    let written = self.note_written(Poll::Ready(done), context);
                    return budget::charged(context, written);
                }
            }
        }
        if let State::Registered(stream) = &self.0 {
            let unit = ready!(budget::poll_unit(context));
            if let Some(done) = write_now(stream, bytes) {
                unit.made_progress();
                let written = self.note_written(Poll::Ready(done), context);
                return budget::charged(context, written);
            }
        }
        let written = Pin::new(self.registered(context)?).poll_write(context, bytes);
        let written = self.note_written(written, context);
        budget::charged(context, written)
    }

    pub fn poll_write_vectored(
        &mut self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [one] = slices {
            return self.poll_write(context, one);
        }
        if let State::Fresh(stream) | State::Resting(Resting { stream, .. }) = &mut self.0 {
            let unit = ready!(budget::poll_unit(context));
            match stream.write_vectored(slices) {
                Err(error) if must_wait(&error) => {}
                done => {
                    unit.made_progress();
                    let written = self.note_written(Poll::Ready(done), context);
                    return budget::charged(context, written);
                }
            }
        }
        let written = Pin::new(self.registered(context)?).poll_write_vectored(context, slices);
        let written = self.note_written(written, context);
        budget::charged(context, written)
    }

    /// Moves up to `most` of what has come into an empty pipe, without a copy. 0 is the end.
    pub fn poll_fill_pipe(
        &mut self,
        context: &mut Context<'_>,
        pipe: &mut Pipe,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        let stream = self.registered(context)?;
        loop {
            ready!(stream.poll_read_ready(context))?;
            match stream.try_io(Interest::READABLE, || pipe.fill(stream.as_fd(), most)) {
                Err(error) if must_wait(&error) => {}
                done => return budget::charged(context, self.note_read(Poll::Ready(done))),
            }
        }
    }

    /// Moves what a pipe holds on its way to the peer, as much as the kernel takes.
    pub fn poll_drain_pipe(&mut self, context: &mut Context<'_>, pipe: &mut Pipe) -> Poll<io::Result<usize>> {
        let stream = self.registered(context)?;
        loop {
            ready!(stream.poll_write_ready(context))?;
            match stream.try_io(Interest::WRITABLE, || pipe.drain(stream.as_fd())) {
                Err(error) if must_wait(&error) => {}
                done => {
                    let written = self.note_written(Poll::Ready(done), context);
                    return budget::charged(context, written);
                }
            }
        }
    }

    /// Tells the event loop where nothing more is to be read: a splice that takes all there is does not, and whoever
    /// asks whether the socket is quiet would be told that it is not. True when there is a byte. One system call.
    pub fn settle(&mut self) -> bool {
        let State::Registered(stream) = &self.0 else { return self.is_resting() && self.has_news() };
        stream.try_io(Interest::READABLE, || propylon_sys::peek(stream)).is_ok_and(|count| count > 0)
    }

    /// Address that the client has connected to.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        propylon_sys::local_address(self.fd()?)
    }

    /// Writes what the next write follows at once; both may go out together. Never waits.
    pub fn send_more(&self, bytes: &[u8]) -> io::Result<usize> {
        propylon_sys::send_more(self.fd()?, bytes)
    }

    /// Waits until there is something to read (or an end, or an error), without a buffer to read it into.
    pub fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_resting() {
            return self.poll_roused().map(Ok);
        }
        let stream = self.registered(context)?;
        // A look at what the event loop knows is a fifth of a poll, and pays for no operation, which comes next.
        match stream.try_io(Interest::READABLE, || Ok(())) {
            Ok(()) if !budget::is_spent() => Poll::Ready(Ok(())),
            // With the budget spent the operation would have to wait: whoever goes from one to the other would never
            // let go of the core.
            _ => stream.poll_read_ready(context),
        }
    }

    /// Waits until a connect that was started has come to its end, and says which.
    pub fn poll_connected(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.registered(context)?;
        ready!(stream.poll_write_ready(context))?;
        Poll::Ready(propylon_sys::connect_result(&*stream))
    }

    /// True when nothing has come since the last read: no byte, no end, no error. Asks the event loop, not the kernel,
    /// and lets go of the waker of whoever waited last.
    pub fn is_quiet(&mut self) -> bool {
        match &self.0 {
            // With the budget spent the runtime answers nothing but that.
            State::Registered(_) if budget::is_spent() => self.is_still_quiet(),
            State::Registered(stream) => stream.poll_read_ready(&mut Context::from_waker(Waker::noop())).is_pending(),
            State::Fresh(stream) => !propylon_sys::peek_closed(stream),
            State::Resting(resting) => !propylon_sys::peek_readable(&resting.stream),
            State::Reset(_) | State::Watched(_) | State::Gone => false,
        }
    }

    /// As [`Socket::is_quiet`], and lets go of nothing: for a socket that was asked before and has had no reader since.
    pub fn is_still_quiet(&self) -> bool {
        match &self.0 {
            State::Registered(stream) => stream.try_io(Interest::READABLE, || Ok(())).is_err(),
            State::Fresh(stream) => !propylon_sys::peek_closed(stream),
            State::Resting(resting) => !propylon_sys::peek_readable(&resting.stream),
            State::Reset(_) | State::Watched(_) | State::Gone => false,
        }
    }

    /// True when the kernel has something that nobody has read: a byte, an end, an error. One system call.
    pub fn has_news(&self) -> bool {
        self.fd().map_or(true, propylon_sys::peek_closed)
    }

    /// Ready when the peer has reset the connection, whatever it has sent before. An end that the peer announced (FIN) is none:
    /// it may have closed its sending half only. Nothing is read.
    pub fn poll_reset(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.poll_departed(context, Departure::Reset)
    }

    /// Ready when the peer has departed, whatever it has sent before. Nothing is read.
    pub fn poll_departed(&mut self, context: &mut Context<'_>, departure: Departure) -> Poll<()> {
        match &mut self.0 {
            State::Watched(watch) => return watch.poll(context),
            State::Reset(_) => return Poll::Ready(()),
            // The list tells of whatever comes, be it read or not.
            State::Resting(resting) if departure.is_seen(&resting.stream) => return Poll::Ready(()),
            State::Resting(_) => return Poll::Pending,
            _ => {}
        }
        let Ok(stream) = self.registered(context) else { return Poll::Ready(()) };
        match stream.poll_read_ready(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(_)) => Poll::Ready(()),
            // The event loop's word will do for who waits: what the kernel alone knows comes with its next turn.
            Poll::Ready(Ok(())) if stream.try_io(departure.interest(), || Ok(())).is_ok() => Poll::Ready(()),
            Poll::Ready(Ok(())) => {
                if let State::Registered(stream) = std::mem::replace(&mut self.0, State::Gone) {
                    self.0 = State::Watched(Box::new(Watch::new(stream, departure)));
                }
                self.poll_departed(context, departure)
            }
        }
    }

    /// As [`Socket::poll_departed`], as the kernel knows it: before the event loop does, perhaps. One system call.
    pub fn has_departed(&self, departure: Departure) -> bool {
        matches!(self.0, State::Reset(_)) || self.fd().map_or(true, |stream| departure.is_seen(stream))
    }

    /// Lets go of the event loop that knows it, if one does: another core's will know it at its next wait.
    pub fn leave_event_loop(&mut self) -> io::Result<()> {
        self.unwatch();
        self.rouse();
        match std::mem::replace(&mut self.0, State::Gone) {
            State::Registered(stream) => self.0 = State::Fresh(stream.into_std()?),
            State::Reset(_) => return Err(io::ErrorKind::ConnectionReset.into()),
            other => self.0 = other,
        }
        Ok(())
    }

    /// The stream, of which no event loop knows any more. What stays behind answers with errors, and where this fails
    /// as well.
    pub fn into_stream(&mut self) -> io::Result<TcpStream> {
        self.leave_event_loop()?;
        match std::mem::replace(&mut self.0, State::Gone) {
            State::Fresh(stream) => Ok(stream),
            _ => Err(gone()),
        }
    }

    /// Moves the socket out; what stays behind answers with errors.
    pub fn take(&mut self) -> Socket {
        Socket(std::mem::replace(&mut self.0, State::Gone))
    }

    pub fn shutdown_write(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(self.fd()?, rustix::net::Shutdown::Write)?)
    }

    /// Without Nagle's delay, where [`propylon_sys::connect_to_write_once`] has left it on.
    pub fn set_nodelay(&self) -> io::Result<()> {
        propylon_sys::set_nodelay(self.fd()?)
    }

    /// Bytes that were written and the peer has not acknowledged; none where that cannot be told.
    pub fn unacknowledged(&self) -> u32 {
        self.fd().and_then(propylon_sys::unacknowledged).unwrap_or(0)
    }

    /// Makes the close a reset: the peer learns that what it got is not all.
    pub fn reset_on_close(&self) -> io::Result<()> {
        propylon_sys::reset_on_close(self.fd()?)
    }

    fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        match &self.0 {
            State::Fresh(stream) | State::Resting(Resting { stream, .. }) => Ok(stream.as_fd()),
            State::Registered(stream) => Ok(stream.as_fd()),
            State::Reset(stream) => Ok(stream.as_fd()),
            State::Watched(watch) => Ok(watch.stream.as_fd()),
            State::Gone => Err(gone()),
        }
    }

    /// Somebody wants more of it than to know of its peer's departure.
    fn unwatch(&mut self) {
        if let State::Watched(_) = self.0
            && let State::Watched(watch) = std::mem::replace(&mut self.0, State::Gone)
        {
            self.0 = watch.end().map_or(State::Gone, State::Registered);
        }
    }

    /// The stream as the event loop knows it, made known to it if need be.
    #[inline]
    fn registered(&mut self, context: &Context<'_>) -> io::Result<&mut tokio::net::TcpStream> {
        if !matches!(self.0, State::Registered(_) | State::Reset(_)) {
            self.register(context)?;
        }
        match &mut self.0 {
            State::Registered(stream) => Ok(stream),
            State::Reset(stream) => Ok(stream),
            _ => Err(gone()),
        }
    }

    /// Passes on the outcome of a read. An end behind a reset is the reset.
    #[inline]
    fn note_read(&self, read: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match (&read, &self.0) {
            (Poll::Ready(Ok(0)), State::Reset(_)) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            _ => read,
        }
    }

    /// Passes on the outcome of a write, and takes note of a reset, or of another end that the kernel tells once.
    #[inline]
    fn note_written(&mut self, written: Poll<io::Result<usize>>, context: &Context<'_>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Err(error)) = &written
            && is_end_of_connection(error.kind())
        {
            self.meet_reset(context);
        }
        written
    }

    #[cold]
    fn meet_reset(&mut self, context: &Context<'_>) {
        // A socket that cannot be registered answers with errors from here on, as it should.
        let _ = self.registered(context);
        self.0 = match std::mem::replace(&mut self.0, State::Gone) {
            State::Registered(stream) => State::Reset(Box::new(stream)),
            other => other,
        };
    }

    #[cold]
    fn register(&mut self, context: &Context<'_>) -> io::Result<()> {
        self.unwatch();
        if self.is_resting() {
            self.rouse();
            // A task that waits to read it was told that the rest would end first.
            context.waker().wake_by_ref();
        }
        if let State::Fresh(_) = self.0
            && let State::Fresh(stream) = std::mem::replace(&mut self.0, State::Gone)
        {
            self.0 = State::Registered(tokio::net::TcpStream::from_std(stream)?);
        }
        Ok(())
    }
}

/// Reads where the event loop knows of something to be read, which it is asked by a look: a poll would leave a waker
/// for the case that there is nothing. `None` in that case. A read that fills less than it was given has taken all
/// there is, of which the event loop is told as if the read had failed: it knows no other word for it.
fn read_now(stream: &tokio::net::TcpStream, into: &mut [u8]) -> Option<io::Result<usize>> {
    let most = into.len();
    let mut short = None;
    let read = stream.try_io(Interest::READABLE, || match propylon_sys::receive(stream, into)? {
        count if 0 < count && count < most => {
            short = Some(count);
            Err(io::ErrorKind::WouldBlock.into())
        }
        count => Ok(count),
    });
    outcome(read, short)
}

/// As [`read_now`], for a write: one that is cut short has filled all the room there is.
fn write_now(stream: &tokio::net::TcpStream, bytes: &[u8]) -> Option<io::Result<usize>> {
    let mut short = None;
    let written = stream.try_io(Interest::WRITABLE, || match propylon_sys::send_now(stream, bytes)? {
        count if 0 < count && count < bytes.len() => {
            short = Some(count);
            Err(io::ErrorKind::WouldBlock.into())
        }
        count => Ok(count),
    });
    outcome(written, short)
}

/// Outcome of an operation that has been tried; `None` if it has to be waited for.
fn outcome(tried: io::Result<usize>, short: Option<usize>) -> Option<io::Result<usize>> {
    match tried {
        Err(error) if must_wait(&error) => short.map(Ok),
        done => Some(done),
    }
}

fn must_wait(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Whether an error of a write says that the connection is over, where the next read would find an end. A broken pipe
/// is what a write meets behind the peer's end (tcp(7)).
fn is_end_of_connection(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{ConnectionReset, HostUnreachable, NetworkUnreachable, TimedOut};
    matches!(kind, ConnectionReset | HostUnreachable | NetworkUnreachable | TimedOut)
}

fn gone() -> io::Error {
    io::Error::other("the socket could not be registered with the event loop")
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::future::{Future, poll_fn};
    use std::net::TcpListener;

    use tokio::runtime::{Builder, LocalOptions};

    /// Runs a task as a core does, with the budget that each of its polls has.
    pub fn on_a_core<T: 'static>(task: impl Future<Output = T> + 'static) -> T {
        let runtime =
            Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).expect("a runtime");
        runtime.block_on(async { tokio::task::spawn_local(task).await.expect("no panic") })
    }

    pub fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let one = TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
        let (other, _) = listener.accept().expect("its other end");
        one.set_nonblocking(true).expect("a flag");
        other.set_nonblocking(true).expect("a flag");
        (one, other)
    }

    /// Operations and bytes of one poll of a task that goes on as long as its socket does.
    fn greed(
        mut socket: Socket,
        mut act: impl FnMut(&mut Socket, &mut Context<'_>) -> Poll<io::Result<usize>> + 'static,
    ) -> (u32, usize) {
        on_a_core(poll_fn(move |context| {
            let (mut times, mut moved) = (0, 0);
            while let Poll::Ready(count) = act(&mut socket, context) {
                times += 1;
                moved += count.expect("a socket that works");
            }
            Poll::Ready((times, moved))
        }))
    }

    #[test]
    fn a_socket_that_never_waits_leaves_its_task_to_others_all_the_same() {
        // Answers of a hundred bytes to a client that takes them all.
        let (one, other) = pair();
        std::thread::scope(|scope| {
            let taker = scope.spawn(move || {
                let (mut other, mut taken) = (other, 0);
                other.set_nonblocking(false).expect("a flag");
                while let Ok(count @ 1..) = other.read(&mut [0; 65536]) {
                    taken += count;
                }
                taken
            });
            let (times, moved) = greed(Socket::new(one), |socket, context| socket.poll_write(context, &[0; 100]));
            assert!(times <= 128, "{times} writes");
            assert_eq!(taker.join().expect("no panic"), moved);
        });
        // Reads of a byte, of which there are more than enough.
        let (one, mut other) = pair();
        other.write_all(&[0; 4096]).expect("room");
        let (times, _) = greed(Socket::new(one), |socket, context| socket.poll_read(context, &mut [0]));
        assert!((100..=128).contains(&times), "{times} reads");
    }

    #[test]
    fn a_departure_is_told_as_often_as_it_is_asked_for() {
        for departure in [Departure::Reset, Departure::End] {
            let (one, mut other) = pair();
            other.write_all(b"which nobody reads").expect("room");
            on_a_core(async move {
                let mut socket = Socket::new(one);
                poll_fn(|context| socket.poll_readable(context)).await.expect("bytes");
                let is_early =
                    poll_fn(|context| Poll::Ready(socket.poll_departed(context, departure).is_ready())).await;
                assert!(!is_early);
                propylon_sys::reset_on_close(&other).expect("a flag");
                drop(other);
                for _ in 0..3 {
                    poll_fn(|context| socket.poll_departed(context, departure)).await;
                }
            });
        }
    }

    #[test]
    fn a_task_that_has_spent_its_budget_is_not_told_of_what_it_may_not_read() {
        let (one, mut other) = pair();
        other.write_all(&[0; 4096]).expect("room");
        let mut socket = Socket::new(one);
        let mut reads = 0;
        // A reader that looks again whenever it is told of something, as a connection does between two requests.
        let turns = on_a_core(async move {
            let mut turns = 0;
            poll_fn(|context| socket.poll_readable(context)).await.expect("bytes");
            poll_fn(move |context| {
                turns += 1;
                while reads < 4096 {
                    match socket.poll_read(context, &mut [0]) {
                        Poll::Ready(count) => reads += count.expect("a byte"),
                        Poll::Pending if socket.poll_readable(context).is_pending() => return Poll::Pending,
                        Poll::Pending => assert!(!budget::is_spent(), "it would look for ever"),
                    }
                }
                Poll::Ready(turns)
            })
            .await
        });
        assert!(turns >= 4096 / 128, "{turns} polls");
    }

    #[test]
    fn the_end_behind_a_reset_that_a_write_has_met_is_the_reset() {
        for is_known in [false, true] {
            let (one, mut other) = pair();
            other.write_all(b"last words").expect("room");
            propylon_sys::reset_on_close(&other).expect("a flag");
            drop(other);
            on_a_core(async move {
                let mut socket = Socket::new(one);
                if is_known {
                    poll_fn(|context| socket.poll_readable(context)).await.expect("news");
                }
                let written = poll_fn(|context| socket.poll_write(context, b"bytes")).await;
                assert_eq!(written.expect_err("a reset").kind(), io::ErrorKind::ConnectionReset);
                assert!(!socket.is_still_quiet());
                poll_fn(|context| socket.poll_reset(context)).await;
                let mut heard = [0; 64];
                let ended = loop {
                    match poll_fn(|context| socket.poll_read(context, &mut heard)).await {
                        Ok(count) => assert!(count > 0, "an end"),
                        Err(error) => break error,
                    }
                };
                assert_eq!(ended.kind(), io::ErrorKind::ConnectionReset);
            });
        }
    }

    #[test]
    fn large_pieces_spend_the_budget_sooner() {
        for is_known in [false, true] {
            let (one, mut other) = pair();
            let filled = std::iter::repeat_with(|| other.write(&[0; 65536])).map_while(Result::ok).sum::<usize>();
            let mut socket = Socket::new(one);
            let (times, moved) = greed(socket.take(), move |socket, context| {
                if is_known {
                    socket.registered(context)?;
                }
                socket.poll_read(context, &mut [0; 65536])
            });
            // The event loop does not know yet of a socket that it has only just met.
            assert!(is_known || times > 0);
            assert!(moved <= 1 << 20, "{moved} of {filled} bytes in {times} reads");
        }
    }
}
