//! The flags of `offload`.

use super::prefork;
use crate::client_group::processes::PROCESSES_MAX;
use crate::compare::peers::{self, Peer};
use crate::failure::{Failure, Outcome};
use crate::units::parse_duration;
use crate::{machine, target};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Slow clients on a prefork origin, directly and through a balancer; its CPU and memory with TLS and without
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    propylon-bench offload\n  \
    propylon-bench offload --through haproxy --clients 200,1000,4000,8000 --json result.json\n  \
    propylon-bench offload --balancer 127.0.0.1:8080 --balancer-pid 4711 --origin-bind 127.0.0.1:9000\n\n\
    The origin has a worker for each connection, up to --max. Each client keeps one connection and sends a request on\n\
    it every few seconds. Directly, the origin is full once --max clients are there; a balancer needs one connection\n\
    of the origin's per request in progress. Then the origin's CPU and memory with TLS on it, and with TLS on the\n\
    balancer. --balancer must send its requests to --origin-bind. A default run takes about 70 seconds.
    The balancer does not know --max: it opens as many connections to the origin as it sees fit.")]
pub struct Arguments {
    /// Program to start as the balancer: propylon, haproxy or nginx
    #[arg(long, value_name = "PROGRAM", default_value = "propylon", value_parser = Peer::parse)]
    pub through: Peer,
    /// A balancer that runs already, instead
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "through", requires = "origin_bind")]
    pub balancer: Option<String>,
    /// Its TLS address; without it the part about TLS is left out
    #[arg(long, value_name = "HOST:PORT", requires = "balancer")]
    pub balancer_tls: Option<String>,
    /// Its process, for its CPU and memory; repeat for more
    #[arg(long = "balancer-pid", value_name = "PID", requires = "balancer")]
    pub balancer_pids: Vec<u32>,
    /// Where the origin listens; by default on a free port
    #[arg(long, value_name = "ADDR")]
    pub origin_bind: Option<SocketAddr>,
    /// The propylon to start; by default the one beside this program
    #[arg(long, value_name = "PATH")]
    pub propylon: Option<PathBuf>,
    #[command(flatten)]
    pub cost: prefork::Cost,
    /// Steps: how many clients there are
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "100,200,400,1000,2000,4000")]
    pub clients: Vec<usize>,
    /// Each client asks this often
    #[arg(long, value_name = "INTERVAL", default_value = "3s", value_parser = parse_duration)]
    pub every: Duration,
    /// New clients per second, while a step brings more
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub arrivals: u32,
    /// Length of the measurement in each step
    #[arg(long, default_value = "2500ms", value_parser = parse_duration)]
    pub duration: Duration,
    /// Longest wait of a client for one answer, its connection included
    #[arg(long, default_value = "4s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Load processes (each is limited by its open files and local ports)
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=PROCESSES_MAX))]
    pub processes: u64,
    /// Clients in the comparison of TLS; by default three quarters of --max, so that the origin can bear them itself
    #[arg(long, value_name = "N")]
    pub tls_clients: Option<usize>,
    /// New connections per second in the comparison of TLS
    #[arg(long, value_name = "PER_SECOND", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub tls_rate: u32,
    /// Leave out the part about TLS
    #[arg(long)]
    pub no_tls: bool,
    /// Core for the balancer
    #[arg(long, default_value_t = 0)]
    pub proxy_core: usize,
    /// Core for the load and the origin
    #[arg(long, default_value_t = 1)]
    pub load_core: usize,
    /// Write everything measured as JSON ("-": to stdout)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Arguments {
    pub fn check(&self) -> Outcome<()> {
        prefork::check_memory(&self.cost)?;
        if self.clients.is_empty() || self.clients.contains(&0) || !self.clients.is_sorted_by(|a, b| a < b) {
            return Err(Failure::new("--clients: steps are numbers that grow"));
        }
        let most = self.clients.last().copied().unwrap_or(0);
        if self.balancer.is_none() && most > peers::CLIENTS_MAX {
            return Err(Failure::new(format!(
                "--clients: a balancer started here holds at most {}; start one that holds more and name it by \
                 --balancer",
                peers::CLIENTS_MAX
            )));
        }
        machine::require_open_files(most / self.processes as usize + 1)?;
        let cores = machine::cores_allowed();
        for core in [self.proxy_core, self.load_core] {
            if !cores.contains(&core) {
                return Err(Failure::new(format!("core {core} is not among {cores:?}")));
            }
        }
        for address in self.balancer.iter().chain(&self.balancer_tls) {
            target::resolve(address)?;
        }
        Ok(())
    }

    pub fn tls_clients(&self) -> usize {
        self.tls_clients.unwrap_or((self.cost.max * 3 / 4).max(1))
    }
}
