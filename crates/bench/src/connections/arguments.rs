//! The flags of `connections`, and what its clients do by them.

use crate::client_group::clients::Behaviour;
use crate::client_group::processes::PROCESSES_MAX;
use crate::client_group::{ClientBehaviour, RequestPattern};
use crate::failure::{Failure, Outcome};
use crate::idle::{OPENING_MAX, idle_clients};
use crate::link::Request;
use crate::requests::Http;
use crate::target;
use crate::units::parse_duration;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// Bytes of a dribbled request: a head that no server refuses for its size alone, and a body of as much.
const DRIBBLE_BYTES: usize = 4 * 1024;

/// Idle or slow connections: memory per connection, and how fast they come
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    propylon-bench connections --target 127.0.0.1:8443 --count 8000 --server-pid 4711\n  \
    propylon-bench connections --target propylon --modes tcp,tcp-byte,http,tls --count 4000\n  \
    propylon-bench connections --target nginx --modes tls,h2\n  \
    propylon-bench connections --target haproxy --count 2000 --slow 50 --hold 20s\n  \
    propylon-bench connections --target 10.0.0.5:443 --count 60000 --processes 4 --every 30s --hold 90s\n\n\
    --target is an address, or propylon, haproxy or nginx: then that program is started, anew for each mode, with the\n\
    configuration that `compare` gives it. One that runs should have been started just before: a server that held\n\
    connections serves new ones from memory that it kept, and only the first mode is then worth reading.")]
pub struct Arguments {
    #[command(flatten)]
    pub target: target::TargetArguments,
    /// Plain address of the same server, for the modes without TLS
    #[arg(long, value_name = "HOST:PORT")]
    pub plain_target: Option<String>,
    /// Kinds of connections, measured one after the other; by default tls, or http with --plain
    #[arg(long, value_name = "MODE", value_delimiter = ',')]
    pub modes: Vec<Mode>,
    /// All of them side by side: tcp, http and tls
    #[arg(long, conflicts_with_all = ["modes", "slow", "every"])]
    pub compare: bool,
    /// Connections to open
    #[arg(long, value_name = "N", default_value_t = 8000, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=10_000_000))]
    pub count: usize,
    /// Path to ask for
    #[arg(long, default_value = "/")]
    pub path: String,
    /// Send requests at this many bytes per second and connection, one piece a second, over and over
    #[arg(long, value_name = "BYTES_PER_SECOND", conflicts_with = "every", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    pub slow: Option<usize>,
    /// Which part of a slow request is slow (a slow body comes after a whole head)
    #[arg(long, value_name = "PART", default_value = "head", requires = "slow")]
    pub slow_part: SlowPart,
    /// Send a small request on each connection this often; by default one, and no more
    #[arg(long, value_name = "INTERVAL", value_parser = parse_duration)]
    pub every: Option<Duration>,
    /// How long to hold them before memory is read
    #[arg(long, default_value = "1s", value_parser = parse_duration)]
    pub hold: Duration,
    /// Between closing them and the last reading of memory
    #[arg(long, default_value = "1500ms", value_parser = parse_duration)]
    pub after: Duration,
    /// Longest wait for one request
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Process whose memory is to be measured, with its children; repeat for more
    #[arg(long = "server-pid", value_name = "PID")]
    pub server_pids: Vec<u32>,
    /// Load processes to split the connections over (each is limited by its open files and local ports)
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=PROCESSES_MAX))]
    pub processes: u64,
    /// Core to keep the load on; 1 for a server that is started here
    #[arg(long)]
    pub core: Option<usize>,
    /// Core for a server that is started here
    #[arg(long, default_value_t = 0)]
    pub server_core: usize,
    /// The propylon that --target propylon starts; by default the one beside this program
    #[arg(long, value_name = "PATH")]
    pub propylon: Option<PathBuf>,
    /// Write the result as JSON ("-": to stdout)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// A kind of connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Connected to the plain port, not a byte sent
    Tcp,
    /// Connected to the plain port, one byte of a request sent
    TcpByte,
    /// A request on the plain port, answered
    Http,
    /// A request over TLS, answered
    Tls,
    /// HTTP/2 over TLS: twenty requests, answered one after the other
    H2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SlowPart {
    Head,
    Body,
}

impl Mode {
    pub fn is_tls(self) -> bool {
        matches!(self, Self::Tls | Self::H2)
    }

    /// The version of HTTP of connections that ask and lie idle.
    pub fn http(self) -> Http {
        if self == Self::H2 { Http::V2 } else { Http::V11 }
    }

    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

impl Arguments {
    pub fn modes(&self) -> Vec<Mode> {
        match () {
            () if self.compare => vec![Mode::Tcp, Mode::Http, Mode::Tls],
            () if !self.modes.is_empty() => self.modes.clone(),
            () if self.target.plain => vec![Mode::Http],
            () => vec![Mode::Tls],
        }
    }

