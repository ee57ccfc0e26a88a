//! Responses that are read as fast as their servers send them, so that a slow client holds no server: in memory at
//! first, and then in a file, as far as the route and the engine let them. Beyond that the server waits for the client,
//! as it does without.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use propylon_http::fault::Fault;
use propylon_http::h1::{Field, ResponseHead};
use propylon_net::buffer::Buffer;
use propylon_observe::telemetry::Wait;
use propylon_spool::{Bounds, Flow, Refused};

use super::Transfer;
use super::downstream::{Downstream, Resumption};
use super::limits::{DirectionLimit, Side};
use super::progress::{PIECE_BYTES, Progress};
use super::stop::{Stop, server_fault};
use super::throttle::{Pacer, cut};
use super::upstream::part::Part;
use crate::bodies;
use crate::client::side::ClientSide;
use crate::core::Core;
use crate::request::{After, Request};
use crate::upstream::checkout::Client;

/// Part of a response's body that is held.
pub struct HeldResponse {
    core: Rc<Core>,
    /// Bytes that go next.
    front: Buffer,
    flow: Flow,
    /// Bytes behind those, for which there was no room.
    overflow: Option<Buffer>,
    /// Lines of the trailers, once the server has ended.
    end: Option<Vec<u8>>,
    /// The client takes nothing more for now.
    is_blocked: bool,
    is_counted: bool,
    /// Pace at which the client gets it; none: as fast as it takes it.
    pacer: Option<Pacer>,
    /// The time for the next bytes has not come: nobody is waited for.
    is_early: bool,
}

impl HeldResponse {
    /// Holds the response of a route that asks for it, unless it is one that comes bit by bit, or has begun before its
    /// request was sent. The pace is then that of what the client gets: its server is read as fast as it sends.
    pub fn of(transfer: &Transfer<'_>, pacer: &mut Option<Pacer>) -> Option<HeldResponse> {
        let progress = &transfer.progress;
        let bounds = progress.request.steps.as_ref()?.buffer.response?;
        let head = &progress.request.response;
        let is_tunnel = head.status == 101;
        if !progress.sent || is_tunnel || is_streamed(head, transfer.server.head_text()) {
            return None;
        }
        let core = Rc::clone(&progress.core);
        let bounds = Bounds { memory: bounds.memory, disk: bounds.disk };
        let flow = Flow::new(bodies::space(), core.metrics.index(), bounds);
        Some(HeldResponse {
            core,
            front: Buffer::default(),
            flow,
            overflow: None,
            end: None,
            is_blocked: false,
            is_counted: false,
            pacer: pacer.take(),
            is_early: false,
        })
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        !self.has_bytes() && self.end.is_none()
    }

    fn has_bytes(&self) -> bool {
        !self.front.is_empty() || !self.flow.is_empty() || self.overflow.is_some()
    }

    /// Ready when another part may be read for a client that takes none.
    pub fn poll_room(&mut self, context: &Context<'_>) -> Poll<Result<(), Stop>> {
        self.is_blocked = true;
        if self.overflow.is_some() || !self.flow.has_room() {
            return Poll::Pending;
        }
        self.flow.poll_room(context).map_err(failed)
    }

    /// Hands a part on, or holds it. Returns its length.
    pub fn pass(&mut self, client: &mut Downstream<'_>, request: &mut Request, part: Part) -> Result<usize, Stop> {
        if self.is_empty() && !self.is_blocked && self.pacer.is_none() {
            return client.pass(request, part);
        }
        let Part { data, end } = part;
        self.end = end;
        let Some(mut data) = data else { return Ok(0) };
        let length = data.len();
        match self.flow.push(data.readable()) {
            Ok(()) => self.core.buffers.release(&mut data),
            Err(refused) => {
                if refused != Refused::TooLong {
                    self.core.metrics.increment(self.core.telemetry.bodies.exhausted);
                }
                self.overflow = Some(data);
            }
        }
        if !std::mem::replace(&mut self.is_counted, true) {
            self.core.metrics.increment(self.core.telemetry.bodies.held(false, false));
        }
        Ok(length)
    }

    /// Hands on what is held, and gives the client time for what it takes. Ready when nothing is held.
    pub fn poll_drain(
        &mut self,
        context: &mut Context<'_>,
        client: &mut Downstream<'_>,
        request: &mut Request,
        (limit, outstanding): (&mut DirectionLimit, &mut usize),
    ) -> Poll<Result<(), Stop>> {
        (self.is_blocked, self.is_early) = (true, false);
        while !self.is_empty() {
            let room = client.poll_room(context);
            let left = client.outstanding();
            if left < *outstanding {
                limit.progressed(*outstanding - left, &self.core);
            }
            *outstanding = left;
            ready!(room)?;
            let part = match self.has_bytes() {
                true => Part { data: Some(ready!(self.poll_bytes(context))?), end: None },
                false => Part { data: None, end: self.end.take() },
            };
            client.pass(request, part)?;
            *outstanding = client.outstanding();
        }
        self.is_blocked = false;
        Poll::Ready(Ok(()))
    }

    /// The next bytes for the client, if it is time for some.
    fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Result<Buffer, Stop>> {
        let most = match &mut self.pacer {
            Some(pacer) => {
                let leave = pacer.poll_leave(context);
                self.is_early = leave.is_pending();
                ready!(leave).min(PIECE_BYTES)
            }
            None => usize::MAX,
        };
        if self.front.is_empty() {
            self.front = match self.flow.is_empty() {
                false => Buffer::exactly(&ready!(self.flow.poll_take(context)).map_err(failed)?),
                true => self.overflow.take().unwrap_or_default(),
            };
        }
        let bytes = cut(&mut self.front, most);
        if let Some(pacer) = &mut self.pacer {
            pacer.took(bytes.len());
        }
        Poll::Ready(Ok(bytes))
    }

