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

use crate::engine::worker_count;
use crate::pool::{Pool, ServerTurnstile, turnstile};
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
    /// By backend, then by server.
    pub servers: Vec<Vec<Server>>,
    /// By backend: what its connections need to be counted over all cores; none where no server has a limit.
    turnstiles: Vec<Option<Arc<ServerTurnstile>>>,
    profiles: Vec<Profile>,
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
        let router = Router::new(config.routes.iter().map(rule).collect());
        let turnstiles = config.backends.iter().map(|backend| turnstile(backend, worker_count(&config)));
        let turnstiles = turnstiles.collect();
        Ok((Snapshot { config, router, servers, turnstiles, profiles, tickets }, warnings))
    }

    /// Rotates ticket keys, and forgets sessions that are too old; see `TicketSets::tend`.
    pub fn tend_tickets(&self, now: SystemTime) -> (u64, Vec<KeyFileError>) {
        self.profiles.iter().for_each(|profile| profile.purge_sessions(now));
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
    /// `core` counts from 0.
    pub fn new(shared: Arc<Snapshot>, core: usize, deferral: Deferral, parking: &Rc<Parking>) -> Rc<CoreSnapshot> {
        let acceptor = |listener: &Listener| {
            let acceptor = listener.tls.map(|id| shared.profiles[id.0].acceptor(shared.tickets.of(id.0)));
            acceptor.map(|acceptor| acceptor.deferring(deferral, parking))
        };
        let acceptors = shared.config.listeners.iter().map(acceptor).collect();
        let backends = shared.config.backends.iter().zip(&shared.turnstiles);
        let backends =
            backends.map(|(backend, turnstile)| CoreBackend::new(backend, core, turnstile.clone())).collect();
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
}

impl CoreBackend {
    fn new(backend: &Backend, core: usize, turnstile: Option<Arc<ServerTurnstile>>) -> CoreBackend {
        let weights: Vec<u16> = backend.servers.iter().map(|server| server.weight.get()).collect();
        let balancer = match backend.balance {
            propylon_config::Balance::RoundRobin => Balancer::round_robin(&weights, core as u64),
            propylon_config::Balance::Random => Balancer::random(&weights),
        };
        CoreBackend {
            balancer: RefCell::new(balancer),
            suspects: RefCell::new(Suspects::new(weights.len())),
            retry_budget: RefCell::new(Budget::new()),
            pool: Pool::new(backend, core, turnstile),
        }
    }
}