    /// The behaviour of the clients of a mode.
    pub fn behaviour(&self, mode: Mode, host: &str, path: &str) -> Behaviour {
        let mut request = Request::new("GET", path, host, "", 0);
        let pattern = match (mode, self.slow, self.every) {
            (Mode::H2, ..) => return idle_clients(Http::V2, path, host, self.timeout),
            (Mode::Tcp, ..) => RequestPattern::Silent,
            (Mode::TcpByte, ..) => RequestPattern::OneByte,
            (_, Some(bytes_per_second), _) => {
                request = self.slow_request(host, path);
                RequestPattern::Dribble { bytes_per_second }
            }
            (_, None, Some(every)) => RequestPattern::Every(every),
            (_, None, None) => RequestPattern::Once,
        };
        Behaviour::Http1(ClientBehaviour {
            pattern,
            request,
            timeout: self.timeout,
            opening_max: OPENING_MAX,
            arrivals_max: None,
        })
    }

    /// Refuses what a mode's clients do not do.
    pub fn check(&self, mode: Mode) -> Outcome<()> {
        if mode == Mode::H2 && (self.slow.is_some() || self.every.is_some()) {
            return Err(Failure::new("--slow and --every are for HTTP/1.1: connections of the mode h2 are idle"));
        }
        if mode.is_tls() && self.target.plain {
            return Err(Failure::new(format!("--plain and the mode {} exclude each other", mode.name())));
        }
        Ok(())
    }

    pub fn slow_request(&self, host: &str, path: &str) -> Request {
        match self.slow_part {
            SlowPart::Head => {
                let padding = format!("X-Padding: {}\r\n", "x".repeat(DRIBBLE_BYTES));
                Request::new("GET", path, host, &padding, 0)
            }
            SlowPart::Body => Request::new("POST", path, host, "", DRIBBLE_BYTES),
        }
    }

    pub fn has_slow_bodies(&self) -> bool {
        self.slow.is_some() && self.slow_part == SlowPart::Body
    }

    /// Beside a server that is started here the load has a core of its own, if there is another.
    pub fn load_core(&self) -> Option<usize> {
        let other = || crate::machine::cores_allowed().into_iter().find(|core| *core != self.server_core);
        self.core.or_else(other)
    }

    pub fn pattern_shown(&self) -> String {
        match (self.slow, self.every) {
            (Some(rate), _) => {
                let part = if self.slow_part == SlowPart::Head { "head" } else { "body" };
                format!("a request whose {part} comes at {rate} bytes per second")
            }
            (None, Some(every)) => format!("a request every {every:?}"),
            (None, None) => "idle".to_owned(),
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

    fn parse(line: &str) -> Arguments {
        Line::parse_from(line.split(' ')).arguments
    }

    #[test]
    fn modes_say_what_their_clients_do() {
        let arguments = parse("x --target a:1 --slow 30 --slow-part body --modes tcp,tcp-byte,http");
        let http1 = |mode| match arguments.behaviour(mode, "a", "/") {
            Behaviour::Http1(behaviour) => behaviour,
            Behaviour::Http2(_) => panic!("{mode:?}"),
        };
        let patterns = arguments.modes().into_iter().map(|mode| http1(mode).pattern);
        let dribble = RequestPattern::Dribble { bytes_per_second: 30 };
        assert_eq!(patterns.collect::<Vec<_>>(), [RequestPattern::Silent, RequestPattern::OneByte, dribble]);
        let bytes = http1(Mode::Http).request.bytes;
        assert!(bytes.starts_with(b"POST / ") && bytes.len() > DRIBBLE_BYTES);
        assert_eq!(parse("x --target a:1 --plain").modes(), [Mode::Http]);
        assert_eq!(parse("x --target a:1 --compare").modes(), [Mode::Tcp, Mode::Http, Mode::Tls]);
    }

    #[test]
    fn connections_of_http2_ask_twenty_times_and_are_idle() {
        let arguments = parse("x --target a:1 --modes tls,h2");
        assert_eq!(arguments.modes(), [Mode::Tls, Mode::H2]);
        let Behaviour::Http2(behaviour) = arguments.behaviour(Mode::H2, "a", "/x") else { panic!("not HTTP/2") };
        assert_eq!((behaviour.requests, &*behaviour.path), (20, "/x"));
        assert!(arguments.check(Mode::H2).is_ok());
        for flags in ["--slow 50", "--every 5", "--plain"] {
            assert!(parse(&format!("x --target a:1 {flags}")).check(Mode::H2).is_err(), "{flags}");
        }
    }
}
