//! A response that is compressed, held or slowed down on its way: a transfer in pieces. Each step stands between the
//! server's parts and the client, in this order: the encoder, the place where parts wait for the client, the pace. A
//! step that the response has no need of is left out; where all are, its head alone may say that it could have been
//! compressed.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use propylon_compress::encoder::Failed;
use propylon_compress::encoders::Lease;
use propylon_compress::judge::{Answered, Asked};
use propylon_compress::plan::Plan;
use propylon_compress::rewrite::{Rewrite, VARY_LINE};
use propylon_compress::trailers;
use propylon_http::fault::Fault;
use propylon_net::budget::{self, Budget};
use propylon_net::buffer::LARGE_BYTES;
use propylon_steps::Steps;
use propylon_steps::pace::Way;

use super::body::Upload;
use super::downstream::{Downstream, Head};
use super::flow::HeldResponse;
use super::grpc_web::WebCall;
use super::limits::Side;
use super::progress::{PIECE_BYTES, Progress};
use super::stop::{Stop, server_fault};
use super::throttle::{Pacer, cut};
use super::upstream::Upstream;
use super::upstream::part::Part;
use super::{Ended, FIRST_FLIGHT_BYTES, Transfer};
use crate::request::Request;
use crate::services::Services;

/// Bytes of a body that are encoded before others have their turn: a millisecond of work or so.
const BYTES_PER_POLL_MAX: usize = 64 * 1024;

/// A response whose head is written anew, and whose body may be compressed, held and slowed down.
pub struct Compression {
    /// Change of the head; none: it goes on as it is.
    rewrite: Option<Rewrite>,
    /// Encoder of the body; none: there is no body, or it goes on as it is.
    lease: Option<Lease>,
    /// Parts that wait for the client, with their pace if they have one; none: the server waits for it.
    held: Option<Box<HeldResponse>>,
    /// Pace of a body that is not held; none: it goes as fast as both sides do.
    pacer: Option<Pacer>,
    /// Part that has been read and is to wait for its time: of one buffer, at most.
    early: Option<Part>,
    /// Coded bytes on their way.
    out: Vec<u8>,
    /// The head is to go out with what there is of the body.
    is_first_flight: bool,
    /// The end of the body is with the client's side.
    is_ended: bool,
}

/// A response that is written anew on its way.
pub enum Rewriting {
    Compressed(Box<Compression>),
    Web(WebCall),
}

impl Rewriting {
    /// Begins with a response whose head is complete; `None`: it goes on as it is.
    #[inline(always)]
    pub fn begin(transfer: &mut Transfer<'_>) -> Option<Rewriting> {
        match &transfer.progress.request.steps {
            None => None,
            Some(steps) if steps.extent.bodies || matches!(transfer.progress.upload, Upload::Held(_)) => {
                rewriting(transfer)
            }
            Some(_) => None,
        }
    }
}

impl Compression {
    pub async fn relay(mut self, transfer: &mut Transfer<'_>) -> Ended {
        if let Err(stop) = self.send_head(transfer) {
            return transfer.fail(stop);
        }
        match poll_fn(|context| self.poll_body(transfer, context)).await {
            Ok(()) => self.end(transfer),
            Err(stop) => transfer.fail(stop),
        }
    }

    fn end(mut self, transfer: &mut Transfer<'_>) -> Ended {
        let after = transfer.over();
        match self.held.take() {
            // A stream takes what is left by itself.
            Some(held) if !(transfer.client.is_stream() && held.is_empty()) => Ended::Held(held.rest(transfer, after)),
            _ => Ended::Over(after),
        }
    }

    fn send_head(&mut self, transfer: &mut Transfer<'_>) -> Result<(), Stop> {
        let is_leaving = transfer.is_leaving();
        let Transfer { client, server, progress } = transfer;
        client.commit(progress.upload, progress.request);
        let Request { response, lines, .. } = &mut *progress.request;
        let is_body = server.begin_body(response);
        let length = response.length;
        let text = match &self.rewrite {
            Some(rewrite) => rewrite.apply(response, server.head_text(), lines),
            None => server.head_text()[..length].to_vec(),
        };
        server.skip_head(length);
        self.is_ended = !is_body;
        progress.keeps = progress.request.head.keep_alive && progress.upload.is_read() && !is_leaving;
        let keep_alive = progress.keeps;
        client.send_head(progress.request, &Head { text: &text, first_flight: 0, is_body, keep_alive })
    }

    fn poll_body(&mut self, transfer: &mut Transfer<'_>, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        // A body that is slowed down may have begun before its request was sent.
        match self.is_ended {
            true => transfer.progress.limits.upload.clear(),
            false => transfer.poll_upload(context)?,
        }
        let polled = self.poll_parts(transfer, context);
        if polled.is_ready() {
            return polled;
        }
        transfer.poll_gone(context)?;
        transfer.poll_limits(context)
    }

