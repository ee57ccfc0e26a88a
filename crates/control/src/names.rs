//! Names of servers, looked up: all their addresses, and for how long these are good.
//!
//! Name servers are asked directly, because only their answers say how long they hold, and which ports a service has. What they do
//! not know, the system may know from elsewhere: it is asked as well, unless the configuration names name servers of its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::RData;
use hickory_resolver::proto::rr::rdata::SRV;
use hickory_resolver::system_conf::read_system_conf;
use propylon_config::{Config, ServerAddress};
use propylon_proxy::endpoint::{Resolved, Target};
use propylon_proxy::snapshot::{Answers, names_of};
use propylon_sys::Address;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Addresses of one name that are used; more are left aside.
pub const ADDRESSES_MAX: usize = 16;
/// A record's weight in so many parts, that its host's addresses share.
const WEIGHT_PARTS: u32 = 720;
/// How long a lookup may take, all questions and repeats of it together.
const LOOKUP_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long an answer of the system holds, which does not say.
const SYSTEM_TTL: Duration = Duration::from_secs(30);

/// How to look up names.
#[derive(Clone, Debug)]
pub struct Names {
    config: propylon_config::Resolver,
}

impl Names {
    /// Addresses of all names in a configuration, each looked up. Blocks.
    pub fn answers(config: &Config) -> Answers {
        let questions = names_of(config, None);
        let found = Names::new(&config.process.resolver).look_up_all(questions.clone());
        let found = found.unwrap_or_else(|error| {
            questions.iter().map(|_| Err(format!("names cannot be looked up: {error}"))).collect()
        });
        questions.into_iter().zip(found).collect()
    }

    pub fn new(config: &propylon_config::Resolver) -> Names {
        Names { config: config.clone() }
    }

    /// Looks up many names side by side, on a thread of its own, and waits for it. The results are in the order of the questions.
    pub fn look_up_all(&self, questions: Vec<ServerAddress>) -> std::io::Result<Vec<Result<Resolved, String>>> {
        if questions.iter().all(|question| !question.is_name()) {
            return Ok(questions.iter().map(|question| Ok(self.literal(question))).collect());
        }
        let names = self.clone();
        let look = move || -> std::io::Result<Vec<Result<Resolved, String>>> {
            let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
            let found = runtime.block_on(names.look_up_beside(questions));
            // A question that the system does not answer must not hold us up.
            runtime.shutdown_background();
            Ok(found)
        };
        std::thread::spawn(look).join().unwrap_or_else(|_| Err(std::io::Error::other("the lookup panicked")))
    }

    /// As [`Names::look_up_all`], on the current runtime.
    pub async fn look_up_beside(&self, questions: Vec<ServerAddress>) -> Vec<Result<Resolved, String>> {
        let names = Arc::new(self.clone());
        let mut tasks = JoinSet::new();
        for (index, question) in questions.into_iter().enumerate() {
            let names = Arc::clone(&names);
            tasks.spawn(async move { (index, names.look_up(&question).await) });
        }
        let mut found = tasks.join_all().await;
        found.sort_by_key(|(index, _)| *index);
        found.into_iter().map(|(_, found)| found).collect()
    }

    /// Looks up one name. The error says what the name servers said.
    pub async fn look_up(&self, question: &ServerAddress) -> Result<Resolved, String> {
        if !question.is_name() {
            return Ok(self.literal(question));
        }
        let asked = timeout(LOOKUP_WAIT_MAX, self.ask(question)).await;
        let (mut found, valid) = asked.unwrap_or_else(|_| Err("no answer in time".into()))?;
        // The first choices first. One that is named twice is what it is named first.
        found.sort_unstable();
        let mut targets: Vec<Target> = Vec::new();
        for target in found {
            if !targets.iter().any(|known| known.address == target.address) {
                targets.push(target);
            }
        }
        // Addresses of a family that the network has no route to would fail one after another.
        let reachable: Vec<Target> = targets.iter().copied().filter(|target| has_route(target.address)).collect();
        let mut targets = if reachable.is_empty() { targets } else { reachable };
        targets.truncate(ADDRESSES_MAX);
        match targets.is_empty() {
            true => Err("the name has no address".into()),
            false => Ok(Resolved { targets, valid: valid.clamp(self.config.ttl_min, self.config.ttl_max) }),
        }
    }

    fn literal(&self, question: &ServerAddress) -> Resolved {
        Resolved { targets: Target::literal(question).into_iter().collect(), valid: self.config.ttl_max }
    }

    async fn ask(&self, question: &ServerAddress) -> Result<(Vec<Target>, Duration), String> {
        // Made for every lookup: so changes of the system's files need no restart, and nothing old is in its memory.
        let resolver = self.resolver();
        match question {
            ServerAddress::Ip(_) | ServerAddress::Unix { .. } => {
                Ok((self.literal(question).targets, self.config.ttl_max))
            }
            ServerAddress::Srv { name } => service(&resolver?, name).await,
            ServerAddress::Name { host, port } => {
                let found = match resolver {
                    Ok(resolver) => hosts(&resolver, host, *port).await,
                    Err(error) => Err(error),
                };
                let found = match found {
                    Err(error) if self.config.servers.is_empty() => system(host, *port).await.map_err(|_| error),
                    found => found,
                };
                found.map(|(addresses, valid)| {
                    (addresses.into_iter().map(|address| Address::from(address).into()).collect(), valid)
                })
            }
        }
    }

