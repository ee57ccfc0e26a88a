//! A backend as one core uses it: its configuration, servers, balancer, and connections to them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;

use propylon_config::{self as config, BackendId, Config};
use propylon_metrics::Counter;
use propylon_net::timers::coarse_millis;
use propylon_observe::telemetry::{BackendHandles, BackendMetrics, ServerMetrics};
use propylon_policy::balance::{Balancer, Tier, Tiers};
use propylon_policy::first_bytes::FirstBytes;
use propylon_policy::predecessors::Predecessors;
use propylon_policy::suspect::Suspects;
use propylon_tls::Connector;

use super::balance::{self, SharedBalance, Standing};
use super::connection::ServerLimiter;
use super::pool::Pool;
use super::terms::RequestTerms;
use crate::cores::worker_count;
use crate::endpoint::{self, Endpoint};
use crate::services::Services;

/// Milliseconds that a server connection is idle before what can be remade of its TLS is freed.
const REST_AFTER: u64 = 1000;

/// Backends of a core, by the configuration in effect.
pub struct Upstreams {
    pub services: Rc<Services>,
    backends: RefCell<Vec<Rc<Backend>>>,
    /// Indexes of backends by the addresses of their metrics.
    indexes: RefCell<HashMap<*const BackendMetrics, usize>>,
}

impl Upstreams {
    pub fn new(services: &Rc<Services>) -> Rc<Upstreams> {
        Rc::new(Upstreams { services: Rc::clone(services), backends: RefCell::default(), indexes: RefCell::default() })
    }

    /// The backend that counts in these metrics, by the configuration in effect: metrics are one backend's over all
    /// configurations.
    pub fn get(&self, metrics: &Arc<BackendMetrics>) -> Option<Rc<Backend>> {
        let index = *self.indexes.borrow().get(&Arc::as_ptr(metrics))?;
        self.backends.borrow().get(index).cloned()
    }

    pub fn all(&self) -> Vec<Rc<Backend>> {
        self.backends.borrow().clone()
    }

    /// Puts other backends into effect.
    pub fn set(&self, backends: &[Rc<Backend>]) {
        *self.backends.borrow_mut() = backends.to_vec();
        *self.indexes.borrow_mut() =
            backends.iter().map(|backend| Arc::as_ptr(&backend.metrics.backend)).zip(0..).collect();
    }

    /// Looks after connections that nobody uses. To be called once a second.
    pub fn sweep(&self) {
        let now = self.services.timers.now();
        for backend in self.backends.borrow().iter() {
            let (state, count) = (&backend.state, |server, closed| backend.count_closed(server, closed));
            state.read_endpoints(now);
            let idle = backend.config().timeouts.idle.as_millis() as u64;
            state.pool.sweep(now.saturating_sub(idle), now.saturating_sub(REST_AFTER), count);
            state.pool.trim(count);
            backend.report_all_idle();
        }
    }

    /// Closes the connections that belong to a client connection.
    pub fn forget_owner(&self, owner: NonZeroU64) {
        for backend in self.backends.borrow().iter() {
            backend.state.pool.forget(owner, |server, closed| backend.count_closed(server, closed));
            backend.report_all_idle();
        }
    }

    /// Closes every pooled connection.
    pub fn clear(&self) {
        for backend in self.backends.borrow().iter() {
            backend.state.pool.clear(|server, closed| backend.count_closed(server, closed));
            backend.report_all_idle();
        }
    }

    pub fn report_balance(&self) {
        let now = self.services.timers.now();
        self.backends.borrow().iter().for_each(|backend| backend.state.balancer.borrow().report(now));
    }

    /// Reports which servers this core passes over.
    pub fn report_passed_over(&self) {
        self.backends.borrow().iter().for_each(|backend| backend.report_passed_over());
    }
}

/// A backend under one configuration. Its state outlives the configuration where nothing about the backend changes.
#[derive(Clone)]
pub struct Backend {
    pub id: BackendId,
    pub services: Rc<Services>,
    pub upstreams: Rc<Upstreams>,
    config: Arc<Config>,
    pub servers: Arc<Vec<Server>>,
    pub shared: Arc<SharedBalance>,
    /// `None` for plaintext.
    pub connector: Option<Rc<Connector>>,
    pub metrics: Arc<BackendHandles>,
    pub state: Rc<BackendState>,
    /// Terms of requests, which a route may have of its own.
    pub terms: RequestTerms,
}

