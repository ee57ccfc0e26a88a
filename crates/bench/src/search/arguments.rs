//! The flags of `search`.

use super::rate_search::Goal;
use crate::target::{Cipher, TlsOffer, Version};
use crate::testbed::{Subject, Testbed, TestbedArguments};
use crate::units::parse_duration;
use std::path::PathBuf;
use std::time::Duration;

/// Highest rate of new connections sustained for --duration with no latency above --limit
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    propylon-bench search\n  \
    propylon-bench search --keys ec --workers 1,2 --duration 20 --probe 2 --json search.json\n  \
    propylon-bench search --server haproxy --keys rsa --workers 1\n  \
    propylon-bench search --target 10.0.0.5:443 --name shop.example --path /health --source 10.0.0.9 --source 10.0.0.10\n\n\
    First the number of connections in flight is raised (closed loop), which gives the curve and a guess at the\n\
    capacity. Then the rate of arrivals is bisected (open loop: arrivals come by the clock, and latency counts from\n\
    when each was due), because only a rate has one boundary between sustained and not. The highest rate is confirmed\n\
    for the full duration. No error is allowed at any point. A rate that the load could not have exceeded itself is\n\
    reported as a lower bound.")]
pub struct Arguments {
    #[command(flatten)]
    pub testbed: TestbedArguments,
    /// TLS version to offer
    #[arg(long, value_name = "VERSION", default_value = "1.3")]
    pub tls: Version,
    /// Offer only this cipher
    #[arg(long = "suite", value_name = "CIPHER", default_value = "aes128gcm")]
    pub cipher: Cipher,
    /// How long the rate must be sustained
    #[arg(long, default_value = "120", value_parser = parse_length)]
    pub duration: Duration,
    /// No connection may take longer than this, from when it was due to the end of its answer
    #[arg(long, default_value = "2", value_parser = parse_length)]
    pub limit: Duration,
    /// Length of the trials before the last
    #[arg(long, default_value = "5", value_parser = parse_length)]
    pub probe: Duration,
    /// Load before each trial that is not counted
    #[arg(long, default_value = "500ms", value_parser = parse_duration)]
    pub warmup: Duration,
    /// How closely the boundary is searched for, as a share of the rate
    #[arg(long, default_value_t = 0.02, value_parser = parse_precision)]
    pub precision: f64,
    /// Connections at once at most; in the open loop arrivals beyond it wait, and their wait counts
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=16_384))]
    pub in_flight_max: usize,
    /// Write everything measured as JSON ("-": to stdout)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Arguments {
    pub fn goal(&self) -> Goal {
        Goal {
            limit: self.limit,
            duration: self.duration,
            probe: self.probe.min(self.duration),
            precision: self.precision,
            in_flight_max: self.in_flight_max,
        }
    }

    pub fn offer(&self, testbed: &Testbed, subject: &Subject) -> TlsOffer {
        TlsOffer { version: self.tls, cipher: Some(self.cipher), ..testbed.offer(subject.family) }
    }
}

fn parse_length(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        length if length >= Duration::from_millis(100) => Ok(length),
        _ => Err("at least 100ms".to_owned()),
    }
}

fn parse_precision(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.001..=0.2).contains(&share) => Ok(share),
        _ => Err("a share between 0.001 and 0.2".to_owned()),
    }
}
