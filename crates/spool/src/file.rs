//! The file of a body, which grows at its end while it may be read from its front.

use std::fs::File;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use crate::disk::Pending;
use crate::space::{BLOCK_BYTES, Claim, Refused};

/// Bytes that are on their way to the file, and bytes that come behind them, at most: as many pieces of memory count.
const BACKLOG_BYTES_MAX: usize = BLOCK_BYTES;

/// The file of a body, and what is on its way there.
#[derive(Default)]
pub(crate) struct Tail {
    file: Option<Arc<File>>,
    /// Bytes in the file.
    written: u64,
    backlog: Vec<u8>,
    writing: Option<(Pending, usize)>,
    reading: Option<(Pending, usize)>,
}

impl Tail {
    /// All bytes, in the file or on their way.
    pub(crate) fn len(&self) -> u64 {
        self.written + self.writing.as_ref().map_or(0, |(_, count)| *count as u64) + self.backlog.len() as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts bytes behind the others; to be called when [`Tail::poll_room`] says so.
    pub(crate) fn push(&mut self, claim: &mut Claim, bytes: &[u8], most: u64) -> Result<(), Refused> {
        let length = self.len() + bytes.len() as u64;
        if length > most {
            return Err(Refused::TooLong);
        }
        if !claim.cover(length) {
            return Err(Refused::Disk);
        }
        self.backlog.extend_from_slice(bytes);
        Ok(())
    }

    /// Ready when more may come. `all`: when all of it is in the file.
    pub(crate) fn poll_room(&mut self, context: &Context<'_>, claim: &Claim, all: bool) -> Poll<Result<(), Refused>> {
        loop {
            if let Some((pending, count)) = &self.writing {
                match pending.poll(context) {
                    Poll::Ready(Ok(done)) => {
                        self.written += *count as u64;
                        self.file = Some(done.file);
                        self.writing = None;
                    }
                    Poll::Ready(Err(error)) => {
                        claim.space.warn("written to", &error);
                        self.writing = None;
                        return Poll::Ready(Err(Refused::Failed));
                    }
                    Poll::Pending if all || self.backlog.len() >= BACKLOG_BYTES_MAX => return Poll::Pending,
                    Poll::Pending => return Poll::Ready(Ok(())),
                }
            }
            let is_due = self.backlog.len() >= BACKLOG_BYTES_MAX || all && !self.backlog.is_empty();
            if !is_due {
                return Poll::Ready(Ok(()));
            }
            let (bytes, space) = (std::mem::take(&mut self.backlog), &claim.space);
            let count = bytes.len();
            self.writing = Some((space.threads().write(space, self.file.clone(), self.written, bytes), count));
        }
    }

    /// Reads what is at this offset of the file; `None` where it ends.
    pub(crate) fn poll_read(
        &mut self,
        context: &Context<'_>,
        claim: &Claim,
        offset: u64,
    ) -> Poll<Result<Option<Vec<u8>>, Refused>> {
        let Some(file) = &self.file else { return Poll::Ready(Ok(None)) };
        let count = (self.written - offset).min(BLOCK_BYTES as u64) as usize;
        if count == 0 {
            return Poll::Ready(Ok(None));
        }
        let (pending, _) = self.reading.get_or_insert_with(|| (claim.space.threads().read(file, offset, count), count));
        let done = ready!(pending.poll(context));
        self.reading = None;
        Poll::Ready(match done {
            Ok(done) => Ok(Some(done.bytes)),
            Err(error) => {
                claim.space.warn("read from", &error);
                Err(Refused::Failed)
            }
        })
    }

    /// Bytes that wait to be written, where all that is in the file has been read: they need not go there.
    pub(crate) fn take_backlog(&mut self, read: u64) -> Option<Vec<u8>> {
        let is_next = self.writing.is_none() && read == self.written && !self.backlog.is_empty();
        is_next.then(|| std::mem::take(&mut self.backlog))
    }

    /// Begins the file anew, all of which has been read.
    pub(crate) fn restart(&mut self) {
        debug_assert!(self.writing.is_none() && self.backlog.is_empty());
        self.written = 0;
    }

    /// Whether bytes are on their way to the file.
    pub(crate) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Forgets a read that is under way, for one from another place.
    pub(crate) fn stop_reading(&mut self) {
        self.reading = None;
    }
}
