//! Requests of routes with steps: these are taken one after the other, and then the route's action. Requests of routes
//! without, which are most, never come here.

use std::rc::Rc;

use propylon_config::{Action, BackendId, Respond, SideTo};
use propylon_http::fault::Fault;
use propylon_http::h1::{RequestBody, is_chunked_longer};
use propylon_metrics::Counter;
use propylon_observe::telemetry::LimitMetrics;
use propylon_spool::Bounds;
use propylon_steps::Steps;
use propylon_steps::answers::Place;
use propylon_steps::bodies::Body;
use propylon_steps::conditions;
use propylon_steps::errors::Error;
use propylon_steps::limits::{Asked, Event, Held, Limiter, Refusal, admit};
use propylon_steps::ranges::Wanted;

use super::answers::{answer_busy, answer_error, answer_fault, answer_here, word};
use super::response::identify;
use super::transfer::held;
use super::{Decision, act};
use super::{attempt, change, grpc_web, identity, mirror};
use crate::answer::Answer;
use crate::client::side::ClientSide;
use crate::core::Core;
use crate::limits::now;
use crate::request::{After, Request, Taken};
use crate::snapshot::CoreSnapshot;

/// Takes the steps of a route that waits for nothing with them ([`Steps::extent`]), up to its action. `route` is its
/// index. [`end`] comes behind the request.
pub fn take_promptly(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    snapshot: &Rc<CoreSnapshot>,
    route: usize,
) -> Decision {
    begin(client, request, snapshot, route);
    // Limits of such a route hold nothing that would have to be given back.
    if let Err(refusal) = limit(client, request, snapshot, |steps| &steps.limits) {
        return Decision::Answered(refuse(client, request, &refusal));
    }
    let ready = keep_out(client, request, snapshot, route).and_then(|()| make_ready(client, request, snapshot));
    match ready {
        Ok(()) => act(client, request, snapshot, route),
        Err(after) => Decision::Answered(after),
    }
}

/// Serves a request whose route has steps. `route` is its index. [`end`] comes behind the request.
pub async fn take(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    snapshot: &Rc<CoreSnapshot>,
    route: usize,
) -> After {
    begin(client, request, snapshot, route);
    take_one_by_one(client, request, snapshot, route).await
}

/// Notes the steps of a request's route, and the request as it is before any of them.
fn begin(client: &ClientSide<'_>, request: &mut Request, snapshot: &Rc<CoreSnapshot>, route: usize) {
    request.steps = snapshot.steps[route].as_ref().map(|steps| Taken {
        steps: Rc::clone(steps),
        config: Rc::clone(&snapshot.config),
        listener: snapshot.index_of(client.listener()),
        alarm: None,
        pace: None,
        passing: None,
    });
    request.changes_response |= request.steps.as_ref().is_some_and(|steps| steps.extent.responses);
    identify(client, request, snapshot.listener(client.listener()));
    change::note(client, request, snapshot);
}

/// Gives back what a request has of its route's steps: a connection that is idle holds no configuration.
pub fn end(request: &mut Request) {
    change::end(request);
    request.held = None;
    request.steps = None;
}

/// Answers a browser's question, and a client without the certificate that the route wants.
fn keep_out(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    snapshot: &CoreSnapshot,
    route: usize,
) -> Result<(), After> {
    // Before all that asks who the client is: browsers ask without credentials.
    if request.steps.as_ref().is_some_and(|steps| steps.answers_preflight(&request.head, &request.text)) {
        return Err(answer_here(client, request, &Answer::plain(204)));
    }
    if snapshot.shared.config.routes[route].require_client_certificate && !client.is_identified() {
        return Err(answer_fault(client, request, Fault::ClientCertificateRequired));
    }
    Ok(())
}

/// Makes a request that is let in what goes to servers.
fn make_ready(client: &mut ClientSide<'_>, request: &mut Request, snapshot: &CoreSnapshot) -> Result<(), After> {
    note_pace(client, request, snapshot);
    if request.body_limit().is_some_and(|limit| is_longer(client, request, limit)) {
        client.core().metrics.increment(client.metrics().faults.of(Fault::BodyTooLong));
        return Err(answer_fault(client, request, Fault::BodyTooLong));
    }
    change::apply(client, request, snapshot).map_err(|reject| answer_fault(client, request, reject.fault))
}

