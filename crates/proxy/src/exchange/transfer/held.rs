//! Bodies of requests that are read before a server is asked, so that a slow client holds no server: in memory at
//! first, and then in a file, as far as the route and the engine let them. Where the engine has no room left the rest
//! goes on as it comes.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use propylon_config::Action;
use propylon_http::fault::{Blame, Fault};
use propylon_http::h1::{CONTINUE, Field, Limits as HeadLimits, Method, Name, Parsed, RequestBody, parse_response};
use propylon_http::h2::Reason;
use propylon_net::budget::{self, Budget, PIECES_PER_POLL_MAX};
use propylon_net::buffer::Buffer;
use propylon_observe::telemetry::Wait;
use propylon_policy::min_rate_timeout::MinRateTimeout;
use propylon_spool::{Bounds, Reading, Refused, Writing};

use super::body::Upload;
use super::downstream::{Downstream, Piece};
use super::limits::{DirectionLimit, Side};
use super::stop::{Stop, server_fault};
use crate::bodies;
use crate::client::side::ClientSide;
use crate::core::Core;
use crate::exchange::answers::{answer_busy, answer_fault};
use crate::request::{After, Request};
use crate::snapshot::CoreSnapshot;
use crate::upstream::checkout::Client;

/// A body of which some is held, or all.
pub struct HeldUpload {
    reading: Reading,
    /// Bytes behind those that are held, for which there was no room: of one piece.
    leftover: Vec<u8>,
    has_sent_leftover: bool,
    /// Upload of all that comes behind them, from the client.
    rest: Option<Upload>,
    /// Lines of the trailers, where all is held.
    trailers: Vec<u8>,
    /// Framing of the request that it goes on in.
    framing: RequestBody,
    is_begun: bool,
}

/// Next step of a held body.
pub enum Next {
    Data(Buffer),
    /// The body is over; lines of its trailers, if it has any.
    End(Vec<u8>),
    /// The rest, from the client.
    Rest(Upload),
}

impl HeldUpload {
    /// Whether all of it is held.
    pub fn is_whole(&self) -> bool {
        self.rest.is_none()
    }

    /// Length, where all of it is held.
    pub fn length(&self) -> Option<u64> {
        self.is_whole().then(|| self.reading.length() + self.leftover.len() as u64)
    }

    /// Whether all of it can be sent from its beginning.
    pub fn is_untouched(&self) -> bool {
        self.is_whole() || !self.is_begun
    }

    /// Begins anew. Returns the framing of the request.
    pub fn rewind(&mut self) -> RequestBody {
        self.reading.rewind();
        self.has_sent_leftover = false;
        self.framing
    }

    pub fn poll_next(&mut self, context: &Context<'_>) -> Poll<Result<Next, Stop>> {
        self.is_begun = true;
        let read = ready!(self.reading.poll(context)).map_err(|_| server_fault(Fault::BufferFailed))?;
        if let Some(bytes) = read {
            return Poll::Ready(Ok(Next::Data(Buffer::exactly(&bytes))));
        }
        if !std::mem::replace(&mut self.has_sent_leftover, true) && !self.leftover.is_empty() {
            return Poll::Ready(Ok(Next::Data(Buffer::exactly(&self.leftover))));
        }
        Poll::Ready(Ok(match self.rest.take() {
            Some(rest) => Next::Rest(rest),
            None => Next::End(self.trailers.clone()),
        }))
    }
}

/// Holds the body of a request, where it has one that is to be: leaves it in the request. An error: the request has
/// ended so.
pub async fn hold(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    snapshot: &CoreSnapshot,
    bounds: Bounds,
) -> Result<(), After> {
    match is_held(request) {
        true => take(client, request, snapshot, (bounds, Fault::BodyTooLong)).await,
        false => Ok(()),
    }
}

