//! The server that `search` and `sweep` ask: one they start, with so many workers and one certificate, or any
//! endpoint. And what it really does when asked: version, suite and key as a handshake shows them.

use crate::certificate_kind::KeyKind;
use crate::compare::peers::{Peer, Program};
use crate::compare::running::Running;
use crate::compare::site::{OWN_PATH, SITE_NAME, Site, write_certificates};
use crate::failure::{Failure, Outcome, While};
use crate::interrupt::Interrupt;
use crate::link::Request;
use crate::load::{Kind, Plan};
use crate::load_threads::{LoadThreads, TargetSpec};
use crate::machine;
use crate::pressure::count;
use crate::report::progress;
use crate::scratch::ScratchDir;
use crate::target::{Group, Key, Target, TlsOffer, resolve};
use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

/// Longest wait for the one handshake that shows what a server does.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The server to ask and the cores of the load: the flags that `search` and `sweep` have in common.
#[derive(clap::Args, Clone)]
pub struct TestbedArguments {
    /// Endpoint to ask; without it a server is started here
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["program", "workers", "certificates"])]
    pub target: Option<String>,
    /// Process of the endpoint whose CPU time is to be measured, with its children; repeat for more
    #[arg(long = "server-pid", value_name = "PID", requires = "target")]
    pub server_pids: Vec<u32>,
    /// Cores that the endpoint can make use of, such as its number of workers [default: those it may run on]
    #[arg(long, value_name = "N", requires = "server_pids", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub server_cores: Option<usize>,
    /// Server name to send to the endpoint
    #[arg(long, default_value = "localhost")]
    pub name: String,
    /// Path to ask for [default: "/" of an endpoint, else one that the server answers itself]
    #[arg(long)]
    pub path: Option<String>,
    /// Server to start: propylon, haproxy, nginx or envoy
    #[arg(long, value_name = "SERVER", default_value = "propylon", value_parser = Peer::parse)]
    pub server: Peer,
    /// Where that server's program is [default: propylon beside this program, others where a shell finds them]
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
    /// Numbers of workers to measure; the server is kept on as many cores [default: 1, 2, 4 ... up to all cores]
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub workers: Vec<usize>,
    /// Types of key to measure
    #[arg(long, value_name = "TYPE,TYPE", value_delimiter = ',', default_value = "ec,rsa")]
    pub keys: Vec<Key>,
    /// More certificates for the started server: PEM files with chain and key (P-384, RSA-3072, RSA-4096 ...)
    #[arg(long, value_name = "FILE,FILE", value_delimiter = ',')]
    pub certificates: Vec<PathBuf>,
    /// Key exchange group to offer
    #[arg(long, default_value = "x25519")]
    pub group: Group,
    /// Cores for the load, a thread each [default: those that the server does not use; all of them if none is left]
    #[arg(long, value_name = "CORE,CORE", value_delimiter = ',')]
    pub load_cores: Vec<usize>,
    /// Source address; repeat to spread connections over several
    #[arg(long = "source", value_name = "ADDRESS")]
    pub sources: Vec<IpAddr>,
}

/// Everything that outlives one server.
pub struct Testbed<'a> {
    pub arguments: &'a TestbedArguments,
    pub interrupt: &'a Interrupt,
    scratch: ScratchDir,
    program: Option<Program>,
    pub cores: Vec<usize>,
}

/// A kind of key to measure.
#[derive(Clone, Debug)]
pub struct Subject {
    pub family: Key,
    /// `P-256`, `RSA-2048`; for an endpoint, what it showed.
    pub name: String,
    /// Absent for an endpoint.
    certificate: Option<PathBuf>,
}

/// A server that answers, and the cores around it.
pub struct Served {
    pub address: SocketAddr,
    pids: Vec<u32>,
    /// Servers behind it, whose work is the load's.
    pub origin_pids: Vec<u32>,
    server_cores: Option<usize>,
    load_cores: Vec<usize>,
    /// Load and server have cores in common.
    pub shares_cores: bool,
    // Ended with its owner.
    running: RefCell<Option<Running>>,
}

/// The facts of a handshake that took place.
#[derive(Debug)]
pub struct ServerHandshake {
    /// Says the version too: none of the suites we offer is in both.
    pub suite: rustls::CipherSuite,
    pub key: KeyKind,
}

impl<'a> Testbed<'a> {
    pub fn new(arguments: &'a TestbedArguments, interrupt: &'a Interrupt) -> Outcome<Self> {
        let cores = machine::cores_allowed();
        for workers in &arguments.workers {
            if *workers > cores.len() {
                let allowed = count(cores.len(), "core");
                return Err(Failure::new(format!("--workers {workers}: this process may use only {allowed}")));
            }
        }
        if let Some(core) = arguments.load_cores.iter().find(|core| !cores.contains(core)) {
            return Err(Failure::new(format!("--load-cores: core {core} is not among {cores:?}")));
        }
        let scratch = ScratchDir::new()?;
        let program = match &arguments.target {
            Some(_) => None,
            None => {
                write_certificates(&scratch)?;
                let program = Program::find(arguments.server, &arguments.server.path(arguments.program.as_deref())?)
                    .map_err(|failure| Failure::new(format!("{failure}; name it with --program PATH")))?;
                progress(format_args!("{}: {}", program.peer.name(), program.title()));
                Some(program)
            }
        };
        Ok(Self { arguments, interrupt, scratch, program, cores })
    }

