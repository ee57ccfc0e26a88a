//! Heads of requests as servers get them, and lines that engines add to responses.

use propylon_config::{Forwarded, Listener, ServerProtocol};
use propylon_http::h1::{self, ClientAddress, ForwardContext, Scheme};
use propylon_http::h2::{self, FieldWriter};
use propylon_steps::split::Split;

use crate::client::facts::ClientFactHeaders;
use crate::client::side::ClientSide;
use crate::exchange::change;
use crate::request::Request;
use crate::snapshot::CoreSnapshot;
use crate::upstream::backend::Backend;

/// Writes the head for a server of HTTP/1, whatever HTTP the client speaks. `last`: no other request on its connection.
pub fn write_request_head(
    client: &ClientSide<'_>,
    request: &Request,
    snapshot: &CoreSnapshot,
    last: bool,
    out: &mut Vec<u8>,
) {
    let address = ClientAddress::new(client.peer().ip());
    let context = context((client, &address), request, snapshot, last);
    let facts = facts((client, &address), request, snapshot);
    if request.adds_lines {
        let host = change::host(request, snapshot);
        let context = ForwardContext { host: host.as_deref().or(context.host), ..context };
        h1::write_request(&request.head, &request.text, &context, out);
        h1::add_lines(out, |out| write_lines(client, (request, facts), snapshot, out));
        let backend = request.note.backend.map(|backend| &snapshot.shared.config.backends[backend]);
        if backend.is_some_and(|backend| backend.protocol == ServerProtocol::Http10) {
            h1::lower_version(out, !last);
        }
        return;
    }
    h1::write_request(&request.head, &request.text, &context, out);
    if let Some(facts) = facts {
        h1::add_lines(out, |out| facts.write(out));
    }
}

/// Writes all lines that go behind those of the head: facts of the connection, the route's lines, and the trace.
#[cold]
pub(super) fn write_lines(
    client: &ClientSide<'_>,
    (request, facts): (&Request, Option<ClientFactHeaders<'_>>),
    snapshot: &CoreSnapshot,
    out: &mut Vec<u8>,
) {
    if let Some(facts) = facts {
        facts.write(out);
    }
    change::write_lines(client, request, snapshot, out);
    if request.trace.is_told() {
        request.trace.write(out);
    }
}

/// Writes the fields of the head for a server of HTTP/2, whatever HTTP the client speaks. `is_tls`: the server's
/// connection is.
pub fn write_request_fields(
    client: &ClientSide<'_>,
    request: &Request,
    snapshot: &CoreSnapshot,
    is_tls: bool,
    out: &mut impl FieldWriter,
) {
    let address = ClientAddress::new(client.peer().ip());
    let context = context((client, &address), request, snapshot, false);
    let scheme: &[u8] = if is_tls { b"https" } else { b"http" };
    let core = client.core();
    let mut scratch = core.lines.borrow_mut();
    let facts = facts((client, &address), request, snapshot);
    if request.adds_lines {
        let host = change::host(request, snapshot);
        let context = ForwardContext { host: host.as_deref().or(context.host), ..context };
        let more = |lines: &mut Vec<u8>| write_lines(client, (request, facts), snapshot, lines);
        return h2::write_request((&request.head, &request.text), &context, (scheme, more), &mut scratch, out);
    }
    let more = |lines: &mut Vec<u8>| {
        if let Some(facts) = facts {
            facts.write(lines);
        }
    };
    h2::write_request((&request.head, &request.text), &context, (scheme, more), &mut scratch, out);
}

pub(super) fn facts<'a>(
    (client, address): (&'a ClientSide<'_>, &'a ClientAddress),
    request: &'a Request,
    snapshot: &'a CoreSnapshot,
) -> Option<ClientFactHeaders<'a>> {
    let listener = snapshot.listener(client.listener());
    ClientFactHeaders::of((address, request), client.facts(), client.hello_info(), listener)
}

pub(super) fn context<'a>(
    (client, address): (&ClientSide<'_>, &'a ClientAddress),
    request: &Request,
    snapshot: &'a CoreSnapshot,
    last: bool,
) -> ForwardContext<'a> {
    let head = &request.head;
    let listener = snapshot.listener(client.listener());
    let label = || {
        let (backend, server) = (request.note.backend.unwrap_or(0), request.note.server.unwrap_or(0));
        let label = &snapshot.shared.servers[backend][server].label;
        // A Unix socket has no name that could be one: nginx and curl ask "localhost" there.
        if label.starts_with("unix:") { "localhost" } else { label }.as_bytes()
    };
    ForwardContext {
        client: address,
        scheme: if client.is_tls() { Scheme::Https } else { Scheme::Http },
        forwarded: forwarded(client, listener),
        host: head.host.is_empty().then(label),
        body: head.body,
        expect_continue: true,
        keep_alive: !last,
        via: request.note.backend.is_some_and(|backend| snapshot.shared.config.backends[backend].via),
    }
}

/// The cookies that a client is to be given: of the server that it is at, and of the side of its route, unless those
/// are what it has.
pub fn cookie_lines<'a>(client: &ClientSide<'_>, request: &Request, backend: &'a Backend) -> Option<&'a [u8]> {
    if !backend.terms.sets_cookie {
        return None;
    }
    let server = request.note.server.filter(|server| request.note.cookie_server != Some(*server));
    let of_server = || backend.shared.sticky.as_ref()?.set_cookie_line(server?, client.is_tls());
    let split = request.steps.as_deref().and_then(|steps| steps.split.as_ref());
    let has_side = |split: &Split| split.has_cookie_of(backend.id, &request.head.fields, &request.text);
    match backend.terms.side.as_deref().filter(|_| !split.is_some_and(has_side)) {
        None => of_server(),
        Some(side) => {
            let both = server.and_then(|server| side.with_server.get(server));
            Some(both.unwrap_or(&side.alone).of(client.is_tls()))
        }
    }
}

/// How a client's word about itself is taken.
pub fn forwarded(client: &ClientSide<'_>, listener: &Listener) -> Forwarded {
    match listener.forwarded {
        Forwarded::Append if !listener.trusts(client.peer().ip()) => Forwarded::Replace,
        forwarded => forwarded,
    }
}
