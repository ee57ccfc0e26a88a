//! The PROXY protocol on sockets: a client's address as the proxy in front tells it, and as servers are told.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use propylon_http::proxy_protocol::{Header, Malformed, V2_BYTES_MAX, parse};

use crate::client::connection::Connection;

/// Reads the header that the connection begins with, and takes over what it says. False when there is none to be had:
/// whoever connects without one is not the proxy, and is not listened to.
pub async fn read(connection: &mut Connection) -> bool {
    let core = Rc::clone(&connection.core);
    let timeout = core.snapshot().listener(&connection.listener).timeouts.handshake.as_millis() as u64;
    let due = connection.accepted + timeout;
    core.buffers.equip(&mut connection.inbox);
    let result = poll_fn(|context| {
        loop {
            match parse(received(connection)) {
                Ok(Some(header)) => return Poll::Ready(Ok(header)),
                Ok(None) => {}
                Err(Malformed(reason)) => return Poll::Ready(Err(reason)),
            }
            let into = match connection.stream.tls {
                Some(_) => connection.inbox.sealed_spare(1024),
                None => connection.inbox.spare(1024),
            };
            // Not beyond what a header may have: what is longer than that is refused, and the rest is not ours yet.
            let room = into.len().min(V2_BYTES_MAX);
            match connection.stream.socket.poll_read(context, &mut into[..room]) {
                Poll::Pending => break,
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err("closed")),
                Poll::Ready(Ok(count)) if connection.stream.tls.is_some() => connection.inbox.sealed_filled(count),
                Poll::Ready(Ok(count)) => connection.inbox.filled(count),
            }
        }
        if core.timers.now() >= due {
            return Poll::Ready(Err("timeout"));
        }
        connection.deadline.set(due, context.waker());
        Poll::Pending
    })
    .await;
    match result {
        Ok(header) => {
            take_over(connection, &header);
            connection.admit_announced()
        }
        Err(reason) => {
            if let Some(refused) = connection.listener.proxy_refused() {
                core.metrics.increment(refused.of(reason));
            }
            log::debug!("{}: no header of the PROXY protocol: {reason}", connection.peer);
            false
        }
    }
}

/// Bytes that have come so far: a TLS client's lie where its records will be looked for.
fn received(connection: &mut Connection) -> &[u8] {
    if connection.stream.tls.is_none() {
        return connection.inbox.readable();
    }
    let (window, sealed) = connection.inbox.sealed_window();
    &window[sealed]
}

fn take_over(connection: &mut Connection, header: &Header) {
    match connection.stream.tls {
        Some(_) => connection.inbox.opened(header.length, 0),
        None => connection.inbox.consume(header.length),
    }
    if let Some(ends) = header.ends {
        connection.stand_for(ends);
    }
}