    /// Passes the body on part by part. Ready when all of it is with the client's side.
    fn poll_parts(&mut self, transfer: &mut Transfer<'_>, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let Transfer { client, server, progress } = transfer;
        let mut encoded = 0;
        loop {
            if let Some(held) = &mut self.held
                && let Poll::Ready(drained) = held.poll_drain(
                    context,
                    client,
                    progress.request,
                    (&mut progress.limits.download, &mut progress.outstanding),
                )
            {
                drained?;
            }
            // A stream takes what is left by itself, and what is held needs no server.
            if self.is_ended && (client.is_stream() || self.held.is_some()) {
                return Poll::Ready(Ok(()));
            }
            let is_small = self.is_first_flight && client.outstanding() < FIRST_FLIGHT_BYTES;
            if self.is_ended || !is_small {
                ready!(self.poll_room(context, client, progress))?;
            }
            if self.is_ended {
                return Poll::Ready(Ok(()));
            }
            if encoded >= BYTES_PER_POLL_MAX {
                budget::spend(Budget::Pieces, context);
                return Poll::Pending;
            }
            let (room, most) = match &mut self.pacer {
                None if progress.passed > 0 => (progress.down.read_bytes().min(LARGE_BYTES), BYTES_PER_POLL_MAX),
                None => (0, BYTES_PER_POLL_MAX),
                Some(pacer) => match pacer.poll_leave(context) {
                    Poll::Ready(most) => (0, most.min(PIECE_BYTES)),
                    Poll::Pending if self.flush(client, progress)? || std::mem::take(&mut self.is_first_flight) => {
                        continue;
                    }
                    Poll::Pending => {
                        progress.limits.download.wait_for(Side::Pace, &progress.core);
                        return Poll::Pending;
                    }
                },
            };
            let most = client.part_max().min(most);
            let Poll::Ready(part) = self.poll_part(context, (server, &progress.core), (room, most)) else {
                // Nothing that the server has sent is kept while the server is waited for.
                if self.flush(client, progress)? || std::mem::take(&mut self.is_first_flight) {
                    continue;
                }
                progress.wait_beside(self.held.as_deref());
                return Poll::Pending;
            };
            progress.limits.download.clear();
            let length = self.pass(client, progress, part?)?;
            if let Some(pacer) = &mut self.pacer {
                pacer.took(length);
            }
            encoded += length;
            progress.passed += length as u64;
            progress.outstanding = client.outstanding();
            if progress.outstanding == 0 {
                server.widen(&client.client, progress.passed);
            }
            progress.down.note_long(length >= PIECE_BYTES && self.pacer.is_none());
        }
    }

    /// The next part. One that is slowed down has no more bytes than may go.
    fn poll_part(
        &mut self,
        context: &mut Context<'_>,
        (server, core): (&mut Upstream, &Services),
        (room, most): (usize, usize),
    ) -> Poll<Result<Part, Stop>> {
        let part = match self.early.take() {
            Some(part) => part,
            None => ready!(server.poll_part(context, core, (room, most)))?,
        };
        let Part { data: Some(mut data), end } = part else { return Poll::Ready(Ok(part)) };
        if self.pacer.is_none() || data.len() <= most {
            return Poll::Ready(Ok(Part { data: Some(data), end }));
        }
        let front = cut(&mut data, most);
        self.early = Some(Part { data: Some(data), end });
        Poll::Ready(Ok(Part { data: Some(front), end: None }))
    }

    /// Ready when another part may be read, or when the client has the last.
    fn poll_room(
        &mut self,
        context: &mut Context<'_>,
        client: &mut Downstream<'_>,
        progress: &mut Progress<'_>,
    ) -> Poll<Result<(), Stop>> {
        let room = client.poll_room(context);
        progress.note_taken(client.outstanding());
        // Parts that are held come before those that are read.
        let waits = room.is_pending() || self.held.as_ref().is_some_and(|held| !held.is_empty());
        if waits {
            match self.held.as_mut().map(|held| held.poll_room(context)) {
                Some(Poll::Ready(room)) => room?,
                _ => {
                    progress.wait_for_client(self.held.as_deref());
                    return Poll::Pending;
                }
            }
        }
        if let Poll::Ready(room) = room { Poll::Ready(room) } else { Poll::Ready(Ok(())) }
    }

    /// Hands a part of the body on, or what the encoder makes of it. Returns its length.
    fn pass(&mut self, client: &mut Downstream<'_>, progress: &mut Progress<'_>, part: Part) -> Result<usize, Stop> {
        self.is_ended = part.end.is_some();
        let Some(lease) = &mut self.lease else {
            return pass(&mut self.held, client, progress, part);
        };
        let Part { data, end } = part;
        let mut data = data.unwrap_or_default();
        let length = data.len();
        lease.write(data.readable(), &mut self.out).map_err(failed)?;
        progress.core.buffers.release(&mut data);
        if end.is_some() {
            lease.finish(&mut self.out).map_err(failed)?;
        }
        let metrics = &progress.core.telemetry.compression;
        progress.core.metrics.add(metrics.bytes_in(lease.kind.encoding), length as u64);
        self.hand_over(client, progress, end.map(trailers::kept))?;
        Ok(length)
    }