/// Compiled parts that a backend is made of.
pub struct BackendParts<'a> {
    pub id: BackendId,
    pub config: &'a Arc<Config>,
    pub servers: &'a Arc<Vec<Server>>,
    pub balance: &'a Arc<SharedBalance>,
    /// Connection limits that all cores share; `None` where no server has a limit.
    pub limiter: Option<&'a Arc<ServerLimiter>>,
    /// Generation of the configuration since which the backend has been what it is.
    pub version: u64,
    pub metrics: &'a Arc<BackendHandles>,
}

impl BackendParts<'_> {
    fn config(&self) -> &config::Backend {
        &self.config.backends[self.id.0]
    }

    fn endpoints(&self) -> Box<[Arc<Endpoint>]> {
        self.servers.iter().map(|server| Arc::clone(&server.endpoint)).collect()
    }
}

impl Backend {
    /// Builds a core's backend, with what the core knows of the `earlier` one of its name. `now` is in milliseconds on
    /// the core's clock.
    pub fn build(
        upstreams: &Rc<Upstreams>,
        parts: &BackendParts<'_>,
        connector: Option<Rc<Connector>>,
        earlier: Option<&Backend>,
        now: u64,
    ) -> Rc<Backend> {
        let core = upstreams.services.metrics.index();
        let state = match earlier {
            Some(known) if known.state.version == parts.version => Rc::clone(&known.state),
            Some(known) => Rc::new(known.succeeded_by(parts, now)),
            None => Rc::new(BackendState::new(parts, core)),
        };
        let terms = RequestTerms::of(parts.config(), state.pool.streams_max > 0, parts.balance.sticky.is_some());
        Rc::new(Backend {
            id: parts.id,
            services: Rc::clone(&upstreams.services),
            upstreams: Rc::clone(upstreams),
            config: Arc::clone(parts.config),
            servers: Arc::clone(parts.servers),
            shared: Arc::clone(parts.balance),
            connector,
            metrics: Arc::clone(parts.metrics),
            state,
            terms,
        })
    }

    /// The same backend, with the same state, on other terms.
    pub fn on_terms(&self, terms: RequestTerms) -> Rc<Backend> {
        Rc::new(Backend { terms, ..self.clone() })
    }

    pub fn config(&self) -> &config::Backend {
        &self.config.backends[self.id.0]
    }

    /// Takes a repeat from the budget, if there is one; counts those that are refused.
    pub fn spend_retry(&self) -> bool {
        self.spend(self.metrics().retries_refused)
    }

    /// As [`Backend::spend_retry`], for a second attempt beside a first.
    pub fn spend_hedge(&self) -> bool {
        self.spend(self.metrics().hedges.refused)
    }

    /// Gives back what was spent on a second attempt that asked no server.
    pub fn refund_hedge(&self) {
        self.shared.retries.give_back(self.state.pool.core());
    }

    fn spend(&self, refused: Counter) -> bool {
        let is_paid = self.shared.retries.spend(self.state.pool.core(), coarse_millis());
        if !is_paid {
            self.services.metrics.increment(refused);
        }
        is_paid
    }

    /// Times of first bytes, which are counted from the first call on.
    pub fn first_bytes(&self) -> Arc<FirstBytes> {
        let begin = || Arc::new(FirstBytes::new(worker_count(&self.config)));
        Arc::clone(self.shared.first_bytes.get_or_init(begin))
    }

    pub fn metrics(&self) -> &Arc<BackendMetrics> {
        &self.metrics.backend
    }

    pub fn server_metrics(&self, server: usize) -> &Arc<ServerMetrics> {
        &self.metrics.servers[server]
    }

    /// Reports how many connections to a server are idle.
    pub fn report_idle(&self, server: usize) {
        self.services.metrics.set(self.server_metrics(server).idle, self.state.pool.idle(server) as i64);
    }

    pub fn report_all_idle(&self) {
        (0..self.state.pool.servers()).for_each(|server| self.report_idle(server));
    }

