//! Pieces of bodies on their way to a peer of HTTP/2, and how much of them the library holds.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use propylon_net::buffer::Buffer;

use crate::services::Services;

/// Bytes of a response that may lie with the library before more is read from the server: the client's window or its
/// socket holds them up.
const OUTSTANDING_BYTES_MAX: usize = 32 * 1024;

/// Count of pieces that may be outstanding: each costs more than a few bytes, and many are small. The rest waits,
/// joined.
const OUTSTANDING_PIECES_MAX: usize = 64;

/// Bytes that a piece of the library's own memory counts for: a frame.
const SHARED_BYTES: usize = 16 * 1024;

/// Bytes of a body, in a buffer of the core's or the library's.
pub enum Chunk {
    BufferPool(Buffer),
    Shared(Bytes),
}

impl Default for Chunk {
    fn default() -> Chunk {
        Chunk::Shared(Bytes::new())
    }
}

impl Chunk {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Chunk::BufferPool(buffer) => buffer.readable(),
            Chunk::Shared(bytes) => bytes,
        }
    }

    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    /// Bytes of memory that it takes, from its begin to its end: what was read of it goes back with the rest.
    fn weight(&self) -> usize {
        match self {
            Chunk::BufferPool(buffer) => buffer.capacity(),
            Chunk::Shared(_) => SHARED_BYTES,
        }
    }
}

/// Bytes of a body on their way to a peer. Memory of the core's pool goes back there.
pub struct Piece {
    chunk: Chunk,
    services: Rc<Services>,
    /// Meter of the stream's outstanding bytes; `None` if nobody asks how much of it is out.
    meter: Option<Rc<Meter>>,
    /// Account of the client's connection that the memory counts in, beside the core's.
    unread: Option<Rc<Cell<usize>>>,
}

impl Piece {
    pub fn new(chunk: Chunk, services: &Rc<Services>, meter: &Rc<Meter>) -> Piece {
        meter.outstanding.set(meter.outstanding.get() + chunk.len());
        meter.pieces.set(meter.pieces.get() + 1);
        services.unread.set(services.unread.get() + chunk.weight());
        Piece { chunk, services: Rc::clone(services), meter: Some(Rc::clone(meter)), unread: None }
    }

    pub fn unmetered(chunk: Chunk, services: &Rc<Services>, unread: Rc<Cell<usize>>) -> Piece {
        services.unread.set(services.unread.get() + chunk.weight());
        Piece { chunk, services: Rc::clone(services), meter: None, unread: None }.on(unread)
    }

    pub fn on(mut self, unread: Rc<Cell<usize>>) -> Piece {
        unread.set(unread.get() + self.chunk.weight());
        self.unread = Some(unread);
        self
    }
}

/// Count of bytes and pieces that the library holds of one stream.
#[derive(Default)]
pub struct Meter {
    /// In bytes.
    pub outstanding: Cell<usize>,
    pieces: Cell<usize>,
    waker: RefCell<Option<Waker>>,
}

impl Meter {
    fn has_room(&self) -> bool {
        self.outstanding.get() <= OUTSTANDING_BYTES_MAX && self.pieces.get() <= OUTSTANDING_PIECES_MAX
    }

    /// Ready when the library holds so little that another piece is worth handing on.
    pub fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.has_room() { Poll::Ready(()) } else { self.wait(context) }
    }

    /// Ready when the library holds nothing.
    pub fn poll_empty(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.outstanding.get() == 0 { Poll::Ready(()) } else { self.wait(context) }
    }

    fn wait(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
        Poll::Pending
    }

    fn taken(&self, count: usize, pieces: usize) {
        self.outstanding.set(self.outstanding.get() - count);
        self.pieces.set(self.pieces.get() - pieces);
        if self.has_room()
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.chunk.len()
    }

    fn chunk(&self) -> &[u8] {
        self.chunk.bytes()
    }

    fn advance(&mut self, count: usize) {
        match &mut self.chunk {
            Chunk::BufferPool(buffer) => buffer.consume(count),
            Chunk::Shared(bytes) => bytes.advance(count),
        }
        if let Some(meter) = &self.meter {
            meter.taken(count, 0);
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let weight = self.chunk.weight();
        self.services.unread.set(self.services.unread.get() - weight);
        if let Some(unread) = &self.unread {
            unread.set(unread.get() - weight);
        }
        if let Some(meter) = &self.meter {
            meter.taken(self.chunk.len(), 1);
        }
        if let Chunk::BufferPool(buffer) = &mut self.chunk {
            self.services.buffers.release(buffer);
        }
    }
}
