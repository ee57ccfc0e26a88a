//! Connections that are opened, carry a request each (over HTTP/2 twenty), and lie idle.

use crate::client_group::clients::{Behaviour, Clients};
use crate::client_group::http2::Http2Behaviour;
use crate::client_group::phase::LoadPhase;
use crate::client_group::{ClientBehaviour, RequestPattern};
use crate::failure::Outcome;
use crate::interrupt::Interrupt;
use crate::link::Request;
use crate::requests::Http;
use crate::target::Target;
use std::time::Duration;

/// Clients that connect at once; below every common accept backlog.
pub const OPENING_MAX: usize = 128;
/// A connection that takes longer than this to be opened is not waited for.
pub const OPENING_TIMEOUT: Duration = Duration::from_secs(300);
/// Requests on an HTTP/2 connection before it lies idle. Those of a page: what a server allocates with the first
/// stream, or with the first few, is there by then, and so are the entries of the header compression's tables.
const HTTP2_REQUESTS: u32 = 20;

/// Idle connections of this process.
pub struct IdleConnections<'t> {
    clients: Clients<'t>,
    pub opening: LoadPhase,
}

/// Clients that ask, and lie idle.
pub fn idle_clients(http: Http, path: &str, host: &str, timeout: Duration) -> Behaviour {
    match http {
        Http::V11 => Behaviour::Http1(ClientBehaviour {
            pattern: RequestPattern::Once,
            request: Request::new("GET", path, host, "", 0),
            timeout,
            opening_max: OPENING_MAX,
            arrivals_max: None,
        }),
        Http::V2 => Behaviour::Http2(Http2Behaviour {
            path: path.to_owned(),
            requests: HTTP2_REQUESTS,
            timeout,
            opening_max: OPENING_MAX,
        }),
    }
}

impl<'t> IdleConnections<'t> {
    /// Opens them; `behaviour` is one of `idle_clients`.
    pub fn open(target: &'t Target, count: usize, behaviour: Behaviour, interrupt: &Interrupt) -> Outcome<Self> {
        let mut clients = Clients::new(target, behaviour, 1, interrupt)?;
        let opening = clients.grow(count, OPENING_TIMEOUT, |_| {})?;
        Ok(Self { clients, opening })
    }

    /// Keeps them for a while, and notices those that the server closes. Returns how many are open after it.
    pub fn hold(&mut self, duration: Duration) -> Outcome<usize> {
        Ok(self.clients.hold(duration)?.clients.served)
    }
}
