//! The flags of `keyserver`.

use super::key::Ski;
use super::operation::Operation;
use super::pipeline::Plan;
use crate::target::Version;
use crate::units::{parse_duration, parse_rate};
use std::path::PathBuf;
use std::time::Duration;

/// Outstanding operations per connection with --bandwidth: as many as the stock server has in work at once.
const BANDWIDTH_OUTSTANDING: usize = 1024;

/// Operations on a key server (Keyless protocol): many outstanding per connection, every signature verified
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    propylon-bench keyserver --target 127.0.0.1:2407 --identity engine.pem --ca keyserver-ca.pem \\\n      \
    --certificate shop.ec.pem --op ecdsa-sha256 --duration 10 --server-pid 4711\n  \
    propylon-bench keyserver --target 127.0.0.1:2407 --identity engine.pem --ca keyserver-ca.pem \\\n      \
    --certificate shop.rsa.pem --op rsa-pss-sha256 --rate 500 --connections 4\n  \
    propylon-bench keyserver --target 127.0.0.1:2407 --identity engine.pem --ca keyserver-ca.pem \\\n      \
    --certificate shop.ec.pem --outstanding 1 --duration 1 --background rsa-pss-sha256 --background-certificate shop.rsa.pem")]
pub struct Arguments {
    /// Key server to ask
    #[arg(long, value_name = "HOST:PORT")]
    pub target: String,
    /// Name that the key server's certificate must have
    #[arg(long, default_value = "localhost")]
    pub name: String,
    /// Our certificate chain and its private key, in one file
    #[arg(long, value_name = "PEM")]
    pub identity: PathBuf,
    /// CA to verify the key server with
    #[arg(long, value_name = "PEM")]
    pub ca: PathBuf,
    /// TLS version to offer
    #[arg(long, value_name = "VERSION", default_value = "any")]
    pub tls: Version,
    /// What to ask for
    #[arg(long, value_name = "OPERATION", default_value = "ecdsa-sha256")]
    pub op: Operation,
    /// Certificate (or public key) of the key asked for: gives the SKI, and verifies the answers
    #[arg(long, value_name = "PEM")]
    pub certificate: Option<PathBuf>,
    /// SKI of the key asked for, instead of the certificate's
    #[arg(long, value_name = "HEX")]
    pub ski: Option<Ski>,
    /// Share of the signatures to verify, 0 to 1; they are verified after the measurement
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = parse_share)]
    pub verify_share: f64,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=4096))]
    pub connections: usize,
    /// Operations in progress on each connection; 1 is one at a time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=65536))]
    pub outstanding: usize,
    /// As much as the key server takes: 1024 operations in progress on each connection
    #[arg(long, conflicts_with_all = ["outstanding", "rate"])]
    pub bandwidth: bool,
    /// Operations that arrive per second whether or not earlier ones were answered (open loop)
    #[arg(long, value_name = "PER_SECOND", value_parser = parse_rate)]
    pub rate: Option<f64>,
    /// How long to measure: 3, 2.5s, 500ms, 2m
    #[arg(long, default_value = "3", value_parser = parse_duration, conflicts_with = "count")]
    pub duration: Duration,
    /// Measure so many operations instead
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Load that goes before and is not counted
    #[arg(long, default_value = "500ms", value_parser = parse_duration)]
    pub warmup: Duration,
    /// Longest wait for one operation
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Measure alone, and with this operation in the background, in turn: rounds of --duration each
    #[arg(long, value_name = "OPERATION", conflicts_with_all = ["count", "server_pids"])]
    pub background: Option<Operation>,
    /// Certificate (or public key) of the key that the background operation asks for
    #[arg(long, value_name = "PEM", requires = "background")]
    pub background_certificate: Option<PathBuf>,
    /// Background operations in progress
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=65536))]
    pub background_outstanding: usize,
    /// Rounds with --background
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1000))]
    pub rounds: usize,
    /// Process whose CPU time is to be measured, with its children; repeat for more
    #[arg(long = "server-pid", value_name = "PID")]
    pub server_pids: Vec<u32>,
    /// Core to keep the load on
    #[arg(long)]
    pub core: Option<usize>,
    /// Write the result as JSON ("-": to stdout)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Arguments {
    pub fn outstanding(&self) -> usize {
        if self.bandwidth { BANDWIDTH_OUTSTANDING } else { self.outstanding }
    }

    pub fn plan(&self, ski: Option<Ski>) -> Plan {
        Plan {
            connections: self.connections,
            outstanding: self.outstanding(),
            timeout: self.timeout,
            rate: self.rate,
            opcode: self.op.opcode(),
            ski,
            verify_share: self.verify_share,
        }
    }
}

fn parse_share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("a share lies between 0 and 1".to_owned()),
    }
}