    pub fn scratch(&self) -> &ScratchDir {
        &self.scratch
    }

    /// The kind of server that is started here; absent for an endpoint.
    pub fn program(&self) -> Option<Peer> {
        self.program.as_ref().map(|program| program.peer)
    }

    /// Name of the measured server, for the report.
    pub fn server_name(&self) -> String {
        match (&self.program, &self.arguments.target) {
            (Some(program), _) => format!("{} ({})", program.peer.name(), program.title()),
            (None, target) => target.clone().unwrap_or_default(),
        }
    }

    /// Numbers of workers; none for an endpoint, whose workers are its own business.
    pub fn workers(&self) -> Vec<Option<usize>> {
        if self.program.is_none() {
            return vec![None];
        }
        if !self.arguments.workers.is_empty() {
            return self.arguments.workers.iter().copied().map(Some).collect();
        }
        let mut workers = Vec::new();
        let mut next = 1;
        while next <= self.cores.len() {
            workers.push(Some(next));
            next *= 2;
        }
        workers
    }

    /// The kinds of key to measure. Of an endpoint, those that it shows when asked for them.
    pub fn subjects(&self) -> Outcome<Vec<Subject>> {
        let mut subjects = Vec::new();
        for &family in &self.arguments.keys {
            match &self.arguments.target {
                Some(target) => match self.subject_of_endpoint(resolve(target)?, family) {
                    Ok(subject) => subjects.push(subject),
                    Err(failure) => progress(format_args!("{target} has no {family:?} key for us: {failure}")),
                },
                None => {
                    let suffix = if family == Key::Ec { "ec" } else { "rsa" };
                    subjects.push(subject_of_file(self.scratch.path().join(format!("{SITE_NAME}.{suffix}.pem")))?);
                }
            }
        }
        for path in &self.arguments.certificates {
            // The server reads it from its own place in the file system, whatever that is.
            let path = path.canonicalize().when(format_args!("--certificates {}", path.display()))?;
            subjects.push(subject_of_file(path)?);
        }
        if subjects.is_empty() {
            return Err(Failure::new("no kind of key to measure: see --keys and --certificates"));
        }
        Ok(subjects)
    }

    fn subject_of_endpoint(&self, address: SocketAddr, family: Key) -> Outcome<Subject> {
        let offer = self.offer(family);
        let handshake = self.handshake(&self.target_spec(address, offer))?;
        Ok(Subject { family, name: handshake.key.name(), certificate: None })
    }

    /// An offer of both versions and all ciphers; callers narrow it.
    pub fn offer(&self, family: Key) -> TlsOffer {
        TlsOffer {
            version: crate::target::Version::Any,
            key: Some(family),
            group: Some(self.arguments.group),
            cipher: None,
            resume: false,
            ca: None,
        }
    }

    pub fn target_spec(&self, address: SocketAddr, offer: TlsOffer) -> TargetSpec {
        TargetSpec {
            address,
            name: self.name().to_owned(),
            offer,
            sources: self.arguments.sources.clone(),
            http2: None,
        }
    }

    pub fn name(&self) -> &str {
        if self.program.is_some() { SITE_NAME } else { &self.arguments.name }
    }

    /// New connections, one request each.
    pub fn plan(&self, connections: usize, timeout: Duration, rate: Option<f64>) -> Plan {
        let own = if self.program.is_some() { OWN_PATH } else { "/" };
        let path = self.arguments.path.as_deref().unwrap_or(own);
        let request = Request::new("GET", path, self.name(), "Connection: close\r\n", 0);
        Plan { kind: Kind::NewConnections, connections, request, timeout, rate }
    }

    /// Starts the server with the certificates of these subjects; an endpoint is there already.
    pub fn serve(&self, subjects: &[&Subject], workers: Option<usize>) -> Outcome<Served> {
        let (Some(_), Some(workers)) = (&self.program, workers) else {
            let target = self.arguments.target.as_deref().unwrap_or_default();
            let server_cores = self.endpoint_cores();
            let load_cores = self.load_cores(&server_cores);
            return Ok(Served {
                address: resolve(target)?,
                pids: self.arguments.server_pids.clone(),
                server_cores: self.arguments.server_cores.or((!server_cores.is_empty()).then_some(server_cores.len())),
                shares_cores: load_cores.iter().any(|core| server_cores.contains(core)),
                load_cores,
                origin_pids: Vec::new(),
                running: RefCell::new(None),
            });
        };
        // Nothing is asked of it: `OWN_PATH` is answered by the server itself.
        let origin = SocketAddr::from(([127, 0, 0, 1], machine::free_ports(1)?[0]));
        self.start(&self.site(subjects, workers, origin)?)
    }

