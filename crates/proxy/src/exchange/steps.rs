//! Requests of routes with steps: these are taken one after the other, and then the route's action. Requests of routes
//! without, which are most, never come here.

use std::rc::Rc;

use propylon_http::fault::Fault;

use super::answers::answer_fault;
use super::attempt;
use super::{Decision, act};
use crate::client::side::ClientSide;
use crate::request::{After, Request};
use crate::snapshot::CoreSnapshot;

/// Serves a request whose route has steps. `route` is its index.
pub async fn take(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    snapshot: &Rc<CoreSnapshot>,
    route: usize,
) -> After {
    if snapshot.shared.config.routes[route].require_client_certificate && !client.is_identified() {
        return answer_fault(client, request, Fault::ClientCertificateRequired);
    }
    request.steps.clone_from(&snapshot.steps[route]);
    match act(client, request, snapshot, route) {
        Decision::Forward(backend) => attempt::forward(client, request, snapshot, backend).await,
        Decision::Answered(after) => after,
        Decision::Steps(_) => unreachable!("an action has no steps"),
    }
}
