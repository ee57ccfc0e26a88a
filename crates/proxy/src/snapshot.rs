//! The life of a configuration: compiled once on the main thread, then given to every core as its own copy.
//!
//! `Snapshot` is what all cores read; `CoreSnapshot` adds what a core writes while it works by it (balancer positions,
//! suspicions, pooled connections) and the TLS state that would otherwise be shared. A request finishes on the snapshot
//! it began with.
//!
//! A snapshot that succeeds another takes over whatever is equal by content: sockets, certificates, ticket keys, links
//! to key servers, and on each core its knowledge of its backends and its connections to them. Compiling changes
//! nothing that is in use, so a snapshot may as well be thrown away; the rest comes into force in `settle`.

pub mod gates;
mod per_core;
mod views;

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{self, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use propylon_config::canonical::route_key;
use propylon_config::{
    At, Backend, BackendId, BackendSource, CertificateSource, Config, HostPattern, KeyType, Listener, PathPattern,
    Route, ServerAddress, Signer, TlsProfile,
};
use propylon_observe::telemetry::{BackendHandles, ConfiguredMetrics, Telemetry};
use propylon_policy::balance::Loads;
use propylon_policy::credits::Credits;
use propylon_policy::first_bytes::FirstBytes;
use propylon_policy::predecessors::Predecessors;
use propylon_policy::route::{Host, Path, Router, Rule};
use propylon_policy::shared_budget::SharedBudget;
use propylon_sys::ConnectSource;
use propylon_tls::{AcceptorParts, Finding, KeyFileError, LinkProfile, Profile, Severity, Tickets, UpstreamProfile};
use tokio::sync::Notify;
use zeroize::Zeroizing;

use crate::alpn::{ALPN, ALPN_HTTP2, server_alpn};
use crate::cores::worker_count;
use crate::endpoint::{self, Endpoint, Resolved};
use crate::limits::{self, LimitState};
use crate::ticket_keys::TicketSets;
use crate::trace::Target;
use crate::upstream::backend::{BackendParts, Server, predecessors, speaks_the_same};
use crate::upstream::balance::{self, Lasting, SharedBalance, SharedFirstBytes};
use crate::upstream::connection::ServerLimiter;
use crate::upstream::pool::limiter;
pub use per_core::{ClientSight, CoreSnapshot};
use propylon_net::listen::{self, BindError, Bound};
use propylon_net::timers::coarse_millis;
use propylon_signer::{KeyServerAddresses, SignerProfile};
use propylon_steps::answers;
pub use propylon_steps::bodies;
use propylon_steps::conditions::{self, Conditions};
use propylon_steps::pace::Pace;
use propylon_steps::sticky::{self, Sticky};

/// A compiled configuration, which all cores share: names are resolved, certificates loaded and routes indexed.
#[derive(Clone)]
pub struct Snapshot {
    /// Number of the snapshot, from 1.
    pub generation: u64,
    pub config: Arc<Config>,
    pub router: Arc<Router>,
    /// Conditions of the routes, by index; none of a route without.
    conditions: Arc<[Option<Conditions>]>,
    relay_router: Arc<Router>,
    /// The routes that `relay_router` knows.
    relay_routes: Arc<[usize]>,
    /// Servers by backend, then by server.
    pub servers: Vec<Arc<Vec<Server>>>,
    /// Generation in which each backend last changed, by backend.
    versions: Vec<u64>,
    /// Signers in the order of the configuration.
    pub signers: Vec<Arc<SignerProfile>>,
    /// Connection limits that all cores share, by backend; `None` where no server has a limit.
    limiters: Vec<Option<Arc<ServerLimiter>>>,
    /// Balancing state that all cores share, by backend.
    pub balance: Vec<Arc<SharedBalance>>,
    /// TLS profiles by `TlsId`.
    pub profiles: Vec<Arc<Profile>>,
    /// TLS profiles for connections to servers, by `BackendId`; `None` for plaintext.
    pub upstreams: Vec<Option<Arc<UpstreamProfile>>>,
    /// Link profiles that were read again, by signer, until they are in use.
    links: Vec<Option<Arc<LinkProfile>>>,
    tickets: Arc<TicketSets>,
    /// TLS settings by listener; `None` for plaintext.
    terms: Vec<Option<Arc<Terms>>>,
    /// Counts and lists of limits, in the order of `Config::limits`.
    pub limits: Arc<[LimitState]>,
    /// Buckets of bodies that share a pace, by route.
    pub paces: Arc<[Option<Arc<Pace>>]>,
    pub sockets: Arc<[Bound]>,
    /// Collector that spans go to; `None` where nothing is traced.
    pub collector: Option<Arc<Target>>,
    /// Proofs that routes ask for, by route.
    pub gates: Arc<propylon_identity::Loaded>,
    /// Files that answers are made of, and the answers.
    pub bodies: Arc<bodies::Bodies>,
    pub answers: Arc<answers::Answers>,
}

/// TLS settings of a listener.
struct Terms {
    profile: Arc<Profile>,
    prefer: Option<Vec<KeyType>>,
    /// ALPN protocols of a relay, in place of the engine's own.
    alpn: Option<Vec<String>>,
    /// Whether the engine offers HTTP/2.
    http2: bool,
    tickets: Arc<Tickets>,
    /// Parts of each worker's acceptor, by worker.
    parts: Vec<OnceLock<AcceptorParts>>,
}

impl Terms {
    fn is_same(&self, other: &Terms) -> bool {
        Arc::ptr_eq(&self.profile, &other.profile)
            && Arc::ptr_eq(&self.tickets, &other.tickets)
            && self.prefer == other.prefer
            && self.alpn == other.alpn
            && self.http2 == other.http2
    }

    fn parts(&self, worker: usize) -> &AcceptorParts {
        self.parts[worker].get_or_init(|| {
            let withheld: &[&[u8]] = if self.http2 { &[] } else { &[ALPN_HTTP2] };
            let parts = self.profile.acceptor_parts(self.prefer.as_deref(), withheld, &self.tickets);
            match &self.alpn {
                Some(alpn) => parts.with_alpn(alpn),
                None => parts,
            }
        })
    }
}

/// A snapshot on its way to the cores.
pub struct Publication {
    pub snapshot: Arc<Snapshot>,
    pub metrics: ConfiguredMetrics,
    /// Number of cores that use the snapshot.
    adopted: AtomicUsize,
    adopting: Notify,
}

/// A configuration that could be compiled.
pub struct Compiled {
    pub snapshot: Snapshot,
    pub warnings: Vec<Finding>,
    /// Findings about files that could not be read again; their earlier contents stay in use.
    pub kept: Vec<Finding>,
}

/// Addresses found for the names of servers, or why there are none.
pub type Answers = HashMap<ServerAddress, Result<Resolved, String>>;

/// Whether files are read again although their names are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    ReadAgain,
    AsTheyWere,
}

