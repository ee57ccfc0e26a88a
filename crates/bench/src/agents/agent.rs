//! `agent`: waits for the jobs of a coordinator, and puts its share of the load on the target.

use super::identity::{AgentIdentity, refuse_secret_file};
use super::message::printable;
use super::rules::{Pattern, Rules, Targets};
use super::session;
use super::shared::Shared;
use crate::failure::{Outcome, While};
use crate::interrupt::{Interrupt, LOOK_INTERVAL};
use crate::poll::Poll;
use crate::report::{self, progress};
use crate::units::parse_duration;
use serde::Serialize;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Sessions at once, those of unknown peers included; only one has a job.
const SESSIONS_MAX: usize = 16;
/// Longest wait for a load that was interrupted.
const END_MAX: Duration = Duration::from_secs(3);

/// Do a share of another machine's `handshakes` or `requests` (its --agents)
#[derive(clap::Args)]
#[command(after_help = "\
Coordinator and agents know each other by certificates of one CA (TLS 1.3, both ways). Whoever has one can have this
machine load any allowed target, so let the CA be for nothing else.

The first line on stdout is \"listening ADDRESS\". Ends on SIGTERM and SIGINT.

Examples:
  propylon-bench certificates --out agents --keys ec --name 10.0.0.7 --name 10.0.0.8 --name coordinator
  propylon-bench agent --listen 0.0.0.0:7001 --identity 10.0.0.7.ec.pem --ca ca.pem --allow 10.0.0.5:8443
  propylon-bench agent --listen 0.0.0.0:7001 --identity 10.0.0.8.ec.pem --ca ca.pem --allow '*.lab.test'")]
pub struct Arguments {
    /// Address to listen on; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: String,
    /// Certificate chain and key to show to coordinators, for the name or address that their --agents has
    #[arg(long, value_name = "PEM")]
    pub identity: PathBuf,
    /// CA that coordinators' certificates must be of
    #[arg(long, value_name = "PEM")]
    pub ca: PathBuf,
    #[arg(long, hide = true, value_parser = refuse_secret_file)]
    pub secret_file: Option<String>,
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
    let mut shared = Shared::new(AgentIdentity::read(&arguments.identity, &arguments.ca)?, rules);
    shared.sources.clone_from(&arguments.sources);
    shared.core = arguments.core;
    let agent = Agent::bind(&arguments.listen, shared)?;
    let bound = Bound { listening: agent.address()? };
    println!("listening {}", bound.listening);
    std::io::stdout().flush().when("telling the address")?;
    report::save_json(arguments.json.as_deref(), &bound)?;
    agent.serve(&interrupt)
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
