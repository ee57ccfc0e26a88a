//! The life of a configuration: compiled once on the main thread, then given to every core as its own copy.
//!
//! `Snapshot` is what all cores read; `CoreSnapshot` adds what a core writes while it works by it (balancer positions,
//! suspicions, pooled connections) and the TLS state that would otherwise be shared. A request finishes on the snapshot
//! it began with.

use std::cell::RefCell;
use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use propylon_config::{At, Backend, Config, HostPattern, Listener, PathPattern, Route, ServerAddress, TlsProfile};
use propylon_policy::balance::Balancer;
use propylon_policy::budget::Budget;
use propylon_policy::route::{Host, Path, Router, Rule};
use propylon_policy::suspect::Suspects;
use propylon_tls::{Acceptor, Deferral, Finding, KeyFileError, Parking, Profile, Tickets};

use crate::pool::Pool;
use crate::telemetry::server_label;
use crate::ticket_keys::TicketSets;

/// Application protocols offered by ALPN (RFC 7301), the one liked best first. A client that speaks HTTP/1.0 offers that
/// alone (curl --http1.0 does), and would be turned away for lack of a common protocol.
const ALPN: &[&[u8]] = &[b"http/1.1", b"http/1.0"];

/// The protocol at that place in the list; see `Facts::alpn`.
pub fn alpn_name(position: u8) -> &'static str {
    ALPN.get(usize::from(position)).and_then(|name| std::str::from_utf8(name).ok()).unwrap_or_default()
}

/// A configuration compiled: names looked up, certificates loaded, routes indexed. The same for all cores.
pub struct Snapshot {
    pub config: Config,
    pub router: Router,
    relay_router: Router,
    /// The routes that `relay_router` knows.
    relay_routes: Vec<usize>,
    /// By backend, then by server.
    pub servers: Vec<Vec<Server>>,
    profiles: Vec<Profile>,
    /// By listener: the profile of one that ends TLS in front of a relay, with the listener's own ALPN.
    relay_profiles: Vec<Option<Profile>>,
    tickets: TicketSets,
}

pub struct Server {
    pub address: SocketAddr,
    /// As the user wrote it.
    pub label: String,
}

/// What stands in the way of a configuration that was read without problems.
#[derive(Debug)]
pub enum CompileError {
    Certificates(Vec<Finding>),
    Lookup { at: At, what: String },
}

impl Snapshot {
    /// Loads and looks up everything `config` names. Nothing is bound and nothing changes when it fails.
    pub fn compile(config: Config, tickets: Arc<Tickets>) -> Result<(Snapshot, Vec<Finding>), CompileError> {
        let (profiles, warnings) = load_profiles(&config.tls).map_err(CompileError::Certificates)?;
        let tickets = TicketSets::open(&config.tls, &tickets).map_err(CompileError::Certificates)?;
        let servers = config.backends.iter().map(look_up).collect::<Result<_, _>>()?;
        let relay_profiles = load_relay_profiles(&config).map_err(CompileError::Certificates)?;
        let router = Router::new(config.routes.iter().map(rule).collect());
        // A route for any listener is one for any http listener.
        let is_relays = |index: &usize| is_relay_route(&config, &config.routes[*index]);
        let relay_routes: Vec<usize> = (0..config.routes.len()).filter(is_relays).collect();
        let relay_router = Router::new(relay_routes.iter().map(|index| rule(&config.routes[*index])).collect());
        let snapshot = Snapshot { config, router, relay_router, relay_routes, servers, profiles, relay_profiles, tickets };
        Ok((snapshot, warnings))
    }

    /// Rotates ticket keys, and forgets sessions that are too old; see `TicketSets::tend`.
    pub fn tend_tickets(&self, now: SystemTime) -> (u64, Vec<KeyFileError>) {
        let all = self.profiles.iter().chain(self.relay_profiles.iter().flatten());
        all.for_each(|profile| profile.purge_sessions(now));
        self.tickets.tend(now)
    }
}

/// Loads every certificate, and returns all findings at once: errors as `Err`, else the warnings.
pub fn load_profiles(profiles: &[TlsProfile]) -> Result<(Vec<Profile>, Vec<Finding>), Vec<Finding>> {
    let (mut loaded, mut findings, mut failed) = (Vec::new(), Vec::new(), false);
    for tls in profiles {
        match Profile::load(tls, ALPN) {
            Ok((profile, warnings)) => {
                loaded.push(profile);
                findings.extend(warnings);
            }
            Err(errors) => {
                failed = true;
                findings.extend(errors);
            }
        }
    }
    if failed { Err(findings) } else { Ok((loaded, findings)) }
}

