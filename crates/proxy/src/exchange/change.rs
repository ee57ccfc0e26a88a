//! Changes that a route makes to its requests and to their responses: facts of the request in hand, and the places in
//! its life where they are made. What the changes are is compiled in `propylon_steps::change`.

use std::rc::Rc;

use propylon_config::Fact;
use propylon_http::h1::{Fields, Reject, RequestHead};
use propylon_steps::change::OwnFields;
use propylon_steps::side::{Before, SideChange};
use propylon_steps::split::Split;
use propylon_steps::{Changed, Facts, ResponseChange, Tell, conditions, route_path};

use super::heads::forwarded;
use crate::answer::Answer;
use crate::client::facts::tls_fact;
use crate::client::side::ClientSide;
use crate::request::{Request, Taken, response_change};
use crate::snapshot::CoreSnapshot;
use crate::trace::Trace;
use crate::upstream::backend::Backend;

/// Makes the changes of a request that are the same for all attempts.
///
/// # Errors
/// 400 for a path that has become one which the listener refuses, 414 for a target that has become too long.
pub fn apply(client: &ClientSide<'_>, request: &mut Request, snapshot: &CoreSnapshot) -> Result<(), Reject> {
    let id = request.id().map(str::to_owned);
    let Request { head, text, steps, changed, adds_lines, .. } = request;
    let (Some(steps), Some(changed)) = (steps, changed) else { return Ok(()) };
    let Some(change) = &steps.request else { return Ok(()) };
    *adds_lines = true;
    let listener = snapshot.listener(client.listener());
    let tls = |fact| fact_of((client, id.as_deref()), fact);
    change.apply((head, text), changed, (listener, forwarded(client, listener)), &tls)
}

/// Notes what a request is before anything is changed of it, where its route changes it or its response.
pub fn note(client: &ClientSide<'_>, request: &mut Request, snapshot: &CoreSnapshot) {
    let has_sides = |steps: &Taken| steps.split.as_ref().is_some_and(Split::has_changes);
    let is_needed =
        |steps: &&Taken| steps.request.is_some() || steps.response.is_some() || steps.grpc_web || has_sides(steps);
    let Some(steps) = request.steps.as_ref().filter(is_needed) else { return };
    let (listener, peer) = (snapshot.listener(client.listener()), client.peer());
    let source = conditions::source(listener, peer.ip(), &request.head, &request.text);
    let changed = (Rc::clone(&steps.route_path), (peer, source), client.is_tls());
    request.changed = Some(match request.changed_kept.take() {
        Some(mut kept) => {
            kept.renew(changed);
            kept
        }
        None => Box::new(Changed::of(changed)),
    });
}

/// Makes the changes of the side that a request goes to, which are the same for all attempts at it. Returns what it was
/// before, to be gone back to for another backend; `None` where nothing is changed.
pub fn take_side(
    client: &ClientSide<'_>,
    request: &mut Request,
    snapshot: &CoreSnapshot,
    side: &Rc<SideChange>,
) -> Option<Before> {
    let id = request.id().map(str::to_owned);
    let Request { head, text, changed, adds_lines, .. } = request;
    let changed = changed.as_mut()?;
    *adds_lines = true;
    let listener = snapshot.listener(client.listener());
    let tls = |fact| fact_of((client, id.as_deref()), fact);
    let facts = Facts { changed, request: (head, text), server: None, tls: &tls };
    let tell = |fact, out: &mut Vec<u8>| facts.write(fact, out);
    let lines = side.lines((&head.fields, text), &changed.lines, forwarded(client, listener), &tell);
    let before = Before { fields: head.fields.clone(), lines: std::mem::replace(&mut changed.lines, lines) };
    changed.side = Some(Rc::clone(side));
    side.withhold(&mut head.fields, text);
    Some(before)
}

/// Takes the changes of a request's side back.
pub fn leave_side(request: &mut Request, before: Before) {
    request.head.fields = before.fields;
    if let Some(changed) = &mut request.changed {
        (changed.lines, changed.side) = (before.lines, None);
    }
}

/// Calls `tell` with what is known of a request, whether its route changes anything or not.
pub fn with_facts<T>(
    client: &ClientSide<'_>,
    request: &Request,
    snapshot: &CoreSnapshot,
    tell: impl FnOnce(&Facts<'_, '_>) -> T,
) -> T {
    let (head, text) = (&request.head, &request.text[..]);
    let unchanged;
    let changed = match &request.changed {
        Some(changed) => &**changed,
        None => {
            let route = &snapshot.shared.config.routes[request.note.route.unwrap_or(0)];
            let source = conditions::source(snapshot.listener(client.listener()), client.peer().ip(), head, text);
            unchanged = Changed::of((route_path(&route.path), (client.peer(), source), client.is_tls()));
            &unchanged
        }
    };
    let tls = |fact| fact_of((client, request.id()), fact);
    tell(&Facts { changed, request: (head, text), server: server(request, snapshot), tls: &tls })
}

/// A fact of the connection, or the request's ID.
fn fact_of<'a>((client, id): (&'a ClientSide<'_>, Option<&'a str>), fact: Fact) -> Option<&'a str> {
    match fact {
        Fact::RequestId => id,
        fact => tls_fact((client.facts(), client.hello_info()), fact),
    }
}

/// Keeps the memory of what was changed for the next request, but for what a span tells.
pub fn end(request: &mut Request) {
    if !matches!(request.trace, Trace::Recorded(_))
        && let Some(mut changed) = request.changed.take()
        && changed.clear()
    {
        request.changed_kept = Some(changed);
    }
}

