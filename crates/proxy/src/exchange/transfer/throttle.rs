//! Bodies that are slowed down: the next piece is not read before its time, so that whoever sends it feels it. Nobody
//! is waited for meanwhile, and no limit on a side's time runs.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use propylon_net::buffer::Buffer;
use propylon_net::timers::Deadline;
use propylon_policy::throttle::Throttle;
use propylon_steps::pace::{Share, Way};

use super::body::Upload;
use super::downstream::Piece;
use super::stop::Stop;
use crate::core::Core;
use crate::limits;
use crate::request::Request;

const NANOS_PER_MILLI: u64 = 1_000_000;

/// Pace of one body.
pub struct Pacer {
    bucket: Bucket,
    deadline: Deadline,
    core: Rc<Core>,
}

/// Bucket that a body takes its bytes from.
enum Bucket {
    Own(Throttle),
    /// One of all bodies of a key.
    Shared(Share),
}

impl Pacer {
    /// The pace that the request's route has for bodies of this way; `None`: they have none. A tunnel has none either,
    /// and is one only once its server has switched: who asks for another protocol and gets an answer of HTTP has asked
    /// for nothing.
    pub fn of(request: &Request, way: Way, core: &Rc<Core>) -> Option<Pacer> {
        let is_tunnel = match way {
            Way::Download => request.response.status == 101,
            Way::Upload => request.asks_for_tunnel(),
        };
        let taken = request.steps.as_ref().filter(|_| !is_tunnel)?;
        let throttle = taken.steps.throttle.as_ref()?;
        let per_second = match way {
            Way::Download => throttle.download,
            Way::Upload => throttle.upload,
        }?;
        let bucket = match &taken.pace {
            Some((pace, key)) => Bucket::Shared(Share::of((pace, *key), way, throttle.after)?),
            None => Bucket::Own(Throttle::new(per_second, throttle.after, core.timers.now())),
        };
        Some(Pacer { bucket, deadline: core.timers.deadline(), core: Rc::clone(core) })
    }

    /// Ready with the bytes that may go.
    pub fn poll_leave(&mut self, context: &mut Context<'_>) -> Poll<usize> {
        let core = &self.core;
        let now = core.timers.now();
        let allowed = match &mut self.bucket {
            Bucket::Own(throttle) => throttle.allowed(now),
            Bucket::Shared(share) => {
                let forgot = || core.metrics.increment(core.telemetry.bodies.pace_forgot);
                let allowed = share.allowed(limits::now(), forgot);
                allowed.map_err(|wait| now.saturating_add(wait.div_ceil(NANOS_PER_MILLI)))
            }
        };
        match allowed {
            Ok(bytes) => Poll::Ready(usize::try_from(bytes).unwrap_or(usize::MAX)),
            Err(due) => {
                self.deadline.set(due, context.waker());
                Poll::Pending
            }
        }
    }

    pub fn took(&mut self, bytes: usize) {
        match &mut self.bucket {
            Bucket::Own(throttle) => throttle.took(bytes as u64, self.core.timers.now()),
            Bucket::Shared(share) => share.took(bytes as u64, limits::now()),
        }
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
