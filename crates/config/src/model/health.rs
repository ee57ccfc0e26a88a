//! How servers are found to be fit or not, and how their names are looked up.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Probes that the engine sends to each server: `health` of `[backend.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// Default http if there is a path, else tcp.
    pub kind: ProbeKind,
    /// Between two probes of a server, give or take a tenth. Default 2 s.
    pub interval: Duration,
    /// From the connect to the verdict. Default 1 s.
    pub timeout: Duration,
    /// Successes in a row that bring a server back. Default 2.
    pub rise: u32,
    /// Failures in a row that take it out. Default 3.
    pub fall: u32,
    /// Probes go to this port; absent: the server's own.
    pub port: Option<u16>,
    /// A server gets requests before its first probe has ended. Default yes.
    pub starts_up: bool,
}

/// What is asked of a server. Where the backend has `tls`, HTTP and gRPC are spoken over it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    /// That it accepts a connection.
    Tcp,
    /// That it agrees on TLS, as the backend's `tls` wants it.
    Tls,
    /// That it answers a request as it should.
    Http(HttpProbe),
    /// That it says `SERVING` to grpc.health.v1.Health/Check.
    Grpc {
        /// The service that is asked about; empty: the server as a whole.
        service: String,
    },
}

/// A request, and the answers that will do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpProbe {
    /// Path and query.
    pub path: String,
    /// GET (default), HEAD or OPTIONS.
    pub method: &'static str,
    /// The Host field. Absent: as the server's address is written.
    pub host: Option<String>,
    /// At least one. Default 200-399.
    pub status: Vec<RangeInclusive<u16>>,
    /// The body has this in it.
    pub body: Option<String>,
}

/// When a server is left out for what it makes of requests: `outlier` of `[backend.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outlier {
    /// Between two comparisons of success rates. Default 10 s.
    pub interval: Duration,
    /// Failures without a success between them; 0: not looked at. Default 5.
    pub consecutive_failures: u32,
    /// Servers with enough requests that make a comparison; 0: there is none. Default 5.
    pub success_rate_servers: u32,
    /// Requests in the interval that make a server's rate worth comparing. Default 100.
    pub success_rate_requests: u32,
    /// How far below the mean of its peers a rate may lie, in hundredths of a standard deviation. Default 190.
    pub success_rate_deviation_percent: u32,
    /// The first ejection; each further one is longer by as much. Default 30 s.
    pub ejection: Duration,
    /// The longest. Default 5 min.
    pub ejection_max: Duration,
    /// Share of the servers that may be ejected at once. Default 30.
    pub ejected_percent_max: u32,
}

/// Bounds that keep trouble at a backend from growing: `circuit` of `[backend.NAME]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Circuit {
    /// Requests at the backend at once, those in its line among them, shared evenly by the workers. Absent: no limit.
    pub requests: Option<u32>,
}

/// How names of servers are looked up: `process.resolver`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolver {
    /// Name servers. Empty: as the system is configured.
    pub servers: Vec<SocketAddr>,
    /// Names are not looked up again sooner than this, whatever their records say. Default 5 s.
    pub ttl_min: Duration,
    /// Nor later. Default 5 min.
    pub ttl_max: Duration,
}

impl Default for Resolver {
    fn default() -> Resolver {
        Resolver { servers: Vec::new(), ttl_min: Duration::from_secs(5), ttl_max: Duration::from_secs(300) }
    }
}