/// Host that the server of this attempt is asked for; none if that is the client's.
pub fn host(request: &Request, snapshot: &CoreSnapshot) -> Option<Vec<u8>> {
    let change = request.steps.as_ref()?.request.as_ref().filter(|change| change.changes_host())?;
    let is_tls = snapshot.shared.config.backends[request.note.backend?].tls.is_some();
    change.host(server(request, snapshot), is_tls)
}

fn server<'a>(request: &Request, snapshot: &'a CoreSnapshot) -> Option<&'a str> {
    let (backend, server) = (request.note.backend?, request.note.server?);
    Some(snapshot.shared.servers[backend][server].label.as_str())
}

/// Writes the route's lines for the server of this attempt.
pub fn write_lines(client: &ClientSide<'_>, request: &Request, snapshot: &CoreSnapshot, out: &mut Vec<u8>) {
    let (Some(steps), Some(changed)) = (&request.steps, &request.changed) else { return };
    out.extend_from_slice(&changed.lines);
    let tls = |fact| fact_of((client, request.id()), fact);
    let facts =
        Facts { changed, request: (&request.head, &request.text), server: server(request, snapshot), tls: &tls };
    let tell = |fact, out: &mut Vec<u8>| facts.write(fact, out);
    if let Some(change) = &steps.request {
        change.write_lines_of_server(changed.side.as_deref(), &tell, out);
    }
    if let Some(side) = &changed.side {
        side.write_lines_of_server(&tell, out);
    }
}

/// Calls `make` with what tells facts of a request whose response is changed; `None` where nothing is noted of it.
fn with_tell<T>(
    client: &ClientSide<'_>,
    (changed, id): (Option<&Changed>, Option<&str>),
    (request, server): ((&RequestHead, &[u8]), Option<&str>),
    make: impl FnOnce(&Tell<'_>) -> T,
) -> Option<T> {
    let tls = |fact| fact_of((client, id), fact);
    let facts = Facts { changed: changed?, request, server, tls: &tls };
    Some(make(&|fact, out: &mut Vec<u8>| facts.write(fact, out)))
}

/// As [`with_tell`], for an answer that no server of the route has given, and the route's changes of it.
fn with_own_change<T>(
    client: &ClientSide<'_>,
    request: &Request,
    make: impl FnOnce(&ResponseChange, &Tell<'_>) -> T,
) -> Option<T> {
    let change = request.steps.as_ref()?.response.as_ref()?;
    let head = (&request.head, &request.text[..]);
    let noted = (request.changed.as_deref(), request.id());
    with_tell(client, noted, (head, None), |tell| make(change, tell))
}

/// Changes a server's response, whose text is given: what is added to it is among [`Request::lines`].
pub fn response(client: &ClientSide<'_>, request: &mut Request, text: &[u8], backend: &Backend) {
    let id = request.id().map(str::to_owned);
    let Request { head, text: head_text, steps, changed, response, lines, hides_via, note, .. } = request;
    let changed = changed.as_deref();
    // Not counted: the count may lie beside another core's.
    let Some(change) = response_change(steps.as_deref(), changed) else { return };
    let server = note.server.map(|server| backend.servers[server].label.as_str());
    with_tell(client, (changed, id.as_deref()), ((head, head_text), server), |tell| {
        change.change_fields((&mut response.fields, text), client.is_tls(), tell, lines);
        *hides_via = change.hides_via();
    });
}

/// Changes cookies and locations of another service's answer that is passed on: all else is changed with the answers of
/// our own, as which it goes out.
pub fn passed_on(
    client: &ClientSide<'_>,
    request: &Request,
    (fields, text): (&mut Fields, &[u8]),
    lines: &mut Vec<u8>,
) {
    with_own_change(client, request, |change, tell| change.change_values((fields, text), tell, lines));
}

/// Fields of an answer of our own, changed, with those of its lines that are no text and go on; none where the route
/// changes none. A side's changes are of what comes from there.
#[cold]
pub fn own_answer(
    client: &ClientSide<'_>,
    request: &Request,
    answer: &Answer<'_>,
    others: Vec<u8>,
) -> Option<OwnFields> {
    let fields = (answer.fields, answer.content_type);
    with_own_change(client, request, |change, tell| {
        let mut own = change.change_own(fields, client.is_tls(), tell);
        own.lines.extend(change.kept_trailers(others));
        own
    })
}

/// Lines of Vary, among those of an answer of our own and those that its route adds, by which caches have to go
/// although the route's changes replace or remove the field: the page goes by Accept, and CORS by the origin.
#[cold]
pub fn kept_vary(request: &Request, (of_answer, of_route): (&[u8], &[u8])) -> Vec<u8> {
    let change = request.steps.as_ref().and_then(|taken| taken.response.as_ref());
    if change.is_none_or(|change| !change.replaces(b"vary")) {
        return Vec::new();
    }
    let ours = [(of_answer, &b"Vary: Accept\r\n"[..]), (of_route, b"Vary: Origin\r\n")];
    let has = |lines: &[u8], own: &[u8]| lines.split_inclusive(|byte| *byte == b'\n').any(|line| line == own);
    ours.into_iter().filter(|(lines, own)| has(lines, own)).flat_map(|(_, own)| own.to_vec()).collect()
}

/// Entity tag that an answer of our own has with its client.
pub fn own_tag(client: &ClientSide<'_>, request: &Request, answer: &Answer<'_>) -> Option<String> {
    let is_tag = |name: &str| name.eq_ignore_ascii_case("etag");
    match own_answer(client, request, answer, Vec::new()) {
        None => answer.fields.iter().find(|(name, _)| is_tag(name)).map(|(_, tag)| (*tag).to_owned()),
        Some(own) => own.fields.into_iter().find(|(name, _)| is_tag(name)).map(|(_, tag)| tag),
    }
}