    /// The site of the server that is started here, with the certificates of these subjects.
    pub fn site(&self, subjects: &[&Subject], workers: usize, origin: SocketAddr) -> Outcome<Site> {
        let certificates = subjects.iter().filter_map(|subject| subject.certificate.clone()).collect();
        Site::with(self.scratch.path(), origin, workers, certificates)
    }

    /// Starts the server with this site, on as many of the first cores as it has workers.
    pub fn start(&self, site: &Site) -> Outcome<Served> {
        let program = self.program.as_ref().ok_or_else(|| Failure::new("an endpoint is not started here"))?;
        let workers = site.workers;
        let server_cores = &self.cores[..workers.min(self.cores.len())];
        let log = self.scratch.path().join("server.log");
        let mut running = Running::start_on(program.command(site)?, server_cores, &log)?;
        running.wait_until_answering(site.plain, OWN_PATH, self.interrupt)?;
        let load_cores = self.load_cores(server_cores);
        Ok(Served {
            address: site.tls,
            pids: vec![running.pid()],
            origin_pids: Vec::new(),
            server_cores: Some(workers),
            shares_cores: load_cores.iter().any(|core| server_cores.contains(core)),
            load_cores,
            running: RefCell::new(Some(running)),
        })
    }

    /// The load's cores beside a server on these.
    pub fn load_cores(&self, server_cores: &[usize]) -> Vec<usize> {
        if !self.arguments.load_cores.is_empty() {
            return self.arguments.load_cores.clone();
        }
        let free: Vec<usize> = self.cores.iter().copied().filter(|core| !server_cores.contains(core)).collect();
        if free.is_empty() { self.cores.clone() } else { free }
    }

    /// Cores that the endpoint's first process may run on; empty if it was not named.
    fn endpoint_cores(&self) -> Vec<usize> {
        let Some(pid) = self.arguments.server_pids.first() else {
            return Vec::new();
        };
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let mask = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed:")).unwrap_or_default();
        cores_of_mask(mask)
    }

    /// One handshake, and what came of it: a table must not say more than the server does.
    pub fn handshake(&self, target_spec: &TargetSpec) -> Outcome<ServerHandshake> {
        let target = Target::new(target_spec.address, &target_spec.name, Some(&target_spec.offer))?;
        let doing = "a first handshake";
        let mut socket = TcpStream::connect_timeout(&target_spec.address, HANDSHAKE_TIMEOUT).when(doing)?;
        socket.set_read_timeout(Some(HANDSHAKE_TIMEOUT)).when(doing)?;
        socket.set_write_timeout(Some(HANDSHAKE_TIMEOUT)).when(doing)?;
        let mut session = target.tls_session().when(doing)?.ok_or_else(|| Failure::new("no TLS was asked for"))?;
        while session.is_handshaking() {
            session.complete_io(&mut socket).when(doing)?;
        }
        let leaf = session.peer_certificates().and_then(|chain| chain.first());
        let leaf = leaf.ok_or_else(|| Failure::new("the server showed no certificate"))?;
        let suite = session.negotiated_cipher_suite().ok_or_else(|| Failure::new("a handshake without a suite"))?;
        Ok(ServerHandshake { suite: suite.suite(), key: KeyKind::of(leaf)? })
    }
}

impl Served {
    pub fn load_threads<'a>(&'a self, interrupt: &'a Interrupt) -> LoadThreads<'a> {
        LoadThreads {
            cores: &self.load_cores,
            interrupt,
            server_pids: &self.pids,
            origin_pids: &self.origin_pids,
            server_cores_allowed: self.server_cores,
        }
    }

    /// Puts the blame where it belongs: errors of a started server that is gone are reported with how it ended.
    pub fn explain(&self, failure: Failure) -> Failure {
        match self.ended() {
            Some(ended) => Failure::new(format!("{ended}; {failure}")),
            None => failure,
        }
    }

    /// How a started server ended, if it has.
    pub fn ended(&self) -> Option<String> {
        self.running.borrow_mut().as_mut().and_then(Running::ended)
    }

    pub fn server_cores(&self) -> Option<usize> {
        self.server_cores
    }

    pub fn load_cores(&self) -> &[usize] {
        &self.load_cores
    }
}

fn subject_of_file(path: PathBuf) -> Outcome<Subject> {
    let kind = KeyKind::of_file(&path)?;
    Ok(Subject { family: kind.family, name: kind.name(), certificate: Some(path) })
}

/// proc_pid_status(5): hexadecimal digits, the highest cores first, a comma after every eight.
fn cores_of_mask(mask: &str) -> Vec<usize> {
    let digits = mask.chars().rev().filter_map(|digit| digit.to_digit(16)).enumerate();
    digits
        .flat_map(|(index, bits)| (0..4).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| 4 * index + bit))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_a_set_of_cores() {
        assert_eq!(cores_of_mask("\t3"), [0, 1]);
        assert_eq!(cores_of_mask("\t00000001,80000010"), [4, 31, 32]);
        assert_eq!(cores_of_mask(""), [0; 0]);
    }
}
