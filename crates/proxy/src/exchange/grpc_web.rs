//! Calls of gRPC-Web on their way to servers of gRPC: the head is told anew, and a body in base64 is taken whole first,
//! since no browser streams one.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use propylon_http::fault::Fault;
use propylon_http::h1::{self, RequestBody, ResponseHead, whole_chunked, write_line};
use propylon_net::budget::{self, Budget};
use propylon_observe::telemetry::Wait;
use propylon_steps::grpc_web::{Call, Decoder, TEXT_BYTES_MAX};

use super::answers::answer_fault;
use super::transfer::{decoded, poll_fill};
use crate::client::connection::Connection;
use crate::client::h2_stream::Stream;
use crate::client::side::ClientSide;
use crate::request::{After, Request};
use crate::snapshot::CoreSnapshot;
use crate::upstream::checkout::Client;

/// Bytes of base64 that are decoded before others have their turn, and at a time.
const TEXT_BYTES_PER_POLL_MAX: usize = 64 * 1024;
const PIECE_BYTES: usize = 16 * 1024;

/// Makes a call of gRPC of a request, if it is one of gRPC-Web.
///
/// # Errors
/// The request has been answered, or is over: its body is none of base64, too long, or has not come.
pub async fn take(client: &mut ClientSide<'_>, request: &mut Request, snapshot: &CoreSnapshot) -> Result<(), After> {
    let Some(mut call) = Call::of(&request.head, &request.text) else { return Ok(()) };
    if call.is_text {
        let taken = take_body(client, request, snapshot).await;
        call.body = taken.map_err(|fault| refuse(client, request, fault))?;
    }
    request.head.fields.withhold(&request.text, ["content-type"].into_iter());
    request.head.te_trailers = true;
    request.adds_lines = true;
    if let Some(changed) = &mut request.changed {
        write_line(b"Content-Type", &call.content_type, &mut changed.lines);
        changed.call = Some(call);
    }
    Ok(())
}

fn refuse(client: &mut ClientSide<'_>, request: &mut Request, fault: Fault) -> After {
    client.core().metrics.increment(client.metrics().faults.of(fault));
    if fault.status() == 0 {
        request.note.fault = Some(fault);
        return After::Abort;
    }
    if fault == Fault::ClientBodyTimeout {
        client.count_timeout(Wait::RequestBody);
    }
    answer_fault(client, request, fault)
}

/// Takes a body in base64 whole, within the listener's `timeouts.body`. That of a connection is put back into its inbox
/// as what it stands for; that of a stream is returned.
async fn take_body(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    snapshot: &CoreSnapshot,
) -> Result<Option<Box<[u8]>>, Fault> {
    let timers = Rc::clone(&client.core().timers);
    let deadline = timers.deadline();
    let due = timers.now() + snapshot.listener(client.listener()).timeouts.body.as_millis() as u64;
    let mut taking = Taking::default();
    poll_fn(|context| {
        let polled = match client {
            ClientSide::Http1(connection) => {
                poll_connection(connection, request, &mut taking, context).map_ok(|()| None)
            }
            ClientSide::Http2(stream) => {
                poll_stream(stream, request, &mut taking, context).map_ok(|body| Some(body.into_boxed_slice()))
            }
        };
        if polled.is_pending() && timers.now() >= due {
            return Poll::Ready(Err(Fault::ClientBodyTimeout));
        }
        deadline.set(due, context.waker());
        polled
    })
    .await
}

/// A body in base64 that is being taken.
#[derive(Default)]
struct Taking {
    decoder: Decoder,
    /// Bytes of the text that have gone into it.
    decoded: usize,
    /// Data of chunks that were unwrapped.
    unwrapped: Option<Vec<u8>>,
}

impl Taking {
    /// Decodes what of the text has not been, as far as one turn pays for. `spent`: bytes that this turn has had.
    fn poll_decode(&mut self, text: &[u8], spent: &mut usize, context: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        for piece in text[self.decoded..].chunks(PIECE_BYTES) {
            if *spent >= TEXT_BYTES_PER_POLL_MAX {
                budget::spend(Budget::Pieces, context);
                return Poll::Pending;
            }
            self.decoder.take(piece).map_err(|_| Fault::BadBody)?;
            self.decoded += piece.len();
            *spent += piece.len();
        }
        Poll::Ready(Ok(()))
    }

