//! The resolved model of active health checks, outlier ejection, circuit breakers and DNS resolution.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Serialize;

use crate::shown;

/// Active health checks, probes sent by the engine to each server: `health` of `[backend.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HealthCheck {
    /// Kind of probe. Default http if there is a path, else tcp.
    #[serde(flatten)]
    pub kind: ProbeKind,
    /// Interval between two probes of a server, plus or minus a tenth. Default 2 s.
    #[serde(serialize_with = "shown::written")]
    pub interval: Duration,
    /// Interval between two probes of a server that is down, likewise. Absent: `interval`.
    #[serde(serialize_with = "shown::written")]
    pub interval_down: Option<Duration>,
    /// Time from the connect to the verdict. Default 1 s.
    #[serde(serialize_with = "shown::written")]
    pub timeout: Duration,
    /// Successes in a row that bring a server back up. Default 2.
    pub rise: u32,
    /// Failures in a row that take a server down. Default 3.
    pub fall: u32,
    /// Port of the probes. Absent: the server's own.
    pub port: Option<u16>,
    /// Whether a server gets requests before its first probe has ended. Default yes.
    #[serde(rename = "start", serialize_with = "shown::up_or_down")]
    pub starts_up: bool,
}

/// Kind of probe. HTTP and gRPC probes use TLS where the backend has `tls`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum ProbeKind {
    /// TCP connect: the server accepts a connection.
    Tcp,
    /// TLS handshake: the server completes it under the backend's `tls` settings.
    Tls,
    /// HTTP: the server answers a request as expected.
    Http(HttpProbe),
    /// gRPC: the server answers grpc.health.v1.Health/Check with `SERVING`.
    Grpc {
        /// Service that is asked about; empty: the server as a whole.
        service: String,
    },
}

/// An HTTP probe: its request, and the answers that pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HttpProbe {
    /// Path and query of the request.
    pub path: String,
    /// Method: GET (default), HEAD or OPTIONS.
    pub method: &'static str,
    /// Host field. Absent: the server's address as it is written.
    pub host: Option<String>,
    /// Status codes that pass, at least one range. Default 200-399.
    #[serde(serialize_with = "shown::ranges")]
    pub status: Vec<RangeInclusive<u16>>,
    /// Text that the body must contain.
    pub body: Option<String>,
}

/// Outlier ejection, for how servers answer requests: `outlier` of `[backend.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outlier {
    /// Interval between two comparisons of success rates. Default 10 s.
    #[serde(serialize_with = "shown::written")]
    pub interval: Duration,
    /// Consecutive failures, without a success between them, that eject a server; 0: not checked. Default 5.
    pub consecutive_failures: u32,
    /// Servers with enough requests that a comparison needs; 0: success rates are not compared. Default 5.
    pub success_rate_servers: u32,
    /// Requests in the interval that a server needs for its rate to be compared. Default 100.
    pub success_rate_requests: u32,
    /// Distance of a rate below the mean of the server's peers that ejects it, in hundredths of a standard deviation.
    /// Default 190.
    pub success_rate_deviation_percent: u32,
    /// Duration of the first ejection; each further one is longer by as much. Default 30 s.
    #[serde(serialize_with = "shown::written")]
    pub ejection: Duration,
    /// Longest duration of an ejection. Default 5 min.
    #[serde(serialize_with = "shown::written")]
    pub ejection_max: Duration,
    /// Percent of the servers that may be ejected at a time. Default 30.
    pub ejected_percent_max: u32,
}

/// Circuit breaker, limits that keep trouble at a backend from spreading: `circuit` of `[backend.NAME]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Circuit {
    /// Requests at the backend at a time, including those in its queue, over all workers. Absent: no limit; with
    /// `adaptive` the limit's upper bound, by default 1,000.
    pub requests: Option<u32>,
    /// Whether the limit goes by how long answers take. Default false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub adaptive: bool,
    /// Lower bound of a limit that is adaptive. Default 4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_min: Option<u32>,
}

impl Circuit {
    /// Upper bound of an adaptive limit where none is given.
    pub const ADAPTIVE_MAX: u32 = 1_000;
    /// Lower bound of an adaptive limit where none is given.
    pub const ADAPTIVE_MIN: u32 = 4;
    /// Adaptive limit of a backend that nothing is known of, within its bounds.
    pub const ADAPTIVE_FIRST: u32 = 32;

    /// Whether there is a limit of any kind.
    pub fn has_limit(&self) -> bool {
        self.requests.is_some() || self.adaptive
    }

    pub(crate) fn has_no_bound(&self) -> bool {
        !self.has_limit()
    }

    /// The limit to begin with, after one of `before` if there was one. An adaptive one stays as it is if it is within
    /// the bounds.
    pub fn first_limit(&self, before: u32) -> u32 {
        match self.adaptive_bounds() {
            None => self.requests.unwrap_or(u32::MAX),
            Some((min, max)) if before > max => Circuit::ADAPTIVE_FIRST.clamp(min, max),
            Some((min, _)) => before.max(min),
        }
    }

    /// Lower and upper bound of a limit that is adaptive.
    pub fn adaptive_bounds(&self) -> Option<(u32, u32)> {
        let max = self.requests.unwrap_or(Circuit::ADAPTIVE_MAX);
        let min = self.requests_min.unwrap_or(Circuit::ADAPTIVE_MIN);
        self.adaptive.then_some((min.min(max), max))
    }
}

/// DNS resolution of servers' host names: `process.resolver`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resolver {
    /// Name servers. Empty: those of the system's configuration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<SocketAddr>,
    /// Shortest time between two lookups of a name, whatever the TTL of its records. Default 5 s.
    #[serde(serialize_with = "shown::written")]
    pub ttl_min: Duration,
    /// Longest time between two lookups of a name, whatever the TTL of its records. Default 5 min.
    #[serde(serialize_with = "shown::written")]
    pub ttl_max: Duration,
}

impl Default for Resolver {
    fn default() -> Resolver {
        Resolver { servers: Vec::new(), ttl_min: Duration::from_secs(5), ttl_max: Duration::from_secs(300) }
    }
}
