//! Clients that talk: messages go out and come back, through a WebSocket-like upgrade or a relay, for seconds.

use super::answer::RequestEnd;
use super::context::{CLIENT_TIMEOUT, Endpoint, LoadContext, PendingRequest};
use super::http1::{Connection, how};
use crate::clock::{micros, now};
use crate::content::{Content, Side};
use crate::model::{Kind, Outcome, Stage};
use crate::timeline::parse_server;
use crate::wire::Wire;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

const MESSAGE_BYTES: std::ops::Range<u64> = 1..5_000;
const LASTS_MILLISECONDS: std::ops::Range<u64> = 1_000..9_000;
const PAUSE_MILLISECONDS: std::ops::Range<u64> = 10..80;
/// Key of every upgrade, the same each time so that servers know the answer (RFC 6455 §1.3).
const WEBSOCKET_KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
/// A server's name and a line feed.
const BANNER_BYTES_MAX: usize = 16;

pub async fn run_client(context: &LoadContext, kind: Kind, index: usize) {
    while !context.is_over() {
        let mut pending = context.pending(kind);
        let ending = match kind {
            Kind::Relay => relay(context, &mut pending, index).await,
            _ => upgrade(context, &mut pending, index).await,
        };
        context.note(pending, ending);
        context.think().await;
    }
}

async fn upgrade(context: &LoadContext, pending: &mut PendingRequest, index: usize) -> RequestEnd {
    let endpoint = if index.is_multiple_of(2) { Endpoint::Secure } else { Endpoint::Plain };
    let opening = async {
        let (wire, number) = context.connect(endpoint, index).await.map_err(RequestEnd::unopened)?;
        pending.connection = number;
        let mut connection = Connection::new(wire, number);
        let name = crate::certificates::NAME;
        let id = pending.id;
        let request = format!(
            "GET /ws/{id} HTTP/1.1\r\nHost: {name}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {WEBSOCKET_KEY}\r\n\r\n"
        );
        let head = connection.upgraded(id, &request).await?;
        Ok((connection, head))
    };
    let (mut connection, head) = match timeout(CLIENT_TIMEOUT, opening).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(ending)) => return ending,
        Err(_) => return RequestEnd::of(Outcome::Late),
    };
    let ended = |outcome| RequestEnd { outcome, status: Some(101), server: head.server };
    if head.id != Some(pending.id) || head.server.is_none() {
        return ended(Outcome::Wrong(format!("an upgrade for request {:?} by {:?}", head.id, head.server)));
    }
    let early = connection.rest();
    if !early.is_empty() {
        return ended(Outcome::Wrong(format!("{} bytes that nobody has sent", early.len())));
    }
    ended(talk(context, pending.id, &mut connection.wire).await)
}

async fn relay(context: &LoadContext, pending: &mut PendingRequest, index: usize) -> RequestEnd {
    let opening = async {
        let (mut wire, number) = context.connect(Endpoint::Relay, index).await.map_err(RequestEnd::unopened)?;
        pending.connection = number;
        let banner = banner(&mut wire).await;
        let banner = banner.map_err(|error| RequestEnd::of(Outcome::Broken(Stage::Unanswered, how(&error))))?;
        Ok((wire, banner))
    };
    let (mut wire, banner) = match timeout(CLIENT_TIMEOUT, opening).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(ending)) => return ending,
        Err(_) => return RequestEnd::of(Outcome::Late),
    };
    let server = parse_server(&banner);
    let outcome = match server {
        None => Outcome::Wrong(format!("a server that says \"{banner}\"")),
        Some(_) => talk(context, pending.id, &mut wire).await,
    };
    RequestEnd { outcome, status: None, server }
}

async fn banner(wire: &mut Wire) -> io::Result<String> {
    let mut banner = Vec::new();
    while banner.last() != Some(&b'\n') && banner.len() < BANNER_BYTES_MAX {
        banner.push(wire.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&banner).trim().to_owned())
}

/// Says something, hears it, and so on; the client ends it.
async fn talk(context: &LoadContext, id: u64, wire: &mut Wire) -> Outcome {
    let content = Content::of(id, Side::Request);
    let until = now() + micros(Duration::from_millis(context.draw(LASTS_MILLISECONDS)));
    let mut offset = 0;
    while now() < until && !context.is_over() {
        let message = content.bytes(offset, context.draw(MESSAGE_BYTES) as usize);
        let outcome = match timeout(CLIENT_TIMEOUT, exchange(wire, &message)).await {
            Err(_) => Outcome::Late,
            Ok(Err(error)) => Outcome::Broken(Stage::Answering, how(&error)),
            Ok(Ok(heard)) => match content.first_wrong(offset, &heard) {
                Some(at) => Outcome::Wrong(format!("byte {at} of what came back is wrong")),
                None => Outcome::Served,
            },
        };
        if outcome != Outcome::Served {
            return outcome;
        }
        offset += message.len() as u64;
        sleep(Duration::from_millis(context.draw(PAUSE_MILLISECONDS))).await;
    }
    let _ = wire.shutdown().await;
    Outcome::Served
}

async fn exchange(wire: &mut Wire, message: &[u8]) -> io::Result<Vec<u8>> {
    wire.write_all(message).await?;
    wire.flush().await?;
    let mut heard = vec![0; message.len()];
    wire.read_exact(&mut heard).await?;
    Ok(heard)
}
