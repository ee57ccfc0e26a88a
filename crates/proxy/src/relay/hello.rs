//! The name in a client's hello, read while its bytes wait to be handed on as they came.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use propylon_http::fault::Fault;
use propylon_observe::telemetry::Wait;
use propylon_tls::Session;
use propylon_tls::hello::Peeker;

use super::note::{DECODE_ERROR, Refusal};
use crate::client::connection::Connection;

/// Bytes of a hello with its record headers, at most: as many as where TLS ends here. Records of a few bytes each could
/// make it longer, and nobody sends such.
const HELLO_BYTES_MAX: usize = Session::WANT_MAX;
const READ_BYTES_MIN: usize = 1024;
/// RFC 8446 §5.1.
const HANDSHAKE: u8 = 22;

/// The name that the client asks for, lower-case, if any. Its bytes stay in the inbox.
pub async fn server_name(connection: &mut Connection) -> Result<Option<Box<str>>, Refusal> {
    let core = Rc::clone(&connection.core);
    let timeout = core.snapshot().listener(&connection.listener).timeouts.handshake.as_millis() as u64;
    let due = connection.accepted + timeout;
    let (mut peeker, mut scratch) = (Peeker::default(), Vec::new());
    core.buffers.equip(&mut connection.inbox);
    poll_fn(|context| {
        loop {
            let bytes = connection.inbox.readable();
            match peeker.peek(bytes, &mut scratch) {
                Ok(Some(hello)) => {
                    let name = hello.server_name().map(|name| name.trim_end_matches('.').to_ascii_lowercase().into());
                    return Poll::Ready(Ok(name));
                }
                Err(_) if bytes.first().is_some_and(|first| *first != HANDSHAKE) => {
                    return Poll::Ready(Err(Refusal::silent(Fault::NotTls)));
                }
                Ok(None) if bytes.len() < HELLO_BYTES_MAX => {}
                Ok(None) | Err(_) => {
                    return Poll::Ready(Err(Refusal { fault: Fault::BadHello, alert: Some(&DECODE_ERROR) }));
                }
            }
            match connection.stream.socket.poll_read(context, connection.inbox.spare(READ_BYTES_MIN)) {
                Poll::Pending => break,
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(Refusal::silent(Fault::ClientClosed))),
                Poll::Ready(Ok(count)) => connection.inbox.filled(count),
            }
        }
        if core.timers.now() >= due {
            connection.count_timeout(Wait::Handshake);
            return Poll::Ready(Err(Refusal::silent(Fault::HelloTimeout)));
        }
        connection.deadline.set(due, context.waker());
        Poll::Pending
    })
    .await
}
