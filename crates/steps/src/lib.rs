//! Conditions of a route on requests, and its steps with them and their responses: compiled from the configuration,
//! without sockets and clocks. Whoever has the connection calls it.

pub mod conditions;
pub mod limits;
pub mod mirror;
pub mod retry;
pub mod split;
pub mod sticky;

use std::time::Duration;

use propylon_config::{BackendId, Compress, Config, Route};

use limits::Limiter;
use mirror::Mirror;
use retry::Retries;
use split::Split;

/// Steps of one route, compiled. Each core has its own.
pub struct Steps {
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
    /// The steps of a route; `None` where there are none, as for most. `limits` are the route's; `is_gated`: it has a
    /// gate, which others than its own steps may ask for; `random` decides where turns begin.
    pub fn of(route: &Route, config: &Config, (limits, is_gated): (Vec<Limiter>, bool), random: u64) -> Option<Steps> {
        let steps = &route.steps;
        let has_steps = is_gated || route.require_client_certificate || !steps.is_empty();
        has_steps.then(|| Steps {
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
