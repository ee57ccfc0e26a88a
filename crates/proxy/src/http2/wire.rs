//! A client's connection as `h2` reads and writes it.
//!
//! Reads open records in place and copy into the library's buffer. Writes are gathered: the library flushes after every
//! DATA frame, but what goes out is sealed in full records and written at once when the connection has nothing more to
//! say, or when as much has gathered as is sealed at one go. The library owns its end, so both ends share a `Link`.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::Link;
use crate::buffer::{Buffer, LARGE_BYTES, Stock};
use crate::client::{Fill, ReadError, SEAL_BYTES_MAX};
use crate::connection::Connection;

/// The library's end.
pub struct Wire(pub Rc<Link>);

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let link = &*self.0;
        if link.flood.get().is_some() {
            // Whoever drives the connection looks after every turn.
            return Poll::Pending;
        }
        let mut connection = link.connection.borrow_mut();
        let Connection { stream, inbox, wire, core, .. } = &mut *connection;
        while inbox.is_empty() {
            match ready!(stream.poll_fill(context, &core.stock, inbox, wire)) {
                Ok(Fill::Bytes) => {}
                Ok(Fill::End) => return Poll::Ready(Ok(())),
                Err(ReadError::Io(error)) => return Poll::Ready(Err(error)),
                Err(ReadError::Tls(failure)) => {
                    connection.note_tls_failure(&failure);
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
            }
        }
        let count = inbox.len().min(into.remaining());
        let bytes = &inbox.readable()[..count];
        if let Err(reason) = link.scan(bytes) {
            link.flood.set(Some(reason));
            return Poll::Pending;
        }
        into.put_slice(bytes);
        inbox.consume(count);
        Poll::Ready(Ok(()))
    }
}

/// Puts what the library writes behind what is staged, as much as is sealed at one go; returns how much.
pub(super) fn stage(stock: &Stock, staged: &mut Buffer, slices: &[IoSlice<'_>]) -> usize {
    stock.equip(staged);
    let mut taken = 0;
    for slice in slices {
        let count = slice.len().min(SEAL_BYTES_MAX - staged.len());
        if staged.len() + count > staged.capacity() && staged.capacity() < LARGE_BYTES {
            stock.enlarge(staged);
        }
        staged.extend(&slice[..count]);
        taken += count;
    }
    taken
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let link = &*self.0;
        let mut staged = link.staged.borrow_mut();
        if staged.len() >= SEAL_BYTES_MAX {
            drop(staged);
            link.blocked.set(true);
            ready!(link.poll_flush(context))?;
            link.blocked.set(false);
            staged = link.staged.borrow_mut();
        }
        let taken = stage(&link.core.stock, &mut staged, slices);
        link.sent.set(link.sent.get() + taken as u64);
        Poll::Ready(Ok(taken))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Whoever drives the connection flushes when there is nothing more to be written; see [`Link::poll_flush`].
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Link {
    /// Sends what has gathered.
    pub fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut connection = self.connection.borrow_mut();
        let mut staged = self.staged.borrow_mut();
        let Connection { stream, wire, core, .. } = &mut *connection;
        if stream.tls.is_none() && wire.is_empty() {
            // As it is, without a copy.
            std::mem::swap(&mut *staged, wire);
        }
        loop {
            ready!(stream.poll_flush(context, &core.stock, wire))?;
            if staged.is_empty() {
                return Poll::Ready(Ok(()));
            }
            stream.stage(staged.readable(), &core.stock, wire);
            core.stock.give_back(&mut staged);
        }
    }
}