/// The warnings are those of `load_profiles`, and were given there.
fn load_relay_profiles(config: &Config) -> Result<Vec<Option<Profile>>, Vec<Finding>> {
    let load = |listener: &Listener| {
        let Some(id) = listener.tls.filter(|_| listener.protocol.is_relay()) else { return Ok(None) };
        let alpn: Vec<&[u8]> = listener.alpn.iter().map(String::as_bytes).collect();
        Profile::load(&config.tls[id.0], &alpn).map(|(profile, _)| Some(profile))
    };
    config.listeners.iter().map(load).collect()
}

fn is_relay_route(config: &Config, route: &Route) -> bool {
    route.listener.is_some_and(|id| config.listeners[id.0].protocol.is_relay())
}

fn look_up(backend: &Backend) -> Result<Vec<Server>, CompileError> {
    let server = |server: &propylon_config::Server| {
        let label = server_label(server);
        let address = match &server.address {
            ServerAddress::Ip(address) => *address,
            ServerAddress::Name { host, port } => first_address(host, *port)
                .map_err(|error| CompileError::Lookup { at: server.at, what: format!("{label}: {error}") })?,
        };
        Ok(Server { address, label })
    };
    backend.servers.iter().map(server).collect()
}

fn first_address(host: &str, port: u16) -> std::io::Result<SocketAddr> {
    let none = || std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    (host, port).to_socket_addrs()?.next().ok_or_else(none)
}

fn rule(route: &propylon_config::Route) -> Rule {
    Rule {
        listener: route.listener.map(|id| id.0),
        host: match &route.host {
            HostPattern::Any => Host::Any,
            HostPattern::Exact(name) => Host::Exact(name.clone()),
            HostPattern::Suffix(suffix) => Host::Suffix(suffix.clone()),
        },
        path: match &route.path {
            PathPattern::Prefix(prefix) => Path::Prefix(prefix.clone()),
            PathPattern::Exact(path) => Path::Exact(path.clone()),
        },
    }
}

/// A snapshot as one core works by it.
pub struct CoreSnapshot {
    pub shared: Arc<Snapshot>,
    /// By listener; none for plaintext.
    pub acceptors: Vec<Option<Acceptor>>,
    pub backends: Vec<CoreBackend>,
}

/// What one core knows of a backend.
pub struct CoreBackend {
    pub balancer: RefCell<Balancer>,
    pub suspects: RefCell<Suspects>,
    pub retry_budget: RefCell<Budget>,
    pub pool: Pool,
}

impl CoreSnapshot {
    pub fn new(shared: Arc<Snapshot>, seed: u64, deferral: Deferral, parking: &Rc<Parking>) -> Rc<CoreSnapshot> {
        let acceptor = |(index, listener): (usize, &Listener)| {
            let profile = |id: usize| shared.relay_profiles[index].as_ref().unwrap_or(&shared.profiles[id]);
            let acceptor = listener.tls.map(|id| profile(id.0).acceptor(shared.tickets.of(id.0)));
            acceptor.map(|acceptor| acceptor.deferring(deferral, parking))
        };
        let acceptors = shared.config.listeners.iter().enumerate().map(acceptor).collect();
        let backends = shared.config.backends.iter().map(|backend| CoreBackend::new(backend, seed)).collect();
        Rc::new(CoreSnapshot { acceptors, backends, shared })
    }

    pub fn listener(&self, index: usize) -> &Listener {
        &self.shared.config.listeners[index]
    }

    /// The route that a request takes, or none when no route fits.
    pub fn route(&self, listener: usize, host: &str, path: &[u8]) -> Option<&Route> {
        let index = self.shared.router.find(listener, host, path)?;
        Some(&self.shared.config.routes[index])
    }

    /// The route of a connection whose bytes are handed on. `name` is the server's that the client asked for, if any.
    pub fn relay_route(&self, listener: usize, name: &str) -> Option<&Route> {
        let index = self.shared.relay_router.find(listener, name, b"/")?;
        Some(&self.shared.config.routes[self.shared.relay_routes[index]])
    }
}

impl CoreBackend {
    fn new(backend: &Backend, seed: u64) -> CoreBackend {
        let weights: Vec<u16> = backend.servers.iter().map(|server| server.weight.get()).collect();
        let balancer = match backend.balance {
            propylon_config::Balance::RoundRobin => Balancer::round_robin(&weights, seed),
            propylon_config::Balance::Random => Balancer::random(&weights),
        };
        CoreBackend {
            balancer: RefCell::new(balancer),
            suspects: RefCell::new(Suspects::new(weights.len())),
            retry_budget: RefCell::new(Budget::new()),
            pool: Pool::new(weights.len(), backend.max_idle),
        }
    }
}