    /// Counts pooled connections to a server that were closed.
    pub fn count_closed(&self, server: usize, count: usize) {
        (0..count).for_each(|_| self.services.metrics.lower(self.server_metrics(server).open));
    }

    /// Counts pooled connections that were found closed by their server when one was wanted.
    pub fn count_stale(&self, server: usize, count: u64) {
        (0..count).for_each(|_| self.services.metrics.increment(self.server_metrics(server).stale));
        self.count_closed(server, count as usize);
    }

    /// Reports no more of a backend whose state another has succeeded, or none.
    pub fn report_nothing_passed_over(&self) {
        self.metrics.servers.iter().for_each(|server| self.services.metrics.set(server.passed_over, 0));
    }

    /// Reports which servers this core passes over, for as long as the configuration in effect has them.
    fn report_passed_over(&self) {
        let (suspects, now) = (self.state.suspects.borrow(), self.services.timers.now());
        if !self.state.told_suspects.replace(suspects.any()) && !suspects.any() {
            return;
        }
        for server in 0..self.servers.len() {
            let passed_over = suspects.is_passed_over(server, now);
            self.services.metrics.set(self.server_metrics(server).passed_over, i64::from(passed_over));
        }
    }

    /// Counts a pick that is not an ordinary one.
    pub fn count_tier(&self, tier: Tier) {
        let reason = match tier {
            Tier::Ordinary => return,
            Tier::Backup => "backup",
            Tier::Panic => "panic",
            Tier::All => "none-up",
        };
        self.services.metrics.increment(self.metrics().unusual_picks.of(reason));
    }

    /// State with what is known of those servers that stay, and the connections to them. Those that are new start
    /// slowly.
    fn succeeded_by(&self, later: &BackendParts<'_>, now: u64) -> BackendState {
        let backend = later.config();
        let state = &self.state;
        // A connection in plaintext is no connection by TLS, and one of HTTP/1.1 none of HTTP/2.
        let same_speech = speaks_the_same(self.config(), backend);
        let stay = predecessors(later.servers, &self.servers);
        let same = if same_speech { stay.clone() } else { Predecessors::none(backend.servers.len()) };
        let pool = Pool::succeeding(&state.pool, backend, later.limiter.cloned(), later.endpoints(), &same);
        let seen = |(server, endpoint): (usize, &Arc<Endpoint>)| match stay.of(server) {
            Some(before) => state.reopened[before].clone(),
            None => Cell::new(endpoint.reopened()),
        };
        let next = BackendState::with(later, pool);
        let mut balancer = next.balancer.into_inner().succeeding(&state.balancer.borrow(), &stay);
        for server in (0..backend.servers.len()).filter(|server| stay.of(*server).is_none()) {
            balancer.joined(server, now);
        }
        BackendState {
            balancer: RefCell::new(balancer),
            suspects: RefCell::new(state.suspects.borrow().succeeded_by(&same)),
            reopened: next.pool.endpoints.iter().enumerate().map(seen).collect(),
            ..next
        }
    }
}

/// State of a backend on a core: health, balance, and connections.
pub struct BackendState {
    pub balancer: RefCell<Balancer>,
    pub tiers: Tiers,
    pub suspects: RefCell<Suspects>,
    /// Some server was suspect when the metrics were last told.
    pub told_suspects: Cell<bool>,
    pub pool: Pool,
    /// Count of connections, by which the backend's sources have their turns.
    pub source_turn: Cell<usize>,
    /// Whether each server gets new requests, by server.
    takes: Box<[bool]>,
    /// Count of openings that this core has taken note of, by server.
    reopened: Box<[Cell<u32>]>,
    /// `endpoint::changes` when this core looked last; none before it ever did.
    changes: Cell<Option<u32>>,
    /// Some server was not fit then.
    any_closed: Cell<bool>,
    version: u64,
}

/// One server of a backend. Its endpoint identifies it: two with the same endpoint are the same server.
pub struct Server {
    /// As the user wrote it.
    pub label: String,
    /// The server's address and whether it is open, kept up to date by the main thread.
    pub endpoint: Arc<Endpoint>,
}

impl PartialEq for Server {
    fn eq(&self, other: &Server) -> bool {
        Arc::ptr_eq(&self.endpoint, &other.endpoint)
    }
}

