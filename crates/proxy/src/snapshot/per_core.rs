//! A snapshot as one core works by it: with the state that only this core writes, and with the core's knowledge of the
//! backends from the snapshot before.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use propylon_config::{Action, BackendId, Limit, Listener, SideTo};
use propylon_http::h1::RequestHead;
use propylon_observe::telemetry::{ConfiguredMetrics, LimitMetrics, RouteMetrics, SignerMetrics};
use propylon_steps::Steps;
use propylon_steps::conditions::{self, Conditions};
use propylon_steps::limits::Limiter;
use propylon_tls::{Acceptor, Deferral, Parking, Profile};

use super::{Publication, Snapshot, Terms, views};
use crate::limits::LimitState;
use crate::request::Kept;
use crate::services::ListenerHandle;
use crate::upstream::backend::{Backend, Upstreams, predecessors};

/// A snapshot as one core works by it.
pub struct CoreSnapshot {
    pub shared: Arc<Snapshot>,
    /// Configuration, for requests that keep it.
    pub config: Rc<Kept>,
    /// Listeners by index.
    pub listeners: Vec<Rc<ListenerHandle>>,
    /// Acceptors by listener; `None` for plaintext.
    pub acceptors: Vec<Option<Rc<Acceptor>>>,
    pub backends: Vec<Rc<Backend>>,
    /// Metrics of signers in the order of the configuration.
    pub signer_metrics: Vec<SignerMetrics>,
    /// Conditions of the routes, by index; none of a route without.
    conditions: Vec<Option<Conditions>>,
    /// Steps of the routes, by index; none of a route without.
    pub steps: Vec<Option<Rc<Steps>>>,
    /// Whether routes ask for what a client's hello has said.
    pub asks_hello: bool,
    /// Metrics of limits, in the order of `Config::limits`.
    pub limit_metrics: Vec<Arc<LimitMetrics>>,
    /// Metrics of routes by index, and of requests without a route.
    route_metrics: Vec<Arc<RouteMetrics>>,
    /// Backends on terms of a route, by its index; none where the route has no terms of its own.
    views: Vec<Vec<Rc<Backend>>>,
    upstreams: Rc<Upstreams>,
    /// Which work of handshakes is set aside, and where.
    deferral: Deferral,
    parking: Rc<Parking>,
}

impl CoreSnapshot {
    pub fn new(
        publication: &Publication,
        worker: usize,
        deferral: Deferral,
        parking: &Rc<Parking>,
        upstreams: &Rc<Upstreams>,
    ) -> Rc<CoreSnapshot> {
        CoreSnapshot::build(publication, worker, (deferral, parking), upstreams, None)
    }

    /// Builds the core's copy of the snapshot that follows. The core's knowledge of the backends, and its connections
    /// to them, stay where these do. `now` is in milliseconds on the core's clock.
    pub fn succeeded_by(&self, publication: &Publication, worker: usize, now: u64) -> Rc<CoreSnapshot> {
        CoreSnapshot::build(publication, worker, (self.deferral, &self.parking), &self.upstreams, Some((self, now)))
    }