/// Holds all of a body that its head does not tell the length of, up to so many bytes in memory, for servers that take no
/// other: one of HTTP/2 that is here already is left as it is. An error: the request has ended so.
pub async fn hold_whole(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    snapshot: &CoreSnapshot,
    most: u64,
) -> Result<(), After> {
    if held_by(request).is_none() {
        let is_known = match client {
            ClientSide::Http2(stream) => {
                stream.framing(RequestBody::Chunked, request.own_body()) != RequestBody::Chunked
            }
            ClientSide::Http1(_) => false,
        };
        if is_known {
            return Ok(());
        }
        let bounds = Bounds { memory: most, disk: 0 };
        take(client, request, snapshot, (bounds, Fault::LengthRequired)).await?;
    }
    if held_by(request).is_some_and(|held| held.borrow().is_whole()) {
        return Ok(());
    }
    // No server is asked for what the engine has no room for: it would wait for the rest.
    count(client, request, snapshot, Fault::BufferFailed);
    Err(answer_busy(client, request, Fault::BufferFailed, 1))
}

/// Body of a request that is held.
pub fn held_by(request: &Request) -> Option<Rc<RefCell<HeldUpload>>> {
    Rc::clone(request.held.as_ref()?).downcast::<RefCell<HeldUpload>>().ok()
}

/// Takes a body. `bounds`: also the fault of a longer one.
async fn take(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    snapshot: &CoreSnapshot,
    (bounds, too_long): (Bounds, Fault),
) -> Result<(), After> {
    let core = Rc::clone(client.core());
    let handle = Rc::clone(client.listener());
    let listener = snapshot.listener(&handle);
    let mut upload = match client {
        ClientSide::Http1(connection) => Upload::of(request, &connection.inbox, listener),
        ClientSide::Http2(_) => Upload::of_stream(request),
    };
    // A body that has come with its head is here; chunks are put together.
    if upload.is_whole() && request.head.body != RequestBody::Chunked {
        return Ok(());
    }
    if matches!(request.head.body, RequestBody::Length(length) if length > bounds.memory.saturating_add(bounds.disk)) {
        core.metrics.increment(client.metrics().faults.of(Fault::BodyTooLong));
        return Err(answer_fault(client, request, Fault::BodyTooLong));
    }
    // The pace is one of the client. Servers get what is held as fast as they take it.
    upload.slow_down(request, &core);
    let min_rate = MinRateTimeout::new(listener.timeouts.body, listener.limits.body_rate_min);
    let mut intake = Intake {
        client: Downstream::new(client.reborrow(), listener.takes_trailers),
        request,
        upload,
        writing: Writing::new(bodies::space(), core.metrics.index(), bounds),
        too_long,
        limit: DirectionLimit::new(min_rate),
        leftover: None,
        trailers: None,
        is_welcomed: false,
    };
    intake.welcome();
    let ended = poll_fn(|context| intake.poll(context)).await;
    intake.client.commit(&mut intake.upload, intake.request);
    intake.request.body_begun = true;
    let Intake { writing, upload, leftover, .. } = intake;
    match ended {
        Ok(trailers) => {
            request.body_taken = trailers.is_some();
            Taken { writing, upload, leftover, trailers }.keep(&core, request);
        }
        Err(stop) => return Err(fail(client, request, snapshot, stop)),
    }
    Ok(())
}

/// Part of a body that was taken.
struct Taken {
    writing: Writing,
    upload: Upload,
    leftover: Option<Buffer>,
    /// Lines of the trailers, where all was taken.
    trailers: Option<Vec<u8>>,
}

