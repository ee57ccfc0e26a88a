//! One direction of a relay: copies for what is little, splices for what is much.
//!
//! A direction begins with reads into a buffer of the core's pool. Reads that fill it again and again mean bulk, and
//! bulk goes through a pipe of the core's. Whoever waits for bytes holds neither.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use propylon_net::budget::{self, Budget};
use propylon_net::buffer::{Buffer, BufferPool};
use propylon_net::server_stream::ServerStream;
use propylon_net::socket::Socket;

use crate::core::Core;
use crate::pipes::{PipeLease, SPLICE_BYTES_MIN};

/// Reads in a row that filled their buffer before a direction counts as bulk.
const FULL_READS_MIN: u8 = 3;
/// Bytes that one direction may take in one poll: in and out it costs half of what the sockets may do, and leaves the
/// other half to the other direction.
const TURN_BYTES_MAX: usize = 256 * 1024;
/// The least room to read into.
const READ_BYTES_MIN: usize = 4096;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Reach {
    #[default]
    Open,
    /// Nothing more will come; what has come is still on its way.
    Ending,
    /// The end was passed on.
    Ended,
    /// Nothing can be delivered any more.
    Broken,
}

#[derive(Default)]
pub struct Direction {
    pub moved: u64,
    /// Boxed, since an idle direction has none.
    pipe: Option<Box<PipeLease>>,
    /// Bytes taken in this turn.
    turn: u32,
    full_reads: u8,
    reach: Reach,
    /// The socket written to has Nagle's delay still, which is to end before the second write.
    is_delayed: bool,
}

/// Which side of a direction has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    Read,
    Write,
}

/// Passes an end on. The last one is passed on by the close that follows it.
pub fn shut(to: &Socket, is_last: bool) -> Result<(), Broken> {
    match is_last {
        true => Ok(()),
        false => to.shutdown_write().map_err(|_| Broken::Write),
    }
}

impl Direction {
    /// One to a socket with Nagle's delay, on which so many bytes have gone already.
    pub fn after(moved: u64) -> Direction {
        Direction { moved, is_delayed: true, ..Direction::default() }
    }

    /// Ends Nagle's delay before the second write. A failure shows at that write as well.
    fn before_write(&mut self, to: &Socket) {
        if self.is_delayed && self.moved > 0 {
            self.is_delayed = false;
            let _ = to.set_nodelay();
        }
    }

    pub fn is_over(&self) -> bool {
        matches!(self.reach, Reach::Ended | Reach::Broken)
    }

    pub fn is_broken(&self) -> bool {
        self.reach == Reach::Broken
    }

    pub fn is_ending(&self) -> bool {
        self.reach == Reach::Ending
    }

    /// Whether bytes may be on their way in a pipe.
    pub fn has_pipe(&self) -> bool {
        self.pipe.is_some()
    }

    /// Nothing more will come.
    pub fn ending(&mut self) {
        self.reach = Reach::Ending;
    }

    pub fn end(&mut self) {
        self.reach = Reach::Ended;
        self.release();
    }

    /// Gives up bytes on their way, which cannot be delivered.
    pub fn give_up(&mut self) {
        self.reach = Reach::Broken;
        self.release();
    }

    pub fn release(&mut self) {
        self.pipe = None;
    }

    pub fn took(&mut self, count: usize) {
        self.turn = self.turn.saturating_add(count as u32);
    }

    /// True when others should have their turn first; the task is woken again.
    pub fn turn_is_over(&mut self, context: &mut Context<'_>) -> bool {
        if (self.turn as usize) < TURN_BYTES_MAX {
            return false;
        }
        self.turn = 0;
        budget::spend(Budget::Relay, context);
        true
    }

    fn is_bulk(&self) -> bool {
        self.full_reads >= FULL_READS_MIN
    }

    /// Moves bytes between two sockets. Ready when `from` has ended and all is with `to`, or a side has failed.
    pub fn poll_plain(
        &mut self,
        context: &mut Context<'_>,
        core: &Core,
        from: &mut Socket,
        to: &mut Socket,
        buffer: &mut Buffer,
    ) -> Poll<Result<(), Broken>> {
        loop {
            ready!(self.poll_deliver(context, &core.buffers, buffer, to))?;
            ready!(self.poll_drain(context, to))?;
            if self.is_ending() {
                return Poll::Ready(Ok(()));
            }
            if self.turn_is_over(context) {
                return Poll::Pending;
            }
            if self.is_bulk() {
                self.pipe = self.pipe.take().or_else(|| core.pipes.lend().map(Box::new));
            }
            let taken = match &mut self.pipe {
                Some(_) => self.poll_splice(context, from),
                None => self.poll_take(context, &core.buffers, from, buffer),
            };
            if taken.is_pending() {
                self.turn = 0;
            }
            ready!(taken).map_err(|_| Broken::Read)?;
        }
    }

