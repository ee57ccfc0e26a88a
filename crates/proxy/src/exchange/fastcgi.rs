//! Requests for servers of FastCGI: the head that a server of HTTP would get, and facts that scripts are told besides.

use propylon_config::{FastCgi, Piece, RequestHeader};
use propylon_fastcgi::params::{Facts, Params, Unfit};
use propylon_http::fault::Fault;
use propylon_http::h1::Version;
use propylon_steps::conditions;

use super::change;
use super::heads::write_request_head;
use super::transfer::Opening;
use crate::client::side::ClientSide;
use crate::request::Request;
use crate::snapshot::CoreSnapshot;
use crate::upstream::backend::Backend;

/// The beginning of a request, for which `scratch` is used.
pub fn opening(
    client: &ClientSide<'_>,
    request: &Request,
    snapshot: &CoreSnapshot,
    backend: &Backend,
    scratch: &mut Vec<u8>,
) -> Opening {
    let default = FastCgi::at_root("");
    let settings = backend.config().fastcgi.as_ref().unwrap_or(&default);
    write_request_head(client, request, snapshot, false, scratch);
    let extra = values(client, request, snapshot, &settings.params);
    let (peer, listener) = (client.peer(), snapshot.listener(client.listener()));
    // The client as the route's conditions have it.
    let source = conditions::source(listener, peer.ip(), &request.head, &request.text);
    let facts = Facts {
        protocol: match request.head.version {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2.0",
        },
        client: (source, (source == peer.ip().to_canonical()).then(|| peer.port())),
        server: client.sight().connection.destination,
        is_tls: client.is_tls(),
        extra: &extra,
    };
    let params = Params::of(settings, scratch, &facts).map_err(|unfit| match unfit {
        Unfit::Path => Fault::BadScriptPath,
        Unfit::TooLong => Fault::ParameterTooLong,
    });
    Opening { params, body: request.head.body, expects_continue: request.head.expect_continue, keeps: settings.keep }
}

/// Values of the configuration's own parameters; none where a fact is not known.
fn values(
    client: &ClientSide<'_>,
    request: &Request,
    snapshot: &CoreSnapshot,
    params: &[RequestHeader],
) -> Vec<Option<Vec<u8>>> {
    if params.is_empty() {
        return Vec::new();
    }
    change::with_facts(client, request, snapshot, |facts| {
        let value = |param: &RequestHeader| {
            let mut text = Vec::new();
            let is_known = param.value.iter().all(|piece| match piece {
                Piece::Text(literal) => {
                    text.extend_from_slice(literal.as_bytes());
                    true
                }
                Piece::Fact(fact) => facts.write(*fact, &mut text),
            });
            is_known.then_some(text)
        };
        params.iter().map(value).collect()
    })
}
