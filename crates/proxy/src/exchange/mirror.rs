//! Copies of requests for another backend, whose responses are thrown away.
//!
//! A copy is begun before its request goes on, and then has a life of its own: the request does not wait for it, and
//! nothing that becomes of it is told to the client. Its head is written when it is begun, for either version of HTTP,
//! since the client may have gone when its turn comes. Its body is here already, or kept while it passes to the first
//! server (`crate::copies`). Why it is so: `docs/decisions/0070-copies.md`.

use std::borrow::Cow;
use std::future::poll_fn;
use std::io;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use propylon_config::{ProxyProtocol, Reuse};
use propylon_http::fault::Fault;
use propylon_http::h1::{self, Method, Name, Pseudo, RequestBody, RequestHead, whole_chunked};
use propylon_http::h2::FieldWriter;
use propylon_net::timers::Deadline;
use propylon_observe::telemetry::Wait;
use propylon_steps::mirror::{Mirror, Place};

use super::attempt::{InProgress, withhold_fields};
use super::blame::Cause;
use super::heads::{write_request_fields, write_request_head};
use super::reading::{Reading, Wanted};
use super::transfer::{Http1, Http2, Upstream, decoded};
use crate::client::side::ClientSide;
use crate::copies::{Body, Passed, Passing, Refused};
use crate::fault::{Attempt, Repeatable};
use crate::request::{Note, Request};
use crate::snapshot::CoreSnapshot;
use crate::upstream::backend::Backend;
use crate::upstream::checkout::{self, Client, Refusal, RetryState, Traits, UpstreamStream, streams};
use crate::upstream::terms::Checkout;

/// Bytes of a response to a copy that are read and thrown away.
const RESPONSE_BYTES_MAX: usize = 16 * 1024 * 1024;
const LATE: Attempt = Attempt::new(Fault::FirstByteTimeout, Repeatable::No);

/// Begins a copy of a request for one of the route's mirrors, if it is this request's turn.
pub fn begin(client: &ClientSide<'_>, request: &mut Request, snapshot: &CoreSnapshot, mirror: &Mirror) {
    if !mirror.is_due() {
        return;
    }
    let backend = &snapshot.backends[mirror.backend.0];
    let count = |outcome| count(backend, outcome);
    let bytes_max = mirror.body_bytes_max;
    let Some(here) = here(client, request, bytes_max) else { return count("not-copied") };
    // Before anything is copied.
    let Some(place) = mirror.place() else { return count("too-many") };
    let body = match here.bytes(client) {
        Some(bytes) => {
            let mut body = Body::empty(&backend.services.copies);
            match body.extend(&bytes, bytes_max) {
                Ok(()) => Coming::Here(body),
                Err(refused) => return count(outcome_of(refused)),
            }
        }
        None => {
            let length = if let RequestBody::Length(length) = request.head.body { Some(length) } else { None };
            let Some(taken) = &mut request.steps else { return };
            let (passing, passed) = Passing::new(&backend.services.copies, bytes_max, length);
            taken.passing.get_or_insert_default().borrow_mut().push(passing);
            Coming::Later(passed)
        }
    };
    let length = if let Coming::Here(body) = &body { Some(body.bytes().len() as u64) } else { None };
    let head = Head::of(client, request, snapshot, (backend, length));
    let backend = Rc::clone(backend);
    tokio::task::spawn_local(async move {
        let outcome = match body.whole().await {
            Ok(body) => Box::pin(send(&backend, head, body, place)).await,
            Err(outcome) => outcome,
        };
        self::count(&backend, outcome);
    });
}

fn count(backend: &Backend, outcome: &'static str) {
    backend.services.metrics.increment(backend.metrics().mirrored.of(outcome));
}

fn outcome_of(refused: Refused) -> &'static str {
    match refused {
        Refused::TooLong => "not-copied",
        Refused::Full => "too-many",
    }
}

/// Part of a body that is here when its request is sent on.
enum Here {
    Nothing,
    /// So many bytes of the inbox.
    Bytes(usize),
    /// So many bytes of the inbox, in chunks.
    Chunks(usize),
    Later,
}

impl Here {
    /// All of the body; none where it comes later.
    fn bytes<'a>(&self, client: &'a ClientSide<'_>) -> Option<Cow<'a, [u8]>> {
        let inbox = |length: usize| match client {
            ClientSide::Http1(connection) => &connection.inbox.readable()[..length],
            ClientSide::Http2(_) => &[][..],
        };
        match *self {
            Here::Nothing => Some(Cow::Borrowed(&[][..])),
            Here::Bytes(length) => Some(Cow::Borrowed(inbox(length))),
            Here::Chunks(length) => Some(Cow::Owned(decoded(inbox(length)).0)),
            Here::Later => None,
        }
    }
}

