//! Conditions of routes on requests, and steps that are taken with these and with their responses: compiled from the
//! configuration, without sockets and clocks. Whoever has the connection calls it.

pub mod conditions;
pub mod limits;

use propylon_config::{Compress, Route};

use limits::Limiter;

/// Steps of one route, compiled. Each core has its own.
pub struct Steps {
    /// Limits, in the order in which they are asked.
    pub limits: Vec<Limiter>,
    /// Compression of responses.
    pub compress: Option<Compress>,
}

impl Steps {
    /// The steps of a route; `None` where there are none, as for most. `limits` are the route's.
    pub fn of(route: &Route, limits: Vec<Limiter>) -> Option<Steps> {
        let has_steps = route.require_client_certificate || !route.steps.is_empty();
        has_steps.then(|| Steps { limits, compress: route.steps.compress.clone() })
    }
}