impl Snapshot {
    /// Loads everything `config` names; `found` answers [`names_of`]. Nothing is bound and nothing changes when it
    /// fails; then all that stands in the way is said, and warnings beside it. Errors beside a snapshot are of uploads
    /// that cannot be used.
    /// `unfound`: how bad it is that a server's name is not found. As a warning the server is down until it is, and
    /// uploads may be lost.
    pub fn compile(
        config: Config,
        tickets: Arc<Tickets>,
        found: &Answers,
        unfound: Severity,
    ) -> Result<(Snapshot, Vec<Finding>), Vec<Finding>> {
        let sets = TicketSets::open(&config.tls, &tickets);
        let built = Snapshot::build(config, sets, None, Files::ReadAgain, (found, unfound))?;
        Ok((built.snapshot, [built.warnings, built.kept].concat()))
    }

    /// Names of servers that have to be looked up before a configuration is compiled that follows this one. What is known stays known: it is looked up by those who follow it.
    pub fn unknown_names(&self, config: &Config) -> Vec<ServerAddress> {
        names_of(config, Some(self))
    }

    /// The snapshot with generations counted from another process's, so that none of that is taken for one of these.
    pub fn counted_after(self, generation: u64) -> Snapshot {
        let generation = self.generation + generation;
        let versions = vec![generation; self.versions.len()];
        Snapshot { generation, versions, ..self }
    }

    /// The keys of tickets that are in no file, for a process that succeeds this one.
    pub fn ticket_keys(&self) -> Zeroizing<Vec<u8>> {
        self.tickets.shared().to_bytes()
    }

    /// Compiles the snapshot that follows this one, for the configuration that is to follow. As
    /// [`Snapshot::compile`], and with new addresses bound. `found` answers [`Snapshot::unknown_names`].
    pub fn succeeded_by(&self, config: Config, files: Files, found: &Answers) -> Result<Compiled, Vec<Finding>> {
        let sets = self.tickets.succeeded_by(&config.tls);
        let bound = listen::bind(&config, worker_count(&self.config), &self.sockets);
        let built = Snapshot::build(config, sets, Some(self), files, (found, Severity::Error));
        let refused = |error: BindError| Finding {
            severity: Severity::Error,
            at: error.at,
            path: PathBuf::new(),
            what: error.to_string(),
            fix: propylon_sys::bind_advice(&error.error).into(),
            error: Some(error.error.kind()),
        };
        match (built, bound) {
            (Ok(built), Ok(bound)) => Ok(Compiled { snapshot: built.snapshot.bound(bound), ..built }),
            (built, bound) => {
                let mut findings = built.map_or_else(|findings| findings, |built| built.warnings);
                findings.extend(bound.err().unwrap_or_default().into_iter().map(refused));
                Err(findings)
            }
        }
    }

