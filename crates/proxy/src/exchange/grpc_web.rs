//! Calls of gRPC-Web on their way to servers of gRPC: the head is told anew, and a body in base64 is taken whole first,
//! since no browser streams one.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use propylon_http::fault::Fault;
use propylon_http::h1::{RequestBody, whole_chunked, write_line};
use propylon_observe::telemetry::Wait;
use propylon_steps::grpc_web::{Call, TEXT_BYTES_MAX, decode};

use super::answers::answer_fault;
use super::transfer::{decoded, poll_fill};
use crate::client::connection::Connection;
use crate::client::h2_stream::Stream;
use crate::client::side::ClientSide;
use crate::request::{After, Request};
use crate::snapshot::CoreSnapshot;
use crate::upstream::checkout::Client;

/// Interim response to a client that waits with its body.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

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
    let mut held = Vec::new();
    poll_fn(|context| {
        let polled = match client {
            ClientSide::Http1(connection) => poll_connection(connection, request, context).map_ok(|()| None),
            ClientSide::Http2(stream) => {
                poll_stream(stream, request, &mut held, context).map_ok(|body| Some(body.into_boxed_slice()))
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

fn poll_connection(
    connection: &mut Connection,
    request: &mut Request,
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
        connection.stream.stage(CONTINUE, &core.buffers, &mut connection.wire);
    }
    while connection.inbox.len() < length {
        let Connection { stream, wire, core, .. } = &mut *connection;
        let _ = stream.poll_flush(context, &core.buffers, wire);
        if !ready!(poll_fill(connection, context, 0)).map_err(|_| Fault::ClientReset)? {
            return Poll::Ready(Err(Fault::ClientClosed));
        }
    }
    let here = &mut connection.inbox.readable_mut()[..length];
    let body = match request.head.body {
        RequestBody::Chunked => decode(&decoded(here).0),
        _ => decode(here),
    };
    let body = body.ok_or(Fault::BadBody)?;
    let dropped = length - body.len();
    here[dropped..].copy_from_slice(&body);
    connection.inbox.consume(dropped);
    request.note.bytes_received += dropped as u64;
    request.head.body = RequestBody::Length(body.len() as u64);
    Poll::Ready(Ok(()))
}

fn poll_stream(
    stream: &mut Stream,
    request: &mut Request,
    held: &mut Vec<u8>,
    context: &mut Context<'_>,
) -> Poll<Result<Vec<u8>, Fault>> {
    if matches!(request.head.body, RequestBody::None | RequestBody::Length(0)) {
        return Poll::Ready(Ok(Vec::new()));
    }
    while let Some(mut piece) = ready!(stream.poll_data(context))? {
        request.note.bytes_received += piece.len() as u64;
        held.extend_from_slice(piece.readable());
        stream.release(piece.len());
        let core = Rc::clone(&stream.link.core);
        core.buffers.release(&mut piece);
        if held.len() > TEXT_BYTES_MAX {
            return Poll::Ready(Err(Fault::BodyTooLong));
        }
    }
    let body = decode(held).ok_or(Fault::BadBody)?;
    request.head.body = if body.is_empty() { RequestBody::None } else { RequestBody::Chunked };
    Poll::Ready(Ok(body))
}