    /// To be called on the worker's own core.
    fn build(
        publication: &Publication,
        worker: usize,
        (deferral, parking): (Deferral, &Rc<Parking>),
        upstreams: &Rc<Upstreams>,
        earlier: Option<(&CoreSnapshot, u64)>,
    ) -> Rc<CoreSnapshot> {
        let (earlier, now) = (earlier.map(|(earlier, _)| earlier), earlier.map_or(0, |(_, now)| now));
        let shared = Arc::clone(&publication.snapshot);
        let assemble = |terms: &Terms| Rc::new(terms.parts(worker).assemble().deferring(deferral, parking));
        let (listeners, acceptors) = reload_listeners(&shared, &publication.metrics, earlier, assemble);
        let before = earlier.map(|earlier| earlier.shared.config.backend_indexes()).unwrap_or_default();
        let backends = shared.config.backends.iter().enumerate().map(|(index, backend)| {
            let known = earlier.and_then(|earlier| Some((earlier, *before.get(backend.name.as_str())?)));
            // Connectors keep the sessions that servers have given, where nothing has changed; else the sessions learnt
            // with other certificates are forgotten.
            let connector = shared.upstreams[index].as_ref().map(|upstream| {
                let new = || upstream.connector().deferring(parking);
                let known = known.and_then(|(earlier, known)| {
                    let before = earlier.shared.upstreams[known].as_ref().filter(|before| before.is_kin(upstream))?;
                    let (known, servers) = (&earlier.backends[known], &shared.servers[index]);
                    let connector = known.connector.as_ref()?;
                    if Arc::ptr_eq(before, upstream) && Arc::ptr_eq(servers, &known.servers) {
                        return Some(Rc::clone(connector));
                    }
                    let stay = predecessors(servers, &known.servers);
                    Some(Rc::new(new().succeeding(connector, |server| stay.of(server))))
                });
                known.unwrap_or_else(|| Rc::new(new()))
            });
            let known = known.map(|(earlier, known)| &*earlier.backends[known]);
            let parts = shared.backend_parts(index, &publication.metrics.backends[index]);
            Backend::build(upstreams, &parts, connector, known, now)
        });
        let backends: Vec<Rc<Backend>> = backends.collect();
        let asks_hello = conditions::ask_hello(&shared.config.routes);
        let random = || upstreams.services.random.borrow_mut().u64(..);
        let mut limits = shared.limits.iter().enumerate();
        let steps = shared.config.routes.iter().zip(&shared.gates.gates).enumerate().map(|(index, (route, gate))| {
            // Limits of all routes stand in the order of these.
            let own = limits.by_ref().take(route.steps.limit.len()).zip(route.steps.limit.iter().enumerate());
            let limiter = |((index, state), (place, limit)): ((usize, &LimitState), (usize, &Limit))| {
                Limiter::new(index, place, limit, (&state.counter, &state.lists))
            };
            let own = (own.map(limiter).collect(), gate.is_some(), shared.paces[index].clone());
            Steps::of((&shared.config, index), &shared.answers, own, random()).map(Rc::new)
        });
        let steps: Vec<Option<Rc<Steps>>> = steps.collect();
        let views = shared.config.routes.iter().zip(&steps);
        let views =
            views.map(|(route, steps)| steps.as_ref().map_or_else(Vec::new, |s| views::of(route, s, &backends)));
        let (views, upstreams) = (views.collect(), Rc::clone(upstreams));
        Rc::new(CoreSnapshot {
            asks_hello,
            config: Rc::new(Kept(Arc::clone(&shared.config))),
            conditions: shared.conditions.to_vec(),
            shared,
            steps,
            views,
            listeners,
            acceptors,
            backends,
            signer_metrics: publication.metrics.signers.clone(),
            limit_metrics: publication.metrics.limits.clone(),
            route_metrics: publication.metrics.routes.clone(),
            upstreams,
            deferral,
            parking: Rc::clone(parking),
        })
    }

    /// Metrics of the route with this index, or of requests without a route.
    pub fn route_metrics(&self, route: Option<usize>) -> &RouteMetrics {
        &self.route_metrics[route.unwrap_or(self.steps.len())]
    }

    /// A backend on the terms of the route that leads to it.
    pub fn backend_of(&self, route: usize, id: BackendId) -> &Rc<Backend> {
        self.views[route].iter().find(|view| view.id == id).unwrap_or(&self.backends[id.0])
    }

    /// Whether RSA operations wait for each other's company.
    pub fn sets_aside_rsa(&self) -> bool {
        self.deferral.rsa
    }

    /// The listener's index; `None` if this configuration does not have it.
    pub fn index_of(&self, listener: &Rc<ListenerHandle>) -> Option<usize> {
        let generation = self.shared.generation;
        if listener.is_removed_from(generation) {
            return None;
        }
        let position = || self.listeners.iter().position(|known| Rc::ptr_eq(known, listener));
        listener.index_in(generation).or_else(position)
    }

    /// The listener by this configuration, or as it was last where it has been removed.
    pub fn listener<'l>(&'l self, listener: &'l Rc<ListenerHandle>) -> &'l Listener {
        let own = self.index_of(listener).map(|index| &self.shared.config.listeners[index]);
        own.or_else(|| Some(&listener.last()?.listener)).expect("a listener is in some configuration")
    }

    /// The certificates of the listener, as it was last where it has been removed; `None` for plaintext.
    pub fn profile<'l>(&'l self, listener: &'l Rc<ListenerHandle>) -> Option<&'l Arc<Profile>> {
        match self.index_of(listener) {
            Some(index) => Some(&self.shared.profiles[self.shared.config.listeners[index].tls?.0]),
            None => listener.last()?.profile.as_ref(),
        }
    }

