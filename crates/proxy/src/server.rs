//! The server's side of a connection: a socket, and how bytes get into it and out of it.
//!
//! Whoever has a connection to a server speaks to this, never to the socket below: what is on the wire need not be what
//! was written.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use crate::buffer::{Buffer, Stock};
use crate::client::SEAL_BYTES_MAX;
use crate::socket::Socket;

/// The least room to read into.
const READ_BYTES_MIN: usize = 4096;

pub struct ServerStream {
    socket: Socket,
}

impl ServerStream {
    pub fn plain(socket: Socket) -> ServerStream {
        ServerStream { socket }
    }

    /// Reads into `answer`, which gets memory when there is something to read and gives it up while it waits.
    /// Returns how many readable bytes came; 0 is the end that the server announced.
    pub fn poll_fill(
        &mut self,
        context: &mut Context<'_>,
        stock: &Stock,
        answer: &mut Buffer,
    ) -> Poll<io::Result<usize>> {
        if answer.capacity() == 0 {
            ready!(self.socket.poll_readable(context))?;
            stock.equip(answer);
        }
        let spare = answer.spare(READ_BYTES_MIN);
        // No more than is sealed at one go: the rest would go out in a small record and a write of its own.
        let room = spare.len().min(SEAL_BYTES_MAX);
        match self.socket.poll_read(context, &mut spare[..room]) {
            Poll::Ready(Ok(count)) => {
                answer.filled(count);
                Poll::Ready(Ok(count))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                if answer.is_empty() {
                    stock.give_back(answer);
                }
                Poll::Pending
            }
        }
    }

    /// Waits until [`ServerStream::poll_fill`] may have something, an end or an error included.
    pub fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_readable(context)
    }

    /// Takes bytes from `slices`, in order, and returns how many. They need not be on their way yet: see
    /// [`ServerStream::poll_flush`]. An error means that none of these bytes have left.
    pub fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        _stock: &Stock,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll_write_vectored(context, slices)
    }

    /// Sends what was taken.
    pub fn poll_flush(&mut self, _context: &mut Context<'_>, _stock: &Stock) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Says that nothing more will be written. What the server sends can still be read.
    pub fn poll_end(&mut self, _context: &mut Context<'_>, _stock: &Stock) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.shutdown_write())
    }

    /// True when nothing has come since the last read that matters to a request: no byte, no end, no error. Asks the
    /// event loop, not the kernel.
    pub fn is_quiet(&mut self) -> bool {
        self.socket.is_quiet()
    }

    /// True when the kernel has something that nobody has read: a byte, an end, an error. One system call.
    pub fn has_news(&self) -> bool {
        self.socket.has_news()
    }

    /// See [`Socket::leave_event_loop`].
    pub fn leave_event_loop(&mut self) -> io::Result<()> {
        self.socket.leave_event_loop()
    }

    /// Moves the connection out; what stays behind answers with errors.
    pub fn take(&mut self) -> ServerStream {
        ServerStream { socket: self.socket.take() }
    }

    /// The socket, if what is on the wire is what was written: for those who let the kernel move the bytes.
    pub fn plain_socket(&mut self) -> Option<&mut Socket> {
        Some(&mut self.socket)
    }
}