impl Taken {
    /// Leaves the body in its request.
    fn keep(self, core: &Core, request: &mut Request) {
        let Taken { writing, mut upload, leftover, trailers } = self;
        let metrics = &core.telemetry.bodies;
        core.metrics.increment(metrics.held(true, writing.is_on_disk()));
        if leftover.is_some() {
            core.metrics.increment(metrics.exhausted);
        }
        let leftover = leftover.map_or_else(Vec::new, |leftover| leftover.readable().to_vec());
        let length = writing.len() + leftover.len() as u64;
        let framing = match &trailers {
            Some(trailers) if trailers.is_empty() => {
                request.head.fields.withhold_kinds(|kind| kind == Name::Trailer);
                RequestBody::Length(length)
            }
            _ => request.head.body,
        };
        // The held body has it.
        upload.forget_kept();
        // The mark of a body that is held: what is held says how it goes on.
        request.head.body = RequestBody::Chunked;
        let held = HeldUpload {
            reading: writing.end().read(),
            leftover,
            has_sent_leftover: false,
            rest: trailers.is_none().then_some(upload),
            trailers: trailers.unwrap_or_default(),
            framing,
            is_begun: false,
        };
        request.held = Some(Rc::new(RefCell::new(held)));
    }
}

/// Whether a request's body is one to be held: not one whose client and server talk in turns.
fn is_held(request: &Request) -> bool {
    let Request { head, text, .. } = request;
    let is_grpc = |field: &Field| {
        field.name.bytes(text).eq_ignore_ascii_case(b"content-type")
            && field.value.bytes(text).get(..16).is_some_and(|kind| kind.eq_ignore_ascii_case(b"application/grpc"))
    };
    let has_body = !matches!(head.body, RequestBody::None | RequestBody::Length(0));
    has_body && !request.asks_for_tunnel() && head.method != Method::Connect && !head.fields.iter().any(is_grpc)
}

/// A body on its way into memory.
struct Intake<'a> {
    client: Downstream<'a>,
    request: &'a mut Request,
    upload: Upload,
    writing: Writing,
    /// Fault of a body that is longer than its bounds.
    too_long: Fault,
    limit: DirectionLimit,
    leftover: Option<Buffer>,
    /// Lines of the trailers, once the body is over.
    trailers: Option<Vec<u8>>,
    /// The client has been told to go on.
    is_welcomed: bool,
}

