//! Conditions of a route on requests, and its steps with them and their responses: compiled from the configuration,
//! without sockets and clocks. Whoever has the connection calls it.

// `fuzzing` is set by cargo-fuzz.
#![allow(unexpected_cfgs)]

mod accept;
pub mod answers;
pub mod bodies;
pub mod change;
pub mod conditions;
mod cookie;
pub mod cors;
pub mod errors;
mod extent;
mod facts;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod grpc;
pub mod grpc_web;
pub mod limits;
pub mod mirror;
pub mod pace;
pub mod ranges;
pub mod request_id;
pub mod response;
pub mod retry;
pub mod sentence;
pub mod side;
pub mod split;
pub mod sticky;
mod target;

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use propylon_config::{
    self as config, Action, BackendId, Compress, Config, Encoding, Errors, PathRules, Redirect, RedirectPath, Respond,
    Route, Throttle,
};
use propylon_http::fault::Fault;
use propylon_http::h1::RequestHead;

use answers::Answers;
use cors::Cors;
use extent::Extent;
use limits::Limiter;
use mirror::Mirror;
use pace::Pace;
use retry::Retries;
use split::Split;

pub use change::{RequestChange, ResponseChange, Tell};
pub use facts::{Changed, Facts, route_path};
pub use target::PathRewrite;

/// Steps of one route, compiled. Each core has its own.
pub struct Steps {
    /// Changes of requests on their way to servers.
    pub request: Option<RequestChange>,
    /// Changes of responses on their way to clients.
    pub response: Option<Rc<ResponseChange>>,
    /// Change of the path that a redirect leads to.
    pub redirect: Option<PathRewrite>,
    /// Index of the route.
    pub route: usize,
    /// Paths that it matches, as they are written.
    pub route_path: Rc<str>,
    /// Answers of the configuration that the route is of.
    pub answers: Arc<Answers>,
    /// Pages of other origins that may use the route.
    pub cors: Option<Cors>,
    /// Limits, in the order in which they are asked.
    pub limits: Vec<Limiter>,
    /// Limits that are asked once it is known who a request is from.
    pub user_limits: Vec<Limiter>,
    /// Compression of responses.
    pub compress: Option<Compress>,
    /// Body of the route's own answer in each coding, once it was asked for.
    pub coded: [OnceCell<Box<[u8]>>; Encoding::ALL.len()],
    /// Division of the requests among backends.
    pub split: Option<Split>,
    /// Backend of requests for which theirs has no server.
    pub fallback: Option<BackendId>,
    /// Limit on the whole request.
    pub time_limit: Option<Duration>,
    pub retries: Option<Retries>,
    /// Bodies that are held.
    pub buffer: config::Buffer,
    /// Longest body that a request may have, in bytes.
    pub body_limit: Option<u64>,
    /// Pace of bodies.
    pub throttle: Option<Throttle>,
    /// Buckets of it, where bodies share it by a key.
    pub pace: Option<Arc<Pace>>,
    /// Copies for other backends.
    pub mirrors: Vec<Mirror>,
    /// Whether calls of gRPC-Web are made ones of gRPC.
    pub grpc_web: bool,
    /// How far the steps can reach.
    pub extent: Extent,
}

impl Steps {
    /// The steps of the route of this index; `None` where there are none, as for most. `limits` are the route's;
    /// `is_gated`: it has a gate, which others than its own steps may ask for; `random` decides where turns begin.
    pub fn of(
        (config, index): (&Config, usize),
        answers: &Arc<Answers>,
        (limits, is_gated, pace): (Vec<Limiter>, bool, Option<Arc<Pace>>),
        random: u64,
    ) -> Option<Steps> {
        let route = &config.routes[index];
        let steps = &route.steps;
        let redirect = match &route.action {
            Action::Redirect(Redirect { path: Some(RedirectPath::Changed(change)), .. }) => {
                Some(PathRewrite::of(change, &route.path))
            }
            _ => None,
        };
        let has_file = matches!(&route.action, Action::Respond(Respond { body_file: Some(_), .. }));
        let has_steps =
            is_gated || route.require_client_certificate || has_file || redirect.is_some() || !steps.is_empty();
        let (user_limits, limits): (Vec<_>, Vec<_>) = limits.into_iter().partition(Limiter::is_of_users);
        let of_listeners = listeners_have_steps(config, route);
        let waits = is_gated || !user_limits.is_empty() || limits.iter().any(Limiter::holds);
        (has_steps || of_listeners).then(|| Steps {
            extent: Extent::of(route, waits, of_listeners),
            request: RequestChange::of(route),
            response: ResponseChange::of(route).map(Rc::new),
            redirect,
            route: index,
            route_path: route_path(&route.path),
            answers: Arc::clone(answers),
            cors: steps.cors.as_ref().map(Cors::of),
            limits,
            user_limits,
            compress: steps.compress.clone(),
            coded: Default::default(),
            split: steps.split.as_ref().map(|split| Split::of((route, split), config, random)),
            fallback: steps.fallback,
            time_limit: steps.timeouts.request,
            retries: steps.retries.as_ref().map(Retries::of),
            buffer: steps.buffer,
            body_limit: steps.body_limit,
            throttle: steps.throttle.clone(),
            pace,
            mirrors: steps.mirrors.iter().zip(0..).map(|(mirror, place)| Mirror::of(mirror, random ^ place)).collect(),
            grpc_web: steps.grpc_web,
        })
    }
}

impl Steps {
    /// Path and query that a redirect of the route leads to; `None` where it does not change the request's.
    ///
    /// # Errors
    /// `NoRoute` for a redirect to where the request came from, which would never end; 400 for a path that the listener
    /// refuses.
    pub fn redirect_path(
        &self,
        redirect: &Redirect,
        (head, text): (&RequestHead, &[u8]),
        rules: PathRules,
    ) -> Result<Option<String>, Fault> {
        let Some(rewrite) = &self.redirect else { return Ok(None) };
        let target = rewrite.target(head.path(text), head.query(text), rules).map_err(|reject| reject.fault)?;
        let leads_elsewhere = redirect.scheme.is_some() || redirect.host.is_some() || redirect.port.is_some();
        match target {
            None if !leads_elsewhere => Err(Fault::NoRoute),
            target => Ok(target.map(|target| String::from_utf8_lossy(&target).into_owned())),
        }
    }

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
