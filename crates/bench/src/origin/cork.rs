//! A wire that gathers what is written while it is corked: the `h2` library flushes after every answer, and a write to
//! the socket for each would be most of what an answer costs.

use crate::http2::wire::Wire;
use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Gathered at most; then it leaves, corked or not.
const GATHERED_BYTES_MAX: usize = 64 * 1024;

pub struct CorkedWire {
    wire: Wire,
    /// From `written` on.
    gathered: Vec<u8>,
    written: usize,
    cork: Rc<Cell<Cork>>,
}

#[derive(Clone, Copy, Default, PartialEq)]
pub enum Cork {
    /// A flush waits.
    In,
    #[default]
    Out,
}

impl CorkedWire {
    /// `cork` is in the hands of who knows when the last answer was given.
    pub fn new(wire: Wire, cork: Rc<Cell<Cork>>) -> Self {
        Self { wire, gathered: Vec::new(), written: 0, cork }
    }

    fn poll_leave(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.gathered.len() {
            match ready!(Pin::new(&mut self.wire).poll_write(cx, &self.gathered[self.written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
        }
        self.gathered.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for CorkedWire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().wire).poll_read(cx, buffer)
    }
}

impl AsyncWrite for CorkedWire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.gathered.len() >= GATHERED_BYTES_MAX {
            ready!(this.poll_leave(cx))?;
        }
        let count = bytes.len().min(GATHERED_BYTES_MAX - this.gathered.len());
        this.gathered.extend_from_slice(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.cork.get() == Cork::In {
            return Poll::Ready(Ok(()));
        }
        ready!(this.poll_leave(cx))?;
        Pin::new(&mut this.wire).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_leave(cx))?;
        Pin::new(&mut this.wire).poll_shutdown(cx)
    }
}