    fn build(
        config: Config,
        sets: Result<TicketSets, Vec<Finding>>,
        earlier: Option<&Snapshot>,
        files: Files,
        (found, unfound): (&Answers, Severity),
    ) -> Result<Compiled, Vec<Finding>> {
        let generation = earlier.map_or(1, |earlier| earlier.generation + 1);
        let (mut findings, mut kept) = (Vec::new(), Vec::new());
        let profiles = reload_profiles(&config, earlier, (files, unfound), &mut findings, &mut kept);
        let before = Before::new(earlier);
        let upstreams = reload_upstreams(&config, &before, files, &mut findings);
        let links = reload_links(&config, earlier, files, &mut findings);
        let known = earlier.and_then(|earlier| Some((&*earlier.config, earlier.collector.as_ref()?)));
        let collector = Target::reload(&config, known, files == Files::ReadAgain, &mut findings);
        let known = (earlier.map(|earlier| &earlier.gates), files == Files::ReadAgain);
        let gates = gates::reload(&config, known, &mut findings);
        let signers = reload_signers(&config, earlier, unfound, &mut findings);
        let known = (earlier.map(|earlier| &*earlier.bodies), files == Files::ReadAgain);
        let bodies =
            bodies::reload(&config.body_files(), known, propylon_sys::read_whole_file, &mut findings, &mut kept);
        let servers = reload_servers(&config, &before, found, unfound, &mut findings);
        findings.extend(config.backends.iter().flat_map(missing_sources).chain(crate::bodies::check(&config)));
        let known = earlier.map(|earlier| (&*earlier.config, &*earlier.limits));
        let limits = limits::reload(&config, known, files == Files::ReadAgain, &mut findings).into();
        let paces = limits::reload_paces(&config, earlier.map(|earlier| (&*earlier.config, &*earlier.paces)));
        let sets = sets.map_err(|errors| findings.extend(errors)).ok().map(Arc::new);
        let failed = findings.iter().any(|finding| finding.severity == Severity::Error);
        let (Some(sets), false) = (sets, failed) else { return Err(findings) };
        let versions = versions(&config, &servers, &before, generation);
        findings.extend(sticky::check(&config.backends));
        let balance = reload_balance(&config, &servers, &before, &versions, &mut findings);
        if findings.iter().any(|finding| finding.severity == Severity::Error) {
            return Err(findings);
        }
        let limiters = reload_limiters(&config, &servers, &before, &versions);
        let terms = reload_terms(&config, &profiles, &sets, earlier);
        let router = Arc::new(Router::new(config.routes.iter().map(rule).collect()));
        let conditions = config.routes.iter().map(Conditions::of).collect();
        let (relay_routes, relay_router) = relays(&config);
        let answers = Arc::new(answers::Answers::new(&config, &bodies));
        let (config, bodies) = (Arc::new(config), Arc::new(bodies));
        crate::bodies::begin(&config, earlier.is_none());
        let snapshot = Snapshot {
            generation,
            config,
            router,
            conditions,
            relay_router,
            relay_routes,
            servers,
            versions,
            signers,
            limiters,
            balance,
            profiles,
            upstreams,
            links,
            tickets: sets,
            terms,
            limits,
            paces,
            sockets: Arc::new([]),
            collector,
            gates,
            bodies,
            answers,
        };
        Ok(Compiled { snapshot, warnings: findings, kept })
    }

    /// Puts limits of connections and requests into force that the earlier snapshot did not have; called at the
    /// snapshot's publication.
    pub fn commit(&self, earlier: &Snapshot) {
        let known: HashSet<_> = earlier.limiters.iter().flatten().map(Arc::as_ptr).collect();
        for limiter in self.limiters.iter().flatten().filter(|limiter| !known.contains(&Arc::as_ptr(limiter))) {
            limiter.commit(coarse_millis());
        }
        for (backend, balance) in self.config.backends.iter().zip(&self.balance) {
            balance.circuit.set_limit(backend.circuit.first_limit(balance.circuit.limit()));
            balance.retries.set_terms(balance::retry_terms(backend));
        }
        crate::bodies::put_into_effect(&self.config);
    }

    /// The limit of requests at a backend.
    pub fn circuit(&self, backend: usize) -> &Credits {
        &self.balance[backend].circuit
    }

    /// Times that a backend's servers took; `None` before a worker has begun to count that.
    pub fn first_bytes(&self, backend: BackendId) -> Option<&Arc<FirstBytes>> {
        self.balance[backend.0].first_bytes.get()
    }

    /// Puts the link profiles whose files were read again into force, for new links to key servers.
    pub fn renew_links(&mut self) {
        for (signer, link) in self.signers.iter().zip(&mut self.links) {
            if let Some(link) = link.take() {
                signer.link.store(link);
                log::info!(
                    "signer \"{}\": identity and authorities were read again, for new links",
                    signer.config.name
                );
            }
        }
    }

    fn backend_parts<'a>(&'a self, index: usize, metrics: &'a Arc<BackendHandles>) -> BackendParts<'a> {
        BackendParts {
            id: BackendId(index),
            config: &self.config,
            servers: &self.servers[index],
            balance: &self.balance[index],
            limiter: self.limiters[index].as_ref(),
            version: self.versions[index],
            metrics,
        }
    }

