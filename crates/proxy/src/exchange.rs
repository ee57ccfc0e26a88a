//! The life of a request: route, answer it here or pick a server and forward it, retry where that is safe, and keep the
//! account of it.

mod answers;
mod attempt;
mod blame;
mod change;
mod fastcgi;
mod grpc_web;
mod heads;
mod http10;
mod identity;
mod mirror;
mod question;
mod reading;
pub mod record;
mod response;
mod steps;
mod transfer;
mod tunnel;

use std::rc::Rc;

use propylon_config::{Action, BackendId, PathRules, Redirect, RedirectPath, Respond};
use propylon_http::fault::Fault;
use propylon_http::h1::{Framing, HOST_BYTES_MAX, Method, Reject, Version};
use propylon_metrics::{Entry, bucket};
use propylon_observe::access_log::{Durations, Record, TlsFields};
use propylon_observe::telemetry::DURATION_BOUNDS;

use crate::alpn::alpn_name;
use crate::answer::Answer;
use crate::challenges;
use crate::client::side::ClientSide;
use crate::core::Core;
use crate::request::{After, Request};
use crate::services::ListenerHandle;
use crate::snapshot::CoreSnapshot;
use crate::trace::Moment;
use crate::upstream::backend::Backend;
use answers::{answer_error, answer_fault, answer_here, stage_answer, word};
use propylon_steps::errors::Error;

/// Serves one request whose head has been read.
pub async fn exchange(client: &mut ClientSide<'_>, request: &mut Request) -> After {
    let core = Rc::clone(client.core());
    let snapshot = core.snapshot();
    let metrics = client.metrics();
    core.requests.set(core.requests.get() + 1);
    core.metrics.raise(metrics.in_progress);
    let in_progress = InProgress { core: Rc::clone(&core), listener: Rc::clone(client.listener()) };
    begin_trace(&core, request);
    if let ClientSide::Http1(connection) = client
        && connection.stream.is_wearing()
    {
        // The response says that it is the last one.
        request.head.keep_alive = false;
    }
    let decision = match decide(client, request, &snapshot) {
        // A future of their own, which is asked memory for, is for steps that wait.
        Decision::Steps(route) if snapshot.steps[route].as_ref().is_some_and(|steps| steps.extent.is_prompt) => {
            steps::take_promptly(client, request, &snapshot, route)
        }
        decision => decision,
    };
    let after = match decision {
        Decision::Answered(after) => after,
        Decision::Forward(backend) => {
            let backend = backend_of(request, &snapshot, backend);
            let after = attempt::forward(client, request, &snapshot, backend).await;
            // A connection that is idle does not hold a body that its server took no other way.
            request.held = None;
            after
        }
        Decision::Steps(route) => Box::pin(steps::take(client, request, &snapshot, route)).await,
    };
    if request.steps.is_some() {
        steps::end(request);
    }
    // The log comes next. A key in the query may have gone to any route: somebody has a wrong path, or the key is old.
    snapshot.shared.gates.cover(&mut request.head, &mut request.text);
    // A connection that ends here sends what is staged in its farewell.
    let after = match client {
        _ if after != After::Next => after,
        ClientSide::Http1(connection) => connection.flush().await,
        ClientSide::Http2(stream) => stream.flush().await,
    };
    let after = cut_off(client, request).unwrap_or(after);
    let after = if leaves_in_order(client, request, after) { After::Linger } else { after };
    drop(in_progress);
    account(client, request, &snapshot);
    after
}

/// A backend, on the terms of the request's route where that has steps.
fn backend_of<'s>(request: &Request, snapshot: &'s CoreSnapshot, id: BackendId) -> &'s Rc<Backend> {
    match request.note.route {
        Some(route) if request.steps.is_some() => snapshot.backend_of(route, id),
        _ => &snapshot.backends[id.0],
    }
}

/// Whether a request whose client has closed ends its connection in order though nothing answers it: a reset would
/// destroy earlier responses that the kernel still has for the client, and this request has none that passes for whole.
fn leaves_in_order(client: &ClientSide<'_>, request: &Request, after: After) -> bool {
    let (is_begun, has_closed) = (request.note.status != 0, request.note.fault == Some(Fault::ClientClosed));
    after == After::Abort && has_closed && !is_begun && matches!(client, ClientSide::Http1(_))
}

/// Handles a session whose key could not seal all of the response. The response's end shows that it is not whole, and
/// the session ends in order, so that nothing of the rest is lost; others are broken off.
fn cut_off(client: &ClientSide<'_>, request: &mut Request) -> Option<After> {
    let ClientSide::Http1(connection) = client else { return None };
    if !connection.stream.is_worn_out() {
        return None;
    }
    if request.note.fault.is_none() {
        request.note.fault = Some(Fault::KeysExhausted);
        connection.core.metrics.increment(connection.metrics().faults.of(Fault::KeysExhausted));
    }
    let is_relayed = request.note.server.is_some();
    let ends_with_session = is_relayed && request.response.framing_for(request.head.version) == Framing::UntilClose;
    Some(if ends_with_session { After::Abort } else { After::Linger })
}

