//! HTTP/2 as a server of a run speaks it: streams that are answered each by itself, tunnels by extended CONNECT, and
//! connections that end in order after so many streams, with more of them under way.

use super::http::{RequestedAnswer, id_of, wanted};
use super::server::{IDLE_MAX, PIECE_BYTES, Server};
use crate::content::{Content, Side};
use crate::journal::{Progress, Protocol};
use crate::wire::Wire;
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{Method, Request, Response};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::spawn_local;

/// Streams of a connection at a time: fewer than the load may have under way.
const STREAMS_MAX: u32 = 20;
/// Streams of a connection until it says GOAWAY, which no request may be lost by.
const STREAMS_UNTIL_GOAWAY: std::ops::Range<u32> = 30..300;

/// Serves one connection's streams, until either side ends it. A connection that is cut ends with all of its streams.
pub async fn converse(server: &Rc<Server>, wire: Wire, protocol: Protocol) -> io::Result<()> {
    let mut builder = h2::server::Builder::new();
    builder.enable_connect_protocol().max_concurrent_streams(STREAMS_MAX);
    let handshake = tokio::time::timeout(IDLE_MAX, builder.handshake::<_, Bytes>(wire)).await;
    let mut connection = handshake.map_err(io::Error::other)?.map_err(io::Error::other)?;
    let mut left = server.random.borrow_mut().u32(STREAMS_UNTIL_GOAWAY);
    let cut = Rc::new(Notify::new());
    loop {
        let accepted = tokio::select! {
            // First, so that nothing is said of streams that end with their connection.
            biased;
            () = cut.notified() => return Ok(()),
            accepted = connection.accept() => accepted,
        };
        let Some(accepted) = accepted else { return Ok(()) };
        let (request, respond) = accepted.map_err(io::Error::other)?;
        left = left.saturating_sub(1);
        if left == 0 {
            connection.graceful_shutdown();
        }
        let (server, cut) = (Rc::clone(server), Rc::clone(&cut));
        spawn_local(async move {
            let ended = Exchange { server: &server, protocol }.carry_out(request, respond).await;
            // The stream's own end is nobody else's.
            if ended.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionAborted) {
                cut.notify_one();
            }
        });
    }
}

struct Exchange<'a> {
    server: &'a Server,
    protocol: Protocol,
}

impl Exchange<'_> {
    async fn carry_out(&self, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) -> io::Result<()> {
        let (head, mut body) = request.into_parts();
        let path = head.uri.path();
        if path == "/healthz" {
            let mut stream = respond.send_response(Response::new(()), false).map_err(io::Error::other)?;
            return send(&mut stream, Bytes::from_static(b"ok"), true).await;
        }
        let Some(id) = id_of(path) else {
            let response = Response::builder().status(400).body(()).map_err(io::Error::other)?;
            return respond.send_response(response, true).map(drop).map_err(io::Error::other);
        };
        self.server.note_head(id, self.protocol)?;
        self.server.cuts()?;
        if head.method == Method::CONNECT {
            return self.echo(body, respond, id).await;
        }
        self.take_body(&mut body, id).await?;
        self.answer(respond, wanted(path), id).await?;
        self.server.cuts()
    }

    async fn take_body(&self, body: &mut RecvStream, id: u64) -> io::Result<()> {
        let content = Content::of(id, Side::Request);
        let mut offset = 0;
        while let Some(piece) = next(body).await? {
            if content.first_wrong(offset, &piece).is_some() {
                self.server.note(Progress::Damaged, id)?;
                return Err(io::Error::other("not the body that was sent"));
            }
            offset += piece.len() as u64;
        }
        self.server.note(Progress::Done, id)?;
        self.server.cuts()
    }

    async fn answer(&self, mut respond: SendResponse<Bytes>, wanted: RequestedAnswer, id: u64) -> io::Result<()> {
        let behaviour = self.server.behaviour.get();
        if behaviour.slow_ms > 0 {
            tokio::time::sleep(Duration::from_millis(behaviour.slow_ms)).await;
        }
        let (status, bytes) = match self.server.hits(behaviour.fail_percent) {
            true => (500, 0),
            false => (200, wanted.bytes),
        };
        let mut response = self.response(status, id);
        if !wanted.is_chunked || bytes == 0 {
            response = response.header("content-length", bytes);
        }
        let response = response.body(()).map_err(io::Error::other)?;
        let mut stream = respond.send_response(response, bytes == 0).map_err(io::Error::other)?;
        let content = Content::of(id, Side::Response);
        let mut offset = 0;
        while offset < bytes {
            let piece = content.bytes(offset, (bytes - offset).min(PIECE_BYTES) as usize);
            offset += piece.len() as u64;
            send(&mut stream, piece.into(), offset == bytes).await?;
            if offset < bytes {
                if wanted.piece_ms > 0 {
                    tokio::time::sleep(Duration::from_millis(wanted.piece_ms)).await;
                }
                self.server.cuts()?;
            }
        }
        self.server.note(Progress::Answered, id)
    }

    /// Sends back what comes in the tunnel.
    async fn echo(&self, mut body: RecvStream, mut respond: SendResponse<Bytes>, id: u64) -> io::Result<()> {
        self.server.note(Progress::Done, id)?;
        let response = self.response(200, id).body(()).map_err(io::Error::other)?;
        let mut stream = respond.send_response(response, false).map_err(io::Error::other)?;
        while let Some(piece) = next(&mut body).await? {
            self.server.cuts()?;
            send(&mut stream, piece, false).await?;
        }
        send(&mut stream, Bytes::new(), true).await
    }

    fn response(&self, status: u16, id: u64) -> http::response::Builder {
        Response::builder().status(status).header("x-chaos-id", id).header("x-chaos-server", &self.server.name)
    }
}

/// The next piece of a body; none at its end.
async fn next(body: &mut RecvStream) -> io::Result<Option<Bytes>> {
    let Some(piece) = body.data().await else { return Ok(None) };
    let piece = piece.map_err(io::Error::other)?;
    body.flow_control().release_capacity(piece.len()).map_err(io::Error::other)?;
    Ok(Some(piece))
}

/// As the windows allow.
async fn send(stream: &mut SendStream<Bytes>, mut bytes: Bytes, is_last: bool) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        let room = poll_fn(|cx| stream.poll_capacity(cx)).await;
        let room = room.ok_or(io::ErrorKind::BrokenPipe)?.map_err(io::Error::other)?;
        let piece = bytes.split_to(room.min(bytes.len()));
        stream.send_data(piece, is_last && bytes.is_empty()).map_err(io::Error::other)?;
        if bytes.is_empty() {
            return Ok(());
        }
    }
    match is_last {
        true => stream.send_data(bytes, true).map_err(io::Error::other),
        false => Ok(()),
    }
}
