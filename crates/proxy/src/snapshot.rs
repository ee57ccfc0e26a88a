//! The life of a configuration: compiled once on the main thread, then given to every core as its own copy.
//!
//! `Snapshot` is what all cores read; `CoreSnapshot` adds what a core writes while it works by it (balancer positions,
//! suspicions, pooled connections) and the TLS state that would otherwise be shared. A request finishes on the snapshot
//! it began with.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use propylon_config::{
    At, Backend, Config, HostPattern, Listener, PathPattern, Route, ServerAddress, ServerProtocol, Signer, TlsProfile,
};
use propylon_policy::balance::{Balancer, Tiers};
use propylon_policy::budget::Budget;
use propylon_policy::route::{Host, Path, Router, Rule};
use propylon_policy::suspect::Suspects;
use propylon_tls::{
    Acceptor, AcceptorParts, Connector, Deferral, Finding, KeyFileError, LinkProfile, Parking, Profile, Tickets,
    UpstreamProfile,
};

use crate::balance::{self, SharedBalance, Standing};
use crate::engine::worker_count;
use crate::names::Names;
use crate::notice::{self, Notice};
use crate::pool::{Pool, ServerTurnstile, turnstile};
use crate::signer::Places;
use crate::sticky::{self, Sticky};
use crate::telemetry::address_label;
use crate::ticket_keys::TicketSets;
use crate::trace::Target;

/// HTTP/2 over TLS (RFC 9113 §3.2).
const ALPN_HTTP2: &[u8] = b"h2";
/// Application protocols offered by ALPN (RFC 7301), the one liked best first. A client that speaks HTTP/1.0 offers that
/// alone (curl --http1.0 does), and would be turned away for lack of a common protocol.
const ALPN: &[&[u8]] = &[ALPN_HTTP2, b"http/1.1", b"http/1.0"];

/// What is offered to servers, the one liked best first; see `UpstreamFacts::alpn`.
pub fn server_alpn(backend: &Backend) -> &'static [&'static [u8]] {
    match backend.protocol {
        ServerProtocol::Http1 => &[b"http/1.1"],
        ServerProtocol::Http2 => &[ALPN_HTTP2],
        ServerProtocol::Auto => &[ALPN_HTTP2, b"http/1.1"],
    }
}

/// The protocol at that place in the list; see `Facts::alpn`.
pub fn alpn_name(position: u8) -> &'static str {
    ALPN.get(usize::from(position)).and_then(|name| std::str::from_utf8(name).ok()).unwrap_or_default()
}

/// Whether the protocol at that place is HTTP/2.
pub fn is_http2(position: u8) -> bool {
    ALPN.get(usize::from(position)) == Some(&ALPN_HTTP2)
}

/// A configuration compiled: names looked up, certificates loaded, routes indexed. The same for all cores.
#[derive(Clone)]
pub struct Snapshot {
    pub config: Arc<Config>,
    pub router: Arc<Router>,
    relay_router: Arc<Router>,
    /// The routes that `relay_router` knows.
    relay_routes: Arc<[usize]>,
    /// By backend, then by server.
    pub servers: Arc<Vec<Vec<Server>>>,
    /// By `SignerId`.
    pub signers: Arc<[SignerProfile]>,
    /// By backend: what its connections need to be counted over all cores; none where no server has a limit.
    turnstiles: Arc<[Option<Arc<ServerTurnstile>>]>,
    /// By backend: what its cores share to balance.
    pub balance: Arc<[SharedBalance]>,
    /// By `TlsId`.
    pub profiles: Vec<Arc<Profile>>,
    /// By `BackendId`; none for plaintext.
    pub upstreams: Vec<Option<Arc<UpstreamProfile>>>,
    tickets: Arc<TicketSets>,
    /// Where spans go; none where nothing is traced.
    pub collector: Option<Arc<Target>>,
}

/// A snapshot on its way to the cores, with the TLS state that each of them is to have for itself.
pub struct Publication {
    pub snapshot: Arc<Snapshot>,
    /// By worker.
    parts: Vec<OnceLock<Parts>>,
}

/// One core's, by listener; none for plaintext.
type Parts = Arc<[Option<AcceptorParts>]>;