    /// The snapshot with its sockets.
    pub fn bound(self, sockets: Vec<Bound>) -> Snapshot {
        Snapshot { sockets: sockets.into(), ..self }
    }

    /// The same snapshot, before it is published, with other gates.
    pub fn completed(self, gates: Arc<propylon_identity::Loaded>) -> Snapshot {
        Snapshot { gates, ..self }
    }

    /// The snapshot with other gates.
    pub fn with_gates(&self, gates: Arc<propylon_identity::Loaded>) -> Snapshot {
        Snapshot { generation: self.generation + 1, gates, ..self.clone() }
    }

    /// The snapshot with other certificates for clients, and for servers.
    pub fn with_certificates(
        &self,
        profiles: Vec<Arc<Profile>>,
        upstreams: Vec<Option<Arc<UpstreamProfile>>>,
    ) -> Snapshot {
        let terms = reload_terms(&self.config, &profiles, &self.tickets, Some(self));
        Snapshot { generation: self.generation + 1, terms, profiles, upstreams, ..self.clone() }
    }

    /// Rotates ticket keys, and forgets sessions that are too old; see `TicketSets::tend`.
    pub fn rotate_ticket_keys(&self, now: SystemTime) -> (u64, Vec<KeyFileError>) {
        self.profiles.iter().for_each(|profile| profile.purge_sessions(now));
        self.tickets.rotate(now)
    }

    /// Addresses that a listener is bound to, with the ports that the kernel chose.
    pub fn addresses(&self, listener: usize) -> Vec<SocketAddr> {
        self.sockets.iter().filter(|bound| bound.listener == listener).map(|bound| bound.address).collect()
    }
}

/// Routes of relays, by index, and the router of these.
fn relays(config: &Config) -> (Arc<[usize]>, Arc<Router>) {
    // A route for any listener is one for any http listener.
    let is_relays = |index: &usize| is_relay_route(config, &config.routes[*index]);
    let routes: Arc<[usize]> = (0..config.routes.len()).filter(is_relays).collect();
    let rules = routes.iter().map(|index| rule(&config.routes[*index])).collect();
    (routes, Arc::new(Router::new(rules)))
}

/// Keeps the profiles of before where nothing about them has changed. A profile written as before keeps its earlier
/// contents in the place of files that cannot be used, and says so in `kept`; one written differently is judged as at
/// a start.
fn reload_profiles(
    config: &Config,
    earlier: Option<&Snapshot>,
    (files, unfound): (Files, Severity),
    findings: &mut Vec<Finding>,
    kept: &mut Vec<Finding>,
) -> Vec<Arc<Profile>> {
    let mut profiles = Vec::new();
    let remembered = remembered(config, earlier, unfound);
    let may_be_lost = |path: &path::Path| remembered.contains(path);
    let succeeds_another = earlier.is_none() && unfound == Severity::Error;
    for tls in &config.tls {
        let known = earlier.and_then(|earlier| {
            let place = earlier.config.tls.iter().position(|known| known.name == tls.name)?;
            Some((&earlier.config, &earlier.config.tls[place], &earlier.profiles[place]))
        });
        let is_same = known
            .is_some_and(|(before, known, _)| known.signer == tls.signer && known.says_the_same(before, tls, config));
        if let Some((_, _, profile)) = known
            && is_same
            && files == Files::AsTheyWere
        {
            profiles.push(Arc::clone(profile));
            continue;
        }
        // Files that look as they did are not read again; keys that lie elsewhere now are others.
        let goes_on = |before: &TlsProfile| {
            before.signer == tls.signer && before.resumption.session_ids == tls.resumption.session_ids
        };
        let loaded = match known {
            Some((_, before, profile)) if goes_on(before) => load_profile_again(profile, tls),
            _ => Profile::load_without(tls, ALPN, &may_be_lost),
        };
        match loaded {
            Err(errors) => findings.extend(errors),
            Ok((profile, mut found)) => {
                if succeeds_another {
                    found.iter_mut().filter(|finding| is_lost_order(tls, finding)).for_each(refuse_lost_order);
                }
                let is_kept =
                    |finding: &Finding| finding.severity == Severity::Error && (is_same || may_be_lost(&finding.path));
                let (held, reported): (Vec<_>, Vec<_>) = found.into_iter().partition(is_kept);
                kept.extend(held);
                findings.extend(reported);
                profiles.push(match known {
                    Some((_, _, known)) if is_same && profile.same_as(known) => Arc::clone(known),
                    _ => Arc::new(profile),
                });
            }
        }
    }
    profiles
}

