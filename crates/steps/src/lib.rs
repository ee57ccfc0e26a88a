//! Conditions of routes on requests, and steps that are taken with these and with their responses: compiled from the
//! configuration, without sockets and clocks. Whoever has the connection calls it.

pub mod conditions;

use propylon_config::Route;

/// Steps of one route, compiled. Each core has its own.
pub struct Steps {}

impl Steps {
    /// The steps of a route; `None` where there are none, as for most.
    pub fn of(route: &Route) -> Option<Steps> {
        let has_steps = route.require_client_certificate || !route.steps.is_empty();
        has_steps.then_some(Steps {})
    }
}