impl Intake<'_> {
    /// Tells a client that waits for it to send its body (RFC 9110 §10.1.1).
    fn welcome(&mut self) {
        let Request { head, text, response, .. } = &mut *self.request;
        if !std::mem::take(&mut head.expect_continue) {
            return;
        }
        let limits = HeadLimits { head_bytes: CONTINUE.len(), headers: 1 };
        response.clear();
        if let Ok(Parsed::Complete) = parse_response(CONTINUE, head.asked(text), &limits, response) {
            self.client.send_informational(self.request, CONTINUE);
            self.is_welcomed = true;
        }
        self.request.response.clear();
    }

    /// Ready with the trailers, or with none where the engine has no room for the rest.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Vec<u8>>, Stop>> {
        if self.is_welcomed
            && let Poll::Ready(Err(stop)) = self.client.poll_room(context)
        {
            return Poll::Ready(Err(stop));
        }
        for _ in 0..PIECES_PER_POLL_MAX {
            match self.poll_some(context)? {
                Poll::Ready(Some(ended)) => return Poll::Ready(Ok(ended)),
                Poll::Ready(None) => {}
                Poll::Pending => return self.poll_limits(context),
            }
        }
        budget::spend(Budget::Pieces, context);
        Poll::Pending
    }

    /// Takes a piece. Ready with what [`Intake::poll`] is ready with, or with nothing where there is more.
    fn poll_some(&mut self, context: &mut Context<'_>) -> Result<Poll<Option<Option<Vec<u8>>>>, Stop> {
        let core = Rc::clone(self.client.client.core());
        // While a disk is waited for the client is not.
        if let Some(trailers) = &self.trailers {
            return match self.writing.poll_end(context) {
                Poll::Ready(ended) => ended.map_err(refused).map(|()| Poll::Ready(Some(Some(trailers.clone())))),
                Poll::Pending => Ok(Poll::Pending),
            };
        }
        // A body that has come with its head is taken to its end.
        if self.leftover.is_some() && !matches!(self.upload, Upload::Whole(_)) {
            return match self.writing.poll_end(context) {
                Poll::Ready(ended) => ended.map_err(refused).map(|()| Poll::Ready(Some(None))),
                Poll::Pending => Ok(Poll::Pending),
            };
        }
        match self.writing.poll_room(context) {
            Poll::Ready(room) => room.map_err(refused)?,
            Poll::Pending => return Ok(Poll::Pending),
        }
        let Poll::Ready(piece) = self.client.poll_piece(context, &mut self.upload, self.request) else {
            self.limit.wait_for(Side::Client, &core);
            return Ok(Poll::Pending);
        };
        match piece? {
            Piece::Later => {
                self.limit.wait_for(Side::Pace, &core);
                // Nobody reads what the client sends, so that its end would show late.
                return match self.client.client.poll_gone(context) {
                    Poll::Ready(why) => Err(Stop::Client(why)),
                    Poll::Pending => Ok(Poll::Pending),
                };
            }
            Piece::End(trailers) => self.trailers = Some(trailers),
            Piece::Data(mut piece) => {
                let count = piece.len();
                self.limit.progressed(count, &core);
                if self.client.counts_pieces() {
                    self.request.note.bytes_received += count as u64;
                }
                self.client.release(count);
                match self.writing.push(piece.readable()) {
                    Ok(()) => core.buffers.release(&mut piece),
                    Err(Refused::TooLong) => return Err(Stop::Client(self.too_long)),
                    Err(_) => self.leftover = Some(piece),
                }
            }
        }
        Ok(Poll::Ready(None))
    }

    /// Sets the deadline to the nearest limit, or says which one was met.
    fn poll_limits<T>(&mut self, context: &mut Context<'_>) -> Poll<Result<T, Stop>> {
        let client = &self.client.client;
        let core = client.core();
        let now = core.timers.now();
        if client.is_paused() {
            self.limit.excuse_client(now);
        }
        let due = match self.limit.next_of_client(now) {
            Some(due) => due,
            None => {
                client.count_timeout(Wait::RequestBody);
                return Poll::Ready(Err(Stop::Client(Fault::ClientBodyTimeout)));
            }
        };
        let left = self.request.millis_left();
        if left == Some(0) {
            client.count_timeout(Wait::Request);
            return Poll::Ready(Err(Stop::Client(Fault::RequestTimeout)));
        }
        client.deadline().set(due.min(now.saturating_add(left.unwrap_or(u64::MAX))), context.waker());
        Poll::Pending
    }
}

fn refused(_: Refused) -> Stop {
    server_fault(Fault::BufferFailed)
}

/// Counts the fault of a body that is not held: where the engine is to blame with the backend's, as the attempt that it
/// has kept from being made.
fn count(client: &ClientSide<'_>, request: &Request, snapshot: &CoreSnapshot, fault: Fault) {
    let backend = request.note.route.and_then(|route| match snapshot.shared.config.routes[route].action {
        Action::Backend(id) if fault.is_of_attempt() && fault.blame() == Blame::Engine => Some(id),
        _ => None,
    });
    let counter = match backend {
        Some(id) => snapshot.backends[id.0].metrics().faults.of(fault),
        None => client.metrics().faults.of(fault),
    };
    client.core().metrics.increment(counter);
}

/// Ends a request whose body could not be held.
fn fail(client: &mut ClientSide<'_>, request: &mut Request, snapshot: &CoreSnapshot, stop: Stop) -> After {
    let fault = match stop {
        Stop::Client(fault) => fault,
        Stop::Server(attempt) => attempt.fault,
    };
    request.note.fault = Some(fault);
    count(client, request, snapshot, fault);
    // A stream is reset for a bad body already.
    if fault.status() > 0 && (fault != Fault::BadBody || matches!(client, ClientSide::Http1(_))) {
        answer_fault(client, request, fault);
        return After::Linger;
    }
    if let ClientSide::Http2(stream) = client {
        stream.abort_reason = Reason::CANCEL;
    }
    After::Abort
}
