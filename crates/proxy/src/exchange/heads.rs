//! Heads of requests as servers get them, and lines that engines add to responses.

use propylon_config::Forwarded;
use propylon_http::h1::{self, ClientAddress, ForwardContext, Scheme};

use crate::client::facts::ClientFactHeaders;
use crate::client::side::ClientSide;
use crate::request::Request;
use crate::snapshot::CoreSnapshot;
use crate::upstream::backend::Backend;

/// Writes the head for the server, whatever HTTP the client speaks. `last`: no other request on its connection.
pub fn write_request_head(
    client: &ClientSide<'_>,
    request: &Request,
    snapshot: &CoreSnapshot,
    last: bool,
    out: &mut Vec<u8>,
) {
    let head = &request.head;
    let listener = snapshot.listener(client.listener());
    let address = ClientAddress::new(client.peer().ip());
    let label = || {
        let (backend, server) = (request.note.backend.unwrap_or(0), request.note.server.unwrap_or(0));
        snapshot.shared.servers[backend][server].label.as_bytes()
    };
    let context = ForwardContext {
        client: &address,
        scheme: if client.is_tls() { Scheme::Https } else { Scheme::Http },
        forwarded: match listener.forwarded {
            Forwarded::Append if !listener.trusts(client.peer().ip()) => Forwarded::Replace,
            forwarded => forwarded,
        },
        host: head.host.is_empty().then(label),
        body: head.body,
        expect_continue: true,
        keep_alive: !last,
        via: request.note.backend.is_some_and(|backend| snapshot.shared.config.backends[backend].via),
    };
    h1::write_request(head, &request.text, &context, out);
    if let Some(facts) = ClientFactHeaders::of(&address, client.facts(), client.hello_info(), listener) {
        h1::add_lines(out, |out| facts.write(out));
    }
    if request.trace.is_told() {
        h1::add_lines(out, |out| request.trace.write(out));
    }
}

/// The cookie that a client is to be given: of the server that it is at, unless that is the one it has.
pub fn cookie_line<'a>(client: &ClientSide<'_>, request: &Request, backend: &'a Backend) -> Option<&'a [u8]> {
    let sticky = backend.shared.sticky.as_ref()?;
    let server = request.note.server.filter(|server| request.note.cookie_server != Some(*server))?;
    sticky.set_cookie_line(server, client.is_tls())
}
