//! Records of a request and of its attempts, by the semantic conventions for HTTP spans (stable since 1.23).
//!
//! Queries are not written down anywhere: what is in them is nobody's business but the server's.

use std::time::Instant;

use propylon_http::fault::Fault;
use propylon_http::h1::{HOST_BYTES_MAX, RequestHead, Version};
use propylon_http::trace_context::Context;
use propylon_observe::attributes::{template, write_method, write_result, write_server};
use propylon_sys::Address;

use crate::client::side::ClientSide;
use crate::core::Core;
use crate::request::Request;
use crate::snapshot::CoreSnapshot;
use crate::trace::{Attribute, Kind, Reached, Recording, Span, Trace, Value};
use crate::upstream::backend::Backend;
use crate::upstream::checkout::UpstreamStream;

/// How an attempt went.
pub struct AttemptRecord {
    /// Connection of the attempt; `None` if there was none.
    pub connection: Option<Reached>,
    /// Why there was no whole response.
    pub fault: Option<Fault>,
    pub reused: bool,
}

impl AttemptRecord {
    /// Has the record be that of an attempt that was made beside this one, if one has taken its place.
    pub fn follow(&mut self, promoted: Option<Reached>, request: &Request) {
        if promoted.is_some() {
            (self.connection, self.reused) = (promoted, request.note.reused);
        }
    }
}

pub fn reached(server_stream: &UpstreamStream) -> Reached {
    match server_stream {
        UpstreamStream::Connection(connection) | UpstreamStream::FastCgi(connection) => {
            Reached { peer: connection.remote.address, is_http2: false }
        }
        UpstreamStream::Stream(permit) => Reached { peer: permit.slot.link.peer(), is_http2: true },
    }
}

/// An attempt at a server has ended.
pub fn end_attempt(request: &mut Request, backend: &Backend, went: &AttemptRecord) {
    if let Trace::Recorded(_) = request.trace {
        end(request, backend, went, request.response.status);
    }
}

/// An attempt has been cancelled, since another one has answered.
pub fn end_cancelled(request: &mut Request, backend: &Backend, (connection, reused): (Option<Reached>, bool)) {
    end(request, backend, &AttemptRecord { connection, fault: None, reused }, 0);
}

fn end(request: &mut Request, backend: &Backend, went: &AttemptRecord, status: u16) {
    let Trace::Recorded(recording) = &mut request.trace else { return };
    let Some(attempt) = recording.attempt.take() else { return };
    let note = &request.note;
    let (connection, reused) = match attempt.rival {
        Some((reached, reused)) => (Some(reached), reused),
        None => (went.connection, went.reused),
    };
    let config = backend.config();
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let mut attributes = Vec::with_capacity(12);
    let method = write_method(&request.head, &request.text, &mut attributes);
    let server = note.server.and_then(|server| config.servers.get(server));
    if let Some(server) = server {
        write_server(&server.address, connection.and_then(|reached| reached.peer.ip()), &mut attributes);
    }
    let host = match request.head.host.bytes(&request.text) {
        [] => note.server.map_or("", |server| backend.servers[server].label.as_str()).as_bytes(),
        host => host,
    };
    let url = [scheme.as_bytes(), b"://", host, request.head.path(&request.text)].concat();
    attributes.push(("url.full", Value::of(&url)));
    if let Some(reached) = connection {
        match reached.peer {
            Address::Ip(peer) => {
                attributes.push(("network.peer.address", Value::Text(peer.ip().to_canonical().to_string())));
                attributes.push(("network.peer.port", Value::Number(peer.port().into())));
            }
            Address::Unix(name) => {
                attributes.push(("network.peer.address", Value::Text(name.as_str().to_owned())));
                attributes.push(("network.transport", Value::Word("unix")));
            }
        }
        let version = if reached.is_http2 { "2" } else { "1.1" };
        attributes.push(("network.protocol.version", Value::Word(version)));
        attributes.push(("propylon.connection.reused", Value::Is(reused)));
    }
    if note.attempts > 1 {
        attributes.push(("http.request.resend_count", Value::Number(i64::from(note.attempts) - 1)));
    }
    attributes.push(("propylon.backend", Value::Text(config.name.clone())));
    // Before its last head a response has no status, or that of an interim one.
    let status =
        (status >= 200 || status == 101).then_some(status).filter(|_| went.fault.is_none() || note.status != 0);
    let failed = write_result(status, went.fault, 400, &mut attributes);
    let parent = Some(recording.context.span);
    let context = Context { span: attempt.span, ..recording.context };
    let started = recording.began.wall + attempt.began.saturating_duration_since(recording.began.steady);
    recording.spans.push(Span {
        context,
        parent,
        parent_is_remote: false,
        kind: Kind::Client,
        state: recording.state.clone(),
        name: method.to_owned(),
        started,
        lasted: attempt.began.elapsed(),
        attributes,
        failed,
    });
}

