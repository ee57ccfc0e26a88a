//! The life of a stream of a client's HTTP/2 connection, which is that of a request.

use std::rc::Rc;
use std::time::Instant;

use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use propylon_http::fault::Fault;
use propylon_http::h1::{self, Parsed, Reject, Version};

use crate::client::h2_connection::ClientH2Connection;
use crate::client::h2_stream::Stream;
use crate::client::side::ClientSide;
use crate::exchange;
use crate::http2::{Ahead, Piece, translate};
use crate::request::{After, Request};

/// Serves one request.
pub async fn serve(
    link: Rc<ClientH2Connection>,
    ordinal: u32,
    head: http::Request<RecvStream>,
    respond: SendResponse<Piece>,
) {
    let core = Rc::clone(&link.core);
    let mut request = core.request();
    request.begin(Instant::now());
    let (parts, body) = head.into_parts();
    let uploads = !body.is_end_stream();
    if uploads {
        link.upload_began();
    }
    let deadline = core.timers.deadline();
    let abort_reason = Reason::INTERNAL_ERROR;
    let mut stream = Stream {
        link,
        deadline,
        ordinal,
        body,
        ahead: Ahead::default(),
        respond,
        send: None,
        meter: None,
        uploads,
        certain: true,
        abort_reason,
        cut_short: false,
    };
    let taken = stream.take_head(&mut request, &parts);
    drop(parts);
    let after = match taken {
        Ok(()) => exchange::exchange(&mut ClientSide::Http2(&mut stream), &mut request).await,
        Err(reject) => {
            exchange::refuse(&mut ClientSide::Http2(&mut stream), &mut request, reject);
            stream.flush().await
        }
    };
    if after == After::Abort {
        if stream.cut_short {
            // The library drops its bytes of a reset stream. Should the client not take it in its time, so be it.
            stream.certain = false;
            stream.flush().await;
        }
        stream.reset();
    }
    core.give_request_back(request);
}

impl Stream {
    /// Writes the head as HTTP/1.1 would have it, and reads it as strictly as one that came so.
    fn take_head(&mut self, request: &mut Request, parts: &http::request::Parts) -> Result<(), Reject> {
        let core = &self.link.core;
        let snapshot = core.snapshot();
        let listener = snapshot.listener(&self.link.listener);
        let ended = self.body.is_end_stream();
        let path = self.link.intake.borrow_mut().path(self.id());
        translate::write_request(parts, path.as_deref(), ended, &mut core.random.borrow_mut(), &mut request.text)?;
        // Both are bounded by the library already, but for what the text adds.
        let limits = h1::Limits {
            head_bytes: listener.limits.head_bytes + translate::OVERHEAD_BYTES_MAX,
            headers: listener.limits.headers + translate::FIELDS_ADDED_MAX,
        };
        let fields = parts.headers.len();
        if fields > listener.limits.headers {
            return Err(Reject::of(Fault::TooManyFields));
        }
        let Parsed::Complete = h1::parse_request(&request.text, &limits, &mut request.head)? else {
            return Err(Reject::of(Fault::HeadCutShort));
        };
        request.head.version = Version::Http2;
        request.note.bytes_received = request.text.len() as u64;
        request.note.head_us = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of_future<A, B, C, D, F>(_: fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_request_in_progress_is_a_small_future() {
        let size = bytes_of_future(serve);
        // The balancer's turn, the wait for a stream and its place in the queue are in it; it ends with the request.
        assert!(size <= 1784, "{size} bytes");
    }
}