    /// Hands on what the encoder holds; false if it holds nothing.
    fn flush(&mut self, client: &mut Downstream<'_>, progress: &mut Progress<'_>) -> Result<bool, Stop> {
        let Some(lease) = self.lease.as_mut().filter(|lease| lease.holds()) else { return Ok(false) };
        lease.flush(&mut self.out).map_err(failed)?;
        self.hand_over(client, progress, None)?;
        Ok(true)
    }

    fn hand_over(
        &mut self,
        client: &mut Downstream<'_>,
        progress: &mut Progress<'_>,
        end: Option<Vec<u8>>,
    ) -> Result<(), Stop> {
        let Some(lease) = &self.lease else { return Ok(()) };
        if self.out.is_empty() && end.is_none() {
            return Ok(());
        }
        let metrics = &progress.core.telemetry.compression;
        progress.core.metrics.add(metrics.bytes_out(lease.kind.encoding), self.out.len() as u64);
        let data = (!self.out.is_empty()).then(|| progress.core.buffers.copy(&self.out));
        self.out.clear();
        pass(&mut self.held, client, progress, Part { data, end })?;
        Ok(())
    }
}

/// Hands a part on, or holds it.
fn pass(
    held: &mut Option<Box<HeldResponse>>,
    client: &mut Downstream<'_>,
    progress: &mut Progress<'_>,
    part: Part,
) -> Result<usize, Stop> {
    match held {
        Some(held) => held.pass(client, progress.request, part),
        None => client.pass(progress.request, part),
    }
}

/// Decides what becomes of a response of a route with steps.
#[cold]
fn rewriting(transfer: &mut Transfer<'_>) -> Option<Rewriting> {
    let progress = &mut transfer.progress;
    if let Upload::Held(_) = progress.upload
        && progress.sent
    {
        // Nobody asks for it again.
        *progress.upload = Upload::Whole(0);
        progress.request.held = None;
    }
    match WebCall::begin(transfer) {
        Some(call) => Some(Rewriting::Web(call)),
        None => decide(transfer).map(|compression| Rewriting::Compressed(Box::new(compression))),
    }
}

/// Decides which steps a response goes through. None but the pace is for one that begins before its request has been
/// sent: it goes on beside that, and otherwise as it is.
fn decide(transfer: &mut Transfer<'_>) -> Option<Compression> {
    let steps = Rc::clone(&transfer.progress.request.steps.as_ref()?.steps);
    let mut pacer = Pacer::of(transfer.progress.request, Way::Download, &transfer.progress.core);
    let plan = plan(transfer, &steps);
    let held = HeldResponse::of(transfer, &mut pacer).map(Box::new);
    if pacer.is_none() && plan.is_none() && held.is_none() {
        return None;
    }
    let (rewrite, lease) = plan.map_or((None, None), |plan| (Some(plan.rewrite), plan.lease));
    let is_first_flight = !transfer.client.is_stream();
    Some(Compression { rewrite, lease, held, pacer, early: None, out: Vec::new(), is_first_flight, is_ended: false })
}

/// How a response is compressed, or said to be one that could have been; `None`: its head goes on as it is.
fn plan(transfer: &mut Transfer<'_>, steps: &Steps) -> Option<Plan> {
    let Transfer { client, server, progress } = transfer;
    let rules = steps.compress.as_ref().filter(|_| progress.sent)?;
    let (request, core) = (&*progress.request, &progress.core);
    let (is_tls, is_identified) = (client.client.is_tls(), client.client.is_identified());
    let asked = Asked { head: &request.head, text: &request.text, is_tls, is_identified };
    let answered = Answered { head: &request.response, text: server.head_text(), lines: &request.lines };
    let plan = Plan::of(rules, &asked, answered, &core.encoders)?;
    let metrics = &core.telemetry.compression;
    if let Some(skip) = plan.skip {
        core.metrics.increment(metrics.skipped.of(skip.label()));
    }
    if let Some(lease) = &plan.lease {
        core.metrics.increment(metrics.responses(lease.kind.encoding));
    }
    if plan.is_vary_alone() {
        // A line of the engine's is all that is added.
        if !plan.rewrite.varies {
            progress.request.lines.extend_from_slice(VARY_LINE);
        }
        if progress.request.response.status == 304 {
            // As [`Rewrite::apply`] has it.
            progress.request.response.withhold_length();
        }
        return None;
    }
    Some(plan)
}

fn failed(_: Failed) -> Stop {
    server_fault(Fault::EncoderFailed)
}
