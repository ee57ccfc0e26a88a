//! Conditions of a route on requests, and its steps with them and their responses: compiled from the configuration,
//! without sockets and clocks. Whoever has the connection calls it.

mod accept;
pub mod answers;
pub mod bodies;
pub mod conditions;
pub mod cors;
pub mod errors;
pub mod limits;
pub mod mirror;
pub mod request_id;
pub mod response;
pub mod retry;
pub mod split;
pub mod sticky;

use std::sync::Arc;
use std::time::Duration;

use propylon_config::{Action, BackendId, Compress, Config, Errors, Respond, Route};
use propylon_http::h1::RequestHead;

use answers::Answers;
use cors::Cors;
use limits::Limiter;
use mirror::Mirror;
use retry::Retries;
use split::Split;

/// Steps of one route, compiled. Each core has its own.
pub struct Steps {
    /// Index of the route.
    pub route: usize,
    /// Answers of the configuration that the route is of.
    pub answers: Arc<Answers>,
    /// Pages of other origins that may use the route.
    pub cors: Option<Cors>,
    /// Limits, in the order in which they are asked.
    pub limits: Vec<Limiter>,
    /// Compression of responses.
    pub compress: Option<Compress>,
    /// Division of the requests among backends.
    pub split: Option<Split>,
    /// Backend of requests for which theirs has no server.
    pub fallback: Option<BackendId>,
    /// Limit on the whole request.
    pub time_limit: Option<Duration>,
    pub retries: Option<Retries>,
    /// Longest body that a request may have, in bytes.
    pub body_limit: Option<u64>,
    pub mirror: Option<Mirror>,
}

impl Steps {
    /// The steps of the route of this index; `None` where there are none, as for most. `limits` are the route's;
    /// `is_gated`: it has a gate, which others than its own steps may ask for; `random` decides where turns begin.
    pub fn of(
        (config, index): (&Config, usize),
        answers: &Arc<Answers>,
        (limits, is_gated): (Vec<Limiter>, bool),
        random: u64,
    ) -> Option<Steps> {
        let route = &config.routes[index];
        let steps = &route.steps;
        let has_file = matches!(&route.action, Action::Respond(Respond { body_file: Some(_), .. }));
        let has_steps = is_gated || route.require_client_certificate || has_file || !steps.is_empty();
        (has_steps || listeners_have_steps(config, route)).then(|| Steps {
            route: index,
            answers: Arc::clone(answers),
            cors: steps.cors.as_ref().map(Cors::of),
            limits,
            compress: steps.compress.clone(),
            split: steps.split.as_ref().map(|split| Split::of(split, config, random)),
            fallback: steps.fallback,
            time_limit: steps.timeouts.request,
            retries: steps.retries.as_ref().map(Retries::of),
            body_limit: steps.body_limit,
            mirror: steps.mirror.as_ref().map(|mirror| Mirror::of(mirror, random)),
        })
    }
}

impl Steps {
    /// Whether a request is a browser's question what a page may do, which is answered here.
    pub fn answers_preflight(&self, head: &RequestHead, text: &[u8]) -> bool {
        self.cors.is_some() && cors::is_preflight(head, text)
    }
}

/// Whether something is done with all requests of a listener that the route may be taken on.
fn listeners_have_steps(config: &Config, route: &Route) -> bool {
    let is_of = |index: usize| route.listener.is_none_or(|id| id.0 == index);
    let mut listeners = config.listeners.iter().enumerate().filter(|(index, _)| is_of(*index));
    listeners.any(|(_, listener)| listener.request_id.is_some() || listener.errors != Errors::default())
}