/// Files of uploads that are left out where they cannot be used, as against those that were put a moment ago: nobody
/// who could mend it is there when an engine starts, and the others can be served. Where another process serves, all
/// of them are in use there.
fn remembered<'c>(config: &'c Config, earlier: Option<&Snapshot>, unfound: Severity) -> HashSet<&'c path::Path> {
    let mut uploads = uploads(config);
    match earlier {
        None if unfound == Severity::Error => uploads.clear(),
        None => {}
        Some(earlier) => {
            let before = self::uploads(&earlier.config);
            uploads.retain(|path| before.contains(path));
        }
    }
    uploads
}

/// Whether an ordered certificate is there and its key is not: the process that serves may have it.
fn is_lost_order(tls: &TlsProfile, finding: &Finding) -> bool {
    let is_ordered = |certificate: &propylon_config::Certificate| match &certificate.source {
        CertificateSource::Ordered(ordered) => ordered.files.iter().any(|(_, file)| *file == finding.path),
        _ => false,
    };
    finding.error == Some(std::io::ErrorKind::NotFound) && tls.certificates.iter().any(is_ordered)
}

fn refuse_lost_order(finding: &mut Finding) {
    finding.severity = Severity::Error;
    finding.fix =
        "let keys.store be the folder that it was; or remove this file, or restart, to have another ordered".into();
}

fn uploads(config: &Config) -> HashSet<&path::Path> {
    let all = config.tls.iter().flat_map(|tls| &tls.certificates).filter(|certificate| certificate.uploaded);
    all.filter_map(|certificate| match &certificate.source {
        CertificateSource::Path(path) => Some(path.as_path()),
        _ => None,
    })
    .collect()
}

/// Backends of the earlier snapshot, by their names.
#[derive(Default)]
struct Before<'s> {
    earlier: Option<&'s Snapshot>,
    backends: HashMap<&'s str, usize>,
}

impl<'s> Before<'s> {
    fn new(earlier: Option<&'s Snapshot>) -> Before<'s> {
        let backends = earlier.map(|earlier| earlier.config.backend_indexes()).unwrap_or_default();
        Before { earlier, backends }
    }

    /// The earlier snapshot, and the backend's index there.
    fn of(&self, backend: &Backend) -> Option<(&'s Snapshot, usize)> {
        Some((self.earlier?, *self.backends.get(backend.name.as_str())?))
    }
}

/// Keeps the earlier upstream profiles where nothing about them has changed.
fn reload_upstreams(
    config: &Config,
    before: &Before<'_>,
    files: Files,
    findings: &mut Vec<Finding>,
) -> Vec<Option<Arc<UpstreamProfile>>> {
    let mut upstreams = Vec::new();
    for backend in &config.backends {
        let known = before.of(backend);
        let known = known.map(|(earlier, index)| (&earlier.config.backends[index], &earlier.upstreams[index]));
        let is_same = known.is_some_and(|(known, _)| speaks_the_same(known, backend));
        if let Some((_, upstream)) = known
            && is_same
            && files == Files::AsTheyWere
            && let Some(kept) = towards_its_servers(upstream.as_ref(), backend)
        {
            upstreams.push(kept);
            continue;
        }
        match load_upstream(backend) {
            Err(errors) => findings.extend(errors),
            Ok((upstream, warnings)) => {
                findings.extend(warnings);
                let known = known.and_then(|(_, known)| known.as_ref()).filter(|_| is_same);
                let same_files = known.zip(upstream.as_ref()).is_some_and(|(known, read)| known.same_files(read));
                let kept = if same_files { towards_its_servers(known, backend).flatten() } else { None };
                upstreams.push(kept.or_else(|| upstream.map(Arc::new)));
            }
        }
    }
    upstreams
}

/// Turns what was read before to the servers that the backend has by now; `None` where that has to be read and checked
/// anew.
fn towards_its_servers(
    known: Option<&Arc<UpstreamProfile>>,
    backend: &Backend,
) -> Option<Option<Arc<UpstreamProfile>>> {
    let (Some(known), Some(tls)) = (known, &backend.tls) else { return Some(known.cloned()) };
    let kept = known.towards(backend, tls)?;
    Some(Some(if kept.same_as(known) { Arc::clone(known) } else { Arc::new(kept) }))
}

/// Loads anew the link profiles of signers that stay, where files are to be read again.
fn reload_links(
    config: &Config,
    earlier: Option<&Snapshot>,
    files: Files,
    findings: &mut Vec<Finding>,
) -> Vec<Option<Arc<LinkProfile>>> {
    let mut links = vec![None; config.signers.len()];
    let stays = |signer: &Signer| files == Files::ReadAgain && known_signer(earlier, signer).is_some();
    for (index, signer) in config.signers.iter().enumerate().filter(|(_, signer)| stays(signer)) {
        match LinkProfile::load(signer) {
            Err(errors) => findings.extend(errors),
            Ok((link, warnings)) => {
                findings.extend(warnings);
                links[index] = Some(Arc::new(link));
            }
        }
    }
    links
}

/// Finds the signer of the same id in the earlier snapshot.
fn known_signer(earlier: Option<&Snapshot>, signer: &Signer) -> Option<Arc<SignerProfile>> {
    earlier?.signers.iter().find(|known| known.config.id == signer.id).cloned()
}

fn reload_signers(
    config: &Config,
    earlier: Option<&Snapshot>,
    unfound: Severity,
    findings: &mut Vec<Finding>,
) -> Vec<Arc<SignerProfile>> {
    let mut signers = Vec::with_capacity(config.signers.len());
    for signer in &config.signers {
        if let Some(known) = known_signer(earlier, signer) {
            signers.push(known);
            continue;
        }
        let labels: Vec<String> = signer.servers.iter().map(|server| server.address.to_string()).collect();
        let servers: Vec<&ServerAddress> = signer.servers.iter().map(|server| &server.address).collect();
        let (addresses, lost) = KeyServerAddresses::find(&servers, signer.resolve_interval);
        findings.extend(lost.iter().map(|(server, error)| {
            not_found(&labels[*server], signer.servers[*server].at, &error.to_string(), unfound)
        }));
        match LinkProfile::load(signer) {
            Err(errors) => findings.extend(errors),
            Ok((link, warnings)) => {
                findings.extend(warnings);
                let link = ArcSwap::from_pointee(link);
                let addresses = Arc::new(addresses);
                signers.push(Arc::new(SignerProfile { config: signer.clone(), link, addresses, labels }));
            }
        }
    }
    signers
}

/// Names that have to be looked up before this configuration is compiled, behind an earlier one or none.
pub fn names_of(config: &Config, earlier: Option<&Snapshot>) -> Vec<ServerAddress> {
    let (mut names, mut seen) = (Vec::new(), HashSet::new());
    let before = Before::new(earlier);
    for backend in &config.backends {
        for (server, known) in backend.servers.iter().zip(known_servers(&before, backend)) {
            if server.address.is_name() && known.is_none() && seen.insert(&server.address) {
                names.push(server.address.clone());
            }
        }
    }
    names
}

/// Indexes of the servers in the earlier snapshot; `None` for new ones.
fn known_servers<'s>(before: &Before<'s>, backend: &Backend) -> Vec<Option<&'s Server>> {
    let Some((earlier, index)) = before.of(backend) else { return vec![None; backend.servers.len()] };
    let addresses =
        |backend: &'_ Backend| backend.servers.iter().map(|server| server.address.clone()).collect::<Vec<_>>();
    let stay = Predecessors::by_identity(&addresses(backend), &addresses(&earlier.config.backends[index]));
    (0..backend.servers.len()).map(|server| Some(&earlier.servers[index][stay.of(server)?])).collect()
}

