//! Requests made ready for servers of HTTP/1.0, which know neither chunks nor expectations nor upgrades (RFC 1945).

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use propylon_http::fault::Fault;
use propylon_http::h1::{self, Decoder, Event, Name, RequestBody, ResponseHead, Version};
use propylon_net::buffer::LARGE_BYTES;
use propylon_observe::telemetry::Wait;

use super::transfer::{Stop, Upload, decoded, poll_fill};
use crate::client::connection::Connection;
use crate::client::side::ClientSide;
use crate::request::{After, Request};
use crate::upstream::checkout::{Client, Refusal};

/// Bytes of a chunked body, its chunks included, that are waited for.
const BODY_BYTES_MAX: usize = LARGE_BYTES / 2;

/// Makes a request one of HTTP/1.0. A body of unknown length is waited for until it is whole, if it is no longer than a
/// buffer, or than what its stream may send ahead.
///
/// # Errors
/// The client is gone or too slow, its body is too long, or what it asks for is not to be had in HTTP/1.0.
pub async fn prepare(client: &mut ClientSide<'_>, request: &mut Request, upload: &mut Upload) -> Result<(), Refusal> {
    // Each of them once: a second attempt finds them done.
    request.adds_lines = true;
    request.head.te_trailers = false;
    request.head.fields.withhold_kinds(|kind| kind == Name::Trailer);
    if request.head.upgrade.take().is_some() && matches!(client, ClientSide::Http2(_)) {
        // A server that does not switch answers as if it had not been asked; a stream has no way to hear that.
        return Err(Refusal::Unfit(Fault::NoUpgrade));
    }
    if std::mem::take(&mut request.head.expect_continue) {
        go_on(client, request).await?;
    }
    if request.head.body != RequestBody::Chunked || upload.kept().is_some() {
        return Ok(());
    }
    if upload.is_held() {
        // All of it has a length; some of it was more than the engine had room for.
        let length = upload.held_length().ok_or(Refusal::Unfit(Fault::LengthRequired))?;
        request.head.body = RequestBody::Length(length);
        return Ok(());
    }
    let timeout = client.core().snapshot().listener(client.listener()).timeouts.body.as_millis() as u64;
    let limit = request.body_limit().unwrap_or(u64::MAX);
    match client {
        ClientSide::Http1(connection) => {
            let due = connection.core.timers.now() + timeout;
            let length = await_chunks(connection, due).await?;
            let length = unwrap_chunks(connection, length);
            if length as u64 > limit {
                return Err(Refusal::Unfit(Fault::BodyTooLong));
            }
            request.head.body = RequestBody::Length(length as u64);
            *upload = Upload::Whole(length);
        }
        ClientSide::Http2(_) => await_stream(client, timeout).await?,
    }
    Ok(())
}

/// Tells the client to send its body, which the server does not.
async fn go_on(client: &mut ClientSide<'_>, request: &Request) -> Result<(), Refusal> {
    match client {
        ClientSide::Http1(connection) if request.head.version >= Version::Http11 => {
            let core = Rc::clone(&connection.core);
            connection.stream.stage(h1::CONTINUE, &core.buffers, &mut connection.wire);
            match connection.flush().await {
                After::Abort => Err(Refusal::ClientGone(Fault::ClientReset)),
                _ => Ok(()),
            }
        }
        ClientSide::Http1(_) => Ok(()),
        ClientSide::Http2(stream) => {
            let mut interim = ResponseHead::default();
            interim.status = 100;
            stream.send_informational(&interim, b"");
            Ok(())
        }
    }
}

/// Waits until all chunks of a body are in the inbox. Returns how many bytes they take there.
async fn await_chunks(connection: &mut Connection, due: u64) -> Result<usize, Refusal> {
    let core = Rc::clone(&connection.core);
    let (mut decoder, mut at) = (Decoder::new(), 0);
    poll_fn(|context| {
        loop {
            match pass_chunks(&mut decoder, connection.inbox.readable(), &mut at) {
                Ok(true) => return Poll::Ready(Ok(at)),
                Ok(false) if connection.inbox.len() < BODY_BYTES_MAX => {}
                Ok(false) => return Poll::Ready(Err(Refusal::Unfit(Fault::LengthRequired))),
                Err(_) => return Poll::Ready(Err(Refusal::Unfit(Fault::BadBody))),
            }
            core.buffers.enlarge(&mut connection.inbox);
            match poll_fill(connection, context, BODY_BYTES_MAX) {
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Ok(false)) => return Poll::Ready(Err(Refusal::ClientGone(Fault::ClientClosed))),
                Poll::Ready(Err(Stop::Client(fault))) => return Poll::Ready(Err(Refusal::ClientGone(fault))),
                Poll::Ready(Err(Stop::Server(failed))) => return Poll::Ready(Err(Refusal::Failed(failed))),
                Poll::Pending if core.timers.now() >= due => {
                    connection.count_timeout(Wait::RequestBody);
                    return Poll::Ready(Err(Refusal::Unfit(Fault::ClientBodyTimeout)));
                }
                Poll::Pending => {
                    connection.deadline.set(due, context.waker());
                    return Poll::Pending;
                }
            }
        }
    })
    .await
}

/// Looks at what has come of a chunked body since the last look, which ended at `at`. Whether that is its end.
fn pass_chunks(decoder: &mut Decoder, bytes: &[u8], at: &mut usize) -> Result<bool, h1::Reject> {
    loop {
        match decoder.next(&bytes[*at..])? {
            Event::Data { end, .. } => *at += end,
            Event::NeedMore { consumed } => {
                *at += consumed;
                return Ok(false);
            }
            Event::End { consumed } => {
                *at += consumed;
                return Ok(true);
            }
        }
    }
}

/// Puts the data of a chunked body, which takes so many bytes at the inbox's front, in its place, without trailers.
/// Returns how long it is.
fn unwrap_chunks(connection: &mut Connection, length: usize) -> usize {
    let inbox = &mut connection.inbox;
    let (data, _) = decoded(&inbox.readable()[..length]);
    // Data is shorter than its chunks: it ends where they do.
    let front = length - data.len();
    inbox.readable_mut()[front..length].copy_from_slice(&data);
    inbox.consume(front);
    data.len()
}

async fn await_stream(client: &mut ClientSide<'_>, timeout: u64) -> Result<(), Refusal> {
    let core = Rc::clone(client.core());
    let due = core.timers.now() + timeout;
    poll_fn(|context| {
        let ClientSide::Http2(stream) = &mut *client else { return Poll::Ready(Ok(())) };
        if let Poll::Ready(is_whole) = stream.poll_whole(context) {
            return Poll::Ready(if is_whole { Ok(()) } else { Err(Refusal::Unfit(Fault::LengthRequired)) });
        }
        if stream.poll_gone(context).is_ready() {
            return Poll::Ready(Err(Refusal::ClientGone(Fault::ClientReset)));
        }
        if core.timers.now() >= due {
            stream.link.count_timeout(Wait::RequestBody);
            return Poll::Ready(Err(Refusal::Unfit(Fault::ClientBodyTimeout)));
        }
        client.deadline().set(due, context.waker());
        Poll::Pending
    })
    .await
}
