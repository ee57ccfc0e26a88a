//! Backends as routes have them that have terms of their own: the same state, other limits.

use std::rc::Rc;
use std::time::Duration;

use propylon_config::{self as config, Action, BackendId, HedgeAfter, Route, RouteTimeouts};
use propylon_policy::queue::Priority;
use propylon_steps::Steps;
use propylon_steps::split::Split;

use crate::upstream::backend::Backend;
use crate::upstream::terms::{Checkout, Hedge, Late, RequestTerms, Special};

/// The backends that a route leads to, each on the route's terms; none where those are the backends' own.
pub fn of(route: &Route, steps: &Steps, backends: &[Rc<Backend>]) -> Vec<Rc<Backend>> {
    let Action::Backend(first) = &route.action else { return Vec::new() };
    let (timeouts, retries) = (&route.steps.timeouts, &route.steps.retries);
    let keeps_to_sides = steps.split.as_ref().is_some_and(|split| split.sets_cookies());
    let attempts = retries.as_ref().and_then(|retries| retries.attempts);
    let priority = match route.steps.priority {
        config::Priority::High => Priority::High,
        config::Priority::Normal => Priority::Normal,
        config::Priority::Low => Priority::Low,
    };
    // Bodies that are slowed down, or kept for a copy.
    let is_watched =
        steps.throttle.as_ref().is_some_and(|throttle| throttle.upload.is_some()) || !steps.mirrors.is_empty();
    let is_plain = *timeouts == RouteTimeouts::default() && attempts.is_none() && !keeps_to_sides && !is_watched;
    let hedge = route.steps.hedge;
    if is_plain && priority == Priority::Normal && hedge.is_none() {
        return Vec::new();
    }
    let mut ids = vec![*first];
    ids.extend(route.steps.other_backends());
    ids.dedup();
    let view = |id: BackendId| {
        let backend = &backends[id.0];
        let or_own = |limit: Option<Duration>, own| limit.map_or(own, |limit| limit.as_millis() as u64);
        let own = &backend.terms;
        let cookies = |split: &Split| split.cookies(id, backend.shared.sticky.as_ref(), backend.servers.len());
        let side = steps.split.as_ref().and_then(cookies).map(Rc::new);
        let terms = RequestTerms {
            connect: or_own(timeouts.connect, own.connect),
            first_byte: or_own(timeouts.first_byte, own.first_byte),
            body: or_own(timeouts.body, own.body),
            attempt: or_own(timeouts.attempt, own.attempt),
            retries: attempts.unwrap_or(own.retries),
            priority,
            special: match (hedge, timeouts.request) {
                (Some(_), _) => Special::Hedged,
                (None, Some(_)) => Special::Timed,
                (None, None) => Special::None,
            },
            hedge: hedge.map_or(Hedge::Never, |hedge| hedge_of(hedge, backend)),
            checkout: match own.checkout {
                // Made ready for its servers first, and then within its limit.
                Checkout::Http10 => Checkout::Http10,
                _ if timeouts.request.is_some() || is_watched => Checkout::Timed,
                checkout => checkout,
            },
            sets_cookie: own.sets_cookie || side.is_some(),
            side,
        };
        backend.on_terms(terms)
    };
    ids.into_iter().map(view).collect()
}

fn hedge_of(hedge: config::Hedge, backend: &Backend) -> Hedge {
    match hedge.after {
        HedgeAfter::Time(after) => Hedge::After(after),
        HedgeAfter::Percentile(percentile) => {
            Hedge::Percentile(Late { first_bytes: backend.first_bytes(), place: percentile.place() })
        }
    }
}