    /// The listener's acceptor; `None` for plaintext.
    pub fn acceptor(&self, listener: &Rc<ListenerHandle>) -> Option<&Rc<Acceptor>> {
        self.acceptors[self.index_of(listener)?].as_ref()
    }

    /// The listener's number for the routers: one that has been removed has the routes for any listener.
    fn routed(&self, listener: &Rc<ListenerHandle>) -> usize {
        self.index_of(listener).unwrap_or(usize::MAX)
    }

    /// Index of the route that a request takes, or none when no route fits. The head comes with its bytes; `host` is
    /// the one of it, and `client` tells of the client.
    pub fn route<'s>(
        &self,
        listener: &Rc<ListenerHandle>,
        host: &str,
        (head, text): (&RequestHead, &[u8]),
        client: impl FnOnce() -> ClientSight<'s>,
    ) -> Option<usize> {
        let found = self.shared.router.find(self.routed(listener), host, head.path_key(text))?;
        found.index_below(self.steps.len()).or_else(|| self.conditional_route(listener, host, (head, text), &client()))
    }

    /// As `route`, where routes with conditions may be taken.
    #[cold]
    fn conditional_route(
        &self,
        listener: &Rc<ListenerHandle>,
        host: &str,
        (head, text): (&RequestHead, &[u8]),
        client: &ClientSight<'_>,
    ) -> Option<usize> {
        let source = conditions::source(self.listener(listener), client.peer.ip(), head, text);
        let request = conditions::Request { head, text, source, connection: client.connection };
        let holds = |index: usize| self.conditions[index].as_ref().is_none_or(|conditions| conditions.hold(&request));
        let path = head.path_key(text);
        self.shared.router.find_where(self.routed(listener), host, path, holds)
    }

    /// Whether a listener has any route for a host.
    pub fn serves(&self, listener: &Rc<ListenerHandle>, host: &str) -> bool {
        self.shared.router.serves(self.routed(listener), host)
    }

    /// The route of a connection whose bytes are handed on. `name` is the server's that the client asked for, if any.
    pub fn relay_route(&self, listener: &Rc<ListenerHandle>, name: &str) -> Option<usize> {
        let found = self.shared.relay_router.find(self.routed(listener), name, b"/")?;
        // A relay's routes have no conditions.
        found.of(&self.shared.relay_routes).copied()
    }

    /// Backend of a new connection that has this relay's route; none where its share is closed.
    pub fn relay_backend(&self, route: usize) -> Option<BackendId> {
        // Relays have no other actions: the configuration is checked for it.
        let Action::Backend(first) = self.shared.config.routes[route].action else { return None };
        match self.steps[route].as_ref().and_then(|steps| steps.split.as_ref()) {
            None => Some(first),
            Some(split) => match split.take_turn()?.to {
                SideTo::Backend(backend) => Some(backend),
                SideTo::Respond(_) => None,
            },
        }
    }
}

/// A client as routes see it.
pub struct ClientSight<'a> {
    pub peer: SocketAddr,
    pub connection: conditions::Connection<'a>,
}

/// Listeners with their acceptors, those of before where they are the same; `None` for plaintext.
type Listeners = (Vec<Rc<ListenerHandle>>, Vec<Option<Rc<Acceptor>>>);

fn reload_listeners(
    shared: &Snapshot,
    metrics: &ConfiguredMetrics,
    earlier: Option<&CoreSnapshot>,
    assemble: impl Fn(&Terms) -> Rc<Acceptor>,
) -> Listeners {
    let before = earlier.map(|earlier| earlier.shared.config.listener_indexes()).unwrap_or_default();
    let handles = shared.config.listeners.iter().zip(&shared.terms).enumerate().map(|(index, (listener, terms))| {
        let known = earlier.and_then(|earlier| Some((earlier, *before.get(listener.name.as_str())?)));
        let handle = known.map(|(earlier, known)| Rc::clone(&earlier.listeners[known]));
        let handle = handle.unwrap_or_else(|| Rc::new(ListenerHandle::new(&metrics.listeners[index])));
        handle.reload(shared.generation, index, &metrics.listeners[index]);
        let acceptor = terms.as_ref().map(|terms| {
            let known = known.and_then(|(earlier, known)| {
                let is_same = Arc::ptr_eq(earlier.shared.terms[known].as_ref()?, terms);
                earlier.acceptors[known].clone().filter(|_| is_same)
            });
            known.unwrap_or_else(|| assemble(terms))
        });
        (handle, acceptor)
    });
    handles.unzip()
}