    fn resolver(&self) -> Result<TokioResolver, String> {
        let builder = if self.config.servers.is_empty() {
            let (config, options) = system_configuration()?;
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()).with_options(options)
        } else {
            let servers = self.config.servers.iter().map(|address| name_server(*address)).collect();
            let config = ResolverConfig::from_parts(None, Vec::new(), servers);
            let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
            // A configuration that names name servers means these alone.
            builder.options_mut().use_hosts_file = ResolveHosts::Never;
            builder
        };
        builder.build().map_err(|error| error.to_string())
    }
}

/// How the system looks up names, as it was last read.
static SYSTEM: Mutex<Option<(ResolverConfig, ResolverOpts)>> = Mutex::new(None);

/// How the system looks up names. A file that cannot be read (any more) is taken for what it was: the sandbox knows it as it
/// was at the start, and whoever replaces it makes another one.
pub fn system_configuration() -> Result<(ResolverConfig, ResolverOpts), String> {
    let mut known = SYSTEM.lock().unwrap_or_else(PoisonError::into_inner);
    match (read_system_conf(), known.clone()) {
        (Ok(read), _) => Ok(known.insert(read).clone()),
        (Err(error), Some(read)) => {
            log::debug!("the system's name servers cannot be read again: {error}");
            Ok(read)
        }
        (Err(error), None) => Err(error.to_string()),
    }
}

fn name_server(address: SocketAddr) -> NameServerConfig {
    let [mut udp, mut tcp] = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
    (udp.port, tcp.port) = (address.port(), address.port());
    NameServerConfig::new(address.ip(), true, vec![udp, tcp])
}

/// The words of the name servers: the resolver's own have a question as the program holds it.
fn words(error: &NetError) -> String {
    let NetError::Dns(DnsError::NoRecordsFound(none)) = error else { return error.to_string() };
    match none.response_code {
        ResponseCode::NXDomain => "there is no such name".to_owned(),
        ResponseCode::NoError => "the name has no such records".to_owned(),
        code => format!("the name server answers: {code}"),
    }
}

async fn hosts(resolver: &TokioResolver, host: &str, port: u16) -> Result<(Vec<SocketAddr>, Duration), String> {
    let found = resolver.lookup_ip(host).await.map_err(|error| words(&error))?;
    let valid = found.valid_until().saturating_duration_since(Instant::now());
    Ok((found.iter().map(|ip| SocketAddr::new(ip, port)).collect(), valid))
}

/// The hosts and ports of a service, with their priorities and weights (RFC 2782): the first choices first, as many as are used.
async fn service(resolver: &TokioResolver, name: &str) -> Result<(Vec<Target>, Duration), String> {
    let found = resolver.srv_lookup(format!("{name}.")).await.map_err(|error| words(&error))?;
    let mut valid = found.valid_until().saturating_duration_since(Instant::now());
    let services = found.answers().iter().filter_map(|record| match &record.data {
        RData::SRV(service) => Some(service),
        _ => None,
    });
    let mut services: Vec<&SRV> = services.collect();
    services.sort_by_key(|service| service.priority);
    let (mut targets, mut failed) = (Vec::new(), None);
    for service in services.into_iter().take(ADDRESSES_MAX) {
        if service.target.is_root() {
            return Err("the service is decidedly not available there".into());
        }
        match hosts(resolver, &service.target.to_string(), service.port).await {
            Ok((addresses, until)) => {
                valid = valid.min(until);
                // A host with several addresses has the weight of one.
                let count = addresses.len().max(1) as u32;
                let weight = u32::from(service.weight) * WEIGHT_PARTS / count;
                let target = |address| Target { priority: service.priority, address: Address::Ip(address), weight };
                targets.extend(addresses.into_iter().map(target));
            }
            Err(error) => failed = Some(error),
        }
    }
    match (targets.is_empty(), failed) {
        (true, Some(error)) => Err(error),
        (true, None) => Err("the name has no SRV record".into()),
        _ => Ok((targets, valid)),
    }
}

/// Looks a name up by the system, which may know more than the name servers.
async fn system(host: &str, port: u16) -> std::io::Result<(Vec<SocketAddr>, Duration)> {
    Ok((tokio::net::lookup_host((host, port)).await?.collect(), SYSTEM_TTL))
}

/// Whether the network has a way there at all; no packet is sent to find out.
fn has_route(address: Address) -> bool {
    let Address::Ip(address) = address else { return true };
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    UdpSocket::bind((any, 0)).and_then(|socket| socket.connect(address)).is_ok()
}