/// Servers that are in both configurations are who they were. `unfound`: how bad it is that a name is not found.
fn reload_servers(
    config: &Config,
    before: &Before<'_>,
    found: &Answers,
    unfound: Severity,
    findings: &mut Vec<Finding>,
) -> Vec<Arc<Vec<Server>>> {
    let mut all = Vec::new();
    for backend in &config.backends {
        let mut servers = Vec::new();
        for (server, known) in backend.servers.iter().zip(known_servers(before, backend)) {
            let label = server.address.to_string();
            if let Some(known) = known {
                servers.push(Server { label, endpoint: Arc::clone(&known.endpoint) });
                continue;
            }
            let targets = match (endpoint::Target::literal(&server.address), found.get(&server.address)) {
                (Some(target), _) => Ok(vec![target]),
                (_, Some(Ok(found))) => Ok(found.targets.clone()),
                (_, Some(Err(error))) => Err(error.as_str()),
                (_, None) => Err("the name has not been looked up"),
            };
            match targets {
                Ok(targets) => servers.push(Server { label, endpoint: Arc::new(Endpoint::new(targets)) }),
                Err(error) => {
                    findings.push(not_found(&label, server.at, error, unfound));
                    servers.push(Server { label, endpoint: Arc::new(Endpoint::new(Vec::new())) });
                }
            }
        }
        let known = before.of(backend).map(|(earlier, index)| &earlier.servers[index]);
        let same = |known: &&Arc<Vec<Server>>| **known.as_ref() == servers;
        all.push(known.filter(same).cloned().unwrap_or_else(|| Arc::new(servers)));
    }
    all
}

/// Whether a backend is unchanged: it is written the same, with the same servers.
fn versions(config: &Config, servers: &[Arc<Vec<Server>>], before: &Before<'_>, generation: u64) -> Vec<u64> {
    let version = |(backend, servers): (&Backend, &Arc<Vec<Server>>)| match before.of(backend) {
        Some((earlier, index))
            if Arc::ptr_eq(&earlier.servers[index], servers)
                && earlier.config.backends[index].says_the_same(backend) =>
        {
            earlier.versions[index]
        }
        _ => generation,
    };
    config.backends.iter().zip(servers).map(version).collect()
}