/// Begins the request's trace, if requests are traced.
fn begin_trace(core: &Core, request: &mut Request) {
    if let Some(tracer) = core.tracer.borrow_mut().as_mut() {
        let (started, now) = (request.started, core.timers.now());
        let (trace, decision) = tracer.begin(&mut request.head, &request.text, || Moment::past(started), now);
        request.adds_lines = trace.is_told();
        request.trace = trace;
        core.metrics.increment(core.telemetry.traces.decisions(decision));
    }
}

/// Keeps the count of requests in progress right, also when the request is dropped half-way.
struct InProgress {
    core: Rc<Core>,
    listener: Rc<ListenerHandle>,
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.core.requests.set(self.core.requests.get() - 1);
        self.core.metrics.lower(self.listener.metrics.in_progress);
    }
}

enum Decision {
    /// The answer is staged.
    Answered(After),
    Forward(BackendId),
    /// The route of this index has steps, which are to be taken.
    Steps(usize),
}

fn decide(client: &mut ClientSide<'_>, request: &mut Request, snapshot: &CoreSnapshot) -> Decision {
    let handle = Rc::clone(client.listener());
    let listener = snapshot.listener(&handle);
    // Before anything goes by the path, and once: what is matched here is what servers are asked for.
    let canonical = request.head.canonicalize_target(&request.text, listener.paths);
    if let Err(reject) = canonical.and_then(|()| request.head.fits(&request.text, listener.limits.head_bytes)) {
        let core = client.core();
        core.metrics.increment(client.metrics().rejected.of(reject.fault));
        return Decision::Answered(answer_fault(client, request, reject.fault));
    }
    let head = &request.head;
    if head.method == Method::Options && head.max_forwards == Some(0) {
        let answer =
            Answer { fields: &[("Allow", "GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH")], ..Answer::plain(204) };
        return Decision::Answered(answer_here(client, request, &answer));
    }
    let path = head.path_key(&request.text);
    if listener.monitor_path.as_ref().is_some_and(|monitored| monitored.as_bytes() == path) {
        // An observer from outside has the successor in mind as well.
        let draining = client.core().hurries();
        let answer = match draining {
            false => Answer { body: b"ok\n", ..Answer::plain(200) },
            true => Answer { body: b"draining\n", ..Answer::plain(503) },
        };
        return Decision::Answered(answer_here(client, request, &answer));
    }
    // An authority asks in plaintext; where it is led to TLS by a redirect, that is another's doing.
    if listener.tls.is_none()
        && matches!(head.method, Method::Get | Method::Head)
        && let Some(body) = challenges::answer(path)
    {
        client.core().metrics.increment(client.core().telemetry.acme.http);
        let answer = Answer { content_type: "application/octet-stream", body: body.as_bytes(), ..Answer::plain(200) };
        return Decision::Answered(answer_here(client, request, &answer));
    }
    if let Some(redirect) = &listener.redirect_to_https {
        return Decision::Answered(answer_redirect(client, request, redirect, listener.paths));
    }
    let mut scratch = [0; HOST_BYTES_MAX];
    let host = head.host_name(&request.text, &mut scratch);
    if let Some(why) = misdirected(client, host, snapshot) {
        request.note.fault = Some(Fault::Misdirected);
        return Decision::Answered(answer_error(client, request, 421, &why));
    }
    let Some(route) = snapshot.route(client.listener(), host, (head, &request.text), || client.sight()) else {
        // A connection that is shared among names may be the wrong one for this: another leads elsewhere, perhaps.
        let is_misdirected = matches!(client, ClientSide::Http2(_)) && !snapshot.serves(client.listener(), host);
        let fault = if is_misdirected { Fault::Misdirected } else { Fault::NoRoute };
        return Decision::Answered(answer_fault(client, request, fault));
    };
    request.note.route = Some(route);
    match snapshot.steps[route] {
        Some(_) => Decision::Steps(route),
        None => act(client, request, snapshot, route),
    }
}

/// Does what a route is for. `route` is its index.
fn act(client: &mut ClientSide<'_>, request: &mut Request, snapshot: &CoreSnapshot, route: usize) -> Decision {
    match &snapshot.shared.config.routes[route].action {
        Action::Backend(backend) => Decision::Forward(*backend),
        Action::Redirect(redirect) => {
            let rules = snapshot.listener(client.listener()).paths;
            Decision::Answered(answer_redirect(client, request, redirect, rules))
        }
        Action::Respond(Respond { status, body, content_type, .. }) => {
            let answer = Answer { content_type, body: body.as_bytes(), ..Answer::plain(*status) };
            Decision::Answered(answer_here(client, request, &answer))
        }
    }
}