    /// Writes what `buffer` holds, and gives its memory back.
    pub fn poll_deliver(
        &mut self,
        context: &mut Context<'_>,
        buffers: &BufferPool,
        buffer: &mut Buffer,
        to: &mut Socket,
    ) -> Poll<Result<(), Broken>> {
        while !buffer.is_empty() {
            self.before_write(to);
            let count = ready!(to.poll_write(context, buffer.readable())).map_err(|_| Broken::Write)?;
            if count == 0 {
                return Poll::Ready(Err(Broken::Write));
            }
            buffer.consume(count);
            self.moved += count as u64;
        }
        // The next read may be a splice, or long in coming; one that is due at once finds the memory on top of the
        // pool.
        if buffer.is_idle() {
            buffers.release(buffer);
        }
        Poll::Ready(Ok(()))
    }

    /// The same, to a server that may have TLS.
    pub fn poll_submit(
        &mut self,
        context: &mut Context<'_>,
        buffers: &BufferPool,
        buffer: &mut Buffer,
        to: &mut ServerStream,
    ) -> Poll<Result<(), Broken>> {
        while !buffer.is_empty() {
            to.plain_socket().into_iter().for_each(|socket| self.before_write(socket));
            let slices = [IoSlice::new(buffer.readable())];
            let count = ready!(to.poll_write(context, buffers, &slices)).map_err(|_| Broken::Write)?;
            if count == 0 {
                return Poll::Ready(Err(Broken::Write));
            }
            buffer.consume(count);
            self.moved += count as u64;
        }
        ready!(to.poll_flush(context, buffers)).map_err(|_| Broken::Write)?;
        if buffer.is_idle() {
            buffers.release(buffer);
        }
        Poll::Ready(Ok(()))
    }

    /// Reads what a server has sealed.
    pub fn poll_open(
        &mut self,
        context: &mut Context<'_>,
        buffers: &BufferPool,
        from: &mut ServerStream,
        buffer: &mut Buffer,
    ) -> Poll<io::Result<()>> {
        let count = ready!(from.poll_fill(context, buffers, buffer))?;
        self.took(count);
        if count == 0 {
            self.ending();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_drain(&mut self, context: &mut Context<'_>, to: &mut Socket) -> Poll<Result<(), Broken>> {
        if self.pipe.as_ref().is_some_and(|pipe| pipe.held() > 0) {
            self.before_write(to);
        }
        let Some(pipe) = &mut self.pipe else { return Poll::Ready(Ok(())) };
        while pipe.held() > 0 {
            let count = ready!(to.poll_drain_pipe(context, pipe)).map_err(|_| Broken::Write)?;
            if count == 0 {
                return Poll::Ready(Err(Broken::Write));
            }
            self.moved += count as u64;
        }
        if !self.is_bulk() {
            self.pipe = None;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_splice(&mut self, context: &mut Context<'_>, from: &mut Socket) -> Poll<io::Result<()>> {
        let Some(pipe) = &mut self.pipe else { return Poll::Ready(Ok(())) };
        let most = pipe.capacity().min(TURN_BYTES_MAX);
        let Poll::Ready(count) = from.poll_fill_pipe(context, pipe, most) else {
            self.pipe = None;
            return Poll::Pending;
        };
        let count = count?;
        self.took(count);
        if count == 0 {
            self.ending();
        }
        if count < SPLICE_BYTES_MIN {
            self.full_reads = 0;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads into `buffer`, which gets memory when there is something to read.
    pub fn poll_take(
        &mut self,
        context: &mut Context<'_>,
        buffers: &BufferPool,
        from: &mut Socket,
        buffer: &mut Buffer,
    ) -> Poll<io::Result<()>> {
        if buffer.capacity() == 0 {
            ready!(from.poll_readable(context))?;
            match self.is_bulk() {
                true => buffers.equip_large(buffer),
                false => buffers.equip(buffer),
            }
        }
        let room = buffer.spare(READ_BYTES_MIN);
        let most = room.len();
        let Poll::Ready(count) = from.poll_read(context, room) else {
            if buffer.is_empty() {
                buffers.release(buffer);
            }
            return Poll::Pending;
        };
        let count = count?;
        buffer.filled(count);
        self.took(count);
        self.full_reads = if count == most { self.full_reads.saturating_add(1) } else { 0 };
        if count == 0 {
            self.ending();
        }
        Poll::Ready(Ok(()))
    }
}