async fn take_one_by_one(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    snapshot: &Rc<CoreSnapshot>,
    route: usize,
) -> After {
    // First of all: they keep what follows from being asked too much.
    let held = match limit(client, request, snapshot, |steps| &steps.limits) {
        Ok(held) => held,
        Err(refusal) => return refuse(client, request, &refusal),
    };
    let mut counted = Counted { core: Rc::clone(client.core()), snapshot, request, held };
    let request = &mut *counted.request;
    if let Err(after) = keep_out(client, request, snapshot, route) {
        return after;
    }
    if let Some(gate) = &snapshot.shared.gates.gates[route]
        && let Err(after) = identity::pass(client, request, snapshot, gate).await
    {
        return after;
    }
    match limit(client, request, snapshot, |steps| &steps.user_limits) {
        Ok(held) => counted.held.extend(held),
        Err(refusal) => return refuse(client, request, &refusal),
    }
    if let Err(after) = make_ready(client, request, snapshot) {
        return after;
    }
    if request.steps.as_ref().is_some_and(|steps| steps.grpc_web) {
        let taken = Box::pin(grpc_web::take(client, request, snapshot)).await;
        if let Err(after) = taken {
            return after;
        }
    }
    if let Action::Respond(respond) = &snapshot.shared.config.routes[route].action
        && let Some(after) = respond_here(client, request, snapshot, respond)
    {
        return after;
    }
    match act(client, request, snapshot, route) {
        Decision::Forward(first) => forward(client, request, snapshot, (route, first)).await,
        Decision::Answered(after) => after,
        Decision::Steps(_) => unreachable!("an action has a route, and no steps"),
    }
}

/// A request that limits count until it ends, also when it is dropped half-way.
struct Counted<'r> {
    core: Rc<Core>,
    snapshot: &'r CoreSnapshot,
    request: &'r mut Request,
    held: Held,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if !self.held.is_empty() {
            self.held.settle(self.request.note.bytes_sent, now(), |limit, event| {
                self.core.metrics.increment(counter(&self.snapshot.limit_metrics[limit], event));
            });
        }
    }
}

fn counter(metrics: &LimitMetrics, event: Event) -> Counter {
    match event {
        Event::Allowed => metrics.allowed,
        Event::Exempt => metrics.exempt,
        Event::Refused => metrics.refused,
        Event::Denied => metrics.denied,
        Event::Full => metrics.full,
    }
}

/// A request as what is asked of its head sees it.
fn seen<'a>(client: &'a ClientSide<'_>, request: &'a Request, snapshot: &CoreSnapshot) -> conditions::Request<'a> {
    let (head, text) = (&request.head, &request.text[..]);
    let source = conditions::source(snapshot.listener(client.listener()), client.peer().ip(), head, text);
    conditions::Request { head, text, source, connection: conditions::Connection::default() }
}

/// A request as what counts by keys sees it.
fn asked<'a>(client: &'a ClientSide<'_>, request: &'a Request, snapshot: &CoreSnapshot) -> Asked<'a> {
    let hello_info = client.hello_info();
    Asked {
        request: seen(client, request, snapshot),
        certificate: hello_info.and_then(|known| known.identity.as_deref()).map(|identity| &*identity.sha256),
        ja4: hello_info.and_then(|known| known.ja4.as_deref()).map(propylon_tls::Ja4::as_str),
    }
}

/// Notes whom the request shares its route's pace with, before the route changes what that goes by.
fn note_pace(client: &ClientSide<'_>, request: &mut Request, snapshot: &CoreSnapshot) {
    let Some(pace) = request.steps.as_ref().and_then(|taken| taken.steps.pace.clone()) else { return };
    let key = pace.key(&asked(client, request, snapshot));
    if let Some(taken) = &mut request.steps {
        taken.pace = Some((pace, key));
    }
}

/// Asks these limits of the request's route.
fn limit(
    client: &ClientSide<'_>,
    request: &Request,
    snapshot: &CoreSnapshot,
    of: impl Fn(&Steps) -> &Vec<Limiter>,
) -> Result<Held, Refusal> {
    let limits = request.steps.as_ref().map_or(&[][..], |taken| of(&taken.steps));
    if limits.is_empty() {
        return Ok(Held::default());
    }
    let asked = asked(client, request, snapshot);
    let metrics = &client.core().metrics;
    admit(limits, &asked, now(), |limit, event| metrics.increment(counter(&snapshot.limit_metrics[limit], event)))
}

/// Answers a request that a limit keeps back: with when to come back (RFC 9110 §10.2.3), and which limit it was.
fn refuse(client: &mut ClientSide<'_>, request: &mut Request, refusal: &Refusal) -> After {
    let Refusal::Limited { retry_after, policy, state } = refusal else {
        return answer_fault(client, request, Fault::Denied);
    };
    let fault = Fault::RateLimited;
    request.note.fault = Some(fault);
    let seconds = retry_after.to_string();
    let fields = [("Retry-After", &*seconds), ("RateLimit-Policy", policy), ("RateLimit", state)];
    let error = word(client, request, &Error::of(fault.status(), fault.label()));
    answer_here(client, request, &Answer { fields: &fields, ..error.answer() })
}

/// Whether a body is longer than this, by what was announced or has come with the head; what comes later is counted on
/// its way.
fn is_longer(client: &ClientSide<'_>, request: &Request, limit: u64) -> bool {
    match (request.head.body, client) {
        (RequestBody::None, _) => false,
        (RequestBody::Length(length), _) => length > limit,
        (RequestBody::Chunked, ClientSide::Http2(_)) => false,
        (RequestBody::Chunked, ClientSide::Http1(connection)) => is_chunked_longer(connection.inbox.readable(), limit),
    }
}

