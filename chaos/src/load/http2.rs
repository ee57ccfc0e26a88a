//! Clients of HTTP/2: streams of several kinds on few connections.

use super::answer::{AnswerHead, BodyCheck, RequestEnd, ending_of};
use super::context::{CLIENT_TIMEOUT, Endpoint, LoadContext, PendingRequest};
use crate::clock::now;
use crate::content::{Content, Side};
use crate::model::{How, Kind, Outcome, Stage};
use crate::timeline::parse_server;
use crate::wire::Wire;
use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, SendStream};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use tokio::task::spawn_local;
use tokio::time::timeout;

/// Connections tried for one request whose earlier ones had ended before it was sent.
const ATTEMPTS_MAX: u32 = 4;

/// A connection that streams share, opened when first needed and again when it takes no more.
#[derive(Default)]
pub struct H2Connection {
    open: RefCell<Option<Open>>,
    opening: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Open {
    number: u32,
    /// Requests before.
    served: std::rc::Rc<Cell<u32>>,
    sender: SendRequest<Bytes>,
}

struct Ask {
    post: bool,
    path: String,
    body: Bytes,
    wanted: u64,
}

pub async fn run_client(context: &LoadContext, kind: Kind, connection: &H2Connection) {
    while !context.is_over() {
        let mut pending = context.pending(kind);
        let ask = ask_of(context, &pending);
        let ending = timeout(CLIENT_TIMEOUT, converse(context, &mut pending, &ask, connection)).await;
        context.note(pending, ending.unwrap_or_else(|_| RequestEnd::of(Outcome::Late)));
        context.think().await;
    }
    // The last one out leaves nobody who would keep it open.
    connection.open.take();
}

fn ask_of(context: &LoadContext, pending: &PendingRequest) -> Ask {
    let id = pending.id;
    let post = pending.kind == Kind::StreamPost;
    let up = if post { context.draw(0..40_000) } else { 0 };
    // Now and then one that keeps its stream, and the connection's window, for a while.
    let (wanted, pace) = match context.draw(0..20) {
        0 if !post => (context.draw(200_000..600_000), 5),
        _ => (context.draw(0..30_000), 0),
    };
    Ask {
        post,
        path: format!("/c/{id}/{wanted}/{pace}/chunked"),
        body: Content::of(id, Side::Request).bytes(0, up as usize).into(),
        wanted,
    }
}

async fn converse(
    context: &LoadContext,
    pending: &mut PendingRequest,
    ask: &Ask,
    connection: &H2Connection,
) -> RequestEnd {
    for _ in 0..ATTEMPTS_MAX {
        let open = match connection.opened(context).await {
            Ok(open) => open,
            Err(stage) => return RequestEnd::unopened(stage),
        };
        // The connection takes no more streams, and this one was not sent.
        let Ok(mut sender) = open.sender.clone().ready().await else {
            connection.discard(open.number);
            continue;
        };
        (pending.connection, pending.ordinal) = (open.number, open.served.get());
        open.served.set(open.served.get() + 1);
        return exchange(pending.id, &mut sender, ask).await;
    }
    RequestEnd::of(Outcome::Broken(Stage::Unanswered, How::Closed))
}

async fn exchange(id: u64, sender: &mut SendRequest<Bytes>, ask: &Ask) -> RequestEnd {
    let unanswered = |error: &h2::Error| RequestEnd::of(Outcome::Broken(Stage::Unanswered, how(error)));
    let uri = format!("https://{}{}", crate::certificates::NAME, ask.path);
    let method = if ask.post { http::Method::POST } else { http::Method::GET };
    let Ok(request) = http::Request::builder().method(method).uri(uri).body(()) else {
        return RequestEnd::of(Outcome::Wrong("chaos makes requests that are none".to_owned()));
    };
    let (response, stream) = match sender.send_request(request, ask.body.is_empty()) {
        Ok(sent) => sent,
        Err(error) => return unanswered(&error),
    };
    let answer = async {
        let response = response.await.map_err(|error| unanswered(&error))?;
        let field = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let head = AnswerHead {
            status: response.status().as_u16(),
            id: field("x-chaos-id").and_then(|id| id.parse().ok()),
            server: field("x-chaos-server").and_then(parse_server),
        };
        let mut check = BodyCheck::new(id);
        let mut body = response.into_body();
        while let Some(piece) = body.data().await {
            let broken = |error: &h2::Error| {
                let outcome = match check.wrong_at {
                    Some(at) => Outcome::Wrong(format!("byte {at} of the body is wrong, and then it breaks off")),
                    None => Outcome::Broken(Stage::Answering, how(error)),
                };
                RequestEnd { outcome, status: Some(head.status), server: head.server }
            };
            let piece = piece.map_err(|error| broken(&error))?;
            check.take(&piece);
            let _ = body.flow_control().release_capacity(piece.len());
        }
        Ok(ending_of(id, &head, &check, ask.wanted))
    };
    let (answer, ()) = tokio::join!(answer, upload(stream, ask.body.clone()));
    answer.unwrap_or_else(|ending: RequestEnd| ending)
}

/// Sends the body. An error is not told here: it shows in the answer.
async fn upload(mut stream: SendStream<Bytes>, mut body: Bytes) {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let Some(Ok(room)) = poll_fn(|cx| stream.poll_capacity(cx)).await else { return };
        let piece = body.split_to(room.min(body.len()));
        if stream.send_data(piece, body.is_empty()).is_err() {
            return;
        }
    }
}

fn how(error: &h2::Error) -> How {
    let is_unseen = error.reason() == Some(Reason::REFUSED_STREAM)
        || (error.is_go_away() && error.is_remote() && error.reason() == Some(Reason::NO_ERROR));
    match error.get_io() {
        _ if is_unseen => How::GoAway,
        Some(_) => How::Closed,
        None => How::Reset,
    }
}

impl H2Connection {
    async fn opened(&self, context: &LoadContext) -> Result<Open, Stage> {
        let _turn = self.opening.lock().await;
        if let Some(open) = &*self.open.borrow() {
            return Ok(open.clone());
        }
        let from = now();
        let wire = Wire::connect_http2(&context.multiplexed).await?;
        let wire = context.note_connection(Endpoint::Secure, from, wire);
        let handshake = h2::client::Builder::new().enable_push(false).handshake(wire).await;
        let (sender, connection) = handshake.map_err(|_| Stage::Handshake)?;
        spawn_local(async move {
            let _ = connection.await;
        });
        let open = Open { number: context.number_connection(), served: std::rc::Rc::default(), sender };
        self.open.replace(Some(open.clone()));
        Ok(open)
    }

    fn discard(&self, number: u32) {
        self.open.borrow_mut().take_if(|open| open.number == number);
    }
}
