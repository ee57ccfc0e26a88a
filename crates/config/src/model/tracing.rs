use std::time::Duration;

use serde::{Serialize, Serializer};

use super::{At, BackendTls, ServerAddress, Trust};
use crate::shown;

/// Distributed tracing, with spans exported to a collector: `[tracing]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tracing {
    /// Collector that spans are sent to.
    pub endpoint: CollectorEndpoint,
    /// TLS settings towards the collector. Absent: plaintext.
    #[serde(skip)]
    pub tls: Option<BackendTls>,
    /// File of header fields for every request to the collector, such as credentials.
    pub headers: Option<Trust>,
    /// Share of the traces begun here that is recorded. Default one in a hundred.
    pub sample: SampleRate,
    /// Whether a client's trace context is trusted. Default the parent's is.
    pub trust: TraceTrust,
    /// Spans recorded per second, over all workers. Default 1000.
    pub spans_per_second: u32,
    /// Resource attribute `service.name`. Default "propylon".
    pub service_name: String,
    /// Additional resource attributes, by name.
    #[serde(serialize_with = "shown::table")]
    pub attributes: Vec<(String, String)>,
    /// Timeout of a request to the collector, including its connection. Default 10 s.
    #[serde(serialize_with = "shown::written")]
    pub timeout: Duration,
    /// Position of the section in the file.
    pub at: At,
}

/// The URL of a collector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct CollectorEndpoint {
    /// URL as it was written.
    pub url: String,
    /// Host and port of the collector.
    #[serde(skip)]
    pub address: ServerAddress,
    /// Host and port as the Host field has them.
    #[serde(skip)]
    pub authority: String,
    /// Path of the URL, with its leading slash.
    #[serde(skip)]
    pub path: String,
}

/// A sampling rate in millionths of all traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRate(pub u32);

impl Serialize for SampleRate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(f64::from(self.0) / f64::from(SampleRate::ALL))
    }
}

impl SampleRate {
    /// Rate that samples every trace.
    pub const ALL: u32 = 1_000_000;
}

/// Whether the trace context of a client is continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TraceTrust {
    /// Continued, and the client's sampled flag decides whether the trace is recorded.
    Parent,
    /// Not continued: every request begins a trace of its own.
    Never,
}
