//! The life of a stream of a client's HTTP/2 connection, which is that of a request.

use std::rc::Rc;

use propylon_http::h1::Reject;

use crate::client::h2_stream::Stream;
use crate::client::side::ClientSide;
use crate::exchange;
use crate::request::{After, Request};

/// Serves one request, whose head was read, or refused.
pub async fn serve(mut stream: Stream, mut request: Box<Request>, rejected: Result<(), Reject>) {
    let core = Rc::clone(&stream.link.core);
    let after = match rejected {
        Ok(()) => exchange::exchange(&mut ClientSide::Http2(&mut stream), &mut request).await,
        Err(reject) => {
            exchange::refuse(&mut ClientSide::Http2(&mut stream), &mut request, reject);
            stream.flush().await
        }
    };
    if after == After::Abort {
        if stream.cut_short {
            // Bytes of a reset stream are dropped. Should the client not take them in its time, so be it.
            stream.flush().await;
        }
        stream.reset();
    }
    core.give_request_back(request);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of_future<A, B, C, F>(_: fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_request_in_progress_is_a_small_future() {
        let size = bytes_of_future(serve);
        // The balancer's turn, the wait for a stream and its place in the queue are in it; it ends with the request.
        assert!(size <= 1784, "{size} bytes");
    }
}