/// Reason to refuse a request for a host that its connection's certificate does not speak for: "a request for an
/// "https" resource MUST be rejected unless it has been received over a connection that has been secured via a
/// certificate valid for that target URI's origin" (RFC 9110 §7.4). `None` where the request is not refused.
fn misdirected(client: &ClientSide<'_>, host: &str, snapshot: &CoreSnapshot) -> Option<String> {
    let listener = snapshot.listener(client.listener());
    // Over HTTP/1.1 gateways with a name of their own are common, and nobody shares connections among names.
    let is_strict = listener.strict_host.unwrap_or(matches!(client, ClientSide::Http2(_)));
    let profile = snapshot.profile(client.listener()).filter(|_| is_strict)?;
    // Only HTTP/1.0 may leave it out.
    if host.is_empty() {
        return None;
    }
    let server_name = client.hello_info().and_then(|hello_info| hello_info.server_name.as_deref());
    if profile.covers(server_name, host) {
        return None;
    }
    let made_for = server_name.map_or_else(|| "without a server name".into(), |name| format!("for {name}"));
    Some(format!("misdirected: this connection was made {made_for}, and its certificate is not for {host}"))
}

/// Answers a head that could not be taken. Over HTTP/1 it ends the connection: the next request's start is unknown.
pub fn refuse(client: &mut ClientSide<'_>, request: &mut Request, reject: Reject) -> After {
    let core = Rc::clone(client.core());
    let metrics = client.metrics();
    core.metrics.increment(metrics.rejected.of(reject.fault));
    let allow = [("Allow", "GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH")];
    let fields: &[(&str, &str)] = if reject.status == 405 { &allow } else { &[] };
    request.note.fault = Some(reject.fault);
    // The head is no guide any more: what it says of version or method may be what is wrong with it. Without either it
    // is a GET in HTTP/1.1. One that was read whole has been taken.
    if !reject.is_of_whole_head() || matches!(client, ClientSide::Http2(_)) {
        request.head.clear();
    }
    match client {
        ClientSide::Http1(connection) => {
            request.note.bytes_received += connection.inbox.len() as u64;
            request.note.head_us = request.started.elapsed().as_micros() as u64;
        }
        ClientSide::Http2(_) => request.head.version = Version::Http2,
    }
    let error = word(client, request, &Error::of(reject.status, reject.fault.label()));
    let answer = Answer { fields, close: true, ..error.answer() };
    match client {
        ClientSide::Http1(connection) => stage_answer(connection, request, &answer, false),
        ClientSide::Http2(stream) => stream.answer(request, &answer),
    }
    let snapshot = core.snapshot();
    account(client, request, &snapshot);
    After::Linger
}

fn answer_redirect(client: &mut ClientSide<'_>, request: &mut Request, redirect: &Redirect, rules: PathRules) -> After {
    let head = (&request.head, &request.text[..]);
    let path = request.steps.as_deref().map_or(Ok(None), |steps| steps.redirect_path(redirect, head, rules));
    let path = match path {
        Ok(path) => path,
        Err(fault) => return answer_fault(client, request, fault),
    };
    let location = redirect_location(client, request, redirect, path.as_deref());
    let Some(location) = location else {
        return answer_fault(client, request, Fault::NoHost);
    };
    let answer = Answer { fields: &[("Location", &location)], ..Answer::plain(redirect.status) };
    answer_here(client, request, &answer)
}

/// The Location of a redirect, with the target that its route has made; none if the request (HTTP/1.0) names no host
/// and the redirect does not either.
fn redirect_location(
    client: &ClientSide<'_>,
    request: &Request,
    redirect: &Redirect,
    changed: Option<&str>,
) -> Option<String> {
    let received = if client.is_tls() { "https" } else { "http" };
    let scheme = redirect.scheme.as_deref().unwrap_or(received);
    let mut scratch = [0; HOST_BYTES_MAX];
    let name = request.head.host_name(&request.text, &mut scratch);
    let host = redirect.host.as_deref().unwrap_or(name);
    if host.is_empty() {
        return None;
    }
    let received_port = std::str::from_utf8(request.head.host.bytes(&request.text))
        .ok()
        .and_then(|host| host.rsplit_once(':'))
        .and_then(|(_, port)| port.parse::<u16>().ok());
    // A port given for one scheme says nothing about another's.
    let port = redirect.port.or(received_port.filter(|_| scheme == received));
    let port = port.filter(|port| *port != if scheme == "https" { 443 } else { 80 });
    let mut location = format!("{scheme}://{host}");
    if let Some(port) = port {
        location.push_str(&format!(":{port}"));
    }
    match (&redirect.path, changed) {
        (Some(RedirectPath::Fixed(path)), _) => location.push_str(path),
        (_, Some(path)) => location.push_str(path),
        // `OPTIONS *` is about a URI without a path (RFC 9112 §3.3).
        _ if request.head.path(&request.text) == b"*" => {}
        // Targets are visible ASCII: anything else was refused with the head.
        _ => {
            request.head.target(&request.text).iter().for_each(|part| location.push_str(&String::from_utf8_lossy(part)))
        }
    }
    Some(location)
}

