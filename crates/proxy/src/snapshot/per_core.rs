//! A snapshot as one core works by it: with the state that only this core writes, and with the core's knowledge of the
//! backends from the snapshot before.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use propylon_config::{Listener, Route};
use propylon_policy::balance::{Balancer, Tiers};
use propylon_policy::budget::Budget;
use propylon_policy::suspect::Suspects;
use propylon_tls::{Acceptor, Connector, Deferral, Parking};

use super::{Publication, Snapshot, speaks_the_same};
use crate::balance::{self, Standing};
use crate::cores::worker_count;
use crate::notice::{self, Notice};
use crate::pool::Pool;

/// A snapshot as one core works by it.
pub struct CoreSnapshot {
    pub shared: Arc<Snapshot>,
    /// Acceptors by listener; `None` for plaintext.
    pub acceptors: Vec<Option<Rc<Acceptor>>>,
    pub backends: Vec<Rc<CoreBackend>>,
    /// Connectors by backend; `None` for plaintext.
    pub connectors: Vec<Option<Rc<Connector>>>,
    /// Which work of handshakes is set aside, and where.
    deferral: Deferral,
    parking: Rc<Parking>,
}

/// A backend as one core knows it.
pub struct CoreBackend {
    pub balancer: RefCell<Balancer>,
    pub tiers: Tiers,
    pub suspects: RefCell<Suspects>,
    /// Some server was suspect when the metrics were last told.
    pub told_suspects: Cell<bool>,
    pub retry_budget: RefCell<Budget>,
    pub pool: Pool,
    /// Requests at the backend, on this core, by whatever configuration.
    pub in_progress: Rc<Cell<u32>>,
    /// This core's share of what may be.
    pub in_progress_max: u32,
    /// Whether each server gets new requests, by server.
    takes: Box<[bool]>,
    /// Count of openings that this core has taken note of, by server.
    reopened: Box<[Cell<u32>]>,
    /// `notice::changes` when this core looked last; none before it ever did.
    changes: Cell<Option<u32>>,
    /// Some server was not fit then.
    any_closed: Cell<bool>,
    version: u64,
}

impl CoreSnapshot {
    pub fn new(
        publication: &Publication,
        worker: usize,
        deferral: Deferral,
        parking: &Rc<Parking>,
    ) -> Rc<CoreSnapshot> {
        CoreSnapshot::build(publication, worker, deferral, parking, None)
    }

    /// Builds the core's copy of the snapshot that follows. The core's knowledge of the backends, and its connections
    /// to them, stay where these do. `now` is in milliseconds on the core's clock.
    pub fn succeeded_by(&self, publication: &Publication, worker: usize, now: u64) -> Rc<CoreSnapshot> {
        CoreSnapshot::build(publication, worker, self.deferral, &self.parking, Some((self, now)))
    }

    /// To be called on the worker's own core.
    fn build(
        publication: &Publication,
        worker: usize,
        deferral: Deferral,
        parking: &Rc<Parking>,
        earlier: Option<(&CoreSnapshot, u64)>,
    ) -> Rc<CoreSnapshot> {
        let (earlier, now) = (earlier.map(|(earlier, _)| earlier), earlier.map_or(0, |(_, now)| now));
        let shared = Arc::clone(&publication.snapshot);
        let backends = (0..shared.config.backends.len()).map(|place| {
            let known = earlier.and_then(|earlier| Some((earlier, earlier.backends.get(place)?)));
            match known {
                Some((_, known)) if known.version == shared.versions[place] => Rc::clone(known),
                Some((earlier, known)) if is_same_backend(&earlier.shared, &shared, place) => {
                    Rc::new(known.succeeded_by(&earlier.shared, &shared, place, now))
                }
                _ => Rc::new(CoreBackend::new(&shared, place, worker)),
            }
        });
        let backends = backends.collect();
        let acceptors = shared.terms.iter().enumerate().map(|(place, terms)| {
            let terms = terms.as_ref()?;
            let known = earlier.and_then(|earlier| {
                let same = Arc::ptr_eq(earlier.shared.terms.get(place)?.as_ref()?, terms);
                earlier.acceptors[place].as_ref().filter(|_| same)
            });
            let new = || Rc::new(terms.parts(worker).assemble().deferring(deferral, parking));
            Some(known.cloned().unwrap_or_else(new))
        });
        let acceptors = acceptors.collect();
        // Connectors keep the sessions that servers have given, where nothing has changed; else the sessions learnt
        // with other certificates are forgotten.
        let connectors = shared.upstreams.iter().enumerate().map(|(place, upstream)| {
            let upstream = upstream.as_ref()?;
            let known = earlier.and_then(|earlier| {
                let same = Arc::ptr_eq(earlier.shared.upstreams.get(place)?.as_ref()?, upstream);
                earlier.connectors[place].as_ref().filter(|_| same)
            });
            Some(known.cloned().unwrap_or_else(|| Rc::new(upstream.connector().deferring(parking))))
        });
        let connectors = connectors.collect();
        Rc::new(CoreSnapshot { shared, acceptors, backends, connectors, deferral, parking: Rc::clone(parking) })
    }

    /// Whether RSA operations wait for each other's company.
    pub fn sets_aside_rsa(&self) -> bool {
        self.deferral.rsa
    }

    /// A listener by its place: one that is retired as well.
    pub fn listener(&self, index: usize) -> &Listener {
        &self.shared.config.listeners[index]
    }

    /// The route that a request takes, or none when no route fits.
    pub fn route(&self, listener: usize, host: &str, path: &[u8]) -> Option<&Route> {
        let index = self.shared.router.find(listener, host, path)?;
        Some(&self.shared.config.routes[index])
    }