/// Forwards to the backend that is chosen among those of the route, or to the fallback where that has no server.
async fn forward(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    snapshot: &Rc<CoreSnapshot>,
    (route, first): (usize, BackendId),
) -> After {
    let Some(steps) = request.steps.as_ref().map(|taken| Rc::clone(&taken.steps)) else { return After::Abort };
    for mirror in &steps.mirrors {
        mirror::begin(client, request, snapshot, mirror);
    }
    if let Some(bounds) = steps.buffer.request {
        let bounds = Bounds { memory: bounds.memory, disk: bounds.disk };
        if let Err(after) = Box::pin(held::hold(client, request, snapshot, bounds)).await {
            return after;
        }
    }
    let mut before = None;
    let chosen = match &steps.split {
        None => Some(SideTo::Backend(first)),
        Some(split) => {
            let side = split.choose(&seen(client, request, snapshot), request.client_path());
            let change = side.and_then(|side| side.change.as_ref());
            before = change.and_then(|change| change::take_side(client, request, snapshot, change));
            side.map(|side| side.to)
        }
    };
    let after = match chosen {
        Some(SideTo::Respond(status)) => return answer_status(client, request, snapshot, (&steps, status)),
        Some(SideTo::Backend(chosen)) => {
            attempt::forward(client, request, snapshot, snapshot.backend_of(route, chosen)).await
        }
        None if steps.fallback.is_some() => After::Fallback,
        None => answer_busy(client, request, Fault::NoServer, 1),
    };
    let Some(fallback) = steps.fallback.filter(|_| after == After::Fallback) else { return after };
    if let Some(before) = before {
        change::leave_side(request, before);
    }
    // Servers are numbered by backend, and so are those that cookies name.
    (request.note.server, request.note.cookie_server) = (None, None);
    if request.held.is_some() || request.own_body().is_some_and(|body| !body.is_empty()) {
        // The held body says how it goes on, and one that the route has taken is not asked for its length.
        request.head.body = RequestBody::Chunked;
    }
    attempt::forward(client, request, snapshot, snapshot.backend_of(route, fallback)).await
}

/// Answers with a file, or the part of it that is asked for.
fn answer_file(client: &mut ClientSide<'_>, request: &mut Request, file: &Body, plain: Answer<'_>) -> After {
    let (bytes, length) = (&file.bytes[..], file.bytes.len());
    let known = [("ETag", &*file.etag), ("Accept-Ranges", "bytes")];
    let whole = Answer { fields: &known, body: bytes, ..plain };
    // The route may give it another, or none.
    let tag = change::own_tag(client, request, &whole).unwrap_or_default();
    match Wanted::of(&request.head, &request.text, (length, &tag)) {
        Wanted::Whole => answer_here(client, request, &whole),
        Wanted::NotModified => answer_here(client, request, &Answer { status: 304, fields: &known[..1], ..whole }),
        Wanted::Part(part) => {
            let range = format!("bytes {}-{}/{length}", part.start, part.end - 1);
            let fields = [known[0], known[1], ("Content-Range", &range)];
            let body = &bytes[part];
            answer_here(client, request, &Answer { status: 206, fields: &fields, body, whole: length, ..whole })
        }
        Wanted::Failed => answer_error(client, request, 412, ""),
        Wanted::Unsatisfiable => {
            let range = format!("bytes */{length}");
            let error = word(client, request, &Error::of(416, ""));
            answer_here(client, request, &Answer { fields: &[("Content-Range", &range)], ..error.answer() })
        }
    }
}

/// Answers from a file, or with the page of the status where the route has no body of its own. `None`: neither is
/// there.
fn respond_here(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    snapshot: &CoreSnapshot,
    respond: &Respond,
) -> Option<After> {
    let steps = Rc::clone(&request.steps.as_ref()?.steps);
    let fixed = |status| Answer { content_type: &respond.content_type, is_fixed: true, ..Answer::plain(status) };
    if let Some(file) = steps.answers.fixed(steps.route) {
        if respond.status == 200 {
            return Some(answer_file(client, request, file, fixed(200)));
        }
        return Some(answer_here(client, request, &Answer { body: &file.bytes, ..fixed(respond.status) }));
    }
    if steps.compress.is_some() && !respond.body.is_empty() {
        return Some(answer_here(client, request, &Answer { body: respond.body.as_bytes(), ..fixed(respond.status) }));
    }
    let has_page = respond.body.is_empty() && has_page(client, snapshot, (&steps, respond.status));
    has_page.then(|| answer_status(client, request, snapshot, (&steps, respond.status)))
}

/// Whether an error of a route with these steps has a form of its own.
fn has_page(client: &ClientSide<'_>, snapshot: &CoreSnapshot, (steps, status): (&Steps, u16)) -> bool {
    let place = Place { listener: &snapshot.listener(client.listener()).name, route: Some(steps.route) };
    status >= 400 && steps.answers.has_form(place, status)
}

/// Answers with a status, and with the page of it where there is one.
fn answer_status(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    snapshot: &CoreSnapshot,
    (steps, status): (&Steps, u16),
) -> After {
    if !has_page(client, snapshot, (steps, status)) {
        return answer_here(client, request, &Answer::plain(status));
    }
    let error = word(client, request, &Error::of(status, ""));
    answer_here(client, request, &error.answer())
}
