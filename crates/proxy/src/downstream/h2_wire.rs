//! A client's connection as `h2` reads and writes it.
//!
//! Reads open records in place and copy into the library's buffer. Writes are gathered: the library flushes after every
//! DATA frame, but what goes out is sealed in full records and written at once when the connection has nothing more to
//! say, or when as much has gathered as is sealed at one go. The library owns its end, so both ends share a
//! `ClientH2Connection`.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use propylon_net::budget::{self, Budget, FRAMES_BYTES_PER_POLL_MAX};

use propylon_net::client_stream::{Fill, ReadError, SEAL_BYTES_MAX};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::client::connection::Connection;
use crate::client::h2_connection::ClientH2Connection;
use crate::http2::{give_ready, stage};

/// Bytes that the library charges for a frame of DATA that lies unread, at most.
const DATA_FRAME_CHARGE: usize = 256;
/// A frame with a byte of data.
const DATA_FRAME_BYTES_MIN: usize = 10;
/// Bytes that may lie unread of a client's at least, by that charge: two polls' worth of the smallest frames. The
/// frames take about as much in memory. More where the windows are wide, as the library measures: half their sum.
pub(super) const DATA_FRAME_BUDGET: usize = 2 * FRAMES_BYTES_PER_POLL_MAX / DATA_FRAME_BYTES_MIN * DATA_FRAME_CHARGE;

/// The library's end.
pub struct Wire(pub Rc<ClientH2Connection>);

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let link = &*self.0;
        if link.fault.get().is_some() {
            // The connection's driver looks after every turn.
            return Poll::Pending;
        }
        if link.is_held_up() {
            return Poll::Pending;
        }
        let mut connection = link.connection.borrow_mut();
        let mut intake = link.intake.borrow_mut();
        let Connection { stream, inbox, wire, core, .. } = &mut *connection;
        loop {
            if give_ready(&mut intake, into) {
                return Poll::Ready(Ok(()));
            }
            if link.turn.get() >= FRAMES_BYTES_PER_POLL_MAX {
                budget::spend(Budget::Frames, context);
                return Poll::Pending;
            }
            while inbox.is_empty() {
                match ready!(stream.poll_fill(context, &core.buffers, inbox, wire)) {
                    Ok(Fill::Bytes) => {}
                    Ok(Fill::End) => return Poll::Ready(Ok(())),
                    Err(ReadError::Io(error)) => return Poll::Ready(Err(error)),
                    Err(ReadError::Tls(failure)) => {
                        connection.note_tls_failure(&failure);
                        return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                    }
                }
            }
            let bytes = &inbox.readable()[..inbox.len().min(into.remaining())];
            let taken = match intake.take(bytes, link.moment()) {
                Ok(taken) => taken,
                Err(fault) => {
                    link.fault.set(Some(fault));
                    return Poll::Pending;
                }
            };
            link.count_untaken(&intake);
            into.put_slice(&bytes[..taken.pass]);
            inbox.consume(taken.used);
            link.turn.set(link.turn.get() + taken.used);
            if taken.pass > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
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
        let taken = stage(&link.core.buffers, &mut staged, slices);
        link.sent.set(link.sent.get() + taken as u64);
        Poll::Ready(Ok(taken))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Flushing is left to the connection's driver, when there is nothing more to be written; see
    /// [`ClientH2Connection::poll_flush`].
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl ClientH2Connection {
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
            ready!(stream.poll_flush(context, &core.buffers, wire))?;
            if staged.is_empty() {
                return Poll::Ready(Ok(()));
            }
            stream.stage(staged.readable(), &core.buffers, wire);
            core.buffers.release(&mut staged);
        }
    }

    /// Puts what has gathered behind what is on its way, for a connection that ends.
    pub fn seal(&self) {
        let mut connection = self.connection.borrow_mut();
        let mut staged = self.staged.borrow_mut();
        let Connection { stream, wire, core, .. } = &mut *connection;
        if !staged.is_empty() {
            stream.stage(staged.readable(), &core.buffers, wire);
            core.buffers.release(&mut staged);
        }
    }
}
