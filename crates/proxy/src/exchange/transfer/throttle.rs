//! Bodies that are slowed down: the next piece is not read before its time, so that whoever sends it feels it. Nobody
//! is waited for meanwhile, and no limit on a side's time runs.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use propylon_net::buffer::Buffer;
use propylon_net::timers::{Deadline, Timers};
use propylon_policy::throttle::Throttle;

use super::body::Upload;
use super::downstream::Piece;
use super::stop::Stop;

/// Pace of one body.
pub struct Pacer {
    throttle: Throttle,
    deadline: Deadline,
    timers: Rc<Timers>,
}

impl Pacer {
    /// A body of so many bytes in a second, once the first `free` have gone.
    pub fn new(per_second: u64, free: u64, timers: &Rc<Timers>) -> Pacer {
        let throttle = Throttle::new(per_second, free, timers.now());
        Pacer { throttle, deadline: timers.deadline(), timers: Rc::clone(timers) }
    }

    /// Ready with the bytes that may go.
    pub fn poll_leave(&mut self, context: &mut Context<'_>) -> Poll<usize> {
        match self.throttle.allowed(self.timers.now()) {
            Ok(bytes) => Poll::Ready(usize::try_from(bytes).unwrap_or(usize::MAX)),
            Err(due) => {
                self.deadline.set(due, context.waker());
                Poll::Pending
            }
        }
    }

    pub fn took(&mut self, bytes: usize) {
        self.throttle.took(bytes as u64, self.timers.now());
    }
}

/// Takes so many bytes from the front, or all that there are.
pub fn cut(buffer: &mut Buffer, most: usize) -> Buffer {
    if buffer.len() <= most {
        return std::mem::take(buffer);
    }
    let front = Buffer::exactly(&buffer.readable()[..most]);
    buffer.consume(most);
    front
}

/// A request's body that is slowed down.
pub struct Paced {
    pub upload: Upload,
    pacer: Pacer,
    /// Bytes that have been read and are to wait for their time: of one buffer, at most.
    rest: Buffer,
}

impl Paced {
    pub fn new(upload: Upload, pacer: Pacer) -> Paced {
        Paced { upload, pacer, rest: Buffer::default() }
    }

    /// Begins another attempt, to which the body goes from its beginning.
    pub fn rewind(&mut self) {
        self.rest = Buffer::default();
    }

    /// The next piece, if it is time for one: of as many bytes as may go.
    pub fn poll_piece(
        &mut self,
        context: &mut Context<'_>,
        poll: impl FnOnce(&mut Context<'_>, &mut Upload) -> Poll<Result<Piece, Stop>>,
    ) -> Poll<Result<Piece, Stop>> {
        let Poll::Ready(most) = self.pacer.poll_leave(context) else { return Poll::Ready(Ok(Piece::Later)) };
        if self.rest.is_empty() {
            match ready!(poll(context, &mut self.upload))? {
                Piece::Data(data) => self.rest = data,
                other => return Poll::Ready(Ok(other)),
            }
        }
        let data = cut(&mut self.rest, most);
        self.pacer.took(data.len());
        Poll::Ready(Ok(Piece::Data(data)))
    }
}