    fn end(&mut self) -> Result<Vec<u8>, Fault> {
        std::mem::take(&mut self.decoder).end().ok_or(Fault::BadBody)
    }
}

fn poll_connection(
    connection: &mut Connection,
    request: &mut Request,
    taking: &mut Taking,
    context: &mut Context<'_>,
) -> Poll<Result<(), Fault>> {
    let length = match request.head.body {
        RequestBody::None => 0,
        RequestBody::Length(length) if length > TEXT_BYTES_MAX as u64 => return Poll::Ready(Err(Fault::BodyTooLong)),
        RequestBody::Length(length) => length as usize,
        // Browsers know the length of what they send.
        RequestBody::Chunked => whole_chunked(connection.inbox.readable()).ok_or(Fault::LengthRequired)?,
    };
    if connection.inbox.len() < length && std::mem::take(&mut request.head.expect_continue) {
        let core = Rc::clone(&connection.core);
        connection.stream.stage(h1::CONTINUE, &core.buffers, &mut connection.wire);
    }
    let mut spent = 0;
    if request.head.body == RequestBody::Chunked {
        let mut text = taking.unwrapped.take().unwrap_or_else(|| decoded(&connection.inbox.readable()[..length]).0);
        let polled = taking.poll_decode(&text, &mut spent, context);
        taking.unwrapped = polled.is_pending().then(|| std::mem::take(&mut text));
        ready!(polled)?;
    } else {
        loop {
            let here = connection.inbox.len().min(length);
            ready!(taking.poll_decode(&connection.inbox.readable()[..here], &mut spent, context))?;
            if here == length {
                break;
            }
            let Connection { stream, wire, core, .. } = &mut *connection;
            let _ = stream.poll_flush(context, &core.buffers, wire);
            if !ready!(poll_fill(connection, context, 0)).map_err(|_| Fault::ClientReset)? {
                return Poll::Ready(Err(Fault::ClientClosed));
            }
        }
    }
    let body = taking.end()?;
    let dropped = length - body.len();
    connection.inbox.readable_mut()[dropped..length].copy_from_slice(&body);
    connection.inbox.consume(dropped);
    request.note.bytes_received += dropped as u64;
    request.head.body = RequestBody::Length(body.len() as u64);
    Poll::Ready(Ok(()))
}

fn poll_stream(
    stream: &mut Stream,
    request: &mut Request,
    taking: &mut Taking,
    context: &mut Context<'_>,
) -> Poll<Result<Vec<u8>, Fault>> {
    if matches!(request.head.body, RequestBody::None | RequestBody::Length(0)) {
        return Poll::Ready(Ok(Vec::new()));
    }
    if std::mem::take(&mut request.head.expect_continue) && !stream.has_data() {
        let mut interim = ResponseHead::default();
        interim.status = 100;
        stream.send_informational(&interim, b"");
    }
    let core = Rc::clone(&stream.link.core);
    let bytes_max = request.body_limit().map_or(TEXT_BYTES_MAX, |limit| TEXT_BYTES_MAX.min(limit as usize));
    let mut spent = 0;
    loop {
        if spent >= TEXT_BYTES_PER_POLL_MAX {
            budget::spend(Budget::Pieces, context);
            return Poll::Pending;
        }
        let Some(mut piece) = ready!(stream.poll_some(PIECE_BYTES, context))? else { break };
        request.note.bytes_received += piece.len() as u64;
        let taken = taking.decoder.take(piece.readable());
        spent += piece.len();
        taking.decoded += piece.len();
        stream.release(piece.len());
        core.buffers.release(&mut piece);
        taken.map_err(|_| Fault::BadBody)?;
        if taking.decoded > bytes_max {
            return Poll::Ready(Err(Fault::BodyTooLong));
        }
    }
    let body = taking.end()?;
    request.head.body = if body.is_empty() { RequestBody::None } else { RequestBody::Chunked };
    Poll::Ready(Ok(body))
}
