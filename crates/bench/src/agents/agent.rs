//! `agent`: waits for a coordinator that may tell it what to load, and does its share.

use super::identity::{AgentIdentity, Secret};
use super::message::printable;
use super::rules::{Pattern, Rules, Targets};
use super::session;
use crate::failure::{Failure, Outcome, While};
use crate::interrupt::{Interrupt, LOOK_INTERVAL};
use crate::poll::Poll;
use crate::report::{self, progress};
use crate::units::parse_duration;
use serde::Serialize;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Coordinators that may be talked to at once, strangers among them; only one has a job.
const SESSIONS_MAX: usize = 16;
/// MinRateTimeout with a load that was told to end.
const END_MAX: Duration = Duration::from_secs(3);

/// Do a share of another machine's `handshakes` or `requests` (its --agents)
#[derive(clap::Args)]
#[command(after_help = "\
Whoever knows the secret, or has a certificate of the CA, can have this machine load any allowed target. With a secret
the session is authenticated, in order and free of replays, but not encrypted: targets, headers and figures can be read
on the way. Over networks that are not yours use --identity and --ca, with a CA that is for nothing else.

The first line on stdout is \"listening ADDRESS\". Ends on SIGTERM and SIGINT.

Examples:
  openssl rand -hex 32 > secret; chmod 600 secret
  propylon-bench agent --listen 0.0.0.0:7001 --secret-file secret --allow 10.0.0.5:8443
  propylon-bench agent --listen 0.0.0.0:7001 --identity agent.pem --ca agents-ca.pem --allow '*.lab.test'")]
pub struct Arguments {
    /// Address to listen on; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: String,
    #[command(flatten)]
    pub identity: IdentityArguments,
    #[command(flatten)]
    pub targets: TargetsArguments,
    /// Longest job, warm-up included
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_duration)]
    pub max_duration: Duration,
    /// Connections of a job at most
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub max_connections: usize,
    /// Requests per second of a job at most; a job without --rate is then refused
    #[arg(long, value_name = "PER_SECOND", value_parser = crate::units::parse_rate)]
    pub max_rate: Option<f64>,
    /// Source address; repeat to spread connections over several
    #[arg(long = "source", value_name = "ADDRESS")]
    pub sources: Vec<IpAddr>,
    /// Core to keep the load on
    #[arg(long)]
    pub core: Option<usize>,
    /// Write the bound address as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// There is no third way, and no way without.
#[derive(clap::Args)]
#[group(required = true, multiple = true)]
pub struct IdentityArguments {
    /// File with the secret that coordinators must know; at least 16 bytes, for its owner only
    #[arg(long, value_name = "FILE", conflicts_with_all = ["identity", "ca"])]
    pub secret_file: Option<PathBuf>,
    /// This agent's certificate chain and key, for mutual TLS
    #[arg(long, value_name = "PEM", requires = "ca")]
    pub identity: Option<PathBuf>,
    /// CA that coordinators' certificates must be of
    #[arg(long, value_name = "PEM", requires = "identity")]
    pub ca: Option<PathBuf>,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub struct TargetsArguments {
    /// Target that may be loaded: HOST, HOST:PORT, *.DOMAIN or *.DOMAIN:PORT, as the coordinator writes it; repeat for
    /// more
    #[arg(long, value_name = "PATTERN")]
    pub allow: Vec<Pattern>,
    /// Any target may be loaded
    #[arg(long)]
    pub allow_any: bool,
}

/// A bound agent.
pub struct Agent {
    listener: TcpListener,
    shared: Arc<Shared>,
}

/// State that all sessions share.
pub struct Shared {
    pub identity: AgentIdentity,
    pub rules: Rules,
    pub sources: Vec<IpAddr>,
    pub core: Option<usize>,
    /// Whose job is being done.
    serving: Mutex<Option<String>>,
    sessions: AtomicUsize,
}

/// The right to do a job; given back with its end.
pub struct Claim<'a>(&'a Shared);

/// One of the sessions; given back with its end, however it ends.
struct Place {
    shared: Arc<Shared>,
    others: usize,
}