/// Which of the `earlier` servers each of the later ones is.
pub fn predecessors(later: &[Server], earlier: &[Server]) -> Predecessors {
    let endpoints = |servers: &[Server]| servers.iter().map(|server| Arc::as_ptr(&server.endpoint)).collect::<Vec<_>>();
    Predecessors::by_identity(&endpoints(later), &endpoints(earlier))
}

/// Whether a connection to the one will do for the other: what is agreed on by TLS depends on the protocol as well,
/// and a server may let in some sources alone.
pub fn speaks_the_same(one: &config::Backend, two: &config::Backend) -> bool {
    let same_tls = match (&one.tls, &two.tls) {
        (Some(one), Some(two)) => one.connects_the_same(two),
        (one, two) => one.is_none() && two.is_none(),
    };
    one.protocol == two.protocol && one.source == two.source && same_tls
}

fn takes(server: &config::Server) -> bool {
    server.drain.is_none()
}

impl BackendState {
    /// Whether requests may go to this server, as far as the whole engine knows. This core's own doubts are in
    /// `suspects`.
    pub fn is_open(&self, server: usize) -> bool {
        self.takes[server] && self.pool.endpoints[server].is_open()
    }

    /// Takes note of servers that were closed or opened since the last call; costs a look at one number where none was.
    /// Servers that the whole engine has opened again are not suspect any more, and start slowly.
    pub fn read_endpoints(&self, now: u64) {
        let changes = endpoint::changes();
        if self.changes.replace(Some(changes)) == Some(changes) {
            return;
        }
        // Servers to which this configuration sends nothing are no part of any tier.
        let is_closed = |server: usize| self.takes[server] && !self.pool.endpoints[server].is_fit();
        self.any_closed.set((0..self.takes.len()).any(is_closed) || !self.takes.contains(&true));
        for (server, (seen, endpoint)) in self.reopened.iter().zip(&self.pool.endpoints).enumerate() {
            let reopened = endpoint.reopened();
            if seen.replace(reopened) != reopened {
                self.suspects.borrow_mut().succeeded(server);
                self.balancer.borrow_mut().joined(server, now);
            }
        }
    }

    /// Health of the servers as this core and the whole engine know it. `suspects` are this backend's.
    pub fn standing<'a>(&'a self, suspects: &'a Suspects) -> Standing<'a> {
        Standing { suspects, endpoints: &self.pool.endpoints, takes: &self.takes, any_closed: self.any_closed.get() }
    }

    /// How many of its servers are open.
    pub fn open(&self) -> usize {
        (0..self.takes.len()).filter(|server| self.is_open(*server)).count()
    }

    /// The server has answered, or let itself be connected to. One that was suspect until now starts slowly.
    pub fn succeeded(&self, server: usize, now: u64) {
        if self.suspects.borrow_mut().succeeded(server) {
            self.balancer.borrow_mut().joined(server, now);
        }
    }

    fn new(parts: &BackendParts<'_>, core: usize) -> BackendState {
        let backend = parts.config();
        let pool = Pool::new(backend, core, parts.limiter.cloned(), parts.endpoints(), Rc::default());
        BackendState {
            suspects: RefCell::new(Suspects::new(backend.servers.len())),
            reopened: pool.endpoints.iter().map(|endpoint| Cell::new(endpoint.reopened())).collect(),
            ..BackendState::with(parts, pool)
        }
    }

    /// State with nothing learnt yet.
    fn with(parts: &BackendParts<'_>, pool: Pool) -> BackendState {
        let backend = parts.config();
        BackendState {
            balancer: RefCell::new(parts.balance.balancer(backend, pool.core())),
            tiers: balance::tiers(backend),
            suspects: RefCell::new(Suspects::new(0)),
            // Whatever was told of an earlier configuration's servers is told anew.
            told_suspects: Cell::new(true),
            takes: backend.servers.iter().map(takes).collect(),
            reopened: Box::default(),
            changes: Cell::new(None),
            any_closed: Cell::new(false),
            // Cores begin at different ones.
            source_turn: Cell::new(pool.core()),
            pool,
            version: parts.version,
        }
    }

    /// Whether it is another for having been changed.
    pub fn is_newer(&self, earlier: &BackendState) -> bool {
        self.version != earlier.version
    }
}