/// `None` where there is to be no copy: its body is known to be too long, or the request is to open a tunnel.
fn here(client: &ClientSide<'_>, request: &Request, bytes_max: u64) -> Option<Here> {
    if request.head.upgrade.is_some() {
        return None;
    }
    Some(match (request.head.body, client) {
        (RequestBody::None, _) => Here::Nothing,
        (RequestBody::Length(length), _) if length > bytes_max => return None,
        (RequestBody::Length(0), _) => Here::Nothing,
        (_, ClientSide::Http2(_)) => Here::Later,
        (RequestBody::Length(length), ClientSide::Http1(connection)) => {
            let length = usize::try_from(length).ok()?;
            if length <= connection.inbox.len() { Here::Bytes(length) } else { Here::Later }
        }
        (RequestBody::Chunked, ClientSide::Http1(connection)) => {
            whole_chunked(connection.inbox.readable()).map_or(Here::Later, Here::Chunks)
        }
    })
}

/// Body of a copy.
enum Coming {
    Here(Body),
    Later(Passed),
}

impl Coming {
    /// The body, once it is whole. An error: what became of the copy.
    async fn whole(self) -> Result<Body, &'static str> {
        match self {
            Coming::Here(body) => Ok(body),
            Coming::Later(passed) => match passed.await {
                Ok(passed) => passed.map_err(outcome_of),
                // The request has ended before its body.
                Err(_) => Err("not-copied"),
            },
        }
    }
}

/// Head of a copy.
struct Head {
    method: Method,
    /// As a server of HTTP/1 gets it.
    text: Vec<u8>,
    /// As a server of HTTP/2 gets it, where the backend may have some.
    fields: Fields,
    /// Whether it says how long the body is.
    has_length: bool,
}

impl Head {
    /// `length`: that of the body, where it is known already.
    fn of(
        client: &ClientSide<'_>,
        request: &mut Request,
        snapshot: &CoreSnapshot,
        (backend, length): (&Backend, Option<u64>),
    ) -> Head {
        withhold_fields(request, snapshot.listener(client.listener()));
        let at = (request.note.backend, request.note.server);
        let (framing, expects) = (request.head.body, request.head.expect_continue);
        // Trailers are announced to the first server alone: a copy has none.
        let fields = (framing == RequestBody::Chunked).then(|| request.head.fields.clone());
        request.head.fields.withhold_kinds(|kind| fields.is_some() && kind == Name::Trailer);
        (request.note.backend, request.head.expect_continue) = (Some(backend.id.0), false);
        // No one of several servers is known yet, and no route that names it has a mirror with several.
        request.note.server = (backend.servers.len() == 1).then_some(0);
        request.head.body = match (length, framing) {
            // A request without a body says nothing of one.
            (Some(_), RequestBody::None) | (None, _) => RequestBody::None,
            (Some(length), _) => RequestBody::Length(length),
        };
        let has_length = length.is_some();
        let mut head = Head { method: request.head.method, text: Vec::new(), fields: Fields::default(), has_length };
        write_request_head(client, request, snapshot, false, &mut head.text);
        if backend.config().protocol.may_be_http2() {
            let is_tls = backend.config().tls.is_some();
            write_request_fields(client, request, snapshot, is_tls, &mut head.fields);
        }
        (request.note.backend, request.note.server) = at;
        (request.head.body, request.head.expect_continue) = (framing, expects);
        if let Some(fields) = fields {
            request.head.fields = fields;
        }
        head
    }

    /// Says how long the body is.
    fn set_length(&mut self, length: usize) {
        if !std::mem::replace(&mut self.has_length, true) {
            let digits = length.to_string();
            h1::add_lines(&mut self.text, |out| h1::write_line(b"Content-Length", digits.as_bytes(), out));
            self.fields.field(b"content-length", digits.as_bytes(), false);
        }
    }
}

/// Fields of a head, to be written once there is a stream for it.
#[derive(Default)]
struct Fields {
    pseudo: Vec<(Pseudo, Vec<u8>)>,
    /// Names and values, and whether these are secret.
    others: Vec<(Vec<u8>, Vec<u8>, bool)>,
}

impl Fields {
    fn write(&self, out: &mut impl FieldWriter) {
        self.pseudo.iter().for_each(|(name, value)| out.pseudo(*name, [value, b""]));
        self.others.iter().for_each(|(name, value, is_secret)| out.field(name, value, *is_secret));
    }
}

impl FieldWriter for Fields {
    fn pseudo(&mut self, name: Pseudo, value: [&[u8]; 2]) {
        self.pseudo.push((name, value.concat()));
    }

    fn field(&mut self, name: &[u8], value: &[u8], secret: bool) {
        self.others.push((name.to_vec(), value.to_vec(), secret));
    }
}

