//! The flags of `compare`.

use super::peers::Peer;
use super::rows::{Choice, Row};
use crate::units::parse_duration;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// CPU and memory of Propylon and its peers for the same work
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    propylon-bench compare --against haproxy,nginx\n  \
    propylon-bench compare --against haproxy --rows ec13,requests-tls --rounds 5 --duration 4 --json result.json\n  \
    propylon-bench compare --rows all --rounds 5\n  \
    propylon-bench compare --rows requests-h2,post-h2,requests-h2-h2,requests-h1-h2,idle-h2\n  \
    propylon-bench compare --baseline before/propylon --rows requests-h2,idle-h2 --rounds 7\n  \
    propylon-bench compare --envoy venv/bin/envoy --markdown peers.md\n\n\
    Figures are CPU time (user and system) of all threads and processes of the proxy, which has one worker on one core,\n\
    per connection, request or gigabyte; medians of the rounds. Needs two cores: one for the proxy, one for the rest.")]
pub struct Arguments {
    /// Peers to compare with; by default those that are installed, and with --baseline none but that
    #[arg(long, value_name = "PEER", value_delimiter = ',')]
    pub against: Vec<Peer>,
    /// The haproxy to measure, if not the one in $PATH
    #[arg(long, value_name = "PATH")]
    pub haproxy: Option<PathBuf>,
    /// The nginx to measure, if not the one in $PATH
    #[arg(long, value_name = "PATH")]
    pub nginx: Option<PathBuf>,
    /// The envoy to measure, if not the one in $PATH
    #[arg(long, value_name = "PATH")]
    pub envoy: Option<PathBuf>,
    /// The propylon to measure; by default the one beside this program. "none" leaves it out
    #[arg(long, value_name = "PATH")]
    pub propylon: Option<PathBuf>,
    /// Another propylon, of an earlier build, as a peer: with the same configuration, in turns with this one
    #[arg(long, value_name = "PATH")]
    pub baseline: Option<PathBuf>,
    /// Kinds of work; by default all that every program here knows, without HTTP/2, re-encryption and the TCP relay
    #[arg(long, value_name = "ROW", value_delimiter = ',')]
    pub rows: Vec<Choice>,
    /// Times that each peer has its turn at each row
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Length of one measurement
    #[arg(long, default_value = "3", value_parser = parse_duration)]
    pub duration: Duration,
    /// Load before each measurement that is not counted
    #[arg(long, default_value = "700ms", value_parser = parse_duration)]
    pub warmup: Duration,
    /// Idle connections in the memory rows
    #[arg(long, value_name = "N", default_value_t = 8000, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(100..=9000))]
    pub idle_connections: usize,
    /// Connections in flight in the rows of new connections
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=4096))]
    pub in_flight: usize,
    /// Keep-alive connections in the rows of requests
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=4096))]
    pub connections: usize,
    /// Core for the proxy
    #[arg(long, default_value_t = 0)]
    pub proxy_core: usize,
    /// Core for the load and the origin
    #[arg(long, default_value_t = 1)]
    pub load_core: usize,
    /// Write everything measured as JSON ("-": to stdout)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the table of medians as Markdown ("-": to stdout)
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Copy the generated configurations here, to read or to run by hand
    #[arg(long, value_name = "DIR")]
    pub keep_configs: Option<PathBuf>,
}

impl Default for Arguments {
    /// The arguments that a command line without a flag has.
    fn default() -> Self {
        use clap::{Args, FromArgMatches};
        let command = Self::augment_args(clap::Command::new("compare"));
        let matches = command.get_matches_from(["compare"]);
        Self::from_arg_matches(&matches).expect("every flag has a default")
    }
}

impl Arguments {
    /// The rows that were named, or those by default.
    pub fn candidates(&self) -> Vec<Row> {
        if self.rows.is_empty() { Row::DEFAULT.to_vec() } else { Choice::rows(&self.rows) }
    }

    /// The peers that were named, or those by default.
    pub fn peers(&self) -> Vec<Peer> {
        let baseline = self.baseline.as_ref().map(|_| Peer::Baseline);
        let others = match (self.against.is_empty(), baseline) {
            (true, None) => Peer::PEERS.to_vec(),
            (true, Some(_)) => Vec::new(),
            (false, _) => self.against.clone(),
        };
        baseline.into_iter().chain(others).collect()
    }

    pub fn path_of(&self, peer: Peer) -> Option<&Path> {
        match peer {
            Peer::Propylon | Peer::Unbatched => self.propylon.as_deref(),
            Peer::Haproxy => self.haproxy.as_deref(),
            Peer::Nginx => self.nginx.as_deref(),
            Peer::Envoy => self.envoy.as_deref(),
            Peer::Baseline => self.baseline.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn a_baseline_stands_alone_unless_others_are_named() {
        let peers = |line: &str| Line::parse_from(line.split(' ')).arguments.peers();
        assert_eq!(peers("x"), Peer::PEERS);
        assert_eq!(peers("x --against nginx"), [Peer::Nginx]);
        assert_eq!(peers("x --baseline old"), [Peer::Baseline]);
        assert_eq!(peers("x --baseline old --against nginx,unbatched"), [Peer::Baseline, Peer::Nginx, Peer::Unbatched]);
        assert!(Line::try_parse_from(["x", "--against", "baseline"]).is_err(), "it has no path of its own");
    }
}