/// Writes a finished request into metrics and log.
fn account(client: &mut ClientSide<'_>, request: &mut Request, snapshot: &CoreSnapshot) {
    let core = Rc::clone(client.core());
    let metrics = client.metrics();
    let note = &request.note;
    let total = request.started.elapsed().as_micros() as u64;
    let entry = Entry {
        class: (note.status / 100).wrapping_sub(1).into(),
        bucket: bucket(DURATION_BOUNDS, total),
        duration: total,
        received: note.bytes_received,
        sent: note.bytes_sent,
    };
    core.metrics.book(&metrics.account, &entry);
    let of_route = snapshot.route_metrics(note.route);
    core.metrics.book(&of_route.account, &entry);
    if note.status == 0 && note.fault.is_some_and(|fault| fault.is_of_attempt()) {
        core.metrics.increment(of_route.unanswered);
    }
    let handshake = client.take_handshake_us().map(u64::from);
    record::finish(client, request, snapshot, handshake);
    if !core.log.borrow().is_on() {
        return;
    }
    write_log_line(client, request, snapshot, (handshake, total));
    if handshake.is_some()
        && let ClientSide::Http1(connection) = client
    {
        connection.forget_hello_info(snapshot);
    }
}

/// Writes the access log's line of a finished request, with the durations of the handshake, for the first request of a
/// connection, and of the whole request, in microseconds.
fn write_log_line(
    client: &ClientSide<'_>,
    request: &Request,
    snapshot: &CoreSnapshot,
    (handshake, total): (Option<u64>, u64),
) {
    let note = &request.note;
    // Over HTTP/2 the name says for which hosts the connection may be used: lines of many hosts stand side by side.
    let is_named = handshake.is_some() || matches!(client, ClientSide::Http2(_));
    let tls = tls_fields(client, is_named || note.fault == Some(Fault::Misdirected));
    // The target as the client wrote it, since somebody who reads the log looks for that.
    let [prefix, target] = request.head.received_target(&request.text);
    let joined;
    let target = if prefix.is_empty() {
        target
    } else {
        joined = [prefix, target].concat();
        &joined
    };
    let config = &snapshot.shared.config;
    client.core().log.borrow_mut().write(&Record {
        client: client.peer(),
        listener: &snapshot.listener(client.listener()).name,
        host: request.head.host.bytes(&request.text),
        method: request.head.method_text.bytes(&request.text),
        target,
        protocol: match request.head.version {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2",
        },
        status: note.status,
        bytes_received: note.bytes_received,
        bytes_sent: note.bytes_sent,
        heads_sent: note.heads_sent,
        durations: Durations {
            handshake,
            head: note.head_us,
            queue: note.queue_us,
            connect: note.connect_us,
            first_byte: note.first_byte_us,
            total,
        },
        backend: note.backend.map(|backend| config.backends[backend].name.as_str()),
        server: note.backend.zip(note.server).map(|(b, s)| snapshot.shared.servers[b][s].label.as_str()),
        attempts: note.attempts,
        reused: note.reused,
        tls: tls.as_ref(),
        fault: note.fault,
        trace: request.trace.id(),
        head: Some((&request.head.fields, &request.text)),
        request_id: request.id(),
        route: note.route.map(|route| config.routes[route].label.as_str()),
    });
}

/// Parameters of the client's TLS session for the log; the server name where it is wanted.
fn tls_fields<'a>(client: &'a ClientSide<'_>, is_named: bool) -> Option<TlsFields<'a>> {
    let facts = client.facts()?;
    let hello_info = client.hello_info();
    Some(TlsFields {
        version: facts.version.name(),
        suite: facts.suite.name(),
        group: facts.group.map(propylon_tls::Group::name),
        certificate: facts.certificate.map(propylon_config::KeyType::name),
        signature: facts.signature.map(propylon_tls::Scheme::name),
        alpn: facts.alpn.map(alpn_name),
        resumed: facts.resumed,
        server_name: hello_info.filter(|_| is_named).and_then(|known| known.server_name.as_deref()),
        ja4: hello_info.and_then(|known| known.ja4.as_deref()).map(propylon_tls::Ja4::as_str),
        client: hello_info.and_then(|known| known.identity.as_deref()),
    })
}