    /// Whether a listener has any route for a host.
    pub fn serves(&self, listener: usize, host: &str) -> bool {
        self.shared.router.serves(listener, host)
    }

    /// The route of a connection whose bytes are handed on. `name` is the server's that the client asked for, if any.
    pub fn relay_route(&self, listener: usize, name: &str) -> Option<&Route> {
        let index = self.shared.relay_router.find(listener, name, b"/")?;
        Some(&self.shared.config.routes[self.shared.relay_routes[index]])
    }
}

fn is_same_backend(earlier: &Snapshot, later: &Snapshot, place: usize) -> bool {
    earlier.config.backends[place].name == later.config.backends[place].name
}

fn takes(server: &propylon_config::Server) -> bool {
    server.retired.is_none() && server.drain.is_none()
}

impl CoreBackend {
    /// Whether requests may go to this server, as far as the whole engine knows. This core's own doubts are in
    /// `suspects`.
    pub fn is_open(&self, server: usize) -> bool {
        self.takes[server] && self.pool.notices[server].is_open()
    }

    /// Takes note of servers that were closed or opened since the last call; costs a look at one number where none was.
    /// Servers that the whole engine has opened again are not suspect any more, and start slowly.
    pub fn heed_notices(&self, now: u64) {
        let changes = notice::changes();
        if self.changes.replace(Some(changes)) == Some(changes) {
            return;
        }
        // Servers to which this configuration sends nothing are no part of any tier.
        let is_closed = |server: usize| self.takes[server] && !self.pool.notices[server].is_fit();
        self.any_closed.set((0..self.takes.len()).any(is_closed) || !self.takes.contains(&true));
        for (server, (seen, notice)) in self.reopened.iter().zip(&self.pool.notices).enumerate() {
            let reopened = notice.reopened();
            if seen.replace(reopened) != reopened {
                self.suspects.borrow_mut().succeeded(server);
                self.balancer.borrow_mut().joined(server, now);
            }
        }
    }

    /// Health of the servers as this core and the whole engine know it. `suspects` are this backend's.
    pub fn standing<'a>(&'a self, suspects: &'a Suspects) -> Standing<'a> {
        Standing { suspects, notices: &self.pool.notices, takes: &self.takes, any_closed: self.any_closed.get() }
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

    fn new(shared: &Snapshot, place: usize, core: usize) -> CoreBackend {
        let backend = &shared.config.backends[place];
        let pool = Pool::new(backend, core, shared.turnstiles[place].clone(), shared.notices(place));
        CoreBackend {
            suspects: RefCell::new(Suspects::new(backend.servers.len())),
            retry_budget: RefCell::new(Budget::new()),
            in_progress: Rc::default(),
            reopened: pool.notices.iter().map(|notice| Cell::new(notice.reopened())).collect(),
            ..CoreBackend::with(shared, place, pool)
        }
    }

    /// With what is known of those servers that stay, and the connections to them. Those that are new start slowly.
    fn succeeded_by(&self, earlier: &Snapshot, later: &Snapshot, place: usize, now: u64) -> CoreBackend {
        let backend = &later.config.backends[place];
        // A connection in plaintext is no connection by TLS, and one of HTTP/1.1 none of HTTP/2.
        let same_speech = speaks_the_same(&earlier.config.backends[place], backend);
        let (before, after) = (&earlier.servers[place], &later.servers[place]);
        let stays = |server: usize| before.get(server) == after.get(server);
        let is_same = |server: usize| same_speech && stays(server);
        let notices = later.notices(place);
        let pool = Pool::succeeding(&self.pool, backend, later.turnstiles[place].clone(), notices, is_same);
        let seen = |(server, notice): (usize, &Arc<Notice>)| match stays(server) {
            true => self.reopened[server].clone(),
            false => Cell::new(notice.reopened()),
        };
        let next = CoreBackend::with(later, place, pool);
        let mut balancer = next.balancer.into_inner().succeeding(&self.balancer.borrow(), stays);
        for (server, _) in backend.live_servers().filter(|(server, _)| !stays(*server)) {
            balancer.joined(server, now);
        }
        CoreBackend {
            balancer: RefCell::new(balancer),
            suspects: RefCell::new(self.suspects.borrow().succeeded_by(backend.servers.len(), is_same)),
            retry_budget: RefCell::new(self.retry_budget.borrow().clone()),
            in_progress: Rc::clone(&self.in_progress),
            reopened: next.pool.notices.iter().enumerate().map(seen).collect(),
            ..next
        }
    }

    /// With nothing learnt yet.
    fn with(shared: &Snapshot, place: usize, pool: Pool) -> CoreBackend {
        let backend = &shared.config.backends[place];
        let cores = worker_count(&shared.config) as u32;
        CoreBackend {
            balancer: RefCell::new(shared.balance[place].balancer(backend, pool.core())),
            tiers: balance::tiers(backend),
            suspects: RefCell::new(Suspects::new(0)),
            // Whatever was told of an earlier configuration's servers is told anew.
            told_suspects: Cell::new(true),
            retry_budget: RefCell::new(Budget::new()),
            in_progress: Rc::default(),
            in_progress_max: backend.circuit.requests.map_or(u32::MAX, |requests| requests.div_ceil(cores)),
            takes: backend.servers.iter().map(takes).collect(),
            reopened: Box::default(),
            changes: Cell::new(None),
            any_closed: Cell::new(false),
            pool,
            version: shared.versions[place],
        }
    }

    /// Whether it is another for having been changed.
    pub fn is_newer(&self, earlier: &CoreBackend) -> bool {
        self.version != earlier.version
    }
}
