//! Clients that leave half-way, by FIN or by reset, or stay and say nothing: they do so at their own fault, and at
//! nobody else's loss.

use super::answer::RequestEnd;
use super::context::{Endpoint, LoadContext, PendingRequest};
use crate::content::{Content, Side};
use crate::model::{Kind, Outcome};
use crate::wire::Wire;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

/// Longer than the engine waits for a head.
const STALL: Duration = Duration::from_millis(5_500);
/// With a single step.
const STEP_MAX: Duration = Duration::from_secs(10);

pub async fn run_client(context: &LoadContext, kind: Kind) {
    while !context.is_over() {
        let mut pending = context.pending(kind);
        let endpoint = if context.draw(0..2) == 0 { Endpoint::Plain } else { Endpoint::Secure };
        let ending = match context.connect(endpoint, 0).await {
            Err(stage) => RequestEnd::unopened(stage),
            Ok((wire, number)) => {
                pending.connection = number;
                misbehave(context, &pending, wire).await;
                RequestEnd::of(Outcome::Abandoned)
            }
        };
        context.note(pending, ending);
        sleep(Duration::from_millis(context.draw(50..400))).await;
    }
}

async fn misbehave(context: &LoadContext, pending: &PendingRequest, mut wire: Wire) {
    let (id, name) = (pending.id, crate::certificates::NAME);
    let get = |bytes| format!("GET /c/{id}/{bytes}/5/length HTTP/1.1\r\nHost: {name}\r\n\r\n").into_bytes();
    let post = |length: usize| {
        let head = format!("POST /c/{id}/0/0/length HTTP/1.1\r\nHost: {name}\r\nContent-Length: {length}\r\n\r\n");
        head.into_bytes()
    };
    let conduct = if pending.kind == Kind::MisbehavingPost { context.draw(4..6) } else { context.draw(0..4) };
    match conduct {
        // Half a head, and no more.
        0 => send(&mut wire, b"GET /c/").await,
        // The same, and it stays.
        1 => {
            send(&mut wire, b"GET /c/").await;
            let _ = timeout(STALL, wire.read_u8()).await;
        }
        // A request, and nobody there for the answer.
        2 => send(&mut wire, &get(10_000)).await,
        // A large answer of which only the start is wanted.
        3 => {
            send(&mut wire, &get(2_000_000)).await;
            let _ = timeout(STEP_MAX, wire.read_exact(&mut [0; 2_000])).await;
        }
        // Half a body.
        4 => {
            let body = Content::of(id, Side::Request).bytes(0, 20_000);
            send(&mut wire, &[post(body.len()), body[..9_000].to_vec()].concat()).await;
            sleep(Duration::from_millis(context.draw(0..300))).await;
        }
        // A whole one, carried out or not.
        _ => {
            let body = Content::of(id, Side::Request).bytes(0, 3_000);
            send(&mut wire, &[post(body.len()), body].concat()).await;
        }
    }
    if context.draw(0..2) == 0 {
        wire.abort_on_drop();
    }
}

async fn send(wire: &mut Wire, bytes: &[u8]) {
    let sending = async {
        wire.write_all(bytes).await?;
        wire.flush().await
    };
    let _ = timeout(STEP_MAX, sending).await;
}