#[derive(Serialize)]
struct Bound {
    listening: SocketAddr,
}

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let interrupt = Interrupt::install()?;
    let targets =
        if arguments.targets.allow_any { Targets::Any } else { Targets::Only(arguments.targets.allow.clone()) };
    let rules = Rules {
        targets,
        duration_max: arguments.max_duration,
        connections_max: arguments.max_connections,
        rate_max: arguments.max_rate,
    };
    let mut shared = Shared::new(arguments.identity.identity()?, rules);
    shared.sources.clone_from(&arguments.sources);
    shared.core = arguments.core;
    progress(format_args!("{}", shared.identity.describe()));
    let agent = Agent::bind(&arguments.listen, shared)?;
    let bound = Bound { listening: agent.address()? };
    println!("listening {}", bound.listening);
    std::io::stdout().flush().when("telling the address")?;
    report::save_json(arguments.json.as_deref(), &bound)?;
    agent.serve(&interrupt)
}

impl IdentityArguments {
    fn identity(&self) -> Outcome<AgentIdentity> {
        match (&self.secret_file, &self.identity, &self.ca) {
            (Some(path), None, None) => Ok(AgentIdentity::Secret(Secret::read(path)?)),
            (None, Some(identity), Some(ca)) => AgentIdentity::tls(identity, ca),
            _ => Err(Failure::new("an agent needs --secret-file, or --identity and --ca")),
        }
    }
}

impl Shared {
    pub fn new(identity: AgentIdentity, rules: Rules) -> Self {
        Self {
            identity,
            rules,
            sources: Vec::new(),
            core: None,
            serving: Mutex::new(None),
            sessions: AtomicUsize::new(0),
        }
    }

    /// One job at a time: two would spoil each other's figures.
    pub fn claim(&self, peer: &str) -> Outcome<Claim<'_>> {
        let mut serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = &*serving {
            return Err(Failure::new(format!("busy with a job of {other}")));
        }
        *serving = Some(peer.to_owned());
        Ok(Claim(self))
    }

    fn is_serving(&self) -> bool {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        *self.0.serving.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Place {
    fn take(shared: &Arc<Shared>) -> Self {
        Self { shared: shared.clone(), others: shared.sessions.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.sessions.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Agent {
    pub fn bind(address: &str, shared: Shared) -> Outcome<Self> {
        let listener = TcpListener::bind(address).when(format_args!("listening on {address}"))?;
        listener.set_nonblocking(true).when("the listener")?;
        Ok(Self { listener, shared: Arc::new(shared) })
    }

    pub fn address(&self) -> Outcome<SocketAddr> {
        self.listener.local_addr().when("asking for the bound address")
    }

    /// Until interrupted; then the load, if there is one, is stopped first.
    pub fn serve(&self, interrupt: &Interrupt) -> Outcome<()> {
        let mut poll = Poll::new().when("epoll")?;
        poll.add(&self.listener, 0).when("epoll")?;
        while !interrupt.is_raised() {
            poll.wait(LOOK_INTERVAL).when("epoll")?;
            // Without an edge too: an accept that failed for want of files brings no new one.
            while let Ok((socket, peer)) = self.listener.accept() {
                self.admit(socket, peer, interrupt);
            }
        }
        let until = Instant::now() + END_MAX;
        while self.shared.is_serving() && Instant::now() < until {
            std::thread::sleep(LOOK_INTERVAL / 10);
        }
        Ok(())
    }

    fn admit(&self, socket: TcpStream, peer: SocketAddr, interrupt: &Interrupt) {
        let place = Place::take(&self.shared);
        if place.others >= SESSIONS_MAX {
            return progress(format_args!("{peer}: more than {SESSIONS_MAX} sessions at once"));
        }
        let (shared, interrupt) = (self.shared.clone(), interrupt.clone());
        let session = move || {
            let _place = place;
            if let Err(failure) = session::serve(socket, &shared, &interrupt) {
                progress(format_args!("{peer}: {}", printable(&failure.to_string())));
            }
        };
        if let Err(error) = std::thread::Builder::new().name("session".to_owned()).spawn(session) {
            progress(format_args!("{peer}: {error}"));
        }
    }
}