/// A request has ended: all its spans go to the exporter.
pub fn finish(client: &ClientSide<'_>, request: &mut Request, snapshot: &CoreSnapshot, handshake_us: Option<u64>) {
    let Trace::Recorded(recording) = &mut request.trace else { return };
    let attempts = std::mem::take(&mut recording.spans);
    let core: &Core = client.core();
    let mut tracer = core.tracer.borrow_mut();
    let Some(tracer) = tracer.as_mut() else { return };
    let Trace::Recorded(recording) = &request.trace else { return };
    let span = span(client, request, recording, snapshot, handshake_us);
    core.metrics.add(core.telemetry.traces.spans_client, attempts.len() as u64);
    core.metrics.increment(core.telemetry.traces.spans_server);
    tracer.record(attempts.into_iter().chain([span]));
    request.changed = None;
}

fn span(
    client: &ClientSide<'_>,
    request: &Request,
    recording: &Recording,
    snapshot: &CoreSnapshot,
    handshake_us: Option<u64>,
) -> Span {
    let (head, text, note) = (&request.head, &request.text[..], &request.note);
    let mut attributes = Vec::with_capacity(20);
    let method = write_method(head, text, &mut attributes);
    let mut name = method.to_owned();
    let mut scratch = [0; HOST_BYTES_MAX];
    let host = head.host_name(text, &mut scratch);
    if let Some(route) = note.route {
        let config = &snapshot.shared.config.routes[route];
        let route = template(config);
        name = format!("{method} {route}");
        attributes.push(("http.route", Value::Text(route)));
        attributes.push(("propylon.route", Value::Text(config.label.clone())));
    }
    let path = request.client_path();
    write_client(client, (head, text), (host, path), &mut attributes);
    if let Some(agent) = head.fields.value(text, "user-agent") {
        attributes.push(("user_agent.original", Value::of(agent)));
    }
    let listener = snapshot.listener(client.listener());
    attributes.push(("propylon.listener", Value::Text(listener.name.clone())));
    if let (Some(id), Some(ids)) = (request.id(), &listener.request_id) {
        let field = Value::Field { name: ids.header.to_ascii_lowercase(), value: id.to_owned() };
        attributes.push(("http.request.header", field));
    }
    if let Some(facts) = client.facts() {
        let version = facts.version.name();
        attributes.push(("tls.protocol.version", Value::Word(version.strip_prefix("TLSv").unwrap_or(version))));
        attributes.push(("tls.cipher", Value::Word(facts.suite.name())));
        attributes.push(("tls.resumed", Value::Is(facts.resumed)));
    }
    if let Some(micros) = handshake_us {
        attributes.push(("propylon.tls.handshake_us", Value::Number(micros as i64)));
    }
    if let Some(micros) = note.queue_us {
        attributes.push(("propylon.queue_us", Value::Number(micros as i64)));
    }
    let status = (note.status != 0).then_some(note.status);
    // A response that was broken off is a failure, whatever its head has said; what a client did wrong is none of ours.
    let failed = write_result(status, note.fault, 500, &mut attributes);
    Span {
        context: recording.context,
        parent: recording.parent,
        parent_is_remote: recording.parent.is_some(),
        kind: Kind::Server,
        state: recording.state.clone(),
        name,
        started: recording.began.wall,
        lasted: Instant::now().saturating_duration_since(recording.began.steady),
        attributes,
        failed,
    }
}

fn write_client(
    client: &ClientSide<'_>,
    (head, text): (&RequestHead, &[u8]),
    (host, path): (&str, &[u8]),
    attributes: &mut Vec<Attribute>,
) {
    let (scheme, port) = if client.is_tls() { ("https", 443) } else { ("http", 80) };
    attributes.push(("url.scheme", Value::Word(scheme)));
    attributes.push(("url.path", Value::of(path)));
    if !host.is_empty() {
        let authority = head.host.bytes(text);
        let written = authority.iter().rposition(|byte| *byte == b':').map(|at| &authority[at + 1..]);
        let written = written.and_then(|port| std::str::from_utf8(port).ok()?.parse::<u16>().ok());
        attributes.push(("server.address", Value::Text(host.trim_matches(['[', ']']).to_owned())));
        attributes.push(("server.port", Value::Number(written.unwrap_or(port).into())));
    }
    let version = match head.version {
        Version::Http10 => "1.0",
        Version::Http11 => "1.1",
        Version::Http2 => "2",
    };
    attributes.push(("network.protocol.version", Value::Word(version)));
    let peer = client.peer();
    attributes.push(("client.address", Value::Text(peer.ip().to_canonical().to_string())));
    attributes.push(("client.port", Value::Number(peer.port().into())));
}