/// Sends a copy and reads its response to the end. Returns what became of it.
async fn send(backend: &Rc<Backend>, mut head: Head, body: Body, _place: Place) -> &'static str {
    let services = &backend.services;
    let Some(_in_progress) = InProgress::begin(&backend.shared.circuit, backend.state.pool.core()) else {
        services.metrics.increment(backend.metrics().queue_refused.of(Fault::CircuitOpen));
        return "failed";
    };
    head.set_length(body.bytes().len());
    let mut nobody = Nobody { deadline: services.timers.deadline() };
    let is_alone = is_alone(backend);
    let mut retry_state = RetryState { fresh: is_alone, ..RetryState::default() };
    let is_repeatable = head.method.is_idempotent() && body.bytes().is_empty();
    match attempt(backend, &head, body, (&mut nobody, &mut retry_state)).await {
        Ok(()) => return "answered",
        Err(true) if is_repeatable && !is_alone => {}
        Err(_) => return "failed",
    }
    // The connection had been closed while it was idle, as others of the pool may be.
    retry_state.fresh = true;
    match attempt(backend, &head, Body::empty(&services.copies), (&mut nobody, &mut retry_state)).await {
        Ok(()) => "answered",
        Err(_) => "failed",
    }
}

/// Sends a copy once. An error: whether its connection was to blame, and not the server.
async fn attempt(
    backend: &Rc<Backend>,
    head: &Head,
    body: Body,
    (nobody, retry_state): (&mut Nobody, &mut RetryState),
) -> Result<(), bool> {
    let services = &backend.services;
    let mut note = Note::default();
    let stream = check_out(backend, nobody, &mut note, retry_state).await.map_err(|_| false)?;
    let server = open(backend, head, body.bytes().len(), stream).map_err(|_| false)?;
    let mut reading = Reading::new(server, head.method, Some(body), Wanted::Discarded(RESPONSE_BYTES_MAX));
    let (began, due) = (Instant::now(), services.timers.now() + backend.terms.first_byte + backend.terms.body);
    let read = poll_fn(|context| {
        if let Poll::Ready(read) = reading.poll(context, services) {
            return Poll::Ready(read);
        }
        if services.timers.now() >= due {
            return Poll::Ready(Err(LATE));
        }
        nobody.deadline.set(due, context.waker());
        Poll::Pending
    })
    .await;
    if let Some(server) = note.server.filter(|_| reading.has_head) {
        backend.state.succeeded(server, services.timers.now());
    }
    let cause = read.err().map(|failed| (Cause::of(&failed, note.reused, retry_state), failed));
    if let Some(turn) = &retry_state.turn {
        match (reading.has_head, &cause) {
            (false, Some((cause, failed))) => cause.tell(failed, reading.answer.head.status, turn),
            _ => turn.answered(reading.answer.head.status, began.elapsed().as_micros() as u64),
        }
    }
    let is_stale = matches!(cause, Some((Cause::Stale | Cause::CutOff, _))) && !reading.has_head;
    if let Some(server) = note.server.filter(|_| is_stale) {
        services.metrics.increment(backend.server_metrics(server).stale);
    }
    reading.end(backend, &mut note, (cause.is_none(), is_alone(backend)));
    if cause.is_none() { Ok(()) } else { Err(is_stale) }
}

/// Whether connections are for one client alone, and so for no copy after the first.
fn is_alone(backend: &Backend) -> bool {
    backend.config().reuse == Reuse::Never
}

/// Waits for a connection, or for a stream of one.
async fn check_out(
    backend: &Rc<Backend>,
    nobody: &mut Nobody,
    note: &mut Note,
    retry_state: &mut RetryState,
) -> Result<UpstreamStream, Refusal> {
    let traits = Traits { is_first: false, is_repeatable: false, is_idempotent: false };
    match backend.terms.checkout {
        Checkout::Stream => streams::checkout(nobody, note, backend, traits.is_idempotent, retry_state).await,
        _ => checkout::checkout(nobody, note, backend, traits, retry_state).await,
    }
}

/// Writes the head to a connection, or opens a stream with it, for a body of so many bytes.
fn open(backend: &Backend, head: &Head, length: usize, stream: UpstreamStream) -> Result<Upstream, Attempt> {
    let services = &backend.services;
    match stream {
        // Mirrors of FastCGI are refused with the configuration.
        UpstreamStream::Connection(connection) | UpstreamStream::FastCgi(connection) => {
            let mut scratch = services.scratch.borrow_mut();
            scratch.clear();
            scratch.extend_from_slice(&head.text);
            drop(scratch);
            Ok(Upstream::Http1(Http1::new(connection, services, RequestBody::None)))
        }
        UpstreamStream::Stream(permit) => {
            let mut framed = RequestHead::default();
            framed.body = RequestBody::Length(length as u64);
            let opened = Http2::open(permit, &framed, |fields, _| head.fields.write(fields))?;
            Ok(Upstream::Http2(Box::new(opened)))
        }
    }
}

/// The client of a copy, who never goes away.
struct Nobody {
    deadline: Deadline,
}

impl Client for Nobody {
    fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    fn owner(&mut self) -> NonZeroU64 {
        NonZeroU64::MAX
    }

    fn proxy_header(&self, _: ProxyProtocol) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn count_timeout(&self, _: Wait) {}

    fn poll_gone(&mut self, _: &mut Context<'_>) -> Poll<Fault> {
        Poll::Pending
    }

    fn has_gone(&self) -> Option<Fault> {
        None
    }

    fn rest(&mut self) {}
}