/// One server of a backend.
pub struct Server {
    /// As the user wrote it.
    pub label: String,
    /// Where it is and whether it is open, by the main thread.
    pub notice: Arc<Notice>,
}

/// One `[signer.NAME]`: key servers, and what is needed to talk to them. What can change while it is in use is read by
/// each new connection.
pub struct SignerProfile {
    pub config: Signer,
    pub link: ArcSwap<LinkProfile>,
    pub places: Arc<Places>,
    /// By server, as the user wrote them.
    pub labels: Vec<String>,
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
        let (profiles, mut warnings) = load_profiles(&config.tls).map_err(CompileError::Certificates)?;
        let (links, more) = load_signers(&config.signers).map_err(CompileError::Certificates)?;
        warnings.extend(more);
        let (upstreams, more) = load_upstreams(&config.backends).map_err(CompileError::Certificates)?;
        warnings.extend(more);
        let (collector, more) = load_collector(&config).map_err(CompileError::Certificates)?;
        warnings.extend(more);
        let signers = config.signers.iter().zip(links).map(signer).collect::<Result<_, _>>()?;
        let tickets = Arc::new(TicketSets::open(&config.tls, &tickets).map_err(CompileError::Certificates)?);
        let servers: Arc<Vec<Vec<Server>>> = Arc::new(look_up(&config)?);
        let balance = share_balance(&config, &servers).map_err(CompileError::Certificates)?;
        warnings.extend(sticky::check(&config.backends));
        let router = Arc::new(Router::new(config.routes.iter().map(rule).collect()));
        // A route for any listener is one for any http listener.
        let is_relays = |index: &usize| is_relay_route(&config, &config.routes[*index]);
        let relay_routes: Arc<[usize]> = (0..config.routes.len()).filter(is_relays).collect();
        let relay_rules = relay_routes.iter().map(|index| rule(&config.routes[*index])).collect();
        let relay_router = Arc::new(Router::new(relay_rules));
        let turnstiles = config.backends.iter().map(|backend| turnstile(backend, worker_count(&config)));
        let turnstiles = turnstiles.collect();
        let profiles = profiles.into_iter().map(Arc::new).collect();
        let upstreams = upstreams.into_iter().map(|upstream| upstream.map(Arc::new)).collect();
        let config = Arc::new(config);
        let snapshot = Snapshot {
            config,
            router,
            relay_router,
            relay_routes,
            servers,
            signers,
            turnstiles,
            balance,
            profiles,
            upstreams,
            tickets,
            collector: collector.map(Arc::new),
        };
        Ok((snapshot, warnings))
    }

    /// The same but for the certificates. Tickets stay good: their keys are not the certificates'.
    pub fn with_certificates(
        &self,
        profiles: Vec<Arc<Profile>>,
        upstreams: Vec<Option<Arc<UpstreamProfile>>>,
    ) -> Snapshot {
        Snapshot {
            config: Arc::clone(&self.config),
            router: Arc::clone(&self.router),
            relay_router: Arc::clone(&self.relay_router),
            relay_routes: Arc::clone(&self.relay_routes),
            servers: Arc::clone(&self.servers),
            signers: Arc::clone(&self.signers),
            turnstiles: Arc::clone(&self.turnstiles),
            balance: Arc::clone(&self.balance),
            profiles,
            upstreams,
            tickets: Arc::clone(&self.tickets),
            collector: self.collector.clone(),
        }
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
        match load_profile(tls) {
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

/// Loads the certificates of one profile. The findings beside it are warnings.
pub fn load_profile(tls: &TlsProfile) -> Result<(Profile, Vec<Finding>), Vec<Finding>> {
    Profile::load(tls, ALPN)
}

/// What the files of a profile in use hold now. Errors beside it are of files that cannot be used; what was there before
/// stays in their place.
pub fn load_profile_again(earlier: &Profile, tls: &TlsProfile) -> Result<(Profile, Vec<Finding>), Vec<Finding>> {
    earlier.load_again(tls, ALPN)
}

fn is_relay_route(config: &Config, route: &Route) -> bool {
    route.listener.is_some_and(|id| config.listeners[id.0].protocol.is_relay())
}

/// Loads what every signer's files hold; as [`load_profiles`].
pub fn load_signers(signers: &[Signer]) -> Result<(Vec<LinkProfile>, Vec<Finding>), Vec<Finding>> {
    let (mut loaded, mut findings) = (Vec::new(), Vec::new());
    for signer in signers {
        match LinkProfile::load(signer) {
            Ok((profile, warnings)) => {
                loaded.push(profile);
                findings.extend(warnings);
            }
            Err(errors) => findings.extend(errors),
        }
    }
    if loaded.len() < signers.len() { Err(findings) } else { Ok((loaded, findings)) }
}

/// None where nothing is traced; as [`load_profiles`].
pub fn load_collector(config: &Config) -> Result<(Option<Target>, Vec<Finding>), Vec<Finding>> {
    let Some(tracing) = &config.tracing else { return Ok((None, Vec::new())) };
    let (target, findings) = Target::load(tracing, &config.process.resolver)?;
    Ok((Some(target), findings))
}

/// What [`load_upstreams`] has loaded: by backend; none for plaintext.
pub type Upstreams = Vec<Option<UpstreamProfile>>;

/// Loads what every backend's `tls` names; as [`load_profiles`].
pub fn load_upstreams(backends: &[Backend]) -> Result<(Upstreams, Vec<Finding>), Vec<Finding>> {
    let (mut loaded, mut findings) = (Vec::new(), Vec::new());
    for backend in backends {
        match load_upstream(backend) {
            Ok((upstream, warnings)) => {
                loaded.push(upstream);
                findings.extend(warnings);
            }
            Err(errors) => findings.extend(errors),
        }
    }
    if loaded.len() < backends.len() { Err(findings) } else { Ok((loaded, findings)) }
}

/// None for plaintext.
pub fn load_upstream(backend: &Backend) -> Result<(Option<UpstreamProfile>, Vec<Finding>), Vec<Finding>> {
    let Some(tls) = &backend.tls else { return Ok((None, Vec::new())) };
    let (upstream, findings) = UpstreamProfile::load(backend, tls, server_alpn(backend))?;
    Ok((Some(upstream), findings))
}

/// Names are looked up now, and later again; whether anybody is there shows later.
fn signer((config, link): (&Signer, LinkProfile)) -> Result<SignerProfile, CompileError> {
    let labels: Vec<String> = config.servers.iter().map(|server| address_label(&server.address)).collect();
    let servers: Vec<&ServerAddress> = config.servers.iter().map(|server| &server.address).collect();
    let places = Places::find(&servers, config.resolve_interval).map_err(|(server, error)| CompileError::Lookup {
        at: config.servers[server].at,
        what: format!("{}: {error}", labels[server]),
    })?;
    let link = ArcSwap::from_pointee(link);
    Ok(SignerProfile { config: config.clone(), link, places: Arc::new(places), labels })
}

fn share_balance(config: &Config, servers: &[Vec<Server>]) -> Result<Arc<[SharedBalance]>, Vec<Finding>> {
    let (mut all, mut findings) = (Vec::new(), Vec::new());
    for (backend, servers) in config.backends.iter().zip(servers) {
        let labels = || servers.iter().map(|server| server.label.as_str());
        match Sticky::load(backend, labels()) {
            Ok(sticky) => all.push(SharedBalance::new(backend, labels(), sticky, worker_count(config))),
            Err((error, at)) => findings.push(sticky::finding(error, at)),
        }
    }
    if findings.is_empty() { Ok(all.into()) } else { Err(findings) }
}

/// By backend: its servers, with what their names stand for.
fn look_up(config: &Config) -> Result<Vec<Vec<Server>>, CompileError> {
    let all = config.backends.iter().flat_map(|backend| &backend.servers);
    let (questions, places): (Vec<&ServerAddress>, Vec<At>) = all.map(|server| (&server.address, server.at)).unzip();
    let fail = |at: At, question: &ServerAddress, error: String| CompileError::Lookup {
        at,
        what: format!("{}: {error}", address_label(question)),
    };
    let found = Names::new(&config.process.resolver).look_up_all(questions.iter().copied().cloned().collect());
    let found = found.map_err(|error| CompileError::Lookup {
        at: places.first().copied().unwrap_or_default(),
        what: format!("names cannot be looked up: {error}"),
    })?;
    let mut found = found.into_iter().zip(questions).zip(places);
    let mut server = |server: &propylon_config::Server| {
        let Some(((found, question), at)) = found.next() else { unreachable!("an answer for every question") };
        let found = found.map_err(|error| fail(at, question, error))?;
        let notice = Arc::new(Notice::new(found.addresses));
        Ok(Server { label: address_label(&server.address), notice })
    };
    config.backends.iter().map(|backend| backend.servers.iter().map(&mut server).collect()).collect()
}

pub fn rule(route: &propylon_config::Route) -> Rule {
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

impl Publication {
    pub fn new(snapshot: Arc<Snapshot>, workers: usize) -> Publication {
        Publication { snapshot, parts: (0..workers).map(|_| OnceLock::new()).collect() }
    }

    /// Makes what every core's acceptors consist of, here and now. Reading keys takes its time (an RSA key some 0.1 ms), which a worker that
    /// serves should not spend; one that only starts can make its own.
    pub fn prepare(&self) {
        for worker in 0..self.parts.len() {
            self.parts(worker);
        }
    }

    fn parts(&self, worker: usize) -> Parts {
        Arc::clone(self.parts[worker].get_or_init(|| {
            let shared = &self.snapshot;
            shared.config.listeners.iter().map(|listener| shared.acceptor_parts(listener)).collect()
        }))
    }

    /// By listener; none for plaintext. To be called on the worker's own core.
    fn acceptors(&self, worker: usize, deferral: Deferral, parking: &Rc<Parking>) -> Vec<Option<Acceptor>> {
        let acceptor = |parts: &Option<AcceptorParts>| Some(parts.as_ref()?.assemble().deferring(deferral, parking));
        self.parts(worker).iter().map(acceptor).collect()
    }
}

impl Snapshot {
    fn acceptor_parts(&self, listener: &Listener) -> Option<AcceptorParts> {
        let profile = listener.tls?.0;
        let withheld: &[&[u8]] = if listener.http2.enabled { &[] } else { &[ALPN_HTTP2] };
        let tickets = self.tickets.of(profile);
        let parts = self.profiles[profile].acceptor_parts(listener.prefer.as_deref(), withheld, tickets);
        Some(if listener.protocol.is_relay() { parts.with_alpn(&listener.alpn) } else { parts })
    }
}

/// A snapshot as one core works by it.
pub struct CoreSnapshot {
    pub shared: Arc<Snapshot>,
    /// By listener; none for plaintext.
    pub acceptors: Vec<Option<Acceptor>>,
    pub backends: Rc<[CoreBackend]>,
    /// By backend; none for plaintext.
    pub connectors: Vec<Option<Rc<Connector>>>,
    /// Which work of handshakes is set aside, and where.
    deferral: Deferral,
    parking: Rc<Parking>,
}

/// What one core knows of a backend.
pub struct CoreBackend {
    pub balancer: RefCell<Balancer>,
    pub tiers: Tiers,
    pub suspects: RefCell<Suspects>,
    pub retry_budget: RefCell<Budget>,
    pub pool: Pool,
    /// Requests at the backend, on this core.
    pub in_progress: Cell<u32>,
    /// This core's share of what may be.
    pub in_progress_max: u32,
    /// By server: openings that this core has taken note of.
    reopened: Box<[Cell<u32>]>,
    /// `notice::changes` when this core looked last; none before it ever did.
    changes: Cell<Option<u32>>,
    /// Some server was not open then.
    any_closed: Cell<bool>,
}

impl CoreSnapshot {
    pub fn new(
        publication: &Publication,
        worker: usize,
        deferral: Deferral,
        parking: &Rc<Parking>,
    ) -> Rc<CoreSnapshot> {
        let shared = Arc::clone(&publication.snapshot);
        let backends =
            shared.config.backends.iter().zip(&*shared.turnstiles).zip(&*shared.balance).zip(&*shared.servers);
        let backends = backends.map(|(((backend, turnstile), balance), servers)| {
            let notices = servers.iter().map(|server| Arc::clone(&server.notice)).collect();
            CoreBackend::new(backend, worker, worker_count(&shared.config), turnstile.clone(), balance, notices)
        });
        let backends = backends.collect();
        let acceptors = publication.acceptors(worker, deferral, parking);
        let connector = |upstream: &Option<Arc<UpstreamProfile>>| Some(Rc::new(upstream.as_ref()?.connector()));
        let connectors = shared.upstreams.iter().map(connector).collect();
        Rc::new(CoreSnapshot { shared, acceptors, backends, connectors, deferral, parking: Rc::clone(parking) })
    }

    /// What follows this snapshot. What a core has learnt of the backends, and its connections to them, stay: so far only
    /// certificates can differ.
    pub fn succeeded_by(&self, publication: &Publication, worker: usize) -> Rc<CoreSnapshot> {
        debug_assert!(Arc::ptr_eq(&self.shared.config, &publication.snapshot.config));
        Rc::new(CoreSnapshot {
            shared: Arc::clone(&publication.snapshot),
            acceptors: publication.acceptors(worker, self.deferral, &self.parking),
            backends: Rc::clone(&self.backends),
            connectors: self.connectors_for(&publication.snapshot),
            deferral: self.deferral,
            parking: Rc::clone(&self.parking),
        })
    }

    /// With the sessions that servers have given, where nothing has changed; else what was learnt by other certificates is
    /// forgotten.
    fn connectors_for(&self, next: &Snapshot) -> Vec<Option<Rc<Connector>>> {
        let connector = |(backend, upstream): (usize, &Option<Arc<UpstreamProfile>>)| {
            let upstream = upstream.as_ref()?;
            let same = self.shared.upstreams[backend].as_ref().is_some_and(|known| Arc::ptr_eq(known, upstream));
            match same {
                true => self.connectors[backend].clone(),
                false => Some(Rc::new(upstream.connector())),
            }
        };
        next.upstreams.iter().enumerate().map(connector).collect()
    }

    /// Whether RSA operations wait for each other's company.
    pub fn sets_aside_rsa(&self) -> bool {
        self.deferral.rsa
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
    /// Whether requests may go to this server, as far as the whole engine knows. What this core knows beside is in `suspects`.
    pub fn is_open(&self, server: usize) -> bool {
        self.pool.notices[server].is_open()
    }

    /// Takes note of servers that were closed or opened since the last call; costs a look at one number where none was.
    /// Those that the whole engine has opened again are not suspect any more, and start slowly.
    pub fn heed_notices(&self, now: u64) {
        let changes = notice::changes();
        if self.changes.replace(Some(changes)) == Some(changes) {
            return;
        }
        self.any_closed.set(self.open() < self.pool.notices.len());
        for (server, (seen, notice)) in self.reopened.iter().zip(&self.pool.notices).enumerate() {
            let reopened = notice.reopened();
            if seen.replace(reopened) != reopened {
                self.suspects.borrow_mut().succeeded(server);
                self.balancer.borrow_mut().joined(server, now);
            }
        }
    }

    /// What is known of the servers, by this core and by the whole engine. `suspects` are this backend's.
    pub fn standing<'a>(&'a self, suspects: &'a Suspects) -> Standing<'a> {
        Standing { suspects, notices: &self.pool.notices, any_closed: self.any_closed.get() }
    }

    /// How many of its servers are open.
    pub fn open(&self) -> usize {
        self.pool.notices.iter().filter(|notice| notice.is_open()).count()
    }

    /// The server has answered, or let itself be connected to. One that was suspect until now starts slowly.
    pub fn succeeded(&self, server: usize, now: u64) {
        if self.suspects.borrow_mut().succeeded(server) {
            self.balancer.borrow_mut().joined(server, now);
        }
    }

    fn new(
        backend: &Backend,
        core: usize,
        cores: usize,
        turnstile: Option<Arc<ServerTurnstile>>,
        balance: &SharedBalance,
        notices: Box<[Arc<Notice>]>,
    ) -> CoreBackend {
        CoreBackend {
            balancer: RefCell::new(balance.balancer(backend, core)),
            tiers: balance::tiers(backend),
            suspects: RefCell::new(Suspects::new(backend.servers.len())),
            retry_budget: RefCell::new(Budget::new()),
            changes: Cell::new(None),
            any_closed: Cell::new(false),
            reopened: notices.iter().map(|notice| Cell::new(notice.reopened())).collect(),
            pool: Pool::new(backend, core, turnstile, notices),
            in_progress: Cell::new(0),
            in_progress_max: backend.circuit.requests.map_or(u32::MAX, |requests| requests.div_ceil(cores as u32)),
        }
    }
}