/// Keeps the earlier TLS settings where a listener's are the same.
fn reload_terms(
    config: &Config,
    profiles: &[Arc<Profile>],
    tickets: &TicketSets,
    earlier: Option<&Snapshot>,
) -> Vec<Option<Arc<Terms>>> {
    let before = earlier.map(|earlier| earlier.config.listener_indexes()).unwrap_or_default();
    let terms = |listener: &Listener| {
        let id = listener.tls?.0;
        let terms = Terms {
            profile: Arc::clone(&profiles[id]),
            prefer: listener.prefer.clone(),
            alpn: listener.protocol.is_relay().then(|| listener.alpn.clone()),
            http2: listener.http2.enabled,
            tickets: Arc::clone(tickets.of(id)),
            parts: (0..worker_count(config)).map(|_| OnceLock::new()).collect(),
        };
        let known = earlier.and_then(|earlier| earlier.terms[*before.get(listener.name.as_str())?].as_ref());
        Some(known.filter(|known| known.is_same(&terms)).cloned().unwrap_or_else(|| Arc::new(terms)))
    };
    config.listeners.iter().map(terms).collect()
}

/// Loads every certificate, and returns all findings at once: errors as `Err`, else the warnings.
pub fn load_profiles(profiles: &[TlsProfile]) -> Result<(Vec<Profile>, Vec<Finding>), Vec<Finding>> {
    load_all(profiles, load_profile)
}

fn load_all<T, L>(
    all: &[T],
    load: impl Fn(&T) -> Result<(L, Vec<Finding>), Vec<Finding>>,
) -> Result<(Vec<L>, Vec<Finding>), Vec<Finding>> {
    let (mut loaded, mut findings) = (Vec::new(), Vec::new());
    for each in all {
        match load(each) {
            Ok((each, warnings)) => {
                loaded.push(each);
                findings.extend(warnings);
            }
            Err(errors) => findings.extend(errors),
        }
    }
    if loaded.len() < all.len() { Err(findings) } else { Ok((loaded, findings)) }
}

/// Loads the certificates of one profile. The findings beside it are warnings.
pub fn load_profile(tls: &TlsProfile) -> Result<(Profile, Vec<Finding>), Vec<Finding>> {
    Profile::load(tls, ALPN)
}

/// Loads the files of a profile in use again. Errors beside the profile are of files that cannot be used; their
/// earlier contents stay in use.
pub fn load_profile_again(earlier: &Profile, tls: &TlsProfile) -> Result<(Profile, Vec<Finding>), Vec<Finding>> {
    earlier.load_again(tls, ALPN)
}

fn is_relay_route(config: &Config, route: &Route) -> bool {
    route.listener.is_some_and(|id| config.listeners[id.0].protocol.is_relay())
}

/// Loads what every signer's files hold; as [`load_profiles`].
pub fn load_signers(signers: &[Signer]) -> Result<(Vec<LinkProfile>, Vec<Finding>), Vec<Finding>> {
    load_all(signers, LinkProfile::load)
}

/// Result of [`load_upstreams`], by backend; `None` for plaintext.
pub type Upstreams = Vec<Option<UpstreamProfile>>;

/// Loads what every backend's `tls` names; as [`load_profiles`].
pub fn load_upstreams(backends: &[Backend]) -> Result<(Upstreams, Vec<Finding>), Vec<Finding>> {
    load_all(backends, load_upstream)
}

/// Loads the profile that a backend's `tls` names; `None` for plaintext.
pub fn load_upstream(backend: &Backend) -> Result<(Option<UpstreamProfile>, Vec<Finding>), Vec<Finding>> {
    let Some(tls) = &backend.tls else { return Ok((None, Vec::new())) };
    let (upstream, findings) = UpstreamProfile::load(backend, tls, server_alpn(backend))?;
    Ok((Some(upstream), findings))
}

/// Keeps the balancing state that cores share where the backend is the same as before.
fn reload_balance(
    config: &Config,
    servers: &[Arc<Vec<Server>>],
    before: &Before<'_>,
    versions: &[u64],
    findings: &mut Vec<Finding>,
) -> Vec<Arc<SharedBalance>> {
    let mut all = Vec::new();
    for ((backend, servers), version) in config.backends.iter().zip(servers).zip(versions) {
        let known = before.of(backend);
        if let Some((earlier, index)) = known.filter(|(earlier, index)| earlier.versions[*index] == *version) {
            all.push(Arc::clone(&earlier.balance[index]));
            continue;
        }
        let labels = || servers.iter().map(|server| server.label.as_str());
        match Sticky::load(backend, labels()) {
            Ok(sticky) => {
                // Requests in flight at servers that stay go on being counted.
                let shared = match known {
                    Some((earlier, index)) => {
                        let (balance, stay) = (&earlier.balance[index], predecessors(servers, &earlier.servers[index]));
                        Lasting {
                            loads: balance.loads.succeeded_by(&stay),
                            circuit: Arc::clone(&balance.circuit),
                            retries: Arc::clone(&balance.retries),
                            first_bytes: Arc::clone(&balance.first_bytes),
                        }
                    }
                    None => {
                        let (limit, cores) = (backend.circuit.first_limit(u32::MAX), worker_count(config));
                        Lasting {
                            loads: Loads::new(servers.len(), cores),
                            circuit: Arc::new(Credits::new(limit, cores)),
                            retries: Arc::new(SharedBudget::new(balance::retry_terms(backend), cores)),
                            first_bytes: SharedFirstBytes::default(),
                        }
                    }
                };
                all.push(Arc::new(SharedBalance::new(backend, labels(), sticky, shared)));
            }
            Err((error, at)) => findings.push(sticky::finding(error, at)),
        }
    }
    all
}

