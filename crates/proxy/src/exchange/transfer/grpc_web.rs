//! A response of gRPC on its way to a browser: a transfer in pieces, with the trailers as the last of the body.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use propylon_http::h1::ResponseBody;
use propylon_net::budget::{self, Budget, PIECES_PER_POLL_MAX};
use propylon_net::buffer::Buffer;
use propylon_steps::grpc_web::{Response, is_of_grpc};

use super::downstream::Head;
use super::limits::Side;
use super::progress::PIECE_BYTES;
use super::stop::Stop;
use super::upstream::part::Part;
use super::{Ended, Transfer};
use crate::exchange::response::kept_trailers;

/// A response whose head is told anew, and whose body ends with its trailers.
pub struct WebCall {
    response: Response,
    /// Text of the head, for as long as that has not been sent.
    text: Vec<u8>,
    /// The end of the body is with the client's side.
    is_ended: bool,
}

impl WebCall {
    /// Begins with a response whose head is complete; `None`: it goes on as it is.
    pub fn begin(transfer: &mut Transfer<'_>) -> Option<WebCall> {
        let Transfer { server, progress, .. } = transfer;
        let wants_text = progress.request.changed.as_ref()?.call.as_ref()?.wants_text;
        let response = &mut progress.request.response;
        if response.body == ResponseBody::None || !is_of_grpc(response, server.head_text()) {
            return None;
        }
        let is_over = !server.begin_body(response);
        let length = response.length;
        let (response, text) = Response::begin(response, server.head_text(), (is_over, wants_text))?;
        server.skip_head(length);
        Some(WebCall { response, text, is_ended: false })
    }

    pub async fn relay(mut self, transfer: &mut Transfer<'_>) -> Ended {
        if let Err(stop) = self.send_head(transfer) {
            return transfer.fail(stop);
        }
        match poll_fn(|context| self.poll_body(transfer, context)).await {
            Ok(()) => Ended::Over(transfer.over()),
            Err(stop) => transfer.fail(stop),
        }
    }

    fn send_head(&mut self, transfer: &mut Transfer<'_>) -> Result<(), Stop> {
        let is_leaving = transfer.is_leaving();
        let Transfer { client, progress, .. } = transfer;
        client.commit(progress.upload, progress.request);
        progress.keeps = progress.request.head.keep_alive && progress.upload.is_read() && !is_leaving;
        let (text, keep_alive) = (std::mem::take(&mut self.text), progress.keeps);
        client.send_head(progress.request, &Head { text: &text, first_flight: 0, is_body: true, keep_alive })
    }

    fn poll_body(&mut self, transfer: &mut Transfer<'_>, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        if !self.is_ended {
            transfer.poll_upload(context)?;
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
        for _ in 0..PIECES_PER_POLL_MAX {
            // A stream takes what is left by itself.
            if self.is_ended && client.is_stream() {
                return Poll::Ready(Ok(()));
            }
            let room = client.poll_room(context);
            progress.note_taken(client.outstanding());
            if room.is_pending() {
                progress.limits.download.wait_for(Side::Client, &progress.core);
                return Poll::Pending;
            }
            ready!(room)?;
            if self.is_ended {
                progress.limits.upload.clear();
                return Poll::Ready(Ok(()));
            }
            let (bytes, is_last) = match self.response.take_early() {
                Some(bytes) => (bytes, true),
                None => {
                    let most = client.part_max().min(PIECE_BYTES);
                    let Poll::Ready(part) = server.poll_part(context, &progress.core, (0, most)) else {
                        progress.limits.download.wait_for(Side::Server, &progress.core);
                        return Poll::Pending;
                    };
                    let Part { data, end } = part?;
                    let mut data = data.unwrap_or_default();
                    let end = end.map(|lines| kept_trailers(&client.client, progress.request, lines));
                    let bytes = self.response.part(data.readable(), end.as_deref());
                    progress.core.buffers.release(&mut data);
                    (bytes, end.is_some())
                }
            };
            progress.limits.download.clear();
            self.is_ended = is_last;
            let data = (!bytes.is_empty()).then(|| Buffer::exactly(&bytes));
            progress.passed += bytes.len() as u64;
            client.pass(progress.request, Part { data, end: is_last.then(Vec::new) })?;
            progress.outstanding = client.outstanding();
        }
        budget::spend(Budget::Pieces, context);
        Poll::Pending
    }
}