    /// Takes note of what is waited for, while the client gets nothing: the client, or nobody.
    fn note_wait(&self, limit: &mut DirectionLimit) {
        match self.is_early {
            true => limit.wait_for(Side::Pace, &self.core),
            false => limit.wait_for(Side::Client, &self.core),
        }
    }

    /// The rest for the client, in which the server has no part any more.
    pub fn rest(self: Box<Self>, transfer: &Transfer<'_>, after: After) -> Box<Rest> {
        let limit = transfer.progress.limits.download.anew();
        Box::new(Rest { held: self, client: transfer.client.resumption(), after, limit })
    }
}

fn failed(_: Refused) -> Stop {
    server_fault(Fault::BufferFailed)
}

/// Whether a response is one of events or messages, or its server says that it is not to be held.
fn is_streamed(head: &ResponseHead, text: &[u8]) -> bool {
    let says = |field: &Field, name: &str| field.name.bytes(text).eq_ignore_ascii_case(name.as_bytes());
    let begins = |field: &Field, with: &[u8]| {
        field.value.bytes(text).get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with))
    };
    head.fields.iter().any(|field| {
        let is_type = says(field, "content-type");
        is_type && (begins(field, b"text/event-stream") || begins(field, b"application/grpc"))
            || says(field, "x-accel-buffering") && begins(field, b"no")
    })
}

/// The rest of a response, all of which has come from its server.
pub struct Rest {
    held: Box<HeldResponse>,
    client: Resumption,
    /// How the request ends once the client has all of it.
    after: After,
    limit: DirectionLimit,
}

impl Rest {
    /// Hands all of it to the client.
    pub async fn drain(self: Box<Self>, client: &mut ClientSide<'_>, request: &mut Request) -> After {
        let Rest { mut held, client: resumption, after, mut limit } = *self;
        let core = Rc::clone(&held.core);
        let mut downstream = Downstream::resumed(client.reborrow(), resumption);
        let mut outstanding = downstream.outstanding();
        let ended = poll_fn(|context| {
            let gone = match &mut downstream.client {
                ClientSide::Http2(stream) => stream.poll_gone(context),
                // A connection shows its end where it is written to, which it is not before its time. Its client may
                // have said that it asks for nothing more, and waits for the rest.
                ClientSide::Http1(connection) if held.is_early => connection.stream.socket.poll_reset(context),
                ClientSide::Http1(_) => Poll::Pending,
            };
            if gone.is_ready() {
                return Poll::Ready(Err(Stop::Client(Fault::ClientReset)));
            }
            let counts = (&mut limit, &mut outstanding);
            let polled = poll_all(&mut held, context, &mut downstream, (request, counts));
            if polled.is_ready() {
                return polled;
            }
            held.note_wait(&mut limit);
            poll_limits(&mut limit, context, &downstream.client, request)
        })
        .await;
        match ended {
            Ok(()) => after,
            Err(stop) => {
                let fault = match stop {
                    Stop::Client(fault) => fault,
                    Stop::Server(attempt) => attempt.fault,
                };
                request.note.fault = Some(fault);
                core.metrics.increment(client.metrics().faults.of(fault));
                if let ClientSide::Http2(stream) = client {
                    stream.cut_short = true;
                }
                After::Abort
            }
        }
    }
}

/// Ready when all is with the client's side. A stream takes what is left by itself.
fn poll_all(
    held: &mut HeldResponse,
    context: &mut Context<'_>,
    client: &mut Downstream<'_>,
    (request, (limit, outstanding)): (&mut Request, (&mut DirectionLimit, &mut usize)),
) -> Poll<Result<(), Stop>> {
    ready!(held.poll_drain(context, client, request, (&mut *limit, &mut *outstanding)))?;
    if client.is_stream() {
        return Poll::Ready(Ok(()));
    }
    let room = client.poll_room(context);
    let left = client.outstanding();
    if left < *outstanding {
        limit.progressed(*outstanding - left, &held.core);
    }
    *outstanding = left;
    room
}

fn poll_limits(
    limit: &mut DirectionLimit,
    context: &mut Context<'_>,
    client: &ClientSide<'_>,
    request: &Request,
) -> Poll<Result<(), Stop>> {
    let now = client.core().timers.now();
    if client.is_paused() {
        limit.excuse_client(now);
    }
    let Some(due) = limit.next_of_client(now) else {
        client.count_timeout(Wait::ResponseBody);
        return Poll::Ready(Err(Stop::Client(Fault::ClientReadTimeout)));
    };
    let left = request.millis_left();
    if left == Some(0) {
        client.count_timeout(Wait::Request);
        return Poll::Ready(Err(Stop::Client(Fault::RequestTimeout)));
    }
    client.deadline().set(due.min(now.saturating_add(left.unwrap_or(u64::MAX))), context.waker());
    Poll::Pending
}

impl Progress<'_> {
    /// Takes note of a wait for the client, or for the time of what it gets next.
    pub fn wait_for_client(&mut self, held: Option<&HeldResponse>) {
        match held {
            Some(held) => held.note_wait(&mut self.limits.download),
            None => self.limits.download.wait_for(Side::Client, &self.core),
        }
    }

    /// Takes note of a wait for the server, beside which the client may have something to take.
    pub fn wait_beside(&mut self, held: Option<&HeldResponse>) {
        match held.filter(|held| !held.is_empty()) {
            Some(held) => held.note_wait(&mut self.limits.download),
            None => self.limits.download.wait_for(Side::Server, &self.core),
        }
    }
}