/// Keeps the limits that cores share where the backend is the same as before.
fn reload_limiters(
    config: &Config,
    servers: &[Arc<Vec<Server>>],
    before: &Before<'_>,
    versions: &[u64],
) -> Vec<Option<Arc<ServerLimiter>>> {
    let limiter = |((backend, servers), version): ((&Backend, &Arc<Vec<Server>>), &u64)| {
        let known = before.of(backend);
        if let Some((earlier, index)) = known.filter(|(earlier, index)| earlier.versions[*index] == *version) {
            return earlier.limiters[index].clone();
        }
        let known = known.and_then(|(earlier, index)| {
            Some((earlier.limiters[index].as_ref()?, predecessors(servers, &earlier.servers[index])))
        });
        limiter(backend, worker_count(config), known)
    };
    config.backends.iter().zip(servers).zip(versions).map(limiter).collect()
}

/// Sources of connections that this machine does not have, or may not choose, as errors.
fn missing_sources(backend: &Backend) -> Vec<Finding> {
    let sources = match &backend.source {
        None => Vec::new(),
        Some(BackendSource::Interface(name)) => vec![ConnectSource::Interface(name)],
        Some(BackendSource::Addresses(all)) => all.iter().copied().map(ConnectSource::Address).collect(),
    };
    let finding = |source| {
        let error = propylon_sys::check_source(source).err()?;
        let (name, fix) = match source {
            ConnectSource::Address(address) => {
                (address.to_string(), "use an address of this machine (ip address shows them)")
            }
            ConnectSource::Interface(name) if error.kind() == ErrorKind::PermissionDenied => {
                (name.to_owned(), "it takes CAP_NET_RAW before Linux 5.7: write an address of the interface instead")
            }
            ConnectSource::Interface(name) => {
                (name.to_owned(), "use an interface of this machine (ip link shows them)")
            }
        };
        let what = format!("[backend.{}]: no connection can come from {name}: {error}", backend.name);
        let (severity, at, path, fix) = (Severity::Error, backend.at, PathBuf::new(), fix.to_owned());
        Some(Finding { severity, at, path, what, fix, error: None })
    };
    sources.into_iter().filter_map(finding).collect()
}

fn not_found(label: &str, at: At, error: &str, severity: Severity) -> Finding {
    let meanwhile = if severity == Severity::Warning { "; the server is down until its name is found" } else { "" };
    Finding {
        severity,
        at,
        path: PathBuf::new(),
        what: format!("{label}: {error}{meanwhile}"),
        fix: "check the name, or write the server's IP address".into(),
        error: None,
    }
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
            PathPattern::Prefix(prefix) => Path::Prefix(route_key(prefix)),
            PathPattern::Exact(path) => Path::Exact(route_key(path)),
            PathPattern::Regex(_) => Path::Pattern,
        },
        conditions: conditions::rank(route),
    }
}

impl Publication {
    /// Makes the publication, with the metrics of the snapshot's configuration, which are registered before.
    pub fn new(snapshot: Arc<Snapshot>, telemetry: &Telemetry) -> Publication {
        let metrics = telemetry.configured(&snapshot.config);
        Publication { snapshot, metrics, adopted: AtomicUsize::new(0), adopting: Notify::new() }
    }

    /// Notes that a core uses the snapshot from now on.
    pub fn adopted(&self) {
        self.adopted.fetch_add(1, Ordering::SeqCst);
        self.adopting.notify_one();
    }

    /// Waits until that many cores use the snapshot. One task may wait.
    pub async fn adopted_by(&self, cores: usize) {
        while self.adopted.load(Ordering::SeqCst) < cores {
            self.adopting.notified().await;
        }
    }

    /// Makes the parts of every core's acceptors, here and now. Reading keys takes time (an RSA key some 0.1 ms),
    /// which a worker that serves should not spend; one that only starts can make its own. And there is room for bodies
    /// before a worker wants to hold one.
    pub fn prepare(&self) {
        crate::bodies::put_into_effect(&self.snapshot.config);
        for terms in self.snapshot.terms.iter().flatten() {
            for worker in 0..terms.parts.len() {
                terms.parts(worker);
            }
        }
    }
}

#[cfg(test)]
mod tests;
